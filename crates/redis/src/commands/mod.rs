//! The commands, one module a family. Each module lists its rows: name and handler; what `COMMAND` tells of
//! them stands in `command_facts/`. Families still to come (streams, scripting, pub/sub, bits, geo) get a
//! module and a row here.

mod admin;
mod build;
mod client;
mod collection;
mod config;
mod config_values;
mod connection;
mod counters;
mod debug;
mod digest;
mod element_scan;
mod expire;
mod hash;
mod info;
mod introspect;
mod keys;
mod list;
mod list_edit;
mod list_move;
pub mod list_shift;
mod merge;
pub(crate) mod monitor;
mod object;
mod range;
mod rename;
mod sample;
mod scan;
mod scored;
mod set;
mod set_algebra;
mod string_parts;
mod string_writes;
mod strings;
mod transactions;
pub mod zset;
mod zset_algebra;
mod zset_pop;
mod zset_range;
mod zset_rank;
pub mod zset_spec;

pub(crate) use strings::{answer_cold_gets, get_at_once};

use crate::command::{FastHandler, Row};

/// All rows.
pub static ROWS: &[&[Row]] = &[
    admin::ROWS,
    debug::ROWS,
    client::ROWS,
    config::ROWS,
    connection::ROWS,
    counters::ROWS,
    expire::ROWS,
    info::ROWS,
    introspect::ROWS,
    keys::ROWS,
    monitor::ROWS,
    object::ROWS,
    range::ROWS,
    rename::ROWS,
    scan::ROWS,
    string_parts::ROWS,
    string_writes::ROWS,
    strings::ROWS,
    transactions::ROWS,
    hash::ROWS,
    set::ROWS,
    set_algebra::ROWS,
    zset::ROWS,
    zset_range::ROWS,
    zset_rank::ROWS,
    zset_pop::ROWS,
    zset_algebra::ROWS,
    list::ROWS,
    list_edit::ROWS,
    list_move::ROWS,
];

/// Commands that have a way without waiting.
pub static FAST: &[&[(&str, FastHandler)]] = &[
    counters::FAST,
    expire::FAST,
    hash::FAST,
    keys::FAST,
    list::FAST,
    set::FAST,
    string_writes::FAST,
    strings::FAST,
    zset::FAST,
    zset_pop::FAST,
];
