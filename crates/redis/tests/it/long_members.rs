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
