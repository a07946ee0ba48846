//! A driver that is asked for no more reads of a file at a time than the queue of the device below takes; the others wait here.
//!
//! A core that asks for more sleeps in the kernel until there is room, and with it all that it serves from memory: io_uring and AIO
//! promise not to wait, but file systems pass that on to no request of a direct read. Reads come in such numbers, writes do not: what is
//! left of the queue is for them and for others who use the device. (Decision 63 has figures.)
//!
//! 1. All cores share a file's places ([`crate::file_queue`]). A core that has no read of it under way takes one in any case: that it
//!    completes is what starts those that wait, and other cores tell nobody. Where reads wait on several cores, none of them has more than
//!    its share.
//! 2. A place is given back when its read completes, whether or not anybody polls for it: what is read ahead waits for somebody who may be
//!    busy, and must hold up nobody.

use crate::driver::{Completion, Driver, Op, Outcome, Token, Wait};
use crate::file_queue::{Asked, FileQueue, Share};
use std::collections::VecDeque;
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// A file that this core has used.
struct Used {
    share: Share,
    under_way: u32,
    /// Bounded by the operations in flight, each of which its task awaits.
    waiting: VecDeque<(Token, u32, Op)>,
}

impl Used {
    /// A read that waits, if it has a place now.
    fn next(&mut self) -> Option<(Token, u32, Op)> {
        let (_, requests, _) = self.waiting.front()?;
        if !self.share.take(*requests) {
            return None;
        }
        let next = self.waiting.pop_front();
        self.share.set_waits(!self.waiting.is_empty());
        next
    }

    /// Whether nobody will ask for it any more.
    fn is_done(&self) -> bool {
        self.under_way == 0 && self.waiting.is_empty() && self.share.is_closed()
    }
}

/// Which file an operation under way is of, by its place in [`Paced::files`], and the places that it has.
#[derive(Clone, Copy)]
struct Taken {
    file: u32,
    requests: u32,
}

/// See the module's text.
pub(crate) struct Paced {
    driver: Driver,
    /// Those that are closed make room for others.
    files: Vec<Used>,
    /// By the index of the token.
    taken: Vec<Option<Taken>>,
    /// Reads that were cancelled while they waited.
    given_up: Vec<Completion>,
}

impl Deref for Paced {
    type Target = Driver;

    fn deref(&self) -> &Driver {
        &self.driver
    }
}

impl DerefMut for Paced {
    fn deref_mut(&mut self) -> &mut Driver {
        &mut self.driver
    }
}

impl Paced {
    pub(crate) fn new(driver: Driver) -> Self {
        Self { driver, files: Vec::new(), taken: Vec::new(), given_up: Vec::new() }
    }

    pub(crate) fn submit(&mut self, token: Token, op: Op) {
        let asked = match &op {
            Op::Read { file, buf, start, .. } => {
                file.queue().map(|queue| (queue, queue.requests_of(buf.len() - start)))
            }
            Op::Write { file, .. }
            | Op::Sync { file }
            | Op::Punch { file, .. }
            | Op::Allocate { file, .. } => file.queue().map(|queue| (queue, 0)),
            _ => None,
        };
        if let Some((queue, requests)) = asked {
            let file = self.used(queue);
            let used = &mut self.files[file];
            used.share.note_begun(if requests > 0 { Asked::Read } else { Asked::Change });
            if requests > 0 && (!used.waiting.is_empty() || !used.share.take(requests)) {
                used.share.set_waits(true);
                return used.waiting.push_back((token, requests, op));
            }
            self.begin(token, file, requests);
        }
        self.driver.submit(token, op);
    }

    /// Where what this core asks of a file is kept.
    fn used(&mut self, queue: &Arc<FileQueue>) -> usize {
        if let Some(known) = self.files.iter().position(|used| used.share.is_of(queue)) {
            return known;
        }
        let used = Used { share: Share::of(queue), under_way: 0, waiting: VecDeque::new() };
        match self.files.iter().position(Used::is_done) {
            Some(done) => {
                self.files[done] = used;
                done
            }
            None => {
                self.files.push(used);
                self.files.len() - 1
            }
        }
    }

    fn begin(&mut self, token: Token, file: usize, requests: u32) {
        if self.taken.len() <= token.index() {
            self.taken.resize(token.index() + 1, None);
        }
        self.taken[token.index()] = Some(Taken { file: file as u32, requests });
        self.files[file].under_way += 1;
    }

    /// An operation has completed: reads that wait may begin.
    fn end(&mut self, token: Token) {
        let taken = self.taken.get_mut(token.index()).and_then(Option::take);
        let Some(Taken { file, requests }) = taken else { return };
        let file = file as usize;
        let used = &mut self.files[file];
        used.under_way -= 1;
        used.share.note_answered(if requests > 0 { Asked::Read } else { Asked::Change });
        if requests > 0 {
            used.share.give_back(requests);
            while let Some((token, requests, op)) = self.files[file].next() {
                self.begin(token, file, requests);
                self.driver.submit(token, op);
            }
        }
    }

    pub(crate) fn cancel(&mut self, token: Token) {
        for used in &mut self.files {
            if let Some(at) = used.waiting.iter().position(|(waiting, ..)| *waiting == token)
                && let Some((_, _, Op::Read { buf, .. })) = used.waiting.remove(at)
            {
                used.share.set_waits(!used.waiting.is_empty());
                used.share.note_answered(Asked::Read);
                let outcome = Outcome::Read(Err(io::Error::from_raw_os_error(libc::ECANCELED)), buf);
                return self.given_up.push(Completion { token, outcome, more: false });
            }
        }
        self.driver.cancel(token);
    }

    pub(crate) fn turn(&mut self, wait: Wait, out: &mut Vec<Completion>) -> io::Result<()> {
        let wait = if self.given_up.is_empty() { wait } else { Wait::Poll };
        out.append(&mut self.given_up);
        let before = out.len();
        let result = self.driver.turn(wait, out);
        for completion in &out[before..] {
            if matches!(completion.outcome, Outcome::Read(..) | Outcome::Written(..) | Outcome::Done(_)) {
                self.end(completion.token);
            }
        }
        result
    }

    pub(crate) fn has_work(&self) -> bool {
        !self.given_up.is_empty() || self.driver.has_work()
    }
}
