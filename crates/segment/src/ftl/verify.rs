//! Reading segments: no page reaches a caller that is not the one that was written.
//!
//! 1. Pages are read whole, and each is compared with its checksum: the one beside it, or the one in the block's table. A
//!    table that is not in memory is read from the block's head while the data is read.
//! 2. What does not verify is looked at once more, as bits flip on their way, too: the data again, and both tables from the
//!    media. A page counts if either has its checksum; where the head was wrong the segment is weak, and moves.
//! 3. What still does not verify is lost, and the first such page is named. Whether the page or its checksum changed does
//!    not matter: nobody can tell.

use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use pumice_flash::{BlockAddr, FlashError, Operation};
use pumice_reactor::IoBuf;

use super::RawError;
use super::image::sum_beside;
use super::media::{Found, Media, Which};
use super::sums::Life;
use super::tag::{BlockTag, TAG_BYTES, TagDecoded, TagKind};

/// Why pages of a segment did not read.
#[derive(Clone, Debug)]
pub(crate) enum ReadFailed {
    Flash(FlashError),
    /// This page of the segment, the first of those that were asked for, is not what was written.
    Unverified {
        page: u32,
    },
}

impl From<FlashError> for ReadFailed {
    fn from(error: FlashError) -> Self {
        Self::Flash(error)
    }
}

impl ReadFailed {
    pub(crate) fn of(self, life: &Life) -> RawError {
        match self {
            Self::Flash(error) => error.into(),
            Self::Unverified { page } => RawError::Unverified { id: life.id, page, block: life.block },
        }
    }
}

/// Checksums by page of the segment.
enum Sums {
    /// The pages' out-of-band bytes, from this page on.
    Beside(u32, IoBuf),
    Table(Arc<[u32]>),
}

/// Both at once.
async fn both<A: Future, B: Future>(a: A, b: B) -> (A::Output, B::Output) {
    let (mut a, mut b) = (pin!(a), pin!(b));
    let (mut a_done, mut b_done) = (None, None);
    std::future::poll_fn(|context| {
        if a_done.is_none()
            && let Poll::Ready(output) = a.as_mut().poll(context)
        {
            a_done = Some(output);
        }
        if b_done.is_none()
            && let Poll::Ready(output) = b.as_mut().poll(context)
        {
            b_done = Some(output);
        }
        match (a_done.take(), b_done.take()) {
            (Some(a), Some(b)) => Poll::Ready((a, b)),
            (a, b) => {
                (a_done, b_done) = (a, b);
                Poll::Pending
            }
        }
    })
    .await
}

impl Media {
    /// Fills `buf` from `offset_bytes` of a segment on; answers whether a page that was read is weak.
    pub(crate) async fn read_segment(
        &self,
        life: &Life,
        offset_bytes: u32,
        buf: IoBuf,
    ) -> (Result<bool, ReadFailed>, IoBuf) {
        let (layout, geometry, block) = (self.layout(), self.geometry(), life.block);
        let (len_bytes, page_bytes, unit_bytes) =
            (buf.len() as u64, geometry.page_bytes, geometry.read_bytes);
        let operation = Operation::Read;
        if u64::from(offset_bytes) + len_bytes > u64::from(self.segment_bytes()) {
            return (Err(FlashError::Oversize { operation, block, offset_bytes, len_bytes }.into()), buf);
        }
        if !layout.has_sums {
            let (result, buf) = self.read_block(block, offset_bytes + layout.head_bytes() as u32, buf).await;
            return (result.map_err(ReadFailed::from), buf);
        }
        if !offset_bytes.is_multiple_of(unit_bytes) || !len_bytes.is_multiple_of(u64::from(unit_bytes)) {
            let error = FlashError::Unaligned { operation, block, offset_bytes, len_bytes, unit_bytes };
            return (Err(error.into()), buf);
        }
        let end_bytes = offset_bytes + buf.len() as u32;
        let pages = offset_bytes / page_bytes..end_bytes.div_ceil(page_bytes);
        let (result, mut buf) = if (offset_bytes | end_bytes).is_multiple_of(page_bytes) {
            self.read_pages(life, pages, buf).await
        } else {
            let whole = IoBuf::for_read((pages.len() as u32 * page_bytes) as usize);
            let from = (offset_bytes % page_bytes) as usize;
            let (result, whole) = self.read_pages(life, pages, whole).await;
            let mut buf = buf;
            let len = buf.len();
            buf.copy_from_slice(&whole[from..from + len]);
            (result, buf)
        };
        if let Err(ReadFailed::Unverified { .. }) = result {
            // Whoever overlooks the error finds zeros rather than what may look like data.
            buf.fill(0);
        }
        (result, buf)
    }

    /// The first page that is none of those that were written.
    fn mismatch<'a>(
        &self,
        life: &Life,
        first: u32,
        buf: &[u8],
        sums: impl IntoIterator<Item = &'a Sums> + Clone,
    ) -> Option<u32> {
        let geometry = self.geometry();
        let sum_of = |sums: &Sums, page: u32| match sums {
            Sums::Beside(first, oob) => sum_beside(&oob[((page - first) * geometry.oob_bytes) as usize..]),
            Sums::Table(table) => table[page as usize],
        };
        let found = (first..).zip(life.sums(first, geometry.page_bytes, buf));
        let mut bad =
            found.filter(|&(page, sum)| !sums.clone().into_iter().any(|of| sum_of(of, page) == sum));
        bad.next().map(|(page, _)| page)
    }

    async fn read_pages(
        &self,
        life: &Life,
        pages: Range<u32>,
        buf: IoBuf,
    ) -> (Result<bool, ReadFailed>, IoBuf) {
        let first = pages.start;
        if pages.is_empty() {
            return (Ok(false), buf);
        }
        let (result, buf, sums) = if !self.in_band() {
            self.read_beside(life, pages, buf).await
        } else if let Some(table) = self.tables.get(life) {
            let (result, buf) = self.read_data(life, first, buf).await;
            (result, buf, Ok(Sums::Table(table)))
        } else {
            let ((result, buf), head) =
                both(self.read_data(life, first, buf), self.read_end(life.block, Which::First)).await;
            let table = head.map(|(head, _)| self.layout().table(&head));
            if let Ok(table) = &table {
                self.tables.insert(life, Arc::clone(table));
            }
            (result, buf, table.map(Sums::Table))
        };
        let is_weak = match (result, &sums) {
            (Err(error), _) => return (Err(error.into()), buf),
            // A head that does not read has a tail.
            (Ok(_), Err(FlashError::Uncorrectable { .. })) => None,
            (Ok(_), Err(error)) => return (Err(error.clone().into()), buf),
            (Ok(is_weak), Ok(sums)) => self.mismatch(life, first, &buf, [sums]).is_none().then_some(is_weak),
        };
        match is_weak {
            Some(is_weak) => (Ok(is_weak), buf),
            None => self.look_again(life, first, buf).await,
        }
    }

    async fn read_data(&self, life: &Life, page: u32, buf: IoBuf) -> (Result<bool, FlashError>, IoBuf) {
        let at = (self.layout().head_pages + page) * self.geometry().page_bytes;
        self.read_block(life.block, at, buf).await
    }

    async fn read_beside(
        &self,
        life: &Life,
        pages: Range<u32>,
        buf: IoBuf,
    ) -> (Result<bool, FlashError>, IoBuf, Result<Sums, FlashError>) {
        let oob = IoBuf::for_read(pages.len() * self.geometry().oob_bytes as usize);
        let (result, buf, oob) = self.device().read_with_oob(life.block, pages.start, buf, oob).await;
        (result.map(|()| false), buf, Ok(Sums::Beside(pages.start, oob)))
    }

    /// Reads a block's head or tail; answers whether it is weak, too.
    async fn read_end(&self, block: BlockAddr, which: Which) -> Result<(IoBuf, bool), FlashError> {
        let page = match which {
            Which::First => 0,
            Which::Last => self.layout().tail(),
        };
        let buf = IoBuf::for_read(self.layout().head_bytes());
        let (result, buf) = self.read_block(block, page * self.geometry().page_bytes, buf).await;
        result.map(|is_weak| (buf, is_weak))
    }

    /// Reads pages that did not verify once more, with all that the media have to say of them.
    async fn look_again(&self, life: &Life, first: u32, buf: IoBuf) -> (Result<bool, ReadFailed>, IoBuf) {
        if !self.in_band() {
            let pages = first..first + buf.len() as u32 / self.geometry().page_bytes;
            let (result, buf, sums) = self.read_beside(life, pages, buf).await;
            let result = result.and(sums).map_err(ReadFailed::from);
            let verified = result.and_then(|sums| match self.mismatch(life, first, &buf, [&sums]) {
                Some(page) => Err(ReadFailed::Unverified { page }),
                None => Ok(false),
            });
            return (verified, buf);
        }
        let (result, buf) = self.read_data(life, first, buf).await;
        if let Err(error) = result {
            return (Err(error.into()), buf);
        }
        let layout = self.layout();
        let mut tables = Vec::new();
        for which in [Which::First, Which::Last] {
            match self.read_end(life.block, which).await {
                Ok((end, _)) if which == Which::First => tables.push(Sums::Table(layout.table(&end))),
                Ok((end, _)) => tables.push(Sums::Table(layout.table_of_tail(&end))),
                Err(FlashError::Uncorrectable { .. }) => tables.push(Sums::Table(Arc::default())),
                Err(error) => return (Err(error.into()), buf),
            }
        }
        let there = || tables.iter().filter(|sums| !matches!(sums, Sums::Table(table) if table.is_empty()));
        if let Some(page) = self.mismatch(life, first, &buf, there().collect::<Vec<_>>()) {
            return (Err(ReadFailed::Unverified { page }), buf);
        }
        // Whichever has these pages right is kept: the other is wrong in one of them at least, or not there.
        let right = there().find(|sums| self.mismatch(life, first, &buf, [*sums]).is_none());
        if let Some(Sums::Table(table)) = right {
            self.tables.insert(life, Arc::clone(table));
        }
        let is_head =
            matches!((right, tables.first()), (Some(right), Some(head)) if std::ptr::eq(right, head));
        (Ok(!is_head), buf)
    }

    /// Whether both ends of a block that holds a segment say so, and agree on its checksums.
    ///
    /// # Errors
    /// Whatever says nothing of the pages.
    pub(crate) async fn ends_agree(&self, life: &Life) -> Result<bool, RawError> {
        let is_ours = |tag: &BlockTag| {
            tag.kind == TagKind::Segment && (tag.drive_id, tag.id) == (life.drive_id, life.id)
        };
        if !self.in_band() || !self.layout().has_sums {
            for which in [Which::First, Which::Last] {
                let found = self.read_tag(life.block, which).await?;
                if !matches!(found, Found::Tag(tag) if is_ours(&tag)) {
                    return Ok(false);
                }
            }
            return Ok(true);
        }
        let mut ends = Vec::new();
        for which in [Which::First, Which::Last] {
            match self.read_end(life.block, which).await {
                Ok((_, true)) | Err(FlashError::Uncorrectable { .. }) => return Ok(false),
                Ok((end, false)) => ends.push(end),
                Err(error) => return Err(error.into()),
            }
        }
        let tag = BlockTag::decode(life.number, &ends[0][..TAG_BYTES]);
        let is_tagged = matches!(tag, TagDecoded::Tag(tag) if is_ours(&tag));
        Ok(is_tagged && self.layout().turned(&ends[0]) == ends[1][..])
    }
}
