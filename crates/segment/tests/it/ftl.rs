//! Raw flash: places, tags, turns on a channel, wear levelling, bad blocks; in virtual time over the emulated card.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use crate::raw::{in_virtual_time, nand, segment};
use bytes::Bytes;
use pumice_base::rng::Rng;
use pumice_flash::{Access, Device, Emulated, Fault, FlashError, Operation};
use pumice_reactor::{IoBuf, now, spawn, yield_now};
use pumice_segment::ftl::{Place, RawError, RawFlash, RawFormat, RawOptions, TAGS_PER_CLIENT};

/// 4 channels of 2 dies of 2 planes, a block over all of a channel: 16 rows of 4 pages of 4 KiB.
const CARD: &str = "emu:tiny,channels=4,blocks=16,pages=64,dies=2,planes=2,stripe=2,oob=64";
const TIMED: &str = ",timing=on,read_us=75,program_us=1000,erase_us=9200,bus=40";

struct Bench {
    raw: RawFlash,
    nand: std::sync::Arc<Emulated>,
}

async fn bench(spec: &str, erased_ahead: u32) -> Bench {
    let (device, nand) = nand(spec).await;
    let format = RawFormat { drive_id: [7; 16], force: false };
    let raw = RawFlash::format(device, format, RawOptions { erased_ahead, ..RawOptions::default() })
        .await
        .expect("format");
    Bench { raw, nand }
}

#[test]
fn consecutive_ids_land_on_consecutive_channels_and_read_back() {
    in_virtual_time(async || {
        let Bench { raw, .. } = bench(CARD, 2).await;
        let client = raw.client();
        let first = u128::MAX - 20;
        for step in 0..8 {
            let id = first + step;
            raw.write(&client, id, Place::ById, segment(&raw, step as u64)).await.expect("write");
            let place = raw.place_of(id).expect("placed");
            assert_eq!(u128::from(place.channel), id % 4);
        }
        raw.write(&client, 7, Place::Channel(1), segment(&raw, 100)).await.expect("by channel");
        assert_eq!(raw.place_of(7).expect("placed").channel, 1);
        for step in 0..8 {
            let whole = segment(&raw, step as u64);
            let (result, buf) = raw.read(&client, first + step, 8192, IoBuf::zeroed(16_384)).await;
            result.expect("read");
            assert_eq!(buf[..], whole[8192..24_576]);
        }
        let again = raw.write(&client, first, Place::ById, segment(&raw, 1)).await;
        assert!(matches!(again, Err(RawError::Exists { .. })), "{again:?}");
        let short = raw.write(&client, 1, Place::ById, Bytes::new()).await;
        assert!(matches!(short, Err(RawError::Length { .. })), "{short:?}");
        let nowhere = raw.write(&client, 1, Place::Channel(4), segment(&raw, 1)).await;
        assert!(matches!(nowhere, Err(RawError::NoChannel { .. })), "{nowhere:?}");
        raw.erase(&client, first).await.expect("erase");
        assert!(matches!(raw.erase(&client, first).await, Err(RawError::NotFound { .. })));
        let gone = raw.read(&client, first, 0, IoBuf::zeroed(4096)).await.0;
        assert!(matches!(gone, Err(RawError::NotFound { .. })), "{gone:?}");
    });
}

#[test]
fn a_client_has_256_requests_under_way_and_the_next_waits() {
    in_virtual_time(async || {
        let Bench { raw, .. } = bench(&format!("{CARD}{TIMED}"), 1).await;
        let (client, other) = (raw.client(), raw.client());
        for id in 0..4 {
            raw.write(&client, id, Place::ById, segment(&raw, 1)).await.expect("write");
        }
        let (most, order, live) = (
            Rc::new(Cell::new(0)),
            Rc::new(RefCell::new(Vec::new())),
            Rc::new(RefCell::new(BTreeSet::new())),
        );
        let mut handles = Vec::new();
        for index in 0..400u32 {
            let (raw, client, order, most, live) =
                (raw.clone(), client.clone(), order.clone(), most.clone(), live.clone());
            handles.push(spawn(async move {
                let ticket = client.tag().await;
                assert!(live.borrow_mut().insert(ticket.tag), "a tag is in use once");
                most.set(most.get().max(client.under_way()));
                // One channel is asked for longer reads: answers overtake each other.
                let len = if index % 4 == 0 { 65_536 } else { 4096 };
                let grant_less =
                    raw.read(&raw.client(), u128::from(index % 4), 0, IoBuf::zeroed(len)).await.0;
                grant_less.expect("read");
                live.borrow_mut().remove(&ticket.tag);
                order.borrow_mut().push(index);
            }));
        }
        yield_now().await;
        assert_eq!(client.under_way(), TAGS_PER_CLIENT);
        // The other client is not held up by the first one's tags.
        let start = now();
        raw.read(&other, 1, 0, IoBuf::zeroed(4096)).await.0.expect("read");
        assert_eq!(other.under_way(), 0);
        let waited = start.elapsed();
        for handle in handles {
            handle.await.expect("read");
        }
        assert_eq!(most.get(), TAGS_PER_CLIENT);
        assert!(order.borrow().windows(2).any(|pair| pair[0] > pair[1]), "answers come out of order");
        assert!(waited < now().since(start), "{waited:?}");
        assert_eq!(client.under_way(), 0);
    });
}

#[test]
fn reads_go_before_programs_and_programs_before_erases_and_nobody_starves() {
    in_virtual_time(async || {
        let Bench { raw, .. } = bench(&format!("{CARD}{TIMED}"), 8).await;
        let client = raw.client();
        raw.write(&client, 0, Place::ById, segment(&raw, 1)).await.expect("write");
        // A steady reader of the channel, and writes that have many blocks to be erased behind them.
        let (stop, worst_us) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0)));
        let reader = {
            let (raw, stop, worst_us) = (raw.clone(), stop.clone(), worst_us.clone());
            let client = raw.client();
            spawn(async move {
                let mut reads = 0u64;
                while !stop.get() {
                    let start = now();
                    raw.read(&client, 0, 0, IoBuf::zeroed(4096)).await.0.expect("read");
                    worst_us.set(worst_us.get().max(start.elapsed().as_micros()));
                    reads += 1;
                }
                reads
            })
        };
        for id in 1..9u128 {
            raw.write(&client, id * 4, Place::ById, segment(&raw, 1)).await.expect("the write gets through");
        }
        // The reader goes on; erases in the background get through all the same.
        let mut waited = 0;
        while raw.counts(0).erased < 2 && waited < 200 {
            pumice_reactor::sleep(std::time::Duration::from_millis(1)).await;
            waited += 1;
        }
        assert!(waited < 200, "erases get through, too: {:?}", raw.counts(0));
        stop.set(true);
        let reads = reader.await.expect("reader");
        assert!(reads > 100, "{reads} reads");
        // At worst: an erase under way, and then one plane group (205 µs of bus, 1 ms) of each of two chunks.
        assert!(worst_us.get() < 9200 + 2 * 1300 + 500, "{} µs", worst_us.get());
    });
}

#[test]
fn erases_happen_in_the_background() {
    in_virtual_time(async || {
        for (erased_ahead, waits) in [(2, false), (0, true)] {
            let Bench { raw, .. } = bench(&format!("{CARD}{TIMED}"), erased_ahead).await;
            let client = raw.client();
            let mut took_us = 0;
            for id in 0..6u128 {
                pumice_reactor::sleep(std::time::Duration::from_millis(50)).await;
                let start = now();
                raw.write(&client, id * 4, Place::ById, segment(&raw, 1)).await.expect("write");
                took_us = start.elapsed().as_micros();
            }
            // 16 rows: a die's cycle is 208 µs of bus and 1 ms. The last page goes alone, another 1 ms.
            let programs_us = 16 * 1208 + 208 + 1000;
            let expected_us = if waits { programs_us + 9200 } else { programs_us };
            assert!(
                (expected_us - 100..expected_us + 300).contains(&took_us),
                "{took_us} of {expected_us} µs"
            );
        }
    });
}

/// Rewrites segments drawn by `draw` and answers each channel's fewest, mean and most erases.
async fn rewrite(draw: impl Fn(&mut Rng) -> u64) -> Vec<(u32, u32, u32)> {
    let Bench { raw, nand } = bench(CARD, 2).await;
    let client = raw.client();
    let mut rng = Rng::from_seed(3);
    for id in 0..40u128 {
        raw.write(&client, id, Place::ById, segment(&raw, 1)).await.expect("write");
    }
    for _ in 0..2000 {
        let id = u128::from(draw(&mut rng));
        raw.discard(id).expect("discard");
        raw.write(&client, id, Place::ById, segment(&raw, 1)).await.expect("write");
        yield_now().await;
    }
    let channels = (0..4).map(|channel| {
        let erases = |block| nand.erase_count(pumice_flash::BlockAddr { channel, block });
        let (fewest, most) = raw.erase_range(channel).expect("blocks");
        // The first block of each channel is kept for checkpoints.
        assert_eq!(Some(fewest), (1..16).map(erases).min(), "the layer counts what the device counts");
        (fewest, (1..16).map(erases).sum::<u32>() / 15, most)
    });
    channels.collect()
}

#[test]
fn wear_is_levelled() {
    in_virtual_time(async || {
        for (fewest, mean, most) in rewrite(|rng| rng.below(40)).await {
            assert!(mean > 25 && most - fewest <= mean / 2, "all alike: {fewest}, {mean}, {most}");
        }
        // A tenth of the segments is rewritten nine times in ten. What is cold keeps its block until it is rewritten; the
        // rest shares the wear.
        for (fewest, mean, most) in
            rewrite(|rng| if rng.chance(0.9) { rng.below(4) } else { rng.below(40) }).await
        {
            assert!(mean > 25 && most <= mean + mean / 2, "skewed: {fewest}, {mean}, {most}");
        }
    });
}

#[test]
fn a_block_that_fails_is_retired_and_its_segment_written_elsewhere() {
    in_virtual_time(async || {
        let Bench { raw, nand } = bench(CARD, 0).await;
        let client = raw.client();
        nand.fail_erase_at(1);
        // One of the second write's, behind the first and the checkpoint that knows of the erase.
        nand.fail_program_at(9);
        for id in 0..8u128 {
            raw.write(&client, id * 4, Place::ById, segment(&raw, id as u64)).await.expect("write");
        }
        assert_eq!(raw.counts(0).bad, 2);
        let counts = raw.counts(0);
        assert_eq!(counts.reserved, 1);
        assert_eq!((counts.used, counts.used + counts.bad + counts.dirty + counts.erased), (8, 15));
        for id in 0..8u128 {
            let (result, buf) =
                raw.read(&client, id * 4, 0, IoBuf::zeroed(raw.segment_bytes() as usize)).await;
            result.expect("read");
            assert_eq!(buf[..], segment(&raw, id as u64)[..]);
        }
        // Until nothing is left: five more, and the account of what there is.
        for id in 8..13u128 {
            raw.write(&client, id * 4, Place::ById, segment(&raw, 1)).await.expect("write");
        }
        let full = raw.write(&client, 100 * 4, Place::ById, segment(&raw, 1)).await;
        assert!(
            matches!(&full, Err(RawError::Full { space, .. }) if space.bad == 2 * 262_144 && space.live == 13 * 262_144),
            "{full:?}"
        );
        raw.discard(0).expect("discard");
        raw.write(&client, 100 * 4, Place::ById, segment(&raw, 1)).await.expect("write");
        // Gone is gone: no other block is tried, and the id is free.
        raw.discard(4).expect("discard");
        nand.fail_at(Operation::Program, 1, Fault::TimedOut);
        let late = raw.write(&client, 4, Place::ById, segment(&raw, 1)).await;
        assert!(matches!(late, Err(RawError::Flash(_))), "{late:?}");
        assert!(raw.place_of(4).is_none());
    });
}

#[test]
fn factory_bad_blocks_are_never_used() {
    in_virtual_time(async || {
        let spec = "emu:sdf,channels=4,blocks=200,wear=on,timing=off,data=drop,seed=4,pages=32";
        let Bench { raw, nand } = bench(spec, 2).await;
        let client = raw.client();
        let bad = (0..4).map(|channel| raw.counts(channel).bad).sum::<u32>();
        assert!(bad > 0, "the seed has bad blocks");
        let mut written = 0;
        for id in 0..800u128 {
            written += u32::from(raw.write(&client, id, Place::ById, segment(&raw, 1)).await.is_ok());
        }
        let reserved: u32 = (0..4).map(|channel| raw.counts(channel).reserved).sum();
        assert_eq!((written, reserved), (800 - bad - 4, 4));
        let good = (0..800).filter(|&number| !nand.is_factory_bad(raw.geometry().block(number)));
        let area: Vec<u32> = good.take(4).collect();
        for number in (0..800).filter(|number| !area.contains(number)) {
            let block = raw.geometry().block(number);
            assert_eq!(nand.is_factory_bad(block), nand.erase_count(block) == 0, "{block}");
        }
    });
}

#[test]
fn raw_media_are_corrected_up_to_t_bits_and_lost_pages_are_named() {
    in_virtual_time(async || {
        // SDF's card without its own BCH, small blocks.
        let spec = "emu:sdf,channels=2,blocks=16,pages=16,timing=off,wear=on,ecc=off,seed=11";
        let Bench { raw, nand } = bench(spec, 1).await;
        let client = raw.client();
        let data = segment(&raw, 9);
        // Worn as rated: some 3 flipped bits in each codeword.
        for number in 0..raw.geometry().block_count() {
            nand.wear_out(raw.geometry().block(number), 3000);
        }
        raw.write(&client, 5, Place::ById, data.clone()).await.expect("write");
        for (offset, len) in [(0, data.len()), (4096, 4096), (4096, 12_288), (8192, 8192), (20_480, 40_960)] {
            let (result, buf) = raw.read(&client, 5, offset as u32, IoBuf::zeroed(len)).await;
            result.expect("corrected");
            assert!(buf[..] == data[offset..offset + len], "{offset} {len}");
        }
        let counts = raw.ecc_counts();
        assert!(counts.corrected_bits > 200 && counts.uncorrectable_pages == 0, "{counts:?}");
        assert!(raw.weak().is_empty());
        // After some years it is near the limit, and moves in time.
        let day = std::time::Duration::from_secs(86_400);
        let mut days = 0;
        while raw.weak().is_empty() {
            nand.age(20 * day);
            days += 20;
            assert!(days < 2000, "no page gets weak");
            let (result, buf) = raw.read(&client, 5, 0, IoBuf::zeroed(data.len())).await;
            result.expect("still corrected");
            assert!(buf[..] == data[..]);
        }
        assert_eq!(raw.weak(), [5]);
        let old = raw.place_of(5);
        raw.refresh(&client, 5).await.expect("refresh");
        assert!(raw.weak().is_empty() && raw.place_of(5) != old && old.is_some());
        let (result, buf) = raw.read(&client, 5, 0, IoBuf::zeroed(data.len())).await;
        result.expect("fresh");
        assert!(buf[..] == data[..] && raw.weak().is_empty());
        // Left alone for too long it is lost, and says which page.
        nand.age(4000 * day);
        let (result, _) = raw.read(&client, 5, 0, IoBuf::zeroed(data.len())).await;
        let place = raw.place_of(5).expect("placed");
        assert!(
            matches!(result, Err(RawError::Flash(FlashError::Uncorrectable { block, .. })) if block == place),
            "{result:?}"
        );
        assert!(raw.ecc_counts().uncorrectable_pages > 0);
        assert!(raw.refresh(&client, 5).await.is_err());
        assert_eq!(raw.place_of(5), Some(place), "what is lost stays where it is");
    });
}

#[test]
fn media_without_room_for_parity_are_refused() {
    in_virtual_time(async || {
        let spec = "emu:sdf,channels=1,blocks=4,ecc=off,oob=400".parse().expect("spec");
        let device = Device::open(&spec, Access::ReadWrite).await.expect("device");
        let format = RawFormat { drive_id: [7; 16], force: false };
        let refused = RawFlash::format(device, format, RawOptions::default()).await;
        let refused = refused.err().expect("no room").to_string();
        assert!(refused.contains("424 out-of-band bytes"), "{refused}");
    });
}
