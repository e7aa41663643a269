//! A limit that sessions share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lunway_block::FairTurn;
use tokio::time::Instant;

use super::account::{Account, nanos};
use crate::config::IoLimit;
use crate::metrics::LimitReading;

/// Limit of a logical unit or of an initiator, whatever sessions and cores the commands come by.
///
/// Commands that have to wait pass one after the other, and owners take turns ([`FairTurn`]): principals, in these
/// hosts, in these sessions. The one whose turn it is waits until the account lets it pass; dropping its future gives
/// the turn to the next.
#[derive(Debug)]
pub(crate) struct Limiter {
    limit: IoLimit,
    /// Locked for a moment.
    account: Mutex<Account>,
    turn: Arc<FairTurn>,
    begun: Instant,
    waits: Arc<Waits>,
}

/// What has waited for a limit, over all changes of it.
#[derive(Debug, Default)]
pub(super) struct Waits {
    commands: AtomicU64,
    micros: AtomicU64,
}

impl Limiter {
    /// A limit whose burst may be used at once.
    pub(super) fn new(limit: IoLimit, waits: Arc<Waits>) -> Self {
        let (account, turn) = (Mutex::new(Account::new(limit)), Arc::default());
        Self { limit, account, turn, begun: Instant::now(), waits }
    }

    /// Returns `true` if nothing that has passed is still to be paid: a new one would let as much pass.
    pub(super) fn is_paid(&self) -> bool {
        let account = self.account.lock().unwrap_or_else(PoisonError::into_inner);
        account.is_paid(nanos(self.begun.elapsed() + self.limit.burst))
    }

    pub(super) fn limit(&self) -> IoLimit {
        self.limit
    }

    pub(super) fn waits(&self) -> &Arc<Waits> {
        &self.waits
    }

    /// Lets a command of so many bytes pass now, if none waits before it and the limit allows it.
    pub(crate) fn try_pass(&self, bytes: u64) -> bool {
        let turn = self.turn.try_take();
        turn.is_some() && self.pass_now(bytes).is_ok()
    }

    /// Waits until a command of so many bytes may pass, and lets it pass.
    pub(crate) async fn pass(&self, bytes: u64) {
        let _turn = self.turn.take().await;
        while let Err(wait) = self.pass_now(bytes) {
            tokio::time::sleep(wait).await;
        }
    }

    fn pass_now(&self, bytes: u64) -> Result<(), Duration> {
        // The account's time begins with its burst.
        let now = nanos(self.begun.elapsed() + self.limit.burst);
        self.account.lock().unwrap_or_else(PoisonError::into_inner).pass(now, bytes)
    }

    /// A command has waited so long.
    pub(crate) fn waited(&self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.waits.commands.fetch_add(1, Ordering::Relaxed);
        self.waits.micros.fetch_add(micros, Ordering::Relaxed);
    }

    pub(super) fn reading(&self) -> LimitReading {
        LimitReading {
            iops: self.limit.iops.map(u64::from),
            bytes_per_second: self.limit.bytes.map(u64::from),
            throttled: self.waits.commands.load(Ordering::Relaxed),
            throttled_us_total: self.waits.micros.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use futures_util::future::join_all;
    use lunway_block::Owner;

    use super::*;

    fn limiter(iops: u64) -> Arc<Limiter> {
        let limit = IoLimit { iops: NonZeroU64::new(iops), bytes: None, burst: Duration::from_millis(10) };
        Arc::new(Limiter::new(limit, Arc::default()))
    }

    /// So many commands of one session, all at once. Returns how long each waited.
    fn commands(limiter: &Arc<Limiter>, owner: &Owner, count: usize) -> Vec<impl Future<Output = Duration>> {
        let command = |_| {
            let (limiter, owner) = (Arc::clone(limiter), owner.clone());
            let mut pass = Box::pin(async move {
                let begun = Instant::now();
                limiter.pass(4096).await;
                begun.elapsed()
            });
            std::future::poll_fn(move |cx| {
                let _entered = owner.enter();
                pass.as_mut().poll(cx)
            })
        };
        (0..count).map(command).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn what_passes_in_a_second_is_the_limit() {
        let limiter = limiter(1000);
        let begun = Instant::now();
        join_all(commands(&limiter, &Owner::new(), 2011)).await;
        let took = begun.elapsed();
        assert!((Duration::from_secs(2)..Duration::from_millis(2002)).contains(&took), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn sessions_of_other_owners_take_turns_with_one_that_floods() {
        let limiter = limiter(100);
        while limiter.try_pass(0) {}
        let [many, one] = [["many", "host"], ["one", "host"]].map(Owner::in_groups);
        let flood = join_all(commands(&limiter, &many, 100));
        let late = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            join_all(commands(&limiter, &one, 1)).await
        };
        let (_, waited) = tokio::join!(flood, late);
        assert!(waited[0] <= Duration::from_millis(31), "beside 90 that came before: {waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_command_that_is_given_up_leaves_its_turn_and_its_part_to_others() {
        let limiter = limiter(1);
        while limiter.try_pass(0) {}
        let first = tokio::spawn({
            let limiter = Arc::clone(&limiter);
            async move { limiter.pass(0).await }
        });
        tokio::task::yield_now().await;
        assert!(!limiter.try_pass(0), "one waits before it");
        let begun = Instant::now();
        let second = tokio::spawn({
            let limiter = Arc::clone(&limiter);
            async move { limiter.pass(0).await }
        });
        tokio::task::yield_now().await;
        first.abort();
        second.await.unwrap();
        assert!(begun.elapsed() <= Duration::from_millis(1001), "{:?}", begun.elapsed());
    }
}
