//! The greedy bound: the equation, its known roots and the simulation must agree.

use pumice_compare::bound::{GreedyRun, greedy_limit, greedy_simulated};

#[test]
fn the_mean_field_equation_gives_the_known_figures() {
    // Roots of u = exp(-(1 - u)/fill) by Newton, elsewhere.
    for (fill, known) in [(0.5, 1.255), (0.7, 1.878), (0.8, 2.694), (0.9, 5.179)] {
        let found = greedy_limit(fill);
        assert!((found - known).abs() < 0.01, "fill {fill}: {found}, known {known}");
    }
}

#[test]
fn a_long_simulated_run_comes_to_the_mean_field_figure() {
    let (segments, records_per_segment) = (600, 256);
    let keys = (0.7 * (segments * records_per_segment) as f64) as usize;
    let run = GreedyRun {
        segments,
        records_per_segment,
        keys,
        reserve: 2,
        overwritten_before: 0.0,
        overwrites: 6.0,
    };
    let (simulated, limit) = (greedy_simulated(run), greedy_limit(0.7));
    assert!((simulated / limit - 1.0).abs() < 0.03, "simulated {simulated}, in the limit {limit}");
}

#[test]
fn a_run_that_starts_from_a_fresh_load_costs_less_at_first() {
    let keys = (0.7 * 200.0 * 128.0) as usize;
    let run = |overwritten_before, overwrites| {
        greedy_simulated(GreedyRun {
            segments: 200,
            records_per_segment: 128,
            keys,
            reserve: 2,
            overwritten_before,
            overwrites,
        })
    };
    assert!(run(0.0, 0.5) < run(0.0, 3.0));
    assert!(run(0.0, 0.5) < run(0.5, 0.5), "what came before counts for the start, not for the figure");
    let (first, second, both) = (run(0.0, 1.0), run(1.0, 1.0), run(0.0, 2.0));
    assert!((f64::midpoint(first, second) - both).abs() < 1e-9, "{first} and {second} make {both}");
}
