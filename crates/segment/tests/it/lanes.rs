//! A log in several segments at once, on NAND of several channels and on a file, in virtual time: several clients append side by
//! side and are told; what a new opener finds is a prefix of what was appended, with all that was acknowledged, whatever of the
//! frames under way was torn. Replay one: `PUMICE_SEED=N cargo test -p pumice-segment --test it lanes::`.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{self, format_options, no_progress};
use pumice_base::rng::Rng;
use pumice_flash::{Access, Device, DeviceSpec, Emulated, Operation};
use pumice_reactor::sim::{CutMode, HostId, HostOptions, PowerCut, World};
use pumice_reactor::{IoBuf, JoinHandle, sleep, spawn};
use pumice_segment::layout::frame::FrameHeader;
use pumice_segment::layout::header::{Decoded, SegmentHeader};
use pumice_segment::{
    Addr, AppendClass, AppendError, Durability, FormatOptions, Heap, HeapOptions, MetaEdit, Outline,
    RecordIn, RecordPtr, SegmentId, Stream,
};

const SEGMENT_BYTES: u32 = 64 << 10;
const PAGE_BYTES: u32 = 4096;
const CHANNELS: u16 = 4;
const SEGMENTS: u64 = 192;
/// NAND whose programs take a while, so that several are under way.
const NAND: &str = "emu:sdf,channels=4,dies=1,planes=1,stripe=1,blocks=48,page=4096,pages=16,oob=224,read_us=5,\
                    program_us=40,erase_us=200,bus=0,link_read=0,link_write=0,request_us=0";
const PATH: &str = "/drive";

fn options(durability: Durability) -> HeapOptions {
    HeapOptions { durability, commit_max_bytes: 16 << 10, reserve_segments: Some(4), ..common::in_windows() }
}

/// What clients did and were told: survives crashes.
#[derive(Default)]
struct Told {
    /// Batches appended, and the records of each.
    appended: Vec<u64>,
    acknowledged: BTreeSet<u64>,
    /// Batches whose numbers a checkpoint names.
    checkpoint: u64,
    relocations: u64,
    lanes_seen: BTreeSet<u32>,
}

/// A drive and whoever uses it.
struct Bench {
    world: World,
    host: HostId,
    nand: Option<Arc<Emulated>>,
    told: Rc<RefCell<Told>>,
    durability: Durability,
    lanes: Option<u16>,
}

fn open_options(bench: &Bench) -> HeapOptions {
    HeapOptions { commit_lanes: bench.lanes, ..options(bench.durability) }
}

async fn device(nand: Option<Arc<Emulated>>) -> Device {
    match nand {
        Some(nand) => Device::Emulated(nand),
        None => {
            let spec: DeviceSpec = PATH.parse().expect("spec");
            Device::open(&spec, Access::ReadWrite).await.expect("file")
        }
    }
}

impl Bench {
    fn new(seed: u64, on_nand: bool, durability: Durability) -> Self {
        let world = World::new(seed);
        let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
        let nand = world.block_on(host, async move {
            let device = if on_nand {
                let spec = format!("{NAND},seed={seed}").parse().expect("spec");
                Device::open(&spec, Access::ReadWrite).await.expect("nand")
            } else {
                let bytes = u64::from(SEGMENT_BYTES) * SEGMENTS;
                Device::create(&PATH.parse().expect("spec"), bytes).await.expect("file")
            };
            let format =
                FormatOptions { segment_bytes: SEGMENT_BYTES, channels: CHANNELS, ..format_options() };
            Heap::format(&device, &format).await.expect("format");
            match device {
                Device::Emulated(nand) => Some(nand),
                _ => None,
            }
        });
        let nand = nand.expect("the host is up");
        let told = Rc::default();
        Self { world, host, nand, told, durability, lanes: None }
    }

    fn up<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> T {
        self.world.block_on(self.host, future).unwrap_or_else(|halt| panic!("{halt}"))
    }

    /// Opens the drive and says what must not be, unless frames were damaged on purpose.
    async fn open(
        nand: Option<Arc<Emulated>>,
        told: Rc<RefCell<Told>>,
        options: HeapOptions,
        may_be_damaged: bool,
    ) -> Result<(Heap, Vec<u64>, usize), String> {
        let is_always = options.durability == Durability::Always;
        let device = device(nand).await;
        let mut opened =
            Heap::open(device, options, &no_progress).await.map_err(|error| error.to_string())?;
        let base = opened
            .client_state
            .last()
            .map_or(0, |state| u64::from_le_bytes(state[..8].try_into().expect("eight bytes")));
        if base < told.borrow().checkpoint {
            return Err(format!("checkpoint {} is gone, there is {base}", told.borrow().checkpoint));
        }
        let (mut found, mut damage, mut ptrs) = (Vec::new(), Vec::new(), Vec::new());
        while let Some(batch) = opened.replay.next().await.map_err(|error| error.to_string())? {
            damage.extend(batch.damage);
            if batch.stream != Stream::Commit {
                return Err(format!("{} records of {:?}", batch.records.len(), batch.stream));
            }
            for record in batch.records {
                ptrs.push(record.ptr);
                let number = u64::from_le_bytes(record.payload[..8].try_into().expect("eight bytes"));
                if record.payload[8..].iter().any(|&byte| byte != number as u8) {
                    return Err(format!("batch {number} reads wrong"));
                }
                found.push(number);
            }
        }
        if !may_be_damaged {
            if let Some(damage) = damage.first() {
                return Err(format!("damage where there is none: {damage}"));
            }
            // A record for each of its batch, batch after batch.
            let told = told.borrow();
            let mut rest = &found[..];
            let mut next = base;
            while let Some(&number) = rest.first() {
                let records = rest.iter().take_while(|&&other| other == number).count() as u64;
                if number != next || told.appended.get(number as usize) != Some(&records) {
                    return Err(format!(
                        "{records} records of batch {number} where batch {next} with {:?} should be; checkpoint {base}",
                        told.appended.get(next as usize)
                    ));
                }
                rest = &rest[records as usize..];
                next += 1;
            }
            if let Some(lost) = told.acknowledged.iter().find(|&&number| number >= next && is_always) {
                return Err(format!("batch {lost} was acknowledged, the log ends at {next}"));
            }
        }
        let next = found.last().map_or(base, |last| last + 1).max(base);
        for ptr in ptrs {
            let record = opened.heap.read(ptr).await.map_err(|error| error.to_string())?;
            if record.payload.len() < 8 {
                return Err(format!("{ptr} reads short"));
            }
            opened.heap.mark_dead(ptr);
        }
        let mut told = told.borrow_mut();
        told.appended.truncate(next as usize);
        told.acknowledged.split_off(&next);
        Ok((opened.heap, found, damage.len()))
    }
}

/// Appends a batch; answers its number, its last sequence number and where its records are.
async fn append(
    heap: &Heap,
    told: &Rc<RefCell<Told>>,
    sizes: &[usize],
) -> Result<(u64, u64, Vec<RecordPtr>), AppendError> {
    loop {
        // No await from here to where it is told.
        let number = told.borrow().appended.len() as u64;
        let payloads: Vec<Vec<u8>> = sizes
            .iter()
            .map(|&size| [&number.to_le_bytes()[..], &vec![number as u8; size]].concat())
            .collect();
        let parts: Vec<[&[u8]; 1]> = payloads.iter().map(|payload| [&payload[..]]).collect();
        let records: Vec<RecordIn<'_>> =
            parts.iter().map(|parts| RecordIn { kind: 1, parts, outline: Outline::Whole }).collect();
        match heap.append(&records, AppendClass::User) {
            Ok(appended) => {
                let mut told = told.borrow_mut();
                told.appended.push(sizes.len() as u64);
                told.lanes_seen.extend(appended.ptrs.iter().map(|ptr| ptr.addr.segment().0 % 4));
                let last = appended.first_seq + sizes.len() as u64 - 1;
                return Ok((number, last, appended.ptrs.to_vec()));
            }
            Err(AppendError::Busy) => heap.room().await,
            Err(error) => return Err(error),
        }
    }
}

async fn checkpoint(heap: &Heap, told: &Rc<RefCell<Told>>) -> Result<(), String> {
    let (last, number) = (heap.last_seq(), told.borrow().appended.len() as u64);
    heap.commit_meta(MetaEdit::Snapshot(number.to_le_bytes().to_vec().into()), last)
        .await
        .map_err(|error| error.to_string())?;
    let mut told = told.borrow_mut();
    told.checkpoint = told.checkpoint.max(number);
    Ok(())
}

/// Several clients at once, until each has made its appends or the heap stops.
async fn clients(heap: Heap, told: Rc<RefCell<Told>>, seed: u64, count: u64, each: u64) {
    let is_at_it = Rc::new(std::cell::Cell::new(false));
    let tasks: Vec<JoinHandle<()>> = (0..count)
        .map(|client| {
            let (heap, told, is_at_it) = (heap.clone(), Rc::clone(&told), Rc::clone(&is_at_it));
            let mut rng = Rng::from_seed(seed).split(&format!("client {client}"));
            spawn(async move {
                for _ in 0..each {
                    // Some batches fill more than a segment.
                    let records = if rng.chance(0.02) { 5 + rng.below(15) } else { rng.below(3) };
                    let sizes: Vec<usize> = (0..=records)
                        .map(|_| match rng.below(4) {
                            0 => rng.below(9000) as usize,
                            _ => rng.below(2500) as usize,
                        })
                        .collect();
                    let Ok((number, last, ptrs)) = append(&heap, &told, &sizes).await else { return };
                    if rng.chance(0.3) {
                        // As moves do.
                        heap.next_seq(1 + rng.below(5));
                    }
                    if rng.chance(0.8) {
                        if heap.wait_durable(last).await.is_err() {
                            return;
                        }
                        told.borrow_mut().acknowledged.insert(number);
                    }
                    ptrs.into_iter().for_each(|ptr| heap.mark_dead(ptr));
                    match rng.below(40) {
                        // One at a time: an older state must not follow a newer one.
                        0 | 1 if !is_at_it.replace(true) => {
                            if checkpoint(&heap, &told).await.is_err() {
                                return;
                            }
                            is_at_it.set(false);
                        }
                        2..5 => {
                            // What the checkpoint covers nobody needs.
                            if let Some(victim) = heap.victim(|_| 0) {
                                heap.release(victim);
                            }
                        }
                        5 => sleep(Duration::from_micros(rng.below(300))).await,
                        6 => heap.seal_tables(),
                        _ => {}
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        let _ = task.await;
    }
}

#[derive(Clone, Copy)]
enum End {
    /// Power fails at the so-maniest operation.
    Cut(u64),
    /// The process dies.
    Kill,
    /// All clients end, then the power fails.
    Crash,
    /// A checkpoint and a clean close, or the process just ends while nothing is under way.
    Close { checkpoint: bool },
}

/// One opening, clients, and how it ends. Answers whether a cut was reached.
fn life(bench: &Bench, seed: u64, each: u64, end: End) -> Result<bool, String> {
    let (nand, told, options) = (bench.nand.clone(), Rc::clone(&bench.told), open_options(bench));
    let mut rng = Rng::from_seed(seed).split("life");
    if let End::Cut(at) = end {
        match &bench.nand {
            Some(nand) => nand.cut_power_at(at + 1),
            None => {
                let mode = [CutMode::Before, CutMode::Torn, CutMode::After][rng.below(3) as usize];
                let at = bench.world.counters(bench.host).mutations + at;
                bench.world.cut_power(bench.host, PowerCut { at, mode, fate: None });
            }
        }
    }
    let count = 2 + rng.below(6);
    let run = async move {
        let opened = Bench::open(nand.clone(), Rc::clone(&told), options, false).await;
        let heap = match opened {
            Ok((heap, ..)) => heap,
            // The power failed while it was opened.
            Err(_) if nand.as_ref().is_some_and(|nand| !nand.is_powered()) => return Ok(()),
            Err(error) => return Err(error),
        };
        clients(heap.clone(), Rc::clone(&told), seed, count, each).await;
        if let End::Close { checkpoint: true } = end {
            checkpoint(&heap, &told).await?;
            heap.close().await.map_err(|error| error.to_string())?;
        }
        told.borrow_mut().relocations += heap.stats().relocations;
        match (end, heap.read_only()) {
            (End::Cut(_) | End::Close { .. }, _) | (_, None) => Ok(()),
            (_, Some(reason)) => Err(format!("the heap stopped: {reason}")),
        }
    };
    if let End::Kill = end {
        drop(bench.world.run(bench.host, 0, async move {
            let _ = run.await;
        }));
        bench.world.run_for(Duration::from_micros(200 + rng.below(20_000)));
        bench.world.kill(bench.host);
        if let Some(nand) = &bench.nand {
            nand.cut_power();
        }
    } else {
        match bench.world.block_on(bench.host, run) {
            Ok(result) => result?,
            Err(_) if matches!(end, End::Cut(_)) => {}
            Err(halt) => return Err(halt.to_string()),
        }
    }
    let mut reached = !bench.world.is_up(bench.host);
    match &bench.nand {
        Some(nand) => {
            reached = !nand.is_powered();
            if !matches!(end, End::Close { .. }) {
                nand.cut_power();
            }
            if bench.world.is_up(bench.host) {
                bench.world.kill(bench.host);
            }
            nand.power_on();
        }
        None if bench.world.is_up(bench.host) => match end {
            End::Close { .. } | End::Kill => bench.world.kill(bench.host),
            _ => bench.world.crash(bench.host),
        },
        None => {}
    }
    bench.world.restart(bench.host);
    bench.world.spare_power(bench.host);
    Ok(reached)
}

fn end(rng: &mut Rng) -> End {
    match rng.below(5) {
        0 | 1 => End::Cut(rng.below(300)),
        2 => End::Kill,
        3 => End::Crash,
        _ => End::Close { checkpoint: rng.chance(0.7) },
    }
}

/// `body` with each seed, or with the one that the environment names, and as many from there on as it says.
fn each_seed(seeds: std::ops::Range<u64>, body: impl Fn(u64) -> Result<(), String>) {
    let variable = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let count = variable("PUMICE_SEEDS").unwrap_or(1);
    for seed in variable("PUMICE_SEED").map_or(seeds, |seed| seed..seed + count) {
        if let Err(error) = body(seed) {
            panic!(
                "seed {seed}: {error}\nreplay: PUMICE_SEED={seed} cargo test -p pumice-segment --test it lanes::"
            );
        }
    }
}

#[test]
fn what_was_acknowledged_survives_lives_of_all_kinds_on_all_lanes() {
    each_seed(0..60, |seed| {
        let mut rng = Rng::from_seed(seed).split("lives");
        let durability =
            [Durability::Always, Durability::Always, Durability::EverySecond][rng.below(3) as usize];
        let mut bench = Bench::new(seed, rng.chance(0.6), durability);
        for number in 0..6 {
            // Some openers use fewer lanes than the drive has.
            bench.lanes = [None, None, None, Some(1), Some(2)][rng.below(5) as usize];
            life(&bench, rng.next_u64(), 40, end(&mut rng))
                .map_err(|error| format!("life {number}: {error}"))?;
        }
        bench.lanes = None;
        life(&bench, rng.next_u64(), 40, End::Crash).map_err(|error| format!("the last life: {error}"))?;
        let lanes = bench.told.borrow().lanes_seen.len();
        if lanes < usize::from(CHANNELS) {
            Err(format!("only {lanes} channels were written to"))
        } else {
            Ok(())
        }
    });
}

fn cut_everywhere(on_nand: bool, every: u64) -> u64 {
    let mut cut = 0;
    loop {
        let seed = 77 + cut;
        let crash = || -> Result<bool, String> {
            let bench = Bench::new(seed, on_nand, Durability::Always);
            let reached = life(&bench, seed, 30, End::Cut(cut))?;
            // And once more while it recovers, or soon after.
            life(&bench, seed + 1, 6, End::Cut(cut % 7))?;
            life(&bench, seed + 2, 6, End::Crash)?;
            Ok(reached)
        };
        match crash() {
            Ok(true) => cut += every,
            Ok(false) => return cut,
            Err(error) => panic!("cut {cut}, NAND {on_nand}: {error}"),
        }
    }
}

#[test]
fn power_may_be_cut_at_every_operation() {
    for on_nand in [true, false] {
        let cuts = cut_everywhere(on_nand, 1);
        assert!(cuts > 50, "only {cuts} operations were cut");
    }
}

/// In each program in turn, with frames of other lanes on their way: nobody is told of it, and the drive goes on.
#[test]
fn a_program_that_fails_in_one_of_several_lanes_costs_a_segment_and_nothing_else() {
    let (mut relocations, mut done) = (0, 0);
    for at in (1..).step_by(3) {
        let bench = Bench::new(at, true, Durability::Always);
        let nand = bench.nand.clone().expect("it is NAND");
        if at % 2 == 0 {
            nand.fail_erase_at(at / 6 + 1)
        } else {
            nand.fail_program_at(at)
        }
        // Two at once, now and then.
        if at % 5 == 0 {
            nand.fail_program_at(at + 1);
        }
        let programs = nand.counts().programs;
        for (number, end) in [End::Crash, End::Close { checkpoint: true }, End::Crash].into_iter().enumerate()
        {
            life(&bench, at + number as u64, 10, end)
                .unwrap_or_else(|error| panic!("program {at}, life {number}: {error}"));
        }
        relocations += bench.told.borrow().relocations;
        done += 1;
        if at > nand.counts().programs - programs || at > 150 {
            break;
        }
    }
    assert!(relocations * 2 > done, "{relocations} of {done} failures struck a commit");
}

#[test]
fn programs_that_fail_by_chance_in_any_lane_lose_nothing() {
    each_seed(100..112, |seed| {
        let bench = Bench::new(seed, true, Durability::Always);
        let nand = bench.nand.clone().expect("it is NAND");
        let mut rng = Rng::from_seed(seed).split("chances");
        for number in 0..4 {
            nand.fail_by_chance(Operation::Program, 0.01);
            nand.fail_by_chance(Operation::Erase, 0.02);
            let end =
                [End::Crash, End::Cut(100 + rng.below(200)), End::Close { checkpoint: true }][number % 3];
            life(&bench, rng.next_u64(), 25, end).map_err(|error| format!("life {number}: {error}"))?;
            nand.fail_by_chance(Operation::Program, 0.0);
            nand.fail_by_chance(Operation::Erase, 0.0);
        }
        life(&bench, rng.next_u64(), 5, End::Crash)?;
        if bench.told.borrow().relocations == 0 { Err("nothing failed".into()) } else { Ok(()) }
    });
}

/// A commit frame that lies on the drive.
#[derive(Clone, Debug)]
struct OnFlash {
    at: Addr,
    header: FrameHeader,
}

/// Every commit frame, by number, as a reader of `docs/format` would find them.
async fn frames(device: &Device) -> Vec<OnFlash> {
    let mut found = Vec::new();
    for segment in 0..SEGMENTS as u32 {
        let block = device.geometry().block(segment);
        let pages = device.write_pointer(block).unwrap_or(SEGMENT_BYTES / PAGE_BYTES);
        let mut bytes = Vec::new();
        for page in 0..pages {
            let buf = IoBuf::for_read(PAGE_BYTES as usize);
            let (result, buf) = device.read(block, page * PAGE_BYTES, buf).await;
            let zeros = vec![0; PAGE_BYTES as usize];
            bytes.extend_from_slice(if result.is_ok() { &buf[..] } else { &zeros });
        }
        let Decoded::Header(header) = SegmentHeader::decode(&bytes) else { continue };
        if header.stream != Stream::Commit {
            continue;
        }
        for offset in (PAGE_BYTES..bytes.len() as u32).step_by(PAGE_BYTES as usize) {
            let at = Addr::new(SegmentId(segment), offset);
            if let Some(header) = FrameHeader::decode(&bytes[offset as usize..], header.life, at) {
                found.push(OnFlash { at, header });
            }
        }
    }
    found.sort_by_key(|frame| frame.header.number);
    found
}

/// A drive with a log over several lanes that was not checkpointed, all of it acknowledged, and its frames.
fn full_log(seed: u64) -> (Bench, Vec<OnFlash>) {
    let bench = Bench::new(seed, true, Durability::Always);
    let (nand, told, options) = (bench.nand.clone(), Rc::clone(&bench.told), open_options(&bench));
    let frames = bench.up(async move {
        let (heap, ..) = Bench::open(nand.clone(), Rc::clone(&told), options, false).await.expect("open");
        let mut waits = Vec::new();
        for _ in 0..60 {
            let (number, last, _) = append(&heap, &told, &[4000, 4000]).await.expect("append");
            waits.push((number, last));
            if waits.len() % 12 == 0 {
                sleep(Duration::from_micros(100)).await;
            }
        }
        for (number, last) in waits {
            heap.wait_durable(last).await.expect("durable");
            told.borrow_mut().acknowledged.insert(number);
        }
        frames(&device(nand).await).await
    });
    bench.world.kill(bench.host);
    bench.world.restart(bench.host);
    (bench, frames)
}

/// What an opener finds when these frames do not read: the batches, and how many places are damaged.
fn found_without(bench: &Bench, lost: &[OnFlash]) -> (Vec<u64>, usize) {
    let nand = bench.nand.clone().expect("it is NAND");
    for frame in lost {
        let geometry = nand.geometry();
        let (block, page) = (geometry.block(frame.at.segment().0), frame.at.offset() / PAGE_BYTES);
        nand.tear_page(block, page);
    }
    let (told, options) = (Rc::clone(&bench.told), open_options(bench));
    let opened = bench.up(async move { Bench::open(Some(nand), told, options, true).await });
    let (_, mut found, damage) = opened.expect("open");
    found.dedup();
    (found, damage)
}

/// The torn end: of the frames that no later one proves durable any subset may be missing. What comes before the first of them
/// is all there is, and it is no damage; what is proven and missing is damage, and everything else is kept.
#[test]
fn of_frames_under_way_any_subset_may_be_torn_and_what_is_proven_is_reported() {
    let (bench, all) = full_log(9);
    drop(bench);
    let segments: BTreeSet<u32> = all.iter().map(|frame| frame.at.segment().0).collect();
    assert!(segments.len() >= 4 && all.len() > 20, "{} frames in {segments:?}", all.len());
    let numbers: Vec<u64> = all.iter().map(|frame| frame.header.number).collect();
    assert_eq!(numbers, (numbers[0]..numbers[0] + all.len() as u64).collect::<Vec<_>>());
    each_seed(0..80, |seed| {
        let mut rng = Rng::from_seed(seed).split("subset");
        let (bench, all) = full_log(9);
        // One in two loses frames of the last ones only, others some anywhere, or a lane whole.
        let is_lost: Vec<bool> = match rng.below(4) {
            0 | 1 => (0..all.len()).map(|at| at + 12 >= all.len() && rng.chance(0.4)).collect(),
            2 => all.iter().map(|_| rng.chance(0.05)).collect(),
            _ => {
                let gone = all[rng.below(all.len() as u64) as usize].at.segment();
                all.iter().map(|frame| frame.at.segment() == gone).collect()
            }
        };
        let (lost, kept): (Vec<_>, Vec<_>) = all.iter().zip(&is_lost).partition(|(_, lost)| **lost);
        let lost: Vec<OnFlash> = lost.into_iter().map(|(frame, _)| frame.clone()).collect();
        let proven = kept
            .iter()
            .map(|(frame, _)| frame.header.number - u64::from(frame.header.lag))
            .max()
            .unwrap_or(0);
        let end = lost.iter().map(|frame| frame.header.number).find(|&number| number >= proven);
        let damaged = lost.iter().any(|frame| frame.header.number < proven);
        let (found, damage) = found_without(&bench, &lost);
        let said = format!("{lost:?} lost, proven {proven}, found {found:?}, {damage} damaged");
        if damaged != (damage > 0) {
            return Err(format!("damage is reported when there is some: {said}"));
        }
        // Frames up to the first without MORE are taken whole or not at all; batch 0 has numbers 1 and 2, and so on.
        let (mut expected, mut group, mut is_whole) = (BTreeSet::new(), Vec::new(), true);
        for (frame, is_lost) in all.iter().zip(&is_lost) {
            if end.is_some_and(|end| frame.header.number >= end) {
                break;
            }
            is_whole &= !is_lost;
            group.extend(frame.header.seq..frame.header.seq + u64::from(frame.header.count));
            if !frame.header.more {
                if is_whole {
                    expected.extend(group.iter().map(|seq| (seq - 1) / 2));
                }
                (group, is_whole) = (Vec::new(), true);
            }
        }
        let found: BTreeSet<u64> = found.into_iter().collect();
        if (!damaged && found != expected) || !found.is_superset(&expected) {
            return Err(format!("not {expected:?}: {said}"));
        }
        Ok(())
    });
}

/// A channel that others keep busy holds nobody up for longer than its own frames take, and nothing comes out of order.
#[test]
fn a_slow_channel_slows_and_loses_nothing() {
    each_seed(0..4, |seed| {
        let bench = Bench::new(seed, true, Durability::Always);
        let (nand, told, options) = (bench.nand.clone(), Rc::clone(&bench.told), open_options(&bench));
        bench.up(async move {
            let (heap, ..) = Bench::open(nand.clone(), Rc::clone(&told), options, false).await.expect("open");
            let stop = Rc::new(std::cell::Cell::new(false));
            let device = device(nand).await;
            let readers: Vec<JoinHandle<()>> = (0..16)
                .map(|_| {
                    let (device, stop) = (device.clone(), Rc::clone(&stop));
                    spawn(async move {
                        while !stop.get() {
                            let block = device.geometry().block(0);
                            let _ = device.read(block, 0, IoBuf::for_read(PAGE_BYTES as usize)).await;
                        }
                    })
                })
                .collect();
            clients(heap.clone(), Rc::clone(&told), seed, 6, 40).await;
            stop.set(true);
            for reader in readers {
                let _ = reader.await;
            }
            assert!(heap.read_only().is_none());
        });
        bench.nand.as_ref().expect("it is NAND").cut_power();
        bench.world.kill(bench.host);
        bench.nand.as_ref().expect("it is NAND").power_on();
        bench.world.restart(bench.host);
        life(&bench, seed, 3, End::Crash).map(drop)
    });
}

/// A trickle fills one segment; only what is more than a channel carries goes to others.
#[test]
fn who_writes_little_fills_one_segment_at_a_time() {
    let bench = Bench::new(3, true, Durability::Always);
    let (nand, told, options) = (bench.nand.clone(), Rc::clone(&bench.told), open_options(&bench));
    bench.up(async move {
        let (heap, ..) = Bench::open(nand, Rc::clone(&told), options, false).await.expect("open");
        let mut segments = BTreeSet::new();
        for _ in 0..14 {
            let (_, last, ptrs) = append(&heap, &told, &[100]).await.expect("append");
            heap.wait_durable(last).await.expect("durable");
            segments.extend(ptrs.iter().map(|ptr| ptr.addr.segment().0));
        }
        assert_eq!(segments.len(), 1, "{segments:?}");
    });
}

/// The log is dealt over several lanes as soon as its drive has them, and read in either way.
#[test]
fn a_log_in_one_piece_is_spread_when_its_drive_has_several_lanes() {
    let mut bench = Bench::new(5, true, Durability::Always);
    let mut found = Vec::new();
    for (lanes, is_closed, channels) in
        [(Some(1), true, 1), (None, false, 4), (None, false, 4), (Some(1), false, 1)]
    {
        bench.lanes = lanes;
        let (nand, told, options) = (bench.nand.clone(), Rc::clone(&bench.told), open_options(&bench));
        let (before, segments) = bench.up(async move {
            let opened = Bench::open(nand, Rc::clone(&told), options, true).await;
            let (heap, before, damage) = opened.expect("open");
            assert_eq!(damage, 0);
            let mut waits = Vec::new();
            let mut segments = BTreeSet::new();
            for _ in 0..8 {
                let (_, last, ptrs) = append(&heap, &told, &[5000, 5000]).await.expect("append");
                segments.extend(ptrs.iter().map(|ptr| ptr.addr.segment().0));
                waits.push(last);
            }
            for last in waits {
                heap.wait_durable(last).await.expect("durable");
            }
            if is_closed {
                checkpoint(&heap, &told).await.expect("checkpoint");
                heap.close().await.expect("close");
            }
            (before, segments)
        });
        // A batch is two records, and is numbered by how many there were.
        found = before;
        if channels == 1 {
            assert!(segments.len() <= 2, "one after the other: {segments:?}");
        } else {
            assert!(segments.len() >= 3, "side by side: {segments:?}");
        }
        bench.nand.as_ref().expect("it is NAND").cut_power();
        bench.world.kill(bench.host);
        bench.nand.as_ref().expect("it is NAND").power_on();
        bench.world.restart(bench.host);
    }
    assert_eq!(found.len(), 2 * 8 * 2, "all that there was before the last opening: {found:?}");
}

/// A checkpoint of what was known at a clean opening covers what was written before: its segments are not read by a recovery any
/// more, which does not miss them.
#[test]
fn a_checkpoint_covers_what_was_written_before_a_clean_opening() {
    let bench = Bench::new(11, true, Durability::Always);
    for is_last in [false, true] {
        let (nand, told, options) = (bench.nand.clone(), Rc::clone(&bench.told), open_options(&bench));
        bench.up(async move {
            let device = device(nand).await;
            let mut opened = Heap::open(device, options, &no_progress).await.expect("open");
            while opened.replay.next().await.expect("replay").is_some() {}
            let heap = opened.heap;
            let before = heap.last_seq();
            assert_eq!(opened.clean && before > 0, is_last);
            let mut last = 0;
            for _ in 0..80 {
                last = append(&heap, &told, &[5000, 5000]).await.expect("append").1;
            }
            heap.wait_durable(last).await.expect("durable");
            if is_last {
                let edit = MetaEdit::Snapshot(80u64.to_le_bytes().to_vec().into());
                heap.commit_meta(edit, before).await.expect("checkpoint");
            } else {
                checkpoint(&heap, &told).await.expect("checkpoint");
                heap.close().await.expect("close");
            }
        });
        bench.nand.as_ref().expect("it is NAND").cut_power();
        bench.world.kill(bench.host);
        bench.nand.as_ref().expect("it is NAND").power_on();
        bench.world.restart(bench.host);
    }
    let (found, damage) = found_without(&bench, &[]);
    assert_eq!((found, damage), ((80..160).collect(), 0));
}

/// What a checkpoint covers is not replayed, but it is where it was: cleaning must find it in the segments that were open, and
/// ask for each record whether it is needed.
#[test]
fn what_a_checkpoint_covers_stays_in_segments_that_were_open() {
    let bench = Bench::new(12, true, Durability::Always);
    let mut ptrs = BTreeMap::<SegmentId, Vec<RecordPtr>>::new();
    for is_last in [false, true] {
        let (nand, told, options) = (bench.nand.clone(), Rc::clone(&bench.told), open_options(&bench));
        ptrs = bench.up(async move {
            let (heap, found, damage) =
                Bench::open(nand, Rc::clone(&told), options, false).await.expect("open");
            assert!(damage == 0 && found.is_empty(), "{found:?}");
            if is_last {
                for (segment, mut missing) in ptrs {
                    let records = heap.contents(segment).await.expect("contents").records;
                    missing.retain(|ptr| records.iter().all(|record| record.ptr != *ptr));
                    assert!(missing.is_empty(), "{segment}: {missing:?} are not found");
                }
                return BTreeMap::new();
            }
            let (mut last, mut ptrs) = (0, BTreeMap::<SegmentId, Vec<RecordPtr>>::new());
            for _ in 0..20 {
                let appended = append(&heap, &told, &[5000, 500]).await.expect("append");
                last = appended.1;
                appended.2.into_iter().for_each(|ptr| ptrs.entry(ptr.addr.segment()).or_default().push(ptr));
            }
            heap.wait_durable(last).await.expect("durable");
            checkpoint(&heap, &told).await.expect("checkpoint");
            assert!(ptrs.len() >= 4, "{ptrs:?}");
            ptrs
        });
        bench.nand.as_ref().expect("it is NAND").cut_power();
        bench.world.kill(bench.host);
        bench.nand.as_ref().expect("it is NAND").power_on();
        bench.world.restart(bench.host);
    }
    assert!(ptrs.is_empty());
}
