//! Which space each of the databases 0…15 is in.
//!
//! A stored record of the system space says so ([`record`](super::record), `docs/format/redis-keys.md`). Emptying a database gives it
//! the next unused space and retires the old one's prefix: the cost does not depend on how much it held. The record is
//! durable before any prefix is retired, so a crash in between leaves a space that nobody reaches; `left` sees to it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use pumice_kv::Seq;

use super::change::StringValue;
use super::head::is_expired;
use super::key::{SYSTEM_SPACE, Space, space_prefix};
use super::left::retire_later;
use super::record::{RECORD_DRIVE, RECORD_PLACE, record_places, store_again_later};
use crate::context::Ctx;
use crate::errors::{self, CommandResult};

/// Databases that SELECT reaches.
pub const DATABASES: usize = 16;

const VERSION: u8 = 2;
/// Little enough to lie in key tables, of which each slice has its own: what lies in the log together is moved together.
const RECORD_BYTES: usize = 8 + DATABASES * 4;
const OLD_RECORD_BYTES: usize = 8 + DATABASES * 8;
/// The first number that no space has: from here on the names of counts of what expires follow. Numbers are given out once, so this
/// many times databases can be emptied.
const END: u32 = SYSTEM_SPACE.expiring().0;

/// Databases, and the spaces that they move to.
pub type Moved = Vec<(usize, Space)>;

/// The space of each database; any core may look.
pub struct Spaces {
    current: [AtomicU32; DATABASES],
    next: AtomicU32,
    moved_at: AtomicU64,
}

impl Default for Spaces {
    /// The spaces of a new drive: database d is in space d + 1.
    fn default() -> Self {
        Self {
            current: std::array::from_fn(|database| AtomicU32::new(database as u32 + 1)),
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

    /// The next space to be given out; [`END`] when all were.
    pub(super) fn next(&self) -> Space {
        Space(self.next.load(Ordering::Acquire))
    }

    /// The first space behind `space` that a database is in or that was not given out yet.
    pub(super) fn first_behind(&self, space: Space) -> Option<Space> {
        let known = (0..DATABASES).map(|database| self.of(database)).chain([self.next()]);
        known.filter(|known| *known > space).min()
    }

    /// Gives out no space up to `last`.
    pub(super) fn pass_over(&self, last: Space) {
        self.next.fetch_max(last.0.saturating_add(1).min(END), Ordering::AcqRel);
    }

    /// Which database is in `space`.
    pub fn database_of(&self, space: Space) -> Option<usize> {
        (0..DATABASES).find(|&database| self.of(database) == space)
    }

    /// Whether a database left `space` and none will be in it again.
    pub fn is_left(&self, space: Space) -> bool {
        // In this order: where a database is put is known before its space counts as given out.
        let was_given = space < self.next() && space != SYSTEM_SPACE;
        was_given && self.database_of(space).is_none()
    }

    /// Reads the stored record; `None` when it is damaged or of a newer version: each database has a space of its own, none is one
    /// that a database left, and all were given out.
    pub fn decode(record: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_le_bytes(record.get(at..at + 4)?.try_into().ok()?));
        // In version 1 each space was followed by the one that the database left, or 0.
        let stride = match (record.first()?, record.len()) {
            (&VERSION, RECORD_BYTES) => 4,
            (1, OLD_RECORD_BYTES) => 8,
            _ => return None,
        };
        let spaces = Self::default();
        spaces.next.store(word(4)?, Ordering::Release);
        for database in 0..DATABASES {
            spaces.current[database].store(word(8 + database * stride)?, Ordering::Release);
        }
        let current: BTreeSet<Space> = (0..DATABASES).map(|database| spaces.of(database)).collect();
        let mut left = BTreeSet::new();
        for database in (0..DATABASES).filter(|_| stride == 8) {
            left.insert(Space(word(12 + database * stride)?));
        }
        left.remove(&SYSTEM_SPACE);
        let next = spaces.next();
        let is_sound = current.len() == DATABASES
            && current.is_disjoint(&left)
            && current.iter().chain(&left).all(|space| (Space(1)..next).contains(space))
            && next.0 <= END;
        is_sound.then_some(spaces)
    }

    /// The record after `databases` were given new spaces, and those spaces. `pending`: what the same
    /// transaction chose before. Nothing changes yet: store the record, then [`Spaces::apply`]. `None` when all spaces were given
    /// out.
    pub fn moved(&self, databases: &[usize], pending: &[(usize, Space)]) -> Option<(Vec<u8>, Moved)> {
        let mut moved = pending.to_vec();
        let mut next = self.next().0 + pending.len() as u32;
        for &database in databases {
            if !pending.iter().any(|(known, _)| *known == database) {
                moved.push((database, Space(next)));
                next += 1;
            }
        }
        (next <= END).then(|| (self.record(next, &moved), moved))
    }

    /// The record as it is stored.
    pub(super) fn record(&self, next: u32, moved: &[(usize, Space)]) -> Vec<u8> {
        let mut record = vec![0u8; RECORD_BYTES];
        record[0] = VERSION;
        record[4..8].copy_from_slice(&next.to_le_bytes());
        for database in 0..DATABASES {
            let moved = moved.iter().find(|(known, _)| *known == database);
            let space = moved.map_or_else(|| self.of(database), |(_, space)| *space);
            record[8 + database * 4..][..4].copy_from_slice(&space.0.to_le_bytes());
        }
        record
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
            self.current[database].store(space.0, Ordering::Release);
            self.next.fetch_max(space.0 + 1, Ordering::AcqRel);
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
            return Err(errors::NO_SPACES.into());
        };
        if let Some(overlay) = &mut self.transaction {
            // Emptied for the second time: what the transaction put there goes, the new space may stay.
            for (_, space) in pending.iter().filter(|(database, _)| databases.contains(database)) {
                overlay.drop_space(*space);
            }
        }
        let mut change = self.change();
        touched.iter().for_each(|key| change.touch(key));
        for (place, key) in record_places(self.server.node.slice_count()) {
            change.put(place, &key, 0, 0, &StringValue::Bytes(&record));
        }
        for &(database, _) in &moved[pending.len()..] {
            let old = self.server.spaces.of(database);
            for place in self.server.node.places().filter(|place| place.drive == RECORD_DRIVE) {
                change.retire(place, &space_prefix(old));
            }
            for name in [old, old.expiring()] {
                let drive = RECORD_DRIVE;
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
        let node = &self.server.node;
        // The change that has the record was written a moment ago.
        let needs = self.gate.needs().iter().find(|(drive, _)| *drive == RECORD_DRIVE);
        let record_seq = needs.map_or_else(|| node.store(RECORD_DRIVE).last_seq(), |(_, seq)| *seq);
        self.server.spaces.apply(&moved, record_seq);
        store_again_later(&self.server);
        for drive in (0..node.drive_count()).filter(|drive| *drive != RECORD_DRIVE) {
            retire_later(&self.server, drive, old.iter().copied());
        }
    }
}
