//! What a write shadows is told dead once, also where flash has to be asked what that is.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use crate::common::*;
use pumice_kv::Store;
use pumice_reactor::sim::{HostOptions, World};
use pumice_reactor::sleep;
use pumice_segment::{SegmentId, Stream};

/// Of each read of flash; a look-up takes some.
const READ: Duration = Duration::from_millis(50);
const KEY: &[u8] = b"a key before all others";
const BYTES: usize = 50_000;

/// What the heap takes for alive of users' records, in bytes.
fn live_of_records(store: &Store) -> u64 {
    let heap = store.heap();
    let of_users = |segment: &SegmentId| heap.stream_of(*segment) == Some(Stream::Commit);
    let segments = heap.segments_in_use().into_iter().filter(of_users);
    segments.map(|segment| u64::from(heap.live_bytes(segment))).sum()
}

/// A write waits for its shadow to be looked up, is flushed, and the key is written again meanwhile. Who looks it up then finds
/// the version below, which that write shadows and not the new one: merges will tell of both.
#[test]
fn a_look_up_that_a_flush_overtakes_tells_nothing() {
    let world = World::new(1);
    let host = world.add_host(HostOptions { cores: 1, ..HostOptions::default() });
    let test = Box::pin(async {
        let device = device(&format!("emu:small,pages=64,timing=on,read_us={}", READ.as_micros())).await;
        let store = formatted(&device).await;
        put(&store, 0, KEY, &[1; BYTES]).await;
        // So many that the table with the key does not lie in the segment that the next flush writes to.
        for n in 0..6000u32 {
            put(&store, 0, format!("key {n:08} with a long name").as_bytes(), &[7; 60]).await;
        }
        store.close().await.expect("close");
        drop(store);
        let opened = Store::open(device.clone(), options(), &no_progress).await.expect("open");
        let store = opened.store;
        assert!(opened.clean);
        // What this shadows is to be looked up once there are background tasks.
        put(&store, 0, KEY, &[2; BYTES]).await;
        let mut flush = Box::pin(store.checkpoint());
        let is_done = poll_fn(|context| Poll::Ready(flush.as_mut().poll(context).is_ready())).await;
        assert!(!is_done);
        // Small ones are not looked up.
        put(&store, 0, KEY, b"small").await;
        store.start_background();
        flush.await.expect("checkpoint");
        let live = live_of_records(&store);
        assert!(live >= 2 * BYTES as u64, "{live} B of records are alive");
        sleep(Duration::from_secs(30)).await;
        assert_eq!(live_of_records(&store), live);
        store.close().await.expect("close");
    });
    world.block_on(host, test).expect("the host is up");
}
