//! Keys and values of the benchmarks: which key comes next, and what is stored under it.
//!
//! Zipfian draws follow Gray et al. 1994 ("Quickly generating billion-record synthetic databases"), as YCSB
//! does, with theta 0.99 and the rank scattered over the key space by a hash. Values are incompressible and
//! name their key, so that a reader can tell a wrong value from a right one.

use pumice_base::hash::stable_hash64;
use pumice_base::rng::Rng;

/// YCSB's skew.
const THETA: f64 = 0.99;
/// Keys summed exactly for zeta; beyond it the tail is integrated (error below 1e-9 of zeta).
const ZETA_EXACT: u64 = 1_000_000;

fn zeta(n: u64) -> f64 {
    let exact = (1..=n.min(ZETA_EXACT)).map(|i| (i as f64).powf(-THETA)).sum::<f64>();
    if n <= ZETA_EXACT {
        return exact;
    }
    // The integral of x^-theta from the middle of the last exact term to the middle of the last term.
    let power = 1.0 - THETA;
    exact + ((n as f64 + 0.5).powf(power) - (ZETA_EXACT as f64 + 0.5).powf(power)) / power
}

/// Zipfian ranks `0..n`, 0 the likeliest.
#[derive(Clone, Debug)]
pub struct Zipf {
    n: u64,
    zeta_n: f64,
    alpha: f64,
    eta: f64,
}

impl Zipf {
    /// Over `n` items.
    pub fn new(n: u64) -> Self {
        let zeta_n = zeta(n);
        let zeta_2 = 1.0 + 0.5f64.powf(THETA);
        let eta = (1.0 - (2.0 / n as f64).powf(1.0 - THETA)) / (1.0 - zeta_2 / zeta_n);
        Self { n, zeta_n, alpha: 1.0 / (1.0 - THETA), eta }
    }

    /// Draws a rank.
    pub fn rank(&self, rng: &mut Rng) -> u64 {
        let u = rng.unit();
        let uz = u * self.zeta_n;
        if uz < 1.0 {
            return 0;
        }
        if uz < 1.0 + 0.5f64.powf(THETA) {
            return 1.min(self.n - 1);
        }
        let rank = (self.n as f64 * (self.eta * u - self.eta + 1.0).powf(self.alpha)) as u64;
        rank.min(self.n - 1)
    }
}

/// How the next key is chosen.
#[derive(Clone, Debug)]
pub enum Chooser {
    /// 0, 1, 2 … and round again.
    Sequential { next: u64, step: u64 },
    /// Every key alike.
    Uniform,
    /// Scattered Zipfian.
    Zipfian(Zipf),
    /// Zipfian from the newest key backwards.
    Latest(Zipf),
}

impl Chooser {
    /// The next key index below `keys`.
    pub fn next(&mut self, keys: u64, rng: &mut Rng) -> u64 {
        match self {
            Self::Sequential { next, step } => {
                let key = *next % keys;
                *next += *step;
                key
            }
            Self::Uniform => rng.below(keys),
            Self::Zipfian(zipf) => stable_hash64(0, &zipf.rank(rng).to_le_bytes()) % keys,
            Self::Latest(zipf) => keys - 1 - zipf.rank(rng).min(keys - 1),
        }
    }
}

/// The 16-byte key of `index`: `k` and 15 digits, so that key order is index order.
pub fn key_of(index: u64) -> [u8; 16] {
    let mut key = *b"k000000000000000";
    let mut rest = index;
    for digit in key[1..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    key
}

/// A pool of random bytes from which values are cut: drawing 8 KiB anew for each SET would cost more than the
/// store does.
#[derive(Clone)]
pub struct Values {
    pool: std::sync::Arc<[u8]>,
    len: usize,
}

impl Values {
    /// Values of `len` bytes.
    pub fn new(len: usize, seed: u64) -> Self {
        let mut pool = vec![0; len + (1 << 20)];
        Rng::from_seed(seed).split("values").fill(&mut pool);
        Self { pool: pool.into(), len }
    }

    /// A value for the key `index`: its first 8 bytes (if there are as many) are the index.
    pub fn fill(&self, index: u64, rng: &mut Rng, out: &mut Vec<u8>) {
        let at = rng.below(1 << 20) as usize;
        let start = out.len();
        out.extend_from_slice(&self.pool[at..at + self.len]);
        let mark = self.len.min(8);
        out[start..start + mark].copy_from_slice(&index.to_le_bytes()[..mark]);
    }

    /// Bytes per value.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when `value` is one that [`Values::fill`] made for `index`.
    pub fn belongs(&self, index: u64, value: &[u8]) -> bool {
        let mark = self.len.min(8);
        value.len() == self.len && value[..mark] == index.to_le_bytes()[..mark]
    }
}
