//! Sparse bytes in copy-on-write pages: cloning an image costs its page table, not its data.

use std::collections::BTreeMap;
use std::sync::Arc;

const PAGE_BYTES: u64 = 4096;

type Page = [u8; PAGE_BYTES as usize];

/// Sparse bytes; what was never written reads as zeros.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pages {
    pages: BTreeMap<u64, Arc<Page>>,
}

/// Cuts `offset..offset + len` at page borders: `(page, start in page, bytes)`.
fn pieces(offset: u64, len: u64) -> impl Iterator<Item = (u64, usize, usize)> {
    let end = offset + len;
    let mut at = offset;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let start = at % PAGE_BYTES;
        let bytes = (PAGE_BYTES - start).min(end - at);
        let piece = (at / PAGE_BYTES, start as usize, bytes as usize);
        at += bytes;
        Some(piece)
    })
}

impl Pages {
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) {
        let mut rest = out;
        for (page, start, bytes) in pieces(offset, rest.len() as u64) {
            let (here, after) = rest.split_at_mut(bytes);
            match self.pages.get(&page) {
                Some(page) => here.copy_from_slice(&page[start..start + bytes]),
                None => here.fill(0),
            }
            rest = after;
        }
    }

    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) {
        let mut rest = data;
        for (page, start, bytes) in pieces(offset, rest.len() as u64) {
            let (here, after) = rest.split_at(bytes);
            let page = self.pages.entry(page).or_insert_with(|| Arc::new([0; PAGE_BYTES as usize]));
            Arc::make_mut(page)[start..start + bytes].copy_from_slice(here);
            rest = after;
        }
    }

    /// Zeros `offset..offset + len`; whole pages are given back.
    pub(crate) fn punch(&mut self, offset: u64, len: u64) {
        let end = offset + len;
        let whole = offset.div_ceil(PAGE_BYTES)..end / PAGE_BYTES;
        if whole.start < whole.end {
            let mut tail = self.pages.split_off(&whole.start);
            let mut after = tail.split_off(&whole.end);
            self.pages.append(&mut after);
        }
        for (page, start, bytes) in pieces(offset, len.min(PAGE_BYTES))
            .chain(pieces(end.saturating_sub(PAGE_BYTES).max(offset), len.min(PAGE_BYTES)))
        {
            if let Some(page) = self.pages.get_mut(&page) {
                Arc::make_mut(page)[start..start + bytes].fill(0);
            }
        }
    }

    /// Drops everything from `len` on.
    pub(crate) fn truncate(&mut self, len: u64) {
        self.pages.split_off(&len.div_ceil(PAGE_BYTES));
        let start = (len % PAGE_BYTES) as usize;
        if start > 0
            && let Some(page) = self.pages.get_mut(&(len / PAGE_BYTES))
        {
            Arc::make_mut(page)[start..].fill(0);
        }
    }

    /// Flips the bits of `mask` in one byte.
    pub(crate) fn flip(&mut self, offset: u64, mask: u8) {
        let mut byte = [0];
        self.read(offset, &mut byte);
        self.write(offset, &[byte[0] ^ mask]);
    }

    pub(crate) fn allocated_bytes(&self) -> u64 {
        self.pages.len() as u64 * PAGE_BYTES
    }

    /// Bytes of pages in `offset..offset + len` that are not there yet.
    pub(crate) fn missing_bytes(&self, offset: u64, len: u64) -> u64 {
        if len == 0 {
            return 0;
        }
        let (first, last) = (offset / PAGE_BYTES, (offset + len - 1) / PAGE_BYTES);
        (last - first + 1 - self.pages.range(first..=last).count() as u64) * PAGE_BYTES
    }

    /// Runs of pages that are there: `(offset, bytes)`.
    pub(crate) fn extents(&self) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for &page in self.pages.keys() {
            let offset = page * PAGE_BYTES;
            match runs.last_mut() {
                Some((start, bytes)) if *start + *bytes == offset => *bytes += PAGE_BYTES,
                _ => runs.push((offset, PAGE_BYTES)),
            }
        }
        runs
    }
}
