//! Clients and their tags.
//!
//! Many clients share a device; each has at most [`TAGS_PER_CLIENT`] requests under way (SDF and BlueDBM give each an
//! 8-bit tag), and the next waits. A request carries its issuer's tag, which comes back with its answer, in whatever
//! order answers come; on the device it bears a number of its own, so that equal tags of two clients do not meet.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pumice_reactor::sync::{OwnedPermit, Semaphore};

/// Requests that one client may have under way.
pub const TAGS_PER_CLIENT: usize = 256;

/// One of a client's tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(pub u8);

/// A user of a device. Stays on its core; make one for each task or core that issues requests.
#[derive(Clone)]
pub struct Client {
    free: Rc<std::cell::RefCell<VecDeque<Tag>>>,
    permits: Arc<Semaphore>,
    numbers: Arc<AtomicU64>,
}

/// A tag in use, given back when dropped.
pub struct Ticket {
    /// The client's name for the request.
    pub tag: Tag,
    /// The device's name for it, unlike that of any other request.
    pub number: u64,
    free: Rc<std::cell::RefCell<VecDeque<Tag>>>,
    _permit: OwnedPermit,
}

impl Client {
    pub(crate) fn new(numbers: Arc<AtomicU64>) -> Self {
        Self {
            free: Rc::new((0..TAGS_PER_CLIENT).map(|tag| Tag(tag as u8)).collect::<VecDeque<_>>().into()),
            permits: Arc::new(Semaphore::new(TAGS_PER_CLIENT as u64)),
            numbers,
        }
    }

    /// Waits for a free tag, first come, first served.
    pub async fn tag(&self) -> Ticket {
        let permit = self.permits.acquire_owned(1).await;
        let tag = self.free.borrow_mut().pop_front();
        let Some(tag) = tag else { unreachable!("there are as many tags as permits") };
        Ticket {
            tag,
            number: self.numbers.fetch_add(1, Ordering::Relaxed),
            free: Rc::clone(&self.free),
            _permit: permit,
        }
    }

    /// Requests under way.
    pub fn under_way(&self) -> usize {
        TAGS_PER_CLIENT - self.free.borrow().len()
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // Before the permit goes, so that whoever gets it finds a tag.
        self.free.borrow_mut().push_back(self.tag);
    }
}
