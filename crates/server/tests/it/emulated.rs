//! Emulated drives kept in a file, as users serve them: every preset, cut to a size that a test can hold, is formatted,
//! served, killed and opened again; and raw ones that wear.

use crate::common::{Server, check_exit, run, space_adds_up, stdout};
use redis::Commands;
use serde_json::Value;

/// The presets with their page, block and channels as they are, and fewer dies and blocks; no time passes.
const PRESETS: [(&str, &str); 8] = [
    ("tiny", "blocks=64"),
    ("small", "blocks=16"),
    ("tlc", "channels=2,dies=1,blocks=20,pages=64,timing=off"),
    ("sdf", "channels=4,blocks=16,pages=64,timing=off"),
    ("bluedbm", "blocks=256,timing=off"),
    ("lightstore", "channels=2,dies=1,blocks=24,timing=off"),
    ("x25v", "blocks=20,timing=off"),
    // Raw ones that wear, corrected by the heap.
    ("bluedbm", "blocks=256,timing=off,wear=on,ecc=off"),
];

fn info(target: &[&str]) -> Value {
    let output = run(&[&["info", "--json"], target].concat());
    check_exit(&output, 0, "");
    serde_json::from_str(&stdout(&output)).expect("JSON")
}

#[test]
fn every_preset_is_formatted_served_killed_and_opened_again() {
    for (number, (preset, options)) in PRESETS.iter().enumerate() {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("nand").display().to_string();
        let spec = format!("emu:{preset},{options},path={path}");
        check_exit(&run(&["format", &spec]), 0, "");
        check_exit(&run(&["format", &spec]), 1, "--force");
        space_adds_up(&info(&[&spec]));
        let data = dir.path().join("data");
        let value = |key: u32| vec![key as u8 ^ number as u8; 10 + 37 * key as usize];
        let server = Server::start(&data, &["--device", &spec]);
        let mut client = server.client();
        for key in 0..60u32 {
            let _: () = client.set(key, value(key)).unwrap_or_else(|error| panic!("{spec}: {error}"));
        }
        let running = info(&["--data", &data.display().to_string()]);
        space_adds_up(&running["drives"][0]);
        server.kill();
        let server = Server::start(&data, &["--device", &spec]);
        let mut client = server.client();
        for key in 0..60u32 {
            let found: Vec<u8> = client.get(key).unwrap_or_else(|error| panic!("{spec}: {error}"));
            assert!(found == value(key), "{spec}: key {key}");
        }
        server.stop();
        check_exit(&run(&["check", &spec]), 0, "");
        let closed = info(&[&spec]);
        space_adds_up(&closed);
        assert_eq!(closed["closed_cleanly"], true, "{closed}");
        assert_eq!(closed["correction"].is_null(), !spec.contains("ecc=off"), "{closed}");
        let people = stdout(&run(&["info", &spec]));
        assert!(people.contains("free_unerased") && people.contains("erases_most"), "{people}");
    }
}
