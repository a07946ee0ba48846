//! Redis Cluster's key slots: CRC-16/XMODEM of the key, or of its hash tag, modulo 16,384.

/// The number of slots (Redis Cluster specification, "Key distribution model").
pub const SLOT_COUNT: u16 = 16_384;

const fn crc16_table() -> [u16; 256] {
    let mut table = [0u16; 256];
    let mut i = 0;
    while i < 256 {
        let mut crc = (i as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 != 0 { (crc << 1) ^ 0x1021 } else { crc << 1 };
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
}

static CRC16: [u16; 256] = crc16_table();

/// The slot of `key`: keys that share a `{tag}` share a slot.
pub fn slot_of(key: &[u8]) -> u16 {
    let tag = key.iter().position(|&b| b == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        rest.iter().position(|&b| b == b'}').filter(|&close| close > 0).map(|close| &rest[..close])
    });
    let crc = tag
        .unwrap_or(key)
        .iter()
        .fold(0u16, |crc, &byte| (crc << 8) ^ CRC16[usize::from((crc >> 8) as u8 ^ byte)]);
    crc % SLOT_COUNT
}
