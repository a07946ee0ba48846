//! Counters of a heap.

use pumice_base::latency::LatencyHistogram;

/// What a heap has done since it was opened.
#[derive(Clone, Debug, Default)]
pub struct HeapStats {
    /// Records appended.
    pub records: u64,
    /// Calls of append.
    pub appends: u64,
    /// Payload bytes appended.
    pub payload_bytes: u64,
    /// Commit writes.
    pub commits: u64,
    /// Of them, those that set out while another one was on its way.
    pub commits_beside: u64,
    /// Bytes of commit writes, headers and padding included.
    pub commit_bytes: u64,
    /// Padding in commit writes.
    pub commit_padding_bytes: u64,
    /// Bytes that cleaning wrote.
    pub moved_bytes: u64,
    /// Bytes of key tables.
    pub table_bytes: u64,
    /// Bytes of large values' pieces.
    pub large_bytes: u64,
    /// Bytes of metadata records.
    pub meta_bytes: u64,
    /// Metadata records.
    pub meta_records: u64,
    /// Bytes written ahead of need.
    pub prewritten_bytes: u64,
    /// Read requests to the media.
    pub reads: u64,
    /// Bytes read from the media.
    pub read_bytes: u64,
    /// Reads answered from memory.
    pub tail_hits: u64,
    /// Stretches read ahead, for runs of reads in the order of writing.
    pub ahead_reads: u64,
    /// Reads answered from them.
    pub ahead_hits: u64,
    /// Segments opened.
    pub segments_opened: u64,
    /// Segments released.
    pub segments_released: u64,
    /// Frames moved because a program failed.
    pub relocations: u64,
    /// Appends answered Busy.
    pub busy: u64,
    /// Time of each commit write, from submission to durability.
    pub commit_latency: LatencyHistogram,
    /// Bytes appended and not yet durable.
    pub undurable_bytes: u64,
}

/// What was appended since the heap was opened. Behind the commit lock, which every append has anyway: counters apart would each be a
/// line of memory that the cores take from one another.
#[derive(Clone, Copy, Default)]
pub(crate) struct AppendCounts {
    pub records: u64,
    pub appends: u64,
    pub payload_bytes: u64,
}

impl AppendCounts {
    pub(crate) fn count(&mut self, records: usize, payload_bytes: u64) {
        self.records += records as u64;
        self.appends += 1;
        self.payload_bytes += payload_bytes;
    }
}
