//! All tests of this crate but those beside this folder, whose heads say why: as one program, the engine's code is generated
//! and linked once for all of them. One file: `cargo test -p pumice-sim --test it worlds::`.

mod linear;
mod oracle;
mod redis_model;
mod redis_play;
mod sdf;
mod worlds;
