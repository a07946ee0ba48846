//! What a listening socket meets: one that is there already, and whose owner takes no connections.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use pumice_reactor::{
    Addr, ListenOptions, Listener, Stream, block_on, sleep, somebody_listens, spawn, timeout, yield_now,
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
    const MANY: usize = 20;
    let dir = tempfile::tempdir().unwrap();
    let addr = Addr::Unix(dir.path().join("socket"));
    block_on(async {
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
    });
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
