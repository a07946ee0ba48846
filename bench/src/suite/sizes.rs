//! The same workloads at 100 B to 1 MiB on all stores, with the same memory and the same space.

use super::{Context, Data, UNTIL_TIME, phase, remove, run_worker};
use crate::phase::{EngineKind, PhaseResult, Work, WorkerResult, WorkerSpec, ratio};
use crate::report::{self, Report, Table, count, micros, size, times};
use crate::{Result, keys};

/// Share of the space that the data takes: a drive as full as users fill one.
const FILL: f64 = 0.70;
/// The same where all stores fit: the hungriest took 4.7 times the data (`sizes`, fjall, values of 1 MiB).
const ROOMY_FILL: f64 = 0.20;
const DEPTH: u32 = 32;
const VALUE_BYTES: [usize; 5] = [100, 1 << 10, 8 << 10, 64 << 10, 1 << 20];
const ENGINES: [EngineKind; 4] =
    [EngineKind::Pumice, EngineKind::Rocksdb, EngineKind::RocksdbBlob, EngineKind::Fjall];

/// With the space that a full drive has.
pub fn run(context: &Context, report: &mut Report) -> Result<()> {
    run_at(context, FILL, report)
}

/// With the space that all stores fit into.
pub fn run_roomy(context: &Context, report: &mut Report) -> Result<()> {
    run_at(context, ROOMY_FILL, report)
}

fn run_at(context: &Context, fill: f64, report: &mut Report) -> Result<()> {
    report.about.push(format!(
        "Data is {:.0}% of the space and at least four times the memory budget.",
        fill * 100.0
    ));
    report.about.push("All stores: 16 B keys, incompressible values, 32 client threads (Pumice: 32 tasks on two cores); the page cache emptied and the store opened again before the reads. RocksDB 7.8: direct I/O, no compression, one cache for blocks and blobs, 10-bit Bloom filters, blob collection on. fjall has no direct I/O: its pages are dropped from the page cache five times a second.".into());
    let values = match context.values.as_slice() {
        [] => context.pick(VALUE_BYTES.to_vec(), vec![100, 1 << 20]),
        chosen => chosen.to_vec(),
    };
    let mut raw = serde_json::Map::new();
    for value_bytes in values {
        let results = one_size(context, value_bytes, fill, report)?;
        raw.insert(value_bytes.to_string(), serde_json::to_value(&results)?);
    }
    report.raw = raw.into();
    Ok(())
}

type Results = Vec<(EngineKind, WorkerResult)>;

fn one_size(context: &Context, value_bytes: usize, fill: f64, report: &mut Report) -> Result<Results> {
    eprintln!("  values of {}", size(value_bytes as u64));
    let full = match value_bytes {
        0..=512 => Data::filling(512 << 20, 64 << 20, fill),
        513..=4096 => Data::filling(1 << 30, 128 << 20, fill),
        _ => Data::filling(2 << 30, 256 << 20, fill),
    };
    // The first fill of a roomy drive needs no cleaning: as often as shows what does.
    let overwrites = if fill > 0.5 { 3 } else { (1.0 / fill).ceil() as u64 + 3 };
    let data = context.pick(full, Data::filling(24 << 20, 8 << 20, fill));
    let mut results = Results::new();
    let mut notes = Vec::new();
    for engine in context.engines(&ENGINES) {
        let dir = context.fresh_dir("sizes")?;
        let mut spec = context.worker(engine, &dir, value_bytes, data);
        add_phases(context, overwrites, &mut spec);
        results.push((engine, run_worker(&spec, &mut notes)));
        remove(&dir);
    }
    let title = format!(
        "Values of {}: {} of data, {} of memory, {} of space",
        size(value_bytes as u64),
        report::bytes(data.bytes as f64),
        report::bytes(data.memory_bytes as f64),
        report::bytes(data.space_bytes as f64),
    );
    let mut table = throughput(&title, &results, data);
    table.notes.extend(notes);
    println!("{}", table.markdown());
    report.tables.push(table);
    let cost = cost(&results, data, overwrites);
    println!("{}", cost.markdown());
    report.tables.push(cost);
    Ok(results)
}

fn add_phases(context: &Context, overwrites: u64, spec: &mut WorkerSpec) {
    let seconds = context.seconds(8.0, 0.2);
    let longest = context.seconds(50.0 * overwrites as f64, 1.0);
    let keys = spec.keys;
    spec.phases = vec![
        phase("S-SET", Work::SequentialSet, keys, longest, DEPTH),
        phase("settle S-SET", Work::Settle, 0, 60.0, 1),
        phase("reopen", Work::Reopen { cold: true }, 0, 60.0, 1),
        phase("S-GET", Work::SequentialGet, keys, seconds, DEPTH),
        phase("scan", Work::Scan, keys, seconds, 1),
        phase("R-GET", Work::RandomGet, UNTIL_TIME, seconds, DEPTH),
        phase("R-GET zipfian", Work::RandomGet, UNTIL_TIME, seconds, DEPTH).zipfian(),
        phase("R-Mixed", Work::Mixed, UNTIL_TIME, seconds, DEPTH),
        phase("R-SET", Work::RandomSet, overwrites * keys, longest, DEPTH),
        phase("settle R-SET", Work::Settle, 0, 60.0, 1),
        phase("R-SET durable", Work::RandomSet, UNTIL_TIME, seconds, DEPTH).durable(),
        phase("R-Mixed durable", Work::Mixed, UNTIL_TIME, seconds, DEPTH).durable(),
    ];
}

const ROWS: [&str; 9] = [
    "S-SET",
    "S-GET",
    "scan",
    "R-GET",
    "R-GET zipfian",
    "R-Mixed",
    "R-SET",
    "R-SET durable",
    "R-Mixed durable",
];

/// Whether a store never took more than the space that all were given, and a twentieth.
fn fits(result: &WorkerResult, data: Data) -> bool {
    let most = result.phases.iter().map(|phase| phase.disk_peak_bytes).max().unwrap_or(0);
    most <= data.space_bytes + data.space_bytes / 20
}

fn throughput(title: &str, results: &Results, data: Data) -> Table {
    let mut columns = vec!["ops/s (CPU s per million)".to_string()];
    columns.extend(results.iter().map(|(e, _)| e.to_string()));
    columns.extend(
        ["ahead of the best peer", "of those within the space", "CPU of RocksDB's"].map(String::from),
    );
    let mut table = Table { title: title.into(), columns, ..Table::default() };
    for name in ROWS {
        let cell = |p: Option<&PhaseResult>| {
            p.map_or("–".into(), |p| format!("{} ({:.1})", count(p.ops_per_second()), p.cpu_per_million()))
        };
        let mut row = vec![name.to_string()];
        row.extend(results.iter().map(|(_, r)| cell(r.phase(name))));
        let of =
            |engine: EngineKind| results.iter().find(|(e, _)| *e == engine).and_then(|(_, r)| r.phase(name));
        let ours = of(EngineKind::Pumice);
        let peers = results.iter().filter(|(e, _)| *e != EngineKind::Pumice);
        let best =
            peers.filter_map(|(_, r)| r.phase(name)).map(PhaseResult::ops_per_second).fold(0.0, f64::max);
        row.push(times(ours.map_or(0.0, |p| ratio(p.ops_per_second(), best))));
        let fit = results.iter().filter(|(e, r)| *e != EngineKind::Pumice && fits(r, data));
        let best =
            fit.filter_map(|(_, r)| r.phase(name)).map(PhaseResult::ops_per_second).fold(0.0, f64::max);
        row.push(if best > 0.0 {
            times(ours.map_or(0.0, |p| ratio(p.ops_per_second(), best)))
        } else {
            "none".into()
        });
        // The cheaper of RocksDB's two: the harder one to beat.
        let rocks = [EngineKind::Rocksdb, EngineKind::RocksdbBlob].into_iter().filter_map(of);
        let rocks = rocks.map(PhaseResult::cpu_per_million).fold(f64::INFINITY, f64::min);
        row.push(times(
            ours.map_or(0.0, |p| if rocks.is_finite() { ratio(p.cpu_per_million(), rocks) } else { 0.0 }),
        ));
        table.row(row);
    }
    table.note("SETs outside the \"durable\" rows are acknowledged before they are durable, in all stores. CPU is the whole process's, client threads and background work included. Peers may take more space than they were given; the column after the best peer counts only those that never took more than 1.05 times of it.");
    table
}

fn cost(results: &Results, data: Data, overwrites: u64) -> Table {
    let mut table = Table::new(
        "What it cost",
        &[
            "store",
            "bytes written per user byte (R-SET)",
            "peak space / data",
            "device reads per R-GET",
            "R-GET p50",
            "R-GET p99.9",
            "R-SET p99.9",
            "R-SET longest",
            "peak memory (reads)",
            "peak memory (R-SET)",
        ],
    );
    for (engine, result) in results {
        let (Some(set), Some(get)) = (result.phase("R-SET"), result.phase("R-GET")) else { continue };
        let settle = result.phase("settle R-SET").map_or(0, |p| p.written_bytes);
        let written = ratio((set.written_bytes + settle) as f64, set.user_bytes as f64);
        table.row(vec![
            engine.to_string(),
            format!("{written:.2}"),
            format!("{:.2}", set.disk_peak_bytes as f64 / data.bytes as f64),
            format!("{:.2}", get.reads_per_op()),
            micros(get.p50_us),
            micros(get.p999_us),
            micros(set.p999_us),
            micros(set.max_us),
            report::bytes(get.memory_peak_bytes as f64),
            report::bytes(set.memory_peak_bytes as f64),
        ]);
    }
    table.note(format!(
        "R-SET: random overwrite of {overwrites} times the data set (or as far as the time limit let it), the compaction and cleaning it left behind included. All were given {:.2} times the data as space: a store above that would not fit. Memory includes the harness's pool of values ({} and one value).",
        data.space_bytes as f64 / data.bytes as f64,
        report::bytes(keys::POOL_BYTES as f64),
    ));
    table
}
