//! The files of one simulated host: what is on the media, what is only in caches, and what a crash leaves.
//!
//! 1. A file has two images: *visible* (what reads return) and *durable* (what is on the media). Both are
//!    copy-on-write pages, so they share everything that is synced.
//! 2. A completed cached write changes the visible image and waits in `pending`; a durable write changes both,
//!    and supersedes whatever is pending below it. A sync makes durable what had completed when it was submitted.
//! 3. On a crash each pending change, and each one that was in flight, meets a fate drawn from the seed: lost,
//!    kept, or torn at 512-byte sectors. Fates are independent, so a later write may survive an earlier one.
//!    Then the durable image is all there is.
//!
//! Zones of a zoned device are part of both images; what survives of a zone is a prefix of what was written to it.
//!
//! Simplified: directory entries are durable when `open` returns; there are no hard links and no directories
//! (a path is a name).

use super::pages::Pages;
use super::zoned::Zones;
use crate::zones::{ZoneAction, ZoneCondition};
use bytes::Bytes;
use pumice_base::rng::Rng;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What a disk writes in one piece whatever happens, in bytes.
pub const SECTOR_BYTES: u64 = 512;

/// A change of one file, as it was submitted.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    Write { offset: u64, data: Bytes },
    Punch { offset: u64, len: u64 },
    Allocate { offset: u64, len: u64 },
    SetLen(u64),
    Zones { action: ZoneAction, start: u64, len: u64 },
}

impl Change {
    /// The bytes it touches.
    fn range(&self) -> (u64, u64) {
        match self {
            Self::Write { offset, data } => (*offset, *offset + data.len() as u64),
            Self::Punch { offset, len } | Self::Allocate { offset, len } => (*offset, *offset + *len),
            Self::Zones { start, len, .. } => (*start, *start + *len),
            Self::SetLen(len) => (*len, u64::MAX),
        }
    }

    /// The part of it inside `from..to`.
    fn slice(&self, from: u64, to: u64) -> Self {
        match self {
            Self::Write { offset, data } => Self::Write {
                offset: from,
                data: data.slice((from - offset) as usize..(to - offset) as usize),
            },
            Self::Punch { .. } => Self::Punch { offset: from, len: to - from },
            Self::Allocate { .. } => Self::Allocate { offset: from, len: to - from },
            Self::Zones { .. } => self.clone(),
            Self::SetLen(len) => Self::SetLen(*len),
        }
    }
}

/// One image of a file.
#[derive(Clone, Debug, Default)]
struct Image {
    len: u64,
    pages: Pages,
    zones: Option<Box<Zones>>,
}

impl Image {
    fn apply(&mut self, change: &Change) {
        if let Some(zones) = &mut self.zones {
            zones.apply(change);
        }
        match change {
            Change::Write { offset, data } => {
                self.pages.write(*offset, data);
                self.len = self.len.max(offset + data.len() as u64);
            }
            // As fallocate(PUNCH_HOLE | KEEP_SIZE).
            Change::Punch { offset, len } => self.pages.punch(*offset, *len),
            Change::Allocate { offset, len } => self.len = self.len.max(offset + len),
            Change::SetLen(len) => {
                self.pages.truncate(*len);
                self.len = *len;
            }
            Change::Zones { action: ZoneAction::Reset, start, len } => self.pages.punch(*start, *len),
            Change::Zones { .. } => {}
        }
    }
}

/// A completed change that no sync has covered.
#[derive(Clone, Debug)]
struct Pending {
    seq: u64,
    change: Change,
}

/// What the seed decided for everything unsynced at one crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashFate {
    /// Nothing unsynced survives.
    Lost,
    /// Everything that had completed survives, and what was in flight as well.
    Kept,
    /// Each change is lost, kept or torn by itself.
    Mixed,
}

/// One simulated file.
#[derive(Clone, Debug, Default)]
pub(crate) struct SimFile {
    visible: Image,
    durable: Image,
    pending: Vec<Pending>,
    pub(crate) read_only: bool,
    pub(crate) block_device: bool,
    /// The error of a write-back that nobody has been told of.
    pub(crate) write_back_error: Option<i32>,
}

impl SimFile {
    pub(crate) fn len(&self) -> u64 {
        self.visible.len
    }

    /// Bytes of media that the file occupies.
    pub(crate) fn allocated_bytes(&self) -> u64 {
        self.visible.pages.allocated_bytes()
    }

    /// How many bytes `change` would add to [`SimFile::allocated_bytes`].
    pub(crate) fn growth(&self, change: &Change) -> u64 {
        match change {
            Change::Write { offset, data } => self.visible.pages.missing_bytes(*offset, data.len() as u64),
            Change::Allocate { offset, len } => self.visible.pages.missing_bytes(*offset, *len),
            Change::Punch { .. } | Change::SetLen(_) | Change::Zones { .. } => 0,
        }
    }

    /// Reads into `out` from `offset`; answers how many bytes there were before the end of the file.
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) -> usize {
        let there = self.visible.len.saturating_sub(offset).min(out.len() as u64) as usize;
        self.visible.pages.read(offset, &mut out[..there]);
        there
    }

    /// A change has completed at `seq`; `durable` when it is on the media by contract.
    pub(crate) fn complete(&mut self, seq: u64, change: Change, durable: bool) {
        self.visible.apply(&change);
        if durable {
            if self.zones().is_some() && !matches!(change, Change::Zones { action: ZoneAction::Reset, .. }) {
                // A durable write flushes the drive's cache, as Linux does it; zones have no gaps.
                self.complete_sync(u64::MAX);
            }
            self.supersede(&change);
            self.durable.apply(&change);
        } else {
            self.pending.push(Pending { seq, change });
        }
    }

    /// `change` failed at `seq`, and some of its sectors have changed nevertheless: none, the first ones, any, or all. They may be on
    /// the media, if that was asked for, or wait for a sync. What zones know of themselves does not move, so they stay as they are.
    pub(crate) fn fail(&mut self, seq: u64, change: &Change, durable: bool, rng: &mut Rng) {
        let (from, to) = change.range();
        if self.zones().is_some() || (self.block_device && to > self.len()) {
            return;
        }
        let sectors = to.div_ceil(SECTOR_BYTES) - from / SECTOR_BYTES;
        let (below, chance) = match rng.below(4) {
            0 => (0, 0.0),
            1 => (rng.below(sectors + 1), 1.0),
            2 => (sectors, 0.5),
            _ => (sectors, 1.0),
        };
        let durable = durable && rng.chance(0.5);
        let mut start = from;
        for _ in 0..below {
            let end = ((start / SECTOR_BYTES + 1) * SECTOR_BYTES).min(to);
            if rng.chance(chance) {
                self.complete(seq, change.slice(start, end), durable);
            }
            start = end;
        }
    }

    /// A sync that was submitted at `seq` has completed.
    pub(crate) fn complete_sync(&mut self, seq: u64) {
        let Self { durable, pending, .. } = self;
        pending.retain(|entry| {
            if entry.seq < seq {
                durable.apply(&entry.change);
            }
            entry.seq >= seq
        });
    }

    /// A change has completed, and will never be on the media.
    pub(crate) fn lose(&mut self, change: &Change) {
        self.visible.apply(change);
    }

    /// The bytes that a sync has to write back.
    pub(crate) fn dirty(&self) -> Vec<(u64, u64)> {
        self.pending.iter().map(|entry| entry.change.range()).collect()
    }

    /// What was to be written back of these bytes will never be on the media.
    pub(crate) fn lose_dirty(&mut self, range: (u64, u64)) {
        self.pending.retain(|entry| entry.change.range() != range);
    }

    /// Drops from `pending` what `newer` overwrites on the media.
    fn supersede(&mut self, newer: &Change) {
        let (from, to) = newer.range();
        if self.pending.iter().all(|entry| {
            let (start, end) = entry.change.range();
            end <= from || to <= start
        }) {
            return;
        }
        let mut kept = Vec::with_capacity(self.pending.len() + 1);
        for entry in self.pending.drain(..) {
            let (start, end) = entry.change.range();
            if end <= from || to <= start || matches!(entry.change, Change::SetLen(_)) {
                kept.push(entry);
                continue;
            }
            if start < from {
                kept.push(Pending { seq: entry.seq, change: entry.change.slice(start, from) });
            }
            if to < end {
                kept.push(Pending { seq: entry.seq, change: entry.change.slice(to, end) });
            }
        }
        self.pending = kept;
    }

    /// Power is gone: `in_flight` had been submitted and not completed. What remains is the durable image.
    pub(crate) fn crash(&mut self, in_flight: Vec<Change>, fate: CrashFate, rng: &mut Rng) {
        let completed = std::mem::take(&mut self.pending).into_iter().map(|entry| entry.change);
        for change in completed.chain(in_flight) {
            if self.durable.zones.as_ref().is_some_and(|zones| !zones.continues(&change)) {
                continue; // something before it in its zone was lost
            }
            match fate {
                CrashFate::Lost => {}
                CrashFate::Kept => self.durable.apply(&change),
                CrashFate::Mixed => match rng.below(4) {
                    0 => {}
                    1 => self.durable.apply(&change),
                    _ => self.tear(&change, rng),
                },
            }
        }
        if let Some(zones) = &mut self.durable.zones {
            zones.close_all();
        }
        self.visible = self.durable.clone();
        self.write_back_error = None;
    }

    /// The zones as they are seen, of a zoned device.
    pub(crate) fn zones(&self) -> Option<&Zones> {
        self.visible.zones.as_deref()
    }

    /// Makes it a zoned device.
    pub(crate) fn cut_into_zones(&mut self, zones: &Zones) {
        self.truncate_behind(zones.bytes());
        self.block_device = true;
        for image in [&mut self.visible, &mut self.durable] {
            image.zones = Some(Box::new(zones.clone()));
        }
    }

    /// Wears a zone out.
    pub(crate) fn set_zone_condition(&mut self, zone: usize, condition: ZoneCondition) {
        for image in [&mut self.visible, &mut self.durable] {
            if let Some(zones) = &mut image.zones {
                zones.set_condition(zone, condition);
            }
        }
    }

    /// Applies a part of `change` to the media: a prefix of its sectors, or any of them.
    pub(crate) fn tear(&mut self, change: &Change, rng: &mut Rng) {
        let (from, to) = change.range();
        if self.durable.zones.as_ref().is_some_and(|zones| !zones.continues(change)) {
            return;
        }
        let is_whole = matches!(change, Change::SetLen(_) | Change::Allocate { .. } | Change::Zones { .. });
        if is_whole || from >= to {
            if rng.chance(0.5) {
                self.durable.apply(change);
            }
            return;
        }
        let prefix = rng.chance(0.5) || self.durable.zones.is_some();
        let sectors = (to - 1) / SECTOR_BYTES - from / SECTOR_BYTES + 1;
        let keep_below = rng.below(sectors + 1);
        let mut start = from;
        for index in 0..sectors {
            let end = ((start / SECTOR_BYTES + 1) * SECTOR_BYTES).min(to);
            if if prefix { index < keep_below } else { rng.chance(0.5) } {
                self.durable.apply(&change.slice(start, end));
            }
            start = end;
        }
    }

    /// Applies `change` to the media although it never completed (power failed right after it).
    pub(crate) fn force(&mut self, change: &Change) {
        if self.durable.zones.is_some() {
            self.complete_sync(u64::MAX);
        }
        self.supersede(change);
        self.durable.apply(change);
    }

    /// Flips bits of the byte at `offset`, on the media and in what reads return. False past the end.
    pub(crate) fn flip(&mut self, offset: u64, mask: u8) -> bool {
        if offset >= self.visible.len {
            return false;
        }
        self.visible.pages.flip(offset, mask);
        self.durable.pages.flip(offset, mask);
        true
    }

    /// Cuts or extends the file behind its user's back, on the media and in what reads return.
    pub(crate) fn truncate_behind(&mut self, len: u64) {
        self.pending.clear();
        for image in [&mut self.visible, &mut self.durable] {
            image.apply(&Change::SetLen(len));
        }
    }

    /// The offsets that hold data, in runs of whole pages: `(offset, bytes)`.
    pub(crate) fn extents(&self) -> Vec<(u64, u64)> {
        self.visible.pages.extents()
    }
}

/// The files of one host by path.
#[derive(Clone, Debug, Default)]
pub(crate) struct Disk {
    pub(crate) files: BTreeMap<PathBuf, SimFile>,
    /// Bytes that all files may occupy together; `None` is without end.
    pub(crate) capacity_bytes: Option<u64>,
}

impl Disk {
    pub(crate) fn allocated_bytes(&self) -> u64 {
        self.files.values().map(SimFile::allocated_bytes).sum()
    }

    /// Whether `change` to `path` still fits.
    pub(crate) fn fits(&self, path: &Path, change: &Change) -> bool {
        let Some(capacity) = self.capacity_bytes else { return true };
        let growth = self.files.get(path).map_or(0, |file| file.growth(change));
        growth == 0 || self.allocated_bytes() + growth <= capacity
    }
}
