//! The face as the process sees it: listen, serve, keep house, stop.
//!
//! On each core that serves: [`bind`] every address, then [`Face::run`]. On one core: [`keep_house`]. To stop:
//! [`stop`], on any core.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use pumice_node::Place;
use pumice_reactor::{Addr, ListenOptions, Listener, Nanos};

use crate::keyspace::{HEAD_PREFIX_BYTES, HeadKey, is_expired, space_of, user_key};
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
    match Listener::bind(addr, ListenOptions::default()).await {
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
                    let connection =
                        crate::connection::serve(self.server.clone(), stream, peer, local.clone());
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
/// Expired keys of each drive removed at a time; while there are that many, the next look follows at once.
const EXPIRED_KEYS_MAX: usize = 200;
/// How long a drive is left alone on which that failed: others go on.
const EXPIRY_RESTS: Duration = Duration::from_secs(1);
/// How often connections are looked over.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Removes expired keys, closes idle connections and tells those that wait for stalled drives, until the server stops. Run it
/// on one core.
pub async fn keep_house(server: Arc<Server>) {
    let mut resting_until = Vec::new();
    let mut next_look = pumice_reactor::now() + LOOK_INTERVAL;
    let mut stalled_since = None;
    while !server.stopping.is_set() {
        let mut pause = EXPIRY_INTERVAL;
        if server.is_loaded() && server.settings.active_expiry.load(Ordering::Relaxed) {
            resting_until.resize(usize::from(server.node.drive_count()), Nanos::default());
            for (drive, rests) in (0u16..).zip(&mut resting_until) {
                if pumice_reactor::now() < *rests {
                    continue;
                }
                match expire_some(&server, drive).await {
                    Ok(removed) if removed >= EXPIRED_KEYS_MAX => pause = Duration::from_millis(1),
                    Ok(_) => {}
                    Err(why) => {
                        tracing::warn!(drive, why, "removing expired keys failed");
                        *rests = pumice_reactor::now() + EXPIRY_RESTS;
                    }
                }
            }
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

/// Removes some expired keys of a drive; says how many were found, or why some could not be removed.
async fn expire_some(server: &Arc<Server>, drive: u16) -> Result<usize, String> {
    // Keys live through the millisecond of their expiry; the engine tells of those whose it is, too.
    let over_ms = pumice_reactor::wall_ms().saturating_sub(1);
    let found = server.node.expired(drive, over_ms, EXPIRED_KEYS_MAX).await.map_err(|e| e.to_string())?;
    let mut ctx = crate::context::Ctx::for_service(server.clone());
    let mut failed = None;
    for (place, raw) in &found {
        if let Err(why) = expire_one(&mut ctx, *place, raw).await {
            failed.get_or_insert_with(|| why.lossy().into_owned());
        }
    }
    failed.map_or(Ok(found.len()), Err)
}

async fn expire_one(
    ctx: &mut crate::context::Ctx,
    place: Place,
    raw: &Bytes,
) -> crate::errors::CommandResult {
    let Some(user) = user_key(raw) else { return Ok(()) };
    assert_eq!(user.len() + HEAD_PREFIX_BYTES, raw.len());
    let space = space_of(raw);
    // A space that no database is in any more is retired as a whole.
    let Some(database) = ctx.server.spaces.database_of(space) else { return Ok(()) };
    let key = HeadKey::new(database, space, user, &ctx.server.node);
    assert_eq!(key.place, place);
    let _held = ctx.latch_hashes(&[key.hash()]).await;
    // Emptied while this waited: nothing may be written into the space any more, nor counted of it.
    if ctx.server.spaces.of(database) != space {
        return Ok(());
    }
    ctx.now_ms = pumice_reactor::wall_ms();
    let entry = ctx.entry(key.place, key.raw()).await?;
    let Some(entry) = entry.filter(|entry| is_expired(entry.expire_ms, ctx.now_ms)) else { return Ok(()) };
    let mut change = ctx.change();
    let was = entry.expire_ms;
    ctx.erase_stored(&mut change, &key, Some(entry)).await?;
    // A key that was there at WATCH and is expired at EXEC is noticed there; one that was expired at WATCH already
    // does not change by being removed.
    change.go_unseen();
    change.delete_head(&key, was);
    ctx.commit(change).await?;
    ctx.server.stats.expired_keys.fetch_add(1, Ordering::Relaxed);
    Ok(())
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
