//! dm-multipath's `service-time`.

use std::cmp::Ordering;

use super::LaneId;
use super::load::Load;
use super::roster::Roster;

/// The greatest relative throughput that dm-multipath accepts.
const MOST: u32 = 100;

/// The path selector of Linux (`drivers/md/dm-ps-service-time.c`), which prefers the path by which (bytes in flight +
/// size) / relative throughput is least.
///
/// Its ties go to the greater throughput, and between equals to the path that has waited longest: the chosen one goes
/// to the end of the list, and so does one that comes back. A relative throughput of 0 means: not while another has
/// more.
#[derive(Debug)]
pub(super) struct ServiceTime {
    /// All lanes, the least recently used first.
    order: Vec<LaneId>,
}

impl ServiceTime {
    pub(super) fn new(lanes: usize) -> Self {
        Self { order: (0..lanes).collect() }
    }

    /// A lane may be used again: it queues up at the end.
    pub(super) fn returned(&mut self, lane: LaneId) {
        self.order.retain(|&l| l != lane);
        self.order.push(lane);
    }

    /// Chooses among the lanes of the roster, of which there is one at least.
    pub(super) fn choose(&mut self, len: u64, roster: &Roster, load: &Load) -> LaneId {
        let mut best: Option<(usize, u64, u64)> = None;
        for (at, &lane) in self.order.iter().enumerate() {
            if !roster.is_candidate(lane) {
                continue;
            }
            let in_flight = load.lanes[lane].bytes;
            let throughput = u64::from(roster.lanes[lane].weight.min(MOST));
            let better = best.is_none_or(|(_, load, than)| {
                compare(in_flight, throughput, load, than, len) == Ordering::Less
            });
            if better {
                best = Some((at, in_flight, throughput));
            }
        }
        let chosen = best.map_or(0, |(at, ..)| at);
        self.order[chosen..].rotate_left(1);
        self.order[self.order.len() - 1]
    }
}

/// `Less`: the first is the better one. The cases are those of `st_compare_load`.
fn compare(load_a: u64, throughput_a: u64, load_b: u64, throughput_b: u64, len: u64) -> Ordering {
    if throughput_a == throughput_b {
        return load_a.cmp(&load_b);
    }
    if load_a == load_b || throughput_a == 0 || throughput_b == 0 {
        return throughput_b.cmp(&throughput_a);
    }
    let time_a = load_a.saturating_add(len).saturating_mul(throughput_b);
    let time_b = load_b.saturating_add(len).saturating_mul(throughput_a);
    time_a.cmp(&time_b).then(throughput_b.cmp(&throughput_a))
}
