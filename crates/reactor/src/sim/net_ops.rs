//! Socket operations of the simulated world: who waits for what, and what they are told.

use super::engine::{CoreAt, Engine, Event, Open, Pending, cancelled, errno};
use super::net::{HostId, NetNews, Place, Socket};
use crate::addr::{Addr, PeerAddr};
use crate::buf::RecvBuf;
use crate::driver::{Handle, Op, Outcome, ReceiveInto, SMALL_RECEIVE_BYTES, SendData};
use bytes::Bytes;
use pumice_base::checksum::crc32c;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// The largest receive, as one shared buffer of the real driver.
const RECV_BYTES: usize = 16 << 10;
/// How long connecting waits for an answer, in ns.
const CONNECT_NS: u64 = 10_000_000_000;
/// Work of the kernel alone, in ns.
const KERNEL_NS: u64 = 2_000;

/// The address of a simulated host.
pub(crate) fn host_ip(host: HostId) -> IpAddr {
    let number = host + 1;
    IpAddr::V4(Ipv4Addr::new(10, 0, (number >> 8) as u8, number as u8))
}

/// The host that an address names, seen from `here`.
fn host_of(ip: IpAddr, here: HostId) -> Option<HostId> {
    match ip.to_canonical() {
        ip if ip.is_loopback() || ip.is_unspecified() => Some(here),
        IpAddr::V4(ip) => match ip.octets() {
            [10, 0, high, low] => (u32::from(high) << 8 | u32::from(low)).checked_sub(1),
            _ => None,
        },
        IpAddr::V6(_) => None,
    }
}

impl Engine {
    fn socket_of(&self, handle: &Handle) -> Socket {
        match self.handles.get(&handle.sim_id()) {
            Some(Open::Stream { socket, .. }) => *socket,
            other => panic!("a stream operation on {other:?}"),
        }
    }

    pub(crate) fn start_net(&mut self, id: u64) {
        let Some(pending) = self.ops.get(&id) else { return };
        let now = self.now_ns;
        match &pending.op {
            Op::Bind { .. } | Op::Shutdown { .. } => {
                self.push(now + KERNEL_NS, Event::Finish(id));
            }
            Op::Connect { addr } => {
                let (at, addr) = (pending.at, addr.clone());
                match self.place_of(at.host, &addr) {
                    Some(place) => {
                        let socket = self.net.connect(now, at.host, place);
                        if let Some(pending) = self.ops.get_mut(&id) {
                            pending.socket = Some(socket);
                        }
                        self.connecting.insert(socket, id);
                        self.push(now + CONNECT_NS, Event::Finish(id));
                    }
                    None => {
                        self.push(now + KERNEL_NS, Event::Finish(id));
                    }
                }
            }
            Op::Accept { listener } => {
                let Some(Open::Listener { id: listener, .. }) = self.handles.get(&listener.sim_id()) else {
                    panic!("accept on something that is no listener");
                };
                let listener = *listener;
                self.accepting.insert(listener, id);
                self.accept_waiting(listener);
            }
            Op::Receive { stream, .. } => {
                let socket = self.socket_of(stream);
                let before = self.receiving.insert(socket, id);
                assert!(before.is_none(), "two receives at a time on one stream");
                self.receive_waiting(socket);
            }
            Op::Send { stream, data, skip } => {
                let print = match data {
                    SendData::Parts(parts) => parts
                        .iter()
                        .fold(0u64, |sum, part| sum.wrapping_mul(31).wrapping_add(u64::from(crc32c(part)))),
                    SendData::One(data) => u64::from(crc32c(data)),
                };
                let (socket, detail) = (self.socket_of(stream), *skip as u64);
                self.note(33, id, print, detail);
                self.sending.entry(socket).or_default().push_back(id);
                self.send_waiting(socket);
            }
            other => panic!("not an operation of the network: {other:?}"),
        }
    }

    /// The place that connecting to `addr` from `here` leads to.
    fn place_of(&self, here: HostId, addr: &Addr) -> Option<Place> {
        match addr {
            Addr::Unix(path) => Some(Place { host: here, name: format!("unix:{}", path.display()) }),
            Addr::Tcp(addr) => {
                let host = host_of(addr.ip(), here)?;
                let local = Place { host, name: format!("local:{}", addr.port()) };
                if addr.ip().is_loopback() && self.net.is_listening(&local) {
                    return Some(local);
                }
                Some(Place { host, name: format!("tcp:{}", addr.port()) })
            }
        }
    }

    /// Completes a bind, a shutdown, or a connect that nobody answered.
    pub(crate) fn finish_net(&mut self, id: u64) {
        let Some(Pending { at, token, op, socket, .. }) = self.take_op(id) else { return };
        let outcome = match op {
            Op::Bind { addr, options } => Outcome::Bound(self.bind(at, addr, options.reuse_port)),
            Op::Shutdown { stream, .. } => {
                let socket = self.socket_of(&stream);
                self.net.shutdown(self.now_ns, socket);
                Outcome::Done(Ok(0))
            }
            Op::Connect { .. } => {
                if let Some(socket) = socket {
                    self.connecting.remove(&socket);
                    self.net.close(self.now_ns, socket);
                }
                let number = if socket.is_some() { libc::ETIMEDOUT } else { libc::EHOSTUNREACH };
                Outcome::Connected(Err(errno(number)))
            }
            other => panic!("not an operation that time completes: {other:?}"),
        };
        self.deliver(at, token, outcome, false);
    }

    fn bind(&mut self, at: CoreAt, addr: Addr, reuse_port: bool) -> io::Result<(Handle, Addr)> {
        let (addr, name, shared) = match addr {
            Addr::Unix(path) => {
                let name = format!("unix:{}", path.display());
                (Addr::Unix(path), name, false)
            }
            Addr::Tcp(mut addr) => {
                if host_of(addr.ip(), at.host) != Some(at.host) {
                    return Err(errno(libc::EADDRNOTAVAIL));
                }
                if addr.port() == 0 {
                    let host = &mut self.hosts[at.host as usize];
                    addr.set_port(host.next_port);
                    host.next_port += 1;
                }
                let kind = if addr.ip().is_loopback() { "local" } else { "tcp" };
                (Addr::Tcp(addr), format!("{kind}:{}", addr.port()), reuse_port)
            }
        };
        let id =
            self.net.listen(Place { host: at.host, name }, shared).ok_or_else(|| errno(libc::EADDRINUSE))?;
        Ok((self.make_handle(Open::Listener { host: at.host, id }), addr))
    }

    /// Who is at the other end of a socket, as its owner sees it.
    fn peer_addr(&self, socket: Socket) -> PeerAddr {
        let Some(place) = self.net.place(socket) else { return PeerAddr::Unix };
        let name = place.name.clone();
        let Some(port) = name.split_once(':').filter(|(kind, _)| *kind != "unix").map(|(_, port)| port)
        else {
            return PeerAddr::Unix;
        };
        let peer = self.net.peer_host(socket).unwrap_or(place.host);
        let here = self.net.peer_host(socket.peer()).unwrap_or(place.host);
        let ip = if peer == here { IpAddr::V4(Ipv4Addr::LOCALHOST) } else { host_ip(peer) };
        let port =
            if socket.side == 0 { port.parse().unwrap_or(0) } else { 32_768 + (socket.conn % 28_000) as u16 };
        PeerAddr::Tcp(SocketAddr::new(ip, port))
    }

    fn stream(&mut self, host: HostId, socket: Socket) -> (Handle, PeerAddr) {
        (self.make_handle(Open::Stream { host, socket }), self.peer_addr(socket))
    }

    /// Turns the network's news into completions until there are none.
    pub(crate) fn settle_net(&mut self) {
        loop {
            for (at, event) in self.net.take_events() {
                self.push(at, Event::Net(event));
            }
            let news = self.net.take_news();
            if news.is_empty() {
                return;
            }
            for news in news {
                match news {
                    NetNews::Connected(socket) => self.connected(socket, true),
                    NetNews::Refused(socket) => self.connected(socket, false),
                    NetNews::Acceptable(listener) => self.accept_waiting(listener),
                    NetNews::Readable(socket) => self.receive_waiting(socket),
                    NetNews::Writable(socket) => self.send_waiting(socket),
                }
            }
        }
    }

    fn connected(&mut self, socket: Socket, accepted: bool) {
        let Some(Pending { at, token, .. }) = self.connecting.remove(&socket).and_then(|id| self.take_op(id))
        else {
            return;
        };
        let result = if accepted { Ok(self.stream(at.host, socket)) } else { Err(errno(libc::ECONNREFUSED)) };
        self.deliver(at, token, Outcome::Connected(result), false);
    }

    fn accept_waiting(&mut self, listener: u64) {
        let Some(pending) = self.accepting.get(&listener).and_then(|op| self.ops.get(op)) else { return };
        let (at, token) = (pending.at, pending.token);
        while let Some(socket) = self.net.accept(listener) {
            let accepted = self.stream(at.host, socket);
            self.deliver(at, token, Outcome::Accepted(Ok(accepted)), true);
        }
    }

    fn receive_waiting(&mut self, socket: Socket) {
        let now = self.now_ns;
        while let Some(&id) = self.receiving.get(&socket) {
            let Some(pending) = self.ops.get(&id) else { return };
            let at = pending.at;
            let Op::Receive { into, .. } = &pending.op else { return };
            let (many, most) = match into {
                ReceiveInto::Given { range, .. } => (false, range.len()),
                ReceiveInto::Small => (true, SMALL_RECEIVE_BYTES),
                ReceiveInto::Large => (true, RECV_BYTES),
            };
            let host = &mut self.hosts[at.host as usize];
            let quirks = host.options.quirks;
            let max = if quirks && host.rng.chance(1.0 / 32.0) {
                (1 + host.rng.below(64) as usize).min(most)
            } else {
                most
            };
            // The shared receive buffers are all in use, and others wait for one.
            let has_to_queue = many && quirks && host.rng.chance(1.0 / 512.0);
            let result = match self.net.recv(now, socket, max) {
                None => return,
                Some(Ok(data)) => Ok(data),
                Some(Err(())) => Err(errno(libc::ECONNRESET)),
            };
            let more = many && !has_to_queue && result.as_ref().is_ok_and(|data| !data.is_empty());
            let token = pending_token(self, id);
            let mut given = None;
            if !more {
                self.receiving.remove(&socket);
                if let Some(Pending { op: Op::Receive { into, .. }, .. }) = self.take_op(id)
                    && let ReceiveInto::Given { buf, range } = into
                {
                    given = Some((buf, range.start));
                }
            }
            let outcome = match given {
                None => Outcome::Received(result.map(|data| RecvBuf::from_vec(data.to_vec()))),
                Some((mut buf, start)) => {
                    let filled = result.map(|data| {
                        let filled = start..start + data.len();
                        buf[filled.clone()].copy_from_slice(&data);
                        filled
                    });
                    Outcome::Filled(filled, buf)
                }
            };
            self.deliver(at, token, outcome, more);
        }
    }

    fn send_waiting(&mut self, socket: Socket) {
        while let Some(&id) = self.sending.get(&socket).and_then(|queue| queue.front()) {
            let Some(pending) = self.ops.get(&id) else { return };
            let Op::Send { data, skip, .. } = &pending.op else { return };
            let parts: Vec<Bytes> = match data {
                SendData::Parts(parts) => parts.clone(),
                SendData::One(data) => vec![Bytes::copy_from_slice(data)],
            };
            let (mut skip, mut sent, mut gone) = (*skip, 0, false);
            for part in parts {
                if skip >= part.len() {
                    skip -= part.len();
                    continue;
                }
                let rest = part.slice(skip..);
                skip = 0;
                match self.net.send(self.now_ns, socket, &rest) {
                    Some(taken) => {
                        sent += taken;
                        if taken < rest.len() {
                            break;
                        }
                    }
                    None => {
                        gone = true;
                        break;
                    }
                }
            }
            if sent == 0 && !gone {
                return;
            }
            if let Some(queue) = self.sending.get_mut(&socket) {
                queue.pop_front();
                if queue.is_empty() {
                    self.sending.remove(&socket);
                }
            }
            let Some(Pending { at, token, op: Op::Send { data, .. }, .. }) = self.take_op(id) else { return };
            let result = if sent > 0 { Ok(sent) } else { Err(errno(libc::EPIPE)) };
            self.deliver(at, token, Outcome::Sent(result, data), false);
        }
    }

    /// Ends a socket operation that waits.
    pub(crate) fn cancel_net(&mut self, id: u64) {
        let Some(Pending { at, token, op, socket, .. }) = self.take_op(id) else { return };
        let outcome = match op {
            Op::Accept { .. } => {
                self.accepting.retain(|_, op| *op != id);
                Outcome::Accepted(Err(cancelled()))
            }
            Op::Receive { stream, into } => {
                let socket = self.socket_of(&stream);
                self.receiving.remove(&socket);
                match into {
                    ReceiveInto::Given { buf, .. } => Outcome::Filled(Err(cancelled()), buf),
                    _ => Outcome::Received(Err(cancelled())),
                }
            }
            Op::Send { stream, data, .. } => {
                let socket = self.socket_of(&stream);
                if let Some(queue) = self.sending.get_mut(&socket) {
                    queue.retain(|op| *op != id);
                    if queue.is_empty() {
                        self.sending.remove(&socket);
                    }
                }
                Outcome::Sent(Err(cancelled()), data)
            }
            Op::Connect { .. } => {
                if let Some(socket) = socket {
                    self.connecting.remove(&socket);
                    self.net.reset(self.now_ns, socket);
                    self.net.close(self.now_ns, socket);
                }
                Outcome::Connected(Err(cancelled()))
            }
            Op::Bind { .. } => Outcome::Bound(Err(cancelled())),
            Op::Shutdown { .. } => Outcome::Done(Err(cancelled())),
            other => panic!("not an operation of the network: {other:?}"),
        };
        self.deliver(at, token, outcome, false);
    }
}

fn pending_token(engine: &Engine, id: u64) -> crate::driver::Token {
    match engine.ops.get(&id) {
        Some(pending) => pending.token,
        None => panic!("operation {id} is gone"),
    }
}
