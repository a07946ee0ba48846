//! A new collection that takes a key over when it is complete: SUNIONSTORE and relatives, SORT … STORE.
//!
//! Its elements are written under an id that no head names, in pieces when they are many, so nobody sees them;
//! one last batch stores the head and removes what the key held before. Memory stays bounded whatever the size.
//! What is left by a crash, an error or a client that is gone before that batch is given up (`keyspace/building.rs`).

use bytes::Bytes;

use crate::context::Ctx;
use crate::errors::{CommandResult, Failure};
use crate::keyspace::{Building, Change, Collection, Type};

use super::collection::{MEMBERS, commit_piece, is_piece, note_sizes};
use super::zset::{Form, is_negative_zero};
use super::{set, zset};

/// A collection under construction. Hold the latch of its key until it is finished.
pub(super) struct Builder {
    change: Change,
    collection: Collection,
    building: Building,
    form: Form,
    /// Members of a sorted set that were written with a zero and get its sign back if the whole turns out to be large; `None`:
    /// none does. As many and as long as the compact encoding takes.
    unsigned: Option<Vec<Bytes>>,
}

impl Builder {
    /// An empty collection for `key`.
    pub(super) fn new(ctx: &mut Ctx, key: &[u8], kind: Type) -> Self {
        let key = ctx.key(key);
        let collection = ctx.new_collection(key, kind);
        let form = Form::of(&collection);
        Self { change: ctx.change(), collection, building: Building::new(&ctx.server), form, unsigned: None }
    }

    /// It is made for so many members, or becomes what it is as they come.
    pub(super) fn made_for(mut self, members: Option<u64>) -> Self {
        self.form.made_for(members.unwrap_or(0));
        self
    }

    /// What it is shows in the end only (t_zset.c, zsetConvertToListpackIfNeeded).
    pub(super) fn settled_at_the_end(mut self) -> Self {
        self.unsigned = Some(Vec::new());
        self
    }

    /// When the finished key expires, in Unix milliseconds; 0 = never.
    pub(super) fn set_expiry(&mut self, expire_ms: u64) {
        self.collection.expire_ms = expire_ms;
    }

    /// Adds a set's member, which must be new.
    pub(super) async fn add_member(&mut self, ctx: &mut Ctx, member: &[u8]) -> CommandResult {
        set::put(&mut self.change, &mut self.collection, member);
        self.piece(ctx).await
    }

    /// Adds a sorted set's member, which must be new.
    pub(super) async fn add_scored(&mut self, ctx: &mut Ctx, member: &[u8], score: f64) -> CommandResult {
        let kept = self.form.add(member, score);
        zset::put(&mut self.change, &mut self.collection, member, None, kept);
        match &mut self.unsigned {
            Some(unsigned) if self.form.is_large() => {
                for member in unsigned.drain(..) {
                    zset::put(&mut self.change, &mut self.collection, &member, Some(0.0), -0.0);
                }
            }
            Some(unsigned) if is_negative_zero(score) => unsigned.push(Bytes::copy_from_slice(member)),
            _ => {}
        }
        self.piece(ctx).await
    }

    /// Adds a list's next element.
    pub(super) async fn push(&mut self, ctx: &mut Ctx, value: &[u8]) -> CommandResult {
        let list = &mut self.collection;
        note_sizes(list, 0, value.len());
        let field = crate::keyspace::encode_index(list.end);
        self.change.add_element(list, MEMBERS, &field, value);
        list.end += 1;
        list.count += 1;
        self.piece(ctx).await
    }

    async fn piece(&mut self, ctx: &mut Ctx) -> CommandResult {
        if !is_piece(ctx, &self.change)? {
            return Ok(());
        }
        self.building.note(&mut self.change, &self.collection);
        commit_piece(ctx, &mut self.change).await
    }

    /// Puts the collection in the place of what the key held; an empty one just removes it. Its size.
    pub(super) async fn finish(mut self, ctx: &mut Ctx) -> Result<u64, Failure> {
        let key = self.collection.key.clone();
        ctx.erase(&mut self.change, &key).await?;
        let count = self.collection.count;
        if count > 0 {
            self.change.put_collection(&mut self.collection, true);
        }
        self.building.finish(&mut self.change);
        ctx.commit(self.change).await?;
        self.building.done();
        Ok(count)
    }
}
