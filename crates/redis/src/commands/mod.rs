//! The commands, one module a family. Each module lists its rows: name and handler; what `COMMAND` tells of
//! them stands in `command_facts/`. Families still to come (streams, scripting, pub/sub, bits, geo) get a
//! module and a row here.

mod connection;
mod hash;
mod keys;
mod list;
pub(crate) mod monitor;
mod set;
mod strings;
mod transactions;
mod zset;

pub(crate) use strings::answer_cold_gets;

use crate::command::{FastHandler, Row};

/// All rows.
pub static ROWS: &[&[Row]] = &[
    connection::ROWS,
    keys::ROWS,
    monitor::ROWS,
    transactions::ROWS,
    strings::ROWS,
    hash::ROWS,
    set::ROWS,
    zset::ROWS,
    list::ROWS,
];

/// Commands that have a way without waiting.
pub static FAST: &[&[(&str, FastHandler)]] = &[strings::FAST];
