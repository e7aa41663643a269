//! `lunway backup run`.

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::anyhow;
use clap::Args;
use lunway_backup::{Ahead, Changed, Folder, Lease, Level, Progress, Request};
use lunway_bench::Cancel;
use lunway_block::BlockDevice;
use lunway_block::rate::parse_rate;
use lunway_block::size::{HumanSize, parse_size};
use lunway_block::spec::DeviceSpec;
use lunway_copy::Skipped;
use lunway_device::{OpenOptions, Opened};
use serde_json::json;

use super::ceph_image::{Frozen as FrozenImage, Moment};
use super::closed_epochs::ClosedEpochs;
use super::export::Bitmaps;
use super::served::{self, Frozen};
use super::source_id::{IdentifiedSource, doubt, of_device};
use super::store::{Made, Past, Read, Store};
use super::{Destination, catalogue, failed, failed_in, guids, holder, swapped, take_lease};
use crate::awaited::{Awaited, waits_for};
use crate::begun_by::BegunBy;
use crate::command::copy::{refuse_users, warn_of_users, whole};
use crate::command::disk::skipped;
use crate::command::manage::DaemonAddress;
use crate::command::manage::snapshot::LunName;
use crate::device::{self, BlockingRuntime, written};
use crate::failure::Failure;
use crate::freezing::Freezing;
use crate::report_file::file_of;
use crate::{interrupt, progress, terminal};

/// Back up a disk to a folder or a repository: all of it the first time, then what has changed.
///
/// Each run creates one restore point. In a folder, that is a VHDX file that Windows can mount, with hashes and a
/// manifest beside it; in a repository (REPO/NAME), data that no other point has. If it is not known what has changed,
/// everything is read and compared by hash; only differences are sent. The next run continues an interrupted one.
/// Do not write to the disk meanwhile, unless it is a LUN that a daemon of this machine serves (lun:TARGET/LUN): it is
/// read as it was at one instant, and with --track only the changes are read. Of an NBD export of QEMU, a bitmap says
/// what has changed. An image of Ceph may be in use: a snapshot of it is read, and of that what was written since the
/// last run's.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway backup run disk.vhdx /mnt/share/server1
  lunway backup run iscsi://10.0.1.10/iqn.2026-11.com.example:disks/0 \\
      /mnt/share/server1 --limit 100MB/s
  lunway backup run lun:iqn.2026-11.com.example:disks/0 /mnt/share/db
  lunway backup run disk.img /mnt/share/server1 --skip-free --json
  lunway backup run 'nbd+unix:///vm?socket=/run/vm.sock' /mnt/share/vm \\
      --next-bitmap b7")]
pub(super) struct Run {
    /// The device to back up, or lun:TARGET/LUN: a LUN that a daemon serves
    #[arg(value_name = "SRC")]
    source: String,
    #[command(flatten)]
    destination: Destination,
    /// Make a full backup, which needs no older point
    #[arg(long)]
    full: bool,
    /// Leave out what the source's file systems prove to be free: it is neither read nor backed up. The source must not
    /// be in use
    #[arg(long)]
    skip_free: bool,
    /// Send at most this many bytes per second: 100MB/s
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    limit: Option<NonZeroU64>,
    /// Compare this much of the data that is reported unchanged with the source
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "64M")]
    sample: u64,
    /// The source is the same disk as in the destination, under another name
    #[arg(long)]
    rename_source: bool,
    /// Bypass the page cache for files (O_DIRECT)
    #[arg(long)]
    direct: bool,
    /// For a LUN: how much may be overwritten while it is read
    #[arg(long, value_name = "SIZE", default_value = "4G", value_parser = parse_size)]
    area: u64,
    #[command(flatten)]
    freezing: Freezing,
    /// The --freeze command also makes applications write their data (application-consistent)
    #[arg(long, requires = "freeze")]
    application: bool,
    #[command(flatten)]
    bitmaps: Bitmaps,
    /// For a LUN: Unix socket of its daemon
    #[arg(long, value_name = "PATH", env = "LUNWAY_SOCKET")]
    socket: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// The destination has had points of this source: a folder without any is as a rule a share that is not mounted
    #[arg(long, hide = true)]
    expect_points: bool,
    /// What a schedule calls the due time that the point is for: none is made if one of this name is there
    #[arg(long, value_name = "NAME", hide = true)]
    due: Option<String>,
    #[command(flatten)]
    begun_by: BegunBy,
}

/// Source of a backup, open.
struct Source<'a> {
    device: &'a dyn BlockDevice,
    name: String,
    changed: Changed,
    state: Option<String>,
    epoch: Option<String>,
    level: Level,
    /// Why the newest point does not show it.
    doubt: Option<String>,
}

/// A run that made a point.
pub(super) struct Ended {
    pub(super) made: Made,
    pub(super) seconds: f64,
    /// Milliseconds for which writes were held, of a LUN.
    held_ms: Option<u64>,
}

fn in_context(failure: Failure, context: impl FnOnce() -> String) -> Failure {
    match failure {
        Failure::Failed(error) => Failure::Failed(error.context(context())),
        other => other,
    }
}

/// Time for which a run that is asked to end may wait for its source and its share: what is under way, 32 MiB at
/// 5 MB/s, and a good deal less than the 90 s after which service managers kill.
const ORDERLY_END: Duration = Duration::from_secs(10);

impl Run {
    pub(super) fn run(self) -> Result<(), Failure> {
        self.begun_by.obey()?;
        swapped::refuse_run(&self.source, &self.destination.folder)?;
        match served::lun(&self.source)? {
            Some(lun) => {
                self.refuse_bitmaps()?;
                self.run_served(lun)
            }
            None if self.freezing.is_asked_for() => {
                Err(Failure::Usage("--freeze is for a LUN that a daemon serves: lun:TARGET/LUN".to_owned()))
            }
            None => self.run_device(),
        }
    }

    /// A device that this process opens.
    fn run_device(&self) -> Result<(), Failure> {
        let spec = device::parse(&self.source)?;
        let name = source_name(&spec)?;
        let store = self.destination.open_for(&spec)?;
        let folder = store.folder();
        if self.skip_free {
            refuse_users(&spec)?;
        } else {
            refuse_directory(&spec)?;
        }
        let cancel = interrupt::watch();
        let destination = folder.show("");
        interrupt::waits_for(waits_for(Vec::new(), destination.clone()));
        interrupt::waits_at_most(ORDERLY_END);
        // Under the lease the points stay so until this run seals its own.
        let (lease, read) = take_lease(&store, &self.begun_by, &|| cancel.is_cancelled())?;
        let Read { past, catalogue, epochs } = read;
        let ahead = store.open_ahead(catalogue);
        let runtime = BlockingRuntime::new()?;
        let options = OpenOptions { direct: self.direct, read_only: true, ..OpenOptions::default() };
        let (mut moment, mut mixed) = (None, None);
        let (opened, changed, epoch) = match &spec {
            DeviceSpec::Nbd { uri } => {
                let epoch = self.bitmaps.epoch(&past)?;
                let export = self.bitmaps.open(uri, &past, &runtime)?;
                (Opened::plain(export.device), export.changed, epoch)
            }
            _ => {
                self.refuse_bitmaps()?;
                let mut why = "nothing keeps track of changes of this source".to_owned();
                let frozen = match &spec {
                    DeviceSpec::Rbd { name } if name.snapshot.is_none() => {
                        let epochs = ClosedEpochs::new(&store, epochs.map_err(failed)?, &past);
                        let made = Moment::make(name, (epochs, &past), (&runtime, &cancel))?;
                        made.map_err(|reason| {
                            mixed = Some(format!(
                                "{reason}: if the image was written during this run, the point mixes what it held at different times"
                            ));
                            why = reason;
                        })
                        .ok()
                    }
                    _ => None,
                };
                match frozen {
                    Some(FrozenImage { device, changed, moment: made }) => {
                        let epoch = Some(made.epoch().to_owned());
                        moment = Some(made);
                        (Opened::plain(device), changed, epoch)
                    }
                    None => {
                        let opening = device::open(&spec, &options);
                        let opened = runtime.wait(interrupt::unless_asked(&cancel, &spec, opening))??;
                        (opened, Changed::Unknown { why }, None)
                    }
                }
            }
        };
        let mut allowed = whole(&spec, opened.device.geometry().size);
        if allowed.is_ok() && !self.skip_free {
            // One that is refused has no point that the warning would be about.
            allowed = warn_of_users(&spec, "data written during the backup may be in the point only in part");
        }
        if let Err(refused) = allowed {
            runtime.wait(opened.close_or_log());
            moment.into_iter().for_each(|moment| moment.end(None, &runtime));
            return Err(refused);
        }
        let id = of_device(&spec, &*opened.device);
        let identified = Arc::new(IdentifiedSource::new(opened.device.clone(), &id));
        let read = Awaited::new(spec.to_string(), identified);
        interrupt::waits_for(waits_for(vec![read.unanswered()], destination));
        let state = moment.as_ref().map(|moment| moment.snapshot().to_owned());
        let begun = Instant::now();
        let (level, doubt) = (Level::Crash, doubt(&id, &past));
        let source = Source { device: &read, name, changed, state, epoch, level, doubt };
        let done = self.make_point(source, (&store, &lease, ahead), (&runtime, &cancel));
        // A file is closed when nothing uses it any more.
        drop(read);
        runtime.wait(opened.close_or_log());
        // Before the lease is given back: the destination's list of epochs is changed.
        moment.into_iter().for_each(|moment| moment.end(done.as_ref().ok(), &runtime));
        drop(lease);
        let context = || format!("backing {spec} up to {}", folder.show(""));
        let mut made = done.map_err(|error| in_context(error, context))?;
        made.notes.extend(mixed);
        self.print(&Ended { made, seconds: begun.elapsed().as_secs_f64(), held_ms: None })
    }

    /// A logical unit of a running daemon, which hears of the result.
    fn run_served(&self, lun: LunName) -> Result<(), Failure> {
        let daemon = match self.begun_by.is_daemon() {
            true => DaemonAddress::of_parent(self.socket.clone()),
            false => DaemonAddress::on(self.socket.clone()),
        };
        // Now, as opening the folder looks its path up too: later it would be one more question to a share.
        let destination = self.destination.written();
        let result = self.back_up_served(&daemon, lun.clone());
        served::report(&daemon, &lun, &destination, &result);
        self.print(&result?)
    }

    /// Refuses a folder that has no points any more, where nothing is made then.
    fn refuse_emptied(&self, folder: &dyn Folder) -> Result<(), Failure> {
        let catalogue = catalogue(folder)?;
        if catalogue.points().is_empty() && catalogue.unreadable().is_empty() {
            let shown = folder.show("");
            return Err(Failure::failed(anyhow!(
                "{shown} holds no points: is its share mounted? This schedule has made some there; if they were removed \
                 on purpose, make one by hand: `lunway backup run {} {shown}`",
                self.source
            )));
        }
        Ok(())
    }

    /// The point of this due time, where a run has made it and its daemon has not heard of that.
    fn made_before(&self, past: &[Past], source: &str) -> Option<Made> {
        let due = self.due.as_ref()?;
        let mut for_due_times = past.iter().rev().filter_map(|point| point.due.as_ref());
        let (_, facts) = for_due_times.find(|(of, facts)| of == due && facts.source == source)?;
        let note = "it was made by a run that ended before its daemon had heard of it".to_owned();
        Some(Made { facts: facts.clone(), notes: vec![note] })
    }

    fn refuse_bitmaps(&self) -> Result<(), Failure> {
        match self.bitmaps.given() {
            Some(option) => {
                Err(Failure::Usage(format!("{option} is for an NBD export: nbd://… or nbd+unix://…")))
            }
            None => Ok(()),
        }
    }

    /// A logical unit of a running daemon, as it is at one instant.
    fn back_up_served(&self, daemon: &DaemonAddress, lun: LunName) -> Result<Ended, Failure> {
        let store = self.destination.open_private()?;
        let folder = store.folder();
        // A repository remembers that by itself.
        if self.expect_points && matches!(store, Store::Chain(_)) {
            self.refuse_emptied(&**folder)?;
        }
        let cancel = interrupt::watch();
        interrupt::waits_for(waits_for(Vec::new(), format!("{} and {}", self.source, folder.show(""))));
        let (lease, read) = take_lease(&store, &self.begun_by, &|| cancel.is_cancelled())?;
        let Read { past, catalogue, epochs } = read;
        let name = served::source_name(&lun);
        let begun = Instant::now();
        if let Some(made) = self.made_before(&past, &name) {
            return Ok(Ended { made, seconds: begun.elapsed().as_secs_f64(), held_ms: None });
        }
        let runtime = BlockingRuntime::new()?;
        let epochs = ClosedEpochs::new(&store, epochs.map_err(failed)?, &past);
        let ahead = store.open_ahead(catalogue);
        let (frozen, changed) =
            Frozen::make(daemon, lun, (epochs, &past), (self.area, &self.freezing), &runtime)?;
        let read = IdentifiedSource::new(frozen.client.clone(), &frozen.id);
        let source = Source {
            device: &read,
            name: name.clone(),
            changed,
            state: Some(frozen.name.clone()),
            epoch: frozen.epoch.clone(),
            level: served::level(&self.freezing, self.application),
            doubt: frozen.doubt.clone(),
        };
        let done = self.make_point(source, (&store, &lease, ahead), (&runtime, &cancel));
        // The snapshot lasts as long as its connection.
        drop(read);
        let done = done.map_err(|error| match frozen.broken() {
            Some(why) => Failure::failed(anyhow!("the snapshot of {name} is broken: {why}")),
            None => in_context(error, || format!("backing {name} up to {}", folder.show(""))),
        });
        let held_ms = frozen.held_ms;
        // Before the lease is given back: the destination's list of epochs is changed.
        frozen.end(done.as_ref().ok());
        drop(lease);
        Ok(Ended { made: done?, seconds: begun.elapsed().as_secs_f64(), held_ms: Some(held_ms) })
    }

    fn make_point(
        &self,
        source: Source<'_>,
        (store, lease, ahead): (&Store, &Lease<'_>, Option<Ahead>),
        (runtime, cancel): (&BlockingRuntime, &Cancel),
    ) -> Result<Made, Failure> {
        let left_out = match self.skip_free {
            true => skipped(source.device, runtime)?,
            false => Skipped::default(),
        };
        interrupt::leaves("the data that was sent is kept, and the next run continues");
        interrupt::waits_at_most(ORDERLY_END);
        let bar = progress::bytes("backup", source.device.geometry().size);
        let request = Request {
            source: source.device,
            source_name: source.name,
            changed: source.doubt.map_or(source.changed, |why| Changed::Unknown { why }),
            skipped: &left_out,
            skipped_why: "free space of its file systems",
            state: source.state,
            epoch: source.epoch,
            due: self.due.clone(),
            level: source.level,
            time: SystemTime::now().duration_since(UNIX_EPOCH).ok().map(|time| time.as_secs()),
            full: self.full,
            rename_source: self.rename_source,
            bytes_per_second: self.limit.map(NonZeroU64::get),
            sample_bytes: self.sample,
            seed: holder()?.nonce,
            is_cancelled: &|| cancel.is_cancelled(),
        };
        let guids = guids()?;
        let mut told = |progress: Progress| bar.set_position(progress.done);
        let done = runtime.wait(Box::pin(store.back_up(lease, &guids, ahead, request, &mut told)));
        bar.finish_and_clear();
        done.map_err(|error| failed_in(&**store.folder(), error))
    }

    fn print(&self, ended: &Ended) -> Result<(), Failure> {
        let Ended { made, seconds, held_ms } = ended;
        if self.json {
            return terminal::print_json(&json!({
                "point": made.facts.point.to_string(),
                "kind": made.facts.kind.name(),
                "why": made.facts.why,
                "changed_bytes": made.facts.changed_bytes,
                "read_bytes": made.facts.read_bytes,
                "sent_bytes": made.facts.sent_bytes,
                "stored_bytes": made.facts.stored_bytes,
                "skipped_bytes": made.facts.skipped_bytes,
                "level": made.facts.level,
                "epoch": made.facts.epoch,
                "held_ms": held_ms,
                "seconds": seconds,
                "notes": made.notes,
            }));
        }
        for note in &made.notes {
            eprintln!("{}", terminal::clean(note));
        }
        terminal::print(&format!(
            "point {}: {} ({})\n  {} changed, {} read, {} sent, {} stored, {seconds:.1} s",
            made.facts.point,
            made.facts.kind.name(),
            terminal::clean(&made.facts.why),
            HumanSize(made.facts.changed_bytes),
            HumanSize(made.facts.read_bytes),
            HumanSize(made.facts.sent_bytes),
            HumanSize(made.facts.stored_bytes),
        ))
    }
}

/// Name of the source in manifests: a file by its whole path, so that it is the same from everywhere. One that is not
/// UTF-8 would be called as others are, whose backups it would be taken for.
fn source_name(spec: &DeviceSpec) -> Result<String, Failure> {
    match file_of(spec).and_then(|path| path.canonicalize().ok()) {
        Some(path) => written(&path).map(str::to_owned),
        None => Ok(spec.to_string()),
    }
}

/// Refuses a directory in words, before it is opened as a disk.
fn refuse_directory(spec: &DeviceSpec) -> Result<(), Failure> {
    let Some(path) = file_of(spec) else { return Ok(()) };
    if path.metadata().is_ok_and(|file| file.is_dir()) {
        return Err(Failure::failed(anyhow!("{} is a directory: name a disk", path.display())));
    }
    Ok(())
}
