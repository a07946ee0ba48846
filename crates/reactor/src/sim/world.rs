//! The world: hosts whose cores it steps, the clock that it moves, and every fault there is.

use super::disk::{CrashFate, Disk, SimFile};
use super::engine::{CoreAt, Engine, Event};
use super::model::{FileFault, HostCounters, HostOptions, PowerCut, RandomFault};
use super::net::{HostId, LinkModel, NetCounters};
use super::net_ops::host_ip;
use super::zoned::{ZonedModel, Zones};
use super::{SimDriver, SimKick};
use crate::addr::Addr;
use crate::driver::{Driver, Kick};
use crate::executor::{Core, Next};
use crate::remote::Server;
use crate::task::JoinHandle;
use crate::time::Nanos;
use crate::zones::ZoneCondition;
use crate::{CoreId, LocalBoxFuture};
use pumice_base::rng::Rng;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Why a run ended without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Halt {
    /// The host went down (a power cut, a crash).
    HostDown,
    /// Nothing is left that could ever happen: a deadlock.
    Idle,
    /// The virtual time given ran out.
    OutOfTime,
}

impl fmt::Display for Halt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HostDown => "the host went down",
            Self::Idle => "nothing is left that could happen: a deadlock",
            Self::OutOfTime => "the virtual time given ran out",
        })
    }
}

impl std::error::Error for Halt {}

/// The files of a host at one moment. Cloning shares them.
#[derive(Clone, Debug)]
pub struct DiskImage(Disk);

struct Inner {
    engine: Rc<RefCell<Engine>>,
    cores: RefCell<BTreeMap<CoreAt, Rc<Core>>>,
    /// A core is being stepped: hosts may not be stopped under its feet.
    stepping: Cell<bool>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        for core in self.cores.take().into_values() {
            core.close();
        }
    }
}

/// A simulated world. Clones are the same world, so that a test's tasks can hold one.
#[derive(Clone)]
pub struct World(Rc<Inner>);

impl World {
    /// An empty world.
    pub fn new(seed: u64) -> Self {
        Self(Rc::new(Inner {
            engine: Rc::new(RefCell::new(Engine::new(seed))),
            cores: RefCell::default(),
            stepping: Cell::new(false),
        }))
    }

    fn with<R>(&self, f: impl FnOnce(&mut Engine) -> R) -> R {
        f(&mut self.0.engine.borrow_mut())
    }

    fn file<R>(&self, host: HostId, path: &Path, f: impl FnOnce(&mut SimFile) -> R) -> R {
        self.with(|engine| match engine.hosts[host as usize].disk.files.get_mut(path) {
            Some(file) => f(file),
            None => panic!("host {host} has no file {}", path.display()),
        })
    }

    // --- hosts -----------------------------------------------------------------------------------------

    /// A host that is up, with an empty disk.
    pub fn add_host(&self, options: HostOptions) -> HostId {
        let host = self.with(|engine| engine.add_host(options));
        self.restart(host);
        host
    }

    /// Starts a host that is down, with the files it has.
    pub fn restart(&self, host: HostId) {
        let cores = self.with(|engine| engine.start_host(host));
        let mailbox = self.with(|engine| Arc::clone(&engine.mailbox));
        let kick = |at| Arc::new(SimKick { at, mailbox: Arc::clone(&mailbox) }) as Arc<dyn Kick>;
        let server = Server::new(cores.iter().map(|(at, _)| kick(*at)).collect());
        for (at, inbox) in cores {
            let driver = SimDriver { engine: Rc::clone(&self.0.engine), at, inbox };
            let core = Core::new(&server, CoreId(at.core), Driver::Sim(Box::new(driver)));
            self.0.cores.borrow_mut().insert(at, core);
            // A core must have been idle once before others know that it needs a kick.
            self.with(|engine| engine.run_core(at, engine.now_ns));
        }
    }

    /// Cuts a host's power now: what no sync covers may be lost, torn or reordered, by the seed. Its peers learn
    /// of it a second later.
    pub fn crash(&self, host: HostId) {
        self.stop(host, false);
    }

    /// Kills a host's server as `kill -9` does: what it wrote stays in the kernel's cache, its connections break.
    pub fn kill(&self, host: HostId) {
        self.stop(host, true);
    }

    fn stop(&self, host: HostId, kill: bool) {
        if self.0.stepping.get() {
            self.with(|engine| engine.push(engine.now_ns, Event::Crash { host, kill }));
        } else {
            self.with(|engine| engine.stop_host(host, kill));
            self.drop_cores(host);
        }
    }

    /// Drops a stopped host's executors.
    fn drop_cores(&self, host: HostId) {
        let mut gone = Vec::new();
        self.0.cores.borrow_mut().retain(|at, core| {
            if at.host == host {
                gone.push(Rc::clone(core));
            }
            at.host != host
        });
        for core in gone {
            core.close();
        }
        self.with(Engine::empty_mailbox);
    }

    /// Whether a host is up.
    pub fn is_up(&self, host: HostId) -> bool {
        self.with(|engine| engine.hosts[host as usize].up)
    }

    /// The TCP address of a port of a host, for every host.
    pub fn addr(&self, host: HostId, port: u16) -> Addr {
        Addr::Tcp(SocketAddr::new(host_ip(host), port))
    }

    // --- running ---------------------------------------------------------------------------------------

    fn core(&self, host: HostId, core: u16) -> (CoreAt, Rc<Core>) {
        let cores = self.0.cores.borrow();
        match cores.iter().find(|(at, _)| at.host == host && at.core == core) {
            Some((at, found)) => (*at, Rc::clone(found)),
            None => panic!("host {host} has no core {core}, or is down"),
        }
    }

    /// Adds a task to a core of a host. It runs as the world does.
    pub fn run<F: Future + 'static>(&self, host: HostId, core: u16, future: F) -> JoinHandle<F::Output> {
        let (at, core) = self.core(host, core);
        let handle = core.enter(|| core.spawn(future));
        self.with(|engine| engine.run_core(at, engine.now_ns));
        handle
    }

    /// Adds a root task to every core of a host, as [`crate::start`] does for real ones.
    pub fn start(&self, host: HostId, init: impl Fn(CoreId) -> LocalBoxFuture<'static, ()>) {
        let cores = self.with(|engine| engine.hosts[host as usize].cores.len());
        for core in 0..cores as u16 {
            let (at, found) = self.core(host, core);
            found.enter(|| drop(found.spawn(init(CoreId(core)))));
            self.with(|engine| engine.run_core(at, engine.now_ns));
        }
    }

    /// Lets the next event happen; false when there is none.
    pub fn step(&self) -> bool {
        let Some(event) = self.with(Engine::pop) else { return false };
        match event {
            Event::Run(at) => self.step_core(at),
            Event::Finish(op) => self.with(|engine| engine.finish_event(op)),
            Event::Net(event) => self.with(|engine| {
                engine.net.happen(engine.now_ns, event);
                engine.settle_net();
            }),
            Event::Crash { host, kill } => {
                self.with(|engine| engine.stop_host(host, kill));
                self.drop_cores(host);
            }
        }
        self.with(Engine::empty_mailbox);
        true
    }

    fn step_core(&self, at: CoreAt) {
        if !self.with(|engine| engine.begin_turn(at)) {
            return;
        }
        let Some(core) = self.0.cores.borrow().get(&at).cloned() else { return };
        let stepping = Stepping::new(&self.0.stepping);
        let next = match core.step() {
            Ok(next) => next,
            Err(error) => panic!("the simulated driver of {at:?} failed: {error}"),
        };
        drop(stepping);
        self.with(|engine| {
            engine.empty_mailbox();
            match next {
                Next::Now => engine.run_core(at, engine.now_ns),
                Next::At(time) => engine.run_core(at, time.0),
                Next::Idle => {}
            }
        });
    }

    /// Runs until nothing is left to happen. A world with a periodic task never gets there.
    pub fn run_until_idle(&self) {
        while self.step() {}
    }

    /// Runs for so much virtual time.
    pub fn run_for(&self, duration: Duration) {
        let end = self.now() + duration;
        while self.with(|engine| engine.next_event_ns().is_some_and(|at| at <= end.0)) {
            self.step();
        }
        self.with(|engine| engine.now_ns = engine.now_ns.max(end.0));
    }

    /// Runs until `future`, on core 0 of `host`, has an answer; at most an hour of virtual time.
    pub fn block_on<F: Future + 'static>(&self, host: HostId, future: F) -> Result<F::Output, Halt> {
        self.block_on_for(host, Duration::from_secs(3600), future)
    }

    /// [`World::block_on`] with a limit of its own.
    pub fn block_on_for<F: Future + 'static>(
        &self,
        host: HostId,
        limit: Duration,
        future: F,
    ) -> Result<F::Output, Halt> {
        if !self.is_up(host) {
            return Err(Halt::HostDown);
        }
        let output = Rc::new(RefCell::new(None));
        let slot = Rc::clone(&output);
        let (life, _) = self.core(host, 0);
        drop(self.run(host, 0, async move {
            let answer = future.await;
            *slot.borrow_mut() = Some(answer);
        }));
        let end = self.now() + limit;
        loop {
            if let Some(answer) = output.borrow_mut().take() {
                return Ok(answer);
            }
            if !self.0.cores.borrow().contains_key(&life) {
                return Err(Halt::HostDown);
            }
            if self.now() > end {
                return Err(Halt::OutOfTime);
            }
            if !self.step() {
                return Err(Halt::Idle);
            }
        }
    }

    /// Virtual time.
    pub fn now(&self) -> Nanos {
        Nanos(self.with(|engine| engine.now_ns))
    }

    /// Everything that has happened, in one number: equal for two runs of one seed.
    pub fn event_hash(&self) -> u64 {
        self.with(|engine| engine.hash)
    }

    /// How many events have happened.
    pub fn events(&self) -> u64 {
        self.with(|engine| engine.events)
    }

    /// A random stream for the test's own component `name`, split from the world's seed.
    pub fn rng(&self, name: &str) -> Rng {
        self.with(|engine| engine.root_rng.split(name))
    }

    // --- disks and their faults ------------------------------------------------------------------------

    /// What a host's disk has done.
    pub fn counters(&self, host: HostId) -> HostCounters {
        self.with(|engine| engine.hosts[host as usize].counters)
    }

    /// Plans a power cut; it replaces an earlier plan. It holds for one crash.
    pub fn cut_power(&self, host: HostId, cut: PowerCut) {
        self.with(|engine| engine.hosts[host as usize].cut = Some(cut));
    }

    /// Forgets a planned power cut.
    pub fn spare_power(&self, host: HostId) {
        self.with(|engine| engine.hosts[host as usize].cut = None);
    }

    /// The fate of unsynced changes at this host's crashes; `None` leaves it to the seed.
    pub fn set_crash_fate(&self, host: HostId, fate: Option<CrashFate>) {
        self.with(|engine| engine.hosts[host as usize].fate = fate);
    }

    /// Makes file operations of a host fail.
    pub fn add_fault(&self, host: HostId, fault: FileFault) {
        self.with(|engine| engine.hosts[host as usize].faults.push(fault));
    }

    /// Strikes operations of the host by chance, until [`World::clear_faults`].
    pub fn add_random_fault(&self, host: HostId, fault: RandomFault) {
        self.with(|engine| engine.hosts[host as usize].random_faults.push(fault));
    }

    /// Ends all faults of [`World::add_fault`] and [`World::add_random_fault`].
    pub fn clear_faults(&self, host: HostId) {
        self.with(|engine| {
            engine.hosts[host as usize].faults.clear();
            engine.hosts[host as usize].random_faults.clear();
        });
    }

    /// Bytes that the files of a host may occupy from now on.
    pub fn set_capacity(&self, host: HostId, bytes: Option<u64>) {
        self.with(|engine| engine.hosts[host as usize].disk.capacity_bytes = bytes);
    }

    /// The host's disks answer nothing that they are asked from now on, for so long.
    pub fn stall_disks(&self, host: HostId, duration: Duration) {
        let until = self.now().0 + duration.as_nanos() as u64;
        self.with(|engine| engine.hosts[host as usize].clock.busy_until(until));
    }

    /// They answer reads, and nothing else, as a file system does that was frozen.
    pub fn stall_writes(&self, host: HostId, duration: Duration) {
        let until = self.now().0 + duration.as_nanos() as u64;
        self.with(|engine| engine.hosts[host as usize].writes_stall_until_ns = until);
    }

    /// What O_DIRECT asks of offsets and lengths of files that the host opens from now on, in bytes: 512 at first. Drives move to
    /// hosts that ask for more. 0: the host's file system knows no direct I/O, and its files lie in the page cache.
    pub fn set_direct_bytes(&self, host: HostId, bytes: u32) {
        self.with(|engine| engine.hosts[host as usize].direct_bytes = bytes);
    }

    /// How many requests the queues of disks take at a time, for files that the host opens from now on: reads beyond that wait on their
    /// core. At first they take whatever comes.
    pub fn set_queue_depth(&self, host: HostId, requests: u32) {
        self.with(|engine| engine.hosts[host as usize].queue_depth = Some(requests));
    }

    /// Flips the bits of `mask` in the byte at `offset` of a file; false past its end.
    pub fn flip(&self, host: HostId, path: &Path, offset: u64, mask: u8) -> bool {
        self.file(host, path, |file| file.flip(offset, mask))
    }

    /// Cuts or extends a file behind the server's back.
    pub fn truncate(&self, host: HostId, path: &Path, bytes: u64) {
        self.file(host, path, |file| file.truncate_behind(bytes));
    }

    /// Lets a file be opened for reading only, as its permissions would.
    pub fn set_read_only(&self, host: HostId, path: &Path, read_only: bool) {
        self.file(host, path, |file| file.read_only = read_only);
    }

    /// Makes a block device of fixed size.
    pub fn add_block_device(&self, host: HostId, path: &Path, bytes: u64) {
        self.with(|engine| {
            let mut file = SimFile::default();
            file.block_device = true;
            file.truncate_behind(bytes);
            engine.hosts[host as usize].disk.files.insert(path.to_path_buf(), file);
        });
    }

    /// Makes a zoned block device with empty zones.
    pub fn add_zoned_device(&self, host: HostId, path: &Path, model: ZonedModel) {
        self.with(|engine| {
            let mut file = SimFile::default();
            file.cut_into_zones(&Zones::new(model));
            engine.hosts[host as usize].disk.files.insert(path.to_path_buf(), file);
        });
    }

    /// Wears a zone of a zoned device out, or puts it into another condition; zones are counted from 0, conventional
    /// ones too.
    pub fn set_zone_condition(&self, host: HostId, path: &Path, zone: usize, condition: ZoneCondition) {
        self.file(host, path, |file| file.set_zone_condition(zone, condition));
    }

    /// Zones of a zoned device that are open, and that are active.
    pub fn zones_in_use(&self, host: HostId, path: &Path) -> (u32, u32) {
        self.file(host, path, |file| file.zones().map_or((0, 0), Zones::in_use))
    }

    /// Reads a file past its host.
    pub fn peek_file(&self, host: HostId, path: &Path, offset: u64, bytes: usize) -> Vec<u8> {
        let mut out = vec![0; bytes];
        let there = self.file(host, path, |file| file.read(offset, &mut out));
        out.truncate(there);
        out
    }

    /// The parts of a file that were ever written, in whole pages: `(offset, bytes)`.
    pub fn extents(&self, host: HostId, path: &Path) -> Vec<(u64, u64)> {
        self.file(host, path, |file| file.extents())
    }

    /// A host's files as they are.
    pub fn disk(&self, host: HostId) -> DiskImage {
        self.with(|engine| DiskImage(engine.hosts[host as usize].disk.clone()))
    }

    /// Puts other files into a host that is down (or has opened none).
    pub fn set_disk(&self, host: HostId, image: &DiskImage) {
        self.with(|engine| engine.hosts[host as usize].disk = image.0.clone());
    }

    // --- network and clocks ----------------------------------------------------------------------------

    /// What the network has done.
    pub fn net_counters(&self) -> NetCounters {
        self.with(|engine| engine.net.counters)
    }

    /// How links behave that [`World::set_link`] does not name.
    pub fn set_default_link(&self, model: LinkModel) {
        self.with(|engine| engine.net.set_default_link(model));
    }

    /// How the links between two hosts behave, both ways.
    pub fn set_link(&self, a: HostId, b: HostId, model: LinkModel) {
        self.with(|engine| {
            engine.net.set_link(a, b, model);
            engine.net.set_link(b, a, model);
        });
    }

    /// Bytes that a receiver may leave unread, and bytes that a sender's buffer takes, per connection.
    pub fn set_socket_buffers(&self, receive_bytes: usize, send_bytes: usize) {
        self.with(|engine| {
            engine.net.window_bytes = receive_bytes.max(1);
            engine.net.send_buffer_bytes = send_bytes.max(1);
        });
    }

    /// Nothing gets through between two hosts until [`World::heal`].
    pub fn partition(&self, a: HostId, b: HostId) {
        self.with(|engine| engine.net.partition(engine.now_ns, a, b, true));
    }

    /// Ends a partition: what was sent meanwhile arrives.
    pub fn heal(&self, a: HostId, b: HostId) {
        self.with(|engine| {
            engine.net.partition(engine.now_ns, a, b, false);
            engine.settle_net();
        });
    }

    /// Resets every connection between two hosts.
    pub fn reset_connections(&self, a: HostId, b: HostId) {
        self.with(|engine| {
            engine.net.reset_between(engine.now_ns, a, b);
            engine.settle_net();
        });
    }

    /// Moves a host's wall clock.
    pub fn jump_wall(&self, host: HostId, ms: i64) {
        self.with(|engine| engine.hosts[host as usize].wall_offset_ms += ms);
    }

    /// A host's wall clock, in Unix milliseconds.
    pub fn wall_ms(&self, host: HostId) -> u64 {
        self.with(|engine| engine.wall_ms(host))
    }
}

/// Says that a core is being stepped, until dropped (a panic of the code under test included).
struct Stepping<'a>(&'a Cell<bool>);

impl<'a> Stepping<'a> {
    fn new(flag: &'a Cell<bool>) -> Self {
        flag.set(true);
        Self(flag)
    }
}

impl Drop for Stepping<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}
