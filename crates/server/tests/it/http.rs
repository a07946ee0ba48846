//! The HTTP face: what it shows, and what it takes from whoever connects.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::common::{Server, check_exit, eventually, pause_ms, run, stdout};
use redis::Commands;
use serde_json::Value;

#[test]
fn metrics_name_each_command_and_subcommand_that_was_run_and_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &["--http", "127.0.0.1:0"]);
    // By hand: a client library introduces itself with commands of its own.
    let mut stream = BufReader::new(TcpStream::connect(("127.0.0.1", server.port)).unwrap());
    stream.get_mut().write_all(b"SET k v\r\nCONFIG GET port\r\n").unwrap();
    let replies: Vec<String> = stream.lines().take(6).map(Result::unwrap).collect();
    assert_eq!((&replies[0][..], &replies[3][..]), ("+OK", "port"));
    let (status, metrics) = server.http("/metrics");
    assert_eq!(status, 200);
    let mut series: Vec<&str> =
        metrics.lines().filter(|line| line.starts_with("pumice_redis_commands_total{")).collect();
    series.sort_unstable();
    assert_eq!(
        series,
        [
            "pumice_redis_commands_total{command=\"config|get\"} 1",
            "pumice_redis_commands_total{command=\"set\"} 1",
        ]
    );
    let seconds = number(&metrics, "pumice_redis_command_seconds_total{command=\"set\"}");
    assert!(seconds > 0.0 && seconds < 60.0, "{seconds}");
    server.stop();
}

#[test]
fn latencies_of_commands_and_commits_are_histograms() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &["--http", "127.0.0.1:0"]);
    let mut client = server.client();
    for n in 0..100 {
        let () = client.set(n, "v").unwrap();
    }
    let (_, metrics) = server.http("/metrics");
    for (name, label, least) in [
        ("pumice_redis_command_latency_seconds", "command=\"set\"", 100),
        ("pumice_drive_commit_latency_seconds", "drive=\"0\"", 1),
    ] {
        assert!(metrics.contains(&format!("# TYPE {name} histogram\n")), "{metrics}");
        let count = number(&metrics, &format!("{name}_count{{{label}}}"));
        assert!(count >= f64::from(least), "{count} {name}");
        let buckets: Vec<(f64, f64)> = metrics
            .lines()
            .filter_map(|line| line.strip_prefix(&format!("{name}_bucket{{le=\""))?.split_once("\","))
            .filter_map(|(bound, rest)| Some((bound, rest.strip_prefix(label)?.strip_prefix("} ")?)))
            .map(|(bound, n)| (bound.parse().unwrap(), n.parse().unwrap()))
            .collect();
        assert!(buckets.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1), "{buckets:?}");
        assert_eq!(buckets.last(), Some(&(f64::INFINITY, count)), "{metrics}");
        // Whether what took so long is where it belongs: the sum lies between what the buckets' bounds make of it.
        let sum = number(&metrics, &format!("{name}_sum{{{label}}}"));
        let (mut least, mut most, mut before) = (0.0, 0.0, (0.0, 0.0));
        for &(bound, n) in &buckets {
            least += before.0 * (n - before.1);
            most += if n > before.1 { bound * (n - before.1) } else { 0.0 };
            before = (bound, n);
        }
        assert!(least <= sum && sum <= most && least > 0.0, "{least}, {sum}, {most} of {metrics}");
    }
    server.stop();
}

#[track_caller]
fn number(metrics: &str, series: &str) -> f64 {
    let value = metrics.lines().find_map(|line| line.strip_prefix(series));
    value.and_then(|value| value.trim().parse().ok()).unwrap_or_else(|| panic!("no {series} in {metrics}"))
}

#[test]
fn write_amplification_is_what_users_writes_caused_over_what_they_wrote() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &["--http", "127.0.0.1:0"]);
    let mut client = server.client();
    let () = client.set("k", vec![b'v'; 100 << 10]).unwrap();
    let of = |metrics: &str, name: &str| number(metrics, &format!("pumice_drive_{name}{{drive=\"0\"}}"));
    let mut page = String::new();
    eventually("something is written ahead of need", || {
        page = server.http("/metrics").1;
        of(&page, "prewritten_bytes_total") > 0.0
    });
    // What is written ahead is written once in a drive's life, and says nothing of what users' writes cost.
    let caused = of(&page, "flash_written_bytes_total") - of(&page, "prewritten_bytes_total");
    let written = caused / of(&page, "user_bytes_written_total");
    let told = of(&page, "write_amplification");
    assert!((told - written).abs() < written / 1000.0, "{told} is told, {written} was written");
    let info: String = redis::cmd("INFO").arg("pumice").query(&mut client).unwrap();
    let of_info = |name: &str| -> f64 {
        let value = info.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
        value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name} in {info}"))
    };
    let caused = of_info("flash_written_bytes") - of_info("prewritten_bytes");
    let (told, written) = (of_info("write_amplification"), caused / of_info("user_written_bytes"));
    assert!((told - written).abs() <= 0.001, "{told} is told, {written} was written");
    assert!(server.http("/").1.contains(" written ahead of need)"));
    server.stop();
}

/// What each face says of the only drive: its state, and how many damaged records reads met.
#[track_caller]
fn check_drive(server: &Server, data: &Path, state: &str, is_damaged: bool) {
    let (status, body) = server.http("/health");
    let health: Value = serde_json::from_str(&body).unwrap();
    // Reads go on: nobody takes the server out of service.
    let overall = if state == "ok" { "ready" } else { "degraded" };
    assert_eq!((status, health["state"].as_str()), (200, Some(overall)), "{body}");
    let name = health["drives"][0]["device"].as_str().unwrap();
    let trouble = health["why"].as_str().unwrap_or_default();
    let begins = if state == "ok" { String::new() } else { format!("drive {name} {state}: ") };
    assert!(trouble.starts_with(&begins) && trouble.is_empty() == (state == "ok"), "{body}");
    let drive = &health["drives"][0];
    let damaged = drive["damaged_records"].as_u64().unwrap();
    assert_eq!((drive["state"].as_str(), damaged > 0), (Some(state), is_damaged), "{body}");
    let data = data.to_str().unwrap();
    let told = run(&["info", "--data", data, "--health"]);
    check_exit(&told, 0, "");
    // But for the account of a full drive's space, which goes on changing.
    let states = |health: &Value| (health["state"].clone(), health["drives"][0]["state"].clone());
    assert_eq!(states(&serde_json::from_str(&stdout(&told)).unwrap()), states(&health));
    let info = run(&["info", "--data", data, "--json"]);
    let info: Value = serde_json::from_str(&stdout(&info)).unwrap();
    let shown = &info["drives"][0];
    assert_eq!(
        (&shown["state"], shown["damaged_records"].as_u64()),
        (&state.into(), Some(damaged)),
        "{shown}"
    );
    let (_, metrics) = server.http("/metrics");
    for other in ["ok", "damaged", "full", "unresponsive", "no-space", "failed"] {
        let line =
            format!("pumice_drive_state{{drive=\"0\",state=\"{other}\"}} {}.0", u8::from(other == state));
        assert!(metrics.lines().any(|found| found == line), "no {line}");
    }
    let line = format!("pumice_drive_damaged_records{{drive=\"0\"}} {damaged}.0");
    assert!(metrics.lines().any(|found| found == line), "no {line}");
    assert!(server.http("/").1.contains(&format!("<td>{state}, ")));
    let info: String = redis::cmd("INFO").arg("drives").query(&mut server.client()).unwrap();
    assert!(info.contains(&format!(",state={state},damaged_records={damaged},")), "{info}");
    let info: String = redis::cmd("INFO").arg("pumice").query(&mut server.client()).unwrap();
    assert!(info.contains(&format!("\r\ndamaged_records:{damaged}\r\n")), "{info}");
    assert!(info.contains(&format!("\r\nfull_drives:{}\r\n", u8::from(state == "full"))), "{info}");
    assert!(info.contains(&format!("\r\ntrouble:{begins}")), "{info}");
    assert_eq!(info.contains("\r\ntrouble:\r\n"), state == "ok", "{info}");
    let said = format!("drive {name} {state}: ");
    eventually("the log tells of it", || state == "ok" || server.said().contains(&said));
}

/// Writes until there is no room. Answers what the last writes were told.
fn fill(server: &Server, value: &[u8]) -> String {
    let mut client = server.client();
    // Background work still wins some room after the first refusals.
    let (mut refused, mut n) = (0, 0);
    loop {
        match client.set::<_, _, String>(format!("{}:{n}", server.pid()), value) {
            Ok(_) => refused = 0,
            Err(error) if refused == 50 => return error.to_string(),
            Err(_) => {
                refused += 1;
                pause_ms(10);
            }
        }
        n += 1;
        assert!(n < 100_000, "400 MB were taken by 64 MiB");
    }
}

#[test]
fn health_tells_of_a_full_drive_until_there_is_room_again() {
    let dir = tempfile::tempdir().unwrap();
    let drive = dir.path().join("drive");
    let drive = drive.to_str().unwrap();
    check_exit(&run(&["format", drive, "--size", "64MiB"]), 0, "");
    let args = ["--device", drive, "--durability", "none", "--http", "127.0.0.1:0"];
    let server = Server::start(dir.path(), &args);
    check_drive(&server, dir.path(), "ok", false);
    let value = vec![b'v'; 4096];
    let advice = fill(&server, &value);
    check_drive(&server, dir.path(), "full", false);
    assert!(advice.ends_with("; delete data") && !advice.contains("wins it back"), "{advice}");
    server.stop();
    // It looks once a second: of what is over sooner the log does not tell.
    let told = |server: &Server| server.said().matches(&format!("drive {drive} full: ")).count();
    let is_full = |server: &Server| server.http("/health").1.contains("\"state\":\"full\"");
    let (mut times, mut tries) = (1, 0);
    // Nobody has to be refused first. But what cleaning wins as a drive is opened may be room for a few values more.
    let server = loop {
        let server = Server::start(dir.path(), &args);
        let sees_it = (0..1000).any(|_| {
            pause_ms(10);
            is_full(&server)
        });
        times += 1;
        if sees_it {
            break server;
        }
        tries += 1;
        assert!(tries < 5, "it is full, stopped and started, and never full again");
        fill(&server, &value);
        eventually("the log tells that it is full again", || told(&server) == times);
        server.stop();
    };
    check_drive(&server, dir.path(), "full", false);
    eventually("the log tells that each time", || told(&server) == times);
    let mut client = server.client();
    let _: String = redis::cmd("FLUSHALL").query(&mut client).unwrap();
    eventually("there is room again", || server.http("/health").1.contains("\"state\":\"ok\""));
    let _: String = client.set("k", &value).unwrap();
    check_drive(&server, dir.path(), "ok", false);
    eventually("the log tells that", || server.said().contains(&format!("drive {drive} takes writes again")));
    server.stop();
}

#[test]
fn health_tells_of_damaged_keys_that_clients_met() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("drive");
    let drive = path.to_str().unwrap();
    check_exit(&run(&["format", drive, "--size", "64MiB"]), 0, "");
    let server = Server::start(dir.path(), &["--device", drive]);
    let mut client = server.client();
    for n in 0..100 {
        let _: () = client.set(format!("key{n}"), format!("{n}:").repeat(2000)).unwrap();
    }
    server.stop();
    let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    let mut bytes = Vec::new();
    (&file).take(64 << 20).read_to_end(&mut bytes).unwrap();
    let text = "57:57:57:57:57:57:57:57:".as_bytes();
    let places: Vec<usize> =
        bytes.windows(text.len()).enumerate().filter(|(_, at)| *at == text).map(|(at, _)| at).collect();
    for at in places {
        file.write_all_at(b"x", at as u64).unwrap();
    }
    let more = ["--device", drive, "--http", "127.0.0.1:0", "--patrol-days", "0"];
    let server = Server::start(dir.path(), &more);
    let mut client = server.client();
    assert_eq!(client.get::<_, String>("key56").unwrap(), "56:".repeat(2000));
    check_drive(&server, dir.path(), "ok", false);
    for _ in 0..3 {
        let error = client.get::<_, String>("key57").unwrap_err().to_string();
        assert!(error.contains("damaged"), "{error}");
    }
    check_drive(&server, dir.path(), "damaged", true);
    assert!(server.http("/health").1.contains("\"damaged_records\":1"), "three reads met one record");
    // Its place is still damaged when the key is another one.
    let _: String = client.set("key57", "new").unwrap();
    assert_eq!(client.get::<_, String>("key57").unwrap(), "new");
    check_drive(&server, dir.path(), "damaged", true);
    let met = server.said().lines().filter(|line| line.contains("does not verify: a read met it")).count();
    assert_eq!(met, 1, "one record, one line: {}", server.said());
    // Until its segment holds something else.
    let _: String = redis::cmd("FLUSHALL").query(&mut client).unwrap();
    let value = vec![b'v'; 64 << 10];
    let mut n = 0;
    while server.http("/health").1.contains("\"state\":\"damaged\"") {
        let _: String = client.set(format!("new{}", n % 100), &value).unwrap();
        n += 1;
        assert!(n < 20_000, "1.3 GB went into 64 MiB, and that place was not written again");
    }
    check_drive(&server, dir.path(), "ok", false);
    server.stop();
}

#[test]
fn half_sent_requests_take_few_descriptors_and_are_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &["--http", "127.0.0.1:0"]);
    let files = || std::fs::read_dir(format!("/proc/{}/fd", server.pid())).unwrap().count();
    let before = files();
    let face = server.faces.iter().find_map(|face| face.strip_prefix("http on ")).unwrap();
    // No more than the server's backlog of 128 takes beside those that are served: further ones would wait to connect.
    let mut crowd: Vec<TcpStream> = (0..150).map(|_| TcpStream::connect(face).unwrap()).collect();
    for stream in &mut crowd {
        stream.write_all(b"GET /health HTTP/1.1\r\nHost:").unwrap();
    }
    // The control socket and Redis know nothing of the crowd.
    check_exit(&run(&["info", "--data", dir.path().to_str().unwrap()]), 0, "");
    assert_eq!(redis::cmd("PING").query::<String>(&mut server.client()).unwrap(), "PONG");
    let taken = files().saturating_sub(before);
    assert!(taken <= 40, "{taken} descriptors for 150 half-sent requests");
    // The first is turned away without having gone.
    assert_eq!(crowd[0].read(&mut [0; 100]).unwrap(), 0);
    // Whoever waited in the backlog has a turn once the others have gone.
    drop(crowd);
    assert_eq!(server.http("/health").0, 200);
    server.stop();
}
