//! Which expired keys are found, and that none is forgotten.

use std::cell::Cell;
use std::collections::BTreeSet;

use crate::common::{device, format, no_progress, tear_a_page_of_each_table, write};
use bytes::Bytes;
use pumice_kv::{Batch, SliceId, Store, StoreOptions};
use pumice_reactor::{spawn, yield_now};

const SLICE: SliceId = SliceId(0);
const NOW: u64 = 1000;
const LIMIT: usize = 50;

/// A store in which nothing happens by itself.
async fn still() -> Store {
    let device = device("emu:tiny,channels=2,blocks=64,pages=64").await;
    Store::format(&device, &format()).await.expect("format");
    Store::open(device, StoreOptions::default(), &no_progress).await.expect("open").store
}

async fn put(store: &Store, key: &str, expire_ms: u64) {
    let mut batch = Batch::new();
    batch.put(SLICE, key.as_bytes(), 0, expire_ms, b"value");
    write(store, &batch).await;
}

async fn delete(store: &Store, keys: &[Bytes]) {
    let mut batch = Batch::new();
    keys.iter().for_each(|key| batch.delete(SLICE, key));
    write(store, &batch).await;
}

async fn expired(store: &Store) -> Vec<Bytes> {
    let found = store.expired(NOW, LIMIT).await.expect("expired");
    found.into_iter().map(|(_, key)| key).collect()
}

#[test]
fn keys_under_a_retired_prefix_do_not_stand_before_others() {
    pumice_reactor::block_on(async {
        for is_in_tables in [false, true] {
            let store = still().await;
            for n in 0..4 * LIMIT {
                put(&store, &format!("a{n:04}"), 1).await;
            }
            put(&store, "b", 2).await;
            if is_in_tables {
                store.checkpoint().await.expect("checkpoint");
            }
            let mut batch = Batch::new();
            batch.retire(SLICE, b"a");
            write(&store, &batch).await;
            assert_eq!(expired(&store).await, ["b"], "in tables: {is_in_tables}");
        }
    });
}

#[test]
fn keys_whose_delete_was_refused_are_found_again_until_they_are_gone() {
    pumice_reactor::block_on(async {
        let store = still().await;
        for n in 0..10 {
            put(&store, &format!("key{n}"), 1 + n).await;
        }
        put(&store, "later", NOW + 1).await;
        for is_in_tables in [false, true] {
            if is_in_tables {
                store.checkpoint().await.expect("checkpoint");
            }
            for _ in 0..3 {
                assert_eq!(expired(&store).await.len(), 10, "in tables: {is_in_tables}");
            }
        }
        let found = expired(&store).await;
        delete(&store, &found[..4]).await;
        assert_eq!(expired(&store).await.len(), 6);
        delete(&store, &found).await;
        assert!(expired(&store).await.is_empty());
        let later = store.expired(NOW + 1, LIMIT).await.expect("expired");
        assert_eq!(later, [(SLICE, Bytes::from_static(b"later"))]);
    });
}

/// The memtable is looked through piece by piece: a key behind the place that was reached is given a time meanwhile.
#[test]
fn a_key_that_gets_its_time_while_others_are_looked_for_is_found_later() {
    pumice_reactor::block_on(async {
        let store = still().await;
        for n in 0..20_000 {
            put(&store, &format!("key{n:05}"), 0).await;
        }
        put(&store, "old", 1).await;
        delete(&store, &[Bytes::from_static(b"old")]).await;
        let looking = spawn({
            let store = store.clone();
            async move { expired(&store).await }
        });
        yield_now().await;
        put(&store, "key00000", NOW).await;
        assert!(!looking.is_finished(), "it has not come to its end");
        assert!(looking.await.expect("task").is_empty());
        assert_eq!(expired(&store).await, ["key00000"]);
    });
}

#[test]
fn keys_that_the_caller_puts_off_do_not_stand_before_others_and_come_again_in_their_time() {
    pumice_reactor::block_on(async {
        for is_in_tables in [false, true] {
            let store = still().await;
            for n in 0..4 * LIMIT {
                put(&store, &format!("a{n:04}"), 1).await;
            }
            put(&store, "b", 2).await;
            if is_in_tables {
                store.checkpoint().await.expect("checkpoint");
            }
            let put_off = |key: &[u8]| if key[0] == b'a' { NOW + 5 } else { 0 };
            for later in 0..2 {
                let found = store.expired_but(NOW + later, LIMIT, put_off).await.expect("expired");
                assert_eq!(found, [(SLICE, Bytes::from_static(b"b"))], "in tables: {is_in_tables}");
            }
            delete(&store, &[Bytes::from_static(b"b")]).await;
            assert!(store.expired_but(NOW + 4, LIMIT, put_off).await.expect("expired").is_empty());
            let found = store.expired_but(NOW + 5, LIMIT, put_off).await.expect("expired");
            assert!(found.len() >= LIMIT, "{} in tables: {is_in_tables}", found.len());
        }
    });
}

#[test]
fn what_does_not_read_does_not_stand_before_other_expired_keys() {
    const KEYS: usize = 2000;
    pumice_reactor::block_on(async {
        let device = device("emu:tiny,channels=2,blocks=64,pages=64").await;
        Store::format(&device, &format()).await.expect("format");
        let store =
            Store::open(device.clone(), StoreOptions::default(), &no_progress).await.expect("open").store;
        for n in 0..KEYS {
            let mut batch = Batch::new();
            batch.put(SLICE, format!("key{n:05}").as_bytes(), 0, 1, &[b'v'; 60]);
            write(&store, &batch).await;
        }
        store.close().await.expect("close");
        let store =
            Store::open(device.clone(), StoreOptions::default(), &no_progress).await.expect("open").store;
        let torn = tear_a_page_of_each_table(&store, &device, 32 << 10).await;
        let mut left: BTreeSet<Bytes> = (0..KEYS).map(|n| format!("key{n:05}").into()).collect();
        loop {
            let found = expired(&store).await;
            if found.is_empty() {
                break;
            }
            delete(&store, &found).await;
            left.retain(|key| !found.contains(key));
        }
        // A page lies in two blocks of about fifty keys each.
        assert!(torn > 1 && !left.is_empty() && left.len() <= 150 * torn, "{} of {torn} pages", left.len());
    });
}

/// A look that began with the first block each time went over all that the looks before it had found: half a minute of a processor
/// for a million keys.
#[test]
fn each_look_goes_on_where_the_last_one_ended() {
    const KEYS: usize = 6000;
    pumice_reactor::block_on(async {
        let store = still().await;
        for n in 0..KEYS {
            put(&store, &format!("a{n:04}"), 1).await;
        }
        store.checkpoint().await.expect("checkpoint");
        let (passed, mut gone) = (Cell::new(0), 0);
        loop {
            let but = |_: &[u8]| {
                passed.set(passed.get() + 1);
                0
            };
            let found = store.expired_but(NOW, LIMIT, but).await.expect("expired");
            if found.is_empty() {
                break;
            }
            let keys: Vec<Bytes> = found.into_iter().map(|(_, key)| key).collect();
            gone += keys.len();
            delete(&store, &keys).await;
        }
        assert_eq!(gone, KEYS);
        // Once to find them, once for the blocks in which a look ended, and once around to be sure.
        assert!(passed.get() < 4 * KEYS, "{} keys were passed", passed.get());
    });
}
