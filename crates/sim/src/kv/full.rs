//! World `kv-full`: a drive is filled until it refuses. Then some keys are put again with other expiries, as far as that is taken.
//! Reads, deletes and cleaning go on; after deleting half, half fits again without a restart; and again after a crash. Power fails
//! while cleaning works for who fills it, and while it is emptied, on each fourth seed.

use super::bench::{Bench, Setup};
use super::client::{Client, Mix};
use crate::oracle::{Change, Key};
use crate::report::{Report, RunOptions};
use crate::worlds::Outcome;
use pumice_base::rng::Rng;
use pumice_kv::Store;
use pumice_reactor::sim::{CutMode, Halt, HostOptions, PowerCut};
use pumice_reactor::sleep;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

const ROUNDS: u64 = 3;
/// Keys that are put again on the full drive, and how many may be refused.
const TOUCHES_MAX: usize = 10_000;
const REFUSED_MAX: u32 = 20;
/// Free segments with which cleaning must work for whoever writes.
const SHORT_SEGMENTS: u32 = 4;
/// Operations within which power is cut.
const CUT_WITHIN: u64 = 60;

pub(crate) fn run(seed: u64, options: &RunOptions, report: &mut Report) -> Outcome {
    let mut rng = Rng::from_seed(seed).split("kv-full");
    let drawn = Setup::draw(&mut rng);
    // Every key of the one space is used once per round: the drive fills with live data.
    // Smaller drives keep one segment for what is put again, which is soon used up.
    let segments = 48 + rng.below(32) + if seed % 5 == 2 { 80 } else { 0 };
    let setup = Setup { segments, keys: u64::MAX, spaces: 1, ..drawn };
    let cuts_power = seed % 4 == 3;
    let bench = Bench::new(seed, setup, HostOptions::default());
    let outcome = rounds(&bench, &mut rng, options.ops.unwrap_or(ROUNDS), cuts_power);
    for (name, count) in bench.model.counts.borrow().iter() {
        report.count(name, *count);
    }
    outcome.map_err(|what| format!("{what}\n  with {:?}", bench.setup))?;
    Ok(bench.world.event_hash())
}

fn client(bench: &Bench, store: &Store, rng: &Rng, value_max: u64) -> Client {
    let mix = Mix { value_max, waits: 20, pause_us: 0, ..Mix::draw(&mut rng.clone()) };
    Client { store: store.clone(), model: Rc::clone(&bench.model), rng: rng.clone(), mix }
}

/// How filling ended.
enum Filled {
    /// The drive refuses more, and holds what it must.
    Full,
    /// Cleaning is at work: there is little left that is free.
    Short,
}

/// Fills the drive from key `number` on; what it is told to have written goes to `held`. With `stops`, ends as soon as cleaning
/// must work for it.
async fn fill(
    mut filler: Client,
    space: u32,
    number: Rc<Cell<u64>>,
    held: Rc<RefCell<Vec<(Key, u64)>>>,
    must_fit: u64,
    stops: bool,
) -> Filled {
    loop {
        if stops && filler.store.heap().free_segments() <= SHORT_SEGMENTS {
            return Filled::Short;
        }
        let key = filler.model.key(space, 97 * number.get() + 2);
        number.set(number.get() + 1);
        let Change::Put(_, value) = filler.put(space) else { unreachable!("puts are puts") };
        if filler.write(&[Change::Put(key.clone(), value)]).await.is_ok() {
            held.borrow_mut().push((key, value.len));
            continue;
        }
        // Refused: given time, cleaning may still make room for what fits.
        let bytes = bytes_of(&held.borrow());
        if bytes >= must_fit {
            return Filled::Full;
        }
        sleep(Duration::from_millis(50)).await;
        filler.model.count("waits for cleaning", 1);
        assert!(
            filler.model.counts.borrow().get("waits for cleaning").copied().unwrap_or(0) < 2_000,
            "full at {bytes} bytes, {must_fit} must fit: {}",
            filler.store.space()
        );
    }
}

fn bytes_of(held: &[(Key, u64)]) -> u64 {
    held.iter().map(|(key, len)| key.1.len() as u64 + len).sum()
}

/// Power fails soon, at one of the next operations.
fn cut_soon(bench: &Bench, rng: &mut Rng) {
    let at = bench.world.counters(bench.host).mutations + rng.below(CUT_WITHIN);
    let mode = [CutMode::Before, CutMode::Torn, CutMode::After][rng.below(3) as usize];
    bench.world.cut_power(bench.host, PowerCut { at, mode, fate: None });
}

/// The power failed while `doing`: opens the drive again.
fn after_cut(bench: &Bench, store: &mut Store, doing: &'static str) -> Result<(), String> {
    bench.note_work(store);
    bench.model.count(doing, 1);
    bench.model.after_clients();
    *store = bench.recover(None).map_err(|what| format!("{doing}: {what}"))?;
    Ok(())
}

fn rounds(bench: &Bench, rng: &mut Rng, rounds: u64, cuts_power: bool) -> Result<(), String> {
    bench.format()?;
    let mut store = bench.open(true)?.ok_or("the host went down while opening")?;
    let space = bench.model.random_space(rng);
    let mut held: Vec<(Key, u64)> = Vec::new();
    let value_max = [500, 4000, 30_000][rng.below(3) as usize];
    let number = Rc::new(Cell::new(0));
    // Where power fails is drawn apart.
    let mut cuts = rng.split("cuts");
    // Most of what the reserve and the metadata leave, then what half of it holds.
    let report = store.space();
    let mut must_fit = (report.raw - report.meta - report.reserved - report.leftover) / 10 * 6;
    for round in 0..rounds {
        let said = |what: &str| format!("round {round}: {what}");
        let written = Rc::new(RefCell::new(Vec::new()));
        let mut may_cut = cuts_power && cuts.chance(0.8);
        let (mut stops, mut goes_on) = (may_cut, String::new());
        loop {
            let filler = client(bench, &store, &rng.split(&format!("fill {round}{goes_on}")), value_max);
            let filling = fill(filler, space, Rc::clone(&number), Rc::clone(&written), must_fit, stops);
            match bench.world.block_on(bench.host, filling) {
                Ok(Filled::Full) => break,
                Ok(Filled::Short) => cut_soon(bench, &mut cuts),
                Err(Halt::HostDown) if may_cut => {
                    may_cut = false;
                    after_cut(bench, &mut store, "cuts while a drive fills").map_err(|what| said(&what))?;
                    let oracle = bench.model.oracle.borrow();
                    let mut written = written.borrow_mut();
                    written.retain(|(key, _)| oracle.current(key).is_some());
                    held.retain(|(key, _)| oracle.current(key).is_some());
                }
                Err(halt) => return Err(said(&format!("filling: {halt}"))),
            }
            (stops, goes_on) = (false, format!(" {}", number.get()));
        }
        bench.world.spare_power(bench.host);
        bench.model.count("bytes filled", bytes_of(&written.borrow()));
        held.append(&mut written.borrow_mut());
        bench.note_work(&store);
        bench.verify(&store).map_err(|what| said(&format!("full: {what}")))?;
        if round % 2 == 1 {
            bench.world.crash(bench.host);
            bench.model.after_clients();
            store = bench.recover(None).map_err(|what| said(&format!("full, after a crash: {what}")))?;
            let oracle = bench.model.oracle.borrow();
            held.retain(|(key, _)| oracle.current(key).is_some());
        }
        let mut toucher = client(bench, &store, &rng.split(&format!("touch {round}")), value_max);
        let keys: Vec<Key> = held.iter().take(TOUCHES_MAX).map(|(key, _)| key.clone()).collect();
        let touched = bench.world.block_on(bench.host, async move {
            let mut refused = 0;
            for key in keys {
                match toucher.put_again(key).await {
                    Ok(()) => toucher.model.count("put again when full", 1),
                    Err(_) if refused == REFUSED_MAX => break,
                    Err(_) => refused += 1,
                }
            }
        });
        touched.map_err(|halt| said(&format!("putting again: {halt}")))?;
        // Half of it goes.
        rng.shuffle(&mut held);
        let gone = held.split_off(held.len() / 2);
        let gone_bytes: u64 = gone.iter().map(|(_, len)| len).sum();
        may_cut = cuts_power && cuts.chance(0.8);
        if may_cut {
            cut_soon(bench, &mut cuts);
        }
        loop {
            let oracle = bench.model.oracle.borrow();
            let left = gone.iter().map(|(key, _)| key.clone()).filter(|key| oracle.current(key).is_some());
            let left: Vec<Key> = left.collect();
            drop(oracle);
            let mut deleter = client(bench, &store, &rng.split(&format!("delete {round}")), value_max);
            let deleted = bench.world.block_on(bench.host, async move {
                for key in left {
                    if deleter.write(&[Change::Delete(key)]).await.is_err() {
                        return Err(format!("a delete was refused: {}", deleter.store.space()));
                    }
                }
                Ok(())
            });
            match deleted {
                Ok(done) => break done.map_err(|what| said(&what))?,
                Err(Halt::HostDown) if may_cut => {
                    may_cut = false;
                    after_cut(bench, &mut store, "cuts while a full drive is emptied")
                        .map_err(|what| said(&what))?;
                    let oracle = bench.model.oracle.borrow();
                    held.retain(|(key, _)| oracle.current(key).is_some());
                }
                Err(halt) => return Err(said(&format!("deleting: {halt}"))),
            }
        }
        bench.world.spare_power(bench.host);
        must_fit = gone_bytes * 9 / 10;
    }
    Ok(())
}
