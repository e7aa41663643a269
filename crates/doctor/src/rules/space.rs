//! Rules about the space of the stores behind logical units.

use std::collections::BTreeMap;

use lunway_block::Severity;

use super::disks::filled;
use super::target::{place, target};
use super::{Group, Rule, listed};
use crate::facts::{Device, Facts, FolderQuota, LunStore, OwnerQuota, Target};
use crate::looks::APART_MIN_S;
use crate::verdict::{Outcome, Verdict};

/// Hours for which a store should last, and those below which it is a matter of this day.
const LASTS_H: f64 = 72.0;
const LASTS_BAD_H: f64 = 12.0;

const TOLD: &str = "LUNs whose store reports its space";

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "store-full",
        group: Group::Target,
        title: "Stores of LUNs are under 80 % full",
        severity: Severity::Warning,
        applies: TOLD,
        why: "a store without space fails its initiators' writes, and their file systems turn read-only; the rule is 80 %",
        source: "rule of thumb 19",
        thumbs: &[19],
        fix: "free space beside {target} LUN {lun}, or move it: lunway copy",
        undo: "",
        check: store_full,
    },
    Rule {
        id: "store-quota",
        group: Group::Target,
        title: "A quota of the folder of a LUN's file is under 80 % used",
        severity: Severity::Warning,
        applies: "LUNs in files of this machine",
        why: "a write that the quota refuses fails as on a full disk, while the file system has room: initiators' file systems turn \
              read-only; the rule is 80 %",
        source: "rule of thumb 19; quotas of projects, as statvfs(3) tells those of XFS and ext4",
        thumbs: &[19],
        fix: "raise the quota of the folder of {path}, or move the file out of it    # XFS: xfs_quota -x -c 'limit -p bhard=SIZE PROJECT' POINT",
        undo: "",
        check: quota,
    },
    Rule {
        id: "store-owner-quota",
        group: Group::Target,
        title: "Quotas of the user and the group that a LUN's file belongs to are under 80 % used",
        severity: Severity::Warning,
        applies: "LUNs in files of this machine",
        why: "a write that the quota refuses fails as on a full disk, while the file system has room; root's own files have no \
              limit, those that root has given to a user have; the rule is 80 %",
        source: "rule of thumb 19; quotactl(2)",
        thumbs: &[19],
        fix: "raise the quota of {kind} {id}, or give {path} to another    # XFS: xfs_quota -x -c 'limit -u bhard=SIZE USER' POINT, -g for \
              a group; ext4: setquota -u USER 0 KIB 0 0 POINT",
        undo: "",
        check: owner_quota,
    },
    Rule {
        id: "store-thin",
        group: Group::Target,
        title: "A store is large enough for its LUNs",
        severity: Severity::Note,
        applies: TOLD,
        why: "thin LUNs together may be larger than their store, which is full as soon as their hosts use the promised space (no \
              published figure)",
        source: "rule of thumb 19; SBC-3 §4.7",
        thumbs: &[19],
        fix: "extend the store, or watch it: lunway lun set {target} {lun} --threshold 80",
        undo: "",
        check: thin,
    },
    Rule {
        id: "store-forecast",
        group: Group::Target,
        title: "A store lasts for 72 hours or more at the rate at which it fills",
        severity: Severity::Warning,
        applies: TOLD,
        why: "a store that is full fails its initiators' writes: 72 h are a weekend without an administrator, and under 12 h it \
              is full by the next morning",
        source: "rule of thumb 19, as a forecast; growth between two checks at least 10 minutes apart, or that \
                 of a day if known",
        thumbs: &[19],
        fix: "free space beside {target} LUN {lun}, or move it: lunway copy",
        undo: "",
        check: forecast,
    },
];

fn store_full(facts: &Facts) -> Vec<Outcome> {
    target(facts, |target| {
        let judge = |device: &Device| {
            let space = device.space?;
            let all = space.used.saturating_add(space.available);
            if all == 0 {
                return None;
            }
            let used = 100.0 * space.used as f64 / all as f64;
            let here = place(&device.target, device.lun);
            let what = format!("the store of {here} is {used:.0} % full");
            let outcome = filled(used, here, what);
            Some(outcome.with("target", &device.target).with("lun", device.lun))
        };
        target.devices.iter().filter_map(judge).collect()
    })
}

fn quota(facts: &Facts) -> Vec<Outcome> {
    target(facts, |target| {
        let Ok(stores) = target.stores.known() else { return Vec::new() };
        let judge = |store: &LunStore| {
            let here = place(&store.target, store.lun);
            let outcome = match store.quota.known() {
                Err(why) => {
                    Outcome::unknown(here, format!("the quota of the folder of {}: {why}", store.path))
                }
                Ok(FolderQuota { limit: 0, .. }) => {
                    let what = format!("the folder of {} has no quota", store.path);
                    Outcome::ok(here, what)
                }
                Ok(FolderQuota { limit, used }) => {
                    let share = 100.0 * *used as f64 / *limit as f64;
                    let what = format!("of the quota of the folder of {} {share:.0} % are used", store.path);
                    filled(share, here, what)
                }
            };
            outcome.with("path", &store.path)
        };
        stores.iter().map(judge).collect()
    })
}

fn owner_quota(facts: &Facts) -> Vec<Outcome> {
    target(facts, |target| {
        let Ok(stores) = target.stores.known() else { return Vec::new() };
        let judge = |store: &LunStore| {
            let here = place(&store.target, store.lun);
            let quotas = match store.owner_quotas.known() {
                Err(why) => {
                    return Outcome::unknown(here, format!("quotas of the owners of {}: {why}", store.path));
                }
                Ok(quotas) => quotas,
            };
            let share = |quota: &OwnerQuota| 100.0 * quota.used as f64 / quota.limit as f64;
            let fullest = quotas.iter().filter(|quota| quota.limit > 0);
            let Some(fullest) = fullest.max_by(|a, b| share(a).total_cmp(&share(b))) else {
                return Outcome::ok(here, format!("the owners of {} have no quota", store.path));
            };
            let OwnerQuota { kind, id, .. } = fullest;
            let share = share(fullest);
            let what = format!(
                "of the quota of {kind} {id}, which {} belongs to, {share:.0} % are used",
                store.path
            );
            let outcome = filled(share, here, what);
            outcome.with("path", &store.path).with("kind", kind).with("id", id)
        };
        stores.iter().map(judge).collect()
    })
}

/// LUNs in one file system share what is left in it. Where that is not known, each is judged alone.
fn by_store(target: &Target) -> BTreeMap<String, Vec<&Device>> {
    let file_system = |device: &Device| {
        let mut stores = target.stores.get().into_iter().flatten();
        let store = stores.find(|store| store.target == device.target && store.lun == device.lun);
        store.map_or_else(|| place(&device.target, device.lun), |store| store.file_system.clone())
    };
    let mut stores: BTreeMap<String, Vec<&Device>> = BTreeMap::new();
    for device in target.devices.iter().filter(|device| device.space.is_some()) {
        stores.entry(file_system(device)).or_default().push(device);
    }
    stores
}

/// Forecasts when the space runs out, if it goes on being used at the rate since the earlier look.
fn forecast(facts: &Facts) -> Vec<Outcome> {
    target(facts, |target| {
        let judge = |devices: Vec<&Device>| {
            let device = devices.into_iter().next()?;
            let here = place(&device.target, device.lun);
            let left = device.space?.available;
            let earlier = target.earlier.as_ref().and_then(|look| {
                let same = |then: &&Device| then.target == device.target && then.lun == device.lun;
                let space = look.devices.iter().find(same)?.space?;
                let apart = target.looked_at.checked_sub(look.looked_at)?;
                (apart >= APART_MIN_S).then_some((space, apart))
            });
            let Some((then, apart)) = earlier else {
                let minutes = APART_MIN_S / 60;
                let what = format!(
                    "how fast the store of {here} fills: this is the first look at it, look again in {minutes} minutes or more"
                );
                return Some(Outcome::unknown(here, what));
            };
            let hours = apart as f64 / 3600.0;
            let gone = then.available.saturating_sub(left) as f64;
            let rate = gone / hours;
            let what = if rate > 0.0 {
                format!(
                    "the store of {here} is full in {:.0} h: {:.1} GiB are left, {:.1} GiB went in {hours:.1} h",
                    left as f64 / rate,
                    gib(left),
                    gone / gib_bytes()
                )
            } else {
                format!("the store of {here} has not filled in {hours:.1} h")
            };
            let lasts = if rate > 0.0 { left as f64 / rate } else { f64::INFINITY };
            let verdict = if lasts < LASTS_BAD_H { Verdict::Bad } else { Verdict::Warn };
            let outcome = Outcome::judged(lasts >= LASTS_H, verdict, here, what);
            Some(outcome.with("target", &device.target).with("lun", device.lun))
        };
        by_store(target).into_values().filter_map(judge).collect()
    })
}

fn gib_bytes() -> f64 {
    f64::from(1 << 30)
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / gib_bytes()
}

fn thin(facts: &Facts) -> Vec<Outcome> {
    target(facts, |target| {
        let judge = |devices: Vec<&Device>| {
            let first = devices.first()?;
            let promised: u64 = devices
                .iter()
                .filter_map(|device| Some(device.size.saturating_sub(device.space?.allocated)))
                .fold(0, u64::saturating_add);
            let left = devices.iter().filter_map(|device| device.space).map(|space| space.available).min()?;
            let names = listed(devices.iter().map(|device| place(&device.target, device.lun)));
            let what = format!(
                "{names} may still ask for {:.1} GiB, and {:.1} GiB are left",
                gib(promised),
                gib(left)
            );
            let outcome =
                Outcome::judged(promised <= left, Verdict::Warn, place(&first.target, first.lun), what);
            Some(outcome.with("target", &first.target).with("lun", first.lun))
        };
        by_store(target).into_values().filter_map(judge).collect()
    })
}
