//! Opening a file: everything is checked before anything is believed, and before anything is changed.

use crate::disk::{Disk, Parts};
use crate::error::{Structure, VhdxOpenError};
use crate::format::{FILE_SIGNATURE, FILE_SIZE_MAX, Guid, GuidSource};
use crate::geometry::Geometry;
use crate::header::Headers;
use crate::log::replay::{self, View};
use crate::measured::Measured;
use crate::metadata::Parameters;
use crate::region::Regions;
use crate::scan::{Anomaly, AnomalySeverity, Counts, scan};
use crate::space::Space;
use crate::storage::Storage;

/// Options for opening a file.
pub struct VhdxOpenOptions {
    /// Not a bit of the file is changed: a log is replayed in memory.
    pub read_only: bool,
    /// Number of 4 KiB pages of metadata kept in memory, beside those that are changed. One holds the entries of 512
    /// blocks.
    pub cached_pages: usize,
    /// The DataWriteGuid that the first change writes, where a child was told it beforehand; otherwise a new one.
    pub data_write: Option<Guid>,
    /// This program has made the file by [`create_unflushed`](crate::create_unflushed) and not opened it since: its
    /// GUIDs are new, and the first change announces no others. Nothing is flushed before the first
    /// [`flush`](Disk::flush), and a crash until that has ended leaves anything: for a file that nothing leads to
    /// before.
    pub is_new: bool,
}

impl VhdxOpenOptions {
    /// 16 MiB: the table of 4 TiB in blocks of 2 MiB.
    const CACHED_PAGES: usize = 4096;

    /// For reading alone.
    pub fn read_only() -> Self {
        Self { read_only: true, cached_pages: Self::CACHED_PAGES, data_write: None, is_new: false }
    }

    /// For reading and writing.
    pub fn writable() -> Self {
        Self { read_only: false, ..Self::read_only() }
    }
}

/// Facts of a file that were read before its table was scanned.
pub(crate) struct Opened {
    pub(crate) headers: Headers,
    pub(crate) overlay: Option<replay::Overlay>,
    pub(crate) regions: Regions,
    pub(crate) parameters: Parameters,
    pub(crate) geometry: Geometry,
    pub(crate) file_len: u64,
    pub(crate) space: Space,
}

impl<S: Storage> Disk<S> {
    /// Opens a file. A parent is another disk: [`Chain`](crate::Chain) puts them together.
    ///
    /// A log that is not empty is replayed: onto the file, or in memory where `options` ask for reading alone.
    /// Otherwise nothing is changed before the first write. `guids` are taken when the file is changed.
    ///
    /// # Errors
    ///
    /// [`VhdxOpenError`]. A file that has lost data is not opened for writing ([`VhdxOpenError::Lost`]). Opened for
    /// reading alone, it tells what it has lost ([`lost`](Self::lost)), and reads of that fail.
    pub fn open(
        storage: S,
        options: &VhdxOpenOptions,
        mut guids: Box<dyn GuidSource>,
    ) -> Result<Self, VhdxOpenError> {
        let measured = Measured::opened(storage)?;
        let storage = if options.is_new { measured.unread() } else { measured };
        if !options.read_only {
            replay_onto(&storage, guids.as_mut())?;
        }
        let mut opened = read(&storage)?;
        let view = View { storage: &storage, overlay: opened.overlay.as_ref() };
        let (bat, geometry, overlay) = (opened.regions.bat, opened.geometry, opened.overlay.as_ref());
        let mut losses = Losses::default();
        let counts = scan(
            &view,
            bat,
            &geometry,
            opened.file_len,
            overlay,
            &mut opened.space,
            |finding| losses.refuse_damage(finding),
            |block| Err(VhdxOpenError::PayloadInLog { offset: block.offset }),
        )?;
        if !options.read_only {
            losses.refuse(&counts)?;
        }
        Ok(Self::assemble(storage, options, guids, opened, counts))
    }

    fn assemble(
        storage: Measured<S>,
        options: &VhdxOpenOptions,
        guids: Box<dyn GuidSource>,
        opened: Opened,
        counts: Counts,
    ) -> Self {
        Self::from_parts(Parts {
            storage,
            parameters: opened.parameters,
            geometry: opened.geometry,
            regions: opened.regions,
            overlay: opened.overlay,
            read_only: options.read_only,
            next_data_write: options.data_write,
            is_new: options.is_new,
            headers: opened.headers,
            guids,
            space: opened.space,
            counts,
            file_len: opened.file_len,
            cached_pages: options.cached_pages,
        })
    }
}

/// Losses that a scan has found.
#[derive(Default)]
struct Losses {
    first: Option<Anomaly>,
    /// A bitmap is among them, for which no repair has a substitute.
    of_bitmap: bool,
}

impl Losses {
    /// Refuses damage, and remembers the first loss.
    fn refuse_damage(&mut self, finding: Anomaly) -> Result<(), VhdxOpenError> {
        match finding.severity {
            AnomalySeverity::Note => {}
            AnomalySeverity::Damage => {
                return Err(VhdxOpenError::corrupt(finding.place, finding.offset, finding.problem));
            }
            AnomalySeverity::Loss => {
                self.of_bitmap |= matches!(finding.place, Structure::Bitmap(_));
                self.first.get_or_insert(finding);
            }
        }
        Ok(())
    }

    /// Refuses any loss: a write would lengthen the file, and what is lost would read as zeroes.
    fn refuse(self, counts: &Counts) -> Result<(), VhdxOpenError> {
        let Some(Anomaly { place, offset, problem, .. }) = self.first else { return Ok(()) };
        let repair = match self.of_bitmap {
            false => "lunway disk repair fills what is lost with zeroes",
            true => "lunway disk repair cannot, as a sector bitmap is lost with them",
        };
        let problem = format!(
            "{problem}; {} bytes of data are lost in all, because the file was cut: restore it from a backup, or open it for \
             reading alone and copy what is left; {repair}",
            counts.lost
        );
        Err(VhdxOpenError::lost(place, offset, problem))
    }
}

fn check_identity(storage: &impl Storage) -> Result<u64, VhdxOpenError> {
    let len = storage.len().map_err(VhdxOpenError::storage("asking for the file's length", 0))?;
    let mut signature = [0; 8];
    match storage.read_at(0, &mut signature) {
        Ok(()) if signature == FILE_SIGNATURE => {}
        Err(error) if error.kind() != std::io::ErrorKind::UnexpectedEof => {
            return Err(VhdxOpenError::storage("reading the file type identifier", 0)(error));
        }
        _ => return Err(VhdxOpenError::NotVhdx),
    }
    if len > FILE_SIZE_MAX {
        return Err(VhdxOpenError::unsupported(Structure::File, len, format!("a file of {len} bytes")));
    }
    Ok(len)
}

/// The length that a file has had for certain, as its log says.
pub(crate) fn length_before(storage: &impl Storage) -> Result<u64, VhdxOpenError> {
    check_identity(storage)?;
    let headers = Headers::read(storage)?;
    match headers.current.log {
        log if log.is_zero() => Ok(0),
        log => replay::length_before(storage, headers.ring(), log),
    }
}

/// Replays a log that is not empty, and empties it. FileWriteGuid changes before, since the file does; DataWriteGuid
/// does not: a read of the disk sees nothing new, and children name it.
pub(crate) fn replay_onto(storage: &impl Storage, guids: &mut dyn GuidSource) -> Result<(), VhdxOpenError> {
    check_identity(storage)?;
    let mut headers = Headers::read(storage)?;
    let log = headers.current.log;
    if log.is_zero() {
        return Ok(());
    }
    // Whether it can be replayed at all is known before anything is changed.
    replay::find(storage, headers.ring(), log)?;
    let writing = |error| VhdxOpenError::storage("writing a header", 0)(error);
    headers.update(storage, |header| header.file_write = guids.next()).map_err(writing)?;
    replay::onto_file(storage, headers.ring(), log)?;
    headers.update(storage, |header| header.log = Guid::ZERO).map_err(writing)
}

/// Reads everything of a file whose log is empty, and refuses any damage or loss.
pub(crate) fn read_sound(storage: &impl Storage) -> Result<Opened, VhdxOpenError> {
    let mut opened = read(storage)?;
    let (bat, geometry, len) = (opened.regions.bat, opened.geometry, opened.file_len);
    let mut losses = Losses::default();
    let sink = |finding| losses.refuse_damage(finding);
    let counts = scan(storage, bat, &geometry, len, None, &mut opened.space, sink, |_| Ok(()))?;
    losses.refuse(&counts)?;
    Ok(opened)
}

/// Reads everything but the block table.
pub(crate) fn read(storage: &impl Storage) -> Result<Opened, VhdxOpenError> {
    let len = check_identity(storage)?;
    let headers = Headers::read(storage)?;
    let ring = headers.ring();
    let log = headers.current.log;
    let overlay = if log.is_zero() { None } else { Some(replay::in_memory(storage, ring, log)?) };
    let view = View { storage, overlay: overlay.as_ref() };
    let file_len = view.len().map_err(VhdxOpenError::storage("asking for the file's length", 0))?.max(len);
    let regions = Regions::read(&view)?;
    for (place, span) in
        [(Structure::Log, ring.span), (Structure::Bat, regions.bat), (Structure::Metadata, regions.metadata)]
    {
        if span.end() > file_len {
            let problem = format!("it ends at byte {}, the file at {file_len}", span.end());
            return Err(VhdxOpenError::lost(place, span.offset, problem));
        }
    }
    let parameters = Parameters::read(&view, regions.metadata)?;
    let geometry = Geometry::new(&parameters);
    if geometry.entries() * 8 > regions.bat.len {
        let problem = format!("it has {} bytes, {} entries need more", regions.bat.len, geometry.entries());
        return Err(VhdxOpenError::corrupt(Structure::Bat, regions.bat.offset, problem));
    }
    let mut space = Space::new(file_len, geometry.block_size);
    for span in regions.all.iter().chain([&ring.span]) {
        if span.end() > FILE_SIZE_MAX {
            let problem = format!("a region ends at byte {}", span.end());
            return Err(VhdxOpenError::unsupported(Structure::RegionTable, span.offset, problem));
        }
        if !space.take(*span) {
            let problem = format!("the structure of {} bytes there overlaps another one", span.len);
            return Err(VhdxOpenError::corrupt(Structure::RegionTable, span.offset, problem));
        }
    }
    Ok(Opened { headers, overlay, regions, parameters, geometry, file_len, space })
}
