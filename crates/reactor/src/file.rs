//! Files and block devices.

use crate::buf::IoBuf;
use crate::driver::{FileInfo, Handle, Op, OpenOptions, Outcome, WriteSync};
use crate::file_queue::Requests;
use crate::operation::submit;
use crate::zones::{Zone, ZoneAction, ZonedInfo};
use bytes::Bytes;
use std::io;
use std::path::Path;

/// An open file or block device. Clones share it; any core may use it.
#[derive(Clone, Debug)]
pub struct File {
    handle: Handle,
    info: FileInfo,
}

impl File {
    /// Opens a file.
    pub async fn open(path: &Path, options: &OpenOptions) -> io::Result<Self> {
        let op = Op::Open { path: path.to_owned(), options: options.clone() };
        match submit(op).await {
            Outcome::Opened(result) => result.map(|(handle, info)| Self { handle, info }),
            other => other.unexpected(),
        }
    }

    /// Fills `buf` from `offset` on: returns its length, or less at the end of the file. The buffer always comes
    /// back; bytes after the count are unspecified.
    pub async fn read_at(&self, mut buf: IoBuf, offset: u64) -> (io::Result<usize>, IoBuf) {
        let mut start = 0;
        while start < buf.len() {
            let op = Op::Read { file: self.handle.clone(), buf, start, offset: offset + start as u64 };
            let result;
            (result, buf) = match submit(op).await {
                Outcome::Read(result, buf) => (result, buf),
                other => other.unexpected(),
            };
            match result {
                Ok(0) => break,
                Ok(bytes) => start += bytes,
                Err(error) => return (Err(error), buf),
            }
            // A direct read that stops at an odd place has met the end; going on from there would be refused.
            if !start.is_multiple_of(self.info.alignment as usize) {
                break;
            }
        }
        (Ok(start), buf)
    }

    /// Writes all of `data` at `offset`. On a direct file, offset and length must be multiples of
    /// [`alignment`](Self::alignment) and the memory aligned, as a frozen [`IoBuf`] is.
    pub async fn write_at(&self, mut data: Bytes, mut offset: u64, sync: WriteSync) -> io::Result<()> {
        self.check_aligned(&data, offset)?;
        while !data.is_empty() {
            let op = Op::Write { file: self.handle.clone(), data, offset, sync };
            let result;
            (result, data) = match submit(op).await {
                Outcome::Written(result, data) => (result, data),
                other => other.unexpected(),
            };
            let written = result?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            data = data.split_off(written);
            offset += written as u64;
        }
        Ok(())
    }

    fn check_aligned(&self, data: &[u8], offset: u64) -> io::Result<()> {
        let (alignment, memory) = (self.info.alignment as usize, self.info.memory_alignment as usize);
        if data.is_empty()
            || offset.is_multiple_of(alignment as u64)
                && data.len().is_multiple_of(alignment)
                && data.as_ptr().addr().is_multiple_of(memory)
        {
            return Ok(());
        }
        Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!(
                "direct write of {} bytes at {offset} from memory at ...{:03x}: the file takes multiples of {alignment} \
                 bytes and memory aligned to {memory}",
                data.len(),
                data.as_ptr().addr() & 0xfff,
            ),
        ))
    }

    async fn done(&self, op: Op) -> io::Result<u64> {
        match submit(op).await {
            Outcome::Done(result) => result,
            other => other.unexpected(),
        }
    }

    /// Waits until everything written by completed writes is on the media.
    pub async fn sync_data(&self) -> io::Result<()> {
        self.done(Op::Sync { file: self.handle.clone() }).await.map(drop)
    }

    /// Gives the range back to the file system; it reads as zeros afterwards.
    pub async fn punch_hole(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.done(Op::Punch { file: self.handle.clone(), offset, bytes }).await.map(drop)
    }

    /// Reserves space for the range, growing the file if need be.
    pub async fn allocate(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.done(Op::Allocate { file: self.handle.clone(), offset, bytes }).await.map(drop)
    }

    /// Cuts or grows the file.
    pub async fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.done(Op::SetLen { file: self.handle.clone(), bytes }).await.map(drop)
    }

    /// The length of the file or device in bytes.
    pub async fn len(&self) -> io::Result<u64> {
        self.done(Op::Len { file: self.handle.clone() }).await
    }

    /// Zones of a zoned device from the one that holds byte `from` on: at most `zones_max`, perhaps fewer, none behind
    /// the last.
    pub async fn report_zones(&self, from: u64, zones_max: u32) -> io::Result<Vec<Zone>> {
        match submit(Op::ReportZones { file: self.handle.clone(), from, zones_max }).await {
            Outcome::Zones(result) => result,
            other => other.unexpected(),
        }
    }

    /// Does `action` to the zones in the range, which must be whole zones.
    pub async fn manage_zones(&self, action: ZoneAction, start: u64, bytes: u64) -> io::Result<()> {
        self.done(Op::ManageZones { file: self.handle.clone(), action, start, bytes }).await.map(drop)
    }

    /// How a zoned device is cut, and its limits; nothing on other devices and files.
    pub fn zoned(&self) -> Option<ZonedInfo> {
        self.info.zoned
    }

    /// Offsets and lengths must be multiples of this many bytes; 1 unless the file is direct.
    pub fn alignment(&self) -> u32 {
        self.info.alignment
    }

    /// Whether reads and writes go past the page cache.
    pub fn is_direct(&self) -> bool {
        self.info.direct
    }

    /// How far the world is with what it was asked of the file by all cores.
    pub fn requests(&self) -> Requests {
        self.handle.queue().expect("a file has one").requests()
    }

    /// A block device rather than a regular file.
    pub fn is_block_device(&self) -> bool {
        self.info.block_device
    }
}
