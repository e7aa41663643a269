//! Plan of a measurement, its expected duration, and its execution.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use lunway_bench::profile::{self, Kind, Profile, ProfileResult};
use lunway_bench::{
    BenchError, Cancel, End, Event, Job, Outcome, Region, Schedule, ScheduledJob, cache_truth,
    holds_data_anywhere,
};
use lunway_block::{BlockDevice, BlockError, Finding, Geometry};
use lunway_report::Fact;

use super::watch::{LOOKING, Watch};
use super::wire::Wire;
use crate::failure::Failure;
use crate::progress;

/// Plan of a measurement.
pub(super) enum Plan {
    /// Jobs: one, or those of a job file.
    Jobs(Schedule),
    /// A profile.
    Profile(Kind, Box<profile::Options>),
}

/// Result of a measurement, and its conditions.
pub(super) struct Measured {
    pub(super) outcomes: Vec<Outcome>,
    /// Of a profile: what it makes of them.
    pub(super) profile: Option<ProfileResult>,
    pub(super) notes: Vec<String>,
    /// Reasons to doubt the figures.
    pub(super) warnings: Vec<String>,
    pub(super) environment: Vec<Fact>,
    /// Limits of the network to the device.
    pub(super) wire: Wire,
    /// Nothing was cut short.
    pub(super) complete: bool,
}

impl Plan {
    /// Makes a plan of one job.
    pub(super) fn job(job: Job) -> Self {
        let entry = ScheduledJob { job, delay: Duration::ZERO };
        Self::Jobs(Schedule { stages: vec![vec![entry]], notes: Vec::new() })
    }

    /// Returns `true` if jobs run one after the other, never two at once.
    pub(super) fn is_in_turn(&self) -> bool {
        match self {
            Self::Jobs(schedule) => schedule.stages.iter().all(|stage| stage.len() == 1),
            Self::Profile(..) => true,
        }
    }

    /// Describes the plan and its approximate duration, as the end of a sentence.
    pub(super) fn about(&self, geometry: &Geometry) -> String {
        match self {
            Self::Jobs(schedule) => {
                let (jobs, stages) = (schedule.jobs().count(), schedule.stages.len());
                let what = match (schedule.jobs().next(), jobs) {
                    (Some(job), 1) => job.name.clone(),
                    _ if stages == 1 => format!("{jobs} jobs side by side"),
                    _ if stages == jobs => format!("{jobs} jobs one after the other"),
                    _ => format!("{jobs} jobs in {stages} stages"),
                };
                format!("{what}, about {}", progress::whole_seconds(schedule.estimate()))
            }
            Self::Profile(kind, options) => {
                let time = profile::estimate(*kind, geometry, options);
                format!("profile {}, about {}", kind.name(), progress::whole_seconds(time))
            }
        }
    }

    /// Measures. An interrupted run is measured too, as far as it came.
    pub(super) async fn run(
        &self,
        device: &Arc<dyn BlockDevice>,
        watch: &mut Watch,
        cancel: &Cancel,
    ) -> Result<Measured, Failure> {
        match self {
            Self::Jobs(schedule) => {
                let outcomes = schedule
                    .run(
                        device,
                        &mut |event| match event {
                            Event::Looking(fraction) => watch.looking(fraction),
                            Event::Tick(step, tick) => watch.tick(step, tick),
                            Event::Done(step, outcome) => watch.done(step, outcome),
                        },
                        cancel,
                    )
                    .await
                    .map_err(bench_failure)?;
                let ended = outcomes.iter().all(|outcome| outcome.end == End::Limit);
                let complete = ended && outcomes.len() == schedule.jobs().count();
                let mut notes = schedule.notes.clone();
                let findings = cache_truth(&**device, whole(schedule, &device.geometry())).await;
                notes.extend(findings.iter().map(Finding::sentence));
                Ok(Measured { outcomes, complete, notes, ..Measured::nothing() })
            }
            Self::Profile(kind, options) => {
                let tick = &mut |step: profile::Step<'_>, tick: &_| watch.tick_in_turn(step, tick);
                let result =
                    profile::run(*kind, device, options, tick, cancel).await.map_err(bench_failure)?;
                result.outcomes.iter().for_each(|outcome| watch.outcome(outcome));
                Ok(Measured {
                    outcomes: result.outcomes.clone(),
                    notes: result.notes.clone(),
                    complete: result.complete && !cancel.is_cancelled(),
                    profile: Some(result),
                    ..Measured::nothing()
                })
            }
        }
    }
}

/// From the first block that a job of the schedule may touch to the last.
fn whole(schedule: &Schedule, geometry: &Geometry) -> Region {
    let regions = schedule.jobs().map(|job| job.region_on(geometry));
    let (from, to) = regions.fold((u64::MAX, 0), |(from, to), region| {
        (from.min(region.offset), to.max(region.offset.saturating_add(region.len)))
    });
    Region { offset: from.min(to), len: to.saturating_sub(from) }
}

impl Measured {
    fn nothing() -> Self {
        Self {
            outcomes: Vec::new(),
            profile: None,
            notes: Vec::new(),
            warnings: Vec::new(),
            environment: Vec::new(),
            wire: Wire::default(),
            complete: false,
        }
    }
}

/// Tells whether a profile may write: it was permitted, or there is no data to lose. Prints a message if not.
pub(crate) async fn may_write(
    device: &Arc<dyn BlockDevice>,
    kind: Kind,
    options: &profile::Options,
) -> Result<bool, Failure> {
    let geometry = device.geometry();
    if geometry.read_only {
        eprintln!("lunway: the device is read-only: measuring reads only");
        return Ok(false);
    }
    if options.destroy || !kind.writes_where_empty() {
        return Ok(options.destroy);
    }
    let region: Region = options.region_on(&geometry);
    match looked_for(&**device, region).await.context("cannot find out whether the device holds data")? {
        None => Ok(true),
        Some(offset) => {
            eprintln!(
                "lunway: the device holds data (at offset {offset}): measuring reads only; --destroy overwrites it and \
                 measures writes too"
            );
            Ok(false)
        }
    }
}

/// Position of data on a device of which `region` is to be written, looked for under a progress bar.
pub(crate) async fn looked_for(device: &dyn BlockDevice, region: Region) -> Result<Option<u64>, BlockError> {
    let bar = progress::fraction().with_prefix(LOOKING);
    let found =
        holds_data_anywhere(device, &[region], &mut |fraction| progress::set_fraction(&bar, fraction)).await;
    bar.finish_and_clear();
    found
}

/// Runs a profile under a progress bar.
pub(crate) async fn run_profile(
    profile: &Profile,
    device: &Arc<dyn BlockDevice>,
    cancel: &Cancel,
) -> Result<Vec<Outcome>, Failure> {
    let mut watch = Watch::bar(device.clone(), cancel.clone());
    let outcomes = profile.run(device, &mut |step, tick| watch.tick_in_turn(step, tick), cancel).await;
    watch.finish(true).map_err(Failure::Output)?;
    outcomes.map_err(bench_failure)
}

pub(crate) fn bench_failure(error: BenchError) -> Failure {
    match error {
        BenchError::Job(error) => Failure::Usage(error.to_string()),
        BenchError::WouldDestroy { offset } => Failure::failed(anyhow!(
            "the device holds data (at offset {offset}), and this job writes to it: --destroy allows that"
        )),
        BenchError::MustWrite { profile } => Failure::failed(anyhow!(
            "the profile {profile} writes its whole region before it measures: --destroy allows it"
        )),
        error => Failure::failed(error),
    }
}
