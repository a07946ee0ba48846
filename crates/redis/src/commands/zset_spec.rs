//! Bounds of ranges over sorted sets, read as Redis reads them, and what they mean for the stored order.

use std::ops::Bound;

use super::collection::Field;
use crate::errors::{self, Failure};
use crate::keyspace::{decode_score, encode_score};

/// `min` and `max` of a range by score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScoreRange {
    /// Lowest score.
    pub min: f64,
    /// Highest score.
    pub max: f64,
    /// Scores equal to `min` are out.
    pub min_exclusive: bool,
    /// Scores equal to `max` are out.
    pub max_exclusive: bool,
}

/// One end of a range by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LexBound<'a> {
    /// `-`: below every name.
    Lowest,
    /// `+`: above every name.
    Highest,
    /// `[name`.
    Inclusive(&'a [u8]),
    /// `(name`.
    Exclusive(&'a [u8]),
}

/// `min` and `max` of a range by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LexRange<'a> {
    /// Where the range begins.
    pub min: LexBound<'a>,
    /// Where it ends.
    pub max: LexBound<'a>,
}

/// Reads a bound as C's `strtod` does: leading white space, nothing at all (zero), hexadecimal, and overflow to
/// infinity are all allowed; NaN is not.
fn parse_bound(text: &[u8]) -> Option<f64> {
    // The C string ends at the first NUL.
    let text = text.split(|&b| b == 0).next().unwrap_or(text);
    let is_space = |b: &u8| matches!(b, b' ' | b'\t' | b'\n' | b'\r' | 0x0B | 0x0C);
    if text.is_empty() {
        return Some(0.0);
    }
    let start = text.iter().position(|b| !is_space(b))?;
    crate::number::parse_saturating(&text[start..])
}

impl ScoreRange {
    /// Reads `1.5`, `(1.5`, `-inf`, `+inf`…
    pub fn parse(min: &[u8], max: &[u8]) -> Result<Self, Failure> {
        let end = |text: &[u8]| match text {
            [b'(', rest @ ..] => parse_bound(rest).map(|value| (value, true)),
            _ => parse_bound(text).map(|value| (value, false)),
        };
        match (end(min), end(max)) {
            (Some((min, min_exclusive)), Some((max, max_exclusive))) => {
                Ok(Self { min, max, min_exclusive, max_exclusive })
            }
            _ => Err(errors::MIN_MAX_NOT_FLOAT.into()),
        }
    }

    /// The range in the stored order: fields at or above the first, below the second (`None`: to the end).
    /// `None` when it is empty.
    pub fn fields(&self) -> Option<OrderRange> {
        let nothing =
            self.min > self.max || (self.min == self.max && (self.min_exclusive || self.max_exclusive));
        if nothing {
            return None;
        }
        let lower = if self.min_exclusive { after_score(self.min)? } else { encode_score(self.min) };
        let upper = if self.max_exclusive { Some(encode_score(self.max)) } else { after_score(self.max) };
        Some(OrderRange {
            lower: Bound::Included(Field::from_slice(&lower)),
            upper: upper.map_or(Bound::Unbounded, |upper| Bound::Excluded(Field::from_slice(&upper))),
        })
    }
}

/// The first encoded score after `score`.
fn after_score(score: f64) -> Option<[u8; 8]> {
    u64::from_be_bytes(encode_score(score)).checked_add(1).map(u64::to_be_bytes)
}

/// Bounds on the fields of sub [`super::collection::ORDER`].
#[derive(Clone, Debug)]
pub struct OrderRange {
    /// Where it begins.
    pub lower: Bound<Field>,
    /// Where it ends.
    pub upper: Bound<Field>,
}

impl OrderRange {
    /// Everything.
    pub(super) const ALL: Self = Self { lower: Bound::Unbounded, upper: Bound::Unbounded };

    /// Where it begins.
    pub fn lower(&self) -> Bound<&[u8]> {
        self.lower.as_ref().map(|field| &field[..])
    }

    /// Where it ends.
    pub fn upper(&self) -> Bound<&[u8]> {
        self.upper.as_ref().map(|field| &field[..])
    }
}

impl<'a> LexRange<'a> {
    /// Reads `[a`, `(a`, `-`, `+`.
    pub fn parse(min: &'a [u8], max: &'a [u8]) -> Result<Self, Failure> {
        let end = |text: &'a [u8]| match text {
            b"-" => Some(LexBound::Lowest),
            b"+" => Some(LexBound::Highest),
            [b'[', name @ ..] => Some(LexBound::Inclusive(name)),
            [b'(', name @ ..] => Some(LexBound::Exclusive(name)),
            _ => None,
        };
        match (end(min), end(max)) {
            (Some(min), Some(max)) => Ok(Self { min, max }),
            _ => Err(errors::MIN_MAX_NOT_STRING.into()),
        }
    }

    /// Whether nothing can be in it.
    pub fn is_empty(&self) -> bool {
        use LexBound::{Exclusive, Highest, Inclusive, Lowest};
        match (self.min, self.max) {
            (Lowest, Lowest) | (Highest, Highest) => true,
            (Lowest, _) | (_, Highest) => false,
            (Highest, _) | (_, Lowest) => true,
            (Inclusive(min), Inclusive(max)) => min > max,
            (Inclusive(min) | Exclusive(min), Inclusive(max) | Exclusive(max)) => min >= max,
        }
    }

    /// Whether `name` is in it.
    pub fn contains(&self, name: &[u8]) -> bool {
        let above = match self.min {
            LexBound::Lowest => true,
            LexBound::Highest => false,
            LexBound::Inclusive(min) => name >= min,
            LexBound::Exclusive(min) => name > min,
        };
        let below = match self.max {
            LexBound::Lowest => false,
            LexBound::Highest => true,
            LexBound::Inclusive(max) => name <= max,
            LexBound::Exclusive(max) => name < max,
        };
        above && below
    }

    /// The range in the stored order of members that all have the score encoded as `score`.
    pub fn fields(&self, score: [u8; 8]) -> OrderRange {
        let field = |name: &[u8]| {
            let mut field = Field::from_slice(&score);
            field.extend_from_slice(name);
            field
        };
        let end = || after_score(decode_score(score));
        let lower = match self.min {
            LexBound::Lowest | LexBound::Highest => Bound::Included(field(b"")),
            LexBound::Inclusive(name) => Bound::Included(field(name)),
            LexBound::Exclusive(name) => Bound::Excluded(field(name)),
        };
        let upper = match self.max {
            LexBound::Lowest | LexBound::Highest => {
                end().map_or(Bound::Unbounded, |end| Bound::Excluded(Field::from_slice(&end)))
            }
            LexBound::Inclusive(name) => Bound::Included(field(name)),
            LexBound::Exclusive(name) => Bound::Excluded(field(name)),
        };
        OrderRange { lower, upper }
    }
}
