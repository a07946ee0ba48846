//! What lies in spaces that databases left: it is retired, and what is counted of it taken back, drive by drive.
//!
//! 1. On the record's drive that is done by the batch that empties the database. On the others it follows when the record is on flash
//!    ([`retire_later`]): below a retired prefix nobody may write again, and after a crash that took the record the databases are in
//!    their old spaces. A drive that refuses is asked again until it has taken it or the server stops.
//! 2. Opening looks through all spaces of each drive ([`find_left`]), which is one look at the index for each in which there are keys
//!    and no database: what a crash came before or a drive refused until the server stopped is found whenever it was.
//! 3. On drives other than the record's a new space may hold keys before the record is durable. If a crash takes the record back,
//!    no database is in that space, and its number would be given out again: opening passes over such numbers, and retires what they
//!    name once a record that does so is on flash. Rejected: to let nobody write before the record is durable, which everybody would
//!    wait for.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use pumice_base::sync::lock;
use pumice_kv::{Direction, SliceId, SliceSet, StoreError, Want};
use pumice_node::{Node, NodeBatch, Place};

use super::key::{SYSTEM_SPACE, Space, space_of, space_prefix};
use super::record::{RECORD_DRIVE, store_record};
use super::spaces::Spaces;
use crate::server::Server;

/// Counts taken back by one batch.
const COUNTS_AT_ONCE: usize = 1024;
/// Spaces retired by one batch, on all slices of a drive.
const SPACES_AT_ONCE: usize = 64;
/// Spaces kept of a drive that does not take their retirement; further ones are found by the next opening.
const OWED_MAX: usize = 4096;
/// After so long a drive that refused is asked again.
const ASKED_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Where keys cannot be looked at so many spaces are passed over: databases are not emptied more often before a record is durable.
const UNSEEN_SPACES_MAX: u32 = 1 << 16;

/// Spaces that drives have yet to retire. A drive that is named has a task that sees to it.
#[derive(Default)]
pub(crate) struct Owed(Mutex<BTreeMap<u16, BTreeSet<Space>>>);

impl Owed {
    /// Answers whether the drive needs a task.
    fn add(&self, drive: u16, spaces: impl IntoIterator<Item = Space>) -> bool {
        let mut owed = lock(&self.0);
        let needs_task = !owed.contains_key(&drive);
        let of_drive = owed.entry(drive).or_default();
        for space in spaces {
            if of_drive.len() < OWED_MAX {
                of_drive.insert(space);
            }
        }
        needs_task
    }

    /// Some that the drive's task is to retire; none: the task ends.
    fn next(&self, drive: u16) -> Vec<Space> {
        let mut owed = lock(&self.0);
        let some: Vec<Space> = owed.get(&drive).into_iter().flatten().take(SPACES_AT_ONCE).copied().collect();
        if some.is_empty() {
            owed.remove(&drive);
        }
        some
    }

    fn done(&self, drive: u16, spaces: &[Space]) {
        if let Some(of_drive) = lock(&self.0).get_mut(&drive) {
            of_drive.retain(|space| !spaces.contains(space));
        }
    }
}

/// Sees to it that a drive retires spaces that databases left by a record that is written.
pub(crate) fn retire_later(server: &Arc<Server>, drive: u16, spaces: impl IntoIterator<Item = Space>) {
    if server.owed.add(drive, spaces) {
        pumice_reactor::spawn(retire_until_taken(server.clone(), drive));
    }
}

async fn retire_until_taken(server: Arc<Server>, drive: u16) {
    let mut is_told = false;
    while !server.stopping.is_set() {
        let some = server.owed.next(drive);
        if some.is_empty() {
            return;
        }
        match retire_durably_left(&server.node, drive, &some).await {
            Ok(()) => {
                server.owed.done(drive, &some);
                if std::mem::take(&mut is_told) {
                    tracing::info!(drive = %server.node.name(drive), "emptied databases take no space any more");
                }
            }
            Err(error) => {
                if !std::mem::replace(&mut is_told, true) {
                    tracing::warn!(drive = %server.node.name(drive), error, "emptied databases take space until the drive takes writes");
                }
                let _ = pumice_reactor::timeout(ASKED_AGAIN_AFTER, server.stopping.wait()).await;
            }
        }
    }
}

async fn retire_durably_left(node: &Node, drive: u16, spaces: &[Space]) -> Result<(), String> {
    // On flash, however early writes are acknowledged.
    node.sync_drive(RECORD_DRIVE).await.map_err(|error| error.to_string())?;
    retire(node, drive, spaces).await
}

async fn retire(node: &Node, drive: u16, spaces: &[Space]) -> Result<(), String> {
    let mut batch = NodeBatch::new();
    for place in node.places().filter(|place| place.drive == drive) {
        spaces.iter().for_each(|space| batch.retire(place, &space_prefix(*space)));
    }
    let place = Place { drive, slice: SliceId(0) };
    for name in spaces.iter().flat_map(|space| [*space, space.expiring()]) {
        match node.tally_on(drive, name.0) {
            0 => {}
            counted => batch.tally(place, name.0, -counted),
        }
    }
    node.write_ready(&batch).await.map(drop).map_err(|error| error.to_string())
}

/// At opening: retires what lies in spaces that no database is in, and keeps their numbers from being given out. Answers what drives
/// refused, for [`retire_later`].
pub(crate) async fn retire_left(node: &Node, spaces: &Spaces) -> Vec<(u16, Vec<Space>)> {
    let next = spaces.next();
    let (left, last) = find_left(node, spaces).await;
    let mut until = next;
    if let Some(last) = last {
        spaces.pass_over(last);
        match store_record(node, spaces).await {
            Ok(()) => until = spaces.next(),
            // They are passed over all the same, and the next opening finds them again.
            Err(error) => {
                tracing::warn!(error, "keys that a crash left in spaces of no database take space for now")
            }
        }
    }
    let mut refused = Vec::new();
    for (drive, left) in left {
        let left: Vec<Space> = left.into_iter().filter(|space| *space < until).collect();
        for (n, some) in left.chunks(SPACES_AT_ONCE).enumerate() {
            if let Err(error) = retire(node, drive, some).await {
                tracing::warn!(drive = %node.name(drive), error, "emptied databases take space for now");
                refused.push((drive, left[n * SPACES_AT_ONCE..].to_vec()));
                break;
            }
        }
    }
    refused
}

/// The spaces that no database is in and that are not retired, of which each drive has keys; and the last that has any, or is counted,
/// of those that have yet to be given out.
async fn find_left(node: &Node, spaces: &Spaces) -> (BTreeMap<u16, BTreeSet<Space>>, Option<Space>) {
    let next = spaces.next();
    let (mut left, mut last) = (BTreeMap::new(), None);
    for drive in 0..node.drive_count() {
        let counted = node.tallies(drive).into_iter().map(|(name, _)| Space(name).of_keys()).max();
        last = last.max(counted.filter(|space| *space >= next));
    }
    for place in node.places() {
        let of_drive: &mut BTreeSet<Space> = left.entry(place.drive).or_default();
        let mut from = Space(SYSTEM_SPACE.0 + 1);
        loop {
            // Where a database is there is nothing to be found.
            while spaces.database_of(from).is_some() {
                from = Space(from.0 + 1);
            }
            match first_space(node, place, from).await {
                Ok(Some(space)) => {
                    if space >= next {
                        last = last.max(Some(space));
                    }
                    // What is retired may lie there for long.
                    let is_retired = node.store(place.drive).is_retired(place.slice, &space_prefix(space));
                    if spaces.database_of(space).is_none() && !is_retired {
                        of_drive.insert(space);
                    }
                    from = Space(space.0 + 1);
                }
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!(
                        drive = %node.name(place.drive), slice = place.slice.0, %error,
                        "keys in spaces of no database may stay"
                    );
                    // Nobody knows how far what does not read goes.
                    let Some(behind) = spaces.first_behind(from) else {
                        last = last.max(Some(Space(from.0.saturating_add(UNSEEN_SPACES_MAX))));
                        break;
                    };
                    from = behind;
                }
            }
        }
    }
    (left, last)
}

/// The first space of databases from `from` on of which there are keys.
async fn first_space(node: &Node, place: Place, from: Space) -> Result<Option<Space>, StoreError> {
    let end = SYSTEM_SPACE.expiring();
    if from >= end {
        return Ok(None);
    }
    let store = node.store(place.drive);
    let lower = Bound::Included(Bytes::copy_from_slice(&space_prefix(from)));
    // Where the names of counts of what expires begin.
    let upper = Bound::Excluded(Bytes::copy_from_slice(&space_prefix(end)));
    let snapshot = store.snapshot_of(place.slice);
    let only = SliceSet::One(place.slice);
    let mut scan = store.scan(&snapshot, only, lower, upper, Direction::Forward, Want::Keys);
    Ok(scan.next().await?.map(|(key, _)| space_of(&key)))
}

/// Takes back what is counted of spaces that no database is in: a crash came before that was done, or the drives are of a time when
/// nobody did. Should it fail, the next opening does it.
pub(crate) async fn forget_counts(node: &Node, spaces: &Spaces) {
    for drive in 0..node.drive_count() {
        let place = Place { drive, slice: SliceId(0) };
        let is_left = |name: u32| spaces.database_of(Space(name).of_keys()).is_none();
        let left: Vec<_> = node.tallies(drive).into_iter().filter(|(name, _)| is_left(*name)).collect();
        for some in left.chunks(COUNTS_AT_ONCE) {
            let mut batch = NodeBatch::new();
            some.iter().for_each(|(name, counted)| batch.tally(place, *name, -counted));
            if let Err(error) = node.write_ready(&batch).await {
                tracing::info!(drive = %node.name(drive), %error, "counts of emptied databases are kept for now");
                break;
            }
        }
    }
}
