//! Pumice's `Store` in process: as many tasks as operations in flight, spread over the client cores; background work on
//! one more core, as in the server.
//!
//! A SET that need not be durable returns when it is visible; the store itself bounds what is not yet on flash. A durable
//! one waits for its number.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pumice_base::hash::stable_hash64;
use pumice_flash::{Access, Device, DeviceSpec};
use pumice_kv::{
    Batch, Direction, Entry, Peek, PrewriteProgress, SliceId, SliceSet, Store, StoreFormat, StoreOptions,
    VALUE_BYTES_MAX, Want,
};
use pumice_reactor::sync::Event;
use pumice_reactor::{Config, CoreId, core, sleep, spawn_on, yield_now};

use super::{Loop, Op, Shared};
use crate::keys::{self, KEY_BYTES, Values};
use crate::phase::{PhaseResult, PhaseSpec, Work, WorkerResult, WorkerSpec};
use crate::usage::{self, Usage};
use crate::worker::{Meter, SETTLE_LONGEST, run_limit};
use crate::{Error, Result};

/// A task gives way to others after so many operations that memory answered.
const OPERATIONS_PER_TURN: u64 = 16;

/// Operations still under way so long after a phase's end will never end.
const HANG_SECONDS: f64 = 20.0;

/// Runs the worker's phases on cores of their own.
pub fn run(spec: &WorkerSpec, out: &mut WorkerResult) -> Result<()> {
    let answer: Arc<Mutex<Option<WorkerResult>>> = Arc::default();
    let done = Arc::new(Event::default());
    let config = Config { cores: spec.cores.max(1) + 1, ..Config::default() };
    let init = {
        let (answer, done, spec) = (answer.clone(), done.clone(), spec.clone());
        move |id: CoreId| -> pumice_reactor::LocalBoxFuture<'static, ()> {
            let (answer, done, spec) = (answer.clone(), done.clone(), spec.clone());
            Box::pin(async move {
                if id != CoreId(0) {
                    return done.wait().await;
                }
                let mut result = WorkerResult::default();
                if let Err(error) = phases(&spec, &mut result).await {
                    result.error = Some(error.to_string());
                    // What failed may hang for ever: answer without waiting for the cores.
                    println!("{}", serde_json::to_string(&result).unwrap_or_default());
                    std::process::exit(0);
                }
                *answer.lock().expect("nobody panics holding it") = Some(result);
                done.set();
            })
        }
    };
    pumice_reactor::start(&config, Arc::new(init))?.join()?;
    let result = answer.lock().expect("nobody panics holding it").take();
    *out = result.ok_or("the first core stopped without an answer")?;
    Ok(())
}

async fn phases(spec: &WorkerSpec, out: &mut WorkerResult) -> Result<()> {
    let values = Arc::new(Values::new(spec.value_bytes));
    let drive = DeviceSpec::Path(drive_path(spec));
    if spec.fresh {
        let device = Device::create(&drive, spec.space_bytes).await?;
        Store::format(
            &device,
            &StoreFormat {
                drive_id: *b"pumice-benchmark",
                force: true,
                prewrite: spec.prewritten.then(|| PrewriteProgress(Arc::new(|_, _| {}))),
                ..Default::default()
            },
        )
        .await?;
    }
    let (began, before) = (Instant::now(), Usage::now(&spec.dir));
    let mut store = open(spec, &drive).await?;
    out.opened_seconds = began.elapsed().as_secs_f64();
    out.opened_read_bytes = Usage::now(&spec.dir).since(&before).read_bytes;
    for phase in &spec.phases {
        if let Work::Reopen { cold } = phase.work {
            store.close().await?;
            drop(store);
            if cold {
                aside(usage::drop_caches).await?;
            }
            let meter = Meter::start(spec, phase);
            store = open(spec, &drive).await?;
            out.phases.push(meter.finish());
            continue;
        }
        if let Work::Limit(limit) = phase.work.clone() {
            let (spec, phase) = (spec.clone(), phase.clone());
            out.phases.push(aside(move || run_limit(&spec, &phase, &limit)).await??);
            continue;
        }
        let result = one_phase(spec, &store, phase, &values).await;
        let failed = result.error.clone();
        out.phases.push(result);
        if let Some(error) = failed {
            return Err(format!("{}: {error}", phase.name).into());
        }
    }
    store.close().await?;
    Ok(())
}

fn drive_path(spec: &WorkerSpec) -> PathBuf {
    spec.dir.join("drive0")
}

async fn open(spec: &WorkerSpec, drive: &DeviceSpec) -> Result<Store> {
    let device = Device::open(drive, Access::ReadWrite).await?;
    let options = StoreOptions { memory_bytes: spec.memory_bytes, ..StoreOptions::default() };
    let opened = Store::open(device, options, &|_, _| {}).await?;
    let store = opened.store.clone();
    spawn_on(cold_core(spec), move || Box::pin(async move { store.start_background() }));
    Ok(opened.store)
}

fn cold_core(spec: &WorkerSpec) -> CoreId {
    CoreId(spec.cores.max(1) as u16)
}

/// Runs something blocking on a thread of its own, so that no core stands still.
async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let thread = std::thread::spawn(work);
    while !thread.is_finished() {
        sleep(Duration::from_millis(2)).await;
    }
    thread.join().map_err(|_| Error::from("a helper thread panicked"))
}

async fn one_phase(spec: &WorkerSpec, store: &Store, phase: &PhaseSpec, values: &Arc<Values>) -> PhaseResult {
    let before = counters(store);
    let mut meter = Meter::start(spec, phase);
    let shared = Arc::new(Shared::new(phase, values, spec.keys));
    let total = match phase.work {
        Work::Settle => Loop { error: settle(store).await.err().map(|e| e.to_string()), ..Loop::default() },
        Work::Scan => scan(store, &shared).await,
        _ => drive(spec, store, &shared, &mut meter).await,
    };
    total.fill(&mut meter.result);
    let mut result = meter.finish();
    result.extra = counters(store);
    // What is counted since the opening becomes the phase's own; sizes stay what they are.
    for (name, value) in &mut result.extra {
        if !name.ends_with("_now") {
            *value -= before.get(name).copied().unwrap_or(0.0);
        }
    }
    result
}

/// Background work has come to rest when nothing was written for a quarter of a second.
async fn settle(store: &Store) -> Result<()> {
    let began = Instant::now();
    store.wait_durable(store.last_seq()).await?;
    let written = |store: &Store| {
        let heap = store.stats().heap;
        heap.commit_bytes + heap.moved_bytes + heap.table_bytes + heap.large_bytes + heap.meta_bytes
    };
    let (mut calm, mut last) = (0, written(store));
    while calm < 5 && began.elapsed() < SETTLE_LONGEST {
        sleep(Duration::from_millis(50)).await;
        let now = written(store);
        calm = if now == last { calm + 1 } else { 0 };
        last = now;
    }
    Ok(())
}

/// Spreads the phase's clients over the client cores and waits for them, sampling each second.
async fn drive(spec: &WorkerSpec, store: &Store, shared: &Arc<Shared>, meter: &mut Meter<'_>) -> Loop {
    let cores = spec.cores.max(1) as u32;
    let clients = shared.spec.depth.max(1);
    let finished: Arc<Mutex<(u32, Loop)>> = Arc::default();
    let all = Arc::new(Event::default());
    let began = Instant::now();
    for id in 0..cores {
        let (store, shared, finished, all) = (store.clone(), shared.clone(), finished.clone(), all.clone());
        // Made on their core: a client's histogram is its own, and a thousand of them would fill the memory.
        spawn_on(CoreId(id as u16), move || {
            Box::pin(async move {
                let mine: Rc<std::cell::RefCell<Loop>> = Rc::default();
                let clients_here: Vec<_> = (0..clients)
                    .filter(|client| client % cores == id)
                    .map(|client| {
                        pumice_reactor::spawn(client_loop(
                            store.clone(),
                            shared.clone(),
                            client,
                            mine.clone(),
                        ))
                    })
                    .collect();
                let mut lost = false;
                for client in clients_here {
                    lost |= client.await.is_err();
                }
                let mut finished = finished.lock().expect("nobody panics holding it");
                finished.1.merge(&mine.borrow());
                if lost {
                    finished.1.error.get_or_insert_with(|| "a client task was aborted".into());
                }
                finished.0 += 1;
                if finished.0 == cores {
                    all.set();
                }
            })
        });
    }
    debug_assert_eq!(core(), CoreId(0));
    let mut next_sample = began + Duration::from_secs(1);
    while !all.is_set() {
        let wait = next_sample.saturating_duration_since(Instant::now());
        let limit = Duration::from_secs_f64(shared.spec.seconds_max).saturating_sub(began.elapsed());
        let limit = if shared.stop.load(Ordering::Relaxed) { wait } else { limit };
        let _ = pumice_reactor::timeout(wait.min(limit).max(Duration::from_micros(100)), all.wait()).await;
        if Instant::now() >= next_sample {
            meter.sample(shared.finished.load(Ordering::Relaxed));
            next_sample += Duration::from_secs(1);
        }
        let late = began.elapsed().as_secs_f64() - shared.spec.seconds_max;
        if late >= 0.0 {
            shared.stop.store(true, Ordering::Relaxed);
        }
        if late >= HANG_SECONDS {
            let done = shared.finished.load(Ordering::Relaxed);
            let error =
                format!("operations hang {HANG_SECONDS} s after the end, {done} done; {:?}", store.stats());
            return Loop { error: Some(error), ops: done, ..Loop::default() };
        }
    }
    let mut finished = finished.lock().expect("nobody panics holding it");
    std::mem::take(&mut finished.1)
}

async fn client_loop(store: Store, shared: Arc<Shared>, client: u32, out: Rc<std::cell::RefCell<Loop>>) {
    let mut picker = shared.picker.fork(u64::from(client));
    let mut batch = Batch::new();
    let mut turn = 0u64;
    while let Some(op) = shared.next(&mut picker) {
        let began = Instant::now();
        let done = match op {
            Op::Set(index) => set(&store, &shared, index, &mut batch).await,
            Op::Get(index) => get(&store, &shared.values, index).await.map(|seen| {
                let mut out = out.borrow_mut();
                match seen {
                    Seen::Missing => out.misses += 1,
                    Seen::Wrong => out.wrong += 1,
                    Seen::Right => {}
                }
            }),
        };
        if let Err(error) = done {
            out.borrow_mut().error.get_or_insert_with(|| format!("{op:?}: {error}"));
            shared.stop.store(true, Ordering::Relaxed);
            return;
        }
        out.borrow_mut().record(began.elapsed().as_nanos() as u64);
        shared.finished.fetch_add(1, Ordering::Relaxed);
        turn += 1;
        if turn.is_multiple_of(OPERATIONS_PER_TURN) {
            yield_now().await;
        }
    }
}

fn slice_of(store: &Store, key: &[u8]) -> SliceId {
    SliceId((stable_hash64(0, key) % u64::from(store.slice_count())) as u16)
}

async fn set(store: &Store, shared: &Shared, index: u64, batch: &mut Batch) -> Result<()> {
    let key = keys::key(index);
    let slice = slice_of(store, &key);
    batch.clear();
    if shared.values.value(index).len() > VALUE_BYTES_MAX {
        let mut writer = store.large_writer(slice, &key);
        writer.push(&shared.values.shared(index)).await?;
        let large = writer.finish().await?;
        batch.put_large(slice, &key, 0, 0, &large);
        write(store, shared, batch).await
    } else {
        batch.put_bytes(slice, &key, 0, 0, shared.values.shared(index));
        write(store, shared, batch).await
    }
}

async fn write(store: &Store, shared: &Shared, batch: &Batch) -> Result<()> {
    let seq = store.write_ready(batch).await?;
    if shared.spec.durable {
        store.wait_durable(seq).await?;
    }
    Ok(())
}

enum Seen {
    Missing,
    Wrong,
    Right,
}

async fn get(store: &Store, values: &Values, index: u64) -> Result<Seen> {
    let key = keys::key(index);
    let slice = slice_of(store, &key);
    let entry = match store.peek(slice, &key) {
        Peek::Found(entry) => Some(entry),
        Peek::Absent => None,
        Peek::NeedsFlash(hint) => store.get_at(slice, &key, hint).await?,
    };
    match entry {
        None => Ok(Seen::Missing),
        Some(entry) if entry_matches(store, values, index, &entry).await? => Ok(Seen::Right),
        Some(_) => Ok(Seen::Wrong),
    }
}

async fn entry_matches(store: &Store, values: &Values, index: u64, entry: &Entry) -> Result<bool> {
    let Some(large) = &entry.large else { return Ok(values.matches(index, &entry.value)) };
    let mut reader = store.read_large(large, 0..large.len());
    let (wanted, mut at, mut right) = (values.value(index), 0, true);
    while let Some(piece) = reader.next().await? {
        // First bytes of each piece: enough to tell, without measuring the comparison.
        let edge = piece.len().min(16);
        right &= wanted.get(at..at + edge) == Some(&piece[..edge]);
        at += piece.len();
    }
    Ok(right && at == wanted.len())
}

/// The number of a key that was put.
fn index_of(shared: &Shared, key: &[u8]) -> Option<u64> {
    let index = std::str::from_utf8(key.get(1..)?).ok()?.parse().ok()?;
    (key.len() == KEY_BYTES && index < shared.keys).then_some(index)
}

async fn scan(store: &Store, shared: &Shared) -> Loop {
    let mut out = Loop::default();
    if let Err(error) = scan_into(store, shared, &mut out).await {
        out.error = Some(error.to_string());
    }
    out
}

async fn scan_into(store: &Store, shared: &Shared, out: &mut Loop) -> Result<()> {
    let snapshot = store.snapshot();
    let mut scan = store.scan(
        &snapshot,
        SliceSet::All,
        Bound::Unbounded,
        Bound::Unbounded,
        Direction::Forward,
        Want::Values,
    );
    let started = Instant::now();
    let mut before = started;
    loop {
        // As the peers' iterators do it: most is looked at where it lies.
        let at_hand = scan.view_at_hand().map(|(key, entry)| {
            index_of(shared, key).is_some_and(|index| shared.values.matches(index, entry.value.bytes()))
        });
        let is_right = match at_hand {
            Some(is_right) => is_right,
            None => {
                let Some((key, entry)) = scan.next().await? else { break };
                match index_of(shared, &key) {
                    Some(index) => entry_matches(store, &shared.values, index, &entry).await?,
                    None => false,
                }
            }
        };
        if !is_right {
            out.wrong += 1;
        }
        let now = Instant::now();
        out.record(now.duration_since(before).as_nanos() as u64);
        before = now;
        if out.ops >= shared.spec.ops || now.duration_since(started).as_secs_f64() >= shared.spec.seconds_max
        {
            break;
        }
    }
    Ok(())
}

/// The store's own counters; those that end in `_now` are sizes, the rest only grow.
fn counters(store: &Store) -> BTreeMap<String, f64> {
    let stats = store.stats();
    let (c, h) = (stats.counters, &stats.heap);
    let metrics = pumice_reactor::metrics::all_cores();
    let mut out: BTreeMap<String, f64> = [
        ("commits", h.commits),
        ("lock_waits", pumice_base::sync::lock_waits()),
        ("commit_bytes", h.commit_bytes),
        ("commit_padding_bytes", h.commit_padding_bytes),
        ("moved_bytes", h.moved_bytes),
        ("table_bytes_written", h.table_bytes),
        ("large_bytes", h.large_bytes),
        ("meta_bytes", h.meta_bytes),
        ("prewritten_bytes", h.prewritten_bytes),
        ("flash_reads", h.reads),
        ("flash_read_bytes", h.read_bytes),
        ("value_reads", c.value_reads),
        ("block_reads", c.block_reads),
        ("head_reads", c.head_reads),
        ("cleaned_segments", c.cleaned_segments),
        ("victim_bytes", c.victim_bytes),
        ("index_bytes_now", stats.table_bytes),
        ("index_cached_bytes_now", stats.head_bytes + stats.block_bytes),
        ("memtable_bytes_now", stats.memtable_bytes),
        ("row_bytes_now", stats.row_bytes),
        ("runs_now", stats.runs_max),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_string(), value as f64))
    .collect();
    for core in metrics {
        for (name, value) in core.named() {
            *out.entry(format!("reactor_{name}")).or_insert(0.0) += value as f64;
        }
    }
    out
}
