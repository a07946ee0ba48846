//! A host with one drive, and the store on it together with its model.

use crate::oracle::{Key, Oracle, Seen, show};
use bytes::Bytes;
use pumice_base::hash::stable_hash64;
use pumice_base::rng::Rng;
use pumice_flash::{Access, Device, DeviceSpec, Emulated};
use pumice_kv::{
    Direction, Durability, Entry, MEMORY_BYTES_MIN, SliceId, SliceSet, Store, StoreError, StoreFormat,
    StoreOptions, Want,
};
use pumice_reactor::sim::{Halt, HostId, HostOptions, PowerCut, World};
use pumice_reactor::{Nanos, now};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::{Bound, Range};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

pub(crate) const PATH: &str = "/drive0";

/// The shape of a drive and of its store.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub segment_bytes: u32,
    pub segments: u64,
    pub channels: u16,
    pub slices: u16,
    pub memtable_bytes: u64,
    /// So much of a log is replayed at once, where it is not as much as memory has room for.
    pub replay_bytes: Option<u64>,
    /// Bytes of a segment that a recovery reads at a time, where it is not all of it.
    pub replay_window_bytes: Option<u32>,
    pub log_max_bytes: u64,
    pub inline_max: u16,
    /// Keys per space and slice-independent: small numbers make overwrites frequent.
    pub keys: u64,
    pub spaces: u32,
    pub durability: Durability,
    /// Of the store. With the default a drive of these sizes lies in its caches as a whole.
    pub memory_bytes: u64,
    /// Clients remove what has expired, and ask for random keys.
    pub picks: bool,
}

impl Setup {
    /// Shapes so small that everything wraps early.
    pub(crate) fn draw(rng: &mut Rng) -> Self {
        Self {
            segment_bytes: 256 << 10 << rng.below(2),
            segments: 64 + rng.below(64),
            channels: 1 << rng.below(3),
            slices: 1 + rng.below(4) as u16,
            memtable_bytes: 16 << 10 << rng.below(5),
            replay_bytes: rng.split("replay").chance(0.5).then(|| 512 << rng.split("part").below(9)),
            replay_window_bytes: rng
                .split("windows")
                .chance(0.5)
                .then(|| 32 << 10 << rng.split("window").below(4)),
            log_max_bytes: 256 << 10 << rng.below(4),
            inline_max: [0, 64, 128, 512][rng.below(4) as usize],
            keys: [20, 200, 2000][rng.below(3) as usize],
            spaces: 1 + rng.below(3) as u32,
            durability: Durability::Always,
            memory_bytes: StoreOptions::default().memory_bytes,
            picks: false,
        }
    }

    /// The least memory for half of the setups, and keys that fill more than that with long values: reads come from flash.
    pub(crate) fn draw_memory(self, rng: &Rng) -> Self {
        if rng.split("least memory").chance(0.5) {
            return self;
        }
        Self { memory_bytes: MEMORY_BYTES_MIN, keys: 200, ..self }
    }

    pub(crate) fn has_least_memory(&self) -> bool {
        self.memory_bytes == MEMORY_BYTES_MIN
    }

    /// The smallest, for exhaustive runs.
    pub(crate) fn tiny(rng: &mut Rng) -> Self {
        Self {
            segment_bytes: 64 << 10,
            segments: 48,
            channels: 1 + rng.below(2) as u16,
            slices: 1 + rng.below(3) as u16,
            memtable_bytes: 2 << 10,
            replay_bytes: None,
            replay_window_bytes: rng
                .split("windows")
                .chance(0.5)
                .then(|| 16 << 10 << rng.split("window").below(2)),
            log_max_bytes: 64 << 10,
            inline_max: 64,
            keys: 12,
            spaces: 2,
            durability: Durability::Always,
            memory_bytes: MEMORY_BYTES_MIN,
            picks: false,
        }
    }

    pub(crate) fn options(&self) -> StoreOptions {
        StoreOptions {
            memory_bytes: self.memory_bytes,
            log_max_bytes: self.log_max_bytes,
            memtable_bytes: Some(self.memtable_bytes),
            replay_bytes: self.replay_bytes,
            replay_window_bytes: self.replay_window_bytes,
            durability: self.durability,
            slack_bytes: 2 * u64::from(self.segment_bytes),
            ..StoreOptions::default()
        }
    }
}

/// What outlives a crash: the model and what is known of the store's promises.
pub(crate) struct Model {
    pub oracle: RefCell<Oracle>,
    /// Key spaces in use, with the clients in each.
    pub spaces: RefCell<BTreeMap<u32, u32>>,
    /// Spaces that are being retired, with the clients that have not left yet.
    pub leaving: RefCell<BTreeMap<u32, u32>>,
    next_space: Cell<u32>,
    /// Every id that was ever handed out.
    pub ids: RefCell<BTreeMap<u64, ()>>,
    /// The highest number of a write that was acknowledged: an id above it was used by nothing that is durable, and
    /// may come again after a crash.
    pub acknowledged_seq: Cell<u64>,
    pub durability: Durability,
    /// Writes that were told to be durable in a mode that may lose them, and when.
    pub promised: RefCell<VecDeque<(Nanos, u64)>>,
    pub keys: u64,
    pub slices: u16,
    pub counts: RefCell<BTreeMap<&'static str, u64>>,
    /// The drive may stop taking writes.
    pub may_fail: Cell<bool>,
}

impl Model {
    pub(crate) fn count(&self, name: &'static str, n: u64) {
        *self.counts.borrow_mut().entry(name).or_default() += n;
    }

    /// A write was told to be durable: the mode says what that is worth.
    pub(crate) fn promise(&self, write: u64, seq: u64) {
        if self.durability == Durability::Always {
            self.acknowledged_seq.set(self.acknowledged_seq.get().max(seq));
            self.oracle.borrow_mut().acknowledge(write);
        } else {
            self.promised.borrow_mut().push_back((now(), write));
        }
    }

    /// The host went down, at the last promise or later: what was promised `slack` before that must be there.
    pub(crate) fn keep_promises(&self, slack: Option<Duration>) {
        let promised = std::mem::take(&mut *self.promised.borrow_mut());
        let (Some(slack), Some(&(last, _))) = (slack, promised.back()) else { return };
        let old = promised.iter().rev().find(|(at, _)| last.since(*at) > slack);
        if let Some(&(_, write)) = old {
            self.oracle.borrow_mut().acknowledge(write);
            self.count("old writes that must survive", 1);
        }
    }

    /// No client runs any more. Spaces that were about to be retired keep what they hold, and nobody uses them again.
    pub(crate) fn after_clients(&self) {
        self.leaving.borrow_mut().clear();
        self.spaces.borrow_mut().values_mut().for_each(|users| *users = 0);
    }

    /// Parts of spaces, retired ones too, in which the store says that nobody looks any more: all others hold what the model
    /// says, which is nothing where the retirement survived. So one that reached some slices only is found, and one that
    /// hides what was to stay.
    fn hidden(&self, store: &Store) -> BTreeSet<(u16, u32)> {
        let parts = (0..self.slices).flat_map(|slice| self.spaces_ever().map(move |space| (slice, space)));
        parts.filter(|(slice, space)| store.is_retired(SliceId(*slice), &space.to_be_bytes())).collect()
    }

    fn spaces_ever(&self) -> Range<u32> {
        1..self.next_space.get()
    }

    /// A space that nothing was ever in.
    pub(crate) fn new_space(&self) -> u32 {
        let space = self.next_space.get();
        self.next_space.set(space + 1);
        self.spaces.borrow_mut().insert(space, 0);
        space
    }

    /// The key `number` of a space; its slice follows from its bytes.
    pub(crate) fn key(&self, space: u32, number: u64) -> Key {
        let mut bytes = space.to_be_bytes().to_vec();
        // A few keys are long, and some are prefixes of others.
        match number % 97 {
            0 => bytes.extend(std::iter::repeat_n(b'p', (number / 97) as usize % 40)),
            1 => bytes.extend(std::iter::repeat_n(number as u8, 300 + (number % 1000) as usize * 3)),
            _ => bytes.extend_from_slice(format!("key{number:06}").as_bytes()),
        }
        let slice = (stable_hash64(0, &bytes) % u64::from(self.slices)) as u16;
        (slice, bytes)
    }

    pub(crate) fn random_key(&self, space: u32, rng: &mut Rng) -> Key {
        let number = if rng.chance(0.5) { rng.below(self.keys.div_ceil(10)) } else { rng.below(self.keys) };
        self.key(space, number)
    }

    pub(crate) fn random_space(&self, rng: &mut Rng) -> u32 {
        let spaces = self.spaces.borrow();
        let nth = rng.below(spaces.len() as u64) as usize;
        match spaces.keys().nth(nth) {
            Some(&space) => space,
            None => panic!("there is always a space"),
        }
    }
}

/// The bytes of an entry, large or not.
pub(crate) async fn seen(store: &Store, entry: &Entry) -> Result<Seen, StoreError> {
    let mut bytes = entry.value.to_vec();
    if let Some(large) = &entry.large {
        let mut reader = store.read_large(large, 0..large.len());
        while let Some(piece) = reader.next().await? {
            bytes.extend_from_slice(&piece);
        }
    }
    Ok(Seen { bytes, tag: entry.tag, expire_ms: entry.expire_ms })
}

/// Bounds of all keys of a space.
pub(crate) fn space_bounds(space: u32) -> (Bound<Bytes>, Bound<Bytes>) {
    let at = |space: u32| Bytes::copy_from_slice(&space.to_be_bytes());
    (Bound::Included(at(space)), Bound::Excluded(at(space + 1)))
}

/// The host, its drive and the model.
pub(crate) struct Bench {
    pub world: World,
    pub host: HostId,
    pub setup: Setup,
    pub model: Rc<Model>,
    /// The drive when it is no file.
    nand: Option<Arc<Emulated>>,
}

/// Cores for clients; one more does background work.
pub(crate) const CLIENT_CORES: u16 = 2;

impl Bench {
    pub(crate) fn new(seed: u64, setup: Setup, host: HostOptions) -> Self {
        let world = World::new(seed);
        let host = world.add_host(HostOptions { cores: usize::from(CLIENT_CORES) + 1, ..host });
        let model = Rc::new(Model {
            oracle: RefCell::default(),
            spaces: RefCell::default(),
            leaving: RefCell::default(),
            next_space: Cell::new(1),
            ids: RefCell::default(),
            acknowledged_seq: Cell::new(0),
            durability: setup.durability,
            promised: RefCell::default(),
            keys: setup.keys,
            slices: setup.slices,
            counts: RefCell::default(),
            may_fail: Cell::new(false),
        });
        for _ in 0..setup.spaces {
            model.new_space();
        }
        Self { world, host, setup, model, nand: None }
    }

    /// The drive is emulated NAND, which outlives the host's crashes.
    pub(crate) fn on_nand(seed: u64, setup: Setup, faults_seed: u64) -> Self {
        let bench = Self::new(seed, setup, HostOptions::default());
        let setup = &bench.setup;
        let blocks = setup.segments.div_ceil(u64::from(setup.channels));
        let spec = format!(
            "emu:tiny,channels={},blocks={blocks},page=4096,pages={},seed={faults_seed}",
            setup.channels,
            setup.segment_bytes / 4096
        );
        bench.with_nand(spec)
    }

    /// [`Bench::on_nand`] of any kind.
    pub(crate) fn on_nand_of(seed: u64, setup: Setup, spec: String) -> Self {
        Self::new(seed, setup, HostOptions::default()).with_nand(spec)
    }

    fn with_nand(self, spec: String) -> Self {
        let made = self.world.block_on(self.host, async move {
            let spec: DeviceSpec = spec.parse().map_err(|error| format!("{error}"))?;
            Device::open(&spec, Access::ReadWrite).await.map_err(|error| error.to_string())
        });
        match made {
            Ok(Ok(Device::Emulated(nand))) => Self { nand: Some(nand), ..self },
            other => panic!("no emulated device: {:?}", other.map(|made| made.map(|_| "a file"))),
        }
    }

    pub(crate) fn nand(&self) -> Option<&Emulated> {
        self.nand.as_deref()
    }

    pub(crate) fn is_nand(&self) -> bool {
        self.nand.is_some()
    }

    /// Counts what this store, which is about to go, did.
    pub(crate) fn note_work(&self, store: &Store) {
        let stats = store.stats();
        let (counters, heap) = (stats.counters, stats.heap);
        for (name, count) in [
            ("flushes", counters.flushes),
            ("merges", counters.merges),
            ("key tables sunk", counters.sunk_tables),
            ("segments cleaned", counters.cleaned_segments),
            ("segments released", heap.segments_released),
            ("records moved", counters.moved_records),
            ("values read from flash", counters.value_reads),
            ("key blocks read from flash", counters.block_reads),
            ("heads of key tables read from flash", counters.head_reads),
        ] {
            self.model.count(name, count);
        }
        if self.setup.channels > 1 {
            self.model.count("victims emptied beside others", counters.victims_beside);
            self.model.count("commits beside others on other channels", heap.commits_beside);
            self.model.count("programs that failed beside others", heap.relocations);
        }
    }

    /// Power fails for the host and its drive.
    pub(crate) fn crash(&self) {
        self.world.crash(self.host);
        if let Some(nand) = &self.nand {
            nand.cut_power();
            nand.power_on();
        }
    }

    /// Makes the drive.
    pub(crate) fn format(&self) -> Result<(), String> {
        let (setup, nand) = (self.setup.clone(), self.nand.clone());
        let made = self.world.block_on(self.host, async move {
            let spec = DeviceSpec::Path(PATH.into());
            let bytes = setup.segments * u64::from(setup.segment_bytes);
            let device = match nand {
                Some(nand) => Device::Emulated(nand),
                None => Device::create(&spec, bytes).await.map_err(|error| format!("create: {error}"))?,
            };
            let format = StoreFormat {
                slices: setup.slices,
                drive_id: [7; 16],
                segment_bytes: Some(setup.segment_bytes),
                channels: setup.channels,
                inline_max: setup.inline_max,
                ..StoreFormat::default()
            };
            Store::format(&device, &format).await.map_err(|error| format!("format: {error}"))
        });
        made.map_err(|halt| format!("format: {halt}"))?
    }

    /// Opens the store, with its background work on the last core; `Ok(None)` when power was cut meanwhile.
    pub(crate) fn open(&self, background: bool) -> Result<Option<Store>, String> {
        let (options, nand) = (self.setup.options(), self.nand.clone());
        let opened = self.world.block_on(self.host, async move {
            let device = match nand {
                Some(nand) => Ok(Device::Emulated(nand)),
                None => Device::open(&DeviceSpec::Path(PATH.into()), Access::ReadWrite).await,
            };
            let device = device.map_err(|error| format!("open: {error}"))?;
            let opened = Store::open(device, options, &|_, _| {}).await;
            let opened = opened.map_err(|error| format!("open: {error}"))?;
            Ok::<_, String>(opened)
        });
        match opened {
            Ok(Ok(opened)) => {
                self.model.count("opens", 1);
                self.model.count("clean opens", u64::from(opened.clean));
                self.model.count("records replayed", opened.replayed);
                self.model.count("opens in parts", u64::from(opened.parts > 1));
                if let Some(damage) = opened.damage.first() {
                    return Err(format!("opening reports damage where there is none: {damage}"));
                }
                if background {
                    self.start_background(&opened.store);
                }
                Ok(Some(opened.store))
            }
            Ok(Err(error)) => Err(error),
            Err(Halt::HostDown) => Ok(None),
            Err(halt) => Err(format!("open: {halt}")),
        }
    }

    /// Starts the host again, opens the store and compares it with the model. With `cut`, power fails again at that
    /// operation of the recovery, if it has so many.
    pub(crate) fn recover(&self, cut: Option<PowerCut>) -> Result<Store, String> {
        // Background work changes places under a reader: half of the recoveries are looked at beside it.
        let background = self.world.rng(&format!("recovery {}", self.world.events())).chance(0.5);
        let store = self.reopen(cut, background)?;
        self.verify(&store)?;
        self.check(&store)?;
        if !background {
            self.start_background(&store);
        }
        Ok(store)
    }

    /// Opens the drive again and reads everything. What nothing names may have decayed.
    pub(crate) fn recover_worn(&self) -> Result<(), String> {
        let store = self.reopen(None, false)?;
        self.verify(&store)
    }

    /// Flush, merging and cleaning, on the last core.
    pub(crate) fn start_background(&self, store: &Store) {
        let store = store.clone();
        drop(self.world.run(self.host, CLIENT_CORES, async move { store.start_background() }));
    }

    fn reopen(&self, cut: Option<PowerCut>, background: bool) -> Result<Store, String> {
        self.world.restart(self.host);
        if let Some(cut) = cut {
            let at = self.world.counters(self.host).mutations + cut.at;
            self.world.cut_power(self.host, PowerCut { at, ..cut });
        }
        let opened = self.open(background)?;
        self.world.spare_power(self.host);
        if let Some(store) = opened {
            return Ok(store);
        }
        self.model.count("cuts in recovery", 1);
        self.world.restart(self.host);
        self.open(background)?.ok_or_else(|| "the host went down without a power cut".to_string())
    }

    /// Closes the store cleanly and stops the host.
    pub(crate) fn close(&self, store: Store) -> Result<(), String> {
        let closing = store.clone();
        let closed = self.world.block_on(self.host, async move { closing.close().await });
        closed
            .map_err(|halt| format!("close: {halt} ({}; {:?})", store.space(), store.stats()))?
            .map_err(|error| format!("close: {error}"))?;
        self.world.kill(self.host);
        Ok(())
    }

    /// Everything the store holds, but for what it hides as retired.
    pub(crate) fn contents(&self, store: &Store) -> Result<Option<BTreeMap<Key, Seen>>, String> {
        let (store, model) = (store.clone(), Rc::clone(&self.model));
        let read = self.world.block_on(self.host, async move {
            let mut contents = BTreeMap::new();
            // First: the list forgets prefixes of which no table speaks any more, and the snapshot's tables may do.
            let hidden = model.hidden(&store);
            model.count("retired parts of spaces", hidden.len() as u64);
            let snapshot = store.snapshot();
            for space in model.spaces_ever() {
                for slice in (0..model.slices).filter(|slice| !hidden.contains(&(*slice, space))) {
                    let set = SliceSet::One(SliceId(slice));
                    let (lower, upper) = space_bounds(space);
                    let mut scan = store.scan(&snapshot, set, lower, upper, Direction::Forward, Want::Values);
                    while let Some((key, entry)) = scan.next().await? {
                        let seen = seen(&store, &entry).await?;
                        contents.insert((slice, key.to_vec()), seen);
                    }
                }
            }
            Ok::<_, StoreError>(contents)
        });
        match read {
            Ok(Ok(contents)) => Ok(Some(contents)),
            Ok(Err(error)) => Err(format!("reading everything: {error}")),
            Err(Halt::HostDown) => Ok(None),
            Err(halt) => Err(format!("reading everything: {halt}")),
        }
    }

    /// After a crash and reopening: some prefix of the writes survived, gets agree with scans, and ids are not
    /// reused.
    pub(crate) fn verify(&self, store: &Store) -> Result<(), String> {
        let Some(contents) = self.contents(store)? else {
            return Err("the host went down during verification".into());
        };
        let survived = self.model.oracle.borrow_mut().survivors(&contents, |space| store.tally(space))?;
        self.model.count("keys verified", contents.len() as u64);
        self.model.count("writes survived", survived);
        self.verify_gets(store)
    }

    /// Every key the model knows, by get.
    fn verify_gets(&self, store: &Store) -> Result<(), String> {
        let (store, model) = (store.clone(), Rc::clone(&self.model));
        let read = self.world.block_on(self.host, async move {
            let keys: Vec<Key> = model.oracle.borrow().known_keys().cloned().collect();
            for key in keys.into_iter().filter(|key| !store.is_retired(SliceId(key.0), &key.1)) {
                let from = model.oracle.borrow_mut().begin_read();
                let entry = store.get(SliceId(key.0), &key.1).await;
                let entry = entry.map_err(|error| format!("get {}: {error}", show(&key)))?;
                let seen = match &entry {
                    Some(entry) => {
                        Some(seen(&store, entry).await.map_err(|e| format!("get {}: {e}", show(&key)))?)
                    }
                    None => None,
                };
                model.oracle.borrow_mut().end_read(&key, from, seen.as_ref())?;
            }
            let id = store.allocate_id();
            let used = id <= model.acknowledged_seq.get();
            if model.ids.borrow_mut().insert(id, ()).is_some() && used {
                return Err(format!("id {id} was handed out twice"));
            }
            Ok::<_, String>(())
        });
        read.map_err(|halt| format!("reading keys: {halt}"))?
    }

    /// The store's own check must find nothing.
    pub(crate) fn check(&self, store: &Store) -> Result<(), String> {
        let store = store.clone();
        let report = self.world.block_on(self.host, async move { store.check(&|_, _| {}).await });
        let report =
            report.map_err(|halt| format!("check: {halt}"))?.map_err(|error| format!("check: {error}"))?;
        self.model.count("checks", 1);
        if report.is_clean() {
            return Ok(());
        }
        Err(format!("check finds damage where there is none: {}", report.problems.join("; ")))
    }

    /// Bytes of the drive that were ever written: `(offset, bytes)`.
    pub(crate) fn extents(&self) -> Vec<(u64, u64)> {
        self.world.extents(self.host, Path::new(PATH))
    }
}
