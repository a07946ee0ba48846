//! A short range costs a few blocks of each run, however much lies around it, in both directions.

use std::ops::Bound;

use crate::common::*;
use bytes::Bytes;
use pumice_kv::{Direction, SliceId, SliceSet, Store, Want};
use pumice_reactor::sim::{HostOptions, World};

fn blocks(store: &Store) -> u64 {
    let counters = store.stats().counters;
    counters.block_hits + counters.block_reads
}

/// Keys of one slice, all of them in tables.
async fn opened_anew() -> Store {
    let device = device("emu:small").await;
    let store = formatted(&device).await;
    for n in 0..20_000u32 {
        put(&store, 1, format!("key:{n:08}").as_bytes(), b"a value of some bytes").await;
    }
    store.close().await.expect("close");
    open(&device).await
}

#[test]
fn a_range_with_few_keys_or_none_reads_a_few_blocks_forward_and_backward() {
    pumice_reactor::block_on(async {
        let store = opened_anew().await;
        let runs = store.stats().runs_max as u64;
        assert!(runs > 0, "the keys lie in tables");
        let snapshot = store.snapshot_of(SliceId(1));
        for at in ["aaa", "key:00000000", "key:00003333", "key:00010000", "key:00019999", "zzz"] {
            for lower in [Bound::Included(at), Bound::Excluded(at)] {
                let lower = lower.map(|at| Bytes::from(at.to_string()));
                let upper = Bound::Included(Bytes::from(format!("{at}x")));
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

/// Who looks at the same few keys again and again reads them from flash once.
#[test]
fn a_short_range_is_read_from_flash_once() {
    let world = World::new(3);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    let test = async {
        let store = opened_anew().await;
        let snapshot = store.snapshot_of(SliceId(1));
        let look = async |at: u32, direction| {
            let name = |n: u32| Bytes::from(format!("key:{n:08}"));
            let (lower, upper) = (Bound::Included(name(at)), Bound::Excluded(name(at + 20)));
            let before = store.stats().counters.block_reads;
            let mut scan =
                store.scan(&snapshot, SliceSet::One(SliceId(1)), lower, upper, direction, Want::Keys);
            let mut found = 0;
            while scan.next().await.expect("scan").is_some() {
                found += 1;
            }
            assert_eq!(found, 20);
            store.stats().counters.block_reads - before
        };
        for at in [7, 1234, 15_000] {
            assert!(look(at, Direction::Forward).await > 0, "nothing was on flash");
            // It may have gone over the end of a block.
            look(at, Direction::Backward).await;
            for direction in [Direction::Forward, Direction::Backward] {
                assert_eq!(look(at, direction).await, 0, "{direction:?} from {at}");
            }
        }
        store.close().await.expect("close");
    };
    world.block_on(host, test).unwrap_or_else(|halt| panic!("{halt}"));
}

/// Of a scan that need not read, nearly all is at hand: short elements in memtables, in tables and in both; not one that is gone or
/// written later.
#[test]
fn what_need_not_be_waited_for_is_at_hand() {
    pumice_reactor::block_on(async {
        let device = device("emu:small").await;
        let store = formatted(&device).await;
        let name = |n: u32| format!("key:{n:06}");
        for n in 0..8000 {
            put(&store, 1, name(n).as_bytes(), &n.to_le_bytes()).await;
        }
        store.close().await.expect("close");
        let store = open(&device).await;
        for n in (0..8000).step_by(2) {
            put(&store, 1, name(n).as_bytes(), &(n + 1).to_le_bytes()).await;
        }
        for n in (0..8000).step_by(5) {
            delete(&store, 1, name(n).as_bytes()).await;
        }
        let snapshot = store.snapshot_of(SliceId(1));
        put(&store, 1, b"key:later", b"").await;
        let set = SliceSet::One(SliceId(1));
        let ways = [(Direction::Forward, true), (Direction::Forward, false), (Direction::Backward, true)];
        for (direction, takes) in ways {
            let mut scan =
                store.scan(&snapshot, set, Bound::Unbounded, Bound::Unbounded, direction, Want::Values);
            let (mut at_hand, mut all) = (0, Vec::new());
            loop {
                let found = if takes {
                    scan.next_at_hand()
                } else {
                    scan.view_at_hand().map(|(key, view)| (Bytes::copy_from_slice(key), view.to_entry()))
                };
                if let Some(found) = found {
                    at_hand += 1;
                    all.push(found);
                } else if let Some(found) = scan.next().await.expect("scan") {
                    all.push(found);
                } else {
                    break;
                }
            }
            if direction == Direction::Backward {
                all.reverse();
            }
            let wanted = (0..8000).filter(|n| n % 5 != 0);
            let found = all.iter().map(|(key, entry)| (&key[..], &entry.value[..]));
            for (n, (key, value)) in wanted.clone().zip(found) {
                let newest = if n % 2 == 0 { n + 1 } else { n };
                assert_eq!((key, value), (name(n).as_bytes(), &newest.to_le_bytes()[..]));
            }
            assert_eq!(all.len(), wanted.count());
            assert!(at_hand * 10 > all.len() * 9, "{at_hand} of {} were at hand", all.len());
        }
        // Of a few keys whose blocks are in memory, all: the first, too, and that there are no more.
        for direction in [Direction::Forward, Direction::Backward] {
            let scan = || {
                let [low, high] = [4000, 4040].map(|n| Bytes::from(name(n)));
                store.scan(
                    &snapshot,
                    set,
                    Bound::Included(low),
                    Bound::Included(high),
                    direction,
                    Want::Values,
                )
            };
            let mut warm = scan();
            while warm.next().await.expect("scan").is_some() {}
            let mut scan = scan();
            let found = std::iter::from_fn(|| scan.next_at_hand()).count();
            assert_eq!(found, (4000..=4040).filter(|n| n % 5 != 0).count());
            assert!(scan.is_at_end());
            assert!(scan.next().await.expect("scan").is_none());
        }
        store.close().await.expect("close");
    });
}
