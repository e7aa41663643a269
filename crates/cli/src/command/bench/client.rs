//! Cost of measuring itself, and whether that was the limit.

use std::time::Duration;

use lunway_bench::{GeneratorCost, Outcome, generator_cost};

/// Time for which the generator's cost is measured.
const LOOK: Duration = Duration::from_millis(100);
/// Share of a core, of each worker's, above which the processor was the limit.
const BUSY: f64 = 0.85;
/// With less than this between what a core can make and what was measured, the generator is a good part of the figure.
const HEADROOM: f64 = 3.0;

/// The client's side of a measurement: what the generator costs where the device costs nothing.
pub(super) struct Client {
    cost: GeneratorCost,
}

impl Client {
    /// Takes about a tenth of a second of a core; `None` where there is no thread for it.
    pub(super) fn look() -> Option<Self> {
        generator_cost(LOOK).ok().map(|cost| Self { cost })
    }

    /// The cost in a sentence.
    pub(super) fn note(&self) -> String {
        let GeneratorCost { ns_per_io, iops_per_core } = self.cost;
        let millions = iops_per_core / 1e6;
        format!(
            "Load generator: {ns_per_io:.0} ns of CPU time per I/O, at most {millions:.1} million IOPS per core."
        )
    }

    /// Names what was limited by this machine rather than by the device. `alone`: no jobs ran side by side, so that the
    /// process's time was the job's.
    pub(super) fn warning(&self, outcomes: &[Outcome], alone: bool) -> Option<String> {
        let bound: Vec<_> = outcomes
            .iter()
            .filter(|outcome| self.is_bound(outcome, alone))
            .map(|o| o.job.name.as_str())
            .collect();
        if bound.is_empty() {
            return None;
        }
        let names = bound.join(", ");
        Some(format!(
            "client-bound: {names}. This process used more than {:.0} % of a core, or the generator alone is a third of the cost: \
             a faster device would show about the same figures.",
            BUSY * 100.0
        ))
    }

    fn is_bound(&self, outcome: &Outcome, alone: bool) -> bool {
        let workers = f64::from(outcome.job.jobs.max(1));
        let elapsed = outcome.elapsed.as_secs_f64();
        let spent = (outcome.cpu.user + outcome.cpu.system).as_secs_f64();
        // The processor's time comes in steps of 10 ms: a shorter run tells nothing. Waiting for the moment of a rate
        // is turning.
        let busy = alone && outcome.job.rate.is_none() && elapsed > 0.2 && spent / elapsed / workers > BUSY;
        let iops = outcome.read.iops() + outcome.write.iops();
        busy || self.cost.iops_per_core * workers < HEADROOM * iops
    }
}

#[cfg(test)]
mod tests {
    use lunway_bench::{Cancel, Job, Limit, run};
    use lunway_memory::NullDisk;
    use std::sync::Arc;

    use super::*;

    fn client() -> Client {
        Client { cost: GeneratorCost { ns_per_io: 50.0, iops_per_core: 20e6 } }
    }

    async fn outcome() -> Outcome {
        let mut job = Job::new("row");
        job.limit = Limit::Bytes(1 << 20);
        let device = Arc::new(NullDisk::new(1 << 20, 512).unwrap());
        run(device, &job, &mut |_| (), &Cancel::new()).await.unwrap()
    }

    #[tokio::test]
    async fn a_result_near_what_a_core_can_make_is_the_clients() {
        let mut outcome = outcome().await;
        (outcome.read.ios, outcome.read.elapsed) = (1_000_000, Duration::from_secs(1));
        assert_eq!(client().warning(std::slice::from_ref(&outcome), true), None);
        outcome.read.ios = 7_000_000;
        assert!(client().warning(&[outcome], true).unwrap().contains("client-bound: row."));
    }

    #[tokio::test]
    async fn a_core_that_was_busy_all_the_time_was_the_limit_unless_others_kept_it_busy() {
        let mut outcome = outcome().await;
        (outcome.elapsed, outcome.cpu.user) = (Duration::from_secs(1), Duration::from_millis(900));
        outcome.read.ios = 10;
        assert!(client().warning(std::slice::from_ref(&outcome), true).is_some());
        assert!(client().warning(std::slice::from_ref(&outcome), false).is_none());
        outcome.job.jobs = 2;
        assert!(client().warning(&[outcome], true).is_none(), "two workers have two cores");
    }
}
