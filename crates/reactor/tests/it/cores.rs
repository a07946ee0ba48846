//! Starting and stopping real cores.

use pumice_reactor::sync::{Event, Gate};
use pumice_reactor::{
    Addr, Config, CoreId, IoBuf, ListenOptions, Listener, ListenerShare, Stream, block_on, core, core_count,
    metrics, now, on_core, sleep, spawn, spawn_on, start, yield_now,
};
use std::future::pending;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

#[test]
fn a_panic_on_one_core_stops_all_and_reaches_join() {
    let config = Config { cores: 3, ..Config::default() };
    let running = start(
        &config,
        Arc::new(|core| {
            Box::pin(async move {
                sleep(Duration::from_millis(20)).await;
                assert_ne!(core, CoreId(1), "an invariant is broken");
                pending::<()>().await;
            })
        }),
    );
    let running = running.expect("starts");
    let panic = catch_unwind(AssertUnwindSafe(|| running.join())).expect_err("goes on here");
    let text = panic.downcast_ref::<String>().expect("a message");
    assert!(text.contains("an invariant is broken"), "{text}");
}

#[test]
fn what_outlives_its_core_is_dropped_harmlessly() {
    let (stream, listener, buf) = block_on(async {
        let listener =
            Listener::bind(&"127.0.0.1:0".parse().unwrap(), ListenOptions::default()).await.unwrap();
        let mut stream = Stream::connect(listener.local_addr()).await.unwrap();
        let (mut far, _) = listener.accept().await.unwrap();
        // Receiving, with an operation in flight.
        drop(pumice_reactor::timeout(Duration::from_millis(1), stream.recv()).await);
        spawn(async move { far.recv().await.map(drop) });
        yield_now().await;
        (stream, listener, IoBuf::zeroed(4096))
    });
    assert!(!on_core());
    drop((stream, listener));
    drop(buf.freeze());
    drop(IoBuf::zeroed(1 << 20));
}

struct SetOnDrop(Arc<Event>);

impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.set();
    }
}

#[test]
fn a_core_that_has_stopped_ignores_messages() {
    let (event, stopped) = (Arc::new(Event::new()), Arc::new(Event::new()));
    let config = Config { cores: 2, ..Config::default() };
    let running = start(
        &config,
        Arc::new(move |core| {
            let (event, stopped) = (Arc::clone(&event), Arc::clone(&stopped));
            Box::pin(async move {
                if core == CoreId(1) {
                    let guard = SetOnDrop(stopped);
                    spawn(async move {
                        let _guard = guard;
                        event.wait().await;
                    });
                    return yield_now().await;
                }
                // A core that stops takes no more messages before it drops its tasks.
                stopped.wait().await;
                event.set();
                spawn_on(CoreId(1), || Box::pin(async { panic!("the core has stopped") }));
            })
        }),
    );
    running.expect("starts").join().expect("stops");
}

#[test]
fn every_core_accepts_from_one_address() {
    let dir = tempfile::tempdir().unwrap();
    for addr in ["127.0.0.1:0".to_owned(), format!("unix:{}", dir.path().join("socket").display())] {
        let served = Arc::new([const { AtomicUsize::new(0) }; 2]);
        let done = Arc::new(Event::new());
        let (counts, path) = (Arc::clone(&served), addr.clone());
        let config = Config { cores: 2, ..Config::default() };
        let running = start(
            &config,
            Arc::new(move |id| {
                let (served, done, addr) = (Arc::clone(&counts), Arc::clone(&done), path.clone());
                Box::pin(async move {
                    if id != CoreId(0) {
                        return done.wait().await;
                    }
                    let addr: Addr = addr.parse().unwrap();
                    let listener = Listener::bind(&addr, ListenOptions::default()).await.unwrap();
                    let addr = listener.local_addr().clone();
                    let share = listener.share();
                    let far = Arc::clone(&served);
                    spawn_on(CoreId(1), move || Box::pin(count_accepts(share, far)));
                    spawn(count_accepts(listener.share(), Arc::clone(&served)));
                    let mut streams = Vec::new();
                    for _ in 0..200 {
                        let mut stream = Stream::connect(&addr).await.unwrap();
                        assert_eq!(stream.recv().await.unwrap().len(), 1);
                        streams.push(stream);
                    }
                    let cores = metrics::all_cores();
                    assert_eq!(cores.len(), core_count());
                    assert!(cores[0].connections >= 200 && cores[0].enters > 0);
                    done.set();
                })
            }),
        );
        running.expect("starts").join().expect("stops");
        let served: Vec<usize> = served.iter().map(|count| count.load(Ordering::SeqCst)).collect();
        assert_eq!(served.iter().sum::<usize>(), 200, "{addr}: {served:?}");
        if addr.starts_with("unix:") {
            // A socket left behind is taken over.
            block_on(async {
                drop(Listener::bind(&addr.parse().unwrap(), ListenOptions::default()).await.unwrap())
            });
        }
    }
}

async fn count_accepts(share: ListenerShare, served: Arc<[AtomicUsize; 2]>) {
    let listener = share.listen();
    while let Ok((stream, _)) = listener.accept().await {
        served[usize::from(core().0)].fetch_add(1, Ordering::SeqCst);
        spawn(async move {
            let _ = stream.send_one(vec![1]).await;
            pending::<()>().await;
        });
    }
}

/// A root is woken by another core, which is busy, while its own makes up its mind to sleep.
#[test]
fn no_wake_of_a_root_is_lost() {
    const ROUNDS: u64 = 50_000;
    let (there, back) = (Arc::new(Gate::new(0)), Arc::new(Gate::new(0)));
    let (ended, end) = mpsc::channel();
    let config = Config { cores: 2, ..Config::default() };
    let running = start(
        &config,
        Arc::new(move |core| {
            let (there, back, ended) = (Arc::clone(&there), Arc::clone(&back), ended.clone());
            Box::pin(async move {
                if core == CoreId(1) {
                    spawn(async {
                        loop {
                            yield_now().await;
                        }
                    });
                }
                for round in 1..=ROUNDS {
                    if core == CoreId(0) {
                        there.open_to(round);
                        back.wait_for(round).await.unwrap();
                    } else {
                        there.wait_for(round).await.unwrap();
                        back.open_to(round);
                    }
                }
                ended.send(()).unwrap();
            })
        }),
    );
    let running = running.expect("starts");
    for _ in 0..2 {
        end.recv_timeout(Duration::from_secs(60)).expect("a root waits for a wake that was lost");
    }
    running.join().expect("stops");
}

/// Core 0 wakes core 1, which sleeps, and works on before it sends the wake-up; a thread wakes core 1 meanwhile.
#[test]
fn a_core_that_works_on_keeps_nobody_from_waking_another() {
    let (near, far) = (Arc::new(Event::new()), Arc::new(Event::new()));
    let is_heard = Arc::new(AtomicBool::new(false));
    let config = Config { cores: 2, ..Config::default() };
    let running = start(
        &config,
        Arc::new(move |core| {
            let (near, far, is_heard) = (Arc::clone(&near), Arc::clone(&far), Arc::clone(&is_heard));
            Box::pin(async move {
                if core == CoreId(1) {
                    let first = spawn(async move { near.wait().await });
                    far.wait().await;
                    is_heard.store(true, Ordering::SeqCst);
                    first.await.unwrap();
                } else {
                    sleep(Duration::from_millis(100)).await;
                    near.set();
                    std::thread::Builder::new().spawn(move || far.set()).expect("a thread");
                    let began = now();
                    while !is_heard.load(Ordering::SeqCst) && now().since(began) < Duration::from_secs(20) {
                        std::hint::spin_loop();
                    }
                    assert!(is_heard.load(Ordering::SeqCst), "core 1 slept while core 0 worked");
                }
            })
        }),
    );
    running.expect("starts").join().expect("stops");
}
