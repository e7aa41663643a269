//! `lunway attach`.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use clap::{ArgGroup, Args};
use lunway_block::size::HumanSize;
use lunway_block::spec::DeviceSpec;
use lunway_block::{BlockDevice, BlockError};
use lunway_device::{OpenOptions, Opened};
use lunway_fuse::Mounted;
use lunway_nbd::{Export, NbdAddress, NbdServer};
use serde_json::json;
use tokio::sync::oneshot;

use crate::awaited::ways;
use crate::failure::Failure;
use crate::interrupt::Requests;
use crate::no_shrink::NoShrink;
use crate::other_writer::OtherWriter;
use crate::protection::Protection;
use crate::tail::Tail;
use crate::{device, sector, supervisor, terminal};

/// The time after which an end that is not over says what it waits for: longer than healthy disks flush, shorter than
/// people wait.
const SAID_AFTER: Duration = Duration::from_secs(2);

/// Interval at which the file behind a device is asked for. Only what is known is asked, which costs nothing; the
/// file system is asked by another thread, seconds apart.
const FILE_ASKED_EVERY: Duration = Duration::from_secs(1);

/// Make a device available to other programs, over NBD or as a file, until Ctrl-C or SIGTERM.
///
/// QEMU, libnbd, fio and the kernel (with nbd-client) use NBD. It has no authentication: a Unix socket is accessible
/// to this user only, but anybody who reaches a TCP port can read and write the disk. FUSE makes the device a file,
/// for other programs and for loop devices.
#[derive(Debug, Args)]
#[command(override_usage = "\
lunway attach [OPTIONS] --nbd <unix:PATH|tcp:ADDRESS[:PORT]> <DEVICE>
       lunway attach [OPTIONS] --fuse <DIR> <DEVICE>", group = ArgGroup::new("way").required(true).args(["nbd", "fuse"]), after_help = "\
Examples:
  lunway attach iscsi://192.0.2.10/iqn.2026-11.com.example:disks/0 \\
      --nbd unix:/run/user/1000/disk.sock
  qemu-img info 'nbd+unix:///?socket=/run/user/1000/disk.sock'
  lunway attach disk.img --nbd tcp:127.0.0.1 --name disk
  lunway attach disk.img --fuse /mnt/disk
  losetup --find --show --direct-io=on /mnt/disk/disk")]
pub(crate) struct Attach {
    /// The device to attach
    #[arg(value_name = "DEVICE")]
    device: String,
    /// Serve it over NBD on a Unix socket, or on TCP (default port 10809; port 0 lets the system choose)
    #[arg(long, value_name = "unix:PATH|tcp:ADDRESS[:PORT]")]
    nbd: Option<NbdAddress>,
    /// Mount a file system with the device as a file on this empty directory
    #[arg(long, value_name = "DIR")]
    fuse: Option<PathBuf>,
    /// Name of the NBD export [default: the empty name, which always works too], or of the file [default: disk]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Refuse writes
    #[arg(long)]
    read_only: bool,
    /// Allow clients to shrink the device: data beyond the new end are lost
    #[arg(long, conflicts_with = "read_only")]
    shrink: bool,
    /// Logical sector size, for devices that have no fixed one: 512 or 4096
    #[arg(long, value_name = "BYTES", value_parser = sector::sector)]
    sector: Option<u32>,
    /// Bypass the page cache for files (O_DIRECT)
    #[arg(long)]
    direct: bool,
    /// Print what is attached as one line of JSON
    #[arg(long)]
    json: bool,
}

impl Attach {
    /// A file that another command attaches.
    pub(super) fn of_file(
        device: String,
        nbd: Option<NbdAddress>,
        fuse: Option<PathBuf>,
        read_only: bool,
        json: bool,
    ) -> Self {
        Self { device, nbd, fuse, name: None, read_only, shrink: false, sector: None, direct: false, json }
    }

    pub(crate) fn run(self) -> Result<(), Failure> {
        let spec = device::parse(&self.device)?;
        let options = OpenOptions {
            sector: self.sector,
            read_only: self.read_only,
            direct: self.direct,
            ..OpenOptions::default()
        };
        // A kernel on this machine may write through this process: by a loop device on the file, or by nbd-client.
        Protection::of_attached(&spec).apply();
        device::run_server(async {
            let mut requests = Requests::new().context("cannot wait for signals")?;
            let opened = tokio::select! {
                opened = device::open(&spec, &options) => opened?,
                () = requests.next() => {
                    return Err(Failure::failed(anyhow::anyhow!("stopped before {spec} was open")));
                }
            };
            Tail::tell(&spec, opened.device.geometry().size);
            if opened.device.geometry().read_only {
                OtherWriter::warn_of(&spec);
            }
            tell_of_sizes(&spec, &*opened.device, self.nbd.is_some());
            match (&self.nbd, &self.fuse) {
                (Some(address), _) => self.serve_nbd(address, &spec, opened, &mut requests).await,
                (None, Some(folder)) => self.mount(folder, &spec, opened, &mut requests).await,
                (None, None) => Err(Failure::Usage("one of --nbd and --fuse is required".to_owned())),
            }
        })
    }

    async fn serve_nbd(
        &self,
        address: &NbdAddress,
        spec: &DeviceSpec,
        opened: Opened,
        requests: &mut Requests,
    ) -> Result<(), Failure> {
        let name = self.name.clone().unwrap_or_default();
        let export = Export {
            name: name.clone(),
            // Secrets are not part of how a device is shown.
            description: format!("{spec}, by lunway"),
            device: self.for_clients(&opened),
            bitmaps: None,
        };
        let server = NbdServer::bind(address, export).await.map_err(Failure::failed)?;
        let mut bound = server.address().context("where does it listen?")?;
        match &mut bound {
            // The user of the URI may have another working folder.
            NbdAddress::Unix(path) => *path = std::path::absolute(&*path).unwrap_or_else(|_| path.clone()),
            NbdAddress::Tcp(at) if !at.ip().is_loopback() => tracing::warn!(
                "NBD has no authentication: every host that reaches {at} may read{} {spec}; use tcp:127.0.0.1, or unix:PATH",
                if self.read_only { "" } else { " and write" }
            ),
            NbdAddress::Tcp(_) => {}
        }
        let uri = bound.uri(&name);
        self.announce("nbd", &uri, "", spec, &opened)?;
        let status = format!("serving {spec} at {uri}");
        supervisor::ready(&status);
        let (stop, stopped) = oneshot::channel::<()>();
        let mut served = pin!(server.serve(async {
            let _ = stopped.await;
        }));
        tokio::select! {
            served = &mut served => {
                let closed = opened.close().await;
                return served.and(closed).map_err(|error| lost(spec, &error));
            }
            () = requests.next() => drop(stop),
            () = watch_file(&*opened.device, &status) => {}
        }
        supervisor::stopping("finishing I/O in flight");
        end(served, spec, opened, requests).await
    }

    async fn mount(
        &self,
        folder: &Path,
        spec: &DeviceSpec,
        opened: Opened,
        requests: &mut Requests,
    ) -> Result<(), Failure> {
        let name = self.name.as_deref().unwrap_or("disk");
        if name.is_empty() || name.contains('/') || matches!(name, "." | "..") {
            return Err(Failure::Usage(format!("--name {name:?}: a file name without / is expected")));
        }
        let mut mounted = Mounted::mount(self.for_clients(&opened), folder, name).map_err(Failure::failed)?;
        let file = mounted.file().display().to_string();
        self.announce("file", &file, &next_steps(&file, folder, &opened), spec, &opened)?;
        let status = format!("{spec} is {file}");
        supervisor::ready(&status);
        tokio::select! {
            () = requests.next() => {}
            () = mounted.ended() => {}
            () = watch_file(&*opened.device, &status) => {}
        }
        supervisor::stopping("waiting until the file is closed");
        let busy = || {
            eprintln!(
                "{file} is in use: waiting until it is closed; Ctrl-C again ends at once, and unsynced data are lost"
            );
        };
        end(mounted.detach(busy), spec, opened, requests).await
    }

    /// The device as clients may use it.
    fn for_clients(&self, opened: &Opened) -> Arc<dyn BlockDevice> {
        match self.shrink {
            true => opened.device.clone(),
            false => Arc::new(NoShrink::new(opened.device.clone())),
        }
    }

    fn announce(
        &self,
        key: &str,
        place: &str,
        more: &str,
        spec: &DeviceSpec,
        opened: &Opened,
    ) -> Result<(), Failure> {
        let geometry = opened.device.geometry();
        let announced = match self.json {
            true => terminal::print_json(&json!({
                "device": spec.to_string(), "size": geometry.size, "sector": geometry.logical_sector,
                "read_only": geometry.read_only, key: place,
            })),
            false => {
                let read_only = if geometry.read_only { ", read-only" } else { "" };
                let (size, sector) = (HumanSize(geometry.size), geometry.logical_sector);
                terminal::print(&format!("{place}\n  {spec}, {size}, sectors of {sector}{read_only}{more}"))
            }
        };
        match announced {
            // The reader is gone: that is no reason not to serve.
            Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            announced => announced,
        }
    }
}

/// Waits for the end of what serves the device, and closes that. Says what it waits for where that takes long; who asks
/// once more is obeyed at once.
pub(super) async fn end(
    served: impl Future<Output = Result<(), BlockError>>,
    spec: &DeviceSpec,
    opened: Opened,
    requests: &mut Requests,
) -> Result<(), Failure> {
    // Who waits for the device must not keep it: it is closed when its last holder is gone.
    let device = Arc::downgrade(&opened.device);
    let ended = async {
        let served = served.await;
        let is_nameless = is_nameless(&opened).await;
        let closed = opened.close().await;
        served.and(closed).map_err(|error| lost(spec, &error))?;
        if is_nameless { Err(nameless(spec)) } else { Ok(()) }
    };
    let patience = async {
        tokio::time::sleep(SAID_AFTER).await;
        let ways = device.upgrade().map_or_else(String::new, |device| ways(&*device));
        let waiting = format!("waiting for {spec}, which has not completed all requests{ways}");
        eprintln!("{waiting}; Ctrl-C or SIGTERM again ends at once, and unflushed data are lost");
        supervisor::stopping(&waiting);
        std::future::pending::<()>().await;
    };
    tokio::select! {
        ended = ended => ended,
        () = patience => Ok(()),
        () = requests.next() => Err(Failure::failed(anyhow::anyhow!(
            "ended before {spec} had answered: I/O in flight and unflushed writes may be lost"
        ))),
    }
}

/// Logs each new size of the device, and who has to be told of it.
fn tell_of_sizes(spec: &DeviceSpec, device: &dyn BlockDevice, over_nbd: bool) {
    let (spec, before) = (spec.to_string(), AtomicU64::new(device.geometry().size));
    device.on_resize(Box::new(move |geometry| {
        if before.swap(geometry.size, Ordering::Relaxed) == geometry.size {
            return;
        }
        let who = match over_nbd {
            true => "NBD clients see it when they connect again",
            false => "`losetup --set-capacity` tells it to a loop device",
        };
        tracing::warn!("{spec} has {} now: {who}", HumanSize(geometry.size));
    }));
}

/// Tells systemd when the file behind a device has lost its name, and when it has it again, without an end. The log has
/// it from the device itself, which looks because it is asked.
async fn watch_file(device: &dyn BlockDevice, status: &str) {
    let mut said = None;
    loop {
        tokio::time::sleep(FILE_ASKED_EVERY).await;
        let found = device.backing();
        if found != said {
            supervisor::status(found.as_deref().unwrap_or(status));
            said = found;
        }
    }
}

/// Returns `true` if what clients wrote has no name any more, so that it may end with this process. Waits for the file
/// system.
async fn is_nameless(opened: &Opened) -> bool {
    let device = opened.device.clone();
    if device.geometry().read_only {
        return false;
    }
    let asked = tokio::task::spawn_blocking(move || device.lost_name().is_some());
    asked.await.unwrap_or(false)
}

fn nameless(spec: &DeviceSpec) -> Failure {
    Failure::failed(anyhow::anyhow!(
        "a file of {spec} was renamed or deleted while it was attached: what was written is in it under its new name, or, if \
         it was deleted, lost with the end of this process; while that runs, /proc/PID/fd has the file, to be copied"
    ))
}

/// Next steps with the file, as commands.
fn next_steps(file: &str, folder: &Path, opened: &Opened) -> String {
    let geometry = opened.device.geometry();
    let read_only = if geometry.read_only { "--read-only " } else { "" };
    let sector = geometry.logical_sector;
    let folder = folder.display();
    format!(
        "
  losetup --find --show --direct-io=on --sector-size {sector} {read_only}{file}   # makes it /dev/loopN
  mkfs.ext4 /dev/loopN                       # only where there is no file system yet
  mount /dev/loopN DIR
  umount DIR && losetup --detach /dev/loopN && umount {folder}   # the end; or Ctrl-C here instead of the last"
    )
}

fn lost(spec: &DeviceSpec, error: &BlockError) -> Failure {
    Failure::failed(anyhow::anyhow!("the last writes to {spec} may be lost: {error}"))
}
