//! Many prefixes retired at once.

use std::cell::Cell;
use std::rc::Rc;

use crate::common::*;
use pumice_flash::{Device, DeviceSpec};
use pumice_kv::{Batch, SliceId, Store, StoreOptions};
use pumice_reactor::sim::{HostOptions, World};
use pumice_reactor::spawn;

/// What is retired is noted in the metadata log until merges have dropped it. Retired faster than that it filled the log, and the
/// drive took no writes any more.
#[test]
fn prefixes_retired_by_the_thousand_do_not_fill_the_metadata_log() {
    const PREFIXES: u32 = 40_000;
    let world = World::new(3);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    let test = async {
        let spec: DeviceSpec = "/drive".parse().expect("spec");
        let device = Device::create(&spec, 64 << 20).await.expect("file");
        Store::format(&device, &format()).await.expect("format");
        let options = StoreOptions { memtable_bytes: Some(2 << 20), ..StoreOptions::default() };
        let store = open_with(&device, options.clone()).await.store;
        let prefix = |n: u32| [b"collection".as_slice(), &n.to_be_bytes()].concat();
        let mut batch = Batch::new();
        for n in 0..PREFIXES {
            batch.clear();
            for element in [b"a", b"b"] {
                batch.put(SliceId((n % 3) as u16), &[&prefix(n)[..], element].concat(), 0, 0, b"value");
            }
            write(&store, &batch).await;
        }
        store.checkpoint().await.expect("checkpoint");
        let many = Rc::new(Cell::new(false));
        // As fast as a hundred clients can.
        let clients: Vec<_> = (0..100)
            .map(|client| {
                let (store, many) = (store.clone(), many.clone());
                spawn(async move {
                    for n in (client..PREFIXES).step_by(100) {
                        let mut batch = Batch::new();
                        batch.retire(SliceId((n % 3) as u16), &prefix(n));
                        store.write_ready(&batch).await.expect("retired");
                        many.set(many.get() || store.retires_many());
                    }
                })
            })
            .collect();
        for client in clients {
            client.await.expect("not aborted");
        }
        assert!(many.get(), "there never were many");
        put(&store, 0, b"still", b"writable").await;
        store.close().await.expect("close");
        let store = open_with(&device, options).await.store;
        for n in 0..PREFIXES {
            let (slice, key) = ((n % 3) as u16, [&prefix(n)[..], b"a"].concat());
            // What is not dropped yet is known to be retired.
            assert!(
                store.is_retired(SliceId(slice), &key) || get(&store, slice, &key).await.is_none(),
                "{n}"
            );
        }
        assert_eq!(get(&store, 0, b"still").await.expect("there").2, b"writable");
        let report = store.check(&no_progress).await.expect("check");
        assert!(report.is_clean(), "{report:?}");
    };
    world.block_on(host, test).unwrap_or_else(|halt| panic!("{halt}"));
}
