//! Segments written ahead of need: for a stream that is slow enough to profit.

use std::time::Duration;

use crate::common::*;
use pumice_flash::{Device, DeviceSpec};
use pumice_reactor::sim::{HostOptions, World};
use pumice_reactor::sleep;
use pumice_segment::FormatOptions;

const SEGMENT_BYTES: u64 = 1 << 20;

/// Bytes written ahead while a stream fills twenty segments of a fresh file with `pause` between durable
/// appends of 64 KiB.
fn written_ahead(pause: Duration) -> u64 {
    let world = World::new(1);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    let run = async move {
        let spec: DeviceSpec = "/drive".parse().expect("spec");
        let device = Device::create(&spec, 64 << 20).await.expect("file");
        let heap = {
            let format = FormatOptions { segment_bytes: SEGMENT_BYTES as u32, ..format_options() };
            pumice_segment::Heap::format(&device, &format).await.expect("format");
            let opened = pumice_segment::Heap::open(device, options(), &no_progress).await;
            let mut opened = opened.expect("open");
            while opened.replay.next().await.expect("replay").is_some() {}
            opened.heap
        };
        for _ in 0..20 * SEGMENT_BYTES / (64 << 10) {
            let appended = append_waiting(&heap, &[&vec![1; 64 << 10]]).await;
            heap.wait_durable(appended.first_seq).await.expect("durable");
            sleep(pause).await;
        }
        heap.stats().prewritten_bytes
    };
    world.block_on(host, run).unwrap_or_else(|halt| panic!("{halt}"))
}

#[test]
fn a_slow_stream_finds_its_segments_written() {
    let bytes = written_ahead(Duration::from_millis(20));
    assert!(bytes >= 15 * SEGMENT_BYTES, "{bytes} B");
}
