//! From a name to a device.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lunway_block::BlockDevice;
use lunway_block::decorate::{Delay, Fault, Rate, ReadOnly, Stats};
use lunway_block::spec::{DeviceSpec, FileCache, FileFormat, IscsiUrl};
use lunway_file::{Closed, FileDevice, Workers};
use lunway_initiator::{InitiatorPorts, IscsiDevice};
use lunway_memory::{NullDisk, RamDisk};
use lunway_multipath::iscsi::{Address, IscsiMultipath, MultipathUrl};
use lunway_retain::{RetainingDevice, UNFLUSHED_MAX};
use lunway_vhdx_device::VhdxDevice;

use crate::OpenError;

/// How long the end of a file is waited for: it is there at once, unless its disk does not answer, and then it may never come.
const CLOSE_TIME: Duration = Duration::from_secs(5);

/// How to open a device.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Logical sector, bytes: 512 or 4096; `None`: what the device says, 512 where it can have any.
    pub sector: Option<u32>,
    /// Opens files for reading only, and refuses writes whatever the device is.
    pub read_only: bool,
    /// Files past the page cache (`O_DIRECT`), as with `?cache=none`.
    pub direct: bool,
    /// Times and limits of iSCSI sessions. Those of a disk over several paths do not wait for a lost connection, whatever stands here.
    pub iscsi: lunway_initiator::OpenOptions,
}

impl Default for OpenOptions {
    /// Sessions are recorded for all processes of this user on this host, so that what a killed one leaves is ended by the next.
    fn default() -> Self {
        let initiator_ports = InitiatorPorts::Host;
        let iscsi = lunway_initiator::OpenOptions { initiator_ports, ..Default::default() };
        Self { sector: None, read_only: false, direct: false, iscsi }
    }
}

/// An open device, and what must be told when it is no longer needed.
///
/// The device may be used as long as the runtime lives that it was opened on. Dropped without [`close`](Self::close), an
/// iSCSI session ends without a logout if the runtime ends at once.
pub struct Opened {
    /// The device, with its decorators around it.
    pub device: Arc<dyn BlockDevice>,
    session: Option<Arc<IscsiDevice>>,
    multipath: Option<Arc<IscsiMultipath>>,
    file: Option<Closed>,
    vhdx: Option<Arc<VhdxDevice>>,
    counters: Vec<(String, Arc<Stats>)>,
}

impl Opened {
    /// Logs out where there are sessions, once what is under way is answered, and logs what `stats:` has counted. A file is closed
    /// when nothing uses it any more, which is waited for some seconds: then another may open it.
    pub async fn close(self) {
        if let Some(session) = self.session {
            session.close().await;
        }
        if let Some(multipath) = self.multipath {
            multipath.close().await;
        }
        for (device, counter) in self.counters {
            let counted = counter.snapshot();
            tracing::info!(target: "lunway::stats", device, ?counted, "counted");
        }
        drop(self.device);
        if let Some(vhdx) = self.vhdx
            && let Err(error) = vhdx.close(CLOSE_TIME).await
        {
            tracing::error!(%error, "a VHDX file was not closed: its log is replayed when it is opened next");
        }
        if let Some(file) = self.file {
            file.within(CLOSE_TIME).await;
        }
    }

    /// The iSCSI session, where the device is one, whatever is around it.
    pub fn session(&self) -> Option<&Arc<IscsiDevice>> {
        self.session.as_ref()
    }

    /// The lanes, where the device is a disk over several paths, whatever is around it.
    pub fn multipath(&self) -> Option<&Arc<IscsiMultipath>> {
        self.multipath.as_ref()
    }

    fn plain(device: Arc<dyn BlockDevice>) -> Self {
        Self { device, session: None, multipath: None, file: None, vhdx: None, counters: Vec::new() }
    }

    fn wrap(&mut self, wrapper: impl FnOnce(Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice>) {
        self.device = wrapper(self.device.clone());
    }
}

/// Opens what `spec` names.
///
/// An iSCSI session is carried by the runtime this is called on: with a `current_thread` runtime, the caller and the
/// session share a thread, which saves the wake-up of another core for each I/O.
pub async fn open(spec: &DeviceSpec, options: &OpenOptions) -> Result<Opened, OpenError> {
    let mut decorators = Vec::new();
    let mut leaf = spec;
    while let Some(inner) = leaf.inner() {
        decorators.push(leaf);
        leaf = inner;
    }
    // A file that nobody may write through need not be writable itself.
    let protected = decorators.iter().any(|spec| matches!(spec, DeviceSpec::ReadOnly { .. }));
    let mut opened = open_leaf(leaf, options, options.read_only || protected).await?;
    for &decorator in decorators.iter().rev() {
        match decorator {
            DeviceSpec::Delay { time, .. } => opened.wrap(|inner| Arc::new(Delay::new(inner, *time))),
            DeviceSpec::Rate { bytes_per_second, .. } => {
                opened.wrap(|inner| Arc::new(Rate::new(inner, *bytes_per_second)));
            }
            DeviceSpec::Fault { spec, .. } => opened.wrap(|inner| Arc::new(Fault::new(inner, spec.clone()))),
            DeviceSpec::ReadOnly { .. } => opened.wrap(|inner| Arc::new(ReadOnly::new(inner))),
            DeviceSpec::Stats { inner } => {
                let counter = Arc::new(Stats::new(opened.device.clone()));
                opened.counters.push((inner.to_string(), counter.clone()));
                opened.device = counter;
            }
            _ => {}
        }
    }
    if options.read_only && !opened.device.geometry().read_only {
        opened.wrap(|inner| Arc::new(ReadOnly::new(inner)));
    }
    Ok(opened)
}

async fn open_leaf(leaf: &DeviceSpec, options: &OpenOptions, read_only: bool) -> Result<Opened, OpenError> {
    let memory = |source| OpenError::Memory { device: leaf.to_string(), source };
    let sector = options.sector.unwrap_or(512);
    Ok(match leaf {
        DeviceSpec::Ram { size } => Opened::plain(Arc::new(RamDisk::new(*size, sector).map_err(memory)?)),
        DeviceSpec::Null { size } => Opened::plain(Arc::new(NullDisk::new(*size, sector).map_err(memory)?)),
        DeviceSpec::File { path, format, cache } => {
            let file = lunway_file::FileOptions {
                sector: options.sector,
                read_only,
                raw: *format == FileFormat::Raw,
                direct: options.direct || *cache == FileCache::None,
                ..lunway_file::FileOptions::default()
            };
            // On a thread: the caller may carry other devices, and the file system may not answer.
            let device = FileDevice::open_on_thread(path.clone(), file).await?;
            let closed = device.closed();
            Opened { file: closed, ..Opened::plain(Arc::new(device)) }
        }
        DeviceSpec::Vhdx { path } => {
            let opened = open_vhdx(path, options, read_only).await?;
            return with_sector(opened, leaf.to_string(), options).await;
        }
        DeviceSpec::Iscsi { url } => open_iscsi(url, options).await?,
        DeviceSpec::Paths { path } => {
            let url = MultipathUrl::from_file(path).map_err(|error| OpenError::PathsFile(Box::new(error)))?;
            open_multipath(&url, leaf.to_string(), options).await?
        }
        DeviceSpec::Delay { .. }
        | DeviceSpec::Rate { .. }
        | DeviceSpec::Fault { .. }
        | DeviceSpec::ReadOnly { .. }
        | DeviceSpec::Stats { .. } => unreachable!("decorators were peeled off"),
    })
}

/// A VHDX file and its parents, on a thread: the caller may carry other devices.
async fn open_vhdx(path: &Path, options: &OpenOptions, read_only: bool) -> Result<Opened, OpenError> {
    if options.direct {
        return Err(OpenError::VhdxDirect { path: path.to_owned() });
    }
    let workers = Workers::new();
    let file = path.to_owned();
    let opening = workers.upkeep.io(move || Ok(VhdxDevice::open(&file, read_only)));
    let opened = opening.await.map_err(|source| OpenError::NoThread { path: path.to_owned(), source })?;
    let device = Arc::new(opened?);
    Ok(Opened { vhdx: Some(device.clone()), ..Opened::plain(device) })
}

async fn open_iscsi(url: &IscsiUrl, options: &OpenOptions) -> Result<Opened, OpenError> {
    let device = || url.to_string();
    let address = Address::parse(url.expose_secret());
    let address =
        match address.map_err(|source| OpenError::Url { device: device(), source: Box::new(source) })? {
            Address::One(address) => address,
            Address::Several(address) => return open_multipath(&address, device(), options).await,
        };
    let keep_unflushed = address.keep_unflushed.unwrap_or(UNFLUSHED_MAX);
    let session = IscsiDevice::open(address, options.iscsi.clone())
        .await
        .map_err(|source| OpenError::Iscsi { device: device(), source })?;
    let session = Arc::new(session);
    let retained = retaining(session.clone(), keep_unflushed, options);
    let opened = Opened { session: Some(session), ..Opened::plain(retained) };
    with_sector(opened, device(), options).await
}

async fn open_multipath(
    url: &MultipathUrl,
    device: String,
    options: &OpenOptions,
) -> Result<Opened, OpenError> {
    let multipath = IscsiMultipath::open(url, &options.iscsi)
        .await
        .map_err(|source| OpenError::Multipath { device: device.clone(), source: Box::new(source) })?;
    let multipath = Arc::new(multipath);
    let shared = if url.key.is_some() { 0 } else { UNFLUSHED_MAX };
    let keep_unflushed = url.base.keep_unflushed.unwrap_or(shared);
    let retained = retaining(multipath.device().clone(), keep_unflushed, options);
    let opened = Opened { multipath: Some(multipath), ..Opened::plain(retained) };
    with_sector(opened, device, options).await
}

/// Writes again what the storage may have lost. A disk with a reservation key is shared, as a rule: what another host has written meanwhile
/// would be overwritten, so nothing is kept unless the address says so.
fn retaining(device: Arc<dyn BlockDevice>, bytes_max: u64, options: &OpenOptions) -> Arc<dyn BlockDevice> {
    if bytes_max == 0 || options.read_only || options.iscsi.cache_survives_power_on {
        return device;
    }
    Arc::new(RetainingDevice::new(device, bytes_max))
}

/// Only if it has the sectors that were asked for.
async fn with_sector(opened: Opened, device: String, options: &OpenOptions) -> Result<Opened, OpenError> {
    let found = opened.device.geometry().logical_sector;
    match options.sector {
        Some(wanted) if wanted != found => {
            opened.close().await;
            Err(OpenError::Sector { device, wanted, found })
        }
        _ => Ok(opened),
    }
}

/// Makes a sparse file of `size` bytes where there is none yet.
pub fn create_file(path: &Path, size: u64) -> Result<(), OpenError> {
    let failed = |source| OpenError::Create { path: path.to_owned(), source };
    let file = File::create_new(path).map_err(failed)?;
    file.set_len(size).map_err(failed)
}
