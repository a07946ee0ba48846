//! What INFO and SLOWLOG tell of the commands run.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use pumice_base::latency::SharedHistogram;
use pumice_base::sync::lock;

use crate::args::Args;
use crate::command::Table;

/// Codes that are counted by themselves; there are fewer, but no error text is trusted to have one.
const ERROR_CODES_MAX: usize = 128;

/// Counters of one command.
#[derive(Default)]
pub struct CommandStats {
    /// Runs.
    pub calls: AtomicU64,
    /// Nanoseconds, waits for flash and latches included, the wait for durability not.
    pub nanos: AtomicU64,
    /// The same by run. Of commands that did not wait some are timed together, and count as alike.
    pub latency: SharedHistogram,
    /// Refused before they ran: arity, AUTH, memory.
    pub rejected: AtomicU64,
    /// Answered with an error.
    pub failed: AtomicU64,
}

/// Counters of the Redis face since its start (or CONFIG RESETSTAT).
pub struct Stats {
    /// By [`crate::command::Command::stats_of`].
    pub commands: Vec<CommandStats>,
    /// Connections accepted.
    pub connections: AtomicU64,
    /// Connections turned away: too many, or protected mode.
    pub rejected_connections: AtomicU64,
    /// Bytes received.
    pub input_bytes: AtomicU64,
    /// Bytes sent.
    pub output_bytes: AtomicU64,
    /// Reads that found their key.
    pub hits: AtomicU64,
    /// Reads that did not.
    pub misses: AtomicU64,
    /// Keys removed because their time was over.
    pub expired_keys: AtomicU64,
    /// Error replies.
    pub error_replies: AtomicU64,
    /// The same by code, the reply's first word.
    errors: Mutex<BTreeMap<String, u64>>,
    /// Uncommitted states that the scans of transactions fetched: what looking through their own writes costs.
    pub uncommitted_walked: AtomicU64,
    /// Clients closed for output that they did not take.
    pub output_limit_closes: AtomicU64,
    /// Clients closed for input beyond the limit.
    pub input_limit_closes: AtomicU64,
    /// Bytes of replies that wait, all clients together.
    pub output_waiting_bytes: AtomicU64,
    /// Bytes received and not carried out, all clients together.
    pub input_waiting_bytes: AtomicU64,
    /// Bytes of queued commands and watched keys, all clients together.
    pub transaction_bytes: AtomicU64,
    /// Bytes of replies and writes that running EXECs, and commands that answer what they remove, have collected, all clients
    /// together.
    pub exec_bytes: AtomicU64,
    /// Keys and clients that WATCH compared with those that it was given: what telling known from new ones costs.
    pub watched_compared: AtomicU64,
    /// How fast the counters rise.
    rates: Mutex<Rates>,
    /// The slow log.
    pub slowlog: Mutex<Slowlog>,
}

impl Default for Stats {
    fn default() -> Self {
        Self {
            commands: (0..Table::get().stats_len()).map(|_| CommandStats::default()).collect(),
            connections: AtomicU64::new(0),
            rejected_connections: AtomicU64::new(0),
            input_bytes: AtomicU64::new(0),
            output_bytes: AtomicU64::new(0),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            expired_keys: AtomicU64::new(0),
            error_replies: AtomicU64::new(0),
            errors: Mutex::default(),
            uncommitted_walked: AtomicU64::new(0),
            output_limit_closes: AtomicU64::new(0),
            input_limit_closes: AtomicU64::new(0),
            output_waiting_bytes: AtomicU64::new(0),
            input_waiting_bytes: AtomicU64::new(0),
            transaction_bytes: AtomicU64::new(0),
            exec_bytes: AtomicU64::new(0),
            watched_compared: AtomicU64::new(0),
            rates: Mutex::default(),
            slowlog: Mutex::default(),
        }
    }
}

impl Stats {
    /// All counters to zero, those of what waits excepted.
    pub fn reset(&self) {
        for command in &self.commands {
            for counter in [&command.calls, &command.nanos, &command.rejected, &command.failed] {
                counter.store(0, Ordering::Relaxed);
            }
            command.latency.reset();
        }
        for counter in [
            &self.connections,
            &self.rejected_connections,
            &self.input_bytes,
            &self.output_bytes,
            &self.hits,
            &self.misses,
            &self.expired_keys,
            &self.error_replies,
            &self.uncommitted_walked,
            &self.watched_compared,
            &self.output_limit_closes,
            &self.input_limit_closes,
        ] {
            counter.store(0, Ordering::Relaxed);
        }
        self.errors().clear();
    }

    /// Counts an error reply.
    pub fn note_error(&self, text: impl AsRef<[u8]>) {
        self.error_replies.fetch_add(1, Ordering::Relaxed);
        let code = text.as_ref().split(|&b| b == b' ').next().unwrap_or_default();
        let code = &*String::from_utf8_lossy(code);
        let mut errors = self.errors();
        if let Some(count) = errors.get_mut(code) {
            *count += 1;
        } else if errors.len() < ERROR_CODES_MAX {
            errors.insert(code.to_string(), 1);
        }
    }

    /// How many error replies there were, by code.
    pub fn errors(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, u64>> {
        lock(&self.errors)
    }

    /// Looks at the counters, if the last look was long enough ago.
    pub fn sample(&self, now_ms: u64) {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = [self.calls(), load(&self.input_bytes), load(&self.output_bytes)];
        self.rates().sample(now_ms, counters);
    }

    /// How fast commands, bytes received and bytes sent rise.
    pub fn rates(&self) -> std::sync::MutexGuard<'_, Rates> {
        lock(&self.rates)
    }

    /// Commands run.
    pub fn calls(&self) -> u64 {
        self.commands.iter().map(|command| command.calls.load(Ordering::Relaxed)).sum()
    }

    /// The slow log.
    pub fn slowlog(&self) -> std::sync::MutexGuard<'_, Slowlog> {
        lock(&self.slowlog)
    }
}

/// Looks that a rate is the mean of, and the time between two, as in Redis (server.h, STATS_METRIC_SAMPLES).
const RATE_SAMPLES: usize = 16;
const RATE_INTERVAL_MS: u64 = 100;

/// What rises by how much per second, lately.
#[derive(Default)]
pub struct Rates {
    /// Unix milliseconds of the last look, and what it saw.
    last: Option<(u64, [u64; 3])>,
    samples: [[u64; 3]; RATE_SAMPLES],
    next: usize,
}

impl Rates {
    fn sample(&mut self, now_ms: u64, counters: [u64; 3]) {
        let Some((then_ms, before)) = self.last else {
            self.last = Some((now_ms, counters));
            return;
        };
        let passed_ms = now_ms.saturating_sub(then_ms);
        // The clock may have been set back.
        if now_ms >= then_ms && passed_ms < RATE_INTERVAL_MS {
            return;
        }
        let rise = |at: usize| counters[at].saturating_sub(before[at]) * 1000 / passed_ms.max(1);
        self.samples[self.next] = std::array::from_fn(rise);
        self.next = (self.next + 1) % RATE_SAMPLES;
        self.last = Some((now_ms, counters));
    }

    /// By how much each rises per second.
    pub fn per_second(&self) -> [u64; 3] {
        std::array::from_fn(|at| {
            self.samples.iter().map(|sample| sample[at]).sum::<u64>() / RATE_SAMPLES as u64
        })
    }
}

/// One slow command.
#[derive(Clone, Debug)]
pub struct SlowEntry {
    /// Rises by one per entry.
    pub id: u64,
    /// Unix seconds.
    pub time: u64,
    /// Microseconds.
    pub took_us: u64,
    /// The arguments, cut to what Redis keeps.
    pub arguments: Vec<Vec<u8>>,
    /// Peer's address.
    pub addr: String,
    /// Name of the connection.
    pub name: String,
}

/// The slow log: the newest entries.
#[derive(Default)]
pub struct Slowlog {
    /// Newest first.
    pub entries: VecDeque<SlowEntry>,
    next_id: u64,
}

/// slowlog.h: arguments kept, and bytes of each.
const SLOWLOG_ARGUMENTS_MAX: usize = 32;
const SLOWLOG_ARGUMENT_BYTES_MAX: usize = 128;

impl Slowlog {
    /// Keeps a slow command, at most `max` of them.
    pub fn push(&mut self, max: usize, args: &Args<'_>, time: u64, took_us: u64, addr: &str, name: &str) {
        let kept = if args.len() > SLOWLOG_ARGUMENTS_MAX { SLOWLOG_ARGUMENTS_MAX - 1 } else { args.len() };
        let mut arguments: Vec<Vec<u8>> = args
            .shown()
            .take(kept)
            .map(|argument| {
                if argument.len() <= SLOWLOG_ARGUMENT_BYTES_MAX {
                    return argument.to_vec();
                }
                let more = argument.len() - SLOWLOG_ARGUMENT_BYTES_MAX;
                [&argument[..SLOWLOG_ARGUMENT_BYTES_MAX], format!("... ({more} more bytes)").as_bytes()]
                    .concat()
            })
            .collect();
        if kept < args.len() {
            arguments.push(format!("... ({} more arguments)", args.len() - kept).into_bytes());
        }
        let (addr, name) = (addr.to_string(), name.to_string());
        self.entries.push_front(SlowEntry { id: self.next_id, time, took_us, arguments, addr, name });
        self.next_id += 1;
        self.entries.truncate(max);
    }
}
