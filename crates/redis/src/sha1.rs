//! SHA-1 (FIPS 180-4, section 6.1), for DEBUG DIGEST: Redis names data sets by it. Nothing here relies on its strength.

/// Bytes of a digest.
pub const SHA1_BYTES: usize = 20;
const BLOCK_BYTES: usize = 64;

/// A digest under way.
#[derive(Clone)]
pub struct Sha1 {
    state: [u32; 5],
    block: [u8; BLOCK_BYTES],
    /// Bytes of the block that are filled.
    filled: usize,
    /// Bytes in all.
    len: u64,
}

impl Default for Sha1 {
    fn default() -> Self {
        let state = [0x6745_2301, 0xEFCD_AB89, 0x98BA_DCFE, 0x1032_5476, 0xC3D2_E1F0];
        Self { state, block: [0; BLOCK_BYTES], filled: 0, len: 0 }
    }
}

impl Sha1 {
    /// The digest of `bytes`.
    pub fn of(bytes: &[u8]) -> [u8; SHA1_BYTES] {
        let mut sha1 = Self::default();
        sha1.update(bytes);
        sha1.finish()
    }

    /// Takes in more.
    pub fn update(&mut self, mut bytes: &[u8]) {
        self.len += bytes.len() as u64;
        while !bytes.is_empty() {
            let take = bytes.len().min(BLOCK_BYTES - self.filled);
            let (now, later) = bytes.split_at(take);
            self.block[self.filled..self.filled + take].copy_from_slice(now);
            self.filled += take;
            bytes = later;
            if self.filled == BLOCK_BYTES {
                self.compress();
                self.filled = 0;
            }
        }
    }

    /// The digest of all that was taken in.
    pub fn finish(mut self) -> [u8; SHA1_BYTES] {
        let bits = self.len * 8;
        self.update(&[0x80]);
        while self.filled != BLOCK_BYTES - 8 {
            self.update(&[0]);
        }
        self.update(&bits.to_be_bytes());
        let mut digest = [0; SHA1_BYTES];
        for (out, word) in digest.chunks_exact_mut(4).zip(self.state) {
            out.copy_from_slice(&word.to_be_bytes());
        }
        digest
    }

    fn compress(&mut self) {
        let mut words = [0u32; 80];
        for (word, bytes) in words.iter_mut().zip(self.block.chunks_exact(4)) {
            *word = bytes.iter().fold(0, |word, &byte| word << 8 | u32::from(byte));
        }
        for t in 16..80 {
            words[t] = (words[t - 3] ^ words[t - 8] ^ words[t - 14] ^ words[t - 16]).rotate_left(1);
        }
        let [mut a, mut b, mut c, mut d, mut e] = self.state;
        for (t, word) in words.into_iter().enumerate() {
            let (mixed, constant) = match t {
                0..20 => (b & c | !b & d, 0x5A82_7999),
                20..40 => (b ^ c ^ d, 0x6ED9_EBA1),
                40..60 => (b & c | b & d | c & d, 0x8F1B_BCDC),
                _ => (b ^ c ^ d, 0xCA62_C1D6u32),
            };
            let next = a
                .rotate_left(5)
                .wrapping_add(mixed)
                .wrapping_add(e)
                .wrapping_add(constant)
                .wrapping_add(word);
            (e, d, c, b, a) = (d, c, b.rotate_left(30), a, next);
        }
        for (word, add) in self.state.iter_mut().zip([a, b, c, d, e]) {
            *word = word.wrapping_add(add);
        }
    }
}
