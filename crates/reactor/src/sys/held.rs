//! Which reads wait for others, to be handed to the kernel together.

/// Most reads that wait. From there on a call costs each of them little.
const HELD_MAX: u32 = 16;

/// Counts reads of files. A call for each costs more than what the kernel then does for the read: the system call, and a
/// notification of the device, which a virtual machine leaves for. But a device with little to do must not wait for
/// the end of a turn. So at most half as many reads wait as the device has.
#[derive(Debug, Default)]
pub(crate) struct HeldReads {
    /// The kernel's.
    under_way: u32,
    /// Queued, and not yet the kernel's.
    held: u32,
}

impl HeldReads {
    /// A read was queued. Whether all that is queued is to be handed over now.
    pub(crate) fn queued(&mut self) -> bool {
        self.held += 1;
        self.held >= HELD_MAX.min(self.under_way / 2)
    }

    /// All that was queued is the kernel's.
    pub(crate) fn handed_over(&mut self) {
        self.under_way += std::mem::take(&mut self.held);
    }

    /// One read completed.
    pub(crate) fn completed(&mut self) {
        self.under_way -= 1;
    }
}
