//! INFO: the sections that Redis tools read, and Pumice's own.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use pumice_node::{DriveCondition, DriveState};

use super::config;
use crate::args::Args;
use crate::command::{Row, Table};
use crate::context::Ctx;
use crate::errors::CommandResult;
use crate::handler;
use crate::keyspace::DATABASES;

/// The commands of this module.
pub static ROWS: &[Row] = &[("info", handler!(info))];

const DEFAULT: &[&str] = &[
    "server",
    "clients",
    "memory",
    "persistence",
    "stats",
    "replication",
    "cpu",
    "modules",
    "errorstats",
    "cluster",
    "keyspace",
    "pumice",
];
const ONLY_ON_REQUEST: &[&str] = &["commandstats", "latencystats", "drives"];

async fn info(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let mut wanted: Vec<&str> = Vec::new();
    if args.len() == 1 {
        wanted.extend(DEFAULT);
    }
    for name in args.iter_from(1) {
        let is = |word: &str| name.eq_ignore_ascii_case(word.as_bytes());
        if is("default") || is("all") || is("everything") {
            wanted.extend(DEFAULT);
        }
        if is("all") || is("everything") {
            wanted.extend(ONLY_ON_REQUEST);
        }
        wanted.extend(DEFAULT.iter().chain(ONLY_ON_REQUEST).copied().filter(|section| is(section)));
    }
    let mut text = String::new();
    for section in DEFAULT.iter().chain(ONLY_ON_REQUEST).filter(|section| wanted.contains(section)) {
        let lines = lines(ctx, section);
        if !text.is_empty() {
            text.push_str("\r\n");
        }
        let title = section[..1].to_ascii_uppercase() + &section[1..];
        let title = if title == "Cpu" { "CPU" } else { &title };
        let _ = write!(text, "# {title}\r\n{lines}");
    }
    ctx.reply.verbatim(&text);
    Ok(())
}

/// Collects `name:value` lines.
#[derive(Default)]
struct Lines(String);

impl Lines {
    fn add(&mut self, name: &str, value: impl std::fmt::Display) {
        let _ = write!(self.0, "{name}:{value}\r\n");
    }

    /// What Redis tells of something that it does not do at the moment, and that this server never does: dashboards ask for it.
    fn add_idle(&mut self, value: &str, names: &[&str]) {
        names.iter().for_each(|name| self.add(name, value));
    }
}

fn load(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn lines(ctx: &mut Ctx, section: &str) -> String {
    let mut lines = Lines::default();
    match section {
        "server" => server(ctx, &mut lines),
        "clients" => clients(ctx, &mut lines),
        "memory" => memory(ctx, &mut lines),
        "persistence" => persistence(ctx, &mut lines),
        "stats" => stats(ctx, &mut lines),
        "replication" => {
            lines.add("role", "master");
            lines.add("connected_slaves", 0);
            lines.add("master_failover_state", "no-failover");
            lines.add("master_replid", &ctx.server.run_id);
            lines.add("master_replid2", "0".repeat(40));
            lines.add("master_repl_offset", 0);
            lines.add("second_repl_offset", -1);
            lines.add("repl_backlog_active", 0);
            lines.add("repl_backlog_size", config::kept(&ctx.server, "repl-backlog-size"));
            lines.add("repl_backlog_first_byte_offset", 0);
            lines.add("repl_backlog_histlen", 0);
        }
        "cpu" => cpu(&mut lines),
        "errorstats" => {
            for (code, count) in &*ctx.server.stats.errors() {
                lines.add(&format!("errorstat_{code}"), format!("count={count}"));
            }
        }
        "cluster" => lines.add("cluster_enabled", 0),
        "keyspace" if ctx.server.is_loaded() => {
            for database in 0..DATABASES {
                let keys = ctx.database_size(database);
                if keys > 0 {
                    let expires = ctx.expiring_keys(database);
                    lines.add(&format!("db{database}"), format!("keys={keys},expires={expires},avg_ttl=0"));
                }
            }
        }
        "pumice" if ctx.server.is_loaded() => pumice(ctx, &mut lines),
        "drives" if ctx.server.is_loaded() => drives(ctx, &mut lines),
        "commandstats" => commandstats(ctx, &mut lines),
        "latencystats" => latencystats(ctx, &mut lines),
        _ => {}
    }
    lines.0
}

fn server(ctx: &Ctx, lines: &mut Lines) {
    let up_seconds = ctx.now_ms.saturating_sub(ctx.server.started_ms) / 1000;
    lines.add("redis_version", super::connection::REDIS_VERSION);
    lines.add("redis_git_sha1", "00000000");
    lines.add("redis_git_dirty", 0);
    lines.add("redis_build_id", env!("CARGO_PKG_VERSION"));
    lines.add("redis_mode", "standalone");
    lines.add("pumice_version", env!("CARGO_PKG_VERSION"));
    lines.add("os", system());
    lines.add("arch_bits", usize::BITS);
    lines.add("multiplexing_api", pumice_reactor::driver_name());
    lines.add("process_supervised", "no");
    lines.add("process_id", std::process::id());
    lines.add("run_id", &ctx.server.run_id);
    lines.add("tcp_port", ctx.server.options.port);
    lines.add("server_time_usec", pumice_reactor::wall_us());
    lines.add("uptime_in_seconds", up_seconds);
    lines.add("uptime_in_days", up_seconds / 86_400);
    let hz = config::kept(&ctx.server, "hz");
    lines.add("hz", &hz);
    lines.add("configured_hz", hz);
    lines.add("io_threads_active", 0);
    let executable = std::env::current_exe().unwrap_or_default();
    lines.add("executable", executable.display());
    lines.add("config_file", ctx.server.options.config_file.display());
}

fn clients(ctx: &Ctx, lines: &mut Lines) {
    let stats = &ctx.server.stats;
    lines.add("connected_clients", ctx.server.clients.len());
    lines.add("cluster_connections", 0);
    lines.add("maxclients", load(&ctx.server.settings.clients_max));
    lines.add("client_recent_max_input_buffer", load(&stats.input_waiting_bytes));
    lines.add("client_recent_max_output_buffer", load(&stats.output_waiting_bytes));
    lines.add("blocked_clients", 0);
    lines.add("tracking_clients", 0);
    lines.add("clients_in_timeout_table", 0);
}

/// Resident memory of the process, now and at most so far, in bytes; 0 where the system does not tell.
pub(super) fn resident_bytes() -> (u64, u64) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    let now = kib("VmRSS:") << 10;
    (now, (kib("VmHWM:") << 10).max(now))
}

/// Memory of the machine in bytes; `None` where the system does not tell.
fn system_bytes() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let total = info.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(total.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}

/// Bytes as Redis writes them in fields named so.
fn human(bytes: u64) -> String {
    match [(40, 'T'), (30, 'G'), (20, 'M'), (10, 'K')].into_iter().find(|(shift, _)| bytes >> shift > 0) {
        Some((shift, unit)) => format!("{:.2}{unit}", bytes as f64 / (1u64 << shift) as f64),
        None => format!("{bytes}B"),
    }
}

/// What `uname -srm` says.
fn system() -> String {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap_or_default();
    format!("{} {} {}", read("ostype").trim(), read("osrelease").trim(), std::env::consts::ARCH)
}

fn memory(ctx: &Ctx, lines: &mut Lines) {
    let (resident, peak) = resident_bytes();
    let budget = ctx.server.options.memory_bytes;
    let stats = &ctx.server.stats;
    lines.add("used_memory", resident);
    lines.add("used_memory_human", human(resident));
    lines.add("used_memory_rss", resident);
    lines.add("used_memory_rss_human", human(resident));
    lines.add("used_memory_peak", peak);
    lines.add("used_memory_peak_human", human(peak));
    lines.add("used_memory_peak_perc", format!("{:.2}%", 100.0 * resident as f64 / peak.max(1) as f64));
    if let Some(total) = system_bytes() {
        lines.add("total_system_memory", total);
        lines.add("total_system_memory_human", human(total));
    }
    lines.add_idle("0", &["used_memory_lua", "number_of_cached_scripts", "number_of_functions"]);
    lines.add("maxmemory", budget);
    lines.add("maxmemory_human", human(budget));
    lines.add("maxmemory_policy", ctx.server.settings.policy());
    lines.add("mem_fragmentation_ratio", "1.00");
    // How much of the memory is overhead, and how much data, nobody counts here: those fields are left out.
    lines.add_idle(
        "0",
        &[
            "mem_fragmentation_bytes",
            "mem_not_counted_for_evict",
            "mem_replication_backlog",
            "mem_total_replication_buffers",
            "mem_clients_slaves",
            "mem_cluster_links",
            "mem_aof_buffer",
            "active_defrag_running",
            "lazyfree_pending_objects",
            "lazyfreed_objects",
        ],
    );
    let of_clients = [
        &stats.input_waiting_bytes,
        &stats.transaction_bytes,
        &stats.exec_bytes,
        &stats.output_waiting_bytes,
    ];
    lines.add("mem_clients_normal", of_clients.into_iter().map(load).sum::<u64>());
    lines.add("mem_allocator", ctx.server.options.allocator);
}

fn persistence(ctx: &Ctx, lines: &mut Lines) {
    let (done, total) = (load(&ctx.server.loading.0), load(&ctx.server.loading.1));
    let is_loading = !ctx.server.is_loaded();
    lines.add("loading", u8::from(is_loading));
    if is_loading {
        lines.add("loading_total_bytes", total);
        lines.add("loading_loaded_bytes", done);
        lines.add("loading_loaded_perc", format!("{:.2}", 100.0 * done as f64 / total.max(1) as f64));
    }
    lines.add("async_loading", 0);
    lines.add_idle("0", &["current_cow_peak", "current_cow_size", "current_cow_size_age"]);
    lines.add("current_fork_perc", "0.00");
    lines.add_idle("0", &["current_save_keys_processed", "current_save_keys_total"]);
    lines.add("rdb_changes_since_last_save", 0);
    lines.add("rdb_bgsave_in_progress", 0);
    lines.add("rdb_last_save_time", load(&ctx.server.last_save));
    lines.add("rdb_last_bgsave_status", "ok");
    lines.add_idle("-1", &["rdb_last_bgsave_time_sec", "rdb_current_bgsave_time_sec"]);
    lines.add("rdb_last_cow_size", 0);
    lines.add("aof_enabled", 1);
    lines.add_idle("0", &["aof_rewrite_in_progress", "aof_rewrite_scheduled"]);
    lines.add_idle("-1", &["aof_last_rewrite_time_sec", "aof_current_rewrite_time_sec"]);
    lines.add_idle("0", &["aof_rewrites", "aof_rewrites_consecutive_failures", "aof_last_cow_size"]);
    lines.add_idle("0", &["module_fork_in_progress", "module_fork_last_cow_size"]);
    lines.add("aof_last_bgrewrite_status", "ok");
    let is_read_only = |found: &DriveCondition| found.state.is_read_only();
    let takes_writes = is_loading || !ctx.server.node.conditions().iter().any(is_read_only);
    lines.add("aof_last_write_status", if takes_writes { "ok" } else { "err" });
}

fn stats(ctx: &Ctx, lines: &mut Lines) {
    let stats = &ctx.server.stats;
    lines.add("total_connections_received", load(&stats.connections));
    lines.add("total_commands_processed", stats.calls());
    let [ops, input, output] = stats.rates().per_second();
    lines.add("instantaneous_ops_per_sec", ops);
    lines.add("total_net_input_bytes", load(&stats.input_bytes));
    lines.add("total_net_output_bytes", load(&stats.output_bytes));
    lines.add("instantaneous_input_kbps", format!("{:.2}", input as f64 / 1024.0));
    lines.add("instantaneous_output_kbps", format!("{:.2}", output as f64 / 1024.0));
    lines.add("rejected_connections", load(&stats.rejected_connections));
    lines.add_idle("0.00", &["instantaneous_input_repl_kbps", "instantaneous_output_repl_kbps"]);
    lines.add_idle(
        "0",
        &[
            "total_net_repl_input_bytes",
            "total_net_repl_output_bytes",
            "sync_full",
            "sync_partial_ok",
            "sync_partial_err",
            "evicted_clients",
            "total_eviction_exceeded_time",
            "current_eviction_exceeded_time",
            "pubsubshard_channels",
            "latest_fork_usec",
            "total_forks",
            "migrate_cached_sockets",
            "slave_expires_tracked_keys",
            "active_defrag_hits",
            "active_defrag_misses",
            "active_defrag_key_hits",
            "active_defrag_key_misses",
            "total_active_defrag_time",
            "current_active_defrag_time",
            "tracking_total_keys",
            "tracking_total_items",
            "tracking_total_prefixes",
            "unexpected_error_replies",
            "dump_payload_sanitizations",
        ],
    );
    lines.add("expired_keys", load(&stats.expired_keys));
    lines.add("evicted_keys", 0);
    lines.add("keyspace_hits", load(&stats.hits));
    lines.add("keyspace_misses", load(&stats.misses));
    lines.add("pubsub_channels", 0);
    lines.add("pubsub_patterns", 0);
    lines.add("total_error_replies", load(&stats.error_replies));
    lines.add("client_query_buffer_limit_disconnections", load(&stats.input_limit_closes));
    lines.add("client_output_buffer_limit_disconnections", load(&stats.output_limit_closes));
}

/// User and system time of the process, from the kernel's accounts, in hundredths of a second.
fn cpu(lines: &mut Lines) {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The command's name may hold spaces: count from behind its bracket.
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks = |at: usize| {
        let ticks: f64 = rest.split_whitespace().nth(at).and_then(|word| word.parse().ok()).unwrap_or(0.0);
        format!("{:.6}", ticks / 100.0)
    };
    lines.add("used_cpu_sys", ticks(12));
    lines.add("used_cpu_user", ticks(11));
    lines.add("used_cpu_sys_children", ticks(14));
    lines.add("used_cpu_user_children", ticks(13));
}

fn commandstats(ctx: &Ctx, lines: &mut Lines) {
    for (facts, stats) in Table::get().all_facts().zip(&ctx.server.stats.commands) {
        let (calls, nanos) = (load(&stats.calls), load(&stats.nanos));
        let (rejected, failed) = (load(&stats.rejected), load(&stats.failed));
        if calls + rejected > 0 {
            let per_call = nanos as f64 / 1000.0 / calls.max(1) as f64;
            let (name, usec) = (facts.name, nanos / 1000);
            lines.add(
                &format!("cmdstat_{name}"),
                format!(
                    "calls={calls},usec={usec},usec_per_call={per_call:.2},rejected_calls={rejected},\
                     failed_calls={failed}"
                ),
            );
        }
    }
}

/// Waits for flash and latches included, those for durability not: `commit_p99_us` and its like tell of these.
fn latencystats(ctx: &Ctx, lines: &mut Lines) {
    if config::kept(&ctx.server, "latency-tracking") != "yes" {
        return;
    }
    let percentiles = config::kept(&ctx.server, "latency-tracking-info-percentiles");
    for (facts, stats) in Table::get().all_facts().zip(&ctx.server.stats.commands) {
        let Some(latency) = stats.latency.load() else { continue };
        let told: Vec<String> = percentiles
            .split_whitespace()
            .filter_map(|percentile| {
                let ns = latency.quantile_ns(percentile.parse::<f64>().ok()? / 100.0);
                Some(format!("p{percentile}={:.3}", ns as f64 / 1000.0))
            })
            .collect();
        lines.add(&format!("latency_percentiles_usec_{}", facts.name), told.join(","));
    }
}

/// All drives together.
fn pumice(ctx: &Ctx, lines: &mut Lines) {
    let node = &ctx.server.node;
    let stats = node.stats();
    let sum = |value: fn(&pumice_kv::StoreStats) -> u64| stats.drives.iter().map(value).sum::<u64>();
    lines.add("drives", node.drive_count());
    lines.add("slices", node.slice_count());
    lines.add("space_raw_bytes", sum(|d| d.space.raw));
    for (at, (kind, _)) in stats.drives[0].space.kinds().into_iter().enumerate() {
        let bytes: u64 = stats.drives.iter().map(|drive| drive.space.kinds()[at].1).sum();
        lines.add(&format!("space_{kind}_bytes"), bytes);
    }
    lines.add("space_usable_bytes", sum(|d| d.space.usable()));
    let written = sum(pumice_kv::StoreStats::flash_written_bytes);
    let user = sum(|d| d.counters.user_bytes);
    lines.add("user_written_bytes", user);
    lines.add("flash_written_bytes", written);
    lines.add("prewritten_bytes", sum(|d| d.heap.prewritten_bytes));
    let amplified = sum(pumice_kv::StoreStats::amplified_bytes);
    lines.add(
        "write_amplification",
        format!("{:.3}", if user == 0 { 0.0 } else { amplified as f64 / user as f64 }),
    );
    let gets = sum(|d| d.counters.gets + d.counters.row_hits);
    let values = sum(|d| (d.counters.value_reads + d.heap.ahead_reads).saturating_sub(d.heap.ahead_hits));
    let reads = values + sum(|d| d.counters.block_reads + d.counters.head_reads);
    lines.add("flash_reads", reads);
    lines.add("flash_read_bytes", sum(|d| d.heap.read_bytes));
    lines.add("flash_reads_per_get", format!("{:.3}", reads as f64 / gets.max(1) as f64));
    let counted = ctx.server.ranks.counted();
    lines.add("counted_zsets", counted.orders);
    lines.add("counted_zset_bytes", counted.bytes);
    lines.add("counted_zset_times", counted.times);
    lines.add("cleaned_segments", sum(|d| d.counters.cleaned_segments));
    lines.add("rescued_segments", sum(|d| d.counters.rescued_segments));
    lines.add("given_back_segments", sum(|d| d.counters.given_back_segments));
    let patrols = (0..node.drive_count()).map(|drive| node.store(drive).heap().patrol_stats());
    let (mut at, mut of, mut passes, mut read, mut damaged) = (0u64, 0u64, u32::MAX, 0, 0);
    for patrol in patrols {
        (at, of) = (at + u64::from(patrol.next_segment), of + u64::from(patrol.segments));
        (passes, read, damaged) =
            (passes.min(patrol.passes), read + patrol.read_bytes, damaged + patrol.damaged);
    }
    // Of the drive that is furthest behind, and of all of them.
    lines.add("patrol_passes", passes);
    lines.add("patrol_percent", format!("{:.2}", 100.0 * at as f64 / of.max(1) as f64));
    lines.add("patrol_read_bytes", read);
    lines.add("patrol_damaged", damaged);
    lines.add("cleaning_moved_bytes", sum(|d| d.counters.moved_bytes));
    lines.add("flushes", sum(|d| d.counters.flushes));
    lines.add("merges", sum(|d| d.counters.merges));
    lines.add("merge_bytes", sum(|d| d.counters.merge_bytes));
    lines.add("sunk_tables", sum(|d| d.counters.sunk_tables));
    lines.add("tables_set_aside", sum(|d| d.tables_set_aside));
    let latency = |quantile: f64| {
        let of = |d: &pumice_kv::StoreStats| d.heap.commit_latency.quantile_ns(quantile) / 1000;
        stats.drives.iter().map(of).max().unwrap_or(0)
    };
    lines.add("commit_p50_us", latency(0.5));
    lines.add("commit_p99_us", latency(0.99));
    lines.add("commit_p999_us", latency(0.999));
    lines.add("latch_waits", stats.latch_waits);
    lines.add("lock_waits", pumice_base::sync::lock_waits());
    lines.add("watched_keys", stats.watched);
    let conditions = node.conditions();
    lines.add("damaged_records", conditions.iter().map(|found| found.damaged_records).sum::<u64>());
    let full = conditions.iter().filter(|found| found.state == DriveState::Full);
    lines.add("full_drives", full.count());
    lines.add("trouble", node.trouble().unwrap_or_default());
}

/// Each drive by itself.
fn drives(ctx: &Ctx, lines: &mut Lines) {
    let stats = ctx.server.node.stats();
    for (i, (drive, found)) in stats.drives.iter().zip(ctx.server.node.conditions()).enumerate() {
        lines.add(
            &format!("drive{i}"),
            format!(
                "name={},state={},damaged_records={},raw={},live={},dead={},free={},written={},user={},runs={},tables={},snapshots={}",
                found.drive,
                found.state.word(),
                found.damaged_records,
                drive.space.raw,
                drive.space.live,
                drive.space.dead,
                drive.space.free,
                drive.flash_written_bytes(),
                drive.counters.user_bytes,
                drive.runs_max,
                drive.tables,
                drive.snapshots
            ),
        );
    }
}
