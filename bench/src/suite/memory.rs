//! The most memory that `pumice serve` takes, by what it was given, the length of values and what is asked of it.

use super::{Context, remove};
use crate::keys::{Distribution, KEY_BYTES};
use crate::net::load::{self, LoadOp, LoadSpec};
use crate::net::server::{PumiceOptions, Server, ServerKind};
use crate::phase::PhaseResult;
use crate::report::{self, Report, Table, percent, size};
use crate::{Result, usage};

const CONNECTIONS: usize = 50;
const DEPTH: usize = 16;
const CORES: usize = 2;

pub fn run(context: &Context, report: &mut Report) -> Result<()> {
    let Some(binary) = context.pumice.clone() else { return Err("no `pumice` binary to measure".into()) };
    let data_bytes: u64 = context.pick(2 << 30, 32 << 20);
    report.about.push(format!(
        "`pumice serve --memory M --cores {CORES}`, {} of keys and values, {CONNECTIONS} connections {DEPTH} deep, uniform keys \
         (mixed: Zipfian), everything durable. The most that the process had resident in each phase, its program's pages \
         among it.",
        report::bytes(data_bytes as f64)
    ));
    let mut table = Table::new(
        "Most memory by phase",
        &[
            "value",
            "`--memory`",
            "keys",
            "load",
            "GETs",
            "SETs",
            "GETs again",
            "mixed",
            "most",
            "of `--memory`",
            "GETs/s",
        ],
    );
    let mut raw = serde_json::Map::new();
    let all_values = context.pick(vec![100, 1024, 8192], vec![1024]);
    for value_bytes in
        all_values.into_iter().filter(|v| context.values.is_empty() || context.values.contains(v))
    {
        for memory_bytes in context.pick(vec![64u64 << 20, 128 << 20, 256 << 20], vec![64 << 20]) {
            eprintln!("  values of {}, {}", size(value_bytes as u64), size(memory_bytes));
            let dir = context.fresh_dir("memory")?;
            let options = PumiceOptions {
                binary: binary.clone(),
                memory_bytes,
                cores: CORES,
                drive_bytes: None,
                more: Vec::new(),
            };
            let server = Server::start(ServerKind::Pumice, &dir, &options)?;
            let keys = data_bytes / (KEY_BYTES + value_bytes) as u64;
            let phases = phases(context, &server, keys, value_bytes)?;
            server.stop()?;
            remove(&dir);
            let most = phases.iter().map(|phase| phase.memory_peak_bytes).max().unwrap_or(0);
            let mut row = vec![size(value_bytes as u64), size(memory_bytes), report::count(keys as f64)];
            row.extend(phases.iter().map(|phase| report::bytes(phase.memory_peak_bytes as f64)));
            row.push(report::bytes(most as f64));
            row.push(percent(most as f64 / memory_bytes as f64));
            row.push(report::count(phases[3].ops as f64 / phases[3].seconds));
            table.row(row);
            raw.insert(format!("{value_bytes} {memory_bytes}"), serde_json::to_value(&phases)?);
        }
    }
    report.tables.push(table);
    report.raw = raw.into();
    Ok(())
}

/// Load, GETs, SETs, GETs, mixed.
fn phases(context: &Context, server: &Server, keys: u64, value_bytes: usize) -> Result<Vec<PhaseResult>> {
    let seconds = context.seconds(8.0, 0.3);
    let loads = [
        (LoadOp::Fill, 600.0),
        (LoadOp::Get, seconds),
        (LoadOp::Set, seconds),
        (LoadOp::Get, seconds),
        (LoadOp::Mixed, seconds),
    ];
    let phases = loads.map(|(op, seconds)| {
        let distribution = if op == LoadOp::Mixed { Distribution::Zipfian } else { Distribution::Uniform };
        let timed = LoadSpec::timed(server.addr, op, CONNECTIONS, DEPTH, seconds);
        usage::reset_peak_memory(&server.pid().to_string());
        load::run(&LoadSpec { keys, value_bytes, distribution, ..timed }, Some(server.pid()), &context.dir)
    });
    phases.into_iter().collect()
}
