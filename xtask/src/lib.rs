//! House rules as tests: see `tests/`. This library only finds the repository's files for them.

use std::fs;
use std::path::{Path, PathBuf};

/// The repository's root.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("xtask lies in the repository's root").to_path_buf()
}

/// Every file below `dir` (relative to the root) for which `keep` holds, sorted. Skips build output, data and
/// version control.
pub fn files(dir: &str, keep: impl Fn(&Path) -> bool) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![root().join(dir)];
    while let Some(dir) = open.pop() {
        let Ok(entries) = fs::read_dir(&dir) else { continue };
        for entry in entries.flatten() {
            let path = entry.path();
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let skip = ["target", ".git", "pumice-data", "node_modules", ".test-tools"];
            if path.is_dir() && !path.is_symlink() {
                if !skip.contains(&name.as_ref()) {
                    open.push(path);
                }
            } else if keep(&path) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// `path` as the repository names it.
pub fn shown(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

/// True for Rust source.
pub fn is_rust(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "rs")
}
