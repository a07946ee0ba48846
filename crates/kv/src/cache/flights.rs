//! Reads under way, each shared by all who want the same: after a start hundreds of clients may ask for the head of the one
//! table whose keys they all look up, and readers that go through keys in order reach the next block together.

use std::future::Future;
use std::hash::Hash;
use std::sync::{Arc, Mutex, OnceLock};

use pumice_base::hash::HashMap;
use pumice_base::sync::lock;
use pumice_reactor::sync::Event;

/// Reads of `T` by `K`. As many as there are readers at most, and only while they read.
pub struct Flights<K, T> {
    under_way: Mutex<HashMap<K, Arc<Flight<T>>>>,
}

struct Flight<T> {
    value: OnceLock<T>,
    done: Event,
}

impl<K, T> Default for Flights<K, T> {
    fn default() -> Self {
        Self { under_way: Mutex::default() }
    }
}

impl<K: Eq + Hash + Copy, T: Clone> Flights<K, T> {
    /// Whether a read of `key` is under way.
    pub fn is_under_way(&self, key: &K) -> bool {
        lock(&self.under_way).contains_key(key)
    }

    /// What another's read of the same gives, if one is under way and ends well; otherwise what `read` gives.
    ///
    /// # Errors
    /// Those of `read`: another's error is not taken over.
    pub async fn share<E>(&self, key: K, read: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        let other = {
            let mut under_way = lock(&self.under_way);
            let other = under_way.get(&key).cloned();
            if other.is_none() {
                let flight = Flight { value: OnceLock::new(), done: Event::new() };
                under_way.insert(key, Arc::new(flight));
            }
            other
        };
        if let Some(flight) = other {
            flight.done.wait().await;
            return match flight.value.get() {
                Some(value) => Ok(value.clone()),
                None => read.await,
            };
        }
        let mut landing = Landing { flights: self, key, value: None };
        let result = read.await;
        landing.value = result.as_ref().ok().cloned();
        result
    }
}

/// Tells who waits, also when the reader goes away half-way.
struct Landing<'a, K: Eq + Hash + Copy, T: Clone> {
    flights: &'a Flights<K, T>,
    key: K,
    value: Option<T>,
}

impl<K: Eq + Hash + Copy, T: Clone> Drop for Landing<'_, K, T> {
    fn drop(&mut self) {
        let flight = lock(&self.flights.under_way).remove(&self.key);
        let Some(flight) = flight else { return };
        if let Some(value) = self.value.take() {
            let _ = flight.value.set(value);
        }
        flight.done.set();
    }
}
