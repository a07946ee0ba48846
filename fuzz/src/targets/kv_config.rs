//! What stands at the root of things: a store's own part of the superblock, a drive's place in its set, and the list of
//! pieces of a large value.

use bytes::Bytes;
use pumice_kv::{LargeRef, OpenError, read_config};
use pumice_node::Member;

use super::split;

/// Which of the three it is, then its bytes.
pub fn seeds() -> Vec<Vec<u8>> {
    let config =
        [&2u32.to_le_bytes()[..], &64u16.to_le_bytes(), &128u16.to_le_bytes(), b"the face's"].concat();
    let member = Member { set: *b"a set of drives.", index: 2, count: 3 }.encode();
    // Id and length of the value; address, record length and value bytes of each piece.
    let mut pieces = [9u64.to_le_bytes(), 300_000u64.to_le_bytes()].concat();
    for (at, len) in [(1u64 << 32 | 4096, 200_000u32), (7 << 32 | 8192, 100_000)] {
        pieces.extend_from_slice(&at.to_le_bytes());
        pieces.extend_from_slice(&(len + 60).to_le_bytes());
        pieces.extend_from_slice(&len.to_le_bytes());
    }
    let part = |which: u8, bytes: &[u8]| [&[which][..], bytes].concat();
    vec![part(0, &config), part(1, &member), part(2, &pieces), part(2, &[0; 16])]
}

/// What decodes is sound, and is written one way.
pub fn run(input: &[u8]) {
    let ([which], part) = split::<1>(input);
    match which % 3 {
        0 => match read_config(&Bytes::copy_from_slice(part)) {
            Ok((slices, inline_max, rest)) => {
                assert!((1..=1024).contains(&slices) && inline_max <= usize::from(u16::MAX));
                assert_eq!(rest, part[8..], "what is behind it is the layer's above");
            }
            Err(error) => assert!(matches!(error, OpenError::Manifest(_)), "{error}"),
        },
        1 => {
            let Ok(member) = Member::decode(part) else { return };
            assert!(member.index < member.count);
            assert_eq!(Member::decode(&member.encode()), Ok(member), "a membership survives writing");
        }
        _ => {
            let Some(list) = LargeRef::decode(part) else { return };
            let mut again = Vec::new();
            list.encode(&mut again);
            assert_eq!(again, part, "a list of pieces is written one way");
        }
    }
}
