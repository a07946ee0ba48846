//! What lies on the pages of a block that holds a segment: its data, the tag, and the checksums of its pages.
//!
//! *Beside* the pages, where these have room in their out-of-band bytes and the media correct themselves: the block is all
//! data, each page's checksum lies with the page, and so do the tags of the first and the last.
//!
//! *In band* elsewhere (files, zoned drives; raw media, whose out-of-band bytes hold parity): the block begins with the
//! *head*, the tag and behind it the table of checksums, on as many pages as it takes. It ends in the *tail*, the same pages
//! with the first one last. So a page of the table that is lost costs nothing, and the block's last page bears its tag.
//! A block of 8 MiB in pages of 4 KiB has 2042 pages of data; up to 1008 pages of data the table fits the tag's page.
//!
//! Drives of before there were checksums have a head and a tail of a page each, which bear the tag alone.

use std::sync::Arc;

use bytes::Bytes;
use pumice_flash::Geometry;
use pumice_reactor::IoBuf;

use super::sums::Life;
use super::tag::{BlockTag, PAGE_SUM_AT, TAG_BYTES, TagEnd};
use crate::layout::{put_u32, u32_at};

/// How a drive uses its blocks' pages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub geometry: Geometry,
    /// Tags and checksums take pages of their own.
    pub in_band: bool,
    /// Pages have checksums.
    pub has_sums: bool,
    /// Pages before the data, and as many behind it.
    pub head_pages: u32,
}

impl Layout {
    pub(crate) fn new(geometry: Geometry, in_band: bool, has_sums: bool) -> Self {
        let pages = geometry.pages_per_block;
        let head_bytes = |data_pages: u32| TAG_BYTES + if has_sums { data_pages as usize * 4 } else { 0 };
        let mut head_pages = u32::from(in_band);
        while in_band && head_bytes(pages - 2 * head_pages) > (head_pages * geometry.page_bytes) as usize {
            head_pages += 1;
        }
        Self { geometry, in_band, has_sums, head_pages }
    }

    pub(crate) fn data_pages(&self) -> u32 {
        self.geometry.pages_per_block - 2 * self.head_pages
    }

    pub(crate) fn segment_bytes(&self) -> u32 {
        self.data_pages() * self.geometry.page_bytes
    }

    pub(crate) fn head_bytes(&self) -> usize {
        (self.head_pages * self.geometry.page_bytes) as usize
    }

    /// Pages of a block that bear a tag and no data.
    pub(crate) fn tag_pages(&self) -> u32 {
        if self.in_band { 2 } else { 0 }
    }

    /// Pages of a block that hold checksums alone.
    pub(crate) fn sum_pages(&self) -> u32 {
        2 * self.head_pages - self.tag_pages()
    }

    /// The first page of the tail: the head's second to last, and its first.
    pub(crate) fn tail(&self) -> u32 {
        self.geometry.pages_per_block - self.head_pages
    }

    /// The head's pages in the order of the tail.
    pub(crate) fn turned(&self, head: &[u8]) -> Vec<u8> {
        let (first, rest) = head.split_at(self.geometry.page_bytes as usize);
        [rest, first].concat()
    }

    /// The checksums that a head holds.
    pub(crate) fn table(&self, head: &[u8]) -> Arc<[u32]> {
        (0..self.data_pages() as usize).map(|page| u32_at(head, TAG_BYTES + 4 * page)).collect()
    }

    /// The checksums that a tail holds.
    pub(crate) fn table_of_tail(&self, tail: &[u8]) -> Arc<[u32]> {
        let (rest, first) = tail.split_at(tail.len() - self.geometry.page_bytes as usize);
        self.table(&[first, rest].concat())
    }
}

/// The checksum that a page's out-of-band bytes hold.
pub(crate) fn sum_beside(oob: &[u8]) -> u32 {
    u32_at(oob, PAGE_SUM_AT)
}

/// A segment as it is written.
pub(crate) struct Image {
    layout: Layout,
    life: Life,
    tag: BlockTag,
    data: Bytes,
    head: Bytes,
    tail: Bytes,
    /// The checksums of its pages, where they make a table.
    pub sums: Option<Arc<[u32]>>,
}

impl Image {
    pub(crate) fn new(layout: Layout, life: Life, tag: BlockTag, data: Bytes) -> Self {
        let page_bytes = layout.geometry.page_bytes;
        assert_eq!(data.len(), layout.segment_bytes() as usize, "a segment is written whole");
        let (mut head, mut tail, mut sums) = (Bytes::new(), Bytes::new(), None);
        if layout.in_band {
            let mut out = IoBuf::zeroed(layout.head_bytes());
            out[..TAG_BYTES].copy_from_slice(&tag.encode(life.number));
            if layout.has_sums {
                let table: Arc<[u32]> = life.sums(0, page_bytes, &data).collect();
                for (page, &sum) in table.iter().enumerate() {
                    put_u32(&mut out, TAG_BYTES + 4 * page, sum);
                }
                sums = Some(table);
            }
            tail = IoBuf::copy_of(&layout.turned(&out)).freeze();
            head = out.freeze();
        }
        Self { layout, life, tag, data, head, tail, sums }
    }

    pub(crate) fn life(&self) -> &Life {
        &self.life
    }

    /// The page at which the program ends that begins at `page`, of `chunk_pages` at most. What makes the segment count is
    /// programmed last, and alone.
    pub(crate) fn end(&self, page: u32, chunk_pages: u32) -> u32 {
        let (head, pages) = (self.layout.head_pages, self.layout.geometry.pages_per_block);
        if page < head {
            return head;
        }
        let last = self.last();
        if page < last { ((page / chunk_pages + 1) * chunk_pages).min(last) } else { pages }
    }

    /// The page at which the last program begins.
    pub(crate) fn last(&self) -> u32 {
        self.layout.geometry.pages_per_block - self.layout.head_pages.max(1)
    }

    /// What to program on these pages, as [`Image::end`] cuts them, and their out-of-band bytes.
    pub(crate) fn piece(&self, page: u32, end: u32) -> (Bytes, Bytes) {
        let Layout { head_pages, in_band, .. } = self.layout;
        if page < head_pages {
            return (self.head.clone(), Bytes::new());
        }
        if in_band && page == self.layout.tail() {
            return (self.tail.clone(), Bytes::new());
        }
        let at = |page: u32| (page - head_pages) as usize * self.layout.geometry.page_bytes as usize;
        let data = self.data.slice(at(page)..at(end));
        let oob = if in_band { Bytes::new() } else { self.beside(page, end, &data) };
        (data, oob)
    }

    /// The out-of-band bytes of pages; none where there is nothing to be said of them.
    fn beside(&self, page: u32, end: u32, data: &[u8]) -> Bytes {
        let Geometry { oob_bytes, page_bytes, pages_per_block, .. } = self.layout.geometry;
        let is_tagged = |page: u32| page == 0 || page == pages_per_block - 1;
        if !self.layout.has_sums && !(page..end).any(is_tagged) {
            return Bytes::new();
        }
        let mut oob = IoBuf::zeroed((end - page) as usize * oob_bytes as usize);
        let beside = oob.chunks_exact_mut(oob_bytes as usize);
        for ((page, out), bytes) in (page..end).zip(beside).zip(data.chunks_exact(page_bytes as usize)) {
            let sum = if self.layout.has_sums { Some(self.life.sum(page, bytes)) } else { None };
            if is_tagged(page) {
                let end = sum.map_or(self.tag.end, TagEnd::PageSum);
                out[..TAG_BYTES].copy_from_slice(&BlockTag { end, ..self.tag }.encode(self.life.number));
            } else if let Some(sum) = sum {
                put_u32(out, PAGE_SUM_AT, sum);
            }
        }
        oob.freeze()
    }
}
