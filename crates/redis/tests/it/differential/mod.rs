//! The same seeded random commands to this server and to a real redis-server; every reply must agree.
//!
//! Now and then our server is stopped and started in the midst of a stream: what was in memory is then read from flash, where
//! commands go on as futures.
//!
//! Each family has a generator in a file of its own: a function that draws one command. Replies are compared as
//! they come, after [`normalize`] has put unordered ones in order and given clocks some slack. A failure prints
//! the commands that touched the same keys, the seed, and how to replay it.
//!
//! `PUMICE_SEED=n` runs one seed, `PUMICE_SEEDS=n` so many, `PUMICE_COMMANDS=n` so many commands each.

mod draw;
mod hashes;
mod keys;
mod lists;
mod sets;
mod sorted_sets;
mod strings;
mod zeros;

use std::time::{Duration, Instant};

use crate::common::oracle::Oracle;
use crate::common::{self, Client, Reply, Setup, TestServer};
use crate::tls;
use draw::Draw;
use pumice_base::rng::Rng;

/// One command, its name first.
pub type Command = Vec<Vec<u8>>;
/// Draws a command of one family.
pub type Generator = fn(&mut Draw<'_>) -> Command;

/// All families, each with its weight.
const FAMILIES: &[(u64, Generator)] = &[
    (6, strings::draw),
    (4, keys::draw),
    (6, hashes::draw),
    (6, sets::draw),
    (10, sorted_sets::draw),
    (8, lists::draw),
];

const SEEDS: u64 = 24;
const COMMANDS: u64 = 300;
/// How likely a start is before each burst.
const STARTED_ANEW: f64 = 0.02;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

#[test]
fn every_reply_is_the_one_that_redis_gives() {
    run(Setup::default(), 0, SEEDS);
}

#[test]
fn every_reply_is_the_one_that_redis_gives_with_keys_spread_over_three_drives() {
    run(Setup { drives: 3, memory_bytes: 192 << 20, ..Setup::default() }, 1_000_000, SEEDS);
}

#[test]
fn every_reply_is_the_one_that_redis_gives_over_tls() {
    run(tls::setup(), 2_000_000, 2);
}

fn run(setup: Setup, first: u64, seeds: u64) {
    let Some(oracle) = Oracle::start() else { return };
    let mut ours = Ours { server: Some(TestServer::with(setup.clone())), setup, starts: 0, flash_reads: 0 };
    let (seeds, count) =
        (number("PUMICE_SEEDS").unwrap_or(seeds), number("PUMICE_COMMANDS").unwrap_or(COMMANDS));
    match number("PUMICE_SEED") {
        Some(seed) => play(&mut ours, &oracle, seed, count),
        None => (first..first + seeds).for_each(|seed| play(&mut ours, &oracle, seed, count)),
    }
    ours.count_reads();
    assert!(ours.starts == 0 || ours.flash_reads > ours.starts, "{} flash reads", ours.flash_reads);
}

/// The server under test.
struct Ours {
    setup: Setup,
    /// Always there, but for the moment in which it is started anew.
    server: Option<TestServer>,
    /// How often it was started anew.
    starts: u64,
    flash_reads: u64,
}

impl Ours {
    fn server(&self) -> &TestServer {
        self.server.as_ref().expect("it runs")
    }

    fn client(&self) -> Client {
        match &self.setup.tcp {
            Some(_) => Client::over_tls(tls::connect(self.server().tcp().parse().expect("an address"), None)),
            None => self.server().client(),
        }
    }

    fn count_reads(&mut self) {
        self.flash_reads += common::info_number(&mut self.server().client(), "pumice", "flash_reads");
    }

    /// Nothing is in memory any more.
    fn start_anew(&mut self) {
        self.count_reads();
        self.starts += 1;
        self.server = self.server.take().map(|server| server.restart(self.setup.clone()));
    }
}

/// One seed: a stream of commands over two connections to each server.
fn play(server: &mut Ours, oracle: &Oracle, seed: u64, count: u64) {
    let mut rng = Rng::from_seed(seed);
    let mut ours = [server.client(), server.client()];
    let mut theirs = [oracle.client(), oracle.client()];
    for client in ours.iter_mut().chain(&mut theirs) {
        client.line("FLUSHALL");
        client.line("CONFIG RESETSTAT");
    }
    // Expired keys are counted until somebody removes them: sizes agree only where nothing expires.
    let with_expiry = rng.chance(0.6);
    let mut log: Vec<(usize, Command)> = Vec::new();
    let mut in_multi = [false; 2];
    // The longest that both took for one command, and so the most that their clocks' readings may lie apart.
    let mut lag = Duration::ZERO;
    let speak = |rng: &mut Rng, ours: &mut [Client; 2], theirs: &mut [Client; 2]| {
        for (ours, theirs) in ours.iter_mut().zip(theirs) {
            if rng.chance(0.5) {
                ours.line("HELLO 3");
                theirs.line("HELLO 3");
            }
        }
    };
    speak(&mut rng, &mut ours, &mut theirs);
    let starts_before = server.starts;
    let mut done = 0;
    while done < count {
        if rng.chance(STARTED_ANEW) {
            server.start_anew();
            (ours, theirs) = ([server.client(), server.client()], [oracle.client(), oracle.client()]);
            in_multi = [false; 2];
            speak(&mut rng, &mut ours, &mut theirs);
        }
        let who = usize::from(rng.chance(0.2));
        // A burst leaves in one piece: its commands run back to back, reads of flash side by side. Where keys
        // expire, the two servers would not meet them at the same time.
        let burst = if !with_expiry && rng.chance(0.3) { 2 + rng.below(12) } else { 1 };
        let mut commands = Vec::new();
        for _ in 0..burst {
            let mut draw = Draw { rng: &mut rng, with_expiry };
            commands.push(next_command(&mut draw, &mut in_multi[who]));
        }
        done += burst;
        let bytes: Vec<u8> = commands.iter().flat_map(|command| common::client::encode(command)).collect();
        #[allow(clippy::disallowed_methods)] // two processes on the kernel's clock
        let sent = Instant::now();
        ours[who].send(&bytes);
        theirs[who].send(&bytes);
        for command in commands {
            log.push((who, command.clone()));
            let reply = ours[who].read();
            let expected = theirs[who].read();
            lag = lag.max(sent.elapsed());
            let in_exec = command[0].eq_ignore_ascii_case(b"exec");
            let (a, b) = if in_exec {
                normalize_exec(&log, who, reply.clone(), expected.clone())
            } else {
                (normalize(&command, reply.clone()), normalize(&command, expected.clone()))
            };
            if !agree(&a, &b, lag) {
                fail(seed, &log, &reply, &expected);
            }
            if draw::expires_soon(&command) {
                wait_out();
            }
        }
    }
    // Both looked up as many keys to read, and found as many. Where keys expire they may have met them at other times; and with
    // a type SCAN looks up each key of a page, of which ours have others.
    let scans_by_type = |command: &Command| {
        command[0].eq_ignore_ascii_case(b"scan")
            && command.iter().any(|word| word.eq_ignore_ascii_case(b"type"))
    };
    let counts_all = server.starts == starts_before;
    if counts_all && !with_expiry && !log.iter().any(|(_, command)| scans_by_type(command)) {
        let look_ups = (look_ups(&mut server.server().client()), look_ups(&mut oracle.client()));
        assert_eq!(look_ups.0, look_ups.1, "keyspace_hits, keyspace_misses (PUMICE_SEED={seed})");
    }
    // Once what is expired is gone on both sides, the databases hold the same: as many keys, of which as many expire, and the
    // same in them.
    let (mut ours, mut theirs) = (server.server().client(), oracle.client());
    let mut held = (contents(&mut ours), contents(&mut theirs));
    for _ in 0..common::PATIENCE.as_millis() / 10 {
        if held.0 == held.1 {
            break;
        }
        wait_out();
        held = (contents(&mut ours), contents(&mut theirs));
    }
    assert_eq!(held.0, held.1, "INFO keyspace and digest after seed {seed} (PUMICE_SEED={seed})");
}

/// What [`keyspace`] tells, and a digest of everything that is there.
fn contents(client: &mut Client) -> [String; 2] {
    [keyspace(client), client.line("DEBUG DIGEST").to_string()]
}

/// `db0:keys=…,expires=…` of each database, without the average that Redis estimates.
fn keyspace(client: &mut Client) -> String {
    let text = match client.line("INFO keyspace") {
        Reply::Bulk(text) | Reply::Verbatim(text) => String::from_utf8(text).expect("text"),
        other => panic!("INFO answered {other}"),
    };
    let lines = text.lines().filter(|line| line.starts_with("db"));
    lines.filter_map(|line| Some(line.split_once(",avg_ttl")?.0)).collect::<Vec<_>>().join(" ")
}

/// `keyspace_hits` and `keyspace_misses`.
pub fn look_ups(client: &mut Client) -> [u64; 2] {
    ["keyspace_hits", "keyspace_misses"].map(|name| common::info_number(client, "stats", name))
}

fn next_command(draw: &mut Draw<'_>, in_multi: &mut bool) -> Command {
    let word = |text: &str| vec![text.as_bytes().to_vec()];
    if *in_multi && draw.rng.chance(0.25) {
        *in_multi = false;
        return word(if draw.rng.chance(0.9) { "EXEC" } else { "DISCARD" });
    }
    if !*in_multi && draw.rng.chance(0.04) {
        *in_multi = true;
        return word("MULTI");
    }
    if draw.rng.chance(0.02) {
        let key = draw.key();
        return if draw.rng.chance(0.8) { vec![b"WATCH".to_vec(), key] } else { word("UNWATCH") };
    }
    let total: u64 = FAMILIES.iter().map(|(weight, _)| weight).sum();
    let mut at = draw.rng.below(total);
    for (weight, generator) in FAMILIES {
        if at < *weight {
            return generator(draw);
        }
        at -= weight;
    }
    unreachable!("the weights add up")
}

/// Lets keys that are about to expire do so on both sides.
fn wait_out() {
    // Two processes on the kernel's clock: there is no virtual time to turn.
    let _ = std::process::Command::new("sleep").arg("0.01").status();
}

/// Replies whose order means nothing.
const UNORDERED: &[&str] =
    &["keys", "smembers", "sunion", "sinter", "sdiff", "hkeys", "hvals", "config", "command"];
/// Replies that are maps, or flat lists of pairs in RESP2.
const PAIRS: &[&str] = &["hgetall"];
/// Replies that chance decides: only their kind is compared.
const RANDOM: &[&str] = &["randomkey", "spop", "srandmember", "hrandfield", "zrandmember"];
/// Pages of elements, in groups of so many.
const SCANS: &[(&str, usize)] = &[("scan", 1), ("sscan", 1), ("hscan", 2), ("zscan", 2)];
/// Milliseconds and seconds that clocks may differ by, beside what either server was late.
const CLOCKS: &[(&str, i64)] =
    &[("pttl", 50), ("ttl", 1), ("pexpiretime", 50), ("expiretime", 1), ("touch", 0)];

/// A reply in a form that both servers must give alike.
pub fn normalize(command: &Command, reply: Reply) -> Reply {
    let name = String::from_utf8_lossy(&command[0]).to_ascii_lowercase();
    let by_text = |items: &mut Vec<Reply>| items.sort_by_key(ToString::to_string);
    match reply {
        Reply::Array(mut items) if UNORDERED.contains(&name.as_str()) => {
            by_text(&mut items);
            Reply::Array(items)
        }
        Reply::Set(mut items) => {
            by_text(&mut items);
            Reply::Set(items)
        }
        Reply::Map(mut pairs) => {
            pairs.sort_by_key(|(key, _)| key.to_string());
            Reply::Map(pairs)
        }
        Reply::Array(items) if PAIRS.contains(&name.as_str()) => {
            let mut pairs: Vec<(Reply, Reply)> =
                items.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect();
            pairs.sort_by_key(|(key, _)| key.to_string());
            Reply::Map(pairs)
        }
        Reply::Array(items) if SCANS.iter().any(|(scan, _)| *scan == name) && items.len() == 2 => {
            let width = SCANS.iter().find(|(scan, _)| *scan == name).map_or(1, |(_, width)| *width);
            let [cursor, Reply::Array(page)] = &items[..] else { return Reply::Array(items) };
            let mut groups: Vec<Reply> =
                page.chunks(width).map(|group| Reply::Array(group.to_vec())).collect();
            by_text(&mut groups);
            Reply::Array(vec![cursor.clone(), Reply::Array(groups)])
        }
        // Without a negative count, draws are distinct.
        Reply::Array(items) if RANDOM.contains(&name.as_str()) => {
            let width =
                if command.len() == 4 && matches!(items.first(), Some(Reply::Bulk(_))) { 2 } else { 1 };
            let mut drawn: Vec<String> = items.chunks(width).map(|draw| draw[0].to_string()).collect();
            drawn.sort();
            let repeats = drawn.windows(2).any(|pair| pair[0] == pair[1]);
            let may_repeat = command.get(2).is_some_and(|count| count.starts_with(b"-"));
            if repeats && !may_repeat {
                return Reply::Error(format!("drawn twice: {drawn:?}"));
            }
            Reply::Int(items.len() as i64)
        }
        Reply::Bulk(_) if RANDOM.contains(&name.as_str()) => Reply::Bulk(Vec::new()),
        Reply::Int(value) => match CLOCKS.iter().find(|(clock, _)| *clock == name) {
            Some((_, slack)) if value > 0 => Reply::Double(format!("{value}~{slack}")),
            _ => Reply::Int(value),
        },
        other => other,
    }
}

/// EXEC's replies, each by the rules of its own command.
fn normalize_exec(log: &[(usize, Command)], who: usize, ours: Reply, theirs: Reply) -> (Reply, Reply) {
    let own: Vec<&Command> = log.iter().filter(|(w, _)| *w == who).map(|(_, command)| command).collect();
    let is = |command: &Command, name: &str| command[0].eq_ignore_ascii_case(name.as_bytes());
    let begin = own[..own.len() - 1].iter().rposition(|command| is(command, "multi")).unwrap_or(0);
    let queued: Vec<&Command> = own[begin + 1..own.len() - 1].to_vec();
    let apply = |reply: Reply| match reply {
        Reply::Array(items) if items.len() <= queued.len() => {
            // Commands that were refused when queued leave EXEC refused as a whole, so the rest line up, but for
            // those that run at once.
            let run: Vec<&Command> =
                queued.iter().copied().filter(|c| !is(c, "watch") && !is(c, "multi")).collect();
            Reply::Array(items.into_iter().zip(run).map(|(item, command)| normalize(command, item)).collect())
        }
        other => other,
    };
    (apply(ours), apply(theirs))
}

/// Whether two normalised replies are the same, clocks within their slack: when an expiry was set each server was late by
/// `lag` at most, and when it was asked for, too.
fn agree(a: &Reply, b: &Reply, lag: Duration) -> bool {
    match (a, b) {
        (Reply::Double(a), Reply::Double(b)) if a.contains('~') && b.contains('~') => {
            let parse = |text: &str| -> Option<(i64, i64)> {
                let (value, slack) = text.split_once('~')?;
                Some((value.parse().ok()?, slack.parse().ok()?))
            };
            let late = 2 * lag.as_millis() as i64;
            let within = |x: i64, y: i64, slack: i64| (x - y).abs() <= slack + late;
            matches!((parse(a), parse(b)), (Some((x, slack)), Some((y, _))) if within(x, y, slack))
        }
        (Reply::Array(a), Reply::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| agree(a, b, lag))
        }
        _ => a == b,
    }
}

fn show(command: &Command) -> String {
    let words: Vec<String> = command
        .iter()
        .map(|word| {
            let text = Reply::Bulk(word[..word.len().min(80)].to_vec()).to_string();
            if word.len() > 80 { format!("{text}…({} bytes)", word.len()) } else { text }
        })
        .collect();
    words.join(" ")
}

fn fail(seed: u64, log: &[(usize, Command)], ours: &Reply, theirs: &Reply) -> ! {
    let (_, last) = &log[log.len() - 1];
    let is_related = |command: &Command| {
        ["exec", "multi", "flushall", "flushdb", "select"]
            .iter()
            .any(|w| command[0].eq_ignore_ascii_case(w.as_bytes()))
            || command[1..].iter().any(|word| last[1..].contains(word) && word.len() < 20)
    };
    let mut history: Vec<String> = log
        .iter()
        .filter(|(_, command)| is_related(command) || last.len() == 1 || number("PUMICE_ALL").is_some())
        .map(|(who, command)| format!("{who}> {}", show(command)))
        .collect();
    let skipped = history.len().saturating_sub(40);
    history.drain(..skipped);
    let cut = |reply: &Reply| reply.to_string().chars().take(2000).collect::<String>();
    panic!(
        "replies differ\n{}\nours:   {}\nredis:  {}\nseed {seed}; replay: PUMICE_SEED={seed} PUMICE_COMMANDS={} cargo test \
         -p pumice-redis --test it differential::\n",
        history.join("\n"),
        cut(ours),
        cut(theirs),
        log.len(),
    );
}
