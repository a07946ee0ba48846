//! How memory for rows is dealt out over slices: half of it evenly, half by what their key tables take.
//!
//! All elements of a collection are in one slice. Were each slice given as much as any other, one of a hundred million elements
//! had a sixteenth of what there is, and the rest lay idle. But what tables take says nothing of how often values are asked for, nor
//! how long they are: a few hot keys beside such a collection keep half of what they had.

/// Counted for each slice beside its tables: where these are small, all have about the same.
const EVEN_BYTES: u64 = 256 << 10;
/// Slices that are dealt with alike differ, too, by what their merges have not dropped yet: rows do not move for that.
const IGNORED_PART: u64 = 4;

/// The parts of slices.
pub struct Shares {
    weights: Box<[u64]>,
}

impl Shares {
    /// The same for each.
    pub fn new(slices: usize) -> Self {
        Self { weights: vec![EVEN_BYTES; slices].into() }
    }

    /// Key tables take so many bytes in each slice.
    pub fn set(&mut self, table_bytes: &[u64]) {
        let weights: Box<[u64]> = table_bytes.iter().map(|bytes| bytes + EVEN_BYTES).collect();
        let is_news = |slice: usize| {
            let (before, now) = (of(1 << 32, &self.weights, slice), of(1 << 32, &weights, slice));
            before.abs_diff(now) > before / IGNORED_PART
        };
        if (0..weights.len()).any(is_news) {
            self.weights = weights;
        }
    }

    /// What `slice` gets of `bytes`.
    pub fn of(&self, bytes: u64, slice: usize) -> u64 {
        of(bytes, &self.weights, slice)
    }
}

fn of(bytes: u64, weights: &[u64], slice: usize) -> u64 {
    let all: u64 = weights.iter().sum();
    let by_weight = u128::from(bytes / 2) * u128::from(weights[slice]) / u128::from(all.max(1));
    bytes / 2 / weights.len() as u64 + by_weight as u64
}
