//! The facts of each command that `COMMAND` tells: arity, flags, keys, categories, tips; as Redis 7.0 answers
//! them, so that cluster-aware clients and proxies find the keys of a command in the same places. Handlers
//! stand in `commands/`; `command.rs` joins both.

mod connection;
mod generic;
mod hash;
mod list;
mod pumice;
mod server;
mod set;
mod sorted_set;
mod string;
mod transactions;

use crate::command::Facts;

/// All facts, by group.
pub static FACTS: &[&[Facts]] = &[
    connection::FACTS,
    generic::FACTS,
    hash::FACTS,
    list::FACTS,
    server::FACTS,
    set::FACTS,
    sorted_set::FACTS,
    string::FACTS,
    transactions::FACTS,
    pumice::FACTS,
];
