//! Measurements as rows and cells of the results.

use std::time::Duration;

use lunway_bench::RwMode;

use crate::experiment::measure::storage::FILLS_LINK;
use crate::experiment::measure::wire::WireFigures;
use crate::experiment::plan::run::{Run, Window};
use crate::experiment::result::results::{Link, ResultCell, ResultRow, median};

/// From this share of a window per round trip on, a cell is limited by its window. TCP sends it in whole segments, and
/// does not send the last of them at once.
const FILLS_WINDOW: f64 = 0.7;

/// Returns the combined throughput of a run's cables, MB/s: the slower end of each path; a cable shared by several
/// paths counts once.
pub(crate) fn capacity(run: &Run, links: &[Link]) -> f64 {
    let of = |cable: &str| {
        links.iter().find(|link| link.name == cable).map_or(f64::INFINITY, |link| link.calibrated_mb_s)
    };
    let side = |cables: &mut Vec<&str>| {
        cables.sort_unstable();
        cables.dedup();
        cables.iter().map(|cable| of(cable)).sum::<f64>()
    };
    let leaves = side(&mut run.paths.iter().map(|path| path.leaves.as_str()).collect());
    let enters = side(&mut run.paths.iter().map(|path| path.enters.as_str()).collect());
    leaves.min(enters)
}

impl ResultRow {
    pub(crate) fn new(run: &Run, policy: &str, rw: &'static str) -> Self {
        Self {
            test: run.test.clone(),
            topology: run.topology.clone(),
            policy: policy.to_owned(),
            rw,
            is_control: run.is_control,
            samples: Vec::new(),
            deviance_pct: None,
        }
    }

    pub(crate) fn is_of(&self, run: &Run, policy: &str, rw: &str) -> bool {
        self.test == run.test && self.policy == policy && self.rw == rw
    }
}

impl ResultCell {
    pub(crate) fn new(
        run: &Run,
        window: &Window,
        (mtu, delay): (u32, Duration),
        access: RwMode,
        measured: &WireFigures,
        links: &[Link],
    ) -> Self {
        let throughput = &measured.throughput;
        let ms = |time: Option<Duration>| time.map_or(f64::NAN, |time| time.as_secs_f64() * 1e3);
        let smoothed = throughput.senders().map(|end| end.tcp.rtt).filter(|rtt| !rtt.is_zero()).min();
        let mut cell = Self {
            test: run.test.clone(),
            topology: run.topology.clone(),
            window: window.clone(),
            mtu,
            delay,
            rw: access.name(),
            samples: vec![throughput.bytes_per_second() / 1e6],
            mb: throughput.bytes() as f64 / 1e6,
            rtt_ms: ms(smoothed),
            rtt_least_ms: ms(throughput.round_trip()),
            retransmits: throughput.retransmits(),
            limited: measured.cpu.limited,
            partial: !throughput.complete,
        };
        // What fills the cable is limited by that, and what moves about a window per round trip by that, however busy
        // the processor.
        let by_link = cell.mb_s() >= FILLS_LINK * capacity(run, links);
        let by_window = cell.bound_mb_s().is_some_and(|bound| cell.mb_s() >= FILLS_WINDOW * bound);
        cell.limited &= !by_link && !by_window;
        cell
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        (&self.test, &self.window, self.mtu, self.delay, self.rw)
            == (&other.test, &other.window, other.mtu, other.delay, other.rw)
    }

    /// Merges another measurement of the same cell.
    pub(crate) fn merge(&mut self, other: Self) {
        self.rtt_ms = median([self.rtt_ms, other.rtt_ms].into_iter());
        self.rtt_least_ms = self.rtt_least_ms.min(other.rtt_least_ms);
        self.samples.extend(other.samples);
        self.mb += other.mb;
        self.retransmits += other.retransmits;
        self.limited |= other.limited;
        self.partial |= other.partial;
    }
}
