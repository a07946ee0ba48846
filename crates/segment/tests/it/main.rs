//! All tests of this crate but those beside this folder, whose heads say why: as one program, the engine's code is generated
//! and linked once for all of them. One file: `cargo test -p pumice-segment --test it heap::`.

mod ahead;
mod closing;
mod commit_frames;
mod commits_side_by_side;
mod common;
mod company;
mod faults;
mod first_frames;
mod forged;
mod formats;
mod ftl;
mod ftl_durable;
mod ftl_formats;
mod ftl_old_format;
mod ftl_property;
mod ftl_sums;
mod ftl_wear;
mod heap;
mod host_full;
mod lanes;
mod moved;
mod moved_lanes;
mod passing_flips;
mod patches;
mod patrol;
mod power_cut;
mod raw;
mod raw_media;
mod room;
mod rotten_log;
mod sim_crash;
mod superblock_room;
mod superblocks;
mod worn_pages;
mod written_ahead;
