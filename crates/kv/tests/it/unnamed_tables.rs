//! Cleaning and key tables that no metadata record names yet.

use std::cell::Cell;
use std::rc::Rc;

use crate::common::{device, format, formatted, get, no_progress, open, open_with, options, put};
use pumice_base::rng::Rng;
use pumice_kv::{Batch, SliceId, Store, StoreFormat, WriteError};
use pumice_reactor::{spawn, yield_now};
use pumice_segment::{SegmentId, Stream};

/// Keys whose values lie beside them in key tables: several tables of a merge's step.
const SMALL: u64 = 4000;
/// Values that fill the drive, so that cleaning has to work.
const BALLAST: usize = 3000;

/// Tells the heap again and again that nothing in the segments of key tables is alive, until `over`: cleaning takes them
/// first then, those of tables that a flush or merge is still writing among them.
async fn lie(store: Store, over: Rc<Cell<bool>>) {
    while !over.get() {
        for segment in store.heap().segments_in_use() {
            if store.heap().sweep(segment).stream() == Stream::Table {
                store.heap().set_live(segment, 0);
            }
            yield_now().await;
        }
    }
}

/// Writes unless the drive is full: lies make cleaning win little.
async fn try_put(store: &Store, slice: u16, key: u64, value: &[u8]) -> bool {
    let mut batch = Batch::new();
    batch.put(SliceId(slice), &key.to_be_bytes(), 0, 0, value);
    match store.write_ready(&batch).await {
        Ok(_) => true,
        Err(WriteError::Full(_)) => {
            yield_now().await;
            false
        }
        Err(error) => panic!("{error}"),
    }
}

/// What a flush or merge has written is in nobody's manifest before all of it is there. Cleaning has to ask who is
/// making tables, or what it releases is missing when the manifest names it.
#[test]
fn key_tables_that_are_being_made_survive_cleaning_however_dead_their_segments_look() {
    pumice_reactor::block_on(async {
        let device = device("emu:tiny,channels=1,blocks=160,pages=16").await;
        let shape = StoreFormat { segment_bytes: Some(64 << 10), ..format() };
        Store::format(&device, &shape).await.expect("format");
        let store = open(&device).await;
        let mut rng = Rng::from_seed(3);
        let small = |n: u64, version: u64| format!("{n:08}.{version:08}.{:040}", n * version).into_bytes();
        let mut versions = vec![0; SMALL as usize];
        for n in 0..SMALL {
            put(&store, 0, &n.to_be_bytes(), &small(n, 0)).await;
        }
        let mut ballast = 0u64;
        while store.heap().free_segments() > 16 {
            put(&store, 1, &ballast.to_be_bytes(), &vec![ballast as u8; BALLAST]).await;
            ballast += 1;
        }
        let over = Rc::new(Cell::new(false));
        let liar = spawn(lie(store.clone(), over.clone()));
        for step in 1..6 * SMALL {
            let n = rng.below(SMALL);
            if try_put(&store, 0, n, &small(n, step)).await {
                versions[n as usize] = step;
            }
            if step % 4 == 0 {
                let n = rng.below(ballast);
                try_put(&store, 1, n, &vec![n as u8; BALLAST]).await;
            }
        }
        over.set(true);
        liar.await.expect("not dropped");
        let counters = store.stats().counters;
        // Lies make cleaning give up sooner or later; how many of these are flushes is a matter of the machine's other work.
        assert!(counters.cleaned_segments > 100 && counters.flushes + counters.merges > 10, "{counters:?}");
        for n in 0..SMALL {
            let held = get(&store, 0, &n.to_be_bytes()).await.expect("there").2;
            assert_eq!(held, small(n, versions[n as usize]), "key {n}");
        }
        let report = store.check(&no_progress).await.expect("check");
        assert!(report.is_clean(), "{:?}", report.problems.first());
    });
}

/// A crash in the midst of a flush or merge leaves key tables that count as alive and that nobody ever names.
#[test]
fn what_a_crash_left_of_unnamed_tables_does_not_count_as_alive() {
    pumice_reactor::block_on(async {
        let device = device("emu:small").await;
        let store = formatted(&device).await;
        for n in 0..SMALL {
            put(&store, 0, &n.to_be_bytes(), &[1; 50]).await;
        }
        store.checkpoint().await.expect("checkpoint");
        let heap = store.heap();
        let of_tables = |segment: &SegmentId| heap.stream_of(*segment) == Some(Stream::Table);
        let segments: Vec<_> = heap.segments_in_use().into_iter().filter(of_tables).collect();
        // As if they were full of such.
        segments.iter().for_each(|segment| heap.set_live(*segment, heap.segment_bytes()));
        put(&store, 0, b"key", b"value").await;
        store.checkpoint().await.expect("checkpoint");
        store.abandon().await;
        drop(store);
        let opened = open_with(&device, options()).await;
        assert!(!opened.clean);
        let heap = opened.store.heap();
        let live: u64 = segments.iter().map(|segment| u64::from(heap.live_bytes(*segment))).sum();
        let named = opened.store.stats().table_bytes;
        assert!(live > 0 && live <= named, "{live} B are alive where {named} B of tables are named");
        opened.store.close().await.expect("close");
    });
}
