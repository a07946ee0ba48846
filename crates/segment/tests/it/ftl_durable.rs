//! What raw flash keeps over a restart: segments, erases, bad blocks, erase counts; with a close and without.

use std::path::Path;

use crate::raw::{in_virtual_time, nand, segment};
use pumice_flash::{BlockAddr, Device, DeviceSpec, Fault, FlashError, Geometry, Operation};
use pumice_reactor::IoBuf;
use pumice_segment::ftl::{
    PartHeader, Place, RawDamage, RawError, RawFlash, RawFormat, RawOpened, RawOptions,
};

/// Tags beside the pages; tags in pages of their own, corrected in software; both without time.
const MEDIA: [&str; 2] = [
    "emu:tiny,channels=4,blocks=16,pages=8,dies=2,stripe=2,oob=64",
    "emu:tiny,channels=4,blocks=16,pages=8,oob=128,ecc=off",
];
const FORMAT: RawFormat = RawFormat { drive_id: [7; 16], force: false };

async fn file() -> Device {
    let spec = DeviceSpec::Path(Path::new("/drive").into());
    let shape = Geometry {
        channels: 4,
        dies_per_channel: 1,
        planes_per_die: 1,
        dies_per_block: 1,
        blocks_per_channel: 16,
        pages_per_block: 8,
        page_bytes: 4096,
        read_bytes: 4096,
        oob_bytes: 0,
    };
    let device = Device::create(&spec, shape.capacity_bytes()).await.expect("file");
    device.with_geometry(shape).expect("shape")
}

async fn open(device: &Device) -> RawOpened {
    let opened = RawFlash::open(device.clone(), RawOptions::default(), &|_, _| ()).await;
    opened.unwrap_or_else(|error| panic!("{error}"))
}

async fn write(raw: &RawFlash, id: u128) {
    let written = raw.write(&raw.client(), id, Place::ById, segment(raw, id as u64)).await;
    written.unwrap_or_else(|error| panic!("write {id}: {error}"));
}

#[track_caller]
fn same(found: &[u8], raw: &RawFlash, id: u128) {
    assert!(found == &segment(raw, id as u64)[..], "segment {id}");
}

async fn check(raw: &RawFlash, there: &[u128], gone: &[u128]) {
    for &id in there {
        let (result, buf) = raw.read(&raw.client(), id, 0, IoBuf::zeroed(raw.segment_bytes() as usize)).await;
        result.unwrap_or_else(|error| panic!("read {id}: {error}"));
        same(&buf, raw, id);
    }
    for &id in gone {
        let result = raw.read(&raw.client(), id, 0, IoBuf::zeroed(4096)).await.0;
        assert!(matches!(result, Err(RawError::NotFound { .. })), "{id}: {result:?}");
    }
    assert_eq!(raw.segment_count() as usize, there.len());
    let space = raw.space();
    assert_eq!(space.accounted(), space.raw, "{space:?}");
}

async fn survives(device: Device) {
    let raw = RawFlash::format(device.clone(), FORMAT, RawOptions::default()).await.expect("format");
    for id in 0..20 {
        write(&raw, id).await;
    }
    raw.erase(&raw.client(), 3).await.expect("erase");
    raw.refresh(&raw.client(), 4).await.expect("refresh");
    raw.erase(&raw.client(), 4).await.expect("erase what was refreshed");
    write(&raw, 3 << 64).await;
    drop(raw);
    // As after a crash.
    let there: Vec<u128> = (0..20).filter(|id| ![3, 4].contains(id)).chain([3 << 64]).collect();
    for _ in 0..2 {
        let RawOpened { raw, clean, damage } = open(&device).await;
        assert!(!clean && damage.is_empty(), "{damage:?}");
        check(&raw, &there, &[3, 4]).await;
    }
    let raw = open(&device).await.raw;
    write(&raw, 3).await;
    raw.close().await.expect("close");
    assert!(matches!(raw.erase(&raw.client(), 3).await, Err(RawError::Closed)));
    assert!(matches!(raw.close().await, Err(RawError::Closed)));
    let there: Vec<u128> = there.into_iter().chain([3]).collect();
    // Closed: once; then it is in use, and closed by nobody.
    let RawOpened { raw, clean, .. } = open(&device).await;
    assert!(clean);
    check(&raw, &there, &[4]).await;
    drop(raw);
    let RawOpened { raw, clean, .. } = open(&device).await;
    assert!(!clean, "it was not closed since");
    check(&raw, &there, &[4]).await;
    drop(raw);
    let again = RawFlash::format(device.clone(), FORMAT, RawOptions::default()).await;
    assert!(matches!(again.err(), Some(RawError::AlreadyFormatted { drive_id }) if drive_id == [7; 16]));
    let same = RawFormat { force: true, ..FORMAT };
    let again = RawFlash::format(device.clone(), same, RawOptions::default()).await;
    assert!(again.is_err(), "what is there would be taken for its own");
    let format = RawFormat { drive_id: [8; 16], force: true };
    drop(RawFlash::format(device.clone(), format, RawOptions::default()).await.expect("forced"));
    let RawOpened { raw, damage, .. } = open(&device).await;
    assert!(damage.is_empty(), "{damage:?}");
    assert_eq!(raw.drive_id(), [8; 16]);
    check(&raw, &[], &[0, 1]).await;
}

#[test]
fn what_was_acknowledged_is_there_after_a_restart() {
    in_virtual_time(async || {
        for spec in MEDIA.into_iter().chain(["emu:bluedbm,blocks=64,timing=off"]) {
            survives(nand(spec).await.0).await;
        }
        survives(file().await).await;
    });
}

#[test]
fn a_closed_drive_is_opened_without_looking_at_its_blocks() {
    in_virtual_time(async || {
        for spec in MEDIA {
            let (device, nand) = nand(spec).await;
            let raw = RawFlash::format(device.clone(), FORMAT, RawOptions::default()).await.expect("format");
            for id in 0..30 {
                write(&raw, id).await;
            }
            raw.close().await.expect("close");
            let before = nand.counts();
            assert!(open(&device).await.clean);
            let after = nand.counts();
            // A page of each of the 16 blocks that checkpoints may lie on, the rest of those, and the mark.
            let closed = after.reads - before.reads;
            assert!(closed <= 19, "{closed} reads");
            assert_eq!(after.programs - before.programs, 1, "the mark");
            let raw = open(&device).await.raw;
            assert!(
                nand.counts().reads - after.reads >= closed + 30,
                "a drive in use is looked at, block by block"
            );
            drop(raw);
        }
    });
}

#[test]
fn media_that_hold_no_drive_and_other_shapes_are_refused() {
    in_virtual_time(async || {
        let device = file().await;
        let none = RawFlash::open(device.clone(), RawOptions::default(), &|_, _| ()).await;
        assert!(matches!(none.err(), Some(RawError::NotFormatted)));
        drop(RawFlash::format(device.clone(), FORMAT, RawOptions::default()).await.expect("format"));
        let other = Geometry { channels: 2, blocks_per_channel: 32, ..device.geometry() };
        let other = device.with_geometry(other).expect("shape");
        let refused = RawFlash::open(other.clone(), RawOptions::default(), &|_, _| ()).await.err();
        let refused = refused.expect("refused").to_string();
        assert!(refused.contains("formatted as 4 channels × 16 blocks"), "{refused}");
        let format = RawFormat { drive_id: [9; 16], force: true };
        drop(RawFlash::format(other.clone(), format, RawOptions::default()).await.expect("forced"));
        assert_eq!(open(&other).await.raw.drive_id(), [9; 16]);
    });
}

#[test]
fn bad_blocks_stay_bad_and_erases_are_counted_over_restarts() {
    in_virtual_time(async || {
        for spec in MEDIA {
            let (device, nand) = nand(spec).await;
            let raw = RawFlash::format(
                device.clone(),
                FORMAT,
                RawOptions { erased_ahead: 1, ..RawOptions::default() },
            );
            let raw = raw.await.expect("format");
            for id in 0..8 {
                write(&raw, id).await;
            }
            nand.fail_program_at(2);
            write(&raw, 8).await;
            nand.fail_erase_at(1);
            raw.erase(&raw.client(), 8).await.expect("erased, or bad");
            assert_eq!(raw.counts(0).bad, 2);
            let stats = raw.stats();
            assert_eq!((stats.retired, stats.unsaved_bad), (2, 0));
            drop(raw);
            for _ in 0..2 {
                let raw = open(&device).await.raw;
                assert_eq!(raw.counts(0).bad, 2, "after a crash");
                check(&raw, &[0, 1, 2, 3, 4, 5, 6, 7], &[8]).await;
                raw.close().await.expect("close");
                let raw = open(&device).await.raw;
                assert_eq!(raw.counts(0).bad, 2, "after a close");
                drop(raw);
            }
            // Whatever is written and erased from now on, two blocks beside those in use are never touched.
            let RawOpened { raw, .. } = open(&device).await;
            let erases = |block| nand.erase_count(BlockAddr { channel: 0, block });
            let before: Vec<u32> = (0..16).map(erases).collect();
            for round in 1..=6u128 {
                let mut written = Vec::new();
                for id in 1000 * round.. {
                    match raw.write(&raw.client(), id, Place::Channel(0), segment(&raw, 1)).await {
                        Ok(_) => written.push(id),
                        Err(RawError::Full { .. }) => break,
                        Err(error) => panic!("{spec}: {error}"),
                    }
                }
                assert_eq!(
                    written.len(),
                    16 - 1 - 2 - 2,
                    "{spec}: all but a reserved, two bad and two in use"
                );
                for id in written {
                    raw.erase(&raw.client(), id).await.expect("erase");
                }
            }
            let in_use: Vec<u32> = [0, 4].iter().map(|&id| raw.place_of(id).expect("there").block).collect();
            let untouched =
                (0..16).filter(|&block| erases(block) == before[block as usize] && !in_use.contains(&block));
            // The first block is for checkpoints, and has its turn or not.
            assert_eq!(untouched.filter(|&block| block != 0).count(), 2, "{spec}");
            drop(raw);
            // A new drive on the same media knows of them.
            let format = RawFormat { drive_id: [8; 16], force: true };
            let raw = RawFlash::format(device.clone(), format, RawOptions::default()).await.expect("forced");
            assert_eq!(raw.counts(0).bad, 2);
        }
        // Files do not count: what is known is what the layer keeps.
        let device = file().await;
        let raw =
            RawFlash::format(device.clone(), FORMAT, RawOptions { erased_ahead: 1, ..RawOptions::default() });
        let raw = raw.await.expect("format");
        for step in 0..200u128 {
            write(&raw, step).await;
            raw.erase(&raw.client(), step).await.expect("erase");
        }
        let ranges: Vec<_> = (0..4).map(|channel| raw.erase_range(channel)).collect();
        assert!(ranges.iter().all(|range| range.expect("blocks").1 > 2), "{ranges:?}");
        drop(raw);
        // On files an erased block says so itself.
        let raw = open(&device).await.raw;
        assert_eq!((0..4).map(|channel| raw.erase_range(channel)).collect::<Vec<_>>(), ranges);
        raw.close().await.expect("close");
        let raw = open(&device).await.raw;
        assert_eq!((0..4).map(|channel| raw.erase_range(channel)).collect::<Vec<_>>(), ranges);
    });
}

#[test]
fn a_lost_tag_is_told_and_a_segment_that_was_whole_is_served_without_it() {
    in_virtual_time(async || {
        let (device, nand) = nand(MEDIA[0]).await;
        let raw = RawFlash::format(device.clone(), FORMAT, RawOptions::default()).await.expect("format");
        write(&raw, 1).await;
        raw.close().await.expect("close");
        let raw = open(&device).await.raw;
        write(&raw, 2).await;
        let places: Vec<BlockAddr> = [1, 2].iter().map(|&id| raw.place_of(id).expect("there")).collect();
        drop(raw);
        places.iter().for_each(|&place| nand.tear_page(place, 7));
        let RawOpened { raw, damage, .. } = open(&device).await;
        let mut expected = vec![
            RawDamage::LostPage { block: places[0], id: 1 },
            RawDamage::Unfinished { block: places[1], id: 2 },
        ];
        expected.sort_by_key(ToString::to_string);
        let mut damage = damage;
        damage.sort_by_key(ToString::to_string);
        assert_eq!(damage, expected);
        let (result, buf) = raw.read(&raw.client(), 1, 0, IoBuf::zeroed(7 * 4096)).await;
        result.expect("all but the last page");
        assert!(buf[..] == segment(&raw, 1)[..7 * 4096]);
        assert!(matches!(
            raw.read(&raw.client(), 1, 7 * 4096, IoBuf::zeroed(4096)).await.0,
            Err(RawError::Flash(_))
        ));
        assert!(raw.place_of(2).is_none());
    });
}

#[test]
fn a_checkpoint_that_is_lost_is_stood_in_for_by_the_one_before() {
    in_virtual_time(async || {
        let (device, nand) = nand(MEDIA[0]).await;
        let raw = RawFlash::format(device.clone(), FORMAT, RawOptions::default()).await.expect("format");
        for id in 0..6 {
            write(&raw, id).await;
        }
        raw.close().await.expect("close");
        // The one of the format lies on one of the first four blocks, the one of the close on another.
        let torn = |number: u32| nand.write_pointer(device.geometry().block(number)) == Some(1);
        let written: Vec<u32> = (0..4).filter(|&number| torn(number)).collect();
        assert_eq!(written, [0, 1], "a page each");
        nand.tear_page(device.geometry().block(1), 0);
        let RawOpened { raw, clean, .. } = open(&device).await;
        assert!(!clean);
        check(&raw, &[0, 1, 2, 3, 4, 5], &[6]).await;
        drop(raw);
        nand.tear_page(device.geometry().block(0), 0);
        let none = RawFlash::open(device, RawOptions::default(), &|_, _| ()).await;
        assert!(matches!(none.err(), Some(RawError::NotFormatted)));
    });
}

/// More blocks for checkpoints fail than a drive keeps, one each time it is closed.
#[test]
fn checkpoints_move_to_other_blocks_as_theirs_wear_out() {
    in_virtual_time(async || {
        for spec in MEDIA {
            let (device, nand) = nand(spec).await;
            let raw = RawFlash::format(device.clone(), FORMAT, RawOptions::default()).await.expect("format");
            for id in 0..20 {
                write(&raw, id).await;
            }
            raw.close().await.expect("close");
            for failed in 1..=9u32 {
                let RawOpened { raw, clean, damage } = open(&device).await;
                assert!(clean && damage.is_empty(), "{spec}: {failed}: {damage:?}");
                check(&raw, &(0..20).collect::<Vec<_>>(), &[20]).await;
                // Turns between the checkpoint's own program and its mark.
                if failed % 3 == 0 {
                    raw.close().await.expect("close");
                    nand.fail_program_at(1);
                    let RawOpened { raw, .. } = open(&device).await;
                    raw.close().await.expect("close");
                } else {
                    nand.fail_program_at(1);
                    raw.close().await.unwrap_or_else(|error| panic!("{spec}: {failed}: {error}"));
                }
                let raw = open(&device).await.raw;
                let bad: u32 = (0..4).map(|channel| raw.counts(channel).bad).sum();
                let kept: u32 = (0..4).map(|channel| raw.counts(channel).reserved).sum();
                // Where segments are in the way the last one is made up for later.
                assert!(bad == failed && (3..=4).contains(&kept), "{spec}: {failed}: {bad} bad, {kept} kept");
                raw.close().await.expect("close");
            }
            // As after a crash, too.
            drop(open(&device).await.raw);
            let RawOpened { raw, clean, .. } = open(&device).await;
            assert!(!clean);
            check(&raw, &(0..20).collect::<Vec<_>>(), &[20]).await;
            assert_eq!((0..4).map(|channel| raw.counts(channel).bad).sum::<u32>(), 9, "{spec}");
            // Another drive on the same media keeps none that is known to be bad.
            let format = RawFormat { drive_id: [8; 16], force: true };
            drop(RawFlash::format(device.clone(), format, RawOptions::default()).await.expect("forced"));
            assert_eq!(open(&device).await.raw.drive_id(), [8; 16]);
        }
    });
}

#[test]
fn segments_make_room_for_checkpoints_where_all_blocks_for_these_are_taken() {
    in_virtual_time(async || {
        for spec in MEDIA {
            let (device, nand) = nand(spec).await;
            let raw = RawFlash::format(
                device.clone(),
                FORMAT,
                RawOptions { erased_ahead: 0, ..RawOptions::default() },
            )
            .await;
            let raw = raw.expect("format");
            // Four blocks of 64 are kept, the others hold segments.
            for id in 0..60 {
                write(&raw, id).await;
            }
            // Room, but not among the first 16 blocks.
            let late = (0..60).filter(|&id| raw.place_of(id).expect("there").block >= 8);
            let gone: Vec<u128> = late.step_by(4).take(9).collect();
            let there: Vec<u128> = (0..60).filter(|id| !gone.contains(id)).collect();
            for &id in &gone {
                raw.erase(&raw.client(), id).await.expect("erase");
            }
            raw.close().await.expect("close");
            for failed in 1..=6u32 {
                let RawOpened { raw, clean, .. } = open(&device).await;
                assert!(clean);
                nand.fail_program_at(1);
                raw.close().await.unwrap_or_else(|error| panic!("{spec}: {failed}: {error}"));
            }
            let raw = open(&device).await.raw;
            assert_eq!((0..4).map(|channel| raw.counts(channel).bad).sum::<u32>(), 6, "{spec}");
            check(&raw, &there, &gone).await;
        }
    });
}

#[test]
fn a_drive_without_any_block_left_for_checkpoints_opens_and_is_read() {
    in_virtual_time(async || {
        for spec in MEDIA {
            let (device, nand) = nand(spec).await;
            let raw = RawFlash::format(device.clone(), FORMAT, RawOptions::default()).await.expect("format");
            for id in 0..20 {
                write(&raw, id).await;
            }
            raw.erase(&raw.client(), 0).await.expect("erase");
            raw.close().await.expect("close");
            nand.fail_by_chance(Operation::Program, 1.0);
            let RawOpened { raw, clean, .. } = open(&device).await;
            assert!(clean);
            check(&raw, &(1..20).collect::<Vec<_>>(), &[0]).await;
            let refused = raw.write(&raw.client(), 20, Place::ById, segment(&raw, 20)).await;
            assert!(matches!(refused, Err(RawError::CheckpointsWorn { .. })), "{refused:?}");
            let refused = raw.erase(&raw.client(), 1).await;
            assert!(matches!(refused, Err(RawError::CheckpointsWorn { .. })), "{refused:?}");
            assert!(raw.discard(1).is_err() && raw.refresh(&raw.client(), 1).await.is_err());
            raw.close().await.expect("nothing is to be written");
            // Nothing was changed: should the media take programs again, all is as it was.
            nand.fail_by_chance(Operation::Program, 0.0);
            let raw = open(&device).await.raw;
            for id in 20..28 {
                write(&raw, id).await;
            }
            check(&raw, &(1..28).collect::<Vec<_>>(), &[0]).await;
            drop(raw);
            check(&open(&device).await.raw, &(1..28).collect::<Vec<_>>(), &[]).await;
        }
    });
}

#[test]
fn what_users_write_is_never_taken_for_a_checkpoint() {
    in_virtual_time(async || {
        let (device, _) = nand("emu:tiny,channels=1,blocks=32,pages=8,dies=2,stripe=2,oob=64").await;
        let raw = RawFlash::format(device.clone(), FORMAT, RawOptions::default()).await.expect("format");
        // A newer and clean checkpoint of an empty drive, on the very block that the segment comes to lie on.
        let (number, geometry) = (4, device.geometry());
        let header = PartHeader {
            drive_id: FORMAT.drive_id,
            generation: 1000,
            clean: true,
            in_band: false,
            has_sums: true,
            part: 0,
            parts: 1,
            channels: geometry.channels,
            blocks_per_channel: geometry.blocks_per_channel,
            pages_per_block: geometry.pages_per_block,
            page_bytes: geometry.page_bytes,
            oob_bytes: geometry.oob_bytes,
            sequence: 1000,
            scrub_block: 0,
            scrub_passes: 0,
        };
        let part = header.encode(number, &[0; 32 * 4]);
        assert!(matches!(PartHeader::decode(number, &part), Ok(Some(_))));
        let mut data = IoBuf::zeroed(raw.segment_bytes() as usize);
        data[..part.len()].copy_from_slice(&part);
        raw.write(&raw.client(), 1, Place::ById, data.freeze()).await.expect("write");
        assert_eq!(raw.place_of(1).map(|place| geometry.number(place)), Some(number));
        raw.close().await.expect("close");
        for _ in 0..2 {
            let raw = open(&device).await.raw;
            assert_eq!(raw.ids(), [1]);
        }
    });
}

/// A crash between the end of a write and the erase of what was discarded before leaves two blocks with the id. Whatever
/// becomes of the later one, nobody sees the earlier one again.
#[test]
fn what_was_superseded_does_not_come_back_when_its_successor_is_erased() {
    in_virtual_time(async || {
        for (spec, id) in MEDIA.into_iter().flat_map(|spec| (0..8u128).map(move |id| (spec, id))) {
            let (device, nand) = nand(spec).await;
            let options = RawOptions { erased_ahead: 0, ..RawOptions::default() };
            let raw = RawFlash::format(device.clone(), FORMAT, options).await.expect("format");
            let client = raw.client();
            raw.write(&client, id, Place::ById, segment(&raw, 100)).await.expect("the first version");
            raw.discard(id).expect("discard");
            // The write erases a block for itself, and when it has written that what was discarded.
            nand.fail_at(Operation::Erase, 2, Fault::TimedOut);
            let written = raw.write(&client, id, Place::ById, segment(&raw, 200)).await;
            assert!(matches!(written, Err(RawError::Flash(FlashError::Timeout { .. }))), "{written:?}");
            drop(raw);
            let raw = RawFlash::open(device.clone(), options, &|_, _| ()).await.expect("open").raw;
            let (result, buf) = raw.read(&client, id, 0, IoBuf::zeroed(4096)).await;
            result.expect("the second version");
            assert!(buf[..] == segment(&raw, 200)[..4096]);
            // One erase and no other. Acknowledged or not: what matters is what is left when the power goes.
            nand.fail_at(Operation::Erase, 2, Fault::TimedOut);
            drop(raw.erase(&raw.client(), id).await);
            drop(raw);
            let raw = RawFlash::open(device.clone(), options, &|_, _| ()).await.expect("open").raw;
            let (result, buf) = raw.read(&client, id, 0, IoBuf::zeroed(4096)).await;
            let is_second = result.is_ok() && buf[..] == segment(&raw, 200)[..4096];
            assert!(is_second || matches!(result, Err(RawError::NotFound { .. })), "{spec}: {id}");
        }
    });
}

#[test]
fn a_file_s_shape_is_found_by_whichever_checkpoint_is_left() {
    in_virtual_time(async || {
        let device = file().await;
        drop(RawFlash::format(device.clone(), FORMAT, RawOptions::default()).await.expect("format"));
        // Each close writes one of the four blocks for checkpoints; the newest comes to lie on the last of them.
        for _ in 0..3 {
            open(&device).await.raw.close().await.expect("close");
        }
        for number in 0..3 {
            let block = device.geometry().block(number);
            device.erase(block).await.expect("erase");
            let zeros = IoBuf::zeroed(4096).freeze();
            device.program(block, 0, zeros, pumice_reactor::WriteSync::Durable).await.expect("program");
        }
        let spec = DeviceSpec::Path(Path::new("/drive").into());
        let found = Device::open(&spec, pumice_flash::Access::ReadOnly).await.expect("file");
        // Cut in any way: a file this small has not even a block as files are cut by default.
        let other = Geometry { channels: 1, blocks_per_channel: 64, ..device.geometry() };
        let found = found.with_geometry(other).expect("shape");
        let cut = RawFlash::probe(&found).await.expect("probe").expect("there is a drive");
        assert_eq!(cut.geometry().channels, 4);
        assert!(RawFlash::open(cut, RawOptions::default(), &|_, _| ()).await.expect("open").clean);
    });
}
