//! Sizes as people write them: `64MiB`, `1GiB`, `4096`.

use std::fmt;

/// Why a size could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseSizeError {
    input: String,
}

impl fmt::Display for ParseSizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "'{}' is not a size: write a whole number and a unit, such as 4096, 512KiB, 64MiB, 1GiB or 2TiB",
            self.input
        )
    }
}

impl std::error::Error for ParseSizeError {}

/// Reads a size in bytes: a whole number with an optional unit (B, KiB, MiB, GiB, TiB; K, KB and so on mean
/// the same powers of 1,024). CONFIG SET reads sizes as Redis does, to which `1k` is 1,000.
pub fn parse_size(input: &str) -> Result<u64, ParseSizeError> {
    let error = || ParseSizeError { input: input.to_string() };
    let text = input.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().map_err(|_| error())?;
    let shift = match text[digits..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(error()),
    };
    number.checked_mul(1u64 << shift).ok_or_else(error)
}

/// Writes a size so that [`parse_size`] reads it back when it is a whole number of units, else with two
/// decimals for people: `8MiB`, `1.42GiB`.
pub fn format_size(bytes: u64) -> String {
    for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
        let one = 1u64 << shift;
        if bytes >= one {
            return if bytes.is_multiple_of(one) {
                format!("{}{unit}", bytes >> shift)
            } else {
                format!("{:.2}{unit}", bytes as f64 / one as f64)
            };
        }
    }
    format!("{bytes}B")
}
