//! Keys found without being named: expired ones, and any one.

use std::ops::Bound;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use pumice_base::rng::Rng;
use pumice_base::sync::lock;
use pumice_reactor::yield_now;

use crate::cache::BlockPlace;
use crate::entry::KeyEntry;
use crate::errors::StoreError;
use crate::scan::{SliceSet, Want};
use crate::slice::SharedMemtable;
use crate::snapshot::under;
use crate::store::Store;
use crate::table::version::Table;
use crate::types::{Direction, Seq, SliceId};

/// Rows looked at while a memtable's lock is held.
const ROWS_AT_ONCE: usize = 2048;
/// Draws before [`Store::random_key`] goes over the first keys instead, and those of them that read a block. Most rows may be of others.
const DRAWS_MAX: u32 = 256;
const BLOCK_DRAWS_MAX: u32 = 32;
/// Keys that it draws from then.
const FIRST_KEYS_MAX: u64 = 256;

/// A table of which something does not read is looked through again after so long.
const UNREADABLE_RESTS_MS: u64 = 60_000;

/// Expired keys being looked for.
struct Looking<F> {
    now_ms: u64,
    limit: usize,
    put_off: F,
    found: Vec<(SliceId, Bytes)>,
}

impl<F: Fn(&[u8]) -> u64> Looking<F> {
    /// From when on a key is wanted that has, or gets, its time at `expire_ms`.
    fn wanted_from(&self, key: &[u8], expire_ms: u64) -> u64 {
        if expire_ms > self.now_ms { expire_ms } else { expire_ms.max((self.put_off)(key)) }
    }

    fn is_enough(&self) -> bool {
        self.found.len() >= self.limit
    }
}

impl Store {
    /// Up to about `limit` keys that expired before `now_ms`, for the caller to delete; those that it does not come again.
    /// Memtables and tables whose earliest expiry lies ahead are not looked at, nor keys under retired prefixes, which nobody
    /// deletes one by one. What does not read is left alone for a while.
    ///
    /// # Errors
    /// As [`Store::get`], but for damage.
    pub async fn expired(&self, now_ms: u64, limit: usize) -> Result<Vec<(SliceId, Bytes)>, StoreError> {
        self.expired_but(now_ms, limit, |_| 0).await
    }

    /// [`Store::expired`] without keys that the caller does not want for now: `put_off` says until when, in milliseconds as
    /// `now_ms`. Called with locks held. What is put off to `u64::MAX` is not looked for any more where it lies now.
    ///
    /// # Errors
    /// As [`Store::expired`].
    pub async fn expired_but(
        &self,
        now_ms: u64,
        limit: usize,
        put_off: impl Fn(&[u8]) -> u64,
    ) -> Result<Vec<(SliceId, Bytes)>, StoreError> {
        let mut looking = Looking { now_ms, limit, put_off, found: Vec::new() };
        for id in 0..self.slice_count() {
            let slice = SliceId(id);
            // Before the tables are looked up, so that none of them is reused.
            let pin = self.inner.heap.pin();
            let (memtables, version) = {
                let state = self.inner.slice(slice);
                let mut memtables = vec![state.active.clone()];
                memtables.extend(state.sealed.iter().cloned());
                (memtables, state.version.clone())
            };
            for memtable in &memtables {
                if looking.is_enough() {
                    break;
                }
                self.expired_rows(slice, memtable, &mut looking).await?;
            }
            for table in version.tables() {
                if looking.is_enough() {
                    break;
                }
                let earliest = table.next_expiry_ms.load(Ordering::Relaxed);
                if earliest != 0 && earliest <= now_ms {
                    match under(&pin, self.expired_entries(table, &mut looking).await) {
                        Err(error) if error.is_of_the_media() => {
                            tracing::warn!(%error, "expired keys of this table stay for now");
                            table.next_expiry_ms.store(now_ms + UNREADABLE_RESTS_MS, Ordering::Relaxed);
                        }
                        done => done?,
                    }
                }
            }
            if looking.is_enough() {
                break;
            }
        }
        Ok(looking.found)
    }

    /// Keeps a key of which this is the newest version, once, unless its prefix was retired.
    async fn keep_newest(
        &self,
        slice: SliceId,
        key: Bytes,
        seq: Seq,
        found: &mut Vec<(SliceId, Bytes)>,
    ) -> Result<(), StoreError> {
        if !self.inner.is_retired(slice, &key)
            && self.inner.find(slice, &key).await?.is_some_and(|newest| newest.seq == seq)
        {
            found.push((slice, key));
        }
        Ok(())
    }

    async fn expired_rows<F: Fn(&[u8]) -> u64>(
        &self,
        slice: SliceId,
        memtable: &SharedMemtable,
        looking: &mut Looking<F>,
    ) -> Result<(), StoreError> {
        let now_ms = looking.now_ms;
        let Some(first) = lock(memtable).begin_expiry_look(now_ms) else { return Ok(()) };
        let (mut from, mut is_round, mut next, mut is_any) = (first, first == 0, u64::MAX, false);
        loop {
            let mut candidates = Vec::new();
            let is_last = {
                let memtable = lock(memtable);
                // It may have been emptied meanwhile, under a reader that is too slow.
                let rows = memtable.len();
                let last = if is_round && first > 0 { first.min(rows) } else { rows };
                let end = (from + ROWS_AT_ONCE).min(last);
                for row in (from..end).map(|number| memtable.nth(number)) {
                    let (seq, expire_ms) = memtable.expiry_of(row);
                    if expire_ms == 0 {
                        continue;
                    }
                    let wanted_ms = looking.wanted_from(memtable.key(row), expire_ms);
                    if wanted_ms <= now_ms {
                        candidates.push((Bytes::copy_from_slice(memtable.key(row)), seq));
                    } else {
                        next = next.min(wanted_ms);
                    }
                }
                from = end;
                let is_last = is_round && end == last;
                if end == last && !is_round {
                    (from, is_round) = (0, true);
                }
                is_last
            };
            is_any |= !candidates.is_empty();
            let mut kept = Ok(());
            for (key, seq) in candidates {
                kept = self.keep_newest(slice, key, seq, &mut looking.found).await;
                if kept.is_err() {
                    break;
                }
            }
            if is_last || looking.is_enough() || kept.is_err() {
                // Those found here come up again only if the caller leaves them and writes others; so does what was not looked at.
                let next = if is_any || !is_last { now_ms } else { next };
                lock(memtable).end_expiry_look(from, next);
                return kept;
            }
            yield_now().await;
        }
    }

    async fn expired_entries<F: Fn(&[u8]) -> u64>(
        &self,
        table: &Table,
        looking: &mut Looking<F>,
    ) -> Result<(), StoreError> {
        let head = self.inner.head(table).await?;
        let blocks = head.index.blocks();
        let (mut next, before, mut unread) = (u64::MAX, looking.found.len(), None);
        // Where the last look ended, and once around: what it passed is dealt with.
        let first = table.expiry_block.load(Ordering::Relaxed) as usize;
        let first = if first < blocks { first } else { 0 };
        for at in (first..blocks).chain(0..first) {
            match self.expired_in_block(table, BlockPlace::of(&head, at), looking).await {
                Ok(later) => next = next.min(later),
                // Those behind it are there to be found.
                Err(error) if error.is_of_the_media() => drop(unread.get_or_insert(error)),
                Err(error) => return Err(error),
            }
            if looking.is_enough() {
                table.expiry_block.store(at as u32, Ordering::Relaxed);
                return Ok(());
            }
            yield_now().await;
        }
        // What was found is looked for again: a full drive may refuse its delete.
        if looking.found.len() == before {
            if let Some(error) = unread {
                return Err(error);
            }
            table.next_expiry_ms.store(if next == u64::MAX { 0 } else { next }, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Answers when the next key of the block is wanted that is not yet.
    async fn expired_in_block<F: Fn(&[u8]) -> u64>(
        &self,
        table: &Table,
        place: BlockPlace,
        looking: &mut Looking<F>,
    ) -> Result<u64, StoreError> {
        let mut next = u64::MAX;
        let block = self.inner.passing_block(table, place).await?;
        let entries = block.entries().map_err(|_| crate::cache::damaged(table, "a block does not parse"))?;
        for (key, entry) in entries {
            if entry.expire_ms == 0 || key < table.meta.min_key {
                continue;
            }
            let wanted_ms = looking.wanted_from(&key, entry.expire_ms);
            if wanted_ms > looking.now_ms {
                next = next.min(wanted_ms);
            } else {
                let key = Bytes::copy_from_slice(&key);
                self.keep_newest(table.meta.slice, key, entry.seq, &mut looking.found).await?;
            }
        }
        Ok(next)
    }

    /// Some key under `prefix` of the slice, near enough to uniform over what tables and memtables hold; `None`
    /// when there is none. Expired keys are found alike.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub async fn random_key(
        &self,
        slice: SliceId,
        prefix: &[u8],
        rng: &mut Rng,
    ) -> Result<Option<Bytes>, StoreError> {
        // Before the tables are looked up, so that none of them is reused.
        let pin = self.inner.heap.pin();
        let (memtables, version) = {
            let state = self.inner.slice(slice);
            let mut memtables = vec![state.active.clone()];
            memtables.extend(state.sealed.iter().cloned());
            (memtables, state.version.clone())
        };
        let overlaps = |table: &&std::sync::Arc<Table>| {
            table.meta.max_key.as_ref() >= prefix
                && (table.meta.min_key.as_ref() <= prefix || table.meta.min_key.starts_with(prefix))
        };
        let tables: Vec<_> = version.tables().filter(overlaps).cloned().collect();
        let rows: u64 = memtables.iter().map(|memtable| lock(memtable).len() as u64).sum();
        let entries: u64 = tables.iter().map(|table| table.meta.entries).sum();
        let mut block_draws = 0;
        for _ in 0..DRAWS_MAX {
            if rows + entries == 0 {
                return Ok(None);
            }
            if block_draws == BLOCK_DRAWS_MAX {
                break;
            }
            let mut draw = rng.below(rows + entries);
            let mut drawn: Option<(Bytes, Option<KeyEntry>)> = None;
            for memtable in &memtables {
                let memtable = lock(memtable);
                let len = memtable.len() as u64;
                if draw < len {
                    let row = memtable.nth(draw as usize);
                    drawn = Some((Bytes::copy_from_slice(memtable.key(row)), memtable.row(row, Seq::MAX)));
                    break;
                }
                draw -= len;
            }
            if drawn.is_none() {
                drawn = under(&pin, self.random_entry(&tables, draw, prefix, rng, &mut block_draws).await)?;
            }
            let Some((key, Some(entry))) = drawn else { continue };
            if !key.starts_with(prefix) || entry.is_tombstone() {
                continue;
            }
            if self.inner.find(slice, &key).await?.is_some_and(|newest| newest.seq == entry.seq) {
                return Ok(Some(key));
            }
        }
        let snapshot = self.snapshot();
        let lower = Bound::Included(Bytes::copy_from_slice(prefix));
        let set = SliceSet::One(slice);
        let mut scan = self.scan(&snapshot, set, lower, Bound::Unbounded, Direction::Forward, Want::Keys);
        let mut drawn = None;
        for passed in 0..FIRST_KEYS_MAX {
            let Some(key) = scan.next().await?.map(|(key, _)| key).filter(|key| key.starts_with(prefix))
            else {
                break;
            };
            // Each of those passed is as likely as any other.
            if rng.below(passed + 1) == 0 {
                drawn = Some(key);
            }
        }
        Ok(drawn)
    }

    async fn random_entry(
        &self,
        tables: &[std::sync::Arc<Table>],
        mut draw: u64,
        prefix: &[u8],
        rng: &mut Rng,
        block_draws: &mut u32,
    ) -> Result<Option<(Bytes, Option<KeyEntry>)>, StoreError> {
        for table in tables {
            if draw >= table.meta.entries {
                draw -= table.meta.entries;
                continue;
            }
            let head = self.inner.head(table).await?;
            if head.index.blocks() == 0 {
                return Ok(None);
            }
            let last = head.index.blocks() - 1;
            let first = head.index.block_of(prefix.max(&table.meta.min_key)).unwrap_or(last);
            let mut end = prefix.to_vec();
            end.resize(prefix.len() + 16, 0xFF);
            let end = head.index.block_of(&end).unwrap_or(last).max(first);
            // The table was drawn for all of its blocks.
            if rng.below(last as u64 + 1) > (end - first) as u64 {
                return Ok(None);
            }
            *block_draws += 1;
            let at = first + rng.below((end - first + 1) as u64) as usize;
            let block = self.inner.block(table, BlockPlace::of(&head, at)).await?;
            let entries =
                block.entries().map_err(|_| crate::cache::damaged(table, "a block does not parse"))?;
            let under: Vec<_> = entries
                .into_iter()
                .filter(|(key, _)| key.starts_with(prefix) && *key >= table.meta.min_key)
                .collect();
            if under.is_empty() {
                return Ok(None);
            }
            let (key, entry) = under[rng.below(under.len() as u64) as usize].clone();
            return Ok(Some((key, Some(entry))));
        }
        Ok(None)
    }
}
