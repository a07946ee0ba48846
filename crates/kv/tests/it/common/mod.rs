//! What the engine's tests share.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;
use pumice_base::rng::Rng;
use pumice_flash::{Access, Device, DeviceSpec};
use pumice_kv::{
    Batch, Direction, Entry, Opened, Peek, SliceId, SliceSet, Snapshot, Store, StoreFormat, StoreOptions,
    Want, record,
};

/// What a key holds: tag, expiry and value.
pub type Held = (u8, u64, Vec<u8>);
/// All keys.
pub type Model = BTreeMap<(u16, Vec<u8>), Held>;

pub fn no_progress(_: u64, _: u64) {}

/// A device in memory.
pub async fn device(spec: &str) -> Device {
    let spec: DeviceSpec = spec.parse().expect("spec");
    Device::open(&spec, Access::ReadWrite).await.expect("device")
}

pub fn format() -> StoreFormat {
    StoreFormat {
        slices: 3,
        drive_id: *b"0123456789abcdef",
        segment_bytes: Some(256 << 10),
        inline_max: 64,
        config: Bytes::from_static(b"mine"),
        ..StoreFormat::default()
    }
}

/// Memtables so small that everything happens often.
pub fn options() -> StoreOptions {
    StoreOptions { memtable_bytes: Some(48 << 10), ..StoreOptions::default() }
}

pub async fn open_with(device: &Device, options: StoreOptions) -> Opened {
    let opened = Store::open(device.clone(), options, &no_progress).await.expect("open");
    assert!(opened.damage.is_empty(), "{:?}", opened.damage);
    opened.store.start_background();
    opened
}

pub async fn open(device: &Device) -> Store {
    open_with(device, options()).await.store
}

pub async fn formatted(device: &Device) -> Store {
    Store::format(device, &format()).await.expect("format");
    open(device).await
}

/// Writes, waiting out Busy.
pub async fn write(store: &Store, batch: &Batch) -> u64 {
    store.write_ready(batch).await.unwrap_or_else(|error| panic!("write: {error}"))
}

pub async fn put(store: &Store, slice: u16, key: &[u8], value: &[u8]) -> u64 {
    let mut batch = Batch::new();
    batch.put(SliceId(slice), key, 0, 0, value);
    write(store, &batch).await
}

pub async fn delete(store: &Store, slice: u16, key: &[u8]) -> u64 {
    let mut batch = Batch::new();
    batch.delete(SliceId(slice), key);
    write(store, &batch).await
}

pub async fn put_large(store: &Store, slice: u16, key: &[u8], tag: u8, value: &[u8]) -> u64 {
    let mut writer = store.large_writer(SliceId(slice), key);
    for part in value.chunks(100_000) {
        writer.push(part).await.expect("push");
    }
    let large = writer.finish().await.expect("finish");
    let mut batch = Batch::new();
    batch.put_large(SliceId(slice), key, tag, 0, &large);
    write(store, &batch).await
}

/// An entry's value, large or not.
pub async fn value(store: &Store, entry: &Entry) -> Vec<u8> {
    let Some(large) = &entry.large else { return entry.value.to_vec() };
    let mut reader = store.read_large(large, 0..large.len());
    let mut all = Vec::new();
    while let Some(part) = reader.next().await.expect("piece") {
        all.extend_from_slice(&part);
    }
    all
}

pub async fn get(store: &Store, slice: u16, key: &[u8]) -> Option<Held> {
    let slice = SliceId(slice);
    let entry = match store.peek(slice, key) {
        Peek::Found(entry) => entry,
        Peek::Absent => return None,
        Peek::NeedsFlash(hint) => store.get_at(slice, key, hint).await.expect("get")?,
    };
    Some((entry.tag, entry.expire_ms, value(store, &entry).await))
}

/// Compares everything with the model, by scans both ways and by GETs of some keys.
pub async fn compare(store: &Store, model: &Model, rng: &mut Rng) {
    for slice in 0..store.slice_count() {
        let snapshot = store.snapshot();
        compare_scan(store, &snapshot, model, slice, Bound::Unbounded, Bound::Unbounded, Direction::Forward)
            .await;
        compare_scan(store, &snapshot, model, slice, Bound::Unbounded, Bound::Unbounded, Direction::Backward)
            .await;
    }
    for _ in 0..200 {
        let (slice, key) = (rng.below(3) as u16, key(rng));
        let wanted = model.get(&(slice, key.clone()));
        assert_eq!(
            get(store, slice, &key).await.as_ref(),
            wanted,
            "key {:?}",
            key.escape_ascii().to_string()
        );
    }
}

/// Compares a range of one slice with the model.
pub async fn compare_scan(
    store: &Store,
    snapshot: &Snapshot,
    model: &Model,
    slice: u16,
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
    direction: Direction,
) {
    let within = |key: &Vec<u8>| {
        (match &lower {
            Bound::Unbounded => true,
            Bound::Included(bound) => key >= bound,
            Bound::Excluded(bound) => key > bound,
        }) && (match &upper {
            Bound::Unbounded => true,
            Bound::Included(bound) => key <= bound,
            Bound::Excluded(bound) => key < bound,
        })
    };
    let mut wanted: Vec<(&Vec<u8>, &Held)> = model
        .iter()
        .filter(|((s, key), _)| *s == slice && within(key))
        .map(|((_, key), held)| (key, held))
        .collect();
    if direction == Direction::Backward {
        wanted.reverse();
    }
    let bytes = |bound: Bound<Vec<u8>>| match bound {
        Bound::Unbounded => Bound::Unbounded,
        Bound::Included(bound) => Bound::Included(Bytes::from(bound)),
        Bound::Excluded(bound) => Bound::Excluded(Bytes::from(bound)),
    };
    let set = SliceSet::One(SliceId(slice));
    // What is at hand taken, looked at where it lies, and left alone.
    for way in 0..3 {
        let mut scan =
            store.scan(snapshot, set, bytes(lower.clone()), bytes(upper.clone()), direction, Want::Values);
        for &(key, held) in &wanted {
            let at_hand = match way {
                0 => scan.view_at_hand().map(|(key, view)| (Bytes::copy_from_slice(key), view.to_entry())),
                1 => scan.next_at_hand(),
                _ => None,
            };
            let (found, entry) = match at_hand {
                Some(found) => found,
                None => scan.next().await.expect("scan").unwrap_or_else(|| panic!("scan misses {key:?}")),
            };
            assert_eq!(found, key.as_slice(), "keys in order");
            assert_eq!((entry.tag, entry.expire_ms), (held.0, held.1));
            assert!(value(store, &entry).await == held.2, "value of {:?}", key.escape_ascii().to_string());
        }
        assert!(scan.next_at_hand().is_none() && scan.next().await.expect("scan").is_none(), "scan ends");
    }
    // Stretches skipped between keys that are looked at: short, long, to the end and beyond.
    for stretch in [1, 7, 300, wanted.len() + 1] {
        let mut scan =
            store.scan(snapshot, set, bytes(lower.clone()), bytes(upper.clone()), direction, Want::Keys);
        let mut at = 0;
        while at <= wanted.len() {
            let left = wanted.len() - at;
            let skipped = scan.skip(stretch as u64).await.expect("skip") as usize;
            assert_eq!(skipped, stretch.min(left), "skipping {stretch} keys from number {at} on");
            at += skipped;
            let found = scan.next().await.expect("scan").map(|(key, _)| key);
            assert_eq!(found.as_deref(), wanted.get(at).map(|(key, _)| key.as_slice()), "key number {at}");
            at += 1;
        }
    }
}

/// A key out of a few thousand, some nested in others.
pub fn key(rng: &mut Rng) -> Vec<u8> {
    let n = rng.below(1500);
    match n % 5 {
        0 => format!("user:{n:05}").into_bytes(),
        1 => format!("user:{n:05}:a rather longer key that goes on for a while").into_bytes(),
        2 => n.to_be_bytes().to_vec(),
        3 => vec![b'x'; (n % 300) as usize],
        _ => format!("{n}").into_bytes(),
    }
}

pub fn value_bytes(rng: &mut Rng) -> Vec<u8> {
    let len = match rng.below(10) {
        0 => 0,
        1..=4 => rng.below(60),
        5..=8 => rng.below(1500),
        _ => rng.below(20_000),
    };
    let mut value = vec![0; len as usize];
    rng.fill(&mut value);
    value
}

/// Tears a page in the middle of each table of an emulated device that is longer than so many bytes, those that were merged already
/// among them; says how many.
pub async fn tear_a_page_of_each_table(store: &Store, device: &Device, longer_than: u32) -> usize {
    let Device::Emulated(nand) = device else { panic!("not emulated") };
    let mut tables = Vec::new();
    for segment in store.heap().segments_in_use() {
        let contents = store.heap().contents(segment).await.expect("contents");
        tables.extend(contents.records.into_iter().filter(|record| record.kind == record::TABLE));
    }
    tables.retain(|table| table.ptr.len > longer_than);
    let geometry = device.geometry();
    for table in &tables {
        let block = geometry.block(table.ptr.addr.segment().0);
        let page = (table.ptr.addr.offset() + table.ptr.len / 2) / geometry.page_bytes;
        nand.tear_page(block, page);
    }
    tables.len()
}
