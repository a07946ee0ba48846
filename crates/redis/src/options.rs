//! Settings of the Redis face. Those that CONFIG SET may change are in [`Settings`]; the rest is fixed at start.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use pumice_base::sync::lock;
use pumice_kv::Durability;

use crate::keyspace::{Compact, Type};

/// Certificate and key for TLS.
#[derive(Clone, Debug)]
pub struct TlsOptions {
    /// PEM file with the server's certificate chain.
    pub certificate: PathBuf,
    /// PEM file with its private key.
    pub key: PathBuf,
    /// PEM file with the authorities whose clients are let in; without it no client certificate is asked for.
    pub client_authorities: Option<PathBuf>,
}

/// Who may use DEBUG, as Redis's `enable-debug-command` says it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DebugAccess {
    /// Nobody.
    #[default]
    No,
    /// Clients of this machine.
    Local,
    /// Everybody.
    Yes,
}

impl DebugAccess {
    /// As CONFIG GET answers it.
    pub fn name(self) -> &'static str {
        match self {
            Self::No => "no",
            Self::Local => "local",
            Self::Yes => "yes",
        }
    }
}

/// How to serve Redis clients.
#[derive(Clone, Debug)]
pub struct Options {
    /// Clients must give it with AUTH or HELLO; empty: no password.
    pub password: Vec<u8>,
    /// Connections at a time.
    pub clients_max: u64,
    /// The most that CONFIG SET may make of it: what the process's limit on open files leaves for connections.
    pub clients_possible: u64,
    /// Permissions of Unix sockets that it listens at; `None`: as the umask leaves them.
    pub unix_mode: Option<u32>,
    /// Without a password, only clients of this machine are served.
    pub protected_mode: bool,
    /// Memory for what clients sent and was not carried out yet, all clients together, in bytes.
    pub input_bytes_max: u64,
    /// Memory for replies that clients did not take yet, all clients together, in bytes.
    pub output_bytes_max: u64,
    /// Who may use DEBUG.
    pub debug: DebugAccess,
    /// TLS on every TCP address.
    pub tls: Option<TlsOptions>,
    /// What INFO tells as `tcp_port`; 0: none.
    pub port: u16,
    /// What INFO and CONFIG GET tell of files: the directory of the data.
    pub directory: PathBuf,
    /// Addresses of this machine that it listens at, what CONFIG GET bind answers.
    pub bind: String,
    /// What INFO tells as `config_file`; empty: none.
    pub config_file: PathBuf,
    /// How soon a write is safe: what CONFIG GET appendfsync answers.
    pub durability: Durability,
    /// Memory budget of the whole server, in bytes: what CONFIG GET maxmemory answers.
    pub memory_bytes: u64,
    /// What INFO tells as `mem_allocator`.
    pub allocator: &'static str,
    /// Who walks over more elements than this to find a rank has the order counted; tests choose less.
    pub rank_walk_max: u64,
    /// Seed of random replies (RANDOMKEY, SPOP…) and of the run id.
    pub seed: u64,
}

/// [`Options::rank_walk_max`] of a server.
pub const RANK_WALK_MAX: u64 = 1024;

impl Default for Options {
    fn default() -> Self {
        Self {
            password: Vec::new(),
            clients_max: 10_000,
            clients_possible: 100_000,
            unix_mode: None,
            protected_mode: true,
            input_bytes_max: 256 << 20,
            output_bytes_max: 256 << 20,
            debug: DebugAccess::No,
            tls: None,
            port: 6379,
            directory: PathBuf::from("."),
            bind: String::new(),
            config_file: PathBuf::new(),
            durability: Durability::Always,
            memory_bytes: 256 << 20,
            allocator: "unknown",
            rank_walk_max: RANK_WALK_MAX,
            seed: 0,
        }
    }
}

/// What CONFIG SET may change while serving.
#[derive(Debug)]
pub struct Settings {
    password: Mutex<Vec<u8>>,
    has_password: AtomicBool,
    /// Connections at a time.
    pub clients_max: AtomicU64,
    /// Whether strangers are turned away while there is no password.
    pub protected_mode: AtomicBool,
    /// Seconds without a command after which a connection is closed; 0 = never.
    pub timeout_seconds: AtomicU64,
    /// Commands that took at least this many microseconds are kept in the slow log; negative: none.
    pub slowlog_slower_than_us: AtomicI64,
    /// Entries of the slow log.
    pub slowlog_entries_max: AtomicU64,
    /// Output of one client above which it is closed at once, in bytes; 0 = only the total counts.
    pub output_hard_bytes: AtomicU64,
    /// Output of one client above which it is closed when it stays there, in bytes; 0 = none.
    pub output_soft_bytes: AtomicU64,
    /// How long it may stay there, in seconds.
    pub output_soft_seconds: AtomicU64,
    /// The same three of Redis's other classes, replicas and subscribers, which are not there: kept and told.
    pub output_limits_kept: Mutex<[[u64; 3]; 2]>,
    /// What one client may have sent ahead, in bytes.
    pub query_buffer_bytes_max: AtomicU64,
    /// Up to how many elements Redis keeps sets of integers, sorted sets and hashes in one piece.
    pub compact_entries: CompactLimits,
    /// Up to how long their elements may be for that, in bytes; nothing to sets.
    pub compact_bytes: CompactLimits,
    /// What `maxmemory-policy` says. Nothing is ever evicted; OBJECT answers by it.
    pub policy: Mutex<&'static str>,
    /// Whether expired keys are removed in the background (DEBUG SET-ACTIVE-EXPIRE).
    pub active_expiry: AtomicBool,
    /// Parameters that tools set and read back, and that mean nothing here.
    pub kept: Mutex<Vec<(String, String)>>,
}

/// A limit of Redis's compact encodings, for each type that has one. They are Redis's: here they decide what OBJECT
/// ENCODING answers, and which collections are scanned in one page.
#[derive(Debug)]
pub struct CompactLimits {
    /// Sets of integers.
    pub set: AtomicU64,
    /// Sorted sets.
    pub zset: AtomicU64,
    /// Hashes.
    pub hash: AtomicU64,
}

impl CompactLimits {
    fn new(set: u64, zset: u64, hash: u64) -> Self {
        Self { set: AtomicU64::new(set), zset: AtomicU64::new(zset), hash: AtomicU64::new(hash) }
    }

    fn of(&self, kind: Type) -> u64 {
        match kind {
            Type::Set => self.set.load(Ordering::Relaxed),
            Type::Zset => self.zset.load(Ordering::Relaxed),
            Type::Hash => self.hash.load(Ordering::Relaxed),
            Type::List | Type::String => u64::MAX,
        }
    }
}

impl Settings {
    /// The limits of the compact encoding of collections of type `kind`.
    pub fn compact(&self, kind: Type) -> Compact {
        Compact { entries: self.compact_entries.of(kind), bytes: self.compact_bytes.of(kind) }
    }

    /// The eviction policy.
    pub fn policy(&self) -> &'static str {
        *lock(&self.policy)
    }

    /// The settings to start with.
    pub fn new(options: &Options) -> Self {
        Self {
            has_password: AtomicBool::new(!options.password.is_empty()),
            password: Mutex::new(options.password.clone()),
            clients_max: AtomicU64::new(options.clients_max),
            protected_mode: AtomicBool::new(options.protected_mode),
            timeout_seconds: AtomicU64::new(0),
            slowlog_slower_than_us: AtomicI64::new(10_000),
            slowlog_entries_max: AtomicU64::new(128),
            output_hard_bytes: AtomicU64::new(0),
            output_soft_bytes: AtomicU64::new(0),
            output_soft_seconds: AtomicU64::new(0),
            output_limits_kept: Mutex::new([[256 << 20, 64 << 20, 60], [32 << 20, 8 << 20, 60]]),
            query_buffer_bytes_max: AtomicU64::new(1 << 30),
            compact_entries: CompactLimits::new(512, 128, 512),
            compact_bytes: CompactLimits::new(u64::MAX, 64, 64),
            policy: Mutex::new("noeviction"),
            active_expiry: AtomicBool::new(true),
            kept: Mutex::new(Vec::new()),
        }
    }

    /// Whether clients must authenticate.
    pub fn has_password(&self) -> bool {
        self.has_password.load(Ordering::Acquire)
    }

    /// The password; empty: none.
    pub fn password(&self) -> Vec<u8> {
        lock(&self.password).clone()
    }

    /// Changes the password.
    pub fn set_password(&self, password: &[u8]) {
        *lock(&self.password) = password.to_vec();
        self.has_password.store(!password.is_empty(), Ordering::Release);
    }

    /// Whether `given` is the password. Takes the same time wherever they differ.
    pub fn password_is(&self, given: &[u8]) -> bool {
        let password = lock(&self.password);
        let mut difference = u8::from(password.len() != given.len());
        for (i, byte) in given.iter().enumerate() {
            difference |= byte ^ password.get(i).copied().unwrap_or(!byte);
        }
        difference == 0
    }
}
