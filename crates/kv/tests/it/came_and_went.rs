//! Keys that were new when they were put, and are gone again: nothing is left of them, and what was there before stays gone.

use std::ops::Bound;

use crate::common::*;
use bytes::Bytes;
use pumice_kv::{Batch, Direction, SliceId, SliceSet, Snapshot, Store, StoreOptions, Want};
use pumice_reactor::sim::{HostOptions, World};

const SLICE: SliceId = SliceId(1);

fn in_virtual_time(test: impl Future<Output = ()> + 'static) {
    let world = World::new(1);
    let host = world.add_host(HostOptions { cores: 1, ..HostOptions::default() });
    world.block_on(host, test).expect("the world ran");
}

/// A store whose memtables are flushed when they are told to be.
async fn store() -> (pumice_flash::Device, Store) {
    let device = device("emu:small").await;
    Store::format(&device, &format()).await.expect("format");
    let store = open_with(&device, large_memtables()).await.store;
    (device, store)
}

fn large_memtables() -> StoreOptions {
    StoreOptions { memtable_bytes: Some(4 << 20), ..options() }
}

async fn put_new(store: &Store, key: &[u8], value: &[u8]) -> u64 {
    let mut batch = Batch::new();
    batch.put(SLICE, key, 0, 0, value);
    batch.of_new_key();
    write(store, &batch).await
}

async fn keys(store: &Store, snapshot: &Snapshot) -> Vec<Bytes> {
    let (set, all) = (SliceSet::One(SLICE), Bound::Unbounded);
    let mut scan = store.scan(snapshot, set, all.clone(), all, Direction::Forward, Want::Keys);
    let mut keys = Vec::new();
    while let Some((key, _)) = scan.next().await.expect("scan") {
        keys.push(key);
    }
    keys
}

/// Of a queue that is emptied as it is filled, values of any size.
#[test]
fn nothing_of_them_comes_into_key_tables() {
    in_virtual_time(async {
        let (device, store) = store().await;
        for n in 0..2000u32 {
            let key = n.to_be_bytes();
            put_new(&store, &key, &vec![b'v'; if n % 3 == 0 { 300 } else { 20 }]).await;
            if n >= 10 {
                delete(&store, SLICE.0, &(n - 10).to_be_bytes()).await;
            }
            if n % 100 == 0 {
                assert_eq!(keys(&store, &store.snapshot_of(SLICE)).await.len(), 10.min(n as usize + 1));
            }
        }
        let last = put(&store, 0, b"last", b"").await;
        store.wait_durable(last).await.expect("durable");
        store.checkpoint().await.expect("checkpoint");
        // The ten that are left, and the last.
        assert_eq!(store.stats().table_entries, 11);
        for n in 1990..2000u32 {
            delete(&store, SLICE.0, &n.to_be_bytes()).await;
        }
        delete(&store, 0, b"last").await;
        store.close().await.expect("close");
        let store = open(&device).await;
        assert!(keys(&store, &store.snapshot()).await.is_empty());
        let live = store.space().live;
        assert!(live < 256 << 10, "{live} B are alive");
        store.close().await.expect("close");
    });
}

/// The delete below lies in a table, in a memtable that a flush put aside and did not write, or in the same memtable.
#[test]
fn what_was_there_before_stays_gone() {
    for below in ["table", "aside", "memtable"] {
        in_virtual_time(async move {
            let (device, store) = store().await;
            let old = vec![b'o'; 300];
            put(&store, SLICE.0, b"key", &old).await;
            put(&store, SLICE.0, b"other", &old).await;
            store.checkpoint().await.expect("checkpoint");
            delete(&store, SLICE.0, b"key").await;
            match below {
                "table" => store.checkpoint().await.expect("checkpoint"),
                "aside" => {
                    let mut flush = Box::pin(store.checkpoint());
                    let poll = std::future::poll_fn(|context| {
                        std::task::Poll::Ready(flush.as_mut().poll(context).is_ready())
                    });
                    assert!(!poll.await, "it waits for something");
                }
                _ => {}
            }
            for _ in 0..3 {
                put_new(&store, b"key", b"new").await;
                assert_eq!(get(&store, SLICE.0, b"key").await.map(|held| held.2), Some(b"new".to_vec()));
                let last = delete(&store, SLICE.0, b"key").await;
                store.wait_durable(last).await.expect("durable");
                assert_eq!(get(&store, SLICE.0, b"key").await, None, "{below}");
                assert_eq!(keys(&store, &store.snapshot()).await, ["other"], "{below}");
            }
            store.checkpoint().await.expect("checkpoint");
            assert_eq!(get(&store, SLICE.0, b"key").await, None, "{below}");
            assert_eq!(keys(&store, &store.snapshot()).await, ["other"], "{below}");
            store.close().await.expect("close");
            let store = open(&device).await;
            assert_eq!(get(&store, SLICE.0, b"key").await, None, "{below}");
            assert_eq!(keys(&store, &store.snapshot()).await, ["other"], "{below}");
            store.close().await.expect("close");
        });
    }
}

/// Replies wait for what they tell of.
#[test]
fn until_their_delete_is_durable_scans_know_of_it() {
    in_virtual_time(async {
        let (_, store) = store().await;
        let put_at = put_new(&store, b"key", b"v").await;
        store.wait_durable(put_at).await.expect("durable");
        // Not awaited: nothing is written meanwhile.
        let mut batch = Batch::new();
        batch.delete(SLICE, b"key");
        let deleted_at = store.write(&batch).expect("there is room");
        assert!(!store.is_durable(deleted_at));
        let newest = |snapshot: &Snapshot| {
            snapshot.newest_between(SliceSet::One(SLICE), Bound::Unbounded, Bound::Unbounded)
        };
        for _ in 0..2 {
            let snapshot = store.snapshot_of(SLICE);
            let mut scan = store.scan(
                &snapshot,
                SliceSet::One(SLICE),
                Bound::Unbounded,
                Bound::Unbounded,
                Direction::Forward,
                Want::Keys,
            );
            assert!(scan.next().await.expect("scan").is_none());
            assert!(store.is_durable(deleted_at) || newest(&snapshot) == deleted_at);
        }
        store.wait_durable(deleted_at).await.expect("durable");
        let snapshot = store.snapshot_of(SLICE);
        assert_eq!(newest(&snapshot), deleted_at, "no scan has met it");
        assert!(keys(&store, &snapshot).await.is_empty());
        assert_eq!(newest(&snapshot), 0, "it is left out");
        assert_eq!(store.newest_of(SLICE, b"key"), deleted_at, "but known");
        // It comes back.
        let again = put_new(&store, b"key", b"w").await;
        let snapshot = store.snapshot_of(SLICE);
        assert_eq!(keys(&store, &snapshot).await, ["key"]);
        assert_eq!(newest(&snapshot), again);
        store.close().await.expect("close");
    });
}

#[test]
fn snapshots_of_their_time_see_them() {
    in_virtual_time(async {
        let (_, store) = store().await;
        for n in 0..1000u32 {
            put_new(&store, &n.to_be_bytes(), b"v").await;
        }
        let full = store.snapshot();
        assert_eq!(keys(&store, &full).await.len(), 1000);
        let mut last = 0;
        for n in 0..1000u32 {
            if n % 10 != 0 {
                last = delete(&store, SLICE.0, &n.to_be_bytes()).await;
            }
        }
        store.wait_durable(last).await.expect("durable");
        let emptier = store.snapshot();
        assert_eq!(keys(&store, &emptier).await.len(), 100);
        assert_eq!(keys(&store, &full).await.len(), 1000);
        drop(full);
        assert_eq!(keys(&store, &emptier).await.len(), 100);
        for n in 500..1000u32 {
            put_new(&store, &n.to_be_bytes(), b"w").await;
        }
        assert_eq!(keys(&store, &emptier).await.len(), 100);
        drop(emptier);
        let snapshot = store.snapshot();
        assert_eq!(keys(&store, &snapshot).await.len(), 50 + 500);
        store.checkpoint().await.expect("checkpoint");
        assert_eq!(keys(&store, &snapshot).await.len(), 50 + 500);
        assert_eq!(keys(&store, &store.snapshot()).await.len(), 50 + 500);
        assert_eq!(store.stats().table_entries, 50 + 500);
        store.close().await.expect("close");
    });
}
