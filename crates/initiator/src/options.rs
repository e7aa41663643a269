//! Options of a device: its timeouts.

use std::time::Duration;

use lunway_iscsi::pdu::Isid;

use crate::part::Part;
use crate::{Detours, InitiatorPorts, IscsiUrl, KnownDisk, SharedObserver, Silence};

/// Limits and times of a device. The defaults are those of the field where it has some.
///
/// No operation hangs: it is answered, or fails after at most `command_timeout` (twice where its answer was lost) +
/// `abort_timeout` + `replacement_timeout` and what the kernel adds.
///
/// # Failing fast
///
/// Where another path to the disk is at hand, no caller should wait for this one. [`fail_fast`](Self::fail_fast) has
/// the values for that; what makes the difference is a `replacement_timeout` of zero. Then, at the loss of a
/// connection,
///
/// - what was sent fails at once with [`Aborted`](lunway_block::BlockError::Aborted): it may have happened, and may
///   happen yet, until [`Settled`](crate::SessionEvent::Settled) is told of its session;
/// - what was not sent, and what comes while there is no session, fails at once with
///   [`Gone`](lunway_block::BlockError::Gone), and has not happened; so does what a port that is not active refuses;
/// - the device goes on trying for ever.
///
/// What a target is too busy for (BUSY, TASK SET FULL, NOT READY for a reason that passes) fails with
/// [`Busy`](lunway_block::BlockError::Busy) after 100 ms, and has not happened: elsewhere it is sent again until
/// `command_timeout` is over.
///
/// And a command that the target itself has ended without carrying it out is a
/// [`Timeout`](lunway_block::BlockError::Timeout): as after an abort that was confirmed, it may have happened in part,
/// and nothing of it happens any more. An operation of several commands ends when the last of them has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionOptions {
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
    /// Time for which I/O waits for a lost connection to come back. After that it fails, and what is new fails at once,
    /// until the connection is back: the device goes on trying, as open-iscsi does. It counts from the first loss until
    /// a command has been carried out: a login alone, after which the next connection is lost, does not begin it anew.
    /// For one command that connections are lost over, while others are carried out, it counts from its own first loss.
    /// Zero: see above.
    pub replacement_timeout: Duration,
    /// Longest wait between two attempts to connect again. The first one is 50 ms, and each further one twice as long,
    /// also over sessions that are lost again before a command was carried out.
    pub retry_max: Duration,
    /// Silence after which the target is asked whether it is there (NOP-Out).
    pub nop_interval: Duration,
    /// For the answer to that question.
    pub nop_timeout: Duration,
    /// Interval at which an idle unit is asked whether it has news (TEST UNIT READY), as another size, which a target
    /// tells only with the answer to a command; zero: never.
    pub look_interval: Duration,
    /// Age from which on an answer no longer proves that this node's registration was not preempted: before a change, a
    /// session that has had no newer one asks the unit (TEST UNIT READY) and sends nothing else until it has answered.
    /// `None`: changes are sent at once.
    pub proof_age_max: Option<Duration>,
    /// Limits of silence after which a path counts as dead, sooner than by `nop_timeout`; `None`: never.
    pub silence: Option<Silence>,
    /// TCP_USER_TIMEOUT: how long sent data may stay without an acknowledgement before the kernel ends the connection;
    /// `None`: as the system is set, a quarter of an hour. Counts also while the target takes no data because it is
    /// busy, so it should be longer than `nop_interval` + `nop_timeout`.
    pub user_timeout: Option<Duration>,
    /// For logging out in `close`.
    pub logout_timeout: Duration,
    /// Longest transfer of one command, bytes; the target's own limit applies besides.
    pub transfer_max: u32,
    /// `true` if data that the target acknowledged without flushing it is trusted after it reported a power-on over a
    /// new connection. Normally not: then the next flush fails once. Some targets report a power-on over every new
    /// connection; where such a target is known to keep its cache, this spares the false alarm.
    ///
    /// Also for a layer that counts acknowledged writes over several sessions, and hears of the power-on as an
    /// [`observer`](Self::observer).
    pub cache_survives_power_on: bool,
    /// Time after the last activity for which the connection is watched without sleeping, while answers are due.
    pub spin: Duration,
    /// The sessions' ISID, the same for all of a device; `None`: as `initiator_ports` says. Of sessions that live at
    /// the same time no two may have the same; [`IsidFamily`](crate::IsidFamily) gives such as differ.
    pub isid: Option<Isid>,
    /// Choice of the ISID where `isid` is `None`.
    pub initiator_ports: InitiatorPorts,
    /// The device is one of several lanes to the disk, and this tells the lane from the others on every start: the
    /// layer that opens the lanes settles what earlier processes have left ([`Predecessors`](crate::Predecessors)).
    /// `None`: the device does that itself.
    pub lane: Option<String>,
    /// Time to wait for the end of what an earlier process left, where nothing proves that it is dead; then a barrier
    /// must be answered.
    pub settle: Duration,
    /// Told what happens to the sessions.
    pub observer: Option<SharedObserver>,
    /// Other paths to the same target port. At the loss of a session it is logged in over them first, and logged out,
    /// which proves that the lost one is dead long before its own path is back. Attempts over its own path begin after
    /// that.
    pub detours: Option<Detours>,
    /// The disk as another path has told it. A port that is not active (standby, unavailable) tells no shape,
    /// and cannot be opened without; with this it can, and becomes useful when its state changes.
    pub known: Option<KnownDisk>,
}

impl SessionOptions {
    /// For a device that is one of several ways to a disk.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let options = lunway_initiator::SessionOptions::fail_fast();
    /// assert!(options.replacement_timeout.is_zero() && options.silence.is_some());
    /// ```
    pub fn fail_fast() -> Self {
        Self {
            connect_timeout: Duration::from_secs(1),
            login_timeout: Duration::from_secs(5),
            replacement_timeout: Duration::ZERO,
            // I/O resumes within a second of the target's return.
            retry_max: Duration::from_millis(500),
            // An idle path is probed, so that its end is known before it is needed.
            nop_interval: Duration::from_secs(1),
            silence: Some(Silence::default()),
            user_timeout: Some(Duration::from_secs(15)),
            cache_survives_power_on: true,
            ..Self::default()
        }
    }

    /// With the times that an address sets. Nothing waits for a lost connection where nothing did.
    pub(crate) fn with_timers_of(mut self, url: &IscsiUrl) -> Self {
        self.command_timeout = url.command_timeout.unwrap_or(self.command_timeout);
        if self.part() == Part::Only {
            self.replacement_timeout = url.replacement_timeout.unwrap_or(self.replacement_timeout);
        }
        self
    }

    /// The device's part in the way to the disk: nothing waits for a lost connection of a lane.
    pub(crate) fn part(&self) -> Part {
        match (self.replacement_timeout.is_zero(), &self.observer) {
            (false, _) => Part::Only,
            (true, None) => Part::Lane,
            (true, Some(_)) => Part::ObservedLane,
        }
    }
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self {
            initiator_name: None,
            connect_timeout: Duration::from_secs(5),
            login_timeout: Duration::from_secs(15),
            command_timeout: Duration::from_secs(30),
            abort_timeout: Duration::from_secs(5),
            replacement_timeout: Duration::from_secs(30),
            retry_max: Duration::from_secs(2),
            nop_interval: Duration::from_secs(5),
            nop_timeout: Duration::from_secs(5),
            // As the checkers of dm-multipath look at paths (polling_interval).
            look_interval: Duration::from_secs(5),
            proof_age_max: None,
            silence: None,
            user_timeout: None,
            logout_timeout: Duration::from_secs(2),
            // Larger commands gain nothing more on loopback and hold more memory on both sides.
            transfer_max: 4 << 20,
            cache_survives_power_on: false,
            // Longer than a round trip in a fast network, far shorter than a time slice. Waking a sleeping core takes
            // 20–40 µs, most of a round trip at depth 1. Where cores are short it stops by itself.
            spin: Duration::from_micros(50),
            isid: None,
            initiator_ports: InitiatorPorts::Random,
            lane: None,
            // As `settle` of a disk over several paths.
            settle: Duration::from_secs(10),
            observer: None,
            detours: None,
            known: None,
        }
    }
}

/// The name that sessions of this address have.
pub(crate) fn initiator_name(url: &IscsiUrl, options: &SessionOptions) -> String {
    let name = url.initiator.clone().or_else(|| options.initiator_name.clone());
    name.unwrap_or_else(default_initiator_name)
}

/// A name for this host, where none is given: as stable as the host's own.
fn default_initiator_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    // RFC 7143 [4.2.7.2-1]
    // RFC 7143 §4.2.7.2: lower case letters, digits, dot, dash.
    let clean =
        host.trim().to_ascii_lowercase().replace(|c: char| !c.is_ascii_alphanumeric() && c != '-', "-");
    let clean: String = clean.chars().take(63).collect();
    format!("iqn.2026-11.io.lunway:{}", if clean.is_empty() { "host" } else { &clean })
}
