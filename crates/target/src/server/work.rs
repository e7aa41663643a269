//! Work on the device of a logical unit that takes its time, and its end when the caller no longer waits.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lunway_block::{BlockDevice, BlockError, Io, Permit};
use tokio::runtime::Handle;
use tokio::sync::OwnedMutexGuard;
use tokio::time::{Instant, timeout_at};

use super::error::ChangeError;
use crate::warning::Warning;

/// Time limit for a change of size: a file system frees terabytes in less. A snapshot, which waits for the commands
/// under way, is waited for as long: no longer than initiators wait for a command.
const WORK_TIME: Duration = Duration::from_secs(30);

/// Devices with work that has not ended although its caller no longer waits.
#[derive(Default)]
pub(super) struct Unsettled(Mutex<Vec<Arc<DeviceWork>>>);

/// Work on the device of a logical unit, one at a time.
///
/// What has not begun when [`WORK_TIME`] is over is never made: its [`Permit`] is withdrawn. What has begun may still
/// be made. Either way the device is *unsettled* until it has answered: all later work is refused, and the end is
/// logged.
pub(super) struct DeviceWork {
    target: String,
    lun: u16,
    device: Arc<dyn BlockDevice>,
    turn: Arc<tokio::sync::Mutex<()>>,
    state: Mutex<State>,
    unsettled: Arc<Unsettled>,
}

/// Progress of work.
#[derive(Default)]
enum State {
    /// None is.
    #[default]
    Idle,
    /// Under way, with a caller that waits for it.
    Waited,
    /// Under way, without a caller.
    Left {
        /// The work in words.
        what: String,
        /// May still be made.
        begun: bool,
    },
}

/// Reason why work was not done, or is not known to be.
#[derive(Debug)]
pub(super) enum WorkError {
    /// The device's answer.
    Device(BlockError),
    /// Not waited for, or not begun: a sentence.
    Unsettled(String),
}

impl WorkError {
    /// As an error of a change of the logical unit; `answered` says what the device's answer means.
    pub(super) fn of(
        self,
        work: &DeviceWork,
        answered: impl FnOnce(String, u16, BlockError) -> ChangeError,
    ) -> ChangeError {
        let (target, lun) = (work.target.clone(), work.lun);
        match self {
            Self::Device(error) => answered(target, lun, error),
            Self::Unsettled(why) => ChangeError::Unsettled { target, lun, why },
        }
    }
}

impl Unsettled {
    fn list(&self) -> MutexGuard<'_, Vec<Arc<DeviceWork>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A warning for each.
    pub(super) fn warnings(&self) -> Vec<Warning> {
        let list = self.list().clone();
        let warning = |work: &Arc<DeviceWork>| {
            work.why_not().map(|why| Warning::unsettled_lun(&work.target, work.lun, &why))
        };
        list.iter().filter_map(warning).collect()
    }
}

impl DeviceWork {
    /// For the device of a logical unit.
    pub(super) fn new(
        (target, lun): (&str, u16),
        device: &Arc<dyn BlockDevice>,
        unsettled: &Arc<Unsettled>,
    ) -> Arc<Self> {
        Arc::new(Self {
            target: target.to_owned(),
            lun,
            device: Arc::clone(device),
            turn: Arc::default(),
            state: Mutex::default(),
            unsettled: Arc::clone(unsettled),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the reason why no work can begin now.
    fn why_not(&self) -> Option<String> {
        let State::Left { what, begun } = &*self.state() else { return None };
        let may = if *begun { "may still be made" } else { "will not be made" };
        Some(format!("{what} has not ended and {may}: the log says when its device has answered"))
    }

    /// Carries out `what`, on the runtime that carries the devices, so that no two of one device overlap. It asks the
    /// permit before it changes anything.
    pub(super) async fn carry_out(
        self: &Arc<Self>,
        runtime: &Handle,
        what: String,
        work: impl FnOnce(&dyn BlockDevice, Permit) -> Io<Result<(), BlockError>> + Send + 'static,
    ) -> Result<(), WorkError> {
        let by = Instant::now() + WORK_TIME;
        let behind = |why: Option<String>| {
            let other = || format!("other work on its device has not ended within {} s", WORK_TIME.as_secs());
            WorkError::Unsettled(format!("{what} was not begun, as {}", why.unwrap_or_else(other)))
        };
        if let Some(why) = self.why_not() {
            return Err(behind(Some(why)));
        }
        let Ok(turn) = timeout_at(by, Arc::clone(&self.turn).lock_owned()).await else {
            return Err(behind(self.why_not()));
        };
        *self.state() = State::Waited;
        let under_way = UnderWay { work: Arc::clone(self), done: None, _turn: turn };
        let mut wait = Wait { work: self, what: Some(what.clone()), permit: Permit::default() };
        let permit = wait.permit.clone();
        let mut working = runtime.spawn(async move {
            let mut under_way = under_way;
            let done = work(&*under_way.work.device, permit).await;
            under_way.done = Some(done.clone());
            done
        });
        let left = match timeout_at(by, &mut working).await {
            Ok(ended) => Ok(ended),
            Err(_) => match wait.leave() {
                Some(begun) => Err(begun),
                // It has ended at this moment.
                None => Ok(working.await),
            },
        };
        let seconds = WORK_TIME.as_secs();
        match left {
            Ok(ended) => {
                wait.what = None;
                let done = ended.unwrap_or_else(|error| Err(BlockError::gone(error.to_string())));
                done.map_err(WorkError::Device)
            }
            Err(true) => Err(WorkError::Unsettled(format!(
                "{what} has begun and may still be made: its device has not answered within {seconds} s, and the log says when it has"
            ))),
            Err(false) => Err(WorkError::Unsettled(format!(
                "{what} was not begun and will not be made: its device has not answered within {seconds} s"
            ))),
        }
    }
}

/// A wait for work, with which the leave to begin it ends: at the deadline, or when the caller goes away.
struct Wait<'a> {
    work: &'a Arc<DeviceWork>,
    /// The work in words; `None`: it is waited for no longer.
    what: Option<String>,
    permit: Permit,
}

impl Wait<'_> {
    /// Ends the wait: whether the work has begun. `None`: it has ended, or the wait has.
    fn leave(&mut self) -> Option<bool> {
        let what = self.what.take()?;
        let mut state = self.work.state();
        let begun = !self.permit.withdraw();
        let State::Waited = *state else { return None };
        let (target, lun) = (&self.work.target, self.work.lun);
        let may = if begun { "it may still be made" } else { "it will not be made" };
        tracing::warn!(%target, lun, "{what} is not waited for any longer: {may}");
        *state = State::Left { what, begun };
        self.work.unsettled.list().push(Arc::clone(self.work));
        Some(begun)
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Work that the device has; dropped when the device has answered, or the work has panicked.
struct UnderWay {
    work: Arc<DeviceWork>,
    done: Option<Result<(), BlockError>>,
    _turn: OwnedMutexGuard<()>,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut state = self.work.state();
        let State::Left { what, .. } = std::mem::take(&mut *state) else { return };
        self.work.unsettled.list().retain(|other| !Arc::ptr_eq(other, &self.work));
        let DeviceWork { target, lun, .. } = &*self.work;
        match &self.done {
            Some(Ok(())) => {
                tracing::warn!(%target, lun, "{what}, for which nobody waited any longer, was made");
            }
            Some(Err(error)) => {
                tracing::warn!(%target, lun, "{what}, for which nobody waited any longer, was not made: {error}");
            }
            None => tracing::error!(%target, lun, "{what}, for which nobody waited any longer, broke off"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunway_block::Layer;
    use lunway_memory::RamDisk;
    use tokio::sync::watch;

    const NEW: u64 = 1 << 19;

    /// A disk whose resizes hang, before or after they have begun, as long as it is told to.
    struct Hangs {
        disk: Arc<RamDisk>,
        begins: bool,
        hangs: watch::Sender<bool>,
    }

    impl Layer for Hangs {
        fn inner(&self) -> &dyn BlockDevice {
            &*self.disk
        }

        fn resize(&self, size: u64, permit: Permit) -> Io<Result<(), BlockError>> {
            let (disk, begins, mut hangs) = (Arc::clone(&self.disk), self.begins, self.hangs.subscribe());
            Io::pending(async move {
                if begins {
                    permit.begin()?;
                }
                let _ = hangs.wait_for(|hangs| !hangs).await;
                disk.resize(size, permit).await
            })
        }
    }

    struct Rig {
        work: Arc<DeviceWork>,
        hangs: Arc<Hangs>,
        unsettled: Arc<Unsettled>,
    }

    impl Rig {
        fn new(begins: bool) -> Self {
            let disk = Arc::new(RamDisk::new(1 << 20, 512).unwrap());
            let hangs = Arc::new(Hangs { disk, begins, hangs: watch::channel(true).0 });
            let device = Arc::clone(&hangs) as Arc<dyn BlockDevice>;
            let unsettled = Arc::<Unsettled>::default();
            let work = DeviceWork::new(("iqn.t", 3), &device, &unsettled);
            Self { work, hangs, unsettled }
        }

        async fn resize(&self) -> Result<(), String> {
            let what = "the resize to 512 KiB".to_owned();
            let runtime = Handle::current();
            let done = self.work.carry_out(&runtime, what, |device, permit| device.resize(NEW, permit)).await;
            done.map_err(|error| error.of(&self.work, |_, _, error| panic!("{error}")).to_string())
        }

        fn size(&self) -> u64 {
            self.hangs.disk.geometry().size
        }

        /// The device answers, and all that it had has ended.
        async fn goes_on(&self) {
            self.hangs.hangs.send_replace(false);
            while !self.unsettled.warnings().is_empty() {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Lost was: the end of a disk, cut off hours after the resize was said to have failed.
    #[tokio::test(start_paused = true)]
    async fn work_that_has_not_begun_at_its_deadline_is_never_made() {
        let rig = Rig::new(false);
        let error = rig.resize().await.unwrap_err();
        assert!(error.contains("was not begun and will not be made"), "{error}");
        let began = Instant::now();
        let error = rig.resize().await.unwrap_err();
        assert!(error.contains("has not ended and will not be made"), "{error}");
        assert_eq!(began.elapsed(), Duration::ZERO, "it is refused at once");
        rig.goes_on().await;
        assert_eq!(rig.size(), 1 << 20);
        rig.resize().await.unwrap();
        assert_eq!(rig.size(), NEW);
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_has_begun_leaves_the_device_unsettled_until_it_ends() {
        let rig = Rig::new(true);
        let error = rig.resize().await.unwrap_err();
        assert!(error.contains("has begun and may still be made"), "{error}");
        let warnings = rig.unsettled.warnings();
        assert!(warnings.len() == 1 && warnings[0].text.contains("may still be made"), "{warnings:?}");
        let error = rig.resize().await.unwrap_err();
        assert!(error.contains("was not begun, as the resize to 512 KiB has not ended"), "{error}");
        rig.goes_on().await;
        assert_eq!(rig.size(), NEW);
        rig.resize().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_goes_away_takes_its_leave_with_it() {
        let rig = Rig::new(false);
        assert!(tokio::time::timeout(Duration::from_secs(1), rig.resize()).await.is_err());
        assert_eq!(rig.unsettled.warnings().len(), 1);
        rig.goes_on().await;
        assert_eq!(rig.size(), 1 << 20);
    }
}
