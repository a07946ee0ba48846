//! What a listening socket meets: one that is there already, and whose owner takes no connections; and what its connections
//! have from it.
#![allow(unsafe_code)]

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use pumice_reactor::{
    Addr, Config, KernelInterface, ListenOptions, Listener, Stream, block_on, block_on_with, sleep,
    somebody_listens, spawn, timeout, yield_now,
};

/// Listens at `path` and accepts nobody, with no room for one more.
fn full_listener(path: &Path) -> (Listener, UnixStream) {
    let options = ListenOptions { backlog: 0, ..ListenOptions::default() };
    let addr = Addr::Unix(path.to_owned());
    let listener = block_on(async { Listener::bind(&addr, options).await.unwrap() });
    // A backlog of none takes one.
    (listener, UnixStream::connect(path).unwrap())
}

/// What `work` answers, on a thread of its own: one that waits for ever fails its test and not the whole program.
fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, told) = mpsc::channel();
    std::thread::Builder::new().spawn(move || tell.send(work())).expect("a thread");
    told.recv_timeout(Duration::from_secs(60)).expect("it waits for somebody who takes no connections")
}

#[test]
fn a_socket_whose_owner_takes_no_connections_is_in_use_and_nobody_waits_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let (_listener, _client) = full_listener(&path);
    let (asked, addr) = (path.clone(), Addr::Unix(path.clone()));
    assert!(in_time(move || somebody_listens(&asked)).unwrap());
    let error =
        in_time(move || block_on(async { Listener::bind(&addr, ListenOptions::default()).await.err() }));
    assert_eq!(error.expect("it is taken").kind(), std::io::ErrorKind::AddrInUse);
    assert!(path.exists(), "the socket of somebody else was removed");
}

/// The kernel answers EAGAIN to whoever does not wait: the driver does.
#[test]
fn connections_beyond_a_full_backlog_are_made_once_there_is_room() {
    for interface in [KernelInterface::Any, KernelInterface::Epoll] {
        let config = Config { interface, ..Config::default() };
        block_on_with(&config, connect_beyond_a_full_backlog()).unwrap();
    }
}

async fn connect_beyond_a_full_backlog() {
    const MANY: usize = 20;
    let dir = tempfile::tempdir().unwrap();
    let addr = Addr::Unix(dir.path().join("socket"));
    let options = ListenOptions { backlog: 0, ..ListenOptions::default() };
    let listener = Listener::bind(&addr, options).await.unwrap();
    let connecting: Vec<_> = (0..MANY)
        .map(|_| {
            let addr = addr.clone();
            spawn(async move { Stream::connect(&addr).await.unwrap().recv().await.unwrap().len() })
        })
        .collect();
    // All are under way, and nobody takes any.
    yield_now().await;
    sleep(Duration::from_millis(20)).await;
    assert!(connecting.iter().all(|task| !task.is_finished()));
    for _ in 0..MANY {
        let (stream, _) =
            timeout(Duration::from_secs(60), listener.accept()).await.expect("all come").unwrap();
        stream.send_one(b"x".to_vec()).await.0.unwrap();
    }
    for task in connecting {
        assert_eq!(task.await.unwrap(), 1);
    }
}

#[test]
fn a_socket_that_a_process_left_behind_is_not_in_use() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    assert!(!somebody_listens(&path).unwrap());
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists() && !somebody_listens(&path).unwrap());
    block_on(async { Listener::bind(&Addr::Unix(path), ListenOptions::default()).await.unwrap() });
}

/// An option of the socket of this process that is connected to `peer`.
fn option_of_connection(peer: SocketAddr, level: i32, name: i32) -> i32 {
    let connected = |fd: RawFd| {
        // SAFETY: no memory is passed.
        let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
        if copy < 0 {
            return None; // another test has just closed its own
        }
        // SAFETY: the copy is open, and owned by nobody else.
        let stream = unsafe { TcpStream::from_raw_fd(copy) };
        stream.peer_addr().is_ok_and(|found| found == peer).then_some(stream)
    };
    let entries = std::fs::read_dir("/proc/self/fd").expect("the process's own descriptors").flatten();
    let sockets = entries.filter(|entry| {
        std::fs::read_link(entry.path()).is_ok_and(|target| target.to_string_lossy().starts_with("socket:"))
    });
    let mut fds = sockets.map(|entry| entry.file_name().to_string_lossy().parse().expect("a number"));
    let stream = fds.find_map(connected).expect("it was accepted");
    let (mut value, mut len) = (0i32, size_of::<i32>() as libc::socklen_t);
    // SAFETY: the kernel writes four bytes at most.
    let result =
        unsafe { libc::getsockopt(stream.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut len) };
    assert_eq!(result, 0, "getsockopt: {}", std::io::Error::last_os_error());
    value
}

/// A peer that lost power, or its network, says nothing: without these it would be a client for ever.
#[test]
fn a_connection_is_asked_whether_it_lives_and_sends_at_once() {
    block_on(async {
        for addr in ["127.0.0.1:0", "[::1]:0"] {
            let addr: Addr = addr.parse().unwrap();
            let Ok(listener) = Listener::bind(&addr, ListenOptions::default()).await else {
                assert_ne!(addr.to_string(), "127.0.0.1:0", "no machine is without it");
                let _ = writeln!(std::io::stderr(), "skipped: this machine has no IPv6");
                continue;
            };
            let Addr::Tcp(at) = listener.local_addr() else { unreachable!("a TCP address") };
            let client = TcpStream::connect(at).unwrap();
            let _accepted = listener.accept().await.unwrap();
            let of = |level, name| option_of_connection(client.local_addr().unwrap(), level, name);
            assert_eq!(of(libc::SOL_SOCKET, libc::SO_KEEPALIVE), 1);
            assert_eq!(of(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE), 300);
            assert_eq!(of(libc::IPPROTO_TCP, libc::TCP_KEEPINTVL), 100);
            assert_eq!(of(libc::IPPROTO_TCP, libc::TCP_KEEPCNT), 3);
            assert_eq!(of(libc::IPPROTO_TCP, libc::TCP_NODELAY), 1);
        }
    });
}
