//! Settings from the config file and the command line together.

use crate::common::Server;

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
    server.stop();
}
