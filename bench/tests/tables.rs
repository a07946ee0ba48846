//! What the reports are made of: tables read back from a benchmark's own, and rounds of servers in turns.

use pumice_compare::phase::PhaseResult;
use pumice_compare::suite::own::tables;
use pumice_compare::suite::rounds::{Rounds, paired};

#[test]
fn tables_of_a_benchmark_are_read_as_it_printed_them() {
    let text =
        "noise\n### One\n\n| a | b |\n|---|---:|\n| x | 1.5 |\n| y | 2 |\n\n### Two\n\n| c |\n|---|\n| z |\n";
    let found = tables(text);
    assert_eq!(found.len(), 2);
    assert_eq!((found[0].title.as_str(), found[1].title.as_str()), ("One", "Two"));
    assert_eq!(found[0].columns, ["a", "b"]);
    assert_eq!(found[0].rows, [["x", "1.5"], ["y", "2"]]);
    assert_eq!(found[1].rows, [["z"]]);
}

#[test]
fn ratios_are_made_round_by_round() {
    let round = |ops| PhaseResult { ops, seconds: 1.0, ..PhaseResult::default() };
    let rounds = |ops: [u64; 3]| Rounds(ops.map(round).into());
    // The machine was twice as fast in the second round, for both.
    let (ours, theirs) = (rounds([100, 200, 120]), rounds([50, 100, 100]));
    let (median, spread) = paired(&ours, &theirs, PhaseResult::ops_per_second);
    assert_eq!((median, spread.as_str()), (2.0, "1.20×–2.00×"));
    assert_eq!(ours.median().ops, 120);
    assert_eq!(ours.spread(), "100–200");
}
