//! World `kv-flip`: bits flip anywhere on a drive; no read may answer anything but what was written or a typed
//! error, what does not touch the damage stays readable, and the check finds what reads cannot have.
//!
//! Half of the drives were not closed: their log is read with a flipped bit. It may cost what was acknowledged, as media do that
//! flip what they hold, but not in silence.

use super::bench::{Bench, PATH, Setup, seen};
use super::crash::start_clients;
use crate::oracle::{Key, show};
use crate::report::{Report, RunOptions};
use crate::worlds::{Broken, Outcome, caught};
use pumice_base::hash::stable_hash64;
use pumice_base::rng::Rng;
use pumice_flash::{Access, Device, DeviceSpec};
use pumice_kv::{Batch, SliceId, Store};
use pumice_reactor::sim::HostOptions;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

/// Flips per seed, one at a time.
const FLIPS: u64 = 60;

/// What one flip did.
enum Effect {
    /// Nothing that anyone reads.
    None,
    /// The store refuses to open, and says why.
    Closed,
    /// Opening says that a part of the log is lost: keys may hold what they held before, or nothing.
    Announced,
    /// So many keys answer an error, so many do not; the check's number of problems.
    Keys { errors: u64, right: u64, problems: u64 },
}

pub(crate) fn run(seed: u64, options: &RunOptions, report: &mut Report) -> Outcome {
    let mut rng = Rng::from_seed(seed).split("kv-flip");
    let bench = Bench::new(seed, Setup { keys: 200, ..Setup::draw(&mut rng) }, HostOptions::default());
    bench.format()?;
    let store = bench.open(true)?.ok_or_else(|| "the host went down while opening".to_string())?;
    start_clients(&bench, &store, &mut rng, 150);
    bench.world.run_for(Duration::from_secs(60));
    bench.model.after_clients();
    bench.note_work(&store);
    if rng.split("closed").chance(0.5) {
        bench.close(store)?;
    } else {
        settle(&bench, &store)?;
        bench.world.crash(bench.host);
        drop(store);
        report.count("drives that were not closed", 1);
    }
    let newest = bench.model.oracle.borrow().newest();
    bench.model.oracle.borrow_mut().acknowledge(newest);
    for (name, count) in bench.model.counts.borrow().iter() {
        report.count(name, *count);
    }
    let image = bench.world.disk(bench.host);
    let extents = bench.extents();
    let total: u64 = extents.iter().map(|(_, bytes)| bytes).sum();
    let flips = options.ops.unwrap_or(FLIPS);
    for flip in 0..flips {
        let mut rng = rng.split(&format!("flip {flip}"));
        let only = options.cut.is_some_and(|only| only != flip);
        if only {
            continue;
        }
        let mut place = rng.below(total);
        let mut offset = 0;
        for &(start, bytes) in &extents {
            if place < bytes {
                offset = start + place;
                break;
            }
            place -= bytes;
        }
        let mask = 1u8 << rng.below(8);
        bench.world.set_disk(bench.host, &image);
        bench.world.flip(bench.host, Path::new(PATH), offset, mask);
        let effect = caught(|| one(&bench));
        let effect = effect.map_err(|what| Broken {
            what: format!("bit {mask:#04x} of byte {offset} flipped ({:?}): {what}", bench.setup),
            replay_args: format!(" --cut {flip}"),
        })?;
        match effect {
            Effect::None => report.count("flips without effect", 1),
            Effect::Closed => report.count("flips that keep it closed", 1),
            Effect::Announced => report.count("flips that cost a part of the log", 1),
            Effect::Keys { errors, right, problems } => {
                report.count("flips that cost keys", u64::from(errors > 0));
                report.count("keys lost", errors);
                report.count("keys unharmed", right);
                report.count("flips found by the check", u64::from(problems > 0));
            }
        }
        report.count("flips", 1);
        if bench.world.is_up(bench.host) {
            bench.world.kill(bench.host);
        }
    }
    Ok(stable_hash64(bench.world.event_hash(), &flips.to_le_bytes()))
}

/// One more write, alone and waited for: it tells that all before it are durable, and nothing tells that it was. It is of no
/// space that anybody reads.
fn settle(bench: &Bench, store: &Store) -> Result<(), String> {
    let store = store.clone();
    let settled = bench.world.block_on(bench.host, async move {
        let mut batch = Batch::new();
        batch.put(SliceId(0), &u32::MAX.to_be_bytes(), 0, 0, b"the last");
        let seq = store.write(&batch).map_err(|error| error.to_string())?;
        store.wait_durable(seq).await.map_err(|error| error.to_string())
    });
    settled.map_err(|halt| format!("the last write: {halt}"))?
}

/// Opens the damaged drive and reads everything.
fn one(bench: &Bench) -> Result<Effect, String> {
    if bench.world.is_up(bench.host) {
        bench.world.kill(bench.host);
    }
    bench.world.restart(bench.host);
    let (options, model) = (bench.setup.options(), Rc::clone(&bench.model));
    let ran = bench.world.block_on(bench.host, async move {
        let device = match Device::open(&DeviceSpec::Path(PATH.into()), Access::ReadWrite).await {
            Ok(device) => device,
            Err(_) => return Ok(Effect::Closed),
        };
        let opened = match Store::open(device, options, &|_, _| {}).await {
            Ok(opened) => opened,
            Err(_) => return Ok(Effect::Closed),
        };
        let (store, announced) = (opened.store, opened.damage.len() as u64);
        let keys: Vec<Key> = model.oracle.borrow().known_keys().cloned().collect();
        let live =
            |key: &Key| model.spaces.borrow().keys().any(|space| key.1.starts_with(&space.to_be_bytes()));
        let (mut errors, mut right) = (0, 0);
        let mut first = String::new();
        for key in keys.into_iter().filter(live) {
            let read = match store.get(SliceId(key.0), &key.1).await {
                Ok(Some(entry)) => seen(&store, &entry).await.map(Some),
                Ok(None) => Ok(None),
                Err(error) => Err(error),
            };
            match read {
                Ok(_) if announced > 0 => right += 1,
                Ok(seen) => {
                    let mut oracle = model.oracle.borrow_mut();
                    let from = oracle.begin_read();
                    oracle.end_read(&key, from, seen.as_ref())?;
                    right += 1;
                }
                Err(error) => {
                    if errors == 0 {
                        first = format!("{}: {error}", show(&key));
                    }
                    errors += 1;
                }
            }
        }
        let check = store.check(&|_, _| {}).await.map_err(|error| format!("check: {error}"))?;
        let problems = check.problems.len() as u64 + announced;
        if errors > 0 && problems == 0 {
            return Err(format!("{errors} keys answer errors ({first}), but the check finds nothing"));
        }
        if errors + problems == 0 {
            return Ok(Effect::None);
        }
        if announced > 0 {
            return Ok(Effect::Announced);
        }
        Ok(Effect::Keys { errors, right, problems })
    });
    ran.map_err(|halt| format!("reading a damaged drive: {halt}"))?
}
