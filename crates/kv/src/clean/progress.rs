//! Whether cleaning gets anywhere, or the drive is full.
//!
//! Where every segment is nearly all alive, cleaning may go on for ever and win what it spends. Nobody is told that the drive is full
//! for less than that: what a victim wins may be taken by a flush or a merge at once, and only comes free when that ends. So
//! what counts is whether anything is better than it ever was: more free, fewer bytes alive (merges bring out what is dead),
//! a user's write taken. While nothing is, victims are counted, not those beside which flushes and merges got on, up to a limit:
//! cleaning gives them their work, so they might go on for ever, too. And at the end a second goes by in which they have the
//! core for themselves: victims are counted in no time where the drive is fast, and a merge may just be pausing.

use std::time::Duration;

/// Victims in a row that got nowhere, each of which promised a sixty-fourth of a segment at least.
pub const VICTIMS_MAX: u32 = 96;
/// So often among them a flush is asked for, and merges.
const ASK_EVERY: u32 = VICTIMS_MAX / 4;
/// Victims that are not counted because flushes and merges got on meanwhile, at most.
pub const SPARED_MAX: u32 = 2 * VICTIMS_MAX;
/// Of a segment so much must have died, as a part, to count.
const LESS_ALIVE: u64 = 4;
/// Pauses at the end.
pub const PAUSES: u32 = 10;
/// How long each is.
pub const PAUSE: Duration = Duration::from_millis(100);

/// What cleaning looks at after each victim.
#[derive(Clone, Copy, Debug, Default)]
pub struct State {
    /// Free segments, the reserve included.
    pub free: u64,
    /// Bytes alive on the drive.
    pub live: u64,
    /// Users' writes taken so far.
    pub accepted: u64,
    /// Flushes and steps of merges so far.
    pub upkeep: u64,
    /// So much is free that nobody waits for cleaning.
    pub is_enough: bool,
}

/// What is to be done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The next victim.
    GoOn,
    /// The same, after having asked for a flush and merges.
    AskForMerges,
    /// The same, after a [`PAUSE`].
    Pause,
    /// The drive is full.
    Full,
}

/// See the head of this file.
#[derive(Debug, Default)]
pub struct Progress {
    most_free: u64,
    /// None before the first victim, and after a verdict.
    least_live: Option<u64>,
    accepted: u64,
    upkeep: u64,
    victims: u32,
    spared: u32,
}

impl Progress {
    /// A victim has been dealt with on a drive with segments of so many bytes.
    pub fn judge(&mut self, now: State, segment_bytes: u64) -> Verdict {
        let upkeep_got_on = std::mem::replace(&mut self.upkeep, now.upkeep) != now.upkeep;
        let is_better = now.free > self.most_free
            || now.accepted != self.accepted
            || self.least_live.is_none_or(|least| now.live + segment_bytes / LESS_ALIVE <= least);
        if is_better {
            let least_live = self.least_live.filter(|_| now.accepted == self.accepted);
            // A write that was taken has taken from what was free, and is alive.
            let (most_free, least_live) = match least_live {
                Some(least) => (now.free.max(self.most_free), now.live.min(least)),
                None => (now.free, now.live),
            };
            let least_live = Some(least_live);
            *self =
                Self { most_free, least_live, accepted: now.accepted, upkeep: now.upkeep, ..Self::default() };
            return Verdict::GoOn;
        }
        if now.is_enough {
            self.victims = 0;
            return Verdict::GoOn;
        }
        if upkeep_got_on && self.spared < SPARED_MAX {
            self.spared += 1;
            return Verdict::GoOn;
        }
        self.victims += 1;
        match self.victims {
            ..VICTIMS_MAX if self.victims.is_multiple_of(ASK_EVERY) => Verdict::AskForMerges,
            ..VICTIMS_MAX => Verdict::GoOn,
            _ if self.victims < VICTIMS_MAX + PAUSES => Verdict::Pause,
            _ => {
                *self = Self { accepted: now.accepted, upkeep: now.upkeep, ..Self::default() };
                Verdict::Full
            }
        }
    }
}
