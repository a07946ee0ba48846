//! The heap end to end on emulated and file devices.

use std::time::Duration;

use crate::common::*;
use bytes::Bytes;
use pumice_flash::{Access, Device, DeviceSpec};
use pumice_reactor::sleep;
use pumice_segment::{
    Durability, FormatOptions, Group, Heap, HeapOptions, MetaEdit, MovedRecord, PrewriteProgress,
};

async fn on_both<F: AsyncFn(Device)>(check: F) {
    let (device, _) = emulated("emu:tiny").await;
    check(device).await;
    let dir = tempfile::tempdir().expect("dir");
    check(file(dir.path(), 32 << 20).await).await;
}

#[test]
fn what_was_committed_is_read_back_and_replayed_after_a_crash() {
    pumice_reactor::block_on(on_both(async |device: Device| {
        let heap = formatted(&device).await;
        let mut ptrs = Vec::new();
        for i in 0..500u32 {
            let payload = vec![i as u8; 10 + (i as usize * 37) % 3000];
            let appended = append_waiting(&heap, &[&payload]).await;
            assert_eq!(appended.first_seq, u64::from(i) + 1);
            ptrs.push((appended.ptrs[0], payload));
        }
        heap.wait_durable(heap.last_seq()).await.expect("durable");
        for (ptr, payload) in &ptrs {
            let record = heap.read(*ptr).await.expect("read");
            assert_eq!((record.kind, &record.payload[..]), (7, &payload[..]));
        }
        drop(heap);
        let (opened, commit, moved) = reopen(&device).await;
        assert!(!opened.clean && moved.is_empty());
        assert_eq!(commit.len(), ptrs.len());
        for (index, (record, (ptr, payload))) in commit.iter().zip(&ptrs).enumerate() {
            assert_eq!((record.seq, record.ptr), (index as u64 + 1, *ptr));
            assert_eq!(&record.payload[..], &payload[..]);
        }
        let appended = append_waiting(&opened.heap, &[b"more"]).await;
        assert_eq!(appended.first_seq, 501);
        opened.heap.wait_durable(501).await.expect("durable");
        let (opened, commit, _) = reopen(&device).await;
        assert_eq!(commit.len(), 501);
        for (ptr, payload) in &ptrs {
            assert_eq!(&opened.heap.read(*ptr).await.expect("read").payload[..], &payload[..]);
        }
    }));
}

#[test]
fn a_clean_close_leaves_nothing_to_replay_and_the_open_segments_go_on() {
    pumice_reactor::block_on(on_both(async |device: Device| {
        let heap = formatted(&device).await;
        let ptr = append_waiting(&heap, &[b"one"]).await.ptrs[0];
        let table =
            heap.write_object(3, Group::Tables(0), &mut heap.object_of(&[b"a table"])).await.expect("object");
        heap.commit_meta(MetaEdit::Edit(Bytes::from_static(b"edit")), 1).await.expect("meta");
        heap.close().await.expect("close");
        let used = heap.segments_in_use();
        drop(heap);
        let (opened, commit, _) = reopen(&device).await;
        assert!(opened.clean && commit.is_empty());
        assert_eq!(opened.client_state, vec![Bytes::from_static(b"edit")]);
        assert_eq!(opened.heap.config(), Bytes::from_static(b"config"));
        let heap = opened.heap;
        assert_eq!(&heap.read(ptr).await.expect("read").payload[..], b"one");
        assert_eq!(&heap.read(table).await.expect("read").payload[..], b"a table");
        assert_eq!(&heap.read_range(table, 2, 5).await.expect("range")[..], b"table");
        let next = append_waiting(&heap, &[b"two"]).await;
        assert_eq!(next.first_seq, 2);
        heap.wait_durable(2).await.expect("durable");
        assert_eq!(heap.segments_in_use(), used);
        drop(heap);
        let (_, commit, _) = reopen(&device).await;
        assert_eq!(commit.iter().map(|record| record.seq).collect::<Vec<_>>(), vec![2]);
    }));
}

#[test]
fn the_space_report_adds_up_and_released_segments_come_back() {
    pumice_reactor::block_on(on_both(async |device: Device| {
        let heap = formatted(&device).await;
        let check = |heap: &Heap| {
            let space = heap.space();
            assert_eq!(space.accounted(), space.raw, "{space:?}");
        };
        check(&heap);
        let payload = vec![5u8; 4000];
        let free = heap.free_segments();
        // Far more than the drive holds, in rounds that are wholly dead afterwards.
        for _ in 0..8 {
            let mut ptrs = Vec::new();
            for _ in 0..700 {
                ptrs.push(append_waiting(&heap, &[&payload]).await.ptrs[0]);
            }
            heap.wait_durable(heap.last_seq()).await.expect("durable");
            check(&heap);
            heap.commit_meta(MetaEdit::Snapshot(Bytes::from_static(b"state")), heap.last_seq())
                .await
                .expect("meta");
            for ptr in ptrs {
                heap.mark_dead(ptr);
            }
            while let Some(segment) = heap.victim(|_| 0) {
                heap.release(segment);
                check(&heap);
            }
            heap.commit_meta(MetaEdit::Edit(Bytes::new()), heap.last_seq()).await.expect("meta");
            check(&heap);
        }
        assert!(heap.free_segments() + 2 >= free, "{} of {free}", heap.free_segments());
        let (opened, commit, _) = reopen(&device).await;
        assert!(commit.is_empty());
        check(&opened.heap);
    }));
}

#[test]
fn every_stream_goes_on_in_its_half_full_segment_after_a_clean_close() {
    pumice_reactor::block_on(on_both(async |device: Device| {
        let mut heap = formatted(&device).await;
        let mut written = Vec::new();
        for round in 0..6u8 {
            for step in 0..3u8 {
                let payload = vec![round * 16 + step; 3000];
                written.push((append_waiting(&heap, &[&payload]).await.ptrs[0], payload.clone()));
                heap.wait_durable(heap.last_seq()).await.expect("durable");
                for group in [Group::Tables(0), Group::Tables(4), Group::Large] {
                    let mut object = heap.object_of(&[&payload]);
                    written.push((
                        heap.write_object(1, group, &mut object).await.expect("object"),
                        payload.clone(),
                    ));
                }
                let record = MovedRecord { seq: heap.next_seq(1), kind: 2, payload: payload.clone().into() };
                let moved = heap.write_moved(vec![record]).await.expect("moved");
                written.push((moved.ptrs[0], payload));
            }
            heap.commit_meta(MetaEdit::Edit(Bytes::new()), heap.last_seq()).await.expect("meta");
            heap.close().await.expect("close");
            drop(heap);
            let (opened, commit, moved) = reopen(&device).await;
            assert!(opened.clean && commit.is_empty() && moved.is_empty());
            heap = opened.heap;
            for (ptr, payload) in &written {
                assert_eq!(&heap.read(*ptr).await.expect("read").payload[..], &payload[..]);
            }
        }
    }));
}

#[test]
fn recovery_reads_what_was_written_since_the_checkpoint_and_little_more() {
    pumice_reactor::block_on(on_both(async |device: Device| {
        let heap = formatted(&device).await;
        let payload = vec![1u8; 4000];
        let write = async |records: u32| {
            for _ in 0..records {
                append_waiting(&heap, &[&payload]).await;
            }
            heap.wait_durable(heap.last_seq()).await.expect("durable");
        };
        write(900).await;
        heap.commit_meta(MetaEdit::Snapshot(Bytes::new()), heap.last_seq()).await.expect("meta");
        write(50).await;
        let segment_bytes = u64::from(heap.segment_bytes());
        drop(heap);
        let mut opened = Heap::open(device.clone(), in_windows(), &no_progress).await.expect("open");
        let mut records = 0;
        while let Some(batch) = opened.replay.next().await.expect("replay") {
            records += batch.records.len();
        }
        assert_eq!(records, 50);
        // 50 records fill at most three segments; two more may be open, two opened ahead.
        let read = opened.replay.bytes_read();
        assert!(read <= 7 * segment_bytes, "{read} B were read");
    }));
}

/// Pieces of large values since the last metadata record lie in many segments of which recovery wants the ends alone.
#[test]
fn recovery_passes_over_large_values_by_their_frames_first_pages() {
    pumice_reactor::block_on(on_both(async |device: Device| {
        let heap = formatted(&device).await;
        let page = u64::from(device.geometry().page_bytes);
        let segment_bytes = u64::from(heap.segment_bytes());
        let piece = Bytes::from(vec![5u8; segment_bytes as usize / 12]);
        let frame = (piece.len() as u64 + 100).next_multiple_of(page);
        let mut written = Vec::new();
        for _ in 0..150 {
            let mut object = heap.object_of(&[&piece]);
            written.push(heap.write_object(3, Group::Large, &mut object).await.expect("object"));
        }
        let mut segments: Vec<_> = written.iter().map(|ptr| ptr.addr.segment()).collect();
        segments.dedup();
        assert!(segments.len() > 10, "the pieces lie in {} segments", segments.len());
        drop(heap);
        let mut opened = Heap::open(device.clone(), in_windows(), &no_progress).await.expect("open");
        assert!(!opened.clean);
        while let Some(batch) = opened.replay.next().await.expect("replay") {
            assert!(batch.records.is_empty() && batch.damage.is_empty(), "{batch:?}");
        }
        let (read, segments) = (opened.replay.bytes_read(), segments.len() as u64);
        // A page of each frame, and of each segment one frame and what is left behind it, which is less than another;
        // the last one may end anywhere.
        let most = written.len() as u64 * page + segments * (2 * frame + page) + segment_bytes;
        assert!(
            most < segments * segment_bytes / 4 * 3,
            "{most} B of {segments} segments of {segment_bytes} B, page {page}"
        );
        assert!(read <= most, "{read} B were read of {segments} segments, at most {most} B are needed");
        for ptr in &written {
            assert_eq!(opened.heap.read(*ptr).await.expect("read").payload, piece);
            let contents = opened.heap.contents(ptr.addr.segment()).await.expect("contents");
            assert!(contents.damage.is_empty(), "{:?}", contents.damage);
            assert!(contents.records.iter().any(|record| record.ptr == *ptr), "{ptr} is in its segment");
        }
    }));
}

#[test]
fn a_drive_that_was_written_when_formatted_never_writes_ahead() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("drive");
    pumice_reactor::block_on(async {
        let spec = DeviceSpec::Path(path.clone());
        let device = Device::create(&spec, 64 << 20).await.expect("a file");
        let seen = std::sync::Arc::new(std::sync::Mutex::new((0, 0)));
        let progress = seen.clone();
        let prewrite = PrewriteProgress(std::sync::Arc::new(move |done, total| {
            *progress.lock().expect("no panic before") = (done, total);
        }));
        let options = FormatOptions { segment_bytes: 1 << 20, prewrite: Some(prewrite), ..format_options() };
        Heap::format(&device, &options).await.expect("formats");
        let (done, total) = *seen.lock().expect("no panic before");
        assert!(total > 50 && done == total, "{done} of {total} segments written");
        use std::os::unix::fs::MetadataExt as _;
        let on_disk = std::fs::metadata(&path).expect("the file").blocks() * 512;
        assert!(on_disk >= total << 20, "{on_disk} bytes on disk for {total} segments of 1 MiB");
    });
}

/// Large values have up to four lanes, by how many segments there are: all lanes' segments go on after a clean close, and what
/// they hold is there after a crash.
#[test]
fn pieces_are_written_side_by_side() {
    for (segments, lanes) in [(200, 1), (300, 2), (450, 3), (600, 4), (1000, 4)] {
        pieces_are_written_in(lanes, segments);
    }
}

fn pieces_are_written_in(lanes: usize, segments: u64) {
    pumice_reactor::block_on(async {
        let dir = tempfile::tempdir().expect("dir");
        let device = file(dir.path(), segments * u64::from(format_options().segment_bytes)).await;
        let mut heap = formatted(&device).await;
        let before = heap.segments_in_use().len();
        let mut held: Vec<(pumice_segment::RecordPtr, Bytes)> = Vec::new();
        for round in 0..3u8 {
            let pieces: Vec<Bytes> =
                (0..lanes as u8).map(|i| Bytes::from(vec![round * 16 + i; 5000])).collect();
            let writes: Vec<_> = pieces
                .iter()
                .map(|piece| {
                    let (heap, piece) = (heap.clone(), piece.clone());
                    pumice_reactor::spawn(async move {
                        heap.write_object(5, Group::Large, &mut heap.object_of(&[&piece]))
                            .await
                            .expect("object")
                    })
                })
                .collect();
            for (write, piece) in writes.into_iter().zip(pieces) {
                held.push((write.await.expect("not dropped"), piece));
            }
            let written = held[held.len() - lanes..].iter().map(|(ptr, _)| ptr.addr.segment());
            let written: std::collections::BTreeSet<_> = written.collect();
            assert_eq!(written.len(), lanes, "round {round}: one waited for another");
            assert_eq!(heap.segments_in_use().len(), before + lanes, "round {round}");
            if round == 1 {
                heap.close().await.expect("close");
            }
            if round > 0 {
                drop(heap);
                let (opened, ..) = reopen(&device).await;
                assert_eq!(opened.clean, round == 1);
                heap = opened.heap;
                for (ptr, piece) in &held {
                    assert_eq!(heap.read(*ptr).await.expect("read").payload, piece);
                }
            }
        }
    });
}

/// What lanes leave half written is no victim while it is open: where space is at its end all but one of a stream are closed.
#[test]
fn lanes_of_large_values_give_their_segments_up_where_space_is_short() {
    pumice_reactor::block_on(async {
        let dir = tempfile::tempdir().expect("dir");
        let device = file(dir.path(), 600 * u64::from(format_options().segment_bytes)).await;
        let heap = formatted(&device).await;
        let writes: Vec<_> = (0..4)
            .map(|_| {
                let heap = heap.clone();
                pumice_reactor::spawn(async move {
                    heap.write_object(5, Group::Large, &mut heap.object_of(&[&[7; 5000]]))
                        .await
                        .expect("object")
                })
            })
            .collect();
        for write in writes {
            heap.mark_dead(write.await.expect("not dropped"));
        }
        assert_eq!(heap.victim(|_| 1), None);
        heap.seal_tables();
        let victims = std::iter::from_fn(|| heap.victim(|_| 1)).count();
        assert_eq!(victims, 3);
    });
}

/// Where nothing more is appended for want of segments, what is dead in the log's last one would never be won.
#[test]
fn the_log_s_segment_is_sealed_when_it_is_as_good_as_full() {
    pumice_reactor::block_on(async {
        let (device, _) = emulated("emu:tiny").await;
        let heap = formatted(&device).await;
        let append = async || {
            let appended = append_waiting(&heap, &[&[5; 3000]]).await;
            heap.wait_durable(appended.first_seq).await.expect("durable");
            heap.mark_dead(appended.ptrs[0]);
            appended.ptrs[0].addr
        };
        let first = append().await;
        let seals = async || {
            heap.commit_meta(MetaEdit::Snapshot(Bytes::new()), heap.last_seq()).await.expect("meta");
            assert_eq!(heap.victim(|_| 1), None);
            heap.seal_tables();
            heap.victim(|_| 1)
        };
        assert_eq!(seals().await, None, "there is much room in it");
        // A frame takes a page, and what a record of a page may need at most is four.
        let page = device.geometry().page_bytes;
        let mut last = first;
        while last.offset() + 4 * page <= heap.segment_bytes() {
            last = append().await;
        }
        assert_eq!(last.segment(), first.segment());
        assert_eq!(seals().await, Some(first.segment()));
        assert_ne!(append().await.segment(), first.segment());
    });
}

/// Cleaning that won nothing is tried again when a segment's worth has died. What it has moved out of a victim did not
/// die, or a full drive would be cleaned for ever.
#[test]
fn what_cleaning_moves_does_not_call_for_more_cleaning() {
    pumice_reactor::block_on(async {
        let (device, _) = emulated("emu:tiny").await;
        let heap = formatted(&device).await;
        let mut ptrs = Vec::new();
        for _ in 0..300 {
            ptrs.push(append_waiting(&heap, &[&[5; 4000]]).await.ptrs[0]);
        }
        heap.wait_durable(heap.last_seq()).await.expect("durable");
        let commit =
            async || heap.commit_meta(MetaEdit::Snapshot(Bytes::new()), heap.last_seq()).await.expect("meta");
        commit().await;
        ptrs.iter().step_by(3).for_each(|ptr| heap.mark_dead(*ptr));
        for _ in 0..2 {
            heap.cleaning_won_nothing();
            let victim = heap.victim(|_| 0).expect("a third of it is dead");
            let (moved, others): (Vec<_>, Vec<_>) =
                ptrs.iter().copied().partition(|ptr| ptr.addr.segment() == victim);
            assert!(moved.len() > 10);
            moved.iter().for_each(|ptr| heap.mark_dead(*ptr));
            assert!(heap.is_futile(), "while it is being cleaned");
            heap.release(victim);
            moved.iter().for_each(|ptr| heap.mark_dead(*ptr));
            assert!(heap.is_futile(), "when it is released");
            commit().await;
            moved.iter().for_each(|ptr| heap.mark_dead(*ptr));
            assert!(heap.is_futile(), "when it is free");
            ptrs = others;
        }
        ptrs.iter().for_each(|ptr| heap.mark_dead(*ptr));
        assert!(!heap.is_futile(), "much has died");
    });
}

/// What is acknowledged before it is synced goes to the host soon, also while a sync is awaited: there it outlives the process.
#[test]
fn a_kill_between_two_syncs_loses_a_moment() {
    use pumice_reactor::sim::{HostOptions, World};
    let world = World::new(7);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    let spec: DeviceSpec = "/drive".parse().expect("spec");
    let path = spec.clone();
    drop(world.run(host, 0, async move {
        let device = Device::create(&path, 16 << 20).await.expect("file");
        Heap::format(&device, &format_options()).await.expect("format");
        let options = HeapOptions { durability: Durability::EverySecond, ..in_windows() };
        let heap = Heap::open(device, options, &no_progress).await.expect("open").heap;
        for pause_ms in [0, 200, 200] {
            sleep(Duration::from_millis(pause_ms)).await;
            append(&heap, 1, &[7; 500]).expect("append");
        }
        sleep(Duration::from_secs(9)).await;
    }));
    // Before the first sync is due.
    world.run_for(Duration::from_millis(600));
    world.kill(host);
    world.restart(host);
    let found = world.block_on(host, async move {
        let device = Device::open(&spec, Access::ReadWrite).await.expect("file");
        reopen(&device).await.1.len()
    });
    assert_eq!(found.expect("up"), 3);
}

/// Replies wait for the newest number that they may have seen: where writes are acknowledged at once, that is also one
/// that was taken while a frame was forming, and that no later write may ever follow.
#[test]
fn a_number_taken_behind_a_write_counts_as_durable_with_it() {
    pumice_reactor::block_on(on_both(async |device: Device| {
        drop(formatted(&device).await);
        for durability in [Durability::EverySecond, Durability::None] {
            let options = HeapOptions { durability, ..in_windows() };
            let heap = Heap::open(device.clone(), options, &no_progress).await.expect("open").heap;
            append_waiting(&heap, &[b"one"]).await;
            let taken = heap.next_seq(1);
            assert!(
                heap.durable().is_open(taken),
                "{durability}: {taken} waits for a write that may never come"
            );
            heap.commit_meta(MetaEdit::Snapshot(Bytes::new()), taken).await.expect("checkpoint");
            heap.close().await.expect("close");
        }
        let heap = reopen(&device).await.0.heap;
        append_waiting(&heap, &[b"two"]).await;
        let taken = heap.next_seq(1);
        heap.wait_durable(taken).await.expect("durable");
    }));
}

/// Zeros behind the metadata log's end tell a drive that was closed from one whose last record was lost. They are written
/// a stretch at a time, over older generations.
#[test]
fn a_closed_drive_opens_clean_whatever_older_generations_left_behind_the_logs_end() {
    const EDIT_BYTES: usize = 3000;
    pumice_reactor::block_on(async {
        let dir = tempfile::tempdir().expect("dir");
        let device = file(dir.path(), 32 << 20).await;
        drop(formatted(&device).await);
        // Fills the log of a half, whose sixteenth part is four pages, with a snapshot and so many edits, each of two pages.
        for edits in [25, 25, 0, 1, 2, 3, 4, 5, 6, 13, 24] {
            let (opened, ..) = reopen(&device).await;
            assert!(opened.clean, "before {edits} edits");
            let heap = opened.heap;
            let blob = || Bytes::from(vec![0xA5; EDIT_BYTES]);
            heap.commit_meta(MetaEdit::Snapshot(blob()), 0).await.expect("snapshot");
            for _ in 0..edits {
                heap.commit_meta(MetaEdit::Edit(blob()), 0).await.expect("edit");
            }
            heap.close().await.expect("close");
        }
        let (opened, ..) = reopen(&device).await;
        assert!(opened.clean);
    });
}

/// A whole half of zeros for each snapshot was most of what the log wrote.
#[test]
fn the_metadata_log_writes_hardly_more_than_its_records() {
    use pumice_reactor::sim::{HostOptions, World};
    let world = World::new(1);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    let counters = world.clone();
    let run = async move {
        let spec: DeviceSpec = "/drive".parse().expect("spec");
        let device = Device::create(&spec, 64 << 20).await.expect("file");
        let format = FormatOptions { segment_bytes: 4 << 20, ..format_options() };
        Heap::format(&device, &format).await.expect("format");
        let heap = Heap::open(device, in_windows(), &no_progress).await.expect("open").heap;
        let (before, logged) = (counters.counters(host).written_bytes, heap.stats().meta_bytes);
        for _ in 0..20 {
            heap.commit_meta(MetaEdit::Snapshot(Bytes::from(vec![1; 10_000])), 0).await.expect("snapshot");
            for _ in 0..70 {
                heap.commit_meta(MetaEdit::Edit(Bytes::from(vec![2; 3000])), 0).await.expect("edit");
            }
        }
        let (written, logged) =
            (counters.counters(host).written_bytes - before, heap.stats().meta_bytes - logged);
        assert!(written > logged && written < logged * 3, "{written} B written for {logged} B of records");
    };
    world.block_on(host, run).unwrap_or_else(|halt| panic!("{halt}"));
}

/// Whoever closes a store checkpoints first, and others may write until the heap takes nothing more.
#[test]
fn what_was_acknowledged_between_the_checkpoint_and_the_close_is_replayed() {
    pumice_reactor::block_on(async {
        let dir = tempfile::tempdir().expect("directory");
        let device = file(dir.path(), 16 << 20).await;
        let heap = formatted(&device).await;
        let first = append(&heap, 1, b"covered").expect("append");
        heap.wait_durable(first.first_seq).await.expect("durable");
        let state = MetaEdit::Snapshot(Bytes::from_static(b"one record"));
        heap.commit_meta(state, first.first_seq).await.expect("checkpoint");
        let second = append(&heap, 1, b"later").expect("append");
        heap.wait_durable(second.first_seq).await.expect("durable");
        heap.close().await.expect("close");
        drop(heap);
        let (opened, commit, _) = reopen(&device).await;
        assert_eq!(commit.iter().map(|record| &record.payload[..]).collect::<Vec<_>>(), [b"later"]);
        // Nothing is left to replay once the state covers it.
        let state = MetaEdit::Snapshot(Bytes::from_static(b"both records"));
        opened.heap.commit_meta(state, second.first_seq).await.expect("checkpoint");
        opened.heap.close().await.expect("close");
        drop(opened);
        let (opened, commit, _) = reopen(&device).await;
        assert!(opened.clean && commit.is_empty(), "{commit:?}");
    });
}

/// A drive is copied to where direct I/O asks for more: another drive, another file system, another kernel.
#[test]
fn a_drive_is_served_where_direct_io_asks_for_larger_units_than_where_it_was_formatted() {
    use pumice_reactor::sim::{HostOptions, World};
    let world = World::new(1);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    let payload = |number: u8| vec![number; 100 + usize::from(number) * 61];
    let spec = || "/drive".parse::<DeviceSpec>().expect("spec");
    let first = async move {
        let device = Device::create(&spec(), 32 << 20).await.expect("file");
        assert_eq!(device.geometry().read_bytes, 512);
        let heap = formatted(&device).await;
        let mut ptrs = Vec::new();
        for number in 0..100 {
            ptrs.push(append_waiting(&heap, &[&payload(number)]).await.ptrs[0]);
        }
        heap.wait_durable(heap.last_seq()).await.expect("durable");
        ptrs
    };
    let ptrs = world.block_on(host, first).unwrap_or_else(|halt| panic!("{halt}"));
    // There and back: neither life leaves behind what the next cannot read.
    for (life, direct_bytes) in [4096, 512].into_iter().enumerate() {
        world.crash(host);
        world.set_direct_bytes(host, direct_bytes);
        world.restart(host);
        let ptrs = ptrs.clone();
        let next = async move {
            let device = Device::open(&spec(), Access::ReadWrite).await.expect("file");
            let (opened, commit, _) = reopen(&device).await;
            assert_eq!(commit.len(), ptrs.len() + life);
            let heap = opened.heap;
            for (number, ptr) in (0..).zip(&ptrs) {
                assert_eq!(heap.read(*ptr).await.expect("read").payload, payload(number));
                let part = heap.read_range(*ptr, 7, 80).await.expect("range");
                assert_eq!(part, payload(number)[7..87]);
            }
            let more = append_waiting(&heap, &[b"more"]).await;
            heap.wait_durable(more.first_seq).await.expect("durable");
            assert_eq!(&heap.read(more.ptrs[0]).await.expect("read").payload[..], b"more");
        };
        world.block_on(host, next).unwrap_or_else(|halt| panic!("{direct_bytes} B: {halt}"));
    }
    // A page is what is written at once: where that is too little, the reason is told.
    world.crash(host);
    world.set_direct_bytes(host, 16 << 10);
    world.restart(host);
    let refused = async move {
        let device = Device::open(&spec(), Access::ReadWrite).await.expect("file");
        Heap::open(device, in_windows(), &no_progress).await.err().expect("refused").to_string()
    };
    let refused = world.block_on(host, refused).unwrap_or_else(|halt| panic!("{halt}"));
    assert!(refused.contains("pages must be multiples of 16384 B"), "{refused}");
}
