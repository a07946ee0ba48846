//! A drive's media behind NAND's contract, the least that raw flash, files, block devices and zoned drives
//! have in common:
//!
//! 1. a block's pages are programmed in order, each once per erase;
//! 2. a page is read as it was programmed, or the read fails with an error that says so;
//! 3. an erase is explicit and frees a whole block.
//!
//! [`Device`] dispatches by enum to the backends ([`file`], [`zoned`], [`emulated`]); one contract suite
//! (`tests/it/contract`) runs on all of them. What violates the contract is refused with an error of its own
//! and changes nothing.

pub mod bch;
mod corrected;
mod ecc;
pub mod emulated;
mod error;
pub mod file;
mod geometry;
mod page_cache;
mod preset;
mod spec;
pub mod zoned;

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
pub use corrected::Corrected;
pub use ecc::{EccCounts, weak_limit};
pub use emulated::wear::Wear;
pub use emulated::{Emulated, Fault, OperationCounts};
pub use error::{FlashError, Operation};
pub use file::FileDevice;
pub use geometry::{BlockAddr, Geometry};
use pumice_reactor::File;
use pumice_reactor::{IoBuf, Requests, WriteSync};
pub use spec::{DeviceSpec, EccSpec, EmulatedSpec, NandTiming, ParseSpecError};
pub use zoned::{ZoneShape, ZonedDevice};

/// How a device is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read and write; on files and block devices under an exclusive lock, so that a second opener is refused.
    ReadWrite,
    /// Read only, without a lock: what is read may be changing under a running server.
    ReadOnly,
}

/// One drive's media. Clones are handles on the same device; usable from any core.
#[derive(Clone)]
pub enum Device {
    /// A file or block device.
    File(Arc<FileDevice>),
    /// A block device whose zones take writes at their write pointers only.
    Zoned(Arc<ZonedDevice>),
    /// Emulated NAND in memory or in a sparse file.
    Emulated(Arc<Emulated>),
    /// Raw NAND, corrected in software: see [`Device::corrected`].
    Corrected(Arc<Corrected>),
}

impl Device {
    /// Opens what `spec` names. An emulated device in memory starts out erased.
    ///
    /// # Errors
    /// [`FlashError::Locked`] when somebody else holds the device, [`FlashError::Io`] with the system's reason.
    pub async fn open(spec: &DeviceSpec, access: Access) -> Result<Self, FlashError> {
        match spec {
            DeviceSpec::Path(path) => {
                let file = file::open(path, access, false).await?;
                Self::over(file, path.display().to_string(), access).await
            }
            DeviceSpec::Emulated(spec) => {
                Ok(Self::Emulated(Arc::new(Emulated::open((**spec).clone(), access).await?)))
            }
        }
    }

    /// Makes the file that `spec` names, sparse and of `capacity_bytes`, and opens it; an existing file or block
    /// device is opened as it is (and grown when it is a file shorter than that). Emulated devices have their
    /// size from the spec.
    ///
    /// # Errors
    /// As [`Device::open`].
    pub async fn create(spec: &DeviceSpec, capacity_bytes: u64) -> Result<Self, FlashError> {
        match spec {
            DeviceSpec::Path(path) => {
                let file = file::open(path, Access::ReadWrite, true).await?;
                if file.zoned().is_some() {
                    return Self::over(file, path.display().to_string(), Access::ReadWrite).await;
                }
                let device = FileDevice::over(file, path.display().to_string(), Access::ReadWrite).await?;
                Ok(Self::File(Arc::new(device.grown_to(capacity_bytes).await?)))
            }
            DeviceSpec::Emulated(_) => Self::open(spec, Access::ReadWrite).await,
        }
    }

    async fn over(file: File, name: String, access: Access) -> Result<Self, FlashError> {
        match file.zoned() {
            Some(info) => Ok(Self::Zoned(Arc::new(ZonedDevice::over(file, name, info, access).await?))),
            None => Ok(Self::File(Arc::new(FileDevice::over(file, name, access).await?))),
        }
    }

    /// The same media cut into other blocks. Files and block devices have no blocks of their own and take any
    /// geometry that fits; emulated media refuse all but their own, and zones can only be counted over other channels.
    ///
    /// # Errors
    /// [`FlashError::Geometry`] with the reason.
    pub fn with_geometry(&self, geometry: Geometry) -> Result<Self, FlashError> {
        geometry.check()?;
        match self {
            Self::File(device) => Ok(Self::File(Arc::new(device.reshaped(geometry)?))),
            Self::Zoned(device) => Ok(Self::Zoned(Arc::new(device.reshaped(geometry)?))),
            Self::Emulated(_) | Self::Corrected(_) if self.geometry() == geometry => Ok(self.clone()),
            Self::Emulated(_) | Self::Corrected(_) => Err(FlashError::Geometry(format!(
                "emulated media have {} and cannot be used as {geometry}",
                self.geometry()
            ))),
        }
    }

    /// The same media as media that correct themselves: raw ones get parity in their out-of-band bytes, which are not to be
    /// had beside it then; others are what they were.
    ///
    /// # Errors
    /// [`FlashError::Geometry`] when the parity does not fit beside a page.
    pub fn corrected(&self) -> Result<Self, FlashError> {
        match self {
            Self::Emulated(device) if device.spec().is_raw => {
                Ok(Self::Corrected(Arc::new(Corrected::over(Arc::clone(device))?)))
            }
            _ => Ok(self.clone()),
        }
    }

    /// Emulated media, corrected or not.
    pub fn emulated(&self) -> Option<&Arc<Emulated>> {
        match self {
            Self::Emulated(device) => Some(device),
            Self::Corrected(device) => Some(device.nand()),
            Self::File(_) | Self::Zoned(_) => None,
        }
    }

    /// Channels, blocks and pages as they are used now.
    pub fn geometry(&self) -> Geometry {
        match self {
            Self::File(device) => device.geometry(),
            Self::Zoned(device) => device.geometry(),
            Self::Emulated(device) => device.geometry(),
            Self::Corrected(device) => device.nand().geometry(),
        }
    }

    /// Bytes of the media, also those that the geometry's last partial block leaves over.
    pub fn raw_bytes(&self) -> u64 {
        match self {
            Self::File(device) => device.raw_bytes(),
            Self::Zoned(device) => device.raw_bytes(),
            Self::Emulated(_) | Self::Corrected(_) => self.geometry().capacity_bytes(),
        }
    }

    /// True when programs and erases are refused.
    pub fn is_read_only(&self) -> bool {
        match self {
            Self::File(device) => device.is_read_only(),
            Self::Zoned(device) => device.is_read_only(),
            Self::Emulated(device) => device.is_read_only(),
            Self::Corrected(device) => device.nand().is_read_only(),
        }
    }

    /// True when blocks that were never written commit slower than recycled ones, so that writing them ahead of
    /// need ([`Device::prewrite`]) pays: sparse files.
    pub fn wants_prewrite(&self) -> bool {
        matches!(self, Self::File(_))
    }

    /// True when the media take space of somebody else's, block by block as these are written, and can give it back
    /// ([`Device::give_back`]): files.
    pub fn takes_space_as_written(&self) -> bool {
        matches!(self, Self::File(device) if !device.is_block_device())
    }

    /// True when an erase leaves the bytes as they were, so that what says whether a block is erased has to be written:
    /// files and block devices.
    pub fn erase_keeps_bytes(&self) -> bool {
        matches!(self, Self::File(_))
    }

    /// The next page to be programmed in `block`; `None` when the media do not say (a file that was not written
    /// since it was opened).
    pub fn write_pointer(&self, block: BlockAddr) -> Option<u32> {
        match self {
            Self::File(device) => device.write_pointer(block),
            Self::Zoned(device) => device.write_pointer(block),
            Self::Emulated(device) => device.write_pointer(block),
            Self::Corrected(device) => device.nand().write_pointer(block),
        }
    }

    /// Erases that `block` has seen, where the media count them.
    pub fn erase_count(&self, block: BlockAddr) -> Option<u32> {
        match self {
            Self::File(_) | Self::Zoned(_) => None,
            Self::Emulated(device) => Some(device.erase_count(block)),
            Self::Corrected(device) => Some(device.nand().erase_count(block)),
        }
    }

    /// Fills `buf` from `offset_bytes` of `block`. Offset and length are multiples of the read granule.
    pub async fn read(
        &self,
        block: BlockAddr,
        offset_bytes: u32,
        buf: IoBuf,
    ) -> (Result<(), FlashError>, IoBuf) {
        match self {
            Self::File(device) => device.read(block, offset_bytes, buf).await,
            // Boxed: every read under way holds this future, and most are of files.
            Self::Zoned(device) => Box::pin(device.read(block, offset_bytes, buf)).await,
            Self::Emulated(device) => Box::pin(device.read(block, offset_bytes, buf)).await,
            Self::Corrected(device) => {
                let (result, buf) = Box::pin(device.read(block, offset_bytes, buf)).await;
                (result.map(drop), buf)
            }
        }
    }

    /// [`Device::read`] that answers the most bits that software had to correct in one codeword: none but on
    /// [corrected](Device::corrected) raw media.
    pub async fn read_counting(
        &self,
        block: BlockAddr,
        offset_bytes: u32,
        buf: IoBuf,
    ) -> (Result<u32, FlashError>, IoBuf) {
        if let Self::Corrected(device) = self {
            return device.read(block, offset_bytes, buf).await;
        }
        let (result, buf) = self.read(block, offset_bytes, buf).await;
        (result.map(|()| 0), buf)
    }

    /// Fills `buf` with whole pages from `first_page` on and `oob` with their out-of-band bytes, page after page.
    ///
    /// # Errors
    /// [`FlashError::OutOfBand`] when the pages have none, or another number of them than `oob` takes.
    pub async fn read_with_oob(
        &self,
        block: BlockAddr,
        first_page: u32,
        buf: IoBuf,
        oob: IoBuf,
    ) -> (Result<(), FlashError>, IoBuf, IoBuf) {
        match self {
            Self::File(_) | Self::Zoned(_) | Self::Corrected(_) => {
                (Err(no_oob(Operation::Read, block, oob.len())), buf, oob)
            }
            Self::Emulated(device) => device.read_with_oob(block, first_page, buf, oob).await,
        }
    }

    /// [`Device::program`] with the pages' out-of-band bytes.
    ///
    /// # Errors
    /// As [`Device::program`], and [`FlashError::OutOfBand`] when the pages have none, or another number of them.
    pub async fn program_with_oob(
        &self,
        block: BlockAddr,
        first_page: u32,
        data: Bytes,
        oob: Bytes,
        sync: WriteSync,
    ) -> Result<(), FlashError> {
        match self {
            Self::Emulated(device) if !oob.is_empty() => {
                device.program(block, first_page, data, oob, sync).await
            }
            _ => Err(no_oob(Operation::Program, block, oob.len())),
        }
    }

    /// What correction the media expect of software; `None` when they correct themselves.
    pub fn ecc(&self) -> Option<EccSpec> {
        match self {
            Self::File(_) | Self::Zoned(_) | Self::Corrected(_) => None,
            Self::Emulated(device) => device.spec().is_raw.then_some(device.spec().ecc),
        }
    }

    /// How far it is with what it was asked; `None` of media that answer in a time of their own, as emulated ones do.
    pub fn requests(&self) -> Option<Requests> {
        match self {
            Self::File(device) => Some(device.requests()),
            Self::Zoned(device) => Some(device.requests()),
            Self::Emulated(_) | Self::Corrected(_) => None,
        }
    }

    /// True when blocks wear: bits flip, programs and erases fail as they grow old.
    pub fn wears(&self) -> bool {
        self.emulated().is_some_and(|device| device.spec().wears)
    }

    /// What software has corrected so far; nothing but on [corrected](Device::corrected) raw media.
    pub fn ecc_counts(&self) -> EccCounts {
        match self {
            Self::Corrected(device) => device.counts(),
            _ => EccCounts::default(),
        }
    }

    /// Whether since the last such question a page of some block needed nearly all that its code corrects
    /// ([`weak_limit`]); [`Device::corrected_bits_max`] tells of which.
    pub fn take_weak_news(&self) -> bool {
        match self {
            Self::File(_) | Self::Zoned(_) => false,
            Self::Emulated(device) => device.take_weak_news(),
            Self::Corrected(device) => device.take_weak_news(),
        }
    }

    /// Most bits that media which correct themselves, or are [corrected](Device::corrected), had to correct in one codeword of
    /// `block` since its erase, and how many they can; `None` where they do not say.
    pub fn corrected_bits_max(&self, block: BlockAddr) -> Option<(u32, u32)> {
        match self {
            Self::Corrected(device) => Some(device.corrected_bits_max(block)),
            Self::Emulated(device) if !device.spec().is_raw => {
                Some((device.corrected_bits_max(block), device.spec().ecc.correctable_bits))
            }
            _ => None,
        }
    }

    /// Whether the factory marked `block` bad, or its zone is read-only or offline: it neither programs nor erases.
    pub fn is_factory_bad(&self, block: BlockAddr) -> bool {
        match self {
            Self::File(_) => false,
            Self::Zoned(device) => device.is_bad(block),
            Self::Emulated(device) => device.is_factory_bad(block),
            Self::Corrected(device) => device.nand().is_factory_bad(block),
        }
    }

    /// Programs whole pages from `first_page` on. With [`WriteSync::Durable`] the data is on the media when this
    /// returns; with [`WriteSync::Cached`] after the next [`Device::sync`].
    ///
    /// # Errors
    /// Contract violations ([`FlashError::OutOfOrder`], [`FlashError::AlreadyProgrammed`],
    /// [`FlashError::Unaligned`], [`FlashError::Oversize`]) change nothing; after [`FlashError::ProgramFailed`]
    /// the block takes no more data before an erase.
    pub async fn program(
        &self,
        block: BlockAddr,
        first_page: u32,
        data: Bytes,
        sync: WriteSync,
    ) -> Result<(), FlashError> {
        match self {
            Self::File(device) => device.program(block, first_page, data, sync).await,
            Self::Zoned(device) => device.program(block, first_page, data, sync).await,
            Self::Emulated(device) => device.program(block, first_page, data, Bytes::new(), sync).await,
            Self::Corrected(device) => device.program(block, first_page, data, sync).await,
        }
    }

    /// Erases `block`. On files this is bookkeeping only: the old bytes stay until they are overwritten, because
    /// recycled blocks commit faster than punched ones.
    pub async fn erase(&self, block: BlockAddr) -> Result<(), FlashError> {
        match self {
            Self::File(device) => device.erase(block),
            Self::Zoned(device) => device.erase(block).await,
            Self::Emulated(device) => device.erase(block).await,
            Self::Corrected(device) => device.erase(block).await,
        }
    }

    /// Says that nothing more will be programmed in `block` before its next erase. A zoned drive that runs out of
    /// partly written zones then finishes such zones, oldest first; from then on all of the block counts as programmed.
    /// No effect on other media.
    pub fn finish(&self, block: BlockAddr) {
        if let Self::Zoned(device) = self {
            device.finish(block);
        }
    }

    /// Blocks that may be partly written at once, where the media have such a limit.
    pub fn active_max(&self) -> Option<u32> {
        match self {
            Self::Zoned(device) => Some(device.shape().active_max).filter(|&max| max > 0),
            Self::File(_) | Self::Emulated(_) | Self::Corrected(_) => None,
        }
    }

    /// True when the media have blocks of their own and take no other size ([`Device::with_geometry`]).
    pub fn has_own_blocks(&self) -> bool {
        !matches!(self, Self::File(_))
    }

    /// Gives the space of an erased block back to whoever lies beneath (hole punch or discard); no effect on
    /// other media.
    pub async fn give_back(&self, block: BlockAddr) -> Result<(), FlashError> {
        match self {
            Self::File(device) => device.give_back(block).await,
            Self::Zoned(_) | Self::Emulated(_) | Self::Corrected(_) => Ok(()),
        }
    }

    /// Writes an erased block's bytes ahead of need (zeros), so that later durable programs are fast; the block
    /// stays erased. No effect where [`Device::wants_prewrite`] is false.
    pub async fn prewrite(&self, block: BlockAddr) -> Result<(), FlashError> {
        match self {
            Self::File(device) => device.prewrite(block).await,
            Self::Zoned(_) | Self::Emulated(_) | Self::Corrected(_) => Ok(()),
        }
    }

    /// Fills a stretch of a block behind its write pointer (bytes, whole pages) with zeros where an erase keeps what was
    /// there ([`Device::erase_keeps_bytes`]); the stretch stays unprogrammed. No effect elsewhere.
    pub async fn zero(&self, block: BlockAddr, range: Range<u32>) -> Result<(), FlashError> {
        match self {
            Self::File(device) => device.zero(block, range).await,
            Self::Zoned(_) | Self::Emulated(_) | Self::Corrected(_) => Ok(()),
        }
    }

    /// Makes every finished [`WriteSync::Cached`] program durable.
    pub async fn sync(&self) -> Result<(), FlashError> {
        match self {
            Self::File(device) => device.sync().await,
            Self::Zoned(device) => device.sync().await,
            Self::Emulated(device) => device.sync().await,
            Self::Corrected(device) => device.nand().sync().await,
        }
    }
}

fn no_oob(operation: Operation, block: BlockAddr, len: usize) -> FlashError {
    FlashError::OutOfBand { operation, block, len_bytes: len as u64, expected_bytes: 0 }
}
