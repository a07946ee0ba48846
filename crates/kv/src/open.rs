//! Making, opening and closing a store.
//!
//! Opening: the manifest's changes give the tables; what the log holds above the checkpoint goes into the
//! memtables again. After a clean close there is nothing to replay.
//!
//! A log may hold more than this server's memory does: the drive was another's, or the server was given less. Then as much of its
//! beginning as there is memory for is replayed and put into key tables, a checkpoint is made there, and the store is opened anew.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock};

use bytes::Bytes;
use pumice_base::hash::HashMap;
use pumice_base::sync::lock;
use pumice_flash::Device;
use pumice_reactor::sync::Semaphore;
use pumice_segment::layout::COUNT_MAX;
use pumice_segment::{Damage, FormatOptions, Heap, HeapOptions, MetaEdit, Replayed, Stream};

use crate::ahead::Indexes;
use crate::background::Background;
use crate::cache::TableCache;
use crate::cache::lending::Lending;
use crate::clean::SEAL_TURNS;
use crate::clean::relocate::Relocated;
use crate::errors::{OpenError, StoreError};
use crate::large::{LargeRef, LargeValues};
use crate::manifest::{self, Manifest, set_tally};
use crate::memtable::{Memtables, NewBody, NewVersion};
use crate::merge::Merges;
use crate::metadata_room::MetadataRoom;
use crate::options::{Budget, StoreFormat, StoreOptions, fitting_segment_bytes, to_replay};
use crate::record;
use crate::rewrites::Rewrites;
use crate::scan::room::ScanRooms;
use crate::slice::Slice;
use crate::snapshot::Snapshots;
use crate::stats::{Counter, Counters};
use crate::store::{Inner, Store};
use crate::table::TABLE_BYTES;
use crate::types::Seq;

const CONFIG_VERSION: u32 = 2;
const CONFIG_HEAD_BYTES: usize = 8;

/// Bytes done and bytes to do.
pub type Progress<'a> = &'a dyn Fn(u64, u64);

/// A store that was opened.
pub struct Opened {
    /// The store; start its background work with [`Store::start_background`].
    pub store: Store,
    /// Whether it had been closed cleanly.
    pub clean: bool,
    /// Records replayed from the log.
    pub replayed: u64,
    /// In how many parts: more than one where memory had no room for all.
    pub parts: u32,
    /// What was once durable and does not verify any more.
    pub damage: Vec<Damage>,
}

impl Store {
    /// Makes `device` an empty store.
    ///
    /// # Errors
    /// When it is a drive already and `force` is not set, or too small.
    pub async fn format(device: &Device, format: &StoreFormat) -> Result<(), OpenError> {
        if format.slices == 0 || format.slices > 1024 {
            return Err(OpenError::Manifest(format!("{} slices: choose 1 to 1,024", format.slices)));
        }
        let mut config = Vec::with_capacity(CONFIG_HEAD_BYTES + format.config.len());
        config.extend_from_slice(&CONFIG_VERSION.to_le_bytes());
        config.extend_from_slice(&format.slices.to_le_bytes());
        config.extend_from_slice(&format.inline_max.to_le_bytes());
        config.extend_from_slice(&format.config);
        let options = FormatOptions {
            segment_bytes: format.segment_bytes.unwrap_or_else(|| fitting_segment_bytes(device.raw_bytes())),
            channels: format.channels,
            drive_id: format.drive_id,
            config: Bytes::from(config),
            force: format.force,
            prewrite: format.prewrite.clone(),
        };
        Ok(Heap::format(device, &options).await?)
    }

    /// Opens a store and replays what the log holds above its checkpoint, in memory that its options allow. `progress` hears bytes of
    /// the log.
    ///
    /// # Errors
    /// When the device holds no store, or one of a newer version, or its metadata are damaged.
    pub async fn open(
        device: Device,
        options: StoreOptions,
        progress: Progress<'_>,
    ) -> Result<Opened, OpenError> {
        let (mut replayed, mut parts, mut damage) = (0, 0, Vec::new());
        // What must not be written takes what memory it takes, and so does what has no room for key tables.
        let mut in_parts = !device.is_read_only();
        let (first, furthest) = (Cell::new(None), Cell::new(0));
        // Each part goes on with the rest of what there was at first.
        let progress = |done: u64, rest: u64| {
            let all = first.get().unwrap_or(rest);
            first.set(Some(all));
            furthest.set(furthest.get().max((all.saturating_sub(rest) + done).min(all)));
            progress(furthest.get(), all);
        };
        loop {
            let (mut opened, part) =
                Self::open_part(device.clone(), options.clone(), &progress, in_parts).await?;
            for found in std::mem::take(&mut opened.damage) {
                // It may be found again as long as the log is replayed from before it.
                if !damage.contains(&found) {
                    damage.push(found);
                }
            }
            parts += 1;
            let Some(part) = part else {
                let replayed = replayed + opened.replayed;
                return Ok(Opened { replayed, parts, damage, ..opened });
            };
            match opened.store.put_away(part).await {
                Ok(()) => {
                    tracing::info!(
                        "{} records of the log are put away, more than memory holds",
                        opened.replayed
                    );
                    replayed += opened.replayed;
                }
                Err(error) => {
                    tracing::warn!(%error, "the log is replayed at once, and takes more than memory was given");
                    in_parts = false;
                }
            }
        }
    }

    /// Puts what was replayed, all up to `part`, into key tables, and closes the drive, so that the next opening goes on from there.
    async fn put_away(&self, part: Seq) -> Result<(), StoreError> {
        // Nobody makes room meanwhile: what finds none is not to wait for it.
        self.inner.stop_background().await;
        let flushed = self.inner.flush_up_to(Some(part)).await;
        // In any case: nothing may be on its way when the drive is opened anew. What fails here fails there again.
        let closed = self.inner.heap.close_with_log().await;
        flushed?;
        closed
            .map_err(|error| StoreError::Write { what: "the closing mark".into(), reason: error.to_string() })
    }

    /// Opens a store. Where the rest of the log has no room in memory, `in_parts`, also answers up to which number it was replayed.
    async fn open_part(
        device: Device,
        options: StoreOptions,
        progress: Progress<'_>,
        in_parts: bool,
    ) -> Result<(Opened, Option<Seq>), OpenError> {
        let channels = device.geometry().channels;
        let heap_budget = Budget::of(&options, channels, u64::MAX);
        let defaults = HeapOptions::default();
        let heap_options = HeapOptions {
            durability: options.durability,
            reserve_segments: options.reserve_segments,
            tail_bytes: heap_budget.tail as usize,
            undurable_max_bytes: heap_budget.undurable as usize,
            replay_window_bytes: options.replay_window_bytes.unwrap_or(defaults.replay_window_bytes),
            ..defaults
        };
        let opened = Heap::open(device, heap_options, progress).await?;
        let (heap, mut replay) = (opened.heap, opened.replay);
        let budget = Budget::of(&options, channels, heap.reserve_bytes());
        for segment in opened.renewed {
            tracing::warn!(
                "the superblock in {segment} did not verify, and was written again as the other one says"
            );
        }
        let (slices, inline_max, config) = read_config(&heap.config())?;
        let mut manifest = Manifest::new(usize::from(slices));
        for record in &opened.client_state {
            let changes = manifest::decode(record).map_err(OpenError::Manifest)?;
            manifest
                .load(&changes)
                .map_err(|what| OpenError::Manifest(format!("{what}; restore the drive from a copy")))?;
        }
        let checkpoint = manifest.checkpoint;
        let segment_bytes = heap.segment_bytes() as usize;
        let metadata_bytes_max = heap.metadata_bytes_max();
        let segments = (heap.space().raw / u64::from(heap.segment_bytes()).max(1)) as u32;
        let states = manifest.versions.iter().map(|version| {
            let mut slice = Slice::new(budget.rows / u64::from(slices));
            slice.version = version.clone();
            Mutex::new(slice)
        });
        let inner = Arc::new(Inner {
            slices: states.collect(),
            indexes: (0..slices).map(|_| Indexes::default()).collect(),
            cache: TableCache::new(usize::from(slices), budget.tables),
            heap,
            options,
            inline_max,
            budget,
            config,
            snapshots: Snapshots::default(),
            tallies: Mutex::new(manifest.tallies.clone()),
            manifest: Mutex::new(manifest),
            commit_turn: Semaphore::new(1),
            victims_bytes: budget.victims,
            seal_turn: Semaphore::new(SEAL_TURNS),
            table_bytes: TABLE_BYTES.min(segment_bytes / 4),
            segments,
            flush_turn: Semaphore::new(1),
            merges: Merges::default(),
            large: LargeValues::new(segment_bytes, &budget, opened.clean),
            key_names: OnceLock::new(),
            uncounted: Mutex::default(),
            released_at: Mutex::default(),
            memtables: Memtables::default(),
            accepted: Counter::default(),
            rewrites: Rewrites::default(),
            lending: Lending::default(),
            metadata_room: MetadataRoom::new(metadata_bytes_max),
            background: Background::default(),
            scan_rooms: ScanRooms::new(budget.scans),
            making: Mutex::default(),
            relocated: Relocated::default(),
            counters: Counters::default(),
        });
        inner.follow_relocations();
        inner.sweep_heads();
        let (mut replayed, mut damage) = (0, Vec::new());
        let mut part: Option<Seq> = None;
        loop {
            // What is read beyond a part is read again.
            let goes_on = part.is_none();
            let told = |done, all| {
                if goes_on {
                    progress(done, all)
                }
            };
            let Some(batch) = replay.next_telling(&told).await? else { break };
            damage.extend(batch.damage);
            for record in batch.records.iter().filter(|record| record.seq > checkpoint) {
                // Moved ones come last, with the numbers that they have had before.
                if record.seq <= part.unwrap_or(Seq::MAX) {
                    inner.replay(record)?;
                    replayed += 1;
                } else if record.kind == record::RETIRE {
                    // A key table never holds keys under a prefix that was retired with a lower number than its own, and those of
                    // this part have higher ones than all of the log.
                    inner.replay_retired(record)?;
                }
            }
            let is_much = inner.memtables.active_bytes.load(Ordering::Relaxed) > budget.replayed;
            if let (true, true, None, Stream::Commit, Some(last)) =
                (in_parts, is_much, part, batch.stream, batch.records.last())
            {
                part = Some(last.seq);
            }
        }
        if !opened.clean {
            inner.count_tables_anew();
        }
        // What the memtables hold now is not lent any more.
        inner.take_back_lent();
        // Nothing may have followed.
        let part = part.filter(|part| *part < inner.heap.last_seq());
        Ok((Opened { store: Self { inner }, clean: opened.clean, replayed, parts: 1, damage }, part))
    }

    /// Stops background work and leaves everything as it is: the next open finds what a crash would have left.
    pub async fn abandon(&self) {
        self.inner.stop_background().await;
        // What is on its way must not reach the device after another has opened it.
        let _ = self.inner.heap.flush().await;
    }

    /// Stops background work, puts everything into key tables and closes the drive cleanly, so that the next open
    /// replays nothing.
    ///
    /// # Errors
    /// When the drive fails; what was acknowledged is safe all the same.
    pub async fn close(&self) -> Result<(), StoreError> {
        let inner = &self.inner;
        // While cleaning is there to make room for it: what is written from here on needs little.
        if inner.heap.read_only().is_none()
            && let Err(error) = inner.flush().await
        {
            tracing::info!(%error, "the flush before closing failed, another follows");
        }
        inner.stop_background().await;
        let failed = |what: &str, reason: String| StoreError::Write { what: what.into(), reason };
        if inner.heap.read_only().is_none() {
            inner.flush().await?;
            // What is not told by now is forgotten, and would count as alive for ever.
            while inner.knows_of_dead_large_values() {
                inner.bury_large_values().await;
            }
        }
        inner.heap.close().await.map_err(|error| failed("the closing mark", error.to_string()))
    }
}

/// The number of slices, the longest value that lies beside its key, and what the layer above stored.
///
/// # Errors
/// When it is no store's, or one of a newer version.
pub fn read_config(config: &Bytes) -> Result<(u16, usize, Bytes), OpenError> {
    let head = config
        .get(..CONFIG_HEAD_BYTES)
        .ok_or_else(|| OpenError::Manifest("no store on this drive".into()))?;
    let version = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
    if version != CONFIG_VERSION {
        return Err(OpenError::Manifest(format!(
            "store version {version}; this build knows {CONFIG_VERSION}: use a newer Pumice"
        )));
    }
    let slices = u16::from_le_bytes([head[4], head[5]]);
    if slices == 0 || slices > 1024 {
        return Err(OpenError::Manifest(format!("{slices} slices")));
    }
    let inline_max = u16::from_le_bytes([head[6], head[7]]);
    Ok((slices, usize::from(inline_max), config.slice(CONFIG_HEAD_BYTES..)))
}

impl Inner {
    /// Corrects the hints of segments of key tables: what a crash left there of tables that nobody named yet counts as alive,
    /// and nobody would ever tell that it is dead.
    fn count_tables_anew(&self) {
        let mut live: BTreeMap<u32, u32> = BTreeMap::new();
        for table in lock(&self.manifest).versions.iter().flat_map(|version| version.tables()) {
            let bytes = live.entry(table.meta.ptr.addr.segment().0).or_default();
            *bytes = bytes.saturating_add(table.meta.ptr.len);
        }
        for segment in self.heap.segments_in_use() {
            if self.heap.stream_of(segment) == Some(Stream::Table) {
                self.heap.set_live(segment, live.get(&segment.0).copied().unwrap_or(0));
            }
        }
    }

    /// From here on the keys under the record's prefix are gone.
    fn replay_retired(&self, record: &Replayed) -> Result<(), OpenError> {
        let bad = |reason: &str| OpenError::Replay { seq: record.seq, slice: None, reason: reason.into() };
        let owner = record::decode_key(&record.payload).ok_or_else(|| bad("a record does not parse"))?;
        lock(&self.manifest).retired_mut().add(owner.slice, &record.payload[owner.key], record.seq);
        Ok(())
    }

    /// Applies one record of the log.
    fn replay(&self, record: &Replayed) -> Result<(), OpenError> {
        let payload = &record.payload;
        let bad = |slice, reason: &str| OpenError::Replay { seq: record.seq, slice, reason: reason.into() };
        self.memtables.log_bytes.fetch_add(to_replay(record.ptr), Ordering::Relaxed);
        if record.kind == record::TALLY {
            let (space, delta) =
                record::decode_tally(payload).ok_or_else(|| bad(None, "a tally does not parse"))?;
            let mut tallies = lock(&self.tallies);
            let before = tallies.get(&space).copied().unwrap_or(0);
            let sum = before.checked_add(delta).filter(|sum| sum.unsigned_abs() <= COUNT_MAX);
            set_tally(
                &mut tallies,
                space,
                sum.ok_or_else(|| bad(None, "a tally counts further than anybody could"))?,
            );
            drop(tallies);
            self.heap.mark_dead(record.ptr);
            return Ok(());
        }
        let owner = record::decode_key(payload).ok_or_else(|| bad(None, "a record does not parse"))?;
        if usize::from(owner.slice.0) >= self.slices.len() {
            return Err(bad(Some(owner.slice), "there is no such slice"));
        }
        let key = &payload[owner.key.clone()];
        let value = &payload[owner.rest.clone()];
        let large = record.kind == record::PUT_LARGE;
        let again = record.kind == record::PUT_AGAIN;
        let place = again.then(|| record::decode_value_place(value)).flatten();
        let value_len = if large {
            LargeRef::decode(value)
                .ok_or_else(|| bad(Some(owner.slice), "a list of pieces does not parse"))?
                .len()
        } else {
            place.map_or(value.len() as u64, |place| u64::from(place.value_len))
        };
        let body = match record.kind {
            record::PUT | record::PUT_LARGE if value.len() <= self.inline_max => NewBody::Inline(value),
            record::PUT | record::PUT_LARGE => NewBody::Record(record.ptr),
            record::PUT_AGAIN => {
                let place = place.filter(|place| self.heap.stream_of(place.ptr.addr.segment()).is_some());
                let bad = || bad(Some(owner.slice), "the place of a value does not parse");
                NewBody::Record(place.ok_or_else(bad)?.ptr)
            }
            record::DELETE => NewBody::Tombstone,
            record::RETIRE => {
                self.heap.mark_dead(record.ptr);
                return self.replay_retired(record);
            }
            kind => return Err(bad(Some(owner.slice), &format!("kind {kind} is unknown"))),
        };
        let new = NewVersion {
            seq: record.seq,
            expire_ms: owner.expire_ms,
            tag: owner.tag,
            large,
            value_len,
            counted: again,
            on_flash: again,
            new_key: false,
            body,
        };
        let grown = self.insert(owner.slice, &mut self.slice(owner.slice), key, &new, record.ptr, None);
        self.memtables.active_bytes.fetch_add(grown as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Writes changes of the manifest, durable on return, and applies them.
    pub async fn commit(
        &self,
        changes: &[manifest::Change],
        heads: &HashMap<u64, Arc<crate::table::Head>>,
    ) -> Result<(), StoreError> {
        let failed = |reason: String| StoreError::Write { what: "the manifest".into(), reason };
        let (edit, checkpoint) = {
            let mut next = lock(&self.manifest);
            next.apply(changes, heads).map_err(failed)?;
            let edit = if self.heap.wants_snapshot() {
                MetaEdit::Snapshot(manifest::encode(&next.snapshot()))
            } else {
                MetaEdit::Edit(manifest::encode(changes))
            };
            (edit, next.checkpoint)
        };
        self.heap.commit_meta(edit, checkpoint).await.map_err(|error| failed(error.to_string()))
    }
}
