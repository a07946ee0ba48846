//! Figures as SVG for people and CSV for programs.

use std::fmt::Write;
use std::path::Path;
use std::{fs, io};

/// One line of a figure.
pub(super) struct Series {
    pub name: String,
    pub points: Vec<(f64, f64)>,
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

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 56.0;
const COLOURS: [&str; 6] = ["#1b6ca8", "#c8553d", "#3a7d44", "#8e5572", "#b8860b", "#444444"];

impl Figure {
    /// Writes `DIR/file.svg` and `DIR/file.csv`.
    pub(super) fn write(&self, dir: &Path) -> io::Result<()> {
        fs::create_dir_all(dir)?;
        fs::write(dir.join(format!("{}.csv", self.file)), self.csv())?;
        fs::write(dir.join(format!("{}.svg", self.file)), self.svg())
    }

    fn csv(&self) -> String {
        let mut out = format!("series,{},{}\n", self.x.replace(',', ""), self.y);
        for series in &self.series {
            for (x, y) in &series.points {
                let _ = writeln!(out, "{},{x:.4},{y:.4}", series.name);
            }
        }
        out
    }

    fn svg(&self) -> String {
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
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
             font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"{LEFT}\" y=\"22\" \
             font-size=\"14\">{}</text>\n",
            self.title
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
            (0..=4).map(|step| x_max * f64::from(step) / 4.0).collect()
        };
        for x in ticks {
            let (place, bottom) = (at_x(x), HEIGHT - BOTTOM);
            let _ = writeln!(
                out,
                "<path d=\"M{place:.1} {bottom}v5\" stroke=\"black\"/><text x=\"{place:.1}\" y=\"{}\" \
                 text-anchor=\"middle\">{x}</text>",
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
            HEIGHT - 22.0,
            self.x,
            8.0,
            TOP - 6.0,
            self.y
        );
        for (index, series) in self.series.iter().enumerate() {
            let colour = COLOURS[index % COLOURS.len()];
            let path: Vec<String> =
                series.points.iter().map(|(x, y)| format!("{:.1},{:.1}", at_x(*x), at_y(*y))).collect();
            let _ = writeln!(
                out,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
                path.join(" ")
            );
            let (x, y) = (LEFT + 10.0 + 190.0 * index as f64, HEIGHT - 6.0);
            let _ = writeln!(out, "<text x=\"{x}\" y=\"{y}\" fill=\"{colour}\">■ {}</text>", series.name);
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
