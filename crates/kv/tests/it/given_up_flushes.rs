//! What a flush put aside and did not write goes along with the next one, and what is dead of it is known.

use std::future::{Future, poll_fn};
use std::task::Poll;
use std::time::Duration;

use crate::common::*;
use pumice_kv::Store;
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

/// A flush that comes as far as putting the memtables aside.
async fn give_up_a_flush(store: &Store) {
    let before = store.stats().counters.flushes;
    let mut flush = Box::pin(store.checkpoint());
    let is_done = poll_fn(|context| Poll::Ready(flush.as_mut().poll(context).is_ready())).await;
    drop(flush);
    assert!(!is_done && store.stats().counters.flushes == before, "it was given up");
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
