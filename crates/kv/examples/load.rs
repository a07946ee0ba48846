//! LightStore's workloads against a store in process: sequential and random SET and GET, and a 9:1 mix.
//!
//! `cargo run --release -p pumice-kv --example load -- FILE VALUE_BYTES DATA_MIB [MEMORY_MIB] [FILL_PERCENT] [DEPTH] [INLINE_MAX]`

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use pumice_base::rng::Rng;
use pumice_flash::{Device, DeviceSpec};
use pumice_kv::{
    Batch, Direction, Peek, SliceId, SliceSet, Store, StoreFormat, StoreOptions, StoreStats, Want,
};
use pumice_reactor::sync::oneshot;
use pumice_reactor::{Config, CoreId, LocalBoxFuture, now, spawn};

#[derive(Clone)]
struct Args {
    file: PathBuf,
    value_bytes: usize,
    data_mib: u64,
    memory_mib: u64,
    fill_percent: u64,
    depth: usize,
    inline_max: Option<u16>,
}

fn main() {
    let file = std::env::args().nth(1).map(PathBuf::from).expect("FILE VALUE_BYTES DATA_MIB ...");
    let mut rest = std::env::args().skip(2).map(|word| word.parse::<u64>().expect("a number"));
    let args = Args {
        file,
        value_bytes: rest.next().unwrap_or(8192) as usize,
        data_mib: rest.next().unwrap_or(1024),
        memory_mib: rest.next().unwrap_or(64),
        fill_percent: rest.next().unwrap_or(70),
        depth: rest.next().unwrap_or(32) as usize,
        inline_max: rest.next().map(|bytes| bytes as u16),
    };
    let slot: Arc<Mutex<Option<oneshot::Sender<Store>>>> = Arc::default();
    let waiting: Arc<Mutex<Option<oneshot::Receiver<Store>>>> = Arc::default();
    let stop: Arc<pumice_reactor::sync::Event> = Arc::default();
    let (sender, receiver) = oneshot::channel();
    *slot.lock().expect("lock") = Some(sender);
    *waiting.lock().expect("lock") = Some(receiver);
    let config = Config { cores: 2, ..Config::default() };
    let init = Arc::new(move |core: CoreId| -> LocalBoxFuture<'static, ()> {
        let (args, stop) = (args.clone(), stop.clone());
        if core.0 == 0 {
            let sender = slot.lock().expect("lock").take().expect("core 0 starts once");
            Box::pin(async move {
                run(args, sender).await;
                stop.set();
            })
        } else {
            let receiver = waiting.lock().expect("lock").take().expect("core 1 starts once");
            Box::pin(async move {
                if let Ok(store) = receiver.await {
                    store.start_background();
                }
                stop.wait().await;
            })
        }
    });
    pumice_reactor::start(&config, init).expect("start").join().expect("join");
}

fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("stat");
    let fields: Vec<&str> = stat.rsplit(')').next().expect("fields").split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().expect("utime") + fields[12].parse::<u64>().expect("stime");
    ticks as f64 / 100.0
}

fn rss_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("status");
    let line = status.lines().find(|line| line.starts_with("VmRSS")).expect("VmRSS");
    line.split_whitespace().nth(1).expect("kB").parse::<u64>().expect("number") / 1024
}

fn key_of(n: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..5].copy_from_slice(&[0, 0, 0, 1, 0]);
    key[5..].copy_from_slice(format!("{n:011}").as_bytes());
    key
}

fn slice_of(n: u64, slices: u16) -> SliceId {
    SliceId((n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as u16 % slices)
}

struct Load {
    store: Store,
    args: Args,
    keys: u64,
    value: Vec<u8>,
}

async fn run(args: Args, sender: oneshot::Sender<Store>) {
    let record = args.value_bytes as u64 + 60;
    let size = (args.data_mib << 20) * 100 / args.fill_percent;
    let _ = std::fs::remove_file(&args.file);
    let device = Device::create(&DeviceSpec::Path(args.file.clone()), size).await.expect("device");
    let mut format = StoreFormat { drive_id: *b"load-example-drv", ..StoreFormat::default() };
    if let Some(inline_max) = args.inline_max {
        format.inline_max = inline_max;
    }
    Store::format(&device, &format).await.expect("format");
    let options = StoreOptions { memory_bytes: args.memory_mib << 20, ..StoreOptions::default() };
    let opened = Store::open(device, options, &|_, _| {}).await.expect("open");
    let store = opened.store;
    let _ = sender.send(store.clone());
    let keys = (args.data_mib << 20) / record;
    println!(
        "values {} B, {keys} keys, data {} MiB, drive {} MiB, memory {} MiB, depth {}",
        args.value_bytes,
        args.data_mib,
        size >> 20,
        args.memory_mib,
        args.depth
    );
    let mut value = vec![0; args.value_bytes];
    Rng::from_seed(1).fill(&mut value);
    let load = Rc::new(Load { store: store.clone(), args, keys, value });
    phase(&load, "S-SET", keys, Kind::Set { random: false }).await;
    settle(&store).await;
    scan(&load).await;
    phase(&load, "R-GET", (keys / 2).clamp(1, 400_000), Kind::Get { hot: false }).await;
    phase(&load, "R-GET again", (keys / 2).clamp(1, 400_000), Kind::Get { hot: false }).await;
    phase(&load, "hot GET", 2_000_000, Kind::Get { hot: true }).await;
    phase(&load, "R-SET 1", keys, Kind::Set { random: true }).await;
    phase(&load, "R-SET 2", keys, Kind::Set { random: true }).await;
    phase(&load, "R-SET 3", keys, Kind::Set { random: true }).await;
    phase(&load, "R-Mixed", (keys / 2).clamp(1, 400_000), Kind::Mixed).await;
    phase(&load, "R-GET", (keys / 2).clamp(1, 400_000), Kind::Get { hot: false }).await;
    let started = now();
    store.close().await.expect("close");
    println!("close {:.3} s", started.elapsed().as_secs_f64());
}

async fn settle(store: &Store) {
    store.checkpoint().await.expect("checkpoint");
    pumice_reactor::sleep(std::time::Duration::from_millis(500)).await;
}

#[derive(Clone, Copy)]
enum Kind {
    Set { random: bool },
    Get { hot: bool },
    Mixed,
}

async fn phase(load: &Rc<Load>, name: &str, ops: u64, kind: Kind) {
    let before = load.store.stats();
    let (started, cpu) = (now(), cpu_seconds());
    let next = Rc::new(Cell::new(0u64));
    let latencies = Rc::new(RefCell::new(Vec::with_capacity(ops as usize / 8 + 1)));
    let seconds = Rc::new(RefCell::new(vec![0u32; 4096]));
    let workers: Vec<_> = (0..load.args.depth)
        .map(|worker| {
            let (load, next, latencies, seconds) =
                (load.clone(), next.clone(), latencies.clone(), seconds.clone());
            spawn(async move {
                let mut rng = Rng::from_seed(worker as u64 + 7);
                let mut batch = Batch::new();
                loop {
                    let n = next.get();
                    if n >= ops {
                        return;
                    }
                    next.set(n + 1);
                    let sampled = n % 8 == 0;
                    let at = if sampled { Some(now()) } else { None };
                    let random = rng.below(load.keys);
                    match kind {
                        Kind::Set { random: true } => set(&load, random, &mut batch).await,
                        Kind::Set { random: false } => set(&load, n, &mut batch).await,
                        Kind::Get { hot: true } => get(&load, random % 1000).await,
                        Kind::Get { hot: false } => get(&load, random).await,
                        Kind::Mixed if rng.below(10) == 0 => set(&load, random, &mut batch).await,
                        Kind::Mixed => get(&load, random).await,
                    }
                    if let Some(at) = at {
                        let done = now();
                        latencies.borrow_mut().push(done.since(at).as_nanos() as u64);
                        let second = done.since(started).as_secs() as usize;
                        seconds.borrow_mut()[second.min(4095)] += 8;
                    }
                }
            })
        })
        .collect();
    for worker in workers {
        worker.await.expect("worker");
    }
    report(load, name, ops, &before, started, cpu, &mut latencies.borrow_mut(), &seconds.borrow());
}

async fn set(load: &Load, n: u64, batch: &mut Batch) {
    batch.clear();
    batch.put(slice_of(n, load.store.slice_count()), &key_of(n), 0, 0, &load.value);
    let seq = load.store.write_ready(batch).await.unwrap_or_else(|error| panic!("write: {error}"));
    load.store.wait_durable(seq).await.expect("durable");
}

async fn get(load: &Load, n: u64) {
    let (slice, key) = (slice_of(n, load.store.slice_count()), key_of(n));
    let entry = match load.store.peek(slice, &key) {
        Peek::Found(entry) => Some(entry),
        Peek::Absent => None,
        Peek::NeedsFlash(hint) => load.store.get_at(slice, &key, hint).await.expect("get"),
    };
    assert_eq!(entry.expect("every key is there").value.len(), load.args.value_bytes);
}

async fn scan(load: &Rc<Load>) {
    let before = load.store.stats();
    let (started, cpu) = (now(), cpu_seconds());
    let snapshot = load.store.snapshot();
    let all = std::ops::Bound::Unbounded;
    let mut scan =
        load.store.scan(&snapshot, SliceSet::All, all.clone(), all, Direction::Forward, Want::Values);
    let mut n = 0;
    while scan.next().await.expect("scan").is_some() {
        n += 1;
    }
    assert_eq!(n, load.keys);
    report(load, "S-GET", n, &before, started, cpu, &mut Vec::new(), &[]);
}

#[allow(clippy::too_many_arguments)]
fn report(
    load: &Load,
    name: &str,
    ops: u64,
    before: &StoreStats,
    started: pumice_reactor::Nanos,
    cpu: f64,
    latencies: &mut [u64],
    seconds: &[u32],
) {
    let elapsed = started.elapsed().as_secs_f64();
    let cpu = cpu_seconds() - cpu;
    let after = load.store.stats();
    let (a, b) = (&after.counters, &before.counters);
    let written = |s: &StoreStats| {
        s.heap.commit_bytes + s.heap.moved_bytes + s.heap.table_bytes + s.heap.large_bytes + s.heap.meta_bytes
    };
    let flash = written(&after) - written(before);
    let user = a.user_bytes - b.user_bytes;
    latencies.sort_unstable();
    let at = |q: f64| {
        latencies
            .get(((latencies.len() as f64 * q) as usize).min(latencies.len().saturating_sub(1)))
            .copied()
            .unwrap_or(0)
            / 1000
    };
    println!(
        "{name:12} {:9.0} ops/s {:7.1} MB/s  cpu {:6.2} us/op  p50 {} p99 {} p99.9 {} max {} us",
        ops as f64 / elapsed,
        (ops * load.args.value_bytes as u64) as f64 / elapsed / 1e6,
        cpu * 1e6 / ops as f64,
        at(0.5),
        at(0.99),
        at(0.999),
        at(1.0)
    );
    if seconds.len() > 1 && elapsed > 3.0 {
        let mut whole: Vec<u32> = seconds[..(elapsed as usize).min(4095)].to_vec();
        whole.sort_unstable();
        println!("             per second: least {} median {}", whole[0], whole[whole.len() / 2]);
    }
    println!(
        "             flash {:.0} MB/s written, WA {:.2} (commit {:.2} moved {:.2} tables {:.2}), reads/op {:.3} ({:.0} B), rows {} values {} blocks {}/{} heads {}",
        flash as f64 / elapsed / 1e6,
        flash as f64 / user.max(1) as f64,
        (after.heap.commit_bytes - before.heap.commit_bytes) as f64 / user.max(1) as f64,
        (after.heap.moved_bytes - before.heap.moved_bytes) as f64 / user.max(1) as f64,
        (after.heap.table_bytes - before.heap.table_bytes) as f64 / user.max(1) as f64,
        (after.heap.reads - before.heap.reads) as f64 / ops as f64,
        (after.heap.read_bytes - before.heap.read_bytes) as f64 / ops as f64,
        a.row_hits - b.row_hits,
        a.value_reads - b.value_reads,
        a.block_hits - b.block_hits,
        a.block_reads - b.block_reads,
        a.head_reads - b.head_reads,
    );
    println!(
        "             tables {} entries {} MiB {} runs {}, heads {} KiB, blocks {} KiB, rows {} KiB, memtables {} KiB, cleaned {}, rss {} MiB; {}",
        after.tables,
        after.table_entries,
        after.table_bytes >> 20,
        after.runs_max,
        after.head_bytes >> 10,
        after.block_bytes >> 10,
        after.row_bytes >> 10,
        after.memtable_bytes >> 10,
        a.cleaned_segments - b.cleaned_segments,
        rss_mib(),
        after.space,
    );
}
