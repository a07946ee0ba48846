//! The command table: what each command is called, how many arguments it takes, which of them are keys, and
//! what carries it out. Facts come from `command_facts/`, handlers from `commands/`.

use std::sync::OnceLock;

use pumice_base::hash::HashMap;
use pumice_kv::Hint;
use pumice_reactor::LocalBoxFuture;

use crate::args::Args;
use crate::context::Ctx;
use crate::errors::{CommandResult, Failure};

/// What `COMMAND` tells of a command. Words and numbers as Redis's documentation of `COMMAND` defines them.
#[derive(Debug)]
pub struct Facts {
    /// Lower case; subcommands are called `container|sub`.
    pub name: &'static str,
    /// How many arguments, the name included; negative: at least that many.
    pub arity: i32,
    /// `write`, `readonly`, `fast`, …
    pub flags: &'static [&'static str],
    /// Index of the first key; 0 when there is none.
    pub first_key: i32,
    /// Index of the last key; negative counts from the end.
    pub last_key: i32,
    /// Distance between keys.
    pub key_step: i32,
    /// ACL categories.
    pub categories: &'static [&'static str],
    /// Tips for proxies.
    pub tips: &'static [&'static str],
    /// Where its keys stand.
    pub key_specs: &'static [KeySpec],
    /// Group in the documentation.
    pub group: &'static str,
    /// First version that had it.
    pub since: &'static str,
    /// Subcommands.
    pub subcommands: &'static [Facts],
}

/// Where some keys of a command stand.
#[derive(Debug)]
pub struct KeySpec {
    /// `RO`, `RW`, `access`, `update`, …
    pub flags: &'static [&'static str],
    /// Index where the search begins.
    pub index: usize,
    /// How to go on from there.
    pub find: Find,
}

/// How keys follow the place where a search begins.
#[derive(Debug)]
pub enum Find {
    /// Keys up to `last` (from the beginning; negative: from the end of the command), `step` apart, the first
    /// `1/limit` of them when `limit` > 1.
    Range {
        /// Last key, relative to the first; negative counts from the end.
        last: i32,
        /// Distance between keys.
        step: i32,
        /// 0 or 1: no limit.
        limit: i32,
    },
    /// The number of keys stands `at` places on, the first key `first` places on.
    KeyNum {
        /// Where the number of keys stands.
        at: usize,
        /// Where the first key stands.
        first: usize,
        /// Distance between keys.
        step: usize,
    },
}

/// Carries a command out. May await; everything it needs to know is in the context. Replies go to `ctx.reply`;
/// on `Err` the error is the whole reply.
pub type Handler = for<'a> fn(&'a mut Ctx, Args<'a>) -> LocalBoxFuture<'a, CommandResult>;

/// What a fast handler did.
pub enum Fast {
    /// The reply is written.
    Done,
    /// Nothing was done: the usual handler must run.
    Slow,
    /// The same, because memory alone cannot answer; it knows so much.
    NeedsFlash(Hint),
    /// The error is the reply.
    Fail(Failure),
}

impl From<Failure> for Fast {
    fn from(failure: Failure) -> Self {
        Self::Fail(failure)
    }
}

impl From<Result<(), Self>> for Fast {
    fn from(ended: Result<(), Self>) -> Self {
        ended.map_or_else(|early| early, |()| Self::Done)
    }
}

/// Carries a command out without waiting, or leaves it: for commands so frequent that an allocation counts.
pub type FastHandler = for<'a> fn(&'a mut Ctx, &Args<'a>) -> Fast;

/// A row of a command module: `("get", handler!(get))`.
pub type Row = (&'static str, Handler);

/// Makes a [`Handler`] of an `async fn(&mut Ctx, Args<'_>) -> CommandResult`.
#[macro_export]
macro_rules! handler {
    ($function:path) => {
        |ctx, args| Box::pin($function(ctx, args))
    };
}

/// A [`handler!`] of a function that looks elements of a key up with its latch held, and writes nothing before it has looked up all:
/// it is run anew when flash was read without the latch.
#[macro_export]
macro_rules! reads_first {
    ($function:path) => {
        |ctx, args| Box::pin($crate::keyspace::reads_first(ctx, args, $function))
    };
}

/// A fast handler from a function whose steps end it early by `?`, as a usual handler's do.
#[macro_export]
macro_rules! at_hand {
    ($function:path) => {
        |ctx, args| $crate::command::Fast::from($function(ctx, args))
    };
}

/// A command: facts and handlers.
pub struct Command {
    /// Its place in the table.
    pub index: usize,
    /// Where its statistics are; those of its subcommands follow, in their order.
    pub stats_at: usize,
    /// What `COMMAND` tells.
    pub facts: &'static Facts,
    /// What carries it out.
    pub run: Handler,
    /// The way without waiting, where there is one.
    pub fast: Option<FastHandler>,
    /// May change data.
    pub is_write: bool,
    /// May write more than it removes.
    pub needs_room: bool,
    /// Makes nothing larger, so that Redis runs it when its memory is full.
    pub only_rewrites: bool,
    /// Makes what is under one key smaller by what it puts under another.
    pub moves: bool,
    /// Allowed while the drives are still being opened.
    pub while_loading: bool,
    /// Allowed before AUTH.
    pub no_auth: bool,
}

impl Command {
    fn new(
        index: usize,
        stats_at: usize,
        facts: &'static Facts,
        run: Handler,
        fast: Option<FastHandler>,
    ) -> Self {
        let has = |flag: &str| facts.flags.contains(&flag);
        // Redis lets clients watch while it loads; ours looks at the key, which is on a drive that is not open yet.
        let while_loading = has("loading") && facts.name != "watch";
        let (is_write, no_auth) = (has("write"), has("no_auth"));
        // Those that write a key again, without making it larger, need room for it as well: on flash nothing is changed in place.
        let writes_again = matches!(
            facts.name,
            "expire"
                | "pexpire"
                | "expireat"
                | "pexpireat"
                | "persist"
                | "getex"
                | "rename"
                | "renamenx"
                | "smove"
        );
        let needs_room = has("denyoom") || writes_again;
        // What reads may have to end what a crash interrupted.
        let only_rewrites = !has("denyoom") && facts.name != "debug";
        let moves = matches!(facts.name, "rename" | "renamenx" | "smove");
        Self {
            index,
            stats_at,
            facts,
            run,
            fast,
            is_write,
            needs_room,
            only_rewrites,
            moves,
            while_loading,
            no_auth,
        }
    }

    /// True when `count` arguments, the name included, may be right.
    pub fn arity_fits(&self, count: usize) -> bool {
        arity_fits(self.facts.arity, count)
    }

    /// Whether there is the subcommand that `args` ask for, or the command has none.
    pub fn has_subcommand_of(&self, args: &Args<'_>) -> bool {
        self.facts.subcommands.is_empty() || !std::ptr::eq(self.facts_of(args), self.facts)
    }

    /// Where the statistics of what `args` ask for are: of the subcommand, where there is one.
    pub fn stats_of(&self, args: &Args<'_>) -> usize {
        let facts = self.facts_of(args);
        let sub = self.facts.subcommands.iter().position(|sub| std::ptr::eq(sub, facts));
        self.stats_at + sub.map_or(0, |sub| sub + 1)
    }

    /// What has statistics of its own, in their order: the command, then its subcommands.
    pub fn all_facts(&self) -> impl Iterator<Item = &'static Facts> {
        std::iter::once(self.facts).chain(self.facts.subcommands)
    }

    /// The facts of what `args` ask for: of the subcommand, where there is one.
    pub fn facts_of(&self, args: &Args<'_>) -> &'static Facts {
        args.get(1).and_then(|name| subcommand(self.facts, name)).unwrap_or(self.facts)
    }
}

/// True when `count` arguments, the name included, fit `arity`.
pub fn arity_fits(arity: i32, count: usize) -> bool {
    let count = count as i64;
    if arity >= 0 { count == i64::from(arity) } else { count >= -i64::from(arity) }
}

/// All commands.
pub struct Table {
    commands: Vec<Command>,
    by_name: HashMap<&'static [u8], usize>,
}

/// The longest command name; longer words are unknown without a look.
const NAME_BYTES_MAX: usize = 32;

impl Table {
    fn build() -> Self {
        let mut handlers: HashMap<&'static str, Handler> = HashMap::default();
        for rows in crate::commands::ROWS {
            for &(name, handler) in *rows {
                let before = handlers.insert(name, handler);
                assert!(before.is_none(), "two handlers for {name}");
            }
        }
        let mut fast: HashMap<&'static str, FastHandler> =
            crate::commands::FAST.iter().copied().flatten().copied().collect();
        let mut table = Self { commands: Vec::new(), by_name: HashMap::default() };
        for facts in crate::command_facts::FACTS.iter().copied().flatten() {
            // Facts without a handler: a command that is still to come; it stays unknown.
            let Some(run) = handlers.remove(facts.name) else { continue };
            let (index, stats_at) = (table.commands.len(), table.stats_len());
            table.by_name.insert(facts.name.as_bytes(), index);
            table.commands.push(Command::new(index, stats_at, facts, run, fast.remove(facts.name)));
        }
        assert!(handlers.is_empty() && fast.is_empty(), "handlers without facts");
        table
    }

    /// The one table of the program.
    pub fn get() -> &'static Self {
        static TABLE: OnceLock<Table> = OnceLock::new();
        TABLE.get_or_init(Self::build)
    }

    /// The command called `name`, in any case.
    pub fn find(&self, name: &[u8]) -> Option<&Command> {
        let mut lower = [0u8; NAME_BYTES_MAX];
        let lower = lower.get_mut(..name.len())?;
        lower.copy_from_slice(name);
        lower.make_ascii_lowercase();
        self.by_name.get(&*lower).map(|&index| &self.commands[index])
    }

    /// Commands and subcommands.
    pub fn stats_len(&self) -> usize {
        self.commands.last().map_or(0, |last| last.stats_at + 1 + last.facts.subcommands.len())
    }

    /// What is known of commands and subcommands, in the order of their statistics.
    pub fn all_facts(&self) -> impl Iterator<Item = &'static Facts> + '_ {
        self.commands.iter().flat_map(Command::all_facts)
    }

    /// All commands, in a fixed order.
    pub fn commands(&self) -> &[Command] {
        &self.commands
    }
}

/// The facts of a subcommand of `facts`, by its own name in any case.
pub fn subcommand(facts: &'static Facts, name: &[u8]) -> Option<&'static Facts> {
    facts.subcommands.iter().find(|sub| {
        sub.name.split_once('|').is_some_and(|(_, own)| own.as_bytes().eq_ignore_ascii_case(name))
    })
}

/// The places of the keys among `args` (Redis's getKeysFromCommand); empty for commands without keys. An
/// error when the number of keys does not parse or reaches past the end.
pub fn key_places(facts: &Facts, args: &Args<'_>) -> Result<Vec<usize>, Failure> {
    const INVALID: &str = "ERR Invalid arguments specified for command";
    let mut places = Vec::new();
    for spec in facts.key_specs {
        match spec.find {
            Find::Range { last, step, limit } => {
                let first = spec.index as i64;
                let last = match last {
                    0.. => first + i64::from(last),
                    _ if limit > 1 => {
                        first + (args.len() as i64 - first) / i64::from(limit) + i64::from(last)
                    }
                    _ => args.len() as i64 + i64::from(last),
                };
                let mut at = first;
                while at <= last {
                    if at >= args.len() as i64 {
                        return Err(INVALID.into());
                    }
                    places.push(at as usize);
                    at += i64::from(step.max(1));
                }
            }
            Find::KeyNum { at, first, step } => {
                let count = args.int_or(spec.index + at, INVALID)?;
                // Any number that a client can write.
                let behind_first = count.saturating_sub(1).saturating_mul(step as i64);
                let last = behind_first.saturating_add((spec.index + first) as i64);
                if count < 1 || last >= args.len() as i64 {
                    return Err(INVALID.into());
                }
                places.extend((0..count as usize).map(|i| spec.index + first + i * step));
            }
        }
    }
    Ok(places)
}
