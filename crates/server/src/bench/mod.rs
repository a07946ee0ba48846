//! `pumice bench`.
mod keys;
mod local;
mod network;
mod replies;
mod report;
pub mod space;
pub mod workload;

use pumice_reactor::Addr;
use serde_json::json;

use crate::cli::BenchArgs;
use crate::config;
use crate::exit::{Outcome, Stop};
use keys::Values;
use report::Row;
use workload::Workload;

/// Runs the command.
pub fn run(args: BenchArgs) -> Outcome {
    let chosen = Workload::parse(&args.workloads).map_err(Stop::because)?;
    if args.keys == 0 || args.depth == 0 || args.connections == 0 || args.pipeline == 0 || args.cores == 0 {
        return Err(Stop::because(
            "--keys, --depth, --connections, --pipeline and --cores must be at least 1",
        ));
    }
    let value_len = usize::try_from(args.value_size).ok().filter(|len| (1..=512 << 20).contains(len));
    let value_len = value_len.ok_or_else(|| Stop::because("--value-size must be from 1 to 512MiB"))?;
    let values = Values::new(value_len, args.seed);
    let mut rows = Vec::new();
    let mut show = |row: Row| {
        if !args.json {
            // Not before there is a row: what cannot run prints no table.
            if rows.is_empty() {
                println!("{}", Row::headings());
            }
            println!("{}", row.line());
        }
        rows.push(row);
    };
    match &args.redis {
        Some(addr) => through_network(&args, addr, &chosen, &values, &mut show)?,
        None => local::run(&args, &chosen, &values, &mut show)?,
    }
    let errors: u64 = rows.iter().map(|row| row.errors).sum();
    if args.json {
        println!("{}", json!({ "workloads": rows }));
    }
    if errors > 0 { Err(Stop::No(format!("{errors} operations failed"))) } else { Ok(()) }
}

/// Operations of `workload`: as asked, else one per key.
fn ops_of(args: &BenchArgs, workload: &Workload) -> u64 {
    match (args.ops, args.seconds) {
        (Some(ops), _) if !workload.loads() => ops,
        (None, Some(_)) if !workload.loads() => u64::MAX,
        _ => args.keys,
    }
}

fn through_network(
    args: &BenchArgs,
    addr: &str,
    chosen: &[Workload],
    values: &Values,
    show: &mut dyn FnMut(Row),
) -> Outcome {
    let addr: Addr = addr.parse().map_err(|e| Stop::doing(format!("--redis {addr}"), e))?;
    let mut loaded_rows = false;
    for workload in chosen {
        let mut plan = network::Plan {
            addr: addr.clone(),
            password: config::password(args.password.clone()),
            connections: args.connections,
            pipeline: args.pipeline,
            cores: args.cores,
            keys: args.keys,
            ops: ops_of(args, workload),
            seconds: args.seconds.filter(|_| !workload.loads()),
            values: values.clone(),
            distribution: args.distribution,
            seed: args.seed,
        };
        if workload.is_ycsb && !loaded_rows && !args.reuse {
            loaded_rows = true;
            let mut load = plan.clone();
            (load.ops, load.seconds) = (args.keys, None);
            measure(&load, &workload::YCSB_LOAD, show)?;
        }
        plan.ops = plan.ops.max(1);
        measure(&plan, workload, show)?;
    }
    Ok(())
}

fn measure(plan: &network::Plan, workload: &Workload, show: &mut dyn FnMut(Row)) -> Outcome {
    let before = network::cost(&plan.addr, plan.password.as_deref())?;
    let (tally, seconds) = network::run(plan, workload)?;
    let after = network::cost(&plan.addr, plan.password.as_deref())?;
    if let Some(error) = &tally.first_error {
        crate::exit::say(format_args!("pumice: {}: {error}", workload.name));
    }
    show(Row::new(workload.name, &tally, seconds, after.since(before)));
    Ok(())
}
