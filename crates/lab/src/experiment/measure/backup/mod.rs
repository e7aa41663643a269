//! A disk that is backed up into a share over a network that runs: one sample, with the cable cut in the middle of it
//! if the file says so.
//!
//! | file | room of |
//! |---|---|
//! | `mod.rs` | a sample: attempts until one succeeds, and what came of it |
//! | `copying.rs` | the old way: a VHDX file on the share, attached as a disk and written block by block |
//! | `share.rs` | the share: its server, its mounts |
//! | `source.rs` | the disk that is backed up, and its daemon |
//! | `watch.rs` | bytes on the wire, and the cut |

mod copying;
mod share;
mod source;
mod watch;

use std::fs::{self, File};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use lunway_bench::Cancel;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use self::copying::{DISK, copy, left_of};
use self::share::{Programs, ShareServer};
use self::source::{CHANGE, SourceDisk};
use self::watch::{CutPlan, WireWatch};
use crate::cpu::CpuWatch;
use crate::experiment::measure::run_error::RunError;
use crate::experiment::measure::sampler::SAMPLING;
use crate::experiment::measure::storage::FILLS_LINK;
use crate::experiment::plan::run::{BackupRun, BackupWay, Run};
use crate::experiment::result::backups::BackupSample;
use crate::experiment::result::results::SampledTimeline;
use crate::network::{LiveHost, Network};

/// The folder of the points on the share.
const POINTS: &str = "points";
/// Attempts at one backup: the cable is cut once, so that the second one succeeds.
const ATTEMPTS_MAX: u32 = 3;
/// Time in which a host that can be reached is.
const REACHED_WITHIN: Duration = Duration::from_secs(15);
/// Interval at which the end of a command is looked for.
const POLL: Duration = Duration::from_millis(10);

/// A network on which disks are backed up.
pub(crate) struct BackupNetwork<'a> {
    pub(crate) network: &'a Network,
    pub(crate) program: &'a Path,
    pub(crate) cancel: &'a Cancel,
}

/// One sample under way.
struct Sampling<'a> {
    run: &'a Run,
    backup: &'a BackupRun,
    program: &'a Path,
    cancel: &'a Cancel,
    server: &'a LiveHost,
    source: SourceDisk,
    /// The share's folder at its server, where what it holds is judged without the network.
    place: tempfile::TempDir,
}

impl BackupNetwork<'_> {
    /// Finds out whether there can be a share.
    pub(crate) fn check() -> Result<(), RunError> {
        Programs::find().map(drop)
    }

    /// Backs the disk of a run up once. `capacity` is what its cables carry, MB/s.
    pub(crate) fn measure(
        &self,
        run: &Run,
        backup: &BackupRun,
        repeat: u32,
        capacity: f64,
    ) -> Result<BackupSample, RunError> {
        let programs = Programs::find()?;
        let Self { network, program, cancel } = *self;
        let (server, storage) = (network.host(&run.from)?, network.host(&run.target)?);
        let path = &run.paths[0];
        let card = |cable: &str, host: &str| network.topology().card(cable, host);
        let near = card(&path.leaves, &run.from);
        let source = SourceDisk::start(network, server, server.address(near)?, backup.size, program)?;
        let place = tempfile::tempdir().map_err(RunError::Start)?;
        fs::create_dir(place.path().join(POINTS)).map_err(RunError::Start)?;
        let far = SocketAddr::new(storage.address(card(&path.enters, &run.target))?, 0);
        let share =
            ShareServer::start(storage, far, place.path(), programs, (backup.patience, backup.write_behind))?;
        let sampling = Sampling { run, backup, program, cancel, server, source, place };

        let needed = sampling.prepare(repeat)?;
        let before = allocated(sampling.place.path()).map_err(RunError::Start)?;
        let plan = backup.cut.map(|cut| CutPlan {
            cable: path.leaves.clone(),
            at: (needed as f64 * cut.at) as u64,
            cut,
        });
        let cpu = CpuWatch::start();
        let origin = Instant::now();
        let watch = WireWatch::start(network, server, near.to_owned(), plan, origin)?;
        let mut sample = BackupSample { repeat, needed, ..BackupSample::default() };
        let made = sampling.attempts(&share, &mut sample);
        let seconds = origin.elapsed().as_secs_f64();
        let watched = watch.end().map_err(RunError::Start);
        let cpu = cpu.stop();
        made?;
        let watched = watched?;
        drop(share);

        sample.seconds = seconds;
        sample.sent = watched.sent;
        let paths = vec![("sent".to_owned(), watched.mb_s)];
        sample.timeline = SampledTimeline { interval: SAMPLING, paths, events: watched.events };
        sample.stored = allocated(sampling.place.path()).map_err(RunError::Start)?.saturating_sub(before);
        let mb_s = needed as f64 / 1e6 / seconds;
        sample.of_link = mb_s / capacity;
        sample.limited = cpu.limited && sample.of_link < FILLS_LINK;
        sample.cpu = cpu;
        if sample.complete {
            sample.differs = sampling.differs()?;
        }
        Ok(sample)
    }
}

impl Sampling<'_> {
    /// What is done before anything counts. Returns the bytes that the backup has to send.
    fn prepare(&self, repeat: u32) -> Result<u64, RunError> {
        if self.backup.way != BackupWay::Increment {
            return Ok(self.backup.size);
        }
        // Not over the network: the point is there already.
        self.back_up(&self.place.path().join(POINTS)).map_err(|said| self.failed(said))?;
        let grains = (self.backup.size as f64 * self.backup.changed / CHANGE as f64).ceil() as u64;
        self.source.change(self.run, self.server, grains.max(1), u64::from(repeat) + 2)
    }

    fn failed(&self, said: String) -> RunError {
        RunError::Backup { test: self.run.test.clone(), said }
    }

    /// Mounts the share and backs up, until it succeeds.
    fn attempts(&self, share: &ShareServer, sample: &mut BackupSample) -> Result<(), RunError> {
        let is_cancelled = || self.cancel.is_cancelled();
        while !sample.complete && sample.attempts < ATTEMPTS_MAX && !is_cancelled() {
            let outage = self.backup.cut.map_or(Duration::ZERO, |cut| cut.time);
            let until = Instant::now() + outage + REACHED_WITHIN;
            let Some(mounted) = share.mount(self.server, until, &is_cancelled)? else { break };
            sample.attempts += 1;
            let kind = self.backup.way.disk();
            let (read, done) = match kind {
                Some(kind) => copy(&self.source, &mounted.path().join(DISK), kind, self.backup, self.cancel),
                None => match self.back_up(&mounted.path().join(POINTS)) {
                    Ok(read) => (read, Ok(())),
                    Err(said) => (0, Err(said)),
                },
            };
            drop(mounted);
            sample.read += read;
            match done {
                Ok(()) => sample.complete = true,
                Err(said) => {
                    sample.failures.push(said);
                    if kind.is_some() {
                        // There is no record of what is whole in it: it is begun again.
                        let file = self.place.path().join(DISK);
                        sample.left.push(left_of(&self.source, &file));
                        let _ = fs::remove_file(file);
                    }
                }
            }
        }
        Ok(())
    }

    /// `lunway backup run` into a folder. Returns the bytes that it has read, or what it said.
    fn back_up(&self, folder: &Path) -> Result<u64, String> {
        let mut command = self.source.command(self.program, &["backup", "run", "--json", "--"]);
        command.arg(self.source.lun()).arg(folder);
        let printed = self.output(command)?;
        let answer: Value = serde_json::from_str(&printed).map_err(|error| error.to_string())?;
        answer["read_bytes"].as_u64().ok_or_else(|| format!("it printed {printed}"))
    }

    /// Runs a command on the host of the disk to its end, and returns what it printed, or the line that it failed with.
    fn output(&self, mut command: Command) -> Result<String, String> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = self.server.spawn(command).map_err(|error| error.to_string())?;
        self.wait(&mut child);
        let output = child.wait_with_output().map_err(|error| error.to_string())?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let line = said.lines().rev().find(|line| !line.trim().is_empty());
        Err(line.map_or_else(|| output.status.to_string(), |line| line.trim().to_owned()))
    }

    /// Waits for a command, which is asked to end when the experiment is. It prints less than a pipe holds.
    fn wait(&self, child: &mut Child) {
        let mut is_asked = false;
        while let Ok(None) = child.try_wait() {
            if self.cancel.is_cancelled() && !is_asked {
                is_asked = kill_process(Pid::from_child(child), Signal::TERM).is_ok();
            }
            thread::sleep(POLL);
        }
    }

    /// Why what was stored is not the disk, judged at the share's server; `None`: it is.
    fn differs(&self) -> Result<Option<String>, RunError> {
        if self.backup.way.disk().is_some() {
            let left = left_of(&self.source, &self.place.path().join(DISK));
            return Ok((!left.is_whole).then_some(left.what));
        }
        let points = self.place.path().join(POINTS);
        let mut verify = self.source.command(self.program, &["backup", "verify", "--json", "--"]);
        verify.arg(&points);
        let restored = tempfile::tempdir().map_err(RunError::Start)?;
        let image = restored.path().join("restored.img");
        let mut restore = self.source.command(self.program, &["backup", "restore", "--json", "--"]);
        restore.arg(&points).arg(&image);
        if let Err(said) = self.output(verify).and_then(|_| self.output(restore)) {
            return Ok(Some(said));
        }
        let compared = File::open(&image)
            .and_then(|image| self.source.differs_at(|at, bytes| image.read_exact_at(bytes, at)));
        Ok(match compared {
            Ok(None) => None,
            Ok(Some(at)) => Some(format!("the restored disk differs at byte {at}")),
            Err(error) => Some(format!("the restored disk cannot be read: {error}")),
        })
    }
}

/// Bytes that the files of a folder take on its disk.
fn allocated(folder: &Path) -> io::Result<u64> {
    let mut sum = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        sum += if metadata.is_dir() { allocated(&entry.path())? } else { metadata.blocks() * 512 };
    }
    Ok(sum)
}
