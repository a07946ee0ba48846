//! Media that correct themselves get the checksum alone: whatever changes on them, no reader of raw flash is given it for
//! what was written.

use crate::raw::disk::{Disk, shape};
use crate::raw::{in_virtual_time, nand, segment};
use bytes::Bytes;
use pumice_base::rng::Rng;
use pumice_flash::{BlockAddr, FlashError};
use pumice_reactor::IoBuf;
use pumice_segment::ftl::{Place, RawDamage, RawError, RawFlash, RawFormat, RawOptions, ScrubOptions};

const FORMAT: RawFormat = RawFormat { drive_id: [7; 16], force: false };
const UNPACED: ScrubOptions = ScrubOptions { bytes_per_second: u64::MAX, refresh: false };
/// Checksums beside the pages, and in a table of three pages at each end of a block.
const BESIDE: &str = "emu:tiny,channels=4,blocks=16,pages=8,oob=64";
const IN_BAND: &str = "emu:tiny,channels=4,blocks=16,pages=256,page=512,oob=0";
/// A table for one segment only, so that others push it out.
const ONE_TABLE: RawOptions = RawOptions { erased_ahead: 1, sums_memory_bytes: 0 };

/// A drive on each kind of media, one after the other; the table of checksums takes 1 page of the first and 3 of the others.
async fn disks() -> [Disk; 4] {
    [
        Disk::file(shape(8, 4096)).await,
        Disk::file(shape(256, 512)).await,
        Disk::nand(BESIDE).await,
        Disk::nand(IN_BAND).await,
    ]
}

async fn formatted(disk: &Disk, options: RawOptions) -> RawFlash {
    let format = RawFormat { force: true, ..FORMAT };
    let raw = RawFlash::format(disk.device.clone(), format, options).await;
    raw.unwrap_or_else(|error| panic!("{}: {error}", disk.name))
}

async fn write(raw: &RawFlash, id: u128, seed: u64) {
    let written = raw.write(&raw.client(), id, Place::ById, segment(raw, seed)).await;
    written.unwrap_or_else(|error| panic!("write {id}: {error}"));
}

async fn read(raw: &RawFlash, id: u128, offset: u32, len: u32) -> (Result<(), RawError>, IoBuf) {
    let (result, buf) = raw.read(&raw.client(), id, offset, IoBuf::zeroed(len as usize)).await;
    (result.map(drop), buf)
}

/// Pages of a block before its segment's first, and of the segment.
fn pages(raw: &RawFlash) -> (u32, u32) {
    let (geometry, of_segment) = (raw.geometry(), raw.segment_bytes() / raw.geometry().page_bytes);
    ((geometry.pages_per_block - of_segment) / 2, of_segment)
}

/// Segment `id` of contents `seed` reads, whole and page by page, but for page `bad`, which is named.
async fn check(raw: &RawFlash, id: u128, seed: u64, bad: Option<u32>, context: &str) {
    let (expected, page_bytes) = (segment(raw, seed), raw.geometry().page_bytes);
    let is_named = |result: &Result<(), RawError>| {
        matches!(result, Err(RawError::Unverified { id: of, page, block })
            if *of == id && Some(*page) == bad && Some(*block) == raw.place_of(id))
    };
    let (result, buf) = read(raw, id, 0, raw.segment_bytes()).await;
    match bad {
        None => assert!(result.is_ok() && buf[..] == expected[..], "{context}: {id}: {result:?}"),
        Some(_) => assert!(is_named(&result) && buf.iter().all(|&byte| byte == 0), "{context}: {result:?}"),
    }
    // The pages beside it, and some others.
    let near = bad.map_or(0..3, |bad| bad.saturating_sub(1)..bad + 2);
    for page in near.filter(|&page| page < pages(raw).1) {
        let (result, buf) = read(raw, id, page * page_bytes, page_bytes).await;
        if Some(page) == bad {
            assert!(is_named(&result), "{context}: page {page}: {result:?}");
        } else {
            let at = (page * page_bytes) as usize;
            let same = buf[..] == expected[at..at + page_bytes as usize];
            assert!(result.is_ok() && same, "{context}: page {page}: {result:?}");
        }
    }
}

/// `PUMICE_SEED` draws other bits.
fn seed() -> u64 {
    std::env::var("PUMICE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

#[test]
fn a_flipped_bit_is_told_by_id_and_page_and_harms_no_other_page() {
    let seed = seed();
    in_virtual_time(move || async move {
        for (disk, options) in disks().await.into_iter().flat_map(|disk| {
            let disk = std::rc::Rc::new(disk);
            [(disk.clone(), RawOptions::default()), (disk, ONE_TABLE)]
        }) {
            let raw = formatted_anew(&disk, options).await;
            let geometry = raw.geometry();
            let (before, of_segment) = pages(&raw);
            for id in 0..4 {
                write(&raw, id, id as u64).await;
            }
            let mut rng = Rng::from_seed(seed);
            let (mut lost, mut ends) = (0, 0);
            for flip in 0..120 {
                let id = u128::from(rng.below(4));
                let block = raw.place_of(id).expect("there");
                // Every third in the first or last pages, where the tables are if there are any.
                let page = match rng.below(3) {
                    0 if rng.chance(0.5) => rng.below(4) as u32,
                    0 => geometry.pages_per_block - 1 - rng.below(4) as u32,
                    _ => rng.below(u64::from(geometry.pages_per_block)) as u32,
                };
                let (at, bit) = (rng.below(u64::from(geometry.page_bytes)) as u32, rng.below(8) as u32);
                let context = format!(
                    "{}, {options:?}, flip {flip}: page {page} byte {at} bit {bit}: PUMICE_SEED={seed} cargo test -p \
                     pumice-segment --test it ftl_sums::",
                    disk.name
                );
                let bad = page.checked_sub(before).filter(|&page| page < of_segment);
                disk.flip(block, page * geometry.page_bytes + at, bit).await;
                // Tables that were in memory may have been pushed out by now, or not.
                check(&raw, (id + 1) % 4, ((id + 1) % 4) as u64, None, &context).await;
                let (stats, scrub) = (raw.stats(), raw.scrub_stats());
                check(&raw, id, id as u64, bad, &context).await;
                raw.scrub_pass(UNPACED).await.expect("patrol");
                let (found, seen) = (raw.stats(), raw.scrub_stats());
                // Its page alone, the whole of it, and the patrol.
                let told = if bad.is_some() { 3 } else { 0 };
                assert_eq!(found.unverified - stats.unverified, told, "{context}");
                assert_eq!(seen.lost - scrub.lost, u64::from(bad.is_some()), "{context}");
                assert_eq!(seen.weak - scrub.weak, u64::from(bad.is_none()), "{context}");
                (lost, ends) = (lost + u32::from(bad.is_some()), ends + u32::from(bad.is_none()));
                disk.flip(block, page * geometry.page_bytes + at, bit).await;
                check(&raw, id, id as u64, None, &context).await;
            }
            assert!(
                lost > 50 && (ends > 10 || before == 0),
                "{}: {lost} of pages, {ends} of ends",
                disk.name
            );
        }
    });
}

/// Formats with an identity of its own.
async fn formatted_anew(disk: &Disk, options: RawOptions) -> RawFlash {
    let mut drive_id = [1; 16];
    drive_id[0] = options.sums_memory_bytes.min(255) as u8;
    let format = RawFormat { drive_id, force: true };
    let raw = RawFlash::format(disk.device.clone(), format, options).await;
    raw.unwrap_or_else(|error| panic!("{}: {error}", disk.name))
}

#[test]
fn a_flipped_bit_beside_a_page_is_told_as_the_page_s() {
    let seed = seed();
    in_virtual_time(move || async move {
        let disk = Disk::nand(BESIDE).await;
        let raw = formatted(&disk, RawOptions::default()).await;
        write(&raw, 5, 5).await;
        let block = raw.place_of(5).expect("there");
        let mut rng = Rng::from_seed(seed);
        for _ in 0..100 {
            let (page, bit) = (rng.below(8) as u32, rng.below(8) as u32);
            let context = format!("page {page} bit {bit}: PUMICE_SEED={seed}");
            // The checksum is the last four of the 64 bytes.
            let byte = 60 + rng.below(4) as u32;
            disk.flip_beside(block, page, byte, bit).await;
            check(&raw, 5, 5, Some(page), &context).await;
            disk.flip_beside(block, page, byte, bit).await;
            // A tag that a restart could not read: the patrol says so, and the segment is read.
            let (end, byte) = (rng.below(2) as u32 * 7, rng.below(60) as u32);
            disk.flip_beside(block, end, byte, bit).await;
            check(&raw, 5, 5, None, &context).await;
            let weak = raw.scrub_stats().weak;
            raw.scrub_pass(UNPACED).await.expect("patrol");
            assert_eq!(raw.scrub_stats().weak - weak, 1, "{context}: byte {byte} of the tag");
            disk.flip_beside(block, end, byte, bit).await;
        }
    });
}

#[test]
fn what_lay_there_in_the_blocks_last_life_is_refused() {
    in_virtual_time(|| async {
        for disk in disks().await {
            let options = RawOptions { erased_ahead: 0, ..RawOptions::default() };
            let raw = formatted(&disk, options).await;
            let geometry = raw.geometry();
            let (before, of_segment) = pages(&raw);
            let all = 0..geometry.pages_per_block;
            write(&raw, 4, 1).await;
            let block = raw.place_of(4).expect("there");
            let mut old = Vec::new();
            for page in all.clone() {
                old.push(disk.page(block, page).await);
            }
            // The same id on the same block again, with other contents.
            let mut lives = 0;
            loop {
                raw.erase(&raw.client(), 4).await.expect("erase");
                write(&raw, 4, 2).await;
                lives += 1;
                if raw.place_of(4) == Some(block) {
                    break;
                }
                assert!(lives < 100, "the block has its turn");
            }
            let mut new = Vec::new();
            for page in all.clone() {
                new.push(disk.page(block, page).await);
            }
            let name = &disk.name;
            check(&raw, 4, 2, None, name).await;
            // One page, as if its write had been lost.
            for page in [0, 1, of_segment / 2, of_segment - 1] {
                disk.put(block, before + page, &old[(before + page) as usize]).await;
                check(&raw, 4, 2, Some(page), &format!("{name}: page {page}")).await;
                disk.put(block, before + page, &new[(before + page) as usize]).await;
            }
            // All of it, tags and tables included: the first page that is asked for is named.
            for page in all.clone() {
                disk.put(block, page, &old[page as usize]).await;
            }
            for page in [0, of_segment - 1] {
                let (result, _) =
                    read(&raw, 4, page * geometry.page_bytes, (of_segment - page) * geometry.page_bytes)
                        .await;
                assert!(
                    matches!(result, Err(RawError::Unverified { id: 4, page: at, .. }) if at == page),
                    "{name}: {result:?}"
                );
            }
            for page in all {
                disk.put(block, page, &new[page as usize]).await;
            }
            check(&raw, 4, 2, None, name).await;
            // A page of elsewhere: the same place of another segment, and another place of this one.
            write(&raw, 8, 3).await;
            let other = raw.place_of(8).expect("there");
            disk.put(block, before, &disk.page(other, before).await).await;
            check(&raw, 4, 2, Some(0), &format!("{name}: another segment's page")).await;
            disk.put(block, before, &new[before as usize]).await;
            disk.put(block, before + 1, &new[before as usize]).await;
            check(&raw, 4, 2, Some(1), &format!("{name}: the page before")).await;
        }
    });
}

#[test]
fn a_block_of_equal_pages_still_tells_which_is_which() {
    in_virtual_time(|| async {
        let disk = Disk::nand(BESIDE).await;
        let raw = formatted(&disk, RawOptions::default()).await;
        let zeros = Bytes::from(vec![0; raw.segment_bytes() as usize]);
        raw.write(&raw.client(), 1, Place::ById, zeros).await.expect("write");
        let block = raw.place_of(1).expect("there");
        let mut sums = Vec::new();
        for page in 0..8 {
            sums.push(disk.page(block, page).await.1[60..64].to_vec());
        }
        sums.sort_unstable();
        sums.dedup();
        assert_eq!(sums.len(), 8, "equal pages have checksums of their own");
    });
}

#[test]
fn a_table_that_is_lost_is_stood_in_for_by_its_copy_and_the_patrol_writes_both_anew() {
    in_virtual_time(|| async {
        let (device, nand) = nand(IN_BAND).await;
        let raw = RawFlash::format(device, FORMAT, ONE_TABLE).await.expect("format");
        for (id, lost) in [(1, 0..3), (2, 253..256), (3, 1..2), (4, 254..255)] {
            write(&raw, id, 9).await;
            write(&raw, 100 + id, 9).await;
            let block = raw.place_of(id).expect("there");
            lost.for_each(|page| nand.tear_page(block, page));
            check(&raw, id, 9, None, "one copy is left").await;
            raw.scrub_pass(ScrubOptions { refresh: true, ..UNPACED }).await.expect("patrol");
            assert_eq!(raw.scrub_stats().refreshed, id as u64);
            assert_ne!(raw.place_of(id), Some(block), "moved");
            check(&raw, id, 9, None, "elsewhere").await;
        }
        // Both: nothing can be told from anything.
        write(&raw, 5, 9).await;
        write(&raw, 6, 9).await;
        let block = raw.place_of(5).expect("there");
        [0, 1, 2, 253, 254, 255].into_iter().for_each(|page| nand.tear_page(block, page));
        let (result, _) = read(&raw, 5, 512 * 7, 512).await;
        assert!(matches!(result, Err(RawError::Unverified { id: 5, page: 7, .. })), "{result:?}");
        assert!(matches!(raw.refresh(&raw.client(), 5).await, Err(RawError::Unverified { .. })));
        assert_eq!(raw.place_of(5), Some(block), "it stays where it is");
    });
}

#[test]
fn parts_of_pages_are_read_and_the_whole_page_is_verified() {
    in_virtual_time(|| async {
        let shapes =
            ["channels=2,blocks=16,pages=8,page=16KiB,oob=64", "channels=2,blocks=16,pages=8,page=16KiB"];
        for spec in shapes.map(|shape| format!("emu:tiny,{shape}")) {
            let disk = Disk::nand(&spec).await;
            let raw = formatted(&disk, RawOptions::default()).await;
            write(&raw, 1, 3).await;
            let whole = segment(&raw, 3);
            for (at, len) in [(4096, 4096), (12_288, 8192), (0, 20_480), (28_672, 40_960), (16_384, 16_384)] {
                let (result, buf) = read(&raw, 1, at, len).await;
                assert!(result.is_ok() && buf[..] == whole[at as usize..(at + len) as usize], "{at} {len}");
            }
            let odd = read(&raw, 1, 512, 4096).await.0;
            assert!(matches!(odd, Err(RawError::Flash(FlashError::Unaligned { .. }))), "{odd:?}");
            let beyond = read(&raw, 1, raw.segment_bytes(), 4096).await.0;
            assert!(matches!(beyond, Err(RawError::Flash(FlashError::Oversize { .. }))), "{beyond:?}");
            // In the page's last part, when its first is asked for.
            let block: BlockAddr = raw.place_of(1).expect("there");
            let (before, _) = pages(&raw);
            disk.flip(block, (before + 1) * 16_384 + 16_000, 3).await;
            let part = read(&raw, 1, 16_384, 4096).await.0;
            assert!(matches!(part, Err(RawError::Unverified { id: 1, page: 1, .. })), "{part:?}");
            read(&raw, 1, 12_288, 4096).await.0.expect("the page before");
        }
    });
}

#[test]
fn bits_that_flip_on_their_way_are_looked_at_again() {
    in_virtual_time(|| async {
        for spec in [BESIDE, IN_BAND].map(|spec| format!("{spec},bit_flip=0.02")) {
            let (device, _) = nand(&spec).await;
            let raw = RawFlash::format(device, FORMAT, RawOptions::default()).await.expect("format");
            for id in 0..4 {
                write(&raw, id, id as u64).await;
            }
            let (mut told, page_bytes) = (0, raw.geometry().page_bytes);
            for step in 0..2000u64 {
                let (id, page) = (u128::from(step % 4), (step / 4) as u32 % pages(&raw).1);
                let (result, buf) = read(&raw, id, page * page_bytes, page_bytes).await;
                let at = (page * page_bytes) as usize;
                let expected = &segment(&raw, id as u64)[at..at + page_bytes as usize];
                match result {
                    Ok(()) => assert!(buf[..] == *expected, "{spec}: step {step}"),
                    Err(RawError::Unverified { .. }) => told += 1,
                    Err(error) => panic!("{spec}: {error}"),
                }
            }
            // 40 of the reads flip once; twice in a row, about one.
            assert!(told < 10, "{spec}: {told} of 2000 reads");
        }
    });
}

#[test]
fn a_read_costs_one_device_read_where_its_table_is_kept_and_tables_keep_their_bound() {
    in_virtual_time(|| async {
        let (device, nand) = nand("emu:tiny,channels=4,blocks=64,pages=256,page=512,oob=0").await;
        // Sixty segments of 250 pages; room for twenty tables.
        let table_bytes = 250 * 4 + 160;
        let options = RawOptions { sums_memory_bytes: 20 * table_bytes + 5, ..RawOptions::default() };
        let raw = RawFlash::format(device.clone(), FORMAT, options).await.expect("format");
        assert_eq!(raw.sums_memory_bytes(), 0);
        for id in 0..60 {
            write(&raw, id, id as u64).await;
        }
        assert_eq!(raw.sums_memory_bytes(), 20 * table_bytes, "never more");
        let reads = async |id: u128, page: u32| {
            let before = nand.counts().reads;
            read(&raw, id, page * 512, 512).await.0.expect("read");
            nand.counts().reads - before
        };
        assert_eq!(reads(59, 3).await, 1, "what was just written is kept");
        assert_eq!(reads(0, 3).await, 2, "the page and the table");
        // Twenty segments, over and over: in the end the tables of those are kept.
        let mut rng = Rng::from_seed(1);
        for step in 0..60 {
            reads(step % 20, 0).await;
        }
        for _ in 0..1000 {
            assert_eq!(reads(u128::from(rng.below(20)), rng.below(250) as u32).await, 1);
        }
        assert_eq!(raw.sums_memory_bytes(), 20 * table_bytes);
        // Where checksums lie beside the pages no table is kept.
        let (device, nand) = crate::raw::nand(BESIDE).await;
        let raw = RawFlash::format(device, FORMAT, RawOptions::default()).await.expect("format");
        write(&raw, 0, 0).await;
        let before = nand.counts().reads;
        read(&raw, 0, 4096, 4096).await.0.expect("read");
        assert_eq!((nand.counts().reads - before, raw.sums_memory_bytes()), (1, 0));
    });
}

#[test]
fn a_write_that_is_cut_short_leaves_a_whole_segment_or_none() {
    in_virtual_time(|| async {
        for spec in [IN_BAND, BESIDE, "emu:tiny,channels=4,blocks=16,pages=128,page=512,oob=64,ecc=off"] {
            let mut cuts = 0;
            loop {
                let (device, nand) = nand(spec).await;
                let raw =
                    RawFlash::format(device.clone(), FORMAT, RawOptions::default()).await.expect("format");
                write(&raw, 1, 1).await;
                nand.cut_power_at(1 + cuts);
                let written = raw.write(&raw.client(), 2, Place::ById, segment(&raw, 2)).await;
                drop(raw);
                nand.power_on();
                let raw = RawFlash::open(device, RawOptions::default(), &|_, _| ()).await.expect("open").raw;
                let context = format!("{spec}, cut {cuts}");
                check(&raw, 1, 1, None, &context).await;
                assert!(written.is_err() || raw.place_of(2).is_some(), "{context}");
                if raw.place_of(2).is_some() {
                    check(&raw, 2, 2, None, &context).await;
                }
                raw.scrub_pass(UNPACED).await.expect("patrol");
                assert_eq!((raw.scrub_stats().lost, raw.scrub_stats().weak), (0, 0), "{context}");
                cuts += 1;
                if written.is_ok() {
                    break;
                }
            }
            assert!(cuts > 3, "{spec}: {cuts} cuts");
        }
    });
}

#[test]
fn tags_and_checksums_take_less_than_a_hundredth_of_a_drive_and_the_space_adds_up() {
    in_virtual_time(|| async {
        // 64 GiB in blocks of 8 MiB, sparse.
        let of_file = pumice_flash::Geometry { blocks_per_channel: 2048, ..shape(2048, 4096) };
        for disk in [Disk::file(of_file).await, Disk::nand("emu:sdf,channels=4,blocks=2048,timing=off").await]
        {
            let raw = formatted(&disk, RawOptions::default()).await;
            write(&raw, 1, 1).await;
            let (space, total) = (raw.space(), raw.space().total());
            assert_eq!(space.accounted(), space.raw, "{}", disk.name);
            let page_bytes = u64::from(raw.geometry().page_bytes);
            let expected = if raw.geometry().oob_bytes == 0 { (2, 4) } else { (0, 0) };
            assert_eq!((total.tags, total.sums), (expected.0 * page_bytes, expected.1 * page_bytes));
            assert_eq!(total.live, u64::from(raw.segment_bytes()));
            let usable = total.usable as f64 / space.raw as f64;
            assert!(usable >= 0.99, "{}: {usable}", disk.name);
        }
    });
}

#[test]
fn a_tag_that_changed_does_not_cost_a_segment_that_was_whole() {
    in_virtual_time(|| async {
        for disk in disks().await {
            let raw = formatted(&disk, RawOptions::default()).await;
            write(&raw, 1, 1).await;
            raw.close().await.expect("close");
            let open = async || {
                let opened = RawFlash::open(disk.device.clone(), RawOptions::default(), &|_, _| ()).await;
                opened.unwrap_or_else(|error| panic!("{}: {error}", disk.name))
            };
            let raw = open().await.raw;
            let (block, geometry) = (raw.place_of(1).expect("there"), raw.geometry());
            drop(raw);
            // In the last page's tag, while the drive is not closed.
            let last = geometry.pages_per_block - 1;
            match geometry.oob_bytes {
                0 => disk.flip(block, last * geometry.page_bytes + 20, 3).await,
                _ => disk.flip_beside(block, last, 20, 3).await,
            }
            let opened = open().await;
            assert_eq!(opened.damage, [RawDamage::LostPage { block, id: 1 }], "{}", disk.name);
            check(&opened.raw, 1, 1, None, &disk.name).await;
            opened.raw.scrub_pass(ScrubOptions { refresh: true, ..UNPACED }).await.expect("patrol");
            assert_eq!(opened.raw.scrub_stats().refreshed, 1, "{}", disk.name);
            drop(opened);
            let opened = open().await;
            assert!(opened.damage.is_empty(), "{}: {:?}", disk.name, opened.damage);
            check(&opened.raw, 1, 1, None, &disk.name).await;
        }
    });
}
