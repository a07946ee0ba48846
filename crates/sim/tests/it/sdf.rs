//! The SDF experiment, made smaller: every figure in its band, plots for people and programs, the same run from the same
//! seed. `pumice sim run sdf` is the whole.

use pumice_sim::{Report, Row, RunOptions, run};

/// Of 1,500: everything as small as it may be.
const OPS: Option<u64> = Some(40);

fn section(number: u64, seed: u64) -> Report {
    let options = RunOptions { seed, ops: OPS, cut: Some(number), ..RunOptions::default() };
    run("sdf", &options).expect("there is such an experiment")
}

fn measured(report: &Report) -> Vec<(&str, f64)> {
    report.rows.iter().map(|row| (row.name.as_str(), row.measured)).collect()
}

#[test]
fn sdf_s_figures_lie_in_their_bands_and_are_plotted() {
    let dir = tempfile::tempdir().expect("dir");
    let plot = dir.path().join("figures");
    let options = RunOptions { plot: Some(plot.clone()), ops: OPS, ..RunOptions::default() };
    let report = run("sdf", &options).expect("there is such an experiment");
    assert!(report.passed(), "{report}");
    for name in [
        "raw flash, reads",
        "random reads of 8 KiB",
        "writes of 8 MiB, erased just before",
        "8 MiB program and erase, mean",
    ] {
        let row = report.rows.iter().find(|row| row.name == name).expect(name);
        assert!(row.within_band == Some(true) && row.published.is_some(), "{report}");
    }
    assert!(report.to_string().contains("CPU is not modelled"), "{report}");
    let page = std::fs::read_to_string(plot.join("sdf.md")).expect("the page of all figures");
    let (mut svg, mut csv) = (0, 0);
    for entry in std::fs::read_dir(&plot).expect("plots") {
        let path = entry.expect("entry").path();
        let text = std::fs::read_to_string(&path).expect("text");
        match path.extension().and_then(|ending| ending.to_str()) {
            Some("svg") => {
                assert!(text.starts_with("<svg") && text.contains("<polyline"), "{text}");
                assert!(text.contains("CPU is not modelled"), "{}", path.display());
                let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
                assert!(page.contains(name), "{name} is not shown");
                svg += 1;
            }
            Some("csv") => {
                assert!(text.lines().count() > 2 && text.starts_with("series,"), "{text}");
                csv += 1;
            }
            Some("md") => assert!(report.rows.iter().all(|row| text.contains(&row.name)), "{text}"),
            _ => panic!("{}", path.display()),
        }
    }
    assert_eq!((svg, csv), (12, 12));
}

#[test]
fn the_same_seed_gives_the_same_rows_and_another_seed_another_draw() {
    // By request size; the LSM on top; the latencies that a scheduler gives.
    for number in [1, 5, 7] {
        let (first, again) = (section(number, 3), section(number, 3));
        assert_eq!(measured(&first), measured(&again), "section {number}");
        assert_eq!(first.event_hash, again.event_hash, "section {number}");
    }
    // Reads beside erases are drawn from the seed.
    assert_ne!(measured(&section(7, 3)), measured(&section(7, 4)));
}

#[test]
fn what_was_not_found_is_not_shown_as_a_measurement() {
    let row = Row {
        name: "crossing".into(),
        measured: 128.0,
        is_beyond: true,
        published: Some(32.0),
        low: None,
        high: None,
        unit: String::new(),
        within_band: None,
    };
    let report = Report { rows: vec![row], ..Report::default() };
    assert!(report.to_string().contains(" not up to 128.0 "), "{report}");
}
