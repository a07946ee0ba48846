//! What users type: sizes, device specifications, addresses.

use pumice_base::size::{format_size, parse_size};
use pumice_flash::DeviceSpec;
use pumice_reactor::Addr;

/// Well-formed ones.
pub fn seeds() -> Vec<Vec<u8>> {
    let texts = [
        "64MiB",
        "1GiB",
        "4096",
        "1.5TiB",
        "emu:sdf",
        "emu:tlc,channels=4,blocks=64",
        "/dev/nvme0n1",
        "127.0.0.1:6379",
        "unix:/run/pumice.sock",
        "[::1]:6379",
    ];
    texts.iter().map(|t| t.as_bytes().to_vec()).collect()
}

/// Parses as each; what parses must print as something that parses to the same.
pub fn run(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Ok(size) = parse_size(text) {
        let _ = format_size(size);
    }
    if let Ok(spec) = text.parse::<DeviceSpec>() {
        let printed = spec.to_string();
        let again = printed.parse::<DeviceSpec>();
        assert!(again.is_ok_and(|again| again.to_string() == printed), "{text:?} prints as {printed:?}");
    }
    // Anything else may be a host's name, which parsing asks the resolver for.
    let is_literal =
        text.starts_with("unix:") || text.chars().all(|c| c.is_ascii_digit() || "[]:.".contains(c));
    if is_literal && let Ok(addr) = text.parse::<Addr>() {
        let printed = addr.to_string();
        assert!(printed.parse::<Addr>().is_ok(), "{text:?} prints as {printed:?}");
    }
}
