//! How commands end: 0 done, 1 the answer is no or damaged, 2 could not run. Errors go to stderr.

use std::fmt::Display;
use std::io::Write;
use std::process::ExitCode;

/// Why a command did not end with 0.
#[derive(Debug)]
pub enum Stop {
    /// The question was answered: no, or damaged.
    No(String),
    /// The command could not run.
    CouldNotRun(String),
}

/// What commands return.
pub type Outcome = Result<(), Stop>;

impl Stop {
    /// Could not run, because of `error`.
    pub fn because(error: impl Display) -> Self {
        Self::CouldNotRun(error.to_string())
    }

    /// Could not run: `what` failed with `error`.
    pub fn doing(what: impl Display, error: impl Display) -> Self {
        Self::CouldNotRun(format!("{what}: {error}"))
    }
}

/// A line on stderr; where that takes none, nobody reads it.
pub fn say(text: impl Display) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Prints why and chooses the exit code.
pub fn finish(outcome: Outcome) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Stop::No(why)) => {
            if !why.is_empty() {
                say(format_args!("pumice: {why}"));
            }
            ExitCode::from(1)
        }
        Err(Stop::CouldNotRun(why)) => {
            say(format_args!("pumice: {why}"));
            ExitCode::from(2)
        }
    }
}
