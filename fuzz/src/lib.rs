//! Everything that parses bytes it did not make: from flash, from clients, from users.
//!
//! A target takes any bytes and must neither panic, nor loop, nor take much more memory than it was given bytes. What
//! parses must also be consistent (what is found lies inside the input; what was encoded decodes to the same).
//!
//! The same targets run two ways: under libFuzzer (`cargo +nightly fuzz run NAME --features libfuzzer`), and by the
//! seeded runner below on stable, which changes well-formed inputs in the ways that break parsers. A failure of the
//! latter prints the one command that replays it.

pub mod mutate;
pub mod runner;
pub mod targets;

/// One parser under test.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name, here and in `fuzz_targets/`.
    pub name: &'static str,
    /// Well-formed inputs to start from.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// The test.
    pub run: fn(&[u8]),
}
