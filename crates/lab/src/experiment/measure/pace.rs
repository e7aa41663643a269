//! Progress of an experiment.

use std::time::{Duration, Instant};

/// Progress of an experiment, for people who wait.
#[derive(Clone, Debug)]
pub struct Progress<'a> {
    /// The current step: `D read (2/3)`.
    pub doing: &'a str,
    /// Part of all, 0 to 1.
    pub fraction: f64,
    /// About how long the rest will take.
    pub left: Duration,
    /// I/Os and bytes per second now, while something is measured.
    pub rates: Option<(f64, f64)>,
}

/// Callback that receives the progress.
pub type Watcher<'a> = &'a mut (dyn FnMut(&Progress<'_>) + Send);

/// Adds up what steps take, and tells how far they are.
pub(crate) struct Pace<'a> {
    watcher: Watcher<'a>,
    total: Duration,
    done: Duration,
    doing: String,
    step: Duration,
    began: Instant,
}

impl<'a> Pace<'a> {
    pub(crate) fn new(total: Duration, watcher: Watcher<'a>) -> Self {
        let doing = String::new();
        Self { watcher, total, done: Duration::ZERO, doing, step: Duration::ZERO, began: Instant::now() }
    }

    /// The next step, and what it should take.
    pub(crate) fn begin(&mut self, doing: impl Into<String>, step: Duration) {
        self.done += self.step;
        self.doing = doing.into();
        self.step = step;
        self.began = Instant::now();
        self.tell(None);
    }

    /// More is to be done than was thought.
    pub(crate) fn add(&mut self, more: Duration) {
        self.total += more;
    }

    /// Somewhere in a step.
    pub(crate) fn tell(&mut self, rates: Option<(f64, f64)>) {
        // A step that takes longer than it should holds the rest up, and does not eat of it.
        let done = self.done + self.began.elapsed().min(self.step);
        let fraction = (done.as_secs_f64() / self.total.as_secs_f64().max(1e-9)).min(1.0);
        let left = self.total.saturating_sub(done);
        (self.watcher)(&Progress { doing: &self.doing, fraction, left, rates });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_add_up_to_all() {
        let mut seen = Vec::new();
        let mut watcher = |progress: &Progress<'_>| seen.push((progress.doing.to_owned(), progress.fraction));
        let mut pace = Pace::new(Duration::from_secs(4000), &mut watcher);
        pace.begin("first", Duration::from_secs(1000));
        pace.begin("second", Duration::from_secs(3000));
        pace.begin("third", Duration::ZERO);
        let (names, fractions): (Vec<_>, Vec<f64>) = seen.into_iter().unzip();
        assert_eq!(names, ["first", "second", "third"]);
        assert!(fractions[0] < 0.01 && (fractions[1] - 0.25).abs() < 0.01 && fractions[2] > 0.99);
    }
}
