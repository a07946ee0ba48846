//! World `kv-full`: a drive is filled until it refuses. Then reads, deletes and cleaning go on; after deleting
//! half, half fits again without a restart; and again after a crash.

use super::bench::{Bench, Setup};
use super::client::{Client, Mix};
use crate::oracle::{Change, Key};
use crate::report::{Report, RunOptions};
use crate::worlds::Outcome;
use pumice_base::rng::Rng;
use pumice_kv::Store;
use pumice_reactor::sim::HostOptions;
use pumice_reactor::sleep;
use std::rc::Rc;
use std::time::Duration;

const ROUNDS: u64 = 3;

pub(crate) fn run(seed: u64, options: &RunOptions, report: &mut Report) -> Outcome {
    let mut rng = Rng::from_seed(seed).split("kv-full");
    let drawn = Setup::draw(&mut rng);
    // Every key of the one space is used once per round: the drive fills with live data.
    let setup = Setup { segments: 48 + rng.below(32), keys: u64::MAX, spaces: 1, ..drawn };
    let bench = Bench::new(seed, setup, HostOptions::default());
    let outcome = rounds(&bench, &mut rng, options.ops.unwrap_or(ROUNDS));
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

fn rounds(bench: &Bench, rng: &mut Rng, rounds: u64) -> Result<(), String> {
    bench.format()?;
    let mut store = bench.open(true)?.ok_or("the host went down while opening")?;
    let space = bench.model.random_space(rng);
    let mut held: Vec<(Key, u64)> = Vec::new();
    let value_max = [500, 4000, 30_000][rng.below(3) as usize];
    let mut number = 0;
    // Most of what the reserve and the metadata leave, then what half of it holds.
    let report = store.space();
    let mut must_fit = (report.raw - report.meta - report.reserved - report.leftover) / 10 * 6;
    for round in 0..rounds {
        let said = |what: &str| format!("round {round}: {what}");
        let mut filler = client(bench, &store, &rng.split(&format!("fill {round}")), value_max);
        let model = Rc::clone(&bench.model);
        let filled = bench.world.block_on(bench.host, async move {
            let mut written: Vec<(Key, u64)> = Vec::new();
            let mut bytes = 0;
            loop {
                let key = model.key(space, 97 * number + 2);
                number += 1;
                let Change::Put(_, value) = filler.put(space) else { unreachable!("puts are puts") };
                if filler.write(&[Change::Put(key.clone(), value)]).await.is_err() {
                    // Refused: given time, cleaning may still make room for what fits.
                    if bytes >= must_fit {
                        return (written, bytes, number);
                    }
                    sleep(Duration::from_millis(50)).await;
                    model.count("waits for cleaning", 1);
                    assert!(
                        model.counts.borrow().get("waits for cleaning").copied().unwrap_or(0) < 2_000,
                        "full at {bytes} bytes, {must_fit} must fit: {}",
                        filler.store.space()
                    );
                    continue;
                }
                bytes += value.len + key.1.len() as u64;
                written.push((key, value.len));
            }
        });
        let (written, bytes, next) = filled.map_err(|halt| said(&format!("filling: {halt}")))?;
        number = next;
        held.extend(written);
        bench.model.count("bytes filled", bytes);
        bench.note_work(&store);
        bench.verify(&store).map_err(|what| said(&format!("full: {what}")))?;
        if round % 2 == 1 {
            bench.world.crash(bench.host);
            bench.model.after_clients();
            store = bench.recover(None).map_err(|what| said(&format!("full, after a crash: {what}")))?;
            let oracle = bench.model.oracle.borrow();
            held.retain(|(key, _)| oracle.current(key).is_some());
        }
        // Half of it goes.
        rng.shuffle(&mut held);
        let (kept, gone) = held.split_at(held.len() / 2);
        let gone_bytes: u64 = gone.iter().map(|(_, len)| len).sum();
        let gone: Vec<Key> = gone.iter().map(|(key, _)| key.clone()).collect();
        held = kept.to_vec();
        let mut deleter = client(bench, &store, &rng.split(&format!("delete {round}")), value_max);
        let deleted = bench.world.block_on(bench.host, async move {
            for key in gone {
                if deleter.write(&[Change::Delete(key)]).await.is_err() {
                    return Err(format!("a delete was refused: {}", deleter.store.space()));
                }
            }
            Ok(())
        });
        deleted.map_err(|halt| said(&format!("deleting: {halt}")))?.map_err(|what| said(&what))?;
        must_fit = gone_bytes * 9 / 10;
    }
    Ok(())
}
