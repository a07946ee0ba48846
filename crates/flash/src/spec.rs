//! How people name devices: `PATH`, or `emu:PRESET[,option=value…]`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use pumice_base::size::{format_size, parse_size};

use crate::preset::PRESETS;
use crate::{Geometry, Wear};

/// A device as `--device` takes it.
#[derive(Clone, Debug, PartialEq)]
pub enum DeviceSpec {
    /// A file or block device.
    Path(PathBuf),
    /// Emulated NAND.
    Emulated(Box<EmulatedSpec>),
}

/// How long an emulated device takes. A rate of 0 is no limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NandTiming {
    /// tR: time to sense a plane group into the die's registers, in µs.
    pub read_us: f64,
    /// tPROG: time to program a plane group, in µs.
    pub program_us: f64,
    /// tERASE: time to erase a block (on all its planes and dies at once), in µs.
    pub erase_us: f64,
    /// Each channel's bus, in MB/s; it carries the out-of-band bytes too.
    pub bus_mb_per_s: f64,
    /// The host link's cap for reads, in MB/s.
    pub link_read_mb_per_s: f64,
    /// The host link's cap for writes, in MB/s.
    pub link_write_mb_per_s: f64,
    /// Added to every request, outside of all queues, in µs: interface and driver.
    pub request_us: f64,
}

/// The error correction that a page's out-of-band bytes hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EccSpec {
    /// Data bytes of a codeword.
    pub codeword_bytes: u32,
    /// Bits that are corrected in each codeword.
    pub correctable_bits: u32,
}

/// An emulated device: its shape, its timing and its faults.
#[derive(Clone, Debug, PartialEq)]
pub struct EmulatedSpec {
    /// The preset that the other fields started from.
    pub preset: String,
    /// The shape.
    pub geometry: Geometry,
    /// How long it takes.
    pub timing: NandTiming,
    /// False: every operation takes no time.
    pub is_timed: bool,
    /// How it wears.
    pub wear: Wear,
    /// True: bits flip, programs and erases fail and blocks are bad from the start, as `wear` says.
    pub wears: bool,
    /// What is corrected.
    pub ecc: EccSpec,
    /// True: the media hand out flipped bits and leave correction to software. False: they correct as `ecc` says, by
    /// count, and report what they cannot correct.
    pub is_raw: bool,
    /// Probability that a program fails, whatever the wear.
    pub program_failure: f64,
    /// Probability that a page read comes back with a bit flipped, unnoticed by the media.
    pub bit_flip: f64,
    /// False: contents are dropped, and a read leaves its buffer as it was handed in. For timing experiments on media that
    /// no memory holds.
    pub keeps_data: bool,
    /// Seed of the faults.
    pub seed: u64,
    /// Keeps the data in this sparse file instead of memory.
    pub path: Option<PathBuf>,
}

/// Why a device specification could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("device '{input}': {reason}")]
pub struct ParseSpecError {
    input: String,
    reason: String,
}

const OPTIONS: &str = "channels, dies, planes, stripe, blocks, pages, page, oob, size, read_us, program_us, \
                       erase_us, bus, link_read, link_write, request_us, timing, wear, rated, ecc, data, \
                       program_failure, bit_flip, seed, path";

fn number<T: FromStr>(option: &str, value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("{option}={value} is not a number that fits"))
}

/// A time, rate or probability.
fn quantity(option: &str, value: &str) -> Result<f64, String> {
    let found: f64 = number(option, value)?;
    if found.is_finite() && found >= 0.0 {
        Ok(found)
    } else {
        Err(format!("{option}={value} must be 0 or more"))
    }
}

fn either(option: &str, value: &str, yes: &str, no: &str) -> Result<bool, String> {
    match value {
        _ if value == yes => Ok(true),
        _ if value == no => Ok(false),
        _ => Err(format!("{option} is {yes} or {no}")),
    }
}

impl EmulatedSpec {
    fn set(&mut self, option: &str, value: &str) -> Result<(), String> {
        let size = |value: &str| parse_size(value).map_err(|error| error.to_string());
        let small =
            |value: &str| u32::try_from(size(value)?).map_err(|_| format!("{option}={value} is too large"));
        let geometry = &mut self.geometry;
        match option {
            "channels" => geometry.channels = number(option, value)?,
            "dies" => geometry.dies_per_channel = number(option, value)?,
            "planes" => geometry.planes_per_die = number(option, value)?,
            "stripe" => geometry.dies_per_block = number(option, value)?,
            "blocks" => geometry.blocks_per_channel = number(option, value)?,
            "pages" => geometry.pages_per_block = number(option, value)?,
            "page" => {
                geometry.page_bytes = small(value)?;
                geometry.read_bytes = geometry.page_bytes.min(4096);
            }
            "oob" => geometry.oob_bytes = small(value)?,
            "size" => {
                let pages = u64::from(geometry.pages_per_block) * u64::from(geometry.page_bytes);
                let row = pages * u64::from(geometry.channels);
                geometry.blocks_per_channel = u32::try_from(size(value)? / row.max(1))
                    .map_err(|_| format!("{option}={value} is too large"))?;
            }
            "read_us" => self.timing.read_us = quantity(option, value)?,
            "program_us" => self.timing.program_us = quantity(option, value)?,
            "erase_us" => self.timing.erase_us = quantity(option, value)?,
            "bus" => self.timing.bus_mb_per_s = quantity(option, value)?,
            "link_read" => self.timing.link_read_mb_per_s = quantity(option, value)?,
            "link_write" => self.timing.link_write_mb_per_s = quantity(option, value)?,
            "request_us" => self.timing.request_us = quantity(option, value)?,
            "timing" => self.is_timed = either(option, value, "on", "off")?,
            "wear" => self.wears = either(option, value, "on", "off")?,
            "rated" => self.wear.rated_erases = quantity(option, value)?.max(1.0),
            "ecc" => self.is_raw = either(option, value, "off", "on")?,
            "data" => self.keeps_data = either(option, value, "keep", "drop")?,
            "program_failure" => self.program_failure = quantity(option, value)?,
            "bit_flip" => self.bit_flip = quantity(option, value)?,
            "seed" => self.seed = number(option, value)?,
            "path" => self.path = Some(PathBuf::from(value)),
            _ => return Err(format!("there is no option '{option}'; options are {OPTIONS}")),
        }
        Ok(())
    }
}

impl FromStr for DeviceSpec {
    type Err = ParseSpecError;

    fn from_str(input: &str) -> Result<Self, ParseSpecError> {
        let fail = |reason: String| ParseSpecError { input: input.into(), reason };
        let Some(rest) = input.strip_prefix("emu:") else {
            if input.is_empty() {
                return Err(fail("a path or emu:PRESET is needed".into()));
            }
            return Ok(Self::Path(input.into()));
        };
        let mut parts = rest.split(',');
        let name = parts.next().unwrap_or_default();
        let mut spec = EmulatedSpec::preset(name)
            .ok_or_else(|| fail(format!("there is no preset '{name}'; presets are {PRESETS}")))?;
        for part in parts {
            let (option, value) =
                part.split_once('=').ok_or_else(|| fail(format!("'{part}' is not option=value")))?;
            spec.set(option, value).map_err(fail)?;
        }
        spec.geometry.check().map_err(|error| fail(error.to_string()))?;
        Ok(Self::Emulated(Box::new(spec)))
    }
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let spec = match self {
            Self::Path(path) => return write!(f, "{}", path.display()),
            Self::Emulated(spec) => spec,
        };
        write!(f, "emu:{}", spec.preset)?;
        let Some(base) = EmulatedSpec::preset(&spec.preset) else { return Ok(()) };
        let (shape, was) = (spec.geometry, base.geometry);
        if shape.page_bytes != was.page_bytes {
            write!(f, ",page={}", format_size(u64::from(shape.page_bytes)))?;
        }
        for (option, value, was) in [
            ("channels", u32::from(shape.channels), u32::from(was.channels)),
            ("dies", u32::from(shape.dies_per_channel), u32::from(was.dies_per_channel)),
            ("planes", u32::from(shape.planes_per_die), u32::from(was.planes_per_die)),
            ("stripe", u32::from(shape.dies_per_block), u32::from(was.dies_per_block)),
            ("pages", shape.pages_per_block, was.pages_per_block),
            ("blocks", shape.blocks_per_channel, was.blocks_per_channel),
            ("oob", shape.oob_bytes, was.oob_bytes),
        ] {
            if value != was {
                write!(f, ",{option}={value}")?;
            }
        }
        let (timing, usual) = (&spec.timing, &base.timing);
        for (option, value, was) in [
            ("read_us", timing.read_us, usual.read_us),
            ("program_us", timing.program_us, usual.program_us),
            ("erase_us", timing.erase_us, usual.erase_us),
            ("bus", timing.bus_mb_per_s, usual.bus_mb_per_s),
            ("link_read", timing.link_read_mb_per_s, usual.link_read_mb_per_s),
            ("link_write", timing.link_write_mb_per_s, usual.link_write_mb_per_s),
            ("request_us", timing.request_us, usual.request_us),
            ("rated", spec.wear.rated_erases, base.wear.rated_erases),
            ("program_failure", spec.program_failure, base.program_failure),
            ("bit_flip", spec.bit_flip, base.bit_flip),
        ] {
            if value != was {
                write!(f, ",{option}={value}")?;
            }
        }
        for (option, value, was, yes, no) in [
            ("timing", spec.is_timed, base.is_timed, "on", "off"),
            ("wear", spec.wears, base.wears, "on", "off"),
            ("ecc", spec.is_raw, base.is_raw, "off", "on"),
            ("data", spec.keeps_data, base.keeps_data, "keep", "drop"),
        ] {
            if value != was {
                write!(f, ",{option}={}", if value { yes } else { no })?;
            }
        }
        if spec.seed != base.seed {
            write!(f, ",seed={}", spec.seed)?;
        }
        if let Some(path) = &spec.path {
            write!(f, ",path={}", path.display())?;
        }
        Ok(())
    }
}
