//! Files and disks behind the logical units of a target on this machine.

use std::cell::LazyCell;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use lunway_block::spec::DeviceSpec;

use super::source::Machine;
use super::{mount_info, owner_quota};
use crate::facts::{FolderQuota, LunStore, Target};
use crate::seen::Seen;

/// Looks at the files and block devices that the target's logical units lie on. Devices that are none (memory, another
/// SAN's disk) and files that this user cannot see are left out.
pub fn stores(machine: &Machine, target: &Target) -> Vec<LunStore> {
    let machine = &machine.for_a_run();
    let mounts = LazyCell::new(|| mount_info::table(machine));
    let luns = target.targets.iter().flat_map(|served| served.luns.iter().map(|lun| (&served.name, lun)));
    let files = luns.filter_map(|(name, lun)| match DeviceSpec::parse(&lun.device).ok()?.leaf() {
        DeviceSpec::File { path, .. } | DeviceSpec::Vhdx { path } | DeviceSpec::Image { path, .. } => {
            Some((name, lun, path.clone()))
        }
        _ => None,
    });
    // A file system whose server is gone does not answer.
    let files: Vec<_> = files.collect();
    let paths: Vec<_> = files.iter().map(|(_, _, path)| path.as_path()).collect();
    let answering = machine.that_answer(&paths);
    let there = files.iter().filter(|(_, _, path)| answering.contains(path.as_path()));
    let stores = there.filter_map(|(name, lun, path)| {
        let asked = path.clone();
        let metadata =
            machine.answered(&path.display().to_string(), move || std::fs::metadata(asked)).ok()?.ok()?;
        let block = metadata.file_type().is_block_device();
        let asked = path.clone();
        let quota = match block {
            true => Ok(FolderQuota::default()),
            false => machine.answered("a quota", move || folder_quota(&asked)).and_then(|quota| quota),
        };
        let number = if block { metadata.rdev() } else { metadata.dev() };
        let queue = queue(machine, number);
        Some(LunStore {
            target: (*name).clone(),
            lun: lun.id,
            path: path.display().to_string(),
            identity: match block {
                true => format!("block {number}"),
                false => format!("{} {}", metadata.dev(), metadata.ino()),
            },
            file_system: number.to_string(),
            logical_sector: read(machine, queue.as_deref(), "logical_block_size")
                .and_then(|text| text.parse().map_err(|_| "it is no number".to_owned()))
                .into(),
            physical_sector: read(machine, queue.as_deref(), "physical_block_size")
                .and_then(|text| text.parse().map_err(|_| "it is no number".to_owned()))
                .into(),
            write_cache: read(machine, queue.as_deref(), "write_cache").into(),
            quota: quota.map_or_else(Seen::unseen, Seen::Value),
            owner_quotas: match block {
                true => Seen::Value(Vec::new()),
                false => owner_quota::of_file(machine, &mounts, &metadata).into(),
            },
        })
    });
    stores.collect()
}

/// Quota of the folder of a file. statvfs(3) of a folder with a quota for its project tells the size and the use of the
/// quota; of the file system itself, whose topmost folder is in no project, it tells those of the disk.
fn folder_quota(path: &Path) -> Result<FolderQuota, String> {
    let path = path.canonicalize().map_err(|error| error.to_string())?;
    let folder = path.parent().unwrap_or(&path);
    let device = |folder: &Path| std::fs::metadata(folder).map(|metadata| metadata.dev()).ok();
    let own = device(folder);
    let top = folder.ancestors().take_while(|above| device(above) == own).last().unwrap_or(folder);
    let size = |folder: &Path| {
        let found = rustix::fs::statvfs(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
        Ok::<_, String>((bytes(found.f_blocks), bytes(found.f_blocks.saturating_sub(found.f_bfree))))
    };
    let ((limit, used), (whole, _)) = (size(folder)?, size(top)?);
    Ok(if limit < whole { FolderQuota { limit, used } } else { FolderQuota::default() })
}

/// The queue of a block device, of the whole disk where it is a partition.
fn queue(machine: &Machine, number: u64) -> Option<String> {
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let own = format!("/sys/dev/block/{major}:{minor}/queue");
    let whole = format!("/sys/dev/block/{major}:{minor}/../queue");
    [own, whole].into_iter().find(|path| machine.exists(path))
}

fn read(machine: &Machine, queue: Option<&str>, what: &str) -> Result<String, String> {
    match queue {
        Some(queue) => machine.line(&format!("{queue}/{what}")),
        None => Err("its file system is on no block device of this machine".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_a_quota_has_none_and_a_file_that_is_gone_has_a_reason() {
        let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        let file = folder.path().join("disk.img");
        assert!(std::fs::write(&file, "x").is_ok());
        assert_eq!(folder_quota(&file), Ok(FolderQuota::default()));
        assert!(folder_quota(&folder.path().join("gone")).is_err());
    }
}
