//! Reading entries: by their ids, out of packs, compared with their hashes.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use lunway_backup::{BackupError, Folder, Open, Result, is_of_the_file};

use crate::codec::{Codec, Id};
use crate::index::Index;
use crate::lock::lock;
use crate::pack::{Location, pack_name};

/// Packs that are kept open: those of 16 units that are read side by side, with a node and a leaf each.
const OPEN_MAX: usize = 32;
/// Bytes of nodes and branches that are kept: those of 16 GiB of disk.
const KEPT_MAX: usize = 8 << 20;

/// Reason why an entry was not read.
#[derive(Debug)]
pub(crate) enum EntryError {
    /// No pack has it.
    Missing,
    /// It is not what it was.
    Damaged { pack: u64, what: String },
    /// The folder failed.
    Access(BackupError),
}

impl EntryError {
    /// A sentence for what is damaged, or the error of the folder.
    pub(crate) fn sentence(self) -> Result<String> {
        match self {
            Self::Missing => Ok("a part of it is in no pack".into()),
            Self::Damaged { pack, what } => Ok(format!("{}: {what}", pack_name(pack))),
            Self::Access(error) => Err(error),
        }
    }
}

type Read<T> = std::result::Result<T, EntryError>;

/// Reads entries of a repository. Calls block and come from any thread.
pub(crate) struct Reader {
    folder: Arc<dyn Folder>,
    pub(crate) codec: Arc<Codec>,
    pub(crate) index: Arc<Index>,
    open: Mutex<VecDeque<(u64, Open)>>,
    kept: Mutex<Kept>,
}

/// Nodes and branches that were read last.
#[derive(Default)]
struct Kept {
    entries: VecDeque<(Id, Arc<Vec<u8>>)>,
    bytes: usize,
}

impl Reader {
    pub(crate) fn new(folder: Arc<dyn Folder>, codec: Arc<Codec>, index: Arc<Index>) -> Self {
        Self { folder, codec, index, open: Mutex::default(), kept: Mutex::default() }
    }

    fn locate(&self, id: &Id) -> Read<Location> {
        let found = self.index.find(id).map_err(EntryError::Access)?;
        found.map(|found| found.location).ok_or(EntryError::Missing)
    }

    fn pack(&self, pack: u64) -> Read<Open> {
        if let Some((_, file)) = lock(&self.open).iter().find(|(open, _)| *open == pack) {
            return Ok(Arc::clone(file));
        }
        let name = pack_name(pack);
        let file = self.folder.open(&name, false).map_err(|error| self.failed(pack, error))?;
        let mut open = lock(&self.open);
        open.push_front((pack, Arc::clone(&file)));
        open.truncate(OPEN_MAX);
        Ok(file)
    }

    fn failed(&self, pack: u64, error: std::io::Error) -> EntryError {
        match is_of_the_file(error.kind()) {
            true => EntryError::Damaged { pack, what: error.to_string() },
            false => {
                EntryError::Access(BackupError::folder("reading", &self.folder.show(&pack_name(pack)))(error))
            }
        }
    }

    /// Reads one entry.
    pub(crate) fn read(&self, id: &Id) -> Read<Vec<u8>> {
        let mut entry = None;
        self.read_all(std::slice::from_ref(id), |_, bytes| entry = Some(bytes))?;
        entry.ok_or(EntryError::Missing)
    }

    /// Reads a node, a branch or a root, which may be kept for the next time.
    pub(crate) fn read_kept(&self, id: &Id) -> Read<Arc<Vec<u8>>> {
        if let Some((_, entry)) = lock(&self.kept).entries.iter().find(|(kept, _)| kept == id) {
            return Ok(Arc::clone(entry));
        }
        let entry = Arc::new(self.read(id)?);
        let mut kept = lock(&self.kept);
        kept.bytes += entry.len();
        kept.entries.push_front((*id, Arc::clone(&entry)));
        while kept.bytes > KEPT_MAX
            && let Some((_, gone)) = kept.entries.pop_back()
        {
            kept.bytes -= gone.len();
        }
        Ok(entry)
    }

    /// Reads entries in their order; those that lie beside each other with one request.
    pub(crate) fn read_all(&self, ids: &[Id], mut each: impl FnMut(usize, Vec<u8>)) -> Read<()> {
        let locations = ids.iter().map(|id| self.locate(id)).collect::<Read<Vec<Location>>>()?;
        let mut first = 0;
        while first < ids.len() {
            let adjoins = |at: &usize| {
                let (before, after) = (&locations[at - 1], &locations[*at]);
                before.pack == after.pack && before.end() == u64::from(after.offset)
            };
            let end = (first + 1..ids.len()).find(|at| !adjoins(at)).unwrap_or(ids.len());
            let start = locations[first];
            let mut bytes = vec![0; (locations[end - 1].end() - u64::from(start.offset)) as usize];
            let file = self.pack(start.pack)?;
            let read = file.read_at(start.offset.into(), &mut bytes);
            read.map_err(|error| self.failed(start.pack, error))?;
            let mut rest = &bytes[..];
            for at in first..end {
                let (stored, behind) = rest.split_at(locations[at].stored as usize);
                rest = behind;
                each(at, self.decode(&ids[at], &locations[at], stored)?);
            }
            first = end;
        }
        Ok(())
    }

    /// An entry of the bytes that lie in its place.
    pub(crate) fn decode(&self, id: &Id, location: &Location, stored: &[u8]) -> Read<Vec<u8>> {
        let decoded = self.codec.decode(id, stored, location.raw, location.compressed);
        decoded.map_err(|what| EntryError::Damaged {
            pack: location.pack,
            what: format!("the entry at byte {}: {what}", location.offset),
        })
    }
}
