//! What can be chosen when a store is formatted and when it is opened, and how memory is split.

use pumice_segment::{Durability, RecordPtr};

/// Choices that a store keeps for life.
#[derive(Clone, Debug)]
pub struct StoreFormat {
    /// Hash partitions of the keys, each with its own LSM; 1 to 1,024.
    pub slices: u16,
    /// The drive's unique identity; zeros are refused.
    pub drive_id: [u8; 16],
    /// Segment size on files and block devices, in bytes; `None`: [`fitting_segment_bytes`].
    pub segment_bytes: Option<u32>,
    /// Channels on files and block devices.
    pub channels: u16,
    /// Values up to this many bytes lie in key tables beside their keys; what the log holds of them is dead once a
    /// checkpoint covers it, and cleaning need not ask.
    pub inline_max: u16,
    /// What the layer above wants to find again with [`crate::Store::config`]; at most 1 KiB.
    pub config: bytes::Bytes,
    /// Format over an existing drive.
    pub force: bool,
    /// Write the whole drive once, so that it commits at full speed from the first byte.
    pub prewrite: Option<pumice_segment::PrewriteProgress>,
}

impl Default for StoreFormat {
    fn default() -> Self {
        Self {
            slices: 4,
            drive_id: [0; 16],
            segment_bytes: None,
            channels: 1,
            inline_max: 128,
            config: bytes::Bytes::new(),
            force: false,
            prewrite: None,
        }
    }
}

/// Bytes of a segment that suit a drive of `raw_bytes`: 8 MiB, but for these:
///
/// - less where these would be fewer than 256. The reserve and what is open are counted in segments, and on a small drive are much of
///   what upper runs could grow into before they are merged (`docs/decisions/0018`). Below 2 MiB flushes and merges, whose size
///   follows memory, need too many of them at a time;
/// - more where these would be more than 32,768, up to 64 MiB. Opening a drive, and memory, take their part for each segment
///   (`docs/decisions/0065`).
pub fn fitting_segment_bytes(raw_bytes: u64) -> u32 {
    const FEWEST: u64 = 256;
    const MOST: u64 = 32 << 10;
    const USUAL: u64 = 8 << 20;
    let least = (raw_bytes / FEWEST).clamp(2 << 20, USUAL) as u32;
    let large = raw_bytes.div_ceil(MOST).clamp(USUAL, 64 << 20) as u32;
    if large > USUAL as u32 { large.next_power_of_two() } else { 1 << least.ilog2() }
}

/// Choices for as long as a store is open.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Memory of the store: memtables, caches, buffers, the heap's tail. [`MEMORY_BYTES_MIN`] at least: less is taken
    /// for that.
    pub memory_bytes: u64,
    /// When a write counts as durable.
    pub durability: Durability,
    /// Log since the last checkpoint before memtables are flushed, in bytes: bounds the replay after a crash. A record counts for
    /// [`REPLAY_BYTES_MIN`] at least.
    pub log_max_bytes: u64,
    /// Memtable bytes before a flush; `None` takes a share of `memory_bytes`.
    pub memtable_bytes: Option<u64>,
    /// Memtable bytes that a recovery may fill before they are put into key tables; `None` takes a share of `memory_bytes`.
    pub replay_bytes: Option<u64>,
    /// Bytes of a segment that a recovery reads at a time; `None` takes the heap's default.
    pub replay_window_bytes: Option<u32>,
    /// Segments kept back by the heap; `None` takes its default.
    pub reserve_segments: Option<u32>,
    /// The time in which the patrol reads a full drive once; `None`: there is none.
    pub patrol_pass: Option<std::time::Duration>,
    /// Dead bytes that a drive in a file may hold beside as many as are alive, before segments are emptied so that the file need not
    /// grow, or can shrink.
    pub slack_bytes: u64,
}

/// What a record of the log counts for at least, in bytes. Short ones take longer to replay than their bytes to read: some 0.4 µs each,
/// in which a drive reads a KiB. So the longest log of the default length, two million records, is replayed in a second.
pub const REPLAY_BYTES_MIN: u32 = 256;

/// What a record adds to the log since the last checkpoint, in bytes of [`StoreOptions::log_max_bytes`].
pub(crate) fn to_replay(record: RecordPtr) -> u64 {
    u64::from(record.len.max(REPLAY_BYTES_MIN))
}

/// The least memory a store works in.
pub const MEMORY_BYTES_MIN: u64 = 18 << 20;

/// A process before it holds anything: its code, and what the runtime takes.
const PROCESS_BYTES: u64 = 16 << 20;
/// A core's registered memory, receive buffers, and what its allocator keeps.
const CORE_BYTES: u64 = 10 << 20;

/// The stores' part of a process's memory, in bytes, when the process is to stay within `all` with so many cores
/// (threads of the reactor) and stores. A quarter at least is others': clients' buffers, and what allocators round up. Below
/// [`process_bytes_min`] the process takes more than `all`.
pub fn memory_of_process(all: u64, cores: u64, stores: u64) -> u64 {
    let others = (all / 4).max(PROCESS_BYTES + cores * CORE_BYTES);
    all.saturating_sub(others).max(stores * MEMORY_BYTES_MIN)
}

/// The least `all` of [`memory_of_process`] that such a process stays within.
pub fn process_bytes_min(cores: u64, stores: u64) -> u64 {
    PROCESS_BYTES + cores * CORE_BYTES + stores * MEMORY_BYTES_MIN
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            memory_bytes: 256 << 20,
            durability: Durability::Always,
            log_max_bytes: 512 << 20,
            memtable_bytes: None,
            replay_bytes: None,
            replay_window_bytes: None,
            reserve_segments: None,
            patrol_pass: None,
            slack_bytes: 256 << 20,
        }
    }
}

/// How the memory is split; the parts add up to less than the whole, the rest is for reads under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    /// Active memtables; as much again may wait for their flush.
    pub memtable: u64,
    /// Memtables of a recovery, before they are put into key tables.
    pub replayed: u64,
    /// Heads and blocks of key tables, at most: what they do not need is the row caches'.
    pub tables: u64,
    /// Row caches, at least.
    pub rows: u64,
    /// The heap's tail of recent commits.
    pub tail: u64,
    /// Written and not yet on flash.
    pub undurable: u64,
    /// Pieces of large values on their way to flash and from it.
    pub pieces: u64,
    /// Blocks that scans read ahead, and as much for values.
    pub scans: u64,
    /// Victims that are emptied at once, where the drive has several channels.
    pub victims: u64,
}

/// The smallest memtables, whatever there is of memory and room.
const MEMTABLE_BYTES_MIN: u64 = 2 << 20;
/// What key tables have before rows have half.
const TABLES_FIRST_BYTES: u64 = 16 << 20;
/// Written and not yet on flash, for each channel: one stripe on its way and one behind it.
const UNDURABLE_A_CHANNEL: u64 = 512 << 10;

impl Budget {
    /// Of a drive of so many channels, which keeps so many bytes free for flushes and other upkeep.
    pub fn of(options: &StoreOptions, channels: u16, reserve_bytes: u64) -> Self {
        let all = options.memory_bytes.max(MEMORY_BYTES_MIN);
        // What is flushed at once must find room on a full drive: a flush that does not wins nothing, and is what would.
        let memtable = (all / 10).min(128 << 20).min(reserve_bytes).max(MEMTABLE_BYTES_MIN);
        let memtable = options.memtable_bytes.unwrap_or(memtable);
        let tail = (all / 16).clamp(2 << 20, 64 << 20);
        let undurable = (all / 16).clamp(2 << 20, (u64::from(channels) * UNDURABLE_A_CHANNEL).max(8 << 20));
        // Merging, cleaning and pieces of large values under way.
        let working = (all / 8).clamp(6 << 20, 64 << 20);
        let victims = if channels > 1 { (all / 16).min(48 << 20) } else { 0 };
        let working = working + victims;
        let rest = all.saturating_sub(2 * memtable + tail + undurable + working);
        let pieces = (all / 16).clamp(6 << 20, 32 << 20);
        let scans = (all / 16).clamp(2 << 20, 64 << 20);
        // Where memory is short, heads come first: a GET that must read one reads tens of KiB.
        let tables = (rest / 2).max((rest / 8 * 7).min(TABLES_FIRST_BYTES));
        // What memtables have anyway, and half of the caches, which are empty then.
        let replayed = options.replay_bytes.unwrap_or(2 * memtable + rest / 2);
        Self { memtable, replayed, tables, rows: rest - tables, tail, undurable, pieces, scans, victims }
    }
}
