//! What clients may ask for while the drives are being opened.

use crate::common::{Setup, TestServer, eventually};
use pumice_redis::options::{DebugAccess, Options};

const LOADING: &str = "(error) LOADING Pumice is opening its drives";

/// Whatever may run meanwhile ends, alone and in a transaction.
#[test]
fn nothing_that_may_run_while_loading_needs_data() {
    let options = Options { debug: DebugAccess::Yes, port: 0, ..Options::default() };
    let server = TestServer::with(Setup { loads_when_told: true, options, ..Setup::default() });
    let mut client = server.client();
    // Every command that Redis lets run while it loads, with its subcommands, and arguments that fit.
    let found = client.line("COMMAND");
    let crate::common::Reply::Array(commands) = found else { panic!("{found}") };
    assert!(commands.len() > 100);
    let mut lines: Vec<String> = commands.iter().filter_map(line_of).collect();
    lines.extend(
        [
            "DEBUG OBJECT k",
            "DEBUG DIGEST",
            "DEBUG DIGEST-VALUE k",
            "DEBUG POPULATE 3",
            "DEBUG RELOAD",
            "DEBUG SLEEP 0",
            "CONFIG RESETSTAT",
            "CONFIG GET *",
            "CLIENT LIST",
            "CLIENT INFO",
            "INFO ALL",
            "INFO KEYSPACE",
            "COMMAND DOCS GET",
            "SELECT 3",
            "LATENCY RESET",
            "MEMORY USAGE k",
            "OBJECT ENCODING k",
        ]
        .map(String::from),
    );
    assert!(lines.len() > 25, "{lines:?}");
    for line in &lines {
        let alone = server.client().line(line);
        assert!(!alone.to_string().contains("went away"), "{line}: {alone}");
        let mut other = server.client();
        other.line("MULTI");
        other.line(line);
        other.line("EXEC");
        assert!(!client.line("CLIENT ID").to_string().starts_with("(error)"), "after {line}");
    }
    client.line("MULTI");
    assert_eq!(client.line("EXEC").to_string(), "[]");
    for line in ["MULTI", "SELECT 1", "DEBUG DIGEST", "TIME"] {
        client.line(line);
    }
    let replies = client.line("EXEC").to_string();
    assert!(replies.starts_with("[OK, ") && replies.contains("LOADING"), "{replies}");
    for line in ["DEBUG OBJECT k", "DEBUG DIGEST", "DEBUG DIGEST-VALUE k", "DEBUG POPULATE 3", "DEBUG RELOAD"]
    {
        assert_eq!(client.line(line).to_string(), LOADING, "{line}");
    }
    assert_eq!(client.line("WATCH k").to_string(), LOADING);
    server.load();
    let mut other = server.client();
    eventually("it is loaded", || other.line("SET a 1").to_string() == "OK");
    for line in ["MULTI", "GET a"] {
        client.line(line);
    }
    assert_eq!(client.line("EXEC").to_string(), "[nil]", "database 1 was selected while loading");
}

/// A command with the flag `loading` and as few arguments as it takes; not those that end the connection or the server.
fn line_of(command: &crate::common::Reply) -> Option<String> {
    let crate::common::Reply::Array(facts) = command else { panic!("{command}") };
    let name = facts[0].to_string().trim_matches('"').to_string();
    let is_other = matches!(
        &name[..],
        "shutdown" | "quit" | "monitor" | "multi" | "exec" | "discard" | "reset" | "debug"
    );
    if is_other || !facts[2].to_string().contains("loading") {
        return None;
    }
    let arity: i64 = facts[1].to_string().parse().expect("an arity");
    Some((1..arity.abs()).fold(name, |line, _| line + " 1"))
}
