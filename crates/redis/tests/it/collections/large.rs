//! Collections too large for one batch, one reply or one page.

use super::{Compare, Pair, with_pair};
use crate::common::{Reply, info_number};

const PROTOCOLS: &[&str] = &["2"];

fn items(reply: Reply) -> Vec<Reply> {
    match reply {
        Reply::Array(items) | Reply::Set(items) => items,
        other => panic!("an array was expected: {other}"),
    }
}

fn bytes(reply: &Reply) -> Vec<u8> {
    match reply {
        Reply::Bulk(bytes) => bytes.clone(),
        other => panic!("a bulk string was expected: {other}"),
    }
}

/// All that a SCAN command goes over, page by page; `{}` stands for the cursor.
fn scan_all(client: &mut crate::common::Client, line: &str) -> Vec<Reply> {
    let mut found = Vec::new();
    let mut cursor = "0".to_string();
    loop {
        let page = items(client.line(&line.replace("{}", &cursor)));
        found.extend(items(page[1].clone()));
        cursor = String::from_utf8(bytes(&page[0])).expect("a number");
        if cursor == "0" {
            return found;
        }
    }
}

fn fill_list(pair: &mut Pair, key: &str, count: usize) {
    // About 300 bytes each: a shift of some thousands takes several batches.
    let value = |i: usize| format!("v{i}-{}", "x".repeat(280 + i % 40));
    pair.fill((0..count).step_by(50).map(|from| {
        let values: Vec<String> =
            (from..from + 50).map(|i| if i % 7 == 3 { format!("same{}", i % 3) } else { value(i) }).collect();
        format!("RPUSH {key} {}", values.join(" "))
    }));
}

#[test]
fn long_lists_are_edited_in_the_middle_in_several_batches() {
    with_pair(PROTOCOLS, |pair| {
        const COUNT: usize = 20_000;
        fill_list(pair, "l", COUNT);
        let at = |i: usize| format!("v{i}-{}", "x".repeat(280 + i % 40));
        pair.check(&format!("LINSERT l BEFORE {} left", at(7_000)));
        pair.check(&format!("LINSERT l AFTER {} right", at(13_000)));
        pair.check(&format!("LINSERT l BEFORE {} first", at(0)));
        pair.check(&format!("LINSERT l AFTER {} last", at(COUNT - 2)));
        pair.check("LRANGE l 0 -1");
        pair.check("LPOS l same1 COUNT 0");
        pair.check("LPOS l same1 COUNT 5 RANK -3");
        pair.check("LREM l 500 same0");
        pair.check("LREM l -500 same1");
        pair.check("LRANGE l 0 -1");
        pair.check("LREM l 0 same2");
        pair.check("LRANGE l 0 -1");
        pair.check("LLEN l");
        pair.check("LTRIM l 1000 -2");
        pair.check("LRANGE l 0 10");
        pair.check("PEXPIREAT l 4000000000000");
        pair.check("LTRIM l 5000 5010");
        pair.check("LRANGE l 0 -1");
        pair.check("PEXPIRETIME l");
        pair.check("LPUSH l a b c");
        pair.check("RPUSH l x y z");
        pair.check("LREM l 0 none");
        pair.check("LPOP l 1000");
        pair.check("EXISTS l");
        fill_list(pair, "m", 2_000);
        pair.check("MULTI");
        pair.check(&format!("LINSERT m AFTER {} middle", at(1_000)));
        pair.check("LREM m 0 same1");
        pair.check("LTRIM m 10 -10");
        pair.check("LPOP m 100");
        pair.check("LRANGE m 0 -1");
        pair.check("EXEC");
        pair.check("LRANGE m 0 -1");
    });
}

#[test]
fn lists_of_values_longer_than_a_record_are_edited_in_the_middle() {
    with_pair(PROTOCOLS, |pair| {
        // Above 256 KiB: stored in pieces of their own.
        pair.fill(
            (0..12).map(|i| format!("RPUSH l {i} {{{}*{}}}", (b'a' + i) as char, 300_000 + usize::from(i))),
        );
        pair.check("LINSERT l BEFORE 5 left");
        pair.check("LINSERT l AFTER 7 right");
        pair.check("LREM l -1 6");
        pair.check("LRANGE l 0 -1");
        pair.check("LPOP l 3");
        pair.check("LMOVE l l LEFT RIGHT");
        pair.check("LRANGE l 0 -1");
    });
}

#[test]
fn large_sorted_sets_are_ranked_and_cut_from_either_end() {
    with_pair(&["2", "3"], |pair| {
        const COUNT: usize = 20_000;
        pair.fill((0..COUNT).step_by(100).map(|from| {
            let members: Vec<String> = (from..from + 100)
                .map(|i| format!("{} member:{:05}:{}", (i * 7919) % 5000, i, "y".repeat(i % 60)))
                .collect();
            format!("ZADD z {}", members.join(" "))
        }));
        let name = |i: usize| format!("member:{:05}:{}", i, "y".repeat(i % 60));
        for i in [0, 1, 77, 9_999, 12_345, 19_999] {
            pair.check(&format!("ZRANK z {}", name(i)));
            pair.check(&format!("ZREVRANK z {}", name(i)));
        }
        for (start, stop) in [(0, 5), (100, 105), (9_990, 10_010), (15_000, 15_003), (19_990, -1), (-5, -1)] {
            pair.check(&format!("ZRANGE z {start} {stop} WITHSCORES"));
            pair.check(&format!("ZREVRANGE z {start} {stop} WITHSCORES"));
        }
        pair.check("ZRANGE z 0 -1 WITHSCORES");
        pair.check("ZRANGE z -inf +inf BYSCORE");
        pair.check("ZRANGE z (100 (4900 BYSCORE WITHSCORES");
        pair.check("ZRANGE z (100 (4900 BYSCORE LIMIT 10000 10");
        for (min, max) in [("10", "20"), ("(10", "(4000"), ("-inf", "4999"), ("0", "+inf"), ("4000", "4001")]
        {
            pair.check(&format!("ZCOUNT z {min} {max}"));
        }
        pair.check("ZRANGESTORE copy z 100 19000");
        pair.check("ZCARD copy");
        pair.check("ZUNIONSTORE both 2 z copy WEIGHTS 1 2");
        pair.check("ZRANGE both 0 -1 WITHSCORES");
        pair.check("ZINTER 2 z copy");
        pair.check("ZINTERCARD 2 z copy");
        pair.check("ZDIFF 2 z copy WITHSCORES");
        pair.check("ZREMRANGEBYSCORE z 1000 4000");
        pair.check("ZCARD z");
        pair.check("ZREMRANGEBYRANK z 10 -10");
        pair.check("ZRANGE z 0 -1 WITHSCORES");
        pair.check("ZPOPMAX copy 3000");
        pair.check("ZPOPMIN copy 3000");
        pair.check("ZREMRANGEBYRANK copy 0 -1");
        pair.check("EXISTS copy");
        let (ours, theirs) = (
            Reply::Array(scan_all(&mut pair.ours, "ZSCAN both {} COUNT 97")),
            Reply::Array(scan_all(&mut pair.theirs, "ZSCAN both {} COUNT 97")),
        );
        pair.compare("ZSCAN both", &ours, &theirs, Compare::Unordered(2));
        pair.check_contents();
    });
}

#[test]
fn large_sets_and_hashes_are_joined_and_scanned() {
    with_pair(PROTOCOLS, |pair| {
        let member = |i: usize| format!("{i:06}{}", "m".repeat(100));
        for (key, from, to, step) in [("a", 0, 15_000, 1), ("b", 5_000, 20_000, 1), ("c", 0, 20_000, 400)] {
            let all: Vec<usize> = (from..to).step_by(step).collect();
            pair.fill(all.chunks(100).map(|chunk| {
                let members: Vec<String> = chunk.iter().map(|&i| member(i)).collect();
                format!("SADD {key} {}", members.join(" "))
            }));
        }
        for line in [
            "~SMEMBERS a",
            "~SUNION a b c",
            "~SINTER a b",
            "~SINTER a b c",
            "~SINTER c a",
            "~SDIFF a b",
            "~SDIFF c a b",
            "~SDIFF a c",
            "SINTERCARD 2 a b",
            "SINTERCARD 3 a b c LIMIT 5",
            "SUNIONSTORE u a b",
            "SINTERSTORE i a b c",
            "SDIFFSTORE d a b",
            "SDIFFSTORE a a b",
            "SUNIONSTORE b c",
            "SCARD a",
        ] {
            pair.check(line);
        }
        pair.fill((0..20_000).step_by(100).map(|from| {
            let fields: Vec<String> =
                (from..from + 100).map(|i| format!("field{i} value{}", "v".repeat(i % 300))).collect();
            format!("HSET h {}", fields.join(" "))
        }));
        pair.check("~~HGETALL h");
        pair.check("~HKEYS h");
        pair.check("~HVALS h");
        for (line, width) in [("SSCAN u {} COUNT 500", 1), ("HSCAN h {} COUNT 333 MATCH *9", 2)] {
            let (ours, theirs) = (
                Reply::Array(scan_all(&mut pair.ours, line)),
                Reply::Array(scan_all(&mut pair.theirs, line)),
            );
            pair.compare(line, &ours, &theirs, Compare::Unordered(width));
        }
        pair.check("~SPOP u 1000000");
        pair.check_contents();
    });
}

#[test]
fn a_scan_meets_every_member_that_stays_while_others_come_and_go() {
    let server = crate::common::TestServer::start();
    let mut client = server.client();
    for i in 0..2_000 {
        client.line(&format!("SADD s stays{i} goes{i}"));
    }
    let mut met: Vec<Vec<u8>> = Vec::new();
    let mut cursor = "0".to_string();
    let mut turn = 0;
    loop {
        let page = items(client.line(&format!("SSCAN s {cursor} COUNT 50")));
        met.extend(items(page[1].clone()).iter().map(bytes));
        cursor = String::from_utf8(bytes(&page[0])).expect("a number");
        if cursor == "0" {
            break;
        }
        for i in turn * 20..turn * 20 + 20 {
            client.line(&format!("SREM s goes{i}"));
            client.line(&format!("SADD s comes{i}"));
        }
        turn += 1;
    }
    let mut stays: Vec<&Vec<u8>> = met.iter().filter(|member| member.starts_with(b"stays")).collect();
    assert_eq!(stays.len(), 2_000, "none missed, none twice");
    stays.sort();
    stays.dedup();
    assert_eq!(stays.len(), 2_000);
}

/// Pearson's statistic of counts that should all be alike.
fn chi_squared(counts: &[u64]) -> f64 {
    let expected = counts.iter().sum::<u64>() as f64 / counts.len() as f64;
    counts.iter().map(|&count| (count as f64 - expected).powi(2) / expected).sum()
}

#[test]
fn random_members_are_drawn_uniformly_from_small_and_large_sets() {
    let server = crate::common::TestServer::start();
    let mut client = server.client();
    for size in [10usize, 128, 129, 1_000, 5_000] {
        let members: Vec<String> = (0..size).map(|i| format!("user:{i}")).collect();
        for members in members.chunks(500) {
            client.line(&format!("SADD s{size} {}", members.join(" ")));
        }
        let place = |member: &Reply| {
            String::from_utf8(bytes(member)).expect("text")["user:".len()..]
                .parse::<usize>()
                .expect("a number")
        };
        // One at a time, many different ones, and many with repetition.
        let mut counts = vec![0; size];
        for _ in 0..4 * size.min(500) {
            counts[place(&client.line(&format!("SRANDMEMBER s{size}")))] += 1;
        }
        if size <= 129 {
            check_uniform(size, &counts);
        }
        let mut counts = vec![0; size];
        for _ in 0..200 {
            let drawn = items(client.line(&format!("SRANDMEMBER s{size} {}", (size / 10).max(1))));
            let mut places: Vec<usize> = drawn.iter().map(place).collect();
            places.iter().for_each(|&place| counts[place] += 1);
            places.sort_unstable();
            places.dedup();
            assert_eq!(places.len(), (size / 10).max(1), "different ones");
        }
        check_uniform(size, &counts);
        let mut counts = vec![0; size];
        for member in items(client.line(&format!("SRANDMEMBER s{size} -{}", 20 * size))) {
            counts[place(&member)] += 1;
        }
        check_uniform(size, &counts);
    }
    // Few of many: drawn from windows.
    let mut counts = vec![0; 50];
    for _ in 0..300 {
        for member in items(client.line("SRANDMEMBER s5000 5")) {
            let member = String::from_utf8(bytes(&member)).expect("text");
            counts[member["user:".len()..].parse::<usize>().expect("a number") / 100] += 1;
        }
    }
    check_uniform(50, &counts);
}

/// Six standard deviations: the seed is fixed, and a wrong distribution is off by far more.
fn check_uniform(size: usize, counts: &[u64]) {
    let (statistic, freedom) = (chi_squared(counts), size as f64 - 1.0);
    let limit = freedom + 6.0 * (2.0 * freedom).sqrt();
    assert!(
        statistic < limit,
        "{size} members: chi-squared {statistic:.0} for {freedom} degrees: {counts:?}"
    );
}

#[test]
fn spop_takes_every_member_once() {
    let server = crate::common::TestServer::start();
    let mut client = server.client();
    for i in 0..30 {
        let members: Vec<String> = (i * 100..i * 100 + 100).map(|i| i.to_string()).collect();
        client.line(&format!("SADD s {}", members.join(" ")));
    }
    let mut popped: Vec<Vec<u8>> = Vec::new();
    for count in [1, 7, 500, 3, 1_000, 2] {
        popped.extend(items(client.line(&format!("SPOP s {count}"))).iter().map(bytes));
    }
    while let Reply::Bulk(member) = client.line("SPOP s") {
        popped.push(member);
    }
    popped.sort();
    popped.dedup();
    assert_eq!(popped.len(), 3_000);
    assert_eq!(client.line("EXISTS s"), Reply::Int(0));
    assert_eq!(client.line("DBSIZE"), Reply::Int(0));
}

#[test]
fn drawing_a_field_reads_no_values_but_those_that_are_answered() {
    const VALUE_BYTES: u64 = 300_000;
    let server = crate::common::TestServer::start();
    let mut client = server.client();
    // As many as are drawn from by reading all of their names, and more.
    for fields in [100u64, 200] {
        for n in 0..fields {
            client.line(&format!("HSET h{fields} {n} {{{n:03}*{}}}", VALUE_BYTES / 3));
        }
    }
    for fields in [100u64, 200] {
        for (count, drawn) in [("1", 1), ("-1", 1), ("3", 3), ("-3", 3)] {
            let before = info_number(&mut client, "pumice", "flash_read_bytes");
            let pairs = items(client.line(&format!("HRANDFIELD h{fields} {count} WITHVALUES")));
            let read = info_number(&mut client, "pumice", "flash_read_bytes") - before;
            assert_eq!(pairs.len(), 2 * drawn);
            for pair in pairs.chunks(2) {
                let name = String::from_utf8(bytes(&pair[0])).expect("text");
                let unit = format!("{:0>3}", name);
                assert!(bytes(&pair[1]) == unit.repeat(VALUE_BYTES as usize / 3).into_bytes(), "{name}");
            }
            let all = fields * VALUE_BYTES;
            assert!(read < all / 4, "{count} of {fields}: {read} bytes were read of {all}");
        }
    }
}

#[test]
fn commands_of_many_elements_are_done_as_those_of_few() {
    with_pair(PROTOCOLS, |pair| {
        // More than are looked up at once, some of them twice, near each other and far apart.
        let members = |from: usize, count: usize| -> Vec<String> {
            (from..from + count).map(|i| format!("m{}", if i % 10 == 9 { i / 2 } else { i })).collect()
        };
        let pairs = |from: usize, count: usize| -> String {
            let members = members(from, count).into_iter().enumerate();
            members.map(|(i, member)| format!("{i} {member} ")).collect()
        };
        pair.check(&format!("SADD s {}", members(0, 10_000).join(" ")));
        pair.check(&format!("SADD s {}", members(5_000, 10_000).join(" ")));
        pair.check(&format!("SMISMEMBER s {}", members(12_000, 9_000).join(" ")));
        pair.check(&format!("SREM s {}", members(2_000, 9_000).join(" ")));
        pair.check("SCARD s");
        let named = |from| pairs(from, 10_000).split(' ').rev().collect::<Vec<_>>().join(" ");
        pair.check(&format!("HSET h {}", named(0)));
        pair.check(&format!("HSET h {}", named(5_000)));
        pair.check(&format!("HMGET h {}", members(12_000, 9_000).join(" ")));
        pair.check(&format!("HDEL h {}", members(2_000, 9_000).join(" ")));
        pair.check("HLEN h");
        pair.check(&format!("ZADD z {}", pairs(0, 10_000)));
        pair.check(&format!("ZADD z XX CH {}", pairs(5_000, 10_000)));
        pair.check(&format!("ZADD z GT {}", pairs(5_000, 10_000)));
        pair.check(&format!("ZMSCORE z {}", members(12_000, 9_000).join(" ")));
        pair.check(&format!("ZREM z {}", members(2_000, 9_000).join(" ")));
        pair.check("ZRANGE z 0 -1 WITHSCORES");
    });
}
