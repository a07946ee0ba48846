//! World `redis-cut`: power is cut, or a write of the drive fails, inside of commands that write a collection in many
//! batches. Afterwards the collection is what it was before or what the command makes of it, and nothing is left on the
//! drive that no key names. LREM, which ends what it began, is cut at every operation; so are FLUSHDB and FLUSHALL,
//! which leave a whole space behind that must not be seen again.

use std::time::Duration;

use pumice_base::hash::stable_hash64;
use pumice_base::rng::Rng;
use pumice_reactor::sim::{CutMode, DiskImage, FaultOp, FileFault, Halt, PowerCut};

use super::resp::Reply;
use super::served::{Setup, path};
use super::stage::{Command, Stage, call, connect, look, prepare, words};
use crate::report::{Report, RunOptions};
use crate::worlds::{Broken, Outcome, caught};

const MODES: [CutMode; 3] = [CutMode::Before, CutMode::Torn, CutMode::After];
/// Cuts of each command and seed, spread over its operations, where not every operation is cut.
const CUTS: u64 = 10;
/// Failed writes of each command and seed, spread likewise: half of them cost a segment, half stop the drive.
const FAULTS: u64 = 6;
/// What a kernel makes of a sector that cannot be written, and of a link that fails.
const ERRORS: [i32; 2] = [61, 5];
/// Elements of a collection, and bytes of each: several batches' worth.
const ELEMENTS: usize = 6000;
const ELEMENT_BYTES: usize = 600;

/// What strikes inside of a command.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    Cut(PowerCut),
    /// The write after so many fails.
    Fault {
        skip: u64,
        errno: i32,
    },
}

/// What is there before a command, the command, and the key to look at.
struct Case {
    name: &'static str,
    setup: fn() -> Vec<Command>,
    command: fn() -> Command,
    /// Reads everything that the command may change.
    reads: &'static [&'static str],
    /// Cut at every operation, in every mode.
    everywhere: bool,
}

fn element(prefix: &str, n: usize) -> Vec<u8> {
    let mut element = format!("{prefix}{n:05}:").into_bytes();
    element.resize(ELEMENT_BYTES, b'a' + (n % 26) as u8);
    element
}

/// Commands that fill `key`, a few hundred elements each.
fn fill(name: &str, key: &str, prefix: &str, range: std::ops::Range<usize>) -> Vec<Command> {
    let numbers: Vec<usize> = range.collect();
    let chunk = |numbers: &[usize]| {
        let mut command = vec![name.as_bytes().to_vec(), key.as_bytes().to_vec()];
        for &n in numbers {
            match name {
                "ZADD" => command.extend([n.to_string().into_bytes(), element(prefix, n)]),
                "HSET" => command.extend([format!("f{n}").into_bytes(), element(prefix, n)]),
                _ => command.push(element(prefix, n)),
            }
        }
        command
    };
    numbers.chunks(300).map(chunk).collect()
}

fn list() -> Vec<Command> {
    let mut commands = fill("RPUSH", "list", "e", 0..ELEMENTS);
    // One in the middle to find, and some to remove: far apart, close to the start, close to the end.
    commands.push(words("LSET list 3000 pivot"));
    for (value, places) in [
        ("gone", [500, 2900, 3100, 5500]),
        ("early", [100, 800, 2000, 2500]),
        ("late", [3500, 4000, 5200, 5900]),
    ] {
        commands.extend(places.map(|at| words(&format!("LSET list {at} {value}"))));
    }
    commands.extend([1000, 4500].map(|at| [words(&format!("LSET list {at}")), vec![long()]].concat()));
    commands
}

/// An element that is stored in pieces of its own.
fn long() -> Vec<u8> {
    vec![b'l'; 300 << 10]
}

fn sets() -> Vec<Command> {
    let mut commands = fill("SADD", "a", "m", 0..ELEMENTS);
    commands.extend(fill("SADD", "b", "m", ELEMENTS / 2..ELEMENTS + 500));
    commands.extend(fill("SADD", "to", "old", 0..400));
    commands
}

fn zsets() -> Vec<Command> {
    let mut commands = fill("ZADD", "a", "m", 0..ELEMENTS / 2);
    commands.extend(fill("RPUSH", "to", "old", 0..300));
    commands
}

fn hashes() -> Vec<Command> {
    let mut commands = fill("HSET", "a", "v", 0..ELEMENTS);
    commands.extend(fill("HSET", "to", "old", 0..400));
    commands
}

/// A database that was emptied before and holds something again, and another.
fn databases() -> Vec<Command> {
    let mut commands = fill("SADD", "set", "old", 0..200);
    commands.extend([words("SET string old"), words("FLUSHDB")]);
    commands.extend(fill("HSET", "hash", "v", 0..ELEMENTS / 10));
    commands.extend(["SET string new", "SELECT 1", "SET other 1", "RPUSH list a b"].map(words));
    commands
}

/// At last everything is emptied once more: what a crash took back or left must not be in the databases' next spaces.
const DATABASE_READS: &[&str] = &[
    "GET string",
    "HLEN hash",
    "DEBUG DIGEST-VALUE hash",
    "EXISTS set",
    "DBSIZE",
    "KEYS *",
    "SELECT 1",
    "GET other",
    "LRANGE list 0 -1",
    "DBSIZE",
    "KEYS *",
    "FLUSHALL",
    "DBSIZE",
    "KEYS *",
    "SET again 1",
    "SELECT 0",
    "EXISTS string hash set",
    "DBSIZE",
    "KEYS *",
];

const CASES: &[Case] = &[
    Case {
        name: "FLUSHDB",
        setup: databases,
        command: || words("FLUSHDB"),
        reads: DATABASE_READS,
        everywhere: true,
    },
    Case {
        name: "FLUSHALL",
        setup: databases,
        command: || words("FLUSHALL"),
        reads: DATABASE_READS,
        everywhere: true,
    },
    Case {
        name: "LINSERT",
        setup: list,
        command: || words("LINSERT list BEFORE pivot new"),
        reads: &["LLEN list", "DEBUG DIGEST-VALUE list"],
        everywhere: false,
    },
    // Zero removes all, which goes to the end here; what a crash leaves of it is copied before it is looked at.
    Case {
        name: "LREM 0",
        setup: list,
        command: || words("LREM list 0 gone"),
        reads: &[
            "COPY list copy REPLACE",
            "LLEN copy",
            "DEBUG DIGEST-VALUE copy",
            "LLEN list",
            "DEBUG DIGEST-VALUE list",
        ],
        everywhere: true,
    },
    // To the end, and others of the value behind those that are removed.
    Case {
        name: "LREM 2",
        setup: list,
        command: || words("LREM list 2 late"),
        reads: &["LLEN list", "DEBUG DIGEST-VALUE list"],
        everywhere: true,
    },
    // To the start, likewise.
    Case {
        name: "LREM -2",
        setup: list,
        command: || words("LREM list -2 early"),
        reads: &["LLEN list", "DEBUG DIGEST-VALUE list"],
        everywhere: true,
    },
    Case {
        name: "LREM of a long element",
        setup: list,
        command: || [words("LREM list -2"), vec![long()]].concat(),
        reads: &["LLEN list", "DEBUG DIGEST-VALUE list"],
        everywhere: true,
    },
    Case {
        name: "SUNIONSTORE",
        setup: sets,
        command: || words("SUNIONSTORE to a b"),
        reads: &["SMEMBERS to", "SCARD to"],
        everywhere: false,
    },
    Case {
        name: "ZRANGESTORE",
        setup: zsets,
        command: || words("ZRANGESTORE to a 0 -1"),
        reads: &["ZRANGE to 0 -1", "LRANGE to 0 -1", "TYPE to"],
        everywhere: false,
    },
    Case {
        name: "COPY",
        setup: hashes,
        command: || words("COPY a to REPLACE"),
        reads: &["HGETALL to", "HLEN to"],
        everywhere: false,
    },
    // It deletes; what a crash leaves of it must not be found by who writes the key again.
    Case {
        name: "PEXPIREAT of a time that is over",
        setup: hashes,
        command: || words("PEXPIREAT a 1"),
        reads: &["HLEN a", "DEBUG DIGEST-VALUE a", "PEXPIRETIME a", "HSET a new 1", "HLEN a", "HGET a f7"],
        everywhere: true,
    },
    Case {
        name: "RENAME",
        setup: hashes,
        command: || words("RENAME a to"),
        reads: &["HGETALL to", "HGETALL a"],
        everywhere: false,
    },
];

/// A run of a case: what was there afterwards, whether the command was acknowledged, how many operations it took, and
/// whether power was cut.
struct Run {
    found: Vec<Reply>,
    is_acknowledged: bool,
    operations: u64,
    is_struck: bool,
}

/// Runs the case on the media of `image`; `trouble` counts operations from the command on.
fn play(
    stage: &Stage,
    image: &DiskImage,
    case: &'static Case,
    trouble: Option<Trouble>,
) -> Result<Run, String> {
    let (world, server) = (&stage.world, stage.server);
    stage.boot_again(Some(image));
    let mut connection = stage.client(connect(stage.addr.clone()))?;
    let start = world.counters(server).mutations;
    match trouble {
        Some(Trouble::Cut(cut)) => world.cut_power(server, PowerCut { at: start + cut.at, ..cut }),
        Some(Trouble::Fault { skip, errno }) => {
            let (op, path) = (FaultOp::Write, Some(path(0)));
            world.add_fault(server, FileFault { path, op, range: None, skip, times: 1, errno });
        }
        None => {}
    }
    let work = async move { call(&mut connection, &(case.command)()).await };
    let answer = match world.block_on_for(stage.client, Duration::from_secs(20), work) {
        Ok(answer) => answer.ok(),
        Err(Halt::OutOfTime) => None,
        Err(halt) => return Err(format!("the command: {halt}")),
    };
    let operations = world.counters(server).mutations - start;
    let is_struck = !world.is_up(server);
    let is_fault = matches!(trouble, Some(Trouble::Fault { .. }));
    if is_fault {
        // What a drive that failed has in memory alone must not be what is found.
        world.clear_faults(server);
        world.crash(server);
    }
    if world.is_up(server) {
        world.spare_power(server);
    } else {
        stage.boot_again(None);
    }
    let found = stage.client(look(stage.addr.clone(), case.reads))?;
    // A drive that lost a segment to a failed write may say so.
    stage.look_at_drives(!is_fault)?;
    let is_acknowledged = match answer {
        Some(Reply::Error(why)) if is_fault && is_typed(&why) => false,
        Some(Reply::Error(why)) => return Err(format!("the command: {why}")),
        answer => answer.is_some(),
    };
    Ok(Run { found, is_acknowledged, operations, is_struck })
}

/// Whether an error says that the media failed.
fn is_typed(why: &str) -> bool {
    ["MISCONF ", "ERR writing ", "ERR the drive takes no writes"].iter().any(|prefix| why.starts_with(prefix))
}

/// What strikes a command of so many operations.
fn troubles(case: &Case, operations: u64, seed: u64) -> Vec<Trouble> {
    let mut rng = Rng::from_seed(seed).split(case.name);
    let mut troubles = Vec::new();
    for number in 0..CUTS + FAULTS {
        let at = rng.below(operations);
        let mode = MODES[rng.below(3) as usize];
        match number.checked_sub(CUTS) {
            None if case.everywhere => {}
            None => troubles.push(Trouble::Cut(PowerCut { at, mode, fate: None })),
            Some(fault) => troubles.push(Trouble::Fault { skip: at, errno: ERRORS[fault as usize % 2] }),
        }
    }
    if case.everywhere {
        let cuts = (0..operations).flat_map(|at| MODES.map(|mode| PowerCut { at, mode, fate: None }));
        troubles.extend(cuts.map(Trouble::Cut));
    }
    troubles
}

fn case(seed: u64, case: &'static Case, only: Option<u64>, report: &mut Report) -> Outcome {
    // Every other seed has a drive of several channels, which makes several times as many writes to be cut.
    let stage = Stage::new(Setup::plain(seed, 1, [4, 1][seed as usize % 2]))?;
    let (world, server) = (&stage.world, stage.server);
    stage.client(prepare(stage.addr.clone(), (case.setup)()))?;
    world.run_for(Duration::from_secs(2));
    let image = world.disk(server);
    let before = stage.client(look(stage.addr.clone(), case.reads))?;
    let Run { found: after, operations, .. } = play(&stage, &image, case, None)?;
    if before == after || operations < 1 {
        return Err(format!("{}: it changes nothing, or in {operations} operations", case.name).into());
    }
    for (number, trouble) in troubles(case, operations, seed).into_iter().enumerate() {
        if only.is_some_and(|only| only != number as u64) {
            continue;
        }
        let ran = caught(|| play(&stage, &image, case, Some(trouble)).map_err(Broken::from));
        let checked = ran.and_then(|run| {
            let is_whole = run.found == after;
            if !is_whole && (run.is_acknowledged || run.found != before) {
                let cut = if run.is_acknowledged { "acknowledged" } else { "not acknowledged" };
                return Err(Broken::from(format!("neither before nor after ({cut})")));
            }
            report.count(if is_whole { "done" } else { "undone" }, 1);
            report.count("cuts that struck", u64::from(run.is_struck));
            Ok(())
        });
        checked.map_err(|broken| Broken {
            what: format!("{}: {trouble:?} of {operations} operations: {}", case.name, broken.what),
            replay_args: format!(" --cut {number}"),
        })?;
        report.count(if matches!(trouble, Trouble::Cut(_)) { "cuts" } else { "failed writes" }, 1);
    }
    Ok(world.event_hash())
}

pub(crate) fn run(seed: u64, options: &RunOptions, report: &mut Report) -> Outcome {
    let mut hash = 0;
    for one in CASES {
        hash = stable_hash64(hash, &case(seed, one, options.cut, report)?.to_le_bytes());
    }
    Ok(hash)
}
