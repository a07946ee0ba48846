//! What verifies and yet cannot be.
//!
//! A checksum says that bytes are what was written, not that Pumice wrote them. Numbers that are used as an index, or counted on
//! from, are looked at before: who opens a drive with one that cannot be is told so. Counts of live bytes are hints and are
//! clamped instead ([`crate::table::Table::load`]).

use std::collections::BTreeSet;

use crate::layout::COUNT_MAX;
use crate::layout::meta::MetaRecord;
use crate::layout::superblock::Superblock;
use crate::table::{POOL_SEGMENTS, Table};
use crate::{HeapError, Stream};

/// Erases of a segment, passes of the patrol: far beyond what media last, and far from where the next would not fit.
const SMALL_COUNT_MAX: u32 = u32::MAX / 2;

/// Refuses a superblock that no drive has. Whether it fits the device's geometry the device says.
pub(crate) fn check_superblock(superblock: &Superblock) -> Result<(), HeapError> {
    let refuse = |what: String| {
        Err(HeapError::Damaged(format!(
            "a superblock says {what}, which cannot be: restore the drive from a copy"
        )))
    };
    let (segment_bytes, page_bytes) = (superblock.segment_bytes, superblock.page_bytes);
    if page_bytes == 0 || segment_bytes == 0 || !segment_bytes.is_multiple_of(page_bytes) {
        return refuse(format!("{segment_bytes} B in a segment of pages of {page_bytes} B"));
    }
    let (segments, channels) = (superblock.segment_count, superblock.channels);
    if channels == 0 || !segments.is_multiple_of(u32::from(channels)) {
        return refuse(format!("{segments} segments on {channels} channels"));
    }
    let system = 2 + 2 * u64::from(superblock.meta_half_segments);
    if superblock.meta_half_segments == 0 || system >= u64::from(segments) {
        let half = superblock.meta_half_segments;
        return refuse(format!("{half} of {segments} segments in each half of the metadata log"));
    }
    // Where it does not list them they lie in a row, as many as it says: not to be counted out before the device agrees.
    if superblock.placed.is_some() {
        let distinct: BTreeSet<u32> = superblock.system_segments().into_iter().collect();
        if distinct.len() as u64 != system {
            return refuse("that one segment holds two parts of the drive's own".into());
        }
    }
    match superblock.sequence {
        sequence if sequence > COUNT_MAX => refuse(format!("that it is number {sequence}")),
        _ => Ok(()),
    }
}

/// Refuses a metadata log that no drive of this superblock has; data lies from `first_data` on.
pub(crate) fn check_log(
    superblock: &Superblock,
    first_data: u32,
    records: &[MetaRecord],
) -> Result<(), HeapError> {
    for record in records {
        if let Some(what) = flaw_of_record(superblock, first_data, record) {
            return Err(refused_log(record, &what));
        }
    }
    Ok(())
}

/// Refuses a pool of segments that cannot be opened. Everything that the log says is loaded.
pub(crate) fn check_pool(table: &Table, last: &MetaRecord) -> Result<(), HeapError> {
    match table.pool().find(|&id| !table.is_free(id)) {
        Some(id) => {
            Err(refused_log(last, &format!("that segment {id} is the next to be opened, and in use")))
        }
        None => Ok(()),
    }
}

fn refused_log(record: &MetaRecord, what: &str) -> HeapError {
    HeapError::Damaged(format!(
        "record {} of generation {} of the metadata log says {what}, which cannot be: restore the drive from a copy",
        record.index, record.generation
    ))
}

fn flaw_of_record(superblock: &Superblock, first_data: u32, record: &MetaRecord) -> Option<String> {
    let counts = [
        ("replay from", record.replay_from),
        ("moved from", record.moved_from),
        ("newest sequence number", record.last_seq),
        ("next life", record.next_life),
        ("durable commit frames", record.durable_frames[0]),
        ("next moved frame", record.durable_frames[1]),
        ("first commit frame", record.replay_frame.unwrap_or(0)),
    ];
    if let Some((name, count)) = counts.into_iter().find(|&(_, count)| count > COUNT_MAX) {
        return Some(format!("{name} {count}"));
    }
    // Frames name the record they were written under in half a word.
    if record.generation >= u64::from(u32::MAX) {
        return Some("that it is of that generation".into());
    }
    if record.patrol[1] > SMALL_COUNT_MAX {
        return Some(format!("that the patrol went through {} times", record.patrol[1]));
    }
    let is_data = |id: u32| (first_data..superblock.segment_count).contains(&id);
    for entry in &record.segments {
        let id = entry.segment;
        if !is_data(id) {
            return Some(format!("that segment {id} holds data, of {}", superblock.segment_count));
        }
        if Stream::from_u8(entry.stream).is_none() {
            return Some(format!("that segment {id} is of stream {}", entry.stream));
        }
        if entry.end > superblock.segment_bytes || !entry.end.is_multiple_of(superblock.page_bytes) {
            return Some(format!("that segment {id} is written up to byte {}", entry.end));
        }
        if entry.life > COUNT_MAX || entry.last_seq > COUNT_MAX || entry.erase_count > SMALL_COUNT_MAX {
            return Some(format!(
                "that segment {id} has life {}, newest number {} and {} erases",
                entry.life, entry.last_seq, entry.erase_count
            ));
        }
    }
    let pool: BTreeSet<u32> = record.pool.iter().copied().collect();
    if record.pool.len() > 2 * POOL_SEGMENTS || pool.len() < record.pool.len() {
        return Some(format!(
            "that {} segments are opened next, {} different ones",
            record.pool.len(),
            pool.len()
        ));
    }
    let beyond = pool.into_iter().find(|&id| !is_data(id));
    beyond.map(|id| format!("that segment {id} is opened next, of {}", superblock.segment_count))
}
