//! Strings, counters and parts of strings.

use crate::common::{Reply, Setup, TestServer, check, info_number};

#[test]
fn values_are_set_and_read() {
    check(
        r#"
        > SET a 1
        OK
        > GET a
        "1"
        > GET b
        nil
        > SET a 2 NX
        nil
        > SET b 2 XX
        nil
        > SET a 2 GET
        "1"
        > SET a 3 EX 100 NX GET
        "2"
        > STRLEN a
        1
        > SETNX a 4
        0
        > SETNX c 4
        1
        > GETDEL c
        "4"
        > EXISTS a b c
        1
        > MSET a 1 b 2 a 3
        OK
        > MGET a b c
        ["3", "2", nil]
        > MSETNX x 1 a 2
        0
        > MSETNX x 1 y 2
        1
        > DBSIZE
        4
        > DEL a b c x
        3
        > KEYS *
        ["y"]
        > TYPE y
        string
        > HGET y f
        (error) WRONGTYPE Operation against a key holding the wrong kind of value
        > INCR n
        1
        > DECRBY n 5
        -4
        > INCRBY n 9223372036854775807
        9223372036854775803
        > INCRBY n 5
        (error) ERR increment or decrement would overflow
        > INCRBYFLOAT f 0.1
        "0.1"
        > INCRBYFLOAT f 0.2
        "0.3"
        > APPEND y 34
        3
        > GETRANGE y -2 -1
        "34"
        > SETRANGE y 5 x
        6
        > GET y
        "234\x00\x00x"
        > FOO bar
        (error) ERR unknown command 'FOO', with args beginning with: 'bar' 
        > GET
        (error) ERR wrong number of arguments for 'get' command
        "#,
    );
}

#[test]
fn commands_of_tens_of_thousands_of_keys_count_each_key_once_and_answer_in_order() {
    const MANY: usize = 20_000;
    let server = TestServer::start();
    let mut client = server.client();
    let key = |n: usize| format!("key:{n:06}");
    // Every third key twice, far apart: the last value counts.
    let mut pairs = vec!["MSET".to_string()];
    (0..MANY).step_by(3).for_each(|n| pairs.extend([key(n), "first".to_string()]));
    (0..MANY).for_each(|n| pairs.extend([key(n), format!("v{n}")]));
    assert_eq!(client.call(&pairs).to_string(), "OK");
    assert_eq!(client.line("DBSIZE"), Reply::Int(MANY as i64));
    pairs[0] = "MSETNX".to_string();
    assert_eq!(client.call(&pairs), Reply::Int(0));
    // Absent ones, one of another type, and values that are longer than what MGET keeps.
    client.line("RPUSH list a");
    let long = vec![b'x'; 300_000];
    for n in [5, 15_000] {
        client.call(&[b"SET", key(n).as_bytes(), &long]);
    }
    let mut asked = vec!["MGET".to_string(), "list".to_string(), "absent".to_string()];
    asked.extend((0..MANY).map(key));
    asked.push(key(1));
    for in_exec in [false, true] {
        let reply = if in_exec {
            client.line("MULTI");
            client.call(&asked);
            let Reply::Array(mut replies) = client.line("EXEC") else { panic!("EXEC runs") };
            replies.remove(0)
        } else {
            client.call(&asked)
        };
        let Reply::Array(values) = reply else { panic!("MGET answers an array") };
        assert_eq!(values.len(), MANY + 3);
        assert_eq!(values[..2], [Reply::Null, Reply::Null]);
        for (n, value) in values[2..].iter().take(MANY).enumerate() {
            let expected = if [5, 15_000].contains(&n) { long.clone() } else { format!("v{n}").into_bytes() };
            assert!(*value == Reply::Bulk(expected), "key {n}");
        }
        assert_eq!(values[MANY + 2], Reply::Bulk(b"v1".to_vec()));
    }
    asked[0] = "DEL".to_string();
    assert_eq!(client.call(&asked), Reply::Int(MANY as i64 + 1));
    assert_eq!(client.line("DBSIZE"), Reply::Int(0));
    assert_eq!(client.call(&asked), Reply::Int(0));
}

/// What memory knows is answered at once, up to the first key that needs flash: then all of it once more. Each key is counted once.
#[test]
fn keys_in_memory_and_on_flash_are_answered_in_order_and_counted_once() {
    const KEYS: usize = 40;
    let key = |n: usize| format!("key:{n:02}");
    let value = |n: usize, round: usize| format!("{round}:{n}").repeat(200);
    let server = TestServer::start();
    let mut client = server.client();
    (0..KEYS).for_each(|n| drop(client.call(&["SET", &key(n), &value(n, 0)])));
    client.line("RPUSH list a");
    drop(client);
    // From here on they are on flash.
    let server = server.restart(Setup::default());
    let mut client = server.client();
    let mut rounds = [0; KEYS];
    for round in 1..=8 {
        // More of them in memory each time, those at the front first.
        for n in (0..KEYS).take(5 * (round - 1)) {
            client.call(&["SET", &key(n), &value(n, round)]);
            rounds[n] = round;
        }
        let mut asked = vec!["MGET".to_string(), key(0), "absent".to_string(), "list".to_string()];
        asked.extend((0..KEYS).map(key));
        asked.push(key(0));
        let count = |client: &mut _, name| info_number(client, "stats", name);
        let (hits, misses) = (count(&mut client, "keyspace_hits"), count(&mut client, "keyspace_misses"));
        let expected = |n: usize| Reply::Bulk(value(n, rounds[n]).into_bytes());
        let mut answer = vec![expected(0), Reply::Null, Reply::Null];
        answer.extend((0..KEYS).map(expected));
        answer.push(expected(0));
        assert!(client.call(&asked) == Reply::Array(answer), "round {round}");
        assert_eq!(count(&mut client, "keyspace_hits") - hits, KEYS as u64 + 3, "round {round}");
        assert_eq!(count(&mut client, "keyspace_misses") - misses, 1, "round {round}");
    }
}
