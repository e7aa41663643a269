//! Rules about the neighbours that iSCSI connections lead to: what the kernel's table of them (ARP, NDP) tells unasked.

use std::collections::BTreeSet;
use std::net::IpAddr;

use lunway_block::Severity;

use super::network::peers;
use super::{Group, Rule, listed};
use crate::facts::{Facts, Neighbour, Peer};
use crate::looks::APART_MIN_S;
use crate::verdict::{Outcome, Verdict};

/// Moves of an address within a day that a cluster makes: a failover, and the way back.
const MOVES_MAX: usize = 2;

const APPLIES: &str = "iSCSI connections to other machines, IPv4 and IPv6";

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "neighbour-answers",
        group: Group::Network,
        title: "The next hop of each iSCSI connection answers for its address",
        severity: Severity::Warning,
        applies: APPLIES,
        why: "no packet of the connection can be sent: the kernel asks 3 times, 1 s apart, and then reports the other end as unreachable; a \
              session notices by its ping, after 5 s or more",
        source: "Linux ip-sysctl: mcast_solicit 3, retrans_time_ms 1000; open-iscsi's pings",
        thumbs: &[],
        fix: "ip -statistics neighbour show {hop}    # then check the cable, the switch, and whether the other machine has the address",
        undo: "",
        check: |facts| neighbours(facts, answers),
    },
    Rule {
        id: "neighbour-owner",
        group: Group::Network,
        title: "The next hop of each iSCSI connection keeps its hardware address",
        severity: Severity::Warning,
        applies: APPLIES,
        why: "an address that two machines have moves between them as the kernel asks anew, every 15 to 45 s: I/O stops and goes on, which \
              looks like a loose cable",
        source: "RFC 5227 §2.4; Linux's base_reachable_time of 30 s, halved to one and a half times; moves of a day, a failover and its \
                 return excepted",
        thumbs: &[3, 10],
        fix: "ip neighbour show {hop}    # which machines have these hardware addresses? Give one of them another address; lunway doctor DEVICE \
              --probe asks for all owners",
        undo: "",
        check: |facts| neighbours(facts, owner),
    },
];

/// Judges the neighbour of each connection, by its address and port.
fn neighbours(facts: &Facts, judge: fn(&Neighbour, IpAddr, &str) -> Outcome) -> Vec<Outcome> {
    let mut judged = BTreeSet::new();
    peers(facts, |peer: &Peer, _, (port, gateway)| {
        let hop = gateway.unwrap_or(peer.remote);
        // Connections share what they go through.
        if !judged.insert((port.to_owned(), hop)) {
            return None;
        }
        let outcome = match peer.neighbour.known() {
            Ok(neighbour) => judge(neighbour, hop, port),
            Err(why) => Outcome::unknown(port, format!("the neighbour {hop} at {port}: {why}")),
        };
        Some(outcome.with("hop", hop))
    })
}

fn answers(neighbour: &Neighbour, hop: IpAddr, port: &str) -> Outcome {
    let what = match neighbour.failed {
        true => format!("{hop} does not answer for its address at {port}"),
        false => format!("{hop} at {port} has the hardware address {}", neighbour.mac),
    };
    Outcome::judged(!neighbour.failed, Verdict::Bad, port, what)
}

fn owner(neighbour: &Neighbour, hop: IpAddr, port: &str) -> Outcome {
    let moves = neighbour.owners.len().saturating_sub(1);
    let mut owners: Vec<String> = neighbour.owners.clone();
    owners.sort();
    owners.dedup();
    let known = neighbour.known_for_s;
    if moves <= MOVES_MAX && known < APART_MIN_S {
        let minutes = APART_MIN_S / 60;
        let what = format!(
            "whether {hop} at {port} keeps its hardware address: the first look at it was {known} s ago, look again in {minutes} minutes or more"
        );
        return Outcome::unknown(port, what);
    }
    let what = match moves {
        0 => format!(
            "{hop} at {port} had one hardware address at all looks, the first {} minutes ago",
            known / 60
        ),
        _ => format!(
            "{hop} at {port} changed its hardware address {moves} times in a day, among {}",
            listed(owners)
        ),
    };
    Outcome::judged(moves <= MOVES_MAX, Verdict::Warn, port, what)
}
