//! Team: the lanes that can be full at the same time.

use super::LaneId;
use super::constants::{ALIKE, MEMBER_PART_MIN, UNPROVEN_PROMISE};
use super::estimate::Estimate;
use super::flow::Ends;
use super::half::HalfLane;
use super::port::PortEstimate;
use super::request::Pieces;

/// Rate that a lane will probably reach: small requests, which are all that an unproven one gets, make it look slower
/// than it is.
fn promise(estimate: &Estimate) -> f64 {
    if estimate.known && !estimate.trial.is_proven() {
        estimate.rate * UNPROVEN_PROMISE
    } else {
        estimate.rate
    }
}

/// The lanes that carry large requests in one direction: chosen so that none of their ports is filled twice.
///
/// Found greedily: the lane that adds most comes next, of equal ones one whose ports no other member uses, then
/// one that was a member before, then one whose ports few lanes go through (it leaves the others more choice). With
/// lanes 1:1 that is all of them; in a mesh one for each port of the side that has fewer. Two lanes on one port are not
/// faster than one, but their packets collide.
#[derive(Debug, Default)]
pub(super) struct Team {
    pub(super) members: Vec<Member>,
    /// Number of those that are no trial: the first ones.
    regular: usize,
    /// Room for the search, kept to save the allocation.
    left: Vec<f64>,
    users: Vec<u32>,
}

/// A lane of the team.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    pub(super) lane: LaneId,
    /// The part of its rate that its ports leave to it.
    pub(super) part: f64,
}

impl Team {
    /// For `lanes` lanes and `ports` ports.
    pub(super) fn new(lanes: usize, ports: usize) -> Self {
        Self {
            members: Vec::with_capacity(lanes.min(Pieces::MOST)),
            regular: 0,
            left: Vec::with_capacity(ports),
            users: Vec::with_capacity(ports),
        }
    }

    /// Chooses anew. Returns when it wants to be asked again for a trial's sake.
    pub(super) fn choose(
        &mut self,
        candidates: &[LaneId],
        lanes: &[HalfLane],
        ports: &mut [PortEstimate],
        now: u64,
    ) -> u64 {
        let mut old = [usize::MAX; Pieces::MOST];
        for (slot, member) in old.iter_mut().zip(&self.members[..self.regular]) {
            *slot = member.lane;
        }
        self.members.clear();
        self.left.clear();
        self.left.extend(ports.iter().map(|port| port.rate));
        self.users.clear();
        self.users.resize(ports.len(), 0);
        while self.members.len() < Pieces::MOST
            && let Some(Addition { lane, adds, .. }) = self.best_addition(candidates, lanes, &old)
        {
            self.join(lane, adds / promise(&lanes[lane].estimate));
            for port in lanes[lane].ends.both() {
                self.left[port] -= adds;
                self.users[port] += 1;
            }
        }
        self.regular = self.members.len();
        self.admit_trials(candidates, lanes, ports, now)
    }

    /// The lane that comes next; `old`: the members before.
    fn best_addition(&self, candidates: &[LaneId], lanes: &[HalfLane], old: &[LaneId]) -> Option<Addition> {
        let mut best: Option<Addition> = None;
        for &lane in candidates.iter().filter(|lane| !self.has(**lane)) {
            let Ends { near, far } = lanes[lane].ends;
            let adds = promise(&lanes[lane].estimate).min(self.left[near]).min(self.left[far]);
            if adds < MEMBER_PART_MIN * lanes[lane].estimate.rate {
                continue;
            }
            let sharing =
                |port| candidates.iter().filter(|&&lane| lanes[lane].ends.touch(port)).count() as u32;
            let order = [
                self.users[near] + self.users[far],
                u32::from(!old.contains(&lane)),
                sharing(near) + sharing(far),
            ];
            let addition = Addition { lane, adds, order };
            if best.as_ref().is_none_or(|best| addition.beats(best)) {
                best = Some(addition);
            }
        }
        best
    }

    fn has(&self, lane: LaneId) -> bool {
        self.members.iter().any(|member| member.lane == lane)
    }

    fn join(&mut self, lane: LaneId, part: f64) {
        self.members.push(Member { lane, part: part.min(1.0) });
    }

    /// Lets in one lane for each full port that is due for a trial. Returns when to try again.
    fn admit_trials(
        &mut self,
        candidates: &[LaneId],
        lanes: &[HalfLane],
        ports: &mut [PortEstimate],
        now: u64,
    ) -> u64 {
        let mut again = u64::MAX;
        // A trial compares with what proven lanes do; before that it would measure their slow start.
        let ready = self.members.iter().all(|member| lanes[member.lane].estimate.settled());
        for &lane in candidates {
            if self.members.len() == Pieces::MOST || self.has(lane) {
                continue;
            }
            let Ends { near, far } = lanes[lane].ends;
            let rate = lanes[lane].estimate.rate;
            let is_full = |port: usize| self.left[port] < MEMBER_PART_MIN * rate;
            let (port, other) = match (is_full(near), is_full(far)) {
                (true, false) => (near, far),
                (false, true) => (far, near),
                _ => continue,
            };
            if !ready && ports[port].trial.lane() != Some(lane) {
                continue;
            }
            let extra = rate.min(self.left[other]);
            match ports[port].admit(lane, extra, now) {
                Ok(()) => {
                    self.left[other] -= extra;
                    self.join(lane, extra / rate);
                }
                Err(later) => again = again.min(later.unwrap_or(u64::MAX)),
            }
        }
        again
    }
}

/// A lane that could become a member.
struct Addition {
    lane: LaneId,
    /// Rate that it would add, bytes per nanosecond.
    adds: f64,
    /// Of lanes that are alike the least comes first: members on its ports, whether it is new, lanes on its ports.
    order: [u32; 3],
}

impl Addition {
    /// Returns `true` if it beats another that came first in the list.
    fn beats(&self, best: &Self) -> bool {
        if self.adds < best.adds * ALIKE {
            false
        } else if best.adds < self.adds * ALIKE {
            true
        } else {
            self.order < best.order
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{LaneShape, Port};
    use super::*;

    /// Lanes of a local port, a storage port and a rate; ports that carry what the best of their lanes does.
    struct Network {
        lanes: Vec<HalfLane>,
        ports: Vec<PortEstimate>,
        team: Team,
    }

    impl Network {
        fn new(lanes: &[(u32, u32, f64)], estimate: impl Fn(f64) -> Estimate) -> Self {
            let shape = |&(near, far, _): &(u32, u32, f64)| LaneShape {
                name: String::new(),
                near: Port(near),
                far: Port(far),
                weight: 1,
                reserve: false,
                rate_hint: None,
            };
            let shapes: Vec<_> = lanes.iter().map(shape).collect();
            let (ends, ports) = Ends::of(&shapes);
            let of_lane = |((shape, ends), (_, _, rate)): ((&LaneShape, Ends), &(u32, u32, f64))| {
                let mut lane = HalfLane::new(shape, ends);
                lane.estimate = estimate(*rate);
                lane
            };
            let lanes: Vec<_> = shapes.iter().zip(ends).zip(lanes).map(of_lane).collect();
            let mut network = Self {
                team: Team::new(lanes.len(), ports),
                ports: (0..ports).map(|_| PortEstimate::default()).collect(),
                lanes,
            };
            network.set_bounds();
            network
        }

        /// As [`Half`](crate::scheduler::half::Half) does.
        fn set_bounds(&mut self) {
            for (index, port) in self.ports.iter_mut().enumerate() {
                let lanes = self.lanes.iter().filter(|lane| lane.ends.touch(index));
                let rates: Vec<_> = lanes.map(|lane| lane.estimate.rate).collect();
                port.set_bounds(rates.iter().copied().fold(0.0, f64::max), rates.iter().sum());
            }
        }

        fn choose(&mut self, now: u64) -> Vec<LaneId> {
            let candidates: Vec<_> = (0..self.lanes.len()).collect();
            self.team.choose(&candidates, &self.lanes, &mut self.ports, now);
            self.team.members.iter().map(|member| member.lane).collect()
        }
    }

    const MESH: [(u32, u32, f64); 8] = [
        (0, 0, 0.1),
        (0, 1, 0.1),
        (1, 0, 0.1),
        (1, 1, 0.1),
        (2, 0, 0.1),
        (2, 1, 0.1),
        (3, 0, 0.1),
        (3, 1, 0.1),
    ];

    #[test]
    fn lanes_with_ports_of_their_own_are_all_members_with_all_of_their_rates() {
        let mut network = Network::new(&[(0, 0, 0.1), (1, 1, 0.01), (2, 2, 0.05)], Estimate::new);
        assert_eq!(network.choose(0), [0, 2, 1], "the best first");
        assert!(network.team.members.iter().all(|member| member.part == 1.0));
    }

    #[test]
    fn a_mesh_has_as_many_members_as_the_side_of_fewer_ports_and_none_share_a_port() {
        let mut network = Network::new(&MESH, Estimate::new);
        let members = network.choose(0);
        let ends = |index: usize| network.lanes[members[index]].ends;
        assert_eq!(members.len(), 2);
        assert!(ends(0).near != ends(1).near && ends(0).far != ends(1).far, "{members:?}");
    }

    #[test]
    fn a_lane_that_shares_both_ports_with_others_leaves_them_to_these() {
        let mut network = Network::new(&[(0, 0, 0.1), (0, 1, 0.1), (1, 0, 0.1)], Estimate::new);
        let mut members = network.choose(0);
        members.sort_unstable();
        assert_eq!(members, [1, 2]);
    }

    #[test]
    fn members_stay_while_no_other_lane_is_more_than_an_eighth_better() {
        let mut network = Network::new(&MESH, Estimate::new);
        let members = network.choose(0);
        let other = (0..8).find(|lane| !members.contains(lane)).unwrap();
        network.lanes[other].estimate.assume(0.11);
        network.set_bounds();
        assert_eq!(network.choose(0), members, "10 % are noise");
        network.lanes[other].estimate.assume(0.12);
        network.set_bounds();
        assert!(network.choose(0).contains(&other));
    }

    #[test]
    fn a_lane_whose_port_leaves_it_less_than_40_percent_is_no_member_and_else_takes_its_part() {
        for (carries, part) in [(0.13, None), (0.15, Some(0.5))] {
            let mut network = Network::new(&[(0, 0, 0.1), (1, 0, 0.1)], Estimate::new);
            let far = network.lanes[0].ends.far;
            network.ports[far].set_bounds(carries, 0.2);
            network.choose(0);
            let second = network.team.members.get(1).map(|member| member.part);
            assert_eq!(second.map(|part| (part * 1e6).round() / 1e6), part);
        }
    }

    #[test]
    fn a_lane_behind_a_full_port_is_on_trial_once_the_members_are_measured() {
        let lanes = [(0, 0, 0.1), (1, 0, 0.1), (2, 0, 0.1)];
        let mut network = Network::new(&lanes, Estimate::new);
        assert_eq!(network.choose(0), [0], "an unmeasured member has nothing to compare with");
        let mut network = Network::new(&lanes, Estimate::measured);
        assert_eq!(network.choose(0), [0, 1]);
        assert_eq!(network.ports[network.lanes[0].ends.far].trial.lane(), Some(1), "and one at a time");
        assert_eq!(network.choose(1), [0, 1], "until the trial is over");
    }

    #[test]
    fn a_team_has_no_more_lanes_than_a_request_has_pieces() {
        let lanes: Vec<_> = (0..12).map(|port| (port, port, 0.1)).collect();
        assert_eq!(Network::new(&lanes, Estimate::measured).choose(0).len(), Pieces::MOST);
    }
}
