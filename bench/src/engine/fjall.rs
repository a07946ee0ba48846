//! fjall 3.1. Values of 1 KiB and more are separated (its own threshold), no compression, its block cache and write
//! buffers share the budget.
//!
//! fjall has no direct I/O: left alone, the page cache would hold the whole data set and the budget would mean nothing. A
//! thread therefore drops its files' pages five times a second; the thread's CPU is not charged to fjall.

use std::collections::BTreeMap;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fjall::{Database, Keyspace, KeyspaceCreateOptions, KvSeparationOptions, PersistMode};

use super::Blocking;
use crate::phase::WorkerSpec;
use crate::{Result, usage};

/// Values at least this long are separated.
const SEPARATED_BYTES: usize = 1024;

/// An open fjall database.
pub struct Fjall {
    database: Database,
    keyspace: Keyspace,
    trimmer: Trimmer,
}

impl Fjall {
    /// Opens or creates the database in `spec.dir`.
    pub fn open(spec: &WorkerSpec) -> Result<Fjall> {
        let write_buffer = (spec.memory_bytes / 4).clamp(4 << 20, 64 << 20);
        let cache = spec.memory_bytes.saturating_sub(2 * write_buffer).max(8 << 20);
        let database = Database::builder(&spec.dir)
            .cache_size(cache)
            .worker_threads(spec.cores.max(1))
            .max_journaling_size((4 * write_buffer).max(64 << 20))
            .open()?;
        let separated = (spec.value_bytes >= SEPARATED_BYTES).then(KvSeparationOptions::default);
        let keyspace = database.keyspace("bench", || {
            KeyspaceCreateOptions::default().max_memtable_size(write_buffer).with_kv_separation(separated)
        })?;
        Ok(Fjall { database, keyspace, trimmer: Trimmer::start(spec.dir.clone()) })
    }
}

impl Blocking for Fjall {
    fn set(&self, key: &[u8], value: &[u8], durable: bool) -> Result<()> {
        self.keyspace.insert(key, value)?;
        if durable {
            self.database.persist(PersistMode::SyncData)?;
        }
        Ok(())
    }

    fn get(&self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let found = self.keyspace.get(key)?;
        if let Some(value) = &found {
            see(value);
        }
        Ok(found.is_some())
    }

    fn scan(&self, see: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        for guard in self.keyspace.iter() {
            let (key, value) = guard.into_inner()?;
            if !see(&key, &value) {
                break;
            }
        }
        Ok(())
    }

    fn settle(&self, longest: Duration) -> Result<()> {
        let started = Instant::now();
        self.keyspace.rotate_memtable_and_wait()?;
        // "At rest": nothing running on several looks in a row; compactions start a moment after the one before.
        let mut calm = 0;
        while calm < 10 && started.elapsed() < longest {
            std::thread::sleep(Duration::from_millis(50));
            let busy = self.database.active_compactions() > 0 || self.database.outstanding_flushes() > 0;
            calm = if busy { 0 } else { calm + 1 };
        }
        Ok(())
    }

    fn counters(&self) -> BTreeMap<String, f64> {
        let harness = self.trimmer.cpu_ns.load(Ordering::Relaxed) as f64 / 1e9;
        BTreeMap::from([("harness_cpu_seconds".to_string(), harness)])
    }
}

/// Keeps the page cache from serving as memory beyond the budget.
struct Trimmer {
    stop: Arc<AtomicBool>,
    cpu_ns: Arc<AtomicU64>,
}

impl Trimmer {
    fn start(dir: PathBuf) -> Trimmer {
        let (stop, cpu_ns) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let out = Trimmer { stop: stop.clone(), cpu_ns: cpu_ns.clone() };
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                drop_pages(&dir);
                cpu_ns.store((usage::cpu_seconds(libc::RUSAGE_THREAD) * 1e9) as u64, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(200));
            }
        });
        out
    }
}

impl Drop for Trimmer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn drop_pages(dir: &Path) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            drop_pages(&path);
        } else if let Ok(file) = std::fs::File::open(&path) {
            // SAFETY: the descriptor is open for the length of the call.
            unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        }
    }
}
