//! Where a merge's entries come from: runs read in key order.
//!
//! The first piece of each run is asked for at once, and of the run that is most of a merge the next piece while the last
//! one is merged: a merge is as long as users wait for what it wins. Of the others a step takes hardly more than one piece.

use std::sync::Arc;

use bytes::Bytes;
use pumice_base::sync::lock;
use pumice_segment::RecordPtr;

use crate::begun::Begun;
use crate::cache::damaged;
use crate::entry::KeyEntry;
use crate::errors::StoreError;
use crate::retired::Retired;
use crate::store::Inner;
use crate::table::Head;
use crate::table::block::Block;
use crate::table::version::{Run, RunOrder, Table};

/// Bytes read of an input at a time, at most and at least.
const PIECE_BYTES_MAX: u32 = 128 * 1024;
const PIECE_BYTES_MIN: u32 = 16 * 1024;

/// A piece of a table on its way.
struct Ahead {
    /// The table's place when it was asked for.
    ptr: RecordPtr,
    offset: u32,
    len: u32,
    read: Begun<Result<Bytes, StoreError>>,
}

/// Reads a run in key order, large pieces at a time, past the caches.
pub struct RunReader {
    /// The run.
    pub order: RunOrder,
    tables: std::vec::IntoIter<Arc<Table>>,
    /// Of these nobody misses what does not read.
    retired: Vec<u64>,
    /// The next table, whose head is being read.
    opening: Option<Arc<Table>>,
    current: Option<(Arc<Table>, Arc<Head>, usize)>,
    /// Bytes read ahead of the current table, and where they start in it.
    bytes: Bytes,
    bytes_at: u32,
    /// The piece that is wanted next.
    ahead: Option<Ahead>,
    /// Whether pieces after the first one are asked for ahead.
    is_long: bool,
    piece_bytes: u32,
    entries: std::vec::IntoIter<(Bytes, KeyEntry)>,
    /// The last key of the blocks before, of the current table.
    last_key: Option<Bytes>,
    /// The next key is the first of its table that counts.
    is_first: bool,
    /// A table was opened, and no key of it was met yet.
    is_opened: bool,
    /// The next key; `None` at the end.
    pub key: Option<Bytes>,
    entry: Option<KeyEntry>,
    /// Bytes of an entry of the current table, on average.
    entry_bytes: u64,
    /// Bytes of those that were taken.
    pub taken_bytes: u64,
}

/// Asks for the piece of a table that begins with a block, if there is such a block.
fn ask(store: &Arc<Inner>, table: &Arc<Table>, head: &Head, block: usize, piece_bytes: u32) -> Option<Ahead> {
    if block >= head.index.blocks() {
        return None;
    }
    let (offset, len) = head.index.place(block);
    let len = piece(table, offset, len, piece_bytes);
    let (ptr, store, table) = (table.meta.ptr, store.clone(), table.clone());
    let read = Begun::begin(async move { store.read_of(&table, offset, len).await });
    Some(Ahead { ptr, offset, len, read })
}

/// Bytes to read of a table from a block of `len` bytes on.
fn piece(table: &Table, offset: u32, len: u32, piece_bytes: u32) -> u32 {
    piece_bytes.max(len).min(table.meta.head_at - offset)
}

fn first_block(table: &Table, head: &Head) -> usize {
    head.index.block_of(&table.meta.min_key).unwrap_or(head.index.blocks())
}

impl RunReader {
    /// At the start of a run, before its first key. `wanted_bytes`: what is likely to be read of it before it is dropped, so
    /// that little is read in vain. `is_long`: of a merge's runs the one with the most to read.
    pub fn new(store: &Arc<Inner>, run: &Run, retired: &Retired, wanted_bytes: u64, is_long: bool) -> Self {
        let piece_bytes = wanted_bytes.clamp(PIECE_BYTES_MIN.into(), PIECE_BYTES_MAX.into()) as u32;
        let are_retired = run.tables().iter().filter(|table| retired.covers_all(&table.meta));
        let first = run.tables().first().and_then(|table| Some((table, table.head()?)));
        let ahead =
            first.and_then(|(table, head)| ask(store, table, &head, first_block(table, &head), piece_bytes));
        Self {
            order: run.order,
            retired: are_retired.map(|table| table.meta.id).collect(),
            tables: run.tables().to_vec().into_iter(),
            opening: None,
            current: None,
            bytes: Bytes::new(),
            bytes_at: 0,
            ahead,
            is_long,
            piece_bytes,
            entries: Vec::new().into_iter(),
            last_key: None,
            is_first: false,
            is_opened: false,
            key: None,
            entry: None,
            entry_bytes: 0,
            taken_bytes: 0,
        }
    }

    /// Whether the next key is the first of a table, or there is none.
    pub fn is_between_tables(&self) -> bool {
        match (&self.key, &self.current) {
            (Some(_), Some(_)) => self.is_first,
            _ => true,
        }
    }

    /// The next entry, which has to be followed by [`RunReader::advance`].
    pub fn take(&mut self) -> (Bytes, Option<KeyEntry>) {
        self.taken_bytes += self.entry_bytes;
        (self.key.take().expect("taken only while there is a key"), self.entry.take())
    }

    /// Goes to the next entry. A table that does not read is set aside, and stays so when this fails.
    pub async fn advance(&mut self, store: &Arc<Inner>) -> Result<(), StoreError> {
        loop {
            match self.try_advance(store).await {
                // Cleaning may have moved the table and its old segment been reused. A pin would forbid that, and keep a
                // full drive from using what it wins meanwhile.
                Err(error) if error.may_be_stale() && self.follow_move(store) => {}
                Err(error) if error.is_of_the_media() => {
                    let table = self.current.as_ref().map(|(table, ..)| table).or(self.opening.as_ref());
                    if let Some(table) = table.filter(|table| !self.retired.contains(&table.meta.id)) {
                        store.set_aside(table, &error);
                        return Err(error);
                    }
                    self.pass_over();
                }
                done => return done,
            }
        }
    }

    /// Leaves out what does not read of a table that nobody looks at: a block, or all of it. What died with its entries is
    /// not counted, which costs no more than a hint.
    fn pass_over(&mut self) {
        match &mut self.current {
            Some((.., block)) => *block += 1,
            None => self.opening = None,
        }
        (self.bytes, self.bytes_at) = (Bytes::new(), 0);
    }

    /// Takes the current table where the manifest has it now. Answers whether that is elsewhere than before.
    fn follow_move(&mut self, store: &Inner) -> bool {
        let Some(table) = self.current.as_mut().map(|(table, ..)| table).or(self.opening.as_mut()) else {
            return false;
        };
        let manifest = lock(&store.manifest);
        let version = &manifest.versions[usize::from(table.meta.slice.0)];
        let Some(now) = version.tables().find(|other| other.meta.id == table.meta.id) else { return false };
        if now.meta.ptr == table.meta.ptr {
            return false;
        }
        *table = now.clone();
        (self.bytes, self.bytes_at) = (Bytes::new(), 0);
        true
    }

    async fn try_advance(&mut self, store: &Arc<Inner>) -> Result<(), StoreError> {
        loop {
            if let Some((key, entry)) = self.entries.next() {
                (self.key, self.entry) = (Some(key), Some(entry));
                self.is_first = std::mem::take(&mut self.is_opened);
                return Ok(());
            }
            let Some((table, head, block)) = &mut self.current else {
                if self.opening.is_none() {
                    self.opening = self.tables.next();
                }
                let Some(table) = &self.opening else {
                    (self.key, self.entry) = (None, None);
                    return Ok(());
                };
                let head = store.head(table).await?;
                let first = first_block(table, &head);
                self.entry_bytes = u64::from(table.meta.ptr.len) / table.meta.entries.max(1);
                self.current = self.opening.take().map(|table| (table, head, first));
                (self.is_opened, self.last_key) = (true, None);
                (self.bytes, self.bytes_at) = (Bytes::new(), 0);
                continue;
            };
            if *block >= head.index.blocks() {
                self.current = None;
                continue;
            }
            let (offset, len) = head.index.place(*block);
            let have = self.bytes_at..self.bytes_at + self.bytes.len() as u32;
            if offset < have.start || offset + len > have.end {
                let asked = self.ahead.take();
                let asked =
                    asked.filter(|it| it.ptr == table.meta.ptr && it.offset == offset && it.len >= len);
                self.bytes = match asked {
                    Some(ahead) => ahead.read.finish().await?,
                    None => store.read_of(table, offset, piece(table, offset, len, self.piece_bytes)).await?,
                };
                self.bytes_at = offset;
                if self.is_long {
                    let end = offset + self.bytes.len() as u32;
                    let is_cut = |&next: &usize| {
                        let (offset, len) = head.index.place(next);
                        offset + len > end
                    };
                    let next = (*block + 1..head.index.blocks()).find(is_cut);
                    self.ahead = next.and_then(|next| ask(store, table, head, next, self.piece_bytes));
                }
            }
            let start = (offset - self.bytes_at) as usize;
            let bytes = self.bytes.slice(start..start + len as usize);
            let verified = Block::verify(table.meta.id, offset, bytes)
                .ok_or_else(|| damaged(table, "a block's checksum does not match"))?;
            let mut entries =
                verified.entries().map_err(|_| damaged(table, "a block's entries do not parse"))?;
            if entries.first().is_some_and(|(key, _)| *key < table.meta.min_key) {
                entries.retain(|(key, _)| *key >= table.meta.min_key);
            }
            // Blocks verify one by one. What is built of them asserts that keys rise, over tables, too.
            if let Some((last, _)) = entries.last() {
                let first = &entries[0].0;
                if self.last_key.as_ref().is_some_and(|before| before >= first) || *last > table.meta.max_key
                {
                    return Err(damaged(table, "its keys are out of order"));
                }
                self.last_key = Some(last.clone());
            }
            self.entries = entries.into_iter();
            *block += 1;
        }
    }
}
