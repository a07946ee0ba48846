//! What media answer when they fail: each failure its own error, on emulated flash and on files.

use std::path::Path;

use pumice_flash::{Access, Device, DeviceSpec, Fault, FlashError, Operation};
use pumice_reactor::sim::{FaultOp, FileFault, HostOptions, World};
use pumice_reactor::{WriteSync, block_on};

use super::{PAGE, at, emulated, geometry, pages, read};

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
    const EIO: i32 = 5;
    const ENODEV: i32 = 19;
    const ENOSPC: i32 = 28;
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
}

/// A commit that a full file system refuses is tried again; the next one may set out meanwhile.
#[test]
fn a_file_takes_what_comes_behind_a_program_that_failed_and_then_that_program() {
    const ENOSPC: i32 = 28;
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
