//! Trial of a plan and a policy: what they would do.

use std::time::Duration;

use lunway_multipath::plan::{Plan, PlannedLane};
use lunway_multipath::{Boundaries, Direction, Pieces, Policy, Request, Scheduler, Use};
use serde_json::{Value, json};

use crate::terminal;

/// Number of reads that are placed, and the length of each, bytes.
const READS: u64 = 8;
const LEN: u32 = 64 << 10;

/// The numbers, from 1, of the lanes to which the first reads of a sequence would go while none of them has been
/// answered.
pub(super) fn first_lanes(plan: &Plan, policy: Policy) -> Vec<usize> {
    let shapes: Vec<_> = plan.lanes.iter().map(PlannedLane::shape).collect();
    let mut scheduler = Scheduler::new(&shapes, policy);
    for (lane, shape) in shapes.iter().enumerate() {
        let usage = if shape.reserve { Use::Reserve } else { Use::Active };
        scheduler.set_use(lane, usage, Duration::ZERO);
    }
    let mut pieces = Pieces::new();
    let mut lanes = Vec::new();
    for n in 0..READS {
        let len = u64::from(LEN);
        let request = Request {
            direction: Direction::Read,
            offset: n * len,
            len,
            divisible: true,
            block: 4096,
            cut: Boundaries::every(4096),
        };
        if scheduler.place(&request, Duration::from_micros(n), &mut pieces).is_ok() {
            lanes.extend(pieces.iter().map(|piece| piece.lane + 1));
        }
    }
    lanes
}

pub(super) fn sentence(first: &[usize]) -> String {
    let lanes: Vec<_> = first.iter().map(usize::to_string).collect();
    format!("The first {READS} reads of 64 KiB, sent at once, would take the lanes {}.", lanes.join(", "))
}

pub(super) fn table(plan: &Plan) -> String {
    let rows: Vec<_> = plan
        .lanes
        .iter()
        .zip(1..)
        .map(|(lane, number)| {
            [
                number.to_string(),
                lane.name(),
                if lane.reserve { "reserve" } else { "active" }.to_owned(),
                lane.interface.clone().unwrap_or_else(|| "-".to_owned()),
                lane.speed.map_or("-".to_owned(), |bits| format!("{} Mb/s", bits / 1_000_000)),
                lane.group.map_or("-".to_owned(), |group| group.to_string()),
                lane.weight.to_string(),
                lane.reason.clone(),
            ]
        })
        .collect();
    terminal::table(["#", "LANE", "USE", "CARD", "SPEED", "GROUP", "WEIGHT", "WHY"], &rows, "no lanes")
}

pub(super) fn document(plan: &Plan) -> Value {
    let lane = |lane: &PlannedLane| {
        json!({
            "name": lane.name(), "from": lane.near, "interface": lane.interface, "portal": lane.portal,
            "portal_group": lane.group, "near_port": lane.near_port, "far_port": lane.far_port,
            "reserve": lane.reserve, "weight": lane.weight, "speed_bits_per_s": lane.speed, "reason": lane.reason,
        })
    };
    plan.lanes.iter().map(lane).collect()
}
