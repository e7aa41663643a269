//! A disk with its parents.

use std::fs::File;
use std::io;
use std::path::{Component, Path, PathBuf};

use lunway_vhdx::{Locator, Storage, format::Guid, open_as_parent};

use crate::error::ImageOpenError;
use crate::layer::{Layer, Raw};
use crate::layer_info::{LayerInfo, LayerSource};
use crate::qcow2::{BackingFormat, Qcow2};
use crate::vhd::Vhd;

/// Maximum number of files in a chain, as of VHDX.
const DEPTH_MAX: usize = 256;

/// A format that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Virtual Hard Disk Image Format Specification 1.0: fixed, dynamic, differencing.
    Vhd,
    /// QEMU's, versions 2 and 3.
    Qcow2,
}

impl Format {
    /// Its name, for people and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vhd => "vhd",
            Self::Qcow2 => "qcow2",
        }
    }
}

/// A disk and its parents, the disk first. Reads only, from any thread.
pub struct Image<S> {
    layers: Vec<Layer<S>>,
    paths: Vec<PathBuf>,
    size: u64,
}

/// A piece of the extent map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapSegment {
    /// Offset on the disk, bytes.
    pub offset: u64,
    /// Length, bytes.
    pub len: u64,
    /// Source of its bytes.
    pub source: LayerSource,
    /// Index of the file of the chain that decides it, 0 being the first.
    pub level: usize,
}

/// Parent, as a file states it.
enum Parent {
    None,
    Vhd { id: Guid, locator: Locator },
    Backing { name: String, format: BackingFormat },
}

impl Image<File> {
    /// Opens and locks a file, for reading, and its parents, which are looked for in the folder of the first and below.
    ///
    /// A file, and any parent, that another program may be writing to is refused: QEMU keeps tables of a qcow2 file in
    /// memory until it flushes, so that data of long ago would be missing, tables of a VHD file are read once and would
    /// not show the blocks that it adds, and a child would show the changes of its parent. No program begins to write
    /// to it while it is open.
    ///
    /// # Errors
    ///
    /// [`ImageOpenError`], which says what is wrong.
    pub fn open_files(path: &Path, format: Format) -> Result<Self, ImageOpenError> {
        let canonical =
            |path: &Path| path.canonicalize().map_err(ImageOpenError::read("looking for the file"));
        let mut path = canonical(path)?;
        let root = path.parent().unwrap_or(Path::new("/")).to_owned();
        let (mut layers, mut paths) = (Vec::new(), Vec::new());
        let mut next = match format {
            Format::Vhd => BackingFormat::Vhd,
            Format::Qcow2 => BackingFormat::Qcow2,
        };
        let mut expected = None;
        loop {
            let file = open_as_parent(&path).map_err(|error| ImageOpenError::of_writer(&path, error))?;
            let (layer, parent) = open_layer(file, next)?;
            if let (Some(expected), Some(found)) = (expected.take(), layer.info().id)
                && expected != found
            {
                return Err(ImageOpenError::OtherParent {
                    path: path.display().to_string(),
                    expected,
                    found,
                });
            }
            layers.push(layer);
            paths.push(path.clone());
            let folder = path.parent().unwrap_or(Path::new("/"));
            path = match parent {
                Parent::None => break,
                Parent::Vhd { id, locator } => {
                    (next, expected) = (BackingFormat::Vhd, Some(id));
                    locator.find(folder, &root).map_err(|error| match error {
                        lunway_vhdx::VhdxOpenError::NoParent(names) => ImageOpenError::NoParent(names),
                        other => other.into(),
                    })?
                }
                Parent::Backing { name, format } => {
                    next = format;
                    found(&backing_path(&name, folder, &root)?, &root)?
                }
            };
            if paths.contains(&path) {
                return Err(ImageOpenError::Chain(format!("leads back to {}", path.display())));
            }
            if paths.len() >= DEPTH_MAX {
                return Err(ImageOpenError::Chain(format!("has more than {DEPTH_MAX} files")));
            }
        }
        Ok(Self { paths, ..Self::of(layers)? })
    }
}

/// Returns the path of a backing file. It is untrusted: it must not leave `root`, neither by its name nor through a
/// link.
fn backing_path(name: &str, folder: &Path, root: &Path) -> Result<PathBuf, ImageOpenError> {
    let refused = |why: &str| ImageOpenError::ParentRefused { name: name.to_owned(), why: why.to_owned() };
    // QEMU reads `nbd:…`, `json:{…}`, `https://…` as something else than a file.
    if name.split_once(':').is_some_and(|(word, _)| !word.contains('/')) {
        return Err(refused("only files are opened, and no other addresses"));
    }
    let path = folder.join(name);
    let outside =
        "it is not in the folder of the first file or below; `qemu-img rebase -u` names another place";
    let parts = path.components().filter(|part| matches!(part, Component::ParentDir));
    match parts.count() {
        0 if path.starts_with(root) => Ok(path),
        0 => Err(refused(outside)),
        // `..` is followed by the file system, and where it leads is looked at.
        _ if path.canonicalize().is_ok_and(|path| !path.starts_with(root)) => Err(refused(outside)),
        _ => Ok(path),
    }
}

fn found(path: &Path, root: &Path) -> Result<PathBuf, ImageOpenError> {
    // Where a symbolic link leads out of the root, nothing is found: who sent the file may have sent the link.
    let found = path.canonicalize().ok().filter(|found| found.starts_with(root) && found.is_file());
    found.ok_or_else(|| ImageOpenError::NoParent(path.display().to_string()))
}

fn open_layer<S: Storage>(storage: S, format: BackingFormat) -> Result<(Layer<S>, Parent), ImageOpenError> {
    Ok(match format {
        BackingFormat::Vhd => {
            let vhd = Vhd::open(storage)?;
            let parent = match vhd.parent() {
                Some((id, locator)) => Parent::Vhd { id, locator: locator.clone() },
                None => Parent::None,
            };
            (Layer::Vhd(Box::new(vhd)), parent)
        }
        BackingFormat::Qcow2 => {
            let qcow2 = Qcow2::open(storage)?;
            let parent = match qcow2.backing() {
                Some((name, format)) => Parent::Backing { name: name.to_owned(), format },
                None => Parent::None,
            };
            (Layer::Qcow2(qcow2), parent)
        }
        BackingFormat::Raw => {
            let len = storage.len().map_err(ImageOpenError::read("asking for the file's length"))?;
            (Layer::Raw(Raw { storage, len }), Parent::None)
        }
    })
}

impl<S: Storage> Image<S> {
    /// An image without a parent, or whose parent is left out: what only that has reads as zeroes.
    ///
    /// # Errors
    ///
    /// As of [`open_files`](Image::open_files).
    pub fn open_alone(storage: S, format: Format) -> Result<Self, ImageOpenError> {
        let format = match format {
            Format::Vhd => BackingFormat::Vhd,
            Format::Qcow2 => BackingFormat::Qcow2,
        };
        Self::of(vec![open_layer(storage, format)?.0])
    }

    fn of(layers: Vec<Layer<S>>) -> Result<Self, ImageOpenError> {
        let size = layers.first().map_or(0, |layer| layer.info().size);
        if size == 0 || !size.is_multiple_of(512) {
            let why =
                format!("a disk of {size} bytes, which are not whole sectors of 512 bytes, is not read here");
            return Err(ImageOpenError::Unsupported(why));
        }
        Ok(Self { layers, paths: Vec::new(), size })
    }

    /// Bytes of the disk.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The files, the disk first; empty where they were not opened by name.
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// The files, the disk first.
    pub fn layers(&self) -> impl Iterator<Item = LayerInfo> + '_ {
        self.layers.iter().map(Layer::info)
    }

    /// Fills `buf` from `offset`.
    ///
    /// # Errors
    ///
    /// Of the storage; [`InvalidData`](io::ErrorKind::InvalidData) where a table says nonsense about the range.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < buf.len() {
            let segment = self.locate(offset + done as u64, (buf.len() - done) as u64)?;
            let piece = &mut buf[done..done + segment.len as usize];
            self.layers[segment.level].read(segment.source, piece)?;
            done += segment.len as usize;
        }
        Ok(())
    }

    /// Gives the segments behind a range, in order, without gaps.
    ///
    /// # Errors
    ///
    /// As of [`read_at`](Self::read_at).
    pub fn map(&self, offset: u64, len: u64, mut each: impl FnMut(MapSegment)) -> io::Result<()> {
        let mut last: Option<MapSegment> = None;
        let mut at = offset;
        while at < offset + len {
            let segment = self.locate(at, offset + len - at)?;
            at += segment.len;
            match &mut last {
                Some(last) if joins(last, &segment) => last.len += segment.len,
                _ => {
                    if let Some(done) = last.replace(segment) {
                        each(done);
                    }
                }
            }
        }
        last.into_iter().for_each(each);
        Ok(())
    }

    /// Returns the segment behind the first bytes of a range, through all files.
    fn locate(&self, offset: u64, len: u64) -> io::Result<MapSegment> {
        let last = self.layers.len() - 1;
        let mut len = len;
        for (level, layer) in self.layers.iter().enumerate() {
            // A parent may be smaller than its child: behind its end there is nothing.
            let there = layer.info().size.saturating_sub(offset).min(len);
            if there == 0 {
                return Ok(MapSegment { offset, len, source: LayerSource::Absent, level });
            }
            let (found, source) = layer.locate(offset, there)?;
            len = found;
            if source != LayerSource::Absent || level == last {
                return Ok(MapSegment { offset, len, source, level });
            }
        }
        Ok(MapSegment { offset, len, source: LayerSource::Absent, level: last })
    }
}

fn joins(last: &MapSegment, next: &MapSegment) -> bool {
    last.level == next.level
        && match (last.source, next.source) {
            (LayerSource::File(before), LayerSource::File(after)) => before + last.len == after,
            (LayerSource::Compressed(_), LayerSource::Compressed(_)) => false,
            (before, after) => before == after,
        }
}
