//! Solicited data: which R2Ts of a command are answered, and how much of its data has been sent.

use std::collections::VecDeque;
use std::ops::Range;

use crate::pdu::RESERVED_TAG;

/// Multiple of MaxOutstandingR2T that may be unfinished. Linux has room for twice as many and ends the session beyond
/// (`iscsi_tcp.c`), so that targets which count an R2T as finished a little early work everywhere.
const OUTSTANDING_FACTOR: usize = 2;
/// Ranges of a command's data with gaps between them. In order, as targets send them, it is one; a transfer of 8 MiB in
/// bursts of 8 KiB has as many.
const RANGES_MAX: usize = 1024;

/// Request of an R2T.
pub(super) struct Request {
    pub(super) r2t_sn: u32,
    pub(super) target_transfer_tag: u32,
    pub(super) range: Range<usize>,
}

/// Data of one command that R2Ts have solicited.
///
/// Every R2T has the next number, asks for bytes that no R2T before it has asked for, and comes when no more than a few
/// are unfinished: so what they cost is bounded by the data, and a target that asks for ever breaks the protocol. At
/// error recovery level 0, which is all that the initiator offers, there are no recovery R2Ts (RFC 7143 §7.1.4.2).
// RFC 7143 [7.9-1]
pub(super) struct Solicited {
    next_r2t_sn: u32,
    /// Bytes at the beginning that are sent without being asked for.
    unsolicited: usize,
    /// Ranges that were solicited, in order, without neighbours that touch.
    ranges: Vec<Range<usize>>,
    /// Bytes of the command's data that were queued to be sent; each counts once.
    sent: usize,
    /// For each R2T whose data is not sent, where in all that the connection sends it ends.
    unfinished: VecDeque<u64>,
}

/// Leniency towards a target that nearly keeps to the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leniency {
    /// More R2Ts than agreed on are unfinished: this many.
    Outstanding(usize),
    /// Asks for what was sent without being asked for.
    Unsolicited,
}

impl Solicited {
    pub(super) fn new(unsolicited: usize) -> Self {
        Self {
            next_r2t_sn: 0,
            unsolicited,
            ranges: Vec::new(),
            sent: unsolicited,
            unfinished: VecDeque::new(),
        }
    }

    /// Bytes of the command's data that were queued to be sent.
    pub(super) fn sent(&self) -> usize {
        self.sent
    }

    /// Takes an R2T for a range of the command's data, of which the connection has sent its bytes up to `sent`. The
    /// error says what is wrong with it, for people. Its data is queued next, and [`queued`](Self::queued).
    pub(super) fn ask(
        &mut self,
        request: &Request,
        outstanding_max: u16,
        sent: u64,
    ) -> Result<Option<Leniency>, String> {
        let Range { start, end } = request.range;
        if request.target_transfer_tag == RESERVED_TAG {
            return Err(format!("an R2T with the reserved Target Transfer Tag {RESERVED_TAG:#010x}"));
        }
        if request.r2t_sn != self.next_r2t_sn {
            let (came, expected) = (request.r2t_sn, self.next_r2t_sn);
            return Err(format!("an R2T with R2TSN {came}, where {expected} was expected"));
        }
        let place = self.ranges.partition_point(|range| range.end <= start);
        if let Some(asked) = self.ranges.get(place).filter(|range| range.start < end) {
            let Range { start: from, end: to } = asked;
            return Err(format!(
                "an R2T for bytes {start} to {end}, where {from} to {to} were asked for before"
            ));
        }
        while self.unfinished.front().is_some_and(|end| *end <= sent) {
            self.unfinished.pop_front();
        }
        let outstanding = self.unfinished.len() + 1;
        let agreed = usize::from(outstanding_max).max(1);
        if outstanding > agreed * OUTSTANDING_FACTOR {
            return Err(format!("{outstanding} R2Ts at a time, where MaxOutstandingR2T is {agreed}"));
        }
        let follows = place > 0 && self.ranges[place - 1].end == start;
        let leads = self.ranges.get(place).is_some_and(|range| range.start == end);
        match (follows, leads) {
            (true, true) => self.ranges[place - 1].end = self.ranges.remove(place).end,
            (true, false) => self.ranges[place - 1].end = end,
            (false, true) => self.ranges[place].start = start,
            (false, false) if self.ranges.len() == RANGES_MAX => {
                return Err(format!(
                    "R2Ts for more than {RANGES_MAX} pieces of one command's data out of order"
                ));
            }
            (false, false) => self.ranges.insert(place, start..end),
        }
        self.next_r2t_sn = self.next_r2t_sn.wrapping_add(1);
        self.sent += end.saturating_sub(start.max(self.unsolicited));
        Ok(match () {
            () if start < self.unsolicited => Some(Leniency::Unsolicited),
            () if outstanding > agreed => Some(Leniency::Outstanding(outstanding)),
            () => None,
        })
    }

    /// The data of the last R2T ends there in all that the connection sends.
    pub(super) fn queued(&mut self, end: u64) {
        self.unfinished.push_back(end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R2Ts for these ranges, all of whose data is sent at once.
    fn asked(solicited: &mut Solicited, ranges: &[Range<usize>]) -> Result<(), String> {
        for range in ranges {
            let r2t_sn = solicited.next_r2t_sn;
            let request = Request { r2t_sn, target_transfer_tag: 1, range: range.clone() };
            solicited.ask(&request, 1, u64::MAX)?;
            solicited.queued(0);
        }
        Ok(())
    }

    #[test]
    fn bytes_are_asked_for_once_in_whatever_order() {
        for ranges in [[0..4, 4..8, 8..12], [8..12, 0..4, 4..8], [4..8, 8..12, 0..4]] {
            let mut solicited = Solicited::new(0);
            asked(&mut solicited, &ranges).unwrap();
            assert_eq!((&solicited.ranges[..], solicited.sent()), (std::slice::from_ref(&(0..12)), 12));
            for again in [0..1, 11..12, 3..5, 0..12, 0..20] {
                let refused = asked(&mut solicited, std::slice::from_ref(&again)).unwrap_err();
                assert!(refused.contains("0 to 12 were asked for before"), "{refused}");
            }
            asked(&mut solicited, std::slice::from_ref(&(12..13))).unwrap();
        }
    }

    #[test]
    fn what_was_sent_unasked_counts_once() {
        let mut solicited = Solicited::new(6);
        asked(&mut solicited, &[0..4, 4..8]).unwrap();
        assert_eq!(solicited.sent(), 8);
    }

    #[test]
    fn pieces_with_gaps_are_bounded() {
        let mut solicited = Solicited::new(0);
        let ranges: Vec<_> = (0..RANGES_MAX).map(|piece| 2 * piece..2 * piece + 1).collect();
        asked(&mut solicited, &ranges).unwrap();
        assert!(asked(&mut solicited, std::slice::from_ref(&(9000..9001))).is_err());
        asked(&mut solicited, std::slice::from_ref(&(1..2))).unwrap();
        assert_eq!(solicited.ranges.len(), RANGES_MAX - 1);
    }

    #[test]
    fn twice_as_many_as_agreed_on_may_be_unfinished() {
        let mut solicited = Solicited::new(0);
        let mut ask = |number: u32, sent| {
            let at = number as usize * 4;
            let request = Request { r2t_sn: number, target_transfer_tag: 1, range: at..at + 4 };
            let answer = solicited.ask(&request, 2, sent);
            if answer.is_ok() {
                solicited.queued(u64::from(number + 1) * 10);
            }
            answer
        };
        assert_eq!([ask(0, 0), ask(1, 0)], [Ok(None), Ok(None)]);
        assert_eq!(ask(2, 9), Ok(Some(Leniency::Outstanding(3))));
        assert_eq!(ask(3, 10), Ok(Some(Leniency::Outstanding(3))));
        assert_eq!(ask(4, 40), Ok(None));
        assert_eq!([ask(5, 40), ask(6, 40), ask(7, 40)].map(|answer| answer.is_ok()), [true; 3]);
        assert!(ask(8, 49).unwrap_err().contains("5 R2Ts at a time, where MaxOutstandingR2T is 2"));
    }
}
