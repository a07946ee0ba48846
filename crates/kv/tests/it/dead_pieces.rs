//! What overwrites of large values leave dead is known at once, and is not counted where something else lies by now.

use std::time::Duration;

use crate::common::*;
use pumice_flash::Device;
use pumice_kv::{Batch, LargeWriter, SliceId, Store, StoreOptions, record};
use pumice_reactor::sim::{HostOptions, World};
use pumice_reactor::sleep;
use pumice_segment::{Replayed, SegmentId, Stream};

const LARGE: usize = 300_000;

fn key(n: u32) -> Vec<u8> {
    format!("key:{n}").into_bytes()
}

fn in_virtual_time(test: impl Future<Output = ()> + 'static) {
    let world = World::new(1);
    let host = world.add_host(HostOptions { cores: 1, ..HostOptions::default() });
    world.block_on(host, test).expect("the world ran");
}

/// Waits until the heap takes `most` bytes for alive at most, a few seconds.
async fn live_falls_to(store: &Store, most: u64) -> bool {
    for _ in 0..100 {
        if store.space().live <= most {
            return true;
        }
        sleep(Duration::from_millis(50)).await;
    }
    false
}

#[test]
fn overwritten_large_values_are_known_dead_before_a_merge_finds_them() {
    in_virtual_time(async {
        let store = formatted(&device("emu:small").await).await;
        let keys = 20;
        for n in 0..keys {
            put_large(&store, 0, &key(n), 1, &[1; LARGE]).await;
        }
        store.checkpoint().await.expect("checkpoint");
        let before = store.stats();
        for n in 0..keys {
            put_large(&store, 0, &key(n), 2, &[2; LARGE]).await;
        }
        let most = before.space.live + before.space.live / 10;
        assert!(live_falls_to(&store, most).await, "{} of {most} B are alive", store.space().live);
        for n in 0..keys {
            delete(&store, 0, &key(n)).await;
        }
        assert!(live_falls_to(&store, before.space.live / 10).await, "{} B are alive", store.space().live);
        assert_eq!(store.stats().counters.merges, before.counters.merges, "no merge was needed");
        store.close().await.expect("close");
    });
}

/// A small value is not looked up when it is written, so the list of the large one before it is only found by a merge: by then
/// cleaning has emptied the segments, and others write there.
#[test]
fn a_list_found_late_kills_nothing_that_lies_where_its_pieces_were() {
    in_virtual_time(async {
        let device = device("emu:small,channels=1,blocks=64").await;
        let store = formatted(&device).await;
        let late = 8;
        for n in 0..late {
            put_large(&store, 0, &key(n), 1, &[1; LARGE]).await;
        }
        store.checkpoint().await.expect("checkpoint");
        for n in 0..late {
            put(&store, 0, &key(n), b"small").await;
        }
        store.checkpoint().await.expect("checkpoint");
        // Those that held the pieces are the best victims as soon as cleaning looks for some.
        for segment in store.heap().segments_in_use() {
            store.heap().set_live(segment, 0);
        }
        // First what is soon dead again, so that cleaning has something to win, then what stays.
        for n in 0..4800u32 {
            let key = if n < 3600 { n % 200 } else { n };
            put(&store, 1, &key.to_be_bytes(), &[3; 20_000]).await;
            if n % 100 == 0 {
                // Else cleaning asks for merges, because it may not touch what a replay needs.
                store.checkpoint().await.expect("checkpoint");
            }
        }
        // Nothing is cleaned while this is looked at.
        sleep(Duration::from_secs(2)).await;
        let before = store.stats();
        for round in 0..3 {
            put(&store, 0, b"another", &[round; 10]).await;
            store.checkpoint().await.expect("checkpoint");
        }
        sleep(Duration::from_secs(2)).await;
        let after = store.stats();
        assert!(after.counters.merges > before.counters.merges, "the runs with the lists were merged");
        assert_eq!(after.counters.cleaned_segments, before.counters.cleaned_segments, "nothing was cleaned");
        let lost = before.space.live.saturating_sub(after.space.live);
        assert!(lost < LARGE as u64 / 2, "{lost} B that are alive are taken for dead");
        store.close().await.expect("close");
    });
}

/// Puts a value whose list of short pieces is long, so that it lies in a record of the log.
async fn put_with_long_list(store: &Store, n: u32) {
    let mut writer = store.large_writer(SliceId(0), &key(n));
    writer.be_frugal(true);
    writer.push(&[1; LARGE]).await.expect("push");
    let large = writer.finish().await.expect("finish");
    assert!(large.piece_count() > 3, "{} pieces", large.piece_count());
    let mut batch = Batch::new();
    batch.put_large(SliceId(0), &key(n), 1, 0, &large);
    write(store, &batch).await;
}

async fn retire(store: &Store, prefix: &[u8]) {
    let mut batch = Batch::new();
    batch.retire(SliceId(0), prefix);
    write(store, &batch).await;
}

/// What a flush leaves out lies in its memtable until the tables are named, and looks as if it were still the key's newest.
#[test]
fn large_values_that_are_retired_in_a_memtable_are_dead_once_it_is_flushed() {
    in_virtual_time(async {
        for is_list_long in [false, true] {
            let store = formatted(&device("emu:small").await).await;
            for n in 0..20 {
                if is_list_long {
                    put_with_long_list(&store, n).await;
                } else {
                    put_large(&store, 0, &key(n), 1, &[1; LARGE]).await;
                }
            }
            let live = live_of_pieces(&store);
            assert!(live >= 20 * LARGE as u64, "{live} B of pieces are alive");
            retire(&store, b"key:").await;
            store.checkpoint().await.expect("checkpoint");
            let most = LARGE as u64 / 10;
            assert!(live_falls_to(&store, most).await, "{} B are alive", store.space().live);
            store.close().await.expect("close");
        }
    });
}

/// Closing flushes twice, and nobody looks into large values in the background by then.
#[test]
fn what_is_dead_of_large_values_when_the_store_closes_is_dead_when_it_is_opened_again() {
    in_virtual_time(async {
        let device = device("emu:small").await;
        let store = formatted(&device).await;
        for n in 0..20 {
            put_large(&store, 0, &key(n), 1, &[1; LARGE]).await;
        }
        retire(&store, b"key:").await;
        store.close().await.expect("close");
        drop(store);
        let opened = open_with(&device, options()).await;
        assert!(opened.clean);
        let live = opened.store.space().live;
        assert!(live < LARGE as u64 / 10, "{live} B are alive");
        opened.store.close().await.expect("close");
    });
}

async fn written(store: &Store, n: u32) -> LargeWriter {
    let mut writer = store.large_writer(SliceId(0), &key(n));
    writer.push(&[1; LARGE]).await.expect("push");
    writer
}

/// A client is gone in the midst of sending one: of its pieces some are written, others on their way.
#[test]
fn the_pieces_of_a_value_that_is_given_up_are_dead() {
    in_virtual_time(async {
        let store = formatted(&device("emu:small").await).await;
        let before = store.space().live;
        for n in 0..20 {
            drop(written(&store, n).await);
        }
        assert!(live_falls_to(&store, before).await, "{before} B were alive, now {}", store.space().live);
        store.close().await.expect("close");
    });
}

/// SETNX of a key that is there.
#[test]
fn the_pieces_of_a_value_that_is_never_put_are_dead() {
    in_virtual_time(async {
        let store = formatted(&device("emu:small").await).await;
        let before = store.space().live;
        for n in 0..20 {
            let large = written(&store, n).await.finish().await.expect("finish");
            let mut batch = Batch::new();
            batch.put_large(SliceId(0), &key(n), 1, 0, &large);
            assert!(store.space().live > before, "who has the list may put it");
        }
        assert!(live_falls_to(&store, before).await, "{before} B were alive, now {}", store.space().live);
        store.close().await.expect("close");
    });
}

#[test]
fn the_pieces_of_a_value_that_was_put_live_as_long_as_it_does() {
    in_virtual_time(async {
        let store = formatted(&device("emu:small").await).await;
        let large = written(&store, 0).await.finish().await.expect("finish");
        let mut batch = Batch::new();
        batch.put_large(SliceId(0), &key(0), 1, 0, &large);
        write(&store, &batch).await;
        drop((large, batch));
        sleep(Duration::from_secs(1)).await;
        let live = store.space().live;
        assert!(live >= LARGE as u64, "{live} B are alive");
        assert!(get(&store, 0, &key(0)).await.expect("there").2 == [1; LARGE]);
        delete(&store, 0, &key(0)).await;
        assert!(live_falls_to(&store, live - LARGE as u64).await, "{} B are alive", store.space().live);
        store.close().await.expect("close");
    });
}

/// What the heap takes for alive of pieces of large values, in bytes.
fn live_of_pieces(store: &Store) -> u64 {
    let heap = store.heap();
    let large = |segment: &SegmentId| heap.sweep(*segment).stream() == Stream::Large;
    heap.segments_in_use().into_iter().filter(large).map(|segment| u64::from(heap.live_bytes(segment))).sum()
}

/// A list of some pieces lies in a record of the log, which nothing points at once the value is overwritten. Of the overwrite by
/// a small value only a merge learns, and cleaning has let go of the list by then.
#[test]
fn a_list_that_was_cleaned_away_before_a_merge_finds_it_kills_its_pieces_all_the_same() {
    in_virtual_time(async {
        let device = device("emu:small,channels=1,blocks=64").await;
        let store = formatted(&device).await;
        let late = 8;
        for n in 0..late {
            put_with_long_list(&store, n).await;
        }
        store.checkpoint().await.expect("checkpoint");
        for n in 0..late {
            put(&store, 0, &key(n), b"small").await;
        }
        // The log's segment that holds the lists is filled, and needed by no replay.
        for n in 0..120u32 {
            put(&store, 1, &n.to_be_bytes(), &[3; 20_000]).await;
        }
        store.checkpoint().await.expect("checkpoint");
        let (merges, live) = (store.stats().counters.merges, live_of_pieces(&store));
        assert!(live > u64::from(late) * LARGE as u64, "{live} B of pieces are alive");
        for segment in store.heap().segments_in_use() {
            if store.heap().sweep(segment).stream() == Stream::Commit {
                store.heap().set_live(segment, 0);
            }
        }
        for n in 0..4800u32 {
            let key = if n < 3600 { n % 200 } else { n };
            put(&store, 1, &key.to_be_bytes(), &[3; 20_000]).await;
            if n % 100 == 0 {
                store.checkpoint().await.expect("checkpoint");
            }
        }
        sleep(Duration::from_secs(2)).await;
        assert!(store.stats().counters.cleaned_segments > 0, "something was cleaned");
        for round in 0..3 {
            put(&store, 0, b"another", &[round; 10]).await;
            store.checkpoint().await.expect("checkpoint");
        }
        sleep(Duration::from_secs(2)).await;
        assert!(store.stats().counters.merges > merges, "the runs with the lists were merged");
        let live = live_of_pieces(&store);
        assert!(live < LARGE as u64, "{live} B of pieces are alive");
        store.close().await.expect("close");
    });
}

/// A value that was stored again as it is, with another expiry, has two lists of the same pieces. When a merge drops the old one
/// the new one may not read: then nobody knows which pieces it names.
#[test]
fn what_a_list_that_does_not_read_may_name_is_not_told_dead() {
    in_virtual_time(async {
        let device = device("emu:small").await;
        let store = formatted(&device).await;
        put_with_long_list(&store, 0).await;
        store.close().await.expect("close");
        drop(store);
        // Without background tasks nobody looks up what the second list shadows, and the tail of the log is short.
        let options = StoreOptions { memory_bytes: 18 << 20, ..options() };
        let store = Store::open(device.clone(), options, &no_progress).await.expect("open").store;
        let entry = store.get(SliceId(0), &key(0)).await.expect("get").expect("there");
        let again = || {
            let mut batch = Batch::new();
            batch.put_large(SliceId(0), &key(0), 1, 1 << 50, entry.large.as_ref().expect("large"));
            batch
        };
        let before = lists(&store).await.len();
        write(&store, &again()).await;
        store.checkpoint().await.expect("checkpoint");
        let lists = lists(&store).await;
        assert_eq!(lists.len(), before + 1);
        let newest = lists.iter().max_by_key(|record| record.seq).expect("one").ptr;
        // Out of that tail, which memory holds.
        for n in 0..600u32 {
            put(&store, 1, &n.to_be_bytes(), &[3; 20_000]).await;
            if n % 100 == 0 {
                store.checkpoint().await.expect("checkpoint");
            }
        }
        let geometry = device.geometry();
        let Device::Emulated(nand) = &device else { panic!("not emulated") };
        nand.tear_page(geometry.block(newest.addr.segment().0), newest.addr.offset() / geometry.page_bytes);
        assert!(store.get(SliceId(0), &key(0)).await.is_err(), "the newest list does not read");
        let live = live_of_pieces(&store);
        assert!(live >= LARGE as u64, "{live} B of pieces are alive");
        let merges = store.stats().counters.merges;
        store.start_background();
        for round in 0..6 {
            put(&store, 0, b"another", &[round; 10]).await;
            store.checkpoint().await.expect("checkpoint");
            sleep(Duration::from_secs(1)).await;
        }
        assert!(store.stats().counters.merges > merges, "the runs with the lists were merged");
        assert_eq!(live_of_pieces(&store), live);
        store.close().await.expect("close");
    });
}

/// The records with lists of pieces, wherever they lie.
async fn lists(store: &Store) -> Vec<Replayed> {
    let mut found = Vec::new();
    for segment in store.heap().segments_in_use() {
        let contents = store.heap().contents(segment).await.expect("contents");
        found.extend(contents.records.into_iter().filter(|record| record.kind == record::PUT_LARGE));
    }
    found
}
