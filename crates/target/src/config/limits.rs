//! Limits on the resources that peers can use.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Limits on the resources that peers can use.
///
/// In the worst case the memory is about `sessions × session_memory_mib`, plus 64 KiB for each connection that is not
/// logged in, and 16 MiB for each connection with error recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Concurrent sessions, without discovery sessions. One more is refused with "out of resources".
    pub sessions: usize,
    /// Concurrent sessions of one initiator with all targets together. Replaced sessions count until the devices have
    /// finished their commands. One more is refused with "out of resources".
    pub sessions_per_initiator: usize,
    /// Connections of one session (MaxConnections, RFC 7143 §13.2); each needs 32 MiB of `session_memory_mib`. Raise it
    /// only for initiators that are known to use several connections well.
    pub connections_per_session: u16,
    /// Connections that have not logged in yet. One more closes the oldest of them.
    pub connections_before_login: usize,
    /// Logins per second from one address; 0: no limit. It slows down attempts to guess a secret.
    pub logins_per_second: u32,
    /// Seconds within which a connection must log in.
    pub login_timeout_s: u64,
    /// Commands in flight in a session: the command window that initiators are offered.
    pub command_window: u16,
    /// Memory for data in flight in one session, MiB: a quarter for solicited data, a quarter for commands at the
    /// devices, half for unsolicited data.
    pub session_memory_mib: usize,
    /// Seconds of silence after which the target pings an initiator (NOP-In); 0: never.
    pub nop_interval_s: u64,
    /// Seconds to wait for the answer to that ping before the connection is closed.
    pub nop_timeout_s: u64,
    /// Microseconds for which a busy connection polls before it sleeps; 0: never. Waking a sleeping core takes 20 to 40
    /// µs, most of a round trip at queue depth 1. An idle connection never polls.
    pub poll_us: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            sessions: 256,
            sessions_per_initiator: 64,
            connections_per_session: 1,
            connections_before_login: 1024,
            logins_per_second: 50,
            login_timeout_s: 15,
            command_window: 128,
            session_memory_mib: 64,
            nop_interval_s: 30,
            nop_timeout_s: 30,
            poll_us: 50,
        }
    }
}

impl Limits {
    pub(crate) fn poll(&self) -> Duration {
        Duration::from_micros(self.poll_us)
    }
}
