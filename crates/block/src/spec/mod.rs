//! The device grammar: how a command line or a configuration names a device.
//!
//! | form | device |
//! |---|---|
//! | `iscsi://[user[%secret]@]host[:port]/iqn/lun[?…]` | a LUN of a target, over one path or several |
//! | `paths:FILE`, any `*paths.toml` | a LUN over several paths, described in a file |
//! | `ram:SIZE`, `null:SIZE` | memory, or a sink |
//! | `raw:PATH` | raw image or block device, whatever its content looks like |
//! | `PATH`, `file:PATH` | the same, refused where its content is a container (qcow2, VMDK, gzip …) when it is first opened |
//! | `PATH?cache=none` | the same past the page cache; `?cache=writeback` is how it is without |
//! | `vhdx:PATH`, any `*.vhdx`, `*.avhdx` | VHDX |
//! | `vhd:PATH`, any `*.vhd`, `*.avhd` | VHD, for reading |
//! | `qcow2:PATH`, any `*.qcow2` | qcow2, for reading |
//! | `vhdx:DEVICE` | a VHDX on another device, such as `vhdx:iscsi://…`; a path behind `vhdx:` that looks like one begins with `./` |
//! | `rbd:[CLUSTER:]POOL[/NAMESPACE]/IMAGE[@SNAPSHOT]` | an image of a Ceph cluster, see [`RbdName`] |
//! | `point:FOLDER[@POINT][?key-file=FILE][&writes=discard]` | a point of a backup, see [`PointName`] |
//! | `point:FOLDER[@POINT]?[timeout=TIME&]into=FILE.vhdx` | a point that becomes a disk of its own |
//! | `nbd://HOST[:PORT]/EXPORT`, `nbd+unix:///EXPORT?socket=PATH` | an export of an NBD server, see [`NbdUri`] |
//! | `delay:TIME:DEVICE` | each answer comes `TIME` later |
//! | `rate:RATE:DEVICE` | at most `RATE` bytes per second (`100M`, `100MB/s`) |
//! | `fault:SPEC:DEVICE` | errors or corruption, see [`FaultSpec`] |
//! | `readonly:DEVICE` | refuses changes |
//! | `stats:DEVICE` | counts |
//!
//! This module only reads and prints: what opens the devices is elsewhere.

mod error;
mod fault;
mod iscsi_url_text;
mod nbd;
mod options;
mod point;
mod rbd;

use std::fmt;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

pub use error::SpecError;
pub use fault::{FaultError, FaultOp, FaultRule, FaultSpec, FaultSpecError};
pub use iscsi_url_text::IscsiUrlText;
pub use nbd::{NbdEndpoint, NbdUri};
pub use options::split_options;
pub use point::{PointName, PointWrites, is_store_address, place_in_folder};
pub use rbd::RbdName;

use crate::duration::{ExactDuration, parse_duration};
use crate::rate::{ExactRate, parse_rate};
use crate::size::{ExactSize, parse_size};

/// Maximum number of stacked decorators: more than anybody needs, and no text can exhaust the stack.
pub const DEPTH_MAX: usize = 16;

/// Every word before a colon that is a kind of device. What is not in this list is not read.
pub const KINDS: &str = "iscsi://, paths:, ram:, null:, raw:, file:, vhdx:, vhd:, qcow2:, rbd:, point:, nbd://, nbd+unix://, delay:, rate:, fault:, readonly:, stats:";

/// A device as it was named: a tree of decorators around one back end.
///
/// [`parse`](Self::parse) reads it and `Display` prints what `parse` reads back, with one exception: the
/// secret of an `iscsi://` address is printed as `***`.
#[derive(Clone, Debug, PartialEq)]
pub enum DeviceSpec {
    /// `ram:SIZE`.
    Ram {
        /// Bytes.
        size: u64,
    },
    /// `null:SIZE`.
    Null {
        /// Bytes.
        size: u64,
    },
    /// `PATH`, `file:PATH` or `raw:PATH`.
    File {
        /// Raw image or block device.
        path: PathBuf,
        /// Format stated for the file.
        format: FileFormat,
        /// Caching by this host.
        cache: FileCache,
    },
    /// `vhdx:PATH`, or a path that ends so.
    Vhdx {
        /// The VHDX file.
        path: PathBuf,
    },
    /// `vhd:PATH`, `qcow2:PATH`, or a path that ends so.
    Image {
        /// The image.
        path: PathBuf,
        /// Format of the image.
        format: ImageFormat,
    },
    /// `vhdx:DEVICE`: a VHDX that lies on another device.
    VhdxOn {
        /// Underlying device.
        inner: Box<DeviceSpec>,
    },
    /// `iscsi://…`.
    Iscsi {
        /// The whole address; it may hold a secret.
        url: IscsiUrlText,
    },
    /// `paths:FILE`, or a path that ends in `paths.toml`.
    Paths {
        /// The file that describes the disk and its paths.
        path: PathBuf,
    },
    /// `rbd:…`.
    Rbd {
        /// The image.
        name: RbdName,
    },
    /// `point:…`.
    Point {
        /// The point.
        name: PointName,
    },
    /// `nbd://…`, `nbd+unix://…`.
    Nbd {
        /// The export.
        uri: NbdUri,
    },
    /// `delay:TIME:DEVICE`.
    Delay {
        /// Added to each operation.
        time: Duration,
        /// Device that is delayed.
        inner: Box<DeviceSpec>,
    },
    /// `rate:RATE:DEVICE`.
    Rate {
        /// The limit, reads and writes together.
        bytes_per_second: NonZeroU64,
        /// Device that is limited.
        inner: Box<DeviceSpec>,
    },
    /// `fault:SPEC:DEVICE`.
    Fault {
        /// Faults to inject.
        spec: FaultSpec,
        /// Device that fails.
        inner: Box<DeviceSpec>,
    },
    /// `readonly:DEVICE`.
    ReadOnly {
        /// Device that is protected.
        inner: Box<DeviceSpec>,
    },
    /// `stats:DEVICE`.
    Stats {
        /// Device whose operations are counted.
        inner: Box<DeviceSpec>,
    },
}

/// A format of other programs, which is only read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageFormat {
    /// VHD.
    Vhd,
    /// qcow2.
    Qcow2,
}

impl ImageFormat {
    /// Prefix of the path.
    fn kind(self) -> &'static str {
        match self {
            Self::Vhd => "vhd",
            Self::Qcow2 => "qcow2",
        }
    }
}

/// Format stated for a file: raw, or none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FileFormat {
    /// Nothing was said: content that is a container's is refused.
    #[default]
    Unsaid,
    /// `raw:`, whatever it holds. What was once opened as raw stays so under this name: its content is its guest's.
    Raw,
}

/// Caching by this host between a file and its disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FileCache {
    /// `?cache=writeback`: the page cache, which has writes before the disk has them.
    #[default]
    WriteBack,
    /// `?cache=none`: nothing (`O_DIRECT`). What the disk itself keeps is flushed as ever.
    None,
}

/// Separator between the path of a file and the name of a [`FileCache`].
const CACHE_KEY: &str = "?cache=";

/// Kinds that a size follows; alone they are hardly meant as the name of a file.
const SIZED: [&str; 2] = ["ram", "null"];

impl DeviceSpec {
    /// Reads the grammar of this module.
    ///
    /// # Errors
    ///
    /// [`SpecError`], which names what was wrong and what was expected.
    pub fn parse(text: &str) -> Result<Self, SpecError> {
        Self::parse_at(text, "", 0)
    }

    /// Device inside a decorator; `None` for a back end.
    pub fn inner(&self) -> Option<&Self> {
        match self {
            Self::Delay { inner, .. }
            | Self::Rate { inner, .. }
            | Self::Fault { inner, .. }
            | Self::ReadOnly { inner }
            | Self::VhdxOn { inner }
            | Self::Stats { inner } => Some(inner),
            Self::Ram { .. }
            | Self::Null { .. }
            | Self::File { .. }
            | Self::Vhdx { .. }
            | Self::Image { .. }
            | Self::Paths { .. }
            | Self::Iscsi { .. }
            | Self::Nbd { .. }
            | Self::Rbd { .. }
            | Self::Point { .. } => None,
        }
    }

    /// The back end inside all decorators.
    pub fn leaf(&self) -> &Self {
        self.inner().map_or(self, Self::leaf)
    }

    /// Returns `true` if the back end is memory of this process: `ram:`, whatever decorates it.
    pub fn is_memory(&self) -> bool {
        matches!(self.leaf(), Self::Ram { .. })
    }

    /// Returns `true` if the disk lies in a VHDX, in a file or on another device, whatever decorates it.
    pub fn is_vhdx(&self) -> bool {
        matches!(self, Self::Vhdx { .. } | Self::VhdxOn { .. }) || self.inner().is_some_and(Self::is_vhdx)
    }

    /// The back end inside all decorators, to be named otherwise.
    pub fn leaf_mut(&mut self) -> &mut Self {
        match self {
            Self::Delay { inner, .. }
            | Self::Rate { inner, .. }
            | Self::Fault { inner, .. }
            | Self::ReadOnly { inner }
            | Self::VhdxOn { inner }
            | Self::Stats { inner } => inner.leaf_mut(),
            leaf @ (Self::Ram { .. }
            | Self::Null { .. }
            | Self::File { .. }
            | Self::Vhdx { .. }
            | Self::Image { .. }
            | Self::Paths { .. }
            | Self::Iscsi { .. }
            | Self::Nbd { .. }
            | Self::Rbd { .. }
            | Self::Point { .. }) => leaf,
        }
    }

    fn parse_at(text: &str, after: &str, depth: usize) -> Result<Self, SpecError> {
        if depth > DEPTH_MAX {
            return Err(SpecError::TooDeep);
        }
        if text.is_empty() {
            return Err(SpecError::Missing { after: after.to_owned() });
        }
        let Some((kind, rest)) = split_kind(text) else { return Self::of_path(text) };
        if !is_kind(kind) {
            return Err(SpecError::UnknownKind { kind: kind.to_owned() });
        }
        let inner = |text: &str| Self::parse_at(text, kind, depth + 1).map(Box::new);
        // `ARGUMENT:DEVICE`; without the colon there is an argument and no device.
        let split = || rest.split_once(':').unwrap_or((rest, ""));
        Ok(match kind {
            "ram" => Self::Ram { size: size("ram", rest)?.get() },
            "null" => Self::Null { size: size("null", rest)?.get() },
            "file" => Self::file("file", rest, FileFormat::Unsaid)?,
            "raw" => Self::file("raw", rest, FileFormat::Raw)?,
            "vhdx" if split_kind(rest).is_some_and(|(kind, _)| is_kind(kind)) => {
                Self::VhdxOn { inner: inner(rest)? }
            }
            "vhdx" => Self::Vhdx { path: path("vhdx", rest)? },
            "vhd" => Self::Image { path: path("vhd", rest)?, format: ImageFormat::Vhd },
            "qcow2" => Self::Image { path: path("qcow2", rest)?, format: ImageFormat::Qcow2 },
            "paths" => Self::Paths { path: path("paths", rest)? },
            "iscsi" => Self::Iscsi { url: IscsiUrlText::new(text).ok_or(SpecError::IscsiForm)? },
            "rbd" => Self::Rbd { name: RbdName::parse(rest)? },
            "point" => Self::Point { name: PointName::parse(rest)? },
            "nbd" | "nbd+unix" => Self::Nbd { uri: NbdUri::parse(text)? },
            "delay" => {
                let (time, device) = split();
                Self::Delay { time: parse_duration(time)?, inner: inner(device)? }
            }
            "rate" => {
                let (rate, device) = split();
                Self::Rate { bytes_per_second: parse_rate(rate)?, inner: inner(device)? }
            }
            "fault" => {
                let (spec, device) = split();
                Self::Fault { spec: spec.parse()?, inner: inner(device)? }
            }
            "readonly" => Self::ReadOnly { inner: inner(rest)? },
            "stats" => Self::Stats { inner: inner(rest)? },
            _ => return Err(SpecError::UnknownKind { kind: kind.to_owned() }),
        })
    }

    /// `PATH[?cache=…]` behind a kind.
    fn file(kind: &'static str, text: &str, format: FileFormat) -> Result<Self, SpecError> {
        let (rest, cache) = file_cache(text)?;
        Ok(Self::File { path: path(kind, rest)?, format, cache: cache.unwrap_or_default() })
    }

    /// The same device with its format said: a file whose format was not is raw from now on. To be called when it was
    /// opened.
    #[must_use]
    pub fn with_format(mut self) -> Self {
        if let Self::File { format, .. } = self.leaf_mut() {
            *format = FileFormat::Raw;
        }
        self
    }

    /// The same device with the path of its file found from `folder`, where that is relative; of an address, the files
    /// with its secrets.
    #[must_use]
    pub fn in_folder(mut self, folder: &Path) -> Self {
        match self.leaf_mut() {
            // An absolute path takes the folder's place.
            Self::File { path, .. }
            | Self::Vhdx { path }
            | Self::Image { path, .. }
            | Self::Paths { path } => {
                *path = folder.join(&*path);
            }
            Self::Iscsi { url } => *url = url.in_folder(folder),
            Self::Rbd { name } => name.in_folder(folder),
            Self::Point { name } => name.in_folder(folder),
            Self::Nbd { uri } => uri.in_folder(folder),
            _ => {}
        }
        self
    }

    /// The path of the file, or folder, that it is made of, whatever decorates it.
    pub fn path(&self) -> Option<&Path> {
        match self.leaf() {
            Self::File { path, .. }
            | Self::Vhdx { path }
            | Self::Image { path, .. }
            | Self::Paths { path } => Some(path),
            Self::Point { name } => Some(&name.folder),
            _ => None,
        }
    }

    /// Refuses a device whose name cannot be written down and read again: paths are text in configurations, in requests
    /// and in the manifests of backups.
    ///
    /// # Errors
    ///
    /// [`SpecError::NotUtf8`].
    pub fn writable(&self) -> Result<(), SpecError> {
        let files = match self.leaf() {
            Self::Point { name } => Some(name.files()),
            _ => None,
        };
        match self.path().into_iter().chain(files.into_iter().flatten()).find(|path| path.to_str().is_none())
        {
            Some(path) => Err(SpecError::NotUtf8 { path: path.display().to_string() }),
            None => Ok(()),
        }
    }

    /// The text of the same device with relative paths found from `folder`, secrets and all; what has none stays as it
    /// is written.
    pub fn located(text: &str, folder: &Path) -> Result<String, SpecError> {
        let spec = Self::parse(text)?;
        let found = spec.clone().in_folder(folder);
        found.writable()?;
        if found == spec {
            return Ok(text.to_owned());
        }
        // An address is the end of the text, and `Display` would hide its secret.
        let address = match (spec.leaf(), found.leaf()) {
            (Self::Iscsi { url: old }, Self::Iscsi { url: new }) => text
                .strip_suffix(old.expose_secret())
                .map(|before| format!("{before}{}", new.expose_secret())),
            _ => None,
        };
        Ok(address.unwrap_or_else(|| found.to_string()))
    }

    /// A bare path: its end decides.
    fn of_path(text: &str) -> Result<Self, SpecError> {
        if let Some(kind) = SIZED.into_iter().find(|kind| *kind == text) {
            return Err(SpecError::NoSize { kind });
        }
        let (text, cache) = file_cache(text)?;
        let path = path("file", text)?;
        let Some(other) = by_end(&path) else {
            return Ok(Self::File { path, format: FileFormat::Unsaid, cache: cache.unwrap_or_default() });
        };
        match cache {
            None => Ok(other),
            Some(_) => Err(SpecError::CacheOfOther { path: text.to_owned() }),
        }
    }
}

/// Returns `true` if a path alone is read as that device, regardless of its cache setting.
fn is_bare(text: &str, spec: &DeviceSpec) -> bool {
    if text.is_empty() || split_kind(text).is_some() || SIZED.contains(&text) {
        return false;
    }
    let plain = match spec {
        DeviceSpec::File { path, format, .. } => {
            return *format == FileFormat::Unsaid && by_end(path).is_none();
        }
        other => other,
    };
    DeviceSpec::of_path(text).as_ref() == Ok(plain)
}

/// Takes `?cache=…` from the end of a path. Only the last one counts, so that a file whose own name ends so can be
/// named.
fn file_cache(text: &str) -> Result<(&str, Option<FileCache>), SpecError> {
    let Some((path, value)) = text.rsplit_once(CACHE_KEY) else { return Ok((text, None)) };
    match value {
        "none" => Ok((path, Some(FileCache::None))),
        "writeback" => Ok((path, Some(FileCache::WriteBack))),
        // A folder of such a name.
        value if value.contains('/') => Ok((text, None)),
        value => Err(SpecError::Cache { value: value.to_owned() }),
    }
}

/// Returns `true` if the word is the prefix of a device, and therefore not a path behind `vhdx:`.
fn is_kind(word: &str) -> bool {
    KINDS.split(", ").any(|kind| kind.trim_end_matches("//").strip_suffix(':') == Some(word))
}

/// Returns the device that a path's extension implies, if it implies one.
fn by_end(path: &Path) -> Option<DeviceSpec> {
    let (text, path) = (path.to_string_lossy(), path.to_owned());
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or("");
    Some(match extension.to_ascii_lowercase().as_str() {
        "vhdx" | "avhdx" => DeviceSpec::Vhdx { path },
        "vhd" | "avhd" => DeviceSpec::Image { path, format: ImageFormat::Vhd },
        "qcow2" => DeviceSpec::Image { path, format: ImageFormat::Qcow2 },
        _ if text.ends_with("paths.toml") => DeviceSpec::Paths { path },
        _ => return None,
    })
}

/// Splits `kind:rest` where something like a kind stands before the first colon: a word without a slash or a
/// dot, which a path with a colon in it nearly always has.
fn split_kind(text: &str) -> Option<(&str, &str)> {
    let (kind, rest) = text.split_once(':')?;
    let word = kind.starts_with(|c: char| c.is_ascii_alphabetic())
        && kind.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'+'));
    word.then_some((kind, rest))
}

fn size(kind: &'static str, text: &str) -> Result<NonZeroU64, SpecError> {
    let size = parse_size(text).map_err(|source| SpecError::Size { kind, source })?;
    NonZeroU64::new(size).ok_or(SpecError::Zero { kind })
}

fn path(kind: &'static str, text: &str) -> Result<PathBuf, SpecError> {
    if text.is_empty() { Err(SpecError::EmptyPath { kind }) } else { Ok(PathBuf::from(text)) }
}

impl FromStr for DeviceSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        Self::parse(text)
    }
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ram { size } => write!(f, "ram:{}", ExactSize(*size)),
            Self::Null { size } => write!(f, "null:{}", ExactSize(*size)),
            Self::File { path, format, cache } => {
                // Short where a bare path means the same.
                let short =
                    !path.as_os_str().is_empty() && path.to_str().is_some_and(|text| is_bare(text, self));
                let kind = match format {
                    FileFormat::Raw => "raw:",
                    FileFormat::Unsaid if short => "",
                    FileFormat::Unsaid => "file:",
                };
                let mode = match cache {
                    FileCache::None => "?cache=none",
                    // Said only where the path itself seems to say something.
                    FileCache::WriteBack if path.to_string_lossy().contains(CACHE_KEY) => "?cache=writeback",
                    FileCache::WriteBack => "",
                };
                write!(f, "{kind}{}{mode}", path.display())
            }
            Self::Vhdx { path } | Self::Image { path, .. } | Self::Paths { path }
                if path.to_str().is_some_and(|text| is_bare(text, self)) =>
            {
                write!(f, "{}", path.display())
            }
            Self::Vhdx { path } => write!(f, "vhdx:{}", path.display()),
            Self::Image { path, format } => write!(f, "{}:{}", format.kind(), path.display()),
            Self::VhdxOn { inner } => {
                let text = inner.to_string();
                let kind = match &**inner {
                    _ if split_kind(&text).is_some_and(|(kind, _)| is_kind(kind)) => "",
                    Self::Vhdx { .. } => "vhdx:",
                    Self::Paths { .. } => "paths:",
                    Self::Image { format: ImageFormat::Vhd, .. } => "vhd:",
                    Self::Image { format: ImageFormat::Qcow2, .. } => "qcow2:",
                    _ => "file:",
                };
                write!(f, "vhdx:{kind}{text}")
            }
            Self::Paths { path } => write!(f, "paths:{}", path.display()),
            Self::Iscsi { url } => write!(f, "{url}"),
            Self::Rbd { name } => write!(f, "{name}"),
            Self::Point { name } => write!(f, "{name}"),
            Self::Nbd { uri } => write!(f, "{uri}"),
            Self::Delay { time, inner } => write!(f, "delay:{}:{inner}", ExactDuration(*time)),
            Self::Rate { bytes_per_second, inner } => {
                write!(f, "rate:{}:{inner}", ExactRate(*bytes_per_second))
            }
            Self::Fault { spec, inner } => write!(f, "fault:{spec}:{inner}"),
            Self::ReadOnly { inner } => write!(f, "readonly:{inner}"),
            Self::Stats { inner } => write!(f, "stats:{inner}"),
        }
    }
}

#[cfg(test)]
mod tests;
