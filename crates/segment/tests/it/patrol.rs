//! The patrol over the heap: it reads everything in turn, finds what decays and what is damaged, renews superblock and
//! metadata log, and goes on where it was after a restart.

use crate::common::mini::{History, Mini, Write};
use crate::common::{self, emulated, format_options, options};
use pumice_flash::{BlockAddr, Device, Emulated};
use pumice_reactor::IoBuf;
use pumice_segment::{Damage, Heap, HeapOptions, RecordPtr};

const SPEC: &str = "emu:tiny,channels=2,blocks=20,pages=16,oob=128,ecc=off";

fn small() -> HeapOptions {
    HeapOptions { commit_max_bytes: 16 << 10, reserve_segments: Some(4), ..options() }
}

/// Walks to the end of a pass; answers bytes read and what is damaged.
async fn pass(heap: &Heap) -> (u64, Vec<Damage>) {
    let (mut patrol, mut bytes, mut damage) = (heap.patrol(), 0, Vec::new());
    let passes = heap.patrol_stats().passes;
    for _ in 0..10_000 {
        if heap.patrol_stats().passes > passes {
            return (bytes, damage);
        }
        let step = patrol.step().await.expect("step");
        bytes += step.read_bytes;
        damage.extend(step.damage);
    }
    panic!("a pass without end: {:?}", heap.patrol_stats());
}

async fn filled(device: &Device) -> (Mini, History) {
    Heap::format(device, &format_options()).await.expect("format");
    let mut history = History::default();
    let mut mini = Mini::open(device, small()).await.expect("open");
    for key in 0..40 {
        let write = Write { key, value: Some((u64::from(key), 7000)) };
        mini.write(&mut history, vec![write]).await.expect("write");
    }
    mini.checkpoint().await.expect("checkpoint");
    (mini, history)
}

async fn flip(nand: &Emulated, block: BlockAddr, page_at: u32, bits: u32) {
    for bit in 0..bits {
        nand.flip_bit(block, page_at + bit * 50, 2).await.expect("flip");
    }
}

/// Blocks that begin with `magic`, and the last page that is written of each.
async fn blocks_with(device: &Device, magic: &[u8]) -> Vec<BlockAddr> {
    let (device, geometry) = (device.corrected().expect("corrected"), device.geometry());
    let mut found = Vec::new();
    for number in 0..geometry.block_count() {
        let block = geometry.block(number);
        let (result, buf) = device.read(block, 0, IoBuf::for_read(geometry.page_bytes as usize)).await;
        if result.is_ok() && buf.starts_with(magic) {
            found.push(block);
        }
    }
    found
}

fn place(device: &Device, ptr: RecordPtr) -> (BlockAddr, u32) {
    let geometry = device.geometry();
    let page_at = ptr.addr.offset() / geometry.page_bytes * geometry.page_bytes;
    (geometry.block(ptr.addr.segment().0), page_at)
}

#[test]
fn it_reads_all_that_is_held_and_goes_on_where_it_was_after_a_restart() {
    pumice_reactor::block_on(async {
        let (device, _) = emulated(SPEC).await;
        let (mut mini, history) = filled(&device).await;
        let (bytes, damage) = pass(&mini.heap).await;
        let space = mini.heap.space();
        assert!(
            bytes >= space.live && bytes < space.raw && damage.is_empty(),
            "{bytes} of {space:?}: {damage:?}"
        );
        let mut patrol = mini.heap.patrol();
        while mini.heap.patrol_stats().next_segment < 17 {
            patrol.step().await.expect("step");
        }
        mini.checkpoint().await.expect("checkpoint");
        mini.heap.close().await.expect("close");
        drop((mini, patrol));
        let mini = Mini::open(&device, small()).await.expect("reopen");
        let stats = mini.heap.patrol_stats();
        assert_eq!((stats.passes, stats.next_segment, stats.segments), (1, 17, 40));
        let (rest, _) = pass(&mini.heap).await;
        assert!(rest < bytes, "it went on, and did not begin again: {rest} of {bytes}");
        mini.verify(&history).await.expect("everything reads");
    });
}

#[test]
fn it_finds_what_decays_and_names_what_is_lost() {
    pumice_reactor::block_on(async {
        let (device, nand) = emulated(SPEC).await;
        let (mini, _) = filled(&device).await;
        let mut ptrs: Vec<RecordPtr> = mini.entries().map(|(_, ptr)| ptr).collect();
        ptrs.sort_by_key(|ptr| ptr.addr);
        let (weak, lost) = (ptrs[1], ptrs[12]);
        assert_ne!(weak.addr.segment(), lost.addr.segment());
        let (block, page_at) = place(&device, weak);
        flip(&nand, block, page_at, 7).await;
        let (block, page_at) = place(&device, lost);
        flip(&nand, block, page_at, 9).await;
        assert!(mini.heap.endangered().is_none(), "nobody has looked yet");
        let (_, damage) = pass(&mini.heap).await;
        assert!(!damage.is_empty() && damage.iter().all(|d| d.segment == lost.addr.segment()), "{damage:?}");
        assert!(damage.iter().any(|d| d.offset == page_at), "{damage:?}");
        assert_eq!(mini.heap.endangered(), Some(weak.addr.segment()));
        assert_eq!(mini.heap.patrol_stats().damaged, damage.len() as u64);
        // Met again it is the same damage, and it is none once nobody needs what lay there.
        let found = mini.heap.damage_found();
        assert!(found > 0 && found <= damage.len() as u64, "{found} of {damage:?}");
        pass(&mini.heap).await;
        assert_eq!(mini.heap.damage_found(), found);
        mini.heap.release(lost.addr.segment());
        assert_eq!(mini.heap.damage_found(), 0);
    });
}

#[test]
fn superblock_and_metadata_log_that_decay_are_written_elsewhere() {
    pumice_reactor::block_on(async {
        for magic in [&b"PUMICESB"[..], b"PMET"] {
            let (device, nand) = emulated(SPEC).await;
            let (mut mini, history) = filled(&device).await;
            let before = blocks_with(&device, magic).await;
            for &block in &before {
                flip(&nand, block, 0, 7).await;
            }
            pass(&mini.heap).await;
            assert!(mini.heap.patrol_stats().renewed > 0, "{:?}", mini.heap.patrol_stats());
            // What was near its end is lost now, and nobody needs it.
            if magic == b"PUMICESB" {
                assert_eq!(before.len(), 1);
                assert_eq!(blocks_with(&device, magic).await.len(), 2);
                flip(&nand, before[0], 400, 2).await;
            }
            mini.checkpoint().await.expect("checkpoint");
            mini.heap.close().await.expect("close");
            drop(mini);
            let mini = Mini::open(&device, small()).await.expect("reopen");
            mini.verify(&history).await.expect("everything reads");
            pass(&mini.heap).await;
            assert_eq!(mini.heap.patrol_stats().renewed, 0, "nothing decays any more");
        }
    });
}

#[test]
fn on_a_file_checksums_tell() {
    use std::os::unix::fs::FileExt;
    let dir = tempfile::tempdir().expect("dir");
    pumice_reactor::block_on(async {
        let device = common::file(dir.path(), 16 << 20).await;
        let (mini, _) = filled(&device).await;
        let sealed: Vec<_> = mini.entries().map(|(_, ptr)| ptr).collect();
        let (bytes, damage) = pass(&mini.heap).await;
        assert!(bytes >= mini.heap.space().live && damage.is_empty(), "{damage:?}");
        let ptr = *sealed.iter().min_by_key(|ptr| ptr.addr).expect("a record");
        let at = u64::from(ptr.addr.segment().0) * u64::from(mini.heap.segment_bytes())
            + u64::from(ptr.addr.offset());
        let file = std::fs::File::options().write(true).open(dir.path().join("drive")).expect("file");
        file.write_all_at(&[0x5a; 8], at + 100).expect("rot");
        let (_, damage) = pass(&mini.heap).await;
        assert!(damage.iter().any(|d| d.segment == ptr.addr.segment()), "{damage:?}");
    });
}
