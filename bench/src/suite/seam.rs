//! The reactor's own benchmark of its driver seam against a bare ring: run here so that the figure stands with the rest.

use std::path::Path;
use std::process::Command;

use super::Context;
use crate::Result;
use crate::report::{Report, Table};

pub fn run(context: &Context, report: &mut Report) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut command = Command::new("cargo");
    command.current_dir(&root).args([
        "run",
        "--release",
        "--quiet",
        "-p",
        "pumice-reactor",
        "--example",
        "seam",
        "--",
    ]);
    command.arg("--dir").arg(&context.dir);
    if context.quick {
        command.arg("--quick");
    }
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut table = Table::new("Driver seam against a bare ring", &["output"]);
    if output.status.success() {
        for line in text.lines() {
            table.row(vec![line.to_string()]);
        }
    } else {
        let error = String::from_utf8_lossy(&output.stderr);
        table.note(format!("**not run**: {}", error.lines().last().unwrap_or("no such benchmark")));
    }
    report.raw = serde_json::json!({ "output": text });
    report.tables.push(table);
    Ok(())
}
