//! Gates: what a reply still waits for.
//!
//! A command that wrote, or that read something not yet durable, may answer only when those changes are on
//! flash: acknowledged is durable, and no reader sees what a crash could take back. A gate holds, for each
//! drive touched, the highest sequence number the reply depends on.

use pumice_kv::Seq;
use smallvec::SmallVec;

/// The sequence numbers, one per drive at most, that a reply depends on. Empty: it may go out at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gate {
    needs: SmallVec<[(u16, Seq); 1]>,
}

impl Gate {
    /// A gate that is open.
    pub fn open() -> Self {
        Self::default()
    }

    /// Makes the reply depend on `seq` of `drive` (an index into [`crate::Node::drive_count`]).
    pub fn add(&mut self, drive: u16, seq: Seq) {
        match self.needs.iter_mut().find(|(d, _)| *d == drive) {
            Some((_, held)) => *held = (*held).max(seq),
            None => self.needs.push((drive, seq)),
        }
    }

    /// Makes the reply depend on all that `other` depends on.
    pub fn merge(&mut self, other: &Gate) {
        for &(drive, seq) in &other.needs {
            self.add(drive, seq);
        }
    }

    /// The drives and sequence numbers waited for.
    pub fn needs(&self) -> &[(u16, Seq)] {
        &self.needs
    }

    /// True when nothing was ever added.
    pub fn is_empty(&self) -> bool {
        self.needs.is_empty()
    }

    pub(crate) fn retain(&mut self, mut keep: impl FnMut(u16, Seq) -> bool) {
        self.needs.retain(|&mut (drive, seq)| keep(drive, seq));
    }
}
