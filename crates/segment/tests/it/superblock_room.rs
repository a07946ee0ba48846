//! Superblocks lie among a drive's first segments. As blocks fail there they find a place as long as the drive has one to give,
//! though data lies in all the others: spares are kept, and data makes room for new ones.

use std::sync::Arc;

use crate::common::mini::{History, Mini, Write};
use crate::common::{emulated, format_options, options};
use pumice_flash::{Device, Emulated};
use pumice_segment::{Heap, HeapOptions};

/// 16 first segments of 64 KiB, and two spares among them.
const LARGE: &str = "emu:tiny,channels=2,blocks=32,pages=16";
/// 7 first segments, and one spare.
const SMALL: &str = "emu:tiny,channels=2,blocks=14,pages=16";
const FIRST: u32 = 16;
const VALUE_BYTES: usize = 7000;

fn small() -> HeapOptions {
    HeapOptions { commit_max_bytes: 16 << 10, reserve_segments: Some(4), commit_lanes: Some(1), ..options() }
}

/// A drive with so many keys, of which none is overwritten, or as many as it takes.
async fn filled(spec: &str, keys: u16) -> (Device, Arc<Emulated>, Mini, History) {
    let (device, nand) = emulated(spec).await;
    Heap::format(&device, &format_options()).await.expect("format");
    let mut history = History::default();
    let mut mini = Mini::open(&device, small()).await.expect("open");
    for key in 0..keys {
        let write = Write { key, value: Some((u64::from(key), VALUE_BYTES)) };
        if let Err(refused) = mini.write(&mut history, vec![write]).await {
            assert!(refused.contains("full") || refused.contains("busy"), "key {key}: {refused}");
            break;
        }
    }
    mini.checkpoint().await.expect("checkpoint");
    (device, nand, mini, history)
}

/// The next snapshot's erase fails, and as the superblock that names another segment is written, the segment that holds the
/// newest one and `erases` of those it goes to.
fn fail(nand: &Emulated, erases: u64) {
    nand.fail_erase_at(1);
    nand.fail_program_at(1);
    (0..erases).for_each(|n| nand.fail_erase_at(2 + n));
}

/// What cleaning does while there is room.
async fn make_room(mini: &mut Mini) -> Result<u32, String> {
    for moved in 0..FIRST {
        let Some(segment) = mini.heap.endangered() else { return Ok(moved) };
        mini.heap.unclaim(segment);
        mini.clean().await?;
        mini.checkpoint().await?;
    }
    Err("room is made again and again".into())
}

async fn reopened(device: &Device, history: &History) -> Result<Mini, String> {
    let mini = Mini::open(device, small()).await?;
    mini.verify(history).await?;
    Ok(mini)
}

#[test]
fn data_makes_room_as_superblocks_fail_and_a_power_cut_at_any_step_of_it_loses_nothing() {
    // Each round loses two places of superblocks and one of the metadata log.
    const ROUNDS: u32 = 5;
    let (mut moved, mut cuts) = (0, 0);
    for cut_round in 0..ROUNDS {
        for cut in 1.. {
            let reached = pumice_reactor::block_on(async {
                let (device, nand, mut mini, history) = filled(LARGE, 220).await;
                let in_use = mini.heap.segments_in_use();
                let in_first = in_use.iter().filter(|segment| segment.0 < FIRST).count();
                assert!(in_first as u32 >= FIRST - 6, "data lies in most of the first: {in_use:?}");
                for round in 0..=cut_round {
                    let said = |what: String| panic!("round {round}, cut {cut} in round {cut_round}: {what}");
                    if round == cut_round {
                        nand.cut_power_at(cut);
                    }
                    fail(&nand, 1);
                    let mut done = mini.checkpoint().await;
                    if done.is_ok() {
                        done = make_room(&mut mini).await.map(|count| moved += count);
                    }
                    let is_cut = !nand.is_powered();
                    assert_eq!(done.is_err(), is_cut, "round {round}, cut {cut} in {cut_round}: {done:?}");
                    if is_cut {
                        let _ = mini.heap.close().await;
                        drop(mini);
                        nand.power_on();
                        mini = reopened(&device, &history).await.unwrap_or_else(said);
                        // What was still to fail did so in the opening, or does in one of these.
                        for _ in 0..3 {
                            mini.checkpoint().await.unwrap_or_else(|what| {
                                panic!("round {round}, cut {cut} in round {cut_round}: {what}")
                            });
                        }
                        make_room(&mut mini).await.expect("room");
                        drop(mini);
                        reopened(&device, &history).await.expect("opens again");
                        return true;
                    }
                }
                // Not reached.
                nand.cut_power_at(u64::MAX / 2);
                mini.heap.close().await.expect("close");
                drop(mini);
                reopened(&device, &history).await.expect("opens");
                false
            });
            cuts += u32::from(reached);
            if !reached {
                break;
            }
        }
    }
    println!("{moved} segments moved, {cuts} cuts");
    assert!(moved > 0 && cuts > 100, "{moved} segments moved, {cuts} cuts");
}

#[test]
fn a_full_drive_has_a_place_for_superblocks() {
    pumice_reactor::block_on(async {
        let (device, nand, mut mini, history) = filled(LARGE, u16::MAX).await;
        let space = mini.heap.space();
        assert!(space.live > space.usable() / 3 * 2 && space.free == 0, "{space:?}");
        for round in 0..2 {
            fail(&nand, 1);
            mini.checkpoint().await.unwrap_or_else(|what| panic!("round {round}: {what}"));
            make_room(&mut mini).await.unwrap_or_else(|what| panic!("round {round}: {what}"));
        }
        nand.cut_power();
        let _ = mini.heap.close().await;
        drop(mini);
        nand.power_on();
        reopened(&device, &history).await.expect("opens");
    });
}

#[test]
fn without_a_place_the_log_is_written_where_it_was_until_there_is_one() {
    pumice_reactor::block_on(async {
        let (device, nand, mut mini, history) = filled(SMALL, 50).await;
        // Both places and the one spare.
        fail(&nand, 2);
        mini.checkpoint().await.expect("the half that failed takes it now");
        assert!(mini.heap.read_only().is_none());
        assert!(make_room(&mut mini).await.expect("room") > 0);
        for _ in 0..4 {
            mini.checkpoint().await.expect("the half is replaced");
        }
        nand.cut_power();
        let _ = mini.heap.close().await;
        drop(mini);
        nand.power_on();
        let mut mini = reopened(&device, &history).await.expect("opens");
        // The end of the drive is said.
        nand.fail_by_chance(pumice_flash::Operation::Erase, 1.0);
        nand.fail_by_chance(pumice_flash::Operation::Program, 1.0);
        let refused = mini.checkpoint().await.expect_err("nothing takes anything");
        assert!(refused.contains("none of the first 7 segments takes a superblock"), "{refused}");
        mini.verify(&history).await.expect("everything reads");
    });
}
