//! Who waits for room and has more to write at once gets more than one batch written when it is called, and no more than its turn.

use std::cell::RefCell;
use std::rc::Rc;

use crate::common::*;
use pumice_flash::{Device, DeviceSpec};
use pumice_kv::{Batch, SliceId, Store, StoreFormat, StoreOptions, Turn, WriteError};
use pumice_reactor::sim::{HostOptions, World};
use pumice_reactor::spawn;

const VALUE_BYTES: usize = 8000;
const USERS: usize = 40;
const BATCHES: usize = 30;
const TURN_BYTES: usize = 128 << 10;
/// 2 MiB may be on the way to the drive, and half of that is let in at a time.
const MEMORY_BYTES: u64 = 32 << 20;

fn batch(user: usize, n: usize) -> Batch {
    let mut batch = Batch::new();
    batch.put(SliceId((user % 3) as u16), format!("u{user}:{n}").as_bytes(), 0, 0, &[0; VALUE_BYTES]);
    batch
}

/// Who wrote, and whether others waited for room.
type Written = (usize, bool);

/// More users than there is room for write at once; answers who wrote, in order.
fn written(tells: bool) -> Vec<Written> {
    let world = World::new(1);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    let test = async move {
        let spec: DeviceSpec = "/drive".parse().expect("spec");
        let device = Device::create(&spec, 64 << 20).await.expect("file");
        Store::format(&device, &StoreFormat { segment_bytes: Some(2 << 20), ..format() })
            .await
            .expect("format");
        let store =
            open_with(&device, StoreOptions { memory_bytes: MEMORY_BYTES, ..StoreOptions::default() })
                .await
                .store;
        let mut others = 0;
        while store.write(&batch(USERS, others)).is_ok() {
            others += 1;
        }
        let order = Rc::new(RefCell::new(Vec::new()));
        let users: Vec<_> = (0..USERS)
            .map(|user| {
                let (store, order) = (store.clone(), order.clone());
                spawn(async move {
                    let mut turn = Turn::default();
                    for n in 0..BATCHES {
                        if tells {
                            turn.wants(((BATCHES - n) * VALUE_BYTES) as u64);
                        }
                        let others_wait = store.users_wait();
                        store.write_ready_in(&batch(user, n), &mut turn).await.expect("written");
                        order.borrow_mut().push((user, others_wait));
                    }
                })
            })
            .collect();
        for user in users {
            user.await.expect("not aborted");
        }
        assert!(!matches!(store.write(&batch(USERS, 0)), Err(WriteError::Busy)), "nobody waits any more");
        Rc::try_unwrap(order).expect("all users are done").into_inner()
    };
    world.block_on(host, test).unwrap_or_else(|halt| panic!("{halt}"))
}

/// How many batches were written in a row by one user while others waited, each time.
fn turns(order: &[Written]) -> Vec<usize> {
    let goes_on = |before: &Written, after: &Written| before.0 == after.0 && after.1;
    order.chunk_by(goes_on).filter(|row| row[0].1).map(<[Written]>::len).collect()
}

/// The first time that each waits. Later some were called and have not come yet, who count as waiting, while there is room for more.
fn first_turns(order: &[Written]) -> Vec<usize> {
    let mut turns = turns(order);
    assert!(turns.len() >= USERS, "hardly anybody waited: {turns:?}");
    turns.truncate(USERS - 1);
    turns
}

#[test]
fn who_has_more_to_write_is_called_for_a_turn() {
    let turns = first_turns(&written(true));
    let longest = TURN_BYTES / VALUE_BYTES + 1;
    assert!(turns.iter().all(|&turn| turn <= longest), "longer than a turn: {turns:?}");
    assert!(turns.iter().sum::<usize>() >= 4 * turns.len(), "turns of one batch: {turns:?}");
}

#[test]
fn who_says_nothing_queues_for_each_batch() {
    let turns = first_turns(&written(false));
    assert!(turns.iter().all(|&turn| turn == 1), "more than one batch in a row: {turns:?}");
}
