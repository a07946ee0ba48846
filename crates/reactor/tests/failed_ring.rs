//! A core whose ring fails stops all of them, and `join` says why. Alone in a program of its own: it breaks a ring of the process.
#![allow(unsafe_code)]

use pumice_reactor::{Config, sleep, start};
use std::os::fd::AsRawFd;
use std::sync::{Arc, mpsc};
use std::time::Duration;

fn rings() -> Vec<i32> {
    let open = std::fs::read_dir("/proc/self/fd").expect("/proc is mounted");
    let mut rings: Vec<i32> = open
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let to = std::fs::read_link(&path).ok()?;
            let is_ring = to.to_string_lossy().contains("io_uring");
            path.file_name().filter(|_| is_ring)?.to_str()?.parse().ok()
        })
        .collect();
    rings.sort_unstable();
    rings
}

#[test]
fn a_core_whose_ring_fails_stops_all_and_join_says_why() {
    let config = Config { cores: 2, ..Config::default() };
    let (began, begins) = mpsc::channel();
    let running = start(
        &config,
        Arc::new(move |_| {
            let began = began.clone();
            Box::pin(async move {
                began.send(()).expect("the test waits");
                loop {
                    sleep(Duration::from_millis(5)).await;
                }
            })
        }),
    );
    let running = running.expect("starts");
    (0..2).for_each(|_| begins.recv().expect("both begin"));
    let rings = rings();
    assert_eq!(rings.len(), 2, "{rings:?}");
    let null = std::fs::File::open("/dev/null").expect("opens");
    // SAFETY: takes no memory. One core asks for completions of what is no ring from now on.
    assert!(unsafe { libc::dup2(null.as_raw_fd(), rings[1]) } >= 0);
    let (tell, told) = mpsc::channel();
    std::thread::Builder::new().spawn(move || tell.send(running.join())).expect("a thread");
    let result = told.recv_timeout(Duration::from_secs(30)).expect("the other core stops, too");
    assert!(result.is_err());
}
