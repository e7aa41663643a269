//! Our own score over the rows of the `anvil` profile.
//!
//! It is **not** the score of the tool that the profile is named after, whose formula was never published. Ours is: a
//! row's IOPS over the reference's, the geometric mean over the rows of a direction, times 1000. The total is the
//! geometric mean of both directions. A device twice as fast in every row scores twice as much, and which reference is
//! taken changes no ratio between two devices.

use std::fmt;

use lunway_stats::geometric_mean;
use serde_json::{Value, json};

use crate::measure::outcome::Outcome;

/// Name of [`REFERENCE`]; a changed table gets another name, and scores of different tables do not compare.
pub const REFERENCE_VERSION: &str = "lunway-1";

/// Reference results that score 1000: row and IOPS. A published measurement of a disk-based NAS over iSCSI with
/// 512-byte sectors, chosen because it has all ten rows.
pub const REFERENCE: [(&str, f64); 10] = [
    ("read seq 4 MiB", 417.45),
    ("read 4K", 3001.56),
    ("read 4K QD4", 6021.45),
    ("read 4K QD16", 24228.16),
    ("read 32K", 2742.39),
    ("read 128K", 2628.86),
    ("write seq 4 MiB", 233.20),
    ("write 4K", 2090.79),
    ("write 4K QD4", 5976.18),
    ("write 4K QD16", 8254.84),
];

/// Scores of one run of the profile.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Score {
    /// Over the read rows; `None` unless all are there and worked.
    pub read: Option<f64>,
    /// Over the write rows; `None` unless all are there and worked.
    pub write: Option<f64>,
}

impl Score {
    /// Of the outcomes that carry the names of [`REFERENCE`]; others are ignored.
    pub fn of(outcomes: &[Outcome]) -> Self {
        Self::of_iops(|name| {
            let outcome = outcomes.iter().find(|outcome| outcome.job.name == name)?;
            let figures = if outcome.job.mix.reads() { &outcome.read } else { &outcome.write };
            Some(figures.iops())
        })
    }

    fn of_iops(iops: impl Fn(&str) -> Option<f64>) -> Self {
        let direction = |prefix: &str| {
            let ratios = REFERENCE.iter().filter(|(name, _)| name.starts_with(prefix));
            let ratios: Option<Vec<f64>> = ratios
                .map(|&(name, reference)| {
                    iops(name).map(|iops| iops / reference).filter(|&ratio| ratio > 0.0)
                })
                .collect();
            Some(1000.0 * geometric_mean(&ratios?)?)
        };
        Self { read: direction("read"), write: direction("write") }
    }

    /// Over both directions; `None` unless both are there.
    pub fn total(&self) -> Option<f64> {
        geometric_mean(&[self.read?, self.write?])
    }

    /// The three figures and the reference's name; null where one is not known.
    pub(crate) fn to_json(self) -> Value {
        json!({ "reference": REFERENCE_VERSION, "read": self.read, "write": self.write, "total": self.total() })
    }
}

impl fmt::Display for Score {
    /// Writes the scores that are known, on one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [("read", self.read), ("write", self.write), ("total", self.total())];
        let known = parts.iter().filter_map(|(name, value)| Some(format!("{name} {:.0}", (*value)?)));
        let known = known.collect::<Vec<_>>().join(", ");
        write!(f, "Score: {known} (1000 is a published NAS with disks; {REFERENCE_VERSION}).")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reference(name: &str) -> f64 {
        REFERENCE.iter().find(|(row, _)| *row == name).unwrap().1
    }

    #[test]
    fn the_reference_scores_1000_and_twice_as_fast_scores_2000() {
        for factor in [1.0, 2.0] {
            let score = Score::of_iops(|name| Some(reference(name) * factor));
            for value in [score.read, score.write, score.total()] {
                assert!((value.unwrap() - 1000.0 * factor).abs() < 1e-6);
            }
        }
    }

    #[test]
    fn a_missing_or_dead_row_gives_no_score_for_its_direction() {
        let missing = Score::of_iops(|name| name.starts_with("read").then(|| reference(name)));
        assert!(missing.read.is_some() && missing.write.is_none() && missing.total().is_none());
        let dead = Score::of_iops(|name| Some(if name == "read 32K" { 0.0 } else { 1.0 }));
        assert!(dead.read.is_none() && dead.write.is_some());
    }
}
