//! Cells of a plan: pairs of a local port and a portal that it reaches.

use std::collections::HashSet;
use std::net::IpAddr;

use ipnet::IpNet;

use super::{Inventory, LocalPort, Portal, Wish};

/// Local ports and portals of which each reaches each: those of one subnet, or, without one, those that are tied by
/// routes.
#[derive(Debug)]
pub(super) struct Cell {
    pub(super) network: Option<IpNet>,
    pub(super) locals: Vec<LocalPort>,
    pub(super) portals: Vec<Portal>,
    /// The user said where to leave from: a lane is bound to that also where the kernel would choose another.
    pub(super) bound: bool,
}

/// Every portal in one cell: in that of the narrowest subnet which a usable port shares with it, else in one without a
/// subnet.
pub(super) fn cells(wish: &Wish, inventory: &Inventory<'_>) -> Vec<Cell> {
    let usable = usable(wish, inventory);
    let mut cells: Vec<Cell> = Vec::new();
    let mut routed: Vec<Portal> = Vec::new();
    for portal in &inventory.portals {
        let ip = portal.address.ip();
        let around = usable.iter().map(|port| port.network.trunc()).filter(|network| network.contains(&ip));
        let Some(network) = around.max_by_key(IpNet::prefix_len) else {
            routed.push(portal.clone());
            continue;
        };
        match cells.iter_mut().find(|cell| cell.network == Some(network)) {
            Some(cell) => cell.portals.push(portal.clone()),
            None => {
                let locals = usable.iter().filter(|port| port.network.trunc() == network).cloned().collect();
                cells.push(Cell {
                    network: Some(network),
                    locals,
                    portals: vec![portal.clone()],
                    bound: true,
                });
            }
        }
    }
    for portal in routed {
        route(portal, wish, inventory, &usable, &mut cells);
    }
    cells.iter_mut().for_each(|cell| spread_groups(&mut cell.portals));
    cells
}

/// The addresses to leave from: those that were named; else one address of each card in each network, as a second one
/// there is no second port, and none that is a portal itself, where the storage is this machine.
fn usable(wish: &Wish, inventory: &Inventory<'_>) -> Vec<LocalPort> {
    if !wish.from.is_empty() {
        let mut seen = HashSet::new();
        return wish.from.iter().filter(|ip| seen.insert(**ip)).map(|ip| inventory.local(*ip)).collect();
    }
    let is_portal = |port: &LocalPort| {
        inventory.portals.iter().any(|portal| portal.address.ip() == port.ip) && !port.loopback
    };
    let mut seen = HashSet::new();
    let first = |port: &&LocalPort| seen.insert((port.card.clone(), port.network.trunc()));
    inventory.locals.iter().filter(|port| !is_portal(port)).filter(first).cloned().collect()
}

/// A portal in no subnet: from all that was named, else from where the kernel would leave.
fn route(
    portal: Portal,
    wish: &Wish,
    inventory: &Inventory<'_>,
    usable: &[LocalPort],
    cells: &mut Vec<Cell>,
) {
    let ip = portal.address.ip();
    let locals: Vec<LocalPort> = if wish.from.is_empty() {
        let source = (inventory.route)(None, ip).and_then(|route| route.source);
        source.map(|source| inventory.local(source)).into_iter().collect()
    } else {
        usable.iter().filter(|port| port.ip.is_ipv4() == ip.is_ipv4()).cloned().collect()
    };
    let addresses = |locals: &[LocalPort]| locals.iter().map(|port| port.ip).collect::<Vec<IpAddr>>();
    let same = |cell: &&mut Cell| cell.network.is_none() && addresses(&cell.locals) == addresses(&locals);
    match cells.iter_mut().find(same) {
        Some(cell) => cell.portals.push(portal),
        None => {
            let bound = !wish.from.is_empty();
            cells.push(Cell { network: None, locals, portals: vec![portal], bound });
        }
    }
}

/// Portals of different groups, and of different names, in turns, so that the first few are of all:
/// groups are often controllers.
fn spread_groups(portals: &mut Vec<Portal>) {
    let mut rest = std::mem::take(portals);
    while !rest.is_empty() {
        let mut seen = HashSet::new();
        let (taken, left): (Vec<_>, Vec<_>) =
            rest.into_iter().partition(|portal| seen.insert((portal.target.clone(), portal.group)));
        portals.extend(taken);
        rest = left;
    }
}
