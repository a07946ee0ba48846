//! Goes over the rest of a command that is not kept: its answer is an error already, and the connection goes on
//! behind it. Keeps a header line at most.

use super::parser::{BULK_BYTES_MAX, LINE_BYTES_MAX};

/// How far the command was gone over.
#[derive(Debug)]
pub struct Skim {
    /// Arguments whose end was not met.
    arguments_left: i64,
    /// Bytes of the argument under way still to come, line end included; 0: its header is next.
    bytes_left: u64,
    /// The beginning of a header.
    header: Vec<u8>,
}

/// What came of some bytes.
#[derive(Debug, PartialEq, Eq)]
pub enum Skimmed {
    /// All of them belong to the command, and more are to come.
    More,
    /// The command ends with the first so many of them.
    Done(usize),
    /// What follows is not RESP: where the command ends cannot be told.
    Broken,
}

impl Skim {
    /// The rest of a command: `arguments_left` arguments, the first of which has `len` bytes if its header was read.
    pub fn new(arguments_left: i64, len: Option<u64>) -> Self {
        Self { arguments_left, bytes_left: len.map_or(0, |len| len + 2), header: Vec::new() }
    }

    /// Goes over what came next.
    pub fn take(&mut self, bytes: &[u8]) -> Skimmed {
        let mut at = 0;
        while self.arguments_left > 0 {
            let rest = &bytes[at..];
            if rest.is_empty() {
                return Skimmed::More;
            }
            if self.bytes_left > 0 {
                let taken = usize::try_from(self.bytes_left).unwrap_or(usize::MAX).min(rest.len());
                self.bytes_left -= taken as u64;
                at += taken;
                self.arguments_left -= i64::from(self.bytes_left == 0);
                continue;
            }
            self.header.push(rest[0]);
            at += 1;
            // As in the parser, any byte after the carriage return ends the line.
            if let Some(text) = self.header[..self.header.len() - 1].strip_suffix(b"\r") {
                let len = text.strip_prefix(b"$").and_then(crate::number::parse_int);
                let len = len.and_then(|len| u64::try_from(len).ok()).filter(|&len| len <= BULK_BYTES_MAX);
                let Some(len) = len else { return Skimmed::Broken };
                self.bytes_left = len + 2;
                self.header.clear();
            } else if self.header.len() > LINE_BYTES_MAX {
                return Skimmed::Broken;
            }
        }
        Skimmed::Done(at)
    }
}
