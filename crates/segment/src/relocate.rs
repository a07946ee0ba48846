//! Program failures in the commit stream: what did not reach flash is written again in another segment.

use std::sync::Arc;

use crate::commit::Sealed;
use crate::inner::Inner;

pub(crate) fn relocate(_inner: &Arc<Inner>, frame: Sealed) -> Result<Sealed, String> {
    Err(format!("program failed at {}", frame.start))
}
