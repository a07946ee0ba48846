//! Emulated devices by name, with the source of each figure.
//!
//! Marks as in the papers' notes: [S] stated by the source, [D] derived from it, [M] remembered and unchecked,
//! [A] assumed. Capacities that would fill a test machine's memory are smaller than the original's where the text
//! says so; `size=` changes them.

use crate::spec::{EccSpec, NandTiming};
use crate::{EmulatedSpec, Geometry, Wear};

/// Names that [`EmulatedSpec::preset`] knows.
pub(crate) const PRESETS: &str = "tiny, small, tlc, sdf, bluedbm, lightstore, x25v";

/// channels, dies, planes, dies of a block, blocks, pages, page bytes, out-of-band bytes.
fn shape(n: [u32; 8]) -> Geometry {
    Geometry {
        channels: n[0] as u16,
        dies_per_channel: n[1] as u16,
        planes_per_die: n[2] as u16,
        dies_per_block: n[3] as u16,
        blocks_per_channel: n[4],
        pages_per_block: n[5],
        page_bytes: n[6],
        read_bytes: n[6].min(4096),
        oob_bytes: n[7],
    }
}

const UNTIMED: NandTiming = NandTiming {
    read_us: 0.0,
    program_us: 0.0,
    erase_us: 0.0,
    bus_mb_per_s: 0.0,
    link_read_mb_per_s: 0.0,
    link_write_mb_per_s: 0.0,
    request_us: 0.0,
};

/// 25 nm MLC: rated for 3,000 erases with 24 bits corrected per KiB [M]; the constants [A].
const MLC: Wear = Wear {
    rated_erases: 3000.0,
    fresh: 1e-6,
    worn: 4e-4,
    exponent: 2.0,
    retention: 4e-6,
    disturb: 2e-9,
    program_failure: 1e-4,
    erase_failure: 1e-3,
    factory_bad: 0.005,
};

/// SLC: rated for 100,000 erases with 1 bit corrected per 528 B [M]; the constants [A].
const SLC: Wear =
    Wear { rated_erases: 100_000.0, fresh: 1e-9, worn: 1e-5, retention: 1e-7, disturb: 1e-11, ..MLC };

/// 3D TLC: rated for 3,000 erases; the constants [A].
const TLC: Wear = Wear { fresh: 1e-5, worn: 2e-3, retention: 2e-5, disturb: 5e-9, ..MLC };

impl EmulatedSpec {
    /// The preset of this name.
    pub fn preset(name: &str) -> Option<Self> {
        let (geometry, timing, wear, ecc) = match name {
            // For tests: blocks so small that everything wraps early; no time passes.
            "tiny" => (shape([2, 1, 1, 1, 32, 32, 4096, 0]), None, MLC, (512, 8)),
            "small" => (shape([4, 1, 1, 1, 64, 256, 4096, 0]), None, MLC, (512, 8)),
            // A present-day TLC drive on PCIe 4, cut to 4 GiB. Dies: J. Cho et al., "A 512Gb 3b/Cell 7th-Generation 3D-NAND
            // Flash Memory with 184MB/s Write Throughput and 2.0Gb/s Interface", ISSCC 2021, 30.3. From the title [S]: the
            // bus, and with four planes of 16 KiB pages [A] tPROG = 64 KiB / 184 MB/s = 356 µs per page, the mean of a word
            // line's three [D]. tR 40 µs [M]; tERASE 3.5 ms, link 7.0/5.0 GB/s, 8 channels × 4 dies [A].
            "tlc" => {
                let timing = NandTiming {
                    read_us: 40.0,
                    program_us: 356.0,
                    erase_us: 3500.0,
                    bus_mb_per_s: 2000.0,
                    link_read_mb_per_s: 7000.0,
                    link_write_mb_per_s: 5000.0,
                    request_us: 5.0,
                };
                (shape([8, 4, 4, 1, 64, 512, 16_384, 1664]), Some(timing), TLC, (1024, 60))
            }
            // SDF, ASPLOS 2014: 44 channels × 2 chips × 2 planes, 8 GB a chip (here GiB): 704; 8 KB read unit, 8 MB write and erase
            // unit over the channel's four planes; PCIe 1.61/1.40 GB/s; software 2-4 µs, here 3 [S]. Page 8,192 + 448 B, bus
            // 40 MB/s, tR 75 µs, two-plane tPROG 1.0 ms, tERASE 9.2 ms (40 GB/s over 44 channels [S]) [D].
            "sdf" => {
                let timing = NandTiming {
                    read_us: 75.0,
                    program_us: 1000.0,
                    erase_us: 9200.0,
                    bus_mb_per_s: 40.0,
                    link_read_mb_per_s: 1610.0,
                    link_write_mb_per_s: 1400.0,
                    request_us: 3.0,
                };
                (shape([44, 2, 2, 2, 2048, 1024, 8192, 448]), Some(timing), MLC, (1024, 30))
            }
            // BlueDBM's first board (thesis 2014): 16 GB of Micron SLC on 4 buses of 8 chips of 512 MB, buses of about 25
            // MB/s, 2,048 B pages, chip latency 27 µs, 4 µs of software, driver's ceiling 310 MB/s [S]. Blocks of 64 pages,
            // 64 B of spare, tPROG 220 µs, tERASE 500 µs [M]. The sources contradict each other: 2,048 B at 25 MB/s take
            // 82 µs, more than the 70 µs stated for the whole read; the model keeps the bus and so misses the latency.
            "bluedbm" => {
                let timing = NandTiming {
                    read_us: 27.0,
                    program_us: 220.0,
                    erase_us: 500.0,
                    bus_mb_per_s: 25.0,
                    link_read_mb_per_s: 310.0,
                    link_write_mb_per_s: 310.0,
                    request_us: 4.0,
                };
                (shape([4, 8, 1, 1, 32_768, 64, 2048, 64]), Some(timing), SLC, (512, 1))
            }
            // LightStore's node (NVRAMOS 2019): flash 1.2 GB/s read, 430 MB/s write, 120/480 µs [S, inputs]. 8 channels of 8
            // dies with 8 KiB pages [M]; bus 1,200 / 8 = 150 MB/s of data; tR and tPROG are what the latencies leave beside
            // 8 KiB on that bus; the write rate is held as the link's cap [D]. Blocks of 256 pages, tERASE 3 ms [A].
            "lightstore" => {
                let timing = NandTiming {
                    read_us: 56.0,
                    program_us: 403.0,
                    erase_us: 3000.0,
                    bus_mb_per_s: 158.2,
                    link_read_mb_per_s: 1200.0,
                    link_write_mb_per_s: 430.0,
                    request_us: 3.0,
                };
                (shape([8, 8, 1, 1, 32_768, 256, 8192, 448]), Some(timing), MLC, (1024, 30))
            }
            // SLICE's drives: Intel X25-V, 40 GB; 20,000 reads of 4 KB/s a drive (CORFU) [S]. Five channels of 34 nm MLC,
            // read 170 and write 35 MB/s [M, data sheet], held as the link's caps; 4 KiB pages, tR 50 µs, tPROG 900 µs,
            // tERASE 3 ms [A]; the bus is what 25,000 reads of 4 KB/s [M, data sheet] leave [D].
            "x25v" => {
                let timing = NandTiming {
                    read_us: 50.0,
                    program_us: 900.0,
                    erase_us: 3000.0,
                    bus_mb_per_s: 30.0,
                    link_read_mb_per_s: 170.0,
                    link_write_mb_per_s: 35.0,
                    request_us: 10.0,
                };
                let wear = Wear { rated_erases: 5000.0, ..MLC };
                (shape([5, 1, 2, 1, 7630, 256, 4096, 218]), Some(timing), wear, (512, 12))
            }
            _ => return None,
        };
        Some(Self {
            preset: name.into(),
            geometry,
            is_timed: timing.is_some(),
            timing: timing.unwrap_or(UNTIMED),
            wear,
            wears: false,
            ecc: EccSpec { codeword_bytes: ecc.0, correctable_bits: ecc.1 },
            is_raw: false,
            program_failure: 0.0,
            bit_flip: 0.0,
            keeps_data: true,
            seed: 1,
            path: None,
        })
    }
}
