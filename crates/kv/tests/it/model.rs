//! The store beside a model of it: whatever is done, both hold the same.

use std::ops::Bound;

use crate::common::*;
use pumice_base::rng::Rng;
use pumice_flash::Device;
use pumice_kv::{Batch, Direction, SliceId, Snapshot, Store};

struct World {
    device: Device,
    store: Store,
    model: Model,
    tallies: [i64; 3],
    snapshots: Vec<(Snapshot, Model)>,
    rng: Rng,
    steps: u64,
}

impl World {
    async fn new(seed: u64) -> Self {
        let device = device("emu:small").await;
        let store = formatted(&device).await;
        let rng = Rng::from_seed(seed);
        Self { device, store, model: Model::new(), tallies: [0; 3], snapshots: Vec::new(), rng, steps: 0 }
    }

    async fn write_some(&mut self) {
        let rng = &mut self.rng;
        let mut batch = Batch::new();
        let n = if rng.chance(0.2) { 1 + rng.below(20) } else { 1 };
        for _ in 0..n {
            let (slice, key) = (rng.below(3) as u16, key(rng));
            if rng.chance(0.25) {
                batch.delete(SliceId(slice), &key);
                self.model.remove(&(slice, key));
            } else {
                let value = value_bytes(rng);
                let (tag, expire) =
                    (rng.below(3) as u8, if rng.chance(0.1) { 1 + rng.below(1000) } else { 0 });
                if rng.chance(0.5) {
                    batch.put(SliceId(slice), &key, tag, expire, &value);
                } else {
                    batch.put_bytes(SliceId(slice), &key, tag, expire, value.clone().into());
                }
                let is_new = self.model.insert((slice, key), (tag, expire, value)).is_none();
                if is_new && rng.chance(0.7) {
                    batch.of_new_key();
                }
            }
            if rng.chance(0.1) {
                let (space, delta) = (rng.below(3) as u32, rng.below(10) as i64 - 5);
                batch.tally(space, delta);
                self.tallies[space as usize] += delta;
            }
        }
        write(&self.store, &batch).await;
    }

    async fn step(&mut self) {
        self.steps += 1;
        match self.rng.below(1000) {
            0..700 => self.write_some().await,
            700..900 => {
                let (slice, key) = (self.rng.below(3) as u16, key(&mut self.rng));
                let wanted = self.model.get(&(slice, key.clone()));
                assert_eq!(get(&self.store, slice, &key).await.as_ref(), wanted);
                let meta = self.store.get_meta(SliceId(slice), &key).await.expect("meta");
                let wanted = wanted.map(|held| (held.0, held.1, held.2.len() as u64));
                assert_eq!(meta.map(|meta| (meta.tag, meta.expire_ms, meta.value_len)), wanted);
            }
            900..940 => {
                let (a, b) = (key(&mut self.rng), key(&mut self.rng));
                let bound = |rng: &mut Rng, key| match rng.below(3) {
                    0 => Bound::Unbounded,
                    1 => Bound::Included(key),
                    _ => Bound::Excluded(key),
                };
                let (lower, upper) = (bound(&mut self.rng, a), bound(&mut self.rng, b));
                let direction = if self.rng.chance(0.5) { Direction::Forward } else { Direction::Backward };
                let slice = self.rng.below(3) as u16;
                let snapshot = match self.rng.chance(0.5) {
                    true => self.store.snapshot(),
                    false => self.store.snapshot_of(SliceId(slice)),
                };
                compare_scan(&self.store, &snapshot, &self.model, slice, lower, upper, direction).await;
            }
            940..945 => {
                if self.snapshots.len() < 3 {
                    self.snapshots.push((self.store.snapshot(), self.model.clone()));
                }
            }
            945..950 => {
                if !self.snapshots.is_empty() {
                    let at = self.rng.below(self.snapshots.len() as u64) as usize;
                    let (snapshot, model) = self.snapshots.swap_remove(at);
                    for direction in [Direction::Forward, Direction::Backward] {
                        for slice in 0..3 {
                            let (all, store) = (Bound::Unbounded, &self.store);
                            compare_scan(store, &snapshot, &model, slice, all.clone(), all, direction).await;
                        }
                    }
                }
            }
            950..955 => {
                let (slice, key) = (self.rng.below(3) as u16, key(&mut self.rng));
                let mut value = vec![0; 300_000 + self.rng.below(900_000) as usize];
                self.rng.fill(&mut value);
                put_large(&self.store, slice, &key, 9, &value).await;
                self.model.insert((slice, key), (9, 0, value));
            }
            955..957 => self.store.checkpoint().await.expect("checkpoint"),
            957..960 => self.reopen(true).await,
            960..963 => self.reopen(false).await,
            _ => pumice_reactor::yield_now().await,
        }
    }

    async fn reopen(&mut self, cleanly: bool) {
        self.snapshots.clear();
        println!("step {}: reopen, cleanly {cleanly}", self.steps);
        if cleanly {
            self.store.close().await.expect("close");
        } else {
            let mut batch = Batch::new();
            batch.tally(7, 0);
            let seq = write(&self.store, &batch).await;
            self.store.wait_durable(seq).await.expect("durable");
            self.store.abandon().await;
        }
        let opened = open_with(&self.device, options()).await;
        assert_eq!(opened.clean, cleanly);
        assert!(!cleanly || opened.replayed == 0);
        self.store = opened.store;
        for (space, tally) in self.tallies.iter().enumerate() {
            assert_eq!(self.store.tally(space as u32), *tally);
        }
    }

    async fn finish(mut self) {
        let mut rng = self.rng.split("compare");
        compare(&self.store, &self.model, &mut rng).await;
        self.reopen(false).await;
        compare(&self.store, &self.model, &mut rng).await;
        let report = self.store.check(&no_progress).await.expect("check");
        assert!(report.is_clean(), "{:?}", &report.problems[..report.problems.len().min(5)]);
        assert_eq!(report.keys, self.model.len() as u64);
        self.store.close().await.expect("close");
    }
}

fn run(seed: u64, steps: u64) {
    println!("replay: PUMICE_SEED={seed} cargo test -p pumice-kv --test it model::");
    pumice_reactor::block_on(async {
        let mut world = World::new(seed).await;
        for _ in 0..steps {
            world.step().await;
        }
        world.finish().await;
    });
}

/// `PUMICE_SEED` runs one seed for longer.
#[test]
fn the_store_and_the_model_agree() {
    match std::env::var("PUMICE_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => run(seed, 8000),
        None => (1..=4).for_each(|seed| run(seed, 4000)),
    }
}
