//! What the heap's tests share.

pub mod mini;

use std::sync::Arc;

use bytes::Bytes;
use pumice_flash::{Device, DeviceSpec, Emulated};
use pumice_segment::{
    AppendClass, AppendError, Appended, FormatOptions, Heap, HeapOptions, Opened, Outline, RecordIn,
    Replayed, Stream,
};

pub fn no_progress(_: u64, _: u64) {}

/// An emulated device in memory.
pub async fn emulated(spec: &str) -> (Device, Arc<Emulated>) {
    let spec: DeviceSpec = spec.parse().expect("spec");
    let device = Device::open(&spec, pumice_flash::Access::ReadWrite).await.expect("device");
    let Device::Emulated(emulated) = &device else { panic!("not emulated") };
    let emulated = emulated.clone();
    (device, emulated)
}

/// A sparse file of this size in `dir`.
pub async fn file(dir: &std::path::Path, bytes: u64) -> Device {
    Device::create(&DeviceSpec::Path(dir.join("drive")), bytes).await.expect("file")
}

pub fn format_options() -> FormatOptions {
    FormatOptions {
        segment_bytes: 256 << 10,
        drive_id: *b"0123456789abcdef",
        config: Bytes::from_static(b"config"),
        ..FormatOptions::default()
    }
}

pub fn options() -> HeapOptions {
    HeapOptions { tail_bytes: 0, ..HeapOptions::default() }
}

/// Those of tests about single pages and reads, whose neighbours tell what became of them, are [`options`]: recoveries take a
/// segment at once. Here in several windows, some of which hold no whole frame.
pub fn in_windows() -> HeapOptions {
    HeapOptions { replay_window_bytes: 16 << 10, ..options() }
}

pub async fn formatted(device: &Device) -> Heap {
    Heap::format(device, &format_options()).await.expect("format");
    let mut opened = Heap::open(device.clone(), options(), &no_progress).await.expect("open");
    assert!(opened.clean);
    assert!(opened.replay.next().await.expect("replay").is_none());
    opened.heap
}

pub fn append(heap: &Heap, kind: u8, payload: &[u8]) -> Result<Appended, AppendError> {
    heap.append(&[RecordIn { kind, parts: &[payload], outline: Outline::Whole }], AppendClass::User)
}

/// Appends, waiting out Busy.
pub async fn append_waiting(heap: &Heap, payloads: &[&[u8]]) -> Appended {
    let parts: Vec<[&[u8]; 1]> = payloads.iter().map(|payload| [*payload]).collect();
    let records: Vec<RecordIn<'_>> =
        parts.iter().map(|parts| RecordIn { kind: 7, parts, outline: Outline::Whole }).collect();
    for _ in 0..10_000 {
        match heap.append(&records, AppendClass::User) {
            Ok(appended) => return appended,
            Err(AppendError::Busy) => heap.room().await,
            Err(error) => panic!("append: {error}"),
        }
    }
    panic!("busy for ever");
}

/// Reopens and reads the replay to its end.
pub async fn reopen(device: &Device) -> (Opened, Vec<Replayed>, Vec<Replayed>) {
    let mut opened = Heap::open(device.clone(), options(), &no_progress).await.expect("open");
    let (mut commit, mut moved) = (Vec::new(), Vec::new());
    while let Some(batch) = opened.replay.next().await.expect("replay") {
        assert!(batch.damage.is_empty(), "damage: {:?}", batch.damage);
        match batch.stream {
            Stream::Commit => commit.extend(batch.records),
            _ => moved.extend(batch.records),
        }
    }
    (opened, commit, moved)
}
