//! Rules about the sessions of a running target: what was negotiated, and what their initiators gave up.

use std::collections::BTreeMap;

use lunway_block::Severity;

use super::target::{SERVED, target};
use super::{Group, Rule, listed};
use crate::facts::{Facts, ServedSession, SessionKeys, TaskManagement};
use crate::seen::Seen;
use crate::verdict::{Outcome, Verdict};

const SESSIONS: &str = "running targets with sessions";

/// Shortest MaxRecvDataSegmentLength, FirstBurstLength and MaxBurstLength that cost nothing, bytes. 64 KiB is what
/// Windows asks for; the default of the standard is 8 KiB for a segment (RFC 7143 §13.12).
const SEGMENT_MIN: u32 = 64 << 10;
/// Refused logins an hour from which an initiator tries again and again: open-iscsi does so every few seconds. Fewer
/// are mistakes of people.
const REFUSED_MAX: f64 = 12.0;
/// Seconds of uptime below which a rate per hour is that of an hour.
const UPTIME_MIN_S: u64 = 3600;

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "session-keys",
        group: Group::Target,
        title: "What was negotiated costs no session speed",
        severity: Severity::Note,
        applies: SESSIONS,
        why: "a data segment of 8 KiB, the standard's default, makes 8 PDUs of a read of 64 KiB; without ImmediateData, or with InitialR2T \
              for what does not fit into the command, each write waits for 1 more round trip",
        source: "RFC 7143 §13.10 to §13.14; open-iscsi asks for 256 KiB, Windows for 64 KiB",
        thumbs: &[15],
        fix: "on {initiator}: iscsiadm -m node -T {target} -o update -n {record} -v {value}    # and log in again",
        undo: "on {initiator}: iscsiadm -m node -T {target} -o update -n {record} -v {old}    # and log in again",
        check: costly,
    },
    Rule {
        id: "session-alike",
        group: Group::Target,
        title: "All sessions of a host have negotiated the same",
        severity: Severity::Note,
        applies: "hosts with two or more sessions",
        why: "lanes that differ in the length of segments and bursts differ in speed, and policies that share evenly are as slow as the \
              slowest: round robin over unequal lanes was slower than the better lane alone, 148 MB/s for 125 and 12.5",
        source: "RFC 7143 §13: keys are those of the record by which each session logged in; published tests of unequal ports",
        thumbs: &[8, 15],
        fix: "on {initiator}: iscsiadm -m node -T {target} -o update -n {record} -v {value}    # for all portals, and log in again",
        undo: "",
        check: alike,
    },
    Rule {
        id: "session-aborts",
        group: Group::Target,
        title: "No initiator aborts commands or resets LUNs",
        severity: Severity::Warning,
        applies: SESSIONS,
        why: "a host gives up a command that was not answered within its SCSI timer, 30 s by default: a device hangs, packets are lost, or \
              the timer is shorter than a failover; after a reset it takes the disk offline",
        source: "RFC 7143 §11.5.1; Linux's timeout of 30 s and its error handling: abort, then reset of the LUN, then of the session",
        thumbs: &[],
        fix: "lunway top; on {initiator}: cat /sys/block/DISK/device/timeout; lunway doctor DEVICE --probe    # for loss",
        undo: "",
        check: given_up,
    },
    Rule {
        id: "login-refused",
        group: Group::Target,
        title: "No initiator is refused again and again",
        severity: Severity::Warning,
        applies: SERVED,
        why: "a host that is refused has no disk, or a lane less, and asks again every few seconds: under 12 refused logins an hour are people's \
              mistakes, an initiator that tries again makes hundreds",
        source: "open-iscsi's node.session.initial_login_retry_max and its retries; RFC 7143 §11.13.5",
        thumbs: &[22],
        fix: "journalctl -u lunway | grep refused    # names, secrets and access rules: lunway acl add TARGET NAME --initiator IQN",
        undo: "",
        check: refused,
    },
];

/// A key of a session that can cost speed.
struct Key {
    /// Its name in the standard.
    name: &'static str,
    /// Its name in a record of open-iscsi.
    record: &'static str,
    value: fn(&SessionKeys) -> String,
    sound: fn(&SessionKeys) -> bool,
    /// Value that it should have, for a record.
    wanted: &'static str,
}

fn yes(value: bool) -> String {
    if value { "Yes" } else { "No" }.to_owned()
}

const KEYS: [Key; 5] = [
    Key {
        name: "MaxRecvDataSegmentLength",
        record: "node.conn[0].iscsi.MaxRecvDataSegmentLength",
        value: |keys| keys.max_recv_initiator.to_string(),
        sound: |keys| keys.max_recv_initiator >= SEGMENT_MIN,
        wanted: "262144",
    },
    Key {
        name: "MaxBurstLength",
        record: "node.session.iscsi.MaxBurstLength",
        value: |keys| keys.max_burst_length.to_string(),
        sound: |keys| keys.max_burst_length >= SEGMENT_MIN,
        wanted: "1048576",
    },
    Key {
        name: "FirstBurstLength",
        record: "node.session.iscsi.FirstBurstLength",
        value: |keys| keys.first_burst_length.to_string(),
        // Without unsolicited data there is no first burst.
        sound: |keys| keys.first_burst_length >= SEGMENT_MIN || (!keys.immediate_data && keys.initial_r2t),
        wanted: "262144",
    },
    Key {
        name: "ImmediateData",
        record: "node.session.iscsi.ImmediateData",
        value: |keys| yes(keys.immediate_data),
        sound: |keys| keys.immediate_data,
        wanted: "Yes",
    },
    Key {
        name: "InitialR2T",
        record: "node.session.iscsi.InitialR2T",
        value: |keys| yes(keys.initial_r2t),
        sound: |keys| !keys.initial_r2t,
        wanted: "No",
    },
];

fn title(session: &ServedSession) -> String {
    format!("session {} of {} by {}", session.tsih, session.initiator, session.portal)
}

/// Judges each session by a fact of it, or says why that is not known.
fn sessions<T>(
    facts: &Facts,
    what: &str,
    fact: fn(&ServedSession) -> &Seen<T>,
    judge: impl Fn(&ServedSession, &T) -> Outcome,
) -> Vec<Outcome> {
    target(facts, |target| {
        let of_session = |session: &ServedSession| match fact(session).known() {
            Ok(known) => judge(session, known),
            Err(why) => Outcome::unknown(&session.initiator, format!("{what} of {}: {why}", title(session))),
        };
        target.sessions.iter().map(of_session).collect()
    })
}

fn costly(facts: &Facts) -> Vec<Outcome> {
    sessions(
        facts,
        "keys",
        |session| &session.keys,
        |session, keys| {
            let costly: Vec<&Key> = KEYS.iter().filter(|key| !(key.sound)(keys)).collect();
            let Some(first) = costly.first() else {
                return Outcome::ok(
                    &session.initiator,
                    format!("{} has long segments and bursts", title(session)),
                );
            };
            let named = listed(costly.iter().map(|key| format!("{}={}", key.name, (key.value)(keys))));
            let outcome = Outcome::warn(&session.initiator, format!("{} has {named}", title(session)));
            let outcome = outcome.with("initiator", &session.initiator).with("target", &session.target);
            outcome.with("record", first.record).with("value", first.wanted).with("old", (first.value)(keys))
        },
    )
}

fn alike(facts: &Facts) -> Vec<Outcome> {
    target(facts, |target| {
        let mut hosts: BTreeMap<(&str, &str), Vec<(&ServedSession, &SessionKeys)>> = BTreeMap::new();
        for session in &target.sessions {
            // The other rule says why those of a session are not known.
            if let Some(keys) = session.keys.get() {
                hosts.entry((&session.initiator, &session.target)).or_default().push((session, keys));
            }
        }
        let judge = |((initiator, name), sessions): ((&str, &str), Vec<(&ServedSession, &SessionKeys)>)| {
            let [(first, keys), others @ ..] = sessions.as_slice() else { return None };
            let (other, theirs, key) = match others.iter().find_map(|(other, theirs)| {
                let differs = |key: &&Key| (key.value)(theirs) != (key.value)(keys);
                Some((other, theirs, KEYS.iter().find(differs)?))
            }) {
                Some(found) => found,
                None if others.is_empty() => return None,
                None => {
                    let what = format!("{} sessions of {initiator} have negotiated the same", sessions.len());
                    return Some(Outcome::ok(initiator, what));
                }
            };
            let (one, two) = ((key.value)(keys), (key.value)(theirs));
            let what = format!("{} has {}={one}, {} has {two}", title(first), key.name, title(other));
            let outcome = Outcome::warn(initiator, what).with("initiator", initiator).with("target", name);
            Some(outcome.with("record", key.record).with("value", key.wanted))
        };
        hosts.into_iter().filter_map(judge).collect()
    })
}

fn given_up(facts: &Facts) -> Vec<Outcome> {
    let now = facts.target.as_ref().map_or(0, |target| target.looked_at);
    sessions(
        facts,
        "aborts",
        |session| &session.task_management,
        |session, given_up| {
            let TaskManagement { aborts, resets } = *given_up;
            let hours = now.saturating_sub(session.since) as f64 / 3600.0;
            let what = format!(
                "{} has aborted commands {aborts} times and reset {resets} times in {hours:.1} h",
                title(session)
            );
            let verdict = if resets > 0 { Verdict::Bad } else { Verdict::Warn };
            let outcome = Outcome::judged(aborts == 0 && resets == 0, verdict, &session.initiator, what);
            outcome.with("initiator", &session.initiator)
        },
    )
}

fn refused(facts: &Facts) -> Vec<Outcome> {
    target(facts, |target| {
        let refused = match target.logins_refused.known() {
            Ok(refused) => *refused,
            Err(why) => return vec![Outcome::unknown("daemon", format!("refused logins: {why}"))],
        };
        let hours = target.uptime_s.max(UPTIME_MIN_S) as f64 / 3600.0;
        let rate = refused as f64 / hours;
        let what = format!("it has refused {refused} logins, {rate:.0} an hour");
        vec![Outcome::judged(rate < REFUSED_MAX, Verdict::Warn, "daemon", what)]
    })
}
