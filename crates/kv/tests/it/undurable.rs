//! What a reply waits for that tells of absent keys, or of all between two.

use std::ops::Bound;

use crate::common::{delete, device, formatted, put};
use pumice_kv::{SliceId, SliceSet};

#[test]
fn of_an_absent_key_the_removal_is_known_until_it_is_in_the_key_tables() {
    pumice_reactor::block_on(async {
        let store = formatted(&device("emu:tiny").await).await;
        let slice = SliceId(1);
        assert_eq!(store.newest_of(slice, b"never"), 0);
        let put_at = put(&store, 1, b"key", b"value").await;
        assert_eq!(store.newest_of(slice, b"key"), put_at);
        let deleted_at = delete(&store, 1, b"key").await;
        put(&store, 1, b"other", b"value").await;
        assert_eq!(store.newest_of(slice, b"key"), deleted_at);
        assert_eq!(store.newest_of(SliceId(0), b"key"), 0);
        store.checkpoint().await.expect("checkpoint");
        assert_eq!(store.newest_of(slice, b"key"), 0);
        store.close().await.expect("close");
    });
}

#[test]
fn a_snapshot_knows_the_newest_write_between_two_keys_removals_too() {
    pumice_reactor::block_on(async {
        let store = formatted(&device("emu:tiny").await).await;
        for key in [b"a", b"b", b"c", b"d"] {
            put(&store, 0, key, b"value").await;
        }
        store.checkpoint().await.expect("checkpoint");
        let removed = delete(&store, 0, b"b").await;
        let written = put(&store, 0, b"c", b"new").await;
        let elsewhere = put(&store, 1, b"c", b"value").await;
        let snapshot = store.snapshot();
        // It does not see these.
        put(&store, 0, b"c", b"newer").await;
        put(&store, 0, b"e", b"value").await;
        let between = |slices, lower, upper| snapshot.newest_between(slices, lower, upper);
        let (one, all) = (SliceSet::One(SliceId(0)), SliceSet::All);
        let (is, above) = (Bound::Included, Bound::Excluded);
        assert_eq!(between(one, Bound::Unbounded, Bound::Unbounded), written);
        assert_eq!(between(all, Bound::Unbounded, Bound::Unbounded), elsewhere);
        assert_eq!(between(one, is(&b"a"[..]), above(&b"c"[..])), removed);
        assert_eq!(between(one, above(&b"b"[..]), above(&b"c"[..])), 0);
        assert_eq!(between(one, above(&b"c"[..]), Bound::Unbounded), 0);
        store.close().await.expect("close");
    });
}
