//! Benchmarks of the crates themselves (`cargo bench`), run here so that their figures stand with the rest: the driver seam
//! against a bare ring and what waking another core costs; addresses, checksums and BCH of raw flash.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

use super::Context;
use crate::Result;
use crate::report::{Report, Table};

pub fn seam(context: &Context, report: &mut Report) -> Result<()> {
    let file = context.fresh_dir("seam")?.join("file");
    let mut raw = serde_json::Map::new();
    let arguments = [OsStr::new("--file"), file.as_os_str()];
    for (bench, title, arguments) in [
        ("seam", "Driver seam against a bare ring, in turns", &arguments[..]),
        ("hop", "Waking another core", &[]),
    ] {
        let (text, failed) = run(context, "pumice-reactor", bench, arguments)?;
        let mut table = Table::new(title, &["the reactor's own report"]);
        for line in text.lines().filter(|l| !l.trim().is_empty()) {
            table.row(vec![format!("`{}`", line.trim())]);
        }
        table.notes.extend(failed);
        raw.insert(bench.into(), text.into());
        report.tables.push(table);
    }
    report.raw = raw.into();
    Ok(())
}

pub fn translation(context: &Context, report: &mut Report) -> Result<()> {
    let (text, failed) = run(context, "pumice-segment", "translation", &[])?;
    report.tables = tables(&text);
    if let Some(why) = failed {
        report.about.push(why);
    }
    report.raw = text.into();
    Ok(())
}

/// What the benchmark printed, and why it failed if it did.
fn run(
    context: &Context,
    package: &str,
    bench: &str,
    arguments: &[&OsStr],
) -> Result<(String, Option<String>)> {
    let mut command = Command::new("cargo");
    command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."));
    // As a test each case runs once and small.
    let mode: &[&str] = if context.quick { &["test"] } else { &["bench"] };
    command.args(mode).args(["--quiet", "-p", package, "--bench", bench]);
    if !arguments.is_empty() {
        command.arg("--").args(arguments);
    }
    let output = command.output()?;
    let failed = (!output.status.success()).then(|| {
        let error = String::from_utf8_lossy(&output.stderr);
        format!("**it failed**: {}", error.lines().last().unwrap_or("without a word"))
    });
    Ok((String::from_utf8_lossy(&output.stdout).into_owned(), failed))
}

/// The tables in a text of markdown.
pub fn tables(text: &str) -> Vec<Table> {
    let mut tables: Vec<Table> = Vec::new();
    for line in text.lines() {
        if let Some(title) = line.strip_prefix("### ") {
            tables.push(Table { title: title.into(), ..Table::default() });
        } else if let Some(row) = line.strip_prefix('|')
            && let Some(table) = tables.last_mut()
            && !row.starts_with('-')
        {
            let cells = row.trim_end().trim_end_matches('|').split('|').map(|cell| cell.trim().to_string());
            if table.columns.is_empty() {
                table.columns = cells.collect();
            } else {
                table.row(cells.collect());
            }
        }
    }
    tables
}
