//! Rules about a running target: its own warnings, and its portals.

use lunway_block::Severity;

use super::{Group, Rule};
use crate::facts::{Facts, Operations, ServedLun, Target};
use crate::verdict::{Outcome, Verdict};

/// To what rules about a daemon apply.
pub(super) const SERVED: &str = "running targets";

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "target-open",
        group: Group::Target,
        title: "Targets admit only initiators that a rule allows",
        severity: Severity::Warning,
        applies: SERVED,
        why: "an initiator that finds the portal can overwrite every disk",
        source: "the daemon's own warning open_target; RFC 7143 §9",
        thumbs: &[],
        fix: "lunway acl add TARGET NAME --initiator IQN; lunway target set TARGET --no-open",
        undo: "lunway target set TARGET --open",
        check: |facts| warned(facts, "open_target", Verdict::Warn),
    },
    Rule {
        id: "target-closed",
        group: Group::Target,
        title: "Every target admits at least one initiator",
        severity: Severity::Warning,
        applies: SERVED,
        why: "each login to it is refused",
        source: "the daemon's own warning closed_target",
        thumbs: &[],
        fix: "lunway acl add TARGET NAME --initiator IQN",
        undo: "lunway acl remove TARGET NAME",
        check: |facts| warned(facts, "closed_target", Verdict::Warn),
    },
    Rule {
        id: "target-secret",
        group: Group::Target,
        title: "CHAP secrets cannot be guessed, and only the daemon can read them",
        severity: Severity::Warning,
        applies: SERVED,
        why: "a secret of less than 96 bits can be found from one recorded login",
        source: "RFC 7143 §9.2.1; the daemon's own warnings weak_secret and readable_secret",
        thumbs: &[],
        fix: "put 12 to 16 random bytes into the secret's file; chmod 600 FILE; lunway reload",
        undo: "",
        check: |facts| {
            let weak = warned(facts, "weak_secret", Verdict::Bad);
            let readable = warned(facts, "readable_secret", Verdict::Bad);
            let broken = |outcome: &&Outcome| outcome.verdict != Verdict::Ok;
            let broken: Vec<Outcome> = weak.iter().chain(&readable).filter(broken).cloned().collect();
            if broken.is_empty() { weak } else { broken }
        },
    },
    Rule {
        id: "target-name",
        group: Group::Target,
        title: "Names of targets have the standard's form",
        severity: Severity::Warning,
        applies: SERVED,
        why: "some initiators refuse other names: Windows shows the target and cannot connect to it",
        source: "RFC 7143 §4.2.7; the daemon's own warning odd_name",
        thumbs: &[],
        fix: "lunway target add IQN    # and move the LUNs there",
        undo: "lunway target remove IQN",
        check: |facts| warned(facts, "odd_name", Verdict::Warn),
    },
    Rule {
        id: "lun-offline",
        group: Group::Target,
        title: "The device of every configured LUN is open",
        severity: Severity::Warning,
        applies: SERVED,
        why: "initiators find no disk under its number: a file system on it is gone, an array is degraded",
        source: "the daemon's own warning offline_lun",
        thumbs: &[],
        fix: "mount or repair what holds the device; lunway lun set TARGET LUN --device DEVICE if it was moved",
        undo: "",
        check: |facts| warned(facts, "offline_lun", Verdict::Bad),
    },
    Rule {
        id: "portal-idle",
        group: Group::Target,
        title: "The daemon listens on every configured portal",
        severity: Severity::Warning,
        applies: SERVED,
        why: "the lanes over it are missing at the next fault: an address that the machine does not have refuses connections",
        source: "published reports: 0xefff0003 after a change of network cards",
        thumbs: &[22],
        fix: "ip address add ADDRESS/LENGTH dev PORT    # or: lunway portal remove {portal}",
        undo: "",
        check: |facts| {
            target(facts, |target| {
                let judge = |portal: &crate::facts::PortalState| {
                    let what = match &portal.waiting {
                        None => format!("{} is listened on", portal.listen),
                        Some(why) => format!("{} is not listened on: {why}", portal.listen),
                    };
                    Outcome::judged(portal.waiting.is_none(), Verdict::Warn, &portal.listen, what)
                        .with("portal", &portal.listen)
                };
                target.portals.iter().map(judge).collect()
            })
        },
    },
];

/// Judges a running target; no outcome where none was asked.
pub(super) fn target(facts: &Facts, judge: impl FnOnce(&Target) -> Vec<Outcome>) -> Vec<Outcome> {
    facts.target.as_ref().map(judge).unwrap_or_default()
}

/// What the daemon warns of itself.
fn warned(facts: &Facts, kind: &str, verdict: Verdict) -> Vec<Outcome> {
    target(facts, |target| {
        let of_kind = target.warnings.iter().filter(|warning| warning.kind == kind);
        let found: Vec<Outcome> = of_kind
            .map(|warning| Outcome::judged(false, verdict, "daemon", warning.text.trim_end_matches('.')))
            .collect();
        if found.is_empty() {
            vec![Outcome::ok("daemon", format!("it does not warn of {}", kind.replace('_', " ")))]
        } else {
            found
        }
    })
}

/// Commands of one kind that have ended.
pub(super) fn count(operations: &[Operations], name: &str) -> u64 {
    operations
        .iter()
        .filter(|operation| operation.operation == name)
        .map(|operation| operation.operations)
        .sum()
}

/// All logical units with their targets' names.
pub(super) fn luns(target: &Target) -> impl Iterator<Item = (&str, &ServedLun)> {
    target.targets.iter().flat_map(|served| served.luns.iter().map(|lun| (served.name.as_str(), lun)))
}

/// A logical unit as the place of a finding.
pub(super) fn place(target: &str, lun: u16) -> String {
    format!("{target} LUN {lun}")
}
