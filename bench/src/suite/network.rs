//! Over the network: hot GETs, durable SETs and cold GETs by our own load generator, Zipfian keys.

use std::net::SocketAddr;

use super::contender::{Contender, Turn};
use super::rounds::{Rounds, paired};
use super::{Context, limit, network_cold, remove, run_limit};
use crate::Result;
use crate::fio::{self, Limit, Pattern};
use crate::keys::Distribution;
use crate::net::load::{self, LoadOp, LoadSpec};
use crate::net::server::{PumiceOptions, ServerKind};
use crate::phase::{PhaseResult, ratio};
use crate::report::{self, Report, Table, count, micros, percent, size, times};

pub(super) const VALUE_BYTES: [usize; 3] = [100, 1 << 10, 8 << 10];
pub(super) const CONNECTIONS: [usize; 2] = [50, 500];
pub(super) const DEPTHS: [usize; 2] = [1, 16];
const PEERS: [ServerKind; 3] = [ServerKind::RedisMemory, ServerKind::RedisEverysec, ServerKind::RedisAlways];

/// Reads per key before hot GETs are measured: e^-6 of the keys are not among them.
const WARM_UP_READS: u64 = 6;

pub(super) type Raw = serde_json::Map<String, serde_json::Value>;

/// A load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    op: LoadOp,
    value_bytes: usize,
    connections: usize,
    depth: usize,
}

/// One server under one load.
struct Run {
    server: Contender,
    shape: Shape,
    rounds: Rounds,
}

pub fn run(context: &Context, report: &mut Report) -> Result<()> {
    let rounds = context.pick(3, 1);
    report.about.push(format!(
        "Client (one thread) and server share the machine; figures per CPU second are the server's alone. `pumice serve`, \
         acknowledged when durable, on one core and on all; redis-server 7.0 with one thread. Zipfian keys (theta 0.99). A \
         connection sends its commands together and waits for all replies, as redis-benchmark -P does. Medians of {rounds} \
         rounds, the servers in turns; who is not being measured is stopped (SIGSTOP)."
    ));
    let mut runs = Vec::new();
    let mut notes = Vec::new();
    let mut contenders = Contender::pumices(context);
    if contenders.is_empty() {
        notes.push("**Pumice was not measured**: no `pumice` binary".to_string());
    }
    contenders.extend(PEERS.map(|kind| Contender { kind, cores: 1 }));
    let mut sizes = context.pick(VALUE_BYTES.to_vec(), vec![100, 8 << 10]);
    sizes.retain(|s| context.values.is_empty() || context.values.contains(s));
    for value_bytes in sizes {
        eprintln!("  values of {}", size(value_bytes as u64));
        one_size(context, &contenders, value_bytes, rounds, &mut runs, &mut notes)?;
    }
    for (title, op) in [("Hot GETs", LoadOp::Get), ("SETs", LoadOp::Set)] {
        let mut table = table(title, &runs, op);
        table.notes.extend(notes.iter().cloned());
        println!("{}", table.markdown());
        report.tables.push(table);
        for ours in contenders.iter().filter(|c| c.kind == ServerKind::Pumice) {
            report.tables.push(ratios(title, ours, &runs, op));
        }
    }
    let mut raw = Raw::new();
    report.tables.push(durable_limit(context, &runs, &mut raw)?);
    if context.pumice.is_some() {
        report.tables.push(network_cold::run(context, rounds, &mut raw)?);
    }
    for Run { server, shape, rounds } in &runs {
        let Shape { op, value_bytes, connections, depth } = shape;
        let name = format!("{server} {op:?} {value_bytes} {connections}x{depth}");
        raw.insert(name, serde_json::to_value(rounds)?);
    }
    report.raw = raw.into();
    Ok(())
}

/// How `pumice serve` is started by the suites that measure it on one core.
pub(super) fn options(context: &Context, memory_bytes: u64) -> PumiceOptions {
    let binary = context.pumice.clone().unwrap_or_default();
    PumiceOptions { binary, memory_bytes, cores: 1, drive_bytes: None, more: Vec::new() }
}

/// All servers at all loads of values of one size. A server that fails is left out from then on, and the notes say why.
fn one_size(
    context: &Context,
    contenders: &[Contender],
    value_bytes: usize,
    rounds: usize,
    runs: &mut Vec<Run>,
    notes: &mut Vec<String>,
) -> Result<()> {
    let spec = |turn: &Turn, op, connections, depth, seconds| {
        zipfian(context, turn.server.addr, value_bytes, op, connections, depth, seconds)
    };
    let mut turns = Vec::new();
    for (number, contender) in contenders.iter().enumerate() {
        turns.push(start_hot(context, *contender, number, value_bytes)?);
    }
    for op in [LoadOp::Get, LoadOp::Set] {
        for connections in context.pick(CONNECTIONS.to_vec(), vec![50]) {
            for depth in DEPTHS {
                let shape = Shape { op, value_bytes, connections, depth };
                let mut measured: Vec<_> = turns.iter().map(|_| Rounds::default()).collect();
                for _ in 0..rounds {
                    for (turn, rounds) in turns.iter().zip(&mut measured) {
                        rounds.0.push(turn.take(|turn| {
                            let seconds = context.seconds(0.3, 0.05);
                            load::run(&spec(turn, op, connections, depth, seconds), None, &turn.dir)?;
                            let seconds = context.seconds(2.0, 0.2);
                            let load = spec(turn, op, connections, depth, seconds);
                            load::run(&load, Some(turn.server.pid()), &turn.dir)
                        })?);
                    }
                }
                let mut went_on = Vec::new();
                for (turn, rounds) in turns.into_iter().zip(measured) {
                    let server = turn.contender;
                    if let Some(error) = rounds.0.iter().find_map(|r| r.error.as_ref()) {
                        notes.push(format!("**{server} stopped early**: {shape:?}: {error}"));
                        continue;
                    }
                    runs.push(Run { server, shape, rounds });
                    went_on.push(turn);
                }
                turns = went_on;
            }
        }
    }
    turns.into_iter().try_for_each(Turn::end)
}

/// A load of Zipfian keys, 160 MiB at most: hot in every server.
pub(super) fn zipfian(
    context: &Context,
    addr: SocketAddr,
    value_bytes: usize,
    op: LoadOp,
    connections: usize,
    depth: usize,
    seconds: f64,
) -> LoadSpec {
    LoadSpec {
        keys: context.pick(20_000, 1_000),
        value_bytes,
        distribution: Distribution::Zipfian,
        ..LoadSpec::timed(addr, op, connections, depth, seconds)
    }
}

/// A server that has the keys and has read them.
pub(super) fn start_hot(
    context: &Context,
    contender: Contender,
    number: usize,
    value_bytes: usize,
) -> Result<Turn> {
    let turn = Turn::start(context, contender, number, 512 << 20)?;
    turn.take(|turn| {
        let spec = |op| zipfian(context, turn.server.addr, value_bytes, op, 50, 16, 120.0);
        load::run(&spec(LoadOp::Fill), None, &turn.dir)?;
        // Hot is what was read before: nearly every key, so that no GET that is measured is a key's first.
        let mut warm_up = spec(LoadOp::Get);
        warm_up.distribution = Distribution::Uniform;
        warm_up.ops = warm_up.keys * WARM_UP_READS;
        load::run(&warm_up, None, &turn.dir)
    })?;
    Ok(turn)
}

fn table(title: &str, runs: &[Run], op: LoadOp) -> Table {
    let mut table = Table::new(
        title,
        &[
            "value, connections × deep",
            "server",
            "ops/s",
            "low–high",
            "per CPU s",
            "p50",
            "p99",
            "p99.9",
            "max",
            "memory",
        ],
    );
    for Run { server, shape, rounds } in runs.iter().filter(|r| r.shape.op == op) {
        let r = rounds.median();
        table.row(vec![
            shape.to_string(),
            server.to_string(),
            count(r.ops_per_second()),
            rounds.spread(),
            count(per_cpu(&r)),
            micros(r.p50_us),
            micros(r.p99_us),
            micros(r.p999_us),
            micros(r.max_us),
            report::bytes(r.memory_peak_bytes as f64),
        ]);
        let (wrong, missing) = rounds.0.iter().fold((0, 0), |(w, m), r| (w + r.wrong, m + r.misses));
        if wrong > 0 || missing > 0 {
            table.note(format!("**{server}, {shape}: {wrong} wrong, {missing} missing**"));
        }
    }
    table
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, {} × {}", size(self.value_bytes as u64), self.connections, self.depth)
    }
}

pub(super) fn per_cpu(r: &PhaseResult) -> f64 {
    ratio(r.ops as f64, r.cpu_seconds)
}

/// Pumice over each redis, round by round.
fn ratios(title: &str, ours: &Contender, runs: &[Run], op: LoadOp) -> Table {
    let mut table = Table::new(
        &format!("{title}: {ours}, over redis-server: throughput, low–high (per server CPU second)"),
        &["value, connections × deep", "in memory", "AOF everysec", "AOF always"],
    );
    for our in runs.iter().filter(|r| r.server == *ours && r.shape.op == op) {
        let mut row = vec![our.shape.to_string()];
        for kind in PEERS {
            let their = runs.iter().find(|r| (r.server.kind, r.shape) == (kind, our.shape));
            row.push(their.map_or("–".into(), |their| {
                let (median, spread) = paired(&our.rounds, &their.rounds, PhaseResult::ops_per_second);
                let (for_cpu, _) = paired(&our.rounds, &their.rounds, per_cpu);
                format!("{}, {spread} ({})", times(median), times(for_cpu))
            }));
        }
        table.row(row);
    }
    table
}

/// What the disk writes durably, and how much of that the largest SETs came to.
fn durable_limit(context: &Context, runs: &[Run], raw: &mut Raw) -> Result<Table> {
    let mut table =
        Table::new("SETs of 8 KiB beside what fio writes durably", &["what", "bytes/s", "of the best"]);
    let dir = context.fresh_dir("limit")?;
    let file = dir.join("drive0");
    fio::prewrite(&file, context.pick(1 << 30, 64 << 20))?;
    let mut best = 0.0f64;
    let mut rows = Vec::new();
    for (block_bytes, depth) in [(256 << 10, 1), (256 << 10, 2), (1 << 20, 2)] {
        let job =
            Limit { durable: true, ..limit(Pattern::Write, block_bytes, depth, context.seconds(3.0, 0.2)) };
        let name = format!("fio, {} at depth {depth}", size(block_bytes));
        let fio = run_limit(&name, &job, &file)?;
        best = best.max(fio.bytes_per_second());
        rows.push((name.clone(), fio.bytes_per_second()));
        raw.insert(name, serde_json::to_value(&fio)?);
    }
    remove(&dir);
    let durable = |r: &&Run| matches!(r.server.kind, ServerKind::Pumice | ServerKind::RedisAlways);
    let large = |r: &&Run| r.shape.op == LoadOp::Set && r.shape.value_bytes == 8 << 10;
    for Run { server, shape, rounds } in runs.iter().filter(large).filter(durable) {
        let bytes = rounds.median().ops_per_second() * shape.value_bytes as f64;
        rows.push((format!("{server}, {} × {}", shape.connections, shape.depth), bytes));
    }
    for (name, bytes) in rows {
        table.row(vec![name, report::bytes(bytes), percent(ratio(bytes, best))]);
    }
    table.note("Nobody acknowledges faster than the disk writes: where AOF always itself comes to more than a quarter of it, four times that is out of reach.");
    Ok(table)
}
