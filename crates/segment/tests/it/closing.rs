//! A drive's end: nothing is written behind the record that says so.

use std::time::Duration;

use bytes::Bytes;
use pumice_flash::{Access, Device, DeviceSpec};
use pumice_reactor::sim::{HostOptions, World};
use pumice_reactor::{sleep, spawn};
use pumice_segment::{FormatOptions, Heap, HeapError, MetaEdit};

use crate::common::{append_waiting, format_options, no_progress, options};

const SEGMENT_BYTES: u32 = 1 << 20;

fn spec() -> DeviceSpec {
    "/drive".parse().expect("spec")
}

/// A heap that has a metadata record written as soon as a segment is released: few segments are left to be opened.
async fn nearly_full() -> Heap {
    let device = Device::create(&spec(), 64 << 20).await.expect("file");
    let format = FormatOptions { segment_bytes: SEGMENT_BYTES, ..format_options() };
    Heap::format(&device, &format).await.expect("format");
    let heap = Heap::open(device, options(), &no_progress).await.expect("open").heap;
    for _ in 0..200 {
        append_waiting(&heap, &[&[7; 200_000]]).await;
    }
    heap.commit_meta(MetaEdit::Snapshot(Bytes::from_static(b"all")), heap.last_seq())
        .await
        .expect("checkpoint");
    heap
}

/// Releases a segment, or writes a record, so long after the closing has begun; answers whether the record was written.
fn close_while_busy(after: Duration, is_release: bool) -> bool {
    let world = World::new(1);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    let test = async move {
        let heap = nearly_full().await;
        let victim = heap.segments_in_use()[0];
        heap.set_live(victim, 0);
        let victim = heap.victim(|_| 0).expect("a segment without a live byte");
        let closing = spawn({
            let heap = heap.clone();
            async move { heap.close().await }
        });
        sleep(after).await;
        let mut is_written = false;
        if is_release {
            heap.release(victim);
        } else {
            let edit = MetaEdit::Edit(Bytes::from_static(b"late"));
            let late = heap.commit_meta(edit, 0).await;
            assert!(matches!(late, Ok(()) | Err(HeapError::ReadOnly(_))), "{late:?}");
            is_written = late.is_ok();
        }
        closing.await.expect("it ends").expect("closed");
        let records = heap.stats().meta_records;
        sleep(Duration::from_secs(1)).await;
        assert_eq!(heap.stats().meta_records, records, "{after:?}: written after the end");
        drop(heap);
        let device = Device::open(&spec(), Access::ReadWrite).await.expect("file");
        let opened = Heap::open(device, options(), &no_progress).await.expect("open");
        assert!(opened.clean, "{after:?}: a record lies behind the one that says that the drive was closed");
        assert_eq!(opened.client_state.len(), 1 + usize::from(is_written), "{after:?}");
        is_written
    };
    world.block_on(host, test).unwrap_or_else(|halt| panic!("{halt}"))
}

#[test]
fn nothing_follows_the_record_that_closes_a_drive() {
    for micros in 0..60 {
        close_while_busy(Duration::from_micros(micros * 5), true);
    }
    let written: Vec<bool> =
        (0..60).map(|micros| close_while_busy(Duration::from_micros(micros * 5), false)).collect();
    assert!(written.contains(&false), "some came too late");
}
