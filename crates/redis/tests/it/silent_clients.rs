//! Clients that want no replies, and ask for what has no end: nothing holds them up, so nothing is made for them.

use crate::common::client::encode;
use crate::common::{Client, Setup, TestServer};

/// What `client`, to whom nothing is answered, sends is carried out, and whoever shares its core is served.
fn goes_on(client: &mut Client, other: &mut Client, command: &str) {
    client.send(&encode(&crate::common::split(command)));
    client.send(&encode(&["INCR", "n"]));
    assert_eq!(other.line("PING").to_string(), "PONG", "beside {command}");
}

#[test]
fn draws_without_end_are_not_made_for_who_wants_no_reply() {
    let server = TestServer::with(Setup { durability: "none", ..Setup::default() });
    let (mut client, mut other) = (server.client(), server.client());
    // Of few elements all are read once; of many, each draw reads.
    for (size, count) in [("few", 3), ("many", 1000)] {
        for n in 0..count {
            other.line(&format!("SADD s{size} m{n}"));
            other.line(&format!("HSET h{size} f{n} v{n}"));
            other.line(&format!("ZADD z{size} {n} m{n}"));
        }
    }
    let mut done = 0;
    for size in ["few", "many"] {
        for command in [
            format!("SRANDMEMBER s{size} -9000000000000000000"),
            format!("HRANDFIELD h{size} -9000000000000000000"),
            format!("HRANDFIELD h{size} -4000000000000000000 WITHVALUES"),
            format!("ZRANDMEMBER z{size} -9000000000000000000"),
            format!("ZRANDMEMBER z{size} -4000000000000000000 WITHSCORES"),
        ] {
            client.send(&encode(&["CLIENT", "REPLY", "OFF"]));
            goes_on(&mut client, &mut other, &command);
            // A transaction does what else is in it.
            client.send(&encode(&["MULTI"]));
            goes_on(&mut client, &mut other, &command);
            goes_on(&mut client, &mut other, "EXEC");
            assert_eq!(client.line("CLIENT REPLY ON").to_string(), "OK", "{command}");
            client.send(&encode(&["CLIENT", "REPLY", "SKIP"]));
            goes_on(&mut client, &mut other, &command);
            done += 4;
            assert_eq!(client.read().to_string(), done.to_string(), "{command}: what was not skipped");
        }
    }
}
