//! Batches over two drives: all of one is written, or nothing.

use std::future::{Future, poll_fn};
use std::path::Path;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Poll;

use pumice_flash::{Access, Device, DeviceSpec};
use pumice_kv::{Durability, Peek, SliceId, Store, StoreFormat, Turn};
use pumice_node::{MEMBER_KEY, Node, NodeBatch, NodeOptions, OpenError, Place};
use pumice_reactor::sim::{CrashFate, HostOptions, World};
use pumice_reactor::sync::Event;
use pumice_reactor::{Config, CoreId, LocalBoxFuture};

const ON: [Place; 2] = [Place { drive: 0, slice: SliceId(3) }, Place { drive: 1, slice: SliceId(3) }];

async fn two_drives(dir: &Path, drive_bytes: u64) -> Node {
    two_drives_of(dir, drive_bytes, Durability::None).await
}

async fn two_drives_of(dir: &Path, drive_bytes: u64, durability: Durability) -> Node {
    let mut devices = Vec::new();
    for name in ["0", "1"] {
        let device = Device::create(&DeviceSpec::Path(dir.join(name)), drive_bytes).await.expect("a device");
        let format = StoreFormat { drive_id: [name.as_bytes()[0]; 16], ..StoreFormat::default() };
        Store::format(&device, &format).await.expect("formatted");
        devices.push((name.to_string(), device));
    }
    let options = NodeOptions { memory_bytes: 128 << 20, durability, ..NodeOptions::default() };
    Node::open(devices, &options, &|_, _| {}).await.expect("opened")
}

/// Writes to a drive until its memory takes no more: nothing in it goes to key tables before [`Node::start_background`].
async fn make_busy(node: &Node, place: Place) {
    let mut batch = NodeBatch::new();
    for n in 0..10_000u32 {
        batch.clear();
        for m in 0..100u32 {
            batch.put(place, &[n.to_be_bytes(), m.to_be_bytes()].concat(), 0, 0, &[0; 100]);
        }
        if let Err(refused) = node.write_in(&batch, &mut Turn::default()) {
            assert!(matches!(refused.source, pumice_kv::WriteError::Busy), "{refused}");
            node.sync().await.expect("on flash");
            if node.write_in(&batch, &mut Turn::default()).is_err() {
                return;
            }
        }
    }
    panic!("all was taken");
}

/// The first byte of a key's value.
async fn value(node: &Node, place: Place, key: &[u8]) -> Option<u8> {
    node.get(place, key).await.expect("read").map(|entry| entry.value[0])
}

/// `from` on one drive becomes `to` on the other.
fn moving(from: usize, to: usize) -> NodeBatch {
    let mut batch = NodeBatch::new();
    // As by earlier commands: which drive was written to first is of no account.
    batch.delete(ON[from], b"from");
    batch.put(ON[to], b"to", 0, 0, b"1");
    batch
}

#[test]
fn what_a_drive_does_not_take_is_not_written_to_another() {
    for (from, to) in [(0, 1), (1, 0)] {
        let dir = tempfile::tempdir().expect("a directory");
        pumice_reactor::block_on(async move {
            let node = two_drives(dir.path(), 256 << 20).await;
            let mut batch = NodeBatch::new();
            batch.put(ON[from], b"from", 0, 0, b"1");
            node.write_ready(&batch).await.expect("written");
            make_busy(&node, ON[to]).await;
            let batch = moving(from, to);
            let refused = node.write_in(&batch, &mut Turn::default()).expect_err("it is busy");
            assert_eq!(usize::from(refused.drive), to);
            {
                let mut writing = pin!(node.write_ready(&batch));
                for _ in 0..3 {
                    let polled = poll_fn(|context| Poll::Ready(writing.as_mut().poll(context))).await;
                    assert!(polled.is_pending(), "it waits");
                    pumice_reactor::yield_now().await;
                }
                // Here the client is gone.
            }
            assert_eq!(value(&node, ON[from], b"from").await, Some(b'1'));
            assert_eq!(value(&node, ON[to], b"to").await, None);
            node.start_background();
            let gate = node.write_ready(&batch).await.expect("written when there is room");
            assert_eq!(gate.needs().iter().map(|(drive, _)| *drive).collect::<Vec<_>>(), [0, 1]);
            assert_eq!(value(&node, ON[from], b"from").await, None);
            assert_eq!(value(&node, ON[to], b"to").await, Some(b'1'));
            node.close().await.expect("closed");
        });
    }
}

#[test]
fn who_waits_for_room_on_several_drives_gets_on() {
    const WRITERS: u8 = 12;
    const ROUNDS: u8 = 40;
    let dir = tempfile::tempdir().expect("a directory");
    pumice_reactor::block_on(async move {
        let node = two_drives(dir.path(), 64 << 20).await;
        make_busy(&node, ON[0]).await;
        make_busy(&node, ON[1]).await;
        node.start_background();
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| pumice_reactor::spawn(write_rounds(node.clone(), writer, ROUNDS)))
            .collect();
        for writer in writers {
            writer.await.expect("it runs to its end");
        }
        for writer in 0..WRITERS {
            let drives = if writer % 3 == 2 { &ON[..1] } else { &ON[..] };
            for place in drives {
                assert_eq!(value(&node, *place, &[0xff, writer]).await, Some(ROUNDS - 1), "of {writer}");
            }
        }
        node.close().await.expect("closed");
    });
}

/// Overwrites a key on both drives, or on one as every third writer, again and again.
async fn write_rounds(node: Node, writer: u8, rounds: u8) {
    let mut turn = Turn::default();
    for round in 0..rounds {
        let mut batch = NodeBatch::new();
        let drives = if writer % 3 == 2 { &ON[..1] } else { &ON[..] };
        for place in drives {
            batch.put(*place, &[0xff, writer], 0, 0, &vec![round; 200 << 10]);
        }
        node.write_ready_in(&batch, &mut turn).await.expect("written");
    }
}

#[test]
fn who_reads_finds_a_batch_on_all_drives_or_on_none() {
    const LOOKS: u32 = 300_000;
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().to_path_buf();
    let opened = Arc::new(Event::new());
    let (shared, is_read) = (Arc::new(OnceLock::new()), Arc::new(AtomicBool::new(false)));
    let start = move |core| -> LocalBoxFuture<'static, ()> {
        let (path, opened, shared, is_read) = (path.clone(), opened.clone(), shared.clone(), is_read.clone());
        Box::pin(async move {
            if core == CoreId(0) {
                let node = two_drives(&path, 256 << 20).await;
                let mut n = 0u32;
                while !is_read.load(Ordering::Acquire) {
                    let mut batch = NodeBatch::new();
                    ON.iter().for_each(|place| batch.put(*place, b"n", 0, 0, &n.to_le_bytes()));
                    node.write_ready(&batch).await.expect("written");
                    if shared.set(node.clone()).is_ok() {
                        opened.set();
                    }
                    n += 1;
                }
                node.close().await.expect("closed");
            } else {
                opened.wait().await;
                let node: &Node = shared.get().expect("opened");
                for _ in 0..LOOKS {
                    // Whichever drive is looked at later has no older batch.
                    let found = [0, 1, 0].map(|drive| number(node, ON[drive]));
                    if !found.is_sorted() {
                        is_read.store(true, Ordering::Release);
                        panic!("{found:?}");
                    }
                }
                is_read.store(true, Ordering::Release);
            }
        })
    };
    let config = Config { cores: 2, ..Config::default() };
    let running = pumice_reactor::start(&config, Arc::new(start)).expect("cores");
    running.join().expect("no core panics");
}

/// What the newest batch that memory knows of put there.
fn number(node: &Node, place: Place) -> u32 {
    let Peek::Found(entry) = node.peek(place, b"n") else { panic!("it is in memory") };
    u32::from_le_bytes(entry.value[..].try_into().expect("four bytes"))
}

/// A drive that the engine alone wrote: nobody knows which drives it belongs with.
#[test]
fn a_drive_with_data_and_no_place_in_a_set_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    pumice_reactor::block_on(async move {
        let device =
            Device::create(&DeviceSpec::Path(dir.path().join("0")), 64 << 20).await.expect("a device");
        let format = StoreFormat { drive_id: [1; 16], ..StoreFormat::default() };
        Store::format(&device, &format).await.expect("formatted");
        let opened = Store::open(device, pumice_kv::StoreOptions::default(), &|_, _| {}).await;
        let store = opened.expect("opened").store;
        let mut batch = pumice_kv::Batch::new();
        batch.put(SliceId(0), b"key", 0, 0, b"value");
        store.write_ready(&batch).await.expect("written");
        store.close().await.expect("closed");
        drop(store);
        let spec = DeviceSpec::Path(dir.path().join("0"));
        let device = Device::open(&spec, Access::ReadWrite).await.expect("a device");
        let refused = Node::open(vec![("drive".into(), device)], &NodeOptions::default(), &|_, _| {}).await;
        let why = refused.err().expect("refused").to_string();
        assert!(why.contains("drive holds data, but not which set of drives it belongs to"), "{why}");
    });
}

/// Opens what is in these files as one set.
async fn reopened(paths: &[std::path::PathBuf], durability: Durability) -> Result<Node, OpenError> {
    let mut devices = Vec::new();
    for path in paths {
        let device =
            Device::open(&DeviceSpec::Path(path.clone()), Access::ReadWrite).await.expect("a device");
        devices.push((path.display().to_string(), device));
    }
    let options = NodeOptions { memory_bytes: 128 << 20, durability, ..NodeOptions::default() };
    Node::open(devices, &options, &|_, _| {}).await
}

/// Two copies of the member entry: either is enough, and makes the other one again.
#[test]
fn a_drive_knows_its_place_by_either_copy() {
    let dir = tempfile::tempdir().expect("a directory");
    pumice_reactor::block_on(async move {
        let paths = ["0", "1"].map(|name| dir.path().join(name));
        let node = two_drives(dir.path(), 64 << 20).await;
        let mut batch = NodeBatch::new();
        batch.put(ON[0], b"key", 0, 0, b"1");
        node.write_ready(&batch).await.expect("written");
        let last = SliceId(node.slice_count() - 1);
        node.close().await.expect("closed");
        drop(node);
        for lost in [vec![SliceId(0)], vec![last], vec![SliceId(0), last]] {
            let node = reopened(&paths, Durability::Always).await.expect("opened");
            assert_eq!(value(&node, ON[0], b"key").await, Some(b'1'));
            let mut batch = pumice_kv::Batch::new();
            for slice in [SliceId(0), last] {
                assert!(node.store(0).get(slice, MEMBER_KEY).await.expect("read").is_some(), "{slice:?}");
            }
            lost.iter().for_each(|slice| batch.delete(*slice, MEMBER_KEY));
            node.store(0).write(&batch).expect("written");
            node.close().await.expect("closed");
        }
        let refused = reopened(&paths, Durability::Always).await.err().expect("refused").to_string();
        assert!(refused.contains("holds data but does not belong to the set"), "{refused}");
    });
}

/// A bad place anywhere in a key table leaves the drives a set.
#[test]
fn a_copy_that_does_not_read_costs_nobody_the_drive() {
    let dir = tempfile::tempdir().expect("a directory");
    pumice_reactor::block_on(async move {
        let path = dir.path().join("0");
        let spec = DeviceSpec::Path(path.clone());
        let device = Device::create(&spec, 16 << 20).await.expect("a device");
        Store::format(
            &device,
            &StoreFormat { drive_id: [1; 16], segment_bytes: Some(256 << 10), ..StoreFormat::default() },
        )
        .await
        .expect("formatted");
        drop(device);
        let paths = [path.clone()];
        let node = reopened(&paths, Durability::Always).await.expect("opened");
        let place = Place { drive: 0, slice: SliceId(0) };
        let mut batch = NodeBatch::new();
        batch.put(place, b"key", 0, 0, b"1");
        node.write_ready(&batch).await.expect("written");
        node.close().await.expect("closed");
        drop(node);
        let whole = std::fs::read(&path).expect("read");
        let (mut spoilt, mut unread) = (0, 0);
        for at in (0..whole.len() - MEMBER_KEY.len()).filter(|&at| whole[at..].starts_with(MEMBER_KEY)) {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            std::fs::write(&path, &bytes).expect("written");
            spoilt += 1;
            // Where the metadata log names it there is nothing to open; the engine's tests are of that.
            match reopened(&paths, Durability::Always).await {
                Ok(node) => {
                    let read = node.get(place, b"key").await;
                    unread += u32::from(read.is_err());
                    node.close().await.expect("closed");
                }
                Err(OpenError::Drive { .. }) => {}
                Err(other) => panic!("with byte {at} spoilt: {other}"),
            }
        }
        assert!(spoilt >= 4 && unread > 0, "{spoilt} places, {unread} in the block of the key");
    });
}

/// The first moments of a set whose writes are acknowledged before they are on flash: one drive is synced, and the power goes.
#[test]
fn a_set_is_a_set_before_anything_is_written_to_it() {
    for durability in [Durability::EverySecond, Durability::None] {
        let world = World::new(5);
        let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
        world.set_crash_fate(host, Some(CrashFate::Lost));
        let up = |work: LocalBoxFuture<'static, ()>| {
            world.block_on(host, work).unwrap_or_else(|halt| panic!("{halt}"))
        };
        up(Box::pin(async move {
            let node = two_drives_of(Path::new("/"), 64 << 20, durability).await;
            let mut batch = NodeBatch::new();
            batch.put(ON[0], b"key", 0, 0, b"1");
            node.write_ready(&batch).await.expect("written");
            node.sync_drive(0).await.expect("on flash");
        }));
        world.crash(host);
        world.restart(host);
        up(Box::pin(async move {
            let node =
                reopened(&["0", "1"].map(|name| Path::new("/").join(name)), durability).await.expect("a set");
            assert_eq!(value(&node, ON[0], b"key").await, Some(b'1'));
        }));
    }
}
