//! Opening: after a clean close, and after a kill -9 in the middle of random SETs, by the size of the data.

use std::time::Duration;

use super::{Context, Data, UNTIL_TIME, phase, remove, run_worker};
use crate::phase::{EngineKind, Work, WorkerResult};
use crate::report::{self, Report, Table};
use crate::{Result, worker};

const VALUE_BYTES: usize = 1024;
const DEPTH: u32 = 32;
/// How long the store takes SETs before it is killed.
const BEFORE_KILL: Duration = Duration::from_secs(5);

pub fn run(context: &Context, report: &mut Report) -> Result<()> {
    let sizes: Vec<u64> = context.pick(vec![256 << 20, 1 << 30, 4 << 30], vec![32 << 20]);
    let mut table = Table::new(
        "Time to open, 1 KiB values, page cache emptied",
        &["store", "data", "clean", "bytes read", "after kill -9", "bytes read after kill"],
    );
    let mut raw = serde_json::Map::new();
    let engines = [EngineKind::Pumice, EngineKind::Rocksdb, EngineKind::RocksdbBlob, EngineKind::Fjall];
    for engine in context.engines(&engines) {
        for &bytes in &sizes {
            let data = Data::filling(bytes, 256 << 20, 0.6);
            let dir = context.fresh_dir("startup")?;
            let (clean, crashed) = one(context, engine, &dir, data, &mut table.notes)?;
            remove(&dir);
            let reopen = clean.phase("reopen").cloned().unwrap_or_default();
            let ms = |seconds: f64| format!("{:.1} ms", seconds * 1000.0);
            table.row(vec![
                engine.to_string(),
                report::bytes(bytes as f64),
                ms(reopen.seconds),
                report::bytes(reopen.read_bytes as f64),
                ms(crashed.opened_seconds),
                report::bytes(crashed.opened_read_bytes as f64),
            ]);
            raw.insert(
                format!("{engine} {bytes}"),
                serde_json::json!({ "clean": clean, "crashed": crashed }),
            );
        }
    }
    table.note("In process: `open` alone, without the process's start. Killed five seconds into durable random SETs.");
    report.tables.push(table);
    report.raw = raw.into();
    Ok(())
}

fn one(
    context: &Context,
    engine: EngineKind,
    dir: &std::path::Path,
    data: Data,
    notes: &mut Vec<String>,
) -> Result<(WorkerResult, WorkerResult)> {
    let mut spec = context.worker(engine, dir, VALUE_BYTES, data);
    spec.phases = vec![
        phase("load", Work::SequentialSet, spec.keys, 600.0, DEPTH),
        phase("reopen", Work::Reopen { cold: true }, 0, 60.0, 1),
    ];
    let clean = run_worker(&spec, notes);
    spec.fresh = false;
    spec.phases = vec![phase("R-SET", Work::RandomSet, UNTIL_TIME, 600.0, DEPTH).durable()];
    worker::start_and_kill(&spec, context.pick(BEFORE_KILL, BEFORE_KILL / 5))?;
    crate::usage::drop_caches();
    spec.phases = vec![phase("R-GET", Work::RandomGet, 1000, 10.0, DEPTH)];
    Ok((clean, run_worker(&spec, notes)))
}
