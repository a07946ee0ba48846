//! Hashes, sets, sorted sets and lists beside a real redis-server: tables of edge cases (`edges.rs`), how
//! values are kept (`encodings.rs`), and collections too large for one batch, one reply or one page (`large.rs`).

mod edges;
mod encodings;
mod hexadecimal;
mod large;

use crate::common::oracle::Oracle;
use crate::common::{self, Client, Reply, TestServer};

/// How two replies to one command compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compare {
    /// The same replies.
    Exactly,
    /// Items in any order, in groups of so many.
    Unordered(usize),
    /// Random replies: the same kinds and number of items.
    Shape,
}

/// Pumice and redis-server, a connection to each.
pub struct Pair {
    /// To Pumice.
    pub ours: Client,
    /// To redis-server.
    pub theirs: Client,
    history: Vec<String>,
    servers: (TestServer, Oracle),
}

/// Runs `test` with fresh servers in RESP2 and then in RESP3; where there is no redis-server, says so.
pub fn with_pair(protocols: &[&str], test: impl Fn(&mut Pair)) {
    for protocol in protocols {
        let Some(oracle) = Oracle::start() else { return };
        let server = TestServer::start();
        let (ours, theirs) = (server.client(), oracle.client());
        let mut pair = Pair { ours, theirs, history: Vec::new(), servers: (server, oracle) };
        pair.ours.line(&format!("HELLO {protocol}"));
        pair.theirs.line(&format!("HELLO {protocol}"));
        test(&mut pair);
    }
}

fn sorted(items: &[Reply], width: usize) -> Vec<Reply> {
    let mut groups: Vec<&[Reply]> = items.chunks(width).collect();
    groups.sort_by_cached_key(|group| group.iter().map(ToString::to_string).collect::<Vec<_>>());
    groups.concat()
}

fn normal(reply: &Reply, compare: Compare) -> Reply {
    match (compare, reply) {
        (Compare::Unordered(width), Reply::Array(items)) => Reply::Array(sorted(items, width)),
        (Compare::Unordered(width), Reply::Set(items)) => Reply::Set(sorted(items, width)),
        (Compare::Unordered(_), Reply::Map(pairs)) => {
            let mut pairs = pairs.clone();
            pairs.sort_by_cached_key(|(name, _)| name.to_string());
            Reply::Map(pairs)
        }
        (Compare::Shape, Reply::Array(items)) => {
            Reply::Array(items.iter().map(|item| normal(item, compare)).collect())
        }
        (Compare::Shape, Reply::Bulk(_)) => Reply::Bulk(Vec::new()),
        (Compare::Shape, Reply::Double(_)) => Reply::Double(String::new()),
        _ => reply.clone(),
    }
}

impl Pair {
    /// Another connection to Pumice.
    pub fn our_other(&self) -> Client {
        self.servers.0.client()
    }

    /// Another connection to redis-server.
    pub fn their_other(&self) -> Client {
        self.servers.1.client()
    }

    /// Sends the line to both and compares the replies. Marks before it: `~` items in any order, `~~` pairs in
    /// any order, `?` only the shape. Gives Pumice's reply.
    pub fn check(&mut self, line: &str) -> Reply {
        let (line, compare) = if let Some(line) = line.strip_prefix("~~") {
            (line, Compare::Unordered(2))
        } else if let Some(line) = line.strip_prefix('~') {
            (line, Compare::Unordered(1))
        } else if let Some(line) = line.strip_prefix('?') {
            (line, Compare::Shape)
        } else {
            (line, Compare::Exactly)
        };
        let words = common::split(line);
        let (ours, theirs) = (self.ours.call(&words), self.theirs.call(&words));
        self.compare(line, &ours, &theirs, compare);
        ours
    }

    /// Fails, with what was sent before, when the replies to `line` differ.
    pub fn compare(&mut self, line: &str, ours: &Reply, theirs: &Reply, compare: Compare) {
        self.history.push(line.chars().take(200).collect());
        if normal(ours, compare) == normal(theirs, compare) {
            return;
        }
        let cut = |reply: &Reply| reply.to_string().chars().take(1000).collect::<String>();
        let from = self.history.len().saturating_sub(30);
        panic!(
            "replies differ ({compare:?}) after\n    {}\npumice: {}\nredis:  {}",
            self.history[from..].join("\n    "),
            cut(ours),
            cut(theirs)
        );
    }

    /// One command a line.
    pub fn table(&mut self, table: &str) {
        for line in table.lines().map(str::trim).filter(|line| !line.is_empty()) {
            self.check(line);
        }
    }

    /// Sends the lines to both in pipelines and compares every reply.
    pub fn fill(&mut self, lines: impl IntoIterator<Item = String>) {
        let lines: Vec<String> = lines.into_iter().collect();
        for lines in lines.chunks(100) {
            let bytes: Vec<u8> =
                lines.iter().flat_map(|line| common::client::encode(&common::split(line))).collect();
            self.ours.send(&bytes);
            self.theirs.send(&bytes);
            for line in lines {
                let (ours, theirs) = (self.ours.read(), self.theirs.read());
                self.compare(line, &ours, &theirs, Compare::Exactly);
            }
        }
    }

    /// Everything that both hold.
    pub fn check_contents(&mut self) {
        self.check("DEBUG DIGEST");
        self.check("DBSIZE");
        let Reply::Array(keys) = self.check("~KEYS *") else { panic!("KEYS answers with an array") };
        for key in keys {
            let key = key.to_string();
            let look = match self.check(&format!("TYPE {key}")) {
                Reply::Simple(kind) if kind == "hash" => format!("~~HGETALL {key}"),
                Reply::Simple(kind) if kind == "set" => format!("~SMEMBERS {key}"),
                Reply::Simple(kind) if kind == "zset" => format!("ZRANGE {key} 0 -1 WITHSCORES"),
                Reply::Simple(kind) if kind == "list" => format!("LRANGE {key} 0 -1"),
                _ => format!("GET {key}"),
            };
            self.check(&look);
        }
    }
}
