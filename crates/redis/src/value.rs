//! String values put together from pieces: in memory while short, through the large-value writer when long.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use pumice_kv::{Entry, LargeRef, VALUE_BYTES_MAX};
use pumice_node::Place;

use crate::context::Ctx;
use crate::errors::Failure;
use crate::keyspace::{HeadKey, StringValue, large_refused, store_failure};

/// A value ready to be stored.
pub enum Value<'a> {
    /// Bytes of an argument.
    Borrowed(&'a [u8]),
    /// Bytes.
    Owned(Bytes),
    /// Pieces on flash, written for the key they are stored under.
    Large(Arc<LargeRef>),
}

impl Value<'_> {
    /// The value as [`crate::keyspace::Change::put_string`] takes it.
    pub fn as_ref(&self) -> StringValue<'_> {
        match self {
            Self::Borrowed(bytes) => StringValue::Bytes(bytes),
            Self::Owned(bytes) => StringValue::Bytes(bytes),
            Self::Large(large) => StringValue::Large(large),
        }
    }
}

/// A part of a value to be put together.
#[derive(Clone, Debug)]
pub enum Source {
    /// Bytes.
    Bytes(Bytes),
    /// A range of a large value that lies at a place.
    Large(Place, Arc<LargeRef>, Range<u64>),
    /// Zero bytes.
    Zeros(u64),
}

impl Source {
    /// All of a stored string.
    pub fn of(place: Place, entry: &Entry) -> Self {
        Self::part(place, entry, 0..entry.value_len())
    }

    /// A range of a stored string, within its length.
    pub fn part(place: Place, entry: &Entry, range: Range<u64>) -> Self {
        match &entry.large {
            Some(large) => Self::Large(place, large.clone(), range),
            None => Self::Bytes(entry.value.slice(range.start as usize..range.end as usize)),
        }
    }

    fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Large(_, _, range) => range.end.saturating_sub(range.start),
            Self::Zeros(count) => *count,
        }
    }
}

const ZEROS: &[u8] = &[0; 64 << 10];

impl Ctx {
    /// The parts, one after the other, as one value for `key`. Memory holds a few pieces at a time.
    pub async fn compose(&mut self, key: &HeadKey, sources: &[Source]) -> Result<Value<'static>, Failure> {
        let len: u64 = sources.iter().map(Source::len).sum();
        let node = self.server.node.clone();
        let mut whole = Vec::new();
        let mut writer = (len > VALUE_BYTES_MAX as u64).then(|| node.large_writer(key.place, key.raw()));
        let refused = |e: pumice_kv::WriteError| large_refused(&node, key.place, &e);
        let mut pieces = Pieces::new(sources);
        while let Some(piece) = pieces.next(&node).await.map_err(|e| store_failure(&e))? {
            match &mut writer {
                Some(writer) => writer.push(&piece).await.map_err(refused)?,
                None => whole.extend_from_slice(&piece),
            }
        }
        Ok(match writer {
            Some(writer) => Value::Large(Arc::new(writer.finish().await.map_err(refused)?)),
            None => Value::Owned(Bytes::from(whole)),
        })
    }
}

/// Goes through the bytes of some sources.
struct Pieces<'a> {
    sources: &'a [Source],
    reader: Option<(Place, pumice_kv::LargeReader)>,
    zeros_left: u64,
}

impl<'a> Pieces<'a> {
    fn new(sources: &'a [Source]) -> Self {
        Self { sources, reader: None, zeros_left: 0 }
    }

    async fn next(&mut self, node: &pumice_node::Node) -> Result<Option<Bytes>, pumice_kv::StoreError> {
        loop {
            if self.zeros_left > 0 {
                let take = self.zeros_left.min(ZEROS.len() as u64);
                self.zeros_left -= take;
                return Ok(Some(Bytes::from_static(&ZEROS[..take as usize])));
            }
            if let Some((place, reader)) = &mut self.reader {
                let read = reader.next().await;
                if let Some(piece) = read.inspect_err(|error| node.note_read(place.drive, error))? {
                    return Ok(Some(piece));
                }
                self.reader = None;
            }
            let Some((first, rest)) = self.sources.split_first() else { return Ok(None) };
            self.sources = rest;
            match first {
                Source::Bytes(bytes) => return Ok(Some(bytes.clone())),
                Source::Large(place, large, range) => {
                    self.reader = Some((*place, node.read_large(*place, large, range.clone())));
                }
                Source::Zeros(count) => self.zeros_left = *count,
            }
        }
    }
}
