//! `lunway backup mount`.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;

use anyhow::Context;
use clap::Args;
use lunway_backup::{BackupError, Folder, PointMount};
use lunway_nbd::NbdAddress;
use lunway_vhdx::{CreateOptions, Disk, VhdxOpenOptions, create, relative_path};

use super::{Destination, catalogue, failed, guids, holder};
use crate::command::attach::Attach;
use crate::failure::Failure;
use crate::terminal;

/// Serve a point over NBD, until Ctrl-C or SIGTERM.
///
/// The point itself is never changed: with --writable, writes go to a file beside it, which is removed at the end.
/// `lunway backup prune` refuses to change the destination meanwhile.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway backup mount /mnt/share/server1 --nbd unix:/run/user/1000/p.sock
  lunway backup mount /mnt/share/server1 --point 3f2a --nbd tcp:127.0.0.1
  # A virtual machine boots from it, and leaves no trace:
  lunway backup mount /mnt/share/server1 --writable --nbd unix:/run/p.sock")]
pub(super) struct Mount {
    #[command(flatten)]
    destination: Destination,
    /// The point: the beginning of an id, latest, or a time
    #[arg(long, value_name = "POINT", default_value = "latest")]
    point: String,
    /// Serve it over NBD on a Unix socket, or on TCP
    #[arg(long, value_name = "unix:PATH|tcp:ADDRESS[:PORT]")]
    nbd: NbdAddress,
    /// Accept writes, and discard them at the end
    #[arg(long)]
    writable: bool,
    /// Print what is served as one line of JSON
    #[arg(long)]
    json: bool,
}

impl Mount {
    pub(super) fn run(self) -> Result<(), Failure> {
        let folder = self.destination.open()?;
        let mount = match PointMount::begin(&*folder, &holder()?) {
            Ok(mount) => Some(mount),
            Err(BackupError::Folder { source, .. }) if !self.writable && is_refused(source.kind()) => {
                eprintln!(
                    "{} cannot be written by this user: a prune is not told of this mount, and may replace the files \
                     under it",
                    terminal::clean(&folder.show(""))
                );
                None
            }
            Err(error) => return Err(failed(error)),
        };
        let catalogue = catalogue(&*folder)?;
        let manifest = catalogue.find(&self.point).map_err(failed)?;
        // Sees that every file of the chain is there and was not written to.
        drop(catalogue.open(&*folder, manifest.point).map_err(failed)?);
        let disk = folder.path().join(manifest.disk_name());
        let Some(mount) = mount.as_ref().filter(|_| self.writable) else {
            let device = format!("vhdx:{}", disk.display());
            return Attach::of_file(device, Some(self.nbd), None, true, self.json).run();
        };
        let leaf = folder.path().join(mount.throwaway());
        let cannot = || format!("cannot make {}, which would take the writes", leaf.display());
        let guids = guids()?;
        let base = File::open(&disk).with_context(cannot)?;
        let base = Disk::open(base, &VhdxOpenOptions::read_only(), guids()).with_context(cannot)?;
        let relative = relative_path(&leaf, &disk).with_context(cannot)?;
        let new = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(folder.mode())
            .open(&leaf)
            .with_context(cannot)?;
        create(&new, &CreateOptions::child_of(&base, &relative), guids().as_mut()).with_context(cannot)?;
        drop((new, base));
        Attach::of_file(format!("vhdx:{}", leaf.display()), Some(self.nbd), None, false, self.json).run()
    }
}

/// Returns `true` if this user may not write to the folder.
fn is_refused(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
}
