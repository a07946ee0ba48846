//! Worlds over the Redis face: clients on hosts of their own, talking RESP over simulated links.

pub mod client;
mod cut;
mod drives;
pub mod group;
pub mod model;
mod mover;
pub mod play;
pub mod resp;
mod served;
mod stage;

pub(crate) use cut::run as run_cut;
pub(crate) use drives::run as run_drives;
pub(crate) use served::run;
