//! Packs that are damaged: beside their entries (header, directory, end) they are written again of what they hold; of
//! those that cannot be, the entries that are whole move into another pack.

use lunway_backup::{BackupError, Folder, Result, write_whole};

use crate::codec::{Encoded, Id};
use crate::damage::KnownDamage;
use crate::index::{Index, of_file, write_segment};
use crate::pack::{Location, PackBuilder, pack_name, read_directory, read_whole};
use crate::random::new_number;
use crate::repository::Repository;

/// Mends those that verification has noted. Returns `true` if the index, or what is known to be damaged, is another one
/// now.
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
        let held = Held::read(repository, index, pack)?;
        if is_framed && let Some(rebuilt) = held.as_ref().and_then(|held| held.rebuilt(pack)) {
            store(folder, pack, rebuilt)?;
            notes.push(format!("{shown} was written again: its entries are whole"));
            continue;
        }
        let moved = held.map_or(Ok(0), |held| held.moved(folder, index, pack))?;
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
    Ok(is_another || known != *damage)
}

/// What lies in a pack that is damaged.
struct Held {
    /// Bytes of the file.
    len: u64,
    /// Its entries, as its directory says, or where that is damaged an index; `None`: one that is not whole.
    entries: Vec<(Id, Location, Option<Encoded>)>,
}

impl Held {
    /// Reads a pack; `None`: it cannot be read as one.
    fn read(repository: &Repository, index: &Index, pack: u64) -> Result<Option<Self>> {
        let (folder, name) = (&*repository.folder, pack_name(pack));
        let file = match folder.open(&name, false) {
            Ok(file) => file,
            Err(error) if lunway_backup::is_of_the_file(error.kind()) => return Ok(None),
            Err(error) => return Err(BackupError::folder("reading", &folder.show(&name))(error)),
        };
        let Ok((bytes, _)) = of_file(folder, &name, read_whole(&*file))? else {
            return Ok(None);
        };
        let entries = match of_file(folder, &name, read_directory(&*file, pack))? {
            Ok(entries) => entries,
            Err(_) => index.entries_of(pack)?,
        };
        let entries = entries.into_iter().map(|(id, location)| {
            let stored = bytes.get(location.offset as usize..location.end() as usize).unwrap_or_default();
            let decoded = repository.codec.decode(&id, stored, location.raw, location.compressed);
            let encoded =
                Encoded { bytes: stored.to_vec(), raw: location.raw, compressed: location.compressed };
            (id, location, decoded.is_ok().then_some(encoded))
        });
        Ok(Some(Self { len: bytes.len() as u64, entries: entries.collect() }))
    }

    /// The same pack, byte for byte as it was; `None`: that cannot be known.
    fn rebuilt(&self, pack: u64) -> Option<PackBuilder> {
        let mut builder = PackBuilder::new(pack);
        for (id, location, encoded) in &self.entries {
            if builder.add(*id, encoded.as_ref()?) != *location {
                return None;
            }
        }
        (!builder.is_empty() && builder.len() == self.len).then_some(builder)
    }

    /// Writes those entries into another pack that are whole, and in none beside it: how many.
    fn moved(self, folder: &dyn Folder, index: &Index, pack: u64) -> Result<usize> {
        let number = new_number()?;
        let (mut builder, mut placed) = (PackBuilder::new(number), Vec::<(Id, Location)>::new());
        for (id, _, encoded) in self.entries {
            if let Some(encoded) = encoded
                && index.find_beside(&id, pack)?.is_none()
            {
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
}

/// Writes a pack under its name, durably.
fn store(folder: &dyn Folder, pack: u64, builder: PackBuilder) -> Result<()> {
    write_whole(folder, &pack_name(pack), &builder.finish())?;
    folder.sync().map_err(BackupError::folder("writing", &folder.show("")))
}
