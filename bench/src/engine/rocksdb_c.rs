//! The part of RocksDB 7.8's C interface (`rocksdb/c.h`) that the benchmark uses. Declared by hand: a bindings crate would
//! bring RocksDB's sources and a C++ build with it, for forty functions.

use std::ffi::{c_char, c_double, c_int, c_uchar};

macro_rules! opaque {
    ($($name:ident)*) => { $(#[repr(C)] pub struct $name { _private: [u8; 0] })* };
}
opaque!(Db Options BlockOptions Cache FilterPolicy WriteOptions ReadOptions FlushOptions Pinned Iterator);

/// `rocksdb_no_compression`.
pub const NO_COMPRESSION: c_int = 0;

unsafe extern "C" {
    pub fn rocksdb_options_create() -> *mut Options;
    pub fn rocksdb_options_destroy(o: *mut Options);
    pub fn rocksdb_options_set_create_if_missing(o: *mut Options, v: c_uchar);
    pub fn rocksdb_options_set_use_direct_reads(o: *mut Options, v: c_uchar);
    pub fn rocksdb_options_set_use_direct_io_for_flush_and_compaction(o: *mut Options, v: c_uchar);
    pub fn rocksdb_options_set_compression(o: *mut Options, v: c_int);
    pub fn rocksdb_options_set_max_background_jobs(o: *mut Options, v: c_int);
    pub fn rocksdb_options_set_write_buffer_size(o: *mut Options, v: usize);
    pub fn rocksdb_options_set_max_write_buffer_number(o: *mut Options, v: c_int);
    pub fn rocksdb_options_set_level_compaction_dynamic_level_bytes(o: *mut Options, v: c_uchar);
    pub fn rocksdb_options_set_max_bytes_for_level_base(o: *mut Options, v: u64);
    pub fn rocksdb_options_set_target_file_size_base(o: *mut Options, v: u64);
    pub fn rocksdb_options_set_bytes_per_sync(o: *mut Options, v: u64);
    pub fn rocksdb_options_set_max_total_wal_size(o: *mut Options, v: u64);
    pub fn rocksdb_options_set_recycle_log_file_num(o: *mut Options, v: usize);
    pub fn rocksdb_options_set_enable_pipelined_write(o: *mut Options, v: c_uchar);
    pub fn rocksdb_options_compaction_readahead_size(o: *mut Options, v: usize);
    pub fn rocksdb_options_set_stats_dump_period_sec(o: *mut Options, v: u32);
    pub fn rocksdb_options_set_keep_log_file_num(o: *mut Options, v: usize);
    pub fn rocksdb_options_set_block_based_table_factory(o: *mut Options, t: *mut BlockOptions);
    pub fn rocksdb_options_set_enable_blob_files(o: *mut Options, v: c_uchar);
    pub fn rocksdb_options_set_min_blob_size(o: *mut Options, v: u64);
    pub fn rocksdb_options_set_blob_file_size(o: *mut Options, v: u64);
    pub fn rocksdb_options_set_blob_compression_type(o: *mut Options, v: c_int);
    pub fn rocksdb_options_set_enable_blob_gc(o: *mut Options, v: c_uchar);
    pub fn rocksdb_options_set_blob_gc_age_cutoff(o: *mut Options, v: c_double);
    pub fn rocksdb_options_set_blob_gc_force_threshold(o: *mut Options, v: c_double);
    pub fn rocksdb_options_set_blob_cache(o: *mut Options, c: *mut Cache);

    pub fn rocksdb_block_based_options_create() -> *mut BlockOptions;
    pub fn rocksdb_block_based_options_destroy(o: *mut BlockOptions);
    pub fn rocksdb_block_based_options_set_block_cache(o: *mut BlockOptions, c: *mut Cache);
    pub fn rocksdb_block_based_options_set_filter_policy(o: *mut BlockOptions, p: *mut FilterPolicy);
    pub fn rocksdb_block_based_options_set_format_version(o: *mut BlockOptions, v: c_int);
    pub fn rocksdb_block_based_options_set_cache_index_and_filter_blocks(o: *mut BlockOptions, v: c_uchar);
    pub fn rocksdb_block_based_options_set_cache_index_and_filter_blocks_with_high_priority(
        o: *mut BlockOptions,
        v: c_uchar,
    );
    pub fn rocksdb_block_based_options_set_pin_l0_filter_and_index_blocks_in_cache(
        o: *mut BlockOptions,
        v: c_uchar,
    );
    pub fn rocksdb_filterpolicy_create_bloom_full(bits_per_key: c_double) -> *mut FilterPolicy;
    pub fn rocksdb_cache_create_lru(capacity: usize) -> *mut Cache;
    pub fn rocksdb_cache_destroy(c: *mut Cache);
    pub fn rocksdb_cache_get_usage(c: *mut Cache) -> usize;

    pub fn rocksdb_open(o: *const Options, name: *const c_char, err: *mut *mut c_char) -> *mut Db;
    pub fn rocksdb_close(db: *mut Db);
    pub fn rocksdb_put(
        db: *mut Db,
        o: *const WriteOptions,
        key: *const c_char,
        key_len: usize,
        value: *const c_char,
        value_len: usize,
        err: *mut *mut c_char,
    );
    pub fn rocksdb_get_pinned(
        db: *mut Db,
        o: *const ReadOptions,
        key: *const c_char,
        key_len: usize,
        err: *mut *mut c_char,
    ) -> *mut Pinned;
    pub fn rocksdb_pinnableslice_value(p: *const Pinned, len: *mut usize) -> *const c_char;
    pub fn rocksdb_pinnableslice_destroy(p: *mut Pinned);
    pub fn rocksdb_property_int(db: *mut Db, name: *const c_char, out: *mut u64) -> c_int;
    pub fn rocksdb_flush(db: *mut Db, o: *const FlushOptions, err: *mut *mut c_char);
    pub fn rocksdb_free(p: *mut std::ffi::c_void);

    pub fn rocksdb_writeoptions_create() -> *mut WriteOptions;
    pub fn rocksdb_writeoptions_destroy(o: *mut WriteOptions);
    pub fn rocksdb_writeoptions_set_sync(o: *mut WriteOptions, v: c_uchar);
    pub fn rocksdb_readoptions_create() -> *mut ReadOptions;
    pub fn rocksdb_readoptions_destroy(o: *mut ReadOptions);
    pub fn rocksdb_readoptions_set_readahead_size(o: *mut ReadOptions, v: usize);
    pub fn rocksdb_readoptions_set_fill_cache(o: *mut ReadOptions, v: c_uchar);
    pub fn rocksdb_flushoptions_create() -> *mut FlushOptions;
    pub fn rocksdb_flushoptions_destroy(o: *mut FlushOptions);

    pub fn rocksdb_create_iterator(db: *mut Db, o: *const ReadOptions) -> *mut Iterator;
    pub fn rocksdb_iter_seek_to_first(i: *mut Iterator);
    pub fn rocksdb_iter_valid(i: *const Iterator) -> c_uchar;
    pub fn rocksdb_iter_next(i: *mut Iterator);
    pub fn rocksdb_iter_key(i: *const Iterator, len: *mut usize) -> *const c_char;
    pub fn rocksdb_iter_value(i: *const Iterator, len: *mut usize) -> *const c_char;
    pub fn rocksdb_iter_get_error(i: *const Iterator, err: *mut *mut c_char);
    pub fn rocksdb_iter_destroy(i: *mut Iterator);
}
