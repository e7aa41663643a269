//! The table of mounts with their superblocks, `/proc/self/mountinfo` (proc(5)).

use super::mounts::unescaped;
use super::source::Machine;

/// A mount: `36 35 98:0 / /var rw,noatime shared:1 - ext4 /dev/sda1 rw,errors=continue`.
pub(super) struct MountInfo<'a> {
    /// Device number of its superblock, `98:0`.
    pub number: &'a str,
    /// The folder that it is on.
    pub point: String,
    /// Its own options.
    options: &'a str,
    /// It is seen in other mount namespaces (mount_namespaces(7)).
    pub shared: bool,
    /// What is mounted: a device, for file systems on one.
    pub source: String,
    /// Options of its superblock.
    of_superblock: &'a str,
}

impl MountInfo<'_> {
    /// Returns `true` if its superblock is read-only and the mount is not.
    pub(super) fn is_made_read_only(&self) -> bool {
        let is_read_only = |options: &str| options.split(',').any(|option| option == "ro");
        is_read_only(self.of_superblock) && !is_read_only(self.options)
    }
}

/// Reads the table, for [`listed`].
pub(super) fn table(machine: &Machine) -> Result<String, String> {
    machine.text("/proc/self/mountinfo")
}

/// The mounts of a table, in its order: of several on one point the last one covers the others.
pub(super) fn listed(table: &str) -> impl Iterator<Item = MountInfo<'_>> {
    table.lines().filter_map(|line| {
        let (own, rest) = line.split_once(" - ")?;
        let mut own = own.split(' ').skip(2);
        let (number, _root, point, options) = (own.next()?, own.next()?, own.next()?, own.next()?);
        let mut rest = rest.split(' ').skip(1);
        Some(MountInfo {
            number,
            point: unescaped(point),
            options,
            shared: own.any(|word| word.starts_with("shared:")),
            source: unescaped(rest.next()?),
            of_superblock: rest.next()?,
        })
    })
}
