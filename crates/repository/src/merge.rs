//! Small segments of the index become one, so that a search asks few of them.
//!
//! Each run adds one. At its end those that are small beside the rest are written again as one: each that is left has
//! more than twice as many entries as all smaller ones together, but for the three smallest, so that their number grows
//! with the logarithm of the entries, and so does how often one is written.
//!
//! ```text
//!   1  write     the new one, durable: it says what the small ones say
//!   2  remove    the small ones
//! ```
//!
//! A cut between leaves both, which the next merge makes one. Nothing is removed while another process may read it.

use std::collections::HashSet;

use lunway_backup::{BackupError, INCOMPLETE, Presence, Result};

use crate::codec::Id;
use crate::index::{Index, of_file, write_segment};
use crate::pack::{FormatError, Location};
use crate::repository::{Repository, SWEEPER, WRITER};
use crate::segment::{Segment, merged, segment_name};

/// Segments that become one, at least: fewer are soon asked.
const LEAST: usize = 4;
/// Most of them at a time: each takes a mebibyte of memory.
const MOST: usize = 64;
/// Prefix of the files of processes that read points of a series.
const MOUNT: &str = "mount-";

/// How many of the smallest segments become one, of their numbers of entries in order; 0: none.
fn small(counts: &[u64]) -> usize {
    let is_small = |end: &usize| counts[end - 1] <= 2 * counts[..end - 1].iter().sum::<u64>();
    (LEAST..=counts.len().min(MOST)).rev().find(is_small).unwrap_or(0)
}

/// Makes small segments one, of those that a run has found and of those that it has written. `us` is the run.
pub(crate) fn merge(
    repository: &Repository,
    index: &Index,
    written: &[(u64, Segment)],
    us: &Presence,
) -> Result<()> {
    let mut all: Vec<(u64, &Segment)> = index.stored().iter().copied().zip(index.segments()).collect();
    all.extend(written.iter().map(|(number, segment)| (*number, segment)));
    all.sort_by_key(|(_, segment)| segment.count());
    let counts: Vec<u64> = all.iter().map(|(_, segment)| segment.count()).collect();
    all.truncate(small(&counts));
    if all.is_empty() || !is_alone(repository, us)? {
        return Ok(());
    }
    let folder = &*repository.folder;
    let new: HashSet<u64> = written.iter().flat_map(|(_, segment)| segment.packs()).copied().collect();
    let is_there = |pack: &u64| new.contains(pack) || index.packs().contains(pack);
    // Of an entry that is twice there, the one that can be read.
    let rank = |id: &Id, location: &Location| {
        let is_usable = new.contains(&location.pack) || index.is_usable(id, location);
        u8::from(is_usable) + u8::from(is_there(&location.pack))
    };
    let read = |entry: std::result::Result<(Id, Location), FormatError>| {
        of_file(folder, "an index", entry)?.map_err(BackupError::Refused)
    };
    let one = write_segment(folder, &mut |writer| {
        let writing = || BackupError::folder("writing", &folder.show("index"));
        let packs = all.iter().flat_map(|(_, segment)| segment.packs());
        for pack in packs.filter(|pack| is_there(pack)) {
            writer.cover(*pack);
        }
        let mut entries = merged(all.iter().map(|(_, segment)| *segment)).peekable();
        while let Some(entry) = entries.next() {
            let (id, mut location) = read(entry)?;
            let is_same = |next: &std::result::Result<(Id, Location), _>| {
                next.as_ref().is_ok_and(|(next, _)| *next == id)
            };
            while let Some(other) = entries.next_if(is_same) {
                let (_, other) = read(other)?;
                if rank(&id, &other) > rank(&id, &location) {
                    location = other;
                }
            }
            if is_there(&location.pack) {
                writer.push(&id, &location).map_err(writing())?;
            }
        }
        Ok(())
    })?;
    let removing = || BackupError::folder("removing", &folder.show("index"));
    for (at, (number, _)) in all.iter().enumerate() {
        let removed = folder.remove(&segment_name(*number));
        if removed.is_err() && at == 0 {
            // Where nothing can be removed they would become more.
            folder.remove(&segment_name(one)).map_err(removing())?;
        }
        removed.map_err(removing())?;
    }
    folder.sync().map_err(removing())
}

/// Tells whether no other process writes, prunes, or reads a point.
fn is_alone(repository: &Repository, us: &Presence) -> Result<bool> {
    let is_other = |name: &String| {
        let is_one = name.starts_with(WRITER) || name.starts_with(SWEEPER);
        is_one && !name.ends_with(INCOMPLETE) && name != us.name()
    };
    if repository.names()?.iter().any(is_other) {
        return Ok(false);
    }
    let reading = |name: &str| BackupError::folder("reading", &repository.folder.show(name));
    for name in repository.places().series().map_err(reading(""))? {
        let series = repository.places().of_series(&name).map_err(reading(&name))?;
        if series.names().map_err(reading(&name))?.iter().any(|name| name.starts_with(MOUNT)) {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_that_are_small_beside_the_rest_become_one() {
        assert_eq!([small(&[]), small(&[1, 1, 1])], [0, 0]);
        assert_eq!([small(&[1, 1, 1, 1]), small(&[1, 1, 1, 1, 1000])], [4, 4]);
        assert_eq!(small(&[1, 100, 100, 100]), 4, "a tiny one stops nothing");
        assert_eq!(small(&[1, 1, 1, 7]), 0);
        assert_eq!(small(&[1; 100]), MOST);
        // A run a night for ten years.
        let mut counts: Vec<u64> = Vec::new();
        let (mut most, mut written) = (0, 0);
        for _ in 0..3650 {
            counts.push(1000);
            counts.sort_unstable();
            let sum = counts.drain(..small(&counts)).sum();
            if sum > 0 {
                counts.push(sum);
                written += sum;
            }
            most = most.max(counts.len());
        }
        assert!(most <= 12, "{most} segments");
        assert!(written <= 10 * 3_650_000, "each entry was written {} times", written / 3_650_000);
    }
}
