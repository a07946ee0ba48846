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

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io;
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use bytes::Bytes;
use pumice_kv::{Hint, LargeWriter};
use pumice_node::{Gate, Place};
use pumice_reactor::{IoBuf, PeerAddr, Stream};

use crate::args::{Args, LargeArgument, Span};
use crate::clients::Client;
use crate::context::Ctx;
use crate::errors::{self, Failure};
use crate::execute::{Tried, execute, refuse, try_execute};
use crate::keyspace::{RawKey, large_refused};
use crate::output::{Closed, Holds, Outgoing, Output};
use crate::resp::parser::{Parsed, Parser, Streams};
use crate::resp::skim::{Skim, Skimmed};
use crate::server::Server;
use crate::session::Session;
use crate::stall;
use crate::transport::{CameTo, Receiver, Sender};

/// Pieces received in a row before other connections of the core get their turn.
const RUN_PIECES_MAX: u32 = 8;
/// Replies are handed to the sending half at this size, in the midst of a run.
const FLUSH_BYTES: usize = 64 << 10;
/// Bytes of a value still to come that are received into the memory from which they are written: of less, copying costs less than
/// turning from shared buffers to that memory and back.
const LENT_FROM_BYTES: u64 = 256 << 10;
/// Acknowledgements of so many bytes count as sent when they are handed over, and the connection's task is not woken to hear that
/// they have left: many become durable at once, and each poll finds its connection out of the processor's cache. (Other
/// replies leave at once, and that they have is told together with the next request.)
const QUIET_BYTES_MAX: usize = 4 << 10;
/// Replies on their way when the server stops get this long to leave.
const LINGER_MAX: Duration = Duration::from_secs(2);

/// Serves one client until it leaves, is closed, or the server stops.
pub async fn serve(server: Arc<Server>, stream: Stream, peer: PeerAddr, local_addr: String) {
    let now_ms = pumice_reactor::wall_ms();
    server.stats.connections.fetch_add(1, Ordering::Relaxed);
    let addr = match &peer {
        PeerAddr::Tcp(addr) => addr.to_string(),
        PeerAddr::Unix => format!("{}:0", local_addr.trim_start_matches("unix:")),
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
        match crate::transport::open(&server, stream, is_tcp).await {
            Ok((receiver, sender)) => {
                let mut session = Session::new(client.clone(), !server.settings.has_password());
                session.is_local = peer.is_local();
                run(&server, &client, session, receiver, sender).await;
            }
            Err(error) => tracing::debug!(client = client.id, %error, "the TLS handshake failed"),
        }
    }
    server.clients.remove(&client);
}

const PROTECTED: &str = "-DENIED Pumice is running in protected mode because protected mode is enabled and no \
     password is set. In this mode connections are only accepted from the loopback interface. To let other \
     machines in, set a password with --password or PUMICE_PASSWORD, or, where the network is trusted, disable protected mode \
     with --no-protected-mode, or 'CONFIG SET protected-mode no' from this machine.\r\n";

async fn run(
    server: &Arc<Server>,
    client: &Arc<Client>,
    session: Session,
    receiver: Receiver,
    sender: Sender,
) {
    let output = Rc::new(Output::new(server.clone(), client.clone()));
    let mut ctx = Ctx::new(server.clone(), session);
    ctx.output = Some(output.clone());
    let mut connection = Connection {
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
    };
    let stopped = Cell::new(false);
    let watched = watch(client, &output);
    {
        let mut processing = pin!(connection.run());
        let mut sending = pin!(send(&output, server, client, &sender));
        let mut watching = pin!(watched);
        let mut stopping = pin!(server.stopping.wait());
        let mut is_processing = true;
        let mut bell: Option<Arc<Bell>> = None;
        poll_fn(|context| {
            if is_processing && output.sending_next(|| processing.as_mut().poll(context).is_ready()) {
                is_processing = false;
                output.finish();
            }
            let sent = sending.as_mut().poll(context).is_ready();
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
                if is_processing && stopping.as_mut().poll(context).is_ready() {
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
        let lines: Vec<Bytes> = client.take_monitor_lines().into_iter().map(Bytes::from).collect();
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
                match output.pass(&outgoing.gate).await {
                    Ok(()) => {}
                    Err(Closed::Failed(error)) => {
                        // What these replies acknowledge will never be durable: the client must not see them.
                        tracing::error!(%error, "closed a client whose writes failed to become durable");
                        output.close();
                        break;
                    }
                    Err(Closed::Stalled(why)) => {
                        if !stall::answer(&mut outgoing, &why, server, output, sender).await {
                            break;
                        }
                    }
                }
            }
            output.merge(&mut outgoing, |gate| gate.is_empty() || server.node.is_open(gate));
        } else {
            output.merge(&mut outgoing, Gate::is_empty);
        }
        output.sending();
        let is_quiet = is_acknowledgement && outgoing.bytes <= QUIET_BYTES_MAX && !client.is_monitor();
        if is_quiet {
            output.count_sent(outgoing.bytes);
        }
        // What is queued meanwhile, but for a monitor, comes with a poll of this task, and so does the end.
        let is_awaited = || !is_quiet || output.goes_on();
        let (result, parts) = sender.send(outgoing.parts, is_awaited).await;
        if !is_quiet {
            output.count_sent(outgoing.bytes);
        }
        output.sent(parts);
        if result.is_err() {
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

/// A value on its way to flash while it arrives.
struct Streaming {
    writer: Option<LargeWriter>,
    /// Bytes of the value still to come.
    left: u64,
    /// Bytes of the line end still to come.
    line_end: usize,
    index: usize,
    key: RawKey,
    key_place: Place,
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
    streaming: Option<Streaming>,
    /// Goes over the rest of a command that is too long to be kept.
    skim: Option<Skim>,
    /// Why the command under way cannot be carried out: its answer.
    refused: Option<Failure>,
    cold: Vec<Cold>,
    counted_bytes: usize,
}

struct StreamRules<'a>(&'a Ctx);

impl Streams for StreamRules<'_> {
    fn can_stream(&self, buf: &[u8], arguments: &[Span], _len: u64) -> bool {
        let session = &self.0.session;
        // A transaction may select another database before it stores the value under its key: such values
        // wait in memory.
        if session.multi.is_some() || !session.is_authenticated || !self.0.server.is_loaded() {
            return false;
        }
        let arguments = Args::new(buf, arguments, &[]);
        streamed_key(&arguments).is_some()
    }

    fn is_unauthenticated(&self) -> bool {
        !self.0.session.is_authenticated
    }
}

/// The key under which the argument after `arguments` will be stored, if it is a value that can be streamed.
fn streamed_key<'a>(arguments: &Args<'a>) -> Option<&'a [u8]> {
    let (name, next) = (arguments.get(0)?, arguments.len());
    let is = |word: &str| name.eq_ignore_ascii_case(word.as_bytes());
    let after_key = next == 2 && (is("set") || is("setnx") || is("getset") || is("append"));
    let after_option = next == 3 && (is("setex") || is("psetex") || is("setrange"));
    let at = if after_key || after_option {
        1
    } else if next >= 2 && next.is_multiple_of(2) && (is("mset") || is("msetnx")) {
        next - 1
    } else {
        return None;
    };
    arguments.get(at).filter(|key| key.len() <= crate::resp::parser::KEY_BYTES_MAX)
}

/// Whether what waits may wait.
enum Room {
    Enough,
    /// Not in what all clients share: the command is refused, and its client goes on.
    Less(Failure),
    /// Not in what this client may send ahead: it is closed, as Redis does.
    None,
}

enum Flow {
    Go,
    Stop,
}

impl Connection {
    async fn run(&mut self) {
        let mut run_pieces = 0;
        loop {
            if self.output().is_full() {
                self.output().drain().await;
            }
            let flow = match self.receive().await {
                Ok(CameTo::Piece(piece)) if !piece.is_empty() => {
                    self.ctx.server.stats.input_bytes.fetch_add(piece.len() as u64, Ordering::Relaxed);
                    self.feed(&piece).await
                }
                Ok(CameTo::Memory(bytes)) if bytes > 0 => Flow::Go,
                _ => return,
            };
            self.settle().await;
            self.ctx.flush_replies();
            if matches!(flow, Flow::Stop) || self.output().is_closed() {
                return;
            }
            run_pieces += 1;
            if run_pieces >= RUN_PIECES_MAX {
                run_pieces = 0;
                pumice_reactor::yield_now().await;
            }
        }
    }

    /// What came: of a value that is being streamed, in the memory that it is written from.
    async fn receive(&mut self) -> io::Result<CameTo> {
        let Some((buf, range)) = self.lend() else {
            return self.receiver.recv().await.map(CameTo::Piece);
        };
        // It is held while nothing comes.
        self.note_input(self.pending.len() + buf.capacity());
        let (came, buf) = self.receiver.recv_into(buf, range).await;
        let filled = match &came {
            Ok(CameTo::Memory(bytes)) => *bytes,
            _ => 0,
        };
        self.ctx.server.stats.input_bytes.fetch_add(filled as u64, Ordering::Relaxed);
        self.take_back_streamed(buf, filled).await;
        came
    }

    /// Memory for what comes, if that is much of a value, and all clients' input has not taken its share of memory.
    fn lend(&mut self) -> Option<(IoBuf, Range<usize>)> {
        // First what costs nothing: nearly all that comes is short.
        if self.streaming.is_none() || !self.receiver.fills_memory() {
            return None;
        }
        let (_, total) = self.note_input(self.counted_bytes);
        let is_short = total > self.ctx.server.options.input_bytes_max;
        match &mut self.streaming {
            Some(Streaming { writer: Some(writer), left, .. })
                if *left >= LENT_FROM_BYTES && !is_short && !writer.is_frugal() =>
            {
                Some(writer.lend(usize::try_from(*left).unwrap_or(usize::MAX)))
            }
            _ => None,
        }
    }

    fn output(&self) -> &Output {
        self.ctx.output.as_ref().expect("a connection has an output")
    }

    /// Carries out what `piece` completes; keeps what it begins.
    async fn feed(&mut self, piece: &[u8]) -> Flow {
        let mut rest = piece;
        self.ctx.begin_run();
        loop {
            if let Some(skim) = &mut self.skim {
                match skim.take(rest) {
                    Skimmed::More => return Flow::Go,
                    Skimmed::Done(taken) => rest = &rest[taken..],
                    Skimmed::Broken => {
                        self.answer_refused().await;
                        return Flow::Stop;
                    }
                }
                self.skim = None;
                self.answer_refused().await;
                self.ctx.begin_run();
                continue;
            }
            if self.streaming.is_some() {
                if rest.is_empty() {
                    return Flow::Go;
                }
                rest = self.stream(rest).await;
                self.ctx.begin_run();
                continue;
            }
            let from_pending = !self.pending.is_empty();
            if from_pending && self.need > 0 {
                if rest.is_empty() {
                    return Flow::Go;
                }
                let take = self.wanted(rest);
                self.pending.extend_from_slice(&rest[..take]);
                self.need -= take.min(self.need);
                rest = &rest[take..];
                if let Some(flow) = self.check_input() {
                    return flow;
                }
                if self.need > 0 || self.skim.is_some() {
                    continue;
                }
            } else if !from_pending && rest.is_empty() {
                return Flow::Go;
            }
            let buf = if from_pending { &self.pending[..] } else { rest };
            match self.parser.parse(buf, &StreamRules(&self.ctx)) {
                Parsed::Incomplete(need) => {
                    self.need = need;
                    let given = (!from_pending).then_some(rest);
                    // What will never fit is not begun with. Of lines only the next byte is known to lack.
                    let too_long = self.too_long(buf.len() + need).filter(|_| need > 1);
                    if let Some(failure) = too_long
                        && self.skim_from(given, failure)
                    {
                        rest = if from_pending { rest } else { &[] };
                        continue;
                    }
                    if !from_pending {
                        self.pending.reserve(rest.len() + need.min(1 << 20));
                        self.pending.extend_from_slice(rest);
                        rest = &[];
                        if let Some(flow) = self.check_input() {
                            return flow;
                        }
                    }
                }
                Parsed::Command(taken) => {
                    let at_hand = if from_pending { taken + rest.len() } else { rest.len() };
                    // Who sent so much at once is likely to have sent as much again.
                    self.ctx.turn.wants((at_hand + piece.len()) as u64);
                    let flow = if from_pending {
                        let pending = std::mem::take(&mut self.pending);
                        let flow = self.dispatch(&pending[..taken]).await;
                        self.keep_buffer(pending, taken);
                        flow
                    } else {
                        let flow = self.dispatch(&rest[..taken]).await;
                        rest = &rest[taken..];
                        flow
                    };
                    if matches!(flow, Flow::Stop) {
                        return Flow::Stop;
                    }
                }
                Parsed::Nothing(taken) => {
                    self.parser.reset();
                    if from_pending {
                        let pending = std::mem::take(&mut self.pending);
                        self.keep_buffer(pending, taken);
                    } else {
                        rest = &rest[taken..];
                    }
                }
                Parsed::Large { at, len } => {
                    if from_pending {
                        // Bytes beyond the header are never taken ahead: `need` ends with it.
                        assert_eq!(at, self.pending.len());
                    } else {
                        self.pending.extend_from_slice(&rest[..at]);
                        rest = &rest[at..];
                    }
                    self.begin_streaming(len);
                }
                Parsed::Broken(error) => {
                    self.settle().await;
                    self.ctx.server.stats.note_error(&error);
                    self.ctx.reply.error(&error);
                    return Flow::Stop;
                }
            }
        }
    }

    /// How much of `rest` to add to the command under way: what it is known to lack; of a line, all of it.
    fn wanted(&self, rest: &[u8]) -> usize {
        if self.need > 1 {
            return self.need.min(rest.len());
        }
        rest.iter().position(|b| matches!(b, b'\r' | b'\n')).map_or(rest.len(), |at| at + 1)
    }

    /// Empties the buffer of a carried out command, for the next; a very large one is given back.
    fn keep_buffer(&mut self, mut buf: Vec<u8>, taken: usize) {
        buf.drain(..taken);
        if buf.capacity() > 64 << 10 {
            buf = buf[..].to_vec();
        }
        self.need = 0;
        self.pending = buf;
        self.count_input(self.pending.len());
    }

    /// Notes how much input waits; answers by how much that grew, and what all clients' comes to, transactions among it.
    fn note_input(&mut self, bytes: usize) -> (usize, u64) {
        let stats = &self.ctx.server.stats;
        let (grown, shrunk) =
            (bytes.saturating_sub(self.counted_bytes), self.counted_bytes.saturating_sub(bytes));
        if grown > 0 || shrunk > 0 {
            self.counted_bytes = bytes;
            self.ctx.session.client.input_bytes.store(bytes as u64, Ordering::Relaxed);
            stats.input_waiting_bytes.fetch_sub(shrunk as u64, Ordering::Relaxed);
        }
        let total = stats.input_waiting_bytes.fetch_add(grown as u64, Ordering::Relaxed) + grown as u64;
        (grown, total + stats.transaction_bytes.load(Ordering::Relaxed))
    }

    /// Notes how much input waits, and whether it may.
    fn count_input(&mut self, bytes: usize) -> Room {
        let bytes = if bytes == 0 { 0 } else { bytes + self.parser.memory_bytes() };
        let (grown, total) = self.note_input(bytes);
        let own_max = self.ctx.server.settings.query_buffer_bytes_max.load(Ordering::Relaxed);
        let max = self.ctx.server.options.input_bytes_max;
        if grown > 0 && bytes as u64 > own_max {
            return Room::None;
        }
        if grown == 0 || total <= max {
            return Room::Enough;
        }
        Room::Less(self.too_long(bytes).unwrap_or_else(|| {
            Failure::new(format!(
                "OOM commands of {total} bytes wait in memory, all clients together, where {max} is the most (--memory)"
            ))
        }))
    }

    /// Why a command of `bytes` can never be taken, if it cannot.
    fn too_long(&self, bytes: usize) -> Option<Failure> {
        let max = self.ctx.server.options.input_bytes_max;
        (bytes as u64 > max).then(|| {
            Failure::new(format!(
                "ERR a command of {bytes} bytes or more exceeds maximum allowed size: {max} bytes (--memory)"
            ))
        })
    }

    /// Lets go of the command under way, and goes over the rest of it; then `failure` is its answer. `given`: where its
    /// beginning is, if it is not kept yet. `false`: it cannot be told where the command ends.
    fn skim_from(&mut self, given: Option<&[u8]>, failure: Failure) -> bool {
        let Some((mut skim, at)) = self.parser.skim() else { return false };
        let seen = skim.take(&given.unwrap_or(&self.pending)[at..]);
        if seen == Skimmed::Broken {
            return false;
        }
        self.skim = Some(skim);
        self.refused = Some(failure);
        self.parser.reset();
        self.large.clear();
        (self.pending, self.need) = (Vec::new(), 0);
        self.count_input(0);
        true
    }

    /// Counts what is kept of the command under way. If it is too much, the command is let go, or the client is.
    fn check_input(&mut self) -> Option<Flow> {
        match self.count_input(self.pending.len()) {
            Room::Enough => return None,
            Room::Less(failure) => {
                if self.skim_from(None, failure) {
                    return None;
                }
            }
            Room::None => {}
        }
        let stats = &self.ctx.server.stats;
        stats.input_limit_closes.fetch_add(1, Ordering::Relaxed);
        let (client, bytes) = (self.ctx.session.client.id, self.counted_bytes);
        tracing::warn!(client, bytes, "closed: too much input");
        self.ctx
            .reply
            .error("ERR Protocol error: what this client, or all clients, sent ahead exceeds the limit");
        Some(Flow::Stop)
    }

    /// Answers a command that was not kept, or whose value could not be.
    async fn answer_refused(&mut self) {
        self.settle().await;
        self.ctx.commands += 1;
        let failure = self.refused.take().unwrap_or_else(|| errors::SYNTAX.into());
        refuse(&mut self.ctx, &failure);
    }

    fn begin_streaming(&mut self, len: u64) {
        let arguments = Args::new(&self.pending, self.parser.spans(), &[]);
        let index = arguments.len();
        let key = streamed_key(&arguments).map(|key| self.ctx.key(key));
        let key = key.expect("the parser asked whether it can be streamed");
        let writer = self.ctx.server.node.large_writer(key.place, key.raw());
        self.streaming = Some(Streaming {
            writer: Some(writer),
            left: len,
            line_end: 2,
            index,
            key: RawKey::from_slice(key.raw()),
            key_place: key.place,
        });
    }

    /// Writes bytes of the value being streamed.
    async fn push_streamed(&mut self, bytes: &[u8]) -> Result<(), pumice_kv::WriteError> {
        let Some(Streaming { writer: Some(writer), .. }) = &mut self.streaming else { return Ok(()) };
        writer.push(bytes).await?;
        self.save_memory().await
    }

    /// The value being streamed has so many bytes more in the memory that its writer had lent.
    async fn take_back_streamed(&mut self, buf: IoBuf, filled: usize) {
        let Some(Streaming { writer: Some(writer), left, .. }) = &mut self.streaming else { return };
        *left -= filled as u64;
        let taken = match writer.take_back(buf, filled).await {
            Ok(()) => self.save_memory().await,
            refused => refused,
        };
        self.drop_refused(taken);
    }

    /// The rest of a value that is refused is received and dropped, so that the client hears why.
    fn drop_refused(&mut self, pushed: Result<(), pumice_kv::WriteError>) {
        if let Err(error) = pushed
            && let Some(streaming) = &mut self.streaming
        {
            self.refused = Some(large_refused(&self.ctx.server.node, streaming.key_place, &error));
            streaming.writer = None;
        }
    }

    /// Where all clients' input takes more memory than it should, values are written in short pieces; where it takes twice as
    /// much, nothing of them waits for more to come.
    async fn save_memory(&mut self) -> Result<(), pumice_kv::WriteError> {
        let Some(Streaming { writer: Some(writer), .. }) = &mut self.streaming else { return Ok(()) };
        let held = self.pending.len() + writer.memory_bytes();
        let (_, total) = self.note_input(held);
        let max = self.ctx.server.options.input_bytes_max;
        let Some(Streaming { writer: Some(writer), .. }) = &mut self.streaming else { return Ok(()) };
        writer.be_frugal(total > max);
        if total > 2 * max {
            writer.let_go().await?;
            self.note_input(self.pending.len());
        }
        Ok(())
    }

    /// Takes bytes of the value being streamed; gives what follows it.
    async fn stream<'a>(&mut self, rest: &'a [u8]) -> &'a [u8] {
        let Some(streaming) = &mut self.streaming else { return rest };
        let take = usize::try_from(streaming.left).unwrap_or(usize::MAX).min(rest.len());
        if take > 0 {
            streaming.left -= take as u64;
            let pushed = self.push_streamed(&rest[..take]).await;
            self.drop_refused(pushed);
            return &rest[take..];
        }
        let skip = streaming.line_end.min(rest.len());
        streaming.line_end -= skip;
        if streaming.line_end > 0 {
            return &rest[skip..];
        }
        if let Some(done) = self.streaming.take() {
            self.note_input(self.pending.len());
            if let Some(writer) = done.writer {
                match writer.finish().await {
                    Ok(value) => {
                        let (value, key) = (Arc::new(value), done.key);
                        self.large.push(LargeArgument { index: done.index, value, key });
                    }
                    Err(error) => {
                        self.refused = Some(large_refused(&self.ctx.server.node, done.key_place, &error));
                    }
                }
            }
            self.parser.large_taken();
            self.need = 0;
        }
        &rest[skip..]
    }

    /// Carries out the command at the beginning of `buf`, which the parser has just found.
    async fn dispatch(&mut self, buf: &[u8]) -> Flow {
        self.ctx.commands += 1;
        let args = Args::new(self.parser.buffer(buf), self.parser.spans(), &self.large);
        let get = (args.len() == 2 && args.is(0, "get")).then(|| &args[1]);
        if let Some(key) = get
            && !self.cold.is_empty()
        {
            self.cold.push(cold(&self.ctx, key, None));
        } else {
            if !self.cold.is_empty() {
                settle(&mut self.ctx, &mut self.cold).await;
            }
            if let Some(failure) = self.refused.take() {
                refuse(&mut self.ctx, &failure);
            } else {
                match try_execute(&mut self.ctx, &args) {
                    Tried::Done => {}
                    Tried::NeedsFlash(hint) if get.is_some() => {
                        self.cold.push(cold(&self.ctx, &args[1], Some(hint)));
                    }
                    Tried::NeedsFlash(_) | Tried::Not => {
                        // It may have selected another database: who is told that its outcome is not known cannot know that.
                        self.ctx.commands += u32::from(args.is(0, "exec"));
                        execute(&mut self.ctx, args).await;
                        self.ctx.begin_run();
                    }
                }
            }
        }
        self.parser.reset();
        self.large.clear();
        if self.cold.len() >= crate::join::PARALLEL_READS_MAX {
            settle(&mut self.ctx, &mut self.cold).await;
        }
        if self.ctx.session.close_after_reply {
            return Flow::Stop;
        }
        if self.ctx.reply.len() >= FLUSH_BYTES && self.cold.is_empty() {
            self.ctx.flush_replies();
            if self.output().is_full() {
                self.output().drain().await;
            }
            if self.output().is_closed() {
                return Flow::Stop;
            }
        }
        Flow::Go
    }

    async fn settle(&mut self) {
        if !self.cold.is_empty() {
            settle(&mut self.ctx, &mut self.cold).await;
        }
    }
}

fn cold(ctx: &Ctx, key: &[u8], hint: Option<Hint>) -> Cold {
    let key = ctx.key(key);
    Cold { place: key.place, key: RawKey::from_slice(key.raw()), hint }
}

/// Reads the values of a run of GETs side by side and answers them in order.
async fn settle(ctx: &mut Ctx, cold: &mut Vec<Cold>) {
    let started = pumice_reactor::now();
    ctx.now_ms = pumice_reactor::wall_ms();
    let keys = cold.iter_mut().map(|get| (get.place, &get.key[..], get.hint.take()));
    let results = ctx.entries_each(keys).await;
    let nanos = pumice_reactor::now().0.saturating_sub(started.0);
    let results = cold.drain(..).zip(results).map(|(get, result)| (get.place, result)).collect();
    crate::commands::answer_cold_gets(ctx, results, nanos).await;
    ctx.begin_run();
}
