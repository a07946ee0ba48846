//! Settings from the config file and the command line together.

use std::os::unix::fs::PermissionsExt;

use crate::common::{Server, check_exit, pumice, run, stderr, stdout};

const TLS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../redis/tests/it/tls");

#[test]
fn tls_is_put_together_from_file_and_flags_and_never_left_out_in_part() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("pumice.toml");
    let (pem, key) = (format!("{TLS}/server.pem"), format!("{TLS}/server.key"));
    let at = config.to_str().unwrap();
    std::fs::write(&config, format!("redis-tls-ca = '{pem}'\n")).unwrap();
    let refused = Server::try_start(dir.path(), &["--config", at]).err().expect("refused");
    assert!(refused.contains("exit status: 2") && refused.contains("redis-tls-ca is of no use"), "{refused}");
    std::fs::write(&config, format!("redis-tls-cert = '{pem}'\nredis-tls-key = '{key}'\n")).unwrap();
    let server = Server::start(dir.path(), &["--config", at, "--redis-tls-ca", &format!("{TLS}/ca.pem")]);
    assert!(server.faces.iter().any(|face| face.ends_with("(TLS)")), "{:?}", server.faces);
    // Our own clients speak no TLS; each says what to do instead.
    let addr = format!("127.0.0.1:{}", server.port);
    check_exit(&run(&["info", &addr]), 2, "speaks TLS: ask the server through its control socket");
    let bench = run(&["bench", "r-get", "--redis", &addr]);
    check_exit(&bench, 2, "speaks TLS: bench does not; measure through an address of the server without TLS");
    server.stop();
}

#[test]
fn a_size_in_the_file_is_text_or_bytes_and_its_error_names_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("pumice.toml");
    let at = config.to_str().unwrap();
    let text = format!("memory = 134217728\ndata = '{}'\nredis = '127.0.0.1:0'\n", dir.path().display());
    std::fs::write(&config, text).unwrap();
    // The harness gives --memory; without a drive to open the log tells what the file says.
    let output = run(&["serve", "--config", at, "--device", "/nonexistent/drive"]);
    check_exit(&output, 2, "memory: 128MiB of ");
    let refused = |memory: &str, says: &str| {
        std::fs::write(&config, format!("memory = {memory}\n")).unwrap();
        check_exit(&run(&["serve", "--config", at]), 2, says);
    };
    refused("'63MiB'", &format!("config file {at}: memory must be at least 64MiB"));
    refused("1000", &format!("config file {at}: memory must be at least 64MiB"));
    refused("'much'", &format!("config file {at}: memory: 'much' is not a size"));
    refused("-5", "expected a size in quotes, such as \"2GiB\", or a whole number of bytes");
    check_exit(&run(&["serve", "--config", at, "--memory", "63MiB"]), 2, "expected a size in quotes");
    refused("1000", "memory must be");
    check_exit(&run(&["serve", "--config", at, "--memory", "63MiB"]), 2, "pumice: --memory must be at least");
    assert!(stdout(&run(&["serve", "--help"])).contains("protected-mode = false"));
}

#[test]
fn cores_and_memory_go_together() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
    let serve = |more: &[&str]| {
        run(&[&["serve", "--data", &at("data"), "--redis", "127.0.0.1:0", "--device", "/nonexistent"], more]
            .concat())
    };
    let refused = |more: &[&str], says: &str| check_exit(&serve(more), 2, says);
    refused(&["--cores", "24", "--memory", "64MiB"], "pumice: --memory must be at least 284MiB for 24 cores");
    refused(
        &["--cores", "3", "--memory", "91MiB", "--device", "/other"],
        "--memory must be at least 92MiB for 3 cores and 2 drives",
    );
    std::fs::write(at("a.toml"), "cores = 4\nmemory = '83MiB'\n").unwrap();
    let config = at("a.toml");
    refused(
        &["--config", &config],
        &format!("config file {config}: memory must be at least 84MiB for 4 cores"),
    );
    refused(&["--config", &config, "--cores", "5"], "memory must be at least 94MiB for 5 cores");
    // What is enough gets as far as the drive that is not there.
    refused(&["--config", &config, "--memory", "84MiB"], "there is no such file");
    refused(&["--cores", "2", "--memory", "64MiB"], "there is no such file");
    // Where nobody asked for cores, as many serve as there is memory for: told, if that is fewer than there are.
    let there = std::thread::available_parallelism().unwrap().get();
    let told = stderr(&serve(&["--memory", "64MiB"]));
    assert_eq!(told.contains(&format!("cores: 2 of the machine's {there}")), there > 2, "{told}");
    assert!(!stderr(&serve(&["--memory", "1TiB"])).contains("of the machine's"), "{told}");
}

/// As an environment file has it whose password somebody left open.
#[test]
fn an_empty_password_is_none_and_takes_no_other_one_away() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("pumice.toml");
    std::fs::write(&config, "password = 'secret'\nprotected-mode = false\n").unwrap();
    let with_an_empty_one = || {
        let mut command = pumice();
        command.env("PUMICE_PASSWORD", "");
        command
    };
    let args = ["--cores", "1", "--config", config.to_str().unwrap()];
    let server = Server::try_start_of(with_an_empty_one(), dir.path(), &args).unwrap();
    let addr = format!("127.0.0.1:{}", server.port);
    check_exit(&with_an_empty_one().args(["info", &addr]).output().unwrap(), 2, "NOAUTH");
    check_exit(&run(&["info", &addr, "--password", "secret"]), 0, "");
    server.stop();
    // Where none is asked for, none is given.
    let server = Server::try_start_of(with_an_empty_one(), dir.path(), &["--cores", "1"]).unwrap();
    let addr = format!("127.0.0.1:{}", server.port);
    for command in [&["info", &addr][..], &["bench", "load", "--redis", &addr, "--keys", "10"]] {
        check_exit(&with_an_empty_one().args(command).output().unwrap(), 0, "");
    }
    server.stop();
}

#[test]
fn an_empty_log_level_in_the_environment_is_none() {
    let dir = tempfile::tempdir().unwrap();
    let mut serve = pumice();
    serve.env("PUMICE_LOG", "").args([
        "serve",
        "--redis",
        "127.0.0.1:0",
        "--device",
        "/nonexistent",
        "--data",
    ]);
    let output = serve.arg(dir.path()).output().unwrap();
    check_exit(&output, 2, "memory: ");
}

#[test]
fn a_socket_has_the_permissions_that_were_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("redis.sock");
    let mode = || std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777;
    let addr = format!("unix:{}", socket.display());
    let server = Server::start(dir.path(), &["--redis", &addr, "--redis-socket-mode", "660"]);
    assert_eq!(mode(), 0o660);
    server.stop();
    let config = dir.path().join("pumice.toml");
    let at = config.to_str().unwrap();
    std::fs::write(&config, "redis-socket-mode = '0606'\n").unwrap();
    let server = Server::start(dir.path(), &["--redis", &addr, "--config", at]);
    assert_eq!(mode(), 0o606);
    server.stop();
    check_exit(&run(&["serve", "--redis-socket-mode", "888"]), 2, "octal digits");
    std::fs::write(&config, "redis-socket-mode = '1777'\n").unwrap();
    check_exit(
        &run(&["serve", "--config", at]),
        2,
        &format!("config file {at}: redis-socket-mode must be octal"),
    );
}

/// A client that is known by where it came in can be found by that, as in Redis.
#[test]
fn a_connection_tells_the_address_that_it_came_to() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("sock").to_str().unwrap().to_string();
    let server = Server::start(dir.path(), &["--redis", "0.0.0.0:0", "--redis", &format!("unix:{socket}")]);
    let any = server
        .faces
        .iter()
        .find_map(|face| face.strip_prefix("redis on 0.0.0.0:"))
        .expect("one of any address");
    let told = |url: &str| {
        let mut client = redis::Client::open(url).unwrap().get_connection().unwrap();
        redis::cmd("CLIENT").arg("INFO").query::<String>(&mut client).unwrap()
    };
    let line = told(&format!("redis://127.0.0.1:{any}"));
    assert!(line.contains(&format!(" laddr=127.0.0.1:{any} ")) && line.contains(" flags=N "), "{line}");
    let line = told(&format!("unix://{socket}"));
    assert!(
        line.contains(&format!(" addr={socket}:0 laddr={socket}:0 ")) && line.contains(" flags=U "),
        "{line}"
    );
    let mut client = server.client();
    let _other = redis::Client::open(format!("redis://127.0.0.1:{any}")).unwrap().get_connection().unwrap();
    let mut kill = redis::cmd("CLIENT");
    kill.arg("KILL").arg("LADDR").arg(format!("127.0.0.1:{any}"));
    assert_eq!(kill.query::<u32>(&mut client).unwrap(), 1);
    server.stop();
}

#[test]
fn a_config_file_is_named_by_who_does_not_rewrite_it() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("pumice.toml");
    std::fs::write(&config, "").unwrap();
    let at = config.to_str().unwrap();
    let server = Server::start(dir.path(), &["--config", at]);
    let refused = redis::cmd("CONFIG").arg("REWRITE").query::<()>(&mut server.client()).expect_err("refused");
    assert!(refused.to_string().contains(&format!("edit '{at}'")), "{refused}");
    server.stop();
}
