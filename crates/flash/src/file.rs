//! A file or block device as flash. Block `n` lies at byte `n * block_bytes`; O_DIRECT keeps the host's page
//! cache out, and durable programs are single writes with RWF_DSYNC. (Where a file system has no direct I/O: `page_cache.rs`.)
//!
//! An erase only resets the block's write pointer: recycled blocks commit twice as fast as fresh ones (measured
//! on ext4: a first write allocates), so bytes stay until they are overwritten, [`FileDevice::prewrite`] writes
//! ahead of need, and [`FileDevice::give_back`] punches when somebody wants the space. Write pointers are held in
//! memory only and are unknown after opening; the layer above finds a block's end by its contents, and no old
//! content verifies there because checksums are seeded with the block's life.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use pumice_base::hash::HashMap;
use pumice_base::sync::lock;
use pumice_reactor::{File, OpenOptions, Requests};
use pumice_reactor::{IoBuf, WriteSync};

use crate::error::Operation;
use crate::page_cache::PageCache;
use crate::{Access, BlockAddr, FlashError, Geometry};

const DEFAULT_BLOCK_BYTES: u32 = 8 << 20;
const PAGE_BYTES: u32 = 4096;
/// Small enough that a commit behind it hardly waits.
const PREWRITE_CHUNK_BYTES: u32 = 256 << 10;

/// See the module's text.
pub struct FileDevice {
    file: File,
    name: Arc<str>,
    raw_bytes: u64,
    geometry: Geometry,
    access: Access,
    /// Of a file that is not direct.
    page_cache: Option<Arc<PageCache>>,
    /// Next page of the blocks that were erased or programmed since opening.
    write_pointers: Mutex<HashMap<u32, u32>>,
    /// Programs that failed, by (block, first page), and the page behind each.
    failed: Mutex<HashMap<(u32, u32), u32>>,
}

impl FileDevice {
    /// Grows a file that is shorter than that.
    pub(crate) async fn grown_to(mut self, capacity_bytes: u64) -> Result<Self, FlashError> {
        if !self.is_block_device() && self.raw_bytes < capacity_bytes {
            self.file
                .set_len(capacity_bytes)
                .await
                .map_err(|error| FlashError::from_io(Operation::Open, None, error))?;
            self.raw_bytes = capacity_bytes;
            self.geometry = default_geometry(&self.file, capacity_bytes);
        }
        Ok(self)
    }

    pub(crate) fn is_block_device(&self) -> bool {
        self.file.is_block_device()
    }

    pub(crate) async fn over(file: File, name: String, access: Access) -> Result<Self, FlashError> {
        let raw_bytes =
            file.len().await.map_err(|error| FlashError::from_io(Operation::Open, None, error))?;
        let geometry = default_geometry(&file, raw_bytes);
        let page_cache = (!file.is_direct()).then(|| Arc::new(PageCache::new()));
        Ok(Self {
            file,
            name: name.into(),
            raw_bytes,
            geometry,
            access,
            page_cache,
            write_pointers: Mutex::default(),
            failed: Mutex::default(),
        })
    }

    pub(crate) fn reshaped(&self, geometry: Geometry) -> Result<Self, FlashError> {
        let unit = self.file.alignment().max(512);
        if !geometry.page_bytes.is_multiple_of(unit) || !geometry.read_bytes.is_multiple_of(unit) {
            return Err(FlashError::Geometry(format!("{}: pages must be multiples of {unit} B", self.name)));
        }
        if geometry.capacity_bytes() > self.raw_bytes {
            return Err(FlashError::Geometry(format!(
                "{} holds {} B, {geometry} needs {} B: the drive is truncated, restore it to its full length",
                self.name,
                self.raw_bytes,
                geometry.capacity_bytes()
            )));
        }
        Ok(Self {
            file: self.file.clone(),
            name: self.name.clone(),
            raw_bytes: self.raw_bytes,
            geometry,
            access: self.access,
            page_cache: self.page_cache.clone(),
            write_pointers: Mutex::default(),
            failed: Mutex::default(),
        })
    }

    pub(crate) fn geometry(&self) -> Geometry {
        self.geometry
    }

    pub(crate) fn raw_bytes(&self) -> u64 {
        self.raw_bytes
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.access == Access::ReadOnly
    }

    pub(crate) fn requests(&self) -> Requests {
        self.file.requests()
    }

    pub(crate) fn write_pointer(&self, block: BlockAddr) -> Option<u32> {
        self.pointers().get(&self.geometry.number(block)).copied()
    }

    pub(crate) async fn read(
        &self,
        block: BlockAddr,
        offset_bytes: u32,
        buf: IoBuf,
    ) -> (Result<(), FlashError>, IoBuf) {
        let unit = self.geometry.read_bytes;
        if let Err(error) = self.check(Operation::Read, block, offset_bytes, buf.len() as u64, unit) {
            return (Err(error), buf);
        }
        // Known only of blocks that were erased or programmed since opening.
        if let Some(next) = self.write_pointer(block) {
            let written_bytes = next * self.geometry.page_bytes;
            if offset_bytes + buf.len() as u32 > written_bytes {
                return (Err(FlashError::ReadPastWritePointer { block, offset_bytes, written_bytes }), buf);
            }
        }
        let wanted = buf.len();
        let (result, buf) = self.file.read_at(buf, self.at(block, offset_bytes)).await;
        let result = match result {
            Ok(read) if read >= wanted => Ok(()),
            Ok(_) => Err(FlashError::Truncated { block, offset_bytes }),
            Err(error) => Err(FlashError::from_read(block, offset_bytes, error)),
        };
        (result, buf)
    }

    pub(crate) async fn program(
        &self,
        block: BlockAddr,
        first_page: u32,
        data: Bytes,
        sync: WriteSync,
    ) -> Result<(), FlashError> {
        self.writable(Operation::Program)?;
        let offset_bytes = check_program(self.geometry, block, first_page, data.len() as u64)?;
        let pages = (data.len() / self.geometry.page_bytes as usize) as u32;
        let number = self.geometry.number(block);
        {
            let mut pointers = self.pointers();
            let failed_end = self.failed().remove(&(number, first_page));
            match pointers.get(&number).copied() {
                Some(next) if failed_end.is_some_and(|end| end < next) => None,
                Some(_) if failed_end.is_some() => pointers.insert(number, first_page + pages),
                Some(next) if first_page < next => {
                    return Err(FlashError::AlreadyProgrammed { block, page: first_page });
                }
                Some(next) if first_page > next => {
                    return Err(FlashError::OutOfOrder { block, page: first_page, expected: next });
                }
                _ => pointers.insert(number, first_page + pages),
            };
        }
        let at = self.at(block, offset_bytes);
        let written = match &self.page_cache {
            Some(cache) if sync == WriteSync::Durable => {
                Box::pin(cache.write_durable(&self.file, data, at)).await
            }
            _ => self.file.write_at(data, at, sync).await,
        };
        match written {
            Ok(()) => Ok(()),
            Err(error) => {
                // A file takes the same pages again, once whatever was wrong (a full file system) is mended. The pointer
                // stays: what comes behind them may be on its way already, or be about to be, from another core.
                self.failed().insert((number, first_page), first_page + pages);
                Err(FlashError::from_program(block, first_page, error))
            }
        }
    }

    pub(crate) fn erase(&self, block: BlockAddr) -> Result<(), FlashError> {
        self.writable(Operation::Erase)?;
        self.check(Operation::Erase, block, 0, 0, self.geometry.page_bytes)?;
        let number = self.geometry.number(block);
        self.pointers().insert(number, 0);
        self.failed().retain(|&(failed, _), _| failed != number);
        Ok(())
    }

    pub(crate) async fn give_back(&self, block: BlockAddr) -> Result<(), FlashError> {
        self.erase(block)?;
        self.file
            .punch_hole(self.at(block, 0), u64::from(self.geometry.block_bytes()))
            .await
            .map_err(|error| FlashError::from_io(Operation::GiveBack, Some(block), error))
    }

    pub(crate) async fn prewrite(&self, block: BlockAddr) -> Result<(), FlashError> {
        self.erase(block)?;
        self.zero(block, 0..self.geometry.block_bytes()).await
    }

    /// Zeros for the pages of `range` (bytes), which lie behind the write pointer; it stays where it is.
    pub(crate) async fn zero(&self, block: BlockAddr, range: Range<u32>) -> Result<(), FlashError> {
        self.writable(Operation::Program)?;
        let page = self.geometry.page_bytes;
        let len_bytes = u64::from(range.end.saturating_sub(range.start));
        self.check(Operation::Program, block, range.start, len_bytes, page)?;
        let first_page = range.start / page;
        if self.pointers().get(&self.geometry.number(block)).is_some_and(|&next| first_page < next) {
            return Err(FlashError::AlreadyProgrammed { block, page: first_page });
        }
        let zeros = IoBuf::zeroed(PREWRITE_CHUNK_BYTES.min(self.geometry.block_bytes()) as usize).freeze();
        let mut offset_bytes = range.start;
        while offset_bytes < range.end {
            let len = zeros.len().min((range.end - offset_bytes) as usize);
            self.file
                .write_at(zeros.slice(..len), self.at(block, offset_bytes), WriteSync::Cached)
                .await
                .map_err(|error| FlashError::from_io(Operation::Program, Some(block), error))?;
            offset_bytes += len as u32;
        }
        Ok(())
    }

    pub(crate) async fn sync(&self) -> Result<(), FlashError> {
        self.writable(Operation::Sync)?;
        let synced = match &self.page_cache {
            Some(cache) => cache.sync(&self.file).await,
            None => self.file.sync_data().await,
        };
        synced.map_err(|error| FlashError::from_io(Operation::Sync, None, error))
    }

    fn at(&self, block: BlockAddr, offset_bytes: u32) -> u64 {
        u64::from(self.geometry.number(block)) * u64::from(self.geometry.block_bytes())
            + u64::from(offset_bytes)
    }

    fn pointers(&self) -> MutexGuard<'_, HashMap<u32, u32>> {
        lock(&self.write_pointers)
    }

    fn failed(&self) -> MutexGuard<'_, HashMap<(u32, u32), u32>> {
        lock(&self.failed)
    }

    fn writable(&self, operation: Operation) -> Result<(), FlashError> {
        if self.access == Access::ReadOnly { Err(FlashError::ReadOnly { operation }) } else { Ok(()) }
    }

    fn check(
        &self,
        operation: Operation,
        block: BlockAddr,
        offset_bytes: u32,
        len_bytes: u64,
        unit_bytes: u32,
    ) -> Result<(), FlashError> {
        check_request(self.geometry, operation, block, offset_bytes, len_bytes, unit_bytes)
    }
}

/// Opens a file or block device past the host's page cache.
pub(crate) async fn open(path: &Path, access: Access, create: bool) -> Result<File, FlashError> {
    let options = OpenOptions {
        direct: true,
        create,
        read_only: access == Access::ReadOnly,
        exclusive_lock: access == Access::ReadWrite,
        ..OpenOptions::default()
    };
    File::open(path, &options).await.map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => FlashError::Locked { device: path.display().to_string() },
        _ => {
            let text = format!("{}: {error}", path.display());
            FlashError::from_io(Operation::Open, None, io::Error::new(error.kind(), text))
        }
    })
}

/// Refuses a program that is not of whole pages inside its block; answers where in the block it begins, in bytes.
pub(crate) fn check_program(
    geometry: Geometry,
    block: BlockAddr,
    first_page: u32,
    len_bytes: u64,
) -> Result<u32, FlashError> {
    let (operation, page_bytes) = (Operation::Program, geometry.page_bytes);
    let offset_bytes = first_page.checked_mul(page_bytes).ok_or(FlashError::Oversize {
        operation,
        block,
        offset_bytes: u32::MAX,
        len_bytes,
    })?;
    check_request(geometry, operation, block, offset_bytes, len_bytes, page_bytes)?;
    Ok(offset_bytes)
}

/// Refuses requests that leave the block or are not whole units.
pub(crate) fn check_request(
    geometry: Geometry,
    operation: Operation,
    block: BlockAddr,
    offset_bytes: u32,
    len_bytes: u64,
    unit_bytes: u32,
) -> Result<(), FlashError> {
    if block.channel >= geometry.channels
        || block.block >= geometry.blocks_per_channel
        || u64::from(offset_bytes) + len_bytes > u64::from(geometry.block_bytes())
    {
        return Err(FlashError::Oversize { operation, block, offset_bytes, len_bytes });
    }
    if !offset_bytes.is_multiple_of(unit_bytes) || !len_bytes.is_multiple_of(u64::from(unit_bytes)) {
        return Err(FlashError::Unaligned { operation, block, offset_bytes, len_bytes, unit_bytes });
    }
    Ok(())
}

fn default_geometry(file: &File, raw_bytes: u64) -> Geometry {
    let page_bytes = file.alignment().max(PAGE_BYTES);
    // Files smaller than a few segments still have a shape, so that opening can say what is wrong with them.
    let block_bytes = u64::from(DEFAULT_BLOCK_BYTES).min(raw_bytes.max(u64::from(page_bytes)));
    let pages_per_block = (block_bytes / u64::from(page_bytes)).max(1) as u32;
    let blocks = raw_bytes / (u64::from(pages_per_block) * u64::from(page_bytes));
    Geometry {
        channels: 1,
        dies_per_channel: 1,
        planes_per_die: 1,
        dies_per_block: 1,
        blocks_per_channel: blocks.clamp(1, u64::from(u32::MAX)) as u32,
        pages_per_block,
        page_bytes,
        read_bytes: file.alignment().clamp(512, page_bytes),
        oob_bytes: 0,
    }
}
