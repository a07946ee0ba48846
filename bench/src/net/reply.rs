//! Counts RESP2 replies as they stream in, without keeping them: a 32 MiB value must not cost the client a copy.

/// What one reply was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// `+…` or `:…`.
    Simple,
    /// `-…`
    Error,
    /// `$-1`
    Nil,
    /// A bulk string.
    Bulk {
        /// Its length.
        bytes: usize,
        /// False if its first bytes were seen and are not the expected ones.
        right: bool,
    },
}

/// Longest accepted line (`+…`, `$…`, `-…`).
const LINE_BYTES_MAX: usize = 1024;

/// Where the parser stands.
#[derive(Debug, Default)]
pub struct ReplyCounter {
    line: Vec<u8>,
    /// Of the bulk string under way: its length, and what is left of it and its line end.
    bulk: Option<Bulk>,
    /// Text of the first error seen.
    pub first_error: Option<String>,
}

#[derive(Debug)]
struct Bulk {
    bytes: usize,
    left: usize,
    right: bool,
}

impl ReplyCounter {
    /// Takes what came in. Calls `done` for each finished reply. `expect(len)`: the first bytes that the bulk string now
    /// starting should have (none to skip the check).
    pub fn feed<'v>(
        &mut self,
        mut input: &[u8],
        mut expect: impl FnMut(usize) -> Option<&'v [u8]>,
        mut done: impl FnMut(Reply),
    ) -> Result<(), String> {
        while !input.is_empty() {
            if let Some(bulk) = &mut self.bulk {
                if bulk.left == bulk.bytes + 2
                    && let Some(expected) = expect(bulk.bytes)
                {
                    let seen = expected.len().min(input.len()).min(bulk.bytes);
                    bulk.right = input[..seen] == expected[..seen];
                }
                let take = bulk.left.min(input.len());
                bulk.left -= take;
                input = &input[take..];
                if bulk.left == 0 {
                    let (bytes, right) = (bulk.bytes, bulk.right);
                    self.bulk = None;
                    done(Reply::Bulk { bytes, right });
                }
                continue;
            }
            let end = input.iter().position(|&b| b == b'\n');
            let take = end.map_or(input.len(), |e| e + 1);
            self.line.extend_from_slice(&input[..take]);
            input = &input[take..];
            if self.line.len() > LINE_BYTES_MAX {
                return Err("a reply line longer than 1 KiB".into());
            }
            if end.is_some() {
                self.finish_line(&mut done)?;
                self.line.clear();
            }
        }
        Ok(())
    }

    fn finish_line(&mut self, done: &mut impl FnMut(Reply)) -> Result<(), String> {
        let text = self.line.strip_suffix(b"\r\n").ok_or("a reply line without CRLF")?;
        match text.split_first() {
            Some((b'+' | b':', _)) => done(Reply::Simple),
            Some((b'-', rest)) => {
                self.first_error.get_or_insert_with(|| String::from_utf8_lossy(rest).into_owned());
                done(Reply::Error);
            }
            Some((b'$', b"-1")) => done(Reply::Nil),
            Some((b'$', digits)) => {
                let bytes: usize = std::str::from_utf8(digits)
                    .ok()
                    .and_then(|d| d.parse().ok())
                    .ok_or_else(|| format!("a bulk length of {digits:?}"))?;
                self.bulk = Some(Bulk { bytes, left: bytes + 2, right: true });
            }
            _ => return Err(format!("an unexpected reply {:?}", String::from_utf8_lossy(text))),
        }
        Ok(())
    }
}
