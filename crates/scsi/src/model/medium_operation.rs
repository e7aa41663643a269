//! Operations that have the whole medium for themselves and outlive their command: sanitize and format.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use crate::data::response::Response;
use crate::data::sense::{AdditionalSense, Sense, SenseKey};
use crate::data::status::Status;
use crate::model::state_store::{StateError, StateStore, item};

/// Executor of work that goes on after its command was answered.
///
/// The device server has no threads of its own: the server says where a sanitize operation runs. Work that is
/// dropped before it ended is a failed operation, which is what initiators are told.
pub trait Background: fmt::Debug + Send + Sync {
    /// Runs `work` to its end, elsewhere.
    fn run(&self, work: Pin<Box<dyn Future<Output = ()> + Send>>);
}

/// Kind of work on the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MediumWork {
    /// SANITIZE (SBC-4 §4.11).
    Sanitize,
    /// FORMAT UNIT (SBC-4 §4.34).
    Format,
}

impl MediumWork {
    fn in_progress(self) -> AdditionalSense {
        match self {
            Self::Sanitize => AdditionalSense::SANITIZE_IN_PROGRESS,
            Self::Format => AdditionalSense::FORMAT_IN_PROGRESS,
        }
    }

    fn failed(self) -> Sense {
        let code = match self {
            Self::Sanitize => AdditionalSense::SANITIZE_COMMAND_FAILED,
            Self::Format => AdditionalSense::FORMAT_COMMAND_FAILED,
        };
        Sense::new(SenseKey::MEDIUM_ERROR, code)
    }
}

/// Phase of the medium.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nothing: ordinary commands run.
    #[default]
    Idle,
    /// Work is under way.
    Running(MediumWork),
    /// Work has failed, so that the contents of the medium are unknown. `unrestricted`: EXIT FAILURE MODE leads out of
    /// it.
    Failed {
        /// The failed work.
        work: MediumWork,
        /// AUSE of the SANITIZE.
        unrestricted: bool,
    },
}

/// The kept form: a version, and AUSE.
const KEPT_VERSION: u8 = 1;

/// Loads the AUSE of a sanitize operation that was not over when the process ended; `None`: there was none.
pub(crate) fn load_sanitize(state: Option<(&Arc<dyn StateStore>, &str)>) -> Result<Option<bool>, StateError> {
    let Some((store, owner)) = state else { return Ok(None) };
    match store.load(owner, item::SANITIZE)?.as_deref() {
        None => Ok(None),
        Some(&[KEPT_VERSION, unrestricted @ (0 | 1)]) => Ok(Some(unrestricted == 1)),
        Some(_) => Err(StateError::Damaged {
            owner: owner.to_owned(),
            item: item::SANITIZE.to_owned(),
            why: "it is not of a version that is known".to_owned(),
        }),
    }
}

/// The kept form of a sanitize operation that is not over, by its AUSE; `None`: of none.
pub(crate) fn kept_sanitize(unrestricted: Option<bool>) -> Vec<u8> {
    unrestricted.map_or(Vec::new(), |unrestricted| vec![KEPT_VERSION, u8::from(unrestricted)])
}

#[derive(Debug, Default)]
struct State {
    phase: Phase,
    /// The nexus whose command began it.
    owner: Option<u64>,
    /// Counts up when waiting commands are to be let go although work goes on.
    releases: u64,
    waiting: Vec<Waker>,
}

/// The operation that a logical unit's medium is in, if any.
///
/// [`begin`](Self::begin) → [`progress`](Self::set_progress) → [`end`](Self::end). There is one at a time. It is the
/// logical unit's, not its command's: neither a task management function nor the loss of the nexus ends it (SBC-4
/// §4.11.1); they only let go a command that waits for it.
#[derive(Debug, Default)]
pub(crate) struct MediumOperation {
    state: Mutex<State>,
    progress: AtomicU16,
}

/// Outcome of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    /// The operation is over; the phase says how.
    Over,
    /// Goes on.
    Released,
}

impl MediumOperation {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn phase(&self) -> Phase {
        self.state().phase
    }

    /// Takes the medium, unless something runs already.
    pub(crate) fn begin(&self, work: MediumWork, owner: u64) -> bool {
        let mut state = self.state();
        if matches!(state.phase, Phase::Running(_)) {
            return false;
        }
        state.phase = Phase::Running(work);
        state.owner = Some(owner);
        self.progress.store(0, Ordering::Release);
        true
    }

    /// `done` of `total`: what PROGRESS INDICATION says is their ratio, in parts of 65,536 (SPC-4 §4.5.2.4.4).
    pub(crate) fn set_progress(&self, done: u64, total: u64) {
        let parts = u128::from(done) * 0x1_0000 / u128::from(total.max(1));
        self.progress.store(u16::try_from(parts).unwrap_or(u16::MAX), Ordering::Release);
    }

    /// The work is over.
    pub(crate) fn end(&self, phase: Phase) {
        let waiting = {
            let mut state = self.state();
            state.phase = phase;
            state.owner = None;
            std::mem::take(&mut state.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Lets the command go that waits: all of them, or that of one nexus.
    pub(crate) fn release(&self, nexus: Option<u64>) {
        let waiting = {
            let mut state = self.state();
            if nexus.is_some() && state.owner != nexus {
                return;
            }
            state.releases += 1;
            std::mem::take(&mut state.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Waits for the end.
    pub(crate) async fn over(&self) -> Waited {
        let releases = self.state().releases;
        poll_fn(|cx| {
            let mut state = self.state();
            if !matches!(state.phase, Phase::Running(_)) {
                return Poll::Ready(Waited::Over);
            }
            if state.releases != releases {
                return Poll::Ready(Waited::Released);
            }
            if !state.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                state.waiting.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await
    }

    /// The response to a command that finds the medium taken or unusable. Where that is over in between: come again.
    pub(crate) fn response(&self) -> Response {
        self.sense().map_or_else(|| Response::status(Status::BUSY), Response::from)
    }

    /// Returns the sense data for commands that need the medium; `None` when idle.
    pub(crate) fn sense(&self) -> Option<Sense> {
        match self.phase() {
            Phase::Idle => None,
            Phase::Running(work) => {
                let [high, low] = self.progress.load(Ordering::Acquire).to_be_bytes();
                let sense = Sense::new(SenseKey::NOT_READY, work.in_progress());
                Some(Sense { key_specific: Some([0, high, low]), ..sense })
            }
            Phase::Failed { work, .. } => Some(work.failed()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Context;

    use super::*;

    #[test]
    fn there_is_one_at_a_time_and_its_progress_is_told() {
        let operation = MediumOperation::default();
        assert!(operation.begin(MediumWork::Sanitize, 1));
        assert!(!operation.begin(MediumWork::Format, 2));
        operation.set_progress(1, 4);
        let sense = operation.sense().unwrap();
        assert_eq!(sense.key_specific, Some([0, 0x40, 0]));
        operation.set_progress(4, 4);
        assert_eq!(operation.sense().unwrap().key_specific, Some([0, 0xFF, 0xFF]));
        operation.end(Phase::Idle);
        assert_eq!(operation.sense(), None);
        assert!(operation.begin(MediumWork::Format, 2));
    }

    #[test]
    fn who_waits_hears_of_the_end_and_of_its_own_release_only() {
        let operation = MediumOperation::default();
        assert!(operation.begin(MediumWork::Sanitize, 1));
        let mut cx = Context::from_waker(Waker::noop());
        let mut waiting = pin!(operation.over());
        assert!(waiting.as_mut().poll(&mut cx).is_pending());
        operation.release(Some(2));
        assert!(waiting.as_mut().poll(&mut cx).is_pending());
        operation.release(Some(1));
        assert_eq!(waiting.as_mut().poll(&mut cx), Poll::Ready(Waited::Released));
        let mut waiting = pin!(operation.over());
        assert!(waiting.as_mut().poll(&mut cx).is_pending());
        operation.end(Phase::Failed { work: MediumWork::Sanitize, unrestricted: false });
        assert_eq!(waiting.as_mut().poll(&mut cx), Poll::Ready(Waited::Over));
    }
}
