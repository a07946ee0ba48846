//! Cold GETs over the network: a set four times the memory budget, uniform, beside fio at that size and depth on the
//! drive's file.

use super::contender::{Contender, Turn};
use super::network::Raw;
use super::rounds::{Rounds, paired};
use super::{Context, limit, run_limit};
use crate::fio::Pattern;
use crate::keys::KEY_BYTES;
use crate::net::load::{self, LoadOp, LoadSpec};
use crate::phase::PhaseResult;
use crate::report::{Table, count, micros, percent, size};
use crate::{Result, usage};

pub fn run(context: &Context, rounds: usize, raw: &mut Raw) -> Result<Table> {
    let mut table = Table::new(
        "Cold GETs: uniform over four times the memory budget, page cache emptied",
        &[
            "value, connections × deep",
            "server",
            "ops/s",
            "low–high",
            "CPU s/M",
            "p50",
            "p99",
            "p99.9",
            "max",
            "fio ops/s",
            "fio CPU s/M",
            "share",
        ],
    );
    let memory_bytes = context.pick(256 << 20, 64 << 20);
    for value_bytes in [1 << 10, 8 << 10] {
        eprintln!("  cold, values of {}", size(value_bytes as u64));
        let keys = 4 * memory_bytes / (KEY_BYTES + value_bytes) as u64;
        let spec = |turn: &Turn, op, connections, depth, seconds| LoadSpec {
            keys,
            value_bytes,
            ..LoadSpec::timed(turn.server.addr, op, connections, depth, seconds)
        };
        let mut turns = Vec::new();
        for (number, contender) in Contender::pumices(context).into_iter().enumerate() {
            let Turn { server, dir, .. } =
                Turn::start(context, contender, number, memory_bytes).and_then(|turn| {
                    turn.take(|turn| load::run(&spec(turn, LoadOp::Fill, 50, 16, 600.0), None, &turn.dir))?;
                    turn.server.resume();
                    Ok(turn)
                })?;
            server.stop()?;
            let server = contender.start(context, &dir, memory_bytes)?;
            server.pause();
            turns.push(Turn { contender, server, dir });
        }
        usage::drop_caches();
        for (connections, depth) in [(50, 1), (50, 16), (500, 1)] {
            let seconds = context.pick(3.0, 0.3);
            let job_depth = ((connections * depth) as u32).min(256);
            // Only the part of the file that holds the data: the rest is a hole.
            let mut job = limit(Pattern::RandomRead, value_bytes as u64, job_depth, seconds);
            job.span_bytes = keys * (KEY_BYTES + value_bytes) as u64 / (1 << 20) * (1 << 20);
            let mut ours: Vec<_> = turns.iter().map(|_| Rounds::default()).collect();
            let mut fio = ours.clone();
            for _ in 0..rounds {
                for ((turn, ours), fio) in turns.iter().zip(&mut ours).zip(&mut fio) {
                    fio.0.push(run_limit("random reads", &job, &turn.dir.join("drive0"))?);
                    ours.0.push(turn.take(|turn| {
                        let warm_up = spec(turn, LoadOp::Get, connections, depth, seconds / 3.0);
                        load::run(&warm_up, None, &turn.dir)?;
                        let load = spec(turn, LoadOp::Get, connections, depth, seconds);
                        load::run(&load, Some(turn.server.pid()), &turn.dir)
                    })?);
                }
            }
            for ((turn, ours), fio) in turns.iter().zip(ours).zip(fio) {
                let (our, limit) = (ours.median(), fio.median());
                let (share, _) = paired(&ours, &fio, PhaseResult::ops_per_second);
                let shape = format!("{}, {connections} × {depth}", size(value_bytes as u64));
                table.row(vec![
                    shape.clone(),
                    turn.contender.to_string(),
                    count(our.ops_per_second()),
                    ours.spread(),
                    format!("{:.1}", our.cpu_per_million()),
                    micros(our.p50_us),
                    micros(our.p99_us),
                    micros(our.p999_us),
                    micros(our.max_us),
                    count(limit.ops_per_second()),
                    format!("{:.1}", limit.cpu_per_million()),
                    percent(share),
                ]);
                for r in &ours.0 {
                    if r.wrong > 0 || r.misses > 0 || r.error.is_some() {
                        let what = format!("{} wrong, {} missing, {:?}", r.wrong, r.misses, r.error);
                        table.note(format!("**{}, {shape}: {what}**", turn.contender));
                    }
                }
                let name = format!("cold {} {shape}", turn.contender);
                raw.insert(name, serde_json::json!({ "pumice": ours, "fio": fio }));
            }
        }
        turns.into_iter().try_for_each(Turn::end)?;
    }
    table.note(
        "fio: random reads of the same size on the same blocks, as many in flight (256 at most), in turns with the servers; \
         it has the machine to itself, the servers share it with their client. A RocksDB-backed Redis server measured 33k/s \
         at 1 KiB and 28k/s at 8 KiB on such a machine, at 45 and 53 CPU seconds per million.",
    );
    Ok(table)
}
