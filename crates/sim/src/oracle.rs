//! What a store must hold: a model of the keyspace with its recent past.
//!
//! Writes are numbered in the order in which they became visible. Each key keeps its versions since the last
//! write that was acknowledged as durable, so the model can answer what a read that overlapped some writes may
//! see, and after a crash which states may have survived. The engine promises that a crash keeps a *prefix* of
//! the writes, at least to the last acknowledged one: [`Oracle::survivors`] looks for one prefix that explains
//! everything observed. That covers lost acknowledgements, half batches, deletes that come back and reordering
//! at once.

use pumice_base::hash::stable_hash64;
use pumice_base::rng::Rng;
use std::collections::BTreeMap;
use std::ops::Bound;

/// A key: its slice and its bytes.
pub type Key = (u16, Vec<u8>);

/// What a write put under a key. The bytes follow from the key, the write and the length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value {
    /// The number of the write, and which of its changes.
    pub stamp: u64,
    /// Length in bytes.
    pub len: u64,
    /// The caller's type byte.
    pub tag: u8,
    /// Expiry in Unix milliseconds, 0 for none.
    pub expire_ms: u64,
}

impl Value {
    /// Its bytes: a recognisable head (stamp, key hash) and a random filler.
    pub fn bytes(&self, key: &Key) -> Vec<u8> {
        let print = stable_hash64(u64::from(key.0), &key.1);
        let mut out = vec![0; self.len as usize];
        Rng::from_seed(print ^ self.stamp.wrapping_mul(0x9E37_79B9_7F4A_7C15)).fill(&mut out);
        let head = [self.stamp.to_le_bytes(), print.to_le_bytes()].concat();
        let shown = head.len().min(out.len());
        out[..shown].copy_from_slice(&head[..shown]);
        out
    }
}

/// What was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// The type byte.
    pub tag: u8,
    /// Expiry in Unix milliseconds, 0 for none.
    pub expire_ms: u64,
}

impl Seen {
    fn is(&self, key: &Key, value: &Value) -> bool {
        self.tag == value.tag
            && self.expire_ms == value.expire_ms
            && self.bytes.len() as u64 == value.len
            && self.bytes == value.bytes(key)
    }

    /// For messages: what this looks like.
    fn describe(&self) -> String {
        let stamp = self.bytes.get(..8).map(|head| u64::from_le_bytes(head.try_into().unwrap_or([0; 8])));
        format!("{} bytes, tag {}, expiry {}, stamp {stamp:?}", self.bytes.len(), self.tag, self.expire_ms)
    }
}

/// One change of one write.
#[derive(Clone, Debug)]
pub enum Change {
    /// Sets a key; the stamp is filled in by [`Oracle::write`].
    Put(Key, Value),
    /// Removes a key.
    Delete(Key),
    /// Removes all keys of all slices that begin with this.
    Retire(Vec<u8>),
    /// Adds to a counter.
    Tally(u32, i64),
}

#[derive(Clone, Copy, Debug)]
struct Version<T> {
    write: u64,
    value: T,
}

/// The newest version up to a write.
fn at<T: Copy>(versions: &[Version<T>], write: u64) -> Option<T> {
    versions.iter().rev().find(|version| version.write <= write).map(|version| version.value)
}

/// Drops what no state from `floor` on needs.
fn prune<T>(versions: &mut Vec<Version<T>>, floor: u64) {
    let keep_from = versions.iter().rposition(|version| version.write <= floor).unwrap_or(0);
    versions.drain(..keep_from);
}

/// The model.
#[derive(Clone, Debug, Default)]
pub struct Oracle {
    keys: BTreeMap<Key, Vec<Version<Option<Value>>>>,
    tallies: BTreeMap<u32, Vec<Version<i64>>>,
    writes: u64,
    acked: u64,
    stamps: u64,
    /// Reads under way, by the newest write at their start.
    reads: BTreeMap<u64, u32>,
    /// Every version is kept.
    remembers: bool,
}

impl Oracle {
    /// A model that keeps every version, those too that a later change of the same write replaced, for [`Oracle::ever_held`].
    pub fn that_remembers() -> Self {
        Self { remembers: true, ..Self::default() }
    }

    /// A stamp for a value that is about to be written.
    pub fn stamp(&mut self) -> u64 {
        self.stamps += 1;
        self.stamps
    }

    /// A write has become visible: its number.
    pub fn write(&mut self, changes: &[Change]) -> u64 {
        self.writes += 1;
        let write = self.writes;
        let floor = self.reads.keys().next().map_or(self.acked, |&from| from.min(self.acked));
        for change in changes {
            let (key, value) = match change {
                Change::Put(key, value) => (key, Some(*value)),
                Change::Delete(key) => (key, None),
                Change::Retire(prefix) => {
                    let under = self.keys.iter_mut().filter(|(key, _)| key.1.starts_with(prefix));
                    let floor = if self.remembers { 0 } else { floor };
                    under.for_each(|(_, versions)| set(versions, write, None, floor));
                    continue;
                }
                Change::Tally(space, delta) => {
                    let versions = self.tallies.entry(*space).or_default();
                    let sum = versions.last().map_or(0, |version| version.value) + delta;
                    set(versions, write, sum, floor);
                    continue;
                }
            };
            let versions = self.keys.entry(key.clone()).or_default();
            if self.remembers {
                versions.push(Version { write, value });
            } else {
                set(versions, write, value, floor);
            }
        }
        write
    }

    /// `write` and all before it are durable by promise.
    pub fn acknowledge(&mut self, write: u64) {
        self.acked = self.acked.max(write);
    }

    /// The number of the newest write.
    pub fn newest(&self) -> u64 {
        self.writes
    }

    /// The number of the newest write that is durable by promise.
    pub fn acknowledged(&self) -> u64 {
        self.acked
    }

    /// What the key holds now.
    pub fn current(&self, key: &Key) -> Option<Value> {
        self.keys.get(key).and_then(|versions| at(versions, self.writes).flatten())
    }

    /// Whether this was ever written to the key, as far as the model remembers.
    pub fn ever_held(&self, key: &Key, seen: &Seen) -> bool {
        let mut versions = self.keys.get(key).into_iter().flatten();
        versions.any(|version| version.value.is_some_and(|value| seen.is(key, &value)))
    }

    /// What the counter holds now.
    pub fn tally(&self, space: u32) -> i64 {
        self.tallies.get(&space).and_then(|versions| at(versions, self.writes)).unwrap_or(0)
    }

    /// The keys that are there now, in order, within bounds.
    pub fn range(&self, slice: u16, lower: Bound<Vec<u8>>, upper: Bound<Vec<u8>>) -> Vec<(Key, Value)> {
        let bound = |bound: Bound<Vec<u8>>, open: Bound<Key>| match bound {
            Bound::Included(key) => Bound::Included((slice, key)),
            Bound::Excluded(key) => Bound::Excluded((slice, key)),
            Bound::Unbounded => open,
        };
        let lower = bound(lower, Bound::Included((slice, Vec::new())));
        let upper = match slice.checked_add(1) {
            Some(next) => bound(upper, Bound::Excluded((next, Vec::new()))),
            None => bound(upper, Bound::Unbounded),
        };
        let inside = self.keys.range((lower, upper));
        inside.filter_map(|(key, _)| Some((key.clone(), self.current(key)?))).collect()
    }

    /// Every key that is or was there, in order.
    pub fn known_keys(&self) -> impl Iterator<Item = &Key> {
        self.keys.keys()
    }

    /// A read begins: the number of the newest write, for [`Oracle::end_read`].
    pub fn begin_read(&mut self) -> u64 {
        *self.reads.entry(self.writes).or_default() += 1;
        self.writes
    }

    /// A read that began at `from` has ended without an answer.
    pub fn drop_read(&mut self, from: u64) {
        if let Some(count) = self.reads.get_mut(&from) {
            *count -= 1;
            if *count == 0 {
                self.reads.remove(&from);
            }
        }
    }

    /// All that the key has held since a read began at `from`.
    pub fn since(&self, key: &Key, from: u64) -> impl Iterator<Item = Option<Value>> {
        let versions = self.keys.get(key).map_or(&[][..], Vec::as_slice);
        let first = versions.iter().rposition(|version| version.write <= from);
        let absent_at_first = first.is_none().then_some(None);
        let during = versions[first.unwrap_or(0)..].iter().map(|version| version.value);
        absent_at_first.into_iter().chain(during)
    }

    /// Whether the read that began at `from`, and has just ended, may have seen this.
    pub fn end_read(&mut self, key: &Key, from: u64, seen: Option<&Seen>) -> Result<(), String> {
        self.drop_read(from);
        let versions = self.keys.get(key).map_or(&[][..], Vec::as_slice);
        let first = versions.iter().rposition(|version| version.write <= from);
        let during = &versions[first.unwrap_or(0)..];
        let absent_at_first = first.is_none();
        let fits = match seen {
            None => absent_at_first || during.iter().any(|version| version.value.is_none()),
            Some(seen) => {
                during.iter().any(|version| version.value.is_some_and(|value| seen.is(key, &value)))
            }
        };
        if fits {
            return Ok(());
        }
        Err(format!(
            "{}: read {}, but from write {from} to {} it held {during:?}",
            show(key),
            seen.map_or_else(|| "nothing".to_string(), Seen::describe),
            self.writes,
        ))
    }

    /// After a crash: the newest write that survived, given everything the store holds now; the model then goes
    /// on from there. `Err` says why no prefix of the writes explains what was seen.
    pub fn survivors(
        &mut self,
        seen: &BTreeMap<Key, Seen>,
        tallies: impl Fn(u32) -> i64,
    ) -> Result<u64, String> {
        if let Some((key, seen)) = seen.iter().find(|(key, _)| !self.keys.contains_key(*key)) {
            return Err(format!("{}: holds {}, but was never written", show(key), seen.describe()));
        }
        let span = (self.writes - self.acked + 1) as usize;
        // For each surviving prefix, what speaks against it.
        let mut against: Vec<Option<String>> = vec![None; span];
        for (key, versions) in &self.keys {
            let found = seen.get(key);
            // One comparison of bytes per version, not per prefix.
            let fits: Vec<bool> = versions
                .iter()
                .map(|version| match (version.value, found) {
                    (None, None) => true,
                    (Some(value), Some(seen)) => seen.is(key, &value),
                    _ => false,
                })
                .collect();
            for (index, against) in against.iter_mut().enumerate().filter(|(_, against)| against.is_none()) {
                let write = self.acked + index as u64;
                let expected = versions.iter().rposition(|version| version.write <= write);
                let right = expected.map_or(found.is_none(), |expected| fits[expected]);
                if !right {
                    *against = Some(format!(
                        "{}: holds {}, expected {:?}",
                        show(key),
                        found.map_or_else(|| "nothing".to_string(), Seen::describe),
                        expected.and_then(|expected| versions[expected].value),
                    ));
                }
            }
        }
        for (space, versions) in &self.tallies {
            let found = tallies(*space);
            for (index, against) in against.iter_mut().enumerate().filter(|(_, against)| against.is_none()) {
                let expected = at(versions, self.acked + index as u64).unwrap_or(0);
                if found != expected {
                    *against = Some(format!("tally {space}: {found}, expected {expected}"));
                }
            }
        }
        let Some(index) = against.iter().rposition(Option::is_none) else {
            let lines: Vec<String> = against
                .iter()
                .enumerate()
                .map(|(index, why)| {
                    format!("  up to {}: {}", self.acked + index as u64, why.as_deref().unwrap_or(""))
                })
                .collect();
            let shown = if lines.len() > 8 { &lines[..8] } else { &lines[..] };
            return Err(format!(
                "no prefix of the writes explains what survived ({} acknowledged, {} written):\n{}",
                self.acked,
                self.writes,
                shown.join("\n")
            ));
        };
        let survivor = self.acked + index as u64;
        self.roll_back(survivor);
        Ok(survivor)
    }

    fn roll_back(&mut self, to: u64) {
        for versions in self.keys.values_mut() {
            versions.retain(|version| version.write <= to);
        }
        for versions in self.tallies.values_mut() {
            versions.retain(|version| version.write <= to);
        }
        self.keys.retain(|_, versions| !versions.is_empty());
        self.acked = to;
        self.writes = to;
        self.reads.clear();
    }
}

fn set<T>(versions: &mut Vec<Version<T>>, write: u64, value: T, floor: u64) {
    prune(versions, floor);
    match versions.last_mut() {
        // A later change of the same write wins.
        Some(last) if last.write == write => last.value = value,
        _ => versions.push(Version { write, value }),
    }
}

/// A key for messages.
pub fn show(key: &Key) -> String {
    let printable: String =
        key.1.iter().take(40).flat_map(|&byte| std::ascii::escape_default(byte)).map(char::from).collect();
    format!("slice {} key '{printable}' ({} bytes)", key.0, key.1.len())
}
