//! What zoned drives have beyond the contract: limits of open and active zones, write pointers that outlive a crash,
//! zones that go bad. In virtual time on a strict drive; what needs no faults also on real ones (`PUMICE_ZONED`).

use std::path::Path;
use std::rc::Rc;

use pumice_flash::{Access, BlockAddr, Device, DeviceSpec, FlashError};
use pumice_reactor::sim::{CrashFate, CutMode, FaultOp, FileFault, HostId, HostOptions, PowerCut, World};
use pumice_reactor::zones::ZoneCondition;
use pumice_reactor::{WriteSync, block_on, spawn, yield_now};

use super::backends::{ZONES, emptied, zoned};
use super::{PAGE, at, geometry, pages, read};

const PATH: &str = "/dev/zoned";
const EIO: i32 = 5;
const ENODEV: i32 = 19;
const EOVERFLOW: i32 = 75;
const ETOOMANYREFS: i32 = 109;
const ETIMEDOUT: i32 = 110;

/// A host with a zoned drive.
fn world(seed: u64) -> (World, HostId) {
    let world = World::new(seed);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    world.add_zoned_device(host, Path::new(PATH), ZONES);
    (world, host)
}

/// Runs `check` in virtual time, and on the real drives that were named.
fn on_zoned(check: impl AsyncFn(Device) + Copy + 'static) {
    if let Ok(paths) = std::env::var("PUMICE_ZONED") {
        return block_on(async {
            for path in paths.split(',') {
                check(emptied(zoned(Path::new(path)).await).await).await;
            }
        });
    }
    let (world, host) = world(1);
    let inner = world.clone();
    let done = world.block_on(host, async move {
        check(zoned(Path::new(PATH)).await).await;
        let (open, active) = inner.zones_in_use(host, Path::new(PATH));
        assert!(open <= ZONES.open_max && active <= ZONES.active_max, "{open} open, {active} active");
    });
    done.expect("the world goes on");
}

/// Runs `check` on a simulated drive whose faults are at hand.
fn with_faults(check: impl AsyncFnOnce(Device, Rc<dyn Fn(FaultOp, i32)>, World, HostId) + 'static) {
    let (world, host) = world(1);
    let inner = world.clone();
    let done = world.block_on(host, async move {
        let faulty = inner.clone();
        let fault = move |op, errno| {
            let path = Some(Path::new(PATH).to_owned());
            faulty.add_fault(host, FileFault { path, op, range: None, skip: 0, times: 1, errno });
        };
        check(zoned(Path::new(PATH)).await, Rc::new(fault), inner, host).await;
    });
    done.expect("the world goes on");
}

fn shape(device: &Device) -> pumice_flash::ZoneShape {
    let Device::Zoned(zoned) = device else { panic!("not zoned") };
    zoned.shape()
}

fn all(device: &Device) -> Vec<BlockAddr> {
    (0..device.geometry().block_count()).map(|number| device.geometry().block(number)).collect()
}

async fn program(device: &Device, block: BlockAddr, page: u32, seed: u64, count: usize) {
    let data = pages(seed, count);
    device.program(block, page, data, WriteSync::Durable).await.expect("program");
}

#[test]
fn more_blocks_than_may_be_open_are_programmed_in_turns() {
    on_zoned(async |device: Device| {
        let active_max = shape(&device).active_max as usize;
        assert!(
            active_max > shape(&device).open_max as usize,
            "a drive with both limits: {:?}",
            shape(&device)
        );
        let blocks: Vec<BlockAddr> = all(&device).into_iter().take(active_max).collect();
        for page in 0..3 {
            for (index, &block) in blocks.iter().enumerate() {
                program(&device, block, page, u64::from(page) * 100 + index as u64, 1).await;
            }
        }
        // All at once: each waits until another one's program has ended.
        let mut tasks = Vec::new();
        for (index, &block) in blocks.iter().enumerate() {
            let device = device.clone();
            tasks.push(spawn(async move { program(&device, block, 3, 300 + index as u64, 2).await }));
        }
        for task in tasks {
            task.await.expect("program");
        }
        for (index, &block) in blocks.iter().enumerate() {
            let whole = read(&device, block, 0, 5 * PAGE).await.expect("read");
            for page in 0..3u64 {
                let at = page as usize * PAGE;
                assert_eq!(whole[at..at + PAGE], pages(page * 100 + index as u64, 1)[..], "{block}");
            }
            assert_eq!(whole[3 * PAGE..], pages(300 + index as u64, 2)[..], "{block}");
        }
    });
}

#[test]
fn a_block_that_is_done_with_makes_way_and_without_one_the_program_is_refused() {
    on_zoned(async |device: Device| {
        let active_max = shape(&device).active_max;
        let blocks = all(&device);
        let (full, next) = (&blocks[..active_max as usize], blocks[active_max as usize]);
        for (index, &block) in full.iter().enumerate() {
            program(&device, block, 0, index as u64, 2).await;
        }
        let refused = device.program(next, 0, pages(50, 1), WriteSync::Durable).await;
        let right =
            matches!(refused, Err(FlashError::TooManyActive { active_max: max, .. }) if max == active_max);
        assert!(right, "{refused:?}");
        assert_eq!(device.write_pointer(next), Some(0), "nothing has changed");
        device.finish(full[1]);
        device.finish(full[0]);
        program(&device, next, 0, 50, 1).await;
        // The one that was used longest ago was finished: all of it counts as programmed, and what was there reads.
        assert_eq!(device.write_pointer(full[0]), Some(16));
        assert_eq!(device.write_pointer(full[1]), Some(2));
        assert_eq!(read(&device, full[0], 0, 2 * PAGE).await.expect("read"), pages(0, 2)[..]);
        let late = device.program(full[0], 2, pages(51, 1), WriteSync::Durable).await;
        assert!(matches!(late, Err(FlashError::AlreadyProgrammed { page: 2, .. })), "{late:?}");
        device.erase(full[2]).await.expect("erase");
        program(&device, blocks[active_max as usize + 1], 0, 52, 1).await;
        device.erase(full[0]).await.expect("erase");
        assert_eq!(device.write_pointer(full[0]), Some(0));
    });
}

#[test]
fn filled_blocks_hold_no_place() {
    on_zoned(async |device: Device| {
        for (index, block) in all(&device).into_iter().enumerate() {
            program(&device, block, 0, index as u64, 9).await;
            program(&device, block, 9, index as u64, 7).await;
            assert_eq!(device.write_pointer(block), Some(16));
            let more = device.program(block, 16, pages(1, 1), WriteSync::Durable).await;
            assert!(matches!(more, Err(FlashError::Oversize { .. })), "{more:?}");
        }
    });
}

#[test]
fn programs_of_one_block_follow_each_other_in_the_order_in_which_they_were_asked_for() {
    on_zoned(async |device: Device| {
        let mut tasks = Vec::new();
        for page in 0..16u32 {
            let device = device.clone();
            tasks.push(spawn(async move { program(&device, at(1, 4), page, u64::from(page), 1).await }));
        }
        for task in tasks {
            task.await.expect("program");
        }
        let whole = read(&device, at(1, 4), 0, 16 * PAGE).await.expect("read");
        for page in 0..16 {
            assert_eq!(whole[page * PAGE..(page + 1) * PAGE], pages(page as u64, 1)[..], "page {page}");
        }
    });
}

#[test]
fn write_pointers_are_found_when_the_drive_is_opened_again() {
    let again = async |path: &Path, device: Device| {
        program(&device, at(0, 1), 0, 1, 3).await;
        program(&device, at(1, 2), 0, 2, 16).await;
        program(&device, at(1, 3), 0, 3, 5).await;
        device.erase(at(1, 3)).await.expect("erase");
        drop(device);
        let device = zoned(path).await;
        let pointers = [at(0, 0), at(0, 1), at(1, 2), at(1, 3)].map(|block| device.write_pointer(block));
        assert_eq!(pointers, [Some(0), Some(3), Some(16), Some(0)]);
        let gap = device.program(at(0, 1), 4, pages(4, 1), WriteSync::Durable).await;
        assert!(matches!(gap, Err(FlashError::OutOfOrder { expected: 3, .. })), "{gap:?}");
        program(&device, at(0, 1), 3, 4, 1).await;
        assert_eq!(read(&device, at(0, 1), 0, 3 * PAGE).await.expect("read"), pages(1, 3)[..]);
        assert_eq!(read(&device, at(1, 2), 0, 16 * PAGE).await.expect("read"), pages(2, 16)[..]);
        let past = read(&device, at(1, 3), 0, PAGE).await;
        assert!(matches!(past, Err(FlashError::ReadPastWritePointer { written_bytes: 0, .. })), "{past:?}");
    };
    if let Ok(paths) = std::env::var("PUMICE_ZONED") {
        return block_on(async {
            for path in paths.split(',').map(Path::new) {
                again(path, emptied(zoned(path).await).await).await;
            }
        });
    }
    let (world, host) = world(1);
    let done =
        world.block_on(host, async move { again(Path::new(PATH), zoned(Path::new(PATH)).await).await });
    done.expect("the world goes on");
}

#[test]
fn a_zoned_drive_is_locked_and_keeps_its_own_blocks() {
    on_zoned(async |device: Device| {
        let zones = shape(&device);
        assert_eq!((zones.capacity_bytes, zones.bad), (64 << 10, 0));
        assert!(zones.blocks >= 16 && zones.zone_bytes >= zones.capacity_bytes, "{zones:?}");
        let smaller = pumice_flash::Geometry { pages_per_block: 8, ..geometry(2) };
        assert!(matches!(device.with_geometry(smaller), Err(FlashError::Geometry(_))));
        let more = pumice_flash::Geometry { blocks_per_channel: zones.blocks, ..geometry(2) };
        assert!(matches!(device.with_geometry(more), Err(FlashError::Geometry(_))));
        assert_eq!(device.active_max(), Some(zones.active_max));
        assert!(device.has_own_blocks() && !device.wants_prewrite());
    });
    let (world, host) = world(1);
    let done = world.block_on(host, async move {
        let device = zoned(Path::new(PATH)).await;
        let spec = DeviceSpec::Path(PATH.into());
        let second = Device::open(&spec, Access::ReadWrite).await.err();
        assert!(matches!(second, Some(FlashError::Locked { .. })), "{second:?}");
        let reader = Device::open(&spec, Access::ReadOnly).await.expect("reader");
        let refused = reader.program(at(0, 0), 0, pages(1, 1), WriteSync::Durable).await;
        assert!(matches!(refused, Err(FlashError::ReadOnly { .. })), "{refused:?}");
        assert!(matches!(reader.erase(at(0, 0)).await, Err(FlashError::ReadOnly { .. })));
        assert_eq!(shape(&device).left_out, ZONES.conventional);
        let raw = u64::from(ZONES.zones) * ZONES.capacity_bytes;
        assert_eq!(device.raw_bytes(), raw + u64::from(ZONES.conventional) * ZONES.zone_bytes);
    });
    done.expect("the world goes on");
}

#[test]
fn zones_that_went_bad_are_bad_blocks_and_no_other_block_moves() {
    let (world, host) = world(1);
    let inner = world.clone();
    let done = world.block_on(host, async move {
        let device = zoned(Path::new(PATH)).await;
        program(&device, at(0, 1), 0, 1, 4).await;
        program(&device, at(1, 1), 0, 2, 4).await;
        drop(device);
        // Two conventional zones come first; block (0, 1) is number 2, block (1, 1) number 3.
        inner.set_zone_condition(host, Path::new(PATH), 4, ZoneCondition::ReadOnly);
        inner.set_zone_condition(host, Path::new(PATH), 6, ZoneCondition::Offline);
        let device = zoned(Path::new(PATH)).await;
        assert_eq!(shape(&device).bad, 2);
        assert!(device.is_factory_bad(at(0, 1)) && device.is_factory_bad(at(0, 2)));
        assert!(!device.is_factory_bad(at(1, 1)));
        assert_eq!(read(&device, at(0, 1), 0, 4 * PAGE).await.expect("read-only"), pages(1, 4)[..]);
        assert_eq!(read(&device, at(1, 1), 0, 4 * PAGE).await.expect("beside"), pages(2, 4)[..]);
        let lost = read(&device, at(0, 2), 0, PAGE).await;
        assert!(matches!(lost, Err(FlashError::Uncorrectable { .. })), "{lost:?}");
        for block in [at(0, 1), at(0, 2)] {
            let failed = device.program(block, 4, pages(3, 1), WriteSync::Durable).await;
            assert!(matches!(failed, Err(FlashError::ProgramFailed { .. })), "{failed:?}");
            assert!(matches!(device.erase(block).await, Err(FlashError::EraseFailed { .. })));
        }
    });
    done.expect("the world goes on");
}

#[test]
fn a_zone_that_goes_bad_in_use_fails_its_program_and_its_erase() {
    with_faults(async |device: Device, _, world: World, host| {
        program(&device, at(0, 3), 0, 1, 2).await;
        program(&device, at(1, 3), 0, 1, 2).await;
        world.set_zone_condition(host, Path::new(PATH), 8, ZoneCondition::ReadOnly);
        world.set_zone_condition(host, Path::new(PATH), 9, ZoneCondition::Offline);
        let failed = device.program(at(0, 3), 2, pages(2, 1), WriteSync::Durable).await;
        assert!(matches!(failed, Err(FlashError::ProgramFailed { page: 2, .. })), "{failed:?}");
        assert!(device.is_factory_bad(at(0, 3)));
        assert_eq!(read(&device, at(0, 3), 0, 2 * PAGE).await.expect("still reads"), pages(1, 2)[..]);
        assert!(matches!(device.erase(at(1, 3)).await, Err(FlashError::EraseFailed { .. })));
        assert!(device.is_factory_bad(at(1, 3)));
        let lost = read(&device, at(1, 3), 0, PAGE).await;
        assert!(matches!(lost, Err(FlashError::Uncorrectable { .. })), "{lost:?}");
    });
}

#[test]
fn a_read_error_that_passes_leaves_the_zone_s_programs_as_they_are() {
    with_faults(async |device: Device, fault: Rc<dyn Fn(FaultOp, i32)>, _, _| {
        let block = at(0, 0);
        program(&device, block, 0, 0, 1).await;
        fault(FaultOp::Read, EIO);
        let writer = device.clone();
        let programs = spawn(async move {
            for page in 1..16 {
                program(&writer, block, page, u64::from(page), 1).await;
            }
        });
        let io = read(&device, block, 0, PAGE).await;
        assert!(matches!(io, Err(FlashError::Io { .. })), "{io:?}");
        assert!(!programs.is_finished(), "the error came in between");
        programs.await.expect("every program goes through");
        assert_eq!(device.write_pointer(block), Some(16));
        for page in 0..16u32 {
            let found = read(&device, block, page * PAGE as u32, PAGE).await.expect("read");
            assert_eq!(found, pages(u64::from(page), 1)[..], "page {page}");
        }
    });
}

#[test]
fn a_zone_that_could_not_be_closed_takes_the_program_that_waits_for_it() {
    with_faults(async |device: Device, fault: Rc<dyn Fn(FaultOp, i32)>, _, _| {
        let (oldest, next) = (at(0, 0), at(0, 3));
        for block in [oldest, at(0, 1), at(0, 2)] {
            program(&device, block, 0, 1, 1).await;
        }
        assert_eq!(shape(&device).open, ZONES.open_max);
        fault(FaultOp::Space, EIO);
        let closer = device.clone();
        let refused = spawn(async move { closer.program(next, 0, pages(2, 1), WriteSync::Durable).await });
        yield_now().await;
        // Its zone is about to be closed.
        let waiter = device.clone();
        let waiting = spawn(async move { program(&waiter, oldest, 1, 3, 2).await });
        let refused = refused.await.expect("done");
        assert!(matches!(refused, Err(FlashError::Io { .. })), "{refused:?}");
        waiting.await.expect("it goes through");
        program(&device, oldest, 3, 4, 1).await;
        assert_eq!(device.write_pointer(oldest), Some(4));
        program(&device, next, 0, 2, 1).await;
    });
}

#[test]
fn a_read_only_zone_has_lost_nothing_when_a_read_error_passes() {
    with_faults(async |device: Device, fault: Rc<dyn Fn(FaultOp, i32)>, world: World, host| {
        program(&device, at(0, 0), 0, 1, 2).await;
        world.set_zone_condition(host, Path::new(PATH), 2, ZoneCondition::ReadOnly);
        fault(FaultOp::Read, EIO);
        let io = read(&device, at(0, 0), 0, PAGE).await;
        assert!(matches!(io, Err(FlashError::Io { .. })), "{io:?}");
        assert!(device.is_factory_bad(at(0, 0)), "it takes no more");
        assert_eq!(shape(&device).active, 0);
        assert_eq!(read(&device, at(0, 0), 0, 2 * PAGE).await.expect("read"), pages(1, 2)[..]);
    });
}

#[test]
fn a_zone_that_is_found_bad_gives_its_place_up() {
    with_faults(async |device: Device, _, world: World, host| {
        for block in [at(0, 0), at(0, 1), at(0, 2)] {
            program(&device, block, 0, 1, 2).await;
        }
        assert_eq!(shape(&device).active, 3);
        for (zone, condition) in
            [(2, ZoneCondition::Offline), (4, ZoneCondition::ReadOnly), (6, ZoneCondition::Offline)]
        {
            world.set_zone_condition(host, Path::new(PATH), zone, condition);
        }
        let lost = read(&device, at(0, 0), 0, PAGE).await;
        assert!(matches!(lost, Err(FlashError::Uncorrectable { .. })), "{lost:?}");
        assert_eq!(shape(&device).active, 2, "by a read");
        let failed = device.program(at(0, 1), 2, pages(2, 1), WriteSync::Durable).await;
        assert!(matches!(failed, Err(FlashError::ProgramFailed { .. })), "{failed:?}");
        assert_eq!(shape(&device).active, 1, "by a program");
        assert!(matches!(device.erase(at(0, 2)).await, Err(FlashError::EraseFailed { .. })));
        assert_eq!(shape(&device).active, 0, "by an erase");
        assert_eq!(shape(&device).bad, 3);
    });
}

#[test]
fn the_system_s_errors_are_sorted_into_the_contract_s() {
    with_faults(async |device: Device, fault: Rc<dyn Fn(FaultOp, i32)>, _, _| {
        let block = at(0, 0);
        program(&device, block, 0, 1, 1).await;
        fault(FaultOp::Write, ETIMEDOUT);
        let late = device.program(block, 1, pages(2, 1), WriteSync::Durable).await;
        assert!(matches!(late, Err(FlashError::Timeout { .. })), "{late:?}");
        program(&device, block, 1, 2, 1).await;
        // A drive that has fewer places than it said, or shares them.
        for errno in [EOVERFLOW, ETOOMANYREFS] {
            fault(FaultOp::Write, errno);
            let refused = device.program(block, 2, pages(3, 1), WriteSync::Durable).await;
            assert!(matches!(refused, Err(FlashError::TooManyActive { .. })), "{refused:?}");
            assert_eq!(device.write_pointer(block), Some(2));
        }
        fault(FaultOp::Write, ENODEV);
        let gone = device.program(block, 2, pages(3, 1), WriteSync::Durable).await;
        assert!(matches!(gone, Err(FlashError::Gone { .. })), "{gone:?}");
        fault(FaultOp::Space, ENODEV);
        assert!(matches!(device.erase(block).await, Err(FlashError::Gone { .. })));
        device.erase(block).await.expect("erase");
        program(&device, block, 0, 4, 1).await;
        fault(FaultOp::Write, EIO);
        let failed = device.program(block, 1, pages(5, 1), WriteSync::Durable).await;
        assert!(matches!(failed, Err(FlashError::ProgramFailed { page: 1, .. })), "{failed:?}");
        let after = device.program(block, 1, pages(5, 1), WriteSync::Durable).await;
        assert!(matches!(after, Err(FlashError::ProgramFailed { .. })), "no more before an erase: {after:?}");
        assert_eq!(read(&device, block, 0, PAGE).await.expect("before"), pages(4, 1)[..]);
        fault(FaultOp::Space, EIO);
        assert!(matches!(device.erase(block).await, Err(FlashError::EraseFailed { .. })));
        device.erase(block).await.expect("erase");
        program(&device, block, 0, 6, 1).await;
        fault(FaultOp::Read, EIO);
        let io = read(&device, block, 0, PAGE).await;
        assert!(matches!(io, Err(FlashError::Io { .. })), "{io:?}");
        fault(FaultOp::Sync, ENODEV);
        assert!(matches!(device.sync().await, Err(FlashError::Gone { .. })));
    });
}

#[test]
fn a_power_cut_leaves_a_prefix_at_a_write_pointer_that_is_found_again() {
    for seed in 1..60 {
        for mode in [CutMode::Before, CutMode::Torn, CutMode::After] {
            let (world, host) = world(seed);
            let cut_at = seed % 4;
            let replay = format!("seed {seed}, {mode:?}");
            world.cut_power(host, PowerCut { at: cut_at, mode, fate: Some(CrashFate::Mixed) });
            let cut = world.block_on(host, async move {
                let device = zoned(Path::new(PATH)).await;
                program(&device, at(0, 0), 0, 1, 2).await;
                device.program(at(1, 0), 0, pages(2, 3), WriteSync::Cached).await.expect("program");
                device.program(at(1, 0), 3, pages(3, 6), WriteSync::Cached).await.expect("program");
                device.program(at(0, 0), 2, pages(4, 5), WriteSync::Durable).await.expect("program");
            });
            assert!(cut.is_err(), "{replay}: the power went");
            world.restart(host);
            let text = replay.clone();
            let done = world.block_on(host, async move {
                let device = zoned(Path::new(PATH)).await;
                for (block, expected, least) in [
                    (at(0, 0), [&pages(1, 2)[..], &pages(4, 5)[..]].concat(), if cut_at > 0 { 2 } else { 0 }),
                    (at(1, 0), [&pages(2, 3)[..], &pages(3, 6)[..]].concat(), 0),
                ] {
                    let next = device.write_pointer(block).expect("pointer") as usize;
                    assert!(next >= least && next * PAGE <= expected.len(), "{text}: {block} at page {next}");
                    if next > 0 {
                        let found = read(&device, block, 0, next * PAGE).await.expect("read");
                        assert_eq!(found, expected[..next * PAGE], "{text}: {block}");
                    }
                    // It goes on there, unless the cut came in the middle of a page.
                    let more = device.program(block, next as u32, pages(9, 1), WriteSync::Durable).await;
                    match more {
                        Ok(()) => {}
                        Err(FlashError::ProgramFailed { .. }) => {
                            device.erase(block).await.expect("erase");
                            program(&device, block, 0, 9, 1).await;
                        }
                        Err(other) => panic!("{text}: {other}"),
                    }
                }
            });
            done.unwrap_or_else(|halt| panic!("{replay}: {halt}"));
        }
    }
}
