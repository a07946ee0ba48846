//! 32 MiB values, the size of a chunk in LLM key-value caches: GB/s over 4 connections, against one bare loopback stream
//! and fio.

use super::network::options;
use super::{Context, limit, remove, run_limit};
use crate::Result;
use crate::fio::Pattern;
use crate::net::load::{self, LoadOp, LoadSpec};
use crate::net::server::{Server, ServerKind};
use crate::net::stream;
use crate::phase::ratio;
use crate::report::{self, Report, Table, micros, percent};

pub fn run(context: &Context, report: &mut Report) -> Result<()> {
    let value_bytes: usize = context.pick(32 << 20, 4 << 20);
    let keys = context.pick(64, 8);
    let seconds = context.pick(10.0, 0.5);
    let mut table = Table::new(
        "32 MiB values over 4 connections",
        &[
            "server",
            "operation",
            "deep",
            "bytes/s",
            "of the roof",
            "per CPU s",
            "p50",
            "max",
            "server memory",
        ],
    );
    let loopback = stream::loopback_bytes_per_second(context.pick(3.0, 0.5))?;
    let dir = context.fresh_dir("limits")?;
    let file = dir.join("drive0");
    crate::fio::prewrite(&file, context.pick(2 << 30, 64 << 20))?;
    let write = run_limit("8 MiB writes", &limit(Pattern::Write, 8 << 20, 2, seconds / 2.0), &file)?
        .bytes_per_second();
    let read =
        run_limit("8 MiB reads", &limit(Pattern::Read, 8 << 20, 2, seconds / 2.0), &file)?.bytes_per_second();
    remove(&dir);
    let mut raw = serde_json::Map::new();
    for kind in [ServerKind::Pumice, ServerKind::RedisMemory, ServerKind::RedisAlways] {
        if kind == ServerKind::Pumice && context.pumice.is_none() {
            table.note("**Pumice was not measured**: no `pumice` binary");
            continue;
        }
        let dir = context.fresh_dir("network-large")?;
        let server = Server::start(kind, &dir, &options(context, context.pick(256 << 20, 64 << 20)))?;
        let spec = |op, depth, seconds| LoadSpec {
            keys,
            value_bytes,
            ..LoadSpec::timed(server.addr, op, 4, depth, seconds)
        };
        eprintln!("  {kind}");
        load::run(&spec(LoadOp::Fill, 1, 120.0), None, &dir)?;
        for (op, limit) in [(LoadOp::Set, write), (LoadOp::Get, read)] {
            for depth in [1, 10] {
                let r = load::run(&spec(op, depth, seconds), Some(server.pid()), &dir)?;
                // redis in memory never touches the disk: only the network is its roof.
                let roof = if kind == ServerKind::Pumice { loopback.min(limit) } else { loopback };
                table.row(vec![
                    kind.to_string(),
                    format!("{op:?}").to_uppercase(),
                    depth.to_string(),
                    report::bytes(r.bytes_per_second()),
                    percent(ratio(r.bytes_per_second(), roof)),
                    report::bytes(ratio(r.user_bytes as f64, r.cpu_seconds)),
                    micros(r.p50_us),
                    micros(r.max_us),
                    report::bytes(r.memory_peak_bytes as f64),
                ]);
                if r.wrong > 0 || r.misses > 0 || r.error.is_some() {
                    let note = format!("**{kind}: {} wrong, {} missing, {:?}**", r.wrong, r.misses, r.error);
                    table.note(note);
                }
                raw.insert(format!("{kind} {op:?} {depth}"), serde_json::to_value(&r)?);
            }
        }
        server.stop()?;
        remove(&dir);
    }
    table.note(format!(
        "One bare loopback TCP stream {}/s; fio, 8 MiB blocks: write {}/s, read {}/s. The roof is the smaller (redis: loopback). Pumice's memory budget is {}, the data {} times that.",
        report::bytes(loopback),
        report::bytes(write),
        report::bytes(read),
        report::size(context.pick(256 << 20, 64 << 20)),
        keys * value_bytes as u64 / context.pick(256 << 20, 64 << 20),
    ));
    raw.insert("loopback_bytes_per_second".into(), loopback.into());
    report.tables.push(table);
    report.raw = raw.into();
    Ok(())
}
