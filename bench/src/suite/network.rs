//! Over the network: hot GETs, durable SETs and cold GETs by our own load generator, Zipfian keys.

use super::{Context, UNTIL_TIME, limit, remove, run_limit};
use crate::fio::{self, Limit, Pattern};
use crate::keys::{Distribution, KEY_BYTES};
use crate::net::load::{self, LoadOp, LoadSpec};
use crate::net::server::{PumiceOptions, Server, ServerKind};
use crate::phase::{PhaseResult, ratio};
use crate::report::{self, Report, Table, count, micros, percent, size, times};
use crate::{Result, usage};

const VALUE_BYTES: [usize; 3] = [100, 1 << 10, 8 << 10];
const CONNECTIONS: [usize; 2] = [50, 500];
const DEPTHS: [usize; 2] = [1, 16];

/// Reads per key before hot GETs are measured: e^-6 of the keys are not among them.
const WARM_UP_READS: u64 = 6;

type Raw = serde_json::Map<String, serde_json::Value>;

/// One measured load and what it was.
struct Run {
    server: ServerKind,
    op: LoadOp,
    value_bytes: usize,
    connections: usize,
    depth: usize,
    result: PhaseResult,
}

pub fn run(context: &Context, report: &mut Report) -> Result<()> {
    report.about.push("Client (one thread) and server share the machine; figures per CPU second are the server's alone. `pumice serve --cores 1`, acknowledged when durable; redis-server 7.0 with one thread. Zipfian keys (theta 0.99). A connection sends its commands together and waits for all replies, as redis-benchmark -P does.".into());
    let mut runs = Vec::new();
    let mut notes = Vec::new();
    let kinds =
        [ServerKind::Pumice, ServerKind::RedisMemory, ServerKind::RedisEverysec, ServerKind::RedisAlways];
    for kind in kinds {
        if kind == ServerKind::Pumice && context.pumice.is_none() {
            notes.push("**Pumice was not measured**: no `pumice` binary".to_string());
            continue;
        }
        if let Err(error) = one_server(context, kind, &mut runs) {
            notes.push(format!("**{kind} stopped early**: {error}"));
        }
    }
    for (title, op) in [("Hot GETs", LoadOp::Get), ("SETs", LoadOp::Set)] {
        let mut table = table(title, &runs, op);
        table.notes.extend(notes.iter().cloned());
        println!("{}", table.markdown());
        report.tables.push(table);
        report.tables.push(ratios(title, &runs, op));
    }
    let mut raw = Raw::new();
    report.tables.push(durable_limit(context, &runs, &mut raw)?);
    if context.pumice.is_some() {
        report.tables.push(cold(context, &mut raw)?);
    }
    for run in &runs {
        let name =
            format!("{} {:?} {} {}x{}", run.server, run.op, run.value_bytes, run.connections, run.depth);
        raw.insert(name, serde_json::to_value(&run.result)?);
    }
    report.raw = raw.into();
    Ok(())
}

/// How `pumice serve` is started here.
pub(super) fn options(context: &Context, memory_bytes: u64) -> PumiceOptions {
    let binary = context.pumice.clone().unwrap_or_default();
    PumiceOptions { binary, memory_bytes, cores: 1, more: Vec::new() }
}

fn one_server(context: &Context, kind: ServerKind, runs: &mut Vec<Run>) -> Result<()> {
    for value_bytes in context.pick(VALUE_BYTES.to_vec(), vec![100, 8 << 10]) {
        let dir = context.fresh_dir("network")?;
        let server = Server::start(kind, &dir, &options(context, 512 << 20))?;
        eprintln!("  {kind}, values of {}", size(value_bytes as u64));
        // 160 MiB at most: hot in every server.
        let keys = context.pick(20_000, 1_000);
        let spec = |op, connections, depth, seconds| LoadSpec {
            addr: server.addr,
            op,
            connections,
            depth,
            threads: 1,
            keys,
            value_bytes,
            distribution: Distribution::Zipfian,
            seconds,
            ops: UNTIL_TIME,
        };
        load::run(&spec(LoadOp::Fill, 50, 16, 120.0), None, &dir)?;
        // Hot is what was read before: nearly every key, so that no GET that is measured is a key's first.
        let warm_up = LoadSpec {
            distribution: Distribution::Uniform,
            ops: keys * WARM_UP_READS,
            ..spec(LoadOp::Get, 50, 16, 120.0)
        };
        load::run(&warm_up, None, &dir)?;
        for op in [LoadOp::Get, LoadOp::Set] {
            for connections in context.pick(CONNECTIONS.to_vec(), vec![50]) {
                for depth in DEPTHS {
                    load::run(&spec(op, connections, depth, context.seconds(0.5, 0.05)), None, &dir)?;
                    let measured = spec(op, connections, depth, context.seconds(4.0, 0.2));
                    let result = load::run(&measured, Some(server.pid()), &dir)?;
                    if let Some(error) = &result.error {
                        return Err(format!("{op:?} {connections}x{depth}: {error}").into());
                    }
                    runs.push(Run { server: kind, op, value_bytes, connections, depth, result });
                }
            }
        }
        server.stop()?;
        remove(&dir);
    }
    Ok(())
}

fn table(title: &str, runs: &[Run], op: LoadOp) -> Table {
    let mut table = Table::new(
        title,
        &[
            "server",
            "value",
            "connections",
            "deep",
            "ops/s",
            "per CPU s",
            "p50",
            "p99",
            "p99.9",
            "max",
            "memory",
        ],
    );
    for run in runs.iter().filter(|r| r.op == op) {
        let r = &run.result;
        table.row(vec![
            run.server.to_string(),
            size(run.value_bytes as u64),
            run.connections.to_string(),
            run.depth.to_string(),
            count(r.ops_per_second()),
            count(ratio(r.ops as f64, r.cpu_seconds)),
            micros(r.p50_us),
            micros(r.p99_us),
            micros(r.p999_us),
            micros(r.max_us),
            report::bytes(r.memory_peak_bytes as f64),
        ]);
        if r.wrong > 0 || r.misses > 0 {
            table.note(format!("**{}: {} wrong, {} missing**", run.server, r.wrong, r.misses));
        }
    }
    table
}

/// Pumice over each redis.
fn ratios(title: &str, runs: &[Run], op: LoadOp) -> Table {
    let mut table = Table::new(
        &format!("{title}: Pumice over redis-server, throughput (per server CPU second)"),
        &["value, connections × deep", "in memory", "AOF everysec", "AOF always"],
    );
    for ours in runs.iter().filter(|r| r.server == ServerKind::Pumice && r.op == op) {
        let mut row =
            vec![format!("{}, {} × {}", size(ours.value_bytes as u64), ours.connections, ours.depth)];
        for kind in [ServerKind::RedisMemory, ServerKind::RedisEverysec, ServerKind::RedisAlways] {
            let theirs = runs.iter().find(|r| {
                (r.server, r.op, r.value_bytes, r.connections, r.depth)
                    == (kind, op, ours.value_bytes, ours.connections, ours.depth)
            });
            let per_cpu = |r: &PhaseResult| ratio(r.ops as f64, r.cpu_seconds);
            row.push(theirs.map_or("–".into(), |theirs| {
                let (a, b) = (&ours.result, &theirs.result);
                format!(
                    "{} ({})",
                    times(ratio(a.ops_per_second(), b.ops_per_second())),
                    times(ratio(per_cpu(a), per_cpu(b)))
                )
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
    let durable = |r: &&Run| matches!(r.server, ServerKind::Pumice | ServerKind::RedisAlways);
    for run in runs.iter().filter(|r| r.op == LoadOp::Set && r.value_bytes == 8 << 10).filter(durable) {
        let bytes = run.result.ops_per_second() * run.value_bytes as f64;
        rows.push((format!("{}, {} × {}", run.server, run.connections, run.depth), bytes));
    }
    for (name, bytes) in rows {
        table.row(vec![name, report::bytes(bytes), percent(ratio(bytes, best))]);
    }
    table.note("Nobody acknowledges faster than the disk writes: where AOF always itself comes to more than a quarter of it, four times that is out of reach.");
    Ok(table)
}

/// GETs of a set four times the memory budget, uniform, beside fio at that size and depth on the drive's file.
fn cold(context: &Context, raw: &mut Raw) -> Result<Table> {
    let mut table = Table::new(
        "Cold GETs: uniform over four times the memory budget, page cache emptied",
        &[
            "value",
            "connections",
            "deep",
            "ops/s",
            "per CPU s",
            "CPU s/M",
            "p50",
            "p99",
            "p99.9",
            "max",
            "fio ops/s",
            "share",
        ],
    );
    let memory_bytes = context.pick(256 << 20, 64 << 20);
    for value_bytes in [1 << 10, 8 << 10] {
        let dir = context.fresh_dir("cold")?;
        let keys = 4 * memory_bytes / (KEY_BYTES + value_bytes) as u64;
        let options = options(context, memory_bytes);
        let spec = |addr, op, connections, depth, seconds| LoadSpec {
            addr,
            op,
            connections,
            depth,
            threads: 1,
            keys,
            value_bytes,
            distribution: Distribution::Uniform,
            seconds,
            ops: UNTIL_TIME,
        };
        let server = Server::start(ServerKind::Pumice, &dir, &options)?;
        load::run(&spec(server.addr, LoadOp::Fill, 50, 16, 600.0), None, &dir)?;
        server.stop()?;
        usage::drop_caches();
        let server = Server::start(ServerKind::Pumice, &dir, &options)?;
        for (connections, depth) in [(50, 1), (50, 16), (500, 1)] {
            let seconds = context.pick(6.0, 0.3);
            load::run(&spec(server.addr, LoadOp::Get, connections, depth, seconds / 3.0), None, &dir)?;
            let ours = spec(server.addr, LoadOp::Get, connections, depth, seconds);
            let ours = load::run(&ours, Some(server.pid()), &dir)?;
            let job_depth = ((connections * depth) as u32).min(256);
            // Only the part of the file that holds the data: the rest is a hole.
            let mut job = limit(Pattern::RandomRead, value_bytes as u64, job_depth, seconds / 2.0);
            job.span_bytes = keys * (KEY_BYTES + value_bytes) as u64 / (1 << 20) * (1 << 20);
            let fio = run_limit("random reads", &job, &dir.join("drive0"))?;
            table.row(vec![
                size(value_bytes as u64),
                connections.to_string(),
                depth.to_string(),
                count(ours.ops_per_second()),
                count(ratio(ours.ops as f64, ours.cpu_seconds)),
                format!("{:.1}", ours.cpu_per_million()),
                micros(ours.p50_us),
                micros(ours.p99_us),
                micros(ours.p999_us),
                micros(ours.max_us),
                count(fio.ops_per_second()),
                percent(ratio(ours.ops_per_second(), fio.ops_per_second())),
            ]);
            let name = format!("cold {value_bytes} {connections}x{depth}");
            raw.insert(name, serde_json::json!({ "pumice": ours, "fio": fio }));
        }
        server.stop()?;
        remove(&dir);
    }
    table.note("fio: random reads of the same size on the same blocks, as many in flight (256 at most). A RocksDB-backed Redis server measured 33k/s at 1 KiB and 28k/s at 8 KiB on such a machine, at 45 and 53 CPU seconds per million.");
    Ok(table)
}
