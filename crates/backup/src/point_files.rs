//! Files of a point: their names, how they are opened, and what protects them.

use std::io;
use std::ops::Range;

use lunway_vhdx::format::{CHUNK_SECTORS, Guid};
use lunway_vhdx::{Chain, CreateOptions, Disk, DiskError, VhdxOpenOptions};

use crate::access::failed_access;
use crate::error::{BackupError, Result, is_of_the_file};
use crate::folder::{Folder, INCOMPLETE, Open};
use crate::journal::Plan;
use crate::leaf::{LEAF, Leaf};
use crate::manifest::{Manifest, disk_name, leaves_name, manifest_names, root};
use crate::notes::NOTES;
use crate::point_id::{PointId, parse_stem, stem};
use crate::sidecar::{Sidecar, SidecarError, read_pieces};
use crate::threads::{both, each};

/// Pages of metadata that are kept for each file of a chain that is read: 1 MiB, so that 64 files take 64 MiB.
const CACHED_PAGES: usize = 256;
/// Sector bitmap blocks up to which an increment has them all, whether its blocks need them or not: libvhdi (20210425
/// and later) reads garbage in a file that lacks one. 64 MiB, which are holes on most hosts and written by the others,
/// for a disk of 256 GiB with sectors of 512 bytes. Above that each increment would take more than it holds.
const BITMAPS_MAX: u64 = 64;

/// Names of a draft's files.
pub(crate) struct Names {
    pub(crate) stem: String,
    pub(crate) pass: u32,
}

impl Names {
    pub(crate) fn of(plan: &Plan) -> Self {
        Self { stem: stem(plan.generation, plan.point), pass: plan.pass }
    }

    /// Name of the disk while it is seen whether it can be renamed.
    pub(crate) fn moved_disk(&self) -> String {
        format!("{}.vhdx.moved{INCOMPLETE}", self.stem)
    }

    pub(crate) fn disk(&self) -> String {
        format!("{}{INCOMPLETE}", disk_name(&self.stem))
    }

    pub(crate) fn leaves(&self) -> String {
        format!("{}.leaves-{}{INCOMPLETE}", self.stem, self.pass)
    }

    pub(crate) fn have(&self) -> String {
        format!("{}.have-{}{INCOMPLETE}", self.stem, self.pass)
    }

    pub(crate) fn journal(&self) -> String {
        journal_name(&self.stem)
    }
}

/// Name of the journal of an incomplete point.
pub(crate) fn journal_name(stem: &str) -> String {
    format!("{stem}.journal{INCOMPLETE}")
}

/// Tells whether a file is the journal of an incomplete point.
pub(crate) fn is_journal(name: &str) -> bool {
    let stem = name.strip_suffix(INCOMPLETE).and_then(|name| name.strip_suffix(".journal"));
    stem.is_some_and(|stem| parse_stem(stem).is_some())
}

/// Names of the new files of a point until they have its own.
pub(crate) fn merged_names(stem: &str) -> [String; 2] {
    [format!("{stem}.merged.vhdx{INCOMPLETE}"), format!("{stem}.merged.leaves{INCOMPLETE}")]
}

/// Checks a point's files in the folder by name and length, and describes the first one that is missing or wrong.
pub(crate) fn lacks(folder: &dyn Folder, manifest: &Manifest) -> Result<Option<String>> {
    let merged = merged_names(&manifest.stem());
    let files = [
        (manifest.disk_name(), &merged[0], manifest.file_bytes),
        (manifest.leaves_name(), &merged[1], manifest.leaves_bytes),
    ];
    for (file, merged, bytes) in files {
        let look = |name: &str| folder.file_len(name);
        let len = match found(folder, manifest.merging.then_some(merged), &file, manifest.point, look) {
            Err(BackupError::Damaged { what, .. }) => return Ok(Some(what)),
            len => len?,
        };
        if len != bytes {
            return Ok(Some(format!("{} has {len} bytes instead of {bytes}", folder.show(&file))));
        }
    }
    Ok(None)
}

/// Opens a file of a point, under the name that it has until a merge is finished, or under its own. One that is not
/// there, or is none, is the point's damage.
pub(crate) fn open_file(
    folder: &dyn Folder,
    before: Option<&String>,
    file: &str,
    point: PointId,
) -> Result<Open> {
    found(folder, before, file, point, |name| folder.open(name, false))
}

fn found<T>(
    folder: &dyn Folder,
    before: Option<&String>,
    file: &str,
    point: PointId,
    look: impl Fn(&str) -> io::Result<T>,
) -> Result<T> {
    let name = folder.show(file);
    if let Some(before) = before {
        match look(before) {
            // The merge has given it its name already.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            open => return open.map_err(BackupError::folder("opening", &folder.show(before))),
        }
    }
    let what = match look(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => format!("{name} is missing"),
        // A link, a folder, a pipe in its place.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => format!("{name}: {error}"),
        found => return found.map_err(BackupError::folder("opening", &name)),
    };
    Err(BackupError::Damaged { point, what })
}

/// Options for the disk of a point that lies on `parent`, for a disk of `size` bytes.
pub(crate) fn child_of(folder: &dyn Folder, parent: &Manifest, size: u64) -> Result<CreateOptions> {
    Ok(child_of_disk(&open_disk(folder, parent)?, parent, size))
}

/// The same, where the disk of `parent` is open.
pub(crate) fn child_of_disk(below: &Disk<Open>, parent: &Manifest, size: u64) -> CreateOptions {
    let mut options = CreateOptions::child_of(below, &format!("./{}", parent.disk_name()));
    let chunk = CHUNK_SECTORS * u64::from(options.parameters.logical_sector);
    options.all_bitmaps = size.div_ceil(chunk) <= BITMAPS_MAX;
    options
}

/// Places that a look at a file of a point reads one behind the other, as offset and length: identifier, headers and
/// region tables, which lie where MS-VHDX 2.2 says; metadata and the beginning of the block table, which lie behind the
/// log of 1 MiB in a file of this program.
const READ_FIRST: [(u64, usize); 8] = [
    (0, 8),
    (64 << 10, 4096),
    (128 << 10, 4096),
    (192 << 10, 64 << 10),
    (256 << 10, 64 << 10),
    (2 << 20, 64 << 10),
    ((2 << 20) + (64 << 10), 4096),
    (3 << 20, 4096),
];

/// Asks for what an open file is looked at first, all at once: what the host keeps of it then takes no round trip each.
/// What cannot be read is said by the look.
pub(crate) fn read_ahead(storage: &Open) {
    read_ahead_of(storage, &READ_FIRST);
}

/// The same of these places.
pub(crate) fn read_ahead_of(storage: &Open, places: &[(u64, usize)]) {
    each(places, |(offset, len)| {
        let _ = storage.read_at(*offset, &mut vec![0; *len]);
        Ok(())
    });
}

/// The same of a small file that is read whole: up to 2 MiB, which are the hashes of 4 GiB.
pub(crate) fn read_ahead_whole(storage: &Open, len: u64) {
    const MAX: u64 = 2 << 20;
    let _ = read_pieces(storage, 0, len.min(MAX) as usize);
}

/// Opens the VHDX file of one point for reading.
pub(crate) fn open_disk(folder: &dyn Folder, manifest: &Manifest) -> Result<Disk<Open>> {
    let file = manifest.disk_name();
    let name = folder.show(&file);
    let [merged, _] = merged_names(&manifest.stem());
    let storage = open_file(folder, manifest.merging.then_some(&merged), &file, manifest.point)?;
    read_ahead(&storage);
    let options = VhdxOpenOptions { cached_pages: CACHED_PAGES, ..VhdxOpenOptions::read_only() };
    let refused = |error| match failed_access(error) {
        Ok(source) => BackupError::folder("reading", &name)(source),
        Err(error) => BackupError::Damaged { point: manifest.point, what: format!("{name}: {error}") },
    };
    let disk = Disk::open(storage, &options, Box::new(|| Guid::ZERO)).map_err(refused)?;
    let parameters = disk.parameters();
    if (parameters.disk_size, parameters.logical_sector) != (manifest.virtual_bytes, manifest.sector_bytes) {
        let what = format!("{name} is a disk of another size than its manifest says");
        return Err(BackupError::Damaged { point: manifest.point, what });
    }
    Ok(disk)
}

/// Opens the sidecar of one point.
pub(crate) fn open_sidecar(folder: &dyn Folder, manifest: &Manifest) -> Result<Sidecar> {
    let file = manifest.leaves_name();
    let wrong = |what: String| BackupError::Damaged { point: manifest.point, what };
    let [_, merged] = merged_names(&manifest.stem());
    let storage = open_file(folder, manifest.merging.then_some(&merged), &file, manifest.point)?;
    let sidecar = Sidecar::open(storage, manifest.point).map_err(|error| damaged(manifest.point, error))?;
    match root(sidecar.sum(), manifest.virtual_bytes) == manifest.root {
        true => Ok(sidecar),
        false => Err(wrong("its leaf hashes are not those that its manifest names".into())),
    }
}

/// Compares a leaf of a disk, which is shown by that name, with its hash. A sector that the file does not have is as
/// wrong as one that it has wrongly.
///
/// # Errors
///
/// What the share says.
pub(crate) fn is_as_written(
    disk: &Chain<Open>,
    name: &str,
    range: Range<u64>,
    written: Leaf,
) -> Result<bool> {
    let mut buf = [0; LEAF as usize];
    let bytes = &mut buf[..(range.end - range.start) as usize];
    match disk.read_at(range.start, bytes) {
        Err(error @ DiskError::Storage { kind, .. }) if !is_of_the_file(kind) => {
            Err(BackupError::disk(name)(error))
        }
        read => Ok(!range.is_empty() && read.is_ok() && Leaf::of(bytes) == written),
    }
}

/// A sidecar's error as a point's, or the folder's where the sidecar could not be reached.
pub(crate) fn damaged(point: PointId, error: SidecarError) -> BackupError {
    match error {
        SidecarError::Io(source) if !is_of_the_file(source.kind()) => {
            BackupError::Folder { what: "reading the leaf hashes of point", name: point.to_string(), source }
        }
        error => BackupError::Damaged { point, what: error.to_string() },
    }
}

/// Does the work that remains once a point is sealed of a draft that was begun and completed by one run: there is no
/// file of another pass.
pub(crate) fn clean_up_new(folder: &dyn Folder, names: &Names) -> Result<()> {
    protect(folder, &names.stem)?;
    remove_incomplete(folder, &names.journal())?;
    folder.sync().map_err(BackupError::folder("cleaning up", &folder.show(&names.stem)))
}

/// Does the work that remains once a point is sealed. May be repeated.
pub(crate) fn clean_up(folder: &dyn Folder, names: &Names) -> Result<()> {
    let cleaning = || BackupError::folder("cleaning up", &folder.show(&names.stem));
    let listing = || folder.names().map_err(cleaning());
    let (there, protected) = both(listing, || protect(folder, &names.stem));
    protected?;
    let mut left = there?;
    left.retain(|name| {
        name.starts_with(&names.stem) && name.ends_with(INCOMPLETE) && *name != names.journal()
    });
    each(&left, |name| remove_incomplete(folder, name))
        .into_iter()
        .try_for_each(|removed| removed.map(drop))?;
    remove_incomplete(folder, &names.journal())?;
    folder.sync().map_err(cleaning())
}

/// Tells whether an incomplete file belongs to this program: others may use such names too.
pub(crate) fn is_ours(name: &str) -> bool {
    let stem = name.split('.').next().unwrap_or_default();
    name.ends_with(INCOMPLETE) && (parse_stem(stem).is_some() || name.starts_with(NOTES))
}

/// Removes a file of a draft; `false`: the server has it open for a client that is gone, which it has not noticed yet.
/// A later run removes it.
pub(crate) fn remove_incomplete(folder: &dyn Folder, name: &str) -> Result<bool> {
    match folder.remove(name) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Ok(false),
        Err(error) => Err(BackupError::folder("removing", &folder.show(name))(error)),
    }
}

/// Takes the right to write from a point's files. Shares that cannot do it are as they are.
pub(crate) fn protect(folder: &dyn Folder, stem: &str) -> Result<()> {
    let [copy, first] = manifest_names(stem);
    let names = [disk_name(stem), leaves_name(stem), copy, first];
    each(&names, |name| {
        let _ = folder.set_read_only(name, true);
        Ok(())
    })
    .into_iter()
    .collect()
}

/// Gives the right to write to a file back before it is replaced or removed: SMB servers refuse both on one that is
/// read-only. A file that is not there has nothing to give back.
pub(crate) fn release(folder: &dyn Folder, name: &str) {
    let _ = folder.set_read_only(name, false);
}
