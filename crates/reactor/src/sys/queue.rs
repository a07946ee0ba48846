//! How much the queue of a block device takes.

use std::path::{Path, PathBuf};

/// Devices on top of each other that are looked through: volumes over arrays over encrypted partitions.
const LEVELS_MAX: u32 = 8;

/// How many requests the queue below a device takes at a time, as sysfs says; `None` where it says nothing of the device: that of a file
/// system that lies on several, or on none.
pub(super) fn depth(major: u32, minor: u32) -> Option<u32> {
    depth_of(&PathBuf::from(format!("/sys/dev/block/{major}:{minor}")), LEVELS_MAX)
}

fn depth_of(device: &Path, levels: u32) -> Option<u32> {
    // A partition has no queue of its own.
    let whole = if device.join("queue").exists() { device.to_path_buf() } else { device.join("..") };
    let below = std::fs::read_dir(whole.join("slaves")).into_iter().flatten().flatten();
    // Volumes and arrays pass on what they get: the least that any device below them takes.
    let below = below.filter(|_| levels > 0).filter_map(|entry| depth_of(&entry.path(), levels - 1)).min();
    below.or_else(|| std::fs::read_to_string(whole.join("queue/nr_requests")).ok()?.trim().parse().ok())
}
