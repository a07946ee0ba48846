//! How much memory the default budget is taken from, over made-up `/proc` and `/sys` trees.

#[path = "../../src/machine.rs"]
mod of_server;

use std::path::Path;

use of_server::{huge_page_bytes, memory_bytes};

use crate::common::{Server, pumice};

const MIB: u64 = 1 << 20;
/// What version 1 says where there is no limit.
const NONE_V1: &str = "9223372036854771712\n";

/// A root folder with these files, on a machine of 8,192 MiB.
#[track_caller]
fn check(files: &[(&str, &str)], mib: u64) {
    let root = tempfile::tempdir().unwrap();
    let machine = ("proc/meminfo", "MemFree:  5 kB\nMemTotal:        8388608 kB\n");
    for (path, text) in files.iter().chain([&machine]) {
        let path = root.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    assert_eq!(memory_bytes(root.path()), Some(mib * MIB), "{files:?}");
}

#[test]
fn the_least_limit_of_machine_and_control_groups_is_what_there_is() {
    assert_eq!(memory_bytes(Path::new("/nowhere")), None);
    check(&[], 8192);
    // Version 2: the process's own group, one around it, or none has a limit.
    let (own, max) = (("proc/self/cgroup", "0::/system.slice/pumice.service\n"), "max\n");
    let limits = |service, slice| {
        [
            own,
            ("sys/fs/cgroup/system.slice/pumice.service/memory.max", service),
            ("sys/fs/cgroup/system.slice/memory.max", slice),
        ]
    };
    check(&limits("536870912\n", max), 512);
    check(&limits(max, "1073741824\n"), 1024);
    check(&limits("2147483648\n", "1073741824\n"), 1024);
    check(&limits(max, max), 8192);
    check(&limits("1099511627776\n", max), 8192);
    check(&limits("nonsense", max), 8192);
    // In a container, whose group is the root of what it sees.
    check(&[("proc/self/cgroup", "0::/\n"), ("sys/fs/cgroup/memory.max", "268435456\n")], 256);
    // A group beside what is seen: one of the same name in here is another.
    let beside = ("proc/self/cgroup", "0::/../other\n");
    check(&[beside, ("sys/fs/cgroup/other/memory.max", "268435456\n")], 8192);
    // Version 1, with memory beside another controller; in a container the path is the host's.
    let own = ("proc/self/cgroup", "12:cpu,cpuacct:/\n7:hugetlb,memory:/docker/0a1b\n0::/docker/0a1b\n");
    check(&[own, ("sys/fs/cgroup/memory/docker/0a1b/memory.limit_in_bytes", "536870912\n")], 512);
    check(&[own, ("sys/fs/cgroup/memory/memory.limit_in_bytes", "536870912\n")], 512);
    check(&[own, ("sys/fs/cgroup/memory/memory.limit_in_bytes", NONE_V1)], 8192);
}

#[test]
fn the_budget_is_logged_and_one_beyond_the_machine_is_warned_of() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &["--memory", "96MiB"]);
    assert!(server.said().contains("memory: 96MiB of "), "{}", server.said());
    assert!(!server.said().contains("is more than"), "{}", server.said());
    server.stop();
    // Ends before it takes any: there is no such drive.
    let output = pumice()
        .args(["serve", "--memory", "1024TiB", "--device", "/nonexistent/drive", "--data"])
        .arg(dir.path())
        .output()
        .unwrap();
    let said = crate::common::stderr(&output);
    assert!(said.contains("WARN") && said.contains("1024TiB is more than this process may take"), "{said}");
}

#[test]
fn how_large_huge_pages_are_is_what_the_kernel_says() {
    let root = tempfile::tempdir().unwrap();
    assert_eq!(huge_page_bytes(root.path()), None);
    let folder = root.path().join("sys/kernel/mm/transparent_hugepage");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("hpage_pmd_size"), "33554432\n").unwrap();
    assert_eq!(huge_page_bytes(root.path()), Some(32 * MIB));
}
