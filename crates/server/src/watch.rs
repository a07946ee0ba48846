//! Once a second: the cores' counters for the HTTP face, and what the log tells of drives. One line when a drive's state
//! changes, and at most one for the damage that reads met since the last look: however much there is, a line a second names
//! the first place and counts the others. And whether the allocator has taken new memory.

use std::time::Duration;

use pumice_node::{DriveCondition, DriveState, NewDamage, Node};

use crate::allocator;
use crate::health::Health;

const EVERY: Duration = Duration::from_secs(1);

/// Watches for as long as the server runs.
pub async fn over(health: Health) {
    let mut known: Vec<DriveState> = Vec::new();
    loop {
        if let Some(node) = health.node() {
            look(node, &mut known);
        }
        allocator::tell_new_arenas();
        health.set_core_metrics(pumice_reactor::metrics::all_cores());
        pumice_reactor::sleep(EVERY).await;
    }
}

fn look(node: &Node, known: &mut Vec<DriveState>) {
    for (drive, found) in (0..).zip(node.conditions()) {
        tell_damage(&found.drive, node.take_new_damage(drive));
        let at = usize::from(drive);
        if known.len() == at {
            known.push(DriveState::Ok);
        }
        let before = std::mem::replace(&mut known[at], found.state);
        if before != found.state {
            tell(&found, before);
        }
    }
}

fn tell_damage(drive: &str, damage: NewDamage) {
    match damage {
        NewDamage { first: None, .. } => {}
        NewDamage { first: Some(place), more: 0 } => {
            tracing::error!("drive {drive}: {place} does not verify: a read met it");
        }
        NewDamage { first: Some(place), more } => {
            tracing::error!(
                "drive {drive}: {place} does not verify, nor do {more} other records: reads met them"
            );
        }
    }
}

fn tell(found: &DriveCondition, before: DriveState) {
    let (drive, why) = (&found.drive, found.why.as_deref().unwrap_or_default());
    if before == DriveState::Unresponsive {
        tracing::info!("drive {drive} answers again");
    } else if before.refuses_writes()
        && !found.state.refuses_writes()
        && found.state != DriveState::Unresponsive
    {
        tracing::info!("drive {drive} takes writes again");
    }
    match found.state {
        DriveState::Ok if before == DriveState::Damaged => {
            tracing::info!("drive {drive} is not damaged any more: what did not verify is gone");
        }
        DriveState::Ok => {}
        DriveState::Damaged => tracing::error!("drive {drive} damaged: {why}"),
        DriveState::Full => tracing::warn!("drive {drive} full: reads and deletes go on, {why}"),
        DriveState::Unresponsive => tracing::error!("drive {drive} unresponsive: {why}"),
        DriveState::NoSpace => {
            tracing::warn!("drive {drive} no-space: reads go on, writes are refused: {why}")
        }
        DriveState::Failed => tracing::error!("drive {drive} failed: reads go on, writes are refused: {why}"),
    }
}
