//! The LSM engine of one drive: an ordered map per slice over the record heap, which is write-ahead log and value
//! log in one.
//!
//! 1. A write ([`Store::write`]) appends records to the heap's commit stream and inserts keys with pointers (or
//!    small values) into memtables. It is visible at once and durable later; callers gate on [`Store::durable_seq`].
//! 2. Full memtables become sorted key tables; merges keep their number low. User data is written once: tables
//!    hold keys, pointers and small values only.
//! 3. Cleaning takes segments with much dead data, asks the index which of their records are alive, moves those
//!    and points the index at the new places.
//! 4. A checkpoint names the tables and the number up to which they are complete; the log above it is replayed
//!    after a crash.
//!
//! Formats: `docs/format/kv-record.md`, `key-table.md`, `kv-manifest.md`. What is absent: compression, merge
//! operators, column families; slices are independent maps that share one log.

mod again;
mod ahead;
mod background;
mod batch;
mod begun;
mod cache;
mod check;
mod clean;
pub mod codec;
pub mod codes;
pub mod entry;
mod errors;
mod flush;
pub mod hash_index;
mod large;
pub mod manifest;
pub mod memtable;
mod merge;
mod metadata_room;
mod open;
mod options;
mod patrol;
mod peek;
mod pick;
pub mod record;
pub mod retired;
mod rewrites;
mod scan;
mod shadow;
mod slice;
mod snapshot;
mod stats;
mod store;
pub mod table;
mod together;
mod types;
mod value;

// Open to this crate's tests and to fuzz, not an interface.
#[doc(hidden)]
pub use clean::{padding, progress};
#[doc(hidden)]
pub use merge::{plan, queue};
#[doc(hidden)]
pub use open::read_config;
#[doc(hidden)]
pub use table::{block, bounds, filter, index, version};
#[doc(hidden)]
pub use {
    cache::rows,
    scan::{gaps, piece},
};

pub use again::Stored;
pub use ahead::Coming;
pub use batch::Batch;
pub use check::CheckReport;
pub use errors::{OpenError, StoreError, WriteError};
pub use large::reader::LargeReader;
pub use large::writer::LargeWriter;
pub use large::{LargeRef, PIECE_BYTES_MAX};
pub use open::{Opened, Progress};
pub use options::{
    MEMORY_BYTES_MIN, REPLAY_BYTES_MIN, StoreFormat, StoreOptions, fitting_segment_bytes, memory_of_process,
    process_bytes_min,
};
pub use pumice_segment::{Durability, PrewriteProgress, SpaceReport, Turn};
pub use scan::{Scan, SliceSet, Want};
pub use snapshot::Snapshot;
pub use stats::{CounterValues, StoreStats};
pub use store::{KeyNames, Store};
pub use together::{InLine, write_together};
pub use types::{
    Direction, Entry, EntryView, Hint, KEY_BYTES_MAX, Meta, Moment, Peek, Seq, SliceId, VALUE_BYTES_MAX,
    ValueView,
};
