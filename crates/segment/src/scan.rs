//! Reading whole stretches of segments and finding the frames in them.

use bytes::Bytes;
use pumice_flash::{Device, FlashError};
use pumice_reactor::IoBuf;

use crate::layout::frame::{self, FrameHeader};
use crate::layout::record;
use crate::{Addr, Damage, RecordPtr, Replayed, SegmentId};

/// Bytes as they were read; what was never programmed or does not read is zeros.
pub(crate) struct Stretch {
    pub bytes: Bytes,
    /// Offsets in the segment of pages that do not read.
    pub lost: Vec<u32>,
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
    let mut out = IoBuf::zeroed(len);
    let mut lost = Vec::new();
    if written > 0 {
        let (result, buf) = device.read(block, offset, IoBuf::for_read(written)).await;
        match result {
            Ok(()) if written == len => return Ok(Stretch { bytes: buf.freeze(), lost }),
            Ok(()) => out[..written].copy_from_slice(&buf),
            Err(
                error @ (FlashError::Gone { .. }
                | FlashError::Oversize { .. }
                | FlashError::Unaligned { .. }
                | FlashError::Truncated { .. }),
            ) => return Err(error),
            Err(_) => {
                let page = geometry.page_bytes as usize;
                for at in (0..written).step_by(page) {
                    let chunk = page.min(written - at);
                    let (result, buf) = device.read(block, offset + at as u32, IoBuf::for_read(chunk)).await;
                    match result {
                        Ok(()) => out[at..at + chunk].copy_from_slice(&buf),
                        Err(error @ FlashError::Gone { .. }) => return Err(error),
                        Err(_) => lost.push(offset + at as u32),
                    }
                }
            }
        }
    }
    Ok(Stretch { bytes: out.freeze(), lost })
}

/// A frame that was found.
pub(crate) struct Frame {
    pub header: FrameHeader,
    /// Where its header is.
    pub offset: u32,
    /// The records that verify.
    pub records: Vec<Replayed>,
    /// What does not: the frame is not whole.
    pub damage: Vec<Damage>,
}

impl Frame {
    /// Where the next frame may start.
    pub(crate) fn end(&self, page_bytes: u32) -> u32 {
        (self.offset + self.header.bytes).next_multiple_of(page_bytes)
    }
}

/// Every frame of a segment whose bytes `0..bytes.len()` were read, in order. Between frames, what does not start
/// with a valid header is skipped page by page.
pub(crate) fn frames(segment: SegmentId, life: u64, bytes: &Bytes, page_bytes: u32) -> Vec<Frame> {
    let mut found = Vec::new();
    let mut offset = page_bytes;
    while (offset as usize) < bytes.len() {
        let addr = Addr::new(segment, offset);
        let Some(header) = FrameHeader::decode(&bytes[offset as usize..], life, addr) else {
            offset += page_bytes;
            continue;
        };
        let fits = header.bytes as usize >= frame::HEADER_BYTES
            && u64::from(offset) + u64::from(header.bytes) <= bytes.len() as u64;
        if !fits {
            offset += page_bytes;
            continue;
        }
        let frame = read_frame(segment, offset, header, bytes);
        offset = frame.end(page_bytes);
        found.push(frame);
    }
    found
}

fn read_frame(segment: SegmentId, offset: u32, header: FrameHeader, bytes: &Bytes) -> Frame {
    let end = offset as usize + header.bytes as usize;
    let mut at = offset as usize + frame::HEADER_BYTES;
    let mut frame = Frame {
        header,
        offset,
        records: Vec::with_capacity((header.count as usize).min(header.bytes as usize / 16)),
        damage: Vec::new(),
    };
    for index in 0..header.count {
        if at >= end {
            frame.damage.push(Damage {
                segment,
                offset: at as u32,
                what: "frame holds too few records".into(),
            });
            break;
        }
        let addr = Addr::new(segment, at as u32);
        match record::parse(&bytes[at..end], header.life, addr) {
            Ok(parsed) => {
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
                frame.damage.push(Damage { segment, offset: at as u32, what });
                // Its length may be right all the same: the records after it tell.
                match record::peek_total(&bytes[at..end]).map(record::padded) {
                    Some(len) if len < end - at => at += len,
                    _ => break,
                }
            }
        }
    }
    frame
}
