//! Links Debian's `librocksdb`: compiling RocksDB's own sources takes longer than the whole comparison.

fn main() {
    println!("cargo:rustc-link-lib=dylib=rocksdb");
    println!("cargo:rerun-if-changed=build.rs");
}
