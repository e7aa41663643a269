//! `lunway backup mount`.

use std::path::PathBuf;

use clap::{ArgGroup, Args};
use lunway_block::spec::{DeviceSpec, PointName, PointWrites, is_store_address};
use lunway_nbd::NbdAddress;

use super::{Destination, files};
use crate::command::attach::Attach;
use crate::failure::Failure;

/// Serve a point over NBD, as a file, or by its files, until Ctrl-C or SIGTERM.
///
/// With --files each file system on the disk is mounted read-only, which needs root: by the kernel, or by a program
/// such as ntfs-3g. Other users get each volume as a file.
///
/// The point itself is never changed: with --writable, writes go to a file beside it, which is removed at the end.
/// With --into they are kept, in a disk that is used at once and stands alone once all of the point is copied. `lunway
/// backup prune` refuses to change the destination meanwhile. `point:DEST` is the same as a DEVICE, for a LUN or any
/// other command.
#[derive(Debug, Args)]
#[command(override_usage = "\
lunway backup mount [OPTIONS] --nbd <unix:PATH|tcp:ADDRESS[:PORT]> <DEST>
       lunway backup mount [OPTIONS] --fuse <DIR> <DEST>
       lunway backup mount [OPTIONS] --files <DIR> <DEST>", group = ArgGroup::new("way").required(true).args(["nbd", "fuse", "files"]), after_help = "\
Examples:
  lunway backup mount /mnt/share/server1 --nbd unix:/run/user/1000/p.sock
  lunway backup mount /mnt/share/server1 --point 3f2a --nbd tcp:127.0.0.1
  # A file as it was then, from the second partition:
  lunway backup mount /mnt/share/server1 --point 3f2a --files /mnt/then &
  cp /mnt/then/p2/etc/fstab .
  # A virtual machine boots from it, and leaves no trace:
  lunway backup mount /mnt/share/server1 --writable --nbd unix:/run/p.sock
  # The same as a LUN of the daemon:
  lunway lun add iqn.2026-11.com.example:db 5 'point:/mnt/db?writes=discard'
  # A lost disk is back within a second, and needs the share until it is copied:
  lunway lun add iqn.2026-11.com.example:db 6 'point:/mnt/db?into=/srv/vm.vhdx'")]
pub(super) struct Mount {
    #[command(flatten)]
    destination: Destination,
    /// The point: the beginning of an id, latest, or a time
    #[arg(long, value_name = "POINT", default_value = "latest")]
    point: String,
    /// Serve it over NBD on a Unix socket, or on TCP
    #[arg(long, value_name = "unix:PATH|tcp:ADDRESS[:PORT]")]
    nbd: Option<NbdAddress>,
    /// Mount a file system with the disk as a file on this empty directory
    #[arg(long, value_name = "DIR")]
    fuse: Option<PathBuf>,
    /// Mount the file systems on the disk read-only, each in a folder of this empty directory
    #[arg(long, value_name = "DIR", conflicts_with_all = ["writable", "into"])]
    files: Option<PathBuf>,
    /// Accept writes, and discard them at the end
    #[arg(long)]
    writable: bool,
    /// Accept writes, and keep them in this VHDX file, which the rest of the point is copied into in the background
    #[arg(long, value_name = "FILE.vhdx", conflicts_with = "writable")]
    into: Option<PathBuf>,
    /// Print what is served as one line of JSON
    #[arg(long)]
    json: bool,
}

impl Mount {
    pub(super) fn run(self) -> Result<(), Failure> {
        let series = self.destination.series(false)?;
        let key_file = series.and(self.destination.key_file.clone());
        if key_file.as_ref().is_some_and(|file| file.to_string_lossy().contains('&')) {
            return Err(Failure::Usage("the path of the key file has a `&`: rename it".into()));
        }
        let folder = match is_store_address(&self.destination.folder) {
            true => self.destination.folder.clone(),
            false => self.destination.open()?.path().to_owned(),
        };
        let read_only = !self.writable && self.into.is_none();
        let writes = match self.into {
            Some(file) => PointWrites::Kept(std::path::absolute(&file).unwrap_or(file)),
            None if self.writable => PointWrites::Discarded,
            None => PointWrites::Refused,
        };
        let key_file = key_file.map(|file| std::path::absolute(&file).unwrap_or(file));
        let name = PointName { folder, point: self.point, writes, timeout: None, key_file };
        if let Some(files) = self.files {
            return files::mount(name, &files, self.json);
        }
        let device = DeviceSpec::Point { name }.to_string();
        Attach::of_file(device, self.nbd, self.fuse, read_only, self.json).run()
    }
}
