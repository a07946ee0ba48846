//! `pumice serve`, step by step:
//!
//! 1. settings, log, limits; core 0 looks whether the addresses of its faces are free and opens the drives' devices, which
//!    locks them: a second server stops here, and has made nothing;
//! 2. the side thread binds `--http` and the control socket, the cores bind Redis: clients hear LOADING now;
//! 3. core 0 opens the store (recovery), the cold core starts flush, compaction and cleaning, core 0 puts in order what a crash left
//!    (which writes, and may wait for these), and the process prints one line per face and then `ready`, which a supervisor hears as
//!    well (`NOTIFY_SOCKET`);
//! 4. on SIGTERM, SIGINT or SHUTDOWN the faces stop, the drives are closed cleanly, the process ends. Another
//!    signal seconds later ends it at once: what was acknowledged is safe, the next start replays the log.

use std::future::poll_fn;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::task::Poll;
use std::time::Duration;

use pumice_base::size::format_size;
use pumice_base::sync::lock;
use pumice_flash::{Device, DeviceSpec};
use pumice_kv::StoreFormat;
use pumice_node::{Node, NodeOptions};
use pumice_reactor::sync::Event;
use pumice_reactor::{Addr, CoreId, Init, LocalBoxFuture, Signal, spawn};
use pumice_redis::face;
use pumice_redis::options::DebugAccess;
use pumice_redis::server::{Server, StartError};

use crate::cli::{DebugArg, DurabilityArg, ServeArgs};
use crate::config::{Listen, Settings};
use crate::exit::{Outcome, Stop};
use crate::health::{Condition, Health};
use crate::process::{DEATH_RETRY, DEATH_WAIT};
use crate::progress::Progress;
use crate::{allocator, bench, control, drives, http, logging, machine, notify, process, watch};

/// Files beside connections: drives, the log, the HTTP face's.
const FILES_BESIDE_CLIENTS: u64 = 128;
const _: () = assert!((http::FACES_MAX * http::CONNECTIONS_MAX) as u64 <= FILES_BESIDE_CLIENTS / 2);
/// Files of each core: its ring (or epoll instance), its listeners, what wakes it, signals.
const FILES_PER_CORE: u64 = 8;

/// A signal this long after the first one ends the process at once.
const INSIST_AFTER: Duration = Duration::from_secs(5);

/// What core 0 tells the main thread, in this order.
enum Phase {
    /// The devices are locked; the side thread may start.
    Locked,
    /// Serving, with a line per face.
    Ready(Vec<String>),
}

/// What the cores share.
struct Shared {
    settings: Settings,
    /// Connections that the limit on open files allows.
    clients_possible: u64,
    specs: Vec<DeviceSpec>,
    health: Health,
    phases: Mutex<mpsc::Sender<Phase>>,
    /// The side thread is up (or is not coming).
    side_up: Event,
    /// Core 0 has bound these; the other cores follow.
    bound: Event,
    faces: OnceLock<(Arc<Server>, Vec<Addr>)>,
    /// The node is open: its background work may begin.
    opened: Event,
    /// Somebody outside the cores asks to stop.
    stop: Event,
    /// Everything is closed: all cores end.
    done: Event,
    outcome: Mutex<Outcome>,
}

/// From this memory on, connections share as many receive buffers as are of use, and cores keep I/O buffers for the next need.
const PLENTY_BYTES: u64 = 256 << 20;
/// From this memory on, pages that are freed are kept for a while: with less, what is kept so at the worst is more than is left for it.
const KEEPS_FREED_PAGES_BYTES: u64 = 512 << 20;
/// Where a huge page is no larger than that, it is little beside so much memory; HSETs over an index in memory were a fifth faster with.
const SMALL_HUGE_PAGE_BYTES: u64 = 2 << 20;

fn reactor_config(settings: &Settings) -> pumice_reactor::Config {
    let all = pumice_reactor::Config::default();
    // All of them are 4 MiB for each core. A quarter at least: who runs out of them asks more often.
    let bytes = settings.memory_bytes.clamp(PLENTY_BYTES / 4, PLENTY_BYTES);
    let part = |count: u16| (u64::from(count) * bytes / PLENTY_BYTES) as u16;
    pumice_reactor::Config {
        cores: usize::from(settings.cores) + 1,
        take_signals: true,
        small_receive_buffers: part(all.small_receive_buffers),
        receive_buffers: part(all.receive_buffers),
        kept_buffer_bytes: if settings.memory_bytes < PLENTY_BYTES { 0 } else { all.kept_buffer_bytes },
        ..all
    }
}

/// Clients name what is hashed: they must not know how.
fn seed_hashes() -> Outcome {
    let [seed @ .., _, _, _, _, _, _, _, _] = drives::new_id()?;
    assert!(pumice_base::hash::seed_hashes(u64::from_le_bytes(seed)), "something was hashed before");
    Ok(())
}

/// Has the allocator keep nothing that it does not need, where that is much of the memory.
fn spare_memory(memory_bytes: u64) {
    let is_little = memory_bytes < KEEPS_FREED_PAGES_BYTES;
    if is_little {
        allocator::give_back_at_once();
    }
    if is_little
        || machine::huge_page_bytes(Path::new("/")).is_some_and(|bytes| bytes > SMALL_HUGE_PAGE_BYTES)
    {
        allocator::refuse_huge_pages();
    }
}

/// Runs the command.
pub fn run(args: ServeArgs) -> Outcome {
    seed_hashes()?;
    let mut settings = Settings::gather(args)?;
    logging::start(&settings.log)?;
    if !pumice_base::checksum::self_test() {
        return Err(Stop::because(
            "this machine computes CRC-32C wrongly: nothing it stores could be trusted",
        ));
    }
    tell_memory(&settings);
    spare_memory(settings.memory_bytes);
    let beside = FILES_BESIDE_CLIENTS + FILES_PER_CORE * u64::from(settings.cores);
    let limit = process::raise_open_files(u64::from(settings.clients_max) + beside);
    let clients_possible = limit.saturating_sub(beside).max(1);
    if clients_possible < u64::from(settings.clients_max) {
        tracing::warn!(
            "only {limit} open files are allowed: {clients_possible} clients at once instead of {}; raise the limit \
             (ulimit -n, or LimitNOFILE= in the unit)",
            settings.clients_max
        );
        settings.clients_max = clients_possible as u32;
    }
    let specs = specs(&settings)?;
    let config = reactor_config(&settings);
    let health = Health::default();
    let (phases, heard) = mpsc::channel();
    let faces =
        http::Faces { http: settings.http.clone(), control: Some(control::socket_path(&settings.data)) };
    let shared = Arc::new(Shared {
        settings,
        clients_possible,
        specs,
        health: health.clone(),
        phases: Mutex::new(phases),
        side_up: Event::new(),
        bound: Event::new(),
        faces: OnceLock::new(),
        opened: Event::new(),
        stop: Event::new(),
        done: Event::new(),
        outcome: Mutex::new(Ok(())),
    });
    let cores = shared.clone();
    let init: Init = Arc::new(move |core| root(cores.clone(), core));
    let running = process::once_memory_is_free(|| pumice_reactor::start(&config, init.clone()))
        .map_err(|e| Stop::doing("starting the cores", e))?;
    if let Some(error) = running.uring_error() {
        tracing::warn!("{error}: going on with epoll and Linux AIO, which take more CPU");
    }
    let side = lead(&shared, &heard, faces);
    let joined = running.join();
    if let Some(side) = side {
        side.stop();
        let _ = std::fs::remove_file(control::socket_path(&shared.settings.data));
    }
    // Not as what cannot be run as it is told (2), which a supervisor does not try again: this may go better next time.
    joined.map_err(|e| Stop::No(format!("running: {e}")))?;
    std::mem::replace(&mut *lock(&shared.outcome), Ok(()))
}

/// The budget is a default more often than a choice, and one that the kernel does not grant ends in a kill without a word.
fn tell_memory(settings: &Settings) {
    let budget = format_size(settings.memory_bytes);
    match settings.memory_there {
        Some(there) if settings.memory_bytes > there => tracing::warn!(
            "memory: {budget} is more than this process may take ({}, the machine's or its control group's): it may be \
             killed; give it less (--memory)",
            format_size(there)
        ),
        Some(there) => tracing::info!("memory: {budget} of {}", format_size(there)),
        None => tracing::info!("memory: {budget}"),
    }
    if let Some(there) = settings.cores_there {
        let cores = settings.cores;
        tracing::info!(
            "cores: {cores} of the machine's {there}, as many as {budget} are enough for (--memory; --cores asks for a number)"
        );
    }
}

/// The main thread's part: starts the side thread once the drives are ours, prints when ready.
fn lead(shared: &Shared, heard: &mpsc::Receiver<Phase>, faces: http::Faces) -> Option<http::Side> {
    let Ok(Phase::Locked) = heard.recv() else { return None };
    let side = match http::start(faces, shared.health.clone()) {
        Ok(side) => side,
        Err(stop) => {
            *lock(&shared.outcome) = Err(stop);
            shared.stop.set();
            shared.side_up.set();
            return None;
        }
    };
    shared.side_up.set();
    if let Ok(Phase::Ready(lines)) = heard.recv() {
        let mut out = io::stdout().lock();
        for line in &lines {
            let _ = writeln!(out, "{line}");
        }
        if let Some(http) = &side.http {
            let _ = writeln!(out, "http on {http}");
        }
        let _ = writeln!(out, "ready");
        let _ = out.flush();
        notify::ready();
    }
    Some(side)
}

/// The drives to open.
fn specs(settings: &Settings) -> Result<Vec<DeviceSpec>, Stop> {
    if settings.devices.is_empty() {
        return Ok(vec![DeviceSpec::Path(drives::default_path(&settings.data))]);
    }
    let specs = settings.devices.iter().map(|spec| drives::parse(spec)).collect::<Result<Vec<_>, _>>()?;
    drives::refuse_twice(&specs)?;
    Ok(specs)
}

/// When dropped, whoever waits for the first core hears that it has ended: also where another core took it along.
struct End(Arc<Shared>);

impl Drop for End {
    fn drop(&mut self) {
        *lock(&self.0.phases) = mpsc::channel().0;
        self.0.bound.set();
        self.0.opened.set();
        self.0.done.set();
    }
}

fn root(shared: Arc<Shared>, core: CoreId) -> LocalBoxFuture<'static, ()> {
    let cold = CoreId(shared.settings.cores);
    let end = (core == CoreId(0)).then(|| End(shared.clone()));
    Box::pin(async move {
        let _end = end;
        if core == CoreId(0) {
            let outcome = first_core(&shared).await;
            let mut slot = lock(&shared.outcome);
            if slot.is_ok() {
                *slot = outcome;
            }
        } else if core == cold {
            shared.opened.wait().await;
            if let Some(node) = shared.health.node() {
                node.start_background();
            }
            shared.done.wait().await;
        } else {
            other_core(&shared).await;
        }
    })
}

/// A core that serves beside core 0.
async fn other_core(shared: &Arc<Shared>) {
    shared.bound.wait().await;
    if let Some((server, addrs)) = shared.faces.get() {
        for addr in addrs.iter().filter(|addr| matches!(addr, Addr::Tcp(_))) {
            match face::bind(server, addr).await {
                Ok(face) => drop(spawn(face.run())),
                Err(error) => tracing::warn!(%error, "this core takes no connections"),
            }
        }
    }
    shared.done.wait().await;
}

/// Resolves when the process is asked to stop.
async fn asked_to_stop(shared: &Shared, server: Option<&Server>) {
    let mut by_main = pin!(shared.stop.wait());
    let mut by_client = server.map(|server| Box::pin(server.shutdown_asked.wait()));
    let mut by_signal = pin!(async {
        loop {
            match pumice_reactor::signal().await {
                Ok(Signal::Terminate | Signal::Interrupt) => return,
                Ok(Signal::Hangup) => tracing::info!("SIGHUP: settings are read at start only"),
                Err(error) => {
                    tracing::error!(%error, "waiting for signals failed");
                    std::future::pending::<()>().await;
                }
            }
        }
    });
    poll_fn(|cx| {
        let client = by_client.as_mut().is_some_and(|event| event.as_mut().poll(cx).is_ready());
        if client || by_main.as_mut().poll(cx).is_ready() || by_signal.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        Poll::Pending
    })
    .await;
}

/// `work`, or `None` when asked to stop before it is done.
async fn unless_stopped<F: Future>(shared: &Shared, server: &Server, work: F) -> Option<F::Output> {
    let mut work = pin!(work);
    let mut stop = pin!(asked_to_stop(shared, Some(server)));
    poll_fn(|cx| {
        if let Poll::Ready(done) = work.as_mut().poll(cx) {
            return Poll::Ready(Some(done));
        }
        stop.as_mut().poll(cx).map(|()| None)
    })
    .await
}

async fn first_core(shared: &Arc<Shared>) -> Outcome {
    let settings = &shared.settings;
    // Before anything is made. Once the drives are locked it is looked at again, as another server may have come first.
    for listen in settings.redis.iter().chain(&settings.http) {
        refuse_taken(listen).await?;
    }
    let server = Server::new(redis_options(shared)?).map_err(|error| match (&error, &settings.tls) {
        (StartError::Tls { path, why }, Some(tls)) => {
            Stop::doing(format!("{} {}", tls.asked_by(path), path.display()), why)
        }
        _ => Stop::because(error),
    })?;
    let server = Arc::new(server);
    let mut devices = Vec::new();
    for spec in &shared.specs {
        let device = match spec {
            DeviceSpec::Path(path) if settings.devices.is_empty() => {
                drives::make_folder(&settings.data)?;
                drives::open_default(path).await?
            }
            DeviceSpec::Path(_) => drives::open_locked(spec).await?,
            DeviceSpec::Emulated(_) => open_emulated(spec).await?,
        };
        devices.push((spec.to_string(), device));
    }
    drives::make_folder(&settings.data)?;
    tell(shared, Phase::Locked);
    shared.side_up.wait().await;
    if shared.stop.is_set() {
        return Ok(()); // the main thread says why
    }
    shared.health.serves(server.clone());
    let lines = bind_redis(shared, &server).await?;
    spawn(watch::over(shared.health.clone()));
    spawn(face::keep_house(server.clone()));

    let started = pumice_reactor::now();
    let options = NodeOptions {
        memory_bytes: pumice_kv::memory_of_process(
            settings.memory_bytes,
            u64::from(settings.cores) + 1,
            devices.len() as u64,
        ),
        durability: durability(settings),
        patrol_pass: (settings.patrol_days > 0.0)
            .then(|| Duration::from_secs_f64(settings.patrol_days * 86_400.0)),
        set_id: drives::new_id()?,
    };
    let bar = Progress::new("recovering", true);
    let loading = (server.clone(), shared.health.clone());
    let progress = |done, total| {
        bar.set(done, total);
        loading.0.loading.0.store(done, std::sync::atomic::Ordering::Relaxed);
        loading.0.loading.1.store(total, std::sync::atomic::Ordering::Relaxed);
        loading.1.set_progress(done, total);
    };
    let opened = unless_stopped(shared, &server, Node::open(devices, &options, &progress)).await;
    bar.finish();
    let Some(opened) = opened else {
        return Ok(()); // asked to stop while opening: nothing was written that must be closed
    };
    let node = opened.map_err(|error| drives::explain_unreadable(shared.specs.iter(), &error.to_string()))?;
    report_recovery(&node, started.elapsed());
    shared.health.opened(node.clone());
    // What emulated media hold lies in this process's memory, too, and is in nobody's share of it.
    if !shared.specs.iter().any(|spec| matches!(spec, DeviceSpec::Emulated(_))) {
        spawn(pumice_node::keep_within(node.clone(), settings.memory_bytes, process::resident_bytes));
    }
    shared.opened.set();
    let put_in_order = async {
        bench::space::keep_out(&node).await?;
        server.attach(node.clone()).await.map_err(Stop::because)
    };
    match unless_stopped(shared, &server, put_in_order).await {
        None => return close(shared, &server, &node).await,
        Some(Ok(())) => {}
        Some(Err(stop)) => {
            // Why it does not start is what it tells.
            let _ = close(shared, &server, &node).await;
            return Err(stop);
        }
    }
    shared.health.set(Condition::Ready);
    tell(shared, Phase::Ready(lines));

    asked_to_stop(shared, Some(&server)).await;
    close(shared, &server, &node).await
}

/// Signals come twice when a terminal and a supervisor both send them: only one that comes after the closing has
/// had its time ends the process.
async fn end_when_insisted(shared: Arc<Shared>) {
    let started = pumice_reactor::now();
    loop {
        asked_to_stop(&shared, None).await;
        if started.elapsed() >= INSIST_AFTER {
            tracing::warn!("asked again: ending without closing the drives; the next start replays the log");
            std::process::exit(1);
        }
        tracing::info!("stopping already");
    }
}

async fn close(shared: &Arc<Shared>, server: &Arc<Server>, node: &Node) -> Outcome {
    tracing::info!("stopping");
    notify::stopping();
    shared.health.set(Condition::Stopping);
    spawn(end_when_insisted(shared.clone()));
    let started = pumice_reactor::now();
    face::stop(server).await;
    for addr in shared.faces.get().into_iter().flat_map(|(_, addrs)| addrs) {
        if let Addr::Unix(path) = addr {
            let _ = std::fs::remove_file(path);
        }
    }
    node.close().await.map_err(Stop::because)?;
    tracing::info!("closed cleanly in {:.0?}", started.elapsed());
    Ok(())
}

fn tell(shared: &Shared, phase: Phase) {
    let _ = lock(&shared.phases).send(phase);
}

/// Opens emulated media, and formats those that hold nothing yet.
async fn open_emulated(spec: &DeviceSpec) -> Result<Device, Stop> {
    let device = drives::open_locked(spec).await?;
    let options = StoreFormat { drive_id: drives::new_id()?, ..StoreFormat::default() };
    match drives::format(spec, &device, &options).await {
        // Media in a file keep what they held.
        Ok(()) | Err(Stop::No(_)) => Ok(device),
        Err(stop) => Err(stop),
    }
}

fn durability(settings: &Settings) -> pumice_kv::Durability {
    match settings.durability {
        DurabilityArg::Always => pumice_kv::Durability::Always,
        DurabilityArg::Everysec => pumice_kv::Durability::EverySecond,
        DurabilityArg::None => pumice_kv::Durability::None,
    }
}

fn redis_options(shared: &Shared) -> Result<pumice_redis::options::Options, Stop> {
    let settings = &shared.settings;
    let seed = drives::new_id()?;
    let client_bytes = (settings.memory_bytes / 8).max(16 << 20);
    let port = settings.redis.iter().find_map(|listen| match &listen.addr {
        Addr::Tcp(addr) => Some(addr.port()),
        Addr::Unix(_) => None,
    });
    let bind: Vec<String> = (settings.redis.iter())
        .filter_map(|listen| match &listen.addr {
            Addr::Tcp(addr) => Some(addr.ip().to_string()),
            Addr::Unix(_) => None,
        })
        .collect();
    let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
    Ok(pumice_redis::options::Options {
        password: settings.password.clone().unwrap_or_default().into_bytes(),
        clients_max: u64::from(settings.clients_max),
        clients_possible: shared.clients_possible,
        unix_mode: settings.redis_socket_mode,
        protected_mode: settings.protected_mode,
        input_bytes_max: client_bytes,
        output_bytes_max: client_bytes,
        debug: match settings.debug {
            DebugArg::No => DebugAccess::No,
            DebugArg::Local => DebugAccess::Local,
            DebugArg::Yes => DebugAccess::Yes,
        },
        tls: settings.tls.as_ref().map(|tls| pumice_redis::options::TlsOptions {
            certificate: tls.cert.clone(),
            key: tls.key.clone(),
            client_authorities: tls.ca.clone(),
        }),
        port: port.unwrap_or(0),
        durability: durability(settings),
        bind: bind.join(" "),
        config_file: settings.config_file.as_ref().map(absolute).unwrap_or_default(),
        directory: absolute(&settings.data),
        rank_walk_max: pumice_redis::options::RANK_WALK_MAX,
        memory_bytes: settings.memory_bytes,
        allocator: allocator::NAME,
        seed: u64::from_le_bytes(seed[..8].try_into().expect("16 bytes")),
    })
}

/// Binds every Redis address on core 0 and tells the other cores which.
async fn bind_redis(shared: &Arc<Shared>, server: &Arc<Server>) -> Result<Vec<String>, Stop> {
    let mut addrs = Vec::new();
    let mut lines = Vec::new();
    // All before the first is bound: of addresses that overlap (0.0.0.0 and [::], say) one of our own would be in the way.
    for listen in &shared.settings.redis {
        refuse_taken(listen).await?;
    }
    for listen in &shared.settings.redis {
        let bound = face::bind(server, &listen.addr).await.map_err(Stop::because)?;
        let local = bound.local_addr().clone();
        let is_tls = shared.settings.tls.is_some() && matches!(local, Addr::Tcp(_));
        lines.push(format!("redis on {local}{}", if is_tls { " (TLS)" } else { "" }));
        addrs.push(local);
        spawn(bound.run());
    }
    if shared.faces.set((server.clone(), addrs)).is_err() {
        unreachable!("bound once");
    }
    shared.bound.set();
    Ok(lines)
}

/// Refuses an address that another server has; one that has just died is waited for.
async fn refuse_taken(listen: &Listen) -> Outcome {
    let started = pumice_reactor::now();
    let mut is_told = false;
    while is_taken(listen)? {
        if started.elapsed() >= DEATH_WAIT {
            return Err(Stop::because(format!("{listen}: another server is listening there")));
        }
        if !std::mem::replace(&mut is_told, true) {
            tracing::info!("{listen}: another server is listening there; waiting, should it have just ended");
        }
        pumice_reactor::sleep(DEATH_RETRY).await;
    }
    Ok(())
}

/// Our cores share a TCP port among themselves, so the kernel would let a second server of the same user share it,
/// too, and split the clients between both. A bind that does not share finds out.
fn is_taken(listen: &Listen) -> Result<bool, Stop> {
    match &listen.addr {
        Addr::Tcp(tcp) if tcp.port() != 0 => match std::net::TcpListener::bind(tcp) {
            Ok(_) => Ok(false),
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => Ok(true),
            Err(e) => Err(Stop::doing(listen, e)),
        },
        Addr::Tcp(_) => Ok(false),
        Addr::Unix(path) => {
            // Now, not once a drive is made: a socket needs a folder that it can be made in.
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let may_make = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
            rustix::fs::access(folder.unwrap_or(Path::new(".")), may_make)
                .map_err(|e| Stop::doing(format!("{listen}: cannot listen: its folder"), e))?;
            process::clear_socket(path).map_err(|e| Stop::doing(listen, e))
        }
    }
}

fn report_recovery(node: &Node, took: Duration) {
    for drive in node.recovered() {
        let name = &drive.drive;
        if drive.clean {
            tracing::info!("drive {name}: closed cleanly before");
        } else {
            tracing::info!("drive {name}: replayed {} records of the log", drive.replayed_records);
        }
        for damage in &drive.damage {
            tracing::error!("drive {}: damaged: {damage}; `pumice check` lists all damage", drive.drive);
        }
    }
    let count = node.drive_count();
    tracing::info!("opened {count} {} in {took:.1?}", if count == 1 { "drive" } else { "drives" });
}
