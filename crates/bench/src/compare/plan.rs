//! Plan of a comparison: the order of its runs.

use lunway_report::Better;

use crate::load::random::{Random, mix};

/// Pairs of a round: with ten, one row of ten that differs can still hold its own after Holm (2/2¹⁰ × 10 is under 2.2
/// %), and an interval leaves out the two most extreme of them on either side.
pub const PAIRS: u32 = 10;

/// The practical margin, per cent. People argue over three per cent; half of that is as far from 3 as from 0, so that
/// calling the one a difference and the other none takes equally many pairs.
pub const MARGIN_PERCENT: f64 = 1.5;

/// Most looks at the data: Pocock's levels are tabled here for so many.
pub const ROUNDS_MAX: u32 = 3;

/// Most pairs of a round. Beyond, the time would be better spent on a quieter machine.
const PAIRS_MAX: u32 = 1000;

/// Plan of a comparison: its subjects and its thoroughness.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The rows of the table.
    pub rows: Vec<Row>,
    /// Names of the candidates; the first is the control, which the others are held against.
    pub arms: Vec<String>,
    /// Pairs after which it is looked which rows are decided.
    pub pairs: u32,
    /// Number of rounds of that many pairs, for rows that are not decided, 1 to [`ROUNDS_MAX`].
    pub rounds: u32,
    /// Differences up to this percentage count as none
    pub margin_percent: f64,
    /// Blocks that are run first and dropped: connections, caches and clocks warm up in them.
    pub warm_up: u32,
    /// Of the order of runs.
    pub seed: u64,
}

/// A row: something measured on each arm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// "read 4K QD16".
    pub name: String,
    /// "IOPS", "MB/s", "ms".
    pub unit: String,
    /// Direction in which the figure is better.
    pub better: Better,
}

/// Subject of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    /// A candidate by its place in [`Plan::arms`]; 0 is the control.
    Candidate(usize),
    /// The control once more in the same block, best through a handle of its own: against the first it must come out
    /// even.
    ControlAgain,
}

/// A run of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// On what.
    pub arm: Arm,
    /// Index into [`Plan::rows`].
    pub row: usize,
    /// Its block, counted through all rounds; `None` in warm-up.
    pub block: Option<u32>,
}

/// Progress of a comparison, before each run.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// The run that begins.
    pub run: Run,
    /// Runs done.
    pub done: u64,
    /// Runs there will be if no row needs another round than those begun.
    pub planned: u64,
}

/// A plan that cannot be carried out.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// Nothing to hold against the control.
    #[error("a comparison needs at least two candidates, and {arms} is given")]
    Arms {
        /// Number of candidates.
        arms: usize,
    },
    /// Nothing to measure.
    #[error("a comparison needs at least one row to measure")]
    Rows,
    /// Too few or too many.
    #[error(
        "{pairs} pairs are not possible: at least 6 are needed for an interval, and fewer than {PAIRS_MAX} are allowed"
    )]
    Pairs {
        /// Number requested.
        pairs: u32,
    },
    /// Too few or too many.
    #[error("{rounds} rounds are not possible: 1 to {ROUNDS_MAX} are")]
    Rounds {
        /// Number requested.
        rounds: u32,
    },
    /// No margin.
    #[error("a margin of {margin} % is not possible: more than 0 and less than 100 is expected")]
    Margin {
        /// Margin requested, per cent.
        margin: f64,
    },
}

impl Plan {
    /// A plan with the usual thoroughness.
    pub fn new(rows: Vec<Row>, arms: Vec<String>, seed: u64) -> Self {
        let (pairs, rounds, margin_percent) = (PAIRS, ROUNDS_MAX, MARGIN_PERCENT);
        Self { rows, arms, pairs, rounds, margin_percent, warm_up: 1, seed }
    }

    /// Refuses what cannot be carried out.
    pub fn check(&self) -> Result<(), PlanError> {
        let (pairs, rounds, margin) = (self.pairs, self.rounds, self.margin_percent);
        if self.arms.len() < 2 {
            return Err(PlanError::Arms { arms: self.arms.len() });
        }
        if self.rows.is_empty() {
            return Err(PlanError::Rows);
        }
        if !(6..=PAIRS_MAX).contains(&pairs) {
            return Err(PlanError::Pairs { pairs });
        }
        if !(1..=ROUNDS_MAX).contains(&rounds) {
            return Err(PlanError::Rounds { rounds });
        }
        // Not written as a comparison that a margin which is not a number would pass.
        if !(margin > 0.0 && margin < 100.0) {
            return Err(PlanError::Margin { margin });
        }
        Ok(())
    }

    /// Fewest and most runs that it can take.
    pub fn run_count(&self) -> (u64, u64) {
        let block = self.rows.len() as u64 * (self.arms.len() as u64 + 1);
        let blocks = |rounds: u32| u64::from(self.warm_up) + u64::from(self.pairs) * u64::from(rounds);
        (block * blocks(1), block * blocks(self.rounds))
    }

    /// The arms of a row's block, in an order that depends on the seed alone.
    pub(super) fn order(&self, block: u32, warming: bool, row: usize, open: &[usize]) -> Vec<Arm> {
        let mut arms = vec![Arm::Candidate(0), Arm::ControlAgain];
        arms.extend(open.iter().map(|&arm| Arm::Candidate(arm)));
        let place = u64::from(block) << 33 | u64::from(warming) << 32 | row as u64;
        let mut random = Random::new(self.seed ^ mix(place.wrapping_add(1)));
        for last in (1..arms.len()).rev() {
            arms.swap(last, random.below(last as u64 + 1) as usize);
        }
        arms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        let row = |name: &str| Row { name: name.into(), unit: "IOPS".into(), better: Better::Higher };
        Plan::new(vec![row("read"), row("write")], vec!["A".into(), "B".into()], 1)
    }

    #[test]
    fn what_cannot_be_carried_out_is_refused() {
        let check = |change: &dyn Fn(&mut Plan)| {
            let mut plan = plan();
            change(&mut plan);
            plan.check()
        };
        assert_eq!(check(&|_| {}), Ok(()));
        assert_eq!(check(&|plan| plan.arms.truncate(1)), Err(PlanError::Arms { arms: 1 }));
        assert_eq!(check(&|plan| plan.rows.clear()), Err(PlanError::Rows));
        assert_eq!(check(&|plan| plan.pairs = 5), Err(PlanError::Pairs { pairs: 5 }));
        assert_eq!(check(&|plan| plan.rounds = 4), Err(PlanError::Rounds { rounds: 4 }));
        assert!(check(&|plan| plan.margin_percent = f64::NAN).is_err());
    }
}
