//! Large values that end in the midst: the client is closed, and nothing behind them is carried out or answered.

use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::common::client::encode;
use crate::common::{PATIENCE, Setup, TestServer};
use crate::simulated::Stage;
use pumice_base::rng::Rng;
use pumice_redis::options::Options;

const PIECE_BYTES: usize = 1 << 20;
const PIECES: usize = 4;

/// A value whose pieces differ.
fn value(first: u8) -> Vec<u8> {
    (0..PIECES as u8).flat_map(|piece| vec![first + piece; PIECE_BYTES]).collect()
}

/// Damages the drive where a block of nothing but `byte` lies.
fn damage(drive: &Path, byte: u8) {
    const BLOCK: usize = 4096;
    let file = OpenOptions::new().read(true).write(true).open(drive).expect("the drive");
    let bytes = std::fs::read(drive).expect("the drive");
    let mut blocks = bytes.chunks(BLOCK);
    let at = blocks.position(|block| block[0] == byte && block.iter().all(|&b| b == byte));
    let at = at.expect("it is there") * BLOCK;
    file.write_all_at(b"damage", at as u64).expect("written");
}

#[test]
fn nothing_follows_a_value_that_breaks_off() {
    let setup = Setup { drive_bytes: 64 << 20, ..Setup::default() };
    let server = TestServer::with(setup.clone());
    let (broken, whole) = (value(b'a'), value(b'A'));
    assert_eq!(server.client().call(&[&b"SET"[..], b"broken", &broken]).to_string(), "OK");
    assert_eq!(server.client().call(&[&b"SET"[..], b"whole", &whole]).to_string(), "OK");
    server.client().line("SET n 0");
    let dir = server.into_dir();
    damage(&dir.path().join("drive0"), b'a' + PIECES as u8 - 1);
    let server = TestServer::in_dir(setup, dir);
    let get = |key: &str| encode(&["GET", key]);
    let incr = encode(&["INCR", "n"]);
    for commands in [
        get("broken"),
        [get("broken"), get("whole")].concat(),
        [get("n"), get("broken"), get("n"), get("whole")].concat(),
        [get("broken"), incr.clone()].concat(),
        [get("broken"), get("whole"), incr.clone()].concat(),
        // As many as are read side by side.
        [get("broken"), get("whole").repeat(40), incr.clone()].concat(),
        [get("broken"), b"*1\r\n+not a bulk\r\n".to_vec()].concat(),
        [get("broken"), encode(&["SET", "n", "1", "NX", "XX"])].concat(),
    ] {
        let shown = String::from_utf8_lossy(&commands).replace("\r\n", " ");
        let mut client = UnixStream::connect(server.socket()).expect("connected");
        client.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        client.write_all(&commands).expect("sent");
        let mut reply = Vec::new();
        client.read_to_end(&mut reply).expect("closed");
        let from = reply.iter().position(|&b| b == b'\n').expect("a header") + 1;
        let from = if commands.starts_with(&get("n")) { from + "0\r\n$4194304\r\n".len() } else { from };
        let came = &reply[from..];
        assert!(came.len() < broken.len() && *came == broken[..came.len()], "{shown}");
    }
    let mut client = server.client();
    assert_eq!(client.line("GET n").to_string(), "\"0\"", "what came behind was not carried out");
    assert_eq!(client.line("STRLEN whole").to_string(), whole.len().to_string());
}

fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut noise = vec![0; bytes];
    Rng::from_seed(seed).fill(&mut noise);
    noise
}

/// On a healthy drive: writers need the room of what was overwritten, and do not wait for who reads it slowly.
#[test]
fn nothing_follows_a_value_that_was_read_too_slowly() {
    const BIG_BYTES: usize = 6 << 20;
    const KEYS: u64 = 300;
    const KEY_BYTES: usize = 100_000;
    let stage = Stage::start(Options { output_bytes_max: 2 << 20, ..Options::default() });
    stage.world.set_socket_buffers(64 << 10, 64 << 10);
    stage.play(async move |clients| {
        let (mut writer, mut reader) = (clients.connect().await, clients.connect().await);
        let big = noise(BIG_BYTES, 0);
        writer.send(encode(&[&b"SET"[..], b"big", &big])).await;
        assert_eq!(writer.read_line().await, "+OK");
        reader.send([encode(&["GET", "big"]), encode(&["INCR", "n"])].concat()).await;
        assert_eq!(reader.read_line().await, format!("${BIG_BYTES}"));
        assert_eq!(writer.line("SET big short").await, "+OK");
        let mut rng = Rng::from_seed(1);
        for round in 0..8 * KEYS {
            let n = if round < KEYS { round } else { rng.below(KEYS) };
            let value = noise(KEY_BYTES, rng.next_u64());
            writer.send(encode(&[&b"SET"[..], format!("k{n}").as_bytes(), &value])).await;
            assert_eq!(writer.read_line().await, "+OK");
        }
        let came = reader.read_to_end().await;
        assert!(came.len() < BIG_BYTES && came[..] == big[..came.len()]);
        assert_eq!(writer.line("EXISTS n").await, ":0");
    });
}
