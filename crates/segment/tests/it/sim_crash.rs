//! Crashes of a simulated host whose drive is a file: unsynced writes lost, kept in part, torn at the sector and
//! reordered, at every write and sync; and kills that lose nothing but the process. The same on a zoned drive, where
//! resets, closes and finishes of zones are cut too.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use crate::common::mini::{History, Mini};
use crate::common::{self, format_options, in_windows};
use pumice_base::rng::Rng;
use pumice_flash::{Access, Device, DeviceSpec};
use pumice_reactor::sim::{CrashFate, CutMode, Halt, HostOptions, PowerCut, World, ZonedModel};
use pumice_reactor::sleep;
use pumice_segment::{Durability, FormatOptions, Heap, HeapOptions};

const SEGMENT_BYTES: u32 = 64 << 10;
const SEGMENTS: u64 = 28;

const PATH: &str = "/drive";
/// As strict as a drive can be that the heap still takes.
const ZONES: ZonedModel = ZonedModel {
    zones: SEGMENTS as u32,
    conventional: 0,
    zone_bytes: 128 << 10,
    capacity_bytes: SEGMENT_BYTES as u64,
    open_max: 3,
    active_max: 7,
};

/// What the drive is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Media {
    File,
    Zoned,
}

fn spec() -> DeviceSpec {
    PATH.parse().expect("spec")
}

fn small(durability: Durability) -> HeapOptions {
    HeapOptions { commit_max_bytes: 16 << 10, reserve_segments: Some(4), durability, ..in_windows() }
}

async fn life(
    history: Rc<RefCell<History>>,
    durability: Durability,
    seed: u64,
    steps: u32,
) -> Result<(), String> {
    let device = Device::open(&spec(), Access::ReadWrite).await.map_err(|error| error.to_string())?;
    let mut mini = Mini::open(&device, small(durability)).await?;
    let so_far = history.borrow().clone();
    mini.verify(&so_far).await?;
    let mut rng = Rng::from_seed(seed);
    for _ in 0..steps {
        let acknowledged = history.borrow().acknowledged;
        mini.step_shared(&history, &mut rng, 24, 6000).await?;
        if durability != Durability::Always {
            history.borrow_mut().acknowledged = acknowledged;
            if rng.chance(0.1) {
                mini.heap.flush().await.map_err(|error| error.to_string())?;
                history.borrow_mut().acknowledged = mini.batches;
            }
        }
    }
    if rng.chance(0.5) {
        mini.checkpoint().await?;
        mini.heap.close().await.map_err(|error| error.to_string())?;
        history.borrow_mut().acknowledged = mini.batches;
    }
    Ok(())
}

/// Whether the first cut was reached.
fn crash_at(seed: u64, cut: u64, media: Media, durability: Durability) -> Result<bool, String> {
    let world = World::new(seed);
    let host = world.add_host(HostOptions { quirks: true, ..HostOptions::default() });
    if media == Media::Zoned {
        world.add_zoned_device(host, Path::new(PATH), ZONES);
    }
    let formatted = world.block_on(host, async {
        let device = Device::create(&spec(), u64::from(SEGMENT_BYTES) * SEGMENTS).await.expect("file");
        let options = FormatOptions { segment_bytes: SEGMENT_BYTES, ..format_options() };
        Heap::format(&device, &options).await.expect("format");
    });
    formatted.map_err(|halt| halt.to_string())?;
    let history = Rc::new(RefCell::new(History::default()));
    let mut rng = Rng::from_seed(seed);
    let mut at = cut;
    let mut reached = false;
    for number in 0..4 {
        let mode = [CutMode::Before, CutMode::Torn, CutMode::After][rng.below(3) as usize];
        let at_mutation = world.counters(host).mutations + at;
        world.cut_power(host, PowerCut { at: at_mutation, mode, fate: None });
        let ended = world.block_on(host, life(history.clone(), durability, rng.next_u64(), 100));
        match ended {
            Ok(result) => {
                result.map_err(|error| format!("life {number}: {error}"))?;
                if rng.chance(0.5) { world.kill(host) } else { world.crash(host) }
            }
            Err(Halt::HostDown) => reached |= number == 0,
            Err(halt) => return Err(format!("life {number}: {halt}")),
        }
        world.restart(host);
        at = rng.below(60);
    }
    let far = world.counters(host).mutations + 1_000_000;
    world.cut_power(host, PowerCut { at: far, mode: CutMode::Before, fate: None });
    match world.block_on(host, life(history, durability, 0, 0)) {
        Ok(result) => result.map(|()| reached),
        Err(halt) => Err(halt.to_string()),
    }
}

fn crash_everywhere(every: u64, media: Media, durability: Durability) -> u64 {
    let variable = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let seed = variable("PUMICE_SEED").unwrap_or(1);
    let only = variable("PUMICE_CUT");
    let mut cut = only.unwrap_or(0);
    loop {
        match crash_at(seed * 1_000_003 + cut, cut, media, durability) {
            Ok(reached) if reached && only.is_none() => cut += every,
            Ok(_) => return cut,
            Err(error) => panic!(
                "cut {cut}, {media:?}, {durability}: {error}\nreplay: PUMICE_SEED={seed} PUMICE_CUT={cut} cargo test -p \
                 pumice-segment --test it sim_crash::"
            ),
        }
    }
}

#[test]
fn a_crash_at_any_write_loses_nothing_that_was_acknowledged() {
    let cuts = crash_everywhere(1, Media::File, Durability::Always);
    assert!(cuts > 80 || std::env::var("PUMICE_CUT").is_ok(), "only {cuts} operations were cut");
}

#[test]
fn a_crash_in_the_relaxed_modes_leaves_a_prefix_that_holds_all_that_was_flushed() {
    crash_everywhere(3, Media::File, Durability::EverySecond);
    crash_everywhere(7, Media::File, Durability::None);
}

#[test]
fn a_crash_of_a_zoned_drive_at_any_write_or_reset_loses_nothing_that_was_acknowledged() {
    let cuts = crash_everywhere(1, Media::Zoned, Durability::Always);
    assert!(cuts > 80 || std::env::var("PUMICE_CUT").is_ok(), "only {cuts} operations were cut");
    crash_everywhere(5, Media::Zoned, Durability::EverySecond);
}

#[test]
fn a_zoned_drive_that_keeps_too_few_zones_active_is_refused() {
    let world = World::new(1);
    let host = world.add_host(HostOptions::default());
    world.add_zoned_device(host, Path::new(PATH), ZonedModel { active_max: 6, ..ZONES });
    let refused = world.block_on(host, async {
        let device = Device::open(&spec(), Access::ReadWrite).await.expect("drive");
        Heap::format(&device, &format_options()).await
    });
    let error = refused.expect("the host is up").expect_err("six are too few").to_string();
    assert!(error.contains("6 partly written zones") && error.contains("at least 7"), "{error}");
}

/// Writes come without a pause, so that a frame is always forming: the sync must come all the same.
#[test]
fn everysec_loses_at_most_two_seconds_of_steady_writes() {
    const EVERY: Duration = Duration::from_micros(20);
    const WRITES: u64 = 200_000;
    let world = World::new(5);
    let host = world.add_host(HostOptions::default());
    world.set_crash_fate(host, Some(CrashFate::Lost));
    let written = world.block_on(host, async {
        let device = Device::create(&spec(), 64 << 20).await.expect("file");
        Heap::format(&device, &FormatOptions { segment_bytes: 1 << 20, ..format_options() })
            .await
            .expect("format");
        let options = HeapOptions { durability: Durability::EverySecond, ..in_windows() };
        let heap = Heap::open(device, options, &common::no_progress).await.expect("open").heap;
        for number in 0..WRITES {
            let payload = number.to_le_bytes();
            while common::append(&heap, 1, &payload).is_err() {
                heap.room().await;
            }
            sleep(EVERY).await;
        }
    });
    written.expect("the host is up");
    world.crash(host);
    world.restart(host);
    let newest = world.block_on(host, async {
        let device = Device::open(&spec(), Access::ReadWrite).await.expect("file");
        let opened = Heap::open(device, in_windows(), &common::no_progress).await.expect("open");
        let (mut replay, mut newest) = (opened.replay, None);
        while let Some(batch) = replay.next().await.expect("replay") {
            assert!(batch.damage.is_empty(), "{:?}", batch.damage);
            for record in batch.records {
                let number = u64::from_le_bytes(record.payload[..].try_into().expect("eight bytes"));
                assert_eq!(number, newest.map_or(0, |newest| newest + 1), "the order is kept");
                newest = Some(number);
            }
        }
        newest.expect("something survived")
    });
    let lost = WRITES - 1 - newest.expect("the host is up");
    assert!(EVERY * lost as u32 <= Duration::from_secs(2), "{lost} writes of {EVERY:?} each are lost");
}

/// A process that dies leaves in the host's cache what it wrote and did not sync. The next one finds it, and calls it durable in the
/// metadata log.
#[test]
fn what_a_recovery_found_in_a_cache_outlives_the_next_power_failure() {
    let world = World::new(6);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    world.set_crash_fate(host, Some(CrashFate::Lost));
    let relaxed = || HeapOptions { durability: Durability::EverySecond, ..in_windows() };
    let formatted = world.block_on(host, async move {
        let device = Device::create(&spec(), u64::from(SEGMENT_BYTES) * SEGMENTS).await.expect("file");
        let format = FormatOptions { segment_bytes: SEGMENT_BYTES, ..format_options() };
        Heap::format(&device, &format).await.expect("format");
        let heap = Heap::open(device, relaxed(), &common::no_progress).await.expect("open").heap;
        for number in 0..3u8 {
            common::append(&heap, 1, &[number; 500]).expect("append");
            heap.write_out().await.expect("written");
        }
    });
    formatted.expect("the host is up");
    for has_power in [true, false] {
        if has_power {
            world.kill(host)
        } else {
            world.crash(host)
        }
        world.restart(host);
        let found = world.block_on(host, async move {
            let device = Device::open(&spec(), Access::ReadWrite).await.expect("file");
            let mut opened = Heap::open(device, relaxed(), &common::no_progress).await.expect("open");
            let mut found = Vec::new();
            while let Some(batch) = opened.replay.next().await.expect("replay") {
                assert!(batch.damage.is_empty(), "{:?}", batch.damage);
                found.extend(batch.records.iter().map(|record| record.payload[0]));
            }
            found
        });
        assert_eq!(found.expect("the host is up"), [0, 1, 2], "the power was on: {has_power}");
    }
}
