//! What the command line promises: exit codes, refusals, JSON fields, help.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;

use crate::common::{Server, check_exit, pumice, run, stderr, stdout};
use redis::Commands;
use serde_json::Value;

fn json(args: &[&str]) -> Value {
    let output = run(args);
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{args:?}: {e}: {} {}", stdout(&output), stderr(&output)))
}

fn formatted(dir: &Path, name: &str) -> String {
    let drive = dir.join(name).to_str().unwrap().to_string();
    check_exit(&run(&["format", &drive, "--size", "512MiB"]), 0, "");
    drive
}

#[test]
fn help_teaches_with_examples_and_errors_of_usage_exit_2() {
    for command in ["serve", "format", "info", "check", "bench", "completions"] {
        let output = run(&[command, "--help"]);
        assert_eq!(output.status.code(), Some(0));
        assert!(stdout(&output).contains("Example"), "{command} --help has no examples");
    }
    assert!(stdout(&run(&["--help"])).contains("Pumice turns flash into drives on the network"));
    assert!(stdout(&run(&["--version"])).starts_with("pumice "));
    check_exit(&run(&["serve", "--no-such-flag"]), 2, "--no-such-flag");
    check_exit(&run(&["serve", "--memory", "much"]), 2, "is not a size");
    check_exit(&run(&["serve", "--memory", "63MiB"]), 2, "at least 64MiB");
    let two = ["serve", "--memory", "64MiB", "--device", "a", "--device", "b"];
    check_exit(&run(&two), 2, "at least 82MiB for 2 drives");
    check_exit(&run(&["serve", "--device", "emu:nothing"]), 2, "no preset");
    assert!(stdout(&run(&["completions", "bash"])).contains("_pumice"));
    let zsh = stdout(&run(&["completions", "zsh"]));
    for known in ["kv-cut", "ycsb-a", "lightstore", "--health"] {
        assert!(zsh.contains(known), "completions do not know {known}");
    }
    for command in ["format", "bench"] {
        assert!(stdout(&run(&[command, "--help"])).contains("1GB is 1GiB"), "{command}");
    }
    for seconds in ["-1", "0", "nan", "1e300"] {
        check_exit(&run(&["bench", "r-get", &format!("--seconds={seconds}")]), 2, "is no time");
    }
    check_exit(&run(&["sim", "run", "kv", "--seeds", "0"]), 2, "--seeds");
    assert!(stdout(&run(&["serve", "--help"])).contains("64MiB at least, which is enough for two cores"));
    // A supervisor that asked in a way that nobody answers was told that all is well.
    for other in ["drive0", "127.0.0.1:6379"].map(|target| [target]) {
        check_exit(&run(&[&["info", "--health"], &other[..]].concat()), 2, "cannot be used with");
    }
    check_exit(&run(&["info", "--health"]), 2, "required");
    check_exit(&run(&["sim", "run", "sdf", "--plot", "/dev/null/x"]), 2, "--plot /dev/null/x");
}

#[test]
fn output_that_nobody_reads_on_is_no_panic() {
    // Closed before the process starts: one that is closed later may still swallow everything.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = pumice().args(["completions", "bash"]).stdout(writer).output().unwrap();
    assert_eq!((stderr(&output).as_str(), output.status.code()), ("", Some(2)));
}

#[test]
fn what_cannot_be_run_says_why_and_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    let file = |name: &str, text: &str| {
        std::fs::write(dir.path().join(name), text).unwrap();
        at(name)
    };
    let data = at("data");
    let serve = |more: &[&str], says: &str| {
        let output = run(&[&["serve", "--data", &data, "--redis", "127.0.0.1:0"], more].concat());
        check_exit(&output, 2, says);
    };
    let (missing, text, empty) = (at("missing"), file("text", "no drive\n"), file("empty", ""));
    serve(&["--device", &missing], "make a drive with `pumice format");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap().to_string();
    let _socket = std::os::unix::net::UnixListener::bind(at("sock")).unwrap();
    // Whoever runs the tests may have a server where this one would be by default.
    let redis = |key: &str| if key == "redis" { "" } else { "redis = '127.0.0.1:0'\n" };
    let of_file = |key: &str, addr: &str| file("addr.toml", &format!("{}{key} = '{addr}'\n", redis(key)));
    for addr in [addr, format!("unix:{}", at("sock"))] {
        for key in ["redis", "http"] {
            let taken = format!("{addr}: another server is listening there");
            serve(&[&format!("--{key}"), &addr], &format!("pumice: --{key} {taken}"));
            let config = of_file(key, &addr);
            let output = run(&["serve", "--data", &data, "--config", &config]);
            check_exit(&output, 2, &format!("pumice: config file {config}: {key} {taken}"));
        }
    }
    serve(
        &["--redis", "unix:/nonexistent/x.sock"],
        "--redis unix:/nonexistent/x.sock: cannot listen: its folder",
    );
    serve(
        &["--http", "unix:/nonexistent/x.sock"],
        "--http unix:/nonexistent/x.sock: cannot listen: its folder",
    );
    // Not as another server's.
    let twice = "127.0.0.1:7 and --http 127.0.0.1:7 are the same address: name each once";
    serve(&["--redis", "127.0.0.1:7", "--http", "127.0.0.1:7"], twice);
    serve(
        &["--redis", "unix:x", "--redis", "unix:x"],
        "--redis unix:x and --redis unix:x are the same address",
    );
    assert!(!Path::new(&data).exists(), "nothing is made before drive and port are there");
    check_exit(&run(&["serve", "--data", &text, "--redis", "127.0.0.1:0"]), 2, "this is not a directory");
    for command in ["info", "check"] {
        check_exit(&run(&[command, &missing]), 2, "make a drive with `pumice format");
        check_exit(&run(&[command, &text]), 2, "is no drive");
    }
    serve(&["--device", &text], "is no drive");
    serve(&["--device", &empty], "it is empty");
    check_exit(&run(&["format", &at("grain"), "--size", "100"]), 2, "too little for a drive");
    assert!(!Path::new(&at("grain")).exists(), "nothing is left of it");
    check_exit(&run(&["format", &empty]), 2, "too little for a drive");
    check_exit(&run(&["format", &at("one"), "--size", "256MiB", "--channels", "0"]), 2, "--channels");
    // A pipe would wait for its other end, a terminal for whoever types.
    let pipe = at("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let directory = dir.path().display().to_string();
    for (odd, says) in [
        (pipe.as_str(), "neither a file nor"),
        ("/dev/zero", "neither a file nor"),
        (directory.as_str(), "is a directory"),
    ] {
        serve(&["--device", odd], says);
        for command in ["info", "check", "format"] {
            check_exit(&run(&[command, odd]), 2, says);
        }
    }
    check_exit(&run(&["info", "127.0.0.1:99999"]), 2, "there is no drive 127.0.0.1:99999");
    let drive = formatted(dir.path(), "drive");
    std::os::unix::fs::symlink(&drive, at("link")).unwrap();
    std::fs::hard_link(&drive, at("twin")).unwrap();
    for same in [&drive, &at("link"), &at("twin")] {
        serve(&["--device", &drive, "--device", same], "are the same drive: name each drive once");
    }
    check_exit(&run(&["format", &at("tiny"), "--size", "1MiB"]), 2, "make the file larger");
    check_exit(&run(&["format", &at("small"), "--size", "16MiB"]), 2, "at least 14 are needed");
    check_exit(&run(&["format", &at("nowhere/drive")]), 2, "nowhere");
    // What is there keeps its length, and is never cut.
    let foreign = file("foreign", "text");
    check_exit(&run(&["format", &foreign, "--force", "--size", "16MiB"]), 2, "at least 14 are needed");
    assert_eq!(std::fs::read(&foreign).unwrap(), b"text");
    let larger = &["format", &drive, "--force", "--size", "64MiB"];
    check_exit(&run(larger), 2, "is used as a whole: leave out --size, or remove the file");
    serve(&["--config", &file("a.toml", "redis = 5\n")], "a string or a list of strings");
    serve(&["--config", &file("b.toml", "reddis = '127.0.0.1:1'\n")], "unknown field `reddis`");
    serve(&["--config", &file("c.toml", "memory = 'much'\n")], "is not a size");
    serve(&["--config", &at("d.toml")], "d.toml");
    serve(&["--redis", "nonsense"], "neither host:port nor unix:PATH");
    serve(&["--http", "nonsense"], "--http nonsense: \"nonsense\" is neither host:port nor unix:PATH");
    for key in ["redis", "http"] {
        let config = of_file(key, "nonsense");
        let output = run(&["serve", "--data", &data, "--config", &config]);
        check_exit(&output, 2, &format!("config file {config}: {key} nonsense: \"nonsense\" is neither"));
    }
    serve(&["--log", "loud"], "log level 'loud' is none: use error");
    serve(&["--max-clients", "0"], "--max-clients");
    let of_config = |name: &str, text: &str, says: &str| {
        let config = file(name, text);
        serve(&["--config", &config], &format!("pumice: config file {config}: {says}"));
    };
    of_config("e.toml", "max-clients = 0\n", "max-clients must be at least 1");
    of_config("f.toml", "cores = 2000\n", "cores must be from 1 to 1024");
    of_config("h.toml", "patrol-days = -1.0\n", "patrol-days must be from 0");
    serve(&["--patrol-days=-1"], "pumice: --patrol-days must be from 0");
    serve(&["--config", &file("g.toml", "log = 'foo'\n")], "log level 'foo' is none");
    assert!(!dir.path().join("data/drive0").exists(), "nothing is made before the settings are right");
    let output = run(&["serve", "--data", &data, "--device", &drive, "--redis", "unix:/nonexistent/socket"]);
    check_exit(&output, 2, "/nonexistent/socket");
    assert_eq!(stderr(&output).matches("cannot listen").count(), 1, "{}", stderr(&output));
    // An address of nobody here: not told as another server's.
    let output = run(&["serve", "--data", &data, "--redis", "192.0.2.77:7777"]);
    check_exit(&output, 2, "192.0.2.77:7777");
    assert!(!stderr(&output).contains("another server"), "{}", stderr(&output));
    let tls = concat!(env!("CARGO_MANIFEST_DIR"), "/../redis/tests/it/tls");
    let (pem, key) = (format!("{tls}/server.pem"), format!("{tls}/server.key"));
    let junk = file("junk.pem", "nothing\n");
    serve(&["--redis-tls-cert", &at("none.pem"), "--redis-tls-key", &key], "none.pem");
    serve(&["--redis-tls-cert", &at("none.pem"), "--redis-tls-key", &key], "pumice: --redis-tls-cert /");
    let config = file("tls.toml", &format!("redis-tls-key = '{junk}'\n"));
    serve(
        &["--redis-tls-cert", &pem, "--config", &config],
        &format!("pumice: config file {config}: redis-tls-key {junk}: it holds no private key"),
    );
    serve(&["--redis-tls-cert", &junk, "--redis-tls-key", &key], "holds no certificate");
    serve(&["--redis-tls-cert", &pem, "--redis-tls-key", &junk], "holds no private key");
    serve(
        &["--redis-tls-cert", &pem, "--redis-tls-key", &key, "--redis-tls-ca", &junk],
        "holds no certificate",
    );
    serve(&["--redis-tls-cert", &pem], "redis-tls-key is missing");
    serve(&["--redis-tls-key", &key], "redis-tls-cert is missing");
    serve(&["--redis-tls-ca", &pem], "without redis-tls-cert and redis-tls-key");
    assert!(!dir.path().join("data/drive0").exists(), "nothing is made before certificates are read");
}

#[test]
fn format_refuses_to_overwrite_a_drive_or_foreign_data_without_force() {
    let dir = tempfile::tempdir().unwrap();
    let drive = formatted(dir.path(), "drive");
    check_exit(&run(&["format", &drive]), 1, "--force");
    check_exit(&run(&["format", &drive, "--force"]), 0, "");
    let foreign = dir.path().join("thesis.tex");
    std::fs::write(&foreign, "years of work".repeat(100_000)).unwrap();
    check_exit(&run(&["format", foreign.to_str().unwrap()]), 1, "--force");
    assert!(std::fs::read_to_string(&foreign).unwrap().starts_with("years of work"));
    check_exit(&run(&["format", dir.path().join("no/such/dir").to_str().unwrap()]), 2, "");
}

#[test]
fn format_says_of_a_file_that_may_outgrow_its_file_system_that_it_does() {
    let dir = tempfile::tempdir().unwrap();
    let space = rustix::fs::statvfs(dir.path()).unwrap();
    let drive = dir.path().join("drive");
    // Others come and go on the same file system.
    let much = ((space.f_blocks * space.f_frsize) >> 30) + 64;
    let output =
        run(&["format", drive.to_str().unwrap(), "--size", &format!("{much}GiB"), "--segment", "8MiB"]);
    check_exit(&output, 0, "warning: ");
    check_exit(&output, 0, "is a sparse file that may take ");
    assert!(stdout(&output).contains("formatted"), "{}", stdout(&output));
    let small = dir.path().join("small");
    let output = run(&["format", small.to_str().unwrap(), "--size", "256MiB"]);
    check_exit(&output, 0, "");
    assert!(!stderr(&output).contains("warning"), "{}", stderr(&output));
}

#[test]
fn info_says_what_a_drive_holds_and_its_space_adds_up() {
    let dir = tempfile::tempdir().unwrap();
    let drive = formatted(dir.path(), "drive");
    let info = json(&["info", &drive, "--json"]);
    let space = &info["space"];
    let sum: u64 = ["meta", "leftover", "live", "dead", "open", "pending", "reserved", "free", "bad"]
        .iter()
        .map(|kind| space[kind].as_u64().unwrap())
        .sum();
    assert_eq!(Some(sum), space["raw"].as_u64(), "{space}");
    assert_eq!(info["drive_id"].as_str().unwrap().len(), 32);
    check_exit(&run(&["info", dir.path().join("none").to_str().unwrap()]), 2, "none");
    let empty = dir.path().join("empty");
    std::fs::write(&empty, vec![0; 32 << 20]).unwrap();
    check_exit(&run(&["info", empty.to_str().unwrap()]), 2, "not a Pumice drive");
}

#[test]
fn check_exits_0_for_a_clean_drive_1_for_a_damaged_one_2_for_none() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    let mut client = server.client();
    for n in 0..500 {
        let _: () = client.set(format!("key{n}"), format!("{n}:").repeat(700)).unwrap();
    }
    server.stop();
    let drive = dir.path().join("drive0");
    let name = drive.to_str().unwrap();
    check_exit(&run(&["check", name]), 0, "");
    assert_eq!(json(&["check", name, "--json"])["clean"], true);
    // Flip a bit in the middle of a value: its text is on flash as it is.
    let file = std::fs::File::options().read(true).write(true).open(&drive).unwrap();
    let needle = b"250:250:250:250:250:";
    let mut window = vec![0; 1 << 20];
    let at = (0..256u64)
        .map(|n| n << 20)
        .find_map(|base| {
            let got = file.read_at(&mut window, base).ok()?;
            let found = window[..got].windows(needle.len()).position(|w| w == needle)?;
            Some(base + found as u64)
        })
        .expect("the value is on flash");
    file.write_all_at(b"251", at + 40).unwrap();
    let output = run(&["check", name]);
    assert_eq!(output.status.code(), Some(1), "{}{}", stdout(&output), stderr(&output));
    assert!(stdout(&output).contains("damaged"), "{}", stdout(&output));
    check_exit(&run(&["check", dir.path().join("none").to_str().unwrap()]), 2, "none");
    // The drive's first page is gone: there is another superblock.
    file.write_all_at(&[0xff; 4096], 0).unwrap();
    assert!(stdout(&run(&["check", name])).contains("superblock"));
    // Served all the same: that key is an error that names it, the others are there.
    let server = Server::start(dir.path(), &[]);
    let mut client = server.client();
    let error = client.get::<_, String>("key250").unwrap_err().to_string();
    assert!(error.contains("key250"), "{error}");
    assert_eq!(client.get::<_, String>("key251").unwrap(), "251:".repeat(700));
    server.stop();
    let output = run(&["check", name]);
    assert_eq!(output.status.code(), Some(1), "the value is damaged still");
    assert!(!stdout(&output).contains("superblock"), "{}", stdout(&output));
}

#[test]
fn bench_prints_the_promised_fields() {
    let dir = tempfile::tempdir().unwrap();
    let drive = dir.path().join("bench").to_str().unwrap().to_string();
    let small = ["--keys", "2000", "--value-size", "1KiB", "--size", "512MiB", "--memory", "64MiB", "--json"];
    let mut args = vec!["bench", "lightstore", "ycsb", "--device", &drive, "--ops", "2000"];
    args.extend(small);
    let report = json(&args);
    let rows = report["workloads"].as_array().unwrap();
    assert_eq!(rows.len(), 11, "{report}");
    for row in rows {
        for field in [
            "ops",
            "seconds",
            "ops_per_second",
            "bytes_per_second",
            "p50_us",
            "p99_us",
            "p999_us",
            "max_us",
            "cpu_seconds",
            "flash_read_bytes",
            "flash_written_bytes",
            "user_bytes",
        ] {
            assert!(row[field].is_number(), "{} has no {field}", row["name"]);
        }
        assert_eq!(row["errors"], 0, "{row}");
        assert_eq!(row["ops"], 2000, "{row}");
        if row["name"] != "ycsb-d" && row["name"] != "ycsb-e" {
            assert_eq!(row["misses"], 0, "{row}");
        }
    }
    check_exit(&run(&["bench", "nothing"]), 2, "is no workload");
    // What it wrote is not a server's: FLUSHALL would leave it alive for ever.
    let data = dir.path().join("data");
    let refused = Server::try_start(&data, &["--device", &drive]).err().expect("refused");
    assert!(refused.contains("exit status: 2") && refused.contains("`pumice bench` wrote"), "{refused}");
    assert!(refused.contains("`pumice format --force`"), "{refused}");
    // The same drive again needs to be told what to do with it.
    check_exit(&run(&["bench", "r-get", "--device", &drive, "--ops", "10"]), 1, "--force");
    check_exit(
        &run(&["bench", "r-get", "--device", &drive, "--ops", "10", "--keys", "2000", "--reuse"]),
        1,
        "",
    );
}

#[test]
fn bench_writes_to_no_drive_that_holds_anything_else() {
    let dir = tempfile::tempdir().unwrap();
    let drive = formatted(dir.path(), "drive");
    let reuse = ["bench", "load", "--device", &drive, "--keys", "100", "--value-size", "100", "--reuse"];
    let server = Server::start(&dir.path().join("data"), &["--device", &drive]);
    server.stop();
    check_exit(&run(&reuse), 1, "leave out --reuse");
    let server = Server::start(&dir.path().join("data"), &["--device", &drive]);
    let _: () = server.client().set("k", "v").unwrap();
    server.stop();
    let output = run(&reuse);
    check_exit(&output, 1, "holds data that is not the benchmark's");
    assert_eq!(stdout(&output), "", "no head of a table without rows");
    let server = Server::start(&dir.path().join("data"), &["--device", &drive]);
    assert_eq!(server.client().get::<_, String>("k").unwrap(), "v");
    server.stop();
    // Its own keys are used again.
    let fresh = formatted(dir.path(), "fresh");
    let args = |more: &str| {
        run(&["bench", "s-get", "--device", &fresh, "--keys", "100", "--value-size", "100", "--json", more])
    };
    check_exit(&args("--force"), 0, "");
    let again: Value = serde_json::from_str(&stdout(&args("--reuse"))).unwrap();
    assert_eq!((&again["workloads"][0]["ops"], &again["workloads"][0]["misses"]), (&100.into(), &0.into()));
}

#[test]
fn bench_runs_through_the_network_too() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    let addr = format!("127.0.0.1:{}", server.port);
    let report = json(&[
        "bench",
        "s-set",
        "r-mixed",
        "ycsb",
        "--redis",
        &addr,
        "--keys",
        "500",
        "--ops",
        "1000",
        "--value-size",
        "1000",
        "--connections",
        "8",
        "--pipeline",
        "4",
        "--json",
    ]);
    let rows = report["workloads"].as_array().unwrap();
    let names: Vec<&str> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
    let ycsb = ["ycsb-a", "ycsb-b", "ycsb-c", "ycsb-d", "ycsb-e", "ycsb-f"];
    assert_eq!(names[..3], ["s-set", "r-mixed", "ycsb-load"]);
    assert_eq!(names[3..], ycsb);
    for row in rows {
        assert_eq!(row["errors"], 0, "{row}");
    }
    server.stop();
}

#[test]
fn a_config_file_mirrors_the_flags_and_the_command_line_wins() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("pumice.toml");
    std::fs::write(&config, "http = \"127.0.0.1:0\"\npassword = \"from file\"\nmemory = \"96MiB\"\n")
        .unwrap();
    let config = config.to_str().unwrap().to_string();
    let server = Server::start(dir.path(), &["--config", &config, "--password", "from flag"]);
    let error = server.client().get::<_, Option<String>>("k").unwrap_err().to_string();
    assert!(error.contains("NOAUTH"), "{error}");
    let client = redis::Client::open(format!("redis://:from%20flag@127.0.0.1:{}/", server.port)).unwrap();
    assert_eq!(client.get_connection().unwrap().get::<_, Option<String>>("k").unwrap(), None);
    let mut client = client.get_connection().unwrap();
    let told: String = redis::cmd("INFO").arg("server").query(&mut client).unwrap();
    assert!(told.contains(&format!("\r\nconfig_file:{config}\r\n")), "{told}");
    let (status, body) = server.http("/health");
    let health: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &health["state"]), (200, &"ready".into()), "{body}");
    let drives = serde_json::json!([{
        "device": dir.path().join("drive0").to_str().unwrap(), "state": "ok", "damaged_records": 0,
    }]);
    assert_eq!(health["drives"], drives, "{body}");
    server.stop();
    std::fs::write(&config, "memroy = \"1GiB\"\n").unwrap();
    check_exit(&run(&["serve", "--config", &config]), 2, "memroy");
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/pumice.toml");
    let text = std::fs::read_to_string(example).unwrap();
    let data = dir.path().join("data");
    let text =
        text.replace("/var/lib/pumice", data.to_str().unwrap()).replace("127.0.0.1:6379", "127.0.0.1:0");
    std::fs::write(&config, text).unwrap();
    let server = Server::start(&data, &["--config", &config]);
    server.stop();
}

#[test]
fn a_running_server_tells_about_itself_in_every_way_promised() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &["--http", "127.0.0.1:0"]);
    let _: () = server.client().set("k", "v").unwrap();
    let data = dir.path().to_str().unwrap();
    let info = json(&["info", "--data", data, "--json"]);
    assert_eq!((&info["state"], &info["drives"][0]["records_written"].is_number()), (&"ready".into(), &true));
    // People read durations in their unit, programs read seconds.
    assert!(info["drives"][0]["commit_seconds_p50"].as_f64().unwrap() > 0.0, "{info}");
    let text = stdout(&run(&["info", "--data", data]));
    let line = text.lines().find(|line| line.contains("commit_seconds_p50")).expect("a line");
    assert!(line.ends_with(" us") || line.ends_with(" ms") || line.ends_with(" s"), "{line}");
    assert!(!line.contains(" 0.0"), "{line}");
    let addr = format!("127.0.0.1:{}", server.port);
    let info = json(&["info", &addr, "--json"]);
    assert!(info["redis_version"].as_str().unwrap().starts_with("7."), "{info}");
    let binary = std::fs::canonicalize(pumice().get_program()).unwrap();
    assert_eq!(info["executable"].as_str(), binary.to_str(), "{info}");
    let health = run(&["info", "--server", &addr, "--health"]);
    check_exit(&health, 0, "");
    assert_eq!(stdout(&health), "{\"state\":\"ready\"}\n");
    let bind: Vec<String> = redis::cmd("CONFIG").arg("GET").arg("bind").query(&mut server.client()).unwrap();
    assert_eq!(bind, ["bind", "127.0.0.1"]);
    let (status, metrics) = server.http("/metrics");
    assert_eq!(status, 200);
    let drive = dir.path().join("drive0").display().to_string();
    for line in [
        format!("pumice_build_info{{version=\"{}\"}} 1.0", env!("CARGO_PKG_VERSION")),
        format!("pumice_drive_info{{drive=\"0\",path=\"{drive}\"}} 1.0"),
        format!("pumice_memory_budget_bytes{{}} {}.0", 128 << 20),
        "pumice_redis_keys{} 1.0".into(),
        "pumice_redis_clients_max{} 10000.0".into(),
    ] {
        assert!(metrics.lines().any(|found| found == line), "no {line} in {metrics}");
    }
    let started = metrics.lines().find_map(|line| line.strip_prefix("process_start_time_seconds{} "));
    let started: f64 = started.and_then(|text| text.parse().ok()).expect("a time");
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
    assert!(now - 3600.0 < started && started < now + 60.0, "{started}, and now it is {now}");
    for name in ["pumice_drive_commits_total", "pumice_drive_space_bytes", "pumice_core_turns_total", "# EOF"]
    {
        assert!(metrics.contains(name), "no {name} in /metrics");
    }
    let (status, page) = server.http("/");
    assert!(status == 200 && page.contains("<h1>Pumice</h1>"));
    assert_eq!(server.http("/nothing").0, 404);
    server.stop();
    check_exit(&run(&["info", "--data", data]), 2, "no server answers");
}

#[test]
fn two_drives_make_one_set_in_any_order_and_in_no_other_company() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b, c) = (formatted(dir.path(), "a"), formatted(dir.path(), "b"), formatted(dir.path(), "c"));
    let data = dir.path().join("data");
    let server = Server::start(&data, &["--device", &a, "--device", &b]);
    let mut client = server.client();
    for n in 0..300 {
        let _: () = client.set(format!("key{n}"), n).unwrap();
    }
    server.stop();
    let server = Server::start(&data, &["--device", &b, "--device", &a]);
    let mut client = server.client();
    for n in 0..300 {
        assert_eq!(client.get::<_, i64>(format!("key{n}")).unwrap(), n);
    }
    server.stop();
    let refused = |devices: &[&str], says: &str| {
        let flags: Vec<&str> = devices.iter().flat_map(|d| ["--device", *d]).collect();
        let why = Server::try_start(&data, &flags).err().expect("refused");
        assert!(why.contains("exit status: 2") && why.contains(says), "{why}");
    };
    refused(&[&a], "set of 2 drive(s)");
    refused(&[&a], "drive 1 of it is missing");
    refused(&[&b], "drive 0 of it is missing");
    refused(&[&a, &c], "which holds data");
    refused(&[&a, &b, &c], "set of 2 drive(s)");
    refused(&[&a, &b, &c], &format!("complete without {c}"));
    // A copy of a set's only drive beside it is told as such.
    let server = Server::start(&data, &["--device", &c]);
    server.stop();
    let copy = dir.path().join("copy").to_str().unwrap().to_string();
    let _ = std::fs::copy(&c, &copy).unwrap();
    refused(&[&c, &copy], "one is a copy of the other");
}

#[test]
fn the_simulator_lists_and_runs_worlds() {
    let worlds = json(&["sim", "list", "--json"]);
    let worlds = worlds["worlds"].as_array().unwrap();
    for world in worlds {
        assert!(world["name"].is_string() && world["about"].is_string());
    }
    check_exit(&run(&["sim", "run", "no-such-world"]), 2, "no world called");
    check_exit(&run(&["sim", "run", "no-such-world", "--cut", "1"]), 2, "no world called");
    // What a world would pass over is refused, before anything is made.
    let dir = tempfile::tempdir().unwrap();
    let plots = dir.path().join("plots");
    let plot = ["--plot", plots.to_str().unwrap()];
    check_exit(
        &run(&["sim", "run", "kv", "--cut", "3"]),
        2,
        "world kv has no use for --cut; it is for ftl, kv-cut",
    );
    check_exit(&run(&[&["sim", "run", "kv-cut"], &plot[..]].concat()), 2, "no use for --plot; it is for sdf");
    assert!(!plots.exists());
    check_exit(&run(&["sim", "run", "kv-cut", "--cut", "3"]), 0, "");
}

/// Who waits for many seeds learns at once of each that fails; the report has all of them.
#[test]
fn the_simulator_tells_of_a_failing_seed_before_the_last_has_run() {
    let never_cut = ["sim", "run", "kv-cut", "--cut", "99999999", "--seeds", "2"];
    let told =
        |seed| format!("FAILED with seed {seed}: the power was not cut\n  replay: pumice sim run kv-cut");
    let failed = run(&[&never_cut[..], &["--keep-going"]].concat());
    for seed in [1, 2] {
        check_exit(&failed, 1, &told(seed));
        assert!(stdout(&failed).contains(&told(seed)), "{}", stdout(&failed));
    }
    let failed = run(&never_cut);
    assert!(stdout(&failed).contains(&told(1)) && !stdout(&failed).contains(&told(2)));
    assert!(!stderr(&failed).contains("FAILED"), "its report comes at once: {}", stderr(&failed));
}

#[test]
fn an_emulated_drive_is_served_from_memory() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &["--device", "emu:small"]);
    let mut client = server.client();
    let _: () = client.set("k", "v").unwrap();
    assert_eq!(client.get::<_, String>("k").unwrap(), "v");
    server.stop();
    assert!(!dir.path().join("drive0").exists());
}

#[test]
fn an_emulated_sdf_card_is_formatted_served_and_described() {
    let dir = tempfile::tempdir().unwrap();
    // Two channels of the card, and no timing: the build machine's time is dear.
    let device =
        format!("emu:sdf,channels=2,blocks=24,timing=off,path={}", dir.path().join("card").display());
    let made = json(&["format", &device, "--json"]);
    assert_eq!((&made["segment_bytes"], &made["channels"]), (&(8 << 20).into(), &2.into()));
    check_exit(&run(&["format", &device]), 1, "--force");
    check_exit(&run(&["format", "emu:sdf"]), 2, "path=FILE");
    check_exit(&run(&["format", &device, "--force", "--size", "1GiB"]), 2, "part of its name");
    let server = Server::start(dir.path(), &["--device", &device]);
    let mut client = server.client();
    let _: () = client.set("k", "v").unwrap();
    server.stop();
    let info = json(&["info", &device, "--json"]);
    let geometry = &info["geometry"];
    for (field, expected) in [
        ("channels", 2),
        ("dies_per_channel", 2),
        ("planes_per_die", 2),
        ("dies_per_block", 2),
        ("blocks_per_channel", 24),
        ("pages_per_block", 1024),
        ("page_bytes", 8192),
        ("oob_bytes", 448),
    ] {
        assert_eq!(geometry[field], expected, "{field}");
    }
    let server = Server::start(dir.path(), &["--device", &device]);
    assert_eq!(server.client().get::<_, String>("k").unwrap(), "v");
    server.stop();
}

#[test]
fn a_redis_face_on_a_unix_socket_replaces_a_stale_one() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("redis.sock");
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let addr = format!("unix:{}", socket.display());
    let mut child = pumice()
        .args(["serve", "--redis", &addr, "--memory", "64MiB", "--data", dir.path().to_str().unwrap()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    assert_eq!(lines.next().unwrap().unwrap(), format!("redis on {addr}"));
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    let client = redis::Client::open(format!("redis+unix://{}", socket.display())).unwrap();
    assert_eq!(redis::cmd("PING").query::<String>(&mut client.get_connection().unwrap()).unwrap(), "PONG");
    let _ = redis::cmd("SHUTDOWN").query::<String>(&mut client.get_connection().unwrap());
    assert!(child.wait().unwrap().success());
    assert!(!socket.exists(), "a server that ends takes its socket along");
}

#[test]
fn what_is_refused_stays_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
    let (foreign, drive, media) = (at("backup.img"), at("drive"), at("media"));
    std::fs::write(&foreign, vec![7; 100_000]).unwrap();
    let emulated = |blocks: u32| format!("emu:tiny,channels=2,blocks={blocks},path={media}");
    check_exit(&run(&["format", &drive, "--size", "32MiB"]), 0, "");
    check_exit(&run(&["format", &emulated(32)]), 0, "");
    let bytes = || [&foreign, &drive, &media].map(|path| std::fs::metadata(path).unwrap().len());
    let before = bytes();
    check_exit(
        &run(&["bench", "--device", &foreign, "--size", "64MiB"]),
        1,
        "holds data that is not Pumice's",
    );
    check_exit(&run(&["bench", "--device", &drive, "--size", "64MiB"]), 1, "is a Pumice drive already");
    check_exit(&run(&["format", &drive, "--size", "64MiB"]), 1, "is a Pumice drive already");
    check_exit(&run(&["format", &emulated(64)]), 1, "is a Pumice drive already");
    // Other options make other media of it.
    for blocks in [16, 64] {
        let refused = Server::try_start(dir.path(), &["--device", &emulated(blocks)]).err().unwrap();
        assert!(
            refused.contains("exit status: 2") && refused.contains("made with other options"),
            "{refused}"
        );
    }
    let refused =
        Server::try_start(dir.path(), &["--device", &format!("emu:tiny,path={foreign}")]).err().unwrap();
    assert!(refused.contains("or is something else"), "{refused}");
    assert_eq!(bytes(), before);
    check_exit(&run(&["info", &emulated(32)]), 0, "");
}

#[test]
fn a_device_that_is_missing_is_not_made_up() {
    for command in ["format", "bench --device"] {
        let mut args: Vec<&str> = command.split(' ').collect();
        args.push("/dev/pumice-test-is-no-disk");
        check_exit(&run(&args), 2, "there is no device /dev/pumice-test-is-no-disk");
        assert!(!Path::new("/dev/pumice-test-is-no-disk").exists());
    }
}
