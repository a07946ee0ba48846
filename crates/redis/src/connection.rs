//! One client: what it sends is carried out in order, what it gets back leaves in order.
//!
//! 1. The *processing half* receives, parses and carries out. All commands of one received piece are one run;
//!    their replies gather in one buffer, which then becomes one [`Outgoing`] with one gate.
//! 2. The *sending half* waits for each batch's gate (acknowledged is durable) and sends it. Receiving goes on
//!    meanwhile, within the limits of `output.rs`.
//! 3. Both are one task: a wake of either costs one poll, and neither ever waits for another task.
//!
//! Two shortcuts: GETs in a row of which some need flash are read side by side, since they could not see each
//! other's effects anyway; and a long value of SET and its like goes to flash piece by piece while it arrives.
//!
//! A command too long for the memory that commands may take is received, forgotten and answered with an error.

mod gets;
mod input;
mod pipelined;
mod processing;
mod streaming;

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use bytes::Bytes;
use pumice_kv::Hint;
use pumice_node::{Gate, Place};
use pumice_reactor::{PeerAddr, Stream};

use crate::args::LargeArgument;
use crate::clients::Client;
use crate::context::Ctx;
use crate::errors::Failure;
use crate::keyspace::RawKey;
use crate::output::{Closed, Holds, Outgoing, Output};
use crate::resp::parser::Parser;
use crate::resp::skim::Skim;
use crate::server::Server;
use crate::session::Session;
use crate::stall;
use crate::transport::{Receiver, Sender};
use processing::cold;
use streaming::Streaming;

/// Acknowledgements of so many bytes count as sent when they are handed over, and the connection's task is not woken to hear that
/// they have left: many become durable at once, and each poll finds its connection out of the processor's cache. (Other
/// replies leave at once, and that they have is told together with the next request.)
const QUIET_BYTES_MAX: usize = 4 << 10;
/// Replies are handed to the sending half at this size, in the midst of a run.
const FLUSH_BYTES: usize = 64 << 10;
/// Replies on their way when the server stops get this long to leave.
const LINGER_MAX: Duration = Duration::from_secs(2);

/// Serves one client until it leaves, is closed, or the server stops.
pub async fn serve(server: Arc<Server>, stream: Stream, peer: PeerAddr, local_addr: String) {
    let now_ms = pumice_reactor::wall_ms();
    server.stats.connections.fetch_add(1, Ordering::Relaxed);
    let (addr, local_addr) = match &peer {
        PeerAddr::Tcp(addr) => (addr.to_string(), local_addr),
        // Both ends are called alike, as in Redis.
        PeerAddr::Unix => {
            let addr = format!("{}:0", local_addr.trim_start_matches("unix:"));
            (addr.clone(), addr)
        }
    };
    let max = server.settings.clients_max.load(Ordering::Relaxed);
    let core = pumice_reactor::core().0;
    let Some(client) = server.clients.add(max, addr, local_addr, core, now_ms) else {
        server.stats.rejected_connections.fetch_add(1, Ordering::Relaxed);
        let _ = stream.send(vec![Bytes::from_static(b"-ERR max number of clients reached\r\n")]).await;
        return;
    };
    let stranger = !peer.is_local()
        && server.settings.protected_mode.load(Ordering::Relaxed)
        && !server.settings.has_password();
    if stranger {
        server.stats.rejected_connections.fetch_add(1, Ordering::Relaxed);
        let _ = stream.send(vec![Bytes::from_static(PROTECTED.as_bytes())]).await;
    } else {
        let is_tcp = matches!(peer, PeerAddr::Tcp(_));
        // Gone when it has ended: what a task ever keeps across a wait, it has room for as long as it lives.
        let opened = {
            let opening = pin!(crate::transport::open(&server, stream, is_tcp));
            server.unless_stopping(opening).await
        };
        match opened {
            None => {}
            Some(Ok((receiver, sender))) => {
                let mut session = Session::new(client.clone(), !server.settings.has_password());
                session.is_local = peer.is_local();
                let output = Rc::new(Output::new(server.clone(), client.clone()));
                let mut connection = Connection::new(&server, session, output.clone(), receiver);
                run(&mut connection, &server, &client, &output, &sender).await;
            }
            Some(Err(error)) => tracing::debug!(client = client.id, %error, "the TLS handshake failed"),
        }
    }
    server.clients.remove(&client);
}

const PROTECTED: &str = "-DENIED Pumice is running in protected mode because protected mode is enabled and no \
     password is set. In this mode connections are only accepted from the loopback interface. To let other \
     machines in, set a password with --password or PUMICE_PASSWORD, or, where the network is trusted, disable protected mode \
     with --no-protected-mode, or 'CONFIG SET protected-mode no' from this machine.\r\n";

async fn run(
    connection: &mut Connection,
    server: &Arc<Server>,
    client: &Arc<Client>,
    output: &Rc<Output>,
    sender: &Sender,
) {
    let stopped = Cell::new(false);
    let watched = watch(client, output);
    {
        let mut processing = pin!(connection.run());
        let mut sending = pin!(send(output, server, client, sender));
        let mut watching = pin!(watched);
        let mut stopping = pin!(server.stopping.wait());
        let mut stuck = pin!(output.stuck());
        let mut is_processing = true;
        let mut bell: Option<Arc<Bell>> = None;
        poll_fn(|context| {
            if is_processing && output.sending_next(|| processing.as_mut().poll(context).is_ready()) {
                is_processing = false;
                output.finish();
            }
            let sent = sending.as_mut().poll(context).is_ready();
            // Who has asked for all that it wanted is waited for by no command.
            if !is_processing && !sent && stuck.as_mut().poll(context).is_ready() {
                return Poll::Ready(());
            }
            // A closed client gets nothing more, not even the rest of what is being sent.
            if sent || output.is_closed() {
                return Poll::Ready(());
            }
            let bell = bell.get_or_insert_with(|| Bell::of(context.waker()));
            if bell.has_rung() {
                let waker = Waker::from(bell.clone());
                let context = &mut Context::from_waker(&waker);
                if watching.as_mut().poll(context).is_ready() {
                    return Poll::Ready(());
                }
                if stopping.as_mut().poll(context).is_ready() {
                    stopped.set(true);
                    return Poll::Ready(());
                }
            }
            Poll::Pending
        })
        .await;
        if stopped.get() {
            // What was carried out may still be answered; what was not is not begun.
            output.finish();
            let _ = pumice_reactor::timeout(LINGER_MAX, sending).await;
        }
    }
    // A send to a client that takes nothing ends only when the socket is shut down.
    sender.close().await;
    connection.ctx.session.multi = None;
    connection.ctx.forget_watches();
    connection.count_input(0);
}

/// Wakes a connection's task for what seldom happens, and tells that it did: otherwise what waits for that is not polled, which would
/// take its locks each time.
struct Bell {
    rung: AtomicBool,
    task: Waker,
}

impl Bell {
    /// One that has rung: what waits for it has yet to say so.
    fn of(task: &Waker) -> Arc<Self> {
        Arc::new(Self { rung: AtomicBool::new(true), task: task.clone() })
    }

    /// Whether it has rung since this was asked last.
    fn has_rung(&self) -> bool {
        self.rung.load(Ordering::Acquire) && self.rung.swap(false, Ordering::AcqRel)
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.rung.store(true, Ordering::Release);
        self.task.wake_by_ref();
    }
}

/// Looks after a connection from outside: ends when it was killed; passes lines to a monitor.
async fn watch(client: &Arc<Client>, output: &Rc<Output>) {
    loop {
        client.wake.notified().await;
        if client.is_killed() {
            return;
        }
        if client.takes_stall() {
            output.give_up().await;
        }
        // They would be taken for the rest of a reply of which parts have left; its end wakes this.
        if output.is_cut() {
            continue;
        }
        let lines: Vec<Bytes> = client.take_monitor_lines().into_iter().map(Bytes::from).collect();
        if lines.is_empty() {
            continue;
        }
        let bytes = lines.iter().map(Bytes::len).sum();
        output.push_unpaced(Outgoing { parts: lines, bytes, gate: Gate::open(), holds: Holds::Replies });
    }
}

/// The sending half: ends when there is nothing more to send, or it cannot be sent.
async fn send(output: &Output, server: &Server, client: &Client, sender: &Sender) {
    while let Some(mut outgoing) = output.next().await {
        let is_acknowledgement = !outgoing.gate.is_empty();
        if is_acknowledgement {
            if !server.node.is_open(&outgoing.gate) {
                client.set_awaiting_drives(true);
                let passed = output.pass(&outgoing.gate).await;
                client.set_awaiting_drives(false);
                match passed {
                    Ok(()) => {}
                    Err(Closed::Failed(error)) => {
                        // What these replies acknowledge will never be durable: the client must not see them.
                        tracing::error!(%error, "closed a client whose writes failed to become durable");
                        output.close();
                        break;
                    }
                    Err(Closed::Stalled(why)) => {
                        // Boxed: few connections ever need it, and each would have room for it.
                        let answered = stall::answer(&mut outgoing, &why, server, output, sender);
                        if !Box::pin(answered).await {
                            break;
                        }
                    }
                }
            }
            output.fit(&mut outgoing, |gate| gate.is_empty() || server.node.is_open(gate));
        } else {
            output.fit(&mut outgoing, Gate::is_empty);
        }
        output.sending();
        let bytes = outgoing.bytes;
        let is_quiet = is_acknowledgement && bytes <= QUIET_BYTES_MAX && !client.is_monitor();
        if is_quiet {
            output.count_sent(bytes);
        }
        // What is queued meanwhile, but for a monitor, comes with a poll of this task, and so does the end.
        let is_awaited = || !is_quiet || output.goes_on();
        let (result, parts) = sender.send(outgoing.parts, is_awaited).await;
        if !is_quiet {
            output.count_sent(bytes);
        }
        output.sent(parts);
        // Short replies leave at once, with their command's time; long ones while the client takes them.
        if bytes > QUIET_BYTES_MAX {
            client.has_moved(pumice_reactor::wall_ms());
        }
        if let Err(error) = result {
            tracing::debug!(client = client.id, %error, "sending failed");
            output.close();
            break;
        }
    }
    sender.finish().await;
}

/// A GET whose value may lie on flash, waiting for those around it.
struct Cold {
    place: Place,
    key: RawKey,
    /// What memory knows, if it was asked.
    hint: Option<Hint>,
}

/// The processing half.
struct Connection {
    ctx: Ctx,
    receiver: Receiver,
    parser: Parser,
    /// The beginning of a command whose rest has not arrived.
    pending: Vec<u8>,
    /// How many bytes it lacks at least.
    need: usize,
    large: Vec<LargeArgument>,
    /// Boxed like all that few connections need: each has room for it.
    streaming: Option<Box<Streaming>>,
    /// Goes over the rest of a command that is too long to be kept.
    skim: Option<Skim>,
    /// Why the command under way cannot be carried out: its answer.
    refused: Option<Failure>,
    cold: Vec<Cold>,
    counted_bytes: usize,
    /// Commands carried out since others of the core had their turn.
    run_commands: u32,
    /// Bytes of the last reply to a GET of several: those that come next are often about as long.
    get_bytes: usize,
}

impl Connection {
    /// One that nothing came on yet.
    fn new(server: &Arc<Server>, session: Session, output: Rc<Output>, receiver: Receiver) -> Self {
        let mut ctx = Ctx::new(server.clone(), session);
        ctx.output = Some(output);
        Self {
            ctx,
            receiver,
            parser: Parser::new(),
            pending: Vec::new(),
            need: 0,
            large: Vec::new(),
            streaming: None,
            skim: None,
            refused: None,
            cold: Vec::new(),
            counted_bytes: 0,
            run_commands: 0,
            get_bytes: 0,
        }
    }
}

enum Flow {
    Go,
    Stop,
}
