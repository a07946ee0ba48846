//! Links Debian's `librocksdb`: compiling RocksDB's own sources takes longer than the whole comparison.

fn main() {
    if std::env::var_os("CARGO_FEATURE_ROCKSDB").is_some() {
        println!("cargo:rustc-link-lib=dylib=rocksdb");
    }
    println!("cargo:rerun-if-changed=build.rs");
}
