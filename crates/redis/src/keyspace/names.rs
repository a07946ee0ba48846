//! How errors call keys: by what the user called them, not by how they lie in the ordered map.
//!
//! An element's key names its collection by an id alone. Who knows which keys are meant ([`name_collection`] the command's,
//! [`resolve`] all of a drive's) puts the key there instead.

use std::ops::{Bound, Range};
use std::sync::Arc;

use bytes::Bytes;
use pumice_base::hash::{HashMap, stable_hash64};
use pumice_kv::{Direction, SliceId, SliceSet, Store, StoreError, Want};

use super::head::{Head, Type};
use super::key::{SYSTEM_SPACE, after_prefix, decode_index, decode_score, space_of, user_key};
use super::record::StoredSpaces;
use super::spaces::Spaces;
use crate::context::Ctx;
use crate::errors::Failure;

/// Bytes of a key that are shown.
const SHOWN_MAX: usize = 64;
/// What stands before a collection's id.
const COLLECTION: &str = "the collection with id ";

fn quoted(bytes: &[u8]) -> String {
    let shown = bytes.get(..SHOWN_MAX).unwrap_or(bytes);
    format!("\"{}\"{}", shown.escape_ascii(), if bytes.len() > SHOWN_MAX { "…" } else { "" })
}

/// What the user calls an encoded key; `None` for Pumice's own. Without `spaces` it is not known which database is where.
pub fn name_of(raw: &[u8], spaces: Option<&Spaces>) -> Option<String> {
    let space = space_of(raw);
    if raw.len() <= 4 || space == SYSTEM_SPACE {
        return None;
    }
    let of = match spaces.and_then(|spaces| spaces.database_of(space)) {
        Some(database) => format!("database {database}"),
        None => format!("space {}", space.0),
    };
    if let Some(key) = user_key(raw) {
        return Some(format!("key {} of {of}", quoted(key)));
    }
    let (id, rest) = raw.get(5..)?.split_first_chunk::<8>()?;
    let (sub, field) = rest.split_first()?;
    let element = match (sub, field.split_first_chunk::<4>(), field.split_first_chunk::<8>()) {
        (0, Some((hash, name)), _) if *hash == ((stable_hash64(0, name) >> 32) as u32).to_be_bytes() => {
            format!("field or member {}", quoted(name))
        }
        (0, _, Some((index, []))) => format!("the element that is stored at {}", decode_index(*index)),
        (1, _, Some((score, member))) => {
            format!("score {} of member {}", decode_score(*score), quoted(member))
        }
        _ => "an element".into(),
    };
    Some(format!("{element} of {COLLECTION}{} of {of}", u64::from_be_bytes(*id)))
}

/// Where a text names a collection by its id, and that.
fn collection_in(text: &str) -> Option<(Range<usize>, u64)> {
    let start = text.find(COLLECTION)?;
    let digits = &text[start + COLLECTION.len()..];
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    let id = digits[..end].parse().ok()?;
    Some((start..start + COLLECTION.len() + end, id))
}

/// `failure` of a command with the key of the collection that it names, if that is one of the command's `keys`.
pub(crate) async fn name_collection(ctx: &mut Ctx, keys: Vec<Bytes>, failure: Failure) -> Failure {
    let text = failure.lossy();
    let Some((place, id)) = collection_in(&text) else { return failure };
    for key in keys {
        let head = ctx.key(&key);
        if matches!(ctx.head(&head).await, Ok(Some(Head::Collection(found))) if found.id == id) {
            return Failure::new(format!(
                "{}key {}{}",
                &text[..place.start],
                quoted(&key),
                &text[place.end..]
            ));
        }
    }
    failure
}

/// Whether [`name_collection`] has something to do.
pub(crate) fn names_a_collection(failure: &Failure) -> bool {
    failure.text().windows(COLLECTION.len()).any(|words| words == COLLECTION.as_bytes())
}

/// Has the errors of a drive that nobody serves call keys by their names. `has_databases`: it is the first of its set.
pub async fn call_keys_by_name(store: &Store, has_databases: bool) {
    let stored = if has_databases { StoredSpaces::read(store).await.ok() } else { None };
    let spaces = stored.map(|stored| stored.spaces);
    store.call_keys(Arc::new(move |raw| name_of(raw, spaces.as_ref())));
}

/// Puts keys where `texts` name collections of a drive by their ids.
pub async fn resolve(store: &Store, texts: &mut [String]) -> Result<(), StoreError> {
    let mut wanted: HashMap<u64, Vec<usize>> = HashMap::default();
    for (at, text) in texts.iter().enumerate() {
        if let Some((_, id)) = collection_in(text) {
            wanted.entry(id).or_default().push(at);
        }
    }
    if wanted.is_empty() {
        return Ok(());
    }
    for slice in (0..store.slice_count()).map(SliceId) {
        resolve_in(store, slice, &mut wanted, texts).await?;
    }
    Ok(())
}

async fn resolve_in(
    store: &Store,
    slice: SliceId,
    wanted: &mut HashMap<u64, Vec<usize>>,
    texts: &mut [String],
) -> Result<(), StoreError> {
    let snapshot = store.snapshot();
    let mut lower = Bound::Unbounded;
    // Space by space, past the elements.
    while !wanted.is_empty() {
        let set = SliceSet::One(slice);
        let mut scan = store.scan(&snapshot, set, lower, Bound::Unbounded, Direction::Forward, Want::Keys);
        let mut next = None;
        while let Some((raw, entry)) = scan.next().await? {
            let Some(key) = user_key(&raw) else {
                next = after_prefix(&raw[..4.min(raw.len())]);
                break;
            };
            if Type::from_tag(entry.tag).is_none_or(|kind| kind == Type::String) {
                continue;
            }
            // One that does not read names nothing.
            let Ok(Some(head)) = store.get(slice, &raw).await else { continue };
            let id = head.value.first_chunk::<8>().map(|id| u64::from_le_bytes(*id));
            for at in id.and_then(|id| wanted.remove(&id)).into_iter().flatten() {
                while let Some((place, _)) = collection_in(&texts[at]) {
                    texts[at].replace_range(place, &format!("key {}", quoted(key)));
                }
            }
        }
        match next {
            Some(next) => lower = Bound::Included(Bytes::copy_from_slice(&next)),
            None => return Ok(()),
        }
    }
    Ok(())
}
