//! Limits on the resources that peers can use.

use std::fmt;
use std::time::Duration;

use lunway_block::duration::{ExactDuration, parse_duration};
use schemars::JsonSchema;
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Limits on the resources that peers can use.
///
/// In the worst case the memory is about `memory_mib`, plus 2 MiB for each session, 64 KiB for each connection that is
/// not logged in, and for each principal one command of each kind, 24 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, try_from = "WrittenLimits")]
// The schema has no outdated keys: they are read, and not offered.
#[schemars(!try_from)]
pub struct Limits {
    /// Concurrent sessions, without discovery sessions. One more is refused with "out of resources".
    pub sessions: usize,
    /// Concurrent sessions of one initiator with all targets together. Replaced sessions count until the devices have
    /// finished their commands. One more is refused with "out of resources". A CHAP user has no more than this, or a
    /// quarter of `sessions` if that is more, under all initiator names together.
    pub sessions_per_initiator: usize,
    /// Connections of one session (MaxConnections, RFC 7143 §13.2); each needs 32 MiB of `session_memory_mib`. Raise it
    /// only for initiators that are known to use several connections well.
    pub connections_per_session: u16,
    /// Connections that have not logged in yet. One more closes the oldest of them.
    pub connections_before_login: usize,
    /// Logins per second from one address; 0: no limit. It slows down attempts to guess a secret.
    pub logins_per_second: u32,
    /// Time within which a connection must log in, such as `15s`.
    #[serde(serialize_with = "as_text")]
    #[schemars(with = "String")]
    pub login_timeout: Duration,
    /// Commands in flight in a session: the command window that initiators are offered.
    pub command_window: u16,
    /// Memory for data in flight in one session, MiB: a quarter for solicited data, a quarter for commands at the
    /// devices, half for unsolicited data.
    pub session_memory_mib: usize,
    /// Memory for data in flight in all sessions together, MiB, beside 1 MiB that each connection has for itself: data
    /// of commands that wait, buffers of commands at the devices, answers that are not taken, answers kept for
    /// retransmission. The last quarter is for principals that have no more than a sixteenth of it.
    pub memory_mib: usize,
    /// Of `memory_mib`, what the sessions of one principal have together, MiB: of one CHAP user; without CHAP, of one
    /// source address and access rule.
    pub principal_memory_mib: usize,
    /// Silence after which the target pings an initiator (NOP-In), such as `30s`; `0s`: never.
    #[serde(serialize_with = "as_text")]
    #[schemars(with = "String")]
    pub nop_interval: Duration,
    /// Time to wait for the answer to that ping before the connection is closed.
    #[serde(serialize_with = "as_text")]
    #[schemars(with = "String")]
    pub nop_timeout: Duration,
    /// Time for which a busy connection polls before it sleeps, such as `50us`; `0s`: never. Waking a sleeping core
    /// takes 20 to 40 µs, most of a round trip at queue depth 1. An idle connection never polls.
    #[serde(serialize_with = "as_text")]
    #[schemars(with = "String")]
    pub poll: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            sessions: 256,
            sessions_per_initiator: 64,
            connections_per_session: 1,
            connections_before_login: 1024,
            logins_per_second: 50,
            login_timeout: Duration::from_secs(15),
            command_window: 128,
            session_memory_mib: 64,
            memory_mib: 1024,
            principal_memory_mib: 256,
            nop_interval: Duration::from_secs(30),
            nop_timeout: Duration::from_secs(30),
            poll: Duration::from_micros(50),
        }
    }
}

/// Key of [`Limits`] that had a unit in its name and a number as its value. It is still read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RenamedKey {
    /// Its name before.
    pub old: &'static str,
    /// Its name now; the value is a text with a unit.
    pub new: &'static str,
    /// The unit of the number under the old name.
    pub unit: &'static str,
}

impl RenamedKey {
    /// All of them. No other table has keys of these names.
    pub const ALL: [Self; 4] = [
        Self { old: "login_timeout_s", new: "login_timeout", unit: "s" },
        Self { old: "nop_interval_s", new: "nop_interval", unit: "s" },
        Self { old: "nop_timeout_s", new: "nop_timeout", unit: "s" },
        Self { old: "poll_us", new: "poll", unit: "us" },
    ];

    /// One sentence for each old name in the text of a configuration file. It gives the line to write instead.
    pub(super) fn sentences(text: &str, origin: &str) -> Vec<String> {
        // Of thousands of logical units that takes time, and next to no file has one.
        if !Self::ALL.iter().any(|key| text.contains(key.old)) {
            return Vec::new();
        }
        let table = text.parse::<toml::Table>().unwrap_or_default();
        let Some(limits) = table.get("limits").and_then(toml::Value::as_table) else { return Vec::new() };
        let found = Self::ALL.iter().filter_map(|key| Some((key, limits.get(key.old)?)));
        let sentence = |(Self { old, new, unit }, value): (&Self, &toml::Value)| {
            format!("{origin}: limits: {old} has a new name: write {new} = \"{value}{unit}\" instead")
        };
        found.map(sentence).collect()
    }
}

/// [`Limits`] as they may be written: each key may be missing, and [renamed](RenamedKey) ones may have their old name.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenLimits {
    sessions: Option<usize>,
    sessions_per_initiator: Option<usize>,
    connections_per_session: Option<u16>,
    connections_before_login: Option<usize>,
    logins_per_second: Option<u32>,
    login_timeout: Option<WrittenDuration>,
    login_timeout_s: Option<u64>,
    command_window: Option<u16>,
    session_memory_mib: Option<usize>,
    memory_mib: Option<usize>,
    principal_memory_mib: Option<usize>,
    nop_interval: Option<WrittenDuration>,
    nop_interval_s: Option<u64>,
    nop_timeout: Option<WrittenDuration>,
    nop_timeout_s: Option<u64>,
    poll: Option<WrittenDuration>,
    poll_us: Option<u64>,
}

impl TryFrom<WrittenLimits> for Limits {
    type Error = String;

    fn try_from(written: WrittenLimits) -> Result<Self, String> {
        let default = Self::default();
        let [login, interval, timeout, poll] = RenamedKey::ALL;
        let seconds = |old: Option<u64>| old.map(Duration::from_secs);
        let poll_us = written.poll_us.map(Duration::from_micros);
        Ok(Self {
            sessions: written.sessions.unwrap_or(default.sessions),
            sessions_per_initiator: written.sessions_per_initiator.unwrap_or(default.sessions_per_initiator),
            connections_per_session: written
                .connections_per_session
                .unwrap_or(default.connections_per_session),
            connections_before_login: written
                .connections_before_login
                .unwrap_or(default.connections_before_login),
            logins_per_second: written.logins_per_second.unwrap_or(default.logins_per_second),
            login_timeout: either(login, written.login_timeout, seconds(written.login_timeout_s))?
                .unwrap_or(default.login_timeout),
            command_window: written.command_window.unwrap_or(default.command_window),
            session_memory_mib: written.session_memory_mib.unwrap_or(default.session_memory_mib),
            memory_mib: written.memory_mib.unwrap_or(default.memory_mib),
            principal_memory_mib: written.principal_memory_mib.unwrap_or(default.principal_memory_mib),
            nop_interval: either(interval, written.nop_interval, seconds(written.nop_interval_s))?
                .unwrap_or(default.nop_interval),
            nop_timeout: either(timeout, written.nop_timeout, seconds(written.nop_timeout_s))?
                .unwrap_or(default.nop_timeout),
            poll: either(poll, written.poll, poll_us)?.unwrap_or(default.poll),
        })
    }
}

/// The value of a key under one of its names. Under both it would be a guess which one counts.
fn either(
    RenamedKey { old, new, .. }: RenamedKey,
    by_new: Option<WrittenDuration>,
    by_old: Option<Duration>,
) -> Result<Option<Duration>, String> {
    match (by_new, by_old) {
        (Some(_), Some(_)) => {
            Err(format!("{old} is the old name of {new}, and both are given: remove {old}"))
        }
        (by_new, by_old) => Ok(by_new.map(|WrittenDuration(duration)| duration).or(by_old)),
    }
}

/// A duration as a text with a unit. A number alone is refused: its unit would be a guess.
struct WrittenDuration(Duration);

impl<'de> Deserialize<'de> for WrittenDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;

        impl Visitor<'_> for Text {
            type Value = WrittenDuration;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration with a unit, such as \"50us\", \"200ms\" or \"15s\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                parse_duration(text).map(WrittenDuration).map_err(E::custom)
            }
        }

        deserializer.deserialize_str(Text)
    }
}

fn as_text<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&ExactDuration(*duration))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Limits, String> {
        toml::from_str(text).map_err(|error| error.message().to_owned())
    }

    #[test]
    fn a_duration_has_a_unit_and_reads_back_as_itself() {
        let limits =
            read("login_timeout = \"1m\"\nnop_interval = \"0s\"\nnop_timeout = \"2.5s\"\npoll = \"7us\"\n")
                .unwrap();
        let expected = Limits {
            login_timeout: Duration::from_secs(60),
            nop_interval: Duration::ZERO,
            nop_timeout: Duration::from_millis(2500),
            poll: Duration::from_micros(7),
            ..Limits::default()
        };
        assert_eq!(limits, expected);
        let text = toml::to_string(&limits).unwrap();
        assert!(
            text.contains("login_timeout = \"1m\"") && text.contains("nop_timeout = \"2500ms\""),
            "{text}"
        );
        assert_eq!(read(&text).unwrap(), limits);
        for (text, part) in [
            ("login_timeout = 15", "invalid type: integer `15`, expected a duration with a unit, such as"),
            ("login_timeout = \"15\"", "`15` is not a duration: write a number with a unit"),
            ("login_timeout_s = \"15s\"", "expected u64"),
        ] {
            let message = read(text).unwrap_err();
            assert!(message.contains(part), "{text}: {message}");
        }
    }

    #[test]
    fn an_old_name_is_read_alone_and_the_warning_says_what_to_write() {
        let text = "login_timeout_s = 3\nnop_interval_s = 0\nnop_timeout_s = 4\npoll_us = 60\n";
        let new = "login_timeout = \"3s\"\nnop_interval = \"0s\"\nnop_timeout = \"4s\"\npoll = \"60us\"\n";
        assert_eq!(read(text).unwrap(), read(new).unwrap());
        let file = |limits: &str| RenamedKey::sentences(&format!("[limits]\n{limits}"), "lunway.toml");
        assert_eq!(file(new), [""; 0]);
        for (sentence, line) in file(text).iter().zip(new.lines()) {
            assert!(sentence.ends_with(&format!("write {line} instead")), "{sentence}");
        }
        assert_eq!(file(text).len(), RenamedKey::ALL.len());
        for (old, new) in text.lines().zip(new.lines()) {
            let both = read(&format!("{old}\n{new}\n")).unwrap_err();
            let name = old.split(' ').next().unwrap();
            assert!(both.ends_with(&format!("both are given: remove {name}")), "{both}");
        }
    }
}
