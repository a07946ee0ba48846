//! Records of the metadata log are there twice: any bit may flip in one of the two, and any page be lost, and the drive opens as it
//! was, says so to a check, and writes both again.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use bytes::Bytes;

use crate::common::{append, file, format_options, no_progress, options};
use pumice_flash::{Access, Device, DeviceSpec};
use pumice_segment::layout::meta::{Decoded, MetaRecord};
use pumice_segment::{FormatOptions, Heap, HeapError, MetaEdit};

const SEGMENT_BYTES: u64 = 256 << 10;
const PAGE_BYTES: usize = 4096;
const DRIVE_BYTES: u64 = 16 << 20;
const DRIVE: [u8; 16] = *b"0123456789abcdef";
/// Where the halves of the log begin, of two segments each.
const HALVES: [u64; 2] = [2 * SEGMENT_BYTES, 4 * SEGMENT_BYTES];

/// What the client's state is: short, and of more than a page.
fn states() -> [Bytes; 4] {
    [b"first".to_vec(), vec![2; 5000], vec![3; 9000], b"last".to_vec()].map(Bytes::from)
}

fn on_disk(dir: &Path) -> File {
    File::options().read(true).write(true).open(dir.join("drive")).expect("drive")
}

/// A drive whose log has a snapshot and edits in each half; closed, or left as by a crash.
async fn drive(dir: &Path, is_closed: bool) {
    let device = file(dir, DRIVE_BYTES).await;
    let format = FormatOptions { segment_bytes: SEGMENT_BYTES as u32, drive_id: DRIVE, ..format_options() };
    Heap::format(&device, &format).await.expect("format");
    let mut opened = Heap::open(device, options(), &no_progress).await.expect("open");
    assert!(opened.replay.next().await.expect("replay").is_none());
    let heap = opened.heap;
    heap.commit_meta(MetaEdit::Snapshot(Bytes::from_static(b"older")), 0).await.expect("snapshot");
    heap.commit_meta(MetaEdit::Edit(Bytes::from_static(b"older, too")), 0).await.expect("edit");
    let [first, edits @ ..] = states();
    heap.commit_meta(MetaEdit::Snapshot(first), 0).await.expect("snapshot");
    let appended = append(&heap, 1, &[7; 500]).expect("append");
    heap.wait_durable(appended.first_seq).await.expect("durable");
    // Closed, it has nothing to be replayed.
    let replay_from = if is_closed { appended.first_seq } else { 0 };
    for edit in edits {
        heap.commit_meta(MetaEdit::Edit(edit), replay_from).await.expect("edit");
    }
    if is_closed {
        heap.close().await.expect("close");
    }
}

async fn open(dir: &Path, access: Access, is_closed: bool) -> Result<Heap, HeapError> {
    let device = Device::open(&DeviceSpec::Path(dir.join("drive")), access).await.expect("file");
    let mut opened = Heap::open(device, options(), &no_progress).await?;
    assert_eq!(opened.clean, is_closed);
    let mut found = Vec::new();
    while let Some(batch) = opened.replay.next().await? {
        assert!(batch.damage.is_empty(), "damage: {:?}", batch.damage);
        found.extend(batch.records.iter().map(|record| record.payload[0]));
    }
    assert_eq!(found, if is_closed { &[][..] } else { &[7] });
    assert_eq!(opened.client_state, states(), "the client's state");
    Ok(opened.heap)
}

/// Where the newest snapshot's half begins and its log ends, and the places of its records: where each begins and how long it is,
/// once.
fn newest(image: &Bytes) -> (u64, Vec<(u64, usize)>) {
    let read = |half: u64| {
        let log = image.slice(half as usize..(half + 2 * SEGMENT_BYTES) as usize);
        let (mut at, mut records, mut generation) = (0, Vec::new(), 0);
        while let Decoded::Record(record) = MetaRecord::decode(&log.slice(at..), &DRIVE, at as u64) {
            assert!(record.is_twice);
            let len = record.encoded_bytes().next_multiple_of(PAGE_BYTES);
            records.push((half + at as u64, len));
            generation = record.generation;
            at += 2 * len;
        }
        (generation, half, records)
    };
    let (_, half, records) =
        HALVES.map(read).into_iter().max_by_key(|(generation, ..)| *generation).expect("two");
    (half, records)
}

/// Changes the drive by `hurt` in each of the two copies of each record, and both must not matter.
fn check(is_closed: bool, hurt: impl Fn(&File, u64, usize)) {
    pumice_reactor::block_on(async {
        let dir = tempfile::tempdir().expect("directory");
        drive(dir.path(), is_closed).await;
        let image = Bytes::from(std::fs::read(dir.path().join("drive")).expect("image"));
        let (_, records) = newest(&image);
        assert!(records.len() >= 4, "{records:?}");
        let last = records[records.len() - 1];
        for (place, len) in records {
            for copy in [place, place + len as u64] {
                let disk = on_disk(dir.path());
                disk.set_len(0).expect("empty");
                disk.write_all_at(&image, 0).expect("write");
                hurt(&disk, copy, len);
                // To look at it changes nothing.
                let heap = open(dir.path(), Access::ReadOnly, is_closed).await.expect("opens to read");
                let damage = heap.metadata_damage().await.expect("check");
                let found: Vec<u64> = damage
                    .iter()
                    .map(|d| u64::from(d.segment.0) * SEGMENT_BYTES + u64::from(d.offset))
                    .collect();
                assert_eq!(found, [copy], "{damage:?}");
                drop(heap);
                let heap = open(dir.path(), Access::ReadWrite, is_closed).await.expect("opens to write");
                if (place, len) == last {
                    // Power may have failed while it was written: whoever opens the drive writes it again at once.
                    assert!(heap.metadata_damage().await.expect("check").is_empty(), "record at {copy}");
                }
                // The first record that is written is a snapshot.
                let appended = append(&heap, 1, &[8; 500]).expect("append");
                heap.wait_durable(appended.first_seq).await.expect("durable");
                if copy == place {
                    assert!(heap.metadata_damage().await.expect("check").is_empty(), "record at {place}");
                }
                heap.close().await.expect("close");
            }
        }
    });
}

#[test]
fn a_bit_that_flips_anywhere_in_a_record_costs_nothing() {
    for is_closed in [true, false] {
        // Magic, checksum, version, length, generation, index, state, and the last byte of the first page.
        for byte in [0, 5, 8, 12, 13, 16, 23, 24, 60, 4095] {
            check(is_closed, |disk, record, _| {
                let mut found = [0];
                disk.read_exact_at(&mut found, record + byte).expect("read");
                // Behind what a record holds its page is filled up, which nobody looks at.
                let byte = if found == [0] && byte == 4095 { 16 } else { byte };
                disk.read_exact_at(&mut found, record + byte).expect("read");
                disk.write_all_at(&[found[0] ^ 0x10], record + byte).expect("write");
            });
        }
    }
}

#[test]
fn a_record_that_is_overwritten_with_anything_costs_nothing() {
    for is_closed in [true, false] {
        for with in [0xA5, 0xFF] {
            check(is_closed, |disk, record, len| {
                disk.write_all_at(&vec![with; len], record).expect("write");
            });
        }
    }
}

/// While the drive is served nobody reads the log: the patrol finds what changed there, and has it written anew.
#[test]
fn the_patrol_finds_either_copy_and_has_both_written_again() {
    pumice_reactor::block_on(async {
        for copy in [0, 1] {
            let dir = tempfile::tempdir().expect("directory");
            drive(dir.path(), true).await;
            let heap = open(dir.path(), Access::ReadWrite, true).await.expect("opens");
            let image = Bytes::from(std::fs::read(dir.path().join("drive")).expect("image"));
            let (_, records) = newest(&image);
            let (place, len) = records[1];
            on_disk(dir.path()).write_all_at(&[0xA5; 8], place + copy * len as u64 + 30).expect("rot");
            let mut patrol = heap.patrol();
            while heap.patrol_stats().passes == 0 {
                patrol.step().await.expect("reads");
            }
            assert_eq!(heap.patrol_stats().renewed, 1);
            assert!(heap.metadata_damage().await.expect("check").is_empty());
            assert_eq!(heap.damage_found(), 0, "it is not there any more");
        }
    });
}

/// What was torn by a power cut in either copy is a record or none, as it was before there were two.
#[test]
fn a_record_that_is_torn_counts_if_either_copy_is_whole() {
    pumice_reactor::block_on(async {
        let dir = tempfile::tempdir().expect("directory");
        drive(dir.path(), true).await;
        let image = Bytes::from(std::fs::read(dir.path().join("drive")).expect("image"));
        let (_, records) = newest(&image);
        let (place, len) = *records.last().expect("the closing one");
        for (torn, is_clean) in [(place, true), (place + len as u64, true)] {
            let disk = on_disk(dir.path());
            disk.write_all_at(&image, 0).expect("write");
            disk.write_all_at(&vec![0xA5; len], torn).expect("write");
            drop(disk);
            let device = Device::open(&DeviceSpec::Path(dir.path().join("drive")), Access::ReadOnly)
                .await
                .expect("file");
            let opened = Heap::open(device, options(), &no_progress).await.expect("opens");
            assert_eq!((opened.clean, opened.client_state), (is_clean, states().to_vec()));
        }
        // Neither: the one before is the last, and a recovery looks for what follows.
        let disk = on_disk(dir.path());
        disk.write_all_at(&image, 0).expect("write");
        disk.write_all_at(&vec![0xA5; 2 * len], place).expect("write");
        let device =
            Device::open(&DeviceSpec::Path(dir.path().join("drive")), Access::ReadOnly).await.expect("file");
        let opened = Heap::open(device, options(), &no_progress).await.expect("opens");
        assert_eq!((opened.clean, opened.client_state), (false, states().to_vec()));
    });
}

/// What the opening of a closed drive reads is hardly more than a snapshot, however much was written to the log since the last.
#[test]
fn a_long_log_is_closed_with_a_snapshot() {
    pumice_reactor::block_on(async {
        // In one page each, and its copy. Beside the edits there are the first snapshot and the closing record.
        for (edits, records_then) in [(5, 7), (40, 1)] {
            let dir = tempfile::tempdir().expect("directory");
            let device = file(dir.path(), DRIVE_BYTES).await;
            let segment_bytes = SEGMENT_BYTES as u32;
            let format = FormatOptions { segment_bytes, drive_id: DRIVE, ..format_options() };
            Heap::format(&device, &format).await.expect("format");
            let mut opened = Heap::open(device, options(), &no_progress).await.expect("open");
            assert!(opened.replay.next().await.expect("replay").is_none());
            for number in 0..edits {
                let edit = MetaEdit::Edit(Bytes::from(vec![number; 1000]));
                opened.heap.commit_meta(edit, 0).await.expect("edit");
            }
            opened.heap.close().await.expect("close");
            let image = Bytes::from(std::fs::read(dir.path().join("drive")).expect("image"));
            let (_, records) = newest(&image);
            assert_eq!(records.len(), records_then, "{edits} edits");
            let device = Device::open(&DeviceSpec::Path(dir.path().join("drive")), Access::ReadOnly).await;
            let again = Heap::open(device.expect("file"), options(), &no_progress).await.expect("open");
            assert!(again.clean);
            assert_eq!(again.client_state.len(), usize::from(edits));
        }
    });
}
