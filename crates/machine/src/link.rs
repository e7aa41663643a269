//! Interfaces.

use std::fs;
use std::io;
use std::path::Path;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage};

use crate::netlink;

/// An interface of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its name.
    pub name: String,
    /// The kernel's number for it; 0 where the kernel did not say.
    pub index: u32,
    /// Switched on, and has a carrier: a cable with something alive at its other end.
    pub carrier: bool,
    /// Longest packet, bytes.
    pub mtu: Option<u32>,
    /// This machine talking to itself.
    pub loopback: bool,
    /// Name of the interface that it stands on, as a VLAN does on a card.
    pub below: Option<String>,
    /// Speed that the card negotiated, bits per second; `None` if unknown or meaningless.
    pub speed: Option<u64>,
}

impl Link {
    /// All interfaces, those that are off among them.
    pub fn all() -> io::Result<Vec<Self>> {
        Ok(Self::read(&netlink::links()?))
    }

    /// From the kernel's tables in files, where netlink cannot be had.
    pub(crate) fn all_from_files() -> io::Result<Vec<Self>> {
        let mut all = Vec::new();
        for entry in fs::read_dir("/sys/class/net")? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            let number = |file: &str| read_number(&entry.path().join(file));
            all.push(Self {
                index: number("ifindex").unwrap_or(0) as u32,
                // Reading fails while the interface is off.
                carrier: number("carrier") == Some(1),
                mtu: number("mtu").map(|mtu| mtu as u32),
                loopback: number("type") == Some(772),
                below: None,
                speed: speed_of(&entry.path()),
                name,
            });
        }
        Ok(all)
    }

    pub(crate) fn read(messages: &[RouteNetlinkMessage]) -> Vec<Self> {
        let messages: Vec<&LinkMessage> = messages
            .iter()
            .filter_map(|message| match message {
                RouteNetlinkMessage::NewLink(link) => Some(link),
                _ => None,
            })
            .collect();
        let name_of = |index: u32| {
            messages
                .iter()
                .find(|link| link.header.index == index)
                .and_then(|link| netlink::name(link))
                .cloned()
        };
        messages
            .iter()
            .filter_map(|link| {
                let name = netlink::name(link)?;
                let facts = Facts::of(link);
                Some(Self {
                    name: name.clone(),
                    index: link.header.index,
                    carrier: link.header.flags.contains(LinkFlags::Up | LinkFlags::LowerUp),
                    mtu: facts.mtu,
                    loopback: link.header.flags.contains(LinkFlags::Loopback),
                    // The other end of a pair of virtual interfaces is given in the same place, and is no card of this
                    // machine's.
                    below: facts.below.filter(|_| !facts.pair).and_then(name_of),
                    speed: if facts.pair { None } else { speed(name, link.header.index, facts.address) },
                })
            })
            .collect()
    }
}

/// Attributes of a link.
#[derive(Default)]
struct Facts<'a> {
    mtu: Option<u32>,
    below: Option<u32>,
    address: Option<&'a [u8]>,
    /// An end of a veth pair, which says 10 Gb/s whatever there is.
    pair: bool,
}

impl<'a> Facts<'a> {
    fn of(link: &'a LinkMessage) -> Self {
        let mut facts = Self::default();
        for attribute in &link.attributes {
            match attribute {
                LinkAttribute::Mtu(mtu) => facts.mtu = Some(*mtu),
                LinkAttribute::Link(below) if *below != link.header.index => facts.below = Some(*below),
                LinkAttribute::Address(address) => facts.address = Some(address),
                LinkAttribute::LinkInfo(info) => {
                    facts.pair |= info.contains(&LinkInfo::Kind(InfoKind::Veth));
                }
                _ => {}
            }
        }
        facts
    }
}

/// The speed from `/sys`, if the interface there is the same one: `/sys` shows the namespace in which it was mounted,
/// which need not be the thread's.
fn speed(name: &str, index: u32, address: Option<&[u8]>) -> Option<u64> {
    let folder = Path::new("/sys/class/net").join(name);
    let there = fs::read_to_string(folder.join("address")).ok()?;
    let here = address?.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":");
    let same = there.trim() == here && read_number(&folder.join("ifindex")) == Some(i64::from(index));
    if same { speed_of(&folder) } else { None }
}

/// `speed` is in Mb/s; -1 or an error without a carrier, and for what has none.
fn speed_of(folder: &Path) -> Option<u64> {
    let megabits = read_number(&folder.join("speed")).filter(|&speed| speed > 0 && speed < u32::MAX.into());
    megabits.map(|megabits| megabits as u64 * 1_000_000)
}

fn read_number(path: &Path) -> Option<i64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(index: u32, name: &str, flags: LinkFlags, more: Vec<LinkAttribute>) -> RouteNetlinkMessage {
        let mut link = LinkMessage::default();
        link.header.index = index;
        link.header.flags = flags;
        link.attributes.push(LinkAttribute::IfName(name.to_owned()));
        link.attributes.extend(more);
        RouteNetlinkMessage::NewLink(link)
    }

    #[test]
    fn a_carrier_takes_a_switch_that_is_on_and_a_cable() {
        let (on, cable) = (LinkFlags::Up, LinkFlags::LowerUp);
        let messages =
            [link(1, "a", on, vec![]), link(2, "b", cable, vec![]), link(3, "c", on | cable, vec![])];
        let carriers: Vec<_> = Link::read(&messages).iter().map(|link| link.carrier).collect();
        assert_eq!(carriers, [false, false, true]);
    }

    #[test]
    fn a_vlan_stands_on_its_card_and_an_end_of_a_virtual_pair_on_nothing() {
        let pair = LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Veth)]);
        let messages = [
            link(7, "card", LinkFlags::Up, vec![LinkAttribute::Mtu(9000)]),
            link(8, "card.5", LinkFlags::Up, vec![LinkAttribute::Link(7)]),
            link(9, "end", LinkFlags::Up, vec![LinkAttribute::Link(7), pair]),
        ];
        let links = Link::read(&messages);
        let below: Vec<_> = links.iter().map(|link| link.below.as_deref()).collect();
        assert_eq!(below, [None, Some("card"), None]);
        assert_eq!(links[0].mtu, Some(9000));
    }

    #[test]
    fn the_loopback_is_there_however_it_is_asked_for() {
        let files = Link::all_from_files();
        for all in [Link::all(), files].into_iter().flatten() {
            assert!(all.iter().any(|link| link.name == "lo" && link.loopback), "{all:?}");
        }
    }
}
