//! Settings of the Redis face. Those that CONFIG SET may change are in [`Settings`]; the rest is fixed at start.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};
use std::sync::{Mutex, PoisonError};

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

/// How to serve Redis clients.
#[derive(Clone, Debug)]
pub struct Options {
    /// Clients must give it with AUTH or HELLO; empty: no password.
    pub password: String,
    /// Connections at a time.
    pub clients_max: u64,
    /// Without a password, only clients of this machine are served.
    pub protected_mode: bool,
    /// Memory for what clients sent and was not carried out yet, all clients together, in bytes.
    pub input_bytes_max: u64,
    /// Memory for replies that clients did not take yet, all clients together, in bytes.
    pub output_bytes_max: u64,
    /// TLS on every TCP address.
    pub tls: Option<TlsOptions>,
    /// What INFO tells as `tcp_port`; 0: none.
    pub port: u16,
    /// What INFO and CONFIG GET tell of files: the directory of the data.
    pub directory: PathBuf,
    /// Memory budget of the whole server, in bytes: what CONFIG GET maxmemory answers.
    pub memory_bytes: u64,
    /// Seed of random replies (RANDOMKEY, SPOP…) and of the run id.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            password: String::new(),
            clients_max: 10_000,
            protected_mode: true,
            input_bytes_max: 256 << 20,
            output_bytes_max: 256 << 20,
            tls: None,
            port: 6379,
            directory: PathBuf::from("."),
            memory_bytes: 256 << 20,
            seed: 0,
        }
    }
}

/// What CONFIG SET may change while serving.
#[derive(Debug)]
pub struct Settings {
    password: Mutex<String>,
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
    /// What one client may have sent ahead, in bytes.
    pub query_buffer_bytes_max: AtomicU64,
    /// Whether expired keys are removed in the background (DEBUG SET-ACTIVE-EXPIRE).
    pub active_expiry: AtomicBool,
    /// Parameters that tools set and read back, and that mean nothing here.
    pub kept: Mutex<Vec<(String, String)>>,
}

impl Settings {
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
            query_buffer_bytes_max: AtomicU64::new(1 << 30),
            active_expiry: AtomicBool::new(true),
            kept: Mutex::new(Vec::new()),
        }
    }

    /// Whether clients must authenticate.
    pub fn has_password(&self) -> bool {
        self.has_password.load(std::sync::atomic::Ordering::Acquire)
    }

    /// The password; empty: none.
    pub fn password(&self) -> String {
        self.password.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes the password.
    pub fn set_password(&self, password: &str) {
        *self.password.lock().unwrap_or_else(PoisonError::into_inner) = password.to_string();
        self.has_password.store(!password.is_empty(), std::sync::atomic::Ordering::Release);
    }

    /// Whether `given` is the password. Takes the same time wherever they differ.
    pub fn password_is(&self, given: &[u8]) -> bool {
        let password = self.password.lock().unwrap_or_else(PoisonError::into_inner);
        let expected = password.as_bytes();
        let mut difference = u8::from(expected.len() != given.len());
        for (i, byte) in given.iter().enumerate() {
            difference |= byte ^ expected.get(i).copied().unwrap_or(!byte);
        }
        difference == 0
    }
}
