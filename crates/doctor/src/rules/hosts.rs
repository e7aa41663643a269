//! Rules about the initiators of a running target, all of which it sees.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use lunway_block::Severity;

use super::target::{count, target};
use super::{Group, Rule, listed};
use crate::facts::{Facts, ServedLun, ServedSession, ServedTarget, Target};
use crate::verdict::{Outcome, Verdict};

const SESSIONS: &str = "running targets with sessions";

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "host-name-cloned",
        group: Group::Target,
        title: "An initiator name belongs to one host",
        severity: Severity::Warning,
        applies: SESSIONS,
        why: "hosts with one name share access rules and reservations, and with one ISID each login ends the other's session, for \
              ever (no published figure)",
        source: "RFC 7143 §6.3.5: session reinstatement; cloned images of virtual machines",
        thumbs: &[],
        fix: "on each clone: echo InitiatorName=$(iscsi-iname) > /etc/iscsi/initiatorname.iscsi; systemctl restart iscsid",
        undo: "",
        check: cloned,
    },
    Rule {
        id: "host-lanes",
        group: Group::Target,
        title: "Every host uses all portals that its target offers",
        severity: Severity::Warning,
        applies: "targets with two or more portals that are listened on or used",
        why: "a host that lacks some lanes is noticed only when the others fail (no published figure)",
        source: "rule of thumb 22: pull a cable",
        thumbs: &[22],
        fix: "on {initiator}: log in to {portal}",
        undo: "",
        check: missing_lanes,
    },
    Rule {
        id: "writers",
        group: Group::Target,
        title: "Two hosts that write one LUN hold registrations",
        severity: Severity::Warning,
        applies: "targets to which two or more hosts have written",
        why: "two file systems on one disk that do not know of each other destroy each other silently; cluster file systems \
              register keys (no published figure)",
        source: "SPC-4 §5.14; administrators' rule on writers",
        thumbs: &[],
        fix: "lunway acl add TARGET NAME --initiator IQN --read-only    # for all hosts but one, or use a cluster file system with reservations",
        undo: "lunway acl remove TARGET NAME",
        check: writers,
    },
    Rule {
        id: "digest-mixed",
        group: Group::Target,
        title: "All lanes of a host have the same digests",
        severity: Severity::Note,
        applies: "hosts with two or more sessions",
        why: "a lane with CRC32C over data costs a pass over every byte that the other lanes do not: they differ in speed, and damage on \
              the others goes unnoticed",
        source: "RFC 7143 §13.1",
        thumbs: &[8],
        fix: "on {initiator}: iscsiadm -m node -o update -n node.conn[0].iscsi.DataDigest -v None    # or CRC32C, for all",
        undo: "",
        check: digests,
    },
];

/// Sessions of one initiator name and target.
fn by_host(target: &Target) -> BTreeMap<(&str, &str), Vec<&ServedSession>> {
    let mut hosts: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for session in &target.sessions {
        hosts.entry((session.initiator.as_str(), session.target.as_str())).or_default().push(session);
    }
    hosts
}

/// The address without its port.
fn address(peer: &str) -> &str {
    peer.rsplit_once(':').map_or(peer, |(address, _)| address)
}

/// Aliases are names of hosts: two of them are two hosts. One alias, or none, proves nothing: a cloned machine has its
/// original's name as well. Then one portal that is met from two addresses is a mesh of one host, or two hosts.
fn cloned(facts: &Facts) -> Vec<Outcome> {
    target(facts, |target| {
        let mut names: BTreeMap<&str, Vec<&ServedSession>> = BTreeMap::new();
        for session in &target.sessions {
            names.entry(&session.initiator).or_default().push(session);
        }
        let judge = |(name, sessions): (&str, Vec<&ServedSession>)| {
            let aliases: BTreeSet<&str> =
                sessions.iter().filter_map(|session| session.initiator_alias.as_deref()).collect();
            let addresses: BTreeSet<&str> = sessions.iter().map(|session| address(&session.peer)).collect();
            let mut met: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
            for session in &sessions {
                met.entry(&session.portal).or_default().insert(address(&session.peer));
            }
            let crossing = met.values().any(|addresses| addresses.len() > 1);
            let all = listed(addresses.iter().map(|&address| address.to_owned()));
            if aliases.len() > 1 {
                let aliases = listed(aliases.iter().map(|&alias| alias.to_owned()));
                return Outcome::bad(name, format!("{name} is used by {aliases}, from {all}"));
            }
            if crossing {
                let what =
                    "one host with several cards, or a clone of it: compare the initiator names of the hosts";
                return Outcome::unknown(name, format!("{name} comes from {all} to one portal: {what}"));
            }
            Outcome::ok(
                name,
                match addresses.len() {
                    0 | 1 => format!("{name} is one host"),
                    _ => format!(
                        "{name} has a lane to each portal, as one host has (from {all}); a clone by another portal is \
                         told from it by the facts of both hosts alone: --from"
                    ),
                },
            )
        };
        names.into_iter().map(judge).collect()
    })
}

/// Portals that the daemon listens on, of the IP versions that a host uses. Those on all addresses, and those that only
/// its own machine reaches, are no lane of a host.
fn offered<'a>(target: &'a Target, used: &BTreeSet<&str>) -> BTreeSet<&'a str> {
    let parsed = |portal: &str| portal.parse::<SocketAddr>().ok();
    let versions: BTreeSet<bool> = used.iter().filter_map(|portal| Some(parsed(portal)?.is_ipv4())).collect();
    let portals = target.portals.iter().flat_map(|entry| &entry.portals).map(String::as_str);
    let reached = |portal: &&str| {
        parsed(portal).is_some_and(|at| {
            !at.ip().is_unspecified() && !at.ip().is_loopback() && versions.contains(&at.is_ipv4())
        })
    };
    portals.filter(reached).collect()
}

fn missing_lanes(facts: &Facts) -> Vec<Outcome> {
    target(facts, |target| {
        let portals_of = |name: &str| -> BTreeSet<&str> {
            let sessions = target.sessions.iter().filter(|session| session.target == name);
            sessions.map(|session| session.portal.as_str()).collect()
        };
        let judge = |((initiator, name), sessions): ((&str, &str), Vec<&ServedSession>)| {
            let used: BTreeSet<&str> = sessions.iter().map(|session| session.portal.as_str()).collect();
            let mut all = portals_of(name);
            all.extend(offered(target, &used));
            if all.len() < 2 {
                return None;
            }
            let missing: Vec<&str> = all.difference(&used).copied().collect();
            let what = format!("{initiator} uses {} of {} portals of {name}", used.len(), all.len());
            let outcome = Outcome::judged(missing.is_empty(), Verdict::Warn, initiator, what);
            let missing = missing.into_iter().map(str::to_owned);
            Some(outcome.with("initiator", initiator).with_words("portal", missing))
        };
        by_host(target).into_iter().filter_map(judge).collect()
    })
}

fn writers(facts: &Facts) -> Vec<Outcome> {
    target(facts, |target| {
        let judge = |served: &ServedTarget| {
            let sessions = target.sessions.iter().filter(|session| session.target == served.name);
            let writing = sessions.filter(|session| count(&session.operations, "write") > 0);
            let writers: BTreeSet<&str> = writing.map(|session| session.initiator.as_str()).collect();
            if writers.len() < 2 {
                return None;
            }
            let written = |lun: &&ServedLun| {
                let units =
                    target.units.iter().filter(|unit| unit.target == served.name && unit.lun == lun.id);
                !lun.read_only && units.map(|unit| count(&unit.operations, "write")).sum::<u64>() > 0
            };
            let protected = |lun: &ServedLun| {
                target.reservations.iter().any(|unit| {
                    let of_lun = unit.target == served.name && unit.lun == lun.id;
                    let held = unit.reservation.is_some()
                        || unit.reserved_by.is_some()
                        || !unit.registrations.is_empty();
                    of_lun && held
                })
            };
            let luns: Vec<&ServedLun> = served.luns.iter().filter(written).collect();
            let names = listed(writers.iter().map(|&name| name.to_owned()));
            let bare: Vec<String> =
                luns.iter().filter(|lun| !protected(lun)).map(|lun| lun.id.to_string()).collect();
            Some(match (bare.len(), luns.len()) {
                (0, _) => Outcome::ok(&served.name, format!("{names} write, and hold registrations")),
                (1, 1) => {
                    Outcome::bad(&served.name, format!("{names} write LUN {} without a reservation", bare[0]))
                }
                // Counters of sessions are not told for each LUN.
                _ => Outcome::unknown(
                    &served.name,
                    format!(
                        "{names} write, without reservations on LUNs {}; which of them writes which is not counted",
                        listed(bare)
                    ),
                ),
            })
        };
        target.targets.iter().filter_map(judge).collect()
    })
}

fn digests(facts: &Facts) -> Vec<Outcome> {
    target(facts, |target| {
        let judge = |((initiator, _), sessions): ((&str, &str), Vec<&ServedSession>)| {
            if sessions.len() < 2 {
                return None;
            }
            let same = sessions.iter().all(|session| session.digests == sessions[0].digests);
            let has = if same { "the same digests" } else { "different digests" };
            let what = format!("sessions of {initiator} have {has}");
            Some(Outcome::judged(same, Verdict::Warn, initiator, what).with("initiator", initiator))
        };
        by_host(target).into_iter().filter_map(judge).collect()
    })
}
