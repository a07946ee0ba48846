//! Log lines for people, on stderr: time, level, what happened. Results and the `ready` line go to stdout.

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
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(colours)
        .with_target(false)
        .try_init()
        .map_err(|e| Stop::doing("logging", e))
}
