//! World `kv-fault`: programs, erases and syncs fail while clients work, on a file and on emulated NAND in turn.
//!
//! 1. A medium that tells of a failed program costs a segment and nothing else: the drive goes on.
//! 2. What cannot be mended (a failing link, a failed sync, a commit with another behind it) stops writes with an error
//!    that says so; reads go on.
//! 3. Whatever happened, the next opener finds every acknowledged write.

use super::bench::{Bench, PATH, Setup};
use super::crash::start_clients;
use crate::report::{Report, RunOptions};
use crate::worlds::Outcome;
use pumice_base::rng::Rng;
use pumice_flash::Operation;
use pumice_kv::Store;
use pumice_reactor::sim::{FaultOp, FileFault, HostOptions, RandomEffect, RandomFault};
use std::time::Duration;

/// How many lives the store has.
const LIVES: u64 = 5;
/// Faults in a life, at most. Each may cost a segment of 64 or more for good.
const FAULTS_MAX: u64 = 4;
/// What a kernel makes of a sector that cannot be written, and of a link that fails.
const ENODATA: i32 = 61;
const EIO: i32 = 5;

pub(crate) fn run(seed: u64, options: &RunOptions, report: &mut Report) -> Outcome {
    let mut rng = Rng::from_seed(seed).split("kv-fault");
    let setup = Setup::draw(&mut rng);
    let bench = if seed.is_multiple_of(2) {
        Bench::on_nand(seed, setup, rng.next_u64())
    } else {
        Bench::new(seed, setup, HostOptions::default())
    };
    let outcome = lives(&bench, &mut rng, options.ops.unwrap_or(400));
    for (name, count) in bench.model.counts.borrow().iter() {
        report.count(name, *count);
    }
    outcome.map_err(|what| format!("{what}\n  with {:?}", bench.setup))?;
    Ok(bench.world.event_hash())
}

fn lives(bench: &Bench, rng: &mut Rng, calls: u64) -> Result<(), String> {
    bench.format()?;
    bench.model.may_fail.set(true);
    let mut store = bench.open(true)?.ok_or("the host went down while opening")?;
    for life in 0..LIVES {
        let said = |what: String| format!("life {life}: {what}");
        start_clients(bench, &store, rng, calls);
        let by_chance = rng.chance(0.4);
        if by_chance {
            fail_by_chance(bench, rng);
        }
        for _ in 0..rng.below(if by_chance { 2 } else { FAULTS_MAX + 1 }) {
            bench.world.run_for(Duration::from_micros(500 + rng.below(40_000)));
            inject(bench, rng);
        }
        bench.world.run_for(Duration::from_millis(20 + rng.below(100)));
        if by_chance {
            bench.world.clear_faults(bench.host);
            if let Some(nand) = bench.nand() {
                nand.fail_by_chance(Operation::Program, 0.0);
                nand.fail_by_chance(Operation::Erase, 0.0);
            }
        }
        let failed = store.heap().read_only();
        bench.model.count(if failed.is_some() { "drives that stopped" } else { "drives that went on" }, 1);
        if let (Some(reason), true) = (&failed, bench.is_nand()) {
            return Err(said(format!("failed programs and erases stopped the drive: {reason}")));
        }
        let how = rng.below(3);
        if how == 0 {
            close(bench, &store).map_err(said)?;
        }
        let retired = store.space().bad / u64::from(store.heap().segment_bytes());
        bench.model.count("segments retired", retired);
        if bench.world.is_up(bench.host) && (how == 2 || bench.is_nand()) {
            bench.crash();
        } else if bench.world.is_up(bench.host) {
            bench.world.kill(bench.host);
        }
        bench.note_work(&store);
        drop(store);
        bench.world.clear_faults(bench.host);
        bench.model.after_clients();
        store = bench.recover(None).map_err(said)?;
    }
    Ok(())
}

/// Waits for the clients and closes. A drive that stopped may refuse that; nothing else may.
fn close(bench: &Bench, store: &Store) -> Result<(), String> {
    bench.world.run_for(Duration::from_secs(60));
    bench.model.after_clients();
    let closing = store.clone();
    let closed = bench.world.block_on(bench.host, async move { closing.close().await });
    match closed.map_err(|halt| format!("close: {halt} ({})", store.space()))? {
        Ok(()) => {
            let newest = bench.model.oracle.borrow().newest();
            bench.model.oracle.borrow_mut().acknowledge(newest);
            bench.model.count("clean closes", 1);
            Ok(())
        }
        Err(_) if store.heap().read_only().is_some() => Ok(()),
        Err(error) => Err(format!("close: {error}")),
    }
}

/// For a while, programs and erases fail by chance: so rarely that the segments which they cost leave the drive enough.
fn fail_by_chance(bench: &Bench, rng: &mut Rng) {
    bench.model.count("lives with faults by chance", 1);
    let chance = [0.0005, 0.002][rng.below(2) as usize];
    match bench.nand() {
        Some(nand) => {
            nand.fail_by_chance(Operation::Program, chance);
            nand.fail_by_chance(Operation::Erase, chance * 10.0);
        }
        None => {
            let effect = RandomEffect::Errno(ENODATA);
            let fault = RandomFault { path: PATH.into(), op: FaultOp::Write, chance, effect };
            bench.world.add_random_fault(bench.host, fault);
        }
    }
}

/// Something fails, now or a little later.
fn inject(bench: &Bench, rng: &mut Rng) {
    bench.model.count("faults", 1);
    if let Some(nand) = bench.nand() {
        match rng.below(4) {
            0 => nand.fail_erase_at(1 + rng.below(3)),
            _ => nand.fail_program_at(1 + rng.below(30)),
        }
        return;
    }
    let (op, errno) = match rng.below(8) {
        0 => (FaultOp::Sync, EIO),
        1 => (FaultOp::Write, EIO),
        _ => (FaultOp::Write, ENODATA),
    };
    let (skip, times) = (rng.below(30), 1 + rng.below(2));
    bench
        .world
        .add_fault(bench.host, FileFault { path: Some(PATH.into()), op, range: None, skip, times, errno });
}
