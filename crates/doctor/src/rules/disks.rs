//! Rules about disks, local and remote, and arrays of them.

use lunway_block::Severity;

use super::{Group, Rule, listed};
use crate::facts::ArrayKind::{Lvm, Md, Zfs};
use crate::facts::{Array, ArrayKind, Disk, Facts};
use crate::seen::Seen;
use crate::verdict::{Outcome, Verdict};

const ISCSI: &str = "disks that are reached over iSCSI";

/// Percentage from which a pool or a file system is too full.
const FULL_WARN: f64 = 80.0;
/// Percentage from which the next hours decide: chosen as half of ext4's and XFS's usual reserve.
const FULL_BAD: f64 = 95.0;
/// Requests of a disk: open-iscsi's queue depth.
const REQUESTS_MIN: u32 = 32;
/// KiB that are read ahead: Linux's default.
const READ_AHEAD_MIN: u32 = 128;
/// The question whose answer says whether there is a UPS.
const UPS: &str = "asked-ups";
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
        why: "each I/O then takes a lock that all processors share (no published figure)",
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
        why: "a shorter time aborts commands in the middle of a failover; a longer one hides a disk that hangs; Linux waits 30 s \
              by default, vendors up to 60 s",
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
        id: "disk-affinity",
        group: Group::Disks,
        title: "Requests to an iSCSI disk are completed near the processor that made them",
        severity: Severity::Note,
        applies: ISCSI,
        why: "with rq_affinity 0 one processor completes everything, and each waiting task is woken from another cache (no published \
              figure)",
        source: "Linux block/queue-sysfs, rq_affinity: default 1; HPE's list: 2",
        thumbs: &[1],
        fix: "echo 2 > /sys/block/{disk}/queue/rq_affinity",
        undo: "echo {old} > /sys/block/{disk}/queue/rq_affinity",
        check: |facts| {
            iscsi(facts, |disk| {
                known(disk, &disk.rq_affinity, "rq_affinity", |value| {
                    let what = format!("{} has rq_affinity {value}", disk.name);
                    Outcome::judged(*value > 0, Verdict::Warn, &disk.name, what).with("old", value)
                })
            })
        },
    },
    Rule {
        id: "disk-queue",
        group: Group::Disks,
        title: "The kernel keeps 32 requests or more for an iSCSI disk",
        severity: Severity::Note,
        applies: ISCSI,
        why: "IOPS end at requests ÷ latency: 16 requests at 1 ms are 16,000 IOPS, however fast the storage is",
        source: "Little's law; open-iscsi's queue depth 32; HPE's list: nr_requests",
        thumbs: &[1],
        fix: "echo 128 > /sys/block/{disk}/queue/nr_requests",
        undo: "echo {old} > /sys/block/{disk}/queue/nr_requests",
        check: |facts| {
            iscsi(facts, |disk| {
                known(disk, &disk.nr_requests, "nr_requests", |value| {
                    let what = format!("the kernel keeps {value} requests for {}", disk.name);
                    Outcome::judged(*value >= REQUESTS_MIN, Verdict::Warn, &disk.name, what)
                        .with("old", value)
                })
            })
        },
    },
    Rule {
        id: "disk-read-ahead",
        group: Group::Disks,
        title: "128 KiB or more are read ahead of an iSCSI disk",
        severity: Severity::Note,
        applies: ISCSI,
        why: "a file that is read in order waits for a round trip after each window: 16 KiB at 0.42 ms are 39 MB/s, 128 KiB 312 MB/s",
        source: "Linux's default read_ahead_kb is 128; read latency 0.42 ms in published tests of software targets; HPE's list",
        thumbs: &[1],
        fix: "echo 128 > /sys/block/{disk}/queue/read_ahead_kb",
        undo: "echo {old} > /sys/block/{disk}/queue/read_ahead_kb",
        check: |facts| {
            iscsi(facts, |disk| {
                known(disk, &disk.read_ahead_kb, "read_ahead_kb", |kib| {
                    let what = format!("{kib} KiB are read ahead of {}", disk.name);
                    Outcome::judged(*kib >= READ_AHEAD_MIN, Verdict::Warn, &disk.name, what).with("old", kib)
                })
            })
        },
    },
    Rule {
        id: "disk-write-cache",
        group: Group::Disks,
        title: "Local disks that cache writes have an uninterruptible power supply",
        severity: Severity::Warning,
        applies: "local disks",
        why: "what a disk's cache holds is lost in a power cut: all that was written since the last flush, and everything where \
              barriers are off (no published figure)",
        source: "rule of thumb 21: write-back caching only with a trusted UPS; Linux block/queue-sysfs, write_cache",
        thumbs: &[21],
        fix: "for disk in {disks}; do hdparm -W 0 /dev/$disk; done    # NVMe: nvme set-feature /dev/DISK -f 6 -v 0; or install a UPS",
        undo: "for disk in {disks}; do hdparm -W 1 /dev/$disk; done",
        check: write_caches,
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
        why: "a disk that reports a failed self-assessment has a rate of failure 39 times higher within 60 days",
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
        applies: "md arrays, ZFS pools, LVM groups",
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
        applies: "md arrays, ZFS pools, LVM groups",
        why: "the next failed disk takes everything in the array with it (no published figure)",
        source: "md.4; zpool-status.8",
        thumbs: &[],
        fix: "mdadm /dev/{array} --add DISK    # or: zpool replace {array} OLD NEW; or: vgreduce --removemissing {array}",
        undo: "",
        check: |facts| {
            arrays(facts, &[Md, Zfs, Lvm], |array| {
                Some(match array.degraded.known() {
                    Err(why) => Outcome::unknown(&array.name, format!("members of {}: {why}", array.name)),
                    Ok(degraded) => {
                        let name = format!("{} {}", array.name, array.level);
                        let has = if *degraded { "lacks members" } else { "is complete" };
                        Outcome::judged(
                            !degraded,
                            Verdict::Bad,
                            &array.name,
                            format!("{} {has}", name.trim()),
                        )
                    }
                })
            })
        },
    },
    Rule {
        id: "array-errors",
        group: Group::Disks,
        title: "Copies in an array agree, and its devices made no error",
        severity: Severity::Warning,
        applies: "md arrays with redundancy, ZFS pools",
        why: "copies that differ return one content or the other by chance, and the next rebuild keeps either (no published figure)",
        source: "md.4, mismatch_cnt; zpool-status.8, READ, WRITE and CKSUM",
        thumbs: &[],
        fix: "echo repair > /sys/block/{array}/md/sync_action    # or: zpool scrub {array}, then zpool clear {array}; replace a disk whose \
              count grows",
        undo: "",
        check: |facts| {
            arrays(facts, &[Md, Zfs], |array| {
                Some(match array.errors.known() {
                    Err(why) => Outcome::unknown(&array.name, format!("errors of {}: {why}", array.name)),
                    Ok(errors) => {
                        let what = match array.kind {
                            Md => format!("{errors} sectors of {} differ between its copies", array.name),
                            _ => format!("{} counts {errors} errors", array.name),
                        };
                        Outcome::judged(*errors == 0, Verdict::Bad, &array.name, what)
                    }
                })
            })
        },
    },
    Rule {
        id: "array-superblock",
        group: Group::Disks,
        title: "md arrays have superblocks of form 1",
        severity: Severity::Note,
        applies: "md arrays",
        why: "without superblocks nothing tells which disk belongs where after a change of cables; form 0.90 counts 28 disks and 2 TiB \
              of each at most, and is taken for that of the whole disk where it is in the last partition",
        source: "md.4, superblocks: 0.90 is limited to 28 devices and 2 TiB (4 TiB since Linux 3.1)",
        thumbs: &[],
        fix: "mdadm --stop /dev/{array}; mdadm --assemble --update=metadata /dev/{array} DISKS    # of 0.90; without one: build it anew",
        undo: "",
        check: |facts| {
            arrays(facts, &[Md], |array| {
                let form = array.superblock.as_str();
                if form.is_empty() {
                    return Some(Outcome::unknown(
                        &array.name,
                        format!("the superblocks of {} are not told", array.name),
                    ));
                }
                let sound = form.starts_with("1.") || form.starts_with("external");
                let what = format!("{} has superblocks of form {form}", array.name);
                Some(Outcome::judged(sound, Verdict::Warn, &array.name, what))
            })
        },
    },
    Rule {
        id: "array-busy",
        group: Group::Disks,
        title: "No array is being rebuilt or checked",
        severity: Severity::Note,
        applies: "md arrays, ZFS pools",
        why: "until it ends, measurements do not show the array's normal performance, and redundancy may be missing (no published \
              figure)",
        source: "md.4, sync_action",
        thumbs: &[],
        fix: "wait; or, for a check only: echo idle > /sys/block/{array}/md/sync_action",
        undo: "echo {old} > /sys/block/{array}/md/sync_action",
        check: |facts| {
            arrays(facts, &[Md, Zfs], |array| {
                let idle = matches!(array.action.as_str(), "" | "idle" | "frozen");
                let what = if idle { "idle" } else { &array.action };
                let outcome =
                    Outcome::judged(idle, Verdict::Warn, &array.name, format!("{} is at {what}", array.name));
                Some(outcome.with("old", &array.action))
            })
        },
    },
    Rule {
        id: "pool-full",
        group: Group::Disks,
        title: "Pools are under 80 % full",
        severity: Severity::Warning,
        applies: "ZFS pools, LVM thin pools",
        why: "ZFS and thin pools slow down as they fill, and a thin pool that is full turns every write into an error; the rule \
              is 80 %",
        source: "rule of thumb 19",
        thumbs: &[19],
        fix: "lvextend -L +SIZE {array}    # for metadata: lvextend --poolmetadatasize +SIZE {array}; or: zpool add {array} DISKS",
        undo: "",
        check: |facts| {
            arrays(facts, &[Zfs, Lvm], |array| {
                let (data, metadata) = (array.used_percent?, array.metadata_percent.unwrap_or(0.0));
                let used = data.max(metadata);
                let what = match metadata > data {
                    true => format!("{} has {metadata:.0} % of its metadata in use", array.name),
                    false => format!("{} is {data:.0} % full", array.name),
                };
                Some(filled(used, &array.name, what))
            })
        },
    },
];

/// Judges each disk.
/// Judges what has this percentage of its space in use.
pub(super) fn filled(percent: f64, place: impl Into<String>, what: impl Into<String>) -> Outcome {
    let full = if percent >= FULL_BAD { Verdict::Bad } else { Verdict::Warn };
    Outcome::judged(percent < FULL_WARN, full, place, what)
}

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

/// Judges each array of these kinds.
fn arrays(facts: &Facts, kinds: &[ArrayKind], judge: impl Fn(&Array) -> Option<Outcome>) -> Vec<Outcome> {
    let Some(storage) = &facts.storage else { return Vec::new() };
    let mut found = Vec::new();
    for (kind, name, arrays) in [
        (Md, "md arrays", &storage.arrays),
        (Zfs, "ZFS pools", &storage.pools),
        (Lvm, "LVM volumes", &storage.volumes),
    ] {
        match arrays.known() {
            Err(why) if kinds.contains(&kind) => found.push(Outcome::unknown(name, format!("{name}: {why}"))),
            Err(_) => {}
            Ok(arrays) => {
                let arrays = arrays.iter().filter(|array| kinds.contains(&array.kind));
                found.extend(
                    arrays.filter_map(|array| judge(array).map(|outcome| outcome.with("array", &array.name))),
                );
            }
        }
    }
    found
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

/// Judges the write caches of all disks in one outcome: what protects them is one thing.
fn write_caches(facts: &Facts) -> Vec<Outcome> {
    let Some(Seen::Value(disks)) = facts.storage.as_ref().map(|storage| &storage.disks) else {
        return Vec::new();
    };
    let local: Vec<&Disk> = disks.iter().filter(|disk| disk.session.is_none()).collect();
    if local.is_empty() {
        return Vec::new();
    }
    let caching = |disk: &&&Disk| disk.write_cache.get().is_some_and(|cache| cache == "write back");
    let caching: Vec<String> = local.iter().filter(caching).map(|disk| disk.name.clone()).collect();
    let names = listed(caching.clone());
    let unseen = local.iter().find_map(|disk| Some((&disk.name, disk.write_cache.known().err()?)));
    let answer = facts.answers.as_ref().and_then(|answers| answers.get(UPS));
    let place = "disks";
    vec![match (caching.is_empty(), answer, unseen) {
        (false, Some(false), _) => Outcome::warn(place, format!("{names} cache writes, and there is no UPS"))
            .with_words("disks", caching),
        (_, _, Some((name, why))) => Outcome::unknown(place, format!("whether {name} caches writes: {why}")),
        (true, ..) => Outcome::ok(place, "local disks do not cache writes"),
        (false, Some(true), _) => Outcome::ok(place, format!("{names} cache writes, and there is a UPS")),
        (false, None, _) => {
            let ask = format!("whether there is a UPS is not answered: --answer {UPS}=yes or no");
            Outcome::unknown(place, format!("{names} cache writes: {ask}"))
        }
    }]
}

/// The disk that a member of an array lies on: the member itself, or the disk of the partition.
fn disk_of<'a>(facts: &'a Facts, member: &str) -> Option<&'a Disk> {
    let mut disks = facts.storage.iter().filter_map(|storage| storage.disks.get()).flatten();
    disks.find(|disk| disk.name == member || disk.partitions.iter().any(|partition| partition.name == member))
}

fn mixed(facts: &Facts) -> Vec<Outcome> {
    arrays(facts, &[Md, Zfs, Lvm], |array| {
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
