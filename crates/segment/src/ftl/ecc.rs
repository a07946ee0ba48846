//! Correction for raw media: each page's codewords have their parity in its out-of-band bytes.
//!
//! A page of n codewords has n parities, one after the other from the first out-of-band byte on; what is left of them is
//! zero and free for later use. The code is the device's ([`pumice_flash::EccSpec`]): 8 codewords of 1 KiB with t = 30 take
//! 424 of SDF's 448 bytes. Media that correct themselves get none of this.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use pumice_flash::bch::Bch;
use pumice_flash::{BlockAddr, Device, EccSpec, FlashError, Geometry};
use pumice_reactor::{IoBuf, WriteSync};

/// A page is weak when one of its codewords needed more than this share of what the code corrects.
const WEAK_NUMERATOR: u32 = 3;
const WEAK_DENOMINATOR: u32 = 4;

/// Most flipped bits in a codeword that corrects `correctable` of them before its page is weak.
pub(super) fn weak_limit(correctable: u32) -> u32 {
    correctable * WEAK_NUMERATOR / WEAK_DENOMINATOR
}

/// What correction has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EccCounts {
    /// Flipped bits that were mended.
    pub corrected_bits: u64,
    /// Codewords in which there were any.
    pub corrected_codewords: u64,
    /// Pages with more flipped bits in a codeword than the code corrects.
    pub uncorrectable_pages: u64,
}

/// A device's pages with their parity.
pub(crate) struct PageEcc {
    code: Bch,
    geometry: Geometry,
    corrected_bits: AtomicU64,
    corrected_codewords: AtomicU64,
    uncorrectable_pages: AtomicU64,
}

impl PageEcc {
    pub(crate) fn new(geometry: Geometry, ecc: EccSpec) -> Result<Self, FlashError> {
        let fail = |why: String| FlashError::Geometry(format!("{geometry}: {why}"));
        let code = Bch::new(ecc.codeword_bytes as usize, ecc.correctable_bits as usize)
            .map_err(|error| fail(error.to_string()))?;
        if !geometry.page_bytes.is_multiple_of(ecc.codeword_bytes) {
            return Err(fail(format!("a page is no whole number of codewords of {} B", ecc.codeword_bytes)));
        }
        let needed = (geometry.page_bytes / ecc.codeword_bytes) as usize * code.parity_bytes();
        if needed > geometry.oob_bytes as usize {
            return Err(fail(format!("the parity of a page takes {needed} out-of-band bytes")));
        }
        Ok(Self {
            code,
            geometry,
            corrected_bits: AtomicU64::new(0),
            corrected_codewords: AtomicU64::new(0),
            uncorrectable_pages: AtomicU64::new(0),
        })
    }

    pub(crate) fn counts(&self) -> EccCounts {
        EccCounts {
            corrected_bits: self.corrected_bits.load(Ordering::Relaxed),
            corrected_codewords: self.corrected_codewords.load(Ordering::Relaxed),
            uncorrectable_pages: self.uncorrectable_pages.load(Ordering::Relaxed),
        }
    }

    /// The out-of-band bytes of whole pages.
    fn encode(&self, data: &[u8]) -> IoBuf {
        let (page_bytes, oob_bytes) = (self.geometry.page_bytes as usize, self.geometry.oob_bytes as usize);
        let mut oob = IoBuf::zeroed(data.len() / page_bytes * oob_bytes);
        for (page, out) in data.chunks_exact(page_bytes).zip(oob.chunks_exact_mut(oob_bytes)) {
            let words = page.chunks_exact(self.code.data_bytes());
            for (word, parity) in words.zip(out.chunks_exact_mut(self.code.parity_bytes())) {
                self.code.encode(word, parity);
            }
        }
        oob
    }

    /// Bits that are corrected in each codeword.
    pub(crate) fn correctable_bits(&self) -> u32 {
        self.code.correctable_bits() as u32
    }

    /// Mends whole pages; answers the most bits that one codeword needed, or the first page that is lost.
    fn decode(&self, data: &mut [u8], oob: &mut [u8]) -> Result<u32, usize> {
        let (page_bytes, oob_bytes) = (self.geometry.page_bytes as usize, self.geometry.oob_bytes as usize);
        let mut most = 0;
        for (at, page) in data.chunks_exact_mut(page_bytes).enumerate() {
            let beside = &mut oob[at * oob_bytes..(at + 1) * oob_bytes];
            let words = page.chunks_exact_mut(self.code.data_bytes());
            for (word, parity) in words.zip(beside.chunks_exact_mut(self.code.parity_bytes())) {
                match self.code.decode(word, parity) {
                    Ok(0) => {}
                    Ok(bits) => {
                        self.corrected_bits.fetch_add(bits as u64, Ordering::Relaxed);
                        self.corrected_codewords.fetch_add(1, Ordering::Relaxed);
                        most = most.max(bits as u32);
                    }
                    Err(_) => {
                        self.uncorrectable_pages.fetch_add(1, Ordering::Relaxed);
                        return Err(at);
                    }
                }
            }
        }
        Ok(most)
    }

    /// [`Device::program`] with parity beside each page.
    pub(crate) async fn program(
        &self,
        device: &Device,
        block: BlockAddr,
        first_page: u32,
        data: Bytes,
    ) -> Result<(), FlashError> {
        let oob = self.encode(&data).freeze();
        device.program_with_oob(block, first_page, data, oob, WriteSync::Durable).await
    }

    /// [`Device::read`], corrected; answers the most bits that one codeword needed.
    ///
    /// # Errors
    /// [`FlashError::Uncorrectable`] names the page that is lost.
    pub(crate) async fn read(
        &self,
        device: &Device,
        block: BlockAddr,
        offset_bytes: u32,
        mut buf: IoBuf,
    ) -> (Result<u32, FlashError>, IoBuf) {
        let page_bytes = self.geometry.page_bytes;
        let len = buf.len();
        let Some(end) = u32::try_from(len).ok().and_then(|len| offset_bytes.checked_add(len)) else {
            // Let the device say what is wrong with it.
            let (result, buf) = device.read(block, offset_bytes, buf).await;
            return (result.map(|()| 0), buf);
        };
        let (first, last) = (offset_bytes / page_bytes, end.div_ceil(page_bytes));
        let pages = (last - first) as usize;
        let is_whole = offset_bytes.is_multiple_of(page_bytes) && end.is_multiple_of(page_bytes);
        let oob = IoBuf::for_read(pages * self.geometry.oob_bytes as usize);
        // Codewords are corrected whole, so that parts of pages are cut from whole ones.
        let whole = if is_whole { None } else { Some(IoBuf::for_read(pages * page_bytes as usize)) };
        let is_cut = whole.is_some();
        let kept = if is_cut { Some(std::mem::replace(&mut buf, IoBuf::zeroed(0))) } else { None };
        let (result, mut data, mut oob) = device.read_with_oob(block, first, whole.unwrap_or(buf), oob).await;
        let result = result.and_then(|()| {
            self.decode(&mut data, &mut oob).map_err(|page| FlashError::Uncorrectable {
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
}
