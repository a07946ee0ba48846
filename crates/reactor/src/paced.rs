//! A driver that is asked for no more reads of a file at a time than the queue of the device below takes; the others wait here.
//!
//! A core that asks for more sleeps in the kernel until there is room, and with it all that it serves from memory: io_uring and AIO
//! promise not to wait, but file systems pass that on to no request of a direct read. Reads come in such numbers, writes do not: what is
//! left of the queue is for them and for others who use the device. (Decision 63 has figures.)
//!
//! 1. All cores share a file's places ([`FileQueue`]). A core that has no read of it under way takes one in any case: that it
//!    completes is what starts those that wait, and other cores tell nobody. Where reads wait on several cores, none of them has more than
//!    its share.
//! 2. A place is given back when its read completes, whether or not anybody polls for it: what is read ahead waits for somebody who may be
//!    busy, and must hold up nobody.

use crate::driver::{Completion, Driver, Handle, Op, Outcome, Token, Wait};
use std::collections::VecDeque;
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// What a queue takes of which nobody knows.
const QUEUE_DEPTH: u32 = 128;
/// Reads at a time, whatever the queue takes.
const READS_MIN: u32 = 4;
/// Longer reads are several requests.
const REQUEST_BYTES: usize = 256 << 10;

/// What all cores ask of a file.
#[derive(Debug)]
pub struct FileQueue {
    /// How much of it they may read at a time, in requests to its device.
    max: u32,
    taken: AtomicU32,
    /// Cores on which reads wait.
    cores_waiting: AtomicU32,
    begun: AtomicU64,
    answered: AtomicU64,
}

/// How far the world is with what it was asked of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requests {
    /// Operations that it has not answered.
    pub under_way: u64,
    /// Those that it has answered since the file was opened, whatever the answer, and whether or not anybody has fetched it.
    pub answered: u64,
}

impl FileQueue {
    /// That of a file above a queue of that depth.
    pub(crate) fn of(queue_depth: Option<u32>) -> Self {
        let depth = queue_depth.unwrap_or(QUEUE_DEPTH);
        Self::limited((depth - depth / 8).max(READS_MIN))
    }

    /// One that takes whatever it is asked for.
    pub(crate) fn unlimited() -> Self {
        Self::limited(u32::MAX / 2)
    }

    fn limited(max: u32) -> Self {
        Self {
            max,
            taken: AtomicU32::new(0),
            cores_waiting: AtomicU32::new(0),
            begun: AtomicU64::new(0),
            answered: AtomicU64::new(0),
        }
    }

    pub(crate) fn requests(&self) -> Requests {
        // In this order: what ends in between is counted as under way, and the next look finds it answered.
        let answered = self.answered.load(Ordering::Acquire);
        let under_way = self.begun.load(Ordering::Relaxed).saturating_sub(answered);
        Requests { under_way, answered }
    }

    fn requests_of(&self, bytes: usize) -> u32 {
        u32::try_from(bytes.div_ceil(REQUEST_BYTES)).unwrap_or(u32::MAX).clamp(1, self.max)
    }

    /// For a core that has `own`; `waits`: it is one of those on which reads wait.
    fn take(&self, requests: u32, own: u32, waits: bool) -> bool {
        let others = self.cores_waiting.load(Ordering::Relaxed).saturating_sub(u32::from(waits));
        if own > 0 && others > 0 && own + requests > self.max / (others + 1) {
            return false;
        }
        let before = self.taken.fetch_add(requests, Ordering::Relaxed);
        let fits = own == 0 || before + requests <= self.max;
        if !fits {
            self.give_back(requests);
        }
        fits
    }

    fn give_back(&self, requests: u32) {
        self.taken.fetch_sub(requests, Ordering::Relaxed);
    }
}

/// A file of which this core has operations under way.
struct Used {
    file: Handle,
    under_way: u32,
    /// Places that its reads have.
    own: u32,
    /// Bounded by the operations in flight, each of which its task awaits.
    waiting: VecDeque<(Token, u32, Op)>,
}

impl Used {
    fn queue(&self) -> &FileQueue {
        self.file.queue().expect("what is kept here is a file")
    }

    /// A read that waits, if it has a place now.
    fn next(&mut self) -> Option<(Token, u32, Op)> {
        let (_, requests, _) = self.waiting.front()?;
        if !self.queue().take(*requests, self.own, true) {
            return None;
        }
        let next = self.waiting.pop_front();
        self.note_served();
        next
    }

    /// One that waited does not any more.
    fn note_served(&self) {
        if self.waiting.is_empty() {
            self.queue().cores_waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// See the module's text.
pub(crate) struct Paced {
    driver: Driver,
    files: Vec<Option<Used>>,
    /// By the index of the token: which file it is of, and the places that it has.
    taken: Vec<Option<(usize, u32)>>,
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
        let places = match &op {
            Op::Read { file, buf, start, .. } => {
                file.queue().map(|queue| (file, queue, queue.requests_of(buf.len() - start)))
            }
            Op::Write { file, .. }
            | Op::Sync { file }
            | Op::Punch { file, .. }
            | Op::Allocate { file, .. } => file.queue().map(|queue| (file, queue, 0)),
            _ => None,
        };
        if let Some((file, queue, requests)) = places {
            queue.begun.fetch_add(1, Ordering::Relaxed);
            let at = self.used(file);
            let used = self.files[at].as_mut().expect("it was found or made");
            let waits = !used.waiting.is_empty();
            if requests > 0 && (waits || !queue.take(requests, used.own, false)) {
                if !waits {
                    queue.cores_waiting.fetch_add(1, Ordering::Relaxed);
                }
                return used.waiting.push_back((token, requests, op));
            }
            self.begin(token, at, requests);
        }
        self.driver.submit(token, op);
    }

    /// Where what this core asks of a file is kept.
    fn used(&mut self, file: &Handle) -> usize {
        let is_it = |known: &Option<Used>| known.as_ref().is_some_and(|used| used.file.is_same(file));
        self.files.iter().position(is_it).unwrap_or_else(|| {
            let at = self.files.iter().position(Option::is_none).unwrap_or(self.files.len());
            if at == self.files.len() {
                self.files.push(None);
            }
            let (file, waiting) = (file.clone(), VecDeque::new());
            self.files[at] = Some(Used { file, under_way: 0, own: 0, waiting });
            at
        })
    }

    fn begin(&mut self, token: Token, at: usize, requests: u32) {
        if self.taken.len() <= token.index() {
            self.taken.resize(token.index() + 1, None);
        }
        self.taken[token.index()] = Some((at, requests));
        let used = self.files[at].as_mut().expect("it is used");
        used.own += requests;
        used.under_way += 1;
    }

    /// An operation has completed: reads that wait may begin.
    fn end(&mut self, token: Token) {
        let Some((at, requests)) = self.taken.get_mut(token.index()).and_then(Option::take) else { return };
        let used = self.files[at].as_mut().expect("it was used");
        used.under_way -= 1;
        used.queue().answered.fetch_add(1, Ordering::Release);
        if requests > 0 {
            used.own -= requests;
            used.queue().give_back(requests);
            while let Some((token, requests, op)) = self.files[at].as_mut().and_then(Used::next) {
                self.begin(token, at, requests);
                self.driver.submit(token, op);
            }
        }
        // Whoever is idle holds no file open.
        self.files[at].take_if(|used| used.under_way == 0);
    }

    pub(crate) fn cancel(&mut self, token: Token) {
        for used in self.files.iter_mut().flatten() {
            if let Some(at) = used.waiting.iter().position(|(waiting, ..)| *waiting == token)
                && let Some((_, _, Op::Read { buf, .. })) = used.waiting.remove(at)
            {
                used.note_served();
                used.queue().answered.fetch_add(1, Ordering::Release);
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
