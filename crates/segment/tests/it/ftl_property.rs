//! The mapping against a plain model: any ids, any order, restarts with and without a close; and what its tables cost.

use std::collections::BTreeMap;
use std::path::Path;

use crate::raw::in_virtual_time;
use bytes::Bytes;
use pumice_base::rng::Rng;
use pumice_flash::{Access, Device, DeviceSpec, Geometry};
use pumice_reactor::IoBuf;
use pumice_segment::ftl::{Place, RawError, RawFlash, RawFormat, RawOptions};

const FORMAT: RawFormat = RawFormat { drive_id: [7; 16], force: false };

/// Ids that collide in every way there is: runs, high halves, multiples of the table's sizes.
fn draw_id(rng: &mut Rng) -> u128 {
    let small = u128::from(rng.below(40));
    match rng.below(5) {
        0 => small,
        1 => small << 64,
        2 => u128::MAX - small,
        3 => small * 241,
        _ => small << 120 | small,
    }
}

async fn run(seed: u64, steps: u64) {
    let context = format!("PUMICE_SEED={seed} cargo test -p pumice-segment --test it ftl_property::");
    let spec = "emu:tiny,channels=3,blocks=64,pages=4,page=512,oob=64".parse().expect("spec");
    let device = Device::open(&spec, Access::ReadWrite).await.expect("device");
    let options = RawOptions { erased_ahead: 2, ..RawOptions::default() };
    let mut raw = RawFlash::format(device.clone(), FORMAT, options).await.expect("format");
    let mut rng = Rng::from_seed(seed);
    let mut model: BTreeMap<u128, u8> = BTreeMap::new();
    let data = |version: u8| Bytes::from(vec![version; 4 * 512]);
    for step in 0..steps {
        let id = draw_id(&mut rng);
        let client = raw.client();
        match rng.below(100) {
            0..45 => {
                let version = step as u8;
                match raw.write(&client, id, Place::ById, data(version)).await {
                    Ok(_) => assert_eq!(model.insert(id, version), None, "{context}"),
                    Err(RawError::Exists { .. }) => assert!(model.contains_key(&id), "{context}: {id:x}"),
                    Err(RawError::Full { .. }) => assert!(!model.contains_key(&id), "{context}: {id:x}"),
                    Err(error) => panic!("{context}: {error}"),
                }
            }
            45..75 => {
                let erased = raw.erase(&client, id).await;
                assert_eq!(erased.is_ok(), model.remove(&id).is_some(), "{context}: {id:x} {erased:?}");
            }
            75..95 => {
                let moved = raw.refresh(&client, id).await;
                let is_full = matches!(moved, Err(RawError::Full { .. }));
                assert_eq!(moved.is_ok() || is_full, model.contains_key(&id), "{context}: {id:x} {moved:?}");
            }
            _ => {
                let close = rng.chance(0.5);
                if close {
                    raw.close().await.expect("close");
                }
                let opened = RawFlash::open(device.clone(), options, &|_, _| ()).await.expect("open");
                assert!(opened.clean == close && opened.damage.is_empty(), "{context}");
                raw = opened.raw;
            }
        }
        if step % 16 == 0 {
            let mut places = Vec::new();
            for (&id, &version) in &model {
                let (result, buf) = raw.read(&client_of(&raw), id, 0, IoBuf::zeroed(4 * 512)).await;
                result.unwrap_or_else(|error| panic!("{context}: step {step}: {error}"));
                assert!(buf.iter().all(|&byte| byte == version), "{context}: {id:x}");
                places.push(raw.place_of(id).expect("there"));
            }
            places.sort_unstable();
            places.dedup();
            assert_eq!(places.len(), model.len(), "{context}: two segments on a block");
            assert_eq!(raw.segment_count() as usize, model.len(), "{context}");
            let space = raw.space();
            assert_eq!(space.accounted(), space.raw, "{context}");
            for (channel, space) in space.channels.iter().enumerate() {
                assert_eq!(space.accounted(), space.raw, "{context}: channel {channel}");
            }
        }
    }
}

fn client_of(raw: &RawFlash) -> pumice_segment::ftl::Client {
    raw.client()
}

/// `PUMICE_SEED` runs one seed for longer, `PUMICE_SEEDS` more of them than the smoke budget.
#[test]
fn the_mapping_does_what_a_plain_map_does() {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    if let Some(seed) = number("PUMICE_SEED") {
        return in_virtual_time(move || run(seed, 20_000));
    }
    for seed in 1..=number("PUMICE_SEEDS").unwrap_or(6) {
        in_virtual_time(move || run(seed, 600));
    }
}

/// docs/decisions/0015 has the formula: 25 bytes a block, and a little for each channel.
#[test]
fn a_tib_at_8_mib_segments_takes_less_than_4_mib_of_tables() {
    in_virtual_time(async || {
        // A sparse file: only the checkpoint is written.
        let shape = Geometry {
            channels: 8,
            dies_per_channel: 1,
            planes_per_die: 1,
            dies_per_block: 1,
            blocks_per_channel: 16_384,
            pages_per_block: 2048,
            page_bytes: 4096,
            read_bytes: 4096,
            oob_bytes: 0,
        };
        assert_eq!(shape.capacity_bytes(), 1 << 40);
        let spec = DeviceSpec::Path(Path::new("/tib").into());
        let device = Device::create(&spec, 1 << 40).await.expect("file").with_geometry(shape).expect("shape");
        let raw = RawFlash::format(device, FORMAT, RawOptions::default()).await.expect("format");
        let blocks = shape.block_count() as usize;
        let formula = blocks * (16 + 5 + 4);
        let found = raw.memory_bytes();
        assert!((formula..formula + 1024).contains(&found), "{found} B, by the formula {formula}");
        assert!(found <= 4 << 20, "{found} B");
    });
}
