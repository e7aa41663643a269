//! Arrays of disks: md, ZFS pools, LVM groups and thin pools.

use std::collections::{BTreeMap, BTreeSet};

use super::source::Machine;
use crate::facts::{Array, ArrayKind};
use crate::seen::Seen;

/// Levels of md that have no redundancy, and no files that tell of it.
const BARE_LEVELS: [&str; 3] = ["raid0", "linear", "container"];
/// Columns of lvs.
const COLUMNS: &str = "vg_name,lv_name,lv_attr,data_percent,metadata_percent,vg_missing_pv_count";
/// Maps on maps that are followed down to disks.
const CHAIN_MAX: usize = 8;

/// md arrays, by sysfs, which any user may read.
pub(super) fn md(machine: &Machine) -> Vec<Array> {
    let array = |name: String| {
        let file = |what: &str| format!("/sys/block/{name}/md/{what}");
        let level = machine.line(&file("level")).ok()?;
        let bare = BARE_LEVELS.contains(&level.as_str());
        Some(Array {
            kind: ArrayKind::Md,
            degraded: match bare {
                true => Seen::Value(false),
                false => machine.number::<u32>(&file("degraded")).map(|missing| missing > 0).into(),
            },
            errors: if bare { Seen::Value(0) } else { machine.number(&file("mismatch_cnt")).into() },
            superblock: machine.line(&file("metadata_version")).unwrap_or_default(),
            action: machine.line(&file("sync_action")).unwrap_or_default(),
            members: machine.names(&format!("/sys/block/{name}/slaves")),
            level,
            name,
            ..Array::default()
        })
    };
    machine.names("/sys/block").into_iter().filter(|name| name.starts_with("md")).filter_map(array).collect()
}

/// ZFS pools. Without its kernel module no pool is imported, and nothing is asked.
pub(super) fn pools(machine: &Machine) -> Seen<Vec<Array>> {
    if machine.is_live() && !machine.exists("/sys/module/zfs") {
        return Seen::Value(Vec::new());
    }
    let listed = match machine.printed("zpool", &["list", "-H", "-o", "name,health,capacity"]) {
        Ok(listed) => listed,
        Err(why) => return Seen::unseen(why),
    };
    let mut pools: Vec<Array> = listed.lines().filter_map(pool).collect();
    match machine.printed("zpool", &["status", "-P", "-L", "-p"]) {
        Ok(text) => pools.iter_mut().for_each(|pool| add_status(pool, &text)),
        Err(why) => pools.iter_mut().for_each(|pool| pool.errors = Seen::unseen(&why)),
    }
    Seen::Value(pools)
}

/// `tank ONLINE 37%`.
fn pool(line: &str) -> Option<Array> {
    let mut fields = line.split('\t');
    let (name, health, used) = (fields.next()?, fields.next()?, fields.next()?);
    Some(Array {
        name: name.to_owned(),
        kind: ArrayKind::Zfs,
        degraded: Seen::Value(health != "ONLINE"),
        used_percent: used.trim().trim_end_matches('%').parse().ok(),
        ..Array::default()
    })
}

/// Adds what `zpool status` says of a pool: members, what goes on, and errors of devices and files.
fn add_status(pool: &mut Array, text: &str) {
    let mut own = false;
    let mut rows = false;
    let mut errors: Option<u64> = None;
    for line in text.lines() {
        let line = line.trim();
        if let Some(name) = line.strip_prefix("pool:") {
            own = name.trim() == pool.name;
            rows = false;
            continue;
        }
        if !own {
            continue;
        }
        if let Some(scan) = line.strip_prefix("scan:") {
            for action in ["scrub", "resilver"] {
                if scan.trim_start().starts_with(&format!("{action} in progress")) {
                    pool.action = action.to_owned();
                }
            }
        } else if let Some(files) = line.strip_prefix("errors:") {
            rows = false;
            let damaged = !files.contains("No known data errors");
            errors = Some(errors.unwrap_or(0).saturating_add(damaged.into()));
        } else if line.starts_with("NAME") && line.contains("CKSUM") {
            rows = true;
        } else if rows {
            let fields: Vec<&str> = line.split_whitespace().collect();
            // A spare has no counters.
            let counted =
                fields.get(2..5).into_iter().flatten().filter_map(|count| count.parse::<u64>().ok());
            errors = Some(counted.fold(errors.unwrap_or(0), u64::saturating_add));
            let device = fields.first().and_then(|name| name.strip_prefix("/dev/"));
            pool.members.extend(device.map(|device| device.rsplit('/').next().unwrap_or(device).to_owned()));
        }
    }
    pool.errors = errors.ok_or_else(|| "zpool status does not tell of it".to_owned()).into();
}

/// LVM groups with logical volumes, and thin pools. Where LVM's programs cannot be asked, a machine whose device mapper
/// has no volume has none.
pub(super) fn volumes(machine: &Machine) -> Seen<Vec<Array>> {
    let below = groups_below(machine);
    match machine.printed("lvs", &["--noheadings", "--separator", "|", "-o", COLUMNS]) {
        Ok(text) => Seen::Value(volumes_of(&text, &below)),
        Err(_) if machine.is_live() && below.is_empty() => Seen::Value(Vec::new()),
        Err(why) => Seen::unseen(why),
    }
}

/// `group|pool|twi-aotz--|12.50|3.10|0`: the first attribute of a thin pool is `t`.
fn volumes_of(text: &str, below: &BTreeMap<String, BTreeSet<String>>) -> Vec<Array> {
    let mut groups: BTreeMap<&str, Array> = BTreeMap::new();
    let mut pools = Vec::new();
    for line in text.lines() {
        let fields: Vec<&str> = line.trim().split('|').collect();
        let [group, name, attributes, used, metadata, missing] = fields[..] else { continue };
        groups.entry(group).or_insert_with(|| Array {
            name: group.to_owned(),
            kind: ArrayKind::Lvm,
            level: "group".to_owned(),
            degraded: missing
                .parse::<u64>()
                .map(|missing| missing > 0)
                .map_err(|_| "lvs does not count missing disks".to_owned())
                .into(),
            errors: Seen::Value(0),
            members: below.get(group).into_iter().flatten().cloned().collect(),
            ..Array::default()
        });
        if attributes.starts_with('t') {
            pools.push(Array {
                name: format!("{group}/{name}"),
                kind: ArrayKind::Lvm,
                level: "thin pool".to_owned(),
                degraded: Seen::Value(false),
                errors: Seen::Value(0),
                used_percent: used.parse().ok(),
                metadata_percent: metadata.parse().ok(),
                ..Array::default()
            });
        }
    }
    groups.into_values().chain(pools).collect()
}

/// The disks and partitions below the volumes of each group, by sysfs. A volume's map is called `GROUP-VOLUME`, with
/// hyphens doubled in both.
fn groups_below(machine: &Machine) -> BTreeMap<String, BTreeSet<String>> {
    let mut groups: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for device in machine.names("/sys/block").into_iter().filter(|name| name.starts_with("dm-")) {
        let is_volume =
            machine.line(&format!("/sys/block/{device}/dm/uuid")).is_ok_and(|id| id.starts_with("LVM-"));
        let Ok(name) = machine.line(&format!("/sys/block/{device}/dm/name")) else { continue };
        let name = name.replace("--", "\u{0}");
        let Some((group, _)) = name.split_once('-').filter(|_| is_volume) else { continue };
        let own = groups.entry(group.replace('\u{0}', "-")).or_default();
        let mut level = vec![device];
        for _ in 0..CHAIN_MAX {
            let next = level.iter().flat_map(|name| machine.names(&format!("/sys/block/{name}/slaves")));
            let (maps, disks): (Vec<_>, Vec<_>) = next.partition(|name| name.starts_with("dm-"));
            own.extend(disks);
            level = maps;
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gather::put;

    const LVS: &str = "commands/lvs_--noheadings_--separator_|_-o_vg_name,lv_name,lv_attr,data_percent,metadata_percent,vg_missing_pv_count";

    #[test]
    fn what_zpool_and_lvs_print_becomes_arrays_with_their_members() {
        let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        let root = folder.path();
        put(
            root,
            "commands/zpool_list_-H_-o_name,health,capacity",
            "tank\tDEGRADED\t81%\nodd\ndozer\tONLINE\t1%\n",
        );
        put(
            root,
            "commands/zpool_status_-P_-L_-p",
            "  pool: dozer\n state: ONLINE\n  scan: none requested\nconfig:\n\n\tNAME STATE READ WRITE CKSUM\n\tdozer ONLINE 0 0 0\n\
             \t  /dev/sdc ONLINE 0 0 0\n\nerrors: No known data errors\n\n  pool: tank\n  scan: scrub in progress since Sun\nconfig:\n\
             \tNAME STATE READ WRITE CKSUM\n\ttank DEGRADED 0 0 0\n\t  mirror-0 DEGRADED 0 0 0\n\t    /dev/sda1 ONLINE 0 0 3\n\
             \t    /dev/sdb1 FAULTED 2 1 0 too many errors\nerrors: 1 data errors, use '-v' for a list\n",
        );
        put(
            root,
            LVS,
            "  my-vg|pool|twi-aotz--|12.50|3.10|0\n  my-vg|root|-wi-ao----|||0\n  old|home|-wi-----p-|||1\n odd\n",
        );
        for (file, text) in [
            ("dm-0/dm/uuid", "LVM-x"),
            ("dm-0/dm/name", "my--vg-root"),
            ("dm-0/slaves/dm-1/x", ""),
            ("dm-1/dm/uuid", "CRYPT-x"),
            ("dm-1/slaves/sdd2/x", ""),
        ] {
            put(root, &format!("sys/block/{file}"), text);
        }
        let machine = Machine::copy(root);
        let pools = pools(&machine);
        let pools = pools.get().cloned().unwrap_or_default();
        assert_eq!(pools.len(), 2, "{pools:?}");
        assert_eq!((pools[0].degraded.get(), pools[0].errors.get()), (Some(&true), Some(&7)));
        assert_eq!((pools[0].action.as_str(), pools[0].members.join(" ").as_str()), ("scrub", "sda1 sdb1"));
        assert_eq!((pools[1].errors.get(), pools[1].members.join(" ").as_str()), (Some(&0), "sdc"));
        let volumes = volumes(&machine).get().cloned().unwrap_or_default();
        let told: Vec<_> =
            volumes.iter().map(|one| (one.name.as_str(), one.degraded.get().copied())).collect();
        assert_eq!(told, [("my-vg", Some(false)), ("old", Some(true)), ("my-vg/pool", Some(false))]);
        assert_eq!((volumes[0].members.join(" ").as_str(), volumes[2].metadata_percent), ("sdd2", Some(3.1)));
    }

    #[test]
    fn programs_that_fail_hide_their_pools_with_the_reason_and_no_others() {
        let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        let root = folder.path();
        for (file, text) in [("md0/md/level", "raid1"), ("md1/md/level", "raid0")] {
            put(root, &format!("sys/block/{file}"), text);
        }
        let machine = Machine::copy(root);
        assert!(pools(&machine).why().contains("no output of `zpool list"), "{:?}", pools(&machine));
        assert!(volumes(&machine).why().contains("no output of `lvs"), "{:?}", volumes(&machine));
        let arrays = md(&machine);
        assert!(arrays[0].degraded.why().contains("there is no /sys/block/md0/md/degraded"), "{arrays:?}");
        assert_eq!(arrays[1].degraded, Seen::Value(false), "it has no redundancy to lose");
    }
}
