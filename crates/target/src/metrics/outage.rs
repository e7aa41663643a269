//! Outages: a device does not carry out commands, and later it does again.

use std::sync::Weak;
use std::time::{Duration, Instant};

use lunway_block::duration::HumanTime;

use super::Metrics;
use super::counters::{Kind, LunMetrics};
use super::failure::Cause;

/// Interval of looking whether an outage is over: as long as a device must carry out commands, and fail none.
const LOOK: Duration = Duration::from_secs(2);

/// A device that is gone or does not answer, from the first command that it has failed.
#[derive(Debug)]
pub(super) struct Outage {
    begun: Instant,
    /// The last failure that is known.
    last: Instant,
    /// Commands that it has failed.
    failed: u64,
    /// Kinds of commands that it has failed: of a full cluster reads are answered and writes are not.
    kinds: [bool; Kind::COUNT],
    /// Failures and successes of these kinds at the last look.
    looked_at: Option<(u64, u64)>,
}

/// What a look at an outage has shown.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// It may go on.
    Open,
    /// The device carries out commands again.
    Over {
        /// Commands that it has failed.
        failed: u64,
        /// From the first to the last of them, as far as is known.
        lasted: Duration,
    },
}

impl Outage {
    /// `None`: failures for this cause are no outage. A full or bad disk carries out some commands and fails others.
    pub(super) fn of(cause: Cause, now: Instant) -> Option<Self> {
        matches!(cause, Cause::Gone | Cause::Timeout).then_some(Self {
            begun: now,
            last: now,
            failed: 0,
            kinds: [false; Kind::COUNT],
            looked_at: None,
        })
    }

    pub(super) fn fails(&mut self, kind: Kind, count: u64, now: Instant) {
        self.failed += count;
        self.kinds[kind as usize] = true;
        self.last = now;
    }

    /// Looks at the counters of the logical unit.
    pub(super) fn look(&mut self, counters: &LunMetrics) -> Look {
        let (mut failed, mut done) = (0, 0);
        for (operations, _) in counters.operations.iter().zip(self.kinds).filter(|(_, fails)| *fails) {
            failed += operations.failed;
            done += operations.operations.saturating_sub(operations.failed + operations.refused);
        }
        let before = self.looked_at.replace((failed, done));
        match before.is_some_and(|(failed_then, done_then)| failed == failed_then && done > done_then) {
            true => Look::Over { failed: self.failed, lasted: self.last - self.begun },
            false => Look::Open,
        }
    }
}

/// Looks after an outage of a logical unit, and logs its end.
pub(super) async fn look_after(metrics: Weak<Metrics>, target: String, lun: u16, cause: Cause) {
    loop {
        tokio::time::sleep(LOOK).await;
        let Some(metrics) = metrics.upgrade() else { return };
        match metrics.looks_at_outage(&target, lun, cause) {
            Some(Look::Open) => {}
            Some(Look::Over { failed, lasted }) => {
                let lasted = HumanTime(lasted);
                tracing::warn!(%target, lun, failed, %lasted, "its device carries out commands again");
                return;
            }
            None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::counters::{Counters, Ending};
    use super::*;

    #[test]
    fn an_outage_is_over_when_commands_are_carried_out_and_none_fails() {
        let (counters, start) = (Counters::default(), Instant::now());
        assert!(Outage::of(Cause::Full, start).is_none());
        let mut outage = Outage::of(Cause::Timeout, start).unwrap();
        let fails = |outage: &mut Outage, seconds| {
            counters.ended(Kind::Write, Ending::Failed, 0);
            counters.failed(Cause::Timeout);
            outage.fails(Kind::Write, 1, start + Duration::from_secs(seconds));
        };
        let succeeds = |kind| counters.ended(kind, Ending::Good, 512);
        let look = |outage: &mut Outage| outage.look(&counters.snapshot());
        fails(&mut outage, 0);
        assert_eq!(look(&mut outage), Look::Open);
        assert_eq!(look(&mut outage), Look::Open, "nothing has happened");
        succeeds(Kind::Read);
        assert_eq!(look(&mut outage), Look::Open, "others than those that fail");
        succeeds(Kind::Write);
        fails(&mut outage, 8);
        assert_eq!(look(&mut outage), Look::Open, "some fail yet");
        succeeds(Kind::Write);
        let lasted = Duration::from_secs(8);
        assert_eq!(look(&mut outage), Look::Over { failed: 2, lasted });
    }
}
