//! A lock ends with its last owner, whoever else holds the file.
#![allow(unsafe_code)]

use pumice_reactor::{File, OpenOptions, block_on};
use std::fs;
use std::io::ErrorKind;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// What a process that is forked holds until it runs its own program: another descriptor of the same open file.
fn forked(path: &std::path::Path) -> OwnedFd {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc/self/fd").expect("the process's own descriptors").flatten() {
        if fs::read_link(entry.path()).is_ok_and(|target| target == path) {
            found.push(entry.file_name().to_string_lossy().parse::<RawFd>().expect("a number"));
        }
    }
    assert_eq!(found.len(), 1, "descriptors of {}", path.display());
    // SAFETY: the descriptor is open, and what is made of it is owned by nobody else.
    let fd = unsafe { libc::dup(found[0]) };
    assert!(fd >= 0);
    // SAFETY: as above.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

#[test]
fn a_lock_is_free_once_its_owner_is_gone_though_a_forked_process_still_holds_the_file() {
    block_on(async {
        let dir = tempfile::tempdir().expect("a directory");
        let path = fs::canonicalize(dir.path()).expect("there").join("file");
        let options = OpenOptions { create: true, exclusive_lock: true, ..OpenOptions::default() };
        let file = File::open(&path, &options).await.expect("opens");
        let _held = forked(&path);
        assert_eq!(File::open(&path, &options).await.expect_err("locked").kind(), ErrorKind::WouldBlock);
        drop(file);
        File::open(&path, &options).await.expect("the owner is gone");
    });
}
