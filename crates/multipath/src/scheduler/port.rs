//! Estimate of a port in one direction: its rate, from what its lanes bring together.

use super::LaneId;
use super::constants::{
    CONGESTED_PART, FREE_PART, LOADING, MOVING_PART, PORT_GAIN, PORT_GROWTH, PORT_LANE_QUARTERS,
    PORT_MEASURED_MIN, PORT_USED, PORT_WINDOW_BYTES, PORT_WINDOW_IOS, PORT_WINDOW_TIME, RAN_DRY_GAIN,
};
use super::estimate::Planned;
use super::explore::{PortTrial, Verdict};
use super::flow::Flow;

/// A port in one direction.
///
/// It carries at least what its best lane carries alone (`floor`). That it carries more is known only when several
/// lanes together brought more (`proven`), which a full port prevents by keeping lanes out of the team: hence
/// [`PortTrial`].
#[derive(Debug, Default)]
pub(super) struct PortEstimate {
    pub(super) flow: Flow,
    /// The rate that is reckoned with, bytes per nanosecond.
    pub(super) rate: f64,
    /// Nanoseconds per byte.
    pub(super) pace: f64,
    floor: f64,
    proven: f64,
    /// Combined rate of all its lanes if nothing holds them up.
    ceiling: f64,
    planned: Planned,
    window: Window,
    pub(super) trial: PortTrial,
}

#[derive(Debug, Default)]
struct Window {
    start: u64,
    /// The latency in its beginning, if it began with nothing in flight.
    latency: Option<f64>,
    bytes: u64,
    ios: u64,
    /// Bytes that took longer than their lane takes alone.
    held_up: u64,
    /// One of the lanes that brought the bytes; `of_lane` is its part.
    lane: LaneId,
    of_lane: u64,
}

impl PortEstimate {
    /// Sets what the best of its lanes carries, and all of them.
    pub(super) fn set_bounds(&mut self, floor: f64, ceiling: f64) {
        (self.floor, self.ceiling) = (floor, ceiling);
        self.settle();
    }

    /// Raises the lower bound: one of its lanes carries this rate alone.
    pub(super) fn raise_floor(&mut self, rate: f64) {
        if rate > self.floor {
            self.set_bounds(rate, self.ceiling.max(rate));
        }
    }

    fn settle(&mut self) {
        self.proven = self.proven.min(self.ceiling);
        self.rate = self.proven.max(self.floor);
        // While a lane is on trial the port is taken to have room for it.
        self.pace = 1.0 / (self.rate + self.trial.extra());
    }

    /// Lets a lane in for a trial that would add `extra`; see [`PortTrial::admit`].
    pub(super) fn admit(&mut self, lane: LaneId, extra: f64, now: u64) -> Result<(), Option<u64>> {
        let answer = self.trial.admit(lane, extra, now);
        self.settle();
        answer
    }

    /// Something is placed while nothing is in flight here; `latency` is the base of its lane.
    pub(super) fn begins(&mut self, now: u64, latency: f64) {
        self.window = Window { start: now, latency: Some(latency), ..Window::default() };
    }

    /// A piece has arrived, and the flow is without it already; it was `held_up` if it took longer than the lane takes
    /// alone. True if plans have to change.
    pub(super) fn arrived(&mut self, lane: LaneId, len: u64, held_up: bool, now: u64) -> bool {
        let window = &mut self.window;
        if window.bytes == 0 {
            window.lane = lane;
        }
        window.bytes += len;
        window.ios += 1;
        window.held_up += if held_up { len } else { 0 };
        if lane == window.lane {
            window.of_lane += len;
        }
        if self.trial.lane().is_some() {
            return self.observe(lane, len, held_up, now);
        }
        let elapsed = now.saturating_sub(window.start);
        let full =
            window.bytes >= PORT_WINDOW_BYTES && elapsed >= PORT_WINDOW_TIME && window.ios >= PORT_WINDOW_IOS;
        let left = self.flow.in_flight;
        if left > 0 && !full {
            return false;
        }
        let changed = self.measure(elapsed as f64, left);
        self.window = Window { start: now, ..Window::default() };
        changed
    }

    /// Learns the rate from the window that ends.
    fn measure(&mut self, elapsed: f64, left: u64) -> bool {
        let window = &self.window;
        let moving = elapsed - window.latency.unwrap_or(0.0);
        // One lane alone says nothing about the port.
        let several = window.of_lane <= window.bytes / 4 * PORT_LANE_QUARTERS;
        if !several || window.bytes < PORT_MEASURED_MIN || moving * MOVING_PART < elapsed {
            return false;
        }
        let seen = window.bytes as f64 / moving;
        if seen > self.rate {
            let gain = if window.latency.is_none() && left == 0 { RAN_DRY_GAIN } else { PORT_GAIN };
            self.proven = self.rate + (seen - self.rate) * gain;
        } else if window.bytes < LOADING * window.ios {
            // Small requests do not load it.
        } else if window.held_up * CONGESTED_PART > window.bytes {
            self.proven = self.rate + (seen - self.rate) * PORT_GAIN;
        } else if window.held_up * FREE_PART < window.bytes && seen > PORT_USED * self.rate {
            // It brought what was asked of it, and no request waited: it may carry more.
            self.proven = self.rate * PORT_GROWTH;
        }
        self.settle();
        self.planned.changes_to(self.rate)
    }

    /// A piece has arrived during a trial. True when the trial is over.
    fn observe(&mut self, lane: LaneId, len: u64, held_up: bool, now: u64) -> bool {
        let Some(verdict) = self.trial.observe(lane, len, held_up, self.rate, now) else { return false };
        if let Verdict::Room(extra) = verdict {
            self.proven = self.rate + extra;
        }
        self.settle();
        self.window = Window { start: now, ..Window::default() };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rate of a lane, bytes per nanosecond.
    const LANE: f64 = 0.1;
    const LEN: u64 = 256 << 10;

    /// A port with two lanes of which none has shown that it carries more than one of them.
    fn port() -> PortEstimate {
        let mut port = PortEstimate::default();
        port.set_bounds(LANE, 2.0 * LANE);
        port
    }

    /// Requests of these lanes by turns, `rate` together, always with something in flight. Returns the time.
    fn carry(port: &mut PortEstimate, lanes: &[LaneId], rate: f64, held_up: bool, from: u64) -> u64 {
        let mut now = from;
        port.flow.place(LEN);
        for number in 0..400 {
            port.flow.place(LEN);
            now += (LEN as f64 / rate) as u64;
            port.flow.finish(LEN, true);
            port.arrived(lanes[number % lanes.len()], LEN, held_up, now);
        }
        port.flow.finish(LEN, false);
        now
    }

    #[test]
    fn a_port_carries_what_its_best_lane_does_at_least_and_no_more_than_all_of_them_are_known_to() {
        let mut port = port();
        assert_eq!((port.rate, port.pace), (LANE, 1.0 / LANE));
        port.raise_floor(0.15);
        assert_eq!(port.rate, 0.15);
        carry(&mut port, &[0, 1], 0.5, true, 0);
        assert_eq!(port.rate, 0.2, "the sum of its lanes");
    }

    #[test]
    fn one_lane_alone_tells_nothing_of_its_port_and_several_tell_its_rate() {
        let mut port = port();
        let now = carry(&mut port, &[0], 0.18, true, 0);
        assert_eq!(port.rate, LANE);
        let now = carry(&mut port, &[0, 1], 0.18, true, now);
        assert!((port.rate / 0.18 - 1.0).abs() < 0.01, "{}", port.rate);
        carry(&mut port, &[0, 1], 0.14, true, now);
        assert!((port.rate / 0.14 - 1.0).abs() < 0.01, "it has become slower: {}", port.rate);
    }

    #[test]
    fn a_port_on_which_no_request_waits_may_carry_more() {
        let mut port = port();
        let now = carry(&mut port, &[0, 1], 0.15, true, 0);
        let before = port.rate;
        carry(&mut port, &[0, 1], 0.149, false, now);
        assert!(port.rate > 1.04 * before, "{before} {}", port.rate);
    }

    #[test]
    fn small_requests_do_not_lower_a_ports_rate() {
        let mut port = port();
        let mut now = carry(&mut port, &[0, 1], 0.18, true, 0);
        let before = port.rate;
        port.flow.place(4096);
        for number in 0..4000 {
            port.flow.place(4096);
            now += 400_000;
            port.flow.finish(4096, true);
            port.arrived(number % 2, 4096, true, now);
        }
        assert_eq!(port.rate, before);
    }

    #[test]
    fn a_port_has_room_for_a_lane_on_trial_and_keeps_it_if_it_carried_more() {
        for (rate, after) in [(0.2, 0.2), (0.1, 0.1)] {
            let mut port = port();
            port.admit(1, LANE, 0).unwrap();
            assert_eq!((port.trial.lane(), port.rate, port.pace), (Some(1), LANE, 1.0 / (2.0 * LANE)));
            carry(&mut port, &[0, 1], rate, true, 0);
            assert_eq!(port.trial.lane(), None);
            assert!((port.rate / after - 1.0).abs() < 0.01, "{rate}: {}", port.rate);
            assert_eq!(port.pace, 1.0 / port.rate);
        }
    }
}
