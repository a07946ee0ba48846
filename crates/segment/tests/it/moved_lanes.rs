//! Records moved into several segments at once, on NAND of several channels, in virtual time: several movers beside each other and
//! a client that makes checkpoints; whatever a power cut tears, each move that was answered is found by the next opening. Replay
//! one: `PUMICE_SEED=N cargo test -p pumice-segment --test it moved_lanes::`.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

use crate::common::{self, format_options, no_progress};
use pumice_base::rng::Rng;
use pumice_flash::{Access, Device, DeviceSpec, Emulated};
use pumice_reactor::sim::{HostId, HostOptions, World};
use pumice_reactor::sync::Semaphore;
use pumice_reactor::{JoinHandle, spawn};
use pumice_segment::{
    Addr, Damage, FormatOptions, Heap, HeapOptions, MetaEdit, MovedRecord, RecordPtr, Stream,
};

const SEGMENT_BYTES: u32 = 64 << 10;
const PAGE_BYTES: u32 = 4096;
const CHANNELS: u16 = 4;
const NAND: &str = "emu:sdf,channels=4,dies=1,planes=1,stripe=1,blocks=48,page=4096,pages=16,oob=224,read_us=5,\
                    program_us=40,erase_us=200,bus=0,link_read=0,link_write=0,request_us=0";
const KEYS: u64 = 40;
/// Of the turn that a checkpoint takes whole: no move is between its number and its being applied meanwhile.
const TURNS: u64 = 64;

/// Where each key's record is, and its sequence number.
type Places = BTreeMap<u64, (u64, RecordPtr)>;

fn encoded(places: &Places) -> Vec<u8> {
    let mut out = Vec::new();
    for (&key, &(seq, ptr)) in places {
        [key, seq, ptr.addr.0, u64::from(ptr.len)].iter().for_each(|n| out.extend(n.to_le_bytes()));
    }
    out
}

fn decoded(bytes: &[u8]) -> Places {
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    let entry = |entry: &[u8]| {
        let [key, seq, addr, len] = [0, 8, 16, 24].map(|at| number(&entry[at..at + 8]));
        (key, (seq, RecordPtr { addr: Addr(addr), len: len as u32 }))
    };
    bytes.chunks(32).map(entry).collect()
}

struct Bench {
    world: World,
    host: HostId,
    nand: Arc<Emulated>,
    /// What was answered: survives crashes.
    told: Rc<RefCell<Places>>,
}

impl Bench {
    fn new(seed: u64) -> Self {
        let world = World::new(seed);
        let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
        let nand = world.block_on(host, async move {
            let spec: DeviceSpec = format!("{NAND},seed={seed}").parse().expect("spec");
            let device = Device::open(&spec, Access::ReadWrite).await.expect("nand");
            let format =
                FormatOptions { segment_bytes: SEGMENT_BYTES, channels: CHANNELS, ..format_options() };
            Heap::format(&device, &format).await.expect("format");
            match device {
                Device::Emulated(nand) => nand,
                _ => panic!("not NAND"),
            }
        });
        Self { world, host, nand: nand.expect("the host is up"), told: Rc::default() }
    }

    fn up<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> Option<T> {
        self.world.block_on(self.host, future).ok()
    }

    fn crash(&self) {
        self.nand.cut_power();
        self.world.kill(self.host);
        self.nand.power_on();
        self.world.restart(self.host);
    }
}

/// Opens the drive: the heap, where the keys are, and what is damaged.
async fn open(nand: Arc<Emulated>) -> Result<(Heap, Places, Vec<Damage>), String> {
    let options =
        HeapOptions { reserve_segments: Some(4), commit_max_bytes: 16 << 10, ..common::in_windows() };
    let opened = Heap::open(Device::Emulated(nand), options, &no_progress).await;
    let mut opened = opened.map_err(|error| error.to_string())?;
    let mut places = opened.client_state.last().map_or_else(Places::new, |state| decoded(state));
    let mut damage = Vec::new();
    while let Some(batch) = opened.replay.next().await.map_err(|error| error.to_string())? {
        damage.extend(batch.damage);
        assert!(batch.stream == Stream::Moved || batch.records.is_empty(), "{:?}", batch.stream);
        for record in batch.records {
            let key = u64::from_le_bytes(record.payload[..8].try_into().expect("eight bytes"));
            let known = places.get(&key).map_or(0, |&(seq, _)| seq);
            if record.seq > known {
                places.insert(key, (record.seq, record.ptr));
            }
        }
    }
    Ok((opened.heap, places, damage))
}

/// Every move that was answered is there, or one of the same key that is newer; all that is named reads.
async fn verify(heap: &Heap, places: &Places, told: &Places) {
    for (key, (seq, _)) in told {
        let found = places.get(key).map_or(0, |&(seq, _)| seq);
        assert!(found >= *seq, "key {key}: move {seq} was answered, {found} was found");
    }
    for (key, &(_, ptr)) in places {
        let record = heap.read(ptr).await.unwrap_or_else(|error| panic!("key {key}: {error}"));
        assert_eq!(record.payload[..8], key.to_le_bytes(), "{ptr}");
    }
}

/// Several movers at once, and a checkpoint now and then. Ends when all are through or the heap stops.
async fn movers(heap: &Heap, places: Places, told: Rc<RefCell<Places>>, seed: u64, each: u64) {
    let (places, turn) = (Rc::new(RefCell::new(places)), Arc::new(Semaphore::new(TURNS)));
    let tasks: Vec<JoinHandle<()>> = (0..6)
        .map(|mover| {
            let (heap, places, told) = (heap.clone(), Rc::clone(&places), Rc::clone(&told));
            let (turn, mut rng) = (turn.clone(), Rng::from_seed(seed).split(&format!("mover {mover}")));
            spawn(async move {
                for _ in 0..each {
                    let permit = turn.acquire(1).await;
                    let keys: BTreeSet<u64> = (0..1 + rng.below(4)).map(|_| rng.below(KEYS)).collect();
                    let record = |&key: &u64| {
                        let filler = vec![key as u8; rng.below(9000) as usize];
                        let payload = [&key.to_le_bytes()[..], &filler].concat().into();
                        MovedRecord { seq: heap.next_seq(1), kind: 1, payload }
                    };
                    let records: Vec<MovedRecord> = keys.iter().map(record).collect();
                    let Ok(moved) = heap.write_moved(records.clone()).await else { return };
                    for ((key, record), ptr) in keys.iter().zip(&records).zip(&moved.ptrs) {
                        let mut places = places.borrow_mut();
                        if places.get(key).is_some_and(|&(seq, _)| seq > record.seq) {
                            heap.mark_dead(*ptr);
                        } else if let Some((_, old)) = places.insert(*key, (record.seq, *ptr)) {
                            heap.mark_dead(old);
                        }
                        let newest = places[key];
                        told.borrow_mut().insert(*key, newest);
                    }
                    drop((moved.ticket, permit));
                    match rng.below(12) {
                        0 => {
                            let _all = turn.acquire(TURNS).await;
                            let state = MetaEdit::Snapshot(encoded(&places.borrow()).into());
                            if heap.commit_meta(state, heap.last_seq()).await.is_err() {
                                return;
                            }
                        }
                        1 => heap.seal_tables(),
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

/// Some lives of a drive, each ended by a power cut at operation `at` of it, if it comes so far.
fn lives(seed: u64) {
    println!("replay: PUMICE_SEED={seed} cargo test -p pumice-segment --test it moved_lanes::");
    let bench = Bench::new(seed);
    let mut rng = Rng::from_seed(seed).split("cuts");
    for life in 0..6u64 {
        bench.nand.cut_power_at(1 + rng.below(90));
        let (nand, told) = (bench.nand.clone(), Rc::clone(&bench.told));
        bench.up(async move {
            let opened = open(nand.clone()).await;
            let (heap, places, damage) = match opened {
                Ok(opened) => opened,
                Err(_) if !nand.is_powered() => return,
                Err(error) => panic!("{error}"),
            };
            assert!(damage.is_empty(), "{damage:?}");
            if nand.is_powered() {
                let answered = told.borrow().clone();
                verify(&heap, &places, &answered).await;
            }
            movers(&heap, places, told, seed << 8 | life, 12).await;
        });
        bench.crash();
    }
    let (nand, told) = (bench.nand.clone(), Rc::clone(&bench.told));
    let seen = bench.up(async move {
        let (heap, places, damage) = open(nand).await.expect("open");
        assert!(damage.is_empty(), "{damage:?}");
        let answered = told.borrow().clone();
        verify(&heap, &places, &answered).await;
        places.len()
    });
    assert!(seen.expect("no power cut") > 0);
}

#[test]
fn what_was_moved_is_found_after_a_power_cut() {
    match std::env::var("PUMICE_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => lives(seed),
        None => (1..=60).for_each(lives),
    }
}

/// Where the records of moves lie that no checkpoint covers, in a drive that just crashed.
fn uncovered(bench: &Bench) -> Vec<RecordPtr> {
    let (nand, told) = (bench.nand.clone(), Rc::clone(&bench.told));
    let ptrs = bench.up(async move {
        let (heap, places, _) = open(nand).await.expect("open");
        let turn: Vec<JoinHandle<Vec<RecordPtr>>> = (0..6u64)
            .map(|mover| {
                let heap = heap.clone();
                spawn(async move {
                    let mut ptrs = Vec::new();
                    for at in 0..8 {
                        let key = mover * 8 + at;
                        let payload = [&key.to_le_bytes()[..], &[0; 5000]].concat().into();
                        let record = MovedRecord { seq: heap.next_seq(1), kind: 1, payload };
                        ptrs.extend(heap.write_moved(vec![record]).await.expect("moved").ptrs);
                    }
                    ptrs
                })
            })
            .collect();
        let mut ptrs = Vec::new();
        for task in turn {
            ptrs.extend(task.await.expect("mover"));
        }
        assert!(places.is_empty() && told.borrow().is_empty());
        ptrs
    });
    bench.crash();
    ptrs.expect("no power cut")
}

#[test]
fn moves_go_to_several_channels_at_once() {
    let segments: BTreeSet<u32> =
        uncovered(&Bench::new(1)).iter().map(|ptr| ptr.addr.segment().0 % u32::from(CHANNELS)).collect();
    assert!(segments.len() >= 3, "{segments:?}");
}

/// What was just moved looks dead to whoever asks the index before it names the new place.
#[test]
fn a_segment_with_moves_that_nothing_names_yet_is_no_victim() {
    let bench = Bench::new(3);
    let nand = bench.nand.clone();
    bench
        .up(async move {
            let heap = open(nand).await.expect("open").0;
            let moving: Vec<_> = (0..4u64)
                .map(|key| {
                    let heap = heap.clone();
                    spawn(async move {
                        let payload = [&key.to_le_bytes()[..], &[0; 5000]].concat().into();
                        let record = MovedRecord { seq: heap.next_seq(1), kind: 1, payload };
                        heap.write_moved(vec![record]).await.expect("moved")
                    })
                })
                .collect();
            let mut moved = Vec::new();
            for task in moving {
                moved.push(task.await.expect("mover"));
            }
            // They are full for all that anybody knows, and hardly anything in them is alive.
            heap.seal_tables();
            assert_eq!(heap.victim(|_| 0), None);
            let named = moved.pop().expect("one of several");
            let segment = named.ptrs[0].addr.segment();
            drop(named.ticket);
            assert_eq!(heap.victim(|_| 0), Some(segment));
            assert_eq!(heap.victim(|_| 0), None);
        })
        .expect("no power cut");
}

/// Numbers of frames say nothing of what is missing in one of several segments: places do.
#[test]
fn a_moved_frame_that_rots_before_another_one_is_reported() {
    for is_first in [false, true] {
        let bench = Bench::new(2);
        let ptrs = uncovered(&bench);
        let segment = ptrs[0].addr.segment();
        let mut offsets: Vec<u32> =
            ptrs.iter().filter(|ptr| ptr.addr.segment() == segment).map(|ptr| ptr.addr.offset()).collect();
        offsets.sort_unstable();
        assert!(offsets.len() >= 3, "{offsets:?}");
        let lost = offsets[usize::from(!is_first)] / PAGE_BYTES;
        bench.nand.tear_page(bench.nand.geometry().block(segment.0), lost);
        let nand = bench.nand.clone();
        let damage = bench.up(async move { open(nand).await.expect("open").2 }).expect("no power cut");
        assert!(
            damage.iter().any(|damage| damage.segment == segment),
            "page {lost} of {segment}: {damage:?}"
        );
    }
}
