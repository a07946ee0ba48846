//! Ten minutes of durable random overwrites on a drive 70% full: what cleaning and compaction do to latency.

use super::{Context, Data, UNTIL_TIME, phase, remove, run_worker};
use crate::Result;
use crate::phase::{EngineKind, PhaseResult, Work, ratio};
use crate::report::{Report, Table, count, micros, percent};

const VALUE_BYTES: usize = 8192;
const DEPTH: u32 = 32;
/// The first seconds are left out of the per-second figures: the drive comes from loading, not from its steady state.
const WARM_UP_SECONDS: usize = 5;

pub fn run(context: &Context, report: &mut Report) -> Result<()> {
    let data = context.pick(Data::filling(2 << 30, 256 << 20, 0.70), Data::filling(24 << 20, 8 << 20, 0.70));
    let runs = [
        (EngineKind::Pumice, context.seconds(600.0, 2.2)),
        (EngineKind::Rocksdb, context.seconds(120.0, 2.2)),
        (EngineKind::RocksdbBlob, context.seconds(120.0, 2.2)),
        (EngineKind::Fjall, context.seconds(120.0, 2.2)),
    ];
    let mut table = Table::new(
        "Durable random overwrite, 8 KiB values, drive 70% full, 32 in flight",
        &[
            "store",
            "seconds",
            "median ops/s",
            "slowest second",
            "of the median",
            "seconds < half",
            "p50",
            "p99",
            "p99.9",
            "longest",
        ],
    );
    let mut raw = serde_json::Map::new();
    for engine in context.engines(&runs.map(|(e, _)| e)) {
        let seconds = runs.iter().find(|(e, _)| *e == engine).map_or(0.0, |(_, s)| *s);
        let dir = context.fresh_dir("overwrite")?;
        let mut spec = context.worker(engine, &dir, VALUE_BYTES, data);
        spec.phases = vec![
            phase("load", Work::SequentialSet, spec.keys, 600.0, DEPTH),
            phase("settle", Work::Settle, 0, 60.0, 1),
            phase("overwrite", Work::RandomSet, UNTIL_TIME, seconds, DEPTH).durable(),
        ];
        let result = run_worker(&spec, &mut table.notes);
        remove(&dir);
        if let Some(p) = result.phase("overwrite") {
            table.row(row(engine, p));
        }
        raw.insert(engine.to_string(), serde_json::to_value(&result)?);
    }
    table.note("Throughput counted in whole seconds, the first five left out.");
    report.tables.push(table);
    report.raw = raw.into();
    Ok(())
}

fn row(engine: EngineKind, p: &PhaseResult) -> Vec<String> {
    let mut seconds: Vec<u64> = p.per_second.iter().skip(WARM_UP_SECONDS).copied().collect();
    if seconds.is_empty() {
        seconds.clone_from(&p.per_second);
    }
    seconds.sort_unstable();
    let median = seconds.get(seconds.len() / 2).copied().unwrap_or(0);
    let slowest = seconds.first().copied().unwrap_or(0);
    let below = seconds.iter().filter(|&&s| s * 2 < median).count();
    vec![
        engine.to_string(),
        format!("{:.0}", p.seconds),
        count(median as f64),
        count(slowest as f64),
        percent(ratio(slowest as f64, median as f64)),
        below.to_string(),
        micros(p.p50_us),
        micros(p.p99_us),
        micros(p.p999_us),
        micros(p.max_us),
    ]
}
