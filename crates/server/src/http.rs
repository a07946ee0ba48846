//! What the server shows to machines and people beside its data: `/metrics` for Prometheus, `/health` for load
//! balancers, `/info` as JSON, and a small page at `/`. It runs on one side thread, never on a core that serves,
//! and answers on the `--http` address and on the control socket in the data directory.
//!
//! Whoever connects costs a descriptor, of which the drives need some, too. So each face has so many connections at
//! once ([`CONNECTIONS_MAX`]; others wait in the kernel's backlog), and none may keep one for nothing: a request's
//! head must be there within seconds, and a connection ends after a minute. `axum::serve` knows no such bounds.

use std::fmt::Display;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use pumice_node::DriveCondition;
use pumice_reactor::Addr;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};

use crate::config::Listen;
use crate::exit::Stop;
use crate::health::{Condition, Health};
use crate::metrics;
use crate::process::{DEATH_RETRY, DEATH_WAIT, clear_socket};

/// Connections of one face at once. The control socket has its own, whatever strangers do to `--http`.
pub const CONNECTIONS_MAX: usize = 32;
/// Faces at most: `--http` and the control socket.
pub const FACES_MAX: usize = 2;
/// A request's head must be there this long after its connection is, or after the request before it.
const HEAD_WITHIN: Duration = Duration::from_secs(10);
/// A connection takes no more requests after this: who keeps one alive connects again.
const CONNECTION_LASTS: Duration = Duration::from_secs(60);
/// An answer under way then has this long to be taken.
const ANSWER_TAKEN_WITHIN: Duration = Duration::from_secs(10);
/// How long accepting rests after an error that would come again at once: no descriptors, for instance.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// What is to be listened on.
pub struct Faces {
    /// `--http`, when asked for.
    pub http: Option<Listen>,
    /// The control socket.
    pub control: Option<PathBuf>,
}

/// The running side thread.
pub struct Side {
    stop: watch::Sender<bool>,
    thread: JoinHandle<()>,
    /// Where `--http` listens, with the port filled in.
    pub http: Option<String>,
}

enum Bound {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// Starts the side thread and binds its faces; an address that cannot be bound is an error here, not later.
pub fn start(faces: Faces, health: Health) -> Result<Side, Stop> {
    let (stop, stopped) = watch::channel(false);
    let (bound_tx, bound_rx) = mpsc::channel();
    let body = move || {
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build() {
            Ok(runtime) => runtime,
            Err(error) => {
                let _ = bound_tx.send(Err(Stop::doing("the side thread", error)));
                return;
            }
        };
        runtime.block_on(async move {
            match bind_all(faces).await {
                Ok((listeners, shown)) => {
                    let _ = bound_tx.send(Ok(shown));
                    serve_all(listeners, health, stopped).await;
                }
                Err(error) => {
                    let _ = bound_tx.send(Err(error));
                }
            }
        });
    };
    let thread = std::thread::Builder::new()
        .name("side".into())
        .spawn(body)
        .map_err(|e| Stop::doing("starting the side thread", e))?;
    let http = bound_rx.recv().map_err(|_| Stop::because("the side thread died"))??;
    Ok(Side { stop, thread, http })
}

impl Side {
    /// Stops listening and waits for the thread.
    pub fn stop(self) {
        let _ = self.stop.send(true);
        let _ = self.thread.join();
    }
}

async fn bind_all(faces: Faces) -> Result<(Vec<Bound>, Option<String>), Stop> {
    let mut listeners = Vec::new();
    let mut shown = None;
    if let Some(listen) = faces.http {
        match &listen.addr {
            Addr::Unix(path) => {
                listeners.push(Bound::Unix(bind_unix(path, &listen)?));
                shown = Some(listen.addr.to_string());
            }
            Addr::Tcp(addr) => {
                let listener = bind_tcp(*addr, &listen).await?;
                shown = Some(listener.local_addr().unwrap_or(*addr).to_string());
                listeners.push(Bound::Tcp(listener));
            }
        }
    }
    if let Some(path) = faces.control {
        listeners.push(Bound::Unix(bind_unix(&path, &path.display())?));
    }
    Ok((listeners, shown))
}

/// Binds a TCP address; a server that has just died and still has it is waited for.
async fn bind_tcp(addr: SocketAddr, shown: &Listen) -> Result<TcpListener, Stop> {
    let started = tokio::time::Instant::now();
    let mut is_told = false;
    loop {
        match TcpListener::bind(addr).await {
            Err(e) if e.kind() == std::io::ErrorKind::AddrInUse && started.elapsed() < DEATH_WAIT => {
                if !std::mem::replace(&mut is_told, true) {
                    tracing::info!("{shown}: {e}; waiting, should a server have just ended");
                }
                sleep(DEATH_RETRY).await;
            }
            bound => return bound.map_err(|e| Stop::doing(shown, e)),
        }
    }
}

/// Binds a Unix socket, replacing one that nobody listens on any more.
fn bind_unix(path: &Path, shown: &dyn Display) -> Result<UnixListener, Stop> {
    match clear_socket(path) {
        Ok(true) => Err(Stop::because(format!("{shown}: another server listens here"))),
        Ok(false) => UnixListener::bind(path).map_err(|e| Stop::doing(shown, e)),
        Err(e) => Err(Stop::doing(shown, e)),
    }
}

async fn serve_all(listeners: Vec<Bound>, health: Health, stopped: watch::Receiver<bool>) {
    let app = Router::new()
        .route("/", get(index))
        .route("/health", get(show_health))
        .route("/metrics", get(show_metrics))
        .route("/info", get(show_info))
        .with_state(health);
    let mut tasks = Vec::new();
    for listener in listeners {
        let app = app.clone();
        let mut stopped = stopped.clone();
        tasks.push(tokio::spawn(async move {
            let until = async move {
                let _ = stopped.wait_for(|stop| *stop).await;
            };
            // Dropped rather than drained: a scraper that keeps its connection must not hold the server.
            tokio::select! {
                () = until => {}
                () = accept_all(listener, app) => {}
            }
        }));
    }
    for task in tasks {
        let _ = task.await;
    }
}

/// Takes connections for ever, at most [`CONNECTIONS_MAX`] at once.
async fn accept_all(listener: Bound, app: Router) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        // A place first: who is accepted without one would take a descriptor for waiting.
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let app = app.clone();
        let accepted = match &listener {
            Bound::Tcp(listener) => listener.accept().await.map(|(stream, _)| {
                tokio::spawn(async move {
                    serve_one(stream, app).await;
                    drop(place);
                })
            }),
            Bound::Unix(listener) => listener.accept().await.map(|(stream, _)| {
                tokio::spawn(async move {
                    serve_one(stream, app).await;
                    drop(place);
                })
            }),
        };
        if let Err(error) = accepted {
            tracing::warn!(%error, "an HTTP face cannot take a connection");
            sleep(ACCEPT_AGAIN_AFTER).await;
        }
    }
}

/// Answers one connection's requests. How it ends is the client's business: no error of it is told.
async fn serve_one(stream: impl AsyncRead + AsyncWrite + Unpin, app: Router) {
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_WITHIN);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(app)));
    if timeout(CONNECTION_LASTS, connection.as_mut()).await.is_err() {
        connection.as_mut().graceful_shutdown();
        let _ = timeout(ANSWER_TAKEN_WITHIN, connection).await;
    }
}

async fn show_health(State(health): State<Health>) -> Response {
    let condition = health.condition();
    let status = match condition {
        Condition::Ready | Condition::Degraded(_) => StatusCode::OK,
        Condition::Loading | Condition::Stopping => StatusCode::SERVICE_UNAVAILABLE,
    };
    let (done, total) = health.progress();
    let mut body = serde_json::json!({ "state": condition.word() });
    if let Some(node) = health.node() {
        body["drives"] = node.conditions().iter().map(drive_condition).collect();
    }
    match condition {
        Condition::Loading => body["progress"] = serde_json::json!({ "done": done, "total": total }),
        Condition::Degraded(why) => body["why"] = why.into(),
        _ => {}
    }
    (status, [(header::CONTENT_TYPE, "application/json")], format!("{body}\n")).into_response()
}

/// Reads go on in every state of a drive, so none of them takes the server out of service.
fn drive_condition(found: &DriveCondition) -> serde_json::Value {
    let mut drive = serde_json::json!({
        "device": found.drive, "state": found.state.word(), "damaged_records": found.damaged_records,
    });
    if let Some(why) = &found.why {
        drive["why"] = why.as_str().into();
    }
    drive
}

async fn show_metrics(State(health): State<Health>) -> Response {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], metrics::openmetrics(&health)).into_response()
}

async fn show_info(State(health): State<Health>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], format!("{}\n", metrics::info(&health))).into_response()
}

async fn index(State(health): State<Health>) -> Html<String> {
    let rows: String = metrics::overview(&health)
        .into_iter()
        .map(|(name, value)| format!("<tr><th>{name}</th><td>{}</td></tr>", escape(&value)))
        .collect();
    Html(format!(
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>\
         <meta http-equiv=refresh content=5><title>Pumice</title><style>body{{font:16px/1.5 system-ui;margin:2rem \
         auto;max-width:44rem;padding:0 1rem;color:#222;background:#fafaf8}}th{{text-align:left;font-weight:500;\
         padding-right:2rem}}td{{font-variant-numeric:tabular-nums}}a{{color:#356}}@media(prefers-color-scheme:\
         dark){{body{{color:#ddd;background:#1c1c1a}}a{{color:#9bd}}}}</style><h1>Pumice</h1><table>{rows}</table>\
         <p><a href=/metrics>metrics</a> · <a href=/health>health</a> · <a href=/info>info</a></p>"
    ))
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
