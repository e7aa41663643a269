//! Change tracking of a logical unit: its track file, and what identifies its disk.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lunway_block::BlockDevice;
use lunway_block::spec::DeviceSpec;
use lunway_occupancy::FileId;
use lunway_track::{Backing, Identify, InPlace, Storage, Tracked, Tracking, Tuning};
use rustix::fs::{major, minor};

use super::opening::{Closing, OpenedDevice};
use super::track_file::{StagedTrack, TrackFile, forget};
use crate::config::{LunConfig, TargetConfig};
use crate::state::{SET_STATE_DIR, file_name};

/// Maximum wait for the track file of a logical unit that is being removed: closing a device that answers takes less
/// than a second.
const LOCK_TIME: Duration = Duration::from_secs(3);
/// Interval at which to look whether a track file is in its place: as often as at what lies behind a device. It is one
/// `stat`.
const LOOK_POLL: Duration = Duration::from_secs(5);
/// Interval between attempts.
const LOCK_POLL: Duration = Duration::from_millis(10);

/// Reason why the changes of a disk cannot be tracked.
#[derive(Debug, thiserror::Error)]
pub(super) enum TrackError {
    /// There is no folder for the file.
    #[error("track needs a state directory: {SET_STATE_DIR}")]
    NoFolder,
    /// The file cannot be made, read or written.
    #[error("the track file {}: {source}; repair that, or leave track out", path.display())]
    File { path: PathBuf, source: io::Error },
}

/// The track file of a logical unit that is being opened.
pub(super) struct Track {
    path: PathBuf,
    identify: Identify,
    /// Identity of its disk before it was opened.
    backing: Backing,
}

impl Track {
    /// The file in `folder` that has the names of target and logical unit.
    pub(super) fn of(
        folder: Option<&Path>,
        target: &TargetConfig,
        lun: &LunConfig,
    ) -> Result<Self, TrackError> {
        let folder = folder.ok_or(TrackError::NoFolder)?;
        let path = track_file(folder, target, lun);
        Ok(Self { path, identify: identify(lun), backing: Backing::default() })
    }

    /// The file in `folder` of a logical unit that is written without being tracked. It is removed at once at a start,
    /// and of a change with its commit.
    pub(super) fn unwanted(
        folder: &Path,
        target: &TargetConfig,
        lun: &LunConfig,
        fallback: Fallback,
    ) -> Result<TrackFile, TrackError> {
        let path = track_file(folder, target, lun);
        match fallback {
            Fallback::Refuse => TrackFile::unwanted(path),
            Fallback::Untracked | Fallback::Saved => forget(&path).map(|()| TrackFile::Settled),
        }
    }

    /// Looks what identifies the disk, which opening it may change.
    pub(super) async fn look(&mut self) {
        let identify = Arc::clone(&self.identify);
        self.backing = tokio::task::spawn_blocking(move || identify(None)).await.unwrap_or_default();
    }

    /// The same without a folder: what is served is not tracked.
    pub(super) fn nowhere(lun: &LunConfig) -> Self {
        Self { path: PathBuf::new(), identify: identify(lun), backing: Backing::default() }
    }

    /// Puts the layer around the open device. Where the file cannot be had or written, the disk is served all the same
    /// if that is not [`Fallback::Refuse`]: everything counts as changed.
    pub(super) async fn around(
        self,
        opened: OpenedDevice,
        fallback: Fallback,
    ) -> Result<(OpenedDevice, Tracking, TrackFile), TrackError> {
        let Self { path, identify, backing } = self;
        let OpenedDevice { device, close } = opened;
        let (inner, known, of) = (Arc::clone(&device), backing.clone(), Arc::clone(&identify));
        let error = match Self::tracked(&path, device, backing, identify, fallback).await {
            Ok((layer, id, file)) => {
                return Ok(finished(layer, close, &path, in_place(path.clone(), id), file).await);
            }
            // It cannot be done for this disk.
            Err(source) if source.kind() == io::ErrorKind::InvalidInput => {
                return Err(TrackError::File { path, source });
            }
            Err(source) => match path.as_os_str().is_empty() {
                true => TrackError::NoFolder,
                false => TrackError::File { path: path.clone(), source },
            },
        };
        if fallback == Fallback::Refuse {
            return Err(error);
        }
        let file = Arc::new(LateFile { path: path.clone(), file: Mutex::default() });
        let storage = Box::new(Late(Arc::clone(&file)));
        let why = error.to_string();
        let layer = tokio::task::spawn_blocking(move || {
            Tracked::lost(inner, storage, &known, of, Tuning::default(), &why)
        });
        let layer = layer.await.unwrap_or_else(|error| Err(io::Error::other(error)));
        let layer = layer.map_err(|source| TrackError::File { path: path.clone(), source })?;
        let there: InPlace = Arc::new(move || match file.id() {
            Ok(id) => in_place(file.path.clone(), id)(),
            Err(error) => Err(format!("the track file {}: {error}", file.path.display())),
        });
        Ok(finished(layer, close, &path, there, TrackFile::Settled).await)
    }

    async fn tracked(
        path: &Path,
        device: Arc<dyn BlockDevice>,
        backing: Backing,
        identify: Identify,
        fallback: Fallback,
    ) -> io::Result<(Tracked, FileId, TrackFile)> {
        let path = path.to_owned();
        let layer = tokio::task::spawn_blocking(move || {
            let (place, file) = match fallback {
                Fallback::Refuse => {
                    let (staged, file) = StagedTrack::of(&path)?;
                    (TrackFile::Staged(Arc::new(staged)), file)
                }
                Fallback::Untracked | Fallback::Saved => (TrackFile::Settled, open_locked(&path)?),
            };
            let id = FileId::of(&file.metadata()?);
            let layer = Tracked::open(device, Box::new(file), &backing, identify, Tuning::default())?;
            Ok((layer, id, place))
        });
        layer.await.unwrap_or_else(|error| Err(io::Error::other(error)))
    }
}

/// Treatment of a disk whose track file cannot be opened or written, or whose file's last bytes are no whole sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fallback {
    /// Not served: who asks for it is there to mend that.
    Refuse,
    /// Served, and not tracked: at a start no user is there, and the data matter more.
    Untracked,
    /// The same of what a saved configuration names. It is served without its tail, too.
    Saved,
}

/// The device with its layer.
async fn finished(
    layer: Tracked,
    close: Option<Closing>,
    path: &Path,
    there: InPlace,
    file: TrackFile,
) -> (OpenedDevice, Tracking, TrackFile) {
    let layer = Arc::new(layer);
    let tracking = layer.tracking().kept_where(there);
    if let (_, _, Some(why)) = tracking.epochs().await {
        tracing::warn!(track = %path.display(), "changes are not tracked, everything counts as changed: {why}");
    }
    let device: Arc<dyn BlockDevice> = Arc::clone(&layer) as _;
    let staged = match &file {
        TrackFile::Staged(staged) => Some(Arc::clone(staged)),
        TrackFile::Settled | TrackFile::Unwanted(_) => None,
    };
    let closing = async move {
        if let Err(error) = layer.close().await {
            tracing::error!("closing the device: {error}");
        }
        drop(layer);
        // A copy that was not needed is removed, which may take its time.
        let _ = tokio::task::spawn_blocking(move || drop(staged)).await;
        if let Some(close) = close {
            close.await;
        }
    };
    (OpenedDevice { device, close: Some(Box::pin(closing)) }, tracking, file)
}

/// Looks whether the track file is in its place, so that the [`warnings`](super::lun::Lun) say that it is gone before
/// the next backup finds out. Keeps the file open.
pub(super) async fn look_after(tracking: Tracking) {
    loop {
        tokio::time::sleep(LOOK_POLL).await;
        let looks = tracking.clone();
        if tokio::task::spawn_blocking(move || looks.look_where_kept()).await.is_err() {
            return;
        }
    }
}

/// A track file that could not be had when its disk was opened, and may be later: each use tries again.
struct LateFile {
    path: PathBuf,
    file: Mutex<Option<File>>,
}

impl LateFile {
    fn file(&self) -> io::Result<MutexGuard<'_, Option<File>>> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if file.is_none() {
            *file = Some(open_locked(&self.path)?);
        }
        Ok(file)
    }

    fn on<T>(&self, work: impl FnOnce(&File) -> io::Result<T>) -> io::Result<T> {
        match &*self.file()? {
            Some(file) => work(file),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn id(&self) -> io::Result<FileId> {
        self.on(|file| file.metadata().map(|file| FileId::of(&file)))
    }
}

/// Storage in a track file that may come later.
struct Late(Arc<LateFile>);

impl Storage for Late {
    fn len(&self) -> io::Result<u64> {
        self.0.on(Storage::len)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.0.on(|file| file.read_at(offset, buf))
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.on(|file| file.write_at(offset, data))
    }

    fn flush(&self) -> io::Result<()> {
        self.0.on(Storage::flush)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.on(|file| Storage::set_len(file, len))
    }

    fn zero(&self, offset: u64, len: u64) -> io::Result<()> {
        self.0.on(|file| file.zero(offset, len))
    }
}

fn open_locked(path: &Path) -> io::Result<File> {
    let options = File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
    locked(options?)
}

/// Function that identifies the disk of a logical unit.
fn identify(lun: &LunConfig) -> Identify {
    let store = match lun.device.spec().leaf() {
        DeviceSpec::File { path, .. } | DeviceSpec::Vhdx { path } => Some(path.clone()),
        DeviceSpec::Point { name } => name.kept_in().map(Path::to_owned),
        _ => None,
    };
    Arc::new(move |leaf| leaf.or(store.as_deref()).and_then(|path| backing(path).ok()).unwrap_or_default())
}

/// Two logical units of one number, of which one replaces the other, must not write one file. One that is being closed
/// is waited for.
pub(super) fn locked(file: File) -> io::Result<File> {
    let start = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) if start.elapsed() < LOCK_TIME => std::thread::sleep(LOCK_POLL),
            Err(TryLockError::WouldBlock) => {
                let why = "the logical unit that it belongs to is still served; remove that first";
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, why));
            }
        }
    }
}

/// Check that the path of an open track file still leads to it.
fn in_place(path: PathBuf, id: FileId) -> InPlace {
    Arc::new(move || match path.metadata() {
        Ok(file) if FileId::of(&file) == id => Ok(()),
        Ok(_) => Err(format!(
            "the track file {} was replaced: remove the logical unit and add it again, or restart the daemon",
            path.display()
        )),
        Err(error) => Err(format!(
            "the track file {} is gone ({error}): remove the logical unit and add it again, or restart the daemon, which \
             makes a new one",
            path.display()
        )),
    })
}

fn track_file(folder: &Path, target: &TargetConfig, lun: &LunConfig) -> PathBuf {
    folder.join(file_name(&format!("{}/{}", target.name, lun.id), "track"))
}

/// Returns the identity of a file: its place for as long as it is open, its length and the time of its last change
/// after that.
fn backing(path: &Path) -> io::Result<Backing> {
    let file = path.metadata()?;
    if file.file_type().is_block_device() {
        let number = format!("{}:{}", major(file.rdev()), minor(file.rdev()));
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        return Ok(block_device(Path::new("/sys"), &number, &boot).unwrap_or_default());
    }
    if !file.is_file() {
        return Ok(Backing::default());
    }
    Ok(Backing {
        lasting: FileId::of(&file).to_bytes(),
        exact: [file.size(), file.mtime() as u64, file.mtime_nsec() as u64]
            .into_iter()
            .flat_map(u64::to_le_bytes)
            .collect(),
    })
}

/// Returns the identity of a block device, by the kernel's `sysfs`; `None`: nothing identifies it.
///
/// It is known again by the name that its maker or the device mapper gave it, and its size. Whether others wrote to it
/// while it was not served is shown by the kernel's count of sectors that were written and discarded, which begins anew
/// with each start of the machine and each attachment of the disk: after those everything counts as changed. Writes to
/// a disk count for all of its partitions, since they may have gone there.
fn block_device(sys: &Path, number: &str, boot: &str) -> Option<Backing> {
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(path).ok()?.trim().to_owned();
        (!text.is_empty()).then_some(text)
    };
    let place = sys.join("dev/block").join(number).canonicalize().ok()?;
    let (disk, part) = match read(place.join("partition")) {
        Some(_) => (place.parent()?, format!("partition at {}", read(place.join("start"))?)),
        None => (place.as_path(), String::new()),
    };
    // Without statistics the counts stand still.
    if read(disk.join("queue/iostats"))? != "1" {
        return None;
    }
    const NAMES: [&str; 5] = ["dm/uuid", "md/uuid", "wwid", "device/wwid", "serial"];
    let name = NAMES.iter().find_map(|name| Some(format!("{name} {}", read(disk.join(name))?)))?;
    let counts = |of: &Path| {
        let stat = read(of.join("stat"))?;
        // Sectors written, and sectors discarded (Documentation/block/stat.rst).
        let fields: Vec<&str> = stat.split_whitespace().collect();
        Some(format!("{} {}", fields.get(6)?, fields.get(13).unwrap_or(&"0")))
    };
    let lasting = format!("block device\n{name}\n{part}\n{}", read(place.join("size"))?);
    let exact = format!("{boot}\n{}\n{}\n{}", read(disk.join("diskseq"))?, counts(disk)?, counts(&place)?);
    Some(Backing { lasting: lasting.into_bytes(), exact: exact.into_bytes() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A `sysfs` with one disk and a partition of it.
    fn sysfs(name: &str, wwid: &str) -> tempfile::TempDir {
        let sys = tempfile::tempdir().unwrap();
        let disk = sys.path().join("devices").join(name);
        let part = disk.join("part1");
        for folder in [disk.join("queue"), disk.join("device"), part.clone(), sys.path().join("dev/block")] {
            std::fs::create_dir_all(folder).unwrap();
        }
        let stat = "1 2 3 4 5 6 700 8 9 10 11 12 13 40 15 16 17\n";
        let files = [
            ("queue/iostats", "1\n"),
            ("device/wwid", wwid),
            ("size", "2048\n"),
            ("diskseq", "9\n"),
            ("stat", stat),
            ("part1/partition", "1\n"),
            ("part1/start", "64\n"),
            ("part1/size", "1024\n"),
            ("part1/stat", stat),
        ];
        for (file, text) in files {
            std::fs::write(disk.join(file), text).unwrap();
        }
        std::os::unix::fs::symlink(&disk, sys.path().join("dev/block/8:0")).unwrap();
        std::os::unix::fs::symlink(&part, sys.path().join("dev/block/8:1")).unwrap();
        sys
    }

    #[test]
    fn a_block_device_is_known_again_by_its_name_and_its_writes_by_the_kernels_counts() {
        let sys = sysfs("sda", "naa.5000c500a1b2c3d4\n");
        let disk = |number, boot| block_device(sys.path(), number, boot);
        let whole = disk("8:0", "boot 1").unwrap();
        let part = disk("8:1", "boot 1").unwrap();
        assert_ne!(whole.lasting, part.lasting);
        // Another name of the same disk, after another start.
        let again = block_device(sysfs("sdb", "naa.5000c500a1b2c3d4\n").path(), "8:0", "boot 2").unwrap();
        assert_eq!(again.lasting, whole.lasting);
        assert_ne!(again.exact, whole.exact);
        let other = block_device(sysfs("sda", "naa.5000c500a1b2c3d5\n").path(), "8:0", "boot 1").unwrap();
        assert_ne!(other.lasting, whole.lasting);
        let write = |file: &str, text: &str| {
            std::fs::write(sys.path().join("devices/sda").join(file), text).unwrap();
        };
        // A read changes nothing; a write, a discard or another attachment does, also for the partition.
        write("stat", "99 2 99 4 5 6 700 8 9 10 11 12 13 40 15 16 17\n");
        assert_eq!((disk("8:0", "boot 1"), disk("8:1", "boot 1")), (Some(whole.clone()), Some(part.clone())));
        let changes = [
            ("stat", "1 2 3 4 5 6 701 8 9 10 11 12 13 40 15 16 17\n"),
            ("stat", "1 2 3 4 5 6 700 8 9 10 11 12 13 41 15 16 17\n"),
            ("diskseq", "10\n"),
        ];
        for (file, text) in changes {
            let before = std::fs::read_to_string(sys.path().join("devices/sda").join(file)).unwrap();
            write(file, text);
            let now = (disk("8:0", "boot 1").unwrap(), disk("8:1", "boot 1").unwrap());
            assert_eq!((&now.0.lasting, &now.1.lasting), (&whole.lasting, &part.lasting), "{text}");
            assert!(now.0.exact != whole.exact && now.1.exact != part.exact, "{text}");
            write(file, &before);
        }
        // A disk without a name, or whose writes are not counted, is none that is known again.
        write("queue/iostats", "0\n");
        assert_eq!(disk("8:0", "boot 1"), None);
        write("queue/iostats", "1\n");
        write("device/wwid", "\n");
        assert_eq!(disk("8:0", "boot 1"), None);
        assert_eq!(disk("8:2", "boot 1"), None);
    }

    #[test]
    fn a_file_is_another_after_a_write_and_after_it_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        std::fs::write(&path, "one").unwrap();
        let first = backing(&path).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        std::fs::write(&path, "two").unwrap();
        let second = backing(&path).unwrap();
        assert_eq!(first.lasting, second.lasting);
        assert_ne!(first.exact, second.exact);
        std::fs::write(folder.path().join("other"), "two").unwrap();
        std::fs::rename(folder.path().join("other"), &path).unwrap();
        assert_ne!(backing(&path).unwrap().lasting, first.lasting);
        assert_eq!(backing(folder.path()).unwrap(), Backing::default());
    }
}
