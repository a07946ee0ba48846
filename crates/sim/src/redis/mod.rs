//! Worlds over the Redis face: clients on hosts of their own, talking RESP over simulated links.

pub mod client;
pub mod model;
pub mod play;
pub mod resp;
mod served;

pub(crate) use served::run;
