//! World `kv`: a mixed workload on one drive, ended again and again by power cuts, kills and clean closes.

use super::bench::{Bench, CLIENT_CORES, Setup};
use super::client::{Client, Mix};
use crate::report::{Report, RunOptions};
use crate::worlds::Outcome;
use pumice_base::rng::Rng;
use pumice_kv::{Durability, Store};
use pumice_reactor::sim::{CutMode, HostOptions, PowerCut};
use std::rc::Rc;
use std::time::Duration;

/// So long that hot keys, too, take more than the least memory.
const LONG_VALUES: u64 = 60_000;
/// How many lives the store has.
const LIVES: u64 = 5;
/// What `everysec` may lose when power fails: a second, and the time that a sync takes.
const EVERYSEC_MAY_LOSE: Duration = Duration::from_millis(2_000);
/// What the relaxed modes may lose when only the process dies.
const A_KILL_MAY_LOSE: Duration = Duration::from_millis(500);

pub(crate) fn run(seed: u64, options: &RunOptions, report: &mut Report) -> Outcome {
    let mut rng = Rng::from_seed(seed).split("kv");
    // One drive in four may lose what is young: what then survives must still be a prefix of the writes.
    let durability = match rng.split("durability").below(8) {
        0 => Durability::EverySecond,
        1 => Durability::None,
        _ => Durability::Always,
    };
    let picks = !rng.split("picks").chance(0.5);
    let drawn = Setup::draw(&mut rng);
    let setup = Setup { durability, picks, ..drawn }.draw_memory(&rng);
    let bench = Bench::new(seed, setup, HostOptions::default());
    report.count("drives with the least memory", u64::from(bench.setup.has_least_memory()));
    let outcome = lives(&bench, &mut rng, options.ops.unwrap_or(400));
    for (name, count) in bench.model.counts.borrow().iter() {
        report.count(name, *count);
    }
    report.count("events", bench.world.events());
    outcome.map_err(|what| format!("{what}\n  with {:?}", bench.setup))?;
    Ok(bench.world.event_hash())
}

fn lives(bench: &Bench, rng: &mut Rng, calls: u64) -> Result<(), String> {
    bench.format()?;
    let mut store = bench.open(true)?.ok_or("the host went down while opening")?;
    for life in 0..LIVES {
        let said = |what: String| format!("life {life}: {what}");
        start_clients(bench, &store, rng, calls);
        // Long enough for the oldest writes to be beyond what the mode may lose.
        let micros = match bench.setup.durability {
            Durability::Always => 1_000 + rng.below(200_000),
            _ => 1_000 + rng.below(6_000_000),
        };
        let everysec = bench.setup.durability == Durability::EverySecond;
        let mut may_lose = everysec.then_some(EVERYSEC_MAY_LOSE);
        match rng.below(4) {
            0 => {
                bench.world.run_for(Duration::from_micros(micros));
                bench.world.crash(bench.host);
                bench.model.count("power cuts", 1);
            }
            1 => {
                bench.world.run_for(Duration::from_micros(micros));
                bench.world.kill(bench.host);
                bench.model.count("kills", 1);
                may_lose = Some(A_KILL_MAY_LOSE);
            }
            2 => {
                let at = bench.world.counters(bench.host).mutations + rng.below(400);
                let mode = [CutMode::Before, CutMode::Torn, CutMode::After][rng.below(3) as usize];
                bench.world.cut_power(bench.host, PowerCut { at, mode, fate: None });
                bench.world.run_for(Duration::from_secs(2));
                bench.world.crash(bench.host);
                bench.model.count("power cuts", 1);
            }
            _ => {
                bench.world.run_for(Duration::from_secs(60));
                bench.model.after_clients();
                let closing = store.clone();
                bench.close(closing).map_err(said)?;
                // A clean close makes everything durable.
                let newest = bench.model.oracle.borrow().newest();
                bench.model.oracle.borrow_mut().acknowledge(newest);
                bench.model.count("clean closes", 1);
            }
        }
        bench.note_work(&store);
        drop(store);
        bench.model.after_clients();
        let mode = [CutMode::Before, CutMode::Torn, CutMode::After][rng.below(3) as usize];
        let cut = rng.chance(0.3).then(|| PowerCut { at: rng.below(12), mode, fate: None });
        if cut.is_some() && !everysec {
            // What a killed process left in caches goes with the power that fails during the recovery.
            may_lose = None;
        } else if cut.is_some() {
            may_lose = Some(EVERYSEC_MAY_LOSE);
        }
        bench.model.keep_promises(may_lose);
        store = bench.recover(cut).map_err(said)?;
    }
    Ok(())
}

/// Several clients on each core, each with a mix of its own.
pub(crate) fn start_clients(bench: &Bench, store: &Store, rng: &mut Rng, calls: u64) {
    for index in 0..2 + rng.below(6) {
        let rng_of_client = rng.split(&format!("client {index} {}", rng.clone().next_u64()));
        let mut mix = Mix::draw(rng);
        if bench.setup.picks {
            (mix.expire, mix.random) = (2, 3);
        }
        if bench.setup.durability != Durability::Always {
            // The same calls, over seconds.
            mix.pause_us = 50_000;
        }
        if bench.setup.has_least_memory() {
            mix.value_max = LONG_VALUES;
        }
        let (store, model) = (store.clone(), Rc::clone(&bench.model));
        let client = Client { store, model, rng: rng_of_client, mix };
        drop(bench.world.run(bench.host, (index % u64::from(CLIENT_CORES)) as u16, client.run(calls)));
    }
}
