//! How bytes reach and leave a client: plainly, or through TLS.

use std::future::poll_fn;
use std::io;
use std::ops::{Deref, Range};
use std::sync::Arc;

use bytes::Bytes;
use pumice_reactor::{Came, IoBuf, RecvBuf, RecvHalf, SendHalf, Stream};

use crate::server::Server;
use crate::tls::{TlsReceiver, TlsSender};

/// A piece as received; give it back soon.
pub(crate) enum Piece {
    /// As it came.
    Plain(RecvBuf),
    /// Decrypted.
    Decrypted(Vec<u8>),
}

impl Deref for Piece {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Plain(buf) => buf,
            Self::Decrypted(buf) => buf,
        }
    }
}

/// Where what was received is.
pub(crate) enum CameTo {
    /// In the caller's memory, so many bytes; none: the end.
    Memory(usize),
    /// Here.
    Piece(Piece),
}

/// Where requests come from.
pub(crate) enum Receiver {
    /// A plain connection.
    Plain(RecvHalf),
    /// An encrypted one.
    Tls(TlsReceiver),
}

/// Where replies go.
pub(crate) enum Sender {
    /// A plain connection.
    Plain(SendHalf),
    /// An encrypted one.
    Tls(TlsSender),
}

/// The two directions of a connection; through TLS when that is on and the connection comes over the network.
pub(crate) async fn open(
    server: &Arc<Server>,
    stream: Stream,
    is_tcp: bool,
) -> io::Result<(Receiver, Sender)> {
    if let Some(acceptor) = server.tls()
        && is_tcp
    {
        let (receiver, sender) = acceptor.accept(stream).await?;
        return Ok((Receiver::Tls(receiver), Sender::Tls(sender)));
    }
    let (receiver, sender) = stream.split();
    Ok((Receiver::Plain(receiver), Sender::Plain(sender)))
}

impl Receiver {
    /// What came; empty at the end.
    pub async fn recv(&mut self) -> io::Result<Piece> {
        match self {
            Self::Plain(half) => half.recv().await.map(Piece::Plain),
            Self::Tls(half) => half.recv().await.map(Piece::Decrypted),
        }
    }

    /// Whether bytes can come into memory of the caller.
    pub fn fills_memory(&self) -> bool {
        matches!(self, Self::Plain(_))
    }

    /// What came, into `buf[range]` where that is possible; the memory comes back.
    pub async fn recv_into(&mut self, buf: IoBuf, range: Range<usize>) -> (io::Result<CameTo>, IoBuf) {
        match self {
            Self::Plain(half) => {
                let (came, buf) = half.recv_into(buf, range).await;
                let came = came.map(|came| match came {
                    Came::Filled(bytes) => CameTo::Memory(bytes),
                    Came::Buf(buf) => CameTo::Piece(Piece::Plain(buf)),
                });
                (came, buf)
            }
            Self::Tls(half) => (half.recv().await.map(|buf| CameTo::Piece(Piece::Decrypted(buf))), buf),
        }
    }
}

impl Sender {
    /// Sends all parts in order and gives the vector back. While `is_awaited` says no, nobody is woken when all has left: whoever
    /// polls for a reason of his own sees it.
    pub async fn send(
        &self,
        parts: Vec<Bytes>,
        is_awaited: impl Fn() -> bool,
    ) -> (io::Result<()>, Vec<Bytes>) {
        match self {
            Self::Plain(half) => {
                let mut sending = half.begin_send(parts);
                poll_fn(|context| sending.poll(context, is_awaited())).await
            }
            Self::Tls(half) => (half.send(&parts).await, parts),
        }
    }

    /// All is sent: says goodbye where the protocol has a word for it.
    pub async fn finish(&self) {
        if let Self::Tls(half) = self {
            half.finish().await;
        }
    }

    /// Ends the connection, sends under way included.
    pub async fn close(&self) {
        let half = match self {
            Self::Plain(half) => half,
            Self::Tls(half) => half.plain(),
        };
        let _ = half.shutdown(pumice_reactor::driver::ShutdownHow::Both).await;
    }
}
