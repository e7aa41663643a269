//! The files of a point: each volume of its disk, mounted read-only in a folder of its own.

mod volume_mount;

use std::env;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use lunway_block::decorate::Part;
use lunway_block::size::HumanSize;
use lunway_block::spec::{DeviceSpec, PointName, PointWrites};
use lunway_block::{BlockDevice, BlockError};
use lunway_device::{OpenOptions, Opened};
use lunway_filesystem::tree::{Disk, Leaf, Node};
use lunway_fuse::{Mounted, Volumes};
use serde_json::{Value, json};
use tokio::task::{JoinError, spawn_blocking};

use self::volume_mount::{Way, is_mounted, unmount};
use crate::command::attach;
use crate::command::disk::DeviceSource;
use crate::device::{self, BlockingRuntime};
use crate::failure::Failure;
use crate::interrupt::Requests;
use crate::protection::Protection;
use crate::{supervisor, terminal};

/// Directory of the files that are the volumes.
const VOLUMES: &str = ".volumes";

/// The most volumes that are mounted: each takes a loop device or a process, and a disk may name thousands.
const MOUNTED_MAX: usize = 256;

/// Interval between attempts to unmount what is in use.
const BUSY_POLL: Duration = Duration::from_millis(200);

/// Time in which loop devices and drivers let go of a volume that was unmounted: some 10 ms on an idle machine.
const RELEASE_MAX: Duration = Duration::from_secs(5);
const RELEASE_POLL: Duration = Duration::from_millis(10);

/// A part of the disk in which no others are told apart.
struct Volume {
    /// Name of its folder, and of its file.
    name: String,
    kind: Option<&'static str>,
    label: Option<String>,
    /// Its bytes; an error where they cannot be told from those of other volumes.
    part: Result<Arc<dyn BlockDevice>, BlockError>,
    size: u64,
    /// What the list of parts says of it.
    reason: Option<String>,
    way: Option<&'static Way>,
    /// By what it was mounted, or why it was not.
    mounted: Result<&'static str, String>,
}

impl Volume {
    fn new(name: String, node: &Node, part: Result<Part, BlockError>) -> Self {
        let cut = |error: &BlockError| format!("its bytes are not whole sectors of the disk ({error})");
        let reason = part.as_ref().err().map(cut).or_else(|| node.reason.clone());
        Self {
            name,
            kind: node.kind,
            label: node.label.as_deref().or(node.name.as_deref()).map(terminal::clean),
            size: node.len,
            reason: reason.as_deref().map(terminal::clean),
            way: node.kind.and_then(Way::of).filter(|_| part.is_ok()),
            part: part.map(|part| Arc::new(part) as Arc<dyn BlockDevice>),
            mounted: Err(String::new()),
        }
    }

    /// Name of its contents, for people.
    fn contents(&self) -> String {
        let kind = self.kind.unwrap_or("nothing that is known here");
        self.label.as_ref().map_or_else(|| kind.to_owned(), |label| format!("{kind} “{label}”"))
    }

    /// Why it has no files, in words; `None`: it has, or is of no kind that has files.
    fn without_files(&self, file: &Path) -> Option<String> {
        let why = match (&self.mounted, self.kind) {
            (Ok(_), _) | (Err(_), Some("swap")) => return None,
            (Err(why), _) if self.way.is_some() => why.clone(),
            (_, Some("LUKS")) => {
                format!("it is encrypted: `cryptsetup open --readonly {} NAME` opens it", file.display())
            }
            _ => self.reason.clone()?,
        };
        Some(format!("{}: {why}.", self.name))
    }
}

/// Mounts the files of a point on a directory, until Ctrl-C or SIGTERM.
pub(super) fn mount(mut name: PointName, folder: &Path, json: bool) -> Result<(), Failure> {
    name.writes = PointWrites::Refused;
    let shown = DeviceSpec::Point { name: name.clone() };
    name.writes = PointWrites::Discarded;
    let spec = DeviceSpec::Point { name };
    // The kernel reads, and replays journals, through this process.
    Protection::of_attached(&spec).apply();
    device::run_server(async {
        let mut requests = Requests::new().context("cannot wait for signals")?;
        let stopped = || Failure::failed(anyhow!("stopped before the files of {shown} were mounted"));
        let opened = tokio::select! {
            opened = open(&spec, &shown) => opened?,
            () = requests.next() => return Err(stopped()),
        };
        let device = opened.device.clone();
        let beside = BlockingRuntime::beside();
        let volumes = tokio::select! {
            volumes = spawn_blocking(move || volumes(&device, &beside)) => volumes.map_err(died)?,
            () = requests.next() => return Err(stopped()),
        };
        let writable = !opened.device.geometry().read_only;
        let mounted = Mounted::mount_volumes(contents(&volumes), folder);
        let mut files = Files { mounted: mounted.map_err(Failure::failed)?, volumes };
        let is_stopped = files.fill(writable, &mut requests).await?;
        if !is_stopped {
            files.announce(&shown, json)?;
            let status = format!("the files of {shown} are in {}", files.mounted.folder().display());
            supervisor::ready(&status);
            tokio::select! {
                () = requests.next() => {}
                () = files.mounted.ended() => {}
            }
        }
        supervisor::stopping("waiting until no file is used");
        attach::end(files.end(), &spec, opened, &mut requests).await?;
        if is_stopped { Err(stopped()) } else { Ok(()) }
    })
}

/// Opens the point so that journals can be replayed: into a file beside it, or where the destination cannot be written,
/// or what lies there is encrypted, into one without a name on this machine.
async fn open(spec: &DeviceSpec, read_only: &DeviceSpec) -> Result<Opened, Failure> {
    let options = OpenOptions::default();
    if let Ok(opened) = device::open(spec, &options).await {
        return Ok(opened);
    }
    let mut opened = device::open(read_only, &OpenOptions { read_only: true, ..options }).await?;
    let place = env::temp_dir();
    let discarded = match tempfile::tempfile_in(&place) {
        Ok(file) => opened.discard_writes(file, &place).await.map_err(|error| error.to_string()),
        Err(error) => Err(format!("{} takes no file for them: {error}", place.display())),
    };
    if let Err(why) = discarded {
        tracing::warn!("journals are not replayed, so that files may be older or missing: {why}");
    }
    Ok(opened)
}

fn died(error: JoinError) -> Failure {
    Failure::failed(anyhow!("a thread of this process ended early: {error}"))
}

/// Looks what is on the disk. Blocks.
fn volumes(device: &Arc<dyn BlockDevice>, runtime: &BlockingRuntime) -> Vec<Volume> {
    let source = DeviceSource::new(&**device, runtime);
    let disk = Disk::examine(&source, source.sector());
    if let Some(error) = source.error() {
        tracing::warn!("not all of the point can be read: {error}");
    }
    let volume = |leaf: Leaf<'_>| {
        let ranges = leaf.segments.iter().map(|segment| segment.at..segment.at + segment.len);
        Volume::new(leaf.name, leaf.node, Part::new(Arc::clone(device), ranges))
    };
    disk.leaves().into_iter().map(volume).collect()
}

/// What is shown of the volumes.
fn contents(volumes: &[Volume]) -> Volumes {
    let file = |volume: &Volume| Some(((&volume.name).into(), volume.part.as_ref().ok()?.clone()));
    let is_root = rustix::process::geteuid().is_root();
    let mounted = volumes.iter().filter(|volume| is_root && volume.way.is_some());
    Volumes {
        folder: VOLUMES.into(),
        files: volumes.iter().filter_map(file).collect(),
        mount_points: mounted.map(|volume| (&volume.name).into()).collect(),
    }
}

/// The mounted files.
struct Files {
    mounted: Mounted,
    volumes: Vec<Volume>,
}

impl Files {
    /// The folder of a volume's files.
    fn folder(&self, volume: &Volume) -> PathBuf {
        self.mounted.folder().join(&volume.name)
    }

    /// The file that is a volume.
    fn file(&self, volume: &Volume) -> PathBuf {
        self.mounted.folder().join(VOLUMES).join(&volume.name)
    }

    /// Mounts what can be. `true`: a request to end came first.
    async fn fill(&mut self, writable: bool, requests: &mut Requests) -> Result<bool, Failure> {
        let mut jobs: Vec<_> = self
            .volumes
            .iter()
            .enumerate()
            .filter_map(|(at, volume)| Some((at, volume.way?, self.file(volume), self.folder(volume))))
            .collect();
        let left = jobs.split_off(jobs.len().min(MOUNTED_MAX));
        for (at, ..) in left {
            self.volumes[at].mounted = Err(format!("{MOUNTED_MAX} volumes are mounted at most"));
        }
        let stop = Arc::new(AtomicBool::new(false));
        let is_asked = Arc::clone(&stop);
        let mut work = spawn_blocking(move || {
            let mount = |(at, way, file, folder): (usize, &Way, PathBuf, PathBuf)| {
                (at, way.mount(&file, &folder, writable))
            };
            jobs.into_iter().take_while(|_| !is_asked.load(Ordering::Relaxed)).map(mount).collect::<Vec<_>>()
        });
        let mut is_stopped = false;
        let done = loop {
            tokio::select! {
                done = &mut work => break done.map_err(died)?,
                () = requests.next() => {
                    if is_stopped {
                        return Err(Failure::failed(anyhow!("ended at once, while a volume was being mounted")));
                    }
                    is_stopped = true;
                    stop.store(true, Ordering::Relaxed);
                }
            }
        };
        for (at, mounted) in done {
            self.volumes[at].mounted = mounted;
        }
        Ok(is_stopped)
    }

    fn announce(&self, shown: &DeviceSpec, json: bool) -> Result<(), Failure> {
        let announced = match json {
            true => terminal::print_json(&self.document(shown)),
            false => terminal::print(&self.text(shown)),
        };
        match announced {
            // The reader is gone: that is no reason to take the files away.
            Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            announced => announced,
        }
    }

    fn text(&self, shown: &DeviceSpec) -> String {
        let row = |volume: &Volume| {
            let (folder, by) = match &volume.mounted {
                Ok(by) => (self.folder(volume).display().to_string(), (*by).to_owned()),
                Err(_) => ("-".to_owned(), "-".to_owned()),
            };
            [volume.name.clone(), volume.contents(), HumanSize(volume.size).to_string(), by, folder]
        };
        let rows: Vec<_> = self.volumes.iter().map(row).collect();
        let table = terminal::table(["VOLUME", "CONTENTS", "SIZE", "MOUNTED BY", "FILES"], &rows, "nothing");
        let mut text = format!("{shown}, read-only\n\n{table}");
        for sentence in self.volumes.iter().filter_map(|volume| volume.without_files(&self.file(volume))) {
            text += &format!("\n{sentence}");
        }
        text
    }

    fn document(&self, shown: &DeviceSpec) -> Value {
        let volume = |volume: &Volume| {
            json!({
                "name": volume.name,
                "kind": volume.kind,
                "label": volume.label,
                "size": volume.size,
                "file": self.file(volume),
                "files": volume.mounted.is_ok().then(|| self.folder(volume)),
                "by": volume.mounted.as_ref().ok(),
                "reason": volume.without_files(&self.file(volume)),
            })
        };
        json!({
            "device": shown.to_string(),
            "folder": self.mounted.folder(),
            "volumes": self.volumes.iter().map(volume).collect::<Vec<_>>(),
        })
    }

    /// Unmounts everything in order, as soon as it is not used any longer.
    async fn end(self) -> Result<(), BlockError> {
        let mut is_said = false;
        let in_use = |what: &Path| {
            eprintln!("{} is in use: waiting until it is not; Ctrl-C again ends at once", what.display());
        };
        for volume in self.volumes.iter().rev().filter(|volume| volume.mounted.is_ok()) {
            let folder = self.folder(volume);
            loop {
                let at = folder.clone();
                let left = spawn_blocking(move || unmount(&at)).await;
                match left {
                    Ok(Ok(())) => break,
                    // Where the whole directory was unmounted lazily nothing is there any more.
                    _ if !is_mounted(&folder).unwrap_or(true) => break,
                    _ if !is_said => {
                        is_said = true;
                        in_use(&folder);
                    }
                    _ => {}
                }
                tokio::time::sleep(BUSY_POLL).await;
            }
        }
        let begun = Instant::now();
        while !self.mounted.is_unused() && begun.elapsed() < RELEASE_MAX {
            tokio::time::sleep(RELEASE_POLL).await;
        }
        let folder = self.mounted.folder().to_owned();
        self.mounted.detach(|| in_use(&folder)).await
    }
}
