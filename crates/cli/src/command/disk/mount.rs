//! `lunway disk mount`.

use std::path::PathBuf;

use clap::{ArgGroup, Args};
use lunway_nbd::NbdAddress;
use lunway_vhdx::merge::children;

use super::named::{Named, vhdx};
use super::names;
use crate::command::attach::Attach;
use crate::failure::Failure;
use crate::terminal;

/// Attach a virtual disk to this machine, as a file or over NBD, until Ctrl-C or SIGTERM
///
/// This is `lunway attach` for one file. Parents of other disks, and images of other formats, are mounted read-only.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("way").required(true).args(["fuse", "nbd"]))]
#[command(override_usage = "\
lunway disk mount [OPTIONS] <FILE> --fuse <DIR>
       lunway disk mount [OPTIONS] <FILE> --nbd <ADDRESS>")]
#[command(after_help = "\
Examples:
  lunway disk mount server.vhdx --fuse /mnt/server &
  losetup --find --show --partscan --direct-io=on /mnt/server/disk
  lunway disk mount vm.qcow2 --nbd unix:/run/user/1000/vm.sock

To dismount: unmount what is on the loop device, detach the loop device
(losetup --detach), and end this command.")]
pub(super) struct Mount {
    /// The VHDX, VHD or qcow2 file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Mount it on this empty directory, as a file in it
    #[arg(long, value_name = "DIR")]
    fuse: Option<PathBuf>,
    /// Serve it over NBD on a Unix socket, or on TCP
    #[arg(long, value_name = "unix:PATH|tcp:ADDRESS[:PORT]")]
    nbd: Option<NbdAddress>,
    /// Refuse writes
    #[arg(long)]
    read_only: bool,
    /// Print what is mounted as one line of JSON
    #[arg(long)]
    json: bool,
}

impl Mount {
    pub(super) fn run(self) -> Result<(), Failure> {
        let Self { file, fuse, nbd, read_only, json } = self;
        if let Named::Image(..) = Named::of(&file)? {
            return Attach::of_file(file.display().to_string(), nbd, fuse, true, json).run();
        }
        let file = vhdx(&file, "`lunway attach` takes raw images")?;
        // One that cannot be looked at says why when it is opened.
        let children = children(&file).unwrap_or_default();
        if !children.is_empty() && !read_only {
            let parent =
                format!("{} is the parent of {}: mounted read-only", file.display(), names(&children));
            eprintln!("{}", terminal::clean(&parent));
        }
        let read_only = read_only || !children.is_empty();
        Attach::of_file(format!("vhdx:{}", file.display()), nbd, fuse, read_only, json).run()
    }
}
