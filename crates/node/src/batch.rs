//! A batch over the drives of one server: one kv batch per drive touched.
//!
//! What is written becomes visible as a whole, on all drives, or nothing of it does. On a crash each drive's part is all or
//! nothing; parts on different drives may part ways, which `docs/decisions/` explains.

use bytes::Bytes;
use pumice_kv::{Batch, LargeRef, Stored};
use smallvec::SmallVec;

use crate::place::Place;

/// Changes to apply together. Made with [`NodeBatch::new`], applied with [`crate::Node::write_ready`].
#[derive(Default)]
pub struct NodeBatch {
    /// By rising drive, whatever came first: those that were used before stay, empty.
    parts: SmallVec<[(u16, Batch); 1]>,
    rewrites: bool,
}

impl NodeBatch {
    /// No changes yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The part of `drive`, made when missing.
    pub fn part(&mut self, drive: u16) -> &mut Batch {
        let at = self.parts.iter().position(|(d, _)| *d >= drive).unwrap_or(self.parts.len());
        if self.parts.get(at).is_none_or(|(d, _)| *d != drive) {
            let mut part = Batch::new();
            part.set_rewrites(self.rewrites);
            self.parts.insert(at, (drive, part));
        }
        &mut self.parts[at].1
    }

    /// Says whether it puts about as much as it takes the place of, or less; see [`Batch::set_rewrites`].
    pub fn set_rewrites(&mut self, rewrites: bool) {
        self.rewrites = rewrites;
        self.parts.iter_mut().for_each(|(_, batch)| batch.set_rewrites(rewrites));
    }

    /// Sets `key` (encoded) to `value`; `expire_ms` is unix time, 0 for never.
    pub fn put(&mut self, place: Place, key: &[u8], tag: u8, expire_ms: u64, value: &[u8]) {
        self.part(place.drive).put(place.slice, key, tag, expire_ms, value);
    }

    /// [`NodeBatch::put`] without copying the value into the batch.
    pub fn put_bytes(&mut self, place: Place, key: &[u8], tag: u8, expire_ms: u64, value: Bytes) {
        self.part(place.drive).put_bytes(place.slice, key, tag, expire_ms, value);
    }

    /// Sets `key` (encoded) to a value written before with [`crate::Node::large_writer`].
    pub fn put_large(&mut self, place: Place, key: &[u8], tag: u8, expire_ms: u64, value: &LargeRef) {
        self.part(place.drive).put_large(place.slice, key, tag, expire_ms, value);
    }

    /// Puts the newest version of `key` (encoded) again, with another expiry; see [`Batch::put_again`].
    pub fn put_again(&mut self, place: Place, key: &[u8], expire_ms: u64, stored: &Stored) {
        self.part(place.drive).put_again(place.slice, key, expire_ms, stored);
    }

    /// Promises that the key of the last put, which was at `place`, is not there before it; see [`Batch::of_new_key`].
    pub fn of_new_key(&mut self, place: Place) {
        self.part(place.drive).of_new_key();
    }

    /// Removes `key` (encoded).
    pub fn delete(&mut self, place: Place, key: &[u8]) {
        self.part(place.drive).delete(place.slice, key);
    }

    /// Drops every key under `prefix` on the slice of `place`, lazily. The caller promises never to read or
    /// write a key under it again.
    pub fn retire(&mut self, place: Place, prefix: &[u8]) {
        self.part(place.drive).retire(place.slice, prefix);
    }

    /// Adds `delta` to the drive's count of `space` (keys of a database).
    pub fn tally(&mut self, place: Place, space: u32, delta: i64) {
        self.part(place.drive).tally(space, delta);
    }

    /// True when nothing was put, deleted, retired or tallied.
    pub fn is_empty(&self) -> bool {
        self.parts.iter().all(|(_, batch)| batch.is_empty())
    }

    /// Forgets all changes, keeping the memory.
    pub fn clear(&mut self) {
        self.parts.iter_mut().for_each(|(_, batch)| batch.clear());
        self.rewrites = false;
    }

    /// Bytes of all records' payloads.
    pub fn bytes(&self) -> usize {
        self.parts.iter().map(|(_, batch)| batch.bytes()).sum()
    }

    /// The drives that it changes and how, by rising drive.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (u16, &Batch)> {
        self.parts.iter().filter(|(_, batch)| !batch.is_empty()).map(|(drive, batch)| (*drive, batch))
    }
}
