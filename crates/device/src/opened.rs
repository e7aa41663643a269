//! From a name to a device.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use lunway_block::decorate::{Delay, Fault, Rate, ReadOnly, Stats};
use lunway_block::spec::{DeviceSpec, FileCache, FileFormat, ImageFormat, IscsiUrlText};
use lunway_block::{BlockDevice, BlockError};
use lunway_file::{Closed, FileDevice, Workers};
use lunway_image::Format;
use lunway_image_device::{ImageDevice, NewVhd};
use lunway_initiator::{InitiatorPorts, IscsiDevice};
use lunway_iscsi_paths::{Address, IscsiMultipath, MultipathUrl};
use lunway_memory::{NullDisk, RamDisk};
use lunway_nbd::NbdClient;
use lunway_rbd::{RbdDevice, RbdOptions};
use lunway_retain::{RetainingDevice, UNFLUSHED_MAX};
use lunway_vhdx_device::{VhdxDevice, VhdxDeviceOpenError};

use crate::{DeviceOpenError, point, pulled_point, repository_point};

/// Time limit for closing a file: that is immediate unless its disk does not answer, and then it may never happen.
const CLOSE_TIME: Duration = Duration::from_secs(5);

/// Options for opening a device.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Logical sector, bytes: 512 or 4096; `None`: what the device says, 512 where it can have any.
    pub sector: Option<u32>,
    /// Opens files for reading only, and refuses writes whatever the device is.
    pub read_only: bool,
    /// Files past the page cache (`O_DIRECT`), as with `?cache=none`.
    pub direct: bool,
    /// Opens a raw file whose last bytes are no whole sector for writing, too, without them.
    pub without_tail: bool,
    /// The device is served to hosts: where its storage shuts this client out for good (a Ceph client on the
    /// blocklist), it is opened again with a new one. Else that is an error for good.
    pub renew: bool,
    /// Times and limits of iSCSI sessions. Those of a disk over several paths do not wait for a lost connection,
    /// whatever stands here.
    pub iscsi: lunway_initiator::SessionOptions,
}

impl Default for OpenOptions {
    /// Sessions are recorded for all processes of this user on this host, so that what a killed one leaves is ended by
    /// the next.
    fn default() -> Self {
        let initiator_ports = InitiatorPorts::Host;
        let iscsi = lunway_initiator::SessionOptions { initiator_ports, ..Default::default() };
        Self { sector: None, read_only: false, direct: false, without_tail: false, renew: false, iscsi }
    }
}

/// An open device, and what it is beside a [`BlockDevice`].
///
/// The device may be used as long as the runtime lives that it was opened on. Dropped without [`close`](Self::close),
/// an iSCSI session ends without a logout if the runtime ends at once.
pub struct Opened {
    /// The device, with its decorators around it.
    pub device: Arc<dyn BlockDevice>,
    innermost: Innermost,
    counters: Vec<(String, Arc<Stats>)>,
}

/// The device inside all layers, where more can be asked of it than the trait has.
enum Innermost {
    /// Nothing more.
    Plain,
    /// A file; it tells when its descriptors are closed, once nothing uses it any more.
    File(Option<Closed>),
    /// An iSCSI session.
    Session(Arc<IscsiDevice>),
    /// A disk over several of them.
    Multipath(Arc<IscsiMultipath>),
    /// A point of a backup, for which prunes wait until this is dropped.
    Point(point::Held),
}

impl Opened {
    /// Ends the device, once what is under way is answered, and logs what `stats:` has counted. A file is closed when
    /// nothing uses it any more, which is waited for some seconds: then another may open it.
    ///
    /// # Errors
    ///
    /// What [`BlockDevice::close`] says.
    pub async fn close(self) -> Result<(), BlockError> {
        let closed = self.device.close().await;
        for (device, counter) in self.counters {
            let counted = counter.snapshot();
            tracing::info!(target: "lunway::stats", device, ?counted, "counted");
        }
        drop(self.device);
        match self.innermost {
            Innermost::File(Some(file)) => file.within(CLOSE_TIME).await,
            Innermost::Point(held) => held.end().within(CLOSE_TIME).await,
            _ => {}
        }
        closed
    }

    /// [`close`](Self::close) for callers whose work is done whatever its end brings: an error is logged.
    pub async fn close_or_log(self) {
        if let Err(error) = self.close().await {
            tracing::error!(%error, "a device was not closed in order");
        }
    }

    /// The iSCSI session, where the device is one, whatever is around it.
    pub fn session(&self) -> Option<&Arc<IscsiDevice>> {
        match &self.innermost {
            Innermost::Session(session) => Some(session),
            _ => None,
        }
    }

    /// The lanes, where the device is a disk over several paths, whatever is around it.
    pub fn multipath(&self) -> Option<&Arc<IscsiMultipath>> {
        match &self.innermost {
            Innermost::Multipath(multipath) => Some(multipath),
            _ => None,
        }
    }

    /// Puts a layer around the device, which is only read, that takes writes into a new file without a name: they end
    /// with the device, also with a process that is killed. `place` is where the file is, for errors. Where it fails
    /// the device is as before.
    ///
    /// # Errors
    ///
    /// Where the file cannot be used, a sentence.
    pub async fn discard_writes(&mut self, file: File, place: &Path) -> Result<(), DeviceOpenError> {
        let inside = self.device.clone();
        let made = on_thread(place, move |_| VhdxDevice::discarding_over(file, inside)).await?;
        let failed = |source| VhdxDeviceOpenError { path: place.to_owned(), source };
        self.device = Arc::new(made.map_err(failed)?);
        Ok(())
    }

    fn new(device: Arc<dyn BlockDevice>, innermost: Innermost) -> Self {
        Self { device, innermost, counters: Vec::new() }
    }

    /// A device that was opened by its own crate, for more than the trait has.
    pub fn plain(device: Arc<dyn BlockDevice>) -> Self {
        Self::new(device, Innermost::Plain)
    }

    fn wrap(&mut self, wrapper: impl FnOnce(Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice>) {
        self.device = wrapper(self.device.clone());
    }
}

/// Opens what `spec` names.
///
/// An iSCSI session is carried by the runtime this is called on: with a `current_thread` runtime, the caller and the
/// session share a thread, which saves the wake-up of another core for each I/O.
///
/// Boxed, so that it is compiled here and not again in each crate that awaits it.
pub fn open<'a>(
    spec: &'a DeviceSpec,
    options: &'a OpenOptions,
) -> BoxFuture<'a, Result<Opened, DeviceOpenError>> {
    Box::pin(open_now(spec, options))
}

async fn open_now(spec: &DeviceSpec, options: &OpenOptions) -> Result<Opened, DeviceOpenError> {
    let mut decorators = Vec::new();
    let mut leaf = spec;
    while let Some(inner) = leaf.inner() {
        decorators.push(leaf);
        leaf = inner;
    }
    // A file that is not written through need not be writable itself.
    let protected = decorators.iter().any(|spec| matches!(spec, DeviceSpec::ReadOnly { .. }));
    let read_only = options.read_only || protected;
    // Of a VHDX on a device it is the VHDX that has sectors of its own.
    let within = decorators.iter().any(|spec| matches!(spec, DeviceSpec::VhdxOn { .. }));
    let of_leaf = OpenOptions { sector: options.sector.filter(|_| !within), ..options.clone() };
    let mut opened = open_leaf(leaf, &of_leaf, read_only).await?;
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
            DeviceSpec::VhdxOn { inner } => match open_vhdx_on(&opened.device, inner, read_only).await {
                Ok(device) => opened.device = device,
                Err(error) => {
                    opened.close_or_log().await;
                    return Err(error);
                }
            },
            // Named one by one, so that a decorator cannot be forgotten.
            DeviceSpec::Ram { .. }
            | DeviceSpec::Null { .. }
            | DeviceSpec::File { .. }
            | DeviceSpec::Vhdx { .. }
            | DeviceSpec::Image { .. }
            | DeviceSpec::Paths { .. }
            | DeviceSpec::Iscsi { .. }
            | DeviceSpec::Nbd { .. }
            | DeviceSpec::Rbd { .. }
            | DeviceSpec::Point { .. } => unreachable!("a back end has nothing inside"),
        }
    }
    if within {
        opened = with_sector(opened, spec.to_string(), options).await?;
    }
    if options.read_only && !opened.device.geometry().read_only {
        opened.wrap(|inner| Arc::new(ReadOnly::new(inner)));
    }
    Ok(opened)
}

async fn open_leaf(
    leaf: &DeviceSpec,
    options: &OpenOptions,
    read_only: bool,
) -> Result<Opened, DeviceOpenError> {
    let memory = |source| DeviceOpenError::Memory { device: leaf.to_string(), source };
    let sector = options.sector.unwrap_or(512);
    Ok(match leaf {
        DeviceSpec::Ram { size } => Opened::plain(Arc::new(RamDisk::new(*size, sector).map_err(memory)?)),
        DeviceSpec::Null { size } => Opened::plain(Arc::new(NullDisk::new(*size, sector).map_err(memory)?)),
        DeviceSpec::File { path, format, cache } => {
            let file = lunway_file::FileOptions {
                sector: options.sector,
                read_only,
                raw: *format == FileFormat::Raw,
                without_tail: options.without_tail,
                direct: options.direct || *cache == FileCache::None,
                ..lunway_file::FileOptions::default()
            };
            // On a thread: the caller may carry other devices, and the file system may not answer.
            let device = FileDevice::open_on_thread(path.clone(), file).await?;
            let closed = device.closed();
            Opened::new(Arc::new(device), Innermost::File(closed))
        }
        DeviceSpec::Vhdx { path } => {
            let opened = open_vhdx(path, options, read_only).await?;
            return with_sector(opened, leaf.to_string(), options).await;
        }
        DeviceSpec::Image { path, format } => {
            refuse_direct(path, options)?;
            let format = image_format(*format);
            let device = on_thread(path, move |path| ImageDevice::open(path, format)).await??;
            return with_sector(Opened::plain(Arc::new(device)), leaf.to_string(), options).await;
        }
        DeviceSpec::Iscsi { url } => open_iscsi(url, options).await?,
        DeviceSpec::Paths { path } => {
            let url =
                MultipathUrl::from_file(path).map_err(|error| DeviceOpenError::PathsFile(Box::new(error)))?;
            open_multipath(&url, leaf.to_string(), options).await?
        }
        DeviceSpec::Rbd { name } => {
            let renew = options.renew;
            let options = RbdOptions { read_only, sector, renew, ..RbdOptions::default() };
            Opened::plain(Arc::new(RbdDevice::open(name, &options).await?))
        }
        DeviceSpec::Point { name } => {
            refuse_direct(&name.folder, options)?;
            let point = name.clone();
            let opening = on_thread(&name.folder, move |_| match point.kept_in() {
                Some(file) => pulled_point::open(&point, file, read_only)
                    .map(|device| (Arc::new(device) as Arc<dyn BlockDevice>, None)),
                None => match repository_point::series(&point) {
                    Err(error) => Err(error),
                    Ok(Some(series)) => repository_point::open(&series, &point, read_only),
                    Ok(None) => point::open(&point, read_only),
                }
                .map(|(device, mount)| (device, Some(mount))),
            });
            let failed = |source| DeviceOpenError::Point { device: leaf.to_string(), source };
            let (device, mount) = opening.await?.map_err(failed)?;
            let opened = Opened::new(device, mount.map_or(Innermost::Plain, Innermost::Point));
            return with_sector(opened, leaf.to_string(), options).await;
        }
        DeviceSpec::Nbd { uri } => {
            let opened = Opened::plain(Arc::new(NbdClient::connect(uri, None).await?));
            return with_sector(opened, leaf.to_string(), options).await;
        }
        DeviceSpec::Delay { .. }
        | DeviceSpec::Rate { .. }
        | DeviceSpec::Fault { .. }
        | DeviceSpec::ReadOnly { .. }
        | DeviceSpec::VhdxOn { .. }
        | DeviceSpec::Stats { .. } => unreachable!("decorators were peeled off"),
    })
}

/// A VHDX file and its parents.
async fn open_vhdx(path: &Path, options: &OpenOptions, read_only: bool) -> Result<Opened, DeviceOpenError> {
    refuse_direct(path, options)?;
    let device = on_thread(path, move |path| VhdxDevice::open(path, read_only)).await??;
    Ok(Opened::plain(Arc::new(device)))
}

/// Opens a VHD that [`lunway_image::vhd::Writer`] has made, to fill it. The grammar names none: VHD is not a format to
/// work on.
pub async fn open_new_vhd(path: &Path) -> Result<Opened, DeviceOpenError> {
    let device = on_thread(path, NewVhd::open).await??;
    Ok(Opened::plain(Arc::new(device)))
}

/// Converts the grammar's image format to that of the crate that reads it.
pub fn image_format(format: ImageFormat) -> Format {
    match format {
        ImageFormat::Vhd => Format::Vhd,
        ImageFormat::Qcow2 => Format::Qcow2,
    }
}

fn refuse_direct(path: &Path, options: &OpenOptions) -> Result<(), DeviceOpenError> {
    match options.direct {
        true => Err(DeviceOpenError::ContainerDirect { path: path.to_owned() }),
        false => Ok(()),
    }
}

/// Opens a file on a thread: the caller may carry other devices.
async fn on_thread<T: Send + Unpin + 'static>(
    path: &Path,
    open: impl FnOnce(&Path) -> T + Send + 'static,
) -> Result<T, DeviceOpenError> {
    let workers = Workers::new();
    let file = path.to_owned();
    let opening = workers.upkeep.io(move || Ok(open(&file)));
    opening.await.map_err(|source| DeviceOpenError::NoThread { path: path.to_owned(), source })
}

/// A VHDX on a device, on a thread that waits for it.
async fn open_vhdx_on(
    device: &Arc<dyn BlockDevice>,
    inner: &DeviceSpec,
    read_only: bool,
) -> Result<Arc<dyn BlockDevice>, DeviceOpenError> {
    let (workers, device, name) = (Workers::new(), device.clone(), inner.to_string());
    let opening = workers.upkeep.io(move || Ok(VhdxDevice::open_on(device, read_only)));
    match opening.await {
        Ok(Ok(opened)) => Ok(Arc::new(opened)),
        Ok(Err(source)) => Err(DeviceOpenError::VhdxOn { device: name, source }),
        Err(source) => Err(DeviceOpenError::NoThread { path: name.into(), source }),
    }
}

async fn open_iscsi(url: &IscsiUrlText, options: &OpenOptions) -> Result<Opened, DeviceOpenError> {
    let device = || url.to_string();
    let address = Address::parse(url.expose_secret());
    let address = match address
        .map_err(|source| DeviceOpenError::Url { device: device(), source: Box::new(source) })?
    {
        Address::One(address) => address,
        Address::Several(address) => return open_multipath(&address, device(), options).await,
    };
    let keep_unflushed = address.keep_unflushed.unwrap_or(UNFLUSHED_MAX);
    let session = IscsiDevice::open(address, options.iscsi.clone())
        .await
        .map_err(|source| DeviceOpenError::Iscsi { device: device(), source })?;
    let session = Arc::new(session);
    let retained = retaining(session.clone(), keep_unflushed, options);
    let opened = Opened::new(retained, Innermost::Session(session));
    with_sector(opened, device(), options).await
}

async fn open_multipath(
    url: &MultipathUrl,
    device: String,
    options: &OpenOptions,
) -> Result<Opened, DeviceOpenError> {
    let multipath = IscsiMultipath::open(url, &options.iscsi)
        .await
        .map_err(|source| DeviceOpenError::Multipath { device: device.clone(), source: Box::new(source) })?;
    let multipath = Arc::new(multipath);
    let shared = if url.key.is_some() { 0 } else { UNFLUSHED_MAX };
    let keep_unflushed = url.base.keep_unflushed.unwrap_or(shared);
    let retained = retaining(multipath.clone(), keep_unflushed, options);
    let opened = Opened::new(retained, Innermost::Multipath(multipath));
    with_sector(opened, device, options).await
}

/// Writes again what the storage may have lost. A disk with a reservation key is shared, as a rule: what another host
/// has written meanwhile would be overwritten, so nothing is kept unless the address says so.
fn retaining(device: Arc<dyn BlockDevice>, bytes_max: u64, options: &OpenOptions) -> Arc<dyn BlockDevice> {
    if bytes_max == 0 || options.read_only || options.iscsi.cache_survives_power_on {
        return device;
    }
    Arc::new(RetainingDevice::new(device, bytes_max))
}

/// Only if it has the sectors that were asked for.
async fn with_sector(
    opened: Opened,
    device: String,
    options: &OpenOptions,
) -> Result<Opened, DeviceOpenError> {
    let found = opened.device.geometry().logical_sector;
    match options.sector {
        Some(wanted) if wanted != found => {
            opened.close_or_log().await;
            Err(DeviceOpenError::Sector { device, wanted, found })
        }
        _ => Ok(opened),
    }
}

/// Makes a sparse file of `size` bytes where there is none yet.
pub fn create_file(path: &Path, size: u64) -> Result<(), DeviceOpenError> {
    let failed = |source| DeviceOpenError::Create { path: path.to_owned(), source };
    let file = File::create_new(path).map_err(failed)?;
    // Longer than the file system allows, as a rule: an empty one is of no use.
    file.set_len(size).inspect_err(|_| drop(std::fs::remove_file(path))).map_err(failed)
}
