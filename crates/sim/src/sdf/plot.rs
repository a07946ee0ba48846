//! Figures as SVG for people and CSV for programs, and the page that shows them with their rows.

use std::fmt::Write;
use std::path::Path;
use std::{fs, io};

use super::NOTES;
use crate::report::{Row, significant};

/// One line of a figure.
pub(super) struct Series {
    pub name: String,
    pub points: Vec<(f64, f64)>,
    /// What was published, or is only there to compare: drawn thin.
    pub is_reference: bool,
}

impl Series {
    pub(super) fn new(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.into(), points, is_reference: false }
    }

    pub(super) fn reference(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.into(), points, is_reference: true }
    }
}

/// A figure with lines.
pub(super) struct Figure {
    /// Its files' name, without an ending.
    pub file: &'static str,
    pub title: &'static str,
    pub x: &'static str,
    pub y: &'static str,
    pub log_x: bool,
    pub series: Vec<Series>,
}

/// Figures of one kind, with their rows and what has to be known to read them.
pub(super) struct Section {
    pub title: &'static str,
    pub figures: Vec<Figure>,
    pub rows: Vec<Row>,
    pub notes: Vec<String>,
}

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 56.0;
/// Heights of a line of the legend and of one of the text below.
const LEGEND_LINE: f64 = 17.0;
const NOTE_LINE: f64 = 13.0;
const LEGEND_COLUMNS: usize = 3;
/// Characters of a line of the text below the figure.
const NOTE_CHARS: usize = 128;
const COLOURS: [&str; 8] =
    ["#1b6ca8", "#c8553d", "#3a7d44", "#8e5572", "#b8860b", "#444444", "#20a4a0", "#d14f9d"];

/// Writes every figure and the page `sdf.md`; how many files.
pub(super) fn write_all(dir: &Path, seed: u64, sections: &[Section]) -> io::Result<u64> {
    fs::create_dir_all(dir)?;
    let mut written = 1;
    for section in sections {
        for figure in &section.figures {
            fs::write(dir.join(format!("{}.csv", figure.file)), figure.csv())?;
            fs::write(dir.join(format!("{}.svg", figure.file)), figure.svg(&section.notes))?;
            written += 2;
        }
    }
    fs::write(dir.join("sdf.md"), page(seed, sections))?;
    Ok(written)
}

fn page(seed: u64, sections: &[Section]) -> String {
    let mut out = format!(
        "# SDF's figures, redrawn\n\nWritten by `pumice sim run sdf --seed {seed} --plot DIR`. Of every figure holds:\n\n"
    );
    for note in NOTES {
        let _ = writeln!(out, "- {note}");
    }
    for section in sections {
        let _ = writeln!(out, "\n## {}\n", section.title);
        for figure in &section.figures {
            let _ = writeln!(out, "![{}]({}.svg)\n", figure.title, figure.file);
        }
        for note in &section.notes {
            let _ = writeln!(out, "- {note}");
        }
        let _ = writeln!(
            out,
            "\n| | measured | published | unit | within band |\n|---|---:|---:|---|---|\n{}",
            section.rows.iter().map(table_row).collect::<Vec<_>>().join("\n")
        );
    }
    out
}

fn table_row(row: &Row) -> String {
    let published = row.published.map_or("-".to_string(), significant);
    let band = match (row.within_band, row.low, row.high) {
        (Some(within), Some(low), Some(high)) => {
            let answer = if within { "yes" } else { "**no**" };
            format!("{answer} ({} to {})", significant(low), significant(high))
        }
        _ => "-".to_string(),
    };
    format!("| {} | {} | {published} | {} | {band} |", row.name, row.measured_text(), row.unit)
}

/// Text cut into lines between words.
fn lines(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last().map_or(0, |line| line.chars().count());
        if line > 0 && line + 1 + word.chars().count() > NOTE_CHARS {
            lines.push(format!("  {word}"));
        } else if let Some(last) = lines.last_mut() {
            last.push_str(if line > 0 { " " } else { "" });
            last.push_str(word);
        }
    }
    lines
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

impl Figure {
    fn csv(&self) -> String {
        let mut out = format!("series,{},{}\n", self.x.replace(',', ""), self.y.replace(',', ""));
        for series in &self.series {
            for (x, y) in &series.points {
                let _ = writeln!(out, "{},{x:.4},{y:.4}", series.name.replace(',', ""));
            }
        }
        out
    }

    fn svg(&self, notes: &[String]) -> String {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let scale = |x: f64| if self.log_x { x.max(1e-6).log10() } else { x };
        let (mut x_min, mut x_max) = (f64::MAX, f64::MIN);
        for (x, _) in points() {
            (x_min, x_max) = (x_min.min(scale(*x)), x_max.max(scale(*x)));
        }
        if self.log_x {
            (x_min, x_max) = (x_min.floor(), x_max.ceil());
        } else {
            x_min = 0.0;
        }
        let y_max = nice(points().map(|(_, y)| *y).fold(0.0, f64::max));
        let width = (x_max - x_min).max(1e-9);
        let at_x = |x: f64| LEFT + (scale(x) - x_min) / width * (WIDTH - LEFT - RIGHT);
        let at_y = |y: f64| HEIGHT - BOTTOM - y / y_max * (HEIGHT - TOP - BOTTOM);
        let legend = HEIGHT + 6.0;
        let below = legend + self.series.len().div_ceil(LEGEND_COLUMNS) as f64 * LEGEND_LINE;
        let text: Vec<String> =
            NOTES.iter().copied().chain(notes.iter().map(String::as_str)).flat_map(lines).collect();
        let full = below + 6.0 + text.len() as f64 * NOTE_LINE;
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {full}\" font-family=\"sans-serif\" \
             font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"{LEFT}\" y=\"22\" \
             font-size=\"14\">{}</text>\n",
            escaped(self.title)
        );
        for step in 0..=4 {
            let y = y_max * f64::from(step) / 4.0;
            let (line, right) = (at_y(y), WIDTH - RIGHT);
            let _ = writeln!(
                out,
                "<path d=\"M{LEFT} {line:.1}H{right}\" stroke=\"#dddddd\"/><text x=\"{}\" y=\"{:.1}\" \
                 text-anchor=\"end\">{y}</text>",
                LEFT - 6.0,
                line + 4.0
            );
        }
        let ticks: Vec<f64> = if self.log_x {
            (x_min as i32..=x_max as i32).map(|power| 10f64.powi(power)).collect()
        } else {
            let x_max = nice(x_max).min(x_max);
            (0..=4).map(|step| x_max * f64::from(step) / 4.0).collect()
        };
        for x in ticks {
            let (place, bottom) = (at_x(x), HEIGHT - BOTTOM);
            let label = if self.log_x { format!("{x}") } else { significant(x) };
            let _ = writeln!(
                out,
                "<path d=\"M{place:.1} {bottom}v5\" stroke=\"black\"/><text x=\"{place:.1}\" y=\"{}\" \
                 text-anchor=\"middle\">{label}</text>",
                bottom + 18.0
            );
        }
        let _ = writeln!(
            out,
            "<path d=\"M{LEFT} {TOP}V{}H{}\" fill=\"none\" stroke=\"black\"/><text x=\"{}\" y=\"{}\" \
             text-anchor=\"middle\">{}</text><text x=\"{}\" y=\"{}\">{}</text>",
            HEIGHT - BOTTOM,
            WIDTH - RIGHT,
            (LEFT + WIDTH - RIGHT) / 2.0,
            HEIGHT - 20.0,
            escaped(self.x),
            8.0,
            TOP - 6.0,
            escaped(self.y)
        );
        for (index, series) in self.series.iter().enumerate() {
            let colour = COLOURS[index % COLOURS.len()];
            let (stroke, dashes) =
                if series.is_reference { ("1.5", " stroke-dasharray=\"5 4\"") } else { ("2", "") };
            let path: Vec<String> =
                series.points.iter().map(|(x, y)| format!("{:.1},{:.1}", at_x(*x), at_y(*y))).collect();
            let _ = writeln!(
                out,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{stroke}\"{dashes}/>",
                path.join(" ")
            );
            let (row, column) = (index / LEGEND_COLUMNS, index % LEGEND_COLUMNS);
            let (x, y) = (
                LEFT + column as f64 * (WIDTH - LEFT) / LEGEND_COLUMNS as f64,
                legend + row as f64 * LEGEND_LINE,
            );
            let mark = if series.is_reference { "┄" } else { "■" };
            let _ = writeln!(
                out,
                "<text x=\"{x:.1}\" y=\"{y:.1}\" fill=\"{colour}\">{mark} {}</text>",
                escaped(&series.name)
            );
        }
        for (index, line) in text.iter().enumerate() {
            let y = below + 4.0 + index as f64 * NOTE_LINE;
            let _ = writeln!(
                out,
                "<text x=\"10\" y=\"{y:.1}\" font-size=\"10\" fill=\"#444444\" xml:space=\"preserve\">{}</text>",
                escaped(line)
            );
        }
        out.push_str("</svg>\n");
        out
    }
}

/// The next number that axes end at.
fn nice(value: f64) -> f64 {
    let unit = 10f64.powf(value.max(1e-9).log10().floor());
    [1.0, 2.0, 4.0, 5.0, 10.0].into_iter().map(|step| step * unit).find(|end| *end >= value).unwrap_or(value)
}
