//! Collections: commands over elements beside redis-server, and elements of keys larger than memory.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use super::contender::{Contender, Turn};
use super::network::{Raw, per_cpu};
use super::redis_benchmark::{Seeds, ask};
use super::rounds::{Rounds, paired};
use super::{Context, limit, run_limit};
use crate::Result;
use crate::fio::Pattern;
use crate::net::server::{Server, ServerKind};
use crate::phase::{PhaseResult, ratio};
use crate::report::{Report, Table, count, micros, percent, times};
use crate::usage;

const CONNECTIONS: &str = "50";
const DEPTHS: [usize; 2] = [1, 16];
/// Names that are drawn from where all is in memory.
const NAMES: u64 = 100_000;
/// Elements of one command while a collection is filled.
const FILLED_AT_ONCE: u64 = 1_000;

/// Commands in the order in which one leaves the next what it needs; what takes elements away, or answers with many, runs for a
/// fifth of the time.
const COMMANDS: [(&str, bool); 13] = [
    ("INCR counter:__rand_int__", false),
    ("LPUSH list 0123456789abcdef", false),
    ("RPUSH list 0123456789abcdef", false),
    ("LRANGE list 0 99", true),
    ("LPOP list", true),
    ("RPOP list", true),
    ("SADD set element:__rand_int__", false),
    ("SPOP set", true),
    ("HSET hash element:__rand_int__ 0123456789abcdef", false),
    ("HGET hash element:__rand_int__", false),
    ("ZADD zset __rand_int__ element:__rand_int__", false),
    ("ZRANGE zset 0 99", true),
    ("ZPOPMIN zset", true),
];

/// Commands over elements that lie on flash, of `hash` and `zset`.
const COLD: [&str; 7] = [
    "HGET hash element:__rand_int__",
    "HSET hash element:__rand_int__ 0123456789abcdef",
    "HDEL hash element:__rand_int__",
    "ZSCORE zset element:__rand_int__",
    "ZADD zset 7 element:__rand_int__",
    "ZINCRBY zset 1 element:__rand_int__",
    "ZREM zset element:__rand_int__",
];

pub fn run(context: &Context, report: &mut Report) -> Result<()> {
    if context.pumice.is_none() {
        return Err("no `pumice` binary to measure".into());
    }
    let rounds = context.pick(3, 1);
    report.about.push(format!(
        "By redis-benchmark, {CONNECTIONS} connections; client and server share the machine. `pumice serve` on one core, acknowledged when \
         durable. Medians of {rounds} rounds, the servers in turns; who is not being measured is stopped (SIGSTOP)."
    ));
    let mut raw = Raw::new();
    report.tables.push(in_memory(context, rounds, &mut raw)?);
    report.tables.push(cold(context, rounds, &mut raw)?);
    report.raw = raw.into();
    Ok(())
}

/// One run of redis-benchmark.
fn measure(
    server: &Server,
    command: &str,
    depth: usize,
    names: u64,
    requests: u64,
    seeds: &mut Seeds,
) -> Result<PhaseResult> {
    let [depth, names] = [depth as u64, names].map(|n| n.to_string());
    let mut words = vec!["-c", CONNECTIONS, "-P", &depth, "-r", &names];
    words.extend(command.split(' '));
    let (cells, cpu_seconds) = ask(server, requests, &words, seeds)?;
    Ok(PhaseResult {
        name: command.into(),
        ops: requests,
        seconds: ratio(requests as f64, cells[0]),
        cpu_seconds,
        p50_us: cells[3] * 1e3,
        p99_us: cells[5] * 1e3,
        max_us: cells[6] * 1e3,
        ..PhaseResult::default()
    })
}

fn in_memory(context: &Context, rounds: usize, raw: &mut Raw) -> Result<Table> {
    let kinds = [ServerKind::Pumice, ServerKind::RedisMemory, ServerKind::RedisAlways];
    let mut turns = Vec::new();
    for (number, kind) in kinds.into_iter().enumerate() {
        let turn = Turn::start(context, Contender { kind, cores: 1 }, number, 512 << 20)?;
        turn.server.pause();
        turns.push(turn);
    }
    let mut table = Table::new(
        "Commands over elements, all in memory",
        &[
            "command",
            "deep",
            "ops/s",
            "redis, in memory",
            "redis, AOF always",
            "of AOF always",
            "low–high",
            "per CPU s",
            "of in memory",
            "of AOF always",
            "p99",
            "p99, AOF always",
        ],
    );
    let mut seeds = Seeds::default();
    for depth in DEPTHS {
        let mut runs: Vec<[Rounds; 3]> = vec![Default::default(); COMMANDS.len()];
        for round in 0..rounds {
            eprintln!("  in memory, {depth} deep, round {round}");
            for ((command, is_short), runs) in COMMANDS.iter().zip(&mut runs) {
                let requests = context.pick(if depth == 1 { 40_000 } else { 200_000 }, 1_000);
                let requests = if *is_short { requests / 5 } else { requests };
                for (turn, runs) in turns.iter().zip(runs) {
                    let run =
                        |turn: &Turn| measure(&turn.server, command, depth, NAMES, requests, &mut seeds);
                    runs.0.push(turn.take(run)?);
                }
            }
        }
        for ((command, _), [ours, memory, always]) in COMMANDS.iter().zip(&runs) {
            let (share, ends) = paired(ours, always, PhaseResult::ops_per_second);
            table.row(vec![
                (*command).into(),
                depth.to_string(),
                count(ours.median().ops_per_second()),
                count(memory.median().ops_per_second()),
                count(always.median().ops_per_second()),
                times(share),
                ends,
                count(per_cpu(&ours.median())),
                times(paired(ours, memory, per_cpu).0),
                times(paired(ours, always, per_cpu).0),
                micros(ours.median().p99_us),
                micros(always.median().p99_us),
            ]);
            let found = serde_json::json!({ "pumice": ours, "memory": memory, "always": always });
            raw.insert(format!("{command}, {depth} deep"), found);
        }
    }
    table.note(format!(
        "`redis-benchmark -c {CONNECTIONS} -P DEEP -r {NAMES} -n N COMMAND`; ratios are medians of the rounds' own."
    ));
    turns.into_iter().try_for_each(Turn::end)?;
    Ok(table)
}

fn cold(context: &Context, rounds: usize, raw: &mut Raw) -> Result<Table> {
    let elements: u64 = context.pick(2_000_000, 5_000);
    let contender = Contender { kind: ServerKind::Pumice, cores: 1 };
    eprintln!("  cold: a hash and a sorted set of {elements} elements");
    let Turn { server, dir, .. } = Turn::start(context, contender, 0, 512 << 20)?;
    fill(&server, elements)?;
    server.stop()?;
    let server = contender.start(context, &dir, 64 << 20)?;
    usage::drop_caches();
    let mut table = Table::new(
        &format!("Elements of one key on flash: {elements} of a hash and of a sorted set, 64 MiB of memory"),
        &[
            "command",
            "deep",
            "ops/s",
            "low–high",
            "CPU s/M",
            "flash reads each",
            "p99",
            "fio, 50 deep",
            "share",
        ],
    );
    let mut job = limit(Pattern::RandomRead, 4 << 10, 50, context.pick(2.0, 0.2));
    // Only the part of the file that was written: the rest is a hole.
    job.span_bytes = usage::disk_bytes(&dir) / (1 << 20) * (1 << 20);
    let (mut runs, mut fio) = (vec![(Rounds::default(), 0); COLD.len() * DEPTHS.len()], Rounds::default());
    let requests = context.pick(20_000, 500);
    let mut seeds = Seeds::default();
    for _ in 0..rounds {
        fio.0.push(run_limit("random reads of 4 KiB", &job, &dir.join("drive0"))?);
        for (at, (rounds, reads)) in runs.iter_mut().enumerate() {
            let (command, depth) = (COLD[at / DEPTHS.len()], DEPTHS[at % DEPTHS.len()]);
            let before = flash_reads(&server)?;
            rounds.0.push(measure(&server, command, depth, elements, requests, &mut seeds)?);
            *reads += flash_reads(&server)? - before;
        }
    }
    for (at, (ours, reads)) in runs.iter().enumerate() {
        let (command, depth) = (COLD[at / DEPTHS.len()], DEPTHS[at % DEPTHS.len()]);
        table.row(vec![
            command.into(),
            depth.to_string(),
            count(ours.median().ops_per_second()),
            ours.spread(),
            format!("{:.1}", ours.median().cpu_per_million()),
            format!("{:.2}", *reads as f64 / (requests * rounds as u64) as f64),
            micros(ours.median().p99_us),
            count(fio.median().ops_per_second()),
            percent(paired(ours, &fio, PhaseResult::ops_per_second).0),
        ]);
        raw.insert(
            format!("cold {command}, {depth} deep"),
            serde_json::json!({ "pumice": ours, "reads": reads }),
        );
    }
    raw.insert("cold fio".into(), serde_json::to_value(&fio)?);
    table.note("fio: random reads of 4 KiB, a block of a key table, over the drive's file; it has the machine to itself.");
    Turn { contender, server, dir }.end()?;
    Ok(table)
}

/// Puts `elements` into `hash` and `zset`, by the names that redis-benchmark draws.
fn fill(server: &Server, elements: u64) -> Result<()> {
    let stream = TcpStream::connect(server.addr)?;
    let mut replies = BufReader::new(stream.try_clone()?).lines();
    for from in (0..elements).step_by(FILLED_AT_ONCE as usize) {
        let names = (from..elements.min(from + FILLED_AT_ONCE)).map(|n| format!("element:{n:012}"));
        let (mut hash, mut zset) = ("HSET hash".to_string(), "ZADD zset".to_string());
        for (at, name) in names.enumerate() {
            hash += &format!(" {name} 0123456789abcdef0123456789abcdef");
            zset += &format!(" {at} {name}");
        }
        (&stream).write_all(format!("{hash}\r\n{zset}\r\n").as_bytes())?;
        for _ in 0..2 {
            let reply = replies.next().ok_or("closed while it was filled")??;
            if !reply.starts_with(':') {
                return Err(format!("while it was filled: {reply}").into());
            }
        }
    }
    Ok(())
}

/// Reads of flash that the server has made.
fn flash_reads(server: &Server) -> Result<u64> {
    let info = server.ask("INFO pumice")?;
    let line = info.lines().find_map(|line| line.strip_prefix("flash_reads:"));
    Ok(line.ok_or("INFO has no flash_reads")?.trim().parse()?)
}
