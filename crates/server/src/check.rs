//! `pumice check`: reads and verifies everything on a drive. Exit 0 clean, 1 damaged, 2 could not run.

use std::cell::Cell;

use pumice_base::size::format_size;
use pumice_flash::DeviceSpec;
use pumice_kv::{CheckReport, Opened, Store, StoreOptions};
use pumice_node::StoredMember;
use pumice_redis::keyspace;

use crate::cli::CheckArgs;
use crate::drives;
use crate::exit::{Outcome, Stop};
use crate::progress::Progress;
use crate::raw;

/// Problems printed before the rest is only counted (`--json` has more).
const PROBLEMS_SHOWN: usize = 50;

/// Runs the command.
pub fn run(args: CheckArgs) -> Outcome {
    let spec = drives::parse(&args.device)?;
    let opening = Progress::new("opening", true);
    let checking = Progress::new("checking", true);
    let is_open = Cell::new(false);
    let report = drives::on_a_core(async {
        let device = drives::open_unserved(&spec).await?;
        let shown =
            |done, total| if is_open.get() { checking.set(done, total) } else { opening.set(done, total) };
        if let Some(opened) = raw::open(&device, &shown).await? {
            is_open.set(true);
            opening.finish();
            let checked = raw::check(&opened, &shown).await;
            let (segments, value_bytes, problems) =
                checked.map_err(|e| Stop::doing(format!("checking {}", args.device), e))?;
            return Ok(CheckReport { segments, value_bytes, problems, ..CheckReport::default() });
        }
        let opened = Store::open(device, StoreOptions::default(), &shown).await;
        let Opened { store, damage, .. } = match opened {
            Ok(opened) => opened,
            Err(error) => return damaged_beyond_opening(&spec, &error),
        };
        is_open.set(true);
        opening.finish();
        let member = StoredMember::read(&store, &args.device).await.ok().and_then(|stored| stored.member);
        keyspace::call_keys_by_name(&store, member.is_some_and(|member| member.index == 0)).await;
        let mut report =
            store.check(&shown).await.map_err(|e| Stop::doing(format!("checking {}", args.device), e))?;
        for damage in damage {
            let line = damage.to_string();
            if !report.problems.contains(&line) {
                report.problems.push(line);
            }
        }
        // What does not read is in the report already.
        let _ = keyspace::resolve(&store, &mut report.problems).await;
        Ok(report)
    });
    opening.finish();
    checking.finish();
    let report = report?;
    print(&args, &report);
    if report.is_clean() {
        return Ok(());
    }
    let keys = match report.unreadable_keys {
        0 => String::new(),
        keys => format!(", {keys} of them entries (keys and elements) that cannot be read"),
    };
    Err(Stop::No(format!("{}: {} problem(s) found{keys}", args.device, report.problem_count())))
}

/// A drive whose metadata do not verify is damaged; one that is no drive could not be checked.
fn damaged_beyond_opening(spec: &DeviceSpec, error: &pumice_kv::OpenError) -> Result<CheckReport, Stop> {
    use pumice_kv::OpenError;
    use pumice_segment::HeapError;
    match error {
        OpenError::Heap(HeapError::Damaged(_)) | OpenError::Manifest(_) | OpenError::Replay { .. } => {
            Ok(CheckReport { problems: vec![format!("cannot be opened: {error}")], ..CheckReport::default() })
        }
        OpenError::Heap(_) => {
            Err(drives::explain_unreadable(std::iter::once(spec), &format!("drive {spec}: {error}")))
        }
    }
}

fn print(args: &CheckArgs, report: &CheckReport) {
    if args.json {
        println!(
            "{}",
            serde_json::json!({
                "device": args.device, "clean": report.is_clean(), "segments": report.segments,
                "records": report.records, "tables": report.tables, "entries": report.keys,
                "value_bytes": report.value_bytes, "unreadable_entries": report.unreadable_keys,
                "problems": report.problems, "more_problems": report.more_problems,
            })
        );
        return;
    }
    println!(
        "{}: {} segments, {} records and {} key tables read; {} entries (keys and elements) with {} of values",
        args.device,
        report.segments,
        report.records,
        report.tables,
        report.keys,
        format_size(report.value_bytes)
    );
    for problem in report.problems.iter().take(PROBLEMS_SHOWN) {
        println!("damaged: {problem}");
    }
    let more = report.problem_count().saturating_sub(PROBLEMS_SHOWN as u64);
    if more > 0 {
        let listed = if report.more_problems == 0 { "all" } else { "some thousand" };
        println!("… and {more} more (--json lists {listed})");
    }
    if report.is_clean() {
        println!("clean");
    }
}
