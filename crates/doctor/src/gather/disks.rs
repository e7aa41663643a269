//! Disks, and what lies on them.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::resume_unwind;
use std::thread;

use super::source::{Machine, denied};
use super::{arrays, mounts};
use crate::facts::{Disk, KernelSession, OpenIscsi, Partition, Storage};
use crate::seen::Seen;

/// Bytes of the unit in which sysfs counts sizes and starts, whatever the disk's sectors are.
const UNIT: u64 = 512;
/// Disks whose own health is asked. Each costs a start of smartctl.
const SMART_MAX: usize = 16;
/// Maps on maps that are followed: a volume on an encrypted map on an array on a multipath map.
const CHAIN_MAX: usize = 4;

pub(super) fn storage(machine: &Machine, initiator: Option<&OpenIscsi>) -> Storage {
    let sessions: BTreeMap<&str, &KernelSession> = initiator
        .iter()
        .filter_map(|initiator| initiator.sessions.get())
        .flatten()
        .flat_map(|session| session.disks.iter().map(move |disk| (disk.as_str(), session)))
        .collect();
    thread::scope(|scope| {
        let pools = scope.spawn(|| arrays::pools(machine));
        let volumes = scope.spawn(|| arrays::volumes(machine));
        let mut disks = machine.listed("/sys/block").map(|names| {
            let disks = names.into_iter().filter_map(|name| disk(machine, &name, &sessions));
            disks.collect::<Vec<_>>()
        });
        for found in disks.iter_mut() {
            ask_health(machine, found);
        }
        let over = Over::of(machine, &disks, &sessions);
        let whole = |panic| resume_unwind(panic);
        Storage {
            arrays: Seen::Value(arrays::md(machine)),
            mounts: mounts::mounts(machine, &over).into(),
            fstab: mounts::fstab(machine, &over),
            swaps: mounts::swaps(machine, &over).into(),
            disks: disks.into(),
            pools: pools.join().unwrap_or_else(whole),
            volumes: volumes.join().unwrap_or_else(whole),
        }
    })
}

/// Block devices that lie on iSCSI disks, through maps and arrays.
#[derive(Debug, Default)]
pub(super) struct Over {
    /// Targets that a device's disks are reached by; none where all are local.
    targets: BTreeMap<String, BTreeSet<String>>,
    /// Devices of the device mapper by the names of their maps.
    names: BTreeMap<String, String>,
    /// Reason why nothing is known.
    unseen: Option<String>,
}

impl Over {
    fn of(
        machine: &Machine,
        disks: &Result<Vec<Disk>, String>,
        sessions: &BTreeMap<&str, &KernelSession>,
    ) -> Self {
        let disks = match disks {
            Ok(disks) => disks,
            Err(why) => return Self { unseen: Some(why.clone()), ..Self::default() },
        };
        let mut targets: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for disk in disks {
            let own: BTreeSet<String> =
                sessions.get(disk.name.as_str()).map(|session| session.target.clone()).into_iter().collect();
            for part in &disk.partitions {
                targets.insert(part.name.clone(), own.clone());
            }
            targets.insert(disk.name.clone(), own);
        }
        let is_upper = |name: &String| name.starts_with("dm-") || name.starts_with("md");
        let upper: Vec<(String, Vec<String>)> = machine
            .names("/sys/block")
            .into_iter()
            .filter(is_upper)
            .map(|name| (name.clone(), machine.names(&format!("/sys/block/{name}/slaves"))))
            .collect();
        // A map may lie on a map that comes later in the order of names; chains are short.
        for _ in 0..CHAIN_MAX {
            for (name, below) in &upper {
                // One with a part that is not known is not known itself.
                let parts: Option<Vec<_>> = below.iter().map(|below| targets.get(below)).collect();
                if let Some(parts) = parts.filter(|parts| !parts.is_empty()) {
                    let all: BTreeSet<String> = parts.into_iter().flatten().cloned().collect();
                    for part in partitions(machine, name) {
                        targets.insert(part.name, all.clone());
                    }
                    targets.insert(name.clone(), all);
                }
            }
        }
        let name = |(device, _): &(String, Vec<String>)| {
            Some((machine.line(&format!("/sys/block/{device}/dm/name")).ok()?, device.clone()))
        };
        Self { names: upper.iter().filter_map(name).collect(), targets, unseen: None }
    }

    /// The kernel's name of a device by its path; `None`: it is no path of a device.
    pub(super) fn name(&self, machine: &Machine, path: &str) -> Option<String> {
        let name = path.strip_prefix("/dev/")?;
        Some(match name.strip_prefix("mapper/").and_then(|name| self.names.get(name)) {
            Some(device) => device.clone(),
            // A link as in /dev/disk/by-uuid.
            None => match machine.link(path).and_then(|to| Some(to.file_name()?.to_str()?.to_owned())) {
                Some(device) => device,
                None => name.to_owned(),
            },
        })
    }

    /// The targets that a device's disks are reached by, by its path; none where all its disks are local.
    pub(super) fn targets(&self, machine: &Machine, path: &str) -> Result<BTreeSet<String>, String> {
        if let Some(why) = &self.unseen {
            return Err(why.clone());
        }
        let unknown = || format!("which disks {path} lies on is not told");
        let name = self.name(machine, path).ok_or_else(unknown)?;
        self.targets.get(&name).cloned().ok_or_else(unknown)
    }
}

fn disk(machine: &Machine, name: &str, sessions: &BTreeMap<&str, &KernelSession>) -> Option<Disk> {
    let virtual_kinds = ["loop", "ram", "zram", "dm-", "md", "nbd", "sr", "fd"];
    if virtual_kinds.iter().any(|kind| name.starts_with(kind)) {
        return None;
    }
    let file = |what: &str| format!("/sys/block/{name}/{what}");
    let sectors: u64 = machine.number(&file("size")).ok()?;
    if sectors == 0 {
        return None;
    }
    let session = sessions.get(name).map(|session| session.name.clone());
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
        state: machine.line(&file("device/state")).into(),
        rq_affinity: machine.number(&file("queue/rq_affinity")).into(),
        nr_requests: machine.number(&file("queue/nr_requests")).into(),
        read_ahead_kb: machine.number(&file("queue/read_ahead_kb")).into(),
        holders: machine.names(&file("holders")),
        partitions: partitions(machine, name),
        healthy: Seen::default(),
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

/// Asks all local disks for their self-assessment, at once: a dead one is not waited for by the others.
fn ask_health(machine: &Machine, disks: &mut [Disk]) {
    thread::scope(|scope| {
        let mut asked = 0;
        for disk in disks {
            if disk.session.is_some() {
                disk.healthy = Seen::unseen("its storage knows it");
                continue;
            }
            asked += 1;
            if asked > SMART_MAX {
                disk.healthy = Seen::unseen(format!("only {SMART_MAX} disks are asked"));
                continue;
            }
            scope.spawn(|| disk.healthy = health(machine, &disk.name).into());
        }
    });
}

/// The disk's self-assessment, by smartctl. Bit 3 of its exit code says "failing", but only its JSON tells that from a
/// missing feature.
fn health(machine: &Machine, name: &str) -> Result<bool, String> {
    let text = machine.printed_with_any_code("smartctl", &["--json", "--health", &format!("/dev/{name}")])?;
    let value: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    if let Some(passed) = value["smart_status"]["passed"].as_bool() {
        return Ok(passed);
    }
    // Errors are in the document, too: `Smartctl open device: /dev/sda failed: Permission denied`.
    let said = value["smartctl"]["messages"].as_array().into_iter().flatten();
    let said: Vec<&str> = said.filter_map(|message| message["string"].as_str()).collect();
    Err(match said.first() {
        _ if said.iter().any(|text| denied(text)) => "smartctl takes root".to_owned(),
        Some(text) => {
            let text: String = text.chars().filter(|c| !c.is_control()).take(120).collect();
            format!("smartctl does not tell: {text}")
        }
        None => "smartctl does not tell".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
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
        put(
            root,
            "proc/self/mounts",
            "/dev/dm-1 /mnt/a\\040b ext4 rw,relatime 0 0\nproc /proc proc rw 0 0\n",
        );
        put(root, "etc/fstab", "/dev/mapper/mpatha /data xfs defaults 0 0\n# x\n");
        put(root, "proc/swaps", "Filename Type Size Used Priority\n/dev/sdb partition 1 0 -2\n");
        let machine = Machine::copy(root);
        let session =
            KernelSession { name: "session1".into(), disks: vec!["sdb".into()], ..KernelSession::default() };
        let initiator = OpenIscsi { sessions: Seen::Value(vec![session]), ..OpenIscsi::default() };
        let storage = storage(&machine, Some(&initiator));
        let disks = storage.disks.get().cloned().unwrap_or_default();
        assert_eq!(disks.len(), 2, "{disks:?}");
        assert_eq!(disks[0].scheduler, Seen::Value("bfq".to_owned()));
        assert_eq!((disks[0].partitions[0].start, disks[0].physical_sector), (63 * 512, 4096));
        assert_eq!((disks[0].lun, disks[1].lun), (None, Some(5)));
        assert!(disks[1].session.is_some() && disks[1].timeout == Seen::Value(30));
        let arrays = storage.arrays.get().cloned().unwrap_or_default();
        assert!(arrays.len() == 1 && arrays[0].degraded == Seen::Value(true), "{arrays:?}");
        let mounts = storage.mounts.get().cloned().unwrap_or_default();
        assert!(mounts.len() == 1 && mounts[0].iscsi && mounts[0].point == "/mnt/a b", "{mounts:?}");
        assert!(storage.fstab.get().is_some_and(|entries| entries[0].iscsi));
        assert!(storage.swaps.get().is_some_and(|swaps| swaps[0].iscsi == Seen::Value(true)));
    }

    #[test]
    fn a_file_of_swap_lies_where_its_file_system_does_or_is_not_known() {
        let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        let root = folder.path();
        for (file, text) in [
            ("sda/size", "2048"),
            ("sda/sda1/partition", "1"),
            ("sda/sda1/start", "2048"),
            ("sdb/size", "2048"),
            ("dm-0/dm/name", "mpatha"),
            ("dm-0/slaves/sdb/x", ""),
            ("loop0/loop/backing_file", "/data/swap.img"),
        ] {
            put(root, &format!("sys/block/{file}"), text);
        }
        put(
            root,
            "proc/self/mounts",
            "/dev/sda1 / ext4 rw 0 0\n/dev/mapper/mpatha /data xfs rw 0 0\nnas:/x /nas nfs rw 0 0\nrpool/var /var zfs rw 0 0\n",
        );
        put(
            root,
            "proc/swaps",
            "Filename Type Size Used Priority\n/data/swap file 1 0 -2\n/database/swap file 1 0 -3\n/nas/swap file 1 0 -4\n\
             /var/swap file 1 0 -5\n/dev/loop0 partition 1 0 -6\n/dev/sda1 partition 1 0 -7\n/dev/odd partition 1 0 -8\n",
        );
        let session = KernelSession {
            name: "s".into(),
            target: "t".into(),
            disks: vec!["sdb".into()],
            ..KernelSession::default()
        };
        let initiator = OpenIscsi { sessions: Seen::Value(vec![session]), ..OpenIscsi::default() };
        let swaps = storage(&Machine::copy(root), Some(&initiator)).swaps;
        let told = |path: &str| {
            let mut swaps = swaps.get().into_iter().flatten();
            swaps.find(|swap| swap.path == path).map(|swap| swap.iscsi.clone()).unwrap_or_default()
        };
        assert_eq!(told("/data/swap"), Seen::Value(true));
        assert_eq!(told("/database/swap"), Seen::Value(false), "it only begins like /data");
        assert_eq!(told("/dev/loop0"), Seen::Value(true));
        assert_eq!(told("/dev/sda1"), Seen::Value(false));
        for unknown in ["/nas/swap", "/var/swap", "/dev/odd"] {
            assert!(told(unknown).why().contains("is not told"), "{unknown}: {:?}", told(unknown));
        }
    }

    #[test]
    fn smartctl_without_root_says_that_it_takes_root() {
        let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        let root = folder.path();
        let answers = [
            (
                "sda",
                r#"{"smartctl":{"messages":[{"string":"Smartctl open device: /dev/sda failed: Permission denied","severity":"error"}],"exit_status":2}}"#,
            ),
            ("sdb", r#"{"smart_status":{"passed":false}}"#),
            ("sdc", r#"{"smartctl":{"messages":[{"string":"Unable to detect device type"}]}}"#),
            ("sdd", "{"),
        ];
        for (disk, answer) in answers {
            put(root, &format!("commands/smartctl_--json_--health_-dev-{disk}"), answer);
        }
        let machine = Machine::copy(root);
        let told = answers.map(|(disk, _)| health(&machine, disk));
        assert_eq!(told[0], Err("smartctl takes root".to_owned()));
        assert_eq!(told[1], Ok(false));
        assert_eq!(told[2], Err("smartctl does not tell: Unable to detect device type".to_owned()));
        assert_eq!(told[3], Err("smartctl does not tell".to_owned()));
    }
}
