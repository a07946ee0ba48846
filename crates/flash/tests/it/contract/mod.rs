//! The device contract, one suite on every backend and on both drivers (`backends.rs` has the list).

mod backends;
mod faults;
mod timing;
mod wear;
mod zoned;

use std::sync::Arc;

use backends::on_all;

use bytes::Bytes;
use pumice_base::rng::Rng;
use pumice_flash::{Access, BlockAddr, Device, DeviceSpec, Emulated, FlashError, Geometry};
use pumice_reactor::sim::{HostOptions, World};
use pumice_reactor::{IoBuf, WriteSync, block_on};

const PAGE: usize = 4096;

fn geometry(channels: u16) -> Geometry {
    Geometry {
        channels,
        dies_per_channel: 1,
        planes_per_die: 1,
        dies_per_block: 1,
        blocks_per_channel: 8,
        pages_per_block: 16,
        page_bytes: PAGE as u32,
        read_bytes: PAGE as u32,
        oob_bytes: 0,
    }
}

async fn open(spec: &str) -> Device {
    Device::open(&spec.parse().expect("spec"), Access::ReadWrite).await.expect("device")
}

async fn emulated(spec: &str) -> (Device, Arc<Emulated>) {
    let device = open(spec).await;
    let Device::Emulated(emulated) = &device else { panic!("not emulated") };
    let emulated = emulated.clone();
    (device, emulated)
}

fn pages(seed: u64, count: usize) -> Bytes {
    let mut buf = IoBuf::zeroed(count * PAGE);
    Rng::from_seed(seed).fill(&mut buf);
    buf.freeze()
}

fn at(channel: u16, block: u32) -> BlockAddr {
    BlockAddr { channel, block }
}

async fn read(device: &Device, block: BlockAddr, offset: u32, len: usize) -> Result<Vec<u8>, FlashError> {
    let (result, buf) = device.read(block, offset, IoBuf::zeroed(len)).await;
    result.map(|()| buf.to_vec())
}

#[test]
fn pages_read_as_they_were_programmed() {
    on_all(async |name: &'static str, device: Device| {
        let mut written = Vec::new();
        for channel in 0..2 {
            for block in [0, 3, 7] {
                device.erase(at(channel, block)).await.expect(name);
                let mut page = 0;
                for (step, count) in [1usize, 3, 12].into_iter().enumerate() {
                    let data = pages(u64::from(channel) * 100 + u64::from(block) * 10 + step as u64, count);
                    let sync = if step == 1 { WriteSync::Cached } else { WriteSync::Durable };
                    device.program(at(channel, block), page, data.clone(), sync).await.expect(name);
                    written.push((at(channel, block), page * PAGE as u32, data));
                    page += count as u32;
                }
            }
        }
        device.sync().await.expect(name);
        for (block, offset, data) in &written {
            assert_eq!(read(&device, *block, *offset, data.len()).await.expect(name), &data[..], "{name}");
        }
    });
}

#[test]
fn what_breaks_the_contract_is_refused_and_changes_nothing() {
    on_all(async |name: &'static str, device: Device| {
        let block = at(1, 2);
        device.erase(block).await.expect(name);
        let first = pages(1, 2);
        device.program(block, 0, first.clone(), WriteSync::Durable).await.expect(name);
        let again = device.program(block, 1, pages(2, 1), WriteSync::Durable).await;
        assert!(matches!(again, Err(FlashError::AlreadyProgrammed { page: 1, .. })), "{name}: {again:?}");
        let skipped = device.program(block, 3, pages(3, 1), WriteSync::Durable).await;
        assert!(
            matches!(skipped, Err(FlashError::OutOfOrder { page: 3, expected: 2, .. })),
            "{name}: {skipped:?}"
        );
        let long = device.program(block, 2, pages(4, 15), WriteSync::Durable).await;
        assert!(matches!(long, Err(FlashError::Oversize { .. })), "{name}: {long:?}");
        let odd = device.program(block, 2, pages(5, 1).slice(..512), WriteSync::Durable).await;
        assert!(matches!(odd, Err(FlashError::Unaligned { .. })), "{name}: {odd:?}");
        let nowhere = device.program(at(2, 0), 0, pages(6, 1), WriteSync::Durable).await;
        assert!(matches!(nowhere, Err(FlashError::Oversize { .. })), "{name}: {nowhere:?}");
        let beyond = device.erase(at(0, 8)).await;
        assert!(matches!(beyond, Err(FlashError::Oversize { .. })), "{name}: {beyond:?}");
        let askew = read(&device, block, 100, PAGE).await;
        assert!(matches!(askew, Err(FlashError::Unaligned { .. })), "{name}: {askew:?}");
        let past = read(&device, block, 15 * PAGE as u32, 2 * PAGE).await;
        assert!(matches!(past, Err(FlashError::Oversize { .. })), "{name}: {past:?}");
        let unwritten = read(&device, block, 2 * PAGE as u32, PAGE).await;
        assert!(
            matches!(unwritten, Err(FlashError::ReadPastWritePointer { written_bytes: 8192, .. })),
            "{name}: {unwritten:?}"
        );
        let half = read(&device, block, PAGE as u32, 2 * PAGE).await;
        assert!(matches!(half, Err(FlashError::ReadPastWritePointer { .. })), "{name}: {half:?}");
        let beside = device.program_with_oob(block, 2, pages(8, 1), pages(8, 1), WriteSync::Durable).await;
        assert!(matches!(beside, Err(FlashError::OutOfBand { .. })), "{name}: {beside:?}");
        assert_eq!(device.write_pointer(block), Some(2), "{name}");
        assert_eq!(read(&device, block, 0, 2 * PAGE).await.expect(name), &first[..], "{name}");
        device.program(block, 2, pages(7, 1), WriteSync::Durable).await.expect(name);
    });
}

#[test]
fn an_erased_block_is_programmed_from_its_start_again() {
    on_all(async |name: &'static str, device: Device| {
        let (block, other) = (at(0, 1), at(1, 1));
        for block in [block, other] {
            device.erase(block).await.expect(name);
            device.program(block, 0, pages(1, 16), WriteSync::Durable).await.expect(name);
        }
        device.erase(block).await.expect(name);
        device.give_back(block).await.expect(name);
        device.prewrite(block).await.expect(name);
        let data = pages(2, 16);
        device.program(block, 0, data.clone(), WriteSync::Durable).await.expect(name);
        assert_eq!(read(&device, block, 0, 16 * PAGE).await.expect(name), &data[..], "{name}");
        assert_eq!(read(&device, other, 0, 16 * PAGE).await.expect(name), &pages(1, 16)[..], "{name}");
    });
}

#[test]
fn zeros_go_behind_the_write_pointer_and_leave_it_where_it_is() {
    on_all(async |name: &'static str, device: Device| {
        let block = at(0, 1);
        device.erase(block).await.expect(name);
        device.program(block, 0, pages(1, 16), WriteSync::Durable).await.expect(name);
        device.erase(block).await.expect(name);
        let data = pages(2, 2);
        device.program(block, 0, data.clone(), WriteSync::Durable).await.expect(name);
        device.zero(block, 2 * PAGE as u32..5 * PAGE as u32).await.expect(name);
        if device.erase_keeps_bytes() {
            for (range, what) in [
                (PAGE..3 * PAGE, "programmed"),
                (2 * PAGE..3 * PAGE + 1, "unaligned"),
                (15 * PAGE..17 * PAGE, "oversize"),
            ] {
                let refused = device.zero(block, range.start as u32..range.end as u32).await;
                let is_right = match what {
                    "programmed" => matches!(refused, Err(FlashError::AlreadyProgrammed { page: 1, .. })),
                    "unaligned" => matches!(refused, Err(FlashError::Unaligned { .. })),
                    _ => matches!(refused, Err(FlashError::Oversize { .. })),
                };
                assert!(is_right, "{name}, {what}: {refused:?}");
            }
        }
        assert_eq!(device.write_pointer(block), Some(2), "{name}");
        device.program(block, 2, pages(3, 1), WriteSync::Durable).await.expect(name);
        assert_eq!(read(&device, block, 0, 2 * PAGE).await.expect(name), &data[..], "{name}");
    });
}

#[test]
fn a_file_is_locked_against_a_second_opener_but_not_against_a_reader() {
    block_on(async {
        let dir = tempfile::tempdir().expect("dir");
        let spec = DeviceSpec::Path(dir.path().join("drive"));
        let device = Device::create(&spec, 16 << 20).await.expect("file");
        let second = Device::open(&spec, Access::ReadWrite).await.err();
        assert!(matches!(second, Some(FlashError::Locked { .. })), "{second:?}");
        let reader = Device::open(&spec, Access::ReadOnly).await.expect("reader");
        let refused = reader.program(at(0, 0), 0, pages(1, 1), WriteSync::Durable).await;
        assert!(matches!(refused, Err(FlashError::ReadOnly { .. })), "{refused:?}");
        assert!(matches!(reader.erase(at(0, 0)).await, Err(FlashError::ReadOnly { .. })));
        assert_eq!(device.raw_bytes(), 16 << 20);
    });
}

#[test]
fn a_truncated_file_answers_with_its_own_error() {
    block_on(async {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("drive");
        let device = Device::create(&DeviceSpec::Path(path.clone()), 1 << 20).await.expect("file");
        let shape = Geometry { blocks_per_channel: 4, ..geometry(1) };
        let device = device.with_geometry(shape).expect("shape");
        std::fs::File::options().write(true).open(&path).expect("open").set_len(100_000).expect("cut");
        let cut = read(&device, at(0, 3), 0, PAGE).await;
        assert!(matches!(cut, Err(FlashError::Truncated { .. })), "{cut:?}");
        drop(device);
        let short = Device::open(&DeviceSpec::Path(path), Access::ReadOnly).await.expect("file");
        assert!(matches!(short.with_geometry(shape), Err(FlashError::Geometry(_))));
    });
}

#[test]
fn a_device_takes_its_own_shape_whatever_direct_io_asks_for() {
    for direct_bytes in [512, 4096, 16_384] {
        let world = World::new(1);
        let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
        world.set_direct_bytes(host, direct_bytes);
        let done = world.block_on(host, async move {
            let device = Device::create(&DeviceSpec::Path("/drive".into()), 16 << 20).await.expect("file");
            let shape = device.geometry();
            assert_eq!(shape.read_bytes, direct_bytes);
            let device = device.with_geometry(shape).expect("its own shape");
            let page = shape.page_bytes as usize;
            let data = pages(1, 2 * page / PAGE);
            device.program(at(0, 1), 0, data.clone(), WriteSync::Durable).await.expect("program");
            let found = read(&device, at(0, 1), direct_bytes, page).await.expect("read");
            assert_eq!(found, data[direct_bytes as usize..][..page]);
        });
        done.unwrap_or_else(|halt| panic!("{direct_bytes} B: {halt}"));
    }
}

#[test]
fn a_power_cut_leaves_a_prefix_and_a_torn_page_and_nothing_answers_until_power_returns() {
    block_on(async {
        for seed in 1..30 {
            let (device, emulated) = emulated(&format!("emu:tiny,blocks=8,pages=16,seed={seed}")).await;
            let block = at(0, 0);
            device.program(block, 0, pages(1, 2), WriteSync::Durable).await.expect("program");
            device.program(block, 2, pages(2, 2), WriteSync::Cached).await.expect("program");
            emulated.cut_power_at(1);
            let cut = device.program(block, 4, pages(3, 6), WriteSync::Durable).await;
            assert!(matches!(cut, Err(FlashError::Gone { .. })), "{cut:?}");
            assert!(matches!(read(&device, block, 0, PAGE).await, Err(FlashError::Gone { .. })));
            emulated.power_on();
            assert_eq!(read(&device, block, 0, 2 * PAGE).await.expect("durable"), &pages(1, 2)[..]);
            let expected = [&pages(1, 2)[..], &pages(2, 2)[..], &pages(3, 6)[..]].concat();
            let next = emulated.write_pointer(block).expect("pointer");
            let mut torn = 0;
            for page in 2..next as usize {
                match read(&device, block, (page * PAGE) as u32, PAGE).await {
                    Ok(bytes) => assert_eq!(bytes, expected[page * PAGE..(page + 1) * PAGE]),
                    Err(FlashError::Uncorrectable { .. }) => torn += 1,
                    Err(other) => panic!("{other}"),
                }
            }
            assert!(torn <= 1, "{torn} torn pages");
        }
    });
}

#[test]
fn an_emulated_device_in_a_file_is_found_as_it_was_left() {
    block_on(async {
        let dir = tempfile::tempdir().expect("dir");
        let spec = format!("emu:tiny,path={}", dir.path().join("nand").display());
        let device = open(&spec).await;
        device.erase(at(1, 5)).await.expect("erase");
        device.program(at(1, 5), 0, pages(9, 3), WriteSync::Durable).await.expect("program");
        drop(device);
        let (device, emulated) = emulated(&spec).await;
        assert_eq!(emulated.write_pointer(at(1, 5)), Some(3));
        assert_eq!(emulated.erase_count(at(1, 5)), 1);
        assert_eq!(read(&device, at(1, 5), 0, 3 * PAGE).await.expect("read"), &pages(9, 3)[..]);
    });
}

#[test]
fn device_names_read_back_as_they_were_written() {
    for name in [
        "/dev/sdx",
        "emu:tiny",
        "emu:sdf,channels=4,blocks=10",
        "emu:sdf,wear=on,ecc=off,data=drop,rated=100",
        "emu:bluedbm,dies=4,link_read=100,oob=0",
        "emu:lightstore",
        "emu:x25v,planes=1",
        "emu:tlc,timing=off,program_failure=0.001,seed=9,path=/tmp/x",
        "emu:small,page=8KiB,pages=64",
    ] {
        let spec: DeviceSpec = name.parse().expect(name);
        assert_eq!(spec.to_string().parse::<DeviceSpec>().expect(name), spec, "{name}");
    }
    for (wrong, reason) in [
        ("emu:none", "presets are"),
        ("emu:tiny,colour=red", "options are"),
        ("emu:tiny,pages", "option=value"),
        ("emu:tiny,page=100", "power of two"),
        ("emu:tiny,planes=3", "each plane"),
        ("emu:sdf,dies=3", "divide"),
        ("emu:sdf,read_us=-1", "0 or more"),
        ("emu:sdf,wear=maybe", "on or off"),
        ("", "path"),
    ] {
        let error = wrong.parse::<DeviceSpec>().expect_err(wrong).to_string();
        assert!(error.contains(reason), "{wrong}: {error}");
    }
}
