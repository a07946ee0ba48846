//! The pure parts of zoned devices, compiled into this test: which zones make way for others, and what a drive's report
//! says of its blocks.
//! Alone in a program of its own: what is compiled in looks for the crate's types at the program's root.
#![allow(dead_code)] // each part has more than is asked of it here

#[path = "../src/zoned/layout.rs"]
mod layout;
#[path = "../src/zoned/limits.rs"]
mod limits;

use layout::{Block, Place, lay_out, state};
use limits::{Limits, Step};
use pumice_base::rng::Rng;
use pumice_flash::{FlashError, Geometry};
use pumice_reactor::zones::{Zone, ZoneCondition, ZoneKind, ZonedInfo};

#[test]
fn without_limits_every_zone_goes() {
    let mut limits = Limits::new(0, 0);
    for zone in 0..100 {
        assert_eq!(limits.enter(zone), Step::Go);
    }
    assert_eq!(limits.enter(7), Step::Wait, "one program to a zone");
}

#[test]
fn the_open_zone_used_longest_ago_is_closed_for_another() {
    let mut limits = Limits::new(2, 4);
    for zone in [5, 6] {
        assert_eq!(limits.enter(zone), Step::Go);
    }
    assert_eq!(limits.enter(7), Step::Wait, "both are in use");
    limits.leave(6, false);
    limits.leave(5, false);
    assert_eq!(limits.enter(5), Step::Go);
    limits.leave(5, false);
    assert_eq!(limits.enter(7), Step::Close(6), "5 was used later");
    assert_eq!(limits.enter(6), Step::Wait, "its close is on the way");
    limits.closed(6);
    assert_eq!(limits.enter(7), Step::Go);
    limits.leave(7, false);
    assert_eq!(limits.enter(6), Step::Close(5));
    limits.leave(5, false);
    assert_eq!(limits.enter(6), Step::Close(5), "the close failed");
    assert_eq!(limits.counts(), (2, 3));
}

#[test]
fn only_zones_that_are_done_with_are_finished() {
    let mut limits = Limits::new(0, 2);
    limits.found(1, true);
    limits.found(2, false);
    assert_eq!(limits.enter(3), Step::Refuse);
    limits.done_with(2);
    limits.done_with(9);
    assert_eq!(limits.enter(3), Step::Finish(2));
    assert_eq!(limits.enter(4), Step::Wait, "a place is on its way");
    limits.leave(2, true);
    assert_eq!(limits.enter(3), Step::Go);
    limits.leave(3, true);
    assert_eq!(limits.enter(4), Step::Go, "3 was filled to its end");
    limits.leave(4, false);
    limits.done_with(1);
    assert_eq!(limits.enter(1), Step::Go);
    limits.leave(1, false);
    assert_eq!(limits.enter(5), Step::Refuse, "1 was programmed again");
}

#[test]
fn the_limits_hold_whatever_comes() {
    for seed in 1..200 {
        let mut rng = Rng::from_seed(seed);
        let active_max = 1 + rng.below(6) as u32;
        let open_max = 1 + rng.below(u64::from(active_max)) as u32;
        let mut limits = Limits::new(open_max, active_max);
        let mut inside: Vec<u32> = Vec::new();
        for step in 0..300 {
            let zone = rng.below(12) as u32;
            match rng.below(4) {
                0 => limits.done_with(zone),
                1 if !inside.is_empty() => {
                    let left = inside.swap_remove(rng.below(inside.len() as u64) as usize);
                    limits.leave(left, rng.chance(0.2));
                }
                _ => match limits.enter(zone) {
                    Step::Go => {
                        assert!(!inside.contains(&zone), "seed {seed} step {step}");
                        inside.push(zone);
                    }
                    Step::Close(victim) => {
                        assert!(!inside.contains(&victim), "seed {seed} step {step}");
                        if rng.chance(0.9) {
                            limits.closed(victim);
                        } else {
                            limits.leave(victim, false);
                        }
                    }
                    Step::Finish(victim) => {
                        assert!(!inside.contains(&victim), "seed {seed} step {step}");
                        limits.leave(victim, rng.chance(0.9));
                    }
                    Step::Wait => {
                        assert!(!inside.is_empty(), "seed {seed} step {step}: nobody to wait for")
                    }
                    Step::Refuse => {}
                },
            }
            let (open, active) = limits.counts();
            let holds = open <= open_max as usize && active <= active_max as usize;
            assert!(holds, "seed {seed} step {step}: {open} open, {active} active");
        }
    }
}

const INFO: ZonedInfo =
    ZonedInfo { zone_bytes: 1 << 20, open_max: 0, active_max: 0, write_bytes_max: 128 << 10 };

fn zone(index: u64, condition: ZoneCondition, written: u64) -> Zone {
    let start = index << 20;
    let write_pointer = if condition == ZoneCondition::Full { u64::MAX } else { start + written };
    Zone {
        start,
        bytes: 1 << 20,
        capacity_bytes: 768 << 10,
        write_pointer,
        kind: ZoneKind::SequentialRequired,
        condition,
    }
}

#[test]
fn each_condition_says_how_far_a_block_is_programmed() {
    use ZoneCondition::{Closed, Empty, ExplicitlyOpen, Full, ImplicitlyOpen, Offline, ReadOnly};
    for (condition, bytes, written, failed, bad, place) in [
        (Empty, 0, 0, false, false, Place::None),
        (ImplicitlyOpen, 8192, 2, false, false, Place::Open),
        (ExplicitlyOpen, 0, 0, false, false, Place::Open),
        (Closed, 4096, 1, false, false, Place::Closed),
        (Closed, 4096 + 512, 1, true, false, Place::Closed),
        (Full, 0, 192, false, false, Place::None),
        (ReadOnly, 0, 192, true, true, Place::None),
        (Offline, 0, 192, true, true, Place::None),
    ] {
        let found = state(&zone(3, condition, bytes), 4096, 192);
        let block = Block { start: 3 << 20, written, next: written, failed, bad };
        assert_eq!(found, (block, place), "{condition:?} at {bytes}");
    }
}

#[test]
fn blocks_are_the_sequential_zones_of_the_first_one_s_capacity() {
    let mut zones: Vec<Zone> = (0..8).map(|index| zone(index, ZoneCondition::Empty, 0)).collect();
    zones[0].kind = ZoneKind::Conventional;
    zones[0].condition = ZoneCondition::NotWritePointer;
    zones[0].capacity_bytes = 1 << 20;
    zones[3] = zone(3, ZoneCondition::Offline, 0);
    zones[5] = zone(5, ZoneCondition::Closed, 4096);
    zones[7].capacity_bytes = 64 << 10;
    let layout = lay_out(&zones, INFO, 4096).expect("layout");
    let Geometry { blocks_per_channel, pages_per_block, page_bytes, read_bytes, .. } = layout.geometry;
    assert_eq!((blocks_per_channel, pages_per_block, page_bytes, read_bytes), (6, 192, 4096, 4096));
    assert_eq!(layout.left_out, 2);
    assert_eq!(layout.blocks[0].start, 1 << 20);
    assert!(layout.blocks[2].bad, "an offline zone stays where it is");
    assert_eq!(layout.active, [(4, false)]);
    assert_eq!(layout.raw_bytes, (1 << 20) + 6 * (768 << 10) + (64 << 10));
}

#[test]
fn huge_zones_are_used_up_to_what_a_block_may_have() {
    let huge = |index: u64| Zone {
        start: index << 31,
        bytes: 1 << 31,
        capacity_bytes: 1077 << 20,
        write_pointer: (index << 31) + (1077 << 20),
        kind: ZoneKind::SequentialRequired,
        condition: ZoneCondition::Closed,
    };
    let layout = lay_out(&[huge(0), huge(1)], INFO, 512).expect("layout");
    assert_eq!(layout.geometry.block_bytes(), 1 << 30);
    assert_eq!(layout.geometry.read_bytes, 512);
    assert_eq!((layout.blocks[1].written, layout.blocks[1].failed), (1 << 18, false));
}

#[test]
fn a_drive_without_sequential_zones_is_refused() {
    let conventional = Zone { kind: ZoneKind::Conventional, ..zone(0, ZoneCondition::NotWritePointer, 0) };
    assert!(matches!(lay_out(&[conventional], INFO, 4096), Err(FlashError::Geometry(_))));
    assert!(matches!(lay_out(&[], INFO, 4096), Err(FlashError::Geometry(_))));
}

/// A drive's firmware may say anything of its zones, and what a block comes to must fit them all the same.
#[test]
fn any_report_is_refused_or_makes_blocks_that_fit() {
    use ZoneCondition::{
        Closed, Empty, ExplicitlyOpen, Full, ImplicitlyOpen, NotWritePointer, Offline, ReadOnly,
    };
    const EDGES: [u64; 10] =
        [0, 1, 511, 4096, 4097, 1 << 20, (1 << 30) + 1, u32::MAX as u64, u64::MAX - 1, u64::MAX];
    let conditions =
        [NotWritePointer, Empty, ImplicitlyOpen, ExplicitlyOpen, Closed, ReadOnly, Full, Offline];
    let kinds = [ZoneKind::SequentialRequired, ZoneKind::SequentialRequired, ZoneKind::Conventional];
    let mut laid_out = 0;
    for seed in 0..20_000 {
        let mut rng = Rng::from_seed(seed);
        let mut edge = |usual: u64| match rng.below(3) {
            0 => EDGES[rng.below(EDGES.len() as u64) as usize],
            _ => usual,
        };
        let numbers: Vec<[u64; 4]> = (0..4)
            .map(|at| [edge(at << 20), edge(1 << 20), edge(768 << 10), edge((at << 20) + 4096)])
            .collect();
        let alignment = edge(4096) as u32;
        let zones: Vec<Zone> = numbers
            .into_iter()
            .map(|[start, bytes, capacity_bytes, write_pointer]| {
                let kind = kinds[rng.below(kinds.len() as u64) as usize];
                let condition = conditions[rng.below(conditions.len() as u64) as usize];
                Zone { start, bytes, capacity_bytes, write_pointer, kind, condition }
            })
            .collect();
        let Ok(layout) = lay_out(&zones, INFO, alignment) else { continue };
        laid_out += 1;
        let Geometry { pages_per_block, page_bytes, .. } = layout.geometry;
        let is_within = u64::from(pages_per_block) * u64::from(page_bytes) <= layout.capacity_bytes;
        assert!(is_within && layout.blocks.len() <= zones.len(), "seed {seed}: {layout:?} of {zones:?}");
        let fits = |block: &Block| block.written <= pages_per_block && block.next == block.written;
        assert!(layout.blocks.iter().all(fits), "seed {seed}: {layout:?} of {zones:?}");
    }
    assert!(laid_out > 1000, "{laid_out} of the reports make a drive");
}
