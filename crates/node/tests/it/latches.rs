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

/// Another key of the same stripe.
fn beside(n: u64, other: u64) -> KeyHash {
    KeyHash(n << 52 | other << 1)
}

#[test]
fn keys_that_share_a_stripe_are_held_side_by_side() {
    block_on(async {
        let latches = Latches::default();
        let first = latches.try_latch(&[beside(5, 1)]).expect("free");
        let second = latches.try_latch(&[beside(5, 2)]).expect("a stranger does not wait");
        assert!(latches.try_latch(&[beside(5, 1)]).is_none());
        assert!(latches.try_latch(&[beside(5, 2)]).is_none());
        // One who waits for the first does not wait for the second, nor does a third.
        let mut waiter = Box::pin(latches.latch(&[beside(5, 1)]));
        assert!(poll_once(waiter.as_mut()).await.is_none());
        drop(second);
        assert!(poll_once(waiter.as_mut()).await.is_none());
        drop(latches.try_latch(&[beside(5, 2)]).expect("free again"));
        drop(latches.try_latch(&[beside(5, 3)]).expect("nobody holds it"));
        drop(first);
        drop(poll_once(waiter.as_mut()).await.expect("its turn"));
        assert_eq!(latches.waits(), 1);
        drop(latches.try_latch(&[beside(5, 1)]).expect("free"));
    });
}

/// However long some are held.
#[test]
fn no_other_key_ever_waits_for_one_that_is_held() {
    let latches = Latches::default();
    let held: Vec<_> = (0..50_u64).map(|n| KeyHash::of(0, &n.to_be_bytes())).collect();
    let _long = latches.try_latch(&held[..3]).expect("free");
    let _others: Vec<_> = held[3..].iter().map(|&key| latches.try_latch(&[key]).expect("free")).collect();
    for n in 50..100_000_u64 {
        assert!(latches.try_latch(&[KeyHash::of(0, &n.to_be_bytes())]).is_some(), "{n}");
    }
    assert!(held.iter().all(|&key| latches.try_latch(&[key]).is_none()));
}

#[test]
fn who_needs_two_keys_of_a_stripe_has_it_alone() {
    block_on(async {
        let latches = Latches::default();
        let one = latches.try_latch(&[beside(9, 1)]).expect("free");
        assert!(latches.try_latch(&[beside(9, 2), beside(9, 3)]).is_none());
        let mut both = Box::pin(latches.latch(&[beside(9, 2), beside(9, 1), beside(9, 2)]));
        assert!(poll_once(both.as_mut()).await.is_none());
        // Behind it, so that it comes to its turn.
        let mut behind = Box::pin(latches.latch(&[beside(9, 4)]));
        assert!(poll_once(behind.as_mut()).await.is_none());
        drop(one);
        let held = poll_once(both.as_mut()).await.expect("its turn");
        assert!(poll_once(behind.as_mut()).await.is_none());
        drop(held);
        drop(poll_once(behind.as_mut()).await.expect("its turn"));
        drop(latches.try_latch(&[beside(9, 1), beside(9, 4)]).expect("free"));
    });
}

#[test]
fn who_waits_for_a_whole_stripe_and_goes_away_lets_the_others_in() {
    block_on(async {
        let latches = Latches::default();
        let one = latches.try_latch(&[beside(9, 1)]).expect("free");
        let mut all = Box::pin(latches.latch_all());
        assert!(poll_once(all.as_mut()).await.is_none());
        let mut others: Vec<_> = (2..5).map(|n| Box::pin(latches.latch(&[beside(9, n)]))).collect();
        for other in &mut others {
            assert!(poll_once(other.as_mut()).await.is_none(), "latch_all came before");
        }
        drop(all);
        for other in &mut others {
            drop(poll_once(other.as_mut()).await.expect("nobody holds it"));
        }
        drop(one);
        drop(latches.try_latch(&[beside(9, 1)]).expect("free"));
    });
}

#[test]
fn who_was_called_is_overtaken_also_where_others_wait_behind_it() {
    block_on(async {
        let latches = Latches::default();
        let held = latches.try_latch(&[key(3)]).unwrap();
        let mut waiters: Vec<_> = (0..3).map(|_| Box::pin(latches.latch(&[key(3)]))).collect();
        for waiter in &mut waiters {
            assert!(poll_once(waiter.as_mut()).await.is_none());
        }
        drop(held);
        for _ in 0..3 {
            drop(latches.try_latch(&[key(3)]).expect("left free"));
        }
        for waiter in &mut waiters {
            drop(poll_once(waiter.as_mut()).await.expect("its turn"));
        }
    });
}

const KEYS: usize = 8;
const TASKS: u64 = 16;
const ROUNDS: u64 = 3_000;

async fn add_under_latches(seed: u64, latches: Latches, cells: Arc<Vec<AtomicU64>>, sum: Arc<AtomicU64>) {
    let mut rng = Rng::from_seed(seed);
    for _ in 0..ROUNDS {
        if rng.chance(0.01) {
            let _all = latches.latch_all().await;
            for cell in cells.iter() {
                let seen = cell.load(Ordering::Relaxed);
                yield_now().await;
                cell.store(seen + 1, Ordering::Relaxed);
                sum.fetch_add(1, Ordering::Relaxed);
            }
        }
        let mut chosen: Vec<usize> = (0..1 + rng.below(3)).map(|_| rng.below(KEYS as u64) as usize).collect();
        // Three or so share a stripe.
        let keys: Vec<KeyHash> = chosen.iter().map(|&n| beside(n as u64 % 3, n as u64)).collect();
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
        chosen.sort_unstable();
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
