//! All tests of this crate but those beside this folder, whose heads say why: as one program, the engine's code is generated
//! and linked once for all of them. One file: `cargo test -p pumice-flash --test it contract::`.

mod bch;
mod contract;
mod queue;
