//! Clients that mean harm, or are broken: they are answered or closed, memory stays bounded, others unharmed.

use crate::common::client::encode;
use crate::common::{self, Reply, Setup, TestServer};
use pumice_base::rng::Rng;
use pumice_redis::options::Options;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The server still serves a decent client.
fn still_serves(server: &TestServer) {
    let mut client = server.client();
    assert_eq!(client.line("SET decent client").to_string(), "OK");
    assert_eq!(client.line("GET decent").to_string(), "\"client\"");
}

#[test]
fn random_bytes_harm_nobody() {
    let server = TestServer::start();
    for seed in 0..60 {
        let mut rng = Rng::from_seed(seed);
        let mut bytes = vec![0; 1 + rng.below(3000) as usize];
        rng.fill(&mut bytes);
        if rng.chance(0.5) {
            bytes[0] = b'*';
        }
        let mut client = server.client();
        let _ = client.try_send(&bytes);
        let _ = client.try_send(b"\r\nQUIT\r\n");
        client.set_timeout(Duration::from_millis(200));
        client.read_to_end();
    }
    still_serves(&server);
}

/// A page in a browser can make it send commands in the body of a request: nothing after the request's head may run.
#[test]
fn who_speaks_http_is_closed_without_an_answer_and_runs_nothing() {
    let server = TestServer::start();
    let resp = |name: &str| encode(&[name, "x"]);
    for name in ["POST", "post", "PoSt", "Host:", "host:", "HOST:"] {
        for head in [format!("{name} / HTTP/1.1\r\n").into_bytes(), resp(name)] {
            for before in [&b""[..], b"GET / HTTP/1.1\r\n", b"MULTI\r\n", b"PING\r\n"] {
                let mut client = server.client();
                client.send(&[before, &head, b"SET stolen 1\r\n"].concat());
                assert_eq!(client.read_to_end(), b"", "{before:?} and then {head:?}");
            }
        }
    }
    let mut client = server.client();
    assert_eq!(client.line("EXISTS stolen"), Reply::Int(0));
    // What only looks like it.
    assert!(client.line("HOST x").to_string().starts_with("(error) ERR unknown command 'HOST'"));
    assert_eq!(client.line("ECHO post").to_string(), "\"post\"");
    client.line("CONFIG SET requirepass secret");
    let mut stranger = server.client();
    stranger.send(b"POST / HTTP/1.1\r\nHost: here\r\n\r\nAUTH secret\r\n");
    assert_eq!(stranger.read_to_end(), b"", "before AUTH");
}

/// What looks at all earlier commands, or at all earlier keys, in each takes longer for this than a client waits.
#[test]
fn a_long_transaction_costs_what_its_commands_cost() {
    const MANY: usize = 100_000;
    let server = TestServer::start();
    let (mut client, mut other) = (server.client(), server.client());
    let mut commands = encode(&["MULTI"]);
    (0..MANY).for_each(|n| commands.extend(encode(&["SET", &format!("k{n}"), "v"])));
    commands.extend(encode(&["EXEC"]));
    client.send(&commands);
    (0..=MANY).for_each(|_| drop(client.read()));
    let Reply::Array(done) = client.read() else { panic!("the transaction runs") };
    assert_eq!(done.len(), MANY);
    // One command of as many keys, while somebody watches one of them.
    other.line(&format!("WATCH k{}", MANY - 1));
    let delete: Vec<String> =
        std::iter::once("DEL".into()).chain((0..MANY).map(|n| format!("k{n}"))).collect();
    assert_eq!(client.call(&delete), Reply::Int(MANY as i64));
    other.line("MULTI");
    other.line("GET k0");
    assert_eq!(other.line("EXEC"), Reply::NullArray);
}

#[test]
fn huge_counts_and_lengths_cost_nothing_until_bytes_arrive() {
    let server = TestServer::start();
    let mut clients: Vec<_> = (0..100).map(|_| server.client()).collect();
    for client in &mut clients {
        client.send(b"*2000000000\r\n$536870912\r\nabc");
    }
    still_serves(&server);
    let waiting = server.server().stats.input_waiting_bytes.load(Ordering::Relaxed);
    assert!(waiting < 1 << 20, "{waiting} bytes are held for what was only announced");
}

#[test]
fn half_open_clients_and_half_commands_are_forgotten_with_their_connection() {
    let server = TestServer::start();
    for _ in 0..50 {
        let mut client = server.client();
        client.send(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$100000\r\nxxxxx");
        client.close_writing();
        assert_eq!(client.read_to_end(), b"");
    }
    still_serves(&server);
    no_input_waits(&server);
}

/// What waited for the rest of a command is let go of, at the latest when its connection has ended.
fn no_input_waits(server: &TestServer) {
    let waiting = || server.server().stats.input_waiting_bytes.load(Ordering::Relaxed);
    common::eventually("no bytes of commands are held", || waiting() == 0);
}

/// Every command that writes, `K` being its key and `F` a field, a member, or another key.
const WRITES: &str = "SET K v|SETNX K v|SETEX K 9 v|PSETEX K 9 v|GETSET K v|APPEND K v|SETRANGE K 1 v|INCR K|DECR K|INCRBY K 2|\
    DECRBY K 2|INCRBYFLOAT K 2|MSET a 1 K v|MSETNX K v b 1|GETDEL K|GETEX K PERSIST|DEL a K|UNLINK K|EXPIRE K 9|\
    PEXPIREAT K 99|PERSIST K|RENAME a K|RENAME K a|RENAMENX a K|COPY a K|COPY K a|LPUSH K v|RPUSH K v|LPUSHX K v|\
    LINSERT K BEFORE a b|LSET K 0 v|LTRIM K 0 1|LREM K 0 v|LPOP K|RPOP K 2|LMOVE list K LEFT LEFT|RPOPLPUSH list K|\
    LMPOP 2 a K LEFT|HSET K f v|HSETNX K f v|HMSET K f v|HDEL K f|HINCRBY K f 1|HINCRBYFLOAT K f 1|SADD K m|SREM K m|\
    SPOP K|SMOVE set K m|SINTERSTORE K set|SUNIONSTORE K set set|SDIFFSTORE K set|ZADD K 1 m|ZINCRBY K 1 m|ZREM K m|\
    ZPOPMIN K|ZMPOP 1 K MIN|ZRANGESTORE K zset 0 -1|ZUNIONSTORE K 1 zset|ZINTERSTORE K 2 zset zset|ZDIFFSTORE K 1 zset|\
    ZREMRANGEBYRANK K 0 1|ZREMRANGEBYSCORE K 0 1|ZREMRANGEBYLEX K - +|HSET hash F v|HSETNX hash F v|HMSET hash f v F v|\
    HINCRBY hash F 1|HINCRBYFLOAT hash F 1|SADD set m F|ZADD zset 1 m 2 F|ZADD zset INCR 1 F|ZINCRBY zset 1 F";

#[test]
fn keys_and_members_that_are_too_long_are_refused_by_every_command_and_break_nothing() {
    let server = TestServer::start();
    let mut client = server.client();
    for line in ["SET a 1", "RPUSH list 1 2 3", "SADD set m n", "ZADD zset 1 m 2 n", "HSET hash f v"] {
        client.line(line);
    }
    let command = |line: &str, long: &[u8]| -> Vec<Vec<u8>> {
        let words = line.split_whitespace();
        words.map(|word| if ["K", "F"].contains(&word) { long.to_vec() } else { word.into() }).collect()
    };
    for bytes in [65_537, 66_000, 1 << 20] {
        let long = vec![b'x'; bytes];
        for line in WRITES.split('|') {
            let reply = client.call(&command(line, &long)).to_string();
            assert!(reply.contains("too long: 65536 is the most"), "{line} with {bytes} bytes: {reply}");
        }
        // In a run of commands, and in a transaction.
        let set = encode(&[&b"SET"[..], &long, b"v"]);
        client.send(&[encode(&["SET", "c", "1"]), set.clone(), encode(&["GET", "c"])].concat());
        assert_eq!(client.read().to_string(), "OK");
        assert!(client.read().to_string().contains("too long"));
        assert_eq!(client.read().to_string(), "\"1\"");
        client.line("MULTI");
        client.send(&set);
        assert!(client.read().to_string().contains("too long"));
        assert!(client.line("EXEC").to_string().contains("EXECABORT"));
        // They can be asked for.
        assert_eq!(client.call(&[&b"GET"[..], &long]).to_string(), "nil");
        assert_eq!(client.call(&[&b"EXISTS"[..], &long, b"a"]).to_string(), "1");
        assert_eq!(client.call(&[&b"WATCH"[..], &long]).to_string(), "OK");
        assert_eq!(client.line("UNWATCH").to_string(), "OK");
        for (line, answer) in [
            ("HGET hash F", "nil"),
            ("HMGET hash f F", "[\"v\", nil]"),
            ("HEXISTS hash F", "0"),
            ("HSTRLEN hash F", "0"),
            ("SISMEMBER set F", "0"),
            ("SMISMEMBER set m F", "[1, 0]"),
            ("ZSCORE zset F", "nil"),
            ("ZMSCORE zset m F", "[\"1\", nil]"),
            ("ZRANK zset F", "nil"),
            ("ZREVRANK zset F", "nil"),
            ("HGET none F", "nil"),
            ("HMGET a f F", "(error) WRONGTYPE Operation against a key holding the wrong kind of value"),
        ] {
            assert_eq!(client.call(&command(line, &long)).to_string(), answer, "{line} with {bytes} bytes");
        }
    }
    let longest = vec![b'x'; 65_536];
    for line in ["SET K v", "DEL K", "RPUSH K v", "LPOP K", "HSET hash F v", "SADD set F", "ZADD zset 1 F"] {
        let reply = client.call(&command(line, &longest)).to_string();
        assert!(!reply.contains("error"), "{line}: {reply}");
    }
    assert_eq!(client.call(&[&b"ZSCORE"[..], b"zset", &longest]).to_string(), "\"1\"");
    still_serves(&server);
}

#[test]
fn a_client_that_takes_nothing_is_closed_at_the_limit() {
    let options = Options { output_bytes_max: 32 << 20, port: 0, ..Options::default() };
    let server = TestServer::with(Setup { options, ..Setup::default() });
    let mut greedy = server.client();
    let big = vec![b'x'; 100_000];
    assert_eq!(greedy.call(&[&b"SET"[..], b"big", &big]).to_string(), "OK");
    let get = encode(&["GET", "big"]);
    let mut sent = 0;
    for _ in 0..200_000 {
        if greedy.try_send(&get).is_err() {
            break;
        }
        sent += 1;
        if server.server().stats.output_limit_closes.load(Ordering::Relaxed) > 0 {
            break;
        }
    }
    let closes = || server.server().stats.output_limit_closes.load(Ordering::Relaxed);
    common::eventually(&format!("the client is closed after {sent} GETs"), || closes() > 0);
    let closed =
        common::info_number(&mut server.client(), "stats", "client_output_buffer_limit_disconnections");
    assert_eq!(closed, 1);
    still_serves(&server);
}

#[test]
fn a_long_pipeline_written_before_anything_is_read_is_answered() {
    let server = TestServer::start();
    let mut client = server.client();
    let value = vec![b'v'; 8192];
    client.call(&[&b"SET"[..], b"k", &value]);
    let mut pipeline = Vec::new();
    for _ in 0..5000 {
        pipeline.extend(encode(&["GET", "k"]));
    }
    client.send(&pipeline);
    for _ in 0..5000 {
        assert!(matches!(client.read(), Reply::Bulk(bytes) if bytes == value));
    }
}

#[test]
fn too_many_clients_are_turned_away() {
    let options = Options { clients_max: 3, port: 0, ..Options::default() };
    let server = TestServer::with(Setup { options, ..Setup::default() });
    let mut kept: Vec<_> = (0..3).map(|_| server.client()).collect();
    for client in &mut kept {
        assert_eq!(client.line("PING").to_string(), "PONG");
    }
    let mut late = server.client();
    assert_eq!(late.read_to_end(), b"-ERR max number of clients reached\r\n");
    assert_eq!(kept[0].line("PING").to_string(), "PONG");
}

#[test]
fn strangers_before_auth_may_send_little() {
    let options = Options { password: b"secret".to_vec(), port: 0, ..Options::default() };
    let server = TestServer::with(Setup { options, ..Setup::default() });
    let mut client = server.client();
    assert_eq!(client.line("GET k").to_string(), "(error) NOAUTH Authentication required.");
    assert_eq!(
        client.line("AUTH wrong").to_string(),
        "(error) WRONGPASS invalid username-password pair or user is disabled."
    );
    let mut greedy = server.client();
    greedy.send(b"*2\r\n$3\r\nGET\r\n$1000000\r\n");
    assert_eq!(greedy.read_to_end(), b"-ERR Protocol error: unauthenticated bulk length\r\n");
    assert_eq!(client.line("AUTH secret").to_string(), "OK");
    assert_eq!(client.line("GET k").to_string(), "nil");
}

#[test]
fn values_of_many_megabytes_pass_in_pieces() {
    let server = TestServer::start();
    let mut client = server.client();
    let mut value = vec![0; 20 << 20];
    Rng::from_seed(7).fill(&mut value);
    assert_eq!(client.call(&[&b"SET"[..], b"large", &value]).to_string(), "OK");
    assert_eq!(client.line("STRLEN large").to_string(), (20 << 20).to_string());
    assert!(matches!(client.line("GET large"), Reply::Bulk(bytes) if bytes == value));
    assert_eq!(client.line("RENAME large other").to_string(), "OK");
    assert_eq!(client.line("APPEND other tail").to_string(), ((20 << 20) + 4).to_string());
    value.extend_from_slice(b"tail");
    assert!(matches!(client.line("GET other"), Reply::Bulk(bytes) if bytes == value));
}

/// What no client could send in one command here: the budget of all of them is a mebibyte.
fn small_input() -> TestServer {
    let options = Options { input_bytes_max: 1 << 20, port: 0, ..Options::default() };
    TestServer::with(Setup { options, ..Setup::default() })
}

#[test]
fn a_command_too_long_to_be_kept_is_refused_by_name_and_the_connection_goes_on() {
    let server = small_input();
    let mut rng = Rng::from_seed(17);
    let long = vec![b'\r'; 3 << 20];
    let parts: Vec<Vec<u8>> = (0..30).map(|_| vec![b'$'; 100_000]).collect();
    let many: Vec<&[u8]> = [&b"RPUSH"[..], b"list"].into_iter().chain(parts.iter().map(|p| &p[..])).collect();
    let tiny: Vec<&[u8]> =
        [&b"SADD"[..], b"set"].into_iter().chain((0..400_000).map(|_| &b"x"[..])).collect();
    let too_long = [
        encode(&[b"HSET", &b"hash"[..], b"field", &long]),
        encode(&[b"HSET", &b"hash"[..], b"field", &long, b"other", b"v"]),
        encode(&[b"RPUSH", &b"list"[..], b"before", &long, &long]),
        encode(&[b"GET", &long[..]]),
        encode(&many),
        encode(&tiny),
    ];
    let mut most = 0;
    for (number, command) in too_long.iter().enumerate() {
        let mut client = server.client();
        assert_eq!(client.line("SET k before").to_string(), "OK");
        // In pieces as the network likes them, first and last commands of a run among them.
        let all = [encode(&["GET", "k"]), command.clone(), encode(&["SET", "k", "after"])].concat();
        let mut rest = &all[..];
        while !rest.is_empty() {
            let piece = if rng.chance(0.1) { 1 + rng.below(40) } else { 1 + rng.below(400_000) } as usize;
            let piece = piece.min(rest.len());
            client.send(&rest[..piece]);
            rest = &rest[piece..];
            most = most.max(server.server().stats.input_waiting_bytes.load(Ordering::Relaxed));
        }
        assert_eq!(client.read().to_string(), "\"before\"", "command {number}");
        let named = |refused: String| {
            let named = refused.contains("exceeds maximum allowed size: 1048576 bytes");
            assert!(named, "command {number}: {refused}");
        };
        named(client.read().to_string());
        assert_eq!(client.read().to_string(), "OK", "command {number}");
        assert_eq!(client.line("GET k").to_string(), "\"after\"");
        // A transaction with such a command does not run.
        assert_eq!(client.line("MULTI").to_string(), "OK");
        client.send(command);
        named(client.read().to_string());
        assert!(client.line("EXEC").to_string().contains("EXECABORT"));
        // A client that wants no replies gets none.
        client.send(&encode(&["CLIENT", "REPLY", "OFF"]));
        client.send(command);
        assert_eq!(client.line("CLIENT REPLY ON").to_string(), "OK");
    }
    assert!(most <= 1 << 20, "{most} bytes waited");
    assert_eq!(server.client().line("EXISTS hash list set").to_string(), "0");
    // What fits is taken.
    let fits = vec![b'v'; 900_000];
    assert_eq!(server.client().call(&[b"HSET", &b"hash"[..], b"f", &fits]).to_string(), "1");
    assert_eq!(server.server().stats.input_limit_closes.load(Ordering::Relaxed), 0);
    no_input_waits(&server);
}

/// `command key` and `count` short elements.
fn of_elements(command: &str, key: &str, count: usize) -> Vec<u8> {
    let elements: Vec<String> = (0..count).map(|i| i.to_string()).collect();
    let words: Vec<&str> = [command, key].into_iter().chain(elements.iter().map(String::as_str)).collect();
    encode(&words)
}

#[test]
fn what_the_arguments_of_a_command_take_while_it_runs_is_counted() {
    let server = small_input();
    let mut client = server.client();
    // 256 bytes each, of a mebibyte: whether they come in one piece or in many.
    for (command, count, pieces) in [("SADD", 5000, 1), ("RPUSH", 5000, 1), ("SADD", 100_000, 40_000)] {
        let long = of_elements(command, "many", count);
        for piece in long.chunks(long.len().div_ceil(pieces).max(100)) {
            client.send(piece);
        }
        let refused = client.read().to_string();
        let is_told = refused.contains("arguments take, or more exceeds maximum allowed size: 1048576 bytes");
        assert!(is_told, "{command} of {count}: {refused}");
        assert_eq!(client.line("EXISTS many").to_string(), "0");
    }
    client.send(&of_elements("SADD", "set", 3000));
    assert_eq!(client.read().to_string(), "3000");
    // Who only reads takes less.
    client.send(&of_elements("SMISMEMBER", "set", 5000));
    let Reply::Array(found) = client.read() else { panic!("not an array") };
    assert_eq!(found.iter().filter(|found| found.to_string() == "1").count(), 3000);
    client.send(&of_elements("DEL", "none", 5000));
    assert_eq!(client.read().to_string(), "0");
    // Others' count, for as long as they wait.
    let waiting = of_elements("SADD", "other", 3000);
    let (begin, end) = waiting.split_at(waiting.len() - 3);
    let mut other = server.client();
    other.send(begin);
    let held = || server.server().stats.input_waiting_bytes.load(Ordering::Relaxed);
    common::eventually("its arguments are counted", || held() > 2900 * 256);
    client.send(&of_elements("SREM", "set", 3000));
    let refused = client.read().to_string();
    assert!(refused.contains("OOM commands of"), "{refused}");
    other.send(end);
    assert_eq!(other.read().to_string(), "3000");
    client.send(&of_elements("SREM", "set", 3000));
    assert_eq!(client.read().to_string(), "3000");
    no_input_waits(&server);
}

#[test]
fn who_finds_no_room_for_a_command_that_would_fit_alone_hears_that_others_have_it() {
    let server = small_input();
    let half = encode(&[b"HSET", &b"hash"[..], b"field", &vec![b'v'; 700_000]]);
    let (mut first, mut second) = (server.client(), server.client());
    first.send(&half[..600_000]);
    let waiting = || server.server().stats.input_waiting_bytes.load(Ordering::Relaxed);
    common::eventually("the first command waits for its rest", || waiting() >= 600_000);
    second.send(&half);
    assert!(second.read().to_string().starts_with("(error) OOM commands of "));
    assert_eq!(second.line("PING").to_string(), "PONG");
    first.send(&half[600_000..]);
    assert_eq!(first.read().to_string(), "1");
    second.send(&half);
    assert_eq!(second.read().to_string(), "0");
}

#[test]
fn a_client_over_its_own_query_buffer_limit_is_closed_as_redis_does() {
    let server = TestServer::start();
    let mut client = server.client();
    assert_eq!(client.line("CONFIG SET client-query-buffer-limit 1mb").to_string(), "OK");
    let _ = client.try_send(&encode(&[b"HSET", &b"hash"[..], b"field", &vec![b'v'; 3 << 20]]));
    client.read_to_end();
    assert_eq!(
        common::info_number(&mut server.client(), "stats", "client_query_buffer_limit_disconnections"),
        1
    );
}

#[test]
fn numbers_of_keys_beyond_all_bounds_are_refused_also_in_transactions() {
    let server = TestServer::start();
    let mut client = server.client();
    let numbers = ["-9223372036854775808", "9223372036854775807", "9223372036854775806", "-1", "0", "3"];
    for number in numbers {
        for command in [
            "LMPOP # k LEFT",
            "ZMPOP # k MIN",
            "SINTERCARD # k",
            "ZINTERCARD # k",
            "ZUNION # k",
            "ZDIFF # k",
            "ZUNIONSTORE d # k",
            "ZINTERSTORE d # k",
        ] {
            let command = command.replace('#', number);
            let told = client.line(&format!("COMMAND GETKEYS {command}")).to_string();
            assert_eq!(told, "(error) ERR Invalid arguments specified for command", "{command}");
            client.line("MULTI");
            assert_eq!(client.line(&command).to_string(), "QUEUED");
            let Reply::Array(replies) = client.line("EXEC") else { panic!("EXEC of {command}") };
            assert!(matches!(replies[..], [Reply::Error(_)]), "{command}: {replies:?}");
        }
    }
}

/// A command in which `V` stands for a value of so many bytes, the longest that are not written to flash while they arrive, and one
/// more.
const STREAMED_BYTES: usize = (256 << 10) + 1;
const STREAMED: &str = "SET K V|SETNX K V|GETSET K V|APPEND K V|SETEX K 99 V|PSETEX K 99999 V|SETRANGE K 0 V|MSET K V|MSETNX K V";

/// Redis takes any byte after a carriage return for the line feed, wherever the network cuts.
#[test]
fn long_values_arrive_whole_wherever_their_command_is_cut_and_whatever_ends_its_lines() {
    let server = TestServer::with(Setup { durability: "none", ..Setup::default() });
    let waiting = || server.server().stats.input_waiting_bytes.load(Ordering::Relaxed);
    let mut rng = Rng::from_seed(5);
    let mut value = vec![0; STREAMED_BYTES];
    let (mut client, mut other) = (server.client(), server.client());
    for (number, line) in STREAMED.split('|').enumerate() {
        rng.fill(&mut value);
        let words: Vec<Vec<u8>> =
            line.split(' ').map(|word| if word == "V" { value.clone() } else { word.into() }).collect();
        let command = encode(&words);
        let header = command.len() - value.len() - 2;
        for cut in 1..header + 2 {
            // With SET every byte that means something to the protocol, else one of them or any other.
            let ends: &[u8] = if number == 0 { b"\nA\r$*0" } else { &[rng.below(256) as u8] };
            for &end in ends {
                let mut bytes = command.clone();
                let lines = (1..header).filter(|&at| command[at - 1] == b'\r' && command[at] == b'\n');
                lines.for_each(|at| bytes[at] = end);
                client.send(&bytes[..cut]);
                common::eventually("the first part has come", || waiting() > 0);
                client.send(&bytes[cut..]);
                let reply = client.read().to_string();
                assert!(!reply.contains("error"), "{line} cut at {cut}, lines end with {end:#x}: {reply}");
                let stored = other.line("GET K");
                let is_whole = matches!(&stored, Reply::Bulk(bytes) if *bytes == value);
                assert!(is_whole, "{line} cut at {cut}, lines end with {end:#x}");
                assert_eq!(other.line("DEL K"), Reply::Int(1));
            }
        }
    }
    still_serves(&server);
}

/// Commands with numbers, `N`.
const NUMBERS: &str = "GETRANGE str N N|SETRANGE str N v|SETEX k N v|PSETEX k N v|SET k v EX N|SET k v PX N|SET k v EXAT N|\
    SET k v PXAT N|GETEX str EX N|GETEX str PX N|GETEX str EXAT N|GETEX str PXAT N|INCRBY n N|DECRBY n N|INCRBYFLOAT n N|\
    EXPIRE str N|PEXPIRE str N|EXPIREAT str N|PEXPIREAT list N|LRANGE list N N|LINDEX list N|LSET list N v|LTRIM list N N|\
    LREM list N a|LPOP list N|RPOP list N|LPOS list a RANK N|LPOS list a COUNT N MAXLEN N|LMPOP N list LEFT|\
    LMPOP 1 list LEFT COUNT N|SPOP set N|SRANDMEMBER set N|HRANDFIELD hash N WITHVALUES|ZRANDMEMBER zset N WITHSCORES|\
    SINTERCARD N set|SINTERCARD 1 set LIMIT N|SSCAN set N COUNT N|HSCAN hash N COUNT N|ZSCAN zset N COUNT N|SCAN N COUNT N|\
    HINCRBY hash f N|HINCRBYFLOAT hash f N|ZRANGE zset N N|ZRANGE zset N N REV WITHSCORES|ZRANGE zset 0 1 BYSCORE LIMIT N N|\
    ZRANGEBYSCORE zset N N LIMIT N N|ZREVRANGEBYSCORE zset N N LIMIT N N|ZRANGEBYLEX zset - + LIMIT N N|ZREVRANGE zset N N|\
    ZRANGESTORE d zset N N|ZRANGESTORE d zset 0 1 BYSCORE LIMIT N N|ZREMRANGEBYRANK zset N N|ZREMRANGEBYSCORE zset N N|\
    ZCOUNT zset N N|ZPOPMIN zset N|ZPOPMAX zset N|ZMPOP N zset MIN|ZMPOP 1 zset MIN COUNT N|ZUNION N zset|ZINTER N zset zset|\
    ZDIFF N zset|ZUNIONSTORE d N zset WEIGHTS N|ZINTERSTORE d N zset zset|ZDIFFSTORE d N zset|ZINTERCARD N zset|\
    ZINTERCARD 1 zset LIMIT N|ZADD zset N m|ZADD zset INCR N a|ZINCRBY zset N a|SELECT N|COPY str other DB N|SLOWLOG GET N|\
    CLIENT KILL ID N|CLIENT LIST ID N|MEMORY USAGE hash SAMPLES N|PUMICE.RANGE - + COUNT N|WAIT N N|HELLO N|\
    DEBUG STRINGMATCH-LEN N x|CONFIG SET slowlog-max-len N|CONFIG SET slowlog-log-slower-than N|CONFIG SET timeout N|\
    CONFIG SET client-query-buffer-limit N|CONFIG SET maxclients N|CONFIG SET hash-max-listpack-entries N|\
    CONFIG SET hash-max-listpack-value N|CONFIG SET zset-max-listpack-entries N|CONFIG SET set-max-intset-entries N|\
    CONFIG SET repl-backlog-size N|CONFIG SET hz N|CONFIG SET maxmemory N|CONFIG SET save \"N N\"|\
    CONFIG SET client-output-buffer-limit \"normal N N N\"";

const EXTREMES: &[&str] = &[
    "-9223372036854775809",
    "-9223372036854775808",
    "-9223372036854775807",
    "-4611686018427387904",
    "-1",
    "0",
    "1",
    "2147483647",
    "4294967295",
    "4611686018427387904",
    "9223372036854775806",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
];

#[test]
fn numbers_from_either_end_of_their_range_are_taken_or_refused_and_break_nothing() {
    let server = TestServer::with(Setup { durability: "none", ..Setup::default() });
    let setup = "FLUSHALL|CONFIG SET timeout 0 maxclients 1000 client-output-buffer-limit \"normal 0 0 0\"|SET str text|SET n 5|\
        RPUSH list a b a|SADD set 1 2 3|HSET hash f 1 g 2|ZADD zset 1 a 2 b";
    let mut client = server.client();
    for line in NUMBERS.split('|') {
        let words = common::split(line);
        let numbers = words.iter().filter(|word| word.split(|b| *b == b' ').any(|part| part == b"N")).count();
        let seconds = if numbers > 1 { EXTREMES } else { &EXTREMES[..1] };
        for first in EXTREMES {
            for second in seconds {
                let mut turn = 0;
                let command: Vec<Vec<u8>> = words
                    .iter()
                    .map(|word| {
                        let parts = word.split(|b| *b == b' ').map(|part| {
                            if part != b"N" {
                                return part.to_vec();
                            }
                            turn += 1;
                            if turn % 2 == 1 { first.as_bytes().to_vec() } else { second.as_bytes().to_vec() }
                        });
                        parts.collect::<Vec<_>>().join(&b' ')
                    })
                    .collect();
                let shown =
                    command.iter().map(|word| String::from_utf8_lossy(word)).collect::<Vec<_>>().join(" ");
                setup.split('|').for_each(|line| drop(client.line(line)));
                // As many draws as there are numbers are begun with.
                let is_endless = words[0].ends_with(b"RANDMEMBER") || words[0] == b"HRANDFIELD";
                if is_endless && first.starts_with('-') {
                    let mut drawing = server.client();
                    drawing.send(&encode(&command));
                    drawing.read_bytes(1);
                } else {
                    client.send(&encode(&command));
                    assert!(client.try_read().is_ok(), "{shown}: the server is gone");
                }
                if !words[0].eq_ignore_ascii_case(b"CONFIG") {
                    let keys = [vec![b"COMMAND".to_vec(), b"GETKEYS".to_vec()], command.clone()].concat();
                    client.send(&encode(&keys));
                    assert!(client.try_read().is_ok(), "the keys of {shown}: the server is gone");
                }
                client.line("SELECT 0");
                client.line("HELLO 2");
            }
        }
    }
    // The keys of what a transaction queued are looked for before it runs.
    for line in NUMBERS.split('|').filter(|line| !line.starts_with("CONFIG") && !line.contains("RAND")) {
        for extreme in EXTREMES {
            client.line("MULTI");
            client.line(&line.replace(" N", &format!(" {extreme}")));
            client.send(&encode(&["EXEC"]));
            assert!(client.try_read().is_ok(), "{line} with {extreme} in EXEC: the server is gone");
            client.line("SELECT 0");
            client.line("HELLO 2");
        }
    }
    still_serves(&server);
}

/// Sends what is answered by far more than sockets hold, reads nothing, and says that nothing more will come.
fn asks_and_reads_nothing(server: &TestServer, last_words: &[u8], closes: bool) -> common::Client {
    let mut client = server.client();
    assert_eq!(client.call(&[&b"SET"[..], b"big", &vec![b'x'; 1 << 20]]).to_string(), "OK");
    client.send(&encode(&["GET", "big"]).repeat(4));
    client.send(last_words);
    if closes {
        client.close_writing();
    }
    let waits = || server.server().stats.output_waiting_bytes.load(Ordering::Relaxed) > 2 << 20;
    common::eventually("replies wait for their reader", waits);
    client
}

#[test]
fn who_is_done_and_reads_nothing_does_not_keep_its_place_for_ever() {
    let server = TestServer::start();
    let quits = asks_and_reads_nothing(&server, b"QUIT\r\n", false);
    common::eventually("who quit is let go of", || server.server().clients.is_empty());
    let half_closed = asks_and_reads_nothing(&server, b"", true);
    common::eventually("who half closed is let go of", || server.server().clients.is_empty());
    assert_eq!(server.server().stats.output_limit_closes.load(Ordering::Relaxed), 2);
    drop((quits, half_closed));
    still_serves(&server);
}

#[test]
fn who_is_done_and_reads_nothing_does_not_keep_the_server_from_stopping() {
    let mut server = TestServer::start();
    let quits = asks_and_reads_nothing(&server, b"QUIT\r\n", false);
    let half_closed = asks_and_reads_nothing(&server, b"", true);
    server.stop();
    assert!(server.server().clients.is_empty(), "their connections ended before the server did");
    drop((quits, half_closed));
}
