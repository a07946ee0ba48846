//! The hot paths allocate nothing once they are warm, and a task no more than its future takes. Alone in a program of its own, which has a counting allocator.
#![allow(unsafe_code)]

use pumice_reactor::sync::{Event, Gate};
use pumice_reactor::{
    File, IoBuf, ListenOptions, Listener, OpenOptions, Stream, WriteSync, block_on, sleep, spawn, timeout,
    yield_now,
};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = COUNT.try_with(|count| count.set(count.get() + 1));
        let _ = LARGEST.try_with(|largest| largest.set(largest.get().max(layout.size())));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of one of `rounds` repetitions, after a warm-up.
async fn allocations<F: Future<Output = ()>>(rounds: u64, mut step: impl FnMut() -> F) -> f64 {
    for _ in 0..100 {
        step().await;
    }
    let before = COUNT.get();
    for _ in 0..rounds {
        step().await;
    }
    (COUNT.get() - before) as f64 / rounds as f64
}

#[test]
fn reads_echoes_gates_and_yields_allocate_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    block_on(async {
        let options = OpenOptions { create: true, direct: true, ..OpenOptions::default() };
        let file = File::open(&path, &options).await.unwrap();
        file.write_at(IoBuf::zeroed(65536).freeze(), 0, WriteSync::Cached).await.unwrap();
        let read = || async {
            let (result, _buf) = file.read_at(IoBuf::for_read(4096), 8192).await;
            result.unwrap();
        };
        assert_eq!(allocations(1000, read).await, 0.0, "a read");

        let frozen = IoBuf::zeroed(4096).freeze();
        let write = || async { file.write_at(frozen.clone(), 0, WriteSync::Durable).await.unwrap() };
        assert_eq!(allocations(200, write).await, 0.0, "a write");

        let listener =
            Listener::bind(&"127.0.0.1:0".parse().unwrap(), ListenOptions::default()).await.unwrap();
        let mut near = Stream::connect(listener.local_addr()).await.unwrap();
        let (mut far, _) = listener.accept().await.unwrap();
        spawn(async move {
            let mut out = Vec::with_capacity(4096);
            loop {
                out.extend_from_slice(&far.recv().await.unwrap());
                let (result, back) = far.send_one(out).await;
                result.unwrap();
                out = back;
                out.clear();
            }
        });
        let mut spare = vec![7; 100];
        for round in 0..2000 {
            if round == 1000 {
                COUNT.set(0);
            }
            let (result, back) = near.send_one(spare).await;
            result.unwrap();
            spare = back;
            assert_eq!(near.recv().await.unwrap().len(), 100);
        }
        assert_eq!(COUNT.get(), 0, "1000 echoes");

        let gate = Arc::new(Gate::new(0));
        let opener = Arc::clone(&gate);
        spawn(async move {
            loop {
                opener.open_to(opener.current() + 1);
                yield_now().await;
            }
        });
        let wait = || async { gate.wait_for(gate.current() + 2).await.unwrap() };
        assert_eq!(allocations(1000, wait).await, 0.0, "a gate");

        // Somebody waits for as long as the process lives, and others behind him give up again and again.
        let stop = Arc::new(Event::new());
        let first = Arc::clone(&stop);
        spawn(async move { first.wait().await });
        yield_now().await;
        let give_up = || async {
            let _ = timeout(Duration::ZERO, stop.wait()).await;
        };
        assert_eq!(allocations(100_000, give_up).await, 0.0, "a wait that is given up");

        // The same at a gate that does not open: a drive hangs, and clients come again and again.
        let shut = Arc::new(Gate::new(0));
        let first = Arc::clone(&shut);
        spawn(async move { first.wait_for(1).await });
        yield_now().await;
        let give_up = || async {
            let _ = timeout(Duration::ZERO, shut.wait_for(2)).await;
        };
        assert_eq!(allocations(100_000, give_up).await, 0.0, "a wait at a gate that is given up");
        assert!(allocations(100, || sleep(Duration::from_micros(1))).await < 1.5, "a timer");
    });
}

#[test]
fn a_task_takes_what_its_future_takes() {
    const BYTES: usize = 100_000;
    block_on(async {
        let held = [7u8; BYTES];
        let future = async move {
            yield_now().await;
            held.iter().map(|&byte| usize::from(byte)).sum::<usize>()
        };
        let takes = size_of_val(&future);
        assert!(takes >= BYTES);
        LARGEST.set(0);
        let task = spawn(future);
        assert!(LARGEST.get() < takes + takes / 8, "{} bytes for a future of {takes}", LARGEST.get());
        assert_eq!(task.await.unwrap(), 7 * BYTES);
    });
}
