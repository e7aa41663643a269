//! A backup run: from the changes at the source to a sealed point.
//!
//! ```text
//!   1  plan      full or increment, and why; an incomplete point of an earlier run is gone on with
//!   2  ship      windows of units: journal says what may be written, units are written, files flushed
//!   3  seal      VHDX file closed and checked, names given, manifest twice: the rename of its first copy is the commit
//! ```
//!
//! A kill between any two steps leaves the points that were there, and files whose names say that they are incomplete.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use lunway_block::{BlockDevice, BlockError, Buf, Extent, ExtentKind};
use lunway_copy::Skipped;
use lunway_file::Workers;

use crate::catalogue::{Catalogue, LINKS_MAX};
use crate::changed::Changed;
use crate::draft::Draft;
use crate::error::{BackupError, Result};
use crate::folder::Folder;
use crate::guids::Guids;
use crate::heal;
use crate::history::History;
use crate::journal::Counted;
use crate::leaf::{LEAF, LEAVES, UNIT, UnitLeaves, unit_range, units};
use crate::lease::Lease;
use crate::manifest::{Level, Manifest, PointKind};
use crate::merge;
use crate::notes::{Damage, Notes};
use crate::point_files::{lacks, open_disk};
use crate::rhythm::Rhythm;
use crate::seal::Sealing;
use crate::ship::{Masks, Shared, Work, mask};
use crate::threads::on;
use crate::underway::Underway;

/// Units under way at a time, 32 MiB of memory: enough for 10 Gbit/s at 20 ms.
const IN_FLIGHT: usize = 32;
/// Units whose map is asked for at a time: 1 GiB, as copies do.
const WINDOW_UNITS: u32 = 1024;
/// Units that one window of the journal announces: 64 GiB, so that changes scattered over a terabyte cost 16
/// checkpoints.
const ANNOUNCED: u32 = 65_536;
/// The same where an earlier pass has left something: what is announced is forgotten of that, so 1 GiB.
const ANNOUNCED_LATER: u32 = 1024;

/// Backup request: what is backed up, and how.
pub struct Request<'a> {
    /// The source. It must not change while it is read.
    pub source: &'a dyn BlockDevice,
    /// Name of the source, without secrets.
    pub source_name: String,
    /// Changes since the last point.
    pub changed: Changed,
    /// Ranges of the source that need not be kept.
    pub skipped: &'a Skipped,
    /// Reason why it need not.
    pub skipped_why: &'a str,
    /// The frozen state that is read, where it is one: a snapshot's name. An interrupted run of the same state goes on
    /// where it stopped; else everything is read again, and what was sent is not sent again.
    pub state: Option<String>,
    /// The epoch of change tracking that ends with this point.
    pub epoch: Option<String>,
    /// Consistency level: what the users of the source had done.
    pub level: Level,
    /// Seconds since 1970: information for people.
    pub time: Option<u64>,
    /// Make a full, whatever is known.
    pub full: bool,
    /// The source is the same disk under another name.
    pub rename_source: bool,
    /// Bytes of data that are sent each second, at most.
    pub bytes_per_second: Option<u64>,
    /// Bytes of what is said to be unchanged that are compared with the source.
    pub sample_bytes: u64,
    /// Chooses the sample.
    pub seed: u64,
    /// Returns `true` if the run should end early; asked before each unit.
    pub is_cancelled: &'a (dyn Fn() -> bool + Sync),
}

/// Progress of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the disk that were dealt with.
    pub done: u64,
    /// Bytes of the disk.
    pub total: u64,
    /// Bytes that were sent.
    pub sent: u64,
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The new point.
    pub manifest: Manifest,
    /// Notes for the operator.
    pub notes: Vec<String>,
}

impl Outcome {
    /// Bytes that the point takes at the destination.
    pub fn stored_bytes(&self) -> u64 {
        self.manifest.file_bytes + self.manifest.leaves_bytes
    }
}

/// Backs a source up into a folder, and makes one point.
///
/// # Errors
///
/// Why no point was made. What was sent is kept for the next run.
pub async fn run(
    folder: &Arc<dyn Folder>,
    lease: &Lease<'_>,
    guids: &Guids,
    request: Request<'_>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Outcome> {
    let mut run = Run { folder, lease, guids, request, lanes: Workers::new(), notes: Vec::new(), full: None };
    match run.attempt(progress).await {
        // The history of an increment cannot be read: a full does without it.
        Err(BackupError::Damaged { point, what }) => {
            let why = format!("point {point} is damaged: {what}");
            run.notes.push(why.clone());
            let mut notes = Notes::load(&**folder)?;
            if !notes.broken().any(|(broken, _)| broken == point) {
                notes.damage.push(Damage::Point { point, what });
                notes.verified.retain(|verified| *verified != point);
                notes.store(&**folder)?;
            }
            run.full = Some(why);
            run.attempt(progress).await
        }
        done => done,
    }
}

struct Run<'a> {
    folder: &'a Arc<dyn Folder>,
    lease: &'a Lease<'a>,
    guids: &'a Guids,
    request: Request<'a>,
    lanes: Workers,
    notes: Vec<String>,
    /// Reason why it must be a full.
    full: Option<String>,
}

/// Decision on what the new point is based on, and why.
struct Decision {
    why: String,
    parent: Option<Manifest>,
    history: History,
}

impl Run<'_> {
    async fn attempt(&mut self, progress: &mut dyn FnMut(Progress)) -> Result<Outcome> {
        let geometry = self.request.source.geometry();
        if geometry.size == 0 || geometry.size > crate::leaf::DISK_MAX {
            return Err(BackupError::Refused(format!(
                "the source has {} bytes: a VHDX file holds from one sector to 64 TiB",
                geometry.size
            )));
        }
        merge::finish(&**self.folder)?;
        let catalogue = Catalogue::load(&**self.folder)?;
        self.check_source(&catalogue)?;
        let heal = heal::heal(&**self.folder, &catalogue, self.request.source).await?;
        self.notes.extend(heal.notes);
        let decision = self.decide(&catalogue)?;
        let decided = crate::draft::Decided {
            kind: if decision.parent.is_some() { PointKind::Increment } else { PointKind::Full },
            why: decision.why.clone(),
            parent: decision.parent.clone(),
            size: geometry.size,
            sector: geometry.logical_sector,
            generation: catalogue.next_generation()?,
        };
        let resize = decision.parent.as_ref().map(|parent| parent.virtual_bytes);
        let mut draft = Draft::open(
            &**self.folder,
            &catalogue,
            self.guids,
            decided,
            &self.request.source_name,
            self.request.state.as_deref(),
            crate::draft::Basis {
                history: decision.history,
                lost: heal.lost,
                bytes_per_second: self.request.bytes_per_second,
            },
        )?;
        self.notes.append(&mut draft.notes);
        let left_out = self.left_out(&catalogue, decision.parent.as_ref())?;
        self.distrust(&draft.shipment, decision.parent.as_ref(), left_out).await?;
        let changed = self.candidates(resize, heal.forced);
        let counted = self.ship(&mut draft, &changed, progress).await?;
        self.lease.check()?;
        let manifest = self.manifest(&draft, counted);
        let sealing = Sealing { folder: Arc::clone(self.folder), draft, manifest };
        let manifest = on(&self.lanes.upkeep, move || sealing.seal()).await?;
        Ok(Outcome { manifest, notes: std::mem::take(&mut self.notes) })
    }

    fn check_source(&self, catalogue: &Catalogue) -> Result<()> {
        match catalogue.newest() {
            Some(newest) if newest.source != self.request.source_name && !self.request.rename_source => {
                Err(BackupError::OtherSource {
                    there: newest.source.clone(),
                    source_name: self.request.source_name.clone(),
                })
            }
            _ => Ok(()),
        }
    }

    /// Full or increment, and why.
    fn decide(&self, catalogue: &Catalogue) -> Result<Decision> {
        let full = |why: &str| Ok(Decision { why: why.into(), parent: None, history: History::default() });
        if let Some(why) = &self.full {
            return full(why);
        }
        if self.request.full {
            return full("it was asked for");
        }
        let Some(newest) = catalogue.newest() else {
            return full(match catalogue.unreadable().is_empty() {
                true => "it is the first",
                false => "no manifest can be read",
            });
        };
        if newest.sector_bytes != self.request.source.geometry().logical_sector {
            return full("the source has another logical sector than before");
        }
        let chain = catalogue.chain(newest.point)?;
        if chain.len() >= LINKS_MAX {
            return full(&format!("the chain has {LINKS_MAX} files"));
        }
        for (point, what) in Notes::load(&**self.folder)?.broken() {
            if chain.iter().any(|manifest| manifest.point == point) {
                return full(&format!("point {point} is damaged: {what}"));
            }
        }
        for manifest in &chain {
            if let Some(what) = lacks(&**self.folder, manifest)? {
                return full(&format!("point {} is damaged: {what}", manifest.point));
            }
        }
        // Sees that the parent was not written to since.
        let disk = open_disk(&**self.folder, newest)?;
        if disk.data_write_guid().to_string() != newest.data_write {
            return full(&format!("the file of point {} was written to after it was sealed", newest.point));
        }
        let history = catalogue.history(&**self.folder, newest.point)?;
        let why = match &self.request.changed {
            Changed::Unknown { why } => format!("compared by hash: {why}"),
            Changed::Known { since, .. } if !since.is_moment_of(newest) => {
                format!(
                    "compared by hash: changes are known since {since}, which is not point {}",
                    newest.point
                )
            }
            Changed::Known { since, .. } => format!("changes since {since} are known"),
        };
        Ok(Decision { why, parent: Some(newest.clone()), history })
    }

    /// Compares a sample of what is said to be unchanged: one difference, and the map is not believed.
    ///
    /// What is left out now is not compared, since a change of it was not backed up; and in a chain that has left
    /// something out (`left_out`) leaves that none of its points holds, which need not be zeroes at the source.
    async fn distrust(&mut self, shipment: &Shared, parent: Option<&Manifest>, left_out: bool) -> Result<()> {
        let Changed::Known { since, .. } = &self.request.changed else { return Ok(()) };
        let Some(parent) = parent else {
            self.request.changed = Changed::Unknown { why: "a full holds everything".into() };
            return Ok(());
        };
        if !since.is_moment_of(parent) {
            let why = format!("changes are known since {since}, which is not point {}", parent.point);
            self.request.changed = Changed::Unknown { why };
            return Ok(());
        }
        let size = self.request.source.geometry().size.min(parent.virtual_bytes);
        let whole = (size / UNIT) as u32;
        let mut random = self.request.seed | 1;
        for number in 0..self.request.sample_bytes / UNIT {
            // xorshift64, of which any sequence will do.
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let Some(anywhere) = random.checked_rem(u64::from(whole)) else { break };
            let mut unit = anywhere as u32;
            if number % 2 == 0 {
                let (sampled, place) = (Arc::clone(shipment), random);
                unit = on(&self.lanes.reads, move || sampled.history.sample(place)).await?.unwrap_or(unit);
            }
            let range = unit_range(unit, size);
            if unit >= whole || self.is_touched(range.clone()) {
                continue;
            }
            let skipped = self.skipped_leaves(unit);
            if skipped == u16::MAX {
                continue;
            }
            let data = self.read(range.clone()).await?;
            let compared = Arc::clone(shipment);
            let is_as_before = move || compared.is_as_before(unit, &data, !skipped, left_out);
            if !on(&self.lanes.reads, is_as_before).await? {
                let why = format!(
                    "a sample at offset {} differs although no change was known: change tracking is not believed",
                    range.start
                );
                self.notes.push(why.clone());
                self.request.changed = Changed::Unknown { why };
                return Ok(());
            }
        }
        Ok(())
    }

    /// Tells whether any point below the new one has left something out.
    fn left_out(&self, catalogue: &Catalogue, parent: Option<&Manifest>) -> Result<bool> {
        let Some(parent) = parent else { return Ok(false) };
        Ok(catalogue.chain(parent.point)?.iter().any(|manifest| !manifest.skipped.is_empty()))
    }

    /// The leaves of a unit that are left out.
    fn skipped_leaves(&self, unit: u32) -> u16 {
        let offset = u64::from(unit) * UNIT;
        let skips = |leaf: &usize| self.request.skipped.covers(offset + *leaf as u64 * LEAF);
        (0..LEAVES).filter(skips).fold(0, |bits, leaf| bits | 1 << leaf)
    }

    fn is_touched(&self, range: Range<u64>) -> bool {
        match &self.request.changed {
            Changed::Unknown { .. } => true,
            Changed::Known { ranges, .. } => {
                ranges.next(range.start).is_some_and(|changed| changed.offset < range.end)
            }
        }
    }

    /// Returns the ranges to examine in addition to the changes.
    fn candidates(&self, parent_size: Option<u64>, mut forced: Vec<Range<u64>>) -> Vec<Range<u64>> {
        let size = self.request.source.geometry().size;
        match parent_size {
            // The leaf at the end of the smaller disk has another length, and what is behind it may be new.
            Some(before) if before != size => forced.push(before.min(size) / LEAF * LEAF..size.max(before)),
            _ => {}
        }
        forced
    }

    async fn read(&self, range: Range<u64>) -> Result<Buf> {
        let buf = Buf::for_overwrite((range.end - range.start) as usize);
        match self.request.source.read(range.start, buf).await {
            Ok(data) => Ok(data),
            Err(error) => Err(self.failed_at(range, error).await),
        }
    }

    /// The place at which a read failed: the device's own word, or the first leaf that cannot be read. Over NBD an
    /// error has no place.
    async fn failed_at(&self, range: Range<u64>, error: BlockError) -> BackupError {
        match error.place() {
            Some(offset) if offset > range.start => return BackupError::Source { offset, error },
            None => return BackupError::Source { offset: range.start, error },
            Some(_) => {}
        }
        for leaf in range.clone().step_by(LEAF as usize) {
            let len = LEAF.min(range.end - leaf) as usize;
            if let Err(error) = self.request.source.read(leaf, Buf::for_overwrite(len)).await {
                return BackupError::Source { offset: error.place().unwrap_or(leaf), error };
            }
        }
        BackupError::Source { offset: range.start, error }
    }

    /// Sends what must be sent. Whatever its end is, no unit is under way any more.
    async fn ship(
        &self,
        draft: &mut Draft,
        forced: &[Range<u64>],
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Counted> {
        let mut running = Underway::default();
        let shipped = self.ship_windows(draft, forced, progress, &mut running).await;
        while running.next().await.is_some() {}
        shipped.map(|()| draft.counted)
    }

    async fn ship_windows<'r>(
        &'r self,
        draft: &mut Draft,
        forced: &[Range<u64>],
        progress: &mut dyn FnMut(Progress),
        running: &mut Underway<'r>,
    ) -> Result<()> {
        let size = draft.shipment.size;
        let end = units(size);
        let mut at = draft.done();
        let announced = if draft.is_later_pass() { ANNOUNCED_LATER } else { ANNOUNCED };
        let mut rhythm = Rhythm::new(draft.counted.sent, Instant::now());
        while let Some(first) = self.next_unit(draft, at, end, forced).await? {
            let last = (first + WINDOW_UNITS).min(end);
            let masks = self.masks(first..last, size, forced).await?;
            let shipment = Arc::clone(&draft.shipment);
            let works = on(&self.lanes.reads, move || shipment.plan(&masks)).await?;
            for work in works {
                if (self.request.is_cancelled)() {
                    self.take(draft, running, &mut rhythm, 0, work.unit).await?;
                    draft.checkpoint(work.unit, draft.until().max(work.unit), &self.lanes).await?;
                    return Err(BackupError::Cancelled);
                }
                self.take(draft, running, &mut rhythm, IN_FLIGHT - 1, work.unit).await?;
                if work.unit >= draft.until() {
                    let done = running.first().unwrap_or(work.unit);
                    draft.checkpoint(done, (work.unit + announced).min(end), &self.lanes).await?;
                    rhythm.made(draft.counted.sent, Instant::now());
                }
                let done = u64::from(work.unit) * UNIT;
                progress(Progress { done, total: size, sent: draft.counted.sent });
                let shipment = Arc::clone(&draft.shipment);
                running.push(work.unit, self.unit(shipment, work));
            }
            at = last;
            progress(Progress { done: u64::from(at) * UNIT, total: size, sent: draft.counted.sent });
            if (self.request.is_cancelled)() {
                self.take(draft, running, &mut rhythm, 0, at).await?;
                draft.checkpoint(at, draft.until().max(at), &self.lanes).await?;
                return Err(BackupError::Cancelled);
            }
        }
        self.take(draft, running, &mut rhythm, 0, end).await?;
        // A kill while the point is sealed costs nothing that was sent.
        draft.checkpoint(end, end, &self.lanes).await
    }

    /// Waits until at most so many units are under way, and makes each checkpoint that falls due meanwhile; units from
    /// `next` on have not begun. Those under way go on beside it: the last one has announced them.
    async fn take(
        &self,
        draft: &mut Draft,
        running: &mut Underway<'_>,
        rhythm: &mut Rhythm,
        under_way: usize,
        next: u32,
    ) -> Result<()> {
        while running.len() > under_way
            && let Some(done) = running.next().await
        {
            draft.take(done?)?;
            if rhythm.is_due(draft.counted.sent, Instant::now()) {
                let done = running.first().unwrap_or(next);
                draft.checkpoint(done, draft.until().max(done), &self.lanes).await?;
                rhythm.made(draft.counted.sent, Instant::now());
            }
        }
        Ok(())
    }

    /// The first unit at or behind `at` that must be looked at.
    async fn next_unit(
        &self,
        draft: &Draft,
        at: u32,
        end: u32,
        forced: &[Range<u64>],
    ) -> Result<Option<u32>> {
        if at >= end {
            return Ok(None);
        }
        let Changed::Known { ranges, .. } = &self.request.changed else { return Ok(Some(at)) };
        let shipment = Arc::clone(&draft.shipment);
        let left = on(&self.lanes.reads, move || shipment.next_left(at)).await?;
        let offset = u64::from(at) * UNIT;
        let unit = |offset: u64| (offset / UNIT) as u32;
        let changed = ranges.next(offset).map(|range| unit(range.offset));
        let behind =
            forced.iter().filter(|range| range.end > offset).map(|range| unit(range.start.max(offset)));
        let next = behind.chain(changed).chain(left).min();
        Ok(next.filter(|next| *next < end))
    }

    /// Returns what the source and the caller report about units.
    async fn masks(&self, window: Range<u32>, size: u64, forced: &[Range<u64>]) -> Result<Vec<Masks>> {
        let (start, end) = (unit_range(window.start, size).start, unit_range(window.end - 1, size).end);
        let mut masks: Vec<Masks> = window.clone().map(|unit| Masks { unit, ..Masks::default() }).collect();
        let mut mark = |range: Range<u64>, set: fn(&mut Masks, u16)| {
            let range = range.start.max(start)..range.end.min(end);
            if range.start < range.end {
                for unit in (range.start / UNIT) as u32..range.end.div_ceil(UNIT) as u32 {
                    set(&mut masks[(unit - window.start) as usize], mask(unit, range.clone()));
                }
            }
        };
        let reads_zero = self.request.source.geometry().unmap.zeroes();
        for extent in self.extents(start, end - start).await? {
            let zero = match extent.kind {
                ExtentKind::Data => false,
                ExtentKind::Zero => true,
                ExtentKind::Unallocated => reads_zero,
            };
            if !zero {
                mark(extent.offset..extent.end(), |masks, bits| masks.data |= bits);
            }
        }
        match &self.request.changed {
            Changed::Unknown { .. } => mark(start..end, |masks, bits| masks.touched |= bits),
            Changed::Known { ranges, .. } => {
                let mut at = start;
                while let Some(range) = ranges.next(at).filter(|range| range.offset < end) {
                    let to = range.offset.saturating_add(range.len).max(at + 1);
                    mark(range.offset..to, |masks, bits| masks.touched |= bits);
                    at = to;
                }
            }
        }
        for range in forced {
            mark(range.clone(), |masks, bits| masks.touched |= bits);
        }
        for masks in &mut masks {
            masks.skip = self.skipped_leaves(masks.unit);
        }
        Ok(masks)
    }

    async fn extents(&self, offset: u64, len: u64) -> Result<Vec<Extent>> {
        match self.request.source.extents(offset, len, usize::MAX).await {
            // A device that cannot say what is where is read.
            Err(BlockError::Unsupported) => Ok(vec![Extent { offset, len, kind: ExtentKind::Data }]),
            // Where the medium fails, the reads find out: the map of a whole unit may name only its own start.
            Err(BlockError::Medium { .. }) => Ok(vec![Extent { offset, len, kind: ExtentKind::Data }]),
            extents => extents.map_err(|error| BackupError::Source { offset, error }),
        }
    }

    async fn unit(&self, shipment: Shared, work: Work) -> Result<(UnitLeaves, Counted)> {
        let range = work.reads(shipment.size);
        let data = if range.is_empty() { None } else { Some(self.read(range).await?) };
        on(&self.lanes.writes, move || shipment.carry_out(&work, data.as_ref())).await
    }

    fn manifest(&self, draft: &Draft, counted: Counted) -> Manifest {
        let request = &self.request;
        let mut manifest = draft.manifest();
        let why = match &request.changed {
            // What was learnt since the decision.
            Changed::Unknown { why } if manifest.kind == PointKind::Increment => {
                format!("compared by hash: {why}")
            }
            _ => manifest.why.clone(),
        };
        manifest.why = why;
        manifest.source = request.source_name.clone();
        manifest.source_id = request.source.identity().content;
        manifest.epoch = request.epoch.clone();
        manifest.level = request.level;
        manifest.time = request.time;
        manifest.changed_bytes = counted.changed;
        manifest.read_bytes = counted.read;
        manifest.sent_bytes = counted.sent;
        if counted.skipped > 0 {
            let skipped =
                crate::manifest::SkippedBytes { bytes: counted.skipped, why: request.skipped_why.into() };
            manifest.skipped = vec![skipped];
        }
        manifest
    }
}
