//! A cable of a network that runs, and what can happen to it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::LabError;
use crate::line::Line;
use crate::namespace::Namespace;
use crate::rate::Rate;
use crate::tool::Tool;
use crate::topology::{Cable, End, Loss};

use super::plan;

/// A cable. Each method has done its work when it returns; what that took is some milliseconds.
#[derive(Debug)]
pub struct LiveCable {
    description: Cable,
    fabric: Namespace,
    shaped: [Shaped; 2],
    line: Option<Line>,
    /// Current state of the cable. Locked during a change, so that two changes do not mix.
    state: Mutex<State>,
}

/// A device that shapes what leaves it.
#[derive(Debug)]
pub(super) struct Shaped {
    pub(super) namespace: Namespace,
    pub(super) namespace_name: String,
    pub(super) device: String,
}

#[derive(Debug)]
struct State {
    rate: Option<Rate>,
    /// Correction of each direction's shaper, as a multiple of the rate, so that the actual rate is as configured.
    correction: [f64; 2],
    delay: Duration,
    loss: Loss,
}

impl LiveCable {
    pub(super) fn new(
        description: Cable,
        fabric: Namespace,
        shaped: [Shaped; 2],
        line: Option<Line>,
    ) -> Self {
        let state = State {
            rate: description.rate,
            correction: [1.0; 2],
            delay: description.delay.unwrap_or_default(),
            loss: description.loss.unwrap_or_default(),
        };
        Self { description, fabric, shaped, line, state: Mutex::new(state) }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.description.name
    }

    /// The description that the cable was built from.
    pub fn description(&self) -> &Cable {
        &self.description
    }

    /// The rate that it has now, where it has one.
    pub fn rate(&self) -> Option<Rate> {
        self.state().rate
    }

    /// Pulls it: both ends lose their carrier, and stay configured as they are.
    ///
    /// # Errors
    ///
    /// The kernel refused.
    pub fn pull(&self) -> Result<(), LabError> {
        let _held = self.state();
        self.set_carrier(false)
    }

    /// Plugs it in again. A black hole that it was stays one.
    ///
    /// # Errors
    ///
    /// The kernel refused.
    pub fn plug(&self) -> Result<(), LabError> {
        let _held = self.state();
        self.set_carrier(true)
    }

    /// From now on it swallows every frame, both ways, and neither end is told: the carrier stays.
    ///
    /// # Errors
    ///
    /// The kernel refused.
    pub fn black_hole(&self) -> Result<(), LabError> {
        let _held = self.state();
        self.set_passing(false)
    }

    /// No longer a black hole.
    ///
    /// # Errors
    ///
    /// The kernel refused.
    pub fn clear(&self) -> Result<(), LabError> {
        let _held = self.state();
        self.set_passing(true)
    }

    /// Changes the rate, both ways. Burst and queue follow where the description does not give them.
    ///
    /// # Errors
    ///
    /// The cable was built without a rate, or the kernel refused.
    pub fn set_rate(&self, rate: Rate) -> Result<(), LabError> {
        let mut state = self.state();
        if state.rate.is_none() {
            return Err(LabError::NoRate { cable: self.name().to_owned() });
        }
        let correction = state.correction;
        self.shape(rate, correction)?;
        state.rate = Some(rate);
        Ok(())
    }

    /// Current one-way delay of a frame.
    pub fn delay(&self) -> Duration {
        self.state().delay
    }

    /// Current share of frames that get lost, one way.
    pub fn loss(&self) -> Loss {
        self.state().loss
    }

    /// Changes how long a frame is under way, both ways. Frames that are under way keep their order.
    ///
    /// # Errors
    ///
    /// The cable was built without delay and loss.
    pub fn set_delay(&self, delay: Duration) -> Result<(), LabError> {
        let mut state = self.state();
        self.line("delay", "0s")?.set_delay(delay);
        state.delay = delay;
        Ok(())
    }

    /// Changes which share of frames gets lost, both ways.
    ///
    /// # Errors
    ///
    /// The cable was built without delay and loss.
    pub fn set_loss(&self, loss: Loss) -> Result<(), LabError> {
        let mut state = self.state();
        self.line("loss", "0%")?.set_loss(loss);
        state.loss = loss;
        Ok(())
    }

    fn line(&self, what: &'static str, none: &'static str) -> Result<&Line, LabError> {
        let cable = self.name();
        self.line.as_ref().ok_or_else(|| LabError::NotALine { cable: cable.to_owned(), what, none })
    }

    /// Makes it as it was built: plugged in, clear, at its first rate, delay and loss.
    ///
    /// # Errors
    ///
    /// The kernel refused.
    pub fn mend(&self) -> Result<(), LabError> {
        self.clear()?;
        self.plug()?;
        if let Some(rate) = self.description.rate {
            self.set_rate(rate)?;
        }
        if self.line.is_some() {
            self.set_delay(self.description.delay.unwrap_or_default())?;
            self.set_loss(self.description.loss.unwrap_or_default())?;
        }
        Ok(())
    }

    pub(super) fn fabric(&self) -> &Namespace {
        &self.fabric
    }

    /// Correction of a direction's shaper, as a multiple of the rate.
    pub(super) fn correction(&self, direction: usize) -> f64 {
        self.state().correction[direction]
    }

    /// Sets a direction's shaper to so many times the rate.
    pub(super) fn correct(&self, direction: usize, correction: f64) -> Result<(), LabError> {
        let mut state = self.state();
        let mut corrections = state.correction;
        corrections[direction] = correction;
        if let Some(rate) = state.rate {
            self.shape(rate, corrections)?;
        }
        state.correction = corrections;
        Ok(())
    }

    /// Does something while frames take no time and none is lost.
    pub(super) fn without_delay_and_loss<T>(
        &self,
        work: impl FnOnce() -> Result<T, LabError>,
    ) -> Result<T, LabError> {
        let Some(line) = &self.line else { return work() };
        line.set_delay(Duration::ZERO);
        line.set_loss(Loss::default());
        let done = work();
        let state = self.state();
        line.set_delay(state.delay);
        line.set_loss(state.loss);
        done
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shape(&self, rate: Rate, correction: [f64; 2]) -> Result<(), LabError> {
        for (shaped, correction) in self.shaped.iter().zip(correction) {
            let shaper = plan::shaper(&self.description, rate.times(correction));
            let line = format!("qdisc change dev {} {shaper}", shaped.device);
            Tool::Tc.batch(&shaped.namespace, &shaped.namespace_name, &[line])?;
        }
        Ok(())
    }

    /// Its ends in the fabric that stand across from a card, or are ports of switches on a cable between two.
    fn ports(&self) -> Vec<String> {
        let ends = &self.description.ends;
        let trunk = ends.iter().all(|end| matches!(end, End::Switch(_)));
        let there = |end: &usize| trunk || matches!(ends[*end], End::Card { .. });
        (0..2).filter(there).map(|end| plan::port(&self.description, end)).collect()
    }

    /// Sets the carrier at both ends from one process, so that they lose it within microseconds.
    fn set_carrier(&self, carrier: bool) -> Result<(), LabError> {
        if let Some(line) = &self.line {
            return line.set_pulled(!carrier).map_err(|source| LabError::Kernel {
                doing: format!("change the carrier of cable {}", self.name()),
                source,
            });
        }
        let state = if carrier { "up" } else { "down" };
        let lines: Vec<String> = self.ports().iter().map(|port| format!("link set {port} {state}")).collect();
        Tool::Ip.batch(&self.fabric, "the fabric", &lines)
    }

    /// A port outside of its bridge neither takes nor gives frames. One is enough: every cable has one that all frames
    /// pass. (A port that is disabled would do, but is enabled again behind our back when a carrier comes.)
    fn set_passing(&self, passing: bool) -> Result<(), LabError> {
        if let Some(line) = &self.line {
            line.set_black_hole(!passing);
            return Ok(());
        }
        let port = self.ports().into_iter().next().unwrap_or_default();
        let line = match passing {
            true => format!("link set {port} master {}", plan::bridge(&self.description)),
            false => format!("link set {port} nomaster"),
        };
        Tool::Ip.batch(&self.fabric, "the fabric", &[line])
    }
}
