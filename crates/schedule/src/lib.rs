//! When something that recurs is due: by the clock of the machine, or at intervals; once for each due time, whatever
//! the clock does and however often the process ends.
//!
//! ```text
//!   configuration ──► Plan ─┐                          ┌─► the run that is to begin now
//!   kept over restarts ─► Record ─► Job ─► Timetable ──┤
//!                           now: Moment ───┘           └─► time until the next look
//! ```
//!
//! Nothing here reads a clock, sleeps, or runs anything: [`Moment`] and time zone are arguments, so that tests pass
//! years, jumps and restarts in milliseconds. What a run does, and where records are kept, is the caller's.
//!
//! | part | is |
//! |---|---|
//! | [`When`], [`TimeOfDay`], [`Weekday`], [`wall_clock`] | what people configure, and see |
//! | [`Plan`], [`Job`], [`Record`], [`Cause`] | one thing that recurs, and what of it survives a restart |
//! | [`is_overdue`] | whether a success is missing |
//! | [`Timetable`] | several, of which those that share something never run at once |

mod job;
mod overdue;
mod timetable;
mod when;

pub use jiff::tz::TimeZone;
pub use job::{ATTEMPTS_MAX, CLOCK_BACK_MAX, Cause, Job, Moment, Plan, Record};
pub use overdue::is_overdue;
pub use timetable::{Start, Timetable};
pub use when::{TimeOfDay, TimeOfDayError, Weekday, When, wall_clock};
