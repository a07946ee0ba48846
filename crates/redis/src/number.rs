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
    if let Some(hex) = body.strip_prefix("0x").or_else(|| body.strip_prefix("0X")) {
        let value = parse_hex(hex)?;
        return Some(if text.starts_with('-') { -value } else { value });
    }
    if !body.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return None;
    }
    let value: f64 = text.parse().ok()?;
    let nothing_but_zeros =
        body.bytes().take_while(|b| !matches!(b, b'e' | b'E')).all(|b| matches!(b, b'0' | b'.'));
    (value.is_finite() && (value != 0.0 || nothing_but_zeros)).then_some(value)
}

fn parse_hex(text: &str) -> Option<f64> {
    let (digits, exponent) = match text.find(['p', 'P']) {
        Some(at) => (&text[..at], text[at + 1..].parse::<i32>().ok()?),
        None => (text, 0),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let mut value = 0.0f64;
    for c in whole.chars().chain(fraction.chars()) {
        value = value * 16.0 + f64::from(c.to_digit(16)?);
    }
    let exponent = exponent.saturating_sub(4 * fraction.len() as i32);
    // In two steps: the smallest numbers are products of powers that are none themselves.
    let value = value * 2f64.powi(exponent / 2) * 2f64.powi(exponent - exponent / 2);
    let is_lost = value == 0.0 && (whole.chars().chain(fraction.chars())).any(|c| c != '0');
    (value.is_finite() && !is_lost).then_some(value)
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
