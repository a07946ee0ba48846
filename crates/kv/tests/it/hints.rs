//! What memory knew of a key a while ago: reading goes on from there, whatever became of it meanwhile.

use std::time::Duration;

use crate::common::*;
use pumice_base::rng::Rng;
use pumice_kv::{Hint, Peek, SliceId, Store};
use pumice_reactor::sleep;

const KEYS: u64 = 15_000;
const LEN: usize = 8000;

fn key(n: u64) -> Vec<u8> {
    format!("key:{n:08}").into_bytes()
}

fn slice(n: u64) -> SliceId {
    SliceId((n % 3) as u16)
}

fn filled(n: u64, version: u64) -> Vec<u8> {
    let mut value = vec![0; LEN];
    Rng::from_seed(version * KEYS + n).fill(&mut value);
    value
}

/// Writes all keys; in an order of their own each time, so that cleaning has something to move.
async fn write_all(store: &Store, version: u64) {
    let mut order: Vec<u64> = (0..KEYS).collect();
    Rng::from_seed(version).shuffle(&mut order);
    for n in order {
        put(store, slice(n).0, &key(n), &filled(n, version)).await;
    }
}

/// Of some keys, what memory knows, if it is not the value.
fn hints(store: &Store) -> Vec<(u64, Hint)> {
    let keys = (0..KEYS).step_by(17);
    let hint = |n| match store.peek(slice(n), &key(n)) {
        Peek::NeedsFlash(hint) => Some((n, hint)),
        Peek::Found(_) => None,
        Peek::Absent => panic!("key {n} is there"),
    };
    keys.filter_map(hint).collect()
}

async fn get_at(store: &Store, n: u64, hint: Hint) -> Vec<u8> {
    store.get_at(slice(n), &key(n), hint).await.expect("get").expect("there").value.to_vec()
}

#[test]
fn what_was_moved_or_overwritten_since_is_found_nevertheless() {
    pumice_reactor::block_on(async {
        let device = device("emu:small").await;
        let store = formatted(&device).await;
        write_all(&store, 0).await;
        let asked = hints(&store);
        assert!(asked.len() > 500, "{} of the keys lie on flash alone", asked.len());
        // At once: with one read each, of the value and nothing else.
        let before = store.stats().counters;
        for (n, hint) in asked.iter().take(100) {
            assert!(get_at(&store, *n, hint.clone()).await == filled(*n, 0), "key {n}");
        }
        let after = store.stats().counters;
        assert_eq!(after.value_reads - before.value_reads, 100);
        assert_eq!(after.block_hits - before.block_hits, 0, "nothing was looked up again");
        // Some were written since, and nothing was cleaned: what is answered was so when it was asked, and is not kept as new.
        for (n, hint) in asked.iter().take(200) {
            put(&store, slice(*n).0, &key(*n), &filled(*n, 1)).await;
            let value = get_at(&store, *n, hint.clone()).await;
            assert!(value == filled(*n, 0) || value == filled(*n, 1), "key {n}");
            assert!(get_at(&store, *n, Hint::default()).await == filled(*n, 1), "key {n}");
        }
        // All were written more than once, and what they were asked for is long gone.
        for version in 2..4 {
            write_all(&store, version).await;
        }
        sleep(Duration::from_millis(200)).await;
        assert!(store.stats().counters.cleaned_segments > 50, "cleaning has worked");
        for (n, hint) in asked {
            let value = get_at(&store, n, hint).await;
            assert!((0..4).any(|version| value == filled(n, version)), "key {n}");
            assert!(get_at(&store, n, Hint::default()).await == filled(n, 3), "key {n}");
        }
        store.close().await.expect("close");
    });
}
