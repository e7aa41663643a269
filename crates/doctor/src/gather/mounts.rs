//! Mounts, `/etc/fstab` and swap.

use super::disks::Over;
use super::source::Machine;
use crate::facts::{FstabEntry, Mount, Swap};
use crate::seen::Seen;

/// Mounts that are told. Machines with containers have thousands, of the same few file systems.
const MOUNTS_MAX: usize = 256;

/// File systems on block devices, each once.
pub(super) fn mounts(machine: &Machine, over: &Over) -> Result<Vec<Mount>, String> {
    let text = machine.text("/proc/self/mounts")?;
    let mut mounts: Vec<Mount> = Vec::new();
    for line in text.lines() {
        let mut fields = line.split(' ').map(unescaped);
        let (Some(device), Some(point), Some(kind), Some(options)) =
            (fields.next(), fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let seen = mounts.iter().any(|mount| mount.device == device);
        // Images of read-only file systems are full by nature.
        let full_by_nature = matches!(kind.as_str(), "squashfs" | "iso9660" | "udf" | "erofs" | "cramfs");
        if !device.starts_with("/dev/") || seen || full_by_nature || mounts.len() >= MOUNTS_MAX {
            continue;
        }
        let (used, inodes) = space(machine, &point);
        mounts.push(Mount {
            iscsi: over.has(machine, &device),
            options: options.split(',').map(str::to_owned).collect(),
            used_percent: used,
            inodes_percent: inodes,
            device,
            point,
            kind,
        });
    }
    Ok(mounts)
}

/// Bytes and inodes in use, as `df` counts: of what ordinary users can have.
fn space(machine: &Machine, point: &str) -> (Seen<f64>, Seen<f64>) {
    if !machine.is_live() {
        let why = "a copied tree of files does not tell";
        return (Seen::unseen(why), Seen::unseen(why));
    }
    match rustix::fs::statvfs(point) {
        Err(error) => {
            let why = format!("{point} cannot be asked: {error}");
            (Seen::unseen(&why), Seen::unseen(why))
        }
        Ok(found) => {
            let share = |used: u64, free: u64| {
                let all = used.saturating_add(free);
                if all == 0 { None } else { Some(used as f64 / all as f64 * 100.0) }
            };
            let used = share(found.f_blocks.saturating_sub(found.f_bfree), found.f_bavail);
            let inodes = share(found.f_files.saturating_sub(found.f_ffree), found.f_favail);
            // btrfs and the like have no fixed number of inodes, and never run out of them.
            let inodes = Seen::Value(inodes.unwrap_or(0.0));
            (used.ok_or_else(|| format!("{point} does not tell its size")).into(), inodes)
        }
    }
}

pub(super) fn fstab(machine: &Machine, over: &Over) -> Seen<Vec<FstabEntry>> {
    if machine.exists("/etc") && !machine.exists("/etc/fstab") {
        return Seen::Value(Vec::new());
    }
    let entry = |line: &str| {
        let line = line.trim();
        if line.starts_with('#') {
            return None;
        }
        let mut fields = line.split_whitespace().map(unescaped);
        let (device, point, kind, options) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        // A tag as udev links it.
        let link = device.split_once('=').map(|(tag, value)| {
            format!("/dev/disk/by-{}/{}", tag.to_ascii_lowercase(), value.trim_matches('"'))
        });
        let iscsi = kind != "swap" && over.has(machine, link.as_deref().unwrap_or(&device));
        let options = options.split(',').map(str::to_owned).collect();
        Some(FstabEntry { device, point, options, iscsi })
    };
    machine.text("/etc/fstab").map(|text| text.lines().filter_map(entry).collect()).into()
}

pub(super) fn swaps(machine: &Machine, over: &Over) -> Result<Vec<Swap>, String> {
    let text = machine.text("/proc/swaps")?;
    let swap = |line: &str| {
        let path = unescaped(line.split_whitespace().next()?);
        // Memory that is compressed lies on no disk.
        let zram = path.starts_with("/dev/zram");
        (!zram).then(|| Swap { iscsi: over.has(machine, &path), path })
    };
    Ok(text.lines().skip(1).filter_map(swap).collect())
}

/// Octal escapes of spaces, tabs, line ends and backslashes (getmntent(3)).
fn unescaped(text: &str) -> String {
    let mut plain = text.to_owned();
    for (escape, character) in [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")] {
        plain = plain.replace(escape, character);
    }
    plain
}
