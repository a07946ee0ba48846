//! Who waits for room is served in the order of coming, and hears when none will ever come.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use crate::common::*;
use pumice_flash::{Fault, Operation};
use pumice_reactor::{JoinHandle, sleep, spawn, yield_now};
use pumice_segment::{AppendClass, AppendError, Heap, Outline, RecordIn, Turn};

const BYTES: usize = 4000;

/// A heap whose users have used up all credit.
async fn exhausted() -> (Heap, std::sync::Arc<pumice_flash::Emulated>) {
    let (device, nand) = emulated("emu:tiny").await;
    let heap = formatted(&device).await;
    heap.pace(true);
    while append(&heap, 1, &[0; BYTES]).is_ok() {}
    (heap, nand)
}

/// Cleaning wins enough for so many appends.
fn earn(heap: &Heap, appends: usize) {
    heap.earn((appends * BYTES) as i64);
}

type Served = Rc<RefCell<Vec<u32>>>;

/// A user who queues now and appends once, as soon as it may.
fn user(heap: &Heap, name: u32, served: &Served) -> JoinHandle<Result<(), AppendError>> {
    let (heap, served) = (heap.clone(), served.clone());
    let mut place = heap.queue(BYTES as u64, &mut Turn::default());
    spawn(async move {
        loop {
            place.called().await;
            match append(&heap, 1, &[1; BYTES]) {
                Ok(_) => break served.borrow_mut().push(name),
                Err(AppendError::Busy) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    })
}

/// Whatever can be done without waiting for time to pass is done.
async fn settled() {
    for _ in 0..100 {
        yield_now().await;
    }
}

#[test]
fn users_are_served_in_the_order_in_which_they_came() {
    pumice_reactor::block_on(async {
        let (heap, _) = exhausted().await;
        assert!(!heap.users_wait());
        let served = Served::default();
        let users: Vec<_> = (0..20).map(|name| user(&heap, name, &served)).collect();
        settled().await;
        assert!(heap.users_wait() && served.borrow().is_empty());
        // What is less than nothing at first: the last append before went into debt.
        earn(&heap, 2);
        settled().await;
        let first = served.borrow().len();
        assert!((1..=3).contains(&first), "{first} were served for two appends' worth");
        while heap.users_wait() {
            let before = served.borrow().len();
            earn(&heap, 3);
            settled().await;
            let now = served.borrow().len();
            assert!((2..=5).contains(&(now - before)) || now == 20, "{before} and then {now} were served");
        }
        assert_eq!(*served.borrow(), (0..20).collect::<Vec<_>>());
        for user in users {
            user.await.expect("not aborted").expect("appended");
        }
    });
}

#[test]
fn who_leaves_the_queue_is_passed_over_called_or_not() {
    pumice_reactor::block_on(async {
        let (heap, _) = exhausted().await;
        let served = Served::default();
        let users: Vec<_> = (0..6).map(|name| user(&heap, name, &served)).collect();
        settled().await;
        users[1].abort();
        users[2].abort();
        settled().await;
        // Calls the first of those that are left, and the one that was called leaves before it acts.
        earn(&heap, 2);
        users[0].abort();
        for _ in 0..4 {
            settled().await;
            earn(&heap, 2);
        }
        settled().await;
        assert_eq!(*served.borrow(), vec![3, 4, 5]);
        assert!(!heap.users_wait());
    });
}

/// A large append that is refused for want of a segment keeps its place, and smaller ones do not overtake it for ever.
#[test]
fn a_user_who_is_refused_again_keeps_its_place() {
    pumice_reactor::block_on(async {
        let (heap, _) = exhausted().await;
        let served = Served::default();
        let first = user(&heap, 0, &served);
        let second = user(&heap, 1, &served);
        // The first looks after a while though nobody called it, and is refused.
        sleep(Duration::from_millis(60)).await;
        assert!(served.borrow().is_empty());
        earn(&heap, 4);
        settled().await;
        assert_eq!(*served.borrow(), vec![0, 1]);
        for user in [first, second] {
            user.await.expect("not aborted").expect("appended");
        }
    });
}

/// Those who were called still wait, as far as the queue knows, until they have come.
#[test]
fn who_comes_while_all_who_wait_were_called_passes_if_there_is_room_for_more() {
    pumice_reactor::block_on(async {
        let (heap, _) = exhausted().await;
        let served = Served::default();
        let called: Vec<_> = (0..2).map(|name| user(&heap, name, &served)).collect();
        settled().await;
        earn(&heap, 8);
        // They come before what was called has run.
        let passing: Vec<_> = (2..12).map(|name| user(&heap, name, &served)).collect();
        settled().await;
        let first = served.borrow().len();
        assert!((6..=8).contains(&first), "{first} were served for eight appends' worth");
        assert_eq!(served.borrow()[..2], [0, 1], "those who were called go first");
        assert!(heap.users_wait(), "the others wait");
        // One that comes now is behind them, whatever was left.
        let last = user(&heap, 12, &served);
        for _ in 0..4 {
            earn(&heap, 3);
            settled().await;
        }
        assert_eq!(*served.borrow(), (0..13).collect::<Vec<_>>());
        for user in called.into_iter().chain(passing).chain([last]) {
            user.await.expect("not aborted").expect("appended");
        }
    });
}

#[test]
fn what_one_was_called_for_is_not_given_to_those_who_come_meanwhile() {
    pumice_reactor::block_on(async {
        let (heap, _) = exhausted().await;
        let served = Served::default();
        let mut slow = heap.queue(3 * BYTES as u64, &mut Turn::default());
        // Less what the last append before went into debt.
        earn(&heap, 4);
        let later: Vec<_> = (0..5).map(|name| user(&heap, name, &served)).collect();
        settled().await;
        assert!(served.borrow().len() <= 1, "{:?} were served", served.borrow());
        slow.called().await;
        for _ in 0..3 {
            append(&heap, 1, &[0; BYTES]).expect("there is what it was called for");
        }
        drop(slow);
        earn(&heap, 8);
        for user in later {
            user.await.expect("not aborted").expect("appended");
        }
        assert_eq!(*served.borrow(), (0..5).collect::<Vec<_>>());
    });
}

/// What it was let pass for may be gone when it comes.
#[test]
fn who_passes_and_is_refused_queues_and_is_served() {
    pumice_reactor::block_on(async {
        let (heap, _) = exhausted().await;
        let served = Served::default();
        let called = user(&heap, 0, &served);
        settled().await;
        earn(&heap, 6);
        let passing = user(&heap, 1, &served);
        // Somebody who asks nobody.
        while append(&heap, 1, &[0; BYTES]).is_ok() {}
        settled().await;
        assert!(served.borrow().is_empty() && heap.users_wait());
        let behind = user(&heap, 2, &served);
        for _ in 0..3 {
            earn(&heap, 2);
            settled().await;
        }
        assert_eq!(*served.borrow(), [0, 1, 2]);
        for user in [called, passing, behind] {
            user.await.expect("not aborted").expect("appended");
        }
    });
}

/// Who comes again before the last of those who left the queue with it would otherwise find one that never ends.
#[test]
fn a_queue_ends_when_there_is_room_for_all() {
    pumice_reactor::block_on(async {
        let (heap, _) = exhausted().await;
        let behind = Rc::new(RefCell::new(Vec::new()));
        let users: Vec<_> = (0..20)
            .map(|_| {
                let (heap, behind) = (heap.clone(), behind.clone());
                spawn(async move {
                    for _ in 0..10 {
                        while heap.users_wait() || append(&heap, 1, &[1; BYTES]).is_err() {
                            let mut place = heap.queue(BYTES as u64, &mut Turn::default());
                            place.called().await;
                            if append(&heap, 1, &[1; BYTES]).is_ok() {
                                break;
                            }
                        }
                        behind.borrow_mut().push(heap.users_wait());
                    }
                })
            })
            .collect();
        settled().await;
        assert!(heap.users_wait());
        heap.pace(false);
        for user in users {
            user.await.expect("not aborted");
        }
        let waited = behind.borrow().iter().filter(|&&others_wait| others_wait).count();
        assert_eq!(behind.borrow().len(), 200);
        assert!(waited < 60, "after {waited} appends of 200 others waited");
    });
}

/// Too much of the reserve is in use, though the open segment would take what the user has.
#[test]
fn who_waits_for_the_reserve_is_not_called_before_it_is_free_again() {
    pumice_reactor::block_on(async {
        let (device, _) = emulated("emu:tiny").await;
        let heap = formatted(&device).await;
        let kept = [2; BYTES];
        let parts: &[&[u8]] = &[&kept];
        loop {
            match heap.append(&[RecordIn { kind: 1, parts, outline: Outline::Whole }], AppendClass::System) {
                Ok(_) => {}
                Err(AppendError::Busy) => heap.room().await,
                Err(AppendError::Full(_)) => break,
                Err(error) => panic!("{error}"),
            }
        }
        heap.wait_durable(heap.last_seq()).await.expect("durable");
        // Cleaning would win something, so users wait.
        heap.segments_in_use().into_iter().step_by(2).for_each(|segment| heap.set_live(segment, 0));
        let served = Served::default();
        let users: Vec<_> = (0..4).map(|name| user(&heap, name, &served)).collect();
        settled().await;
        let before = heap.stats().busy;
        for _ in 0..5 {
            settled().await;
        }
        let tries = heap.stats().busy - before;
        assert!(served.borrow().is_empty() && heap.users_wait());
        assert!(tries < 10, "{tries} tries in vain");
        users.iter().for_each(JoinHandle::abort);
    });
}

#[test]
fn all_who_wait_hear_that_the_drive_failed_or_is_closed() {
    for closes in [false, true] {
        pumice_reactor::block_on(async {
            let (heap, nand) = exhausted().await;
            let served = Served::default();
            let users: Vec<_> = (0..10).map(|name| user(&heap, name, &served)).collect();
            settled().await;
            if closes {
                heap.close().await.expect("close");
            } else {
                nand.fail_at(Operation::Program, 1, Fault::TimedOut);
                // The first three may append, and what they append fails.
                earn(&heap, 3);
                settled().await;
                heap.wait_durable(heap.last_seq()).await.expect_err("the commit failed");
            }
            let appended = served.borrow().len();
            for (name, user) in users.into_iter().enumerate().skip(appended) {
                let answer = user.await.expect("not aborted");
                assert!(matches!(answer, Err(AppendError::ReadOnly(_))), "{name}: {answer:?}");
            }
            assert!(appended < 6, "{appended} appended");
            assert!(!heap.users_wait());
        });
    }
}
