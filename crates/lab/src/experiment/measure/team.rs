//! Cards as one team: a hash chooses the card.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::error::LabError;
use crate::experiment::measure::run_error::RunError;
use crate::experiment::measure::target::PORT;
use crate::experiment::plan::run::Run;
use crate::network::{LiveHost, Network};

/// Addresses and ports go into the hash, not addresses alone: what switches call layer 3+4.
const HASH: (&str, &str) = ("net/ipv4/fib_multipath_hash_policy", "1");

/// The paths of a run as a team of cards, as a load-balancing team without multipath is one: both hosts have one
/// address for all cards, a session is one flow, and a hash of the flow chooses the card that it leaves by. The
/// kernel's own equal-cost routes do that, so the switches need not know.
///
/// A flow stays on its card. So one session has the speed of one card, and two may meet on the same.
#[derive(Debug)]
pub(crate) struct Team {
    /// The run.
    test: String,
    /// The address of the host that reads and writes.
    near: Ipv4Addr,
    /// The target, and the address of its host.
    target: String,
    far: Ipv4Addr,
    sessions: u16,
}

impl Team {
    /// Gives both hosts of a run their addresses and routes. `number` tells teams of one network apart.
    pub(crate) fn build(network: &Network, run: &Run, number: usize) -> Result<Option<Self>, RunError> {
        let Some(sessions) = run.team else { return Ok(None) };
        let third = u8::try_from(number + 1).unwrap_or(u8::MAX);
        let [near, far] = [1, 2].map(|last| Ipv4Addr::new(10, 78, third, last));
        let (host, storage) = (network.host(&run.from)?, network.host(&run.target)?);
        let mut there = Vec::new();
        let mut back = Vec::new();
        for path in &run.paths {
            let own = network.topology().card(&path.leaves, &run.from);
            let other = network.topology().card(&path.enters, &run.target);
            there.push(format!("nexthop via {} dev {own}", storage.address(other)?));
            back.push(format!("nexthop via {} dev {other}", host.address(own)?));
        }
        join(host, near, far, &there)?;
        join(storage, far, near, &back)?;
        Ok(Some(Self { test: run.test.clone(), near, target: run.target.clone(), far, sessions }))
    }

    /// Returns `true` if it is that of this run.
    pub(crate) fn is_of(&self, run: &Run) -> bool {
        self.test == run.test
    }

    /// Returns the portals on which the target of a host must listen for the team.
    pub(crate) fn portals(&self, host: &str) -> impl Iterator<Item = SocketAddr> {
        let ports = if self.target == host { self.sessions } else { 0 };
        (0..ports).map(|port| SocketAddr::new(self.far.into(), PORT + port))
    }

    /// Its sessions: from where to where. Every one has a port of its own at the target, so that no two are one flow.
    pub(crate) fn sessions(&self) -> Vec<(IpAddr, SocketAddr)> {
        self.portals(&self.target).map(|portal| (self.near.into(), portal)).collect()
    }
}

/// Gives a host its address in the team, and the ways to the other's.
fn join(host: &LiveHost, own: Ipv4Addr, other: Ipv4Addr, ways: &[String]) -> Result<(), LabError> {
    host.set(HASH.0, HASH.1)?;
    host.ip(&[
        format!("addr add {own}/32 dev lo"),
        format!("route add {other}/32 src {own} {}", ways.join(" ")),
    ])
}
