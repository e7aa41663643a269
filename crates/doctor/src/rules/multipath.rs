//! Rules about dm-multipath.

use std::collections::BTreeMap;

use lunway_block::Severity;

use super::{Group, Rule, listed};
use crate::facts::{Disk, Facts, KernelSession, Multipath, MultipathMap};
use crate::verdict::{Outcome, Verdict};

const OURS: &str = "machines with multipath maps or iSCSI sessions, for disks of vendor LUNWAY";
const MAPS: &str = "multipath maps";

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "multipath-running",
        group: Group::Multipath,
        title: "A disk that is reached by several sessions is one multipath map",
        severity: Severity::Warning,
        applies: "iSCSI disks that appear twice",
        why: "two disks with the same content, each used alone, are two caches over one medium: writes by one overwrite the \
              other's (no published figure)",
        source: "rule of thumb 15: multipath is set up before first use",
        thumbs: &[2, 15],
        fix: "systemctl enable --now multipathd; multipath -v2",
        undo: "systemctl disable --now multipathd",
        check: unmapped,
    },
    Rule {
        id: "multipath-policy",
        group: Group::Multipath,
        title: "Paths are grouped and chosen as the target recommends: alua, group_by_prio, service-time, tur, \
                immediate",
        severity: Severity::Warning,
        applies: OURS,
        why: "the default policy can be the worst: a full mesh under round robin lost 90 % of the read and 96 % of the write speed",
        source: "published tests of multipath topologies, test B; lunway's guide for clients",
        thumbs: &[2, 15],
        fix: "mkdir -p /etc/multipath/conf.d; printf '%s\\n' 'devices {' 'device {' 'vendor \"LUNWAY\"' 'product \".*\"' \
              {settings} '}' '}' > /etc/multipath/conf.d/lunway-policy.conf; multipathd reconfigure",
        undo: "rm /etc/multipath/conf.d/lunway-policy.conf; multipathd reconfigure",
        check: |facts| {
            wanted(
                facts,
                &[
                    ("path_grouping_policy", &["group_by_prio"]),
                    ("prio", &["alua"]),
                    ("path_checker", &["tur"]),
                    ("path_selector", &["service-time 0", "queue-length 0", "historical-service-time 0"]),
                    ("failback", &["immediate"]),
                ],
            )
        },
    },
    Rule {
        id: "multipath-fast-fail",
        group: Group::Multipath,
        title: "I/O on a dead path fails in 5 to 25 s",
        severity: Severity::Warning,
        applies: OURS,
        why: "until then everything that was sent down the path waits: with \"off\", until the replacement time-out of 120 s",
        source: "fast_io_fail_tmo: HPE 5, Pure 10, Ceph 25",
        thumbs: &[2],
        fix: "mkdir -p /etc/multipath/conf.d; printf '%s\\n' 'devices {' 'device {' 'vendor \"LUNWAY\"' 'product \".*\"' \
              'fast_io_fail_tmo 5' '}' '}' > /etc/multipath/conf.d/lunway-fast_io_fail_tmo.conf; multipathd reconfigure",
        undo: "rm /etc/multipath/conf.d/lunway-fast_io_fail_tmo.conf; multipathd reconfigure",
        check: |facts| {
            one(facts, "fast_io_fail_tmo", None, |value| {
                value.parse::<u64>().is_ok_and(|seconds| (1..=25).contains(&seconds))
            })
        },
    },
    Rule {
        id: "multipath-device-loss",
        group: Group::Multipath,
        title: "A path that is gone is kept for 60 s or more",
        severity: Severity::Note,
        applies: OURS,
        why: "a device that is removed while its cable is being replaced comes back under another name, and maps have to be \
              repaired by hand (no published figure)",
        source: "dev_loss_tmo: 60 to infinity in vendors' guides",
        thumbs: &[2],
        fix: "mkdir -p /etc/multipath/conf.d; printf '%s\\n' 'devices {' 'device {' 'vendor \"LUNWAY\"' 'product \".*\"' \
              'dev_loss_tmo 600' '}' '}' > /etc/multipath/conf.d/lunway-dev_loss_tmo.conf; multipathd reconfigure",
        undo: "rm /etc/multipath/conf.d/lunway-dev_loss_tmo.conf; multipathd reconfigure",
        check: |facts| {
            // Not set is multipath's default, and iSCSI has no such time: a lost disk stays until its session is
            // logged out.
            one(facts, "dev_loss_tmo", Some("infinity"), |value| {
                value == "infinity" || value.parse::<u64>().is_ok_and(|seconds| seconds >= 60)
            })
        },
    },
    Rule {
        id: "multipath-all-lost",
        group: Group::Multipath,
        title: "The behaviour without a path is configured: a number of retries",
        severity: Severity::Warning,
        applies: OURS,
        why: "queueing without a limit hangs every process that touches the disk, until the machine is reset; \"fail\" turns a \
              restart of the storage into a read-only file system; HPE retries for 150 s, Pure not at all (0)",
        source: "no_path_retry: HPE 30 (150 s), Pure 0, Ceph queue: vendors contradict each other, so choose \
                 deliberately",
        thumbs: &[2],
        fix: "mkdir -p /etc/multipath/conf.d; printf '%s\\n' 'devices {' 'device {' 'vendor \"LUNWAY\"' 'product \".*\"' \
              'no_path_retry 12' '}' '}' > /etc/multipath/conf.d/lunway-no_path_retry.conf; multipathd reconfigure",
        undo: "rm /etc/multipath/conf.d/lunway-no_path_retry.conf; multipathd reconfigure",
        check: |facts| {
            one(facts, "no_path_retry", Some("fail"), |value| {
                value.parse::<u64>().is_ok_and(|retries| retries > 0)
            })
        },
    },
    Rule {
        id: "multipath-find",
        group: Group::Multipath,
        title: "Disks become maps according to find_multipaths \"no\", \"strict\" or \"yes\"",
        severity: Severity::Note,
        applies: OURS,
        why: "with \"smart\" a disk whose second path is late is released as a single disk after a while, and may then be used \
              without a map (no published figure)",
        source: "multipath.conf(5); Trident's and csi-lib-iscsi's requirements",
        thumbs: &[2],
        fix: "mkdir -p /etc/multipath/conf.d; printf '%s\\n' 'defaults {' 'find_multipaths yes' '}' > \
              /etc/multipath/conf.d/lunway-find.conf; multipathd reconfigure",
        undo: "rm /etc/multipath/conf.d/lunway-find.conf; multipathd reconfigure",
        check: |facts| {
            one(facts, "find_multipaths", None, |value| {
                matches!(value, "no" | "off" | "strict" | "yes" | "on")
            })
        },
    },
    Rule {
        id: "map-paths",
        group: Group::Multipath,
        title: "A map has two paths or more, one for each session to its target, and all are running",
        severity: Severity::Warning,
        applies: MAPS,
        why: "a map of one path has no redundancy, which is noticed only when that path fails (no published figure)",
        source: "rule of thumb 22",
        thumbs: &[22],
        fix: "iscsiadm -m node --loginall=all; iscsiadm -m session --rescan; multipathd reconfigure",
        undo: "",
        check: |facts| maps(facts, |map, disks| Some(paths(facts, map, disks))),
    },
    Rule {
        id: "map-disks",
        group: Group::Multipath,
        title: "All paths of a map are one disk: the same size, sectors and identity",
        severity: Severity::Warning,
        applies: MAPS,
        why: "a stale device whose LUN number was reused is another disk: half of the writes go to it (no published figure)",
        source: "administrators' reports of reused LUN numbers",
        thumbs: &[],
        fix: "multipathd del path {path}; echo 1 > /sys/block/{path}/device/delete; iscsiadm -m session --rescan",
        undo: "",
        check: |facts| maps(facts, same_disk),
    },
    Rule {
        id: "map-bare-path",
        group: Group::Multipath,
        title: "Only the map uses the paths of a map",
        severity: Severity::Warning,
        applies: MAPS,
        why: "a mount or an array on a single path fails with it, and its writes bypass the caches of the map's users (no \
              published figure)",
        source: "administrators' rule on bare paths",
        thumbs: &[],
        fix: "unmount or stop what uses {path}, and use /dev/mapper/{map}; for LVM: multipath_component_detection = 1",
        undo: "",
        check: bare,
    },
];

/// Judges each map with its disks.
fn maps(facts: &Facts, judge: impl Fn(&MultipathMap, &[&Disk]) -> Option<Outcome>) -> Vec<Outcome> {
    let Some(multipath) = &facts.multipath else { return Vec::new() };
    let disks: Vec<&Disk> =
        facts.storage.iter().filter_map(|storage| storage.disks.get()).flatten().collect();
    match multipath.maps.known() {
        Err(why) => vec![Outcome::unknown("maps", format!("multipath maps: {why}"))],
        Ok(maps) => {
            let judged = |map: &MultipathMap| {
                let of_map: Vec<&Disk> =
                    disks.iter().copied().filter(|disk| map.paths.contains(&disk.name)).collect();
                judge(map, &of_map).map(|outcome| outcome.with("map", &map.name))
            };
            maps.iter().filter_map(judged).collect()
        }
    }
}

/// A path for each session to the target, and each of them in use by the SCSI layer.
fn paths(facts: &Facts, map: &MultipathMap, disks: &[&Disk]) -> Outcome {
    let sessions = || facts.open_iscsi.iter().filter_map(|initiator| initiator.sessions.get()).flatten();
    let of_map = |session: &&KernelSession| session.disks.iter().any(|disk| map.paths.contains(disk));
    let target = sessions().find(of_map).map(|session| session.target.as_str());
    let up =
        |session: &&KernelSession| Some(session.target.as_str()) == target && session.state == "LOGGED_IN";
    let (have, lanes) = (map.paths.len(), sessions().filter(up).count());
    let lost = disks.iter().find_map(|disk| {
        let state = disk.state.get().filter(|state| *state != "running")?;
        Some(format!("{} is {state}", disk.name))
    });
    let unseen = disks.iter().find_map(|disk| Some((&disk.name, disk.state.known().err()?)));
    if have < 2 || have < lanes {
        let lacks =
            if lanes > have { format!(", and {lanes} sessions lead to its target") } else { String::new() };
        return Outcome::warn(&map.name, format!("{} has {have} paths{lacks}", map.name));
    }
    match (lost, unseen) {
        (Some(lost), _) => {
            Outcome::warn(&map.name, format!("{} has {have} paths, of which {lost}", map.name))
        }
        (None, Some((disk, why))) => {
            Outcome::unknown(&map.name, format!("the state of {disk}, a path of {}: {why}", map.name))
        }
        (None, None) => Outcome::ok(&map.name, format!("{} has {have} paths, all in use", map.name)),
    }
}

fn same_disk(map: &MultipathMap, disks: &[&Disk]) -> Option<Outcome> {
    let first = disks.first()?;
    let shape = |disk: &Disk| (disk.size, disk.logical_sector, disk.wwid.clone());
    let other = disks.iter().find(|disk| shape(disk) != shape(first));
    let what = match other {
        None => format!("the paths of {} are one disk", map.name),
        Some(other) => format!(
            "the paths of {} differ: {} has {} bytes in sectors of {}, {} has {} in sectors of {}, and identities {} and {}",
            map.name,
            first.name,
            first.size,
            first.logical_sector,
            other.name,
            other.size,
            other.logical_sector,
            first.wwid.as_deref().unwrap_or("none"),
            other.wwid.as_deref().unwrap_or("none"),
        ),
    };
    let path = other.map_or(&first.name, |other| &other.name);
    Some(Outcome::judged(other.is_none(), Verdict::Bad, &map.name, what).with("path", path))
}

fn bare(facts: &Facts) -> Vec<Outcome> {
    let mounts = || facts.storage.iter().filter_map(|storage| storage.mounts.get()).flatten();
    maps(facts, |map, disks| {
        let on_disk = |disk: &&Disk| -> Option<String> {
            let held = disk.holders.iter().find(|holder| **holder != map.device);
            let parts = disk.partitions.iter().find_map(|part| {
                let mounted = mounts().any(|mount| mount.device == format!("/dev/{}", part.name));
                let held = part.holders.first().cloned();
                held.map(|holder| format!("{holder} on {}", part.name))
                    .or_else(|| mounted.then(|| format!("a mount on {}", part.name)))
            });
            let mounted = mounts().find(|mount| mount.device == format!("/dev/{}", disk.name));
            let mounted = mounted.map(|mount| format!("{} on {}", mount.point, disk.name));
            held.map(|holder| format!("{holder} on {}", disk.name)).or(parts).or(mounted)
        };
        let hit = disks.iter().find_map(|disk| Some((on_disk(disk)?, disk.name.clone())));
        let what = match &hit {
            None => format!("nothing uses single paths of {} directly", map.name),
            Some((what, _)) => format!("{what}, a path of {}", map.name),
        };
        let path = hit.as_ref().map_or("", |(_, path)| path);
        Some(Outcome::judged(hit.is_none(), Verdict::Bad, &map.name, what).with("path", path))
    })
}

fn unmapped(facts: &Facts) -> Vec<Outcome> {
    let Some(storage) = &facts.storage else { return Vec::new() };
    let disks = storage.disks.get().map_or(&[][..], Vec::as_slice);
    let mut same: BTreeMap<&str, Vec<&Disk>> = BTreeMap::new();
    for disk in disks.iter().filter(|disk| disk.session.is_some()) {
        if let Some(wwid) = &disk.wwid {
            same.entry(wwid).or_default().push(disk);
        }
    }
    let maps: Option<Vec<_>> =
        facts.multipath.as_ref().map(|multipath| multipath.maps.get().into_iter().flatten().collect());
    let unseen = facts.multipath.as_ref().and_then(|multipath| multipath.maps.known().err());
    let judge = |(wwid, disks): (&str, Vec<&Disk>)| {
        if disks.len() < 2 {
            return None;
        }
        let names = listed(disks.iter().map(|disk| disk.name.clone()));
        if let Some(why) = unseen {
            return Some(Outcome::unknown(wwid, format!("whether {names} are one map: {why}")));
        }
        let map = maps.iter().flatten().find(|map| disks.iter().all(|disk| map.paths.contains(&disk.name)));
        let what = match map {
            Some(map) => format!("{names} are paths of {}", map.name),
            None => format!("{names} are one disk, and no map is over them"),
        };
        Some(Outcome::judged(map.is_some(), Verdict::Bad, wwid, what))
    };
    same.into_iter().filter_map(judge).collect()
}

/// The place where settings of multipath stand.
const PLACE: &str = "/etc/multipath.conf";

/// dm-multipath, where it has something to do: it is installed on many machines that never use it.
fn in_use(facts: &Facts) -> Option<&Multipath> {
    let sessions = facts.open_iscsi.iter().filter_map(|initiator| initiator.sessions.get()).flatten();
    let multipath = facts.multipath.as_ref()?;
    let used = multipath.maps.get().is_none_or(|maps| !maps.is_empty()) || sessions.count() > 0;
    used.then_some(multipath)
}

/// Judges the settings for lunway's disks that have one of a few values.
fn wanted(facts: &Facts, wanted: &[(&str, &[&str])]) -> Vec<Outcome> {
    let Some(multipath) = in_use(facts) else { return Vec::new() };
    match multipath.ours.known() {
        Err(why) => vec![Outcome::unknown(PLACE, format!("settings of multipath: {why}"))],
        Ok(settings) => {
            let value = |key: &str| settings.get(key).map_or("not set", String::as_str);
            let wrong: Vec<_> = wanted.iter().filter(|(key, values)| !values.contains(&value(key))).collect();
            let what = match wrong.is_empty() {
                true => "lunway's disks have the settings of the guide".to_owned(),
                false => {
                    let each = wrong.iter().map(|(key, _)| format!("{key} is {}", value(key)));
                    format!("for lunway's disks {}", listed(each))
                }
            };
            let settings: Vec<_> =
                wanted.iter().map(|(key, values)| format!("'{key} \"{}\"'", values[0])).collect();
            vec![
                Outcome::judged(wrong.is_empty(), Verdict::Warn, PLACE, what)
                    .with_text("settings", settings.join(" ")),
            ]
        }
    }
}

/// Judges one setting for lunway's disks. `absent` is what one that multipath does not print stands for, where that is
/// known.
fn one(
    facts: &Facts,
    key: &'static str,
    absent: Option<&'static str>,
    sound: fn(&str) -> bool,
) -> Vec<Outcome> {
    let Some(multipath) = in_use(facts) else { return Vec::new() };
    vec![match multipath.ours.known() {
        Err(why) => Outcome::unknown(PLACE, format!("{key}: {why}")),
        Ok(settings) => match settings.get(key).map(String::as_str).or(absent) {
            None => Outcome::unknown(PLACE, format!("{key} is not told by multipath")),
            Some(value) => {
                let outcome =
                    Outcome::judged(sound(value), Verdict::Warn, PLACE, format!("{key} is {value}"));
                outcome.with("old", value)
            }
        },
    }]
}
