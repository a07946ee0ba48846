//! What memory knew of a key a while ago: reading goes on from there, whatever became of it meanwhile.

use std::time::Duration;

use crate::common::*;
use pumice_base::rng::Rng;
use pumice_kv::{Batch, Hint, Peek, SliceId, Store, StoreOptions};
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

/// Of the key that is written again and again.
const OFTEN: &[u8] = b"often";
const OFTEN_BYTES: usize = 3000;
/// More than the log's tail keeps, in bytes.
const COLD_BYTES: usize = 5 << 19;
const PLACES: u64 = 24;
const VERSIONS: u64 = 12_000;

/// A version's tag, expiry and value: each says which one it is.
fn often(n: u64) -> Held {
    let mut value = vec![n as u8; OFTEN_BYTES];
    value[..8].copy_from_slice(&n.to_be_bytes());
    ((n % 251) as u8, (1 << 50) + n, value)
}

/// Writes a version alone, so that its frame begins with it.
async fn put_often(store: &Store, n: u64, seqs: &mut Vec<u64>) {
    let (tag, expire_ms, value) = often(n);
    let mut batch = Batch::new();
    batch.put(SliceId(0), OFTEN, tag, expire_ms, &value);
    seqs.push(write(store, &batch).await);
    store.wait_durable(seqs[n as usize]).await.expect("durable");
}

/// Where a hint points newer versions of the key come to lie, each of the same length: one of them with the type and the expiry of
/// that which was there is a value that nobody wrote.
#[test]
fn a_place_that_was_reused_for_the_same_key_is_no_longer_the_old_version() {
    pumice_reactor::block_on(async {
        let device = device("emu:tiny,channels=1,blocks=64,pages=64").await;
        Store::format(&device, &format()).await.expect("format");
        let options = StoreOptions {
            memory_bytes: 18 << 20,
            memtable_bytes: Some(256 << 10),
            log_max_bytes: 4 << 20,
            ..StoreOptions::default()
        };
        let store = open_with(&device, options).await.store;
        let (mut seqs, mut hints) = (Vec::new(), Vec::new());
        for n in 0..PLACES {
            put_often(&store, n, &mut seqs).await;
            for other in 0..COLD_BYTES / OFTEN_BYTES {
                put(&store, 0, format!("other:{}", other % 100).as_bytes(), &vec![7; OFTEN_BYTES]).await;
            }
            store.wait_durable(store.last_seq()).await.expect("durable");
            if let Peek::NeedsFlash(hint) = store.peek(SliceId(0), OFTEN) {
                hints.push((n, hint));
            }
        }
        assert!(hints.len() > 10, "{} places lie on flash alone", hints.len());
        for n in PLACES..VERSIONS {
            put_often(&store, n, &mut seqs).await;
        }
        assert!(store.stats().counters.cleaned_segments > 100, "cleaning has worked");
        for (asked, hint) in hints {
            let entry = store.get_at(SliceId(0), OFTEN, hint).await.expect("get").expect("there");
            let n = u64::from_be_bytes(entry.value[..8].try_into().expect("eight bytes"));
            let said = format!("version {n}, asked for {asked}");
            let held = (entry.tag, entry.expire_ms, entry.value.to_vec());
            assert!(held == often(n), "{said}: tag {}, expiry {}", entry.tag, entry.expire_ms);
            let next = seqs.get(n as usize + 1).copied().unwrap_or(u64::MAX);
            assert!((seqs[n as usize]..next).contains(&entry.seq), "{said}: number {}", entry.seq);
        }
        store.close().await.expect("close");
    });
}
