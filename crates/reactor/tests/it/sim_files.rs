//! Files of the simulated world: what a crash leaves, planned power cuts, and every other fault.

use bytes::Bytes;
use pumice_base::rng::Rng;
use pumice_reactor::sim::{
    CrashFate, CutMode, FaultOp, FileFault, Halt, HostId, HostOptions, PowerCut, RandomEffect, RandomFault,
    World,
};
use pumice_reactor::{File, IoBuf, OpenOptions, WriteSync, spawn};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;

const PATH: &str = "/drive";
const SECTOR: usize = 512;

fn world(seed: u64) -> (World, HostId) {
    let world = World::new(seed);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    (world, host)
}

fn create() -> OpenOptions {
    OpenOptions { create: true, ..OpenOptions::default() }
}

async fn open() -> File {
    File::open(Path::new(PATH), &create()).await.expect("opens")
}

fn filled(byte: u8, len: usize) -> Bytes {
    let mut buf = IoBuf::zeroed(len);
    buf.fill(byte);
    buf.freeze()
}

async fn read(file: &File, offset: u64, len: usize) -> Vec<u8> {
    let (result, buf) = file.read_at(IoBuf::zeroed(len), offset).await;
    let bytes = result.expect("reads");
    buf[..bytes].to_vec()
}

#[test]
fn what_is_written_is_read_and_short_at_the_end() {
    let (world, host) = world(1);
    let seen = world.block_on(host, async {
        let file = open().await;
        file.write_at(filled(7, 10_000), 5_000, WriteSync::Cached).await.expect("writes");
        file.punch_hole(8_000, 1_000).await.expect("punches");
        assert_eq!(file.len().await.expect("a length"), 15_000);
        read(&file, 0, 20_000).await
    });
    let mut expected = vec![0; 15_000];
    expected[5_000..].fill(7);
    expected[8_000..9_000].fill(0);
    assert_eq!(seen, Ok(expected));
}

#[test]
fn durable_and_synced_writes_survive_every_crash() {
    for seed in 0..50 {
        let (world, host) = world(seed);
        let ran = world.block_on(host, async {
            let file = open().await;
            file.write_at(filled(1, 4096), 0, WriteSync::Cached).await.expect("writes");
            file.write_at(filled(2, 4096), 4096, WriteSync::Cached).await.expect("writes");
            file.sync_data().await.expect("syncs");
            // The older cached write must not come back over the newer durable one.
            file.write_at(filled(3, 4096), 8192, WriteSync::Cached).await.expect("writes");
            file.write_at(filled(4, 4096), 8192, WriteSync::Durable).await.expect("writes");
        });
        assert_eq!(ran, Ok(()));
        world.crash(host);
        for (page, byte) in [(0u64, 1u8), (1, 2), (2, 4)] {
            let seen = world.peek_file(host, Path::new(PATH), page * 4096, 4096);
            assert_eq!(seen, vec![byte; 4096], "page {page} of seed {seed}");
        }
    }
}

#[test]
fn unsynced_writes_are_lost_kept_torn_and_reordered_by_the_seed() {
    let mut outcomes = BTreeSet::new();
    for seed in 0..400 {
        let (world, host) = world(seed);
        let ran = world.block_on(host, async {
            let file = open().await;
            file.write_at(filled(9, 4 * SECTOR), 0, WriteSync::Durable).await.expect("writes");
            file.write_at(filled(1, 2 * SECTOR), 0, WriteSync::Cached).await.expect("writes");
            file.write_at(filled(2, 2 * SECTOR), 1024, WriteSync::Cached).await.expect("writes");
        });
        assert_eq!(ran, Ok(()));
        world.crash(host);
        let seen = world.peek_file(host, Path::new(PATH), 0, 4 * SECTOR);
        let sectors: Vec<u8> = seen.chunks(SECTOR).map(|sector| sector[0]).collect();
        for sector in seen.chunks(SECTOR) {
            assert!(sector.iter().all(|&byte| byte == sector[0]), "a sector was torn with seed {seed}");
        }
        outcomes.insert(sectors);
    }
    for expected in [
        [9, 9, 9, 9], // lost
        [1, 1, 2, 2], // kept
        [1, 9, 2, 2], // the first torn
        [9, 9, 2, 2], // the later one survived the earlier one
        [9, 1, 9, 2], // torn anywhere
    ] {
        assert!(outcomes.contains(&expected[..]), "{expected:?} never came: {outcomes:?}");
    }
}

#[test]
fn a_forced_fate_is_obeyed_and_a_kill_keeps_what_was_written() {
    for seed in 0..20 {
        for (fate, kill, expected) in
            [(CrashFate::Lost, false, 0u8), (CrashFate::Kept, false, 5), (CrashFate::Lost, true, 5)]
        {
            let (world, host) = world(seed);
            world.set_crash_fate(host, Some(fate));
            let ran = world.block_on(host, async {
                let file = open().await;
                file.set_len(4096).await.expect("grows");
                file.sync_data().await.expect("syncs");
                file.write_at(filled(5, 4096), 0, WriteSync::Cached).await.expect("writes");
            });
            assert_eq!(ran, Ok(()));
            if kill {
                world.kill(host)
            } else {
                world.crash(host)
            }
            assert_eq!(world.peek_file(host, Path::new(PATH), 0, 4096), vec![expected; 4096]);
            world.restart(host);
            let again = world.block_on(host, async { read(&open().await, 0, 4096).await });
            assert_eq!(again, Ok(vec![expected; 4096]));
        }
    }
}

#[test]
fn power_is_cut_at_the_planned_operation_before_in_or_after_it() {
    for mode in [CutMode::Before, CutMode::Torn, CutMode::After] {
        let mut survivors = BTreeSet::new();
        for seed in 0..40 {
            let (world, host) = world(seed);
            world.cut_power(host, PowerCut { at: 2, mode, fate: Some(CrashFate::Lost) });
            let ran = world.block_on(host, async {
                let file = open().await;
                for index in 0..10u64 {
                    let data = filled(index as u8 + 1, 8 * SECTOR);
                    file.write_at(data, index * 4096, WriteSync::Durable).await.expect("writes");
                }
            });
            assert_eq!(ran, Err(Halt::HostDown));
            assert!(!world.is_up(host));
            assert_eq!(world.counters(host).mutations, 3);
            let seen = world.peek_file(host, Path::new(PATH), 0, 20_000);
            assert_eq!(seen[..8192], [[1u8; 4096], [2; 4096]].concat());
            survivors.insert(seen.iter().filter(|&&byte| byte == 3).count());
            assert!(!seen.contains(&4));
        }
        match mode {
            CutMode::Before => assert_eq!(survivors, BTreeSet::from([0])),
            CutMode::After => assert_eq!(survivors, BTreeSet::from([4096])),
            CutMode::Torn => assert!(survivors.len() > 3, "{survivors:?}"),
        }
    }
}

#[test]
fn concurrent_cached_writes_before_a_sync_are_covered_and_those_after_are_not() {
    for seed in 0..50 {
        let (world, host) = world(seed);
        world.set_crash_fate(host, Some(CrashFate::Lost));
        let ran = world.block_on(host, async {
            let file = open().await;
            file.write_at(filled(1, 4096), 0, WriteSync::Cached).await.expect("writes");
            let other = file.clone();
            let sync = spawn(async move { other.sync_data().await });
            pumice_reactor::yield_now().await;
            // Submitted after the sync: it promises nothing about this one.
            file.write_at(filled(2, 4096), 4096, WriteSync::Cached).await.expect("writes");
            sync.await.expect("runs").expect("syncs");
        });
        assert_eq!(ran, Ok(()));
        world.crash(host);
        assert_eq!(world.peek_file(host, Path::new(PATH), 0, 8192), vec![1; 4096]);
    }
}

#[test]
fn a_lock_keeps_a_second_opener_out_until_it_is_dropped() {
    let (world, host) = world(1);
    let kinds = world.block_on(host, async {
        let locked = OpenOptions { create: true, exclusive_lock: true, ..OpenOptions::default() };
        let first = File::open(Path::new(PATH), &locked).await.expect("opens");
        let second = File::open(Path::new(PATH), &locked).await.map(drop).map_err(|error| error.kind());
        drop(first);
        pumice_reactor::sleep(std::time::Duration::from_micros(10)).await;
        (second, File::open(Path::new(PATH), &locked).await.is_ok())
    });
    assert_eq!(kinds, Ok((Err(ErrorKind::WouldBlock), true)));
}

#[test]
fn injected_errors_strike_where_and_as_often_as_told() {
    let (world, host) = world(1);
    world.add_fault(
        host,
        FileFault {
            path: Some(PATH.into()),
            op: FaultOp::Read,
            range: Some(4096..8192),
            skip: 1,
            times: 2,
            errno: libc::EIO,
        },
    );
    let errors = world.block_on(host, async {
        let file = open().await;
        file.write_at(filled(1, 16_384), 0, WriteSync::Cached).await.expect("writes");
        let mut errors = Vec::new();
        for offset in [0, 4096, 0, 4096, 8192, 4096, 4096] {
            let (result, _) = file.read_at(IoBuf::zeroed(4096), offset).await;
            errors.push(result.err().and_then(|error| error.raw_os_error()));
        }
        errors
    });
    let eio = Some(libc::EIO);
    assert_eq!(errors, Ok(vec![None, None, None, eio, None, eio, None]));
}

/// A drive may say that a write failed and have done all of it or some; what was refused before it got there changes nothing.
#[test]
fn a_write_that_fails_may_have_changed_any_of_its_sectors() {
    let outcomes = |errno| {
        let mut outcomes = BTreeSet::new();
        for seed in 0..400 {
            let (world, host) = world(seed);
            let written = world.block_on(host, async {
                open().await.write_at(filled(9, 4 * SECTOR), 0, WriteSync::Durable).await.is_ok()
            });
            assert_eq!(written, Ok(true));
            let fault = FileFault { path: None, op: FaultOp::Write, range: None, skip: 0, times: 1, errno };
            world.add_fault(host, fault);
            let seen = world.block_on(host, async move {
                let file = open().await;
                let failed = file.write_at(filled(1, 4 * SECTOR), 0, WriteSync::Durable).await;
                assert_eq!(failed.err().and_then(|error| error.raw_os_error()), Some(errno));
                read(&file, 0, 4 * SECTOR).await
            });
            world.crash(host);
            let kept = world.peek_file(host, Path::new(PATH), 0, 4 * SECTOR);
            let sectors = |bytes: &[u8]| bytes.chunks(SECTOR).map(|sector| sector[0]).collect::<Vec<_>>();
            outcomes.insert((sectors(&seen.expect("the host is up")), sectors(&kept)));
        }
        outcomes
    };
    let seen = outcomes(libc::EIO);
    for (read, kept) in [
        ([9, 9, 9, 9], [9, 9, 9, 9]), // nothing was done
        ([1, 1, 1, 1], [1, 1, 1, 1]), // all
        ([1, 1, 1, 1], [9, 9, 9, 9]), // all, in the drive's cache alone
        ([1, 1, 9, 9], [1, 1, 9, 9]), // a part
        ([9, 1, 9, 1], [9, 1, 9, 1]), // any
    ] {
        assert!(
            seen.contains(&(read.to_vec(), kept.to_vec())),
            "{read:?}, then {kept:?}, never came: {seen:?}"
        );
    }
    assert_eq!(outcomes(libc::ENOSPC), BTreeSet::from([(vec![9; 4], vec![9; 4])]));
}

#[test]
fn faults_by_chance_strike_some_operations_of_their_kind_until_they_are_cleared() {
    let (world, host) = world(1);
    let fault = |effect, op| RandomFault { path: PATH.into(), op, chance: 0.3, effect };
    world.add_random_fault(host, fault(RandomEffect::Errno(libc::EIO), FaultOp::Write));
    world.add_random_fault(host, fault(RandomEffect::Flip, FaultOp::Read));
    let tries = || {
        world.block_on(host, async {
            let file = open().await;
            let (mut failed, mut flipped) = (0, 0);
            for _ in 0..100 {
                match file.write_at(filled(1, 4096), 0, WriteSync::Cached).await {
                    Ok(_) => {}
                    Err(error) => failed += u32::from(error.raw_os_error() == Some(libc::EIO)),
                }
                let (result, buf) = file.read_at(IoBuf::zeroed(4096), 0).await;
                result.expect("reads do not fail");
                let bits: u32 = buf.iter().zip(&filled(1, 4096)[..]).map(|(a, b)| (a ^ b).count_ones()).sum();
                assert!(bits <= 1, "{bits} bits");
                flipped += bits;
            }
            (failed, flipped)
        })
    };
    let (failed, flipped) = tries().expect("the host is up");
    assert!((10..60).contains(&failed) && (10..60).contains(&flipped), "{failed} failed, {flipped} flipped");
    world.clear_faults(host);
    assert_eq!(tries(), Ok((0, 0)));
}

#[test]
fn a_full_disk_refuses_and_takes_again_what_was_given_back() {
    let (world, host) = world(1);
    world.set_capacity(host, Some(64 << 10));
    let answer = world.block_on(host, async {
        let file = open().await;
        file.write_at(filled(1, 64 << 10), 0, WriteSync::Cached).await.expect("fits");
        let full = file.write_at(filled(1, 4096), 64 << 10, WriteSync::Cached).await;
        file.write_at(filled(2, 4096), 0, WriteSync::Cached).await.expect("overwrites");
        file.punch_hole(8192, 4096).await.expect("punches");
        let fits = file.write_at(filled(3, 4096), 64 << 10, WriteSync::Cached).await;
        (full.map_err(|error| error.kind()), fits.is_ok())
    });
    assert_eq!(answer, Ok((Err(ErrorKind::StorageFull), true)));
}

#[test]
fn flipped_bits_and_truncation_show_in_reads() {
    let (world, host) = world(1);
    let answer = world.block_on(host, {
        let world = world.clone();
        async move {
            let file = open().await;
            file.write_at(filled(0xF0, 8192), 0, WriteSync::Durable).await.expect("writes");
            assert!(world.flip(host, Path::new(PATH), 5000, 0x81));
            assert!(!world.flip(host, Path::new(PATH), 8192, 1));
            let flipped = read(&file, 5000, 1).await;
            world.truncate(host, Path::new(PATH), 6000);
            (flipped, read(&file, 4096, 4096).await.len())
        }
    });
    assert_eq!(answer, Ok((vec![0x71], 1904)));
}

#[test]
fn read_only_files_and_direct_rules_are_as_the_kernels() {
    let (world, host) = world(1);
    world.add_block_device(host, Path::new("/dev/sim0"), 1 << 20);
    let answer = world.block_on(host, {
        let world = world.clone();
        async move {
            drop(open().await);
            world.set_read_only(host, Path::new(PATH), true);
            let refused =
                File::open(Path::new(PATH), &create()).await.map(drop).map_err(|error| error.kind());
            let reading = OpenOptions { read_only: true, ..OpenOptions::default() };
            let file = File::open(Path::new(PATH), &reading).await.expect("opens for reading");
            assert!(file.write_at(filled(1, 512), 0, WriteSync::Cached).await.is_err());
            let direct = OpenOptions { direct: true, ..OpenOptions::default() };
            let device = File::open(Path::new("/dev/sim0"), &direct).await.expect("opens");
            assert!(device.is_block_device() && device.alignment() == 512);
            assert!(device.write_at(filled(1, 100), 0, WriteSync::Cached).await.is_err());
            assert!(device.write_at(filled(1, 512), 1 << 20, WriteSync::Cached).await.is_err());
            device.write_at(filled(1, 512), (1 << 20) - 512, WriteSync::Durable).await.expect("writes");
            (refused, device.len().await.ok())
        }
    });
    assert_eq!(answer, Ok((Err(ErrorKind::PermissionDenied), Some(1 << 20))));
}

/// A workload with everything in it; answers the event hash.
fn busy(seed: u64) -> u64 {
    let world = World::new(seed);
    let host = world.add_host(HostOptions::default());
    world.cut_power(host, PowerCut { at: 150, mode: CutMode::Torn, fate: None });
    for core in 0..2u16 {
        let mut rng = Rng::from_seed(seed).split(&format!("core {core}"));
        world.run(host, core, async move {
            let file = open().await;
            for _ in 0..100 {
                let (offset, len) = (rng.below(64) * 4096, (1 + rng.below(8)) as usize * 4096);
                match rng.below(4) {
                    0 => drop(read(&file, offset, len).await),
                    1 => file.sync_data().await.expect("syncs"),
                    2 => file
                        .write_at(filled(core as u8, len), offset, WriteSync::Durable)
                        .await
                        .expect("writes"),
                    _ => file
                        .write_at(filled(core as u8, len), offset, WriteSync::Cached)
                        .await
                        .expect("writes"),
                }
            }
        });
    }
    world.run_until_idle();
    world.event_hash()
}

#[test]
fn the_same_seed_gives_the_same_events_and_another_seed_others() {
    let hashes: BTreeSet<u64> = (0..20).map(busy).collect();
    assert_eq!(hashes.len(), 20);
    for seed in 0..20 {
        assert!(hashes.contains(&busy(seed)), "seed {seed} did not replay");
    }
}
