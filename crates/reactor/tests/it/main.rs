//! All tests of this crate but those beside this folder, whose heads say why: as one program, the engine's code is generated
//! and linked once for all of them. One file: `cargo test -p pumice-reactor --test it sim_files::`.

#[macro_use]
mod contract;
mod buffers;
mod contract_real;
mod contract_sim;
mod cores;
mod file_lock;
mod listening;
mod prefetch;
mod sim_files;
mod sim_net;
mod sim_world;
mod smoke;
mod zone_report;
