//! The door of the API on TCP: connections that have not shown the token, and how many may have.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lunway_target::{Crowd, Source};
use tokio::sync::Notify;

use crate::listen::CONNECTIONS_MAX;

/// Connections without a proven token at a time.
const STRANGERS_MAX: usize = 64;
/// Of these from one source: half, so that a single one never has the whole door.
const STRANGERS_OF_SOURCE_MAX: usize = 32;
/// Time limit for a connection to show the token: a client that has one sends it with its first bytes.
const STRANGER_TIME: Duration = Duration::from_secs(10);

/// Has shown the token.
const ADMITTED: u8 = 1;
/// Has to make place.
const EXPELLED: u8 = 2;

/// Connections before and after they have shown the token.
///
/// Everybody is let as far as the door, and nobody stays there: a stranger has [`STRANGER_TIME`], and makes place for
/// newer ones of its source, or, where all places are taken, if its source has the most of them. So a client that has
/// the token is answered however many strangers stand in the door, and from whatever source.
#[derive(Debug, Default)]
pub(crate) struct Door {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    last: u64,
    strangers: Crowd<Arc<Standing>>,
    admitted: usize,
}

/// State of a connection.
#[derive(Debug, Default)]
struct Standing {
    /// [`ADMITTED`], [`EXPELLED`], or 0: a stranger.
    state: AtomicU8,
    expelled: Notify,
}

/// A connection; its place is free when this is dropped.
#[derive(Debug)]
pub(crate) struct Visitor {
    door: Arc<Door>,
    number: u64,
    standing: Arc<Standing>,
}

impl Door {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Every change is complete before anything can panic.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection has come, without a token so far.
    pub(crate) fn enter(self: &Arc<Self>, from: IpAddr) -> Visitor {
        let mut inner = self.lock();
        inner.last += 1;
        let (number, standing) = (inner.last, Arc::<Standing>::default());
        let leaving = inner.strangers.enter(
            number,
            Source::from(from),
            Arc::clone(&standing),
            STRANGERS_MAX,
            STRANGERS_OF_SOURCE_MAX,
        );
        // Under the lock: it must not be admitted meanwhile.
        if let Some(leaving) = leaving {
            leaving.state.store(EXPELLED, Ordering::Relaxed);
            leaving.expelled.notify_one();
        }
        drop(inner);
        Visitor { door: Arc::clone(self), number, standing }
    }
}

impl Visitor {
    /// The connection has shown the token, and is a stranger no longer. `false`: as many as may have are there.
    pub(crate) fn come_in(&self) -> bool {
        let mut inner = self.door.lock();
        if self.standing.state.load(Ordering::Relaxed) == ADMITTED {
            return true;
        }
        if self.standing.state.load(Ordering::Relaxed) == EXPELLED || inner.admitted >= CONNECTIONS_MAX {
            return false;
        }
        inner.strangers.leave(self.number);
        inner.admitted += 1;
        self.standing.state.store(ADMITTED, Ordering::Relaxed);
        true
    }

    /// Returns when the connection has to end without having shown the token.
    pub(crate) async fn must_go(&self) {
        self.must_go_after(STRANGER_TIME).await;
    }

    async fn must_go_after(&self, time: Duration) {
        tokio::select! {
            () = tokio::time::sleep(time) => {}
            () = self.standing.expelled.notified() => {}
        }
        if self.standing.state.load(Ordering::Relaxed) == ADMITTED {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Visitor {
    fn drop(&mut self) {
        let mut inner = self.door.lock();
        match self.standing.state.load(Ordering::Relaxed) {
            ADMITTED => inner.admitted -= 1,
            _ => _ = inner.strangers.leave(self.number),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(door: &Arc<Door>, from: &str) -> Visitor {
        door.enter(from.parse().unwrap())
    }

    async fn has_to_go(visitor: &Visitor) -> bool {
        tokio::time::timeout(Duration::from_millis(1), visitor.must_go()).await.is_ok()
    }

    #[tokio::test]
    async fn strangers_make_place_for_newer_ones_of_the_source_that_has_most() {
        let door = Arc::<Door>::default();
        let quiet = enter(&door, "192.0.2.1");
        let mut loud: Vec<_> = (0..2 * STRANGERS_MAX).map(|_| enter(&door, "192.0.2.2")).collect();
        assert!(!has_to_go(&quiet).await && has_to_go(&loud[0]).await);
        let last = loud.pop().unwrap();
        assert!(!has_to_go(&last).await && last.come_in());
        // Each from elsewhere: the oldest goes.
        let many: Vec<_> = (1..=100).map(|net| enter(&door, &format!("fd00:0:0:{net}::1"))).collect();
        assert!(!has_to_go(&many[99]).await && many[99].come_in());
        drop((quiet, loud, last, many));
        assert!(door.lock().strangers.is_empty() && door.lock().admitted == 0);
    }

    #[tokio::test]
    async fn a_stranger_has_a_bounded_time_and_one_with_the_token_has_not() {
        let door = Arc::<Door>::default();
        let (stranger, known) = (enter(&door, "192.0.2.1"), enter(&door, "192.0.2.1"));
        assert!(known.come_in() && known.come_in());
        let (time, long) = (Duration::from_millis(1), Duration::from_secs(30));
        assert!(tokio::time::timeout(long, stranger.must_go_after(time)).await.is_ok());
        assert!(tokio::time::timeout(100 * time, known.must_go_after(time)).await.is_err());
    }

    #[tokio::test]
    async fn connections_with_the_token_are_bounded_as_well() {
        let door = Arc::<Door>::default();
        let known: Vec<_> = (0..CONNECTIONS_MAX)
            .map(|_| enter(&door, "192.0.2.1"))
            .inspect(|it| assert!(it.come_in()))
            .collect();
        let more = enter(&door, "192.0.2.1");
        assert!(!more.come_in());
        drop(known);
        assert!(more.come_in());
    }
}
