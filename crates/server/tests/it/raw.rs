//! `pumice info` and `pumice check` on raw-flash drives.

use crate::common::{check_exit, run, stdout};
use pumice_flash::{Device, DeviceSpec, Geometry};
use pumice_reactor::IoBuf;
use pumice_segment::ftl::{Place, RawFlash, RawFormat, RawOptions, ScrubOptions};
use serde_json::Value;

/// Makes a drive with six segments on what `spec` names; answers where one of them lies.
fn make(spec: &str, close: bool) -> u64 {
    pumice_reactor::block_on(async {
        let parsed: DeviceSpec = spec.parse().expect("spec");
        let mut device = Device::create(&parsed, 8 << 20).await.expect("device");
        if matches!(parsed, DeviceSpec::Path(_)) {
            let shape =
                Geometry { channels: 2, pages_per_block: 32, blocks_per_channel: 32, ..device.geometry() };
            device = device.with_geometry(shape).expect("shape");
        }
        let format = RawFormat { drive_id: [7; 16], force: false };
        let raw = RawFlash::format(device, format, RawOptions::default()).await.expect("format");
        let client = raw.client();
        let mut data = IoBuf::zeroed(raw.segment_bytes() as usize);
        data.fill(9);
        let data = data.freeze();
        for id in 0..7u128 {
            raw.write(&client, id, Place::ById, data.clone()).await.expect("write");
        }
        raw.erase(&client, 6).await.expect("erase");
        raw.scrub_pass(ScrubOptions { bytes_per_second: u64::MAX, refresh: true }).await.expect("patrol");
        if close {
            raw.close().await.expect("close");
        }
        let place = raw.place_of(3).expect("there");
        u64::from(raw.geometry().number(place)) * u64::from(raw.geometry().block_bytes())
    })
}

#[track_caller]
fn adds_up(space: &Value) {
    let of = |kind: &str| space[kind].as_u64().unwrap_or_else(|| panic!("{kind} of {space}"));
    let kinds =
        ["live", "dead", "writing", "free_erased", "free_unerased", "reserved", "tags", "checksums", "bad"];
    let leftover = space["leftover"].as_u64().unwrap_or(0);
    assert_eq!(kinds.iter().map(|kind| of(kind)).sum::<u64>() + leftover, of("raw"), "{space}");
}

#[test]
fn format_says_that_a_raw_drive_is_one_before_it_destroys_it() {
    let dir = tempfile::tempdir().expect("dir");
    let path = dir.path().join("file").display().to_string();
    make(&path, true);
    check_exit(&run(&["format", &path]), 1, "is a raw-flash drive already; --force");
    let output = run(&["info", &path, "--json"]);
    let info: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    assert_eq!(info["kind"], "raw flash");
    check_exit(&run(&["format", &path, "--force", "--segment", "256KiB"]), 0, "");
}

#[test]
fn info_tells_where_a_raw_drives_bytes_are_and_check_reads_them() {
    let dir = tempfile::tempdir().expect("dir");
    let path = |name: &str| dir.path().join(name).display().to_string();
    let nand = format!("emu:tiny,channels=2,blocks=32,oob=64,path={}", path("nand"));
    for (spec, close) in [(nand, true), (path("file"), false)] {
        make(&spec, close);
        let output = run(&["info", &spec, "--json"]);
        check_exit(&output, 0, "");
        let info: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
        assert_eq!(info["kind"], "raw flash");
        assert_eq!((&info["segments"], &info["closed_cleanly"]), (&6.into(), &close.into()), "{info}");
        adds_up(&info["space"]);
        let channels = info["channel_space_bytes"].as_array().expect("channels");
        assert_eq!(channels.len(), 2);
        channels.iter().for_each(adds_up);
        // What a crash forgets is how far the patrol came on so small a drive.
        assert_eq!(info["patrol"]["passes"], u64::from(close), "{info}");
        let people = stdout(&run(&["info", &spec]));
        assert!(people.contains("free_unerased") && people.contains("MiB"), "{people}");
        let output = run(&["check", &spec]);
        check_exit(&output, 0, "");
        assert!(stdout(&output).contains("6 segments"), "{}", stdout(&output));
    }
}

/// Flips a bit of a file.
fn flip(path: &str, at: u64) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).expect("file");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("read");
    file.write_all_at(&[byte[0] ^ 16], at).expect("write");
}

#[track_caller]
fn finds(spec: &str, what: &str) {
    let output = run(&["check", spec]);
    check_exit(&output, 1, "1 problem(s) found");
    assert!(stdout(&output).contains(what), "no {what:?}: {}", stdout(&output));
}

#[test]
fn check_names_segment_and_page_of_what_changed_on_the_media() {
    let dir = tempfile::tempdir().expect("dir");
    let path = |name: &str| dir.path().join(name).display().to_string();
    let nand = format!("emu:tiny,channels=2,blocks=32,oob=64,path={}", path("nand"));
    // Of a file's block the first page has the tag and the checksums.
    for (spec, file, close, page) in [(nand, path("nand"), true, 5), (path("file"), path("file"), false, 4)] {
        let at = make(&spec, close);
        flip(&file, at + 5 * 4096 + 1000);
        let named = format!("segment {:032x} page {page}", 3);
        finds(&spec, &named);
        flip(&file, at + 5 * 4096 + 1000);
        check_exit(&run(&["check", &spec]), 0, "");
    }
    let (file, at) = (path("ends"), make(&path("ends"), true));
    for end in [70, 31 * 4096 + 70] {
        flip(&file, at + end);
        finds(&file, "damaged; the other one serves");
        flip(&file, at + end);
    }
    check_exit(&run(&["check", &file]), 0, "");
}
