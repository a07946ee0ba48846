//! A client of the store: a seeded stream of every kind of call, each compared with the model.

use super::bench::{Model, seen, space_bounds};
use crate::oracle::{Change, Key, Value, show};
use bytes::Bytes;
use pumice_base::rng::Rng;
use pumice_kv::{
    Batch, Direction, LargeRef, Peek, SliceId, SliceSet, Store, VALUE_BYTES_MAX, Want, WriteError,
};
use pumice_reactor::{sleep, wall_ms, yield_now};
use std::ops::Bound;
use std::rc::Rc;
use std::time::Duration;

/// What a client does, in parts of a hundred.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mix {
    pub put: u64,
    /// Values that are put again as they are, with another expiry.
    pub again: u64,
    pub delete: u64,
    pub batch: u64,
    pub get: u64,
    pub scan: u64,
    pub large: u64,
    pub retire: u64,
    /// Removals of what has expired.
    pub expire: u64,
    /// Questions for a random key.
    pub random: u64,
    /// The largest value of a plain put, in bytes.
    pub value_max: u64,
    /// The longest pause after a call, in µs.
    pub pause_us: u64,
    /// How many writes of a hundred wait until they are durable.
    pub waits: u64,
}

impl Mix {
    pub(crate) fn draw(rng: &mut Rng) -> Self {
        Self {
            put: 40,
            again: 2 + rng.below(12),
            delete: 5 + rng.below(15),
            batch: 10,
            get: 20,
            scan: 3,
            large: rng.below(2),
            retire: rng.below(2),
            expire: 0,
            random: 0,
            value_max: [100, 1000, 10_000, 60_000][rng.below(4) as usize],
            pause_us: [0, 50, 500][rng.below(3) as usize],
            waits: [10, 50, 100][rng.below(3) as usize],
        }
    }

    fn total(&self) -> u64 {
        self.put
            + self.again
            + self.delete
            + self.batch
            + self.get
            + self.scan
            + self.large
            + self.retire
            + self.expire
            + self.random
    }
}

/// A write that was refused: the drive is full, or failed where it may.
#[derive(Debug)]
pub(crate) struct Full;

/// One client. A wrong answer panics: the world catches it and names the seed.
pub(crate) struct Client {
    pub store: Store,
    pub model: Rc<Model>,
    pub rng: Rng,
    pub mix: Mix,
}

impl Client {
    /// Makes `calls` calls.
    pub(crate) async fn run(mut self, calls: u64) {
        for _ in 0..calls {
            self.call().await;
            if self.mix.pause_us > 0 && self.rng.chance(0.5) {
                sleep(Duration::from_micros(self.rng.below(self.mix.pause_us))).await;
            }
        }
    }

    async fn call(&mut self) {
        let mix = self.mix;
        let mut draw = self.rng.below(mix.total());
        let mut picks = |weight: u64| {
            let hit = draw < weight;
            draw = draw.saturating_sub(weight);
            // A miss leaves what follows to decide.
            if hit {
                draw = u64::MAX;
            }
            hit
        };
        if picks(mix.retire) {
            return self.retire().await;
        }
        let (put, delete, batch, get, scan) =
            (picks(mix.put), picks(mix.delete), picks(mix.batch), picks(mix.get), picks(mix.scan));
        let (expire, random, again) = (picks(mix.expire), picks(mix.random), picks(mix.again));
        let space = self.model.random_space(&mut self.rng);
        self.enter(space, 1);
        let refused = if expire {
            self.expire(space).await.is_err()
        } else if random {
            self.random(space).await;
            false
        } else if again {
            let key = self.model.random_key(space, &mut self.rng);
            self.put_again(key).await.is_err()
        } else if put {
            let change = self.put(space);
            self.write(&[change]).await.is_err()
        } else if delete {
            let key = self.model.random_key(space, &mut self.rng);
            self.write(&[Change::Delete(key)]).await.is_err()
        } else if batch {
            let changes = self.batch(space);
            self.write(&changes).await.is_err()
        } else if get {
            self.get(space).await;
            false
        } else if scan {
            self.scan(space).await;
            false
        } else {
            self.large(space).await.is_err()
        };
        if refused {
            // Make room, as a user would.
            for _ in 0..4 {
                let key = self.model.random_key(space, &mut self.rng);
                let _ = self.write(&[Change::Delete(key)]).await;
            }
        }
        self.enter(space, -1);
    }

    /// Counts this client into a space, so that nobody retires it meanwhile.
    fn enter(&self, space: u32, change: i32) {
        let mut spaces = self.model.spaces.borrow_mut();
        let mut leaving = self.model.leaving.borrow_mut();
        if let Some(users) = spaces.get_mut(&space).or_else(|| leaving.get_mut(&space)) {
            *users = users.saturating_add_signed(change);
        }
    }

    fn value(&mut self, len: u64) -> Value {
        let stamp = self.model.oracle.borrow_mut().stamp();
        let expire_ms = match self.rng.below(10) {
            0 => wall_ms() + self.rng.below(10_000),
            1 => wall_ms().saturating_sub(self.rng.below(10_000)).max(1),
            _ => 0,
        };
        Value { stamp, len, tag: self.rng.below(8) as u8, expire_ms }
    }

    pub(crate) fn put(&mut self, space: u32) -> Change {
        let len = match self.rng.below(4) {
            0 => self.rng.below(40),
            _ => self.rng.below(self.mix.value_max),
        };
        let key = self.model.random_key(space, &mut self.rng);
        Change::Put(key, self.value(len))
    }

    fn batch(&mut self, space: u32) -> Vec<Change> {
        let count = 2 + self.rng.below(6);
        let mut changes: Vec<Change> = (0..count)
            .map(|_| match self.rng.below(4) {
                0 => Change::Delete(self.model.random_key(space, &mut self.rng)),
                _ => self.put(space),
            })
            .collect();
        changes.push(Change::Tally(space, self.rng.below(20) as i64 - 9));
        changes
    }

    /// Writes; waits for durability now and then, and tells the model.
    pub(crate) async fn write(&mut self, changes: &[Change]) -> Result<(), Full> {
        self.write_batch(|client, looks| client.batch_of(changes, looks), |_| changes.to_vec()).await
    }

    /// The batch that makes changes; with `looks`, it says which keys are not there.
    fn batch_of(&self, changes: &[Change], looks: bool) -> Batch {
        let mut batch = Batch::new();
        for change in changes {
            match change {
                Change::Put(key, value) => {
                    batch.put(SliceId(key.0), &key.1, value.tag, value.expire_ms, &value.bytes(key));
                    if looks && matches!(self.store.peek_meta(SliceId(key.0), &key.1), Peek::Absent) {
                        self.model.count("keys known to be new", 1);
                        batch.of_new_key();
                    }
                }
                Change::Delete(key) => batch.delete(SliceId(key.0), &key.1),
                Change::Retire(prefix) => {
                    (0..self.model.slices).for_each(|slice| batch.retire(SliceId(slice), prefix));
                }
                Change::Tally(space, delta) => batch.tally(*space, *delta),
            }
        }
        batch
    }

    /// Puts what a key has again, with another expiry.
    pub(crate) async fn put_again(&mut self, key: Key) -> Result<(), Full> {
        let slice = SliceId(key.0);
        let stored = match self.store.peek_stored(slice, &key.1) {
            Peek::Found(stored) => Some(stored),
            Peek::Absent => None,
            Peek::NeedsFlash(_) => match self.store.get_stored(slice, &key.1).await {
                Ok(stored) => stored,
                Err(error) => panic!("what is to be put again of {}: {error}", show(&key)),
            },
        };
        let Some(stored) = stored else { return Ok(()) };
        self.model.count(if stored.is_in_place() { "put again in place" } else { "put again whole" }, 1);
        let expire_ms = if self.rng.chance(0.2) { 0 } else { wall_ms() + self.rng.below(20_000) };
        let mut batch = Batch::new();
        batch.put_again(slice, &key.1, expire_ms, &stored);
        batch.set_rewrites(true);
        let changes = |client: &Self| {
            // Others may have written since it was looked up.
            let current = client.model.oracle.borrow().current(&key).expect("nothing was put again");
            vec![Change::Put(key.clone(), Value { expire_ms, ..current })]
        };
        self.write_batch(|_, _| batch.clone(), changes).await
    }

    /// Writes a batch; what it looks at is as it is when it is written, or it is to look at nothing. The changes are asked for when
    /// they are made.
    async fn write_batch(
        &mut self,
        batch_of: impl Fn(&Self, bool) -> Batch,
        changes: impl FnOnce(&Self) -> Vec<Change>,
    ) -> Result<(), Full> {
        let mut written = self.store.write(&batch_of(self, true));
        if matches!(written, Err(WriteError::Busy)) {
            self.model.count("writes told to wait", 1);
            written = self.store.write_ready(&batch_of(self, false)).await;
        }
        let seq = match written {
            Ok(seq) => seq,
            Err(WriteError::Full(report)) => {
                self.model.count("writes refused as full", 1);
                assert_eq!(report.accounted(), report.raw, "the space report does not add up: {report}");
                return Err(Full);
            }
            // It waited for room while the store was closed.
            Err(WriteError::ReadOnly(_)) if self.store.is_closing() => return Err(Full),
            Err(WriteError::ReadOnly(_)) if self.model.may_fail.get() => {
                self.model.count("writes refused by a failed drive", 1);
                return Err(Full);
            }
            Err(WriteError::Gone(_)) => {
                self.model.count("gone before they were put again", 1);
                return Ok(());
            }
            Err(WriteError::Unreadable(_)) if self.model.may_fail.get() => return Err(Full),
            Err(error) => panic!("a write was refused: {error}"),
        };
        let changes = changes(self);
        let write = self.model.oracle.borrow_mut().write(&changes);
        self.model.count("writes", 1);
        if self.rng.below(100) < self.mix.waits {
            if let Err(error) = self.store.wait_durable(seq).await {
                if self.model.may_fail.get() {
                    self.model.count("writes that a failed drive did not acknowledge", 1);
                    return Err(Full);
                }
                panic!("a write never became durable: {error}");
            }
            assert!(self.store.is_durable(seq));
            self.model.promise(write, seq);
            self.model.count("writes acknowledged", 1);
        }
        Ok(())
    }

    /// Writes a value in pieces.
    pub(crate) async fn large(&mut self, space: u32) -> Result<(), Full> {
        let key = self.model.random_key(space, &mut self.rng);
        self.large_of(key).await
    }

    pub(crate) async fn large_of(&mut self, key: Key) -> Result<(), Full> {
        let len = VALUE_BYTES_MAX as u64 + 1 + self.rng.below(1 << 20);
        let value = self.value(len);
        let Some(large) = self.large_pieces(&key, &value).await else { return Err(Full) };
        let mut batch = Batch::new();
        batch.put_large(SliceId(key.0), &key.1, value.tag, value.expire_ms, &large);
        self.model.count("large values", 1);
        self.write_batch(|_, _| batch.clone(), |_| vec![Change::Put(key, value)]).await
    }

    async fn large_pieces(&mut self, key: &Key, value: &Value) -> Option<LargeRef> {
        let mut rest = Bytes::from(value.bytes(key));
        let mut writer = self.store.large_writer(SliceId(key.0), &key.1);
        let refused = |error: WriteError| match error {
            WriteError::Full(_) => {
                self.model.count("writes refused as full", 1);
                None
            }
            WriteError::ReadOnly(_) if self.model.may_fail.get() => None,
            other => panic!("a large value was refused: {other}"),
        };
        while !rest.is_empty() {
            let piece = rest.split_to(rest.len().min(1 + self.rng.below(400_000) as usize));
            if let Err(error) = writer.push(&piece).await {
                return refused(error);
            }
        }
        match writer.finish().await {
            Ok(large) => Some(large),
            Err(error) => refused(error),
        }
    }

    pub(crate) async fn get(&mut self, space: u32) {
        let key = self.model.random_key(space, &mut self.rng);
        let from = self.model.oracle.borrow_mut().begin_read();
        let slice = SliceId(key.0);
        let entry = match self.store.peek(slice, &key.1) {
            Peek::Found(entry) => Some(entry),
            Peek::Absent => None,
            Peek::NeedsFlash(hint) => {
                self.model.count("reads from flash", 1);
                match self.store.get_at(slice, &key.1, hint).await {
                    Ok(entry) => entry,
                    Err(error) => panic!("get {}: {error}", show(&key)),
                }
            }
        };
        let seen = match &entry {
            Some(entry) => match seen(&self.store, entry).await {
                Ok(seen) => Some(seen),
                Err(error) => panic!("get {}: {error}", show(&key)),
            },
            None => None,
        };
        if let Err(wrong) = self.model.oracle.borrow_mut().end_read(&key, from, seen.as_ref()) {
            panic!("a read is wrong: {wrong}");
        }
        self.model.count("reads", 1);
    }

    /// Removes a few keys of a space that have expired.
    async fn expire(&mut self, space: u32) -> Result<(), Full> {
        let (from, at) = (self.model.oracle.borrow_mut().begin_read(), wall_ms());
        let found = match self.store.expired(at, 10).await {
            Ok(found) => found,
            Err(error) => panic!("what has expired: {error}"),
        };
        let has_expired = |value: Value| value.expire_ms != 0 && value.expire_ms <= at;
        let keys = found.into_iter().map(|(slice, key)| (slice.0, key.to_vec()));
        let keys: Vec<Key> = keys.filter(|key| key.1.starts_with(&space.to_be_bytes())).collect();
        {
            let mut oracle = self.model.oracle.borrow_mut();
            for key in &keys {
                let had = oracle.since(key, from).any(|value| value.is_some_and(has_expired));
                assert!(had, "{} had not expired", show(key));
            }
            oracle.drop_read(from);
        }
        for key in keys {
            let current = self.model.oracle.borrow().current(&key);
            if current.is_some_and(has_expired) {
                self.write(&[Change::Delete(key)]).await?;
                self.model.count("expired keys removed", 1);
            }
        }
        Ok(())
    }

    /// Asks for a random key of a space.
    async fn random(&mut self, space: u32) {
        let slice = SliceId(self.rng.below(u64::from(self.model.slices)) as u16);
        let from = self.model.oracle.borrow_mut().begin_read();
        let found = match self.store.random_key(slice, &space.to_be_bytes(), &mut self.rng).await {
            Ok(found) => found,
            Err(error) => panic!("a random key: {error}"),
        };
        let (lower, upper) = space_bounds(space);
        let mut oracle = self.model.oracle.borrow_mut();
        if let Some(key) = found {
            assert!(key.starts_with(&space.to_be_bytes()), "a random key of another space");
            let key = (slice.0, key.to_vec());
            assert!(oracle.since(&key, from).any(|value| value.is_some()), "{} was not there", show(&key));
            self.model.count("random keys", 1);
        } else {
            let owned = |bound: Bound<Bytes>| bound.map(|key| key.to_vec());
            for (key, _) in oracle.range(slice.0, owned(lower), owned(upper)) {
                let was_gone = oracle.since(&key, from).any(|value| value.is_none());
                assert!(was_gone, "no random key is found, but {} was there all the time", show(&key));
            }
        }
        oracle.drop_read(from);
    }

    /// Scans a part of a space through a snapshot, while others write.
    async fn scan(&mut self, space: u32) {
        let (mut lower, mut upper) = space_bounds(space);
        let edge = |client: &mut Self| Bytes::from(client.model.random_key(space, &mut client.rng).1);
        if self.rng.chance(0.5) {
            lower = Bound::Excluded(edge(self));
        }
        if self.rng.chance(0.5) {
            upper = Bound::Included(edge(self));
        }
        let inverted = match (&lower, &upper) {
            (Bound::Included(low) | Bound::Excluded(low), Bound::Included(high) | Bound::Excluded(high)) => {
                low >= high
            }
            _ => false,
        };
        if inverted {
            return;
        }
        let one = SliceId(self.rng.below(u64::from(self.model.slices)) as u16);
        let set = if self.rng.chance(0.5) { SliceSet::All } else { SliceSet::One(one) };
        let backward = self.rng.chance(0.5);
        let want = if self.rng.chance(0.7) { Want::Values } else { Want::Keys };
        let snapshot = self.store.snapshot();
        let expected = self.expected(set, &lower, &upper, backward);
        let direction = if backward { Direction::Backward } else { Direction::Forward };
        let limit = if self.rng.chance(0.3) { expected.len() } else { self.rng.below(50) as usize };
        // Some are told where their page ends, and asked for twice as much.
        let want = match want {
            Want::Values if limit % 3 == 1 => Want::Page { keys: limit as u64 / 2, bytes: 1 << (limit % 20) },
            want => want,
        };
        let mut scan = self.store.scan(&snapshot, set, lower, upper, direction, want);
        for (place, (key, value)) in expected.iter().enumerate().take(limit) {
            let (found, entry) = match scan.next().await {
                Ok(Some(found)) => found,
                Ok(None) => panic!("a scan ended before {} (place {place} of {})", show(key), expected.len()),
                Err(error) => panic!("a scan at {}: {error}", show(key)),
            };
            assert_eq!(&found[..], &key.1[..], "a scan found another key at place {place}");
            assert_eq!((entry.tag, entry.expire_ms), (value.tag, value.expire_ms), "a scan at {}", show(key));
            if want != Want::Keys {
                match seen(&self.store, &entry).await {
                    Ok(seen) => {
                        assert!(seen.bytes == value.bytes(key), "a scan read wrong bytes at {}", show(key))
                    }
                    Err(error) => panic!("a scan at {}: {error}", show(key)),
                }
            }
            if self.rng.chance(0.2) {
                yield_now().await;
            }
        }
        if limit >= expected.len() {
            match scan.next().await {
                Ok(None) => {}
                Ok(Some((found, _))) => panic!("a scan found {found:?} beyond what was there"),
                Err(error) => panic!("a scan at its end: {error}"),
            }
        }
        self.model.count("scans", 1);
    }

    fn expected(
        &self,
        set: SliceSet,
        lower: &Bound<Bytes>,
        upper: &Bound<Bytes>,
        backward: bool,
    ) -> Vec<(Key, Value)> {
        let oracle = self.model.oracle.borrow();
        let slices = match set {
            SliceSet::One(slice) => slice.0..slice.0 + 1,
            SliceSet::All => 0..self.model.slices,
        };
        let owned = |bound: &Bound<Bytes>| bound.as_ref().map(|key| key.to_vec());
        let mut expected: Vec<_> =
            slices.flat_map(|slice| oracle.range(slice, owned(lower), owned(upper))).collect();
        expected.sort_by(|a, b| a.0.1.cmp(&b.0.1));
        if backward {
            expected.reverse();
        }
        expected
    }

    /// Retires a space once nobody is in it, and opens another.
    async fn retire(&mut self) {
        let space = self.model.random_space(&mut self.rng);
        self.model.new_space();
        let Some(mut users) = self.model.spaces.borrow_mut().remove(&space) else { return };
        // Those who are in it leave before anything else; nobody new comes.
        let parked = Rc::clone(&self.model);
        parked.leaving.borrow_mut().insert(space, users);
        while users > 0 {
            sleep(Duration::from_micros(100)).await;
            users = parked.leaving.borrow().get(&space).copied().unwrap_or(0);
        }
        parked.leaving.borrow_mut().remove(&space);
        if self.write(&[Change::Retire(space.to_be_bytes().to_vec())]).await.is_ok() {
            self.model.count("spaces retired", 1);
        }
    }
}
