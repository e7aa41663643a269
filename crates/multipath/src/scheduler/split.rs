//! How much of a large request each lane takes.

use super::LaneId;
use super::constants::{DIVIDING_GAIN, IDLE_SOON, PIECE_MIN};
use super::request::{Boundaries, Pieces};

/// A lane that could take a part.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    pub(super) lane: LaneId,
    /// When its part would begin to move, nanoseconds from now.
    pub(super) start: f64,
    /// How long the lane has something to do, nanoseconds.
    pub(super) backlog: f64,
    /// Bytes per nanosecond.
    pub(super) rate: f64,
    /// The most it is trusted with now.
    pub(super) limit: u64,
    /// It gets the least piece whatever it costs, so that it shows what it is good for.
    pub(super) probe: bool,
    /// What it takes.
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
