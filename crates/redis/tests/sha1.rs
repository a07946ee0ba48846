//! SHA-1 against the examples of FIPS 180-4.

use pumice_redis::sha1::Sha1;

fn check(text: &[u8], expected: &str) {
    let hex = |digest: [u8; 20]| digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!(hex(Sha1::of(text)), expected);
    let mut in_pieces = Sha1::default();
    text.chunks(7).for_each(|piece| in_pieces.update(piece));
    assert_eq!(hex(in_pieces.finish()), expected);
}

#[test]
fn digests_are_those_of_the_standard() {
    check(b"", "da39a3ee5e6b4b0d3255bfef95601890afd80709");
    check(b"abc", "a9993e364706816aba3e25717850c26c9cd0d89d");
    let two_blocks = b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    check(two_blocks, "84983e441c3bd26ebaae4aa1f95129e5e54670f1");
    check(&vec![b'a'; 1_000_000], "34aa973cd4c4daa4f61eeb2bdbad27316534016f");
}
