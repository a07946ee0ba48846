//! The workloads in process: the store itself over its drives, without network and protocol.
//!
//! `depth` tasks carry out one operation after the other, spread over the issuing cores; the cold core runs flush,
//! compaction and cleaning as in a server. A SET counts when it is durable (as `--durability` says), a GET when its
//! value is in memory and its checksum was right; values are compared with what was written.

use std::cell::RefCell;
use std::ops::Bound;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use pumice_base::sync::lock;
use pumice_flash::{Device, DeviceSpec};
use pumice_kv::{Direction, Entry, Peek, StoreFormat, Want};
use pumice_node::{Node, NodeBatch, NodeOptions, Place};
use pumice_reactor::sync::Event;
use pumice_reactor::{CoreId, Nanos, now, spawn, yield_now};

use super::keys::{Values, key_of};
use super::report::{Cost, Row, Tally};
use super::space;
use super::workload::{Op, Stream, Workload};
use crate::cli::{BenchArgs, Distribution, DurabilityArg};
use crate::exit::{Outcome, Stop, say};
use crate::{drives, process};

/// Values longer than this are written in pieces.
const RECORD_VALUE_MAX: usize = pumice_kv::VALUE_BYTES_MAX;
/// What memory answers takes no wait, and one worker would have the core to itself.
const OPS_PER_TURN: u64 = 16;

struct Shared {
    plan: Plan,
    node: OnceLock<Node>,
    opened: Event,
    /// Set for each workload in turn; cores other than 0 follow.
    turns: Vec<Turn>,
    done: Event,
    outcome: Mutex<Outcome>,
    rows: Mutex<Vec<Row>>,
}

struct Turn {
    workload: Workload,
    ops: u64,
    seconds: Option<f64>,
    start: Event,
    /// Cores that have finished their part, and what they counted.
    parts: Mutex<(u16, Tally)>,
    finished: Event,
}

struct Plan {
    specs: Vec<DeviceSpec>,
    size: Option<u64>,
    force: bool,
    reuse: bool,
    cores: u16,
    depth: u32,
    keys: u64,
    memory_bytes: u64,
    durability: DurabilityArg,
    distribution: Option<Distribution>,
    values: Values,
    seed: u64,
}

/// Runs `chosen` one after the other on one opened store.
pub fn run(args: &BenchArgs, chosen: &[Workload], values: &Values, show: &mut dyn FnMut(Row)) -> Outcome {
    let specs = if args.device.is_empty() {
        let path = PathBuf::from(crate::config::DEFAULT_DATA_DIR).join("bench");
        std::fs::create_dir_all(crate::config::DEFAULT_DATA_DIR)
            .map_err(|e| Stop::doing(format!("making {}", crate::config::DEFAULT_DATA_DIR), e))?;
        vec![DeviceSpec::Path(path)]
    } else {
        args.device.iter().map(|spec| drives::parse(spec)).collect::<Result<_, _>>()?
    };
    // A drive of the default path belongs to the benchmark and may be formatted again.
    let force = args.force || (args.device.is_empty() && !args.reuse);
    let mut turns = Vec::new();
    let mut is_loaded = args.reuse;
    for workload in chosen {
        if !is_loaded && !workload.loads() {
            let [load] = Workload::parse(&["load".into()]).map_err(Stop::because)?[..] else {
                unreachable!()
            };
            turns.push(turn(load, args.keys, None));
        }
        is_loaded = true;
        let seconds = args.seconds.filter(|_| !workload.loads());
        turns.push(turn(*workload, super::ops_of(args, workload), seconds));
    }
    let plan = Plan {
        specs,
        size: args.size,
        force,
        reuse: args.reuse,
        cores: args.cores,
        depth: args.depth,
        keys: args.keys,
        memory_bytes: args.memory,
        durability: args.durability,
        distribution: args.distribution,
        values: values.clone(),
        seed: args.seed,
    };
    let config = pumice_reactor::Config {
        cores: usize::from(args.cores) + 1,
        receive_buffers: 16,
        ..pumice_reactor::Config::default()
    };
    let shared = Arc::new(Shared {
        plan,
        node: OnceLock::new(),
        opened: Event::new(),
        turns,
        done: Event::new(),
        outcome: Mutex::new(Ok(())),
        rows: Mutex::default(),
    });
    let cores = shared.clone();
    let running = pumice_reactor::start(
        &config,
        Arc::new(move |core| {
            let shared = cores.clone();
            Box::pin(async move { root(&shared, core).await })
        }),
    )
    .map_err(|e| Stop::doing("starting the cores", e))?;
    if let Some(error) = running.uring_error() {
        say(format_args!("{error}: measuring with epoll and Linux AIO, which take more CPU"));
    }
    running.join().map_err(|e| Stop::doing("running", e))?;
    lock(&shared.rows).drain(..).for_each(show);
    std::mem::replace(&mut *lock(&shared.outcome), Ok(()))
}

fn turn(workload: Workload, ops: u64, seconds: Option<f64>) -> Turn {
    Turn { workload, ops, seconds, start: Event::new(), parts: Mutex::default(), finished: Event::new() }
}

async fn root(shared: &Arc<Shared>, core: CoreId) {
    let plan = &shared.plan;
    if core == CoreId(0) {
        let outcome = lead(shared).await;
        *lock(&shared.outcome) = outcome;
        shared.opened.set();
        shared.turns.iter().for_each(|turn| turn.start.set());
        shared.done.set();
        return;
    }
    shared.opened.wait().await;
    let Some(node) = shared.node.get() else { return };
    if core == CoreId(plan.cores) {
        node.start_background();
        shared.done.wait().await;
        return;
    }
    for turn in &shared.turns {
        turn.start.wait().await;
        if shared.done.is_set() {
            return;
        }
        take_part(shared, turn, node, core).await;
    }
    shared.done.wait().await;
}

async fn lead(shared: &Arc<Shared>) -> Outcome {
    let plan = &shared.plan;
    let mut devices = Vec::new();
    // Of drives that are made now none is.
    let is_reused = plan.reuse && plan.specs.iter().any(is_there);
    for spec in &plan.specs {
        devices.push((spec.to_string(), prepare(spec, plan).await?));
    }
    let options = NodeOptions {
        memory_bytes: plan.memory_bytes,
        durability: match plan.durability {
            DurabilityArg::Always => pumice_kv::Durability::Always,
            DurabilityArg::Everysec => pumice_kv::Durability::EverySecond,
            DurabilityArg::None => pumice_kv::Durability::None,
        },
        set_id: drives::new_id()?,
        patrol_pass: None,
    };
    let node = Node::open(devices, &options, &|_, _| {}).await.map_err(Stop::because)?;
    if is_reused && let Err(stop) = space::refuse_foreign(&node).await {
        let _ = node.close().await;
        return Err(stop);
    }
    let _ = shared.node.set(node.clone());
    shared.opened.set();
    for turn in &shared.turns {
        let before = cost(&node);
        let started = now();
        turn.start.set();
        take_part(shared, turn, &node, CoreId(0)).await;
        turn.finished.wait().await;
        let seconds = started.elapsed().as_secs_f64();
        let tally = lock(&turn.parts).1.clone();
        if let Some(error) = &tally.first_error {
            say(format_args!("pumice: {}: {error}", turn.workload.name));
        }
        lock(&shared.rows).push(Row::new(turn.workload.name, &tally, seconds, cost(&node).since(before)));
    }
    node.close().await.map_err(Stop::because)
}

/// Whether a drive may hold what an earlier run left.
fn is_there(spec: &DeviceSpec) -> bool {
    matches!(spec, DeviceSpec::Path(path) if path.exists())
}

/// Opens a drive for the benchmark, made and formatted as the flags say.
async fn prepare(spec: &DeviceSpec, plan: &Plan) -> Result<Device, Stop> {
    let is_there = is_there(spec);
    if plan.reuse && is_there {
        return drives::open_locked(spec).await;
    }
    drives::refuse_device_that_is_missing(spec)?;
    if let (DeviceSpec::Path(path), false) = (spec, plan.force) {
        drives::refuse_filled(path)?;
    }
    let size = match (plan.size, spec) {
        (Some(size), _) => size,
        (None, DeviceSpec::Path(path)) if !is_there => drives::fitting_bytes(path, drives::NAME_A_SIZE)?,
        _ => 0,
    };
    let device = Device::create(spec, size).await.map_err(|e| Stop::doing(format!("drive {spec}"), e))?;
    let options = StoreFormat { drive_id: drives::new_id()?, force: plan.force, ..StoreFormat::default() };
    drives::format(spec, &device, &options).await?;
    Ok(device)
}

fn cost(node: &Node) -> Cost {
    let stats = node.stats();
    Cost {
        cpu_seconds: process::usage().cpu_seconds,
        flash_read_bytes: stats.drives.iter().map(|drive| drive.heap.read_bytes).sum(),
        flash_written_bytes: stats.drives.iter().map(pumice_kv::StoreStats::flash_written_bytes).sum(),
    }
}

async fn take_part(shared: &Arc<Shared>, turn: &Turn, node: &Node, core: CoreId) {
    let plan = &shared.plan;
    let workers = u64::from(plan.depth.max(u32::from(plan.cores)));
    let tally: Rc<RefCell<Tally>> = Rc::default();
    let started = now();
    let deadline = turn.seconds.map(|s| Nanos(started.0 + Duration::from_secs_f64(s).as_nanos() as u64));
    let tasks: Vec<_> = (0..workers)
        .filter(|worker| worker % u64::from(plan.cores) == u64::from(core.0))
        .map(|worker| {
            let share = turn.ops / workers + u64::from(worker < turn.ops % workers);
            let worker = Worker {
                node: node.clone(),
                ops: turn.workload.stream(plan.keys, plan.distribution, worker, workers, plan.seed),
                values: plan.values.clone(),
                tally: tally.clone(),
                value: Vec::new(),
                batch: NodeBatch::new(),
            };
            spawn(worker.go(share, started, deadline))
        })
        .collect();
    for task in tasks {
        let _ = task.await;
    }
    let mut parts = lock(&turn.parts);
    parts.0 += 1;
    parts.1.merge(&tally.borrow());
    if parts.0 == plan.cores {
        turn.finished.set();
    }
}

struct Worker {
    node: Node,
    ops: Stream,
    values: Values,
    tally: Rc<RefCell<Tally>>,
    value: Vec<u8>,
    batch: NodeBatch,
}

fn encode(index: u64) -> [u8; 21] {
    let mut key = [0; 21];
    key[..5].copy_from_slice(&space::PREFIX);
    key[5..].copy_from_slice(&key_of(index));
    key
}

impl Worker {
    async fn go(mut self, share: u64, started: Nanos, deadline: Option<Nanos>) {
        let mut left = share;
        while left > 0 && deadline.is_none_or(|d| now() < d) {
            left -= 1;
            let op = self.ops.next_op();
            let begun = now();
            let result = self.carry_out(op).await;
            let ended = now();
            if !self.note(result, ended.since(begun), ended.since(started)) {
                return;
            }
            if left.is_multiple_of(OPS_PER_TURN) {
                yield_now().await;
            }
        }
    }

    /// Answers whether more of the same may say more: of a full or failed drive it does not.
    fn note(&self, result: Result<(), String>, took: Duration, at: Duration) -> bool {
        let mut tally = self.tally.borrow_mut();
        tally.done(1, took.as_nanos() as u64, at.as_nanos() as u64);
        if let Err(why) = result {
            tally.failed(why);
        }
        tally.errors <= 100
    }

    async fn carry_out(&mut self, op: Op) -> Result<(), String> {
        match op {
            Op::Get(index) => self.get(index).await,
            Op::Set(index) | Op::Insert(index) => self.set(index).await,
            Op::ReadModifyWrite(index) => {
                self.get(index).await?;
                self.set(index).await
            }
            Op::Scan(index, len) => self.scan(index, len).await,
        }
    }

    async fn get(&mut self, index: u64) -> Result<(), String> {
        let place = self.node.place(&key_of(index));
        let key = encode(index);
        let found = match self.node.peek(place, &key) {
            Peek::Found(entry) => Some(entry),
            Peek::Absent => None,
            Peek::NeedsFlash(hint) => self.node.get_at(place, &key, hint).await.map_err(|e| e.to_string())?,
        };
        match found {
            Some(entry) => self.take(place, index, &entry).await,
            None => {
                self.tally.borrow_mut().misses += 1;
                Ok(())
            }
        }
    }

    /// Counts a value that was read, whole and the right one.
    async fn take(&self, place: Place, index: u64, entry: &Entry) -> Result<(), String> {
        let len = match &entry.large {
            None => {
                if !self.values.belongs(index, &entry.value) {
                    return Err(format!("key {index} holds another value than was written"));
                }
                entry.value.len() as u64
            }
            Some(large) => {
                let mut reader = self.node.read_large(place, large, 0..large.len());
                let mut len = 0;
                while let Some(piece) = reader.next().await.map_err(|e| e.to_string())? {
                    len += piece.len() as u64;
                }
                len
            }
        };
        self.tally.borrow_mut().read_bytes += len + 16;
        Ok(())
    }

    async fn set(&mut self, index: u64) -> Result<(), String> {
        let place = self.node.place(&key_of(index));
        let key = encode(index);
        self.value.clear();
        self.values.fill(index, self.ops.rng(), &mut self.value);
        self.batch.clear();
        if self.value.len() <= RECORD_VALUE_MAX {
            self.batch.put(place, &key, 0, 0, &self.value);
        } else {
            let mut writer = self.node.large_writer(place, &key);
            writer.push(&self.value).await.map_err(|e| e.to_string())?;
            let large = writer.finish().await.map_err(|e| e.to_string())?;
            self.batch.put_large(place, &key, 0, 0, &large);
        }
        let gate = self.node.write_ready(&self.batch).await.map_err(|e| e.to_string())?;
        self.node.wait(&gate).await.map_err(|e| e.to_string())?;
        self.tally.borrow_mut().written_bytes += self.value.len() as u64 + 16;
        Ok(())
    }

    async fn scan(&mut self, index: u64, len: u32) -> Result<(), String> {
        let snapshot = self.node.snapshot();
        let lower = Bound::Included(Bytes::copy_from_slice(&encode(index)));
        let upper = Bound::Included(Bytes::copy_from_slice(&encode(index + u64::from(len) * 2)));
        let mut scan = self.node.scan(&snapshot, lower, upper, Direction::Forward, Want::Values);
        for _ in 0..len {
            let Some((_, entry)) = scan.next().await.map_err(|e| e.to_string())? else { break };
            self.tally.borrow_mut().read_bytes += entry.value_len() + 16;
        }
        Ok(())
    }
}
