//! Tallies that came to 0 are gone: from memory, and from what is written about a drive.

use crate::common::*;
use pumice_kv::{Batch, Store};

async fn count(store: &Store, changes: &[(u32, i64)]) {
    let mut batch = Batch::new();
    changes.iter().for_each(|(name, delta)| batch.tally(*name, *delta));
    write(store, &batch).await;
}

#[test]
fn a_tally_that_is_taken_back_is_gone_after_a_flush_and_after_a_crash() {
    pumice_reactor::block_on(async {
        let device = device("emu:small").await;
        let store = formatted(&device).await;
        count(&store, &[(7, 3), (8, 1), (9, -2)]).await;
        assert_eq!(store.tallies(), [(7, 3), (8, 1), (9, -2)]);
        store.checkpoint().await.expect("checkpoint");
        count(&store, &[(7, -3)]).await;
        assert_eq!(store.tallies(), [(8, 1), (9, -2)], "taken back");
        store.checkpoint().await.expect("checkpoint");
        store.close().await.expect("closed");
        drop(store);
        let store = open(&device).await;
        assert_eq!(store.tallies(), [(8, 1), (9, -2)], "after a clean end");
        count(&store, &[(9, 2)]).await;
        store.abandon().await;
        drop(store);
        let store = open(&device).await;
        assert_eq!(store.tallies(), [(8, 1)], "after a crash");
        assert_eq!((store.tally(7), store.tally(8), store.tally(9)), (0, 1, 0));
    });
}
