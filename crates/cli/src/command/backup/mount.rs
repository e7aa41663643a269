//! `lunway backup mount`.

use std::fs::{self, File};
use std::process;

use anyhow::Context;
use clap::Args;
use lunway_nbd::Address;
use lunway_vhdx::{CreateOptions, Disk, OpenOptions, create, relative_path};

use super::{Destination, catalogue, failed, guids};
use crate::command::attach::Attach;
use crate::failure::Failure;

/// Serve a point over NBD, until Ctrl-C or SIGTERM.
///
/// The point itself is never changed: with --writable, writes go to a file beside it, which is removed at the end.
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
    nbd: Address,
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
        let catalogue = catalogue(&*folder)?;
        let manifest = catalogue.find(&self.point).map_err(failed)?;
        // Sees that every file of the chain is there and was not written to.
        drop(catalogue.open(&*folder, manifest.point).map_err(failed)?);
        let disk = folder.path().join(manifest.disk_name());
        if !self.writable {
            let device = format!("vhdx:{}", disk.display());
            return Attach::of_file(device, Some(self.nbd), None, true, self.json).run();
        }
        let leaf = folder.path().join(format!("mount-{}.vhdx.throwaway", process::id()));
        let cannot = || format!("cannot make {}, which would take the writes", leaf.display());
        let guids = guids()?;
        let base = File::open(&disk).with_context(cannot)?;
        let base = Disk::open(base, &OpenOptions::read_only(), guids()).with_context(cannot)?;
        let relative = relative_path(&leaf, &disk).with_context(cannot)?;
        let new = File::options().read(true).write(true).create_new(true).open(&leaf).with_context(cannot)?;
        let served = create(&new, &CreateOptions::child_of(&base, &relative), guids().as_mut())
            .with_context(cannot)
            .map_err(Failure::Failed)
            .and_then(|()| {
                drop((new, base));
                Attach::of_file(format!("vhdx:{}", leaf.display()), Some(self.nbd), None, false, self.json)
                    .run()
            });
        let removed = fs::remove_file(&leaf).with_context(|| format!("cannot remove {}", leaf.display()));
        served.and(removed.map_err(Failure::Failed))
    }
}
