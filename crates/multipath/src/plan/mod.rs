//! From ports and portals to lanes, with reasons and warnings. Pure: what the machine and the storage have is handed
//! in.
//!
//! | file | is |
//! |---|---|
//! | `inventory.rs` | the input: local ports, portals, the kernel's routes |
//! | `cells.rs` | which port reaches which portal: by subnet, or by the kernel's route |
//! | `choose.rs` | the lanes of each kind of plan |
//! | `findings.rs` | the rules of thumb that a plan breaks |

mod cells;
mod choose;
mod findings;
mod inventory;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use lunway_block::Finding;

use crate::{LaneShape, Port};

pub use inventory::{Inventory, LocalPort, Portal, Route};

/// As many as a disk may have paths in Windows (MSDSM).
pub const LANES_MAX: usize = 32;

/// Rule by which ports and portals become lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PlanKind {
    /// One to one: a local port and a portal of its subnet. No port is used twice.
    Paired,
    /// As few lanes as use every port and every portal, spread evenly.
    Balanced,
    /// Every local port with every portal that it reaches in its subnet.
    Mesh,
    /// As `Paired`, and the rest of the mesh in reserve: it carries something only when nothing else is left.
    Redundant,
    /// As they were named, one by one.
    Explicit,
}

/// The names, for texts that list them.
pub const PLAN_KINDS: &str = "paired, balanced, mesh, redundant, explicit";

impl fmt::Display for PlanKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Paired => "paired",
            Self::Balanced => "balanced",
            Self::Mesh => "mesh",
            Self::Redundant => "redundant",
            Self::Explicit => "explicit",
        })
    }
}

/// A name that no plan has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a plan; plans are {PLAN_KINDS}")]
pub struct UnknownPlan(pub String);

impl FromStr for PlanKind {
    type Err = UnknownPlan;

    fn from_str(text: &str) -> Result<Self, UnknownPlan> {
        Ok(match text {
            "paired" => Self::Paired,
            "balanced" => Self::Balanced,
            "mesh" => Self::Mesh,
            "redundant" => Self::Redundant,
            "explicit" => Self::Explicit,
            _ => return Err(UnknownPlan(text.to_owned())),
        })
    }
}

/// The user's wishes for a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    /// `None`: paired where subnets pair, else balanced.
    pub kind: Option<PlanKind>,
    /// Local addresses to leave from; empty: all that the machine has.
    pub from: Vec<IpAddr>,
    /// The lanes of an explicit plan.
    pub lanes: Vec<NamedLane>,
    /// Weights of the lanes in the plan's order, those that have none of their own; where there are too few, the rest
    /// has 1.
    pub weights: Vec<u32>,
}

/// A lane of an explicit plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedLane {
    /// Local address.
    pub from: IpAddr,
    /// Portal that it leads to.
    pub portal: SocketAddr,
    /// The target's name there, where it is not the address's.
    pub target: Option<String>,
    /// Its weight.
    pub weight: Option<u32>,
    /// Carries something only when no other is left.
    pub reserve: bool,
}

/// Lanes, why they are these, and what speaks against them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Kind of the plan: how the lanes were chosen.
    pub kind: PlanKind,
    /// In an order in which neighbours share as few ports as possible.
    pub lanes: Vec<PlannedLane>,
    /// A sentence for each rule that was followed, and for what was left out.
    pub reasons: Vec<String>,
    /// Rules that it breaks.
    pub warnings: Vec<Finding>,
}

/// One lane of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedLane {
    /// Local address that it is bound to; `None`: the kernel chooses.
    pub from: Option<IpAddr>,
    /// The address that it leaves from: `from`, or what the kernel would choose now.
    pub near: Option<IpAddr>,
    /// The interface of that address, where it is known.
    pub interface: Option<String>,
    /// Number of the card behind it: lanes with the same one share its rate. Different for each loopback address.
    pub near_port: u32,
    /// Portal that it leads to.
    pub portal: SocketAddr,
    /// The target's name there, where it is not the address's.
    pub target: Option<String>,
    /// Number of the portal, among those of the plan.
    pub far_port: u32,
    /// Tag of its portal group, where it is known.
    pub group: Option<u16>,
    /// Carries something only when no other is left.
    pub reserve: bool,
    /// Weight for policies that use weights.
    pub weight: u32,
    /// Speed that the card negotiated, bits per second.
    pub speed: Option<u64>,
    /// Reason why there is this lane.
    pub reason: String,
}

impl PlannedLane {
    /// `LOCAL > PORTAL`, which is what it is called everywhere; with the target behind a comma where that has a name of
    /// its own there.
    pub fn name(&self) -> String {
        let near = self.near.map_or("any".to_owned(), |near| near.to_string());
        match &self.target {
            Some(target) => format!("{near} > {},{target}", self.portal),
            None => format!("{near} > {}", self.portal),
        }
    }

    /// As the scheduler knows it.
    pub fn shape(&self) -> LaneShape {
        LaneShape {
            name: self.name(),
            near: Port(self.near_port),
            far: Port(self.far_port),
            weight: self.weight,
            reserve: self.reserve,
            rate_hint: self.speed.map(|bits| bits / 8),
        }
    }
}

/// Reason why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// No portal to plan with.
    #[error("the storage reports no usable portal")]
    NoPortals,
    /// An explicit plan without lanes.
    #[error("an explicit plan takes its lanes one by one, as in lane=192.0.2.20>192.0.2.10:3260")]
    NoLanes,
    /// Lanes were named for another plan.
    #[error("lanes are named one by one (plan=explicit), but plan={0} is given")]
    LanesUnasked(PlanKind),
    /// No local address reaches any portal.
    #[error("no local address of the kind {0} reaches any portal")]
    Unreached(String),
    /// Too many.
    #[error(
        "this makes {0} lanes, and at most {LANES_MAX} are possible: name fewer portals or local addresses, or plan=paired"
    )]
    TooMany(usize),
}

impl Plan {
    /// Makes a plan of what there is.
    pub fn make(wish: &Wish, inventory: &Inventory<'_>) -> Result<Self, PlanError> {
        choose::plan(wish, inventory)
    }

    /// Number of lanes that carry something when all is well.
    pub fn active(&self) -> usize {
        self.lanes.iter().filter(|lane| !lane.reserve).count()
    }
}
