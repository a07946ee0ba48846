//! `pumice`: one binary that serves drives, and makes, inspects, checks and measures them. It composes the
//! layers and holds no logic of theirs; each subcommand has a file here.

mod allocator;
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
mod machine;
mod metrics;
mod notify;
mod process;
mod progress;
mod raw;
mod serve;
mod sim;
mod space;
mod watch;
mod wire;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Cli, Command};

/// Whoever reads our output may have seen enough (`pumice info … | head`): that is no fault of ours to dump a stack for.
fn end_quietly_without_a_reader() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let says = panic.payload().downcast_ref::<String>();
        if says.is_some_and(|says| says.starts_with("failed printing to stdout: Broken pipe")) {
            std::process::exit(2);
        }
        report(panic);
    }));
}

fn main() -> ExitCode {
    end_quietly_without_a_reader();
    pumice_reactor::ignore_file_size_signal();
    let cli = Cli::parse();
    exit::finish(match cli.command {
        Command::Serve(args) => serve::run(*args),
        Command::Format(args) => format::run(args),
        Command::Info(args) => info::run(args),
        Command::Check(args) => check::run(args),
        Command::Bench(args) => bench::run(*args),
        Command::Sim(command) => sim::run(command),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut cli::completed(), "pumice", &mut script);
            print!("{}", String::from_utf8_lossy(&script));
            Ok(())
        }
    })
}
