//! A batch of many segments' length on a drive that is overwritten: it gets them, or is refused, and holds nobody up.

use std::time::Duration;

use crate::common::*;
use pumice_base::rng::Rng;
use pumice_flash::{Device, DeviceSpec};
use pumice_kv::{Batch, SliceId, Store, StoreFormat, StoreOptions, WriteError};
use pumice_reactor::sim::{HostOptions, World};
use pumice_reactor::{sleep, spawn, timeout};

const SEGMENT: u64 = 256 << 10;
const SEGMENTS: u64 = 256;
const VALUE_BYTES: usize = 8000;
/// What a drive of this size keeps free, and some.
const MANY_SEGMENTS: u64 = 12;

fn in_virtual_time(test: impl Future<Output = ()> + 'static) {
    let world = World::new(3);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    world.block_on(host, test).unwrap_or_else(|halt| panic!("{halt}"));
}

/// A store that is two thirds full, overwritten until it is cleaned for what is written.
async fn overwritten() -> Store {
    let spec: DeviceSpec = "/drive".parse().expect("spec");
    let device = Device::create(&spec, SEGMENTS * SEGMENT).await.expect("file");
    Store::format(&device, &StoreFormat { segment_bytes: Some(SEGMENT as u32), ..format() })
        .await
        .expect("format");
    let options = StoreOptions { memory_bytes: 32 << 20, ..StoreOptions::default() };
    let store = open_with(&device, options).await.store;
    let (keys, mut rng) = (SEGMENTS * SEGMENT * 2 / 3 / 8064, Rng::from_seed(7));
    for n in 0..4 * keys {
        let key = if n < keys { n } else { rng.below(keys) };
        put(&store, (key % 3) as u16, &key.to_be_bytes(), &[n as u8; VALUE_BYTES]).await;
    }
    assert!(store.stats().counters.cleaned_segments > SEGMENTS, "it was cleaned");
    // What is won beyond what is wanted now takes longer.
    sleep(Duration::from_secs(3)).await;
    store
}

fn batch_of(bytes: u64) -> Batch {
    let mut batch = Batch::new();
    for n in 0..bytes / VALUE_BYTES as u64 {
        batch.put(
            SliceId((n % 3) as u16),
            &[b"long", &n.to_be_bytes()[..]].concat(),
            0,
            0,
            &[9; VALUE_BYTES],
        );
    }
    batch
}

/// Writes a batch, and others' beside it; answers what became of it.
async fn beside_others(store: &Store, batch: Batch, deletes: bool) -> Result<u64, WriteError> {
    let written = spawn({
        let store = store.clone();
        async move { timeout(Duration::from_secs(60), store.write_ready(&batch)).await }
    });
    let busy = deletes.then(|| {
        let store = store.clone();
        spawn(async move {
            for n in 0u64.. {
                let key = [b"none", &n.to_be_bytes()[..]].concat();
                let seq = delete(&store, (n % 3) as u16, &key).await;
                if n % 20 == 0 {
                    let _ = store.wait_durable(seq).await;
                }
                if store.is_closing() {
                    break;
                }
            }
        })
    });
    sleep(Duration::from_millis(1)).await;
    for n in 0..100u64 {
        let small = async {
            put(store, (n % 3) as u16, &n.to_be_bytes(), &[1; 100]).await;
        };
        timeout(Duration::from_secs(60), small).await.expect("nobody waits for ever behind it");
    }
    let written = written.await.expect("not aborted").expect("it does not wait for ever either");
    drop(busy);
    written
}

#[test]
fn a_batch_of_more_segments_than_are_kept_free_gets_them() {
    in_virtual_time(async {
        let store = overwritten().await;
        let free = u64::from(store.heap().free_segments());
        assert!(free < MANY_SEGMENTS, "{free} are free, and the test of no use");
        for _ in 0..3 {
            beside_others(&store, batch_of(MANY_SEGMENTS * SEGMENT), false).await.expect("written");
        }
        store.close().await.expect("close");
    });
}

#[test]
fn a_batch_that_is_longer_than_may_be_on_its_way_gets_in_beside_deletes() {
    in_virtual_time(async {
        let store = overwritten().await;
        // 32 MiB of memory let 2 MiB be on their way.
        beside_others(&store, batch_of(3 << 20), true).await.expect("written");
        store.close().await.expect("close");
    });
}

#[test]
fn what_can_never_fit_is_refused_at_once() {
    in_virtual_time(async {
        let store = overwritten().await;
        let refused = beside_others(&store, batch_of(70 * SEGMENT), false).await;
        assert!(matches!(refused, Err(WriteError::TooLarge(_))), "{refused:?}");
        // Fewer than may be opened at once, and more than are not alive.
        let mut full = Batch::new();
        for n in 0..70 * SEGMENT / 8064 {
            full.put(SliceId(0), &[b"more", &n.to_be_bytes()[..]].concat(), 0, 0, &[9; VALUE_BYTES]);
            if full.bytes() as u64 > 5 * SEGMENT {
                let _ = timeout(Duration::from_secs(60), store.write_ready(&full)).await.expect("an answer");
                full.clear();
            }
        }
        let refused = beside_others(&store, batch_of(50 * SEGMENT), false).await;
        assert!(matches!(refused, Err(WriteError::Full(_))), "{refused:?}");
        store.close().await.expect("close");
    });
}

#[test]
fn a_batch_knows_its_bytes_however_its_values_came() {
    let mut batch = Batch::new();
    for round in 0..2 {
        assert_eq!(batch.bytes(), 0, "round {round}");
        batch.put(SliceId(0), b"copied", 0, 0, &[1; 500]);
        let copied = batch.bytes();
        assert!((506..600).contains(&copied), "{copied}");
        batch.put_bytes(SliceId(0), b"handed", 0, 0, vec![2; 5_000].into());
        let handed = batch.bytes() - copied;
        assert!((5_006..5_100).contains(&handed), "{handed}");
        batch.delete(SliceId(0), b"gone");
        assert!((4..100).contains(&(batch.bytes() - copied - handed)));
        batch.clear();
    }
}
