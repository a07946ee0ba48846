//! World `kv-worn`: a small drive of raw NAND that ages a thousand times too fast is written until its blocks die, with power
//! cuts in between.
//!
//! 1. Bits flip as blocks wear; blocks are bad from the start, fail to program and fail to erase; years pass between lives.
//!    The heap's own correction is all there is.
//! 2. Whatever was acknowledged reads as it was written, and the store's check finds nothing, as long as writes are taken.
//! 3. Writes may be refused once segments that went bad have left too little for the data: then everything still reads, though
//!    nothing may be left to move it to as it decays.

use super::bench::{Bench, Setup};
use super::crash::start_clients;
use crate::report::{Report, RunOptions};
use crate::worlds::Outcome;
use pumice_base::rng::Rng;
use pumice_kv::Store;
use std::time::Duration;

/// Lives after which the drive must have shown that it wears.
const LIVES_MAX: u64 = 60;
/// The share of the drive that may go bad before the run ends, if writes were not refused before: 1 of this many.
const GONE_ONE_IN: u64 = 3;
/// Erases after which real MLC needs a tenth of this code's correction; a block dies at about twice as many.
const RATED_ERASES: f64 = 6.0;
/// How often the drive is asked whether it has worn out.
const LOOK_EVERY: Duration = Duration::from_millis(20);
const SEGMENT_BYTES: u32 = 256 << 10;

pub(crate) fn run(seed: u64, options: &RunOptions, report: &mut Report) -> Outcome {
    let mut rng = Rng::from_seed(seed).split("kv-worn");
    let drawn = Setup::draw(&mut rng);
    let setup = Setup {
        segment_bytes: SEGMENT_BYTES,
        segments: 64,
        memtable_bytes: 16 << 10,
        log_max_bytes: 256 << 10,
        keys: [20, 100][rng.below(2) as usize],
        spaces: 1,
        ..drawn
    };
    let spec = worn_spec(&setup, rng.next_u64());
    let bench = Bench::on_nand_of(seed, setup, spec);
    let outcome = lives(&bench, &mut rng, options.ops.unwrap_or(300));
    for (name, count) in bench.model.counts.borrow().iter() {
        report.count(name, *count);
    }
    outcome.map_err(|what| format!("{what}\n  with {:?}", bench.setup))?;
    Ok(bench.world.event_hash())
}

/// Raw NAND of pages with room for the parity of SDF's code.
fn worn_spec(setup: &Setup, seed: u64) -> String {
    format!(
        "emu:sdf,channels={},dies=1,planes=1,stripe=1,blocks={},page=4096,pages={},oob=224,read_us=5,program_us=40,\
         erase_us=200,bus=0,link_read=0,link_write=0,request_us=0,wear=on,ecc=off,rated={RATED_ERASES},seed={seed}",
        setup.channels,
        setup.segments.div_ceil(u64::from(setup.channels)),
        setup.segment_bytes / 4096,
    )
}

fn lives(bench: &Bench, rng: &mut Rng, calls: u64) -> Result<(), String> {
    let nand = bench.nand().ok_or("the drive is emulated")?;
    bench.format()?;
    bench.model.may_fail.set(true);
    let mut store = bench.open(true)?.ok_or("the host went down while opening")?;
    let bad_at_first = bad_segments(&store);
    let (mut retired, mut corrected) = (0, 0);
    for life in 0..LIVES_MAX {
        let said = |what: String| format!("life {life}: {what} ({})", store.space());
        start_clients(bench, &store, rng, calls);
        let mut rest = Duration::from_micros(1_000 + rng.below(3_000_000));
        // Who goes on writing to a drive that has worn out finds its end: a single erase ages a block here as ten thousand do.
        while !rest.is_zero() && !is_gone(&store) {
            let step = rest.min(LOOK_EVERY);
            bench.world.run_for(step);
            rest -= step;
        }
        if rng.chance(0.4) {
            // Some may wait for room even then: they are in their spaces until the host goes down.
            bench.world.run_for(Duration::from_secs(60));
            let closing = store.clone();
            let closed = bench.world.block_on(bench.host, async move { closing.close().await });
            match closed.map_err(|halt| said(format!("close: {halt}")))? {
                Ok(()) => {
                    let newest = bench.model.oracle.borrow().newest();
                    bench.model.oracle.borrow_mut().acknowledge(newest);
                    bench.model.count("clean closes", 1);
                }
                Err(_) if is_gone(&store) => {}
                Err(error) => return Err(said(format!("close: {error}"))),
            }
        } else {
            // In the middle of whatever programs and erases are under way.
            bench.model.count("power cuts", 1);
        }
        bench.crash();
        let (gone, bad) = (is_gone(&store), bad_segments(&store));
        if let (Some(reason), false) = (store.heap().read_only(), gone)
            && !reason.contains("closed")
        {
            return Err(said(format!("the drive stopped with space left: {reason}")));
        }
        bench.model.count("segments rescued", store.stats().counters.rescued_segments);
        corrected = store.heap().device().ecc_counts().corrected_bits.max(corrected);
        bench.note_work(&store);
        drop(store);
        bench.model.after_clients();
        let said = |what: String| format!("life {life}, {bad} segments bad: {what}");
        if gone {
            // Of a drive that has nothing left to which it could move what decays no more is asked.
            bench.model.count("drives worn out", 1);
            bench.recover_worn().map_err(said)?;
            retired = bad - bad_at_first;
            break;
        }
        // Weeks in which nobody reads.
        nand.age(Duration::from_secs(86_400 * rng.below(30)));
        store = bench.recover(None).map_err(said)?;
        retired = bad_segments(&store)
            .checked_sub(bad_at_first)
            .ok_or_else(|| format!("life {life}: bad segments came back"))?;
    }
    bench.model.count("bad from the start", bad_at_first);
    bench.model.count("segments retired", retired);
    bench.model.count("bits corrected", corrected);
    if retired == 0 && calls >= 300 {
        return Err(format!("no segment wore out in {LIVES_MAX} lives"));
    }
    Ok(())
}

fn bad_segments(store: &Store) -> u64 {
    store.space().bad / u64::from(store.heap().segment_bytes())
}

/// Whether so much went bad that writes may be refused for it.
fn is_gone(store: &Store) -> bool {
    let space = store.space();
    space.bad * GONE_ONE_IN >= space.raw
}
