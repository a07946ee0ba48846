//! The face as the process sees it: listen, serve, keep house, stop.
//!
//! On each core that serves: [`bind`] every address, then [`Face::run`]. On one core: [`keep_house`]. To stop:
//! [`stop`], on any core.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use pumice_reactor::{Addr, ListenOptions, Listener};

use crate::expiry::Expiry;
use crate::server::{Server, StartError};
use crate::stall;

/// A listener of one core.
pub struct Face {
    server: Arc<Server>,
    listener: Listener,
}

/// Listens at `addr` on the current core. TCP addresses may be bound by every core, each gets its share of the
/// connections; a Unix socket by one.
pub async fn bind(server: &Arc<Server>, addr: &Addr) -> Result<Face, StartError> {
    let options = ListenOptions { unix_mode: server.options.unix_mode, ..ListenOptions::default() };
    match Listener::bind(addr, options).await {
        Ok(listener) => Ok(Face { server: server.clone(), listener }),
        Err(source) => Err(StartError::Listen { addr: addr.to_string(), source }),
    }
}

impl Face {
    /// Where it listens, with the port filled in.
    pub fn local_addr(&self) -> &Addr {
        self.listener.local_addr()
    }

    /// Serves until the server stops.
    pub async fn run(self) {
        let local = self.local_addr().to_string();
        let is_any = matches!(self.local_addr(), Addr::Tcp(addr) if addr.ip().is_unspecified());
        let mut stopping = std::pin::pin!(self.server.stopping.wait());
        loop {
            let accepted = {
                let mut accept = std::pin::pin!(self.listener.accept());
                std::future::poll_fn(|context| {
                    if stopping.as_mut().poll(context).is_ready() {
                        return std::task::Poll::Ready(None);
                    }
                    accept.as_mut().poll(context).map(Some)
                })
                .await
            };
            match accepted {
                None => return,
                Some(Ok((stream, peer))) => {
                    let own = if is_any { stream.local_addr() } else { None };
                    let own = own.map_or_else(|| local.clone(), |own| own.to_string());
                    let connection = crate::connection::serve(self.server.clone(), stream, peer, own);
                    pumice_reactor::spawn(connection);
                }
                Some(Err(error)) => {
                    // Too many open files, most likely: it passes when a client leaves.
                    tracing::warn!(%error, addr = local, "accepting a connection failed");
                    pumice_reactor::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }
}

/// How often expired keys are looked for.
const EXPIRY_INTERVAL: Duration = Duration::from_millis(100);
/// The same while there are more of them.
const EXPIRY_GOES_ON: Duration = Duration::from_millis(1);
/// How often connections are looked over.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Removes expired keys, closes idle connections and tells those that wait for stalled drives, until the server stops. Run it
/// on one core.
pub async fn keep_house(server: Arc<Server>) {
    let mut expiry = Expiry::default();
    let mut next_look = pumice_reactor::now() + LOOK_INTERVAL;
    let mut stalled_since = None;
    while !server.stopping.is_set() {
        let mut pause = EXPIRY_INTERVAL;
        if server.is_loaded()
            && server.settings.active_expiry.load(Ordering::Relaxed)
            && expiry.look(&server).await
        {
            pause = EXPIRY_GOES_ON;
        }
        server.stats.sample(pumice_reactor::wall_ms());
        let now = pumice_reactor::now();
        if now >= next_look {
            next_look = now + LOOK_INTERVAL;
            close_idle(&server);
            if server.is_loaded() {
                stall::tell(&server, &mut stalled_since);
            }
        }
        let _ = pumice_reactor::timeout(pause, server.stopping.wait()).await;
    }
}

fn close_idle(server: &Arc<Server>) {
    let timeout_seconds = server.settings.timeout_seconds.load(Ordering::Relaxed);
    if timeout_seconds == 0 {
        return;
    }
    let now_ms = pumice_reactor::wall_ms();
    for client in server.clients.all() {
        if client.idle_ms(now_ms).is_some_and(|idle_ms| idle_ms / 1000 >= timeout_seconds) {
            client.kill();
        }
    }
}

/// Stops serving: no new connections, no new commands; what was carried out is still answered. Returns when all
/// connections are closed, or after a few seconds.
pub async fn stop(server: &Arc<Server>) {
    server.stopping.set();
    for _ in 0..400 {
        if server.clients.is_empty() {
            return;
        }
        pumice_reactor::sleep(Duration::from_millis(10)).await;
    }
    tracing::warn!(clients = server.clients.len(), "stopped although some connections did not end");
}
