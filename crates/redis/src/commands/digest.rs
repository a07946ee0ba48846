//! DEBUG DIGEST and DIGEST-VALUE: a number that is the same for the same data, whatever the order in which it came.
//! The scheme is Redis's (debug.c, xorObjectDigest and computeDatasetDigest), so that a Redis server and this one that
//! hold the same answer the same: unordered things are joined by XOR of their SHA-1s, ordered ones by hashing the digest
//! so far together with what follows.

use std::fmt::Write;
use std::ops::Bound;

use pumice_kv::{Direction, Entry, Want};
use sha1::{Digest as _, Sha1};

use super::collection::{MEMBERS, member_of};
use super::list;
use super::zset::decode_stored_score;
use crate::context::Ctx;
use crate::errors::{CommandResult, Failure};
use crate::keyspace::{Collection, DATABASES, Head, HeadKey, Type};
use crate::number::format_double;

/// Bytes of a SHA-1.
const DIGEST_BYTES: usize = 20;

/// The digest of some data.
#[derive(Clone, Copy, Default)]
pub(super) struct Digest([u8; DIGEST_BYTES]);

impl Digest {
    fn xor(&mut self, sha1: [u8; DIGEST_BYTES]) {
        self.0.iter_mut().zip(sha1).for_each(|(byte, other)| *byte ^= other);
    }

    /// Joins what has no order.
    fn join(&mut self, bytes: &[u8]) {
        self.xor(Sha1::digest(bytes).into());
    }

    /// Adds what has its place in an order.
    fn follow(&mut self, bytes: &[u8]) {
        self.follow_sha1(Sha1::digest(bytes).into());
    }

    fn follow_sha1(&mut self, sha1: [u8; DIGEST_BYTES]) {
        self.xor(sha1);
        self.0 = Sha1::digest(self.0).into();
    }

    pub(super) fn hex(&self) -> String {
        self.0.iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    }
}

/// Redis's numbers of the types.
fn type_number(kind: Type) -> u32 {
    match kind {
        Type::String => 0,
        Type::List => 1,
        Type::Set => 2,
        Type::Zset => 3,
        Type::Hash => 4,
    }
}

impl Ctx {
    /// The digest of everything. Hold all latches. Keys whose time is over are not there.
    pub(super) async fn digest(&mut self) -> Result<Digest, Failure> {
        let mut all = Digest::default();
        for database in 0..DATABASES {
            let space = self.space_of(database);
            let (low, high) = (Bound::Unbounded, Bound::Unbounded);
            let mut keys = self.scan_keys(space, low, high, Direction::Forward, Want::Keys);
            let mut has_keys = false;
            while let Some((user_key, _)) = keys.next(self).await? {
                if !std::mem::replace(&mut has_keys, true) {
                    all.follow(&(database as u32).to_be_bytes());
                }
                let mut one = Digest::default();
                one.follow(&user_key);
                let key = self.key_in(database, &user_key);
                self.digest_value(&key, &mut one).await?;
                all.join(&one.0);
            }
        }
        Ok(all)
    }

    /// Adds the value of `key` to `digest`, if there is one. Hold its latch.
    pub(super) async fn digest_value(&mut self, key: &HeadKey, digest: &mut Digest) -> CommandResult {
        let Some(head) = self.head(key).await? else { return Ok(()) };
        digest.follow(&type_number(head.kind()).to_be_bytes());
        let expires = head.expire_ms() != 0;
        match head {
            Head::String(string) => {
                let sha1 = self.sha1_of(key, &string.entry).await?;
                digest.follow_sha1(sha1);
            }
            Head::Collection(collection) => self.digest_elements(collection, digest).await?,
        }
        if expires {
            digest.join(b"!!expire!!");
        }
        Ok(())
    }

    /// The SHA-1 of a string, piece by piece where it is long.
    async fn sha1_of(&mut self, key: &HeadKey, entry: &Entry) -> Result<[u8; DIGEST_BYTES], Failure> {
        let Some(large) = &entry.large else { return Ok(Sha1::digest(&entry.value).into()) };
        let mut sha1 = Sha1::default();
        let mut pieces = self.server.node.read_large(key.place, large, 0..large.len());
        while let Some(piece) = pieces
            .next()
            .await
            .map_err(|e| crate::keyspace::large_failure(&self.server.node, key.place, &e))?
        {
            sha1.update(&piece);
        }
        Ok(sha1.finalize().into())
    }

    async fn digest_elements(&mut self, collection: Collection, digest: &mut Digest) -> CommandResult {
        if collection.kind == Type::List {
            let list = list::whole(self, collection).await?;
            let mut scan = list::read(self, &list, list.first, list.end, Direction::Forward);
            while let Some((_, value)) = scan.next(self).await? {
                digest.follow(&value);
            }
            return Ok(());
        }
        let (low, high) = (Bound::Unbounded, Bound::Unbounded);
        let mut scan = self.scan_elements(&collection, MEMBERS, low, high, Direction::Forward, Want::Values);
        while let Some((field, value)) = scan.next(self).await? {
            let name = member_of(&field);
            if collection.kind == Type::Set {
                digest.join(&name);
                continue;
            }
            let mut element = Digest::default();
            element.follow(&name);
            match collection.kind {
                Type::Zset => element.follow(format_double(decode_stored_score(&value)?).as_bytes()),
                _ => element.follow(&value),
            }
            digest.join(&element.0);
        }
        Ok(())
    }
}
