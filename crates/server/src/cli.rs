//! The command line: every subcommand and flag, with the help that teaches them. What is promised here is what
//! tests, scripts and users rely on: extend, don't break.

use std::path::PathBuf;

use clap::builder::styling::{AnsiColor, Styles};
use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum, ValueHint};
use pumice_base::size::parse_size;

use crate::bench::workload::Workload;

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

const TOP_EXAMPLES: &str = "\
Examples:
  pumice serve                                 a drive in ./pumice-data, Redis on 127.0.0.1:6379
  pumice serve --device /dev/nvme1n1           serve a whole disk (run `pumice format` on it first)
  redis-cli SET hello world                    any Redis client works
  pumice info ./pumice-data/drive0             what a drive holds, and where its space went
  pumice check /dev/nvme1n1                    read and verify everything
  pumice bench lightstore                      how fast is this machine?
  pumice sim run kv --seeds 100                a hundred seeded runs with power cuts, in virtual time

Exit codes: 0 done; 1 the answer is no, or something is damaged; 2 could not run.";

/// Pumice turns flash into drives on the network: a durable, larger-than-memory Redis.
#[derive(Debug, Parser)]
#[command(name = "pumice", version, styles = STYLES, after_help = TOP_EXAMPLES, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a server over one or more drives
    #[command(after_help = SERVE_EXAMPLES)]
    Serve(Box<ServeArgs>),
    /// Make a drive out of a file or block device
    #[command(after_help = FORMAT_EXAMPLES)]
    Format(FormatArgs),
    /// Say what a drive holds, or how a running server is doing
    #[command(after_help = INFO_EXAMPLES)]
    Info(InfoArgs),
    /// Read and verify everything on a drive: exit 0 clean, 1 damaged, 2 could not run
    #[command(after_help = CHECK_EXAMPLES)]
    Check(CheckArgs),
    /// Measure: LightStore's five workloads and YCSB A-F, in process or through the network
    #[command(after_help = BENCH_EXAMPLES)]
    Bench(Box<BenchArgs>),
    /// Run the store in virtual time over simulated drives, with faults, by seed
    #[command(subcommand)]
    Sim(SimCommand),
    /// Print a shell completion script
    #[command(after_help = "Example:\n  pumice completions bash > /etc/bash_completion.d/pumice")]
    Completions {
        /// The shell to complete for
        shell: clap_complete::Shell,
    },
}

const SERVE_EXAMPLES: &str = "\
Examples:
  pumice serve
  pumice serve --data /var/lib/pumice --memory 2GiB
  pumice serve --device /dev/nvme1n1 --device /dev/nvme2n1 --redis 0.0.0.0:6379 --password s3cret
  pumice serve --device emu:tlc,size=4GiB          an emulated drive in memory, gone when the server stops
  pumice serve --redis unix:/run/pumice.sock --http 127.0.0.1:9121

When ready it prints one line per face and then a line that is just `ready`. Stop it with SIGTERM or Ctrl-C:
it closes its drives cleanly within seconds.";

/// How soon a write is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DurabilityArg {
    /// Once it is on flash (the default)
    Always,
    /// At once; up to a second of writes may be lost on a crash
    Everysec,
    /// At once; written back when convenient
    None,
}

/// Who may use DEBUG.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DebugArg {
    /// Nobody (the default)
    No,
    /// Clients of this machine
    Local,
    /// Every client
    Yes,
}

/// Permissions of a socket, in octal.
pub fn socket_mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777 && text.len() <= 4);
    mode.ok_or_else(|| "must be octal digits as chmod takes them, such as 660".into())
}

#[derive(Debug, Default, Args)]
pub struct ServeArgs {
    /// Directory for the default drive and the control socket [default: ./pumice-data]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// A drive: a path to a file or block device (zoned ones too), or emu:PRESET[,option=value…]; repeat for more drives
    #[arg(long, value_name = "SPEC", value_hint = ValueHint::FilePath)]
    pub device: Vec<String>,
    /// Where Redis clients connect: host:port or unix:PATH [default: 127.0.0.1:6379]
    #[arg(long, value_name = "ADDR")]
    pub redis: Vec<String>,
    /// Who may connect to unix: addresses of --redis, in octal as chmod takes it: 660 for the owner and the group [default: as
    /// the umask leaves it, mostly the owner alone]
    #[arg(long, visible_alias = "unixsocketperm", value_name = "MODE", value_parser = socket_mode)]
    pub redis_socket_mode: Option<u32>,
    /// Where Prometheus (/metrics), health checks (/health) and people (/) look [default: off]
    #[arg(long, value_name = "ADDR")]
    pub http: Option<String>,
    /// Serving threads, each with its own ring; one more does cold work [default: the machine's
    /// cores, or as many as the memory is enough for]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub cores: Option<u16>,
    /// Memory of the process: 64MiB at least, which is enough for two cores and a drive, 10MiB for each further core and
    /// 18MiB for each further drive [default: a quarter of the machine's, or of what its control group may use]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub memory: Option<u64>,
    /// When a write is acknowledged [default: always]
    #[arg(long, value_enum)]
    pub durability: Option<DurabilityArg>,
    /// TOML file with the same settings, named as these flags, but for `protected-mode = false`, which is
    /// --no-protected-mode; the command line wins
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Password that Redis clients must give with AUTH
    #[arg(
        long,
        visible_alias = "requirepass",
        value_name = "PASSWORD",
        env = "PUMICE_PASSWORD",
        hide_env_values = true
    )]
    pub password: Option<String>,
    /// Let clients from other machines in without a password
    #[arg(long)]
    pub no_protected_mode: bool,
    /// Who may use DEBUG, which test tools need and which can keep a server busy [default: no]
    #[arg(long, value_name = "WHO")]
    pub enable_debug_command: Option<DebugArg>,
    /// Days in which the patrol reads each drive once, to move what decays before it is lost; 0: none [default: 28]
    #[arg(long, value_name = "DAYS")]
    pub patrol_days: Option<f64>,
    /// Most Redis clients at once [default: 10000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_clients: Option<u32>,
    /// TLS for Redis clients: the server's certificate chain, PEM
    #[arg(long, value_name = "FILE")]
    pub redis_tls_cert: Option<PathBuf>,
    /// The certificate's private key, PEM
    #[arg(long, value_name = "FILE")]
    pub redis_tls_key: Option<PathBuf>,
    /// Certificates of the authorities whose clients may connect, PEM; asks clients for a certificate
    #[arg(long, value_name = "FILE")]
    pub redis_tls_ca: Option<PathBuf>,
    /// Log at least this much to stderr: error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", env = "PUMICE_LOG")]
    pub log: Option<String>,
}

const FORMAT_EXAMPLES: &str = "\
Examples:
  pumice format /dev/nvme1n1                    a whole disk
  pumice format ./drive1 --size 100GiB          a sparse file
  pumice format ./drive1 --force                again, losing what it held

A disk whose first sectors were written by something else is refused, too: --force overrides.";

#[derive(Debug, Args)]
pub struct FormatArgs {
    /// Path to a file or block device
    #[arg(value_hint = ValueHint::FilePath)]
    pub device: String,
    /// Size of a file that is still to be made, or is to grow, in powers of 1,024: 1GB is 1GiB; devices are used as a whole
    /// [default: 64GiB or what fits]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub size: Option<u64>,
    /// Unit of writing and erasing [default: 8MiB; less for drives below 2GiB, more above 256GiB]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub segment: Option<u64>,
    /// Channels to spread segments over (a file or disk has one queue: 1 is right unless you study placement)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub channels: Option<u16>,
    /// Hash partitions of the keys, each with its own LSM tree
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub slices: Option<u16>,
    /// Write the whole drive once: takes as long as the disk needs, and spares the first writes half their speed
    #[arg(long)]
    pub prewrite: bool,
    /// Overwrite whatever is there
    #[arg(long)]
    pub force: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

const INFO_EXAMPLES: &str = "\
Examples:
  pumice info ./pumice-data/drive0              a drive that nobody serves now
  pumice info 127.0.0.1:6379                    a running server, by its Redis address
  pumice info --data ./pumice-data --json       a running server, through its control socket";

#[derive(Debug, Args)]
pub struct InfoArgs {
    /// A drive (path) or a server (host:port or unix:PATH)
    #[arg(required_unless_present_any = ["data", "server"], value_name = "DEVICE|ADDR", value_hint = ValueHint::FilePath)]
    pub target: Option<String>,
    /// The running server that keeps its control socket in DIR
    #[arg(long, value_name = "DIR", conflicts_with = "target", group = "running")]
    pub data: Option<PathBuf>,
    /// The running server at ADDR
    #[arg(long, value_name = "ADDR", conflicts_with_all = ["target", "data"], group = "running")]
    pub server: Option<String>,
    /// Ask that server (--data or --server) only for its health, as /health says it: exit 0 if it takes commands, ready or degraded, else 1 (a
    /// supervisor's check)
    // `requires` alone says nothing where what is required conflicts with what was given.
    #[arg(long, requires = "running", conflicts_with = "target")]
    pub health: bool,
    /// Password of the server
    #[arg(long, env = "PUMICE_PASSWORD", hide_env_values = true)]
    pub password: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

const CHECK_EXAMPLES: &str = "\
Examples:
  pumice check ./pumice-data/drive0
  pumice check /dev/nvme1n1 --json > report.json

The drive must not be served meanwhile; nothing is written to it.";

#[derive(Debug, Args)]
pub struct CheckArgs {
    /// A drive: a path to a file or block device
    #[arg(value_hint = ValueHint::FilePath)]
    pub device: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

const BENCH_EXAMPLES: &str = "\
Workloads:
  s-set s-get r-set r-get r-mixed   LightStore's five: sequential and random SET and GET, and 9 GETs to 1 SET
  ycsb-a … ycsb-f                   YCSB's core workloads
  load                              fill all keys once, in key order
  lightstore, ycsb                  all of a family

Examples:
  pumice bench lightstore --device ./bench-drive --size 20GiB --keys 1M --memory 1GiB
  pumice bench ycsb-a ycsb-c --redis 127.0.0.1:6379 --connections 50 --distribution zipfian
  pumice bench r-get --redis 127.0.0.1:6379 --pipeline 16 --value-size 1KiB --seconds 30 --json

In process the benchmark is the only user of the drive. Without --device it uses ./pumice-data/bench.
Loading is part of s-set, load and of every YCSB run whose keys are not there yet.";

/// How keys are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Distribution {
    /// Every key alike
    Uniform,
    /// A few keys most of the time, scattered over the key space (YCSB: theta 0.99)
    Zipfian,
    /// The newest keys most of the time (YCSB D)
    Latest,
}

#[derive(Debug, Args)]
pub struct BenchArgs {
    /// What to run, in order [default: lightstore]
    #[arg(value_name = "WORKLOAD")]
    pub workloads: Vec<String>,
    /// In process: the drive to use
    #[arg(long, value_name = "SPEC", conflicts_with = "redis", value_hint = ValueHint::FilePath)]
    pub device: Vec<String>,
    /// Through the network: a Redis server's address (Pumice or any other)
    #[arg(long, value_name = "ADDR")]
    pub redis: Option<String>,
    /// Password of that server
    #[arg(long, env = "PUMICE_PASSWORD", hide_env_values = true)]
    pub password: Option<String>,
    /// Size of a drive file that is still to be made, in powers of 1,024: 1GB is 1GiB
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub size: Option<u64>,
    /// Format the drive first, losing what it held
    #[arg(long)]
    pub force: bool,
    /// Use the drive with the keys that an earlier run left on it; one that holds anything else is refused
    #[arg(long, conflicts_with = "force")]
    pub reuse: bool,
    /// Number of keys (k, M and G mean thousands)
    #[arg(long, value_name = "N", value_parser = count, default_value = "100k")]
    pub keys: u64,
    /// Operations per workload [default: as many as keys; load and s-set: once over all keys]
    #[arg(long, value_name = "N", value_parser = count)]
    pub ops: Option<u64>,
    /// Stop each workload after this long, whatever is left of its operations; load and s-set go over all keys
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub seconds: Option<f64>,
    /// Value size in bytes
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "8KiB")]
    pub value_size: u64,
    /// How keys are drawn [default: uniform; YCSB: as each workload says]
    #[arg(long, value_enum)]
    pub distribution: Option<Distribution>,
    /// In process: operations in flight
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub depth: u32,
    /// Through the network: connections
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub connections: u32,
    /// Through the network: commands sent before the first reply is awaited
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub pipeline: u32,
    /// Threads that issue the load
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub cores: u16,
    /// In process: the store's memory
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "1GiB")]
    pub memory: u64,
    /// In process: when a write counts as done
    #[arg(long, value_enum, default_value = "always")]
    pub durability: DurabilityArg,
    /// Random seed
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// The simulator's commands.
#[derive(Debug, Subcommand)]
pub enum SimCommand {
    /// What can be run
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Run one world; the same seed gives the same run
    #[command(after_help = "Examples:\n  pumice sim run kv --seed 42\n  pumice sim run kv --seeds 1000")]
    Run(SimRunArgs),
}

#[derive(Debug, Args)]
pub struct SimRunArgs {
    /// A world's name, see `pumice sim list`
    pub name: String,
    /// The first seed
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// How many seeds to run from there
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub seeds: u64,
    /// Operations per run [default: the world's own]
    #[arg(long)]
    pub ops: Option<u64>,
    /// Run the one case of this number: the power cut at this write, erase or sync; kv-flip: this flip; sdf: this section
    #[arg(long)]
    pub cut: Option<u64>,
    /// Go on after a failing seed
    #[arg(long)]
    pub keep_going: bool,
    /// sdf: write plots into this directory
    #[arg(long, value_name = "DIR")]
    pub plot: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// The command line as completions show it: with names that are looked up, and refused, in their own places.
pub fn completed() -> clap::Command {
    let worlds = pumice_sim::list().into_iter().map(|world| PossibleValue::new(world.name).help(world.about));
    let worlds = PossibleValuesParser::new(worlds);
    let workloads = PossibleValuesParser::new(Workload::names());
    Cli::command()
        .mut_subcommand("sim", |sim| {
            sim.mut_subcommand("run", |run| run.mut_arg("name", |name| name.value_parser(worlds)))
        })
        .mut_subcommand("bench", |bench| bench.mut_arg("workloads", |arg| arg.value_parser(workloads)))
}

fn seconds(text: &str) -> Result<f64, String> {
    const SECONDS_MAX: f64 = 1e9;
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= SECONDS_MAX => Ok(seconds),
        _ => Err(format!("'{text}' is no time: write seconds above 0, such as 0.5 or 30")),
    }
}

fn size(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|e| e.to_string())
}

/// A count as people write it: `100k`, `2M`, `100000`. Decimal, unlike sizes.
pub fn count(text: &str) -> Result<u64, String> {
    let wrong = || format!("'{text}' is not a count: write 5000, 100k, 2M or 1G");
    let (digits, unit) = match text.char_indices().find(|(_, c)| !c.is_ascii_digit() && *c != '_') {
        Some((at, _)) => text.split_at(at),
        None => (text, ""),
    };
    let number: u64 = digits.replace('_', "").parse().map_err(|_| wrong())?;
    let factor = match unit {
        "" => 1,
        "k" | "K" => 1_000,
        "m" | "M" => 1_000_000,
        "g" | "G" => 1_000_000_000,
        _ => return Err(wrong()),
    };
    number.checked_mul(factor).ok_or_else(wrong)
}
