//! What cleaning must cost: the greedy bound for uniform random overwrites.
//!
//! *Mean field.* A full log of equal segments, live share `fill`, uniform overwrites. Let a segment be cleaned when a
//! share `u` of it is still live. Between two cleanings of a segment the drive is overwritten (1 - u)/fill times per live
//! record, so a record survives with probability exp(-(1 - u)/fill), and
//!
//! ```text
//!     u = exp(-(1 - u) / fill),      write amplification = 1 / (1 - u)
//! ```
//!
//! (Menon 1995; Robinson 1996; Desnoyers 2012 shows that greedy comes to the same when segments hold many records, as
//! ours do: greedy is optimal for uniform traffic.)
//!
//! *By simulation.* The same with the run's own segment count, reserve and start state, and three overwrites rather than
//! for ever: what a perfect greedy cleaner would have written in this very run. That is the figure the tables use.

use crate::keys::Rng;

/// Write amplification of greedy cleaning in the limit, for a live share `fill` of the raw space in (0, 1).
pub fn greedy_limit(fill: f64) -> f64 {
    assert!(fill > 0.0 && fill < 1.0, "fill {fill} is not a share");
    // The right-hand side is convex with a trivial fixed point at 1: from 0 the iteration climbs to the other one.
    let mut u = 0.0f64;
    for _ in 0..100_000 {
        let next = (-(1.0 - u) / fill).exp();
        if (next - u).abs() < 1e-12 {
            break;
        }
        u = next;
    }
    1.0 / (1.0 - u)
}

/// What a greedy cleaner writes in a run of the given shape.
#[derive(Clone, Copy, Debug)]
pub struct GreedyRun {
    /// Segments of the drive that hold records.
    pub segments: usize,
    /// Records that fit a segment.
    pub records_per_segment: usize,
    /// Live records (keys).
    pub keys: usize,
    /// Segments kept free.
    pub reserve: usize,
    /// Overwrites before those that count, in multiples of `keys`.
    pub overwritten_before: f64,
    /// Overwrites that count, in multiples of `keys`.
    pub overwrites: f64,
}

/// Write amplification over the overwrites that count: (user + moved records) / user records. The drive was freshly loaded before the
/// first.
pub fn greedy_simulated(run: GreedyRun) -> f64 {
    let mut log = Log::new(run);
    for key in 0..run.keys {
        log.append(key as u32);
    }
    let before = (run.keys as f64 * run.overwritten_before) as u64;
    let user = (run.keys as f64 * run.overwrites) as u64;
    let mut rng = Rng::new(7);
    let mut moved = 0u64;
    for done in 0..before + user {
        if done == before {
            moved = 0;
        }
        log.append(rng.below(run.keys as u64) as u32);
        while log.free.len() <= run.reserve {
            moved += log.clean();
        }
    }
    (user + moved) as f64 / user as f64
}

const NOWHERE: u32 = u32::MAX;

struct Log {
    per_segment: usize,
    /// Where each key's live record is: segment * per_segment + index.
    place: Vec<u32>,
    /// Which key each record belongs to.
    owner: Vec<u32>,
    live: Vec<u32>,
    closed: Vec<bool>,
    free: Vec<u32>,
    /// Open segments: user writes and moved records apart.
    open: [Open; 2],
}

#[derive(Clone, Copy)]
struct Open {
    segment: u32,
    used: usize,
}

impl Log {
    fn new(run: GreedyRun) -> Log {
        let mut free: Vec<u32> = (0..run.segments as u32).rev().collect();
        let mut take = || Open { segment: free.pop().expect("at least two segments"), used: 0 };
        let open = [take(), take()];
        Log {
            per_segment: run.records_per_segment,
            place: vec![NOWHERE; run.keys],
            owner: vec![NOWHERE; run.segments * run.records_per_segment],
            live: vec![0; run.segments],
            closed: vec![false; run.segments],
            free,
            open,
        }
    }

    fn append(&mut self, key: u32) {
        let old = self.place[key as usize];
        if old != NOWHERE {
            self.live[old as usize / self.per_segment] -= 1;
        }
        self.put(0, key);
    }

    fn put(&mut self, stream: usize, key: u32) {
        if self.open[stream].used == self.per_segment {
            self.closed[self.open[stream].segment as usize] = true;
            let segment = self.free.pop().expect("the reserve covers the open segments");
            self.open[stream] = Open { segment, used: 0 };
        }
        let open = &mut self.open[stream];
        let place = open.segment as usize * self.per_segment + open.used;
        open.used += 1;
        self.live[open.segment as usize] += 1;
        self.owner[place] = key;
        self.place[key as usize] = place as u32;
    }

    /// Moves the live records of the emptiest segment; returns how many.
    fn clean(&mut self) -> u64 {
        let victim = (0..self.live.len())
            .filter(|&s| self.closed[s])
            .min_by_key(|&s| self.live[s])
            .expect("a full drive has closed segments");
        self.closed[victim] = false;
        let range = victim * self.per_segment..(victim + 1) * self.per_segment;
        let movers: Vec<u32> = range
            .filter(|&place| {
                self.owner[place] != NOWHERE && self.place[self.owner[place] as usize] == place as u32
            })
            .map(|place| self.owner[place])
            .collect();
        for &key in &movers {
            self.put(1, key);
        }
        self.live[victim] = 0;
        self.free.push(victim as u32);
        movers.len() as u64
    }
}
