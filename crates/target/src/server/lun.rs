//! A logical unit as it is served: the device, how it was opened, and its end.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use lunway_block::size::HumanSize;
use lunway_block::spec::DeviceSpec;
use lunway_block::{BlockDevice, BlockError, is_file_place};
use lunway_scsi::{LogicalUnit, LogicalUnitOptions, ScsiTarget, StateError, StateStore};
use lunway_snapshot::SnapshotLayer;
use lunway_track::Tracking;
use tokio::runtime::Handle;
use tokio::task::{JoinHandle, JoinSet};

use super::compaction::{CLOSE_TIME, Compactions};
use super::daemon_identity::DaemonIdentity;
use super::error::{ChangeError, FlushFailure, StartError, UnansweredDevice};
use super::kept_size::{self, KeptSize};
use super::opening::{BackEndError, Closing, LunOpenOptions, OpenDevice};
use super::own_files::OwnFiles;
use super::snapshots::LunSnapshots;
use super::track_file::TrackFile;
use super::tracking::{Fallback, Track, look_after};
use super::work::{DeviceWork, Unsettled};
use crate::background::Threads;
use crate::config::{LunConfig, TargetConfig};
use crate::warning::Warning;

/// Maximum time for commands to end after their logical unit is withdrawn.
const QUIET_TIME: Duration = Duration::from_secs(30);
/// Maximum time for its device to be flushed after that, and to be closed.
const END_TIME: Duration = Duration::from_secs(30);
/// Polling interval of the end of commands.
const QUIET_POLL: Duration = Duration::from_millis(2);

/// Polling interval of a backing store's space, where there is a threshold.
const SPACE_POLL: Duration = Duration::from_secs(5);

/// A logical unit that initiators see, and the device behind it.
pub(super) struct Lun {
    pub(super) target: String,
    pub(super) config: LunConfig,
    pub(super) device: Arc<dyn BlockDevice>,
    pub(super) unit: Arc<LogicalUnit>,
    pub(super) snapshots: Arc<LunSnapshots>,
    /// Change tracking of its disk, where enabled.
    pub(super) tracking: Option<Tracking>,
    track_file: TrackFile,
    /// Looks whether that is in its place.
    track_looks: JoinSet<()>,
    /// The device was opened for reading only.
    opened_read_only: bool,
    pub(super) compactions: Arc<Compactions>,
    work: Arc<DeviceWork>,
    /// Size of a raw image as it was served last, where there is a state directory.
    kept_size: Option<Arc<KeptSize>>,
    /// In a mutex, which is never locked, for a future alone is not `Sync`, and a change that many threads may await
    /// must be.
    close: Mutex<Option<Closing>>,
}

/// Serial numbers of logical units that are served together: given ones, and derived ones.
#[derive(Default)]
pub(super) struct Serials(HashMap<String, (String, u16)>);

impl Serials {
    /// Adds that of a logical unit.
    ///
    /// # Errors
    ///
    /// [`StartError::SameSerial`] where another one has it.
    pub(super) fn add(&mut self, target: &str, lun: u16, unit: &LogicalUnit) -> Result<(), StartError> {
        let serial = unit.identity().serial().to_owned();
        match self.0.insert(serial.clone(), (target.to_owned(), lun)) {
            None => Ok(()),
            Some((other, other_lun)) => {
                Err(StartError::SameSerial { target: target.to_owned(), lun, serial, other, other_lun })
            }
        }
    }
}

/// Another size for the device of a logical unit; initiators hear that its capacity has changed.
pub(super) struct Resize {
    work: Arc<DeviceWork>,
    /// The device's name.
    device: String,
    size: u64,
    /// Those that end with it, if they may.
    ends: Option<Arc<LunSnapshots>>,
    kept_size: Option<Arc<KeptSize>>,
}

/// Succession of a logical unit when its configuration changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Succession {
    /// Stays what it is; only its size may change, in place.
    Kept {
        /// Its new size, where that is part of the device's name.
        resize: Option<u64>,
    },
    /// The device stays, and initiators see another disk in front of it.
    NewUnit,
    /// Another device.
    NewDevice,
    /// The same device, opened anew: memory would lose its data, and others are locked by this logical unit.
    Reopened {
        /// Memory.
        memory: bool,
    },
}

/// Maker of logical units: all that opening and making them needs.
#[derive(Clone)]
pub(super) struct Maker {
    pub(super) open: OpenDevice,
    /// Carries the devices.
    pub(super) runtime: Handle,
    pub(super) state: Option<Arc<dyn StateStore>>,
    /// The folder of track files.
    pub(super) tracks: Option<PathBuf>,
    pub(super) daemon: Arc<DaemonIdentity>,
    pub(super) unsettled: Arc<Unsettled>,
    pub(super) own_files: Arc<OwnFiles>,
}

impl Maker {
    /// Opens the device and puts a logical unit in front of it. The state directory is asked on threads that may wait.
    pub(super) async fn make(
        &self,
        target: &TargetConfig,
        lun: &LunConfig,
        fallback: Fallback,
    ) -> Result<Lun, StartError> {
        let refused = |why: BackEndError| refused(target, lun, why);
        let without_tail = fallback == Fallback::Saved;
        let options = LunOpenOptions { sector: lun.sector, read_only: lun.read_only, without_tail };
        let mut track_file = TrackFile::Settled;
        if let Some(folder) = self.tracks.clone().filter(|_| !lun.track && !lun.read_only) {
            let (target, lun) = (TargetConfig::new(target.name.clone()), lun.clone());
            let unwanted =
                self.runtime.spawn_blocking(move || Track::unwanted(&folder, &target, &lun, fallback));
            match unwanted.await.map_err(|error| refused(error.into()))? {
                Err(why) if fallback != Fallback::Refuse => {
                    tracing::error!("{why}; remove it before you set track again");
                }
                unwanted => track_file = unwanted.map_err(|why| refused(why.into()))?,
            }
        }
        let mut track =
            match (lun.track && !lun.read_only).then(|| Track::of(self.tracks.as_deref(), target, lun)) {
                Some(Err(_)) if fallback != Fallback::Refuse => Some(Track::nowhere(lun)),
                track => track.transpose().map_err(|why| refused(why.into()))?,
            };
        if let Some(track) = &mut track {
            // In a box: most logical units have none, and carry its size through their start all the same.
            Box::pin(track.look()).await;
        }
        // On the server's own runtime, from whichever one it is asked: the device must live as long as that.
        let opening = (self.open)(lun.device.clone(), options);
        let opened = match lun.device.spec() {
            // Memory without anything around it uses no runtime.
            DeviceSpec::Ram { .. } => opening.await,
            _ => self.runtime.spawn(opening).await.map_err(|error| refused(error.into()))?,
        };
        let mut opened = opened.map_err(refused)?;
        if let Some(why) = self.own_file(opened.device.identity().place).await {
            if let Some(close) = opened.close {
                close.await;
            }
            return Err(refused(why.into()));
        }
        let mut tracking = None;
        let mut track_looks = JoinSet::new();
        if let Some(track) = track {
            let around = Box::pin(track.around(opened, fallback)).await.map_err(|why| refused(why.into()))?;
            track_looks.spawn_on(look_after(around.1.clone()), &self.runtime);
            (opened, tracking, track_file) = (around.0, Some(around.1), around.2);
        }
        // Outermost, so that all that is under way is under way there.
        let layer = Arc::new(SnapshotLayer::new(opened.device));
        let device = Arc::clone(&layer) as Arc<dyn BlockDevice>;
        // Not all of the target, which has thousands of logical units.
        let of = TargetConfig::new(target.name.clone());
        let (maker, config, inner) = (self.clone(), lun.clone(), Arc::clone(&device));
        let make = move || {
            let unit = maker.unit(&of, &config, &inner)?;
            let kept_size = |state| KeptSize::of(state, of.name.as_str(), &config, inner.geometry().size);
            Ok::<_, StartError>((unit, maker.state.and_then(kept_size).map(Arc::new)))
        };
        let (unit, kept_size) = match self.state {
            Some(_) => self.runtime.spawn_blocking(make).await.map_err(|error| refused(error.into()))??,
            None => make()?,
        };
        let compactions = Compactions::new(&device, &lun.compact, &self.runtime);
        let place = (target.name.as_str(), lun.id);
        let work = DeviceWork::new(place, &device, &self.unsettled);
        Ok(Lun {
            target: target.name.to_string(),
            config: lun.with_format(),
            device,
            unit,
            snapshots: Arc::new(LunSnapshots::new(layer)),
            tracking,
            track_file,
            track_looks,
            opened_read_only: lun.read_only,
            compactions,
            work,
            kept_size,
            close: Mutex::new(opened.close),
        })
    }

    /// Returns the reason why a device that lies at a place is not served, where that is a file of the daemon itself.
    async fn own_file(&self, place: Option<String>) -> Option<String> {
        let place = place.filter(|place| is_file_place(place))?;
        let own_files = Arc::clone(&self.own_files);
        self.runtime.spawn_blocking(move || own_files.of_place(&place)).await.ok()?
    }

    /// Forgets what is kept of a logical unit that was removed while it was offline.
    pub(super) fn forget(&self, target: &str, lun: u16) -> JoinHandle<()> {
        let (state, target) = (self.state.clone(), target.to_owned());
        self.runtime.spawn(async move {
            let Some(state) = state else { return };
            if let Err(error) = LogicalUnit::forget_saved(&*state, &identity(&target, lun)).await {
                tracing::error!(%target, lun, "its saved state could not be removed: {error}");
            }
            kept_size::forget(&*state, &target, lun).await;
        })
    }

    /// A target without logical units.
    pub(super) fn target(&self, name: &str) -> Result<Arc<ScsiTarget>, StateError> {
        match &self.state {
            Some(store) => ScsiTarget::with_state(name, Arc::clone(store)),
            None => Ok(ScsiTarget::new(name)),
        }
    }

    /// A logical unit in front of a device that is open, its threshold watched.
    pub(super) fn unit(
        &self,
        target: &TargetConfig,
        lun: &LunConfig,
        device: &Arc<dyn BlockDevice>,
    ) -> Result<Arc<LogicalUnit>, StartError> {
        let options = LogicalUnitOptions {
            // The same after every start, so that initiators find their disk again.
            identity: identity(target.name.as_str(), lun.id),
            distinction: self.daemon.distinction(lun),
            serial: lun.serial.clone().unwrap_or_default(),
            removable: lun.removable,
            read_only: lun.read_only,
            state: self.state.clone(),
            physical_sector: lun.physical_sector,
            threshold_percent: lun.threshold_percent,
            background: Some(Arc::new(Threads)),
            ..LogicalUnitOptions::default()
        };
        let unit = LogicalUnit::new(Arc::clone(device), options)
            .map_err(|error| refused(target, lun, error.into()))?;
        self.runtime.spawn(watch_space(Arc::downgrade(&unit)));
        Ok(unit)
    }
}

/// Looks after the soft threshold of a unit until that is gone.
async fn watch_space(unit: Weak<LogicalUnit>) {
    loop {
        tokio::time::sleep(SPACE_POLL).await;
        let Some(unit) = unit.upgrade() else { return };
        unit.check_space();
        // So that the log says what is wrong, also without a question.
        let _ = unit.device().backing();
    }
}

/// The name under which the state of a logical unit is kept.
pub(super) fn identity(target: &str, lun: u16) -> String {
    format!("{target}/{lun}")
}

fn refused(target: &TargetConfig, lun: &LunConfig, why: BackEndError) -> StartError {
    StartError::Open { target: target.name.to_string(), lun: lun.id, device: lun.device.to_string(), why }
}

impl Lun {
    pub(super) fn read_only(&self) -> bool {
        self.config.read_only || self.device.geometry().read_only
    }

    pub(super) fn key(&self) -> (String, u16) {
        (self.target.clone(), self.config.id)
    }

    /// The error of a change that ends its snapshots; `None`: it has none that can be read.
    pub(super) fn in_the_way_of(&self, change: &'static str) -> Option<ChangeError> {
        let names = self.snapshots.whole();
        let (target, lun) = self.key();
        (!names.is_empty()).then_some(ChangeError::HasSnapshots { target, lun, change, names })
    }

    /// The change that opened it is made: its track file takes its place, or goes. Blocks.
    pub(super) fn settle_track_file(&self) {
        if let Err(why) = self.track_file.settle() {
            let place = (&self.target, self.config.id);
            tracing::error!(target = %place.0, lun = place.1, "{why}; remove it before you set track again");
        }
    }

    /// Begins to serve it: says so, and keeps its size.
    pub(super) fn begin(&self, runtime: &Handle) {
        self.kept_size.iter().for_each(|kept| kept.keep(runtime));
        let (size, serial) = (self.device.geometry().size, self.unit.identity().serial());
        tracing::info!(target = %self.target, lun = self.config.id, device = %self.config.device, size, serial, "serving");
    }

    /// Takes over what a kept unit can change in place.
    pub(super) fn reconfigure(&mut self, new: &LunConfig) {
        self.unit.set_read_only(new.read_only);
        self.unit.set_threshold_percent(new.threshold_percent);
        self.compactions.set_policies(&new.compact);
        self.config = new.clone();
    }

    /// Work on the device, to be carried out beside other changes.
    pub(super) fn work(&self) -> Arc<DeviceWork> {
        Arc::clone(&self.work)
    }

    /// A change of the device's size, to be carried out beside other changes. Snapshots end with a smaller size if they
    /// may; else it is refused while there are any.
    pub(super) fn resize(&self, size: u64, end_snapshots: bool) -> Resize {
        let ends = (end_snapshots && size < self.device.geometry().size).then(|| Arc::clone(&self.snapshots));
        let kept_size = self.kept_size.clone();
        Resize { work: self.work(), device: self.config.device.to_string(), size, ends, kept_size }
    }

    /// Returns the succession that a new configuration of the same number asks for. `switched`: the device is the one
    /// that it names already.
    pub(super) fn succession(&self, new: &LunConfig, switched: bool) -> Succession {
        if switched {
            return Succession::Kept { resize: None };
        }
        let old = &self.config;
        let resize =
            if old.device == new.device { None } else { resized(old.device.spec(), new.device.spec()) };
        let same_device = old.device == new.device || resize.is_some();
        let opens_as_well = !self.opened_read_only || new.read_only;
        let same_track = match self.tracking {
            Some(_) => new.track,
            None => !new.track || new.read_only,
        };
        if !same_device || old.sector != new.sector || !opens_as_well || !same_track {
            let memory = old.device.spec().is_memory() && new.device.spec().is_memory();
            let reopened = old.sector != new.sector || !same_track;
            let locked = same_device && reopened && !self.opened_read_only;
            return if memory || locked { Succession::Reopened { memory } } else { Succession::NewDevice };
        }
        let LunConfig { read_only, threshold_percent, compact, iops_limit, rate_limit, limit_burst, .. } =
            new;
        let in_place = LunConfig {
            device: new.device.clone(),
            track: new.track,
            read_only: *read_only,
            threshold_percent: *threshold_percent,
            compact: compact.clone(),
            iops_limit: *iops_limit,
            rate_limit: *rate_limit,
            limit_burst: *limit_burst,
            ..old.clone()
        };
        if in_place == *new { Succession::Kept { resize } } else { Succession::NewUnit }
    }

    /// Warnings about it, as far as is known without asking a file system.
    pub(super) fn warnings(&self) -> Vec<Warning> {
        let (target, lun) = (self.target.as_str(), self.config.id);
        let untracked = self.tracking.as_ref().and_then(Tracking::lost_now);
        let untracked = untracked.map(|why| Warning::untracked_lun(target, lun, &why));
        let lost = self.device.backing().map(|why| Warning::lost_file(target, lun, &why));
        let shrunk = self.kept_size.as_ref().and_then(|kept| kept.warning());
        let shrunk = shrunk.map(|why| Warning::shrunk_lun(target, lun, &why));
        untracked.into_iter().chain(lost).chain(shrunk).collect()
    }

    /// Bytes that it had when it was served last, if it was longer then.
    pub(super) fn shrunk_from(&self) -> Option<u64> {
        self.kept_size.as_ref()?.shrunk_from()
    }

    /// Flushes what is written.
    pub(super) async fn flush(&self) -> Result<(), FlushFailure> {
        if self.read_only() {
            return Ok(());
        }
        self.device.flush().await.map_err(|error| self.flush_failure(error))
    }

    /// Returns the record of a device that has not answered, if that is so.
    pub(super) fn unanswered(&self) -> UnansweredDevice {
        UnansweredDevice {
            target: self.target.clone(),
            lun: self.config.id,
            device: self.config.device.to_string(),
        }
    }

    fn flush_failure(&self, error: BlockError) -> FlushFailure {
        FlushFailure {
            target: self.target.clone(),
            lun: self.config.id,
            device: self.config.device.to_string(),
            error,
        }
    }

    /// Waits until no command of a withdrawn unit is under way any longer, up to a time.
    pub(super) async fn quiet(unit: &Arc<LogicalUnit>) -> bool {
        // A command at the device holds the unit; new ones do not find it any more.
        let quiet = async {
            while Arc::strong_count(unit) > 1 {
                tokio::time::sleep(QUIET_POLL).await;
            }
        };
        tokio::time::timeout(QUIET_TIME, quiet).await.is_ok()
    }

    /// Takes leave of a unit that has been withdrawn: its commands end, its data is made durable, its device is closed.
    /// One that is removed `for_good` leaves no reservations to another that will have its number.
    pub(super) async fn retire(self, for_good: bool) -> Result<(), FlushFailure> {
        if !Self::quiet(&self.unit).await {
            tracing::warn!(target = %self.target, lun = self.config.id, "the device has not ended all commands");
        }
        if for_good && let Some(kept) = &self.kept_size {
            kept.forget(&Handle::current());
        }
        if for_good && let Err(error) = self.unit.forget().await {
            tracing::error!(target = %self.target, lun = self.config.id, "its saved state could not be removed: {error}");
        }
        let unanswered = self.unanswered();
        self.compactions.end(CLOSE_TIME).await;
        let flushed = tokio::time::timeout(END_TIME, self.flush()).await;
        // Dropping a device waits for nothing: what is under way closes it when it is answered, and others may open it
        // then.
        let closed = tokio::time::timeout(END_TIME, self.close()).await;
        if flushed.is_err() || closed.is_err() {
            tracing::error!("{unanswered}");
        }
        flushed.unwrap_or(Ok(()))
    }

    /// Closes the device.
    pub(super) async fn close(self) {
        let Self { device, unit, snapshots, work, close, track_file, track_looks, .. } = self;
        snapshots.end_all("its LUN is not served any more");
        // Nothing may keep the track file open.
        drop((device, unit, snapshots, work, track_file, track_looks));
        if let Some(close) = close.into_inner().unwrap_or_else(PoisonError::into_inner) {
            close.await;
        }
    }
}

impl Resize {
    /// As [`DeviceWork::carry_out`].
    pub(super) async fn carry_out(self, runtime: &Handle) -> Result<(), ChangeError> {
        let Self { work, device, size, ends, kept_size } = self;
        let what = format!("the resize to {}", HumanSize(size));
        let resize = move |device: &dyn BlockDevice, permit| {
            if let Some(snapshots) = ends {
                snapshots.end_all("its LUN was made smaller");
            }
            device.resize(size, permit)
        };
        let resized = work.carry_out(runtime, what, resize).await;
        if resized.is_ok() {
            kept_size.iter().for_each(|kept| kept.confirm(size, runtime));
        }
        resized.map_err(|error| {
            error.of(&work, |target, lun, error| ChangeError::Resize { target, lun, device, error })
        })
    }
}

/// The size that `new` says, where it is memory that differs from `old` in nothing else, decorators included.
fn resized(old: &DeviceSpec, new: &DeviceSpec) -> Option<u64> {
    let mut same = old.clone();
    let size = match (same.leaf_mut(), new.leaf()) {
        (DeviceSpec::Ram { size: old }, DeviceSpec::Ram { size: new })
        | (DeviceSpec::Null { size: old }, DeviceSpec::Null { size: new }) => {
            *old = *new;
            *new
        }
        _ => return None,
    };
    (same == *new).then_some(size)
}

/// Offers a logical unit.
pub(super) fn attach(scsi: &ScsiTarget, lun: &Lun) -> Result<(), StartError> {
    scsi.attach(lun.config.id, Arc::clone(&lun.unit)).map_err(|error| StartError::Open {
        target: lun.target.clone(),
        lun: lun.config.id,
        device: lun.config.device.to_string(),
        why: error.into(),
    })
}

/// Numbers were checked, and the place is free: this is to be seen if it is not so.
pub(super) fn log_refused(attached: Result<(), StartError>) {
    if let Err(error) = attached {
        tracing::error!("{error}");
    }
}

/// Takes a logical unit away: no command finds it any longer.
pub(super) fn withdraw(scsi: &ScsiTarget, lun: u16) {
    drop(scsi.detach(lun));
}

#[cfg(test)]
mod tests {
    use lunway_memory::RamDisk;

    use super::*;
    use crate::config::Config;

    #[test]
    fn memory_of_another_size_is_the_same_memory() {
        let spec = |text: &str| DeviceSpec::parse(text).unwrap();
        assert_eq!(resized(&spec("ram:1M"), &spec("ram:2M")), Some(2 << 20));
        assert_eq!(resized(&spec("stats:delay:1ms:ram:1M"), &spec("stats:delay:1ms:ram:2M")), Some(2 << 20));
        for (old, new) in [("ram:1M", "null:1M"), ("delay:1ms:ram:1M", "delay:2ms:ram:1M"), ("/a", "/b")] {
            assert_eq!(resized(&spec(old), &spec(new)), None);
        }
    }

    #[tokio::test]
    async fn a_unit_that_is_renewed_in_front_of_an_open_device_has_its_space_watched() {
        let text = "listen = [\"127.0.0.1:0\"]\n[[target]]\nname = \"iqn.2026-11.com.example:disk\"\n[[target.lun]]\nid = 1\ndevice = \"ram:1M\"\n";
        let config = Config::from_toml(text, "lunway.toml").unwrap();
        let (target, lun) = (&config.targets[0], &config.targets[0].luns[0]);
        let open: OpenDevice = Arc::new(|_, _| Box::pin(async { Err("not opened here".into()) }));
        let daemon = Arc::new(DaemonIdentity::of(&config));
        let maker = Maker {
            open,
            runtime: Handle::current(),
            state: None,
            tracks: None,
            daemon,
            unsettled: Arc::default(),
            own_files: Arc::default(),
        };
        let device: Arc<dyn BlockDevice> = Arc::new(RamDisk::new(1 << 20, 512).unwrap());
        let unit = maker.unit(target, lun, &device).unwrap();
        let unwatched = LogicalUnit::new(device, LogicalUnitOptions::default()).unwrap();
        assert_eq!(Arc::weak_count(&unit), Arc::weak_count(&unwatched) + 1, "the watcher's");
    }
}
