//! The same workloads at 100 B to 1 MiB on all stores, with the same memory and the same space.

use serde_json::Value;

use super::rounds::{Rounds, paired};
use super::{Context, Data, UNTIL_TIME, limit, phase, remove, run_limit, run_worker};
use crate::fio::{self, Pattern};
use crate::phase::{EngineKind, PhaseResult, PhaseSpec, Work, WorkerResult, WorkerSpec, ratio};
use crate::report::{self, Report, Table, count, micros, size, times};
use crate::{Result, keys};

/// Share of the space that the data takes: a drive as full as users fill one.
const FILL: f64 = 0.70;
/// The same where all stores fit: the hungriest took 4.7 times the data (`sizes`, fjall, values of 1 MiB).
const ROOMY_FILL: f64 = 0.20;
const DEPTH: u32 = 32;
/// Rounds in which each store has its turn.
const TURNS: usize = 3;
/// The least that a store reads at a time: a page.
const READ_BYTES_MIN: u64 = 4 << 10;
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
    report.about.push("All stores: 16 B keys, incompressible values, 32 client threads (Pumice: 32 tasks on two cores); the page cache emptied and the store opened again before each round. RocksDB 7.8: direct I/O, no compression, one cache for blocks and blobs, 10-bit Bloom filters, blob collection on. fjall has no direct I/O: its pages are dropped from the page cache five times a second.".into());
    let values = match context.values.as_slice() {
        [] => context.pick(VALUE_BYTES.to_vec(), vec![100, 1 << 20]),
        chosen => chosen.to_vec(),
    };
    let mut raw = serde_json::Map::new();
    for value_bytes in values {
        raw.insert(value_bytes.to_string(), one_size(context, value_bytes, fill, report)?);
    }
    report.raw = raw.into();
    Ok(())
}

/// A store, its data, and what it did so far.
struct Store {
    spec: WorkerSpec,
    results: Vec<WorkerResult>,
}

impl Store {
    fn run(&mut self, phases: &[PhaseSpec], notes: &mut Vec<String>) {
        self.spec.phases = phases.to_vec();
        self.results.push(run_worker(&self.spec, notes));
        self.spec.fresh = false;
    }

    /// The phases of this name, one a round.
    fn rounds(&self, name: &str) -> Rounds {
        Rounds(self.results.iter().filter_map(|result| result.phase(name)).cloned().collect())
    }

    /// Whether it never took more than the space that all were given, and a twentieth.
    fn fits(&self, data: Data) -> bool {
        let phases = self.results.iter().flat_map(|result| &result.phases);
        let most = phases.map(|phase| phase.disk_peak_bytes).max().unwrap_or(0);
        most <= data.space_bytes + data.space_bytes / 20
    }
}

/// What all stores did with values of one size, and fio in between.
struct Size {
    stores: Vec<Store>,
    random_reads: Rounds,
}

fn one_size(context: &Context, value_bytes: usize, fill: f64, report: &mut Report) -> Result<Value> {
    eprintln!("  values of {}", size(value_bytes as u64));
    let full = match value_bytes {
        0..=512 => Data::filling(512 << 20, 64 << 20, fill),
        513..=4096 => Data::filling(1 << 30, 128 << 20, fill),
        _ => Data::filling(2 << 30, 256 << 20, fill),
    };
    // The first fill of a roomy drive needs no cleaning: as often as shows what does.
    let overwrites = if fill > 0.5 { 3 } else { (1.0 / fill).ceil() as u64 + 3 };
    let data = context.pick(full, Data::filling(24 << 20, 8 << 20, fill));
    let mut notes = Vec::new();
    let measured = measure(context, value_bytes, data, overwrites, &mut notes)?;
    let title = format!(
        "Values of {}: {} of data, {} of memory, {} of space",
        size(value_bytes as u64),
        report::bytes(data.bytes as f64),
        report::bytes(data.memory_bytes as f64),
        report::bytes(data.space_bytes as f64),
    );
    let mut table = throughput(&title, &measured, data);
    table.notes.extend(notes);
    println!("{}", table.markdown());
    report.tables.push(table);
    let cost = cost(&measured.stores, data, overwrites);
    println!("{}", cost.markdown());
    report.tables.push(cost);
    let stores: Vec<_> = measured.stores.iter().map(|store| (store.spec.engine, &store.results)).collect();
    Ok(serde_json::json!({ "stores": stores, "fio_random_reads": measured.random_reads }))
}

/// All stores side by side, one at a time: who is not measured is closed.
fn measure(
    context: &Context,
    value_bytes: usize,
    data: Data,
    overwrites: u64,
    notes: &mut Vec<String>,
) -> Result<Size> {
    let phases = Phases::new(context, data.keys(value_bytes), overwrites);
    let mut stores = Vec::new();
    for (number, engine) in context.engines(&ENGINES).into_iter().enumerate() {
        let dir = context.fresh_dir(&format!("sizes{number}"))?;
        let spec = context.worker(engine, &dir, value_bytes, data);
        stores.push(Store { spec, results: Vec::new() });
    }
    let beside_dir = context.fresh_dir("sizes-beside")?;
    let beside = beside_dir.join("file");
    fio::prewrite(&beside, data.bytes)?;
    let block_bytes = (value_bytes as u64).max(READ_BYTES_MIN);
    let random = limit(Pattern::RandomRead, block_bytes, DEPTH, phases.turn_seconds);
    let mut random_reads = Rounds::default();

    in_turns(&mut stores, 0, &phases.load, notes);
    for round in 0..TURNS {
        in_turns(&mut stores, round, &phases.reads, notes);
        random_reads.0.push(run_limit("random reads", &random, &beside)?);
    }
    in_turns(&mut stores, 0, &phases.overwrite, notes);
    for round in 0..TURNS {
        in_turns(&mut stores, round, &phases.changes, notes);
    }
    stores.iter().for_each(|store| remove(&store.spec.dir));
    remove(&beside_dir);
    Ok(Size { stores, random_reads })
}

/// Runs the phases on each store, another one first in each round.
fn in_turns(stores: &mut [Store], round: usize, phases: &[PhaseSpec], notes: &mut Vec<String>) {
    for at in 0..stores.len() {
        let at = (round + at) % stores.len();
        stores[at].run(phases, notes);
    }
}

struct Phases {
    load: Vec<PhaseSpec>,
    reads: Vec<PhaseSpec>,
    overwrite: Vec<PhaseSpec>,
    changes: Vec<PhaseSpec>,
    /// Of each phase that ends by time.
    turn_seconds: f64,
}

impl Phases {
    fn new(context: &Context, keys: u64, overwrites: u64) -> Self {
        let seconds = context.seconds(3.0, 0.1);
        let longest = context.seconds(50.0 * overwrites as f64, 1.0);
        let reopen = phase("reopen", Work::Reopen { cold: true }, 0, 60.0, 1);
        let until_time = |name, work| phase(name, work, UNTIL_TIME, seconds, DEPTH);
        Self {
            load: vec![
                phase("S-SET", Work::SequentialSet, keys, longest, DEPTH),
                phase("settle S-SET", Work::Settle, 0, 60.0, 1),
            ],
            reads: vec![
                reopen.clone(),
                phase("S-GET", Work::SequentialGet, keys, seconds, DEPTH),
                phase("scan", Work::Scan, keys, seconds, 1),
                until_time("R-GET", Work::RandomGet),
                until_time("R-GET zipfian", Work::RandomGet).zipfian(),
            ],
            overwrite: vec![
                phase("R-SET", Work::RandomSet, overwrites * keys, longest, DEPTH),
                phase("settle R-SET", Work::Settle, 0, 60.0, 1),
            ],
            changes: vec![
                reopen,
                until_time("R-Mixed", Work::Mixed),
                until_time("R-SET durable", Work::RandomSet).durable(),
                until_time("R-Mixed durable", Work::Mixed).durable(),
            ],
            turn_seconds: seconds,
        }
    }
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

fn throughput(title: &str, measured: &Size, data: Data) -> Table {
    let Size { stores, random_reads } = measured;
    let mut columns = vec!["ops/s (CPU s per million)".to_string()];
    columns.extend(stores.iter().map(|store| store.spec.engine.to_string()));
    columns.extend(
        ["fio", "ahead of the best peer", "by round", "of those within the space", "CPU of RocksDB's"]
            .map(String::from),
    );
    let mut table = Table { title: title.into(), columns, ..Table::default() };
    let of = |engine: EngineKind, name| {
        let store = stores.iter().find(|store| store.spec.engine == engine);
        store.map(|store| store.rounds(name)).filter(|rounds| !rounds.0.is_empty())
    };
    let peers = |name, fit: bool| {
        let peers = stores.iter().filter(move |store| store.spec.engine != EngineKind::Pumice);
        let peers = peers.filter(move |store| !fit || store.fits(data)).map(|store| store.rounds(name));
        let speed = |rounds: &Rounds| rounds.median().ops_per_second();
        peers.filter(|rounds| !rounds.0.is_empty()).max_by(|a, b| speed(a).total_cmp(&speed(b)))
    };
    for name in ROWS {
        let mut row = vec![name.to_string()];
        row.extend(stores.iter().map(|store| {
            let rounds = store.rounds(name);
            let median = rounds.median();
            match rounds.0.len() {
                0 => "–".into(),
                _ => format!("{} ({:.1})", count(median.ops_per_second()), median.cpu_per_million()),
            }
        }));
        let is_limited = name == "R-GET" && !random_reads.0.is_empty();
        row.push(if is_limited { count(random_reads.median().ops_per_second()) } else { String::new() });
        let ours = of(EngineKind::Pumice, name);
        let ahead = |peer: Option<Rounds>| {
            let (ours, peer) = ours.as_ref().zip(peer)?;
            Some((ours.0.len(), paired(ours, &peer, PhaseResult::ops_per_second)))
        };
        match ahead(peers(name, false)) {
            Some((1, (ratio, _))) => row.extend([times(ratio), String::new()]),
            Some((_, (ratio, spread))) => row.extend([times(ratio), spread]),
            None => row.extend(["–".into(), String::new()]),
        }
        row.push(ahead(peers(name, true)).map_or("none".into(), |(_, (ratio, _))| times(ratio)));
        // The cheaper of RocksDB's two: the harder one to beat.
        let rocks = [EngineKind::Rocksdb, EngineKind::RocksdbBlob].into_iter();
        let rocks = rocks.filter_map(|engine| of(engine, name));
        let cost = |rounds: &Rounds| rounds.median().cpu_per_million();
        let rocks = rocks.min_by(|a, b| cost(a).total_cmp(&cost(b)));
        let cpu = ours
            .as_ref()
            .zip(rocks)
            .map(|(ours, rocks)| paired(ours, &rocks, PhaseResult::cpu_per_million).0);
        row.push(cpu.map_or("–".into(), times));
        table.row(row);
    }
    table.note(format!("Medians of {TURNS} rounds in which the stores take turns, and ratios by round; S-SET and R-SET are run once. fio: random reads of as many bytes as a value has, {} at least, {DEPTH} in flight, from a file of the data's size, after each round of reads. SETs outside the \"durable\" rows are acknowledged before they are durable, in all stores. CPU is the whole process's, client threads and background work included. Peers may take more space than they were given; the last column but one counts only those that never took more than 1.05 times of it.", size(READ_BYTES_MIN)));
    table
}

fn cost(stores: &[Store], data: Data, overwrites: u64) -> Table {
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
    for store in stores {
        let (set, get) = (store.rounds("R-SET"), store.rounds("R-GET"));
        if set.0.is_empty() || get.0.is_empty() {
            continue;
        }
        let (set, get) = (set.median(), get.median());
        let settle = store.rounds("settle R-SET").median().written_bytes;
        let written = ratio((set.written_bytes + settle) as f64, set.user_bytes as f64);
        table.row(vec![
            store.spec.engine.to_string(),
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
