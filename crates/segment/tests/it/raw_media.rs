//! The heap on raw media: what flips is mended wherever the heap reads, what cannot be mended names its page, and power
//! cuts leave pages that are partly flipped.

use crate::common::mini::{History, Mini, Write};
use crate::common::{emulated, format_options, options};
use pumice_base::rng::Rng;
use std::sync::Arc;

use pumice_flash::{Device, DeviceSpec, Emulated, FlashError, Operation};
use pumice_segment::{AppendClass, AppendError, Heap, HeapOptions, Outline, ReadError, RecordIn};

/// Eight bits in each 512 B.
const SPEC: &str = "emu:tiny,channels=2,blocks=14,pages=16,oob=128,ecc=off";
const CODEWORD_BYTES: u32 = 512;

fn small() -> HeapOptions {
    HeapOptions { commit_max_bytes: 16 << 10, reserve_segments: Some(4), ..options() }
}

/// Flips `bits` bits in every codeword that is written, and answers how many codewords there are.
async fn flip_everywhere(nand: &Emulated, bits: u32, rng: &mut Rng) -> u64 {
    let geometry = nand.geometry();
    let mut codewords = 0;
    for number in 0..geometry.block_count() {
        let block = geometry.block(number);
        let written = nand.write_pointer(block).unwrap_or(0) * geometry.page_bytes;
        for codeword in (0..written).step_by(CODEWORD_BYTES as usize) {
            // One bit in each of as many bytes: no two flips undo each other.
            for byte in 0..bits {
                let at = codeword
                    + byte * (CODEWORD_BYTES / bits)
                    + rng.below(u64::from(CODEWORD_BYTES / bits)) as u32;
                nand.flip_bit(block, at, rng.below(8) as u8).await.expect("flip");
            }
            codewords += 1;
        }
    }
    codewords
}

#[test]
fn what_flips_is_mended_in_superblock_metadata_log_and_records() {
    pumice_reactor::block_on(async {
        for (seed, clean) in [(1, true), (2, false)] {
            let (device, nand) = emulated(&format!("{SPEC},seed={seed}")).await;
            Heap::format(&device, &format_options()).await.expect("format");
            let mut rng = Rng::from_seed(seed);
            let mut history = History::default();
            let mut mini = Mini::open(&device, small()).await.expect("open");
            for _ in 0..60 {
                mini.step(&mut history, &mut rng, 24, 6000).await.expect("step");
            }
            if clean {
                mini.checkpoint().await.expect("checkpoint");
                mini.heap.close().await.expect("close");
            }
            drop(mini);
            let codewords = flip_everywhere(&nand, 8, &mut rng).await;
            assert!(codewords > 300, "{codewords}");
            let mini = Mini::open(&device, small()).await.expect("reopen");
            mini.verify(&history).await.expect("everything reads");
            for segment in mini.heap.segments_in_use() {
                let damage = mini.heap.contents(segment).await.expect("contents").damage;
                assert!(damage.is_empty(), "{damage:?}");
            }
            let counts = mini.heap.device().ecc_counts();
            assert!(counts.corrected_bits > 8 * 300 && counts.uncorrectable_pages == 0, "{counts:?}");
        }
    });
}

#[test]
fn a_page_with_more_flips_than_the_code_corrects_is_named_with_its_record() {
    pumice_reactor::block_on(async {
        let (device, nand) = emulated(SPEC).await;
        Heap::format(&device, &format_options()).await.expect("format");
        let mut history = History::default();
        let mut mini = Mini::open(&device, small()).await.expect("open");
        let writes = (0..8).map(|key| Write { key, value: Some((u64::from(key), 9000)) });
        for write in writes {
            mini.write(&mut history, vec![write]).await.expect("write");
        }
        let (key, ptr) = mini.entries().nth(3).expect("a record");
        let geometry = device.geometry();
        let block = geometry.block(ptr.addr.segment().0);
        let page = ptr.addr.offset() / geometry.page_bytes + 1;
        for byte in 0..9 {
            nand.flip_bit(block, page * geometry.page_bytes + byte * 50, 3).await.expect("flip");
        }
        for (other, ptr) in mini.entries() {
            match mini.heap.read(ptr).await {
                Ok(_) => assert_ne!(other, key),
                Err(ReadError::Flash {
                    ptr: named,
                    source: FlashError::Uncorrectable { block: at, offset_bytes },
                }) => {
                    assert_eq!((other, named, at), (key, ptr, block));
                    assert_eq!(offset_bytes, page * geometry.page_bytes);
                }
                Err(error) => panic!("key {other}: {error}"),
            }
        }
        assert_eq!(mini.heap.device().ecc_counts().uncorrectable_pages, 1);
    });
}

#[test]
fn parity_that_does_not_fit_beside_a_page_is_said() {
    pumice_reactor::block_on(async {
        let (device, _) = emulated("emu:tiny,oob=64,ecc=off").await;
        let error = Heap::format(&device, &format_options()).await.expect_err("no room");
        assert!(error.to_string().contains("out-of-band"), "{error}");
    });
}

/// A drive on which the metadata log's next snapshot meets a block that fails, and what is known of it.
async fn about_to_fail(seed: u64, fault: u64) -> (Device, Arc<Emulated>, Mini, History) {
    let (device, nand) =
        emulated(&format!("emu:tiny,channels=2,blocks=20,pages=16,oob=128,ecc=off,seed={seed}")).await;
    Heap::format(&device, &format_options()).await.expect("format");
    let (mut rng, mut history) = (Rng::from_seed(seed), History::default());
    // With more segments open none of the first may be free, to which a superblock moves.
    let options = HeapOptions { commit_lanes: Some(1), ..small() };
    let mut mini = Mini::open(&device, options).await.expect("open");
    for _ in 0..30 {
        mini.step(&mut history, &mut rng, 24, 6000).await.expect("step");
    }
    mini.heap.flush().await.expect("flush");
    match fault {
        // The half's erase; its program; its erase, and then the superblock that names another segment, once or twice.
        0 => nand.fail_erase_at(1),
        1 => nand.fail_program_at(1),
        2 => {
            nand.fail_erase_at(1);
            nand.fail_program_at(1);
        }
        _ => {
            nand.fail_erase_at(1);
            nand.fail_program_at(1);
            nand.fail_erase_at(2);
        }
    }
    (device, nand, mini, history)
}

#[test]
fn metadata_log_and_superblock_move_off_blocks_that_fail_and_a_power_cut_meanwhile_loses_nothing() {
    for fault in 0..4 {
        let mut cut = 0;
        loop {
            let seed = 100 * fault + cut;
            let reached = pumice_reactor::block_on(async {
                let said = |what: &str| format!("fault {fault}, cut {cut}: {what}");
                let (device, nand, mut mini, history) = about_to_fail(seed, fault).await;
                if cut > 0 {
                    nand.cut_power_at(cut);
                }
                let written = mini.checkpoint().await;
                let reached = !nand.is_powered();
                assert_eq!(written.is_err(), reached, "{}: {written:?}", said("the snapshot"));
                if !reached {
                    nand.cut_power();
                }
                let _ = mini.heap.close().await;
                drop(mini);
                nand.power_on();
                let mut mini = Mini::open(&device, small()).await.unwrap_or_else(|e| panic!("{}", said(&e)));
                mini.verify(&history).await.unwrap_or_else(|e| panic!("{}", said(&e)));
                let bad = mini.heap.space().bad / u64::from(mini.heap.segment_bytes());
                if !reached {
                    assert_eq!(
                        bad,
                        [1, 1, 2, 3][fault as usize],
                        "{}",
                        said("segments that failed stay retired")
                    );
                }
                // Both halves are written again, and nothing that failed is met.
                let (failed, erases) = (nand.counts(), mini.heap.channels());
                for _ in 0..3 {
                    mini.checkpoint().await.unwrap_or_else(|e| panic!("{}", said(&e)));
                }
                mini.heap
                    .close()
                    .await
                    .unwrap_or_else(|e| panic!("{}: {e} {failed:?} {erases:?}", said("close")));
                drop(mini);
                let mini = Mini::open(&device, small()).await.unwrap_or_else(|e| panic!("{}", said(&e)));
                mini.verify(&history).await.unwrap_or_else(|e| panic!("{}", said(&e)));
                assert!(
                    mini.heap.space().bad / u64::from(mini.heap.segment_bytes()) >= bad,
                    "{}",
                    said("bad")
                );
                reached
            });
            match (cut, reached) {
                (0, _) => cut = 1,
                (_, true) => cut += 1,
                (_, false) => break,
            }
        }
        assert!(cut > 3, "fault {fault}: only {cut} operations");
    }
}

#[test]
fn a_drive_too_worn_for_what_a_recovery_writes_is_open_for_reading_and_loses_nothing() {
    for seed in 1..=4 {
        pumice_reactor::block_on(async {
            let said = |what: &str| format!("seed {seed}: {what}");
            let (device, nand, mini, history) = about_to_fail(seed, 0).await;
            nand.cut_power();
            let _ = mini.heap.close().await;
            drop(mini);
            nand.power_on();
            nand.fail_by_chance(Operation::Erase, 1.0);
            // Twice: what the first leaves behind of its tries is in nobody's way.
            for _ in 0..2 {
                let mini = Mini::open(&device, small()).await.unwrap_or_else(|e| panic!("{}", said(&e)));
                let reason = mini.heap.read_only().expect("read-only");
                assert!(reason.contains("erase failed"), "{}", said(&reason));
                mini.verify(&history).await.unwrap_or_else(|e| panic!("{}", said(&e)));
                let record = RecordIn { kind: 1, parts: &[b"x"], outline: Outline::Whole };
                let refused = mini.heap.append(&[record], AppendClass::Delete);
                assert!(
                    matches!(refused, Err(AppendError::ReadOnly(_))),
                    "{}",
                    said(&format!("{refused:?}"))
                );
            }
        });
    }
}

#[test]
fn blocks_that_are_bad_from_the_start_or_fail_are_never_used_and_counted_by_channel() {
    for seed in 1..=8u64 {
        pumice_reactor::block_on(async {
            let DeviceSpec::Emulated(mut spec) =
                format!("emu:tiny,channels=2,blocks=32,pages=16,wear=on,seed={seed}").parse().expect("spec")
            else {
                panic!("not emulated")
            };
            spec.wear.factory_bad = 0.15;
            let device = Device::open(&DeviceSpec::Emulated(spec), pumice_flash::Access::ReadWrite)
                .await
                .expect("device");
            let nand = device.emulated().expect("emulated").clone();
            // What the factory did not see fails when the drive is formatted.
            nand.fail_erase_at(1);
            nand.fail_program_at(1);
            Heap::format(&device, &format_options()).await.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            let geometry = device.geometry();
            let factory: Vec<u32> = (0..2)
                .map(|channel| {
                    let own = (0..geometry.block_count())
                        .map(|n| geometry.block(n))
                        .filter(|b| b.channel == channel);
                    own.filter(|&block| device.is_factory_bad(block)).count() as u32
                })
                .collect();
            let (mut rng, mut history) = (Rng::from_seed(seed), History::default());
            let mut mini = Mini::open(&device, small()).await.expect("open");
            let bad = |mini: &Mini| mini.heap.channels().iter().map(|c| c.bad_segments).collect::<Vec<_>>();
            let at_first = bad(&mini);
            assert_eq!(at_first.iter().sum::<u32>(), factory.iter().sum::<u32>() + 2, "seed {seed}");
            assert!(at_first.iter().zip(&factory).all(|(bad, factory)| bad >= factory), "seed {seed}");
            nand.fail_program_at(20);
            nand.fail_erase_at(2);
            for _ in 0..150 {
                mini.step(&mut history, &mut rng, 24, 6000)
                    .await
                    .unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            }
            while let Some(segment) = mini.heap.endangered() {
                mini.heap.unclaim(segment);
                mini.clean().await.expect("clean");
                mini.checkpoint().await.expect("checkpoint");
            }
            let at_last = bad(&mini);
            assert_eq!(at_last.iter().sum::<u32>(), at_first.iter().sum::<u32>() + 2, "seed {seed}");
            // The power goes: what failed stays retired all the same.
            nand.cut_power();
            let _ = mini.heap.close().await;
            drop(mini);
            nand.power_on();
            let mini = Mini::open(&device, small()).await.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            mini.verify(&history).await.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            assert_eq!(bad(&mini), at_last, "seed {seed}");
            let (space, channels) = (mini.heap.space(), mini.heap.channels());
            assert_eq!(channels.iter().map(|c| c.space.accounted()).sum::<u64>() + space.leftover, space.raw);
        });
    }
}

#[test]
fn a_segment_whose_pages_decay_is_offered_before_it_is_lost() {
    pumice_reactor::block_on(async {
        let (device, nand) = emulated("emu:tiny,channels=2,blocks=20,pages=16,oob=128,ecc=off").await;
        Heap::format(&device, &format_options()).await.expect("format");
        let (mut rng, mut history) = (Rng::from_seed(5), History::default());
        let mut mini = Mini::open(&device, small()).await.expect("open");
        for key in 0..40 {
            mini.write(&mut history, vec![Write { key, value: Some((u64::from(key), 7000)) }])
                .await
                .expect("write");
        }
        mini.checkpoint().await.expect("checkpoint");
        assert!(mini.heap.endangered().is_none());
        // Six of eight bits are not near enough, seven are.
        let (key, ptr) = mini.entries().nth(2).expect("a record");
        let geometry = device.geometry();
        let block = geometry.block(ptr.addr.segment().0);
        let page = ptr.addr.offset() / geometry.page_bytes * geometry.page_bytes;
        for bit in 0..7 {
            nand.flip_bit(block, page + bit * 60, 1).await.expect("flip");
            mini.heap.read(ptr).await.expect("it reads");
            let found = mini.heap.endangered();
            assert_eq!(found, (bit == 6).then_some(ptr.addr.segment()), "{} bits", bit + 1);
            if let Some(found) = found {
                mini.heap.unclaim(found);
            }
        }
        assert_eq!(mini.heap.weak_segments(), 1);
        // Known after a restart, without another look.
        mini.checkpoint().await.expect("checkpoint");
        mini.heap.close().await.expect("close");
        drop(mini);
        let mut mini = Mini::open(&device, small()).await.expect("reopen");
        assert_eq!(mini.heap.weak_segments(), 1);
        let first = mini.heap.endangered().expect("weak still");
        mini.heap.unclaim(first);
        mini.clean().await.expect("clean");
        assert_ne!(mini.entries().find(|(found, _)| *found == key).map(|(_, ptr)| ptr.addr), Some(ptr.addr));
        mini.checkpoint().await.expect("checkpoint");
        assert!(mini.heap.endangered().is_none() && mini.heap.weak_segments() == 0);
        for _ in 0..40 {
            mini.step(&mut history, &mut rng, 24, 6000).await.expect("step");
        }
        mini.verify(&history).await.expect("everything reads");
    });
}
