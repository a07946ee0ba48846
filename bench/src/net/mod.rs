//! Measuring over the network: servers as child processes, a load generator of our own, and what bare loopback carries.

mod connection;
pub mod load;
pub mod reply;
pub mod server;
pub mod stream;
