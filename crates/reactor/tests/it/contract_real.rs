//! The driver contract on the kernel, with default settings and with each of the rarer ways the driver can go.

use crate::contract::{Check, Place};
use pumice_reactor::sync::Event;
use pumice_reactor::{Addr, Config, KernelInterface, Without, start};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// All of 127.0.0.0/8 is this machine: an address for each process and check.
fn own_address() -> Addr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let (process, check) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let (high, low) = (1 + process / 256 % 250, process % 256);
    format!("127.{high}.{low}.{}:0", 1 + check % 250).parse().unwrap()
}

fn run_with(config: &Config, many: usize, check: Check) {
    let dir = tempfile::tempdir().unwrap();
    let any_port = "127.0.0.1:0".parse().unwrap();
    let place = Place { dir: dir.path().to_owned(), any_port, own_address: own_address(), many };
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

mod by_default {
    use super::*;

    fn run(_name: &str, check: Check) {
        run_with(&Config::default(), 1000, check);
    }

    contract_tests!(run);
}

/// As on the oldest kernel, with no memory to lock.
mod without_features {
    use super::*;

    fn run(_name: &str, check: Check) {
        let without = Without {
            deferred_work: true,
            shared_receive_buffers: true,
            multishot_accept: true,
            ..Without::default()
        };
        run_with(&Config { registered_buffer_bytes: 0, without, ..Config::default() }, 300, check);
    }

    contract_tests!(run);
}

/// As on kernels that have multishot accept only: each ring finds out with its first receive.
mod with_refused_receives {
    use super::*;

    fn run(_name: &str, check: Check) {
        let without = Without { multishot_receive: true, ..Without::default() };
        run_with(&Config { without, ..Config::default() }, 300, check);
    }

    contract_tests!(run);
}

/// As where there is no io_uring.
mod by_epoll {
    use super::*;

    fn run(_name: &str, check: Check) {
        run_with(&Config { interface: KernelInterface::Epoll, ..Config::default() }, 1000, check);
    }

    contract_tests!(run);
}

/// As there, with a file queue that is full all the time and receives of a few bytes.
mod by_epoll_with_tiny_queues {
    use super::*;

    fn run(_name: &str, check: Check) {
        let interface = KernelInterface::Epoll;
        run_with(
            &Config { interface, queue_depth: 1, receive_buffer_bytes: 700, ..Config::default() },
            300,
            check,
        );
    }

    contract_tests!(run);
}

/// Queues that overflow and receive buffers that run out all the time.
mod with_tiny_queues {
    use super::*;

    fn run(_name: &str, check: Check) {
        let config = Config {
            queue_depth: 2,
            registered_buffer_bytes: 64 << 10,
            small_receive_buffers: 2,
            receive_buffers: 2,
            receive_buffer_bytes: 700,
            ..Config::default()
        };
        run_with(&config, 300, check);
    }

    contract_tests!(run);
}
