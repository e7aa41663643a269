//! A machine that exists on paper: devices with known service times, and a clock that only they move.

use std::cell::{Cell, RefCell};

/// Time, and numbers by chance, all the same for the same seed.
pub(crate) struct Machine {
    seconds: Cell<f64>,
    state: RefCell<u64>,
    /// How much slower everything is at a moment.
    pub(crate) slower: fn(seconds: f64) -> f64,
}

/// One I/O after the other, each taking its time.
#[derive(Clone, Copy)]
pub(crate) struct Device {
    /// Median service time, seconds.
    pub(crate) service: f64,
    /// Scatter of single I/Os: of the logarithm.
    pub(crate) scatter: f64,
    /// Scatter of whole runs: of the logarithm.
    pub(crate) run_scatter: f64,
    /// Stalls per I/O, and how long one lasts.
    pub(crate) stall: (f64, f64),
}

/// An ordinary device on an ordinary machine: each I/O differs by a fifth, each run by half a per cent, and each tenth
/// run has a stall that costs it three per cent.
pub(crate) const ORDINARY: Device =
    Device { service: 1e-3, scatter: 0.2, run_scatter: 0.005, stall: (1e-4, 0.03) };

/// A tide of five per cent in ten minutes.
pub(crate) fn tide(seconds: f64) -> f64 {
    1.0 + 0.05 * (seconds / 600.0 * std::f64::consts::TAU).sin()
}

impl Machine {
    pub(crate) fn new(seed: u64, slower: fn(f64) -> f64) -> Self {
        Self {
            seconds: Cell::new(0.0),
            state: RefCell::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            slower,
        }
    }

    fn uniform(&self) -> f64 {
        let mut state = self.state.borrow_mut();
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        ((*state >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    pub(crate) fn normal(&self) -> f64 {
        (-2.0 * self.uniform().ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos()
    }

    /// I/Os per second of a run of one second.
    pub(crate) fn run(&self, device: Device) -> f64 {
        let start = self.seconds.get();
        let pace = device.service * (device.run_scatter * self.normal()).exp();
        let mut ios = 0.0;
        while self.seconds.get() < start + 1.0 {
            let mut time = pace * (self.slower)(self.seconds.get()) * (device.scatter * self.normal()).exp();
            if self.uniform() < device.stall.0 {
                time += device.stall.1;
            }
            self.seconds.set(self.seconds.get() + time);
            ios += 1.0;
        }
        ios / (self.seconds.get() - start)
    }
}

impl Device {
    /// The same with other service times.
    pub(crate) fn slower_by(self, percent: f64) -> Self {
        Self {
            service: self.service * (1.0 + percent / 100.0),
            stall: (self.stall.0, self.stall.1 * (1.0 + percent / 100.0)),
            ..self
        }
    }
}
