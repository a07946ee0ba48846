//! Collections under construction: elements that no head names yet.
//!
//! 1. STORE commands and COPY write a long collection in several batches under a new id. The first of them also
//!    stores a *note*: which id, of which space, lies where.
//! 2. The last batch stores the head and removes the note. Both are one batch: whoever finds the note finds no head.
//! 3. A builder that is dropped before that, because of an error or because its client is gone, retires the elements.
//!    After a crash, opening the drives does it for every note that is found.
//!
//! Collections that fit into one batch need no note.

use std::ops::Bound;
use std::sync::Arc;

use pumice_kv::{Direction, SliceId, SliceSet, Want};
use pumice_node::{Node, NodeBatch, Place};

use super::change::{Change, StringValue};
use super::head::Collection;
use super::key::{RawKey, SYSTEM_SPACE, Space, after_prefix, collection_prefix, head_prefix};
use crate::server::Server;

const NAME: &[u8] = b"building";

fn notes_prefix() -> RawKey {
    let mut key = RawKey::from_slice(&head_prefix(SYSTEM_SPACE));
    key.extend_from_slice(NAME);
    key
}

/// All notes of a drive lie in one slice: opening looks at one place.
fn note_place(elements: Place) -> Place {
    Place { drive: elements.drive, slice: SliceId(0) }
}

/// What is under construction.
#[derive(Clone, Copy, Debug)]
pub struct Site {
    space: Space,
    id: u64,
    elements: Place,
}

impl Site {
    /// The key of its note.
    pub fn key(&self) -> RawKey {
        let mut key = notes_prefix();
        key.extend_from_slice(&self.space.0.to_be_bytes());
        key.extend_from_slice(&self.id.to_be_bytes());
        key
    }

    /// The value of its note.
    pub fn value(&self) -> [u8; 2] {
        self.elements.slice.0.to_le_bytes()
    }

    /// Reads a note; `None` for anything else.
    pub fn decode(drive: u16, key: &[u8], value: &[u8]) -> Option<Self> {
        let rest = key.strip_prefix(&notes_prefix()[..])?;
        let (space, id) = rest.split_first_chunk::<4>()?;
        let (space, id) = (Space(u32::from_be_bytes(*space)), u64::from_be_bytes(id.try_into().ok()?));
        let slice = SliceId(u16::from_le_bytes(value.try_into().ok()?));
        Some(Self { space, id, elements: Place { drive, slice } })
    }

    /// Gives the elements up.
    fn abandon(&self, batch: &mut NodeBatch) {
        batch.retire(self.elements, &collection_prefix(self.space, self.id));
        batch.delete(note_place(self.elements), &self.key());
    }
}

/// A collection that is written in several batches; finish it, or its elements are given up.
pub struct Building {
    server: Arc<Server>,
    site: Option<Site>,
}

impl Building {
    /// Nothing is written yet.
    pub fn new(server: &Arc<Server>) -> Self {
        Self { server: server.clone(), site: None }
    }

    /// Call it before each batch but the last: the first one gets the note.
    pub fn note(&mut self, change: &mut Change, collection: &Collection) {
        // A transaction is one batch, however long.
        if self.site.is_some() || change.in_transaction {
            return;
        }
        let (space, elements) = (collection.key.space(), collection.elements);
        let site = Site { space, id: collection.id, elements };
        change.put(note_place(elements), &site.key(), 0, 0, &StringValue::Bytes(&site.value()));
        self.site = Some(site);
    }

    /// Removes the note in the batch that stores the head. Once that batch is written: [`Building::done`].
    pub fn finish(&self, change: &mut Change) {
        if let Some(site) = &self.site {
            change.delete(note_place(site.elements), &site.key());
        }
    }

    /// The head is stored.
    pub fn done(mut self) {
        self.site = None;
    }
}

impl Drop for Building {
    fn drop(&mut self) {
        let Some(site) = self.site.take() else { return };
        // When the server stops, the next opening does it.
        if self.server.stopping.is_set() {
            return;
        }
        let server = self.server.clone();
        pumice_reactor::spawn(async move {
            // The batch with the note may have been refused.
            let note = server.node.get(note_place(site.elements), &site.key()).await;
            if !matches!(note, Ok(Some(_))) {
                return;
            }
            let mut batch = NodeBatch::new();
            site.abandon(&mut batch);
            if let Err(error) = server.node.write_ready(&batch).await {
                tracing::warn!(%error, "an unfinished collection takes space until the next start");
            }
        });
    }
}

/// Gives up what was under construction when the drives were closed or lost power. A drive that takes no writes, or whose notes do not
/// read, keeps it.
pub(crate) async fn abandon_all(node: &Node) {
    let prefix = notes_prefix();
    let end = after_prefix(&prefix).map_or(Bound::Unbounded, |end| Bound::Excluded(end.to_vec().into()));
    for drive in 0..node.drive_count() {
        let store = node.store(drive);
        let snapshot = store.snapshot_of(SliceId(0));
        let lower = Bound::Included(prefix.to_vec().into());
        let only = SliceSet::One(SliceId(0));
        let mut notes = store.scan(&snapshot, only, lower, end.clone(), Direction::Forward, Want::Values);
        let (mut batch, mut unfinished) = (NodeBatch::new(), 0);
        loop {
            let (key, entry) = match notes.next().await {
                Ok(Some(note)) => note,
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!(drive = %node.name(drive), %error, "notes of unfinished collections do not read: these take space");
                    break;
                }
            };
            let site = Site::decode(drive, &key, &entry.value);
            match site.filter(|site| node.places().any(|place| place == site.elements)) {
                Some(site) => {
                    site.abandon(&mut batch);
                    unfinished += 1;
                }
                None => {
                    tracing::warn!(drive = %node.name(drive), "a note of an unfinished collection does not decode")
                }
            }
        }
        match node.write_ready(&batch).await {
            Ok(_) if unfinished > 0 => {
                tracing::info!(drive = %node.name(drive), unfinished, "collections that were not finished are removed");
            }
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(drive = %node.name(drive), %error, "unfinished collections take space until the next start");
            }
        }
    }
}
