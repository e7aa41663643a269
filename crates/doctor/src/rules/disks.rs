//! Rules about disks, local and remote, and arrays of them.

use lunway_block::Severity;

use super::{Group, Rule, listed};
use crate::facts::{Array, ArrayKind, Disk, Facts};
use crate::seen::Seen;
use crate::verdict::{Outcome, Verdict};

const ISCSI: &str = "disks that are reached over iSCSI";

/// Percentage from which a pool or a file system is too full.
pub(super) const FULL_WARN: f64 = 80.0;
/// Percentage from which the next hours decide: chosen as half of ext4's and XFS's usual reserve.
pub(super) const FULL_BAD: f64 = 95.0;
/// Seconds that the SCSI layer should wait for a command of an iSCSI disk.
const TIMEOUT_S: std::ops::RangeInclusive<u32> = 30..=60;

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "disk-scheduler",
        group: Group::Disks,
        title: "An iSCSI disk has no I/O scheduler, or mq-deadline",
        severity: Severity::Note,
        applies: ISCSI,
        why: "the storage orders I/O itself; bfq holds a request back for up to 8 ms to wait for a neighbour",
        source: "HPE's list: none; Linux bfq, slice_idle",
        thumbs: &[1],
        fix: "echo none > /sys/block/{disk}/queue/scheduler",
        undo: "echo {old} > /sys/block/{disk}/queue/scheduler",
        check: |facts| {
            iscsi(facts, |disk| {
                known(disk, &disk.scheduler, "the scheduler", |scheduler| {
                    let what = format!("{} has the scheduler {scheduler}", disk.name);
                    let sound = matches!(scheduler.as_str(), "none" | "mq-deadline" | "noop" | "deadline");
                    Outcome::judged(sound, Verdict::Warn, &disk.name, what).with("old", scheduler)
                })
            })
        },
    },
    Rule {
        id: "disk-random",
        group: Group::Disks,
        title: "I/O of an iSCSI disk does not feed the kernel's random numbers",
        severity: Severity::Note,
        applies: ISCSI,
        why: "each I/O then takes a lock that all processors share",
        source: "HPE's list: add_random 0",
        thumbs: &[1],
        fix: "echo 0 > /sys/block/{disk}/queue/add_random",
        undo: "echo 1 > /sys/block/{disk}/queue/add_random",
        check: |facts| {
            iscsi(facts, |disk| {
                known(disk, &disk.add_random, "add_random", |on| {
                    let what = format!("{} has add_random {}", disk.name, u8::from(*on));
                    Outcome::judged(!*on, Verdict::Warn, &disk.name, what)
                })
            })
        },
    },
    Rule {
        id: "disk-timeout",
        group: Group::Disks,
        title: "The SCSI layer waits 30 to 60 s for an iSCSI disk",
        severity: Severity::Warning,
        applies: ISCSI,
        why: "a shorter time aborts commands in the middle of a failover; a longer one hides a disk that hangs",
        source: "Linux's default 30 s; storage vendors' guides up to 60 s",
        thumbs: &[1],
        fix: "echo 30 > /sys/block/{disk}/device/timeout",
        undo: "echo {old} > /sys/block/{disk}/device/timeout",
        check: |facts| {
            iscsi(facts, |disk| {
                known(disk, &disk.timeout, "the time-out", |seconds| {
                    let what = format!("the SCSI layer waits {seconds} s for {}", disk.name);
                    let sound = TIMEOUT_S.contains(seconds);
                    Outcome::judged(sound, Verdict::Warn, &disk.name, what).with("old", seconds)
                })
            })
        },
    },
    Rule {
        id: "disk-request",
        group: Group::Disks,
        title: "Requests to an iSCSI disk may have 128 KiB or more",
        severity: Severity::Note,
        applies: ISCSI,
        why: "a sequential read of 4 MiB is cut into as many commands, each with its round trip on the wire",
        source: "Linux's default max_sectors_kb is 1280 (older: 512)",
        thumbs: &[18],
        fix: "echo 1280 > /sys/block/{disk}/queue/max_sectors_kb",
        undo: "echo {old} > /sys/block/{disk}/queue/max_sectors_kb",
        check: |facts| {
            iscsi(facts, |disk| {
                known(disk, &disk.max_sectors_kb, "max_sectors_kb", |kib| {
                    let what = format!("requests to {} have at most {kib} KiB", disk.name);
                    Outcome::judged(*kib >= 128, Verdict::Warn, &disk.name, what).with("old", kib)
                })
            })
        },
    },
    Rule {
        id: "disk-alignment",
        group: Group::Disks,
        title: "Partitions begin at multiples of the physical sector",
        severity: Severity::Warning,
        applies: "disks with physical sectors larger than their logical ones (512e)",
        why: "every write of 4 KiB then touches two physical sectors, and the disk reads both before it writes them",
        source: "SBC-4 §4.6: alignment; sectors of 512 and 4K differ by -5 to +5 % where both are aligned",
        thumbs: &[18],
        fix: "copy {partition} elsewhere, recreate it at a multiple of 1 MiB, copy it back",
        undo: "",
        check: alignment,
    },
    Rule {
        id: "disk-smart",
        group: Group::Disks,
        title: "Disks predict no failure of their own",
        severity: Severity::Warning,
        applies: "local disks, but for those of virtual machines",
        why: "a disk that reports a failed self-assessment has a rate of failure tens of times higher",
        source: "Google's study of disk failures, 2007: 39 times within 60 days of the first scan error",
        thumbs: &[],
        fix: "copy the data on {disk} elsewhere, and replace the disk",
        undo: "",
        check: |facts| {
            disks(facts, |disk| {
                // Disks of virtual machines (virtio, Xen) do not judge themselves.
                if disk.name.starts_with("vd") || disk.name.starts_with("xvd") {
                    return None;
                }
                match disk.healthy.known() {
                    Ok(healthy) => {
                        let what = if *healthy { "predicts no failure" } else { "predicts its own failure" };
                        let text = format!("{} {what}", disk.name);
                        Some(Outcome::judged(*healthy, Verdict::Bad, &disk.name, text))
                    }
                    Err(_) if disk.session.is_some() => None,
                    Err(why) => Some(Outcome::unknown(&disk.name, format!("health of {}: {why}", disk.name))),
                }
            })
        },
    },
    Rule {
        id: "array-sectors",
        group: Group::Disks,
        title: "All disks of an array have the same sectors",
        severity: Severity::Warning,
        applies: "md arrays",
        why: "one disk with 4 KiB sectors among disks with 512 forces the array into \
              read-modify-write for smaller writes",
        source: "published tests of sectors: never mix in one array",
        thumbs: &[18],
        fix: "replace {disk} with a disk with sectors of {sector} bytes",
        undo: "",
        check: mixed,
    },
    Rule {
        id: "array-degraded",
        group: Group::Disks,
        title: "Arrays have all their members",
        severity: Severity::Warning,
        applies: "md arrays, ZFS pools",
        why: "the next failed disk takes everything in the array with it",
        source: "md.4; zpool-status.8",
        thumbs: &[],
        fix: "mdadm /dev/{array} --add DISK    # or: zpool replace {array} OLD NEW",
        undo: "",
        check: |facts| {
            arrays(facts, |array| {
                let what = match array.degraded {
                    true => format!("{} {} lacks members", array.name, array.level),
                    false => format!("{} {} is complete", array.name, array.level),
                };
                let redundant = array.kind != ArrayKind::Lvm;
                redundant.then(|| Outcome::judged(!array.degraded, Verdict::Bad, &array.name, what))
            })
        },
    },
    Rule {
        id: "array-busy",
        group: Group::Disks,
        title: "No array is being rebuilt or checked",
        severity: Severity::Note,
        applies: "md arrays, ZFS pools",
        why: "until it ends, measurements do not show the array's normal performance, and redundancy may be missing",
        source: "md.4, sync_action",
        thumbs: &[],
        fix: "wait; or, for a check only: echo idle > /sys/block/{array}/md/sync_action",
        undo: "echo {old} > /sys/block/{array}/md/sync_action",
        check: |facts| {
            arrays(facts, |array| {
                let idle = matches!(array.action.as_str(), "" | "idle" | "frozen");
                let what = if idle { "idle" } else { &array.action };
                let outcome =
                    Outcome::judged(idle, Verdict::Warn, &array.name, format!("{} is at {what}", array.name));
                (array.kind != ArrayKind::Lvm).then(|| outcome.with("old", &array.action))
            })
        },
    },
    Rule {
        id: "pool-full",
        group: Group::Disks,
        title: "Pools are under 80 % full",
        severity: Severity::Warning,
        applies: "ZFS pools, LVM thin pools",
        why: "ZFS and thin pools slow down as they fill, and a thin pool that is full turns every write into an error",
        source: "rule of thumb 19",
        thumbs: &[19],
        fix: "lvextend -L +SIZE {array}    # or: zpool add {array} DISKS",
        undo: "",
        check: |facts| {
            arrays(facts, |array| {
                let used = array.used_percent?;
                let verdict = if used >= FULL_BAD { Verdict::Bad } else { Verdict::Warn };
                let what = format!("{} is {used:.0} % full", array.name);
                Some(Outcome::judged(used < FULL_WARN, verdict, &array.name, what))
            })
        },
    },
];

/// Judges each disk.
fn disks(facts: &Facts, judge: impl Fn(&Disk) -> Option<Outcome>) -> Vec<Outcome> {
    let Some(storage) = &facts.storage else { return Vec::new() };
    match storage.disks.known() {
        Err(why) => vec![Outcome::unknown("disks", format!("disks: {why}"))],
        Ok(disks) => {
            let judged = |disk: &Disk| judge(disk).map(|outcome| outcome.with("disk", &disk.name));
            disks.iter().filter_map(judged).collect()
        }
    }
}

fn iscsi(facts: &Facts, judge: impl Fn(&Disk) -> Outcome) -> Vec<Outcome> {
    disks(facts, |disk| disk.session.as_ref().map(|_| judge(disk)))
}

fn known<T>(disk: &Disk, fact: &Seen<T>, name: &str, judge: impl FnOnce(&T) -> Outcome) -> Outcome {
    match fact.known() {
        Ok(value) => judge(value),
        Err(why) => Outcome::unknown(&disk.name, format!("{name} of {}: {why}", disk.name)),
    }
}

fn arrays(facts: &Facts, judge: impl Fn(&Array) -> Option<Outcome>) -> Vec<Outcome> {
    let Some(storage) = &facts.storage else { return Vec::new() };
    match storage.arrays.known() {
        Err(why) => vec![Outcome::unknown("arrays", format!("arrays: {why}"))],
        Ok(arrays) => {
            let judged = |array: &Array| judge(array).map(|outcome| outcome.with("array", &array.name));
            arrays.iter().filter_map(judged).collect()
        }
    }
}

fn alignment(facts: &Facts) -> Vec<Outcome> {
    disks(facts, |disk| {
        if disk.physical_sector <= disk.logical_sector || disk.partitions.is_empty() {
            return None;
        }
        let sector = u64::from(disk.physical_sector);
        let astray = disk.partitions.iter().find(|partition| partition.start % sector != 0);
        let what = match astray {
            None => format!("partitions of {} begin at multiples of {sector} bytes", disk.name),
            Some(partition) => {
                format!("{} begins at byte {}, no multiple of {sector}", partition.name, partition.start)
            }
        };
        let place = astray.map_or(&disk.name, |partition| &partition.name);
        let outcome = Outcome::judged(astray.is_none(), Verdict::Warn, place, what);
        Some(outcome.with("partition", place))
    })
}

/// The disk that a member of an array lies on: the member itself, or the disk of the partition.
fn disk_of<'a>(facts: &'a Facts, member: &str) -> Option<&'a Disk> {
    let mut disks = facts.storage.iter().filter_map(|storage| storage.disks.get()).flatten();
    disks.find(|disk| disk.name == member || disk.partitions.iter().any(|partition| partition.name == member))
}

fn mixed(facts: &Facts) -> Vec<Outcome> {
    arrays(facts, |array| {
        let disks: Vec<&Disk> = array.members.iter().filter_map(|member| disk_of(facts, member)).collect();
        let first = disks.first()?;
        let sectors = |disk: &Disk| (disk.logical_sector, disk.physical_sector);
        let other = disks.iter().find(|disk| sectors(disk) != sectors(first));
        let form = |disk: &Disk| match sectors(disk) {
            (logical, physical) if logical == physical => format!("{} has sectors of {logical}", disk.name),
            (logical, physical) => format!("{} has sectors of {logical} on {physical}", disk.name),
        };
        let what = match other {
            None => format!("the disks of {} have the same sectors", array.name),
            Some(other) => format!("in {} {}", array.name, listed([form(first), form(other)])),
        };
        let outcome = Outcome::judged(other.is_none(), Verdict::Warn, &array.name, what);
        Some(outcome.with("disk", other.map_or("", |disk| &disk.name)).with("sector", first.logical_sector))
    })
}
