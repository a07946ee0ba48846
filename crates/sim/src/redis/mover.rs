//! A client of commands that act on several keys at once, one command at a time.

use super::client::{History, PATIENCE, Unanswered, failed, next, refused};
use super::group::{Act, Combination, DATABASE, GroupCall, KEYS, KINDS, OF_EACH};
use super::model::Op;
use super::resp::{Connection, Reply, encode};
use crate::linear::Operation;
use pumice_base::rng::Rng;
use pumice_reactor::{Addr, sleep, timeout, wall_ms};
use std::rc::Rc;
use std::time::Duration;

/// The client.
pub struct Mover {
    /// The server.
    pub addr: Addr,
    /// Its random stream.
    pub rng: Rng,
    /// Where it writes everything down.
    pub history: Rc<History>,
    /// The longest pause, in µs.
    pub pause_us: u64,
    /// Keys are given deadlines.
    pub deadlines: bool,
}

impl Mover {
    /// Until the history is over.
    pub async fn run(mut self) {
        while !self.history.over.get() {
            let id = next(&self.history.clients);
            if let Ok(mut connection) = Connection::open(&self.addr).await
                && let Ok(Some(())) = timeout(PATIENCE, select(&mut connection)).await
            {
                while !self.history.over.get() {
                    self.history.may_call().await;
                    let act = self.draw();
                    let done = timeout(PATIENCE, self.act(id, &mut connection, act)).await;
                    if !matches!(done, Ok(Some(()))) {
                        break;
                    }
                    sleep(Duration::from_micros(self.rng.below(self.pause_us + 1))).await;
                }
            }
            sleep(Duration::from_millis(20 + self.rng.below(80))).await;
        }
    }

    fn draw(&mut self) -> Act {
        match self.rng.below(20) {
            0..=3 => {
                let count = 2 + self.rng.below(3);
                Act::Exec((0..count).map(|_| self.draw_command()).collect())
            }
            4 | 5 => Act::read_by_kind(),
            _ => self.draw_command(),
        }
    }

    fn member(&mut self) -> Vec<u8> {
        format!("f{}", self.rng.below(5)).into_bytes()
    }

    fn draw_key(&mut self) -> usize {
        self.rng.below(KEYS as u64) as usize
    }

    fn draw_command(&mut self) -> Act {
        let from = self.draw_key();
        // Mostly of the same kind.
        let to = if self.rng.chance(0.8) { from ^ 1 } else { self.draw_key() };
        match self.rng.below(38) {
            32 | 33 => {
                Act::MoveMember { from: of_kind("set", from), to: of_kind("set", to), member: self.member() }
            }
            34 | 35 => {
                let of = [Combination::Union, Combination::Inter, Combination::Diff];
                let from = [of_kind("set", from), of_kind("set", self.draw_key())];
                let to = if self.rng.chance(0.8) { of_kind("set", to) } else { to };
                Act::Store { of: of[self.rng.below(3) as usize], from, to }
            }
            36 => {
                let second = if self.rng.chance(0.7) { "zset" } else { "set" };
                let from = [of_kind("zset", from), of_kind(second, from + 1)];
                Act::Store { of: Combination::ZUnion, from, to }
            }
            0..=3 => Act::Rename { from, to, nx: self.rng.chance(0.3) },
            4..=6 if from != to => Act::Copy { from, to, replace: self.rng.chance(0.6) },
            7..=9 => {
                let (from, to) = (of_kind("list", from), of_kind("list", to));
                Act::Move { from, to, from_left: self.rng.chance(0.5), to_left: self.rng.chance(0.5) }
            }
            10 | 11 => {
                let pairs = vec![(0, self.value()), (1, self.value())];
                Act::MSet { pairs, nx: self.rng.chance(0.3) }
            }
            12 => Act::MGet(vec![from, to]),
            13 | 14 => Act::Del(if from == to { vec![from] } else { vec![from, to] }),
            15 if self.rng.chance(0.4) => Act::Flush,
            16 => Act::Range,
            17 => Act::Size,
            18..=22 if self.deadlines => Act::One(from, self.draw_of_deadlines(KINDS[from / OF_EACH])),
            _ => Act::One(from, self.draw_of_kind(KINDS[from / OF_EACH])),
        }
    }

    fn draw_of_kind(&mut self, kind: &str) -> Op {
        let field = self.member();
        let score = self.rng.below(9) as i64 - 4;
        match (kind, self.rng.below(8)) {
            (_, 0) => Op::read_of(kind.as_bytes()),
            (_, 1) => Op::Exists,
            ("string", 2 | 3) => Op::GetDel,
            ("string", 4) => Op::SetNx(self.value()),
            ("string", _) => Op::Set(self.value()),
            ("list", 2 | 3) => Op::LPop,
            ("list", 4 | 5) => Op::LPush(self.value()),
            ("list", _) => Op::RPush(self.value()),
            ("hash", 2) => Op::HDel(field),
            ("hash", 3) => Op::HLen,
            ("hash", _) => Op::HSet(field, self.value()),
            ("set", 2) => Op::SRem(field),
            ("set", 3) => Op::SCard,
            ("set", 4) => Op::SIsMember(field),
            ("set", _) => Op::SAdd(field),
            (_, 2) => Op::ZRem(field),
            (_, 3) => Op::ZPopMin,
            (_, 4) => Op::ZIncrBy(score, field),
            _ => Op::ZAdd(score, field),
        }
    }

    fn draw_of_deadlines(&mut self, kind: &str) -> Op {
        let at = self.history.draw_deadline(&mut self.rng);
        match self.rng.below(8) {
            0 if kind == "string" => Op::SetPxAt(self.value(), at),
            0..=4 => Op::PExpireAt(at),
            5 => Op::Persist,
            _ => Op::PExpireTime,
        }
    }

    /// Bytes that nobody else writes.
    fn value(&mut self) -> Vec<u8> {
        let mut bytes = format!("v{}.", next(&self.history.stamps)).into_bytes();
        let len = if self.rng.chance(0.9) { self.rng.below(30) } else { self.rng.below(3_000) };
        bytes.resize(bytes.len() + len as usize, b'x');
        bytes
    }

    /// Reads every key at last, where nothing is in the way.
    ///
    /// # Errors
    /// What was not answered, or how.
    pub async fn read_everything(&self, connection: &mut Connection) -> Result<(), String> {
        let id = next(&self.history.clients);
        let read = async {
            select(connection).await?;
            self.act(id, connection, Act::read_everything()).await
        };
        let read = timeout(PATIENCE, read).await;
        let is_told = self.history.group.borrow().last().is_some_and(|last| last.returned.is_some());
        match read {
            Ok(Some(())) if is_told => Ok(()),
            _ => Err("the group: at last, no reply that tells".into()),
        }
    }

    /// One command or transaction; `None` when the connection broke.
    async fn act(&self, client: u64, connection: &mut Connection, act: Act) -> Option<()> {
        let commands = act.commands();
        let mut out = Vec::new();
        for command in &commands {
            encode(&command.iter().map(Vec::as_slice).collect::<Vec<_>>(), &mut out);
        }
        self.history.use_calls(commands.len() as u64);
        let index = self.history.group.borrow().len();
        let called = next(&self.history.clock);
        let op = GroupCall { act, called_ms: wall_ms(), answered_ms: None };
        self.history.group.borrow_mut().push(Operation { client, called, op, returned: None });
        let _unanswered = Unanswered::new(&self.history, 1);
        connection.send(out).await.ok()?;
        let mut last = Reply::Bulk(None);
        for _ in &commands {
            last = connection.receive().await.ok()?;
        }
        let transaction = match &last {
            Reply::Array(Some(parts)) if commands.len() > 1 => Some(parts),
            _ => None,
        };
        if let Some(parts) =
            transaction.filter(|parts| parts.iter().any(|part| failed(part) || refused(part)))
        {
            self.history.count("transactions done in part", 1);
            self.done_in_part(index, parts);
        } else if failed(&last) {
            self.history.count("commands on several keys failed by the media", 1);
        } else if refused(&last) || matches!(&last, Reply::Error(text) if text.starts_with("EXECABORT")) {
            // Never carried out, which a read that nobody heard of says.
            self.history.count("commands on several keys refused", 1);
            self.history.group.borrow_mut()[index].op.act = Act::Size;
        } else {
            self.history.count("commands on several keys", 1);
            let operation = &mut self.history.group.borrow_mut()[index];
            operation.op.answered_ms = Some(wall_ms());
            operation.returned = Some((next(&self.history.clock), last));
        }
        Some(())
    }

    /// Of a transaction that was carried out, commands that could not read, or had no room, did nothing: it was one of the others.
    fn done_in_part(&self, index: usize, parts: &[Reply]) {
        let operation = &mut self.history.group.borrow_mut()[index];
        let Act::Exec(acts) = &operation.op.act else { return };
        let done = acts.iter().zip(parts).filter(|(_, part)| !failed(part) && !refused(part));
        let (acts, parts): (Vec<_>, Vec<_>) = done.map(|(act, part)| (act.clone(), part.clone())).unzip();
        operation.op.act = Act::Exec(acts);
        operation.op.answered_ms = Some(wall_ms());
        operation.returned = Some((next(&self.history.clock), Reply::Array(Some(parts))));
    }
}

/// A key of the kind.
fn of_kind(kind: &str, which: usize) -> usize {
    let kind = KINDS.iter().position(|one| *one == kind).unwrap_or(0);
    kind * OF_EACH + which % OF_EACH
}

async fn select(connection: &mut Connection) -> Option<()> {
    let reply = connection.call(&[b"SELECT", DATABASE.as_bytes()]).await.ok()?;
    (reply == Reply::Simple("OK".into())).then_some(())
}
