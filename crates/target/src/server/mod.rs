//! Start, change, stop.
//!
//! | file | room of |
//! |---|---|
//! | `mod.rs` | [`Server`]: start, stop, and what is served |
//! | `change.rs` | another configuration while it runs: the turn of a change, from its plan to its answer |
//! | `prepared.rs` | what it needs before: secrets, sockets, devices |
//! | `loss.rs` | what it would destroy |
//! | `commit.rs` | the change itself, and what follows it |
//! | `effects.rs` | what that means for initiators, in words |
//! | `warnings.rs` | what is served and may not be meant so |
//! | `turn.rs` | one change at a time, and what becomes of one whose files do not answer |
//! | `claim.rs` | what a change keeps others from while disks work for it |
//! | `lun.rs`, `opening.rs` | logical units and the devices behind them |
//! | `kept_size.rs` | whether a raw image is as long as when it was served last |
//! | `work.rs` | resizes and snapshots of those devices, and what outlives its caller |
//! | `offline.rs` | logical units whose device could not be opened at the start, and when it can |
//! | `own.rs` | devices that would lead back to the server |
//! | `own_files.rs` | files of the daemon itself, which are no devices |
//! | `daemon_identity.rs` | what tells a logical unit from those of the same name elsewhere |
//! | `snapshots.rs` | snapshots of logical units while they are served |
//! | `tracking.rs` | the track file of a logical unit, and what identifies its disk |
//! | `settings.rs` | what connections need of a configuration |
//! | `reservations.rs` | what initiators have reserved |
//! | `stopping.rs` | the end of all devices |
//! | `summary.rs`, `error.rs` | what is said about it |

mod change;
mod claim;
mod commit;
mod compaction;
mod cutting;
mod daemon_identity;
mod effects;
mod error;
mod kept_size;
mod loss;
mod lun;
mod offline;
mod opening;
mod own;
mod own_files;
mod prepared;
mod reservations;
mod settings;
mod snapshots;
mod stopping;
mod track_file;
mod tracking;
mod turn;
mod warnings;
mod work;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use lunway_block::{BlockDevice, Compaction, MemoryBudget, Permit, SnapshotCommit};
use lunway_filesystem::cut::Cut;
use lunway_scsi::StateStore;
use lunway_track::Tracking;
use tokio::runtime::Handle as Runtime;

use crate::acceptor::Acceptor;
use crate::chap_failures::ChapFailures;
use crate::config::Config;
use crate::io_limit::IoLimits;
use crate::isns::IsnsRegistrar;
use crate::log_limit::{LogLimit, LogLimits};
use crate::metrics::{BackupReading, BackupReport, MetricsSnapshot, WarningCount};
use crate::portal::{self, Listeners, PortalSummary};
use crate::registry::{Cause, Handle, Order, Registry};
use crate::shared::{Shared, Target};
use crate::source::{Denials, LoginThrottle};
use crate::state::FileStore;
use crate::summary::{LunSummary, SessionSummary, TargetSummary};
use crate::warning::{Warning, WarningKind};
use crate::worker::{self, Worker};
use change::{Changer, Transaction};
use claim::Claims;
use daemon_identity::DaemonIdentity;
use lun::{Lun, Maker, Serials};
use offline::{Later, Left, Offline};
use own_files::OwnFiles;
use stopping::Stopped;
use tracking::Fallback;
use turn::Turns;

pub use change::{ChangeOptions, Changed, Load, Persist, Served};
use compaction::Compactions;
pub use compaction::{CompactionState, CompactionSummary};
pub use error::{ChangeError, FlushFailure, ShutdownError, StartError, UnansweredDevice};
pub use offline::KeepFormats;
pub use opening::{
    BackEndError, Closing, LunOpenOptions, OpenDevice, OpenedDevice, OpeningDevice, PassingError,
};
pub use reservations::{LunRegistration, LunReservations};
pub use snapshots::{SnapshotChanges, SnapshotHandle, SnapshotOrder, SnapshotSummary};
pub use turn::FileDiffers;

/// Maximum time for connections to end when the server stops, after the devices have: a peer has a second to close its
/// side.
const LAST_TIME: Duration = Duration::from_secs(3);

/// Logical units by target and number.
type Luns = BTreeMap<(String, u16), Lun>;

/// A running iSCSI target server.
///
/// One thread accepts; one thread per core serves. Every connection is given to the core that has the fewest and stays
/// there. None of them is the caller's: [`start`](Self::start), [`change`](Self::change) and
/// [`shutdown`](Self::shutdown) are the only places where the caller's runtime (tokio, with time) does anything. The
/// runtime that `start` was called on carries the devices.
///
/// What is served is a [`Config`] with a generation number. [`change`](Self::change) replaces it by another, whole or
/// not at all.
///
/// A server that is dropped without `shutdown` breaks all connections and flushes nothing.
pub struct Server {
    changer: Changer,
    workers: Arc<[Worker]>,
    /// Deregisters when it is dropped.
    registrar: Option<IsnsRegistrar>,
}

/// Configuration served now.
struct Current {
    config: Arc<Config>,
    generation: u64,
    /// Warnings of the configuration alone.
    warnings: Vec<Warning>,
    /// Settings that a reload has left for the next start, a sentence each.
    later: Vec<String>,
}

impl Server {
    /// Time for devices to end their commands and to be flushed when the server stops, beyond the time given to
    /// initiators.
    pub const SHUTDOWN_TIME: Duration = stopping::SHUTDOWN_TIME;

    /// Binds all portals, opens all devices, and begins to serve.
    ///
    /// Boxed, as all that is long here, so that it is compiled here and not again in each crate that awaits it.
    pub fn start(config: Config, open: OpenDevice) -> BoxFuture<'static, Result<Self, StartError>> {
        Box::pin(Self::start_now(config, open))
    }

    async fn start_now(config: Config, open: OpenDevice) -> Result<Self, StartError> {
        Self::begin(
            config,
            open,
            async |config, maker| {
                let (mut served, mut serials) = (Vec::new(), Serials::default());
                for target in &config.targets {
                    for lun in &target.luns {
                        let lun = maker.make(target, lun, Fallback::Untracked).await?;
                        serials.add(&lun.target, lun.config.id, &lun.unit)?;
                        served.push(lun);
                    }
                }
                Ok((served, Vec::new()))
            },
            Arc::default(),
        )
        .await
    }

    /// Binds all portals, and begins to serve the logical units whose devices can be opened. One whose device cannot be
    /// opened, or hangs, is offline: a [`Warning`] says why, and it is served as soon as its device can be opened.
    pub fn start_what_can_be_opened(
        config: Config,
        open: OpenDevice,
    ) -> BoxFuture<'static, Result<Self, StartError>> {
        let offline = Arc::<Offline>::default();
        let opening = Arc::clone(&offline);
        let open_all = async move |config: &Config, maker: &Maker| opening.open_all(config, maker).await;
        Box::pin(Self::begin(config, open, open_all, offline))
    }

    async fn begin(
        config: Config,
        open: OpenDevice,
        open_all: impl AsyncFnOnce(&Config, &Maker) -> Result<(Vec<Lun>, Vec<Left>), StartError>,
        offline: Arc<Offline>,
    ) -> Result<Self, StartError> {
        config.check()?;
        let limits = settings::fit_descriptors(config.limits);
        settings::warn_of_memory(&limits);
        let listeners = Listeners::new().map_err(StartError::Thread)?;
        let sockets = listeners.prepare(settings::portal_groups(&config))?;
        own::none_is_own(&config, sockets.portals())?;

        let store = config.state_folder().as_deref().map(FileStore::open).transpose()?;
        let store = store.map(Arc::new);
        let daemon = Arc::new(DaemonIdentity::of(&config));
        let state = store.clone().map(|store| store as Arc<dyn StateStore>);
        let tracks = store.as_ref().map(|store| store.place().path().to_owned());
        tracks.as_deref().into_iter().for_each(snapshots::clean_up);
        let unsettled = Arc::default();
        let own_files = Arc::new(OwnFiles::of(&config, tracks.as_deref()));
        let runtime = Runtime::current();
        let maker = Maker { open, runtime, state, tracks, daemon, unsettled, own_files };
        let (opened, left) = open_all(&config, &maker).await?;
        let luns: Luns = opened.into_iter().map(|lun| (lun.key(), lun)).collect();
        let mut targets = BTreeMap::new();
        for target in &config.targets {
            let scsi = maker.target(target.name.as_str())?;
            let name = target.name.as_str();
            let mut of_target = luns.range((name.to_owned(), 0)..=(name.to_owned(), u16::MAX));
            of_target.try_for_each(|(_, lun)| lun::attach(&scsi, lun))?;
            scsi.set_port_groups(settings::port_groups(&config, target));
            let auth = settings::auth(&config, target)?;
            let target = Target { config: offline.target_with_formats(target), auth, scsi };
            targets.insert(target.config.name.to_string(), Arc::new(target));
        }

        for (target, lun) in left.iter().filter_map(Left::expected) {
            targets.get(target).iter().for_each(|target| target.scsi.expect(lun));
        }

        // What devices were opened as is part of the configuration from now on.
        let config = offline.with_formats(&config);
        let discovery = settings::discovery_auth(&config)?;
        let serving = settings::serving(&config, limits, targets, discovery);
        let shared = Arc::new(Shared {
            registry: Registry::new(&limits),
            serving: Arc::new(serving).into(),
            metrics: Arc::default(),
            portals: Arc::clone(listeners.table()),
            session_log: LogLimits::default(),
            reject_log: LogLimit::default(),
            throttle: LoginThrottle::default(),
            chap_failures: ChapFailures::default(),
            reviewing: Mutex::default(),
            denials: Denials::default(),
            memory: MemoryBudget::new(settings::memory_limits(&limits)),
            io_limits: IoLimits::default(),
        });
        shared.limit_io();
        let cores = worker::allowed_cores();
        let count = config.cores.unwrap_or(cores.len()).max(1);
        let workers = (0..count).map(|index| Worker::start(index, cores[index % cores.len()]));
        let workers: Arc<[Worker]> = workers.collect::<io::Result<_>>().map_err(StartError::Thread)?;
        for lun in luns.values() {
            lun.begin(&maker.runtime);
        }
        listeners.commit(sockets);
        let acceptor = Acceptor { shared: Arc::clone(&shared), workers: Arc::clone(&workers) };
        listeners.serve(Arc::new(acceptor));
        let registrar =
            config.isns.as_ref().map(|isns| IsnsRegistrar::start(isns.server, Arc::clone(&shared)));
        let registrar = registrar.transpose().map_err(StartError::Thread)?;
        portal::close_unwanted();
        let warnings = Warning::of(&config);
        let transaction = Arc::new(Mutex::new(Transaction::new(luns)));
        let turns = Turns::default();
        let current = Arc::new(Mutex::new(Current {
            config: Arc::new(config),
            generation: 1,
            warnings,
            later: Vec::new(),
        }));
        let later = Later {
            maker: maker.clone(),
            turns: turns.clone(),
            offline: Arc::downgrade(&offline),
            transaction: Arc::downgrade(&transaction),
            current: Arc::downgrade(&current),
            shared: Arc::downgrade(&shared),
        };
        later.attend(left);
        let listeners = Arc::new(listeners);
        let claims = Claims::default();
        let changer =
            Changer { shared, maker, turns, transaction, claims, current, offline, listeners, store };
        Ok(Self { changer, workers, registrar })
    }

    /// Says which file the configuration is saved to from now on: it is not served as a disk.
    pub fn saved_to(&self, file: &Path) {
        self.changer.maker.own_files.save_to(file);
    }

    /// Warnings about the configuration. Looks into no file.
    pub fn warnings(&self) -> Vec<Warning> {
        self.changer.warnings()
    }

    /// Logs all [`warnings`](Self::warnings) but the one that was told is meant. After [`start`](Self::start) as well,
    /// which logs none.
    pub fn log_warnings(&self, meant: Option<&Warning>) {
        for warning in self.warnings().iter().filter(|warning| Some(*warning) != meant) {
            tracing::warn!("{}", warning.text);
        }
    }

    /// The configuration that is served now.
    pub fn config(&self) -> Arc<Config> {
        self.configuration().1
    }

    /// Its number: each change makes it larger by one.
    pub fn generation(&self) -> u64 {
        self.configuration().0
    }

    /// The configuration that is served now, and its number.
    pub fn configuration(&self) -> (u64, Arc<Config>) {
        self.changer.configuration()
    }

    /// Returns the current listening addresses, with the ports that the kernel chose where the configuration said 0.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.changer.listeners.addresses()
    }

    /// Logins that were denied since the start: by the rules of a target, or because nothing was proven.
    pub fn denied_logins(&self) -> u64 {
        self.changer.shared.denials.count()
    }

    /// Logins that were put off since the start, because their source began too many.
    pub fn throttled_logins(&self) -> u64 {
        self.changer.shared.throttle.refused()
    }

    /// The entries of `listen`, and what they stand for now.
    pub fn portals(&self) -> Vec<PortalSummary> {
        self.changer.listeners.summaries()
    }

    /// Returns the served targets, in the order of names.
    pub fn targets(&self) -> Vec<TargetSummary> {
        let serving = self.changer.shared.serving();
        let summary = |target: &Arc<Target>| TargetSummary {
            name: target.config.name.to_string(),
            alias: target.config.alias.clone(),
            enabled: target.config.enabled,
            open: target.config.open,
            authenticated: target.auth.is_some(),
            sessions: self.changer.shared.registry.sessions_with(target.config.name.as_str()),
            luns: self.luns_of(target),
        };
        serving.targets.values().map(summary).collect()
    }

    /// The logical units of a target in the order of their numbers, those that are offline among them.
    fn luns_of(&self, target: &Target) -> Vec<LunSummary> {
        let mut luns = target.luns();
        {
            let transaction = self.changer.transaction();
            let served = |lun: &LunSummary| transaction.lun(target.config.name.as_str(), lun.id);
            luns.iter_mut().for_each(|lun| lun.shrunk_from = served(lun).and_then(Lun::shrunk_from));
        }
        luns.extend(self.changer.offline.of(target.config.name.as_str()));
        luns.sort_by_key(|lun| lun.id);
        luns
    }

    /// Takes what is needed of a served logical unit, between two changes. Waits for none of them.
    fn of_lun<T>(&self, target: &str, lun: u16, take: impl FnOnce(&Lun) -> T) -> Result<T, ChangeError> {
        let transaction = self.changer.transaction();
        transaction.lun(target, lun).map(take).ok_or_else(|| self.not_served(target, lun))
    }

    /// Returns the error that there is no such logical unit, or that it is offline.
    fn not_served(&self, target: &str, lun: u16) -> ChangeError {
        let place = format!("target {target}, lun {lun}");
        match self.changer.offline.why(target, lun) {
            Some(why) => ChangeError::Offline { place, why },
            None => ChangeError::NotFound(place),
        }
    }

    /// Returns `true` if the device of a logical unit could not be opened until now.
    pub fn is_offline(&self, target: &str, lun: u16) -> bool {
        self.changer.offline.why(target, lun).is_some()
    }

    /// Calls `keep` when the device of a logical unit that was offline has been opened, before it is served: what it
    /// was opened as is part of the configuration from then on.
    pub fn keep_formats_with(&self, keep: KeepFormats) {
        self.changer.offline.keep_with(keep);
    }

    /// Number of sessions now, those for discovery not among them.
    pub fn sessions(&self) -> usize {
        self.changer.shared.registry.sessions()
    }

    /// Returns the sessions, the oldest first.
    pub fn session_list(&self) -> Vec<SessionSummary> {
        self.changer.shared.registry.summaries()
    }

    /// All counters as they are now.
    pub fn metrics(&self) -> MetricsSnapshot {
        let serving = self.changer.shared.serving();
        let configured = serving.targets.values().map(|target| &target.config);
        let luns = configured
            .flat_map(|target| target.luns.iter().map(|lun| (target.name.as_str().to_owned(), lun.id)));
        MetricsSnapshot {
            chap_failures: self.changer.shared.chap_failures.failures(),
            chap_delayed: self.changer.shared.chap_failures.delayed(),
            devices: serving.targets.values().flat_map(|target| target.devices()).collect(),
            memory: self.changer.shared.memory.reading().into(),
            lun_limits: self.changer.shared.io_limits.luns(),
            initiator_limits: self.changer.shared.io_limits.initiators(),
            warnings: self.warning_counts(),
            ..self.changer.shared.metrics.snapshot(luns)
        }
    }

    /// A backup run of a logical unit has ended now, in seconds since 1970: its result is in the metrics from then on.
    /// Returns all that is known of the runs into its destination.
    pub fn backup_ended(
        &self,
        target: &str,
        lun: u16,
        report: BackupReport,
        now: u64,
    ) -> Result<BackupReading, ChangeError> {
        self.of_lun(target, lun, |_| ())?;
        Ok(self.changer.shared.metrics.backup_ended(target, lun, report, now))
    }

    /// Returns the number of warnings of each kind.
    fn warning_counts(&self) -> Vec<WarningCount> {
        let warnings = self.warnings();
        let count = |kind| warnings.iter().filter(|warning| warning.kind == kind).count();
        WarningKind::ALL.map(|kind| WarningCount { kind, count: count(kind) }).into()
    }

    /// Asks an initiator to log out, and closes the session if it has not after `within`. The initiator may come back.
    /// `false`: there is no such session.
    pub fn log_out(&self, tsih: u16, within: Duration) -> bool {
        self.order(tsih, || Order::RequestLogout(within))
    }

    /// Ends a session at once. The initiator may come back. `false`: there is no such session.
    pub fn drop_session(&self, tsih: u16) -> bool {
        self.order(tsih, || Order::Close(Cause::Dropped))
    }

    fn order(&self, tsih: u16, order: impl Fn() -> Order) -> bool {
        let connections = self.changer.shared.registry.connections_of(tsih);
        connections.iter().for_each(|connection| connection.send(order()));
        !connections.is_empty()
    }

    /// Gives the device behind a logical unit another size; initiators hear that its capacity has changed. For devices
    /// whose size is not part of their name: those are resized by a [`change`](Self::change) of the name. A smaller
    /// size is [`ChangeError::HasSnapshots`] while there are any, unless they may end with it; a larger one
    /// [`ChangeError::LostEnd`], [as said there](Self::has_its_end).
    pub async fn resize_lun(
        &self,
        target: &str,
        lun: u16,
        size: u64,
        end_snapshots: bool,
    ) -> Result<(), ChangeError> {
        if !end_snapshots {
            self.keeps_snapshots(target, lun, size).await?;
        }
        self.has_its_end(target, lun, size).await?;
        let resize = self.of_lun(target, lun, |lun| lun.resize(size, end_snapshots))?;
        resize.carry_out(&self.changer.maker.runtime).await
    }

    /// Refusal to make a raw image longer that lost its end while it was not served: what is lost would read as zeroes,
    /// and nothing would tell of it any more.
    ///
    /// # Errors
    ///
    /// [`ChangeError::LostEnd`], [`ChangeError::NotFound`].
    pub async fn has_its_end(&self, target: &str, lun: u16, size: u64) -> Result<(), ChangeError> {
        let sizes = |lun: &Lun| (lun.device.geometry().size, lun.shrunk_from());
        match self.of_lun(target, lun, sizes)? {
            (present, Some(before)) if size > present => {
                Err(ChangeError::LostEnd { target: target.to_owned(), lun, present, before })
            }
            _ => Ok(()),
        }
    }

    /// Returns the data that the disk of a logical unit would lose if it had `size` bytes: a partition or a file
    /// system. `None`: nothing that is recognised, or there is no such logical unit. Waits for reads of its device, up
    /// to half a minute.
    pub async fn cut_off(&self, target: &str, lun: u16, size: u64) -> Option<Cut> {
        let device = Arc::clone(&self.changer.transaction().lun(target, lun)?.device);
        cutting::cut_off(device, size, &self.changer.maker.runtime).await
    }

    /// Freezes the device behind a logical unit, which goes on in the file `leaf`:
    /// [`BlockDevice::snapshot`](lunway_block::BlockDevice::snapshot). Initiators notice nothing but a wait. `commit`
    /// is called on a thread of the device, and changes the configuration with [`ChangeOptions::switched`].
    pub async fn snapshot_lun(
        &self,
        target: &str,
        lun: u16,
        leaf: &Path,
        commit: SnapshotCommit,
    ) -> Result<(), ChangeError> {
        let work = self.of_lun(target, lun, Lun::work)?;
        let leaf = leaf.to_owned();
        let what = format!("the snapshot {}", leaf.display());
        // What a snapshot made before it is put on record is undone by the device.
        let snapshot = move |device: &dyn BlockDevice, permit: Permit| {
            let commit = move || permit.begin().and_then(|()| commit());
            device.snapshot(&leaf, Box::new(commit))
        };
        let made = work.carry_out(&self.changer.maker.runtime, what, snapshot).await;
        made.map_err(|error| {
            error.of(&work, |target, lun, error| ChangeError::Snapshot { target, lun, error })
        })
    }

    /// Has the device behind a logical unit make its file shorter, beside its initiators' work:
    /// [`BlockDevice::compact`](lunway_block::BlockDevice::compact). Returns when that has begun.
    pub async fn compact_lun(
        &self,
        target: &str,
        lun: u16,
        task: &Arc<Compaction>,
    ) -> Result<(), ChangeError> {
        let compactions = self.compactions(target, lun).await?;
        let begun = compactions.begin(task).await;
        begun.map_err(|error| ChangeError::Compaction { target: target.to_owned(), lun, error })
    }

    /// The last compaction of a logical unit, if there was one.
    pub async fn compaction(&self, target: &str, lun: u16) -> Result<Option<CompactionSummary>, ChangeError> {
        Ok(self.compactions(target, lun).await?.summary())
    }

    /// Has the compaction of a logical unit end soon.
    pub async fn cancel_compaction(&self, target: &str, lun: u16) -> Result<(), ChangeError> {
        self.compactions(target, lun).await.map(|compactions| compactions.cancel())
    }

    async fn compactions(&self, target: &str, lun: u16) -> Result<Arc<Compactions>, ChangeError> {
        self.of_lun(target, lun, |lun| Arc::clone(&lun.compactions))
    }

    /// Returns the folder for state, if there is one.
    pub fn state_folder(&self) -> Option<PathBuf> {
        self.changer.store.as_ref().map(|store| store.place().path().to_owned())
    }

    /// Returns the change tracking of the disk of a logical unit that has `track`.
    pub async fn tracking(&self, target: &str, lun: u16) -> Result<Tracking, ChangeError> {
        let tracking = self.of_lun(target, lun, |lun| lun.tracking.clone())?;
        tracking.ok_or_else(|| ChangeError::NotTracked { target: target.to_owned(), lun })
    }

    /// Stops: accepts no connection any longer, asks every initiator to log out and waits for that up to `grace`,
    /// closes what is left; then every device, at the same time as the others, ends its commands, is flushed and
    /// closed. Those that have not done so within [`SHUTDOWN_TIME`](Self::SHUTDOWN_TIME) are given up and named in the
    /// error.
    pub fn shutdown(self, grace: Duration) -> BoxFuture<'static, Result<(), ShutdownError>> {
        Box::pin(self.shut_down(grace))
    }

    async fn shut_down(mut self, grace: Duration) -> Result<(), ShutdownError> {
        self.registrar = None;
        self.changer.offline.end();
        self.changer.listeners.stop();
        let (idle, sessions) = self.changer.shared.registry.close();
        tracing::info!(sessions = sessions.len(), "shutting down");
        for connection in &idle {
            connection.send(Order::Close(Cause::Shutdown));
        }
        for session in &sessions {
            session.send(Order::RequestLogout(grace));
        }
        let connections: Vec<_> = idle.into_iter().chain(sessions).collect();
        all_ended(&connections, grace).await;
        // No session can have begun since the registry was closed; those that did not log out are closed now.
        for connection in &connections {
            connection.send(Order::Close(Cause::Shutdown));
        }
        let (luns, leaves) = self.changer.transaction().end();
        // A device is closed when nothing refers to it any longer.
        self.changer.shared.serve_nothing();
        let Stopped { flushes, unanswered } =
            stopping::stop(luns, leaves, &connections, Self::SHUTDOWN_TIME).await;
        // Who is left now waits for one of the devices that have not answered.
        let unfinished = all_ended(&connections, LAST_TIME).await;
        self.stop_workers();
        if let Some(store) = &self.changer.store {
            // Devices that do not answer refer to it as long as the process lives, and their threads may outlive its
            // exit.
            store.end().await;
        }
        tracing::info!("shut down");
        if unfinished == 0 && flushes.is_empty() && unanswered.is_empty() {
            Ok(())
        } else {
            Err(ShutdownError { unfinished, flushes, unanswered })
        }
    }

    fn stop_workers(&mut self) {
        // The acceptor is gone, which had the only other handle.
        for worker in Arc::get_mut(&mut self.workers).into_iter().flatten() {
            worker.stop();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.changer.offline.end();
        self.changer.listeners.stop();
        self.stop_workers();
    }
}

/// Waits for connections to end, up to a time. Returns how many have not.
async fn all_ended(connections: &[Arc<Handle>], within: Duration) -> usize {
    let by = tokio::time::Instant::now() + within;
    let mut left = 0;
    for connection in connections {
        left += usize::from(tokio::time::timeout_at(by, connection.ended()).await.is_err());
    }
    left
}
