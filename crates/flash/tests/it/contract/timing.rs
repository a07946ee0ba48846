//! The emulated device's timing, in virtual time: what queues behind what, and for how long.

use pumice_flash::{BlockAddr, Device};
use pumice_reactor::sim::{HostOptions, World};
use pumice_reactor::{IoBuf, WriteSync, now, spawn};

use super::{PAGE, at, open, pages, read};

/// Virtual time that turns of the executor may take or hide, in µs.
const SLACK_US: f64 = 5.0;
/// Two channels of two dies; blocks on one die each, in turns. 4 KiB on the bus take 10 µs.
const RAW: &str = "emu:tiny,timing=on,dies=2,read_us=50,program_us=500,erase_us=3000,bus=409.6";

fn in_virtual_time<F: Future<Output = ()> + 'static>(run: impl FnOnce() -> F + 'static) {
    let world = World::new(1);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    world.block_on(host, async move { run().await }).expect("the world goes on");
}

fn is_about(measured_us: f64, expected_us: f64, what: &str) {
    assert!(
        (expected_us - SLACK_US..expected_us + SLACK_US).contains(&measured_us),
        "{what}: {measured_us} µs, expected {expected_us}"
    );
}

async fn timed_us<T>(run: impl Future<Output = T>) -> f64 {
    let start = now();
    run.await;
    start.elapsed().as_nanos() as f64 / 1000.0
}

async fn read_us(device: &Device, block: BlockAddr) -> f64 {
    timed_us(async { read(device, block, 0, PAGE).await.expect("read") }).await
}

async fn program(device: &Device, block: BlockAddr, count: usize) {
    device.program(block, 0, pages(1, count), WriteSync::Durable).await.expect("program");
}

#[test]
fn one_operation_takes_die_and_bus() {
    in_virtual_time(async || {
        let device = open(RAW).await;
        is_about(timed_us(program(&device, at(0, 0), 1)).await, 510.0, "program");
        is_about(timed_us(program(&device, at(0, 2), 4)).await, 4.0 * 510.0, "four pages on one die");
        is_about(read_us(&device, at(0, 0)).await, 60.0, "read");
        is_about(timed_us(device.erase(at(0, 0))).await, 3000.0, "erase");
    });
}

#[test]
fn an_erase_leaves_other_dies_and_channels_undisturbed() {
    in_virtual_time(async || {
        let device = open(RAW).await;
        for block in [at(0, 1), at(0, 2), at(1, 0)] {
            program(&device, block, 1).await;
        }
        let erased = device.clone();
        let erase = spawn(async move { timed_us(erased.erase(at(0, 0))).await });
        pumice_reactor::yield_now().await;
        is_about(read_us(&device, at(1, 0)).await, 60.0, "another channel");
        is_about(read_us(&device, at(0, 1)).await, 60.0, "another die");
        // 120 µs have passed since the erase began, which the same die ends first.
        is_about(read_us(&device, at(0, 2)).await, 3000.0 - 120.0 + 60.0, "the same die");
        is_about(erase.await.expect("erase"), 3000.0, "the erase");
    });
}

#[test]
fn dies_overlap_and_share_the_bus() {
    in_virtual_time(async || {
        // The bus takes 40 µs a page: one sense is hidden behind the other die's transfer.
        let device =
            open("emu:tiny,timing=on,dies=2,read_us=50,program_us=500,erase_us=3000,bus=102.4").await;
        for block in [at(0, 0), at(0, 1)] {
            program(&device, block, 1).await;
        }
        let other = device.clone();
        let first = spawn(async move { read_us(&other, at(0, 0)).await });
        pumice_reactor::yield_now().await;
        is_about(read_us(&device, at(0, 1)).await, 130.0, "the second waits for the bus");
        is_about(first.await.expect("read"), 90.0, "the first");
        let other = device.clone();
        let first = spawn(async move { timed_us(program(&other, at(0, 2), 1)).await });
        pumice_reactor::yield_now().await;
        is_about(timed_us(program(&device, at(0, 3), 1)).await, 580.0, "the second programs 40 µs later");
        is_about(first.await.expect("program"), 540.0, "the first");
    });
}

#[test]
fn planes_work_together_and_a_striped_block_uses_all_its_dies() {
    in_virtual_time(async || {
        let device = open(
            "emu:tiny,timing=on,dies=2,planes=2,stripe=2,read_us=50,program_us=500,erase_us=3000,bus=409.6",
        )
        .await;
        // Two pages to each die: the second die starts when the bus is free.
        is_about(timed_us(program(&device, at(0, 0), 4)).await, 20.0 + 20.0 + 500.0, "four planes");
        let all = timed_us(async { read(&device, at(0, 0), 0, 4 * PAGE).await.expect("read") }).await;
        is_about(all, 50.0 + 4.0 * 10.0, "both dies sense at once");
        is_about(timed_us(device.erase(at(0, 0))).await, 3000.0, "an erase takes the dies together");
    });
}

#[test]
fn the_host_link_caps_what_all_channels_can_do() {
    in_virtual_time(async || {
        let device = open(&format!("{RAW},link_read=40.96,link_write=40.96")).await;
        // 100 µs a page over the link, after or before the die's own time.
        is_about(timed_us(program(&device, at(0, 0), 1)).await, 100.0 + 510.0, "program");
        is_about(read_us(&device, at(0, 0)).await, 60.0 + 100.0, "read");
        for channel in [0, 1] {
            program(&device, at(channel, 1), 8).await;
        }
        let other = device.clone();
        let first = spawn(async move {
            timed_us(async { read(&other, at(0, 1), 0, 8 * PAGE).await.expect("read") }).await
        });
        let second = timed_us(async { read(&device, at(1, 1), 0, 8 * PAGE).await.expect("read") }).await;
        let last = second.max(first.await.expect("read"));
        is_about(last, 60.0 + 16.0 * 100.0, "16 pages over the link");
    });
}

#[test]
fn a_small_read_waits_for_one_page_of_a_long_program_not_for_all() {
    in_virtual_time(async || {
        let device = open(RAW).await;
        program(&device, at(0, 0), 1).await;
        let other = device.clone();
        let long = spawn(async move { timed_us(program(&other, at(0, 2), 32)).await });
        pumice_reactor::yield_now().await;
        is_about(read_us(&device, at(0, 0)).await, 510.0 + 60.0, "the read");
        is_about(long.await.expect("program"), 32.0 * 510.0 + 60.0, "the program");
    });
}

#[test]
fn programs_of_one_block_go_one_after_the_other_and_leave_no_gap() {
    in_virtual_time(async || {
        // Four pages a row over two dies of two planes; a die's cycle is 20 + 500 µs.
        let spec =
            "emu:tiny,timing=on,dies=2,planes=2,stripe=2,read_us=50,program_us=500,erase_us=3000,bus=409.6";
        let device = open(spec).await;
        let other = device.clone();
        let first = spawn(async move { timed_us(program(&other, at(0, 0), 16)).await });
        pumice_reactor::yield_now().await;
        let second = timed_us(async {
            device.program(at(0, 0), 16, pages(2, 16), WriteSync::Durable).await.expect("program");
        });
        is_about(second.await, 8.0 * 520.0 + 20.0, "the second");
        is_about(first.await.expect("program"), 4.0 * 520.0 + 20.0, "the first");
    });
}

#[test]
fn a_caller_that_goes_away_leaves_the_model_whole() {
    in_virtual_time(async || {
        let device = open(RAW).await;
        program(&device, at(0, 0), 1).await;
        let limit = std::time::Duration::from_micros(10);
        let (gone, buf) = (pumice_reactor::timeout(limit, device.erase(at(0, 2))).await, IoBuf::zeroed(PAGE));
        assert!(gone.is_err());
        let waited = timed_us(async { device.read(at(0, 0), 0, buf).await.0.expect("read") }).await;
        is_about(waited, 3000.0 - 10.0 + 60.0, "the erase goes on");
        is_about(read_us(&device, at(0, 0)).await, 60.0, "and ends");
    });
}
