//! Snapshots of logical units while they are served, of several at one instant.
//!
//! ```text
//!   areas made and opened ▶ disks flushed ▶ changes held ▶ those under way end ▶ disks flushed ▶ epochs closed ▶ kept
//!                                          └────────────────── at most HOLD_TIME ───────────────────────────────┘
//! ```

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lunway_block::BlockDevice;
use lunway_snapshot::{Fleece, Hold, SnapshotDevice, SnapshotLayer};
use lunway_track::{Changes, EpochError, EpochId, Tracking};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Server;
use super::error::ChangeError;
use super::lun::Lun;
use super::opening::LunOpenOptions;
use crate::config::DeviceName;
use crate::metrics::Metrics;
use crate::state::{OpenDirectory, SET_STATE_DIR};

/// Maximum time that changes are held: as long as the end of an epoch of change tracking waits. Initiators give an
/// operation up after 30 s, Windows after 60.
const HOLD_TIME: Duration = Duration::from_secs(5);
/// Maximum time of the flush before that, while everything goes on: what the page cache may hold of a disk.
const FLUSH_TIME: Duration = Duration::from_secs(60);
/// Snapshots of one logical unit: each copies by itself, so that a write into a new place costs one copy each.
const SNAPSHOTS_MAX: usize = 8;
/// Prefix of the names of areas, and of the sockets of snapshots.
const PREFIX: &str = "snapshot-";
/// Suffixes of the names of areas, which exist for a moment only, and of sockets.
const ENDS: [&str; 2] = [".area", ".sock"];

/// A snapshot that is to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotOrder {
    /// The target.
    pub target: String,
    /// The LUN.
    pub lun: u16,
    /// The snapshot's name, which no other has.
    pub name: String,
    /// The name of the epoch that ends with it; `None`: none does. Needs change tracking.
    pub epoch: Option<EpochId>,
}

/// A snapshot of a logical unit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotSummary {
    /// Its name.
    pub name: String,
    /// The target.
    pub target: String,
    /// The LUN.
    pub lun: u16,
    /// The epoch of change tracking that ended with it, 32 hexadecimal digits; null: none.
    pub epoch: Option<String>,
    /// Time of creation, seconds since 1970.
    pub time: u64,
    /// Time that writes were held for it, milliseconds.
    pub held_ms: u64,
    /// The size of the disk then, bytes.
    pub size: u64,
    /// Bytes that were copied because they changed.
    pub used: u64,
    /// Bytes that may be copied. If more are needed, the snapshot is lost.
    pub area: u64,
    /// Reason why it cannot be read any more; null: it can.
    pub broken: Option<String>,
}

/// The snapshots of one logical unit.
pub(super) struct LunSnapshots {
    layer: Arc<SnapshotLayer>,
    kept: Mutex<BTreeMap<String, Kept>>,
    /// Held while a snapshot is made: changes are held for one at a time.
    turn: Arc<tokio::sync::Mutex<()>>,
}

/// One of the snapshots.
#[derive(Clone)]
struct Kept {
    fleece: Arc<Fleece>,
    epoch: Option<EpochId>,
    time: u64,
    held: Duration,
    changes: Option<SnapshotChanges>,
}

/// Changes of a disk until a snapshot of it, since each epoch of change tracking that was closed before.
#[derive(Clone)]
pub struct SnapshotChanges {
    tracking: Tracking,
    /// Epochs that were closed before the snapshot, oldest first.
    epochs: Vec<EpochId>,
    /// The epoch that ended with it.
    until: Option<EpochId>,
}

impl SnapshotChanges {
    /// Epochs that were closed before the snapshot, oldest first. Some may have been released since.
    pub fn epochs(&self) -> &[EpochId] {
        &self.epochs
    }

    /// The changes within `window` from the end of an epoch to the snapshot. What was changed later may be among them,
    /// where no epoch ended with the snapshot, or it is not kept any more. `most` as for [`Tracking::changes`].
    pub fn since(
        &self,
        epoch: EpochId,
        window: Range<u64>,
        most: usize,
    ) -> impl Future<Output = Changes> + Send + use<> {
        let Self { tracking, until, .. } = self.clone();
        async move {
            if until.is_some()
                && let known @ Changes::Known { .. } =
                    tracking.changes(epoch, until, window.clone(), most).await
            {
                return known;
            }
            tracking.changes(epoch, None, window, most).await
        }
    }
}

/// A snapshot, for its readers. It keeps neither the server nor the logical unit.
#[derive(Clone)]
pub struct SnapshotHandle {
    name: String,
    snapshots: Weak<LunSnapshots>,
    device: Arc<SnapshotDevice>,
    changes: Option<SnapshotChanges>,
}

impl SnapshotHandle {
    /// Returns the read-only device with the content of the disk at that time.
    pub fn device(&self) -> Arc<dyn BlockDevice> {
        Arc::clone(&self.device) as Arc<dyn BlockDevice>
    }

    /// Returns what is known of changes until then; `None`: the logical unit has no change tracking.
    pub fn changes(&self) -> Option<SnapshotChanges> {
        self.changes.clone()
    }

    /// Gives it up; one that is gone already is none.
    pub fn delete(&self) {
        if let Some(snapshots) = self.snapshots.upgrade() {
            snapshots.delete(&self.name);
        }
    }
}

/// Context of a snapshot that is being made.
struct Making {
    order: SnapshotOrder,
    snapshots: Arc<LunSnapshots>,
    tracking: Option<Tracking>,
    read_only: bool,
    area: Arc<dyn BlockDevice>,
    metrics: Arc<Metrics>,
}

impl LunSnapshots {
    pub(super) fn new(layer: Arc<SnapshotLayer>) -> Self {
        Self { layer, kept: Mutex::default(), turn: Arc::default() }
    }

    fn kept(&self) -> MutexGuard<'_, BTreeMap<String, Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends all of them: readers get the reason.
    pub(super) fn end_all(&self, why: &str) {
        self.kept().values().for_each(|kept| kept.fleece.end(why));
    }

    /// The names of those that can be read.
    pub(super) fn whole(&self) -> Vec<String> {
        let kept = self.kept();
        kept.iter().filter(|(_, kept)| !kept.fleece.has_ended()).map(|(name, _)| name.clone()).collect()
    }

    fn delete(&self, name: &str) -> bool {
        let Some(kept) = self.kept().remove(name) else { return false };
        kept.fleece.end("it was deleted");
        self.layer.tidy();
        true
    }

    fn summaries(&self, target: &str, lun: u16) -> Vec<SnapshotSummary> {
        let kept = self.kept();
        let summary = |(name, kept): (&String, &Kept)| {
            let usage = kept.fleece.usage();
            SnapshotSummary {
                name: name.clone(),
                target: target.to_owned(),
                lun,
                epoch: kept.epoch.map(|epoch| epoch.to_string()),
                time: kept.time,
                held_ms: kept.held.as_millis() as u64,
                size: kept.fleece.geometry().size,
                used: usage.used,
                area: usage.area,
                broken: usage.ended,
            }
        };
        kept.iter().map(summary).collect()
    }
}

impl Server {
    /// Makes snapshots of logical units, all of one instant, and closes the epochs of change tracking that are named at
    /// that instant. Initiators notice nothing but a wait of up to 5 seconds, as a rule of milliseconds. Each has an
    /// area of `area` bytes in the state directory for what changes; a snapshot whose area is full, or fails, is
    /// broken, and initiators go on. They end with the process.
    ///
    /// # Errors
    ///
    /// [`ChangeError::NoSnapshot`], [`ChangeError::NotTracked`], [`ChangeError::NotFound`]: then there is none of them,
    /// and no epoch was closed.
    pub async fn create_snapshots(
        &self,
        orders: Vec<SnapshotOrder>,
        area: u64,
    ) -> Result<Vec<SnapshotSummary>, ChangeError> {
        let mut all = Vec::new();
        for order in orders {
            all.push(self.making(order, area).await?);
        }
        let names: Vec<_> = all.iter().map(|making| making.order.name.clone()).collect();
        // To its end, whether or not the caller goes away: what is held is let go by its own deadline anyway.
        let made = self.changer.maker.runtime.spawn(make(all)).await;
        made.map_err(|error| ChangeError::NoSnapshot(format!("no snapshot was made: {error}")))??;
        Ok(self.snapshots().await.into_iter().filter(|made| names.contains(&made.name)).collect())
    }

    /// Everything that can fail before initiators wait.
    async fn making(&self, order: SnapshotOrder, area: u64) -> Result<Making, ChangeError> {
        let SnapshotOrder { target, lun, name, epoch } = &order;
        let parts = |lun: &Lun| (Arc::clone(&lun.snapshots), lun.tracking.clone(), lun.read_only());
        let (snapshots, tracking, read_only) = self.of_lun(target, *lun, parts)?;
        if epoch.is_some() && tracking.is_none() {
            return Err(ChangeError::NotTracked { target: target.clone(), lun: *lun });
        }
        let refused = |why: String| ChangeError::NoSnapshot(format!("target {target}, lun {lun}: {why}"));
        if snapshots.kept().len() >= SNAPSHOTS_MAX {
            return Err(refused(format!(
                "it has {SNAPSHOTS_MAX} snapshots: delete one (`lunway snapshot delete`)"
            )));
        }
        let Some(store) = &self.changer.store else {
            return Err(refused(format!("snapshots need a state directory: {SET_STATE_DIR}")));
        };
        let area = self.open_area(store.place(), name, area).await.map_err(refused)?;
        let metrics = Arc::clone(&self.changer.shared.metrics);
        Ok(Making { tracking, snapshots, read_only, area, metrics, order })
    }

    /// Opens a file for what is copied, and takes its name away: it is gone with the process.
    async fn open_area(
        &self,
        place: &OpenDirectory,
        name: &str,
        bytes: u64,
    ) -> Result<Arc<dyn BlockDevice>, String> {
        let path = place.path().join(format!("{PREFIX}{name}{}", ENDS[0]));
        let failed = |error: &dyn std::fmt::Display| format!("the area {}: {error}", path.display());
        let (file, place) = (path.clone(), place.clone());
        let made = tokio::task::spawn_blocking(move || {
            place.check().map_err(io::Error::other)?;
            let file = File::options().write(true).create_new(true).mode(0o600).open(file)?;
            file.set_len(bytes)
        });
        made.await.map_err(|error| failed(&error))?.map_err(|error| failed(&error))?;
        let named = format!("raw:{}", path.display()).parse::<DeviceName>();
        let opening = match named {
            Ok(name) => {
                self.changer
                    .maker
                    .runtime
                    .spawn((self.changer.maker.open)(name, LunOpenOptions::default()))
                    .await
            }
            Err(error) => {
                remove(path.clone()).await;
                return Err(failed(&error));
            }
        };
        remove(path.clone()).await;
        let opened = opening.map_err(|error| failed(&error))?.map_err(|error| failed(&error))?;
        Ok(opened.device)
    }

    /// The Unix socket over which a snapshot may be read, in the state directory; one that a killed process left there
    /// is removed at the next start.
    pub fn snapshot_socket(&self, name: &str) -> Option<PathBuf> {
        self.changer.maker.tracks.as_deref().map(|folder| folder.join(format!("{PREFIX}{name}{}", ENDS[1])))
    }

    /// The snapshots of all logical units, by target and LUN.
    pub async fn snapshots(&self) -> Vec<SnapshotSummary> {
        let transaction = self.changer.transaction();
        let luns = transaction.luns();
        luns.flat_map(|lun| lun.snapshots.summaries(&lun.target, lun.config.id)).collect()
    }

    /// A snapshot, to be read.
    ///
    /// # Errors
    ///
    /// [`ChangeError::NotFound`].
    pub async fn snapshot(&self, name: &str) -> Result<SnapshotHandle, ChangeError> {
        let transaction = self.changer.transaction();
        let found = transaction.luns().find_map(|lun| {
            let kept = lun.snapshots.kept().get(name).cloned()?;
            Some(SnapshotHandle {
                name: name.to_owned(),
                snapshots: Arc::downgrade(&lun.snapshots),
                device: Arc::new(SnapshotDevice::new(kept.fleece)),
                changes: kept.changes,
            })
        });
        found.ok_or_else(|| ChangeError::NotFound(format!("snapshot {name}")))
    }

    /// Checks whether a logical unit may get `size` bytes without ending a snapshot.
    ///
    /// # Errors
    ///
    /// [`ChangeError::HasSnapshots`], [`ChangeError::NotFound`].
    pub async fn keeps_snapshots(&self, target: &str, lun: u16, size: u64) -> Result<(), ChangeError> {
        let in_the_way = |lun: &Lun| {
            if size < lun.device.geometry().size { lun.in_the_way_of("were made smaller") } else { None }
        };
        self.of_lun(target, lun, in_the_way)?.map_or(Ok(()), Err)
    }

    /// Gives a snapshot up.
    ///
    /// # Errors
    ///
    /// [`ChangeError::NotFound`].
    pub async fn delete_snapshot(&self, name: &str) -> Result<(), ChangeError> {
        let transaction = self.changer.transaction();
        match transaction.luns().any(|lun| lun.snapshots.delete(name)) {
            true => Ok(()),
            false => Err(ChangeError::NotFound(format!("snapshot {name}"))),
        }
    }
}

/// Removes the areas and sockets that a process left which was killed. The folder is locked.
pub(super) fn clean_up(folder: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_str().unwrap_or_default();
        let is_left = name.starts_with(PREFIX) && ENDS.iter().any(|end| name.ends_with(end));
        if is_left && let Err(error) = std::fs::remove_file(entry.path()) {
            tracing::warn!("{}: {error}", entry.path().display());
        }
    }
}

async fn remove(path: PathBuf) {
    let _ = tokio::task::spawn_blocking(move || std::fs::remove_file(path)).await;
}

/// Makes them, or none.
async fn make(mut all: Vec<Making>) -> Result<(), ChangeError> {
    for making in &all {
        making.flush_ahead().await?;
    }
    // In one order everywhere, so that two of them never wait for each other; the holds before end by their deadlines.
    all.sort_by(|one, other| one.place().cmp(&other.place()));
    let mut turns = Vec::new();
    for same in all.chunk_by(|one, other| one.place() == other.place()) {
        turns.push(Arc::clone(&same[0].snapshots.turn).lock_owned().await);
    }
    let began = tokio::time::Instant::now();
    let holds = all.iter().map(Making::hold).collect::<Result<Vec<_>, _>>()?;
    let mut fleeces = Vec::new();
    let mut closed = Vec::new();
    let mut epochs = Vec::new();
    let made = make_held(&all, &holds, &mut fleeces, &mut closed, &mut epochs).await;
    drop(holds);
    if let Err(error) = made {
        fleeces.iter().for_each(|fleece: &Arc<Fleece>| fleece.end("it was not made"));
        for (tracking, epoch) in closed {
            // One that stays costs a name.
            let _ = tracking.release_epoch(epoch).await;
        }
        all.iter().for_each(|making| making.snapshots.layer.tidy());
        return Err(error);
    }
    let held = began.elapsed();
    let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    for ((making, fleece), epochs) in all.into_iter().zip(fleeces).zip(epochs) {
        let SnapshotOrder { target, lun, name, epoch } = making.order;
        let changes = making.tracking.map(|tracking| SnapshotChanges { tracking, epochs, until: epoch });
        tracing::info!(%target, lun, name, held_ms = held.as_millis() as u64, "snapshot");
        making.snapshots.kept().insert(name, Kept { fleece, epoch, time, held, changes });
    }
    Ok(())
}

/// Makes the snapshots while changes are held. All are at rest before any hold ends: that is the instant.
async fn make_held(
    all: &[Making],
    holds: &[Hold],
    fleeces: &mut Vec<Arc<Fleece>>,
    closed: &mut Vec<(Tracking, EpochId)>,
    epochs: &mut Vec<Vec<EpochId>>,
) -> Result<(), ChangeError> {
    for (making, hold) in all.iter().zip(holds) {
        hold.at_rest().await.map_err(|error| making.refused(&error))?;
    }
    for (making, hold) in all.iter().zip(holds) {
        // What a power cut took back would be in the backup, and in no later map of changes.
        if !making.read_only {
            let flushed = hold.during(making.snapshots.layer.flush().into_future()).await;
            flushed.map_err(|error| making.refused(&error))?.map_err(|error| making.refused(&error))?;
        }
    }
    for (making, hold) in all.iter().zip(holds) {
        epochs.push(match &making.tracking {
            Some(tracking) => {
                let listed = hold.during(tracking.epochs()).await.map_err(|error| making.refused(&error))?;
                listed.0.into_iter().map(|epoch| epoch.id).collect()
            }
            None => Vec::new(),
        });
    }
    for (making, hold) in all.iter().zip(holds) {
        if let (Some(tracking), Some(epoch)) = (&making.tracking, making.order.epoch) {
            let closing = hold.during(tracking.close_epoch_of_flushed(epoch)).await;
            // What was not waited for may yet be closed.
            closed.push((tracking.clone(), epoch));
            match closing.map_err(|error| making.refused(&error))? {
                // The snapshot is as good; of its epoch the changes are unknown later, which costs time and no data.
                Err(EpochError::Misplaced(why)) => tracing::warn!(target = making.place().0, "{why}"),
                closing => closing.map_err(|error| making.refused(&error))?,
            }
        }
    }
    for (making, hold) in all.iter().zip(holds) {
        let fleece = hold.fleece(Arc::clone(&making.area)).map_err(|error| making.refused(&error))?;
        making.tell_when_broken(&fleece);
        fleeces.push(Arc::clone(&fleece));
        hold.begin(&fleece).map_err(|error| making.refused(&error))?;
    }
    Ok(())
}

impl Making {
    fn place(&self) -> (&str, u16) {
        (&self.order.target, self.order.lun)
    }

    fn refused(&self, error: &dyn std::fmt::Display) -> ChangeError {
        let SnapshotOrder { target, lun, .. } = &self.order;
        ChangeError::NoSnapshot(format!("target {target}, lun {lun}: no snapshot was made: {error}"))
    }

    /// Has it logged and counted when the snapshot breaks.
    fn tell_when_broken(&self, fleece: &Fleece) {
        let SnapshotOrder { target, lun, name, .. } = self.order.clone();
        let metrics = Arc::clone(&self.metrics);
        fleece.on_break(Box::new(move |why| {
            metrics.snapshot_broke();
            tracing::error!(%target, lun, name, "the snapshot is lost, and its LUN goes on: {why}");
        }));
    }

    /// So that little is left to flush while changes are held.
    async fn flush_ahead(&self) -> Result<(), ChangeError> {
        if self.read_only {
            return Ok(());
        }
        let flushed = tokio::time::timeout(FLUSH_TIME, self.snapshots.layer.flush().into_future()).await;
        let late = |_| self.refused(&format!("the disk was not flushed within {} s", FLUSH_TIME.as_secs()));
        flushed.map_err(late)?.map_err(|error| self.refused(&error))
    }

    fn hold(&self) -> Result<Hold, ChangeError> {
        self.snapshots.layer.hold(HOLD_TIME).map_err(|error| self.refused(&error))
    }
}
