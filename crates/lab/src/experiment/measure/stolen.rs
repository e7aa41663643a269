//! Measurements during which the hypervisor gave the processor to somebody else.

use std::time::Duration;

use crate::experiment::measure::run_error::RunError;
use crate::experiment::measure::storage::Measured;

/// Maximum number of attempts per measurement.
const TRIES: u32 = 4;

/// Makes measurements again that a neighbour on the same hardware [disturbed](crate::CpuUse::is_disturbed), and keeps
/// the one of which least was taken.
#[derive(Debug)]
pub(crate) struct Retakes {
    /// Time left for all retakes together.
    left: Duration,
    measured: u32,
    /// Of these so much was taken in spite of all.
    disturbed: u32,
    most: f64,
}

impl Retakes {
    pub(crate) fn new(budget: Duration) -> Self {
        Self { left: budget, measured: 0, disturbed: 0, most: 0.0 }
    }

    /// Measures, each time for about `time`, until it is undisturbed, or tries or time are used up.
    pub(crate) fn measure(
        &mut self,
        time: Duration,
        mut measure: impl FnMut() -> Result<Measured, RunError>,
    ) -> Result<Measured, RunError> {
        let mut best = measure()?;
        for _ in 1..TRIES {
            let cancelled = best.iter().any(|(_, sample)| sample.partial);
            if !is_disturbed(&best) || time > self.left || cancelled {
                break;
            }
            self.left -= time;
            let again = measure()?;
            if taken(&again) < taken(&best) {
                best = again;
            }
        }
        self.measured += 1;
        self.disturbed += u32::from(is_disturbed(&best));
        self.most = self.most.max(taken(&best));
        Ok(best)
    }

    /// Returns the note that a reader must know.
    pub(crate) fn note(&self) -> Option<String> {
        (self.disturbed > 0).then(|| {
            format!(
                "The hypervisor took part of the processor, up to {:.0} %, during {} of {} measurements, also when they were made again: they \
                 may be too low.",
                self.most * 100.0,
                self.disturbed,
                self.measured
            )
        })
    }
}

fn taken(measured: &Measured) -> f64 {
    measured.iter().map(|(_, sample)| sample.cpu.steal).fold(0.0, f64::max)
}

fn is_disturbed(measured: &Measured) -> bool {
    measured.iter().any(|(_, sample)| sample.cpu.is_disturbed())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CpuUse;
    use crate::experiment::result::results::Sample;

    /// Measures with these shares taken, one after the other; what was kept, and how often it measured.
    fn kept(retakes: &mut Retakes, shares: &[f64]) -> (f64, usize) {
        let mut at = 0;
        let measured = retakes.measure(Duration::from_secs(1), || {
            let cpu = CpuUse { steal: shares[at], ..CpuUse::default() };
            at += 1;
            Ok(vec![("read", Sample { cpu, ..Sample::default() })])
        });
        (taken(&measured.unwrap()), at)
    }

    #[test]
    fn what_was_disturbed_is_measured_again_and_the_quietest_is_kept() {
        let mut retakes = Retakes::new(Duration::from_secs(4));
        assert_eq!(kept(&mut retakes, &[0.01]), (0.01, 1));
        assert_eq!(kept(&mut retakes, &[0.3, 0.0]), (0.0, 2));
        assert_eq!(retakes.note(), None);
        assert_eq!(kept(&mut retakes, &[0.3, 0.1, 0.2, 0.4]), (0.1, 4));
        let note = retakes.note().unwrap();
        assert!(note.contains("up to 10 %") && note.contains("1 of 3"), "{note}");
        // The time for it is used up.
        assert_eq!(kept(&mut retakes, &[0.3, 0.0]), (0.3, 1));
    }
}
