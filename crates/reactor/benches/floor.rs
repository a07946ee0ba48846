//! The least a Redis server can be: parses RESP, answers a constant, keeps nothing.
//!
//! `cargo bench -p pumice-reactor --bench floor -- --port 7777 [--reply BYTES] [--buffers COUNT] [--buffer-bytes BYTES]` serves until SIGINT, then prints
//! commands, CPU per command and the reactor's counters; point redis-benchmark at it. Under `cargo test` it serves a
//! client of its own for a moment.
#![allow(unsafe_code)]

use bytes::Bytes;
use pumice_reactor::{Addr, Config, ListenOptions, Listener, Stream, block_on_with, metrics, signal, spawn};
use std::cell::Cell;
use std::io;
use std::rc::Rc;

fn cpu_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// Counts whole commands over however the bytes are cut.
#[derive(Default)]
struct Parser {
    /// Digits of the number being read, after `*` or `$`.
    number: usize,
    arguments: usize,
    /// Bytes of the current argument still to come, its line end included.
    skip: usize,
    in_number: bool,
    is_count: bool,
}

impl Parser {
    fn feed(&mut self, mut bytes: &[u8]) -> usize {
        let mut commands = 0;
        while !bytes.is_empty() {
            if self.skip > 0 {
                let step = self.skip.min(bytes.len());
                bytes = &bytes[step..];
                self.skip -= step;
                if self.skip == 0 {
                    self.arguments -= 1;
                    commands += usize::from(self.arguments == 0);
                }
                continue;
            }
            match bytes[0] {
                b'*' | b'$' => (self.number, self.is_count, self.in_number) = (0, bytes[0] == b'*', true),
                digit @ b'0'..=b'9' if self.in_number => {
                    self.number = self.number * 10 + usize::from(digit - b'0')
                }
                b'\n' if self.in_number => {
                    self.in_number = false;
                    if self.is_count { self.arguments = self.number } else { self.skip = self.number + 2 }
                }
                _ => {}
            }
            bytes = &bytes[1..];
        }
        commands
    }
}

async fn serve(mut stream: Stream, reply: Bytes, served: Rc<Cell<usize>>) -> io::Result<()> {
    let mut parser = Parser::default();
    let mut out: Vec<u8> = Vec::new();
    let mut parts: Vec<Bytes> = Vec::new();
    loop {
        let bytes = stream.recv().await?;
        if bytes.is_empty() {
            return Ok(());
        }
        let mut commands = parser.feed(&bytes);
        drop(bytes);
        while let Some(bytes) = stream.try_recv() {
            commands += parser.feed(&bytes?);
        }
        if commands == 0 {
            continue;
        }
        served.set(served.get() + commands);
        // Large replies go out by reference, small ones in one piece.
        if reply.len() >= 4096 {
            parts.extend(std::iter::repeat_n(&reply, commands).cloned());
            let result;
            (result, parts) = stream.send_parts(parts).await;
            parts.clear();
            result?;
        } else {
            (0..commands).for_each(|_| out.extend_from_slice(&reply));
            let result;
            (result, out) = stream.send_one(out).await;
            out.clear();
            result?;
        }
    }
}

async fn listen(addr: &Addr, reply: Bytes, served: Rc<Cell<usize>>) -> Addr {
    let listener = Listener::bind(addr, ListenOptions::default()).await.expect("listens");
    let addr = listener.local_addr().clone();
    spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            spawn(serve(stream, reply.clone(), Rc::clone(&served)));
        }
    });
    addr
}

fn value_of(arguments: &[String], name: &str) -> Option<usize> {
    let at = arguments.iter().position(|argument| argument == name)?;
    arguments.get(at + 1)?.parse().ok()
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let port = value_of(&arguments, "--port");
    let value = vec![b'x'; value_of(&arguments, "--reply").unwrap_or(100)];
    let mut reply = format!("${}\r\n", value.len()).into_bytes();
    reply.extend_from_slice(&value);
    reply.extend_from_slice(b"\r\n");
    let reply = Bytes::from(reply);
    let mut config = Config { take_signals: port.is_some(), ..Config::default() };
    if let Some(count) = value_of(&arguments, "--buffers") {
        config.receive_buffers = count as u16;
    }
    if let Some(bytes) = value_of(&arguments, "--buffer-bytes") {
        config.receive_buffer_bytes = bytes as u32;
    }
    let result = block_on_with(&config, async move {
        let served = Rc::new(Cell::new(0));
        let addr = format!("127.0.0.1:{}", port.unwrap_or(0)).parse().expect("an address");
        let addr = listen(&addr, reply.clone(), Rc::clone(&served)).await;
        let cpu = cpu_seconds();
        if port.is_some() {
            signal().await.expect("a signal");
        } else {
            let mut client = Stream::connect(&addr).await.expect("connects");
            for _ in 0..100 {
                let command = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n".repeat(3);
                client.send_one(command).await.0.expect("sends");
                let mut bytes = 0;
                while bytes < 3 * reply.len() {
                    bytes += client.recv().await.expect("answers").len();
                }
            }
            assert_eq!(served.get(), 300);
        }
        let cpu = cpu_seconds() - cpu;
        let served = served.get() as f64;
        println!(
            "{served} commands, {:.2} us CPU each, {:.0} per CPU second",
            cpu / served * 1e6,
            served / cpu
        );
        for (name, value) in metrics::all_cores()[0].named() {
            println!("{name:16} {value:>12} {:>8.3} a command", value as f64 / served);
        }
    });
    result.expect("a ring");
}
