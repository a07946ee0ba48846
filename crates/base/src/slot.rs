//! Redis Cluster's key slots: CRC-16/XMODEM of the key, or of its hash tag, modulo 16,384.

/// The number of slots (Redis Cluster specification, "Key distribution model").
pub const SLOT_COUNT: u16 = 16_384;

/// `CRC16[n][b]`: what byte `b` adds to the CRC when `n` bytes follow it.
const fn crc16_tables() -> [[u16; 256]; 8] {
    let mut tables = [[0u16; 256]; 8];
    let mut i = 0;
    while i < 256 {
        let mut crc = (i as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 != 0 { (crc << 1) ^ 0x1021 } else { crc << 1 };
            bit += 1;
        }
        tables[0][i] = crc;
        i += 1;
    }
    let mut n = 1;
    while n < 8 {
        let mut i = 0;
        while i < 256 {
            let before = tables[n - 1][i];
            tables[n][i] = (before << 8) ^ tables[0][(before >> 8) as usize];
            i += 1;
        }
        n += 1;
    }
    tables
}

static CRC16: [[u16; 256]; 8] = crc16_tables();

/// CRC-16/XMODEM, eight bytes at a time: each of them through a table of its own, none waiting for another.
fn crc16(bytes: &[u8]) -> u16 {
    let (eights, rest) = bytes.as_chunks::<8>();
    let crc = eights.iter().fold(0u16, |crc, eight| {
        let [high, low] = crc.to_be_bytes();
        let [a, b, c, d, e, f, g, h] = *eight;
        let through = |n: usize, byte: u8| CRC16[n][usize::from(byte)];
        let front = through(7, a ^ high) ^ through(6, b ^ low) ^ through(5, c) ^ through(4, d);
        front ^ through(3, e) ^ through(2, f) ^ through(1, g) ^ through(0, h)
    });
    rest.iter().fold(crc, |crc, &byte| (crc << 8) ^ CRC16[0][usize::from((crc >> 8) as u8 ^ byte)])
}

/// The slot of `key`: keys that share a `{tag}` share a slot.
pub fn slot_of(key: &[u8]) -> u16 {
    let tag = memchr::memchr(b'{', key).and_then(|open| {
        let rest = &key[open + 1..];
        rest.iter().position(|&b| b == b'}').filter(|&close| close > 0).map(|close| &rest[..close])
    });
    crc16(tag.unwrap_or(key)) % SLOT_COUNT
}
