//! Silence: detection of a dead path.

use std::time::{Duration, Instant};

use lunway_block::duration::HumanTime;

use crate::connection::probe::Kernel;

/// TCP retransmission timeouts that must have passed in vain, in halves: 3½. After the first the kernel
/// has sent again what is missing, after the second once more (its timeout doubles, or begins with a loss probe of RFC
/// 8985), and by the third an answer to that would be here. On a path with a queue of half a second, whose timeouts are
/// longer than a second, this is what keeps a burst of losses from being taken for the end; in a fast network it is
/// shorter than `dead_after`.
const TIMEOUTS_HALVES: u32 = 7;

/// Limits from which on silence means that a path is dead.
///
/// A path is silent when answers are due and for `ask_after` neither a byte nor an acknowledgement of the peer's kernel
/// has come. Then the target is asked (NOP-Out), so that something is certainly under way, and if for
/// `dead_after` more the peer's kernel acknowledges nothing of it, the peer is dead. What the peer sends again because
/// it does not hear us is no sign of life. A target that is only busy acknowledges; so does one whose window is closed,
/// when TCP probes it. Such a target has until `nop_timeout`.
///
/// So a path that swallows everything is given up after `ask_after` + `dead_after`, or later where TCP itself waits
/// longer for an acknowledgement: on a slow path with long queues.
///
/// | here | elsewhere |
/// |---|---|
/// | `ask_after` + `dead_after` | open-iscsi's `node.conn[0].timeo.noop_out_interval` + `…noop_out_timeout` (5 s + 5 s), which take a busy target for a dead one; Windows' `LinkDownTime` (15 s) |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silence {
    /// Longest silence, while answers are due, before the target is asked.
    pub ask_after: Duration,
    /// Time after that for which its kernel may leave what was sent unacknowledged.
    pub dead_after: Duration,
}

impl Default for Silence {
    fn default() -> Self {
        // Round trips on a storage network take milliseconds, and a disk's longest answers tenths of seconds. TCP sends
        // again after 200 ms at the least: within 750 ms it has done so twice.
        Self { ask_after: Duration::from_millis(250), dead_after: Duration::from_millis(750) }
    }
}

/// Returns the reason why such a path is left, for people.
pub(crate) fn black_hole(time: Duration) -> String {
    format!("nothing has come for {}, not even an acknowledgement: a black hole", HumanTime(time))
}

/// Sign of life, or its absence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sign {
    /// Nothing new.
    None,
    /// Has become silent: ask the target.
    Silent,
    /// Silent no longer.
    Heard,
    /// The peer is dead: nothing has come for that long.
    Dead(Duration),
}

/// Watches one connection. Costs two stores where bytes have come; the kernel is asked only where none have for a
/// while.
#[derive(Debug)]
pub(crate) struct Watch {
    silence: Silence,
    /// Since when answers have been due without a pause.
    due_since: Option<Instant>,
    /// Time of the last bytes or acknowledgement.
    sign_at: Instant,
    /// Number of bytes that the kernel had acknowledged at the last look.
    acknowledged: u64,
    /// Time of the next look.
    next: Instant,
    silent: Option<Silent>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Silent {
    /// From when on sent data is known to have had no acknowledgement.
    unanswered_since: Option<Instant>,
}

impl Watch {
    pub(crate) fn new(silence: Silence, now: Instant) -> Self {
        Self { silence, due_since: None, sign_at: now, acknowledged: 0, next: now, silent: None }
    }

    /// Takes note of whether bytes have come, and whether answers are due.
    pub(crate) fn note(&mut self, heard: bool, due: bool, now: Instant) -> Sign {
        if !due {
            self.due_since = None;
        } else if self.due_since.is_none() {
            self.due_since = Some(now);
            self.next = now + self.silence.ask_after;
        }
        if heard {
            self.sign_at = now;
            if self.silent.take().is_some() {
                return Sign::Heard;
            }
        }
        Sign::None
    }

    /// Time at which to [`look`](Self::look).
    pub(crate) fn next(&self) -> Option<Instant> {
        (self.due_since.is_some() || self.silent.is_some()).then_some(self.next)
    }

    /// Returns `true` if it is time to look.
    pub(crate) fn is_time(&self, now: Instant) -> bool {
        self.next().is_some_and(|next| next <= now)
    }

    /// Looks, at what the kernel says.
    pub(crate) fn look(&mut self, kernel: Option<Kernel>, now: Instant) -> Sign {
        let late = now.saturating_duration_since(self.next);
        let acknowledged = kernel.is_some_and(|kernel| kernel.acknowledged != self.acknowledged);
        if let (true, Some(kernel)) = (acknowledged, kernel) {
            self.acknowledged = kernel.acknowledged;
            self.sign_at = now.checked_sub(kernel.last_packet).unwrap_or(now).max(self.sign_at);
        }
        let Some(silent) = &mut self.silent else {
            let begin = self.due_since.map_or(self.sign_at, |since| since.max(self.sign_at));
            if now.saturating_duration_since(begin) < self.silence.ask_after {
                self.next = begin + self.silence.ask_after;
                return Sign::None;
            }
            self.silent = Some(Silent::default());
            self.next = now + self.silence.ask_after / 4;
            return Sign::Silent;
        };
        if acknowledged {
            self.silent = None;
            self.next = now + self.silence.ask_after;
            return Sign::Heard;
        }
        let since = match (&mut silent.unanswered_since, kernel) {
            (_, None) => None,
            (since, Some(kernel)) if !kernel.waits_for_acknowledgement => {
                *since = None;
                None
            }
            (Some(since), Some(_)) => {
                // We were kept from looking, by a machine that was too busy or asleep: then the kernel may have been as
                // well.
                if late > self.silence.ask_after / 2 {
                    *since += late;
                }
                Some(*since)
            }
            (since @ None, Some(_)) => {
                *since = Some(now);
                *since
            }
        };
        self.next = now + self.silence.ask_after / 4;
        let Some((since, kernel)) = since.zip(kernel) else { return Sign::None };
        let enough = self.silence.dead_after.max(kernel.retransmission_timeout * TIMEOUTS_HALVES / 2);
        if now.saturating_duration_since(since) >= enough {
            return Sign::Dead(now.saturating_duration_since(self.sign_at));
        }
        self.next = self.next.min(since + enough);
        Sign::None
    }

    /// The target has been asked: from now on something may be without an acknowledgement.
    pub(crate) fn asked(&mut self, kernel: Option<Kernel>, now: Instant) {
        if let Some(silent) = &mut self.silent
            && kernel.is_some_and(|kernel| kernel.waits_for_acknowledgement)
        {
            silent.unanswered_since.get_or_insert(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// A path in simulated time: what has come, and what the kernel knows.
    struct Path {
        watch: Watch,
        start: Instant,
        now: Instant,
        acknowledged: u64,
        acknowledged_at: Instant,
        waits: bool,
        /// The peer's window is closed: nothing leaves but probes.
        closed: bool,
        timeout: Duration,
        signs: Vec<(u64, Sign)>,
    }

    impl Path {
        fn new() -> Self {
            let now = Instant::now();
            Self {
                watch: Watch::new(Silence::default(), now),
                start: now,
                now,
                acknowledged: 0,
                acknowledged_at: now,
                waits: false,
                closed: false,
                timeout: ms(201),
                signs: Vec::new(),
            }
        }

        fn kernel(&self) -> Option<Kernel> {
            Some(Kernel {
                round_trip: None,
                acknowledged: self.acknowledged,
                last_packet: self.now - self.acknowledged_at,
                waits_for_acknowledgement: self.waits,
                retransmission_timeout: self.timeout,
            })
        }

        /// The peer's kernel takes what is under way.
        fn acknowledge(&mut self) {
            self.acknowledged += 48;
            (self.acknowledged_at, self.waits) = (self.now, false);
        }

        fn note(&mut self, heard: bool, due: bool) {
            let sign = self.watch.note(heard, due, self.now);
            self.keep(sign);
        }

        fn keep(&mut self, sign: Sign) {
            if sign != Sign::None {
                self.signs.push(((self.now - self.start).as_millis() as u64, sign));
            }
        }

        /// Lets time pass as the driver does: wakes up where the watch wants it.
        fn pass(&mut self, time: Duration) {
            let end = self.now + time;
            while let Some(next) = self.watch.next().filter(|next| *next <= end) {
                self.now = self.now.max(next);
                let sign = self.watch.look(self.kernel(), self.now);
                self.keep(sign);
                if sign == Sign::Silent {
                    // The question goes to a kernel that has nothing else under way.
                    self.waits |= !self.closed;
                    self.watch.asked(self.kernel(), self.now);
                }
                if matches!(sign, Sign::Dead(_)) {
                    return;
                }
            }
            self.now = end;
        }
    }

    #[test]
    fn a_black_hole_is_noticed_after_a_second() {
        let mut path = Path::new();
        path.pass(ms(5000));
        path.note(false, true);
        path.pass(ms(3000));
        assert_eq!(path.signs, [(5250, Sign::Silent), (6000, Sign::Dead(ms(6000)))]);
    }

    #[test]
    fn nothing_is_asked_while_bytes_or_acknowledgements_come() {
        let mut path = Path::new();
        path.note(false, true);
        for round in 0..100 {
            path.pass(ms(200));
            if round % 2 == 0 {
                path.note(true, true);
            } else {
                path.acknowledge();
                path.waits = true;
            }
        }
        assert_eq!(path.signs, []);
    }

    #[test]
    fn a_target_that_is_busy_is_never_dead() {
        let mut path = Path::new();
        path.note(false, true);
        for _ in 0..200 {
            path.pass(ms(50));
            if path.waits {
                // Its kernel acknowledges the question, and the target does not answer.
                path.acknowledge();
            }
        }
        assert!(
            path.signs.iter().all(|(_, sign)| matches!(sign, Sign::Silent | Sign::Heard)),
            "{:?}",
            path.signs
        );
        assert!(path.signs.len() > 10, "it is asked again and again");
    }

    #[test]
    fn a_window_that_stays_closed_is_not_dead_while_its_probes_are_answered() {
        let mut path = Path::new();
        path.closed = true;
        path.note(false, true);
        for _ in 0..100 {
            // A probe is answered by a packet that acknowledges nothing new.
            path.pass(ms(400));
            path.acknowledged_at = path.now;
        }
        assert_eq!(path.signs, [(250, Sign::Silent)]);
    }

    #[test]
    fn a_peer_that_speaks_and_does_not_hear_us_is_dead() {
        let mut path = Path::new();
        path.note(false, true);
        for _ in 0..20 {
            path.pass(ms(60));
            path.acknowledged_at = path.now;
        }
        assert!(
            matches!(path.signs[..], [(250, Sign::Silent), (1000, Sign::Dead(_)), ..]),
            "{:?}",
            path.signs
        );
    }

    #[test]
    fn where_tcp_waits_longer_so_do_we() {
        let mut path = Path::new();
        path.timeout = ms(1000);
        path.note(false, true);
        path.pass(ms(10_000));
        assert_eq!(path.signs, [(250, Sign::Silent), (3750, Sign::Dead(ms(3750)))]);
    }

    #[test]
    fn time_in_which_we_were_kept_from_looking_does_not_count() {
        let mut path = Path::new();
        path.note(false, true);
        path.pass(ms(300));
        assert_eq!(path.signs, [(250, Sign::Silent)]);
        // The whole machine stood still.
        path.now += ms(5000);
        path.pass(ms(500));
        assert_eq!(path.signs.len(), 1, "{:?}", path.signs);
        path.pass(ms(500));
        assert!(matches!(path.signs[1], (_, Sign::Dead(_))), "{:?}", path.signs);
    }

    #[test]
    fn what_comes_ends_the_silence_at_once() {
        let mut path = Path::new();
        path.note(false, true);
        path.pass(ms(400));
        path.note(true, false);
        assert_eq!(path.signs, [(250, Sign::Silent), (400, Sign::Heard)]);
        assert_eq!(path.watch.next(), None, "nothing is due");
    }
}
