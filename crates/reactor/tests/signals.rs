//! Signals reach `signal()` instead of ending the process.
//! Alone in a program of its own, without a test harness: its thread would take them.

use pumice_reactor::sync::Event;
use pumice_reactor::{Config, CoreId, Signal, signal, spawn, spawn_on, start};
use std::process::Command;
use std::sync::Arc;

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
                // Nobody waits: held back all the same.
                drop(spawn(signal()));
                send("-TERM");
                done.set();
            })
        }),
    );
    running.expect("starts").join().expect("stops");
}
