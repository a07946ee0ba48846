//! What INFO tells of how long commands take.

use pumice_redis::options::Options;

use crate::collections::with_pair;
use crate::common::{Client, Reply, TestServer};
use crate::simulated::{SimClient, Stage};

/// The section without its figures, in one order.
fn shape(client: &mut Client) -> Vec<String> {
    let section = match client.line("INFO latencystats") {
        Reply::Bulk(text) | Reply::Verbatim(text) => String::from_utf8_lossy(&text).into_owned(),
        other => panic!("{other}"),
    };
    let without_figures = |line: &str| {
        let mut told = line.split('=').enumerate().map(|(at, part)| match part.split_once(',') {
            Some((figure, next)) if at > 0 => {
                assert!(figure.parse::<f64>().is_ok_and(|us| us >= 0.0), "{line}");
                format!("=,{next}")
            }
            _ if at > 0 => {
                assert!(part.parse::<f64>().is_ok_and(|us| us >= 0.0), "{line}");
                "=".into()
            }
            _ => part.to_string(),
        });
        told.by_ref().collect::<String>()
    };
    let mut lines: Vec<String> = section.lines().map(without_figures).collect();
    lines.sort_unstable();
    lines
}

#[test]
fn latencies_are_told_of_what_redis_tells_them_of() {
    with_pair(&["2"], |pair| {
        for part in [
            "CONFIG RESETSTAT",
            "SET k v
            GET k
            GET nothing
            CLIENT SETNAME x
            LPUSH k v
            NOSUCH
            GET
            MULTI
            INCR n
            EXEC",
            r#"CONFIG SET latency-tracking-info-percentiles "0 25.50 +100 1e1 33.3333333333 99.99999""#,
            r#"CONFIG SET latency-tracking-info-percentiles """#,
            r#"CONFIG SET latency-tracking-info-percentiles "50 50""#,
            "CONFIG SET latency-tracking no",
            "CONFIG SET latency-tracking yes",
            "CONFIG RESETSTAT",
        ] {
            pair.table(part);
            pair.table("CONFIG GET latency-tracking\nCONFIG GET latency-tracking-info-percentiles");
            assert_eq!(shape(&mut pair.ours), shape(&mut pair.theirs), "after {part}");
        }
    });
}

#[test]
fn percentiles_are_checked_as_redis_does() {
    with_pair(&["2"], |pair| {
        pair.table(
            r#"
            CONFIG SET latency-tracking-info-percentiles x
            CONFIG SET latency-tracking-info-percentiles 50,99
            CONFIG SET latency-tracking-info-percentiles "50 99x"
            CONFIG SET latency-tracking-info-percentiles nan
            CONFIG SET latency-tracking-info-percentiles inf
            CONFIG SET latency-tracking-info-percentiles 100.1
            CONFIG SET latency-tracking-info-percentiles -1
            CONFIG SET latency-tracking-info-percentiles "50 -0.5"
            CONFIG SET latency-tracking-info-percentiles "'50"
            CONFIG SET latency-tracking maybe
            CONFIG GET latency-tracking-info-percentiles
            "#,
        );
    });
}

#[test]
fn there_are_a_hundred_percentiles_at_most() {
    let server = TestServer::start();
    let mut client = server.client();
    for (numbers, is_taken) in [(100, true), (101, false)] {
        let command = format!("CONFIG SET latency-tracking-info-percentiles \"{}\"", "5 ".repeat(numbers));
        let reply = client.line(&command).to_string();
        assert_eq!(reply == "OK", is_taken, "{numbers}: {reply}");
    }
    assert_eq!(shape(&mut client)[1].matches("p5=").count(), 100);
}

async fn section(client: &mut SimClient, name: &str) -> Vec<String> {
    client.send(format!("INFO {name}\r\n").into_bytes()).await;
    let len = client.read_line().await;
    let len: usize = len.strip_prefix('$').expect("a bulk string").parse().expect("a length");
    let (mut read, mut lines) = (0, Vec::new());
    while read < len {
        let line = client.read_line().await;
        read += line.len() + 2;
        lines.push(line);
    }
    client.read_line().await;
    lines
}

/// A field of the line of GET.
async fn of_get(client: &mut SimClient, name: &str, field: &str) -> f64 {
    let lines = section(client, name).await;
    let line = lines.iter().find(|line| line.contains("_get:")).expect("a line of GET");
    let (_, fields) = line.split_once(':').expect("fields");
    let value = fields.split(',').find_map(|one| one.strip_prefix(field)?.strip_prefix('='));
    value.unwrap_or_else(|| panic!("no {field} in {line}")).parse().expect("a number")
}

#[test]
fn reads_that_wait_side_by_side_take_as_long_each_and_one_before_them_nothing() {
    let stage = Stage::start(Options::default());
    stage.play(async |clients| {
        let mut client = clients.connect().await;
        for n in 0..17 {
            assert_eq!(client.line(&format!("SET k{n} {n:0>3000}")).await, "+OK");
        }
    });
    stage.restart();
    stage.play(async |clients| {
        let mut client = clients.connect().await;
        assert_eq!(client.line("GET k0").await, "$3000");
        client.read_line().await;
        assert_eq!(client.line("CONFIG RESETSTAT").await, "+OK");
        assert_eq!(client.line("CONFIG SET latency-tracking-info-percentiles \"0 10 100\"").await, "+OK");
        // One command: they arrive together, and the first is answered from memory.
        let gets: String = (0..17).map(|n| format!("GET k{n}\r\n")).collect();
        client.send(gets.into_bytes()).await;
        for _ in 0..17 {
            assert_eq!(client.read_line().await, "$3000");
            client.read_line().await;
        }
        let waited = of_get(&mut client, "commandstats", "usec").await;
        assert!(waited >= 10.0, "{waited} us: nothing was read from flash");
        assert_eq!(of_get(&mut client, "latencystats", "p0").await, 0.0, "that of the first");
        let (quickest, slowest) = (
            of_get(&mut client, "latencystats", "p10").await,
            of_get(&mut client, "latencystats", "p100").await,
        );
        // A bucket is up to an eighth wide.
        assert!(
            quickest >= waited * 0.95 && slowest <= waited * 1.15,
            "{quickest}, {slowest} of {waited} us"
        );
    });
}
