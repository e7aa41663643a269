//! `lunway disk create`, `convert` and `snapshot`.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::{ArgGroup, Args};
use lunway_block::size::{HumanSize, parse_size};
use lunway_vhdx::{CreateOptions, Kind, Locator, create};
use serde_json::json;

use super::parent::{open_parent, relative};
use super::{guids, kind_name};
use crate::command::copy::{Copy, How};
use crate::failure::Failure;
use crate::terminal;

/// How a new VHDX file is laid out.
#[derive(Clone, Debug, Default, Args)]
pub(in crate::command) struct NewVhdx {
    /// All blocks at once: a file as large as the disk, whose space the host reserves
    #[arg(long)]
    fixed: bool,
    /// Write zeroes into all blocks of a fixed disk, for hosts that cannot reserve space
    #[arg(long, requires = "fixed")]
    zero: bool,
    /// Size of a block, from 1M to 256M [default: 32M, 2M for fixed and differencing disks]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    block_size: Option<u64>,
    /// Logical sector: 512 or 4096 [default: the source's or the parent's; 512]
    #[arg(long, value_name = "BYTES")]
    sector: Option<u32>,
    /// Physical sector: 512 or 4096 [default: 4096]
    #[arg(long, value_name = "BYTES")]
    physical_sector: Option<u32>,
}

/// Make a virtual disk.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").required(true).multiple(true).args(["size", "parent", "from"]), after_help = "\
Examples:
  lunway disk create server.vhdx --size 100G
  lunway disk create server.vhdx --size 100G --fixed
  lunway disk create test.avhdx --parent server.vhdx        # what is written to test.avhdx does not touch server.vhdx
  lunway disk create server.vhdx --from iscsi://192.0.2.10/iqn.2026-11.com.example:disk/0 --verify")]
pub(super) struct Create {
    /// The file to make
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Size of the disk
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    size: Option<u64>,
    /// Make a differencing disk on this one, which must not change from then on
    #[arg(long, value_name = "FILE", conflicts_with_all = ["from", "fixed"])]
    parent: Option<PathBuf>,
    /// Fill it with the data of a device
    #[arg(long, value_name = "DEVICE", conflicts_with = "size")]
    from: Option<String>,
    /// After filling it, read both again and compare
    #[arg(long, requires = "from")]
    verify: bool,
    #[command(flatten)]
    layout: NewVhdx,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Copy a disk into another format or layout.
///
/// Source and destination are devices: raw files, VHDX files, LUNs. A VHDX file that is not there yet is made as the options say. What
/// is zero stays unallocated. Until it is complete, the destination has the name DST.partial.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway disk convert disk.img disk.vhdx --verify
  lunway disk convert disk.vhdx disk.img
  lunway disk convert old.vhdx new.vhdx --block-size 1M --fixed
  lunway disk convert disk.img disk.vhdx --resume           # after an interrupt")]
pub(super) struct Convert {
    /// The device to read
    #[arg(value_name = "SRC")]
    source: String,
    /// The device to write
    #[arg(value_name = "DST")]
    destination: String,
    #[command(flatten)]
    how: How,
    #[command(flatten)]
    layout: NewVhdx,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Keep a disk as it is: what is written from now on goes into a new file.
///
/// The new file shows the same disk, and takes all writes; the old one must not change any more, and is the way back. `lunway disk
/// merge` ends the snapshot.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway disk snapshot server.vhdx server-1.avhdx
  lunway disk merge server-1.avhdx                          # later: its data go into server.vhdx")]
pub(super) struct Snapshot {
    /// The disk, which becomes the parent
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The new file, in the same folder or above
    #[arg(value_name = "CHILD")]
    child: PathBuf,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

impl Create {
    pub(super) fn run(self) -> Result<(), Failure> {
        let path = &self.file;
        if let Some(source) = self.from {
            refuse_existing(path)?;
            let destination = format!("vhdx:{}", path.display());
            let how = How { verify: self.verify, ..How::default() };
            return Copy::to_vhdx(source, destination, self.layout, how, self.json).run();
        }
        let made = match &self.parent {
            Some(parent) => make_child(path, parent, self.size, &self.layout)?,
            None => self.layout.make(path, self.size.unwrap_or_default(), 512)?,
        };
        print(path, &made, self.json)
    }
}

impl Convert {
    pub(super) fn run(self) -> Result<(), Failure> {
        Copy::to_vhdx(self.source, self.destination, self.layout, self.how, self.json).run()
    }
}

impl Snapshot {
    pub(super) fn run(self) -> Result<(), Failure> {
        let made = make_child(&self.child, &self.file, None, &NewVhdx::default())?;
        print(&self.child, &made, self.json)
    }
}

impl NewVhdx {
    /// Makes an empty disk of `size` bytes. `sector` is its logical sector where the user says nothing.
    pub(in crate::command) fn make(
        &self,
        path: &Path,
        size: u64,
        sector: u32,
    ) -> anyhow::Result<CreateOptions> {
        let kind = if self.fixed { Kind::Fixed } else { Kind::Dynamic };
        let mut options = CreateOptions::new(kind, size, guids()?().next());
        options.parameters.logical_sector = sector;
        self.apply(&mut options)?;
        make(path, &options, self.zero)?;
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

fn make_child(
    path: &Path,
    parent_path: &Path,
    size: Option<u64>,
    layout: &NewVhdx,
) -> anyhow::Result<CreateOptions> {
    let parent = open_parent(parent_path)?;
    let parameters = parent.parameters();
    if layout.sector.is_some_and(|sector| sector != parameters.logical_sector) {
        return Err(anyhow!("a child has its parent's logical sector, {} bytes", parameters.logical_sector));
    }
    let mut options =
        CreateOptions::new(Kind::Differencing, size.unwrap_or(parameters.disk_size), parameters.disk_id);
    options.parameters.logical_sector = parameters.logical_sector;
    options.parameters.physical_sector = parameters.physical_sector;
    let relative = relative(path, parent_path)?;
    options.parameters.locator = Some(Locator::new(parent.data_write_guid(), &relative, None));
    layout.apply(&mut options)?;
    make(path, &options, false)?;
    Ok(options)
}

fn refuse_existing(path: &Path) -> anyhow::Result<()> {
    match path.symlink_metadata() {
        Ok(_) => Err(anyhow!("{} is there already: choose another name, or remove it", path.display())),
        Err(_) => Ok(()),
    }
}

/// Makes the file. One that cannot be completed is removed again; one that a kill leaves is no VHDX file yet.
fn make(path: &Path, options: &CreateOptions, zero: bool) -> anyhow::Result<()> {
    let cannot = || format!("cannot make {}", path.display());
    let file = match File::options().read(true).write(true).create_new(true).open(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => return refuse_existing(path),
        file => file.with_context(cannot)?,
    };
    let made = fill(&file, options, zero).with_context(cannot);
    if made.is_err() {
        let _ = fs::remove_file(path);
        return made;
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder).and_then(|folder| folder.sync_all()).with_context(cannot)
}

fn fill(file: &File, options: &CreateOptions, zero: bool) -> anyhow::Result<()> {
    use rustix::fs::{FallocateFlags, fallocate};

    create(file, options, guids()?().as_mut())?;
    if options.parameters.kind != Kind::Fixed {
        return Ok(());
    }
    let len = file.metadata()?.len();
    // The blocks are at the end, behind less than what all blocks have.
    let blocks = options.parameters.disk_size.next_multiple_of(options.parameters.block_size.into());
    match fallocate(file, FallocateFlags::empty(), 0, len) {
        Ok(()) if !zero => {}
        Ok(()) | Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {
            lunway_vhdx::Storage::zero(file, len - blocks, blocks)?;
        }
        Err(error) => return Err(error.into()),
    }
    Ok(file.sync_all()?)
}

fn print(path: &Path, options: &CreateOptions, json: bool) -> Result<(), Failure> {
    let parameters = &options.parameters;
    let parent = parameters.locator.as_ref().and_then(|locator| locator.get(Locator::RELATIVE));
    match json {
        true => terminal::print_json(&json!({
            "file": path.display().to_string(),
            "kind": kind_name(parameters.kind),
            "virtual_bytes": parameters.disk_size,
            "block_bytes": parameters.block_size,
            "logical_sector": parameters.logical_sector,
            "physical_sector": parameters.physical_sector,
            "disk_id": parameters.disk_id.to_string(),
            "parent": parent,
        })),
        false => terminal::print(&format!(
            "{}: a {} disk of {}, blocks of {}, sectors of {} bytes{}",
            path.display(),
            kind_name(parameters.kind),
            HumanSize(parameters.disk_size),
            HumanSize(parameters.block_size.into()),
            parameters.logical_sector,
            parent.map_or_else(String::new, |parent| format!(", on {parent}"))
        )),
    }
}
