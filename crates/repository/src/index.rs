//! The index: where all entries of a repository lie.
//!
//! It is made of stored [segments](crate::segment), and of the directories of packs that none of them knows: those of a
//! run that was interrupted or is under way. A segment that is damaged is one that is not there. So nothing is lost
//! with an index, and a pack counts from the moment on at which it has its name.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;

use lunway_backup::{BackupError, Folder, INCOMPLETE, Open, Result, is_of_the_file};

use crate::codec::Id;
use crate::damage::KnownDamage;
use crate::memory::MemoryFile;
use crate::pack::{FormatError, Location, pack_name, parse_pack_name, read_directory};
use crate::random::new_number;
use crate::segment::{Segment, SegmentWriter, parse_segment_name, segment_name};

/// Place of an entry in the index, and in its pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// Number of the segment.
    pub(crate) segment: usize,
    /// Number of the entry in it.
    pub(crate) number: u64,
    pub(crate) location: Location,
}

/// Where all entries lie.
pub(crate) struct Index {
    folder: Arc<dyn Folder>,
    /// Stored ones, and last those of packs that no stored one knows.
    segments: Vec<Segment>,
    /// Their names, in the same order.
    stored: Vec<u64>,
    /// Packs whose directory was read because no segment knows them.
    loose: Vec<u64>,
    packs: HashSet<u64>,
    /// Packs that a segment knows, and that are not there.
    missing: Vec<u64>,
    damage: KnownDamage,
    /// What is wrong with the list of what is damaged.
    pub(crate) list_problem: Option<String>,
    /// Segments that are damaged: a run replaces them.
    pub(crate) unusable: Vec<(u64, String)>,
    /// Packs whose own directory was needed, and is damaged.
    pub(crate) unreadable: Vec<(u64, String)>,
}

/// A fault as an error of the folder, or what is wrong with the file.
pub(crate) fn of_file<T>(
    folder: &dyn Folder,
    name: &str,
    read: std::result::Result<T, FormatError>,
) -> Result<std::result::Result<T, String>> {
    match read {
        Ok(read) => Ok(Ok(read)),
        Err(FormatError::Damaged(what)) => Ok(Err(what)),
        Err(FormatError::Io(error)) if is_of_the_file(error.kind()) => Ok(Err(error.to_string())),
        Err(FormatError::Io(error)) => Err(BackupError::folder("reading", &folder.show(name))(error)),
    }
}

/// A segment that has its hash, and of which an entry is not what a run has written.
pub(crate) fn unusable_index(name: &str, what: &str) -> BackupError {
    BackupError::Refused(format!(
        "{name} cannot be used: {what}; `lunway backup verify` notes it, and the next run makes it again from the packs"
    ))
}

impl Index {
    /// Reads what the repository has at the moment.
    pub(crate) fn load(folder: &Arc<dyn Folder>, cache: Option<&dyn Folder>) -> Result<Self> {
        Self::load_with(folder, cache, KnownDamage::examine(&**folder)?)
    }

    /// The same with what is known to be damaged, and what is wrong with that list.
    fn load_with(
        folder: &Arc<dyn Folder>,
        cache: Option<&dyn Folder>,
        (damage, list_problem): (KnownDamage, Option<String>),
    ) -> Result<Self> {
        let folder = Arc::clone(folder);
        let names = folder.names().map_err(BackupError::folder("reading", &folder.show("")))?;
        let packs: HashSet<u64> = names.iter().filter_map(|name| parse_pack_name(name)).collect();
        let mut index = Self {
            damage,
            list_problem,
            folder,
            segments: Vec::new(),
            stored: Vec::new(),
            loose: Vec::new(),
            packs,
            missing: Vec::new(),
            unusable: Vec::new(),
            unreadable: Vec::new(),
        };
        let mut stored: Vec<u64> = names.iter().filter_map(|name| parse_segment_name(name)).collect();
        stored.sort_unstable();
        if let Some(cache) = cache {
            forget_others(cache, &stored);
        }
        for number in stored {
            if index.damage.segments.contains(&number) {
                index.unusable.push((number, "its bytes are not what was written".into()));
                continue;
            }
            match open_segment(&*index.folder, cache, number)? {
                Some(Ok(segment)) => {
                    index.segments.push(segment);
                    index.stored.push(number);
                }
                Some(Err(what)) => index.unusable.push((number, what)),
                // A run or a prune has just made one of several: of packs that none of these knows the own directories
                // are read.
                None => {}
            }
        }
        let known: HashSet<u64> = index.segments.iter().flat_map(Segment::packs).copied().collect();
        index.find_missing(&known)?;
        index.read_loose(&known)?;
        Ok(index)
    }

    /// The same without the segments of which an entry is not what a run has written, though they have their hash.
    /// Every entry is read, as a prune does.
    pub(crate) fn examined(self, cache: Option<&dyn Folder>) -> Result<Self> {
        let mut wrong = Vec::new();
        for (number, segment) in self.stored.iter().zip(&self.segments) {
            let name = segment_name(*number);
            for entry in segment.entries() {
                if let Err(what) = of_file(&*self.folder, &name, entry)? {
                    wrong.push((*number, what));
                    break;
                }
            }
        }
        if wrong.is_empty() {
            return Ok(self);
        }
        let mut damage = self.damage;
        damage.segments.extend(wrong.iter().map(|(number, _)| *number));
        let mut index = Self::load_with(&self.folder, cache, (damage, self.list_problem))?;
        for (number, what) in &mut index.unusable {
            if let Some((_, found)) = wrong.iter().find(|(wrong, _)| wrong == number) {
                what.clone_from(found);
            }
        }
        Ok(index)
    }

    /// Finds out which packs are not there that segments know.
    fn find_missing(&mut self, known: &HashSet<u64>) -> Result<()> {
        let mut absent: Vec<u64> = known.difference(&self.packs).copied().collect();
        absent.sort_unstable();
        for pack in absent {
            let name = pack_name(pack);
            match self.folder.open(&name, false) {
                // A list of names may lack one that was made while it was read.
                Ok(_) => drop(self.packs.insert(pack)),
                Err(error) if is_of_the_file(error.kind()) => self.missing.push(pack),
                Err(error) => return Err(BackupError::folder("opening", &self.folder.show(&name))(error)),
            }
        }
        Ok(())
    }

    /// Reads the directories of packs that no segment knows.
    fn read_loose(&mut self, known: &HashSet<u64>) -> Result<()> {
        let mut loose: Vec<u64> = self.packs.difference(known).copied().collect();
        loose.sort_unstable();
        let mut entries: Vec<(Id, Location)> = Vec::new();
        for pack in loose {
            let name = pack_name(pack);
            let directory = match self.folder.open(&name, false) {
                Ok(file) => read_directory(&*file, pack),
                // A prune has just removed it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    self.packs.remove(&pack);
                    continue;
                }
                Err(error) => Err(error.into()),
            };
            match of_file(&*self.folder, &name, directory)? {
                Ok(directory) => {
                    entries.extend(directory);
                    self.loose.push(pack);
                }
                Err(what) => self.unreadable.push((pack, what)),
            }
        }
        if entries.is_empty() {
            return Ok(());
        }
        entries.sort_unstable_by_key(|(id, location)| (*id, self.damage.concerns(id, location)));
        let mut bytes = Vec::new();
        let mut writer = SegmentWriter::new(0, |part: &[u8]| {
            bytes.extend_from_slice(part);
            Ok(())
        });
        let written = entries.iter().try_for_each(|(id, location)| writer.push(id, location));
        let written = written.and_then(|()| writer.finish());
        written.map_err(BackupError::folder("indexing", &self.folder.show("")))?;
        let opened = Segment::open(Arc::new(MemoryFile::of(bytes)), 0);
        match of_file(&*self.folder, "", opened)? {
            Ok(segment) => self.segments.push(segment),
            Err(what) => return Err(BackupError::Refused(what)),
        }
        Ok(())
    }

    /// Finds an entry in a pack that is there, where it is not known to be damaged.
    pub(crate) fn find(&self, id: &Id) -> Result<Option<Found>> {
        self.find_where(id, |_| true)
    }

    /// The same in another pack than this one.
    pub(crate) fn find_beside(&self, id: &Id, pack: u64) -> Result<Option<Found>> {
        self.find_where(id, |location| location.pack != pack)
    }

    fn find_where(&self, id: &Id, is_wanted: impl Fn(&Location) -> bool) -> Result<Option<Found>> {
        for (number, segment) in self.segments.iter().enumerate() {
            let name =
                self.stored.get(number).map_or_else(|| "an index".to_owned(), |number| segment_name(*number));
            let found = match of_file(&*self.folder, &name, segment.find(id))? {
                Ok(found) => found,
                Err(what) => {
                    let name = self.folder.show(&name);
                    return Err(unusable_index(&name, &what));
                }
            };
            if let Some((at, location)) = found
                && is_wanted(&location)
                && self.is_usable(id, &location)
            {
                return Ok(Some(Found { segment: number, number: at, location }));
            }
        }
        Ok(None)
    }

    /// Tells whether an entry can be read where it lies, as far as is known.
    pub(crate) fn is_usable(&self, id: &Id, location: &Location) -> bool {
        self.packs.contains(&location.pack) && !self.damage.concerns(id, location)
    }

    pub(crate) fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Numbers of the stored segments.
    pub(crate) fn stored(&self) -> &[u64] {
        &self.stored
    }

    /// Packs that no stored segment knows.
    pub(crate) fn loose(&self) -> &[u64] {
        &self.loose
    }

    /// All packs that are there.
    pub(crate) fn packs(&self) -> &HashSet<u64> {
        &self.packs
    }

    /// Packs that a segment knows, and that are not there, in order.
    pub(crate) fn missing(&self) -> &[u64] {
        &self.missing
    }

    /// Takes this for what is damaged.
    pub(crate) fn set_damage(&mut self, damage: KnownDamage) {
        self.damage = damage;
    }

    /// Entries that lie in a pack, as far as an index says so, in their order there.
    pub(crate) fn entries_of(&self, pack: u64) -> Result<Vec<(Id, Location)>> {
        let mut entries = Vec::new();
        for segment in self.segments.iter().filter(|segment| segment.packs().contains(&pack)) {
            for entry in segment.entries() {
                if let Ok((id, location)) = of_file(&*self.folder, "an index", entry)?
                    && location.pack == pack
                {
                    entries.push((id, location));
                }
            }
        }
        entries.sort_unstable_by_key(|(_, location)| location.offset);
        entries.dedup();
        Ok(entries)
    }

    pub(crate) fn damage(&self) -> &KnownDamage {
        &self.damage
    }
}

/// Opens a stored segment: the copy in the cache, which is made if it is not there, or not whole. `None`: it is gone.
fn open_segment(
    folder: &dyn Folder,
    cache: Option<&dyn Folder>,
    number: u64,
) -> Result<Option<std::result::Result<Segment, String>>> {
    let name = segment_name(number);
    if let Some(cache) = cache
        && let Ok(copy) = cache.open(&name, false)
        && Segment::check(&*copy, &mut |_, _| Ok(())).unwrap_or(false)
        && let Ok(segment) = Segment::open(copy, number)
    {
        return Ok(Some(Ok(segment)));
    }
    let file = match folder.open(&name, false) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) if is_of_the_file(error.kind()) => return Ok(Some(Err(error.to_string()))),
        Err(error) => return Err(BackupError::folder("opening", &folder.show(&name))(error)),
    };
    let copied = cache.map(|cache| copy_of(cache, &name, &file));
    let (is_right, used) = match copied {
        Some(Ok((is_right, copy))) => (Ok(is_right), copy),
        // A cache that is full or cannot be written is done without.
        Some(Err(_)) | None => (Segment::check(&*file, &mut |_, _| Ok(())), file),
    };
    let opened = match of_file(folder, &name, is_right.map_err(FormatError::from))? {
        Ok(true) => of_file(folder, &name, Segment::open(used, number))?,
        Ok(false) => Err("its bytes are not what was written".into()),
        Err(what) => Err(what),
    };
    Ok(Some(opened))
}

/// Copies a segment into the cache, under its name if it is whole.
fn copy_of(cache: &dyn Folder, name: &str, file: &Open) -> io::Result<(bool, Open)> {
    let unfinished = format!("{name}.{:08x}{INCOMPLETE}", std::process::id());
    cache.remove(&unfinished)?;
    let copy = cache.create(&unfinished)?;
    let is_right = Segment::check(&**file, &mut |at, bytes| copy.write_at(at, bytes))?;
    match is_right {
        true => {
            copy.flush()?;
            cache.rename(&unfinished, name)?;
        }
        false => cache.remove(&unfinished)?,
    }
    Ok((is_right, copy))
}

/// Removes copies of segments that the repository does not have any more.
fn forget_others(cache: &dyn Folder, stored: &[u64]) {
    for name in cache.names().unwrap_or_default() {
        if parse_segment_name(&name).is_some_and(|number| !stored.contains(&number)) {
            let _ = cache.remove(&name);
        }
    }
}

/// Writes a segment under a new name, durably: its number. `fill` adds its entries.
pub(crate) fn write_segment(
    folder: &dyn Folder,
    fill: &mut dyn FnMut(&mut SegmentWriter<'_>) -> Result<()>,
) -> Result<u64> {
    let number = new_number()?;
    let written = fill_segment(folder, number, fill);
    if written.is_err() {
        // A full folder has its room back.
        let _ = folder.remove(&format!("{}{INCOMPLETE}", segment_name(number)));
    }
    written.map(|()| number)
}

fn fill_segment(
    folder: &dyn Folder,
    number: u64,
    fill: &mut dyn FnMut(&mut SegmentWriter<'_>) -> Result<()>,
) -> Result<()> {
    let name = segment_name(number);
    let unfinished = format!("{name}{INCOMPLETE}");
    let writing = || BackupError::folder("writing", &folder.show(&name));
    let file = folder.create(&unfinished).map_err(writing())?;
    let mut at = 0;
    let mut writer = SegmentWriter::new(number, |part: &[u8]| {
        file.write_at(at, part)?;
        at += part.len() as u64;
        Ok(())
    });
    fill(&mut writer)?;
    writer.finish().map_err(writing())?;
    file.flush().map_err(writing())?;
    folder.rename(&unfinished, &name).map_err(writing())?;
    folder.sync().map_err(writing())
}
