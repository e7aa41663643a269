//! Figures of a comparison, by row, arm and block.

use super::decide::Pairs;
use super::plan::Arm;

/// All figures, in the order in which they were measured.
#[derive(Clone, Debug)]
pub struct Runs {
    /// `[row][arm][block]`, the control's second run behind the candidates; NaN where a run gave no figure.
    figures: Vec<Vec<Vec<f64>>>,
}

impl Runs {
    pub(super) fn new(rows: usize, arms: usize) -> Self {
        Self { figures: vec![vec![Vec::new(); arms + 1]; rows] }
    }

    pub(super) fn add(&mut self, row: usize, arm: Arm, figure: f64) {
        let arms = &mut self.figures[row];
        let place = match arm {
            Arm::Candidate(index) => index,
            Arm::ControlAgain => arms.len() - 1,
        };
        arms[place].push(if figure > 0.0 && figure.is_finite() { figure } else { f64::NAN });
    }

    /// Figures of a row on a candidate, block by block; NaN where a run gave none.
    pub fn of(&self, row: usize, arm: usize) -> &[f64] {
        &self.figures[row][arm]
    }

    /// Figures of the control's second runs.
    pub fn again(&self, row: usize) -> &[f64] {
        self.figures[row].last().map_or(&[], Vec::as_slice)
    }

    pub(super) fn pairs(&self, row: usize, arm: usize, others: &[f64]) -> Pairs {
        // A candidate that was decided earlier, or a block that was cut short, has fewer.
        let both = self.of(row, 0).iter().zip(others);
        let figures = both.filter(|(a, b)| !a.is_nan() && !b.is_nan()).map(|(a, b)| (*a, *b)).collect();
        Pairs { row, arm, figures }
    }

    /// Logarithms of candidate over control.
    pub(super) fn log_ratios(&self, row: usize, arm: usize) -> Vec<f64> {
        self.pairs(row, arm, self.of(row, arm)).figures.iter().map(|(a, b)| (b / a).ln()).collect()
    }

    /// Logarithms of the control's two runs in each block, averaged.
    pub(super) fn control_logs(&self, row: usize) -> Vec<f64> {
        self.pairs(row, 0, self.again(row)).figures.iter().map(|(a, b)| 0.5 * (a.ln() + b.ln())).collect()
    }

    /// Runs without a figure.
    pub(super) fn failed(&self) -> usize {
        self.figures.iter().flatten().flatten().filter(|figure| figure.is_nan()).count()
    }
}
