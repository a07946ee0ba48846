//! A smoke budget of each world. `pumice sim run NAME --seeds COUNT` runs more.

use pumice_sim::{Report, RunOptions, list, run};

fn passes(name: &str, options: &RunOptions) -> Report {
    match run(name, options) {
        Ok(report) => {
            assert!(report.passed(), "{report}");
            report
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_drive_survives_power_cuts_kills_and_clean_closes() {
    let report = passes("kv", &RunOptions { seeds: 24, ..RunOptions::default() });
    println!("{report}");
    for (what, least) in [
        ("writes acknowledged", 10_000),
        // What the store says to have retired was compared: no more, no less.
        ("retired parts of spaces", 10),
        ("records replayed", 100),
        ("reads from flash", 500),
        ("values read from flash", 100),
        ("key blocks read from flash", 100),
        ("heads of key tables read from flash", 100),
        ("flushes", 100),
        ("merges", 50),
        ("segments cleaned", 10),
        ("segments released", 10),
        ("records moved", 100),
        ("expired keys removed", 50),
        ("random keys", 100),
    ] {
        assert!(report.counters.get(what).is_some_and(|count| *count >= least), "{what}: {report}");
    }
    // What a drive of several channels does that others do not.
    assert!(report.counters["commits beside others on other channels"] > 100, "{report}");
}

#[test]
fn power_may_be_cut_at_every_operation() {
    let report = passes("kv-cut", &RunOptions { ops: Some(20), ..RunOptions::default() });
    assert!(report.counters["cuts"] > 100, "{report}");
}

#[test]
fn each_kind_of_change_survives_a_power_cut_at_each_of_its_operations() {
    // A file of two channels, one of one, and emulated NAND of either; of the longest kinds each so many cuts.
    for (seed, cuts, least) in [(1, 600, 1500), (2, 200, 1000), (3, 200, 500), (6, 200, 500)] {
        let report = passes("kv-each", &RunOptions { seed, ops: Some(cuts), ..RunOptions::default() });
        println!("{report}");
        assert!(report.counters["cuts"] > least, "{report}");
        assert!(report.rows.iter().all(|kind| kind.measured > 0.0), "a kind was cut nowhere: {report}");
        assert_eq!(report.counters["cuts on NAND"] > 0, seed % 3 == 0, "{report}");
    }
}

/// Odd seeds are files, even ones emulated NAND.
#[test]
fn failed_programs_erases_and_syncs_lose_nothing_that_was_acknowledged() {
    let report = passes("kv-fault", &RunOptions { seeds: 12, ..RunOptions::default() });
    for what in [
        "segments retired",
        "lives with faults by chance",
        "drives that went on",
        "drives that stopped",
        "commits beside others on other channels",
        "programs that failed beside others",
        "victims emptied beside others",
    ] {
        assert!(report.counters.get(what).is_some_and(|count| *count > 0), "{what}: {report}");
    }
}

/// Three failures in one opening strike superblocks, and data lies in all other segments that may take one.
#[test]
fn superblocks_find_a_place_while_a_drive_has_space() {
    passes("kv-fault", &RunOptions { seed: 1090, ..RunOptions::default() });
}

#[test]
fn raw_nand_is_written_to_death_and_loses_nothing_that_was_acknowledged() {
    let report = passes("kv-worn", &RunOptions { seed: 5, seeds: 3, ..RunOptions::default() });
    println!("{report}");
    for (what, least) in [
        ("segments retired", 30),
        ("bits corrected", 1000),
        ("power cuts", 3),
        ("bad from the start", 1),
        ("segments rescued", 1),
        ("commits beside others on other channels", 100),
        ("victims emptied beside others", 50),
    ] {
        assert!(report.counters[what] >= least, "{what}: {report}");
    }
}

/// A segment's first program fails when its frames are counted already, and the recovery after a power cut finds nothing there: none of
/// it was durable, and `check` finds nothing missing.
#[test]
fn what_a_failed_program_left_unwritten_is_not_missed() {
    passes("kv-worn", &RunOptions { seed: 13, ..RunOptions::default() });
}

#[test]
fn large_collections_are_whole_after_a_power_cut_or_a_failed_write_inside_of_a_command() {
    let report = passes("redis-cut", &RunOptions::default());
    println!("{report}");
    assert!(report.counters["undone"] > 5 && report.counters["done"] > 0, "{report}");
    assert!(report.counters["failed writes"] > 20, "{report}");
    assert!(report.counters["cuts that struck"] > 150, "{report}");
}

#[test]
fn commands_over_two_drives_keep_their_promises_wherever_power_is_cut() {
    let report = passes("node-cut", &RunOptions { seeds: 2, ops: Some(30), ..RunOptions::default() });
    println!("{report}");
    assert!(report.counters["cuts that struck"] > 400, "{report}");
    for what in ["done", "undone", "done in part", "acknowledged"] {
        assert!(report.counters.get(what).is_some_and(|count| *count > 10), "{what}: {report}");
    }
}

#[test]
fn what_clients_saw_is_explained_whatever_happened_to_links_media_and_the_server() {
    let report = passes("redis", &RunOptions { seeds: 48, ..RunOptions::default() });
    for what in [
        "crashes",
        "partitions",
        "failed programs",
        "failed reads",
        "flipped reads",
        "replies",
        "drives of several channels",
        "commands failed by the media",
        "seeds without faults",
    ] {
        assert!(report.counters.get(what).is_some_and(|count| *count > 0), "{what}: {report}");
    }
    println!("{report}");
    for (what, least) in
        [("commands without a reply at a crash", 100), ("spoilt reads", 30), ("keys read at last", 1000)]
    {
        assert!(report.counters.get(what).is_some_and(|count| *count >= least), "{what}: {report}");
    }
    // Of many commands that nobody heard of the checker may have too many orders to try; hardly ever.
    let count = |what: &str| report.counters.get(what).copied().unwrap_or(0);
    assert!(count("histories given up") * 1000 <= count("histories judged"), "{report}");
}

#[test]
fn raw_flash_survives_power_cuts_at_every_operation() {
    let report = passes("ftl", &RunOptions { seeds: 8, ops: Some(6), ..RunOptions::default() });
    assert!(report.counters["cuts"] > 300 && report.counters["second cuts"] > 100, "{report}");
    assert!(report.counters["recoveries"] > 300 && report.counters["clean opens"] > 300, "{report}");
}

#[test]
fn flipped_bits_never_give_wrong_data() {
    let report = passes("kv-flip", &RunOptions { seeds: 12, ops: Some(60), ..RunOptions::default() });
    for what in [
        "drives that were not closed",
        "flips that cost a part of the log",
        "keys that went back with the log",
        "flips that cost keys",
        "flips in key tables that cost keys",
        "flips found by the check",
    ] {
        assert!(report.counters.get(what).is_some_and(|count| *count > 0), "{what}: {report}");
    }
    assert!(report.counters["commits beside others on other channels"] > 100, "{report}");
}

/// Key tables that a merge has written and not yet named must survive cleaning, a merge must not take all that is free,
/// and deletes must not be refused while merges go on: these seeds fill drives with values that lie in key tables.
#[test]
fn a_full_drive_says_so_takes_deletes_and_half_fits_again() {
    passes("kv-full", &RunOptions { seed: 8, seeds: 3, ..RunOptions::default() });
    // What is put again has more than a segment.
    let report = passes("kv-full", &RunOptions { seed: 2, ops: Some(2), ..RunOptions::default() });
    assert!(report.counters["put again when full"] > 10_000, "{report}");
    // Here only a flush wins something, and its tables find no segments of their own.
    passes("kv-full", &RunOptions { seed: 1050, ops: Some(1), ..RunOptions::default() });
}

/// Power fails while cleaning works for who fills a drive, and while it is emptied. One has several channels.
#[test]
fn a_full_drive_survives_power_cuts_while_it_cleans() {
    for seed in [3, 23] {
        let report = passes("kv-full", &RunOptions { seed, ..RunOptions::default() });
        for what in ["cuts while a drive fills", "cuts while a full drive is emptied", "records replayed"] {
            assert!(report.counters.get(what).is_some_and(|count| *count > 0), "{what}: {report}");
        }
        let beside = report.counters.get("commits beside others on other channels").copied().unwrap_or(0);
        assert!(seed != 23 || beside > 0, "{report}");
    }
}

#[test]
fn the_same_seed_gives_the_same_events() {
    let options = RunOptions { seed: 2, ..RunOptions::default() };
    assert_eq!(passes("kv", &options).event_hash, passes("kv", &options).event_hash);
    let few = RunOptions { ops: Some(3), ..options.clone() };
    assert_eq!(passes("ftl", &few).event_hash, passes("ftl", &few).event_hash);
    let other = RunOptions { seed: 3, ..RunOptions::default() };
    assert_ne!(passes("kv", &options).event_hash, passes("kv", &other).event_hash);
}

#[test]
fn an_unknown_world_is_refused_with_those_there_are() {
    let error = run("nowhere", &RunOptions::default()).expect_err("there is no such world").to_string();
    assert!(list().iter().all(|world| error.contains(world.name)), "{error}");
}

/// Relaxed durability: what was written half a second ago outlives the process.
#[test]
fn a_killed_process_loses_what_is_younger_than_it_may_lose() {
    passes("kv", &RunOptions { seed: 147, ..RunOptions::default() });
}
