//! Keys of `pumice bench` beside users' on one drive, as older builds left them.

use pumice_flash::{Access, Device, DeviceSpec};
use pumice_node::{Node, NodeBatch, NodeOptions};

use crate::common::{Server, check_exit, run};
use redis::Commands;

const KEY: &[u8] = b"\xFF\xFF\xFF\xFE\0user000000000001";

/// Does something with the drive's store while no server has it.
fn with_node<T>(drive: &str, work: impl AsyncFnOnce(&Node) -> T) -> T {
    let spec = DeviceSpec::Path(drive.into());
    pumice_reactor::block_on(async move {
        let device = Device::open(&spec, Access::ReadWrite).await.unwrap();
        let options = NodeOptions::default();
        let node = Node::open(vec![(drive.to_string(), device)], &options, &|_, _| {});
        let node = node.await.unwrap();
        let done = work(&node).await;
        node.close().await.unwrap();
        done
    })
}

#[test]
fn a_served_drive_drops_keys_that_bench_left_on_it() {
    let dir = tempfile::tempdir().unwrap();
    let drive = dir.path().join("drive").to_str().unwrap().to_string();
    check_exit(&run(&["format", &drive, "--size", "64MiB"]), 0, "");
    let server = Server::start(dir.path(), &["--device", &drive]);
    let _: () = server.client().set("k", "v").unwrap();
    server.stop();
    with_node(&drive, async |node| {
        let mut batch = NodeBatch::new();
        batch.put(node.place(&KEY[5..]), KEY, 0, 0, b"value");
        node.write_ready(&batch).await.unwrap();
    });
    check_exit(&run(&["bench", "r-get", "--device", &drive, "--reuse"]), 1, "not the benchmark's");
    let server = Server::start(dir.path(), &["--device", &drive]);
    assert!(server.said().contains("keys that `pumice bench` left are dropped"), "{}", server.said());
    assert_eq!(server.client().get::<_, String>("k").unwrap(), "v");
    server.stop();
    let is_dropped = with_node(&drive, async |node| {
        let place = node.place(&KEY[5..]);
        // A merge may have come by.
        node.store(place.drive).is_retired(place.slice, KEY) || node.get(place, KEY).await.unwrap().is_none()
    });
    assert!(is_dropped);
    let server = Server::start(dir.path(), &["--device", &drive]);
    assert_eq!(server.said().matches("are dropped").count(), 1, "once is enough: {}", server.said());
    server.stop();
}
