//! Tasks, timers, cores.

use super::{PATIENCE, Place};
use pumice_reactor::sync::{Event, Notify};
use pumice_reactor::{
    Aborted, CoreId, Elapsed, core, core_count, now, sleep, sleep_until, spawn, spawn_on, timeout, wall_ms,
    wall_us, yield_now,
};
use std::cell::{Cell, RefCell};
use std::future::pending;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

pub async fn many_tasks_all_run(place: Place) {
    let done = Rc::new(Cell::new(0));
    let tasks: Vec<_> = (0..place.many * 10)
        .map(|i| {
            let done = Rc::clone(&done);
            spawn(async move {
                for _ in 0..i % 5 {
                    yield_now().await;
                }
                done.set(done.get() + 1);
                i
            })
        })
        .collect();
    for (i, task) in tasks.into_iter().enumerate() {
        assert_eq!(task.await, Ok(i));
    }
    assert_eq!(done.get(), place.many * 10);
}

pub async fn a_yield_lets_every_ready_task_go_first(_: Place) {
    let order = Rc::new(RefCell::new(Vec::new()));
    for i in 0..3 {
        let order = Rc::clone(&order);
        spawn(async move { order.borrow_mut().push(i) });
    }
    yield_now().await;
    assert_eq!(*order.borrow(), [0, 1, 2]);
}

struct SetOnDrop(Rc<Cell<bool>>);

impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.set(true);
    }
}

pub async fn an_aborted_task_is_dropped_at_once(_: Place) {
    let dropped = Rc::new(Cell::new(false));
    let guard = SetOnDrop(Rc::clone(&dropped));
    let task = spawn(async move {
        let _guard = guard;
        pending::<()>().await;
    });
    yield_now().await;
    assert!(!dropped.get() && !task.is_finished());
    task.abort();
    assert!(dropped.get() && task.is_finished());
    assert_eq!(task.await, Err(Aborted));
}

pub async fn a_task_may_abort_itself(_: Place) {
    let handle = Rc::new(RefCell::new(None::<pumice_reactor::JoinHandle<()>>));
    let mine = Rc::clone(&handle);
    let reached = Rc::new(Cell::new(false));
    let beyond = Rc::clone(&reached);
    let ended = Rc::new(Cell::new(false));
    let guard = SetOnDrop(Rc::clone(&ended));
    let task = spawn(async move {
        let _guard = guard;
        mine.borrow().as_ref().expect("set before it runs").abort();
        yield_now().await;
        beyond.set(true);
    });
    *handle.borrow_mut() = Some(task);
    for _ in 0..3 {
        yield_now().await;
    }
    assert!(ended.get() && !reached.get());
}

pub async fn a_dropped_handle_lets_the_task_run_on(_: Place) {
    let ran = Rc::new(Cell::new(false));
    let guard = SetOnDrop(Rc::clone(&ran));
    drop(spawn(async move {
        yield_now().await;
        drop(guard);
    }));
    while !ran.get() {
        yield_now().await;
    }
}

pub async fn timers_fire_in_order_and_never_early(_: Place) {
    let mut unit = Duration::from_millis(5);
    // A thread that stalls before all timers are set has shown nothing: it is tried with longer ones.
    while !timers_of(unit).await {
        unit *= 2;
        assert!(unit < PATIENCE, "six timers cannot be set within {unit:?}");
    }
}

/// Six timers, the last after five units of time; whether all were set before the first of them ran out.
async fn timers_of(unit: Duration) -> bool {
    let order = Rc::new(RefCell::new(Vec::new()));
    let start = now();
    let tasks: Vec<_> = [5u32, 1, 3, 0, 2, 4]
        .into_iter()
        .map(|units| {
            let order = Rc::clone(&order);
            spawn(async move {
                sleep_until(start + unit * units).await;
                assert!(now().since(start) >= unit * units, "a timer fired early");
                order.borrow_mut().push(units);
            })
        })
        .collect();
    yield_now().await;
    let all_set = now() < start + unit;
    for task in tasks {
        task.await.unwrap();
    }
    assert!(!all_set || *order.borrow() == [0, 1, 2, 3, 4, 5], "{order:?}");
    all_set
}

pub async fn a_timeout_drops_what_it_waited_for(_: Place) {
    let dropped = Rc::new(Cell::new(false));
    let guard = SetOnDrop(Rc::clone(&dropped));
    let result = timeout(Duration::from_millis(5), async move {
        let _guard = guard;
        pending::<()>().await;
    })
    .await;
    assert_eq!(result, Err(Elapsed));
    assert!(dropped.get());
    assert_eq!(timeout(Duration::from_secs(100), async { 7 }).await, Ok(7));
}

pub async fn tasks_spawned_on_another_core_run_there(_: Place) {
    assert_eq!((core(), core_count()), (CoreId(0), 2));
    let seen = Arc::new(Event::new());
    let there = Arc::clone(&seen);
    spawn_on(CoreId(1), move || {
        Box::pin(async move {
            assert_eq!(core(), CoreId(1));
            yield_now().await;
            there.set();
        })
    });
    seen.wait().await;
}

pub async fn wakes_cross_cores_many_times(place: Place) {
    let rounds = place.many;
    let ping = Arc::new(Notify::new());
    let pong = Arc::new(Notify::new());
    let (far_ping, far_pong) = (Arc::clone(&ping), Arc::clone(&pong));
    spawn_on(CoreId(1), move || {
        Box::pin(async move {
            for _ in 0..rounds {
                far_ping.notified().await;
                far_pong.notify_one();
            }
        })
    });
    for round in 0..rounds {
        ping.notify_one();
        let answer = timeout(PATIENCE, pong.notified()).await;
        assert_eq!(answer, Ok(()), "round {round} was never answered");
    }
}

pub async fn the_wall_clock_goes_on(_: Place) {
    // Somebody may set this machine's clock back meanwhile, but not again and again.
    for _ in 0..20 {
        let (start, mono) = (wall_ms(), now());
        sleep(Duration::from_millis(20)).await;
        assert!(now() > mono);
        let (before_ms, us, after_ms) = (wall_ms(), wall_us(), wall_ms());
        if before_ms >= start + 15 && (before_ms..=after_ms).contains(&(us / 1000)) {
            return;
        }
    }
    panic!("the wall clock does not go on");
}
