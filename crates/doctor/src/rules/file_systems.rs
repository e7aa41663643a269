//! Rules about mounts, `/etc/fstab` and swap.

use lunway_block::Severity;

use super::disks::filled;
use super::{Group, Rule};
use crate::facts::{Facts, FstabEntry, Mount};
use crate::seen::Seen;
use crate::verdict::{Outcome, Verdict};

/// Options by which a file system gives up the order of its writes.
const UNSAFE: [&str; 5] = ["nobarrier", "barrier=0", "data=writeback", "nointegrity", "norecovery"];

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "mount-full",
        group: Group::FileSystems,
        title: "File systems are under 80 % full",
        severity: Severity::Warning,
        applies: "file systems on disks",
        why: "allocation slows down as free space is scattered, and a file behind a LUN that cannot grow turns its initiator's \
              writes into errors; the rule is 80 %",
        source: "rule of thumb 19",
        thumbs: &[19],
        fix: "free space in {point}, or extend its volume",
        undo: "",
        check: |facts| mounts(facts, |mount| Some(full(mount, &mount.used_percent, "bytes"))),
    },
    Rule {
        id: "mount-inodes",
        group: Group::FileSystems,
        title: "File systems have 20 % of their inodes left",
        severity: Severity::Note,
        applies: "file systems on disks that have a fixed number of inodes",
        why: "without an inode no file can be created, however much space is left (no published figure)",
        source: "rule of thumb 19, for inodes",
        thumbs: &[19],
        fix: "remove small files from {point}",
        undo: "",
        check: |facts| mounts(facts, |mount| Some(full(mount, &mount.inodes_percent, "inodes"))),
    },
    Rule {
        id: "mount-sync",
        group: Group::FileSystems,
        title: "Journals and barriers of file systems are on",
        severity: Severity::Warning,
        applies: "file systems on disks",
        why: "without barriers, a power cut loses synced data and can damage the file system's structure (no published figure)",
        source: "rule of thumb 16: off only with a UPS, and only on volumes that are iSCSI-only; ext4(5)",
        thumbs: &[16],
        fix: "mount -o remount,barrier=1 {point}    # and take {option} out of /etc/fstab; data=writeback, nointegrity and \
              norecovery: umount {point}; mount {point} without {option}",
        undo: "mount -o remount,{option} {point}    # or: umount {point}; mount it with {option}",
        check: |facts| {
            mounts(facts, |mount| {
                // Nothing is written: so one looks at a snapshot, or at what another machine writes (`ro,norecovery`).
                let is_read = mount.options.iter().any(|option| option == "ro");
                let option =
                    mount.options.iter().find(|option| !is_read && UNSAFE.contains(&option.as_str()));
                let what = match option {
                    None => format!("{} keeps the order of its writes", mount.point),
                    Some(option) => format!("{} is mounted with {option}", mount.point),
                };
                let outcome = Outcome::judged(option.is_none(), Verdict::Bad, &mount.point, what);
                let Some(option) = option else { return Some(outcome) };
                let (fix, undo) = match option.as_str() {
                    "nobarrier" | "barrier=0" => (
                        "mount -o remount,barrier=1 {point}    # and take {option} out of /etc/fstab",
                        "mount -o remount,{option} {point}",
                    ),
                    // The mode of a journal is chosen when it is mounted: a remount refuses to change it.
                    "data=writeback" => (
                        "umount {point}; mount -t {kind} -o {mended} {device} {point}    # and take {option} out of /etc/fstab; a \
                         default in the superblock goes with: tune2fs -o ^journal_data_writeback {device}",
                        "umount {point}; mount -t {kind} -o {before} {device} {point}",
                    ),
                    "nointegrity" => (
                        "umount {point}; mount -t {kind} -o {mended} {device} {point}    # and take {option} out of /etc/fstab",
                        "umount {point}; mount -t {kind} -o {before} {device} {point}",
                    ),
                    _ => (
                        "umount {point}; mount -t {kind} {device} {point}    # and take {option} out of /etc/fstab",
                        "umount {point}; mount -t {kind} -o {option} {device} {point}",
                    ),
                };
                let instead = if option == "nointegrity" { "integrity" } else { "data=ordered" };
                // `seclabel` is the kernel's to tell, and no option of mount(8).
                let told = mount.options.iter().map(String::as_str).filter(|told| *told != "seclabel");
                let before: Vec<&str> = told.collect();
                let mended: Vec<&str> =
                    before.iter().map(|&told| if told == option { instead } else { told }).collect();
                let outcome = outcome.with("option", option).with("kind", &mount.kind);
                let outcome = outcome.with("before", before.join(",")).with("mended", mended.join(","));
                Some(outcome.fixed_by(fix, undo))
            })
        },
    },
    Rule {
        id: "mount-time",
        group: Group::FileSystems,
        title: "Reading a file does not update its access time every time",
        severity: Severity::Note,
        applies: "file systems on disks",
        why: "with strictatime every read becomes a read and a write (no published figure)",
        source: "mount(8): relatime is the kernel's default since 2.6.30",
        thumbs: &[1],
        fix: "mount -o remount,relatime {point}",
        undo: "mount -o remount,strictatime {point}",
        check: |facts| {
            mounts(facts, |mount| {
                let has = |name: &str| mount.options.iter().any(|option| option == name);
                let sound = has("noatime") || has("relatime") || has("ro");
                let what = match sound {
                    true => format!("{} writes few times of access", mount.point),
                    false => format!("{} writes the time of every access", mount.point),
                };
                Some(Outcome::judged(sound, Verdict::Warn, &mount.point, what))
            })
        },
    },
    Rule {
        id: "mount-read-only",
        group: Group::FileSystems,
        title: "File systems that are not to be read-only take writes",
        severity: Severity::Warning,
        applies: "file systems on disks, without those that were mounted read-only",
        why: "after an error the kernel ends all writes: the file system has lost its disk, or is damaged. Its options \
              may go on saying rw: ext4 shows the end by emergency_ro since Linux 6.15, and XFS by no option (no \
              published figure)",
        source: "ext4(5), errors=remount-ro; fs/ext4/super.c, fs/xfs/xfs_fsops.c and fs/btrfs/transaction.c of Linux 6.18",
        thumbs: &[],
        fix: "umount {point} && fsck -p {device}; mount {point}    # after its disk was checked",
        undo: "",
        check: read_only,
    },
    Rule {
        id: "mount-errors",
        group: Group::FileSystems,
        title: "File systems have met no error",
        severity: Severity::Warning,
        applies: "file systems of ext4 and btrfs that take writes",
        why: "an error that was met once and never checked is damage that grows with every write (no published figure)",
        source: "Linux admin guide, ext4: errors_count; btrfs(5), device stats",
        thumbs: &[],
        fix: "umount {point} && fsck -p {device}; mount {point}    # after its disk was checked",
        undo: "",
        check: met_errors,
    },
    Rule {
        id: "mount-trim",
        group: Group::FileSystems,
        title: "File systems on iSCSI disks discard free space",
        severity: Severity::Note,
        applies: "file systems on iSCSI disks that can discard",
        why: "a thin disk only grows: after months it takes its full size, whatever is in it, and compacting it afterwards freed \
              5 % in four passes",
        source: "published tests of compaction; fstrim(8): once a week is enough",
        thumbs: &[19],
        fix: "systemctl enable --now fstrim.timer",
        undo: "systemctl disable --now fstrim.timer",
        check: trim,
    },
    Rule {
        id: "fstab-netdev",
        group: Group::FileSystems,
        title: "iSCSI disks in /etc/fstab have _netdev",
        severity: Severity::Warning,
        applies: "entries of /etc/fstab whose disk is reached over iSCSI",
        why: "without it the boot waits for a disk before there is a network, and unmounts it after the network is gone (no \
              published figure)",
        source: "systemd.mount(5), open-iscsi's README",
        thumbs: &[],
        fix: "sed -i -E '\\|^[^#]\\S*\\s+{point}\\s| s/^(\\S+\\s+\\S+\\s+\\S+\\s+\\S+)/\\1,_netdev/' /etc/fstab    # then \
              systemctl daemon-reload",
        undo: "sed -i -E '\\|^[^#]\\S*\\s+{point}\\s| s/,_netdev//' /etc/fstab    # then systemctl daemon-reload",
        check: |facts| {
            fstab(facts, |entry| {
                let sound = entry.options.iter().any(|option| option == "_netdev" || option == "noauto");
                let with = if sound { "has" } else { "lacks" };
                Outcome::judged(sound, Verdict::Warn, &entry.point, format!("{} {with} _netdev", entry.point))
            })
        },
    },
    Rule {
        id: "fstab-name",
        group: Group::FileSystems,
        title: "iSCSI disks in /etc/fstab are named by something permanent: UUID, label, or a link to their identity",
        severity: Severity::Warning,
        applies: "entries of /etc/fstab whose disk is reached over iSCSI",
        why: "/dev/sdX names are assigned in the order in which disks answer: another disk may be mounted in its place (no \
              published figure)",
        source: "administrators' rule on mounts; systemd.mount(5)",
        thumbs: &[],
        fix: "blkid -s UUID -o value {device} && sed -i -E \"s|^{device}(\\s)|UUID=$(blkid -s UUID -o value {device})\\1|\" /etc/fstab",
        undo: "sed -i -E \"s|^UUID=$(blkid -s UUID -o value {device})(\\s)|{device}\\1|\" /etc/fstab",
        check: |facts| {
            fstab(facts, |entry| {
                let bare = entry.device.strip_prefix("/dev/sd").is_some();
                let what = format!("{} is mounted by {}", entry.point, entry.device);
                Outcome::judged(!bare, Verdict::Warn, &entry.point, what).with("device", &entry.device)
            })
        },
    },
    Rule {
        id: "swap-iscsi",
        group: Group::FileSystems,
        title: "There is no swap on an iSCSI disk",
        severity: Severity::Warning,
        applies: "machines with swap",
        why: "to page out, the kernel needs the network, and the network needs memory: a machine short of memory stops (no \
              published figure)",
        source: "administrators' rule on mounts",
        thumbs: &[],
        fix: "swapoff {path}    # and take it out of /etc/fstab",
        undo: "swapon {path}",
        check: |facts| {
            let Some(storage) = &facts.storage else { return Vec::new() };
            match storage.swaps.known() {
                Err(why) => vec![Outcome::unknown("swap", format!("swap: {why}"))],
                Ok(swaps) => {
                    let judge = |swap: &crate::facts::Swap| match swap.iscsi.known() {
                        Err(why) => Outcome::unknown(
                            &swap.path,
                            format!("whether {} is on an iSCSI disk: {why}", swap.path),
                        ),
                        Ok(iscsi) => {
                            let on = if *iscsi { "is on an iSCSI disk" } else { "is on a local disk" };
                            let what = format!("{} {on}", swap.path);
                            Outcome::judged(!iscsi, Verdict::Bad, &swap.path, what).with("path", &swap.path)
                        }
                    };
                    swaps.iter().map(judge).collect()
                }
            }
        },
    },
];

/// Judges each mount.
fn mounts(facts: &Facts, judge: impl Fn(&Mount) -> Option<Outcome>) -> Vec<Outcome> {
    let Some(storage) = &facts.storage else { return Vec::new() };
    match storage.mounts.known() {
        Err(why) => vec![Outcome::unknown("mounts", format!("mounts: {why}"))],
        Ok(mounts) => {
            let judged = |mount: &Mount| {
                let outcome = judge(mount)?;
                Some(outcome.with("point", &mount.point).with("device", &mount.device))
            };
            mounts.iter().filter_map(judged).collect()
        }
    }
}

fn fstab(facts: &Facts, judge: impl Fn(&FstabEntry) -> Outcome) -> Vec<Outcome> {
    let Some(storage) = &facts.storage else { return Vec::new() };
    match storage.fstab.known() {
        Err(why) => vec![Outcome::unknown("/etc/fstab", format!("/etc/fstab: {why}"))],
        Ok(entries) => {
            let iscsi = entries.iter().filter(|entry| entry.iscsi);
            iscsi.map(|entry| judge(entry).with("point", &entry.point)).collect()
        }
    }
}

fn full(mount: &Mount, used: &Seen<f64>, of: &str) -> Outcome {
    match used.known() {
        Err(why) => Outcome::unknown(&mount.point, format!("{of} of {} in use: {why}", mount.point)),
        Ok(used) => {
            let what = format!("{} has {used:.0} % of its {of} in use", mount.point);
            filled(*used, &mount.point, what)
        }
    }
}

/// Options with which ext4 shows that it takes no more writes, since Linux 6.15 (`_ext4_show_options`).
const ENDED: [&str; 2] = ["emergency_ro", "shutdown"];

/// Returns by what a file system shows that the kernel has ended its writes; `None`: by nothing.
fn ended(mount: &Mount) -> Result<Option<String>, &str> {
    if let Some(option) = mount.options.iter().find(|option| ENDED.contains(&option.as_str())) {
        return Ok(Some(format!("its options have {option}")));
    }
    if mount.faults.get().is_some_and(|faults| faults.ended_writes) {
        let says = "it is mounted with errors=remount-ro and has met an error since this machine has started";
        return Ok(Some(says.to_owned()));
    }
    let error = mount.root_error.known()?;
    if !error.is_empty() {
        return Ok(Some(format!("its root answers: {error}")));
    }
    Ok(mount.made_read_only.known()?.then(|| "it was mounted for writing, and is read-only".to_owned()))
}

fn read_only(facts: &Facts) -> Vec<Outcome> {
    let fstab = facts.storage.as_ref().map(|storage| &storage.fstab);
    mounts(facts, |mount| {
        let entry = fstab.and_then(Seen::get).into_iter().flatten().find(|entry| entry.point == mount.point);
        let has_ro = |options: &[String]| options.iter().any(|option| option == "ro");
        let point = &mount.point;
        let outcome = match (ended(mount), entry) {
            (Ok(Some(how)), _) => Outcome::bad(point, format!("{point} takes no more writes: {how}")),
            _ if has_ro(&mount.options) => match entry {
                Some(entry) if !has_ro(&entry.options) => {
                    Outcome::bad(point, format!("{point} is read-only, and /etc/fstab has it for writing"))
                }
                // Somebody has mounted it so.
                _ => return None,
            },
            (Ok(None), _) => Outcome::ok(point, format!("{point} takes writes")),
            (Err(why), _) => Outcome::unknown(point, format!("whether {point} takes writes: {why}")),
        };
        let check = match mount.kind.as_str() {
            "xfs" => {
                "umount {point} && {again}    # it replays its log; where it does not: xfs_repair {device}"
            }
            "btrfs" => "umount {point} && {again}    # then: btrfs scrub start -B {point}",
            _ => "umount {point} && fsck -p {device}; {again}    # after its disk was checked",
        };
        let again = if entry.is_some() { "mount {point}" } else { "mount -t {kind} {device} {point}" };
        Some(outcome.with("kind", &mount.kind).fixed_by(check.replace("{again}", again), ""))
    })
}

fn met_errors(facts: &Facts) -> Vec<Outcome> {
    let fstab = facts.storage.as_ref().map(|storage| &storage.fstab);
    mounts(facts, |mount| {
        let counts = matches!(mount.kind.as_str(), "ext4" | "btrfs");
        if !counts || ended(mount).is_ok_and(|how| how.is_some()) {
            return None;
        }
        let point = &mount.point;
        let faults = match mount.faults.known() {
            Err(why) => {
                return Some(Outcome::unknown(point, format!("errors that {point} has met: {why}")));
            }
            Ok(faults) => faults,
        };
        let by = match faults.function.as_str() {
            "" => String::new(),
            function => format!(", the last one in {function}"),
        };
        let what = match faults.count {
            0 => format!("{point} has met no error"),
            count => format!("{point} has met {count} errors{by}"),
        };
        let outcome =
            Outcome::judged(faults.count == 0, Verdict::Warn, point, what).with("kind", &mount.kind);
        let is_listed = fstab.and_then(Seen::get).into_iter().flatten().any(|entry| entry.point == *point);
        Some(match (mount.kind.as_str(), is_listed) {
            ("btrfs", _) => outcome.fixed_by("btrfs scrub start -B {point} && btrfs device stats -z {point}", ""),
            (_, true) => outcome,
            (_, false) => outcome
                .fixed_by("umount {point} && fsck -p {device}; mount -t {kind} {device} {point}    # after its disk was checked", ""),
        })
    })
}

fn trim(facts: &Facts) -> Vec<Outcome> {
    let timer = facts.host.as_ref().map(|host| &host.trim_timer);
    mounts(facts, |mount| {
        if !mount.iscsi || !matches!(mount.kind.as_str(), "ext4" | "xfs" | "btrfs" | "f2fs") {
            return None;
        }
        if mount.options.iter().any(|option| option == "discard" || option.starts_with("discard=")) {
            return Some(Outcome::ok(&mount.point, format!("{} discards what is freed", mount.point)));
        }
        Some(match timer.map(Seen::known) {
            Some(Ok(true)) => Outcome::ok(&mount.point, format!("fstrim.timer trims {}", mount.point)),
            Some(Ok(false)) => Outcome::warn(
                &mount.point,
                format!("{} is neither mounted with discard nor trimmed", mount.point),
            ),
            Some(Err(why)) => {
                Outcome::unknown(&mount.point, format!("whether {} is trimmed: {why}", mount.point))
            }
            None => Outcome::unknown(&mount.point, format!("whether {} is trimmed", mount.point)),
        })
    })
}
