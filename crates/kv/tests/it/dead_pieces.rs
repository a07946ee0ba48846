//! What overwrites of large values leave dead is known at once, and is not counted where something else lies by now.

use std::time::Duration;

use crate::common::*;
use pumice_kv::Store;
use pumice_reactor::sim::{HostOptions, World};
use pumice_reactor::sleep;

const LARGE: usize = 300_000;

fn key(n: u32) -> Vec<u8> {
    format!("key:{n}").into_bytes()
}

fn in_virtual_time(test: impl Future<Output = ()> + 'static) {
    let world = World::new(1);
    let host = world.add_host(HostOptions { cores: 1, ..HostOptions::default() });
    world.block_on(host, test).expect("the world ran");
}

/// Waits until the heap takes `most` bytes for alive at most, a few seconds.
async fn live_falls_to(store: &Store, most: u64) -> bool {
    for _ in 0..100 {
        if store.space().live <= most {
            return true;
        }
        sleep(Duration::from_millis(50)).await;
    }
    false
}

#[test]
fn overwritten_large_values_are_known_dead_before_a_merge_finds_them() {
    in_virtual_time(async {
        let store = formatted(&device("emu:small").await).await;
        let keys = 20;
        for n in 0..keys {
            put_large(&store, 0, &key(n), 1, &[1; LARGE]).await;
        }
        store.checkpoint().await.expect("checkpoint");
        let before = store.stats();
        for n in 0..keys {
            put_large(&store, 0, &key(n), 2, &[2; LARGE]).await;
        }
        let most = before.space.live + before.space.live / 10;
        assert!(live_falls_to(&store, most).await, "{} of {most} B are alive", store.space().live);
        for n in 0..keys {
            delete(&store, 0, &key(n)).await;
        }
        assert!(live_falls_to(&store, before.space.live / 10).await, "{} B are alive", store.space().live);
        assert_eq!(store.stats().counters.merges, before.counters.merges, "no merge was needed");
        store.close().await.expect("close");
    });
}

/// A small value is not looked up when it is written, so the list of the large one before it is only found by a merge: by then
/// cleaning has emptied the segments, and others write there.
#[test]
fn a_list_found_late_kills_nothing_that_lies_where_its_pieces_were() {
    in_virtual_time(async {
        let device = device("emu:small,channels=1,blocks=64").await;
        let store = formatted(&device).await;
        let late = 8;
        for n in 0..late {
            put_large(&store, 0, &key(n), 1, &[1; LARGE]).await;
        }
        store.checkpoint().await.expect("checkpoint");
        for n in 0..late {
            put(&store, 0, &key(n), b"small").await;
        }
        store.checkpoint().await.expect("checkpoint");
        // Those that held the pieces are the best victims as soon as cleaning looks for some.
        for segment in store.heap().segments_in_use() {
            store.heap().set_live(segment, 0);
        }
        // First what is soon dead again, so that cleaning has something to win, then what stays.
        for n in 0..4800u32 {
            let key = if n < 3600 { n % 200 } else { n };
            put(&store, 1, &key.to_be_bytes(), &[3; 20_000]).await;
            if n % 100 == 0 {
                // Else cleaning asks for merges, because it may not touch what a replay needs.
                store.checkpoint().await.expect("checkpoint");
            }
        }
        // Nothing is cleaned while this is looked at.
        sleep(Duration::from_secs(2)).await;
        let before = store.stats();
        for round in 0..3 {
            put(&store, 0, b"another", &[round; 10]).await;
            store.checkpoint().await.expect("checkpoint");
        }
        sleep(Duration::from_secs(2)).await;
        let after = store.stats();
        assert!(after.counters.merges > before.counters.merges, "the runs with the lists were merged");
        assert_eq!(after.counters.cleaned_segments, before.counters.cleaned_segments, "nothing was cleaned");
        let lost = before.space.live.saturating_sub(after.space.live);
        assert!(lost < LARGE as u64 / 2, "{lost} B that are alive are taken for dead");
        store.close().await.expect("close");
    });
}
