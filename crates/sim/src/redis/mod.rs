//! Worlds over the Redis face: clients on hosts of their own, talking RESP over simulated links.

pub mod client;
mod cut;
pub mod model;
pub mod play;
pub mod resp;
mod served;

pub(crate) use cut::run as run_cut;
pub(crate) use served::run;
