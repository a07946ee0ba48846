//! Pages that do not read, for good or for a while: what the drive says it lost, links that fail, time-outs. In the superblock,
//! the metadata log, the log, a key table and a value; while the drive is opened and while it serves. Flipped bits have tests of
//! their own, beside the heap's.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use crate::common::{format, get, no_progress, options, put};
use pumice_flash::{Access, Device, DeviceSpec, FlashError};
use pumice_kv::{CheckReport, OpenError, SliceId, Store, StoreError, record, table};
use pumice_reactor::sim::{DiskImage, FaultOp, FileFault, HostId, HostOptions, World};
use pumice_segment::{HeapError, RecordPtr, Stream};

const DRIVE: &str = "/drive";
const PAGE: u64 = 4096;
const SEGMENT: u64 = 256 << 10;
const ENODATA: i32 = 61;
const EIO: i32 = 5;
const ETIMEDOUT: i32 = 110;
const ERRORS: [i32; 3] = [ENODATA, EIO, ETIMEDOUT];
/// Keys in tables, with values beside them and apart, and keys that only the log holds.
const SETTLED: u32 = 120;
const ALL: u32 = 160;

fn key(n: u32) -> Vec<u8> {
    format!("key{n:05}").into_bytes()
}

fn slice(n: u32) -> u16 {
    (n % 3) as u16
}

fn value(n: u32) -> Vec<u8> {
    vec![n as u8; if n.is_multiple_of(2) { 3000 } else { 40 }]
}

/// A drive that lost power, and what lies where.
struct Prepared {
    world: World,
    host: HostId,
    image: DiskImage,
    /// A value that a table points at: its key, and where it lies.
    value: (u32, u64),
    /// The first page of a key table.
    table: u64,
    /// Pages of the log that no table covers, the last one last.
    log: Vec<u64>,
    /// The first pages of the metadata log's halves.
    halves: Vec<u64>,
}

fn offset(ptr: RecordPtr) -> u64 {
    u64::from(ptr.addr.segment().0) * SEGMENT + u64::from(ptr.addr.offset())
}

async fn opened() -> Result<(Store, usize), OpenError> {
    let spec: DeviceSpec = DRIVE.parse().expect("spec");
    let device = Device::open(&spec, Access::ReadWrite).await.expect("the file is there");
    let opened = Store::open(device, options(), &no_progress).await?;
    opened.store.start_background();
    Ok((opened.store, opened.damage.len()))
}

fn prepared() -> Prepared {
    let world = World::new(3);
    let host = world.add_host(HostOptions { cores: 1, quirks: false, ..HostOptions::default() });
    let found = world.block_on(host, async {
        let device = Device::create(&DRIVE.parse().expect("spec"), 32 << 20).await.expect("file");
        Store::format(&device, &format()).await.expect("format");
        drop(device);
        let (store, _) = opened().await.expect("open");
        for n in 0..SETTLED {
            put(&store, slice(n), &key(n), &value(n)).await;
        }
        store.checkpoint().await.expect("checkpoint");
        let settled = store.last_seq();
        for n in SETTLED..ALL {
            let seq = put(&store, slice(n), &key(n), &value(n)).await;
            store.wait_durable(seq).await.expect("durable");
        }
        let (mut values, mut tables, mut log) = (Vec::new(), Vec::new(), Vec::new());
        for segment in store.heap().segments_in_use() {
            let contents = store.heap().contents(segment).await.expect("contents");
            for found in contents.records {
                let at = offset(found.ptr);
                if found.kind == record::TABLE && table::decode_footer(&found.payload).is_some() {
                    tables.push(at / PAGE * PAGE);
                } else if contents.stream == Stream::Commit && found.seq > settled {
                    log.push(at / PAGE * PAGE);
                } else if let Some(owner) = record::decode_key(&found.payload)
                    && found.payload[owner.key.clone()] == key(50)[..]
                {
                    values.push((at + 1000) / PAGE * PAGE);
                }
            }
        }
        log.dedup();
        (values, tables, log)
    });
    let (values, tables, log) = found.expect("the host is up");
    let pages = (0..64).map(|segment| segment * SEGMENT);
    let is_half = |at: &u64| world.peek_file(host, Path::new(DRIVE), *at, 4) == b"PMET";
    let halves: Vec<u64> = pages.filter(is_half).collect();
    world.crash(host);
    let image = world.disk(host);
    assert!(values.len() == 1 && !tables.is_empty() && log.len() > 20 && !halves.is_empty());
    Prepared { image, value: (50, values[0]), table: tables[0], log, halves, world, host }
}

/// How often reads of a page fail, from the first on.
const FOR_GOOD: u64 = u64::MAX;

impl Prepared {
    /// The drive as it was, of which reads of a page fail.
    fn start(&self, page: u64, errno: i32, times: u64) {
        self.world.crash(self.host);
        self.world.clear_faults(self.host);
        self.world.set_disk(self.host, &self.image);
        self.world.restart(self.host);
        self.strike(page, errno, times);
    }

    fn strike(&self, page: u64, errno: i32, times: u64) {
        self.strike_in(page..page + 1, errno, times);
    }

    fn strike_in(&self, range: Range<u64>, errno: i32, times: u64) {
        let range = Some(range);
        let (path, op) = (Some(DRIVE.into()), FaultOp::Read);
        self.world.add_fault(self.host, FileFault { path, op, range, skip: 0, times, errno });
    }

    fn run<T: 'static>(&self, what: impl Future<Output = T> + 'static) -> T {
        self.world.block_on(self.host, what).unwrap_or_else(|halt| panic!("{halt}"))
    }

    /// Opens the drive; answers what each key answers and what a check finds, or why it does not open.
    fn look(&self) -> Result<Seen, OpenError> {
        self.run(async {
            let (store, damage) = opened().await?;
            Ok(seen(&store, damage).await)
        })
    }

    /// Whatever became of it, once the drive answers again nothing is missing.
    fn heals(&self, said: &str) {
        self.world.crash(self.host);
        self.world.clear_faults(self.host);
        self.world.restart(self.host);
        let seen = self.look().unwrap_or_else(|error| panic!("{said}: later: {error}"));
        assert!(seen.is_whole(), "{said}: later: {:?} {:?}", seen.answers, seen.report.problems);
    }
}

/// What a store answers.
struct Seen {
    damage: usize,
    /// What is not as it was written: nothing, or an error.
    answers: BTreeMap<u32, Option<StoreError>>,
    report: CheckReport,
}

impl Seen {
    fn is_whole(&self) -> bool {
        self.damage == 0 && self.answers.is_empty() && self.report.is_clean()
    }
}

async fn seen(store: &Store, damage: usize) -> Seen {
    let mut answers = BTreeMap::new();
    for n in 0..ALL {
        match store.get(SliceId(slice(n)), &key(n)).await {
            Ok(Some(entry)) => assert!(entry.value == value(n), "key {n} is never wrong"),
            Ok(None) => drop(answers.insert(n, None)),
            Err(error) => drop(answers.insert(n, Some(error))),
        }
    }
    Seen { damage, answers, report: store.check(&no_progress).await.expect("check") }
}

/// The error of an opening that the drive did not answer; it says which read, and where.
fn is_of_the_drive(error: &OpenError, errno: i32) -> bool {
    let OpenError::Heap(HeapError::Flash(error)) = error else { return false };
    match errno {
        ETIMEDOUT => matches!(error, FlashError::Timeout { .. }),
        _ => matches!(error, FlashError::Io { at: Some(_), .. }),
    }
}

#[test]
fn one_superblock_that_does_not_read_is_told_and_does_no_harm() {
    let prepared = prepared();
    for errno in ERRORS {
        for segment in [0, 1] {
            let said = format!("errno {errno}, superblock {segment}");
            prepared.start(segment * SEGMENT, errno, FOR_GOOD);
            let seen = prepared.look().unwrap_or_else(|error| panic!("{said}: {error}"));
            assert!(seen.answers.is_empty() && seen.damage == 0, "{said}: {:?}", seen.answers);
            let problems = &seen.report.problems;
            assert!(problems.iter().any(|problem| problem.contains("superblock")), "{said}: {problems:?}");
            prepared.heals(&said);
        }
    }
}

#[test]
fn a_drive_of_which_no_superblock_reads_is_not_taken_for_an_empty_one() {
    let prepared = prepared();
    for errno in ERRORS {
        prepared.start(0, errno, FOR_GOOD);
        prepared.strike(SEGMENT, errno, FOR_GOOD);
        let error = prepared.look().err().expect("it does not open");
        assert!(
            matches!(&error, OpenError::Heap(HeapError::Flash(_))) && error.to_string().contains("block"),
            "errno {errno}: {error}"
        );
        let formatted = prepared.run(async {
            let spec: DeviceSpec = DRIVE.parse().expect("spec");
            let device = Device::open(&spec, Access::ReadWrite).await.expect("file");
            Store::format(&device, &format()).await
        });
        assert!(formatted.is_err(), "errno {errno}: formatted without being forced to");
        prepared.heals(&format!("errno {errno}, both superblocks"));
    }
}

#[test]
fn metadata_that_do_not_read_are_an_error_or_were_not_needed() {
    let prepared = prepared();
    for errno in ERRORS {
        for &half in &prepared.halves {
            for page in [half, half + PAGE, half + 2 * PAGE] {
                let said = format!("errno {errno}, metadata log at {page}");
                prepared.start(page, errno, FOR_GOOD);
                match prepared.look() {
                    Ok(seen) => assert!(seen.is_whole(), "{said}: {:?}", seen.answers),
                    Err(error) if errno != ETIMEDOUT => {
                        assert!(matches!(error, OpenError::Heap(HeapError::Damaged(_))), "{said}: {error}");
                    }
                    Err(error) => assert!(is_of_the_drive(&error, errno), "{said}: {error}"),
                }
                prepared.heals(&said);
            }
        }
    }
}

/// Frames that the drive says it lost have tests of their own, beside the heap's.
#[test]
fn a_log_that_does_not_answer_is_not_taken_for_one_that_ended() {
    let prepared = prepared();
    for errno in [EIO, ETIMEDOUT] {
        for at in (0..prepared.log.len()).step_by(5).chain([prepared.log.len() - 1]) {
            let said = format!("errno {errno}, page {at} of the log at {}", prepared.log[at]);
            prepared.start(prepared.log[at], errno, FOR_GOOD);
            // One page that answers so is a bad place of the drive, if others beside it do not.
            if errno == EIO {
                let segment = prepared.log[at] / SEGMENT * SEGMENT;
                prepared.strike_in(segment..segment + SEGMENT, errno, FOR_GOOD);
            }
            match prepared.look() {
                Ok(seen) => panic!("{said}: it opened without {:?}", seen.answers),
                Err(error) => assert!(is_of_the_drive(&error, errno), "{said}: {error}"),
            }
            prepared.heals(&said);
        }
    }
}

/// A link that is down for good where nothing is: behind the log's end, and in what key tables cover.
#[test]
fn what_does_not_answer_and_is_not_needed_is_passed_over() {
    let prepared = prepared();
    let last = *prepared.log.last().expect("there are some");
    let half = prepared.halves[0];
    let (_, value_at) = prepared.value;
    for page in [last + 2 * PAGE, half + SEGMENT - PAGE, value_at] {
        for errno in [EIO, ETIMEDOUT] {
            prepared.start(page, errno, FOR_GOOD);
            let seen = prepared.look().unwrap_or_else(|error| panic!("errno {errno} at {page}: {error}"));
            assert!(seen.answers.len() <= 1, "errno {errno} at {page}: {:?}", seen.answers);
        }
    }
}

#[test]
fn errors_that_pass_while_a_drive_is_opened_are_waited_for() {
    let prepared = prepared();
    let pages = [0, SEGMENT].into_iter().chain(prepared.halves.iter().copied());
    let last = *prepared.log.last().expect("there are some");
    for page in pages.chain([prepared.log[7], last]) {
        for errno in [EIO, ETIMEDOUT] {
            prepared.start(page, errno, 3);
            let seen = prepared.look().unwrap_or_else(|error| panic!("errno {errno} at {page}: {error}"));
            assert!(
                seen.damage == 0 && seen.answers.is_empty(),
                "errno {errno} at {page}: {:?}",
                seen.answers
            );
        }
    }
}

#[test]
fn values_and_tables_that_do_not_read_cost_their_keys_an_error_that_names_them_and_others_nothing() {
    let prepared = prepared();
    let (of_value, value_at) = prepared.value;
    for errno in ERRORS {
        for (page, most) in [(value_at, 3), (prepared.table, SETTLED as usize)] {
            for is_open in [false, true] {
                let said = format!("errno {errno} at {page}, opened before: {is_open}");
                let seen = match is_open {
                    false => {
                        prepared.start(page, errno, FOR_GOOD);
                        prepared.look().unwrap_or_else(|error| panic!("{said}: {error}"))
                    }
                    true => {
                        prepared.start(0, errno, 0);
                        let (store, damage) = prepared.run(opened()).expect("open");
                        prepared.strike(page, errno, FOR_GOOD);
                        prepared.run(async move { seen(&store, damage).await })
                    }
                };
                assert!((1..=most).contains(&seen.answers.len()), "{said}: {:?}", seen.answers);
                for (n, answer) in &seen.answers {
                    let Some(StoreError::Read { what, .. } | StoreError::Damaged { what, .. }) = answer
                    else {
                        panic!("{said}: key {n}: {answer:?}")
                    };
                    let name = if page == value_at { format!("key{n:05}") } else { "table".into() };
                    assert!(what.contains(&name), "{said}: key {n}: {what}");
                }
                if page == value_at {
                    assert!(seen.answers.contains_key(&of_value), "{said}: {:?}", seen.answers);
                }
                assert!(!seen.report.is_clean(), "{said}: a check finds it");
                prepared.heals(&said);
            }
        }
    }
}

/// While it serves, a read that fails once fails one request.
#[test]
fn a_read_that_fails_once_leaves_nothing_behind() {
    let prepared = prepared();
    let (n, page) = prepared.value;
    for errno in ERRORS {
        prepared.start(page, errno, 0);
        let (store, _) = prepared.run(opened()).expect("open");
        prepared.strike(page, errno, 4);
        let held = prepared.run(async move {
            for _ in 0..8 {
                if let Ok(Some(entry)) = store.get(SliceId(slice(n)), &key(n)).await {
                    return (entry.value.to_vec(), get(&store, slice(n), &key(n)).await);
                }
            }
            panic!("errno {errno}: it does not read again")
        });
        assert_eq!(held.0, value(n), "errno {errno}");
        assert_eq!(held.1.expect("there").2, value(n));
    }
}
