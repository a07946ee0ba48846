//! Streams over TCP and Unix sockets.

use crate::addr::{Addr, PeerAddr};
use crate::buf::{IoBuf, RecvBuf};
use crate::driver::{
    Handle, ListenOptions, Op, Outcome, ReceiveInto, SMALL_RECEIVE_BYTES, SendData, ShutdownHow,
};
use crate::executor::{Core, current};
use crate::operation::{Many, Operation, submit};
use bytes::Bytes;
use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

/// Connections accepted ahead of the caller.
const ACCEPTED_AHEAD_MAX: usize = 64;
/// Buffers received ahead of the caller, on each stream. A turn may bring a few more before the driver stops.
const RECEIVED_AHEAD_MAX: usize = 8;
/// Short receives in a row after which a connection goes back to small buffers.
const SHORT_RECEIVES_MAX: u8 = 64;

/// Listens on one core.
pub struct Listener {
    handle: Handle,
    addr: Addr,
    core: Rc<Core>,
    many: Rc<Many>,
}

impl Listener {
    /// Listens at `addr`. With `reuse_port`, every core may listen at the same TCP address and gets its share.
    pub async fn bind(addr: &Addr, options: ListenOptions) -> io::Result<Self> {
        match submit(Op::Bind { addr: addr.clone(), options }).await {
            Outcome::Bound(result) => {
                let (handle, addr) = result?;
                Ok(Self { handle, addr, core: current(), many: Many::new(ACCEPTED_AHEAD_MAX) })
            }
            other => other.unexpected(),
        }
    }

    /// The same listening socket for another core: for Unix sockets, where several cannot be bound to one path.
    pub fn share(&self) -> ListenerShare {
        ListenerShare { handle: self.handle.clone(), addr: self.addr.clone() }
    }

    /// Where it listens, with the port filled in.
    pub fn local_addr(&self) -> &Addr {
        &self.addr
    }

    /// The next connection. One caller at a time. Errors such as "too many open files" pass: call again, after a
    /// pause.
    pub async fn accept(&self) -> io::Result<(Stream, PeerAddr)> {
        let start = || Op::Accept { listener: self.handle.clone() };
        match poll_fn(|context| self.many.poll_next(&self.core, context, start)).await {
            Outcome::Accepted(result) => {
                result.map(|(handle, peer)| (Stream::new(handle, peer.clone()), peer))
            }
            other => other.unexpected(),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.many.close(&self.core);
    }
}

/// A listening socket on its way to another core.
#[derive(Clone, Debug)]
pub struct ListenerShare {
    handle: Handle,
    addr: Addr,
}

impl ListenerShare {
    /// Accepts on the current core.
    pub fn listen(self) -> Listener {
        Listener {
            handle: self.handle,
            addr: self.addr,
            core: current(),
            many: Many::new(ACCEPTED_AHEAD_MAX),
        }
    }
}

struct Inner {
    handle: Handle,
    peer: PeerAddr,
    core: Rc<Core>,
    many: Rc<Many>,
    /// Receives into the large shared buffers: the last that filled a small one is not long ago.
    large: Cell<bool>,
    /// Receives in a row that a small buffer would have taken.
    short: Cell<u8>,
    ended: Cell<bool>,
}

impl Inner {
    async fn recv(&self) -> io::Result<RecvBuf> {
        if self.ended.get() {
            return Ok(RecvBuf::from_vec(Vec::new()));
        }
        let start = || Op::Receive { stream: self.handle.clone(), into: self.into() };
        let outcome = poll_fn(|context| self.many.poll_next(&self.core, context, start)).await;
        self.received(outcome)
    }

    async fn recv_into(&self, buf: IoBuf, range: Range<usize>) -> (io::Result<Came>, IoBuf) {
        const HERE: &str = "the given memory is here but while it is received into, and that answers with it";
        // What is under way into shared buffers ends first, and is handed out first.
        self.many.restart(&self.core);
        let mut given = Some(buf);
        if self.ended.get() {
            return (Ok(Came::Filled(0)), given.expect(HERE));
        }
        let mut start = || {
            let into = ReceiveInto::Given { buf: given.take().expect(HERE), range: range.clone() };
            Op::Receive { stream: self.handle.clone(), into }
        };
        match poll_fn(|context| self.many.poll_next(&self.core, context, &mut start)).await {
            // Not one that a dropped future had begun with other memory.
            Outcome::Filled(result, buf) if given.is_none() => {
                self.ended.set(result.as_ref().is_ok_and(Range::is_empty));
                (result.map(|filled| Came::Filled(filled.len())), buf)
            }
            outcome => (self.received(outcome).map(Came::Buf), given.expect(HERE)),
        }
    }

    fn try_recv(&self) -> Option<io::Result<RecvBuf>> {
        Some(self.received(self.many.try_next()?))
    }

    fn received(&self, outcome: Outcome) -> io::Result<RecvBuf> {
        let result = match outcome {
            Outcome::Received(result) => result,
            // Whoever gave the memory has gone; what came has not.
            Outcome::Filled(result, buf) => result.map(|filled| RecvBuf::from_vec(buf[filled].to_vec())),
            other => other.unexpected(),
        };
        if let Ok(buf) = &result {
            self.choose_size(buf.len());
            self.ended.set(buf.is_empty());
        }
        result
    }

    fn into(&self) -> ReceiveInto {
        if self.large.get() { ReceiveInto::Large } else { ReceiveInto::Small }
    }

    /// Who sends much at a time gets large buffers, until it has sent little for a while.
    fn choose_size(&self, received: usize) {
        let is_long = received >= SMALL_RECEIVE_BYTES;
        self.short.set(if is_long { 0 } else { self.short.get().saturating_add(1) });
        let large = is_long || (self.large.get() && self.short.get() < SHORT_RECEIVES_MAX);
        if self.large.replace(large) != large {
            self.many.restart(&self.core);
        }
    }

    async fn send(&self, data: SendData) -> (io::Result<()>, SendData) {
        if data.is_empty() {
            return (Ok(()), data);
        }
        let mut sending = self.begin_send(data, 0);
        poll_fn(|context| sending.poll_data(context, true)).await
    }

    fn begin_send(&self, data: SendData, skip: usize) -> Sending<'_> {
        let bytes = data.len() - skip;
        let operation = submit(Op::Send { stream: self.handle.clone(), data, skip });
        Sending { inner: self, operation, skip, bytes }
    }

    async fn send_parts(&self, parts: Vec<Bytes>) -> (io::Result<()>, Vec<Bytes>) {
        parts_of(self.send(SendData::Parts(parts)).await)
    }

    async fn send_one(&self, data: Vec<u8>) -> (io::Result<()>, Vec<u8>) {
        match self.send(SendData::One(data)).await {
            (result, SendData::One(data)) => (result, data),
            (_, SendData::Parts(_)) => unreachable!("the driver gives back what it got"),
        }
    }

    async fn shutdown(&self, how: ShutdownHow) -> io::Result<()> {
        match submit(Op::Shutdown { stream: self.handle.clone(), how }).await {
            Outcome::Done(result) => result.map(drop),
            other => other.unexpected(),
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.many.close(&self.core);
    }
}

/// Bytes on their way to the peer: see [`SendHalf::begin_send`]. Dropping it gives up what has not left.
pub struct Sending<'a> {
    inner: &'a Inner,
    operation: Operation,
    /// What had left before.
    skip: usize,
    /// What the operation is to send.
    bytes: usize,
}

impl Sending<'_> {
    /// Whether all has left; the parts come back. Not `awaited`: that it has wakes nobody, only that it cannot does, and whoever
    /// comes for a reason of his own sees it. Who then wants to know sooner polls again.
    pub fn poll(&mut self, context: &mut Context<'_>, awaited: bool) -> Poll<(io::Result<()>, Vec<Bytes>)> {
        self.poll_data(context, awaited).map(parts_of)
    }

    fn poll_data(&mut self, context: &mut Context<'_>, awaited: bool) -> Poll<(io::Result<()>, SendData)> {
        loop {
            let quiet_bytes = (!awaited).then_some(self.bytes);
            let (result, data) = match ready!(self.operation.poll_outcome(context, quiet_bytes)) {
                Outcome::Sent(result, data) => (result, data),
                other => other.unexpected(),
            };
            let result = match result {
                Ok(sent) if sent == self.bytes => Ok(()),
                Ok(0) => Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => {
                    *self = self.inner.begin_send(data, self.skip + sent);
                    continue;
                }
                Err(error) => Err(error),
            };
            return Poll::Ready((result, data));
        }
    }
}

fn parts_of((result, data): (io::Result<()>, SendData)) -> (io::Result<()>, Vec<Bytes>) {
    match data {
        SendData::Parts(parts) => (result, parts),
        SendData::One(_) => unreachable!("the driver gives back what it got"),
    }
}

/// What [`RecvHalf::recv_into`] brings.
#[derive(Debug)]
pub enum Came {
    /// So many bytes, into the given memory; none: the end of the stream.
    Filled(usize),
    /// Bytes that had come before it was given; the memory is as it was.
    Buf(RecvBuf),
}

/// A connection, owned by one core. Dropping it closes it once operations in flight have ended.
pub struct Stream(Rc<Inner>);

/// The receiving half of a [`Stream`].
pub struct RecvHalf(Rc<Inner>);

/// The sending half of a [`Stream`]; clones send to the same peer, one at a time please.
#[derive(Clone)]
pub struct SendHalf(Rc<Inner>);

impl Stream {
    fn new(handle: Handle, peer: PeerAddr) -> Self {
        Self(Rc::new(Inner {
            handle,
            peer,
            core: current(),
            many: Many::new(RECEIVED_AHEAD_MAX),
            large: Cell::new(false),
            short: Cell::new(0),
            ended: Cell::new(false),
        }))
    }

    /// Connects.
    pub async fn connect(addr: &Addr) -> io::Result<Self> {
        match submit(Op::Connect { addr: addr.clone() }).await {
            Outcome::Connected(result) => result.map(|(handle, peer)| Self::new(handle, peer)),
            other => other.unexpected(),
        }
    }

    /// This end: the address that the peer connected to, where a listener has several. Asks the kernel. `None`: of a Unix socket, and in
    /// a simulated world.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.0.handle.local_addr()
    }

    /// Who is at the other end.
    pub fn peer(&self) -> &PeerAddr {
        &self.0.peer
    }

    /// What came; empty at the end of the stream. At most a few buffers are received ahead of the caller.
    pub async fn recv(&mut self) -> io::Result<RecvBuf> {
        self.0.recv().await
    }

    /// What has come already, without waiting: to answer everything in one send. `None`: nothing yet (then `recv`).
    pub fn try_recv(&mut self) -> Option<io::Result<RecvBuf>> {
        self.0.try_recv()
    }

    /// Sends all parts in order, uncopied.
    pub async fn send(&self, parts: Vec<Bytes>) -> io::Result<()> {
        self.0.send_parts(parts).await.0
    }

    /// [`send`](Self::send) that gives the parts back, to reuse the vector.
    pub async fn send_parts(&self, parts: Vec<Bytes>) -> (io::Result<()>, Vec<Bytes>) {
        self.0.send_parts(parts).await
    }

    /// Sends all of `data` and gives it back.
    pub async fn send_one(&self, data: Vec<u8>) -> (io::Result<()>, Vec<u8>) {
        self.0.send_one(data).await
    }

    /// Closes one or both directions.
    pub async fn shutdown(&self, how: ShutdownHow) -> io::Result<()> {
        self.0.shutdown(how).await
    }

    /// Receive in one task, send in another.
    pub fn split(self) -> (RecvHalf, SendHalf) {
        (RecvHalf(Rc::clone(&self.0)), SendHalf(self.0))
    }
}

impl RecvHalf {
    /// See [`Stream::recv`].
    pub async fn recv(&mut self) -> io::Result<RecvBuf> {
        self.0.recv().await
    }

    /// Receives once into the caller's memory, which must have room in `range`: for much that is kept, uncopied.
    /// Going back and forth between this and [`recv`](Self::recv) costs a cancellation each time.
    pub async fn recv_into(&mut self, buf: IoBuf, range: Range<usize>) -> (io::Result<Came>, IoBuf) {
        self.0.recv_into(buf, range).await
    }

    /// What has come already, without waiting: to answer everything in one send. `None`: nothing yet (then `recv`).
    pub fn try_recv(&mut self) -> Option<io::Result<RecvBuf>> {
        self.0.try_recv()
    }

    /// Who is at the other end.
    pub fn peer(&self) -> &PeerAddr {
        &self.0.peer
    }
}

impl SendHalf {
    /// See [`Stream::send`].
    pub async fn send(&self, parts: Vec<Bytes>) -> io::Result<()> {
        self.0.send_parts(parts).await.0
    }

    /// See [`Stream::send_parts`].
    pub async fn send_parts(&self, parts: Vec<Bytes>) -> (io::Result<()>, Vec<Bytes>) {
        self.0.send_parts(parts).await
    }

    /// [`send_parts`](Self::send_parts), begun at once, that need not be awaited: a server that has answered rests until the next
    /// request comes, and need not be woken to hear that the answer has left. `parts` hold something.
    pub fn begin_send(&self, parts: Vec<Bytes>) -> Sending<'_> {
        self.0.begin_send(SendData::Parts(parts), 0)
    }

    /// See [`Stream::send_one`].
    pub async fn send_one(&self, data: Vec<u8>) -> (io::Result<()>, Vec<u8>) {
        self.0.send_one(data).await
    }

    /// See [`Stream::shutdown`].
    pub async fn shutdown(&self, how: ShutdownHow) -> io::Result<()> {
        self.0.shutdown(how).await
    }
}
