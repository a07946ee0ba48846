//! What media answer when they fail: each failure its own error, on emulated flash and on files.

use std::path::Path;

use pumice_flash::{Access, Device, DeviceSpec, Fault, FlashError, Operation};
use pumice_reactor::sim::{CrashFate, FaultOp, FileFault, HostId, HostOptions, World};
use pumice_reactor::{WriteSync, block_on, spawn, yield_now};

use super::{PAGE, at, emulated, geometry, pages, read};

const EIO: i32 = 5;
const ENOSPC: i32 = 28;
const EFBIG: i32 = 27;

#[test]
fn failed_programs_and_erases_have_their_own_errors() {
    block_on(async {
        let (device, emulated) = emulated("emu:tiny").await;
        emulated.fail_program_at(2);
        device.program(at(0, 0), 0, pages(1, 1), WriteSync::Durable).await.expect("program");
        let failed = device.program(at(0, 0), 1, pages(2, 1), WriteSync::Durable).await;
        assert!(matches!(failed, Err(FlashError::ProgramFailed { page: 1, .. })), "{failed:?}");
        assert_eq!(read(&device, at(0, 0), 0, PAGE).await.expect("before"), &pages(1, 1)[..]);
        let after = device.program(at(0, 0), 2, pages(3, 1), WriteSync::Durable).await;
        assert!(matches!(after, Err(FlashError::ProgramFailed { .. })), "{after:?}");
        emulated.fail_erase_at(1);
        assert!(matches!(device.erase(at(0, 0)).await, Err(FlashError::EraseFailed { .. })));
        device.program(at(0, 1), 0, pages(4, 1), WriteSync::Durable).await.expect("program");
        emulated.flip_bit(at(0, 1), 77, 3).await.expect("flip");
        let mut flipped = pages(4, 1).to_vec();
        flipped[77] ^= 8;
        assert_eq!(read(&device, at(0, 1), 0, PAGE).await.expect("flipped"), flipped);
    });
}

#[test]
fn an_operation_that_times_out_has_changed_nothing() {
    block_on(async {
        let (device, emulated) = emulated("emu:tiny").await;
        let block = at(0, 0);
        device.program(block, 0, pages(1, 1), WriteSync::Durable).await.expect("program");
        for operation in [Operation::Read, Operation::Program, Operation::Erase] {
            emulated.fail_at(operation, 1, Fault::TimedOut);
        }
        let late = read(&device, block, 0, PAGE).await;
        assert!(matches!(late, Err(FlashError::Timeout { operation: Operation::Read, .. })), "{late:?}");
        let late = device.program(block, 1, pages(2, 1), WriteSync::Durable).await;
        assert!(matches!(late, Err(FlashError::Timeout { operation: Operation::Program, .. })), "{late:?}");
        let late = device.erase(block).await;
        assert!(matches!(late, Err(FlashError::Timeout { operation: Operation::Erase, .. })), "{late:?}");
        assert_eq!(device.write_pointer(block), Some(1));
        assert_eq!(device.erase_count(block), Some(0));
        assert_eq!(read(&device, block, 0, PAGE).await.expect("read"), &pages(1, 1)[..]);
        device.program(block, 1, pages(2, 1), WriteSync::Durable).await.expect("program");
    });
}

#[test]
fn a_page_that_is_lost_says_so_and_its_neighbours_read() {
    block_on(async {
        let (device, emulated) = emulated("emu:tiny").await;
        device.program(at(1, 3), 0, pages(1, 3), WriteSync::Durable).await.expect("program");
        emulated.tear_page(at(1, 3), 1);
        let lost = read(&device, at(1, 3), PAGE as u32, PAGE).await;
        assert!(matches!(lost, Err(FlashError::Uncorrectable { offset_bytes: 4096, .. })), "{lost:?}");
        assert_eq!(read(&device, at(1, 3), 0, PAGE).await.expect("before"), &pages(1, 3)[..PAGE]);
        emulated.fail_at(Operation::Read, 1, Fault::Failed);
        let lost = read(&device, at(1, 3), 0, PAGE).await;
        assert!(matches!(lost, Err(FlashError::Uncorrectable { offset_bytes: 0, .. })), "{lost:?}");
        device.erase(at(1, 3)).await.expect("erase");
        device.program(at(1, 3), 0, pages(2, 3), WriteSync::Durable).await.expect("program");
        assert_eq!(read(&device, at(1, 3), 0, 3 * PAGE).await.expect("erased"), &pages(2, 3)[..]);
    });
}

/// What a file on a faulty drive answers to one operation, for an error of the system.
fn file_answers(op: FaultOp, errno: i32) -> FlashError {
    let world = World::new(1);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    let inner = world.clone();
    let answer = world.block_on(host, async move {
        let path = DeviceSpec::Path("/drive".into());
        let device = Device::create(&path, geometry(2).capacity_bytes()).await.expect("file");
        let device = device.with_geometry(geometry(2)).expect("shape");
        device.program(at(0, 0), 0, pages(1, 1), WriteSync::Durable).await.expect("program");
        let path = Some(Path::new("/drive").to_owned());
        inner.add_fault(host, FileFault { path, op, range: None, skip: 0, times: 1, errno });
        let failed = match op {
            FaultOp::Read => read(&device, at(0, 0), 0, PAGE).await.map(drop),
            FaultOp::Write => device.program(at(0, 0), 1, pages(2, 1), WriteSync::Durable).await,
            FaultOp::Space => device.give_back(at(0, 1)).await,
            _ => device.sync().await,
        };
        // What failed changed nothing and goes through once the fault is over.
        assert_eq!(read(&device, at(0, 0), 0, PAGE).await.expect("read"), &pages(1, 1)[..]);
        device.program(at(0, 0), 1, pages(2, 1), WriteSync::Durable).await.expect("program");
        failed.expect_err("the fault strikes")
    });
    answer.expect("the world goes on")
}

#[test]
fn a_file_sorts_the_system_s_errors_into_the_contract_s() {
    const ENODEV: i32 = 19;
    const ENODATA: i32 = 61;
    const EILSEQ: i32 = 84;
    const ETIMEDOUT: i32 = 110;
    for errno in [ENODATA, EILSEQ] {
        assert!(matches!(file_answers(FaultOp::Read, errno), FlashError::Uncorrectable { .. }));
        assert!(matches!(file_answers(FaultOp::Write, errno), FlashError::ProgramFailed { page: 1, .. }));
    }
    for op in [FaultOp::Read, FaultOp::Write, FaultOp::Space, FaultOp::Sync] {
        let gone = file_answers(op, ENODEV);
        assert!(matches!(gone, FlashError::Gone { .. }), "{op:?}: {gone:?}");
        let other = file_answers(op, EIO);
        assert!(matches!(other, FlashError::Io { .. }), "{op:?}: {other:?}");
    }
    for op in [FaultOp::Read, FaultOp::Write, FaultOp::Space] {
        let late = file_answers(op, ETIMEDOUT);
        assert!(matches!(late, FlashError::Timeout { .. }), "{op:?}: {late:?}");
    }
    assert!(matches!(file_answers(FaultOp::Write, ENOSPC), FlashError::NoSpace { .. }));
    assert!(matches!(file_answers(FaultOp::Write, EFBIG), FlashError::NoSpace { .. }));
}

/// A commit that a full file system refuses is tried again; the next one may set out meanwhile.
#[test]
fn a_file_takes_what_comes_behind_a_program_that_failed_and_then_that_program() {
    let world = World::new(1);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    let inner = world.clone();
    let answer = world.block_on(host, async move {
        let path = DeviceSpec::Path("/drive".into());
        let device = Device::create(&path, geometry(2).capacity_bytes()).await.expect("file");
        let device = device.with_geometry(geometry(2)).expect("shape");
        device.program(at(0, 0), 0, pages(1, 1), WriteSync::Durable).await.expect("program");
        let fault =
            FileFault { path: None, op: FaultOp::Write, range: None, skip: 0, times: 1, errno: ENOSPC };
        inner.add_fault(host, fault);
        let failed = device.program(at(0, 0), 1, pages(2, 2), WriteSync::Durable).await;
        assert!(matches!(failed, Err(FlashError::NoSpace { .. })), "{failed:?}");
        device.program(at(0, 0), 3, pages(3, 1), WriteSync::Durable).await.expect("behind it");
        device.program(at(0, 0), 1, pages(2, 2), WriteSync::Durable).await.expect("again");
        let again = device.program(at(0, 0), 1, pages(2, 2), WriteSync::Durable).await;
        assert!(matches!(again, Err(FlashError::AlreadyProgrammed { page: 1, .. })), "{again:?}");
        device.program(at(0, 0), 4, pages(4, 1), WriteSync::Durable).await.expect("in order");
        let all = [pages(1, 1), pages(2, 2), pages(3, 1), pages(4, 1)].concat();
        assert_eq!(read(&device, at(0, 0), 0, 5 * PAGE).await.expect("read"), &all[..]);
    });
    answer.expect("the world goes on");
}

#[test]
fn a_read_only_opener_changes_nothing() {
    block_on(async {
        for spec in ["emu:tiny", "emu:sdf,blocks=4"] {
            let spec: DeviceSpec = spec.parse().expect("spec");
            let device = Device::open(&spec, Access::ReadOnly).await.expect("device");
            let page = pages(1, device.geometry().page_bytes as usize / PAGE);
            let refused = device.program(at(0, 0), 0, page, WriteSync::Durable).await;
            assert!(matches!(refused, Err(FlashError::ReadOnly { .. })), "{refused:?}");
            assert!(matches!(device.erase(at(0, 0)).await, Err(FlashError::ReadOnly { .. })));
            assert_eq!(device.erase_count(at(0, 0)), Some(0));
        }
    });
}

const BLOCK_BYTES: u64 = 16 * PAGE as u64;

/// A host whose file system has no direct I/O: a crash takes what no durable write or sync has covered.
fn page_cache(seed: u64) -> (World, HostId) {
    let world = World::new(seed);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    world.set_direct_bytes(host, 0);
    world.set_crash_fate(host, Some(CrashFate::Lost));
    (world, host)
}

async fn in_page_cache() -> Device {
    let device = Device::create(&DeviceSpec::Path("/drive".into()), 8 * BLOCK_BYTES).await.expect("file");
    device.with_geometry(geometry(1)).expect("shape")
}

fn lose(world: &World, host: HostId, block: u64) {
    let range = Some(block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES);
    let op = FaultOp::WriteBack;
    world.add_fault(
        host,
        FileFault { path: None, op, range, skip: 0, times: 1, errno: if block == 1 { ENOSPC } else { EIO } },
    );
}

/// The system tells one of those who wait at that time, not the one whose pages it was.
#[test]
fn what_the_page_cache_lost_is_never_called_durable() {
    for seed in 1..20 {
        for lost in 0..3 {
            let (world, host) = page_cache(seed);
            let inner = world.clone();
            let answers = world.block_on(host, async move {
                let device = in_page_cache().await;
                lose(&inner, host, lost);
                let mut tasks = Vec::new();
                for block in 0..3 {
                    let device = device.clone();
                    tasks.push(spawn(async move {
                        let data = pages(u64::from(block), 4);
                        device.program(at(0, block), 0, data, WriteSync::Durable).await
                    }));
                }
                let mut answers = Vec::new();
                for task in tasks {
                    answers.push(task.await.expect("done"));
                }
                let later = device.program(at(0, 5), 0, pages(5, 1), WriteSync::Durable).await;
                (answers, [later, device.sync().await])
            });
            let (answers, later) = answers.unwrap_or_else(|halt| panic!("seed {seed}: {halt}"));
            world.crash(host);
            for (block, answer) in answers.iter().enumerate() {
                let data = pages(block as u64, 4);
                let found =
                    world.peek_file(host, Path::new("/drive"), block as u64 * BLOCK_BYTES, data.len());
                assert!(
                    answer.is_err() || found == data,
                    "seed {seed}: block {block} of {answers:?} is gone"
                );
            }
            let told = |answer: &&Result<(), FlashError>| matches!(answer, Err(FlashError::Io { .. }));
            assert!(answers.iter().any(|answer| told(&answer)), "seed {seed}: {answers:?}");
            // Who knows what else was lost: nothing is durable any more.
            assert!(later.iter().all(|answer| told(&answer)), "seed {seed}: {later:?}");
            // Opened anew, it goes on.
            world.restart(host);
            let done = world.block_on(host, async move {
                let device = in_page_cache().await;
                device.program(at(0, 0), 0, pages(9, 1), WriteSync::Durable).await.expect("program");
                device.sync().await.expect("sync");
            });
            done.unwrap_or_else(|halt| panic!("seed {seed}: {halt}"));
        }
    }
}

#[test]
fn a_sync_after_one_that_failed_does_not_cover_what_was_lost_then() {
    let (world, host) = page_cache(1);
    let inner = world.clone();
    let done = world.block_on(host, async move {
        let device = in_page_cache().await;
        device.program(at(0, 0), 0, pages(1, 1), WriteSync::Cached).await.expect("program");
        lose(&inner, host, 0);
        for _ in 0..2 {
            let failed = device.sync().await;
            assert!(matches!(failed, Err(FlashError::Io { .. })), "{failed:?}");
        }
    });
    done.expect("the world goes on");
}

#[test]
fn what_a_sync_is_told_counts_though_nobody_waits_for_it_any_more() {
    let (world, host) = page_cache(1);
    let inner = world.clone();
    let done = world.block_on(host, async move {
        let device = in_page_cache().await;
        device.program(at(0, 0), 0, pages(1, 1), WriteSync::Cached).await.expect("program");
        lose(&inner, host, 0);
        let syncing = device.clone();
        let task = spawn(async move { syncing.sync().await });
        yield_now().await;
        yield_now().await;
        task.abort();
        let failed = device.sync().await;
        assert!(matches!(failed, Err(FlashError::Io { .. })), "{failed:?}");
    });
    done.expect("the world goes on");
}

#[test]
fn a_write_that_finds_no_room_in_the_page_cache_is_tried_again() {
    let (world, host) = page_cache(1);
    let inner = world.clone();
    let done = world.block_on(host, async move {
        let device = in_page_cache().await;
        device.program(at(0, 0), 0, pages(1, 1), WriteSync::Cached).await.expect("program");
        inner.set_capacity(host, Some(PAGE as u64));
        let full = device.program(at(0, 1), 0, pages(2, 2), WriteSync::Durable).await;
        assert!(matches!(full, Err(FlashError::NoSpace { .. })), "{full:?}");
        inner.set_capacity(host, None);
        device.program(at(0, 1), 0, pages(2, 2), WriteSync::Durable).await.expect("once there is room");
        device.sync().await.expect("sync");
    });
    done.expect("the world goes on");
    world.crash(host);
    for (block, data) in [(0, pages(1, 1)), (1, pages(2, 2))] {
        assert_eq!(world.peek_file(host, Path::new("/drive"), block * BLOCK_BYTES, data.len()), data);
    }
}
