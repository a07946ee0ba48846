//! What one loopback TCP stream carries: the roof over every large-value figure.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::Result;

/// Bytes a second of one bare TCP stream over loopback, 1 MiB writes and reads.
pub fn loopback_bytes_per_second(seconds: f64) -> Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let addr = listener.local_addr()?;
    let writer = std::thread::spawn(move || -> std::io::Result<()> {
        let mut stream = TcpStream::connect(addr)?;
        let block = vec![7u8; 1 << 20];
        let until = Instant::now() + Duration::from_secs_f64(seconds);
        while Instant::now() < until {
            stream.write_all(&block)?;
        }
        Ok(())
    });
    let (mut stream, _) = listener.accept()?;
    let mut block = vec![0u8; 1 << 20];
    let (started, mut bytes) = (Instant::now(), 0usize);
    loop {
        match stream.read(&mut block)? {
            0 => break,
            n => bytes += n,
        }
    }
    let rate = bytes as f64 / started.elapsed().as_secs_f64();
    writer.join().map_err(|_| "the writing thread panicked")??;
    Ok(rate)
}
