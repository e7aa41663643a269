//! Lost sessions that nothing proves dead.

use std::pin::pin;
use std::time::Duration;

use lunway_block::duration::ExactDuration;
use tokio::time::{sleep, sleep_until};

use super::core::Shared;
use crate::{LaneEvent, LaneId};

/// Pause after a round in which every lane that could be asked has failed to answer.
const AGAIN: Duration = Duration::from_millis(250);

/// Sessions to be settled without proof, and when there will be more.
struct Overdue {
    /// Lane and session.
    sessions: Vec<(LaneId, u64)>,
    next: Option<Duration>,
}

/// Settles lost sessions that nothing proves dead, by time and barrier; until the device is dropped.
///
/// A portal that is gone for good, with no other one of its group, leaves no way to reinstate the sessions that went
/// there. What they can still do to the disk is bounded all the same. A lane sends nothing more from the moment of its
/// loss, not even again. So there is only what the network and the target's socket held then; and
/// [`Options::settle`](super::Options::settle) later the target has taken that, or nothing is there to take it. What it
/// has taken is a command like others, and older than a barrier that is sent over another lane *after* that time: with
/// its answer they have all ended. Everything that was overdue when the barrier was sent is settled by it.
///
/// With no lane to send it over it waits for one. A lane that is lost meanwhile is no answer; the next one is asked.
pub(super) async fn settle_unproven(shared: std::sync::Arc<Shared>) {
    loop {
        let mut changed = pin!(shared.changed.notified());
        // Before looking: what changes after that is not missed.
        changed.as_mut().enable();
        let Overdue { sessions, next } = shared.overdue();
        let lanes = shared.lock().health.that_can_be_asked();
        if sessions.is_empty() || lanes.is_empty() {
            match next.filter(|_| sessions.is_empty()) {
                None => changed.await,
                Some(next) => {
                    tokio::select! {
                        // In order, so that a simulation repeats itself.
                        biased;
                        () = changed => {}
                        () = sleep_until(shared.at(next)) => {}
                    }
                }
            }
            continue;
        }
        match ask(&shared, lanes).await {
            Some(witness) => shared.settle_by_barrier(&sessions, witness),
            None => sleep(AGAIN).await,
        }
    }
}

/// Sends a barrier over one lane after the other until one is answered; gives that lane.
async fn ask(shared: &Shared, lanes: Vec<LaneId>) -> Option<LaneId> {
    for lane in lanes {
        if !shared.lock().health.that_can_be_asked().contains(&lane) {
            continue;
        }
        match shared.lanes[lane].barrier().await {
            Ok(()) => return Some(lane),
            Err(error) => tracing::debug!(lane = shared.names[lane], %error, "a barrier was not answered"),
        }
    }
    None
}

impl Shared {
    fn overdue(&self) -> Overdue {
        let (now, core) = (self.now(), self.lock());
        let (mut sessions, mut next) = (Vec::new(), None::<Duration>);
        for (lane, epoch, lost_at) in core.health.unsettled() {
            let due = lost_at.saturating_add(self.settle);
            if due <= now {
                sessions.push((lane, epoch));
            } else {
                next = Some(next.map_or(due, |next| next.min(due)));
            }
        }
        Overdue { sessions, next }
    }

    fn settle_by_barrier(&self, sessions: &[(LaneId, u64)], witness: LaneId) {
        for &(lane, epoch) in sessions {
            {
                let mut core = self.lock();
                if core.health.is_settled(lane, epoch) {
                    continue;
                }
                core.health.presume_dead(lane, epoch);
            }
            tracing::warn!(
                lane = self.names[lane],
                witness = self.names[witness],
                "nothing has proved within {} that its lost session is dead; it is settled by time and barrier",
                ExactDuration(self.settle)
            );
            self.happened(lane, &LaneEvent::Settled { epoch });
        }
    }
}
