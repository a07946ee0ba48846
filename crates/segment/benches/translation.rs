//! What raw flash costs the processor: from an id to its place (LightStore's hardware takes 700 ns), the tables' memory,
//! checksums of pages and BCH per core.
//!
//! `cargo bench -p pumice-segment --bench translation` prints tables in the form of `bench/`. With `--test`, as `cargo test` runs
//! it, a few look-ups only.

use std::hint::black_box;

use pumice_base::checksum::crc32c_seeded;
use pumice_base::rng::Rng;
use pumice_flash::bch::Bch;
use pumice_flash::{Access, Device};
use pumice_reactor::{IoBuf, block_on, now};
use pumice_segment::ftl::{Place, RawFlash, RawFormat, RawOptions};

/// Segments: those of a TiB at 8 MiB.
const SEGMENTS: u64 = 131_072 - 4;

/// Prints a table as the reports under `bench/results/` have them.
fn table(title: &str, columns: &[&str], rows: &[Vec<String>]) {
    println!("### {title}\n\n| {} |", columns.join(" | "));
    println!("|---|{}", "---:|".repeat(columns.len() - 1));
    rows.iter().for_each(|row| println!("| {} |", row.join(" | ")));
    println!();
}

/// Nanoseconds of each call.
fn each(calls: u64, mut call: impl FnMut(u64)) -> f64 {
    let start = now();
    for index in 0..calls {
        call(index);
    }
    start.elapsed().as_nanos() as f64 / calls as f64
}

async fn translate(segments: u64, lookups: u64) {
    let blocks = (segments + 4).div_ceil(8);
    let spec = format!("emu:tiny,channels=8,blocks={blocks},pages=4,page=512,oob=64,data=drop");
    let device = Device::open(&spec.parse().expect("spec"), Access::ReadWrite).await.expect("device");
    let format = RawFormat { drive_id: [7; 16], force: false };
    let raw = RawFlash::format(device, format, RawOptions { erased_ahead: 0, ..RawOptions::default() })
        .await
        .expect("format");
    let data = IoBuf::zeroed(raw.segment_bytes() as usize).freeze();
    let client = raw.client();
    let id = |number: u64| u128::from(number / 1000) << 64 | u128::from(number);
    let mut written = 0;
    // Choosing a block looks through its channel, so that filling takes longer than all the rest.
    for number in 0..segments {
        let place = Place::Channel((number % 8) as u16);
        written += u64::from(raw.write(&client, id(number), place, data.clone()).await.is_ok());
    }
    let mut rng = Rng::from_seed(1);
    let order: Vec<u128> = (0..65_536).map(|_| id(rng.below(segments))).collect();
    let found = each(lookups, |index| {
        black_box(raw.place_of(black_box(order[index as usize % order.len()])));
    });
    let missed = each(lookups, |index| {
        black_box(raw.place_of(black_box(order[index as usize % order.len()] | 1 << 127)));
    });
    let memory = format!("{:.2} MiB", raw.memory_bytes() as f64 / (1 << 20) as f64);
    let row = vec![written.to_string(), memory, format!("{found:.1}"), format!("{missed:.1}")];
    let title = "From a random id to its place, on one core (LightStore's hardware: 700 ns)";
    table(title, &["segments", "tables", "found, ns", "not there, ns"], &[row]);
}

/// What a read of a page adds where the media correct themselves: the checksum that it is compared with.
fn verify(pages: u64) {
    let mut rows = Vec::new();
    for page_bytes in [512usize, 4096, 8192, 16_384] {
        let mut page = vec![0; page_bytes];
        Rng::from_seed(3).fill(&mut page);
        let whose = [7u8; 36];
        let ns = each(pages, |number| {
            black_box(crc32c_seeded(number, &[black_box(&whose), black_box(&page)]));
        });
        rows.push(vec![
            format!("{page_bytes} B"),
            format!("{ns:.0}"),
            format!("{:.1}", page_bytes as f64 / ns),
        ]);
    }
    table("Checksums of pages, on one core", &["page", "ns", "GB/s"], &rows);
}

fn correct(words: u64) {
    let mut rows = Vec::new();
    for (data_bytes, bits) in [(512usize, 8usize), (1024, 30), (1024, 60)] {
        let code = Bch::new(data_bytes, bits).expect("code");
        let mut rng = Rng::from_seed(2);
        let (mut data, mut parity) = (vec![0; data_bytes], vec![0; code.parity_bytes()]);
        rng.fill(&mut data);
        let rate = |ns: f64| data_bytes as f64 * 1e3 / ns;
        let encode = each(words, |_| code.encode(black_box(&data), black_box(&mut parity)));
        let mut row = vec![format!("{data_bytes} B"), bits.to_string(), format!("{:.0}", rate(encode))];
        for flips in [0, 1, bits / 2, bits] {
            let mut flipped = data.clone();
            for flip in 0..flips {
                flipped[flip * data_bytes / bits] ^= 1 << (flip % 8);
            }
            let mut total = 0.0;
            for _ in 0..words {
                let (mut word, mut beside) = (flipped.clone(), parity.clone());
                let start = now();
                let found = code.decode(black_box(&mut word), black_box(&mut beside));
                total += start.elapsed().as_nanos() as f64;
                assert_eq!(found.ok(), Some(flips));
            }
            row.push(format!("{:.0}", rate(total / words as f64)));
        }
        rows.push(row);
    }
    let columns = ["codeword", "t", "encode", "decode: whole", "1 bit", "t/2 bits", "t bits"];
    table("BCH, MB/s of data on one core", &columns, &rows);
}

fn main() {
    let is_test =
        std::env::args().any(|argument| argument == "--test") || !std::env::args().any(|a| a == "--bench");
    let (segments, lookups, pages, words) =
        if is_test { (252, 1000, 10, 2) } else { (SEGMENTS, 10_000_000, 1_000_000, 2000) };
    block_on(translate(segments, lookups));
    block_on(async move {
        verify(pages);
        correct(words);
    });
}
