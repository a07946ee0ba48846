//! Watched keys: which clients asked to be told when a key changes (WATCH).
//!
//! A write to a key raises the flag of every client that watches it; EXEC looks at its own flag and never at
//! the registry. While nobody watches anything, a write pays one relaxed load.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use pumice_base::hash::HashMap;
use pumice_base::sync::lock;

use crate::latch::KeyHash;

const SHARDS: usize = 64;

/// One client's flag: raised once any key it watches has changed.
#[derive(Debug, Default)]
pub struct WatchFlag {
    touched: AtomicBool,
}

impl WatchFlag {
    /// True when a watched key has changed since [`WatchFlag::reset`].
    pub fn is_touched(&self) -> bool {
        self.touched.load(Ordering::Acquire)
    }

    /// Lowers the flag; call it before watching anew.
    pub fn reset(&self) {
        self.touched.store(false, Ordering::Release);
    }

    /// Raises the flag.
    pub fn touch(&self) {
        self.touched.store(true, Ordering::Release);
    }
}

struct Watched {
    space: u32,
    key: Bytes,
    /// In the order of [`address`], so that one among many is found without looking at all.
    flags: Vec<Arc<WatchFlag>>,
}

impl Watched {
    fn place_of(&self, flag: &Arc<WatchFlag>, compared: &mut u64) -> Result<usize, usize> {
        self.flags.binary_search_by(|known| {
            *compared += 1;
            address(known).cmp(&address(flag))
        })
    }
}

/// Tells flags apart, and puts them in an order that means nothing.
fn address(flag: &Arc<WatchFlag>) -> usize {
    Arc::as_ptr(flag).addr()
}

/// What [`Watches::watch`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watching {
    /// Whether the client did not watch the key before.
    pub is_new: bool,
    /// Keys and clients that were compared to find out.
    pub compared: u64,
}

/// Every watched key of one server. Cheap to clone; any core may use it.
#[derive(Clone)]
pub struct Watches {
    inner: Arc<Inner>,
}

type Shard = HashMap<KeyHash, Vec<Watched>>;

struct Inner {
    /// Watched (key, client) pairs over all shards: zero means that writes need not look.
    count: AtomicU64,
    shards: Box<[Mutex<Shard>]>,
}

impl Default for Watches {
    fn default() -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::new(HashMap::default())).collect();
        Self { inner: Arc::new(Inner { count: AtomicU64::new(0), shards }) }
    }
}

impl Watches {
    fn shard(&self, hash: KeyHash) -> MutexGuard<'_, Shard> {
        // Nothing under this lock panics half-way: a poisoned map is still whole.
        lock(&self.inner.shards[hash.0 as usize % SHARDS])
    }

    /// Starts to watch `key` of `space` for the client that owns `flag`. Watching twice changes nothing.
    ///
    /// Hold the key's latch: a change is then either seen by the read that follows or raises the flag.
    pub fn watch(&self, space: u32, key: &[u8], flag: &Arc<WatchFlag>) -> Watching {
        let hash = KeyHash::of(space, key);
        let mut shard = self.shard(hash);
        let entries = shard.entry(hash).or_default();
        let mut compared = entries.len() as u64;
        let place = match entries.iter().position(|e| e.space == space && e.key == key) {
            Some(place) => place,
            None => {
                entries.push(Watched { space, key: Bytes::copy_from_slice(key), flags: Vec::new() });
                entries.len() - 1
            }
        };
        let entry = &mut entries[place];
        let found = entry.place_of(flag, &mut compared);
        if let Err(at) = found {
            entry.flags.insert(at, flag.clone());
            self.inner.count.fetch_add(1, Ordering::SeqCst);
        }
        Watching { is_new: found.is_err(), compared }
    }

    /// Stops watching `key` of `space` for the client that owns `flag`.
    pub fn unwatch(&self, space: u32, key: &[u8], flag: &Arc<WatchFlag>) {
        let hash = KeyHash::of(space, key);
        let mut shard = self.shard(hash);
        let Some(entries) = shard.get_mut(&hash) else { return };
        for entry in entries.iter_mut().filter(|e| e.space == space && e.key == key) {
            if let Ok(at) = entry.place_of(flag, &mut 0) {
                entry.flags.remove(at);
                self.inner.count.fetch_sub(1, Ordering::SeqCst);
            }
        }
        entries.retain(|e| !e.flags.is_empty());
        if entries.is_empty() {
            shard.remove(&hash);
        }
    }

    /// Tells the watchers of `key` that it changed. Call it with the key's latch held, beside the write.
    pub fn touch(&self, space: u32, key: &[u8]) {
        if self.is_empty() {
            return;
        }
        let hash = KeyHash::of(space, key);
        let shard = self.shard(hash);
        for entry in shard.get(&hash).into_iter().flatten() {
            if entry.space == space && entry.key == key {
                entry.flags.iter().for_each(|flag| flag.touch());
            }
        }
    }

    /// Tells every watcher of any key in `space` (or in every space, with `None`) for which `existed` holds:
    /// what a flush does.
    pub fn touch_space(&self, space: Option<u32>, mut existed: impl FnMut(u32, &[u8]) -> bool) {
        if self.is_empty() {
            return;
        }
        for shard in &self.inner.shards {
            let shard = lock(shard);
            for entry in shard.values().flatten() {
                if space.is_none_or(|s| s == entry.space) && existed(entry.space, &entry.key) {
                    entry.flags.iter().for_each(|flag| flag.touch());
                }
            }
        }
    }

    /// The watched keys of `space`, each once.
    pub fn watched_in(&self, space: u32) -> Vec<Bytes> {
        let mut keys = Vec::new();
        if self.is_empty() {
            return keys;
        }
        for shard in &self.inner.shards {
            let shard = lock(shard);
            keys.extend(shard.values().flatten().filter(|e| e.space == space).map(|e| e.key.clone()));
        }
        keys.sort_unstable();
        keys
    }

    /// True while nobody watches anything.
    pub fn is_empty(&self) -> bool {
        self.inner.count.load(Ordering::SeqCst) == 0
    }

    /// Watched (key, client) pairs.
    pub fn len(&self) -> u64 {
        self.inner.count.load(Ordering::SeqCst)
    }
}
