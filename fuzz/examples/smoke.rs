//! The seeded runner from the command line: `cargo run --release -p pumice-fuzz --example smoke --
//! [--target NAME] [--seed N] [--first N] [--runs N]`; `--seeds DIR` writes the well-formed inputs instead, as libFuzzer
//! wants them (DIR/NAME/…).

use std::process::ExitCode;

use pumice_fuzz::runner::{self, Watching};
use pumice_fuzz::targets;

#[global_allocator]
static ALLOCATOR: Watching = Watching;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (mut only, mut seed, mut first, mut runs) = (None, 1, 0, 100_000);
    while let Some(name) = arguments.next() {
        let value = arguments.next().unwrap_or_default();
        let number = value.parse::<u64>();
        match (name.as_str(), number) {
            ("--target", _) if runner::find(&value).is_some() => only = Some(value),
            ("--seeds", _) if !value.is_empty() => return write_seeds(value.as_ref()),
            ("--seed", Ok(n)) => seed = n,
            ("--first", Ok(n)) => first = n,
            ("--runs", Ok(n)) => runs = n,
            _ => {
                let names: Vec<&str> = targets::ALL.iter().map(|t| t.name).collect();
                eprintln!("unknown: {name} {value}; targets: {}", names.join(", "));
                return ExitCode::from(2);
            }
        }
    }
    let mut code = ExitCode::SUCCESS;
    for target in targets::ALL.iter().filter(|t| only.as_ref().is_none_or(|name| name == t.name)) {
        match runner::run(target, seed, first, runs) {
            Ok(()) => println!("{}: {runs} runs of seed {seed}", target.name),
            Err(failure) => {
                eprintln!("{failure}");
                code = ExitCode::FAILURE;
            }
        }
    }
    code
}

fn write_seeds(dir: &std::path::Path) -> ExitCode {
    for target in targets::ALL {
        let folder = dir.join(target.name);
        let files = (target.seeds)().into_iter().enumerate();
        let written = std::fs::create_dir_all(&folder).and_then(|()| {
            files
                .into_iter()
                .try_for_each(|(i, bytes)| std::fs::write(folder.join(format!("seed-{i}")), bytes))
        });
        if let Err(error) = written {
            eprintln!("{}: {error}", folder.display());
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}
