//! Where a merge's entries come from: runs read in key order.

use std::sync::Arc;

use bytes::Bytes;

use crate::block::Block;
use crate::cache::damaged;
use crate::entry::KeyEntry;
use crate::errors::StoreError;
use crate::retired::Retired;
use crate::slice::lock;
use crate::store::Inner;
use crate::table::Head;
use crate::version::{Run, RunOrder, Table};

/// Bytes read of an input at a time.
const READ_BYTES: u32 = 128 * 1024;

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
    entries: std::vec::IntoIter<(Bytes, KeyEntry)>,
    /// The next key; `None` at the end.
    pub key: Option<Bytes>,
    entry: Option<KeyEntry>,
    /// Bytes of an entry of the current table, on average.
    entry_bytes: u64,
    /// Bytes of those that were taken.
    pub taken_bytes: u64,
}

impl RunReader {
    /// At the start of a run, before its first key.
    pub fn new(run: &Run, retired: &Retired) -> Self {
        let are_retired = run.tables.iter().filter(|table| retired.covers_all(&table.meta));
        Self {
            order: run.order,
            retired: are_retired.map(|table| table.meta.id).collect(),
            tables: run.tables.clone().into_iter(),
            opening: None,
            current: None,
            bytes: Bytes::new(),
            bytes_at: 0,
            entries: Vec::new().into_iter(),
            key: None,
            entry: None,
            entry_bytes: 0,
            taken_bytes: 0,
        }
    }

    /// Whether the next key is the first of a table, or there is none.
    pub fn is_between_tables(&self) -> bool {
        match (&self.key, &self.current) {
            (Some(key), Some((table, ..))) => *key == table.meta.min_key,
            _ => true,
        }
    }

    /// The next entry, which has to be followed by [`RunReader::advance`].
    pub fn take(&mut self) -> (Bytes, Option<KeyEntry>) {
        self.taken_bytes += self.entry_bytes;
        (self.key.take().expect("taken only while there is a key"), self.entry.take())
    }

    /// Goes to the next entry. A table that does not read is set aside, and stays so when this fails.
    pub async fn advance(&mut self, store: &Inner) -> Result<(), StoreError> {
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

    async fn try_advance(&mut self, store: &Inner) -> Result<(), StoreError> {
        loop {
            if let Some((key, entry)) = self.entries.next() {
                (self.key, self.entry) = (Some(key), Some(entry));
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
                let first = head.index.block_of(&table.meta.min_key).unwrap_or(head.index.blocks());
                self.entry_bytes = u64::from(table.meta.ptr.len) / table.meta.entries.max(1);
                self.current = self.opening.take().map(|table| (table, head, first));
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
                let read = READ_BYTES.max(len).min(table.meta.head_at - offset);
                self.bytes = store.read_of(table, offset, read).await?;
                self.bytes_at = offset;
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
            self.entries = entries.into_iter();
            *block += 1;
        }
    }
}
