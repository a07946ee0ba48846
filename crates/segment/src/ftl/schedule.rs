//! Whose turn it is on a channel: reads before programs before erases.
//!
//! 1. A request waits for a [`Grant`] of its class and holds it while the device works.
//! 2. Reads are granted at once, up to [`READS_MAX`] of them.
//! 3. A program (one chunk of a segment) is granted while no read waits or runs; two of them may run, so that the dies
//!    never idle between chunks. When [`PASSED_MAX`] reads have gone before one, it goes before the next.
//! 4. An erase is granted while nothing else waits or runs, one at a time. When [`PASSED_BY_MAX`] grants have gone
//!    before it, or it is urgent (somebody waits for the block), it goes like a program.
//! 5. The patrol's reads wait as an erase does, and give way to one: they are granted while nothing else waits or runs, or
//!    when [`PASSED_BY_MAX`] grants have gone before one.
//!
//! Every queue is as long as the tags of its clients allow (`client.rs`). Nobody starves: 3 and 4 are bounds.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use pumice_base::sync::lock;
use pumice_reactor::sync::oneshot;

/// Reads under way on a channel: enough to keep every die and the bus busy.
const READS_MAX: u32 = 64;
/// Chunks of programs under way on a channel.
const PROGRAMS_MAX: u32 = 2;
/// Reads that go before a waiting program.
const PASSED_MAX: u32 = 16;
/// Reads and programs that go before a waiting erase.
const PASSED_BY_MAX: u32 = 64;

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Reads of any size.
    Read,
    /// One chunk of a segment.
    Program,
    /// An erase in the background.
    Erase,
    /// An erase that a write waits for.
    UrgentErase,
    /// A read of the patrol scrub.
    Patrol,
}

impl Class {
    fn queue(self) -> usize {
        match self {
            Self::Read => 0,
            Self::Program => 1,
            Self::Erase => 2,
            Self::UrgentErase => 3,
            Self::Patrol => 4,
        }
    }
}

#[derive(Default)]
struct State {
    waiting: [VecDeque<oneshot::Sender<Grant>>; 5],
    running: [u32; 5],
    /// Reads granted while a program waited, and anything granted while an erase waited.
    passed_program: u32,
    passed_erase: u32,
    passed_patrol: u32,
}

impl State {
    fn waits(&self, class: Class) -> bool {
        !self.waiting[class.queue()].is_empty()
    }

    fn anybody_waits(&self) -> bool {
        self.waiting.iter().any(|queue| !queue.is_empty())
    }

    fn runs(&self, class: Class) -> u32 {
        self.running[class.queue()]
    }

    /// Who goes next, if anybody may.
    fn next(&self) -> Option<Class> {
        let reads = self.waits(Class::Read) || self.runs(Class::Read) > 0;
        let erases = self.runs(Class::Erase) + self.runs(Class::UrgentErase);
        if self.waits(Class::Program)
            && self.runs(Class::Program) < PROGRAMS_MAX
            && (!reads || self.passed_program >= PASSED_MAX)
        {
            return Some(Class::Program);
        }
        if self.waits(Class::UrgentErase) && erases == 0 && (!reads || self.passed_program >= PASSED_MAX) {
            return Some(Class::UrgentErase);
        }
        if self.waits(Class::Read) && self.runs(Class::Read) < READS_MAX {
            return Some(Class::Read);
        }
        let programs = self.waits(Class::Program) || self.runs(Class::Program) > 0;
        let due = self.passed_erase >= PASSED_BY_MAX;
        if self.waits(Class::Erase) && erases == 0 && ((!reads && !programs) || due) {
            return Some(Class::Erase);
        }
        let idle = !reads && !programs && erases == 0 && !self.waits(Class::Erase);
        let due = self.passed_patrol >= PASSED_BY_MAX;
        (self.waits(Class::Patrol) && self.runs(Class::Patrol) == 0 && (idle || due)).then_some(Class::Patrol)
    }

    fn count(&mut self, granted: Class) {
        self.running[granted.queue()] += 1;
        match granted {
            Class::Read if self.waits(Class::Program) || self.waits(Class::UrgentErase) => {
                self.passed_program += 1;
            }
            Class::Read => {}
            Class::Program | Class::UrgentErase => self.passed_program = 0,
            Class::Erase => self.passed_erase = 0,
            Class::Patrol => self.passed_patrol = 0,
        }
        if granted != Class::Patrol && self.waits(Class::Patrol) {
            self.passed_patrol += 1;
        }
        if granted != Class::Erase && self.waits(Class::Erase) {
            self.passed_erase += 1;
        }
    }
}

/// One channel's scheduler. Lock: a leaf, never held while a grant is handed over.
#[derive(Default)]
pub struct Scheduler {
    state: Mutex<State>,
}

/// A turn on the channel, over when dropped.
pub struct Grant {
    scheduler: Arc<Scheduler>,
    class: Class,
}

impl Scheduler {
    /// Waits for a turn. Turns of one class come in the order of asking.
    pub async fn turn(self: &Arc<Self>, class: Class) -> Grant {
        let receiver = {
            let mut state = self.state();
            // Most reads: nobody is passed over, and there is room.
            if class == Class::Read && !state.anybody_waits() && state.runs(Class::Read) < READS_MAX {
                state.count(class);
                return Grant { scheduler: Arc::clone(self), class };
            }
            let (sender, receiver) = oneshot::channel();
            state.waiting[class.queue()].push_back(sender);
            receiver
        };
        self.hand_out();
        match receiver.await {
            Ok(grant) => grant,
            Err(_) => unreachable!("the scheduler keeps whoever waits until it has a turn"),
        }
    }

    /// Requests that wait: reads, programs, erases.
    pub fn waiting(&self) -> [usize; 3] {
        let state = self.state();
        let [reads, programs, erases, urgent, patrol] = state.waiting.each_ref().map(VecDeque::len);
        [reads + patrol, programs, erases + urgent]
    }

    fn hand_out(self: &Arc<Self>) {
        loop {
            let mut state = self.state();
            let Some(class) = state.next() else { return };
            let Some(sender) = state.waiting[class.queue()].pop_front() else { return };
            state.count(class);
            drop(state);
            // Whoever has gone away drops its grant, which hands out the next.
            drop(sender.send(Grant { scheduler: Arc::clone(self), class }));
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        let mut state = self.scheduler.state();
        state.running[self.class.queue()] -= 1;
        if state.anybody_waits() {
            drop(state);
            self.scheduler.hand_out();
        }
    }
}
