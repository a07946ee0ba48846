//! Numbers as Redis reads and writes them: stricter than most parsers (no `+1`, no `01`, no spaces), so that a
//! value that looks like an integer is exactly the text that the integer prints as.

/// Reads a 64-bit signed integer: `-?[1-9][0-9]*` or `0` (util.c, string2ll).
pub fn parse_int(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        _ => (false, text),
    };
    match digits {
        [b'0'] if !negative => return Some(0),
        [b'1'..=b'9', ..] if digits.len() <= 19 => {}
        _ => return None,
    }
    let mut value: u64 = 0;
    for &digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        // 19 digits fit into 64 unsigned bits.
        value = value * 10 + u64::from(digit - b'0');
    }
    if negative {
        (value <= 1 << 63).then(|| (value as i64).wrapping_neg())
    } else {
        i64::try_from(value).ok()
    }
}

/// Reads an unsigned 64-bit integer as `strtoul` does for SCAN cursors: a sign is allowed, −1 is the greatest number.
pub fn parse_cursor(text: &[u8]) -> Option<u64> {
    // As C sees it: up to the first zero byte, nothing at all being 0.
    let text = text.split(|&b| b == 0).next().unwrap_or_default();
    let (is_negative, digits) = match text {
        [] => return Some(0),
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    if digits.is_empty() {
        return None;
    }
    let value = digits.iter().try_fold(0u64, |value, &b| {
        b.is_ascii_digit().then_some(())?;
        value.checked_mul(10)?.checked_add(u64::from(b - b'0'))
    })?;
    Some(if is_negative { value.wrapping_neg() } else { value })
}

/// Reads a float as `strtod` does, all of `text`: decimal or hexadecimal, `inf`, `infinity`. No NaN, no
/// leading space, no value that leaves the range of a double (util.c, string2d; object.c).
pub fn parse_double(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(text).ok()?;
    let body = text.strip_prefix(['+', '-']).unwrap_or(text);
    if body.eq_ignore_ascii_case("inf") || body.eq_ignore_ascii_case("infinity") {
        return Some(if text.starts_with('-') { f64::NEG_INFINITY } else { f64::INFINITY });
    }
    if let Some(hex) = hexadecimal(body) {
        let (value, has_digits) = hex?;
        let is_lost = value.is_infinite() || (value == 0.0 && has_digits);
        return (!is_lost).then_some(if text.starts_with('-') { -value } else { value });
    }
    if !body.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return None;
    }
    let value: f64 = text.parse().ok()?;
    let nothing_but_zeros =
        body.bytes().take_while(|b| !matches!(b, b'e' | b'E')).all(|b| matches!(b, b'0' | b'.'));
    (value.is_finite() && (value != 0.0 || nothing_but_zeros)).then_some(value)
}

/// Reads a number as [`parse_double`] does, but for values out of range: they become infinite, or zero, as `strtod` has it.
pub fn parse_saturating(text: &[u8]) -> Option<f64> {
    if let Some(value) = parse_double(text) {
        return Some(value);
    }
    let text = std::str::from_utf8(text).ok()?;
    let body = text.strip_prefix(['+', '-']).unwrap_or(text);
    if let Some(hex) = hexadecimal(body) {
        return hex.map(|(value, _)| if text.starts_with('-') { -value } else { value });
    }
    body.starts_with(|c: char| c.is_ascii_digit() || c == '.').then(|| text.parse().ok()).flatten()
}

/// The value of what begins with `0x`, rounded once, and whether a digit of it is not zero. Outer `None`: it does not begin so;
/// inner: it is no number.
fn hexadecimal(body: &str) -> Option<Option<(f64, bool)>> {
    let text = body.strip_prefix("0x").or_else(|| body.strip_prefix("0X"))?;
    Some(hex_value(text))
}

fn hex_value(text: &str) -> Option<(f64, bool)> {
    let (digits, exponent) = match text.find(['p', 'P']) {
        Some(at) => (&text[..at], saturating_exponent(&text[at + 1..])?),
        None => (text, 0),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    // mantissa × 2^exponent, and `rest`: whether a bit below is set.
    let (mut mantissa, mut exponent, mut rest) = (0u64, exponent, false);
    for (place, c) in whole.chars().chain(fraction.chars()).enumerate() {
        let digit = u64::from(c.to_digit(16)?);
        let is_kept = mantissa >> 60 == 0;
        if is_kept {
            mantissa = mantissa << 4 | digit;
        } else {
            rest |= digit != 0;
        }
        // Kept digits of the fraction move the point, whole ones that are not kept the other way.
        exponent += 4 * (i64::from(!is_kept) - i64::from(place >= whole.len()));
    }
    Some((rounded(mantissa, rest, exponent), mantissa != 0))
}

/// An exponent's text; beyond what any double reaches it is cut.
fn saturating_exponent(text: &str) -> Option<i64> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    if digits.is_empty() {
        return None;
    }
    // Above what the longest argument's digits can make up for.
    let cut = |value: i64| value.min(1 << 40);
    let value = digits.chars().try_fold(0, |value, c| Some(cut(value * 10 + i64::from(c.to_digit(10)?))))?;
    Some(sign * value)
}

/// (mantissa, and a bit more if `rest`) × 2^exponent to the nearest double, ties to even.
fn rounded(mantissa: u64, rest: bool, exponent: i64) -> f64 {
    const LOWEST_EXPONENT: i64 = -1074;
    if mantissa == 0 {
        return 0.0;
    }
    let end = exponent + 64 - i64::from(mantissa.leading_zeros());
    if end > 1024 {
        return f64::INFINITY;
    }
    // One bit below the mantissa stands for the rest.
    let bits = u128::from(mantissa) << 1 | u128::from(rest);
    let lowest = (end - 53).max(LOWEST_EXPONENT);
    let cut = lowest - (exponent - 1);
    let (kept, lowest) = match cut {
        ..=0 => (bits, exponent - 1),
        1..=66 => {
            let (kept, below, half) = (bits >> cut, bits & ((1 << cut) - 1), 1u128 << (cut - 1));
            (kept + u128::from(below > half || (below == half && kept & 1 == 1)), lowest)
        }
        _ => return 0.0,
    };
    // In two steps: the smallest numbers are products of powers that are none themselves.
    let lowest = lowest as i32;
    kept as f64 * 2f64.powi(lowest / 2) * 2f64.powi(lowest - lowest / 2)
}

/// Writes `value` in decimal at the end of `out` and returns the digits.
pub fn push_int(out: &mut [u8; 20], value: i64) -> &[u8] {
    let mut at = out.len();
    let mut rest = value.unsigned_abs();
    loop {
        at -= 1;
        out[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if value < 0 {
        at -= 1;
        out[at] = b'-';
    }
    &out[at..]
}

/// The text of an integer.
pub fn int_text(value: i64) -> Vec<u8> {
    push_int(&mut [0u8; 20], value).to_vec()
}

/// Writes a double as C's `%.17g` does, `inf` and `-inf` for the infinities: what Redis 7.0 answers for scores.
pub fn format_double(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_string();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf".to_string() } else { "-inf".to_string() };
    }
    // Integers are the usual case.
    if value == value.trunc() && value.abs() < 1e15 && (value != 0.0 || value.is_sign_positive()) {
        return (value as i64).to_string();
    }
    let scientific = format!("{value:.16e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if !(-4..17).contains(&exponent) {
        let mantissa = trim_fraction(mantissa);
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{mantissa}e{sign}{:02}", exponent.abs());
    }
    let fixed = format!("{value:.*}", (16 - exponent).max(0) as usize);
    trim_fraction(&fixed).to_string()
}

fn trim_fraction(text: &str) -> &str {
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { text }
}
