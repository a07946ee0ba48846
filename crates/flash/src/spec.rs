//! How people name devices: `PATH`, or `emu:PRESET[,option=value…]`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use pumice_base::size::{format_size, parse_size};

use crate::Geometry;

/// A device as `--device` takes it.
#[derive(Clone, Debug, PartialEq)]
pub enum DeviceSpec {
    /// A file or block device.
    Path(PathBuf),
    /// Emulated NAND.
    Emulated(EmulatedSpec),
}

/// An emulated device: its shape, its timing and its faults.
#[derive(Clone, Debug, PartialEq)]
pub struct EmulatedSpec {
    /// The preset that the other fields started from.
    pub preset: String,
    /// The shape.
    pub geometry: Geometry,
    /// Time to read a page into the die's register, in µs.
    pub read_us: f64,
    /// Time to program a page, in µs.
    pub program_us: f64,
    /// Time to erase a block, in µs.
    pub erase_us: f64,
    /// Pages that program at once (planes × dies of a channel).
    pub parallel_pages: u32,
    /// Each channel's bus, in bytes per µs (= MB/s).
    pub bus_bytes_per_us: f64,
    /// False: every operation takes no time.
    pub timing: bool,
    /// Probability that a program fails.
    pub program_failure: f64,
    /// Probability that a page read comes back with a bit flipped, unnoticed by the media.
    pub bit_flip: f64,
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

const PRESETS: &str = "tiny, small, tlc, sdf";
const OPTIONS: &str = "channels, blocks, pages, page, size, read_us, program_us, erase_us, parallel, bus, \
                       timing, program_failure, bit_flip, seed, path";

impl EmulatedSpec {
    /// The preset of this name.
    pub fn preset(name: &str) -> Option<Self> {
        let shape = |channels, blocks_per_channel, pages_per_block, page_bytes, oob_bytes| Geometry {
            channels,
            blocks_per_channel,
            pages_per_block,
            page_bytes,
            read_bytes: page_bytes.min(4096),
            oob_bytes,
        };
        // (geometry, tR, tPROG, tERASE, pages at once, bus MB/s, timed)
        let (geometry, read_us, program_us, erase_us, parallel_pages, bus_bytes_per_us, timing) = match name {
            // For tests: blocks so small that everything wraps early.
            "tiny" => (shape(2, 32, 32, 4096, 0), 0.0, 0.0, 0.0, 1, 1000.0, false),
            "small" => (shape(4, 64, 256, 4096, 0), 0.0, 0.0, 0.0, 1, 1000.0, false),
            // A present-day TLC drive in round numbers: 8 channels, 4 planes × 4 dies each.
            "tlc" => (shape(8, 64, 2048, 4096, 0), 60.0, 600.0, 3500.0, 64, 1200.0, true),
            // SDF (parts.md 5): 44 channels of 8 MiB blocks, 8 KiB pages, two planes × two chips at once.
            "sdf" => (shape(44, 2000, 1024, 8192, 448), 75.0, 1000.0, 9200.0, 4, 40.0, true),
            _ => return None,
        };
        Some(Self {
            preset: name.into(),
            geometry,
            read_us,
            program_us,
            erase_us,
            parallel_pages,
            bus_bytes_per_us,
            timing,
            program_failure: 0.0,
            bit_flip: 0.0,
            seed: 1,
            path: None,
        })
    }

    fn set(&mut self, option: &str, value: &str) -> Result<(), String> {
        fn number<T: FromStr>(option: &str, value: &str) -> Result<T, String> {
            value.parse().map_err(|_| format!("{option}={value} is not a number that fits"))
        }
        let size = |value: &str| parse_size(value).map_err(|error| error.to_string());
        match option {
            "channels" => self.geometry.channels = number(option, value)?,
            "blocks" => self.geometry.blocks_per_channel = number(option, value)?,
            "pages" => self.geometry.pages_per_block = number(option, value)?,
            "page" => {
                self.geometry.page_bytes =
                    u32::try_from(size(value)?).map_err(|_| format!("{option}={value} is too large"))?;
                self.geometry.read_bytes = self.geometry.page_bytes.min(4096);
            }
            "size" => {
                let row = u64::from(self.geometry.block_bytes()) * u64::from(self.geometry.channels);
                self.geometry.blocks_per_channel = u32::try_from(size(value)? / row.max(1))
                    .map_err(|_| format!("{option}={value} is too large"))?;
            }
            "read_us" => self.read_us = number(option, value)?,
            "program_us" => self.program_us = number(option, value)?,
            "erase_us" => self.erase_us = number(option, value)?,
            "parallel" => self.parallel_pages = number::<u32>(option, value)?.max(1),
            "bus" => self.bus_bytes_per_us = number(option, value)?,
            "timing" => {
                self.timing = match value {
                    "on" => true,
                    "off" => false,
                    _ => return Err("timing is on or off".into()),
                }
            }
            "program_failure" => self.program_failure = number(option, value)?,
            "bit_flip" => self.bit_flip = number(option, value)?,
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
        Ok(Self::Emulated(spec))
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
        if shape.channels != was.channels {
            write!(f, ",channels={}", shape.channels)?;
        }
        if shape.page_bytes != was.page_bytes {
            write!(f, ",page={}", format_size(u64::from(shape.page_bytes)))?;
        }
        if shape.pages_per_block != was.pages_per_block {
            write!(f, ",pages={}", shape.pages_per_block)?;
        }
        if shape.blocks_per_channel != was.blocks_per_channel {
            write!(f, ",blocks={}", shape.blocks_per_channel)?;
        }
        for (option, value, was) in [
            ("read_us", spec.read_us, base.read_us),
            ("program_us", spec.program_us, base.program_us),
            ("erase_us", spec.erase_us, base.erase_us),
            ("parallel", f64::from(spec.parallel_pages), f64::from(base.parallel_pages)),
            ("bus", spec.bus_bytes_per_us, base.bus_bytes_per_us),
            ("program_failure", spec.program_failure, base.program_failure),
            ("bit_flip", spec.bit_flip, base.bit_flip),
        ] {
            if value != was {
                write!(f, ",{option}={value}")?;
            }
        }
        if spec.timing != base.timing {
            write!(f, ",timing={}", if spec.timing { "on" } else { "off" })?;
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
