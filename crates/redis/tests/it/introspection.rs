//! What operators look at and turn: MONITOR, SLOWLOG, CONFIG, CLIENT, OBJECT, MEMORY, timeouts, loading.

use pumice_base::hash::HashMap;
use std::time::{Duration, Instant};

use crate::common::{Client, Reply, Setup, TestServer, check, check_on, eventually};
use pumice_redis::options::Options;

fn text(reply: Reply) -> String {
    match reply {
        Reply::Bulk(bytes) | Reply::Verbatim(bytes) => String::from_utf8(bytes).expect("text"),
        Reply::Simple(text) => text,
        other => panic!("not text: {other}"),
    }
}

fn id(client: &mut Client) -> i64 {
    match client.line("CLIENT ID") {
        Reply::Int(id) => id,
        other => panic!("{other}"),
    }
}

#[test]
fn monitors_see_every_command_of_others_as_it_runs_and_no_passwords() {
    let server = TestServer::start();
    let (mut monitor, mut other) = (server.client(), server.client());
    assert_eq!(monitor.line("MONITOR").to_string(), "OK");
    other.line("SELECT 3");
    other.call(&[&b"SET"[..], b"key", b"a\r\n\"b\"\\\x01"]);
    // What the fast path and what the slow path would take, a transaction, a failure, and what is kept from view.
    other.line("GET key");
    other.line("CONFIG SET requirepass secret");
    other.line("CONFIG SET requirepass \"\"");
    other.line("AUTH wrong");
    other.line("HELLO 2 AUTH default secret");
    other.line("HELLO 2 AUTH a secret SETNAME x AUTH default secret");
    other.line("CLIENT LIST");
    other.line("COMMAND COUNT");
    other.line("MULTI");
    other.line("INCR n");
    other.line("EXEC");
    other.line("LPUSH key x");
    other.line("NOSUCHCOMMAND x");
    other.line("PING last");
    let mut seen = Vec::new();
    loop {
        let line = text(monitor.read());
        let (time, rest) = line.split_once(' ').expect("a time and the rest");
        assert!(time.split_once('.').is_some_and(|(s, us)| s.len() >= 10 && us.len() == 6), "{line}");
        let (origin, command) = rest.split_once("] ").expect("an origin and the command");
        assert!(origin.starts_with('['), "{line}");
        seen.push(format!("{} {command}", &origin[1..2]));
        if command.contains("last") {
            break;
        }
    }
    let expected = [
        r#"3 "SELECT" "3""#,
        r#"3 "SET" "key" "a\r\n\"b\"\\\x01""#,
        r#"3 "GET" "key""#,
        r#"3 "AUTH" "(redacted)""#,
        r#"3 "HELLO" "2" "AUTH" "(redacted)" "(redacted)""#,
        r#"3 "HELLO" "2" "AUTH" "(redacted)" "(redacted)" "SETNAME" "x" "AUTH" "(redacted)" "(redacted)""#,
        r#"3 "COMMAND" "COUNT""#,
        r#"3 "MULTI""#,
        r#"3 "INCR" "n""#,
        r#"3 "EXEC""#,
        r#"3 "LPUSH" "key" "x""#,
        r#"3 "PING" "last""#,
    ];
    assert_eq!(seen, expected);
    // A monitor still answers, and RESET makes it a client again.
    monitor.send(b"RESET\r\n");
    assert_eq!(text(monitor.read()), "RESET");
    other.line("ECHO quiet");
    assert_eq!(monitor.line("ECHO heard").to_string(), "\"heard\"");
}

#[test]
fn times_are_told_in_microseconds() {
    let server = TestServer::start();
    let (mut monitor, mut other) = (server.client(), server.client());
    monitor.line("MONITOR");
    let is_finer = |us: &str| !us.parse::<u64>().expect("microseconds").is_multiple_of(1000);
    let (mut by_time, mut by_monitor) = (0, 0);
    for _ in 0..20 {
        let Reply::Array(parts) = other.line("TIME") else { panic!("TIME answers two numbers") };
        by_time += u32::from(is_finer(&text(parts[1].clone())));
        let line = text(monitor.read());
        by_monitor += u32::from(is_finer(&line[11..17]));
    }
    // Each is a whole millisecond once in a thousand.
    assert!(by_time > 10 && by_monitor > 10, "{by_time} and {by_monitor} of 20");
}

#[test]
fn a_monitor_that_reads_nothing_is_closed_and_memory_stays_bounded() {
    let server = TestServer::start();
    let mut monitor = server.client();
    monitor.line("MONITOR");
    let mut other = server.client();
    let value = vec![b'x'; 200_000];
    for _ in 0..2000 {
        other.call(&[b"ECHO", &value[..]]);
        if server.server().clients.len() == 1 {
            return;
        }
    }
    panic!("400 MiB went to a monitor that reads nothing");
}

#[test]
fn the_slow_log_keeps_the_newest_slow_commands_cut_to_size() {
    let server = TestServer::start();
    let mut client = server.client();
    client.line("CLIENT SETNAME tester");
    client.line("CONFIG SET slowlog-log-slower-than 0 slowlog-max-len 4");
    client.line("SLOWLOG RESET");
    let long = "y".repeat(200);
    client.call(&["SET", "k", &long]);
    client.line("AUTH secret");
    client.line("HELLO 2 AUTH default secret");
    client.line("CONFIG SET requirepass secret requirepass secret");
    client.line("CONFIG SET requirepass \"\"");
    let log = client.line("SLOWLOG GET").to_string();
    assert!(!log.contains("secret") && log.matches("(redacted)").count() == 6, "{log}");
    client.line("SLOWLOG RESET");
    client.call(&["SET", "k", &long]);
    let many: Vec<String> = std::iter::once("DEL".into()).chain((0..50).map(|n| format!("k{n}"))).collect();
    client.call(&many);
    client.line("GET k");
    let Reply::Array(entries) = client.line("SLOWLOG GET") else { panic!() };
    let shown: Vec<String> = entries.iter().map(ToString::to_string).collect();
    assert!(shown[0].contains("[\"GET\", \"k\"]") && shown[0].contains("\"tester\""), "{shown:?}");
    assert!(shown[1].contains("... (20 more arguments)"), "{shown:?}");
    assert!(shown[2].contains("... (72 more bytes)"), "{shown:?}");
    let ids: Vec<&Reply> =
        entries.iter().map(|entry| if let Reply::Array(e) = entry { &e[0] } else { panic!() }).collect();
    assert!(
        ids.windows(2).all(|pair| matches!(pair, [Reply::Int(newer), Reply::Int(older)] if newer > older))
    );
    for n in 0..10 {
        client.line(&format!("GET k{n}"));
    }
    assert_eq!(client.line("SLOWLOG LEN"), Reply::Int(4));
    let Reply::Array(entries) = client.line("SLOWLOG GET 2") else { panic!() };
    assert_eq!(entries.len(), 2);
    client.line("CONFIG SET slowlog-log-slower-than -1");
    client.line("CONFIG SET slowlog-max-len 1");
    assert_eq!(client.line("SLOWLOG LEN"), Reply::Int(1), "what is too much now goes at once");
    client.line("CONFIG SET slowlog-max-len 4");
    client.line("SLOWLOG RESET");
    client.line("GET k");
    assert_eq!(client.line("SLOWLOG LEN"), Reply::Int(0));
    // An hour, which nothing takes, and then what a sleep exceeds, whatever else is slow here.
    client.line("CONFIG SET slowlog-log-slower-than 3600000000");
    client.line("DEBUG SLEEP 0.05");
    assert_eq!(client.line("SLOWLOG LEN"), Reply::Int(0));
    // The longest time that there is.
    assert_eq!(client.line("CONFIG SET slowlog-log-slower-than 9223372036854775807").to_string(), "OK");
    assert_eq!(client.line("PING").to_string(), "PONG");
    assert_eq!(client.line("SLOWLOG LEN"), Reply::Int(0));
    client.line("CONFIG SET slowlog-log-slower-than 20000");
    client.line("DEBUG SLEEP 0.05");
    let log = client.line("SLOWLOG GET -1").to_string();
    assert!(log.contains("[\"DEBUG\", \"SLEEP\", \"0.05\"]"), "{log}");
    assert_eq!(
        client.line("SLOWLOG GET -2").to_string(),
        "(error) ERR count should be greater than or equal to -1"
    );
}

#[test]
fn parameters_are_read_by_pattern_and_set_all_or_none() {
    check(
        r#"
        > CONFIG GET maxclients
        ["maxclients", "10000"]
        > CONFIG GET slowlog-* timeout
        ["slowlog-log-slower-than", "10000", "slowlog-max-len", "128", "timeout", "0"]
        > CONFIG GET nosuch*
        []
        > CONFIG SET timeout 10 slowlog-max-len 5
        OK
        > CONFIG GET TIMEOUT
        ["TIMEOUT", "10"]
        > CONFIG GET timeout MaxClients maxclients tim* TIMEOUT hz timeout
        ["timeout", "10", "MaxClients", "10000", "hz", "10"]
        > CONFIG GET maxclient[s] MAXCLIENTS
        ["maxclients", "10000"]
        > CONFIG SET timeout 20 nosuch 1
        (error) ERR Unknown option or number of arguments for CONFIG SET - 'nosuch'
        > CONFIG SET timeout 20 maxclients many
        (error) ERR CONFIG SET failed (possibly related to argument 'maxclients') - argument couldn't be parsed into an integer
        > CONFIG SET timeout 20 port 1
        (error) ERR CONFIG SET failed (possibly related to argument 'port') - can't set immutable config
        > CONFIG SET timeout 20 timeout 30
        (error) ERR CONFIG SET failed (possibly related to argument 'timeout') - duplicate parameter
        > CONFIG GET timeout
        ["timeout", "10"]
        > CONFIG SET timeout
        (error) ERR wrong number of arguments for 'config|set' command
        > CONFIG SET timeout 20 hz
        (error) ERR syntax error
        > CONFIG SET timeout abc NoSuch 5 port 1
        (error) ERR Unknown option or number of arguments for CONFIG SET - 'NoSuch'
        > CONFIG SET TimeOut abc
        (error) ERR CONFIG SET failed (possibly related to argument 'timeout') - argument couldn't be parsed into an integer
        > CONFIG SET timeout abc Port 1
        (error) ERR CONFIG SET failed (possibly related to argument 'Port') - can't set immutable config
        > CONFIG SET timeout abc TIMEOUT 1
        (error) ERR CONFIG SET failed (possibly related to argument 'TIMEOUT') - duplicate parameter
        > CONFIG SET "n\xe9" 1
        (error) ERR Unknown option or number of arguments for CONFIG SET - 'n\xe9'
        > CONFIG SET save "60 1"
        OK
        > CONFIG GET save
        ["save", "60 1"]
        > CONFIG SET client-query-buffer-limit 2mb
        OK
        > CONFIG GET client-query-buffer-limit
        ["client-query-buffer-limit", "2097152"]
        "#,
    );
}

/// As a Redis 7.0.15 answers, but for what stands for nothing here: that is checked and kept all the same.
#[test]
fn values_of_parameters_are_checked_and_kept_as_redis_does() {
    check(
        r#"
        > CONFIG SET hz many
        (error) ERR CONFIG SET failed (possibly related to argument 'hz') - argument couldn't be parsed into an integer
        > CONFIG SET maxmemory-samples 0
        (error) ERR CONFIG SET failed (possibly related to argument 'maxmemory-samples') - argument must be between 1 and 2147483647 inclusive
        > CONFIG SET save "900"
        (error) ERR CONFIG SET failed (possibly related to argument 'save') - Invalid save parameters
        > CONFIG SET save "900 x"
        (error) ERR CONFIG SET failed (possibly related to argument 'save') - Invalid save parameters
        > CONFIG SET appendfsync sometimes
        (error) ERR CONFIG SET failed (possibly related to argument 'appendfsync') - argument(s) must be one of the following: everysec, always, no
        > CONFIG SET loglevel DEBUG rdbcompression NO notify-keyspace-events xEKg
        OK
        > CONFIG GET loglevel rdbcompression notify-keyspace-events
        ["loglevel", "debug", "rdbcompression", "no", "notify-keyspace-events", "gxKE"]
        > CONFIG SET notify-keyspace-events EKA
        OK
        > CONFIG GET notify-keyspace-events
        ["notify-keyspace-events", "AKE"]
        > CONFIG SET notify-keyspace-events all
        (error) ERR CONFIG SET failed (possibly related to argument 'notify-keyspace-events') - Invalid event class character. Use 'Ag$lshzxeKEtmdn'.
        > CONFIG SET loglevel loud
        (error) ERR CONFIG SET failed (possibly related to argument 'loglevel') - argument(s) must be one of the following: debug, verbose, notice, warning
        > CONFIG SET lazyfree-lazy-user-del maybe
        (error) ERR CONFIG SET failed (possibly related to argument 'lazyfree-lazy-user-del') - argument must be 'yes' or 'no'
        > CONFIG SET maxmemory-clients 500%
        (error) ERR CONFIG SET failed (possibly related to argument 'maxmemory-clients') - percentage argument must be less or equal to 100
        > CONFIG SET tcp-keepalive -1
        (error) ERR CONFIG SET failed (possibly related to argument 'tcp-keepalive') - argument must be between 0 and 2147483647 inclusive
        > CONFIG SET timeout 100mb
        (error) ERR CONFIG SET failed (possibly related to argument 'timeout') - argument couldn't be parsed into an integer
        > CONFIG SET timeout 4294967296
        (error) ERR CONFIG SET failed (possibly related to argument 'timeout') - argument must be between 0 and 2147483647 inclusive
        > CONFIG SET slowlog-log-slower-than 1k
        (error) ERR CONFIG SET failed (possibly related to argument 'slowlog-log-slower-than') - argument couldn't be parsed into an integer
        > CONFIG SET maxclients 0
        (error) ERR CONFIG SET failed (possibly related to argument 'maxclients') - argument must be between 1 and 4294967295 inclusive
        > CONFIG SET maxclients 4294967295
        (error) ERR CONFIG SET failed (possibly related to argument 'maxclients') - The operating system is not able to handle the specified number of clients, try with 100000
        > CONFIG SET client-query-buffer-limit 10
        (error) ERR CONFIG SET failed (possibly related to argument 'client-query-buffer-limit') - argument must be between 1048576 and 9223372036854775807 inclusive
        > CONFIG SET client-output-buffer-limit "normal x 0 0"
        (error) ERR CONFIG SET failed (possibly related to argument 'client-output-buffer-limit') - Error in hard, soft or soft_seconds setting in buffer limit configuration.
        > CONFIG SET hash-max-listpack-value 1k hash-max-listpack-entries 7
        OK
        > CONFIG GET hash-max-listpack-*
        ["hash-max-listpack-entries", "7", "hash-max-listpack-value", "1000"]
        > CONFIG SET hash-max-listpack-entries 1k
        (error) ERR CONFIG SET failed (possibly related to argument 'hash-max-listpack-entries') - argument couldn't be parsed into an integer
        "#,
    );
}

#[test]
fn appendfsync_is_how_soon_writes_are_safe_and_is_not_set_to_anything_else() {
    for (durability, told, other) in
        [("always", "always", "no"), ("everysec", "everysec", "always"), ("none", "no", "everysec")]
    {
        let server = TestServer::with(Setup { durability, ..Setup::default() });
        check_on(
            &mut server.client(),
            &format!(
                r#"
                > CONFIG GET appendfsync
                ["appendfsync", "{told}"]
                > CONFIG SET appendfsync {other}
                (error) ERR CONFIG SET failed (possibly related to argument 'appendfsync') - how soon a write is safe is chosen at start (--durability)
                > CONFIG SET timeout 5 appendfsync {other}
                (error) ERR CONFIG SET failed (possibly related to argument 'appendfsync') - how soon a write is safe is chosen at start (--durability)
                > CONFIG SET timeout 0 appendfsync {}
                OK
                > CONFIG GET appendfsync timeout
                ["appendfsync", "{told}", "timeout", "0"]
                "#,
                told.to_ascii_uppercase(),
            ),
        );
    }
}

#[test]
fn info_counts_errors_by_code_and_tells_rates_and_the_peak_of_memory() {
    let server = TestServer::start();
    let mut client = server.client();
    client.line("SET s x");
    for line in ["LPUSH s y", "LPUSH s y", "NOSUCHCOMMAND", "GET", "INCR s"] {
        assert!(matches!(client.line(line), Reply::Error(_)), "{line}");
    }
    assert_eq!(
        text(client.line("INFO errorstats")),
        "# Errorstats\r\nerrorstat_ERR:count=3\r\nerrorstat_WRONGTYPE:count=2\r\n"
    );
    client.line("CONFIG RESETSTAT");
    assert_eq!(text(client.line("INFO errorstats")), "# Errorstats\r\n");
    let number = |info: &str, name: &str| -> f64 {
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("no {name} in {info}")).parse().expect("a number")
    };
    let memory = text(client.line("INFO memory"));
    assert!(number(&memory, "used_memory") > 0.0);
    assert!(number(&memory, "used_memory_peak") >= number(&memory, "used_memory"));
    eventually("rates are told", || {
        for _ in 0..100 {
            client.line("PING");
        }
        let stats = text(client.line("INFO stats"));
        let rates = ["instantaneous_ops_per_sec", "instantaneous_input_kbps", "instantaneous_output_kbps"];
        rates.iter().all(|name| number(&stats, name) > 0.0)
    });
}

#[test]
#[allow(clippy::disallowed_methods)] // what a client sees on its own clock
fn idle_clients_are_closed_after_the_timeout_and_busy_ones_stay() {
    let server = TestServer::start();
    let (mut idle, mut busy, mut monitor) = (server.client(), server.client(), server.client());
    idle.line("PING");
    monitor.line("MONITOR");
    let begun = server.server().clients.len();
    assert_eq!(begun, 3);
    busy.line("CONFIG SET timeout 1");
    let mut last = Instant::now();
    eventually("the idle client is closed", || {
        let asked = Instant::now();
        if busy.try_send(b"PING\r\n").and_then(|()| busy.try_read()).is_err() {
            // Where this thread got no turn for a second, the client was idle for a second.
            assert!(last.elapsed() >= Duration::from_secs(1), "closed {:?} after a PING", last.elapsed());
            busy = server.client();
            busy.line("PING");
        }
        last = asked;
        server.server().clients.len() == 2
    });
    assert_eq!(idle.read_to_end(), b"");
    assert!(server.server().clients.all().iter().any(|client| client.is_monitor()), "monitors are not idle");
}

#[test]
fn clients_are_listed_and_killed_by_id_address_kind_and_never_by_mistake() {
    let server = TestServer::with(Setup { tcp: Some("127.0.0.1:0".into()), ..Setup::default() });
    let mut me = server.client();
    let mut others: Vec<Client> = (0..4).map(|_| server.client()).collect();
    let ids: Vec<i64> = others.iter_mut().map(id).collect();
    let own = id(&mut me);
    others[0].line("CLIENT SETNAME first");
    others[0].line("SELECT 5");
    others[0].line("MULTI");
    others[0].line("SET a b");
    let list = text(me.line("CLIENT LIST"));
    assert_eq!(list.lines().count(), 5, "{list}");
    let line = list.lines().find(|line| line.starts_with(&format!("id={} ", ids[0]))).expect("it is listed");
    for part in [" name=first ", " db=5 ", " multi=1 ", " flags=xU ", " resp=2", " user=default "] {
        assert!(line.contains(part), "{part} in {line}");
    }
    let of = |id: i64| {
        let line = list.lines().find(|line| line.starts_with(&format!("id={id} ")));
        line.and_then(|line| line.split(" cmd=").nth(1)?.split(' ').next()).map(str::to_string)
    };
    assert_eq!(of(own).as_deref(), Some("client|list"), "it tells of itself: {list}");
    assert_eq!(of(ids[1]).as_deref(), Some("client|id"), "{list}");
    let some = text(me.line(&format!("CLIENT LIST ID {} {}", ids[1], ids[2])));
    assert_eq!(some.lines().count(), 2, "{some}");
    assert!(text(me.line("CLIENT INFO")).starts_with(&format!("id={own} ")));
    check_on(
        &mut me,
        r#"
        > SLOWLOG GET x
        (error) ERR count should be greater than or equal to -1
        > DEBUG ERROR "OOPS it says\r\nno more"
        (error) OOPS it says  no more
        > CLIENT KILL ID 999999
        0
        > CLIENT KILL 1.2.3.4:5
        (error) ERR No such client
        > CLIENT KILL ID 0
        (error) ERR client-id should be greater than 0
        > CLIENT KILL TYPE pubsub
        0
        > CLIENT KILL TYPE nosuch
        (error) ERR Unknown client type 'nosuch'
        > CLIENT KILL USER nobody
        (error) ERR No such user 'nobody'
        "#,
    );
    assert_eq!(me.line(&format!("CLIENT KILL ID {}", ids[3])), Reply::Int(1));
    assert_eq!(others[3].read_to_end(), b"");
    // All normal clients but this one.
    assert_eq!(me.line("CLIENT KILL TYPE normal"), Reply::Int(3));
    for other in &mut others[..3] {
        assert_eq!(other.read_to_end(), b"");
    }
    eventually("they are forgotten", || text(me.line("CLIENT LIST")).lines().count() == 1);
    // What the killed transaction had queued was never run.
    assert_eq!(me.line("SELECT 5").to_string(), "OK");
    assert_eq!(me.line("EXISTS a"), Reply::Int(0));
    assert_eq!(me.line(&format!("CLIENT KILL ID {own} SKIPME no")), Reply::Int(1));
    assert_eq!(me.read_to_end(), b"");
}

#[test]
fn replies_are_switched_off_skipped_and_on_again() {
    let server = TestServer::start();
    let mut client = server.client();
    client.send(b"CLIENT REPLY OFF\r\nSET a 1\r\nINCR a\r\nNOSUCH\r\nCLIENT REPLY ON\r\nGET a\r\n");
    assert_eq!(client.read().to_string(), "OK");
    assert_eq!(client.read().to_string(), "\"2\"");
    client.send(b"CLIENT REPLY SKIP\r\nINCR a\r\nINCR a\r\n");
    assert_eq!(client.read(), Reply::Int(4));
    client.send(b"MULTI\r\nCLIENT REPLY SKIP\r\nPING\r\nEXEC\r\nPING\r\n");
    assert_eq!(client.read().to_string(), "OK");
}

#[test]
fn objects_tell_encodings_and_usage_as_sizes_say() {
    check(
        r#"
        > SET int 12345
        OK
        > SET short abc
        OK
        > SET long {x*45}
        OK
        > RPUSH list a b
        2
        > SADD ints 1 2 3
        3
        > SADD words a b
        2
        > HSET hash f v
        1
        > HSET long-hash f {v*65}
        1
        > ZADD zset 1 a
        1
        > OBJECT ENCODING int
        "int"
        > OBJECT ENCODING short
        "embstr"
        > OBJECT ENCODING long
        "raw"
        > OBJECT ENCODING ints
        "intset"
        > OBJECT ENCODING words
        "hashtable"
        > OBJECT ENCODING hash
        "listpack"
        > OBJECT ENCODING long-hash
        "hashtable"
        > OBJECT ENCODING zset
        "listpack"
        > OBJECT ENCODING none
        nil
        > OBJECT REFCOUNT list
        1
        > OBJECT IDLETIME list
        0
        > OBJECT IDLETIME none
        nil
        > OBJECT
        (error) ERR wrong number of arguments for 'object' command
        > OBJECT ENCODING
        (error) ERR wrong number of arguments for 'object|encoding' command
        > MEMORY USAGE none
        nil
        > MEMORY USAGE list SAMPLES x
        (error) ERR value is not an integer or out of range
        > MEMORY USAGE list SAMPLES -1
        (error) ERR syntax error
        "#,
    );
}

#[test]
fn memory_usage_grows_with_what_a_key_holds() {
    let server = TestServer::start();
    let mut client = server.client();
    let usage = |client: &mut Client, line: &str| match client.line(line) {
        Reply::Int(bytes) => bytes,
        other => panic!("{line}: {other}"),
    };
    client.call(&[b"SET", &b"string"[..], &[b'x'; 100_000]]);
    assert!((100_000..101_000).contains(&usage(&mut client, "MEMORY USAGE string")));
    client.call(&[b"SET", &b"pieces"[..], &vec![b'x'; 3 << 20]]);
    assert!((3 << 20..(3 << 20) + 4096).contains(&usage(&mut client, "MEMORY USAGE pieces")));
    for (name, command) in [("h", "HSET"), ("z", "ZADD"), ("s", "SADD"), ("l", "RPUSH")] {
        let mut before = 0;
        for n in 0..40 {
            let member = format!("{n}{}", "m".repeat(100));
            let number = n.to_string();
            match command {
                "HSET" => client.call(&[command, name, &member, &member]),
                "ZADD" => client.call(&[command, name, &number, &member]),
                _ => client.call(&[command, name, &member]),
            };
            let now = usage(&mut client, &format!("MEMORY USAGE {name} SAMPLES 0"));
            assert!(now >= before + 100, "{name}: {before} then {now}");
            before = now;
        }
        let sampled = usage(&mut client, &format!("MEMORY USAGE {name}"));
        assert!((before / 2..before * 2).contains(&sampled), "{name}: {before}, sampled {sampled}");
    }
}

#[test]
fn commands_that_need_data_hear_loading_until_the_drives_are_open() {
    let server = TestServer::with(Setup { loads_when_told: true, ..Setup::default() });
    let mut client = server.client();
    for line in
        ["GET a", "SET a 1", "DBSIZE", "FLUSHALL", "SCAN 0", "KEYS *", "PUMICE.RANGE - +", "EXPIRE a 1"]
    {
        assert_eq!(client.line(line).to_string(), "(error) LOADING Pumice is opening its drives", "{line}");
    }
    // A long value is refused too, and swallowed: the connection stays in step.
    let long = vec![b'x'; 1 << 20];
    assert!(client.call(&[b"SET", &b"a"[..], &long]).to_string().starts_with("(error) LOADING"));
    // A transaction that could not be queued is aborted, as in Redis.
    client.line("MULTI");
    client.line("SET a 1");
    assert!(client.line("EXEC").to_string().starts_with("(error) EXECABORT"));
    assert!(client.line("HELLO 3").to_string().contains("proto"));
    assert!(text(client.line("INFO persistence")).contains("loading:1\r\n"));
    assert!(text(client.line("INFO")).contains("redis_version:"));
    for line in ["CLIENT ID", "COMMAND COUNT", "CONFIG GET maxclients", "SLOWLOG LEN"] {
        assert!(!client.line(line).to_string().starts_with("(error)"), "{line}");
    }
    server.load();
    eventually("it is loaded", || client.line("SET a 1").to_string() == "OK");
    assert!(text(client.line("INFO persistence")).contains("loading:0\r\n"));
    assert_eq!(client.line("GET a").to_string(), "\"1\"");
}

#[test]
fn a_password_asked_for_at_run_time_holds_for_new_clients() {
    let server = TestServer::with(Setup {
        options: Options { port: 0, password: "one".into(), ..Options::default() },
        ..Setup::default()
    });
    let mut client = server.client();
    check_on(
        &mut client,
        r#"
        > GET a
        (error) NOAUTH Authentication required.
        > AUTH wrong
        (error) WRONGPASS invalid username-password pair or user is disabled.
        > AUTH one
        OK
        > CONFIG SET requirepass two
        OK
        > GET a
        nil
        "#,
    );
    let mut other = server.client();
    check_on(
        &mut other,
        r#"
        > AUTH one
        (error) WRONGPASS invalid username-password pair or user is disabled.
        > AUTH default two
        OK
        > CONFIG GET requirepass
        ["requirepass", "two"]
        > RESET
        RESET
        > GET a
        (error) NOAUTH Authentication required.
        "#,
    );
}

#[test]
fn a_password_that_is_taken_away_is_asked_of_nobody() {
    let server = TestServer::with(Setup {
        options: Options { port: 0, password: "one".into(), ..Options::default() },
        ..Setup::default()
    });
    let (mut client, mut waiting) = (server.client(), server.client());
    assert!(waiting.line("GET a").to_string().starts_with("(error) NOAUTH"));
    client.line("AUTH one");
    assert_eq!(client.line("CONFIG SET requirepass \"\"").to_string(), "OK");
    assert_eq!(waiting.line("GET a").to_string(), "nil");
    // It never gave one.
    assert_eq!(client.line("CONFIG SET requirepass two").to_string(), "OK");
    assert!(waiting.line("GET a").to_string().starts_with("(error) NOAUTH"));
    assert_eq!(client.line("GET a").to_string(), "nil");
}

#[test]
fn clients_are_listed_in_the_order_asked_for_and_names_have_a_length() {
    let server = TestServer::start();
    let mut client = server.client();
    let others = [server.client(), server.client()];
    let mut ids = vec![client.line("CLIENT ID").to_string()];
    ids.extend(others.into_iter().map(|mut other| {
        let id = other.line("CLIENT ID").to_string();
        // It stays.
        std::mem::forget(other);
        id
    }));
    let asked = format!("CLIENT LIST ID {} {} 999999 {}", ids[2], ids[0], ids[2]);
    let found: Vec<String> = text(client.line(&asked))
        .lines()
        .map(|line| line.split(' ').next().unwrap_or_default().into())
        .collect();
    assert_eq!(found, [&ids[2], &ids[0], &ids[2]].map(|id| format!("id={id}")));
    let name = "n".repeat(1025);
    let refused = client.line(&format!("CLIENT SETNAME {name}")).to_string();
    assert_eq!(refused, "(error) ERR Client names cannot have more than 1024 bytes.");
    assert_eq!(client.line(&format!("CLIENT SETNAME {}", &name[1..])).to_string(), "OK");
}

/// A limit that was lowered since changes nothing of what only shrinks, nor of what is asked for.
#[test]
fn what_shrinks_keeps_its_encoding() {
    let server = TestServer::start();
    let mut client = server.client();
    for line in [
        "HSET h a 1 b 1 c 1 d 1 e 1",
        "ZADD z 1 a 1 b 1 c 1 d 1 e",
        "CONFIG SET hash-max-listpack-entries 2",
        "CONFIG SET zset-max-listpack-entries 2",
        "HDEL h a",
        "ZREM z a",
        "ZADD z 2 b",
        "ZPOPMIN z",
    ] {
        assert!(!client.line(line).to_string().starts_with("(error)"), "{line}");
    }
    check_on(
        &mut client,
        r#"
        > OBJECT ENCODING h
        "listpack"
        > OBJECT ENCODING z
        "listpack"
        > HSET h b 2
        0
        > OBJECT ENCODING h
        "hashtable"
        > ZADD z 9 f
        1
        > OBJECT ENCODING z
        "skiplist"
        "#,
    );
}

#[test]
fn a_password_is_bytes_and_no_other_bytes_are_it() {
    let server = TestServer::start();
    let mut client = server.client();
    let password = b"\xff\xfe pass\0word \xc3".to_vec();
    let set = [&b"CONFIG"[..], b"SET", b"requirepass", &password, b"timeout", b"0"];
    assert_eq!(client.call(&set).to_string(), "OK");
    let told = client.line("CONFIG GET requirepass");
    assert_eq!(told, Reply::Array(vec![Reply::Bulk(b"requirepass".to_vec()), Reply::Bulk(password.clone())]));
    let wrong = "(error) WRONGPASS invalid username-password pair or user is disabled.";
    let replaced = String::from_utf8_lossy(&password).into_owned().into_bytes();
    let mut other = server.client();
    for given in [&replaced[..], b"", &password[..password.len() - 1], &[&password[..], b"x"].concat()] {
        assert_eq!(other.call(&[b"AUTH", given]).to_string(), wrong);
        assert_eq!(other.call(&[b"HELLO", &b"2"[..], b"AUTH", b"default", given]).to_string(), wrong);
    }
    assert_eq!(other.call(&[b"AUTH", &password[..]]).to_string(), "OK");
    let mut third = server.client();
    let hello = third.call(&[b"HELLO", &b"2"[..], b"AUTH", b"default", &password]).to_string();
    assert!(hello.contains("\"proto\""), "{hello}");
}

#[test]
fn subcommands_have_statistics_of_their_own() {
    let server = TestServer::start();
    let mut client = server.client();
    client.line("CONFIG RESETSTAT");
    client.line("CLIENT ID");
    client.line("CLIENT ID");
    client.line("CLIENT SETNAME a b");
    client.line("CONFIG SET nonsense 1");
    client.line("OBJECT NOSUCH x");
    client.line("OBJECT");
    client.line("GET x");
    let info = text(client.line("INFO commandstats"));
    let counted: Vec<String> = info
        .lines()
        .filter_map(|line| line.strip_prefix("cmdstat_"))
        .map(|line| {
            let (name, fields) = line.split_once(':').expect("a name");
            let field = |name: &str| {
                let field = fields.split(',').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
                field.expect(name).to_string()
            };
            format!("{name} {} {} {}", field("calls"), field("rejected_calls"), field("failed_calls"))
        })
        .collect();
    let mut sorted = counted.clone();
    sorted.sort_unstable();
    // What CONFIG RESETSTAT itself took is counted after it, as in Redis.
    let expected = [
        "client|id 2 0 0",
        "client|setname 0 1 0",
        "config|resetstat 1 0 0",
        "config|set 1 0 1",
        "get 1 0 0",
        "object 0 1 0",
    ];
    assert_eq!(sorted, expected);
}

#[test]
fn kinds_of_space_add_up_to_the_drive() {
    // Not a whole number of segments.
    let server = TestServer::with(Setup { drive_bytes: (64 << 20) + 100_000, ..Setup::default() });
    let mut client = server.client();
    client.line("SET key value");
    let info = text(client.line("INFO pumice"));
    let space = |line: &str| -> Option<(String, u64)> {
        let (kind, bytes) = line.strip_prefix("space_")?.split_once("_bytes:")?;
        Some((kind.to_owned(), bytes.parse().expect("a number")))
    };
    let kinds: HashMap<String, u64> = info.lines().filter_map(space).collect();
    assert!(kinds["leftover"] > 0, "{kinds:?}");
    let sum: u64 =
        kinds.iter().filter(|(kind, _)| !["raw", "usable"].contains(&kind.as_str())).map(|(_, b)| b).sum();
    assert_eq!(sum, kinds["raw"], "{kinds:?}");
}
