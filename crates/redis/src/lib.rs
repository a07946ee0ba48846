//! The Redis face: RESP2 and RESP3, connections, commands, over one server's drives.
//!
//! - `resp/` reads requests and writes replies; `connection.rs` runs one client: what arrives in one piece is
//!   carried out in one run, and its replies leave in one send, once what they tell is durable.
//! - `command.rs` is the table; `command_facts/` and `command_docs.rs` what `COMMAND` tells; `commands/` the handlers.
//! - `keyspace/` turns keys, collections and their elements into the ordered map's keys
//!   (`docs/format/redis-keys.md`).
//! - `server.rs` is what all connections share; it is made before the drives are open and answers LOADING.

pub mod args;
pub mod clients;
mod collected;
pub mod command;
mod command_docs;
mod command_facts;
mod commands;
pub mod connection;
pub mod context;
pub mod errors;
mod execute;
mod expiry;
pub mod face;
pub mod glob;
pub mod keyspace;
pub mod long_double;
pub mod number;
pub mod options;
mod output;
pub mod resp;
pub mod server;
pub mod session;
mod stall;
pub mod stats;
pub mod tls;
mod transport;
mod value;

// Open to this crate's tests and to fuzz, not an interface.
#[doc(hidden)]
pub use commands::{list_shift::Gap, zset::decode_order, zset_spec};
