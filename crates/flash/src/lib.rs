//! A drive's media behind NAND's contract, the least that raw flash, files, block devices and zoned drives
//! have in common:
//!
//! 1. a block's pages are programmed in order, each once per erase;
//! 2. a page is read as it was programmed, or the read fails with an error that says so;
//! 3. an erase is explicit and frees a whole block.
//!
//! [`Device`] dispatches by enum to the backends ([`file`], [`emulated`]); one contract suite
//! (`tests/contract.rs`) runs on all of them. What violates the contract is refused with an error of its own
//! and changes nothing.

pub mod bch;
pub mod emulated;
mod error;
pub mod file;
mod geometry;
mod preset;
mod spec;

use std::sync::Arc;

use bytes::Bytes;
pub use emulated::wear::Wear;
pub use emulated::{Emulated, Fault, OperationCounts};
pub use error::{FlashError, Operation};
pub use file::FileDevice;
pub use geometry::{BlockAddr, Geometry};
use pumice_reactor::File;
use pumice_reactor::{IoBuf, WriteSync};
pub use spec::{DeviceSpec, EccSpec, EmulatedSpec, NandTiming, ParseSpecError};

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
    /// Emulated NAND in memory or in a sparse file.
    Emulated(Arc<Emulated>),
}

impl Device {
    /// Opens what `spec` names. An emulated device in memory starts out erased.
    ///
    /// # Errors
    /// [`FlashError::Locked`] when somebody else holds the device, [`FlashError::Io`] with the system's reason.
    pub async fn open(spec: &DeviceSpec, access: Access) -> Result<Self, FlashError> {
        match spec {
            DeviceSpec::Path(path) => Ok(Self::File(Arc::new(FileDevice::open(path, access).await?))),
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
                Ok(Self::File(Arc::new(FileDevice::create(path, capacity_bytes).await?)))
            }
            DeviceSpec::Emulated(_) => Self::open(spec, Access::ReadWrite).await,
        }
    }

    /// A device over an open file: what simulated worlds hand in.
    ///
    /// # Errors
    /// [`FlashError::Io`] when the file's length cannot be had.
    pub async fn over_file(file: File, access: Access) -> Result<Self, FlashError> {
        Ok(Self::File(Arc::new(FileDevice::over(file, "file".into(), access).await?)))
    }

    /// The same media cut into other blocks. Files and block devices have no blocks of their own and take any
    /// geometry that fits; emulated media refuse all but their own.
    ///
    /// # Errors
    /// [`FlashError::Geometry`] with the reason.
    pub fn with_geometry(&self, geometry: Geometry) -> Result<Self, FlashError> {
        geometry.check()?;
        match self {
            Self::File(device) => Ok(Self::File(Arc::new(device.reshaped(geometry)?))),
            Self::Emulated(device) if device.geometry() == geometry => Ok(self.clone()),
            Self::Emulated(device) => Err(FlashError::Geometry(format!(
                "emulated media have {} and cannot be used as {geometry}",
                device.geometry()
            ))),
        }
    }

    /// Channels, blocks and pages as they are used now.
    pub fn geometry(&self) -> Geometry {
        match self {
            Self::File(device) => device.geometry(),
            Self::Emulated(device) => device.geometry(),
        }
    }

    /// Bytes of the media, also those that the geometry's last partial block leaves over.
    pub fn raw_bytes(&self) -> u64 {
        match self {
            Self::File(device) => device.raw_bytes(),
            Self::Emulated(device) => device.geometry().capacity_bytes(),
        }
    }

    /// True when programs and erases are refused.
    pub fn is_read_only(&self) -> bool {
        match self {
            Self::File(device) => device.is_read_only(),
            Self::Emulated(device) => device.is_read_only(),
        }
    }

    /// True when blocks that were never written commit slower than recycled ones, so that writing them ahead of
    /// need ([`Device::prewrite`]) pays: sparse files.
    pub fn wants_prewrite(&self) -> bool {
        matches!(self, Self::File(_))
    }

    /// The next page to be programmed in `block`; `None` when the media do not say (a file that was not written
    /// since it was opened).
    pub fn write_pointer(&self, block: BlockAddr) -> Option<u32> {
        match self {
            Self::File(device) => device.write_pointer(block),
            Self::Emulated(device) => device.write_pointer(block),
        }
    }

    /// Erases that `block` has seen, where the media count them.
    pub fn erase_count(&self, block: BlockAddr) -> Option<u32> {
        match self {
            Self::File(_) => None,
            Self::Emulated(device) => Some(device.erase_count(block)),
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
            Self::Emulated(device) => device.read(block, offset_bytes, buf).await,
        }
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
            Self::File(_) => (Err(no_oob(Operation::Read, block, oob.len())), buf, oob),
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
            Self::File(_) => None,
            Self::Emulated(device) => device.spec().is_raw.then_some(device.spec().ecc),
        }
    }

    /// Whether the factory marked `block` bad: it neither reads, nor programs, nor erases.
    pub fn is_factory_bad(&self, block: BlockAddr) -> bool {
        match self {
            Self::File(_) => false,
            Self::Emulated(device) => device.is_factory_bad(block),
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
            Self::Emulated(device) => device.program(block, first_page, data, Bytes::new(), sync).await,
        }
    }

    /// Erases `block`. On files this is bookkeeping only: the old bytes stay until they are overwritten, because
    /// recycled blocks commit faster than punched ones.
    pub async fn erase(&self, block: BlockAddr) -> Result<(), FlashError> {
        match self {
            Self::File(device) => device.erase(block),
            Self::Emulated(device) => device.erase(block).await,
        }
    }

    /// Gives the space of an erased block back to whoever lies beneath (hole punch or discard); no effect on
    /// emulated media.
    pub async fn give_back(&self, block: BlockAddr) -> Result<(), FlashError> {
        match self {
            Self::File(device) => device.give_back(block).await,
            Self::Emulated(_) => Ok(()),
        }
    }

    /// Writes an erased block's bytes ahead of need (zeros), so that later durable programs are fast; the block
    /// stays erased. No effect where [`Device::wants_prewrite`] is false.
    pub async fn prewrite(&self, block: BlockAddr) -> Result<(), FlashError> {
        match self {
            Self::File(device) => device.prewrite(block).await,
            Self::Emulated(_) => Ok(()),
        }
    }

    /// Makes every finished [`WriteSync::Cached`] program durable.
    pub async fn sync(&self) -> Result<(), FlashError> {
        match self {
            Self::File(device) => device.sync().await,
            Self::Emulated(device) => device.sync().await,
        }
    }
}

fn no_oob(operation: Operation, block: BlockAddr, len: usize) -> FlashError {
    FlashError::OutOfBand { operation, block, len_bytes: len as u64, expected_bytes: 0 }
}
