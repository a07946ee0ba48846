//! Worlds over the Redis face: clients on hosts of their own, talking RESP over simulated links.

pub mod model;
pub mod resp;
