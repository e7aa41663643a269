//! What a port carries in one direction.

use super::LaneId;

/// A busy port is measured over so much at least: bytes and nanoseconds.
const WINDOW: (u64, u64) = (1 << 20, 8_000_000);
/// Requests below this mean size do not load a port.
const LOADING: u64 = 32 << 10;
/// How many measurements decide a trial.
const TRIAL_WINDOWS: u32 = 2;
/// The time a trial has, nanoseconds.
const TRIAL_TIME: u64 = 2_000_000_000;
/// How long after a trial that found nothing the next one comes, at first and at most; it doubles.
const PATIENCE: (u64, u64) = (2_000_000_000, 64_000_000_000);

/// A port in one direction.
///
/// It carries at least what its best lane carries alone (`floor`). That it carries more is known only when several lanes together
/// brought more (`proven`). So where a full port keeps lanes out that could do more, one of them is let in now and then for a request or
/// two: a trial. It costs little where the port is full indeed, and where it is not the next trial follows at once.
#[derive(Debug, Default)]
pub(super) struct PortEstimate {
    /// What is reckoned with, bytes per nanosecond.
    pub(super) rate: f64,
    /// Nanoseconds per byte.
    pub(super) pace: f64,
    floor: f64,
    proven: f64,
    window: Window,
    trial: Option<Trial>,
    /// When the next trial may begin.
    pub(super) trial_at: u64,
    patience: u64,
}

#[derive(Debug, Default)]
struct Window {
    start: u64,
    /// Its beginning has a latency in it.
    latency: f64,
    bytes: u64,
    ios: u64,
    /// One of the lanes that brought them, and its part.
    lane: LaneId,
    of_lane: u64,
    of_trial: u64,
}

#[derive(Debug)]
struct Trial {
    lane: LaneId,
    /// What the lane would add.
    extra: f64,
    began: u64,
    windows: u32,
    seen: f64,
}

impl PortEstimate {
    /// Sets what the best of its lanes carries.
    pub(super) fn set_floor(&mut self, floor: f64) {
        self.floor = floor;
        self.settle();
    }

    fn settle(&mut self) {
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
        self.trial = Some(Trial { lane, extra, began: now, windows: 0, seen: 0.0 });
        self.settle();
    }

    /// Something is placed while nothing is in flight here; `latency` is the base of its lane.
    pub(super) fn begins(&mut self, now: u64, latency: f64) {
        self.window = Window { start: now, latency, ..Window::default() };
    }

    /// A piece has arrived, `left` bytes are still in flight. True if plans have to change.
    pub(super) fn arrived(&mut self, lane: LaneId, len: u64, left: u64, now: u64) -> bool {
        let window = &mut self.window;
        if window.bytes == 0 {
            window.lane = lane;
        }
        window.bytes += len;
        window.ios += 1;
        if lane == window.lane {
            window.of_lane += len;
        }
        if self.trial.as_ref().is_some_and(|trial| trial.lane == lane) {
            window.of_trial += len;
        }
        let elapsed = now.saturating_sub(window.start);
        if left > 0 && (window.bytes < WINDOW.0 || elapsed < WINDOW.1) {
            return false;
        }
        let changed = self.measure(now, elapsed as f64);
        self.window = Window { start: now, ..Window::default() };
        changed
    }

    fn measure(&mut self, now: u64, elapsed: f64) -> bool {
        let window = &self.window;
        let moving = elapsed - window.latency;
        // One lane alone says nothing about the port, and small requests do not load it.
        let several = window.of_lane <= window.bytes / 4 * 3;
        let of_trial = window.of_trial;
        let enough = window.bytes >= WINDOW.0 / 4 && moving * 2.0 > elapsed;
        let loading = enough && window.bytes >= LOADING * window.ios;
        let seen = window.bytes as f64 / moving;
        let bytes = window.bytes;
        if let Some(trial) = &mut self.trial {
            if loading && of_trial >= bytes / 8 {
                trial.windows += 1;
                trial.seen += seen;
            }
            if trial.windows >= TRIAL_WINDOWS || now.saturating_sub(trial.began) > TRIAL_TIME {
                self.conclude(now);
                return true;
            }
            return false;
        }
        // Small requests may show that it carries more, not that it carries less.
        if !several || !enough || !loading && seen < self.rate {
            return false;
        }
        let before = self.rate;
        self.proven = self.rate + (seen - self.rate) * 0.25;
        self.settle();
        (self.rate - before).abs() > before / 16.0
    }

    fn conclude(&mut self, now: u64) {
        let Some(trial) = self.trial.take() else { return };
        if trial.windows > 0 {
            let seen = trial.seen / f64::from(trial.windows);
            if seen > self.rate + 0.4 * trial.extra {
                self.proven = seen;
                self.settle();
                (self.patience, self.trial_at) = (0, now);
                return;
            }
        }
        self.settle();
        self.patience = (self.patience * 2).clamp(PATIENCE.0, PATIENCE.1);
        self.trial_at = now + self.patience;
    }
}
