//! Prometheus metrics, the JSON of `/info`, and the lines of the index page, all from the same counters: those of
//! every drive, of every core and of the Redis face. Nothing is counted here.

use std::sync::atomic::Ordering;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use pumice_base::latency::LatencyHistogram;
use pumice_base::size::format_size;
use pumice_kv::StoreStats;
use pumice_node::DriveState;
use serde_json::{Value, json};

use crate::health::Health;
use crate::{process, space};

/// One drive's numbers with their names and help; counters first, then gauges.
struct Numbers {
    counters: Vec<(&'static str, &'static str, u64)>,
    gauges: Vec<(&'static str, &'static str, f64)>,
}

fn drive_numbers(stats: &StoreStats) -> Numbers {
    let (c, h) = (&stats.counters, &stats.heap);
    let seconds = |ns: u64| ns as f64 / 1e9;
    Numbers {
        counters: vec![
            ("gets", "Reads that memory alone could not answer", c.gets),
            ("row_cache_hits", "Reads answered by the row cache", c.row_hits),
            ("value_reads", "Values read from flash", c.value_reads),
            ("key_block_hits", "Key blocks found in memory", c.block_hits),
            ("key_block_reads", "Reads of key blocks from flash, several at a time in a scan", c.block_reads),
            ("key_head_reads", "Filters and block indexes read from flash", c.head_reads),
            (
                "filter_false_positives",
                "Key tables asked in vain, those whose filter is not in memory among them",
                c.false_positives,
            ),
            ("records_written", "Records written by users", c.writes),
            ("user_bytes_written", "Bytes of users' records", c.user_bytes),
            ("flushes", "Checkpoints", c.flushes),
            ("merges", "Merge steps of key tables", c.merges),
            ("merge_bytes", "Bytes of key tables written by merges", c.merge_bytes),
            ("sunk_tables", "Key tables that merges took over as they are", c.sunk_tables),
            ("segments_cleaned", "Segments cleaned", c.cleaned_segments),
            (
                "segments_cleaned_beside",
                "Segments whose cleaning began beside that of others",
                c.victims_beside,
            ),
            ("segments_rescued", "Segments emptied before their pages were lost", c.rescued_segments),
            (
                "segments_given_back",
                "Free segments whose space the file system got back",
                c.given_back_segments,
            ),
            ("records_moved", "Records that cleaning moved", c.moved_records),
            ("commits", "Commit writes", h.commits),
            ("commits_beside", "Commit writes begun while another one was on its way", h.commits_beside),
            ("commit_bytes", "Bytes of commit writes", h.commit_bytes),
            ("commit_padding_bytes", "Padding in commit writes", h.commit_padding_bytes),
            ("moved_bytes", "Bytes that cleaning wrote", h.moved_bytes),
            ("key_table_bytes", "Bytes of key tables written", h.table_bytes),
            ("large_value_bytes", "Bytes of large values written", h.large_bytes),
            ("metadata_bytes", "Bytes of metadata written", h.meta_bytes),
            ("prewritten_bytes", "Bytes written ahead of need, once in a drive's life", h.prewritten_bytes),
            ("flash_reads", "Read requests to the media", h.reads),
            ("flash_read_bytes", "Bytes read from the media", h.read_bytes),
            ("flash_written_bytes", "Bytes written to the media", stats.flash_written_bytes()),
            ("log_tail_hits", "Reads answered by recent commits in memory", h.tail_hits),
            ("ahead_reads", "Stretches read ahead for reads in the order of writing", h.ahead_reads),
            ("ahead_hits", "Reads answered from what was read ahead", h.ahead_hits),
            ("segments_opened", "Segments opened for writing", h.segments_opened),
            ("segments_released", "Segments released", h.segments_released),
            ("relocations", "Frames moved because a program failed", h.relocations),
            ("busy", "Writes told to wait", h.busy),
        ],
        gauges: vec![
            (
                "write_amplification",
                "Flash bytes written per user byte, those ahead of need left out",
                stats.write_amplification(),
            ),
            (
                "key_tables_set_aside",
                "Key tables of which part does not read, which merging leaves alone",
                stats.tables_set_aside as f64,
            ),
            ("commit_seconds_p50", "Median commit latency", seconds(h.commit_latency.quantile_ns(0.5))),
            (
                "commit_seconds_p99",
                "99th percentile of commit latency",
                seconds(h.commit_latency.quantile_ns(0.99)),
            ),
            (
                "commit_seconds_p999",
                "99.9th percentile of commit latency",
                seconds(h.commit_latency.quantile_ns(0.999)),
            ),
            ("commit_seconds_max", "Longest commit", seconds(h.commit_latency.max_ns())),
            ("undurable_bytes", "Bytes on their way to flash", h.undurable_bytes as f64),
            ("key_tables", "Key tables", stats.tables as f64),
            ("key_tables_size_bytes", "Size of all key tables", stats.table_bytes as f64),
            ("memtable_bytes", "Memory of memtables", stats.memtable_bytes as f64),
            ("key_head_bytes", "Memory of filters and block indexes", stats.head_bytes as f64),
            ("key_block_bytes", "Memory of cached key blocks", stats.block_bytes as f64),
            ("row_cache_bytes", "Memory of cached rows", stats.row_bytes as f64),
            (
                "row_cache_withheld_bytes",
                "Memory that cached rows do without because the process takes more than planned",
                stats.withheld_bytes as f64,
            ),
            ("snapshots", "Live snapshots", stats.snapshots as f64),
        ],
    }
}

#[derive(Debug)]
struct Snapshot {
    health: Health,
}

type Labels<'a> = [(&'a str, String)];

struct Out<'a, 'b> {
    encoder: &'a mut DescriptorEncoder<'b>,
}

impl Out<'_, '_> {
    /// One metric with a row per label set.
    fn rows(
        &mut self,
        name: &str,
        help: &str,
        is_counter: bool,
        rows: &[(&Labels<'_>, f64)],
    ) -> std::fmt::Result {
        let kind = if is_counter { MetricType::Counter } else { MetricType::Gauge };
        let mut metric = self.encoder.encode_descriptor(name, help, None, kind)?;
        for (labels, value) in rows {
            if labels.is_empty() {
                encode(is_counter, *value, metric.encode_family::<[(&str, String); 0]>(&[])?)?;
            } else {
                encode(is_counter, *value, metric.encode_family(&Owned(labels))?)?;
            }
        }
        Ok(())
    }

    /// Latencies, a histogram per label set.
    fn histograms(
        &mut self,
        name: &str,
        help: &str,
        rows: &[(&Labels<'_>, &LatencyHistogram)],
    ) -> std::fmt::Result {
        let mut metric = self.encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (labels, latency) in rows {
            let mut below_last = 0;
            let powers = LATENCY_EXPONENTS.map(|exponent| {
                let below = latency.below_power_of_two(exponent);
                (2f64.powi(exponent as i32) / 1e9, below - std::mem::replace(&mut below_last, below))
            });
            let mut buckets: Vec<(f64, u64)> = powers.collect();
            buckets.push((f64::INFINITY, latency.count() - below_last));
            let labels = Owned(labels);
            let mut row = metric.encode_family(&labels)?;
            row.encode_histogram::<NoLabelSet>(latency.sum_ns() / 1e9, latency.count(), &buckets, None)?;
        }
        Ok(())
    }
}

/// Latencies are told by powers of two of ns: from 1 us to 17 s.
const LATENCY_EXPONENTS: std::ops::RangeInclusive<u32> = 10..=34;

fn encode(
    is_counter: bool,
    value: f64,
    encoder: prometheus_client::encoding::MetricEncoder<'_>,
) -> std::fmt::Result {
    match (is_counter, value.fract() == 0.0) {
        (true, true) => ConstCounter::new(value as u64).encode(encoder),
        (true, false) => ConstCounter::new(value).encode(encoder),
        (false, _) => ConstGauge::new(value).encode(encoder),
    }
}

#[derive(Debug)]
struct Owned<'a>(&'a Labels<'a>);

impl EncodeLabelSet for Owned<'_> {
    fn encode(&self, encoder: &mut prometheus_client::encoding::LabelSetEncoder<'_>) -> std::fmt::Result {
        self.0.encode(encoder)
    }
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let mut out = Out { encoder: &mut encoder };
        let condition = self.health.condition();
        let states = ["loading", "ready", "degraded", "stopping"];
        let labels: Vec<[(&str, String); 1]> = states.iter().map(|s| [("state", (*s).to_string())]).collect();
        let rows: Vec<(&Labels<'_>, f64)> = labels
            .iter()
            .zip(states)
            .map(|(label, state)| (&label[..], f64::from(u8::from(state == condition.word()))))
            .collect();
        out.rows("pumice_state", "The server's condition: 1 for the one it is in", false, &rows)?;
        out.rows(
            "pumice_build_info",
            "The build",
            false,
            &[(&[("version", env!("CARGO_PKG_VERSION").into())], 1.0)],
        )?;
        let own = process::usage();
        if let Some(started) = own.started_seconds {
            out.rows(
                "process_start_time_seconds",
                "When it was started, in unix time",
                false,
                &[(&[], started)],
            )?;
        }
        out.rows("process_cpu_seconds", "CPU time used", true, &[(&[], own.cpu_seconds)])?;
        out.rows(
            "process_resident_memory_bytes",
            "Resident memory",
            false,
            &[(&[], own.resident_bytes as f64)],
        )?;
        self.cores(&mut out)?;
        self.redis(&mut out)?;
        self.drives(&mut out)
    }
}

impl Snapshot {
    fn cores(&self, out: &mut Out<'_, '_>) -> std::fmt::Result {
        let cores: Vec<Vec<(&'static str, u64)>> =
            self.health.core_metrics().iter().map(|m| m.named().collect()).collect();
        let labels: Vec<[(&str, String); 1]> = (0..cores.len()).map(|n| [("core", n.to_string())]).collect();
        let Some(first) = cores.first() else { return Ok(()) };
        for (at, (name, _)) in first.iter().enumerate() {
            let rows: Vec<(&Labels<'_>, f64)> =
                labels.iter().zip(&cores).map(|(label, core)| (&label[..], core[at].1 as f64)).collect();
            out.rows(&format!("pumice_core_{name}"), core_help(name), true, &rows)?;
        }
        Ok(())
    }

    fn redis(&self, out: &mut Out<'_, '_>) -> std::fmt::Result {
        let Some(server) = self.health.redis() else { return Ok(()) };
        let stats = &server.stats;
        let budget = server.options.memory_bytes as f64;
        out.rows(
            "pumice_memory_budget_bytes",
            "What the process may take: --memory",
            false,
            &[(&[], budget)],
        )?;
        let counters = [
            ("connections_accepted", "Connections accepted", &stats.connections),
            ("connections_rejected", "Connections turned away", &stats.rejected_connections),
            ("input_bytes", "Bytes received", &stats.input_bytes),
            ("output_bytes", "Bytes sent", &stats.output_bytes),
            ("keyspace_hits", "Reads that found their key", &stats.hits),
            ("keyspace_misses", "Reads that did not", &stats.misses),
            ("expired_keys", "Keys removed because their time was over", &stats.expired_keys),
            ("error_replies", "Error replies", &stats.error_replies),
        ];
        for (name, help, counter) in counters {
            let value = counter.load(Ordering::Relaxed) as f64;
            out.rows(&format!("pumice_redis_{name}"), help, true, &[(&[], value)])?;
        }
        let gauges = [
            ("clients", "Connected clients", server.clients.len() as f64),
            (
                "clients_max",
                "Clients at once at most",
                server.settings.clients_max.load(Ordering::Relaxed) as f64,
            ),
            ("keys", "Keys of all databases", server.keys() as f64),
            (
                "output_waiting_bytes",
                "Replies that clients did not take yet",
                stats.output_waiting_bytes.load(Ordering::Relaxed) as f64,
            ),
        ];
        for (name, help, value) in gauges {
            out.rows(&format!("pumice_redis_{name}"), help, false, &[(&[], value)])?;
        }
        let used: Vec<_> = commands(server);
        let labels: Vec<[(&str, String); 1]> = used.iter().map(|(n, ..)| [("command", n.clone())]).collect();
        for (name, help, pick) in [
            ("commands", "Commands run", 0),
            ("command_seconds", "Time in commands, waits for durability excluded", 1),
            ("commands_failed", "Commands answered with an error", 2),
        ] {
            let rows: Vec<(&Labels<'_>, f64)> = labels
                .iter()
                .zip(&used)
                .map(|(label, (_, calls, nanos, failed))| {
                    (&label[..], [*calls as f64, *nanos as f64 / 1e9, *failed as f64][pick])
                })
                .collect();
            out.rows(&format!("pumice_redis_{name}"), help, true, &rows)?;
        }
        let facts = pumice_redis::command::Table::get().all_facts();
        let latencies: Vec<_> = facts
            .zip(&stats.commands)
            .filter_map(|(facts, stats)| {
                Some(([("command", facts.name.to_lowercase())], stats.latency.load()?))
            })
            .collect();
        let rows: Vec<(&Labels<'_>, &LatencyHistogram)> =
            latencies.iter().map(|(label, latency)| (&label[..], latency)).collect();
        out.histograms(
            "pumice_redis_command_latency_seconds",
            "How long commands took, waits for durability excluded; the sum is an estimate",
            &rows,
        )
    }

    fn drives(&self, out: &mut Out<'_, '_>) -> std::fmt::Result {
        let Some(node) = self.health.node() else { return Ok(()) };
        let stats = node.stats();
        let labels: Vec<[(&str, String); 1]> =
            (0..stats.drives.len()).map(|n| [("drive", n.to_string())]).collect();
        let drives: Vec<Numbers> = stats.drives.iter().map(drive_numbers).collect();
        let Some(first) = drives.first() else { return Ok(()) };
        for (at, (name, help, _)) in first.counters.iter().enumerate() {
            let rows: Vec<(&Labels<'_>, f64)> =
                labels.iter().zip(&drives).map(|(l, d)| (&l[..], d.counters[at].2 as f64)).collect();
            out.rows(&format!("pumice_drive_{name}"), help, true, &rows)?;
        }
        for (at, (name, help, _)) in first.gauges.iter().enumerate() {
            let rows: Vec<(&Labels<'_>, f64)> =
                labels.iter().zip(&drives).map(|(l, d)| (&l[..], d.gauges[at].2)).collect();
            out.rows(&format!("pumice_drive_{name}"), help, false, &rows)?;
        }
        let commits = stats.drives.iter().map(|drive| &drive.heap.commit_latency);
        let rows: Vec<(&Labels<'_>, &LatencyHistogram)> =
            labels.iter().map(|label| &label[..]).zip(commits).collect();
        out.histograms(
            "pumice_drive_commit_latency_seconds",
            "How long commits took; the sum is an estimate",
            &rows,
        )?;
        let conditions = node.conditions();
        let paths: Vec<[(&str, String); 2]> = (0..)
            .zip(&conditions)
            .map(|(at, found): (usize, _)| [("drive", at.to_string()), ("path", found.drive.clone())])
            .collect();
        let rows: Vec<(&Labels<'_>, f64)> = paths.iter().map(|label| (&label[..], 1.0)).collect();
        out.rows("pumice_drive_info", "How each drive was named", false, &rows)?;
        let damaged: Vec<(&Labels<'_>, f64)> = labels
            .iter()
            .zip(&conditions)
            .map(|(label, found)| (&label[..], found.damaged_records as f64))
            .collect();
        out.rows(
            "pumice_drive_damaged_records",
            "Records that reads met, that do not verify, and whose place holds nothing else yet",
            false,
            &damaged,
        )?;
        let mut states: Vec<([(&str, String); 2], f64)> = Vec::new();
        for (drive, found) in conditions.iter().enumerate() {
            for state in DriveState::ALL {
                let label = [("drive", drive.to_string()), ("state", state.word().to_string())];
                states.push((label, f64::from(u8::from(state == found.state))));
            }
        }
        let rows: Vec<(&Labels<'_>, f64)> = states.iter().map(|(label, is)| (&label[..], *is)).collect();
        out.rows("pumice_drive_state", "How a drive does: 1 for the state it is in", false, &rows)?;
        let mut kinds: Vec<([(&str, String); 2], f64)> = Vec::new();
        for (drive, store) in stats.drives.iter().enumerate() {
            for (kind, bytes) in store.space.kinds() {
                kinds.push(([("drive", drive.to_string()), ("kind", kind.to_string())], bytes as f64));
            }
        }
        let rows: Vec<(&Labels<'_>, f64)> = kinds.iter().map(|(label, bytes)| (&label[..], *bytes)).collect();
        out.rows("pumice_drive_space_bytes", "Where a drive's bytes are; the kinds add up", false, &rows)?;
        out.rows(
            "pumice_latch_waits",
            "Commands that queued for a key",
            true,
            &[(&[], stats.latch_waits as f64)],
        )?;
        let waits = pumice_base::sync::lock_waits() as f64;
        out.rows("pumice_lock_waits", "Waits of a core for a lock that another held", true, &[(&[], waits)])
    }
}

/// What a core's counter counts.
fn core_help(name: &str) -> &'static str {
    match name {
        "turns" => "Turns of the core's loop: batches of ready tasks",
        "polls" => "Tasks polled",
        "spawns" => "Tasks started",
        "sleeps" => "Waits that slept",
        "remote_messages" => "Messages from other cores: wakes and spawned tasks",
        "enters" => "System calls that handed over operations or waited",
        "timers" => "Timers that ran out",
        "reads" => "File reads",
        "read_bytes" => "Bytes asked for by file reads",
        "writes" => "File writes",
        "write_bytes" => "Bytes handed to file writes",
        "syncs" => "File syncs",
        "allocations" => "Hole punches and allocations",
        "connections" => "Connections accepted or made",
        "receives" => "Receives that brought bytes",
        "receive_bytes" => "Bytes received",
        "receive_waits" => "Receives that waited for a shared buffer",
        "sends" => "Sends",
        "cancels" => "Operations cancelled",
        _ => "A counter of the core's reactor",
    }
}

/// Name, calls, nanoseconds and failures of each command and subcommand that was run, named as in INFO commandstats
/// (`config|get`).
fn commands(server: &pumice_redis::server::Server) -> Vec<(String, u64, u64, u64)> {
    let facts = pumice_redis::command::Table::get().all_facts();
    facts
        .zip(&server.stats.commands)
        .map(|(facts, stats)| {
            let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
            (facts.name.to_lowercase(), load(&stats.calls), load(&stats.nanos), load(&stats.failed))
        })
        .filter(|(_, calls, ..)| *calls > 0)
        .collect()
}

/// Everything in OpenMetrics' text format.
pub fn openmetrics(health: &Health) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Snapshot { health: health.clone() }));
    let mut body = String::new();
    match text::encode(&mut body, &registry) {
        Ok(()) => body,
        Err(error) => format!("# {error}\n# EOF\n"),
    }
}

/// Whole numbers as such.
fn number(value: f64) -> Value {
    if value.fract() == 0.0 && value >= 0.0 { (value as u64).into() } else { value.into() }
}

/// Everything as JSON: what `pumice info --data` prints.
pub fn info(health: &Health) -> Value {
    let (done, total) = health.progress();
    let own = process::usage();
    let mut all = json!({
        "state": health.condition().word(),
        "version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "cpu_seconds": own.cpu_seconds,
        "resident_bytes": own.resident_bytes,
    });
    if health.node().is_none() {
        all["recovery"] = json!({ "done_bytes": done, "total_bytes": total });
    }
    if let Some(server) = health.redis() {
        all["clients"] = server.clients.len().into();
        all["commands"] = server.stats.calls().into();
    }
    if let Some(node) = health.node() {
        let stats = node.stats();
        let conditions = node.conditions();
        let drives = (0..).zip(stats.drives.iter().zip(conditions)).map(|(at, (drive, found))| {
            let numbers = drive_numbers(drive);
            let mut fields = serde_json::Map::new();
            fields.insert("device".into(), found.drive.into());
            fields.insert("state".into(), found.state.word().into());
            fields.insert("damaged_records".into(), found.damaged_records.into());
            space::describe(node.store(at).heap(), &mut fields);
            fields.extend(numbers.counters.iter().map(|(n, _, v)| ((*n).to_string(), (*v).into())));
            fields.extend(numbers.gauges.iter().map(|(n, _, v)| ((*n).to_string(), number(*v))));
            Value::Object(fields)
        });
        all["drives"] = drives.collect::<Vec<_>>().into();
    }
    all
}

/// The few numbers that people look for first.
pub fn overview(health: &Health) -> Vec<(&'static str, String)> {
    let mut rows = vec![("state", health.condition().word().to_string())];
    let own = process::usage();
    rows.push(("memory", format_size(own.resident_bytes)));
    if let Some(server) = health.redis() {
        rows.push(("clients", server.clients.len().to_string()));
        rows.push(("commands", server.stats.calls().to_string()));
    }
    if let Some(node) = health.node() {
        let stats = node.stats();
        for (drive, found) in stats.drives.iter().zip(node.conditions()) {
            let space = &drive.space;
            let ahead = match drive.heap.prewritten_bytes {
                0 => String::new(),
                bytes => format!(" (beside {} written ahead of need)", format_size(bytes)),
            };
            rows.push((
                "drive",
                format!(
                    "{}, {} of {} live, {} free, write amplification {:.2}{ahead}, commit p99 {:.2} ms",
                    found.state.word(),
                    format_size(space.live),
                    format_size(space.raw),
                    format_size(space.free),
                    drive.write_amplification(),
                    drive.heap.commit_latency.quantile_ns(0.99) as f64 / 1e6
                ),
            ));
        }
    }
    rows
}
