//! Starting real cores: a thread and a ring each, or where there is no io_uring an epoll instance.

use crate::buf::Pool;
use crate::driver::{Driver, Kick};
use crate::epoll::Epoll;
use crate::executor::{Core, has_core};
use crate::remote::Server;
use crate::sys::EventFd;
use crate::uring::Uring;
use crate::{CoreId, LocalBoxFuture};
use std::future::Future;
use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{Builder, JoinHandle};

/// Kernel features that can be done without: set, they are not asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Without {
    /// Completion work left until the core asks for it (Linux 6.1).
    pub deferred_work: bool,
    /// Receive buffers shared by connections, and with them many receives for one request (Linux 6.0).
    pub shared_receive_buffers: bool,
    /// Many receives for one request (Linux 6.0): asked for, and refused by the kernel.
    pub multishot_receive: bool,
    /// Many accepts for one request (Linux 5.19).
    pub multishot_accept: bool,
}

/// Through what cores ask the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KernelInterface {
    /// io_uring, or where that is missing, forbidden or too old, epoll and Linux AIO.
    #[default]
    Any,
    /// io_uring.
    Uring,
    /// epoll for sockets, Linux AIO for files.
    Epoll,
}

/// How to set up cores.
#[derive(Clone, Debug)]
pub struct Config {
    /// Threads, each with a ring.
    pub cores: usize,
    /// Through what they ask the kernel.
    pub interface: KernelInterface,
    /// Operations a core hands to the kernel at once (rounded up to a power of two); more may be in flight. Fewer where the
    /// locked-memory limit has no room for so many.
    pub queue_depth: u32,
    /// Memory a core registers with the kernel for file I/O; less, or none, is used if the locked-memory limit
    /// forbids it.
    pub registered_buffer_bytes: usize,
    /// Small receive buffers ([`SMALL_RECEIVE_BYTES`](crate::driver::SMALL_RECEIVE_BYTES)) that the connections of one
    /// core share. Their memory is taken as they are first used. Measured with 500 connections that send SETs of 100 B
    /// one at a time: 512 take 5 to 10% less CPU than 64, which run out.
    pub small_receive_buffers: u16,
    /// Large ones, for connections that send much at a time.
    pub receive_buffers: u16,
    /// Size of each of these. Measured with pipelined SETs of 8 KiB: 64 KiB takes two thirds of the CPU of 16 KiB, larger ones
    /// win nothing.
    pub receive_buffer_bytes: u32,
    /// Of file buffers larger than what is cut from regions (1 MiB) a core keeps one for the next need, up to this size.
    pub kept_buffer_bytes: usize,
    /// Kernel features to do without, as if they were missing.
    pub without: Without,
    /// Hold back SIGTERM, SIGINT and SIGHUP for [`signal`](crate::signal), on the calling thread and all cores.
    pub take_signals: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            cores: std::thread::available_parallelism().map_or(1, |cores| cores.get()),
            interface: KernelInterface::Any,
            queue_depth: 256,
            registered_buffer_bytes: 2 << 20,
            small_receive_buffers: 512,
            receive_buffers: 32,
            receive_buffer_bytes: 64 << 10,
            kept_buffer_bytes: Pool::KEPT_LARGE_BYTES,
            without: Without::default(),
            take_signals: false,
        }
    }
}

/// What makes the root future of each core.
pub type Init = Arc<dyn Fn(CoreId) -> LocalBoxFuture<'static, ()> + Send + Sync>;

/// Cores that run.
pub struct Running {
    threads: Vec<JoinHandle<io::Result<()>>>,
    uring_error: Option<io::Error>,
}

impl Running {
    /// Why the cores do without io_uring, if they were free to choose and do.
    pub fn uring_error(&self) -> Option<&io::Error> {
        self.uring_error.as_ref()
    }

    /// Waits until every core has stopped. A panic on a core stops the others and goes on here.
    pub fn join(self) -> io::Result<()> {
        let mut first = Ok(());
        for thread in self.threads {
            match thread.join() {
                Ok(result) => first = first.and(result),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        first
    }
}

/// Stops all cores when one panics, or is told to because one failed.
struct StopAll {
    stop: Arc<AtomicBool>,
    kicks: Vec<Arc<dyn Kick>>,
}

impl StopAll {
    fn stop_all(&self) {
        self.stop.store(true, Ordering::SeqCst);
        for kick in &self.kicks {
            kick.kick();
        }
    }
}

impl Drop for StopAll {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.stop_all();
        }
    }
}

/// An interface that was chosen.
#[derive(Clone, Copy)]
enum Chosen {
    Uring,
    Epoll,
}

/// Does `start` with what `config` asks for, or with what is there. The error: why that is not io_uring.
fn choose<T>(config: &Config, start: impl Fn(Chosen) -> io::Result<T>) -> io::Result<(T, Option<io::Error>)> {
    let uring_error = match config.interface {
        KernelInterface::Epoll => None,
        KernelInterface::Uring => return start(Chosen::Uring).map(|started| (started, None)),
        KernelInterface::Any => match start(Chosen::Uring) {
            Err(error) if Uring::is_missing(&error) => Some(error),
            started => return started.map(|started| (started, None)),
        },
    };
    match (start(Chosen::Epoll), uring_error) {
        (Ok(started), uring_error) => Ok((started, uring_error)),
        (Err(error), None) => Err(error),
        (Err(error), Some(uring)) => Err(io::Error::new(error.kind(), format!("{uring}; {error}"))),
    }
}

fn make_driver(config: &Config, chosen: Chosen, event: Arc<EventFd>) -> io::Result<Driver> {
    match chosen {
        Chosen::Uring => Uring::new(config, event).map(|uring| Driver::Uring(Box::new(uring))),
        Chosen::Epoll => Epoll::new(config, event).map(|epoll| Driver::Epoll(Box::new(epoll))),
    }
}

/// Starts `config.cores` threads; `init` makes the root future of each. A core stops when its root resolves: its
/// other tasks are dropped and their operations waited for.
pub fn start(config: &Config, init: Init) -> io::Result<Running> {
    let (running, uring_error) = choose(config, |chosen| start_with(config, chosen, &init))?;
    Ok(Running { uring_error, ..running })
}

fn start_with(config: &Config, chosen: Chosen, init: &Init) -> io::Result<Running> {
    assert!(config.cores > 0 && config.cores <= usize::from(u16::MAX), "{} cores", config.cores);
    if config.take_signals {
        crate::sys::hold_signals()?;
    }
    let events: Vec<Arc<EventFd>> =
        (0..config.cores).map(|_| EventFd::new().map(Arc::new)).collect::<Result<_, _>>()?;
    let kicks: Vec<Arc<dyn Kick>> = events.iter().map(|event| Arc::clone(event) as Arc<dyn Kick>).collect();
    let server = Server::new(kicks.clone());
    let stop = Arc::new(AtomicBool::new(false));
    let (ready, started) = mpsc::channel();
    let mut failed = None;
    let mut threads = Vec::with_capacity(config.cores);
    // Each keeps a core waiting until it is dropped. Unlike a barrier, that needs nobody to count who got here.
    let mut gates = Vec::with_capacity(config.cores);
    for (index, event) in events.into_iter().enumerate() {
        let id = CoreId(index as u16);
        let (config, server, init, ready) =
            (config.clone(), Arc::clone(&server), Arc::clone(init), ready.clone());
        let guard = StopAll { stop: Arc::clone(&stop), kicks: kicks.clone() };
        let (gate, opened) = mpsc::channel::<()>();
        let spawned = Builder::new().name(format!("core{index}")).spawn(move || {
            let guard = guard;
            let mut driver = match make_driver(&config, chosen, event) {
                Ok(driver) => driver,
                Err(error) => {
                    let _ = ready.send(error);
                    return Ok(());
                }
            };
            drop(ready);
            let _ = opened.recv();
            if guard.stop.load(Ordering::SeqCst) {
                return Ok(()); // another core has no driver
            }
            driver.register_memory(&config);
            let core = Core::new(&server, id, driver);
            let result = run_core(&core, &guard.stop, || init(id)).map(drop);
            if result.is_err() {
                guard.stop_all();
            }
            result
        });
        match spawned {
            Ok(thread) => threads.push(thread),
            Err(error) => {
                failed = Some(error);
                break;
            }
        }
        gates.push(gate);
    }
    drop(ready);
    // Ends when every core has its driver, or has failed.
    for error in started {
        failed = failed.or(Some(error));
    }
    stop.fetch_or(failed.is_some(), Ordering::SeqCst);
    drop(gates);
    let running = Running { threads, uring_error: None };
    match failed {
        None => Ok(running),
        Some(error) => {
            running.join()?;
            Err(error)
        }
    }
}

fn run_core<F: Future>(
    core: &Rc<Core>,
    stop: &AtomicBool,
    root: impl FnOnce() -> F,
) -> io::Result<Option<F::Output>> {
    let root = core.enter(root);
    let output = core.block_on(root, stop);
    core.close();
    core.drain()?;
    output
}

/// Runs `future` on one real core on the calling thread, with default settings.
///
/// Panics if the kernel gives no driver, or inside another core.
pub fn block_on<F: Future>(future: F) -> F::Output {
    match block_on_with(&Config::default(), future) {
        Ok(output) => output,
        Err(error) => panic!("no driver: {error}"),
    }
}

/// Runs `future` on one real core on the calling thread.
pub fn block_on_with<F: Future>(config: &Config, future: F) -> io::Result<F::Output> {
    assert!(!has_core(), "block_on inside a core: await the future instead");
    if config.take_signals {
        crate::sys::hold_signals()?;
    }
    let (core, _) = choose(config, |chosen| {
        let event = Arc::new(EventFd::new()?);
        let server = Server::new(vec![Arc::clone(&event) as Arc<dyn Kick>]);
        let mut driver = make_driver(config, chosen, event)?;
        driver.register_memory(config);
        Ok(Core::new(&server, CoreId(0), driver))
    })?;
    match run_core(&core, &AtomicBool::new(false), || future)? {
        Some(output) => Ok(output),
        None => unreachable!("nobody stops it"),
    }
}
