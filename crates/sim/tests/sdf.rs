//! The SDF experiment: every figure in its band, plots for people and programs, the same run from the same seed.

use pumice_sim::{RunOptions, run};

#[test]
fn sdf_s_figures_lie_in_their_bands_and_are_plotted() {
    let dir = tempfile::tempdir().expect("dir");
    let plot = dir.path().join("figures");
    let options = RunOptions { plot: Some(plot.clone()), ..RunOptions::default() };
    let report = run("sdf", &options).expect("there is such an experiment");
    assert!(report.passed(), "{report}");
    for name in ["raw flash, reads", "random reads of 8 KiB", "writes of 8 MiB, erased just before"] {
        let row = report.rows.iter().find(|row| row.name == name).expect(name);
        assert!(row.within_band == Some(true) && row.published.is_some(), "{report}");
    }
    assert!(report.to_string().contains("CPU is not modelled"), "{report}");
    let mut plots = 0;
    for entry in std::fs::read_dir(&plot).expect("plots") {
        let path = entry.expect("entry").path();
        let text = std::fs::read_to_string(&path).expect("text");
        match path.extension().and_then(|ending| ending.to_str()) {
            Some("svg") => assert!(text.starts_with("<svg") && text.contains("<polyline"), "{text}"),
            Some("csv") => assert!(text.lines().count() > 4 && text.starts_with("series,"), "{text}"),
            _ => panic!("{}", path.display()),
        }
        plots += 1;
    }
    assert_eq!(plots, 12);
    let again = run("sdf", &RunOptions::default()).expect("experiment");
    assert_eq!(again.event_hash, report.event_hash);
}
