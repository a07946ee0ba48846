//! Pieces of large values that are asked for again are in memory: within their bounds, and never of another value.

use std::time::Duration;

use crate::common::*;
use pumice_base::rng::Rng;
use pumice_kv::{LargeRef, PIECE_BYTES_MAX, Peek, SliceId, Store, StoreFormat, StoreOptions};
use pumice_reactor::{block_on, sleep};

const SLICE: u16 = 0;
const LEN: usize = 2_500_000;

async fn store_of(memory_mib: u64) -> Store {
    let device = device("emu:tiny,channels=1,blocks=32,pages=2048,page=4096").await;
    let format = StoreFormat { segment_bytes: None, ..format() };
    Store::format(&device, &format).await.expect("format");
    let options = StoreOptions { memory_bytes: memory_mib << 20, ..StoreOptions::default() };
    open_with(&device, options).await.store
}

fn noise(seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; LEN];
    Rng::from_seed(seed).fill(&mut bytes);
    bytes
}

async fn list(store: &Store, key: &[u8]) -> LargeRef {
    let slice = SliceId(SLICE);
    let entry = match store.peek(slice, key) {
        Peek::Found(entry) => entry,
        Peek::NeedsFlash(hint) => store.get_at(slice, key, hint).await.expect("get").expect("there"),
        Peek::Absent => panic!("it is there"),
    };
    LargeRef::clone(&entry.large.expect("large"))
}

async fn part(store: &Store, key: &[u8], range: std::ops::Range<u64>) -> Vec<u8> {
    let large = list(store, key).await;
    let (mut reader, mut bytes) = (store.read_large(&large, range), Vec::new());
    while let Some(piece) = reader.next().await.expect("a piece") {
        bytes.extend_from_slice(&piece);
    }
    bytes
}

async fn whole(store: &Store, key: &[u8]) -> Vec<u8> {
    part(store, key, 0..u64::MAX).await
}

#[test]
fn what_is_asked_for_again_is_not_read_again_and_what_replaces_it_is() {
    block_on(async {
        let store = store_of(256).await;
        put_large(&store, SLICE, b"key", 1, &noise(1)).await;
        // A part of a piece is no piece.
        assert!(part(&store, b"key", 10..1000).await == noise(1)[10..1000]);
        let before = store.stats();
        assert!(whole(&store, b"key").await == noise(1));
        let once = store.stats();
        assert_eq!(once.heap.reads - before.heap.reads, 3, "three pieces");
        assert!(once.row_bytes - before.row_bytes >= LEN as u64, "they are kept");
        assert!(whole(&store, b"key").await == noise(1));
        let across = PIECE_BYTES_MAX - 10..PIECE_BYTES_MAX + 10;
        assert!(
            part(&store, b"key", across.start as u64..across.end as u64).await == noise(1)[across.clone()]
        );
        assert_eq!(store.stats().heap.reads, once.heap.reads, "memory answers");
        put_large(&store, SLICE, b"key", 1, &noise(2)).await;
        assert!(whole(&store, b"key").await == noise(2));
        assert!(whole(&store, b"key").await == noise(2));
        delete(&store, SLICE, b"key").await;
        for _ in 0..100 {
            sleep(Duration::from_millis(20)).await;
            if store.stats().row_bytes < PIECE_BYTES_MAX as u64 {
                break;
            }
        }
        assert!(store.stats().row_bytes < PIECE_BYTES_MAX as u64, "nothing is kept of what is gone");
        store.close().await.expect("close");
    });
}

#[test]
fn many_values_keep_within_half_of_the_rows_memory_and_hot_ones_stay() {
    block_on(async {
        let store = store_of(96).await;
        let keys: Vec<Vec<u8>> = (0..40).map(|n| format!("key:{n}").into_bytes()).collect();
        for (n, key) in keys.iter().enumerate() {
            put_large(&store, SLICE, key, 1, &noise(n as u64)).await;
        }
        let mut rng = Rng::from_seed(7);
        let mut most = 0;
        for _ in 0..150 {
            let n = rng.below(keys.len() as u64);
            assert!(whole(&store, &keys[n as usize]).await == noise(n));
            assert!(whole(&store, &keys[0]).await == noise(0));
            most = most.max(store.stats().row_bytes);
        }
        assert!((4 * PIECE_BYTES_MAX as u64..48 << 20).contains(&most), "{most} B are kept");
        let before = store.stats().heap.reads;
        assert!(whole(&store, &keys[0]).await == noise(0));
        assert_eq!(store.stats().heap.reads, before, "what every second GET asks for is in memory");
        store.close().await.expect("close");
    });
}

#[test]
fn with_the_least_memory_none_are_kept() {
    block_on(async {
        let store = store_of(24).await;
        put_large(&store, SLICE, b"key", 1, &noise(1)).await;
        for _ in 0..3 {
            assert!(whole(&store, b"key").await == noise(1));
        }
        assert!(store.stats().row_bytes < 64 << 10);
        store.close().await.expect("close");
    });
}
