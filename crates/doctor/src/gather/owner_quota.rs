//! Quotas of the user and the group that a file belongs to, on the file system that it lies in.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

use nix::errno::Errno;
use nix::sys::quota::{Dqblk, QuotaType, quotactl_get};

use super::mounts::unescaped;
use super::source::Machine;
use crate::facts::OwnerQuota;

/// Bytes of the unit that limits are told in (linux/quota.h, QIF_DQBLKSIZE).
const UNIT: u64 = 1024;

/// Reads the quotas of a file's owners that have a limit; none where its file system is on no block device, or keeps no
/// quotas.
pub(super) fn of_file(machine: &Machine, metadata: &Metadata) -> Result<Vec<OwnerQuota>, String> {
    let number = metadata.dev();
    let number = format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number));
    let Some(device) = device(&machine.text("/proc/self/mountinfo")?, &number) else { return Ok(Vec::new()) };
    let owners =
        [("user", QuotaType::USRQUOTA, metadata.uid()), ("group", QuotaType::GRPQUOTA, metadata.gid())];
    let mut found = Vec::new();
    for (kind, which, id) in owners {
        let asked = device.clone();
        // The C interface takes the unsigned number as a signed one of the same bits.
        let answer =
            machine.answered("a quota", move || quotactl_get(which, asked.as_str(), id.cast_signed()))?;
        match answer {
            Ok(quota) => found.extend(limited(kind, id, &quota)),
            // No quotas of this kind, none for this owner, or a file system without any.
            Err(
                Errno::ESRCH
                | Errno::ENOENT
                | Errno::EINVAL
                | Errno::ENOSYS
                | Errno::EOPNOTSUPP
                | Errno::ENOTBLK,
            ) => {}
            Err(Errno::EPERM | Errno::EACCES) => {
                return Err(format!("reading the quota of {kind} {id} takes root"));
            }
            Err(error) => return Err(format!("the quota of {kind} {id} on {device}: {error}")),
        }
    }
    Ok(found)
}

/// A quota, if it has a limit.
fn limited(kind: &str, id: u32, quota: &Dqblk) -> Option<OwnerQuota> {
    let limits = [quota.blocks_hard_limit(), quota.blocks_soft_limit()];
    let limit = limits.into_iter().flatten().filter(|limit| *limit > 0).min()?;
    Some(OwnerQuota {
        kind: kind.to_owned(),
        id,
        limit: limit.saturating_mul(UNIT),
        used: quota.occupied_space().unwrap_or_default(),
    })
}

/// The block device of a file system of this number, as it is mounted (proc(5), mountinfo). btrfs, which keeps no such
/// quotas, has a number of its own for each subvolume.
fn device(mounts: &str, number: &str) -> Option<String> {
    let source = |line: &str| {
        let (own, of_superblock) = line.split_once(" - ")?;
        let is_it = own.split(' ').nth(2)? == number;
        let source = unescaped(of_superblock.split(' ').nth(1)?);
        (is_it && source.starts_with("/dev/")).then_some(source)
    };
    mounts.lines().find_map(source)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smaller_of_two_limits_counts_and_a_quota_without_one_is_none() {
        let quota = |hard: u64, soft: u64| {
            let mut quota = Dqblk::default();
            quota.set_blocks_hard_limit(hard);
            quota.set_blocks_soft_limit(soft);
            limited("user", 7, &quota).map(|quota| (quota.kind, quota.id, quota.limit))
        };
        assert_eq!(quota(0, 0), None);
        assert_eq!(quota(64, 0), Some(("user".to_owned(), 7, 64 << 10)));
        assert_eq!(quota(64, 32), Some(("user".to_owned(), 7, 32 << 10)));
    }

    #[test]
    fn the_device_of_a_file_system_is_found_by_its_number() {
        let mounts = "\
22 1 0:5 / /dev rw - devtmpfs udev rw
30 1 7:2 / /a\\040b rw shared:1 - xfs /dev/mapper/a\\040b rw,usrquota
31 1 0:40 / /n rw - nfs4 nas:/share rw
";
        assert_eq!(device(mounts, "7:2").as_deref(), Some("/dev/mapper/a b"));
        assert_eq!((device(mounts, "0:40"), device(mounts, "0:5"), device("x", "7:2")), (None, None, None));
    }

    #[test]
    fn a_file_of_this_machine_has_quotas_or_a_reason() {
        let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        let metadata = std::fs::metadata(folder.path()).unwrap_or_else(|error| panic!("{error}"));
        match of_file(&Machine::this(), &metadata) {
            Ok(quotas) => assert!(quotas.len() <= 2, "{quotas:?}"),
            Err(why) => assert!(why.contains("quota"), "{why}"),
        }
    }
}
