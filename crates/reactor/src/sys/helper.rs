//! What would hold a core up: zone commands, which no ring knows and which take milliseconds; for the epoll driver allocating and
//! giving back space as well. A thread of its own carries these out for a core, one after the other, started by the first
//! and ended with the driver. Rejected: calling them on the core, whose clients would wait for a drive's erases.

use super::EventFd;
use super::zones::{manage, report};
use crate::driver::{Completion, Handle, Kick, Outcome, Token};
use crate::zones::{Zone, ZoneAction};
use std::io;
use std::sync::{Arc, Mutex, mpsc};

use pumice_base::sync::lock;

/// What is asked.
pub(crate) enum Request {
    Report { from: u64, zones_max: u32 },
    Manage { action: ZoneAction, start: u64, bytes: u64 },
    Allocate { offset: u64, bytes: u64 },
    Punch { offset: u64, bytes: u64 },
}

enum Answer {
    Zones(io::Result<Vec<Zone>>),
    Done(io::Result<()>),
}

impl Request {
    fn carry_out(&self, file: &Handle) -> Answer {
        match *self {
            Self::Report { from, zones_max } => Answer::Zones(report(file.fd(), from, zones_max)),
            Self::Manage { action, start, bytes } => Answer::Done(manage(file.fd(), action, start, bytes)),
            Self::Allocate { offset, bytes } => Answer::Done(super::allocate(file, 0, offset, bytes)),
            Self::Punch { offset, bytes } => {
                Answer::Done(super::allocate(file, super::PUNCH_MODE, offset, bytes))
            }
        }
    }

    fn refused(&self, error: io::Error) -> Answer {
        match self {
            Self::Report { .. } => Answer::Zones(Err(error)),
            Self::Manage { .. } | Self::Allocate { .. } | Self::Punch { .. } => Answer::Done(Err(error)),
        }
    }
}

struct Job {
    token: Token,
    file: Handle,
    request: Request,
}

/// The thread, and what it has done.
#[derive(Default)]
pub(crate) struct Helper {
    /// Something was asked for: spares all other cores a lock a turn.
    is_used: bool,
    jobs: Option<mpsc::Sender<Job>>,
    done: Arc<Mutex<Vec<(Token, Answer)>>>,
}

impl Helper {
    /// Hands a request over; its completion comes with the kick. The queue is bounded by the operations in flight,
    /// each of which its task awaits.
    pub(crate) fn submit(&mut self, kick: &Arc<EventFd>, token: Token, file: Handle, request: Request) {
        self.is_used = true;
        let mut job = Job { token, file, request };
        if self.jobs.is_none() {
            self.jobs = self.start(kick).ok();
        }
        if let Some(jobs) = &self.jobs {
            match jobs.send(job) {
                Ok(()) => return,
                Err(mpsc::SendError(back)) => job = back,
            }
        }
        let error = io::Error::other("no thread for what blocks can be started");
        lock(&self.done).push((token, job.request.refused(error)));
        kick.kick();
    }

    fn start(&self, kick: &Arc<EventFd>) -> io::Result<mpsc::Sender<Job>> {
        let (sender, jobs) = mpsc::channel::<Job>();
        let (kick, done) = (Arc::clone(kick), Arc::clone(&self.done));
        // Nobody joins it: it ends with its last job once the driver is gone.
        std::thread::Builder::new().name("helper".into()).spawn(move || {
            for Job { token, file, request } in jobs {
                let answer = request.carry_out(&file);
                drop(file);
                lock(&done).push((token, answer));
                kick.kick();
            }
        })?;
        Ok(sender)
    }

    /// Appends what has been done. To be called after the kick was taken: the answer precedes it.
    pub(crate) fn reap(&self, out: &mut Vec<Completion>) {
        if !self.is_used {
            return;
        }
        let done = std::mem::take(&mut *lock(&self.done));
        out.extend(done.into_iter().map(|(token, answer)| {
            let outcome = match answer {
                Answer::Zones(result) => Outcome::Zones(result),
                Answer::Done(result) => Outcome::Done(result.map(|()| 0)),
            };
            Completion { token, outcome, more: false }
        }));
    }
}
