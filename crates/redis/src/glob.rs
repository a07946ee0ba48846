//! Redis's glob patterns (util.c, stringmatchlen): `*`, `?`, `[a-z]`, `[^x]`, `\x`. Byte by byte.
//!
//! Stars are resolved by going back to the last one only, so a pattern of many stars costs pattern × text steps
//! and never more (Redis's recursion is exponential there).

/// True when `text` matches `pattern`.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    loop {
        if t == text.len() {
            return pattern[p..].iter().all(|&b| b == b'*');
        }
        if p < pattern.len() && pattern[p] == b'*' {
            star = Some((p + 1, t));
            p += 1;
            continue;
        }
        match step(pattern, p, text[t]) {
            Some(next) => {
                p = next;
                t += 1;
            }
            None => match star {
                Some((after, from)) => {
                    star = Some((after, from + 1));
                    p = after;
                    t = from + 1;
                }
                None => return false,
            },
        }
    }
}

/// Matches one byte against the pattern element at `p`; gives the place behind that element.
fn step(pattern: &[u8], p: usize, byte: u8) -> Option<usize> {
    match pattern.get(p)? {
        b'?' => Some(p + 1),
        b'[' => {
            let mut at = p + 1;
            let inverted = pattern.get(at) == Some(&b'^');
            at += usize::from(inverted);
            let mut found = false;
            loop {
                match pattern.get(at) {
                    Some(b'\\') if at + 1 < pattern.len() => {
                        at += 1;
                        found |= pattern[at] == byte;
                    }
                    Some(b']') => break,
                    // An open class ends with the pattern.
                    None => {
                        at -= 1;
                        break;
                    }
                    Some(&first) => {
                        if pattern.get(at + 1) == Some(&b'-') && at + 2 < pattern.len() {
                            let last = pattern[at + 2];
                            found |= (first.min(last)..=first.max(last)).contains(&byte);
                            at += 2;
                        } else {
                            found |= first == byte;
                        }
                    }
                }
                at += 1;
            }
            (found != inverted).then_some(at + 1)
        }
        b'\\' if p + 1 < pattern.len() => (pattern[p + 1] == byte).then_some(p + 2),
        &literal => (literal == byte).then_some(p + 1),
    }
}

/// The bytes that every match of `pattern` begins with: a scan can start there.
pub fn literal_prefix(pattern: &[u8]) -> Vec<u8> {
    let mut prefix = Vec::new();
    let mut at = 0;
    while let Some(&byte) = pattern.get(at) {
        match byte {
            b'*' | b'?' | b'[' => break,
            b'\\' if at + 1 < pattern.len() => {
                prefix.push(pattern[at + 1]);
                at += 2;
            }
            _ => {
                prefix.push(byte);
                at += 1;
            }
        }
    }
    prefix
}
