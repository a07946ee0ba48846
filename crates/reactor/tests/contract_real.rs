//! The driver contract on the kernel, with default settings and with each of the rarer ways the driver can go.

#[macro_use]
mod contract;

use contract::{Check, Place};
use pumice_reactor::sync::Event;
use pumice_reactor::{Config, start};
use std::sync::Arc;

fn run_with(config: &Config, many: usize, check: Check) {
    let dir = tempfile::tempdir().unwrap();
    let place = Place { dir: dir.path().to_owned(), any_port: "127.0.0.1:0".parse().unwrap(), many };
    let config = Config { cores: 2, ..config.clone() };
    let done = Arc::new(Event::new());
    let running = start(
        &config,
        Arc::new(move |core| {
            let (place, done) = (place.clone(), Arc::clone(&done));
            Box::pin(async move {
                if core.0 == 0 {
                    check(place).await;
                    done.set();
                } else {
                    done.wait().await;
                }
            })
        }),
    );
    running.unwrap().join().unwrap();
}

fn run(_name: &str, check: Check) {
    run_with(&Config::default(), 1000, check);
}

contract_tests!(run);
