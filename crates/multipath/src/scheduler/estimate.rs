//! Estimate of a lane in one direction: rate, base latency, trust.

use super::constants::{
    BASE_CLIP, BASE_CLIP_SLACK, BASE_FALL_GAIN, BASE_RISE_GAIN, HICCUP, IN_TIME, LATE, LIGHT_CLIP,
    LIGHT_GAIN, LOADING, MIDDLE_MAX, MUCH_FASTER, MUCH_FASTER_GAIN, MUCH_SLOWER, MUCH_SLOWER_GAIN,
    RAN_DRY_GAIN, RECOVERED, REPLAN_PART, SMALL_MAX, STEADY_GAIN, UNPROVEN_GAIN,
};
use super::explore::LaneTrial;
use super::flow::Flow;
use super::request::Piece;
use super::window::{Around, Seen, Window};

/// A lane in one direction: what is in flight, its rate and base latency, and what it may be trusted with.
///
/// The model: a piece takes `base` + (bytes before it + its own) / `rate`. Where that is wrong (a shaper's burst, TCP's
/// slow start) it is wrong in the same way for the next piece of that size, and pieces are made to end together by what
/// was measured, so that the error cancels where it counts.
#[derive(Debug)]
pub(super) struct Estimate {
    pub(super) flow: Flow,
    /// Bytes per nanosecond; an assumption until `known`.
    pub(super) rate: f64,
    /// Nanoseconds per byte, the inverse.
    pub(super) pace: f64,
    /// `true` if the rate was measured.
    pub(super) known: bool,
    /// Windows since the lane was proven, without those that began idle and ended with more under way: they show too
    /// little.
    windows: u32,
    /// The lane became slow within the last window, which mixes what it was with what it is.
    fell: bool,
    planned: Planned,
    /// Nanoseconds that a piece takes beside its own transfer; an assumption until `base_known`.
    pub(super) base: f64,
    pub(super) base_known: bool,
    pub(super) trial: LaneTrial,
    /// Time at which everything in flight should have arrived; `u64::MAX` when nothing is in flight.
    due: u64,
    window: Window,
    /// Pieces of middle size that found the lane empty.
    light: Sample,
}

/// The rate that plans were made with.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Planned(f64);

impl Planned {
    /// Returns `true` if a rate differs by so much that plans have to be made anew; the next comparison is then with
    /// this one.
    pub(super) fn changes_to(&mut self, rate: f64) -> bool {
        let differs = (rate - self.0).abs() > self.0 / REPLAN_PART;
        if differs {
            self.0 = rate;
        }
        differs
    }
}

/// A mean of pieces: bytes, and the time they took.
#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    count: u32,
    bytes: f64,
    took: f64,
}

impl Sample {
    fn add(&mut self, bytes: u64, took: f64) {
        self.count += 1;
        if self.count == 1 {
            (self.bytes, self.took) = (bytes as f64, took);
        } else {
            // A hiccup counts for little.
            let took = took.min(LIGHT_CLIP * self.took);
            self.bytes += (bytes as f64 - self.bytes) * LIGHT_GAIN;
            self.took += (took - self.took) * LIGHT_GAIN;
        }
    }
}

impl Estimate {
    /// A lane of which nothing is known but the rate that its local card claims, bytes per nanosecond.
    pub(super) fn new(rate: f64) -> Self {
        Self {
            flow: Flow::default(),
            rate,
            pace: 1.0 / rate,
            known: false,
            windows: 0,
            fell: false,
            planned: Planned(rate),
            base: 0.0,
            base_known: false,
            trial: LaneTrial::new(),
            due: u64::MAX,
            window: Window::default(),
            light: Sample::default(),
        }
    }

    /// A lane that has carried enough of large requests to be proven and measured, at a rate in bytes per nanosecond.
    #[cfg(test)]
    pub(super) fn measured(rate: f64) -> Self {
        let mut line = tests::Line::new(rate);
        line.carry(256 << 10, 4, 64, rate, 100_000);
        line.estimate
    }

    /// Returns the time that a piece takes if only the lane itself holds it up.
    pub(super) fn expects(&self, piece: &Piece) -> f64 {
        self.base + (piece.ahead + piece.len) as f64 * self.pace
    }

    /// Returns `true` if its base is not even a guess.
    pub(super) fn knows_no_base(&self) -> bool {
        !self.base_known && self.light.count == 0
    }

    /// Returns `true` if its rate is more than a first impression.
    pub(super) fn settled(&self) -> bool {
        self.trial.is_proven() && self.windows > 0
    }

    /// The lane comes back: what was known is a guess now, and it begins slowly.
    pub(super) fn returned(&mut self) {
        self.trial.returned();
        self.due = u64::MAX;
        self.window = Window::spoilt();
        self.light = Sample::default();
    }

    /// Assumes a rate while none is known.
    pub(super) fn assume(&mut self, rate: f64) {
        (self.rate, self.pace) = (rate, 1.0 / rate);
    }

    /// Nanoseconds that the lane is expected to lose because something in flight is late.
    pub(super) fn late(&self, now: u64) -> f64 {
        if now > self.due { LATE * (now - self.due) as f64 } else { 0.0 }
    }

    /// Something is about to be placed that should take `expected` nanoseconds; the flows are as they were before.
    pub(super) fn placed(&mut self, now: u64, expected: f64, around: Around<'_>) {
        if self.flow.in_flight == 0 {
            self.window = Window::open(now, true, &self.flow, around);
            self.due = 0;
        }
        self.due = self.due.max(now.saturating_add(expected as u64));
    }

    /// A piece is finished; the flows are without it already. True if plans have to change.
    pub(super) fn finished(&mut self, piece: &Piece, now: u64, ok: bool, around: Around<'_>) -> bool {
        let in_flight = self.flow.in_flight;
        if in_flight == 0 {
            self.due = u64::MAX;
        }
        if !ok {
            self.window.spoilt = true;
            return false;
        }
        let placed_at = piece.placed_at.as_nanos() as u64;
        let took = now.saturating_sub(placed_at) as f64;
        self.trial.answered(now);
        let timed = self.base_known;
        // Nothing came before it, and nothing while it was there.
        let alone = piece.alone
            && piece.ahead == 0
            && in_flight == 0
            && self.window.ios == 0
            && self.window.start == placed_at;
        self.time(piece, took, alone);
        let trusted = self.trust(piece, took) || timed != self.base_known;
        self.window.add(piece.len, in_flight);
        let elapsed = now.saturating_sub(self.window.start);
        if in_flight > 0 && !self.window.is_full(elapsed, self.pace) {
            return trusted;
        }
        let was = (self.known, self.settled());
        if self.trial.is_proven() && !(self.window.from_idle && in_flight > 0) {
            self.windows = self.windows.saturating_add(1);
        }
        self.measure(elapsed as f64, around);
        self.window = Window::open(now, in_flight == 0, &self.flow, around);
        self.planned.changes_to(self.rate) || trusted || was != (self.known, self.settled())
    }

    /// Learns the base latency. `alone`: nothing else was on the lane while the piece was.
    fn time(&mut self, piece: &Piece, took: f64, alone: bool) {
        // Nothing is faster than the base.
        self.base = self.base.min(took);
        if piece.len > SMALL_MAX {
            if alone && !self.base_known && took * RECOVERED < self.base + piece.len as f64 * self.pace {
                // The lane is better than it was: what was taken for latency was its rate then.
                self.light = Sample::default();
                self.base = 0.0;
            }
            if alone && (LOADING..=MIDDLE_MAX).contains(&piece.len) {
                self.light.add(piece.len, took);
                self.anchor();
            }
            return;
        }
        // What was before it may have waited with it, or have been on its way already.
        let most = (took - piece.len as f64 * self.pace).max(0.0);
        let least = (most - piece.wait).max(0.0);
        if !self.base_known {
            (self.base, self.base_known) = (least, true);
            return;
        }
        // A hiccup counts for little; a lasting change is learnt within some twenty.
        let seen = self.base.clamp(least, most).min(BASE_CLIP * self.base + BASE_CLIP_SLACK);
        let gain = if seen < self.base { BASE_FALL_GAIN } else { BASE_RISE_GAIN };
        self.base += (seen - self.base) * gain;
    }

    /// Without small requests the base is what is left of the time that a middle one takes on an empty lane.
    ///
    /// Which part of that time is latency and which is rate cannot be seen as long as the lane has one piece at a time.
    /// It is the same for those. When it has more at once and turns out to be faster, the base grows by as much.
    fn anchor(&mut self) {
        if !self.base_known && self.known && self.light.count > 0 {
            self.base = (self.light.took - self.light.bytes * self.pace).max(0.0);
        }
    }

    /// Trusts an unproven lane with more. True if it is proven by that.
    fn trust(&mut self, piece: &Piece, took: f64) -> bool {
        let expected = self.base + piece.wait + piece.len as f64 * self.pace;
        took <= IN_TIME * expected + HICCUP && self.trial.arrived_in_time(piece.len)
    }

    /// Learns the rate from the window that ends.
    fn measure(&mut self, elapsed: f64, around: Around<'_>) {
        let Some(seen) = self.window.seen(elapsed, self.base, self.flow.in_flight) else { return };
        // Less than was thought is believed only of a lane that had enough to do and that nothing else held up.
        if seen.rate < self.rate
            && !(seen.loading
                && self.window.was_busy(self.base * self.rate)
                && self.window.was_alone(elapsed, &self.flow, around))
        {
            return;
        }
        if !self.known && !seen.loading {
            return;
        }
        let (gain, fell) = self.gain(&seen);
        self.fell = fell;
        self.known = true;
        self.rate += (seen.rate - self.rate) * gain;
        self.pace = 1.0 / self.rate;
        self.anchor();
    }

    /// The part of a window's rate that the estimate takes over, and whether the lane became slow in this window.
    fn gain(&self, seen: &Seen) -> (f64, bool) {
        let gain = if !self.known {
            1.0
        } else if !self.trial.is_proven() && seen.loading {
            // What was seen of it was small and little.
            UNPROVEN_GAIN
        } else if seen.rate > self.rate && seen.ran_dry {
            RAN_DRY_GAIN
        } else if seen.rate > self.rate {
            // The first impression counts no more than each of the next ones.
            let alike = 1.0 / f64::from(self.windows.max(1));
            let faster = seen.rate > MUCH_FASTER * self.rate && seen.loading;
            alike.max(if faster { MUCH_FASTER_GAIN } else { STEADY_GAIN })
        } else if self.fell {
            1.0
        } else if seen.rate > MUCH_SLOWER * self.rate {
            STEADY_GAIN
        } else if seen.moving - seen.bytes * self.pace > HICCUP {
            return (1.0, true);
        } else {
            MUCH_SLOWER_GAIN
        };
        (gain, false)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::time::Duration;

    use super::super::port::PortEstimate;
    use super::super::request::Direction;
    use super::*;

    const GIGABIT: f64 = 0.125;
    const MILLI: u64 = 1_000_000;

    /// A lane with two ports of its own, and a clock.
    pub(super) struct Line {
        pub(super) estimate: Estimate,
        near: PortEstimate,
        far: PortEstimate,
        now: u64,
    }

    impl Line {
        /// Creates a line with an assumed rate.
        pub(super) fn new(rate: f64) -> Self {
            let port = || {
                let mut port = PortEstimate::default();
                port.set_bounds(rate, 10.0 * rate);
                port
            };
            Self { estimate: Estimate::new(rate), near: port(), far: port(), now: 0 }
        }

        fn place(&mut self, len: u64) -> Piece {
            let mut piece = Piece::new(0, Direction::Read, len, Duration::from_nanos(self.now));
            piece.ahead = self.estimate.flow.in_flight;
            piece.wait = piece.ahead as f64 * self.estimate.pace;
            piece.alone = self.near.flow.in_flight == piece.ahead;
            let around = Around { near: &self.near, far: &self.far };
            self.estimate.placed(self.now, self.estimate.expects(&piece), around);
            for flow in [&mut self.estimate.flow, &mut self.near.flow, &mut self.far.flow] {
                flow.place(len);
            }
            piece
        }

        fn finish(&mut self, piece: &Piece, ok: bool) -> bool {
            for flow in [&mut self.estimate.flow, &mut self.near.flow, &mut self.far.flow] {
                flow.finish(piece.len, ok);
            }
            let around = Around { near: &self.near, far: &self.far };
            self.estimate.finished(piece, self.now, ok, around)
        }

        /// So many pieces, `depth` at a time, over a wire of this rate and latency.
        pub(super) fn carry(&mut self, len: u64, depth: usize, pieces: usize, rate: f64, latency: u64) {
            let mut on_wire: VecDeque<(Piece, u64)> = VecDeque::new();
            let mut free_at = 0;
            for _ in 0..pieces {
                if on_wire.len() == depth {
                    self.arrive(&mut on_wire);
                }
                let piece = self.place(len);
                free_at = free_at.max(self.now + latency) + (len as f64 / rate) as u64;
                on_wire.push_back((piece, free_at));
            }
            while !on_wire.is_empty() {
                self.arrive(&mut on_wire);
            }
        }

        fn arrive(&mut self, on_wire: &mut VecDeque<(Piece, u64)>) {
            let (piece, end) = on_wire.pop_front().unwrap();
            self.now = end;
            self.finish(&piece, true);
        }

        /// The rate that is known, in parts of another.
        fn of(&self, rate: f64) -> f64 {
            assert!(self.estimate.known && self.estimate.pace == 1.0 / self.estimate.rate);
            self.estimate.rate / rate
        }
    }

    #[test]
    fn large_requests_show_the_rate_of_a_lane_whatever_was_assumed_of_it() {
        for (assumed, rate) in [(GIGABIT, GIGABIT / 10.0), (GIGABIT, GIGABIT), (GIGABIT / 10.0, GIGABIT)] {
            for depth in [1, 4] {
                let mut line = Line::new(assumed);
                line.carry(1 << 20, depth, 32, rate, 100_000);
                assert!((line.of(rate) - 1.0).abs() < 0.02, "{depth} deep at {rate}: {}", line.estimate.rate);
                assert!(line.estimate.settled());
            }
        }
    }

    #[test]
    fn small_requests_show_the_latency_of_a_lane_and_leave_its_rate_unknown() {
        let mut line = Line::new(GIGABIT);
        line.carry(4096, 1, 100, 10.0 * GIGABIT, 200_000);
        assert!(!line.estimate.known && line.estimate.base_known);
        let took = 200_000.0 + 4096.0 / (10.0 * GIGABIT);
        assert!((line.estimate.base - (took - 4096.0 / GIGABIT)).abs() < 2.0, "{}", line.estimate.base);
    }

    #[test]
    fn a_hiccup_moves_the_base_by_a_quarter_at_most_and_a_lasting_change_is_learnt() {
        let mut line = Line::new(GIGABIT);
        line.carry(4096, 1, 100, GIGABIT, 200_000);
        let before = line.estimate.base;
        line.carry(4096, 1, 1, GIGABIT, 50 * MILLI);
        assert!(line.estimate.base < 1.25 * before, "{before} {}", line.estimate.base);
        line.carry(4096, 1, 60, GIGABIT, 1_000_000);
        assert!((line.estimate.base / 1e6 - 1.0).abs() < 0.1, "{}", line.estimate.base);
        line.carry(4096, 1, 1, GIGABIT, 200_000);
        assert!(line.estimate.base <= 200_000.0 + 4096.0 / GIGABIT, "no request is faster than the base");
    }

    #[test]
    fn without_small_requests_the_base_is_what_a_middle_one_takes_beside_its_transfer() {
        let mut line = Line::new(GIGABIT);
        line.carry(1 << 20, 4, 16, GIGABIT, 2 * MILLI);
        line.carry(64 << 10, 1, 20, GIGABIT, 2 * MILLI);
        assert!(!line.estimate.base_known);
        let expected = line.estimate.base + f64::from(64 << 10) * line.estimate.pace;
        assert!((expected / (2e6 + f64::from(64 << 10) / GIGABIT) - 1.0).abs() < 0.02, "{expected}");
    }

    #[test]
    fn a_lane_that_becomes_slow_is_believed_within_two_windows() {
        let mut line = Line::new(GIGABIT);
        line.carry(1 << 20, 4, 64, GIGABIT, 100_000);
        line.carry(1 << 20, 1, 2, GIGABIT / 20.0, 100_000);
        assert!((line.of(GIGABIT / 20.0) - 1.0).abs() < 0.05, "{}", line.estimate.rate);
    }

    #[test]
    fn a_lane_that_others_hold_up_on_a_full_port_keeps_its_rate() {
        let mut line = Line::new(GIGABIT);
        line.carry(1 << 20, 4, 64, GIGABIT, 100_000);
        let before = line.estimate.rate;
        for _ in 0..32 {
            // Another lane has as much on the local port, which carries what one of them does.
            line.near.set_bounds(GIGABIT, GIGABIT);
            line.near.flow.place(1 << 20);
            line.carry(1 << 20, 1, 1, GIGABIT / 2.0, 100_000);
            line.near.flow.finish(1 << 20, true);
        }
        assert_eq!(line.estimate.rate, before);
    }

    #[test]
    fn a_window_with_a_failed_piece_tells_nothing() {
        let mut line = Line::new(GIGABIT);
        let pieces = [line.place(1 << 20), line.place(1 << 20)];
        line.now = MILLI;
        assert!(!line.finish(&pieces[0], false));
        line.finish(&pieces[1], true);
        assert!(!line.estimate.known);
    }

    #[test]
    fn a_lane_is_late_by_twice_the_time_since_everything_on_it_should_have_arrived() {
        let mut line = Line::new(GIGABIT);
        assert_eq!(line.estimate.late(u64::MAX), 0.0, "nothing is in flight");
        let piece = line.place(125_000);
        assert_eq!(line.estimate.late(MILLI), 0.0);
        assert_eq!(line.estimate.late(3 * MILLI), 4e6);
        line.now = 3 * MILLI;
        line.finish(&piece, true);
        assert_eq!(line.estimate.late(u64::MAX), 0.0);
    }

    #[test]
    fn a_lane_that_returns_keeps_its_rate_and_is_neither_trusted_nor_late() {
        let mut line = Line::new(GIGABIT);
        line.carry(1 << 20, 4, 64, GIGABIT, 100_000);
        line.place(1 << 20);
        let rate = line.estimate.rate;
        line.estimate.returned();
        assert!(line.estimate.trial.is_unseen() && !line.estimate.settled());
        assert_eq!((line.estimate.rate, line.estimate.late(u64::MAX)), (rate, 0.0));
    }

    #[test]
    fn plans_change_with_a_rate_that_differs_by_a_sixteenth() {
        let mut planned = Planned(1.6);
        assert!(!planned.changes_to(1.69) && !planned.changes_to(1.51));
        assert!(planned.changes_to(1.75) && !planned.changes_to(1.75));
    }
}
