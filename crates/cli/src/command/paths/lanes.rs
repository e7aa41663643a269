//! Lanes as they are now, and what has gone over them since the last look.

use std::time::{Duration, Instant};

use lunway_iscsi_paths::IscsiMultipath;
use lunway_multipath::plan::Plan;
use lunway_multipath::{LaneState, LaneStatus};
use lunway_report::response_time;
use serde_json::{Value, json};

use crate::terminal;

/// State of a disk's lanes: two samples make rates.
pub(super) struct Lanes {
    now: Vec<LaneStatus>,
    before: Vec<LaneStatus>,
    at: Instant,
    elapsed: Duration,
}

/// Traffic over a lane between two samples, per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Rates {
    read: f64,
    written: f64,
    ios: f64,
}

impl Lanes {
    pub(super) fn new(multipath: &IscsiMultipath) -> Self {
        let now = multipath.device().lanes();
        Self { before: now.clone(), now, at: Instant::now(), elapsed: Duration::ZERO }
    }

    /// Looks again.
    pub(super) fn look(&mut self, multipath: &IscsiMultipath) {
        self.before = std::mem::replace(&mut self.now, multipath.device().lanes());
        self.elapsed = self.at.elapsed();
        self.at = Instant::now();
    }

    fn rates(&self, lane: usize) -> Rates {
        let (now, before) = (&self.now[lane].path, &self.before[lane].path);
        let seconds = self.elapsed.as_secs_f64().max(1e-3);
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        Rates {
            read: rate(now.read_bytes, before.read_bytes),
            written: rate(now.write_bytes, before.write_bytes),
            ios: rate(now.read_ios + now.write_ios, before.read_ios + before.write_ios),
        }
    }

    /// Table of the lanes' states.
    pub(super) fn state_table(&self) -> String {
        let rows: Vec<_> = self
            .now
            .iter()
            .zip(1..)
            .map(|(lane, number)| {
                [
                    number.to_string(),
                    lane.name.clone(),
                    state(lane),
                    access(lane).unwrap_or_else(|| "-".to_owned()),
                    share(lane),
                    estimate(lane.read_rate),
                    estimate(lane.write_rate),
                    time(lane.latency),
                    time(lane.path.round_trip),
                    lane.in_flight.to_string(),
                    lane.path.errors.to_string(),
                    lane.epoch.to_string(),
                    last_event(lane),
                ]
            })
            .collect();
        let headings = [
            "#",
            "LANE",
            "STATE",
            "ACCESS",
            "SHARE",
            "CAN READ",
            "CAN WRITE",
            "LATENCY",
            "RTT",
            "IN FLIGHT",
            "ERRORS",
            "SESSION",
            "LAST EVENT",
        ];
        terminal::table(headings, &rows, "no lanes")
    }

    /// Table of the lanes' rates.
    pub(super) fn rate_table(&self) -> String {
        let rows: Vec<_> = self
            .now
            .iter()
            .enumerate()
            .map(|(n, lane)| {
                let rates = self.rates(n);
                [
                    lane.name.clone(),
                    state(lane),
                    share(lane),
                    format!("{:.0}", rates.ios),
                    rate(rates.read),
                    rate(rates.written),
                    time(lane.latency),
                    time(lane.path.round_trip),
                    lane.in_flight.to_string(),
                    lane.path.errors.to_string(),
                    last_event(lane),
                ]
            })
            .collect();
        let headings = [
            "LANE",
            "STATE",
            "SHARE",
            "I/O/s",
            "READ",
            "WRITTEN",
            "LATENCY",
            "RTT",
            "IN FLIGHT",
            "ERRORS",
            "LAST EVENT",
        ];
        let sum = (0..self.now.len()).map(|n| self.rates(n)).fold(Rates::default(), |sum, rates| Rates {
            read: sum.read + rates.read,
            written: sum.written + rates.written,
            ios: sum.ios + rates.ios,
        });
        let all = format!("{:.0} I/O/s, {} read, {} written", sum.ios, rate(sum.read), rate(sum.written));
        format!("{}\n\n{all}", terminal::table(headings, &rows, "no lanes"))
    }

    /// The same for programs.
    pub(super) fn document(&self, plan: &Plan) -> Value {
        let lane = |(n, lane): (usize, &LaneStatus)| {
            let rates = self.rates(n);
            let planned = plan.lanes.get(n);
            let held = match lane.state {
                LaneState::HeldBack { left } => left.map(|left| left.as_secs_f64()),
                _ => None,
            };
            json!({
                "name": lane.name,
                "state": lane.state.to_string(),
                "held_back_s": held,
                "access": access(lane),
                "reserve": planned.is_some_and(|planned| planned.reserve),
                "reason": planned.map(|planned| planned.reason.clone()),
                "portal_group": planned.and_then(|planned| planned.group),
                "near_port": planned.map(|planned| planned.near_port),
                "far_port": planned.map(|planned| planned.far_port),
                "share": lane.share,
                "read_bytes_per_s": rates.read,
                "write_bytes_per_s": rates.written,
                "iops": rates.ios,
                "estimated_read_bytes_per_s": lane.read_rate,
                "estimated_write_bytes_per_s": lane.write_rate,
                "latency_us": lane.latency.map(micros),
                "round_trip_us": lane.path.round_trip.map(micros),
                "ping_us": lane.path.ping.map(micros),
                "in_flight": lane.in_flight,
                "in_flight_bytes": lane.in_flight_bytes,
                "read_ios": lane.path.read_ios,
                "write_ios": lane.path.write_ios,
                "errors": lane.path.errors,
                "session": lane.epoch,
                "last_event": lane.last_event.as_ref().map(|(ago, text)| json!({ "ago_s": ago.as_secs_f64(), "text": text })),
            })
        };
        self.now.iter().enumerate().map(lane).collect()
    }
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn state(lane: &LaneStatus) -> String {
    match lane.state {
        LaneState::HeldBack { left: Some(left) } => format!("held back {} s", left.as_secs().max(1)),
        ref state => state.to_string(),
    }
}

/// The access state that its target port reported; `None`: the lane was never connected.
fn access(lane: &LaneStatus) -> Option<String> {
    (lane.epoch > 0).then(|| lane.access.to_string())
}

fn share(lane: &LaneStatus) -> String {
    format!("{:.0} %", lane.share * 100.0)
}

fn rate(bytes: f64) -> String {
    format!("{:.1} MB/s", bytes / 1e6)
}

fn estimate(bytes_per_second: Option<u64>) -> String {
    bytes_per_second.map_or("-".to_owned(), |bytes| rate(bytes as f64))
}

fn time(time: Option<Duration>) -> String {
    time.map_or("-".to_owned(), |time| response_time(time.as_secs_f64() * 1e3))
}

fn last_event(lane: &LaneStatus) -> String {
    let Some((ago, text)) = &lane.last_event else { return "-".to_owned() };
    let ago = match ago.as_secs() {
        0 => "just now".to_owned(),
        seconds @ 1..120 => format!("{seconds} s ago"),
        seconds @ 120..7200 => format!("{} min ago", seconds / 60),
        seconds => format!("{} h ago", seconds / 3600),
    };
    format!("{ago}: {}", terminal::clean(text))
}
