//! `pumice`: one binary that serves drives, and makes, inspects, checks and measures them. It composes the
//! layers and holds no logic of theirs; each subcommand has a file here.

mod bench;
mod check;
mod cli;
mod config;
mod control;
mod drives;
mod exit;
mod format;
mod health;
mod http;
mod info;
mod logging;
mod metrics;
mod process;
mod progress;
mod raw;
mod serve;
mod sim;
mod space;
mod wire;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use crate::cli::{Cli, Command};

/// The system's allocator gives memory back late and shares locks between cores.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = Cli::parse();
    exit::finish(match cli.command {
        Command::Serve(args) => serve::run(*args),
        Command::Format(args) => format::run(args),
        Command::Info(args) => info::run(args),
        Command::Check(args) => check::run(args),
        Command::Bench(args) => bench::run(*args),
        Command::Sim(command) => sim::run(command),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "pumice", &mut std::io::stdout());
            Ok(())
        }
    })
}
