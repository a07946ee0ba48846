//! When cleaning is said to get nowhere.

use pumice_kv::progress::{PAUSES, Progress, SPARED_MAX, State, VICTIMS_MAX, Verdict};

const SEGMENT: u64 = 1 << 20;

fn verdicts(progress: &mut Progress, state: State, n: u32) -> Vec<Verdict> {
    (0..n).map(|_| progress.judge(state, SEGMENT)).collect()
}

#[test]
fn a_drive_is_full_when_nothing_gets_better_for_long() {
    let mut progress = Progress::default();
    let state = State { free: 3, live: 90 * SEGMENT, accepted: 7, ..State::default() };
    let seen = verdicts(&mut progress, state, 1 + VICTIMS_MAX + PAUSES);
    let count = |verdict| seen.iter().filter(|each| **each == verdict).count() as u32;
    assert_eq!(count(Verdict::AskForMerges), 3);
    assert_eq!(count(Verdict::Pause), PAUSES);
    assert_eq!((count(Verdict::Full), seen.last()), (1, Some(&Verdict::Full)));
}

#[test]
fn what_gets_better_begins_the_count_anew() {
    let first = State { free: 3, live: 90 * SEGMENT, accepted: 7, ..State::default() };
    let better = [
        State { free: 4, ..first },
        State { live: first.live - SEGMENT / 4, ..first },
        State { accepted: 8, free: 1, ..first },
    ];
    for better in better {
        let mut progress = Progress::default();
        verdicts(&mut progress, first, VICTIMS_MAX + PAUSES);
        assert_eq!(progress.judge(better, SEGMENT), Verdict::GoOn, "{better:?}");
        let seen = verdicts(&mut progress, better, VICTIMS_MAX + PAUSES);
        assert_eq!(seen.iter().position(|each| *each == Verdict::Full), Some(seen.len() - 1), "{better:?}");
    }
}

#[test]
fn upkeep_that_gets_on_spares_victims_but_not_for_ever() {
    let mut progress = Progress::default();
    let mut state = State { free: 3, live: 90 * SEGMENT, ..State::default() };
    let mut victims = 0;
    while progress.judge(state, SEGMENT) != Verdict::Full {
        (victims, state.upkeep) = (victims + 1, state.upkeep + 1);
    }
    assert_eq!(victims, 1 + SPARED_MAX + VICTIMS_MAX + PAUSES - 1);
}

#[test]
fn where_nobody_waits_nothing_is_counted() {
    let mut progress = Progress::default();
    let state = State { free: 3, is_enough: true, ..State::default() };
    assert!(verdicts(&mut progress, state, 1000).iter().all(|each| *each == Verdict::GoOn));
}
