//! Rules about open-iscsi: its settings, its records, its live sessions.

use std::collections::{BTreeMap, BTreeSet};

use lunway_block::Severity;

use super::{Group, Rule};
use crate::facts::{Facts, FstabEntry, KernelSession, OpenIscsi, Record};
use crate::verdict::{Outcome, Verdict};

const SESSIONS: &str = "sessions of the kernel's initiator";
const SETTINGS: &str = "machines with open-iscsi";

/// Seconds after which I/O of a lost path should fail to multipath: NetApp 5, HPE 10, Proxmox 15, Red Hat 15 to 20.
const SEVERAL_PATHS_S: std::ops::RangeInclusive<i64> = 5..=20;
/// Seconds for which I/O of a single path should wait: open-iscsi's default.
const SINGLE_PATH_S: i64 = 120;
/// Seconds of silence after which a path should be asked, and for its answer: open-iscsi's defaults, 10 s to notice.
const PING_MAX_S: i64 = 5;
/// The most commands of a session (cmds_max) and of a disk (queue_depth) below which they cap IOPS: open-iscsi's own
/// defaults. HPE sets 512 and 256, LF Edge 128 for solid state.
const COMMANDS_MIN: u64 = 128;
const DEPTH_MIN: u64 = 32;
/// Bytes of a PDU below which its header and digest cost: the protocol's default is 8 KiB, open-iscsi's 256 KiB.
const SEGMENT_MIN: u64 = 64 << 10;

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "session-state",
        group: Group::Initiator,
        title: "Every session is logged in",
        severity: Severity::Warning,
        applies: SESSIONS,
        why: "a session that is not logged in is a path that is missing at the next fault (no published figure)",
        source: "rule of thumb 22",
        thumbs: &[22],
        fix: "iscsiadm -m node -T {target} --login    # after the cable and the portal were checked",
        undo: "",
        check: |facts| {
            sessions(facts, |_, session| {
                let what = format!("{} to {} is {}", session.name, session.target, session.state);
                let up = session.state == "LOGGED_IN";
                Some(Outcome::judged(up, Verdict::Bad, &session.name, what).with("target", &session.target))
            })
        },
    },
    Rule {
        id: "session-timeout",
        group: Group::Initiator,
        title: "A lost session fails its I/O in 5 to 20 s under multipath, and after 120 s or more if it is the \
                only one",
        severity: Severity::Warning,
        applies: SESSIONS,
        why: "the default of 120 s stalls every I/O for two minutes before multipath may use another path; a short time on a \
              single path turns a restart of the storage into I/O errors",
        source: "NetApp 5 s, HPE 10 s, Proxmox 15 s, Red Hat 15 to 20 s; open-iscsi's README",
        thumbs: &[22],
        fix: "iscsiadm -m node -T {target} -o update -n node.session.timeo.replacement_timeout -v {new}; \
              echo {new} > /sys/class/iscsi_session/{session}/recovery_tmo",
        undo: "iscsiadm -m node -T {target} -o update -n node.session.timeo.replacement_timeout -v {old}; \
               echo {old} > /sys/class/iscsi_session/{session}/recovery_tmo",
        check: timeout,
    },
    Rule {
        id: "session-ping",
        group: Group::Initiator,
        title: "A silent target is pinged after 5 s, and has 5 s to answer",
        severity: Severity::Warning,
        applies: SESSIONS,
        why: "without pings, a path that drops all packets is detected only by TCP, after minutes; 5 s and 5 s \
              detect it within 10 s",
        source: "open-iscsi's defaults, noop_out_interval and noop_out_timeout; root on iSCSI needs more",
        thumbs: &[],
        fix: "iscsiadm -m node -T {target} -o update -n node.conn[0].timeo.noop_out_interval -v 5; \
              iscsiadm -m node -T {target} -o update -n node.conn[0].timeo.noop_out_timeout -v 5    # and log in again",
        undo: "iscsiadm -m node -T {target} -o update -n node.conn[0].timeo.noop_out_interval -v {interval}; \
               iscsiadm -m node -T {target} -o update -n node.conn[0].timeo.noop_out_timeout -v {timeout}",
        check: |facts| {
            sessions(facts, |_, session| {
                let connection = &session.connection;
                let (interval, timeout) =
                    match (connection.ping_interval.known(), connection.ping_timeout.known()) {
                        (Ok(interval), Ok(timeout)) => (*interval, *timeout),
                        (Err(why), _) | (_, Err(why)) => {
                            return Some(Outcome::unknown(
                                &session.name,
                                format!("pings of {}: {why}", session.name),
                            ));
                        }
                    };
                let sound = (1..=PING_MAX_S).contains(&interval) && (1..=PING_MAX_S).contains(&timeout);
                let what = match interval {
                    0 => format!("{} never pings its target", session.name),
                    _ => format!("{} pings after {interval} s and waits {timeout} s", session.name),
                };
                let outcome = Outcome::judged(sound, Verdict::Warn, &session.name, what);
                Some(
                    outcome
                        .with("target", &session.target)
                        .with("interval", interval)
                        .with("timeout", timeout),
                )
            })
        },
    },
    Rule {
        id: "session-record",
        group: Group::Initiator,
        title: "A live session has the time-out of its record, or that of multipath",
        severity: Severity::Note,
        applies: "sessions whose node record can be read",
        why: "an edited record takes effect at the next login: until then the old value applies, and after a fault the new one: \
              120 s by default, where multipath needs 5 to 20 s",
        source: "open-iscsi's README: settings of records are read at login; multipath.conf(5): fast_io_fail_tmo is the \
                 recovery_tmo of an iSCSI session",
        thumbs: &[15],
        fix: "echo {record} > /sys/class/iscsi_session/{session}/recovery_tmo",
        undo: "echo {live} > /sys/class/iscsi_session/{session}/recovery_tmo",
        check: record_differs,
    },
    Rule {
        id: "session-segment",
        group: Group::Initiator,
        title: "PDUs may carry 64 KiB or more",
        severity: Severity::Note,
        applies: SESSIONS,
        why: "segments of 8 KiB need eight headers, and with digests eight checksums, for each 64 KiB instead of one",
        source: "RFC 7143 §13.12, whose default is 8 KiB; open-iscsi's default is 256 KiB",
        thumbs: &[],
        fix: "iscsiadm -m node -T {target} -o update -n node.conn[0].iscsi.MaxRecvDataSegmentLength -v 262144    # and log in \
              again",
        undo: "iscsiadm -m node -T {target} -o update -n node.conn[0].iscsi.MaxRecvDataSegmentLength -v {old}",
        check: |facts| {
            sessions(facts, |_, session| {
                Some(match session.connection.segment_max.known() {
                    Err(why) => {
                        Outcome::unknown(&session.name, format!("segments of {}: {why}", session.name))
                    }
                    Ok(bytes) => {
                        let what = format!("{} takes PDUs of {bytes} bytes", session.name);
                        let outcome =
                            Outcome::judged(*bytes >= SEGMENT_MIN, Verdict::Warn, &session.name, what);
                        outcome.with("target", &session.target).with("old", bytes)
                    }
                })
            })
        },
    },
    Rule {
        id: "session-port",
        group: Group::Initiator,
        title: "Sessions to one target leave by different addresses",
        severity: Severity::Warning,
        applies: "targets with two or more sessions",
        why: "lanes through one card share its rate and its cable: a second lane gains nothing and is lost with the first: one \
              card carried 99 MB/s of reads and 108 MB/s of writes, two pairs 131 and 184 MB/s",
        source: "rule of thumb 5; published tests of multipath topologies, test D: one port is the limit",
        thumbs: &[5],
        fix: "iscsiadm -m iface -I IFACE -o new; iscsiadm -m iface -I IFACE -o update -n iface.net_ifacename -v PORT; \
              iscsiadm -m discovery -t st -p {portal} -I IFACE",
        undo: "iscsiadm -m iface -I IFACE -o delete",
        check: one_address,
    },
    Rule {
        id: "initiator-depth",
        group: Group::Initiator,
        title: "Sessions allow 128 commands or more, and disks 32",
        severity: Severity::Note,
        applies: SETTINGS,
        why: "IOPS end at depth ÷ latency: 32 commands at 1 ms are 32,000 IOPS, however fast the storage is",
        source: "Little's law; open-iscsi's defaults 128 and 32; HPE sets 512 and 256",
        thumbs: &[],
        fix: "sed -i -e 's/^node.session.cmds_max *=.*/node.session.cmds_max = 128/' \
              -e 's/^node.session.queue_depth *=.*/node.session.queue_depth = 32/' /etc/iscsi/iscsid.conf; \
              iscsiadm -m node -o update -n node.session.cmds_max -v 128; \
              iscsiadm -m node -o update -n node.session.queue_depth -v 32    # and log in again",
        undo: "sed -i -e 's/^node.session.cmds_max *=.*/node.session.cmds_max = {cmds}/' \
               -e 's/^node.session.queue_depth *=.*/node.session.queue_depth = {depth}/' /etc/iscsi/iscsid.conf; \
               iscsiadm -m node -o update -n node.session.cmds_max -v {cmds}; \
               iscsiadm -m node -o update -n node.session.queue_depth -v {depth}",
        check: depth,
    },
    Rule {
        id: "initiator-startup",
        group: Group::Initiator,
        title: "Node records of disks in /etc/fstab log in automatically",
        severity: Severity::Warning,
        applies: "machines with iSCSI disks in /etc/fstab",
        why: "with startup \"manual\" the disk is missing after a restart, and the boot waits 90 s for it",
        source: "open-iscsi's README; systemd's DefaultTimeoutStartSec; manual is right under CSI and clusters",
        thumbs: &[15],
        fix: "iscsiadm -m node -T {target} -o update -n node.startup -v automatic",
        undo: "iscsiadm -m node -T {target} -o update -n node.startup -v {old}",
        check: startup,
    },
    Rule {
        id: "initiator-sessions",
        group: Group::Initiator,
        title: "A login makes one session for each lane",
        severity: Severity::Note,
        applies: SETTINGS,
        why: "several sessions over one path are lanes that share everything: a mesh of eight paths over four cards read 90 % slower \
              than one",
        source: "published tests of multipath topologies, test B; HPE's guide: nr_sessions 1",
        thumbs: &[6],
        fix: "sed -i 's/^node.session.nr_sessions *=.*/node.session.nr_sessions = 1/' /etc/iscsi/iscsid.conf; \
              iscsiadm -m node -o update -n node.session.nr_sessions -v 1    # and log in again",
        undo: "sed -i 's/^node.session.nr_sessions *=.*/node.session.nr_sessions = {old}/' /etc/iscsi/iscsid.conf; \
               iscsiadm -m node -o update -n node.session.nr_sessions -v {old}",
        check: |facts| {
            setting(facts, "node.session.nr_sessions", |value| {
                let what = format!("a login makes {value} sessions over one path");
                Outcome::judged(value == "1", Verdict::Warn, "node.session.nr_sessions", what)
                    .with("old", value)
            })
        },
    },
    Rule {
        id: "initiator-name",
        group: Group::Initiator,
        title: "The machine has one initiator name in the standard's format",
        severity: Severity::Warning,
        applies: SETTINGS,
        why: "access rules go by it, and a target refuses a name that is not an iqn., eui. or naa. name (no published figure)",
        source: "RFC 7143 §4.2.7",
        thumbs: &[],
        fix: "echo InitiatorName=$(iscsi-iname) > /etc/iscsi/initiatorname.iscsi    # and restart iscsid, log in again",
        undo: "echo InitiatorName={old} > /etc/iscsi/initiatorname.iscsi",
        check: |facts| {
            let Some(initiator) = &facts.open_iscsi else { return Vec::new() };
            let place = "/etc/iscsi/initiatorname.iscsi";
            vec![match initiator.initiator_name.known() {
                Err(why) => Outcome::unknown(place, format!("the initiator name: {why}")),
                Ok(name) => {
                    let what = format!("the initiator name is {name:?}");
                    Outcome::judged(is_iscsi_name(name), Verdict::Bad, place, what).with("old", name)
                }
            }]
        },
    },
];

/// Judges each session.
fn sessions(facts: &Facts, judge: impl Fn(&OpenIscsi, &KernelSession) -> Option<Outcome>) -> Vec<Outcome> {
    let Some(initiator) = &facts.open_iscsi else { return Vec::new() };
    match initiator.sessions.known() {
        Err(why) => vec![Outcome::unknown("sessions", format!("iSCSI sessions: {why}"))],
        Ok(sessions) => {
            let judged = |session: &KernelSession| {
                judge(initiator, session).map(|found| found.with("session", &session.name))
            };
            sessions.iter().filter_map(judged).collect()
        }
    }
}

/// Judges a value of `iscsid.conf`; no outcome where it is not set, and open-iscsi's default holds.
fn setting(facts: &Facts, key: &'static str, judge: impl Fn(&str) -> Outcome) -> Vec<Outcome> {
    let Some(initiator) = &facts.open_iscsi else { return Vec::new() };
    match initiator.settings.known() {
        Err(why) => vec![Outcome::unknown(key, format!("{key}: {why}"))],
        Ok(settings) => settings.get(key).map(|value| judge(value)).into_iter().collect(),
    }
}

/// Returns `true` if another session leads to the same target, or its disks are paths of a map.
fn has_others(facts: &Facts, initiator: &OpenIscsi, session: &KernelSession) -> bool {
    let sessions = initiator.sessions.get().map_or(&[][..], Vec::as_slice);
    let several = sessions.iter().filter(|other| other.target == session.target).count() > 1;
    let maps = facts.multipath.iter().filter_map(|multipath| multipath.maps.get()).flatten();
    let mapped = maps.flat_map(|map| &map.paths).any(|path| session.disks.contains(path));
    several || mapped
}

fn timeout(facts: &Facts) -> Vec<Outcome> {
    sessions(facts, |initiator, session| {
        let seconds = match session.recovery_tmo.known() {
            Ok(seconds) => *seconds,
            Err(why) => {
                return Some(Outcome::unknown(
                    &session.name,
                    format!("recovery_tmo of {}: {why}", session.name),
                ));
            }
        };
        let several = has_others(facts, initiator, session);
        let (sound, new, paths) = match several {
            true => (SEVERAL_PATHS_S.contains(&seconds), 15, "one of several paths"),
            // The kernel waits for ever at 0 and below.
            false => (seconds >= SINGLE_PATH_S || seconds <= 0, 120, "the only path"),
        };
        // What multipathd has set is judged with multipath's settings, and is mended there.
        let by_multipath = fast_fail(facts, session) == Some(seconds);
        let by = if by_multipath { ", as multipath has set it" } else { "" };
        let what = format!("{} is {paths} and fails its I/O after {seconds} s{by}", session.name);
        let outcome = Outcome::judged(sound || by_multipath, Verdict::Warn, &session.name, what);
        Some(outcome.with("target", &session.target).with("new", new).with("old", seconds))
    })
}

/// The time-out that multipathd gives to a session whose disks are paths of a map.
fn fast_fail(facts: &Facts, session: &KernelSession) -> Option<i64> {
    let multipath = facts.multipath.as_ref()?;
    let mut paths = multipath.maps.get()?.iter().flat_map(|map| &map.paths);
    paths.any(|path| session.disks.contains(path)).then_some(())?;
    multipath.ours.get()?.get("fast_io_fail_tmo")?.parse().ok()
}

fn record_differs(facts: &Facts) -> Vec<Outcome> {
    const KEY: &str = "node.session.timeo.replacement_timeout";
    sessions(facts, |initiator, session| {
        let records = match initiator.records.known() {
            Ok(records) => records,
            Err(why) => {
                return Some(Outcome::unknown(
                    &session.name,
                    format!("the record of {}: {why}", session.name),
                ));
            }
        };
        let of_portal = |portal: &str| {
            session
                .connection
                .portal
                .is_none_or(|address| portal.split(',').next() == Some(&address.to_string()))
        };
        let record =
            records.iter().find(|record| record.target == session.target && of_portal(&record.portal))?;
        let wanted: i64 = record.settings.get(KEY)?.parse().ok()?;
        let live = *session.recovery_tmo.get()?;
        let what = format!("{} has a time-out of {live} s, its record says {wanted} s", session.name);
        // multipathd lays its fast_io_fail_tmo over what the record says, for each path that it has.
        let by_multipath = fast_fail(facts, session) == Some(live);
        let outcome = Outcome::judged(live == wanted || by_multipath, Verdict::Warn, &session.name, what);
        Some(outcome.with("record", wanted).with("live", live))
    })
}

fn one_address(facts: &Facts) -> Vec<Outcome> {
    let Some(initiator) = &facts.open_iscsi else { return Vec::new() };
    let sessions = match initiator.sessions.known() {
        Ok(sessions) => sessions,
        Err(why) => return vec![Outcome::unknown("sessions", format!("iSCSI sessions: {why}"))],
    };
    let mut targets: BTreeMap<&str, Vec<&KernelSession>> = BTreeMap::new();
    for session in sessions {
        targets.entry(&session.target).or_default().push(session);
    }
    let judge = |(target, sessions): (&str, Vec<&KernelSession>)| {
        if sessions.len() < 2 {
            return None;
        }
        let locals: Vec<_> = sessions.iter().filter_map(|session| session.connection.local).collect();
        if locals.len() < sessions.len() {
            let what = format!("local addresses of the sessions to {target}: the kernel does not tell");
            return Some(Outcome::unknown(target, what));
        }
        let different: BTreeSet<_> = locals.iter().collect();
        let what = format!("{} sessions to {target} leave by {} addresses", sessions.len(), different.len());
        let portal = sessions[0].connection.portal.map_or("PORTAL".to_owned(), |portal| portal.to_string());
        let sound = different.len() == sessions.len();
        Some(Outcome::judged(sound, Verdict::Warn, target, what).with("portal", portal))
    };
    targets.into_iter().filter_map(judge).collect()
}

fn depth(facts: &Facts) -> Vec<Outcome> {
    let Some(initiator) = &facts.open_iscsi else { return Vec::new() };
    let settings = match initiator.settings.known() {
        Ok(settings) => settings,
        Err(why) => return vec![Outcome::unknown("/etc/iscsi/iscsid.conf", format!("queue depths: {why}"))],
    };
    let number =
        |key: &str, default: u64| settings.get(key).map_or(Some(default), |value| value.parse().ok());
    let place = "/etc/iscsi/iscsid.conf";
    let (Some(commands), Some(depth)) =
        (number("node.session.cmds_max", COMMANDS_MIN), number("node.session.queue_depth", DEPTH_MIN))
    else {
        return vec![Outcome::unknown(place, "cmds_max or queue_depth is no number")];
    };
    let what = format!("sessions allow {commands} commands, disks {depth}");
    let sound = commands >= COMMANDS_MIN && depth >= DEPTH_MIN;
    vec![Outcome::judged(sound, Verdict::Warn, place, what).with("cmds", commands).with("depth", depth)]
}

/// File systems of servers, which have no disk of their own here.
const OF_SERVERS: [&str; 9] =
    ["nfs", "nfs4", "cifs", "smb3", "ceph", "9p", "glusterfs", "fuse.sshfs", "fuse.glusterfs"];

/// Judges the records of the targets whose disks `/etc/fstab` mounts at start. An entry whose disk is not there may be
/// on any of them.
fn startup(facts: &Facts) -> Vec<Outcome> {
    let Some(initiator) = &facts.open_iscsi else { return Vec::new() };
    let fstab = facts.storage.iter().filter_map(|storage| storage.fstab.get()).flatten();
    let at_start = fstab.filter(|entry| !entry.options.iter().any(|option| option == "noauto"));
    let (known, absent): (Vec<&FstabEntry>, Vec<&FstabEntry>) = at_start
        .filter(|entry| {
            let netdev = entry.options.iter().any(|option| option == "_netdev");
            entry.iscsi || (netdev && !OF_SERVERS.contains(&entry.kind.as_str()))
        })
        .partition(|entry| entry.iscsi);
    if known.is_empty() && absent.is_empty() {
        return Vec::new();
    }
    let records = match initiator.records.known() {
        Err(why) => return vec![Outcome::unknown("/etc/iscsi/nodes", format!("node records: {why}"))],
        Ok(records) => records,
    };
    let needed: BTreeSet<&str> = known.iter().flat_map(|entry| &entry.targets).map(String::as_str).collect();
    // Facts without the targets of a disk leave all records.
    let all = !known.is_empty() && needed.is_empty();
    let automatic = |record: &Record| {
        matches!(record.settings.get("node.startup").map(String::as_str), Some("automatic" | "onboot"))
    };
    let judge = |record: &Record| {
        let startup = record.settings.get("node.startup").map_or("manual", String::as_str);
        let what = format!("{} at {} starts {startup}", record.target, record.portal);
        Outcome::judged(automatic(record), Verdict::Warn, &record.target, what)
            .with("target", &record.target)
            .with("old", startup)
    };
    let of_disks = records.iter().filter(|record| all || needed.contains(record.target.as_str()));
    let mut found: Vec<Outcome> = of_disks.map(judge).collect();
    let manual = records
        .iter()
        .filter(|record| !needed.contains(record.target.as_str()) && !automatic(record))
        .count();
    if let (Some(entry), 1..) = (absent.first(), manual) {
        let what = format!(
            "the disk of {} is not there, and {manual} node records start by hand: which of them leads to it",
            entry.point
        );
        found.push(Outcome::unknown(&entry.point, what));
    }
    found
}

/// Returns `true` if a name has the form of RFC 7143 §4.2.7: iqn. with a month, eui. or naa. with hexadecimal digits.
fn is_iscsi_name(name: &str) -> bool {
    let hexadecimal = |text: &str| text.chars().all(|c| c.is_ascii_hexdigit());
    if let Some(rest) = name.strip_prefix("eui.") {
        return rest.len() == 16 && hexadecimal(rest);
    }
    if let Some(rest) = name.strip_prefix("naa.") {
        return matches!(rest.len(), 16 | 32) && hexadecimal(rest);
    }
    let month = name.strip_prefix("iqn.").and_then(|rest| rest.split_once('.'));
    let is_month = |date: &str| match date.split_once('-') {
        Some((year, month)) => {
            let digits =
                |text: &str, len: usize| text.len() == len && text.chars().all(|c| c.is_ascii_digit());
            digits(year, 4) && digits(month, 2) && (1..=12).contains(&month.parse().unwrap_or(0))
        }
        None => false,
    };
    let allowed = |c: char| c.is_alphanumeric() || matches!(c, '.' | '-' | ':');
    name.len() <= 223
        && month.is_some_and(|(date, rest)| is_month(date) && !rest.is_empty() && rest.chars().all(allowed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seen::Seen;

    #[test]
    fn names_of_initiators_have_the_standards_form() {
        for (name, fits) in [
            ("iqn.2026-11.com.example:host-1", true),
            ("iqn.1994-05.com.redhat:abcdef", true),
            ("eui.02004567A425678D", true),
            ("naa.52004567BA64678D", true),
            ("iqn.2026-13.com.example:a", false),
            ("iqn.2026-11", false),
            ("iqn.2026-11.com.example:a b", false),
            ("host-1", false),
            ("", false),
        ] {
            assert_eq!(is_iscsi_name(name), fits, "{name}");
        }
    }

    #[test]
    fn a_missing_fact_is_unknown_with_its_reason() {
        let facts = Facts {
            open_iscsi: Some(OpenIscsi {
                sessions: Seen::unseen("reading it takes root"),
                ..OpenIscsi::default()
            }),
            ..Facts::default()
        };
        let found = timeout(&facts);
        assert_eq!(found.len(), 1);
        assert!(found[0].verdict == Verdict::Unknown && found[0].what.contains("takes root"), "{found:?}");
    }
}
