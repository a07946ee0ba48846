//! How large values are cut.

mod common;

use bytes::Bytes;
use common::*;
use pumice_flash::{Device, DeviceSpec};
use pumice_kv::{SliceId, Store, StoreFormat};

/// One read brings what one piece holds: a value of a round length must not end in a crumb of its own.
#[test]
fn a_value_of_one_mebibyte_is_one_piece() {
    pumice_reactor::block_on(async {
        let dir = tempfile::tempdir().expect("dir");
        let spec = DeviceSpec::Path(dir.path().join("drive"));
        let device = Device::create(&spec, 512 << 20).await.expect("device");
        let segments = StoreFormat { segment_bytes: 8 << 20, ..format() };
        Store::format(&device, &segments).await.expect("format");
        let store = open_with(&device, options()).await.store;
        let pieces = async |value: &Bytes| {
            let mut writer = store.large_writer(SliceId(0), b"key");
            // As it comes from a client.
            for start in (0..value.len()).step_by(60_000) {
                writer.push(value.slice(start..(start + 60_000).min(value.len()))).await.expect("push");
            }
            let list = writer.finish().await.expect("written");
            let mut reader = store.read_large(&list, 0..list.len());
            let mut read = Vec::new();
            while let Some(piece) = reader.next().await.expect("read") {
                read.extend_from_slice(&piece);
            }
            assert!(read == *value, "{} B came back as others", value.len());
            list.piece_count()
        };
        let value = Bytes::from((0..33 << 20).map(|i: u32| (i >> 7) as u8).collect::<Vec<_>>());
        assert_eq!(pieces(&value.slice(..1 << 20)).await, 1);
        assert_eq!(pieces(&value.slice(..300_000)).await, 1);
        assert_eq!(pieces(&value.slice(..2 << 20)).await, 2);
        let count = pieces(&value.slice(..32 << 20)).await;
        assert!((32..=37).contains(&count), "{count} pieces of 32 MiB");
        store.close().await.expect("close");
    });
}
