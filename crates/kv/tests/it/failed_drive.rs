//! A drive that fails while writers wait.

use crate::common::{device, format, get, no_progress, options};
use pumice_flash::{Device, Fault, Operation};
use pumice_kv::{Batch, SliceId, Store, WriteError};

/// Nobody flushes here, so the memtables stay full: a writer must hear that the drive failed, not that it is busy.
#[test]
fn writers_that_wait_for_a_flush_are_told_that_the_drive_failed_and_reads_go_on() {
    pumice_reactor::block_on(async {
        let device = device("emu:tiny,channels=2,blocks=64,pages=64").await;
        let Device::Emulated(nand) = &device else { panic!("not emulated") };
        Store::format(&device, &format()).await.expect("format");
        let opened = Store::open(device.clone(), options(), &no_progress).await.expect("open");
        let store = opened.store;
        let mut batch = Batch::new();
        let (mut keys, mut last) = (0u32, 0);
        loop {
            batch.clear();
            batch.put(SliceId(0), &keys.to_be_bytes(), 0, 0, &[7; 40]);
            match store.write(&batch) {
                Ok(seq) => (keys, last) = (keys + 1, seq),
                Err(WriteError::Busy) => break,
                Err(error) => panic!("{error}"),
            }
        }
        nand.fail_at(Operation::Program, 1, Fault::TimedOut);
        store.wait_durable(last).await.expect_err("the commit failed");
        let refused = store.write(&batch);
        assert!(
            matches!(&refused, Err(WriteError::ReadOnly(reason)) if reason.contains("write failed")),
            "{refused:?}"
        );
        let refused = store.write_ready(&batch).await;
        assert!(matches!(refused, Err(WriteError::ReadOnly(_))), "{refused:?}");
        for key in [0, keys / 2, keys - 1] {
            assert_eq!(get(&store, 0, &key.to_be_bytes()).await.expect("there").2, [7; 40]);
        }
    });
}

/// A table that is written while its rows' commit is under way must name the place to which the commit goes when its program
/// fails: after a restart nothing else tells where it went.
#[test]
fn tables_name_where_a_commit_went_whose_program_failed_while_they_were_written() {
    pumice_reactor::block_on(async {
        let device = device("emu:tiny,channels=2,blocks=64,pages=64,program_us=2000").await;
        let Device::Emulated(nand) = &device else { panic!("not emulated") };
        Store::format(&device, &format()).await.expect("format");
        let store = Store::open(device.clone(), options(), &no_progress).await.expect("open").store;
        let value = [9; 3000];
        for key in 0..4u8 {
            let mut batch = Batch::new();
            batch.put(SliceId(0), &[key], 0, 0, &value);
            nand.fail_at(Operation::Program, 1, Fault::Failed);
            store.write(&batch).expect("written");
            store.checkpoint().await.expect("flushed");
        }
        assert!(store.heap().stats().relocations > 0, "no program failed: {:?}", store.heap().stats());
        store.close().await.expect("closed");
        drop(store);
        let store = Store::open(device, options(), &no_progress).await.expect("open again").store;
        for key in 0..4u8 {
            assert_eq!(get(&store, 0, &[key]).await.expect("there").2, value, "key {key}");
        }
    });
}
