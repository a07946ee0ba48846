//! What `COMMAND DOCS` tells beyond the table: summaries, costs and arguments, from which redis-cli makes its hints.
//!
//! `command_facts/docs.tsv` has a line per command and subcommand, as Redis 7.0 documents them: name, summary,
//! complexity, arguments; where a command is deprecated: since when, and what replaces it; other flags. Arguments are
//! written shortly, those of a group in brackets behind it:
//!
//! ```text
//! o:condition@2.6.12?(t:nx=NX t:xx=XX)    kind : name #key-spec =token @since !deprecated-since ?optional
//!                                         *multiple +multiple-token
//! ```

use std::sync::OnceLock;

use pumice_base::hash::HashMap;

const TEXT: &str = include_str!("command_facts/docs.tsv");

/// What is documented of a command.
pub struct Docs {
    /// One line.
    pub summary: &'static str,
    /// Cost; empty: not told.
    pub complexity: &'static str,
    /// Arguments, in order.
    pub arguments: Vec<Argument>,
    /// Empty: not deprecated.
    pub deprecated_since: &'static str,
    /// What to use instead.
    pub replaced_by: &'static str,
    /// `deprecated`, `syscmd`, or empty.
    pub flag: &'static str,
}

/// An argument, or a group of them. Words as Redis's documentation of `COMMAND DOCS` defines them.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Argument {
    /// What it is called.
    pub name: &'static str,
    /// `key`, `string`, `oneof`, …
    pub kind: &'static str,
    /// Which of the command's key specifications it is.
    pub key_spec: Option<i64>,
    /// The word before it; empty: none.
    pub token: &'static str,
    /// First version that had it; empty: as the command.
    pub since: &'static str,
    /// Empty: not deprecated.
    pub deprecated_since: &'static str,
    /// `optional`, `multiple`, `multiple_token`.
    pub flags: Vec<&'static str>,
    /// Of a group.
    pub arguments: Vec<Argument>,
}

const KINDS: &[(u8, &str)] = &[
    (b'k', "key"),
    (b's', "string"),
    (b'i', "integer"),
    (b'd', "double"),
    (b'p', "pattern"),
    (b'u', "unix-time"),
    (b't', "pure-token"),
    (b'o', "oneof"),
    (b'b', "block"),
];

const MARKS: [char; 7] = ['#', '=', '@', '!', '?', '*', '+'];

/// The documentation of `name`, a command or `container|sub`.
pub fn of(name: &str) -> Option<&'static Docs> {
    static DOCS: OnceLock<HashMap<&'static str, Docs>> = OnceLock::new();
    DOCS.get_or_init(|| TEXT.lines().map(line).collect()).get(name)
}

fn line(line: &'static str) -> (&'static str, Docs) {
    let mut fields = line.split('\t');
    let mut next = || fields.next().unwrap_or_default();
    let name = next();
    let (summary, complexity, mut arguments) = (next(), next(), next());
    let (deprecated_since, replaced_by) = (next(), next());
    let flag = if deprecated_since.is_empty() { next() } else { "deprecated" };
    let arguments_of = list(&mut arguments);
    let docs = Docs { summary, complexity, arguments: arguments_of, deprecated_since, replaced_by, flag };
    assert!(arguments.is_empty(), "the arguments of {name} do not parse at '{arguments}'");
    (name, docs)
}

/// Arguments up to the end or a closing bracket, which stays.
fn list(rest: &mut &'static str) -> Vec<Argument> {
    let mut arguments = Vec::new();
    while !rest.is_empty() && !rest.starts_with(')') {
        arguments.push(argument(rest));
        *rest = rest.strip_prefix(' ').unwrap_or(rest);
    }
    arguments
}

fn argument(rest: &mut &'static str) -> Argument {
    let kind = rest.as_bytes()[0];
    let kind = KINDS.iter().find(|(letter, _)| *letter == kind).map(|(_, name)| *name);
    *rest = rest.get(2..).unwrap_or_default();
    let mut word = || {
        let end = rest.find(|c| MARKS.contains(&c) || " ()".contains(c)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        let mark = after.chars().next().filter(|c| MARKS.contains(c) || *c == '(');
        *rest = &after[mark.map_or(0, char::len_utf8)..];
        (word, mark)
    };
    let (name, mut mark) = word();
    let mut argument =
        Argument { name, kind: kind.expect("docs.tsv names known kinds"), ..Argument::default() };
    while let Some(c) = mark.filter(|c| *c != '(') {
        let (text, next) = word();
        match c {
            '#' => argument.key_spec = text.parse().ok(),
            '=' => argument.token = text,
            '@' => argument.since = text,
            '!' => argument.deprecated_since = text,
            '?' => argument.flags.push("optional"),
            '*' => argument.flags.push("multiple"),
            _ => argument.flags.push("multiple_token"),
        }
        mark = next;
    }
    if mark == Some('(') {
        argument.arguments = list(rest);
        *rest = rest.strip_prefix(')').expect("docs.tsv closes its brackets");
    }
    argument
}
