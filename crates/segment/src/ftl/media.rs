//! A device's blocks as segments with tags and checksums: where they lie on the media is `image.rs`'s, how they are verified
//! `verify.rs`'s.
//!
//! On files an erase leaves the bytes as they were. There an erased block's first page is overwritten with a tag that says
//! so, and a block counts only if both its tags agree.

use bytes::Bytes;
use pumice_flash::{BlockAddr, Device, EccCounts, FlashError, Geometry, weak_limit};
use pumice_reactor::{IoBuf, WriteSync};

use super::RawError;
use super::image::{Image, Layout};
use super::sums::{Life, SumCache};
use super::tag::{BlockTag, TAG_BYTES, TagDecoded};

/// See the module's text.
pub(crate) struct Media {
    device: Device,
    geometry: Geometry,
    layout: Layout,
    /// Tables of checksums; where there are none it stays empty.
    pub(super) tables: SumCache,
}

/// Which of a block's tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    First,
    Last,
}

/// What a tag's page answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Tag(BlockTag),
    /// Not written, or something else.
    Nothing,
    /// The page does not read: torn, or lost.
    Unreadable,
}

impl Media {
    /// The device before it is known what it holds: nothing is verified.
    pub(crate) fn new(device: Device) -> Result<Self, RawError> {
        let geometry = device.geometry();
        let device = device.corrected()?;
        let in_band = matches!(device, Device::Corrected(_)) || (geometry.oob_bytes as usize) < TAG_BYTES;
        if geometry.pages_per_block < 4 {
            let why = "a block of raw flash has at least 4 pages";
            return Err(FlashError::Geometry(format!("{geometry}: {why}")).into());
        }
        if geometry.block_count() > super::map::BLOCKS_MAX {
            let why = format!("raw flash takes {} blocks at most", super::map::BLOCKS_MAX);
            return Err(FlashError::Geometry(format!("{geometry}: {why}")).into());
        }
        let layout = Layout::new(geometry, in_band, false);
        Ok(Self { device, geometry, layout, tables: SumCache::new(layout.data_pages(), 0) })
    }

    /// The device as a drive's, whose pages have checksums or not.
    pub(crate) fn of_drive(&self, has_sums: bool, sums_memory_bytes: usize) -> Self {
        let layout = Layout::new(self.geometry, self.layout.in_band, has_sums);
        let tables = SumCache::new(layout.data_pages(), sums_memory_bytes);
        Self { device: self.device.clone(), geometry: self.geometry, layout, tables }
    }

    /// Whether the media give back what was written. Emulated ones that drop it have nothing to verify.
    pub(crate) fn keeps_data(&self) -> bool {
        self.device.emulated().is_none_or(|nand| nand.spec().keeps_data)
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn geometry(&self) -> Geometry {
        self.geometry
    }

    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }

    pub(crate) fn in_band(&self) -> bool {
        self.layout.in_band
    }

    pub(crate) fn ecc_counts(&self) -> EccCounts {
        self.device.ecc_counts()
    }

    pub(crate) fn segment_bytes(&self) -> u32 {
        self.layout.segment_bytes()
    }

    /// A segment as it is written to the block of this life.
    pub(crate) fn image(&self, life: Life, tag: BlockTag, data: Bytes) -> Image {
        Image::new(self.layout, life, tag, data)
    }

    /// Programs pages; durable when this returns.
    pub(crate) async fn program(&self, block: BlockAddr, page: u32, data: Bytes) -> Result<(), FlashError> {
        self.device.program(block, page, data, WriteSync::Durable).await
    }

    /// Programs pages of a segment as [`Image::end`] cuts them; durable when this returns.
    pub(crate) async fn program_piece(&self, image: &Image, page: u32, end: u32) -> Result<(), FlashError> {
        let block = image.life().block;
        let (data, oob) = image.piece(page, end);
        match oob.is_empty() {
            true => self.program(block, page, data).await,
            false => self.device.program_with_oob(block, page, data, oob, WriteSync::Durable).await,
        }
    }

    /// Reads bytes of a block, corrected; answers whether a page that was read is weak.
    pub(crate) async fn read_block(
        &self,
        block: BlockAddr,
        offset_bytes: u32,
        buf: IoBuf,
    ) -> (Result<bool, FlashError>, IoBuf) {
        let (result, buf) = self.device.read_counting(block, offset_bytes, buf).await;
        // Most reads find nothing to correct, and need not ask for the limit.
        let is_weak = |most: u32| {
            most > 0 && self.device.corrected_bits_max(block).is_some_and(|(_, of)| most > weak_limit(of))
        };
        (result.map(is_weak), buf)
    }

    /// Reads a block's tag.
    ///
    /// # Errors
    /// A tag of a newer version; whatever says nothing of the page (device gone, timed out).
    pub(crate) async fn read_tag(&self, block: BlockAddr, which: Which) -> Result<Found, RawError> {
        let page = match which {
            Which::First => 0,
            Which::Last => self.geometry.pages_per_block - 1,
        };
        let page_bytes = self.geometry.page_bytes;
        let (result, bytes) = if self.in_band() {
            let (result, buf) =
                self.read_block(block, page * page_bytes, IoBuf::for_read(page_bytes as usize)).await;
            (result.map(drop), buf)
        } else {
            let (buf, oob) =
                (IoBuf::for_read(page_bytes as usize), IoBuf::for_read(self.geometry.oob_bytes as usize));
            let (result, _, oob) = self.device.read_with_oob(block, page, buf, oob).await;
            (result, oob)
        };
        match result {
            Ok(()) => match BlockTag::decode(self.geometry.number(block), &bytes) {
                TagDecoded::Tag(tag) => Ok(Found::Tag(tag)),
                TagDecoded::Nothing => Ok(Found::Nothing),
                TagDecoded::Newer(version) => Err(RawError::Version { block, version }),
            },
            Err(FlashError::ReadPastWritePointer { .. }) => Ok(Found::Nothing),
            Err(FlashError::Uncorrectable { .. }) => Ok(Found::Unreadable),
            Err(error) => Err(error.into()),
        }
    }

    /// A block's first page, unless it bears a tag beside it or does not read.
    ///
    /// # Errors
    /// Whatever says nothing of the page.
    pub(crate) async fn read_untagged(&self, block: BlockAddr) -> Result<Option<IoBuf>, FlashError> {
        let page = IoBuf::for_read(self.geometry.page_bytes as usize);
        let (result, page, is_tagged) = if self.in_band() {
            let (result, page) = self.read_block(block, 0, page).await;
            (result.map(drop), page, false)
        } else {
            let oob = IoBuf::for_read(self.geometry.oob_bytes as usize);
            let (result, page, oob) = self.device.read_with_oob(block, 0, page, oob).await;
            let tag = BlockTag::decode(self.geometry.number(block), &oob);
            (result, page, tag != TagDecoded::Nothing)
        };
        match result {
            Ok(()) => Ok((!is_tagged).then_some(page)),
            Err(FlashError::ReadPastWritePointer { .. } | FlashError::Uncorrectable { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Erases a block so that no restart finds its tags: durable when this returns. `tag` says that it is erased.
    pub(crate) async fn erase(&self, block: BlockAddr, tag: &BlockTag) -> Result<(), FlashError> {
        self.device.erase(block).await?;
        if self.device.erase_keeps_bytes() {
            let mut page = IoBuf::zeroed(self.geometry.page_bytes as usize);
            page[..TAG_BYTES].copy_from_slice(&tag.encode(self.geometry.number(block)));
            self.program(block, 0, page.freeze()).await?;
            // Costs nothing there, and the first page takes a segment's tag again.
            self.device.erase(block).await?;
        }
        Ok(())
    }
}
