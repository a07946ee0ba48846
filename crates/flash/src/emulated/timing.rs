//! When emulated operations end: dies, buses and the host's link as servers of an event calendar.
//!
//! 1. A *die* does one plane group at a time: it senses (tR) and then holds the pages until the bus has carried
//!    them out, or takes pages from the bus and then programs (tPROG), or erases (tERASE). Each request has at most
//!    one group waiting or under way on a die; groups of different requests take turns in order of arrival.
//!    Programs of one block go one after the other on each die, as its pages must.
//! 2. A channel's *bus* carries pages with their out-of-band bytes one after the other, for whichever die is ready.
//! 3. The *host link* carries pages in each direction at its cap. Of each write it fetches two groups per die ahead,
//!    one request of a writer at a time, so that writers share it evenly.
//!
//! Queueing follows from these three and from nothing else: there is no fixed depth, no priority, no suspended
//! erase, no cache read. Bus and link serve in order of arrival, hence their ends are known on arrival; a die's is
//! not, and is found by going through the calendar in order of (time, sequence).
//!
//! The calendar keeps exact times, whenever it is looked at: in real time a timer that fires late delays an answer,
//! never the model. [`Calendar::no_sooner_than`] says how long a caller may sleep without missing an end. Rejected:
//! a task with a timer for each page, which costs a hundred times more and drifts in real time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use pumice_base::hash::HashMap;

use crate::{BlockAddr, Geometry, NandTiming};

/// Groups per die that the link fetches before the die asks for them.
const FETCHED_AHEAD: u32 = 2;

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// These bytes of the block.
    Read { from_bytes: u32, to_bytes: u32 },
    /// These pages of the block.
    Program { first_page: u32, end_page: u32 },
    /// The block.
    Erase,
}

/// A request under way. Give it back with [`Calendar::release`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    slot: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A die has sensed a group: its pages want the bus.
    Sensed { slot: usize, lane: usize },
    /// The bus has carried a page out: it wants the link, and the die is free when it was the group's last.
    Carried { slot: usize, lane: usize, bytes: u64, last: bool },
    /// The link has fetched a group that is to be programmed.
    Fetched { slot: usize },
    /// A die has programmed a group or erased.
    Done { slot: usize, lane: usize },
}

#[derive(Default)]
struct Die {
    busy: bool,
    /// Groups that wait, as (request, its lane there). As long as there are requests for this die.
    queue: VecDeque<(usize, usize)>,
}

/// A request's share of one die.
struct Lane {
    die: usize,
    /// The group that waits or is under way; beyond the last when the lane is through.
    group: u32,
    /// No group of this lane waits on the die: the link has not fetched it yet.
    starved: bool,
    /// The die works on the group.
    started: bool,
    /// The group ends no sooner.
    end_ns: u64,
}

struct Request {
    block: BlockAddr,
    kind: Kind,
    channel: usize,
    lanes: Vec<Lane>,
    /// Groups `first..end`, each of `planes` pages.
    first_group: u32,
    end_group: u32,
    /// Groups below this have been fetched over the link.
    fetched: u32,
    fetching: bool,
    /// The program of the same block that comes before this one, until it has ended, and the one after.
    before: Option<usize>,
    after: Option<usize>,
    /// Pages, groups or dies whose end is not known yet.
    open: u32,
    end_ns: u64,
    released: bool,
}

/// See the module's text. Times in ns of the reactor's clock.
pub(super) struct Calendar {
    geometry: Geometry,
    sense_ns: u64,
    program_ns: u64,
    erase_ns: u64,
    request_ns: u64,
    bus_ns_per_byte: f64,
    link_read_ns_per_byte: f64,
    link_write_ns_per_byte: f64,
    now_ns: u64,
    sequence: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    dies: Vec<Die>,
    bus_free_ns: Vec<u64>,
    link_read_free_ns: u64,
    link_write_free_ns: u64,
    requests: Vec<Option<Request>>,
    unused: Vec<usize>,
    /// The newest program of each block that was programmed.
    last_program: HashMap<u32, usize>,
    /// Busy ns of all dies and of all buses, for reports.
    die_busy_ns: u64,
    bus_busy_ns: u64,
}

fn ns(us: f64) -> u64 {
    (us * 1000.0).round() as u64
}

/// ns per byte at a rate in MB/s (bytes per µs); 0 MB/s means no limit.
fn ns_per_byte(mb_per_s: f64) -> f64 {
    if mb_per_s > 0.0 { 1000.0 / mb_per_s } else { 0.0 }
}

fn reserve(free_ns: &mut u64, now_ns: u64, busy_ns: u64) -> u64 {
    *free_ns = (*free_ns).max(now_ns) + busy_ns;
    *free_ns
}

impl Calendar {
    pub(super) fn new(geometry: Geometry, timing: &NandTiming) -> Self {
        let channels = usize::from(geometry.channels);
        let dies = channels * usize::from(geometry.dies_per_channel);
        Self {
            geometry,
            sense_ns: ns(timing.read_us),
            program_ns: ns(timing.program_us),
            erase_ns: ns(timing.erase_us),
            request_ns: ns(timing.request_us),
            bus_ns_per_byte: ns_per_byte(timing.bus_mb_per_s),
            link_read_ns_per_byte: ns_per_byte(timing.link_read_mb_per_s),
            link_write_ns_per_byte: ns_per_byte(timing.link_write_mb_per_s),
            now_ns: 0,
            sequence: 0,
            events: BinaryHeap::new(),
            dies: (0..dies).map(|_| Die::default()).collect(),
            bus_free_ns: vec![0; channels],
            link_read_free_ns: 0,
            link_write_free_ns: 0,
            requests: Vec::new(),
            unused: Vec::new(),
            last_program: HashMap::default(),
            die_busy_ns: 0,
            bus_busy_ns: 0,
        }
    }

    /// Busy time so far, in ns, summed over all dies and over all buses.
    pub(super) fn busy_ns(&self) -> (u64, u64) {
        (self.die_busy_ns, self.bus_busy_ns)
    }

    /// Takes a request that arrives at `now_ns`.
    pub(super) fn submit(&mut self, block: BlockAddr, kind: Kind, now_ns: u64) -> Ticket {
        self.advance(now_ns);
        let geometry = self.geometry;
        let planes = u32::from(geometry.planes_per_die);
        let wide = u32::from(geometry.dies_per_block);
        let (first_group, end_group, open) = match kind {
            Kind::Read { from_bytes, to_bytes } => {
                let (first, end) = (from_bytes / geometry.page_bytes, to_bytes.div_ceil(geometry.page_bytes));
                (first / planes, end.div_ceil(planes), end.saturating_sub(first))
            }
            Kind::Program { first_page, end_page } => {
                let (first, end) = (first_page / planes, end_page.div_ceil(planes));
                (first, end, end.saturating_sub(first))
            }
            Kind::Erase => (0, wide, wide),
        };
        let channel = usize::from(block.channel);
        let base = channel * usize::from(geometry.dies_per_channel) + usize::from(geometry.first_die(block));
        let last_lane = if open == 0 { first_group } else { end_group.min(first_group + wide) };
        let lanes = (first_group..last_lane).map(|group| Lane {
            die: base + (group % wide) as usize,
            group,
            starved: true,
            started: false,
            end_ns: 0,
        });
        let request = Request {
            block,
            kind,
            channel,
            lanes: lanes.collect(),
            first_group,
            end_group,
            fetched: first_group,
            fetching: false,
            before: None,
            after: None,
            open,
            end_ns: self.now_ns + self.request_ns,
            released: false,
        };
        let slot = match self.unused.pop() {
            Some(slot) => {
                self.requests[slot] = Some(request);
                slot
            }
            None => {
                self.requests.push(Some(request));
                self.requests.len() - 1
            }
        };
        match kind {
            Kind::Program { .. } => {
                let last = self.last_program.insert(geometry.number(block), slot);
                let last = last.filter(|&last| {
                    // Its slot may have been reused since.
                    let found = self.requests[last].as_ref();
                    last != slot && found.is_some_and(|found| found.block == block && found.open > 0)
                });
                if let Some(last) = last {
                    self.request_mut(last).after = Some(slot);
                    self.request_mut(slot).before = Some(last);
                }
                self.fetch(slot);
            }
            _ => (0..self.request(slot).lanes.len()).for_each(|lane| self.enqueue(slot, lane)),
        }
        Ticket { slot }
    }

    /// When the request ends, once that is known.
    pub(super) fn end_ns(&self, ticket: Ticket) -> Option<u64> {
        let request = self.requests[ticket.slot].as_ref()?;
        (request.open == 0).then_some(request.end_ns)
    }

    /// A time before which the request cannot end: worth sleeping until then, and asking again.
    pub(super) fn no_sooner_than(&self, ticket: Ticket) -> u64 {
        if let Some(end_ns) = self.end_ns(ticket) {
            return end_ns;
        }
        let request = self.request(ticket.slot);
        let wide = u32::from(self.geometry.dies_per_block);
        let lane_ns = request.lanes.iter().filter(|lane| lane.group < request.end_group).map(|lane| {
            let later = (request.end_group - 1 - lane.group) / wide;
            let least_ns = self.group_ns_min(request.kind);
            // Who still waits for its die has all of its group before it: without this, hundreds that wait would look at
            // every event.
            let group_ns = if lane.started { lane.end_ns.max(self.now_ns) } else { self.now_ns + least_ns };
            group_ns + u64::from(later) * least_ns
        });
        let next_ns = self.events.peek().map_or(self.now_ns, |Reverse((at, ..))| *at);
        lane_ns.max().unwrap_or(0).max(next_ns)
    }

    /// The caller needs no answer any more.
    pub(super) fn release(&mut self, ticket: Ticket) {
        let request = self.request_mut(ticket.slot);
        request.released = true;
        self.reuse(ticket.slot);
    }

    /// Goes through everything up to `now_ns`.
    pub(super) fn advance(&mut self, now_ns: u64) {
        while let Some(Reverse((at, ..))) = self.events.peek()
            && *at <= now_ns
        {
            let Some(Reverse((at, _, event))) = self.events.pop() else { break };
            self.now_ns = at;
            self.happen(event);
        }
        self.now_ns = self.now_ns.max(now_ns);
    }

    /// The power went: nothing is under way any more, and what was has ended now.
    pub(super) fn clear(&mut self) {
        self.events.clear();
        self.dies.iter_mut().for_each(|die| *die = Die::default());
        self.bus_free_ns.fill(0);
        (self.link_read_free_ns, self.link_write_free_ns) = (0, 0);
        for slot in 0..self.requests.len() {
            if let Some(request) = &mut self.requests[slot] {
                (request.open, request.end_ns) = (0, self.now_ns);
                (request.before, request.after) = (None, None);
                self.reuse(slot);
            }
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Sensed { slot, lane } => self.carry_out(slot, lane),
            Event::Carried { slot, lane, bytes, last } => {
                let busy_ns = (bytes as f64 * self.link_read_ns_per_byte) as u64;
                let end_ns = reserve(&mut self.link_read_free_ns, self.now_ns, busy_ns) + self.request_ns;
                self.closed(slot, end_ns);
                if last {
                    self.next_group(slot, lane);
                }
            }
            Event::Fetched { slot } => {
                let request = self.request_mut(slot);
                request.fetched += 1;
                request.fetching = false;
                self.feed(slot);
                self.fetch(slot);
            }
            Event::Done { slot, lane } => {
                self.closed(slot, self.now_ns + self.request_ns);
                self.next_group(slot, lane);
            }
        }
        if let Event::Sensed { slot, .. } | Event::Carried { slot, .. } | Event::Done { slot, .. } = event {
            self.reuse(slot);
        }
    }

    /// One more part of the request has its end.
    fn closed(&mut self, slot: usize, end_ns: u64) {
        let request = self.request_mut(slot);
        request.end_ns = request.end_ns.max(end_ns);
        request.open -= 1;
    }

    /// Asks the link for the request's next group, if it may have one more.
    fn fetch(&mut self, slot: usize) {
        let wide = u32::from(self.geometry.dies_per_block);
        let (now_ns, rate) = (self.now_ns, self.link_write_ns_per_byte);
        let request = self.request(slot);
        let started = request.lanes.iter().filter(|lane| !lane.starved).map(|lane| lane.group + 1).max();
        let ahead = request.fetched - started.unwrap_or(request.first_group).min(request.fetched);
        if request.fetching || request.fetched == request.end_group || ahead >= FETCHED_AHEAD * wide {
            return;
        }
        let pages = self.pages(request, request.fetched);
        let bytes = u64::from(pages.1 - pages.0) * u64::from(self.geometry.page_bytes);
        self.request_mut(slot).fetching = true;
        let at = reserve(&mut self.link_write_free_ns, now_ns, (bytes as f64 * rate) as u64);
        self.push(at, Event::Fetched { slot });
    }

    /// Queues the groups of a program that have been fetched and have nothing before them on their die.
    fn feed(&mut self, slot: usize) {
        for lane in 0..self.request(slot).lanes.len() {
            let request = self.request(slot);
            let entry = &request.lanes[lane];
            let held = request.before.is_some_and(|before| {
                let before = self.request(before);
                before.lanes.iter().any(|lane| lane.die == entry.die && lane.group < before.end_group)
            });
            if entry.starved && entry.group < request.fetched && !held {
                self.enqueue(slot, lane);
            }
        }
    }

    /// The lane's group waits for its die, or starts there.
    fn enqueue(&mut self, slot: usize, lane: usize) {
        let (now_ns, request) = (self.now_ns, self.request(slot));
        let least_ns = self.group_ns_min(request.kind);
        let die = request.lanes[lane].die;
        let entry = &mut self.request_mut(slot).lanes[lane];
        (entry.starved, entry.started) = (false, false);
        entry.end_ns = now_ns + least_ns;
        if self.dies[die].busy {
            self.dies[die].queue.push_back((slot, lane));
        } else {
            self.start(slot, lane);
        }
    }

    fn start(&mut self, slot: usize, lane: usize) {
        let now_ns = self.now_ns;
        let request = self.request(slot);
        let (kind, channel) = (request.kind, request.channel);
        let (die, group) = (request.lanes[lane].die, request.lanes[lane].group);
        self.dies[die].busy = true;
        let end_ns = match kind {
            Kind::Read { .. } => {
                let end_ns = now_ns + self.sense_ns;
                self.push(end_ns, Event::Sensed { slot, lane });
                self.die_busy_ns += self.sense_ns;
                end_ns
            }
            Kind::Program { .. } => {
                let (from, to) = self.pages(self.request(slot), group);
                let busy_ns = self.bus_ns(u64::from(to - from) * u64::from(self.geometry.page_bytes));
                self.bus_busy_ns += busy_ns;
                let carried_ns = reserve(&mut self.bus_free_ns[channel], now_ns, busy_ns);
                let end_ns = carried_ns + self.program_ns;
                self.push(end_ns, Event::Done { slot, lane });
                self.die_busy_ns += end_ns - now_ns;
                self.fetch(slot);
                end_ns
            }
            Kind::Erase => {
                let end_ns = now_ns + self.erase_ns;
                self.push(end_ns, Event::Done { slot, lane });
                self.die_busy_ns += self.erase_ns;
                end_ns
            }
        };
        let entry = &mut self.request_mut(slot).lanes[lane];
        entry.started = true;
        entry.end_ns = entry.end_ns.max(end_ns);
    }

    /// Books the bus for each page of a group that was sensed.
    fn carry_out(&mut self, slot: usize, lane: usize) {
        let now_ns = self.now_ns;
        let request = self.request(slot);
        let (channel, group) = (request.channel, request.lanes[lane].group);
        let Kind::Read { from_bytes, to_bytes } = request.kind else { return };
        let (first, end) = self.pages(request, group);
        let page_bytes = self.geometry.page_bytes;
        let mut end_ns = now_ns;
        for page in first..end {
            let from = from_bytes.max(page * page_bytes);
            let to = to_bytes.min((page + 1) * page_bytes);
            let bytes = u64::from(to - from);
            let busy_ns = self.bus_ns(bytes);
            end_ns = reserve(&mut self.bus_free_ns[channel], now_ns, busy_ns);
            self.bus_busy_ns += busy_ns;
            self.push(end_ns, Event::Carried { slot, lane, bytes, last: page + 1 == end });
        }
        self.die_busy_ns += end_ns - now_ns;
        self.request_mut(slot).lanes[lane].end_ns = end_ns;
    }

    /// The lane's group is through: its next one queues behind who waits, and the die goes on.
    fn next_group(&mut self, slot: usize, lane: usize) {
        let wide = u32::from(self.geometry.dies_per_block);
        let request = self.request_mut(slot);
        let is_program = matches!(request.kind, Kind::Program { .. });
        let entry = &mut request.lanes[lane];
        let die = entry.die;
        entry.group += wide;
        let more = entry.group < request.end_group;
        let (before, after, is_over) = (request.before, request.after, request.open == 0);
        let entry = &mut request.lanes[lane];
        let here = !is_program || entry.group < request.fetched;
        (entry.starved, entry.started) = (more && !here, false);
        if more && here {
            // The die still counts as busy, so that whoever waits goes first.
            self.enqueue(slot, lane);
        }
        if more && !here {
            self.fetch(slot);
        }
        if let Some(before) = before.filter(|_| is_over) {
            self.request_mut(before).after = None;
        }
        if let Some(after) = after.filter(|_| !more) {
            if is_over {
                self.request_mut(after).before = None;
            }
            self.feed(after);
        }
        self.dies[die].busy = false;
        if let Some((slot, lane)) = self.dies[die].queue.pop_front() {
            self.start(slot, lane);
        }
    }

    /// The least time that one group of such a request takes.
    fn group_ns_min(&self, kind: Kind) -> u64 {
        let (page, planes) = (u64::from(self.geometry.page_bytes), u64::from(self.geometry.planes_per_die));
        let planes_u32 = u32::from(self.geometry.planes_per_die);
        match kind {
            Kind::Read { from_bytes, to_bytes } => {
                let row_bytes = self.geometry.page_bytes * planes_u32;
                let whole = from_bytes.is_multiple_of(row_bytes) && to_bytes.is_multiple_of(row_bytes);
                let least = if whole { page * planes } else { 0 };
                self.sense_ns + self.bus_ns(least)
            }
            Kind::Program { first_page, end_page } => {
                let whole = first_page.is_multiple_of(planes_u32) && end_page.is_multiple_of(planes_u32);
                self.program_ns + self.bus_ns(if whole { page * planes } else { page })
            }
            Kind::Erase => self.erase_ns,
        }
    }

    /// Bus time of so many bytes of pages and their share of out-of-band bytes.
    fn bus_ns(&self, bytes: u64) -> u64 {
        let page_bytes = u64::from(self.geometry.page_bytes);
        let with_oob = bytes + (bytes * u64::from(self.geometry.oob_bytes)).div_ceil(page_bytes);
        (with_oob as f64 * self.bus_ns_per_byte) as u64
    }

    /// The pages of a group that belong to the request.
    fn pages(&self, request: &Request, group: u32) -> (u32, u32) {
        let planes = u32::from(self.geometry.planes_per_die);
        let (first, end) = match request.kind {
            Kind::Read { from_bytes, to_bytes } => {
                (from_bytes / self.geometry.page_bytes, to_bytes.div_ceil(self.geometry.page_bytes))
            }
            Kind::Program { first_page, end_page } => (first_page, end_page),
            Kind::Erase => (0, 0),
        };
        ((group * planes).max(first), ((group + 1) * planes).min(end))
    }

    fn push(&mut self, at_ns: u64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((at_ns, self.sequence, event)));
    }

    /// Frees the slot of a request that nobody waits for and no event names.
    fn reuse(&mut self, slot: usize) {
        let through =
            self.requests[slot].as_ref().is_some_and(|request| request.open == 0 && request.released);
        if through {
            self.requests[slot] = None;
            self.unused.push(slot);
        }
    }

    fn request(&self, slot: usize) -> &Request {
        match &self.requests[slot] {
            Some(request) => request,
            None => unreachable!("a request that ended has no events"),
        }
    }

    fn request_mut(&mut self, slot: usize) -> &mut Request {
        match &mut self.requests[slot] {
            Some(request) => request,
            None => unreachable!("a request that ended has no events"),
        }
    }
}
