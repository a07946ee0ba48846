//! All tests of this crate but those beside this folder, whose heads say why: as one program, the engine's code is generated
//! and linked once for all of them. One file: `cargo test -p pumice-server --test it process::`.

mod bench_keys;
mod cli;
mod common;
mod crafted;
mod damage;
mod emulated;
mod hardship;
mod http;
mod killed;
mod logs;
mod machine;
mod memory;
mod notify;
mod one_drive;
mod one_moment;
mod process;
mod raw;
mod rust_client;
mod settings;
