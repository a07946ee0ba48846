//! Answers that redis-server cannot be asked for beside Pumice (`collections`, `differential`): because it differs, because
//! they need a mode of its own, or because only test tools ask. Redis's own test suite found most of them.

use crate::common::oracle::Oracle;
use crate::common::{Client, Setup, TestServer, check, check_on};
use pumice_redis::options::{DebugAccess, Options};

/// Nothing else is written, so a reply that waited for the next write would never come.
#[test]
fn no_reply_waits_for_the_next_write_of_somebody_else() {
    for durability in ["always", "everysec", "none"] {
        let server = TestServer::with(Setup { durability, ..Setup::default() });
        let mut client = server.client();
        // What writes, and then what takes numbers or only looks.
        for command in [
            "ZADD z XX 1 a",
            "SINTERSTORE to a b",
            "ZADD z 1 a",
            "ZADD z XX 2 b",
            "SINTERSTORE z a b",
            "EXISTS z",
            "RPUSH l a",
            "LREM l 0 a",
            "EXISTS l",
            "SUNIONSTORE z none",
            "GET none",
            "COPY none z",
            "FLUSHALL",
            "DBSIZE",
        ] {
            client.send(format!("{command}\r\n").as_bytes());
            let reply = client.try_read();
            assert!(reply.is_ok(), "{command} with {durability}: {reply:?}");
        }
    }
}

/// Nobody is woken when a short acknowledgement has left: what follows it must come nevertheless.
#[test]
fn whoever_leaves_or_monitors_after_a_write_gets_all_that_was_meant_for_him() {
    let server = TestServer::start();
    for _ in 0..20 {
        let mut client = server.client();
        client.send(b"SET k v\r\n");
        client.close_writing();
        assert_eq!(client.read_to_end(), b"+OK\r\n", "the answer, and then the end");
        let mut client = server.client();
        client.send(b"SET k v\r\nQUIT\r\n");
        assert_eq!(client.read_to_end(), b"+OK\r\n+OK\r\n");
    }
    let (mut monitor, mut other) = (server.client(), server.client());
    assert_eq!(monitor.line("SET k v"), other.line("SET k w"));
    monitor.line("MONITOR");
    for value in 0..20 {
        other.line(&format!("SET k {value}"));
        let line = monitor.try_read().expect("each command is told, one by one");
        assert!(format!("{line:?}").contains(&format!("{value}")), "{line:?}");
    }
}

/// The end of MONITOR falls together with lines that call its client; whoever calls it later must be heard.
#[test]
fn who_has_been_a_monitor_can_be_killed() {
    let server = TestServer::start();
    let mut other = server.client();
    for _ in 0..100 {
        let mut client = server.client();
        client.line("MONITOR");
        other.send("PING\r\n".repeat(20).as_bytes());
        client.send(b"RESET\r\n");
        (0..20).for_each(|_| drop(other.read()));
        while !format!("{:?}", client.read()).contains("RESET") {}
        other.line("CLIENT KILL TYPE normal");
        client.read_to_end();
    }
}

#[test]
fn commands_are_listed_with_their_subcommands() {
    check(
        r#"
        > COMMAND LIST FILTERBY PATTERN config*
        ["config", "config|get", "config|set", "config|resetstat", "config|rewrite", "config|help"]
        > COMMAND LIST FILTERBY PATTERN xyz*
        []
        > COMMAND LIST FILTERBY MODULE any
        []
        > COMMAND LIST FILTERBY ACLCAT connection PATTERN x
        (error) ERR syntax error
        > COMMAND LIST FILTERBY PATTERN memory|u*
        ["memory|usage"]
        "#,
    );
}

#[test]
fn parameters_are_refused_as_redis_refuses_them() {
    let refused = |name: &str, why: &str| {
        format!("(error) ERR CONFIG SET failed (possibly related to argument '{name}') - {why}")
    };
    for (line, why) in [
        ("appendonly perhaps", "argument must be 'yes' or 'no'"),
        (
            "appendonly no",
            "every write is kept without such a file; how soon it is safe is chosen at start (--durability)",
        ),
        (
            "maxmemory 1gb",
            "memory is chosen at start (--memory, 268435456 bytes now); data may exceed it, and nothing is evicted",
        ),
        (
            "maxmemory 0",
            "memory is chosen at start (--memory, 268435456 bytes now); data may exceed it, and nothing is evicted",
        ),
        ("tcp-keepalive 60", "it is 300 seconds for every connection"),
        ("enable-debug-command yes", "can't set immutable config"),
        ("protected-mode 1", "argument must be 'yes' or 'no'"),
        ("maxmemory -1", "argument must be a memory value"),
        ("maxmemory x", "argument must be a memory value"),
        ("maxclients 0", "argument must be between 1 and 4294967295 inclusive"),
        ("daemonize yes", "can't set immutable config"),
        ("slaveof x", "can't set immutable config"),
    ] {
        let name = line.split(' ').next().unwrap_or_default();
        check(&format!("> CONFIG SET {line}\n{}", refused(name, why)));
    }
    check("> CONFIG SET appendonly YES protected-mode YES maxmemory 256mb tcp-keepalive 300\nOK");
    let twice = refused("maxmemory", "duplicate parameter");
    check(&format!("> CONFIG SET maxmemory 10000001 maxmemory 10000002\n{twice}"));
    check("> CONFIG GET maxmemory appendonly\n[\"maxmemory\", \"268435456\", \"appendonly\", \"yes\"]");
}

#[test]
fn debug_is_for_those_who_were_let_in_at_start() {
    let refused = "(error) ERR DEBUG command not allowed. If the enable-debug-command option is set to \"local\", you can run \
                   it from a local connection, otherwise you need to set this option in the configuration file, and then \
                   restart the server.";
    for (debug, name) in [(DebugAccess::No, "no"), (DebugAccess::Local, "local"), (DebugAccess::Yes, "yes")] {
        let options = Options { debug, port: 0, ..Options::default() };
        let server = TestServer::with(Setup { options, ..Setup::default() });
        // Over a Unix socket: local.
        let mut client = server.client();
        let reply = if debug == DebugAccess::No { refused } else { "OK" };
        for line in ["DEBUG SLEEP 0", "DEBUG POPULATE 1"] {
            assert_eq!(client.line(line).to_string(), reply, "{name}");
        }
        client.line("MULTI");
        client.line("DEBUG SLEEP 0");
        let aborted = client.line("EXEC").to_string().starts_with("(error) EXECABORT");
        assert_eq!(aborted, debug == DebugAccess::No, "{name}");
        let told = client.line("CONFIG GET enable-debug-command").to_string();
        assert_eq!(told, format!("[\"enable-debug-command\", \"{name}\"]"));
    }
}

#[test]
fn debug_serves_test_tools_and_nothing_that_it_takes_is_without_a_bound() {
    check(
        r#"
        > DEBUG STRINGMATCH-LEN 128000 a*
        0
        > DEBUG STRINGMATCH-LEN 10 A*A
        1
        > DEBUG STRINGMATCH-LEN 0 A
        0
        > DEBUG STRINGMATCH-LEN -1 A
        (error) ERR value is out of range, must be positive
        > DEBUG STRINGMATCH-LEN 9223372036854775807 A
        (error) ERR value is out of range, must be positive
        > DEBUG POPULATE 2 k 9223372036854775807
        (error) ERR value is out of range, must be positive
        > DEBUG POPULATE 1 {k*65536}
        (error) ERR the prefix is too long
        > DEBUG POPULATE 2 k 3
        OK
        > MGET k:0 k:1 k:2
        ["val", "val", nil]
        > DEBUG RELOAD
        OK
        > DEBUG PROTOCOL push
        (error) ERR RESP2 is not supported by this command
        > DEBUG PROTOCOL bignum
        "1234567999999999999999999999999999999"
        > DEBUG PROTOCOL attrib
        "Some real reply following the attribute"
        > DEBUG OBJECT none
        (error) ERR no such key
        "#,
    );
}

/// Redis 7.0 negates the rank, overflows, and answers as for −1.
#[test]
fn the_rank_that_has_no_opposite_is_refused() {
    let server = TestServer::start();
    let refused =
        "(error) ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807";
    check_on(
        &mut server.client(),
        &format!(
            "> RPUSH l a b a
             3
             > LPOS l a RANK -9223372036854775808
             {refused}
             > LPOS none a RANK -9223372036854775808
             {refused}
             > LPOS l a RANK -9223372036854775807
             nil
             > LPOS l a RANK -1
             2"
        ),
    );
}

/// What is skipped is the next command's answer, RESET's among them; an empty line is a command, too.
#[test]
fn what_client_reply_skip_skips_is_told_as_redis_does() {
    let server = TestServer::start();
    let oracle = Oracle::start();
    let mut connects: Vec<Box<dyn Fn() -> Client>> = vec![Box::new(|| server.client())];
    connects.extend(oracle.as_ref().map(|oracle| Box::new(|| oracle.client()) as _));
    for connect in connects {
        for (sent, answers) in [
            ("CLIENT REPLY SKIP\r\nRESET\r\nECHO a\r\n", "$1\r\na\r\n"),
            ("CLIENT REPLY OFF\r\nRESET\r\nECHO b\r\n", "+RESET\r\n$1\r\nb\r\n"),
            ("CLIENT REPLY SKIP\r\n\r\nECHO c\r\nECHO d\r\n", "$1\r\nc\r\n$1\r\nd\r\n"),
            ("CLIENT REPLY SKIP\r\n*0\r\nECHO e\r\nECHO f\r\n", "$1\r\ne\r\n$1\r\nf\r\n"),
            ("CLIENT REPLY SKIP\r\nECHO g\r\n\r\nECHO h\r\n", "$1\r\nh\r\n"),
            ("CLIENT REPLY SKIP\r\nCLIENT REPLY ON\r\nECHO i\r\n", "+OK\r\n$1\r\ni\r\n"),
            ("CLIENT REPLY OFF\r\n\r\nECHO j\r\nCLIENT REPLY ON\r\n", "+OK\r\n"),
        ] {
            let mut client = connect();
            client.send(format!("{sent}QUIT\r\n").as_bytes());
            let came = client.read_to_end();
            assert_eq!(String::from_utf8_lossy(&came), format!("{answers}+OK\r\n"), "{sent:?}");
        }
    }
}

/// Of a command that changes the database monitors are told with the new one.
#[test]
fn monitors_see_the_database_that_was_selected() {
    let server = TestServer::start();
    let mut pairs = vec![(server.client(), server.client())];
    let oracle = Oracle::start();
    pairs.extend(oracle.as_ref().map(|oracle| (oracle.client(), oracle.client())));
    for (mut monitor, mut other) in pairs {
        monitor.line("MONITOR");
        for (line, database) in [("SELECT 3", 3), ("PING", 3), ("SELECT 99", 3), ("RESET", 0), ("PING", 0)] {
            other.line(line);
            let told = monitor.read().to_string();
            assert!(told.contains(&format!(" [{database} ")), "{line}: {told}");
        }
    }
}
