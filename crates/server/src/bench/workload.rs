//! The workloads: LightStore's five (NVRAMOS 2019, "Experiments") and YCSB's core six (Cooper et al. 2010,
//! table 2), as streams of operations that both the in-process and the network runner carry out.

use pumice_base::rng::Rng;

use super::keys::{Chooser, Zipf};
use crate::cli::Distribution;

/// One operation on the key with this index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Read the value.
    Get(u64),
    /// Write a whole new value.
    Set(u64),
    /// Write a key that was not there before.
    Insert(u64),
    /// Read, then write.
    ReadModifyWrite(u64),
    /// Read `len` records in key order from this one on.
    Scan(u64, u32),
}

/// Shares of the operations, in percent.
#[derive(Clone, Copy, Debug, Default)]
struct Mix {
    get: u8,
    set: u8,
    insert: u8,
    rmw: u8,
    scan: u8,
}

/// A named workload.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// As the command line names it.
    pub name: &'static str,
    mix: Mix,
    keys: Keys,
    /// True for YCSB's: the keys must be loaded first, records are rows of fields through the network.
    pub is_ycsb: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keys {
    Sequential,
    /// Sequential, each operation an insert.
    Load,
    Drawn(Distribution),
}

const UNIFORM: Keys = Keys::Drawn(Distribution::Uniform);
const ZIPFIAN: Keys = Keys::Drawn(Distribution::Zipfian);
const LATEST: Keys = Keys::Drawn(Distribution::Latest);
const NONE: Mix = Mix { get: 0, set: 0, insert: 0, rmw: 0, scan: 0 };

const ALL: &[Workload] = &[
    Workload { name: "load", mix: Mix { set: 100, ..NONE }, keys: Keys::Sequential, is_ycsb: false },
    Workload { name: "s-set", mix: Mix { set: 100, ..NONE }, keys: Keys::Sequential, is_ycsb: false },
    Workload { name: "s-get", mix: Mix { get: 100, ..NONE }, keys: Keys::Sequential, is_ycsb: false },
    Workload { name: "r-set", mix: Mix { set: 100, ..NONE }, keys: UNIFORM, is_ycsb: false },
    Workload { name: "r-get", mix: Mix { get: 100, ..NONE }, keys: UNIFORM, is_ycsb: false },
    Workload { name: "r-mixed", mix: Mix { get: 90, set: 10, ..NONE }, keys: UNIFORM, is_ycsb: false },
    Workload { name: "ycsb-a", mix: Mix { get: 50, set: 50, ..NONE }, keys: ZIPFIAN, is_ycsb: true },
    Workload { name: "ycsb-b", mix: Mix { get: 95, set: 5, ..NONE }, keys: ZIPFIAN, is_ycsb: true },
    Workload { name: "ycsb-c", mix: Mix { get: 100, ..NONE }, keys: ZIPFIAN, is_ycsb: true },
    Workload { name: "ycsb-d", mix: Mix { get: 95, insert: 5, ..NONE }, keys: LATEST, is_ycsb: true },
    Workload { name: "ycsb-e", mix: Mix { scan: 95, insert: 5, ..NONE }, keys: ZIPFIAN, is_ycsb: true },
    Workload { name: "ycsb-f", mix: Mix { get: 50, rmw: 50, ..NONE }, keys: ZIPFIAN, is_ycsb: true },
];

/// Inserts every record once: what must precede YCSB's workloads.
pub const YCSB_LOAD: Workload =
    Workload { name: "ycsb-load", mix: Mix { set: 100, ..NONE }, keys: Keys::Load, is_ycsb: true };

/// Longest scan of YCSB E; lengths are uniform from 1.
pub const SCAN_RECORDS_MAX: u32 = 100;

impl Workload {
    /// What [`Workload::parse`] knows: every workload, and the families.
    pub fn names() -> impl Iterator<Item = &'static str> {
        ALL.iter().map(|workload| workload.name).chain(["lightstore", "ycsb"])
    }

    /// The workloads that `names` name, families spelt out; the error names the first unknown one.
    pub fn parse(names: &[String]) -> Result<Vec<Self>, String> {
        let mut chosen = Vec::new();
        let names: Vec<&str> =
            if names.is_empty() { vec!["lightstore"] } else { names.iter().map(String::as_str).collect() };
        for name in names {
            let before = chosen.len();
            chosen.extend(ALL.iter().filter(|w| match name {
                "lightstore" => !w.is_ycsb && w.name != "load",
                "ycsb" => w.is_ycsb,
                _ => w.name == name,
            }));
            if chosen.len() == before {
                let known: Vec<&str> = ALL.iter().map(|w| w.name).collect();
                return Err(format!(
                    "'{name}' is no workload; there are {}, and the families lightstore and ycsb",
                    known.join(", ")
                ));
            }
        }
        Ok(chosen)
    }

    /// True when every operation writes, in key order: it fills the store by itself.
    pub fn loads(&self) -> bool {
        self.mix.set == 100 && !matches!(self.keys, Keys::Drawn(_))
    }

    /// The operations of worker `worker` of `workers` over `keys` loaded keys.
    pub fn stream(
        &self,
        keys: u64,
        drawn: Option<Distribution>,
        worker: u64,
        workers: u64,
        seed: u64,
    ) -> Stream {
        let chooser = match self.keys {
            Keys::Sequential | Keys::Load => Chooser::Sequential { next: worker, step: workers },
            Keys::Drawn(own) => match drawn.unwrap_or(own) {
                Distribution::Uniform => Chooser::Uniform,
                Distribution::Zipfian => Chooser::Zipfian(Zipf::new(keys)),
                Distribution::Latest => Chooser::Latest(Zipf::new(keys)),
            },
        };
        let rng = Rng::from_seed(seed).split(&format!("{}/{worker}", self.name));
        let is_load = self.keys == Keys::Load;
        Stream { mix: self.mix, is_load, chooser, rng, keys, inserted: 0, worker, workers }
    }
}

/// An endless stream of operations.
#[derive(Clone, Debug)]
pub struct Stream {
    mix: Mix,
    is_load: bool,
    chooser: Chooser,
    rng: Rng,
    keys: u64,
    inserted: u64,
    worker: u64,
    workers: u64,
}

impl Stream {
    /// The next operation.
    pub fn next_op(&mut self) -> Op {
        let mut dice = self.rng.below(100) as u8;
        let mut falls = |share: u8| {
            let hit = dice < share;
            dice = dice.wrapping_sub(share);
            hit
        };
        let (get, set, insert, rmw) =
            (falls(self.mix.get), falls(self.mix.set), falls(self.mix.insert), falls(self.mix.rmw));
        // Inserted keys continue the key space, each worker in its own residue class.
        let newest = self.keys + self.inserted * self.workers;
        if get {
            let known = if matches!(self.chooser, Chooser::Latest(_)) && self.inserted > 0 {
                // The newest key of this worker's own inserts, or a loaded one.
                let back = match &self.chooser {
                    Chooser::Latest(zipf) => zipf.rank(&mut self.rng),
                    _ => 0,
                };
                if back < self.inserted {
                    self.keys + (self.inserted - 1 - back) * self.workers + self.worker
                } else {
                    (self.keys - 1).saturating_sub(back - self.inserted)
                }
            } else {
                self.chooser.next(self.keys, &mut self.rng)
            };
            Op::Get(known)
        } else if set {
            let key = self.chooser.next(self.keys, &mut self.rng);
            if self.is_load { Op::Insert(key) } else { Op::Set(key) }
        } else if insert {
            self.inserted += 1;
            Op::Insert(newest + self.worker)
        } else if rmw {
            Op::ReadModifyWrite(self.chooser.next(self.keys, &mut self.rng))
        } else {
            assert!(self.mix.scan > 0, "the shares add up to 100");
            let len = 1 + self.rng.below(u64::from(SCAN_RECORDS_MAX)) as u32;
            Op::Scan(self.chooser.next(self.keys, &mut self.rng), len)
        }
    }

    /// The stream's own randomness, for values.
    pub fn rng(&mut self) -> &mut Rng {
        &mut self.rng
    }
}
