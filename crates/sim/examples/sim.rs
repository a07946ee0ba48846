//! Runs worlds without the server's command line: `sim NAME [--seed N] [--seeds COUNT] [--ops N] [--cut N] [--plot DIR]`.
//! `pumice sim run` takes the same arguments.

use pumice_sim::{RunOptions, list, run};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let Some(name) = arguments.next() else {
        for world in list() {
            println!("{:<10} {}", world.name, world.about);
        }
        return;
    };
    let mut options = RunOptions { stop_at_failure: true, ..RunOptions::default() };
    while let (Some(flag), Some(value)) = (arguments.next(), arguments.next()) {
        if flag == "--plot" {
            options.plot = Some(value.into());
            continue;
        }
        let Ok(number) = value.parse() else { panic!("{flag} takes a number, not '{value}'") };
        match flag.as_str() {
            "--seed" => options.seed = number,
            "--seeds" => options.seeds = number,
            "--ops" => options.ops = Some(number),
            "--cut" => options.cut = Some(number),
            other => panic!("{other}: --seed, --seeds, --ops, --cut or --plot"),
        }
    }
    match run(&name, &options) {
        Ok(report) => {
            print!("{report}");
            std::process::exit(i32::from(!report.passed()));
        }
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(2);
        }
    }
}
