//! Moving a list's elements over, for LINSERT and LREM.
//!
//! Elements lie under consecutive indexes, so making or closing room in the middle means writing the elements of
//! one side again, one index over: the side that has fewer. They are read as a stream and written in pieces, and
//! between two pieces the list has a *gap*: indexes inside of `first..end` that hold no element. Each piece
//! stores, in one batch with the elements it moved, where the gap is (sub 1) and a mark in the head that there
//! is one. LREM stores as well what it removes (sub 2, with the first piece alone: it may be long), and with the gap
//! which way it goes and how far. After a crash in the midst, the next command on the list finds the mark: it goes
//! on removing what is left of an LREM, which has then happened, or closes the gap of an LINSERT, which has not.
//! Shifts that fit into one piece are one batch, and whole or absent.

use bytes::Bytes;
use pumice_kv::Direction;
use smallvec::SmallVec;

use super::collection::{commit_piece, damaged, is_piece};
use super::list::{put, read, remove};
use crate::context::Ctx;
use crate::errors::{CommandResult, Failure};
use crate::keyspace::{Change, Collection, HINT_GAP, HINT_NONE_OUTSIDE};

/// Sub of the record that says where the gap is; its field is empty.
const GAP: u8 = 1;
/// Sub of what an LREM under way removes; its field is empty.
const REMOVED: u8 = 2;
/// The gap alone.
const GAP_BYTES: usize = 16;
/// The gap, and how an LREM goes on.
const REMOVAL_BYTES: usize = GAP_BYTES + 9;

/// Whether a crash left a gap in `list`.
pub(super) fn is_interrupted(list: &Collection) -> bool {
    list.hints & HINT_GAP != 0
}

/// Of a list whose change is written in pieces: after a crash some elements may lie where nobody looks any more.
pub(super) fn may_leave_some_outside(list: &mut Collection) {
    list.hints &= !HINT_NONE_OUTSIDE;
}

/// Ends the shift that a crash interrupted. Hold the latch.
pub(super) async fn complete(ctx: &mut Ctx, list: Collection) -> Result<Collection, Failure> {
    let record = ctx.element(&list, GAP, b"").await?;
    let gap = record.as_deref().and_then(Gap::decode).filter(|gap| gap.lies_in(&list));
    let gap = gap.ok_or_else(|| unfit(&list))?;
    let value = match gap.removal {
        Some(_) => ctx.element(&list, REMOVED, b"").await?.ok_or_else(|| unfit(&list))?,
        None => Bytes::new(),
    };
    let mut shift = Shift::new(ctx, list);
    (shift.start, shift.len, shift.is_stored) = (gap.start, gap.len, true);
    match gap.removal {
        Some((direction, until)) => {
            shift.removal = Some(Removal { value: &value, direction, until });
            shift.remove_rest(ctx).await?;
        }
        None => shift.close(ctx).await?,
    }
    shift.finish(ctx).await
}

fn unfit(list: &Collection) -> Failure {
    Failure::new(format!(
        "ERR key '{}' is damaged: what is noted of its unfinished LINSERT or LREM does not fit it",
        String::from_utf8_lossy(list.key.user())
    ))
}

/// What sub [`GAP`] says.
#[derive(Debug)]
pub struct Gap {
    start: i64,
    len: i64,
    /// Which way an LREM goes, and the last index at which it removes.
    removal: Option<(Direction, i64)>,
}

impl Gap {
    /// The stored form.
    pub fn encode(&self) -> SmallVec<[u8; REMOVAL_BYTES]> {
        let mut record = SmallVec::new();
        record.extend_from_slice(&self.start.to_le_bytes());
        record.extend_from_slice(&self.len.to_le_bytes());
        if let Some((direction, until)) = self.removal {
            record.extend_from_slice(&until.to_le_bytes());
            record.push(u8::from(direction == Direction::Backward));
        }
        record
    }

    /// Reads what [`Gap::encode`] wrote; `None` for anything else.
    pub fn decode(record: &[u8]) -> Option<Self> {
        let word = |at: usize| record.get(at..at + 8)?.try_into().ok().map(i64::from_le_bytes);
        let removal = match (record.len(), record.last()) {
            (GAP_BYTES, _) => None,
            (REMOVAL_BYTES, Some(0)) => Some((Direction::Forward, word(16)?)),
            (REMOVAL_BYTES, Some(1)) => Some((Direction::Backward, word(16)?)),
            _ => return None,
        };
        Some(Self { start: word(0)?, len: word(8)?, removal })
    }

    /// Whether `list` can have it: inside, and as long as the count leaves out.
    pub fn lies_in(&self, list: &Collection) -> bool {
        let end = self.start.checked_add(self.len);
        self.len > 0
            && self.start >= list.first
            && end.is_some_and(|end| end <= list.end)
            && list.end - list.first - self.len == list.count as i64
    }
}

/// What an LREM removes, and where.
#[derive(Clone, Copy)]
struct Removal<'a> {
    value: &'a [u8],
    /// Which way the gap goes: to the nearer end of the list.
    direction: Direction,
    /// The last index, in that direction, at which elements are removed; those behind it stay whatever they are.
    until: i64,
}

impl Removal<'_> {
    fn takes(&self, at: i64, value: &[u8]) -> bool {
        let is_in_reach =
            if self.direction == Direction::Forward { at <= self.until } else { at >= self.until };
        is_in_reach && value == self.value
    }
}

/// Where the elements lie that are to be removed.
pub(super) struct Matches {
    /// How many.
    pub count: u64,
    /// Index of the first.
    first: i64,
    /// Index of the last.
    last: i64,
}

/// Finds the elements equal to `value`, at most `limit`, the first ones or (backward) the last ones. Between the
/// first and the last found there are no others.
pub(super) async fn find(
    ctx: &mut Ctx,
    list: &Collection,
    value: &[u8],
    limit: u64,
    direction: Direction,
) -> Result<Option<Matches>, Failure> {
    let mut scan = read(ctx, list, list.first, list.end, direction);
    let mut matches: Option<Matches> = None;
    let mut seen = 0;
    while matches.as_ref().is_none_or(|matches| matches.count < limit)
        && let Some((_, found)) = scan.next(ctx).await?
    {
        let at = if direction == Direction::Forward { list.first + seen } else { list.end - 1 - seen };
        seen += 1;
        if found == value {
            let matches = matches.get_or_insert(Matches { count: 0, first: at, last: at });
            matches.count += 1;
            matches.first = matches.first.min(at);
            matches.last = matches.last.max(at);
        }
    }
    Ok(matches)
}

/// A list with a gap, on its way.
pub(super) struct Shift<'a> {
    pub change: Change,
    pub list: Collection,
    /// First index of the gap.
    start: i64,
    /// Indexes in it; 0: there is none.
    len: i64,
    /// For LREM.
    removal: Option<Removal<'a>>,
    /// The gap is on flash, and what is removed.
    is_stored: bool,
}

impl<'a> Shift<'a> {
    /// No gap yet. Hold the latch until the end.
    pub(super) fn new(ctx: &mut Ctx, list: Collection) -> Self {
        Self { change: ctx.change(), list, start: 0, len: 0, removal: None, is_stored: false }
    }

    /// Puts a new element before the one at the index `at`.
    pub(super) async fn insert(&mut self, ctx: &mut Ctx, at: i64, value: &[u8]) -> CommandResult {
        self.len = 1;
        let target = if at - self.list.first <= self.list.end - at {
            self.list.first -= 1;
            self.start = self.list.first;
            self.gap_right(ctx, at).await?;
            at - 1
        } else {
            self.start = self.list.end;
            self.list.end += 1;
            self.gap_left(ctx, at).await?;
            at
        };
        put(&mut self.change, &mut self.list, target, value);
        self.list.count += 1;
        self.len = 0;
        Ok(())
    }

    /// Removes the elements that [`find`] found. What lies between the first and the last of them, and one end
    /// of the list, moves over, whichever end is nearer.
    pub(super) async fn remove_matches(
        &mut self,
        ctx: &mut Ctx,
        value: &'a [u8],
        matches: &Matches,
    ) -> CommandResult {
        let (left, right) = (matches.last - self.list.first, self.list.end - 1 - matches.first);
        let (direction, until) = if left < right {
            self.start = matches.last + 1;
            (Direction::Backward, matches.first)
        } else {
            self.start = matches.first;
            (Direction::Forward, matches.last)
        };
        self.removal = Some(Removal { value, direction, until });
        self.remove_rest(ctx).await
    }

    /// Moves the gap to its end of the list and off it, through what is to be removed.
    async fn remove_rest(&mut self, ctx: &mut Ctx) -> CommandResult {
        let Some(removal) = self.removal else { return Ok(()) };
        let (from, to) = match removal.direction {
            Direction::Forward => (self.start + self.len, self.list.end),
            Direction::Backward => (self.list.first, self.start),
        };
        let mut scan = read(ctx, &self.list, from, to, removal.direction);
        for step in 0..to - from {
            let at = if removal.direction == Direction::Forward { from + step } else { to - 1 - step };
            let Some((_, found)) = scan.next(ctx).await? else { return Err(self.is_short(at)) };
            if removal.takes(at, &found) {
                self.list.count -= 1;
                self.len += 1;
                if removal.direction == Direction::Backward {
                    self.start = at;
                }
            } else {
                self.cross(at, &found, removal.direction);
                self.piece(ctx).await?;
            }
        }
        self.leave(ctx).await
    }

    /// The element at `at`, next to the gap, goes to the gap's other side.
    fn cross(&mut self, at: i64, value: &Bytes, direction: Direction) {
        if direction == Direction::Forward {
            put(&mut self.change, &mut self.list, at - self.len, value);
            self.start += 1;
        } else {
            put(&mut self.change, &mut self.list, at + self.len, value);
            self.start -= 1;
        }
    }

    /// Moves the gap to the right until it ends at `until`.
    async fn gap_right(&mut self, ctx: &mut Ctx, until: i64) -> CommandResult {
        let from = self.start + self.len;
        let mut scan = read(ctx, &self.list, from, until, Direction::Forward);
        for at in from..until {
            let Some((_, value)) = scan.next(ctx).await? else { return Err(self.is_short(at)) };
            self.cross(at, &value, Direction::Forward);
            self.piece(ctx).await?;
        }
        Ok(())
    }

    /// Moves the gap to the left until it begins at `until`.
    async fn gap_left(&mut self, ctx: &mut Ctx, until: i64) -> CommandResult {
        let from = self.start;
        let mut scan = read(ctx, &self.list, until, from, Direction::Backward);
        for at in (until..from).rev() {
            let Some((_, value)) = scan.next(ctx).await? else { return Err(self.is_short(at)) };
            self.cross(at, &value, Direction::Backward);
            self.piece(ctx).await?;
        }
        Ok(())
    }

    fn is_short(&self, at: i64) -> Failure {
        damaged(&self.list, (at - self.list.first).unsigned_abs())
    }

    /// Moves the gap to the nearer end of the list and off it.
    async fn close(&mut self, ctx: &mut Ctx) -> CommandResult {
        let (left, right) = (self.start - self.list.first, self.list.end - (self.start + self.len));
        if left <= right {
            self.gap_left(ctx, self.list.first).await?;
        } else {
            self.gap_right(ctx, self.list.end).await?;
        }
        self.leave(ctx).await
    }

    /// The gap, now at one end, is outside of the list from here on.
    async fn leave(&mut self, ctx: &mut Ctx) -> CommandResult {
        let outside = self.start..self.start + self.len;
        if self.start == self.list.first {
            self.list.first = outside.end;
        } else {
            assert_eq!(outside.end, self.list.end, "a gap in the middle of a list cannot be left");
            self.list.end = self.start;
        }
        self.len = 0;
        // Nobody looks at these indexes any more: a crash may leave some.
        for at in outside {
            remove(&mut self.change, &self.list, at);
            self.piece(ctx).await?;
        }
        Ok(())
    }

    /// Writes what is collected if it is much, with the state of the gap.
    async fn piece(&mut self, ctx: &mut Ctx) -> CommandResult {
        if !is_piece(ctx, &self.change)? {
            return Ok(());
        }
        self.store_gap();
        may_leave_some_outside(&mut self.list);
        self.change.put_collection(&mut self.list, true);
        commit_piece(ctx, &mut self.change).await
    }

    fn store_gap(&mut self) {
        if self.len > 0 {
            let removal = self.removal.map(|removal| (removal.direction, removal.until));
            let gap = Gap { start: self.start, len: self.len, removal };
            self.change.put_element(&self.list, GAP, b"", &gap.encode());
            if let (Some(removal), false) = (self.removal, self.is_stored) {
                self.change.put_element(&self.list, REMOVED, b"", removal.value);
            }
            self.list.hints |= HINT_GAP;
            self.is_stored = true;
        } else if self.is_stored {
            self.change.delete_element(&self.list, GAP, b"");
            if self.removal.is_some() {
                self.change.delete_element(&self.list, REMOVED, b"");
            }
            self.list.hints &= !HINT_GAP;
            self.is_stored = false;
        }
    }

    /// Writes the rest; the list as it now is.
    pub(super) async fn finish(mut self, ctx: &mut Ctx) -> Result<Collection, Failure> {
        self.store_gap();
        self.change.put_collection(&mut self.list, true);
        ctx.commit(self.change).await?;
        Ok(self.list)
    }
}
