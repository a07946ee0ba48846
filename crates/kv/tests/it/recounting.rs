//! What a crash leaves of large values, and of the hints of what is alive of them, is made good when they are counted anew.

use std::time::Duration;

use crate::common::*;
use pumice_flash::Device;
use pumice_kv::{Batch, LargeWriter, SliceId, Store, WriteError};
use pumice_reactor::sim::{HostOptions, World};
use pumice_reactor::sleep;
use pumice_segment::{SegmentId, Stream};

const LARGE: usize = 300_000;
const KEYS: u32 = 20;
const ALL: u64 = KEYS as u64 * LARGE as u64;

fn key(n: u32) -> Vec<u8> {
    format!("key:{n}").into_bytes()
}

fn in_virtual_time(test: impl Future<Output = ()> + 'static) {
    let world = World::new(1);
    let host = world.add_host(HostOptions { cores: 1, ..HostOptions::default() });
    world.block_on(host, Box::pin(test)).expect("the world ran");
}

fn segments_of_pieces(store: &Store) -> Vec<SegmentId> {
    let heap = store.heap();
    let large = |segment: &SegmentId| heap.stream_of(*segment) == Some(Stream::Large);
    heap.segments_in_use().into_iter().filter(large).collect()
}

/// What the heap takes for alive of pieces of large values, in bytes.
fn live_of_pieces(store: &Store) -> u64 {
    segments_of_pieces(store).iter().map(|segment| u64::from(store.heap().live_bytes(*segment))).sum()
}

/// Waits half a minute for the heap to take for alive what `bytes` of large values take, headers and all.
async fn live_comes_to(store: &Store, bytes: u64) -> bool {
    for _ in 0..600 {
        if (bytes..=bytes + bytes / 100).contains(&live_of_pieces(store)) {
            return true;
        }
        sleep(Duration::from_millis(50)).await;
    }
    false
}

async fn put_all(store: &Store, prefix: &str, version: u8) {
    for n in 0..KEYS {
        put_large(store, 0, format!("{prefix}{n}").as_bytes(), version, &[version; LARGE]).await;
    }
}

async fn retire(store: &Store, prefix: &[u8]) {
    let mut batch = Batch::new();
    batch.retire(SliceId(0), prefix);
    write(store, &batch).await;
}

async fn written(store: &Store, n: u32) -> LargeWriter {
    let mut writer = store.large_writer(SliceId(0), &key(n));
    writer.push(&[1; LARGE]).await.expect("push");
    writer
}

/// A store as a crash leaves it, and opened again.
async fn crashed(device: &Device, store: Store) -> Store {
    store.abandon().await;
    let opened = open_with(device, options()).await;
    assert!(!opened.clean);
    opened.store
}

#[test]
fn pieces_that_a_crash_left_half_written_are_dead() {
    in_virtual_time(async {
        let device = device("emu:small").await;
        let store = formatted(&device).await;
        put_all(&store, "kept:", 2).await;
        let mut writers = Vec::new();
        for n in 0..KEYS {
            writers.push(written(&store, n).await);
        }
        sleep(Duration::from_secs(1)).await;
        assert!(live_of_pieces(&store) > ALL + ALL / 2, "{} B are alive", live_of_pieces(&store));
        let store = crashed(&device, store).await;
        assert!(live_comes_to(&store, ALL).await, "{} B of {ALL} are alive", live_of_pieces(&store));
        // Who would find that they are dead is the crashed store, whose memory this is.
        drop(writers);
        for n in 0..KEYS {
            let held = get(&store, 0, format!("kept:{n}").as_bytes()).await.expect("there");
            assert!(held == (2, 0, vec![2; LARGE]));
        }
        retire(&store, b"kept:").await;
        store.checkpoint().await.expect("checkpoint");
        for round in 0..3 {
            put(&store, 0, b"another", &[round; 10]).await;
            store.checkpoint().await.expect("checkpoint");
            sleep(Duration::from_secs(1)).await;
        }
        assert!(live_comes_to(&store, 0).await, "{} B are alive", live_of_pieces(&store));
        store.close().await.expect("close");
    });
}

/// The tables are named, and the list of what died with their memtables is lost.
#[test]
fn what_was_about_to_be_told_dead_in_a_crash_is_dead() {
    in_virtual_time(async {
        let device = device("emu:small").await;
        let store = formatted(&device).await;
        put_all(&store, "gone:", 1).await;
        put_all(&store, "kept:", 2).await;
        retire(&store, b"gone:").await;
        store.checkpoint().await.expect("checkpoint");
        assert!(live_of_pieces(&store) >= 2 * ALL, "nobody has looked into the lists yet");
        let store = crashed(&device, store).await;
        assert!(live_comes_to(&store, ALL).await, "{} B of {ALL} are alive", live_of_pieces(&store));
        store.close().await.expect("close");
    });
}

/// Each read takes so long that counting goes on while everything is overwritten, and some is put, deleted and being written.
#[test]
fn what_is_written_while_large_values_are_counted_is_counted_right() {
    in_virtual_time(async {
        let device = device("emu:small,timing=on,read_us=50000").await;
        let store = formatted(&device).await;
        for n in 0..6000u32 {
            put(&store, 1, format!("between:{n:08}").as_bytes(), &[7; 60]).await;
        }
        put_all(&store, "a:", 1).await;
        put_all(&store, "b:", 1).await;
        put_all(&store, "c:", 1).await;
        store.checkpoint().await.expect("checkpoint");
        // Hints that say nothing.
        for (n, segment) in segments_of_pieces(&store).into_iter().enumerate() {
            let live = if n % 2 == 0 { 0 } else { store.heap().segment_bytes() };
            store.heap().set_live(segment, live);
        }
        // So that they are what is known after the crash.
        put(&store, 2, b"another", b"value").await;
        store.checkpoint().await.expect("checkpoint");
        let store = crashed(&device, store).await;
        let begun = written(&store, 0).await;
        for n in 0..KEYS {
            put_large(&store, 0, format!("a:{n}").as_bytes(), 2, &[2; LARGE]).await;
            delete(&store, 0, format!("b:{n}").as_bytes()).await;
            put_large(&store, 0, format!("d:{n}").as_bytes(), 1, &[1; LARGE]).await;
            sleep(Duration::from_millis(20)).await;
        }
        // Of the one that is being written a piece is on flash.
        let alive = 3 * ALL + LARGE as u64 / 4 * 3;
        assert!(live_comes_to(&store, alive).await, "{} B of {alive} are alive", live_of_pieces(&store));
        drop(begun);
        assert!(live_comes_to(&store, 3 * ALL).await, "{} B are alive", live_of_pieces(&store));
        store.close().await.expect("close");
    });
}

/// A drive that an older version or a crash filled with what nobody names, and that was closed since.
#[test]
fn a_drive_that_is_full_of_what_nobody_names_has_room_again() {
    in_virtual_time(async {
        let device = device("emu:small").await;
        let store = formatted(&device).await;
        let mut filled = 0;
        while store.heap().free_segments() > 20 {
            put_large(&store, 0, &key(filled), 1, &[1; LARGE]).await;
            filled += 1;
        }
        for n in 0..filled {
            delete(&store, 0, &key(n)).await;
        }
        store.checkpoint().await.expect("checkpoint");
        sleep(Duration::from_secs(1)).await;
        for segment in segments_of_pieces(&store) {
            store.heap().set_live(segment, store.heap().segment_bytes());
        }
        store.close().await.expect("close");
        let store = open(&device).await;
        let (mut put, mut refused) = (0, 0);
        while put < filled / 2 {
            let mut writer = store.large_writer(SliceId(0), &key(put));
            let pushed = match writer.push(&[2; LARGE]).await {
                Ok(()) => writer.finish().await,
                Err(error) => Err(error),
            };
            match pushed {
                Ok(large) => {
                    let mut batch = Batch::new();
                    batch.put_large(SliceId(0), &key(put), 2, 0, &large);
                    write(&store, &batch).await;
                    put += 1;
                }
                Err(WriteError::Full(space)) => {
                    refused += 1;
                    assert!(refused < 100, "of {filled} values {put} find room: {space}");
                    sleep(Duration::from_millis(100)).await;
                }
                Err(error) => panic!("{error}"),
            }
        }
        store.close().await.expect("close");
    });
}
