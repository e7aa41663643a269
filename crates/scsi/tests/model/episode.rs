//! One run from new disks to the first difference, and the shortest way there.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::device::Looks;
use crate::generator::{self, Flavour};
use crate::random::Random;
use crate::step::Step;
use crate::tally::Tally;
use crate::world::{UnitPlan, World};

/// Everything that a seed decides.
#[derive(Debug)]
pub(crate) struct Episode {
    seed: u64,
    plans: Vec<UnitPlan>,
    flavour: Flavour,
    random: Random,
}

/// A difference, with all that is needed to see it again.
pub(crate) struct Difference {
    seed: u64,
    plans: Vec<UnitPlan>,
    steps: Vec<Step>,
    what: String,
    first_seen_after: usize,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.what)?;
        writeln!(
            f,
            "LUNWAY_MODEL_SEED={}, after {} steps, of which these are enough:",
            self.seed, self.first_seen_after
        )?;
        for (lun, plan) in self.plans.iter().enumerate() {
            writeln!(f, "  LUN {lun}: {plan:?}")?;
        }
        self.steps.iter().try_for_each(|step| writeln!(f, "  {step:?}"))
    }
}

impl Episode {
    /// Enough to come to something, few enough to be shortened quickly.
    pub(crate) const STEPS: u64 = 500;

    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let plan = |random: &mut Random| {
            let looks = Looks {
                sector: *random.pick(&[512, 512, 4096]),
                thin: !random.once_in(3),
                volatile: random.once_in(2),
            };
            UnitPlan {
                looks,
                blocks: 1 + random.below(if looks.sector == 512 { 400 } else { 80 }),
                removable: random.once_in(2),
                read_only: random.once_in(12),
                atomic_writes: random.once_in(2),
                max_transfer_blocks: *random.pick(&[16, 64, 255, 1024]),
            }
        };
        let plans = (0..3).map(|_| plan(&mut random)).collect();
        let flavour = Flavour::new(&mut random);
        Self { seed, plans, flavour, random }
    }

    /// Runs `steps` steps; says how the commands among them ended.
    pub(crate) fn run(mut self, steps: u64) -> Result<Tally, Difference> {
        let mut world = World::new(&self.plans);
        let mut history = Vec::new();
        for _ in 0..steps {
            let step = generator::step(&mut self.random, self.flavour, &world);
            history.push(step);
            let taken = catch_unwind(AssertUnwindSafe(|| world.step(&history[history.len() - 1])));
            if taken.is_err() || matches!(taken, Ok(Err(_))) {
                return Err(self.difference(history));
            }
        }
        Ok(world.tally)
    }

    /// Replays steps on new disks: the number of those up to the difference, and what it is.
    fn replay(&self, steps: &[Step]) -> Option<(usize, String)> {
        let mut world = World::new(&self.plans);
        steps.iter().enumerate().find_map(|(index, step)| {
            match catch_unwind(AssertUnwindSafe(|| world.step(step))) {
                Ok(Ok(())) => None,
                Ok(Err(what)) => Some((index + 1, what)),
                Err(_) => Some((index + 1, "a panic, see above".to_owned())),
            }
        })
    }

    /// Leaves out steps, first many at a time, then single ones, as long as some difference stays.
    fn difference(&self, mut steps: Vec<Step>) -> Difference {
        let first_seen_after = steps.len();
        let mut what = "the difference went away when the steps were taken again".to_owned();
        let mut chunk = steps.len();
        while chunk > 0 {
            let mut at = 0;
            while at < steps.len() {
                let mut fewer = steps.clone();
                if chunk < steps.len() {
                    fewer.drain(at..(at + chunk).min(steps.len()));
                }
                match self.replay(&fewer) {
                    Some((len, found)) => {
                        let same = fewer.len() == steps.len();
                        fewer.truncate(len);
                        (steps, what) = (fewer, found);
                        if same {
                            break;
                        }
                    }
                    None => at += chunk,
                }
            }
            chunk /= 2;
        }
        Difference { seed: self.seed, plans: self.plans.clone(), steps, what, first_seen_after }
    }
}
