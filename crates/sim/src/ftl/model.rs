//! What a raw-flash drive may hold after a power cut, as a plain model says.
//!
//! Of each id the model knows what a reader has to see now, and the set of what a restart may find: a write that was not
//! acknowledged may be there or not, whole in either case; an erase that was acknowledged leaves nothing; a discard leaves
//! nothing or what was there before.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Bytes;
use pumice_base::rng::Rng;
use pumice_reactor::IoBuf;
use pumice_segment::ftl::{RawDamage, RawError, RawFlash, RawOpened};

use super::CLIENTS;

/// Ids of each client.
pub(super) const IDS: u64 = 6;

/// What is known of one id.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    /// The version that readers see; `None` for none.
    pub current: Option<u64>,
    /// Versions that a restart may find, beside none if `may_be_absent`.
    pub versions: Vec<u64>,
    /// Whether a restart may find nothing.
    pub may_be_absent: bool,
}

#[derive(Debug, Default)]
pub(super) struct Model {
    pub ids: BTreeMap<u128, Known>,
    pub next_version: u64,
    /// Bad blocks there were at least when a request was last answered.
    pub bad: u32,
    pub counts: BTreeMap<&'static str, u64>,
}

impl Model {
    pub(super) fn count(&mut self, name: &'static str) {
        *self.counts.entry(name).or_default() += 1;
    }

    pub(super) fn known(&mut self, id: u128) -> &mut Known {
        self.ids.entry(id).or_insert(Known { may_be_absent: true, ..Known::default() })
    }
}

pub(super) fn id_of(client: u64, number: u64) -> u128 {
    // Ids differ in both halves.
    u128::from(number) << 64 | u128::from(client + CLIENTS * number)
}

pub(super) fn contents(raw: &RawFlash, id: u128, version: u64) -> Bytes {
    let mut buf = IoBuf::zeroed(raw.segment_bytes() as usize);
    Rng::from_seed(version ^ (id as u64) << 32 ^ (id >> 64) as u64).fill(&mut buf);
    // Named, so that a reader learns which version it got.
    buf[..8].copy_from_slice(&version.to_le_bytes());
    buf.freeze()
}

pub(super) fn bad_blocks(raw: &RawFlash) -> u32 {
    (0..raw.geometry().channels).map(|channel| raw.counts(channel).bad).sum()
}

/// The version of a segment that is there, whole; `Err` says what is wrong with it.
pub(super) async fn read(raw: &RawFlash, id: u128) -> Result<Result<Option<u64>, String>, RawError> {
    let buf = IoBuf::zeroed(raw.segment_bytes() as usize);
    let (result, buf) = raw.read(&raw.client(), id, 0, buf).await;
    match result {
        Ok(_) => {}
        Err(RawError::NotFound { .. }) => return Ok(Ok(None)),
        Err(error) => return Err(error),
    }
    let mut version = [0; 8];
    version.copy_from_slice(&buf[..8]);
    let version = u64::from_le_bytes(version);
    let is_whole = buf[..] == contents(raw, id, version)[..];
    let place = raw.place_of(id);
    Ok(if is_whole {
        Ok(Some(version))
    } else {
        Err(format!("segment {id:032x} at {place:?} is not whole: it begins as version {version}"))
    })
}

/// Compares a drive that was just opened with the model, which then knows what is there.
pub(super) async fn check(
    opened: &RawOpened,
    model: &Rc<RefCell<Model>>,
) -> Result<Result<(), String>, RawError> {
    let raw = &opened.raw;
    let mut found = 0;
    for id in (0..CLIENTS).flat_map(|client| (0..IDS).map(move |number| id_of(client, number))) {
        let version = match read(raw, id).await? {
            Ok(version) => version,
            Err(what) => return Ok(Err(what)),
        };
        found += u32::from(version.is_some());
        let mut model = model.borrow_mut();
        let known = model.known(id);
        let is_allowed = version.map_or(known.may_be_absent, |version| known.versions.contains(&version));
        if !is_allowed {
            return Ok(Err(format!("segment {id:032x} is version {version:?} after a restart: {known:?}")));
        }
        if opened.clean && version != known.current {
            return Ok(Err(format!("segment {id:032x} is {version:?} after a clean close: {known:?}")));
        }
        known.current = version;
        match version {
            Some(version) => (known.versions, known.may_be_absent) = (vec![version], false),
            // A clean drive remembers what was discarded, and so may a later crash.
            None if opened.clean => {}
            None => (known.versions, known.may_be_absent) = (Vec::new(), true),
        }
        model.count("segments checked");
    }
    let mut model = model.borrow_mut();
    model.count(if opened.clean { "clean opens" } else { "recoveries" });
    if raw.segment_count() != found {
        return Ok(Err(format!("{} segments of which {found} are known", raw.segment_count())));
    }
    for damage in &opened.damage {
        let known = match damage {
            RawDamage::Unfinished { id, .. } | RawDamage::LostPage { id, .. } => model.known(*id).clone(),
        };
        // Absent, or there on another block: what a cut may leave behind.
        if !super::is_explained(damage) {
            return Ok(Err(format!("{damage}: {known:?}")));
        }
    }
    let bad = bad_blocks(raw);
    if bad < model.bad {
        return Ok(Err(format!("{bad} bad blocks after a restart, {} before", model.bad)));
    }
    let space = raw.space();
    if space.accounted() != space.raw {
        return Ok(Err(format!("{} B of {} are accounted for: {space:?}", space.accounted(), space.raw)));
    }
    Ok(Ok(()))
}
