//! Rules that take both ends of a session: hosts beside their target, or hosts beside each other.

use std::collections::{BTreeMap, BTreeSet};

use lunway_block::Severity;

use super::{Group, Rule, listed};
use crate::facts::{Ends, Facts, HostEnd, HostSession, HostUnit, LunwaySession, ServedSession, TargetEnd};
use crate::verdict::{Outcome, Verdict};

const BOTH: &str = "hosts and a target that were checked together";
const HOSTS: &str = "two or more hosts that were checked together";
/// Fix of a lane of lunway's initiator that is down.
const LANE_DOWN: &str = "on {host}: check the cable and the switch; lunway doctor DEVICE --probe";
/// Fix that gives a disk of lunway's initiator another lane.
const OTHER_PORTAL: &str = "on {host}: add portal={portal} to the address of the disk, or to its paths.toml";
/// Fix that gives lunway's initiator a name of its own.
const OTHER_NAME: &str =
    "on {host}: hostnamectl set-hostname NAME    # or add initiator=IQN to the address of the disk";

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "ends-login",
        group: Group::Ends,
        title: "Host and target have the same sessions",
        severity: Severity::Warning,
        applies: BOTH,
        why: "a session that one end alone has carries nothing: the host waits out its time-out, 120 s by default, or the target \
              keeps reservations for a host that is gone",
        source: "RFC 7143 §6.3.5; open-iscsi's default replacement_timeout",
        thumbs: &[22],
        fix: "on {host}: iscsiadm -m node -T {target} -p {portal} --logout; \
              iscsiadm -m node -T {target} -p {portal} --login",
        undo: "",
        check: |facts| with_target(facts, login),
    },
    Rule {
        id: "ends-name",
        group: Group::Ends,
        title: "No two hosts have one initiator name",
        severity: Severity::Warning,
        applies: HOSTS,
        why: "hosts with one name share access rules and reservations, and with one ISID each login ends the other's session, for \
              ever (no published figure)",
        source: "RFC 7143 §4.2.7 and §6.3.5; cloned images of virtual machines",
        thumbs: &[],
        fix: "on {host}: echo InitiatorName=$(iscsi-iname) > /etc/iscsi/initiatorname.iscsi; systemctl restart iscsid",
        undo: "on {host}: echo InitiatorName={old} > /etc/iscsi/initiatorname.iscsi; systemctl restart iscsid",
        check: names,
    },
    Rule {
        id: "ends-writers",
        group: Group::Ends,
        title: "A LUN is mounted for writing by one host, or by a cluster file system",
        severity: Severity::Warning,
        applies: "LUNs that two or more of the hosts have",
        why: "two file systems on one disk that do not know of each other destroy each other silently (no published figure)",
        source: "ext4(5), mount(8); administrators' rule on writers; GFS2 and OCFS2 are made for several hosts",
        thumbs: &[],
        fix: "on {host}: umount {point}",
        undo: "on {host}: mount {point}",
        check: writers,
    },
    Rule {
        id: "ends-digest",
        group: Group::Ends,
        title: "Sessions have the digests that their host's records ask for first",
        severity: Severity::Note,
        applies: BOTH,
        why: "a record that was edited takes effect at the next login, and a target may refuse: damage on the way then goes unnoticed, \
              or CRC32C costs a pass over every byte that was meant to be saved",
        source: "RFC 7143 §13.1: the target chooses from the host's list",
        thumbs: &[],
        fix: "on {host}: iscsiadm -m node -T {target} -p {portal} --logout; \
              iscsiadm -m node -T {target} -p {portal} --login",
        undo: "",
        check: |facts| with_target(facts, digests),
    },
    Rule {
        id: "ends-timers",
        group: Group::Ends,
        title: "All hosts of a target have the same time-outs",
        severity: Severity::Note,
        applies: "targets that two or more of the hosts have sessions to",
        why: "after one fault of the storage hosts with 15 s go on and hosts with 120 s stand still, and those of a cluster take each \
              other for dead",
        source: "open-iscsi's replacement_timeout: 120 s by default, vendors 5 to 20 s; rule of thumb 15: set by script",
        thumbs: &[15],
        fix: "on {host}: iscsiadm -m node -T {target} -o update -n node.session.timeo.replacement_timeout -v {timeout}; \
              iscsiadm -m node -T {target} -o update -n node.conn[0].timeo.noop_out_interval -v {interval}    # and log in again",
        undo: "on {host}: iscsiadm -m node -T {target} -o update -n node.session.timeo.replacement_timeout -v {old_timeout}; \
               iscsiadm -m node -T {target} -o update -n node.conn[0].timeo.noop_out_interval -v {old_interval}",
        check: timers,
    },
    Rule {
        id: "ends-lanes",
        group: Group::Ends,
        title: "A host has a session to every portal in its networks",
        severity: Severity::Warning,
        applies: "hosts with sessions, and portals in networks that they have addresses in",
        why: "a cable and a port are paid for and carry nothing, and the fault that takes the other lane takes the disk (no \
              published figure)",
        source: "rules of thumb 5 and 22",
        thumbs: &[5, 22],
        fix: "on {host}: iscsiadm -m discovery -t sendtargets -p {portal}; iscsiadm -m node -T {target} -p {portal} --login",
        undo: "on {host}: iscsiadm -m node -T {target} -p {portal} --logout",
        check: |facts| with_target(facts, lanes),
    },
    Rule {
        id: "ends-size",
        group: Group::Ends,
        title: "A host's disk has the size that the target serves",
        severity: Severity::Warning,
        applies: BOTH,
        why: "without a rescan, a grown disk keeps its old end, and writes beyond the new end of a shrunk disk fail (no published \
              figure)",
        source: "SPC-4 §6.6, SBC-3 §5.16: initiators read the capacity again when they are told to",
        thumbs: &[],
        fix: "on {host}: echo 1 > /sys/block/{disk}/device/rescan    # then multipathd resize map NAME",
        undo: "",
        check: |facts| with_target(facts, sizes),
    },
];

fn ends(facts: &Facts, judge: impl FnOnce(&Ends) -> Vec<Outcome>) -> Vec<Outcome> {
    facts.ends.as_ref().map(judge).unwrap_or_default()
}

/// Judges each host beside the target.
fn with_target(facts: &Facts, judge: impl Fn(&HostEnd, &TargetEnd) -> Vec<Outcome>) -> Vec<Outcome> {
    ends(facts, |ends| {
        let Some(target) = &ends.target else { return Vec::new() };
        let judged = |host: &HostEnd| -> Vec<Outcome> {
            judge(host, target).into_iter().map(|found| found.with("host", &host.name)).collect()
        };
        ends.hosts.iter().flat_map(judged).collect()
    })
}

/// The sessions of a host, or why they are not known.
fn sessions(host: &HostEnd) -> Result<&[HostSession], Vec<Outcome>> {
    match host.sessions.known() {
        Ok(sessions) => Ok(sessions),
        Err(why) => Err(vec![Outcome::unknown(&host.name, format!("sessions of {}: {why}", host.name))]),
    }
}

/// The name by which the target knows a host, or why it is not known.
fn name(host: &HostEnd) -> Result<&str, Vec<Outcome>> {
    match host.initiator_name.known() {
        Ok(name) => Ok(name),
        Err(why) => {
            Err(vec![Outcome::unknown(&host.name, format!("the initiator name of {}: {why}", host.name))])
        }
    }
}

/// The address of `ADDRESS:PORT`, without brackets.
fn address(end: &str) -> &str {
    end.rsplit_once(':').map_or(end, |(address, _)| address).trim_matches(['[', ']'])
}

/// Returns `true` if the two ends describe one session: by names and ISID where the host's kernel reports it, else by
/// the portal. Local addresses are not compared, as a router may change them on the way.
fn is_one(name: &str, own: &HostSession, served: &ServedSession) -> bool {
    if served.initiator != name || served.target != own.target {
        return false;
    }
    let portal = own.portal.is_none_or(|portal| address(&served.portal) == portal.to_string());
    let isid = own.isid.trim_start_matches("0x");
    if isid.is_empty() { portal } else { served.isid.eq_ignore_ascii_case(isid) }
}

/// Sessions of lunway's initiator on a host, or none where they are not known, which [`login`] tells.
fn of_lunway(host: &HostEnd) -> &[LunwaySession] {
    host.lunway_sessions.get().map_or(&[], Vec::as_slice)
}

/// Returns `true` if the two ends tell of one session of lunway's initiator, which knows its ISID.
fn is_the_same(own: &LunwaySession, served: &ServedSession) -> bool {
    served.initiator == own.initiator
        && served.target.eq_ignore_ascii_case(&own.target)
        && served.isid.eq_ignore_ascii_case(&own.isid)
}

/// Takes sessions of the host and of the target away in pairs: what is left, one end alone has.
fn login(host: &HostEnd, target: &TargetEnd) -> Vec<Outcome> {
    let (own, name) = match (sessions(host), name(host)) {
        (Ok(own), Ok(name)) => (own, name),
        (Err(unknown), _) | (_, Err(unknown)) => return unknown,
    };
    let mut found = Vec::new();
    if let Err(why) = host.lunway_sessions.known() {
        found.push(Outcome::unknown(&host.name, format!("sessions of lunway on {}: {why}", host.name)));
    }
    let names: BTreeSet<&str> = of_lunway(host).iter().map(|session| session.initiator.as_str()).collect();
    let is_here = |served: &&ServedSession| {
        (!name.is_empty() && served.initiator == name) || names.contains(served.initiator.as_str())
    };
    let mut served: Vec<&ServedSession> = target.sessions.iter().filter(is_here).collect();
    for session in of_lunway(host) {
        let pair = served.iter().position(|served| is_the_same(session, served));
        found.extend(recorded(host, session, pair.map(|at| served.swap_remove(at)), target));
    }
    for session in own.iter().filter(|session| session.up && target.names.contains(&session.target)) {
        let pair = served.iter().position(|served| is_one(name, session, served));
        let portal = session.portal.map_or("PORTAL".to_owned(), |portal| portal.to_string());
        let what = match pair.map(|at| served.swap_remove(at)) {
            Some(served) => {
                format!("{} of {} is session {} of the target", session.name, host.name, served.tsih)
            }
            None => {
                format!("{} of {} is logged in, and the target has no such session", session.name, host.name)
            }
        };
        let outcome = Outcome::judged(pair.is_some(), Verdict::Bad, &host.name, what);
        found.push(outcome.with("target", &session.target).with("portal", portal));
    }
    found.extend(served.into_iter().map(|served| {
        let what = format!(
            "the target has session {} of {} from {}, and {} does not",
            served.tsih, served.initiator, served.peer, host.name
        );
        if names.contains(served.initiator.as_str()) {
            // Other users have records of their own, and containers as well.
            return Outcome::unknown(
                &host.name,
                format!("{what}, unless another user or a container of it does"),
            );
        }
        let here = Outcome::judged(false, Verdict::Warn, &host.name, what);
        here.fixed_by(format!("lunway session drop {}", served.tsih), "")
    }));
    found
}

/// A session of lunway's initiator beside the target's.
fn recorded(
    host: &HostEnd,
    session: &LunwaySession,
    served: Option<&ServedSession>,
    target: &TargetEnd,
) -> Option<Outcome> {
    let LunwaySession { isid, target: name, portal, .. } = session;
    let portal = portal.map_or(String::new(), |portal| format!(" by {portal}"));
    let (host, lun) = (&host.name, session.lun);
    Some(match (session.process, served) {
        (Some(process), Some(served)) => {
            let what = format!("session {isid} of lunway (process {process}) on {host} is session");
            Outcome::ok(host, format!("{what} {} of the target", served.tsih))
        }
        (Some(process), None) if target.names.iter().any(|served| served.eq_ignore_ascii_case(name)) => {
            let what = format!("lunway on {host} (process {process}) has session {isid} to {name}{portal}");
            let what = format!("{what}, and the target has not: its lane is down, or it is logging in");
            Outcome::warn(host, what).fixed_by(LANE_DOWN, "")
        }
        // The next process that opens the disk ends it, before its first I/O.
        (None, Some(served)) => {
            let what = format!("a process of lunway on {host} has ended, and the target keeps its session");
            let what = format!("{what} {} to LUN {lun}, with its reservations", served.tsih);
            Outcome::warn(host, what).fixed_by(format!("lunway session drop {}", served.tsih), "")
        }
        _ => return None,
    })
}

/// Names of initiators on a host: the kernel's, and those of lunway's sessions.
fn all_names(host: &HostEnd) -> BTreeSet<&str> {
    let kernel = host.initiator_name.get().map(String::as_str).filter(|name| !name.is_empty());
    kernel.into_iter().chain(of_lunway(host).iter().map(|session| session.initiator.as_str())).collect()
}

fn names(facts: &Facts) -> Vec<Outcome> {
    ends(facts, |ends| {
        if ends.hosts.len() < 2 {
            return Vec::new();
        }
        let mut owners: BTreeMap<&str, Vec<(usize, &str)>> = BTreeMap::new();
        for (at, host) in ends.hosts.iter().enumerate() {
            for own in all_names(host) {
                owners.entry(own).or_default().push((at, &host.name));
            }
        }
        let judge = |at: usize, host: &HostEnd, own: &str| {
            let others = owners.get(own).into_iter().flatten().filter(|(other, _)| *other != at);
            // As many as a sentence has.
            let same: Vec<String> = others.take(32).map(|(_, other)| (*other).to_owned()).collect();
            let what = match same.is_empty() {
                true => format!("{} alone is {own}", host.name),
                false => format!("{} and {} are both {own}", host.name, listed(same.clone())),
            };
            let outcome = Outcome::judged(same.is_empty(), Verdict::Bad, &host.name, what);
            match host.initiator_name.get().is_some_and(|kernel| kernel == own) {
                true => outcome.with("host", &host.name).with("old", own),
                // lunway makes its name of the host's.
                false => outcome.with("host", &host.name).fixed_by(OTHER_NAME, ""),
            }
        };
        let of_host = |(at, host): (usize, &HostEnd)| -> Vec<Outcome> {
            let unknown = name(host).err().unwrap_or_default();
            unknown.into_iter().chain(all_names(host).into_iter().map(|own| judge(at, host, own))).collect()
        };
        ends.hosts.iter().enumerate().flat_map(of_host).collect()
    })
}

fn writers(facts: &Facts) -> Vec<Outcome> {
    ends(facts, |ends| {
        let mut found = Vec::new();
        let mut units: BTreeMap<(&str, u64), Vec<(&HostEnd, &HostUnit)>> = BTreeMap::new();
        for host in &ends.hosts {
            match host.units.known() {
                Err(_) if ends.hosts.len() < 2 => {}
                Err(why) => {
                    found.push(Outcome::unknown(&host.name, format!("disks of {}: {why}", host.name)));
                }
                Ok(own) => {
                    for unit in own {
                        units.entry((unit.target.as_str(), unit.lun)).or_default().push((host, unit));
                    }
                }
            }
        }
        for ((target, lun), users) in units {
            let hosts: BTreeSet<&str> = users.iter().map(|(host, _)| host.name.as_str()).collect();
            if hosts.len() < 2 {
                continue;
            }
            let here = format!("{target} LUN {lun}");
            let mounted = users.iter().filter_map(|(host, unit)| {
                Some((host.name.as_str(), unit.written_at.get().filter(|point| !point.is_empty())?))
            });
            let mounted: BTreeMap<&str, &String> = mounted.collect();
            let unseen = users.iter().find_map(|(host, unit)| Some((host, unit.written_at.known().err()?)));
            let places = listed(mounted.iter().map(|(host, point)| format!("{host} at {point}")));
            found.push(match (mounted.len(), unseen) {
                (2.., _) => {
                    let (host, point) =
                        mounted.last_key_value().map_or(("", ""), |(host, point)| (*host, point.as_str()));
                    let what = format!("{here} is mounted for writing by {places}");
                    Outcome::bad(&here, what).with("host", host).with("point", point)
                }
                (_, Some((host, why))) => {
                    Outcome::unknown(&here, format!("whether {} has {here} mounted: {why}", host.name))
                }
                (1, None) => Outcome::ok(&here, format!("{here} is mounted for writing by {places} alone")),
                (_, None) => Outcome::ok(&here, format!("{here} is mounted for writing by no host")),
            });
        }
        found
    })
}

fn digests(host: &HostEnd, target: &TargetEnd) -> Vec<Outcome> {
    // Another rule tells why they are not known.
    let (Ok(own), Ok(name)) = (sessions(host), name(host)) else { return Vec::new() };
    let judge = |session: &HostSession| {
        let served = target.sessions.iter().find(|served| is_one(name, session, served))?;
        let wanted = match session.digests.known() {
            Ok(wanted) => wanted,
            Err(why) => {
                let what = format!("digests of {} of {}: {why}", session.name, host.name);
                return Some(Outcome::unknown(&host.name, what));
            }
        };
        let what = match *wanted == served.digests {
            true => format!("{} of {} has the digests of its record", session.name, host.name),
            false => format!(
                "{} of {} has {}, and its record asks for {}",
                session.name,
                host.name,
                digests_named(served.digests),
                digests_named(*wanted)
            ),
        };
        let outcome = Outcome::judged(*wanted == served.digests, Verdict::Warn, &host.name, what);
        let portal = session.portal.map_or("PORTAL".to_owned(), |portal| portal.to_string());
        Some(outcome.with("target", &session.target).with("portal", portal))
    };
    own.iter().filter(|session| session.up).filter_map(judge).collect()
}

fn digests_named(digests: [bool; 2]) -> &'static str {
    match digests {
        [false, false] => "no digests",
        [true, false] => "a digest over headers",
        [false, true] => "a digest over data",
        [true, true] => "digests over headers and data",
    }
}

fn timers(facts: &Facts) -> Vec<Outcome> {
    ends(facts, |ends| {
        let mut targets: BTreeMap<&str, Vec<(&HostEnd, &HostSession)>> = BTreeMap::new();
        for host in &ends.hosts {
            for session in host.sessions.get().into_iter().flatten() {
                targets.entry(&session.target).or_default().push((host, session));
            }
        }
        let mut found = Vec::new();
        for (target, sessions) in targets {
            let hosts: BTreeSet<&str> = sessions.iter().map(|(host, _)| host.name.as_str()).collect();
            if hosts.len() < 2 {
                continue;
            }
            let times = |session: &HostSession| -> Result<(i64, i64), String> {
                let known =
                    |seconds: &crate::seen::Seen<i64>| seconds.known().copied().map_err(str::to_owned);
                Ok((known(&session.timeout)?, known(&session.ping_interval)?))
            };
            // The shortest is what failover was meant to take.
            let least = sessions.iter().filter_map(|(_, session)| times(session).ok()).min();
            for (host, session) in sessions {
                found.push(match (times(session), least) {
                    (Err(why), _) => {
                        let what = format!("time-outs of {} of {}: {why}", session.name, host.name);
                        Outcome::unknown(&host.name, what)
                    }
                    (Ok(own), least) => {
                        let (timeout, interval) = least.unwrap_or(own);
                        let what = format!(
                            "{} of {} fails its I/O after {} s and pings after {} s, the quickest host of {target} {timeout} s and \
                             {interval} s",
                            session.name, host.name, own.0, own.1
                        );
                        Outcome::judged(own == (timeout, interval), Verdict::Warn, &host.name, what)
                            .with("host", &host.name)
                            .with("target", target)
                            .with("timeout", timeout)
                            .with("interval", interval)
                            .with("old_timeout", own.0)
                            .with("old_interval", own.1)
                    }
                });
            }
        }
        found
    })
}

fn lanes(host: &HostEnd, target: &TargetEnd) -> Vec<Outcome> {
    let Ok(own) = sessions(host) else { return Vec::new() };
    let networks = match host.networks.known() {
        Ok(networks) => networks,
        Err(why) => return vec![Outcome::unknown(&host.name, format!("networks of {}: {why}", host.name))],
    };
    let of_lunway = of_lunway(host);
    let used: BTreeSet<&str> = target
        .names
        .iter()
        .map(String::as_str)
        .filter(|name| {
            own.iter().any(|session| session.target == *name)
                || of_lunway.iter().any(|session| session.target.eq_ignore_ascii_case(name))
        })
        .collect();
    let near =
        target.portals.iter().filter(|portal| networks.iter().any(|network| network.contains(&portal.ip())));
    let mut found = Vec::new();
    for portal in near {
        for name in &used {
            let by_kernel = |session: &&HostSession| session.target == *name;
            let there = own.iter().filter(by_kernel).any(|session| session.portal == Some(portal.ip()))
                || of_lunway.iter().any(|session| {
                    session.target.eq_ignore_ascii_case(name) && session.portal == Some(*portal)
                });
            let has = if there { "has a session" } else { "has no session" };
            let what = format!("{} {has} to {name} by {portal}, which is in its networks", host.name);
            let outcome = Outcome::judged(there, Verdict::Warn, &host.name, what);
            found.push(match own.iter().any(|session| by_kernel(&session)) {
                true => outcome.with("target", name).with("portal", portal),
                false => outcome.with("portal", portal).fixed_by(OTHER_PORTAL, ""),
            });
        }
    }
    found
}

fn sizes(host: &HostEnd, target: &TargetEnd) -> Vec<Outcome> {
    let units = match host.units.known() {
        Ok(units) => units,
        Err(why) => return vec![Outcome::unknown(&host.name, format!("disks of {}: {why}", host.name))],
    };
    let judge = |unit: &HostUnit| {
        let (_, _, size) =
            target.luns.iter().find(|(name, lun, _)| *name == unit.target && *lun == unit.lun)?;
        let what = format!(
            "{} of {} has {} bytes, {} LUN {} is served with {size}",
            unit.disk, host.name, unit.size, unit.target, unit.lun
        );
        Some(Outcome::judged(unit.size == *size, Verdict::Bad, &host.name, what).with("disk", &unit.disk))
    };
    units.iter().filter_map(judge).collect()
}
