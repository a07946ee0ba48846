//! A short range costs a few blocks of each run, however much lies around it, in both directions.

use std::ops::Bound;

use crate::common::*;
use pumice_kv::{Direction, SliceId, SliceSet, Store, Want};

fn blocks(store: &Store) -> u64 {
    let counters = store.stats().counters;
    counters.block_hits + counters.block_reads
}

#[test]
fn a_range_with_few_keys_or_none_reads_a_few_blocks_forward_and_backward() {
    pumice_reactor::block_on(async {
        let device = device("emu:small").await;
        let store = formatted(&device).await;
        for n in 0..20_000u32 {
            put(&store, 1, format!("key:{n:08}").as_bytes(), b"a value of some bytes").await;
        }
        store.close().await.expect("close");
        let store = open(&device).await;
        let runs = store.stats().runs_max as u64;
        assert!(runs > 0, "the keys lie in tables");
        let snapshot = store.snapshot_of(SliceId(1));
        for at in ["aaa", "key:00000000", "key:00003333", "key:00010000", "key:00019999", "zzz"] {
            for lower in [Bound::Included(at), Bound::Excluded(at)] {
                let lower = lower.map(|at| bytes::Bytes::from(at.to_string()));
                let upper = Bound::Included(bytes::Bytes::from(format!("{at}x")));
                for direction in [Direction::Forward, Direction::Backward] {
                    let before = blocks(&store);
                    let set = SliceSet::One(SliceId(1));
                    let mut scan =
                        store.scan(&snapshot, set, lower.clone(), upper.clone(), direction, Want::Values);
                    let mut found = 0;
                    while scan.next().await.expect("scan").is_some() {
                        found += 1;
                    }
                    assert!(found <= 1, "{found} keys");
                    let read = blocks(&store) - before;
                    assert!(
                        read <= 3 * runs,
                        "{direction:?} {lower:?} {upper:?}: {read} blocks of {runs} runs"
                    );
                }
            }
        }
        store.close().await.expect("close");
    });
}
