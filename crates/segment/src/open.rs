//! Formatting and opening drives.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use pumice_flash::{Device, FlashError, Geometry};
use pumice_reactor::IoBuf;

use crate::commit::Commit;
use crate::fetch::{self, Found};
use crate::heap::{Heap, Opened, Progress};
use crate::home;
use crate::inner::Inner;
use crate::lanes::lanes_of;
use crate::layout::frame;
use crate::layout::header::{self, SegmentHeader};
use crate::layout::meta::{ENTRY_BYTES, FLAG_DURABLE, MetaKind, MetaRecord, SegmentState};
use crate::layout::superblock::{self, CONFIG_MAX_BYTES, Decoded, Placed, SUPERBLOCK_BYTES, Superblock};
use crate::metalog::{self, MetaLog, MetaState, Write};
use crate::replay::Replay;
use crate::table::{OpenSegment, POOL_SEGMENTS, Table};
use crate::{
    Addr, Damage, FormatOptions, HeapError, HeapOptions, SegmentId, Stream, plausible, scan, wear, writer,
};

/// Where segment 1 may begin on a file whose segment size is not known yet.
const SEGMENT_BYTES_RANGE: std::ops::RangeInclusive<u32> = 16..=26;
const DATA_SEGMENTS_MIN: u32 = 10;
/// Blocks that may fail while a drive is formatted.
const FORMAT_TRIES: u32 = 32;
/// Blocks that may be partly written at once without any of them being done with: a half of the metadata log and the one
/// that its next snapshot goes to, two of the commit stream while a failed program moves, one of each other stream.
const PLACES_MIN: u32 = 7;

pub(crate) async fn format(device: &Device, options: &FormatOptions) -> Result<(), HeapError> {
    let device = &device.corrected()?;
    let found = match find_superblock(device).await {
        // A drive that does not say whether it is one, or which, may still be made one.
        Err(HeapError::Flash(_) | HeapError::Damaged(_)) if options.force => None,
        found => found?,
    };
    let newest = found.as_ref().map_or(0, |found| found.superblock.sequence);
    if let Some(found) = found.filter(|_| !options.force) {
        let id = found.superblock.drive_id.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        return Err(HeapError::AlreadyFormatted { device: format!("drive {id}") });
    }
    if options.drive_id == [0; 16] {
        return Err(HeapError::Geometry("the drive needs an identity other than zeros".into()));
    }
    if options.config.len() > CONFIG_MAX_BYTES {
        return Err(HeapError::Geometry(format!(
            "a client configuration of {} B exceeds {CONFIG_MAX_BYTES} B",
            options.config.len()
        )));
    }
    check_places(device)?;
    let geometry = if device.has_own_blocks() { device.geometry() } else { file_geometry(device, options)? };
    let device = device.with_geometry(geometry)?;
    let may_move = device.emulated().is_some();
    if !may_move && (geometry.page_bytes as usize) < SUPERBLOCK_BYTES {
        return Err(HeapError::Geometry(format!(
            "{geometry}: pages must have at least {SUPERBLOCK_BYTES} B"
        )));
    }
    let mut bad = BTreeSet::new();
    for _ in 0..FORMAT_TRIES {
        let sequence = newest + 1;
        let superblock = shape(&device, options, sequence, may_move, &bad)?;
        match lay_out(&device, &superblock, options, &bad).await {
            Err(HeapError::Flash(
                FlashError::ProgramFailed { block, .. } | FlashError::EraseFailed { block },
            )) if may_move => {
                bad.insert(geometry.number(block));
            }
            result => return result,
        }
    }
    Err(HeapError::Geometry(format!(
        "{geometry}: {FORMAT_TRIES} blocks failed while the drive was formatted"
    )))
}

/// The superblock of a new drive.
fn shape(
    device: &Device,
    options: &FormatOptions,
    sequence: u64,
    may_move: bool,
    bad: &BTreeSet<u32>,
) -> Result<Superblock, HeapError> {
    let geometry = device.geometry();
    let segment_count = geometry.block_count();
    let meta_half_segments = meta_half_segments(geometry);
    let system = 2 + 2 * meta_half_segments;
    let is_good = |id: &u32| !device.is_factory_bad(geometry.block(*id)) && !bad.contains(id);
    let usable = if may_move { (0..segment_count).filter(is_good).count() as u32 } else { segment_count };
    if usable < system + DATA_SEGMENTS_MIN {
        return Err(HeapError::Geometry(format!(
            "{geometry} gives {usable} segments; at least {} are needed: use smaller segments or a larger drive",
            system + DATA_SEGMENTS_MIN
        )));
    }
    let placed = if may_move {
        let range = superblock::range_segments(segment_count);
        let first: Vec<u32> = (0..range).filter(is_good).take(2).collect();
        let &[one, two] = &first[..] else {
            return Err(HeapError::Geometry(format!("of the first {range} blocks too few take superblocks")));
        };
        let meta: Vec<u32> =
            (range..segment_count).filter(is_good).take(2 * meta_half_segments as usize).collect();
        if meta.len() < 2 * meta_half_segments as usize
            || !superblock::fits(2 * meta_half_segments, geometry.block_bytes() as usize / 2)
        {
            return Err(HeapError::Geometry(format!("{geometry}: too few blocks for the metadata log")));
        }
        Some(Placed { superblocks: [one, two], meta, retired: Vec::new() })
    } else {
        None
    };
    Ok(Superblock {
        drive_id: options.drive_id,
        sequence,
        segment_bytes: geometry.block_bytes(),
        page_bytes: geometry.page_bytes,
        read_bytes: geometry.read_bytes,
        channels: geometry.channels,
        segment_count,
        meta_half_segments,
        config: options.config.clone(),
        placed,
    })
}

/// Writes a new drive's metadata and then its superblock.
async fn lay_out(
    device: &Device,
    superblock: &Superblock,
    options: &FormatOptions,
    bad: &BTreeSet<u32>,
) -> Result<(), HeapError> {
    let geometry = device.geometry();
    for number in 0..geometry.block_count() {
        // Nothing of what lies here from before needs a place.
        device.finish(geometry.block(number));
    }
    let system = superblock.system_segments();
    let (places, meta) = system.split_at(2);
    // First the superblocks of an older drive go, the new one comes last: a cut in between leaves no drive at all.
    for &segment in places {
        let block = geometry.block(segment);
        device.erase(block).await?;
        device.prewrite(block).await?;
    }
    if superblock.placed.is_some() {
        for segment in 0..superblock::range_segments(superblock.segment_count) {
            match superblock_in(device, segment).await {
                Ok(None) => {}
                // What does not erase has a lower sequence number than the new one, or is none.
                Ok(Some(_)) | Err(HeapError::Damaged(_)) => {
                    let _ = device.erase(geometry.block(segment)).await;
                }
                Err(error) => return Err(error),
            }
        }
    }
    device.sync().await?;
    let written = options.prewrite.is_some() && device.wants_prewrite();
    let first_data = system.len() as u32;
    if let Some(progress) = options.prewrite.as_ref().filter(|_| written) {
        let total = u64::from(superblock.segment_count - first_data);
        for segment in first_data..superblock.segment_count {
            device.prewrite(geometry.block(segment)).await?;
            (progress.0)(u64::from(segment - first_data) + 1, total);
        }
    }
    let mut snapshot = first_snapshot(device, superblock, bad, written);
    for &segment in meta.iter().rev() {
        device.erase(geometry.block(segment)).await?;
        device.prewrite(geometry.block(segment)).await?;
    }
    let half_bytes = metalog::half_bytes(superblock);
    snapshot.is_twice = metalog::is_written_twice(&snapshot, geometry.page_bytes as usize, half_bytes);
    metalog::write_record_to(device, superblock, &snapshot, 0, 0).await?;
    device.sync().await?;
    home::write_at(device, superblock, places[0], Some(0)).await?;
    if superblock.placed.is_none() {
        // Nothing is written there again: should one of the two not read, there is the other.
        home::write_at(device, superblock, places[1], Some(0)).await?;
    }
    Ok(())
}

/// Refuses media that keep fewer blocks partly written at once than the heap's streams need.
fn check_places(device: &Device) -> Result<(), HeapError> {
    match device.active_max() {
        Some(max) if max < PLACES_MIN => Err(HeapError::Geometry(format!(
            "the drive takes {max} partly written zones at once; at least {PLACES_MIN} are needed"
        ))),
        _ => Ok(()),
    }
}

fn first_snapshot(
    device: &Device,
    superblock: &Superblock,
    bad: &BTreeSet<u32>,
    written: bool,
) -> MetaRecord {
    let mut table = table_of(device, superblock, 0, u32::MAX);
    if written {
        table.all_written();
    }
    table.retire_bad(bad);
    table.set_system(&superblock.system_segments());
    table.index_free();
    let composed = table.compose(true, 0);
    MetaRecord {
        kind: MetaKind::Snapshot,
        clean: true,
        is_twice: true,
        generation: 1,
        index: 0,
        replay_from: 0,
        moved_from: 0,
        last_seq: 0,
        // Lives of an earlier drive on the same media must not come again: start from the identity.
        next_life: u64::from_le_bytes(std::array::from_fn(|i| superblock.drive_id[i])) >> 16 | 1,
        durable_frames: [0, 0],
        patrol: [0, 0],
        replay_frame: None,
        segments: composed.segments,
        pool: composed.pool,
        blobs: Vec::new(),
    }
}

/// The first segment that may hold data.
fn first_data(superblock: &Superblock) -> u32 {
    match superblock.placed {
        Some(_) => 0,
        None => superblock.system_segments().len() as u32,
    }
}

/// The segment table, empty.
fn table_of(device: &Device, superblock: &Superblock, reserve: u32, frame_bytes: u32) -> Table {
    let mut table = Table::new(device, first_data(superblock), reserve, frame_bytes);
    if superblock.placed.is_some() {
        table.keep_for_superblocks(superblock::range_segments(superblock.segment_count));
    }
    table
}

fn file_geometry(device: &Device, options: &FormatOptions) -> Result<Geometry, HeapError> {
    let bytes = options.segment_bytes;
    if !bytes.is_power_of_two() || !SEGMENT_BYTES_RANGE.contains(&bytes.trailing_zeros()) {
        return Err(HeapError::Geometry(format!(
            "a segment of {bytes} B: use a power of two from 64KiB to 64MiB"
        )));
    }
    let found = device.geometry();
    let channels = options.channels.max(1);
    let blocks = device.raw_bytes() / u64::from(bytes) / u64::from(channels);
    if blocks == 0 {
        return Err(HeapError::Geometry(format!(
            "{} B hold no segment of {bytes} B: make the file larger or the segments smaller",
            device.raw_bytes()
        )));
    }
    Ok(Geometry {
        channels,
        blocks_per_channel: u32::try_from(blocks).unwrap_or(u32::MAX),
        pages_per_block: bytes / found.page_bytes,
        ..found
    })
}

/// Room for four snapshots of the table, and for as much of the client's.
fn meta_half_segments(geometry: Geometry) -> u32 {
    let segment_bytes = u64::from(geometry.block_bytes());
    let table_bytes = u64::from(geometry.block_count()) * ENTRY_BYTES as u64 * 4;
    let wanted = (table_bytes + (256 << 10)).max(geometry.capacity_bytes() / 4096).div_ceil(segment_bytes);
    let most = u64::from(geometry.block_count() / 16).max(1);
    wanted.clamp(1, most) as u32
}

/// Reads bytes by their place on the whole device, whatever the geometry: for what comes before it is known.
async fn read_at(device: &Device, at: u64, len: usize) -> Result<Option<Bytes>, HeapError> {
    let geometry = device.geometry();
    let block_bytes = u64::from(geometry.block_bytes());
    if at + len as u64 > geometry.capacity_bytes() || at % block_bytes + len as u64 > block_bytes {
        return Ok(None);
    }
    let block = geometry.block((at / block_bytes) as u32);
    let read = async || device.read(block, (at % block_bytes) as u32, IoBuf::for_read(len)).await;
    let (result, buf) =
        scan::patiently(read, |(result, _)| result.as_ref().is_err_and(scan::says_nothing)).await;
    match result {
        Ok(()) => Ok(Some(buf.freeze())),
        Err(error @ (FlashError::Gone { .. } | FlashError::Truncated { .. })) => Err(error.into()),
        // Where superblocks move what does not answer may hold the newest. Elsewhere both are alike.
        Err(error) if device.emulated().is_some() && scan::says_nothing(&error) => Err(error.into()),
        Err(_) => Ok(None),
    }
}

/// Where nothing moves and no superblock was found: says so where one may begin and does not read, lest somebody takes the
/// drive for an empty one.
async fn refuse_unread(device: &Device) -> Result<(), HeapError> {
    let geometry = device.geometry();
    for at in std::iter::once(0).chain(second_starts(device)) {
        if at + u64::from(geometry.page_bytes) > geometry.capacity_bytes() {
            break;
        }
        let block = geometry.block((at / u64::from(geometry.block_bytes())) as u32);
        let in_block = (at % u64::from(geometry.block_bytes())) as u32;
        let (result, _) = device.read(block, in_block, IoBuf::for_read(geometry.page_bytes as usize)).await;
        match result {
            Ok(()) | Err(FlashError::ReadPastWritePointer { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Where the second superblock may begin while the first does not say.
fn second_starts(device: &Device) -> Vec<u64> {
    match device.has_own_blocks() {
        true => vec![u64::from(device.geometry().block_bytes())],
        false => SEGMENT_BYTES_RANGE.map(|shift| 1u64 << shift).collect(),
    }
}

async fn superblock_at(device: &Device, at: u64) -> Result<Option<Superblock>, HeapError> {
    let page = device.geometry().page_bytes as usize;
    let Some(mut bytes) = read_at(device, at, page).await? else { return Ok(None) };
    let Some(total) = Superblock::peek_bytes(&bytes) else { return Ok(None) };
    if total > page {
        let Some(whole) = read_at(device, at, total.next_multiple_of(page)).await? else { return Ok(None) };
        bytes = whole;
    }
    match Superblock::decode(&bytes) {
        Decoded::Superblock(found) => {
            plausible::check_superblock(&found)?;
            Ok(Some(found))
        }
        Decoded::Nothing => Ok(None),
        Decoded::Newer(found) => Err(HeapError::UnknownVersion {
            what: "superblock",
            found: u32::from(found),
            known: u32::from(superblock::NEWEST_VERSION),
        }),
    }
}

/// The newest superblock of a segment that begins with one. Whatever is torn between them is passed over.
async fn superblock_in(device: &Device, segment: u32) -> Result<Option<Superblock>, HeapError> {
    let geometry = device.geometry();
    let (page, start) =
        (u64::from(geometry.page_bytes), u64::from(segment) * u64::from(geometry.block_bytes()));
    let Some(mut newest) = superblock_at(device, start).await? else { return Ok(None) };
    let written = device.write_pointer(geometry.block(segment)).unwrap_or(0);
    let end = start + u64::from(written) * page;
    let pages = |found: &Superblock| (found.encoded_bytes() as u64).next_multiple_of(page);
    let mut at = start + pages(&newest);
    while at < end {
        at += match superblock_at(device, at).await? {
            Some(found) => {
                let len = pages(&found);
                if found.drive_id == newest.drive_id && found.sequence > newest.sequence {
                    newest = found;
                }
                len
            }
            None => page,
        };
    }
    Ok(Some(newest))
}

/// A drive's newest superblock.
struct Sought {
    superblock: Superblock,
    /// The segment that holds it.
    at: u32,
    /// Where nothing moves: which of the first two segments do not begin with one, as both should.
    missing: Vec<u32>,
}

async fn find_superblock(device: &Device) -> Result<Option<Sought>, HeapError> {
    if device.emulated().is_none() {
        return find_fixed(device).await;
    }
    let mut newest: Option<Sought> = None;
    for segment in 0..superblock::range_segments(device.geometry().block_count()).max(2) {
        if let Some(found) = superblock_in(device, segment).await?
            && newest.as_ref().is_none_or(|newest| newest.superblock.sequence < found.sequence)
        {
            newest = Some(Sought { superblock: found, at: segment, missing: Vec::new() });
        }
    }
    Ok(newest)
}

/// The newest superblock where nothing moves: pages of segments 0 and 1 are written in order, so each run of rising sequence
/// numbers ends with its newest.
async fn find_fixed(device: &Device) -> Result<Option<Sought>, HeapError> {
    if let Some(first) = run_at(device, 0).await? {
        // Segment 1 lies where this superblock says; no other place needs a look.
        let at = u64::from(first.segment_bytes);
        let second = superblock_at(device, at).await?.filter(|second| second.drive_id == first.drive_id);
        let missing = if second.is_some() { Vec::new() } else { vec![1] };
        return Ok(Some(match second.filter(|second| second.sequence > first.sequence) {
            Some(superblock) => Sought { superblock, at: 1, missing },
            None => Sought { superblock: first, at: 0, missing },
        }));
    }
    let mut newest: Option<Superblock> = None;
    for start in second_starts(device) {
        let Some(found) = run_at(device, start).await? else { continue };
        if u64::from(found.segment_bytes) == start
            && newest.as_ref().is_none_or(|newest| newest.sequence < found.sequence)
        {
            newest = Some(found);
        }
    }
    if newest.is_none() {
        refuse_unread(device).await?;
    }
    Ok(newest.map(|superblock| Sought { superblock, at: 1, missing: vec![0] }))
}

/// The last of the run of superblocks that begins here.
async fn run_at(device: &Device, start: u64) -> Result<Option<Superblock>, HeapError> {
    let Some(mut found) = superblock_at(device, start).await? else { return Ok(None) };
    let page = u64::from(found.page_bytes);
    let mut at = start + page;
    while at < start + u64::from(found.segment_bytes)
        && let Some(next) = superblock_at(device, at).await?
        && next.drive_id == found.drive_id
        && next.sequence == found.sequence + 1
    {
        found = next;
        at += page;
    }
    Ok(Some(found))
}

/// Whether there never was a superblock: drives that were formatted when one was enough, and were not served since, have zeros
/// in segment 1.
async fn is_blank(device: &Device, segment: u32) -> Result<bool, HeapError> {
    let geometry = device.geometry();
    let at = u64::from(segment) * u64::from(geometry.block_bytes());
    if segment != 1 || device.write_pointer(geometry.block(segment)) == Some(0) {
        return Ok(segment == 1);
    }
    let page = read_at(device, at, geometry.page_bytes as usize).await?;
    Ok(page.is_some_and(|page| page.iter().all(|&byte| byte == 0)))
}

/// See [`Heap::superblock_damage`].
pub(crate) async fn superblock_damage(inner: &Inner, segment: u32) -> Result<Option<Damage>, HeapError> {
    let device = &inner.device;
    let at = u64::from(segment) * u64::from(inner.segment_bytes);
    let found = superblock_at(device, at).await?;
    if found.is_some_and(|found| found.drive_id == inner.superblock.drive_id) {
        return Ok(None);
    }
    if is_blank(device, segment).await? {
        return Ok(None);
    }
    let what =
        "the superblock does not verify; the other one is whole, and serving the drive writes this one again";
    Ok(Some(Damage { segment: SegmentId(segment), offset: 0, what: what.into() }))
}

pub(crate) async fn open(
    device: Device,
    options: HeapOptions,
    progress: Progress<'_>,
) -> Result<Opened, HeapError> {
    let device = device.corrected()?;
    let Sought { superblock, at: superblock_at, missing } =
        find_superblock(&device).await?.ok_or(HeapError::NotFormatted)?;
    let geometry = Geometry {
        channels: superblock.channels,
        blocks_per_channel: superblock.segment_count / u32::from(superblock.channels.max(1)),
        pages_per_block: superblock.segment_bytes / superblock.page_bytes.max(1),
        page_bytes: superblock.page_bytes,
        // A drive may have moved to where direct I/O asks for more than where it was formatted: for more than a page is too much,
        // as the device says itself.
        read_bytes: superblock.read_bytes.max(device.geometry().read_bytes).min(superblock.page_bytes),
        ..device.geometry()
    };
    check_places(&device)?;
    let device = device.with_geometry(geometry)?;
    let (half, log) = metalog::read_newest(&device, &superblock).await?.ok_or_else(|| {
        HeapError::Damaged(
            "both halves of the metadata log are unreadable; restore the drive from a copy".into(),
        )
    })?;
    let mut renewed = Vec::new();
    for segment in missing.into_iter().filter(|_| !device.is_read_only()) {
        let was_blank = is_blank(&device, segment).await?;
        // One is enough to go on; `check` tells of the other until it is written.
        let written = home::write_at(&device, &superblock, segment, None).await;
        renewed.extend((written.is_ok() && !was_blank).then_some(SegmentId(segment)));
    }
    let system = superblock.system_segments();
    let data_segments = superblock.segment_count.saturating_sub(system.len() as u32);
    let reserve = options
        .reserve_segments
        .unwrap_or_else(|| (data_segments / 256).clamp(6, 128))
        .min(data_segments / 2);
    let mut table = table_of(&device, &superblock, reserve, options.commit_max_bytes);
    plausible::check_log(&superblock, first_data(&superblock), &log.records)?;
    let mut blobs = Vec::new();
    for record in &log.records {
        for entry in &record.segments {
            table.load(entry);
        }
        if record.kind == MetaKind::Snapshot {
            blobs.clear();
        }
        blobs.extend(record.blobs.iter().cloned());
    }
    let Some(last) = log.records.last() else {
        return Err(HeapError::Damaged("the metadata log is empty".into()));
    };
    table.load_pool(&last.pool, last.next_life);
    if let Some(placed) = &superblock.placed {
        placed.retired.iter().for_each(|&segment| table.retire_system(segment));
        table.set_system(&system);
    }
    plausible::check_pool(&table, last)?;
    let mut state = MetaState {
        half,
        generation: last.generation,
        next_index: last.index + 1,
        offset: log.offset,
        blobs: blobs.clone(),
        snapshot_bytes: log.snapshot_bytes,
        zeroed_end: log.offset,
        is_damaged: !log.damaged.is_empty(),
        replay_from: last.replay_from,
        moved_from: last.moved_from,
        replay_frame: last.replay_frame,
    };
    // If it is old, whatever was written since says so to a recovery.
    let clean = last.clean && !log.uncertain_end && !log.may_be_old;
    let lacks_last_copy = log.lacks_last_copy;
    let mut lanes = lanes_of(&device, superblock.segment_count, options.commit_lanes);
    if clean && lanes > 1 && state.replay_frame.is_none() {
        let is_beyond = |(_, entry): (SegmentId, &crate::table::Entry)| {
            entry.stream == Stream::Commit as u8
                && matches!(entry.state, SegmentState::Open | SegmentState::Sealed)
                && entry.last_seq > last.replay_from
        };
        if table.entries().any(is_beyond) {
            // Closed without a checkpoint, as it could be once: where its log begins is not known, so that it stays in one piece.
            lanes = 1;
        } else {
            state.replay_frame = Some(last.durable_frames[0]);
        }
    }
    table.widen(lanes);
    let found = if clean {
        table.index_free();
        Vec::new()
    } else {
        find_segments(&device, &superblock, &mut table, last).await?
    };
    let mut open_segments: Vec<(Stream, OpenSegment)> = table
        .entries()
        .filter(|(_, entry)| entry.state == SegmentState::Open)
        .filter_map(|(id, entry)| {
            let open = OpenSegment { id, life: entry.life, offset: entry.end };
            Stream::from_u8(entry.stream).map(|stream| (stream, open))
        })
        .collect();
    if device.active_max().is_some() {
        let log: Vec<u32> =
            (0..superblock.meta_half_segments).map(|index| superblock.meta_segment(half, index)).collect();
        let is_open = |id: u32| open_segments.iter().any(|(_, open)| open.id.0 == id);
        for id in (0..superblock.segment_count).filter(|&id| !log.contains(&id) && !is_open(id)) {
            device.finish(geometry.block(id));
        }
    }
    // The segment that was being written goes on; those that were opened ahead follow in their order.
    open_segments.sort_by_key(|(_, open)| (open.offset == 0, open.life));
    for (_, open) in open_segments.iter().filter(|(_, open)| clean && open.offset > 0) {
        // How worn a block is lies in memory only. What this read answers is for whoever wants what is there.
        let _ = wear::check_written(&device, geometry.block(open.id.0), 0..1).await;
    }
    let read_only = device.is_read_only();
    let inner = Arc::new(Inner::new(
        device,
        (superblock, superblock_at),
        (options, lanes),
        table,
        MetaLog::new(state, last.clean),
    ));
    {
        let mut commit = inner.commit();
        *commit = Commit::new(last.last_seq + 1, last.durable_frames[0], lanes);
        if clean {
            if inner.meta.keeps_marks() {
                commit.mark_all(last.last_seq);
            }
            for (stream, open) in open_segments {
                if stream != Stream::Commit {
                    writer::reopen(&inner, stream, open);
                } else if !commit.lanes.adopt(open) {
                    if open.offset > 0 {
                        // There were more lanes.
                        inner.table().seal(open.id);
                    } else {
                        commit.lanes.spares.push_back(open);
                    }
                }
            }
        }
    }
    inner.moves().set_next(last.durable_frames[1]);
    {
        let mut patrol = inner.patrol_stats();
        [patrol.next_segment, patrol.passes] = last.patrol;
    }
    inner.written.open_to(last.last_seq);
    inner.durable.open_to(last.last_seq);
    if read_only {
        inner.fail("opened read-only");
    } else if !clean {
        inner.pause(Some("recovering"));
    }
    if clean && !read_only && lacks_last_copy {
        // Power failed while the drive was closed, with one of the two written: now both are. One is enough to go on.
        let write = Write { snapshot: true, is_optional: true, ..Write::internal() };
        let _ = metalog::write_meta(&inner, write).await;
    }
    let heap = Heap::from_inner(inner.clone());
    let replay = Replay::new(inner, found, last, clean);
    progress(0, replay.bytes_max());
    Ok(Opened { heap, client_state: blobs, replay, clean, renewed })
}

/// The segments that a recovery must read: those that were open, those that hold what is not checkpointed, and
/// those of the pool that turn out to have been opened.
async fn find_segments(
    device: &Device,
    superblock: &Superblock,
    table: &mut Table,
    last: &MetaRecord,
) -> Result<Vec<Found>, HeapError> {
    let mut found = Vec::new();
    let pool: Vec<u32> = table.pool().collect();
    assert!(pool.len() <= 2 * POOL_SEGMENTS);
    let page = superblock.page_bytes;
    let lives = last.next_life..last.next_life + 4 * POOL_SEGMENTS as u64;
    let mut searched = 0;
    for (id, scan::Stretch { bytes, lost, failed }) in
        pool.iter().copied().zip(fetch::first_pages(device, &pool, page).await?)
    {
        let segment = SegmentId(id);
        let failed = failed.into_iter().next();
        let mut is_certain = failed.is_none();
        let opened = match SegmentHeader::decode(&bytes) {
            header::Decoded::Newer(found) => {
                return Err(HeapError::UnknownVersion {
                    what: "segment",
                    found: u32::from(found),
                    known: u32::from(header::NEWEST_VERSION),
                });
            }
            header::Decoded::Header(header) => {
                is_certain = true;
                (header.drive_id == superblock.drive_id
                    && header.segment == id
                    && header.life >= last.next_life)
                    .then_some((header.life, header.stream))
            }
            // The header may be damaged; the first frame names its life too.
            header::Decoded::Nothing => {
                let frame = &bytes[page as usize..];
                let life = crate::layout::u64_at(frame, 8);
                match frame::FrameHeader::decode(frame, life, Addr::new(segment, page)) {
                    Some(frame) => lives.contains(&life).then_some((life, frame.stream)),
                    // Both may be damaged; any other frame names its life too.
                    None if failed.is_none()
                        && searched < fetch::SEARCHED_MAX
                        && (!lost.is_empty() || bytes.iter().any(|&byte| byte != 0)) =>
                    {
                        searched += 1;
                        fetch::later_life(device, segment, lives.clone(), page).await?
                    }
                    None => None,
                }
            }
        };
        match (opened, failed) {
            (Some((life, stream)), _) => table.adopt(segment, life, stream),
            // It may have been opened, and hold what was acknowledged last.
            (None, Some((_, error))) if !is_certain => return Err(error.into()),
            (None, _) => {}
        }
    }
    table.index_free();
    for (id, entry) in table.entries() {
        let Some(stream) = Stream::from_u8(entry.stream) else { continue };
        let wanted = match (entry.state, stream) {
            (SegmentState::Open, _) => true,
            (SegmentState::Sealed, Stream::Commit) => entry.last_seq > last.replay_from,
            (SegmentState::Sealed, Stream::Moved) => entry.last_seq >= last.moved_from,
            _ => false,
        };
        if wanted {
            found.push(Found {
                id,
                life: entry.life,
                stream,
                sealed_end: (entry.state == SegmentState::Sealed).then_some(entry.end),
                known_end: entry.end,
                known_live: entry.live.max(0) as u32,
                last_seq: entry.last_seq,
                first_frame: None,
                // Files have no such failure.
                may_have_failed: entry.flags & FLAG_DURABLE == 0 && !matches!(device, Device::File(_)),
                is_blank: false,
            });
        }
    }
    // Lives are given out in the order of opening, which is the frames' order unless a program failure moved some.
    let mut commits: Vec<&mut Found> =
        found.iter_mut().filter(|found| found.stream == Stream::Commit).collect();
    let ids: Vec<u32> = commits.iter().map(|found| found.id.0).collect();
    for (found, scan::Stretch { bytes, lost, failed }) in
        commits.iter_mut().zip(fetch::first_pages(device, &ids, page).await?)
    {
        let first = Addr::new(found.id, page);
        found.first_frame = match SegmentHeader::decode(&bytes) {
            header::Decoded::Header(header) if header.life == found.life => Some(header.first_frame),
            _ => frame::FrameHeader::decode(&bytes[page as usize..], found.life, first)
                .map(|frame| frame.number),
        };
        if let Some((_, error)) = failed.into_iter().next().filter(|_| found.first_frame.is_none()) {
            return Err(error.into());
        }
        found.is_blank = found.first_frame.is_none() && is_unwritten(device, found, &bytes, &lost);
    }
    found.sort_by_key(|found| (found.stream as u8, found.first_frame.unwrap_or(u64::MAX), found.life));
    Ok(found)
}

/// Whether a segment without a header was never written in this life: its first program did not get as far as the header's end.
fn is_unwritten(device: &Device, found: &Found, first: &[u8], lost: &[u32]) -> bool {
    let geometry = device.geometry();
    match device.write_pointer(geometry.block(found.id.0)) {
        // A header that was torn is the last page that was written.
        Some(pages) if !matches!(device, Device::File(_)) => pages <= 1,
        // What lies there is what lay there before. No disk tears the few bytes of a header.
        _ => match SegmentHeader::decode(first) {
            header::Decoded::Header(header) => header.life != found.life,
            header::Decoded::Newer(_) => false,
            header::Decoded::Nothing => {
                lost.is_empty() && first[..geometry.page_bytes as usize].iter().all(|&byte| byte == 0)
            }
        },
    }
}
