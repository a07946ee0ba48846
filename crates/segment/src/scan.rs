//! Reading whole stretches of segments and finding the frames in them.

use std::time::Duration;

use bytes::Bytes;
use pumice_flash::{Device, FlashError};
use pumice_reactor::{IoBuf, sleep};

use crate::layout::frame::{self, FrameHeader};
use crate::layout::{record, summary};
use crate::{Addr, Damage, RecordPtr, Replayed, SegmentId};

/// Bytes as they were read; what was never programmed or does not read is zeros.
pub(crate) struct Stretch {
    pub bytes: Bytes,
    /// Offsets in the segment of pages that do not read.
    pub lost: Vec<u32>,
    /// Those of them of which the media do not say that they are lost: the drive did not answer, and may do so later.
    pub failed: Vec<(u32, FlashError)>,
}

/// Times that who opens a drive asks for what it does not answer, and the pause in between.
const PATIENCE: u32 = 5;
const PATIENCE_PAUSE: Duration = Duration::from_millis(200);

/// Whether an error says nothing of what lies there: a link that is down, a time-out.
pub(crate) fn says_nothing(error: &FlashError) -> bool {
    matches!(error, FlashError::Io { .. } | FlashError::Timeout { .. })
}

/// Reads until the drive answers, whatever it says, or has been asked often enough: for those who open a drive, and must not
/// take a link that is down for the end of the log.
pub(crate) async fn patiently<T>(mut read: impl AsyncFnMut() -> T, has_failed: impl Fn(&T) -> bool) -> T {
    let mut tries = 1;
    loop {
        let answer = read().await;
        if tries == PATIENCE || !has_failed(&answer) {
            return answer;
        }
        tries += 1;
        sleep(PATIENCE_PAUSE).await;
    }
}

/// [`read_tolerant`], [`patiently`]. What the drive does not answer for though it answers for what lies beside it is lost.
pub(crate) async fn read_patiently(
    device: &Device,
    segment: SegmentId,
    offset: u32,
    len: usize,
) -> Result<Stretch, FlashError> {
    let read = async || read_tolerant(device, segment, offset, len).await;
    let mut stretch =
        patiently(read, |read| read.as_ref().is_ok_and(|stretch| !stretch.failed.is_empty())).await?;
    if !stretch.failed.is_empty() && is_local(device, segment, &stretch).await {
        stretch.failed.clear();
    }
    Ok(stretch)
}

/// More than this in one place, and in one stretch, is no bad place of a drive any more, but a part of it that is gone, and may come
/// back: an array that stripes its drives gives each more than that at a time.
const BAD_PLACE_BYTES: u32 = 32 << 10;
const BAD_BYTES: usize = 64 << 10;

/// Whether everything that failed are bad places: media errors by another number. The kernel tells of those with one of their own
/// ([`FlashError::Uncorrectable`]), but virtual disks, arrays and most file systems say EIO, as they do where nothing answers at all.
async fn is_local(device: &Device, segment: SegmentId, stretch: &Stretch) -> bool {
    let geometry = device.geometry();
    let (block, page) = (geometry.block(segment.0), geometry.page_bytes);
    let failed = &stretch.failed;
    if failed.len() * page as usize > BAD_BYTES.max(page as usize)
        || !failed.iter().all(|(_, error)| is_input_error(error))
    {
        return false;
    }
    for place in failed.chunk_by(|(at, _), (next, _)| at + page == *next) {
        let (first, end) = (place[0].0, place[place.len() - 1].0 + page);
        if end - first > BAD_PLACE_BYTES.max(page) {
            return false;
        }
        let beside = [first.checked_sub(page), Some(end).filter(|at| *at < geometry.block_bytes())];
        let mut answers = false;
        for at in beside.into_iter().flatten() {
            let (result, _) = device.read(block, at, IoBuf::for_read(page as usize)).await;
            answers |= result.is_ok();
        }
        if !answers {
            return false;
        }
    }
    true
}

fn is_input_error(error: &FlashError) -> bool {
    const EIO: i32 = 5;
    matches!(error, FlashError::Io { source, .. } if source.raw_os_error() == Some(EIO))
}

/// Reads `len` bytes from `offset` of a segment, page by page where the media refuse the whole.
pub(crate) async fn read_tolerant(
    device: &Device,
    segment: SegmentId,
    offset: u32,
    len: usize,
) -> Result<Stretch, FlashError> {
    let geometry = device.geometry();
    let block = geometry.block(segment.0);
    let written = device
        .write_pointer(block)
        .filter(|_| !matches!(device, Device::File(_)))
        .map_or(len, |page| ((page * geometry.page_bytes).saturating_sub(offset) as usize).min(len));
    let (mut lost, mut failed) = (Vec::new(), Vec::new());
    let mut out = None;
    if written > 0 {
        let (result, buf) = device.read(block, offset, IoBuf::for_read(written)).await;
        match result {
            Ok(()) if written == len => return Ok(Stretch { bytes: buf.freeze(), lost, failed }),
            Ok(()) => out.insert(IoBuf::zeroed(len))[..written].copy_from_slice(&buf),
            Err(
                error @ (FlashError::Gone { .. }
                | FlashError::Oversize { .. }
                | FlashError::Unaligned { .. }
                | FlashError::Truncated { .. }),
            ) => return Err(error),
            Err(_) => {
                let page = geometry.page_bytes as usize;
                let out = out.insert(IoBuf::zeroed(len));
                for at in (0..written).step_by(page) {
                    let chunk = page.min(written - at);
                    let (result, buf) = device.read(block, offset + at as u32, IoBuf::for_read(chunk)).await;
                    match result {
                        Ok(()) => out[at..at + chunk].copy_from_slice(&buf),
                        Err(error @ FlashError::Gone { .. }) => return Err(error),
                        Err(error) => {
                            let at = offset + at as u32;
                            lost.push(at);
                            if says_nothing(&error) {
                                failed.push((at, error));
                            }
                        }
                    }
                }
            }
        }
    }
    Ok(Stretch { bytes: out.unwrap_or_else(|| IoBuf::zeroed(len)).freeze(), lost, failed })
}

/// A frame that was found.
pub(crate) struct Frame {
    pub header: FrameHeader,
    /// Where its header is.
    pub offset: u32,
    /// The records that verify; none when only the header was read.
    pub records: Vec<Replayed>,
    /// Bytes of the records that verify, or that the header tells of.
    pub live: u32,
    /// What does not: the frame is not whole.
    pub damage: Vec<Damage>,
    /// Its records verify, and what follows them does not: no recovery needs that.
    pub summary_damage: Option<Damage>,
}

impl Frame {
    /// All that does not verify, but for a summary that may be torn.
    pub(crate) fn all_damage(&mut self, is_torn: bool) -> impl Iterator<Item = Damage> {
        let summary = self.summary_damage.take().filter(|_| !is_torn);
        std::mem::take(&mut self.damage).into_iter().chain(summary)
    }

    /// Where the next frame may start.
    pub(crate) fn end(&self, page_bytes: u32) -> u32 {
        (self.offset + self.header.bytes).next_multiple_of(page_bytes)
    }

    /// Pages at these offsets do not read: a frame is not whole with one of them, though zeros in its place verify where zeros
    /// were written.
    pub(crate) fn note_lost(&mut self, segment: SegmentId, lost: &[u32], page_bytes: u32) {
        let here = self.offset..self.end(page_bytes);
        if let Some(&offset) =
            lost.iter().find(|offset| here.contains(offset)).filter(|_| self.damage.is_empty())
        {
            let what = format!("frame {}: the page does not read", self.header.number);
            self.damage.push(Damage { segment, offset, what });
        }
    }
}

/// Every frame of a segment whose bytes `0..bytes.len()` were read, in order. Between frames, what does not start
/// with a valid header is skipped page by page.
pub(crate) fn frames(segment: SegmentId, life: u64, bytes: &Bytes, page_bytes: u32) -> Vec<Frame> {
    // The first page is the segment's header. What is cut off at the end is passed over.
    let end = bytes.len() as u32;
    let bytes = &bytes.slice((page_bytes as usize).min(bytes.len())..);
    Window { segment, life, bytes, base: page_bytes, page_bytes, end }.frames().0
}

/// A part of a segment in memory, in which frames are looked for.
pub(crate) struct Window<'a> {
    pub segment: SegmentId,
    pub life: u64,
    pub bytes: &'a Bytes,
    /// The offset in the segment of the first byte; a multiple of the page.
    pub base: u32,
    pub page_bytes: u32,
    /// Where the segment's frames end at the latest.
    pub end: u32,
}

impl Window<'_> {
    /// The frames that lie whole in the window, and the offset in the segment where to go on: that of the first frame
    /// which reaches beyond the window, or the window's end.
    pub(crate) fn frames(&self) -> (Vec<Frame>, u32, Option<u32>) {
        let mut found = Vec::new();
        let mut offset = self.base;
        let window_end = self.base + self.bytes.len() as u32;
        while offset < window_end {
            let addr = Addr::new(self.segment, offset);
            let head = &self.bytes[(offset - self.base) as usize..];
            let Some(header) = FrameHeader::decode(head, self.life, addr) else {
                offset += self.page_bytes;
                continue;
            };
            let frame_end = u64::from(offset) + u64::from(header.bytes);
            if (header.bytes as usize) < frame::HEADER_BYTES || frame_end > u64::from(self.end) {
                offset += self.page_bytes;
                continue;
            }
            if frame_end > u64::from(window_end) {
                return (found, offset, Some(header.bytes));
            }
            let frame = read_frame(self, offset, header);
            offset = frame.end(self.page_bytes);
            found.push(frame);
        }
        (found, offset, None)
    }
}

fn read_frame(window: &Window<'_>, offset: u32, header: FrameHeader) -> Frame {
    let (segment, bytes) = (window.segment, window.bytes);
    // Positions in the window; `place` makes them offsets in the segment.
    let place = |at: usize| window.base + at as u32;
    let begin = (offset - window.base) as usize;
    let end = begin + header.bytes as usize;
    let mut at = begin + frame::HEADER_BYTES;
    let mut frame = Frame {
        header,
        offset,
        records: Vec::with_capacity((header.count as usize).min(header.bytes as usize / 16)),
        live: 0,
        damage: Vec::new(),
        summary_damage: None,
    };
    for index in 0..header.count {
        if at >= end {
            frame.damage.push(Damage {
                segment,
                offset: place(at),
                what: "frame holds too few records".into(),
            });
            break;
        }
        let addr = Addr::new(segment, place(at));
        match record::parse(&bytes[at..end], header.life, addr) {
            Ok(parsed) => {
                frame.live += parsed.total as u32;
                frame.records.push(Replayed {
                    seq: parsed.seq.unwrap_or(header.seq + u64::from(index)),
                    ptr: RecordPtr { addr, len: parsed.total as u32 },
                    kind: parsed.kind,
                    payload: bytes.slice(at + parsed.payload_at..at + parsed.total),
                });
                at += record::padded(parsed.total);
            }
            Err(what) => {
                let what = format!("record {index} of frame {}: {what}", header.number);
                frame.damage.push(Damage { segment, offset: place(at), what });
                // Its length may be right all the same: the records after it tell.
                match record::peek_total(&bytes[at..end]).map(record::padded) {
                    Some(len) if len < end - at => at += len,
                    _ => break,
                }
            }
        }
    }
    if header.has_summary && frame.damage.is_empty() {
        let addr = Addr::new(segment, offset);
        if summary::decode(&bytes[at..end], header.life, addr).is_none() {
            let what = format!("frame {}: its summary does not verify", header.number);
            frame.summary_damage = Some(Damage { segment, offset: place(at), what });
        }
    }
    frame
}
