//! Patience with a lane that comes and goes.

use std::time::Duration;

/// Time for which a lane that came back must hold before it is used beside others.
///
/// After one loss it need not: a cable that was pulled once and is back is good, and a login has shown it. A second
/// loss shows a lane that comes and goes, or a plug that bounces while it is pushed in: one second. Each further loss
/// doubles it, so that such a lane disturbs ever less: at worst once a minute. After five minutes without a loss all is
/// forgotten. A lane that is the only one is used at once, even if it was lost before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flap {
    /// After the second loss.
    pub first: Duration,
    /// After however many.
    pub most: Duration,
    /// Up for so long, a lane has no past.
    pub forget: Duration,
    /// Lanes that were all lost within this time were not lost by faults of their own: the storage was restarted, and
    /// no lane is blamed for it.
    pub together: Duration,
}

impl Default for Flap {
    fn default() -> Self {
        Self {
            first: Duration::from_secs(1),
            most: Duration::from_secs(60),
            forget: Duration::from_secs(300),
            together: Duration::from_secs(2),
        }
    }
}

/// Record of one lane's losses.
#[derive(Clone, Debug, Default)]
pub(super) struct Record {
    losses: u32,
    lost_at: Option<Duration>,
}

impl Record {
    /// Notes a loss of what had been up since `up_since`.
    pub(super) fn lost(&mut self, flap: &Flap, up_since: Duration, now: Duration) {
        if now.saturating_sub(up_since) >= flap.forget {
            self.losses = 0;
        }
        self.losses = self.losses.saturating_add(1);
        self.lost_at = Some(now);
    }

    /// All lanes are lost now: if this one was lost with the others, it is not to blame.
    pub(super) fn excuse(&mut self, flap: &Flap, now: Duration) {
        if self.lost_at.is_some_and(|at| now.saturating_sub(at) <= flap.together) {
            self.losses = self.losses.saturating_sub(1);
            self.lost_at = None;
        }
    }

    /// Returns the time for which it must hold now that it is back.
    pub(super) fn patience(&self, flap: &Flap) -> Duration {
        match self.losses {
            0 | 1 => Duration::ZERO,
            losses => flap.first.saturating_mul(2u32.saturating_pow(losses - 2)).min(flap.most),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn one_loss_takes_no_patience_and_each_further_one_doubles_it_up_to_a_minute() {
        let (flap, mut record) = (Flap::default(), Record::default());
        assert_eq!(record.patience(&flap), Duration::ZERO);
        let patience: Vec<_> = (1..=9)
            .map(|n| {
                record.lost(&flap, n * SECOND, n * 2 * SECOND);
                record.patience(&flap).as_secs()
            })
            .collect();
        assert_eq!(patience, [0, 1, 2, 4, 8, 16, 32, 60, 60]);
    }

    #[test]
    fn five_minutes_of_health_are_forgetting() {
        let (flap, mut record) = (Flap::default(), Record::default());
        for _ in 0..5 {
            record.lost(&flap, SECOND, 2 * SECOND);
        }
        record.lost(&flap, 10 * SECOND, 309 * SECOND);
        assert_eq!(record.patience(&flap), 16 * SECOND);
        record.lost(&flap, 310 * SECOND, 610 * SECOND);
        assert_eq!(record.patience(&flap), Duration::ZERO);
    }

    #[test]
    fn a_loss_of_all_lanes_is_not_the_fault_of_one() {
        let (flap, mut record) = (Flap::default(), Record::default());
        record.lost(&flap, SECOND, 10 * SECOND);
        record.lost(&flap, 20 * SECOND, 30 * SECOND);
        record.excuse(&flap, 33 * SECOND);
        assert_eq!(record.patience(&flap), SECOND, "the others went three seconds later");
        record.lost(&flap, 40 * SECOND, 50 * SECOND);
        record.excuse(&flap, 51 * SECOND);
        record.excuse(&flap, 51 * SECOND);
        assert_eq!(record.patience(&flap), SECOND, "excused once");
    }
}
