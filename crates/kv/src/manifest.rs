//! What is durable of the engine's own state: which key tables there are, tallies and retired prefixes as of the
//! last checkpoint (`docs/format/kv-manifest.md`).
//!
//! A metadata record is a list of changes; a snapshot is the list that makes the state from nothing.

use std::sync::Arc;

use bytes::Bytes;
use pumice_base::hash::HashMap;
use pumice_segment::layout::COUNT_MAX;
use pumice_segment::{Addr, RecordPtr};

use crate::codec::{Cursor, put_varint};
use crate::retired::Retired;
use crate::table::version::{RunOrder, Table, Version};
use crate::table::{Head, TableMeta};
use crate::types::{KEY_BYTES_MAX, Seq, SliceId};

const VERSION: u32 = 1;

/// One change.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// A table is there, in the run with this order.
    Add(RunOrder, TableMeta),
    /// A table is gone.
    Drop(SliceId, u64),
    /// A table's entries below the key do not count any more.
    Trim(SliceId, u64, Bytes),
    /// A table lies elsewhere now.
    Move(SliceId, u64, RecordPtr),
    /// A space's tally.
    Tally(u32, i64),
    /// A prefix was retired by the record with this number.
    Retire(SliceId, Bytes, Seq),
    /// No key under the prefix is left.
    Retired(SliceId, Bytes),
    /// Everything up to this number is in key tables.
    Checkpoint(Seq),
}

/// Appends the version and `changes`.
pub fn encode(changes: &[Change]) -> Bytes {
    let mut out = Vec::with_capacity(4 + changes.len() * 64);
    out.extend_from_slice(&VERSION.to_le_bytes());
    let put_key = |out: &mut Vec<u8>, key: &[u8]| {
        put_varint(out, key.len() as u64);
        out.extend_from_slice(key);
    };
    for change in changes {
        match change {
            Change::Add(order, meta) => {
                out.push(1);
                put_varint(&mut out, *order);
                meta.encode(&mut out);
            }
            Change::Drop(slice, id) => {
                out.push(2);
                put_varint(&mut out, u64::from(slice.0));
                put_varint(&mut out, *id);
            }
            Change::Trim(slice, id, key) => {
                out.push(3);
                put_varint(&mut out, u64::from(slice.0));
                put_varint(&mut out, *id);
                put_key(&mut out, key);
            }
            Change::Move(slice, id, ptr) => {
                out.push(4);
                put_varint(&mut out, u64::from(slice.0));
                put_varint(&mut out, *id);
                out.extend_from_slice(&ptr.addr.0.to_le_bytes());
                out.extend_from_slice(&ptr.len.to_le_bytes());
            }
            Change::Tally(space, value) => {
                out.push(5);
                out.extend_from_slice(&space.to_le_bytes());
                out.extend_from_slice(&value.to_le_bytes());
            }
            Change::Retire(slice, prefix, seq) => {
                out.push(6);
                put_varint(&mut out, u64::from(slice.0));
                put_key(&mut out, prefix);
                put_varint(&mut out, *seq);
            }
            Change::Retired(slice, prefix) => {
                out.push(7);
                put_varint(&mut out, u64::from(slice.0));
                put_key(&mut out, prefix);
            }
            Change::Checkpoint(seq) => {
                out.push(8);
                put_varint(&mut out, *seq);
            }
        }
    }
    Bytes::from(out)
}

/// Reads what [`encode`] wrote.
///
/// # Errors
/// Says what is unknown or cut off.
pub fn decode(bytes: &[u8]) -> Result<Vec<Change>, String> {
    let mut cursor = Cursor::new(bytes, 0);
    let version = cursor.u32().ok_or("shorter than its version")?;
    if version != VERSION {
        return Err(format!("version {version}; this build reads version {VERSION}: use a newer Pumice"));
    }
    let mut changes = Vec::new();
    while cursor.left() > 0 {
        let at = cursor.at;
        changes
            .push(decode_one(&mut cursor).ok_or_else(|| format!("the change at byte {at} does not parse"))?);
    }
    Ok(changes)
}

fn decode_one(cursor: &mut Cursor<'_>) -> Option<Change> {
    let kind = cursor.u8()?;
    let slice = |cursor: &mut Cursor<'_>| Some(SliceId(u16::try_from(cursor.varint()?).ok()?));
    let key = |cursor: &mut Cursor<'_>| {
        let len = cursor.count().filter(|&len| len <= KEY_BYTES_MAX)?;
        Some(Bytes::copy_from_slice(cursor.take(len)?))
    };
    Some(match kind {
        1 => Change::Add(cursor.varint()?, TableMeta::decode(cursor)?),
        2 => Change::Drop(slice(cursor)?, cursor.varint()?),
        3 => Change::Trim(slice(cursor)?, cursor.varint()?, key(cursor)?),
        4 => {
            let (slice, id) = (slice(cursor)?, cursor.varint()?);
            Change::Move(slice, id, RecordPtr { addr: Addr(cursor.u64()?), len: cursor.u32()? })
        }
        5 => Change::Tally(cursor.u32()?, cursor.u64()? as i64),
        6 => Change::Retire(slice(cursor)?, key(cursor)?, cursor.varint()?),
        7 => Change::Retired(slice(cursor)?, key(cursor)?),
        8 => Change::Checkpoint(cursor.varint()?),
        _ => return None,
    })
}

/// One that is 0 takes no room, here and on flash: who counts gives out new names for ever.
pub fn set_tally(tallies: &mut HashMap<u32, i64>, space: u32, sum: i64) {
    if sum == 0 {
        tallies.remove(&space);
    } else {
        tallies.insert(space, sum);
    }
}

/// The state that the metadata log holds, and prefixes retired since.
#[derive(Default)]
pub struct Manifest {
    /// Each slice's tables.
    pub versions: Vec<Arc<Version>>,
    /// Tallies as of the checkpoint.
    pub tallies: HashMap<u32, i64>,
    /// Retired prefixes whose keys may still lie somewhere; those above the checkpoint are in the log only.
    pub retired: Arc<Retired>,
    /// Everything up to this number is in key tables.
    pub checkpoint: Seq,
}

impl Manifest {
    /// An empty state of `slices` slices.
    pub fn new(slices: usize) -> Self {
        Self { versions: vec![Arc::default(); slices], ..Self::default() }
    }

    /// Applies what flash holds. That it verifies says that it was written like that, not that it can be: what would break an
    /// invariant, or cannot be counted on from, is refused.
    ///
    /// # Errors
    /// Says what cannot be.
    pub fn load(&mut self, changes: &[Change]) -> Result<(), String> {
        for change in changes {
            self.check(change)
                .and_then(|()| self.apply(std::slice::from_ref(change), &HashMap::default()))?;
        }
        Ok(())
    }

    fn check(&self, change: &Change) -> Result<(), String> {
        let version = |slice: SliceId| {
            let version = self.versions.get(usize::from(slice.0));
            version.ok_or_else(|| format!("there is no slice {}", slice.0))
        };
        let was_counted = |what: &str, number: u64| match number {
            0..=COUNT_MAX => Ok(()),
            _ => Err(format!("{what} {number} was never given out")),
        };
        match change {
            Change::Add(order, meta) => {
                was_counted("run", *order)?;
                was_counted("sequence number", meta.max_seq)?;
                if !meta.is_plausible() {
                    return Err(format!(
                        "table {} of {} entries, {} of them tombstones, has its head of {} B at {} of {} B",
                        meta.id, meta.entries, meta.tombstones, meta.head_len, meta.head_at, meta.ptr.len
                    ));
                }
                version(meta.slice)?
                    .has_place(*order, meta)
                    .map_err(|other| format!("tables {other} and {} of run {order} overlap", meta.id))
            }
            Change::Trim(slice, id, key) => match version(*slice)?.meta(*id) {
                Some(meta) if !(&meta.min_key..=&meta.max_key).contains(&key) => {
                    Err(format!("table {id} is trimmed to what it does not hold"))
                }
                _ => Ok(()),
            },
            Change::Move(slice, id, ptr) => match version(*slice)?.meta(*id) {
                Some(meta) if !(TableMeta { ptr: *ptr, ..meta.clone() }).is_plausible() => {
                    Err(format!("table {id} is moved to where it does not fit"))
                }
                _ => Ok(()),
            },
            Change::Tally(space, value) => {
                was_counted(&format!("tally of space {space}"), value.unsigned_abs())
            }
            Change::Retire(slice, _, seq) => {
                version(*slice)?;
                was_counted("sequence number", *seq)
            }
            Change::Retired(slice, _) => version(*slice).map(|_| ()),
            Change::Checkpoint(seq) => was_counted("checkpoint", *seq),
            Change::Drop(..) => Ok(()),
        }
    }

    /// Applies changes. `heads` holds what is in memory already of the tables that come.
    ///
    /// # Errors
    /// Says which change does not fit the state.
    pub fn apply(&mut self, changes: &[Change], heads: &HashMap<u64, Arc<Head>>) -> Result<(), String> {
        for change in changes {
            match change {
                Change::Add(order, meta) => {
                    let table = Table::new(meta.clone(), heads.get(&meta.id).cloned());
                    self.version_mut(meta.slice)?.add(*order, Arc::new(table));
                }
                Change::Drop(slice, id) => {
                    self.version_mut(*slice)?.remove(*id).ok_or_else(|| format!("no table {id} to drop"))?;
                }
                Change::Trim(slice, id, key) => self
                    .version_mut(*slice)?
                    .alter(*id, |meta| meta.min_key = key.clone())
                    .ok_or_else(|| format!("no table {id} to trim"))?,
                Change::Move(slice, id, ptr) => self
                    .version_mut(*slice)?
                    .alter(*id, |meta| meta.ptr = *ptr)
                    .ok_or_else(|| format!("no table {id} to move"))?,
                Change::Tally(space, value) => set_tally(&mut self.tallies, *space, *value),
                Change::Retire(slice, prefix, seq) => self.retired_mut().add(*slice, prefix, *seq),
                Change::Retired(slice, prefix) => self.retired_mut().remove(*slice, prefix),
                Change::Checkpoint(seq) => self.checkpoint = *seq,
            }
        }
        Ok(())
    }

    /// The list to change. Copied if a flush or a merge goes by it.
    pub fn retired_mut(&mut self) -> &mut Retired {
        Arc::make_mut(&mut self.retired)
    }

    fn version_mut(&mut self, slice: SliceId) -> Result<&mut Version, String> {
        let version = self.versions.get_mut(usize::from(slice.0));
        version.map(Arc::make_mut).ok_or_else(|| format!("there is no slice {}", slice.0))
    }

    /// The changes that make this state from nothing.
    pub fn snapshot(&self) -> Vec<Change> {
        let mut changes = vec![Change::Checkpoint(self.checkpoint)];
        for version in &self.versions {
            for run in &version.runs {
                changes.extend(run.tables().iter().map(|table| Change::Add(run.order, table.meta.clone())));
            }
        }
        let mut tallies: Vec<_> = self.tallies.iter().map(|(space, value)| (*space, *value)).collect();
        tallies.sort_unstable();
        changes.extend(tallies.into_iter().map(|(space, value)| Change::Tally(space, value)));
        let retired = self.retired.iter().filter(|(_, _, seq)| *seq <= self.checkpoint);
        changes.extend(retired.map(|(slice, prefix, seq)| Change::Retire(slice, prefix.clone(), seq)));
        changes
    }
}
