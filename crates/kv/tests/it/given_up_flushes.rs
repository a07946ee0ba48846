//! What a flush put aside and did not write goes along with the next one, and what is dead of it is known.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use crate::common::*;
use pumice_kv::{Batch, SliceId, Store, StoreError};
use pumice_reactor::sim::{HostOptions, World};
use pumice_reactor::sleep;

const KEYS: u32 = 20;
const LEN: usize = 20_000;
/// Of all keys.
const BYTES: u64 = KEYS as u64 * LEN as u64;

fn in_virtual_time(test: impl Future<Output = ()> + 'static) {
    let world = World::new(1);
    let host = world.add_host(HostOptions { cores: 1, ..HostOptions::default() });
    world.block_on(host, test).expect("the world ran");
}

async fn put_all(store: &Store, value: &[u8]) {
    for n in 0..KEYS {
        put(store, 0, &n.to_be_bytes(), value).await;
    }
}

/// A flush that came as far as putting the memtables aside, and to where it waits for the first time.
async fn begun_flush(store: &Store) -> Pin<Box<impl Future<Output = Result<(), StoreError>>>> {
    let mut flush = Box::pin(store.checkpoint());
    let is_done = poll_fn(|context| Poll::Ready(flush.as_mut().poll(context).is_ready())).await;
    assert!(!is_done, "it waits for something");
    flush
}

async fn give_up_a_flush(store: &Store) {
    let before = store.stats().counters.flushes;
    drop(begun_flush(store).await);
    assert_eq!(store.stats().counters.flushes, before, "it was given up");
}

async fn retire(store: &Store, prefix: &[u8]) -> u64 {
    let mut batch = Batch::new();
    batch.retire(SliceId(0), prefix);
    write(store, &batch).await
}

/// Merges what the key tables hold of the keys, and waits until the heap takes `most` bytes for alive at most.
async fn live_falls_to(store: &Store, most: u64) -> bool {
    for round in 0..6 {
        put(store, 0, b"another", &[round; 10]).await;
        store.checkpoint().await.expect("checkpoint");
        sleep(Duration::from_secs(1)).await;
    }
    store.space().live <= most
}

#[test]
fn what_was_put_aside_and_is_overwritten_by_now_is_dead() {
    in_virtual_time(async {
        let store = formatted(&device("emu:small").await).await;
        put_all(&store, &[1; LEN]).await;
        give_up_a_flush(&store).await;
        // Small ones are not looked up when they are written.
        put_all(&store, b"small").await;
        sleep(Duration::from_secs(1)).await;
        assert!(store.space().live >= BYTES, "{} B are alive", store.space().live);
        store.checkpoint().await.expect("checkpoint");
        let most = BYTES / 4;
        assert!(live_falls_to(&store, most).await, "{} of {most} B are alive", store.space().live);
        store.close().await.expect("close");
    });
}

#[test]
fn what_lies_below_what_was_put_aside_is_dead() {
    in_virtual_time(async {
        let store = formatted(&device("emu:small").await).await;
        put_all(&store, &[1; LEN]).await;
        store.checkpoint().await.expect("checkpoint");
        put_all(&store, b"small").await;
        give_up_a_flush(&store).await;
        // Each is looked up, and what it shadows is what was put aside.
        put_all(&store, &[2; LEN]).await;
        store.checkpoint().await.expect("checkpoint");
        let most = BYTES + BYTES / 4;
        assert!(live_falls_to(&store, most).await, "{} of {most} B are alive", store.space().live);
        assert!(store.space().live >= BYTES);
        store.close().await.expect("close");
    });
}

/// Who tells the heap of what a flush leaves out before that is sure would tell it again with each further try.
#[test]
fn what_was_retired_dies_once_however_often_its_flush_is_given_up() {
    in_virtual_time(async {
        let store = formatted(&device("emu:small").await).await;
        for n in 0..KEYS {
            put(&store, 0, format!("gone:{n}").as_bytes(), &[1; LEN]).await;
            put(&store, 0, format!("kept:{n}").as_bytes(), &[2; LEN]).await;
        }
        let seq = retire(&store, b"gone:").await;
        // So that a flush has gone over the rows when it first waits.
        store.wait_durable(seq).await.expect("durable");
        sleep(Duration::from_secs(1)).await;
        for _ in 0..3 {
            give_up_a_flush(&store).await;
        }
        store.checkpoint().await.expect("checkpoint");
        let most = BYTES + BYTES / 4;
        assert!(live_falls_to(&store, most).await, "{} of {most} B are alive", store.space().live);
        assert!(store.space().live >= BYTES, "{} B are alive", store.space().live);
        store.close().await.expect("close");
    });
}

/// What is put aside is told by what overwrites it, and then left out because its prefix was retired meanwhile.
#[test]
fn what_is_overwritten_and_retired_while_it_is_flushed_dies_once() {
    in_virtual_time(async {
        let store = formatted(&device("emu:small").await).await;
        for n in 0..KEYS {
            put(&store, 0, format!("gone:{n}").as_bytes(), &[1; LEN]).await;
            put(&store, 0, format!("kept:{n}").as_bytes(), &[2; LEN]).await;
        }
        let flush = begun_flush(&store).await;
        for n in 0..KEYS {
            put(&store, 0, format!("gone:{n}").as_bytes(), &[3; LEN]).await;
        }
        retire(&store, b"gone:").await;
        flush.await.expect("checkpoint");
        store.checkpoint().await.expect("checkpoint");
        let most = BYTES + BYTES / 4;
        assert!(live_falls_to(&store, most).await, "{} of {most} B are alive", store.space().live);
        assert!(store.space().live >= BYTES, "{} B are alive", store.space().live);
        store.close().await.expect("close");
    });
}
