//! Files and disks behind the logical units of a target on this machine.

use std::os::unix::fs::{FileTypeExt, MetadataExt};

use lunway_block::spec::DeviceSpec;

use super::source::Machine;
use crate::facts::{LunStore, Target};

/// Looks at the files and block devices that the target's logical units lie on. Devices that are none (memory, another
/// SAN's disk) and files that this user cannot see are left out.
pub fn stores(machine: &Machine, target: &Target) -> Vec<LunStore> {
    let machine = &machine.for_a_run();
    let luns = target.targets.iter().flat_map(|served| served.luns.iter().map(|lun| (&served.name, lun)));
    luns.filter_map(|(name, lun)| {
        let spec = DeviceSpec::parse(&lun.device).ok()?;
        let (DeviceSpec::File { path, .. } | DeviceSpec::Vhdx { path } | DeviceSpec::Image { path, .. }) =
            spec.leaf()
        else {
            return None;
        };
        // A file system whose server is gone does not answer.
        let asked = path.clone();
        let metadata =
            machine.answered(&path.display().to_string(), move || std::fs::metadata(asked)).ok()?.ok()?;
        let block = metadata.file_type().is_block_device();
        let number = if block { metadata.rdev() } else { metadata.dev() };
        let queue = queue(machine, number);
        Some(LunStore {
            target: name.clone(),
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
        })
    })
    .collect()
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
