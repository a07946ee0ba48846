//! The Redis worlds judge rightly: a small correct server passes them, and each of its spoilt variants is caught.

use bytes::Bytes;
use pumice_base::checksum::crc32c;
use pumice_base::rng::Rng;
use pumice_reactor::sim::{HostId, HostOptions, World};
use pumice_reactor::sync::{Gate, Notify};
use pumice_reactor::{
    File, IoBuf, ListenOptions, Listener, OpenOptions, Stream, WriteSync, sleep, spawn, wall_ms,
};
use pumice_sim::redis::group::{self, Act, Combination, Keys};
use pumice_sim::redis::model::{Key, Op, State, step};
use pumice_sim::redis::play::{Plan, play};
use pumice_sim::redis::resp::{Reply, decode, encode};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::pending;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Spoilt {
    No,
    /// Writes are acknowledged before they are on the media.
    EarlyReplies,
    /// Reads tell what is not on the media yet.
    EarlyReads,
    /// Read, think, write, with others in between.
    LostUpdates,
    /// EXEC does not look at what was watched.
    BlindExec,
    /// Keys are there for a while after their deadline.
    LateExpiry,
    /// Keys are gone a little before their deadline.
    EarlyExpiry,
    /// A restarted server knows of no deadlines.
    ForgottenDeadlines,
    /// A key that is changed loses its deadline.
    DroppedDeadlines,
    /// RENAME takes a key away, and puts it where it goes a little later.
    TornRenames,
    /// RENAME loses a deadline.
    RenamedForEver,
    /// FLUSHDB leaves a key.
    KeptByFlush,
    /// A restarted server never answers who reads a certain key.
    Hangs,
    /// A restarted server finds a certain key damaged, each time.
    DamagedForEver,
}

/// Keys, the number of the newest change, and how far the media have got.
struct Toy {
    keys: RefCell<BTreeMap<Vec<u8>, Key>>,
    changed: RefCell<BTreeMap<Vec<u8>, u64>>,
    version: Cell<u64>,
    durable: Gate,
    dirty: Notify,
    spoilt: Spoilt,
    /// Started on what an earlier one left.
    is_restarted: bool,
}

/// What [`Spoilt::Hangs`] and [`Spoilt::DamagedForEver`] fail to read.
const BAD_KEY: &[u8] = b"string:0";

const SLOT_BYTES: u64 = 1 << 20;

impl Toy {
    fn apply(&self, key: &[u8], op: &Op) -> Reply {
        let mut keys = self.keys.borrow_mut();
        let kept = keys.get(key).cloned().unwrap_or_default();
        let now = match self.spoilt {
            Spoilt::LateExpiry => wall_ms() - 100,
            Spoilt::EarlyExpiry => wall_ms() + 20,
            _ => wall_ms(),
        };
        let is_gone = kept.expire_ms != 0 && kept.expire_ms < now;
        let (reply, mut new) = step(&if is_gone { Key::default() } else { kept.clone() }, op);
        if self.spoilt == Spoilt::DroppedDeadlines
            && new.state != kept.state
            && new.expire_ms == kept.expire_ms
        {
            new.expire_ms = 0;
        }
        if new != kept {
            self.version.set(self.version.get() + 1);
            self.changed.borrow_mut().insert(key.to_vec(), self.version.get());
            self.dirty.notify_one();
            keys.insert(key.to_vec(), new);
        }
        reply
    }

    /// The group's keys, without what has expired.
    fn group(&self) -> Keys {
        let keys = self.keys.borrow();
        let key = |number| keys.get(&group::name(number)).cloned().unwrap_or_default();
        std::array::from_fn(key).map(|key: Key| {
            let is_gone = key.expire_ms != 0 && key.expire_ms < wall_ms();
            if is_gone { Key::default() } else { key }
        })
    }

    /// What they are from now on.
    fn put(&self, group: &Keys) {
        for (number, new) in group.iter().enumerate() {
            if self.keys.borrow().get(&group::name(number)) != Some(new) {
                self.version.set(self.version.get() + 1);
                self.changed.borrow_mut().insert(group::name(number), self.version.get());
                self.dirty.notify_one();
                self.keys.borrow_mut().insert(group::name(number), new.clone());
            }
        }
    }

    async fn act(&self, act: &Act) -> Reply {
        let mut keys = self.group();
        let kept = keys[0].clone();
        let reply = group::step(&mut keys, act);
        match (act, self.spoilt) {
            (Act::Rename { from, to, .. }, Spoilt::TornRenames) if from != to => {
                let put = std::mem::take(&mut keys[*to]);
                self.put(&keys);
                sleep(Duration::from_micros(300)).await;
                keys = self.group();
                keys[*to] = put;
            }
            (Act::Rename { to, .. }, Spoilt::RenamedForEver) => keys[*to].expire_ms = 0,
            (Act::Flush, Spoilt::KeptByFlush) => keys[0] = kept,
            _ => {}
        }
        self.put(&keys);
        reply
    }

    async fn execute(&self, command: &Command) -> Reply {
        match command {
            Command::One(key, op) => self.apply(key, op),
            Command::Group(act) => self.act(act).await,
        }
    }

    /// All keys as the commands that make them, with a head of version, length and checksum.
    fn image(&self) -> Vec<u8> {
        let mut body = Vec::new();
        for (key, Key { state, expire_ms }) in self.keys.borrow().iter() {
            let mut ops: Vec<Op> = match state {
                State::None => vec![],
                State::String(value) => vec![Op::Set(value.clone())],
                State::Hash(hash) => hash.iter().map(|(f, v)| Op::HSet(f.clone(), v.clone())).collect(),
                State::List(list) => list.iter().map(|value| Op::RPush(value.clone())).collect(),
                State::Set(set) => set.iter().map(|member| Op::SAdd(member.clone())).collect(),
                State::ZSet(zset) => zset.iter().map(|(m, score)| Op::ZAdd(*score, m.clone())).collect(),
            };
            if *expire_ms != 0 && self.spoilt != Spoilt::ForgottenDeadlines {
                ops.push(Op::PExpireAt(*expire_ms));
            }
            for op in ops {
                let command = op.command(key);
                encode(&command.iter().map(AsRef::as_ref).collect::<Vec<_>>(), &mut body);
            }
        }
        let mut image = self.version.get().to_le_bytes().to_vec();
        image.extend_from_slice(&(body.len() as u32).to_le_bytes());
        image.extend_from_slice(&crc32c(&[&image[..], &body[..]].concat()).to_le_bytes());
        image.extend_from_slice(&body);
        assert!(image.len() as u64 <= SLOT_BYTES);
        image
    }

    async fn save(self: Rc<Self>, file: File) {
        let mut slot = self.version.get() % 2;
        loop {
            while self.version.get() == self.durable.current() {
                self.dirty.notified().await;
            }
            let version = self.version.get();
            let image = Bytes::from(self.image());
            slot = 1 - slot;
            file.write_at(image, slot * SLOT_BYTES, WriteSync::Durable).await.expect("saves");
            self.durable.open_to(version);
        }
    }

    async fn load(file: &File, spoilt: Spoilt) -> Rc<Self> {
        let mut toy = Self {
            keys: RefCell::default(),
            changed: RefCell::default(),
            version: Cell::new(0),
            durable: Gate::new(0),
            dirty: Notify::new(),
            spoilt,
            is_restarted: false,
        };
        let mut best: Option<(u64, Vec<u8>)> = None;
        for slot in 0..2 {
            let (result, buf) = file.read_at(IoBuf::zeroed(SLOT_BYTES as usize), slot * SLOT_BYTES).await;
            let there = &buf[..result.expect("reads")];
            let Some((head, rest)) = there.split_at_checked(16) else { continue };
            let version = u64::from_le_bytes(head[..8].try_into().expect("8 bytes"));
            let len = u32::from_le_bytes(head[8..12].try_into().expect("4 bytes")) as usize;
            let Some(body) = rest.get(..len) else { continue };
            let right = crc32c(&[&head[..12], body].concat()).to_le_bytes() == head[12..];
            if right && best.as_ref().is_none_or(|(newest, _)| version > *newest) {
                best = Some((version, body.to_vec()));
            }
        }
        if let Some((version, body)) = best {
            toy.is_restarted = true;
            let mut at = 0;
            while let Ok(Some((command, len))) = decode(&body[at..]) {
                let (key, op) = parse(&command).expect("its own commands");
                toy.apply(&key, &op);
                at += len;
            }
            // Slots alternate with versions: both must be free for the next.
            toy.version.set(version + version % 2);
            toy.durable.open_to(toy.version.get());
        }
        Rc::new(toy)
    }
}

fn words(command: &Reply) -> Vec<Vec<u8>> {
    match command {
        Reply::Array(Some(words)) => words
            .iter()
            .map(|word| match word {
                Reply::Bulk(Some(word)) => word.clone(),
                other => panic!("{other:?}"),
            })
            .collect(),
        other => panic!("{other:?}"),
    }
}

fn parse(command: &Reply) -> Option<(Vec<u8>, Op)> {
    let words = words(command);
    let name = String::from_utf8(words[0].clone()).ok()?;
    let key = words.get(1)?.clone();
    let word = |index: usize| words[index].clone();
    let op = match (name.as_str(), words.len()) {
        ("GET", _) => Op::Get,
        ("SET", 3) => Op::Set(word(2)),
        ("SET", 4) => Op::SetNx(word(2)),
        ("SET", _) if word(3) == b"PXAT" => {
            Op::SetPxAt(word(2), String::from_utf8(word(4)).ok()?.parse().ok()?)
        }
        ("PEXPIREAT", _) => Op::PExpireAt(String::from_utf8(word(2)).ok()?.parse().ok()?),
        ("PERSIST", _) => Op::Persist,
        ("PEXPIRETIME", _) => Op::PExpireTime,
        ("SET", _) => Op::SetXxGet(word(2)),
        ("GETDEL", _) => Op::GetDel,
        ("DEL", _) => Op::Del,
        ("EXISTS", _) => Op::Exists,
        ("INCRBY", _) => Op::IncrBy(String::from_utf8(word(2)).ok()?.parse().ok()?),
        ("APPEND", _) => Op::Append(word(2)),
        ("STRLEN", _) => Op::StrLen,
        ("HSET", _) => Op::HSet(word(2), word(3)),
        ("HDEL", _) => Op::HDel(word(2)),
        ("HGET", _) => Op::HGet(word(2)),
        ("HLEN", _) => Op::HLen,
        ("HGETALL", _) => Op::HGetAll,
        ("RPUSH", _) => Op::RPush(word(2)),
        ("LPUSH", _) => Op::LPush(word(2)),
        ("LPOP", _) => Op::LPop,
        ("RPOP", _) => Op::RPop,
        ("LTRIM", _) => {
            let number = |at| String::from_utf8(word(at)).ok()?.parse().ok();
            Op::LTrim(number(2)?, number(3)?)
        }
        ("LRANGE", _) => Op::LRange,
        ("LLEN", _) => Op::LLen,
        ("ZADD", _) => Op::ZAdd(String::from_utf8(word(2)).ok()?.parse().ok()?, word(3)),
        ("ZINCRBY", _) => Op::ZIncrBy(String::from_utf8(word(2)).ok()?.parse().ok()?, word(3)),
        ("ZREM", _) => Op::ZRem(word(2)),
        ("ZPOPMIN", _) => Op::ZPopMin,
        ("ZSCORE", _) => Op::ZScore(word(2)),
        ("ZCARD", _) => Op::ZCard,
        ("ZRANK", _) => Op::ZRank(word(2)),
        ("ZRANGE", _) => Op::ZRange,
        ("SADD", _) => Op::SAdd(word(2)),
        ("SREM", _) => Op::SRem(word(2)),
        ("SISMEMBER", _) => Op::SIsMember(word(2)),
        ("SCARD", _) => Op::SCard,
        ("SMEMBERS", _) => Op::SMembers,
        _ => return None,
    };
    Some((key, op))
}

/// What a client may send, or queue.
enum Command {
    One(Vec<u8>, Op),
    Group(Act),
}

impl Command {
    fn parse(command: &Reply) -> Option<Self> {
        let words = words(command);
        let number = |at: usize| {
            let name = std::str::from_utf8(words.get(at)?).ok()?.strip_prefix("{group}:")?;
            name.parse::<usize>().ok()
        };
        let numbers = || (1..words.len()).filter_map(number).collect();
        let is = |at: usize, word: &str| words.get(at).is_some_and(|found| found == word.as_bytes());
        let act = match &words[0][..] {
            name @ (b"RENAME" | b"RENAMENX") => {
                Act::Rename { from: number(1)?, to: number(2)?, nx: name.ends_with(b"NX") }
            }
            b"COPY" => Act::Copy { from: number(1)?, to: number(2)?, replace: words.len() > 3 },
            b"LMOVE" => {
                let (from, to) = (number(1)?, number(2)?);
                Act::Move { from, to, from_left: is(3, "LEFT"), to_left: is(4, "LEFT") }
            }
            b"SMOVE" => Act::MoveMember { from: number(1)?, to: number(2)?, member: words.get(3)?.clone() },
            name @ (b"SUNIONSTORE" | b"SINTERSTORE" | b"SDIFFSTORE") => {
                let of = match name[1] {
                    b'U' => Combination::Union,
                    b'I' => Combination::Inter,
                    _ => Combination::Diff,
                };
                Act::Store { of, from: [number(2)?, number(3)?], to: number(1)? }
            }
            b"ZUNIONSTORE" => {
                Act::Store { of: Combination::ZUnion, from: [number(3)?, number(4)?], to: number(1)? }
            }
            name @ (b"MSET" | b"MSETNX") => {
                let pairs =
                    (1..words.len()).step_by(2).filter_map(|at| Some((number(at)?, words[at + 1].clone())));
                Act::MSet { pairs: pairs.collect(), nx: name.ends_with(b"NX") }
            }
            b"MGET" => Act::MGet(numbers()),
            b"DEL" if number(1).is_some() => Act::Del(numbers()),
            b"FLUSHDB" => Act::Flush,
            b"PUMICE.RANGE" => Act::Range,
            b"DBSIZE" => Act::Size,
            _ => return parse(command).map(|(key, op)| Self::One(key, op)),
        };
        Some(Self::Group(act))
    }

    fn only_reads(&self) -> bool {
        match self {
            Self::One(_, op) => op.only_reads(),
            Self::Group(act) => act.only_reads(),
        }
    }
}

fn reply_bytes(reply: &Reply, out: &mut Vec<u8>) {
    match reply {
        Reply::Simple(text) => out.extend_from_slice(format!("+{text}\r\n").as_bytes()),
        Reply::Error(text) => out.extend_from_slice(format!("-{text}\r\n").as_bytes()),
        Reply::Integer(number) => out.extend_from_slice(format!(":{number}\r\n").as_bytes()),
        Reply::Bulk(None) => out.extend_from_slice(b"$-1\r\n"),
        Reply::Bulk(Some(value)) => {
            out.extend_from_slice(format!("${}\r\n", value.len()).as_bytes());
            out.extend_from_slice(value);
            out.extend_from_slice(b"\r\n");
        }
        Reply::Array(None) => out.extend_from_slice(b"*-1\r\n"),
        Reply::Array(Some(replies)) => {
            out.extend_from_slice(format!("*{}\r\n", replies.len()).as_bytes());
            replies.iter().for_each(|reply| reply_bytes(reply, out));
        }
    }
}

/// One connection.
async fn serve(toy: Rc<Toy>, mut stream: Stream) {
    let mut input = Vec::new();
    let mut watched: Vec<(Vec<u8>, u64)> = Vec::new();
    let mut queued: Option<Vec<Command>> = None;
    let changed = |key: &[u8]| toy.changed.borrow().get(key).copied().unwrap_or(0);
    loop {
        match stream.recv().await {
            Ok(data) if !data.is_empty() => input.extend_from_slice(&data),
            _ => return,
        }
        let mut out = Vec::new();
        let mut wrote = false;
        while let Some((command, len)) =
            if input.is_empty() { None } else { decode(&input).expect("requests") }
        {
            input.drain(..len);
            let ok = Reply::Simple("OK".into());
            let reply = match Command::parse(&command) {
                Some(one) if queued.is_some() => {
                    queued.as_mut().expect("is queueing").push(one);
                    Reply::Simple("QUEUED".into())
                }
                Some(Command::Group(act)) => {
                    wrote |= !act.only_reads();
                    toy.act(&act).await
                }
                Some(Command::One(key, op)) => {
                    wrote |= !op.only_reads();
                    let is_bad = toy.is_restarted && key == BAD_KEY && op.only_reads();
                    if is_bad && toy.spoilt == Spoilt::Hangs {
                        return pending().await;
                    }
                    if is_bad && toy.spoilt == Spoilt::DamagedForEver {
                        Reply::Error("ERR damaged: a record".into())
                    } else if toy.spoilt == Spoilt::LostUpdates && matches!(op, Op::IncrBy(_)) {
                        let old = toy.keys.borrow().get(&key).cloned().unwrap_or_default();
                        sleep(Duration::from_micros(300)).await;
                        let (reply, new) = step(&old, &op);
                        if let State::String(value) = new.state {
                            toy.apply(&key, &Op::Set(value));
                        }
                        reply
                    } else {
                        toy.apply(&key, &op)
                    }
                }
                None => match (&words(&command)[0][..], &mut queued) {
                    (b"SELECT", _) => ok,
                    (b"WATCH", _) => {
                        watched.extend(words(&command)[1..].iter().map(|key| (key.clone(), changed(key))));
                        ok
                    }
                    (b"MULTI", queued) => {
                        *queued = Some(Vec::new());
                        ok
                    }
                    (b"EXEC", queued) => {
                        let commands = queued.take().unwrap_or_default();
                        let stale = watched.drain(..).any(|(key, version)| changed(&key) != version);
                        if stale && toy.spoilt != Spoilt::BlindExec {
                            Reply::Array(None)
                        } else {
                            wrote |= commands.iter().any(|command| !command.only_reads());
                            let mut replies = Vec::new();
                            for command in &commands {
                                replies.push(toy.execute(command).await);
                            }
                            Reply::Array(Some(replies))
                        }
                    }
                    (name, _) => panic!("{}", String::from_utf8_lossy(name)),
                },
            };
            reply_bytes(&reply, &mut out);
        }
        let early = match toy.spoilt {
            Spoilt::EarlyReplies => true,
            Spoilt::EarlyReads => !wrote,
            _ => false,
        };
        if !early {
            toy.durable.wait_for(toy.version.get()).await.expect("is saved");
        }
        if stream.send_one(out).await.0.is_err() {
            return;
        }
    }
}

fn boot(world: &World, host: HostId, spoilt: Spoilt) {
    drop(world.run(host, 0, async move {
        let options = OpenOptions { create: true, ..OpenOptions::default() };
        let file = File::open(Path::new("/toy"), &options).await.expect("opens");
        let toy = Toy::load(&file, spoilt).await;
        drop(spawn(Rc::clone(&toy).save(file)));
        let listen = "0.0.0.0:6379".parse().expect("an address");
        let listener = Listener::bind(&listen, ListenOptions::default()).await.expect("binds");
        loop {
            match listener.accept().await {
                Ok((stream, _)) => drop(spawn(serve(Rc::clone(&toy), stream))),
                Err(_) => sleep(Duration::from_millis(1)).await,
            }
        }
    }));
}

fn one(seed: u64, spoilt: Spoilt) -> (Result<BTreeMap<&'static str, u64>, String>, u64) {
    let world = World::new(seed);
    let mut rng = Rng::from_seed(seed).split("play");
    // As the world of the production server draws it.
    let plan = Plan::draw(&mut rng);
    let disk = plan.disk;
    let server =
        world.add_host(HostOptions { name: "server".into(), cores: 1, disk, ..HostOptions::default() });
    let addr = world.addr(server, 6379);
    let result = play(&world, server, &addr, &mut |world| boot(world, server, spoilt), &mut rng, &plan);
    (result, world.event_hash())
}

#[test]
fn a_correct_server_passes_and_every_seed_replays() {
    let mut operations = 0;
    for seed in 0..40 {
        let (result, hash) = one(seed, Spoilt::No);
        let counts = match result {
            Ok(counts) => counts,
            Err(what) => panic!("seed {seed}: {what}"),
        };
        operations += counts.get("operations judged").copied().unwrap_or(0);
        assert_eq!(counts.get("histories given up"), None, "seed {seed}: {counts:?}");
        if seed < 4 {
            assert_eq!(one(seed, Spoilt::No).1, hash, "seed {seed} did not replay");
        }
    }
    assert!(operations > 5_000, "{operations} operations show little");
}

#[test]
fn each_spoilt_server_is_caught() {
    for (spoilt, complaint) in [
        (Spoilt::EarlyReplies, "no order"),
        (Spoilt::EarlyReads, "no order"),
        (Spoilt::LostUpdates, "no order"),
        (Spoilt::BlindExec, "no order"),
        (Spoilt::LateExpiry, "no order"),
        (Spoilt::EarlyExpiry, "no order"),
        (Spoilt::ForgottenDeadlines, "no order"),
        (Spoilt::DroppedDeadlines, "no order"),
        (Spoilt::TornRenames, "no order"),
        (Spoilt::RenamedForEver, "no order"),
        (Spoilt::KeptByFlush, "no order"),
        (Spoilt::Hangs, "at last, no reply"),
        (Spoilt::DamagedForEver, "at last, Error"),
    ] {
        let caught = (0..100).find_map(|seed| one(seed, spoilt).0.err().map(|what| (seed, what)));
        let (seed, what) = caught.unwrap_or_else(|| panic!("{spoilt:?} was never caught"));
        println!("{spoilt:?}: seed {seed}");
        assert!(what.contains(complaint), "{spoilt:?}, seed {seed}: {what}");
    }
}
