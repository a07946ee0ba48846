//! Raw media as media that correct themselves: parity is written beside each page, and reads are mended by it (`ecc.rs`).
//! Both layers above lie on this view: the record heap, and `segment::ftl`.
//!
//! A block's worst codeword since its erase is kept, one byte a block, so that its data can move before it is lost. Like
//! real media it does not survive a restart: whoever reads the block learns it again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use bytes::Bytes;
use pumice_reactor::{IoBuf, WriteSync};

use crate::ecc::{EccCounts, PageEcc, weak_limit};
use crate::{BlockAddr, Emulated, FlashError};

/// See the module's text.
pub struct Corrected {
    nand: Arc<Emulated>,
    ecc: PageEcc,
    /// Most bits that a codeword of each block needed since the block's erase.
    most: Box<[AtomicU8]>,
    /// A block came near its limit since [`Corrected::take_weak_news`].
    weak_news: AtomicBool,
}

impl Corrected {
    /// # Errors
    /// [`FlashError::Geometry`] when the parity does not fit beside a page.
    pub(crate) fn over(nand: Arc<Emulated>) -> Result<Self, FlashError> {
        let geometry = nand.geometry();
        let ecc = PageEcc::new(geometry, nand.spec().ecc)?;
        let most = (0..geometry.block_count()).map(|_| AtomicU8::new(0)).collect();
        Ok(Self { nand, ecc, most, weak_news: AtomicBool::new(false) })
    }

    /// The media beneath.
    pub fn nand(&self) -> &Arc<Emulated> {
        &self.nand
    }

    pub(crate) fn counts(&self) -> EccCounts {
        self.ecc.counts()
    }

    fn most(&self, block: BlockAddr) -> Option<&AtomicU8> {
        self.most.get(self.nand.geometry().number(block) as usize)
    }

    pub(crate) fn corrected_bits_max(&self, block: BlockAddr) -> (u32, u32) {
        let most = self.most(block).map_or(0, |most| most.load(Ordering::Relaxed));
        (u32::from(most), self.ecc.correctable_bits())
    }

    pub(crate) fn take_weak_news(&self) -> bool {
        self.weak_news.load(Ordering::Relaxed) && self.weak_news.swap(false, Ordering::AcqRel)
    }

    pub(crate) async fn program(
        &self,
        block: BlockAddr,
        first_page: u32,
        data: Bytes,
        sync: WriteSync,
    ) -> Result<(), FlashError> {
        // What is no whole page is refused by the media before anything is stored.
        let oob = self.ecc.encode(&data).freeze();
        self.nand.program(block, first_page, data, oob, sync).await
    }

    pub(crate) async fn erase(&self, block: BlockAddr) -> Result<(), FlashError> {
        let erased = self.nand.erase(block).await;
        if let (Ok(()), Some(most)) = (&erased, self.most(block)) {
            most.store(0, Ordering::Relaxed);
        }
        erased
    }

    /// Reads and mends; answers the most bits that one codeword needed.
    ///
    /// # Errors
    /// [`FlashError::Uncorrectable`] names the page that is lost.
    pub(crate) async fn read(
        &self,
        block: BlockAddr,
        offset_bytes: u32,
        mut buf: IoBuf,
    ) -> (Result<u32, FlashError>, IoBuf) {
        let geometry = self.nand.geometry();
        let page_bytes = geometry.page_bytes;
        let len = buf.len();
        let end = u32::try_from(len).ok().and_then(|len| offset_bytes.checked_add(len));
        let Some(end) = end.filter(|end| (offset_bytes | end).is_multiple_of(geometry.read_bytes)) else {
            // Let the media say what is wrong with it.
            let (result, buf) = self.nand.read(block, offset_bytes, buf).await;
            return (result.map(|()| 0), buf);
        };
        let (first, last) = (offset_bytes / page_bytes, end.div_ceil(page_bytes));
        let pages = (last - first) as usize;
        let is_whole = offset_bytes.is_multiple_of(page_bytes) && end.is_multiple_of(page_bytes);
        let oob = IoBuf::for_read(pages * geometry.oob_bytes as usize);
        // Codewords are corrected whole, so that parts of pages are cut from whole ones.
        let whole = if is_whole { None } else { Some(IoBuf::for_read(pages * page_bytes as usize)) };
        let is_cut = whole.is_some();
        let kept = if is_cut { Some(std::mem::replace(&mut buf, IoBuf::zeroed(0))) } else { None };
        let (result, mut data, mut oob) =
            self.nand.read_with_oob(block, first, whole.unwrap_or(buf), oob).await;
        let result = result.and_then(|()| {
            let decoded = self.ecc.decode(&mut data, &mut oob);
            // A lost page is none to be moved in time.
            if let Ok(needed) = decoded {
                self.note(block, needed);
            }
            decoded.map_err(|page| FlashError::Uncorrectable {
                block,
                offset_bytes: (first + page as u32) * page_bytes,
            })
        });
        match kept {
            None => (result, data),
            Some(mut buf) => {
                let from = (offset_bytes - first * page_bytes) as usize;
                buf.copy_from_slice(&data[from..from + len]);
                (result, buf)
            }
        }
    }

    fn note(&self, block: BlockAddr, needed: u32) {
        let Some(most) = self.most(block).filter(|_| needed > 0) else { return };
        let limit = weak_limit(self.ecc.correctable_bits());
        let before = most.fetch_max(needed.min(255) as u8, Ordering::Relaxed);
        if u32::from(before) <= limit && needed > limit {
            self.weak_news.store(true, Ordering::Release);
        }
    }
}
