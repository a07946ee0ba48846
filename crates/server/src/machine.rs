//! How much memory there is for this process, and in which pages: the machine's, or less where a control group (a container, a unit with
//! `MemoryMax=`) allows less.
//!
//! The kernel ends a process that takes more than its group may, and MemTotal tells nothing of that. Groups are
//! nested and each may have a limit, so the least of them counts, from the process's own up to the root of what is
//! mounted. Under version 2 all of them are one tree; under version 1 memory has a tree of its own. Everything is read
//! below a root folder, which tests make up.

use std::fs;
use std::path::{Component, Path, PathBuf};

/// Bytes of memory that this process may take; `None` where the kernel does not say. `root` is `/`.
pub fn memory_bytes(root: &Path) -> Option<u64> {
    let of_groups = groups(root).into_iter().filter_map(|limit| read_number(&limit));
    of_groups.chain(total_bytes(root)).min()
}

/// What a huge page holds that the kernel gives to whoever did not ask: 2 MiB where pages have 4 KiB, 32 where they have 16, 512
/// where they have 64. `None` where it knows none.
pub fn huge_page_bytes(root: &Path) -> Option<u64> {
    read_number(&root.join("sys/kernel/mm/transparent_hugepage/hpage_pmd_size"))
}

/// The machine's memory.
fn total_bytes(root: &Path) -> Option<u64> {
    let text = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok()?.checked_mul(1024)
}

/// The files that hold the limits of this process's groups and of those around them.
fn groups(root: &Path) -> Vec<PathBuf> {
    let mounted = root.join("sys/fs/cgroup");
    let mut files = Vec::new();
    for line in fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default().lines() {
        // hierarchy:controllers:path; version 2 is hierarchy 0 and names no controllers.
        let mut fields = line.splitn(3, ':');
        let (Some(hierarchy), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let (top, name) = if hierarchy == "0" && controllers.is_empty() {
            (mounted.clone(), "memory.max")
        } else if controllers.split(',').any(|controller| controller == "memory") {
            (mounted.join("memory"), "memory.limit_in_bytes")
        } else {
            continue;
        };
        files.extend(upwards(&top, Path::new(path)).into_iter().map(|group| group.join(name)));
    }
    files
}

/// `path` below `top`, and each folder on the way up to `top`. In a container the path may be the host's, of which only
/// the end of the way is mounted: what is not there is passed over by whoever reads.
fn upwards(top: &Path, path: &Path) -> Vec<PathBuf> {
    let inside: PathBuf = path.components().filter(|part| matches!(part, Component::Normal(_))).collect();
    // A group outside of what this process is shown (`/../other`): all that is known is the top.
    if path.components().any(|part| part == Component::ParentDir) {
        return vec![top.to_path_buf()];
    }
    inside.ancestors().map(|group| top.join(group)).collect()
}

/// A limit; `None` for `max` and for what is not there. Version 1 says "none" by a number above any machine's memory.
fn read_number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}
