//! `pumice sim`: hands over to the simulator and prints what it found.

use std::io::Write;

use pumice_sim::{Report, RunOptions};

use crate::cli::{SimCommand, SimRunArgs};
use crate::exit::{Outcome, Stop};
use crate::progress::Progress;

/// Worlds of numbered cases, of which `--cut` picks one.
const WITH_CUT: &[&str] = &["ftl", "kv-cut", "kv-each", "kv-flip", "node-cut", "redis-cut", "sdf"];
/// Worlds that draw.
const WITH_PLOT: &[&str] = &["sdf"];

/// Runs a simulator command.
pub fn run(command: SimCommand) -> Outcome {
    match command {
        SimCommand::List { json } => {
            list(json);
            Ok(())
        }
        SimCommand::Run(args) => run_world(&args),
    }
}

fn list(json: bool) {
    let worlds = pumice_sim::list();
    if json {
        println!("{}", serde_json::json!({ "worlds": worlds }));
        return;
    }
    for world in worlds {
        println!("{:<24} {}", world.name, world.about);
    }
}

/// A flag that the world would pass over is refused: whoever gives it takes the run for another than it is.
fn refuse_useless(args: &SimRunArgs) -> Outcome {
    let is_world = pumice_sim::list().iter().any(|world| world.name == args.name);
    let flags = [("--cut", args.cut.is_some(), WITH_CUT), ("--plot", args.plot.is_some(), WITH_PLOT)];
    for (flag, is_given, worlds) in flags {
        if is_given && is_world && !worlds.contains(&args.name.as_str()) {
            let worlds = worlds.join(", ");
            return Err(Stop::because(format!(
                "world {} has no use for {flag}; it is for {worlds}",
                args.name
            )));
        }
    }
    Ok(())
}

/// Many seeds may take hours: how far they are is shown, and what fails is told at once if it does not end the run.
fn watched(args: &SimRunArgs, options: &RunOptions) -> Result<Report, Stop> {
    let progress = (args.seeds > 1).then(|| Progress::new("seeds", false));
    let report = pumice_sim::run_watched(&args.name, options, |done, failure| {
        let Some(progress) = &progress else { return };
        if let Some(failure) = failure.filter(|_| args.keep_going) {
            progress.say(&failure.to_string());
        }
        progress.set(done, args.seeds);
    });
    if let Some(progress) = &progress {
        progress.finish();
    }
    report.map_err(Stop::because)
}

fn run_world(args: &SimRunArgs) -> Outcome {
    refuse_useless(args)?;
    if let Some(dir) = &args.plot {
        // Before, not after the minutes that a world may take.
        std::fs::create_dir_all(dir).map_err(|e| Stop::doing(format!("--plot {}", dir.display()), e))?;
    }
    let options = RunOptions {
        seed: args.seed,
        seeds: args.seeds,
        ops: args.ops,
        cut: args.cut,
        stop_at_failure: !args.keep_going,
        plot: args.plot.clone(),
    };
    let report = watched(args, &options)?;
    if args.json {
        println!("{}", serde_json::to_string(&report).map_err(Stop::because)?);
    } else {
        print!("{report}");
    }
    let _ = std::io::stdout().flush();
    if report.passed() { Ok(()) } else { Err(Stop::No(String::new())) }
}
