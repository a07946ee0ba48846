//! Sums as Redis computes them for INCRBYFLOAT and HINCRBYFLOAT: in the 80-bit doubles of x86 (64 bits of
//! mantissa), read as `strtold` reads them and written as `%.17Lf` without trailing zeros.
//!
//! A plain double would answer 0.30000000000000004 to 0.1 + 0.2 where Redis answers 0.3. Rust has no such type,
//! so this computes in integers of any length and rounds to nearest, ties to even, where the processor would.

/// Why a sum could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddError {
    /// The stored value is no float.
    NotFloat,
    /// The sum is not finite.
    NanOrInfinity,
}

/// Longest text that is read as a number: what `%.17Lf` may print fits.
const TEXT_BYTES_MAX: usize = 5119;
/// Bits of mantissa.
const MANTISSA_BITS: usize = 64;
/// Exponent of the lowest bit of the smallest number.
const LOWEST_EXPONENT: i64 = -16445;
/// No number reaches two to this power.
const OVERFLOW_EXPONENT: i64 = 16384;
/// Decimal exponents beyond this are overflow or underflow whatever the digits.
const DECIMAL_EXPONENT_MAX: i64 = 10_200;

/// A number: ±mantissa × 2^exponent, or ±infinity.
#[derive(Clone, Debug, PartialEq)]
enum Number {
    Finite { negative: bool, mantissa: u64, exponent: i64 },
    Infinite { negative: bool },
}

/// Whether `text` reads as a number, infinities included.
pub fn check(text: &[u8]) -> Option<()> {
    parse(text).map(|_| ())
}

/// Whether `text` reads as a finite number.
pub fn is_finite(text: &[u8]) -> bool {
    matches!(parse(text), Some(Number::Finite { .. }))
}

/// The sum of two numbers given as text. `increment` must have passed [`check`].
///
/// # Errors
/// When `value` is no number, or the sum is not finite.
pub fn add_text(value: &[u8], increment: &[u8]) -> Result<Vec<u8>, AddError> {
    let value = parse(value).ok_or(AddError::NotFloat)?;
    let increment = parse(increment).ok_or(AddError::NotFloat)?;
    match add(&value, &increment) {
        Some(Number::Finite { negative, mantissa, exponent }) => Ok(print(negative, mantissa, exponent)),
        _ => Err(AddError::NanOrInfinity),
    }
}

fn parse(text: &[u8]) -> Option<Number> {
    if text.is_empty() || text.len() > TEXT_BYTES_MAX {
        return None;
    }
    let (negative, body) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, text),
    };
    if body.eq_ignore_ascii_case(b"inf") || body.eq_ignore_ascii_case(b"infinity") {
        return Some(Number::Infinite { negative });
    }
    let (radix, body) = match body {
        [b'0', b'x' | b'X', rest @ ..] => (16, rest),
        _ => (10, body),
    };
    let exponent_marks: &[u8] = if radix == 16 { b"pP" } else { b"eE" };
    let (digits, exponent) = match body.iter().position(|b| exponent_marks.contains(b)) {
        Some(at) => (&body[..at], parse_exponent(&body[at + 1..])?),
        None => (body, 0),
    };
    let (whole, fraction) = match digits.iter().position(|&b| b == b'.') {
        Some(at) => (&digits[..at], &digits[at + 1..]),
        None => (digits, &[][..]),
    };
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let mut number = Big::default();
    for &digit in whole.iter().chain(fraction) {
        number.multiply_add(radix, char::from(digit).to_digit(radix)?);
    }
    if number.is_zero() {
        return Some(Number::Finite { negative, mantissa: 0, exponent: 0 });
    }
    let rounded = if radix == 16 {
        round(&number, exponent.saturating_sub(4 * fraction.len() as i64), false)
    } else {
        from_decimal(number, exponent.saturating_sub(fraction.len() as i64))?
    };
    // Overflow, and underflow to zero, are errors (ERANGE).
    rounded.filter(|(mantissa, _)| *mantissa != 0).map(|(mantissa, exponent)| Number::Finite {
        negative,
        mantissa,
        exponent,
    })
}

fn parse_exponent(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, text),
    };
    if digits.is_empty() {
        return None;
    }
    let mut value = 0i64;
    for &digit in digits {
        value = (value * 10 + i64::from(char::from(digit).to_digit(10)?)).min(1_000_000);
    }
    Some(if negative { -value } else { value })
}

/// `digits` × 10^`exponent` to the nearest number; the outer `None`: out of range.
#[allow(clippy::option_option)] // range and overflow are told apart for a moment only
fn from_decimal(mut digits: Big, exponent: i64) -> Option<Option<(u64, i64)>> {
    if !(-DECIMAL_EXPONENT_MAX..=DECIMAL_EXPONENT_MAX).contains(&exponent) {
        return None;
    }
    if exponent >= 0 {
        for _ in 0..exponent {
            digits.multiply_add(10, 0);
        }
        return Some(round(&digits, 0, false));
    }
    let mut divisor = Big::from(1);
    for _ in 0..-exponent {
        divisor.multiply_add(10, 0);
    }
    // A quotient of at least 66 bits, and what is left over as one sticky bit.
    let shift = (divisor.bits() + 67).saturating_sub(digits.bits());
    digits.shift_left(shift);
    let (quotient, exact) = digits.divide(&divisor);
    Some(round(&quotient, -(shift as i64), !exact))
}

/// `number` × 2^`exponent` (a little more if `sticky`) to the nearest representable; `None` on overflow.
fn round(number: &Big, exponent: i64, sticky: bool) -> Option<(u64, i64)> {
    let bits = number.bits() as i64;
    let mut drop = (bits - MANTISSA_BITS as i64).max(0);
    if exponent + drop < LOWEST_EXPONENT {
        drop = (LOWEST_EXPONENT - exponent).min(bits + 2);
    }
    let (mut mantissa, half, rest) = number.split(drop as usize);
    let mut exponent = exponent + drop;
    if half && (rest || sticky || mantissa & 1 == 1) {
        match mantissa.checked_add(1) {
            Some(next) => mantissa = next,
            None => {
                mantissa = 1 << 63;
                exponent += 1;
            }
        }
    }
    let top = exponent + 64 - i64::from(mantissa.leading_zeros());
    (mantissa == 0 || top <= OVERFLOW_EXPONENT).then_some((mantissa, exponent))
}

fn add(a: &Number, b: &Number) -> Option<Number> {
    match (a, b) {
        (Number::Infinite { negative: a }, Number::Infinite { negative: b }) if a != b => None,
        (Number::Infinite { .. }, _) => Some(a.clone()),
        (_, Number::Infinite { .. }) => Some(b.clone()),
        (
            Number::Finite { negative: a_negative, mantissa: a, exponent: a_exponent },
            Number::Finite { negative: b_negative, mantissa: b, exponent: b_exponent },
        ) => {
            let lowest = match (*a == 0, *b == 0) {
                (false, false) => *a_exponent.min(b_exponent),
                (false, true) => *a_exponent,
                _ => *b_exponent,
            };
            let aligned = |mantissa: u64, exponent: i64| {
                let mut big = Big::from(mantissa);
                if mantissa != 0 {
                    big.shift_left((exponent - lowest) as usize);
                }
                big
            };
            let (a, b) = (aligned(*a, *a_exponent), aligned(*b, *b_exponent));
            let (negative, sum) = if a_negative == b_negative {
                (*a_negative, a.plus(&b))
            } else if a.at_least(&b) {
                (*a_negative, a.minus(&b))
            } else {
                (*b_negative, b.minus(&a))
            };
            let negative = negative && !sum.is_zero();
            Some(match round(&sum, lowest, false) {
                Some((mantissa, exponent)) => Number::Finite { negative, mantissa, exponent },
                None => Number::Infinite { negative },
            })
        }
    }
}

/// `%.17Lf` without trailing zeros.
fn print(negative: bool, mantissa: u64, exponent: i64) -> Vec<u8> {
    const DECIMALS: usize = 17;
    let mut scaled = Big::from(mantissa);
    for _ in 0..DECIMALS {
        scaled.multiply_add(10, 0);
    }
    if exponent >= 0 {
        scaled.shift_left(exponent as usize);
    } else {
        scaled = scaled.rounded_right((-exponent) as usize);
    }
    let mut digits = scaled.decimal();
    while digits.len() <= DECIMALS {
        digits.insert(0, b'0');
    }
    digits.insert(digits.len() - DECIMALS, b'.');
    while digits.last() == Some(&b'0') {
        digits.pop();
    }
    if digits.last() == Some(&b'.') {
        digits.pop();
    }
    if negative && digits != b"0" {
        digits.insert(0, b'-');
    }
    digits
}

/// A natural number of any length: 32-bit limbs, the lowest first, none of them zero at the top.
#[derive(Clone, Debug, Default)]
struct Big(Vec<u32>);

impl From<u64> for Big {
    fn from(value: u64) -> Self {
        let mut big = Self(vec![value as u32, (value >> 32) as u32]);
        big.trim();
        big
    }
}

impl Big {
    fn trim(&mut self) {
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
    }

    fn is_zero(&self) -> bool {
        self.0.is_empty()
    }

    fn bits(&self) -> usize {
        self.0.last().map_or(0, |top| self.0.len() * 32 - top.leading_zeros() as usize)
    }

    fn bit(&self, i: usize) -> bool {
        self.0.get(i / 32).is_some_and(|limb| limb >> (i % 32) & 1 == 1)
    }

    fn multiply_add(&mut self, factor: u32, addend: u32) {
        let mut carry = u64::from(addend);
        for limb in &mut self.0 {
            let product = u64::from(*limb) * u64::from(factor) + carry;
            *limb = product as u32;
            carry = product >> 32;
        }
        if carry > 0 {
            self.0.push(carry as u32);
        }
    }

    fn shift_left(&mut self, bits: usize) {
        let (limbs, bits) = (bits / 32, bits % 32);
        if bits > 0 {
            let mut carry = 0;
            for limb in &mut self.0 {
                let next = *limb >> (32 - bits);
                *limb = *limb << bits | carry;
                carry = next;
            }
            if carry > 0 {
                self.0.push(carry);
            }
        }
        if !self.is_zero() {
            self.0.splice(0..0, std::iter::repeat_n(0, limbs));
        }
    }

    /// The bits from `drop` on, which must fit into 64; the bit below them; whether any bit below that is set.
    fn split(&self, drop: usize) -> (u64, bool, bool) {
        let mantissa = (0..MANTISSA_BITS).rev().fold(0, |m, i| m << 1 | u64::from(self.bit(drop + i)));
        let half = drop > 0 && self.bit(drop - 1);
        (mantissa, half, (0..drop.saturating_sub(1)).any(|i| self.bit(i)))
    }

    /// Divided by 2^`bits`, to nearest, ties to even.
    fn rounded_right(&self, bits: usize) -> Self {
        let half = self.bit(bits - 1);
        let rest = (0..bits - 1).any(|i| self.bit(i));
        let mut shifted = Self(Vec::new());
        for limb in 0..self.0.len().saturating_sub(bits / 32) {
            let word = (0..32).fold(0, |w, i| w | u32::from(self.bit(bits + limb * 32 + i)) << i);
            shifted.0.push(word);
        }
        shifted.trim();
        if half && (rest || shifted.bit(0)) { shifted.plus(&Self::from(1)) } else { shifted }
    }

    fn plus(&self, other: &Self) -> Self {
        let mut sum = Vec::with_capacity(self.0.len().max(other.0.len()) + 1);
        let mut carry = 0u64;
        for i in 0..self.0.len().max(other.0.len()) {
            let limb = |big: &Self| u64::from(big.0.get(i).copied().unwrap_or(0));
            carry += limb(self) + limb(other);
            sum.push(carry as u32);
            carry >>= 32;
        }
        sum.push(carry as u32);
        let mut sum = Self(sum);
        sum.trim();
        sum
    }

    fn at_least(&self, other: &Self) -> bool {
        self.0.len().cmp(&other.0.len()).then_with(|| self.0.iter().rev().cmp(other.0.iter().rev())).is_ge()
    }

    /// Less `other`, which must not be greater.
    fn minus(&self, other: &Self) -> Self {
        let mut difference = self.clone();
        let mut borrow = 0i64;
        for (i, limb) in difference.0.iter_mut().enumerate() {
            let mut next = i64::from(*limb) - i64::from(other.0.get(i).copied().unwrap_or(0)) - borrow;
            borrow = i64::from(next < 0);
            next += borrow << 32;
            *limb = next as u32;
        }
        difference.trim();
        difference
    }

    /// The quotient, and whether nothing is left over. Bit by bit: quotients have about 67 bits.
    fn divide(&self, divisor: &Self) -> (Self, bool) {
        let mut quotient = Self::default();
        let steps = self.bits().saturating_sub(divisor.bits());
        let mut rest = self.clone();
        for step in (0..=steps).rev() {
            let mut shifted = divisor.clone();
            shifted.shift_left(step);
            quotient.multiply_add(2, 0);
            if rest.at_least(&shifted) {
                rest = rest.minus(&shifted);
                if quotient.is_zero() {
                    quotient = Self::from(1);
                } else {
                    quotient.0[0] |= 1;
                }
            }
        }
        (quotient, rest.is_zero())
    }

    fn decimal(&self) -> Vec<u8> {
        let mut digits = Vec::new();
        let mut rest = self.clone();
        while !rest.is_zero() {
            let mut remainder = 0u64;
            for limb in rest.0.iter_mut().rev() {
                let dividend = remainder << 32 | u64::from(*limb);
                *limb = (dividend / 1_000_000_000) as u32;
                remainder = dividend % 1_000_000_000;
            }
            rest.trim();
            for _ in 0..9 {
                digits.push(b'0' + (remainder % 10) as u8);
                remainder /= 10;
            }
        }
        while digits.last() == Some(&b'0') {
            digits.pop();
        }
        digits.reverse();
        digits
    }
}
