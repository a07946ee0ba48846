//! Correction for raw media: each page's codewords have their parity in its out-of-band bytes.
//!
//! A page of n codewords has n parities, one after the other from the first out-of-band byte on; what is left of them is
//! zero and free for later use. The code is the device's ([`EccSpec`]): 8 codewords of 1 KiB with t = 30 take
//! 424 of SDF's 448 bytes. Media that correct themselves get none of this.

use std::sync::atomic::{AtomicU64, Ordering};

use pumice_reactor::IoBuf;

use crate::bch::Bch;
use crate::{EccSpec, FlashError, Geometry};

/// A page is weak when one of its codewords needed more than this share of what the code corrects.
const WEAK_NUMERATOR: u32 = 3;
const WEAK_DENOMINATOR: u32 = 4;

/// Most flipped bits in a codeword that corrects `correctable` of them before its page is weak.
pub fn weak_limit(correctable: u32) -> u32 {
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
    pub(crate) fn encode(&self, data: &[u8]) -> IoBuf {
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
    pub(crate) fn decode(&self, data: &mut [u8], oob: &mut [u8]) -> Result<u32, usize> {
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
}
