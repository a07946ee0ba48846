//! TLS with a real client: the handshake, commands over it, and a plain client at the same port.

#![allow(clippy::disallowed_methods, reason = "clients are threads of their own")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use crate::common::client::encode;
use crate::common::{PATIENCE, Setup, TestServer};
use pumice_redis::options::{Options, TlsOptions};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/tls").join(name)
}

#[test]
fn a_tls_client_is_served_and_a_plain_one_is_refused_without_harm_to_it() {
    let tls = TlsOptions {
        certificate: fixture("server.pem"),
        key: fixture("server.key"),
        client_authorities: None,
    };
    let options = Options { tls: Some(tls), ..Options::default() };
    let server = TestServer::with(Setup { options, tcp: Some("127.0.0.1:0".into()), ..Setup::default() });
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

fn speak(addr: SocketAddr) {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(fixture("ca.pem")).expect("a certificate")).expect("added");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").expect("a name");
    let connection = ClientConnection::new(Arc::new(config), name).expect("a client");
    let socket = TcpStream::connect(addr).expect("connected");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let mut stream = BufReader::new(StreamOwned::new(connection, socket));
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
