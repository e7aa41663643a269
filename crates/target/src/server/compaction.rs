//! Compaction of the files behind logical units: what runs, how far it is, how it ended, and when it begins by itself.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use lunway_block::{BlockDevice, BlockError, Compaction, CompactionPhase, Io};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;

use crate::config::CompactPolicy;

/// Idle time without reads and writes of initiators before `on-idle` moves anything: longer than the pauses of guests
/// that write back every 5 to 30 s.
const IDLE_TIME: Duration = Duration::from_secs(60);
/// Interval of checks for something to move.
const IDLE_POLL: Duration = Duration::from_secs(60);
/// Maximum rate of `on-idle`, bytes per second: half of what a hard disk does.
const IDLE_RATE: u64 = 64 << 20;
/// Time limit of `on-close`: a daemon that stops has 18 s for all of its end.
pub(super) const CLOSE_TIME: Duration = Duration::from_secs(5);
/// Maximum wait for the end of a cancelled compaction: it ends between two pieces of a block.
const CANCEL_TIME: Duration = Duration::from_secs(5);
/// Polling interval of that wait.
const CANCEL_POLL: Duration = Duration::from_millis(5);

/// State of a compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CompactionState {
    /// Reading the free space of the frozen file systems.
    Mapping,
    /// Releasing blocks that were free and have not been written since.
    Dropping,
    /// Moving blocks into holes, and truncating the file.
    Moving,
    /// Completed, except for blocks that were being written.
    Done,
    /// Stopped early. The next one continues.
    Cancelled,
    /// Ended by an error. Completed moves are kept.
    Failed,
}

/// The last compaction of a logical unit since the daemon has served it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CompactionSummary {
    /// Its state.
    pub state: CompactionState,
    /// Bytes that were released because the file systems do not use them.
    pub dropped: u64,
    /// Bytes of blocks that were moved.
    pub moved: u64,
    /// Bytes of blocks that are still to be moved, at most.
    pub left: u64,
    /// Bytes by which the file was truncated.
    pub cut: u64,
    /// Description of the error.
    pub error: Option<String>,
}

/// A compaction that runs or has ended.
struct Last {
    task: Arc<Compaction>,
    outcome: Option<Result<(), BlockError>>,
    /// Begun by a policy, and makes way for one that was asked for.
    by_itself: bool,
}

/// The compactions of one logical unit's device.
pub(super) struct Compactions {
    device: Weak<dyn BlockDevice>,
    runtime: Handle,
    last: Mutex<Option<Last>>,
    policies: Mutex<Vec<CompactPolicy>>,
}

impl Compactions {
    /// Of a device that is served with these policies. `on-idle` is seen to on `runtime`.
    pub(super) fn new(
        device: &Arc<dyn BlockDevice>,
        policies: &[CompactPolicy],
        runtime: &Handle,
    ) -> Arc<Self> {
        let compactions = Arc::new(Self {
            device: Arc::downgrade(device),
            runtime: runtime.clone(),
            last: Mutex::default(),
            policies: Mutex::new(policies.to_vec()),
        });
        runtime.spawn(when_idle(Arc::downgrade(&compactions)));
        compactions
    }

    /// Other policies from now on.
    pub(super) fn set_policies(&self, policies: &[CompactPolicy]) {
        *self.policies.lock().unwrap_or_else(PoisonError::into_inner) = policies.to_vec();
        if !self.has(CompactPolicy::OnIdle) {
            self.last().iter().filter(|last| last.by_itself).for_each(|last| last.task.cancel());
        }
    }

    fn has(&self, policy: CompactPolicy) -> bool {
        self.policies.lock().unwrap_or_else(PoisonError::into_inner).contains(&policy)
    }

    fn last(&self) -> MutexGuard<'_, Option<Last>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last one.
    pub(super) fn summary(&self) -> Option<CompactionSummary> {
        let last = self.last();
        let Last { task, outcome, .. } = last.as_ref()?;
        let progress = task.progress();
        let state = match outcome {
            Some(Err(_)) => CompactionState::Failed,
            Some(Ok(())) if task.is_cancelled() => CompactionState::Cancelled,
            Some(Ok(())) => CompactionState::Done,
            None => match progress.phase {
                CompactionPhase::Mapping => CompactionState::Mapping,
                CompactionPhase::Dropping => CompactionState::Dropping,
                CompactionPhase::Moving | CompactionPhase::Ended => CompactionState::Moving,
            },
        };
        let error = outcome.as_ref().and_then(|outcome| outcome.as_ref().err()).map(ToString::to_string);
        let (dropped, moved, left, cut) = (progress.dropped, progress.moved, progress.left, progress.cut);
        Some(CompactionSummary { state, dropped, moved, left, cut, error })
    }

    /// Has the one that runs end soon. What has ended stays what it was.
    pub(super) fn cancel(&self) {
        self.last().iter().filter(|last| last.outcome.is_none()).for_each(|last| last.task.cancel());
    }

    /// Begins one. One that a policy has begun makes way.
    pub(super) async fn begin(self: &Arc<Self>, task: &Arc<Compaction>) -> Result<(), BlockError> {
        let by_itself = self.last().as_ref().is_some_and(|last| last.by_itself && last.outcome.is_none());
        if by_itself {
            self.cancel();
            self.wait(CANCEL_TIME).await;
        }
        self.start(task, false)
    }

    fn start(self: &Arc<Self>, task: &Arc<Compaction>, by_itself: bool) -> Result<(), BlockError> {
        let device = self.device.upgrade().ok_or_else(|| BlockError::gone("the logical unit is gone"))?;
        let mut last = self.last();
        if last.as_ref().is_some_and(|last| last.outcome.is_none()) {
            return Err(BlockError::Busy);
        }
        let io = match device.compact(Arc::clone(task)) {
            Io::Ready(Err(error)) => return Err(error),
            io => io,
        };
        drop(device);
        *last = Some(Last { task: Arc::clone(task), outcome: None, by_itself });
        drop(last);
        let this = Arc::clone(self);
        self.runtime.spawn(async move {
            let outcome = io.await;
            if let Err(error) = &outcome {
                tracing::warn!("a compaction ended early: {error}");
            }
            if let Some(last) = &mut *this.last() {
                last.outcome = Some(outcome);
            }
        });
        Ok(())
    }

    /// Waits until none runs, up to a time.
    async fn wait(&self, time: Duration) {
        let ended = async {
            while self.last().as_ref().is_some_and(|last| last.outcome.is_none()) {
                tokio::time::sleep(CANCEL_POLL).await;
            }
        };
        let _ = tokio::time::timeout(time, ended).await;
    }

    /// Ends compaction before the device is closed: one that runs is cancelled, then `on-close` moves what it can in
    /// `time`.
    pub(super) async fn end(self: &Arc<Self>, time: Duration) {
        self.cancel();
        self.wait(CANCEL_TIME).await;
        if self.has(CompactPolicy::OnClose) {
            let task = Arc::new(Compaction::new(u64::MAX));
            if self.start(&task, true).is_ok() {
                self.wait(time).await;
                task.cancel();
                self.wait(CANCEL_TIME).await;
            }
        }
    }
}

/// Sees to `on-idle`, until the logical unit is gone.
async fn when_idle(compactions: Weak<Compactions>) {
    loop {
        let Some(unit) = compactions.upgrade() else { return };
        if unit.has(CompactPolicy::OnIdle) {
            let task = Arc::new(Compaction::new(IDLE_RATE).when_idle(IDLE_TIME));
            // One that runs, or a device that has no holes, is no news.
            let _ = unit.start(&task, true);
        }
        drop(unit);
        tokio::time::sleep(IDLE_POLL).await;
    }
}
