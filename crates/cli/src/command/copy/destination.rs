//! Destination of a copy: a device, an existing file, or a new one that has another name until it is complete.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use lunway_block::BlockDevice;
use lunway_block::spec::{DeviceSpec, FileFormat, ImageFormat};
use lunway_copy::Before;
use lunway_device::{OpenOptions, Opened, create_file, open_new_vhd};
use lunway_image::vhd::Writer;
use lunway_occupancy::{FileId, lock_holder};
use lunway_vhdx_device::VhdxDevice;

use super::unfinished::{REMOVE, is_unbegun, leftover, partial, remove_unfinished};
use super::{Copy, exactly};
use crate::device;
use crate::failure::Failure;
use crate::new_file::{PrivateFiles, of_source};
use crate::overwritten::Overwritten;
use crate::report_file::file_of;

/// Destination of a copy.
pub(in crate::command) struct Destination {
    /// The device that is opened.
    spec: DeviceSpec,
    pub(in crate::command) before: Before,
    /// The file's name once it is complete, where it has another one until then.
    pub(in crate::command) complete: Option<PathBuf>,
    /// The unfinished file.
    file: Option<FileId>,
    /// The file was made just now, and has no data yet.
    made: bool,
    /// The existing file that is written over in place.
    pub(in crate::command) overwritten: Option<Overwritten>,
}

impl Destination {
    /// A file that was made for it goes again where it cannot be opened.
    pub(in crate::command) async fn open(&self, options: &OpenOptions) -> Result<Opened, Failure> {
        let opened = match &self.spec {
            // The grammar's is only read; this one is new.
            DeviceSpec::Image { path, .. } if self.complete.is_some() => {
                open_new_vhd(path).await.map_err(Failure::failed)
            }
            spec => device::open(spec, options).await,
        };
        if opened.is_err() {
            self.give_up();
        }
        match (opened, self.is_exchanged()) {
            (Ok(opened), Some(unfinished)) => {
                opened.close_or_log().await;
                Err(Failure::failed(anyhow!(
                    "{} was exchanged while it was opened, and nothing was written to it: choose a folder that only you \
                     may write to",
                    unfinished.display()
                )))
            }
            (opened, _) => opened,
        }
    }

    /// The unfinished file, if its name leads to another one by now.
    fn is_exchanged(&self) -> Option<PathBuf> {
        if let Some(overwritten) = &self.overwritten {
            return overwritten.is_exchanged();
        }
        let unfinished = partial(self.complete.as_ref()?);
        let now = fs::symlink_metadata(&unfinished).ok().map(|file| FileId::of(&file));
        (now != self.file).then_some(unfinished)
    }

    /// Removes a file that was made for the copy, to which nothing was written.
    pub(super) fn give_up(&self) {
        if let (Some(complete), true) = (&self.complete, self.made) {
            let unfinished = partial(complete);
            if let Err(error) = remove_unfinished(&unfinished) {
                eprintln!("lunway: {} is left, and empty: {error:#}", unfinished.display());
            }
        }
    }

    /// An existing file gives up its name until it is whole: from here on it is changed.
    pub(in crate::command) fn begin(&self) -> anyhow::Result<()> {
        self.overwritten.as_ref().map_or(Ok(()), Overwritten::set_aside)
    }

    /// The file has what it was to have, or nothing was changed in it: it has its name again.
    pub(in crate::command) fn end(&self, changed: bool) -> Result<(), Failure> {
        self.overwritten.as_ref().map_or(Ok(()), |file| file.give_back(changed)).map_err(Failure::Failed)
    }

    /// Returns `true` if a destination that was there before is what it was, if this command has not `changed` it.
    pub(in crate::command) fn is_untouched(&self, changed: bool) -> bool {
        let is_left = self.overwritten.as_ref().is_some_and(Overwritten::is_left);
        self.complete.is_none() && !changed && !is_left
    }

    /// Name of what is incomplete while it is written, for a sentence; `otherwise`: a device, which has no other name.
    pub(in crate::command) fn incomplete(&self, otherwise: &str) -> String {
        match (&self.complete, &self.overwritten) {
            (Some(complete), _) => partial(complete).display().to_string(),
            (None, Some(file)) if file.is_aside() => file.unfinished().display().to_string(),
            _ => otherwise.to_owned(),
        }
    }

    /// Format of a new file whose name has no ending, as a further line; empty for all others.
    pub(in crate::command) fn kind_of_new(&self) -> String {
        match (&self.spec, &self.complete) {
            (DeviceSpec::File { .. }, Some(complete)) if complete.extension().is_none() => format!(
                "\n{} is a raw image, since its name says nothing else: *.vhdx or vhdx:FILE makes a VHDX file",
                complete.display()
            ),
            _ => String::new(),
        }
    }
}

impl Copy {
    /// Decides what is written: a file that is not there yet has another name until it is complete.
    pub(in crate::command) fn destination(
        &self,
        spec: &DeviceSpec,
        size: u64,
        sector: u32,
    ) -> Result<Destination, Failure> {
        let before = if self.how.resume { Before::Unfinished } else { Before::Unknown };
        let overwritten = Overwritten::of(spec).map_err(Failure::Failed)?;
        let there =
            Destination { spec: spec.clone(), before, complete: None, file: None, made: false, overwritten };
        if self.parent.is_some() && !matches!(spec, DeviceSpec::Vhdx { .. }) {
            return Err(Failure::failed(anyhow!("differencing disks are made as VHDX: name {spec} *.avhdx")));
        }
        if let Some(own) = Overwritten::left(spec) {
            return self.overwrite_again(there, own);
        }
        let missing = match &self.replaced {
            Some(replaced) => may_be_made(spec, replaced.path()).map(|()| Some(replaced.path()))?,
            None => missing_file(spec)?,
        };
        let layout = self.layout.first_option();
        let Some(path) = missing else {
            return match self.parent.as_ref().map(|_| "--parent").or(layout) {
                Some(option) => Err(Failure::Usage(format!(
                    "{option} describes a new file, and {spec} is written in place: leave {option} out, or name another file"
                ))),
                None => Ok(there),
            };
        };
        if let (DeviceSpec::File { .. }, Some(option)) = (spec, layout) {
            return Err(Failure::Usage(format!(
                "{option} describes a VHDX or VHD file, and {spec} is raw by its name: name it *.vhdx or *.vhd, or leave \
                 {option} out"
            )));
        }
        if path.as_os_str().as_encoded_bytes().ends_with(b"/") {
            return Err(Failure::failed(anyhow!(
                "{} does not exist: create the directory and name a file in it, such as {}disk.img",
                path.display(),
                path.display()
            )));
        }
        let unfinished = partial(path);
        let spec = with_path(spec, unfinished.clone());
        let name = unfinished.display();
        let left = leftover(&unfinished, self.replaced.as_ref(), REMOVE)?;
        let before = match left {
            Some(_) if self.how.resume && is_unbegun(&spec, &unfinished)? => {
                eprintln!("lunway: {name} was interrupted before anything was copied: starting again");
                remove_unfinished(&unfinished)?;
                Before::Blank
            }
            Some(ref left) if self.how.resume => match disk_size(&spec, left.len)? {
                there if there == size => {
                    self.layout.agrees_with(&spec, self.parent.is_some())?;
                    Before::Unfinished
                }
                there => {
                    return Err(Failure::failed(anyhow!(
                        "{name} is {} and the source {}, so it belongs to another copy; --overwrite starts again",
                        exactly(there),
                        exactly(size)
                    )));
                }
            },
            Some(_) if !self.how.overwrite => {
                let writer = fs::File::open(&unfinished).ok().and_then(|file| lock_holder(&file));
                return Err(Failure::failed(match writer {
                    Some(writer) => {
                        anyhow!("{name} is being written by {writer}: wait until that copy has ended")
                    }
                    None => anyhow!(
                        "{name} is left from an interrupted copy: --resume continues it, --overwrite starts again"
                    ),
                }));
            }
            Some(_) => {
                remove_unfinished(&unfinished)?;
                Before::Blank
            }
            None => Before::Blank,
        };
        let mut before = before;
        let made = before == Before::Blank;
        let file = match left {
            Some(left) if !made => left.id,
            _ => {
                // No other user may open it before its mode is known.
                let private = PrivateFiles::begin();
                self.make(&spec, size, sector)?;
                let usual = private.end();
                if self.parent.is_some() {
                    // It shows the parent's data: what differs from them is written.
                    before = Before::Unfinished;
                }
                match &self.replaced {
                    Some(replaced) => replaced.lend_permissions(&unfinished)?,
                    None => of_source(self.source_mode(), usual, &unfinished)?,
                }
                let made = leftover(&unfinished, self.replaced.as_ref(), REMOVE)?;
                made.with_context(|| format!("{} is gone", unfinished.display()))?.id
            }
        };
        let complete = Some(path.to_owned());
        Ok(Destination { spec, before, complete, file: Some(file), made, overwritten: None })
    }

    /// The destination is a file that a copy to it has left under another name: it stands for the name `own`.
    fn overwrite_again(&self, there: Destination, own: PathBuf) -> Result<Destination, Failure> {
        let unfinished = Overwritten::unfinished_of(&own);
        let (shown, spec) = (unfinished.display(), &there.spec);
        if !matches!(spec, DeviceSpec::File { .. } | DeviceSpec::Vhdx { .. }) {
            return Err(Failure::failed(anyhow!(
                "{shown} is left from an interrupted copy to {}: name that without what is around it, or rename the file",
                own.display()
            )));
        }
        let advice = format!("rename it to {} if it is yours, or remove it", own.display());
        let Some(left) = leftover(&unfinished, None, &advice)? else {
            return Err(Failure::failed(anyhow!("{shown} is gone")));
        };
        if self.layout.first_option().is_some() || self.parent.is_some() {
            return Err(Failure::Usage(format!("{shown} is left from an interrupted copy: {advice}")));
        }
        eprintln!("lunway: {} is called {shown} since a copy to it was interrupted", own.display());
        let spec = with_path(spec, unfinished.clone());
        Ok(Destination { spec, overwritten: Some(Overwritten::go_on(own, left.id)), ..there })
    }

    /// Makes the file of a copy, empty.
    fn make(&self, spec: &DeviceSpec, size: u64, sector: u32) -> Result<(), Failure> {
        match (spec, &self.parent) {
            (DeviceSpec::Vhdx { path }, Some(parent)) => {
                drop(self.layout.make_child(path, parent, Some(size))?);
            }
            (DeviceSpec::Vhdx { path }, None) => drop(self.layout.make(path, size, sector)?),
            (DeviceSpec::Image { path, .. }, _) => drop(self.layout.make_vhd(path, size, sector)?),
            (DeviceSpec::File { path, .. }, _) => create_file(path, size).map_err(Failure::failed)?,
            _ => {}
        }
        Ok(())
    }
}

/// The path of a file, raw, VHDX or VHD, that does not exist.
fn missing_file(spec: &DeviceSpec) -> Result<Option<&Path>, Failure> {
    let missing = |path: &Path| !path.try_exists().unwrap_or(true);
    if let Some(path) = file_of(spec)
        && missing(path)
        && path.is_symlink()
    {
        return Err(Failure::failed(anyhow!(
            "{} is a symbolic link to a file that does not exist: name the file itself",
            path.display()
        )));
    }
    if let Some(path) = file_of(spec).filter(|path| missing(path)) {
        let shown = path.display();
        // A device's file is the kernel's to make. A regular file there lies in memory and is gone after a restart.
        if path.starts_with("/dev") && !path.starts_with("/dev/shm") {
            return Err(Failure::failed(anyhow!(
                "{shown} does not exist, and a file in /dev is not a disk: check the name"
            )));
        }
        may_be_made(spec, path)?;
    }
    Ok(file_of(spec).filter(|path| missing(path)).filter(|_| {
        matches!(spec, DeviceSpec::File { .. } | DeviceSpec::Vhdx { .. } | DeviceSpec::Image { .. })
    }))
}

/// Refuses to make a file in a format that this program only reads, or not even that.
fn may_be_made(spec: &DeviceSpec, path: &Path) -> Result<(), Failure> {
    let shown = path.display();
    let extension = path.extension().map(OsStr::to_ascii_lowercase);
    let foreign = extension.filter(|extension| ["vmdk", "vdi"].iter().any(|format| extension == format));
    if foreign.is_some() && !matches!(spec, DeviceSpec::File { format: FileFormat::Raw, .. }) {
        return Err(Failure::failed(anyhow!(
            "files of this format are not made: raw:{shown} makes a raw image of that name, {shown}.vhdx a VHDX"
        )));
    }
    match spec {
        DeviceSpec::Image { format: ImageFormat::Qcow2, .. } => Err(Failure::failed(anyhow!(
            "qcow2 files are only read, not made: raw:{shown} makes a raw image of that name, {shown}.vhdx a VHDX"
        ))),
        _ => Ok(()),
    }
}

/// The same file by another name. A raw one's content is the source's, whatever that is.
fn with_path(spec: &DeviceSpec, path: PathBuf) -> DeviceSpec {
    match spec {
        DeviceSpec::File { cache, .. } => DeviceSpec::File { path, format: FileFormat::Raw, cache: *cache },
        DeviceSpec::Image { format, .. } => DeviceSpec::Image { path, format: *format },
        _ => DeviceSpec::Vhdx { path },
    }
}

/// The size of the disk in a file of `len` bytes.
fn disk_size(spec: &DeviceSpec, len: u64) -> anyhow::Result<u64> {
    Ok(match spec {
        DeviceSpec::Vhdx { path } => VhdxDevice::open(path, true)?.geometry().size,
        DeviceSpec::Image { path, .. } => {
            let writer =
                Writer::open_file(path).with_context(|| format!("cannot open {}", path.display()))?;
            writer.size()
        }
        _ => len,
    })
}
