//! World `ftl`: raw flash under a mixed workload, power cut at every operation that changes the media.
//!
//! 1. A drive so small that everything wraps early, drawn from the seed: emulated NAND with tags beside its pages, raw NAND
//!    that is corrected in software, or a file; timed or not; now and then a program or an erase fails.
//! 2. Clients, each with ids of its own, write, erase, discard, refresh and read; then the drive is closed.
//! 3. The power is cut at one operation, the drive opened again, each segment read and compared with a plain model; in every
//!    third run the power is cut once more while it recovers and goes on.
//!
//! One run without a cut counts the operations; then each of them is cut, or a sample where there are many.

mod client;
mod model;

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use model::Model;
use pumice_base::hash::stable_hash64;
use pumice_base::rng::Rng;
use pumice_flash::{Access, Device, DeviceSpec, Emulated, FlashError, Geometry};
use pumice_reactor::sim::{CutMode, Halt, HostId, HostOptions, PowerCut, World};
use pumice_segment::ftl::{RawDamage, RawError, RawFlash, RawFormat, RawOptions};

use crate::report::{Report, RunOptions};
use crate::worlds::{Broken, Outcome, caught};

const PATH: &str = "/drive0";
const MODES: [CutMode; 3] = [CutMode::Before, CutMode::Torn, CutMode::After];
/// Virtual time that one part of a run may take: far more than any needs.
const LIMIT: Duration = Duration::from_secs(600);
/// Calls of each client, and clients.
const CALLS: u64 = 12;
pub(super) const CLIENTS: u64 = 3;
/// More cuts than this per seed are sampled.
const CUTS_MAX: u64 = 600;

/// What the drive of a seed is made of.
#[derive(Clone, Debug)]
enum Media {
    /// This specification.
    Nand(String),
    /// A file of this shape.
    File(Geometry),
}

#[derive(Clone, Debug)]
struct Setup {
    media: Media,
    options: RawOptions,
    /// Programs and erases fail now and then.
    fails: bool,
}

impl Setup {
    fn draw(seed: u64, rng: &mut Rng) -> Self {
        let (channels, blocks, pages) = (1 + rng.below(3), 10 + rng.below(8), 8 << rng.below(2));
        let shape = format!("channels={channels},blocks={blocks},pages={pages},seed={seed}");
        // Where checksums take a table: of a page beside the tag, or of more.
        let (page_bytes, pages_of_table) =
            if rng.split("table").chance(0.5) { (512, 128) } else { (4096, pages) };
        let table = format!(
            "channels={channels},blocks={blocks},pages={pages_of_table},page={page_bytes},seed={seed}"
        );
        let timed = match rng.below(2) {
            0 => "",
            _ => ",timing=on,read_us=75,program_us=1000,erase_us=9200,bus=40",
        };
        let media = match rng.below(4) {
            0 | 1 => Media::Nand(format!("emu:tiny,{shape},dies=2,stripe=2,oob=64{timed}")),
            // 8 codewords of 512 bytes with t = 8: 13 bytes of parity each.
            2 => Media::Nand(format!("emu:tiny,{table},oob=128,ecc=off{timed}")),
            _ => Media::File(Geometry {
                channels: channels as u16,
                dies_per_channel: 1,
                planes_per_die: 1,
                dies_per_block: 1,
                blocks_per_channel: blocks as u32,
                pages_per_block: pages_of_table as u32,
                page_bytes,
                read_bytes: page_bytes,
                oob_bytes: 0,
            }),
        };
        let options = RawOptions { erased_ahead: rng.below(3) as u32, ..RawOptions::default() };
        Self { media, options, fails: rng.chance(0.3) }
    }
}

/// A host with the drive, over its crashes.
struct Bench {
    world: World,
    host: HostId,
    setup: Setup,
    /// Emulated media outlive the host's crashes.
    nand: RefCell<Option<Arc<Emulated>>>,
    model: Rc<RefCell<Model>>,
}

/// The power went: for the file the whole host is down, for emulated media every request says that they are gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Closed,
    Cut,
    /// Not closed: as after a crash.
    Left,
}

/// Whether nothing more can be done with the drive until it is opened again.
pub(super) fn is_over(error: &RawError) -> bool {
    matches!(error, RawError::Flash(FlashError::Gone { .. }) | RawError::CheckpointsWorn { .. })
}

/// Whether every good block holds a segment: then one that fails and is kept for checkpoints is made up for by nothing, and
/// the drive may say so.
fn is_full(raw: &RawFlash) -> bool {
    (0..raw.geometry().channels).all(|channel| {
        let counts = raw.counts(channel);
        counts.erased + counts.dirty == 0
    })
}

impl Bench {
    fn new(seed: u64, setup: Setup) -> Self {
        let world = World::new(seed);
        let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
        Self { world, host, setup, nand: RefCell::default(), model: Rc::default() }
    }

    fn run<T: 'static>(
        &self,
        future: impl Future<Output = Result<T, RawError>> + 'static,
    ) -> Result<Option<T>, String> {
        match self.world.block_on_for(self.host, LIMIT, future) {
            Ok(Ok(value)) => Ok(Some(value)),
            Ok(Err(error)) if is_over(&error) => Ok(None),
            Ok(Err(error)) => Err(error.to_string()),
            Err(Halt::HostDown) => Ok(None),
            Err(halt) => Err(halt.to_string()),
        }
    }

    /// The device, as after power on.
    fn device(&self, create: bool) -> Result<Device, String> {
        let (media, nand) = (self.setup.media.clone(), self.nand.borrow().clone());
        if let Some(nand) = nand {
            return Ok(Device::Emulated(nand));
        }
        let opened = self.run(async move {
            Ok(match media {
                Media::Nand(spec) => {
                    let spec = spec.parse::<DeviceSpec>().map_err(|error| geometry(&error))?;
                    Device::open(&spec, Access::ReadWrite).await?
                }
                Media::File(shape) => {
                    let spec = DeviceSpec::Path(Path::new(PATH).into());
                    let device = match create {
                        true => Device::create(&spec, shape.capacity_bytes()).await?,
                        false => Device::open(&spec, Access::ReadWrite).await?,
                    };
                    device.with_geometry(shape)?
                }
            })
        });
        let device = opened?.ok_or("the power went while the device was opened")?;
        if let Device::Emulated(nand) = &device {
            *self.nand.borrow_mut() = Some(Arc::clone(nand));
        }
        Ok(device)
    }

    fn mutations(&self) -> u64 {
        match self.nand.borrow().as_ref() {
            Some(nand) => nand.mutations(),
            None => self.world.counters(self.host).mutations,
        }
    }

    /// Cuts the power at a case counted from now: operations, and for files what becomes of the one that is struck.
    fn cut(&self, case: u64) {
        match self.nand.borrow().as_ref() {
            Some(nand) => nand.cut_power_at(case + 1),
            None => {
                let (at, mode) = (self.mutations() + case / 3, MODES[(case % 3) as usize]);
                self.world.cut_power(self.host, PowerCut { at, mode, fate: None });
            }
        }
    }

    /// Cases that so many operations give.
    fn cases(&self, operations: u64) -> u64 {
        if self.nand.borrow().is_some() { operations } else { operations * MODES.len() as u64 }
    }

    fn power_on(&self) {
        self.world.spare_power(self.host);
        if self.world.is_up(self.host) {
            self.world.crash(self.host);
        }
        self.world.restart(self.host);
        if let Some(nand) = self.nand.borrow().as_ref() {
            nand.power_on();
        }
    }

    fn format(&self) -> Result<(), String> {
        let (device, options) = (self.device(true)?, self.setup.options);
        let format = RawFormat { drive_id: *b"simulated drive!", force: false };
        let made = self.run(async move {
            let raw = RawFlash::format(device, format, options).await?;
            raw.close().await
        })?;
        made.ok_or_else(|| "the power went while the drive was made".to_string())
    }

    /// Opens the drive, lets the clients run, closes it.
    fn use_once(&self, calls: u64, rng: &Rng) -> Result<End, String> {
        let (device, options) = (self.device(false)?, self.setup.options);
        let (model, rng, fails) = (Rc::clone(&self.model), rng.clone(), self.setup.fails);
        let nand = self.nand.borrow().clone();
        let ran = self.run(async move {
            let opened = RawFlash::open(device, options, &|_, _| ()).await?;
            let verdict = model::check(&opened, &model).await?;
            if let Err(what) = verdict {
                return Ok(Err(what));
            }
            if let (true, Some(nand)) = (fails, nand) {
                let mut rng = rng.split("faults");
                nand.fail_program_at(1 + rng.below(80));
                nand.fail_erase_at(1 + rng.below(20));
            }
            let ended = match client::run_all(&opened.raw, &model, calls, &rng).await {
                Ok(Ok(())) => opened.raw.close().await,
                Ok(Err(what)) => return Ok(Err(what)),
                Err(error) => Err(error),
            };
            match ended {
                Ok(()) => Ok(Ok(End::Closed)),
                Err(RawError::CheckpointsWorn { .. }) if fails && is_full(&opened.raw) => {
                    model.borrow_mut().count("full drives without a block for checkpoints");
                    Ok(Ok(End::Left))
                }
                Err(RawError::CheckpointsWorn { .. }) => Ok(Err(format!("{:?}", opened.raw.space()))),
                Err(error) => Err(error),
            }
        })?;
        ran.unwrap_or(Ok(End::Cut))
    }
}

/// A specification that is not understood, as an error that a run passes on.
fn geometry(error: &impl std::fmt::Display) -> RawError {
    FlashError::Geometry(error.to_string()).into()
}

/// Whether damage that an opening reported is one that a cut explains.
fn is_explained(damage: &RawDamage) -> bool {
    matches!(damage, RawDamage::Unfinished { .. })
}

/// One run. Answers the cases of its first use, and the hash of its events.
fn once(seed: u64, calls: u64, cut: Option<u64>, report: &mut Report) -> Result<(u64, u64), String> {
    let mut rng = Rng::from_seed(seed).split("ftl");
    let bench = Bench::new(seed, Setup::draw(seed, &mut rng));
    bench.format()?;
    let start = bench.mutations();
    if let Some(case) = cut {
        bench.cut(case);
    }
    let fail = |what: String| format!("{:?}: {what}", bench.setup);
    bench.use_once(calls, &rng.split("first")).map_err(fail)?;
    let cases = bench.cases(bench.mutations() - start);
    bench.power_on();
    if let Some(case) = cut.filter(|case| case % 3 == 0) {
        let mut again = rng.split(&format!("again {case}"));
        let few = if again.chance(0.5) { 6 } else { 200 };
        bench.cut(again.below(few));
        bench.use_once(calls / 2, &again).map_err(|what| fail(format!("second cut: {what}")))?;
        report.count("second cuts", 1);
        bench.power_on();
    }
    // Twice: what the first of these leaves behind is a clean drive.
    for name in ["third", "fourth"] {
        let end = bench.use_once(calls / 2, &rng.split(name)).map_err(fail)?;
        if end == End::Cut {
            return Err(fail("the drive went away without a cut".into()));
        }
        bench.world.crash(bench.host);
        bench.world.restart(bench.host);
    }
    for (name, count) in &bench.model.borrow().counts {
        report.count(name, *count);
    }
    Ok((cases, bench.world.event_hash()))
}

pub(crate) fn run(seed: u64, options: &RunOptions, report: &mut Report) -> Outcome {
    let calls = options.ops.unwrap_or(CALLS);
    if let Some(cut) = options.cut {
        return Ok(once(seed, calls, Some(cut), report).map(|(_, hash)| hash)?);
    }
    let (cases, mut hash) = once(seed, calls, None, report)?;
    let mut rng = Rng::from_seed(seed).split("sample");
    for case in 0..cases {
        if cases > CUTS_MAX && rng.below(cases) >= CUTS_MAX {
            continue;
        }
        let ran = caught(|| once(seed, calls, Some(case), report));
        let (_, one) = ran.map_err(|what: String| Broken {
            what: format!("power cut, case {case} of {cases}: {what}"),
            replay_args: format!(" --cut {case}"),
        })?;
        hash = stable_hash64(hash, &one.to_le_bytes());
        report.count("cuts", 1);
    }
    Ok(hash)
}
