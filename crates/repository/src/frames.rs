//! Packs that are damaged beside their entries: header, directory, end. They are written again of what they hold.

use lunway_backup::{BackupError, INCOMPLETE, Result};

use crate::codec::Encoded;
use crate::damage::KnownDamage;
use crate::index::{Index, of_file};
use crate::pack::{PackBuilder, pack_name, read_directory, read_whole};
use crate::repository::Repository;

/// Mends those that verification has noted. One whose entries are not all known is left to be sent again.
pub(crate) fn mend(repository: &Repository, index: &Index, notes: &mut Vec<String>) -> Result<()> {
    let folder = &*repository.folder;
    if index.damage().frames.is_empty() {
        return Ok(());
    }
    let mut known: KnownDamage = index.damage().clone();
    for pack in index.damage().frames.iter().copied() {
        let shown = folder.show(&pack_name(pack));
        known.frames.remove(&pack);
        match mended(repository, index, pack)? {
            true => notes.push(format!("{shown} was written again: its entries are whole")),
            false => {
                known.packs.insert(pack);
                notes.push(format!("{shown} cannot be written again: its entries are sent again"));
            }
        }
    }
    known.store(folder)
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
    let unfinished = format!("{name}{INCOMPLETE}");
    let writing = || BackupError::folder("writing", &folder.show(&name));
    folder.remove(&unfinished).map_err(writing())?;
    let again = folder.create(&unfinished).map_err(writing())?;
    again.write_at(0, &builder.finish()).map_err(writing())?;
    again.flush().map_err(writing())?;
    folder.rename(&unfinished, &name).map_err(writing())?;
    folder.sync().map_err(writing())?;
    Ok(true)
}
