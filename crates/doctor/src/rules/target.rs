//! Rules about a running target: its own warnings, and its portals.

use std::net::SocketAddr;

use lunway_block::Severity;

use super::{Group, Rule};
use crate::facts::{Facts, Operations, ServedLun, ServedTarget, Target};
use crate::seen::Seen;
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
        why: "an initiator that finds the portal can overwrite every disk (no published figure)",
        source: "the daemon's own warning open_target; RFC 7143 §9",
        thumbs: &[],
        fix: "lunway acl add {target} NAME --initiator IQN; lunway target set {target} --no-open",
        undo: "lunway target set {target} --open; lunway acl remove {target} NAME",
        check: |facts| warned(facts, "open_target", Verdict::Warn),
    },
    Rule {
        id: "target-closed",
        group: Group::Target,
        title: "Every target admits at least one initiator",
        severity: Severity::Warning,
        applies: SERVED,
        why: "each login to it is refused (no published figure)",
        source: "the daemon's own warning closed_target",
        thumbs: &[],
        fix: "lunway acl add {target} NAME --initiator IQN",
        undo: "lunway acl remove {target} NAME",
        check: |facts| warned(facts, "closed_target", Verdict::Warn),
    },
    Rule {
        id: "target-secret",
        group: Group::Target,
        title: "CHAP secrets cannot be guessed, and only the daemon can read them",
        severity: Severity::Warning,
        applies: SERVED,
        why: "every user of the machine can log in with a secret that all can read; one of less than 96 bits can be found from one \
              recorded login",
        source: "RFC 7143 §9.2.1; the daemon's own warnings weak_secret and readable_secret",
        thumbs: &[],
        fix: "put 12 to 16 random bytes into the secret's file if it is short; chmod 600 FILE if all can read it; lunway reload",
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
        why: "some initiators refuse other names: Windows shows the target and cannot connect to it (no published figure)",
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
        why: "initiators find no disk under its number: a file system on it is gone, an array is degraded (no published figure)",
        source: "the daemon's own warning offline_lun",
        thumbs: &[],
        fix: "mount or repair what holds the device; lunway lun set TARGET LUN --device DEVICE if it was moved",
        undo: "",
        check: |facts| warned(facts, "offline_lun", Verdict::Bad),
    },
    Rule {
        id: "lun-lost-file",
        group: Group::Target,
        title: "The file or device of every LUN has its name and its length, and a VHDX file takes writes",
        severity: Severity::Warning,
        applies: SERVED,
        why: "what initiators write goes to a file without a name and is gone when the daemon ends, reads behind the new end fail, or \
              the LUN refuses writes until its VHDX file is opened anew (no published figure)",
        source: "the daemon's own warning lost_file",
        thumbs: &[],
        fix: "lunway copy iscsi://PORTAL/TARGET/LUN NEW.img    # before the daemon ends; then put the file back, remove the LUN and add it \
              again",
        undo: "",
        check: |facts| warned(facts, "lost_file", Verdict::Bad),
    },
    Rule {
        id: "lun-shrunk",
        group: Group::Target,
        title: "No LUN has fewer bytes than when it was served last",
        severity: Severity::Warning,
        applies: SERVED,
        why: "the end of the disk is missing: file systems on it refuse to be mounted, or are damaged there (no published figure)",
        source: "the daemon's own warning shrunk_lun",
        thumbs: &[],
        fix: "put the whole file back    # or, if it is meant to be smaller: lunway lun resize TARGET LUN SIZE",
        undo: "",
        check: |facts| warned(facts, "shrunk_lun", Verdict::Bad),
    },
    Rule {
        id: "portal-set",
        group: Group::Target,
        title: "The daemon listens on storage addresses, and not on those by which its machine is administered",
        severity: Severity::Note,
        applies: "running targets with portals that other machines reach",
        why: "whoever reaches the management network reaches every target, with CHAP or names as the only barrier, and hosts that \
              discover the portal make a lane of the slow port: round robin over a gigabit port and one of 100 Mb/s was slower than \
              the better port alone",
        source: "RFC 7143 §9.3: a network of its own; rule of thumb 10; published tests of unequal ports",
        thumbs: &[10],
        fix: "lunway portal add ADDRESS    # a storage address of this machine; then: lunway portal remove {portal}",
        undo: "lunway portal add {portal}",
        check: portal_set,
    },
    Rule {
        id: "portal-idle",
        group: Group::Target,
        title: "The daemon listens on every configured portal",
        severity: Severity::Warning,
        applies: SERVED,
        why: "the lanes over it are missing at the next fault: an address that the machine does not have refuses connections \
              (0xefff0003 at Windows)",
        source: "published reports: 0xefff0003 after a change of network cards",
        thumbs: &[22],
        fix: "ip address add ADDRESS/LENGTH dev PORT    # or: lunway portal remove {portal}",
        undo: "ip address del ADDRESS/LENGTH dev PORT    # or: lunway portal add {portal}",
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

/// Returns outcomes for the daemon's own warnings.
fn warned(facts: &Facts, kind: &str, verdict: Verdict) -> Vec<Outcome> {
    target(facts, |target| {
        let of_kind = target.warnings.iter().filter(|warning| warning.kind == kind);
        let found: Vec<Outcome> = of_kind
            .map(|warning| {
                // The sentence names its target.
                let named =
                    |served: &&ServedTarget| warning.text.split_whitespace().any(|word| word == served.name);
                let name = target.targets.iter().find(named).map_or("TARGET", |served| served.name.as_str());
                let what = warning.text.trim_end_matches('.');
                Outcome::judged(false, verdict, "daemon", what).with("target", name)
            })
            .collect();
        if found.is_empty() {
            vec![Outcome::ok("daemon", format!("it does not warn of {}", kind.replace('_', " ")))]
        } else {
            found
        }
    })
}

/// Judges each portal by the port that has its address.
fn portal_set(facts: &Facts) -> Vec<Outcome> {
    let judge = |listen: &str, at: SocketAddr| {
        let ip = at.ip();
        if ip.is_loopback() {
            return None;
        }
        let unknown =
            |why: &str| Some(Outcome::unknown(listen, format!("whether {at} is for storage alone: {why}")));
        let ports = match &facts.ports {
            None => return unknown("the ports of its machine were not looked at"),
            Some(Seen::Unseen { unseen }) => return unknown(unseen),
            Some(Seen::Value(ports)) => ports,
        };
        let addressed = ports.iter().filter(|port| !port.networks.is_empty()).count();
        let own = ports.iter().find(|port| port.networks.iter().any(|network| network.addr() == ip));
        // With one port alone there is nothing to choose.
        let (sound, what) = if addressed < 2 {
            (true, format!("{at} is on the only port of this machine"))
        } else if ip.is_unspecified() {
            (false, format!("{listen} is on all addresses of this machine"))
        } else {
            let default = match facts.default_ports.known() {
                Ok(ports) => ports,
                Err(why) => return unknown(why),
            };
            match own.filter(|port| default.contains(&port.name)) {
                Some(port) => {
                    (false, format!("{at} is on {}, by which this machine reaches other networks", port.name))
                }
                None => (true, format!("{at} is on no port of the machine's administration")),
            }
        };
        Some(Outcome::judged(sound, Verdict::Warn, listen, what).with("portal", listen))
    };
    target(facts, |target| {
        let entries =
            target.portals.iter().flat_map(|entry| entry.portals.iter().map(move |at| (&entry.listen, at)));
        entries.filter_map(|(listen, at)| judge(listen, at.parse().ok()?)).collect()
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
