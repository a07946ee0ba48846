//! Opening a drive: from a clean checkpoint, or from the tags of its blocks.
//!
//! 1. A checkpoint that was written on close, with nothing after it, says it all.
//! 2. Otherwise each block's last page is read, the channels side by side. A tag there says that a segment was written
//!    whole. On media whose erases leave the bytes, the first page has to bear the same tag. The later of two blocks with
//!    an id holds the segment; the other is dead. All else is free and has to be erased.
//! 3. The newest checkpoint adds what tags do not say: which blocks are bad, and how often those were erased that hold
//!    nothing. Erases since it of such blocks are forgotten.
//! 4. A last page that does not read, or bears no tag: the block's first page names the segment. If the checkpoint has it on
//!    that block, it was whole, and is served, and reported. If not, it is not served; that its page does not read is reported.
//!
//! Nothing is written but the mark behind a clean checkpoint, so that a power cut in between changes nothing. Then the blocks
//! that bear an id beside the later one are erased: were that one erased first some day, a crash would bring back what
//! everybody has seen superseded.

use std::sync::Arc;

use pumice_reactor::spawn;

use super::area::Loaded;
use super::blocks::{BlockState, Role};
use super::map::Map;
use super::media::{Found, Media, Which};
use super::tag::{BlockTag, TagKind};
use super::{RawDamage, RawError};

/// Reads under way on each channel: the dies and the bus are kept busy.
const READERS: u32 = 8;

/// A drive as it was found.
pub(crate) struct Recovered {
    /// By block number.
    pub states: Vec<BlockState>,
    pub map: Map,
    /// The next write's.
    pub sequence: u64,
    pub damage: Vec<RawDamage>,
    /// Ids that more than one block bears, of a write or a move that a crash cut short.
    pub superseded: Vec<u128>,
}

/// States by number from those of a checkpoint; the factory's word stands above it.
pub(crate) fn known_states(media: &Media, area: &[u32], from: Option<&Loaded>) -> Vec<BlockState> {
    let geometry = media.geometry();
    let state = |number: u32| {
        let saved = from.map_or(BlockState::new(Role::Dirty, 0), |loaded| loaded.states[number as usize]);
        let counted = media.device().erase_count(geometry.block(number)).unwrap_or(0);
        let erases = saved.erases().max(counted);
        if media.device().is_factory_bad(geometry.block(number)) || saved.role() == Role::Bad {
            BlockState::new(Role::Bad, erases)
        } else if area.contains(&number) {
            BlockState::new(Role::System, erases)
        } else {
            BlockState::new(Role::Dirty, erases)
        }
    };
    (0..geometry.block_count()).map(state).collect()
}

/// What a clean checkpoint says.
pub(crate) fn from_checkpoint(loaded: &Loaded) -> Recovered {
    let mut map = Map::new(loaded.states.len() as u32);
    for &(block, id) in &loaded.ids {
        map.insert(block, id, loaded.states[block as usize].role() == Role::Used);
    }
    let states = loaded.states.clone();
    let sequence = loaded.header.sequence;
    Recovered { states, map, sequence, damage: Vec::new(), superseded: Vec::new() }
}

/// What a block's pages say of it.
#[derive(Clone, Copy, Debug)]
enum Seen {
    /// Holds the segment of this tag.
    Segment(BlockTag),
    /// Nothing that counts; erased at least so often.
    Free { erases: u32 },
    /// Its last page does not read, or bears no tag; its first bears this one.
    Torn(BlockTag, Found),
}

/// `was_used`: the checkpoint has a segment on it.
async fn look(
    media: &Media,
    drive_id: [u8; 16],
    number: u32,
    was_used: bool,
) -> Result<(Seen, u64), RawError> {
    let block = media.geometry().block(number);
    let ours = |found: Found| match found {
        Found::Tag(tag) if tag.drive_id == drive_id => Some(tag),
        _ => None,
    };
    let last = media.read_tag(block, Which::Last).await?;
    let whole = ours(last).filter(|tag| tag.kind == TagKind::Segment);
    if let Some(tag) = whole
        && !media.device().erase_keeps_bytes()
    {
        return Ok((Seen::Segment(tag), tag.sequence));
    }
    if last == Found::Nothing && !was_used && !media.device().erase_keeps_bytes() {
        return Ok((Seen::Free { erases: 0 }, 0));
    }
    let first = ours(media.read_tag(block, Which::First).await?);
    // Every tag counts, also those that say nothing any more: no later write may bear one's number.
    let sequence = first.iter().chain(&whole).map(|tag| tag.sequence).max().unwrap_or(0);
    let seen = match (first, whole) {
        (Some(first), Some(last)) if first == last => Seen::Segment(last),
        (Some(first), None) if first.kind == TagKind::Segment && (last == Found::Unreadable || was_used) => {
            Seen::Torn(first, last)
        }
        (Some(first), _) => Seen::Free { erases: first.erases },
        (None, last) => Seen::Free { erases: last.map_or(0, |tag| tag.erases) },
    };
    Ok((seen, sequence))
}

/// Reads the tags of all blocks that may hold segments. `progress` gets blocks done and blocks in all.
pub(crate) async fn scan(
    media: &Arc<Media>,
    loaded: &Loaded,
    area: &[u32],
    progress: &dyn Fn(u64, u64),
) -> Result<Recovered, RawError> {
    let geometry = media.geometry();
    let mut states = known_states(media, area, Some(loaded));
    let wanted: Vec<Vec<u32>> = (0..u32::from(geometry.channels) * READERS)
        .map(|reader| {
            let (channel, turn) = (reader / READERS, reader % READERS);
            let blocks = (0..geometry.blocks_per_channel).filter(|block| block % READERS == turn);
            let numbers = blocks.map(|block| block * u32::from(geometry.channels) + channel);
            numbers.filter(|&number| states[number as usize].role() == Role::Dirty).collect()
        })
        .collect();
    let total: u64 = wanted.iter().map(|blocks| blocks.len() as u64).sum();
    let drive_id = loaded.header.drive_id;
    let was_used = |block: u32| loaded.states[block as usize].role() == Role::Used;
    let readers: Vec<_> = wanted
        .into_iter()
        .map(|blocks| {
            let media = Arc::clone(media);
            let blocks: Vec<(u32, bool)> = blocks.into_iter().map(|block| (block, was_used(block))).collect();
            spawn(async move {
                let mut seen = Vec::with_capacity(blocks.len());
                for (block, was_used) in blocks {
                    seen.push((block, look(&media, drive_id, block, was_used).await?));
                }
                Ok::<_, RawError>(seen)
            })
        })
        .collect();
    let (mut found, mut sequence, mut failed) = (Vec::new(), loaded.header.sequence, None);
    for reader in readers {
        match reader.await {
            Ok(Ok(seen)) => found.extend(seen),
            Ok(Err(error)) => failed = Some(error),
            Err(_) => unreachable!("nobody aborts it"),
        }
        progress(found.len() as u64, total);
    }
    if let Some(error) = failed {
        return Err(error);
    }
    let (mut damage, mut torn) = (Vec::new(), Vec::new());
    // Later writes first: of two blocks with an id the first holds the segment.
    let mut segments = Vec::new();
    found.sort_unstable_by_key(|(block, _)| *block);
    for (block, (seen, last)) in found {
        sequence = sequence.max(last + 1);
        let state = &mut states[block as usize];
        match seen {
            Seen::Segment(tag) => segments.push((std::cmp::Reverse(tag.sequence), block, tag)),
            Seen::Free { erases } => *state = BlockState::new(Role::Dirty, erases.max(state.erases())),
            Seen::Torn(tag, last) => {
                let (at, id) = (geometry.block(block), tag.id);
                let saved = loaded.states[block as usize];
                let was_whole = saved.role() == Role::Used
                    && saved.erases() == tag.erases
                    && loaded.ids.binary_search(&(block, id)).is_ok();
                if was_whole {
                    torn.push(block);
                    segments.push((std::cmp::Reverse(tag.sequence), block, tag));
                } else {
                    if last == Found::Unreadable {
                        damage.push(RawDamage::Unfinished { block: at, id });
                    }
                    *state = BlockState::new(Role::Dirty, tag.erases.max(state.erases()));
                }
            }
        }
    }
    segments.sort_unstable_by_key(|(sequence, block, _)| (*sequence, *block));
    let mut map = Map::new(geometry.block_count());
    let mut superseded = Vec::new();
    for (_, block, tag) in segments {
        let is_live = map.get(tag.id).is_none();
        if !is_live {
            superseded.push(tag.id);
        }
        map.insert(block, tag.id, is_live);
        // One that was superseded meanwhile is nobody's loss.
        if is_live && torn.binary_search(&block).is_ok() {
            damage.push(RawDamage::LostPage { block: geometry.block(block), id: tag.id });
        }
        // As the tag says, whatever the media have counted since: the segment's pages are verified against it.
        let role = if is_live { Role::Used } else { Role::Dead };
        states[block as usize] = BlockState::new(role, tag.erases);
    }
    Ok(Recovered { states, map, sequence, damage, superseded })
}
