//! Replies that wait for a drive without room below it: a file whose file system is full. What waits is written again and again
//! until there is room, and may become durable at any time; so nobody can be told that it was not kept, nor that it was.
//!
//! 1. Whoever keeps house notices a drive that has been so for [`WAIT_MAX`], and from then on tells every connection each second.
//!    (A timer for each reply that waits would cost all of them for what seldom happens.)
//! 2. A connection whose replies wait for such a drive answers UNCERTAIN in their place. Where these are the replies to several
//!    commands it is closed as well: a client that goes on must know what its connection has done, and cannot tell which of the
//!    commands have.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pumice_reactor::{Nanos, timeout};

use crate::output::{Holds, Outgoing, Output};
use crate::server::Server;
use crate::transport::Sender;

/// How long replies wait. Room that comes within seconds (a log is rotated, a copy removed) costs nobody an error.
pub const WAIT_MAX: Duration = Duration::from_secs(5);

/// Tells every connection when a drive has been without room below it for long; `since`: when that was first seen.
pub fn tell(server: &Arc<Server>, since: &mut Option<Nanos>) {
    if !server.node.is_stalled() {
        *since = None;
        return;
    }
    let now = pumice_reactor::now();
    if now.since(*since.get_or_insert(now)) >= WAIT_MAX {
        server.clients.all().iter().for_each(|client| client.tell_stall());
    }
}

/// Answers in the place of replies that wait; false: that was the last answer.
pub(crate) async fn answer(
    waiting: &mut Outgoing,
    why: &str,
    server: &Server,
    output: &Output,
    sender: &Sender,
) -> bool {
    let text = format!(
        "UNCERTAIN the answer depends on writes that are not durable, and will be when there is room again, or never: {why}"
    );
    server.stats.note_error(&text);
    let error = vec![Bytes::from(format!("-{text}\r\n"))];
    match waiting.holds {
        Holds::OneReply => {
            output.replace(waiting, error);
            return true;
        }
        Holds::Replies => {
            output.sending();
            // Who does not take it is closed all the same.
            let _ = timeout(WAIT_MAX, sender.send(error, || true)).await;
        }
        Holds::Rest => {}
    }
    tracing::warn!(why, "closed a client whose replies cannot leave");
    output.close();
    false
}
