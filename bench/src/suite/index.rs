//! What finding a value costs: flash reads per GET by memory budget, index bytes per key, and whether memory stays
//! within the budget.

use super::{Context, Data, UNTIL_TIME, phase, remove, run_worker};
use crate::phase::{EngineKind, PhaseResult, Work, WorkerResult};
use crate::report::{self, Report, Table, count, percent};
use crate::{Result, keys};

const DEPTH: u32 = 32;

pub fn run(context: &Context, report: &mut Report) -> Result<()> {
    let budgets: Vec<u64> = context.pick(vec![64 << 20, 128 << 20, 256 << 20, 1 << 30], vec![64 << 20]);
    let mut table = Table::new(
        "1 KiB values, uniform GETs, page cache emptied before",
        &[
            "store",
            "budget",
            "keys",
            "reads/GET",
            "bytes read/GET",
            "key tables B/key",
            "GET/s",
            "peak memory: load",
            "overwrite",
            "GETs",
            "of budget",
        ],
    );
    let mut raw = serde_json::Map::new();
    for engine in context.engines(&[EngineKind::Pumice, EngineKind::Rocksdb, EngineKind::RocksdbBlob]) {
        for &memory_bytes in &budgets {
            let data = Data::filling(context.pick(4 << 30, 64 << 20), memory_bytes, 0.60);
            let dir = context.fresh_dir("index")?;
            let mut spec = context.worker(engine, &dir, 1024, data);
            if engine == EngineKind::Pumice {
                // As the server divides what its process may take.
                spec.memory_bytes = pumice_kv::memory_of_process(memory_bytes, spec.cores as u64 + 1, 1);
            }
            let seconds = context.pick(8.0, 0.5);
            spec.phases = vec![
                phase("load", Work::SequentialSet, spec.keys, 600.0, DEPTH),
                phase("overwrite", Work::RandomSet, spec.keys / 4, 4.0 * seconds, DEPTH),
                phase("settle", Work::Settle, 0, 60.0, 1),
                phase("reopen", Work::Reopen { cold: true }, 0, 60.0, 1),
                phase("warm up", Work::RandomGet, UNTIL_TIME, seconds, DEPTH),
                phase("R-GET", Work::RandomGet, UNTIL_TIME, seconds, DEPTH),
            ];
            let result = run_worker(&spec, &mut table.notes);
            remove(&dir);
            if let Some(row) = row(&result, engine, memory_bytes, spec.keys) {
                table.row(row);
            }
            raw.insert(format!("{engine} {memory_bytes}"), serde_json::to_value(&result)?);
        }
    }
    table.note("Reads per GET are the device's completed read requests over the GETs: other users of the disk count too, so run it alone. Keys were loaded in order, a quarter overwritten at random, GETs warmed up first. Peak memory is the process's, less the harness's pool of values; Pumice's part of the budget is what `pumice serve --memory` gives its drive.");
    report.tables.push(table);
    report.raw = raw.into();
    Ok(())
}

fn row(result: &WorkerResult, engine: EngineKind, budget: u64, keys: u64) -> Option<Vec<String>> {
    let get = result.phase("R-GET")?;
    let memory = |name: &str| {
        result.phase(name).map_or(0, |p: &PhaseResult| p.memory_peak_bytes.saturating_sub(keys::POOL_BYTES))
    };
    let peak = ["load", "overwrite", "warm up", "R-GET"].into_iter().map(memory).max().unwrap_or(0);
    let index = get.extra.get("index_bytes_now").map_or("–".into(), |b| format!("{:.1}", b / keys as f64));
    Some(vec![
        engine.to_string(),
        report::size(budget),
        count(keys as f64),
        format!("{:.3}", get.reads_per_op()),
        format!("{:.0}", get.read_bytes as f64 / get.ops.max(1) as f64),
        index,
        count(get.ops_per_second()),
        report::bytes(memory("load") as f64),
        report::bytes(memory("overwrite") as f64),
        report::bytes(memory("R-GET") as f64),
        percent(peak as f64 / budget as f64),
    ])
}
