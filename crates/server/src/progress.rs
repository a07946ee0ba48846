//! A progress bar on stderr for what takes long; nothing at all when nobody watches.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::exit;

/// A bar that counts to a total which may become known late.
#[derive(Clone)]
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A bar called `what`, in bytes when `bytes`.
    pub fn new(what: &str, bytes: bool) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10));
        let template = if bytes {
            "{msg:>10} [{wide_bar}] {bytes}/{total_bytes} {bytes_per_sec} {eta}"
        } else {
            "{msg:>10} [{wide_bar}] {pos}/{len} {eta}"
        };
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style.progress_chars("=> "));
        bar.set_message(what.to_string());
        Self { bar }
    }

    /// Moves to `done` of `total`.
    pub fn set(&self, done: u64, total: u64) {
        if self.bar.length() != Some(total) {
            self.bar.set_length(total);
        }
        self.bar.set_position(done);
    }

    /// Writes lines to stderr above the bar, whoever watches.
    pub fn say(&self, text: &str) {
        self.bar.suspend(|| exit::say(text));
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
