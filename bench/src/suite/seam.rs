//! The reactor's own benchmarks, run here so that their figures stand with the rest: its driver seam against a bare ring,
//! and what waking another core costs.

use std::path::Path;
use std::process::Command;

use super::Context;
use crate::Result;
use crate::report::{Report, Table};

pub fn run(context: &Context, report: &mut Report) -> Result<()> {
    let file = context.fresh_dir("seam")?.join("file");
    let mut raw = serde_json::Map::new();
    for (bench, title) in
        [("seam", "Driver seam against a bare ring, in turns"), ("hop", "Waking another core")]
    {
        let mut command = Command::new("cargo");
        command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."));
        // As a test each case runs once and small.
        let mode: &[&str] = if context.quick { &["test"] } else { &["bench"] };
        command.args(mode).args(["--quiet", "-p", "pumice-reactor", "--bench", bench]);
        if bench == "seam" {
            command.arg("--").arg("--file").arg(&file);
        }
        let output = command.output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let mut table = Table::new(title, &["the reactor's own report"]);
        for line in text.lines().filter(|l| !l.trim().is_empty()) {
            table.row(vec![format!("`{}`", line.trim())]);
        }
        if !output.status.success() {
            let error = String::from_utf8_lossy(&output.stderr);
            table.note(format!("**it failed**: {}", error.lines().last().unwrap_or("without a word")));
        }
        raw.insert(bench.into(), text.into());
        report.tables.push(table);
    }
    report.raw = raw.into();
    Ok(())
}
