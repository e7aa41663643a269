//! Options of the command line, and the experiment that they make of a file's.

use std::path::PathBuf;
use std::time::Duration;

use crate::experiment::Experiment;
use crate::experiment::measure::run_error::RunError;
use crate::experiment::plan::run::{Moment, RunWork};
use crate::rate::Rate;

/// Options for running an experiment.
#[derive(Clone, Debug)]
pub struct Options {
    /// The rate of the fastest cable, in place of the file's; the others keep their proportion to it. Where none is
    /// given and the processor does not carry the file's rates, lower ones are taken, and a note says so.
    pub rate: Option<Rate>,
    /// Duration of each measurement, in place of the file's.
    pub time: Option<Duration>,
    /// Number of repeats of each measurement, in place of the file's.
    pub repeat: Option<u32>,
    /// The program that serves: `lunway`.
    pub program: PathBuf,
}

impl Experiment {
    /// Returns the experiment with the options of the command line applied.
    ///
    /// # Errors
    ///
    /// A rate, where no cable has one.
    pub fn changed(&self, options: &Options) -> Result<Self, RunError> {
        let mut changed = self.clone();
        if let Some(repeat) = options.repeat {
            changed.repeat = repeat;
        }
        if let Some(rate) = options.rate {
            let fastest = self.topology.cables.iter().filter_map(|cable| cable.rate).max();
            let fastest = fastest.ok_or_else(|| RunError::NoRates(self.name.clone()))?;
            let factor = rate.bits_per_second() as f64 / fastest.bits_per_second() as f64;
            changed.topology = self.topology.scaled(factor);
        }
        if let Some(time) = options.time {
            for run in &mut changed.runs {
                run.measure.take(time);
            }
        }
        Ok(changed)
    }
}

impl RunWork {
    /// Takes that long, instead of what its file says; what happens meanwhile moves in proportion.
    fn take(&mut self, time: Duration) {
        match self {
            Self::Storage(storage) => {
                for event in &mut storage.events {
                    let at = event.at.within(storage.time, storage.time);
                    event.at = Moment::Share(at.as_secs_f64() / storage.time.as_secs_f64());
                }
                storage.ramp = storage.ramp.min(time);
                storage.time = time;
            }
            Self::Wire(wire) => wire.time = time,
            Self::Compare(comparing) => comparing.time = time,
            // It takes as long as it takes.
            Self::Backup(_) => {}
        }
    }
}
