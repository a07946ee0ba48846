//! A future that was begun when it was made: the read that it asks for is under way while whoever will want its result has other
//! things to do.
//!
//! Rejected: a task of its own. It begins when the core next looks at its tasks, and who goes over entries of which all are in memory
//! puts that off until it runs out of them.

use std::future::Future;
use std::task::{Context, Poll, Waker};

use pumice_reactor::LocalBoxFuture;

/// See the head of this file. It goes no further than its first wait unless it is awaited, so that wait must be for the drive: a
/// permit or a lock granted to it meanwhile would be kept from others.
pub enum Begun<T> {
    UnderWay(LocalBoxFuture<'static, T>),
    Done(T),
}

impl<T> Begun<T> {
    pub fn begin(future: impl Future<Output = T> + 'static) -> Self {
        let mut future: LocalBoxFuture<'static, T> = Box::pin(future);
        // Who awaits it polls it again, and is woken.
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => Self::Done(result),
            Poll::Pending => Self::UnderWay(future),
        }
    }

    pub async fn finish(self) -> T {
        match self {
            Self::UnderWay(future) => future.await,
            Self::Done(result) => result,
        }
    }
}
