//! What a lane is good for in one direction, from what it did.

use super::constants::{
    ALLOWANCE_FIRST, ALLOWANCE_LAST, ALONE_PART, BASE_CLIP, BASE_CLIP_SLACK, BASE_FALL_GAIN, BASE_RISE_GAIN,
    HICCUP, IN_TIME, LATE, LIGHT_CLIP, LIGHT_GAIN, LOADING, MEASURED_MIN, MIDDLE_MAX, MOVING_PART,
    MUCH_FASTER, MUCH_FASTER_GAIN, MUCH_SLOWER, MUCH_SLOWER_GAIN, PORT_ROOM, RAN_DRY_GAIN, RECOVERED,
    REPLAN_PART, ROUND_IOS, ROUND_LATE, SMALL_MAX, STEADY_GAIN, UNPROVEN_GAIN, WINDOW_BYTES, WINDOW_TIME,
};
use super::load::Flow;
use super::request::Piece;

/// A lane in one direction: rate, base latency, and what it may be trusted with.
///
/// The model is: a piece takes `base` + (bytes before it + its own) / `rate`. Where that is wrong (a shaper's burst,
/// TCP's slow start) it is wrong in the same way for the next piece of that size, and pieces are made to end together
/// by what was measured, so that the error cancels where it counts.
#[derive(Debug)]
pub(super) struct Estimate {
    /// Bytes per nanosecond; an assumption until `known`.
    pub(super) rate: f64,
    /// Nanoseconds per byte, the same thing.
    pub(super) pace: f64,
    /// Whether the rate was measured.
    pub(super) known: bool,
    /// Windows since the lane was proven, without those that began idle and ended with more under way: they show too
    /// little.
    windows: u32,
    /// The lane became slow within the last window, which tells of both what it was and what it is.
    fell: bool,
    /// The rate that plans were made with.
    planned: f64,
    /// Nanoseconds that a piece takes beside its own transfer; an assumption until `base_known`.
    pub(super) base: f64,
    pub(super) base_known: bool,
    /// What may be in flight; `u64::MAX` when proven.
    pub(super) cap: u64,
    /// When everything in flight should have arrived; `u64::MAX` when nothing is.
    due: u64,
    /// When it last showed anything; 0: never, or not since it came back.
    pub(super) sampled_at: u64,
    window: Window,
    /// Pieces of middle size that found the lane empty.
    light: Sample,
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

/// What a busy lane did since it was last measured.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    start: u64,
    bytes: u64,
    ios: u64,
    /// The least that was in flight in it.
    least: u64,
    /// What was in flight when the first of it arrived, bytes.
    round: u64,
    /// It began with the lane idle, so the first latency is in it.
    from_idle: bool,
    /// Others had something on its ports when it began.
    shared: bool,
    /// A piece failed in it.
    spoilt: bool,
    near: Mark,
    far: Mark,
}

/// Where a port's counters stood at the beginning of a window.
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    placed_elsewhere: u64,
    moved: u64,
}

/// The flows that a lane's bytes are in, and what its ports are taken to carry.
#[derive(Clone, Copy)]
pub(super) struct Surroundings<'a> {
    pub(super) lane: &'a Flow,
    pub(super) near: &'a Flow,
    pub(super) far: &'a Flow,
    pub(super) near_rate: f64,
    pub(super) far_rate: f64,
}

impl Estimate {
    /// Nothing is known but what the local card claims, bytes per nanosecond.
    pub(super) fn new(rate: f64) -> Self {
        Self {
            rate,
            pace: 1.0 / rate,
            known: false,
            windows: 0,
            fell: false,
            planned: rate,
            base: 0.0,
            base_known: false,
            cap: ALLOWANCE_FIRST,
            due: u64::MAX,
            sampled_at: 0,
            window: Window::default(),
            light: Sample::default(),
        }
    }

    /// How long a piece takes if nothing but the lane itself holds it up.
    pub(super) fn expects(&self, piece: &Piece) -> f64 {
        self.base + (piece.ahead + piece.len) as f64 * self.pace
    }

    /// Whether its base is not even a guess.
    pub(super) fn knows_no_base(&self) -> bool {
        !self.base_known && self.light.count == 0
    }

    /// Whether it may have everything that it is good for.
    pub(super) fn proven(&self) -> bool {
        self.cap == u64::MAX
    }

    /// Whether its rate is more than a first impression.
    pub(super) fn settled(&self) -> bool {
        self.proven() && self.windows > 0
    }

    /// It comes back: what was known is a guess now, and it begins slowly.
    pub(super) fn returned(&mut self) {
        self.cap = ALLOWANCE_FIRST;
        self.sampled_at = 0;
        self.due = u64::MAX;
        self.window = Window { spoilt: true, ..Window::default() };
        self.light = Sample::default();
    }

    /// Assumes a rate while none is known.
    pub(super) fn assume(&mut self, rate: f64) {
        (self.rate, self.pace) = (rate, 1.0 / rate);
    }

    /// Nanoseconds by which what is in flight is late, doubled: what is late by so much is expected to take as long
    /// again.
    pub(super) fn late(&self, now: u64) -> f64 {
        if now > self.due { LATE * (now - self.due) as f64 } else { 0.0 }
    }

    /// Something is placed: `around` is as it was before. `expected` is how long it should take.
    pub(super) fn placed(&mut self, d: usize, now: u64, expected: f64, around: Surroundings<'_>) {
        if around.lane.bytes[d] == 0 {
            self.window = Window::open(d, now, true, around);
            self.due = 0;
        }
        self.due = self.due.max(now.saturating_add(expected as u64));
    }

    /// A piece is finished: `around` is as it is without it. True if the rate or the trust has changed so that plans
    /// have to.
    pub(super) fn finished(
        &mut self,
        piece: &Piece,
        d: usize,
        now: u64,
        ok: bool,
        around: Surroundings<'_>,
    ) -> bool {
        let in_flight = around.lane.bytes[d];
        if in_flight == 0 {
            self.due = u64::MAX;
        }
        if !ok {
            self.window.spoilt = true;
            return false;
        }
        let took = now.saturating_sub(piece.placed_at.as_nanos() as u64) as f64;
        self.sampled_at = now.max(1);
        let timed = self.base_known;
        // Nothing came before it, and nothing while it was there.
        let alone = piece.alone
            && piece.ahead == 0
            && in_flight == 0
            && self.window.ios == 0
            && self.window.start == piece.placed_at.as_nanos() as u64;
        self.time(piece, took, alone);
        let trusted = self.trust(piece, took) || timed != self.base_known;
        if self.window.ios == 0 {
            self.window.round = in_flight + piece.len;
        }
        self.window.bytes += piece.len;
        self.window.ios += 1;
        self.window.least = self.window.least.min(in_flight + piece.len);
        let elapsed = now.saturating_sub(self.window.start);
        let full = self.window.is_full(elapsed, self.pace);
        if in_flight > 0 && !full {
            return trusted;
        }
        let was = (self.known, self.settled());
        if self.proven() && !(self.window.from_idle && in_flight > 0) {
            self.windows = self.windows.saturating_add(1);
        }
        self.measure(d, elapsed as f64, around);
        self.window = Window::open(d, now, in_flight == 0, around);
        let differs = (self.rate - self.planned).abs() > self.planned / REPLAN_PART;
        if differs {
            self.planned = self.rate;
        }
        trusted || was != (self.known, self.settled()) || differs
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
        // A hiccup counts for little; what stays is learnt within some twenty.
        let seen = self.base.clamp(least, most).min(BASE_CLIP * self.base + BASE_CLIP_SLACK);
        self.base += (seen - self.base) * if seen < self.base { BASE_FALL_GAIN } else { BASE_RISE_GAIN };
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

    /// Lets an unproven lane have more.
    fn trust(&mut self, piece: &Piece, took: f64) -> bool {
        if self.proven() || took > IN_TIME * (self.base + piece.wait + piece.len as f64 * self.pace) + HICCUP
        {
            return false;
        }
        self.cap += piece.len;
        if self.cap >= ALLOWANCE_LAST {
            self.cap = u64::MAX;
        }
        self.proven()
    }

    /// Learns the rate from the window that ends.
    fn measure(&mut self, d: usize, elapsed: f64, around: Surroundings<'_>) {
        let window = self.window;
        if window.spoilt || window.bytes < MEASURED_MIN {
            return;
        }
        let moving = if window.from_idle { elapsed - self.base } else { elapsed };
        if moving * MOVING_PART < elapsed || moving <= 0.0 {
            return;
        }
        let bytes = window.bytes as f64;
        let seen = bytes / moving;
        let ran_dry = !window.from_idle && around.lane.bytes[d] == 0;
        let loading = window.bytes >= window.ios * LOADING;
        // Less than was thought is believed only of a lane that was not held up, and of no lane that had too little to
        // do.
        if seen < self.rate && !(loading && self.busy() && self.alone(d, elapsed, around)) {
            return;
        }
        if !self.known && !loading {
            return;
        }
        let gain = if !self.known {
            1.0
        } else if !self.proven() && loading {
            // What was seen of it was small and little.
            UNPROVEN_GAIN
        } else if seen > self.rate && ran_dry {
            RAN_DRY_GAIN
        } else if seen > self.rate {
            // The first impression counts no more than each of the next ones.
            let alike = 1.0 / f64::from(self.windows.max(1));
            alike.max(if seen > MUCH_FASTER * self.rate && loading { MUCH_FASTER_GAIN } else { STEADY_GAIN })
        } else if self.fell {
            1.0
        } else if seen > MUCH_SLOWER * self.rate {
            STEADY_GAIN
        } else if moving - bytes * self.pace > HICCUP {
            1.0
        } else {
            MUCH_SLOWER_GAIN
        };
        self.fell = self.known && !self.fell && seen < self.rate && gain == 1.0;
        self.known = true;
        self.rate += (seen - self.rate) * gain;
        self.pace = 1.0 / self.rate;
        self.anchor();
    }

    /// Whether the lane had enough to do to show all that it can: more than fits between the ends of the wire.
    fn busy(&self) -> bool {
        let window = &self.window;
        window.from_idle && window.ios == 1 || window.least as f64 >= self.base * self.rate
    }

    /// Whether the lane itself was what limited it: nothing else was on its ports, or they had room.
    fn alone(&self, d: usize, elapsed: f64, around: Surroundings<'_>) -> bool {
        let window = &self.window;
        let elsewhere =
            |port: &Flow, mark: &Mark| port.placed[d] - around.lane.placed[d] - mark.placed_elsewhere;
        if !window.shared
            && elsewhere(around.near, &window.near).max(elsewhere(around.far, &window.far))
                <= window.bytes / ALONE_PART
        {
            return true;
        }
        // What the port may have moved at most: what arrived, and all that is still under way.
        let room = |port: &Flow, mark: &Mark, rate: f64| {
            let moved = port.moved[d] - mark.moved + (port.bytes[d] - around.lane.bytes[d]);
            (moved as f64) < PORT_ROOM * rate * elapsed
        };
        room(around.near, &window.near, around.near_rate) && room(around.far, &window.far, around.far_rate)
    }
}

impl Window {
    /// Whether it is enough to measure.
    ///
    /// It takes a round: as much as was in flight together. A target that asks for the data of several writes at once
    /// gets them side by side, and they end in lumps; what ends first tells of a rate that is none. When a round takes
    /// twice as long as it should the lane has become slow, and that is told by what there is.
    fn is_full(&self, elapsed: u64, pace: f64) -> bool {
        let enough = self.bytes >= WINDOW_BYTES && elapsed >= WINDOW_TIME;
        let round = self.bytes >= self.round || self.ios >= ROUND_IOS;
        enough && (round || elapsed as f64 > ROUND_LATE * self.round as f64 * pace + HICCUP)
    }

    fn open(d: usize, now: u64, from_idle: bool, around: Surroundings<'_>) -> Self {
        let mark = |port: &Flow| Mark {
            placed_elsewhere: port.placed[d] - around.lane.placed[d],
            moved: port.moved[d],
        };
        let own = around.lane.bytes[d];
        Self {
            start: now,
            least: u64::MAX,
            from_idle,
            shared: around.near.bytes[d] != own || around.far.bytes[d] != own,
            near: mark(around.near),
            far: mark(around.far),
            ..Self::default()
        }
    }
}
