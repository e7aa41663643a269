//! Traffic of a session, and the round trip to an idle target.

use std::time::{Duration, Instant};

use crate::session::slots::Effect;

/// Traffic of a session since it was opened, reconnections included.
///
/// Plain numbers: they are counted where the session's lock is held anyway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    pub(crate) read_ios: u64,
    pub(crate) read_bytes: u64,
    pub(crate) write_ios: u64,
    pub(crate) write_bytes: u64,
    pub(crate) errors: u64,
}

impl Traffic {
    /// A command was answered with GOOD after that many bytes in and out.
    #[inline]
    pub(crate) fn count(&mut self, effect: Effect, received: usize, sent: usize) {
        match effect {
            Effect::Read => {
                self.read_ios += 1;
                self.read_bytes += received as u64;
            }
            Effect::Write | Effect::WriteThrough => {
                self.write_ios += 1;
                self.write_bytes += sent as u64;
            }
            Effect::Query
            | Effect::Inspect
            | Effect::WriteRange
            | Effect::Flush
            | Effect::Barrier
            | Effect::Look
            | Effect::Unknown => {}
        }
    }
}

/// Time in which the target answers pings (NOP-Out, RFC 7143 §11.18): the network and its own part, but no medium.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pings {
    /// The one that is out, and since when.
    out: Option<(u32, Instant)>,
    last: Option<Duration>,
}

impl Pings {
    /// Looks whether a ping is out.
    pub(crate) fn note(&mut self, unanswered: Option<u32>, now: Instant) {
        match (self.out, unanswered) {
            (Some((tag, _)), Some(still)) if tag == still => {}
            (Some((_, since)), None) => {
                self.last = Some(now.saturating_duration_since(since));
                self.out = None;
            }
            (_, unanswered) => self.out = unanswered.map(|tag| (tag, now)),
        }
    }

    /// Response time of the last ping that was answered.
    pub(crate) fn last(&self) -> Option<Duration> {
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ping_takes_from_its_sending_to_its_own_answer() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut pings = Pings::default();
        pings.note(None, at(0));
        assert_eq!(pings.last(), None);
        pings.note(Some(1), at(10));
        pings.note(Some(1), at(13));
        pings.note(None, at(15));
        assert_eq!(pings.last(), Some(Duration::from_millis(5)));
        pings.note(Some(2), at(20));
        pings.note(Some(3), at(1020));
        pings.note(None, at(1021));
        assert_eq!(pings.last(), Some(Duration::from_millis(1)), "the one before it was never answered");
    }

    #[test]
    fn reads_and_writes_are_counted_and_questions_are_not() {
        let mut traffic = Traffic::default();
        traffic.count(Effect::Read, 4096, 0);
        traffic.count(Effect::Write, 0, 512);
        traffic.count(Effect::WriteThrough, 0, 512);
        traffic.count(Effect::Query, 96, 0);
        traffic.count(Effect::WriteRange, 0, 512);
        let wanted = Traffic { read_ios: 1, read_bytes: 4096, write_ios: 2, write_bytes: 1024, errors: 0 };
        assert_eq!(traffic, wanted);
    }
}
