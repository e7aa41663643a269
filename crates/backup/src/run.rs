//! A backup run: from the changes at the source to a sealed point.
//!
//! ```text
//!   1  plan      full or increment, and why; an incomplete point of an earlier run is gone on with
//!   2  ship      windows of units: journal says what may be written, units are written, files flushed
//!   3  seal      VHDX file closed and checked, names given, manifest twice: the rename of its first copy is the commit
//! ```
//!
//! A kill between any two steps leaves the points that were there, and files that are of no point: their names say so,
//! or a journal beside them.

use std::ops::Range;
use std::pin::{Pin, pin};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use futures_util::future::{Either, join, select};
use lunway_block::size::HumanSize;
use lunway_file::Workers;
use lunway_vhdx::CreateOptions;

use crate::ahead::{Ahead, OpenedChain, Reading};
use crate::catalogue::{Catalogue, LINKS_MAX};
use crate::changed::Changed;
use crate::draft::{ANNOUNCED, Draft};
use crate::error::{BackupError, Result};
use crate::folder::Folder;
use crate::guids::Guids;
use crate::heal;
use crate::history::History;
use crate::journal::Counted;
use crate::leaf::{LEAF, UNIT, UnitLeaves, units};
use crate::lease::Lease;
use crate::leftover::{leftovers, remove_leftovers, room_needed};
use crate::manifest::{Manifest, PointKind};
use crate::merge;
use crate::notes::{Damage, Notes};
use crate::point_files::child_of_disk;
use crate::request::Request;
use crate::sample::{NewestPoint, SampledBase};
use crate::seal::Sealing;
use crate::ship::{Shared, Work};
use crate::threads::on;
use crate::underway::Underway;

/// Units under way at a time, 32 MiB of memory: enough for 10 Gbit/s at 20 ms.
const IN_FLIGHT: usize = 32;
/// Units whose map is asked for at a time: 1 GiB, as copies do.
const WINDOW_UNITS: u32 = 1024;
/// Most units in which data is looked for with one question, a TiB: a map of that has 32,768 blocks of a VHDX file.
const AHEAD_UNITS: u32 = 1 << 20;
/// Units that one window of the journal announces where an earlier pass has left something: what is announced is
/// forgotten of that, so 1 GiB.
const ANNOUNCED_LATER: u32 = 1024;

/// Time after which a run whose units wait for their pace asks again whether it is cancelled: people and service
/// managers take half a second for at once.
const LOOK: Duration = Duration::from_millis(200);

/// A unit that was dealt with.
type Shipped = (UnitLeaves, Counted);

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

/// Backs a source up into a folder, and makes one point. `ahead` is what the caller has read of the folder since it has
/// the lease: `None` has it read here.
///
/// # Errors
///
/// Why no point was made. What was sent is kept for the next run.
pub async fn run(
    folder: &Arc<dyn Folder>,
    lease: &Lease<'_>,
    guids: &Guids,
    ahead: Option<Ahead>,
    request: Request<'_>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Outcome> {
    let mut run = Run {
        folder,
        lease,
        guids,
        request,
        lanes: Workers::new(),
        notes: Vec::new(),
        full: None,
        began_anew: false,
        leftovers: Leftovers::None,
        ahead,
    };
    loop {
        match run.attempt(progress).await.map_err(|error| lease.explain(error)) {
            // The history of an increment cannot be read: a full does without it.
            Err(BackupError::Damaged { point, what }) if run.full.is_none() => {
                let why = format!("point {point} is damaged: {what}");
                run.notes.push(why.clone());
                let mut notes = Notes::load(&**folder)?;
                if !notes.broken().any(|(broken, _)| broken == point) {
                    notes.damage.push(Damage::Point { point, what });
                    notes.verified.retain(|verified| *verified != point);
                    notes.store(&**folder)?;
                }
                run.full = Some(why);
            }
            Err(BackupError::DraftExchanged { what }) if !run.began_anew => {
                run.began_anew = true;
                run.notes.push(format!(
                    "{what}: another program has exchanged files of the incomplete point, which was removed; this run began anew"
                ));
            }
            Err(full @ BackupError::Full { .. }) if run.leftovers == Leftovers::Found => {
                if !run.give_up_leftovers().await? {
                    return Err(full);
                }
            }
            done => return done,
        }
        // What was missed may be what another writer has removed: nothing of its point may be touched.
        lease.check()?;
    }
}

/// Incomplete points of earlier runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leftovers {
    None,
    /// This run has gone on with one, or found one.
    Found,
    GivenUp,
}

/// The parent of the point that is made, as a sample of the source is compared with it.
struct Sampled {
    shipment: Shared,
    /// A point of the chain has left something out: leaves that none of them holds need not be zeroes at the source.
    left_out: bool,
}

impl SampledBase for Sampled {
    fn sample(&self, number: u64) -> Result<Option<u32>> {
        self.shipment.history.sample(number)
    }

    fn is_as_before(&self, unit: u32, data: &[u8], asked: u16) -> Result<bool> {
        self.shipment.is_as_before(unit, data, asked, self.left_out)
    }
}

/// See [`Run::look`].
type Look<'r> = Pin<Box<dyn Future<Output = ()> + 'r>>;

/// Units under way.
struct Sending<'r> {
    running: Underway<'r, Shipped>,
    /// Units from here on have not begun.
    next: u32,
    /// `None`: units do not wait for a pace, and each of them is soon dealt with.
    look: Option<Look<'r>>,
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
    /// The files of its draft were exchanged once.
    began_anew: bool,
    leftovers: Leftovers,
    /// What was read under the lease; the first attempt takes it.
    ahead: Option<Ahead>,
}

/// The chain of the newest point, itself first, or why there is to be a full.
type Basis = std::result::Result<Vec<Manifest>, String>;

/// Decision on what the new point is based on, and why.
struct Decision {
    why: String,
    parent: Option<Manifest>,
    /// Options for a disk on the parent's.
    options: Option<CreateOptions>,
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
        let mut ahead = match self.ahead.take() {
            Some(ahead) => ahead,
            None => self.read_ahead()?,
        };
        if ahead.catalogue.has_merges {
            merge::finish(&**self.folder)?;
            ahead = self.read_ahead()?;
        }
        let Ahead { catalogue, reading } = ahead;
        self.check_source(&catalogue)?;
        if catalogue.incomplete() > 0 && self.leftovers == Leftovers::None {
            self.leftovers = Leftovers::Found;
        }
        for unreadable in catalogue.newer_unreadable() {
            let note = unreadable.passed_over();
            // Said by an attempt before.
            if !self.notes.contains(&note) {
                self.notes.push(note);
            }
        }
        let basis = self.basis(&catalogue)?;
        let Reading { ailing, chain } = reading;
        let ailing = on(&self.lanes.upkeep, move || ailing.wait());
        let opening = async {
            match chain.filter(|_| basis.is_ok()) {
                Some(chain) => Some(on(&self.lanes.reads, move || chain.wait()).await),
                None => None,
            }
        };
        // Beside each other: what is healed are leaves, of which nothing is read here.
        let healing =
            async { heal::heal(&**self.folder, &catalogue, self.request.source, ailing.await?).await };
        let (opened, heal) = join(opening, healing).await;
        let heal = heal?;
        self.notes.extend(heal.notes);
        let decision = self.decide(basis, opened, &heal.checks)?;
        let decided = crate::draft::Decided {
            kind: if decision.parent.is_some() { PointKind::Increment } else { PointKind::Full },
            why: decision.why.clone(),
            parent: decision.parent.clone(),
            options: decision.options,
            size: geometry.size,
            sector: geometry.logical_sector,
            generation: catalogue.next_generation()?,
        };
        let resize = decision.parent.as_ref().map(|parent| parent.virtual_bytes);
        let mut draft = Draft::open(
            (self.folder, &self.lanes),
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
        let parent = decision.parent.as_ref().map(NewestPoint::of);
        let compared = Arc::new(Sampled { shipment: Arc::clone(&draft.shipment), left_out });
        self.notes.extend(self.request.distrust(&compared, parent, &self.lanes.reads).await?);
        // The draft is taken apart in the end, when its shipment has no other user.
        drop(compared);
        let changed = self.candidates(resize, heal.forced);
        let counted = self.ship(&mut draft, &changed, progress).await?;
        self.request.source.confirm().await.map_err(BackupError::SourceLost)?;
        let manifest = self.manifest(&draft, counted);
        let sealing = Sealing { folder: Arc::clone(self.folder), draft, manifest };
        // Until its files get their names this writes to the draft alone, as all before did.
        let (say, is_ours) = mpsc::channel();
        let closing = on(&self.lanes.upkeep, move || sealing.close(is_ours));
        let lease = self.lease;
        let check = async move { lease.check().map(|()| say.send(())) };
        let (closed, is_ours) = join(closing, check).await;
        // Where the files could not be closed, the thread that would hear of it has ended.
        let _ = is_ours?;
        let closed = closed?;
        let manifest = on(&self.lanes.upkeep, move || closed.seal()).await?;
        Ok(Outcome { manifest, notes: std::mem::take(&mut self.notes) })
    }

    /// Reads the folder.
    fn read_ahead(&self) -> Result<Ahead> {
        Ok(Ahead::begin_after(Duration::ZERO, self.folder, Catalogue::load(&**self.folder)?))
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

    /// Gives up what earlier runs have left, where the point has room in their place if it is begun anew: the disk
    /// holds less than it did, or more is left out. Returns `false` if it would hardly have.
    async fn give_up_leftovers(&mut self) -> Result<bool> {
        let catalogue = Catalogue::load(&**self.folder)?;
        let taken: u64 = leftovers(&**self.folder, &catalogue)?.iter().map(|left| left.bytes).sum();
        if self.room_needed(&catalogue, taken).await?.is_none_or(|needed| needed > taken) {
            return Ok(false);
        }
        remove_leftovers(&**self.folder, self.lease)?;
        self.leftovers = Leftovers::GivenUp;
        self.notes.push(format!(
            "the destination was full, and the incomplete point of an earlier run was removed: it took {}, more than a new one \
             needs",
            HumanSize(taken)
        ));
        Ok(true)
    }

    /// Most bytes that the point takes if it is begun anew; `None`: more than `at_most`.
    async fn room_needed(&self, catalogue: &Catalogue, at_most: u64) -> Result<Option<u64>> {
        let size = self.request.source.geometry().size;
        let kind = match self.full.is_some() || self.request.full || catalogue.newest().is_none() {
            true => PointKind::Full,
            false => PointKind::Increment,
        };
        let (mut data, mut at, end) = (0, 0, units(size));
        while at < end {
            let next = match kind {
                PointKind::Full => Some(at),
                PointKind::Increment => self.request.next_changed(at, &[]),
            };
            let Some(first) = next.filter(|next| *next < end) else { break };
            let last = (first + WINDOW_UNITS).min(end);
            for masks in self.request.masks(first..last, size, &[]).await? {
                let touched = if kind == PointKind::Full { u16::MAX } else { masks.touched };
                data += u64::from(touched & masks.data & !masks.skip != 0);
            }
            if room_needed(kind, data, u64::from(end)) > at_most {
                return Ok(None);
            }
            at = last;
        }
        Ok(Some(room_needed(kind, data, u64::from(end))))
    }

    /// Full or increment, as far as the points tell.
    fn basis(&self, catalogue: &Catalogue) -> Result<Basis> {
        let full = |why: &str| Ok(Err(why.to_owned()));
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
        Ok(Ok(chain.into_iter().cloned().collect()))
    }

    /// Full or increment, and why.
    fn decide(&self, basis: Basis, opened: Option<Result<OpenedChain>>, checks: &Notes) -> Result<Decision> {
        let full =
            |why: String| Ok(Decision { why, parent: None, options: None, history: History::default() });
        let (chain, opened) = match (basis, opened) {
            (Ok(chain), Some(opened)) => (chain, opened),
            (Err(why), _) => return full(why),
            (Ok(_), None) => return Err(BackupError::Lost),
        };
        for (point, what) in checks.broken() {
            if chain.iter().any(|manifest| manifest.point == point) {
                return full(format!("point {point} is damaged: {what}"));
            }
        }
        let opened = opened?;
        for (manifest, lacking) in chain.iter().zip(opened.lacking) {
            if let Some(what) = lacking? {
                return full(format!("point {} is damaged: {what}", manifest.point));
            }
        }
        // Sees that the parent was not written to since.
        let (disk, newest) = (opened.disk?, &chain[0]);
        if disk.data_write_guid().to_string() != newest.data_write {
            return full(format!("the file of point {} was written to after it was sealed", newest.point));
        }
        let options = child_of_disk(&disk, newest, self.request.source.geometry().size);
        Ok(Decision {
            why: self.request.changed.why(),
            parent: Some(newest.clone()),
            options: Some(options),
            history: opened.history?,
        })
    }

    /// Tells whether any point below the new one has left something out.
    fn left_out(&self, catalogue: &Catalogue, parent: Option<&Manifest>) -> Result<bool> {
        let Some(parent) = parent else { return Ok(false) };
        Ok(catalogue.chain(parent.point)?.iter().any(|manifest| !manifest.skipped.is_empty()))
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

    /// Sends what must be sent. Whatever its end is, no unit is under way any more.
    async fn ship(
        &self,
        draft: &mut Draft,
        forced: &[Range<u64>],
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Counted> {
        let mut sending = Sending {
            running: Underway::default(),
            next: draft.done(),
            look: draft.shipment.pace.is_limited().then(|| self.look()),
        };
        let mut shipped = self.ship_windows(draft, forced, progress, &mut sending).await;
        if shipped.is_err() {
            draft.shipment.pace.end();
        }
        if let Err(BackupError::Cancelled) = shipped {
            shipped = self.record_cancelled(draft, &mut sending).await.and(shipped);
        }
        while sending.running.next().await.is_some() {}
        let recorded = draft.end_checkpoint().await;
        if matches!(shipped, Err(BackupError::Full { .. })) {
            draft.leave();
        }
        shipped.and(recorded).map(|()| draft.counted)
    }

    async fn ship_windows<'r>(
        &'r self,
        draft: &mut Draft,
        forced: &[Range<u64>],
        progress: &mut dyn FnMut(Progress),
        sending: &mut Sending<'r>,
    ) -> Result<()> {
        let size = draft.shipment.size;
        let end = units(size);
        let mut at = draft.done();
        let announced = if draft.is_later_pass() { ANNOUNCED_LATER } else { ANNOUNCED };
        while let Some(first) = self.next_unit(draft, at, end, forced).await? {
            let last = (first + WINDOW_UNITS).min(end);
            let masks = self.request.masks(first..last, size, forced).await?;
            let shipment = Arc::clone(&draft.shipment);
            let works = on(&self.lanes.reads, move || shipment.plan(&masks)).await?;
            for work in works {
                sending.next = work.unit;
                self.check_cancelled()?;
                self.take(draft, sending, IN_FLIGHT - 1).await?;
                if work.unit >= draft.until() {
                    let done = sending.running.first().unwrap_or(work.unit);
                    draft.checkpoint(done, (work.unit + announced).min(end), &self.lanes).await?;
                }
                let done = u64::from(work.unit) * UNIT;
                progress(Progress { done, total: size, sent: draft.counted.sent });
                let shipment = Arc::clone(&draft.shipment);
                sending.running.push(work.unit, self.unit(shipment, work));
            }
            at = last;
            sending.next = at;
            progress(Progress { done: u64::from(at) * UNIT, total: size, sent: draft.counted.sent });
            self.check_cancelled()?;
        }
        sending.next = end;
        self.take(draft, sending, 0).await?;
        draft.complete(&self.lanes).await
    }

    fn check_cancelled(&self) -> Result<()> {
        if (self.request.is_cancelled)() { Err(BackupError::Cancelled) } else { Ok(()) }
    }

    /// Waits until at most so many units are under way, and begins each checkpoint that falls due meanwhile.
    async fn take<'r>(
        &'r self,
        draft: &mut Draft,
        sending: &mut Sending<'r>,
        under_way: usize,
    ) -> Result<()> {
        while sending.running.len() > under_way
            && let Some(done) = draft.beside_checkpoint(self.taken(sending)).await??
        {
            draft.take(done)?;
            draft.begin_due_checkpoint(sending.running.first().unwrap_or(sending.next), &self.lanes)?;
        }
        Ok(())
    }

    /// The first unit under way when it is dealt with. One that waits for its pace does not hold up an end.
    async fn taken<'r>(&'r self, sending: &mut Sending<'r>) -> Result<Option<Shipped>> {
        loop {
            let Some(look) = &mut sending.look else { return sending.running.next().await.transpose() };
            if let Either::Left((done, _)) = select(pin!(sending.running.next()), look).await {
                return done.transpose();
            }
            self.check_cancelled()?;
            sending.look = Some(self.look());
        }
    }

    /// Ends when it is time to ask whether the run is cancelled.
    fn look(&self) -> Look<'_> {
        Box::pin(async {
            // A pool without threads is noticed by the units.
            let _ = on(&self.lanes.background, || {
                thread::sleep(LOOK);
                Ok(())
            })
            .await;
        })
    }

    /// Records what a cancelled run has sent. Its units send nothing more: those that have not done so yet have failed.
    async fn record_cancelled(&self, draft: &mut Draft, sending: &mut Sending<'_>) -> Result<()> {
        let mut stopped = None;
        while let Some(unit) = sending.running.first() {
            match sending.running.next().await {
                Some(Ok(shipped)) if stopped.is_none() => draft.take(shipped)?,
                // What lies behind one that was not sent is looked at again.
                Some(Ok(_)) | None => {}
                Some(Err(BackupError::Cancelled)) => stopped = stopped.or(Some(unit)),
                Some(Err(error)) => return Err(error),
            }
        }
        let done = stopped.unwrap_or(sending.next);
        draft.checkpoint(done, draft.until().max(done), &self.lanes).await
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
        let changed = match self.request.changed {
            Changed::Known { .. } => self.request.next_changed(at, forced),
            Changed::Unknown { .. } => self.next_held(draft, at, end).await?,
        };
        if changed == Some(at) {
            return Ok(changed);
        }
        let shipment = Arc::clone(&draft.shipment);
        let left = on(&self.lanes.reads, move || shipment.next_left(at)).await?;
        Ok(changed.into_iter().chain(left).min().filter(|next| *next < end))
    }

    /// The first unit at or behind `at` of which the source may hold data or the parent holds something: where neither
    /// does, nothing has changed. It is looked for in ever larger steps, as most of a large disk may be holes.
    async fn next_held(&self, draft: &Draft, at: u32, end: u32) -> Result<Option<u32>> {
        let size = draft.shipment.size;
        let shipment = Arc::clone(&draft.shipment);
        let base = on(&self.lanes.reads, move || shipment.history.next(at)).await?;
        let until = base.map_or(end, |base| base.min(end));
        let (mut from, mut step) = (at, WINDOW_UNITS);
        while from < until {
            self.check_cancelled()?;
            let to = from.saturating_add(step).min(until);
            if let Some(unit) = self.request.next_data(from..to, size).await? {
                return Ok(Some(unit));
            }
            (from, step) = (to, (step * 2).min(AHEAD_UNITS));
        }
        Ok(base.filter(|base| *base < end))
    }

    async fn unit(&self, shipment: Shared, work: Work) -> Result<Shipped> {
        let range = work.reads(shipment.size);
        let data = if range.is_empty() { None } else { Some(self.request.read(range).await?) };
        let job = move || shipment.carry_out(&work, data.as_ref()).map(|shipped| (shipped, data));
        // The buffer ends on the thread that takes the next one: each keeps what it has taken.
        let (shipped, _buffer) = on(&self.lanes.writes, job).await?;
        Ok(shipped)
    }

    fn manifest(&self, draft: &Draft, counted: Counted) -> Manifest {
        let request = &self.request;
        let mut manifest = draft.manifest();
        if manifest.kind == PointKind::Increment {
            // By what was learnt since the decision; and an earlier run, which began the point, may have known less.
            manifest.why = request.changed.why();
        }
        manifest.source = request.source_name.clone();
        manifest.source_id = request.source.identity().content;
        manifest.epoch = request.epoch.clone();
        manifest.due = request.due.clone();
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
