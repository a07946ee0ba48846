//! NAND whose blocks fail whole: what was durable there is missed, and what nobody was told of is not.

use std::time::Duration;

use bytes::Bytes;
use pumice_flash::Device;
use pumice_reactor::sim::{HostOptions, World};
use pumice_reactor::{sleep, spawn};
use pumice_segment::{Durability, Heap, HeapOptions, MetaEdit, SegmentId};

use crate::common::{append, emulated, format_options, no_progress, options};

/// One record is written, and synced if `is_durable`; the metadata log counts it. Then nothing of its segment reads. Answers what an
/// opener finds: how many records, and how many places it calls damaged.
async fn found_of_a_lost_block(is_durable: bool) -> (usize, usize) {
    let (device, emulated) =
        emulated("emu:tiny,channels=1,blocks=32,pages=16,page=4096,program_us=500,timing=on,seed=1").await;
    Heap::format(&device, &format_options()).await.expect("format");
    let options = HeapOptions { durability: Durability::EverySecond, ..options() };
    let mut opened = Heap::open(device.clone(), options.clone(), &no_progress).await.expect("open");
    assert!(opened.replay.next().await.expect("replay").is_none());
    let heap = opened.heap;
    let commit = || {
        let heap = heap.clone();
        let edit = MetaEdit::Edit(Bytes::from_static(b"x"));
        spawn(async move { heap.commit_meta(edit, 0).await.expect("metadata") })
    };
    // Each waits for the one before it, when all is durable; what is written meanwhile is counted in the last ones.
    let mut records: Vec<_> = (0..20).map(|_| commit()).collect();
    sleep(Duration::from_nanos(1)).await;
    let segment = append(&heap, 1, &[7; 9000]).expect("append").ptrs[0].addr.segment();
    heap.write_out().await.expect("written");
    if is_durable {
        heap.flush().await.expect("durable");
        records.push(commit());
    }
    for record in records {
        record.await.expect("no panic");
    }
    emulated.cut_power();
    drop(heap);
    emulated.power_on();
    lose(&device, segment);
    let mut opened = Heap::open(device, options, &no_progress).await.expect("open");
    let (mut records, mut damage) = (0, 0);
    while let Some(batch) = opened.replay.next().await.expect("replay") {
        records += batch.records.len();
        damage += batch.damage.len();
    }
    (records, damage)
}

fn in_a_world<T: 'static>(test: impl Future<Output = T> + 'static) -> T {
    let world = World::new(1);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    world.block_on(host, test).unwrap_or_else(|halt| panic!("{halt}"))
}

fn lose(device: &Device, segment: SegmentId) {
    let Device::Emulated(emulated) = device else { panic!("not emulated") };
    let block = device.geometry().block(segment.0);
    let pages = emulated.write_pointer(block).expect("programmed");
    assert!(pages > 1, "{pages} pages are no more than a header");
    (0..pages).for_each(|page| emulated.tear_page(block, page));
}

#[test]
fn a_block_of_which_nothing_reads_is_damage_if_what_it_held_was_durable() {
    let found = in_a_world(found_of_a_lost_block(true));
    assert_eq!(found, (0, 1), "what was durable is gone, and nobody is told");
}

/// A program that failed leaves the same behind, and is written elsewhere before anybody is told.
#[test]
fn a_block_of_which_nothing_reads_is_no_damage_if_nothing_in_it_was_durable() {
    assert_eq!(in_a_world(found_of_a_lost_block(false)), (0, 0), "nobody was promised anything");
}
