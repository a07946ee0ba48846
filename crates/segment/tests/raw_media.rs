//! The heap on raw media: what flips is mended wherever the heap reads, what cannot be mended names its page, and power
//! cuts leave pages that are partly flipped.

#[path = "common/mod.rs"]
mod common;
#[path = "common/mini.rs"]
mod mini;

use common::{emulated, format_options, options};
use mini::{History, Mini, Write};
use pumice_base::rng::Rng;
use pumice_flash::{Emulated, FlashError};
use pumice_segment::{Heap, HeapOptions, ReadError};

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
