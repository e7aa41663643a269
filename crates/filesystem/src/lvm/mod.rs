//! LVM2: a physical volume, the logical volumes in it, and the extents that none has.
//!
//! The group's metadata are a text in the physical volume. Believed is a text whose checksum is right, of which all
//! copies are the same, of a group that has this one physical volume, is not locked, and moves nothing. An extent is
//! free if no segment of any volume names it, hidden ones too. A volume is looked into if all its segments are linear
//! and no other volume is made of it; every other one is used.

mod label;
mod text;

use std::ops::Range;

use crate::map::Ranges;
use crate::source::{ByteSource, Segment, Unreadable};
use crate::volume::Doubt;
use label::Label;
use text::{Item, Section};

/// Bytes of a sector, in which the text counts.
const SECTOR: u64 = 512;

/// A physical volume whose metadata are believed.
#[derive(Debug)]
pub struct PhysicalVolume {
    /// The name of its group.
    pub group: String,
    /// Its UUID.
    pub uuid: String,
    /// The logical volumes that have extents here.
    pub volumes: Vec<LogicalVolume>,
    /// Extents that no volume has, as bytes.
    pub free: Ranges,
    /// Label and metadata areas, as bytes.
    pub metadata: Ranges,
}

/// A logical volume.
#[derive(Debug)]
pub struct LogicalVolume {
    /// Its name.
    pub name: String,
    /// Segments of the volume, in the order of its addresses.
    pub segments: Vec<Segment>,
    /// Reason why it is not looked into.
    pub refused: Option<&'static str>,
}

/// Returns `true` if a label of LVM2 lies in the first sectors.
pub fn recognised(source: &dyn ByteSource) -> Result<bool, Unreadable> {
    Ok(label::find(source)?.is_some())
}

const VGCK: &str = "run vgck on the group, or pvck on the disk";

fn wrong(what: &str) -> Doubt {
    Doubt::new(format!("the metadata of its volume group {what}")).helped_by(VGCK)
}

/// Reads a volume that has a label.
pub fn read(source: &dyn ByteSource) -> Result<PhysicalVolume, Doubt> {
    let label = Label::read(source)?;
    let Some(text) = label.text(source)? else {
        return Err(Doubt::new("the physical volume is in no volume group"));
    };
    let top = text::parse(&text).ok_or_else(|| wrong("cannot be parsed"))?;
    if top.text("contents") != Some("Text Format Volume Group") || top.number("version") != Some(1) {
        return Err(wrong("are of another format"));
    }
    let mut groups = top.sections();
    let (Some((name, group)), None) = (groups.next(), groups.next()) else {
        return Err(wrong("are not of one group"));
    };
    Group::new(name, group, label, source)?.read()
}

struct Group<'a> {
    name: &'a str,
    text: &'a Section,
    label: Label,
    /// The name that the text has for this physical volume.
    here: &'a str,
    /// Bytes of an extent, of the first one's start, and how many there are.
    extent: u64,
    start: u64,
    count: u64,
}

impl<'a> Group<'a> {
    fn new(name: &'a str, text: &'a Section, label: Label, source: &dyn ByteSource) -> Result<Self, Doubt> {
        if !text.only("status", &["RESIZEABLE", "READ", "WRITE"]) || !text.only("flags", &[]) {
            return Err(Doubt::new("its volume group is exported, locked, shared, or about to change"));
        }
        if text.text("lock_type").is_some_and(|lock| lock != "none") {
            return Err(Doubt::new("its volume group is shared between machines"));
        }
        let mut volumes = text.section("physical_volumes").into_iter().flat_map(Section::sections);
        let (Some((here, volume)), None) = (volumes.next(), volumes.next()) else {
            return Err(Doubt::new("its volume group has other physical volumes, which are not read"));
        };
        let own = volume.text("id").is_some_and(|id| id.replace('-', "") == label.uuid);
        if !own || !volume.only("status", &["ALLOCATABLE"]) || !volume.only("flags", &[]) {
            return Err(wrong("are of another physical volume, or it is missing"));
        }
        let bytes =
            |section: &Section, key| section.number(key).and_then(|sectors| sectors.checked_mul(SECTOR));
        let geometry =
            bytes(text, "extent_size").zip(bytes(volume, "pe_start")).zip(volume.number("pe_count"));
        let Some(((extent, start), count)) = geometry else { return Err(wrong("have no geometry")) };
        let end = extent.checked_mul(count).and_then(|len| len.checked_add(start));
        if extent == 0 || end.is_none_or(|end| end > source.len()) || !label.data.contains(&start) {
            return Err(wrong("have extents outside of the physical volume"));
        }
        Ok(Self { name, text, label, here, extent, start, count })
    }

    fn read(self) -> Result<PhysicalVolume, Doubt> {
        let sections: Vec<_> =
            self.text.section("logical_volumes").into_iter().flat_map(Section::sections).collect();
        // Names in segments: what another volume is made of.
        let mut parts = Vec::new();
        for (_, volume) in &sections {
            for (_, segment) in volume.sections() {
                parts.extend(segment.strings());
            }
        }
        let mut volumes = Vec::new();
        for (name, volume) in &sections {
            let found = self.volume(name, volume, parts.contains(name))?;
            if !found.segments.is_empty() {
                volumes.push(found);
            }
        }
        let mut used: Vec<Range<u64>> = volumes
            .iter()
            .flat_map(|volume| &volume.segments)
            .map(|segment| segment.at..segment.at + segment.len)
            .collect();
        used.sort_by_key(|range| range.start);
        if used.windows(2).any(|pair| pair[0].end > pair[1].start) {
            return Err(wrong("have segments that overlap"));
        }
        let mut free = Vec::new();
        let extents = self.start..self.start + self.count * self.extent;
        Ranges::union(used).missing_from(extents, &mut |range| free.push(range));
        if self.label.areas.touches(&(self.start..self.start + self.count * self.extent)) {
            return Err(wrong("lie in the extents"));
        }
        Ok(PhysicalVolume {
            group: self.name.to_owned(),
            uuid: self.label.uuid,
            volumes,
            free: Ranges::union(free),
            metadata: self.label.areas,
        })
    }

    /// A volume; `part` says that another one is made of it.
    fn volume(&self, name: &str, text: &Section, part: bool) -> Result<LogicalVolume, Doubt> {
        let (mut segments, mut linear, mut next) = (Vec::new(), true, 0);
        if text.mentions("status", "LOCKED") || text.mentions("status", "PVMOVE") {
            return Err(Doubt::new("its volume group moves extents from one place to another")
                .helped_by("let pvmove end, or abort it with pvmove --abort"));
        }
        let mut numbered: Vec<_> = text.sections().collect();
        numbered.sort_by_key(|(_, segment)| segment.number("start_extent"));
        for (_, segment) in numbered {
            let (start, count) = segment
                .number("start_extent")
                .zip(segment.number("extent_count"))
                .ok_or_else(|| wrong("have a segment without extents"))?;
            let stripes = segment.number("stripe_count").unwrap_or(1).max(1);
            let striped = segment.text("type") == Some("striped");
            linear &= striped && stripes == 1 && start == next;
            next = start.checked_add(count).ok_or_else(|| wrong("have a segment without end"))?;
            // A stripe has its share; of what else names the physical volume nothing is known but the whole length.
            let share = if striped { count.div_ceil(stripes) } else { count };
            let places = self.places(segment);
            linear &= places.len() == 1;
            for first in places {
                let end = first.checked_add(share).filter(|end| *end <= self.count);
                end.filter(|end| first < *end)
                    .ok_or_else(|| wrong("have a segment outside of the extents"))?;
                segments.push(Segment { at: self.start + first * self.extent, len: share * self.extent });
            }
        }
        let refused = if part {
            Some("another volume is built on it")
        } else if !linear {
            Some("it is not linear, and is not read")
        } else if !text.mentions("status", "VISIBLE")
            || !text.only("status", &["READ", "WRITE", "VISIBLE", "FIXED_MINOR"])
            || text.number("segment_count") != Some(text.sections().count() as u64)
        {
            Some("it is hidden, or in a state that is not known here")
        } else {
            None
        };
        Ok(LogicalVolume { name: name.to_owned(), segments, refused })
    }

    /// The extents at which a segment says that it lies in this physical volume: numbers behind its name, in any list.
    fn places(&self, segment: &Section) -> Vec<u64> {
        let mut places = Vec::new();
        for list in segment.lists() {
            for pair in list.windows(2) {
                if let [Item::Text(name), Item::Number(first)] = pair
                    && name == self.here
                {
                    places.push(*first);
                }
            }
        }
        places
    }
}
