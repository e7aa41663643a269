//! Rules about the logical units of a running target, and the devices behind them.

use std::collections::{BTreeMap, BTreeSet};

use lunway_block::Severity;

use super::target::{SERVED, count, luns, place, target};
use super::{Group, Rule, listed};
use crate::facts::{Facts, LunStore, ServedLun, UnitActivity};
use crate::verdict::{Outcome, Verdict};

/// Seconds for which a target must have served before "never" says something.
const WEEK_S: u64 = 7 * 86_400;
/// A flush that takes less than this, microseconds, has not reached a disk that turns or a flash without a capacitor.
const FLUSH_CACHE_US: f64 = 20.0;
/// Flushes below which their mean says nothing.
const FLUSHES_MIN: u64 = 100;

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "lun-serial",
        group: Group::Target,
        title: "LUNs with different devices have different serial numbers",
        severity: Severity::Warning,
        applies: SERVED,
        why: "hosts merge two disks with one serial number into one map, and write half of each to the other (no published figure)",
        source: "SPC-4 §7.8.15; a configuration file that was copied",
        thumbs: &[],
        fix: "lunway lun set {target} {lun} --serial NEW",
        undo: "lunway lun set {target} {lun} --serial {serial}",
        check: serials,
    },
    Rule {
        id: "lun-store-twice",
        group: Group::Target,
        title: "A file is the backing store of one writable LUN only",
        severity: Severity::Warning,
        applies: "targets on this machine",
        why: "two LUNs over one file are two disks to their hosts, each with caches and a file system of its own (no published figure)",
        source: "SBC-3 §4.1: a logical unit is one medium",
        thumbs: &[],
        fix: "lunway lun remove {target} {lun}",
        undo: "lunway lun add {target} {lun} {path}",
        check: store_twice,
    },
    Rule {
        id: "lun-sectors",
        group: Group::Target,
        title: "A LUN's sectors are not smaller than those of the disk below, or it reports larger physical ones",
        severity: Severity::Note,
        applies: "LUNs in files or on disks of this machine",
        why: "sectors of 512 bytes on a disk with 4 KiB make it read before each small write; beside that 512 and 4K differ by -5 to +5 %. \
              Only 512-byte disks: 512. 512e: either. 4K disks: 4K, or 512 with physical_sector 4096",
        source: "published tests of sectors: published IOPS of both",
        thumbs: &[18],
        fix: "set sector = 4096 for the LUN before it is formatted, or physical_sector = 4096",
        undo: "",
        check: sectors,
    },
    Rule {
        id: "lun-unmap",
        group: Group::Target,
        title: "Hosts of thin LUNs unmap free space",
        severity: Severity::Note,
        applies: "thin LUNs that have been written for 7 days",
        why: "without UNMAP a thin LUN grows to its full size, whatever is in it, and compacting it afterwards freed 5 % in four \
              passes",
        source: "SBC-3 §4.7.3; fstrim(8): once a week",
        thumbs: &[19],
        fix: "on the host: systemctl enable --now fstrim.timer",
        undo: "",
        check: unmap,
    },
    Rule {
        id: "lun-failures",
        group: Group::Target,
        title: "Devices of LUNs do not fail commands",
        severity: Severity::Warning,
        applies: SERVED,
        why: "a command that the device fails is an I/O error at the host: a full store, a bad sector, a disk that is gone (no \
              published figure)",
        source: "the daemon's counters",
        thumbs: &[],
        fix: "check the device of {target} LUN {lun}; journalctl -u lunway; dmesg",
        undo: "",
        check: failures,
    },
    Rule {
        id: "lun-flush",
        group: Group::Target,
        title: "A flush takes as long as a medium needs",
        severity: Severity::Note,
        applies: "LUNs in files or on disks that were flushed 100 times",
        why: "a flush of less than 20 µs was answered by a cache: unless that has a battery \
              or capacitor, a power cut loses flushed data",
        source: "rules of thumb 16 and 21; one write of NAND flash takes 200 µs and more",
        thumbs: &[16, 21],
        fix: "find out which cache answers, and whether it is protected; else switch it off: hdparm -W 0 DISK",
        undo: "hdparm -W 1 DISK",
        check: flush,
    },
];

fn serials(facts: &Facts) -> Vec<Outcome> {
    target(facts, |target| {
        // The first of each serial number, and the first with another device.
        let mut owners: BTreeMap<&str, Vec<(&str, &ServedLun)>> = BTreeMap::new();
        for (name, lun) in luns(target).filter(|(_, lun)| !lun.serial.is_empty()) {
            let owners = owners.entry(&lun.serial).or_default();
            if owners.is_empty() || (owners.len() == 1 && owners[0].1.device != lun.device) {
                owners.push((name, lun));
            }
        }
        let judge = |(name, lun): (&str, &ServedLun)| {
            let place_here = place(name, lun.id);
            let same = owners.get(lun.serial.as_str()).into_iter().flatten();
            let other = same.copied().find(|(_, other)| other.device != lun.device);
            let what = match other {
                None => format!("{place_here} has a serial number of its own"),
                Some((name, other)) => {
                    format!(
                        "{place_here} and {} have the serial number {}",
                        place(name, other.id),
                        lun.serial
                    )
                }
            };
            Outcome::judged(other.is_none(), Verdict::Bad, place_here, what)
                .with("target", name)
                .with("lun", lun.id)
                .with("serial", &lun.serial)
        };
        luns(target).map(judge).collect()
    })
}

fn store_twice(facts: &Facts) -> Vec<Outcome> {
    target(facts, |target| {
        let stores = match target.stores.known() {
            Ok(stores) => stores,
            Err(why) => return vec![Outcome::unknown("stores", format!("files behind LUNs: {why}"))],
        };
        let writable: BTreeSet<(&str, u16)> =
            luns(target).filter(|(_, lun)| !lun.read_only).map(|(name, lun)| (name, lun.id)).collect();
        let is_writable = |store: &&LunStore| writable.contains(&(store.target.as_str(), store.lun));
        let stores: Vec<_> = stores.iter().filter(is_writable).collect();
        let mut users: BTreeMap<&str, Vec<&LunStore>> = BTreeMap::new();
        for store in &stores {
            users.entry(&store.identity).or_default().push(store);
        }
        let judge = |store: &&LunStore| {
            let here = place(&store.target, store.lun);
            let mut same = users.get(store.identity.as_str()).into_iter().flatten();
            let other = same.find(|other| (&other.target, other.lun) != (&store.target, store.lun));
            let what = match other {
                None => format!("{here} has {} for itself", store.path),
                Some(other) => format!("{here} and {} write {}", place(&other.target, other.lun), store.path),
            };
            Outcome::judged(other.is_none(), Verdict::Bad, here, what)
                .with("target", &store.target)
                .with("lun", store.lun)
                .with("path", &store.path)
        };
        stores.iter().map(judge).collect()
    })
}

fn sectors(facts: &Facts) -> Vec<Outcome> {
    target(facts, |target| {
        let stores = match target.stores.known() {
            Ok(stores) => stores,
            Err(why) => return vec![Outcome::unknown("stores", format!("disks below LUNs: {why}"))],
        };
        let judge = |store: &LunStore| {
            let here = place(&store.target, store.lun);
            let (_, lun) = luns(target).find(|(name, lun)| *name == store.target && lun.id == store.lun)?;
            let physical = match store.physical_sector.known() {
                Ok(physical) => *physical,
                Err(why) => {
                    return Some(Outcome::unknown(
                        here,
                        format!("sectors of the disk below {}: {why}", store.path),
                    ));
                }
            };
            // What the LUN tells its hosts to align to.
            let told = lun.physical_sector.unwrap_or(0).max(lun.sector);
            let aligned = told >= physical;
            let logical = match store.logical_sector.known() {
                Ok(logical) => *logical,
                Err(_) if aligned => physical,
                Err(why) => {
                    return Some(Outcome::unknown(
                        here,
                        format!("sectors of the disk below {}: {why}", store.path),
                    ));
                }
            };
            let form = match (logical, physical) {
                (512, 512) => "512".to_owned(),
                (512, _) => format!("512 on {physical} (512e)"),
                (logical, _) => format!("{logical}"),
            };
            let what = format!("{here} has sectors of {} on {told}, the disk below of {form}", lun.sector);
            // A 512e disk takes either; one that has no smaller sectors does not.
            Some(Outcome::judged(aligned || logical <= lun.sector, Verdict::Warn, here, what))
        };
        stores.iter().filter_map(judge).collect()
    })
}

fn unmap(facts: &Facts) -> Vec<Outcome> {
    target(facts, |target| {
        if target.uptime_s < WEEK_S {
            return Vec::new();
        }
        let judge = |unit: &UnitActivity| {
            let device =
                target.devices.iter().find(|one| one.target == unit.target && one.lun == unit.lun)?;
            let space = device.space?;
            // One that takes all of its size has nothing to give back, or is not thin.
            let thin = (1..device.size).contains(&space.allocated);
            if !thin || count(&unit.operations, "write") == 0 {
                return None;
            }
            let unmaps = count(&unit.operations, "unmap");
            let here = place(&unit.target, unit.lun);
            let what = format!("{unmaps} UNMAP commands for {here} in {} days", target.uptime_s / 86_400);
            Some(Outcome::judged(unmaps > 0, Verdict::Warn, here, what))
        };
        target.units.iter().filter_map(judge).collect()
    })
}

fn failures(facts: &Facts) -> Vec<Outcome> {
    target(facts, |target| {
        let judge = |unit: &UnitActivity| {
            let here = place(&unit.target, unit.lun);
            let failed = unit.failures.iter().filter(|failure| failure.count > 0);
            let failed: Vec<String> =
                failed.map(|failure| format!("{} ({})", failure.count, failure.cause)).collect();
            let what = match failed.is_empty() {
                true => format!("the device of {here} failed no command"),
                false => format!("the device of {here} failed commands: {}", listed(failed.clone())),
            };
            let outcome = Outcome::judged(failed.is_empty(), Verdict::Bad, here, what);
            outcome.with("target", &unit.target).with("lun", unit.lun)
        };
        target.units.iter().map(judge).collect()
    })
}

fn flush(facts: &Facts) -> Vec<Outcome> {
    target(facts, |target| {
        let judge = |unit: &UnitActivity| {
            // Memory has no medium to wait for.
            let stores = target.stores.get()?;
            stores.iter().find(|store| store.target == unit.target && store.lun == unit.lun)?;
            let flush = unit.operations.iter().find(|operation| operation.operation == "flush")?;
            if flush.operations < FLUSHES_MIN {
                return None;
            }
            let mean = flush.latency_us_total as f64 / flush.operations as f64;
            let here = place(&unit.target, unit.lun);
            let what = format!("a flush of {here} takes {mean:.0} µs");
            Some(Outcome::judged(mean >= FLUSH_CACHE_US, Verdict::Warn, here, what))
        };
        target.units.iter().filter_map(judge).collect()
    })
}
