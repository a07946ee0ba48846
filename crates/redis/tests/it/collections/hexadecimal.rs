//! Scores and their bounds in hexadecimal.

use super::with_pair;

/// Redis reads scores with `strtod`, which rounds once, however many digits there are; bounds may lie out of range.
#[test]
fn hexadecimal_scores_and_bounds_are_rounded_as_redis_does() {
    let mut table: String = [
        "0x2afa1d2fc2a011.5f64cc4d320f47p-51",
        "0x1.000000000000080001p0",
        "0x1.00000000000008p0",
        "0x1.00000000000018p0",
        "0x0.00000000000000000000000000000000001p200",
        "0xffffffffffffffffffffffffffffffffp-128",
        "-0x1.fffffffffffff7ffffffffp1023",
        "0x1.fffffffffffff8p1023",
        "0x1p1024",
        "0x1p-1074",
        "0x1p-1075",
        "0x1.00000000000000000001p-1075",
        "0x1.8p-1074",
        "0x0.000000000000123456789p-1022",
        "0x0p99999",
        "0x1p99999",
        "-0x1p-99999999999999999999",
        "0x1p",
        "0x1p+",
        "0x",
        "0x.",
        "0x.8",
        "0x8.",
        "0X1P+1",
        "0x1g",
    ]
    .iter()
    .flat_map(|number| {
        [
            "DEL z".into(),
            format!("ZADD z {number} m"),
            "ZSCORE z m".into(),
            "ZADD z 0 0 1 1 -1 -1 1e-320 tiny".into(),
            format!("ZRANGEBYSCORE z {number} +inf"),
            format!("ZRANGEBYSCORE z -inf ({number}"),
            format!("ZCOUNT z {number} {number}"),
        ]
    })
    .map(|line: String| line + "\n")
    .collect();
    // Digits at random, around what a double holds; the same in each run.
    let mut state = 1u64;
    for _ in 0..100 {
        let mut next = || {
            state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
            state >> 16
        };
        let (digits, fraction, exponent) = (next() << 16 | next(), next(), next() as i64 % 1100);
        table += &format!("ZADD z 0x{digits:x}.{fraction:x}p{exponent} m\nZSCORE z m\n");
        table += &format!("ZADD z 0x1.{digits:x}p-{exponent} m\nZSCORE z m\n");
    }
    with_pair(&["2", "3"], |pair| {
        pair.table(&table);
        pair.check_contents();
    });
}
