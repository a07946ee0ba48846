//! One value from one task to another.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use pumice_base::sync::lock;

struct State<T> {
    value: Option<T>,
    waker: Option<Waker>,
    sender_gone: bool,
    receiver_gone: bool,
}

/// Sends the value.
pub struct Sender<T>(Arc<Mutex<State<T>>>);

/// Awaits the value.
pub struct Receiver<T>(Arc<Mutex<State<T>>>);

/// The sender went away without sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SenderGone;

impl fmt::Display for SenderGone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the sender went away without sending")
    }
}

impl std::error::Error for SenderGone {}

/// A sender and its receiver.
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let state = State { value: None, waker: None, sender_gone: false, receiver_gone: false };
    let state = Arc::new(Mutex::new(state));
    (Sender(Arc::clone(&state)), Receiver(state))
}

impl<T> Sender<T> {
    /// Sends; gives the value back if nobody awaits it any more.
    pub fn send(self, value: T) -> Result<(), T> {
        let mut state = lock(&self.0);
        if state.receiver_gone {
            return Err(value);
        }
        state.value = Some(value);
        Ok(())
        // Dropping self wakes the receiver.
    }

    /// Whether nobody awaits it any more.
    pub fn is_closed(&self) -> bool {
        lock(&self.0).receiver_gone
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let waker = {
            let mut state = lock(&self.0);
            state.sender_gone = true;
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Future for Receiver<T> {
    type Output = Result<T, SenderGone>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = lock(&self.0);
        if let Some(value) = state.value.take() {
            return Poll::Ready(Ok(value));
        }
        if state.sender_gone {
            return Poll::Ready(Err(SenderGone));
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let dropped = {
            let mut state = lock(&self.0);
            state.receiver_gone = true;
            (state.value.take(), state.waker.take())
        };
        drop(dropped);
    }
}
