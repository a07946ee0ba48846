//! Ten minutes of durable random overwrites on a drive 70% full: what cleaning and compaction do to latency.

use super::{Context, Data, UNTIL_TIME, phase, remove, run_worker};
use crate::Result;
use crate::phase::{DeviceSecond, EngineKind, PhaseResult, Work, ratio};
use crate::report::{Report, Table, bytes, count, micros, percent};

const VALUE_BYTES: usize = 8192;
const DEPTH: u32 = 32;
/// The first seconds are left out of the per-second figures: the drive comes from loading, not from its steady state.
const WARM_UP_SECONDS: usize = 5;
/// So much longer than usual its requests take when a drive is slow.
const DRIVE_SLOWER: f64 = 1.5;

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
            "… drive as usual",
            "p50",
            "p99",
            "p99.9",
            "longest",
        ],
    );
    let (mut raw, mut notes) = (serde_json::Map::new(), Vec::new());
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
            let counted = counted_seconds(p);
            table.row(row(engine, p, &counted));
            notes.push(format!("{engine}: {}", drive(&counted)));
        }
        raw.insert(engine.to_string(), serde_json::to_value(&result)?);
    }
    table.note("Throughput counted in whole seconds, the first five left out. \"Drive as usual\": seconds below half in which the drive's requests took at most 1.5 times as long for each MiB as in its median second.");
    table.notes.extend(notes);
    report.tables.push(table);
    report.raw = raw.into();
    Ok(())
}

/// A second of a run: operations done, and the drive under it.
type Second = (u64, DeviceSecond);

/// The seconds of a run but the first, the slowest first.
fn counted_seconds(p: &PhaseResult) -> Vec<Second> {
    let all = || p.per_second.iter().copied().zip(p.device_per_second.iter().copied());
    let mut seconds: Vec<Second> = all().skip(WARM_UP_SECONDS).collect();
    if seconds.is_empty() {
        seconds = all().collect();
    }
    seconds.sort_unstable_by_key(|&(ops, _)| ops);
    seconds
}

fn median(seconds: &[Second], figure: impl Fn(&Second) -> f64) -> f64 {
    let mut figures: Vec<f64> = seconds.iter().map(figure).collect();
    figures.sort_unstable_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(0.0)
}

fn ms_per_mib((_, device): &Second) -> f64 {
    device.ms_per_mib()
}

/// Those that come to less than half of the median.
fn slow(seconds: &[Second]) -> &[Second] {
    let median = median(seconds, |&(ops, _)| ops as f64);
    &seconds[..seconds.partition_point(|&(ops, _)| (ops as f64) * 2.0 < median)]
}

fn row(engine: EngineKind, p: &PhaseResult, seconds: &[Second]) -> Vec<String> {
    let median_ops = median(seconds, |&(ops, _)| ops as f64);
    let slowest = seconds.first().map_or(0.0, |&(ops, _)| ops as f64);
    let slow = slow(seconds);
    let usual = median(seconds, ms_per_mib);
    let as_usual = slow.iter().filter(|second| ms_per_mib(second) <= DRIVE_SLOWER * usual).count();
    vec![
        engine.to_string(),
        format!("{:.0}", p.seconds),
        count(median_ops),
        count(slowest),
        percent(ratio(slowest, median_ops)),
        slow.len().to_string(),
        as_usual.to_string(),
        micros(p.p50_us),
        micros(p.p99_us),
        micros(p.p999_us),
        micros(p.max_us),
    ]
}

/// What the drive was like in the median second, and in the slow ones.
fn drive(seconds: &[Second]) -> String {
    let figures = |of: &[Second]| {
        let stolen = median(of, |(_, device)| device.stolen_seconds);
        let rate = bytes(median(of, |(_, device)| device.bytes as f64));
        format!(
            "{rate} a second at {:.2} ms of requests for each MiB, {stolen:.2} s stolen",
            median(of, ms_per_mib)
        )
    };
    let slow = slow(seconds);
    let all = format!("the drive's median second {}", figures(seconds));
    if slow.is_empty() { all } else { format!("{all}; of those below half {}", figures(slow)) }
}
