//! What the server tells the outside about itself: loading, ready, degraded or stopping. Shared by all threads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use pumice_base::sync::lock;
use pumice_node::Node;
use pumice_reactor::metrics::CoreMetrics;
use pumice_redis::server::Server;

/// The server's condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Opening its drives.
    Loading,
    /// Serving.
    Ready,
    /// Serving, but something is wrong with a drive: it refuses writes, or holds what does not read.
    Degraded(String),
    /// Closing its drives.
    Stopping,
}

impl Condition {
    /// One word, as /health says it.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Loading => "loading",
            Self::Ready => "ready",
            Self::Degraded(_) => "degraded",
            Self::Stopping => "stopping",
        }
    }
}

/// Shared by the serving cores, which set it, and the side thread, which shows it.
#[derive(Clone)]
pub struct Health {
    inner: Arc<Inner>,
}

struct Inner {
    condition: Mutex<Condition>,
    node: OnceLock<Node>,
    redis: OnceLock<Arc<Server>>,
    cores: Mutex<Vec<CoreMetrics>>,
    loaded: AtomicU64,
    to_load: AtomicU64,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            inner: Arc::new(Inner {
                condition: Mutex::new(Condition::Loading),
                node: OnceLock::new(),
                redis: OnceLock::new(),
                cores: Mutex::default(),
                loaded: AtomicU64::new(0),
                to_load: AtomicU64::new(0),
            }),
        }
    }
}

impl Health {
    /// The condition now. A drive that is not well, in whatever way, makes a ready server degraded.
    pub fn condition(&self) -> Condition {
        let condition = lock(&self.inner.condition).clone();
        match (&condition, self.inner.node.get()) {
            (Condition::Ready, Some(node)) => node.trouble().map_or(condition, Condition::Degraded),
            _ => condition,
        }
    }

    /// Sets the condition.
    pub fn set(&self, condition: Condition) {
        *lock(&self.inner.condition) = condition;
    }

    /// The drives, once they are open.
    pub fn node(&self) -> Option<&Node> {
        self.inner.node.get()
    }

    /// The drives are open.
    pub fn opened(&self, node: Node) {
        let _ = self.inner.node.set(node);
    }

    /// The Redis face, once there is one.
    pub fn redis(&self) -> Option<&Arc<Server>> {
        self.inner.redis.get()
    }

    /// There is a Redis face.
    pub fn serves(&self, server: Arc<Server>) {
        let _ = self.inner.redis.set(server);
    }

    /// The cores' counters as of at most a second ago.
    pub fn core_metrics(&self) -> Vec<CoreMetrics> {
        lock(&self.inner.cores).clone()
    }

    /// Shows these counters from now on.
    pub fn set_core_metrics(&self, cores: Vec<CoreMetrics>) {
        *lock(&self.inner.cores) = cores;
    }

    /// How far opening has come.
    pub fn set_progress(&self, done: u64, total: u64) {
        self.inner.loaded.store(done, Ordering::Relaxed);
        self.inner.to_load.store(total, Ordering::Relaxed);
    }

    /// How far opening has come: done and total, in the engine's unit.
    pub fn progress(&self) -> (u64, u64) {
        (self.inner.loaded.load(Ordering::Relaxed), self.inner.to_load.load(Ordering::Relaxed))
    }
}

impl std::fmt::Debug for Health {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Health({})", self.condition().word())
    }
}
