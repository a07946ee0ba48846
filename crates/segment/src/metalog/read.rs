//! Reading the metadata log: which half holds, its records, and whether both of each verify.

use bytes::Bytes;
use pumice_flash::{Device, FlashError};
use pumice_reactor::IoBuf;

use super::half_bytes;
use crate::inner::Inner;
use crate::layout::meta::{Decoded, MetaKind, MetaRecord, NEWEST_VERSION};
use crate::layout::superblock::Superblock;
use crate::{Damage, HeapError, SegmentId, scan};

/// The log is read in pieces of this size, or of a record's size when that is larger.
const WINDOW_BYTES: usize = 256 << 10;

/// A half as it was read: its newest complete generation's records in order.
pub(crate) struct ReadHalf {
    pub records: Vec<MetaRecord>,
    /// Where the next record goes.
    pub offset: u64,
    pub snapshot_bytes: u64,
    /// Something follows the last record that verifies: a torn record, or damage.
    pub uncertain_end: bool,
    /// What the other half holds is neither older nor nothing: a snapshot that was not written to its end, or one that was and
    /// does not read any more.
    pub may_be_old: bool,
    /// Records that were read from their copies, by where the first of the two should be.
    pub damaged: Vec<u64>,
    /// The last record should be there twice and is not: power failed while it was written, or it is damaged.
    pub lacks_last_copy: bool,
}

impl ReadHalf {
    fn generation(&self) -> u64 {
        self.records.first().map_or(0, |snapshot| snapshot.generation)
    }
}

/// Reads the half that holds, and says which it is: that of the higher generation, or the other one when its snapshot
/// does not verify. One page of the half that does not hold is read, no more, unless it may be the newer one.
///
/// # Errors
/// [`HeapError::Damaged`] when it is: records follow a snapshot that does not read.
pub(crate) async fn read_newest(
    device: &Device,
    superblock: &Superblock,
) -> Result<Option<(usize, ReadHalf)>, HeapError> {
    let (mut generations, mut is_blank) = ([None, None], [false, false]);
    for half in [0, 1] {
        let first = SegmentId(superblock.meta_segment(half, 0));
        let head = scan::read_patiently(device, first, 0, superblock.page_bytes as usize).await?;
        generations[half] = MetaRecord::peek_generation(&head.bytes);
        is_blank[half] = head.lost.is_empty() && head.bytes.iter().all(|&byte| byte == 0);
        if let Some((_, error)) = head.failed.into_iter().next() {
            // The other half may be the older one.
            return Err(error.into());
        }
    }
    let newer = usize::from(generations[1] > generations[0]);
    for half in [newer, 1 - newer] {
        let Some(mut read) = read_half(device, superblock, half).await? else { continue };
        // Each snapshot goes to the other half than the one before.
        let (other, generation) = (1 - half, read.generation());
        let is_before = generations[other].is_some_and(|other| other.checked_add(1) == Some(generation));
        if is_before || is_blank[other] {
            return Ok(Some((half, read)));
        }
        // What tells of the other half is a page that may be damaged, and of this one, too.
        let mut beside = read_half(device, superblock, other).await?;
        let (mut half, mut other) = (half, other);
        if let Some(beside) = beside.as_mut().filter(|beside| beside.generation() > generation) {
            std::mem::swap(&mut read, beside);
            std::mem::swap(&mut half, &mut other);
        }
        // A snapshot whose first page verifies was not written over.
        read.may_be_old = beside.is_none_or(|beside| beside.damaged.first() == Some(&0));
        if read.may_be_old && has_edits_beyond(device, superblock, other, read.generation()).await? {
            return Err(HeapError::Damaged(format!(
                "the newest snapshot of metadata, in {}, does not read, and what follows it is of no use without: \
                 restore the drive from a copy",
                SegmentId(superblock.meta_segment(other, 0))
            )));
        }
        return Ok(Some((half, read)));
    }
    Ok(None)
}

/// See [`crate::Heap::metadata_damage`].
pub(crate) async fn damage(inner: &Inner) -> Result<Vec<Damage>, HeapError> {
    let _permit = inner.meta.writer.acquire(1).await;
    let (half, end) = {
        let state = inner.meta.state();
        (state.half, state.offset)
    };
    let superblock = inner.home.superblock();
    let reader = HalfReader { device: &inner.device, superblock: &superblock, half, bytes: end };
    let (mut window, mut found) = (Window::default(), Vec::new());
    let mut note = |offset: u64| {
        let (index, in_segment) = (offset / reader.segment_bytes(), offset % reader.segment_bytes());
        let segment = SegmentId(superblock.meta_segment(half, index as u32));
        let what = "a record of the metadata log does not verify; its copy does, and serving the drive writes it again";
        found.push(Damage { segment, offset: in_segment as u32, what: what.into() });
    };
    let (mut offset, mut expected) = (0, Expected { generation: None, index: 0 });
    while offset < end {
        let (record, once) = match reader.record_at(&mut window, offset, expected).await? {
            Found::Record(record, once) => {
                if record.is_twice
                    && !matches!(
                        reader.record_at(&mut window, offset + once, expected).await?,
                        Found::Record(..)
                    )
                {
                    note(offset + once);
                }
                (record, once)
            }
            Found::Nothing | Found::Else => {
                note(offset);
                match reader.copy_of(&mut window, offset, expected).await? {
                    Some(copy) => copy,
                    None => break,
                }
            }
        };
        offset += if record.is_twice { 2 * once } else { once };
        expected = Expected { generation: Some(record.generation), index: record.index + 1 };
    }
    Ok(found)
}

/// Whether a half holds records that were added to a later snapshot than that of `generation`: so it was once there.
async fn has_edits_beyond(
    device: &Device,
    superblock: &Superblock,
    half: usize,
    generation: u64,
) -> Result<bool, HeapError> {
    let reader = HalfReader { device, superblock, half, bytes: half_bytes(superblock) };
    let page = superblock.page_bytes as usize;
    let mut window = Window::default();
    for offset in (0..reader.bytes).step_by(page) {
        let head = window.get(&reader, offset, page).await?;
        let Some(len) = MetaRecord::peek_bytes(&head).filter(|&len| len as u64 <= reader.bytes - offset)
        else {
            continue;
        };
        if MetaRecord::peek_generation(&head).is_none_or(|found| found <= generation) {
            continue;
        }
        let bytes = window.get(&reader, offset, len.next_multiple_of(page)).await?;
        if let Decoded::Record(record) = MetaRecord::decode(&bytes, &superblock.drive_id, offset)
            && record.kind == MetaKind::Edit
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Which record comes next in a half.
#[derive(Clone, Copy)]
struct Expected {
    /// None: the snapshot, of any generation.
    generation: Option<u64>,
    index: u32,
}

impl Expected {
    fn is(self, record: &MetaRecord) -> bool {
        let kind = if self.generation.is_none() { MetaKind::Snapshot } else { MetaKind::Edit };
        record.kind == kind
            && record.index == self.index
            && self.generation.is_none_or(|generation| generation == record.generation)
    }
}

/// What lies at a place of a half.
enum Found {
    /// A record that was expected there, and how long it is.
    Record(Box<MetaRecord>, u64),
    /// Nothing: zeros.
    Nothing,
    /// Something else.
    Else,
}

/// Reads a half of the log; nothing when it holds no complete snapshot.
async fn read_half(
    device: &Device,
    superblock: &Superblock,
    half: usize,
) -> Result<Option<ReadHalf>, HeapError> {
    let reader = HalfReader { device, superblock, half, bytes: half_bytes(superblock) };
    let mut window = Window::default();
    let mut read = ReadHalf {
        records: Vec::new(),
        offset: 0,
        snapshot_bytes: 0,
        uncertain_end: false,
        may_be_old: false,
        damaged: Vec::new(),
        lacks_last_copy: false,
    };
    let mut last = None;
    while read.offset < reader.bytes {
        let generation = (!read.records.is_empty()).then(|| read.generation());
        let expected = Expected { generation, index: read.records.len() as u32 };
        let (record, once) = match reader.record_at(&mut window, read.offset, expected).await? {
            Found::Record(record, len) => (record, len),
            Found::Nothing => break,
            // The log's end, or a record that has a copy.
            Found::Else => match reader.copy_of(&mut window, read.offset, expected).await? {
                Some((record, len)) => {
                    read.damaged.push(read.offset);
                    (record, len)
                }
                None => {
                    read.uncertain_end = true;
                    break;
                }
            },
        };
        let first = read.offset;
        read.offset += if record.is_twice { 2 * once } else { once };
        last = record.is_twice.then_some((first, once, expected));
        if read.records.is_empty() {
            read.snapshot_bytes = read.offset;
        }
        read.records.push(*record);
    }
    if read.records.is_empty() {
        return Ok(None);
    }
    if let Some((first, once, expected)) = last {
        read.lacks_last_copy = read.damaged.last() == Some(&first)
            || !matches!(reader.record_at(&mut window, first + once, expected).await?, Found::Record(..));
    }
    // Nothing was ever programmed behind the end of a log that was closed: what does not read there is a torn record.
    read.uncertain_end |= window.lost.iter().any(|&lost| lost >= read.offset);
    Ok(Some(read))
}

struct HalfReader<'a> {
    device: &'a Device,
    superblock: &'a Superblock,
    half: usize,
    bytes: u64,
}

impl HalfReader<'_> {
    fn segment_bytes(&self) -> u64 {
        u64::from(self.superblock.segment_bytes)
    }

    /// What lies at `offset`, where `expected` may.
    async fn record_at(
        &self,
        window: &mut Window,
        offset: u64,
        expected: Expected,
    ) -> Result<Found, HeapError> {
        let page = self.superblock.page_bytes as usize;
        let head = window.get(self, offset, page).await?;
        let Some(len) = MetaRecord::peek_bytes(&head) else {
            // Old records of the half's previous use look like this too: only the magic is gone.
            let is_nothing = window.reads(offset, page) && head.iter().all(|&byte| byte == 0);
            return Ok(if is_nothing { Found::Nothing } else { Found::Else });
        };
        if len as u64 > self.bytes - offset {
            return Ok(Found::Else);
        }
        let bytes = window.get(self, offset, len.next_multiple_of(page)).await?;
        match MetaRecord::decode(&bytes, &self.superblock.drive_id, offset) {
            Decoded::Newer(found) => Err(HeapError::UnknownVersion {
                what: "metadata log",
                found: u32::from(found),
                known: u32::from(NEWEST_VERSION),
            }),
            Decoded::Record(record) if expected.is(&record) => Ok(Found::Record(record, bytes.len() as u64)),
            Decoded::Record(_) | Decoded::Nothing => Ok(Found::Else),
        }
    }

    /// The copy of the record that should be at `first`, and does not verify: it lies behind it by its own length.
    async fn copy_of(
        &self,
        window: &mut Window,
        first: u64,
        expected: Expected,
    ) -> Result<Option<(Box<MetaRecord>, u64)>, HeapError> {
        let page = u64::from(self.superblock.page_bytes);
        for offset in (first + page..self.bytes).step_by(page as usize) {
            let head = window.get(self, offset, page as usize).await?;
            let len = MetaRecord::peek_bytes(&head).map(|len| (len as u64).next_multiple_of(page));
            if len != Some(offset - first) {
                continue;
            }
            if let Found::Record(record, len) = self.record_at(window, offset, expected).await?
                && record.is_twice
            {
                return Ok(Some((record, len)));
            }
        }
        Ok(None)
    }
}

/// The part of a half that was read last: records are read in large pieces, not page by page.
#[derive(Default)]
struct Window {
    start: u64,
    bytes: Bytes,
    /// Pages of the half that did not read.
    lost: Vec<u64>,
    /// First place of which the drive did not say that it is lost.
    failed: Option<(u64, FlashError)>,
}

impl Window {
    /// Whether all of it reads, of what was asked for.
    fn reads(&self, offset: u64, len: usize) -> bool {
        let end = offset + len as u64;
        !self.lost.iter().any(|lost| (offset..end).contains(lost))
    }

    /// `len` bytes from `offset` on; zeros where nothing was programmed.
    async fn get(&mut self, reader: &HalfReader<'_>, offset: u64, len: usize) -> Result<Bytes, HeapError> {
        let end = self.start + self.bytes.len() as u64;
        if offset < self.start || offset + len as u64 > end {
            // What was read already of a record that reaches over the window's end is kept.
            let kept = if (self.start..end).contains(&offset) {
                self.bytes.slice((offset - self.start) as usize..)
            } else {
                Bytes::new()
            };
            let from = offset + kept.len() as u64;
            let missing = len - kept.len();
            let wanted = missing.max(WINDOW_BYTES).min((reader.bytes - from) as usize).max(missing);
            let Span { bytes: read, lost, failed } = read_span(reader, from, wanted).await?;
            self.bytes = if kept.is_empty() { read } else { [&kept[..], &read[..]].concat().into() };
            self.start = offset;
            self.lost.extend(lost);
            self.failed = self.failed.take().or(failed);
        }
        // What the drive does not answer behind the log's end is nobody's.
        if let Some((_, error)) = self.failed.as_ref().filter(|(at, _)| *at < offset + len as u64) {
            return Err(error.clone().into());
        }
        let at = (offset - self.start) as usize;
        Ok(self.bytes.slice(at..at + len))
    }
}

/// Bytes of a half as they were read.
struct Span {
    bytes: Bytes,
    lost: Vec<u64>,
    failed: Option<(u64, FlashError)>,
}

async fn read_span(reader: &HalfReader<'_>, offset: u64, len: usize) -> Result<Span, HeapError> {
    let segment_bytes = u64::from(reader.superblock.segment_bytes);
    let mut out = IoBuf::zeroed(len);
    let (mut lost, mut failed) = (Vec::new(), None);
    let mut done = 0;
    while done < len {
        let at = offset + done as u64;
        let in_segment = at % segment_bytes;
        let chunk = (len - done).min((segment_bytes - in_segment) as usize);
        let segment = SegmentId(reader.superblock.meta_segment(reader.half, (at / segment_bytes) as u32));
        let part = scan::read_patiently(reader.device, segment, in_segment as u32, chunk).await?;
        out[done..done + chunk].copy_from_slice(&part.bytes);
        lost.extend(part.lost.iter().map(|&page| at - in_segment + u64::from(page)));
        failed = failed.or(part
            .failed
            .into_iter()
            .next()
            .map(|(first, error)| (at - in_segment + u64::from(first), error)));
        done += chunk;
    }
    Ok(Span { bytes: out.freeze(), lost, failed })
}
