//! Files.

use super::Place;
use bytes::Bytes;
use pumice_reactor::sync::oneshot;
use pumice_reactor::zones::ZoneAction;
use pumice_reactor::{
    CoreId, File, IoBuf, OpenOptions, WriteSync, sleep, spawn, spawn_on, timeout, yield_now,
};
use std::io::ErrorKind;
use std::time::Duration;

fn create() -> OpenOptions {
    OpenOptions { create: true, direct: true, ..OpenOptions::default() }
}

fn filled(byte: u8, bytes: usize) -> Bytes {
    let mut buf = IoBuf::zeroed(bytes);
    buf.fill(byte);
    buf.freeze()
}

async fn read(file: &File, offset: u64, bytes: usize) -> Vec<u8> {
    let (result, buf) = file.read_at(IoBuf::for_read(bytes), offset).await;
    buf[..result.unwrap()].to_vec()
}

pub async fn reads_give_what_writes_took_and_stop_at_the_end(place: Place) {
    let file = File::open(&place.dir.join("file"), &create()).await.unwrap();
    file.write_at(filled(1, 8192), 0, WriteSync::Durable).await.unwrap();
    file.write_at(filled(2, 4096), 8192, WriteSync::Cached).await.unwrap();
    file.sync_data().await.unwrap();
    assert_eq!(file.len().await.unwrap(), 12288);
    let bytes = read(&file, 4096, 65536).await;
    assert_eq!(bytes.len(), 8192);
    assert!(bytes[..4096].iter().all(|&b| b == 1) && bytes[4096..].iter().all(|&b| b == 2));
    assert!(read(&file, 12288, 4096).await.is_empty());
    assert!(read(&file, 1 << 20, 4096).await.is_empty());
    file.write_at(Bytes::new(), 0, WriteSync::Cached).await.unwrap();
}

pub async fn many_operations_run_side_by_side(place: Place) {
    const BLOCK: usize = 4096;
    let file = File::open(&place.dir.join("file"), &create()).await.unwrap();
    let tasks: Vec<_> = (0..512u64)
        .map(|i| {
            let file = file.clone();
            spawn(async move {
                let sync = if i % 7 == 0 { WriteSync::Durable } else { WriteSync::Cached };
                file.write_at(filled(i as u8, BLOCK), i * BLOCK as u64, sync).await.unwrap();
                let bytes = read(&file, i * BLOCK as u64, BLOCK).await;
                assert!(bytes.len() == BLOCK && bytes.iter().all(|&b| b == i as u8), "block {i}");
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let whole = read(&file, 0, 512 * BLOCK).await;
    assert!(whole.chunks(BLOCK).enumerate().all(|(i, block)| block.iter().all(|&b| b == i as u8)));
}

/// More than any queue takes at once, from two cores.
pub async fn who_does_not_fetch_what_was_read_holds_nobody_up(place: Place) {
    const BLOCK: usize = 4096;
    const READS: u64 = 1500;
    let file = File::open(&place.dir.join("file"), &create()).await.unwrap();
    file.write_at(filled(3, 16 * BLOCK), 0, WriteSync::Durable).await.unwrap();
    let begin_all = |file: &File| {
        let reads = (0..READS).map(|i| {
            let file = file.clone();
            Box::pin(async move { read(&file, i % 16 * BLOCK as u64, BLOCK).await })
        });
        reads.collect::<Vec<_>>()
    };
    let (held, is_held) = oneshot::channel();
    let (release, released) = oneshot::channel();
    let (end, ended) = oneshot::channel();
    let other = file.clone();
    spawn_on(CoreId(1), move || {
        Box::pin(async move {
            let mut reads = begin_all(&other);
            begin(&mut reads).await;
            let _ = held.send(());
            let _ = released.await;
            drop(reads);
            let _ = end.send(());
        })
    });
    is_held.await.unwrap();
    let mut reads = begin_all(&file);
    begin(&mut reads).await;
    let second = Duration::from_secs(60);
    for _ in 0..3 {
        let last = reads.pop().unwrap();
        let bytes = timeout(second, last).await.expect("the last comes though nobody asks for the first");
        assert!(bytes.len() == BLOCK && bytes.iter().all(|&byte| byte == 3));
    }
    // Those that wait and those that do not are given up.
    let mut more = begin_all(&file);
    begin(&mut more).await;
    drop((reads, more));
    timeout(second, read(&file, 0, BLOCK)).await.expect("whoever asks after that");
    let _ = release.send(());
    ended.await.unwrap();
    timeout(second, read(&file, 0, BLOCK)).await.expect("and after all others");
}

/// Has all of them go on once.
async fn begin<F: Future + Unpin>(futures: &mut [F]) {
    std::future::poll_fn(|cx| {
        futures.iter_mut().for_each(|future| drop(std::pin::Pin::new(future).poll(cx)));
        std::task::Poll::Ready(())
    })
    .await;
}

pub async fn holes_read_as_zeros(place: Place) {
    let file = File::open(&place.dir.join("file"), &create()).await.unwrap();
    file.write_at(filled(9, 65536), 0, WriteSync::Cached).await.unwrap();
    file.punch_hole(16384, 32768).await.unwrap();
    assert_eq!(file.len().await.unwrap(), 65536);
    let bytes = read(&file, 0, 65536).await;
    assert!(bytes[..16384].iter().all(|&b| b == 9));
    assert!(bytes[16384..49152].iter().all(|&b| b == 0));
    assert!(bytes[49152..].iter().all(|&b| b == 9));
}

pub async fn lengths_are_set_and_reserved(place: Place) {
    let file = File::open(&place.dir.join("file"), &create()).await.unwrap();
    file.set_len(1 << 20).await.unwrap();
    assert_eq!(file.len().await.unwrap(), 1 << 20);
    file.allocate(1 << 20, 1 << 20).await.unwrap();
    assert_eq!(file.len().await.unwrap(), 2 << 20);
    assert!(read(&file, (2 << 20) - 4096, 8192).await == vec![0; 4096]);
    file.set_len(4096).await.unwrap();
    assert_eq!(read(&file, 0, 8192).await.len(), 4096);
}

pub async fn errors_name_their_kind(place: Place) {
    let missing = File::open(&place.dir.join("missing"), &OpenOptions::default()).await;
    assert_eq!(missing.unwrap_err().kind(), ErrorKind::NotFound);
    let path = place.dir.join("file");
    let new = OpenOptions { create_new: true, ..OpenOptions::default() };
    let file = File::open(&path, &new).await.unwrap();
    file.write_at(Bytes::from_static(b"hello"), 3, WriteSync::Cached).await.unwrap();
    assert_eq!(read(&file, 0, 100).await, b"\0\0\0hello");
    assert_eq!(File::open(&path, &new).await.unwrap_err().kind(), ErrorKind::AlreadyExists);
    let read_only = OpenOptions { read_only: true, ..OpenOptions::default() };
    let file = File::open(&path, &read_only).await.unwrap();
    assert!(file.write_at(Bytes::from_static(b"no"), 0, WriteSync::Cached).await.is_err());
    assert_eq!(read(&file, 0, 100).await, b"\0\0\0hello");
}

pub async fn a_second_locker_is_refused_until_the_first_is_gone(place: Place) {
    let path = place.dir.join("file");
    let options = OpenOptions { exclusive_lock: true, ..create() };
    let file = File::open(&path, &options).await.unwrap();
    let clone = file.clone();
    drop(file);
    assert_eq!(File::open(&path, &options).await.unwrap_err().kind(), ErrorKind::WouldBlock);
    drop(clone);
    File::open(&path, &options).await.unwrap();
}

pub async fn operations_dropped_in_flight_harm_nothing(place: Place) {
    let file = File::open(&place.dir.join("file"), &create()).await.unwrap();
    file.write_at(filled(7, 1 << 20), 0, WriteSync::Durable).await.unwrap();
    for round in 0..200u64 {
        let tasks: Vec<_> = (0..8u64)
            .map(|i| {
                let file = file.clone();
                spawn(async move {
                    let offset = (round * 8 + i) % 16 * 65536;
                    if i % 2 == 0 {
                        drop(read(&file, offset, 65536).await);
                    } else {
                        file.write_at(filled(7, 65536), offset, WriteSync::Durable).await.unwrap();
                    }
                })
            })
            .collect();
        match round % 3 {
            0 => {}
            1 => yield_now().await,
            _ => drop(timeout(Duration::from_micros(round), std::future::pending::<()>()).await),
        }
        tasks.iter().for_each(|task| task.abort());
        // Memory that was given back too early would be overwritten by what is still in flight.
        let canary = filled(0xaa, 65536);
        yield_now().await;
        assert!(canary.iter().all(|&b| b == 0xaa), "round {round}");
    }
    sleep(Duration::from_millis(5)).await;
    assert!(read(&file, 0, 1 << 20).await.iter().all(|&b| b == 7));
    // The operation keeps the file open, not the handle.
    let task = spawn(async move { read(&file, 0, 4096).await });
    assert_eq!(task.await.unwrap(), vec![7; 4096]);
}

pub async fn a_file_is_used_from_another_core(place: Place) {
    let file = File::open(&place.dir.join("file"), &create()).await.unwrap();
    let (sender, receiver) = oneshot::channel();
    let far = file.clone();
    let data = filled(3, 8192);
    spawn_on(CoreId(1), move || {
        Box::pin(async move {
            far.write_at(data, 0, WriteSync::Durable).await.unwrap();
            let (result, buf) = far.read_at(IoBuf::for_read(8192), 0).await;
            result.unwrap();
            assert!(sender.send(buf).is_ok());
        })
    });
    // Made there, read here, given back from here.
    let buf = receiver.await.unwrap();
    assert!(buf.iter().all(|&b| b == 3));
    drop(buf.freeze());
    assert_eq!(read(&file, 4096, 8192).await, vec![3; 4096]);
}

pub async fn unaligned_direct_writes_are_refused(place: Place) {
    let file = File::open(&place.dir.join("file"), &create()).await.unwrap();
    if !file.is_direct() {
        return;
    }
    for (data, offset) in [(filled(1, 100), 0), (filled(1, 4096), 100), (filled(1, 8192).slice(1..4097), 0)] {
        let error = file.write_at(data, offset, WriteSync::Cached).await;
        if file.alignment() > 1 {
            assert_eq!(error.map_err(|error| error.kind()), Err(ErrorKind::InvalidInput));
        }
    }
}

pub async fn what_has_no_zones_refuses_zone_commands_and_goes_on(place: Place) {
    let file = File::open(&place.dir.join("file"), &create()).await.unwrap();
    assert_eq!(file.zoned(), None);
    file.write_at(filled(1, 8192), 0, WriteSync::Durable).await.unwrap();
    // Beside others, and after its asker has gone away.
    let others: Vec<_> = (0..20u64)
        .map(|n| {
            let file = file.clone();
            spawn(async move { assert_eq!(read(&file, n % 2 * 4096, 4096).await[0], 1) })
        })
        .collect();
    let given_up = timeout(Duration::ZERO, file.report_zones(0, 10)).await;
    assert!(given_up.is_err() || given_up.is_ok_and(|zones| zones.is_err()));
    for _ in 0..3 {
        assert!(file.report_zones(0, 10).await.is_err());
        for action in [ZoneAction::Reset, ZoneAction::Open, ZoneAction::Close, ZoneAction::Finish] {
            assert!(file.manage_zones(action, 0, 4096).await.is_err());
        }
    }
    for other in others {
        other.await.unwrap();
    }
    assert_eq!(read(&file, 0, 8192).await, vec![1; 8192]);
}
