//! Commands on sets.

use crate::command::Row;

/// The commands of this module.
pub static ROWS: &[Row] = &[];
