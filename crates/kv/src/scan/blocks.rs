//! A run's blocks as a scan reads them: ahead.
//!
//! The first block is read alone, because most scans end in it, and kept in memory as look-ups' are: many begin in the same
//! place. From then on each read takes twice as many bytes as the one before, up to what the scan allows a run, and the next one is on
//! its way while the last one is used. Nothing is read ahead beyond the scan's end, nor what all scans together have no room for
//! (`scan/room.rs`).

use std::ops::{Bound, Range};
use std::sync::Arc;

use bytes::Bytes;

use crate::begun::Begun;
use crate::cache::damaged;
use crate::errors::StoreError;
use crate::scan::room::Held;
use crate::store::Inner;
use crate::table::Head;
use crate::table::block::Block;
use crate::table::version::{Run, Table};

/// Blocks of a table that lie one behind the other, from the first to the last.
struct Stretch {
    table: u64,
    offset: u32,
    len: u32,
}

impl Stretch {
    fn holds(&self, table: &Table, offset: u32, len: u32) -> bool {
        self.table == table.meta.id && self.offset <= offset && offset + len <= self.offset + self.len
    }
}

/// Which way a scan goes, how far, and how much it reads of a run at a time.
pub struct Way<'a> {
    pub backward: bool,
    pub end: &'a Bound<Bytes>,
    pub piece_max: u32,
}

impl<'a> Way<'a> {
    pub fn course(&self, run: &'a Run, table: usize, head: &'a Head) -> Course<'a> {
        let next = if self.backward { table.checked_sub(1) } else { Some(table + 1) };
        Course {
            table: &run.tables()[table],
            head,
            next_table: next.and_then(|next| run.tables().get(next)),
            backward: self.backward,
            end: match self.end {
                Bound::Included(key) | Bound::Excluded(key) => Some(key),
                Bound::Unbounded => None,
            },
            piece_max: self.piece_max,
        }
    }
}

/// Block `number` of a table, or the one where `start` lies, and the table's last; `None` when it has no blocks.
pub fn number_in(
    table: &Table,
    head: &Head,
    number: Option<usize>,
    start: &Bound<Bytes>,
    backward: bool,
) -> Option<(usize, usize)> {
    let last = head.index.blocks().checked_sub(1)?;
    let number = number.unwrap_or_else(|| {
        let from: &[u8] = match start {
            Bound::Unbounded if backward => table.meta.max_key.as_ref(),
            Bound::Unbounded => table.meta.min_key.as_ref(),
            Bound::Included(key) | Bound::Excluded(key) => key.as_ref(),
        };
        let from = from.max(table.meta.min_key.as_ref());
        head.index.block_of(from).unwrap_or(last)
    });
    Some((number, last))
}

/// Where a scan is in a run, and where it goes.
pub struct Course<'a> {
    pub table: &'a Arc<Table>,
    pub head: &'a Head,
    /// The table that comes next, if one does.
    pub next_table: Option<&'a Arc<Table>>,
    pub backward: bool,
    /// Where the scan ends, if it does before the run.
    pub end: Option<&'a [u8]>,
    /// Bytes of a read ahead, at most.
    pub piece_max: u32,
}

impl Course<'_> {
    /// Blocks from `number` on that the scan may still want, those of other tables not counted.
    fn wanted(&self, number: usize) -> Range<usize> {
        let end = self.end.and_then(|end| self.head.index.block_of(end));
        if self.backward {
            end.unwrap_or(0).min(number)..number + 1
        } else {
            number..end.map_or(self.head.index.blocks(), |end| end + 1).max(number + 1)
        }
    }

    /// Block `number` and those behind it that fit in `piece_bytes`; and the next one to ask for.
    fn stretch(&self, number: usize, piece_bytes: u32) -> (Stretch, Option<usize>) {
        let place = |number| self.head.index.place(number);
        let wanted = self.wanted(number);
        let (mut offset, len) = place(number);
        let mut end = offset + len;
        let mut at = number;
        let next = loop {
            let next = if self.backward { at.checked_sub(1) } else { Some(at + 1) };
            let Some(next) = next.filter(|next| wanted.contains(next)) else { break None };
            let (next_offset, next_len) = place(next);
            let (from, to) = (offset.min(next_offset), end.max(next_offset + next_len));
            if to - from > piece_bytes {
                break Some(next);
            }
            (offset, end, at) = (from, to, next);
        };
        (Stretch { table: self.table.meta.id, offset, len: end - offset }, next)
    }
}

/// A stretch on its way.
struct Asked {
    stretch: Stretch,
    held: Held,
    read: Begun<Result<Bytes, StoreError>>,
}

/// What was read of a run and not used yet.
#[derive(Default)]
pub struct BlocksAhead {
    read: Option<(Stretch, Held, Bytes)>,
    asked: Option<Asked>,
    /// Bytes of the next read; 0: one block.
    piece_bytes: u32,
}

impl BlocksAhead {
    /// Starts to read the first block, unless it is cached, so that the runs of a scan do not wait for one another.
    pub fn ask_first(&mut self, store: &Arc<Inner>, course: &Course<'_>, number: usize) {
        let (offset, _) = course.head.index.place(number);
        if store.cached_block(course.table, offset).is_none() {
            let (stretch, _) = course.stretch(number, 0);
            self.ask(store, course.table, stretch);
        }
    }

    /// Block `number` of a table.
    ///
    /// # Errors
    /// [`StoreError`] when it does not read or verify.
    pub async fn block(
        &mut self,
        store: &Arc<Inner>,
        course: &Course<'_>,
        number: usize,
    ) -> Result<Block, StoreError> {
        let (offset, len) = course.head.index.place(number);
        if let Some(block) = store.cached_block(course.table, offset) {
            return Ok(block);
        }
        let is_first = self.piece_bytes == 0;
        if !self.read.as_ref().is_some_and(|(stretch, ..)| stretch.holds(course.table, offset, len)) {
            self.read = None;
            self.read = Some(self.fetch(store, course, number).await?);
        }
        let (stretch, _, bytes) = self.read.as_ref().expect("it was just read");
        let start = (offset - stretch.offset) as usize;
        let bytes = bytes.slice(start..start + len as usize);
        let bytes = if is_first { Bytes::copy_from_slice(&bytes) } else { bytes };
        let block = Block::verify(course.table.meta.id, offset, bytes)
            .ok_or_else(|| damaged(course.table, "a block's checksum does not match"))?;
        if is_first {
            store.keep_block(course.table, offset, &block);
        }
        Ok(block)
    }

    async fn fetch(
        &mut self,
        store: &Arc<Inner>,
        course: &Course<'_>,
        number: usize,
    ) -> Result<(Stretch, Held, Bytes), StoreError> {
        let (offset, len) = course.head.index.place(number);
        let is_first = self.piece_bytes == 0;
        let asked = self.asked.take().filter(|asked| asked.stretch.holds(course.table, offset, len));
        let (stretch, held, read) = match asked {
            Some(Asked { stretch, held, read }) => (stretch, held, read.finish().await),
            None => {
                let (stretch, _) = course.stretch(number, self.may_read(store));
                let held = Held::take(&store.scan_rooms.blocks, stretch.len.into());
                store.counters.block_reads.add(1);
                let read = store.read_of(course.table, stretch.offset, stretch.len).await;
                (stretch, held, read)
            }
        };
        self.piece_bytes = self.piece_bytes.max(len).saturating_mul(2).min(course.piece_max);
        let bytes = match read {
            Ok(bytes) => bytes,
            // What does not read may be another block than the one that is wanted now.
            Err(error) if error.is_of_the_media() && stretch.len > len => {
                let bytes = store.read_of(course.table, offset, len).await?;
                return Ok((Stretch { table: course.table.meta.id, offset, len }, held, bytes));
            }
            Err(error) => return Err(error),
        };
        if !is_first {
            self.ask_next(store, course, &stretch, number);
        }
        Ok((stretch, held, bytes))
    }

    /// Bytes of the next read, of what scans have room for: 0 is one block.
    fn may_read(&self, store: &Inner) -> u32 {
        u64::from(self.piece_bytes).min(store.scan_rooms.blocks.left()) as u32
    }

    /// Starts to read what comes after `stretch`, in which block `number` lies.
    fn ask_next(&mut self, store: &Arc<Inner>, course: &Course<'_>, stretch: &Stretch, number: usize) {
        let piece_bytes = self.may_read(store);
        if piece_bytes == 0 {
            return;
        }
        let outside = |&number: &usize| {
            let (offset, len) = course.head.index.place(number);
            !stretch.holds(course.table, offset, len)
        };
        let mut wanted = course.wanted(number);
        let next = if course.backward { wanted.rfind(outside) } else { wanted.find(outside) };
        if let Some(next) = next {
            let (stretch, _) = course.stretch(next, piece_bytes);
            return self.ask(store, course.table, stretch);
        }
        // Where the scan ends in this table, it does not come to the next.
        let ends_here = course.end.is_some_and(|end| {
            if course.backward { end >= course.table.meta.min_key } else { end <= course.table.meta.max_key }
        });
        let Some(table) = course.next_table.filter(|_| !ends_here) else { return };
        // What is not in memory is read when its turn comes.
        let Some(head) = table.head() else { return };
        let first = if course.backward {
            head.index.blocks().checked_sub(1)
        } else {
            head.index.block_of(&table.meta.min_key)
        };
        if let Some(first) = first {
            let course = Course { table, head: &head, next_table: None, ..*course };
            let (stretch, _) = course.stretch(first, piece_bytes);
            self.ask(store, table, stretch);
        }
    }

    fn ask(&mut self, store: &Arc<Inner>, table: &Arc<Table>, stretch: Stretch) {
        store.counters.block_reads.add(1);
        let (store, table) = (store.clone(), table.clone());
        let (offset, len) = (stretch.offset, stretch.len);
        let held = Held::take(&store.scan_rooms.blocks, len.into());
        let read = Begun::begin(async move { store.read_of(&table, offset, len).await });
        self.asked = Some(Asked { stretch, held, read });
    }
}
