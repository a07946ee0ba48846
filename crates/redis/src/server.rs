//! The server as all its connections share it.

use std::future::{Future, poll_fn};
use std::ops::Deref;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::Poll;

use pumice_base::rng::Rng;
use pumice_base::sync::lock;
use pumice_node::Node;
use pumice_reactor::sync::Event;

use crate::clients::Clients;
use crate::keyspace::{
    Cursors, Owed, RECORD_DRIVE, Ranks, Spaces, StoredSpaces, abandon_all, forget_counts, retire_later,
    retire_left, store_record,
};
use crate::options::{Options, Settings};
use crate::stats::Stats;

/// The drives, once they are open. Commands that need them do not run before.
#[derive(Default)]
pub struct NodeCell(OnceLock<Node>);

impl Deref for NodeCell {
    type Target = Node;

    /// # Panics
    /// While the drives are being opened: the dispatcher answers LOADING then.
    fn deref(&self) -> &Node {
        self.0.get().expect("a command that needs data ran while loading")
    }
}

/// The databases' spaces, known once the drives are open.
#[derive(Default)]
pub struct SpacesCell(OnceLock<Arc<Spaces>>);

impl Deref for SpacesCell {
    type Target = Spaces;

    /// # Panics
    /// While the drives are being opened: the dispatcher answers LOADING then.
    fn deref(&self) -> &Spaces {
        self.0.get().expect("a command that needs data ran while loading")
    }
}

/// Why the Redis face could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The record that says which database is where cannot be read.
    #[error("the record of the databases on drive 0 cannot be read: {why}")]
    Databases {
        /// What is wrong with it.
        why: String,
    },
    /// TLS files.
    #[error("TLS: {}: {why}", path.display())]
    Tls {
        /// Which file.
        path: std::path::PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// An address could not be listened at.
    #[error("cannot listen at {addr}: {source}")]
    Listen {
        /// The address.
        addr: String,
        /// The system's reason.
        source: std::io::Error,
    },
}

/// What all connections share.
pub struct Server {
    /// The drives.
    pub node: NodeCell,
    /// Where each database is.
    pub spaces: SpacesCell,
    /// Fixed settings.
    pub options: Options,
    /// Settings that CONFIG SET changes.
    pub settings: Settings,
    /// Connections.
    pub clients: Clients,
    /// Counters.
    pub stats: Stats,
    /// SCAN cursors.
    pub cursors: Cursors,
    pub(crate) owed: Owed,
    /// How many elements lie before a place in an order.
    pub ranks: Ranks,
    /// Unix milliseconds of the start.
    pub started_ms: u64,
    /// 40 hexadecimal digits, new at each start.
    pub run_id: String,
    /// Progress of opening the drives: bytes done, bytes in all.
    pub loading: (AtomicU64, AtomicU64),
    /// Unix seconds of the last SAVE.
    pub last_save: AtomicU64,
    /// Unix milliseconds of the last log line about a browser made to speak to this server; 0: none yet.
    pub attack_logged_ms: AtomicU64,
    /// Set when clients are no longer served.
    pub stopping: Event,
    /// Set by SHUTDOWN; the owner of the process acts on it.
    pub shutdown_asked: Event,
    is_loaded: AtomicBool,
    rng: Mutex<Rng>,
    tls: Option<crate::tls::Acceptor>,
}

impl Server {
    /// A server whose drives are still to be opened: it answers LOADING. Runs on a core.
    pub fn new(options: Options) -> Result<Self, StartError> {
        let mut rng = Rng::from_seed(options.seed);
        let run_id = (0..5).map(|_| format!("{:08x}", rng.next_u64() as u32)).collect();
        let tls = options.tls.as_ref().map(crate::tls::Acceptor::new).transpose()?;
        let now_ms = pumice_reactor::wall_ms();
        Ok(Self {
            node: NodeCell::default(),
            spaces: SpacesCell::default(),
            settings: Settings::new(&options),
            ranks: Ranks::new(options.memory_bytes, options.rank_walk_max),
            options,
            clients: Clients::default(),
            stats: Stats::default(),
            cursors: Cursors::default(),
            owed: Owed::default(),
            started_ms: now_ms,
            run_id,
            loading: (AtomicU64::new(0), AtomicU64::new(0)),
            last_save: AtomicU64::new(now_ms / 1000),
            attack_logged_ms: AtomicU64::new(0),
            stopping: Event::new(),
            shutdown_asked: Event::new(),
            is_loaded: AtomicBool::new(false),
            rng: Mutex::new(rng),
            tls,
        })
    }

    /// Gives the server its opened drives: from here on it serves. Their background work must run: a replayed log may have filled
    /// their memory, and what is written here waits for room.
    pub async fn attach(self: &Arc<Self>, node: Node) -> Result<(), StartError> {
        let damaged = |why: String| StartError::Databases { why };
        let stored = StoredSpaces::read(node.store(RECORD_DRIVE)).await.map_err(damaged)?;
        let spaces = stored.spaces;
        if stored.is_lacking
            && let Err(error) = store_record(&node, &spaces).await
        {
            tracing::warn!(error, "the record of the databases lies in one place for now");
        }
        // What a crash came before, or a drive refused, is done now.
        abandon_all(&node).await;
        let refused = retire_left(&node, &spaces).await;
        forget_counts(&node, &spaces).await;
        let spaces = Arc::new(spaces);
        for drive in 0..node.drive_count() {
            let spaces = spaces.clone();
            let names = move |raw: &[u8]| crate::keyspace::name_of(raw, Some(&spaces));
            node.store(drive).call_keys(Arc::new(names));
        }
        assert!(self.node.0.set(node).is_ok() && self.spaces.0.set(spaces).is_ok(), "attached twice");
        for (drive, left) in refused {
            retire_later(self, drive, left);
        }
        self.is_loaded.store(true, Ordering::Release);
        Ok(())
    }

    /// Keys of all databases, expired ones that are still stored included; what is not durable yet counts.
    pub fn keys(&self) -> u64 {
        if !self.is_loaded() {
            return 0;
        }
        (0..crate::keyspace::DATABASES)
            .map(|database| u64::try_from(self.node.tally(self.spaces.of(database).0)).unwrap_or(0))
            .sum()
    }

    /// Whether the drives are open.
    pub fn is_loaded(&self) -> bool {
        self.is_loaded.load(Ordering::Acquire)
    }

    /// What comes of `future`; `None` where the server stops before that.
    pub(crate) async fn unless_stopping<F: Future + Unpin>(&self, mut future: F) -> Option<F::Output> {
        let mut stopping = pin!(self.stopping.wait());
        poll_fn(|context| {
            if let Poll::Ready(output) = Pin::new(&mut future).poll(context) {
                return Poll::Ready(Some(output));
            }
            stopping.as_mut().poll(context).map(|()| None)
        })
        .await
    }

    /// A random stream of one's own.
    pub fn rng(&self) -> Rng {
        Rng::from_seed(lock(&self.rng).next_u64())
    }

    /// Sets up TLS connections, where TLS is on.
    pub(crate) fn tls(&self) -> Option<&crate::tls::Acceptor> {
        self.tls.as_ref()
    }
}
