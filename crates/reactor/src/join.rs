//! Several futures awaited side by side, results in order.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

enum Slot<F: Future> {
    Running(Pin<Box<F>>),
    Done(F::Output),
    Taken,
}

struct JoinAll<F: Future>(Vec<Slot<F>>);

impl<F: Future> Future for JoinAll<F>
where
    F::Output: Unpin,
{
    type Output = Vec<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut all_done = true;
        for slot in &mut self.0 {
            if let Slot::Running(future) = slot {
                match future.as_mut().poll(cx) {
                    Poll::Ready(output) => *slot = Slot::Done(output),
                    Poll::Pending => all_done = false,
                }
            }
        }
        if !all_done {
            return Poll::Pending;
        }
        let outputs = self.0.iter_mut().map(|slot| match std::mem::replace(slot, Slot::Taken) {
            Slot::Done(output) => output,
            _ => unreachable!("polled again after it was done"),
        });
        Poll::Ready(outputs.collect())
    }
}

/// Awaits all `futures` side by side. Polls all that still run at each wake: for some dozens, whose completions come in batches.
pub async fn join_all<F: Future>(futures: impl ExactSizeIterator<Item = F>) -> Vec<F::Output>
where
    F::Output: Unpin,
{
    let mut futures = futures.map(Box::pin);
    if futures.len() == 1
        && let Some(only) = futures.next()
    {
        return vec![only.await];
    }
    JoinAll(futures.map(Slot::Running).collect()).await
}
