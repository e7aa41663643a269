//! Housekeeping: the task that acts when time has passed, and calls lanes.

use std::sync::Arc;

use lunway_block::Buf;
use tokio::time::{sleep_until, timeout};

use super::core::Shared;
use crate::LaneId;

/// Longest duration of a probe of a lane; a later answer is ignored.
const PROBE_TIME: std::time::Duration = std::time::Duration::from_secs(5);

/// Looks at the lanes when it is time to, and calls them where the lock must not be held: until the device is dropped.
pub(super) async fn keep_house(shared: Arc<Shared>) {
    loop {
        let (orders, next) = {
            let mut core = shared.lock();
            (std::mem::take(&mut core.orders), core.health.next_tick())
        };
        if orders.hurry {
            hurry(&shared);
        }
        if orders.probe {
            for lane in shared.shape.behind() {
                tokio::spawn(probe(shared.clone(), lane));
            }
        }
        let roused = shared.chores.notified();
        match next {
            None => roused.await,
            Some(next) => {
                tokio::select! {
                    // In order, so that a simulation repeats itself.
                    biased;
                    () = roused => {}
                    () = sleep_until(shared.at(next)) => tick(&shared),
                }
            }
        }
    }
}

fn tick(shared: &Shared) {
    let changes = shared.change(|core, now| {
        let lanes = 0..shared.names.len();
        let before: Vec<_> = lanes.clone().map(|lane| core.health.use_of(lane)).collect();
        core.health.tick(now);
        let changed = lanes.filter(|&lane| core.health.use_of(lane) != before[lane]);
        changed.map(|lane| (lane, core.health.last_event(lane).map(|(_, event)| event))).collect::<Vec<_>>()
    });
    for (lane, event) in changes {
        tracing::info!(lane = shared.names[lane], "{}", event.unwrap_or_default());
    }
}

/// A lane has come back, or is another one for the storage: what was the reason may concern others.
fn hurry(shared: &Shared) {
    let idle: Vec<_> = {
        let core = shared.lock();
        let is_idle = |&lane: &usize| core.health.is_down(lane) || !core.health.access(lane).is_active();
        (0..shared.lanes.len()).filter(is_idle).collect()
    };
    idle.into_iter().for_each(|lane| shared.lanes[lane].hurry());
}

/// Has a lane that carries nothing hear what the storage has to say: that the size has changed comes with the answer.
async fn probe(shared: Arc<Shared>, lane: LaneId) {
    let sector = shared.shape.agreed().logical_sector as usize;
    let read = shared.lanes[lane].device().read(0, Buf::for_overwrite(sector));
    // What it answers is of no interest.
    let _ = timeout(PROBE_TIME, read.into_future()).await;
}
