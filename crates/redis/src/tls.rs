//! TLS: certificates are read at start; handshake and records are done on the connection's core.
//!
//! rustls keeps the state of a connection and does no I/O of its own: received bytes go in, decrypted ones come
//! out, and the other way round. Both halves of a connection share that state, on one core, and never hold it
//! across an await.

use std::cell::RefCell;
use std::io::{self, Read, Write};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pumice_reactor::{RecvHalf, SendHalf, Stream};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection};

use crate::options::TlsOptions;
use crate::server::StartError;

/// A client that has not shaken hands by then is closed.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// Replies are encrypted and sent in pieces of about this size.
const SEND_BYTES: usize = 256 << 10;

/// Sets up TLS connections.
pub struct Acceptor {
    config: Arc<ServerConfig>,
}

impl Acceptor {
    /// Reads the files.
    pub fn new(options: &TlsOptions) -> Result<Self, StartError> {
        let failed = |what: &std::path::Path, why: &dyn std::fmt::Display| StartError::Tls {
            path: what.to_path_buf(),
            why: why.to_string(),
        };
        let certificates = |path: &std::path::Path| -> Result<Vec<CertificateDer<'static>>, StartError> {
            let found: Vec<_> = CertificateDer::pem_file_iter(path)
                .and_then(Iterator::collect)
                .map_err(|error| failed(path, &error))?;
            if found.is_empty() {
                return Err(failed(path, &"it holds no certificate in PEM form"));
            }
            Ok(found)
        };
        let chain = certificates(&options.certificate)?;
        let key = PrivateKeyDer::from_pem_file(&options.key).map_err(|error| match error {
            rustls::pki_types::pem::Error::NoItemsFound => {
                failed(&options.key, &"it holds no private key in PEM form")
            }
            error => failed(&options.key, &error),
        })?;
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| failed(&options.certificate, &error))?;
        let builder = match &options.client_authorities {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(path)? {
                    roots.add(certificate).map_err(|error| failed(path, &error))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                    .build()
                    .map_err(|error| failed(path, &error))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let config =
            builder.with_single_cert(chain, key).map_err(|error| failed(&options.certificate, &error))?;
        Ok(Self { config: Arc::new(config) })
    }

    /// Shakes hands with a client that just connected.
    pub(crate) async fn accept(&self, stream: Stream) -> io::Result<(TlsReceiver, TlsSender)> {
        let connection = ServerConnection::new(self.config.clone()).map_err(io::Error::other)?;
        let (mut receiver, sender) = stream.split();
        let mut state = State { connection, plain: Vec::new(), is_over: false };
        state.connection.set_buffer_limit(None);
        let handshake = async {
            loop {
                let out = state.encrypted()?;
                if !out.is_empty() {
                    sender.send_one(out).await.0?;
                }
                if !state.connection.is_handshaking() {
                    return Ok(());
                }
                let piece = receiver.recv().await?;
                if piece.is_empty() {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                if let Err(error) = state.take(&piece) {
                    // The alert tells the client why.
                    let out = state.encrypted()?;
                    sender.send_one(out).await.0?;
                    return Err(error);
                }
            }
        };
        pumice_reactor::timeout(HANDSHAKE_MAX, handshake)
            .await
            .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        let state = Rc::new(RefCell::new(state));
        Ok((TlsReceiver { state: state.clone(), half: receiver }, TlsSender { state, half: sender }))
    }
}

/// One connection's TLS state, and what was decrypted and not fetched yet.
struct State {
    connection: ServerConnection,
    plain: Vec<u8>,
    is_over: bool,
}

impl State {
    /// Decrypts what was received.
    fn take(&mut self, mut received: &[u8]) -> io::Result<()> {
        while !received.is_empty() {
            if self.connection.read_tls(&mut received)? == 0 {
                break;
            }
            self.connection.process_new_packets().map_err(io::Error::other)?;
            let before = self.plain.len();
            match self.connection.reader().read_to_end(&mut self.plain) {
                Ok(_) => self.is_over = true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            assert!(self.plain.len() >= before);
        }
        Ok(())
    }

    /// What is to be sent.
    fn encrypted(&mut self) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        while self.connection.wants_write() {
            self.connection.write_tls(&mut out)?;
        }
        Ok(out)
    }
}

/// Where requests come from.
pub(crate) struct TlsReceiver {
    state: Rc<RefCell<State>>,
    half: RecvHalf,
}

impl TlsReceiver {
    /// What came, decrypted; empty at the end.
    pub async fn recv(&mut self) -> io::Result<Vec<u8>> {
        loop {
            {
                let mut state = self.state.borrow_mut();
                if !state.plain.is_empty() || state.is_over {
                    return Ok(std::mem::take(&mut state.plain));
                }
            }
            let piece = self.half.recv().await?;
            if piece.is_empty() {
                return Ok(Vec::new());
            }
            self.state.borrow_mut().take(&piece)?;
        }
    }
}

/// Where replies go.
pub(crate) struct TlsSender {
    state: Rc<RefCell<State>>,
    half: SendHalf,
}

impl TlsSender {
    /// Encrypts and sends all parts.
    pub async fn send(&self, parts: &[Bytes]) -> io::Result<()> {
        let mut waiting = 0;
        for part in parts {
            for piece in part.chunks(SEND_BYTES) {
                self.state.borrow_mut().connection.writer().write_all(piece)?;
                waiting += piece.len();
                if waiting >= SEND_BYTES {
                    self.flush().await?;
                    waiting = 0;
                }
            }
        }
        self.flush().await
    }

    async fn flush(&self) -> io::Result<()> {
        let out = self.state.borrow_mut().encrypted()?;
        if out.is_empty() { Ok(()) } else { self.half.send_one(out).await.0 }
    }

    /// Says goodbye.
    pub async fn finish(&self) {
        self.state.borrow_mut().connection.send_close_notify();
        let _ = self.flush().await;
    }

    /// What it sends over.
    pub fn plain(&self) -> &SendHalf {
        &self.half
    }
}
