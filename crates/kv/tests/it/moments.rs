//! Whether what was read a while ago is the newest still.

use crate::common::*;
use pumice_kv::{Batch, Moment, Seq, SliceId, Store};

const SLICE: SliceId = SliceId(1);

/// What was read, to be asked whether it is the newest.
struct Read {
    key: &'static [u8],
    seq: Option<Seq>,
    since: Moment,
}

impl Read {
    async fn of(store: &Store, key: &'static [u8]) -> Self {
        let since = store.moment(SLICE);
        let seq = store.get(SLICE, key).await.expect("read").map(|entry| entry.seq);
        Self { key, seq, since }
    }

    fn is_newest(&self, store: &Store) -> bool {
        store.is_newest(SLICE, self.key, self.seq, self.since)
    }
}

#[test]
fn what_was_read_is_the_newest_until_its_key_is_written_or_nobody_can_tell() {
    pumice_reactor::block_on(async {
        let device = device("emu:small").await;
        let store = formatted(&device).await;
        put(&store, SLICE.0, b"key", b"old").await;
        store.checkpoint().await.expect("checkpoint");
        // From key tables, and from no place at all.
        let (old, absent) = (Read::of(&store, b"key").await, Read::of(&store, b"absent").await);
        assert!(old.is_newest(&store) && absent.is_newest(&store));
        put(&store, SLICE.0, b"other", b"value").await;
        put(&store, 0, b"key", b"in another slice").await;
        assert!(old.is_newest(&store) && absent.is_newest(&store));
        put(&store, SLICE.0, b"key", b"new").await;
        put(&store, SLICE.0, b"absent", b"there").await;
        assert!(!old.is_newest(&store) && !absent.is_newest(&store));
        // From the memtable.
        let (new, there) = (Read::of(&store, b"key").await, Read::of(&store, b"absent").await);
        assert!(new.is_newest(&store) && there.is_newest(&store));
        let mut batch = Batch::new();
        batch.delete(SLICE, b"key");
        write(&store, &batch).await;
        assert!(!new.is_newest(&store) && there.is_newest(&store));
        // That it is gone is in memory: nobody has to remember that.
        let gone = Read::of(&store, b"key").await;
        assert!(!gone.is_newest(&store));
        // What was written since may be in key tables by now.
        store.checkpoint().await.expect("checkpoint");
        assert!(!there.is_newest(&store) && !old.is_newest(&store));
        store.close().await.expect("close");
    });
}
