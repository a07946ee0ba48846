//! Moved records: what becomes of a batch of them that finds room for a part alone.

use crate::common::{emulated, formatted, reopen};
use bytes::Bytes;
use pumice_segment::{AppendClass, AppendError, MetaEdit, MovedRecord, Outline, RecordIn};

const PAYLOAD_BYTES: usize = 4000;

/// A batch that does not fit in what is left of the open segment is written in several frames. Who is refused the segment for
/// the rest asks again with all of it: what was written counts neither as alive, nor as something that recoveries need.
#[test]
fn of_moved_records_that_were_refused_nothing_stays() {
    pumice_reactor::block_on(async {
        let (device, _) = emulated("emu:tiny").await;
        let heap = formatted(&device).await;
        let record = |byte: u8| MovedRecord {
            seq: heap.next_seq(1),
            kind: 2,
            payload: Bytes::from(vec![byte; PAYLOAD_BYTES]),
        };
        let first = heap.write_moved(vec![record(1)]).await.expect("room");
        drop(first.ticket);
        let rest: &[u8] = &[3; PAYLOAD_BYTES];
        loop {
            match heap
                .append(&[RecordIn { kind: 7, parts: &[rest], outline: Outline::Whole }], AppendClass::System)
            {
                Ok(_) => {}
                Err(AppendError::Busy) if heap.space().free > 0 || heap.free_segments() > 0 => {
                    heap.commit_meta(MetaEdit::Edit(Bytes::new()), 0).await.expect("meta");
                }
                Err(AppendError::Busy | AppendError::Full(_)) => break,
                Err(error) => panic!("append: {error}"),
            }
            heap.wait_durable(heap.last_seq()).await.expect("durable");
        }
        let live = heap.space().live;
        let records = heap.segment_bytes() as usize / PAYLOAD_BYTES;
        for _ in 0..2 {
            let moved = heap.write_moved((0..records).map(|_| record(2)).collect()).await;
            assert!(matches!(moved, Err(AppendError::Busy | AppendError::Full(_))), "there is room");
        }
        assert!(heap.stats().moved_bytes > (PAYLOAD_BYTES * records / 2) as u64, "none of them was written");
        assert_eq!(heap.space().live, live, "nobody knows where these lie");
        heap.next_seq(1);
        heap.commit_meta(MetaEdit::Snapshot(Bytes::new()), heap.last_seq()).await.expect("meta");
        drop(heap);
        let (_, commit, moved) = reopen(&device).await;
        assert_eq!((commit.len(), moved.len()), (0, 0), "the checkpoint covers everything");
    });
}
