//! Which of a merge's sources is next.

use std::cmp::Ordering;

use crate::codes::{code, shared_len};
use crate::types::Direction;

/// Steps for each source until what its keys share is found anew: it may have become longer.
const STEPS_EACH: usize = 64;

/// Sources by their next keys; of equal keys the one with the lowest number is first. A binary heap whose keys lie with the
/// sources: each method that takes `key` is told by it a source's next one.
pub struct SourceQueue {
    heap: Vec<Queued>,
    backward: bool,
    /// All keys begin with it, and codes are of what comes behind.
    shared: Vec<u8>,
    steps: usize,
}

#[derive(Clone, Copy)]
struct Queued {
    code: u64,
    source: usize,
}

impl SourceQueue {
    /// Without sources.
    pub fn new(direction: Direction) -> Self {
        let backward = direction == Direction::Backward;
        Self { heap: Vec::new(), backward, shared: Vec::new(), steps: 0 }
    }

    /// The source whose turn it is.
    pub fn first(&self) -> Option<usize> {
        self.heap.first().map(|first| first.source)
    }

    /// The source whose turn it is, if `wanted` is its next key.
    pub fn first_at<'a>(&self, wanted: &[u8], key: impl Fn(usize) -> Option<&'a [u8]>) -> Option<usize> {
        let first = self.heap.first()?;
        // The code tells nearly always, and is at hand.
        let is_other = wanted.starts_with(&self.shared) && self.code(wanted) != first.code;
        (!is_other && key(first.source) == Some(wanted)).then_some(first.source)
    }

    /// Whether there is no other than the first.
    pub fn is_alone(&self) -> bool {
        self.heap.len() <= 1
    }

    /// The source whose turn comes behind the first one's, as keys are now.
    pub fn second<'a>(&self, key: impl Fn(usize) -> Option<&'a [u8]>) -> Option<usize> {
        let children = self.heap.iter().skip(1).take(2);
        let least = children.reduce(|a, b| if self.is_before(b, a, &key) { b } else { a });
        least.map(|least| least.source)
    }

    /// Adds a source that has a key.
    pub fn push<'a>(&mut self, source: usize, key: impl Fn(usize) -> Option<&'a [u8]>) {
        let Some(own) = key(source) else { return };
        self.heap.push(Queued { code: 0, source });
        let mut at = self.heap.len() - 1;
        self.take_code(at, own, &key);
        while at > 0 {
            let parent = (at - 1) / 2;
            if !self.is_before(&self.heap[at], &self.heap[parent], &key) {
                return;
            }
            self.heap.swap(at, parent);
            at = parent;
        }
    }

    /// To be called when the first source has gone on: it takes its new place, or none where it has no key.
    #[inline]
    pub fn update<'a>(&mut self, key: impl Fn(usize) -> Option<&'a [u8]>) {
        let Some(first) = self.first() else { return };
        if !self.is_alone() {
            return self.update_one_of_many(first, key);
        }
        // It is compared with nobody. Who comes later needs its code.
        self.steps = 0;
        if key(first).is_none() {
            self.heap.clear();
        }
    }

    fn update_one_of_many<'a>(&mut self, first: usize, key: impl Fn(usize) -> Option<&'a [u8]>) {
        match key(first) {
            Some(own) => self.take_code(0, own, &key),
            None => {
                self.heap.swap_remove(0);
            }
        }
        let mut at = 0;
        loop {
            let child = 2 * at + 1;
            let Some(left) = self.heap.get(child) else { return };
            let least = match self.heap.get(child + 1) {
                Some(right) if self.is_before(right, left, &key) => child + 1,
                _ => child,
            };
            if !self.is_before(&self.heap[least], &self.heap[at], &key) {
                return;
            }
            self.heap.swap(at, least);
            at = least;
        }
    }

    /// Forgets all sources.
    pub fn clear(&mut self) {
        self.heap.clear();
    }

    fn is_before<'a>(&self, a: &Queued, b: &Queued, key: impl Fn(usize) -> Option<&'a [u8]>) -> bool {
        let order = a.code.cmp(&b.code).then_with(|| {
            let keys = key(a.source).cmp(&key(b.source));
            if self.backward { keys.reverse() } else { keys }
        });
        order.then(a.source.cmp(&b.source)) == Ordering::Less
    }

    fn code(&self, key: &[u8]) -> u64 {
        let code = code(key, self.shared.len());
        if self.backward { !code } else { code }
    }

    /// Gives the source at `at` the code of its key.
    fn take_code<'a>(&mut self, at: usize, own: &[u8], key: &impl Fn(usize) -> Option<&'a [u8]>) {
        if self.steps == 0 || !own.starts_with(&self.shared) {
            self.share_anew(own, key);
        } else {
            self.steps -= 1;
            self.heap[at].code = self.code(own);
        }
    }

    fn share_anew<'a>(&mut self, own: &[u8], key: &impl Fn(usize) -> Option<&'a [u8]>) {
        let keys = self.heap.iter().filter_map(|queued| key(queued.source));
        let shared = keys.fold(own, |shared, key| &shared[..shared_len(shared, key)]);
        self.shared.clear();
        self.shared.extend_from_slice(shared);
        self.steps = STEPS_EACH * self.heap.len();
        for at in 0..self.heap.len() {
            if let Some(key) = key(self.heap[at].source) {
                self.heap[at].code = self.code(key);
            }
        }
    }
}
