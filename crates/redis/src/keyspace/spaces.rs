//! Which space each of the databases 0…15 is in.
//!
//! One stored record of the system space says so (`docs/format/redis-keys.md`). Emptying a database gives it
//! the next unused space and retires the old one: the cost does not depend on how much it held. The record is
//! durable before any prefix is retired, so a crash in between leaves an unreachable space, which the next
//! opening retires: the record keeps the previous space of each database for that. What was counted of a space goes
//! with it.
//!
//! On drives other than the record's the new space may hold keys before the record is durable. If a crash takes the record back, no
//! database is in that space, and its number would be given out again: opening looks for such keys, passes their spaces over
//! and retires them ([`pass_over`]). Rejected: to let nobody write before the record is durable, which everybody would wait for.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use bytes::Bytes;
use pumice_kv::{Direction, Seq, SliceId, SliceSet, Want};
use pumice_node::{Node, NodeBatch, Place};

use super::change::StringValue;
use super::head::is_expired;
use super::key::{RawKey, SYSTEM_SPACE, Space, head_prefix, space_of, space_prefix};
use crate::context::Ctx;
use crate::errors::{CommandResult, Failure};

/// Databases that SELECT reaches.
pub const DATABASES: usize = 16;

const VERSION: u8 = 1;
const RECORD_BYTES: usize = 8 + DATABASES * 8;
/// Counts taken back by one batch.
const COUNTS_AT_ONCE: usize = 1024;
/// Spaces retired by one batch, on all slices of a drive.
const SPACES_AT_ONCE: usize = 64;

/// Behind the last space that can be given out: from there on are the names of counts of what expires.
const SPACES_END: u32 = SYSTEM_SPACE.expiring().0;

const ALL_GIVEN_OUT: &str = "databases of these drives were emptied so often that there is no space left to move one to: \
     delete its keys, or format the drives anew";

/// Where the record lives.
pub const RECORD_PLACE: Place = Place { drive: 0, slice: SliceId(0) };

/// The key of the record.
pub fn record_key() -> RawKey {
    let mut key = RawKey::from_slice(&head_prefix(SYSTEM_SPACE));
    key.extend_from_slice(b"databases");
    key
}

/// Databases, and the spaces that they move to.
pub type Moved = Vec<(usize, Space)>;

/// The space of each database; any core may look.
pub struct Spaces {
    current: [AtomicU32; DATABASES],
    previous: [AtomicU32; DATABASES],
    next: AtomicU32,
    moved_at: AtomicU64,
}

impl Default for Spaces {
    /// The spaces of a new drive: database d is in space d + 1.
    fn default() -> Self {
        Self {
            current: std::array::from_fn(|database| AtomicU32::new(database as u32 + 1)),
            previous: std::array::from_fn(|_| AtomicU32::new(0)),
            next: AtomicU32::new(DATABASES as u32 + 1),
            moved_at: AtomicU64::new(0),
        }
    }
}

impl Spaces {
    /// The space that database `database` is in.
    pub fn of(&self, database: usize) -> Space {
        Space(self.current[database].load(Ordering::Acquire))
    }

    /// The spaces that databases left last: to be retired again at opening.
    pub fn left_behind(&self) -> impl Iterator<Item = Space> {
        self.previous.iter().map(|space| Space(space.load(Ordering::Acquire))).filter(|space| space.0 != 0)
    }

    /// Which database is in `space`.
    pub fn database_of(&self, space: Space) -> Option<usize> {
        (0..DATABASES).find(|&database| self.of(database) == space)
    }

    /// Whether a database left `space` and none will be in it again.
    pub fn is_left(&self, space: Space) -> bool {
        // In this order: where a database is put is known before its space counts as given out.
        let was_given = space < Space(self.next.load(Ordering::Acquire)) && space != SYSTEM_SPACE;
        was_given && self.database_of(space).is_none()
    }

    /// Reads the stored record; `None` when it is damaged or of a newer version: each database has a space of its own, none is one
    /// that a database left (opening retires those), and all were given out.
    pub fn decode(record: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_le_bytes(record.get(at..at + 4)?.try_into().ok()?));
        if record.len() != RECORD_BYTES || record[0] != VERSION {
            return None;
        }
        let spaces = Self::default();
        spaces.next.store(word(4)?, Ordering::Release);
        for database in 0..DATABASES {
            spaces.current[database].store(word(8 + database * 8)?, Ordering::Release);
            spaces.previous[database].store(word(12 + database * 8)?, Ordering::Release);
        }
        let current: BTreeSet<Space> = (0..DATABASES).map(|database| spaces.of(database)).collect();
        let left: BTreeSet<Space> = spaces.left_behind().collect();
        let next = Space(spaces.next.load(Ordering::Acquire));
        let is_sound = current.len() == DATABASES
            && current.is_disjoint(&left)
            && current.iter().chain(&left).all(|space| (Space(1)..next).contains(space))
            && next.0 <= SPACES_END;
        is_sound.then_some(spaces)
    }

    /// The record after `databases` were given new spaces, and those spaces. `pending`: what the same
    /// transaction chose before. Nothing changes yet: store the record, then [`Spaces::apply`]. `None` when all spaces were given
    /// out.
    pub fn moved(&self, databases: &[usize], pending: &[(usize, Space)]) -> Option<(Vec<u8>, Moved)> {
        let mut moved = pending.to_vec();
        let mut next = self.next.load(Ordering::Acquire) + pending.len() as u32;
        for &database in databases {
            if !pending.iter().any(|(known, _)| *known == database) {
                moved.push((database, Space(next)));
                next += 1;
            }
        }
        if next > SPACES_END {
            return None;
        }
        let mut record = vec![0u8; RECORD_BYTES];
        record[0] = VERSION;
        record[4..8].copy_from_slice(&next.to_le_bytes());
        for database in 0..DATABASES {
            let mut current = self.of(database);
            let mut previous = Space(self.previous[database].load(Ordering::Acquire));
            if let Some((_, space)) = moved.iter().find(|(known, _)| *known == database) {
                previous = current;
                current = *space;
            }
            record[8 + database * 8..][..4].copy_from_slice(&current.0.to_le_bytes());
            record[12 + database * 8..][..4].copy_from_slice(&previous.0.to_le_bytes());
        }
        Some((record, moved))
    }

    /// The number of the record by which a database moved last since the server was started; 0: none did. It may not be durable, and
    /// whoever tells of what is in a database, or puts something there, waits for it: on another drive than the record's nothing
    /// else would make sure of that, and of an absent key there is nothing to wait for.
    pub fn moved_at(&self) -> Seq {
        self.moved_at.load(Ordering::Acquire)
    }

    /// Puts databases into the spaces that [`Spaces::moved`] chose in the record with this number.
    pub fn apply(&self, moved: &[(usize, Space)], record_seq: Seq) {
        self.moved_at.fetch_max(record_seq, Ordering::AcqRel);
        for &(database, space) in moved {
            let before = self.current[database].swap(space.0, Ordering::AcqRel);
            self.previous[database].store(before, Ordering::Release);
            self.next.fetch_max(space.0 + 1, Ordering::AcqRel);
        }
    }
}

/// Where keys cannot be looked at so many spaces are passed over: databases are not emptied more often before a record is durable.
const UNSEEN_SPACES_MAX: u32 = 1 << 16;

/// Keeps spaces from being given out that hold something though the record knows nothing of them: it was lost in a crash that keys
/// on another drive outlived. Their keys are retired, once a record that passes them over is on flash: below a retired prefix
/// nobody may write again. Should that fail, they are passed over all the same, and the next opening finds them again.
pub async fn pass_over(node: &Node, spaces: &Spaces) {
    let next = Space(spaces.next.load(Ordering::Acquire));
    let (mut unknown, mut last) = (BTreeSet::new(), None);
    for drive in 0..node.drive_count() {
        let counted = node.tallies(drive).into_iter().map(|(name, _)| Space(name).of_keys()).max();
        last = last.max(counted.filter(|space| *space >= next));
        let mut from = next;
        while from < SYSTEM_SPACE.expiring() {
            match first_space(node, drive, from).await {
                Ok(Some(space)) => {
                    unknown.insert((drive, space));
                    last = last.max(Some(space));
                    from = Space(space.0 + 1);
                }
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!(drive, %error, "keys that a crash left in spaces of no database may stay");
                    last = last.max(Some(Space(from.0 + UNSEEN_SPACES_MAX)));
                    break;
                }
            }
        }
    }
    let Some(last) = last else { return };
    spaces.next.store((last.0 + 1).min(SPACES_END), Ordering::Release);
    if let Err(error) = retire_unknown(node, spaces, unknown.into_iter().collect()).await {
        tracing::warn!(error, "keys that a crash left in spaces of no database take space for now");
    }
}

async fn retire_unknown(node: &Node, spaces: &Spaces, unknown: Vec<(u16, Space)>) -> Result<(), String> {
    let Some((stored, _)) = spaces.moved(&[], &[]) else { return Err(ALL_GIVEN_OUT.to_string()) };
    let mut record = NodeBatch::new();
    record.put(RECORD_PLACE, &record_key(), 0, 0, &stored);
    node.write_ready(&record).await.map_err(|error| error.to_string())?;
    node.sync_drive(RECORD_PLACE.drive).await.map_err(|error| error.to_string())?;
    let mut outcome = Ok(());
    for some in unknown.chunk_by(|a, b| a.0 == b.0).flat_map(|on_one| on_one.chunks(SPACES_AT_ONCE)) {
        let mut batch = NodeBatch::new();
        for &(drive, space) in some {
            let places = node.places().filter(|place| place.drive == drive);
            places.for_each(|place| batch.retire(place, &space_prefix(space)));
        }
        // What one drive refuses others may take.
        if let Err(error) = node.write_ready(&batch).await {
            outcome = Err(error.to_string());
        }
    }
    outcome
}

/// The first space of databases from `from` on of which there are keys on a drive.
async fn first_space(node: &Node, drive: u16, from: Space) -> Result<Option<Space>, pumice_kv::StoreError> {
    let store = node.store(drive);
    let lower = Bound::Included(Bytes::copy_from_slice(&space_prefix(from)));
    // Where the names of counts of what expires begin.
    let upper = Bound::Excluded(Bytes::copy_from_slice(&space_prefix(SYSTEM_SPACE.expiring())));
    let snapshot = store.snapshot();
    let mut scan = store.scan(&snapshot, SliceSet::All, lower, upper, Direction::Forward, Want::Keys);
    Ok(scan.next().await?.map(|(key, _)| space_of(&key)))
}

/// Takes back what is counted of spaces that no database is in: a crash came before that was done, or the drives are of a time when
/// nobody did. Should it fail, the next opening does it.
pub async fn forget_counts(node: &Node, spaces: &Spaces) {
    for drive in 0..node.drive_count() {
        let place = Place { drive, slice: SliceId(0) };
        let is_left = |name: u32| spaces.database_of(Space(name).of_keys()).is_none();
        let left: Vec<_> = node.tallies(drive).into_iter().filter(|(name, _)| is_left(*name)).collect();
        for some in left.chunks(COUNTS_AT_ONCE) {
            let mut batch = NodeBatch::new();
            some.iter().for_each(|(name, counted)| batch.tally(place, *name, -counted));
            if let Err(error) = node.write_ready(&batch).await {
                tracing::info!(%error, "counts of emptied databases are kept for now");
                return;
            }
        }
    }
}

impl Ctx {
    /// Empties databases. Constant work, whatever they hold; the engine drops the old keys in its own time.
    pub async fn flush(&mut self, databases: &[usize]) -> CommandResult {
        let _held = self.latch_all().await;
        let mut touched = Vec::new();
        for &database in databases {
            for key in self.server.node.watches().watched_in(database as u32) {
                // Redis aborts a transaction only if the key that it watches was there. One that was there at WATCH, and
                // whose time is over, EXEC finds by itself.
                let key = self.key_in(database, &key);
                let meta = self.meta(key.place, key.raw()).await?;
                if meta.is_some_and(|meta| !is_expired(meta.expire_ms, self.now_ms)) {
                    touched.push(key);
                }
            }
        }
        let pending = self.transaction.as_ref().and_then(|overlay| overlay.moved.clone()).unwrap_or_default();
        let Some((record, moved)) = self.server.spaces.moved(databases, &pending) else {
            return Err(Failure::new(format!("ERR {ALL_GIVEN_OUT}")));
        };
        if let Some(overlay) = &mut self.transaction {
            // Emptied for the second time: what the transaction put there goes, the new space may stay.
            for (_, space) in pending.iter().filter(|(database, _)| databases.contains(database)) {
                overlay.drop_space(*space);
            }
        }
        let mut change = self.change();
        touched.iter().for_each(|key| change.touch(key));
        change.put(RECORD_PLACE, &record_key(), 0, 0, &StringValue::Bytes(&record));
        for &(database, _) in &moved[pending.len()..] {
            let old = self.server.spaces.of(database);
            for place in self.server.node.places().filter(|place| place.drive == RECORD_PLACE.drive) {
                change.retire(place, &space_prefix(old));
            }
            for name in [old, old.expiring()] {
                let drive = RECORD_PLACE.drive;
                let pending = self.transaction.as_ref().map_or(0, |overlay| overlay.tally_on(drive, name));
                let counted = self.server.node.tally_on(drive, name.0) + pending;
                if counted != 0 {
                    change.tally(RECORD_PLACE, name, -counted);
                }
            }
        }
        self.commit(change).await?;
        match &mut self.transaction {
            Some(overlay) => overlay.moved = Some(moved),
            None => self.finish_move(moved),
        }
        Ok(())
    }

    /// Puts databases into their new spaces once the record is written. On other drives the old spaces are
    /// retired when the record is durable.
    pub(super) fn finish_move(&mut self, moved: Vec<(usize, Space)>) {
        let old: Vec<Space> = moved.iter().map(|&(database, _)| self.server.spaces.of(database)).collect();
        let node = self.server.node.clone();
        // The change that has the record was written a moment ago.
        let needs = self.gate.needs().iter().find(|(drive, _)| *drive == RECORD_PLACE.drive);
        let record_seq = needs.map_or_else(|| node.store(RECORD_PLACE.drive).last_seq(), |(_, seq)| *seq);
        self.server.spaces.apply(&moved, record_seq);
        if node.drive_count() == 1 {
            return;
        }
        pumice_reactor::spawn(async move {
            // On flash, however early writes are acknowledged: after a crash that the record did not outlive the databases
            // are in the old spaces again, and are written to.
            if node.sync_drive(RECORD_PLACE.drive).await.is_err() {
                return;
            }
            for drive in (0..node.drive_count()).filter(|drive| *drive != RECORD_PLACE.drive) {
                let mut batch = NodeBatch::new();
                for place in node.places().filter(|place| place.drive == drive) {
                    old.iter().for_each(|space| batch.retire(place, &space_prefix(*space)));
                }
                let place = Place { drive, slice: SliceId(0) };
                for name in old.iter().flat_map(|space| [*space, space.expiring()]) {
                    match node.tally_on(drive, name.0) {
                        0 => {}
                        counted => batch.tally(place, name.0, -counted),
                    }
                }
                // Should it fail, the next opening retires them.
                let _ = node.write_ready(&batch).await;
            }
        });
    }
}
