//! `lunway disk create`, `convert` and `snapshot`.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, anyhow};
use clap::{ArgGroup, Args};
use lunway_block::size::{HumanSize, parse_size};
use lunway_block::spec::{DeviceSpec, FileFormat};
use lunway_image::Format;
use lunway_image::vhd::{Layout, Writer};
use lunway_occupancy::is_same_file;
use lunway_vhdx::{
    CHAIN_FILES_MAX, Chain, CreateOptions, Disk, DiskKind, Locator, VhdxOpenError, VhdxOpenOptions, create,
    open_unlocked, relative_path,
};
use serde_json::json;

use super::named::{Named, vhdx};
use super::parent::open_parent;
use super::replaced::Replaced;
use super::{folder, guids, kind_name};
use crate::command::copy::{Copy, How, refuse_same};
use crate::failure::Failure;
use crate::new_file::{PrivateFiles, as_file, own};
use crate::report_file::file_of;
use crate::{device, progress, sector, terminal};

/// Layout of a new VHDX or VHD file.
#[derive(Clone, Debug, Default, Args)]
pub(in crate::command) struct NewDisk {
    /// Allocate all blocks: the file is as large as the disk, and its space is reserved
    #[arg(long)]
    fixed: bool,
    /// Write zeroes to all blocks of a fixed disk, for file systems that cannot reserve space
    #[arg(long, requires = "fixed")]
    zero: bool,
    /// Block size, 1M to 256M [default: 32M, 2M for fixed and differencing disks and for VHD]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    block_size: Option<u64>,
    /// Logical sector size: 512 or 4096 [default: that of the source or parent, else 512]
    #[arg(long, value_name = "BYTES", value_parser = sector::sector)]
    sector: Option<u32>,
    /// Physical sector size: 512 or 4096 [default: 4096]
    #[arg(long, value_name = "BYTES", value_parser = sector::sector)]
    physical_sector: Option<u32>,
}

/// Create a virtual disk
#[derive(Debug, Args)]
#[command(override_usage = "\
lunway disk create [OPTIONS] --size <SIZE> <FILE>
       lunway disk create [OPTIONS] --parent <FILE> <FILE>
       lunway disk create [OPTIONS] --from <DEVICE> <FILE>", group = ArgGroup::new("what").required(true).multiple(true).args(["size", "parent", "from"]), after_help = "\
Examples:
  lunway disk create server.vhdx --size 100G
  lunway disk create server.vhdx --size 100G --fixed
  # Writes to test.avhdx leave server.vhdx as it is:
  lunway disk create test.avhdx --parent server.vhdx
  lunway disk create copy.vhdx --verify \\
      --from iscsi://192.0.2.10/iqn.2026-11.com.example:disks/0")]
pub(super) struct Create {
    /// The file to create
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Size of the disk
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    size: Option<u64>,
    /// Create a differencing disk on this parent, which must not change from then on
    #[arg(long, value_name = "FILE", conflicts_with_all = ["from", "fixed"])]
    parent: Option<PathBuf>,
    /// Copy the data of this device into it
    #[arg(long, value_name = "DEVICE", conflicts_with = "size")]
    from: Option<String>,
    /// Read both again afterwards, and compare them
    #[arg(long, requires = "from")]
    verify: bool,
    #[command(flatten)]
    layout: NewDisk,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Copy a disk to another format or layout.
///
/// Source and destination are devices: raw files, VHDX files, LUNs; VHD and qcow2 files are read with their parents.
/// The options describe a VHDX or VHD file that is created. Zeroes stay unallocated. A destination file is always
/// created: it is called DST.partial until it is complete, and replaces an existing file only with --overwrite.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway disk convert disk.img disk.vhdx --verify
  lunway disk convert disk.vhdx disk.img
  lunway disk convert vm.qcow2 vm.vhdx --verify    # with its parents
  lunway disk convert disk.vhdx disk.vhd --fixed   # for Azure
  lunway disk convert old.vhdx new.vhdx --block-size 1M --fixed
  # What differs from base.vhdx:
  lunway disk convert disk.img disk.avhdx --parent base.vhdx
  lunway disk convert disk.img disk.vhdx --resume  # after an interrupt")]
pub(super) struct Convert {
    /// The device to read
    #[arg(value_name = "SRC")]
    source: String,
    /// The device to write
    #[arg(value_name = "DST")]
    destination: String,
    /// Create a differencing disk on this parent, with what differs from it
    #[arg(long, value_name = "FILE", conflicts_with = "fixed")]
    parent: Option<PathBuf>,
    #[command(flatten)]
    how: How,
    #[command(flatten)]
    layout: NewDisk,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Freeze a disk: later writes go to a new file.
///
/// The new file has the same contents and takes all writes. The old file must not be changed any more; it holds the
/// state to go back to. `lunway disk merge` ends the snapshot.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway disk snapshot server.vhdx server-1.avhdx
  # Later, to keep what was written since:
  lunway disk merge server-1.avhdx
  # Or to go back:
  rm server-1.avhdx")]
pub(super) struct Snapshot {
    /// The disk that becomes the parent
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The new file, in the same directory or above
    #[arg(value_name = "CHILD")]
    child: PathBuf,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

impl Create {
    pub(super) fn run(self) -> Result<(), Failure> {
        let (path, kind) = &new_file(&self.file)?;
        if let Some(source) = self.from {
            refuse_existing(path)?;
            let destination = kind.named(path);
            let how = How { verify: self.verify, ..How::default() };
            return Copy::to_disk(source, destination, self.layout, None, how, self.json).run();
        }
        if *kind == NewKind::Vhd {
            if self.parent.is_some() {
                return Err(Failure::failed(anyhow!("differencing disks are made as VHDX: name it *.avhdx")));
            }
            let made = self.layout.make_vhd(path, self.size.unwrap_or_default(), 512)?;
            return print_vhd(path, &made, self.json);
        }
        let made = match &self.parent {
            Some(parent) => child_of(&vhdx(parent, "")?, path, &self.layout, self.size)?,
            None => self.layout.make(path, self.size.unwrap_or_default(), 512)?,
        };
        print(path, &made, self.json)
    }
}

impl Convert {
    pub(super) fn run(self) -> Result<(), Failure> {
        let parent = self.parent.map(|parent| vhdx(&parent, "")).transpose()?;
        let (from, to) = (device::parse(&self.source)?, device::parse(&self.destination)?);
        refuse_same(&from, &to)?;
        if let (Some(parent), Some(to)) = (&parent, file_of(&to))
            && is_same_file(parent, to)
        {
            return Err(Failure::Usage(format!(
                "{} is its own parent: name another destination",
                to.display()
            )));
        }
        let replaced = Replaced::of(&to, self.how.overwrite)?;
        let copy = Copy::to_disk(self.source, self.destination, self.layout, parent, self.how, self.json);
        copy.replacing(replaced).run()
    }
}

impl Snapshot {
    pub(super) fn run(self) -> Result<(), Failure> {
        let (child, kind) = new_file(&self.child)?;
        if kind == NewKind::Vhd {
            return Err(Failure::failed(anyhow!("differencing disks are made as VHDX: name it *.avhdx")));
        }
        let made = child_of(&vhdx(&self.file, RAW)?, &child, &NewDisk::default(), None)?;
        print(&child, &made, self.json)
    }
}

/// Makes a child that shows the data of `parent`, and so is for those who may read and write that.
fn child_of(
    parent: &Path,
    path: &Path,
    layout: &NewDisk,
    size: Option<u64>,
) -> anyhow::Result<CreateOptions> {
    let private = PrivateFiles::begin();
    let made = layout.make_child(path, parent, size)?;
    drop(private);
    let lent = File::open(parent).and_then(|parent| as_file(&own(path)?, &parent));
    lent.with_context(|| format!("cannot set the permissions of {}", path.display()))?;
    Ok(made)
}

impl NewDisk {
    /// The first option that was given: of a destination that takes none, it would be ignored.
    pub(in crate::command) fn first_option(&self) -> Option<&'static str> {
        let given = [
            (self.fixed, "--fixed"),
            (self.block_size.is_some(), "--block-size"),
            (self.sector.is_some(), "--sector"),
            (self.physical_sector.is_some(), "--physical-sector"),
        ];
        given.into_iter().find_map(|(given, option)| given.then_some(option))
    }

    /// Refuses to complete an unfinished VHDX or VHD file that was begun with other options than were given now.
    pub(in crate::command) fn agrees_with(
        &self,
        unfinished: &DeviceSpec,
        has_parent: bool,
    ) -> anyhow::Result<()> {
        let differs = |wanted: Option<u64>, begun: u64| wanted.is_some_and(|wanted| wanted != begun);
        let (path, options) = match unfinished {
            DeviceSpec::Vhdx { path } => {
                let file = open_unlocked(path, false)?;
                let disk = Disk::open(file, &VhdxOpenOptions::read_only(), guids()?())?;
                let begun = disk.parameters();
                let sector = |wanted: Option<u32>, begun: u32| wanted.is_some_and(|wanted| wanted != begun);
                let options = vec![
                    (has_parent && begun.kind != DiskKind::Differencing, "--parent"),
                    (self.fixed && begun.kind != DiskKind::Fixed, "--fixed"),
                    (differs(self.block_size, begun.block_size.into()), "--block-size"),
                    (sector(self.sector, begun.logical_sector), "--sector"),
                    (sector(self.physical_sector, begun.physical_sector), "--physical-sector"),
                ];
                (path, options)
            }
            DeviceSpec::Image { path, .. } => {
                let begun = Writer::open_file(path)?.block_size();
                let blocks = begun.is_some_and(|begun| differs(self.block_size, begun));
                (path, vec![(self.fixed && begun.is_some(), "--fixed"), (blocks, "--block-size")])
            }
            _ => return Ok(()),
        };
        match options.into_iter().find(|(is_other, _)| *is_other) {
            Some((_, option)) => Err(anyhow!(
                "{} was begun without this {option}: leave {option} out to complete it as it is, or take --overwrite instead \
                 of --resume to start again",
                path.display()
            )),
            None => Ok(()),
        }
    }

    /// Makes an empty disk of `size` bytes. `sector` is its logical sector where the user says nothing.
    pub(in crate::command) fn make(
        &self,
        path: &Path,
        size: u64,
        sector: u32,
    ) -> anyhow::Result<CreateOptions> {
        let kind = if self.fixed { DiskKind::Fixed } else { DiskKind::Dynamic };
        let mut options = CreateOptions::new(kind, size, guids()?().next());
        options.parameters.logical_sector = sector;
        self.apply(&mut options)?;
        make(path, &options, self.zero)?;
        Ok(options)
    }

    /// The same as VHD. `sector` is that of the source, where there is one.
    pub(in crate::command) fn make_vhd(&self, path: &Path, size: u64, sector: u32) -> anyhow::Result<Layout> {
        if self.sector.unwrap_or(sector) != 512 || self.physical_sector.is_some_and(|sector| sector != 512) {
            return Err(anyhow!(
                "a VHD has sectors of 512 bytes, which a disk with others cannot be copied into"
            ));
        }
        let layout = Layout {
            size,
            fixed: self.fixed,
            block_size: self.block_size,
            id: guids()?().next(),
            now: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
        };
        make_file(path, |file| {
            let writer = Writer::create(file.try_clone()?, &layout)?;
            if self.fixed {
                reserve(file, 0..size, self.zero)?;
                writer.flush()?;
            }
            Ok(())
        })?;
        Ok(layout)
    }

    /// Makes a child of `parent`, of its size unless another one is said.
    pub(in crate::command) fn make_child(
        &self,
        path: &Path,
        parent_path: &Path,
        size: Option<u64>,
    ) -> anyhow::Result<CreateOptions> {
        may_have_child(parent_path)?;
        let parent = open_parent(parent_path)?;
        let parameters = parent.parameters();
        if self.sector.is_some_and(|sector| sector != parameters.logical_sector) {
            return Err(anyhow!(
                "a child has its parent's logical sector, {} bytes",
                parameters.logical_sector
            ));
        }
        let child = CreateOptions::child_of(&parent, &relative_path(path, parent_path)?);
        let mut options = child.with_items_of(&parent)?;
        options.parameters.disk_size = size.unwrap_or(options.parameters.disk_size);
        self.apply(&mut options)?;
        make(path, &options, false)?;
        Ok(options)
    }

    fn apply(&self, options: &mut CreateOptions) -> anyhow::Result<()> {
        let parameters = &mut options.parameters;
        if let Some(size) = self.block_size {
            parameters.block_size =
                u32::try_from(size).map_err(|_| anyhow!("a block of {size} bytes: at most 256M"))?;
        }
        parameters.logical_sector = self.sector.unwrap_or(parameters.logical_sector);
        parameters.physical_sector =
            self.physical_sector.unwrap_or(parameters.physical_sector).max(parameters.logical_sector);
        Ok(())
    }
}

/// Refuses a parent whose chain has as many files as it may.
fn may_have_child(parent: &Path) -> anyhow::Result<()> {
    match Chain::open_files(parent, &folder(parent), &VhdxOpenOptions::read_only(), guids()?) {
        Ok(chain) if chain.disks().len() >= CHAIN_FILES_MAX => Err(anyhow!(
            "the chain of {} has {CHAIN_FILES_MAX} files, as many as it may: merge some of them first, with lunway disk \
             merge",
            parent.display()
        )),
        Err(error @ VhdxOpenError::Chain(_)) => {
            Err(error).with_context(|| format!("cannot open {}", parent.display()))
        }
        // Whatever else there is to say about the parent is said when it is opened by itself.
        _ => Ok(()),
    }
}

fn refuse_existing(path: &Path) -> anyhow::Result<()> {
    match path.symlink_metadata() {
        Ok(_) => Err(anyhow!("{} already exists: choose another name, or remove it", path.display())),
        Err(_) => Ok(()),
    }
}

fn make(path: &Path, options: &CreateOptions, zero: bool) -> anyhow::Result<()> {
    make_file(path, |file| {
        create(file, options, guids()?().as_mut())?;
        if options.parameters.kind != DiskKind::Fixed {
            return Ok(());
        }
        let len = file.metadata()?.len();
        // The blocks are at the end, behind less than what all blocks have.
        let blocks = options.parameters.disk_size.next_multiple_of(options.parameters.block_size.into());
        reserve(file, len - blocks..len, zero)?;
        Ok(file.sync_all()?)
    })
}

/// Makes a file. One that cannot be completed is removed again; one that a kill leaves is no disk yet.
fn make_file(path: &Path, fill: impl FnOnce(&File) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let cannot = || format!("cannot make {}", path.display());
    let file = match File::options().read(true).write(true).create_new(true).open(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => return refuse_existing(path),
        file => file.with_context(cannot)?,
    };
    // So that no other command takes it for what a kill left. File systems without locks: as much as they allow.
    let _ = file.try_lock();
    let made = fill(&file).with_context(cannot);
    if made.is_err() {
        let _ = fs::remove_file(path);
        return made;
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder).and_then(|folder| folder.sync_all()).with_context(cannot)
}

/// Reserves the space of a fixed disk's data in a file that has its length, or writes zeroes there.
fn reserve(file: &File, data: std::ops::Range<u64>, zero: bool) -> anyhow::Result<()> {
    use rustix::fs::{FallocateFlags, fallocate};

    match fallocate(file, FallocateFlags::empty(), 0, data.end) {
        Ok(()) if !zero => {}
        Ok(()) | Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {
            write_zeroes(file, data)?;
        }
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

/// The format of a file that is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NewKind {
    Vhdx,
    Vhd,
}

impl NewKind {
    /// The file as a device, in the words of the grammar.
    fn named(self, path: &Path) -> String {
        let word = match self {
            Self::Vhdx => "vhdx",
            Self::Vhd => "vhd",
        };
        format!("{word}:{}", path.display())
    }
}

/// Advice on making a raw image.
const RAW_MADE: &str = "raw images are made by `truncate -s SIZE`, or `lunway lun add … --create SIZE`";
/// Advice on making a qcow2 image.
const QCOW2: &str = "qcow2 images are made by `qemu-img create -f qcow2`";

/// Ends of names that say another format, which no command would open as VHDX, and what makes such a file.
const FOREIGN: [(&[&str], &str); 3] = [
    (&["img", "raw", "iso"], RAW_MADE),
    (&["qcow2", "qcow"], QCOW2),
    (&["vmdk", "vdi"], "such images are made by `qemu-img create`"),
];

/// Advice on freezing a raw image, which takes no child.
const RAW: &str = "`lunway lun snapshot` freezes a raw image while it is served";

/// The file that is to be made, and its format: what its name says, VHDX where that says nothing. The name must not be
/// that of another format.
fn new_file(file: &Path) -> Result<(PathBuf, NewKind), Failure> {
    let refused = |path: &Path, instead: &str| {
        Failure::failed(anyhow!(
            "{} is not the name of a VHDX file: name it *.vhdx; {instead}",
            path.display()
        ))
    };
    match Named::of(file)? {
        Named::Vhdx(path) => Ok((path, NewKind::Vhdx)),
        Named::Image(path, Format::Vhd) => Ok((path, NewKind::Vhd)),
        Named::Image(path, Format::Qcow2) => Err(refused(&path, QCOW2)),
        Named::Raw { path, spec } if matches!(*spec, DeviceSpec::File { format: FileFormat::Raw, .. }) => {
            Err(refused(&path, RAW_MADE))
        }
        Named::Raw { path, .. } => {
            let extension = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
            match FOREIGN.iter().find(|(ends, _)| ends.contains(&extension.as_str())) {
                Some((_, instead)) => Err(refused(&path, instead)),
                None => Ok((path, NewKind::Vhdx)),
            }
        }
    }
}

/// Advice on naming a VHDX file whose name does not say what it is: a further line; empty where it does.
fn by_name(path: &Path) -> String {
    match Named::of(path) {
        Ok(Named::Vhdx(_)) => String::new(),
        _ => format!(
            "\nIts name does not say that it is a VHDX file: other commands take it as vhdx:{}",
            path.display()
        ),
    }
}

fn print_vhd(path: &Path, made: &Layout, json: bool) -> Result<(), Failure> {
    let kind = if made.fixed { "fixed" } else { "dynamic" };
    match json {
        true => terminal::print_json(&json!({
            "file": path.display().to_string(),
            "format": "vhd",
            "kind": kind,
            "virtual_bytes": made.size,
        })),
        false => terminal::print(&format!("{}: a {kind} VHD of {}", path.display(), HumanSize(made.size))),
    }
}

/// Writes zeroes, which takes as long as the disk does for all of them.
fn write_zeroes(file: &File, range: std::ops::Range<u64>) -> anyhow::Result<()> {
    // Often enough for a bar to move, and much more than one write.
    const STEP: u64 = 16 << 20;
    let len = range.end - range.start;
    let bar = progress::bytes("zeroing", len);
    let mut done = 0;
    while done < len {
        let now = (len - done).min(STEP);
        lunway_vhdx::Storage::zero(file, range.start + done, now)?;
        done += now;
        bar.set_position(done);
    }
    bar.finish_and_clear();
    Ok(())
}

fn print(path: &Path, options: &CreateOptions, json: bool) -> Result<(), Failure> {
    let parameters = &options.parameters;
    let parent = parameters.locator.as_ref().and_then(|locator| locator.get(Locator::RELATIVE));
    match json {
        true => terminal::print_json(&json!({
            "file": path.display().to_string(),
            "format": "vhdx",
            "kind": kind_name(parameters.kind),
            "virtual_bytes": parameters.disk_size,
            "block_bytes": parameters.block_size,
            "logical_sector": parameters.logical_sector,
            "physical_sector": parameters.physical_sector,
            "disk_id": parameters.disk_id.to_string(),
            "parent": parent,
        })),
        false => terminal::print(&format!(
            "{}: a {} VHDX of {}, blocks of {}, sectors of {} bytes{}{}",
            path.display(),
            kind_name(parameters.kind),
            HumanSize(parameters.disk_size),
            HumanSize(parameters.block_size.into()),
            parameters.logical_sector,
            parent.map_or_else(String::new, |parent| format!(", on {parent}")),
            by_name(path)
        )),
    }
}
