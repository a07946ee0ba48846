//! The heap end to end on emulated and file devices.

mod common;

use bytes::Bytes;
use common::*;
use pumice_flash::Device;
use pumice_segment::{Heap, MetaEdit, Stream};

async fn on_both<F: AsyncFn(Device)>(check: F) {
    let (device, _) = emulated("emu:tiny").await;
    check(device).await;
    let dir = tempfile::tempdir().expect("dir");
    check(file(dir.path(), 32 << 20).await).await;
}

#[test]
fn what_was_committed_is_read_back_and_replayed_after_a_crash() {
    pumice_reactor::block_on(on_both(async |device: Device| {
        let heap = formatted(&device).await;
        let mut ptrs = Vec::new();
        for i in 0..500u32 {
            let payload = vec![i as u8; 10 + (i as usize * 37) % 3000];
            let appended = append_waiting(&heap, &[&payload]).await;
            assert_eq!(appended.first_seq, u64::from(i) + 1);
            ptrs.push((appended.ptrs[0], payload));
        }
        heap.wait_durable(heap.last_seq()).await.expect("durable");
        for (ptr, payload) in &ptrs {
            let record = heap.read(*ptr).await.expect("read");
            assert_eq!((record.kind, &record.payload[..]), (7, &payload[..]));
        }
        drop(heap);
        let (opened, commit, moved) = reopen(&device).await;
        assert!(!opened.clean && moved.is_empty());
        assert_eq!(commit.len(), ptrs.len());
        for (index, (record, (ptr, payload))) in commit.iter().zip(&ptrs).enumerate() {
            assert_eq!((record.seq, record.ptr), (index as u64 + 1, *ptr));
            assert_eq!(&record.payload[..], &payload[..]);
        }
        let appended = append_waiting(&opened.heap, &[b"more"]).await;
        assert_eq!(appended.first_seq, 501);
        opened.heap.wait_durable(501).await.expect("durable");
        let (opened, commit, _) = reopen(&device).await;
        assert_eq!(commit.len(), 501);
        for (ptr, payload) in &ptrs {
            assert_eq!(&opened.heap.read(*ptr).await.expect("read").payload[..], &payload[..]);
        }
    }));
}

#[test]
fn a_clean_close_leaves_nothing_to_replay_and_the_open_segments_go_on() {
    pumice_reactor::block_on(on_both(async |device: Device| {
        let heap = formatted(&device).await;
        let ptr = append_waiting(&heap, &[b"one"]).await.ptrs[0];
        let table = heap
            .write_object(3, Stream::Table, vec![Bytes::from_static(b"a table")], None)
            .await
            .expect("object");
        heap.commit_meta(MetaEdit::Edit(Bytes::from_static(b"edit")), 1).await.expect("meta");
        heap.close().await.expect("close");
        let used = heap.segments_in_use();
        drop(heap);
        let (opened, commit, _) = reopen(&device).await;
        assert!(opened.clean && commit.is_empty());
        assert_eq!(opened.client_state, vec![Bytes::from_static(b"edit")]);
        assert_eq!(opened.heap.config(), Bytes::from_static(b"config"));
        let heap = opened.heap;
        assert_eq!(&heap.read(ptr).await.expect("read").payload[..], b"one");
        assert_eq!(&heap.read(table).await.expect("read").payload[..], b"a table");
        assert_eq!(&heap.read_range(table, 2, 5).await.expect("range")[..], b"table");
        let next = append_waiting(&heap, &[b"two"]).await;
        assert_eq!(next.first_seq, 2);
        heap.wait_durable(2).await.expect("durable");
        assert_eq!(heap.segments_in_use(), used);
        drop(heap);
        let (_, commit, _) = reopen(&device).await;
        assert_eq!(commit.iter().map(|record| record.seq).collect::<Vec<_>>(), vec![2]);
    }));
}

#[test]
fn the_space_report_adds_up_and_released_segments_come_back() {
    pumice_reactor::block_on(on_both(async |device: Device| {
        let heap = formatted(&device).await;
        let check = |heap: &Heap| {
            let space = heap.space();
            assert_eq!(space.accounted(), space.raw, "{space:?}");
        };
        check(&heap);
        let payload = vec![5u8; 4000];
        let free = heap.free_segments();
        // Far more than the drive holds, in rounds that are wholly dead afterwards.
        for _ in 0..8 {
            let mut ptrs = Vec::new();
            for _ in 0..700 {
                ptrs.push(append_waiting(&heap, &[&payload]).await.ptrs[0]);
            }
            heap.wait_durable(heap.last_seq()).await.expect("durable");
            check(&heap);
            heap.commit_meta(MetaEdit::Snapshot(Bytes::from_static(b"state")), heap.last_seq())
                .await
                .expect("meta");
            for ptr in ptrs {
                heap.mark_dead(ptr);
            }
            while let Some(segment) = heap.victim(Default::default()) {
                heap.release(segment);
                check(&heap);
            }
            heap.commit_meta(MetaEdit::Edit(Bytes::new()), heap.last_seq()).await.expect("meta");
            check(&heap);
        }
        assert!(heap.free_segments() + 2 >= free, "{} of {free}", heap.free_segments());
        let (opened, commit, _) = reopen(&device).await;
        assert!(commit.is_empty());
        check(&opened.heap);
    }));
}
