//! The Redis serialisation protocol, versions 2 and 3: requests in, replies out.

pub mod parser;
pub mod reply;
pub mod skim;
