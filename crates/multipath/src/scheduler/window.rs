//! Measurement window of a lane: what arrived since the last measurement, and what went on around it.

use super::constants::{
    ALONE_PART, HICCUP, LOADING, MEASURED_MIN, MOVING_PART, PORT_ROOM, ROUND_IOS, ROUND_LATE, WINDOW_BYTES,
    WINDOW_TIME,
};
use super::flow::Flow;
use super::port::PortEstimate;

/// The ports of a lane, as they are at an event.
#[derive(Clone, Copy)]
pub(super) struct Around<'a> {
    pub(super) near: &'a PortEstimate,
    pub(super) far: &'a PortEstimate,
}

/// Measurement window of a lane in one direction.
///
/// Opened when the lane begins to move something and when the window before ends; ended when the lane is idle or
/// [`is_full`](Self::is_full). A rate is believed as a lower bound always, as the lane's rate only if the lane had
/// enough to do ([`was_busy`](Self::was_busy)) and nothing else held it up ([`was_alone`](Self::was_alone)).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Window {
    pub(super) start: u64,
    pub(super) bytes: u64,
    pub(super) ios: u64,
    /// The least that was in flight in it.
    least: u64,
    /// Bytes in flight when its first piece arrived, that piece included.
    round: u64,
    /// Began with the lane idle, so that the first latency is in it.
    pub(super) from_idle: bool,
    /// Other lanes had something on its ports when it began.
    shared: bool,
    /// A piece failed in it.
    pub(super) spoilt: bool,
    near: Mark,
    far: Mark,
}

/// A port's counters at the beginning of a window.
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    placed_elsewhere: u64,
    arrived: u64,
}

/// Result of a window for its lane.
pub(super) struct Seen {
    /// Time in which data moved, nanoseconds.
    pub(super) moving: f64,
    pub(super) bytes: f64,
    /// Bytes per nanosecond.
    pub(super) rate: f64,
    /// Its requests were large enough to load the wire.
    pub(super) loading: bool,
    /// Began in the middle of a queue and ended with it.
    pub(super) ran_dry: bool,
}

impl Window {
    pub(super) fn open(now: u64, from_idle: bool, lane: &Flow, around: Around<'_>) -> Self {
        let mark = |port: &Flow| Mark { placed_elsewhere: port.placed - lane.placed, arrived: port.arrived };
        let busy = |port: &PortEstimate| port.flow.in_flight != lane.in_flight;
        Self {
            start: now,
            least: u64::MAX,
            from_idle,
            shared: busy(around.near) || busy(around.far),
            near: mark(&around.near.flow),
            far: mark(&around.far.flow),
            ..Self::default()
        }
    }

    /// A window that tells nothing, until the next one is opened.
    pub(super) fn spoilt() -> Self {
        Self { spoilt: true, ..Self::default() }
    }

    /// Adds a piece that arrived; `in_flight` is left on the lane.
    pub(super) fn add(&mut self, len: u64, in_flight: u64) {
        if self.ios == 0 {
            self.round = in_flight + len;
        }
        self.bytes += len;
        self.ios += 1;
        self.least = self.least.min(in_flight + len);
    }

    /// Returns `true` if it is enough to measure a lane that goes on.
    ///
    /// It takes a round: as much as was in flight together. A target that asks for the data of several writes at once
    /// gets them side by side, and they end in lumps: the first to end shows less than the rate, the last more. A round
    /// that takes far longer than it should is measured as it is, since the lane has become slow.
    pub(super) fn is_full(&self, elapsed: u64, pace: f64) -> bool {
        let enough = self.bytes >= WINDOW_BYTES && elapsed >= WINDOW_TIME;
        let round = self.bytes >= self.round || self.ios >= ROUND_IOS;
        enough && (round || elapsed as f64 > ROUND_LATE * self.round as f64 * pace + HICCUP)
    }

    /// Returns the result of the window, if any. `base`: the lane's latency, part of the window if it began idle.
    pub(super) fn seen(&self, elapsed: f64, base: f64, in_flight: u64) -> Option<Seen> {
        if self.spoilt || self.bytes < MEASURED_MIN {
            return None;
        }
        let moving = if self.from_idle { elapsed - base } else { elapsed };
        if moving * MOVING_PART < elapsed || moving <= 0.0 {
            return None;
        }
        let bytes = self.bytes as f64;
        Some(Seen {
            moving,
            bytes,
            rate: bytes / moving,
            loading: self.bytes >= self.ios * LOADING,
            ran_dry: !self.from_idle && in_flight == 0,
        })
    }

    /// Returns `true` if the lane had enough work to show its full rate: `product` bytes (its bandwidth-delay product)
    /// at any time, or one piece from its beginning to its end.
    pub(super) fn was_busy(&self, product: f64) -> bool {
        self.from_idle && self.ios == 1 || self.least as f64 >= product
    }

    /// Returns `true` if nothing but the lane itself held it up: other lanes placed next to nothing on its ports, or
    /// these had room.
    pub(super) fn was_alone(&self, elapsed: f64, lane: &Flow, around: Around<'_>) -> bool {
        let elsewhere =
            |port: &PortEstimate, mark: &Mark| port.flow.placed - lane.placed - mark.placed_elsewhere;
        let others = elsewhere(around.near, &self.near).max(elsewhere(around.far, &self.far));
        if !self.shared && others <= self.bytes / ALONE_PART {
            return true;
        }
        // The most that the port may have moved: what arrived, and all that others have under way.
        let room = |port: &PortEstimate, mark: &Mark| {
            let moved = port.flow.arrived - mark.arrived + (port.flow.in_flight - lane.in_flight);
            (moved as f64) < PORT_ROOM * port.rate * elapsed
        };
        room(around.near, &self.near) && room(around.far, &self.far)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One gigabit per second: nanoseconds per byte.
    const PACE: f64 = 8.0;

    /// A window of a lane alone on two ports that carry 0.125 bytes per nanosecond, and these ports.
    struct Setting {
        window: Window,
        lane: Flow,
        near: PortEstimate,
        far: PortEstimate,
    }

    impl Setting {
        fn new() -> Self {
            let port = || {
                let mut port = PortEstimate::default();
                port.set_bounds(1.0 / PACE, 1.0);
                port
            };
            let (lane, near, far) = (Flow::default(), port(), port());
            let window = Window::open(0, true, &lane, Around { near: &near, far: &far });
            Self { window, lane, near, far }
        }

        /// The lane moves this.
        fn moves(&mut self, len: u64) {
            for flow in [&mut self.lane, &mut self.near.flow, &mut self.far.flow] {
                flow.place(len);
                flow.finish(len, true);
            }
            self.window.add(len, 0);
        }

        fn was_alone(&self, elapsed: f64) -> bool {
            self.window.was_alone(elapsed, &self.lane, Around { near: &self.near, far: &self.far })
        }
    }

    #[test]
    fn a_window_is_full_after_256_kib_in_4_ms_and_a_round_of_what_was_in_flight() {
        let mut window = Setting::new().window;
        window.add(128 << 10, 384 << 10);
        window.add(128 << 10, 256 << 10);
        assert!(!window.is_full(5_000_000, PACE), "half a round");
        window.add(256 << 10, 0);
        assert!(window.is_full(5_000_000, PACE) && !window.is_full(3_000_000, PACE));
    }

    #[test]
    fn a_round_that_takes_twice_its_time_and_a_hiccup_is_measured_unfinished() {
        let mut window = Setting::new().window;
        window.add(256 << 10, 256 << 10);
        let expected = (512 << 10) * 8;
        assert!(!window.is_full(2 * expected + 8_000_000, PACE));
        assert!(window.is_full(2 * expected + 8_000_001, PACE));
    }

    #[test]
    fn a_window_shows_a_rate_without_the_latency_of_an_idle_lanes_first_piece() {
        let mut setting = Setting::new();
        setting.moves(125_000);
        let seen = setting.window.seen(1_200_000.0, 200_000.0, 0).unwrap();
        assert_eq!((seen.rate, seen.loading, seen.ran_dry), (0.125, true, false));
        assert!(setting.window.seen(1_200_000.0, 700_000.0, 0).is_none(), "most of it is latency");
        setting.window.spoilt = true;
        assert!(setting.window.seen(1_200_000.0, 200_000.0, 0).is_none());
    }

    #[test]
    fn a_lane_was_busy_if_its_wire_was_never_empty() {
        let mut window = Setting::new().window;
        window.add(64 << 10, 0);
        assert!(window.was_busy(1e9), "a piece from its beginning to its end");
        window.add(64 << 10, 64 << 10);
        assert!(window.was_busy(65_536.0) && !window.was_busy(65_537.0));
    }

    #[test]
    fn a_lane_was_alone_unless_others_placed_more_than_a_sixteenth_on_a_port_without_room() {
        let mut setting = Setting::new();
        setting.moves(1 << 20);
        let elapsed = 8.0 * f64::from(1 << 20);
        setting.near.flow.place(64 << 10);
        assert!(setting.was_alone(elapsed), "next to nothing");
        setting.near.flow.place(64 << 10);
        assert!(!setting.was_alone(elapsed), "its port was full");
        assert!(setting.was_alone(1.4 * elapsed), "its port had room");
    }
}
