//! Wear: bit errors that grow with use, blocks that fail, media that correct and media that do not.

use std::time::Duration;

use pumice_base::rng::Rng;
use pumice_flash::emulated::wear::Use;
use pumice_flash::{Device, DeviceSpec, EmulatedSpec, FlashError};
use pumice_reactor::{IoBuf, WriteSync, block_on};

use super::{at, emulated, pages};

fn wear(preset: &str) -> pumice_flash::Wear {
    EmulatedSpec::preset(preset).expect("preset").wear
}

#[test]
fn bit_errors_grow_with_erases_time_and_reads() {
    for preset in ["sdf", "bluedbm", "lightstore", "x25v", "tlc"] {
        let wear = wear(preset);
        let rated = wear.rated_erases as u32;
        let mut last = 0.0;
        for used in [
            Use::default(),
            Use { erases: rated / 2, ..Use::default() },
            Use { erases: rated, ..Use::default() },
            Use { erases: rated, days: 90.0, ..Use::default() },
            Use { erases: rated, days: 90.0, reads: 100_000 },
            Use { erases: 3 * rated, days: 365.0, reads: 1_000_000 },
        ] {
            let rate = wear.bit_error_rate(used);
            assert!(rate > last && rate <= 0.5, "{preset}: {used:?} {rate}");
            last = rate;
        }
        assert!(wear.program_failure(rated) > wear.program_failure(rated / 2), "{preset}");
        assert!(wear.erase_failure(rated) > wear.erase_failure(0), "{preset}");
    }
}

#[test]
fn a_block_at_its_rating_stays_within_its_ecc() {
    for preset in ["sdf", "lightstore", "x25v", "tlc"] {
        let spec = EmulatedSpec::preset(preset).expect("preset");
        let used = Use { erases: spec.wear.rated_erases as u32, days: 90.0, reads: 100_000 };
        let mean = spec.wear.bit_error_rate(used) * f64::from(spec.ecc.codeword_bytes) * 8.0;
        let limit = f64::from(spec.ecc.correctable_bits);
        assert!((0.1 * limit..0.7 * limit).contains(&mean), "{preset}: {mean} of {limit} bits");
    }
}

#[test]
fn media_that_correct_themselves_count_what_they_correct_and_report_the_rest() {
    block_on(async {
        let (device, emulated) = emulated("emu:sdf,channels=1,blocks=8,wear=on,timing=off,seed=5").await;
        let block = (0..8).map(|n| at(0, n)).find(|&b| !device.is_factory_bad(b)).expect("a good block");
        let page = device.geometry().page_bytes as usize;
        let data = pages(3, 16 * page / 4096);
        emulated.wear_out(block, 3000);
        device.program(block, 0, data.clone(), WriteSync::Durable).await.expect("program");
        let (result, buf) = device.read(block, 0, IoBuf::zeroed(data.len())).await;
        result.expect("within the ECC");
        assert_eq!(buf[..], data[..]);
        let young = emulated.counts().corrected_bits;
        assert!(young > 100, "{young} bits");
        assert!(emulated.corrected_bits_max(block) <= 30);
        // Ten years on a shelf.
        emulated.age(Duration::from_secs(10 * 365 * 86_400));
        let (result, _) = device.read(block, 0, IoBuf::zeroed(data.len())).await;
        assert!(matches!(result, Err(FlashError::Uncorrectable { .. })), "{result:?}");
        assert!(emulated.counts().uncorrectable_codewords > 0);
    });
}

#[test]
fn raw_media_hand_out_the_same_flipped_bits_again_and_more_of_them_with_age() {
    block_on(async {
        let (device, emulated) =
            emulated("emu:sdf,channels=1,blocks=8,wear=on,ecc=off,timing=off,seed=5").await;
        let block = (0..8).map(|n| at(0, n)).find(|&b| !device.is_factory_bad(b)).expect("a good block");
        let geometry = device.geometry();
        let (data, oob) = (pages(3, 4 * geometry.page_bytes as usize / 4096), pages(4, 1).slice(..4 * 448));
        emulated.wear_out(block, 3000);
        device
            .program_with_oob(block, 0, data.clone(), oob.clone(), WriteSync::Durable)
            .await
            .expect("program");
        let flips = async || {
            let (buf, spare) = (IoBuf::zeroed(data.len()), IoBuf::zeroed(oob.len()));
            let (result, buf, spare) = device.read_with_oob(block, 0, buf, spare).await;
            result.expect("raw media hand out what is there");
            let flipped = |got: &[u8], was: &[u8], base: u64| {
                got.iter()
                    .zip(was)
                    .enumerate()
                    .flat_map(move |(at, (got, was))| {
                        (0..8u64)
                            .filter(move |bit| (got ^ was) >> bit & 1 == 1)
                            .map(move |bit| base + at as u64 * 8 + bit)
                    })
                    .collect::<Vec<_>>()
            };
            [flipped(&buf, &data, 0), flipped(&spare, &oob, 1 << 40)].concat()
        };
        let young = flips().await;
        assert!(young.len() > 50, "{} bits of {}", young.len(), 4 * 8640 * 8);
        assert_eq!(flips().await, young);
        emulated.age(Duration::from_secs(365 * 86_400));
        let old = flips().await;
        assert!(
            old.len() > young.len() && young.iter().all(|bit| old.contains(bit)),
            "{} and {}",
            young.len(),
            old.len()
        );
        assert!(old.iter().any(|&bit| bit >= 1 << 40), "the out-of-band bytes flip, too");
    });
}

#[test]
fn out_of_band_bytes_read_as_they_were_programmed_also_after_opening_anew() {
    block_on(async {
        let dir = tempfile::tempdir().expect("dir");
        for path in ["", &format!(",path={}", dir.path().join("nand").display())] {
            let spec: DeviceSpec =
                format!("emu:sdf,channels=2,blocks=2,timing=off{path}").parse().expect("spec");
            let mut device = Device::open(&spec, pumice_flash::Access::ReadWrite).await.expect("device");
            let (data, oob) = (pages(1, 4), pages(2, 1).slice(..2 * 448));
            let written = device.program_with_oob(at(1, 1), 0, data.clone(), oob.clone(), WriteSync::Durable);
            written.await.expect("program");
            if !path.is_empty() {
                drop(device);
                device = Device::open(&spec, pumice_flash::Access::ReadWrite).await.expect("device");
            }
            let (buf, spare) = (IoBuf::zeroed(data.len()), IoBuf::zeroed(oob.len()));
            let (result, buf, spare) = device.read_with_oob(at(1, 1), 0, buf, spare).await;
            result.expect("read");
            assert_eq!((&buf[..], &spare[..]), (&data[..], &oob[..]));
            let odd =
                device.read_with_oob(at(1, 1), 0, IoBuf::zeroed(data.len()), IoBuf::zeroed(100)).await.0;
            assert!(matches!(odd, Err(FlashError::OutOfBand { expected_bytes: 896, .. })), "{odd:?}");
        }
    });
}

#[test]
fn worn_blocks_fail_and_bad_ones_never_work() {
    block_on(async {
        let (device, emulated) = emulated("emu:sdf,channels=4,blocks=512,wear=on,timing=off,data=drop").await;
        let geometry = device.geometry();
        let all = (0..geometry.block_count()).map(|number| geometry.block(number));
        let (bad, good): (Vec<_>, Vec<_>) = all.partition(|&block| device.is_factory_bad(block));
        // 0.5% of 2,048 blocks, give or take four deviations.
        assert!((1..=23).contains(&bad.len()), "{} bad blocks", bad.len());
        let page = pages(1, 2);
        for &block in &bad {
            let failed = device.program(block, 0, page.clone(), WriteSync::Durable).await;
            assert!(matches!(failed, Err(FlashError::ProgramFailed { .. })), "{failed:?}");
            assert!(matches!(device.erase(block).await, Err(FlashError::EraseFailed { .. })));
        }
        let mut failures = [0, 0];
        for (index, erases) in [0, 30_000].into_iter().enumerate() {
            for &block in &good {
                emulated.wear_out(block, erases);
                failures[index] += u32::from(device.erase(block).await.is_err());
            }
        }
        // At ten times the rated erases every erase fails; fresh blocks hardly ever do.
        assert!(failures[0] <= 1 && failures[1] == good.len() as u32, "{failures:?} of {}", good.len());
    });
}

#[test]
fn a_torn_page_of_raw_media_is_partly_flipped() {
    block_on(async {
        for seed in 1..20 {
            let (device, emulated) =
                emulated(&format!("emu:sdf,channels=1,blocks=2,ecc=off,timing=off,seed={seed}")).await;
            let mut rng = Rng::from_seed(seed);
            let count = 2 + rng.below(6) as usize;
            let data = pages(seed, 2 * count);
            emulated.cut_power_at(1);
            let cut = device.program(at(0, 0), 0, data.clone(), WriteSync::Durable).await;
            assert!(matches!(cut, Err(FlashError::Gone { .. })), "{cut:?}");
            emulated.power_on();
            let next = emulated.write_pointer(at(0, 0)).expect("pointer") as usize;
            for page in 0..next {
                let (result, buf) = device.read(at(0, 0), (page * 8192) as u32, IoBuf::zeroed(8192)).await;
                result.expect("raw media always answer");
                let was = &data[page * 8192..(page + 1) * 8192];
                let flipped: u32 = buf.iter().zip(was).map(|(a, b)| (a ^ b).count_ones()).sum();
                let is_torn = page + 1 == next && next <= count && flipped > 0;
                assert!(
                    flipped == 0 || (is_torn && flipped > 300),
                    "seed {seed} page {page}: {flipped} bits"
                );
            }
        }
    });
}
