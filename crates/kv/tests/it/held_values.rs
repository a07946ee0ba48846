//! Large values that a scan gave out stay readable as long as they are held, the scan and its snapshot or not.

use std::ops::Bound;
use std::time::Duration;

use crate::common::*;
use pumice_kv::{Batch, Direction, LargeRef, SliceId, SliceSet, Store, Want};
use pumice_reactor::sim::{HostOptions, World};

const VALUES: u64 = 20;
const VALUE_BYTES: usize = 300_000;
/// So much was moved: large values among it. Cleaning rests when it has won what it keeps free, until the snapshot is gone.
const MOVED_BYTES: u64 = 400_000;

fn name(n: u64) -> Vec<u8> {
    format!("a:{n:03}").into_bytes()
}

fn value(n: u64) -> Vec<u8> {
    vec![n as u8 + 1; VALUE_BYTES]
}

/// Sets small keys in another slice, `wide` of them in turns.
async fn churn(store: &Store, next: &mut u64, times: u64, wide: u64) {
    for _ in 0..times {
        let mut batch = Batch::new();
        batch.put(SliceId(1), &(*next % wide).to_be_bytes(), 0, 0, &[3; 9000]);
        // Full at times.
        let _ = store.write_ready(&batch).await;
        *next += 1;
        if next.is_multiple_of(50) {
            store.wait_durable(store.last_seq()).await.expect("durable");
            pumice_reactor::sleep(Duration::from_millis(2)).await;
        }
    }
}

async fn read(store: &Store, large: &LargeRef) -> Result<Vec<u8>, pumice_kv::StoreError> {
    let mut reader = store.read_large(large, 0..large.len());
    let mut all = Vec::new();
    while let Some(part) = reader.next().await? {
        all.extend_from_slice(&part);
    }
    Ok(all)
}

async fn check() {
    let device = device("emu:small").await;
    let store = formatted(&device).await;
    for n in 0..VALUES {
        put_large(&store, 0, &name(n), 0, &value(n)).await;
        put_large(&store, 0, format!("b:{n:03}").as_bytes(), 0, &value(n)).await;
    }
    let snapshot = store.snapshot();
    for n in 0..VALUES {
        delete(&store, 0, format!("b:{n:03}").as_bytes()).await;
    }
    let mut next = 0;
    for _ in 0..540 {
        churn(&store, &mut next, 50, u64::MAX).await;
        if store.stats().counters.moved_bytes > MOVED_BYTES {
            break;
        }
    }
    assert!(store.stats().counters.moved_bytes > MOVED_BYTES, "values were moved behind the snapshot");
    let to = Bound::Excluded(b"b"[..].into());
    let from = Bound::Included(name(0).into());
    let of = SliceSet::One(SliceId(0));
    let mut scan = store.scan(&snapshot, of, from, to, Direction::Forward, Want::Values);
    let mut held = Vec::new();
    while let Some((_, entry)) = scan.next().await.expect("scan") {
        held.push(entry.large.expect("large"));
    }
    drop((scan, snapshot));
    assert_eq!(held.len() as u64, VALUES);
    // What the snapshot alone held is released, and written over.
    for n in 0..300_u64 {
        delete(&store, 1, &n.to_be_bytes()).await;
    }
    // What the values hold may be all that cleaning won: no segment comes free then, and a flush is given up.
    let flushed = store.checkpoint().await;
    churn(&store, &mut next, 300, 100).await;
    for (n, large) in (0..).zip(&held) {
        assert!(read(&store, large).await.expect("reads") == value(n), "value {n}");
    }
    drop(held);
    if let Err(mut error) = flushed {
        for _ in 0..100 {
            match store.checkpoint().await {
                Ok(()) => return,
                Err(again) => error = again,
            }
        }
        panic!("nothing is held any more, and there is no segment: {error}");
    }
}

#[test]
fn large_values_of_a_scan_stay_readable_as_long_as_they_are_held() {
    pumice_reactor::block_on(check());
}

/// In virtual time cleaning is through with the drive before anything else goes on: they hold every segment that it won.
#[test]
fn large_values_that_hold_the_last_segments_stay_readable_and_a_drive_goes_on_behind_them() {
    let world = World::new(1);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    world.block_on(host, check()).unwrap_or_else(|halt| panic!("{halt}"));
}
