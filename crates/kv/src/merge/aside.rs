//! Key tables that merging leaves alone, because part of them does not read.
//!
//! 1. A merge that meets such a table ends there: what it wrote dies, what it read stays as it was. Nothing of the table is
//!    dropped: a look-up that needs the part gets the error of its place, all others their keys.
//! 2. The table is *set aside*: the log names it once, statistics count it, `check` lists it. The run that holds it is
//!    barred from merging, and parts its slice's runs into stretches, each of which is merged by itself (`plan`): so runs do
//!    not pile up behind it, and what is overwritten later is still won back.
//! 3. After a pause it may be merged again, for what does not read at one time may at another: after 10 s at first, after
//!    twice as long each time that it fails, up to 6 h. Each of these tries costs at most one step.
//! 4. It ends when the table is merged after all, or when all its keys are retired: then a merge passes over what does not
//!    read. What is in memory alone is forgotten when the store is closed: the next opening finds out anew.

use std::collections::BTreeMap;
use std::time::Duration;

use pumice_base::sync::lock;
use pumice_reactor::{Nanos, now};

use crate::errors::StoreError;
use crate::store::Inner;
use crate::table::version::Table;

/// The first pause before a table may be merged again, and the longest.
const PAUSE_MIN: Duration = Duration::from_secs(10);
const PAUSE_MAX: Duration = Duration::from_secs(6 * 3600);

/// The tables set aside, by number: at most as many as there are.
#[derive(Debug, Default)]
pub struct Aside(BTreeMap<u64, Barred>);

#[derive(Debug)]
struct Barred {
    since: Nanos,
    pause: Duration,
}

impl Aside {
    /// Whether a table is among them, be its pause over or not.
    pub fn contains(&self, table: u64) -> bool {
        self.0.contains_key(&table)
    }
}

impl Inner {
    /// Bars a table that did not read from merging for a while.
    pub fn set_aside(&self, table: &Table, error: &StoreError) {
        let (meta, mut known) = (&table.meta, Vec::new());
        {
            let manifest = lock(&self.manifest);
            let is_there = |other: &Table| other.meta.id == meta.id && other.meta.ptr == meta.ptr;
            let version = &manifest.versions[usize::from(meta.slice.0)];
            if !version.tables().any(|other| is_there(other)) {
                // It is elsewhere by now, or gone: that is not damage.
                return;
            }
            known.extend(manifest.versions.iter().flat_map(|version| version.tables()).map(|it| it.meta.id));
        }
        known.sort_unstable();
        let mut aside = lock(&self.merges.aside);
        aside.0.retain(|id, _| known.binary_search(id).is_ok());
        if let Some(barred) = aside.0.get_mut(&meta.id) {
            (barred.since, barred.pause) = (now(), (barred.pause * 2).min(PAUSE_MAX));
            tracing::debug!(table = meta.id, slice = meta.slice.0, %error, "a key table still does not read");
            return;
        }
        aside.0.insert(meta.id, Barred { since: now(), pause: PAUSE_MIN });
        tracing::error!(
            table = meta.id,
            slice = meta.slice.0,
            %error,
            "merging leaves a key table alone of which part does not read; keys in that part are answered with an error"
        );
    }

    /// Tables that are not to be merged now, by number.
    pub fn barred_tables(&self) -> Vec<u64> {
        let aside = lock(&self.merges.aside);
        aside
            .0
            .iter()
            .filter(|(_, barred)| barred.since.elapsed() < barred.pause)
            .map(|(id, _)| *id)
            .collect()
    }
}
