//! A list that grows without moving what it holds: a vector that doubles copies all of it while its slice is locked, and
//! needs three times its memory meanwhile.

use std::ops::Index;

const CHUNK_ITEMS: usize = 1024;

/// See the head of this file.
pub struct Chunked<T> {
    /// All but the last are full. The first one grows like any vector, for lists that stay short.
    chunks: Vec<Vec<T>>,
    len: usize,
}

impl<T> Default for Chunked<T> {
    fn default() -> Self {
        Self { chunks: Vec::new(), len: 0 }
    }
}

impl<T> Chunked<T> {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Memory in use, in bytes.
    pub fn bytes(&self) -> usize {
        let full = self.chunks.len().saturating_sub(1) * CHUNK_ITEMS;
        (full + self.chunks.last().map_or(0, Vec::capacity)) * size_of::<T>()
    }

    pub fn push(&mut self, item: T) {
        match self.chunks.last_mut().filter(|_| !self.len.is_multiple_of(CHUNK_ITEMS)) {
            Some(chunk) => chunk.push(item),
            None => {
                let mut chunk = Vec::with_capacity(if self.len == 0 { 4 } else { CHUNK_ITEMS });
                chunk.push(item);
                self.chunks.push(chunk);
            }
        }
        self.len += 1;
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.chunks.iter().flatten()
    }

    pub fn get(&self, at: usize) -> Option<&T> {
        self.chunks.get(at / CHUNK_ITEMS)?.get(at % CHUNK_ITEMS)
    }
}

impl<T> Index<usize> for Chunked<T> {
    type Output = T;
    fn index(&self, at: usize) -> &T {
        &self.chunks[at / CHUNK_ITEMS][at % CHUNK_ITEMS]
    }
}
