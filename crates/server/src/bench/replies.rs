//! Counts RESP replies in a stream of bytes without keeping them: all that a load generator needs.

/// Deepest nesting followed.
const DEPTH_MAX: usize = 16;

/// What has been seen so far of the stream.
#[derive(Default)]
pub struct Replies {
    /// The unfinished header line.
    line: Vec<u8>,
    /// Bytes of the current bulk's body (and its CRLF) still to come.
    body: u64,
    /// Elements still to come, per open aggregate.
    open: Vec<u64>,
    /// Whole replies seen.
    pub whole: u64,
    /// Error replies among them (at any depth).
    pub errors: u64,
    /// Null replies among them (at any depth).
    pub nulls: u64,
    /// Bytes in bulk strings.
    pub bulk_bytes: u64,
    /// The first error's text.
    pub first_error: Option<String>,
}

impl Replies {
    /// Takes the next bytes of the stream; `Err` when they are no RESP.
    pub fn feed(&mut self, mut bytes: &[u8]) -> Result<(), String> {
        while !bytes.is_empty() {
            if self.body > 0 {
                let skip = self.body.min(bytes.len() as u64) as usize;
                self.body -= skip as u64;
                bytes = &bytes[skip..];
                if self.body == 0 {
                    self.finish_one();
                }
                continue;
            }
            match bytes.iter().position(|&b| b == b'\n') {
                None => {
                    self.line.extend_from_slice(bytes);
                    return if self.line.len() > 1 << 16 { Err("an endless line".into()) } else { Ok(()) };
                }
                Some(end) if self.line.is_empty() => {
                    self.header(&bytes[..=end])?;
                    bytes = &bytes[end + 1..];
                }
                Some(end) => {
                    self.line.extend_from_slice(&bytes[..=end]);
                    let line = std::mem::take(&mut self.line);
                    self.header(&line)?;
                    self.line = line;
                    self.line.clear();
                    bytes = &bytes[end + 1..];
                }
            }
        }
        Ok(())
    }

    fn header(&mut self, line: &[u8]) -> Result<(), String> {
        let wrong = || format!("not RESP: {:?}", String::from_utf8_lossy(&line[..line.len().min(80)]));
        let text = line.strip_suffix(b"\r\n").ok_or_else(wrong)?;
        let (&kind, rest) = text.split_first().ok_or_else(wrong)?;
        let number = || std::str::from_utf8(rest).ok()?.parse::<i64>().ok();
        match kind {
            b'+' | b':' | b',' | b'#' | b'(' => self.finish_one(),
            b'-' => {
                self.errors += 1;
                self.first_error.get_or_insert_with(|| String::from_utf8_lossy(rest).into_owned());
                self.finish_one();
            }
            b'_' => {
                self.nulls += 1;
                self.finish_one();
            }
            b'$' | b'=' | b'!' => match number().ok_or_else(wrong)? {
                ..0 => {
                    self.nulls += 1;
                    self.finish_one();
                }
                len => {
                    self.bulk_bytes += len as u64;
                    self.body = len as u64 + 2;
                }
            },
            b'*' | b'~' | b'>' | b'%' => {
                let count = number().ok_or_else(wrong)?;
                let count = if kind == b'%' { count.saturating_mul(2) } else { count };
                match count {
                    ..0 => {
                        self.nulls += 1;
                        self.finish_one();
                    }
                    0 => self.finish_one(),
                    _ if self.open.len() >= DEPTH_MAX => return Err("nested too deeply".into()),
                    _ => self.open.push(count as u64),
                }
            }
            _ => return Err(wrong()),
        }
        Ok(())
    }

    fn finish_one(&mut self) {
        while let Some(left) = self.open.last_mut() {
            *left -= 1;
            if *left > 0 {
                return;
            }
            self.open.pop();
        }
        self.whole += 1;
    }
}
