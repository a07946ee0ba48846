//! Operations on sets whose few members are long: what is found is answered, whether it is held in memory or the sets are merged.

use crate::common::{Client, Reply, TestServer};

/// Bytes of a long member.
const LONG: usize = 30_000;
/// Of them, in the smaller set.
const LEADING: usize = 200;

fn long(n: usize) -> String {
    format!("{n:0>LONG$}")
}

fn sorted(reply: Reply) -> Vec<Vec<u8>> {
    let (Reply::Array(members) | Reply::Set(members)) = reply else { panic!("members") };
    let bytes = members.into_iter().map(|member| match member {
        Reply::Bulk(bytes) => bytes,
        other => panic!("{other:?}"),
    });
    let mut bytes: Vec<_> = bytes.collect();
    bytes.sort();
    bytes
}

fn add(client: &mut Client, key: &str, members: impl Iterator<Item = String>) {
    let members: Vec<String> = members.collect();
    for some in members.chunks(100) {
        let words: Vec<&str> = ["SADD", key].into_iter().chain(some.iter().map(String::as_str)).collect();
        assert_eq!(client.call(&words), Reply::Int(some.len() as i64));
    }
}

#[test]
fn few_long_members_are_found_in_a_large_set() {
    let server = TestServer::start();
    let mut client = server.client();
    // 150 kB and 4.5 MB of the long ones are in both.
    for (key, common) in [("some", 5), ("many", 150)] {
        add(&mut client, key, (0..LEADING).map(long));
        let large = format!("large:{key}");
        add(
            &mut client,
            &large,
            (LEADING - common..LEADING).map(long).chain((0..4_000).map(|n| format!("short{n}"))),
        );
        let both: Vec<_> = (LEADING - common..LEADING).map(|n| long(n).into_bytes()).collect();
        let first: Vec<_> = (0..LEADING - common).map(|n| long(n).into_bytes()).collect();
        assert!(sorted(client.call(&["SINTER", key, &large])) == both, "{key}");
        assert!(sorted(client.call(&["SINTER", &large, key])) == both, "{key}");
        assert!(sorted(client.call(&["SDIFF", key, &large])) == first, "{key}");
        for (limit, count) in [("0", common), ("3", 3), ("1000", common)] {
            let found = client.call(&["SINTERCARD", "2", key, &large, "LIMIT", limit]);
            assert_eq!(found, Reply::Int(count as i64));
        }
        assert_eq!(client.call(&["SINTERSTORE", "stored", key, &large]), Reply::Int(common as i64));
        assert_eq!(client.call(&["SCARD", "stored"]), Reply::Int(common as i64));
    }
}

/// The numbers that members drawn with repetition begin with.
fn drawn(client: &mut Client, key: &str, draws: usize) -> Vec<usize> {
    let Reply::Array(drawn) = client.line(&format!("SRANDMEMBER {key} -{draws}")) else { panic!("members") };
    let number = |member: &Reply| {
        let Reply::Bulk(bytes) = member else { panic!("{member:?}") };
        std::str::from_utf8(bytes).expect("digits").parse().expect("a number")
    };
    let numbers: Vec<usize> = drawn.iter().map(number).collect();
    assert_eq!(numbers.len(), draws);
    numbers
}

/// Draws with repetition of more bytes than are held at a time: all members are drawn alike, and in no order.
#[test]
fn long_members_are_drawn_again_and_again() {
    const DRAWS: usize = 3_000;
    let server = TestServer::start();
    let mut client = server.client();
    // Few members are held together where they are not much.
    for count in [110, LEADING] {
        client.line("DEL s");
        add(&mut client, "s", (0..count).map(|n| format!("{n:0>40000}")));
        let drawn = drawn(&mut client, "s", DRAWS);
        for part in drawn.chunks(DRAWS / 3) {
            let mut times = vec![0; count];
            part.iter().for_each(|&n| times[n] += 1);
            // Each is expected five times at least; one misses a part once in 150 times at most.
            assert!(times.iter().filter(|&&times| times == 0).count() < 12, "{times:?}");
            assert!(times.iter().all(|&times| times < 40), "{times:?}");
        }
        let rising = drawn.windows(2).filter(|pair| pair[0] < pair[1]).count();
        assert!(
            (DRAWS * 2 / 5..DRAWS * 3 / 5).contains(&rising),
            "{rising} of {DRAWS} are above the one before"
        );
    }
}

/// The first draws promise short members, often enough, and then there are too many long ones to be held.
#[test]
fn members_that_turn_out_to_be_long_are_drawn_like_others() {
    const DRAWS: usize = 3_000;
    const COUNT: usize = 2_000;
    let server = TestServer::start();
    let mut client = server.client();
    let is_long = |n: usize| n.is_multiple_of(10);
    add(
        &mut client,
        "s",
        (0..COUNT).map(|n| if is_long(n) { format!("{n:0>65000}") } else { n.to_string() }),
    );
    for _ in 0..6 {
        let drawn = drawn(&mut client, "s", DRAWS);
        assert!(drawn.iter().all(|&n| n < COUNT));
        for part in drawn.chunks(DRAWS / 3) {
            let long = part.iter().filter(|&&n| is_long(n)).count();
            // Of 1,000 that are one in ten: six deviations.
            assert!((43..157).contains(&long), "{long} of {}", part.len());
        }
    }
}
