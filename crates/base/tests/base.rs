//! Published vectors and round trips for the base crate.

use pumice_base::{checksum, hash::stable_hash64, rng::Rng, size, slot::slot_of, sync};

#[test]
fn checksum_matches_the_published_vectors() {
    assert!(checksum::self_test());
    // RFC 3720, appendix B.4: bytes 0..=31 ascending.
    let ascending: Vec<u8> = (0..32).collect();
    assert_eq!(checksum::crc32c(&ascending), 0x46DD_794E);
}

/// CRC-32C bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, &byte| {
        (0..8)
            .fold(crc ^ u32::from(byte), |crc: u32, _| crc >> 1 ^ if crc & 1 == 1 { 0x82F6_3B78 } else { 0 })
    })
}

/// Whichever of the libraries this processor gets: drives move between machines.
#[test]
fn checksums_of_all_lengths_match_the_definition_in_either_library() {
    let mut random = Rng::from_seed(32);
    let mut bytes = vec![0; 20_000];
    random.fill(&mut bytes);
    for len in (0..700).chain([1024, 4096, 4104, 8192, 19_000]) {
        let part = &bytes[random.below(64) as usize..][..len];
        let defined = crc32c(part);
        assert_eq!(checksum::crc32c(part), defined, "{len}");
        assert_eq!(::crc32c::crc32c(part), defined, "{len}");
        assert_eq!(crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, part), u64::from(defined), "{len}");
        let seed = random.next_u64();
        let (a, b) = part.split_at(random.below(len as u64 + 1) as usize);
        let whole = [&seed.to_le_bytes()[..], part].concat();
        assert_eq!(checksum::crc32c_seeded(seed, &[a, b]), crc32c(&whole), "{len}");
        let mut running = checksum::Crc32c::seeded(seed);
        running.update(a);
        let before = crc32c(&whole[..8 + a.len()]);
        assert_eq!(running.value(), before, "{len}: a value may be asked for on the way");
        running.update(b);
        assert_eq!(running.value(), crc32c(&whole), "{len}");
        let mut digest =
            crc_fast::Digest::new_with_init_state(crc_fast::CrcAlgorithm::Crc32Iscsi, u64::from(!before));
        digest.update(b);
        assert_eq!(
            digest.finalize(),
            u64::from(crc32c(&whole)),
            "{len}: the other library goes on from a value"
        );
    }
}

/// CRC-16/XMODEM bit by bit.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, &byte| {
        (0..8).fold(crc ^ u16::from(byte) << 8, |crc: u16, _| {
            if crc & 0x8000 != 0 { (crc << 1) ^ 0x1021 } else { crc << 1 }
        })
    })
}

#[test]
fn slots_of_all_lengths_match_the_definition() {
    let mut random = Rng::from_seed(16);
    for len in 0..200 {
        let key: Vec<u8> = (0..len).map(|_| random.below(123) as u8).collect();
        assert_eq!(slot_of(&key), crc16(&key) % 16_384, "{key:?}");
    }
}

#[test]
fn slots_match_the_redis_cluster_specification() {
    assert_eq!(slot_of(b"123456789"), 0x31C3);
    assert_eq!(slot_of(b"{user1000}.following"), slot_of(b"{user1000}.followers"));
    assert_ne!(slot_of(b"foo{}{bar}"), slot_of(b"bar"), "an empty tag is no tag");
    assert_eq!(slot_of(b"foo{{bar}}zap"), slot_of(b"{bar"));
}

#[test]
fn sizes_read_back_what_they_print() {
    for bytes in [0, 1, 1000, 4096, 8 << 20, 64 << 30, 3 << 40] {
        assert_eq!(size::parse_size(&size::format_size(bytes)), Ok(bytes));
    }
    for bad in ["", "MiB", "12 parsecs", "-1", "99999999999TiB", "1.5GiB"] {
        assert!(size::parse_size(bad).is_err(), "{bad:?} was taken for a size");
    }
}

#[test]
fn random_streams_replay_and_do_not_disturb_each_other() {
    let mut a = Rng::from_seed(7);
    let mut b = Rng::from_seed(7);
    assert_eq!((a.next_u64(), a.below(10)), (b.next_u64(), b.below(10)));
    let root = Rng::from_seed(1);
    assert_ne!(root.split("disk").next_u64(), root.split("net").next_u64());
    assert_eq!(stable_hash64(0, b""), 0x2D06_8005_38D3_94C2, "XXH3-64 of the empty string, seed 0");
}

#[test]
fn who_waits_for_a_lock_is_counted_and_a_panic_does_not_keep_it() {
    let mutex = std::sync::Mutex::new(1);
    drop(sync::lock(&mutex));
    let before = sync::lock_waits();
    let held = sync::lock(&mutex);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let mut number = sync::lock(&mutex);
            *number += 1;
            panic!("with the lock");
        });
        while sync::lock_waits() == before {
            std::thread::yield_now();
        }
        drop(held);
        assert!(waiting.join().is_err());
    });
    assert_eq!(*sync::lock(&mutex), 2);
}
