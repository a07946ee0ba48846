//! Reading records by address.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use pumice_base::sync::lock;
use pumice_flash::FlashError;
use pumice_reactor::IoBuf;

use crate::ahead;
use crate::inner::Inner;
use crate::layout::meta::{FLAG_CUT, FLAG_TORN_SUMMARY, SegmentState};
use crate::layout::record;
use crate::scan::{self, read_tolerant};
use crate::{Addr, Contents, Damage, ReadError, Record, RecordPtr, SegmentId, Stream};

/// Where the record is now: elsewhere when a program failure moved it.
fn resolve(inner: &Inner, ptr: RecordPtr) -> RecordPtr {
    if !inner.has_aliases.load(Ordering::Acquire) {
        return ptr;
    }
    let aliases = lock(&inner.aliases);
    let mut ptr = ptr;
    while let Some(moved) = aliases.get(&ptr.addr) {
        ptr = *moved;
    }
    ptr
}

/// See [`crate::Heap::peek`].
pub(crate) fn peek(inner: &Inner, ptr: RecordPtr) -> Option<Record> {
    let ptr = resolve(inner, ptr);
    let forming_at = Addr(inner.forming_at.load(Ordering::Acquire));
    if forming_at.0 != u64::MAX
        && forming_at.segment() == ptr.addr.segment()
        && ptr.addr.offset() >= forming_at.offset()
        && let Some(record) = inner.commit().peek(ptr)
    {
        return Some(record);
    }
    let bytes = inner.tail().get(ptr)?;
    // It was encoded here and never left memory: its length and head are right.
    let total = record::peek_total(&bytes)?;
    if total != bytes.len() {
        return None;
    }
    inner.counters.tail_hits.fetch_add(1, Ordering::Relaxed);
    Some(Record { kind: bytes[8], payload: bytes.slice(record::peek_payload_at(&bytes)..) })
}

/// See [`crate::Heap::was_opened_since`].
pub(crate) fn was_opened_since(inner: &Inner, ptr: RecordPtr, lives: u64) -> bool {
    let segment = resolve(inner, ptr).addr.segment();
    inner.table().entry(segment).is_none_or(|entry| entry.life >= lives)
}

fn check_range(inner: &Inner, ptr: RecordPtr) -> Result<u64, ReadError> {
    let end = u64::from(ptr.addr.offset()) + u64::from(ptr.len);
    if ptr.addr.segment().0 >= inner.superblock.segment_count
        || end > u64::from(inner.segment_bytes)
        || (ptr.len as usize) < record::HEADER_BYTES
    {
        return Err(ReadError::OutOfRange { ptr });
    }
    inner.table().life(ptr.addr.segment()).ok_or(ReadError::Stale { ptr })
}

/// Reads bytes `start..end` of a segment; the answer begins `start % granule` into the returned buffer.
pub(crate) async fn read_span(
    inner: &Inner,
    ptr: RecordPtr,
    start: u32,
    end: u32,
) -> Result<(Bytes, usize), ReadError> {
    let granule = inner.device.geometry().read_bytes;
    let first = start / granule * granule;
    let len = (end - first).next_multiple_of(granule) as usize;
    inner.counters.reads.fetch_add(1, Ordering::Relaxed);
    inner.counters.read_bytes.fetch_add(len as u64, Ordering::Relaxed);
    let block = inner.block(ptr.addr.segment());
    let (result, buf) = inner.device.read(block, first, IoBuf::for_read(len)).await;
    match result {
        Ok(()) => Ok((buf.freeze(), (start - first) as usize)),
        Err(source) => Err(ReadError::Flash { ptr, source }),
    }
}

/// See [`crate::Heap::read`].
pub(crate) async fn read(inner: &Arc<Inner>, asked: RecordPtr) -> Result<Record, ReadError> {
    match peek(inner, asked) {
        Some(record) => Ok(record),
        None => read_flash(inner, asked).await,
    }
}

/// See [`crate::Heap::read_flash`].
pub(crate) async fn read_flash(inner: &Arc<Inner>, asked: RecordPtr) -> Result<Record, ReadError> {
    let ptr = resolve(inner, asked);
    let life = check_range(inner, ptr)?;
    if let Some(record) = ahead::read(inner, ptr, life).await {
        return Ok(record);
    }
    let offset = ptr.addr.offset();
    let result = read_span(inner, ptr, offset, offset + ptr.len).await;
    if inner.table().life(ptr.addr.segment()) != Some(life) {
        return Err(ReadError::Stale { ptr: asked });
    }
    let (bytes, at) = match result {
        Ok(found) => found,
        // A segment that is being written anew reads past its write pointer.
        Err(ReadError::Flash { source: FlashError::ReadPastWritePointer { .. }, .. }) => {
            return Err(ReadError::Corrupt { ptr: asked, reason: "nothing is written there".into() });
        }
        Err(error) => return Err(error),
    };
    let bytes = bytes.slice(at..at + ptr.len as usize);
    match record::parse(&bytes, life, ptr.addr) {
        Ok(parsed) if parsed.total == ptr.len as usize => {
            Ok(Record { kind: parsed.kind, payload: bytes.slice(parsed.payload_at..) })
        }
        Ok(_) => Err(ReadError::Corrupt { ptr: asked, reason: "another length than the pointer's".into() }),
        Err(reason) => Err(ReadError::Corrupt { ptr: asked, reason: reason.into() }),
    }
}

/// See [`crate::Heap::read_neighbours`].
pub(crate) async fn read_neighbours(inner: &Arc<Inner>, asked: &[RecordPtr]) -> Vec<Option<Record>> {
    let nothing = || vec![None; asked.len()];
    let ptrs: Vec<RecordPtr> = asked.iter().map(|&ptr| resolve(inner, ptr)).collect();
    let Some(&first) = ptrs.first() else { return Vec::new() };
    let segment = first.addr.segment();
    let Ok(life) = check_range(inner, first) else { return nothing() };
    if ptrs.iter().any(|&ptr| ptr.addr.segment() != segment || check_range(inner, ptr).is_err()) {
        return nothing();
    }
    let start = ptrs.iter().map(|ptr| ptr.addr.offset()).min().unwrap_or(0);
    let end = ptrs.iter().map(|ptr| ptr.addr.offset() + ptr.len).max().unwrap_or(0);
    let Ok((bytes, at)) = read_span(inner, first, start, end).await else { return nothing() };
    if inner.table().life(segment) != Some(life) {
        return nothing();
    }
    let record = |ptr: &RecordPtr| {
        let from = at + (ptr.addr.offset() - start) as usize;
        let bytes = bytes.slice(from..from + ptr.len as usize);
        let parsed = record::parse(&bytes, life, ptr.addr).ok().filter(|p| p.total == ptr.len as usize)?;
        Some(Record { kind: parsed.kind, payload: bytes.slice(parsed.payload_at..) })
    };
    ptrs.iter().map(record).collect()
}

/// See [`crate::Heap::read_range`].
pub(crate) async fn read_range(
    inner: &Arc<Inner>,
    ptr: RecordPtr,
    offset: u32,
    len: u32,
) -> Result<Bytes, ReadError> {
    let life = check_range(inner, ptr)?;
    let head = record::HEADER_BYTES as u32;
    let inside = u64::from(head) + u64::from(offset) + u64::from(len) <= u64::from(ptr.len);
    if !inside {
        return Err(ReadError::OutOfRange { ptr });
    }
    let start = ptr.addr.offset() + head + offset;
    let result = read_span(inner, ptr, start, start + len).await;
    if inner.table().life(ptr.addr.segment()) != Some(life) {
        return Err(ReadError::Stale { ptr });
    }
    let (bytes, at) = result?;
    Ok(bytes.slice(at..at + len as usize))
}

/// What the table says of a segment that holds data.
pub(crate) struct Extent {
    pub life: u64,
    pub stream: Stream,
    pub end: u32,
    pub is_open: bool,
    /// It ends before frames that may have been durable.
    pub is_cut: bool,
    /// Summaries that do not verify may never have been written.
    pub is_torn: bool,
}

pub(crate) fn extent(inner: &Inner, segment: SegmentId) -> Option<Extent> {
    let table = inner.table();
    let (entry, life) = table.entry(segment).zip(table.life(segment))?;
    let stream = Stream::from_u8(entry.stream).unwrap_or(Stream::Commit);
    let is_open = entry.state == SegmentState::Open;
    let has = |flag: u8| entry.flags & flag != 0;
    let (is_cut, is_torn) = (has(FLAG_CUT), has(FLAG_TORN_SUMMARY));
    Some(Extent { life, stream, end: entry.end, is_open, is_cut, is_torn })
}

/// What to say of a segment that is cut.
pub(crate) fn cut_off(segment: SegmentId, end: u32) -> Damage {
    Damage {
        segment,
        offset: end,
        what: "frames that were counted here did not read when it was recovered".into(),
    }
}

/// See [`crate::Heap::contents`].
pub(crate) async fn contents(inner: &Arc<Inner>, segment: SegmentId) -> Result<Contents, FlashError> {
    let page = inner.superblock.page_bytes;
    let nothing = || Contents::nothing(Stream::Commit);
    let Some(Extent { life, stream, mut end, is_open, is_cut, is_torn }) = extent(inner, segment) else {
        return Ok(nothing());
    };
    if is_open && stream == Stream::Commit {
        // The table counts frames from when they are queued; when a program fails they go elsewhere.
        let _ = crate::pump::flush(inner).await;
        match extent(inner, segment) {
            Some(now) if now.life == life => end = end.min(now.end),
            _ => return Ok(nothing()),
        }
    }
    let mut contents = Contents::nothing(stream);
    let cut = is_cut.then(|| cut_off(segment, end));
    if end == 0 {
        contents.damage.extend(cut);
        return Ok(contents);
    }
    let stretch = read_tolerant(&inner.device, segment, 0, end as usize).await?;
    if extent(inner, segment).is_none_or(|now| now.life != life) {
        // It was released and taken for something else: what was read is of no life in particular.
        return Ok(nothing());
    }
    inner.counters.reads.fetch_add(1, Ordering::Relaxed);
    inner.counters.read_bytes.fetch_add(u64::from(end), Ordering::Relaxed);
    let mut expected_at = page;
    for mut frame in scan::frames(segment, life, &stretch.bytes, page) {
        if frame.offset != expected_at {
            let what = format!("{} B of frames do not verify", frame.offset - expected_at);
            contents.damage.push(Damage { segment, offset: expected_at, what });
        }
        expected_at = frame.end(page);
        contents.newest_seq = contents.newest_seq.max(frame.header.newest_seq());
        contents.record_bytes += u64::from(frame.live);
        contents.damage.extend(frame.all_damage(is_torn));
        contents.records.extend(frame.records);
    }
    if expected_at < end {
        let what = format!("{} B of frames do not verify", end - expected_at);
        contents.damage.push(Damage { segment, offset: expected_at, what });
    }
    for offset in stretch.lost {
        contents.damage.push(Damage { segment, offset, what: "the page does not read".into() });
    }
    contents.damage.extend(cut);
    Ok(contents)
}
