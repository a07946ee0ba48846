//! The keyspace as commands see it: heads with type check and expiry, elements, scans, and writes, over one
//! server's drives.
//!
//! A command that changes a key goes these steps:
//! 1. `let _held = ctx.latch([key]).await;` so that nobody else is between reading and writing it;
//! 2. reads: [`Ctx::head`], [`Ctx::collection`], [`Ctx::element`], [`Ctx::scan_elements`];
//! 3. `let mut change = ctx.change();` and puts and deletes into it;
//! 4. `ctx.commit(change).await?`: visible to all at once; durable before the reply leaves the server, which
//!    the connection sees to.
//!
//! Reading commands need the latch only to read several entries as of one moment; a scan keeps its moment by
//! itself, so take the latch, open the collection, make the scan, drop the latch. Expired keys read as absent;
//! writers replace them, the expiry task removes them.
//!
//! A command over single elements is a `reads_first!`: what flash must be asked for is read before it has its latch. Those that clients
//! send most have a way without a future, too, for what memory can tell (`at_hand.rs`).
//!
//! Within EXEC the latches of all keys are held already, reads see what the transaction wrote, and commits add
//! to it.

mod access;
mod again;
mod at_hand;
mod building;
mod change;
mod cursor;
mod head;
mod key;
mod left;
mod merged;
mod names;
mod overlay;
mod ranks;
mod record;
mod scan;
mod spaces;
mod unlatched;
mod untold;

pub use access::{FEW_KEYS, Latched, ONE_MOMENT_BYTES_MAX, PARALLEL_READS_MAX};
pub(crate) use access::{large_failure, large_refused, store_failure};
pub use building::Building;
#[doc(hidden)] // for fuzz
pub use building::Site;
pub(crate) use building::abandon_all;
pub use change::{Change, StringValue};
pub use cursor::Cursors;
pub use head::{
    Collection, Compact, HINT_GAP, HINT_LONG_ELEMENT, HINT_MANY, HINT_NONE_OUTSIDE, HINT_NOT_INTEGERS, Head,
    StringHead, TAG_STRING_EDITED, TAG_STRING_FLOAT, Type, is_expired, meta_is_expired,
};
pub use key::{
    ELEMENT_PREFIX_BYTES, HEAD_PREFIX_BYTES, HeadKey, RawKey, SYSTEM_SPACE, Space, after_prefix,
    collection_prefix, decode_index, decode_score, element_key, encode_index, encode_score, head_prefix,
    joined, latch_hash, space_of, space_prefix, user_key,
};
pub(crate) use left::{Owed, forget_counts, retire_later, retire_left};
pub use names::{call_keys_by_name, name_of, resolve};
pub(crate) use names::{name_collection, names_a_collection};
pub use overlay::Overlay;
pub use ranks::{Asked, Ranks, Stretch};
pub(crate) use record::store_record;
pub use record::{RECORD_DRIVE, StoredSpaces, record_keys};
pub use scan::{ElementScan, KeyScan};
pub use spaces::{DATABASES, Moved, Spaces};
pub(crate) use unlatched::{Unlatched, reads_first};

#[allow(unused_imports)] // for the documentation above
use crate::context::Ctx;
