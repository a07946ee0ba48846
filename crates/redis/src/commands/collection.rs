//! What hashes, sets, sorted sets and lists share: how their elements are named, and how long replies and large
//! changes stay within bounded memory.
//!
//! Elements lie by *field* under a *sub* of their collection (`docs/format/redis-keys.md`):
//!
//! | type       | sub 0                                      | sub 1                                            |
//! |------------|--------------------------------------------|--------------------------------------------------|
//! | hash       | hash of name (4, BE) + name → value        |                                                  |
//! | set        | hash of member (4, BE) + member → nothing  |                                                  |
//! | sorted set | hash of member (4, BE) + member → score    | order-preserving score (8) + member → sign of zero |
//! | list       | index (8) → value                          | the gap of an unfinished shift; sub 2: what it removes |
//!
//! The four bytes of hash before a name put elements into an order that has nothing to do with the names. That
//! makes a SCAN cursor a plain number (the hash to go on from: no state on the server, stable while elements
//! come and go), a random draw a seek to a random number, and the union or intersection of any collections a
//! merge of their scans. Without it, `user:1`, `user:2`… all lie at one spot of the key space.

use bytes::Bytes;
use pumice_base::hash::{HashSet, stable_hash64};
use pumice_kv::EntryView;
use pumice_node::Place;
use smallvec::SmallVec;

use crate::args::Args;
use crate::command::Fast;
use crate::context::{Ctx, STREAM_BYTES};
use crate::errors::{CommandResult, Failure};
use crate::keyspace::{Change, Collection, ElementScan, HINT_LONG_ELEMENT, joined};
use crate::resp::reply::Reply;

/// Elements by name: hash fields, set members, sorted set members; list elements by index.
pub(super) const MEMBERS: u8 = 0;
/// Sorted set members by score.
pub(super) const ORDER: u8 = 1;

/// The longest name of an element, in bytes: names are part of keys.
pub(super) const MEMBER_BYTES_MAX: usize = 64 * 1024;
/// Bytes of hash before a name.
pub(super) const HASH_BYTES: usize = 4;
/// A command that writes more than this does it in pieces of about this size, so that memory stays bounded and
/// other commits get their turn. Below it, a command is all or nothing on a crash.
pub(super) const PIECE_BYTES: usize = 1 << 20;

/// Elements looked up at once: each takes some hundred bytes meanwhile.
pub(super) const LOOKED_UP_MAX: usize = 4096;

/// An element's field, on the stack while it is short.
pub type Field = SmallVec<[u8; 56]>;

/// Where `name` lies among its collection's elements.
pub(super) fn member_hash(name: &[u8]) -> u32 {
    (stable_hash64(0, name) >> 32) as u32
}

/// The field of the element called `name`.
pub(super) fn member_field(name: &[u8]) -> Field {
    joined(member_hash(name).to_be_bytes(), name)
}

/// The hash that a field begins with.
pub(super) fn hash_of_field(field: &[u8]) -> u32 {
    field.first_chunk::<HASH_BYTES>().map_or(0, |b| u32::from_be_bytes(*b))
}

/// The name in a field of sub [`MEMBERS`], where it lies.
pub(super) fn name_in(field: &[u8]) -> &[u8] {
    field.get(HASH_BYTES..).unwrap_or_default()
}

/// The name in a field of sub [`MEMBERS`], to be kept.
pub(super) fn member_of(field: &Bytes) -> Bytes {
    field.slice(HASH_BYTES.min(field.len())..)
}

/// Refuses names that do not fit into a key: for what writes. To what reads they are not there.
pub(super) fn check_member<'a>(names: impl IntoIterator<Item = &'a [u8]>) -> CommandResult {
    for name in names {
        if name.len() > MEMBER_BYTES_MAX {
            return Err(Failure::new(format!(
                "ERR a field or member of {} bytes is too long: {MEMBER_BYTES_MAX} is the most",
                name.len()
            )));
        }
    }
    Ok(())
}

/// The element that a command of so many arguments is about, if it is about one: a fast handler's.
pub(super) fn only_name<'a>(args: &Args<'a>, arguments: usize) -> Result<&'a [u8], Fast> {
    let name = args.get(2).filter(|name| args.len() == arguments && name.len() <= MEMBER_BYTES_MAX);
    name.ok_or(Fast::Slow)
}

/// Notes in `collection` that an element of these sizes is in it, for OBJECT ENCODING.
pub(super) fn note_sizes(collection: &mut Collection, name: usize, value: usize) {
    if name.max(value) as u64 > collection.compact.bytes {
        collection.hints |= HINT_LONG_ELEMENT;
    }
}

/// Which of `names` (each once) are in `collection`; reads no values.
pub(super) async fn contains(
    ctx: &mut Ctx,
    collection: &Collection,
    names: &[&[u8]],
) -> Result<Vec<bool>, Failure> {
    if names.len() <= LOOKED_UP_MAX {
        return contains_some(ctx, collection, names).await;
    }
    let mut known = Vec::with_capacity(names.len());
    for some in names.chunks(LOOKED_UP_MAX) {
        known.append(&mut contains_some(ctx, collection, some).await?);
    }
    Ok(known)
}

async fn contains_some(
    ctx: &mut Ctx,
    collection: &Collection,
    names: &[&[u8]],
) -> Result<Vec<bool>, Failure> {
    let fields: Vec<Field> = names.iter().map(|name| member_field(name)).collect();
    ctx.contains_elements(collection, MEMBERS, fields.iter().map(|field| &field[..])).await
}

/// Answers whether there is such an element.
pub(super) fn reply_whether(reply: &mut Reply, found: Option<EntryView<'_>>) -> CommandResult {
    reply.flag(found.is_some());
    Ok(())
}

/// `names` in their order, each once.
pub(super) fn unique<'a>(names: impl ExactSizeIterator<Item = &'a [u8]>) -> Vec<&'a [u8]> {
    let mut kept = Vec::with_capacity(names.len());
    if names.len() == 1 {
        kept.extend(names);
        return kept;
    }
    let mut seen: HashSet<&[u8]> = HashSet::default();
    kept.extend(names.filter(|name| seen.insert(name)));
    kept
}

/// Tells that the elements found do not fit what the head says.
pub(super) fn damaged(collection: &Collection, found: u64) -> Failure {
    Failure::new(format!(
        "ERR key '{}' is damaged: its head counts {} elements, {found} were found",
        String::from_utf8_lossy(collection.key.user()),
        collection.count
    ))
}

/// Whether `change` has grown to a piece. In EXEC, which is one piece, an error where it has grown too much.
pub(super) fn is_piece(ctx: &mut Ctx, change: &Change) -> Result<bool, Failure> {
    ctx.weigh(change.kept_bytes())?;
    Ok(change.bytes() >= PIECE_BYTES)
}

/// Writes `change`, which must be consistent by itself, and starts the next one.
pub(super) async fn commit_piece(ctx: &mut Ctx, change: &mut Change) -> CommandResult {
    ctx.commit(std::mem::take(change)).await?;
    *change = ctx.change();
    Ok(())
}

/// Answers the elements of a scan, each as `write` does it and, if `values` says where large ones lie, with its value behind that. Says how
/// many there were.
pub(super) async fn reply_elements(
    ctx: &mut Ctx,
    mut scan: ElementScan,
    values: Option<Place>,
    write: impl Fn(&mut Reply, &[u8]),
) -> Result<u64, Failure> {
    let mut found = 0;
    loop {
        // Most are at hand, and are copied from where they lie to the reply.
        while ctx.reply.len() < STREAM_BYTES
            && let Some((field, entry)) = scan.view_at_hand()
        {
            found += 1;
            write(&mut ctx.reply, field);
            if values.is_some() {
                ctx.reply.bulk_view(entry.value);
            }
        }
        if scan.is_at_end() {
            return Ok(found);
        }
        let Some((field, entry)) = scan.next_entry(ctx).await? else { return Ok(found) };
        found += 1;
        write(&mut ctx.reply, &field);
        if let Some(place) = values {
            ctx.reply_entry(place, entry).await?;
        }
        ctx.drain().await?;
    }
}

impl Ctx {
    /// A random number below `bound`.
    pub(super) fn random_below(&self, bound: u64) -> u64 {
        self.server.rng().below(bound)
    }
}

/// `start` and `stop` of a range over `count` elements, negative ones counting from the end, as a half-open
/// range; `None` when it is empty.
pub(super) fn clamp_range(start: i64, stop: i64, count: u64) -> Option<(u64, u64)> {
    let count = count as i64;
    let start = if start < 0 { start.saturating_add(count).max(0) } else { start };
    let stop = if stop < 0 { stop.saturating_add(count) } else { stop.min(count - 1) };
    (start <= stop && start < count).then(|| (start as u64, stop as u64 + 1))
}
