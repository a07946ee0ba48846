//! What it costs to wake a task on another core, asleep or busy, and what 64 wakes at once cost.
//!
//! `cargo bench -p pumice-reactor --bench hop`. Without `--bench` (under `cargo test`) it runs once and small.

use pumice_reactor::sync::{Event, Gate};
use pumice_reactor::{Config, CoreId, metrics, now, sleep, spawn_on, start, yield_now};
use std::sync::Arc;
use std::time::Duration;

/// Round trips between two gates, one on each core; the far core also spins if `busy`.
async fn round_trips(name: &str, rounds: u64, waiters: u64, busy: bool) {
    let (there, back) = (Arc::new(Gate::new(0)), Arc::new(Gate::new(0)));
    let stop = Arc::new(Event::new());
    for waiter in 0..waiters {
        let (there, back) = (Arc::clone(&there), Arc::clone(&back));
        spawn_on(CoreId(1), move || {
            Box::pin(async move {
                for round in 1..=rounds {
                    there.wait_for(round).await.expect("opens");
                    // The last to be woken answers.
                    if waiter == waiters - 1 {
                        back.open_to(round);
                    }
                }
            })
        });
    }
    if busy {
        let stop = Arc::clone(&stop);
        spawn_on(CoreId(1), move || {
            Box::pin(async move {
                while !stop.is_set() {
                    yield_now().await;
                }
            })
        });
    }
    sleep(Duration::from_millis(1)).await;
    let (start, before) = (now(), metrics::all_cores());
    for round in 1..=rounds {
        there.open_to(round);
        back.wait_for(round).await.expect("opens");
    }
    let (took, after) = (now() - start, metrics::all_cores());
    stop.set();
    let sleeps = after[1].sleeps - before[1].sleeps;
    println!(
        "{name:32} {:>8.2} us a round trip, {:.2} sleeps of the far core",
        took.as_secs_f64() * 1e6 / rounds as f64,
        sleeps as f64 / rounds as f64,
    );
}

fn main() {
    let rounds = if std::env::args().any(|argument| argument == "--bench") { 20_000 } else { 50 };
    let done = Arc::new(Event::new());
    let config = Config { cores: 2, ..Config::default() };
    let running = start(
        &config,
        Arc::new(move |core| {
            let done = Arc::clone(&done);
            Box::pin(async move {
                if core != CoreId(0) {
                    return done.wait().await;
                }
                round_trips("sleeping core, one task", rounds, 1, false).await;
                round_trips("sleeping core, 64 tasks", rounds, 64, false).await;
                round_trips("busy core, one task", rounds, 1, true).await;
                round_trips("busy core, 64 tasks", rounds, 64, true).await;
                done.set();
            })
        }),
    );
    running.expect("starts").join().expect("stops");
}
