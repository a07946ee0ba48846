//! `pumice-compare`: see `bench/README.md`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use pumice_compare::keys::Distribution;
use pumice_compare::net::load::{self, LoadOp, LoadSpec};
use pumice_compare::phase::{EngineKind, WorkerSpec};
use pumice_compare::suite::{Context, SUITES};
use pumice_compare::{Result, bound, worker};

/// As the server has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
#[command(version, about = "Pumice beside its peers and the device's own limit")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the suites, print their tables, keep them
    Run {
        /// Tiny data and short phases: shows that everything runs; nothing is kept
        #[arg(long)]
        quick: bool,
        /// Phases that end by time take a quarter of it; data as large as ever
        #[arg(long, conflicts_with = "quick")]
        brief: bool,
        /// Only these suites
        #[arg(long = "only", value_name = "NAME")]
        only: Vec<String>,
        /// Only these stores, where a suite has several
        #[arg(long = "engine", value_enum)]
        engines: Vec<EngineKind>,
        /// Only these value sizes, in bytes (suite `sizes`)
        #[arg(long = "value", value_name = "BYTES")]
        values: Vec<usize>,
        /// Where the data goes: a folder on the disk to be measured
        #[arg(long, default_value = "bench-data")]
        dir: PathBuf,
        /// Where the reports are kept
        #[arg(long, default_value = "results")]
        keep: PathBuf,
        /// The pumice binary
        #[arg(long)]
        pumice: Option<PathBuf>,
    },
    /// List the suites
    List,
    /// The greedy bound of write amplification for a live share
    Bound {
        /// Live share of the raw space, for example 0.7
        fill: f64,
    },
    /// The load generator alone, against any Redis-protocol server
    Load {
        /// host:port
        addr: SocketAddr,
        /// What to send
        #[arg(long, value_enum, default_value = "get")]
        op: LoadOp,
        /// Connections
        #[arg(long, default_value_t = 50)]
        connections: usize,
        /// Commands in flight on each
        #[arg(long, default_value_t = 1)]
        depth: usize,
        /// Client threads
        #[arg(long, default_value_t = 1)]
        threads: usize,
        /// Keys
        #[arg(long, default_value_t = 20_000)]
        keys: u64,
        /// Bytes of each value
        #[arg(long, default_value_t = 1024)]
        value_bytes: usize,
        /// Zipfian keys instead of uniform ones
        #[arg(long)]
        zipfian: bool,
        /// How long
        #[arg(long, default_value_t = 5.0)]
        seconds: f64,
        /// The server's process, to count its CPU
        #[arg(long)]
        pid: Option<u32>,
    },
    /// One store, its phases in order (the suites start these)
    #[command(hide = true)]
    Worker {
        /// A WorkerSpec as JSON
        spec: String,
    },
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

fn run(command: Command) -> Result<bool> {
    match command {
        Command::Run { quick, brief, only, engines, values, dir, keep, pumice } => {
            // A folder of our own inside the caller's: it is emptied and removed.
            let dir = dir.join("pumice-bench-scratch");
            let brevity = if brief { 0.25 } else { 1.0 };
            let context = Context { quick, brevity, was_cut: false.into(), dir, pumice, engines, values };
            return run_suites(&context, &only, &keep);
        }
        Command::List => SUITES.iter().for_each(|s| println!("{:16} {}", s.name, s.about)),
        Command::Bound { fill } => println!("{:.4}", bound::greedy_limit(fill)),
        Command::Load { addr, op, connections, depth, threads, keys, value_bytes, zipfian, seconds, pid } => {
            let distribution = if zipfian { Distribution::Zipfian } else { Distribution::Uniform };
            let ops = u64::MAX;
            let spec = LoadSpec {
                addr,
                op,
                connections,
                depth,
                threads,
                keys,
                value_bytes,
                distribution,
                seconds,
                ops,
            };
            let result = load::run(&spec, pid, &std::env::current_dir()?)?;
            println!("{}", serde_json::to_string_pretty(&result)?);
            return Ok(result.error.is_none());
        }
        Command::Worker { spec } => {
            // What the store warns of belongs beside the figures.
            tracing_subscriber::fmt().with_writer(std::io::stderr).init();
            let spec: WorkerSpec = serde_json::from_str(&spec)?;
            println!("{}", serde_json::to_string(&worker::main(&spec))?);
        }
    }
    Ok(true)
}

/// Runs the chosen suites; one that fails does not stop the others, but the answer is then false.
fn run_suites(context: &Context, only: &[String], keep: &std::path::Path) -> Result<bool> {
    if let Some(unknown) = only.iter().find(|name| !SUITES.iter().any(|s| s.name == **name)) {
        return Err(format!("no suite is called {unknown}; `list` shows them").into());
    }
    let mut all_ran = true;
    for suite in SUITES.iter().filter(|s| only.is_empty() || only.iter().any(|o| o == s.name)) {
        eprintln!("{}: {}", suite.name, suite.about);
        match context.report(suite) {
            Ok(report) => {
                println!("{}", report.markdown());
                if !context.quick {
                    println!("kept in {}\n", report.keep(keep)?.display());
                }
            }
            Err(error) => {
                eprintln!("{} failed: {error}", suite.name);
                all_ran = false;
            }
        }
    }
    pumice_compare::suite::remove(&context.dir);
    Ok(all_ran)
}
