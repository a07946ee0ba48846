//! The patrol: has the heap read the whole drive, in the time that the options name for it, and says what it finds.
//!
//! It earns bytes as time goes by and spends them on reads, so that a busy or sleeping core is not made up for by a burst.

use std::sync::Arc;
use std::time::Duration;

use pumice_reactor::{now, timeout};

use crate::store::Inner;

/// How often it looks whether it may read.
const TICK: Duration = Duration::from_secs(1);
/// Bytes that it may save up: one read.
const SAVED_MAX: f64 = (256 << 10) as f64;
/// Segments that hold nothing, passed over in a tick at most.
const STEPS_MAX: u32 = 64;

pub async fn patrol_task(store: Arc<Inner>) {
    let Some(pass) = store.options.patrol_pass else { return };
    let bytes_per_second = store.heap.space().raw as f64 / pass.as_secs_f64().max(1.0);
    let mut patrol = store.heap.patrol();
    let (mut saved, mut last) = (0.0, now());
    while !store.is_closing() {
        let tick = TICK.min(Duration::from_secs_f64(SAVED_MAX / bytes_per_second));
        let _ = timeout(tick, store.background.patrol_wanted.notified()).await;
        saved = (saved + last.elapsed().as_secs_f64() * bytes_per_second).min(SAVED_MAX);
        last = now();
        let mut steps = 0;
        while saved > 0.0 && steps < STEPS_MAX && !store.is_closing() && store.heap.read_only().is_none() {
            match patrol.step().await {
                Ok(step) => {
                    saved -= step.read_bytes as f64;
                    for damage in step.damage {
                        tracing::error!(%damage, "the patrol found damage; `pumice check` says what it holds");
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "the patrol could not read");
                    break;
                }
            }
            steps += 1;
        }
    }
}
