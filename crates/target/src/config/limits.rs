//! What peers can make this process spend.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What peers can make this process spend.
///
/// In the worst case the memory is about `sessions × session_memory_mib`, plus 64 KiB for each connection that is not
/// logged in, and 16 MiB for each connection with error recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Sessions at the same time, not counting those for discovery. One more is told "out of resources".
    pub sessions: usize,
    /// Sessions of one initiator at the same time, with whichever targets; those that it has replaced and whose commands the
    /// devices have not ended count. One more is told "out of resources".
    pub sessions_per_initiator: usize,
    /// Connections that a session may have (MaxConnections, RFC 7143 §13.2); each needs 32 MiB of `session_memory_mib`. Some
    /// initiators offer several and are better off with one: more than one is for those that are known to use them well.
    pub connections_per_session: u16,
    /// Connections that have not logged in. One more, and the oldest of them is closed.
    pub connections_before_login: usize,
    /// Logins that one address may begin in a second; 0: any number. A secret that is tried out costs time.
    pub logins_per_second: u32,
    /// Seconds until a connection must have logged in.
    pub login_timeout_s: u64,
    /// Commands in flight in a session: the window that initiators are told.
    pub command_window: u16,
    /// Memory for data in flight in one session, MiB: a quarter for what the target asked for, a quarter for commands that the
    /// devices have, half for what initiators may send unasked.
    pub session_memory_mib: usize,
    /// Seconds of silence after which an initiator is pinged (NOP-In); 0: never.
    pub nop_interval_s: u64,
    /// Seconds that it has to answer.
    pub nop_timeout_s: u64,
    /// How long a connection that was just busy polls before it sleeps, microseconds; 0: never. Waking a sleeping
    /// core takes 20–40 µs, which is most of a round trip at depth 1; an idle connection never polls.
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
