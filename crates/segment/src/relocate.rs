//! Program failures in the commit stream: what did not reach flash is written again, in a fresh segment.
//!
//! The failed frame, the queued ones behind it in the same segment and the forming one are encoded anew, because
//! checksums are seeded with life and address. Old addresses stay readable through aliases until the heap is
//! closed, and the client is told before the records count as durable. What lies in the segment before the failure
//! stays there until it is cleaned; then the segment is retired.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use pumice_base::sync::lock;
use pumice_reactor::{IoBuf, now};

use crate::commit::{Commit, Sealed};
use crate::inner::Inner;
use crate::layout::frame::{self, FrameHeader};
use crate::layout::header::{Decoded, SegmentHeader};
use crate::layout::{record, summary};
use crate::metalog::{self, Write};
use crate::table::OpenSegment;
use crate::{Addr, AppendClass, AppendError, RecordPtr, Stream};

/// Moves `failed` and what follows it in its segment; returns it as it is to be written now.
pub(crate) async fn relocate(inner: &Arc<Inner>, failed: Sealed) -> Result<Sealed, String> {
    let target = fresh_segment(inner).await?;
    let mut pairs = Vec::new();
    let result = {
        let mut commit = inner.commit();
        move_frames(inner, &mut commit, failed, target, &mut pairs)
    };
    inner.counters.relocations.fetch_add(1, Ordering::Relaxed);
    if let Some(told) = inner.on_relocated.get() {
        told(&pairs);
    }
    result
}

async fn fresh_segment(inner: &Arc<Inner>) -> Result<OpenSegment, String> {
    let mut out = VecDeque::new();
    for attempt in 0..3 {
        match inner.open_segments(Stream::Commit, 1, AppendClass::Rescue, &mut out) {
            Ok(()) => break,
            Err(AppendError::Busy | AppendError::Full(_)) if attempt < 2 => {
                if attempt > 0 {
                    // Better that reads end than that the drive does.
                    inner.table().end_reads(now());
                }
                // Also where the drive seems to be full: a record that is being written may bring some.
                metalog::write_meta(inner, Write::internal()).await.map_err(|error| error.to_string())?;
            }
            Err(AppendError::Busy | AppendError::Full(_)) => break,
            Err(error) => return Err(error.to_string()),
        }
    }
    // What was opened ahead is better than nothing: who needs it next asks for another one.
    let spare = || inner.commit().lanes.spares.pop_front();
    let fresh = out.pop_front().or_else(spare);
    fresh.ok_or_else(|| "a program failed and no segment is left to write to".into())
}

fn move_frames(
    inner: &Inner,
    commit: &mut Commit,
    failed: Sealed,
    target: OpenSegment,
    pairs: &mut Vec<(RecordPtr, RecordPtr)>,
) -> Result<Sealed, String> {
    let page = inner.page_bytes();
    let source = failed.start.segment();
    let source_end = failed.start.offset();
    let lane = failed.lane;
    let mut frames = VecDeque::from([failed]);
    // Frames of other lanes lie between them, and stay.
    let (behind, others) =
        std::mem::take(&mut commit.sealed).into_iter().partition(|next| next.start.segment() == source);
    commit.sealed = others;
    frames.extend::<VecDeque<Sealed>>(behind);
    let mut offset = 0u32;
    let mut moved_live = 0u32;
    let last_number = frames.back().map_or(0, |last| last.number);
    let mut replaced = Vec::new();
    for sealed in &mut frames {
        let old_head = if sealed.start.offset() == 0 { page } else { 0 };
        let old_addr = Addr::new(source, sealed.start.offset() + old_head as u32);
        let old = sealed.data.slice(old_head..);
        let new_head = if offset == 0 { page } else { 0 };
        let mut buf = IoBuf::for_read(new_head + old.len());
        if new_head > 0 {
            encode_head(inner, &mut buf[..new_head], &target, sealed, old_head);
        }
        let new_addr = Addr::new(target.id, offset + new_head as u32);
        buf[new_head..].copy_from_slice(&old);
        let used = reencode(&mut buf[new_head..], target.life, old_addr, new_addr, pairs)?;
        let live = pairs[used..].iter().map(|(_, new)| new.len).sum::<u32>();
        moved_live += live;
        let (start, data) = (Addr::new(target.id, offset), buf.freeze());
        offset += data.len() as u32;
        inner.table().wrote(target.id, offset, live, sealed.last_seq);
        replaced.push((start.offset(), data.clone()));
        (sealed.start, sealed.data) = (start, data);
    }
    inner.tail().relocate(source, source_end, target.id, replaced);
    commit.closing.retain(|&(_, segment)| segment != source);
    let continues = commit.lanes.open(lane).is_some_and(|open| open.id == source);
    if continues {
        *commit.lanes.open_mut(lane) = Some(OpenSegment { offset, ..target });
        commit.move_forming(inner, source, (target, offset), pairs);
    } else {
        let at = commit.closing.partition_point(|&(number, _)| number <= last_number);
        commit.closing.insert(at, (last_number, target.id));
    }
    inner.table().move_live(source, moved_live, source_end);
    let mut aliases = lock(&inner.aliases);
    aliases.extend(pairs.iter().map(|(old, new)| (old.addr, *new)));
    inner.has_aliases.store(true, Ordering::Release);
    drop(aliases);
    let first = frames.pop_front().ok_or("nothing to relocate")?;
    for next in frames {
        let at = commit.sealed.partition_point(|other| other.number < next.number);
        commit.sealed.insert(at, next);
    }
    Ok(first)
}

fn encode_head(inner: &Inner, out: &mut [u8], target: &OpenSegment, first: &Sealed, old_head: usize) {
    let old = match SegmentHeader::decode(&first.data) {
        Decoded::Header(header) if old_head > 0 => Some(header),
        _ => None,
    };
    out.fill(0);
    SegmentHeader {
        drive_id: inner.superblock.drive_id,
        segment: target.id.0,
        segment_bytes: inner.segment_bytes,
        life: target.life,
        stream: Stream::Commit,
        first_frame: first.number,
        seq: old.map_or(first.last_seq, |header| header.seq),
        durable_frames: old.map_or(first.number, |header| header.durable_frames),
    }
    .encode(out);
}

/// Encodes a frame for its new place; returns how many pairs there were before.
fn reencode(
    bytes: &mut [u8],
    life: u64,
    old_addr: Addr,
    new_addr: Addr,
    pairs: &mut Vec<(RecordPtr, RecordPtr)>,
) -> Result<usize, String> {
    let before = pairs.len();
    let old_life = crate::layout::u64_at(bytes, 8);
    let header = FrameHeader::decode(bytes, old_life, old_addr)
        .ok_or_else(|| format!("the frame for {old_addr} does not verify in memory"))?;
    let end = header.bytes as usize;
    let records_end = reencode_records(bytes, end, header.count, life, old_addr, new_addr, pairs);
    if header.has_summary {
        summary::encode_trailer(&mut bytes[records_end..end], life, new_addr);
    }
    FrameHeader { life, ..header }.encode(bytes, new_addr);
    Ok(before)
}

/// Gives `count` records behind a frame header their checksums for another life and address; returns where they end.
pub(crate) fn reencode_records(
    bytes: &mut [u8],
    end: usize,
    count: u32,
    life: u64,
    old_addr: Addr,
    new_addr: Addr,
    pairs: &mut Vec<(RecordPtr, RecordPtr)>,
) -> usize {
    let mut at = frame::HEADER_BYTES;
    for _ in 0..count {
        let Some(total) = record::peek_total(&bytes[at..end]) else { break };
        let place = |addr: Addr| RecordPtr {
            addr: Addr::new(addr.segment(), addr.offset() + at as u32),
            len: total as u32,
        };
        let (old, new) = (place(old_addr), place(new_addr));
        let payload_at = record::peek_payload_at(&bytes[at..]);
        let (kind, seq) = (bytes[at + 8], record::peek_seq(&bytes[at..]));
        let crc = record::payload_crc(seq, &[&bytes[at + payload_at..at + total]]);
        record::encode_head(&mut bytes[at..], life, new.addr, (total - payload_at) as u32, kind, seq, crc);
        pairs.push((old, new));
        at += record::padded(total);
    }
    at
}
