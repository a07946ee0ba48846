//! Between which keys a table lies, as the manifest says it: no longer than it takes to tell tables of a run apart.
//!
//! The metadata log is a four-thousandth of a drive, and memory holds all bounds. Keys of 64 KiB as they are would be 130 KB for each
//! table of 2 MiB: 2,000 of them filled the log of a drive of 4 GiB, which took no writes from then on. So a bound is a first or
//! last key only where that is short; else it is a short key at or below the first, or at or above the last. What tables of one run need
//! is that their ranges do not meet.

use std::cmp::Ordering;

use bytes::Bytes;

/// Keys up to so many bytes bound their tables as they are.
pub const SHORT_KEY_BYTES: usize = 64;

/// What lies before a table in its run.
#[derive(Clone, Debug)]
pub enum Before {
    /// Nothing.
    Nothing,
    /// Nothing at or above this key, which is at or below the table's first.
    From(Bytes),
    /// Nothing above this key, which is below the table's first.
    UpTo(Bytes),
}

/// What lies behind a table in its run.
#[derive(Clone, Copy, Debug)]
pub enum Behind<'a> {
    /// Nothing.
    Nothing,
    /// Nothing below this key, which is above the table's last.
    From(&'a [u8]),
    /// Nothing at or below this key, which is at or above the table's last.
    Above(&'a [u8]),
}

/// A lower bound of a table that begins with `first`.
pub fn lower(first: &[u8], before: &Before) -> Bytes {
    if first.len() <= SHORT_KEY_BYTES {
        return Bytes::copy_from_slice(first);
    }
    match before {
        Before::Nothing => Bytes::copy_from_slice(&first[..SHORT_KEY_BYTES]),
        Before::From(key) => key.clone(),
        Before::UpTo(key) => Bytes::copy_from_slice(&first[..=common(first, key)]),
    }
}

/// An upper bound of a table that ends with `last`.
pub fn upper(last: &[u8], behind: Behind<'_>) -> Bytes {
    if last.len() <= SHORT_KEY_BYTES {
        return Bytes::copy_from_slice(last);
    }
    match behind {
        Behind::Nothing => successor(last),
        Behind::From(next) => Bytes::copy_from_slice(separator(last, next)),
        Behind::Above(most) => match successor(last) {
            short if short.as_ref().cmp(most) == Ordering::Greater => Bytes::copy_from_slice(most),
            short => short,
        },
    }
}

fn common(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// A short key at or above `last`; `last` itself when there is none.
fn successor(last: &[u8]) -> Bytes {
    let short = &last[..last.len().min(SHORT_KEY_BYTES)];
    match short.iter().rposition(|&byte| byte < u8::MAX) {
        Some(at) => {
            let mut key = short[..=at].to_vec();
            key[at] += 1;
            key.into()
        }
        None => Bytes::copy_from_slice(last),
    }
}

/// The shortest prefix of `next` that is at or above `last` (and so below or at `next`); `last` itself when
/// none is shorter. Requires `last < next`; the result is below `next` unless it is `last`.
pub fn separator<'a>(last: &'a [u8], next: &'a [u8]) -> &'a [u8] {
    let same = common(last, next);
    // `next[..=same]` is above `last`; it is below `next` only when `next` goes on.
    if same + 1 < next.len() && same + 1 < last.len() { &next[..=same] } else { last }
}
