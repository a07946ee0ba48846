//! Clients of a Redis server that write down what they asked, when, and what they heard.

use super::group::GroupCall;
use super::model::{Call, Op, Walls};
use super::mover::Mover;
use super::resp::{Connection, Reply, encode};
use crate::linear::Operation;
use pumice_base::rng::Rng;
use pumice_reactor::{Addr, sleep, timeout, wall_ms};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// How long a client waits for a reply before it gives its connection up.
pub(super) const PATIENCE: Duration = Duration::from_secs(4);
/// Accounts of the bank, all in one slot.
pub const ACCOUNTS: usize = 4;
/// What each account starts with.
pub const OPENING: i64 = 100;

/// A transaction on the bank, for the checker.
#[derive(Clone, Debug)]
pub enum BankOp {
    /// Sets the accounts, all at once, if they still hold what was read before.
    Move {
        /// Account and what was read from it.
        read: Vec<(usize, i64)>,
        /// Account and what is written to it.
        write: Vec<(usize, i64)>,
    },
    /// Reads all accounts at once.
    ReadAll,
}

/// What a transaction answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BankReply {
    /// It took effect.
    Done,
    /// A watched account had changed.
    Aborted,
    /// All accounts.
    Accounts(Vec<i64>),
}

/// The operations on one key.
pub type KeyHistory = Vec<Operation<Call, Reply>>;

/// Everything that was asked and heard. Times are counts of calls and returns: exact, as all clients run on one
/// thread.
#[derive(Default)]
pub struct History {
    pub(super) clock: Cell<u64>,
    pub(super) clients: Cell<u64>,
    pub(super) stamps: Cell<u64>,
    /// By key.
    pub keys: RefCell<BTreeMap<Vec<u8>, KeyHistory>>,
    /// Transactions.
    pub bank: RefCell<Vec<Operation<BankOp, BankReply>>>,
    /// What was done to the keys of [`super::group`].
    pub group: RefCell<Vec<Operation<GroupCall, Reply>>>,
    /// What else went on.
    pub counts: RefCell<BTreeMap<&'static str, u64>>,
    /// Clients stop when they see this.
    pub over: Cell<bool>,
    /// Commands and transactions that were sent, whose replies clients wait for.
    pub unanswered: Cell<u64>,
    /// The server's clock, beside the clients', which never jump.
    pub walls: RefCell<Walls>,
    /// Calls that may still be made before the next fault: virtual time is cheap, work is not.
    pub calls_left: Cell<u64>,
}

pub(super) fn next(cell: &Cell<u64>) -> u64 {
    cell.set(cell.get() + 1);
    cell.get()
}

impl History {
    /// Adds to a counter.
    pub fn count(&self, name: &'static str, n: u64) {
        *self.counts.borrow_mut().entry(name).or_default() += n;
    }

    /// Waits until calls may be made, or the history is over.
    pub(super) async fn may_call(&self) {
        while self.calls_left.get() == 0 && !self.over.get() {
            sleep(Duration::from_millis(1)).await;
        }
    }

    pub(super) fn use_calls(&self, n: u64) {
        self.calls_left.set(self.calls_left.get().saturating_sub(n));
    }

    /// A deadline by the server's clock, from the past to some hours ahead.
    pub(super) fn draw_deadline(&self, rng: &mut Rng) -> u64 {
        let now = wall_ms().saturating_add_signed(self.walls.borrow().ahead());
        match rng.below(20) {
            0 => now - 1 - rng.below(10_000),
            1..=6 => now + rng.below(100),
            7..=13 => now + rng.below(3_000),
            // These are met by a clock that jumps.
            _ => now + rng.below(7_200_000),
        }
    }

    fn call(&self, key: &[u8], client: u64, op: Op) -> usize {
        self.use_calls(1);
        let called = next(&self.clock);
        let mut keys = self.keys.borrow_mut();
        let history = keys.entry(key.to_vec()).or_default();
        let op = Call { op, called_ms: wall_ms(), answered_ms: None };
        history.push(Operation { client, called, op, returned: None });
        history.len() - 1
    }

    fn hear(&self, key: &[u8], index: usize, reply: Reply) {
        let at = next(&self.clock);
        if let Some(operation) =
            self.keys.borrow_mut().get_mut(key).and_then(|history| history.get_mut(index))
        {
            operation.op.answered_ms = Some(wall_ms());
            operation.returned = Some((at, reply));
        }
    }
}

/// Commands of one client that it waits for; none when it gives up.
pub(super) struct Unanswered(Rc<History>, u64);

impl Unanswered {
    pub(super) fn new(history: &Rc<History>, count: u64) -> Self {
        history.unanswered.set(history.unanswered.get() + count);
        Self(Rc::clone(history), count)
    }

    fn hear(&mut self, count: u64) {
        self.0.unanswered.set(self.0.unanswered.get() - count);
        self.1 -= count;
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        self.hear(self.1);
    }
}

/// Says that a command was not carried out at all: the server is loading, full, or shutting down.
pub(super) fn refused(reply: &Reply) -> bool {
    matches!(reply, Reply::Error(text) if ["LOADING", "OOM", "MISCONF", "READONLY", "MASTERDOWN"]
        .iter().any(|prefix| text.starts_with(prefix)))
}

/// Says that the media failed the command: it may have been carried out or not.
pub(super) fn failed(reply: &Reply) -> bool {
    let typed = ["ERR reading ", "ERR damaged: ", "ERR writing "];
    matches!(reply, Reply::Error(text) if typed.iter().any(|prefix| text.starts_with(prefix)))
}

/// One client.
pub struct Client {
    /// The server.
    pub addr: Addr,
    /// Its random stream.
    pub rng: Rng,
    /// Where it writes everything down.
    pub history: Rc<History>,
    /// Keys of each kind.
    pub keys: u64,
    /// Most commands sent before the first reply is read.
    pub pipeline: u64,
    /// The longest pause, in µs.
    pub pause_us: u64,
    /// The largest value, in bytes.
    pub value_max: u64,
    /// Keys are given deadlines.
    pub deadlines: bool,
}

impl Client {
    /// Until the history is over: connects, sends commands, reconnects when anything breaks.
    pub async fn run(mut self) {
        while !self.history.over.get() {
            let id = next(&self.history.clients);
            match Connection::open(&self.addr).await {
                Ok(mut connection) => {
                    while !self.history.over.get() && self.burst(id, &mut connection).await {
                        sleep(Duration::from_micros(self.rng.below(self.pause_us + 1))).await;
                    }
                }
                Err(_) => self.history.count("connections refused", 1),
            }
            sleep(Duration::from_millis(20 + self.rng.below(80))).await;
        }
    }

    /// A pipeline of commands and their replies; false when the connection broke.
    async fn burst(&mut self, id: u64, connection: &mut Connection) -> bool {
        self.history.may_call().await;
        let count = 1 + self.rng.below(self.pipeline);
        let mut out = Vec::new();
        let mut sent = Vec::new();
        for _ in 0..count {
            let (key, op) = self.draw();
            let command = op.command(&key);
            let parts: Vec<&[u8]> = command.iter().map(AsRef::as_ref).collect();
            encode(&parts, &mut out);
            let index = self.history.call(&key, id, op.clone());
            sent.push((key, index));
        }
        self.history.count("commands", count);
        let mut unanswered = Unanswered::new(&self.history, count);
        if connection.send(out).await.is_err() {
            return false;
        }
        for (key, index) in sent {
            let Ok(Ok(reply)) = timeout(PATIENCE, connection.receive()).await else {
                self.history.count("connections broken", 1);
                return false;
            };
            unanswered.hear(1);
            if refused(&reply) {
                // Never carried out: as if it had never been called, which a pending read-only operation says.
                self.history.count("commands refused", 1);
                if let Some(operation) =
                    self.history.keys.borrow_mut().get_mut(&key).and_then(|all| all.get_mut(index))
                {
                    operation.op.op = Op::Get;
                }
                continue;
            }
            if failed(&reply) {
                self.history.count("commands failed by the media", 1);
                continue;
            }
            self.history.hear(&key, index, reply);
            self.history.count("replies", 1);
        }
        true
    }

    fn value(&mut self) -> Vec<u8> {
        let mut value = format!("v{}.", next(&self.history.stamps)).into_bytes();
        let len = if self.rng.chance(0.8) { self.rng.below(30) } else { self.rng.below(self.value_max) };
        value.resize(value.len() + len as usize, b'x');
        value
    }

    fn draw(&mut self) -> (Vec<u8>, Op) {
        let number = self.rng.below(self.keys);
        let field = |rng: &mut Rng| format!("f{}", rng.below(5)).into_bytes();
        let kind = self.rng.below(11);
        let (kind, op) = match kind {
            0..=4 => {
                let op = match self.rng.below(14) {
                    0..=3 => Op::Get,
                    4..=6 => Op::Set(self.value()),
                    7 => Op::SetNx(self.value()),
                    8 => Op::SetXxGet(self.value()),
                    9 => Op::GetDel,
                    10 => Op::Del,
                    11 => Op::Exists,
                    12 => Op::Append(format!("+{}", next(&self.history.stamps)).into_bytes()),
                    _ => Op::StrLen,
                };
                ("string", op)
            }
            5 | 6 => {
                let op =
                    if self.rng.chance(0.7) { Op::IncrBy(self.rng.below(9) as i64 - 3) } else { Op::Get };
                ("counter", op)
            }
            7 | 8 => {
                let op = match self.rng.below(8) {
                    0..=2 => Op::HSet(field(&mut self.rng), self.value()),
                    3 => Op::HDel(field(&mut self.rng)),
                    4 | 5 => Op::HGet(field(&mut self.rng)),
                    6 => Op::HLen,
                    _ => Op::HGetAll,
                };
                ("hash", op)
            }
            9 => {
                let score = self.rng.below(9) as i64 - 4;
                let op = match self.rng.below(10) {
                    0..=2 => Op::ZAdd(score, field(&mut self.rng)),
                    3 => Op::ZRem(field(&mut self.rng)),
                    4 => Op::ZScore(field(&mut self.rng)),
                    5 => Op::ZCard,
                    6 => Op::ZIncrBy(score, field(&mut self.rng)),
                    7 => Op::ZPopMin,
                    8 => Op::ZRank(field(&mut self.rng)),
                    _ => Op::ZRange,
                };
                ("zset", op)
            }
            _ => {
                let element = format!("e{}", next(&self.history.stamps)).into_bytes();
                let op = match self.rng.below(12) {
                    0..=2 => Op::RPush(element),
                    3 => Op::LPush(element),
                    4 | 5 => Op::LPop,
                    6 | 7 => Op::RPop,
                    8 => {
                        let few = self.rng.below(4) as i64;
                        let (first, last) = [(0, -2), (1, -1), (0, few), (-1 - few, -1), (few, few), (5, 2)]
                            [self.rng.below(6) as usize];
                        Op::LTrim(first, last)
                    }
                    9 | 10 => Op::LRange,
                    _ => Op::LLen,
                };
                ("list", op)
            }
        };
        let op = if self.deadlines && self.rng.chance(0.2) { self.draw_of_deadlines(kind) } else { op };
        (format!("{kind}:{number}").into_bytes(), op)
    }

    fn draw_of_deadlines(&mut self, kind: &str) -> Op {
        let at = self.history.draw_deadline(&mut self.rng);
        match self.rng.below(10) {
            0..=1 if kind == "string" => Op::SetPxAt(self.value(), at),
            0..=4 => Op::PExpireAt(at),
            5 => Op::Persist,
            6 | 7 => Op::PExpireTime,
            _ => Op::read_of(kind.as_bytes()),
        }
    }
}

/// How long a server may take to open its drives, in tries.
const OPENED_WITHIN: u32 = 1000;

/// Reads every key and the bank once, where nothing is in the way: each reply must come, and tell.
///
/// # Errors
/// What was not answered, or how.
pub async fn read_everything(addr: Addr, rng: Rng, history: Rc<History>) -> Result<(), String> {
    let mut opening = 0;
    let mut connection = loop {
        if let Ok(mut connection) = Connection::open(&addr).await
            && let Ok(Ok(Reply::Integer(_))) = timeout(PATIENCE, connection.call(&[b"EXISTS", b"a"])).await
        {
            break connection;
        }
        opening += 1;
        if opening == OPENED_WITHIN {
            return Err("the server does not come up again".into());
        }
        sleep(Duration::from_millis(20)).await;
    };
    let id = next(&history.clients);
    let keys: Vec<Vec<u8>> = history.keys.borrow().keys().cloned().collect();
    for key in keys {
        let op = Op::read_of(&key);
        let name = String::from_utf8_lossy(&key).into_owned();
        let index = history.call(&key, id, op.clone());
        let command = op.command(&key);
        let command: Vec<&[u8]> = command.iter().map(AsRef::as_ref).collect();
        let reply = match timeout(PATIENCE, connection.call(&command)).await {
            Ok(Ok(reply)) => reply,
            Ok(Err(error)) => return Err(format!("{name}: at last, the connection broke: {error}")),
            Err(_) => return Err(format!("{name}: at last, no reply within {PATIENCE:?}")),
        };
        if refused(&reply) || failed(&reply) {
            return Err(format!("{name}: at last, {reply:?}"));
        }
        history.hear(&key, index, reply);
        history.count("keys read at last", 1);
    }
    let mut teller = Teller { addr: addr.clone(), rng: rng.split("teller"), history: Rc::clone(&history) };
    match timeout(PATIENCE, teller.read_all(id, &mut connection)).await {
        Ok(Some(())) => {}
        _ => return Err("the bank: at last, no reply that tells".into()),
    }
    if history.group.borrow().is_empty() {
        return Ok(());
    }
    Mover { addr, rng, history, pause_us: 0, deadlines: false }.read_everything(&mut connection).await
}

fn account(index: usize) -> Vec<u8> {
    format!("{{bank}}:{index}").into_bytes()
}

/// A client that moves money between accounts in transactions, and counts it.
pub struct Teller {
    /// The server.
    pub addr: Addr,
    /// Its random stream.
    pub rng: Rng,
    /// Where it writes everything down.
    pub history: Rc<History>,
}

impl Teller {
    /// Until the history is over.
    pub async fn run(mut self) {
        while !self.history.over.get() {
            let id = next(&self.history.clients);
            if let Ok(mut connection) = Connection::open(&self.addr).await {
                while !self.history.over.get() {
                    let moved = timeout(PATIENCE, self.transaction(id, &mut connection)).await;
                    if !matches!(moved, Ok(Some(()))) {
                        break;
                    }
                    sleep(Duration::from_micros(self.rng.below(2000))).await;
                }
            }
            sleep(Duration::from_millis(20 + self.rng.below(80))).await;
        }
    }

    fn call(&self, client: u64, op: BankOp) -> usize {
        self.history.use_calls(4);
        let called = next(&self.history.clock);
        let mut bank = self.history.bank.borrow_mut();
        bank.push(Operation { client, called, op, returned: None });
        bank.len() - 1
    }

    fn hear(&self, index: usize, reply: BankReply) {
        self.history.bank.borrow_mut()[index].returned = Some((next(&self.history.clock), reply));
        self.history.count("transactions", 1);
    }

    /// One transaction; `None` when the connection broke or the server refused.
    async fn transaction(&mut self, id: u64, connection: &mut Connection) -> Option<()> {
        self.history.may_call().await;
        if self.rng.chance(0.3) {
            return self.read_all(id, connection).await;
        }
        let from = self.rng.below(ACCOUNTS as u64) as usize;
        let to = (from + 1 + self.rng.below(ACCOUNTS as u64 - 1) as usize) % ACCOUNTS;
        let mut read = Vec::new();
        let (from_key, to_key) = (account(from), account(to));
        if connection.call(&[b"WATCH", &from_key, &to_key]).await.ok()? != Reply::Simple("OK".into()) {
            return None;
        }
        for index in [from, to] {
            let value = match connection.call(&[b"GET", &account(index)]).await.ok()? {
                Reply::Bulk(Some(value)) => std::str::from_utf8(&value).ok()?.parse().ok()?,
                Reply::Bulk(None) => OPENING,
                _ => return None,
            };
            read.push((index, value));
        }
        let amount = self.rng.below(50) as i64;
        let write = vec![(from, read[0].1 - amount), (to, read[1].1 + amount)];
        let mut out = Vec::new();
        encode(&[b"MULTI"], &mut out);
        for (index, value) in &write {
            encode(&[b"SET", &account(*index), value.to_string().as_bytes()], &mut out);
        }
        encode(&[b"EXEC"], &mut out);
        let index = self.call(id, BankOp::Move { read, write });
        let _unanswered = Unanswered::new(&self.history, 1);
        connection.send(out).await.ok()?;
        let mut last = Reply::Bulk(None);
        for _ in 0..4 {
            last = connection.receive().await.ok()?;
        }
        match last {
            // The media failed part of it: whether it happened, whole or not at all, is for later reads to tell.
            Reply::Array(Some(parts)) if parts.iter().any(failed) => {}
            ref reply if failed(reply) => {}
            Reply::Array(Some(_)) => self.hear(index, BankReply::Done),
            Reply::Array(None) | Reply::Bulk(None) => self.hear(index, BankReply::Aborted),
            // Refused: it did not happen.
            Reply::Error(_) => self.hear(index, BankReply::Aborted),
            _ => return None,
        }
        Some(())
    }

    async fn read_all(&mut self, id: u64, connection: &mut Connection) -> Option<()> {
        let mut out = Vec::new();
        encode(&[b"MULTI"], &mut out);
        for index in 0..ACCOUNTS {
            encode(&[b"GET", &account(index)], &mut out);
        }
        encode(&[b"EXEC"], &mut out);
        let index = self.call(id, BankOp::ReadAll);
        let _unanswered = Unanswered::new(&self.history, 1);
        connection.send(out).await.ok()?;
        let mut last = Reply::Bulk(None);
        for _ in 0..ACCOUNTS + 2 {
            last = connection.receive().await.ok()?;
        }
        let Reply::Array(Some(values)) = last else { return None };
        let values = values.into_iter().map(|value| match value {
            Reply::Bulk(Some(value)) => std::str::from_utf8(&value).ok()?.parse().ok(),
            Reply::Bulk(None) => Some(OPENING),
            _ => None,
        });
        let values: Option<Vec<i64>> = values.collect();
        self.hear(index, BankReply::Accounts(values?));
        Some(())
    }
}
