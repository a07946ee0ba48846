//! All tests of this crate but those beside this folder, whose heads say why: as one program, the engine's code is generated
//! and linked once for all of them. One file: `cargo test -p pumice-redis --test it strings::`.

mod administration;
mod answers;
mod broken_replies;
mod collections;
mod command_docs;
mod common;
mod connections;
mod crowded;
mod differential;
mod emptying;
mod expiry;
mod forged;
mod formats;
mod full_drive;
mod gates;
mod hostile;
mod interrupted_lists;
mod introspection;
mod large_memory;
mod large_parts;
mod long_pops;
mod long_searches;
mod monitors;
mod moved_meanwhile;
mod parser;
mod scans;
mod silent_clients;
mod simulated;
mod slow_readers;
mod stalled;
mod strings;
mod tls;
mod transaction_memory;
mod transactions;
mod watches;
