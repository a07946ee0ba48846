//! A key table's block index: for each block a key at or above its last and below the next block's first.
//!
//! In memory such a key is what it has behind the beginning that all share: eight bytes as a number in the fences, and what is
//! behind these, mostly nothing. So a block takes 13 bytes and a half beside the beginning.

use crate::codec::{Cursor, put_varint};
use crate::codes::{CODE_BYTES, Fences};

/// See the head of this file.
#[derive(Clone, Debug, Default)]
pub struct Index {
    fences: Fences,
    /// How many bytes of each number are its key's.
    lens: Box<[u8]>,
    /// What keys have behind their numbers, one after the other.
    tails: Box<[u8]>,
    /// Where these end. Empty if nobody has any.
    tail_ends: Box<[u32]>,
    /// Where the blocks begin, and where the last one ends.
    offsets: Box<[u32]>,
}

impl Index {
    /// Takes `bytes` for the index of blocks that lie before `blocks_end`, if they are.
    pub fn decode(bytes: &[u8], blocks_end: u32) -> Option<Self> {
        let mut cursor = Cursor::new(bytes, 0);
        let count = cursor.count()?;
        // What is forged may claim any number of blocks.
        let possible = count.min(bytes.len() / 2);
        let mut keys: Vec<&[u8]> = Vec::with_capacity(possible);
        let mut offsets = Vec::with_capacity(possible + 1);
        let mut offset = 0u32;
        for _ in 0..count {
            let len = cursor.count()?;
            let key = cursor.take(len)?;
            let block_len = u32::try_from(cursor.varint()?).ok()?;
            if keys.last().is_some_and(|last| key < *last) {
                return None;
            }
            keys.push(key);
            offsets.push(offset);
            offset = offset.checked_add(block_len)?;
        }
        offsets.push(offset);
        let fences = Fences::of(keys.iter().copied());
        let shared = fences.shared().len();
        let mut tails = Vec::new();
        let mut tail_ends = Vec::new();
        if keys.iter().any(|key| key.len() > shared + CODE_BYTES) {
            for key in &keys {
                tails.extend_from_slice(key.get(shared + CODE_BYTES..).unwrap_or_default());
                tail_ends.push(tails.len() as u32);
            }
        }
        let index = Self {
            fences,
            lens: keys.iter().map(|key| (key.len() - shared).min(CODE_BYTES) as u8).collect(),
            tails: tails.into(),
            tail_ends: tail_ends.into(),
            offsets: offsets.into(),
        };
        (offset == blocks_end && cursor.left() == 0).then_some(index)
    }

    /// Blocks in the table.
    pub fn blocks(&self) -> usize {
        self.lens.len()
    }

    /// The block that holds `key` if any does.
    pub fn block_of(&self, key: &[u8]) -> Option<usize> {
        let block = self.fences.below(key, |block, code| self.is_below(block, code, key));
        (block < self.blocks()).then_some(block)
    }

    /// Offset and length of block `block` in the table's payload.
    pub fn place(&self, block: usize) -> (u32, u32) {
        let (start, end) = (self.offsets[block], self.offsets[block + 1]);
        (start, end - start)
    }

    /// Memory, in bytes.
    pub fn bytes(&self) -> usize {
        self.fences.bytes()
            + self.lens.len()
            + self.tails.len()
            + 4 * (self.tail_ends.len() + self.offsets.len())
    }

    /// Whether the key of `block`, which has this code, is below `wanted`, which begins as all do.
    fn is_below(&self, block: usize, code: u64, wanted: &[u8]) -> bool {
        let code = code.to_be_bytes();
        let key = code[..usize::from(self.lens[block])].iter().chain(self.tail(block));
        key.lt(&wanted[self.fences.shared().len()..])
    }

    fn tail(&self, block: usize) -> &[u8] {
        let Some(&end) = self.tail_ends.get(block) else { return &[] };
        let start = if block == 0 { 0 } else { self.tail_ends[block - 1] };
        &self.tails[start as usize..end as usize]
    }
}

/// Puts an index together.
#[derive(Default)]
pub struct IndexBuilder {
    keys: Vec<u8>,
    /// Of each block, where its key ends, and how long it is itself.
    blocks: Vec<(u32, u32)>,
}

impl IndexBuilder {
    /// The next block, of so many bytes.
    pub fn push(&mut self, key: &[u8], block_len: u32) {
        self.keys.extend_from_slice(key);
        self.blocks.push((self.keys.len() as u32, block_len));
    }

    /// About how many bytes it takes in the table.
    pub fn encoded_bytes(&self) -> usize {
        self.keys.len() + 4 * self.blocks.len()
    }

    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.blocks.len() as u64);
        let mut start = 0;
        for &(end, block_len) in &self.blocks {
            let key = &self.keys[start..end as usize];
            put_varint(out, key.len() as u64);
            out.extend_from_slice(key);
            put_varint(out, u64::from(block_len));
            start = end as usize;
        }
    }
}
