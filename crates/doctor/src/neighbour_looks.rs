//! Earlier looks at neighbours, by which an address that moves between machines is found.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::facts::{Facts, Neighbour};
use crate::seen::Seen;

/// Seconds after which a move is forgotten: more than a failover and its return in one day is no failover.
const KEPT_S: u64 = 86_400;
/// Neighbours that are remembered, and moves of each: as many as ends of connections are looked at, and more moves than
/// a reader counts.
const NEIGHBOURS_MAX: usize = 256;
const MOVES_MAX: usize = 32;

/// Looks at neighbours, as they are kept in a file between two runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NeighbourLooks {
    neighbours: Vec<Known>,
}

/// One neighbour of a port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Known {
    port: String,
    address: IpAddr,
    /// Time of the first look, seconds since 1970.
    since: u64,
    /// Hardware addresses, each with the time at which it was first seen after another one. The oldest first.
    owners: Vec<(u64, String)>,
}

impl NeighbourLooks {
    /// Parses the looks of a file.
    ///
    /// # Errors
    ///
    /// A clause: what is not a file of looks.
    pub fn parse(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    /// Tells each neighbour of a machine which hardware addresses it had at earlier looks, and keeps this one. `now` is
    /// in seconds since 1970. Returns `true` if there is something new to be kept.
    pub fn compare(&mut self, now: u64, facts: &mut Facts) -> bool {
        let Some(Seen::Value(peers)) = &mut facts.peers else { return false };
        let mut is_new = false;
        for peer in peers {
            let (Some(route), Seen::Value(neighbour)) = (peer.route.get(), &mut peer.neighbour) else {
                continue;
            };
            if !neighbour.mac.is_empty() {
                let address = route.gateway.unwrap_or(peer.remote);
                is_new |= self.look(now, &route.port, address, neighbour);
            }
        }
        is_new
    }

    fn look(&mut self, now: u64, port: &str, address: IpAddr, neighbour: &mut Neighbour) -> bool {
        // A clock that was set back makes later looks of earlier ones.
        self.neighbours.retain(|known| known.since <= now);
        let of = |known: &Known| known.port == port && known.address == address;
        let at = self.neighbours.iter().position(of).unwrap_or_else(|| {
            let more = (self.neighbours.len() + 1).saturating_sub(NEIGHBOURS_MAX);
            self.neighbours.drain(..more);
            self.neighbours.push(Known { port: port.to_owned(), address, since: now, owners: Vec::new() });
            self.neighbours.len() - 1
        });
        let known = &mut self.neighbours[at];
        let is_new = known.owners.last().is_none_or(|(_, mac)| *mac != neighbour.mac);
        if is_new {
            known.owners.push((now, neighbour.mac.clone()));
        }
        // Of the moves before the last day only where they led to counts.
        let old = known.owners.iter().filter(|(at, _)| now.saturating_sub(*at) > KEPT_S).count();
        let more = old.saturating_sub(1).max(known.owners.len().saturating_sub(MOVES_MAX));
        known.owners.drain(..more);
        neighbour.owners = known.owners.iter().map(|(_, mac)| mac.clone()).collect();
        neighbour.known_for_s = now - known.since;
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{Peer, Role, Route};

    fn look(looks: &mut NeighbourLooks, now: u64, mac: &str) -> Neighbour {
        let neighbour = Neighbour { mac: mac.to_owned(), ..Neighbour::default() };
        let peer = Peer {
            local: [10, 0, 0, 1].into(),
            remote: [10, 0, 0, 2].into(),
            role: Role::Initiator,
            route: Seen::Value(Route { port: "eth1".to_owned(), gateway: None }),
            flow: Seen::default(),
            neighbour: Seen::Value(neighbour),
        };
        let mut facts = Facts { peers: Some(Seen::Value(vec![peer])), ..Facts::default() };
        looks.compare(now, &mut facts);
        let peers = facts.peers.and_then(|peers| peers.get().cloned()).unwrap_or_default();
        peers[0].neighbour.get().cloned().unwrap_or_default()
    }

    #[test]
    fn moves_of_a_day_are_told_and_older_ones_are_forgotten() {
        let mut looks = NeighbourLooks::default();
        let mut owners = |now, mac| {
            let neighbour = look(&mut looks, now, mac);
            (neighbour.owners.concat(), neighbour.known_for_s)
        };
        assert_eq!(owners(1000, "a"), ("a".to_owned(), 0));
        assert_eq!(owners(1010, "a"), ("a".to_owned(), 10));
        assert_eq!(owners(1020, "b"), ("ab".to_owned(), 20));
        assert_eq!(owners(1030, ""), (String::new(), 0), "one that does not answer is no move");
        assert_eq!(owners(1040, "a"), ("aba".to_owned(), 40));
        assert_eq!(owners(1050 + KEPT_S, "a"), ("a".to_owned(), 50 + KEPT_S));
        assert_eq!(owners(1060 + KEPT_S, "b"), ("ab".to_owned(), 60 + KEPT_S));
        assert_eq!(owners(900, "b"), ("b".to_owned(), 0), "the clock was set back");
    }

    #[test]
    fn what_is_kept_of_neighbours_is_bounded_and_odd_files_are_refused() {
        let mut looks = NeighbourLooks::default();
        for now in 0..100 {
            look(&mut looks, now, &now.to_string());
        }
        assert_eq!(looks.neighbours[0].owners.len(), MOVES_MAX);
        for n in 0..300u16 {
            let address = IpAddr::from([10, 1, n.to_be_bytes()[0], n.to_be_bytes()[1]]);
            let mut neighbour = Neighbour { mac: "a".to_owned(), ..Neighbour::default() };
            looks.look(100, "eth1", address, &mut neighbour);
        }
        assert_eq!(looks.neighbours.len(), NEIGHBOURS_MAX);
        let text = serde_json::to_string(&looks).unwrap_or_default();
        assert_eq!(NeighbourLooks::parse(&text).as_ref(), Ok(&looks));
        for text in ["", "7", "{\"neighbours\":7}", "{\"neighbours\":[{\"port\":1}]}"] {
            assert!(NeighbourLooks::parse(text).is_err(), "{text}");
        }
    }
}
