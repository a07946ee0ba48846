//! What use does to emulated flash: raw bit errors, failed programs and erases, blocks that were bad from the start.
//!
//! With x = erases / rated erases, d = days since the block was first programmed and r = reads since its erase:
//!
//! ```text
//! raw bit error rate = fresh + worn·x^k + retention·d·x + disturb·r·(1 + x)        (at most 0.5)
//! P(program fails)   = program_failure·x^3            P(erase fails) = erase_failure·x^3
//! ```
//!
//! The shape follows measurements of real chips: a power law in cycles (Grupp et al., MICRO 2009; Cai et al., DATE
//! 2012), retention errors that grow with time and with wear (Cai et al., ICCD 2012), disturb that grows with reads.
//! The constants are the preset's and are *assumptions* chosen so that a block at its rated erases, read 100,000
//! times and 90 days old, needs about half of what its ECC corrects.
//!
//! A page's errors are a property of the page and its block's life, not of the read: the same page read again shows
//! the same flipped bits, and more of them as the rate grows.

use pumice_base::hash::stable_hash64;
use pumice_base::rng::Rng;

/// The constants of the model. See the module's text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wear {
    /// Erases that the chip is rated for.
    pub rated_erases: f64,
    /// Raw bit error rate of a fresh block.
    pub fresh: f64,
    /// What cycling has added at the rated erases.
    pub worn: f64,
    /// The exponent of cycling.
    pub exponent: f64,
    /// Added by each day since programming, at the rated erases.
    pub retention: f64,
    /// Added by each read since the erase, on a fresh block.
    pub disturb: f64,
    /// Probability that a program fails, at the rated erases.
    pub program_failure: f64,
    /// Probability that an erase fails, at the rated erases.
    pub erase_failure: f64,
    /// Share of blocks that are bad from the start.
    pub factory_bad: f64,
}

/// What a block has been through.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Use {
    /// Erases.
    pub erases: u32,
    /// Days since its first page was programmed.
    pub days: f64,
    /// Reads since its erase.
    pub reads: u64,
}

impl Wear {
    /// The raw bit error rate of a block.
    pub fn bit_error_rate(&self, used: Use) -> f64 {
        let x = f64::from(used.erases) / self.rated_erases;
        let rate = self.fresh
            + self.worn * x.powf(self.exponent)
            + self.retention * used.days * x
            + self.disturb * used.reads as f64 * (1.0 + x);
        rate.clamp(0.0, 0.5)
    }

    /// Probability that a program of a block with so many erases fails.
    pub fn program_failure(&self, erases: u32) -> f64 {
        (self.program_failure * (f64::from(erases) / self.rated_erases).powi(3)).min(1.0)
    }

    /// Probability that an erase of a block with so many erases fails.
    pub fn erase_failure(&self, erases: u32) -> f64 {
        (self.erase_failure * (f64::from(erases) / self.rated_erases).powi(3)).min(1.0)
    }

    /// Whether block `number` of the device with this seed was bad from the start.
    pub fn is_factory_bad(&self, seed: u64, number: u32) -> bool {
        let mut rng = Rng::from_seed(stable_hash64(seed ^ 0xBAD_B10C, &number.to_le_bytes()));
        rng.chance(self.factory_bad)
    }
}

/// The bits of a page of `bits` bits that read flipped at this rate, in no order; the same page shows the same bits
/// first as the rate grows.
pub(super) fn flipped_bits(seed: u64, block: u32, erases: u32, page: u32, bits: u64, rate: f64) -> Vec<u64> {
    let mean = bits as f64 * rate;
    // Nearly every page of a fresh drive ends here.
    let mut name = [0; 12];
    for (at, word) in [block, erases, page].into_iter().enumerate() {
        name[4 * at..4 * at + 4].copy_from_slice(&word.to_le_bytes());
    }
    let mut rng = Rng::from_seed(stable_hash64(seed, &name));
    let count = poisson(mean, rng.unit()).min(bits);
    let mut flipped: Vec<u64> = Vec::with_capacity(count as usize);
    while (flipped.len() as u64) < count {
        let bit = rng.below(bits);
        if !flipped.contains(&bit) {
            flipped.push(bit);
        }
    }
    flipped
}

/// The Poisson quantile of `u`: grows with `mean` for the same `u`. Above 400 by the normal approximation, which is
/// far beyond what any ECC corrects.
fn poisson(mean: f64, u: f64) -> u64 {
    if mean <= 0.0 {
        return 0;
    }
    if mean > 400.0 {
        // A logistic stands in for the normal's quantile.
        let z = (u.clamp(1e-9, 1.0 - 1e-9) / (1.0 - u.clamp(1e-9, 1.0 - 1e-9))).ln() / 1.702;
        return (mean + mean.sqrt() * z).max(0.0) as u64;
    }
    let mut probability = (-mean).exp();
    let mut below = probability;
    let mut count = 0;
    while below < u && count < 2000 {
        count += 1;
        probability *= mean / count as f64;
        below += probability;
    }
    count
}
