//! WATCH's registry: who hears of which change.

use std::sync::Arc;

use pumice_node::{WatchFlag, Watches};

fn flag() -> Arc<WatchFlag> {
    Arc::new(WatchFlag::default())
}

#[test]
fn a_change_raises_the_flags_of_those_who_watch_the_key_and_no_others() {
    let watches = Watches::default();
    let (a, b, c) = (flag(), flag(), flag());
    watches.watch(0, b"k", &a);
    watches.watch(0, b"k", &a);
    watches.watch(0, b"k", &b);
    watches.watch(1, b"k", &c);
    assert_eq!(watches.len(), 3, "watching twice counts once");
    watches.touch(0, b"other");
    assert!(!a.is_touched());
    watches.touch(0, b"k");
    assert!(a.is_touched() && b.is_touched() && !c.is_touched());
    a.reset();
    watches.unwatch(0, b"k", &b);
    watches.touch(0, b"k");
    assert!(a.is_touched());
}

#[test]
fn a_flush_tells_those_whose_key_was_there() {
    let watches = Watches::default();
    let (there, missing, elsewhere) = (flag(), flag(), flag());
    watches.watch(3, b"there", &there);
    watches.watch(3, b"missing", &missing);
    watches.watch(4, b"there", &elsewhere);
    assert_eq!(watches.watched_in(3), ["missing", "there"]);
    watches.touch_space(Some(3), |_, key| key == b"there");
    assert!(there.is_touched() && !missing.is_touched() && !elsewhere.is_touched());
    watches.touch_space(None, |space, _| space == 4);
    assert!(elsewhere.is_touched());
}

#[test]
fn unwatching_everything_leaves_nothing_behind() {
    let watches = Watches::default();
    let flag = flag();
    for n in 0..1000u32 {
        watches.watch(0, &n.to_be_bytes(), &flag);
    }
    for n in 0..1000u32 {
        watches.unwatch(0, &n.to_be_bytes(), &flag);
        watches.unwatch(0, &n.to_be_bytes(), &flag);
    }
    assert!(watches.is_empty());
    watches.touch(0, &7u32.to_be_bytes());
    assert!(!flag.is_touched());
}

#[test]
fn one_of_many_clients_that_watch_one_key_is_found_without_looking_at_all() {
    let compared = |clients: usize| -> u64 {
        let watches = Watches::default();
        let flags: Vec<_> = (0..clients).map(|_| flag()).collect();
        let watching = flags.iter().map(|flag| watches.watch(0, b"k", flag));
        let first: u64 = watching.inspect(|watching| assert!(watching.is_new)).map(|it| it.compared).sum();
        let again = flags.iter().map(|flag| watches.watch(0, b"k", flag));
        let second: u64 = again.inspect(|watching| assert!(!watching.is_new)).map(|it| it.compared).sum();
        assert_eq!(watches.len(), clients as u64);
        flags.iter().for_each(|flag| watches.unwatch(0, b"k", flag));
        assert!(watches.is_empty());
        first + second
    };
    let (few, many) = (compared(500), compared(4 * 500));
    assert!(many <= 8 * few, "{few} comparisons for 500 clients, {many} for four times as many");
}
