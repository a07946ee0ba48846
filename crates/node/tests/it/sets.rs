//! The member entry's layout, gates and batches: what needs no drive.

use pumice_kv::SliceId;
use pumice_node::{Gate, Member, NodeBatch, Place};

#[test]
fn the_member_entry_is_laid_out_as_documented() {
    let member = Member { set: *b"0123456789abcdef", index: 1, count: 3 };
    let fixture = b"\x01\0\0\0\x01\0\x03\x000123456789abcdef";
    assert_eq!(&member.encode(), fixture);
    assert_eq!(Member::decode(fixture), Ok(member));
}

#[test]
fn a_member_entry_that_is_not_understood_is_refused_with_the_reason() {
    let check = |bytes: &[u8], says: &str| {
        let why = Member::decode(bytes).unwrap_err();
        assert!(why.contains(says), "{why:?} does not say {says:?}");
    };
    check(b"", "empty");
    check(b"\x02\0\0\0\x01\0\x03\x000123456789abcdef", "use a newer pumice");
    check(b"\x01\0\0\0\x01\0\x03\x000123456789abcde", "23 bytes");
    check(b"\x01\0\0\0\x03\0\x03\x000123456789abcdef", "drive 3 of 3");
}

#[test]
fn a_gate_keeps_the_highest_number_per_drive() {
    let mut gate = Gate::open();
    assert!(gate.is_empty());
    gate.add(0, 5);
    gate.add(1, 2);
    gate.add(0, 3);
    let mut other = Gate::open();
    other.add(1, 9);
    gate.merge(&other);
    assert_eq!(gate.needs(), [(0, 5), (1, 9)]);
}

#[test]
fn a_batch_keeps_one_part_per_drive() {
    let mut batch = NodeBatch::new();
    assert!(batch.is_empty());
    for drive in [0, 1, 0] {
        batch.put(Place { drive, slice: SliceId(0) }, b"key", 0, 0, b"value");
    }
    assert!(!batch.is_empty() && batch.bytes() > 3 * 8);
    batch.clear();
    assert!(batch.is_empty());
}
