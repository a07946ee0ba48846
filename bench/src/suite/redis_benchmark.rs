//! redis-benchmark, the tool that users reach for first, on the same servers.

use std::collections::BTreeSet;
use std::process::{Child, Command, Stdio};
use std::time::SystemTime;

use super::network::options;
use super::{Context, remove};
use crate::Result;
use crate::net::server::{Server, ServerKind};
use crate::phase::ratio;
use crate::report::{Report, Table, count, size, times};
use crate::usage;

/// One line of redis-benchmark's CSV.
#[derive(Clone, Debug, serde::Serialize)]
struct Line {
    server: String,
    test: String,
    value_bytes: usize,
    connections: usize,
    depth: usize,
    ops_per_second: f64,
    ops_per_cpu_second: f64,
    p50_ms: f64,
    p99_ms: f64,
    max_ms: f64,
}

pub fn run(context: &Context, report: &mut Report) -> Result<()> {
    let mut lines: Vec<Line> = Vec::new();
    let mut notes = Vec::new();
    for kind in
        [ServerKind::Pumice, ServerKind::RedisMemory, ServerKind::RedisEverysec, ServerKind::RedisAlways]
    {
        if kind == ServerKind::Pumice && context.pumice.is_none() {
            notes.push("**Pumice was not measured**: no `pumice` binary".to_string());
            continue;
        }
        for value_bytes in context.pick(vec![100, 1 << 10, 8 << 10], vec![1 << 10]) {
            let dir = context.fresh_dir("redis-benchmark")?;
            let server = Server::start(kind, &dir, &options(context, 512 << 20))?;
            eprintln!("  {kind}, values of {}", size(value_bytes as u64));
            for (connections, depth) in
                context.pick(vec![(50, 1), (50, 16), (500, 1), (500, 16)], vec![(50, 16)])
            {
                for test in ["set", "get"] {
                    let requests = requests(context, kind, test, value_bytes, depth);
                    lines.push(one(&server, kind, test, value_bytes, connections, depth, requests)?);
                }
            }
            server.stop()?;
            remove(&dir);
        }
    }
    let mut table = Table::new(
        "redis-benchmark, 20,000 random keys",
        &[
            "server",
            "test",
            "value",
            "connections",
            "deep",
            "ops/s",
            "per CPU s",
            "Pumice's ops/s",
            "per CPU s ×",
            "p50",
            "p99",
            "max",
        ],
    );
    for l in &lines {
        let ours = lines.iter().find(|o| {
            o.server == ServerKind::Pumice.to_string()
                && (&o.test, o.value_bytes, o.connections, o.depth)
                    == (&l.test, l.value_bytes, l.connections, l.depth)
        });
        let over = |f: fn(&Line) -> f64| times(ours.map_or(0.0, |o| ratio(f(o), f(l))));
        table.row(vec![
            l.server.clone(),
            l.test.to_uppercase(),
            size(l.value_bytes as u64),
            l.connections.to_string(),
            l.depth.to_string(),
            count(l.ops_per_second),
            count(l.ops_per_cpu_second),
            over(|x| x.ops_per_second),
            over(|x| x.ops_per_cpu_second),
            format!("{:.2} ms", l.p50_ms),
            format!("{:.2} ms", l.p99_ms),
            format!("{:.1} ms", l.max_ms),
        ]);
    }
    table.note("`redis-benchmark -t TEST -n N -r 20000 -d SIZE -c CONNECTIONS -P DEEP --csv`; the server's CPU from /proc. \"×\" is Pumice over that server.");
    table.notes.extend(notes);
    report.raw = serde_json::to_value(&lines)?;
    report.tables.push(table);
    Ok(())
}

/// About three seconds' worth.
fn requests(context: &Context, kind: ServerKind, test: &str, value_bytes: usize, depth: usize) -> u64 {
    if context.quick {
        return 2_000;
    }
    let slow = test == "set" && kind != ServerKind::RedisMemory;
    match (depth, slow, value_bytes >= 8 << 10) {
        (1, false, _) => 200_000,
        (1, true, false) => 120_000,
        (1, true, true) => 40_000,
        (_, false, false) => 1_500_000,
        (_, false, true) | (_, true, false) => 500_000,
        (_, true, true) => 80_000,
    }
}

fn one(
    server: &Server,
    kind: ServerKind,
    test: &str,
    value_bytes: usize,
    connections: usize,
    depth: usize,
    requests: u64,
) -> Result<Line> {
    let [bytes, clients, deep] = [value_bytes, connections, depth].map(|n| n.to_string());
    let words = ["-t", test, "-r", "20000", "-d", &bytes, "-c", &clients, "-P", &deep];
    let (cells, cpu) = ask(server, requests, &words, &mut Seeds::default())?;
    Ok(Line {
        server: kind.to_string(),
        test: test.into(),
        value_bytes,
        connections,
        depth,
        ops_per_second: cells[0],
        ops_per_cpu_second: ratio(requests as f64, cpu),
        p50_ms: cells[3],
        p99_ms: cells[5],
        max_ms: cells[6],
    })
}

/// What redis-benchmark drew by so far. It seeds itself with the second and its process id, and would draw the same again where both
/// have risen by as much.
#[derive(Default)]
pub(super) struct Seeds(BTreeSet<u64>);

impl Seeds {
    /// Starts it with a seed that it has not had.
    fn start(&mut self, command: &mut Command) -> Result<Child> {
        loop {
            let mut child = command.spawn()?;
            let second = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
            if self.0.insert(second ^ u64::from(child.id())) {
                return Ok(child);
            }
            child.kill()?;
            child.wait()?;
        }
    }
}

/// Runs redis-benchmark for `requests` with these words besides: operations a second, the latencies that its CSV has behind them (mean,
/// least, p50, p95, p99 and longest, in milliseconds), and the server's CPU seconds.
pub(super) fn ask(
    server: &Server,
    requests: u64,
    words: &[&str],
    seeds: &mut Seeds,
) -> Result<([f64; 7], f64)> {
    let before = usage::process_cpu_seconds(server.pid());
    let mut command = Command::new("redis-benchmark");
    command.args(["-p", &server.addr.port().to_string(), "-n", &requests.to_string(), "--csv"]);
    command.args(words).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = seeds.start(&mut command)?.wait_with_output()?;
    let cpu = usage::process_cpu_seconds(server.pid()) - before;
    let text = String::from_utf8_lossy(&output.stdout);
    // "test","rps","avg","min","p50","p95","p99","max"
    let figures = text.lines().last().and_then(|line| {
        let cells = line.rsplit(',').take(7).map(|cell| cell.trim_matches('"').parse().ok());
        let mut cells: [f64; 7] = cells.collect::<Option<Vec<f64>>>()?.try_into().ok()?;
        cells.reverse();
        Some(cells)
    });
    let figures = figures
        .ok_or_else(|| format!("redis-benchmark: {} {text}", String::from_utf8_lossy(&output.stderr)))?;
    Ok((figures, cpu))
}
