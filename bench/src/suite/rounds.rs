//! What is measured in rounds, each store or server once in each: a machine that is shared is not the same from one minute to the next.

use crate::phase::PhaseResult;
use crate::report::{count, times};

/// The runs of one store or server at one load, one a round.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Rounds(pub Vec<PhaseResult>);

impl Rounds {
    /// The round of median throughput.
    pub fn median(&self) -> PhaseResult {
        let mut rounds = self.0.clone();
        rounds.sort_by(|a, b| a.ops_per_second().total_cmp(&b.ops_per_second()));
        let middle = rounds.len() / 2;
        rounds.into_iter().nth(middle).unwrap_or_default()
    }

    /// The slowest and the fastest round's operations a second.
    pub fn spread(&self) -> String {
        let (low, high) = ends(self.0.iter().map(PhaseResult::ops_per_second));
        format!("{}–{}", count(low), count(high))
    }
}

/// `figure` of ours over theirs, round by round: the median, and the ends when there are several.
pub fn paired(ours: &Rounds, theirs: &Rounds, figure: impl Fn(&PhaseResult) -> f64) -> (f64, String) {
    let pairs = ours.0.iter().zip(&theirs.0);
    let mut ratios: Vec<f64> = pairs.map(|(a, b)| crate::phase::ratio(figure(a), figure(b))).collect();
    ratios.sort_by(f64::total_cmp);
    let (low, high) = ends(ratios.iter().copied());
    (ratios.get(ratios.len() / 2).copied().unwrap_or(0.0), format!("{}–{}", times(low), times(high)))
}

fn ends(figures: impl Iterator<Item = f64>) -> (f64, f64) {
    figures.fold((f64::INFINITY, 0.0), |(low, high), figure| (low.min(figure), high.max(figure)))
}
