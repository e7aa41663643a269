//! Rules about the lanes of a disk: what its plan breaks, and what probes measured.

use lunway_block::Severity;

use super::{Group, Rule, listed};
use crate::facts::{Facts, Lane, LaneProbe, LanePull, Lanes};
use crate::probe::NO_ANSWER;
use crate::seen::Seen;
use crate::verdict::{Outcome, Verdict};

const PLAN: &str = "disks that are named to doctor";
const PROBED: &str = "lanes of a disk, with --probe";
const PULLED: &str = "lanes of a disk that has several, with --pull";

/// Share of segments that may be lost or out of order.
const LOSS_MAX: f64 = 1e-4;
/// Segments below which a share says nothing; a single one lost of these is the largest share that is let pass.
const SEGMENTS_MIN: u64 = 1000;
/// Bytes of the headers of IPv6 and TCP with its options, and what a kernel rounds off.
const HEADERS_MAX: u32 = 80;
/// Largest ratio of the fastest tenth of a lane's round trips to that of the fastest lane. Medians differ by more on a
/// machine with more processes than cores, where sessions are on different ones.
const UNEQUAL_MAX: f64 = 2.0;
/// Round trips below this, microseconds, differ by the scheduling of two processes alone.
const UNEQUAL_MIN_US: f64 = 500.0;
/// Reads of a hundred that may take as long as a delayed acknowledgement: one that had to wait for a disk or for a lost
/// segment is no pattern.
const HELD_BACK_MAX: u32 = 2;
/// Largest ratio of the slowest 1 % of reads to those over the best lane.
const SLOWEST_MAX: f64 = 4.0;
/// Times below this, microseconds, are those of a scheduler: processes of a busy machine wait some time slices of 3 ms
/// (21 ms were seen where both ends, a build and a guest shared two cores). A segment that is lost costs 200 ms or
/// more.
const SLOWEST_MIN_US: f64 = 50_000.0;
/// Milliseconds for which a read may wait when a lane is lost: what lunway promises for one that fell silent.
const PAUSE_MAX_MS: f64 = 1050.0;
/// Milliseconds until a lane that may connect again is there: two attempts of open-iscsi, which makes one every 2 s.
const RETURN_MAX_MS: f64 = 5000.0;

/// Numbers of logical units that a sentence lists: what fits on a line.
const LISTED_MAX: usize = 16;

macro_rules! of_plan {
    ($id:literal, $plan:literal, $title:literal, $why:literal, $source:literal, $thumbs:expr, $fix:literal) => {
        Rule {
            id: $id,
            group: Group::Lanes,
            title: $title,
            severity: Severity::Warning,
            applies: PLAN,
            why: $why,
            source: $source,
            thumbs: $thumbs,
            fix: $fix,
            undo: "",
            check: |facts| planned(facts, $plan),
        }
    };
}

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "lane-lun",
        group: Group::Lanes,
        title: "The target has the logical unit that the disk's address names",
        severity: Severity::Warning,
        applies: PLAN,
        why: "without it every lane logs in, and every command is refused with ILLEGAL REQUEST (no published figure)",
        source: "SPC-4 §6.33, REPORT LUNS: what is not listed has no logical unit for this initiator",
        thumbs: &[],
        fix: "name a LUN that is there in the address; at a target of lunway: lunway lun list; lunway acl list TARGET",
        undo: "",
        check: unit,
    },
    of_plan!(
        "lane-subnet",
        "rule-3",
        "Local ports of lanes are in subnets of their own, or routed by source",
        "the kernel routes by destination alone: both lanes leave by one card, and both are lost with its cable: one card carried \
         99 MB/s of reads and 108 MB/s of writes, two pairs 131 and 184 MB/s",
        "rule of thumb 3",
        &[3],
        "give each port a subnet of its own, or source-based routing rules"
    ),
    of_plan!(
        "lane-balance",
        "rule-5",
        "Every port has as many lanes as the others",
        "policies that count requests overload the port with fewer sessions (no published figure)",
        "KB 969748; rule of thumb 5",
        &[5],
        "use the same number for each port, or the policy adaptive, which takes the load of each port into account"
    ),
    of_plan!(
        "lane-mesh",
        "rule-6",
        "Lanes do not form a mesh",
        "a mesh of eight paths over four and two ports read 90 % and wrote 96 % slower than one path; two 1:1 paths read 32 % and wrote \
         70 % faster",
        "published tests of multipath topologies, tests B, C and D",
        &[6],
        "plan=redundant keeps the rest in reserve"
    ),
    of_plan!(
        "lane-router",
        "rule-7",
        "No lane crosses a router",
        "a router adds delay to every I/O, and is one more single point of failure (no published figure)",
        "rule of thumb 7",
        &[7],
        "give a local port an address in the storage's subnet"
    ),
    of_plan!(
        "lane-speed",
        "rule-8",
        "All ports of lanes have the same speed",
        "round robin over a gigabit port and a 100 Mb/s adapter was slower than the gigabit port alone",
        "published tests of unequal ports",
        &[8],
        "use ports of the same speed, or the policy adaptive, which measures their rates"
    ),
    of_plan!(
        "lane-overlap",
        "rule-10",
        "Networks of lanes' ports do not overlap",
        "the narrower one receives traffic that is meant for the other (no published figure)",
        "rule of thumb 10",
        &[10],
        "keep the networks apart"
    ),
    of_plan!(
        "lane-mtu-ports",
        "rule-11",
        "All ports of lanes have the same MTU",
        "a frame that is too large for a port on its way is lost (no published figure)",
        "rule of thumb 11",
        &[11],
        "use jumbo frames on all of a storage network or on none"
    ),
    of_plan!(
        "lane-single",
        "one-lane",
        "A disk has two lanes or more",
        "a fault anywhere on the only lane stops the disk (no published figure)",
        "rule of thumb 5",
        &[5],
        "add a local port or a portal"
    ),
    of_plan!(
        "lane-one-card",
        "one-card",
        "Lanes leave by different cards",
        "they share the rate of one card, and all fail with it: one card carried 99 MB/s of reads and 108 MB/s of writes, two \
         pairs 131 and 184 MB/s",
        "rule of thumb 5",
        &[5],
        "use a second card"
    ),
    of_plan!(
        "lane-one-portal",
        "one-portal",
        "Lanes lead to different portals",
        "they share the rate of one portal, and all fail with it (no published figure)",
        "rule of thumb 5",
        &[5],
        "have the target listen on a second address"
    ),
    of_plan!(
        "lane-address",
        "address-missing",
        "Local addresses of lanes exist on this machine",
        "lanes from an address that the machine does not have wait until it has (no published figure)",
        "lunway's plan of lanes",
        &[],
        "add the address to a card, or leave it out of from="
    ),
    of_plan!(
        "lane-carrier",
        "no-carrier",
        "Ports of lanes have a carrier",
        "lanes from a port without a carrier wait until there is one (no published figure)",
        "lunway's plan of lanes",
        &[22],
        "check the cable and the switch"
    ),
    Rule {
        id: "lane-answers",
        group: Group::Lanes,
        title: "Every lane answers",
        severity: Severity::Warning,
        applies: PROBED,
        why: "a lane that does not answer now is missing at the next fault (no published figure)",
        source: "rule of thumb 22: test it",
        thumbs: &[22],
        fix: "check the cable, the switch and the portal of {lane}; lunway paths DEVICE --watch",
        undo: "",
        check: |facts| {
            lanes(facts, |lane| match &lane.probe {
                Seen::Value(_) => Some(Outcome::ok(&lane.name, format!("{} answers", lane.name))),
                Seen::Unseen { unseen } => unseen
                    .strip_prefix(NO_ANSWER)
                    .map(|why| Outcome::bad(&lane.name, format!("{} does not answer{why}", lane.name))),
            })
        },
    },
    Rule {
        id: "lane-mtu",
        group: Group::Lanes,
        title: "The path of a lane supports the MTU of its port in both directions",
        severity: Severity::Warning,
        applies: PROBED,
        why: "small I/O works, but large I/O hangs until TCP gives up (no published figure)",
        source: "rule of thumb 11; Dell: +5 % throughput where it holds",
        thumbs: &[11],
        fix: "ip link set dev PORT mtu {mtu}    # or raise it at the switch and at the storage",
        undo: "ip link set dev PORT mtu {old}",
        check: |facts| {
            probed(facts, |lane, probe| {
                Some(match probe.path_mtu.known() {
                    Err(why) => Outcome::unknown(&lane.name, format!("the MTU of {}: {why}", lane.name)),
                    Ok(path) => {
                        let what = format!(
                            "{}: port with an MTU of {}, path with {path}",
                            lane.name, probe.port_mtu
                        );
                        let sound = *path >= probe.port_mtu;
                        let outcome = Outcome::judged(sound, Verdict::Bad, &lane.name, what);
                        outcome.with("mtu", path).with("old", probe.port_mtu)
                    }
                })
            })
        },
    },
    Rule {
        id: "lane-hops",
        group: Group::Lanes,
        title: "Packets of a lane pass no router, whatever the table of routes says",
        severity: Severity::Warning,
        applies: PROBED,
        why: "a router that answers for the portal's address (proxy ARP) is in no table of this machine, adds delay to every I/O, \
              and is one more single point of failure (no published figure)",
        source: "rule of thumb 7; RFC 791, time to live: the first router drops a packet that has 1",
        thumbs: &[7],
        fix: "connect the lane's port to the portal's network, or find what is between them: traceroute -n {far}",
        undo: "",
        check: |facts| {
            probed(facts, |lane, probe| {
                let outcome = match probe.direct.known() {
                    Err(why) => Outcome::unknown(&lane.name, format!("routers of {}: {why}", lane.name)),
                    Ok(direct) => {
                        let passes = if *direct { "pass no router" } else { "pass a router" };
                        let what = format!("packets of {} {passes}", lane.name);
                        Outcome::judged(*direct, Verdict::Warn, &lane.name, what)
                    }
                };
                let far = lane.portal.map_or("PORTAL".to_owned(), |portal| portal.ip().to_string());
                Some(outcome.with("far", far))
            })
        },
    },
    Rule {
        id: "lane-loss",
        group: Group::Lanes,
        title: "Under 0.01 % of a lane's segments are lost or out of order",
        severity: Severity::Warning,
        applies: "lanes over which a probe moved 1000 segments or more",
        why: "each loss halves TCP's window, and the last segment of a burst that is lost costs 200 ms",
        source: "administrators' rule on loss",
        thumbs: &[],
        fix: "replace the cable; check the switch's discards; switch flow control on: ethtool -A PORT rx on",
        undo: "",
        check: |facts| {
            probed(facts, |lane, probe| {
                let segments = match probe.segments.known() {
                    Ok(segments) => *segments,
                    Err(why) => {
                        return Some(Outcome::unknown(
                            &lane.name,
                            format!("segments of {}: {why}", lane.name),
                        ));
                    }
                };
                let what = format!("{}: {} of {segments} segments were lost or late", lane.name, probe.lost);
                if segments < SEGMENTS_MIN {
                    // Few that are lost of few are many all the same.
                    let few = format!("{what}, too few to judge");
                    return (probe.lost > 0).then(|| Outcome::unknown(&lane.name, few));
                }
                let sound = probe.lost as f64 / segments as f64 <= LOSS_MAX;
                Some(Outcome::judged(sound, Verdict::Warn, &lane.name, what))
            })
        },
    },
    Rule {
        id: "lane-mss",
        group: Group::Lanes,
        title: "TCP's segments fill the packets of a lane's port",
        severity: Severity::Note,
        applies: PROBED,
        why: "with segments of 1448 bytes on a port of 9000, 64 KiB are 46 packets instead of 8: the far port, or something \
              between, has a smaller MTU; jumbo frames gain 5 % of throughput and 2 to 3 % of the processor",
        source: "RFC 6691; Dell's guides; rule of thumb 11",
        thumbs: &[11],
        fix: "raise the MTU at the storage and at the switch to that of the port of {lane}",
        undo: "",
        check: |facts| {
            probed(facts, |lane, probe| match probe.mss.known() {
                Err(why) => Some(Outcome::unknown(&lane.name, format!("segments of {}: {why}", lane.name))),
                Ok(_) if probe.port_mtu == 0 => None,
                Ok(mss) => {
                    let what = format!(
                        "{}: segments of {mss} bytes, a port with an MTU of {}",
                        lane.name, probe.port_mtu
                    );
                    let sound = mss.saturating_add(HEADERS_MAX) >= probe.port_mtu;
                    Some(Outcome::judged(sound, Verdict::Warn, &lane.name, what))
                }
            })
        },
    },
    Rule {
        id: "lane-drops",
        group: Group::Lanes,
        title: "A lane's port loses no packet under a load",
        severity: Severity::Warning,
        applies: PROBED,
        why: "packets that a card has no room for, or that arrive broken, are retransmissions: each halves TCP's window (no \
              published figure)",
        source: "administrators' rule on loss: counters before and after a load, less than 0.01 %",
        thumbs: &[14],
        fix: "replace the cable of {lane}; for packets that were missed: ethtool -G PORT rx MAX",
        undo: "",
        check: |facts| {
            probed(facts, |lane, probe| {
                Some(match probe.port_lost.known() {
                    Err(why) => {
                        Outcome::unknown(&lane.name, format!("packets of the port of {}: {why}", lane.name))
                    }
                    Ok(lost) => {
                        let what = format!("the port of {} lost {lost} packets during the probe", lane.name);
                        Outcome::judged(*lost == 0, Verdict::Warn, &lane.name, what)
                    }
                })
            })
        },
    },
    Rule {
        id: "lane-alike",
        group: Group::Lanes,
        title: "Lanes have round trips within a factor of two",
        severity: Severity::Warning,
        applies: "two or more lanes that are not in reserve, with --probe",
        why: "round-robin policies make every second I/O wait for the slower lane: round robin over unequal ports was slower than \
              the better port alone; a gigabit port and one of 100 Mb/s gave 148 MB/s by queue depth, the gigabit port alone 125 \
              MB/s at most",
        source: "published tests of unequal ports",
        thumbs: &[8],
        fix: "find out what is different about {lane}; until then use the policy adaptive, or mark it reserve",
        undo: "",
        check: alike,
    },
    Rule {
        id: "lane-slowest",
        group: Group::Lanes,
        title: "The slowest 1 % of a lane's reads are about as slow as those of the other lanes",
        severity: Severity::Warning,
        applies: "two or more lanes that are not in reserve, with --probe",
        why: "a request that needs 100 reads waits for the slowest of them: where 1 % of reads take 200 ms, as after a lost segment, 63 % of \
              such requests do. A lane that is slow now and then, and alone, has a cable, a port or a switch that loses or holds packets",
        source: "The Tail at Scale, Communications of the ACM 56 (2), 2013; Linux's least retransmission time-out of 200 ms",
        thumbs: &[8],
        fix: "check the cable and the counters of the port of {lane}: ethtool -S PORT; until then mark the lane reserve",
        undo: "",
        check: slowest,
    },
    Rule {
        id: "lane-owner",
        group: Group::Lanes,
        title: "The addresses of a lane belong to one port each",
        severity: Severity::Warning,
        applies: "lanes of IPv4 to portals in their own subnet, with --probe",
        why: "packets go to whoever answered last: I/O stops and goes on as the kernel asks anew, every 15 to 45 s, which looks like a loose \
              cable; two ports of one machine that answer for each other put both lanes on one wire",
        source: "RFC 5227 §2.4; Linux's base_reachable_time of 30 s, halved to one and a half times; ip-sysctl: arp_ignore",
        thumbs: &[3, 10],
        fix: "ip neighbour show    # who has these hardware addresses? Give one of them another address; if both are ports of one machine, \
              there: sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2",
        undo: "",
        check: owners,
    },
    Rule {
        id: "lane-delayed",
        group: Group::Lanes,
        title: "Small reads do not wait for delayed acknowledgements",
        severity: Severity::Warning,
        applies: PROBED,
        why: "Nagle's algorithm at one end and delayed acknowledgements at the other hold the end of every small answer for 40 ms (Linux) \
              or 200 ms (Windows): 25 or 5 reads a second",
        source: "RFC 896, RFC 1122 §4.2.3.2; Microsoft's TcpAckFrequency",
        thumbs: &[],
        fix: "set TCP_NODELAY at the storage; on Windows TcpAckFrequency=1 and TCPNoDelay=1 on storage ports",
        undo: "",
        check: |facts| {
            probed(facts, |lane, probe| {
                let LaneProbe { reads, held_back, round_trip_us: time, .. } = probe;
                let text = format!(
                    "{held_back} of {reads} small reads over {} took 40 ms or 200 ms, half of all {time:.0} µs or less",
                    lane.name
                );
                Some(Outcome::judged(*held_back <= HELD_BACK_MAX, Verdict::Warn, &lane.name, text))
            })
        },
    },
    Rule {
        id: "lane-pull",
        group: Group::Lanes,
        title: "I/O continues within 1.05 s, without an error, when a lane is taken down",
        severity: Severity::Warning,
        applies: PULLED,
        why: "several lanes exist to survive the failure of one: users notice a pause of more than a second, and an error ends in \
              a read-only file system; lunway promises 1.05 s",
        source: "rule of thumb 22: pull a cable; lunway's own limit for a lost lane; open-iscsi waits 120 s by default",
        thumbs: &[22],
        fix: "check the other lanes of the disk: lunway paths DEVICE; lunway doctor DEVICE --probe",
        undo: "",
        check: |facts| {
            pulled(facts, |lane, pull| {
                let what = format!(
                    "with {} down a read took {:.0} ms at most, and {} of {} failed",
                    lane.name, pull.pause_ms, pull.failed, pull.reads
                );
                let verdict = if pull.failed > 0 { Verdict::Bad } else { Verdict::Warn };
                let sound = pull.failed == 0 && pull.pause_ms <= PAUSE_MAX_MS;
                Outcome::judged(sound, verdict, &lane.name, what)
            })
        },
    },
    Rule {
        id: "lane-return",
        group: Group::Lanes,
        title: "A lane that is put back logs in within 5 s",
        severity: Severity::Warning,
        applies: PULLED,
        why: "until it is back the disk runs without redundancy: the next fault stops it; a session of open-iscsi tries every 2 s",
        source: "rule of thumb 22; open-iscsi tries every 2 s, and a switch's port that waits for spanning tree takes 30 to 50 s",
        thumbs: &[22],
        fix: "check the portal of {lane}: lunway discover PORTAL; switch the port of the switch to edge (portfast)",
        undo: "",
        check: |facts| {
            pulled(facts, |lane, pull| match pull.back_ms.known() {
                Err(why) if why.starts_with(NO_ANSWER) => {
                    Outcome::bad(&lane.name, format!("{} did not come back: {why}", lane.name))
                }
                Err(why) => Outcome::unknown(&lane.name, format!("how soon {} is back: {why}", lane.name)),
                Ok(ms) => {
                    let what = format!("{} was back after {ms:.0} ms", lane.name);
                    Outcome::judged(*ms <= RETURN_MAX_MS, Verdict::Warn, &lane.name, what)
                }
            })
        },
    },
];

fn planned(facts: &Facts, id: &str) -> Vec<Outcome> {
    let Some(lanes) = facts.lanes.as_ref().filter(|lanes| !lanes.lanes.is_empty()) else { return Vec::new() };
    let of_rule = lanes.findings.iter().filter(|finding| finding.id == id);
    let found: Vec<Outcome> = of_rule.map(|finding| Outcome::warn(&finding.place, &finding.what)).collect();
    if found.is_empty() { vec![Outcome::ok(&lanes.disk, sound(lanes))] } else { found }
}

fn unit(facts: &Facts) -> Vec<Outcome> {
    let Some(lanes) = &facts.lanes else { return Vec::new() };
    vec![match lanes.units.known() {
        Err(why) if lanes.lanes.is_empty() => {
            Outcome::bad(&lanes.disk, format!("no lane leads to the disk: {why}"))
        }
        Err(why) => Outcome::unknown(&lanes.disk, format!("the logical units of the target: {why}")),
        Ok(units) if units.has_named() => Outcome::ok(&lanes.disk, format!("LUN {} is there", units.named)),
        Ok(units) => {
            let there = match units.shown.as_slice() {
                [] => "and no other".to_owned(),
                shown => format!("but LUN {}", numbered(shown)),
            };
            let what = format!("the target shows no LUN {} to this initiator, {there}", units.named);
            Outcome::bad(&lanes.disk, what)
        }
    }]
}

/// Numbers in a sentence: `0, 1, 5`; of many, the first.
fn numbered(numbers: &[u16]) -> String {
    let first: Vec<String> = numbers.iter().take(LISTED_MAX).map(ToString::to_string).collect();
    let more = if numbers.len() > LISTED_MAX { " …" } else { "" };
    first.join(", ") + more
}

fn sound(lanes: &Lanes) -> String {
    match lanes.lanes.len() {
        1 => "its lane keeps the rule".to_owned(),
        count => format!("its {count} lanes keep the rule"),
    }
}

fn lanes(facts: &Facts, judge: impl Fn(&Lane) -> Option<Outcome>) -> Vec<Outcome> {
    let all = facts.lanes.iter().flat_map(|lanes| &lanes.lanes);
    all.filter_map(|lane| judge(lane).map(|outcome| outcome.with("lane", &lane.name))).collect()
}

fn probed(facts: &Facts, judge: impl Fn(&Lane, &LaneProbe) -> Option<Outcome>) -> Vec<Outcome> {
    lanes(facts, |lane| match lane.probe.known() {
        Ok(probe) => judge(lane, probe),
        // The lane itself is told as bad, by `lane-answers`.
        Err(why) if why.starts_with(NO_ANSWER) => None,
        Err(why) => Some(Outcome::unknown(&lane.name, format!("{} was not probed: {why}", lane.name))),
    })
}

fn pulled(facts: &Facts, judge: impl Fn(&Lane, &LanePull) -> Outcome) -> Vec<Outcome> {
    lanes(facts, |lane| lane.pull.as_ref().map(|pull| judge(lane, pull)))
}

/// Lanes that carry something now, with what was measured on them; none where only one was.
fn side_by_side(facts: &Facts) -> Vec<(&Lane, &LaneProbe)> {
    let all = facts.lanes.iter().flat_map(|lanes| &lanes.lanes).filter(|lane| !lane.reserve);
    let probed: Vec<_> = all.filter_map(|lane| Some((lane, lane.probe.get()?))).collect();
    if probed.len() < 2 { Vec::new() } else { probed }
}

/// Judges a time of each lane beside the best one's: at most `factor` as long, or shorter than `least_us`. `what` says
/// of a lane's name, its time and the best one's what was seen.
fn beside_the_best(
    facts: &Facts,
    time: fn(&LaneProbe) -> &Seen<f64>,
    (factor, least_us): (f64, f64),
    what: fn(&str, f64, f64) -> String,
) -> Vec<Outcome> {
    let lanes = side_by_side(facts);
    let known = lanes.iter().filter_map(|(_, probe)| time(probe).get());
    let best = known.copied().fold(f64::INFINITY, f64::min);
    let judge = |(lane, probe): &(&Lane, &LaneProbe)| match time(probe).known() {
        Err(why) => Outcome::unknown(&lane.name, format!("times of reads over {}: {why}", lane.name)),
        Ok(time) => {
            let sound = *time <= (factor * best).max(least_us);
            let what = what(&lane.name, *time, best);
            Outcome::judged(sound, Verdict::Warn, &lane.name, what).with("lane", &lane.name)
        }
    };
    lanes.iter().map(judge).collect()
}

fn alike(facts: &Facts) -> Vec<Outcome> {
    let limits = (UNEQUAL_MAX, UNEQUAL_MIN_US);
    beside_the_best(
        facts,
        |probe| &probe.round_trip_p10_us,
        limits,
        |lane, time, best| {
            format!(
                "{lane}: a tenth of the round trips took {time:.0} µs or less, over the fastest lane {best:.0} µs"
            )
        },
    )
}

fn slowest(facts: &Facts) -> Vec<Outcome> {
    let limits = (SLOWEST_MAX, SLOWEST_MIN_US);
    beside_the_best(
        facts,
        |probe| &probe.round_trip_p99_us,
        limits,
        |lane, time, best| {
            format!(
                "{lane}: the slowest 1 % of reads took {time:.0} µs or more, over the best lane {best:.0} µs"
            )
        },
    )
}

/// Judges who answers for the two addresses of a lane.
fn owners(facts: &Facts) -> Vec<Outcome> {
    probed(facts, |lane, probe| {
        let portal = lane.portal.map_or("its portal".to_owned(), |portal| portal.ip().to_string());
        let near = lane.near.map_or("its local address".to_owned(), |near| near.to_string());
        let unknown = |of: &str, why: &str| {
            Some(Outcome::unknown(&lane.name, format!("who answers for {of} over {}: {why}", lane.name)))
        };
        let (portals, ports) = match (probe.portal_owners.known(), probe.port_owners.known()) {
            (Ok(portals), Ok(ports)) => (portals, ports),
            (Err(why), _) => return unknown(&portal, why),
            (_, Err(why)) => return unknown(&near, why),
        };
        if portals.is_empty() && ports.is_empty() {
            return unknown(&portal, "nobody in the subnet of its port does, so that a router is between");
        }
        let what = match (portals.len(), ports.is_empty()) {
            (2.., _) => format!("{portal} is answered for by {}", listed(portals.iter().cloned())),
            (_, false) => format!("{near} is answered for by {} as well", listed(ports.iter().cloned())),
            (_, true) => format!("{portal} and {near} have one owner each"),
        };
        Some(Outcome::judged(portals.len() < 2 && ports.is_empty(), Verdict::Bad, &lane.name, what))
    })
}
