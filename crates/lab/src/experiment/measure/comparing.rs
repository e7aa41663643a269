//! Logical units against each other, over a network that runs.

use std::sync::Arc;

use lunway_bench::compare::{self, Comparison, Devices, Figure, Plan};
use lunway_bench::{Cancel, profile};
use lunway_block::BlockDevice;
use tokio::runtime::Builder;

use crate::cpu::CpuWatch;
use crate::experiment::measure::pace::Pace;
use crate::experiment::measure::run_error::RunError;
use crate::experiment::measure::storage::{FILLS_LINK, ServedNetwork, open};
use crate::experiment::plan::run::{Comparing, Run};
use crate::experiment::result::results::Compared;

/// Warm-up of each run, as the divisor of its time.
const RAMP: u32 = 10;
/// From this share of a row's runs on the processor limits the row.
const LIMITED_RUNS: f64 = 0.5;

/// Number of a row's runs, and of those that the processor limited.
#[derive(Clone, Copy, Default)]
struct Busy {
    runs: u32,
    limited: u32,
}

impl ServedNetwork<'_> {
    /// Compares the two units of a run, row by row. `capacity` is what its cables carry, MB/s.
    pub(crate) fn compare(
        &self,
        run: &Run,
        comparing: &Comparing,
        capacity: f64,
        pace: &mut Pace<'_>,
    ) -> Result<Compared, RunError> {
        let [control, candidate] = &comparing.arms;
        let urls = [control.lun, control.lun, candidate.lun].map(|lun| self.url(run, lun, &run.policies[0]));
        let urls = urls.into_iter().collect::<Result<Vec<_>, _>>()?;
        let cancel = self.cancel;
        let compared = self.network.host(&run.from)?.run(|| {
            let runtime = Builder::new_current_thread().enable_all().build().map_err(RunError::Start)?;
            runtime.block_on(async {
                let mut opened = Vec::new();
                for url in &urls {
                    opened.push(open(run, url).await?);
                }
                let devices: Vec<Arc<dyn BlockDevice>> =
                    opened.iter().map(|opened| opened.device.clone()).collect();
                let compared = compared(run, comparing, &devices, capacity, pace, cancel).await;
                for opened in opened {
                    opened.close_or_log().await;
                }
                compared
            })
        })?;
        let (comparison, limited) = compared?;
        Ok(Compared { test: run.test.clone(), topology: run.topology.clone(), comparison, limited })
    }
}

/// `devices`: the control, the control once more, the candidate.
async fn compared(
    run: &Run,
    comparing: &Comparing,
    devices: &[Arc<dyn BlockDevice>],
    capacity: f64,
    pace: &mut Pace<'_>,
    cancel: &Cancel,
) -> Result<(Comparison, Vec<bool>), RunError> {
    let bench = |source| RunError::Bench { test: run.test.clone(), source };
    let options = profile::Options {
        duration: comparing.time,
        ramp: comparing.time / RAMP,
        region: comparing.size,
        destroy: true,
        ..profile::Options::default()
    };
    let jobs = profile::anvil(&devices[0].geometry(), &options).rows;
    let devices = Devices {
        candidates: vec![devices[0].clone(), devices[2].clone()],
        control_again: devices[1].clone(),
        jobs,
        figure: Figure::Iops,
    };
    devices.check().map_err(bench)?;
    let names = comparing.arms.iter().map(|arm| arm.name.clone()).collect();
    let plan = Plan {
        pairs: comparing.pairs,
        rounds: comparing.rounds,
        margin_percent: comparing.margin,
        ..Plan::new(devices.rows(), names, options.seed)
    };
    plan.check().map_err(|error| RunError::Compare { test: run.test.clone(), said: error.to_string() })?;
    let mut busy = vec![Busy::default(); devices.jobs.len()];
    let step = comparing.time + options.ramp;
    let row_names: Vec<String> = devices.jobs.iter().map(|job| job.name.clone()).collect();
    let mut progress = |progress: &compare::Progress| {
        let row = &row_names[progress.run.row];
        pace.begin(format!("{} {row} ({}/{})", run.test, progress.done + 1, progress.planned), step);
    };
    let mut measure = async |of: compare::Run| {
        let watch = CpuWatch::start();
        let figure = devices.measure(of, &mut |_| {}, cancel).await;
        let used = watch.stop();
        if let (Ok(iops), Some(_)) = (&figure, of.block) {
            let job = &devices.jobs[of.row];
            let mb_s = iops * f64::from(job.block_sizes.largest(job.mix)) / 1e6;
            busy[of.row].runs += 1;
            busy[of.row].limited += u32::from(used.limited && mb_s < FILLS_LINK * capacity);
        }
        figure
    };
    let comparison = plan.run(&mut measure, &mut progress, cancel).await.map_err(bench)?;
    let limited = |busy: &Busy| f64::from(busy.limited) > LIMITED_RUNS * f64::from(busy.runs);
    Ok((comparison, busy.iter().map(limited).collect()))
}

impl Compared {
    /// Contrasts that count, with the names of their rows.
    pub(crate) fn counting(&self) -> impl Iterator<Item = (&str, &compare::Contrast)> {
        let contrasts = self.comparison.contrasts.iter();
        let counting = contrasts.filter(|contrast| contrast.pairs > 0 && !self.limited[contrast.row]);
        counting.map(|contrast| (self.comparison.plan.rows[contrast.row].name.as_str(), contrast))
    }

    /// Names of the rows that the processor limited.
    pub(crate) fn limited_rows(&self) -> Vec<&str> {
        let rows = self.comparison.plan.rows.iter().zip(&self.limited);
        rows.filter(|(_, limited)| **limited).map(|(row, _)| row.name.as_str()).collect()
    }
}
