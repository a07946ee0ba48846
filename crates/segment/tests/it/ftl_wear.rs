//! Raw flash as it wears: bit errors below, at and above what the code corrects, the patrol, and a drive used to its end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::raw::{in_virtual_time, nand, segment};
use pumice_base::rng::Rng;
use pumice_flash::{Access, Device, DeviceSpec, Emulated, FlashError, Wear};
use pumice_reactor::{IoBuf, now, spawn, yield_now};
use pumice_segment::ftl::{Place, RawError, RawFlash, RawFormat, RawOptions, ScrubOptions};

const FORMAT: RawFormat = RawFormat { drive_id: [7; 16], force: false };
const DAY: Duration = Duration::from_secs(86_400);
const UNPACED: ScrubOptions = ScrubOptions { bytes_per_second: u64::MAX, refresh: true };

async fn formatted(spec: &str) -> (RawFlash, Arc<Emulated>) {
    let (device, nand) = nand(spec).await;
    let raw = RawFlash::format(device, FORMAT, RawOptions { erased_ahead: 1, ..RawOptions::default() }).await;
    (raw.unwrap_or_else(|error| panic!("{error}")), nand)
}

#[test]
fn bit_errors_are_corrected_up_to_t_and_told_beyond() {
    in_virtual_time(async || {
        // 512-byte codewords with t = 8.
        let (raw, nand) = formatted("emu:tiny,channels=1,blocks=16,pages=8,oob=128,ecc=off").await;
        let client = raw.client();
        for (id, flips) in [(1u128, 0u32), (2, 1), (3, 6), (4, 7), (5, 8), (6, 9), (7, 16)] {
            let data = segment(&raw, id as u64);
            raw.write(&client, id, Place::ById, data.clone()).await.expect("write");
            let block = raw.place_of(id).expect("there");
            // In the third codeword of the segment's second page, which is the block's third; no bit twice.
            let mut bits: Vec<u32> = (0..4096).collect();
            Rng::from_seed(id as u64).shuffle(&mut bits);
            for bit in &bits[..flips as usize] {
                let offset = 2 * 4096 + 2 * 512 + bit / 8;
                nand.flip_bit(block, offset, (bit % 8) as u8).await.expect("flip");
            }
            let before = raw.ecc_counts();
            let (result, buf) = raw.read(&client, id, 4096, IoBuf::zeroed(8192)).await;
            let after = raw.ecc_counts();
            if flips <= 8 {
                result.unwrap_or_else(|error| panic!("{flips} bits: {error}"));
                assert!(buf[..] == data[4096..12_288], "{flips} bits");
                assert_eq!(after.corrected_bits - before.corrected_bits, u64::from(flips));
            } else {
                assert!(
                    matches!(&result, Err(RawError::Flash(FlashError::Uncorrectable { block: at, offset_bytes }))
                        if *at == block && *offset_bytes == 2 * 4096),
                    "{flips} bits: {result:?}"
                );
                assert_eq!(after.uncorrectable_pages - before.uncorrectable_pages, 1);
                // The pages beside it are whole.
                let (result, buf) = raw.read(&client, id, 8192, IoBuf::zeroed(4096)).await;
                result.expect("the next page");
                assert!(buf[..] == data[8192..12_288]);
            }
            // Near the limit is more than three quarters of it.
            assert_eq!(raw.weak().contains(&id), flips == 7 || flips == 8, "{flips} bits");
        }
    });
}

#[test]
fn the_patrol_moves_what_decays_and_goes_on_where_it_was() {
    in_virtual_time(async || {
        for ecc in ["off", "on"] {
            let spec = format!("emu:sdf,channels=2,blocks=16,pages=16,timing=off,wear=on,ecc={ecc},seed=11");
            let (raw, nand) = formatted(&spec).await;
            let device = raw.device().clone();
            let client = raw.client();
            for number in 0..raw.geometry().block_count() {
                nand.wear_out(raw.geometry().block(number), 3000);
            }
            for id in 0..12u128 {
                raw.write(&client, id, Place::ById, segment(&raw, id as u64)).await.expect("write");
            }
            raw.scrub_pass(UNPACED).await.expect("patrol");
            let fresh = raw.scrub_stats();
            assert_eq!(
                (fresh.passes, fresh.segments, fresh.refreshed, fresh.lost),
                (1, 12, 0, 0),
                "{fresh:?}"
            );
            // Years in which nobody reads; the patrol comes by every month.
            for month in 0..60 {
                nand.age(30 * DAY);
                raw.scrub_pass(UNPACED).await.unwrap_or_else(|error| panic!("month {month}: {error}"));
            }
            let stats = raw.scrub_stats();
            assert!(stats.refreshed > 12 && stats.lost == 0, "{stats:?}");
            for id in 0..12u128 {
                let (result, buf) =
                    raw.read(&client, id, 0, IoBuf::zeroed(raw.segment_bytes() as usize)).await;
                result.unwrap_or_else(|error| panic!("{id}: {error}"));
                assert!(buf[..] == segment(&raw, id as u64)[..], "{id}");
            }
            raw.close().await.expect("close");
            let opened = RawFlash::open(device, RawOptions::default(), &|_, _| ()).await.expect("open");
            assert_eq!(opened.raw.scrub_stats().passes, 61);
        }
    });
}

#[test]
fn the_patrol_keeps_its_pace_gives_way_and_resumes() {
    in_virtual_time(async || {
        let timed = "timing=on,read_us=75,program_us=1000,erase_us=9200,bus=40";
        let (device, nand) = nand(&format!("emu:tiny,channels=2,blocks=32,pages=16,oob=64,{timed}")).await;
        let raw = RawFlash::format(device.clone(), FORMAT, RawOptions::default()).await.expect("format");
        let client = raw.client();
        for id in 0..40u128 {
            raw.write(&client, id, Place::ById, segment(&raw, id as u64)).await.expect("write");
        }
        // Erases ahead of need end first.
        pumice_reactor::sleep(Duration::from_secs(1)).await;
        // 640 KiB a second: ten segments of 64 KiB.
        let options = ScrubOptions { bytes_per_second: 640 << 10, refresh: true };
        let start = now();
        let patrol = {
            let raw = raw.clone();
            spawn(async move { raw.scrub_pass(options).await })
        };
        let mut worst_us = 0;
        while start.elapsed() < Duration::from_secs(2) {
            let start = now();
            raw.read(&client, 0, 0, IoBuf::zeroed(4096)).await.0.expect("read");
            worst_us = worst_us.max(start.elapsed().as_micros());
        }
        let segments = raw.scrub_stats().segments;
        assert!((18..=21).contains(&segments), "{segments} in two seconds");
        // One chunk of the patrol at most: four pages of 75 µs and 104 µs of bus.
        assert!(worst_us < 179 + 4 * 179 + 200, "{worst_us} µs");
        raw.close().await.expect("close");
        assert!(matches!(patrol.await.expect("patrol"), Err(RawError::Closed)));
        let was = raw.scrub_stats();
        let opened = RawFlash::open(device, RawOptions::default(), &|_, _| ()).await.expect("open");
        assert!(was.next_block > 4 && was.passes == 0, "{was:?}");
        assert_eq!(opened.raw.scrub_stats().next_block, was.next_block);
        let before = nand.counts().reads;
        opened.raw.scrub_pass(UNPACED).await.expect("the rest");
        assert!(nand.counts().reads > before);
        assert_eq!(opened.raw.scrub_stats().segments, 40 - was.segments, "none twice, none left out");
        assert_eq!((opened.raw.scrub_stats().next_block, opened.raw.scrub_stats().passes), (0, 1));
    });
}

/// A drive on which nothing fails but bits: so many of them in a codeword of 512 B, of which 16 are corrected.
async fn flipping(flips: f64, ecc: &str, seed: u64) -> (RawFlash, Arc<Emulated>) {
    let spec = format!("emu:tiny,channels=2,blocks=48,pages=16,oob=256,wear=on,ecc={ecc},seed={seed}");
    let DeviceSpec::Emulated(mut spec) = spec.parse().expect("spec") else { panic!("not emulated") };
    spec.ecc.correctable_bits = 16;
    spec.wear = Wear {
        // With its parity a codeword is 4304 bits.
        fresh: flips / 4304.0,
        worn: 0.0,
        retention: 0.0,
        disturb: 0.0,
        program_failure: 0.0,
        erase_failure: 0.0,
        factory_bad: 0.0,
        ..spec.wear
    };
    let device = Device::open(&DeviceSpec::Emulated(spec), Access::ReadWrite).await.expect("device");
    let nand = Arc::clone(device.emulated().expect("emulated"));
    let raw = RawFlash::format(device, FORMAT, RawOptions { erased_ahead: 1, ..RawOptions::default() }).await;
    (raw.unwrap_or_else(|error| panic!("seed {seed}: {error}")), nand)
}

#[test]
fn no_segment_is_acknowledged_with_a_weak_or_lost_page_behind_a_first_one_that_reads_well() {
    in_virtual_time(async || {
        for ecc in ["off", "on"] {
            for seed in 1..=4 {
                // Two blocks in five begin with a page below half. Of these nearly half have weak pages, one in a hundred lost
                // ones. One in four thousand begins with a page at a quarter or below, which speaks for the others: none here.
                let (raw, _) = flipping(5.5, ecc, seed).await;
                let client = raw.client();
                let mut written = 0;
                for id in 0..64u128 {
                    match raw.write(&client, id, Place::ById, segment(&raw, id as u64)).await {
                        Ok(_) => written += 1,
                        Err(RawError::Full { .. } | RawError::Flash(FlashError::ProgramFailed { .. })) => {
                            continue;
                        }
                        Err(error) => panic!("ecc={ecc}, seed {seed}: {error}"),
                    }
                    let buf = IoBuf::zeroed(raw.segment_bytes() as usize);
                    let (result, buf) = raw.read(&client, id, 0, buf).await;
                    result.unwrap_or_else(|error| panic!("ecc={ecc}, seed {seed}: read {id}: {error}"));
                    assert!(buf[..] == segment(&raw, id as u64)[..], "ecc={ecc}, seed {seed}: {id}");
                    let needed = raw.device().corrected_bits_max(raw.place_of(id).expect("there"));
                    assert!(
                        needed.is_some_and(|(most, _)| most <= 12),
                        "ecc={ecc}, seed {seed}: {id} has to move"
                    );
                }
                assert!(written > 8, "ecc={ecc}, seed {seed}: {written}");
            }
        }
    });
}

#[test]
fn a_segment_is_read_back_whole_only_where_its_first_page_shows_wear() {
    in_virtual_time(async || {
        // Ten first pages; with those behind them.
        for (flips, reads_expected) in [(0.05, 10..11), (4.5, 30..100)] {
            let (raw, nand) = flipping(flips, "off", 1).await;
            let client = raw.client();
            let before = nand.counts().reads;
            for id in 0..10u128 {
                raw.write(&client, id, Place::ById, segment(&raw, id as u64)).await.expect("write");
            }
            let reads = nand.counts().reads - before;
            assert!(reads_expected.contains(&reads), "{flips} flips: {reads} reads");
        }
    });
}

/// Rewrites segments until no block is left, fewer of them as blocks die; reads everything on the way.
async fn use_up(spec: &str, seed: u64) {
    let context = format!("{spec}, seed {seed}");
    let (mut raw, _nand) = formatted(&format!("{spec},seed={seed}")).await;
    let device = raw.device().clone();
    let mut client = raw.client();
    let mut rng = Rng::from_seed(seed);
    let mut there: BTreeMap<u128, u64> = BTreeMap::new();
    let (mut writes, mut id, mut is_full) = (0u64, 0u128, false);
    loop {
        assert!(writes < 20_000, "{context}: it does not wear out");
        // Keep some blocks free, and one at the end.
        if is_full || there.len() > 16 {
            let Some(&oldest) = there.keys().nth(rng.below(there.len().max(1) as u64) as usize) else {
                break;
            };
            raw.erase(&client, oldest).await.unwrap_or_else(|error| panic!("{context}: erase: {error}"));
            there.remove(&oldest);
        }
        (writes, id) = (writes + 1, id + 1);
        match raw.write(&client, id, Place::ById, segment(&raw, writes)).await {
            Ok(_) => {
                is_full = false;
                there.insert(id, writes);
            }
            Err(RawError::Full { space, channel }) => {
                // Honestly gone: of this channel nothing but segments, bad and reserved blocks is left.
                assert_eq!(
                    space.live + space.tags + space.bad + space.reserved,
                    space.raw,
                    "{context}: {channel}"
                );
                is_full = true;
            }
            // Block after block failed; the next request tries others.
            Err(RawError::Flash(FlashError::ProgramFailed { .. })) => is_full = true,
            Err(error) => panic!("{context}: write {writes}: {error}"),
        }
        if writes % 8 == 0 || is_full {
            raw.scrub_pass(UNPACED).await.unwrap_or_else(|error| panic!("{context}: patrol: {error}"));
            for (&id, &seed) in &there {
                let (result, buf) =
                    raw.read(&client, id, 0, IoBuf::zeroed(raw.segment_bytes() as usize)).await;
                result.unwrap_or_else(|error| panic!("{context}: write {writes}, read {id}: {error}"));
                assert!(buf[..] == segment(&raw, seed)[..], "{context}: {id}");
            }
        }
        if writes.is_multiple_of(64) {
            // Its checkpoints, too, are found again, and with them every block that went bad.
            let bad = raw.space().total().bad;
            if writes.is_multiple_of(128) {
                raw.close().await.unwrap_or_else(|error| panic!("{context}: close: {error}"));
            }
            let opened = RawFlash::open(
                device.clone(),
                RawOptions { erased_ahead: 1, ..RawOptions::default() },
                &|_, _| (),
            )
            .await;
            let opened = opened.unwrap_or_else(|error| panic!("{context}: open: {error}"));
            assert!(opened.damage.is_empty(), "{context}: {:?}", opened.damage);
            raw = opened.raw;
            client = raw.client();
            assert_eq!(raw.segment_count() as usize, there.len(), "{context}: write {writes}");
            assert!(raw.space().total().bad >= bad, "{context}: {} B of {bad}", raw.space().total().bad);
        }
        yield_now().await;
    }
    let space = raw.space();
    assert_eq!(space.accounted(), space.raw);
    let total = space.total();
    assert!(total.bad * 2 > total.raw, "{context}: {total:?}");
    assert!(writes > 300, "{context}: worn out after {writes} writes");
}

/// `PUMICE_WEAR_SEEDS` runs more than the smoke budget of one.
#[test]
fn a_drive_is_used_to_its_end_and_loses_nothing() {
    let seeds = std::env::var("PUMICE_WEAR_SEEDS").ok().and_then(|count| count.parse().ok()).unwrap_or(1);
    for seed in 1..=seeds {
        for ecc in ["off", "on"] {
            let spec = format!("emu:sdf,channels=2,blocks=16,pages=8,timing=off,wear=on,rated=20,ecc={ecc}");
            in_virtual_time(move || async move { use_up(&spec, seed).await });
        }
    }
}
