//! Large values on their way: in memory only as much as was planned, whoever is slow, and never other bytes than were put.

use crate::common::*;
use pumice_base::rng::Rng;
use pumice_kv::{Batch, LargeRef, LargeWriter, PIECE_BYTES_MAX, SliceId, Store, StoreFormat, StoreOptions};
use pumice_reactor::{block_on, spawn};

const SLICE: SliceId = SliceId(0);
/// A writer's first buffer, its headers and page ends counted.
const SMALL: std::ops::Range<usize> = 64 << 10..96 << 10;

/// A store with the least memory and segments that hold whole pieces.
async fn roomy() -> Store {
    let device = device("emu:tiny,channels=1,blocks=32,pages=2048,page=4096").await;
    let format = StoreFormat { segment_bytes: None, ..format() };
    Store::format(&device, &format).await.expect("format");
    open_with(&device, StoreOptions { memory_bytes: 64 << 20, ..StoreOptions::default() }).await.store
}

fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::from_seed(seed).fill(&mut bytes);
    bytes
}

async fn named(store: &Store, key: &[u8], writer: LargeWriter) -> LargeRef {
    let large = writer.finish().await.expect("finish");
    let mut batch = Batch::new();
    batch.put_large(SLICE, key, 0, 0, &large);
    write(store, &batch).await;
    large
}

async fn read(store: &Store, large: &LargeRef) -> Vec<u8> {
    let (mut reader, mut bytes) = (store.read_large(large, 0..large.len()), Vec::new());
    while let Some(piece) = reader.next().await.expect("a piece") {
        bytes.extend_from_slice(&piece);
    }
    bytes
}

#[test]
fn a_writers_memory_follows_what_was_pushed_and_can_be_had_back() {
    block_on(async {
        let store = roomy().await;
        let value = noise(3_000_000, 1);
        let mut writer = store.large_writer(SLICE, b"key");
        assert_eq!(writer.memory_bytes(), 0);
        writer.push(&value[..1]).await.expect("push");
        assert!(SMALL.contains(&writer.memory_bytes()), "{} B for one byte", writer.memory_bytes());
        writer.push(&value[1..200_000]).await.expect("push");
        assert!(writer.memory_bytes() > PIECE_BYTES_MAX, "{} B", writer.memory_bytes());
        writer.let_go().await.expect("let go");
        assert_eq!(writer.memory_bytes(), 0, "what was pushed is on its way");
        writer.be_frugal(true);
        for part in value[200_000..1_000_000].chunks(7_001) {
            writer.push(part).await.expect("push");
            let held = writer.memory_bytes();
            assert!(held == 0 || SMALL.contains(&held), "{held} B of a frugal writer");
        }
        writer.be_frugal(false);
        writer.push(&value[1_000_000..]).await.expect("push");
        let large = named(&store, b"key", writer).await;
        let pieces = large.piece_count();
        assert!((1 + 800_000 / SMALL.end..=20).contains(&pieces), "{pieces} pieces");
        assert_eq!(read(&store, &large).await, value);
        store.close().await.expect("close");
    });
}

#[test]
fn lent_memory_takes_a_value_as_pushing_does() {
    block_on(async {
        let store = roomy().await;
        let value = noise(5_000_000, 3);
        let mut writer = store.large_writer(SLICE, b"key");
        let mut at = 0;
        for turn in 1.. {
            if at == value.len() {
                break;
            }
            if turn % 3 == 0 {
                let take = (turn * 977).min(value.len() - at);
                writer.push(&value[at..at + take]).await.expect("push");
                at += take;
                continue;
            }
            let most = value.len() - at;
            let (mut buf, range) = writer.lend(most);
            assert!(!range.is_empty() && range.len() <= most, "{range:?} of {most}");
            // Nothing, part of it, all of it.
            let take = [0, range.len().min(turn * 1009), range.len()][turn % 8 % 3];
            buf[range.start..range.start + take].copy_from_slice(&value[at..at + take]);
            writer.take_back(buf, take).await.expect("write");
            at += take;
            if turn % 10 == 0 {
                writer.be_frugal(turn % 20 == 0);
            }
        }
        let large = named(&store, b"key", writer).await;
        assert!(large.piece_count() > 2, "{} pieces", large.piece_count());
        assert!(read(&store, &large).await == value);
        store.close().await.expect("close");
    });
}

#[test]
fn many_values_at_once_take_turns_and_all_come_through() {
    block_on(async {
        let store = roomy().await;
        let values: Vec<Vec<u8>> = (0..24).map(|n| noise(2_500_000 + n * 1_003, n as u64)).collect();
        let writes: Vec<_> = values
            .iter()
            .cloned()
            .enumerate()
            .map(|(n, value)| {
                let store = store.clone();
                spawn(async move {
                    let key = [b"key", &[n as u8][..]].concat();
                    let mut writer = store.large_writer(SLICE, &key);
                    for part in value.chunks(300_000) {
                        writer.push(part).await.expect("push");
                    }
                    named(&store, &key, writer).await
                })
            })
            .collect();
        let mut larges = Vec::new();
        for write in writes {
            larges.push(write.await.expect("written"));
        }
        let reads: Vec<_> = larges
            .iter()
            .cloned()
            .map(|large| {
                let store = store.clone();
                spawn(async move { read(&store, &large).await })
            })
            .collect();
        for (read, value) in reads.into_iter().zip(&values) {
            assert!(read.await.expect("read") == *value);
        }
        store.close().await.expect("close");
    });
}

#[test]
fn who_lets_go_of_what_was_read_ahead_keeps_nobody_waiting_and_reads_on_where_it_was() {
    block_on(async {
        let store = roomy().await;
        let value = noise(6_000_000, 9);
        let mut writer = store.large_writer(SLICE, b"key");
        writer.push(&value).await.expect("push");
        let large = named(&store, b"key", writer).await;
        // More of them than pieces may be in memory, each of which has read ahead and reads no further.
        let mut stalled = Vec::new();
        for _ in 0..8 {
            let mut reader = store.read_large(&large, 0..large.len());
            let first = reader.next().await.expect("read").expect("a piece");
            reader.let_go();
            stalled.push((reader, first));
        }
        assert_eq!(read(&store, &large).await, value);
        for (mut reader, first) in stalled {
            reader.set_ahead(1);
            let mut bytes = first.to_vec();
            while let Some(piece) = reader.next().await.expect("read") {
                bytes.extend_from_slice(&piece);
            }
            assert!(bytes == value);
        }
        store.close().await.expect("close");
    });
}
