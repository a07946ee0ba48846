//! Tables: printed as they come, kept as markdown and JSON.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::Result;

/// One table of a report.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Table {
    /// What it shows.
    pub title: String,
    /// Column heads.
    pub columns: Vec<String>,
    /// Rows of as many cells.
    pub rows: Vec<Vec<String>>,
    /// What a reader must know to read it.
    pub notes: Vec<String>,
}

impl Table {
    /// An empty table.
    pub fn new(title: &str, columns: &[&str]) -> Table {
        let columns = columns.iter().map(|c| c.to_string()).collect();
        Table { title: title.into(), columns, ..Table::default() }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.columns.len(), "a row of {:?} has the wrong width", self.title);
        self.rows.push(cells);
    }

    /// Adds a line below the table.
    pub fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// As markdown, columns padded so that it reads well as plain text.
    pub fn markdown(&self) -> String {
        let width = |i: usize| {
            let cells = self.rows.iter().map(|r| r[i].chars().count());
            cells.chain([self.columns[i].chars().count()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let line = |cells: &[String]| {
            let padded = cells.iter().zip(&widths).enumerate().map(|(i, (cell, &w))| {
                // Figures to the right, so that they can be compared; names to the left.
                if i == 0 { format!("{cell:<w$}") } else { format!("{cell:>w$}") }
            });
            format!("| {} |\n", padded.collect::<Vec<_>>().join(" | "))
        };
        let mut out = format!("### {}\n\n", self.title);
        out += &line(&self.columns);
        let rule = widths.iter().enumerate().map(|(i, &w)| match i {
            0 => "-".repeat(w + 2),
            _ => "-".repeat(w + 1) + ":",
        });
        out += &format!("|{}|\n", rule.collect::<Vec<_>>().join("|"));
        for row in &self.rows {
            out += &line(row);
        }
        for note in &self.notes {
            let _ = write!(out, "\n{note}\n");
        }
        out + "\n"
    }
}

/// A suite's whole answer.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// The suite, and the file's name.
    pub name: String,
    /// When it ran.
    pub date: String,
    /// How to run it again.
    pub command: String,
    /// Where it ran, with what.
    pub machine: Vec<String>,
    /// What the suite measures and how.
    pub about: Vec<String>,
    /// The figures for people.
    pub tables: Vec<Table>,
    /// The figures for programs: every worker's and load generator's answer.
    pub raw: serde_json::Value,
}

impl Report {
    /// The whole report as markdown.
    pub fn markdown(&self) -> String {
        let mut out = format!("## {}\n\n{}, `{}`\n\n", self.name, self.date, self.command);
        for line in &self.machine {
            let _ = writeln!(out, "- {line}");
        }
        out.push('\n');
        for line in &self.about {
            let _ = writeln!(out, "{line}\n");
        }
        for table in &self.tables {
            out += &table.markdown();
        }
        out
    }

    /// Keeps the report in `dir` as NAME.md and NAME.json, over an older one.
    pub fn keep(&self, dir: &Path) -> Result<PathBuf> {
        std::fs::create_dir_all(dir)?;
        let path = dir.join(format!("{}.md", self.name));
        std::fs::write(&path, self.markdown())?;
        std::fs::write(dir.join(format!("{}.json", self.name)), serde_json::to_string_pretty(self)? + "\n")?;
        Ok(path)
    }
}

/// 12345678 as 12.3M, 12345 as 12.3k.
pub fn count(n: f64) -> String {
    match n {
        n if n >= 1e7 => format!("{:.1}M", n / 1e6),
        n if n >= 1e6 => format!("{:.2}M", n / 1e6),
        n if n >= 1e4 => format!("{:.1}k", n / 1e3),
        n if n >= 1e3 => format!("{:.2}k", n / 1e3),
        n if n >= 100.0 => format!("{n:.0}"),
        n => format!("{n:.1}"),
    }
}

/// Bytes as MB or GB (powers of ten, as drives and networks are sold).
pub fn bytes(n: f64) -> String {
    match n {
        n if n >= 1e9 => format!("{:.2} GB", n / 1e9),
        n if n >= 1e6 => format!("{:.0} MB", n / 1e6),
        n => format!("{:.0} kB", n / 1e3),
    }
}

/// A power-of-two size as it is asked for: 100 B, 8 KiB, 1 MiB.
pub fn size(n: u64) -> String {
    match n {
        n if n >= 1 << 30 && n % (1 << 30) == 0 => format!("{} GiB", n >> 30),
        n if n >= 1 << 20 && n % (1 << 20) == 0 => format!("{} MiB", n >> 20),
        n if n >= 1 << 10 && n % (1 << 10) == 0 => format!("{} KiB", n >> 10),
        n => format!("{n} B"),
    }
}

/// Microseconds in the unit that reads best.
pub fn micros(us: f64) -> String {
    match us {
        us if us >= 1e6 => format!("{:.2} s", us / 1e6),
        us if us >= 1e4 => format!("{:.0} ms", us / 1e3),
        us if us >= 1e3 => format!("{:.1} ms", us / 1e3),
        us => format!("{us:.0} µs"),
    }
}

/// A ratio: 1.84×.
pub fn times(r: f64) -> String {
    if r > 0.0 { format!("{r:.2}×") } else { "–".into() }
}

/// A share: 93%.
pub fn percent(r: f64) -> String {
    if r > 0.0 { format!("{:.0}%", r * 100.0) } else { "–".into() }
}
