//! Taking a mutex, the one way to do it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

static WAITS: AtomicU64 = AtomicU64::new(0);

/// Takes a lock; if somebody else holds it, waits, and counts that.
///
/// A panic while it was held leaves state that its own assertions reject, so the poison adds nothing.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    try_lock(mutex).unwrap_or_else(|| {
        WAITS.fetch_add(1, Ordering::Relaxed);
        mutex.lock().unwrap_or_else(PoisonError::into_inner)
    })
}

/// Takes a lock, unless somebody else holds it.
pub fn try_lock<T: ?Sized>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// How often [`lock`] waited in this process.
pub fn lock_waits() -> u64 {
    WAITS.load(Ordering::Relaxed)
}
