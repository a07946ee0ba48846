//! Keeps a process within its memory where what was planned is not what it takes.
//!
//! Each part has its share of the memory ([`pumice_kv::memory_of_process`]), but what an allocator rounds up, and pages of which a part
//! was freed, are nobody's. So now and then somebody looks at what is resident, and while that is close to the limit the row caches
//! have as much less: they can give memory back at once, and what it costs is reads of flash. What was withheld comes back little by
//! little once there is room, so that no cache is emptied and filled again in turns.

use std::time::Duration;

use pumice_reactor::sleep;

use crate::node::Node;

const EVERY: Duration = Duration::from_secs(1);
/// Where three quarters of the memory are taken, or something is withheld.
const EVERY_WHEN_CLOSE: Duration = Duration::from_millis(100);
/// Rows give way within so much of the limit: merging takes some 8 MiB more for milliseconds, again and again.
const MARGIN_BYTES: u64 = 12 << 20;
/// At least this part of the limit, and at most twice as much.
const MARGIN_PART: u64 = 16;
/// They have this part of the limit back at a time, once half as much again as the margin is free.
const BACK_PART: u64 = 1024;

/// Has the row caches of `node` give way whenever `resident`, which says how many bytes the process has in memory, comes close to
/// `limit`. Never ends.
pub async fn keep_within(node: Node, limit: u64, resident: impl Fn() -> u64) {
    let mut withheld = 0;
    loop {
        let resident = resident();
        let wanted = to_withhold(limit, resident, withheld);
        if wanted != withheld {
            withheld = node.withhold_from_rows(wanted);
        }
        let is_close = withheld > 0 || resident > limit / 4 * 3;
        sleep(if is_close { EVERY_WHEN_CLOSE } else { EVERY }).await;
    }
}

/// Bytes that row caches are to do without, where so many are resident, and so many withheld so far.
fn to_withhold(limit: u64, resident: u64, withheld: u64) -> u64 {
    let margin = MARGIN_BYTES.clamp(limit / MARGIN_PART, 2 * limit / MARGIN_PART);
    let excess = resident.saturating_sub(limit - margin);
    if excess > 0 {
        withheld + excess
    } else if resident < limit - margin - margin / 2 {
        withheld.saturating_sub(limit / BACK_PART)
    } else {
        withheld
    }
}
