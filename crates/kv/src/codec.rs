//! Reading and writing small numbers in byte strings; readers take any bytes and answer `None` at their end.

/// Appends `value` in base 128, low groups first, the top bit of each byte saying that more follow.
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// A position in a byte string.
#[derive(Clone, Copy, Debug)]
pub struct Cursor<'a> {
    bytes: &'a [u8],
    /// The next byte to read.
    pub at: usize,
}

impl<'a> Cursor<'a> {
    /// At `at` in `bytes`.
    pub fn new(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at }
    }

    /// Bytes left.
    pub fn left(&self) -> usize {
        self.bytes.len().saturating_sub(self.at)
    }

    /// One byte.
    #[inline]
    pub fn u8(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    /// The next byte, which stays.
    #[inline]
    pub fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    /// Two bytes, little-endian.
    pub fn u16(&mut self) -> Option<u16> {
        Some(u16::from_le_bytes(self.take(2)?.try_into().ok()?))
    }

    /// Four bytes, little-endian.
    pub fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    /// Eight bytes, little-endian.
    pub fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    /// A number that [`put_varint`] wrote.
    #[inline]
    pub fn varint(&mut self) -> Option<u64> {
        let first = self.u8()?;
        if first < 0x80 {
            return Some(u64::from(first));
        }
        if let Some((len, word)) = self.ahead() {
            // Seven bits of each byte, put side by side.
            let bits = word & (u64::MAX >> (64 - 8 * len)) & 0x7F7F_7F7F_7F7F_7F7F;
            let bits = (bits & 0x007F_007F_007F_007F) | ((bits & 0x7F00_7F00_7F00_7F00) >> 1);
            let bits = (bits & 0x0000_3FFF_0000_3FFF) | ((bits & 0x3FFF_0000_3FFF_0000) >> 2);
            let bits = (bits & 0x0FFF_FFFF) | ((bits & 0x0FFF_FFFF_0000_0000) >> 4);
            self.at += len - 1;
            return Some(bits);
        }
        self.long_varint(first)
    }

    /// Bytes of the varint whose first byte was just read, and the eight bytes from there; `None` when it is longer or
    /// the end is near.
    #[inline]
    fn ahead(&self) -> Option<(usize, u64)> {
        let word = self.bytes.get(self.at - 1..self.at + 7)?;
        let word = u64::from_le_bytes(word.try_into().ok()?);
        let ends = !word & 0x8080_8080_8080_8080;
        (ends != 0).then(|| (ends.trailing_zeros() as usize / 8 + 1, word))
    }

    #[cold]
    fn long_varint(&mut self, first: u8) -> Option<u64> {
        let mut value = u64::from(first & 0x7F);
        let mut shift = 7;
        loop {
            let byte = self.u8()?;
            if shift == 63 && byte > 1 {
                return None;
            }
            value |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return Some(value);
            }
            shift += 7;
            if shift > 63 {
                return None;
            }
        }
    }

    /// Passes over a varint.
    #[inline]
    pub fn skip_varint(&mut self) -> Option<()> {
        if self.u8()? >= 0x80 {
            match self.ahead() {
                Some((len, _)) => self.at += len - 1,
                None => {
                    self.at -= 1;
                    self.varint()?;
                }
            }
        }
        Some(())
    }

    /// Passes over `n` varints; how long each is it does not look at.
    #[inline]
    pub fn skip_varints(&mut self, mut n: u32) -> Option<()> {
        while n > 0
            && let Some(word) = self.bytes.get(self.at..).and_then(|rest| rest.first_chunk())
        {
            // The top bit of each byte that ends a varint.
            let mut ends = !u64::from_le_bytes(*word) & 0x8080_8080_8080_8080;
            let here = ((ends >> 7).wrapping_mul(0x0101_0101_0101_0101) >> 56) as u32;
            if here >= n {
                for _ in 1..n {
                    ends &= ends - 1;
                }
                self.at += ends.trailing_zeros() as usize / 8 + 1;
                return Some(());
            }
            n -= here;
            self.at += 8;
        }
        (0..n).try_for_each(|_| self.skip_varint())
    }

    /// A varint that counts bytes or things in memory.
    pub fn count(&mut self) -> Option<usize> {
        usize::try_from(self.varint()?).ok()
    }

    /// The next `len` bytes.
    #[inline]
    pub fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(len)?;
        let bytes = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(bytes)
    }
}
