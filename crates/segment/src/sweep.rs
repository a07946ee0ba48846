//! Reading a segment from its start to its end, a window at a time: what cleaning does.
//!
//! 1. Windows of [`WINDOW_BYTES`] are read in order, [`WINDOWS_AHEAD`] of them while the caller works on the last: so
//!    many are in memory, however large a segment is.
//! 2. A frame that reaches over a window's end is put together from its parts; all others lie where they were read.
//! 3. Of a segment of large values, and of the log where next to nothing is alive, only heads of records are read, frame by frame:
//!    whose they are is asked first, and what is dead, mostly all of it, is never read. Where a head or a summary does not
//!    read or verify, or there is none, windows follow. A frame says where the next one begins, so these reads wait for
//!    each other, behind all that the drive has been asked for; they are all made ahead, as one task, and the caller has
//!    several segments' made side by side.
//!
//! Rejected: one read of the whole segment, which costs its size in memory and leaves the drive idle while the records
//! are looked at.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use pumice_flash::{FlashError, Operation};
use pumice_reactor::{IoBuf, JoinHandle, spawn};

use crate::heads::{Headed, Heads};
use crate::inner::Inner;
use crate::read::{cut_off, extent};
use crate::scan::{Frame, Stretch, Window, read_tolerant};
use crate::{Contents, Damage, SegmentId, Stream};

/// Bytes of a window: large enough to read at nearly the drive's full speed, and no larger, because users' commits wait behind
/// what the drive has been asked for. With windows of 1 MiB and three of them ahead one in a hundred waited for half as
/// long again.
const WINDOW_BYTES: u32 = 512 << 10;
/// Windows on their way: what the host does not cache takes its time.
const WINDOWS_AHEAD: usize = 2;
/// The same where several segments are swept at once, each on a channel of its own.
const NARROW_WINDOW_BYTES: u32 = 256 << 10;
const NARROW_WINDOWS_AHEAD: usize = 2;

/// Of a segment that is nearly dead no more than this part is alive, as far as is known.
const FEW_ALIVE: i64 = 16;

impl Inner {
    /// See [`crate::Heap::is_nearly_dead`].
    pub(crate) fn is_nearly_dead(&self, segment: SegmentId) -> bool {
        let live = self.table().entry(segment).map_or(0, |entry| entry.live);
        live <= i64::from(self.segment_bytes) / FEW_ALIVE
    }
}

/// See [`crate::Heap::sweep`].
pub struct Sweep {
    inner: Arc<Inner>,
    /// While heads are read.
    heads: Option<JoinHandle<Result<Headed, FlashError>>>,
    /// Heads that were read; windows are those behind.
    headed: VecDeque<Contents>,
    segment: SegmentId,
    life: u64,
    stream: Stream,
    /// Where the segment's frames end.
    end: u32,
    /// That they were more once is still to be said.
    is_cut: bool,
    /// Summaries that do not verify may never have been written.
    is_torn: bool,
    /// The next window to be asked for begins here.
    ask_at: u32,
    /// The next window to be looked at begins here.
    read_at: u32,
    ahead: VecDeque<JoinHandle<Result<Stretch, FlashError>>>,
    window_bytes: u32,
    windows_ahead: usize,
    /// The beginning of a frame that goes on in the next window.
    cut: Option<Cut>,
    /// Where the next frame is expected.
    expected_at: u32,
}

struct Cut {
    offset: u32,
    buf: IoBuf,
    /// Bytes of the whole frame, up to the page.
    needed: usize,
}

impl Sweep {
    pub(crate) fn new(inner: &Arc<Inner>, segment: SegmentId) -> Self {
        let mut sweep = if inner.lanes > 1 {
            Self::of(inner, segment, NARROW_WINDOW_BYTES, NARROW_WINDOWS_AHEAD)
        } else {
            Self::of(inner, segment, WINDOW_BYTES, WINDOWS_AHEAD)
        };
        if sweep.has_heads() {
            let frames = sweep.expected_at..sweep.end;
            let heads = Heads::new(inner, segment, (sweep.life, sweep.stream), frames);
            sweep.heads = Some(spawn(heads.all()));
        } else {
            sweep.read_ahead();
        }
        sweep
    }

    /// Whether it is worth while to look at heads first: of large values always, of other records where next to nothing seems to be
    /// alive. What is alive is read by itself then, and half a segment of that is slower than all of it in a row.
    fn has_heads(&self) -> bool {
        self.stream == Stream::Large
            || (self.stream == Stream::Commit && self.inner.is_nearly_dead(self.segment))
    }

    /// One that hardly anybody notices.
    pub(crate) fn slow(inner: &Arc<Inner>, segment: SegmentId) -> Self {
        let mut sweep = Self::of(inner, segment, crate::patrol::STRETCH_BYTES, 1);
        sweep.read_ahead();
        sweep
    }

    fn of(inner: &Arc<Inner>, segment: SegmentId, window_bytes: u32, windows_ahead: usize) -> Self {
        let found = extent(inner, segment);
        let (life, stream, end) =
            found.as_ref().map_or((0, Stream::Commit, 0), |found| (found.life, found.stream, found.end));
        let (is_cut, is_torn) = found.map_or((false, false), |found| (found.is_cut, found.is_torn));
        let page = inner.superblock.page_bytes;
        Self {
            inner: inner.clone(),
            heads: None,
            headed: VecDeque::new(),
            segment,
            life,
            stream,
            end,
            is_cut,
            is_torn,
            ask_at: page,
            read_at: page,
            ahead: VecDeque::with_capacity(windows_ahead),
            window_bytes,
            windows_ahead,
            cut: None,
            expected_at: page,
        }
    }

    /// How far it has been looked at, in bytes from the segment's start.
    pub(crate) fn read_at(&self) -> u32 {
        self.read_at
    }

    /// The segment.
    pub fn segment(&self) -> SegmentId {
        self.segment
    }

    /// Whether all of it has been asked for, so that the drive has time for the next.
    pub fn is_asked_for(&self) -> bool {
        self.heads.is_none() && self.ask_at >= self.end
    }

    /// Whether what there is of it in memory are heads.
    pub fn reads_heads(&self) -> bool {
        self.heads.is_some()
    }

    /// The segment's stream.
    pub fn stream(&self) -> Stream {
        self.stream
    }

    /// The records of the next window and what is damaged there; `None` after the last.
    ///
    /// # Errors
    /// [`FlashError`] when the media do not answer; pages that do not read are reported as damage.
    pub async fn next(&mut self) -> Result<Option<Contents>, FlashError> {
        // A core that is closing drops tasks: nothing is known of what they were to read.
        let gone = |_| FlashError::Gone { operation: Operation::Read };
        if let Some(heads) = self.heads.take() {
            let Headed { contents, end } = heads.await.map_err(gone)??;
            self.headed = contents;
            (self.ask_at, self.read_at, self.expected_at) = (end, end, end);
            self.read_ahead();
        }
        if let Some(contents) = self.headed.pop_front() {
            return Ok(Some(contents));
        }
        let Some(ahead) = self.ahead.pop_front() else { return Ok(self.cut_off()) };
        let read = ahead.await.map_err(gone)?;
        let stretch = read?;
        let base = self.read_at;
        self.read_at += stretch.bytes.len() as u32;
        self.read_ahead();
        let mut contents = Contents::nothing(self.stream);
        let mut taken = 0;
        if let Some(mut cut) = self.cut.take() {
            taken = (cut.needed - cut.buf.len()).min(stretch.bytes.len());
            cut.buf.extend_from_slice(&stretch.bytes[..taken]);
            if cut.buf.len() < cut.needed {
                self.cut = Some(cut);
            } else {
                let whole = cut.buf.freeze();
                let (frames, _, _) = self.window(&whole, cut.offset).frames();
                self.take(frames, &mut contents);
            }
        }
        let rest = stretch.bytes.slice(taken..);
        let rest_base = base + taken as u32;
        let (frames, cut_at, needed) = self.window(&rest, rest_base).frames();
        self.take(frames, &mut contents);
        if let Some(needed) = needed {
            let needed = needed.next_multiple_of(self.inner.superblock.page_bytes) as usize;
            let mut buf = IoBuf::with_capacity(needed);
            buf.extend_from_slice(&rest[(cut_at - rest_base) as usize..]);
            self.cut = Some(Cut { offset: cut_at, buf, needed });
        }
        for offset in stretch.lost {
            let what = "the page does not read".into();
            contents.damage.push(Damage { segment: self.segment, offset, what });
        }
        if self.ahead.is_empty() && self.expected_at < self.end {
            let what = format!("{} B of frames do not verify", self.end - self.expected_at);
            contents.damage.push(Damage { segment: self.segment, offset: self.expected_at, what });
        }
        Ok(Some(contents))
    }

    /// What comes after the last window.
    fn cut_off(&mut self) -> Option<Contents> {
        let is_cut = std::mem::take(&mut self.is_cut);
        let damage = || vec![cut_off(self.segment, self.end)];
        is_cut.then(|| Contents { damage: damage(), ..Contents::nothing(self.stream) })
    }

    fn window<'a>(&self, bytes: &'a Bytes, base: u32) -> Window<'a> {
        let page_bytes = self.inner.superblock.page_bytes;
        Window { segment: self.segment, life: self.life, bytes, base, page_bytes, end: self.end }
    }

    fn take(&mut self, frames: Vec<Frame>, contents: &mut Contents) {
        for mut frame in frames {
            if frame.offset != self.expected_at {
                let what = format!("{} B of frames do not verify", frame.offset - self.expected_at);
                contents.damage.push(Damage { segment: self.segment, offset: self.expected_at, what });
            }
            self.expected_at = frame.end(self.inner.superblock.page_bytes);
            contents.newest_seq = contents.newest_seq.max(frame.header.newest_seq());
            contents.record_bytes += u64::from(frame.live);
            contents.damage.extend(frame.all_damage(self.is_torn));
            contents.records.extend(frame.records);
        }
    }

    fn read_ahead(&mut self) {
        while self.ahead.len() < self.windows_ahead && self.ask_at < self.end {
            let len = self.window_bytes.min(self.end - self.ask_at);
            self.inner.counters.reads.fetch_add(1, Ordering::Relaxed);
            self.inner.counters.read_bytes.fetch_add(u64::from(len), Ordering::Relaxed);
            let (device, segment, at) = (self.inner.device.clone(), self.segment, self.ask_at);
            let read = spawn(async move { read_tolerant(&device, segment, at, len as usize).await });
            self.ahead.push_back(read);
            self.ask_at += len;
        }
    }
}
