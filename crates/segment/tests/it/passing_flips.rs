//! Bits that flip while a recovery reads, and not on the medium: what was acknowledged must not be taken for a torn end.

use std::future::Future;
use std::path::PathBuf;

use crate::common::{append, format_options, no_progress, options};
use pumice_flash::{Access, Device, DeviceSpec};
use pumice_reactor::sim::{FaultOp, HostId, HostOptions, RandomEffect, RandomFault, World};
use pumice_segment::Heap;

const SEEDS: u64 = 200;
const RECORDS: u8 = 12;
/// So much of each segment is frames that most flips hit one.
const RECORD_BYTES: usize = 15_000;
/// The chance that a read flips: a recovery of this log reads about ten times.
const CHANCE: f64 = 0.1;

fn spec() -> DeviceSpec {
    "/drive".parse().expect("spec")
}

fn up<T: 'static>(world: &World, host: HostId, future: impl Future<Output = T> + 'static) -> T {
    world.block_on(host, future).unwrap_or_else(|halt| panic!("{halt}"))
}

/// What a recovery found: the first bytes of the records, and how much damage it told of; `None` when it refused to open.
async fn recovered() -> Option<(Vec<u8>, usize)> {
    let device = Device::open(&spec(), Access::ReadWrite).await.expect("file");
    let mut opened = Heap::open(device, options(), &no_progress).await.ok()?;
    let (mut found, mut damage) = (Vec::new(), 0);
    while let Some(batch) = opened.replay.next().await.ok()? {
        damage += batch.damage.len();
        found.extend(batch.records.iter().map(|record| record.payload[0]));
    }
    Some((found, damage))
}

#[test]
fn a_bit_that_flips_on_its_way_is_no_torn_end_of_the_log() {
    let (mut whole, mut told) = (0, 0);
    for seed in 0..SEEDS {
        let world = World::new(seed);
        let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
        up(&world, host, async {
            let device = Device::create(&spec(), 16 << 20).await.expect("file");
            Heap::format(&device, &format_options()).await.expect("format");
            let mut opened = Heap::open(device, options(), &no_progress).await.expect("open");
            while opened.replay.next().await.expect("replay").is_some() {}
            for number in 0..RECORDS {
                let appended = append(&opened.heap, 1, &[number; RECORD_BYTES]).expect("append");
                opened.heap.wait_durable(appended.first_seq).await.expect("durable");
            }
        });
        world.crash(host);
        world.restart(host);
        let (path, op, effect) = (PathBuf::from("/drive"), FaultOp::Read, RandomEffect::Flip);
        world.add_random_fault(host, RandomFault { path, op, chance: CHANCE, effect });
        let Some((found, damage)) = up(&world, host, recovered()) else {
            told += 1;
            continue;
        };
        let expected: Vec<u8> = (0..RECORDS).collect();
        if found == expected {
            whole += 1;
        } else {
            assert!(
                damage > 0,
                "seed {seed}: of what was acknowledged {found:?} are left, and nothing tells of it"
            );
            told += 1;
        }
    }
    assert!(whole > SEEDS / 2 && whole + told == SEEDS, "{whole} of {SEEDS} recoveries found everything");
}
