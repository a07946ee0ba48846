//! A play: one server, clients on hosts of their own, a script of faults. At last, with nothing in the way, the server is crashed
//! once more, and every key must be told of again. Then the histories are judged.

use super::client::{ACCOUNTS, BankOp, BankReply, Client, History, OPENING, Teller, read_everything};
use super::group::{GroupCall, GroupModel, KEYS};
use super::model::{Call, Held, KeyModel, Walls};
use super::mover::Mover;
use super::resp::Reply;
use crate::linear::{Model, Operation, Verdict, check};
use pumice_base::rng::Rng;
use pumice_reactor::Addr;
use pumice_reactor::sim::{
    DiskModel, FaultOp, HostId, HostOptions, LinkModel, RandomEffect, RandomFault, World,
};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

/// What a kernel makes of a sector that cannot be written or read, and of a link that fails.
const ENODATA: i32 = 61;
const EIO: i32 = 5;
/// A server has opened its drives by then, and clients have connected.
const OPENED_AFTER: Duration = Duration::from_millis(150);
/// Calls just before a crash; that many or fewer are not answered.
const CALLS_BEFORE_A_CRASH: u64 = 25;
/// The checker gives a key up after this many steps.
const STEPS_MAX: u64 = 10_000_000;

/// What is played.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Clients of single commands.
    pub clients: u64,
    /// Clients of transactions.
    pub tellers: u64,
    /// Clients of commands on several keys.
    pub movers: u64,
    /// Keys of each kind.
    pub keys: u64,
    /// Faults, one after another.
    pub faults: u64,
    /// Calls that all clients together may make between two faults.
    pub calls: u64,
    /// The longest time between two faults, in ms.
    pub gap_ms: u64,
    /// The server may lose power or be killed.
    pub crashes: bool,
    /// Links may be cut, connections reset, and segments lost.
    pub link_faults: bool,
    /// The server's wall clock may jump.
    pub clock_jumps: bool,
    /// Keys are given deadlines.
    pub deadlines: bool,
    /// The server's disk. On a slow one many replies are waited for when a fault strikes.
    pub disk: DiskModel,
    /// Files of the server whose media may fail programs, syncs and reads, and flip bits that are read.
    pub media: Vec<PathBuf>,
}

impl Plan {
    /// A plan from a seed.
    pub fn draw(rng: &mut Rng) -> Self {
        let few = 1 + rng.below(4);
        let trouble = !rng.chance(0.1);
        let slow = DiskModel { write_ns: 2_000_000, ..DiskModel::default() };
        Self {
            clients: 2 + rng.below(8),
            tellers: 1 + rng.below(3),
            movers: rng.split("movers").below(4),
            keys: if rng.chance(0.33) { few * 40 } else { few },
            faults: 4 + rng.below(6),
            calls: 200 + rng.below(400),
            gap_ms: [20, 100, 400][rng.below(3) as usize],
            crashes: trouble,
            link_faults: trouble,
            clock_jumps: trouble,
            deadlines: rng.split("deadlines").chance(0.5),
            disk: if rng.chance(0.5) { slow } else { DiskModel::default() },
            media: Vec::new(),
        }
    }

    /// Whether nothing ever goes wrong.
    fn is_calm(&self) -> bool {
        !self.crashes && !self.link_faults && self.media.is_empty()
    }
}

/// Plays `plan` against the server that `boot` starts on `server` (again after each of its crashes), and judges
/// what the clients saw. Answers counters, or why the histories have no explanation.
pub fn play(
    world: &World,
    server: HostId,
    addr: &Addr,
    boot: &mut dyn FnMut(&World),
    rng: &mut Rng,
    plan: &Plan,
) -> Result<BTreeMap<&'static str, u64>, String> {
    let history = Rc::new(History::default());
    let hosts: Vec<HostId> = (0..2)
        .map(|index| {
            world.add_host(HostOptions {
                name: format!("clients{index}"),
                cores: 1,
                ..HostOptions::default()
            })
        })
        .collect();
    if plan.link_faults && rng.chance(0.3) {
        world.set_default_link(LinkModel { loss: 0.01, ..LinkModel::default() });
    }
    boot(world);
    for index in 0..plan.clients {
        let client = Client {
            addr: addr.clone(),
            rng: rng.split(&format!("client {index}")),
            history: Rc::clone(&history),
            keys: plan.keys,
            pipeline: [1, 1, 4, 16][rng.below(4) as usize],
            pause_us: [100, 2_000, 20_000][rng.below(3) as usize],
            value_max: [100, 2_000, 30_000][rng.below(3) as usize],
            deadlines: plan.deadlines,
        };
        drop(world.run(hosts[(index % 2) as usize], 0, client.run()));
    }
    for index in 0..plan.tellers {
        let teller = Teller {
            addr: addr.clone(),
            rng: rng.split(&format!("teller {index}")),
            history: Rc::clone(&history),
        };
        drop(world.run(hosts[(index % 2) as usize], 0, teller.run()));
    }
    for index in 0..plan.movers {
        let mut rng = rng.split(&format!("mover {index}"));
        let pause_us = [100, 2_000, 20_000][rng.below(3) as usize];
        let (addr, history, deadlines) = (addr.clone(), Rc::clone(&history), plan.deadlines);
        let mover = Mover { addr, rng, history, pause_us, deadlines };
        drop(world.run(hosts[(index % 2) as usize], 0, mover.run()));
    }
    for _ in 0..plan.faults {
        history.calls_left.set(plan.calls);
        world.run_for(Duration::from_micros(rng.below(plan.gap_ms * 1000)));
        fault(world, server, &hosts, boot, rng, plan, &history);
        // However early the faults come, something gets done in between.
        world.run_for(Duration::from_millis(30));
    }
    history.over.set(true);
    for &host in &hosts {
        world.heal(server, host);
    }
    world.clear_faults(server);
    world.run_for(Duration::from_secs(30));
    if plan.is_calm() {
        calm(&history)?;
    }
    if plan.crashes {
        world.crash(server);
        world.restart(server);
        boot(world);
    }
    let reads = read_everything(addr.clone(), rng.split("at last"), Rc::clone(&history));
    world.block_on(hosts[0], reads).map_err(|halt| format!("reading everything at last: {halt}"))??;
    judge(&history, world.wall_ms(hosts[0]))
}

/// Where nothing went wrong no client may have noticed anything.
fn calm(history: &History) -> Result<(), String> {
    history.count("seeds without faults", 1);
    for what in ["connections broken", "commands failed by the media"] {
        if let Some(count) = history.counts.borrow().get(what) {
            return Err(format!("{what} without a fault: {count}"));
        }
    }
    Ok(())
}

/// Ends the server's life while clients wait for replies.
fn crash(world: &World, server: HostId, rng: &mut Rng, plan: &Plan, power: bool, history: &History) {
    // Not more: of commands that nobody heard of the checker has to try each, at each later time and never.
    history.calls_left.set(CALLS_BEFORE_A_CRASH + plan.keys);
    world.run_for(Duration::from_micros(rng.below(5_000)));
    history.count("commands without a reply at a crash", history.unanswered.get());
    if power { world.crash(server) } else { world.kill(server) }
}

fn fault(
    world: &World,
    server: HostId,
    hosts: &[HostId],
    boot: &mut dyn FnMut(&World),
    rng: &mut Rng,
    plan: &Plan,
    history: &History,
) {
    if !plan.media.is_empty() && rng.chance(0.4) {
        return media_trouble(world, server, boot, rng, plan, history);
    }
    let host = hosts[rng.below(hosts.len() as u64) as usize];
    match rng.below(7) {
        0 | 1 if plan.crashes => {
            for _ in 0..1 + rng.below(3) {
                let power = rng.chance(0.7);
                crash(world, server, rng, plan, power, history);
                history.count("crashes", 1);
                world.run_for(Duration::from_millis(rng.below(2_000)));
                world.restart(server);
                boot(world);
                world.run_for(OPENED_AFTER);
            }
        }
        2 if plan.link_faults => {
            world.partition(server, host);
            history.count("partitions", 1);
            world.run_for(Duration::from_millis(rng.below(8_000)));
            world.heal(server, host);
        }
        3 if plan.link_faults => {
            world.reset_connections(server, host);
            history.count("resets", 1);
        }
        4 if plan.clock_jumps => {
            let ms = rng.below(7_200_000) as i64 - 3_600_000;
            world.jump_wall(server, ms);
            history.walls.borrow_mut().jump(world.wall_ms(host), ms);
            history.count("clock jumps", 1);
        }
        _ => {}
    }
}

/// A drive's media fail for a while, in one of the ways that media have. What a drive cannot mend stops its writes until
/// it is opened anew, which comes by a power cut or by a kill.
fn media_trouble(
    world: &World,
    server: HostId,
    boot: &mut dyn FnMut(&World),
    rng: &mut Rng,
    plan: &Plan,
    history: &History,
) {
    let path = plan.media[rng.below(plan.media.len() as u64) as usize].clone();
    let (what, op, effect, chances) = match rng.below(6) {
        0 | 1 => ("failed programs", FaultOp::Write, RandomEffect::Errno(ENODATA), [0.02, 0.2]),
        2 => ("failed links", FaultOp::Write, RandomEffect::Errno(EIO), [0.005, 0.05]),
        3 => ("failed syncs", FaultOp::Sync, RandomEffect::Errno(EIO), [0.1, 1.0]),
        4 => ("failed reads", FaultOp::Read, RandomEffect::Errno(ENODATA), [0.1, 1.0]),
        _ => ("flipped reads", FaultOp::Read, RandomEffect::Flip, [0.1, 1.0]),
    };
    history.count(what, 1);
    let chance = chances[rng.below(2) as usize];
    if op == FaultOp::Read && rng.chance(0.8) {
        // What was written or read lately lies in memory, and is not read.
        history.calls_left.set(0);
        world.kill(server);
        world.restart(server);
        boot(world);
        world.run_for(OPENED_AFTER);
    }
    let spoilt = world.counters(server).spoilt_reads;
    world.add_random_fault(server, RandomFault { path, op, chance, effect });
    history.calls_left.set(plan.calls);
    world.run_for(Duration::from_millis(30 + rng.below(200)));
    history.count("spoilt reads", world.counters(server).spoilt_reads - spoilt);
    let may_have_stopped = effect == RandomEffect::Errno(EIO) || op == FaultOp::Write;
    if may_have_stopped || rng.chance(0.3) {
        let power = rng.chance(0.5);
        crash(world, server, rng, plan, power, history);
        world.clear_faults(server);
        world.restart(server);
        boot(world);
    }
    world.clear_faults(server);
}

/// The bank: transactions take effect at one instant.
struct Bank;

impl Model for Bank {
    type Op = BankOp;
    type Reply = BankReply;
    type State = [i64; ACCOUNTS];

    fn apply(
        &self,
        state: &Self::State,
        op: &BankOp,
        reply: Option<&BankReply>,
    ) -> impl Iterator<Item = Self::State> {
        let after = match (op, reply) {
            (_, Some(BankReply::Aborted)) => Some(*state),
            (BankOp::Move { read, write }, None | Some(BankReply::Done)) => {
                let unchanged = read.iter().all(|&(account, value)| state[account] == value);
                let mut after = *state;
                for &(account, value) in write {
                    after[account] = value;
                }
                match (unchanged, reply) {
                    (true, _) => Some(after),
                    // Nobody heard: it may have been aborted.
                    (false, None) => Some(*state),
                    (false, Some(_)) => None,
                }
            }
            (BankOp::ReadAll, None) => Some(*state),
            (BankOp::ReadAll, Some(BankReply::Accounts(values))) => {
                (values[..] == state[..]).then_some(*state)
            }
            _ => None,
        };
        after.into_iter()
    }
}

fn judge(history: &History, end_ms: u64) -> Result<BTreeMap<&'static str, u64>, String> {
    let model = KeyModel { walls: history.walls.borrow().clone(), end_ms };
    for (key, operations) in history.keys.borrow().iter() {
        let deadlines = operations.iter().filter(|one| one.op.op.deadline().is_some()).count();
        history.count("deadlines", deadlines as u64);
        // Reads that nobody heard explain nothing.
        let operations: Vec<_> = operations
            .iter()
            .filter(|operation| operation.returned.is_some() || !operation.op.op.only_reads())
            .cloned()
            .collect();
        // A crash under load leaves dozens that nobody heard of. An order without those that nobody saw anything of explains
        // the replies as well, and is found sooner; that there is none would say nothing.
        let seen: Vec<_> = operations.iter().filter(|one| is_seen(one, &operations)).cloned().collect();
        let mut verdict = check(&model, Held::default(), &seen, STEPS_MAX);
        if !matches!(verdict, Verdict::Linearizable(_)) && seen.len() < operations.len() {
            verdict = check(&model, Held::default(), &operations, STEPS_MAX);
        }
        conclude(&String::from_utf8_lossy(key), &operations, verdict, history)?;
    }
    let bank = history.bank.borrow();
    let verdict = check(&Bank, [OPENING; ACCOUNTS], &bank, STEPS_MAX);
    conclude("the bank", &bank, verdict, history)?;
    judge_group(history, history.walls.borrow().clone(), end_ms)?;
    Ok(history.counts.borrow().clone())
}

fn judge_group(history: &History, walls: Walls, end_ms: u64) -> Result<(), String> {
    let model = GroupModel { walls, end_ms };
    let initial = [(); KEYS].map(|()| Held::default());
    let operations = history.group.borrow();
    let heard = |one: &Operation<GroupCall, Reply>| one.returned.is_some();
    let operations: Vec<_> =
        operations.iter().filter(|one| heard(one) || !one.op.act.only_reads()).cloned().collect();
    let replies = || operations.iter().filter_map(|one| one.returned.as_ref().map(|(_, reply)| reply));
    let may_be_seen = |one: &Operation<GroupCall, Reply>| one.op.act.may_be_seen(replies());
    let seen: Vec<_> = operations.iter().filter(|one| heard(one) || may_be_seen(one)).cloned().collect();
    let mut verdict = check(&model, initial.clone(), &seen, STEPS_MAX);
    if !matches!(verdict, Verdict::Linearizable(_)) && seen.len() < operations.len() {
        verdict = check(&model, initial, &operations, STEPS_MAX);
    }
    conclude("the group", &operations, verdict, history)
}

/// Whether it was answered, or some reply has the bytes or the deadline in it that it wrote. What writes neither may always have been
/// seen.
fn is_seen(operation: &Operation<Call, Reply>, all: &[Operation<Call, Reply>]) -> bool {
    let op = &operation.op.op;
    let (written, deadline) = (op.written(), op.deadline());
    if operation.returned.is_some() || (written.is_none() && deadline.is_none()) {
        return true;
    }
    all.iter().any(|other| match &other.returned {
        Some((_, Reply::Bulk(Some(value)))) => {
            written.is_some_and(|written| value.windows(written.len()).any(|part| part == written))
        }
        Some((_, Reply::Integer(number))) => deadline.is_some_and(|at| i64::try_from(at) == Ok(*number)),
        _ => false,
    })
}

fn conclude<O: Debug, R: Debug>(
    name: &str,
    operations: &[Operation<O, R>],
    verdict: Verdict,
    history: &History,
) -> Result<(), String> {
    match verdict {
        Verdict::Linearizable(_) => {
            history.count("histories judged", 1);
            history.count("operations judged", operations.len() as u64);
            Ok(())
        }
        Verdict::Unknown(_) => {
            history.count("histories given up", 1);
            Ok(())
        }
        Verdict::Violation { longest, stuck } => {
            let show = |index: &usize| {
                let text = format!("{:?}", operations[*index]);
                format!("    {}", text.chars().take(300).collect::<String>())
            };
            let last: Vec<String> = longest.iter().rev().take(12).rev().map(show).collect();
            Err(format!(
                "{name}: no order of its {} operations explains all replies; {} fit, the last of them:\n{}\n  then \
                 this one does not:\n{}",
                operations.len(),
                longest.len(),
                last.join("\n"),
                show(&stuck)
            ))
        }
    }
}
