//! Hot GETs beside the least that a server can be: how much of a GET's processor time is not the store's to save.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::contender::Contender;
use super::network::{CONNECTIONS, DEPTHS, VALUE_BYTES, per_cpu, start_hot, zipfian};
use super::rounds::{Rounds, paired};
use super::{Context, remove};
use crate::Result;
use crate::net::load::{self, LoadOp};
use crate::net::server::{Server, ServerKind};
use crate::report::{Report, Table, count, percent, size, times};

pub fn run(context: &Context, report: &mut Report) -> Result<()> {
    let rounds = context.pick(3, 1);
    report.about.push(format!(
        "The floor runs on the reactor as `pumice serve` does, on one core: it parses each command, answers a constant as \
         long as the value, and keeps nothing. Per CPU second of the server; {rounds} rounds, in turns as in `network`, \
         medians of the rounds' ratios. Nothing over this reactor and this kernel answers at less than the floor, so its \
         ratio to redis-server is the most that ours can be."
    ));
    if context.pumice.is_none() {
        return Err("no `pumice` binary to measure".into());
    }
    let floor = floor_binary(context)?;
    let mut table = Table::new(
        "Hot GETs per server CPU second",
        &[
            "value, connections × deep",
            "floor",
            "Pumice, 1 core",
            "redis, in memory",
            "Pumice / floor",
            "Pumice / redis",
            "floor / redis",
        ],
    );
    let mut raw = serde_json::Map::new();
    for value_bytes in context.pick(VALUE_BYTES.to_vec(), vec![100]) {
        eprintln!("  values of {}", size(value_bytes as u64));
        one_size(context, &floor, value_bytes, rounds, &mut table, &mut raw)?;
    }
    report.tables.push(table);
    report.raw = raw.into();
    Ok(())
}

fn one_size(
    context: &Context,
    floor: &Path,
    value_bytes: usize,
    rounds: usize,
    table: &mut Table,
    raw: &mut serde_json::Map<String, serde_json::Value>,
) -> Result<()> {
    let dir = context.fresh_dir("floor")?;
    let floor = Server::start_floor(floor, value_bytes)?;
    floor.pause();
    let contenders = [ServerKind::Pumice, ServerKind::RedisMemory].map(|kind| Contender { kind, cores: 1 });
    let mut turns = Vec::new();
    for (number, contender) in contenders.into_iter().enumerate() {
        turns.push(start_hot(context, contender, number, value_bytes)?);
    }
    for connections in context.pick(CONNECTIONS.to_vec(), vec![50]) {
        for depth in DEPTHS {
            let [mut least, mut ours, mut theirs] = [(); 3].map(|()| Rounds::default());
            for _ in 0..rounds {
                let servers = turns.iter().map(|turn| &turn.server);
                for (server, runs) in
                    std::iter::once(&floor).chain(servers).zip([&mut least, &mut ours, &mut theirs])
                {
                    let spec = |seconds| {
                        zipfian(context, server.addr, value_bytes, LoadOp::Get, connections, depth, seconds)
                    };
                    server.resume();
                    load::run(&spec(context.seconds(0.3, 0.05)), None, &dir)?;
                    let measured = load::run(&spec(context.seconds(2.0, 0.2)), Some(server.pid()), &dir);
                    server.pause();
                    runs.0.push(measured?);
                }
            }
            let name = format!("{}, {connections} × {depth}", size(value_bytes as u64));
            let ratio = |a, b| paired(a, b, per_cpu).0;
            table.row(vec![
                name.clone(),
                count(per_cpu(&least.median())),
                count(per_cpu(&ours.median())),
                count(per_cpu(&theirs.median())),
                percent(ratio(&ours, &least)),
                times(ratio(&ours, &theirs)),
                times(ratio(&least, &theirs)),
            ]);
            raw.insert(name, serde_json::json!({ "floor": least, "pumice": ours, "redis": theirs }));
        }
    }
    floor.resume();
    floor.stop()?;
    remove(&dir);
    turns.into_iter().try_for_each(|turn| turn.end())
}

/// Builds the floor and says where it is.
fn floor_binary(context: &Context) -> Result<PathBuf> {
    let mut command = Command::new("cargo");
    command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."));
    command.arg(context.pick("bench", "test"));
    command.args(["-p", "pumice-reactor", "--bench", "floor", "--no-run", "--message-format=json"]);
    let output = command.output()?;
    if !output.status.success() {
        return Err(format!("the floor was not built: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| message["target"]["name"] == "floor")
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .ok_or_else(|| "cargo did not say where the floor is".into())
}
