//! Emptying segments whose records would be lost: those that failed, and those with pages near what their code corrects.
//!
//! It is cleaning that does not ask what there is to win, and goes on while there is plenty of room. Where there is not, such
//! segments are cleaning's first victims anyway.

use std::sync::Arc;

use pumice_reactor::{now, sleep};

use crate::clean::victims::Victims;
use crate::clean::{AFTER_FAILURE, Cleaned, TICK};
use crate::store::Inner;

impl Inner {
    /// Empties one such segment and has it retired, or used again. Answers whether there was one. Half of the time, as
    /// cleaning where nothing presses.
    pub async fn rescue(self: &Arc<Self>, released: &mut u32, victims: &mut Victims) -> bool {
        if self.heap.read_only().is_some() {
            return false;
        }
        let Some(victim) = self.heap.endangered() else { return false };
        let started = now();
        match self.clean_victim(victim, victims).await {
            Ok(Cleaned::Released) => {
                self.counters.rescued_segments.add(1);
                *released += 1;
                self.free_released(released).await;
            }
            Ok(_) => sleep(TICK).await,
            Err(error) => {
                tracing::warn!(%error, "moving what lies in a decaying segment failed");
                sleep(AFTER_FAILURE).await;
            }
        }
        sleep(started.elapsed().min(TICK * 4)).await;
        true
    }
}
