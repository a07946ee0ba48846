//! The io_uring driver.

use crate::driver::{Completion, Kick, Op, Token, Wait};
use crate::run::Config;
use crate::time::Nanos;
use std::io;
use std::sync::Arc;

/// Ends a core's wait from any thread.
pub(crate) struct EventFd {}

impl EventFd {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {})
    }
}

impl Kick for EventFd {
    fn kick(&self) {}
}

pub(crate) fn hold_signals() -> io::Result<()> {
    Ok(())
}

/// One core's ring.
pub struct Uring {}

impl Uring {
    pub(crate) fn new(_config: &Config, _event: Arc<EventFd>) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn now(&self) -> Nanos {
        Nanos(0)
    }

    pub(crate) fn wall_ms(&self) -> u64 {
        0
    }

    pub(crate) fn submit(&mut self, _token: Token, _op: Op) {}

    pub(crate) fn cancel(&mut self, _token: Token) {}

    pub(crate) fn turn(&mut self, _wait: Wait, _out: &mut Vec<Completion>) -> io::Result<()> {
        Ok(())
    }

    pub(crate) fn has_work(&self) -> bool {
        false
    }
}
