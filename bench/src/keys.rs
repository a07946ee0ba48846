//! Keys, values and the order in which they are asked for.
//!
//! Key `i` is 16 bytes that sort as `i` does. Value `i` is a window into one pool of random bytes at a place that depends
//! on `i` only, so that it need not be made for each SET, and a GET can be checked against it.

use bytes::Bytes;

/// Bytes of every key.
pub const KEY_BYTES: usize = 16;
/// Skew of the Zipfian distribution, YCSB's default.
pub const ZIPF_THETA: f64 = 0.99;

/// The 16 bytes of key `index`.
pub fn key(index: u64) -> [u8; KEY_BYTES] {
    let mut out = *b"k000000000000000";
    let mut rest = index;
    for byte in out[1..].iter_mut().rev() {
        *byte = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    out
}

/// A small, fast generator (SplitMix64): benchmarks must not spend their CPU on randomness.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The stream of `seed`.
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Uniform below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Uniform in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The pool that all values are windows of.
#[derive(Debug)]
pub struct Values {
    pool: Bytes,
    value_bytes: usize,
}

/// Windows start within this many bytes: what every core keeps near itself, or reading the pool would be a large part of what
/// a scan of small values costs.
pub const POOL_BYTES: u64 = 256 << 10;

impl Values {
    /// Incompressible values of `value_bytes` each.
    pub fn new(value_bytes: usize) -> Values {
        let mut rng = Rng::new(0x706f_6f6c);
        let words = (POOL_BYTES as usize + value_bytes).div_ceil(8);
        let pool: Vec<u8> = (0..words).flat_map(|_| rng.next_u64().to_le_bytes()).collect();
        let pool = Bytes::from(pool);
        Values { pool, value_bytes }
    }

    /// The value of key `index`.
    pub fn value(&self, index: u64) -> &[u8] {
        let start = (mix(index) % POOL_BYTES) as usize & !7;
        &self.pool[start..start + self.value_bytes]
    }

    /// The same, shared instead of borrowed.
    pub fn shared(&self, index: u64) -> Bytes {
        self.pool.slice_ref(self.value(index))
    }

    /// True if `found` is the value of key `index`: length, first and last bytes (all of it would measure the harness).
    pub fn matches(&self, index: u64, found: &[u8]) -> bool {
        let wanted = self.value(index);
        let edge = wanted.len().min(16);
        found.len() == wanted.len()
            && found[..edge] == wanted[..edge]
            && found[found.len() - edge..] == wanted[wanted.len() - edge..]
    }
}

/// How the keys of random workloads are picked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Distribution {
    /// Every key alike.
    Uniform,
    /// Zipfian with [`ZIPF_THETA`], the popular keys scattered over the key space.
    Zipfian,
}

impl std::fmt::Display for Distribution {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Distribution::Uniform => "uniform",
            Distribution::Zipfian => "zipfian",
        })
    }
}

/// Picks key indexes below `keys`.
#[derive(Clone, Debug)]
pub struct Picker {
    rng: Rng,
    keys: u64,
    /// Coprime to `keys`: multiplying by it permutes the indexes.
    step: u64,
    zipf: Option<Zipf>,
}

impl Picker {
    /// A picker over `keys` keys; `seed` tells one client from another.
    pub fn new(distribution: Distribution, keys: u64, seed: u64) -> Picker {
        let zipf = (distribution == Distribution::Zipfian).then(|| Zipf::new(keys));
        let mut step = SCATTER_STEP % keys.max(1);
        while step == 0 || gcd(step, keys) != 1 {
            step += 1;
        }
        Picker { rng: Rng::new(mix(seed ^ 0x5eed)), keys, step, zipf }
    }

    /// The same distribution for another client, without computing its constants again.
    pub fn fork(&self, seed: u64) -> Picker {
        Picker { rng: Rng::new(mix(seed ^ 0x5eed)), ..self.clone() }
    }

    /// The next key's index.
    pub fn pick(&mut self) -> u64 {
        match &self.zipf {
            None => self.rng.below(self.keys),
            Some(zipf) => {
                // Neighbours in rank must be far apart, and every key stay reachable.
                let rank = zipf.rank(self.rng.unit());
                ((u128::from(rank) * u128::from(self.step) + SCATTER_START) % u128::from(self.keys)) as u64
            }
        }
    }

    /// True with a chance of `tenths` in ten.
    pub fn chance_of_ten(&mut self, tenths: u32) -> bool {
        self.rng.below(10) < u64::from(tenths)
    }
}

const SCATTER_STEP: u64 = 2_654_435_761;
const SCATTER_START: u128 = 0x51ed;

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Gray et al. 1994, "Quickly generating billion-record synthetic databases": a rank in constant time.
#[derive(Clone, Debug)]
struct Zipf {
    keys: f64,
    alpha: f64,
    zeta: f64,
    eta: f64,
}

impl Zipf {
    fn new(keys: u64) -> Zipf {
        let zeta: f64 = (1..=keys).map(|i| (i as f64).powf(-ZIPF_THETA)).sum();
        let zeta_two = 1.0 + 0.5f64.powf(ZIPF_THETA);
        let eta = (1.0 - (2.0 / keys as f64).powf(1.0 - ZIPF_THETA)) / (1.0 - zeta_two / zeta);
        Zipf { keys: keys as f64, alpha: 1.0 / (1.0 - ZIPF_THETA), zeta, eta }
    }

    fn rank(&self, unit: f64) -> u64 {
        let uz = unit * self.zeta;
        if uz < 1.0 {
            return 0;
        }
        if uz < 1.0 + 0.5f64.powf(ZIPF_THETA) {
            return 1;
        }
        let rank = self.keys * (self.eta * unit - self.eta + 1.0).powf(self.alpha);
        (rank as u64).min(self.keys as u64 - 1)
    }
}
