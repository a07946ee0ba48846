//! World `kv-flip`: a bit flips anywhere on a drive, or a page does not read any more, one at a time, and it is opened again and read.
//!
//! 1. No read answers anything but what was written, or a typed error. An error says which record or key table it is of, and the
//!    damage lies there; no more keys answer one than that record, or that block of the table, holds.
//! 2. Damage inside of any record of a segment in use is found: by opening or by the check.
//! 3. None keeps a drive closed: what all depends on is there twice. That is so, too, of a page for which the drive gives no reason.
//! 4. Half of the drives were not closed: their log is read with the damage. It may cost what was acknowledged, as media do
//!    that lose what they hold, but not in silence: opening says so, keys hold what they held at some time before, and no more
//!    of them than the log had records.

mod sound;

use super::bench::{Bench, PATH, Setup, seen};
use super::crash::start_clients;
use crate::kv::flip::sound::Sound;
use crate::oracle::{Key, Oracle, show};
use crate::report::{Report, RunOptions};
use crate::worlds::{Broken, Outcome, caught};
use pumice_base::hash::stable_hash64;
use pumice_base::rng::Rng;
use pumice_flash::{Access, Device, DeviceSpec};
use pumice_kv::{Batch, SliceId, Store, StoreError};
use pumice_reactor::sim::{FaultOp, FileFault, HostOptions};
use pumice_segment::{ReadError, RecordPtr, SegmentId};
use std::ops::Range;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

/// Damages per seed, one at a time.
const FLIPS: u64 = 60;
/// The numbers by which a page does not read: a bad place, and whatever it is.
const UNREAD: [i32; 2] = [61, 5];
const PAGE_BYTES: u64 = 4096;
/// Keys of which a filter says by chance that a damaged block may hold them.
const PASSED_BY_CHANCE: u64 = 4;

/// What becomes of a byte of the drive.
#[derive(Clone, Copy, Debug)]
enum Damage {
    /// These bits of it flip.
    Flip { mask: u8 },
    /// The page that it lies in answers with this number.
    Unread { errno: i32 },
}

/// Where the drive is damaged: of one segment.
#[derive(Debug)]
struct Hit {
    segment: SegmentId,
    bytes: Range<u32>,
}

impl Hit {
    fn overlaps(&self, segment: SegmentId, bytes: &Range<u32>) -> bool {
        self.segment == segment && self.bytes.start < bytes.end && bytes.start < self.bytes.end
    }
}

/// What one of them did.
enum Effect {
    /// Nothing that anyone reads.
    None,
    /// Opening says that a part of the log is lost: so many keys hold what they held before, nothing, or an error.
    Announced { lost: u64 },
    /// So many keys answer an error, so many do not; the check's number of problems.
    Keys { errors: u64, right: u64, problems: u64 },
}

pub(crate) fn run(seed: u64, options: &RunOptions, report: &mut Report) -> Outcome {
    let mut rng = Rng::from_seed(seed).split("kv-flip");
    let bench = Bench::new(seed, Setup { keys: 200, ..Setup::draw(&mut rng) }, HostOptions::default());
    *bench.model.oracle.borrow_mut() = Oracle::that_remembers();
    bench.format()?;
    let store = bench.open(true)?.ok_or_else(|| "the host went down while opening".to_string())?;
    start_clients(&bench, &store, &mut rng, 150);
    bench.world.run_for(Duration::from_secs(60));
    bench.model.after_clients();
    bench.note_work(&store);
    if rng.split("closed").chance(0.5) {
        bench.close(store)?;
    } else {
        settle(&bench, &store)?;
        bench.world.crash(bench.host);
        drop(store);
        report.count("drives that were not closed", 1);
    }
    let newest = bench.model.oracle.borrow().newest();
    bench.model.oracle.borrow_mut().acknowledge(newest);
    for (name, count) in bench.model.counts.borrow().iter() {
        report.count(name, *count);
    }
    let image = bench.world.disk(bench.host);
    let extents = bench.extents();
    let segment_bytes = u64::from(bench.setup.segment_bytes);
    let sound = Rc::new(sound::look(&bench)?);
    let flips = options.ops.unwrap_or(FLIPS);
    for flip in 0..flips {
        let mut rng = rng.split(&format!("flip {flip}"));
        let only = options.cut.is_some_and(|only| only != flip);
        if only {
            continue;
        }
        // Anywhere; or in what is a small part of the drive and matters most.
        let offset = match rng.below(8) {
            0 => draw_from(&within(&extents, &sound.metadata_bytes(segment_bytes)), &mut rng),
            1 => draw_from(&within(&extents, &sound.snapshots_bytes(segment_bytes)), &mut rng),
            2 => draw_from(&sound.log_bytes(segment_bytes), &mut rng),
            3 => draw_from(&sound.table_bytes(segment_bytes), &mut rng),
            _ => None,
        };
        let offset = offset
            .or_else(|| draw_from(&extents, &mut rng))
            .ok_or("the drive was never written".to_string())?;
        let damage = match rng.below(8) {
            0..3 => Damage::Unread { errno: UNREAD[rng.below(2) as usize] },
            _ => Damage::Flip { mask: 1 << rng.below(8) },
        };
        bench.world.set_disk(bench.host, &image);
        let hit = do_damage(&bench, damage, offset);
        let effect = caught(|| one(&bench, &sound, &hit));
        bench.world.clear_faults(bench.host);
        let effect = effect.map_err(|what| Broken {
            what: format!("{damage:?} at {hit:?} (byte {offset}, {:?}): {what}", bench.setup),
            replay_args: format!(" --cut {flip}"),
        })?;
        if matches!(damage, Damage::Unread { .. }) {
            report.count("pages that did not read", 1);
        }
        match effect {
            Effect::None => report.count("flips without effect", 1),
            Effect::Announced { lost } => {
                report.count("flips that cost a part of the log", 1);
                report.count("keys that went back with the log", lost);
            }
            Effect::Keys { errors, right, problems } => {
                let is_of_table = errors > 0 && sound.is_in_table(&hit);
                report.count("flips in key tables that cost keys", u64::from(is_of_table));
                report.count("flips that cost keys", u64::from(errors > 0));
                report.count("keys lost", errors);
                report.count("keys unharmed", right);
                report.count("flips found by the check", u64::from(problems > 0));
            }
        }
        report.count("flips", 1);
        if bench.world.is_up(bench.host) {
            bench.world.kill(bench.host);
        }
    }
    Ok(stable_hash64(bench.world.event_hash(), &flips.to_le_bytes()))
}

/// Damages the drive; answers where, within one segment.
fn do_damage(bench: &Bench, damage: Damage, offset: u64) -> Hit {
    let bytes = match damage {
        Damage::Flip { mask } => {
            bench.world.flip(bench.host, Path::new(PATH), offset, mask);
            offset..offset + 1
        }
        Damage::Unread { errno } => {
            let start = offset - offset % PAGE_BYTES;
            let (path, range) = (Some(PATH.into()), Some(start..start + PAGE_BYTES));
            let fault = FileFault { path, op: FaultOp::Read, range, skip: 0, times: u64::MAX, errno };
            bench.world.add_fault(bench.host, fault);
            start..start + PAGE_BYTES
        }
    };
    let segment_bytes = u64::from(bench.setup.segment_bytes);
    let segment = SegmentId((offset / segment_bytes) as u32);
    let start = (bytes.start % segment_bytes) as u32;
    Hit { segment, bytes: start..start + (bytes.end - bytes.start) as u32 }
}

/// A byte of one of these stretches of the drive, each given by its place and its length.
fn draw_from(stretches: &[(u64, u64)], rng: &mut Rng) -> Option<u64> {
    let total = stretches.iter().map(|(_, bytes)| bytes).sum();
    let mut place = if total > 0 { rng.below(total) } else { return None };
    for &(start, bytes) in stretches {
        if place < bytes {
            return Some(start + place);
        }
        place -= bytes;
    }
    None
}

/// What of these stretches lies in some parts of the drive.
fn within(stretches: &[(u64, u64)], parts: &[Range<u64>]) -> Vec<(u64, u64)> {
    let pairs = stretches.iter().flat_map(|stretch| parts.iter().map(move |part| (stretch, part)));
    let shared = pairs.map(|(&(start, bytes), part)| (start.max(part.start), (start + bytes).min(part.end)));
    shared.filter(|(from, to)| from < to).map(|(from, to)| (from, to - from)).collect()
}

/// One more write, alone and waited for: it tells that all before it are durable, and nothing tells that it was. It is of no
/// space that anybody reads.
fn settle(bench: &Bench, store: &Store) -> Result<(), String> {
    let store = store.clone();
    let settled = bench.world.block_on(bench.host, async move {
        let mut batch = Batch::new();
        batch.put(SliceId(0), &u32::MAX.to_be_bytes(), 0, 0, b"the last");
        let seq = store.write(&batch).map_err(|error| error.to_string())?;
        store.wait_durable(seq).await.map_err(|error| error.to_string())
    });
    settled.map_err(|halt| format!("the last write: {halt}"))?
}

/// Opens the damaged drive and reads everything.
fn one(bench: &Bench, sound: &Rc<Sound>, hit: &Hit) -> Result<Effect, String> {
    if bench.world.is_up(bench.host) {
        bench.world.kill(bench.host);
    }
    bench.world.restart(bench.host);
    let (options, model, sound) = (bench.setup.options(), Rc::clone(&bench.model), Rc::clone(sound));
    let hit = Hit { segment: hit.segment, bytes: hit.bytes.clone() };
    let ran = bench.world.block_on(bench.host, async move {
        let device = Device::open(&DeviceSpec::Path(PATH.into()), Access::ReadWrite).await;
        let device = device.map_err(|error| format!("the file does not open: {error}"))?;
        let opened = match Store::open(device, options, &|_, _| {}).await {
            Ok(opened) => opened,
            Err(error) => return Err(format!("the drive stays closed: {error}")),
        };
        let (store, announced) = (opened.store, opened.damage.len() as u64);
        if announced > 0 && !sound.is_used(hit.segment) {
            return Err(format!("nothing of the log lies there, but opening says: {}", opened.damage[0]));
        }
        let keys: Vec<Key> = model.oracle.borrow().known_keys().cloned().collect();
        let retired =
            |key: &Key| !model.spaces.borrow().keys().any(|space| key.1.starts_with(&space.to_be_bytes()));
        let (mut errors, mut older, mut right) = (0, 0, 0);
        let mut first = String::new();
        for key in keys {
            if store.is_retired(SliceId(key.0), &key.1) || announced > 0 && retired(&key) {
                continue;
            }
            let read = match store.get(SliceId(key.0), &key.1).await {
                Ok(Some(entry)) => seen(&store, &entry).await.map(Some),
                Ok(None) => Ok(None),
                Err(error) => Err(error),
            };
            match read {
                Ok(seen) => {
                    let mut oracle = model.oracle.borrow_mut();
                    let from = oracle.begin_read();
                    match oracle.end_read(&key, from, seen.as_ref()) {
                        Ok(()) => right += 1,
                        Err(wrong) if announced == 0 => return Err(wrong),
                        Err(_) if seen.as_ref().is_none_or(|seen| oracle.ever_held(&key, seen)) => older += 1,
                        Err(wrong) => return Err(format!("after a part of the log was lost, {wrong}")),
                    }
                }
                Err(error) => {
                    // What the log's lost part overwrote may have been cleaned away.
                    if announced == 0 && !place_of(&error).is_some_and(|ptr| covers(ptr, &hit)) {
                        return Err(format!("{} lies elsewhere and answers: {error}", show(&key)));
                    }
                    if errors == 0 {
                        first = format!("{}: {error}", show(&key));
                    }
                    errors += 1;
                }
            }
        }
        let most = sound.keys_at(&hit) + if announced > 0 { sound.replayed } else { 0 };
        if errors + older > most {
            let what =
                format!("{errors} keys answer errors ({first}) and {older} hold what they held before");
            return Err(format!("{what}, but only {most} can be lost there"));
        }
        let check = store.check(&|_, _| {}).await.map_err(|error| format!("check: {error}"))?;
        let problems = check.problems.len() as u64 + announced;
        if errors > 0 && problems == 0 {
            return Err(format!("{errors} keys answer errors ({first}), but the check finds nothing"));
        }
        if problems == 0 && sound.must_be_found(&hit) {
            return Err("it lies inside of a record, and nobody finds it".into());
        }
        if let Some(vague) = check.problems.iter().find(|what| !names_a_place(what)) {
            return Err(format!("the check does not say what is damaged: {vague}"));
        }
        if errors + problems == 0 {
            return Ok(Effect::None);
        }
        if announced > 0 {
            return Ok(Effect::Announced { lost: errors + older });
        }
        Ok(Effect::Keys { errors, right, problems })
    });
    ran.map_err(|halt| format!("reading a damaged drive: {halt}"))?
}

/// Where an error says that the damage is.
fn place_of(error: &StoreError) -> Option<RecordPtr> {
    match error {
        StoreError::Damaged { ptr, .. } => Some(*ptr),
        StoreError::Read {
            source: ReadError::Corrupt { ptr, .. } | ReadError::Flash { ptr, .. }, ..
        } => Some(*ptr),
        _ => None,
    }
}

fn covers(ptr: RecordPtr, hit: &Hit) -> bool {
    let from = ptr.addr.offset();
    hit.overlaps(ptr.addr.segment(), &(from..from + ptr.len))
}

fn names_a_place(problem: &str) -> bool {
    problem.contains("segment ") || problem.contains("slice ") || problem.contains("key ")
}
