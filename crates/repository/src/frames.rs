//! Packs that are damaged: beside their entries (header, directory, end) they are written again of what they hold; of
//! those that cannot be, the entries that are whole move into another pack.

use lunway_backup::{BackupError, Folder, Result, write_whole};

use crate::codec::{Encoded, Id};
use crate::damage::KnownDamage;
use crate::index::{Index, of_file, write_segment};
use crate::pack::{Location, PackBuilder, pack_name, read_directory, read_whole};
use crate::random::new_number;
use crate::repository::Repository;

/// Mends those that verification has noted. Returns `true` if the index is another one now.
pub(crate) fn mend(repository: &Repository, index: &Index, notes: &mut Vec<String>) -> Result<bool> {
    let (folder, damage) = (&*repository.folder, index.damage());
    let mut damaged: Vec<u64> = damage.frames.union(&damage.packs).copied().collect();
    damaged.retain(|pack| index.packs().contains(pack));
    damaged.sort_unstable();
    if damaged.is_empty() {
        return Ok(false);
    }
    let (mut known, mut is_another): (KnownDamage, _) = (damage.clone(), false);
    for pack in damaged {
        let shown = folder.show(&pack_name(pack));
        let is_framed = known.frames.remove(&pack);
        if is_framed && mended(repository, index, pack)? {
            notes.push(format!("{shown} was written again: its entries are whole"));
            continue;
        }
        let moved = moved(repository, index, pack)?;
        if moved > 0 {
            notes.push(format!(
                "{shown} cannot be written again: {moved} entries of it that are whole were written into another pack"
            ));
        }
        is_another |= moved > 0;
        // Only now is nothing of it read any more.
        known.packs.insert(pack);
    }
    known.store(folder)?;
    Ok(is_another)
}

/// Writes those entries of a pack into another one that are whole and in none beside it: how many.
fn moved(repository: &Repository, index: &Index, pack: u64) -> Result<usize> {
    let (folder, name) = (&*repository.folder, pack_name(pack));
    let mut entries = index.entries_of(pack)?;
    let file = match folder.open(&name, false) {
        Ok(file) => file,
        Err(error) if lunway_backup::is_of_the_file(error.kind()) => return Ok(0),
        Err(error) => return Err(BackupError::folder("reading", &folder.show(&name))(error)),
    };
    if entries.is_empty() {
        entries = of_file(folder, &name, read_directory(&*file, pack))?.unwrap_or_default();
    }
    let mut alone = Vec::new();
    for (id, location) in entries {
        if index.find_beside(&id, pack)?.is_none() {
            alone.push((id, location));
        }
    }
    if alone.is_empty() {
        return Ok(0);
    }
    let Ok((bytes, _)) = of_file(folder, &name, read_whole(&*file))? else {
        return Ok(0);
    };
    let number = new_number()?;
    let (mut builder, mut placed) = (PackBuilder::new(number), Vec::<(Id, Location)>::new());
    for (id, location) in alone {
        let stored = bytes.get(location.offset as usize..location.end() as usize).unwrap_or_default();
        if repository.codec.decode(&id, stored, location.raw, location.compressed).is_ok() {
            let encoded =
                Encoded { bytes: stored.to_vec(), raw: location.raw, compressed: location.compressed };
            placed.push((id, builder.add(id, &encoded)));
        }
    }
    if placed.is_empty() {
        return Ok(0);
    }
    store(folder, number, builder)?;
    placed.sort_unstable_by_key(|(id, _)| *id);
    write_segment(folder, &mut |writer| {
        writer.cover(number);
        let pushed = placed.iter().try_for_each(|(id, location)| writer.push(id, location));
        pushed.map_err(BackupError::folder("writing", &folder.show("index")))
    })?;
    Ok(placed.len())
}

/// Writes a pack under its name, durably.
fn store(folder: &dyn Folder, pack: u64, builder: PackBuilder) -> Result<()> {
    write_whole(folder, &pack_name(pack), &builder.finish())?;
    folder.sync().map_err(BackupError::folder("writing", &folder.show("")))
}

/// Writes one pack again, byte for byte as it was; `false`: that cannot be known.
fn mended(repository: &Repository, index: &Index, pack: u64) -> Result<bool> {
    let (folder, name) = (&*repository.folder, pack_name(pack));
    let file = match folder.open(&name, false) {
        Ok(file) => file,
        Err(error) if lunway_backup::is_of_the_file(error.kind()) => return Ok(false),
        Err(error) => return Err(BackupError::folder("reading", &folder.show(&name))(error)),
    };
    let Ok((bytes, _)) = of_file(folder, &name, read_whole(&*file))? else {
        return Ok(false);
    };
    let entries = match of_file(folder, &name, read_directory(&*file, pack))? {
        Ok(entries) => entries,
        Err(_) => index.entries_of(pack)?,
    };
    let mut builder = PackBuilder::new(pack);
    for (id, location) in entries {
        let stored = bytes.get(location.offset as usize..location.end() as usize).unwrap_or_default();
        let is_whole = repository.codec.decode(&id, stored, location.raw, location.compressed).is_ok();
        let encoded = Encoded { bytes: stored.to_vec(), raw: location.raw, compressed: location.compressed };
        if !is_whole || builder.add(id, &encoded) != location {
            return Ok(false);
        }
    }
    if builder.is_empty() || builder.len() != bytes.len() as u64 {
        return Ok(false);
    }
    store(folder, pack, builder)?;
    Ok(true)
}
