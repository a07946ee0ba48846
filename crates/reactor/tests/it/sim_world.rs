//! The simulated world's clock, cores and hosts.

use pumice_reactor::sim::{Halt, HostOptions, World};
use pumice_reactor::sync::{Gate, Notify};
use pumice_reactor::{CoreId, core, now, sleep, spawn, spawn_on, timeout, yield_now};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

fn one_host(seed: u64) -> (World, u32) {
    let world = World::new(seed);
    let host = world.add_host(HostOptions::default());
    (world, host)
}

#[test]
fn an_hour_of_sleep_passes_at_once() {
    let (world, host) = one_host(1);
    let slept = world.block_on(host, async {
        let start = now();
        sleep(Duration::from_secs(3000)).await;
        now().since(start)
    });
    let slept = slept.expect("the sleep ends");
    assert!(slept >= Duration::from_secs(3000) && slept < Duration::from_secs(3001), "{slept:?}");
}

#[test]
fn timers_fire_in_the_order_of_their_deadlines() {
    let (world, host) = one_host(2);
    let order = world.block_on(host, async {
        let order = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
        let tasks: Vec<_> = [30u64, 10, 20, 10, 0]
            .into_iter()
            .map(|ms| {
                let order = std::rc::Rc::clone(&order);
                spawn(async move {
                    sleep(Duration::from_millis(ms)).await;
                    order.borrow_mut().push(ms);
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("runs to its end");
        }
        order.take()
    });
    assert_eq!(order, Ok(vec![0, 10, 10, 20, 30]));
}

#[test]
fn cores_of_one_server_wake_each_other() {
    let (world, host) = one_host(3);
    let answer = world.block_on(host, async {
        let gate = Arc::new(Gate::new(0));
        let notify = Arc::new(Notify::new());
        let (there, back) = (Arc::clone(&gate), Arc::clone(&notify));
        spawn_on(CoreId(1), move || {
            Box::pin(async move {
                there.wait_for(5).await.expect("opens");
                assert_eq!(core(), CoreId(1));
                back.notify_one();
            })
        });
        sleep(Duration::from_millis(1)).await;
        gate.open_to(5);
        timeout(Duration::from_millis(1), notify.notified()).await
    });
    assert_eq!(answer, Ok(Ok(())));
}

#[test]
fn a_busy_loop_sees_time_pass() {
    let (world, host) = one_host(4);
    let turns = world.block_on(host, async {
        let start = now();
        let mut turns = 0u64;
        while now().since(start) < Duration::from_millis(1) {
            yield_now().await;
            turns += 1;
        }
        turns
    });
    assert!(turns.is_ok_and(|turns| turns > 500), "{turns:?}");
}

#[test]
fn a_deadlock_and_an_endless_wait_are_told_apart() {
    let (world, host) = one_host(5);
    let stuck = world.block_on(host, async { Notify::new().notified().await });
    assert_eq!(stuck, Err(Halt::Idle));
    let endless = world.block_on_for(host, Duration::from_secs(2), async {
        loop {
            sleep(Duration::from_millis(100)).await;
        }
    });
    assert_eq!(endless, Err::<(), _>(Halt::OutOfTime));
}

#[test]
fn a_crash_drops_every_task_and_a_restart_begins_anew() {
    let (world, host) = one_host(6);
    let ticks = Arc::new(AtomicU64::new(0));
    let dropped = Arc::new(AtomicU64::new(0));
    struct Drops(Arc<AtomicU64>);
    impl Drop for Drops {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    for core in 0..2 {
        let (ticks, guard) = (Arc::clone(&ticks), Drops(Arc::clone(&dropped)));
        world.run(host, core, async move {
            let _guard = guard;
            loop {
                sleep(Duration::from_millis(10)).await;
                ticks.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    world.run_for(Duration::from_millis(105));
    assert_eq!(ticks.load(Ordering::Relaxed), 20);
    world.crash(host);
    assert_eq!(dropped.load(Ordering::Relaxed), 2);
    assert!(!world.is_up(host));
    world.run_for(Duration::from_millis(100));
    assert_eq!(ticks.load(Ordering::Relaxed), 20);
    world.restart(host);
    assert_eq!(world.block_on(host, async { 7 }), Ok(7));
}

#[test]
fn a_task_may_crash_its_own_host() {
    let (world, host) = one_host(7);
    let handle = world.clone();
    let answer = world.block_on(host, async move {
        handle.crash(0);
        sleep(Duration::from_secs(1)).await;
    });
    assert_eq!(answer, Err(Halt::HostDown));
}

#[test]
fn wall_clocks_jump_and_monotonic_time_does_not() {
    let (world, host) = one_host(8);
    let (wall, start) = (world.wall_ms(host), world.now());
    world.jump_wall(host, -86_400_000);
    world.run_for(Duration::from_secs(1));
    assert_eq!(world.wall_ms(host), wall - 86_400_000 + 1000);
    assert_eq!(world.now().since(start), Duration::from_secs(1));
    let seen = world.block_on(host, async { pumice_reactor::wall_ms() });
    assert_eq!(seen, Ok(wall - 86_400_000 + 1000));
    // Microseconds are those of virtual time.
    world.run_for(Duration::from_micros(1234));
    let seen = world.block_on(host, async { pumice_reactor::wall_us() });
    assert_eq!(seen, Ok((wall - 86_400_000 + 1000) * 1000 + 1234));
}
