//! The simulated world behind the driver seam.

use crate::driver::{Completion, Op, Token, Wait};
use crate::time::Nanos;
use std::io;

/// One simulated core's driver.
pub struct SimDriver {}

impl SimDriver {
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
