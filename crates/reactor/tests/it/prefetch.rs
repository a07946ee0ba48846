//! A hint for the processor, of any memory.

use pumice_reactor::{prefetch, prefetch_at};

#[test]
fn memory_of_any_length_that_begins_anywhere_stays_as_it_is() {
    let bytes: Vec<u8> = (0..1 << 12).map(|n| (n % 251) as u8).collect();
    let before = bytes.clone();
    for start in [0, 1, 63, 64, 65, bytes.len() - 1, bytes.len()] {
        for len in [0, 1, 63, 64, 65, 1000, bytes.len()] {
            prefetch(&bytes[start..(start + len).min(bytes.len())]);
        }
    }
    // Of other items, and where there is nothing.
    prefetch(&[0u64; 100]);
    prefetch::<[u64; 9]>(&[]);
    prefetch(&[(); 3]);
    [0, 1, 4095, usize::MAX / 2, usize::MAX].into_iter().for_each(prefetch_at);
    assert_eq!(bytes, before);
}
