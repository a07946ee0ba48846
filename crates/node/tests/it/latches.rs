//! Key latches: exclusion, order, cancellation, and no deadlock over cores.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use pumice_base::rng::Rng;
use pumice_node::{KeyHash, Latches};
use pumice_reactor::{block_on, spawn, yield_now};

fn key(n: u64) -> KeyHash {
    // One stripe per n: stripes are the top 12 bits.
    KeyHash(n << 52)
}

#[test]
fn a_held_key_is_refused_and_free_again_after_the_drop() {
    let latches = Latches::default();
    let held = latches.try_latch(&[key(1), key(2), key(1)]).expect("free");
    assert!(latches.try_latch(&[key(2)]).is_none());
    assert!(latches.try_latch(&[key(3), key(1)]).is_none());
    assert!(latches.try_latch(&[key(3)]).is_some(), "a refused set gives back what it took");
    drop(held);
    assert!(latches.try_latch(&[key(1), key(2)]).is_some());
}

#[test]
fn waiters_are_served_first_come_first_served() {
    block_on(async {
        let latches = Latches::default();
        let order: Rc<RefCell<Vec<u64>>> = Rc::default();
        let held = latches.try_latch(&[key(7)]).unwrap();
        let mut tasks = Vec::new();
        for n in 0..5 {
            let (latches, order) = (latches.clone(), order.clone());
            tasks.push(spawn(async move {
                let _held = latches.latch(&[key(7)]).await;
                order.borrow_mut().push(n);
                yield_now().await;
            }));
            yield_now().await; // let it queue
        }
        drop(held);
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*order.borrow(), [0, 1, 2, 3, 4]);
        assert_eq!(latches.waits(), 5);
        assert!(latches.try_latch(&[key(7)]).is_some());
    });
}

async fn poll_once<F: Future>(mut future: Pin<&mut F>) -> Option<F::Output> {
    std::future::poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

#[test]
fn who_was_called_is_overtaken_while_it_wakes_up_and_then_handed_the_stripe() {
    block_on(async {
        let latches = Latches::default();
        let held = latches.try_latch(&[key(3)]).unwrap();
        let mut waiter = Box::pin(latches.latch(&[key(3)]));
        assert!(poll_once(waiter.as_mut()).await.is_none());
        drop(held);
        // It was called, and has not looked yet: the stripe is free for others, again and again.
        for _ in 0..3 {
            drop(latches.try_latch(&[key(3)]).expect("left free"));
        }
        let overtaking = latches.try_latch(&[key(3)]).expect("left free");
        assert!(poll_once(waiter.as_mut()).await.is_none());
        // Now it came in vain.
        drop(overtaking);
        assert!(latches.try_latch(&[key(3)]).is_none(), "handed over, never free in between");
        drop(poll_once(waiter.as_mut()).await.expect("its own by now"));
        assert!(latches.try_latch(&[key(3)]).is_some());
    });
}

#[test]
fn a_waiter_that_was_called_and_goes_away_has_the_next_one_called() {
    block_on(async {
        let latches = Latches::default();
        let held = latches.try_latch(&[key(1)]).unwrap();
        let mut first = Box::pin(latches.latch(&[key(1)]));
        assert!(poll_once(first.as_mut()).await.is_none());
        let was_in = Rc::new(Cell::new(false));
        let second = {
            let (latches, was_in) = (latches.clone(), was_in.clone());
            spawn(async move {
                drop(latches.latch(&[key(1)]).await);
                was_in.set(true);
            })
        };
        yield_now().await;
        drop(held);
        yield_now().await;
        assert!(!was_in.get(), "one is called at a time");
        drop(first);
        second.await.unwrap();
        assert!(latches.try_latch(&[key(1)]).is_some());
    });
}

#[test]
fn a_dropped_waiter_passes_its_turn_on() {
    block_on(async {
        let latches = Latches::default();
        let held = latches.try_latch(&[key(1)]).unwrap();
        let mut first = Box::pin(latches.latch(&[key(1)]));
        let mut second = Box::pin(latches.latch(&[key(1)]));
        assert!(poll_once(first.as_mut()).await.is_none());
        assert!(poll_once(second.as_mut()).await.is_none());
        drop(first);
        drop(held);
        drop(poll_once(second.as_mut()).await.expect("the one behind is next"));
        // And one that is dropped between being granted and being polled.
        let held = latches.try_latch(&[key(1)]).unwrap();
        let mut granted = Box::pin(latches.latch(&[key(1)]));
        assert!(poll_once(granted.as_mut()).await.is_none());
        drop(held);
        drop(granted);
        assert!(latches.try_latch(&[key(1)]).is_some());
    });
}

#[test]
fn latch_all_waits_for_everybody_and_keeps_everybody_out() {
    block_on(async {
        let latches = Latches::default();
        let held = latches.try_latch(&[key(4000)]).unwrap();
        let is_in = Rc::new(Cell::new(false));
        let task = {
            let (latches, is_in) = (latches.clone(), is_in.clone());
            spawn(async move {
                let all = latches.latch_all().await;
                is_in.set(true);
                all
            })
        };
        yield_now().await;
        assert!(!is_in.get());
        drop(held);
        let all = task.await.unwrap();
        assert!(latches.try_latch(&[key(17)]).is_none());
        drop(all);
        assert!(latches.try_latch(&[key(17)]).is_some());
    });
}

const KEYS: usize = 8;
const TASKS: u64 = 16;
const ROUNDS: u64 = 400;

async fn add_under_latches(seed: u64, latches: Latches, cells: Arc<Vec<AtomicU64>>, sum: Arc<AtomicU64>) {
    let mut rng = Rng::from_seed(seed);
    for _ in 0..ROUNDS {
        let mut chosen: Vec<usize> = (0..1 + rng.below(3)).map(|_| rng.below(KEYS as u64) as usize).collect();
        let keys: Vec<KeyHash> = chosen.iter().map(|&n| key(n as u64)).collect();
        let _held = match latches.try_latch(&keys) {
            Some(held) => held,
            None => {
                let mut latching = Box::pin(latches.latch(&keys));
                if !rng.chance(0.3) {
                    latching.await
                } else if let Some(held) = poll_once(latching.as_mut()).await {
                    held
                } else {
                    // It loses patience, whatever has become of its turn by then.
                    for _ in 0..rng.below(3) {
                        yield_now().await;
                    }
                    continue;
                }
            }
        };
        chosen.dedup();
        for n in chosen {
            // A load, a pause and a store: only exclusion makes the sums come out right.
            let seen = cells[n].load(Ordering::Relaxed);
            if rng.chance(0.5) {
                yield_now().await;
            }
            cells[n].store(seen + 1, Ordering::Relaxed);
            sum.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[test]
fn overlapping_sets_on_two_cores_exclude_each_other_and_end() {
    let latches = Latches::default();
    let cells: Arc<Vec<AtomicU64>> = Arc::new((0..KEYS).map(|_| AtomicU64::new(0)).collect());
    let expected = Arc::new(AtomicU64::new(0));
    let config = pumice_reactor::Config { cores: 2, ..pumice_reactor::Config::default() };
    let (shared, sums, want) = (latches.clone(), cells.clone(), expected.clone());
    let running = pumice_reactor::start(
        &config,
        Arc::new(move |core| {
            let (latches, cells, expected) = (shared.clone(), sums.clone(), want.clone());
            Box::pin(async move {
                let seeds = (0..TASKS).map(|task| u64::from(core.0) * 1000 + task);
                let tasks: Vec<_> = seeds
                    .map(|seed| {
                        spawn(add_under_latches(seed, latches.clone(), cells.clone(), expected.clone()))
                    })
                    .collect();
                for task in tasks {
                    task.await.unwrap();
                }
            })
        }),
    )
    .unwrap();
    running.join().unwrap();
    let sum: u64 = cells.iter().map(|cell| cell.load(Ordering::Relaxed)).sum();
    assert_eq!(sum, expected.load(Ordering::Relaxed));
    assert!(latches.waits() > 0, "the test must contend to mean anything");
}
