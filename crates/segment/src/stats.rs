//! Counters of a heap, and the latency histogram of its commits.

/// Latencies in ns by powers of two, each cut in eight: at most 12.5% off, in 4 KiB, without allocation.
#[derive(Clone, Debug)]
pub struct LatencyHistogram {
    counts: [u64; 512],
    total: u64,
    max_ns: u64,
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self { counts: [0; 512], total: 0, max_ns: 0 }
    }
}

impl LatencyHistogram {
    /// Counts one.
    pub fn record(&mut self, ns: u64) {
        self.counts[bucket(ns)] += 1;
        self.total += 1;
        self.max_ns = self.max_ns.max(ns);
    }

    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.total
    }

    /// The largest, in ns.
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// The latency that `quantile` (0 to 1) of all stay below, in ns.
    pub fn quantile_ns(&self, quantile: f64) -> u64 {
        let rank = (quantile * self.total as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += count;
            if *count > 0 && seen >= rank {
                return upper_bound(index).min(self.max_ns);
            }
        }
        self.max_ns
    }
}

fn bucket(ns: u64) -> usize {
    if ns < 8 {
        return ns as usize;
    }
    let exponent = 63 - ns.leading_zeros() as usize;
    ((exponent - 2) * 8 + ((ns >> (exponent - 3)) & 7) as usize).min(511)
}

fn upper_bound(index: usize) -> u64 {
    if index < 8 {
        return index as u64;
    }
    let (exponent, part) = (index / 8 + 2, (index % 8) as u64);
    ((8 + part + 1) << (exponent - 3)) - 1
}

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
