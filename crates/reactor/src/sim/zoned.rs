//! Zones of a simulated drive: a strict one, which refuses what a drive may refuse. It closes no zone by itself when
//! too many are open, and writes go to the write pointer exactly.

use super::disk::Change;
use crate::zones::{Zone, ZoneAction, ZoneCondition, ZoneKind, ZonedInfo};
use std::io;

/// The shape of a simulated zoned drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZonedModel {
    /// Zones that take writes at their write pointers only.
    pub zones: u32,
    /// Conventional zones before these.
    pub conventional: u32,
    /// From one zone's start to the next.
    pub zone_bytes: u64,
    /// What can be written of a zone.
    pub capacity_bytes: u64,
    /// Zones that may be open at once; 0: any number.
    pub open_max: u32,
    /// Zones that may be open or closed at once; 0: any number.
    pub active_max: u32,
}

/// Every zone's write pointer, counted from its start, and condition.
#[derive(Clone, Debug)]
pub(crate) struct Zones {
    model: ZonedModel,
    states: Vec<(u64, ZoneCondition)>,
}

impl Zones {
    pub(crate) fn new(model: ZonedModel) -> Self {
        let conventional = vec![(0, ZoneCondition::NotWritePointer); model.conventional as usize];
        let sequential = vec![(0, ZoneCondition::Empty); model.zones as usize];
        Self { model, states: [conventional, sequential].concat() }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.states.len() as u64 * self.model.zone_bytes
    }

    pub(crate) fn info(&self) -> ZonedInfo {
        let ZonedModel { zone_bytes, open_max, active_max, .. } = self.model;
        ZonedInfo { zone_bytes, open_max, active_max, write_bytes_max: 128 << 10 }
    }

    /// Zones that hold one of the drive's places to be open, and to be active.
    pub(crate) fn in_use(&self) -> (u32, u32) {
        let count = |f: fn(ZoneCondition) -> bool| self.states.iter().filter(|(_, c)| f(*c)).count() as u32;
        (count(is_open), count(is_active))
    }

    pub(crate) fn set_condition(&mut self, zone: usize, condition: ZoneCondition) {
        self.states[zone].1 = condition;
    }

    pub(crate) fn report(&self, from: u64, zones_max: u32) -> Vec<Zone> {
        let first = (from / self.model.zone_bytes) as usize;
        let zone = |(index, &(written, condition)): (usize, &(u64, ZoneCondition))| {
            let start = index as u64 * self.model.zone_bytes;
            let is_conventional = condition == ZoneCondition::NotWritePointer;
            Zone {
                start,
                bytes: self.model.zone_bytes,
                capacity_bytes: if is_conventional {
                    self.model.zone_bytes
                } else {
                    self.model.capacity_bytes
                },
                write_pointer: start + written,
                kind: if is_conventional { ZoneKind::Conventional } else { ZoneKind::SequentialRequired },
                condition,
            }
        };
        self.states.iter().enumerate().skip(first).take(zones_max as usize).map(zone).collect()
    }

    fn index(&self, offset: u64) -> usize {
        (offset / self.model.zone_bytes) as usize
    }

    /// Whether a change goes on where the written part of its zone ends; anything that is no write may go on.
    pub(crate) fn continues(&self, change: &Change) -> bool {
        match change {
            Change::Write { offset, .. } => {
                let (written, condition) = self.states[self.index(*offset)];
                condition == ZoneCondition::NotWritePointer || offset % self.model.zone_bytes == written
            }
            _ => true,
        }
    }

    /// Refuses what the drive refuses, with Linux's error for it (`blk_errors` in block/blk-core.c).
    pub(crate) fn check(&self, change: &Change) -> Result<(), i32> {
        match change {
            Change::Write { offset, data } => {
                let &(_, condition) = self.states.get(self.index(*offset)).ok_or(libc::ENOSPC)?;
                let end = offset % self.model.zone_bytes + data.len() as u64;
                if condition == ZoneCondition::NotWritePointer {
                    return Ok(());
                }
                let writable = condition == ZoneCondition::Empty || is_active(condition);
                if !writable || !self.continues(change) || end > self.model.capacity_bytes {
                    return Err(libc::EIO);
                }
                let (open, active) = self.in_use();
                let ZonedModel { open_max, active_max, .. } = self.model;
                if !is_active(condition) && active_max > 0 && active >= active_max {
                    return Err(libc::EOVERFLOW);
                }
                if !is_open(condition) && open_max > 0 && open >= open_max {
                    return Err(libc::ETOOMANYREFS);
                }
                Ok(())
            }
            Change::Zones { action, start, .. } => {
                let &(_, condition) = self.states.get(self.index(*start)).ok_or(libc::EINVAL)?;
                let known = condition == ZoneCondition::Empty
                    || is_active(condition)
                    || (condition == ZoneCondition::Full && *action == ZoneAction::Reset);
                if known { Ok(()) } else { Err(libc::EIO) }
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn apply(&mut self, change: &Change) {
        let capacity = self.model.capacity_bytes;
        match change {
            Change::Write { offset, data } => {
                let (index, end) = (self.index(*offset), offset % self.model.zone_bytes + data.len() as u64);
                let state = &mut self.states[index];
                if state.1 != ZoneCondition::NotWritePointer {
                    let full = end >= capacity;
                    *state = (end, if full { ZoneCondition::Full } else { ZoneCondition::ImplicitlyOpen });
                }
            }
            Change::Zones { action, start, .. } => {
                let index = self.index(*start);
                let state = &mut self.states[index];
                *state = match action {
                    ZoneAction::Reset => (0, ZoneCondition::Empty),
                    ZoneAction::Open => (state.0, ZoneCondition::ExplicitlyOpen),
                    ZoneAction::Close if state.0 == 0 => (0, ZoneCondition::Empty),
                    ZoneAction::Close => (state.0, ZoneCondition::Closed),
                    ZoneAction::Finish => (capacity, ZoneCondition::Full),
                };
            }
            _ => {}
        }
    }

    /// What a loss of power does to open zones.
    pub(crate) fn close_all(&mut self) {
        for state in &mut self.states {
            if is_open(state.1) {
                state.1 = if state.0 == 0 { ZoneCondition::Empty } else { ZoneCondition::Closed };
            }
        }
    }

    /// Whether a read of the range is answered.
    pub(crate) fn check_read(&self, from: u64, to: u64) -> io::Result<()> {
        let mut zones = self.index(from)..=self.index(to.max(from + 1) - 1);
        let offline = |zone: usize| self.states.get(zone).is_some_and(|(_, c)| *c == ZoneCondition::Offline);
        if zones.any(offline) { Err(io::Error::from_raw_os_error(libc::EIO)) } else { Ok(()) }
    }
}

fn is_open(condition: ZoneCondition) -> bool {
    matches!(condition, ZoneCondition::ImplicitlyOpen | ZoneCondition::ExplicitlyOpen)
}

fn is_active(condition: ZoneCondition) -> bool {
    is_open(condition) || condition == ZoneCondition::Closed
}
