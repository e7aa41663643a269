//! The lanes of each kind of plan.

use std::collections::HashMap;

use super::cells::{Cell, cells};
use super::{
    Inventory, LANES_MAX, LocalPort, Plan, PlanError, PlanKind, PlannedLane, Portal, Wish, findings,
};

pub(super) fn plan(wish: &Wish, inventory: &Inventory<'_>) -> Result<Plan, PlanError> {
    let kind = match wish.kind {
        _ if wish.lanes.is_empty() && wish.kind == Some(PlanKind::Explicit) => {
            return Err(PlanError::NoLanes);
        }
        None | Some(PlanKind::Explicit) if !wish.lanes.is_empty() => Some(PlanKind::Explicit),
        Some(kind) if !wish.lanes.is_empty() => return Err(PlanError::LanesUnasked(kind)),
        kind => kind,
    };
    if kind == Some(PlanKind::Explicit) {
        return explicit(wish, inventory);
    }
    if inventory.portals.is_empty() {
        return Err(PlanError::NoPortals);
    }
    let mut reasons = Vec::new();
    let mut cells = cells(wish, inventory);
    leave_out_routed(&mut cells, &mut reasons);
    let kind = kind.unwrap_or_else(|| default_kind(&cells, &mut reasons));
    let mut draft = Draft::default();
    for cell in &cells {
        draft.fill(kind, cell, &mut reasons);
    }
    if draft.lanes.is_empty() {
        let family = if inventory.portals[0].address.is_ipv4() { "IPv4" } else { "IPv6" };
        return Err(PlanError::Unreached(family.to_owned()));
    }
    idle(&draft, &cells, &mut reasons);
    draft.finish(kind, reasons, wish, inventory)
}

/// Leaves out portals that only a router reaches if subnets reach others (rule 7), unless the user wants them.
fn leave_out_routed(cells: &mut Vec<Cell>, reasons: &mut Vec<String>) {
    if !cells.iter().any(|cell| cell.network.is_some()) {
        return;
    }
    for cell in cells.iter_mut().filter(|cell| cell.network.is_none()) {
        let (named, left): (Vec<_>, Vec<_>) =
            std::mem::take(&mut cell.portals).into_iter().partition(|portal| portal.named);
        cell.portals = named;
        for portal in left {
            reasons.push(format!(
                "{} is left out: no local address is in its subnet, and others are reached without a router (rule 7); \
                 name it with portal= to use it",
                portal.address
            ));
        }
    }
    cells.retain(|cell| !cell.portals.is_empty());
}

fn default_kind(cells: &[Cell], reasons: &mut Vec<String>) -> PlanKind {
    let pairs = |cell: &Cell| cell.network.is_some() && cell.locals.len() == cell.portals.len();
    if cells.iter().all(pairs) {
        reasons.push("paired, as every subnet has as many local ports as portals (rule 5)".to_owned());
        PlanKind::Paired
    } else {
        reasons.push(
            "balanced, as local ports and portals do not pair by subnet: every one of them is used, as evenly as \
             their numbers allow"
                .to_owned(),
        );
        PlanKind::Balanced
    }
}

/// Lanes as index pairs of a cell; neighbours share as few ports as possible, so that requests that go over them in
/// turns changes ports too.
fn pairs(kind: PlanKind, locals: usize, portals: usize) -> Vec<(usize, usize, bool)> {
    if locals == 0 || portals == 0 {
        return Vec::new();
    }
    let few = locals.min(portals);
    let mesh = (0..portals).flat_map(|turn| (0..locals).map(move |local| (local, (local + turn) % portals)));
    match kind {
        PlanKind::Paired => (0..few).map(|n| (n, n, false)).collect(),
        PlanKind::Balanced => (0..locals.max(portals)).map(|n| (n % locals, n % portals, false)).collect(),
        PlanKind::Mesh | PlanKind::Explicit => mesh.map(|(local, portal)| (local, portal, false)).collect(),
        PlanKind::Redundant => {
            let pair = |local: usize, portal: usize| local == portal && local < few;
            let mut all: Vec<_> = mesh.map(|(local, portal)| (local, portal, !pair(local, portal))).collect();
            all.sort_by_key(|(.., reserve)| *reserve);
            all
        }
    }
}

/// Reports the ports and portals that are left idle, with the plan that would use them.
fn idle(draft: &Draft, cells: &[Cell], reasons: &mut Vec<String>) {
    for cell in cells {
        let local = |port: &&LocalPort| !draft.lanes.iter().any(|lane| lane.near == Some(port.ip));
        let leads_to =
            |lane: &PlannedLane, to: &Portal| lane.portal == to.address && lane.target == to.target;
        let portal = |portal: &&Portal| !draft.lanes.iter().any(|lane| leads_to(lane, portal));
        let idle: Vec<_> = (cell.locals.iter().filter(local).map(LocalPort::title))
            .chain(cell.portals.iter().filter(portal).map(|portal| portal.address.to_string()))
            .collect();
        if !idle.is_empty() {
            let (list, carries) = (idle.join(", "), if idle.len() == 1 { "carries" } else { "carry" });
            reasons.push(format!(
                "{list} {carries} nothing, as there is no counterpart left: plan=redundant keeps lanes there in reserve, \
                 plan=balanced uses them"
            ));
        }
    }
}

fn explicit(wish: &Wish, inventory: &Inventory<'_>) -> Result<Plan, PlanError> {
    let mut draft = Draft::default();
    for lane in &wish.lanes {
        let is_it = |portal: &&Portal| portal.address == lane.portal && portal.target == lane.target;
        let target = lane.target.clone();
        let portal = inventory.portals.iter().find(is_it).cloned();
        let portal = portal.unwrap_or(Portal { address: lane.portal, target, group: None, named: true });
        draft.add(&inventory.local(lane.from), &portal, true, lane.reserve, "named".to_owned());
    }
    let reason = match wish.lanes.len() {
        1 => "one lane: the address names one path",
        _ => "explicit, as the lanes were named one by one",
    };
    let reasons = vec![reason.to_owned()];
    draft.finish(PlanKind::Explicit, reasons, wish, inventory)
}

/// Lanes so far, and the numbers of their ports.
#[derive(Default)]
struct Draft {
    lanes: Vec<PlannedLane>,
    near: HashMap<String, u32>,
    far: HashMap<std::net::SocketAddr, u32>,
}

impl Draft {
    fn fill(&mut self, kind: PlanKind, cell: &Cell, reasons: &mut Vec<String>) {
        let where_ = cell.network.map_or("no common subnet".to_owned(), |network| network.to_string());
        let (locals, portals) = (cell.locals.len(), cell.portals.len());
        if locals == 0 {
            let all: Vec<_> = cell.portals.iter().map(|portal| portal.address.to_string()).collect();
            reasons
                .push(format!("{} cannot be reached from here: the kernel knows no route", all.join(", ")));
            return;
        }
        for (local, portal, reserve) in pairs(kind, locals, portals) {
            let (local, portal) = (&cell.locals[local], &cell.portals[portal]);
            let reason = match (cell.network, kind, reserve) {
                (None, ..) => "routed".to_owned(),
                (Some(_), PlanKind::Paired | PlanKind::Redundant, false) => format!("one to one in {where_}"),
                (Some(_), _, true) => format!("the rest of the mesh in {where_}, in reserve"),
                (Some(_), PlanKind::Balanced, _) => format!("spread evenly in {where_}"),
                (Some(_), ..) => format!("every port with every portal in {where_}"),
            };
            let reason = if local.carrier { reason } else { format!("{reason}; no carrier now") };
            self.add(local, portal, cell.bound, reserve, reason);
        }
    }

    fn add(&mut self, local: &LocalPort, portal: &Portal, bound: bool, reserve: bool, reason: String) {
        let again = |lane: &PlannedLane| {
            lane.near == Some(local.ip) && lane.portal == portal.address && lane.target == portal.target
        };
        if self.lanes.iter().any(again) {
            return;
        }
        let (nears, fars) = (self.near.len() as u32, self.far.len() as u32);
        self.lanes.push(PlannedLane {
            from: bound.then_some(local.ip),
            near: Some(local.ip),
            interface: (!local.interface.is_empty()).then(|| local.interface.clone()),
            near_port: *self.near.entry(local.key()).or_insert(nears),
            portal: portal.address,
            target: portal.target.clone(),
            far_port: *self.far.entry(portal.address).or_insert(fars),
            group: portal.group,
            reserve,
            weight: 1,
            speed: local.speed,
            reason,
        });
    }

    fn finish(
        mut self,
        kind: PlanKind,
        reasons: Vec<String>,
        wish: &Wish,
        inventory: &Inventory<'_>,
    ) -> Result<Plan, PlanError> {
        if self.lanes.len() > LANES_MAX {
            return Err(PlanError::TooMany(self.lanes.len()));
        }
        for (n, lane) in self.lanes.iter_mut().enumerate() {
            let is_it = |named: &&super::NamedLane| {
                lane.near == Some(named.from) && lane.portal == named.portal && lane.target == named.target
            };
            let own = wish.lanes.iter().find(is_it).and_then(|named| named.weight);
            lane.weight = own.or(wish.weights.get(n).copied()).unwrap_or(1);
        }
        let warnings = findings::findings(&self.lanes, inventory);
        Ok(Plan { kind, lanes: self.lanes, reasons, warnings })
    }
}
