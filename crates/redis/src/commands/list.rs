//! Commands on lists.

use crate::command::Row;

/// The commands of this module.
pub static ROWS: &[Row] = &[];
