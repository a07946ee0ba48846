//! How long a store takes to open: after a clean close, and after a crash with as much log as it may hold.
//!
//! `cargo run --release -p pumice-kv --example opening -- FILE VALUE_BYTES DATA_MIB [MEMORY_MIB] [FILL_PERCENT]`
//!
//! The drive is opened with direct I/O, so that the page cache has no part in it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use pumice_base::rng::Rng;
use pumice_flash::{Access, Device, DeviceSpec};
use pumice_kv::{Batch, Opened, SliceId, Store, StoreFormat, StoreOptions, WriteError};
use pumice_reactor::{now, sleep};

fn main() {
    let file = std::env::args().nth(1).map(PathBuf::from).expect("FILE VALUE_BYTES DATA_MIB ...");
    let mut rest = std::env::args().skip(2).map(|word| word.parse::<u64>().expect("a number"));
    let value_bytes = rest.next().unwrap_or(8192) as usize;
    let data_bytes = rest.next().unwrap_or(1024) << 20;
    let memory_bytes = rest.next().unwrap_or(64) << 20;
    let drive_bytes = data_bytes * 100 / rest.next().unwrap_or(70);
    let options = StoreOptions { memory_bytes, ..StoreOptions::default() };
    pumice_reactor::block_on(async {
        let _ = std::fs::remove_file(&file);
        let device = Device::create(&DeviceSpec::Path(file.clone()), drive_bytes).await.expect("device");
        let format = StoreFormat { drive_id: *b"opening-example1", ..StoreFormat::default() };
        Store::format(&device, &format).await.expect("format");
        drop(device);
        let keys = data_bytes / (value_bytes as u64 + 60);
        let store = open(&file, &options, "empty").await;
        write(&store, keys, value_bytes, None).await;
        store.close().await.expect("close");
        drop(store);
        for _ in 0..3 {
            let store = open(&file, &options, "closed").await;
            store.close().await.expect("close");
        }
        let store = open(&file, &options, "closed").await;
        write(&store, keys, value_bytes, Some(options.log_max_bytes)).await;
        store.abandon().await;
        drop(store);
        // Reads that background work left under way let go of the drive in their own time.
        sleep(Duration::from_millis(500)).await;
        open(&file, &options, "crashed").await.abandon().await;
    });
}

async fn open(file: &Path, options: &StoreOptions, how: &str) -> Store {
    let device = Device::open(&DeviceSpec::Path(file.to_owned()), Access::ReadWrite).await.expect("device");
    let started = now();
    let Opened { store, clean, replayed, damage, .. } =
        Store::open(device, options.clone(), &|_, _| {}).await.expect("open");
    let took = started.elapsed();
    assert!(damage.is_empty(), "{damage:?}");
    let tables = store.stats().tables;
    println!(
        "{how:8} opened in {:8.2} ms, clean {clean}, {replayed} records replayed, {tables} tables",
        took.as_secs_f64() * 1e3
    );
    store
}

/// Writes every key once in order, or `log_bytes` of random keys.
async fn write(store: &Store, keys: u64, value_bytes: usize, log_bytes: Option<u64>) {
    store.start_background();
    let mut rng = Rng::from_seed(1);
    let mut value = vec![0; value_bytes];
    rng.fill(&mut value);
    let count = log_bytes.map_or(keys, |bytes| bytes / (value_bytes as u64 + 60));
    let mut batch = Batch::new();
    for n in 0..count {
        let n = if log_bytes.is_some() { rng.below(keys) } else { n };
        batch.clear();
        batch.put(SliceId((n % 4) as u16), format!("key:{n:012}").as_bytes(), 0, 0, &value);
        loop {
            match store.write_ready(&batch).await {
                Ok(_) => break,
                Err(WriteError::Full(_)) => sleep(Duration::from_millis(20)).await,
                Err(error) => panic!("{error}"),
            }
        }
    }
}
