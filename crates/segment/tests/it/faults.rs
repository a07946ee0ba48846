//! Full drives and flipped bits: refusals that explain themselves, typed errors, never wrong data.

use crate::common::mini::{History, Mini, Write, value_bytes};
use crate::common::{self, emulated, file, format_options, no_progress, options};
use bytes::Bytes;
use pumice_base::rng::Rng;
use pumice_flash::BlockAddr;
use pumice_segment::{
    AppendClass, AppendError, Group, Heap, HeapError, HeapOptions, MetaEdit, Outline, ReadError, RecordIn,
    RecordPtr, TABLE_GROUPS,
};

fn small() -> HeapOptions {
    HeapOptions { commit_max_bytes: 16 << 10, ..options() }
}

#[test]
fn a_full_drive_refuses_writes_and_still_reads_deletes_cleans_and_takes_half_again() {
    pumice_reactor::block_on(async {
        let (device, _) = emulated("emu:tiny,channels=2,blocks=24,pages=16").await;
        Heap::format(&device, &format_options()).await.expect("format");
        let mut history = History::default();
        let mut mini = Mini::open(&device, small()).await.expect("open");
        let fill = async |mini: &mut Mini, history: &mut History, from: u16| -> (u16, String) {
            for key in from.. {
                let write = Write { key, value: Some((u64::from(key), 3000)) };
                if let Err(error) = mini.write(history, vec![write]).await {
                    return (key, error);
                }
            }
            unreachable!("a drive without end")
        };
        let (first, error) = fill(&mut mini, &mut history, 0).await;
        assert!(error.contains("full") && error.contains("live") && error.contains("reserved"), "{error}");
        let space = mini.heap.space();
        assert!(
            space.live * 10 > (space.raw - space.meta - space.reserved) * 7,
            "refused too early: {space:?}"
        );
        mini.verify(&history).await.expect("reads");
        for key in (0..first).step_by(2) {
            mini.write(&mut history, vec![Write { key, value: None }]).await.expect("deletes");
        }
        mini.verify(&history).await.expect("reads after deletes");
        let (second, error) = fill(&mut mini, &mut history, 1000).await;
        assert!(error.contains("full"), "{error}");
        assert!(u32::from(second - 1000) * 10 >= u32::from(first) / 2 * 9, "{} of {first}", second - 1000);
        mini.verify(&history).await.expect("reads after refilling");
        mini.checkpoint().await.expect("checkpoint");
        mini.heap.close().await.expect("close");
        let mini = Mini::open(&device, small()).await.expect("reopen");
        mini.verify(&history).await.expect("reads after reopening");
    });
}

/// Also in a batch that is in two records: whoever asks is told what the next user is.
#[test]
fn a_heap_refuses_users_as_it_says_wherever_the_last_segment_ends() {
    for pages in 0..16 {
        pumice_reactor::block_on(async {
            let (device, _) = emulated("emu:tiny,channels=1,blocks=24,pages=16").await;
            let heap = common::formatted(&device).await;
            for _ in 0..pages {
                common::append(&heap, 1, &[1; 100]).expect("append");
                heap.flush().await.expect("durable");
            }
            let (value, rest) = ([2; 4000], [3; 20]);
            let batch: [&[&[u8]]; 2] = [&[&value], &[&rest]];
            let batch = batch.map(|parts| RecordIn { kind: 1, parts, outline: Outline::Whole });
            loop {
                let says = heap.refuses_users();
                match heap.append(&batch, AppendClass::User) {
                    Ok(_) => assert!(!says, "{pages} pages: it took what it said it refuses"),
                    Err(AppendError::Busy) => heap.cleaning_won_nothing(),
                    Err(AppendError::Full(_)) => {
                        break assert!(says, "{pages} pages: it refused what it said it takes");
                    }
                    Err(error) => panic!("{error}"),
                }
                heap.flush().await.expect("durable");
            }
            heap.close().await.expect("close");
        });
    }
}

#[test]
fn a_flipped_bit_is_never_taken_for_data() {
    for seed in 1..=150u64 {
        pumice_reactor::block_on(async {
            let (device, emulated) = emulated("emu:tiny,channels=2,blocks=14,pages=16").await;
            Heap::format(&device, &format_options()).await.expect("format");
            let mut history = History::default();
            let mut rng = Rng::from_seed(seed);
            let mut mini = Mini::open(&device, HeapOptions { reserve_segments: Some(4), ..small() })
                .await
                .expect("open");
            for _ in 0..60 {
                mini.step(&mut history, &mut rng, 24, 6000).await.expect("step");
            }
            let clean = rng.chance(0.5);
            if clean {
                mini.checkpoint().await.expect("checkpoint");
                mini.heap.close().await.expect("close");
            }
            drop(mini);
            let geometry = device.geometry();
            let (block, offset) = loop {
                let block = geometry.block(rng.below(u64::from(geometry.block_count())) as u32);
                let written = device.write_pointer(block).unwrap_or(0) * geometry.page_bytes;
                if written > 0 {
                    break (block, rng.below(u64::from(written)) as u32);
                }
            };
            emulated.flip_bit(block, offset, rng.below(8) as u8).await.expect("flip");
            judge(&device, &history, seed, block, offset).await;
        });
    }
}

async fn judge(device: &pumice_flash::Device, history: &History, seed: u64, block: BlockAddr, offset: u32) {
    let place = format!("seed {seed}, bit flipped at {block} offset {offset}");
    // Damage to metadata and to the log is an error with its place.
    let Ok(mini) = Mini::open(device, small()).await else { return };
    // A flip in the very last frame looks like its torn end.
    assert!(
        mini.batches + 1 >= history.acknowledged,
        "{place}: {} of {}",
        mini.batches,
        history.acknowledged
    );
    let expected = history.state_after(mini.batches);
    let found: Vec<u16> = mini.entries().map(|(key, _)| key).collect();
    assert_eq!(found, expected.keys().copied().collect::<Vec<_>>(), "{place}");
    let mut damaged = 0;
    for (key, ptr) in mini.entries() {
        match mini.heap.read(ptr).await {
            Ok(record) => {
                let (seed, len) = expected[&key];
                assert_eq!(record.payload[10..], value_bytes(seed, len), "{place}: key {key}");
            }
            Err(ReadError::Corrupt { .. }) => damaged += 1,
            Err(error) => panic!("{place}: key {key}: {error}"),
        }
    }
    assert!(damaged <= 1, "{place}: one bit damaged {damaged} records");
    let mut reported = 0;
    for segment in mini.heap.segments_in_use() {
        reported += mini.heap.contents(segment).await.expect("contents").damage.len();
    }
    assert!(reported >= damaged, "{place}: a scan of all segments finds what a read finds");
}

#[test]
fn what_is_no_drive_or_a_drive_already_is_said_so() {
    pumice_reactor::block_on(async {
        let (device, _) = emulated("emu:tiny").await;
        let none = Heap::open(device.clone(), options(), &no_progress).await.err();
        assert!(matches!(none, Some(HeapError::NotFormatted)), "{none:?}");
        Heap::format(&device, &format_options()).await.expect("format");
        let twice = Heap::format(&device, &format_options()).await.err();
        assert!(matches!(twice, Some(HeapError::AlreadyFormatted { .. })), "{twice:?}");
        let (tiny, _) = emulated("emu:tiny,blocks=4").await;
        let small = Heap::format(&tiny, &format_options()).await.err();
        assert!(matches!(small, Some(HeapError::Geometry(_))), "{small:?}");
    });
}

#[test]
fn a_record_that_is_too_long_is_refused_before_anything_changes() {
    pumice_reactor::block_on(async {
        let (device, _) = emulated("emu:tiny").await;
        let heap = common::formatted(&device).await;
        let long = vec![0; heap.append_max_bytes() as usize + 1];
        let refused = common::append(&heap, 1, &long);
        assert!(matches!(refused, Err(AppendError::Oversize { .. })), "{refused:?}");
        assert_eq!(heap.last_seq(), 0);
        let longest = vec![1; heap.append_max_bytes() as usize];
        let ptr = common::append(&heap, 1, &longest).expect("longest").ptrs[0];
        heap.wait_durable(1).await.expect("durable");
        assert_eq!(&heap.read(ptr).await.expect("read").payload[..], &longest[..]);
    });
}

/// Every segment that is kept free is dead data cleaned too early: users may have half of the reserve while a quarter of
/// the drive is dead or free, and no longer, however much they write before cleaning looks again.
#[test]
fn half_of_the_reserve_is_lent_while_a_quarter_of_the_drive_is_not_alive() {
    pumice_reactor::block_on(async {
        let dir = tempfile::tempdir().expect("dir");
        let device = file(dir.path(), 16 << 20).await;
        let device_page = device.geometry().page_bytes;
        Heap::format(&device, &format_options()).await.expect("format");
        let options = HeapOptions { reserve_segments: Some(6), ..options() };
        let heap = Heap::open(device, options, &no_progress).await.expect("open").heap;
        let segment_bytes = u64::from(heap.segment_bytes());
        let mut ptrs = Vec::new();
        let fill = async |class: AppendClass, ptrs: &mut Vec<RecordPtr>| {
            let mut tries = 0;
            while tries < 3 {
                match heap
                    .append(&[RecordIn { kind: 1, parts: &[&[7; 4000]], outline: Outline::Whole }], class)
                {
                    Ok(appended) => {
                        ptrs.extend(appended.ptrs);
                        heap.wait_durable(appended.first_seq).await.expect("durable");
                    }
                    Err(_) => {
                        tries += 1;
                        heap.commit_meta(MetaEdit::Edit(Bytes::new()), heap.last_seq()).await.expect("meta");
                    }
                }
            }
        };
        // As cleaning does before it begins.
        let look = || heap.victim(|_| 0).into_iter().for_each(|victim| heap.unclaim(victim));
        let free = || {
            let space = heap.space();
            ((space.free + space.reserved) / segment_bytes, heap.free_segments())
        };
        fill(AppendClass::User, &mut ptrs).await;
        look();
        assert_eq!(free(), (7, 0), "a full drive lends nothing, nor what is kept for rewrites");
        // 58 segments are for data. As many as are lent may be opened before three quarters of them can be alive.
        // Of each of eight frames in a segment a page cannot be won.
        let packed = segment_bytes + 8 * u64::from(device_page);
        let live_most = 58 * segment_bytes / 4 * 3 * segment_bytes / packed;
        let mut dead = ptrs.clone().into_iter();
        let mut kill = |left_segments: u64| {
            while heap.space().live > live_most - left_segments * segment_bytes {
                heap.mark_dead(dead.next().expect("some are alive"));
            }
        };
        kill(5);
        look();
        assert_eq!(free(), (7, 4));
        fill(AppendClass::User, &mut ptrs).await;
        assert_eq!(free(), (3, 0), "half of it is lent, and all for rewrites");
        look();
        assert_eq!(free(), (3, 0), "still");
        for released in 0..3 {
            let victim = heap.victim(|_| 0).expect("much is dead");
            heap.release(victim);
            heap.commit_meta(MetaEdit::Edit(Bytes::new()), heap.last_seq()).await.expect("meta");
            assert_eq!(free().0, 4 + released);
        }
        kill(2);
        look();
        assert_eq!(free(), (6, 3));
        fill(AppendClass::User, &mut ptrs).await;
        assert_eq!(free(), (4, 0), "it is called back before anybody looks");
        for class in [AppendClass::User, AppendClass::Delete] {
            let tries = (0..200).map(|_| {
                heap.append(&[RecordIn { kind: 1, parts: &[&[7; 4000]], outline: Outline::Whole }], class)
            });
            let refused = tries.filter_map(Result::err).next();
            assert!(
                matches!(refused, Some(AppendError::Busy)),
                "cleaning brings it back, {class:?} wait: {refused:?}"
            );
        }
    });
}

/// Each may go further into the reserve than the one before, also into what is left of segments that another has opened: what is
/// rewritten leaves deletes theirs.
#[test]
fn a_full_drive_has_room_for_what_is_rewritten_and_more_for_deletes() {
    pumice_reactor::block_on(async {
        let dir = tempfile::tempdir().expect("dir");
        let device = file(dir.path(), 16 << 20).await;
        Heap::format(&device, &format_options()).await.expect("format");
        let options = HeapOptions { reserve_segments: Some(8), ..options() };
        let heap = Heap::open(device, options, &no_progress).await.expect("open").heap;
        let append = |class| {
            heap.append(&[RecordIn { kind: 1, parts: &[&[7; 4000]], outline: Outline::Whole }], class)
        };
        let free = || {
            let space = heap.space();
            (space.free + space.reserved) / u64::from(heap.segment_bytes())
        };
        let fill = async |class: AppendClass| {
            let (mut taken, mut refused) = (0, 0);
            while refused < 3 {
                match append(class) {
                    Ok(appended) => {
                        taken += 1;
                        heap.wait_durable(appended.first_seq).await.expect("durable");
                    }
                    Err(_) => {
                        refused += 1;
                        heap.commit_meta(MetaEdit::Edit(Bytes::new()), heap.last_seq()).await.expect("meta");
                    }
                }
            }
            (taken > 0, free())
        };
        assert_eq!(fill(AppendClass::User).await, (true, 9));
        append(AppendClass::Rewrite).expect("it opens a segment");
        append(AppendClass::User).expect_err("which users may not fill");
        assert_eq!(fill(AppendClass::Rewrite).await, (true, 8));
        append(AppendClass::User).expect_err("there is nothing for users");
        append(AppendClass::Delete).expect("deletes may open one");
        assert_eq!(free(), 7);
        assert_eq!(fill(AppendClass::Rewrite).await, (false, 7), "which is theirs");
        assert_eq!(fill(AppendClass::Delete).await, (true, 4));
        assert_eq!(fill(AppendClass::User).await, (false, 4));
    });
}

/// A flush that opened a segment for each group would find none where it would win the most: groups share what is open
/// while segments are short, and what does not fit anywhere takes the place of what is nearly full.
#[test]
fn groups_of_tables_share_segments_while_these_are_short() {
    pumice_reactor::block_on(async {
        let dir = tempfile::tempdir().expect("dir");
        let device = file(dir.path(), 32 << 20).await;
        Heap::format(&device, &format_options()).await.expect("format");
        let options = HeapOptions { reserve_segments: Some(8), ..options() };
        let heap = Heap::open(device, options, &no_progress).await.expect("open").heap;
        let segment_bytes = heap.segment_bytes();
        let free = || {
            let space = heap.space();
            (space.free + space.reserved) / u64::from(segment_bytes)
        };
        let write = async |group: u8, bytes: u32| {
            let payload = vec![group; bytes as usize];
            let mut object = heap.object_of(&[&payload]);
            let ptr = heap.write_object(3, Group::Tables(group), &mut object).await.expect("object");
            assert_eq!(heap.read(ptr).await.expect("read").payload[..], payload[..]);
            ptr.addr.segment()
        };
        let groups = 0..TABLE_GROUPS as u8;
        for group in groups.clone() {
            write(group, 1000).await;
        }
        let open = heap.segments_in_use().len();
        assert_eq!(open, TABLE_GROUPS, "each group has one of its own while there are many");
        // Whole segments of the first, until five are left of a reserve of eight.
        while free() > 5 {
            write(0, heap.object_room(Group::Large) / 10 * 9).await;
        }
        heap.seal_tables();
        let in_use = heap.segments_in_use().len();
        let mut places: Vec<_> = Vec::new();
        for group in groups.clone().rev() {
            places.push(write(group, 1000).await);
        }
        places.dedup();
        assert_eq!(places.len(), 1, "one takes what all write");
        assert_eq!(heap.segments_in_use().len(), in_use + 1);
        assert!(heap.object_room(Group::Tables(2)) < segment_bytes, "tables are cut to fit what they share");
        let room = heap.object_room(Group::Tables(2));
        let next = write(1, room + 5000).await;
        assert_ne!(next, places[0]);
        assert_eq!(write(2, 1000).await, next, "and nobody goes on in what made way");
    });
}
