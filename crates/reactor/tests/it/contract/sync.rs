//! Gate, Notify, Semaphore, oneshot, within and across cores.

use super::Place;
use pumice_reactor::sync::{Gate, Notify, Semaphore, oneshot};
use pumice_reactor::{CoreId, JoinHandle, spawn, spawn_on, yield_now};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

pub async fn a_gate_opens_for_those_it_reached_and_fails_the_rest(_: Place) {
    let gate = Arc::new(Gate::new(3));
    gate.wait_for(3).await.unwrap();
    let tasks: Vec<_> = [9u64, 4, 6, 5]
        .into_iter()
        .map(|target| {
            let gate = Arc::clone(&gate);
            spawn(async move { (target, gate.wait_for(target).await.is_ok()) })
        })
        .collect();
    let dropped = {
        let gate = Arc::clone(&gate);
        spawn(async move { gate.wait_for(5).await })
    };
    yield_now().await;
    dropped.abort();
    gate.open_to(5);
    gate.open_to(4);
    assert_eq!(gate.current(), 5);
    yield_now().await;
    gate.fail("the drive is gone");
    gate.fail("a second reason");
    let mut results = Vec::new();
    for task in tasks {
        results.push(task.await.unwrap());
    }
    assert_eq!(results, [(9, false), (4, true), (6, false), (5, true)]);
    assert_eq!(gate.wait_for(6).await.unwrap_err().to_string(), "the drive is gone");
    gate.wait_for(5).await.unwrap();
}

pub async fn a_gate_wakes_thousands_from_another_core(place: Place) {
    let gate = Arc::new(Gate::new(0));
    let count = place.many as u64;
    let tasks: Vec<JoinHandle<_>> = (1..=count)
        .map(|target| {
            let gate = Arc::clone(&gate);
            spawn(async move { gate.wait_for(target).await })
        })
        .collect();
    yield_now().await;
    let far = Arc::clone(&gate);
    spawn_on(CoreId(1), move || {
        Box::pin(async move {
            for n in 1..=count {
                far.open_to(n);
                if n % 64 == 0 {
                    yield_now().await;
                }
            }
        })
    });
    for task in tasks {
        task.await.unwrap().unwrap();
    }
}

pub async fn a_gate_forgets_who_gave_up_and_wakes_the_others(_: Place) {
    let gate = Arc::new(Gate::new(0));
    let wait = |target: u64| {
        let gate = Arc::clone(&gate);
        spawn(async move { gate.wait_for(target).await })
    };
    let mut kept = Vec::new();
    for round in 0..20 {
        let mut given_up = Vec::new();
        for target in 1..=30 {
            // One of each round stays; of the others there are more, so that they are swept out.
            let task = wait(target);
            if target == round + 1 { kept.push((target, task)) } else { given_up.push(task) }
        }
        yield_now().await;
        for task in given_up {
            task.abort();
        }
    }
    for open in 1..=10 {
        gate.open_to(open);
        yield_now().await;
        for (target, task) in &kept {
            assert_eq!(task.is_finished(), *target <= open, "{target} at {open}");
        }
    }
    gate.fail("the drive is gone");
    for (target, task) in kept {
        assert_eq!(task.await.unwrap().is_ok(), target <= 10, "{target}");
    }
}

pub async fn a_dropped_waiter_passes_its_notification_on(_: Place) {
    let notify = Arc::new(Notify::new());
    let waiter = |notify: &Arc<Notify>| {
        let notify = Arc::clone(notify);
        spawn(async move { notify.notified().await })
    };
    let (first, second) = (waiter(&notify), waiter(&notify));
    yield_now().await;
    // Notified, and gone before it could run.
    notify.notify_one();
    first.abort();
    second.await.unwrap();
    // Kept while nobody waits, once.
    notify.notify_one();
    notify.notify_one();
    notify.notified().await;
    let third = waiter(&notify);
    yield_now().await;
    assert!(!third.is_finished());
    notify.notify_all();
    third.await.unwrap();
}

pub async fn permits_go_out_in_order_and_come_back(_: Place) {
    let semaphore = Arc::new(Semaphore::new(4));
    let order = Rc::new(RefCell::new(Vec::new()));
    let held = semaphore.acquire(3).await;
    let tasks: Vec<_> = [(0, 4u64), (1, 1), (2, 1)]
        .into_iter()
        .map(|(i, wants)| {
            let (semaphore, order) = (Arc::clone(&semaphore), Rc::clone(&order));
            spawn(async move {
                let permit = semaphore.acquire_owned(wants).await;
                order.borrow_mut().push(i);
                yield_now().await;
                drop(permit);
            })
        })
        .collect();
    yield_now().await;
    // One is free, but the large request came first.
    assert!(order.borrow().is_empty() && semaphore.try_acquire(1).is_none());
    drop(held);
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(*order.borrow(), [0, 1, 2]);
    assert_eq!(semaphore.available(), 4);
    // A waiter that gives up lets those behind it pass.
    let held = semaphore.acquire(3).await;
    let greedy = {
        let semaphore = Arc::clone(&semaphore);
        spawn(async move { drop(semaphore.acquire_owned(4).await) })
    };
    let modest = {
        let semaphore = Arc::clone(&semaphore);
        spawn(async move { drop(semaphore.acquire_owned(1).await) })
    };
    yield_now().await;
    greedy.abort();
    modest.await.unwrap();
    drop(held);
    assert_eq!(semaphore.available(), 4);
}

pub async fn a_oneshot_tells_of_a_sender_that_went_away(_: Place) {
    let (sender, receiver) = oneshot::channel();
    spawn_on(CoreId(1), move || Box::pin(async move { sender.send(5).unwrap() }));
    assert_eq!(receiver.await, Ok(5));
    let (sender, receiver) = oneshot::channel::<u32>();
    spawn(async move { drop(sender) });
    assert!(receiver.await.is_err());
    let (sender, receiver) = oneshot::channel();
    drop(receiver);
    assert!(sender.is_closed());
    assert_eq!(sender.send(9), Err(9));
}
