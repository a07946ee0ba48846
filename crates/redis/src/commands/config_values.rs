//! What CONFIG SET takes as the value of a parameter, in Redis's terms (config.c), and how it is kept.

use crate::errors::Failure;
use crate::number;

/// What values a parameter takes.
pub(super) enum Value {
    /// `yes` or `no`.
    YesNo,
    /// A whole number between these.
    Whole(i64, i64),
    /// Bytes, with a unit if wanted; at least so many.
    Memory(u64),
    /// A C `int` that is not negative, and kept as the nearest between these.
    Clamped(i64, i64),
    /// Bytes of a backlog, of which Redis has no shorter ones than 16 KiB.
    Backlog,
    /// What Redis takes for the process's standing with the kernel's killer; two words mean the same.
    OomScore,
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// Bytes, or a percentage of maxmemory.
    MemoryOrPercent,
    /// Pairs of seconds and changes.
    Save,
    /// Letters of kinds of events.
    Events,
    /// Numbers from 0 to 100.
    Percentiles,
}

const INT_MAX: i64 = i32::MAX as i64;

/// Parameters that mean nothing here, with the values that Redis starts with.
pub(super) const KEPT: &[(&str, &str, Value)] = &[
    ("active-expire-effort", "1", Value::Whole(1, 10)),
    ("activedefrag", "no", Value::YesNo),
    ("activerehashing", "yes", Value::YesNo),
    ("aof-load-truncated", "yes", Value::YesNo),
    ("auto-aof-rewrite-percentage", "100", Value::INT),
    ("busy-reply-threshold", "5000", Value::Whole(0, i64::MAX)),
    ("close-on-oom", "yes", Value::YesNo),
    ("dynamic-hz", "yes", Value::YesNo),
    ("hz", "10", Value::Clamped(1, 500)),
    ("latency-monitor-threshold", "0", Value::Whole(0, i64::MAX)),
    ("latency-tracking", "yes", Value::YesNo),
    ("latency-tracking-info-percentiles", "50 99 99.9", Value::Percentiles),
    ("lazyfree-lazy-eviction", "no", Value::YesNo),
    ("lazyfree-lazy-expire", "no", Value::YesNo),
    ("lazyfree-lazy-server-del", "no", Value::YesNo),
    ("lazyfree-lazy-user-del", "no", Value::YesNo),
    ("lazyfree-lazy-user-flush", "no", Value::YesNo),
    ("lfu-decay-time", "1", Value::INT),
    ("lfu-log-factor", "10", Value::INT),
    ("list-compress-depth", "0", Value::INT),
    ("list-max-listpack-size", "-2", Value::Whole(-INT_MAX - 1, INT_MAX)),
    ("loglevel", "notice", Value::OneOf(&["debug", "verbose", "notice", "warning"])),
    ("maxmemory-clients", "0", Value::MemoryOrPercent),
    ("maxmemory-samples", "5", Value::Whole(1, INT_MAX)),
    ("min-replicas-max-lag", "10", Value::INT),
    ("min-replicas-to-write", "0", Value::INT),
    ("notify-keyspace-events", "", Value::Events),
    ("oom-score-adj", "no", Value::OomScore),
    ("rdbcompression", "yes", Value::YesNo),
    ("repl-backlog-size", "1048576", Value::Backlog),
    ("repl-diskless-sync", "yes", Value::YesNo),
    ("repl-timeout", "60", Value::Whole(1, INT_MAX)),
    ("replica-read-only", "yes", Value::YesNo),
    ("save", "", Value::Save),
    ("stop-writes-on-bgsave-error", "yes", Value::YesNo),
    ("tracking-table-max-keys", "1000000", Value::Whole(0, i64::MAX)),
];

/// Former names of parameters, each with the name that it has now. One value, two names.
pub(super) const FORMER_NAMES: &[(&str, &str)] = &[
    ("hash-max-ziplist-entries", "hash-max-listpack-entries"),
    ("hash-max-ziplist-value", "hash-max-listpack-value"),
    ("list-max-ziplist-size", "list-max-listpack-size"),
    ("lua-time-limit", "busy-reply-threshold"),
    ("min-slaves-to-write", "min-replicas-to-write"),
    ("slave-read-only", "replica-read-only"),
    ("slaveof", "replicaof"),
    ("zset-max-ziplist-entries", "zset-max-listpack-entries"),
    ("zset-max-ziplist-value", "zset-max-listpack-value"),
];

/// The name that the parameter called `name` has now.
pub(super) fn name_of_today(name: &str) -> &str {
    FORMER_NAMES.iter().find(|(former, _)| *former == name).map_or(name, |(_, today)| today)
}

/// Redis has no limit; each is looked up for each command that was run.
const PERCENTILES_MAX: usize = 100;

/// Redis's letters of events: `A` stands for the first [`EVENTS_ALL`] of them.
const EVENTS: &str = "g$lshzxetdnKEm";
const EVENTS_ALL: usize = 10;

pub(super) fn refuse(name: &str, why: &str) -> Failure {
    refuse_given(name.as_bytes(), why)
}

/// [`refuse`], with the name as the client wrote it: Redis tells so what it finds before it looks at values.
pub(super) fn refuse_given(name: &[u8], why: &str) -> Failure {
    Failure::quoting("ERR CONFIG SET failed (possibly related to argument '", name, &format!("') - {why}"))
}

/// A whole number.
pub(super) fn whole(value: &str) -> Option<i64> {
    number::parse_int(value.as_bytes())
}

/// Bytes, with a unit if there is one (util.c, memtoull): powers of 1,000 or, with a `b` behind, of 1,024. A unit without a
/// number, and no number at all, is 0.
pub(super) fn memory(value: &str) -> Option<u64> {
    let (digits, unit) = value.split_at(value.find(|c: char| !c.is_ascii_digit()).unwrap_or(value.len()));
    let unit = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" => 1000,
        "kb" => 1 << 10,
        "m" => 1_000_000,
        "mb" => 1 << 20,
        "g" => 1_000_000_000,
        "gb" => 1 << 30,
        _ => return None,
    };
    let number: u64 = if digits.is_empty() { 0 } else { digits.parse().ok()? };
    number.checked_mul(unit)
}

impl Value {
    /// A C `int` that is not negative.
    pub(super) const INT: Self = Self::Whole(0, INT_MAX);

    /// The value as it is kept and told.
    pub(super) fn check(&self, name: &str, value: &str) -> Result<String, Failure> {
        let between = |min: u64, max: i64| format!("argument must be between {min} and {max} inclusive");
        match *self {
            Self::YesNo => {
                let word = value.to_ascii_lowercase();
                let is_known = word == "yes" || word == "no";
                if is_known { Ok(word) } else { Err(refuse(name, "argument must be 'yes' or 'no'")) }
            }
            Self::Whole(min, max) => match whole(value) {
                None => Err(refuse(name, "argument couldn't be parsed into an integer")),
                Some(number) if number < min || number > max => {
                    Err(refuse(name, &format!("argument must be between {min} and {max} inclusive")))
                }
                Some(number) => Ok(number.to_string()),
            },
            Self::Memory(min) => match memory(value) {
                None => Err(refuse(name, "argument must be a memory value")),
                Some(bytes) if bytes < min || i64::try_from(bytes).is_err() => {
                    Err(refuse(name, &between(min, i64::MAX)))
                }
                Some(bytes) => Ok(bytes.to_string()),
            },
            Self::Clamped(min, max) => {
                let number = Self::INT.check(name, value)?;
                Ok(whole(&number).unwrap_or(min).clamp(min, max).to_string())
            }
            Self::Backlog => {
                let bytes = Self::Memory(1).check(name, value)?;
                Ok(memory(&bytes).unwrap_or(0).max(16 << 10).to_string())
            }
            Self::OomScore => {
                let word = Self::OneOf(&["no", "yes", "relative", "absolute"]).check(name, value)?;
                Ok(if word == "relative" { "yes".to_string() } else { word })
            }
            Self::OneOf(words) => {
                let known = words.iter().find(|known| known.eq_ignore_ascii_case(value));
                let why = || format!("argument(s) must be one of the following: {}", words.join(", "));
                known.map(|known| (*known).to_string()).ok_or_else(|| refuse(name, &why()))
            }
            Self::MemoryOrPercent => {
                let percent = value.strip_suffix('%').map(|percent| whole(percent).filter(|&n| n >= 0));
                match percent {
                    Some(Some(percent)) if percent <= 100 => Ok(format!("{percent}%")),
                    Some(Some(_)) => Err(refuse(name, "percentage argument must be less or equal to 100")),
                    Some(None) => Err(refuse(name, "argument must be a memory or percent value")),
                    None => memory(value)
                        .map(|bytes| bytes.to_string())
                        .ok_or_else(|| refuse(name, "argument must be a memory or percent value")),
                }
            }
            Self::Save => save(value).ok_or_else(|| refuse(name, "Invalid save parameters")),
            Self::Percentiles => percentiles(name, value),
            Self::Events => events(value)
                .ok_or_else(|| refuse(name, "Invalid event class character. Use 'Ag$lshzxeKEtmdn'.")),
        }
    }
}

fn save(value: &str) -> Option<String> {
    let words: Vec<i64> = value.split_whitespace().map(whole).collect::<Option<_>>()?;
    let is_known = |pair: &[i64]| matches!(pair, &[seconds, changes] if seconds >= 1 && changes >= 0);
    let whole_pairs = words.chunks(2).all(is_known);
    whole_pairs.then(|| words.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
}

/// The numbers as Redis tells them: six decimals at most, without zeros at the end.
fn percentiles(name: &str, value: &str) -> Result<String, Failure> {
    let numbers: Option<Vec<f64>> = value.split_whitespace().map(|word| word.parse().ok()).collect();
    let numbers = numbers.filter(|all| all.len() <= PERCENTILES_MAX && !all.iter().any(|one| one.is_nan()));
    let numbers = numbers.ok_or_else(|| refuse(name, &format!("Invalid {name} parameters")))?;
    if numbers.iter().any(|number| !(0.0..=100.0).contains(number)) {
        return Err(refuse(name, &format!("{name} parameters should sit between [0.0,100.0]")));
    }
    let told = |number: f64| format!("{number:.6}").trim_end_matches('0').trim_end_matches('.').to_string();
    Ok(numbers.into_iter().map(told).collect::<Vec<_>>().join(" "))
}

/// The letters once each, in Redis's order.
fn events(value: &str) -> Option<String> {
    let has = |letter: char| value.contains(letter);
    if !value.chars().all(|letter| letter == 'A' || EVENTS.contains(letter)) {
        return None;
    }
    let (all, rest) = EVENTS.split_at(EVENTS_ALL);
    let is_all = has('A') || all.chars().all(has);
    let mut told = if is_all { "A".to_string() } else { all.chars().filter(|&letter| has(letter)).collect() };
    told.extend(rest.chars().filter(|&letter| has(letter) && !(is_all && letter == 'n')));
    Some(told)
}

/// Hard limit, soft limit and seconds of a class of clients, if `value` speaks of it.
pub(super) type OutputLimits = Option<[u64; 3]>;

/// The limits of normal clients, replicas and subscribers.
pub(super) fn output_limits(value: &str) -> Result<[OutputLimits; 3], Failure> {
    let name = "client-output-buffer-limit";
    let words: Vec<&str> = value.split_whitespace().collect();
    if words.is_empty() || !words.len().is_multiple_of(4) {
        return Err(refuse(name, "Wrong number of arguments in buffer limit configuration."));
    }
    let wrong = || refuse(name, "Error in hard, soft or soft_seconds setting in buffer limit configuration.");
    let mut limits = [None; 3];
    for class in words.chunks(4) {
        let limits = match class[0].to_ascii_lowercase().as_str() {
            "normal" => &mut limits[0],
            "slave" | "replica" => &mut limits[1],
            "pubsub" => &mut limits[2],
            _ => return Err(refuse(name, "Invalid client class specified in buffer limit configuration.")),
        };
        let (hard, soft) = (memory(class[1]).ok_or_else(wrong)?, memory(class[2]).ok_or_else(wrong)?);
        let seconds = whole(class[3]).and_then(|n| u64::try_from(n).ok()).ok_or_else(wrong)?;
        *limits = Some([hard, soft, seconds]);
    }
    Ok(limits)
}
