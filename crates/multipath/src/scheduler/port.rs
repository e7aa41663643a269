//! Estimate of a port in one direction: its rate, from what its lanes bring together.

use super::LaneId;
use super::constants::{
    CONGESTED_PART, FREE_PART, LOADING, MOVING_PART, PORT_GAIN, PORT_GROWTH, PORT_LANE_QUARTERS,
    PORT_MEASURED_MIN, PORT_PATIENCE_GROWTH, PORT_PATIENCE_MAX, PORT_PATIENCE_MIN, PORT_TRIAL_IOS,
    PORT_TRIAL_MORE, PORT_TRIAL_OWN_IOS, PORT_TRIAL_PART, PORT_TRIAL_TIME, PORT_TRIAL_TIME_MAX, PORT_USED,
    PORT_WINDOW_BYTES, PORT_WINDOW_IOS, PORT_WINDOW_TIME, RAN_DRY_GAIN,
};
use super::estimate::Planned;
use super::flow::Flow;

/// A port in one direction.
///
/// It carries at least what its best lane carries alone (`floor`). That it carries more is known only when several
/// lanes together brought more (`proven`). So where a full port keeps lanes out that could do more, one of them is let
/// in now and then for a request or two: a trial. It costs little where the port is full indeed, and where it is not
/// the next trial follows at once.
#[derive(Debug, Default)]
pub(super) struct PortEstimate {
    pub(super) flow: Flow,
    /// The rate that is reckoned with, bytes per nanosecond.
    pub(super) rate: f64,
    /// Nanoseconds per byte.
    pub(super) pace: f64,
    floor: f64,
    proven: f64,
    /// What all its lanes carry together if nothing holds them up.
    ceiling: f64,
    planned: Planned,
    window: Window,
    trial: Option<Trial>,
    /// When the next trial may begin.
    pub(super) trial_at: u64,
    patience: u64,
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
    /// One of the lanes that brought them, and its part.
    lane: LaneId,
    of_lane: u64,
}

/// A lane that is let in although the port seems full, and what the port carried since the lane's first request ended.
#[derive(Debug)]
struct Trial {
    lane: LaneId,
    /// What the lane would add.
    extra: f64,
    began: u64,
    since: u64,
    /// Requests of the lane, and of all.
    count: u32,
    ios: u32,
    held_up: u64,
    of_lane: u64,
    bytes: u64,
}

impl PortEstimate {
    /// Sets what the best of its lanes carries, and all of them.
    pub(super) fn set_bounds(&mut self, floor: f64, ceiling: f64) {
        (self.floor, self.ceiling) = (floor, ceiling);
        self.settle();
    }

    /// One of its lanes carries this alone.
    pub(super) fn raise_floor(&mut self, rate: f64) {
        if rate > self.floor {
            self.set_bounds(rate, self.ceiling.max(rate));
        }
    }

    fn settle(&mut self) {
        self.proven = self.proven.min(self.ceiling);
        self.rate = self.proven.max(self.floor);
        // While a lane is on trial the port is taken to have room for it.
        self.pace = 1.0 / (self.rate + self.trial.as_ref().map_or(0.0, |trial| trial.extra));
    }

    /// The lane that is let in although the port seems to be full.
    pub(super) fn on_trial(&self) -> Option<LaneId> {
        self.trial.as_ref().map(|trial| trial.lane)
    }

    /// Begins a trial.
    pub(super) fn try_lane(&mut self, lane: LaneId, extra: f64, now: u64) {
        self.trial = Some(Trial {
            lane,
            extra,
            began: now,
            since: 0,
            count: 0,
            ios: 0,
            held_up: 0,
            of_lane: 0,
            bytes: 0,
        });
        self.settle();
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
        if self.trial.is_some() {
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
            // It brought what was asked of it, and nobody had to wait: it may be good for more.
            self.proven = self.rate * PORT_GROWTH;
        }
        self.settle();
        self.planned.changes_to(self.rate)
    }

    /// A piece has arrived during a trial. True when the trial is over.
    fn observe(&mut self, lane: LaneId, len: u64, held_up: bool, now: u64) -> bool {
        let Some(trial) = &mut self.trial else { return false };
        let own = lane == trial.lane;
        if trial.since == 0 {
            // It begins when the first of the lane's requests has ended, and does not count what came before.
            if own {
                trial.since = now;
            }
        } else {
            trial.bytes += len;
            trial.ios += 1;
            trial.held_up += if held_up { len } else { 0 };
            trial.count += u32::from(own);
            trial.of_lane += if own { len } else { 0 };
        }
        let elapsed = now.saturating_sub(trial.since);
        let late = now.saturating_sub(trial.began) > PORT_TRIAL_TIME_MAX;
        let enough = own
            && trial.count >= PORT_TRIAL_OWN_IOS
            && elapsed >= PORT_TRIAL_TIME
            && trial.ios >= PORT_TRIAL_IOS;
        if !late && !enough {
            return false;
        }
        if !late && trial.of_lane < trial.bytes / PORT_TRIAL_PART {
            // The lane is not trusted with enough yet to be told from noise.
            (trial.since, trial.count, trial.ios) = (now, 0, 0);
            (trial.held_up, trial.of_lane, trial.bytes) = (0, 0, 0);
            return false;
        }
        let seen = trial.bytes as f64 / elapsed.max(1) as f64;
        let brought = trial.of_lane as f64 / elapsed.max(1) as f64;
        // A full port carries as much as before: what the lane brings the others lose, and wait for.
        let nobody_waits = trial.held_up * FREE_PART < trial.bytes;
        let more = trial.count > 0 && (nobody_waits || seen - self.rate > PORT_TRIAL_MORE * brought);
        let extra = trial.extra;
        self.trial = None;
        if more {
            // The lane may have had little yet: what it could bring is taken for granted until it is measured.
            self.proven = self.rate + extra;
            (self.patience, self.trial_at) = (0, now);
        } else {
            self.patience =
                (self.patience * PORT_PATIENCE_GROWTH).clamp(PORT_PATIENCE_MIN, PORT_PATIENCE_MAX);
            self.trial_at = now + self.patience;
        }
        self.settle();
        self.window = Window { start: now, ..Window::default() };
        true
    }
}
