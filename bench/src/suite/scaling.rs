//! One core against two; and commits: how many a second, how long each, by the SETs in flight, beside what one durable
//! write of the same bytes costs on the bare file.

use super::{Context, Data, UNTIL_TIME, limit, phase, remove, run_limit, run_worker};
use crate::Result;
use crate::fio::{self, Limit, Pattern};
use crate::phase::{EngineKind, PhaseResult, Work, WorkerResult, ratio};
use crate::report::{Report, Table, count, micros, percent, size, times};

const DEPTHS: [u32; 7] = [1, 4, 16, 32, 64, 256, 1024];
/// Header and padding of a record, roughly: only to choose fio's block size.
const RECORD_OVERHEAD_BYTES: u64 = 40;

pub fn run(context: &Context, report: &mut Report) -> Result<()> {
    let mut raw = serde_json::Map::new();
    let cores = cores(context, &mut raw)?;
    report.tables.push(cores);
    for value_bytes in [100, 4096] {
        let table = commits(context, value_bytes, &mut raw)?;
        report.tables.push(table);
    }
    report.raw = raw.into();
    Ok(())
}

fn cores(context: &Context, raw: &mut serde_json::Map<String, serde_json::Value>) -> Result<Table> {
    // Fits the memory: the cores' work is to be seen, not the disk's.
    let data =
        Data { bytes: 64 << 20, memory_bytes: 512 << 20, space_bytes: context.pick(4 << 30, 256 << 20) };
    let seconds = context.pick(6.0, 0.2);
    let depth = 64;
    let mut table = Table::new(
        "1 KiB values, all in memory, 64 in flight: one core and two",
        &["workload", "1 core", "2 cores", "scaling", "CPU s/M: 1", "2", "lock waits per M ops, 2 cores"],
    );
    let mut results: Vec<WorkerResult> = Vec::new();
    for cores in [1, 2] {
        let dir = context.fresh_dir("scaling")?;
        let mut spec = context.worker(EngineKind::Pumice, &dir, 1024, data);
        spec.cores = cores;
        spec.phases = vec![
            phase("load", Work::SequentialSet, spec.keys, 60.0, depth),
            phase("GET", Work::RandomGet, UNTIL_TIME, seconds, depth),
            phase("9:1 mix", Work::Mixed, UNTIL_TIME, seconds, depth),
            phase("SET", Work::RandomSet, UNTIL_TIME, seconds, depth),
            phase("SET durable", Work::RandomSet, UNTIL_TIME, seconds, depth).durable(),
        ];
        results.push(run_worker(&spec, &mut table.notes));
        remove(&dir);
    }
    for name in ["GET", "9:1 mix", "SET", "SET durable"] {
        let (Some(one), Some(two)) = (results[0].phase(name), results[1].phase(name)) else { continue };
        let waits =
            two.extra.get("lock_waits").map_or("–".into(), |w| count(ratio(w * 1e6, two.ops as f64)));
        table.row(vec![
            name.into(),
            count(one.ops_per_second()),
            count(two.ops_per_second()),
            times(ratio(two.ops_per_second(), one.ops_per_second())),
            format!("{:.2}", one.cpu_per_million()),
            format!("{:.2}", two.cpu_per_million()),
            waits,
        ]);
    }
    raw.insert("cores".into(), serde_json::to_value(&results)?);
    Ok(table)
}

fn commits(
    context: &Context,
    value_bytes: usize,
    raw: &mut serde_json::Map<String, serde_json::Value>,
) -> Result<Table> {
    let data =
        Data { bytes: 256 << 20, memory_bytes: 256 << 20, space_bytes: context.pick(2 << 30, 128 << 20) };
    let seconds = context.pick(4.0, 0.3);
    let dir = context.fresh_dir("commits")?;
    let file = dir.join("drive0");
    fio::prewrite(&file, data.space_bytes)?;
    let mut spec = context.worker(EngineKind::Pumice, &dir, value_bytes, data);
    spec.keys = 10_000;
    let depths = context.pick(DEPTHS.to_vec(), vec![1, 32]);
    spec.phases = depths
        .iter()
        .map(|&d| phase(&format!("depth {d}"), Work::RandomSet, UNTIL_TIME, seconds, d).durable())
        .collect();
    let title =
        format!("Durable SETs of {} by depth, against one durable write at a time", size(value_bytes as u64));
    let mut table = Table::new(
        &title,
        &[
            "in flight",
            "SETs/s",
            "commits/s",
            "p50",
            "p99",
            "p99.9",
            "fio block",
            "fio writes/s",
            "fio p50",
            "of the floor",
        ],
    );
    let result = run_worker(&spec, &mut table.notes);
    let mut floors: Vec<PhaseResult> = Vec::new();
    for depth in depths {
        let block =
            (u64::from(depth) * (value_bytes as u64 + 16 + RECORD_OVERHEAD_BYTES)).next_multiple_of(4096);
        let job = Limit { durable: true, ..limit(Pattern::Write, block, 1, seconds) };
        let floor = run_limit(&format!("durable write of {block}"), &job, &file)?;
        if let Some(p) = result.phase(&format!("depth {depth}")) {
            // Without the store's own count, assume that every commit took all that was in flight.
            let commits = p.extra.get("commits").copied().unwrap_or(p.ops as f64 / f64::from(depth));
            let rate = ratio(commits, p.seconds);
            table.row(vec![
                depth.to_string(),
                count(p.ops_per_second()),
                count(rate),
                micros(p.p50_us),
                micros(p.p99_us),
                micros(p.p999_us),
                size(block),
                count(floor.ops_per_second()),
                micros(floor.p50_us),
                percent(ratio(rate, floor.ops_per_second())),
            ]);
        }
        floors.push(floor);
    }
    remove(&dir);
    raw.insert(format!("commits {value_bytes}"), serde_json::json!({ "pumice": result, "fio": floors }));
    Ok(table)
}
