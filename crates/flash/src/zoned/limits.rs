//! Which zones hold one of a drive's places: it keeps so many open, and so many partly written (active), at once.
//!
//! 1. A program enters its zone first ([`Limits::enter`]). Where a place is missing, the answer names a zone to close
//!    (the one used longest ago) or to finish (the one longest done with), and the caller tries again after that.
//! 2. Only a zone whose owner has said that it is done with it is ever finished: a finished zone takes nothing more.
//!    Rejected: finishing the one used longest ago, which would fail its owner's next program.
//! 3. While a zone's program or command is on its way nobody else may touch it.
//!
//! Pure: no I/O, so that its rules are tested without a drive.

use pumice_base::hash::HashMap;

/// What must happen before a zone takes a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing: program it, then [`Limits::leave`].
    Go,
    /// Close this zone, then [`Limits::closed`], or [`Limits::leave`] it when that failed.
    Close(u32),
    /// Finish this zone, then [`Limits::leave`] it.
    Finish(u32),
    /// Every zone that could make way is in use: try again when one is left.
    Wait,
    /// All places are taken by zones that are not done with.
    Refuse,
}

/// A zone that is active.
#[derive(Clone, Copy, Debug)]
struct Active {
    is_open: bool,
    /// A program or a command is on its way.
    in_use: bool,
    /// Nothing more comes before its next reset.
    is_done: bool,
    used_at: u64,
}

#[derive(Debug)]
pub(crate) struct Limits {
    open_max: u32,
    active_max: u32,
    /// At most `active_max` of them where there is such a limit.
    zones: HashMap<u32, Active>,
    clock: u64,
}

impl Limits {
    /// As the drive reports them: 0 is no limit.
    pub(crate) fn new(open_max: u32, active_max: u32) -> Self {
        let limit = |max: u32| if max == 0 { u32::MAX } else { max };
        let active_max = limit(active_max);
        Self { open_max: limit(open_max).min(active_max), active_max, zones: HashMap::default(), clock: 0 }
    }

    /// A zone that is active since before the drive was opened.
    pub(crate) fn found(&mut self, zone: u32, is_open: bool) {
        self.zones.insert(zone, Active { is_open, in_use: false, is_done: false, used_at: 0 });
    }

    /// Nothing more is programmed in `zone` before its next reset.
    pub(crate) fn done_with(&mut self, zone: u32) {
        if let Some(active) = self.zones.get_mut(&zone) {
            active.is_done = true;
        }
    }

    /// Takes a place for a program in `zone`.
    pub(crate) fn enter(&mut self, zone: u32) -> Step {
        let known = self.zones.get(&zone).copied();
        if known.is_some_and(|active| active.in_use) {
            return Step::Wait;
        }
        if known.is_none() && self.zones.len() >= self.active_max as usize {
            let step = match self.oldest(|active| active.is_done) {
                Some(victim) => Step::Finish(victim),
                None if self.zones.values().any(|active| active.is_done) => Step::Wait,
                None => return Step::Refuse,
            };
            return self.make_way(step);
        }
        let is_open = known.is_some_and(|active| active.is_open);
        let open = self.zones.values().filter(|active| active.is_open).count();
        if !is_open && open >= self.open_max as usize {
            let step = self.oldest(|active| active.is_open).map_or(Step::Wait, Step::Close);
            return self.make_way(step);
        }
        self.clock += 1;
        let active = Active { is_open: true, in_use: true, is_done: false, used_at: self.clock };
        self.zones.insert(zone, active);
        Step::Go
    }

    fn oldest(&self, fits: impl Fn(&Active) -> bool) -> Option<u32> {
        let free = self.zones.iter().filter(|(_, active)| !active.in_use && fits(active));
        // The number makes equals differ, so that the same run makes the same choice.
        free.min_by_key(|&(&zone, active)| (active.used_at, zone)).map(|(&zone, _)| zone)
    }

    fn make_way(&mut self, step: Step) -> Step {
        if let Step::Close(victim) | Step::Finish(victim) = step
            && let Some(active) = self.zones.get_mut(&victim)
        {
            active.in_use = true;
        }
        step
    }

    /// Takes a zone for a reset, which needs no place; false while somebody else has it.
    pub(crate) fn hold(&mut self, zone: u32) -> bool {
        match self.zones.get_mut(&zone) {
            Some(active) if active.in_use => false,
            Some(active) => {
                active.in_use = true;
                true
            }
            None => true,
        }
    }

    /// A zone was closed.
    pub(crate) fn closed(&mut self, zone: u32) {
        if let Some(active) = self.zones.get_mut(&zone) {
            (active.in_use, active.is_open) = (false, false);
        }
    }

    /// A program or a command has ended; the zone keeps its place unless it `is_over`: full, finished, reset or lost.
    pub(crate) fn leave(&mut self, zone: u32, is_over: bool) {
        if is_over {
            self.zones.remove(&zone);
        } else if let Some(active) = self.zones.get_mut(&zone) {
            active.in_use = false;
        }
    }

    /// Zones that are open, and that are active, as far as is known here.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.zones.values().filter(|active| active.is_open).count(), self.zones.len())
    }
}
