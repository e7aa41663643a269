//! Faults of mounted file systems: those that their kernel has counted, and those after which they take no more writes.

use std::collections::BTreeSet;

use rustix::io::Errno;

use super::mount_info;
use super::source::Machine;
use crate::facts::MountFaults;

/// Points whose superblock is read-only while their mount is not: mount(8) sets both, the kernel after an error the
/// superblock alone.
pub(super) fn made_read_only(machine: &Machine) -> Result<BTreeSet<String>, String> {
    let table = mount_info::table(machine)?;
    let made = mount_info::listed(&table).filter(mount_info::MountInfo::is_made_read_only);
    Ok(made.map(|mount| mount.point).collect())
}

/// Error that the root of a mount answers with; empty: none. An XFS that has shut down shows it by nothing else: its
/// options stay as they were.
pub(super) fn of_root(machine: &Machine, point: &str) -> Result<String, String> {
    if !machine.is_live() {
        return Err("a copied tree of files does not tell".to_owned());
    }
    let asked = point.to_owned();
    match machine.answered(point, move || rustix::fs::stat(asked))? {
        Ok(_) => Ok(String::new()),
        // The kernel's EFSCORRUPTED is EUCLEAN.
        Err(error @ (Errno::IO | Errno::UCLEAN | Errno::NODEV | Errno::NXIO)) => Ok(error.to_string()),
        Err(error) => Err(format!("{point} cannot be looked at: {error}")),
    }
}

/// Faults that the kernel has counted on a file system of this kind on this device.
pub(super) fn counted(machine: &Machine, kind: &str, device: Option<&str>) -> Result<MountFaults, String> {
    let device = device.ok_or("its device is not told")?;
    match kind {
        "ext4" => of_ext4(machine, device),
        "btrfs" => of_btrfs(machine, device),
        _ => Err(format!("{kind} counts none")),
    }
}

/// Linux's admin guide, ext4, and its Documentation/ABI/testing/sysfs-fs-ext4.
fn of_ext4(machine: &Machine, device: &str) -> Result<MountFaults, String> {
    let folder = format!("/sys/fs/ext4/{device}");
    let count: u64 = machine.number(&format!("{folder}/errors_count"))?;
    if count == 0 {
        return Ok(MountFaults::default());
    }
    let last: u64 = machine.number(&format!("{folder}/last_error_time"))?;
    let stat = machine.text("/proc/stat")?;
    let boot = stat.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse::<u64>().ok());
    let boot = boot.ok_or("/proc/stat does not tell when this machine has started")?;
    // All options, those of the superblock's defaults as well.
    let options = machine.text(&format!("/proc/fs/ext4/{device}/options"))?;
    Ok(MountFaults {
        count,
        function: machine.line(&format!("{folder}/last_error_func")).unwrap_or_default(),
        ended_writes: last >= boot && options.lines().any(|option| option == "errors=remount-ro"),
    })
}

/// Its devices' counters (btrfs(5), `btrfs device stats`), where the file system's folder names this one.
fn of_btrfs(machine: &Machine, device: &str) -> Result<MountFaults, String> {
    let folder = "/sys/fs/btrfs";
    let mut names = machine.listed(folder)?.into_iter();
    let own = names.find(|name| machine.exists(&format!("{folder}/{name}/devices/{device}")));
    let own = own.ok_or_else(|| format!("{folder} does not tell of {device}"))?;
    let mut faults = MountFaults::default();
    for number in machine.listed(&format!("{folder}/{own}/devinfo"))? {
        let path = format!("{folder}/{own}/devinfo/{number}/error_stats");
        for line in machine.text(&path)?.lines() {
            let count = line.split_once(' ').and_then(|(_, count)| count.trim().parse::<u64>().ok());
            let count = count
                .ok_or_else(|| format!("{path} says {:?}", line.chars().take(40).collect::<String>()))?;
            faults.count = faults.count.saturating_add(count);
        }
    }
    Ok(faults)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gather::put;

    /// As Linux 6.18 shows them, of file systems on loop devices whose disk ran full.
    const MOUNTS: &str = "\
158 129 0:50 / /a\\040b rw,relatime - btrfs /dev/loop4 ro,ssd,discard=async,space_cache=v2,subvolid=5,subvol=/
156 129 7:2 / /mnt rw,relatime shared:1 - ext4 /dev/loop2 rw,errors=remount-ro,emergency_ro
160 129 7:3 / /cd ro,relatime - iso9660 /dev/loop3 ro
";

    #[test]
    fn a_mount_that_the_kernel_made_read_only_differs_from_one_that_was_mounted_so() {
        let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        let machine = Machine::copy(folder.path());
        assert!(made_read_only(&machine).is_err_and(|why| why.contains("there is no /proc/self/mountinfo")));
        put(folder.path(), "proc/self/mountinfo", MOUNTS);
        assert_eq!(made_read_only(&machine), Ok(["/a b".to_owned()].into()));
    }

    #[test]
    fn what_ext4_and_btrfs_have_counted_is_read_from_sysfs() {
        let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        let root = folder.path();
        let machine = Machine::copy(root);
        let ext4 = || counted(&machine, "ext4", Some("loop2"));
        assert!(ext4().is_err_and(|why| why.contains("there is no")));
        put(root, "sys/fs/ext4/loop2/errors_count", "0\n");
        assert_eq!(ext4(), Ok(MountFaults::default()));
        for (file, text) in [
            ("sys/fs/ext4/loop2/errors_count", "1\n"),
            ("sys/fs/ext4/loop2/last_error_time", "1795902010\n"),
            ("sys/fs/ext4/loop2/last_error_func", "ext4_journal_check_start\n"),
            ("proc/fs/ext4/loop2/options", "rw\nbsddf\nerrors=remount-ro\ncommit=5\n"),
            ("proc/stat", "cpu  1 0 0 0\nbtime 1795838000\n"),
        ] {
            put(root, file, text);
        }
        let met = |ended_writes| MountFaults {
            count: 1,
            function: "ext4_journal_check_start".into(),
            ended_writes,
        };
        assert_eq!(ext4(), Ok(met(true)));
        put(root, "proc/fs/ext4/loop2/options", "rw\nerrors=continue\n");
        assert_eq!(ext4(), Ok(met(false)));
        put(root, "proc/fs/ext4/loop2/options", "rw\nerrors=remount-ro\n");
        put(root, "proc/stat", "btime 1795902011\n");
        assert_eq!(ext4(), Ok(met(false)), "it was mounted again since");
        let btrfs = || counted(&machine, "btrfs", Some("sda"));
        assert!(btrfs().is_err());
        put(root, "sys/fs/btrfs/features/x", "");
        put(root, "sys/fs/btrfs/311f/devices/sda/x", "");
        put(root, "sys/fs/btrfs/311f/devinfo/1/error_stats", "write_errs 2\nread_errs 0\nflush_errs 1\n");
        put(root, "sys/fs/btrfs/311f/devinfo/2/error_stats", "write_errs 4\n");
        assert_eq!(btrfs(), Ok(MountFaults { count: 7, ..MountFaults::default() }));
        assert_eq!(counted(&machine, "xfs", Some("sda")), Err("xfs counts none".to_owned()));
    }
}
