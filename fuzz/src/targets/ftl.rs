//! Raw flash: the tags of blocks, the parts of checkpoints and their marks, and the code that corrects what raw media flip.

use std::sync::OnceLock;

use pumice_base::checksum::crc32c_seeded;
use pumice_flash::bch::Bch;
use pumice_segment::ftl::{
    BlockTag, MARK_BYTES, PART_HEADER_BYTES, PartHeader, TAG_BYTES, TagDecoded, TagEnd, TagKind, encode_mark,
    is_mark,
};

use super::split;

const BLOCK: u32 = 5;
const DRIVE_ID: [u8; 16] = *b"a drive to fuzz.";

/// Tags of either version, a part with a payload, a mark.
pub fn seeds() -> Vec<Vec<u8>> {
    let tag = |kind, end| BlockTag { kind, drive_id: DRIVE_ID, id: 1 << 90 | 7, sequence: 9, erases: 3, end };
    let part = PartHeader {
        drive_id: DRIVE_ID,
        generation: 4,
        clean: true,
        in_band: true,
        has_sums: true,
        part: 0,
        parts: 1,
        channels: 4,
        blocks_per_channel: 4,
        pages_per_block: 8,
        page_bytes: 4096,
        oob_bytes: 0,
        sequence: 10,
        scrub_block: 1,
        scrub_passes: 2,
    };
    vec![
        tag(TagKind::Segment, TagEnd::SegmentBytes(8 << 20)).encode(BLOCK).to_vec(),
        tag(TagKind::Erased, TagEnd::PageSum(77)).encode(BLOCK).to_vec(),
        part.encode(BLOCK, &[0x41; 80]),
        encode_mark(BLOCK, DRIVE_ID, 4).to_vec(),
    ]
}

/// As each of them, with the checksum as it is and made right. What is read survives writing, and counts on no other block.
pub fn layouts(input: &[u8]) {
    look_at(input);
    for total in [Some(TAG_BYTES), Some(MARK_BYTES), PartHeader::part_bytes(input)] {
        let Some(total) = total.filter(|total| (16..=input.len()).contains(total)) else { continue };
        let mut bytes = input[..total].to_vec();
        let crc = crc32c_seeded(u64::from(BLOCK), &[&bytes[..12], &bytes[16..]]);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        look_at(&bytes);
    }
}

fn look_at(bytes: &[u8]) {
    if let TagDecoded::Tag(tag) = BlockTag::decode(BLOCK, bytes) {
        assert_eq!(
            BlockTag::decode(BLOCK, &tag.encode(BLOCK)),
            TagDecoded::Tag(tag),
            "a tag survives writing"
        );
        assert_eq!(BlockTag::decode(BLOCK + 1, bytes), TagDecoded::Nothing, "another block's");
    }
    let _ = is_mark(BLOCK, DRIVE_ID, 4, bytes);
    if let Ok(Some((part, payload))) = PartHeader::decode(BLOCK, bytes) {
        assert_eq!(payload.len() + PART_HEADER_BYTES, bytes.len());
        let again = part.encode(BLOCK, payload);
        assert_eq!(PartHeader::decode(BLOCK, &again), Ok(Some((part, payload))), "a part survives writing");
        assert_eq!(PartHeader::decode(BLOCK + 1, bytes), Ok(None), "another block's");
        let _ = part.geometry(512).check();
    }
}

const DATA_BYTES: usize = 64;

/// Codes of few bits and of many, and of an odd number of parity bits.
fn codes() -> &'static [Bch] {
    static CODES: OnceLock<Vec<Bch>> = OnceLock::new();
    CODES.get_or_init(|| {
        [1, 2, 3, 4, 7, 13].iter().map(|&bits| Bch::new(DATA_BYTES, bits).expect("a code")).collect()
    })
}

/// Words of the codes, with a flipped bit or none.
pub fn bch_seeds() -> Vec<Vec<u8>> {
    let word = |(which, code): (usize, &Bch)| {
        let data: Vec<u8> = (0..DATA_BYTES).map(|at| (at * 37 + which) as u8).collect();
        let mut parity = vec![0; code.parity_bytes()];
        code.encode(&data, &mut parity);
        let mut input = [&[which as u8][..], &data, &parity].concat();
        input[1 + 3 * which] ^= (which as u8 & 1) << 4;
        input
    };
    codes().iter().enumerate().map(word).collect()
}

/// Any data and parity: what is mended is a word of the code, no farther away than it says; what is not is as it was.
pub fn bch(input: &[u8]) {
    let ([which], rest) = split(input);
    let (mut data, rest) = split::<DATA_BYTES>(rest);
    let code = &codes()[usize::from(which) % codes().len()];
    let mut parity = vec![0; code.parity_bytes()];
    let len = rest.len().min(parity.len());
    parity[..len].copy_from_slice(&rest[..len]);
    let (was, beside) = (data, parity.clone());
    let flipped =
        |a: &[u8], b: &[u8]| a.iter().zip(b).map(|(a, b)| (a ^ b).count_ones() as usize).sum::<usize>();
    match code.decode(&mut data, &mut parity) {
        Ok(bits) => {
            assert!(bits <= code.correctable_bits());
            assert_eq!(flipped(&data, &was) + flipped(&parity, &beside), bits);
            assert_eq!(code.decode(&mut data, &mut parity), Ok(0), "it is mended");
        }
        Err(_) => assert!(data == was && parity == beside, "nothing is changed"),
    }
}
