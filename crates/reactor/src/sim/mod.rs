//! The simulated world behind the driver seam: many servers, their disks and the network between them on one OS
//! thread, in virtual time.
//!
//! [`World`] is the entry. Everything above the seam — executor, timers, files, streams and all layers on them —
//! is the code of production. What happens is a function of the seed: events are ordered by (virtual ns,
//! sequence), each component draws from a random stream of its own, and a rolling hash over all events, contents
//! of writes and sends included, tells whether two runs were the same.
//!
//! CPU is free: a turn of a core costs less than a microsecond of virtual time whatever it computes. Disks and
//! links take the time of their models. Figures from a simulation say what devices and links allow, not how fast
//! the code is.

mod disk;
mod engine;
mod file_ops;
mod model;
mod net;
mod net_ops;
mod pages;
mod world;
mod zoned;

pub use disk::{CrashFate, SECTOR_BYTES};
pub use model::{
    CutMode, DiskModel, FaultOp, FileFault, HostCounters, HostOptions, PowerCut, RandomEffect, RandomFault,
};
pub use net::{HostId, LinkModel, NetCounters};
pub use world::{DiskImage, Halt, World};
pub use zoned::ZonedModel;

use crate::driver::{Completion, Kick, Op, Token, Wait};
use crate::time::Nanos;
use engine::{CoreAt, Engine, Mailbox};
use pumice_base::sync::lock;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

/// One simulated core's driver.
pub struct SimDriver {
    engine: Rc<RefCell<Engine>>,
    at: CoreAt,
    inbox: Rc<RefCell<VecDeque<Completion>>>,
}

impl SimDriver {
    pub(crate) fn now(&self) -> Nanos {
        Nanos(self.engine.borrow().now_ns)
    }

    pub(crate) fn wall_ms(&self) -> u64 {
        self.engine.borrow().wall_ms(self.at.host)
    }

    pub(crate) fn wall_us(&self) -> u64 {
        self.engine.borrow().wall_us(self.at.host)
    }

    pub(crate) fn submit(&mut self, token: Token, op: Op) {
        self.engine.borrow_mut().submit(self.at, token, op);
    }

    pub(crate) fn cancel(&mut self, token: Token) {
        self.engine.borrow_mut().cancel(self.at, token);
    }

    /// The world decides when time passes, so nothing waits here.
    pub(crate) fn turn(&mut self, wait: Wait, out: &mut Vec<Completion>) -> io::Result<()> {
        assert_eq!(wait, Wait::Poll, "a simulated core never waits by itself");
        out.extend(self.inbox.borrow_mut().drain(..));
        Ok(())
    }

    pub(crate) fn has_work(&self) -> bool {
        !self.inbox.borrow().is_empty()
    }
}

/// Tells the world that a core has something to do.
struct SimKick {
    at: CoreAt,
    mailbox: Arc<Mailbox>,
}

impl Kick for SimKick {
    fn kick(&self) {
        lock(&self.mailbox.kicked).push(self.at);
    }
}
