//! The row cache of a slice: hot rows, each with its value.
//!
//! Rows lie one behind the other in chunks: head, key, value. A long value lies in memory of its own, which replies can share; its row
//! holds its number in the chunk. So a row costs its bytes and little more, and a look-up meets the index and then one place
//! in memory.
//!
//! Chunks make two queues. A row comes to the end of the young one, a tenth of the cache. At its front it goes, or moves to the main one
//! if it was looked at meanwhile; at the front of that it goes, too, or comes to its end once more, at the cost of one of the looks that
//! it remembers. (S3-FIFO: Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023. What it remembers of
//! keys that went is `cache/refused.rs`, which keeps them out instead.) The places of rows that were written in between are
//! taken by rows as long that move.

use std::collections::VecDeque;

use bytes::Bytes;
use pumice_base::hash::HashMap;

use crate::hash_index::{HashIndex, Whereabouts};
use crate::types::{Entry, EntryView, Seq, ValueView};

/// Values from this length on lie in memory of their own: replies share them, where they copy shorter ones.
pub const APART_FROM_BYTES: usize = 4096;
/// Largest chunk of more than one row.
const CHUNK_BYTES_MAX: usize = 64 << 10;
/// Smallest, for small caches.
const CHUNK_BYTES_MIN: usize = 16 << 10;
/// A cache of the largest chunks has so many at least.
const CHUNKS_MIN: u64 = 64;
/// The young queue has this part of the cache.
const YOUNG_PART: u64 = 10;
/// A row takes this part of its cache at most.
const ROW_PART_MAX: u64 = 4;
/// Memory of a row besides its chunk: its place in the index (11 to 16 B, more where there were more rows before or while it moves) and
/// its part of what is remembered of refused keys (8 to 16 B).
const ROW_OVERHEAD_BYTES: u64 = 40;
/// The same of a value that lies apart: what its allocation takes. Where its chunk has it is counted as it is.
const APART_OVERHEAD_BYTES: u64 = 96;
/// An index with more than so many times the places that it would be made with for its rows is made smaller.
const INDEX_TIMES: usize = 2;
/// Bytes of rows that are moved for one that comes, at most: a cache in which all are hot is not gone over in one go. It holds a little
/// more than it may meanwhile, this part at most.
const MOVED_BYTES_MAX: u64 = 256 << 10;
const EXCESS_PART: u64 = 16;
/// So many each counts for.
const MOVED_BYTES_MIN: u64 = 512;
/// Looks that a row remembers.
const LOOKS_MAX: u8 = 7;

const HEAD_BYTES: usize = 32;
/// Where in the head a row's looks and flags are.
const STATE_AT: usize = 29;
const LOOKS: u8 = 0x07;
const APART: u8 = 0x40;
const DEAD: u8 = 0x80;

/// What stands before a row's key.
#[derive(Clone, Copy)]
struct RowHead {
    seq: Seq,
    expire_ms: u64,
    hash: u32,
    key_len: u32,
    /// Bytes behind the key: the value, or the number of one that lies apart.
    rest_len: u32,
    tag: u8,
    state: u8,
}

impl RowHead {
    fn encode(self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        bytes[..8].copy_from_slice(&self.seq.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.expire_ms.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.hash.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.key_len.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.rest_len.to_le_bytes());
        bytes[28] = self.tag;
        bytes[STATE_AT] = self.state;
        bytes
    }

    fn decode(bytes: &[u8]) -> Self {
        let bytes: &[u8; HEAD_BYTES] = bytes.first_chunk().expect("a row has a head");
        let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        Self {
            seq: u64_at(0),
            expire_ms: u64_at(8),
            hash: u32_at(16),
            key_len: u32_at(20),
            rest_len: u32_at(24),
            tag: bytes[28],
            state: bytes[STATE_AT],
        }
    }

    fn is(self, flag: u8) -> bool {
        self.state & flag != 0
    }

    fn key_end(self) -> usize {
        HEAD_BYTES + self.key_len as usize
    }

    /// Where what is behind the key ends.
    fn end(self) -> usize {
        self.key_end() + self.rest_len as usize
    }

    /// Bytes of the whole row: few lengths, so that rows fit where others were.
    fn row_bytes(self) -> usize {
        let end = self.end();
        end.next_multiple_of((1 << end.ilog2()) / 16).next_multiple_of(Place::ALIGNMENT)
    }
}

/// What a dead row of the main queue has at its beginning: which holes of its length come before and behind it.
#[derive(Clone, Copy)]
struct Hole {
    before: Option<Place>,
    behind: Option<Place>,
}

impl Hole {
    fn decode(row: &[u8]) -> Self {
        let place = |at: usize| {
            let place = Place(u32::from_le_bytes([row[at], row[at + 1], row[at + 2], row[at + 3]]));
            (place.age() == Age::Main).then_some(place)
        };
        Self { before: place(0), behind: place(4) }
    }

    fn encode(self, row: &mut [u8]) {
        // None is in the young queue.
        let number = |place: Option<Place>| place.unwrap_or(Place::new(Age::Young, 0, 0)).0.to_le_bytes();
        row[..4].copy_from_slice(&number(self.before));
        row[4..8].copy_from_slice(&number(self.behind));
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Age {
    Young,
    Main,
}

/// Where a row lies: its queue, the number of its chunk, of which the upper bits are lost, and where in that.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Place(u32);

impl Place {
    const ALIGNMENT: usize = 8;
    const AT_BITS: u32 = (CHUNK_BYTES_MAX / Self::ALIGNMENT).ilog2();
    /// So many chunks of a queue can be told apart. It has half as many at most, and for a moment a few more.
    const CHUNKS: u32 = 1 << (31 - Self::AT_BITS);

    fn new(age: Age, chunk: u64, at: usize) -> Self {
        let chunk = chunk as u32 & (Self::CHUNKS - 1);
        Self((age as u32) << 31 | chunk << Self::AT_BITS | (at / Self::ALIGNMENT) as u32)
    }

    fn age(self) -> Age {
        if self.0 >> 31 == Age::Young as u32 { Age::Young } else { Age::Main }
    }

    /// Which of its queue's chunks it is in, the oldest of which has this number.
    fn chunk(self, oldest: u64) -> usize {
        ((self.0 >> Self::AT_BITS).wrapping_sub(oldest as u32) & (Self::CHUNKS - 1)) as usize
    }

    fn at(self) -> usize {
        (self.0 & ((1 << Self::AT_BITS) - 1)) as usize * Self::ALIGNMENT
    }
}

#[derive(Default)]
struct Chunk {
    bytes: Vec<u8>,
    /// Values that lie apart, by their numbers.
    apart: Vec<Bytes>,
    /// Numbers that no row has any more.
    free: Vec<u32>,
}

impl Chunk {
    /// Memory of numbers and of where their values are.
    fn slot_bytes(&self) -> u64 {
        (self.apart.capacity() * size_of::<Bytes>() + self.free.capacity() * size_of::<u32>()) as u64
    }

    /// Keeps a value that lies apart. Answers its number.
    fn keep(&mut self, value: Bytes) -> u32 {
        if let Some(number) = self.free.pop() {
            self.apart[number as usize] = value;
            return number;
        }
        self.apart.push(value);
        self.apart.len() as u32 - 1
    }

    /// Gives up the value with this number.
    fn take(&mut self, number: u32) -> Bytes {
        self.free.push(number);
        std::mem::take(&mut self.apart[number as usize])
    }
}

#[derive(Default)]
struct Queue {
    /// The oldest first.
    chunks: VecDeque<Chunk>,
    /// The oldest one's number.
    oldest: u64,
    /// How far its rows are gone over.
    oldest_at: usize,
    /// Memory of chunks and of what lies apart.
    held_bytes: u64,
}

impl Queue {
    fn row(&self, place: Place) -> &[u8] {
        &self.chunks[place.chunk(self.oldest)].bytes[place.at()..]
    }

    fn row_mut(&mut self, place: Place) -> &mut [u8] {
        &mut self.chunks[place.chunk(self.oldest)].bytes[place.at()..]
    }
}

/// See the head of this file.
pub struct RowCache {
    capacity: u64,
    chunk_bytes: usize,
    index: HashIndex,
    young: Queue,
    main: Queue,
    /// Bytes of rows that are not dead, and of what lies apart.
    live_bytes: u64,
    /// Memory of the numbers of what lies apart, those that no row has, too.
    slot_bytes: u64,
    /// Places of dead rows in the main queue, by length: the youngest, which knows the next ([`Hole`]). None is in the oldest chunk,
    /// where a row would go at once. (A list beside them would be as long as there were ever rows of its length.)
    holes: HashMap<usize, Place>,
    /// Of a chunk that went, for the next one.
    spare: Vec<u8>,
}

fn short(hash: u64) -> u32 {
    hash as u32
}

impl RowCache {
    /// An empty one that holds so many bytes.
    pub fn new(capacity: u64) -> Self {
        let mut cache = Self {
            capacity: 0,
            chunk_bytes: 0,
            index: HashIndex::default(),
            young: Queue::default(),
            main: Queue::default(),
            live_bytes: 0,
            slot_bytes: 0,
            holes: HashMap::default(),
            spare: Vec::new(),
        };
        cache.set_capacity(capacity);
        cache
    }

    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// Bytes that it may hold.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Bytes that it takes: a little more than its capacity at times.
    pub fn weight(&self) -> u64 {
        self.young.held_bytes + self.main.held_bytes + self.overhead_bytes()
    }

    /// Memory that it has asked for, counted piece by piece: what [`RowCache::weight`] is to be a good guess of.
    pub fn allocated(&self) -> u64 {
        let of_chunk = |chunk: &Chunk| {
            let apart: usize = chunk.apart.iter().map(Bytes::len).sum();
            chunk.bytes.capacity() as u64 + apart as u64 + chunk.slot_bytes()
        };
        let chunks: u64 = self.young.chunks.iter().chain(&self.main.chunks).map(of_chunk).sum();
        let holes = self.holes.capacity() * size_of::<(usize, Place)>();
        chunks + (self.index.bytes() + holes + self.spare.capacity()) as u64
    }

    fn overhead_bytes(&self) -> u64 {
        // Where there were many more rows the index is the larger part, until chunks go.
        (self.index.len() as u64 * ROW_OVERHEAD_BYTES).max(self.index.bytes() as u64)
    }

    /// From now on it holds so many bytes.
    pub fn set_capacity(&mut self, capacity: u64) {
        self.capacity = capacity;
        let fitting = (capacity / CHUNKS_MIN).min(CHUNK_BYTES_MAX as u64) as usize;
        self.chunk_bytes = fitting.next_power_of_two().clamp(CHUNK_BYTES_MIN, CHUNK_BYTES_MAX);
        if self.spare.capacity() != self.chunk_bytes {
            self.spare = Vec::new();
        }
        self.make_room(0);
    }

    /// Whether a row of such a key and value needs no other's place: dead ones are nobody's.
    pub fn has_room_for(&self, key: &[u8], value: &[u8]) -> bool {
        let unfilled = 2 * self.chunk_bytes as u64;
        let row = (HEAD_BYTES + key.len() + value.len()) as u64;
        self.live_bytes + self.slot_bytes + self.overhead_bytes() + unfilled + row <= self.capacity
    }

    /// The row of `key`, which has this hash.
    pub fn get(&mut self, hash: u64, key: &[u8]) -> Option<EntryView<'_>> {
        self.index.settle();
        let place = self.find(short(hash), key)?;
        let chunk = self.chunk_mut(place);
        let at = place.at();
        let head = RowHead::decode(&chunk.bytes[at..]);
        if head.state & LOOKS < LOOKS_MAX {
            chunk.bytes[at + STATE_AT] += 1;
        }
        let rest = &chunk.bytes[at + head.key_end()..at + head.end()];
        let value = if head.is(APART) {
            ValueView::Shared(&chunk.apart[number_of(rest) as usize])
        } else {
            ValueView::Inline(rest)
        };
        Some(EntryView { tag: head.tag, expire_ms: head.expire_ms, seq: head.seq, value })
    }

    /// Notes where the index lies, which moves a little if it has to.
    pub fn note(&mut self, whereabouts: &Whereabouts) {
        self.index.settle();
        whereabouts.note(&self.index);
    }

    /// Begins to bring the rows of this hash from memory, with so many bytes of key and value. Answers whether there are any.
    pub fn prefetch(&self, hash: u64, bytes: usize) -> bool {
        let mut any = false;
        for place in self.index.all(short(hash)).map(Place) {
            let row = self.queue(place.age()).row(place);
            pumice_reactor::prefetch(&row[..row.len().min(HEAD_BYTES + bytes)]);
            any = true;
        }
        any
    }

    /// Takes the row of `key`, which has this hash, instead of the one that is there. Not of a large value: its pieces may move.
    pub fn insert(&mut self, hash: u64, key: &[u8], row: &Entry) {
        assert!(row.large.is_none(), "a large value in the row cache");
        self.remove(hash, key);
        let weight = (HEAD_BYTES + key.len() + row.value.len()) as u64;
        if weight > self.capacity / ROW_PART_MAX {
            return;
        }
        let is_apart = row.value.len() >= APART_FROM_BYTES;
        let rest_len = if is_apart { size_of::<u32>() } else { row.value.len() };
        let head = RowHead {
            seq: row.seq,
            expire_ms: row.expire_ms,
            hash: short(hash),
            key_len: key.len() as u32,
            rest_len: rest_len as u32,
            tag: row.tag,
            state: 0,
        };
        let place = self.room_at_the_end(Age::Young, head.row_bytes());
        let value = if is_apart { &[] } else { &row.value[..] };
        self.write(place, head, key, value, is_apart.then(|| row.value.clone()));
        self.index.insert(head.hash, place.0);
        self.make_room(self.capacity / EXCESS_PART);
    }

    /// The row of `key`, which has this hash, is of another version from now on, with the same value.
    pub fn renew(&mut self, hash: u64, key: &[u8], seq: Seq, expire_ms: u64) {
        let Some(place) = self.find(short(hash), key) else { return };
        let row = self.queue_mut(place.age()).row_mut(place);
        let head = RowHead { seq, expire_ms, ..RowHead::decode(row) };
        row[..HEAD_BYTES].copy_from_slice(&head.encode());
    }

    /// Forgets the row of `key`, which has this hash.
    pub fn remove(&mut self, hash: u64, key: &[u8]) {
        let Some(place) = self.find(short(hash), key) else { return };
        self.index.remove(short(hash), place.0);
        let row = self.queue_mut(place.age()).row_mut(place);
        row[STATE_AT] |= DEAD;
        let head = RowHead::decode(row);
        let number = head.is(APART).then(|| number_of(&row[head.key_end()..]));
        self.count_gone(place, head, number);
        if place.age() == Age::Main && place.chunk(self.main.oldest) > 0 {
            self.list_hole(place, head.row_bytes());
        }
    }

    fn queue(&self, age: Age) -> &Queue {
        match age {
            Age::Young => &self.young,
            Age::Main => &self.main,
        }
    }

    fn queue_mut(&mut self, age: Age) -> &mut Queue {
        match age {
            Age::Young => &mut self.young,
            Age::Main => &mut self.main,
        }
    }

    fn chunk_mut(&mut self, place: Place) -> &mut Chunk {
        let queue = self.queue_mut(place.age());
        let at = place.chunk(queue.oldest);
        &mut queue.chunks[at]
    }

    fn find(&self, short: u32, key: &[u8]) -> Option<Place> {
        let is_of_key = |place: &Place| {
            let row = self.queue(place.age()).row(*place);
            row[HEAD_BYTES..RowHead::decode(row).key_end()] == *key
        };
        self.index.all(short).map(Place).find(is_of_key)
    }

    /// Writes a row to its place; `value` is of no matter if it lies apart.
    fn write(&mut self, place: Place, head: RowHead, key: &[u8], value: &[u8], apart: Option<Bytes>) {
        let held = apart.as_ref().map_or(0, apart_bytes);
        let flag = if apart.is_some() { APART } else { 0 };
        self.live_bytes += head.row_bytes() as u64 + held;
        let chunk = self.chunk_mut(place);
        let before = chunk.slot_bytes();
        let number = apart.map(|apart| chunk.keep(apart).to_le_bytes());
        let slots = chunk.slot_bytes() - before;
        let rest = number.as_ref().map_or(value, |number| number);
        let row = &mut chunk.bytes[place.at()..];
        row[..HEAD_BYTES].copy_from_slice(&RowHead { state: head.state | flag, ..head }.encode());
        row[HEAD_BYTES..head.key_end()].copy_from_slice(key);
        row[head.key_end()..head.end()].copy_from_slice(rest);
        self.slot_bytes += slots;
        self.queue_mut(place.age()).held_bytes += held + slots;
    }

    /// The row at `place` no longer counts, nor does its value if it lies apart, by this number. Answers that.
    fn count_gone(&mut self, place: Place, head: RowHead, number: Option<u32>) -> Option<Bytes> {
        let chunk = self.chunk_mut(place);
        let before = chunk.slot_bytes();
        let apart = number.map(|number| chunk.take(number));
        let slots = chunk.slot_bytes() - before;
        let held = apart.as_ref().map_or(0, apart_bytes);
        self.slot_bytes += slots;
        self.live_bytes -= head.row_bytes() as u64 + held;
        let queue = self.queue_mut(place.age());
        queue.held_bytes = queue.held_bytes + slots - held;
        apart
    }

    /// The row of so many bytes at `place` is dead: another may have its place.
    fn list_hole(&mut self, place: Place, bytes: usize) {
        let behind = self.holes.insert(bytes, place);
        Hole { before: None, behind }.encode(self.main.row_mut(place));
        if let Some(behind) = behind {
            let row = self.main.row_mut(behind);
            Hole { before: Some(place), ..Hole::decode(row) }.encode(row);
        }
    }

    /// The place of a dead row of so many bytes is no longer to be had.
    fn unlist_hole(&mut self, place: Place, bytes: usize) {
        let Hole { before, behind } = Hole::decode(self.main.row(place));
        match (before, behind) {
            (Some(before), _) => {
                let row = self.main.row_mut(before);
                Hole { behind, ..Hole::decode(row) }.encode(row);
            }
            (None, Some(behind)) => drop(self.holes.insert(bytes, behind)),
            (None, None) => drop(self.holes.remove(&bytes)),
        }
        if let Some(behind) = behind {
            let row = self.main.row_mut(behind);
            Hole { before, ..Hole::decode(row) }.encode(row);
        }
    }

    /// The place of a row of so many bytes that moves to the main queue.
    fn room_in_main(&mut self, bytes: usize) -> Place {
        let Some(&hole) = self.holes.get(&bytes) else { return self.room_at_the_end(Age::Main, bytes) };
        self.unlist_hole(hole, bytes);
        hole
    }

    /// The place of a row of so many bytes that comes next.
    fn room_at_the_end(&mut self, age: Age, bytes: usize) -> Place {
        let fits = |chunk: &Chunk| {
            let at = chunk.bytes.len();
            at + bytes <= chunk.bytes.capacity() && at < CHUNK_BYTES_MAX
        };
        if !self.queue(age).chunks.back().is_some_and(fits) {
            let mut memory = std::mem::take(&mut self.spare);
            if memory.capacity() < bytes {
                memory = Vec::with_capacity(bytes.max(self.chunk_bytes));
            }
            let queue = self.queue_mut(age);
            queue.held_bytes += memory.capacity() as u64;
            queue.chunks.push_back(Chunk { bytes: memory, ..Chunk::default() });
        }
        let queue = self.queue_mut(age);
        let number = queue.oldest + queue.chunks.len() as u64 - 1;
        let chunk = queue.chunks.back_mut().expect("it was there or was made");
        let at = chunk.bytes.len();
        chunk.bytes.resize(at + bytes, 0);
        Place::new(age, number, at)
    }

    /// Which queue is too long, if one is.
    fn too_long(&self) -> Option<Age> {
        let is_full = |queue: &Queue| queue.chunks.len() >= Place::CHUNKS as usize / 2;
        if is_full(&self.young) || is_full(&self.main) {
            return Some(if is_full(&self.young) { Age::Young } else { Age::Main });
        }
        if self.weight() <= self.capacity {
            return None;
        }
        let is_young = self.main.chunks.is_empty() || self.young.held_bytes > self.capacity / YOUNG_PART;
        let age = if is_young { Age::Young } else { Age::Main };
        (!self.queue(age).chunks.is_empty()).then_some(age)
    }

    /// Has rows at the fronts of the queues go, or move, until there is no more than there may be. Where that takes long the rest is
    /// for the next time, unless there is too much by more than `excess`.
    fn make_room(&mut self, excess: u64) {
        let mut moved = 0;
        while let Some(age) = self.too_long() {
            if moved >= MOVED_BYTES_MAX && self.weight() <= self.capacity + excess {
                return;
            }
            let queue = self.queue_mut(age);
            let (oldest, at) = (queue.oldest, queue.oldest_at);
            let bytes = std::mem::take(&mut queue.chunks[0].bytes);
            if at >= bytes.len() {
                self.drop_oldest(age, bytes);
                continue;
            }
            let head = RowHead::decode(&bytes[at..]);
            queue.oldest_at = at + head.row_bytes();
            if !head.is(DEAD) {
                // Where the main queue is one chunk, its end is no other place.
                let may_move = moved < MOVED_BYTES_MAX && (age == Age::Young || queue.chunks.len() > 1);
                let row = &bytes[at..at + head.end()];
                let number = head.is(APART).then(|| number_of(&row[head.key_end()..]));
                let place = Place::new(age, oldest, at);
                let apart = self.count_gone(place, head, number);
                if may_move && head.state & LOOKS > 0 {
                    self.move_to_main(place, row, head, apart);
                    moved += (row.len() as u64).max(MOVED_BYTES_MIN);
                } else {
                    self.index.remove(head.hash, place.0);
                }
            }
            self.queue_mut(age).chunks[0].bytes = bytes;
        }
    }

    fn move_to_main(&mut self, from: Place, row: &[u8], head: RowHead, apart: Option<Bytes>) {
        let place = self.room_in_main(head.row_bytes());
        // What it was looked at while young makes it come here; what it is looked at here makes it stay.
        let looks = if from.age() == Age::Young { 0 } else { (head.state & LOOKS) - 1 };
        let (key, rest) = (&row[HEAD_BYTES..head.key_end()], &row[head.key_end()..]);
        self.write(place, RowHead { state: looks, ..head }, key, rest, apart);
        self.index.replace(head.hash, from.0, place.0);
    }

    /// The oldest chunk of a queue, which has these bytes, has no more rows.
    fn drop_oldest(&mut self, age: Age, mut bytes: Vec<u8>) {
        let queue = self.queue_mut(age);
        let slot_bytes = queue.chunks.pop_front().map_or(0, |chunk| chunk.slot_bytes());
        queue.held_bytes -= bytes.capacity() as u64 + slot_bytes;
        queue.oldest += 1;
        queue.oldest_at = 0;
        self.slot_bytes -= slot_bytes;
        if bytes.capacity() == self.chunk_bytes {
            bytes.clear();
            self.spare = bytes;
        }
        if age == Age::Main {
            self.unlist_holes_of_oldest();
        }
        // Where small rows made way for long ones there are fewer.
        self.index.shrink(INDEX_TIMES);
    }

    fn unlist_holes_of_oldest(&mut self) {
        let mut at = 0;
        while let Some(oldest) = self.main.chunks.front()
            && at < oldest.bytes.len()
        {
            let head = RowHead::decode(&oldest.bytes[at..]);
            if head.is(DEAD) {
                self.unlist_hole(Place::new(Age::Main, self.main.oldest, at), head.row_bytes());
            }
            at += head.row_bytes();
        }
    }
}

/// The number of a value that lies apart, which its row has behind the key.
fn number_of(rest: &[u8]) -> u32 {
    u32::from_le_bytes(*rest.first_chunk().expect("a number"))
}

fn apart_bytes(value: &Bytes) -> u64 {
    value.len() as u64 + APART_OVERHEAD_BYTES
}
