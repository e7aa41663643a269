//! Division of a large request among lanes.

use super::LaneId;
use super::constants::{DIVIDING_GAIN, IDLE_SOON, PIECE_MIN};
use super::request::{Boundaries, Pieces};

/// A lane that could take a part.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    pub(super) lane: LaneId,
    /// Time at which its part would begin to move, nanoseconds from now.
    pub(super) start: f64,
    /// Time for which the lane has something to do, nanoseconds.
    pub(super) backlog: f64,
    /// Bytes per nanosecond.
    pub(super) rate: f64,
    /// The most it is trusted with now.
    pub(super) limit: u64,
    /// Gets [`PIECE_MIN`] at any cost, to show its rate.
    pub(super) probe: bool,
    /// Bytes that it takes.
    pub(super) len: u64,
}

impl Share {
    fn end(&self, len: u64) -> f64 {
        self.start + len as f64 / self.rate
    }
}

/// The shares of one request, at most [`Pieces::MOST`].
#[derive(Clone, Debug)]
pub(super) struct Shares {
    count: usize,
    shares: [Share; Pieces::MOST],
}

impl Shares {
    pub(super) fn new() -> Self {
        let none = Share { lane: 0, start: 0.0, backlog: 0.0, rate: 1.0, limit: 0, probe: false, len: 0 };
        Self { count: 0, shares: [none; Pieces::MOST] }
    }

    pub(super) fn push(&mut self, share: Share) {
        self.shares[self.count] = share;
        self.count += 1;
    }

    pub(super) fn as_slice(&self) -> &[Share] {
        &self.shares[..self.count]
    }

    /// Divides `len` bytes so that all parts end together. Returns the lane that should take everything instead, if
    /// cutting gains nothing.
    ///
    /// Like water that is poured into vessels whose floors are the lanes' backlogs and whose widths are their rates:
    /// those too high stay dry, all others have one level, which is the time at which all end. Parts meet at the
    /// boundaries `cut` of the disk, on which the request begins `at`.
    ///
    /// While every lane has a queue to work on, whole requests keep them all busy, and cost fewer commands; so it cuts
    /// only when some lane would soon be idle.
    pub(super) fn divide(&mut self, at: u64, len: u64, cut: Boundaries) -> Option<LaneId> {
        let shares = &mut self.shares[..self.count];
        let anchor = anchor(shares, len)?;
        // It shows what it is good for by what it takes anyway. Were it tried, the rest would go to those that are
        // worse.
        shares[anchor].probe = false;
        let (whole, alone) = (shares[anchor].end(len), shares[anchor].lane);
        let worth_it = |share: &Share| {
            let idle_soon = share.backlog * IDLE_SOON < whole && share.end(PIECE_MIN) < whole;
            // One that is not trusted with more learns by what it is trusted with.
            let learns = share.limit < len && share.limit >= PIECE_MIN && share.end(share.limit) < whole;
            idle_soon || learns
        };
        if !shares.iter().enumerate().any(|(i, share)| share.probe || i != anchor && worth_it(share)) {
            return Some(alone);
        }
        pour(shares, anchor, len);
        let end = shares.iter().filter(|s| s.len > 0).map(|s| s.end(s.len)).fold(0.0, f64::max);
        let learning = shares.iter().any(|s| s.len > 0 && (s.probe || s.limit != u64::MAX));
        if !learning && end > whole * (1.0 - DIVIDING_GAIN) {
            return Some(alone);
        }
        round(shares, at, len, cut);
        // Between boundaries far apart there may be no place to cut.
        (shares.iter().filter(|share| share.len > 0).count() < 2).then_some(alone)
    }
}

/// The lane that would end the whole request first, if any is trusted with so much; else the one that would if it were.
fn anchor(shares: &[Share], len: u64) -> Option<usize> {
    let first = |most: u64| {
        let trusted = shares.iter().enumerate().filter(|(_, share)| share.limit >= most);
        trusted.min_by(|(_, a), (_, b)| a.end(len).total_cmp(&b.end(len))).map(|(i, _)| i)
    };
    first(len).or_else(|| first(0))
}

/// Gives every share its length; their sum is `len`.
fn pour(shares: &mut [Share], anchor: usize, len: u64) {
    let mut left = len;
    let mut open = [false; Pieces::MOST];
    for (share, open) in shares.iter_mut().zip(&mut open) {
        share.len = 0;
        if share.probe {
            share.len = PIECE_MIN.min(left);
            left -= share.len;
        } else {
            *open = true;
        }
    }
    loop {
        let (mut water, mut width) = (left as f64, 0.0);
        for (share, _) in shares.iter().zip(&open).filter(|(_, open)| **open) {
            water += share.start * share.rate;
            width += share.rate;
        }
        if width == 0.0 {
            break;
        }
        let level = water / width;
        // The one that is furthest over its limit is full first; then the one furthest below a piece stays dry.
        let mut full: Option<usize> = None;
        let mut dry: Option<(usize, f64)> = None;
        for (i, share) in shares.iter().enumerate().filter(|(i, _)| open[*i]) {
            let part = (level - share.start) * share.rate;
            if part > share.limit as f64 && i != anchor {
                full = Some(i);
            } else if part < PIECE_MIN as f64 && dry.is_none_or(|(_, least)| part < least) {
                dry = Some((i, part));
            }
        }
        if let Some(i) = full {
            open[i] = false;
            shares[i].len = shares[i].limit.min(left);
            left -= shares[i].len;
        } else if let Some((i, _)) = dry {
            open[i] = false;
        } else {
            for (_, share) in shares.iter_mut().enumerate().filter(|(i, _)| open[*i]) {
                share.len = (((level - share.start) * share.rate) as u64).min(left);
                left -= share.len;
            }
            break;
        }
    }
    shares[anchor].len += left;
}

/// Makes all parts but the last end at a boundary of the disk.
fn round(shares: &mut [Share], at: u64, len: u64, cut: Boundaries) {
    let mut end = 0;
    let mut ideal = 0;
    for share in shares.iter_mut() {
        ideal += share.len;
        let to = match ideal >= len {
            true => len,
            false => cut.before(at.saturating_add(ideal)).saturating_sub(at),
        };
        share.len = to - end;
        end = to;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One gigabit per second, bytes per nanosecond.
    const GIGABIT: f64 = 0.125;
    const MIB: u64 = 1 << 20;
    const LATENCY: f64 = 100_000.0;

    /// An idle lane that is trusted with everything.
    fn idle(lane: LaneId, rate: f64) -> Share {
        Share { lane, start: LATENCY, backlog: 0.0, rate, limit: u64::MAX, probe: false, len: 0 }
    }

    /// Divides a request that begins at 0 and may be cut at 4 KiB. Gives the part of each lane, or the one that takes
    /// everything.
    fn divide(all: &[Share], len: u64) -> Result<Vec<u64>, LaneId> {
        divide_at(all, 0, len, Boundaries::every(4096))
    }

    fn divide_at(all: &[Share], at: u64, len: u64, cut: Boundaries) -> Result<Vec<u64>, LaneId> {
        let mut shares = Shares::new();
        all.iter().for_each(|share| shares.push(*share));
        match shares.divide(at, len, cut) {
            Some(alone) => Err(alone),
            None => Ok(shares.as_slice().iter().map(|share| share.len).collect()),
        }
    }

    #[test]
    fn equal_idle_lanes_take_equal_parts() {
        assert_eq!(divide(&[idle(0, GIGABIT), idle(1, GIGABIT)], 4 * MIB), Ok(vec![2 * MIB, 2 * MIB]));
        assert_eq!(divide(&[idle(3, GIGABIT); 8], 8 * MIB), Ok(vec![MIB; 8]));
    }

    #[test]
    fn parts_end_together_whatever_the_rates_and_backlogs_are() {
        let busy = Share { start: LATENCY + 8e6, backlog: 8e6, ..idle(2, GIGABIT) };
        let shares = [idle(0, GIGABIT), idle(1, GIGABIT / 10.0), busy];
        let parts = divide(&shares, 4 * MIB).unwrap();
        assert_eq!(parts.iter().sum::<u64>(), 4 * MIB);
        let ends = shares.iter().zip(&parts).map(|(share, &len)| share.end(len));
        let (first, last) = ends.fold((f64::MAX, 0.0_f64), |(a, b), end| (a.min(end), b.max(end)));
        // Boundaries are 4 KiB apart: a third of a millisecond on the slowest lane.
        assert!(last - first < 4096.0 / (GIGABIT / 10.0), "{parts:?} end between {first} and {last}");
    }

    #[test]
    fn a_lane_that_would_get_less_than_64_kib_gets_nothing() {
        // It would take 35 KiB of a MiB.
        let parts = divide(&[idle(0, GIGABIT), idle(1, GIGABIT), idle(2, GIGABIT / 28.0)], MIB).unwrap();
        assert_eq!(parts, [MIB / 2, MIB / 2, 0]);
        assert_eq!(
            divide(&[idle(0, GIGABIT / 28.0), idle(1, GIGABIT)], MIB),
            Err(1),
            "nothing is left to cut"
        );
    }

    #[test]
    fn a_request_is_not_cut_for_less_than_3_percent() {
        // 32 ms on the first lane; the second could begin after 30 ms and would save half of the rest.
        let late = |start| Share { start, ..idle(1, GIGABIT) };
        assert_eq!(divide(&[idle(0, GIGABIT), late(32.5e6)], 4 * MIB), Err(0));
        assert!(divide(&[idle(0, GIGABIT), late(30e6)], 4 * MIB).is_ok());
    }

    #[test]
    fn lanes_that_all_have_a_queue_get_whole_requests() {
        let queued = |lane| Share { start: LATENCY + 30e6, backlog: 30e6, ..idle(lane, GIGABIT) };
        assert_eq!(divide(&[queued(0), queued(1)], 4 * MIB), Err(0));
        let parts = divide(&[queued(0), idle(1, GIGABIT), idle(2, GIGABIT)], 4 * MIB);
        assert_eq!(parts, Ok(vec![0, 2 * MIB, 2 * MIB]), "two are idle");
    }

    #[test]
    fn a_lane_gets_no_more_than_it_is_trusted_with() {
        let unproven = Share { limit: 128 << 10, ..idle(1, GIGABIT) };
        assert_eq!(
            divide(&[idle(0, GIGABIT), unproven], 4 * MIB),
            Ok(vec![4 * MIB - (128 << 10), 128 << 10])
        );
        // Where none is trusted with its part the one that would end first takes the rest.
        let parts = divide(&[unproven, Share { lane: 0, rate: GIGABIT * 2.0, ..unproven }], 4 * MIB);
        assert_eq!(parts, Ok(vec![128 << 10, 4 * MIB - (128 << 10)]));
    }

    #[test]
    fn a_probed_lane_gets_64_kib_whatever_it_costs_unless_it_would_take_the_request_alone() {
        let probe = |rate| Share { probe: true, ..idle(1, rate) };
        let parts = divide(&[idle(0, GIGABIT), probe(GIGABIT / 1000.0)], 4 * MIB);
        assert_eq!(parts, Ok(vec![4 * MIB - (64 << 10), 64 << 10]));
        let parts = divide(&[idle(0, GIGABIT / 1000.0), probe(GIGABIT)], 4 * MIB);
        assert_eq!(parts, Err(1), "the slow lane gets nothing of it");
    }

    #[test]
    fn parts_meet_at_boundaries_and_where_there_is_none_the_request_is_whole() {
        let lanes = [idle(0, GIGABIT), idle(1, GIGABIT)];
        let cut = Boundaries { step: 1 << 20, first: 512 };
        let parts = divide_at(&lanes, 4096, 4 * MIB, cut).unwrap();
        assert_eq!((4096 + parts[0] - 512) % MIB, 0, "{parts:?}");
        assert_eq!(parts.iter().sum::<u64>(), 4 * MIB);
        assert_eq!(divide_at(&lanes, 4096, 512 << 10, cut), Err(0));
    }
}
