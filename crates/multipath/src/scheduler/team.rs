//! Team: the lanes that can be full at the same time.

use super::LaneId;
use super::constants::{ALIKE, MEMBER_PART_MIN, UNPROVEN_PROMISE};
use super::estimate::Estimate;
use super::flow::Ends;
use super::half::Lane;
use super::port::PortEstimate;
use super::request::Pieces;

/// What a lane will probably carry: small requests, which are all that an unproven one gets, make it look slower than
/// it is.
fn promise(estimate: &Estimate) -> f64 {
    if estimate.known && !estimate.trial.is_proven() {
        estimate.rate * UNPROVEN_PROMISE
    } else {
        estimate.rate
    }
}

/// The lanes that carry large requests in one direction: chosen so that none of their ports is filled twice.
///
/// Found greedily: the lane that adds most comes next, of equal ones one whose ports nobody else in the team uses, then
/// one that was a member before, then one whose ports few lanes go through (it leaves the others more choice). With
/// lanes 1:1 that is all of them; in a mesh one for each port of the side that has fewer. Two lanes on one port are not
/// faster than one, but their packets collide.
#[derive(Debug, Default)]
pub(super) struct Team {
    pub(super) members: Vec<Member>,
    /// How many of them are no trial: the first ones.
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
        lanes: &[Lane],
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
        let mut crowd = [0_u32; 2];
        while self.members.len() < Pieces::MOST {
            let mut best: Option<(f64, [u32; 3], LaneId)> = None;
            for &lane in candidates {
                if self.members.iter().any(|member| member.lane == lane) {
                    continue;
                }
                let Ends { near, far } = lanes[lane].ends;
                let rate = promise(&lanes[lane].estimate);
                let adds = rate.min(self.left[near]).min(self.left[far]);
                if adds < MEMBER_PART_MIN * lanes[lane].estimate.rate {
                    continue;
                }
                crowd[0] = candidates.iter().filter(|&&l| lanes[l].ends.near == near).count() as u32;
                crowd[1] = candidates.iter().filter(|&&l| lanes[l].ends.far == far).count() as u32;
                let order = [
                    self.users[near] + self.users[far],
                    u32::from(!old.contains(&lane)),
                    crowd[0] + crowd[1],
                ];
                let better = match best {
                    None => true,
                    Some((most, _, _)) if adds < most * ALIKE => false,
                    Some((most, _, _)) if most < adds * ALIKE => true,
                    Some((_, than, _)) => order < than,
                };
                if better {
                    best = Some((adds, order, lane));
                }
            }
            let Some((adds, _, lane)) = best else { break };
            let Ends { near, far } = lanes[lane].ends;
            self.join(lane, adds / promise(&lanes[lane].estimate));
            for port in [near, far] {
                self.left[port] -= adds;
                self.users[port] += 1;
            }
        }
        self.regular = self.members.len();
        self.admit_trials(candidates, lanes, ports, now)
    }

    fn join(&mut self, lane: LaneId, part: f64) {
        self.members.push(Member { lane, part: part.min(1.0) });
    }

    /// Lets in one lane for each full port that is due for a trial.
    fn admit_trials(
        &mut self,
        candidates: &[LaneId],
        lanes: &[Lane],
        ports: &mut [PortEstimate],
        now: u64,
    ) -> u64 {
        let mut again = u64::MAX;
        // A trial compares with what proven lanes do; before that it would measure their slow start.
        let ready = self.members.iter().all(|member| lanes[member.lane].estimate.settled());
        for &lane in candidates {
            if self.members.len() == Pieces::MOST || self.members.iter().any(|member| member.lane == lane) {
                continue;
            }
            let Ends { near, far } = lanes[lane].ends;
            let rate = lanes[lane].estimate.rate;
            let full = |port: usize, left: &[f64]| left[port] < MEMBER_PART_MIN * rate;
            let port = match (full(near, &self.left), full(far, &self.left)) {
                (true, false) => near,
                (false, true) => far,
                _ => continue,
            };
            let other = if port == near { far } else { near };
            let extra = rate.min(self.left[other]);
            let estimate = &mut ports[port];
            match estimate.on_trial() {
                Some(on_trial) if on_trial == lane => {}
                Some(_) => continue,
                None if ready && estimate.trial_at() <= now => estimate.try_lane(lane, extra, now),
                None => {
                    if ready {
                        again = again.min(estimate.trial_at());
                    }
                    continue;
                }
            }
            self.left[other] -= extra;
            self.join(lane, extra / rate);
        }
        again
    }
}
