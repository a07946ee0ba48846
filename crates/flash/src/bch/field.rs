//! GF(2^m) by logarithms.

/// Primitive polynomials of degree 13, 14 and 15, as bits (Lin and Costello, Error Control Coding, appendix A).
const PRIMITIVE: [u32; 3] = [0x201B, 0x4443, 0x8003];

/// A field with a primitive element α.
pub(super) struct Field {
    /// α^i for i in 0..2·order, so that a sum of two logarithms needs no reduction.
    exp: Vec<u16>,
    /// Logarithms to the base α; that of 0 is unused.
    log: Vec<u16>,
    /// For each c, a y with y² + y = c, or [`NO_ROOT`].
    half: Vec<u16>,
}

const NO_ROOT: u16 = u16::MAX;

impl Field {
    pub(super) fn new(m: u32) -> Self {
        let polynomial = PRIMITIVE[(m - 13) as usize];
        let order = (1usize << m) - 1;
        let (mut exp, mut log) = (vec![0; 2 * order], vec![0; order + 1]);
        let mut value = 1u32;
        for i in 0..order {
            assert!(i == 0 || value != 1, "the polynomial of degree {m} is not primitive");
            exp[i] = value as u16;
            exp[i + order] = value as u16;
            log[value as usize] = i as u16;
            value <<= 1;
            if value >> m == 1 {
                value ^= polynomial;
            }
        }
        let mut field = Self { exp, log, half: vec![NO_ROOT; order + 1] };
        for y in 0..=order as u16 {
            let c = field.mul(y, y) ^ y;
            field.half[usize::from(c)] = y;
        }
        field
    }

    /// 2^m − 1: what exponents count modulo.
    pub(super) fn order(&self) -> usize {
        self.log.len() - 1
    }

    /// α^i, for i below twice the order.
    pub(super) fn exp(&self, i: usize) -> u16 {
        self.exp[i]
    }

    /// The logarithm of `a`, which is not 0.
    pub(super) fn log(&self, a: u16) -> usize {
        usize::from(self.log[usize::from(a)])
    }

    pub(super) fn mul(&self, a: u16, b: u16) -> u16 {
        if a == 0 || b == 0 { 0 } else { self.exp[self.log(a) + self.log(b)] }
    }

    /// `a / b`, where b is not 0.
    pub(super) fn div(&self, a: u16, b: u16) -> u16 {
        if a == 0 { 0 } else { self.exp[self.log(a) + self.order() - self.log(b)] }
    }

    /// A y with y² + y = c, if there is one (then y + 1 is the other).
    pub(super) fn half(&self, c: u16) -> Option<u16> {
        Some(self.half[usize::from(c)]).filter(|&y| y != NO_ROOT)
    }
}
