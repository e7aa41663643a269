//! A backup run: from the changes at the source to a point.
//!
//! ```text
//!   1  begin     this process is a writer, durably; then the index is read, and what is dying
//!   2  ship      leaves that no pack has into packs, in the order of the disk; nodes and branches beside them
//!   3  packs     the last ones get their names; the folder durable
//!   4  index     a segment of what is new; the folder durable
//!   5  commit    is this process still taken for alive? STEM.copy.json, then STEM.json: the commit
//!   6  head      the series' head names the point
//!   7  merge     small segments of the index become one
//! ```
//!
//! A kill between any two steps leaves the points that were there. Packs that have their names are found by the next
//! run, of any series, which sends nothing of them again.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use lunway_backup::{
    BackupError, Changed, Counted, DISK_MAX, Folder, Guids, INCOMPLETE, LEAF, Lease, Masks, NOTES,
    NewestPoint, Notes, PointId, Presence, Progress, Request, Result, SkippedBytes, UNIT, Underway,
    UnreadablePoint, manifest_names, new_id, on, parse_stem, refuse, unit_range, units,
};
use lunway_file::Workers;

use crate::codec::{Id, ZEROES};
use crate::content::PointContent;
use crate::dying::Dying;
use crate::frames;
use crate::head::HEAD;
use crate::index::{Index, of_file, write_segment};
use crate::marker::FORMAT;
use crate::merge::merge;
use crate::next_head::Change;
use crate::pack::{Location, pack_name};
use crate::packer::{Kind, Packer};
use crate::point::RepositoryPoint;
use crate::points::Points;
use crate::repository::{Repository, SWEEPER};
use crate::seen::SeenSeries;
use crate::segment::{Segment, segment_name};
use crate::series::Series;
use crate::ship::{Sampled, Shipment, Shipped, read_range};
use crate::tree::{NODES, branches, join};
use crate::walk::Walk;

/// Units under way at a time, 32 MiB of memory: as of a chain.
const IN_FLIGHT: usize = 32;
/// Units whose map is asked for at a time: 1 GiB, as copies do.
const WINDOW_UNITS: u32 = 1024;
/// New entries that are held before they become a segment of the index: some 50 MiB of memory, 32 GiB of new leaves.
const FRESH_MAX: usize = 1 << 19;

/// Result of a run.
#[derive(Clone, Debug)]
pub struct RunOutcome {
    /// The new point.
    pub point: RepositoryPoint,
    /// Notes for the operator.
    pub notes: Vec<String>,
}

/// Backs a source up into a series of a repository, and makes one point. The lease is that of the series.
///
/// # Errors
///
/// Why no point was made. What was sent is kept for the next run.
pub async fn run(
    series: &Series,
    lease: &Lease<'_>,
    guids: &Guids,
    request: Request<'_>,
    progress: &mut dyn FnMut(Progress),
) -> Result<RunOutcome> {
    let geometry = request.source.geometry();
    if geometry.size == 0 || geometry.size > DISK_MAX {
        return Err(BackupError::Refused(format!(
            "the source has {} bytes: a point holds from one sector to 64 TiB",
            geometry.size
        )));
    }
    let (repository, folder) = (&series.repository, &*series.folder);
    let presence = repository.begin_writing(lease.holder())?;
    refuse(&*repository.folder, SWEEPER, lease.holder(), "removes packs of it", &|| false)?;
    clean(folder)?;
    let mut index = repository.index()?;
    let mut notes = Vec::new();
    notes.extend(index.list_problem.clone());
    let (dying, problem) = Dying::examine(&*repository.folder)?;
    notes.extend(problem);
    if frames::mend(repository, &index, &mut notes)? {
        index = repository.index()?;
    }
    // Without the list every pack counts as dying that no segment knows, and no segment knows one that is.
    let dying = dying.unwrap_or_else(|| index.loose().iter().copied().collect());
    if adopt(repository, &index, &dying, &mut notes)? {
        index = repository.index()?;
    }
    let lacks_packs = note_missing(repository, &index, &dying, &mut notes)?;
    let index = Arc::new(index);
    let mut points = series.points()?;
    match request.rename_source {
        true => refuse_others(series, &points)?,
        false => points.refuse_foreign()?,
    }
    points.refuse_copy()?;
    check_source(&points, &request)?;
    if promote(series, lease, &points, &index, request.is_cancelled, &mut notes)? {
        points = series.points()?;
    }
    for name in repository.heal_marker(lease.holder())? {
        notes.push(format!("{name} was written again"));
    }
    heal_copies(folder, &points, &mut notes)?;
    notes.extend(points.losses.iter().map(|loss| loss.what.clone()));
    notes.extend(points.newer_unreadable().map(UnreadablePoint::passed_over));
    notes.extend(points.stray_sentences().iter().cloned());
    if let Some(what) = &points.head_problem {
        notes.push(format!("{what}: whether the newest points are there is not known; it is written again"));
    }
    let mut run = Run { series, lease, presence, request, lacks_packs, lanes: Workers::new(), notes };
    run.make(guids, &points, index, dying, progress).await
}

/// Removes what a run of the series has left that was stopped before its end.
fn clean(series: &dyn Folder) -> Result<()> {
    let removing = || BackupError::folder("removing", &series.show(""));
    for name in series.names().map_err(removing())?.iter().filter(|name| name.ends_with(INCOMPLETE)) {
        let stem = name.split('.').next().unwrap_or_default();
        if parse_stem(stem).is_some() || [NOTES, HEAD].iter().any(|ours| name.starts_with(ours)) {
            series.remove(name).map_err(removing())?;
        }
    }
    series.sync().map_err(removing())
}

/// Makes points again of which only the copy of the manifest is there: the other one was lost, or the run was stopped
/// in between. Of one whose tree is not whole the copy is removed. Returns `true` if there was any.
fn promote(
    series: &Series,
    lease: &Lease<'_>,
    points: &Points,
    index: &Arc<Index>,
    is_cancelled: &dyn Fn() -> bool,
    notes: &mut Vec<String>,
) -> Result<bool> {
    let folder = &*series.folder;
    let reader = series.repository.reader(Arc::clone(index));
    for point in &points.uncommitted {
        let [copy, first] = manifest_names(&point.stem());
        let mut walk = Walk::new(&reader, is_cancelled);
        let is_whole = walk.point(point)?.is_empty();
        lease.check()?;
        if is_whole {
            point.promote(folder)?;
            notes.push(format!("point {} had only its {copy}: {first} was written again", point.point));
        } else {
            let removing = || BackupError::folder("removing", &folder.show(&copy));
            folder.remove(&copy).map_err(removing())?;
            folder.sync().map_err(removing())?;
            notes.push(format!("{} was removed: not all that its point needs is there", folder.show(&copy)));
        }
    }
    Ok(!points.uncommitted.is_empty())
}

/// Notes packs that the index names and that are gone, though no prune has removed them: what lay there is sent again.
/// Returns `true` if there are any of which points may need something.
fn note_missing(
    repository: &Repository,
    index: &Index,
    dying: &HashSet<u64>,
    notes: &mut Vec<String>,
) -> Result<bool> {
    let folder = &*repository.folder;
    let mut known = index.damage().clone();
    let mut is_new = false;
    for pack in index.missing().iter().filter(|pack| !dying.contains(pack)) {
        if known.packs.insert(*pack) {
            is_new = true;
            notes.push(format!(
                "{} is missing: what it held is sent again where the source has it; `lunway backup verify` names the points",
                folder.show(&pack_name(*pack))
            ));
        }
    }
    if is_new {
        known.store(folder)?;
    }
    Ok(known.packs.iter().any(|pack| !index.packs().contains(pack)))
}

/// Gives packs that no segment knows one of their own, in the place of segments that are damaged.
fn adopt(
    repository: &Repository,
    index: &Index,
    dying: &HashSet<u64>,
    notes: &mut Vec<String>,
) -> Result<bool> {
    let folder = &*repository.folder;
    let adopted: Vec<u64> = index.loose().iter().copied().filter(|pack| !dying.contains(pack)).collect();
    if adopted.is_empty() && index.unusable.is_empty() {
        return Ok(false);
    }
    if !adopted.is_empty() {
        let Some(loose) = index.segments().last() else {
            return Ok(false);
        };
        write_segment(folder, &mut |writer| {
            let writing = || BackupError::folder("writing", &folder.show("index"));
            for pack in &adopted {
                writer.cover(*pack);
            }
            for entry in loose.entries() {
                let entry = of_file(folder, "index", entry)?;
                let (id, location) = entry.map_err(BackupError::Refused)?;
                if !dying.contains(&location.pack) {
                    writer.push(&id, &location).map_err(writing())?;
                }
            }
            Ok(())
        })?;
    }
    for (number, what) in &index.unusable {
        let name = segment_name(*number);
        folder.remove(&name).map_err(BackupError::folder("removing", &folder.show(&name)))?;
        notes.push(format!("{} was made again: {what}", folder.show(&name)));
    }
    folder.sync().map_err(BackupError::folder("writing", &folder.show("")))?;
    Ok(true)
}

/// Refuses to make points the own ones of a series that are those of another one, which is there as well.
fn refuse_others(series: &Series, points: &Points) -> Result<()> {
    let there = match points.foreign().is_empty() {
        true => return Ok(()),
        false => series.repository.all_points()?,
    };
    match there.iter().find(|(other, there)| points.foreign().contains(other) && there.has_any()) {
        None => Ok(()),
        Some((other, _)) => Err(BackupError::Refused(format!(
            "{} holds points of the series {other}, which is there as well: folders were exchanged, or one was copied; move \
             this one away, or if both were renamed on purpose, give {other} another name first",
            series.show()
        ))),
    }
}

fn check_source(points: &Points, request: &Request<'_>) -> Result<()> {
    match points.newest() {
        Some(newest) if newest.source != request.source_name && !request.rename_source => {
            Err(BackupError::OtherSource {
                there: newest.source.clone(),
                source_name: request.source_name.clone(),
            })
        }
        _ => Ok(()),
    }
}

/// Writes manifests again of which one copy is not whole.
fn heal_copies(series: &dyn Folder, points: &Points, notes: &mut Vec<String>) -> Result<()> {
    for (id, _) in &points.copy_problems {
        if let Some(point) = points.get(*id) {
            point.store(series)?;
            notes.push(format!("the manifest of point {id} was written again"));
        }
    }
    Ok(())
}

struct Run<'a> {
    series: &'a Series,
    lease: &'a Lease<'a>,
    presence: Presence,
    request: Request<'a>,
    /// Packs are missing: the newest point may need what they held.
    lacks_packs: bool,
    lanes: Workers,
    notes: Vec<String>,
}

/// What arrives: entries on their way into packs, and the tree above them.
struct Load<'a> {
    repository: &'a Repository,
    shipment: Arc<Shipment>,
    packer: Packer<'a>,
    tree: Tree,
    counted: Counted,
}

/// The tree of the new point while it is made: branches of the base, and one that is being changed.
struct Tree {
    branches: Vec<Id>,
    current: Option<(u32, Vec<Id>)>,
}

impl<'a> Run<'a> {
    fn repository(&self) -> &'a Repository {
        &self.series.repository
    }

    async fn make(
        &mut self,
        guids: &Guids,
        points: &Points,
        index: Arc<Index>,
        dying: HashSet<u64>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<RunOutcome> {
        let (base, why) = self.base(points, &index)?;
        let newest = base.as_ref().map(|(point, _)| point.clone());
        let damaged = Notes::load(&*self.series.folder)?.damage;
        let mut heals =
            newest.as_ref().is_some_and(|newest| damaged.iter().any(|found| found.point() == newest.point));
        if let Some(newest) = newest.as_ref().filter(|_| self.lacks_packs && !heals) {
            let reader = self.repository().reader(Arc::clone(&index));
            heals = !Walk::new(&reader, self.request.is_cancelled).point(newest)?.is_empty();
        }
        if heals {
            self.request.changed = Changed::Unknown {
                why: "the newest point is damaged, and what the source still has of it is sent again".into(),
            };
        }
        let size = self.request.source.geometry().size;
        let shipment = Arc::new(Shipment {
            size,
            folder: Arc::clone(&self.repository().folder),
            codec: Arc::clone(&self.repository().codec),
            base: base.map(|(_, content)| content),
            left_out: newest.as_ref().is_some_and(|newest| newest.left_out),
            heals,
            index,
            dying,
            written: RwLock::default(),
            fresh: Mutex::default(),
        });
        let compared = newest.as_ref().map(|newest| NewestPoint {
            point: newest.point,
            epoch: newest.epoch.clone(),
            virtual_bytes: newest.virtual_bytes,
        });
        let sampled = Arc::new(Sampled(Arc::clone(&shipment)));
        let distrusted = self.request.distrust(&sampled, compared, &self.lanes.reads).await?;
        self.notes.extend(distrusted);
        let before = newest.as_ref().map_or(size, |newest| newest.virtual_bytes);
        let forced: Vec<_> = resized(before, size).into_iter().collect();
        let why = if newest.is_some() { self.request.changed.why() } else { why };
        let mut load = Load {
            repository: self.repository(),
            tree: Tree::of(&shipment),
            shipment,
            packer: Packer::begin(
                Arc::clone(&self.repository().folder),
                self.request.bytes_per_second,
                self.request.is_cancelled,
            )?,
            counted: Counted::default(),
        };
        if let Err(error) = self.ship(&mut load, &forced, progress).await {
            // What was sent is kept: packs that have their names are found again.
            let _ = load.checkpoint();
            return Err(error);
        }
        self.request.source.confirm().await.map_err(BackupError::SourceLost)?;
        let root = load.end_tree(before > size)?;
        load.checkpoint()?;
        let point = self.point(guids, points, newest.as_ref(), why, &load)?;
        let point = point.sealed(&root, &self.repository().codec);
        self.commit(&point)?;
        let repository = self.repository();
        let is_elsewhere = |lost: PointId| repository.was_renamed_with(&self.series.name, lost);
        let head = points.head_with(Some(&point), &Change::Run { is_elsewhere: &is_elsewhere });
        let seen = SeenSeries { generation: point.generation, newest: Some(point.point), begun: head.begun };
        if let Err(error) = head.store(&*self.series.folder, &self.repository().codec) {
            self.notes.push(format!(
                "the point is made, and if it is removed without a prune before the next run has made one, only this user \
                 will notice: {error}"
            ));
        }
        if let Err(error) = self.repository().remember_series(&self.series.name, seen, points) {
            self.notes.push(format!(
                "the point is made, and if an older state of the series is shown later, or its folder is moved away, this \
                 user will not be told: {error}"
            ));
        }
        let written = load.shipment.written.read().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = merge(self.repository(), &load.shipment.index, &written, &self.presence) {
            // The next run does it.
            self.notes.push(format!("the point is made, and the index was left in several files: {error}"));
        }
        drop(written);
        Ok(RunOutcome { point, notes: std::mem::take(&mut self.notes) })
    }

    /// The newest point and its content, or the reason why it is not compared with.
    fn base(
        &mut self,
        points: &Points,
        index: &Arc<Index>,
    ) -> Result<(Option<(RepositoryPoint, PointContent)>, String)> {
        let full = |why: &str| Ok((None, why.to_owned()));
        if self.request.full {
            return full("it was asked for");
        }
        let Some(newest) = points.newest() else {
            return full(match points.unreadable.is_empty() {
                true => "it is the first",
                false => "no manifest can be read",
            });
        };
        if newest.sector_bytes != self.request.source.geometry().logical_sector {
            return full("the source has another logical sector than before");
        }
        let reader = Arc::new(self.repository().reader(Arc::clone(index)));
        match PointContent::open(reader, newest) {
            Ok(content) => Ok((Some((newest.clone(), content)), String::new())),
            Err(BackupError::Damaged { point, what }) => {
                let why = format!("point {point} is damaged: {what}");
                self.notes.push(why.clone());
                full(&why)
            }
            Err(error) => Err(error),
        }
    }

    /// Sends what must be sent. Whatever its end is, no unit is under way any more.
    async fn ship(
        &self,
        load: &mut Load<'_>,
        forced: &[Range<u64>],
        progress: &mut dyn FnMut(Progress),
    ) -> Result<()> {
        let mut running = Underway::default();
        let shipped = self.ship_windows(load, forced, progress, &mut running).await;
        while running.next().await.is_some() {}
        shipped
    }

    async fn ship_windows<'r>(
        &'r self,
        load: &mut Load<'_>,
        forced: &[Range<u64>],
        progress: &mut dyn FnMut(Progress),
        running: &mut Underway<'r, Shipped>,
    ) -> Result<()> {
        let total = load.shipment.size;
        let end = units(total);
        let mut at = 0;
        while let Some(first) = self.request.next_changed(at, forced).filter(|first| at < end && *first < end)
        {
            let last = (first + WINDOW_UNITS).min(end);
            let masks = self.request.masks(first..last, total, forced).await?;
            let planned = Arc::clone(&load.shipment);
            for work in on(&self.lanes.reads, move || planned.plan(masks)).await? {
                if (self.request.is_cancelled)() {
                    load.take(running, 0).await?;
                    return Err(BackupError::Cancelled);
                }
                load.take(running, IN_FLIGHT - 1).await?;
                progress(Progress { done: u64::from(work.unit) * UNIT, total, sent: load.counted.sent });
                running.push(work.unit, self.unit(Arc::clone(&load.shipment), work));
            }
            at = last;
            progress(Progress { done: unit_range(at - 1, total).end, total, sent: load.counted.sent });
            if (self.request.is_cancelled)() {
                load.take(running, 0).await?;
                return Err(BackupError::Cancelled);
            }
        }
        load.take(running, 0).await
    }

    async fn unit(&self, shipment: Arc<Shipment>, masks: Masks) -> Result<Shipped> {
        let range = read_range(&masks, shipment.size);
        let data = if range.is_empty() { None } else { Some(self.request.read(range).await?) };
        let job = move || shipment.carry_out(masks, data.as_ref()).map(|shipped| (shipped, data));
        // The buffer ends on the thread that takes the next one: each keeps what it has taken.
        let (shipped, _buffer) = on(&self.lanes.writes, job).await?;
        Ok(shipped)
    }

    fn point(
        &self,
        guids: &Guids,
        points: &Points,
        base: Option<&RepositoryPoint>,
        why: String,
        load: &Load<'_>,
    ) -> Result<RepositoryPoint> {
        let (request, counted) = (&self.request, &load.counted);
        let geometry = request.source.geometry();
        let skipped = SkippedBytes { bytes: counted.skipped, why: request.skipped_why.into() };
        Ok(RepositoryPoint {
            format: FORMAT,
            point: new_id(guids),
            generation: points.next_generation()?,
            base: base.map(|base| base.point),
            why,
            source: request.source_name.clone(),
            source_id: request.source.identity().content,
            epoch: request.epoch.clone(),
            level: request.level,
            time: request.time,
            virtual_bytes: geometry.size,
            sector_bytes: geometry.logical_sector,
            left_out: counted.skipped > 0 || base.is_some_and(|base| base.left_out),
            skipped: if counted.skipped > 0 { vec![skipped] } else { Vec::new() },
            changed_bytes: counted.changed,
            read_bytes: counted.read,
            sent_bytes: counted.sent,
            stored_bytes: load.packer.written,
            root: String::new(),
            series: Some(self.series.name.clone()),
            before: points.newest().map(|newest| newest.point),
            due: request.due.clone(),
            authenticated: None,
        })
    }

    /// Makes the point, if this process was taken for alive all the time: otherwise a prune may have removed what it
    /// refers to.
    fn commit(&self, point: &RepositoryPoint) -> Result<()> {
        self.lease.check()?;
        self.presence.check()?;
        let folder = &*self.series.folder;
        point.store(folder)?;
        // Suspended between the two, for longer than others wait.
        self.presence.check().or_else(|error| point.remove(folder).and(Err(error)))
    }
}

impl Load<'_> {
    /// Waits until at most so many units are under way.
    async fn take(&mut self, running: &mut Underway<'_, Shipped>, under_way: usize) -> Result<()> {
        while running.len() > under_way
            && let Some(shipped) = running.next().await
        {
            self.add(shipped?)?;
            self.packer.end_due()?;
            if self.shipment.fresh().len() >= FRESH_MAX {
                self.checkpoint()?;
            }
        }
        Ok(())
    }

    /// The next unit in the order of the disk: its new leaves go into packs, its node into the tree.
    fn add(&mut self, shipped: Shipped) -> Result<()> {
        for (id, encoded) in &shipped.new {
            let location = self.packer.add(Kind::Data, *id, encoded)?;
            self.shipment.fresh().insert(*id, Some(location));
        }
        self.counted.changed += shipped.counted.changed;
        self.counted.read += shipped.counted.read;
        self.counted.sent += shipped.counted.sent;
        self.counted.skipped += shipped.counted.skipped;
        if let Some((id, bytes)) = shipped.node {
            if let Some(bytes) = bytes {
                self.store(&id, &bytes)?;
            }
            self.set_node(shipped.unit, id)?;
        }
        Ok(())
    }

    /// Sees to it that the repository has an entry of the tree.
    fn store(&mut self, id: &Id, bytes: &[u8]) -> Result<()> {
        if self.shipment.claim(id)? {
            let encoded = self.shipment.codec.encode(id, bytes);
            let location = self.packer.add(Kind::Tree, *id, &encoded)?;
            self.shipment.fresh().insert(*id, Some(location));
        }
        Ok(())
    }

    fn set_node(&mut self, unit: u32, id: Id) -> Result<()> {
        let nodes = self.branch(unit / NODES)?;
        nodes[(unit % NODES) as usize] = id;
        Ok(())
    }

    /// The nodes of a branch, which becomes the one that is being changed.
    fn branch(&mut self, branch: u32) -> Result<&mut Vec<Id>> {
        if self.tree.current.as_ref().is_some_and(|(current, _)| *current != branch) {
            self.end_branch()?;
        }
        let (_, nodes) = match self.tree.current.take() {
            Some(current) => self.tree.current.insert(current),
            None => {
                let nodes = before(&self.shipment, branch)?;
                self.tree.current.insert((branch, nodes))
            }
        };
        Ok(nodes)
    }

    fn end_branch(&mut self) -> Result<()> {
        let Some((branch, nodes)) = self.tree.current.take() else {
            return Ok(());
        };
        self.tree.branches[branch as usize] = match join(nodes) {
            None => ZEROES,
            Some(bytes) => {
                let id = self.shipment.codec.id(&bytes);
                self.store(&id, &bytes)?;
                id
            }
        };
        Ok(())
    }

    /// Ends the tree: the id of its root.
    fn end_tree(&mut self, is_smaller: bool) -> Result<Id> {
        let end = units(self.shipment.size);
        if is_smaller && !end.is_multiple_of(NODES) {
            // What the last branch had behind the new end. No branch that was changed lies behind it.
            self.branch(end / NODES)?[(end % NODES) as usize..].fill(ZEROES);
        }
        self.end_branch()?;
        let bytes = self.tree.branches.concat();
        let root = self.shipment.codec.id(&bytes);
        self.store(&root, &bytes)?;
        Ok(root)
    }

    /// Makes durable what was sent, and gives it a segment of the index.
    fn checkpoint(&mut self) -> Result<()> {
        let folder = &*self.repository.folder;
        self.packer.flush()?;
        folder.sync().map_err(BackupError::folder("writing", &folder.show("")))?;
        let mut entries: Vec<(Id, Location)> = Vec::new();
        self.shipment.fresh().retain(|id, location| match location {
            Some(location) => {
                entries.push((*id, *location));
                false
            }
            None => true,
        });
        if entries.is_empty() {
            return Ok(());
        }
        entries.sort_unstable_by_key(|(id, _)| *id);
        let number = write_segment(folder, &mut |writer| {
            let written = entries.iter().try_for_each(|(id, location)| writer.push(id, location));
            written.map_err(BackupError::folder("writing", &folder.show("index")))
        })?;
        let name = segment_name(number);
        let file = folder.open(&name, false).map_err(BackupError::folder("opening", &folder.show(&name)))?;
        let segment = of_file(folder, &name, Segment::open(file, number))?.map_err(BackupError::Refused)?;
        self.shipment.written.write().unwrap_or_else(PoisonError::into_inner).push((number, segment));
        Ok(())
    }
}

/// The nodes of a branch of the base.
fn before(shipment: &Shipment, branch: u32) -> Result<Vec<Id>> {
    let zeroes = || Ok(vec![ZEROES; NODES as usize]);
    match shipment.base.as_ref().map(|base| base.nodes(branch)) {
        None => zeroes(),
        // All of its units are dealt with, and none of it is needed.
        Some(Err(BackupError::Damaged { .. })) if shipment.heals => zeroes(),
        Some(nodes) => nodes,
    }
}

impl Tree {
    fn of(shipment: &Shipment) -> Self {
        let mut all = shipment.base.as_ref().map_or_else(Vec::new, |base| base.branches().to_vec());
        all.resize(branches(units(shipment.size)) as usize, ZEROES);
        Self { branches: all, current: None }
    }
}

/// What has to be looked at again of a disk that has another size than before: from the unit of the smaller one's last
/// byte on, since its last leaf had another length, or has less behind it.
fn resized(before: u64, now: u64) -> Option<Range<u64>> {
    match before.min(now) {
        _ if before == now => None,
        least => Some((least - 1) / UNIT * UNIT..before.max(now).next_multiple_of(LEAF)),
    }
}
