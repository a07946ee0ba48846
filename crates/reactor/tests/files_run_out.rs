//! A listener in a process that has no descriptor left. Alone in a program of its own: the limit is the process's.
#![allow(unsafe_code)]

use pumice_reactor::{ListenOptions, Listener, block_on};
use std::io::Read;
use std::net::TcpStream;
use std::os::fd::AsRawFd;

/// Sets how many descriptors this process may have; answers how many it might before.
fn limit_files(files: u64) -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes one rlimit.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) }, 0);
    let before = std::mem::replace(&mut limit.rlim_cur, files);
    // SAFETY: the kernel reads one rlimit.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
    before
}

#[test]
fn an_accept_without_a_descriptor_is_an_error_that_passes_and_loses_no_connection() {
    block_on(async {
        let listener =
            Listener::bind(&"127.0.0.1:0".parse().unwrap(), ListenOptions::default()).await.unwrap();
        let addr = listener.local_addr().to_string();
        let connect = || TcpStream::connect(&addr).unwrap();
        let mut clients: Vec<TcpStream> = (0..3).map(|_| connect()).collect();
        // The lowest that is free is what the next connection would get.
        let free = std::fs::File::open("/dev/null").map(|file| file.as_raw_fd()).unwrap();
        let before = limit_files(free as u64);
        let mut streams = Vec::new();
        let mut errors = 0;
        // It says so each time it is asked.
        while errors < 3 {
            match listener.accept().await {
                // One that had its descriptor before.
                Ok((stream, _)) => streams.push(stream),
                Err(error) => {
                    assert_eq!(error.raw_os_error(), Some(libc::EMFILE), "{error}");
                    errors += 1;
                }
            }
        }
        limit_files(before);
        clients.push(connect());
        while streams.len() < clients.len() {
            streams.push(listener.accept().await.unwrap().0);
        }
        for stream in &streams {
            stream.send_one(b"x".to_vec()).await.0.unwrap();
        }
        for client in &mut clients {
            client.read_exact(&mut [0]).unwrap();
        }
    });
}
