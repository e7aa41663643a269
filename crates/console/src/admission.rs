//! Admission to the API on TCP: bounds of the connections that have not shown the token, and of those that have.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lunway_target::{SourceHost, SourceQuota};
use tokio::sync::Notify;

/// Connections at a time, for each socket on its own; on TCP of those that have shown the token.
pub(crate) const CONNECTIONS_MAX: usize = 64;
/// Connections without a proven token at a time.
const UNPROVEN_MAX: usize = 64;
/// Of these from one source: half, so that a single one never has all of them.
const UNPROVEN_OF_SOURCE_MAX: usize = 32;
/// Time limit for a connection to show the token: a client that has one sends it with its first bytes.
const TOKEN_TIME: Duration = Duration::from_secs(10);

/// Has shown the token.
const ADMITTED: u8 = 1;
/// Has to make room for another.
const EXPELLED: u8 = 2;

/// Connections before and after they have shown the token.
///
/// Every connection is accepted, and has [`TOKEN_TIME`] to show the token. Until then it is closed to make room for
/// newer ones of its source or, where there are [`UNPROVEN_MAX`] of them, if its source has the most. So a client that
/// has the token is answered however many connections without it there are, and from whatever source.
#[derive(Debug, Default)]
pub(crate) struct TokenAdmission {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    last: u64,
    unproven: SourceQuota<Arc<ConnectionState>>,
    admitted: usize,
}

/// State of a connection.
#[derive(Debug, Default)]
struct ConnectionState {
    /// [`ADMITTED`], [`EXPELLED`], or 0: has not shown the token.
    state: AtomicU8,
    expelled: Notify,
}

/// A connection; its place is free when this is dropped.
#[derive(Debug)]
pub(crate) struct AdmissionGuard {
    admission: Arc<TokenAdmission>,
    number: u64,
    connection: Arc<ConnectionState>,
}

impl TokenAdmission {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Every change is complete before anything can panic.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection has come, without a token so far.
    pub(crate) fn enter(self: &Arc<Self>, from: IpAddr) -> AdmissionGuard {
        let mut inner = self.lock();
        inner.last += 1;
        let (number, connection) = (inner.last, Arc::<ConnectionState>::default());
        let leaving = inner.unproven.enter(
            number,
            SourceHost::from(from),
            Arc::clone(&connection),
            UNPROVEN_MAX,
            UNPROVEN_OF_SOURCE_MAX,
        );
        // Under the lock: it must not be admitted meanwhile.
        if let Some(leaving) = leaving {
            leaving.state.store(EXPELLED, Ordering::Relaxed);
            leaving.expelled.notify_one();
        }
        drop(inner);
        AdmissionGuard { admission: Arc::clone(self), number, connection }
    }
}

impl AdmissionGuard {
    /// The connection has shown the token, and is admitted. `false`: as many as may be are admitted already.
    pub(crate) fn admit(&self) -> bool {
        let mut inner = self.admission.lock();
        if self.connection.state.load(Ordering::Relaxed) == ADMITTED {
            return true;
        }
        if self.connection.state.load(Ordering::Relaxed) == EXPELLED || inner.admitted >= CONNECTIONS_MAX {
            return false;
        }
        inner.unproven.leave(self.number);
        inner.admitted += 1;
        self.connection.state.store(ADMITTED, Ordering::Relaxed);
        true
    }

    /// Returns when the connection has to end without having shown the token.
    pub(crate) async fn must_close(&self) {
        self.must_close_after(TOKEN_TIME).await;
    }

    async fn must_close_after(&self, time: Duration) {
        tokio::select! {
            () = tokio::time::sleep(time) => {}
            () = self.connection.expelled.notified() => {}
        }
        if self.connection.state.load(Ordering::Relaxed) == ADMITTED {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for AdmissionGuard {
    fn drop(&mut self) {
        let mut inner = self.admission.lock();
        match self.connection.state.load(Ordering::Relaxed) {
            ADMITTED => inner.admitted -= 1,
            _ => _ = inner.unproven.leave(self.number),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(admission: &Arc<TokenAdmission>, from: &str) -> AdmissionGuard {
        admission.enter(from.parse().unwrap())
    }

    async fn has_to_close(guard: &AdmissionGuard) -> bool {
        tokio::time::timeout(Duration::from_millis(1), guard.must_close()).await.is_ok()
    }

    #[tokio::test]
    async fn connections_without_a_token_make_room_for_newer_ones_of_the_source_that_has_most() {
        let admission = Arc::<TokenAdmission>::default();
        let quiet = enter(&admission, "192.0.2.1");
        let mut loud: Vec<_> = (0..2 * UNPROVEN_MAX).map(|_| enter(&admission, "192.0.2.2")).collect();
        assert!(!has_to_close(&quiet).await && has_to_close(&loud[0]).await);
        let last = loud.pop().unwrap();
        assert!(!has_to_close(&last).await && last.admit());
        // Each from elsewhere: the oldest goes.
        let many: Vec<_> = (1..=100).map(|net| enter(&admission, &format!("fd00:0:0:{net}::1"))).collect();
        assert!(!has_to_close(&many[99]).await && many[99].admit());
        drop((quiet, loud, last, many));
        assert!(admission.lock().unproven.is_empty() && admission.lock().admitted == 0);
    }

    #[tokio::test]
    async fn a_connection_without_a_token_has_a_bounded_time_and_one_with_it_has_not() {
        let admission = Arc::<TokenAdmission>::default();
        let (silent, known) = (enter(&admission, "192.0.2.1"), enter(&admission, "192.0.2.1"));
        assert!(known.admit() && known.admit());
        let (time, long) = (Duration::from_millis(1), Duration::from_secs(30));
        assert!(tokio::time::timeout(long, silent.must_close_after(time)).await.is_ok());
        assert!(tokio::time::timeout(100 * time, known.must_close_after(time)).await.is_err());
    }

    #[tokio::test]
    async fn connections_with_the_token_are_bounded_as_well() {
        let admission = Arc::<TokenAdmission>::default();
        let known: Vec<_> = (0..CONNECTIONS_MAX)
            .map(|_| enter(&admission, "192.0.2.1"))
            .inspect(|it| assert!(it.admit()))
            .collect();
        let more = enter(&admission, "192.0.2.1");
        assert!(!more.admit());
        drop(known);
        assert!(more.admit());
    }
}
