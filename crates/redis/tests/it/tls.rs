//! TLS with a real client: the handshake, commands over it, a plain client at the same port, and certificates of clients.

#![allow(clippy::disallowed_methods, reason = "clients are threads of their own")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use crate::common::client::{TlsStream, encode};
use crate::common::{Client, PATIENCE, Setup, TestServer, eventually};
use pumice_base::rng::Rng;
use pumice_redis::options::{DebugAccess, Options, TlsOptions};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/tls").join(name)
}

/// A server that speaks TLS at a TCP address.
pub fn setup() -> Setup {
    let tls = TlsOptions {
        certificate: fixture("server.pem"),
        key: fixture("server.key"),
        client_authorities: None,
    };
    let options = Options { tls: Some(tls), debug: DebugAccess::Yes, ..Options::default() };
    Setup { options, tcp: Some("127.0.0.1:0".into()), ..Setup::default() }
}

fn start() -> TestServer {
    TestServer::with(setup())
}

#[test]
fn a_tls_client_is_served_and_a_plain_one_is_refused_without_harm_to_it() {
    let server = start();
    let addr: SocketAddr = server.tcp().parse().expect("an address");
    let client = move || thread::spawn(move || speak(addr)).join().expect("served");
    client();
    let mut plain = TcpStream::connect(addr).expect("connected");
    plain.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    plain.write_all(&encode(&["PING"])).expect("sent");
    let mut answer = Vec::new();
    // Either an alert and the end, or a reset.
    if let Err(error) = plain.read_to_end(&mut answer) {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
    assert!(!answer.starts_with(b"+"), "{answer:?}");
    client();
    assert_eq!(server.client().line("PING").to_string(), "PONG");
}

#[test]
fn who_stops_in_the_midst_of_the_handshake_does_not_keep_the_server_from_stopping() {
    let mut server = start();
    let stranger = TcpStream::connect(server.tcp()).expect("connected");
    eventually("it is let in", || server.server().clients.len() == 1);
    server.stop();
    assert!(server.server().clients.is_empty(), "its connection ended before the server did");
    drop(stranger);
}

/// The other side of `--redis-tls-ca`.
#[test]
fn a_client_without_a_certificate_is_refused_where_one_is_asked_for() {
    let tls = TlsOptions {
        certificate: fixture("server.pem"),
        key: fixture("server.key"),
        client_authorities: Some(fixture("clients.pem")),
    };
    let options = Options { tls: Some(tls), ..Options::default() };
    let server = TestServer::with(Setup { options, tcp: Some("127.0.0.1:0".into()), ..Setup::default() });
    let addr: SocketAddr = server.tcp().parse().expect("an address");
    // The server says what it thinks of a certificate after the client's part of the handshake, and says nothing else unasked.
    for (certificate, says) in [(None, "CertificateRequired"), (Some("stranger.pem"), "UnknownCA")] {
        let refused = thread::spawn(move || connect(addr, certificate).read(&mut [0]));
        let error = refused.join().expect("answered").expect_err("nothing was sent to it").to_string();
        assert!(error.contains(says), "{certificate:?}: {error}");
    }
    thread::spawn(move || ping(addr, "client.pem")).join().expect("served");
}

fn ping(addr: SocketAddr, certificate: &'static str) {
    let mut stream = BufReader::new(connect(addr, Some(certificate)));
    stream.get_mut().write_all(&encode(&["PING"])).expect("sent");
    assert_eq!(line(&mut stream), "+PONG\r\n");
}

/// A connection of a client that has `certificate`, with its key in the same file.
pub fn connect(addr: SocketAddr, certificate: Option<&str>) -> TlsStream {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(fixture("ca.pem")).expect("a certificate")).expect("added");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots);
    let config = match certificate.map(fixture) {
        None => config.with_no_client_auth(),
        Some(path) => {
            let chain = vec![CertificateDer::from_pem_file(&path).expect("a certificate")];
            let key = PrivateKeyDer::from_pem_file(&path).expect("a key");
            config.with_client_auth_cert(chain, key).expect("they belong together")
        }
    };
    let name = ServerName::try_from("localhost").expect("a name");
    let connection = ClientConnection::new(Arc::new(config), name).expect("a client");
    let socket = TcpStream::connect(addr).expect("connected");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    socket.set_write_timeout(Some(PATIENCE)).expect("a timeout");
    StreamOwned::new(connection, socket)
}

fn speak(addr: SocketAddr) {
    let mut stream = BufReader::new(connect(addr, None));
    let value = vec![b'v'; 1_000_000];
    stream.get_mut().write_all(&encode(&[&b"SET"[..], b"k", &value])).expect("sent");
    assert_eq!(line(&mut stream), "+OK\r\n");
    stream.get_mut().write_all(&encode(&["GET", "k"])).expect("sent");
    assert_eq!(line(&mut stream), "$1000000\r\n");
    let mut got = vec![0; value.len() + 2];
    stream.read_exact(&mut got).expect("the value");
    assert!(got[..value.len()] == value && got.ends_with(b"\r\n"));
}

fn line(stream: &mut impl BufRead) -> String {
    let mut line = String::new();
    stream.read_line(&mut line).expect("a line");
    line
}

#[test]
fn a_slow_reader_gets_every_byte_of_long_replies() {
    const TIMES: usize = 6;
    let server = start();
    let addr: SocketAddr = server.tcp().parse().expect("an address");
    // Longer than what the server queues for one client, than a socket takes and than a TLS record; no two pieces are alike.
    let mut value = vec![0; 3_000_000];
    Rng::from_seed(3).fill(&mut value);
    assert_eq!(server.client().call(&[&b"SET"[..], b"k", &value]).to_string(), "OK");
    let reader = thread::spawn(move || {
        let mut stream = connect(addr, None);
        stream.write_all(&encode(&["GET", "k"]).repeat(TIMES)).expect("sent");
        let reply = [&b"$3000000\r\n"[..], &value, b"\r\n"].concat();
        let mut piece = vec![0; 100_000];
        for time in 0..TIMES {
            for expected in reply.chunks(piece.len()) {
                thread::sleep(Duration::from_millis(if time == 1 { 5 } else { 0 }));
                stream.read_exact(&mut piece[..expected.len()]).expect("a reply");
                assert!(piece[..expected.len()] == *expected, "reply {time}");
            }
            thread::sleep(Duration::from_millis(100));
        }
    });
    let mut other = server.client();
    while !reader.is_finished() {
        assert_eq!(other.line("PING").to_string(), "PONG");
        thread::sleep(Duration::from_millis(5));
    }
    reader.join().expect("every byte came");
}

/// A connection that ends without saying so within TLS may have been cut by anybody: what came whole was carried out, the rest was
/// not.
#[test]
fn an_end_without_a_word_is_an_end() {
    let server = start();
    let addr: SocketAddr = server.tcp().parse().expect("an address");
    let set = |key: &str, len: usize| encode(&[&b"SET"[..], key.as_bytes(), &vec![b'v'; len]]);
    for (whole, cut) in [(set("a", 5), set("b", 500)), (set("c", 20_000), set("d", 2_000_000))] {
        let mut stream = connect(addr, None);
        stream.write_all(&whole).expect("sent");
        stream.write_all(&cut[..cut.len() / 2]).expect("sent");
        let mut reply = [0; 5];
        stream.read_exact(&mut reply).expect("a reply");
        assert_eq!(&reply, b"+OK\r\n");
        eventually("it is let in", || server.server().clients.len() == 1);
        // Without a close_notify: the library sends none by itself.
        drop(stream);
        eventually("it is forgotten", || server.server().clients.is_empty());
        let waiting = &server.server().stats.input_waiting_bytes;
        eventually("and what it sent", || waiting.load(Ordering::Relaxed) == 0);
    }
    let mut client = Client::over_tls(connect(addr, None));
    assert_eq!(client.line("EXISTS a b c d").to_string(), "2");
    assert_eq!(client.line("STRLEN c").to_string(), "20000");
}
