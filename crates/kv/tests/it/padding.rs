//! When commits are to pad little.

use pumice_kv::padding::Padding;

const SEGMENT: u64 = 8 << 20;

#[test]
fn what_was_moved_lately_decides() {
    let mut padding = Padding::default();
    assert!(padding.is_to_spare(0, 0, SEGMENT), "nothing is known");
    assert!(padding.is_to_spare(3, 500, SEGMENT), "too little is");
    assert!(!padding.is_to_spare(4, 500, SEGMENT));
    assert!(!padding.is_to_spare(7, 3 * SEGMENT, SEGMENT));
    assert!(padding.is_to_spare(8, 3 * SEGMENT, SEGMENT));
    assert!(!padding.is_to_spare(24, 5 * SEGMENT, SEGMENT), "an eighth is not much");
}
