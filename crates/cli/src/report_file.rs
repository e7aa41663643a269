//! A file that a command writes results to: what may be replaced, and how.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use lunway_block::small_file;
use lunway_block::spec::{DeviceSpec, ImageFormat};
use lunway_image::{Format, Image};
use lunway_occupancy::{is_same_file, share_bytes};
use lunway_report::{FILE_MAX, Saved};
use lunway_vhdx::format::Guid;
use lunway_vhdx::{Chain, VhdxOpenOptions};
use lunway_vhdx_device::random_guids;

use crate::failure::Failure;
use crate::replaceable::open_replaceable;

/// The mode of a new report before the user's umask: what `open(2)` gives other programs' files.
const MODE: u32 = 0o666;

/// A file that a command writes results to.
///
/// **Invariant**: without the user's `--force`, writing it destroys nothing but an older report of ours. With or
/// without, written is never a device that the command works on, nor what that lies on, nor what the conversion of a
/// disk would not replace: a file in use, one whose mode allows no writes, a parent of other disks.
/// [`check`](Self::check) comes before anything is measured, [`write`](Self::write) after; the file is replaced whole,
/// so that a full file system or a kill leaves the older one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReportFile<'a> {
    path: &'a Path,
    force: bool,
}

/// Existing object at the place of a report.
enum Existing {
    Nothing,
    /// A regular file that may be replaced, locked.
    Replaceable(File),
    /// A terminal, a pipe, /dev/null, a block device: written through. The lock of a block device.
    Stream(Option<File>),
}

impl<'a> ReportFile<'a> {
    pub(crate) fn new(path: &'a Path, force: bool) -> Self {
        Self { path, force }
    }

    /// Refuses a file that must not be replaced or cannot be written. `devices` are those that the command works on.
    pub(crate) fn check(&self, devices: &[&DeviceSpec]) -> Result<(), Failure> {
        let name = self.path.display();
        if names_device(self.path) {
            return Err(Failure::Usage(format!(
                "the results cannot go to {name}: it names a device; ./{name} is a file of that name"
            )));
        }
        for device in devices {
            let (Some(own), all) = (file_of(device), files_of(device)) else { continue };
            let is_it = |file: &PathBuf| is_same_file(self.path, file) || share_bytes(self.path, file);
            if let Some(file) = all.iter().find(|file| is_it(file)) {
                let of =
                    if file == own { String::new() } else { format!(", which {} lies on", own.display()) };
                return Err(Failure::Usage(format!(
                    "the results cannot go to {name}: it is the device {}{of}",
                    file.display()
                )));
            }
        }
        let existing = self.existing()?;
        if matches!(existing, Existing::Stream(_)) {
            return Ok(());
        }
        let folder = self.folder()?;
        if !folder.is_dir() {
            let folder = folder.display();
            return Err(Failure::failed(anyhow!("cannot write {name}: there is no directory {folder}")));
        }
        // A file that comes and goes: permission bits alone do not tell of a read-only file system.
        let writable = match existing {
            Existing::Replaceable(_) if tempfile::tempfile_in(&folder).is_err() => {
                File::options().append(true).open(self.path).map(drop)
            }
            _ => tempfile::tempfile_in(&folder).map(drop),
        };
        writable.with_context(|| format!("cannot write {name}")).map_err(Failure::Failed)
    }

    /// Writes the file whole, or leaves what was there.
    pub(crate) fn write(&self, text: &str) -> Result<(), Failure> {
        let written = match self.existing()? {
            Existing::Stream(_locked) => self.write_through(text),
            Existing::Replaceable(_locked) => self.replace(text),
            Existing::Nothing => self.replace(text),
        };
        written.with_context(|| format!("cannot write {}", self.path.display())).map_err(Failure::Failed)
    }

    /// Opens the file to be written bit by bit, as a stream of results is.
    pub(crate) fn create(&self) -> Result<File, Failure> {
        let file = match self.existing()? {
            // Stays locked: another command would shorten it.
            Existing::Replaceable(file) => file.set_len(0).map(|()| file),
            Existing::Nothing | Existing::Stream(_) => File::create(self.path),
        };
        file.with_context(|| format!("cannot write {}", self.path.display())).map_err(Failure::Failed)
    }

    fn existing(&self) -> Result<Existing, Failure> {
        let name = self.path.display();
        let metadata = match fs::metadata(self.path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Existing::Nothing),
            Err(error) => {
                return Err(Failure::Failed(anyhow!(error).context(format!("cannot write {name}"))));
            }
        };
        if metadata.is_dir() {
            return Err(Failure::failed(anyhow!("cannot write {name}: it is a directory")));
        }
        if metadata.file_type().is_block_device() {
            return match self.force {
                true => Ok(Existing::Stream(Some(self.locked()?))),
                false => Err(refusal(&format!("{name} is a block device, not a file for results"))),
            };
        }
        if !metadata.is_file() {
            return Ok(Existing::Stream(None));
        }
        if self.force || metadata.len() == 0 || is_report(self.path) {
            return Ok(Existing::Replaceable(self.locked()?));
        }
        Err(refusal(&format!("{name} exists and is not a lunway report")))
    }

    fn locked(&self) -> Result<File, Failure> {
        let file = open_replaceable(self.path);
        file.with_context(|| format!("cannot write {}", self.path.display())).map_err(Failure::Failed)
    }

    /// The folder of the file itself, behind symbolic links.
    fn folder(&self) -> Result<PathBuf, Failure> {
        let path = self.resolved();
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        Ok(folder.unwrap_or(Path::new(".")).to_owned())
    }

    fn resolved(&self) -> PathBuf {
        // A link to nothing resolves to where it points; `canonicalize` knows only what exists.
        match fs::canonicalize(self.path) {
            Ok(path) => path,
            Err(_) => match fs::read_link(self.path) {
                Ok(link) => self.path.parent().map_or_else(|| link.clone(), |folder| folder.join(&link)),
                Err(_) => self.path.to_owned(),
            },
        }
    }

    fn replace(&self, text: &str) -> io::Result<()> {
        let path = self.resolved();
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let permissions = fs::metadata(&path)
            .map_or_else(|_| fs::Permissions::from_mode(MODE), |metadata| metadata.permissions());
        let new = tempfile::Builder::new()
            .prefix(".lunway-")
            .permissions(permissions)
            .tempfile_in(folder.unwrap_or(Path::new(".")));
        let mut new = match new {
            Ok(new) => new,
            // The folder takes no new file, and the file itself may be ours to write.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && path.exists() => {
                return self.write_through(text);
            }
            Err(error) => return Err(error),
        };
        new.write_all(text.as_bytes())?;
        new.persist(&path).map_err(|error| error.error)?;
        Ok(())
    }

    fn write_through(&self, text: &str) -> io::Result<()> {
        File::options().write(true).truncate(true).open(self.path)?.write_all(text.as_bytes())
    }
}

fn refusal(what: &str) -> Failure {
    Failure::failed(anyhow!("{what}; name another file, or use --force to replace it"))
}

/// Returns `true` if the file holds results that lunway wrote: a page, a document, or a stream of lines.
fn is_report(path: &Path) -> bool {
    small_file::read_text(path, FILE_MAX).is_ok_and(|text| Saved::is_ours(&text))
}

/// The file or block device that a device is made of, whatever is around it.
pub(crate) fn file_of(device: &DeviceSpec) -> Option<&Path> {
    match device.leaf() {
        DeviceSpec::File { path, .. }
        | DeviceSpec::Vhdx { path }
        | DeviceSpec::Image { path, .. }
        | DeviceSpec::Paths { path } => Some(path),
        _ => None,
    }
}

/// Returns `true` if the name is that of a device by its form, as `ram:64M` and `raw:x`, and so is hardly meant as a
/// file's.
fn names_device(path: &Path) -> bool {
    let named = path.to_str().and_then(|text| DeviceSpec::parse(text).ok());
    named.is_some_and(|device| file_of(&device) != Some(path))
}

/// The files that a device is made of, with all parents; without them where they cannot be opened, as the device itself
/// cannot be then.
fn files_of(device: &DeviceSpec) -> Vec<PathBuf> {
    let chain = match device.leaf() {
        DeviceSpec::Vhdx { path } => vhdx_chain(path),
        DeviceSpec::Image { path, format } => {
            let format = match format {
                ImageFormat::Vhd => Format::Vhd,
                ImageFormat::Qcow2 => Format::Qcow2,
            };
            Image::open_files(path, format).ok().map(|image| image.paths().to_vec())
        }
        _ => None,
    };
    let parents = chain.into_iter().flatten().skip(1);
    file_of(device).map(Path::to_owned).into_iter().chain(parents).collect()
}

/// The files of a VHDX chain, the disk first.
fn vhdx_chain(path: &Path) -> Option<Vec<PathBuf>> {
    let folder = path.canonicalize().ok()?.parent()?.to_owned();
    let guids = || random_guids().unwrap_or_else(|_| Box::new(|| Guid::ZERO));
    let chain = Chain::open_files(path, &folder, &VhdxOpenOptions::read_only(), guids);
    chain.ok().map(|chain| chain.paths().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(path: &Path) -> ReportFile<'_> {
        ReportFile::new(path, false)
    }

    #[test]
    fn what_is_no_report_is_replaced_only_by_force() {
        let folder = tempfile::tempdir().unwrap();
        let disk = folder.path().join("disk.img");
        fs::write(&disk, [7; 4096]).unwrap();
        let refused = format!("{:?}", report(&disk).check(&[]).unwrap_err());
        assert!(refused.contains("disk.img exists and is not a lunway report"), "{refused}");
        assert!(report(&disk).write("{}").is_err(), "also where it came into being meanwhile");
        assert_eq!(fs::read(&disk).unwrap(), [7; 4096]);
        ReportFile::new(&disk, true).check(&[]).unwrap();
        ReportFile::new(&disk, true).write("{}").unwrap();
        assert_eq!(fs::read_to_string(&disk).unwrap(), "{}");
    }

    #[test]
    fn an_older_report_and_an_empty_file_are_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        for old in ["", "{\"lunway\":{\"schema\":1}}", "{\"lunway\":{\"schema\":1}}\n{\"second\":1}\n"] {
            fs::write(&path, old).unwrap();
            report(&path).check(&[]).unwrap();
            report(&path).write("new").unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), "new", "{old}");
        }
        for foreign in ["{}", "[1]", "<html></html>", "text", "{\"measures\":[]}", "{\"experiment\":\"x\"}"] {
            fs::write(&path, foreign).unwrap();
            assert!(report(&path).check(&[]).is_err(), "{foreign}");
        }
    }

    #[test]
    fn the_device_that_is_measured_is_never_written_even_by_force_or_through_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let (disk, link) = (folder.path().join("empty.img"), folder.path().join("link"));
        fs::write(&disk, "").unwrap();
        std::os::unix::fs::symlink(&disk, &link).unwrap();
        let device = DeviceSpec::parse(&format!("delay:1ms:{}", disk.display())).unwrap();
        for path in [&disk, &link] {
            let refused = ReportFile::new(path, true).check(&[&device]);
            assert!(matches!(&refused, Err(Failure::Usage(text)) if text.contains("it is the device")));
        }
        let missing = DeviceSpec::parse(&format!("{}", folder.path().join("new.img").display())).unwrap();
        assert!(report(&folder.path().join("new.img")).check(&[&missing]).is_err());
    }

    #[test]
    fn a_link_to_a_report_stays_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("a.json"), folder.path().join("latest"));
        std::os::unix::fs::symlink("a.json", &link).unwrap();
        for text in ["{\"lunway\":{\"schema\":1}}", "{\"lunway\":{\"schema\":1},\"x\":2}"] {
            report(&link).check(&[]).unwrap();
            report(&link).write(text).unwrap();
            assert_eq!(fs::read_to_string(&file).unwrap(), text);
            assert!(link.is_symlink());
        }
    }

    #[test]
    fn streams_are_written_through_and_what_cannot_be_written_is_said_before() {
        report(Path::new("/dev/null")).check(&[]).unwrap();
        report(Path::new("/dev/null")).write("text").unwrap();
        let full = format!("{:?}", report(Path::new("/dev/full")).write("text").unwrap_err());
        assert!(full.contains("cannot write /dev/full"), "{full}");
        let folder = tempfile::tempdir().unwrap();
        for (path, sentence) in
            [(folder.path().to_owned(), "it is a directory"), (folder.path().join("no/a"), "no directory")]
        {
            let refused = format!("{:?}", report(&path).check(&[]).unwrap_err());
            assert!(refused.contains(sentence), "{refused}");
        }
        assert!(
            report(Path::new("/proc/report.json")).check(&[]).is_err(),
            "a file system without new files"
        );
    }
}
