//! Status of lanes, for people.

use std::sync::Arc;
use std::time::Duration;

use lunway_block::{PathSample, PathState};

use super::core::Shared;
use crate::{AluaState, Lane, LaneState};

/// A lane as it is now.
#[derive(Clone, Debug)]
pub struct LaneStatus {
    /// From where to where.
    pub name: String,
    /// State of the lane.
    pub state: LaneState,
    /// Access state that the storage tells of it.
    pub access: AluaState,
    /// Its part of the bytes of late, from 0 to 1.
    pub share: f64,
    /// Bytes a second that it can read, as far as it was seen; `None` while it was never busy.
    pub read_rate: Option<u64>,
    /// Bytes a second that it can write.
    pub write_rate: Option<u64>,
    /// Latency of a small operation on it when it is idle.
    pub latency: Option<Duration>,
    /// Operations under way.
    pub in_flight: u32,
    /// Their bytes.
    pub in_flight_bytes: u64,
    /// Counters of its path.
    pub path: PathSample,
    /// Last event of the lane: how long ago, and its description.
    pub last_event: Option<(Duration, String)>,
    /// Number of sessions that it has had.
    pub epoch: u64,
}

impl Shared {
    pub(super) fn status(&self) -> Vec<LaneStatus> {
        // Lanes are asked before the lock is taken: they have their own.
        let paths = self.paths();
        let now = self.now();
        let core = self.lock();
        let status = |(id, path): (usize, PathSample)| {
            let figures = core.scheduler.figures(id);
            let ago = |(at, event): (Duration, String)| (now.saturating_sub(at), event);
            LaneStatus {
                name: self.names[id].clone(),
                state: core.health.state(id, now),
                access: core.health.access(id),
                share: figures.share,
                read_rate: figures.read_rate,
                write_rate: figures.write_rate,
                latency: figures.latency,
                in_flight: figures.in_flight,
                in_flight_bytes: figures.in_flight_bytes,
                path,
                last_event: core.health.last_event(id).map(ago),
                epoch: core.health.epoch(id),
            }
        };
        paths.into_iter().enumerate().map(status).collect()
    }

    pub(super) fn paths(&self) -> Vec<PathSample> {
        let times = |lane: &Arc<dyn Lane>| {
            let path = lane.device().paths().into_iter().next();
            path.map_or((None, None), |path| (path.round_trip, path.ping))
        };
        let times: Vec<_> = self.lanes.iter().map(times).collect();
        let now = self.now();
        let core = self.lock();
        let path = |(id, (round_trip, ping))| {
            let state = match core.health.state(id, now) {
                LaneState::Up | LaneState::Suspect | LaneState::Reserve => PathState::Up,
                LaneState::HeldBack { .. } | LaneState::Down | LaneState::Disabled => PathState::Down,
                LaneState::Closed => PathState::Closed,
            };
            let counts = core.counts[id];
            PathSample {
                name: self.names[id].clone(),
                state,
                read_ios: counts.read_ios,
                read_bytes: counts.read_bytes,
                write_ios: counts.write_ios,
                write_bytes: counts.write_bytes,
                errors: counts.errors,
                round_trip,
                ping,
                last_event: core.health.last_event(id).map(|(_, event)| event),
            }
        };
        times.into_iter().enumerate().map(path).collect()
    }
}
