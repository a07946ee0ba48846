//! World `kv-each`: for each kind of change of the media, power is cut at every operation inside of it: before, in the
//! middle of and after it. Each time the store is opened again and compared with the model: what was acknowledged is
//! there, what was not is whole or absent, what was deleted stays deleted, a batch is all or nothing, the check is clean.
//! A cut that does not strike fails, too.
//!
//! Drives have two channels or one by turns; each third seed has emulated NAND, whose power is cut in the middle of operations.
//!
//! One run of a kind prepares a small drive, counts the operations that the kind makes, and stops; a run with a cut does
//! the same up to there. `--cut` names the kind and the cut in one number.

use super::bench::{Bench, Setup};
use super::client::{Client, Mix};
use crate::oracle::{Change, Key, Value};
use crate::report::{Report, Row, RunOptions};
use crate::worlds::{Broken, Outcome, caught};
use pumice_base::hash::stable_hash64;
use pumice_base::rng::Rng;
use pumice_flash::Emulated;
use pumice_kv::Store;
use pumice_reactor::sim::{CutMode, Halt, HostOptions, PowerCut};
use pumice_reactor::{sleep, wall_ms};
use std::cell::Cell;
use std::fmt::Debug;
use std::future::{Future, pending};
use std::rc::Rc;
use std::time::Duration;

const MODES: [CutMode; 3] = [CutMode::Before, CutMode::Torn, CutMode::After];
/// In `--cut`: the kind's number times this, and the cut.
const KIND: u64 = 1_000_000;
/// Steps after which what a kind waits for should long have happened.
const STEPS_MAX: u32 = 4000;

/// Of memtables that a recovery in parts may fill: a few keys.
const PART_BYTES: u64 = 400;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    SetInline,
    SetRecord,
    SetLarge,
    PutAgain,
    Delete,
    Batch,
    Expiry,
    Flush,
    Merge,
    Sink,
    MetaSwitch,
    Clean,
    Reuse,
    GiveBack,
    Retire,
    Close,
    Recovery,
    BatchOfFrames,
    OverwriteLarge,
    DeleteLarge,
    RecoveryInParts,
}

const KINDS: [(Kind, &str); 21] = [
    (Kind::SetInline, "SET, value in its key's row"),
    (Kind::SetRecord, "SET, value in a record"),
    (Kind::SetLarge, "SET, value in pieces"),
    (Kind::Delete, "DEL"),
    (Kind::PutAgain, "EXPIRE, values stay where they are"),
    (Kind::Batch, "batch over all slices"),
    (Kind::Expiry, "expired keys removed"),
    (Kind::Flush, "memtable to key tables"),
    (Kind::Merge, "key tables merged"),
    (Kind::Sink, "key tables taken over as they are"),
    (Kind::MetaSwitch, "metadata log's other half"),
    (Kind::Clean, "victim cleaned and released"),
    (Kind::Reuse, "released segments used again"),
    (Kind::GiveBack, "space given back to the file system"),
    (Kind::Retire, "space retired (FLUSHALL)"),
    (Kind::Close, "clean close"),
    (Kind::Recovery, "recovery"),
    (Kind::BatchOfFrames, "batch of several frames"),
    (Kind::OverwriteLarge, "SET over a value in pieces"),
    (Kind::DeleteLarge, "DEL of a value in pieces"),
    (Kind::RecoveryInParts, "recovery, a part at a time"),
];

/// The power of a drive in a file is cut before, in and after an operation; that of NAND in one.
fn modes(seed: u64) -> &'static [CutMode] {
    if is_nand(seed) { &[CutMode::Torn] } else { &MODES }
}

fn is_nand(seed: u64) -> bool {
    seed.is_multiple_of(3)
}

pub(crate) fn run(seed: u64, options: &RunOptions, report: &mut Report) -> Outcome {
    if let Some(cut) = options.cut {
        let (kind, _) = KINDS[(cut / KIND) as usize % KINDS.len()];
        return Ok(once(seed, kind, Some(cut % KIND)).map(|(_, hash)| hash)?);
    }
    let mut hash = 0;
    let modes = modes(seed);
    for (number, (kind, name)) in KINDS.iter().enumerate() {
        if *kind == Kind::GiveBack && is_nand(seed) {
            continue;
        }
        let (operations, _) = once(seed, *kind, None).map_err(|what| format!("{name}: {what}"))?;
        // `ops` leaves cuts out where a kind makes many operations.
        let all = operations * modes.len() as u64;
        let stride = options.ops.map_or(1, |most| all.div_ceil(most.max(1))).max(1);
        let (mut cuts, mut passed) = (0u64, 0u64);
        for cut in (0..all).step_by(stride as usize) {
            let ran = caught(|| once(seed, *kind, Some(cut)));
            let (_, one) = ran.map_err(|what: String| Broken {
                what: format!(
                    "{name}: power cut {:?} operation {} of {operations}: {what}",
                    modes[(cut % modes.len() as u64) as usize],
                    cut / modes.len() as u64
                ),
                replay_args: format!(" --cut {}", number as u64 * KIND + cut),
            })?;
            hash = stable_hash64(hash, &one.to_le_bytes());
            (cuts, passed) = (cuts + 1, passed + 1);
        }
        report.count("cuts", cuts);
        report.count("cuts on NAND", if is_nand(seed) { cuts } else { 0 });
        report.rows.push(Row::within(name, "cuts passed", passed as f64, None, cuts as f64, cuts as f64));
    }
    Ok(hash)
}

/// One run of a kind. `cut` strikes at an operation counted from its beginning; answers how many there were.
fn once(seed: u64, kind: Kind, cut: Option<u64>) -> Result<(u64, u64), String> {
    let mut rng = Rng::from_seed(seed).split("kv-each");
    let mut setup = Setup { slices: 3, channels: 1 + (seed % 2) as u16, ..Setup::tiny(&mut rng) };
    if kind == Kind::Sink {
        // Tables of a few KiB: smaller ones are merged.
        setup.memtable_bytes = 64 << 10;
    }
    if kind == Kind::RecoveryInParts {
        setup.replay_bytes = Some(PART_BYTES);
    }
    if matches!(kind, Kind::GiveBack | Kind::OverwriteLarge) {
        // More than the pool holds; three large values beside each other.
        setup.segments = 112;
    }
    let bench = if is_nand(seed) {
        Bench::on_nand(seed, setup, seed)
    } else {
        Bench::new(seed, setup, HostOptions { quirks: false, ..HostOptions::default() })
    };
    bench.format()?;
    let background = !matches!(
        kind,
        Kind::SetInline
            | Kind::SetRecord
            | Kind::SetLarge
            | Kind::Delete
            | Kind::PutAgain
            | Kind::Batch
            | Kind::BatchOfFrames
            | Kind::Expiry
            | Kind::Flush
            | Kind::MetaSwitch
            | Kind::Close
            | Kind::Recovery
            | Kind::RecoveryInParts
    );
    let is_recovery = matches!(kind, Kind::Recovery | Kind::RecoveryInParts);
    let mut store = bench.open(background)?.ok_or("the host went down while opening")?;
    let client = |store: &Store| Client {
        store: store.clone(),
        model: Rc::clone(&bench.model),
        rng: rng.split("client"),
        mix: Mix { waits: 100, value_max: 3000, pause_us: 0, ..Mix::draw(&mut rng.clone()) },
    };
    let prepared = bench.world.block_on(bench.host, prepare(client(&store), kind));
    prepared.map_err(|halt| format!("preparing: {halt}"))?;
    if is_recovery {
        bench.crash();
        bench.model.after_clients();
        bench.world.restart(bench.host);
    }
    let start = mutations(&bench);
    if let Some(cut) = cut {
        // What a drive without power refuses is no fault.
        bench.model.may_fail.set(bench.is_nand());
        let (modes, each) = (modes(seed), modes(seed).len() as u64);
        let (at, mode) = (cut / each, modes[(cut % each) as usize]);
        match bench.nand() {
            Some(nand) => nand.cut_power_at(at + 1),
            None => bench.world.cut_power(bench.host, PowerCut { at: start + at, mode, fate: None }),
        }
    }
    let done = if is_recovery {
        match bench.open(true) {
            Ok(Some(opened)) => {
                store = opened;
                until_power_fails(&bench, sleep(Duration::from_millis(300)))
            }
            Err(what) if has_power(&bench) => return Err(what),
            Ok(None) | Err(_) => Err(Halt::HostDown),
        }
    } else {
        until_power_fails(&bench, act(client(&store), kind))
    };
    if cut.is_some() && done.is_ok() {
        return Err("the power was not cut".into());
    }
    match done {
        Ok(()) if kind == Kind::Close => {
            let newest = bench.model.oracle.borrow().newest();
            bench.model.oracle.borrow_mut().acknowledge(newest);
        }
        Ok(()) => {}
        Err(Halt::HostDown) if cut.is_some() => {}
        Err(halt) => return Err(format!("{kind:?}: {halt}")),
    }
    let operations = mutations(&bench) - start;
    if cut.is_none()
        && kind == Kind::RecoveryInParts
        && !bench.model.counts.borrow().contains_key("opens in parts")
    {
        return Err("it was replayed at once".into());
    }
    if cut.is_none() && operations == 0 {
        return Err(format!("{kind:?} changes nothing on the media"));
    }
    bench.world.spare_power(bench.host);
    if bench.world.is_up(bench.host) {
        bench.crash();
    }
    bench.model.may_fail.set(false);
    drop(store);
    bench.model.after_clients();
    bench.recover(None)?;
    Ok((operations, bench.world.event_hash()))
}

/// Operations at which the drive's power can be cut, so far.
fn mutations(bench: &Bench) -> u64 {
    bench.nand().map_or_else(|| bench.world.counters(bench.host).mutations, Emulated::mutations)
}

fn has_power(bench: &Bench) -> bool {
    bench.world.is_up(bench.host) && bench.nand().is_none_or(Emulated::is_powered)
}

/// Runs `future` to its end, or until the power of the host or of its drive fails.
fn until_power_fails(bench: &Bench, future: impl Future<Output = ()> + 'static) -> Result<(), Halt> {
    if !bench.is_nand() {
        return bench.world.block_on(bench.host, future);
    }
    let done = Rc::new(Cell::new(false));
    let tells = Rc::clone(&done);
    drop(bench.world.run(bench.host, 0, async move {
        future.await;
        tells.set(true);
    }));
    while has_power(bench) && !done.get() && bench.world.step() {}
    if has_power(bench) { Ok(()) } else { Err(Halt::HostDown) }
}

/// What must go well, but where the drive has no power any more: then nothing follows.
async fn must<T, E: Debug>(client: &Client, what: &str, result: Result<T, E>) -> T {
    match result {
        Ok(done) => done,
        Err(_) if client.model.may_fail.get() => pending().await,
        Err(error) => panic!("{what}: {error:?}"),
    }
}

async fn checkpoint(client: &Client) {
    must(client, "checkpoint", client.store.checkpoint().await).await;
}

async fn write(client: &mut Client, changes: &[Change]) {
    let written = client.write(changes).await;
    must(client, "the drive is not full", written).await;
}

async fn put_large(client: &mut Client, number: u64) {
    let key = key(client, number);
    let written = client.large_of(key).await;
    must(client, "the drive is not full", written).await;
}

/// A space that every run begins with.
const SPACE: u32 = 1;

fn key(client: &Client, number: u64) -> Key {
    client.model.key(SPACE, number)
}

fn value(client: &Client, len: u64) -> Value {
    let stamp = client.model.oracle.borrow_mut().stamp();
    Value { stamp, len, tag: 3, expire_ms: 0 }
}

async fn put(client: &mut Client, number: u64, len: u64) {
    let change = Change::Put(key(client, number), value(client, len));
    write(client, &[change]).await;
}

async fn put_again(client: &mut Client, numbers: &[u64]) {
    for &number in numbers {
        let key = key(client, number);
        let written = client.put_again(key).await;
        must(client, "the drive is not full", written).await;
    }
}

/// What must be there before the kind begins.
async fn prepare(mut client: Client, kind: Kind) {
    for number in 0..8 {
        put(&mut client, number, [20, 2500][number as usize % 2]).await;
    }
    checkpoint(&client).await;
    put_again(&mut client, &[1, 3]).await;
    if matches!(kind, Kind::OverwriteLarge | Kind::DeleteLarge) {
        put_large(&mut client, 3).await;
        checkpoint(&client).await;
    }
    for number in 4..12 {
        put(&mut client, number, [30, 2000][number as usize % 2]).await;
    }
    let heap = client.store.heap().clone();
    if matches!(kind, Kind::Clean | Kind::Reuse | Kind::GiveBack) {
        // What stays alive of the first victims is moved as it was put again.
        let kept = [20, 21, 22, 23];
        for number in kept {
            put(&mut client, number, 2500).await;
        }
        checkpoint(&client).await;
        put_again(&mut client, &kept).await;
        // Until few segments are left: cleaning begins soon.
        let mut number = 0;
        while heap.free_segments() > 8 {
            put(&mut client, number % 12, 3000).await;
            number += 1;
        }
    }
    if kind == Kind::GiveBack {
        // Nobody writes until all that is dead is emptied.
        until("the first that is given back", &mut client, async |client, _| {
            sleep(Duration::from_millis(20)).await;
            client.store.stats().counters.given_back_segments > 0
        })
        .await;
    }
    if kind == Kind::Expiry {
        for number in 0..6 {
            let value =
                Value { expire_ms: wall_ms() + 1000, ..value(&client, [20, 2500][number as usize % 2]) };
            let change = Change::Put(key(&client, number), value);
            write(&mut client, &[change]).await;
        }
        sleep(Duration::from_secs(2)).await;
    }
}

/// The change itself, waited for.
async fn act(mut client: Client, kind: Kind) {
    let store = client.store.clone();
    match kind {
        Kind::SetInline => put(&mut client, 3, 40).await,
        Kind::SetRecord => put(&mut client, 3, 2900).await,
        Kind::SetLarge => put_large(&mut client, 3).await,
        Kind::Delete => {
            let gone = [Change::Delete(key(&client, 1)), Change::Delete(key(&client, 6))];
            for delete in gone {
                write(&mut client, &[delete]).await;
            }
        }
        Kind::PutAgain => {
            // In key tables, again; in the log, beside the key and in a record.
            put_again(&mut client, &[3, 1, 6, 5]).await;
            checkpoint(&client).await;
            put_again(&mut client, &[1, 7, 2]).await;
        }
        Kind::Batch => {
            let mut changes: Vec<Change> = (0..9)
                .map(|number| Change::Put(key(&client, number), value(&client, 10 + 900 * (number % 3))))
                .collect();
            changes.push(Change::Delete(key(&client, 9)));
            changes.push(Change::Tally(SPACE, 5));
            write(&mut client, &changes).await;
        }
        Kind::BatchOfFrames => {
            let before = store.heap().stats().commits;
            let changes: Vec<Change> = (0..10)
                .map(|number| Change::Put(key(&client, number), value(&client, 12_000)))
                .chain([Change::Delete(key(&client, 10)), Change::Tally(SPACE, 3)])
                .collect();
            write(&mut client, &changes).await;
            assert!(store.heap().stats().commits > before + 1, "it is of one frame");
        }
        Kind::OverwriteLarge => {
            put_large(&mut client, 3).await;
            put(&mut client, 3, 2000).await;
            checkpoint(&client).await;
        }
        Kind::DeleteLarge => {
            let gone = Change::Delete(key(&client, 3));
            write(&mut client, &[gone]).await;
            checkpoint(&client).await;
        }
        Kind::Expiry => {
            let expired = must(&client, "expired", store.expired(wall_ms(), 100).await).await;
            assert_eq!(expired.len(), 6, "six keys have expired");
            for (slice, key) in expired {
                write(&mut client, &[Change::Delete((slice.0, key.to_vec()))]).await;
            }
        }
        Kind::Flush => checkpoint(&client).await,
        Kind::Merge => {
            let merges = store.stats().counters.merges;
            until("a merge", &mut client, async |client, step| {
                put(client, u64::from(step) % 12, 100).await;
                checkpoint(client).await;
                sleep(Duration::from_millis(5)).await;
                client.store.stats().counters.merges > merges
            })
            .await;
        }
        Kind::Sink => {
            let sunk = store.stats().counters.sunk_tables;
            until("a table that is taken over", &mut client, async |client, step| {
                // In the order of the keys, run after run; the numbers that make odd keys are left out.
                let numbers = (u64::from(step) * 300..).filter(|number| number % 97 > 1).take(300);
                let changes: Vec<Change> =
                    numbers.map(|number| Change::Put(key(client, number), value(client, 60))).collect();
                write(client, &changes).await;
                checkpoint(client).await;
                sleep(Duration::from_millis(5)).await;
                client.store.stats().counters.sunk_tables > sunk
            })
            .await;
        }
        Kind::MetaSwitch => {
            let mut snapshots = false;
            until("a snapshot", &mut client, async |client, step| {
                let wanted = client.store.heap().wants_snapshot();
                put(client, u64::from(step) % 12, 50).await;
                checkpoint(client).await;
                snapshots |= wanted;
                snapshots && !client.store.heap().wants_snapshot()
            })
            .await;
        }
        Kind::Clean => {
            let released = store.heap().stats().segments_released;
            until("a victim", &mut client, async |client, step| {
                put(client, u64::from(step) % 12, 3000).await;
                client.store.heap().stats().segments_released > released
            })
            .await;
        }
        Kind::Reuse => {
            // More than were ever free must be opened: so some of them were released before.
            let opened = store.heap().stats().segments_opened;
            let free = u64::from(store.heap().free_segments());
            until("a reuse", &mut client, async |client, step| {
                put(client, u64::from(step) % 12, 3000).await;
                client.store.heap().stats().segments_opened > opened + free + 2
            })
            .await;
        }
        Kind::GiveBack => {
            let given = store.stats().counters.given_back_segments;
            until("what is given back", &mut client, async |client, _| {
                sleep(Duration::from_millis(20)).await;
                client.store.stats().counters.given_back_segments > given + 2
            })
            .await;
            // The metadata log says so, and others are opened.
            for number in 0..60 {
                put(&mut client, number % 12, 3000).await;
            }
            checkpoint(&client).await;
        }
        Kind::Retire => {
            client.model.spaces.borrow_mut().remove(&SPACE);
            let retire = Change::Retire(SPACE.to_be_bytes().to_vec());
            write(&mut client, &[retire]).await;
            checkpoint(&client).await;
            sleep(Duration::from_millis(50)).await;
        }
        Kind::Close => must(&client, "close", store.close().await).await,
        Kind::Recovery | Kind::RecoveryInParts => unreachable!("it is not an act of a client"),
    }
}

/// Steps until `done` says so.
async fn until(what: &str, client: &mut Client, mut done: impl AsyncFnMut(&mut Client, u32) -> bool) {
    for step in 0..STEPS_MAX {
        if done(client, step).await {
            return;
        }
    }
    panic!("{what} does not happen in {STEPS_MAX} steps: {}", client.store.space());
}
