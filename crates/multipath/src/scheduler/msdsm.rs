//! The policies of MSDSM, Microsoft's device-specific module of Windows MPIO.
//!
//! The choices are those of its published source (Windows-driver-samples, `storage/msdsm/src`, `DsmpGetPath`): what it
//! calls the *path to be used* is `head` here.

use super::load::Load;
use super::roster::Roster;
use super::{Direction, LaneId, Policy, Request};

/// Limit of `least-blocks` for writes that stay on their lane, bytes in flight there: MSDSM's
/// `DsmCacheSizeForLeastBlocks`, 1 MiB unless set.
const LEAST_BLOCKS_CACHE: u64 = 1 << 20;

/// The state of MSDSM's policies: one lane that is *to be used*.
///
/// It is set anew whenever lanes come, go or change: to the first optimized lane, under `weighted` to the one of least
/// weight. Round robin moves it with every request; nothing else does. `least-blocks` means by it the lane that was
/// used last, but never sets it, so that sequential requests return to the first lane as soon as it has room: that is
/// what Windows does, and so it is done here.
#[derive(Debug, Default)]
pub(super) struct Msdsm {
    head: LaneId,
}

impl Msdsm {
    /// Lanes have changed, or the policy.
    pub(super) fn changed(&mut self, policy: Policy, roster: &Roster) {
        let candidates = &roster.candidates;
        let Some(&first) = candidates.first() else { return };
        self.head = match policy {
            // The only one that stays where it is, and the only one that returns, to a lane that was preferred.
            Policy::Failover { preferred } => match preferred {
                Some(preferred) if candidates.contains(&preferred) => preferred,
                _ if candidates.contains(&self.head) => self.head,
                _ => first,
            },
            // min_by_key gives the first of equals, as the strict comparison there does.
            Policy::Weighted => {
                candidates.iter().copied().min_by_key(|&l| roster.lanes[l].weight).unwrap_or(first)
            }
            _ => first,
        };
    }

    /// Chooses among the lanes of the roster, of which there is one at least.
    pub(super) fn choose(
        &mut self,
        policy: Policy,
        request: &Request,
        roster: &Roster,
        load: &Load,
    ) -> LaneId {
        // Without an optimized lane the lane to be used carries everything, under every policy: MSDSM expects the
        // storage to make another group optimized before long.
        if !roster.optimized && policy != Policy::RoundRobinSubset {
            return self.head;
        }
        match policy {
            Policy::RoundRobin | Policy::RoundRobinSubset => {
                let chosen = self.head;
                let next = roster.candidates.iter().position(|&l| l > chosen).unwrap_or(0);
                self.head = roster.candidates[next];
                chosen
            }
            Policy::LeastQueueDepth => first_least(roster, |lane| u64::from(load.lanes[lane].ios)),
            Policy::LeastBlocks => {
                if self.stays(request, load) {
                    self.head
                } else {
                    first_least(roster, |lane| load.lanes[lane].data)
                }
            }
            _ => self.head,
        }
    }

    /// Returns `true` if `least-blocks` takes the request for one that continues on the lane to be used.
    fn stays(&self, request: &Request, load: &Load) -> bool {
        let head = &load.lanes[self.head];
        // Its condition is: first block >= last block of what was placed there last. The last block itself counts.
        let sequential = request.offset.saturating_add(u64::from(request.block)) >= head.last_end;
        match request.direction {
            Direction::Read => sequential,
            Direction::Write => sequential && head.data + request.len <= LEAST_BLOCKS_CACHE,
            Direction::Other => true,
        }
    }
}

/// The lane with the least of something, the first of equals.
fn first_least(roster: &Roster, mut what: impl FnMut(LaneId) -> u64) -> LaneId {
    let mut candidates = roster.candidates.iter().copied();
    let mut best = candidates.next().unwrap_or(0);
    let mut least = what(best);
    for lane in candidates {
        let amount = what(lane);
        if amount < least {
            (best, least) = (lane, amount);
        }
    }
    best
}
