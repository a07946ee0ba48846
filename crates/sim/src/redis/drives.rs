//! World `node-cut`: power is cut at every operation of commands that change keys on both of two drives: before, in the middle
//! of and after it. Whatever else is on its way is lost, kept or torn, in turn.
//!
//! What decision 0009 and `docs/commands.md` promise is what is asked for, and no less: on each drive its part of a command is
//! there whole or not at all, and all of it once it was acknowledged. Databases are emptied on all drives or on none. Besides, the
//! counts of keys are right, nothing is left that nobody can reach, the drives are sound, a second recovery changes nothing, and
//! what is emptied after that is empty.
//!
//! A run without a cut counts the operations of a case, those of the tasks that it leaves behind among them. `--cut` names the
//! case and the cut in one number.

use std::time::Duration;

use pumice_base::hash::stable_hash64;
use pumice_base::slot::slot_of;
use pumice_reactor::sim::{CrashFate, CutMode, DiskImage, Halt, PowerCut};

use super::resp::{Reply, encode};
use super::served::Setup;
use super::stage::{Command, Stage, connect, look, prepare, words};
use crate::report::{Report, Row, RunOptions};
use crate::worlds::{Broken, Outcome, caught};

const DRIVES: u8 = 2;
const MODES: [CutMode; 3] = [CutMode::Before, CutMode::Torn, CutMode::After];
const FATES: [CrashFate; 3] = [CrashFate::Lost, CrashFate::Kept, CrashFate::Mixed];
/// In `--cut`: the case's number times this, and the cut.
const CASE: u64 = 1_000_000;
/// What a command leaves to tasks is done by then.
const SETTLED: Duration = Duration::from_millis(50);
/// What puts a key on a drive: its slot is the tag's.
const TAGS: [&str; DRIVES as usize] = ["{b}", "{a}"];

/// Names of keys here say the drive before a colon: `0:a` and `1:a` lie on different ones.
fn placed(line: &str) -> String {
    let word = |word: &str| match word.split_once(':') {
        Some(("0", name)) => format!("{}{name}", TAGS[0]),
        Some(("1", name)) => format!("{}{name}", TAGS[1]),
        _ => word.to_string(),
    };
    line.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

struct Case {
    name: &'static str,
    setup: fn() -> Vec<Command>,
    /// One after another, or in one transaction.
    commands: &'static [&'static str],
    in_exec: bool,
    /// Whether a crash may leave what is between the first of the commands and the last.
    between: bool,
    /// Reads of what is whole or absent by itself; what is in several of them binds these to each other.
    parts: &'static [&'static [&'static str]],
}

impl Case {
    const ONE: Self =
        Self { name: "", setup: collections, commands: &[], in_exec: false, between: false, parts: &[] };
}

/// A string, a hash, a set and a list on each drive.
fn collections() -> Vec<Command> {
    let mut commands = Vec::new();
    for drive in 0..DRIVES {
        let mut hash = format!("HSET {drive}:hash");
        let mut set = format!("SADD {drive}:set");
        let mut list = format!("RPUSH {drive}:list");
        for n in 0..40 {
            hash += &format!(" f{n} {drive}-{n:0200}");
            set += &format!(" {drive}-{n}");
            list += &format!(" {drive}-{n}");
        }
        let string = format!("SET {drive}:string old");
        commands.extend([string, hash, set, list].map(|line| words(&placed(&line))));
    }
    commands
}

/// A hash of several batches on drive 0, and one in its way.
fn large() -> Vec<Command> {
    let mut commands = vec![words(&placed("HSET 1:hash old 1"))];
    for from in (0..1500).step_by(300) {
        let mut line = String::from("HSET 0:hash");
        (from..from + 300).for_each(|n| line += &format!(" f{n} {n:01000}"));
        commands.push(words(&placed(&line)));
    }
    commands
}

/// A database that was emptied before, so that its old space is one that has to stay gone.
fn emptied() -> Vec<Command> {
    let mut commands = collections();
    commands.push(words("FLUSHALL"));
    commands.extend(["SET 0:left 1", "SET 1:left 1", "HSET 1:hash f g"].map(|line| words(&placed(line))));
    commands
}

/// What lies on each drive, and what was there before on either: databases are emptied on all drives or on none.
const EMPTIED: &[&[&str]] = &[
    &["GET 0:left", "GET 0:new"],
    &["GET 1:left", "GET 1:new"],
    &["GET 0:left", "GET 1:left", "HGETALL 1:hash", "EXISTS 0:hash 1:list"],
];

const CASES: &[Case] = &[
    Case {
        name: "EXEC of SETs",
        commands: &["SET 0:a 1", "SET 1:a 1", "SET 0:string new", "SET 1:string new", "DEL 0:list 1:list"],
        in_exec: true,
        parts: &[&["GET 0:a", "GET 0:string", "LLEN 0:list"], &["GET 1:a", "GET 1:string", "LLEN 1:list"]],
        ..Case::ONE
    },
    Case {
        name: "MSET",
        commands: &["MSET 0:string new 0:a 1 1:string new 1:a 1 1:list 2"],
        parts: &[&["MGET 0:string 0:a"], &["MGET 1:string 1:a 1:list"]],
        ..Case::ONE
    },
    Case {
        name: "DEL",
        commands: &["DEL 0:string 1:hash 0:hash 1:list"],
        parts: &[&["EXISTS 0:string 0:hash", "HLEN 0:hash"], &["EXISTS 1:list 1:hash", "HLEN 1:hash"]],
        ..Case::ONE
    },
    Case {
        name: "RENAME of a hash",
        commands: &["RENAME 0:hash 1:to"],
        parts: &[&["HGETALL 0:hash"], &["HGETALL 1:to"]],
        ..Case::ONE
    },
    Case {
        name: "RENAME of a long hash",
        setup: large,
        commands: &["RENAME 0:hash 1:hash"],
        parts: &[
            &["HLEN 0:hash", "DEBUG DIGEST-VALUE 0:hash"],
            &["HLEN 1:hash", "DEBUG DIGEST-VALUE 1:hash"],
        ],
        ..Case::ONE
    },
    Case {
        name: "SMOVE",
        commands: &["SMOVE 0:set 1:set 0-7"],
        parts: &[&["SCARD 0:set", "SMEMBERS 0:set"], &["SCARD 1:set", "SMEMBERS 1:set"]],
        ..Case::ONE
    },
    Case {
        name: "LMOVE",
        commands: &["LMOVE 1:list 0:list LEFT RIGHT"],
        parts: &[&["LLEN 0:list", "LRANGE 0:list 0 -1"], &["LLEN 1:list", "LRANGE 1:list 0 -1"]],
        ..Case::ONE
    },
    Case {
        name: "COPY",
        commands: &["COPY 0:hash 1:hash REPLACE"],
        parts: &[&["HGETALL 0:hash"], &["HGETALL 1:hash"]],
        ..Case::ONE
    },
    Case {
        name: "FLUSHALL, then SET on the other drive",
        setup: emptied,
        commands: &["FLUSHALL", "SET 1:new 1", "SET 0:new 1"],
        between: true,
        parts: EMPTIED,
        ..Case::ONE
    },
    Case {
        name: "FLUSHALL and SET in one EXEC",
        setup: emptied,
        commands: &["FLUSHALL", "SET 1:new 1"],
        in_exec: true,
        between: true,
        parts: EMPTIED,
    },
];

/// What each part's reads answer.
type Found = Vec<Vec<Reply>>;

async fn look_at_parts(addr: pumice_reactor::Addr, case: &'static Case) -> Result<Found, String> {
    let mut found = Vec::new();
    for part in case.parts {
        let reads: Vec<String> = part.iter().map(|line| placed(line)).collect();
        let reads: Vec<&str> = reads.iter().map(String::as_str).collect();
        found.push(look(addr.clone(), &reads).await?);
    }
    // Whatever the parts are.
    match &look(addr, &["DBSIZE", "KEYS *"]).await?[..] {
        [Reply::Integer(size), Reply::Array(Some(keys))] if *size == keys.len() as i64 => Ok(found),
        other => Err(format!("what is counted is not what is there: {other:?}")),
    }
}

/// Sends the commands; how many of them were acknowledged before the connection broke.
async fn act(addr: pumice_reactor::Addr, commands: Vec<Command>) -> Result<usize, String> {
    let mut connection = connect(addr).await?;
    let mut out = Vec::new();
    for command in &commands {
        encode(&command.iter().map(Vec::as_slice).collect::<Vec<_>>(), &mut out);
    }
    if connection.send(out).await.is_err() {
        return Ok(0);
    }
    for acknowledged in 0..commands.len() {
        match connection.receive().await {
            Ok(Reply::Error(why)) => return Err(format!("command {acknowledged}: {why}")),
            Ok(_) => {}
            Err(_) => return Ok(acknowledged),
        }
    }
    Ok(commands.len())
}

struct Run {
    found: Found,
    /// Commands of the case.
    acknowledged: usize,
    operations: u64,
    is_struck: bool,
}

/// Runs the first `count` commands of the case on the drives of `image`. `cut` counts operations from them on.
fn play(
    stage: &Stage,
    image: &DiskImage,
    case: &'static Case,
    count: usize,
    cut: Option<PowerCut>,
) -> Result<Run, String> {
    let (world, server) = (&stage.world, stage.server);
    stage.boot_again(Some(image));
    // Connected, and with it all that opening has to write.
    stage.client(connect(stage.addr.clone()))?;
    world.run_for(SETTLED);
    let start = world.counters(server).mutations;
    if let Some(cut) = cut {
        world.cut_power(server, PowerCut { at: start + cut.at, ..cut });
    }
    let mut commands: Vec<Command> = case.commands[..count].iter().map(|line| words(&placed(line))).collect();
    if case.in_exec && count == case.commands.len() {
        commands.insert(0, words("MULTI"));
        commands.push(words("EXEC"));
    }
    let sent = commands.len();
    let work = act(stage.addr.clone(), commands);
    let heard = match world.block_on_for(stage.client, Duration::from_secs(20), work) {
        Ok(heard) => heard?,
        Err(Halt::OutOfTime) if !world.is_up(server) => 0,
        Err(halt) => return Err(format!("the commands: {halt}")),
    };
    let acknowledged = match case.in_exec {
        true if heard == sent => count,
        true => 0,
        false => heard,
    };
    world.run_for(SETTLED);
    let operations = world.counters(server).mutations - start;
    let is_struck = !world.is_up(server);
    world.spare_power(server);
    if cut.is_some() {
        if is_struck {
            world.restart(server);
            stage.boot();
        } else {
            stage.boot_again(None);
        }
    }
    let found = stage.client(look_at_parts(stage.addr.clone(), case))?;
    Ok(Run { found, acknowledged, operations, is_struck })
}

/// What must hold of the drives after a cut, beside what was found.
fn look_again(stage: &Stage, case: &'static Case, found: &Found) -> Result<(), String> {
    stage.world.run_for(SETTLED);
    stage.look_at_drives(true)?;
    stage.boot_again(None);
    let again = stage.client(look_at_parts(stage.addr.clone(), case))?;
    if again != *found {
        return Err(format!("another recovery made {again:?} of {found:?}"));
    }
    let emptied = stage.client(look(stage.addr.clone(), &["FLUSHALL", "DBSIZE", "KEYS *"]))?;
    match &emptied[..] {
        [Reply::Simple(_), Reply::Integer(0), Reply::Array(Some(keys))] if keys.is_empty() => Ok(()),
        other => Err(format!("emptied after that: {other:?}")),
    }
}

/// Whether each part is as so many of the commands make it: none, all, or what may be between, and no fewer than were
/// acknowledged.
fn judge(case: &Case, states: &[Found], run: &Run) -> Result<(), String> {
    let last = case.commands.len();
    for (part, found) in run.found.iter().enumerate() {
        let fits = |done: &usize| states[*done][part] == *found;
        let allowed = |done: &usize| case.between || *done == 0 || *done == last;
        if !(run.acknowledged..=last).filter(allowed).any(|done| fits(&done)) {
            return Err(format!(
                "{} of {last} commands acknowledged, and {:?} answer {found:?}",
                run.acknowledged, case.parts[part]
            ));
        }
    }
    Ok(())
}

fn one(seed: u64, number: u64, options: &RunOptions, report: &mut Report) -> Outcome {
    let case = &CASES[number as usize];
    // Every other seed has drives of several channels, and frames on their way side by side.
    let stage = Stage::new(Setup::plain(seed, DRIVES, [2, 1][seed as usize % 2]))?;
    let world = &stage.world;
    stage.client(prepare(stage.addr.clone(), (case.setup)()))?;
    world.run_for(Duration::from_secs(1));
    let image = world.disk(stage.server);
    let mut states = Vec::new();
    let mut operations = 0;
    for count in 0..=case.commands.len() {
        let run = play(&stage, &image, case, count, None)?;
        states.push(run.found);
        operations = run.operations;
    }
    if states[0] == states[case.commands.len()] || operations < 2 {
        return Err(format!("it changes nothing, or in {operations} operations").into());
    }
    let only = options.cut.map(|cut| cut % CASE);
    // `ops` leaves cuts out where a case makes many operations.
    let stride = options.ops.map_or(1, |most| (operations * 3).div_ceil(most.max(1))).max(1);
    let stride = if stride.is_multiple_of(3) { stride + 1 } else { stride }; // or it would leave modes out
    let cuts: Vec<u64> = (0..operations * 3)
        .step_by(stride as usize)
        .filter(|cut| only.is_none_or(|only| only == *cut))
        .collect();
    let mut struck = 0;
    for &cut in &cuts {
        let (at, mode) = (cut / 3, cut % 3);
        let fate = FATES[((seed + at + mode) % 3) as usize];
        let planned = PowerCut { at, mode: MODES[mode as usize], fate: Some(fate) };
        let ran = caught(|| {
            let run = play(&stage, &image, case, case.commands.len(), Some(planned))?;
            judge(case, &states, &run)?;
            look_again(&stage, case, &run.found)?;
            Ok(run)
        });
        let run = ran.map_err(|what: String| Broken {
            what: format!("{planned:?} of {operations} operations: {what}"),
            replay_args: format!(" --cut {}", number * CASE + cut),
        })?;
        struck += u64::from(run.is_struck);
        let (before, after) = (&states[0], &states[case.commands.len()]);
        let changed = (0..case.parts.len()).filter(|part| before[*part] != after[*part]);
        let whole = changed.clone().filter(|part| run.found[*part] == after[*part]).count();
        let outcome = match whole {
            0 => "undone",
            all if all == changed.count() => "done",
            _ => "done in part",
        };
        report.count(outcome, 1);
        report.count("acknowledged", u64::from(run.acknowledged == case.commands.len()));
    }
    report.count("cuts", cuts.len() as u64);
    report.count("cuts that struck", struck);
    // Writes of two drives may come in another order, and be fewer, than they were counted.
    let all = cuts.len() as f64;
    report.rows.push(Row::within(case.name, "cuts that struck", struck as f64, None, all * 0.8, all));
    Ok(world.event_hash())
}

pub(crate) fn run(seed: u64, options: &RunOptions, report: &mut Report) -> Outcome {
    assert!((0..DRIVES).all(|drive| slot_of(TAGS[usize::from(drive)].as_bytes()) % 2 == u16::from(drive)));
    let mut hash = 0;
    for number in 0..CASES.len() as u64 {
        if options.cut.is_some_and(|cut| cut / CASE != number) {
            continue;
        }
        let ran = one(seed, number, options, report).map_err(|broken| Broken {
            what: format!("{}: {}", CASES[number as usize].name, broken.what),
            ..broken
        })?;
        hash = stable_hash64(hash, &ran.to_le_bytes());
    }
    Ok(hash)
}
