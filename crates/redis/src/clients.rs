//! The connections of the server as others see them: CLIENT LIST, CLIENT KILL, MONITOR, INFO clients.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use pumice_base::sync::lock;
use pumice_node::WatchFlag;
use pumice_reactor::sync::Notify;

/// Lines of MONITOR that wait for one client, in bytes; a monitor that falls further behind is closed.
const MONITOR_BYTES_MAX: usize = 8 << 20;

/// One connection as others see it.
pub struct Client {
    /// Never used again.
    pub id: u64,
    /// Peer's address.
    pub addr: String,
    /// Own address.
    pub local_addr: String,
    /// Unix milliseconds.
    pub created_ms: u64,
    /// The core that serves it.
    pub core: u16,
    name: Mutex<String>,
    /// Unix milliseconds of the last command, or of bytes that came or left since.
    pub last_ms: AtomicU64,
    /// What it sent is being carried out.
    is_processing: AtomicBool,
    /// What it is answered waits for drives.
    awaits_drives: AtomicBool,
    /// Index of the last command in the table; `usize::MAX`: none yet.
    pub last_command: AtomicUsize,
    /// 1 + the index of its subcommand; 0: none.
    pub last_subcommand: AtomicUsize,
    /// The selected database.
    pub database: AtomicU64,
    /// Queued commands; −1 outside of MULTI.
    pub queued: AtomicI64,
    /// Watched keys.
    pub watched: AtomicU64,
    /// Raised when one of them changed.
    pub watch: Arc<WatchFlag>,
    /// Bytes received and not carried out yet.
    pub input_bytes: AtomicU64,
    /// Bytes of replies not taken yet.
    pub output_bytes: AtomicU64,
    /// Bytes of queued commands and watched keys.
    pub transaction_bytes: AtomicU64,
    /// 2 or 3.
    pub protocol: AtomicU8,
    /// CLIENT NO-EVICT.
    pub no_evict: AtomicBool,
    killed: AtomicBool,
    stalled: AtomicBool,
    /// Told when there is something for the connection to look at: it was killed, its drives are stalled, or lines for a monitor.
    pub wake: Notify,
    monitor: Mutex<MonitorQueue>,
    is_monitor: AtomicBool,
}

#[derive(Default)]
struct MonitorQueue {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
}

impl Client {
    fn new(id: u64, addr: String, local_addr: String, core: u16, now_ms: u64) -> Self {
        Self {
            id,
            addr,
            local_addr,
            created_ms: now_ms,
            core,
            name: Mutex::default(),
            last_ms: AtomicU64::new(now_ms),
            is_processing: AtomicBool::new(false),
            awaits_drives: AtomicBool::new(false),
            last_command: AtomicUsize::new(usize::MAX),
            last_subcommand: AtomicUsize::new(0),
            database: AtomicU64::new(0),
            queued: AtomicI64::new(-1),
            watched: AtomicU64::new(0),
            watch: Arc::default(),
            input_bytes: AtomicU64::new(0),
            output_bytes: AtomicU64::new(0),
            transaction_bytes: AtomicU64::new(0),
            protocol: AtomicU8::new(2),
            no_evict: AtomicBool::new(false),
            killed: AtomicBool::new(false),
            stalled: AtomicBool::new(false),
            wake: Notify::new(),
            monitor: Mutex::default(),
            is_monitor: AtomicBool::new(false),
        }
    }

    /// The name given by CLIENT SETNAME or HELLO.
    pub fn name(&self) -> String {
        lock(&self.name).clone()
    }

    /// Names the connection.
    pub fn set_name(&self, name: &str) {
        *lock(&self.name) = name.to_string();
    }

    /// Bytes have come or left; `now_ms` may be somewhat older.
    pub fn has_moved(&self, now_ms: u64) {
        self.last_ms.store(now_ms, Ordering::Relaxed);
    }

    /// Notes whether what it sent is being carried out.
    pub fn set_processing(&self, is: bool) {
        self.is_processing.store(is, Ordering::Relaxed);
    }

    /// Notes whether what it is answered waits for drives.
    pub fn set_awaiting_drives(&self, does: bool) {
        self.awaits_drives.store(does, Ordering::Relaxed);
    }

    /// Whether it does.
    pub fn awaits_drives(&self) -> bool {
        self.awaits_drives.load(Ordering::Relaxed)
    }

    /// How long it has neither sent nor taken anything, in milliseconds, if that is up to it.
    pub fn idle_ms(&self, now_ms: u64) -> Option<u64> {
        let is_served = self.is_processing.load(Ordering::Relaxed) || self.awaits_drives();
        (!is_served && !self.is_monitor())
            .then(|| now_ms.saturating_sub(self.last_ms.load(Ordering::Relaxed)))
    }

    /// Asks the connection to end.
    pub fn kill(&self) {
        self.killed.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    /// Whether it was asked to end.
    pub fn is_killed(&self) -> bool {
        self.killed.load(Ordering::Acquire)
    }

    /// Tells the connection that a drive has had no room below it for long.
    pub fn tell_stall(&self) {
        self.stalled.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    /// Whether it was told so since this was asked last.
    pub fn takes_stall(&self) -> bool {
        self.stalled.swap(false, Ordering::AcqRel)
    }

    /// Whether it runs MONITOR.
    pub fn is_monitor(&self) -> bool {
        self.is_monitor.load(Ordering::Acquire)
    }

    /// The lines that wait for a monitor.
    pub fn take_monitor_lines(&self) -> VecDeque<Vec<u8>> {
        let mut queue = lock(&self.monitor);
        queue.bytes = 0;
        std::mem::take(&mut queue.lines)
    }

    /// Gives it a line, if it is a monitor still.
    fn push_monitor_line(&self, line: &[u8]) {
        let mut queue = lock(&self.monitor);
        // Whoever ends being one takes the lock after that, to drop what is there.
        if !self.is_monitor() {
            return;
        }
        queue.bytes += line.len();
        if queue.bytes > MONITOR_BYTES_MAX {
            queue.lines.clear();
            self.killed.store(true, Ordering::Release);
        } else {
            queue.lines.push_back(line.to_vec());
        }
        drop(queue);
        self.wake.notify_one();
    }

    /// The line of CLIENT LIST and CLIENT INFO.
    pub fn describe(&self, now_ms: u64) -> String {
        let load = |value: &AtomicU64| value.load(Ordering::Relaxed);
        let last = self.last_command.load(Ordering::Relaxed);
        let command = crate::command::Table::get().commands().get(last).map_or("NULL", |command| {
            let sub = self.last_subcommand.load(Ordering::Relaxed).checked_sub(1);
            sub.and_then(|sub| command.facts.subcommands.get(sub)).unwrap_or(command.facts).name
        });
        let mut flags = String::new();
        if self.is_monitor() {
            flags.push('O');
        }
        let queued = self.queued.load(Ordering::Relaxed);
        if queued >= 0 {
            flags.push('x');
        }
        if self.watch.is_touched() {
            flags.push('d');
        }
        if self.addr == self.local_addr {
            // A Unix socket's.
            flags.push('U');
        }
        if self.no_evict.load(Ordering::Relaxed) {
            flags.push('e');
        }
        if flags.is_empty() {
            flags.push('N');
        }
        format!(
            "id={} addr={} laddr={} fd={} name={} age={} idle={} flags={flags} db={} sub=0 psub=0 ssub=0 multi={queued} \
             qbuf={} qbuf-free=0 argv-mem=0 multi-mem={} rbs=0 rbp=0 obl=0 oll=0 omem={} tot-mem={} events=r \
             cmd={command} user=default redir=-1 resp={}",
            self.id,
            self.addr,
            self.local_addr,
            self.id,
            self.name(),
            now_ms.saturating_sub(self.created_ms) / 1000,
            now_ms.saturating_sub(load(&self.last_ms)) / 1000,
            load(&self.database),
            load(&self.input_bytes),
            load(&self.transaction_bytes),
            load(&self.output_bytes),
            load(&self.input_bytes) + load(&self.transaction_bytes) + load(&self.output_bytes),
            self.protocol.load(Ordering::Relaxed),
        )
    }
}

/// All connections.
#[derive(Default)]
pub struct Clients {
    by_id: Mutex<BTreeMap<u64, Arc<Client>>>,
    next_id: AtomicU64,
    monitors: AtomicUsize,
}

impl Clients {
    /// Notes a new connection; `None` when there are `max` already.
    pub fn add(
        &self,
        max: u64,
        addr: String,
        local_addr: String,
        core: u16,
        now_ms: u64,
    ) -> Option<Arc<Client>> {
        let mut by_id = self.lock();
        if by_id.len() as u64 >= max {
            return None;
        }
        let id = self.next_id.fetch_add(1, Ordering::Relaxed) + 1;
        let client = Arc::new(Client::new(id, addr, local_addr, core, now_ms));
        by_id.insert(id, client.clone());
        Some(client)
    }

    /// A client that is no connection, for work of the server itself.
    pub fn unlisted(&self, now_ms: u64) -> Arc<Client> {
        Arc::new(Client::new(0, String::new(), String::new(), 0, now_ms))
    }

    /// Forgets a connection.
    pub fn remove(&self, client: &Client) {
        self.lock().remove(&client.id);
        self.set_monitor(client, false);
    }

    /// Turns MONITOR on or off for `client`.
    pub fn set_monitor(&self, client: &Client, on: bool) {
        if client.is_monitor.swap(on, Ordering::AcqRel) != on {
            if on {
                self.monitors.fetch_add(1, Ordering::Release);
            } else {
                self.monitors.fetch_sub(1, Ordering::Release);
                // Who is a client again wants replies only.
                client.take_monitor_lines();
            }
        }
    }

    /// Whether anybody runs MONITOR.
    pub fn has_monitors(&self) -> bool {
        self.monitors.load(Ordering::Acquire) > 0
    }

    /// Gives a line to every monitor.
    pub fn monitor(&self, line: &[u8]) {
        for client in self.lock().values().filter(|client| client.is_monitor()) {
            client.push_monitor_line(line);
        }
    }

    /// All connections, oldest first.
    pub fn all(&self) -> Vec<Arc<Client>> {
        self.lock().values().cloned().collect()
    }

    /// Those of these connections that are there, in this order.
    pub fn of(&self, ids: &[u64]) -> Vec<Arc<Client>> {
        let by_id = self.lock();
        ids.iter().filter_map(|id| by_id.get(id).cloned()).collect()
    }

    /// How many connections there are.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, Arc<Client>>> {
        lock(&self.by_id)
    }
}
