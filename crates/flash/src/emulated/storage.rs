//! Where emulated pages are kept: in memory, block by block as they are written, or in a sparse file.
//!
//! File: the blocks in order, then 16 bytes for each: next page u32, erase count u32, flags u32 (bit 0: failed),
//! CRC-32C of these 12 bytes seeded with the block's number; little-endian. Then the out-of-band bytes, page by page.
//! A block whose entry does not verify, or has more pages than a block, counts as erased. How often a block was read and how old its data is are
//! forgotten when the device is closed.

use std::sync::Mutex;

use bytes::Bytes;
use pumice_base::checksum::crc32c_seeded;
use pumice_base::hash::HashMap;
use pumice_base::sync::lock;
use pumice_reactor::{File, OpenOptions};
use pumice_reactor::{IoBuf, WriteSync};

use crate::error::Operation;
use crate::{Access, EmulatedSpec, FlashError};

const ENTRY_BYTES: usize = 16;

/// What is remembered of a block while the device is closed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SavedBlock {
    pub next_page: u32,
    pub erase_count: u32,
    pub failed: bool,
}

pub(super) enum Storage {
    Memory {
        block_bytes: u64,
        blocks: Mutex<Vec<Vec<u8>>>,
        /// Out-of-band bytes of each block, as far as they were written.
        oob: Mutex<HashMap<u32, Vec<u8>>>,
    },
    File {
        file: File,
        capacity_bytes: u64,
        oob_at: u64,
    },
    /// Contents are dropped, and buffers come back as they were handed in: filling them would cost a simulation more than
    /// all the rest.
    Nothing,
}

impl Storage {
    pub(super) async fn open(
        spec: &EmulatedSpec,
        access: Access,
    ) -> Result<(Self, Vec<SavedBlock>), FlashError> {
        let geometry = spec.geometry;
        let count = geometry.block_count() as usize;
        let fresh = vec![SavedBlock::default(); count];
        if !spec.keeps_data {
            return Ok((Self::Nothing, fresh));
        }
        let Some(path) = &spec.path else {
            let blocks = Mutex::new(vec![Vec::new(); count]);
            let block_bytes = u64::from(geometry.block_bytes());
            return Ok((Self::Memory { block_bytes, blocks, oob: Mutex::default() }, fresh));
        };
        let fail = |error| FlashError::from_io(Operation::Open, None, error);
        let read_only = access == Access::ReadOnly;
        let options = OpenOptions {
            create: !read_only,
            read_only,
            exclusive_lock: !read_only,
            ..OpenOptions::default()
        };
        let file = File::open(path, &options).await.map_err(|error| match error.kind() {
            std::io::ErrorKind::WouldBlock => FlashError::Locked { device: path.display().to_string() },
            _ => fail(error),
        })?;
        let capacity_bytes = geometry.capacity_bytes();
        let oob_at = capacity_bytes + (count * ENTRY_BYTES) as u64;
        let full_bytes = oob_at + (geometry.raw_bytes() - capacity_bytes);
        let storage = Self::File { file: file.clone(), capacity_bytes, oob_at };
        match file.len().await.map_err(fail)? {
            0 => {
                if !read_only {
                    file.set_len(full_bytes).await.map_err(fail)?;
                }
                return Ok((storage, fresh));
            }
            len if len != full_bytes => {
                return Err(FlashError::Geometry(format!(
                    "{} holds {len} B, and such a drive {full_bytes} B: it was made with other options, or is something else; \
                     name another file, or remove it if nothing in it is wanted",
                    path.display()
                )));
            }
            _ => {}
        }
        let (result, table) = file.read_at(IoBuf::zeroed(count * ENTRY_BYTES), capacity_bytes).await;
        result.map_err(fail)?;
        let entries = table.chunks_exact(ENTRY_BYTES).enumerate();
        let saved = entries.map(|(number, entry)| decode(number, entry, geometry.pages_per_block)).collect();
        Ok((storage, saved))
    }

    pub(super) async fn read(&self, at: u64, out: &mut [u8]) -> Result<(), FlashError> {
        match self {
            Self::Nothing => Ok(()),
            Self::Memory { block_bytes, blocks, .. } => {
                let blocks = lock(blocks);
                let (block, offset) = ((at / block_bytes) as usize, (at % block_bytes) as usize);
                let stored = blocks[block].get(offset..).unwrap_or_default();
                let len = stored.len().min(out.len());
                out[..len].copy_from_slice(&stored[..len]);
                out[len..].fill(0);
                Ok(())
            }
            Self::File { file, .. } => {
                let (result, buf) = file.read_at(IoBuf::zeroed(out.len()), at).await;
                result.map_err(|error| FlashError::from_io(Operation::Read, None, error))?;
                out.copy_from_slice(&buf[..out.len()]);
                Ok(())
            }
        }
    }

    pub(super) async fn write(&self, at: u64, data: &[u8]) -> Result<(), FlashError> {
        if data.is_empty() {
            return Ok(());
        }
        match self {
            Self::Nothing => Ok(()),
            Self::Memory { block_bytes, blocks, .. } => {
                let mut blocks = lock(blocks);
                let (block, offset) = ((at / block_bytes) as usize, (at % block_bytes) as usize);
                let stored = &mut blocks[block];
                if stored.len() < offset + data.len() {
                    stored.resize(offset + data.len(), 0);
                }
                stored[offset..offset + data.len()].copy_from_slice(data);
                Ok(())
            }
            Self::File { file, .. } => file
                .write_at(Bytes::copy_from_slice(data), at, WriteSync::Cached)
                .await
                .map_err(|error| FlashError::from_io(Operation::Program, None, error)),
        }
    }

    /// Fills `out` with the out-of-band bytes from byte `at` of those of block `number`, which has `all` of them.
    pub(super) async fn read_oob(
        &self,
        number: u32,
        all: u64,
        at: u64,
        out: &mut [u8],
    ) -> Result<(), FlashError> {
        match self {
            Self::Nothing => Ok(()),
            Self::Memory { oob, .. } => {
                let oob = lock(oob);
                let stored = oob.get(&number).and_then(|bytes| bytes.get(at as usize..)).unwrap_or_default();
                let len = stored.len().min(out.len());
                out[..len].copy_from_slice(&stored[..len]);
                out[len..].fill(0);
                Ok(())
            }
            Self::File { oob_at, .. } => self.read(oob_at + u64::from(number) * all + at, out).await,
        }
    }

    /// Writes what [`Storage::read_oob`] reads.
    pub(super) async fn write_oob(
        &self,
        number: u32,
        all: u64,
        at: u64,
        data: &[u8],
    ) -> Result<(), FlashError> {
        match self {
            Self::Nothing => Ok(()),
            Self::Memory { oob, .. } => {
                let mut oob = lock(oob);
                let stored = oob.entry(number).or_default();
                if stored.len() < at as usize + data.len() {
                    stored.resize(at as usize + data.len(), 0);
                }
                stored[at as usize..at as usize + data.len()].copy_from_slice(data);
                Ok(())
            }
            Self::File { oob_at, .. } => self.write(oob_at + u64::from(number) * all + at, data).await,
        }
    }

    /// Forgets a block of memory.
    pub(super) fn discard(&self, number: u32) {
        if let Self::Memory { blocks, oob, .. } = self {
            lock(blocks)[number as usize] = Vec::new();
            lock(oob).remove(&number);
        }
    }

    pub(super) async fn save(&self, number: usize, block: SavedBlock) -> Result<(), FlashError> {
        let Self::File { file, capacity_bytes, .. } = self else { return Ok(()) };
        let at = capacity_bytes + (number * ENTRY_BYTES) as u64;
        file.write_at(Bytes::copy_from_slice(&encode(number, block)), at, WriteSync::Cached)
            .await
            .map_err(|error| FlashError::from_io(Operation::Program, None, error))
    }
}

fn encode(number: usize, block: SavedBlock) -> [u8; ENTRY_BYTES] {
    let mut entry = [0; ENTRY_BYTES];
    entry[0..4].copy_from_slice(&block.next_page.to_le_bytes());
    entry[4..8].copy_from_slice(&block.erase_count.to_le_bytes());
    entry[8..12].copy_from_slice(&u32::from(block.failed).to_le_bytes());
    let crc = crc32c_seeded(number as u64, &[&entry[..12]]);
    entry[12..16].copy_from_slice(&crc.to_le_bytes());
    entry
}

fn decode(number: usize, entry: &[u8], pages_per_block: u32) -> SavedBlock {
    let word = |at: usize| u32::from_le_bytes([entry[at], entry[at + 1], entry[at + 2], entry[at + 3]]);
    if crc32c_seeded(number as u64, &[&entry[..12]]) != word(12) || word(0) > pages_per_block {
        return SavedBlock::default();
    }
    SavedBlock { next_page: word(0), erase_count: word(4), failed: word(8) & 1 == 1 }
}
