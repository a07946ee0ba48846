//! The commands, one module a family. Each module lists its rows: name and handler; what `COMMAND` tells of
//! them stands in `command_facts/`. Families still to come (streams, scripting, pub/sub, bits, geo) get a
//! module and a row here.

mod admin;
mod client;
mod config;
mod connection;
mod counters;
mod expire;
mod hash;
mod info;
mod introspect;
mod keys;
mod list;
pub(crate) mod monitor;
mod object;
mod range;
mod rename;
mod scan;
mod set;
mod string_parts;
mod strings;
mod transactions;
mod zset;

pub(crate) use strings::answer_cold_gets;

use crate::command::{FastHandler, Row};

/// All rows.
pub static ROWS: &[&[Row]] = &[
    admin::ROWS,
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
    strings::ROWS,
    transactions::ROWS,
    hash::ROWS,
    set::ROWS,
    zset::ROWS,
    list::ROWS,
];

/// Commands that have a way without waiting.
pub static FAST: &[&[(&str, FastHandler)]] = &[counters::FAST, strings::FAST];
