//! Signals reach `signal()` instead of ending the process.
//! Alone in a program of its own, without a test harness: its thread would take them.

use pumice_reactor::sync::Event;
use pumice_reactor::{Config, CoreId, Signal, now, signal, spawn, spawn_on, start, yield_now};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::process::Command;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

fn send(name: &str) {
    let status = Command::new("kill").args([name, &std::process::id().to_string()]).status();
    assert!(status.expect("kill runs").success());
}

fn main() {
    let config = Config { cores: 2, take_signals: true, ..Config::default() };
    let done = Arc::new(Event::new());
    let running = start(
        &config,
        Arc::new(move |core| {
            let done = Arc::clone(&done);
            Box::pin(async move {
                if core != CoreId(0) {
                    return done.wait().await;
                }
                for (name, expected) in
                    [("-TERM", Signal::Terminate), ("-INT", Signal::Interrupt), ("-HUP", Signal::Hangup)]
                {
                    let waiting = spawn(signal());
                    spawn_on(CoreId(1), move || Box::pin(async move { send(name) }));
                    assert_eq!(waiting.await.expect("not aborted").expect("a signal"), expected);
                }
                // Who waited goes away when it has come, but was not told: who asks next is.
                {
                    let mut waiting = pin!(signal());
                    poll_fn(|context| {
                        assert!(waiting.as_mut().poll(context).is_pending());
                        Poll::Ready(())
                    })
                    .await;
                    send("-TERM");
                    let other_work = now();
                    while now().since(other_work) < Duration::from_millis(20) {
                        yield_now().await;
                    }
                }
                assert_eq!(signal().await.expect("a signal"), Signal::Terminate);
                // Nobody waits: held back all the same.
                drop(spawn(signal()));
                send("-TERM");
                done.set();
            })
        }),
    );
    running.expect("starts").join().expect("stops");
}
