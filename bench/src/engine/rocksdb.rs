//! RocksDB 7.8, Debian's library, with and without BlobDB.
//!
//! Tuned as its own guides advise for flash: direct reads, direct flush and compaction, no compression, levelled with
//! dynamic level sizes, Bloom filters of 10 bits, index and filters in the cache with high priority, 2 MiB compaction
//! read-ahead, recycled logs. The budget is shared between two write buffers (a quarter each, 64 MiB at most) and one
//! cache for blocks and blobs. Blob files are collected when a quarter of what is in them is dead, so that they stay
//! within the space that all the stores are given.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char};
use std::os::unix::ffi::OsStrExt;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use super::Blocking;
use super::rocksdb_c::*;
use crate::Result;
use crate::phase::WorkerSpec;

/// Values at least this long go to blob files.
const BLOB_BYTES_MIN: u64 = 512;

/// An open RocksDB.
pub struct Rocksdb {
    db: *mut Db,
    cache: *mut Cache,
    options: *mut Options,
    synced: *mut WriteOptions,
    unsynced: *mut WriteOptions,
    read: *mut ReadOptions,
    scan: *mut ReadOptions,
}

// SAFETY: RocksDB's handles may be used from many threads at once; the option objects are only read after `open`.
unsafe impl Send for Rocksdb {}
// SAFETY: as above.
unsafe impl Sync for Rocksdb {}

/// Turns RocksDB's error text into ours.
fn checked(error: *mut c_char) -> Result<()> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: RocksDB hands out a NUL-terminated text that the caller frees.
    let text = unsafe {
        let text = CStr::from_ptr(error).to_string_lossy().into_owned();
        rocksdb_free(error.cast());
        text
    };
    Err(format!("RocksDB: {text}").into())
}

impl Rocksdb {
    /// Opens or creates the database in `spec.dir`.
    pub fn open(spec: &WorkerSpec, blobs: bool) -> Result<Rocksdb> {
        std::fs::create_dir_all(&spec.dir)?;
        let name = CString::new(spec.dir.as_os_str().as_bytes())?;
        let write_buffer = (spec.memory_bytes / 4).clamp(1 << 20, 64 << 20);
        let cache_bytes = spec.memory_bytes.saturating_sub(2 * write_buffer).max(1 << 20);
        // SAFETY: plain C calls on objects made here; ownership of the filter policy and block options follows c.h.
        unsafe {
            let cache = rocksdb_cache_create_lru(cache_bytes as usize);
            let options = make_options(spec, write_buffer, cache, blobs);
            let mut error = null_mut();
            let db = rocksdb_open(options, name.as_ptr(), &mut error);
            checked(error)?;
            let (synced, unsynced) = (rocksdb_writeoptions_create(), rocksdb_writeoptions_create());
            rocksdb_writeoptions_set_sync(synced, 1);
            let (read, scan) = (rocksdb_readoptions_create(), rocksdb_readoptions_create());
            rocksdb_readoptions_set_readahead_size(scan, 2 << 20);
            rocksdb_readoptions_set_fill_cache(scan, 0);
            Ok(Rocksdb { db, cache, options, synced, unsynced, read, scan })
        }
    }

    fn property(&self, name: &CStr) -> u64 {
        let mut out = 0;
        // SAFETY: the database is open, and `out` outlives the call.
        let known = unsafe { rocksdb_property_int(self.db, name.as_ptr(), &mut out) } == 0;
        if known { out } else { 0 }
    }
}

/// # Safety
/// `cache` must be a live cache.
unsafe fn make_options(spec: &WorkerSpec, write_buffer: u64, cache: *mut Cache, blobs: bool) -> *mut Options {
    // SAFETY: each object is made by RocksDB and handed to it as c.h says.
    unsafe {
        let table = rocksdb_block_based_options_create();
        rocksdb_block_based_options_set_block_cache(table, cache);
        rocksdb_block_based_options_set_filter_policy(table, rocksdb_filterpolicy_create_bloom_full(10.0));
        rocksdb_block_based_options_set_format_version(table, 5);
        rocksdb_block_based_options_set_cache_index_and_filter_blocks(table, 1);
        rocksdb_block_based_options_set_cache_index_and_filter_blocks_with_high_priority(table, 1);
        rocksdb_block_based_options_set_pin_l0_filter_and_index_blocks_in_cache(table, 1);

        let o = rocksdb_options_create();
        rocksdb_options_set_create_if_missing(o, 1);
        rocksdb_options_set_use_direct_reads(o, 1);
        rocksdb_options_set_use_direct_io_for_flush_and_compaction(o, 1);
        rocksdb_options_set_compression(o, NO_COMPRESSION);
        rocksdb_options_set_max_background_jobs(o, spec.cores.max(2) as i32);
        rocksdb_options_set_write_buffer_size(o, write_buffer as usize);
        rocksdb_options_set_max_write_buffer_number(o, 2);
        rocksdb_options_set_level_compaction_dynamic_level_bytes(o, 1);
        rocksdb_options_set_max_bytes_for_level_base(o, 4 * write_buffer);
        rocksdb_options_set_target_file_size_base(o, write_buffer);
        rocksdb_options_set_bytes_per_sync(o, 1 << 20);
        rocksdb_options_set_max_total_wal_size(o, 4 * write_buffer);
        rocksdb_options_set_recycle_log_file_num(o, 2);
        rocksdb_options_set_enable_pipelined_write(o, 1);
        rocksdb_options_compaction_readahead_size(o, 2 << 20);
        rocksdb_options_set_stats_dump_period_sec(o, 0);
        rocksdb_options_set_keep_log_file_num(o, 2);
        rocksdb_options_set_block_based_table_factory(o, table);
        rocksdb_block_based_options_destroy(table);
        if blobs {
            rocksdb_options_set_enable_blob_files(o, 1);
            rocksdb_options_set_min_blob_size(o, BLOB_BYTES_MIN);
            rocksdb_options_set_blob_file_size(o, write_buffer);
            rocksdb_options_set_blob_compression_type(o, NO_COMPRESSION);
            rocksdb_options_set_enable_blob_gc(o, 1);
            rocksdb_options_set_blob_gc_age_cutoff(o, 0.25);
            rocksdb_options_set_blob_gc_force_threshold(o, 0.25);
            rocksdb_options_set_blob_cache(o, cache);
        }
        o
    }
}

impl Drop for Rocksdb {
    fn drop(&mut self) {
        // SAFETY: each handle is closed once, the database before what it uses.
        unsafe {
            rocksdb_close(self.db);
            rocksdb_writeoptions_destroy(self.synced);
            rocksdb_writeoptions_destroy(self.unsynced);
            rocksdb_readoptions_destroy(self.read);
            rocksdb_readoptions_destroy(self.scan);
            rocksdb_options_destroy(self.options);
            rocksdb_cache_destroy(self.cache);
        }
    }
}

impl Blocking for Rocksdb {
    fn set(&self, key: &[u8], value: &[u8], durable: bool) -> Result<()> {
        let options = if durable { self.synced } else { self.unsynced };
        let mut error = null_mut();
        // SAFETY: the slices live through the call; RocksDB copies them.
        unsafe {
            let (k, v) = (key.as_ptr().cast(), value.as_ptr().cast());
            rocksdb_put(self.db, options, k, key.len(), v, value.len(), &mut error);
        }
        checked(error)
    }

    fn get(&self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let mut error = null_mut();
        // SAFETY: the pinned slice is used before it is destroyed.
        unsafe {
            let pinned = rocksdb_get_pinned(self.db, self.read, key.as_ptr().cast(), key.len(), &mut error);
            checked(error)?;
            if pinned.is_null() {
                return Ok(false);
            }
            let mut len = 0;
            let data = rocksdb_pinnableslice_value(pinned, &mut len);
            see(std::slice::from_raw_parts(data.cast(), len));
            rocksdb_pinnableslice_destroy(pinned);
        }
        Ok(true)
    }

    fn scan(&self, see: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        // SAFETY: key and value slices are used before the iterator moves on.
        unsafe {
            let iterator = rocksdb_create_iterator(self.db, self.scan);
            rocksdb_iter_seek_to_first(iterator);
            let mut more = true;
            while more && rocksdb_iter_valid(iterator) != 0 {
                let (mut key_len, mut value_len) = (0, 0);
                let key = rocksdb_iter_key(iterator, &mut key_len);
                let value = rocksdb_iter_value(iterator, &mut value_len);
                more = see(
                    std::slice::from_raw_parts(key.cast(), key_len),
                    std::slice::from_raw_parts(value.cast(), value_len),
                );
                rocksdb_iter_next(iterator);
            }
            let mut error = null_mut();
            rocksdb_iter_get_error(iterator, &mut error);
            rocksdb_iter_destroy(iterator);
            checked(error)
        }
    }

    fn settle(&self, longest: Duration) -> Result<()> {
        let mut error = null_mut();
        // SAFETY: the flush options live until after the call.
        unsafe {
            let options = rocksdb_flushoptions_create();
            rocksdb_flush(self.db, options, &mut error);
            rocksdb_flushoptions_destroy(options);
        }
        checked(error)?;
        let started = Instant::now();
        let busy = [
            c"rocksdb.compaction-pending",
            c"rocksdb.mem-table-flush-pending",
            c"rocksdb.num-running-compactions",
            c"rocksdb.num-running-flushes",
        ];
        while busy.iter().any(|name| self.property(name) > 0) && started.elapsed() < longest {
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    fn counters(&self) -> BTreeMap<String, f64> {
        // SAFETY: the cache lives as long as the database.
        let cached = unsafe { rocksdb_cache_get_usage(self.cache) };
        BTreeMap::from([
            ("cache_bytes".to_string(), cached as f64),
            ("table_readers_bytes".to_string(), self.property(c"rocksdb.estimate-table-readers-mem") as f64),
        ])
    }
}
