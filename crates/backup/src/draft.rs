//! A draft: the files of a point that is incomplete, new or left by an earlier run.
//!
//! ```text
//!   STEM.vhdx.incomplete         the disk
//!   STEM.leaves-N.incomplete     hashes, of pass N
//!   STEM.have-N.incomplete       what the passes before N are known to have left in the disk
//!   STEM.journal.incomplete      what of them is durable; without it, the others are nothing
//!   STEM.json.incomplete         the manifest and its copy, empty, once all is sent
//! ```
//!
//! The first checkpoint of a new draft gives its journal the name. Before it nothing is durable and nothing is waited
//! for: a crash leaves files that the next run removes, of a draft that had recorded nothing.
//!
//! A pass ends where a run ends. One that reads the same frozen state goes on in the same pass. Another one begins a
//! new pass: everything is read again, and what the file is known to hold is not sent again.

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::{Either, select};
use lunway_file::Workers;
use lunway_vhdx::{Chain, CreateOptions, Disk, DiskKind, VhdxOpenError, VhdxOpenOptions, create_unflushed};

use crate::catalogue::Catalogue;
use crate::draft_sample::check_sample;
use crate::error::{BackupError, Result, is_of_the_file};
use crate::folder::{Folder, INCOMPLETE, Open, create_anew};
use crate::guids::{Guids, new_id};
use crate::history::History;
use crate::journal::{self, Counted, Journal, Plan, Window};
use crate::leaf::{Lost, UNIT, UnitLeaves, units};
use crate::manifest::{FORMAT, Level, Manifest, PointKind, disk_name, leaves_name};
use crate::manifest_copies::CopiesBegun;
use crate::pace::Pace;
use crate::point_files::{Names, clean_up, damaged, is_ours, remove_incomplete};
use crate::point_id::parse_stem;
use crate::rhythm::Rhythm;
use crate::ship::{Shared, Shipment};
use crate::sidecar::{Segment, Sidecar, Writer};
use crate::threads::{begun_on, both, each};
use crate::written::{Noted, Written};

/// Units that one window of the journal announces: 64 GiB, so that changes scattered over a terabyte cost 16
/// checkpoints.
pub(crate) const ANNOUNCED: u32 = 65_536;

/// Bytes of a new disk whose entries are read when it is made: 64 pages of its table.
const TABLE: u64 = 32 << 30;

/// Properties decided for a new point.
pub(crate) struct Decided {
    pub(crate) kind: PointKind,
    pub(crate) why: String,
    pub(crate) parent: Option<Manifest>,
    /// Options for a disk on the parent's.
    pub(crate) options: Option<CreateOptions>,
    pub(crate) size: u64,
    pub(crate) sector: u32,
    pub(crate) generation: u64,
}

/// Parent state that a new point is compared with, and the send rate.
pub(crate) struct Basis {
    /// Of the parent.
    pub(crate) history: History,
    /// Leaves of it that are damaged for good.
    pub(crate) lost: Lost,
    pub(crate) bytes_per_second: Option<u64>,
}

/// A point that is being written: the manual of its files.
pub(crate) struct Draft {
    folder: Arc<dyn Folder>,
    pub(crate) shipment: Shared,
    pub(crate) plan: Plan,
    pub(crate) counted: Counted,
    pub(crate) notes: Vec<String>,
    writer: Option<Writer>,
    journal: Option<Journal>,
    checkpoint: Option<Checkpoint>,
    rhythm: Rhythm,
    done: u32,
    until: u32,
    /// Something was written since the last checkpoint.
    dirty: bool,
    /// What was written to the disk, where this run has made it.
    written: Option<Arc<Written>>,
    /// Once it is complete.
    copies: Option<CopiesBegun>,
}

/// The files of a draft that is complete.
pub(crate) struct Parts {
    pub(crate) disk: Chain<Open>,
    pub(crate) written: Option<Arc<Written>>,
    pub(crate) writer: Writer,
    /// Its last window is still to be recorded: nothing of the point is named before.
    pub(crate) recording: Recording,
    pub(crate) copies: CopiesBegun,
    pub(crate) names: Names,
}

/// The last window of a draft: everything is durable.
pub(crate) struct Recording {
    journal: Journal,
    units: u32,
    segments: Vec<Segment>,
    counted: Counted,
}

impl Recording {
    /// Records it, durably: a kill from then on costs nothing that was sent. Blocks.
    pub(crate) fn record(mut self, folder: &dyn Folder) -> Result<()> {
        self.journal.window(self.units, self.units, &self.segments, self.counted)?;
        self.journal.give_name(folder)
    }
}

/// What a checkpoint writes to, besides the disk.
type Recorders = (Writer, Journal);

/// A checkpoint that is being made, with the leaves that were taken meanwhile.
struct Checkpoint {
    job: Pin<Box<dyn Future<Output = Result<Recorders>> + Send>>,
    began: Instant,
    done: u32,
    until: u32,
    /// Bytes that had been sent when it began.
    sent: u64,
    taken: Vec<UnitLeaves>,
}

impl Draft {
    /// Goes on with an incomplete point that fits, or begins a new one. Other incomplete files are removed. Blocks.
    pub(crate) fn open(
        (shared, lanes): (&Arc<dyn Folder>, &Workers),
        catalogue: &Catalogue,
        guids: &Guids,
        decided: Decided,
        source: &str,
        state: Option<&str>,
        basis: Basis,
    ) -> Result<Self> {
        let folder = &**shared;
        let mut notes = Vec::new();
        let mut left = None;
        for name in &catalogue.journals {
            let read = journal::read(folder, name)?;
            match read {
                Some(read) if catalogue.get(read.plan.point).is_some() => {
                    clean_up(folder, &Names::of(&read.plan))?;
                }
                Some(read) if left.is_none() && fits(&read.plan, &decided, source) => left = Some(read),
                Some(read) => {
                    let what = "an incomplete point of another kind, parent, size or source was removed";
                    notes.push(format!("{what}: this run began anew"));
                    discard(folder, &Names::of(&read.plan))?;
                }
                None => {}
            }
        }
        let swept = match catalogue.journals.is_empty() {
            // As they were listed: nothing has changed since.
            true => sweep_names(folder, &catalogue.unfinished, None)?,
            false => sweep(folder, left.as_ref().map(|read| Names::of(&read.plan)).as_ref())?,
        };
        if swept > 0 && left.is_none() && notes.is_empty() {
            notes.push(
                "the files of an incomplete point that had not recorded anything were removed: this run began anew"
                    .to_owned(),
            );
        }
        if let Some(read) = left {
            let names = Names::of(&read.plan);
            match resume(folder, guids, read, state) {
                Ok(resumed) => {
                    notes.push(resumed.note());
                    return Ok(resumed.draft((shared, lanes), basis, notes));
                }
                Err(error) if !is_of_the_files(&error) => return Err(error),
                Err(error) => {
                    let what = match error {
                        BackupError::Damaged { what, .. } => what,
                        error => error.to_string(),
                    };
                    notes.push(format!(
                        "the incomplete point could not be continued ({what}) and was removed: this run began anew"
                    ));
                    discard(folder, &names)?;
                }
            }
        }
        let plan = Plan {
            point: new_id(guids),
            generation: decided.generation,
            kind: decided.kind,
            why: decided.why,
            parent: decided.parent.as_ref().map(|parent| parent.point),
            source: source.to_owned(),
            virtual_bytes: decided.size,
            sector_bytes: decided.sector,
            state: state.map(str::to_owned),
            pass: 1,
            have: Vec::new(),
            unknown: Vec::new(),
        };
        // What the first units are compared with is read meanwhile, as far as it is in one place.
        let warm = || basis.history.read_ahead();
        let (_, begun) = both(warm, || begin(folder, guids, plan, decided.options));
        let begun = begun?;
        Ok(begun.draft((shared, lanes), basis, notes))
    }

    /// Units below are dealt with.
    pub(crate) fn done(&self) -> u32 {
        self.done
    }

    /// Units below may be written.
    pub(crate) fn until(&self) -> u32 {
        self.until
    }

    /// Tells whether earlier passes have left something.
    pub(crate) fn is_later_pass(&self) -> bool {
        self.plan.pass > 1
    }

    /// The next unit's leaves, in the order of the disk.
    pub(crate) fn take(&mut self, (leaves, counted): (UnitLeaves, Counted)) -> Result<()> {
        self.counted.changed += counted.changed;
        self.counted.read += counted.read;
        self.counted.sent += counted.sent;
        self.counted.skipped += counted.skipped;
        self.dirty |= leaves.changed != 0;
        match &mut self.checkpoint {
            Some(checkpoint) => {
                checkpoint.taken.push(leaves);
                Ok(())
            }
            None => self.push(leaves),
        }
    }

    fn push(&mut self, leaves: UnitLeaves) -> Result<()> {
        let name = Names::of(&self.plan).leaves();
        match &mut self.writer {
            Some(writer) => writer.push(leaves).map_err(BackupError::folder("writing", &name)),
            None => Err(BackupError::Lost),
        }
    }

    /// Makes everything that was taken durable, and announces what may be written next.
    pub(crate) async fn checkpoint(&mut self, done: u32, until: u32, lanes: &Workers) -> Result<()> {
        self.end_checkpoint().await?;
        self.begin_checkpoint(done, Some(until), lanes)?;
        self.end_checkpoint().await
    }

    /// Makes everything durable: nothing is taken any more. [`Parts::recording`] records it.
    pub(crate) async fn complete(&mut self, lanes: &Workers) -> Result<()> {
        self.end_checkpoint().await?;
        // Beside the last flush, in which nothing else is asked of the folder.
        self.copies = Some(CopiesBegun::new(&self.folder, Names::of(&self.plan).stem));
        self.begin_checkpoint(units(self.plan.virtual_bytes), None, lanes)?;
        self.end_checkpoint().await
    }

    /// Begins the checkpoint that is due by now, if one is: units from `done` on are not in it, and go on beside it,
    /// which an earlier one has announced.
    pub(crate) fn begin_due_checkpoint(&mut self, done: u32, lanes: &Workers) -> Result<()> {
        match self.checkpoint.is_none() && self.rhythm.is_due(self.counted.sent, Instant::now()) {
            true => self.begin_checkpoint(done, Some(self.until.max(done)), lanes),
            false => Ok(()),
        }
    }

    /// `until`: `None` leaves the window to be recorded.
    fn begin_checkpoint(&mut self, done: u32, until: Option<u32>, lanes: &Workers) -> Result<()> {
        let (Some(mut writer), Some(mut journal)) = (self.writer.take(), self.journal.take()) else {
            return Err(BackupError::Lost);
        };
        let (folder, shipment, counted) =
            (Arc::clone(&self.folder), Arc::clone(&self.shipment), self.counted);
        let (dirty, name) = (std::mem::take(&mut self.dirty), Names::of(&self.plan).leaves());
        let job = Box::pin(begun_on(&lanes.flushes, move || {
            let mut make = || {
                if dirty || !journal.is_named() {
                    let recorded = || writer.checkpoint().map_err(BackupError::folder("writing", &name));
                    // At once: after a crash before the window is durable nothing is believed of the units that were
                    // written since the last one, whatever the table says of them. They are written again.
                    let flushed = || shipment.disk.flush_at_once().map_err(shipment.disk_error());
                    let (recorded, flushed) = both(recorded, flushed);
                    flushed?;
                    recorded?;
                }
                if let Some(until) = until {
                    journal.window(done, until, writer.segments(), counted)?;
                    journal.give_name(&*folder)?;
                }
                Ok(())
            };
            make().map(|()| (writer, journal))
        }));
        let until = until.unwrap_or(done);
        let (began, sent, taken) = (Instant::now(), self.counted.sent, Vec::new());
        self.checkpoint = Some(Checkpoint { job, began, done, until, sent, taken });
        Ok(())
    }

    /// Waits for the checkpoint under way, if there is one.
    pub(crate) async fn end_checkpoint(&mut self) -> Result<()> {
        let Some(checkpoint) = &mut self.checkpoint else { return Ok(()) };
        let made = checkpoint.job.as_mut().await;
        self.made(made)
    }

    fn made(&mut self, made: Result<Recorders>) -> Result<()> {
        let Some(Checkpoint { began, done, until, sent, taken, .. }) = self.checkpoint.take() else {
            return Ok(());
        };
        let (writer, journal) = made?;
        (self.writer, self.journal) = (Some(writer), Some(journal));
        (self.done, self.until) = (done, until);
        self.rhythm.made(sent, began, Instant::now());
        taken.into_iter().try_for_each(|leaves| self.push(leaves))
    }

    /// Waits for `other` while a checkpoint is made beside it; not until as much was sent beside it as it holds, which
    /// a kill would cost, too.
    pub(crate) async fn beside_checkpoint<T>(&mut self, other: impl Future<Output = T>) -> Result<T> {
        let mut other = pin!(other);
        while let Some(checkpoint) = &mut self.checkpoint {
            let made = match self.rhythm.is_enough_beside(self.counted.sent - checkpoint.sent) {
                true => checkpoint.job.as_mut().await,
                false => match select(checkpoint.job.as_mut(), other.as_mut()).await {
                    Either::Left((made, _)) => made,
                    Either::Right((done, _)) => return Ok(done),
                },
            };
            self.made(made)?;
        }
        Ok(other.await)
    }

    /// Leaves a draft without a checkpoint to the next run, where it has taken the room of its folder: that run finds
    /// room for its lease by it. What is not durable of it is not believed.
    pub(crate) fn leave(&mut self) {
        // Its beginning is durable first: a power cut could leave any part of it otherwise.
        let disk = self.shipment.disk.disks().first();
        if let (Some(journal), Some(disk)) = (&mut self.journal, disk)
            && !journal.is_named()
            && disk.storage().flush().is_ok()
        {
            let _ = journal.give_name(&*self.folder);
        }
    }

    /// Takes the draft apart for sealing. It is [complete](Self::complete).
    pub(crate) fn into_parts(self) -> Result<Parts> {
        let names = Names::of(&self.plan);
        match (Arc::into_inner(self.shipment), self.writer, self.journal, self.copies) {
            (Some(shipment), Some(writer), Some(journal), Some(copies)) => {
                let segments = writer.segments().to_vec();
                let recording = Recording { journal, units: self.done, segments, counted: self.counted };
                Ok(Parts { disk: shipment.disk, written: self.written, writer, recording, copies, names })
            }
            _ => Err(BackupError::Lost),
        }
    }

    /// The point's manifest, without what sealing learns.
    pub(crate) fn manifest(&self) -> Manifest {
        let plan = &self.plan;
        Manifest {
            format: FORMAT,
            point: plan.point,
            generation: plan.generation,
            kind: plan.kind,
            why: plan.why.clone(),
            parent: plan.parent,
            source: plan.source.clone(),
            source_id: None,
            epoch: None,
            due: None,
            level: Level::Crash,
            time: None,
            virtual_bytes: plan.virtual_bytes,
            sector_bytes: plan.sector_bytes,
            data_write: String::new(),
            file_bytes: 0,
            leaves_bytes: 0,
            root: String::new(),
            skeleton: String::new(),
            skipped: Vec::new(),
            changed_bytes: 0,
            read_bytes: 0,
            sent_bytes: 0,
            merged: Vec::new(),
            merging: false,
        }
    }
}

/// The files of a draft, open.
struct Begun {
    plan: Plan,
    disk: Chain<Open>,
    disk_name: String,
    /// `None`: they are made while units are sent.
    recorders: Option<Recorders>,
    have: Option<Sidecar>,
    unknown: Vec<(u32, u32)>,
    window: Window,
    written: Option<Arc<Written>>,
}

impl Begun {
    fn draft(self, (folder, lanes): (&Arc<dyn Folder>, &Workers), basis: Basis, notes: Vec<String>) -> Draft {
        let now = Instant::now();
        let Window { done, until, counted, .. } = self.window;
        let (writer, journal) = self.recorders.unzip();
        let checkpoint = writer.is_none().then(|| {
            let (folder, plan) = (Arc::clone(folder), self.plan.clone());
            let job = Box::pin(begun_on(&lanes.flushes, move || new_recorders(&*folder, &plan, until)));
            Checkpoint { job, began: now, done, until, sent: counted.sent, taken: Vec::new() }
        });
        let shipment = Shipment {
            point: self.plan.point,
            disk: self.disk,
            disk_name: self.disk_name,
            size: self.plan.virtual_bytes,
            history: basis.history,
            lost: basis.lost,
            have: self.have,
            unknown: self.unknown,
            pace: Pace::new(basis.bytes_per_second),
        };
        Draft {
            folder: Arc::clone(folder),
            shipment: Arc::new(shipment),
            plan: self.plan,
            counted,
            notes,
            writer,
            journal,
            checkpoint,
            rhythm: Rhythm::new(counted.sent, now),
            done,
            until,
            dirty: false,
            written: self.written,
            copies: None,
        }
    }

    fn note(&self) -> String {
        match self.plan.pass {
            1 => {
                format!("an incomplete point was continued at offset {}", u64::from(self.window.done) * UNIT)
            }
            _ => "an incomplete point was continued: what it already has is not sent again".to_owned(),
        }
    }
}

fn fits(plan: &Plan, decided: &Decided, source: &str) -> bool {
    let parent = decided.parent.as_ref().map(|parent| parent.point);
    (plan.kind, plan.parent, plan.virtual_bytes, plan.sector_bytes, plan.source.as_str())
        == (decided.kind, parent, decided.size, decided.sector, source)
}

/// Makes the disk of a new draft. Its other files are made while units are sent.
fn begin(folder: &dyn Folder, guids: &Guids, plan: Plan, options: Option<CreateOptions>) -> Result<Begun> {
    let file = Names::of(&plan).disk();
    let (disk, written) = begin_disk(folder, guids, &file, &plan, options)?;
    let window = Window::announcing(units(plan.virtual_bytes).min(ANNOUNCED));
    let (have, unknown, written) = (None, Vec::new(), Some(written));
    Ok(Begun { plan, disk, disk_name: folder.show(&file), recorders: None, have, unknown, window, written })
}

/// Makes what a checkpoint writes to. The journal has no name yet.
fn new_recorders(folder: &dyn Folder, plan: &Plan, until: u32) -> Result<Recorders> {
    let names = Names::of(plan);
    let (writer, journal) =
        both(|| new_leaves(folder, &names, plan), || Journal::unnamed(folder, &names.journal(), plan, until));
    Ok((writer?, journal?))
}

/// Makes the disk of a new draft.
fn begin_disk(
    folder: &dyn Folder,
    guids: &Guids,
    file: &str,
    plan: &Plan,
    options: Option<CreateOptions>,
) -> Result<(Chain<Open>, Arc<Written>)> {
    let disk_name = folder.show(file);
    let file = folder.create(file).map_err(BackupError::folder("making", &disk_name))?;
    let noted = Arc::new(Noted::new(file));
    let storage: Open = noted.clone();
    let mut options =
        options.unwrap_or_else(|| CreateOptions::new(DiskKind::Dynamic, plan.virtual_bytes, guids().next()));
    options.parameters.disk_size = plan.virtual_bytes;
    options.parameters.block_size = UNIT as u32;
    options.parameters.logical_sector = plan.sector_bytes;
    options.parameters.physical_sector = options.parameters.physical_sector.max(plan.sector_bytes);
    // Nothing leads to the file before its journal has a name, which is behind its first flush.
    create_unflushed(&storage, &options, guids().as_mut()).map_err(|source| match source {
        lunway_vhdx::CreateError::Storage(error) => BackupError::folder("making", &disk_name)(error),
        source => BackupError::Create { name: disk_name.clone(), source },
    })?;
    let options = VhdxOpenOptions { is_new: true, ..VhdxOpenOptions::writable() };
    let disk = draft_disk(guids, storage, &options, &disk_name)?;
    // The table is read from memory as well, as far as the disk keeps it.
    let table = disk.map(0, plan.virtual_bytes.min(TABLE), |_| ());
    table.map_err(BackupError::disk(&disk_name))?;
    Ok((disk, noted.begun()))
}

fn new_leaves(folder: &dyn Folder, names: &Names, plan: &Plan) -> Result<Writer> {
    let name = names.leaves();
    let making = || BackupError::folder("making", &folder.show(&name));
    let storage = create_anew(folder, &name).map_err(making())?;
    Writer::create(storage, plan.point).map_err(making())
}

fn open_draft_disk(folder: &dyn Folder, guids: &Guids, file: &str) -> Result<Chain<Open>> {
    let name = folder.show(file);
    let storage = folder.open(file, true).map_err(BackupError::folder("opening", &name))?;
    draft_disk(guids, storage, &VhdxOpenOptions::writable(), &name)
}

fn draft_disk(guids: &Guids, storage: Open, options: &VhdxOpenOptions, name: &str) -> Result<Chain<Open>> {
    let disk = Disk::open(storage, options, guids()).map_err(BackupError::open(name))?;
    Chain::upper(vec![disk]).map_err(BackupError::open(name))
}

/// Returns `true` if an error means that the files are not as they should be, rather than that the share is not
/// answering at the moment.
fn is_of_the_files(error: &BackupError) -> bool {
    match error {
        BackupError::Folder { source, .. } => {
            is_of_the_file(source.kind()) || source.kind() == io::ErrorKind::ResourceBusy
        }
        BackupError::Open {
            source: VhdxOpenError::Access { source, .. } | VhdxOpenError::Storage { source, .. },
            ..
        } => is_of_the_file(source.kind()),
        BackupError::Damaged { .. } | BackupError::Open { .. } => true,
        _ => false,
    }
}

/// Opens the files of a draft that an earlier run has left.
fn resume(folder: &dyn Folder, guids: &Guids, read: journal::Read, state: Option<&str>) -> Result<Begun> {
    let names = Names::of(&read.plan);
    let file = names.disk();
    let disk_name = folder.show(&file);
    undo_names(folder, &names)?;
    refuse_held(folder, &file, &names.moved_disk())?;
    let disk = open_draft_disk(folder, guids, &file)?;
    let point = read.plan.point;
    let leaves = names.leaves();
    let opening = || BackupError::folder("opening", &folder.show(&leaves));
    let have = open_have(folder, &read.plan)?;
    if state.is_some() && state == read.plan.state.as_deref() {
        let storage = folder.open(&leaves, true).map_err(opening())?;
        let known = Sidecar::of_segments(storage.clone(), read.segments.clone());
        check_sample(&disk, &disk_name, &known.map_err(|error| damaged(point, error))?, point)?;
        let writer = Writer::resume(storage, point, read.segments.clone()).map_err(opening())?;
        let journal = Journal::resume(folder, &names.journal(), &read)?;
        let unknown = [read.plan.unknown.as_slice(), &[(read.window.done, read.window.until)]].concat();
        let (plan, window, recorders) = (read.plan, read.window, Some((writer, journal)));
        return Ok(Begun { plan, disk, disk_name, recorders, have, unknown, window, written: None });
    }
    let storage = folder.open(&leaves, false).map_err(opening())?;
    let before =
        Sidecar::of_segments(storage, read.segments.clone()).map_err(|error| damaged(point, error))?;
    let mut plan = read.plan.clone();
    plan.pass += 1;
    plan.state = state.map(str::to_owned);
    let window = &read.window;
    plan.unknown = unknown_after(&read.plan.unknown, window);
    let segments = known_after(folder, &plan, &before, have.as_ref(), window)?;
    plan.have = segments.iter().map(journal::record).collect();
    let (writer, mut journal) = new_recorders(folder, &plan, 0)?;
    journal.give_name(folder)?;
    sweep(folder, Some(&Names::of(&plan)))?;
    let have = open_have(folder, &plan)?;
    if let Some(known) = &have {
        check_sample(&disk, &disk_name, known, point)?;
    }
    let unknown = plan.unknown.clone();
    let window = Window::default();
    let recorders = Some((writer, journal));
    Ok(Begun { plan, disk, disk_name, recorders, have, unknown, window, written: None })
}

/// Units of which a new pass knows nothing: those that the last one may have written, and behind them those of which it
/// knew nothing itself.
fn unknown_after(before: &[(u32, u32)], window: &Window) -> Vec<(u32, u32)> {
    let behind = before.iter().map(|(from, to)| (*from.max(&window.until), *to));
    let all = std::iter::once((window.done, window.until)).chain(behind);
    all.filter(|(from, to)| from < to).collect()
}

/// Writes what a new pass knows: what the last one has made durable, and behind its window what that knew itself.
fn known_after(
    folder: &dyn Folder,
    plan: &Plan,
    before: &Sidecar,
    have: Option<&Sidecar>,
    window: &Window,
) -> Result<Vec<Segment>> {
    let name = Names::of(plan).have();
    let writing = || BackupError::folder("writing", &folder.show(&name));
    let storage = create_anew(folder, &name).map_err(writing())?;
    let mut writer = Writer::create(storage, plan.point).map_err(writing())?;
    let mut copy = |sidecar: &Sidecar, units: std::ops::Range<u32>| {
        for index in 0..sidecar.segments().len() {
            let segment = sidecar.segment(index).map_err(|error| damaged(plan.point, error))?;
            for leaves in segment.iter().filter(|leaves| units.contains(&leaves.unit)) {
                writer.push(leaves.clone()).map_err(writing())?;
            }
        }
        Ok(())
    };
    copy(before, 0..window.done)?;
    if let Some(have) = have {
        copy(have, window.until..u32::MAX)?;
    }
    writer.checkpoint().map_err(writing())?;
    Ok(writer.segments().to_vec())
}

fn open_have(folder: &dyn Folder, plan: &Plan) -> Result<Option<Sidecar>> {
    if plan.have.is_empty() {
        return Ok(None);
    }
    let name = Names::of(plan).have();
    let storage = folder.open(&name, false).map_err(BackupError::folder("opening", &folder.show(&name)))?;
    let segments: Option<Vec<_>> = plan.have.iter().map(journal::segment).collect();
    let opened = Sidecar::of_segments(storage, segments.unwrap_or_default());
    opened.map(Some).map_err(|error| damaged(plan.point, error))
}

/// A run that was stopped while it sealed has given files their names, and not made a point of them.
pub(crate) fn undo_names(folder: &dyn Folder, names: &Names) -> Result<()> {
    let there = folder.names().map_err(BackupError::folder("reading", &folder.show("")))?;
    for (whole, incomplete) in
        [(disk_name(&names.stem), names.disk()), (leaves_name(&names.stem), names.leaves())]
    {
        if there.contains(&whole) {
            let undoing = || BackupError::folder("renaming", &folder.show(&whole));
            folder.set_read_only(&whole, false).map_err(undoing())?;
            folder.rename(&whole, &incomplete).map_err(undoing())?;
        }
    }
    if there.contains(&names.moved_disk()) {
        let undoing = BackupError::folder("renaming", &folder.show(&names.moved_disk()));
        folder.rename(&names.moved_disk(), &names.disk()).map_err(undoing)?;
    }
    Ok(())
}

/// Refuses a file that the server has open for a client that is gone, which it has not noticed yet: it could be
/// written, and would not get its name in the end.
fn refuse_held(folder: &dyn Folder, file: &str, moved: &str) -> Result<()> {
    folder.rename(file, moved).map_err(BackupError::folder("renaming", &folder.show(file)))?;
    folder.rename(moved, file).map_err(BackupError::folder("renaming", &folder.show(moved)))
}

/// Removes the files of a draft, its journal last: a kill between leaves one that is removed again.
pub(crate) fn discard(folder: &dyn Folder, names: &Names) -> Result<()> {
    let removing = || BackupError::folder("removing", &folder.show(&names.stem));
    let journal = names.journal();
    let there = folder.names().map_err(removing())?;
    for name in there.iter().filter(|name| name.starts_with(&names.stem) && **name != journal) {
        remove_incomplete(folder, name)?;
    }
    folder.sync().map_err(removing())?;
    remove_incomplete(folder, &journal)?;
    folder.sync().map_err(removing())
}

/// Removes incomplete files that belong to nothing, and says how many disks of points were among them.
pub(crate) fn sweep(folder: &dyn Folder, kept: Option<&Names>) -> Result<usize> {
    let names = folder.names().map_err(BackupError::folder("reading", &folder.show("")))?;
    sweep_names(folder, &names, kept)
}

fn sweep_names(folder: &dyn Folder, names: &[String], kept: Option<&Names>) -> Result<usize> {
    let kept = kept.map(|names| [names.disk(), names.leaves(), names.have(), names.journal()]);
    let is_kept = |name: &String| kept.as_ref().is_some_and(|kept| kept.contains(name));
    let left: Vec<&String> = names.iter().filter(|name| is_ours(name) && !is_kept(name)).collect();
    let mut removed = 0;
    for (name, is_removed) in left.iter().zip(each(&left, |name| remove_incomplete(folder, name))) {
        // Merges and notes have incomplete files as well.
        let stem = name.strip_suffix(INCOMPLETE).and_then(|name| name.strip_suffix(".vhdx"));
        removed += usize::from(is_removed? && stem.and_then(parse_stem).is_some());
    }
    Ok(removed)
}
