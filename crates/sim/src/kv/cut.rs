//! World `kv-cut`: power is cut at every operation that changes the media, before, in the middle of and after
//! it, in turn; each time the store is opened again and compared with the model.

use super::bench::{Bench, Setup};
use super::client::{Client, Mix};
use crate::report::{Report, RunOptions};
use crate::worlds::{Broken, Outcome};
use pumice_base::hash::stable_hash64;
use pumice_base::rng::Rng;
use pumice_reactor::sim::{CutMode, Halt, HostOptions, PowerCut};
use std::rc::Rc;
use std::time::Duration;

const MODES: [CutMode; 3] = [CutMode::Before, CutMode::Torn, CutMode::After];
/// Calls of each of the two clients.
const CALLS: u64 = 25;
/// More cuts than this per seed are sampled.
const CUTS_MAX: u64 = 3000;

/// One run of the workload. `cut` strikes at an operation counted from the end of formatting; answers how many
/// operations there were.
fn once(seed: u64, calls: u64, cut: Option<u64>, report: &mut Report) -> Result<(u64, u64), String> {
    let mut rng = Rng::from_seed(seed).split("kv-cut");
    let bench =
        Bench::new(seed, Setup::tiny(&mut rng), HostOptions { quirks: false, ..HostOptions::default() });
    bench.format()?;
    let start = bench.world.counters(bench.host).mutations;
    if let Some(cut) = cut {
        let mode = MODES[(cut % 3) as usize];
        bench.world.cut_power(bench.host, PowerCut { at: start + cut / 3, mode, fate: None });
    }
    if let Some(store) = bench.open(true)? {
        for index in 0..2u16 {
            let mix = Mix {
                waits: 50,
                value_max: 3000,
                pause_us: 200,
                scan: 1,
                get: 2,
                large: 1,
                ..Mix::draw(&mut rng)
            };
            let (store, model) = (store.clone(), Rc::clone(&bench.model));
            let client = Client { store, model, rng: rng.split(&format!("client {index}")), mix };
            drop(bench.world.run(bench.host, index, client.run(calls)));
        }
        bench.world.run_for(Duration::from_secs(30));
        bench.note_work(&store);
        if bench.world.is_up(bench.host) {
            // Where the cut struck nothing yet, it may strike the close.
            let closing = store.clone();
            let closed = bench.world.block_on(bench.host, async move { closing.close().await });
            match closed {
                Ok(Ok(())) if cut.is_some() => return Err("the power was not cut".into()),
                Ok(Ok(())) => {
                    let newest = bench.model.oracle.borrow().newest();
                    bench.model.oracle.borrow_mut().acknowledge(newest);
                    bench.world.kill(bench.host);
                }
                Ok(Err(error)) => return Err(format!("close: {error}")),
                Err(Halt::HostDown) => {}
                Err(halt) => return Err(format!("close: {halt}")),
            }
        }
    }
    let end = bench.world.counters(bench.host).mutations;
    bench.model.after_clients();
    // One run in four loses power again while it recovers.
    let again = cut.filter(|_| rng.split(&format!("again {cut:?}")).chance(0.25));
    let again = again.map(|cut| PowerCut { at: cut / 3 % 7, mode: MODES[(cut % 3) as usize], fate: None });
    bench.recover(again)?;
    for (name, count) in bench.model.counts.borrow().iter() {
        report.count(name, *count);
    }
    Ok((end - start, bench.world.event_hash()))
}

pub(crate) fn run(seed: u64, options: &RunOptions, report: &mut Report) -> Outcome {
    let calls = options.ops.unwrap_or(CALLS);
    if let Some(cut) = options.cut {
        return Ok(once(seed, calls, Some(cut), report).map(|(_, hash)| hash)?);
    }
    let (operations, mut hash) = once(seed, calls, None, report)?;
    let cuts = operations * MODES.len() as u64;
    let mut rng = Rng::from_seed(seed).split("sample");
    for cut in 0..cuts {
        if cuts > CUTS_MAX && rng.below(cuts) >= CUTS_MAX {
            continue;
        }
        let ran = crate::worlds::caught(|| once(seed, calls, Some(cut), report));
        let (_, one) = ran.map_err(|what| Broken {
            what: format!(
                "power cut {:?} operation {} of {operations}: {what}",
                MODES[(cut % 3) as usize],
                cut / 3
            ),
            replay_args: format!(" --cut {cut}"),
        })?;
        hash = stable_hash64(hash, &one.to_le_bytes());
        report.count("cuts", 1);
    }
    Ok(hash)
}
