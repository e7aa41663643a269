//! Mounts, `/etc/fstab` and swap.

use std::collections::BTreeSet;
use std::path::Path;

use super::disks::Over;
use super::faults;
use super::source::Machine;
use crate::facts::{FstabEntry, Mount, Swap};
use crate::seen::Seen;

/// Mounts that are told. Machines with containers have thousands, of the same few file systems.
const MOUNTS_MAX: usize = 256;

/// Loop devices on files on loop devices that are followed.
const CHAIN_MAX: usize = 8;

/// File systems on block devices, each once.
pub(super) fn mounts(machine: &Machine, over: &Over) -> Result<Vec<Mount>, String> {
    let text = machine.text("/proc/self/mounts")?;
    let made_read_only = faults::made_read_only(machine);
    let mut mounts: Vec<Mount> = Vec::new();
    let mut left_out = 0;
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
        if !device.starts_with("/dev/") || seen || full_by_nature {
            continue;
        }
        if mounts.len() >= MOUNTS_MAX {
            left_out += 1;
            continue;
        }
        let (used, inodes) = space(machine, &point);
        mounts.push(Mount {
            made_read_only: made_read_only
                .as_ref()
                .map(|points| points.contains(&point))
                .map_err(String::clone)
                .into(),
            root_error: faults::of_root(machine, &point).into(),
            faults: faults::counted(machine, &kind, over.name(machine, &device).as_deref()).into(),
            iscsi: over.targets(machine, &device).is_ok_and(|targets| !targets.is_empty()),
            options: options.split(',').map(str::to_owned).collect(),
            used_percent: used,
            inodes_percent: inodes,
            device,
            point,
            kind,
        });
    }
    if left_out > 0 {
        let all = left_out + MOUNTS_MAX;
        machine.note(format!("of {all} mounts only {MOUNTS_MAX} were looked at"));
    }
    Ok(mounts)
}

/// Bytes and inodes in use, as `df` counts: of what ordinary users can have.
fn space(machine: &Machine, point: &str) -> (Seen<f64>, Seen<f64>) {
    if !machine.is_live() {
        let why = "a copied tree of files does not tell";
        return (Seen::unseen(why), Seen::unseen(why));
    }
    let asked = point.to_owned();
    let found = machine.answered(point, move || rustix::fs::statvfs(asked));
    match found.and_then(|found| found.map_err(|error| format!("{point} cannot be asked: {error}"))) {
        Err(why) => (Seen::unseen(&why), Seen::unseen(why)),
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
        let targets = match kind.as_str() {
            "swap" => Vec::new(),
            _ => over
                .targets(machine, link.as_deref().unwrap_or(&device))
                .unwrap_or_default()
                .into_iter()
                .collect(),
        };
        let options = options.split(',').map(str::to_owned).collect();
        Some(FstabEntry { device, point, kind, options, iscsi: !targets.is_empty(), targets })
    };
    machine.text("/etc/fstab").map(|text| text.lines().filter_map(entry).collect()).into()
}

pub(super) fn swaps(machine: &Machine, over: &Over) -> Result<Vec<Swap>, String> {
    let text = machine.text("/proc/swaps")?;
    let mounts = machine.text("/proc/self/mounts");
    let lies_on = |path: &str| match &mounts {
        Ok(mounts) => targets_below(machine, over, mounts, path),
        Err(why) => over.targets(machine, path).map_err(|_| why.clone()),
    };
    let swap = |line: &str| {
        let path = unescaped(line.split_whitespace().next()?);
        // Memory that is compressed lies on no disk.
        let zram = path.starts_with("/dev/zram");
        (!zram).then(|| Swap { iscsi: lies_on(&path).map(|targets| !targets.is_empty()).into(), path })
    };
    Ok(text.lines().skip(1).filter_map(swap).collect())
}

/// Targets that what is below a device or a file is reached by: the disks of the device, those of the file system that
/// the file is in, or those of the file behind a loop device.
fn targets_below(
    machine: &Machine,
    over: &Over,
    mounts: &str,
    path: &str,
) -> Result<BTreeSet<String>, String> {
    let mut path = path.to_owned();
    for _ in 0..CHAIN_MAX {
        if let Some(device) = path.strip_prefix("/dev/") {
            match machine.line(&format!("/sys/block/{device}/loop/backing_file")) {
                Ok(file) => path = file,
                Err(_) => return over.targets(machine, &path),
            }
            continue;
        }
        // Of mounts at one point the last one is seen.
        let fields = mounts.lines().filter_map(|line| {
            let mut fields = line.split(' ').map(unescaped);
            Some((fields.next()?, fields.next()?))
        });
        let holds = |point: &str| Path::new(&path).starts_with(point);
        let (device, point) = fields
            .filter(|(_, point)| holds(point))
            .max_by_key(|(_, point)| Path::new(point).components().count())
            .ok_or_else(|| format!("which file system {path} lies in is not told"))?;
        if !device.starts_with("/dev/") {
            return Err(format!("which disks {device}, mounted at {point}, lies on is not told"));
        }
        path = device;
    }
    Err(format!("which disks {path} lies on is not told"))
}

/// Octal escapes of spaces, tabs, line ends and backslashes (getmntent(3)).
pub(super) fn unescaped(text: &str) -> String {
    let mut plain = text.to_owned();
    for (escape, character) in [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")] {
        plain = plain.replace(escape, character);
    }
    plain
}
