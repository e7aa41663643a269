//! Quotas of the user and the group that a file belongs to, on the file system that it lies in.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

use nix::errno::Errno;
use nix::sys::quota::{Dqblk, QuotaType, quotactl_get};

use super::mount_info;
use super::source::Machine;
use crate::facts::OwnerQuota;

/// Bytes of the unit that limits are told in (linux/quota.h, QIF_DQBLKSIZE).
const UNIT: u64 = 1024;

/// Reads the quotas of a file's owners that have a limit; none where its file system is on no block device, or keeps no
/// quotas. `mounts` is the [`mount_info::table`].
pub(super) fn of_file(
    machine: &Machine,
    mounts: &Result<String, String>,
    metadata: &Metadata,
) -> Result<Vec<OwnerQuota>, String> {
    let number = metadata.dev();
    let number = format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number));
    let mounts = mounts.as_ref().map_err(String::clone)?;
    let Some(device) = device(mounts, &number) else { return Ok(Vec::new()) };
    let owners =
        [("user", QuotaType::USRQUOTA, metadata.uid()), ("group", QuotaType::GRPQUOTA, metadata.gid())];
    let mut found = Vec::new();
    for (kind, which, id) in owners {
        let asked = device.clone();
        // The C interface takes the unsigned number as a signed one of the same bits.
        let answer =
            machine.answered("a quota", move || quotactl_get(which, asked.as_str(), id.cast_signed()))?;
        match answer {
            Ok(quota) => found.extend(limited(kind, id, limits(&quota), quota.occupied_space())),
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

/// The limits of a quota, the hard one and the soft one, in its [`UNIT`]; `None`: the kernel did not tell it.
fn limits(quota: &Dqblk) -> [Option<u64>; 2] {
    [quota.blocks_hard_limit(), quota.blocks_soft_limit()]
}

/// A quota with these limits, if one of them is more than 0.
fn limited(kind: &str, id: u32, limits: [Option<u64>; 2], used: Option<u64>) -> Option<OwnerQuota> {
    let limit = limits.into_iter().flatten().filter(|limit| *limit > 0).min()?;
    Some(OwnerQuota {
        kind: kind.to_owned(),
        id,
        limit: limit.saturating_mul(UNIT),
        used: used.unwrap_or_default(),
    })
}

/// The block device of a file system of this number, as it is mounted. btrfs, which keeps no such quotas, has a number
/// of its own for each subvolume.
fn device(mounts: &str, number: &str) -> Option<String> {
    let mut of_number = mount_info::listed(mounts).filter(|mount| mount.number == number);
    of_number.find(|mount| mount.source.starts_with("/dev/")).map(|mount| mount.source)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smaller_of_two_limits_counts_and_a_quota_without_one_is_none() {
        // nix has no way to make a `Dqblk` whose limits are valid.
        let quota = |hard: u64, soft: u64| {
            let found = limited("user", 7, [Some(hard), Some(soft)], None);
            found.map(|quota| (quota.kind, quota.id, quota.limit))
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
        let machine = Machine::this();
        match of_file(&machine, &mount_info::table(&machine), &metadata) {
            Ok(quotas) => assert!(quotas.len() <= 2, "{quotas:?}"),
            Err(why) => assert!(why.contains("quota"), "{why}"),
        }
    }
}
