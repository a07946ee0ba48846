//! Who reads for long keeps nobody from writing, and never sees anything but what it began to read.

use std::ops::Bound;
use std::time::Duration;

use crate::common::{delete, device, formatted, no_progress, put, put_large};
use bytes::Bytes;
use pumice_base::rng::Rng;
use pumice_kv::{Batch, Direction, LargeReader, SliceId, SliceSet, Store, StoreError, Want, WriteError};
use pumice_reactor::now;
use pumice_reactor::sim::{HostOptions, World};

const SHAPE: &str = "emu:tiny,channels=2,blocks=64,pages=64";
const KEYS: u64 = 1700;
const LEN: usize = 8000;
const LARGE: u64 = 24;
/// Of a large value: some pieces, so that neighbours share segments.
const LARGE_LEN: usize = 300_000;
/// No write waits longer: a read may hold what writers need for 5 s.
const WAIT_MAX: Duration = Duration::from_secs(8);

/// In virtual time.
fn run(work: impl Future<Output = ()> + 'static) {
    let world = World::new(9);
    let host = world.add_host(HostOptions { cores: 1, ..HostOptions::default() });
    world.block_on(host, work).expect("the host is up");
}

fn key(n: u64) -> Vec<u8> {
    format!("key{n:06}").into_bytes()
}

fn large_key(n: u64) -> Vec<u8> {
    format!("large{n:06}").into_bytes()
}

fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::from_seed(seed).fill(&mut bytes);
    bytes
}

async fn filled() -> Store {
    let device = device(SHAPE).await;
    let store = formatted(&device).await;
    for n in 0..LARGE {
        put_large(&store, 0, &large_key(n), 0, &noise(LARGE_LEN, n)).await;
    }
    for n in 0..KEYS {
        put(&store, 1, &key(n), &noise(LEN, n)).await;
    }
    store
}

/// Overwrites keys at random, more than the drive holds; answers the longest that one waited.
async fn overwrite(store: &Store, seed: u64) -> Duration {
    let mut rng = Rng::from_seed(seed);
    let mut longest = Duration::ZERO;
    for _ in 0..6 * KEYS {
        let n = rng.below(KEYS);
        let started = now();
        put(store, 1, &key(n), &noise(LEN, rng.next_u64())).await;
        longest = longest.max(started.elapsed());
    }
    longest
}

/// Begins to read every fourth large value.
async fn begun(store: &Store) -> Vec<(u64, LargeReader, Vec<u8>)> {
    let mut readers = Vec::new();
    for n in (0..LARGE).step_by(4) {
        let entry = store.get(SliceId(0), &large_key(n)).await.expect("get").expect("there");
        let large = entry.large.expect("large");
        assert!(large.piece_count() > 3);
        let mut reader = store.read_large(&large, 0..large.len());
        reader.set_ahead(1);
        let first = reader.next().await.expect("piece").expect("piece").to_vec();
        readers.push((n, reader, first));
    }
    readers
}

async fn rest_of(reader: &mut LargeReader, mut bytes: Vec<u8>) -> Result<Vec<u8>, StoreError> {
    while let Some(piece) = reader.next().await? {
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}

#[test]
fn writers_go_on_beside_slow_readers_who_get_their_values_wherever_they_lie_by_then() {
    run(async {
        let store = filled().await;
        let readers = begun(&store).await;
        // Their segments are worth cleaning now.
        for n in (0..LARGE).filter(|n| n % 4 > 0) {
            delete(&store, 0, &large_key(n)).await;
        }
        let longest = overwrite(&store, 1).await;
        assert!(longest > Duration::from_secs(1), "nobody was held back: {longest:?}");
        assert!(longest < WAIT_MAX, "a write waited {longest:?}");
        assert!(store.stats().counters.moved_bytes > 0);
        for (n, mut reader, first) in readers {
            let bytes = rest_of(&mut reader, first).await.expect("the value is still there");
            assert!(bytes == noise(LARGE_LEN, n), "large value {n}");
        }
        assert!(store.check(&no_progress).await.expect("check").problems.is_empty());
        store.close().await.expect("close");
    });
}

#[test]
fn a_slow_reader_of_what_was_overwritten_is_told_so() {
    run(async {
        let store = filled().await;
        let readers = begun(&store).await;
        for n in 0..LARGE {
            put_large(&store, 0, &large_key(n), 0, &noise(LARGE_LEN, 100 + n)).await;
        }
        let longest = overwrite(&store, 2).await;
        assert!(longest < WAIT_MAX, "a write waited {longest:?}");
        let mut too_old = 0;
        for (n, mut reader, first) in readers {
            match rest_of(&mut reader, first).await {
                Ok(bytes) => assert!(bytes == noise(LARGE_LEN, n), "large value {n}"),
                Err(StoreError::TooOld) => too_old += 1,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(too_old > 0, "none was reused");
        store.close().await.expect("close");
    });
}

#[test]
fn a_slow_scan_ends_with_an_error_and_not_with_newer_values() {
    run(async {
        for (want, direction) in [
            (Want::Values, Direction::Forward),
            (Want::Values, Direction::Backward),
            (Want::Keys, Direction::Forward),
        ] {
            let store = filled().await;
            let snapshot = store.snapshot();
            let set = SliceSet::One(SliceId(1));
            let mut scan = store.scan(&snapshot, set, Bound::Unbounded, Bound::Unbounded, direction, want);
            let mut expected: Vec<u64> = (0..KEYS).collect();
            if direction == Direction::Backward {
                expected.reverse();
            }
            let mut expected = expected.into_iter();
            let same = |(found, value): (Bytes, Bytes), n: u64| {
                assert_eq!(found, key(n));
                assert!(want == Want::Keys || value == noise(LEN, n), "key {n}");
            };
            for n in expected.by_ref().take(50) {
                let (found, entry) = scan.next().await.expect("scan").expect("there");
                same((found, entry.value), n);
            }
            let longest = overwrite(&store, 3).await;
            assert!(longest < WAIT_MAX, "a write waited {longest:?}");
            let error = loop {
                match scan.next().await {
                    Ok(Some((found, entry))) => same((found, entry.value), expected.next().expect("there")),
                    Ok(None) => panic!("it came to its end"),
                    Err(error) => break error,
                }
            };
            assert!(matches!(error, StoreError::TooOld), "{error}");
            drop(scan);
            drop(snapshot);
            // Who begins now is not concerned.
            let snapshot = store.snapshot();
            let mut scan = store.scan(&snapshot, set, Bound::Unbounded, Bound::Unbounded, direction, want);
            assert_eq!(scan.skip(2 * KEYS).await.expect("scan"), KEYS);
            drop(scan);
            drop(snapshot);
            store.close().await.expect("close");
        }
    });
}

/// As EXPIRE does, which may have to wait for room between the two.
#[test]
fn large_values_that_are_stored_again_after_cleaning_moved_them_are_whole() {
    run(async {
        let store = filled().await;
        let mut read = Vec::new();
        for n in (0..LARGE).step_by(4) {
            read.push((n, store.get(SliceId(0), &large_key(n)).await.expect("get").expect("there")));
        }
        // Their segments are worth cleaning now.
        for n in (0..LARGE).filter(|n| n % 4 > 0) {
            delete(&store, 0, &large_key(n)).await;
        }
        overwrite(&store, 1).await;
        for (n, entry) in read {
            let now = store.get(SliceId(0), &large_key(n)).await.expect("get").expect("there");
            assert!(now.seq > entry.seq, "large value {n} was moved");
            let mut batch = Batch::new();
            let large = entry.large.expect("large");
            batch.put_large(SliceId(0), &large_key(n), 7, 4_102_444_800_000, &large);
            store.write_ready(&batch).await.expect("write");
        }
        // Where their pieces were others write now.
        overwrite(&store, 2).await;
        for n in (0..LARGE).step_by(4) {
            let entry = store.get(SliceId(0), &large_key(n)).await.expect("get").expect("there");
            assert_eq!((entry.tag, entry.expire_ms), (7, 4_102_444_800_000));
            let large = entry.large.expect("large");
            let bytes = rest_of(&mut store.read_large(&large, 0..large.len()), Vec::new()).await;
            assert!(bytes.expect("it reads") == noise(LARGE_LEN, n), "large value {n}");
        }
        assert_eq!(store.check(&no_progress).await.expect("check").problems, Vec::<String>::new());
        store.close().await.expect("close");
    });
}

#[test]
fn a_large_value_that_is_gone_is_not_stored_again() {
    run(async {
        let store = filled().await;
        let mut read = Vec::new();
        for n in 0..2 {
            read.push(store.get(SliceId(0), &large_key(n)).await.expect("get").expect("there"));
        }
        delete(&store, 0, &large_key(0)).await;
        put_large(&store, 0, &large_key(1), 0, &noise(LARGE_LEN, 100)).await;
        for (n, entry) in (0..).zip(read) {
            let mut batch = Batch::new();
            let large = entry.large.expect("large");
            batch.put_large(SliceId(0), &large_key(n), 7, 0, &large);
            let refused = store.write_ready(&batch).await.expect_err("its pieces are anybody's");
            assert!(matches!(refused, WriteError::Gone(_)), "{refused}");
        }
        assert!(store.get(SliceId(0), &large_key(0)).await.expect("get").is_none());
        assert_eq!(store.get(SliceId(0), &large_key(1)).await.expect("get").expect("there").tag, 0);
        store.close().await.expect("close");
    });
}
