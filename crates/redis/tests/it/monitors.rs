//! Lines for monitors come from every core; who is none any more gets none.

#![allow(clippy::disallowed_methods, reason = "threads stand for cores")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use pumice_redis::clients::Clients;

#[test]
fn a_line_that_another_core_is_telling_does_not_reach_who_is_no_monitor_any_more() {
    let clients = Arc::new(Clients::default());
    let client = clients.add(1, String::new(), String::new(), 0, 0).expect("room for one");
    let is_over = Arc::new(AtomicBool::new(false));
    let telling = {
        let (clients, is_over) = (clients.clone(), is_over.clone());
        thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                clients.monitor(b"+line\r\n");
            }
        })
    };
    let mut late = 0;
    for _ in 0..300_000 {
        clients.set_monitor(&client, true);
        // So that the other waits for the queue at times.
        for _ in 0..50 {
            client.take_monitor_lines();
        }
        clients.set_monitor(&client, false);
        for _ in 0..20 {
            late += client.take_monitor_lines().len();
        }
    }
    is_over.store(true, Ordering::Relaxed);
    telling.join().expect("told");
    assert_eq!(late, 0, "lines came after the end of MONITOR");
}
