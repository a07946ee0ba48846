//! What key tables and the log's tail answer from memory is cached as a row before long, and never outlives a write.

use crate::common::*;
use pumice_kv::{Batch, Peek, SliceId, Store};

const KEYS: u64 = 400;
/// Looked at so often, each has been the one that is cached.
const LOOKS: u64 = 40;

fn key(n: u64) -> Vec<u8> {
    format!("key:{n:08}").into_bytes()
}

/// Short ones lie in key tables, the others in records.
fn filled(n: u64, version: u64) -> Vec<u8> {
    let len = if n.is_multiple_of(2) { 60 } else { 1500 };
    vec![(n + version) as u8; len]
}

/// Each slice in turn, so that none keeps the same keys each time.
fn slice(n: u64) -> u16 {
    (n % 3) as u16
}

fn look(store: &Store, n: u64) -> Vec<u8> {
    match store.peek(SliceId(slice(n)), &key(n)) {
        Peek::Found(entry) => entry.value.to_vec(),
        other => panic!("key {n} is in memory: {other:?}"),
    }
}

/// All keys in key tables and in the log's tail, none in a memtable.
async fn flushed() -> Store {
    let device = device("emu:small").await;
    let store = formatted(&device).await;
    for n in 0..KEYS {
        put(&store, slice(n), &key(n), &filled(n, 0)).await;
    }
    store.checkpoint().await.expect("checkpoint");
    store
}

fn row_hits(store: &Store) -> u64 {
    store.stats().counters.row_hits
}

#[test]
fn what_memory_answers_from_elsewhere_becomes_a_row_until_it_is_written() {
    pumice_reactor::block_on(async {
        let store = flushed().await;
        for look_up in 0..LOOKS {
            for n in 0..KEYS {
                assert_eq!(look(&store, n), filled(n, 0), "key {n}, look-up {look_up}");
            }
        }
        let (before, blocks) = (row_hits(&store), store.stats().counters.block_hits);
        (0..KEYS).for_each(|n| assert_eq!(look(&store, n), filled(n, 0), "key {n}"));
        let from_rows = row_hits(&store) - before;
        assert!(from_rows > KEYS * 9 / 10, "{from_rows} of {KEYS} from rows");
        assert!(store.stats().counters.block_hits - blocks < KEYS / 10, "the tables were asked nevertheless");
        // A write takes the row out, and so does a delete: in the memtable, and again when that is a key table.
        for n in 0..KEYS {
            if n.is_multiple_of(5) {
                delete(&store, slice(n), &key(n)).await;
            } else {
                put(&store, slice(n), &key(n), &filled(n, 1)).await;
            }
        }
        for flushed in [false, true] {
            if flushed {
                store.checkpoint().await.expect("checkpoint");
            }
            for n in (0..LOOKS).flat_map(|_| 0..KEYS) {
                match store.peek(SliceId(slice(n)), &key(n)) {
                    Peek::Absent => assert!(n.is_multiple_of(5), "key {n} is there"),
                    Peek::Found(entry) => assert_eq!(entry.value, filled(n, 1), "key {n}"),
                    other @ Peek::NeedsFlash(_) => panic!("key {n} is in memory: {other:?}"),
                }
            }
        }
        store.close().await.expect("close");
    });
}

/// Wherever the row lies, if it does at all, and however long its value is said to be.
#[test]
fn a_prefetch_is_no_look_and_waits_for_nobody() {
    const GUESSES: [usize; 6] = [0, 1, 60, 4095, 4096, usize::MAX];
    pumice_reactor::block_on(async {
        let store = flushed().await;
        (0..LOOKS).flat_map(|_| 0..KEYS).for_each(|n| drop(look(&store, n)));
        // A third is in the memtable as well; others are in rows, in tables, and nowhere.
        for n in (0..KEYS).step_by(3) {
            put(&store, slice(n), &key(n), &filled(n, 1)).await;
        }
        let before = row_hits(&store);
        for guess in GUESSES {
            (0..2 * KEYS).for_each(|n| prefetch(&store, n, guess));
        }
        assert_eq!(row_hits(&store), before);
        for n in 0..KEYS {
            assert_eq!(look(&store, n), filled(n, u64::from(n.is_multiple_of(3))), "key {n}");
        }
        // Who looks holds the slice's lock.
        for n in 0..KEYS {
            let looked = store.peek_with(SliceId(slice(n)), &key(n), |_| {
                prefetch(&store, n + 3, 60);
            });
            assert!(matches!(looked, Peek::Found(())), "key {n}");
        }
        // Where the indexes lay once there is something else by now, or nothing.
        for n in 0..8 * KEYS {
            put(&store, slice(n), &key(n), &filled(n, 2)).await;
            if n.is_multiple_of(KEYS) {
                store.checkpoint().await.expect("checkpoint");
                (0..KEYS).for_each(|n| drop(look(&store, n)));
            }
            store.prefetch_index(SliceId(slice(n)), &key(n));
        }
        store.close().await.expect("close");
    });
}

fn prefetch(store: &Store, n: u64, value_bytes: usize) {
    let slice = SliceId(slice(n));
    let coming = store.prefetch_index(slice, &key(n));
    store.prefetch(slice, coming, value_bytes);
}

/// What is short, as a row has it; what is long as its key tables do, which know where its value lies.
#[test]
fn what_is_put_again_is_found_in_rows_where_its_value_is_short() {
    pumice_reactor::block_on(async {
        let store = flushed().await;
        for _ in 0..LOOKS {
            (0..KEYS).for_each(|n| drop(look(&store, n)));
        }
        let mut from_rows = 0;
        for n in 0..KEYS {
            let (rows, blocks) = (row_hits(&store), store.stats().counters.block_hits);
            let Peek::Found(stored) = store.peek_stored(SliceId(slice(n)), &key(n)) else {
                panic!("key {n} is in memory");
            };
            let is_short = n.is_multiple_of(2);
            assert_eq!(stored.is_in_place(), !is_short, "key {n}");
            if is_short && row_hits(&store) > rows {
                assert_eq!(store.stats().counters.block_hits, blocks, "key {n}: its table was asked, too");
                from_rows += 1;
            }
            let mut batch = Batch::new();
            batch.put_again(SliceId(slice(n)), &key(n), 1 << 50, &stored);
            write(&store, &batch).await;
            // The row is gone with that, and the next look finds the new version.
            let entry = store.get(SliceId(slice(n)), &key(n)).await.expect("get").expect("there");
            assert!(entry.value[..] == filled(n, 0) && entry.expire_ms == 1 << 50, "key {n}");
        }
        assert!(from_rows > KEYS * 4 / 10, "{from_rows} of {KEYS} from rows");
        // Of two that were found alike the later one puts again what the earlier one made.
        let Peek::Found(stale) = store.peek_stored(SliceId(slice(2)), &key(2)) else { panic!("in memory") };
        put(&store, slice(2), &key(2), &filled(2, 9)).await;
        let mut batch = Batch::new();
        batch.put_again(SliceId(slice(2)), &key(2), 1 << 51, &stale);
        store.write_ready(&batch).await.expect("write");
        let entry = store.get(SliceId(slice(2)), &key(2)).await.expect("get").expect("there");
        assert!(entry.value[..] == filled(2, 9) && entry.expire_ms == 1 << 51);
        store.close().await.expect("close");
    });
}
