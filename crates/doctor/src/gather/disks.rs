//! Disks, arrays, and what lies on them.

use std::collections::BTreeMap;

use super::mounts;
use super::source::Machine;
use crate::facts::{Array, ArrayKind, Disk, OpenIscsi, Partition, Storage};
use crate::seen::Seen;

/// Bytes of the unit in which sysfs counts sizes and starts, whatever the disk's sectors are.
const UNIT: u64 = 512;
/// Disks whose own health is asked. Each costs a start of smartctl.
const SMART_MAX: usize = 16;

pub(super) fn storage(machine: &Machine, initiator: Option<&OpenIscsi>) -> Storage {
    let sessions: BTreeMap<&str, &str> = initiator
        .iter()
        .filter_map(|initiator| initiator.sessions.get())
        .flatten()
        .flat_map(|session| session.disks.iter().map(|disk| (disk.as_str(), session.name.as_str())))
        .collect();
    let disks = machine.listed("/sys/block").map(|names| {
        let mut asked = 0;
        let disks = names.into_iter().filter_map(|name| disk(machine, &name, &sessions, &mut asked));
        disks.collect::<Vec<_>>()
    });
    let over = disks.as_ref().map_or_else(|_| Over::default(), |disks| Over::of(machine, disks));
    Storage {
        arrays: Seen::Value(arrays(machine)),
        mounts: mounts::mounts(machine, &over).into(),
        fstab: mounts::fstab(machine, &over),
        swaps: mounts::swaps(machine, &over).into(),
        disks: disks.into(),
    }
}

/// Which block devices lie on iSCSI disks, through maps and arrays.
#[derive(Debug, Default)]
pub(super) struct Over {
    iscsi: Vec<String>,
    names: BTreeMap<String, String>,
}

impl Over {
    fn of(machine: &Machine, disks: &[Disk]) -> Self {
        let mut iscsi: Vec<String> = disks
            .iter()
            .filter(|disk| disk.session.is_some())
            .flat_map(|disk| {
                std::iter::once(disk.name.clone()).chain(disk.partitions.iter().map(|part| part.name.clone()))
            })
            .collect();
        let upper: Vec<String> = machine
            .names("/sys/block")
            .into_iter()
            .filter(|name| name.starts_with("dm-") || name.starts_with("md"))
            .collect();
        // A map may lie on a map that comes later in the order of names; chains are short.
        for _ in 0..4 {
            for name in &upper {
                let below = machine.names(&format!("/sys/block/{name}/slaves"));
                if !iscsi.contains(name) && below.iter().any(|below| iscsi.contains(below)) {
                    iscsi.push(name.clone());
                }
            }
        }
        let name = |device: &String| {
            Some((machine.line(&format!("/sys/block/{device}/dm/name")).ok()?, device.clone()))
        };
        Self { iscsi, names: upper.iter().filter_map(name).collect() }
    }

    /// Whether a device, by its path, lies on an iSCSI disk.
    pub(super) fn has(&self, machine: &Machine, path: &str) -> bool {
        let Some(name) = path.strip_prefix("/dev/") else { return false };
        let name = match name.strip_prefix("mapper/") {
            Some(name) => self.names.get(name).cloned().unwrap_or_default(),
            // A link as in /dev/disk/by-uuid.
            None => match machine.link(path) {
                Some(to) => {
                    to.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
                }
                None => name.to_owned(),
            },
        };
        self.iscsi.contains(&name)
    }
}

fn disk(machine: &Machine, name: &str, sessions: &BTreeMap<&str, &str>, asked: &mut usize) -> Option<Disk> {
    let virtual_kinds = ["loop", "ram", "zram", "dm-", "md", "nbd", "sr", "fd"];
    if virtual_kinds.iter().any(|kind| name.starts_with(kind)) {
        return None;
    }
    let file = |what: &str| format!("/sys/block/{name}/{what}");
    let sectors: u64 = machine.number(&file("size")).ok()?;
    if sectors == 0 {
        return None;
    }
    let session = sessions.get(name).map(|session| (*session).to_owned());
    let local = session.is_none();
    let flag =
        |what: &str| -> Seen<bool> { machine.number::<u32>(&file(what)).map(|value| value != 0).into() };
    let wwid = machine.line(&file("device/wwid")).or_else(|_| machine.line(&file("wwid")));
    Some(Disk {
        session,
        lun: unit(machine, name),
        wwid: wwid.ok().filter(|wwid| !wwid.is_empty()),
        size: sectors.saturating_mul(UNIT),
        logical_sector: machine.number(&file("queue/logical_block_size")).unwrap_or(512),
        physical_sector: machine.number(&file("queue/physical_block_size")).unwrap_or(512),
        rotational: flag("queue/rotational"),
        scheduler: machine.line(&file("queue/scheduler")).map(|line| scheduler(&line)).into(),
        add_random: flag("queue/add_random"),
        max_sectors_kb: machine.number(&file("queue/max_sectors_kb")).into(),
        write_cache: machine.line(&file("queue/write_cache")).into(),
        timeout: machine.number(&file("device/timeout")).into(),
        holders: machine.names(&file("holders")),
        partitions: partitions(machine, name),
        healthy: match local {
            true => health(machine, name, asked),
            false => Seen::unseen("its storage knows it"),
        },
        name: name.to_owned(),
    })
}

/// `…/2:0:0:1`, the device below a disk: host, channel, target, logical unit.
fn unit(machine: &Machine, disk: &str) -> Option<u64> {
    let device = machine.link(&format!("/sys/block/{disk}/device"))?;
    let address = device.file_name()?.to_str()?;
    let (_, lun) = address.rsplit_once(':').filter(|(rest, _)| rest.split(':').count() == 3)?;
    lun.parse().ok()
}

/// `none [mq-deadline] kyber`: the one in brackets.
fn scheduler(line: &str) -> String {
    let in_brackets = line.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(name, _)| name);
    in_brackets.unwrap_or(line).trim().to_owned()
}

fn partitions(machine: &Machine, disk: &str) -> Vec<Partition> {
    let names = machine.names(&format!("/sys/block/{disk}"));
    let partition = |name: String| {
        let folder = format!("/sys/block/{disk}/{name}");
        if !machine.exists(&format!("{folder}/partition")) {
            return None;
        }
        let start: u64 = machine.number(&format!("{folder}/start")).ok()?;
        let holders = machine.names(&format!("{folder}/holders"));
        Some(Partition { start: start.saturating_mul(UNIT), holders, name })
    };
    names.into_iter().filter(|name| name.starts_with(disk)).filter_map(partition).collect()
}

/// The disk's self-assessment, by smartctl. Bit 3 of its exit code says "failing", but only its JSON tells that from a
/// missing feature.
fn health(machine: &Machine, name: &str, asked: &mut usize) -> Seen<bool> {
    *asked += 1;
    if *asked > SMART_MAX {
        return Seen::unseen(format!("only {SMART_MAX} disks are asked"));
    }
    match machine.printed_with_any_code("smartctl", &["--json", "--health", &format!("/dev/{name}")]) {
        Err(why) => Seen::unseen(why),
        Ok(text) => {
            let value: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
            let passed = value["smart_status"]["passed"].as_bool();
            passed.ok_or_else(|| "smartctl does not tell".to_owned()).into()
        }
    }
}

fn arrays(machine: &Machine) -> Vec<Array> {
    let mut arrays: Vec<Array> = Vec::new();
    for name in machine.names("/sys/block").into_iter().filter(|name| name.starts_with("md")) {
        let file = |what: &str| format!("/sys/block/{name}/md/{what}");
        let Ok(level) = machine.line(&file("level")) else { continue };
        arrays.push(Array {
            level,
            kind: ArrayKind::Md,
            degraded: machine.number::<u32>(&file("degraded")).unwrap_or(0) > 0,
            action: machine.line(&file("sync_action")).unwrap_or_default(),
            members: machine.names(&format!("/sys/block/{name}/slaves")),
            used_percent: None,
            name,
        });
    }
    let pools = machine.printed("zpool", &["list", "-H", "-o", "name,health,capacity"]);
    arrays.extend(pools.iter().flat_map(|text| text.lines()).filter_map(pool));
    let thin = machine
        .printed("lvs", &["--noheadings", "--separator", "|", "-o", "vg_name,lv_name,lv_attr,data_percent"]);
    arrays.extend(thin.iter().flat_map(|text| text.lines()).filter_map(thin_pool));
    arrays
}

/// `tank ONLINE 37%`.
fn pool(line: &str) -> Option<Array> {
    let mut fields = line.split('\t');
    let (name, health, used) = (fields.next()?, fields.next()?, fields.next()?);
    Some(Array {
        name: name.to_owned(),
        kind: ArrayKind::Zfs,
        degraded: health != "ONLINE",
        used_percent: used.trim().trim_end_matches('%').parse().ok(),
        ..Array::default()
    })
}

/// `group|pool|twi-aotz--|12.50`: the first attribute of a thin pool is `t`.
fn thin_pool(line: &str) -> Option<Array> {
    let mut fields = line.trim().split('|');
    let (group, name, attributes, used) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
    attributes.starts_with('t').then(|| Array {
        name: format!("{group}/{name}"),
        kind: ArrayKind::Lvm,
        used_percent: used.parse().ok(),
        ..Array::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Session;
    use crate::gather::put;

    #[test]
    fn disks_arrays_and_what_lies_on_iscsi_are_read_from_files() {
        let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        let root = folder.path();
        put(root, "sys/devices/2:0:0:5/timeout", "30");
        let made = std::fs::create_dir_all(root.join("sys/block/sdb")).and_then(|()| {
            std::os::unix::fs::symlink("../../devices/2:0:0:5", root.join("sys/block/sdb/device"))
        });
        assert!(made.is_ok());
        for (file, text) in [
            ("sda/size", "2048"),
            ("sda/queue/logical_block_size", "512"),
            ("sda/queue/physical_block_size", "4096"),
            ("sda/queue/scheduler", "none [bfq] kyber"),
            ("sda/sda1/partition", "1"),
            ("sda/sda1/start", "63"),
            ("sdb/size", "2048"),
            ("loop0/size", "8"),
            ("dm-0/dm/name", "mpatha"),
            ("dm-0/slaves/sdb/x", ""),
            ("dm-1/slaves/dm-0/x", ""),
            ("md0/md/level", "raid1"),
            ("md0/md/degraded", "1"),
            ("md0/md/sync_action", "recover"),
            ("md0/slaves/sda1/x", ""),
        ] {
            put(root, &format!("sys/block/{file}"), text);
        }
        put(root, "commands/zpool_list_-H_-o_name,health,capacity", "tank\tDEGRADED\t81%\nodd\n");
        put(
            root,
            "commands/lvs_--noheadings_--separator_|_-o_vg_name,lv_name,lv_attr,data_percent",
            "  vg|pool|twi-aotz--|12.50\n  vg|root|-wi-ao----|\n",
        );
        put(
            root,
            "proc/self/mounts",
            "/dev/dm-1 /mnt/a\\040b ext4 rw,relatime 0 0\nproc /proc proc rw 0 0\n",
        );
        put(root, "etc/fstab", "/dev/mapper/mpatha /data xfs defaults 0 0\n# x\n");
        put(root, "proc/swaps", "Filename Type Size Used Priority\n/dev/sdb partition 1 0 -2\n");
        let machine = Machine::copy(root);
        let session = Session { name: "session1".into(), disks: vec!["sdb".into()], ..Session::default() };
        let initiator = OpenIscsi { sessions: Seen::Value(vec![session]), ..OpenIscsi::default() };
        let storage = storage(&machine, Some(&initiator));
        let disks = storage.disks.get().cloned().unwrap_or_default();
        assert_eq!(disks.len(), 2, "{disks:?}");
        assert_eq!(disks[0].scheduler, Seen::Value("bfq".to_owned()));
        assert_eq!((disks[0].partitions[0].start, disks[0].physical_sector), (63 * 512, 4096));
        assert_eq!((disks[0].lun, disks[1].lun), (None, Some(5)));
        assert!(disks[1].session.is_some() && disks[1].timeout == Seen::Value(30));
        let arrays = storage.arrays.get().cloned().unwrap_or_default();
        let names: Vec<_> = arrays.iter().map(|array| (array.name.as_str(), array.degraded)).collect();
        assert_eq!(names, [("md0", true), ("tank", true), ("vg/pool", false)]);
        let mounts = storage.mounts.get().cloned().unwrap_or_default();
        assert!(mounts.len() == 1 && mounts[0].iscsi && mounts[0].point == "/mnt/a b", "{mounts:?}");
        assert!(storage.fstab.get().is_some_and(|entries| entries[0].iscsi));
        assert!(storage.swaps.get().is_some_and(|swaps| swaps[0].iscsi));
    }
}
