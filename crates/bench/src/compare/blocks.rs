//! Carrying out a plan, block after block.

use std::ops::AsyncFnMut;

use super::comparison::Comparison;
use super::plan::{Plan, Progress, Run};
use super::runs::Runs;
use crate::run::cancel::Cancel;

impl Plan {
    /// Carries it out, run after run. `measure` gives a run's figure; one that is not positive and finite counts as a
    /// run that failed, and its pair is left out. After a cancel the answer is what was measured until then: a run that
    /// the cancel cut short is dropped.
    ///
    /// # Errors
    ///
    /// What `measure` says ends it at once.
    pub async fn run<E>(
        &self,
        measure: &mut impl AsyncFnMut(Run) -> Result<f64, E>,
        progress: &mut dyn FnMut(&Progress),
        cancel: &Cancel,
    ) -> Result<Comparison, E> {
        let mut runs = Runs::new(self.rows.len(), self.arms.len());
        let (mut done, mut planned) = (0, self.run_count().0);
        // Candidates of each row that are not decided.
        let mut open: Vec<Vec<usize>> = vec![(1..self.arms.len()).collect(); self.rows.len()];
        let warm_up = (0..self.warm_up).map(|block| (block, true));
        let measured = (0..self.pairs * self.rounds).map(|block| (block, false));
        for (block, warming) in warm_up.chain(measured) {
            if !warming && block > 0 && block % self.pairs == 0 {
                open = Comparison::of(self, runs.clone(), false).undecided();
                let arms = |open: &Vec<usize>| if open.is_empty() { 0 } else { open.len() as u64 + 2 };
                planned += u64::from(self.pairs) * open.iter().map(arms).sum::<u64>();
                if open.iter().all(Vec::is_empty) {
                    break;
                }
            }
            for (row, open) in open.iter().enumerate().filter(|(_, open)| !open.is_empty()) {
                for arm in self.order(block, warming, row, open) {
                    let run = Run { arm, row, block: (!warming).then_some(block) };
                    progress(&Progress { run, done, planned });
                    if cancel.is_cancelled() {
                        return Ok(Comparison::of(self, runs, false));
                    }
                    let figure = measure(run).await?;
                    if cancel.is_cancelled() {
                        return Ok(Comparison::of(self, runs, false));
                    }
                    done += 1;
                    if !warming {
                        runs.add(row, arm, figure);
                    }
                }
            }
        }
        Ok(Comparison::of(self, runs, true))
    }
}

#[cfg(test)]
mod tests {
    use lunway_report::Better;

    use super::super::plan::{Arm, Row};
    use super::*;

    fn plan() -> Plan {
        let row = |name: &str| Row { name: name.into(), unit: "IOPS".into(), better: Better::Higher };
        Plan::new(vec![row("read"), row("write")], vec!["A".into(), "B".into()], 1)
    }

    async fn run(plan: &Plan, cancel_after: usize) -> (Vec<Run>, Comparison) {
        let mut seen = Vec::new();
        let cancel = Cancel::new();
        let measured = plan
            .run(
                &mut async |run: Run| {
                    seen.push(run);
                    if seen.len() == cancel_after {
                        cancel.cancel();
                    }
                    Ok::<f64, ()>(100.0)
                },
                &mut |_| {},
                &cancel,
            )
            .await;
        (seen, measured.unwrap())
    }

    #[tokio::test]
    async fn a_block_measures_every_arm_once_and_the_control_twice_in_both_orders() {
        let plan = plan();
        let (seen, comparison) = run(&plan, 0).await;
        assert!(comparison.complete);
        assert_eq!(seen.len() as u64, plan.run_count().0);
        assert!(seen[..6].iter().all(|run| run.block.is_none()), "the warm-up comes first");
        let mut first = [0; 3];
        for block in seen[6..].chunks(3) {
            assert!(block.iter().all(|run| run.row == block[0].row && run.block == block[0].block));
            for (place, arm) in [Arm::Candidate(0), Arm::Candidate(1), Arm::ControlAgain].iter().enumerate() {
                assert_eq!(block.iter().filter(|run| run.arm == *arm).count(), 1);
                first[place] += usize::from(block[0].arm == *arm);
            }
        }
        assert!(first.iter().all(|&count| count >= 2), "{first:?}");
    }

    #[tokio::test]
    async fn the_same_seed_gives_the_same_order() {
        let orders = [1, 1, 2].map(|seed| Plan { seed, ..plan() });
        let mut seen = Vec::new();
        for plan in &orders {
            seen.push(run(plan, 0).await.0);
        }
        assert_eq!(seen[0], seen[1]);
        assert_ne!(seen[0], seen[2]);
    }

    #[tokio::test]
    async fn a_cancelled_comparison_keeps_whole_runs() {
        let (seen, comparison) = run(&plan(), 6 + 6 * 7 + 2).await;
        assert_eq!(seen.len(), 50);
        assert!(!comparison.complete);
        assert_eq!(comparison.contrasts[0].pairs, 7);
    }
}
