//! Settings of `serve`: defaults, then the TOML file, then the command line, each over the one before.

use std::fmt::{self, Display};
use std::fs;
use std::path::{Path, PathBuf};

use pumice_base::size::{ParseSizeError, parse_size};
use pumice_reactor::Addr;
use serde::Deserialize;

use crate::cli::{self, DebugArg, DurabilityArg, ServeArgs};
use crate::exit::Stop;
use crate::{logging, machine};

/// Default size of the drive that `serve` makes when none is named: a sparse file, so it takes what it holds.
pub const DEFAULT_DRIVE_BYTES: u64 = 64 << 30;
/// Where the default drive and the control socket live unless told otherwise.
pub const DEFAULT_DATA_DIR: &str = "./pumice-data";
/// Where Redis clients connect unless told otherwise.
pub const DEFAULT_REDIS: &str = "127.0.0.1:6379";
/// Days of a patrol's pass unless told otherwise: NAND keeps data for a year at the end of its rated life (JEDEC JESD218, client
/// class), and a pass takes a few hundredths of a percent of a drive's reads.
pub const PATROL_DAYS: f64 = 28.0;
/// Most serving threads.
const CORES_MAX: u16 = 1024;
const PATROL_DAYS_MAX: f64 = 36_500.0;
/// Serving cores that the least memory is enough for.
const CORES_OF_LEAST_MEMORY: u16 = 2;
/// Default memory where the kernel does not say how much there is.
const MEMORY_BYTES_UNTOLD: u64 = 1 << 30;

/// What the server runs with.
#[derive(Clone, Debug)]
pub struct Settings {
    pub data: PathBuf,
    pub devices: Vec<String>,
    pub redis: Vec<Listen>,
    /// Of sockets among them; `None`: as the umask leaves them.
    pub redis_socket_mode: Option<u32>,
    pub http: Option<Listen>,
    pub cores: u16,
    /// The machine's, where nobody asked for a number and memory is too little for all of them.
    pub cores_there: Option<u16>,
    pub memory_bytes: u64,
    /// What the machine and the control groups leave this process; `None` where the kernel does not say.
    pub memory_there: Option<u64>,
    pub durability: DurabilityArg,
    pub password: Option<String>,
    pub protected_mode: bool,
    pub debug: DebugArg,
    pub clients_max: u32,
    /// 0: no patrol.
    pub patrol_days: f64,
    pub tls: Option<Tls>,
    pub log: String,
    /// The config file, if there is one.
    pub config_file: Option<PathBuf>,
}

/// Where to listen. Shown as errors name it: with the flag, or file and key, that it comes from.
#[derive(Clone, Debug)]
pub struct Listen {
    pub addr: Addr,
    shown: String,
}

impl Listen {
    fn parse(asked_by: &str, text: &str) -> Result<Self, Stop> {
        let shown = format!("{asked_by} {text}");
        let addr = text.parse().map_err(|e| Stop::doing(&shown, e))?;
        Ok(Self { addr, shown })
    }
}

impl Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

/// Files of the TLS face.
#[derive(Clone, Debug)]
pub struct Tls {
    pub cert: PathBuf,
    pub key: PathBuf,
    pub ca: Option<PathBuf>,
    /// Whether each of the three comes from a flag, and the config file.
    from_flags: [bool; 3],
    file_name: String,
}

impl Tls {
    /// Where the setting stands that names `path`.
    pub fn asked_by(&self, path: &Path) -> String {
        let names = [(Some(&self.cert), "cert"), (Some(&self.key), "key"), (self.ca.as_ref(), "ca")];
        let at = names.iter().position(|(file, _)| file.is_some_and(|file| file == path)).unwrap_or(0);
        asked_by(&self.file_name, self.from_flags[at], &format!("redis-tls-{}", names[at].1))
    }
}

/// How errors call a setting: by its flag, or by the file and its name there.
fn asked_by(file_name: &str, is_flag: bool, name: &str) -> String {
    if is_flag { format!("--{name}") } else { format!("{file_name}: {name}") }
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of strings")]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl OneOrMany {
    fn into_vec(self) -> Vec<String> {
        match self {
            Self::One(one) => vec![one],
            Self::Many(many) => many,
        }
    }
}

/// A size with a unit, or TOML's own number, which is bytes.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a size in quotes, such as \"2GiB\", or a whole number of bytes")]
enum FileSize {
    Bytes(u64),
    Text(String),
}

impl FileSize {
    fn bytes(&self) -> Result<u64, ParseSizeError> {
        match self {
            Self::Bytes(bytes) => Ok(*bytes),
            Self::Text(text) => parse_size(text),
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct ConfigFile {
    data: Option<PathBuf>,
    device: Option<OneOrMany>,
    redis: Option<OneOrMany>,
    #[serde(alias = "unixsocketperm")]
    redis_socket_mode: Option<String>,
    http: Option<String>,
    cores: Option<u16>,
    memory: Option<FileSize>,
    durability: Option<DurabilityArg>,
    #[serde(alias = "requirepass")]
    password: Option<String>,
    protected_mode: Option<bool>,
    enable_debug_command: Option<DebugArg>,
    max_clients: Option<u32>,
    patrol_days: Option<f64>,
    redis_tls_cert: Option<PathBuf>,
    redis_tls_key: Option<PathBuf>,
    redis_tls_ca: Option<PathBuf>,
    log: Option<String>,
}

fn read_file(path: &Path) -> Result<ConfigFile, Stop> {
    let text =
        fs::read_to_string(path).map_err(|e| Stop::doing(format!("config file {}", path.display()), e))?;
    toml::from_str(&text).map_err(|e| Stop::doing(format!("config file {}", path.display()), e))
}

impl Settings {
    /// Puts the command line over its config file over the defaults.
    pub fn gather(args: ServeArgs) -> Result<Self, Stop> {
        let file = match &args.config {
            Some(path) => read_file(path)?,
            None => ConfigFile::default(),
        };
        // Errors name where the setting stands.
        let file_name =
            args.config.as_ref().map(|path| format!("config file {}", path.display())).unwrap_or_default();
        let file_memory = match &file.memory {
            Some(size) => Some(size.bytes().map_err(|e| Stop::doing(format!("{file_name}: memory"), e))?),
            None => None,
        };
        let or = |given: Vec<String>, kept: Option<OneOrMany>| {
            if given.is_empty() { kept.map(OneOrMany::into_vec).unwrap_or_default() } else { given }
        };
        let asked_by = |is_flag: bool, name: &str| asked_by(&file_name, is_flag, name);
        // Before anything is made on disk.
        let redis_by = asked_by(!args.redis.is_empty() || file.redis.is_none(), "redis");
        let mut redis = or(args.redis, file.redis);
        if redis.is_empty() {
            redis.push(DEFAULT_REDIS.into());
        }
        let redis: Vec<Listen> =
            redis.iter().map(|text| Listen::parse(&redis_by, text)).collect::<Result<_, _>>()?;
        let mode_by = asked_by(false, "redis-socket-mode");
        let file_mode = file.redis_socket_mode.map(|mode| cli::socket_mode(&mode)).transpose();
        let file_mode = file_mode.map_err(|e| Stop::because(format!("{mode_by} {e}")))?;
        let http_by = asked_by(args.http.is_some(), "http");
        let http = args.http.or(file.http).map(|text| Listen::parse(&http_by, &text)).transpose()?;
        refuse_same(redis.iter().chain(&http))?;
        let devices = or(args.device, file.device);
        let cores_by = asked_by(args.cores.is_some(), "cores");
        let cores_asked = args.cores.or(file.cores);
        if cores_asked.is_some_and(|cores| !(1..=CORES_MAX).contains(&cores)) {
            return Err(Stop::because(format!("{cores_by} must be from 1 to {CORES_MAX}")));
        }
        let memory_by = asked_by(args.memory.is_some(), "memory");
        let memory_asked = args.memory.or(file_memory);
        let memory_there = machine::memory_bytes(Path::new("/"));
        let (cores, memory_bytes) = fit(cores_asked, memory_asked, memory_there, devices.len())
            .map_err(|least| Stop::because(format!("{memory_by} must be at least {least}")))?;
        let cores_there = Some(machine_cores()).filter(|there| cores_asked.is_none() && cores < *there);
        let from_flags =
            [&args.redis_tls_cert, &args.redis_tls_key, &args.redis_tls_ca].map(|flag| flag.is_some());
        let cert = args.redis_tls_cert.or(file.redis_tls_cert);
        let key = args.redis_tls_key.or(file.redis_tls_key);
        let ca = args.redis_tls_ca.or(file.redis_tls_ca);
        let tls = match (cert, key) {
            (Some(cert), Some(key)) => Some(Tls { cert, key, ca, from_flags, file_name: file_name.clone() }),
            (None, None) if ca.is_none() => None,
            // Who asks for TLS in part must not be served without it.
            (cert, key) => {
                let missing = match (cert, key) {
                    (None, None) => "redis-tls-ca is of no use without redis-tls-cert and redis-tls-key",
                    (None, _) => "redis-tls-cert is missing",
                    _ => "redis-tls-key is missing",
                };
                return Err(Stop::because(format!(
                    "TLS needs redis-tls-cert and redis-tls-key, in the config file or as flags: {missing}"
                )));
            }
        };
        let patrol_by = asked_by(args.patrol_days.is_some(), "patrol-days");
        let patrol_days = args.patrol_days.or(file.patrol_days).unwrap_or(PATROL_DAYS);
        if !(0.0..=PATROL_DAYS_MAX).contains(&patrol_days) {
            return Err(Stop::because(format!("{patrol_by} must be from 0 to {PATROL_DAYS_MAX}")));
        }
        let clients_by = asked_by(args.max_clients.is_some(), "max-clients");
        let clients_max = args.max_clients.or(file.max_clients).unwrap_or(10_000);
        if clients_max == 0 {
            return Err(Stop::because(format!("{clients_by} must be at least 1")));
        }
        // An empty one is none, as `PUMICE_LOG=` in an environment file is.
        let log = args.log.filter(|level| !level.is_empty()).or(file.log).unwrap_or_else(|| "info".into());
        logging::check(&log)?;
        Ok(Self {
            data: args.data.or(file.data).unwrap_or_else(|| DEFAULT_DATA_DIR.into()),
            devices,
            redis,
            redis_socket_mode: args.redis_socket_mode.or(file_mode),
            http,
            cores,
            cores_there,
            memory_bytes,
            memory_there,
            durability: args.durability.or(file.durability).unwrap_or(DurabilityArg::Always),
            password: password(args.password).or(password(file.password)),
            protected_mode: !args.no_protected_mode && file.protected_mode.unwrap_or(true),
            debug: args.enable_debug_command.or(file.enable_debug_command).unwrap_or(DebugArg::No),
            patrol_days,
            clients_max,
            tls,
            log,
            config_file: args.config,
        })
    }
}

/// Refuses an address that is asked for twice: it would be taken for another server's. Port 0 is another one each time.
fn refuse_same<'a>(all: impl Iterator<Item = &'a Listen>) -> Result<(), Stop> {
    let mut known: Vec<&Listen> = Vec::new();
    for listen in all {
        let has_any_port = matches!(&listen.addr, Addr::Tcp(addr) if addr.port() == 0);
        if let Some(first) = known.iter().find(|first| !has_any_port && first.addr == listen.addr) {
            return Err(Stop::because(format!("{first} and {listen} are the same address: name each once")));
        }
        known.push(listen);
    }
    Ok(())
}

/// A password that was given: an empty one is none, as `PUMICE_PASSWORD=` in an environment file is.
pub fn password(given: Option<String>) -> Option<String> {
    given.filter(|password| !password.is_empty())
}

fn machine_cores() -> u16 {
    std::thread::available_parallelism().map_or(1, |n| u16::try_from(n.get()).unwrap_or(1024))
}

/// The least memory a server of so many cores and drives stays within: one more thread does cold work.
fn memory_bytes_min(cores: u16, drives: usize) -> u64 {
    let threads = u64::from(cores.max(CORES_OF_LEAST_MEMORY)) + 1;
    pumice_kv::process_bytes_min(threads, drives.max(1) as u64)
}

/// Cores and memory that go together. What was not asked for follows what was: fewer cores than the machine has, or more
/// memory than its quarter. The error says what is the least.
fn fit(
    cores: Option<u16>,
    memory: Option<u64>,
    memory_there: Option<u64>,
    drives: usize,
) -> Result<(u16, u64), String> {
    let least = memory_bytes_min(cores.unwrap_or(CORES_OF_LEAST_MEMORY), drives);
    let quarter = || memory_there.map_or(MEMORY_BYTES_UNTOLD, |there| there / 4).max(least);
    let memory = memory.unwrap_or_else(quarter);
    if memory < least {
        let of = [
            cores.filter(|cores| *cores > CORES_OF_LEAST_MEMORY).map(|cores| format!("{cores} cores")),
            (drives > 1).then(|| format!("{drives} drives")),
        ];
        let of: Vec<String> = of.into_iter().flatten().collect();
        let of = if of.is_empty() { String::new() } else { format!(" for {}", of.join(" and ")) };
        return Err(format!("{}MiB{of}", least >> 20));
    }
    let fits = |cores: &u16| memory_bytes_min(*cores, drives) <= memory;
    let cores = cores.unwrap_or_else(|| {
        let there = machine_cores();
        (1..=there).rev().find(fits).unwrap_or(1)
    });
    Ok((cores, memory))
}
