//! Several things that recur, side by side.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use jiff::tz::TimeZone;

use crate::job::{Cause, Job, Moment, Plan, Record};

/// Jobs by their names. Two that use the same thing are never under way at once, nor more than so many in all; of those
/// that wait, the one that has waited longest begins first.
#[derive(Debug)]
pub struct Timetable {
    jobs: BTreeMap<String, Slot>,
    at_once: usize,
}

#[derive(Debug)]
struct Slot {
    job: Job,
    /// Names of what a run has for itself.
    uses: Vec<String>,
    /// What the next run has, where that is something else.
    uses_next: Option<Vec<String>>,
    /// It is no longer wanted, and goes when its run has ended.
    is_leaving: bool,
}

/// A run that begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// Name of the job.
    pub name: String,
    /// Reason for the run.
    pub cause: Cause,
    /// What is to be durable before anything is done.
    pub record: Record,
}

impl Timetable {
    /// An empty one, for so many runs at once.
    pub fn new(at_once: usize) -> Self {
        Self { jobs: BTreeMap::new(), at_once }
    }

    /// Adds a job, with what is on record of it, or gives it another plan. A run under way goes on by the old one.
    pub fn set(
        &mut self,
        name: &str,
        plan: Plan,
        uses: Vec<String>,
        record: Option<&Record>,
        now: Moment,
        zone: &TimeZone,
    ) {
        match self.jobs.get_mut(name) {
            Some(slot) => {
                slot.job.change(plan, now);
                slot.is_leaving = false;
                // What a run has, it has until its end.
                match slot.job.is_running() {
                    true => slot.uses_next = Some(uses),
                    false => slot.uses = uses,
                }
            }
            None => {
                let job = Job::new(plan, record, now, zone);
                self.jobs.insert(name.to_owned(), Slot { job, uses, uses_next: None, is_leaving: false });
            }
        }
    }

    /// Removes all others. Runs under way come to their end.
    pub fn keep(&mut self, names: &HashSet<&str>) {
        self.jobs.retain(|name, slot| {
            slot.is_leaving = !names.contains(name.as_str());
            !slot.is_leaving || slot.job.is_running()
        });
    }

    /// The job of this name.
    pub fn job(&self, name: &str) -> Option<&Job> {
        self.jobs.get(name).filter(|slot| !slot.is_leaving).map(|slot| &slot.job)
    }

    /// Takes note of a clock that has gone back: what the records of all jobs say of the future counts as now.
    pub fn mind_clock(&mut self, now: Moment) {
        for slot in self.jobs.values_mut() {
            slot.job.mind_clock(now);
        }
    }

    /// Somebody wants a run now. Returns `None` if there is no such job, `false` if a run is under way.
    pub fn ask(&mut self, name: &str, now: Moment) -> Option<bool> {
        let slot = self.jobs.get_mut(name).filter(|slot| !slot.is_leaving)?;
        Some(slot.job.ask(now))
    }

    /// Begins the run that has waited longest of those that may begin now.
    pub fn start(&mut self, now: Moment, zone: &TimeZone) -> Option<Start> {
        let running = || self.jobs.values().filter(|slot| slot.job.is_running());
        let is_full = running().count() >= self.at_once;
        let taken: HashSet<String> = running().flat_map(|slot| slot.uses.iter().cloned()).collect();
        let mut first = None::<(i64, Cause, &String)>;
        let mut slots: Vec<_> = self.jobs.iter_mut().filter(|(_, slot)| !slot.is_leaving).collect();
        for (name, slot) in &mut slots {
            // All of them take note of the time.
            let Some((since, cause)) = slot.job.look(now, zone) else { continue };
            let is_free = !is_full && !slot.uses.iter().any(|used| taken.contains(used));
            if is_free && first.is_none_or(|(earliest, ..)| since < earliest) {
                first = Some((since, cause, name));
            }
        }
        let (_, cause, name) = first?;
        let name = name.clone();
        let slot = self.jobs.get_mut(&name)?;
        slot.job.begin(now);
        Some(Start { name, cause, record: slot.job.record() })
    }

    /// A run has ended. Returns what is to be kept of it; `None`: nothing, as it is no longer wanted.
    pub fn end(&mut self, name: &str, has_failed: bool, now: Moment) -> Option<Record> {
        let slot = self.jobs.get_mut(name)?;
        slot.job.end(has_failed, now);
        if let Some(uses) = slot.uses_next.take() {
            slot.uses = uses;
        }
        if slot.is_leaving {
            self.jobs.remove(name);
            return None;
        }
        Some(slot.job.record())
    }

    /// Time until a run may be due, if no clock jumps. A run that waits for the end of another one begins with that.
    pub fn wake_in(&self, now: Moment, zone: &TimeZone) -> Option<Duration> {
        let idle = self.jobs.values().filter(|slot| !slot.job.is_running() && !slot.is_leaving);
        let left = idle.filter_map(|slot| slot.job.next_in(now, zone)).filter(|left| *left > 0);
        left.min().map(|left| Duration::from_millis(left.unsigned_abs()))
    }
}
