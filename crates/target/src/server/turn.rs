//! Turns of changes: one change at a time, on a thread that may wait for files, and for no longer than is said.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use lunway_block::Permit;
use tokio::sync::{OwnedMutexGuard, oneshot};
use tokio::time::{Instant, timeout_at};

use super::error::ChangeError;
use crate::warning::Warning;

/// Maximum time that a change waits for its turn, and then for the files that it reads and writes: a file system that
/// answers takes milliseconds, a disk that spins up some seconds, and people repeat a command after that.
pub(super) const TURN_TIME: Duration = Duration::from_secs(5);

/// The turns of all changes of a server.
///
/// What a change does with files (secrets, saved state, the configuration itself) may hang with their file system. So
/// it happens on a thread, and the caller waits for [`TURN_TIME`]. A thread that is late keeps the turn until its file
/// system answers: two saves at once would be worse than none. Other changes are refused meanwhile, after the same
/// time, and a [warning](Self::warnings) says why. What only reads takes no turn.
#[derive(Clone, Default)]
pub(super) struct Turns(Arc<State>);

#[derive(Default)]
struct State {
    turn: Arc<tokio::sync::Mutex<()>>,
    now: Mutex<Now>,
}

#[derive(Default)]
struct Now {
    /// Number of turns so far.
    turns: u64,
    /// Step of the present change that works with files: `saving the configuration file F`.
    step: Option<String>,
    /// Its caller no longer waits.
    late: bool,
    /// The configuration file holds a change that was not made: a sentence.
    differs: Option<String>,
}

/// A turn; it ends when this is dropped.
pub(super) struct Turn {
    state: Arc<State>,
    _guard: OwnedMutexGuard<()>,
}

/// The configuration file holds a change that was not made, and could not be put back: the error of
/// [`Persist`](super::Persist) for that.
#[derive(Debug, thiserror::Error)]
#[error(
    "the configuration file {file} holds a change that was not made, and could not be put back ({why}): `lunway reload` makes \
     it, or restore the file and run `lunway reload`"
)]
pub struct FileDiffers {
    /// The file.
    pub file: String,
    /// Reason why it could not be put back.
    pub why: String,
}

impl State {
    fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turns {
    /// Waits for a turn as long as it takes.
    pub(super) async fn wait(&self) -> Turn {
        let guard = Arc::clone(&self.0.turn).lock_owned().await;
        self.0.now().turns += 1;
        Turn { state: Arc::clone(&self.0), _guard: guard }
    }

    /// Waits for a turn, as long as others have theirs.
    ///
    /// # Errors
    ///
    /// [`ChangeError::Late`] when one has not ended within [`TURN_TIME`].
    pub(super) async fn take(&self) -> Result<Turn, ChangeError> {
        let mut wait = pin!(self.wait());
        let mut seen = self.0.now().turns;
        loop {
            if let Ok(turn) = timeout_at(Instant::now() + TURN_TIME, &mut wait).await {
                return Ok(turn);
            }
            let turns = self.0.now().turns;
            if std::mem::replace(&mut seen, turns) == turns {
                return Err(self.late(true));
            }
        }
    }

    fn late(&self, behind: bool) -> ChangeError {
        let what = self.0.now().step.clone().unwrap_or_else(|| "another change".to_owned());
        ChangeError::Late { what, behind, seconds: TURN_TIME.as_secs() }
    }

    /// Runs `job` on a thread, within a turn, and gives the turn back with its result. At the deadline, or when this is
    /// dropped, `permit` is withdrawn; a job that has begun with it is waited for, as nothing in it waits from there
    /// on. The result of a job that is not waited for is `unclaimed`.
    ///
    /// # Errors
    ///
    /// [`ChangeError::Late`] after [`TURN_TIME`].
    pub(super) async fn run<T: Send + 'static>(
        &self,
        turn: Turn,
        permit: &Permit,
        job: impl FnOnce(&Turn) -> T + Send + 'static,
        unclaimed: impl FnOnce(T) + Send + 'static,
    ) -> Result<(T, Turn), ChangeError> {
        let by = Instant::now() + TURN_TIME;
        let (sender, mut result) = oneshot::channel();
        let run = move || {
            let done = job(&turn);
            if let Err((done, turn)) = sender.send((done, turn)) {
                unclaimed(done);
                drop(turn);
            }
        };
        let spawned = thread::Builder::new().name("lunway-change".to_owned()).spawn(run);
        let broken = |error: &dyn std::fmt::Display| ChangeError::Broken(error.to_string());
        spawned.map_err(|error| broken(&error))?;
        let leave = Leave(permit);
        let done = match timeout_at(by, &mut result).await {
            Err(_) if permit.withdraw() => {
                // Before the turn can end.
                self.0.now().late = true;
                result.close();
                // It may have come at this moment.
                if let Ok(done) = result.try_recv() {
                    self.0.now().late = false;
                    return Ok(done);
                }
                let late = self.late(false);
                if let ChangeError::Late { what, seconds, .. } = &late {
                    tracing::warn!(
                        "{what} has not ended within {seconds} s: changes of the configuration are refused until it has"
                    );
                }
                return Err(late);
            }
            Err(_) => result.await,
            Ok(done) => done,
        };
        std::mem::forget(leave);
        done.map_err(|error| broken(&error))
    }

    /// The configuration file is known to be as it is served, or why it is not.
    pub(super) fn set_differs(&self, why: Option<String>) {
        if let Some(why) = &why {
            tracing::error!("{why}");
        }
        self.0.now().differs = why;
    }

    /// Warnings for people.
    pub(super) fn warnings(&self) -> Vec<Warning> {
        let now = self.0.now();
        let late = now.step.as_ref().filter(|_| now.late);
        let late = late.map(|step| Warning::unsettled_config(step));
        let differs = now.differs.iter().map(|why| Warning::differing_config(why));
        late.into_iter().chain(differs).collect()
    }
}

impl Turn {
    /// Says what is done with files from now on.
    pub(super) fn step(&self, what: String) {
        self.state.now().step = Some(what);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut now = self.state.now();
        let step = now.step.take();
        if std::mem::take(&mut now.late) {
            let step = step.unwrap_or_default();
            tracing::warn!("{step} has ended: changes of the configuration are made again");
        }
    }
}

/// A wait for a job, with which the leave to begin it ends.
struct Leave<'a>(&'a Permit);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.withdraw();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Lost was: the data of a `ram:` LUN, removed when the folder of the configuration answered 40 s after the command
    /// had been given up.
    #[tokio::test(start_paused = true)]
    async fn a_job_that_hangs_is_given_up_and_others_are_refused_until_it_ends() {
        let turns = Turns::default();
        let (go_on, hangs) = mpsc::channel::<()>();
        let permit = Permit::default();
        let begins = permit.clone();
        let (has_begun, begun) = mpsc::channel();
        let job = move |turn: &Turn| {
            turn.step("saving F".to_owned());
            let _ = (has_begun.send(()), hangs.recv());
            begins.begin()
        };
        let (tell, unclaimed) = mpsc::channel();
        let told = move |begun| drop(tell.send(begun));
        let error = turns.run(turns.wait().await, &permit, job, told).await.err().unwrap();
        assert!(matches!(&error, ChangeError::Late { behind: false, .. }), "{error}");
        // The clock may be there before the thread is.
        assert!(error.to_string().contains("has not ended within 5 s"), "{error}");
        begun.recv().unwrap();
        assert_eq!(turns.warnings().len(), 1);
        let behind = turns.take().await.err().unwrap().to_string();
        assert!(behind.contains("saving F"), "{behind}");
        drop(go_on);
        assert!(unclaimed.recv().unwrap().is_err(), "it must not begin any more");
        drop(turns.wait().await);
        assert!(turns.warnings().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_goes_away_takes_the_permit_with_it() {
        let turns = Turns::default();
        let (go_on, hangs) = mpsc::channel::<()>();
        let permit = Permit::default();
        let job = move |_: &Turn| hangs.recv().is_ok();
        let gone = turns.run(turns.wait().await, &permit, job, |_| {});
        assert!(tokio::time::timeout(Duration::from_millis(20), gone).await.is_err());
        assert!(permit.begin().is_err());
        drop(go_on);
    }
}
