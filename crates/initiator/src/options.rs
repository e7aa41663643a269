//! How long a device waits for what.

use std::time::Duration;

/// Limits and times of a device. The defaults are those of the field where it has some.
///
/// No operation hangs: it is answered, or fails after at most `command_timeout` + `abort_timeout` +
/// `replacement_timeout` and what the kernel adds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenOptions {
    /// Our iSCSI name; `None`: what the address says, else one made from the host's name.
    pub initiator_name: Option<String>,
    /// For a TCP connection to one address.
    pub connect_timeout: Duration,
    /// From the connection to the full feature phase.
    pub login_timeout: Duration,
    /// For one command at the target. What comes later is aborted. Commands that may touch the whole medium (flush,
    /// unmap, write same) have twice as long, as in Linux.
    pub command_timeout: Duration,
    /// For the answer to ABORT TASK; after that the connection is dropped, which aborts for certain.
    pub abort_timeout: Duration,
    /// How long I/O waits for a lost connection to come back. After that it fails, and what is new fails at once,
    /// until the connection is back: the device goes on trying, as open-iscsi does.
    pub replacement_timeout: Duration,
    /// Silence after which the target is asked whether it is there (NOP-Out).
    pub nop_interval: Duration,
    /// For the answer to that question.
    pub nop_timeout: Duration,
    /// For logging out in `close`.
    pub logout_timeout: Duration,
    /// Longest transfer of one command, bytes; the target's own limit applies besides.
    pub transfer_max: u32,
    /// Whether what the target acknowledged without flushing it is trusted after it reported a power-on over a new
    /// connection. Normally not: then the next flush fails once. Some targets report a power-on over every new
    /// connection; where such a target is known to keep its cache, this spares the false alarm.
    pub cache_survives_power_on: bool,
    /// How long the connection is watched without sleeping after the last activity, while answers are due.
    pub spin: Duration,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            initiator_name: None,
            connect_timeout: Duration::from_secs(5),
            login_timeout: Duration::from_secs(15),
            command_timeout: Duration::from_secs(30),
            abort_timeout: Duration::from_secs(5),
            replacement_timeout: Duration::from_secs(30),
            nop_interval: Duration::from_secs(5),
            nop_timeout: Duration::from_secs(5),
            logout_timeout: Duration::from_secs(2),
            // Larger commands gain nothing more on loopback and hold more memory on both sides.
            transfer_max: 4 << 20,
            cache_survives_power_on: false,
            // Longer than a round trip in a fast network, far shorter than a time slice. Waking a sleeping core takes 20–40 µs,
            // most of a round trip at depth 1. Where cores are short it stops by itself.
            spin: Duration::from_micros(50),
        }
    }
}

/// A name for this host, where none is given: as stable as the host's own.
pub(crate) fn default_initiator_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    // RFC 7143 [4.2.7.2-1]
    // RFC 7143 §4.2.7.2: lower case letters, digits, dot, dash.
    let clean =
        host.trim().to_ascii_lowercase().replace(|c: char| !c.is_ascii_alphanumeric() && c != '-', "-");
    let clean: String = clean.chars().take(63).collect();
    format!("iqn.2026-11.io.lunway:{}", if clean.is_empty() { "host" } else { &clean })
}
