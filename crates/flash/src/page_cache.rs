//! Durable writes to files without direct I/O, which lie in the host's page cache.
//!
//! The system tells of a write-back that failed once, whoever of the file's users waits at that time for something to be
//! durable, and keeps the pages as if they had been written. So one waits at a time, and after a failure nobody is told that
//! anything is durable: whoever opens the file anew finds what there is.
//!
//! A durable write is a write and a sync here. Where there is no room the first of them fails, nothing is lost, and it can be tried
//! again. Rejected: RWF_DSYNC, which does not say in which of the two it failed.

use std::io;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use pumice_base::sync::lock;
use pumice_reactor::sync::Semaphore;
use pumice_reactor::{File, WriteSync, spawn};

/// See the module's text.
pub(crate) struct PageCache {
    turn: Semaphore,
    /// What failed.
    failure: Mutex<Option<Arc<str>>>,
}

impl PageCache {
    pub(crate) fn new() -> Self {
        Self { turn: Semaphore::new(1), failure: Mutex::default() }
    }

    pub(crate) async fn write_durable(
        self: &Arc<Self>,
        file: &File,
        data: Bytes,
        offset: u64,
    ) -> io::Result<()> {
        file.write_at(data, offset, WriteSync::Cached).await?;
        self.sync(file).await
    }

    /// Ends and is taken note of though nobody waits for it any more.
    pub(crate) async fn sync(self: &Arc<Self>, file: &File) -> io::Result<()> {
        let (cache, file) = (Arc::clone(self), file.clone());
        let synced = spawn(async move { cache.sync_alone(&file).await }).await;
        synced.unwrap_or_else(|_| Err(io::Error::other("the core is closing")))
    }

    async fn sync_alone(&self, file: &File) -> io::Result<()> {
        let _turn = self.turn.acquire(1).await;
        self.check()?;
        if let Err(error) = file.sync_data().await {
            *lock(&self.failure) = Some(error.to_string().into());
        }
        self.check()
    }

    fn check(&self) -> io::Result<()> {
        match &*lock(&self.failure) {
            // Not the system's own number: what is lost is not mended by trying again.
            Some(why) => Err(io::Error::other(format!(
                "the page cache lost what was to be written ({why}): mend the file system, and open the file again"
            ))),
            None => Ok(()),
        }
    }
}
