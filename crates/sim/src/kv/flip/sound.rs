//! What lies where on a drive before anything of it is damaged: so that what a flipped bit costs can be compared with what it hit.
//!
//! The layout of key tables is read here as `docs/format/key-table.md` has it, not with the code under test.

use super::{Hit, PASSED_BY_CHANCE};
use crate::kv::bench::{Bench, PATH};
use pumice_flash::{Access, Device, DeviceSpec};
use pumice_kv::{Store, StoreOptions};
use pumice_segment::{Addr, RecordPtr, SegmentId, Stream};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The heap's kind of a key table.
const TABLE: u8 = 7;
const FOOTER_BYTES: usize = 64;
const SUPERBLOCKS: Range<u32> = 0..2;
/// The beginning of a snapshot of the metadata, without which the rest is of no use.
const SNAPSHOT_BYTES: u64 = 1024;

struct Place {
    end: u32,
    seq: u64,
    is_table: bool,
    /// It may be what a crash tore: behind it nothing was written, and nobody is told of what such a segment held. Who names it in a
    /// list or an index finds that it does not read.
    may_be_torn: bool,
    /// From so many bytes of the record on, until the next: keys that are lost with one of them.
    keys: Vec<(u32, u64)>,
}

/// A drive that opens without complaint.
pub(super) struct Sound {
    /// Records that opening replays from the log.
    pub replayed: u64,
    last_seq: u64,
    used: BTreeSet<SegmentId>,
    metadata: Range<u32>,
    records: BTreeMap<Addr, Place>,
    /// Records of the log that opening replays.
    log: Vec<RecordPtr>,
}

impl Sound {
    /// Where the metadata log lies.
    pub fn metadata_bytes(&self, segment_bytes: u64) -> Vec<Range<u64>> {
        let starts = self.metadata.clone().map(|segment| u64::from(segment) * segment_bytes);
        starts.map(|start| start..start + segment_bytes).collect()
    }

    /// Where the snapshots begin that its two halves begin with.
    pub fn snapshots_bytes(&self, segment_bytes: u64) -> [Range<u64>; 2] {
        let half = self.metadata.start + self.metadata.len() as u32 / 2;
        [self.metadata.start, half].map(|segment| {
            let start = u64::from(segment) * segment_bytes;
            start..start + SNAPSHOT_BYTES
        })
    }

    /// What opening replays of the log: places and lengths.
    pub fn log_bytes(&self, segment_bytes: u64) -> Vec<(u64, u64)> {
        self.log.iter().map(|ptr| (place(ptr.addr, segment_bytes), u64::from(ptr.len))).collect()
    }

    /// Key tables: places and lengths.
    pub fn table_bytes(&self, segment_bytes: u64) -> Vec<(u64, u64)> {
        let tables = self.records.iter().filter(|(_, record)| record.is_table);
        let len =
            |(at, record): (&Addr, &Place)| (place(*at, segment_bytes), u64::from(record.end - at.offset()));
        tables.map(len).collect()
    }

    pub fn is_in_table(&self, hit: &Hit) -> bool {
        self.records_at(hit).any(|(_, record)| record.is_table)
    }

    pub fn is_used(&self, segment: SegmentId) -> bool {
        self.used.contains(&segment)
    }

    /// The records that lie there at least in part.
    fn records_at<'a>(&'a self, hit: &'a Hit) -> impl Iterator<Item = (Addr, &'a Place)> {
        let of_segment = Addr::new(hit.segment, 0)..Addr::new(hit.segment, hit.bytes.end);
        let records = self.records.range(of_segment).map(|(start, place)| (*start, place));
        records.filter(|(start, place)| hit.overlaps(hit.segment, &(start.offset()..place.end)))
    }

    /// Keys that cannot be read when these bytes are not what they were.
    pub fn keys_at(&self, hit: &Hit) -> u64 {
        let of_record = |(start, place): (Addr, &Place)| {
            let ends = place.keys.iter().skip(1).map(|(next, _)| start.offset() + next).chain([place.end]);
            let parts = place.keys.iter().zip(ends);
            let parts =
                parts.filter(|((from, _), end)| hit.overlaps(hit.segment, &(start.offset() + from..*end)));
            parts.map(|((_, keys), _)| keys).sum::<u64>()
        };
        self.records_at(hit).map(of_record).sum()
    }

    /// Whether any of these bytes is of a record that nothing but damage changes. The newest of all may be the torn end of the log, and
    /// the last of another stream's segment that of the segment.
    pub fn must_be_found(&self, hit: &Hit) -> bool {
        self.records_at(hit).any(|(_, place)| place.seq < self.last_seq && !place.may_be_torn)
    }
}

/// Where an address lies on the drive.
fn place(at: Addr, segment_bytes: u64) -> u64 {
    u64::from(at.segment().0) * segment_bytes + u64::from(at.offset())
}

/// Opens the drive as it is and notes what lies where.
pub(super) fn look(bench: &Bench) -> Result<Sound, String> {
    bench.world.restart(bench.host);
    // A recovery in parts would add key tables to it.
    let options = StoreOptions { replay_bytes: None, ..bench.setup.options() };
    let known_keys = bench.model.oracle.borrow().known_keys().count() as u64;
    let looked = bench.world.block_on(bench.host, async move {
        let device = Device::open(&DeviceSpec::Path(PATH.into()), Access::ReadWrite).await;
        let device = device.map_err(|error| error.to_string())?;
        let opened = Store::open(device, options, &|_, _| {}).await.map_err(|error| error.to_string())?;
        if let Some(damage) = opened.damage.first() {
            return Err(format!("{damage}"));
        }
        let heap = opened.store.heap();
        let mut records = BTreeMap::new();
        let used: BTreeSet<SegmentId> = heap.segments_in_use().into_iter().collect();
        let (mut last_seq, mut log) = (0, Vec::new());
        for segment in &used {
            let contents = heap.contents(*segment).await.map_err(|error| error.to_string())?;
            let last = contents.records.last().map(|record| record.ptr);
            for record in contents.records {
                let start = record.ptr.addr;
                let head = record.ptr.len - record.payload.len() as u32;
                let keys = match record.kind {
                    TABLE => keys_of_table(&record.payload, head, known_keys)
                        .ok_or_else(|| format!("the key table at {start} is not as its format says"))?,
                    _ => vec![(0, 1)],
                };
                last_seq = last_seq.max(record.seq);
                if contents.stream == Stream::Commit {
                    log.push((record.seq, record.ptr));
                }
                let (end, is_table) = (start.offset() + record.ptr.len, record.kind == TABLE);
                let may_be_torn = contents.stream != Stream::Commit && last == Some(record.ptr);
                records.insert(start, Place { end, seq: record.seq, is_table, may_be_torn, keys });
            }
        }
        log.sort_unstable_by_key(|(seq, _)| Reverse(*seq));
        log.truncate(opened.replayed as usize);
        let log = log.into_iter().map(|(_, ptr)| ptr).collect();
        let metadata = SUPERBLOCKS.end..SUPERBLOCKS.end + metadata_segments(&opened.store);
        Ok(Sound { replayed: opened.replayed, last_seq, used, metadata, records, log })
    });
    bench.world.kill(bench.host);
    looked.map_err(|halt| halt.to_string())?.map_err(|what| format!("before anything was flipped: {what}"))
}

fn metadata_segments(store: &Store) -> u32 {
    (store.space().meta / u64::from(store.heap().segment_bytes())) as u32 - SUPERBLOCKS.end
}

/// What is lost with each part of a key table: what the block holds, or whatever is sought in the table, or nothing: footers are
/// for cleaning and checks.
fn keys_of_table(payload: &[u8], record_head: u32, known_keys: u64) -> Option<Vec<(u32, u64)>> {
    let footer = payload.len().checked_sub(FOOTER_BYTES)?;
    let u32_at = |at: usize| Some(u32::from_le_bytes(*payload.get(at..)?.first_chunk()?) as usize);
    let head = u32_at(footer + 40)?;
    let mut index = payload.get(head + 8 + u32_at(head + 4)?..footer)?;
    // What lies around it is verified with the first part that is read.
    let mut parts = vec![(0, 0)];
    let (mut block, blocks) = (0, varint(&mut index)?);
    for _ in 0..blocks {
        let separator = varint(&mut index)?;
        index = index.get(separator..)?;
        let entries = u32_at(block + 4)? as u64;
        parts.push((record_head + block as u32, entries + PASSED_BY_CHANCE));
        block += varint(&mut index)?;
    }
    parts.push((record_head + head as u32, known_keys));
    parts.push((record_head + footer as u32, 0));
    (block == head).then_some(parts)
}

fn varint(bytes: &mut &[u8]) -> Option<usize> {
    let mut value = 0;
    for shift in (0..usize::BITS).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= usize::from(byte & 0x7F) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}
