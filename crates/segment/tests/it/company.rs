//! Who waits for whom: users who come back at once share a commit, others do not wait.

use std::time::Duration;

use crate::common::*;
use pumice_base::rng::Rng;
use pumice_flash::{Device, DeviceSpec};
use pumice_reactor::sim::{HostOptions, World};
use pumice_reactor::{now, sleep, spawn};
use pumice_segment::{FormatOptions, Heap};

/// Runs `scene` over a fresh drive of the simulator's, whose writes take what a drive's take.
fn on_a_drive<T: 'static>(scene: impl AsyncFnOnce(Heap) -> T + 'static) -> T {
    let world = World::new(1);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    let run = async move {
        let spec: DeviceSpec = "/drive".parse().expect("spec");
        let device = Device::create(&spec, 64 << 20).await.expect("file");
        let format = FormatOptions { segment_bytes: 1 << 20, ..format_options() };
        Heap::format(&device, &format).await.expect("format");
        let mut opened = Heap::open(device, options(), &no_progress).await.expect("open");
        while opened.replay.next().await.expect("replay").is_some() {}
        scene(opened.heap).await
    };
    world.block_on(host, run).unwrap_or_else(|halt| panic!("{halt}"))
}

/// One durable append, and how long it took.
async fn durable(heap: &Heap, bytes: usize) -> Duration {
    let began = now();
    let appended = append_waiting(heap, &[&vec![1; bytes]]).await;
    heap.wait_durable(appended.first_seq).await.expect("durable");
    began.elapsed()
}

const ROUNDS: u64 = 50;

/// Users who each append `bytes`, wait until it is durable, and come back within microseconds. Answers how many commits they made.
async fn closed_loop(heap: &Heap, users: u64, bytes: usize) -> u64 {
    let before = heap.stats().commits;
    let tasks = (0..users).map(|user| {
        let heap = heap.clone();
        spawn(async move {
            for _ in 0..ROUNDS {
                sleep(Duration::from_micros(1 + user % 8)).await;
                durable(&heap, bytes).await;
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.expect("task");
    }
    heap.stats().commits - before
}

#[test]
fn users_who_come_back_at_once_share_commits() {
    for users in [2, 8, 16] {
        let commits = on_a_drive(async move |heap: Heap| closed_loop(&heap, users, 100).await);
        // Taking turns, it would be two a round.
        assert!(commits <= ROUNDS + ROUNDS / 4, "{users} users: {commits} commits in {ROUNDS} rounds");
    }
}

/// Of large values one half is written while the other forms, unless space is short: every commit pads a page.
#[test]
fn large_groups_take_turns_while_there_is_space() {
    let commits = on_a_drive(async |heap: Heap| {
        let mut commits = Vec::new();
        for spares in [false, true] {
            heap.spare(spares);
            commits.push(closed_loop(&heap, 16, 8 << 10).await);
        }
        commits
    });
    assert!(commits[0] > ROUNDS * 3 / 2 && commits[1] <= ROUNDS + ROUNDS / 4, "{commits:?}");
}

/// Of many with large values one half sets out beside the other, rather than when the drive is done with it.
#[test]
fn many_large_halves_are_written_side_by_side() {
    let (commits, beside) = on_a_drive(async |heap: Heap| {
        let commits = closed_loop(&heap, 24, 8 << 10).await;
        (commits, heap.stats().commits_beside)
    });
    assert!(commits <= 2 * ROUNDS + ROUNDS / 2, "{commits} commits in {ROUNDS} rounds");
    assert!(beside >= commits * 3 / 4, "{beside} of {commits} commits beside another");
}

/// The mean time of a durable append of `users` who come when they please.
async fn as_they_please(heap: &Heap, users: u64, write_time: Duration) -> Duration {
    let tasks = (0..users).map(|user| {
        let heap = heap.clone();
        spawn(async move {
            let (mut rng, mut took) = (Rng::from_seed(user), Duration::ZERO);
            for _ in 0..200 {
                sleep(write_time * (2 + rng.below(8) as u32)).await;
                took += durable(&heap, 100).await;
            }
            took / 200
        })
    });
    let mut sum = Duration::ZERO;
    for task in tasks.collect::<Vec<_>>() {
        sum += task.await.expect("task");
    }
    sum / users as u32
}

#[test]
fn users_who_come_when_they_please_hardly_wait_for_one_another() {
    let (alone, three, many, after_a_crowd) = on_a_drive(async |heap: Heap| {
        for _ in 0..20 {
            durable(&heap, 100).await;
        }
        let write_time = durable(&heap, 100).await;
        let alone = as_they_please(&heap, 1, write_time).await;
        let three = as_they_please(&heap, 3, write_time).await;
        let many = as_they_please(&heap, 20, write_time).await;
        closed_loop(&heap, 50, 100).await;
        (alone, three, many, as_they_please(&heap, 1, write_time).await)
    });
    // Three, each of whom writes a sixth of the time, meet now and then, and then wait for the other's write.
    assert!(three < alone * 5 / 4, "{three:?} where one alone takes {alone:?}");
    // Of twenty, most come while a write is under way, and go with the next.
    assert!(many < alone * 7 / 4, "{many:?} where one alone takes {alone:?}");
    assert!(
        after_a_crowd < alone * 11 / 10,
        "{after_a_crowd:?} where it took {alone:?} before there was a crowd"
    );
}
