//! Rules about the cards that carry storage, each for itself and beside each other.

use std::collections::BTreeMap;

use lunway_block::Severity;

use super::{Group, Rule, listed};
use crate::facts::{Facts, Interrupts, Port, Ring};
use crate::seen::Seen;
use crate::verdict::{Outcome, Verdict};

const APPLIES: &str = "ports that carry iSCSI connections now, or are named with --port";
const APPLIES_CARDS: &str = "cards, not virtual ports, that carry iSCSI";

/// Share of received packets that may be broken or missed. The Ethernet standard allows a bit error rate of 10⁻¹² or
/// better (IEEE 802.3 clause 40), which is 10⁻⁸ of full frames; 0.01 % is what the seed's rule on loss allows.
const LOSS_MAX: f64 = 1e-4;
/// Microseconds for which a card may hold an interrupt back whatever the load: a tenth of an I/O of 0.5 ms.
const COALESCE_MAX_US: u32 = 50;
/// The speed that cannot do without negotiation, Mb/s.
const GIGABIT: u32 = 1000;
/// Interrupts below which it says nothing where they went: a card that is set up and idle takes some hundreds.
const INTERRUPTS_MIN: u64 = 10_000;
/// Percentage of a card's interrupts above which one processor takes them all: the rest is from before it did.
const INTERRUPTS_ALL: u64 = 90;
/// Packets below which a share says nothing.
const PACKETS_MIN: u64 = 10_000;

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "port-carrier",
        group: Group::Network,
        title: "A storage port has a carrier",
        severity: Severity::Warning,
        applies: APPLIES,
        why: "its lanes are down, and the next fault stops the disk (no published figure)",
        source: "rule of thumb 22",
        thumbs: &[22],
        fix: "ip link set dev {port} up    # and check the cable and the switch",
        undo: "",
        check: |facts| {
            each(facts, |port| {
                let what = if port.carrier { "has a carrier" } else { "has no carrier" };
                Some(Outcome::judged(port.carrier, Verdict::Bad, &port.name, format!("{} {what}", port.name)))
            })
        },
    },
    Rule {
        id: "port-mtu",
        group: Group::Network,
        title: "All storage ports have the same MTU",
        severity: Severity::Warning,
        applies: "two or more storage ports",
        why: "a frame that is too large for a port on its way is lost, so that small I/O works and large I/O hangs; \
              jumbo frames themselves gained nothing measurable at 1 Gb/s, 112 MB/s with both",
        source: "published tests of software targets on one gigabit link; Dell's guides: +5 % throughput, -2 to -3 % CPU",
        thumbs: &[11],
        fix: "ip link set dev {port} mtu {new}",
        undo: "ip link set dev {port} mtu {old}",
        check: mtu,
    },
    Rule {
        id: "port-speed",
        group: Group::Network,
        title: "All storage ports have the same speed",
        severity: Severity::Warning,
        applies: "two or more storage ports that report their speed",
        why: "round robin is as slow as the slowest: a gigabit port with a 100 Mb/s adapter was slower than the gigabit \
              port alone",
        source: "published tests of unequal ports",
        thumbs: &[8],
        fix: "ethtool -s {port} speed {new} duplex full autoneg on    # or use ports of one speed",
        undo: "ethtool -s {port} speed {old} duplex full autoneg on",
        check: speed,
    },
    Rule {
        id: "port-duplex",
        group: Group::Network,
        title: "A storage port uses full duplex",
        severity: Severity::Warning,
        applies: APPLIES_CARDS,
        why: "half duplex at one end of a cable and full at the other loses frames under load. Negotiation prevents it, and \
              1000BASE-T cannot do without (IEEE 802.3 clause 40.5), which is why a fixed speed is right only where both \
              ends are set alike",
        source: "rules of thumb 8 and 9",
        thumbs: &[8, 9],
        fix: "ethtool -s {port} duplex full autoneg on",
        undo: "ethtool -s {port} duplex half autoneg {old}",
        check: |facts| {
            each_card(facts, |port| {
                Some(known(port, &port.full_duplex, |full| {
                    let what = if *full { "full" } else { "half" };
                    let text = format!("{} runs in {what} duplex", port.name);
                    // A card that does not tell has most likely a fixed speed: negotiation finds full duplex.
                    let negotiated = port.negotiated.get().copied().unwrap_or(false);
                    Outcome::judged(*full, Verdict::Bad, &port.name, text).with("old", word(negotiated))
                }))
            })
        },
    },
    Rule {
        id: "port-pause",
        group: Group::Network,
        title: "A storage port obeys received pause frames",
        severity: Severity::Note,
        applies: APPLIES_CARDS,
        why: "a switch that runs out of buffers drops frames, and each loss costs TCP a window; storage vendors' guides recommend \
              flow control for reception (no published figure)",
        source: "Dell and Cisco guides for iSCSI",
        thumbs: &[],
        fix: "ethtool -A {port} rx on    # and flow control at the switch's port",
        undo: "ethtool -A {port} rx off",
        check: |facts| {
            each_card(facts, |port| {
                Some(known(port, &port.rx_pause, |on| {
                    let what = if *on { "heeds" } else { "ignores" };
                    let text = format!("{} {what} pause frames", port.name);
                    Outcome::judged(*on, Verdict::Warn, &port.name, text).with("port", &port.name)
                }))
            })
        },
    },
    Rule {
        id: "port-energy",
        group: Group::Network,
        title: "Energy-Efficient Ethernet is off on storage ports",
        severity: Severity::Note,
        applies: APPLIES_CARDS,
        why: "waking a sleeping link takes up to 16.5 µs at 1 Gb/s and 4.5 to 7.4 µs at 10 Gb/s, for every I/O \
              at queue depth 1",
        source: "IEEE 802.3az clause 78, T_w_sys",
        thumbs: &[14],
        fix: "ethtool --set-eee {port} eee off",
        undo: "ethtool --set-eee {port} eee on",
        check: |facts| {
            each_card(facts, |port| {
                Some(known(port, &port.eee, |on| {
                    let what = if *on { "on" } else { "off" };
                    let text = format!("Energy-Efficient Ethernet is {what} at {}", port.name);
                    Outcome::judged(!*on, Verdict::Warn, &port.name, text).with("port", &port.name)
                }))
            })
        },
    },
    Rule {
        id: "port-coalesce",
        group: Group::Network,
        title: "A storage port adapts the coalescing of its interrupts, or waits 50 µs at most",
        severity: Severity::Note,
        applies: APPLIES_CARDS,
        why: "each answer waits until the card interrupts: at queue depth 1 a fixed 100 µs adds 100 µs to every I/O, a third of one \
              of 0.3 ms",
        source: "Linux ethtool(8), rx-usecs; rule of thumb 14; read latency 0.42 ms in published tests of software targets",
        thumbs: &[14],
        fix: "ethtool -C {port} adaptive-rx on",
        undo: "ethtool -C {port} adaptive-rx off rx-usecs {old}",
        check: |facts| {
            each_card(facts, |port| {
                Some(known(port, &port.coalescing, |found| {
                    let text = match found.adaptive {
                        true => format!("{} adapts its coalescing", port.name),
                        false => format!("{} interrupts after {} µs", port.name, found.rx_us),
                    };
                    let sound = found.adaptive || found.rx_us <= COALESCE_MAX_US;
                    let outcome =
                        Outcome::judged(sound, Verdict::Warn, &port.name, text).with("old", found.rx_us);
                    match found.can_adapt {
                        true => outcome,
                        false => outcome
                            .fixed_by("ethtool -C {port} rx-usecs 10", "ethtool -C {port} rx-usecs {old}"),
                    }
                }))
            })
        },
    },
    Rule {
        id: "port-negotiation",
        group: Group::Network,
        title: "A port of 1000 Mb/s negotiates its speed, and all storage ports do alike",
        severity: Severity::Note,
        applies: APPLIES_CARDS,
        why: "1000BASE-T needs negotiation to choose a clock master, and without it one end may have no link after a fault; where the \
              standard allows a fixed speed it saves the seconds of negotiation at each failover (no published figure)",
        source: "IEEE 802.3 clause 40.5; rule of thumb 9: fixed link speed",
        thumbs: &[9],
        fix: "ethtool -s {port} autoneg {new}",
        undo: "ethtool -s {port} autoneg {old}",
        check: negotiation,
    },
    Rule {
        id: "port-ring",
        group: Group::Network,
        title: "The ring buffers of a storage port have the maximum size of its card",
        severity: Severity::Note,
        applies: APPLIES_CARDS,
        why: "a burst of a storage array that the ring cannot hold is dropped before the kernel sees it (no published figure)",
        source: "rule of thumb 14",
        thumbs: &[14],
        fix: "ethtool -G {port} rx {rx} tx {tx}",
        undo: "ethtool -G {port} rx {old_rx} tx {old_tx}",
        check: |facts| each_card(facts, |port| Some(rings(port))),
    },
    Rule {
        id: "port-offload",
        group: Group::Network,
        title: "Checksum and segmentation offloads of a storage port are on",
        severity: Severity::Note,
        applies: APPLIES_CARDS,
        why: "without them, the processor handles each packet of 1500 bytes separately, 44 packets for each 64 KiB",
        source: "rule of thumb 14; 64 KiB / 1448 bytes of payload",
        thumbs: &[14],
        fix: "ethtool -K {port} {on}",
        undo: "ethtool -K {port} {off}",
        check: |facts| {
            each_card(facts, |port| {
                Some(known(port, &port.offloads_off, |off| {
                    let set = |value: &str| {
                        off.iter().flat_map(|name| [name.clone(), value.to_owned()]).collect::<Vec<_>>()
                    };
                    let what = match off.is_empty() {
                        true => format!("{} has its offloads on", port.name),
                        false => format!("{} has {} switched off", port.name, listed(off.clone())),
                    };
                    Outcome::judged(off.is_empty(), Verdict::Warn, &port.name, what)
                        .with("port", &port.name)
                        .with_words("on", set("on"))
                        .with_words("off", set("off"))
                }))
            })
        },
    },
    Rule {
        id: "port-errors",
        group: Group::Network,
        title: "A storage port loses no packets",
        severity: Severity::Warning,
        applies: "storage ports that have received 10,000 packets or more",
        why: "more than 0.01 % broken or missed packets is a bad cable, a bad port or a ring that is too small; TCP halves its \
              window at each loss",
        source: "administrators' rule on loss: less than 0.01 %",
        thumbs: &[],
        fix: "replace the cable, then the port at the switch; for missed packets: ethtool -G {port} rx MAX",
        undo: "",
        check: |facts| {
            each(facts, |port| match port.counters.known() {
                Ok(counters) if counters.rx_packets < PACKETS_MIN => None,
                Err(why) => Some(Outcome::unknown(&port.name, format!("errors of {}: {why}", port.name))),
                Ok(counters) => {
                    let lost = counters.rx_errors.saturating_add(counters.rx_missed);
                    let share = lost as f64 / counters.rx_packets as f64;
                    let what = format!(
                        "{}: {} broken and {} missed of {} packets",
                        port.name, counters.rx_errors, counters.rx_missed, counters.rx_packets
                    );
                    let outcome = Outcome::judged(share <= LOSS_MAX, Verdict::Warn, &port.name, what);
                    Some(outcome.with("port", &port.name))
                }
            })
        },
    },
    Rule {
        id: "port-team",
        group: Group::Network,
        title: "A storage port is not a team or bond of cards",
        severity: Severity::Warning,
        applies: APPLIES,
        why: "a connection stays on one card of a team: four cards in a load-balancing team read 22 % and wrote 59 % slower \
              than one card, where two paths of multipath read 32 % and wrote 70 % faster",
        source: "published tests of multipath topologies, tests A, C and D",
        thumbs: &[4, 5],
        fix: "ip link set dev {member} nomaster    # for each member, an address each, and multipath over them",
        undo: "ip link set dev {member} down; ip link set dev {member} master {port}",
        check: |facts| {
            let Some(Seen::Value(ports)) = &facts.ports else { return unseen_ports(facts) };
            let judge = |port: &Port| {
                let teamed = matches!(port.kind.as_str(), "bond" | "team");
                let member = ports.iter().find(|other| other.member_of.as_ref() == Some(&port.name));
                let what = match teamed {
                    true => format!("{} is a {} of cards", port.name, port.kind),
                    false => format!("{} is no team of cards", port.name),
                };
                let member = member.map_or("CARD", |member| &member.name);
                let outcome = Outcome::judged(!teamed, Verdict::Warn, &port.name, what);
                Some(outcome.with("port", &port.name).with("member", member))
            };
            each(facts, judge)
        },
    },
    Rule {
        id: "port-shared-card",
        group: Group::Network,
        title: "Each storage port has its own card",
        severity: Severity::Warning,
        applies: "two or more storage ports",
        why: "two VLANs or virtual functions on one card share its rate, and both are lost with its cable: one card carried 99 MB/s of reads and 108 \
              MB/s of writes, two pairs 131 and 184 MB/s",
        source: "rule of thumb 5: two ports, 1:1 paths",
        thumbs: &[5],
        fix: "move {port} to a card of its own",
        undo: "",
        check: shared_card,
    },
    Rule {
        id: "port-interrupts",
        group: Group::Network,
        title: "The queues of a card are not all served by one processor",
        severity: Severity::Note,
        applies: APPLIES_CARDS,
        why: "packets are taken in by the processor that is interrupted: with one for all queues a card carries what that one \
              can, while the others idle (no published figure)",
        source: "administrators' rule on lanes: lanes share nothing; Linux admin guide, IRQ-affinity; \
                 Documentation/networking/scaling",
        thumbs: &[14],
        fix: "for irq in {numbers}; do n=$((n + 1)); echo $((n % {processors})) >/proc/irq/$irq/smp_affinity_list; done    # until the \
              next boot; for good: systemctl enable --now irqbalance",
        undo: "for irq in {numbers}; do echo {processor} >/proc/irq/$irq/smp_affinity_list; done",
        check: interrupts,
    },
];

/// Returns a rule's outcomes where the ports are not known.
pub(super) fn unseen_ports(facts: &Facts) -> Vec<Outcome> {
    match &facts.ports {
        Some(Seen::Unseen { unseen }) => vec![Outcome::unknown("network ports", unseen)],
        _ => Vec::new(),
    }
}

/// The storage ports.
pub(super) fn storage(facts: &Facts) -> Vec<&Port> {
    let ports = facts.ports.iter().filter_map(Seen::get).flatten();
    ports.filter(|port| port.storage).collect()
}

/// Judges each storage port.
pub(super) fn each<'a>(facts: &'a Facts, judge: impl Fn(&'a Port) -> Option<Outcome>) -> Vec<Outcome> {
    match &facts.ports {
        Some(Seen::Value(_)) => {
            let judged = |port: &'a Port| judge(port).map(|outcome| outcome.with("port", &port.name));
            storage(facts).into_iter().filter_map(judged).collect()
        }
        _ => unseen_ports(facts),
    }
}

fn each_card<'a>(facts: &'a Facts, judge: impl Fn(&'a Port) -> Option<Outcome>) -> Vec<Outcome> {
    each(facts, |port| if port.physical { judge(port) } else { None })
}

/// Judges a fact of a port, or says why it is not known.
fn known<T>(port: &Port, fact: &Seen<T>, judge: impl FnOnce(&T) -> Outcome) -> Outcome {
    match fact.known() {
        Ok(value) => judge(value),
        Err(why) => Outcome::unknown(&port.name, format!("{}: {why}", port.name)),
    }
}

/// A setting as ethtool takes it.
fn word(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

/// The value that most ports have; of several, the largest.
fn usual<T: Ord + Copy>(values: &[T]) -> Option<T> {
    let mut counts: BTreeMap<T, usize> = BTreeMap::new();
    for value in values {
        *counts.entry(*value).or_default() += 1;
    }
    counts.into_iter().max_by_key(|(value, count)| (*count, *value)).map(|(value, _)| value)
}

fn mtu(facts: &Facts) -> Vec<Outcome> {
    let ports = storage(facts);
    let values: Vec<u32> = ports.iter().map(|port| port.mtu).collect();
    let (Some(usual), 2..) = (usual(&values), ports.len()) else { return unseen_ports(facts) };
    let judge = |port: &&Port| {
        let what = match port.mtu == usual {
            true => format!("{} has an MTU of {}", port.name, port.mtu),
            false => format!("{} has an MTU of {}, other storage ports have {usual}", port.name, port.mtu),
        };
        Outcome::judged(port.mtu == usual, Verdict::Warn, &port.name, what)
            .with("port", &port.name)
            .with("new", usual)
            .with("old", port.mtu)
    };
    ports.iter().map(judge).collect()
}

fn speed(facts: &Facts) -> Vec<Outcome> {
    let ports = storage(facts);
    if ports.len() < 2 {
        return unseen_ports(facts);
    }
    // What a virtual port says of its speed means nothing.
    let ports: Vec<_> = ports.into_iter().filter(|port| port.kind != "veth").collect();
    let values: Vec<u32> = ports.iter().filter_map(|port| port.speed.get().copied()).collect();
    let Some(usual) = usual(&values) else { return Vec::new() };
    let judge = |port: &&Port| {
        known(port, &port.speed, |speed| {
            let what = match *speed == usual {
                true => format!("{} runs at {speed} Mb/s", port.name),
                false => format!("{} runs at {speed} Mb/s, other storage ports at {usual} Mb/s", port.name),
            };
            Outcome::judged(*speed == usual, Verdict::Warn, &port.name, what)
                .with("port", &port.name)
                .with("new", usual)
                .with("old", speed)
        })
    };
    ports.iter().map(judge).collect()
}

fn negotiation(facts: &Facts) -> Vec<Outcome> {
    let cards = || storage(facts).into_iter().filter(|port| port.physical);
    let all: Vec<bool> = cards().filter_map(|port| port.negotiated.get().copied()).collect();
    let usual = usual(&all);
    each_card(facts, |port| {
        Some(known(port, &port.negotiated, |on| {
            let must = port.speed.get() == Some(&GIGABIT);
            let wanted = must || usual == Some(true);
            let what = match (*on, wanted == *on) {
                (true, true) => format!("{} negotiates its speed", port.name),
                (false, true) => format!("{} has a fixed speed", port.name),
                (false, false) if must => format!("{} has a fixed speed of 1000 Mb/s", port.name),
                (_, false) => format!(
                    "negotiation is {} at {}, and {} at other storage ports",
                    word(*on),
                    port.name,
                    word(!*on)
                ),
            };
            Outcome::judged(wanted == *on, Verdict::Warn, &port.name, what)
                .with("new", word(wanted))
                .with("old", word(*on))
        }))
    })
}

fn rings(port: &Port) -> Outcome {
    let (rx, tx) = match (port.rx_ring.known(), port.tx_ring.known()) {
        (Ok(rx), Ok(tx)) => (rx, tx),
        (Err(why), _) | (_, Err(why)) => {
            return Outcome::unknown(&port.name, format!("rings of {}: {why}", port.name));
        }
    };
    let small = |ring: &Ring| ring.now < ring.max;
    let what = format!(
        "{}: rings of {} of {} to receive, {} of {} to send",
        port.name, rx.now, rx.max, tx.now, tx.max
    );
    Outcome::judged(!small(rx) && !small(tx), Verdict::Warn, &port.name, what)
        .with("port", &port.name)
        .with("rx", rx.max)
        .with("tx", tx.max)
        .with("old_rx", rx.now)
        .with("old_tx", tx.now)
}

fn shared_card(facts: &Facts) -> Vec<Outcome> {
    let ports = storage(facts);
    if ports.len() < 2 {
        return unseen_ports(facts);
    }
    let card = |port: &Port| {
        let socket = Some(&port.socket).filter(|socket| !socket.is_empty());
        port.below.as_ref().or(socket).unwrap_or(&port.name).clone()
    };
    let mut cards: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for port in &ports {
        cards.entry(card(port)).or_default().push(&port.name);
    }
    let judge = |port: &&Port| {
        let same = cards.get(&card(port)).into_iter().flatten().filter(|other| **other != port.name);
        // As many as a sentence has.
        let sharing: Vec<String> = same.take(32).map(|&other| other.to_owned()).collect();
        let what = match sharing.is_empty() {
            true => format!("{} has a card of its own", port.name),
            false => format!("{} shares the card {} with {}", port.name, card(port), listed(sharing.clone())),
        };
        Outcome::judged(sharing.is_empty(), Verdict::Warn, &port.name, what).with("port", &port.name)
    };
    ports.iter().map(judge).collect()
}

/// Judges each card by where the interrupts of its queues go now, and have gone until now.
fn interrupts(facts: &Facts) -> Vec<Outcome> {
    each_card(facts, |port| Some(known(port, &port.interrupts, |found| one_processor(port, found))))
}

fn one_processor(port: &Port, found: &Interrupts) -> Outcome {
    let name = &port.name;
    if found.processors < 2 || found.queues < 2 {
        let one = if found.processors < 2 { "the machine has one processor" } else { "it has one queue" };
        return Outcome::ok(name, format!("{name}: {one}"));
    }
    if found.numbers.len() < 2 {
        return Outcome::unknown(
            name,
            format!("{name}: its driver does not tell the interrupts of its queues"),
        );
    }
    let (Some(&processor), 1) = (found.now.first(), found.now.len()) else {
        let count = found.now.len();
        return Outcome::ok(name, format!("{name}: its queues interrupt {count} processors"));
    };
    let all = found.taken.values().fold(0u64, |sum, count| sum.saturating_add(*count));
    let own = found.taken.get(&processor.to_string()).copied().unwrap_or_default();
    if all < INTERRUPTS_MIN {
        let what = format!(
            "{name}: all queues interrupt processor {processor}, {all} times until now: too few to judge"
        );
        return Outcome::unknown(name, what);
    }
    if u128::from(own) * 100 < u128::from(all) * u128::from(INTERRUPTS_ALL) {
        let what =
            format!("{name}: all queues interrupt processor {processor} now, and interrupted others before");
        return Outcome::unknown(name, what);
    }
    let what = format!(
        "{name}: processor {processor} takes the interrupts of all {} queues, and {} others take none",
        found.queues,
        found.processors - 1
    );
    Outcome::warn(name, what)
        .with_words("numbers", found.numbers.iter().map(u32::to_string))
        .with("processors", found.processors)
        .with("processor", processor)
}
