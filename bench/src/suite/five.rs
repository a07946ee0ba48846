//! LightStore's five workloads at 8 KiB, one drive, in process, each in turns with fio and the matching pattern. The disk under a
//! virtual machine is not the same from one minute to the next: what is told is the median of the turns.
//!
//! 1. fio writes the drive's whole file (fresh blocks commit at half the speed of old ones), another like it beside, and
//!    measures its write limits on the drive's.
//! 2. Pumice formats its file, written ahead as a drive in use is, and loads it to 70% (S-SET); fio writes the file beside.
//!    So three times. Then it is opened with the page cache emptied, and reads in key order, at random, Zipfian, and mixed;
//!    after each fio reads the same file with the same size and depth, or mixes reads and writes in the file beside. So three
//!    times, too.
//! 3. R-SET overwrites the data three times over. What it writes beyond the user's bytes is held against a perfect
//!    greedy cleaner's.
//! 4. fio measures its write limits again: the disk may have changed under the run.

use super::{Context, Data, UNTIL_TIME, limit, limit_phase, phase, remove, run_limit, run_worker};
use crate::bound::{GreedyRun, greedy_limit, greedy_simulated};
use crate::fio::{self, Limit, Pattern};
use crate::phase::{EngineKind, PhaseResult, Work, WorkerResult, ratio};
use crate::report::{self, Report, Table, count, micros, percent};
use crate::{Result, keys::KEY_BYTES};

const VALUE_BYTES: usize = 8192;
/// Live share of the drive after loading.
const FILL: f64 = 0.70;
const SEGMENT_BYTES: u64 = 8 << 20;
/// What cleaning does to a drive: it reads about as much as is written.
const MIX: &str = "1:1 mix, 512 KiB, depth 4, durable";
/// What a program would do that wrote each value by itself.
const SINGLE: &str = "durable write, 8 KiB, depth 32";
/// What a perfect group commit of all that is in flight would write.
const GROUP: &str = "durable write, one group of 32 values";
const MIXED: &str = "9:1 mix, 8 KiB, depth 32";
/// SETs and GETs in flight.
const DEPTH: u32 = 32;

/// Turns of Pumice and fio.
const TURNS: usize = 3;

/// One workload's turns.
struct Turns {
    name: &'static str,
    /// Pumice, and fio's bytes a second right after.
    turns: Vec<(PhaseResult, f64)>,
}

impl Turns {
    fn median(&self, of: impl Fn(&PhaseResult, f64) -> f64) -> f64 {
        let all = self.each(of);
        all.get(all.len() / 2).copied().unwrap_or(0.0)
    }

    /// In order.
    fn each(&self, of: impl Fn(&PhaseResult, f64) -> f64) -> Vec<f64> {
        let mut all: Vec<f64> = self.turns.iter().map(|(pumice, fio)| of(pumice, *fio)).collect();
        all.sort_by(f64::total_cmp);
        all
    }
}

fn share(pumice: &PhaseResult, fio: f64) -> f64 {
    ratio(pumice.bytes_per_second(), fio)
}

pub fn run(context: &Context, report: &mut Report) -> Result<()> {
    let data = Data::filling(context.pick(4 << 30, 96 << 20), context.pick(256 << 20, 64 << 20), FILL);
    let seconds = context.pick(5.0, 0.4);
    let dir = context.fresh_dir("five")?;
    let beside_dir = context.fresh_dir("five-beside")?;
    let (file, beside) = (dir.join("drive0"), beside_dir.join("file"));
    for file in [&file, &beside] {
        eprintln!("  fio: writing {} MiB", data.space_bytes >> 20);
        fio::prewrite(file, data.space_bytes)?;
    }
    let before = write_limits(&file, seconds)?;

    let mut spec = context.worker(EngineKind::Pumice, &dir, VALUE_BYTES, data);
    spec.prewritten = true;
    // One core serves and one works in the background: as many threads as the machine has processors, and fio has one. With two
    // serving, a commit's end must call a processor from its sleep, which takes a virtual machine as long as the commit.
    spec.cores = 1;
    let block = VALUE_BYTES as u64;
    let mut notes = Vec::new();
    let mut results = Vec::new();
    let mut all: Vec<Turns> = ["S-SET", "S-GET", "scan", "R-GET", "R-GET zipfian", "R-Mixed", "R-SET"]
        .map(|name| Turns { name, turns: Vec::new() })
        .into();
    let mut turn = |result: &WorkerResult, name: &str, fio: f64| {
        if let (Some(pumice), Some(of)) = (result.phase(name), all.iter_mut().find(|of| of.name == name)) {
            of.turns.push((pumice.clone(), fio));
        }
    };

    let group = Limit { durable: true, ..limit(Pattern::Write, block * u64::from(DEPTH), 1, seconds) };
    spec.phases = vec![
        phase("S-SET", Work::SequentialSet, spec.keys, 600.0, DEPTH).durable(),
        phase("settle", Work::Settle, 0, 60.0, 1),
    ];
    for _ in 0..TURNS {
        let result = run_worker(&spec, &mut notes);
        turn(&result, "S-SET", run_limit(GROUP, &group, &beside)?.bytes_per_second());
        results.push(result);
    }

    spec.fresh = false;
    spec.phases = vec![
        phase("reopen", Work::Reopen { cold: true }, 0, 60.0, 1),
        phase("S-GET", Work::SequentialGet, spec.keys, seconds, DEPTH),
        limit_phase("fio S-GET", Pattern::Read, block, DEPTH, seconds),
        phase("scan", Work::Scan, spec.keys, seconds, 1),
        limit_phase("fio scan", Pattern::Read, 1 << 20, 4, seconds),
        phase("R-GET", Work::RandomGet, UNTIL_TIME, seconds, DEPTH),
        limit_phase("fio R-GET", Pattern::RandomRead, block, DEPTH, seconds),
        phase("R-GET zipfian", Work::RandomGet, UNTIL_TIME, seconds, DEPTH).zipfian(),
        phase("R-Mixed", Work::Mixed, UNTIL_TIME, seconds, DEPTH).durable(),
    ];
    let mixed = limit(Pattern::RandomMixed, block, DEPTH, seconds);
    for _ in 0..TURNS {
        let result = run_worker(&spec, &mut notes);
        for (name, fio) in [
            ("S-GET", "fio S-GET"),
            ("scan", "fio scan"),
            ("R-GET", "fio R-GET"),
            ("R-GET zipfian", "fio R-GET"),
        ] {
            turn(&result, name, result.phase(fio).map_or(0.0, PhaseResult::bytes_per_second));
        }
        turn(&result, "R-Mixed", run_limit(MIXED, &mixed, &beside)?.bytes_per_second());
        results.push(result);
    }

    spec.phases = vec![
        phase("R-SET", Work::RandomSet, 3 * spec.keys, 1200.0, DEPTH).durable(),
        phase("settle after", Work::Settle, 0, 60.0, 1),
    ];
    let result = run_worker(&spec, &mut notes);
    turn(&result, "R-SET", run_limit(GROUP, &group, &beside)?.bytes_per_second());
    results.push(result);
    let after = write_limits(&file, seconds)?;
    remove(&dir);
    remove(&beside_dir);

    report.tables.push(shares(&all, &before, &after, notes));
    report.tables.push(cleaning(&all, results.last(), spec.keys, data, &after));
    report.raw = serde_json::json!({ "pumice": results, "fio_before": before, "fio_after": after });
    Ok(())
}

/// fio's write limits on `file`, which it spoils.
fn write_limits(file: &std::path::Path, seconds: f64) -> Result<Vec<PhaseResult>> {
    let block = VALUE_BYTES as u64;
    let durable = |l: Limit| Limit { durable: true, ..l };
    let jobs = [
        (GROUP, durable(limit(Pattern::Write, block * u64::from(DEPTH), 1, seconds))),
        ("durable write, 1 MiB", durable(limit(Pattern::Write, 1 << 20, 1, seconds))),
        (SINGLE, durable(limit(Pattern::RandomWrite, block, DEPTH, seconds))),
        ("write, 8 MiB, depth 2", limit(Pattern::Write, SEGMENT_BYTES, 2, seconds)),
        (MIXED, limit(Pattern::RandomMixed, block, DEPTH, seconds)),
        (MIX, durable(limit(Pattern::RandomHalf, 512 << 10, 4, seconds))),
    ];
    jobs.iter().map(|(name, job)| run_limit(name, job, file)).collect()
}

fn shares(all: &[Turns], before: &[PhaseResult], after: &[PhaseResult], notes: Vec<String>) -> Table {
    let mut table = Table::new(
        "8 KiB values, one drive, 32 in flight: medians of the turns",
        &[
            "workload",
            "ops/s",
            "bytes/s",
            "fio",
            "share",
            "low–high",
            "CPU s/M",
            "p50",
            "p99",
            "p99.9",
            "max",
            "reads/GET",
        ],
    );
    for of in all.iter().filter(|of| !of.turns.is_empty()) {
        let shares = of.each(share);
        table.row(vec![
            of.name.into(),
            count(of.median(|p, _| p.ops_per_second())),
            report::bytes(of.median(|p, _| p.bytes_per_second())),
            report::bytes(of.median(|_, fio| fio)),
            percent(of.median(share)),
            match (shares.first(), shares.last()) {
                (Some(low), Some(high)) if shares.len() > 1 => {
                    format!("{}–{}", percent(*low), percent(*high))
                }
                _ => String::new(),
            },
            format!("{:.1}", of.median(|p, _| p.cpu_per_million())),
            micros(of.median(|p, _| p.p50_us)),
            micros(of.median(|p, _| p.p99_us)),
            micros(of.median(|p, _| p.p999_us)),
            micros(of.median(|p, _| p.max_us)),
            format!("{:.2}", of.median(|p, _| p.reads_per_op())),
        ]);
    }
    table.note("SETs are durable when acknowledged. fio's pattern, right after each turn: S-SET and R-SET, one durable sequential write of what is in flight (256 KiB) at a time; S-GET, sequential 8 KiB reads at depth 32; scan, 1 MiB reads at depth 4; R-GET, random 8 KiB reads at depth 32; R-Mixed, fio's 9:1 mix, whose writes are *not* durable. What only reads has the drive's own file, what writes one of the same size beside it, written ahead like it. The shares are those of the turns; their median need not be the quotient of the medians. R-SET has one turn, of three overwrites. On the drive's own file, before and after all:");
    for p in before.iter().zip(after) {
        table.note(format!(
            "fio {}: {} before, {} after",
            p.0.name,
            report::bytes(p.0.bytes_per_second()),
            report::bytes(p.1.bytes_per_second())
        ));
    }
    let of = |list: &[PhaseResult]| {
        list.iter().find(|p| p.name == SINGLE).map_or(0.0, PhaseResult::bytes_per_second)
    };
    let single = (of(before) + of(after)) / 2.0;
    let find = |name| all.iter().find(|of| of.name == name).filter(|of| !of.turns.is_empty());
    if let (Some(sequential), Some((random, _))) =
        (find("S-SET"), find("R-SET").and_then(|of| of.turns.last()))
    {
        table.note(format!(
            "Of fio's {SINGLE}: S-SET {}, R-SET {}, with what cleaning writes {}",
            percent(ratio(sequential.median(|p, _| p.bytes_per_second()), single)),
            percent(ratio(random.bytes_per_second(), single)),
            percent(ratio(ratio(random.written_bytes as f64, random.seconds), single)),
        ));
    }
    table.notes.extend(notes);
    table
}

fn cleaning(
    all: &[Turns],
    last: Option<&WorkerResult>,
    keys: u64,
    data: Data,
    after: &[PhaseResult],
) -> Table {
    let mut table =
        Table::new("R-SET in its steady state: three overwrites of a drive 70% full", &["figure", "value"]);
    let Some((last, set)) = last.and_then(|last| Some((last, last.phase("R-SET")?))) else { return table };
    let record_bytes = (KEY_BYTES + VALUE_BYTES) as u64;
    let fill = (keys * record_bytes) as f64 / data.space_bytes as f64;
    // R-Mixed overwrote some before: one in ten of its operations is a SET.
    let mixed = all.iter().filter(|of| of.name == "R-Mixed").flat_map(|of| &of.turns);
    let mixed_sets: f64 = mixed.map(|(p, _)| p.ops as f64 / 10.0).sum();
    let simulated = greedy_simulated(GreedyRun {
        segments: (data.space_bytes / SEGMENT_BYTES) as usize,
        records_per_segment: (SEGMENT_BYTES / record_bytes) as usize,
        keys: keys as usize,
        reserve: 2,
        overwritten_before: mixed_sets / keys as f64,
        overwrites: set.ops as f64 / keys as f64,
    });
    let settle_bytes = last.phase("settle after").map_or(0, |p| p.written_bytes);
    let amplification = ratio((set.written_bytes + settle_bytes) as f64, set.user_bytes as f64);
    let ahead = set.extra.get("prewritten_bytes").copied().unwrap_or(0.0);
    let lasting = amplification - ratio(ahead, set.user_bytes as f64);
    let mixed = after.iter().find(|p| p.name == MIX).map_or(0.0, PhaseResult::bytes_per_second);
    let read_rate = ratio(set.extra.get("reactor_read_bytes").copied().unwrap_or(0.0), set.seconds);
    let best_write = after.iter().filter(|p| p.name.contains("write")).map(PhaseResult::bytes_per_second);
    let best_write = best_write.fold(0.0, f64::max);
    let written_rate = ratio(set.written_bytes as f64, set.seconds);
    let mut line = |name: &str, value: String| table.row(vec![name.into(), value]);
    line("live share of the drive", percent(fill));
    line("overwrites", format!("{:.2}", set.ops as f64 / keys as f64));
    line("write amplification, all bytes", format!("{amplification:.3}"));
    line("the same without writing ahead of need (once in a drive's life)", format!("{lasting:.3}"));
    let kinds = [
        ("user records, headers and padding", "commit_bytes"),
        ("moved by cleaning", "moved_bytes"),
        ("key tables", "table_bytes_written"),
        ("metadata", "meta_bytes"),
        ("written ahead of need", "prewritten_bytes"),
    ];
    for (name, counter) in kinds {
        let bytes = set.extra.get(counter).copied().unwrap_or(0.0);
        line(&format!("… {name}, per user byte"), format!("{:.3}", ratio(bytes, set.user_bytes as f64)));
    }
    line("greedy, for ever (mean field)", format!("{:.3}", greedy_limit(fill)));
    line("greedy, this run (simulated)", format!("{simulated:.3}"));
    line(
        "above greedy in this run, without writing ahead",
        format!("{:+.1}%", (lasting / simulated - 1.0) * 100.0),
    );
    line("user and cleaning bytes written a second", report::bytes(written_rate));
    line("fio's best write bandwidth after the run", report::bytes(best_write));
    line("share", percent(ratio(written_rate, best_write)));
    line("the same with what cleaning read", report::bytes(written_rate + read_rate));
    line("fio's durable 1:1 mix of reads and writes of 512 KiB, depth 4", report::bytes(mixed));
    line("share", percent(ratio(written_rate + read_rate, mixed)));
    table.note("The bound: u = exp(-(1 - u)/fill), write amplification 1/(1 - u), uniform overwrites for ever; and the same by simulation of a perfect greedy cleaner with this run's segments, start and length (`bench/src/bound.rs`). Ours counts every byte sent to the device: records, headers, padding, key tables, metadata, cleaning, and the settling afterwards.");
    table
}
