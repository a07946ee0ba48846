//! Row caches make way for what the process takes beyond what was planned.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use pumice_flash::{Device, DeviceSpec};
use pumice_kv::{SliceId, Store, StoreFormat};
use pumice_node::{Node, NodeBatch, NodeOptions, Place, keep_within};
use pumice_reactor::sim::{HostOptions, World};
use pumice_reactor::{sleep, spawn};

const LIMIT: u64 = 128 << 20;
/// Close to the limit: what is more is withheld. Below the other, it is given back.
const CLOSE: u64 = 116 << 20;
const ROOM: u64 = 110 << 20;
const KEYS: u32 = 6_000;
const VALUE_BYTES: usize = 4_000;

async fn two_drives() -> Vec<(String, Device)> {
    let mut devices = Vec::new();
    for name in ["/0", "/1"] {
        let spec: DeviceSpec = name.parse().expect("a path");
        let device = Device::create(&spec, 256 << 20).await.expect("a device");
        let format = StoreFormat { drive_id: [name.as_bytes()[1]; 16], ..StoreFormat::default() };
        Store::format(&device, &format).await.expect("formatted");
        devices.push((name.to_string(), device));
    }
    devices
}

fn place(n: u32) -> Place {
    Place { drive: (n % 2) as u16, slice: SliceId(3) }
}

/// Reads all keys and answers how many bytes of rows there are then, and how many are withheld.
async fn rows(node: &Node) -> (u64, u64) {
    for n in 0..KEYS {
        let entry = node.get(place(n), &n.to_be_bytes()).await.expect("read").expect("there");
        assert_eq!(entry.value[..], [n as u8; VALUE_BYTES]);
    }
    let drives = node.stats().drives;
    (drives.iter().map(|drive| drive.row_bytes).sum(), drives.iter().map(|drive| drive.withheld_bytes).sum())
}

#[test]
fn rows_give_way_near_the_limit_and_come_back_little_by_little() {
    let world = World::new(11);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    let test = async move {
        let options = NodeOptions { memory_bytes: LIMIT, ..NodeOptions::default() };
        let node = Node::open(two_drives().await, &options, &|_, _| {}).await.expect("opened");
        node.start_background();
        let mut batch = NodeBatch::new();
        for n in 0..KEYS {
            batch.clear();
            batch.put(place(n), &n.to_be_bytes(), 0, 0, &[n as u8; VALUE_BYTES]);
            node.write_ready(&batch).await.expect("written");
        }
        node.sync().await.expect("durable");
        let (all, withheld) = rows(&node).await;
        assert!(all > 12 << 20 && withheld == 0, "{all} B of rows, {withheld} withheld");

        let resident = Rc::new(Cell::new(CLOSE));
        let seen = resident.clone();
        drop(spawn(keep_within(node.clone(), LIMIT, move || seen.get())));
        sleep(Duration::from_secs(5)).await;
        let (_, withheld) = rows(&node).await;
        assert_eq!(withheld, 0, "the margin is there");

        // What goes over the margin is withheld, more and more for as long as that does not help.
        resident.set(CLOSE + (2 << 20));
        sleep(Duration::from_secs(2)).await;
        let (some, withheld) = rows(&node).await;
        assert!(withheld > 30 << 20, "{withheld} B withheld");
        assert!(some < all, "{some} B of rows, {all} before");
        // It stays as it is until there is room.
        resident.set(CLOSE - 1);
        sleep(Duration::from_secs(5)).await;
        assert_eq!(rows(&node).await.1, withheld);

        // Where it does not fall rows have nothing, and what is withheld is bounded.
        resident.set(2 * LIMIT);
        sleep(Duration::from_secs(5)).await;
        let (none, withheld) = rows(&node).await;
        assert_eq!(none, 0);
        assert!(withheld < LIMIT, "{withheld} B withheld");

        // An eighth of a MiB each tenth of a second.
        resident.set(ROOM - 1);
        sleep(Duration::from_secs(4)).await;
        let (_, left) = rows(&node).await;
        assert!(
            left < withheld - (4 << 20) && left > withheld - (7 << 20),
            "{left} B withheld of {withheld}"
        );
        sleep(Duration::from_secs(120)).await;
        let (again, left) = rows(&node).await;
        assert!(again > all - all / 16 && left == 0, "{again} B of rows, {all} before, {left} withheld");
        node.close().await.expect("closed");
    };
    world.block_on(host, test).unwrap_or_else(|halt| panic!("{halt}"));
}
