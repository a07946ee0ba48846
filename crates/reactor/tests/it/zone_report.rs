//! How Linux reports zones, decoded: the part that needs no zoned drive, compiled into this test.
#![allow(dead_code)] // the rest of the module is for drivers

#[path = "../../src/zones.rs"]
mod zones;

use std::io;

use zones::{RawZone, ZoneCondition, ZoneKind};

fn raw() -> RawZone {
    RawZone {
        start: 4096,
        len: 2048,
        write_pointer: 4104,
        kind: 2,
        condition: 2,
        non_sequential: 0,
        reset: 0,
        reserved: [0; 4],
        capacity: 1536,
        reserved_too: [0; 24],
    }
}

#[test]
fn a_reported_zone_is_told_in_bytes() {
    let zone = raw().decode(true).expect("zone");
    assert_eq!((zone.start, zone.bytes, zone.capacity_bytes), (4096 << 9, 1 << 20, 768 << 10));
    assert_eq!(zone.write_pointer, 4104 << 9);
    assert_eq!((zone.kind, zone.condition), (ZoneKind::SequentialRequired, ZoneCondition::ImplicitlyOpen));
    assert_eq!(raw().decode(false).expect("zone").capacity_bytes, 1 << 20, "no capacity is the size");
    let offline = RawZone { condition: 0xf, write_pointer: u64::MAX, ..raw() };
    assert_eq!(offline.decode(true).expect("zone").condition, ZoneCondition::Offline);
}

#[test]
fn what_a_newer_kernel_may_say_is_an_error_not_a_guess() {
    for unknown in [RawZone { kind: 4, ..raw() }, RawZone { condition: 9, ..raw() }] {
        let error = unknown.decode(true).expect_err("unknown");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(error.to_string().contains("sector 4096"), "{error}");
    }
    assert!(RawZone { start: u64::MAX, ..raw() }.decode(true).is_err());
}
