//! A result that may be ready already.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context, Poll};

/// The answer of an operation: there already, or to come.
///
/// `Ready` costs nothing; `Pending` costs one allocation, small against whatever is waited for. Callers that do not
/// care await it: `device.flush().await`.
pub enum Io<T> {
    /// Finished.
    Ready(T),
    /// Under way.
    Pending(Pin<Box<dyn Future<Output = T> + Send>>),
}

impl<T: Send + 'static> Io<T> {
    /// Boxes a future.
    pub fn pending(future: impl Future<Output = T> + Send + 'static) -> Self {
        Self::Pending(Box::pin(future))
    }

    /// Applies `f` to the answer; at once if it is ready, so that no allocation comes in.
    pub fn map<U: Send + 'static>(self, f: impl FnOnce(T) -> U + Send + 'static) -> Io<U> {
        match self {
            Self::Ready(value) => Io::Ready(f(value)),
            Self::Pending(future) => Io::pending(async move { f(future.await) }),
        }
    }

    /// Goes on with another operation once this one has its answer.
    pub fn then<U: Send + Unpin + 'static>(self, f: impl FnOnce(T) -> Io<U> + Send + 'static) -> Io<U> {
        match self {
            Self::Ready(value) => f(value),
            Self::Pending(future) => Io::pending(async move { f(future.await).await }),
        }
    }
}

impl<T, E> Io<Result<T, E>> {
    /// A ready failure.
    pub fn err(error: E) -> Self {
        Self::Ready(Err(error))
    }

    /// A ready success.
    pub fn ok(value: T) -> Self {
        Self::Ready(Ok(value))
    }
}

impl<T: Unpin> IntoFuture for Io<T> {
    type Output = T;
    type IntoFuture = IoFuture<T>;

    fn into_future(self) -> IoFuture<T> {
        match self {
            Self::Ready(value) => IoFuture::Ready(Some(value)),
            Self::Pending(future) => IoFuture::Pending(future),
        }
    }
}

/// The future of an [`Io`].
pub enum IoFuture<T> {
    /// Finished; `None` once it has been polled.
    Ready(Option<T>),
    /// Under way.
    Pending(Pin<Box<dyn Future<Output = T> + Send>>),
}

impl<T: Unpin> Future for IoFuture<T> {
    type Output = T;

    /// # Panics
    ///
    /// Like most futures, when polled again after it was ready.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        match self.get_mut() {
            Self::Ready(value) => Poll::Ready(value.take().expect("polled after it was ready")),
            Self::Pending(future) => future.as_mut().poll(cx),
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Io<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready(value) => f.debug_tuple("Ready").field(value).finish(),
            Self::Pending(_) => f.write_str("Pending"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ready_stays_ready_through_map_and_then() {
        let io = Io::Ready(1).map(|n| n + 1).then(|n| Io::Ready(n * 10));
        assert!(matches!(io, Io::Ready(20)));
        assert!(matches!(Io::<Result<(), u8>>::err(3), Io::Ready(Err(3))));
        assert!(matches!(Io::<Result<u8, ()>>::ok(3), Io::Ready(Ok(3))));
    }

    #[tokio::test]
    async fn what_is_pending_goes_through_map_and_then() {
        let later = || {
            Io::pending(async {
                tokio::task::yield_now().await;
                1
            })
        };
        assert_eq!(later().map(|n| n + 1).await, 2);
        assert_eq!(later().then(|n| Io::Ready(n + 2)).await, 3);
        assert_eq!(Io::Ready(5).then(move |n| later().map(move |m| n + m)).await, 6);
    }

    #[test]
    fn debug_shows_only_what_is_known() {
        assert_eq!(format!("{:?} {:?}", Io::Ready(1), Io::pending(async { 1 })), "Ready(1) Pending");
    }
}
