//! The smallest client of a heap: a map from keys to records, checkpointed whole. With it goes the model of what a
//! crash may leave: the state after some prefix of the batches, at least the acknowledged ones.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use pumice_base::rng::Rng;
use pumice_flash::Device;
use pumice_segment::{
    AppendClass, AppendError, Heap, HeapOptions, MetaEdit, MovedRecord, Outline, RecordIn, RecordPtr, Stream,
};

fn no_progress(_: u64, _: u64) {}

pub const PUT: u8 = 1;
pub const DELETE: u8 = 2;

/// A write of one key: the value's seed and length, or a delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    pub key: u16,
    pub value: Option<(u64, usize)>,
}

pub fn value_bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::from_seed(seed).fill(&mut bytes);
    bytes
}

/// Every batch that was issued, in order; survives power cuts.
#[derive(Clone, Default)]
pub struct History {
    pub batches: Vec<Vec<Write>>,
    /// Batches that were acknowledged.
    pub acknowledged: usize,
}

impl History {
    pub fn state_after(&self, batches: usize) -> BTreeMap<u16, (u64, usize)> {
        let mut state = BTreeMap::new();
        for write in self.batches[..batches].iter().flatten() {
            match write.value {
                Some(value) => state.insert(write.key, value),
                None => state.remove(&write.key),
            };
        }
        state
    }
}

pub struct Mini {
    pub heap: Heap,
    /// Sequence number and place of each key's newest record.
    map: BTreeMap<u16, (u64, RecordPtr)>,
    /// Batches applied, by the last record's sequence number.
    pub batches: usize,
    relocated: Arc<Mutex<Vec<(RecordPtr, RecordPtr)>>>,
}

fn encode(map: &BTreeMap<u16, (u64, RecordPtr)>, batches: usize) -> Bytes {
    let mut out = (batches as u64).to_le_bytes().to_vec();
    for (key, (seq, ptr)) in map {
        out.extend(key.to_le_bytes());
        out.extend(seq.to_le_bytes());
        out.extend(ptr.addr.0.to_le_bytes());
        out.extend(ptr.len.to_le_bytes());
    }
    out.into()
}

fn decode(bytes: &[u8]) -> (BTreeMap<u16, (u64, RecordPtr)>, usize) {
    let mut map = BTreeMap::new();
    let batches = u64::from_le_bytes(bytes[..8].try_into().expect("8 B")) as usize;
    for entry in bytes[8..].chunks_exact(22) {
        let key = u16::from_le_bytes(entry[..2].try_into().expect("2 B"));
        let seq = u64::from_le_bytes(entry[2..10].try_into().expect("8 B"));
        let addr = u64::from_le_bytes(entry[10..18].try_into().expect("8 B"));
        let len = u32::from_le_bytes(entry[18..22].try_into().expect("4 B"));
        map.insert(key, (seq, RecordPtr { addr: pumice_segment::Addr(addr), len }));
    }
    (map, batches)
}

impl Mini {
    /// Opens the drive; what was acknowledged must be there.
    pub async fn open(device: &Device, options: HeapOptions) -> Result<Self, String> {
        let mut opened =
            Heap::open(device.clone(), options, &no_progress).await.map_err(|e| e.to_string())?;
        let (mut map, mut batches) = match opened.client_state.last() {
            Some(state) => decode(state),
            None => (BTreeMap::new(), 0),
        };
        let mut moved = Vec::new();
        while let Some(batch) = opened.replay.next().await.map_err(|e| e.to_string())? {
            if !batch.damage.is_empty() {
                return Err(format!("damage: {:?}", batch.damage));
            }
            for record in batch.records {
                let key = u16::from_le_bytes(record.payload[..2].try_into().expect("2 B"));
                let number = u64::from_le_bytes(record.payload[2..10].try_into().expect("8 B")) as usize;
                if batch.stream == Stream::Moved {
                    moved.push((key, record.seq, record.ptr));
                    continue;
                }
                batches = batches.max(number);
                match record.kind {
                    PUT => map.insert(key, (record.seq, record.ptr)),
                    _ => map.remove(&key),
                };
            }
        }
        for (key, seq, ptr) in moved {
            if let Some(entry) = map.get_mut(&key)
                && entry.0 == seq
            {
                entry.1 = ptr;
            }
        }
        let relocated = Arc::new(Mutex::new(Vec::new()));
        let told = relocated.clone();
        opened.heap.on_relocated(Arc::new(move |pairs| told.lock().expect("lock").extend_from_slice(pairs)));
        Ok(Self { heap: opened.heap, map, batches, relocated })
    }

    /// Every key and where its record is.
    pub fn entries(&self) -> impl Iterator<Item = (u16, RecordPtr)> + '_ {
        self.map.iter().map(|(key, (_, ptr))| (*key, *ptr))
    }

    /// Reads everything back and compares it with the history.
    pub async fn verify(&self, history: &History) -> Result<(), String> {
        if self.batches < history.acknowledged || self.batches > history.batches.len() {
            return Err(format!(
                "{} batches after the crash, {} were acknowledged, {} issued",
                self.batches,
                history.acknowledged,
                history.batches.len()
            ));
        }
        let expected = history.state_after(self.batches);
        let keys: Vec<u16> = self.map.keys().copied().collect();
        let wanted: Vec<u16> = expected.keys().copied().collect();
        if keys != wanted {
            return Err(format!("keys {keys:?} instead of {wanted:?}"));
        }
        for (key, (_, ptr)) in &self.map {
            let record = self.heap.read(*ptr).await.map_err(|e| format!("key {key}: {e}"))?;
            let (seed, len) = expected[key];
            if record.payload[10..] != value_bytes(seed, len) {
                return Err(format!("key {key} reads wrong data at {ptr}"));
            }
        }
        let space = self.heap.space();
        if space.accounted() != space.raw {
            return Err(format!("space does not add up: {space:?}"));
        }
        Ok(())
    }

    /// One batch, waited for. An error is a power cut or the like.
    pub async fn write(&mut self, history: &mut History, batch: Vec<Write>) -> Result<(), String> {
        let mut issued = |done: usize, batch: &[Write]| {
            history.batches.truncate(done);
            history.batches.push(batch.to_vec());
        };
        let last = self.append(&mut issued, batch).await?;
        self.durable(last).await?;
        history.acknowledged = self.batches;
        Ok(())
    }

    /// Appends a batch, waiting for room; returns its last sequence number. `issued` learns of it together with the
    /// heap.
    async fn append(
        &mut self,
        issued: &mut dyn FnMut(usize, &[Write]),
        batch: Vec<Write>,
    ) -> Result<u64, String> {
        let number = self.batches as u64 + 1;
        let mut payloads = Vec::new();
        for write in &batch {
            let mut payload = write.key.to_le_bytes().to_vec();
            payload.extend(number.to_le_bytes());
            if let Some((seed, len)) = write.value {
                payload.extend(value_bytes(seed, len));
            }
            payloads.push((if write.value.is_some() { PUT } else { DELETE }, payload));
        }
        let parts: Vec<[&[u8]; 1]> = payloads.iter().map(|(_, payload)| [&payload[..]]).collect();
        let records: Vec<RecordIn<'_>> = payloads
            .iter()
            .zip(&parts)
            .map(|((kind, _), parts)| RecordIn { kind: *kind, parts, outline: Outline::Whole })
            .collect();
        let class = if batch.iter().all(|write| write.value.is_none()) {
            AppendClass::Delete
        } else {
            AppendClass::User
        };
        let mut tries = 0;
        let appended = loop {
            match self.heap.append(&records, class) {
                Ok(appended) => break appended,
                Err(AppendError::Busy) if tries < 200 => {
                    tries += 1;
                    if tries % 4 == 3 {
                        self.checkpoint().await?;
                        self.clean().await?;
                        self.checkpoint().await?;
                    }
                    self.heap.room().await;
                }
                Err(error) => return Err(error.to_string()),
            }
        };
        issued(self.batches, &batch);
        self.batches += 1;
        for (index, (write, ptr)) in batch.iter().zip(&appended.ptrs).enumerate() {
            let old = match write.value {
                Some(_) => self.map.insert(write.key, (appended.first_seq + index as u64, *ptr)),
                None => self.map.remove(&write.key),
            };
            if let Some((_, old)) = old {
                self.heap.mark_dead(old);
            }
            if write.value.is_none() {
                self.heap.mark_dead(*ptr);
            }
        }
        Ok(appended.first_seq + batch.len() as u64 - 1)
    }

    async fn durable(&mut self, seq: u64) -> Result<(), String> {
        self.heap.wait_durable(seq).await.map_err(|e| e.to_string())?;
        self.apply_relocations();
        Ok(())
    }

    /// Pointers of records that are durable do not change any more.
    fn apply_relocations(&mut self) {
        for (old, new) in self.relocated.lock().expect("lock").drain(..) {
            for entry in self.map.values_mut().filter(|entry| entry.1 == old) {
                entry.1 = new;
            }
        }
    }

    pub async fn checkpoint(&mut self) -> Result<(), String> {
        let last = self.heap.last_seq();
        self.heap.flush().await.map_err(|e| e.to_string())?;
        self.apply_relocations();
        let state = encode(&self.map, self.batches);
        self.heap.commit_meta(MetaEdit::Snapshot(state), last).await.map_err(|e| e.to_string())
    }

    /// Cleans one segment, if one is worth it.
    pub async fn clean(&mut self) -> Result<(), String> {
        let Some(segment) = self.heap.victim(|_| 0) else { return Ok(()) };
        let contents = self.heap.contents(segment).await.map_err(|e| e.to_string())?;
        if !contents.damage.is_empty() {
            return Err(format!("damage: {:?}", contents.damage));
        }
        let mut moved = Vec::new();
        for record in contents.records {
            let key = u16::from_le_bytes(record.payload[..2].try_into().expect("2 B"));
            if self.map.get(&key).is_some_and(|entry| entry.1 == record.ptr) {
                moved
                    .push((key, MovedRecord { seq: record.seq, kind: record.kind, payload: record.payload }));
            }
        }
        if !moved.is_empty() {
            let (keys, records): (Vec<_>, Vec<_>) = moved.into_iter().unzip();
            let written = self.heap.write_moved(records).await.map_err(|e| e.to_string())?;
            for (key, ptr) in keys.iter().zip(&written.ptrs) {
                if let Some(entry) = self.map.get_mut(key) {
                    entry.1 = *ptr;
                }
            }
            drop(written.ticket);
        }
        self.heap.release(segment);
        Ok(())
    }

    /// [`Mini::step`] for tasks that may be stopped at any await: the history is whole at each of them.
    pub async fn step_shared(
        &mut self,
        history: &RefCell<History>,
        rng: &mut Rng,
        keys: u64,
        value_max: u64,
    ) -> Result<(), String> {
        let mut batch = Vec::new();
        match self.draw(rng, keys, value_max, &mut batch) {
            Step::Checkpoint => self.checkpoint().await,
            Step::Clean => self.clean().await,
            Step::Write => {
                let last = self
                    .append(
                        &mut |done, batch| {
                            let mut history = history.borrow_mut();
                            history.batches.truncate(done);
                            history.batches.push(batch.to_vec());
                        },
                        batch,
                    )
                    .await?;
                self.durable(last).await?;
                history.borrow_mut().acknowledged = self.batches;
                Ok(())
            }
        }
    }

    /// One step of a random workload over `keys` keys.
    pub async fn step(
        &mut self,
        history: &mut History,
        rng: &mut Rng,
        keys: u64,
        value_max: u64,
    ) -> Result<(), String> {
        let mut batch = Vec::new();
        match self.draw(rng, keys, value_max, &mut batch) {
            Step::Checkpoint => self.checkpoint().await,
            Step::Clean => self.clean().await,
            Step::Write => self.write(history, batch).await,
        }
    }

    fn draw(&self, rng: &mut Rng, keys: u64, value_max: u64, batch: &mut Vec<Write>) -> Step {
        match rng.below(20) {
            0 => return Step::Checkpoint,
            1 | 2 => return Step::Clean,
            _ => {}
        }
        for _ in 0..=rng.below(4) {
            let key = rng.below(keys) as u16;
            let value = (!rng.chance(0.15)).then(|| (rng.next_u64(), rng.below(value_max + 1) as usize));
            if !batch.iter().any(|write| write.key == key) {
                batch.push(Write { key, value });
            }
        }
        Step::Write
    }
}

enum Step {
    Checkpoint,
    Clean,
    Write,
}
