//! The simulated world's state: clock, event queue, operations under way. No code of a host runs in here.
//!
//! Events are ordered by (virtual ns, sequence). Every event and every submitted operation is folded into a
//! rolling hash, contents of writes and sends included, so that two runs of one seed can be compared.

use super::disk::{CrashFate, Disk};
use super::model::{CutMode, DiskClock, FileFault, HostCounters, HostOptions, PowerCut, RandomFault};
use super::net::{HostId, Net, NetEvent, Socket};
use crate::driver::{Completion, Handle, Op, Outcome, SimHandle, Token};
use crate::file_queue::FileQueue;
use pumice_base::hash::{HashMap, stable_hash64};
use pumice_base::rng::Rng;
use pumice_base::sync::lock;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

/// 2026-01-01 00:00 UTC.
const WALL_START_MS: u64 = 1_767_225_600_000;

/// What O_DIRECT asks of offsets and lengths unless told otherwise.
const DIRECT_BYTES: u32 = 512;

/// Work that a core of a host's present life waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct CoreAt {
    pub host: HostId,
    pub life: u32,
    pub core: u16,
}

#[derive(Debug)]
pub(crate) enum Event {
    /// A core has something to do.
    Run(CoreAt),
    /// An operation's time has come.
    Finish(u64),
    Net(NetEvent),
    Crash {
        host: HostId,
        kill: bool,
    },
}

/// What an open handle stands for.
#[derive(Clone, Debug)]
pub(crate) enum Open {
    /// `unit`: what O_DIRECT asks of offsets and lengths, in bytes; 1 of a file that is not direct.
    File {
        host: HostId,
        path: PathBuf,
        read_only: bool,
        unit: u32,
        locked: bool,
    },
    Listener {
        host: HostId,
        id: u64,
    },
    Stream {
        host: HostId,
        socket: Socket,
    },
}

/// One operation under way.
#[derive(Debug)]
pub(crate) struct Pending {
    pub at: CoreAt,
    pub token: Token,
    pub op: Op,
    /// The sequence number at its submission.
    pub seq: u64,
    /// The socket of a connect under way.
    pub socket: Option<Socket>,
    /// A write that the page cache does not get to the media.
    pub lost: bool,
}

pub(crate) struct CoreState {
    pub inbox: Rc<RefCell<VecDeque<Completion>>>,
    /// The core's next `Run`, if one is queued.
    pub run_at: Option<(u64, u64)>,
    pub busy_until_ns: u64,
}

pub(crate) struct HostState {
    pub options: HostOptions,
    pub up: bool,
    pub life: u32,
    pub cores: Vec<CoreState>,
    pub disk: Disk,
    /// What O_DIRECT asks of offsets and lengths of files that are opened from now on; 0: there is no such thing.
    pub direct_bytes: u32,
    pub queue_depth: Option<u32>,
    pub clock: DiskClock,
    /// Before then no write, sync or other change is answered.
    pub writes_stall_until_ns: u64,
    pub faults: Vec<FileFault>,
    pub random_faults: Vec<RandomFault>,
    pub cut: Option<PowerCut>,
    /// Forces the fate of unsynced changes at every crash.
    pub fate: Option<CrashFate>,
    pub wall_offset_ms: i64,
    pub counters: HostCounters,
    pub rng: Rng,
    pub next_port: u16,
}

/// Handles that were dropped, and cores that were kicked: written by guards and wakers that must be `Send`.
#[derive(Default)]
pub(crate) struct Mailbox {
    pub closed: Mutex<Vec<u64>>,
    pub kicked: Mutex<Vec<CoreAt>>,
}

impl Mailbox {
    pub(crate) fn take<T>(list: &Mutex<Vec<T>>) -> Vec<T> {
        std::mem::take(&mut *lock(list))
    }
}

/// Tells the world that a handle's last owner is gone.
struct Guard {
    id: u64,
    mailbox: Arc<Mailbox>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        lock(&self.mailbox.closed).push(self.id);
    }
}

pub(crate) struct Engine {
    pub now_ns: u64,
    pub seq: u64,
    queue: BTreeMap<(u64, u64), Event>,
    pub hash: u64,
    pub events: u64,
    pub hosts: Vec<HostState>,
    pub net: Net,
    pub ops: BTreeMap<u64, Pending>,
    tokens: HashMap<(CoreAt, Token), u64>,
    next_op: u64,
    pub handles: BTreeMap<u64, Open>,
    next_handle: u64,
    pub accepting: BTreeMap<u64, u64>,
    pub connecting: BTreeMap<Socket, u64>,
    pub receiving: BTreeMap<Socket, u64>,
    pub sending: BTreeMap<Socket, VecDeque<u64>>,
    pub mailbox: Arc<Mailbox>,
    schedule_rng: Rng,
    pub root_rng: Rng,
}

impl Engine {
    pub(crate) fn new(seed: u64) -> Self {
        let root = Rng::from_seed(seed);
        Self {
            now_ns: 0,
            seq: 0,
            queue: BTreeMap::new(),
            hash: seed,
            events: 0,
            hosts: Vec::new(),
            net: Net::new(root.split("net")),
            ops: BTreeMap::new(),
            tokens: HashMap::default(),
            next_op: 1,
            handles: BTreeMap::new(),
            next_handle: 1,
            accepting: BTreeMap::new(),
            connecting: BTreeMap::new(),
            receiving: BTreeMap::new(),
            sending: BTreeMap::new(),
            mailbox: Arc::new(Mailbox::default()),
            schedule_rng: root.split("schedule"),
            root_rng: root,
        }
    }

    /// Folds what happened into the event hash.
    pub(crate) fn note(&mut self, kind: u8, a: u64, b: u64, c: u64) {
        let mut bytes = [0u8; 41];
        bytes[0] = kind;
        for (index, word) in [self.now_ns, self.seq, a, b, c].into_iter().enumerate() {
            bytes[1 + index * 8..9 + index * 8].copy_from_slice(&word.to_le_bytes());
        }
        self.hash = stable_hash64(self.hash, &bytes);
    }

    pub(crate) fn next_seq(&mut self) -> u64 {
        self.seq += 1;
        self.seq
    }

    pub(crate) fn push(&mut self, at_ns: u64, event: Event) -> (u64, u64) {
        let key = (at_ns.max(self.now_ns), self.next_seq());
        self.queue.insert(key, event);
        key
    }

    /// When the next event is due.
    pub(crate) fn next_event_ns(&self) -> Option<u64> {
        self.queue.first_key_value().map(|(&(at, _), _)| at)
    }

    /// Takes the next event and moves the clock to it.
    pub(crate) fn pop(&mut self) -> Option<Event> {
        let ((at, seq), event) = self.queue.pop_first()?;
        self.now_ns = at;
        self.events += 1;
        let kind = match &event {
            Event::Run(at) => (1, u64::from(at.host), u64::from(at.core)),
            Event::Finish(op) => (2, *op, 0),
            Event::Net(_) => (3, 0, 0),
            Event::Crash { host, kill } => (4, u64::from(*host), u64::from(*kill)),
        };
        self.note(kind.0, kind.1, kind.2, seq);
        Some(event)
    }

    // --- cores -----------------------------------------------------------------------------------------

    pub(crate) fn core_mut(&mut self, at: CoreAt) -> Option<&mut CoreState> {
        let host = self.hosts.get_mut(at.host as usize)?;
        (host.up && host.life == at.life).then(|| host.cores.get_mut(usize::from(at.core))).flatten()
    }

    /// Lets a core run at `at_ns`, or earlier if it was going to.
    pub(crate) fn run_core(&mut self, at: CoreAt, at_ns: u64) {
        let now = self.now_ns;
        let Some(core) = self.core_mut(at) else { return };
        let due = at_ns.max(now).max(core.busy_until_ns);
        let old = core.run_at;
        if old.is_some_and(|(queued, _)| queued <= due) {
            return;
        }
        if let Some(key) = old {
            self.queue.remove(&key);
        }
        let key = self.push(due, Event::Run(at));
        if let Some(core) = self.core_mut(at) {
            core.run_at = Some(key);
        }
    }

    /// A core's `Run` has come: whether there is such a core still. CPU is free, but a turn keeps the core from
    /// its next one for a fraction of a microsecond, so that a busy loop sees time pass and interleavings vary.
    pub(crate) fn begin_turn(&mut self, at: CoreAt) -> bool {
        let busy_until = self.now_ns + 100 + self.schedule_rng.below(800);
        let Some(core) = self.core_mut(at) else { return false };
        core.run_at = None;
        core.busy_until_ns = busy_until;
        true
    }

    /// Takes note of what the cores' turn left in the mailbox.
    pub(crate) fn empty_mailbox(&mut self) {
        let mailbox = Arc::clone(&self.mailbox);
        for id in Mailbox::take(&mailbox.closed) {
            self.close(id);
        }
        for at in Mailbox::take(&mailbox.kicked) {
            self.run_core(at, self.now_ns);
        }
    }

    /// Hands a completion to its core.
    pub(crate) fn deliver(&mut self, at: CoreAt, token: Token, outcome: Outcome, more: bool) {
        let now = self.now_ns;
        if let Some(core) = self.core_mut(at) {
            core.inbox.borrow_mut().push_back(Completion { token, outcome, more });
            self.run_core(at, now);
        }
    }

    // --- operations ------------------------------------------------------------------------------------

    pub(crate) fn submit(&mut self, at: CoreAt, token: Token, op: Op) {
        if self.core_mut(at).is_none() {
            // The host is down; a task that is dropped has no more to say.
            return drop(op);
        }
        let seq = self.next_seq();
        let id = self.next_op;
        self.next_op += 1;
        self.tokens.insert((at, token), id);
        self.note(16, u64::from(at.host) << 16 | u64::from(at.core), token.0, id);
        self.ops.insert(id, Pending { at, token, op, seq, socket: None, lost: false });
        self.start(id);
        self.settle_net();
    }

    fn start(&mut self, id: u64) {
        let Some(pending) = self.ops.get(&id) else { return };
        match &pending.op {
            Op::Read { .. } | Op::Write { .. } | Op::Sync { .. } | Op::Open { .. } => self.start_file(id),
            Op::Punch { .. } | Op::Allocate { .. } | Op::SetLen { .. } | Op::Len { .. } => {
                self.start_file(id)
            }
            Op::ReportZones { .. } | Op::ManageZones { .. } => self.start_file(id),
            Op::Bind { .. } | Op::Accept { .. } | Op::Connect { .. } => self.start_net(id),
            Op::Receive { .. } | Op::Send { .. } | Op::Shutdown { .. } => self.start_net(id),
            // None ever comes.
            Op::Signal => {}
        }
    }

    /// The final completion of an operation.
    pub(crate) fn finish(&mut self, id: u64, outcome: Outcome) {
        if let Some(pending) = self.take_op(id) {
            self.deliver(pending.at, pending.token, outcome, false);
        }
    }

    /// Forgets an operation, which the caller then completes.
    pub(crate) fn take_op(&mut self, id: u64) -> Option<Pending> {
        let pending = self.ops.remove(&id)?;
        self.tokens.remove(&(pending.at, pending.token));
        Some(pending)
    }

    pub(crate) fn cancel(&mut self, at: CoreAt, token: Token) {
        let Some(&id) = self.tokens.get(&(at, token)) else { return };
        self.note(17, token.0, id, 0);
        let Some(pending) = self.ops.get(&id) else { return };
        match &pending.op {
            // Under way in the device: it completes.
            Op::Read { .. } | Op::Write { .. } | Op::Sync { .. } | Op::Open { .. } => {}
            Op::Punch { .. } | Op::Allocate { .. } | Op::SetLen { .. } | Op::Len { .. } => {}
            Op::ReportZones { .. } | Op::ManageZones { .. } => {}
            Op::Signal => self.finish(id, Outcome::Signal(Err(cancelled()))),
            _ => self.cancel_net(id),
        }
        self.settle_net();
    }

    /// An operation's time has come.
    pub(crate) fn finish_event(&mut self, id: u64) {
        self.finish_timed(id);
        self.settle_net();
    }

    // --- handles ---------------------------------------------------------------------------------------

    pub(crate) fn make_handle(&mut self, open: Open) -> Handle {
        let id = self.next_handle;
        self.next_handle += 1;
        // No core of the simulation waits in a kernel: a limit is there for tests.
        let queue = match &open {
            Open::File { host, .. } => match self.hosts[*host as usize].queue_depth {
                None => Some(FileQueue::unlimited()),
                depth => Some(FileQueue::of(depth)),
            },
            _ => None,
        };
        self.handles.insert(id, open);
        let guard = Box::new(Guard { id, mailbox: Arc::clone(&self.mailbox) });
        Handle::sim(SimHandle { id, guard, queue })
    }

    fn close(&mut self, id: u64) {
        let Some(open) = self.handles.remove(&id) else { return };
        self.note(18, id, 0, 0);
        match open {
            // A lock goes with its handle.
            Open::File { .. } => {}
            Open::Listener { id, .. } => self.net.close_listener(self.now_ns, id),
            Open::Stream { socket, .. } => self.net.close(self.now_ns, socket),
        }
        self.settle_net();
    }

    // --- hosts -----------------------------------------------------------------------------------------

    pub(crate) fn add_host(&mut self, options: HostOptions) -> HostId {
        let id = self.hosts.len() as HostId;
        let rng = self.root_rng.split(&format!("host {id}"));
        let disk = Disk { capacity_bytes: options.capacity_bytes, ..Disk::default() };
        self.hosts.push(HostState {
            clock: DiskClock::new(&options.disk),
            options,
            up: false,
            life: 0,
            cores: Vec::new(),
            disk,
            direct_bytes: DIRECT_BYTES,
            queue_depth: None,
            writes_stall_until_ns: 0,
            faults: Vec::new(),
            random_faults: Vec::new(),
            cut: None,
            fate: None,
            wall_offset_ms: 0,
            counters: HostCounters::default(),
            rng,
            next_port: 40_000,
        });
        id
    }

    pub(crate) fn wall_ms(&self, host: HostId) -> u64 {
        self.wall_us(host) / 1000
    }

    pub(crate) fn wall_us(&self, host: HostId) -> u64 {
        let offset_us = self.hosts[host as usize].wall_offset_ms.saturating_mul(1000);
        (WALL_START_MS * 1000 + self.now_ns / 1000).saturating_add_signed(offset_us)
    }

    /// Counts a completed change of the media; answers how a power cut planned for it treats it.
    pub(crate) fn count_mutation(&mut self, host: HostId) -> Option<CutMode> {
        let host = &mut self.hosts[host as usize];
        let number = host.counters.mutations;
        host.counters.mutations += 1;
        host.cut.filter(|cut| cut.at == number).map(|cut| cut.mode)
    }

    /// Stops a host at once. Its executors are dropped by the world. A power cut decides the fate of what is not
    /// on the media; a kill (the process alone dies) keeps what the kernel has.
    pub(crate) fn stop_host(&mut self, id: HostId, kill: bool) {
        let host = &mut self.hosts[id as usize];
        if !host.up {
            return;
        }
        host.up = false;
        host.life += 1;
        host.cores.clear();
        host.counters.crashes += 1;
        let cut = host.cut.take();
        let gone: Vec<u64> =
            self.ops.iter().filter(|(_, pending)| pending.at.host == id).map(|(&op, _)| op).collect();
        let gone: Vec<Pending> = gone.into_iter().filter_map(|op| self.take_op(op)).collect();
        let mut in_flight: BTreeMap<PathBuf, Vec<_>> = BTreeMap::new();
        for pending in &gone {
            if let Some((path, change)) = self.change_of(&pending.op) {
                in_flight.entry(path).or_default().push((pending.seq, change));
            }
        }
        let host = &mut self.hosts[id as usize];
        let fate = cut.and_then(|cut| cut.fate).or(host.fate).unwrap_or_else(|| match host.rng.below(4) {
            0 => CrashFate::Lost,
            1 => CrashFate::Kept,
            _ => CrashFate::Mixed,
        });
        for (path, file) in &mut host.disk.files {
            let changes = in_flight.remove(path).unwrap_or_default();
            if kill {
                for (seq, change) in changes {
                    if host.rng.chance(0.5) {
                        file.complete(seq, change, false);
                    }
                }
            } else {
                file.crash(changes.into_iter().map(|(_, change)| change).collect(), fate, &mut host.rng);
            }
        }
        host.clock = DiskClock::new(&host.options.disk);
        self.connecting.retain(|_, op| self.ops.contains_key(op));
        self.accepting.retain(|_, op| self.ops.contains_key(op));
        self.receiving.retain(|_, op| self.ops.contains_key(op));
        self.sending.retain(|_, queue| {
            queue.retain(|op| self.ops.contains_key(op));
            !queue.is_empty()
        });
        self.handles.retain(|_, open| {
            let (Open::File { host, .. } | Open::Listener { host, .. } | Open::Stream { host, .. }) = open;
            *host != id
        });
        self.net.host_gone(self.now_ns, id, kill, 1_000_000_000);
        drop(gone);
        self.note(19, u64::from(id), u64::from(kill), fate as u64);
        self.settle_net();
    }

    /// Starts a host's cores: the inboxes their drivers read.
    pub(crate) fn start_host(&mut self, id: HostId) -> Vec<(CoreAt, Rc<RefCell<VecDeque<Completion>>>)> {
        let host = &mut self.hosts[id as usize];
        assert!(!host.up, "host {id} is up already");
        host.up = true;
        (0..host.options.cores as u16)
            .map(|core| {
                let inbox = Rc::new(RefCell::new(VecDeque::new()));
                host.cores.push(CoreState { inbox: Rc::clone(&inbox), run_at: None, busy_until_ns: 0 });
                (CoreAt { host: id, life: host.life, core }, inbox)
            })
            .collect()
    }
}

pub(crate) fn cancelled() -> io::Error {
    errno(libc::ECANCELED)
}

pub(crate) fn errno(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}
