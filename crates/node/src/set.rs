//! Which drives belong together.
//!
//! Keys are spread over drives by a rule that counts them, so a server must find exactly the drives that were
//! there when the keys were written. Each drive therefore keeps one small entry, "member i of n of set s", under
//! [`MEMBER_KEY`] in its first slice, and in its last so that nothing depends on one place (`docs/format/node.md`). Opening sorts
//! the drives by it and refuses any other company. A drive without one has never been served: a set of such drives is made on the spot, and a set whose
//! making was cut short (some members written, and nothing else on any drive) is completed.

use pumice_kv::{Batch, SliceId, Store};

use crate::error::OpenError;

/// The key of the member entry: the reserved space `0xFFFF_FFFF`, which no database uses.
pub const MEMBER_KEY: &[u8] = b"\xFF\xFF\xFF\xFF\x00member";

/// Version byte of the member entry.
const VERSION: u8 = 1;
const LEN: usize = 1 + 3 + 2 + 2 + 16;

/// A drive's place in its set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// The set's id: random bits, drawn when the set is made.
    pub set: [u8; 16],
    /// This drive's index, `0..count`.
    pub index: u16,
    /// Drives in the set.
    pub count: u16,
}

impl Member {
    /// The stored form (`docs/format/node.md`).
    pub fn encode(&self) -> [u8; LEN] {
        let mut out = [0; LEN];
        out[0] = VERSION;
        out[4..6].copy_from_slice(&self.index.to_le_bytes());
        out[6..8].copy_from_slice(&self.count.to_le_bytes());
        out[8..].copy_from_slice(&self.set);
        out
    }

    /// Reads the stored form; `Err` says what is wrong with it.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        match bytes.first() {
            Some(&VERSION) => {}
            Some(version) => {
                return Err(format!(
                    "its member entry has version {version}, this build reads version {VERSION}: use a newer pumice"
                ));
            }
            None => return Err("its member entry is empty".into()),
        }
        let bytes: &[u8; LEN] =
            bytes.try_into().map_err(|_| format!("its member entry has {} bytes, not {LEN}", bytes.len()))?;
        let member = Self {
            set: bytes[8..].try_into().expect("the length was checked"),
            index: u16::from_le_bytes([bytes[4], bytes[5]]),
            count: u16::from_le_bytes([bytes[6], bytes[7]]),
        };
        if member.index >= member.count {
            return Err(format!("its member entry says drive {} of {}", member.index, member.count));
        }
        Ok(member)
    }
}

/// The slices of a store that hold its member entry.
pub(crate) fn member_slices(store: &Store) -> impl Iterator<Item = SliceId> {
    let last = SliceId(store.slice_count() - 1);
    std::iter::once(SliceId(0)).chain((last != SliceId(0)).then_some(last))
}

/// A drive's member entry, as it is stored.
pub struct StoredMember {
    /// What it says; `None` on a drive that was never served.
    pub member: Option<Member>,
    /// Slices that lack it, or where it does not read.
    pub(crate) lacking: Vec<SliceId>,
}

impl StoredMember {
    /// Reads it from whichever slice it reads in.
    ///
    /// # Errors
    /// [`OpenError::Membership`] when it reads in none, and may be there; [`OpenError::WrongSet`] when it is no entry that this
    /// build reads.
    pub async fn read(store: &Store, drive: &str) -> Result<Self, OpenError> {
        let (mut found, mut failed) = (Self { member: None, lacking: Vec::new() }, None);
        for slice in member_slices(store) {
            match store.get(slice, MEMBER_KEY).await {
                Ok(Some(entry)) if found.member.is_none() => {
                    let wrong = |why| OpenError::WrongSet { why: format!("{drive}: {why}") };
                    found.member = Some(Member::decode(&entry.value).map_err(wrong)?);
                }
                Ok(Some(_)) => {}
                Ok(None) => found.lacking.push(slice),
                Err(error) => {
                    tracing::warn!(drive, %error, "its place in the set does not read in slice {}", slice.0);
                    found.lacking.push(slice);
                    failed = Some(error);
                }
            }
        }
        match failed.filter(|_| found.member.is_none()) {
            Some(error) => Err(OpenError::Membership { drive: drive.into(), why: error.to_string() }),
            None => Ok(found),
        }
    }

    /// Puts it where it is lacking on a drive that is a member. Where the drive takes nothing now, the next opening tries again.
    pub(crate) fn complete(&self, store: &Store) {
        let Some(member) = self.member.filter(|_| !self.lacking.is_empty()) else { return };
        let mut batch = Batch::new();
        self.lacking.iter().for_each(|slice| batch.put(*slice, MEMBER_KEY, 0, 0, &member.encode()));
        if let Err(error) = store.write(&batch) {
            tracing::debug!(%error, "the second copy of the member entry is written another time");
        }
    }
}

/// What [`arrange`] decided: for each place in the set the index of the drive as given, and the places whose
/// member entry is still to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriveSet {
    /// The set's id.
    pub set: [u8; 16],
    /// `order[place]` = index of that drive among those given.
    pub order: Vec<usize>,
    /// Places whose drive does not know its membership yet.
    pub unwritten: Vec<u16>,
}

/// A drive as found: how to call it, its member entry if any, and whether it holds nothing else.
pub(crate) struct Found {
    pub name: String,
    pub member: Option<Member>,
    pub is_empty: bool,
}

/// Decides which drive takes which place, or says why these drives cannot be served together.
pub(crate) fn arrange(found: &[Found], new_set: [u8; 16]) -> Result<DriveSet, OpenError> {
    let refuse = |why: String| Err(OpenError::WrongSet { why });
    let count = u16::try_from(found.len())
        .map_err(|_| OpenError::WrongSet { why: "more than 65,535 drives".into() })?;
    let Some((first, member)) = found.iter().find_map(|f| f.member.map(|m| (f, m))) else {
        if let Some(used) = found.iter().find(|drive| !drive.is_empty) {
            return refuse(format!(
                "{} holds data, but not which set of drives it belongs to: no server wrote that, or the drive is damaged \
                 (`pumice check` tells)",
                used.name
            ));
        }
        return Ok(DriveSet {
            set: new_set,
            order: (0..found.len()).collect(),
            unwritten: (0..count).collect(),
        });
    };
    let mut order: Vec<Option<usize>> = vec![None; usize::from(member.count)];
    for (at, drive) in found.iter().enumerate() {
        let Some(m) = drive.member else { continue };
        if m.set != member.set || m.count != member.count {
            return refuse(format!(
                "{} and {} belong to different sets of drives: serve each set by itself",
                first.name, drive.name
            ));
        }
        if let Some(twin) = order[usize::from(m.index)].replace(at) {
            return refuse(format!(
                "{} and {} both are drive {} of their set: one is a copy of the other, give only one of them",
                found[twin].name, drive.name, m.index
            ));
        }
    }
    if member.count > count {
        let given = if count == 1 { "1 was".to_string() } else { format!("{count} were") };
        let missing: Vec<String> = (0..)
            .zip(&order)
            .filter(|(_, at)| at.is_none())
            .map(|(index, _): (u16, _)| index.to_string())
            .collect();
        return refuse(format!(
            "{} belongs to a set of {} drive(s), but {given} given: drive {} of it is missing, counted from 0; name all \
             drives of the set",
            first.name,
            member.count,
            missing.join(", "),
        ));
    }
    if member.count < count {
        let strangers: Vec<&str> =
            found.iter().filter(|drive| drive.member.is_none()).map(|drive| drive.name.as_str()).collect();
        return refuse(format!(
            "{} belongs to a set of {} drive(s), which is complete without {}: a set takes no further drives",
            first.name,
            member.count,
            strangers.join(", "),
        ));
    }
    let mut unwritten = Vec::new();
    for (at, drive) in found.iter().enumerate().filter(|(_, d)| d.member.is_none()) {
        if !drive.is_empty {
            return refuse(format!(
                "{} holds data but does not belong to the set of {}",
                drive.name, first.name
            ));
        }
        // A fresh drive may take a place only while the set is being made: later, the drive that has it is missing.
        if let Some(used) = found.iter().find(|d| d.member.is_some() && !d.is_empty) {
            return refuse(format!(
                "{} is no member of the set of {}, which holds data: name the drives that belong to it",
                drive.name, used.name
            ));
        }
        let place = order.iter().position(Option::is_none).expect("as many places as drives");
        order[place] = Some(at);
        unwritten.push(place as u16);
    }
    let order = order.into_iter().map(|at| at.expect("every place was filled")).collect();
    Ok(DriveSet { set: member.set, order, unwritten })
}
