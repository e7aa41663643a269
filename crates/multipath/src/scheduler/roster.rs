//! Roster: the lanes that may be used now.

use super::{LaneId, LaneShape, Use};
use crate::AluaState;

/// The lanes' states, and the lanes to choose from.
///
/// The candidates are all lanes of the best rank there is. The rank is, in this order: not suspect before suspect,
/// active before reserve, optimized before non-optimized. A lane that is out, or whose access carries no I/O, has none.
/// Worked out when a state changes, so that a choice costs a look at a list.
#[derive(Debug)]
pub(super) struct Roster {
    pub(super) lanes: Vec<RankedLane>,
    /// In the order of their numbers.
    pub(super) candidates: Vec<LaneId>,
    /// `true` if the candidates are optimized lanes.
    pub(super) optimized: bool,
    best: u8,
}

/// A lane and its rank, by what health and storage tell of it.
#[derive(Debug)]
pub(super) struct RankedLane {
    pub(super) weight: u32,
    reserve: bool,
    usage: Use,
    access: AluaState,
    suspect: bool,
    /// The less, the better; `OUT` for one that cannot be used.
    rank: u8,
}

const OUT: u8 = u8::MAX;

impl RankedLane {
    fn rank(&self) -> u8 {
        if self.usage == Use::Out || !self.access.is_active() {
            return OUT;
        }
        let reserve = self.reserve || self.usage == Use::Reserve;
        u8::from(self.suspect) << 2 | u8::from(reserve) << 1 | u8::from(self.access != AluaState::Optimized)
    }
}

impl Roster {
    /// All lanes are out.
    pub(super) fn new(lanes: &[LaneShape]) -> Self {
        let lanes = lanes
            .iter()
            .map(|shape| RankedLane {
                weight: shape.weight,
                reserve: shape.reserve,
                usage: Use::Out,
                access: AluaState::Optimized,
                suspect: false,
                rank: OUT,
            })
            .collect();
        Self { lanes, candidates: Vec::new(), optimized: false, best: OUT }
    }

    pub(super) fn is_candidate(&self, lane: LaneId) -> bool {
        self.best != OUT && self.lanes[lane].rank == self.best
    }

    /// Says what health thinks of a lane; true if it was out and is not.
    pub(super) fn set_use(&mut self, lane: LaneId, usage: Use) -> bool {
        let before = std::mem::replace(&mut self.lanes[lane].usage, usage);
        self.rank_anew();
        before == Use::Out && usage != Use::Out
    }

    /// Says what the storage thinks of a lane; true if it was closed to I/O and is not.
    pub(super) fn set_access(&mut self, lane: LaneId, access: AluaState) -> bool {
        let before = std::mem::replace(&mut self.lanes[lane].access, access);
        self.rank_anew();
        !before.is_active() && access.is_active()
    }

    pub(super) fn set_suspect(&mut self, lane: LaneId, suspect: bool) {
        self.lanes[lane].suspect = suspect;
        self.rank_anew();
    }

    fn rank_anew(&mut self) {
        for lane in &mut self.lanes {
            lane.rank = lane.rank();
        }
        let best = self.lanes.iter().map(|lane| lane.rank).min().unwrap_or(OUT);
        self.candidates.clear();
        if best != OUT {
            self.candidates.extend((0..self.lanes.len()).filter(|&lane| self.lanes[lane].rank == best));
        }
        self.best = best;
        self.optimized = best & 1 == 0;
    }
}
