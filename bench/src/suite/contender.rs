//! Servers measured in turns: all of them run, and all but the one whose turn it is are stopped (SIGSTOP), so that a moment
//! in which the machine is slow meets them alike, and nobody's background work is in another's figures.

use std::path::{Path, PathBuf};

use super::{Context, remove};
use crate::Result;
use crate::net::server::{PumiceOptions, Server, ServerKind};

/// Many times the data. All contenders' files lie on one disk, and redis's logs grow without end.
const DRIVE_BYTES: u64 = 8 << 30;

/// A server as it is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contender {
    pub kind: ServerKind,
    /// `pumice serve --cores`; redis-server has one thread for commands.
    pub cores: usize,
}

impl std::fmt::Display for Contender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.kind, self.cores) {
            (ServerKind::Pumice, 1) => f.write_str("Pumice, 1 core"),
            (ServerKind::Pumice, cores) => write!(f, "Pumice, {cores} cores"),
            (kind, _) => kind.fmt(f),
        }
    }
}

impl Contender {
    /// Pumice on one core, as the peer's one thread, and on all of them, as `pumice serve` starts; nobody without a binary.
    pub fn pumices(context: &Context) -> Vec<Contender> {
        if context.pumice.is_none() {
            return Vec::new();
        }
        let all = std::thread::available_parallelism().map_or(1, usize::from);
        let mut cores = vec![1, all];
        cores.dedup();
        cores.into_iter().map(|cores| Contender { kind: ServerKind::Pumice, cores }).collect()
    }

    /// Starts it with its data in `dir`.
    pub fn start(&self, context: &Context, dir: &Path, memory_bytes: u64) -> Result<Server> {
        let binary = context.pumice.clone().unwrap_or_default();
        let drive_bytes = Some(DRIVE_BYTES);
        let options =
            PumiceOptions { binary, memory_bytes, cores: self.cores, drive_bytes, more: Vec::new() };
        Server::start(self.kind, dir, &options)
    }
}

/// A contender's server.
pub struct Turn {
    pub contender: Contender,
    pub server: Server,
    pub dir: PathBuf,
}

impl Turn {
    /// Starts it in an emptied folder of its own.
    pub fn start(context: &Context, contender: Contender, number: usize, memory_bytes: u64) -> Result<Turn> {
        let dir = context.fresh_dir(&format!("contender{number}"))?;
        let server = contender.start(context, &dir, memory_bytes)?;
        Ok(Turn { contender, server, dir })
    }

    /// Runs `work` while the server runs; it is stopped before and after.
    pub fn take<T>(&self, work: impl FnOnce(&Turn) -> Result<T>) -> Result<T> {
        self.server.resume();
        let done = work(self);
        self.server.pause();
        done
    }

    /// Ends the server and removes its data.
    pub fn end(self) -> Result<()> {
        self.server.resume();
        self.server.stop()?;
        remove(&self.dir);
        Ok(())
    }
}
