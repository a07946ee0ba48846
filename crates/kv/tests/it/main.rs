//! All tests of this crate but those beside this folder, whose heads say why: as one program, the engine's code is generated
//! and linked once for all of them. One file: `cargo test -p pumice-kv --test it opening::`.

mod blocks_ahead;
mod cleaning_reads;
mod common;
mod dead_pieces;
mod expiring;
mod failed_drive;
mod formats;
mod gaps;
mod held_values;
mod hints;
mod hot_rows;
mod kept_pieces;
mod kept_rows;
mod large;
mod long_keys;
mod long_reads;
mod long_scans;
mod memory;
mod merge_room;
mod merging;
mod model;
mod opening;
mod ordering;
mod progress;
mod read_errors;
mod refused_early;
mod retiring;
mod retiring_many;
mod set_aside;
mod shared_reads;
mod short_scans;
mod shrinking;
mod space;
mod unnamed_tables;
mod unreadable;
