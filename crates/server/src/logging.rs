//! Log lines for people, on stderr: time, level, what happened. Results and the `ready` line go to stdout.

use tracing_subscriber::filter::EnvFilter;

use crate::exit::Stop;

/// Starts logging at `level` (or with tracing's filter syntax: `info,pumice_kv=debug`).
pub fn start(level: &str) -> Result<(), Stop> {
    let filter = EnvFilter::try_new(level).map_err(|e| Stop::doing(format!("--log {level}"), e))?;
    let colours = std::io::IsTerminal::is_terminal(&std::io::stderr());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(colours)
        .with_target(false)
        .try_init()
        .map_err(|e| Stop::doing("logging", e))
}
