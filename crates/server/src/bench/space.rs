//! The key space of the benchmark, and what keeps it apart from servers' data: FLUSHALL knows nothing of it, and what it holds
//! would be alive for ever on a drive that is served.
//!
//! `bench --reuse` takes drives that hold nothing else. `serve` refuses such drives; from one that holds users' data beside it
//! (older builds wrote there) it retires the space.

use std::ops::Bound;

use bytes::Bytes;
use pumice_kv::{Direction, StoreError, Want};
use pumice_node::{MEMBER_KEY, Node, NodeBatch};

use crate::exit::{Outcome, Stop};

/// How each of its keys begins (`docs/format/redis-keys.md`).
pub const PREFIX: [u8; 5] = [0xFF, 0xFF, 0xFF, 0xFE, 0];
/// Its name: what all keys of a space begin with.
const SPACE: &[u8] = &[0xFF, 0xFF, 0xFF, 0xFE];

/// The first key that is not the node's own.
async fn first_key(node: &Node, lower: Bound<Bytes>) -> Result<Option<Bytes>, StoreError> {
    let snapshot = node.snapshot();
    let upper = Bound::Excluded(Bytes::copy_from_slice(&MEMBER_KEY[..4]));
    let mut scan = node.scan(&snapshot, lower, upper, Direction::Forward, Want::Keys);
    Ok(scan.next().await?.map(|(key, _)| key))
}

/// Whether there are keys of the benchmark.
async fn has_bench(node: &Node) -> Result<bool, StoreError> {
    // What was dropped may lie there until a merge comes by.
    let is_dropped = node.places().all(|place| node.store(place.drive).is_retired(place.slice, SPACE));
    Ok(!is_dropped && first_key(node, Bound::Included(Bytes::from_static(SPACE))).await?.is_some())
}

/// Whether there are others.
async fn has_others(node: &Node) -> Result<bool, StoreError> {
    Ok(first_key(node, Bound::Unbounded).await?.is_some_and(|key| !key.starts_with(SPACE)))
}

fn names(node: &Node) -> String {
    node.conditions().into_iter().map(|found| found.drive).collect::<Vec<_>>().join(", ")
}

/// Refuses drives that hold anything else than an earlier run's keys.
pub async fn refuse_foreign(node: &Node) -> Outcome {
    let failed = |error| Stop::doing("looking for an earlier run's keys", error);
    let drives = names(node);
    if has_others(node).await.map_err(failed)? {
        return Err(Stop::No(format!(
            "{drives}: holds data that is not the benchmark's, a server's most likely: name another drive; --force instead \
             of --reuse formats it and destroys that"
        )));
    }
    // Not as an empty one that would do: what was retired of this space is not to be written again.
    if !has_bench(node).await.map_err(failed)? {
        return Err(Stop::No(format!(
            "{drives}: there are no keys of an earlier run to use: leave out --reuse; --force formats what is there"
        )));
    }
    Ok(())
}

/// Keeps the benchmark's keys from being served: refuses drives that hold nothing else, drops them from others.
pub async fn keep_out(node: &Node) -> Outcome {
    let has_others = match has_bench(node).await {
        Ok(false) => return Ok(()),
        Ok(true) => has_others(node).await,
        Err(error) => Err(error),
    };
    match has_others {
        // What does not read is no reason to keep users from all that does.
        Err(error) => tracing::warn!("looking for keys that `pumice bench` left: {error}"),
        Ok(true) => {
            let mut batch = NodeBatch::new();
            node.places().for_each(|place| batch.retire(place, SPACE));
            match node.write_ready(&batch).await {
                Ok(_) => tracing::info!("{}: keys that `pumice bench` left are dropped", names(node)),
                Err(error) => tracing::warn!("dropping keys that `pumice bench` left: {error}"),
            }
        }
        Ok(false) => {
            let drives = names(node);
            return Err(Stop::because(format!(
                "{drives}: holds what `pumice bench` wrote and no server's data: serve another drive, or make it an empty one \
                 with `pumice format --force`"
            )));
        }
    }
    Ok(())
}
