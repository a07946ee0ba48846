//! Simulated connections between hosts: two byte pipes each, over links with latency and bandwidth.
//!
//! 1. `send` puts bytes into the sender's buffer (bounded; a full one takes fewer or none).
//! 2. Bytes leave it while *in flight + unread at the receiver* stays within the receiver's window: a reader
//!    that does not read stops the sender, as TCP does. A link carries segments one after another at its
//!    bandwidth, each arrives its latency later; order within a connection is kept.
//! 3. Segments that arrive during a partition wait for its end. A lost segment is a late one: it arrives a
//!    retransmission time-out later and holds up what follows.
//! 4. A reset drops what is under way in both directions; both ends learn of it.
//!
//! Nothing here knows tasks or operations: each step answers which sockets became readable, writable, and so on.

use bytes::Bytes;
use pumice_base::rng::Rng;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A simulated host's number.
pub type HostId = u32;

/// How one direction between two hosts behaves.
#[derive(Clone, Copy, Debug)]
pub struct LinkModel {
    /// Time from the last bit sent to the last bit received, in ns.
    pub latency_ns: u64,
    /// Up to this much is added to each latency, uniformly, in ns.
    pub jitter_ns: u64,
    /// Bytes per second.
    pub bytes_per_second: u64,
    /// The share of segments that are lost and sent again.
    pub loss: f64,
    /// How long a lost segment takes to be sent again, in ns.
    pub retransmit_ns: u64,
}

impl Default for LinkModel {
    /// A 10 Gbit/s switched network.
    fn default() -> Self {
        Self {
            latency_ns: 20_000,
            jitter_ns: 5_000,
            bytes_per_second: 1_250_000_000,
            loss: 0.0,
            retransmit_ns: 200_000_000,
        }
    }
}

/// Where a listener listens or a connection goes: a host and its own name for the place (`tcp:6379`, a path).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Place {
    pub host: HostId,
    pub name: String,
}

/// One end of a connection: its number, and 0 for the end that connected, 1 for the one that accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Socket {
    pub conn: u64,
    pub side: u8,
}

impl Socket {
    pub(crate) fn peer(self) -> Self {
        Self { conn: self.conn, side: 1 - self.side }
    }
}

/// What will happen at a later time.
#[derive(Debug)]
pub(crate) enum NetEvent {
    /// A connection request reaches its place.
    Syn { socket: Socket, place: Place },
    /// The answer to a connection request is back.
    Answer { socket: Socket, accepted: bool },
    /// Bytes reach `to`.
    Segment { to: Socket, data: Bytes },
    /// The end of the stream reaches `to`.
    Fin { to: Socket },
    /// A reset reaches `to`.
    Reset { to: Socket },
}

/// What happened, for whoever waits on a socket or listener.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum NetNews {
    Connected(Socket),
    Refused(Socket),
    /// A connection waits to be accepted.
    Acceptable(u64),
    /// Bytes, the end, or a reset can be received.
    Readable(Socket),
    /// Bytes can be sent, or will never be again.
    Writable(Socket),
}

#[derive(Debug, Default)]
struct End {
    host: HostId,
    open: bool,
    outbox: VecDeque<Bytes>,
    outbox_bytes: usize,
    in_flight_bytes: usize,
    inbox: VecDeque<Bytes>,
    inbox_bytes: usize,
    fin_asked: bool,
    fin_sent: bool,
    fin_received: bool,
    reset: bool,
    /// No segment of this direction may arrive before the one sent last.
    last_arrival_ns: u64,
    /// Arrived during a partition.
    held: VecDeque<NetEvent>,
}

#[derive(Debug)]
struct Conn {
    ends: [End; 2],
    place: Place,
}

#[derive(Debug)]
struct Listening {
    place: Place,
    backlog: VecDeque<Socket>,
}

/// Counted over a world's life.
#[derive(Clone, Copy, Debug, Default)]
pub struct NetCounters {
    /// Connections that were accepted.
    pub connections: u64,
    /// Segments that arrived.
    pub segments: u64,
    /// Bytes that arrived.
    pub bytes: u64,
    /// Connections that were reset.
    pub resets: u64,
}

/// All links, listeners and connections of a world.
#[derive(Debug)]
pub(crate) struct Net {
    conns: BTreeMap<u64, Conn>,
    listeners: BTreeMap<u64, Listening>,
    next_id: u64,
    links: BTreeMap<(HostId, HostId), LinkModel>,
    default_link: LinkModel,
    free_at_ns: BTreeMap<(HostId, HostId), u64>,
    partitions: BTreeSet<(HostId, HostId)>,
    rng: Rng,
    events: Vec<(u64, NetEvent)>,
    news: Vec<NetNews>,
    pub(crate) counters: NetCounters,
    /// Unread plus in-flight bytes that a receiver allows.
    pub(crate) window_bytes: usize,
    /// Bytes that a sender's buffer takes beyond those in flight.
    pub(crate) send_buffer_bytes: usize,
}

const SEGMENT_BYTES: usize = 64 << 10;
const BACKLOG: usize = 1024;
/// Same host: no link between.
const LOOPBACK: LinkModel = LinkModel {
    latency_ns: 5_000,
    jitter_ns: 1_000,
    bytes_per_second: 5_000_000_000,
    loss: 0.0,
    retransmit_ns: 200_000_000,
};

impl Net {
    pub(crate) fn new(rng: Rng) -> Self {
        Self {
            conns: BTreeMap::new(),
            listeners: BTreeMap::new(),
            next_id: 1,
            links: BTreeMap::new(),
            default_link: LinkModel::default(),
            free_at_ns: BTreeMap::new(),
            partitions: BTreeSet::new(),
            rng,
            events: Vec::new(),
            news: Vec::new(),
            counters: NetCounters::default(),
            window_bytes: 256 << 10,
            send_buffer_bytes: 256 << 10,
        }
    }

    /// The events that the last steps caused, with their times.
    pub(crate) fn take_events(&mut self) -> Vec<(u64, NetEvent)> {
        std::mem::take(&mut self.events)
    }

    /// What the last steps changed for waiters.
    pub(crate) fn take_news(&mut self) -> Vec<NetNews> {
        std::mem::take(&mut self.news)
    }

    pub(crate) fn set_default_link(&mut self, model: LinkModel) {
        self.default_link = model;
    }

    pub(crate) fn set_link(&mut self, from: HostId, to: HostId, model: LinkModel) {
        self.links.insert((from, to), model);
    }

    fn link(&self, from: HostId, to: HostId) -> LinkModel {
        if from == to { LOOPBACK } else { self.links.get(&(from, to)).copied().unwrap_or(self.default_link) }
    }

    /// When something of `bytes` sent now from `from` arrives at `to`.
    fn arrival(&mut self, now_ns: u64, from: HostId, to: HostId, bytes: usize) -> u64 {
        let link = self.link(from, to);
        let free = self.free_at_ns.entry((from, to)).or_default();
        let carried_ns = (bytes as u128 * 1_000_000_000 / u128::from(link.bytes_per_second.max(1))) as u64;
        let sent = now_ns.max(*free) + carried_ns;
        *free = sent;
        let jitter = if link.jitter_ns > 0 { self.rng.below(link.jitter_ns) } else { 0 };
        let again = if link.loss > 0.0 && self.rng.chance(link.loss) { link.retransmit_ns } else { 0 };
        sent + link.latency_ns + jitter + again
    }

    // --- listeners -------------------------------------------------------------------------------------

    /// Listens at `place`. Several listeners at one place share its connections (SO_REUSEPORT) when `shared`.
    pub(crate) fn listen(&mut self, place: Place, shared: bool) -> Option<u64> {
        if !shared && self.listeners.values().any(|listening| listening.place == place) {
            return None;
        }
        let id = self.next_id;
        self.next_id += 1;
        self.listeners.insert(id, Listening { place, backlog: VecDeque::new() });
        Some(id)
    }

    /// Whether someone listens at `place`.
    pub(crate) fn is_listening(&self, place: &Place) -> bool {
        self.listeners.values().any(|listening| listening.place == *place)
    }

    pub(crate) fn close_listener(&mut self, now_ns: u64, id: u64) {
        if let Some(listening) = self.listeners.remove(&id) {
            for socket in listening.backlog {
                self.reset(now_ns, socket);
            }
        }
    }

    pub(crate) fn accept(&mut self, id: u64) -> Option<Socket> {
        self.listeners.get_mut(&id)?.backlog.pop_front()
    }

    // --- connections -----------------------------------------------------------------------------------

    pub(crate) fn connect(&mut self, now_ns: u64, from: HostId, place: Place) -> Socket {
        let socket = Socket { conn: self.next_id, side: 0 };
        self.next_id += 1;
        let near = End { host: from, ..End::default() };
        let far = End { host: place.host, ..End::default() };
        self.conns.insert(socket.conn, Conn { ends: [near, far], place: place.clone() });
        let at = self.arrival(now_ns, from, place.host, 64);
        self.events.push((at, NetEvent::Syn { socket, place }));
        socket
    }

    /// The host at the other end.
    pub(crate) fn peer_host(&self, socket: Socket) -> Option<HostId> {
        self.conns.get(&socket.conn).map(|conn| conn.ends[usize::from(socket.peer().side)].host)
    }

    /// The place that the connection was made to.
    pub(crate) fn place(&self, socket: Socket) -> Option<&Place> {
        self.conns.get(&socket.conn).map(|conn| &conn.place)
    }

    fn end(&mut self, socket: Socket) -> Option<&mut End> {
        self.conns.get_mut(&socket.conn).map(|conn| &mut conn.ends[usize::from(socket.side)])
    }

    /// Takes bytes into the send buffer: how many, or `None` when the connection is gone for sending.
    pub(crate) fn send(&mut self, now_ns: u64, socket: Socket, data: &Bytes) -> Option<usize> {
        let room = self.send_buffer_bytes;
        let end = self.end(socket)?;
        if end.reset || end.fin_asked || !end.open {
            return None;
        }
        let taken = room.saturating_sub(end.outbox_bytes).min(data.len());
        if taken > 0 {
            end.outbox.push_back(data.slice(..taken));
            end.outbox_bytes += taken;
            self.pump(now_ns, socket);
        }
        Some(taken)
    }

    /// Ends this direction after what was sent.
    pub(crate) fn shutdown(&mut self, now_ns: u64, socket: Socket) {
        if let Some(end) = self.end(socket)
            && end.open
        {
            end.fin_asked = true;
            self.pump(now_ns, socket);
        }
    }

    /// Sends what the window allows.
    fn pump(&mut self, now_ns: u64, socket: Socket) {
        let window = self.window_bytes;
        loop {
            let Some(conn) = self.conns.get_mut(&socket.conn) else { return };
            let unread = conn.ends[usize::from(socket.peer().side)].inbox_bytes;
            let to = conn.ends[usize::from(socket.peer().side)].host;
            let end = &mut conn.ends[usize::from(socket.side)];
            let from = end.host;
            if end.reset {
                return;
            }
            let Some(front) = end.outbox.front_mut() else {
                if end.fin_asked && !end.fin_sent {
                    end.fin_sent = true;
                    let at = self.arrival(now_ns, from, to, 64);
                    self.push_in_order(socket, at, NetEvent::Fin { to: socket.peer() });
                }
                return;
            };
            let bytes =
                window.saturating_sub(end.in_flight_bytes + unread).min(front.len()).min(SEGMENT_BYTES);
            if bytes == 0 {
                return;
            }
            let data = front.split_to(bytes);
            if front.is_empty() {
                end.outbox.pop_front();
            }
            end.outbox_bytes -= bytes;
            end.in_flight_bytes += bytes;
            let at = self.arrival(now_ns, from, to, bytes + 64);
            self.push_in_order(socket, at, NetEvent::Segment { to: socket.peer(), data });
            self.news.push(NetNews::Writable(socket));
        }
    }

    fn push_in_order(&mut self, from: Socket, at: u64, event: NetEvent) {
        let Some(end) = self.end(from) else { return };
        let at = at.max(end.last_arrival_ns);
        end.last_arrival_ns = at;
        self.events.push((at, event));
    }

    /// The next bytes received, up to `max`; empty at the end of the stream; `Err` after a reset; `None` when
    /// there is nothing yet.
    pub(crate) fn recv(&mut self, now_ns: u64, socket: Socket, max: usize) -> Option<Result<Bytes, ()>> {
        let Some(end) = self.end(socket) else { return Some(Err(())) };
        if let Some(front) = end.inbox.front_mut() {
            let data = front.split_to(max.min(front.len()));
            if front.is_empty() {
                end.inbox.pop_front();
            }
            end.inbox_bytes -= data.len();
            self.pump(now_ns, socket.peer());
            return Some(Ok(data));
        }
        if end.reset {
            return Some(Err(()));
        }
        end.fin_received.then(|| Ok(Bytes::new()))
    }

    /// Closes a socket: what was sent still arrives, unless something unread is thrown away (then the peer is
    /// reset, as Linux does).
    pub(crate) fn close(&mut self, now_ns: u64, socket: Socket) {
        let Some(end) = self.end(socket) else { return };
        if end.inbox_bytes > 0 && !end.reset {
            self.reset(now_ns, socket);
        } else {
            self.shutdown(now_ns, socket);
        }
        if let Some(end) = self.end(socket) {
            end.open = false;
        }
        self.forget_if_done(socket);
    }

    fn forget_if_done(&mut self, socket: Socket) {
        if let Some(conn) = self.conns.get(&socket.conn)
            && conn.ends.iter().all(|end| !end.open && (end.reset || (end.outbox.is_empty() && end.fin_sent)))
        {
            self.conns.remove(&socket.conn);
        }
    }

    /// Resets a connection from the side of `socket`: it fails there at once, at the peer when the reset arrives.
    pub(crate) fn reset(&mut self, now_ns: u64, socket: Socket) {
        let Some(end) = self.end(socket) else { return };
        if end.reset {
            return;
        }
        Self::break_end(end);
        let from = end.host;
        self.counters.resets += 1;
        self.news.push(NetNews::Readable(socket));
        self.news.push(NetNews::Writable(socket));
        if let Some(to) = self.peer_host(socket) {
            let at = self.arrival(now_ns, from, to, 64);
            self.push_in_order(socket, at, NetEvent::Reset { to: socket.peer() });
        }
    }

    fn break_end(end: &mut End) {
        end.reset = true;
        end.outbox.clear();
        end.outbox_bytes = 0;
        end.inbox.clear();
        end.inbox_bytes = 0;
    }

    // --- hosts and partitions --------------------------------------------------------------------------

    /// A host's process is gone: its listeners close, its connections break. The peers learn at once
    /// (`polite`: its kernel says so) or after `silence_ns`.
    pub(crate) fn host_gone(&mut self, now_ns: u64, host: HostId, polite: bool, silence_ns: u64) {
        self.listeners.retain(|_, listening| listening.place.host != host);
        let broken: Vec<Socket> = self
            .conns
            .iter()
            .flat_map(|(&conn, ends)| {
                (0..2u8)
                    .filter(|&side| ends.ends[usize::from(side)].host == host)
                    .map(move |side| Socket { conn, side })
            })
            .collect();
        for socket in broken {
            let after = now_ns + if polite { 0 } else { silence_ns };
            if let Some(end) = self.end(socket) {
                Self::break_end(end);
                end.open = false;
                end.held.clear();
            }
            if let Some(to) = self.peer_host(socket)
                && to != host
            {
                let at = self.arrival(after, host, to, 64);
                self.push_in_order(socket, at, NetEvent::Reset { to: socket.peer() });
            } else {
                self.conns.remove(&socket.conn);
            }
        }
        self.news.clear();
    }

    /// Cuts (or heals) the path between two hosts, both ways.
    pub(crate) fn partition(&mut self, now_ns: u64, a: HostId, b: HostId, cut: bool) {
        let pair = (a.min(b), a.max(b));
        if cut {
            self.partitions.insert(pair);
            return;
        }
        if !self.partitions.remove(&pair) {
            return;
        }
        let sockets = self.between(a, b);
        for socket in sockets {
            let Some(end) = self.end(socket) else { continue };
            let host = end.host;
            let held = std::mem::take(&mut end.held);
            let Some(from) = self.peer_host(socket) else { continue };
            for event in held {
                let at = self.arrival(now_ns, from, host, 64);
                self.push_in_order(socket.peer(), at, event);
            }
        }
    }

    /// Both ends of every connection between two hosts.
    fn between(&self, a: HostId, b: HostId) -> Vec<Socket> {
        let joins = |conn: &Conn| {
            let (x, y) = (conn.ends[0].host, conn.ends[1].host);
            (x.min(y), x.max(y)) == (a.min(b), a.max(b))
        };
        let conns = self.conns.iter().filter(|(_, conn)| joins(conn));
        conns.flat_map(|(&conn, _)| (0..2u8).map(move |side| Socket { conn, side })).collect()
    }

    /// Resets every connection between two hosts, at both ends.
    pub(crate) fn reset_between(&mut self, now_ns: u64, a: HostId, b: HostId) {
        for socket in self.between(a, b) {
            self.reset(now_ns, socket);
        }
    }

    fn partitioned(&self, socket: Socket) -> bool {
        self.conns.get(&socket.conn).is_some_and(|conn| {
            let (x, y) = (conn.ends[0].host, conn.ends[1].host);
            self.partitions.contains(&(x.min(y), x.max(y)))
        })
    }

    // --- arrivals --------------------------------------------------------------------------------------

    /// An event's time has come.
    pub(crate) fn happen(&mut self, now_ns: u64, event: NetEvent) {
        let at = match &event {
            NetEvent::Syn { socket, .. } => socket.peer(),
            NetEvent::Answer { socket, .. } => *socket,
            NetEvent::Segment { to, .. } | NetEvent::Fin { to } | NetEvent::Reset { to } => *to,
        };
        let blocked = self.partitioned(at);
        let Some(end) = self.end(at) else { return };
        if blocked || !end.held.is_empty() {
            end.held.push_back(event);
            return;
        }
        match event {
            NetEvent::Syn { socket, place } => self.syn(now_ns, socket, &place),
            NetEvent::Answer { socket, accepted } => {
                let Some(end) = self.end(socket) else { return };
                if end.reset {
                    self.news.push(NetNews::Refused(socket));
                } else if accepted {
                    end.open = true;
                    self.news.push(NetNews::Connected(socket));
                } else {
                    end.reset = true;
                    self.news.push(NetNews::Refused(socket));
                    self.conns.remove(&socket.conn);
                }
            }
            NetEvent::Segment { to, data } => {
                if let Some(sender) = self.end(to.peer()) {
                    sender.in_flight_bytes = sender.in_flight_bytes.saturating_sub(data.len());
                }
                let Some(end) = self.end(to) else { return };
                if end.reset {
                    return;
                }
                if !end.open {
                    // Closed before this arrived: Linux answers a reset.
                    self.reset(now_ns, to);
                    return;
                }
                self.counters.segments += 1;
                self.counters.bytes += data.len() as u64;
                let Some(end) = self.end(to) else { return };
                end.inbox_bytes += data.len();
                end.inbox.push_back(data);
                self.news.push(NetNews::Readable(to));
            }
            NetEvent::Fin { to } => {
                let Some(end) = self.end(to) else { return };
                end.fin_received = true;
                self.news.push(NetNews::Readable(to));
                self.forget_if_done(to);
            }
            NetEvent::Reset { to } => {
                let Some(end) = self.end(to) else { return };
                Self::break_end(end);
                self.news.push(NetNews::Readable(to));
                self.news.push(NetNews::Writable(to));
                if to.side == 0 {
                    self.news.push(NetNews::Refused(to));
                }
                self.forget_if_done(to);
            }
        }
    }

    fn syn(&mut self, now_ns: u64, socket: Socket, place: &Place) {
        // SO_REUSEPORT: the kernel picks a listener by a hash of the connection.
        let listeners: Vec<u64> = self
            .listeners
            .iter()
            .filter(|(_, listening)| listening.place == *place && listening.backlog.len() < BACKLOG)
            .map(|(&id, _)| id)
            .collect();
        let accepted = !listeners.is_empty();
        let Some(from) = self.peer_host(socket.peer()) else { return };
        if accepted {
            let id = listeners[self.rng.below(listeners.len() as u64) as usize];
            if let Some(end) = self.end(socket.peer()) {
                end.open = true;
            }
            if let Some(listening) = self.listeners.get_mut(&id) {
                listening.backlog.push_back(socket.peer());
            }
            self.counters.connections += 1;
            self.news.push(NetNews::Acceptable(id));
        }
        let at = self.arrival(now_ns, place.host, from, 64);
        self.push_in_order(socket.peer(), at, NetEvent::Answer { socket, accepted });
    }
}
