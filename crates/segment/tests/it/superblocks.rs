//! The two superblocks of a drive on a file: each alone opens it, and the one that does not verify is written again.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;

use crate::common::{append, file, format_options, no_progress, options};
use pumice_flash::{Access, Device, DeviceSpec, FlashError};
use pumice_segment::{FormatOptions, Heap, HeapError, MetaEdit};

const SEGMENT_BYTES: u32 = 256 << 10;
const DRIVE_BYTES: u64 = 16 << 20;
/// Where the two begin.
const PLACES: [u64; 2] = [0, SEGMENT_BYTES as u64];
/// Where the halves of the metadata log begin, of two segments each.
const HALVES: [u64; 2] = [2 * SEGMENT_BYTES as u64, 4 * SEGMENT_BYTES as u64];

fn on_disk(dir: &Path) -> File {
    File::options().read(true).write(true).open(dir.join("drive")).expect("drive")
}

fn flip(dir: &Path, at: u64) {
    let file = on_disk(dir);
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("read");
    file.write_all_at(&[byte[0] ^ 0x10], at).expect("write");
}

fn page(dir: &Path, at: u64) -> Vec<u8> {
    let mut page = vec![0; 4096];
    on_disk(dir).read_exact_at(&mut page, at).expect("read");
    page
}

/// Opens the drive, reads what it holds, and says which superblocks do not verify.
async fn open(dir: &Path, access: Access) -> Result<(Vec<u8>, Vec<u32>), HeapError> {
    let spec = DeviceSpec::Path(dir.join("drive"));
    let mut tries = 0;
    let device = loop {
        match Device::open(&spec, access).await {
            // What the heap before had begun when it was dropped (a metadata record, say) ends first.
            Err(FlashError::Locked { .. }) if tries < 1000 => tries += 1,
            opened => break opened.expect("file"),
        }
        pumice_reactor::sleep(Duration::from_millis(10)).await;
    };
    let mut opened = Heap::open(device, options(), &no_progress).await?;
    let mut found = Vec::new();
    while let Some(batch) = opened.replay.next().await? {
        assert!(batch.damage.is_empty(), "damage: {:?}", batch.damage);
        found.extend(batch.records.iter().map(|record| record.payload[0]));
    }
    let damaged = opened.heap.superblock_damage().await.expect("check");
    Ok((found, damaged.iter().map(|damage| damage.segment.0).collect()))
}

async fn new_drive(dir: &Path) {
    let device = file(dir, DRIVE_BYTES).await;
    let format = FormatOptions { segment_bytes: SEGMENT_BYTES, ..format_options() };
    Heap::format(&device, &format).await.expect("format");
    let mut opened = Heap::open(device, options(), &no_progress).await.expect("open");
    assert!(opened.replay.next().await.expect("replay").is_none());
    let appended = append(&opened.heap, 1, &[7; 500]).expect("append");
    opened.heap.wait_durable(appended.first_seq).await.expect("durable");
}

#[test]
fn a_drive_opens_by_either_superblock_and_writes_the_other_again() {
    for damaged in [0, 1] {
        // Magic, checksum, identity, shape, the client's configuration.
        for byte in [0, 13, 20, 41, 130] {
            pumice_reactor::block_on(async {
                let dir = tempfile::tempdir().expect("directory");
                new_drive(dir.path()).await;
                assert_eq!(page(dir.path(), PLACES[0]), page(dir.path(), PLACES[1]));
                flip(dir.path(), PLACES[damaged] + byte);
                let hurt = page(dir.path(), PLACES[damaged]);
                let (found, said) = open(dir.path(), Access::ReadOnly).await.expect("opens to read");
                assert_eq!((found, said), (vec![7], vec![damaged as u32]), "byte {byte}");
                assert_eq!(page(dir.path(), PLACES[damaged]), hurt, "a reader writes nothing");
                let (found, said) = open(dir.path(), Access::ReadWrite).await.expect("opens to write");
                assert_eq!((found, said), (vec![7], vec![]), "byte {byte}");
                assert_eq!(page(dir.path(), PLACES[0]), page(dir.path(), PLACES[1]));
            });
        }
    }
}

#[test]
fn a_drive_from_before_there_were_two_is_whole_and_gets_its_second() {
    pumice_reactor::block_on(async {
        let dir = tempfile::tempdir().expect("directory");
        new_drive(dir.path()).await;
        on_disk(dir.path()).write_all_at(&[0; 4096], PLACES[1]).expect("write");
        let (found, said) = open(dir.path(), Access::ReadOnly).await.expect("opens to read");
        assert_eq!((found, said), (vec![7], vec![]));
        open(dir.path(), Access::ReadWrite).await.expect("opens to write");
        assert_eq!(page(dir.path(), PLACES[0]), page(dir.path(), PLACES[1]));
    });
}

/// A snapshot of which neither copy reads any more while the one before it ends in a clean mark: what was written since must not
/// be forgotten in silence.
#[test]
fn an_older_snapshot_with_a_clean_mark_does_not_pass_for_the_newest() {
    for has_edit in [false, true] {
        pumice_reactor::block_on(async {
            let dir = tempfile::tempdir().expect("directory");
            let device = file(dir.path(), DRIVE_BYTES).await;
            let format = FormatOptions { segment_bytes: SEGMENT_BYTES, ..format_options() };
            Heap::format(&device, &format).await.expect("format");
            let opened = Heap::open(device, options(), &no_progress).await.expect("open");
            assert!(opened.clean);
            let heap = opened.heap;
            heap.commit_meta(MetaEdit::Snapshot(Bytes::from_static(b"newer")), 0).await.expect("snapshot");
            let appended = append(&heap, 1, &[7; 500]).expect("append");
            heap.wait_durable(appended.first_seq).await.expect("durable");
            if has_edit {
                heap.commit_meta(MetaEdit::Edit(Bytes::from_static(b"and more")), 0).await.expect("edit");
            }
            drop((heap, opened.replay));
            // Nothing but a file keeps what follows, and which half is the newer one the first bytes tell.
            let newer = HALVES.into_iter().max_by_key(|&half| page(dir.path(), half)[16]).expect("two");
            [100, 4096 + 100].into_iter().for_each(|at| flip(dir.path(), newer + at));
            let refused = open(dir.path(), Access::ReadOnly).await;
            assert!(matches!(&refused, Err(HeapError::Damaged(_))), "{refused:?}");
            // Not readable at all.
            on_disk(dir.path()).write_all_at(&[0xA5; 2 * 4096], newer).expect("write");
            let refused = open(dir.path(), Access::ReadOnly).await;
            assert!(matches!(&refused, Err(HeapError::Damaged(_))), "{refused:?}");
        });
    }
}

/// The power failed while the first snapshot after a clean close was written: the drive is what it was.
#[test]
fn a_snapshot_that_was_torn_leaves_the_drive_as_it_was() {
    pumice_reactor::block_on(async {
        let dir = tempfile::tempdir().expect("directory");
        new_drive(dir.path()).await;
        let (found, _) = open(dir.path(), Access::ReadWrite).await.expect("recovers");
        assert_eq!(found, [7]);
        assert!(HALVES.iter().all(|&half| page(dir.path(), half)[16] > 0), "both are in use");
        let older = HALVES.into_iter().min_by_key(|&half| page(dir.path(), half)[16]).expect("two");
        on_disk(dir.path()).write_all_at(&[0xA5; 4096], older).expect("write");
        let (found, said) = open(dir.path(), Access::ReadWrite).await.expect("opens");
        assert_eq!((found, said), (vec![7], vec![]));
    });
}

#[test]
fn without_either_superblock_there_is_no_drive() {
    pumice_reactor::block_on(async {
        let dir = tempfile::tempdir().expect("directory");
        new_drive(dir.path()).await;
        PLACES.into_iter().for_each(|at| flip(dir.path(), at + 50));
        let refused = open(dir.path(), Access::ReadOnly).await;
        assert!(matches!(refused, Err(HeapError::NotFormatted)), "{refused:?}");
    });
}
