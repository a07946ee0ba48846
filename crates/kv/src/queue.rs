//! Which of a merge's sources is next.

use bytes::Bytes;

/// Sources by their next keys; of equal keys the newest is first. A binary heap of which only the top changes.
pub struct SourceQueue(Vec<usize>);

impl SourceQueue {
    /// Those of so many sources that have a key; the newer ones come first in number.
    pub fn new<'a>(sources: usize, key: impl Fn(usize) -> Option<&'a Bytes>) -> Self {
        let mut order: Vec<usize> = (0..sources).filter(|&at| key(at).is_some()).collect();
        order.sort_by_key(|&at| (key(at), at));
        Self(order)
    }

    /// The source with the lowest key.
    pub fn first(&self) -> Option<usize> {
        self.0.first().copied()
    }

    /// To be called when the first source has gone on.
    pub fn update<'a>(&mut self, key: impl Fn(usize) -> Option<&'a Bytes>) {
        let Some(first) = self.first() else { return };
        if key(first).is_none() {
            self.0.swap_remove(0);
        }
        let is_before = |a: usize, b: usize| (key(a), a) < (key(b), b);
        let mut at = 0;
        loop {
            let children = [2 * at + 1, 2 * at + 2].into_iter().filter(|&child| child < self.0.len());
            let least = children.reduce(|a, b| if is_before(self.0[b], self.0[a]) { b } else { a });
            match least {
                Some(least) if is_before(self.0[least], self.0[at]) => {
                    self.0.swap(at, least);
                    at = least;
                }
                _ => return,
            }
        }
    }
}
