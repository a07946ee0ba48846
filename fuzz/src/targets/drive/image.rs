//! Drives in the simulator as they were written once, and changes to them.

use std::future::Future;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use pumice_base::checksum::crc32c_seeded;
use pumice_reactor::sim::{DiskImage, HostId, HostOptions, World};
use pumice_reactor::{File, OpenOptions, WriteSync};
use pumice_segment::Addr;
use pumice_segment::ftl::PartHeader;
use pumice_segment::layout::meta::{self, MetaRecord};
use pumice_segment::layout::superblock::Superblock;
use pumice_segment::layout::{frame, header};

const CHANGES_MAX: usize = 8;
const PAGE_BYTES: usize = 4096;

/// What begins somewhere on a drive: how its checksum is made right.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Superblock,
    Segment,
    Frame(Addr),
    Meta {
        drive_id: [u8; 16],
        offset: u64,
    },
    /// A part of a checkpoint, on this block.
    Part(u32),
    /// So many bytes with a checksum that knows the block.
    Sealed {
        block: u32,
        bytes: usize,
    },
    /// What an emulated drive's file says of this block.
    Saved(u64),
}

impl Kind {
    /// Makes the checksum right of what begins here.
    fn repair(self, bytes: &mut [u8]) {
        let seed_of = |block: u32| u64::from(block);
        let (at, crc) = match self {
            Self::Superblock => {
                match Superblock::peek_bytes(bytes).filter(|&total| (16..=bytes.len()).contains(&total)) {
                    Some(total) => (12, crc32c_seeded(0, &[&bytes[..12], &bytes[16..total]])),
                    None => return,
                }
            }
            Self::Segment => (12, crc32c_seeded(0, &[&bytes[..12], &bytes[16..header::HEADER_BYTES]])),
            Self::Frame(addr) => {
                let life = u64::from_le_bytes(std::array::from_fn(|i| bytes[8 + i]));
                (4, crc32c_seeded(life, &[&addr.0.to_le_bytes(), &bytes[8..frame::HEADER_BYTES]]))
            }
            Self::Meta { drive_id, offset } => match MetaRecord::peek_bytes(bytes) {
                Some(total) if (meta::HEADER_BYTES..=bytes.len()).contains(&total) => {
                    (4, crc32c_seeded(offset, &[&drive_id, &bytes[8..total]]))
                }
                _ => return,
            },
            Self::Part(block) => match PartHeader::part_bytes(bytes).filter(|&total| total <= bytes.len()) {
                Some(total) => (12, crc32c_seeded(seed_of(block), &[&bytes[..12], &bytes[16..total]])),
                None => return,
            },
            Self::Sealed { block, bytes: total } => {
                (12, crc32c_seeded(seed_of(block), &[&bytes[..12], &bytes[16..total]]))
            }
            Self::Saved(number) => (12, crc32c_seeded(number, &[&bytes[..12]])),
        };
        bytes[at..at + 4].copy_from_slice(&crc.to_le_bytes());
    }
}

struct Drive {
    image: DiskImage,
    bytes: Vec<u8>,
    structures: Vec<(usize, Kind)>,
}

/// Drives of one kind, in a world of their own.
pub(super) struct Drives {
    world: World,
    host: HostId,
    drives: Vec<Drive>,
}

impl Drives {
    /// Those that `written` makes, closed or as they are after a kill.
    pub(super) fn new<F: Future<Output = ()> + 'static>(
        len: usize,
        closed: &[bool],
        written: impl Fn(bool) -> F,
        structures: impl Fn(&[u8]) -> Vec<(usize, Kind)>,
    ) -> Self {
        let world = World::new(1);
        let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
        let empty = world.disk(host);
        let drives = closed.iter().map(|&closes| {
            world.set_disk(host, &empty);
            world.block_on(host, written(closes)).unwrap_or_else(|halt| panic!("{halt}"));
            world.kill(host);
            world.restart(host);
            let bytes = world.peek_file(host, Path::new(super::PATH), 0, len);
            let structures = structures(&bytes);
            assert!(!structures.is_empty(), "nothing to change");
            Drive { image: world.disk(host), bytes, structures }
        });
        let drives = drives.collect();
        Self { world, host, drives }
    }

    /// Makes the changes of `input` to one of the drives, which its first bit chooses, and runs `look` on it.
    pub(super) fn change_and_run<T: 'static>(
        &self,
        path: &'static str,
        input: &[u8],
        patience: Duration,
        look: impl Future<Output = T> + 'static,
    ) -> T {
        let (world, host) = (&self.world, self.host);
        let which = input.first().map_or(0, |byte| usize::from(byte >> 7));
        let drive = &self.drives[which % self.drives.len()];
        let mut bytes = drive.bytes.clone();
        for change in input.chunks_exact(8).take(CHANGES_MAX) {
            let structure = usize::from(u16::from_le_bytes([change[0], change[1]]));
            let (start, kind) = drive.structures[structure % drive.structures.len()];
            let at = start + usize::from(change[2]);
            let width = [1, 1, 2, 4][usize::from(change[3] & 3)];
            for (place, &value) in bytes.iter_mut().skip(at).zip(&change[4..4 + width]) {
                // Set, or flipped.
                *place = if change[3] & 4 == 0 { value } else { *place ^ value };
            }
            if change[3] & 8 == 0 {
                kind.repair(&mut bytes[start..]);
            }
        }
        world.kill(host);
        world.set_disk(host, &drive.image);
        world.restart(host);
        let pages = bytes.chunks(PAGE_BYTES).zip(drive.bytes.chunks(PAGE_BYTES)).enumerate();
        let changed: Vec<(u64, Bytes)> = pages
            .filter(|(_, (now, before))| now != before)
            .map(|(page, (now, _))| ((page * PAGE_BYTES) as u64, Bytes::copy_from_slice(now)))
            .collect();
        let write = async move {
            let file = File::open(Path::new(path), &OpenOptions::default()).await.expect("file");
            for (at, page) in changed {
                file.write_at(page, at, WriteSync::Cached).await.expect("write");
            }
        };
        world.block_on(host, write).unwrap_or_else(|halt| panic!("{halt}"));
        world.kill(host);
        world.restart(host);
        world.block_on_for(host, patience, look).unwrap_or_else(|halt| panic!("no end: {halt}"))
    }
}
