//! Comparison of candidates: tells real differences from noise.
//!
//! ```text
//!   Plan { rows × arms, pairs, margin } ──run(measure)──▶ Comparison ──▶ Display   (terminal)
//!              │            │                                  ├──▶ to_json    (programs)
//!              │      one figure a run: a device,              └──▶ document   (a page with a forest plot)
//!              │      a network, a simulation
//!        which run comes when
//! ```
//!
//! **The unit is a run.** A run is one row (such as random 4K reads) on one arm (a candidate, or the control), and
//! gives one figure. Seconds within a run resemble each other and are never counted as repeats.
//!
//! **Blocks.** A block measures every arm once, the control a second time, in an order drawn anew: whatever the machine
//! does, it does to all arms alike. Two runs in random order are exchangeable if the arms do not differ, so the test of
//! their differences is exact for any noise; that is why the second run of the control checks it and is not averaged
//! in.
//!
//! **The difference** is the Hodges–Lehmann estimate over the blocks' log ratios, of a candidate against the control,
//! in per cent of the control: [`Contrast::diff_pct`]. Its interval comes from Wilcoxon's signed ranks
//! ([`lunway_stats::paired`]).
//!
//! **The verdict** holds the interval against a practical margin: beyond it is *faster* or *slower*, within it is *no
//! meaningful difference*, and otherwise one *cannot tell*, and how many more pairs would is said. Faster and slower
//! moreover need a p-value that holds after Holm's correction over all rows and candidates. Intervals, and verdicts of
//! no difference, are each row's own.
//!
//! **Looking more than once.** What cannot be told after [`Plan::pairs`] pairs is measured for as many again, at most
//! [`Plan::rounds`] times. Stopping when one likes what one sees makes errors likelier, so every look uses Pocock's
//! level for that number of looks: the intervals of all looks together hold the truth with 95 %.

mod blocks;
mod comparison;
mod decide;
mod devices;
mod page;
mod plan;
mod runs;
mod table;
mod trust;

pub use comparison::Comparison;
pub use decide::{Contrast, Verdict};
pub use devices::{Devices, Figure, Measured};
pub use page::json;
pub use plan::{Arm, MARGIN_PERCENT, PAIRS, Plan, PlanError, Progress, ROUNDS_MAX, Row, Run};
pub use runs::Runs;
pub use trust::Trust;
