//! Messages of several pieces, as the kernel wants them.

use crate::driver::SendData;

/// The pieces of a vectored send, at an address that stays.
pub(crate) struct Message {
    header: libc::msghdr,
    pieces: Vec<libc::iovec>,
}

impl Message {
    /// Most pieces the kernel takes at once (UIO_MAXIOV).
    const PIECES_MAX: usize = 1024;

    pub(crate) fn new() -> Box<Self> {
        // SAFETY: a message header of zeros is a valid, empty one.
        let header = unsafe { std::mem::zeroed() };
        Box::new(Self { header, pieces: Vec::new() })
    }

    pub(crate) fn fill(&mut self, data: &SendData, mut skip: usize) -> &[libc::iovec] {
        self.pieces.clear();
        let mut add = |bytes: &[u8]| {
            let rest = &bytes[skip.min(bytes.len())..];
            skip -= bytes.len() - rest.len();
            if !rest.is_empty() && self.pieces.len() < Self::PIECES_MAX {
                let piece = libc::iovec { iov_base: rest.as_ptr().cast_mut().cast(), iov_len: rest.len() };
                self.pieces.push(piece);
            }
        };
        match data {
            SendData::Parts(parts) => parts.iter().for_each(|part| add(part)),
            SendData::One(data) => add(data),
        }
        self.header.msg_iov = self.pieces.as_mut_ptr();
        self.header.msg_iovlen = self.pieces.len();
        &self.pieces
    }

    pub(crate) fn header(&self) -> *const libc::msghdr {
        &self.header
    }
}
