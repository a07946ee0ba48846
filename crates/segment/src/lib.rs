//! The record heap: records on flash segments, found by address.
//!
//! 1. A *segment* is one erase unit. A *frame* is one contiguous program inside it: a header, records, padding to
//!    the page. A *record* is a checksummed payload; its checksum is seeded with the segment's life number and its
//!    address, so that stale or misplaced bytes never verify.
//! 2. What callers [`Heap::append`] goes to one commit stream: one contiguous durable write is in flight (two under load, or one
//!    for each of several channels), what arrives meanwhile forms the next. Cleaning, key tables and large values have streams of their own.
//! 3. The *metadata log* keeps the segment table and the client's own state: a snapshot, then edits. It names the
//!    segments that are opened next, so that recovery knows where to look.
//! 4. Opening a cleanly closed drive reads the superblock and the metadata log; after a crash the frames that the
//!    client has not put elsewhere yet ([`Replay`]) are read as well.
//! 5. Released segments are reused only once a metadata record that knows of the release is durable, and never
//!    while a [`Pin`] from before is held.
//!
//! Layouts are in `docs/format/`. What is alive is the client's knowledge; the heap only keeps hints.

mod addr;
mod ahead;
mod commit;
mod company;
mod covered;
mod error;
mod fetch;
mod forming;
mod framebuf;
pub mod ftl;
mod heads;
mod heap;
mod home;
mod inner;
mod lanes;
pub mod layout;
mod merge;
mod metalog;
mod moves;
mod open;
mod options;
mod pace;
mod patrol;
mod pins;
mod plausible;
mod pump;
mod read;
mod records;
mod relocate;
mod replay;
mod room;
mod scan;
mod space;
mod stats;
mod summary;
mod sweep;
mod table;
mod tail;
mod wear;
mod writer;

pub use addr::{Addr, Group, RecordPtr, SegmentId, Stream, TABLE_GROUPS};
pub use commit::Admitted;
pub use error::{AppendError, CommitFailed, Damage, HeapError, ReadError};
pub use framebuf::Object;
pub use heap::*;
pub use options::{Durability, FormatOptions, HeapOptions, PrewriteProgress};
pub use patrol::{Patrol, PatrolStats, PatrolStep};
pub use records::{Contents, MovedRecord, Outline, Record, RecordHead, RecordIn, Replayed};
pub use replay::{Replay, ReplayedBatch};
pub use room::{Place, Turn};
pub use space::{ChannelReport, SpaceReport, Wear};
pub use stats::HeapStats;
pub use sweep::Sweep;
