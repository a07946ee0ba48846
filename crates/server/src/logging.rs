//! Log lines for people, on stderr: time (but for the journal, which has it), level, what happened. Results and the `ready` line go to stdout.

use tracing_subscriber::filter::EnvFilter;

use crate::exit::Stop;

/// Reads `level`: a level, or tracing's filter syntax (`info,pumice_kv=debug`). A word that is no level would be taken for a
/// module's name, and all others be silent: it is refused.
pub fn check(level: &str) -> Result<EnvFilter, Stop> {
    let is_known =
        |word: &str| word.contains('=') || word.parse::<tracing_subscriber::filter::LevelFilter>().is_ok();
    if let Some(word) = level.split(',').find(|word| !is_known(word.trim())) {
        return Err(Stop::because(format!(
            "log level '{word}' is none: use error, warn, info, debug or trace, or name modules, as in info,pumice_kv=debug"
        )));
    }
    EnvFilter::try_new(level).map_err(|e| Stop::doing(format!("log level '{level}'"), e))
}

/// Starts logging as `level` says.
pub fn start(level: &str) -> Result<(), Stop> {
    let filter = check(level)?;
    let colours = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(colours)
        // A line that cannot be written (a full disk, a terminal that is gone) is no reason to end: saying so would panic.
        .log_internal_errors(false)
        .with_target(false);
    let started = if is_journal() { log.without_time().try_init() } else { log.try_init() };
    started.map_err(|e| Stop::doing("logging", e))
}

/// Whether stderr is the journal, which puts times before lines by itself: `JOURNAL_STREAM` names its device and inode, as
/// systemd.exec(5) says. Whoever inherits the variable and writes elsewhere is told apart by that.
fn is_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    rustix::fs::fstat(std::io::stderr())
        .is_ok_and(|found| stream == format!("{}:{}", found.st_dev, found.st_ino))
}
