//! The lease: one writer at a time, without any clock but the observer's own.
//!
//! A lease is a file `lease-N`, made so that of two callers one succeeds; N counts takings. Its holder keeps a lock on
//! it and counts a beat in it every [`BEAT`]. Who finds one:
//!
//! - of this machine, and the lock is free: the holder was killed. It is taken over at once, as N + 1. In a folder
//!   [whose mount has locks of its own](Folder::mount_of_locks) only if it was taken through the same mount, behind
//!   whose writes ours come, and if there is no such process any more, which only its own PID namespace can tell.
//! - else: it is stale when its beat has not changed for [`PATIENCE`] of the observer's monotonic clock.
//!
//! A holder that was suspended meanwhile notices before it seals anything: there is a higher N, or its file is gone.
//! What it may still write before that are files of its incomplete point: a process that takes over from a holder that
//! has not certainly ended goes on with none of them. A holder of this machine's earlier start, known by its lasting id
//! and its name, has ended with that start: its incomplete point is gone on with.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use lunway_vhdx::Storage;

use crate::error::{BackupError, Result, is_of_the_file};
use crate::folder::{Folder, INCOMPLETE, Lock, Open, read_small};
use crate::holder::{Alive, Holder};
use crate::manifest::{disk_name, leaves_name, manifest_names};
use crate::point_files::{is_journal, release};
use crate::threads::both;

/// Between two beats: seldom enough for a share, often enough that a stale lease is found in half a minute.
const BEAT: Duration = Duration::from_secs(5);
/// Time after which an unchanged beat makes a lease stale: six beats, since a share may stall for some.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time for which a lease without a holder is watched: its maker was stopped between two steps, or is about to do the
/// second.
const PATIENCE_UNWRITTEN: Duration = Duration::from_secs(1);
/// Bytes of the count of beats, before the holder's JSON.
const BEAT_LEN: u64 = 8;
/// Most bytes of a lease file.
const LEASE_MAX: u64 = 4096;
/// Beginning of the names of leases.
pub const LEASE: &str = "lease-";

/// A lease that may be taken over.
pub(crate) struct Stale {
    found: Found,
    /// Its holder has certainly ended, or never begun.
    has_ended: bool,
}

/// The right to write to a folder; it ends when this is dropped.
pub struct Lease<'a> {
    folder: &'a dyn Folder,
    number: u64,
    holder: Holder,
    file: Open,
    /// The holder stands in the file. There may have been no room for it.
    written: AtomicBool,
    /// The last time when it was seen that no other writer has it.
    seen: Mutex<Option<Instant>>,
    _lock: Option<Lock>,
    _alive: Alive,
    end: Option<mpsc::Sender<()>>,
    beats: Option<JoinHandle<()>>,
}

/// Contents of a lease file.
#[derive(PartialEq, Eq)]
pub(crate) struct Found {
    beat: u64,
    holder: Option<Holder>,
}

impl<'a> Lease<'a> {
    /// Takes the lease of a folder. Blocks: up to half a minute where another machine's lease may be stale, during
    /// which `is_cancelled` is asked.
    ///
    /// # Errors
    ///
    /// [`BackupError::InUse`], or what the folder says.
    pub fn take(folder: &'a dyn Folder, holder: Holder, is_cancelled: &dyn Fn() -> bool) -> Result<Self> {
        Self::take_with(folder, holder, is_cancelled, Room::Needed, || ()).map(|(lease, ())| lease)
    }

    /// The same, with what `look` finds in the folder: it is called when the lease is made, while it is seen that no
    /// other writer has it. On a share both are some round trips.
    ///
    /// # Errors
    ///
    /// As of [`take`](Self::take).
    pub fn take_and_look<T: Send>(
        folder: &'a dyn Folder,
        holder: Holder,
        is_cancelled: &dyn Fn() -> bool,
        look: impl FnOnce() -> T + Send,
    ) -> Result<(Self, T)> {
        Self::take_with(folder, holder, is_cancelled, Room::Needed, look)
    }

    /// The same, also in a folder that has no room for the holder's name: for who frees some. The name is written as
    /// soon as there is. Until then writers of this machine are kept out by the lock, and one of another machine may
    /// take the folder after a second, which [`check`](Self::check) notices.
    ///
    /// # Errors
    ///
    /// As of [`take`](Self::take).
    pub fn take_without_room(
        folder: &'a dyn Folder,
        holder: Holder,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<Self> {
        Self::take_with(folder, holder, is_cancelled, Room::Dispensable, || ()).map(|(lease, ())| lease)
    }

    fn take_with<T: Send>(
        folder: &'a dyn Folder,
        holder: Holder,
        is_cancelled: &dyn Fn() -> bool,
        room: Room,
        look: impl FnOnce() -> T + Send,
    ) -> Result<(Self, T)> {
        let (first, mount) = both(|| numbers(folder), || Ok(folder.mount_of_locks()));
        let (mut numbers, holder) = (first?, Holder { mount: mount?, ..holder });
        let alive = Alive::new(&holder);
        let (mut number, mut stale) = (1, None);
        while let Some(&last) = numbers.last() {
            number = last.checked_add(1).ok_or_else(|| {
                BackupError::Refused(format!(
                    "{} is no lease of this program: remove it",
                    folder.show(&name(last))
                ))
            })?;
            match wait_until_stale(folder, &name(last), &holder, is_cancelled)? {
                Some(found) => {
                    stale = Some((last, found));
                    break;
                }
                // Another writer may have taken the folder since, and have a lease of that same name.
                None => (numbers, number) = (self::numbers(folder)?, 1),
            }
        }
        let name = name(number);
        let writing = || BackupError::folder("writing", &folder.show(&name));
        let began = Instant::now();
        let file = match folder.create(&name) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(BackupError::InUse { holder: "another process, which came first".into() });
            }
            file => file.map_err(writing())?,
        };
        let lock = match folder.lock(&name) {
            Ok(None) => {
                return Err(BackupError::InUse { holder: "another process, which came first".into() });
            }
            Ok(lock) => lock,
            Err(_) => None,
        };
        let written = match write(&file, &holder) {
            Ok(()) => true,
            Err(error) if room == Room::Dispensable && is_no_room(&error) => false,
            Err(error) => {
                // Otherwise others would have to wait for it.
                let _ = folder.remove(&name);
                return Err(writing()(error));
            }
        };
        if let Some((last, Stale { found, has_ended })) = stale {
            // Others may have taken the folder and given it back since, so that another writer has a lease of that
            // name now. One that comes later than this look sees the new lease.
            if read(folder, &self::name(last))?.is_some_and(|now| now != found) {
                let _ = folder.remove(&name);
                return Err(BackupError::InUse { holder: "another process, which came first".into() });
            }
            // An older one beside it: its holder was given up by one that was killed before it could do this.
            if !has_ended || numbers.len() > 1 {
                disown(folder)?;
            }
        }
        for older in numbers {
            folder.remove(&self::name(older)).map_err(writing())?;
        }
        let (end, ended) = mpsc::channel();
        let beating = file.clone();
        let beats = thread::Builder::new().name("backup-lease".into()).spawn(move || beat(&beating, &ended));
        let written = AtomicBool::new(written);
        let lease = Self {
            folder,
            number,
            holder,
            file,
            written,
            seen: Mutex::default(),
            _lock: lock,
            _alive: alive,
            end: Some(end),
            beats: beats.ok(),
        };
        if began.elapsed() >= PATIENCE_UNWRITTEN {
            // One that has watched the file without a holder for so long is about to take over.
            thread::sleep(PATIENCE_UNWRITTEN);
        }
        let (found, checked) = both(|| Ok(look()), || lease.check_taken());
        checked?;
        Ok((lease, found?))
    }

    /// Holder of the lease.
    pub fn holder(&self) -> &Holder {
        &self.holder
    }

    /// Checks that no other writer has taken the folder in the meantime. Call it before anything is sealed or removed.
    ///
    /// # Errors
    ///
    /// [`BackupError::LeaseLost`], [`BackupError::LeaseGone`], or what the folder says.
    pub fn check(&self) -> Result<()> {
        let began = Instant::now();
        self.look()?;
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(began);
        Ok(())
    }

    fn look(&self) -> Result<()> {
        if !self.is_next_absent()? {
            return Err(BackupError::LeaseLost);
        }
        if !self.written.load(Ordering::Relaxed) {
            if !numbers(self.folder)?.contains(&self.number) {
                return Err(self.lost()?);
            }
            match write(&self.file, &self.holder) {
                Ok(()) => self.written.store(true, Ordering::Relaxed),
                Err(error) if is_no_room(&error) => return Ok(()),
                Err(error) => {
                    return Err(BackupError::folder("writing", &self.folder.show(&name(self.number)))(error));
                }
            }
        }
        let found = read(self.folder, &name(self.number))?;
        match found.and_then(|found| found.holder) {
            Some(holder) if holder == self.holder => Ok(()),
            _ => Err(self.lost()?),
        }
    }

    /// The same for a lease that was just taken. Other leases are seen by a list: this process may have been suspended
    /// between its look at the numbers and its own, which then may be lower by more than one.
    fn check_taken(&self) -> Result<()> {
        let (last, checked) = both(|| numbers(self.folder), || self.check());
        match last?.last() {
            Some(last) if *last != self.number => Err(BackupError::LeaseLost),
            _ => checked,
        }
    }

    /// A taker makes the number behind this one, or a higher one while that is there, and only then removes this one:
    /// lower numbers first. So as long as this file is there, that one name says whether another writer came.
    fn is_next_absent(&self) -> Result<bool> {
        let Some(next) = self.number.checked_add(1).map(name) else { return Ok(true) };
        is_there(self.folder, &next).map(|found| !found)
    }

    /// Cause of an error that was met under this lease: the loss of the lease, where another writer has taken it. What
    /// that one has merged or removed meanwhile looks like damage.
    pub fn explain(&self, error: BackupError) -> BackupError {
        let may_be_loss = match error {
            BackupError::PruneEnded { points, packs, error } => {
                return BackupError::PruneEnded { points, packs, error: Box::new(self.explain(*error)) };
            }
            // A share that does not answer is not asked again.
            BackupError::Folder { ref source, .. } => is_of_the_file(source.kind()),
            BackupError::Damaged { .. }
            | BackupError::Disk { .. }
            | BackupError::DraftExchanged { .. }
            | BackupError::Manifest { .. }
            | BackupError::Open { .. }
            | BackupError::Refused(_) => true,
            _ => false,
        };
        match may_be_loss.then(|| self.check()) {
            Some(Err(lost @ (BackupError::LeaseLost | BackupError::LeaseGone))) => lost,
            _ => error,
        }
    }

    /// Where the file of this lease is gone, or another's.
    fn lost(&self) -> Result<BackupError> {
        Ok(if numbers(self.folder)?.is_empty() { BackupError::LeaseGone } else { BackupError::LeaseLost })
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(beats) = self.beats.take() {
            let _ = beats.join();
        }
        // A name that another lease has is not removed. It takes another one half a minute to come, and more to end, so
        // that its name could be this one's.
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner).take();
        if seen.is_some_and(|seen| seen.elapsed() < BEAT) || self.check().is_ok() {
            // While it is open: libfuse renames it then, and removes it when it is closed. Of a file that was closed a
            // moment before it may not have heard, and the renamed file would stay.
            let _ = self.folder.remove(&name(self.number));
        }
    }
}

/// Need of a lease for room in its folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    Needed,
    Dispensable,
}

fn is_no_room(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn name(number: u64) -> String {
    format!("{LEASE}{number:06}")
}

/// Sees to it that no run goes on with the files of an incomplete point: a holder that was only suspended may still
/// write to them. Without its journal a draft is nothing, and the next run removes its files, which a writer that has
/// them open keeps for itself. Files that have the names of a point's already are removed here: no run knows them for a
/// draft's without a journal. Where a manifest has its name too, they are a point.
fn disown(folder: &dyn Folder) -> Result<()> {
    let names = folder.names().map_err(BackupError::folder("reading", &folder.show("")))?;
    let remove =
        |name: &str| folder.remove(name).map_err(BackupError::folder("removing", &folder.show(name)));
    for journal in names.iter().filter(|name| is_journal(name)) {
        let stem = journal.split('.').next().unwrap_or_default();
        let manifests = manifest_names(stem);
        // First, so that a holder that goes on makes no point of what is removed.
        manifests.iter().try_for_each(|manifest| remove(&format!("{manifest}{INCOMPLETE}")))?;
        let is_point = is_there(folder, &manifests[0])? || is_there(folder, &manifests[1])?;
        for file in [disk_name(stem), leaves_name(stem)].iter().filter(|_| !is_point) {
            release(folder, file);
            remove(file)?;
        }
        remove(journal)?;
    }
    folder.sync().map_err(BackupError::folder("writing", &folder.show("")))
}

/// Looks for a file by its name.
fn is_there(folder: &dyn Folder, name: &str) -> Result<bool> {
    match folder.open(name, false) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(BackupError::folder("reading", &folder.show(name))(error)),
    }
}

/// Numbers of the leases that there are, in order.
fn numbers(folder: &dyn Folder) -> Result<Vec<u64>> {
    let names = folder.names_with(LEASE).map_err(BackupError::folder("reading", &folder.show("")))?;
    let parsed = names.iter().filter_map(|found| found.strip_prefix(LEASE)?.parse().ok());
    let mut numbers: Vec<u64> = parsed.filter(|number| names.contains(&name(*number))).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// `None`: it has gone.
fn read(folder: &dyn Folder, name: &str) -> Result<Option<Found>> {
    match read_small(folder, name, LEASE_MAX) {
        Ok(bytes) => {
            let (beat, json) = bytes.split_at_checked(BEAT_LEN as usize).unwrap_or_default();
            let beat = beat.try_into().map_or(0, u64::from_le_bytes);
            Ok(Some(Found { beat, holder: serde_json::from_slice(json).ok() }))
        }
        Err(BackupError::Folder { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Writes the first beat, and the holder.
pub(crate) fn write(file: &Open, holder: &Holder) -> io::Result<()> {
    let json = serde_json::to_vec(holder).unwrap_or_default();
    file.write_at(0, &[&[0; BEAT_LEN as usize], &json[..]].concat())
}

/// Waits until a lease, the file `name`, may be taken over. `None`: its holder has given it back.
pub(crate) fn wait_until_stale(
    folder: &dyn Folder,
    name: &str,
    us: &Holder,
    is_cancelled: &dyn Fn() -> bool,
) -> Result<Option<Stale>> {
    let Some(mut last) = read(folder, name)? else { return Ok(None) };
    let told = |found: &Found| match &found.holder {
        Some(holder) => format!("process {} on {}", holder.process, holder.host),
        None => "another process".to_owned(),
    };
    // A file without a holder was left by a kill between two steps, or is being written.
    if last.holder.as_ref().is_none_or(|holder| holder.machine == us.machine) {
        let lock = folder.lock(name);
        if let Ok(None) = lock {
            return Err(BackupError::InUse { holder: told(&last) });
        }
        let has_ended = |holder: &Holder| match folder.mount_of_locks() {
            None => true,
            mount => holder.mount == mount && holder.has_ended_here(us),
        };
        if lock.is_ok() && last.holder.as_ref().is_some_and(has_ended) {
            return Ok(Some(Stale { found: last, has_ended: true }));
        }
    }
    let mut since = Instant::now();
    let begun = Instant::now();
    while since.elapsed() < if last.holder.is_some() { PATIENCE } else { PATIENCE_UNWRITTEN } {
        if is_cancelled() {
            return Err(BackupError::Cancelled);
        }
        thread::sleep(BEAT / 10);
        let Some(found) = read(folder, name)? else { return Ok(None) };
        if found.beat != last.beat {
            if begun.elapsed() > BEAT / 2 && last.holder == found.holder {
                return Err(BackupError::InUse { holder: told(&found) });
            }
            since = Instant::now();
        }
        last = found;
    }
    let has_ended = last.holder.as_ref().is_none_or(|holder| holder.has_ended_with_its_machine(us));
    Ok(Some(Stale { found: last, has_ended }))
}

/// Counts a beat in a lease until the sender is dropped.
pub(crate) fn beat(file: &Open, ended: &mpsc::Receiver<()>) {
    let mut count = 0u64;
    while ended.recv_timeout(BEAT) == Err(RecvTimeoutError::Timeout) {
        count += 1;
        // A share that stalls is the run's to notice.
        let _ = file.write_at(0, &count.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::HostFolder;

    fn holder(machine: &str, nonce: u64) -> Holder {
        Holder { machine: machine.into(), host: machine.into(), process: 1, nonce, ..Holder::default() }
    }

    /// A machine in one of its starts.
    fn started(machine: &str, start: u32, nonce: u64) -> Holder {
        Holder { machine: format!("{machine} {start}"), lasting: machine.into(), ..holder("host", nonce) }
    }

    #[test]
    fn a_start_of_the_same_machine_goes_on_with_the_files_of_its_last_one_and_no_other_machine_does() {
        let journal =
            crate::point_files::journal_name(&crate::point_id::stem(1, crate::point_id::PointId(7)));
        let other_name = Holder { host: "clone".into(), ..started("a", 2, 2) };
        let unknown = Holder { lasting: String::new(), ..started("a", 2, 2) };
        let takers =
            [(started("a", 2, 2), true), (other_name, false), (started("b", 1, 2), false), (unknown, false)];
        // Each waits for half a minute: all at once.
        thread::scope(|scope| {
            for (taker, goes_on) in takers {
                let journal = &journal;
                scope.spawn(move || {
                    let place = tempfile::tempdir().unwrap();
                    let folder = HostFolder::open(place.path()).unwrap();
                    let mut cut = Lease::take(&folder, started("a", 1, 1), &|| false).unwrap();
                    folder.create(journal).unwrap();
                    drop(cut.end.take());
                    drop(cut.beats.take().map(JoinHandle::join));
                    cut._lock = None;
                    let next = Lease::take(&folder, taker.clone(), &|| false).unwrap();
                    assert_eq!(folder.names().unwrap().contains(journal), goes_on, "{taker:?}");
                    next.check().unwrap();
                });
            }
        });
    }

    #[test]
    fn one_of_two_writers_has_the_folder_and_its_end_frees_it() {
        let place = tempfile::tempdir().unwrap();
        let folder = HostFolder::open(place.path()).unwrap();
        let first = Lease::take(&folder, holder("a", 1), &|| false).unwrap();
        first.check().unwrap();
        let second = Lease::take(&folder, holder("a", 2), &|| false);
        assert!(matches!(second, Err(BackupError::InUse { .. })));
        drop(first);
        assert_eq!(folder.names().unwrap(), Vec::<String>::new());
        Lease::take(&folder, holder("a", 3), &|| false).unwrap().check().unwrap();
    }

    /// Difference between a folder and what a taker sees of it.
    #[derive(PartialEq)]
    enum Altered {
        /// It sees no locks, as through another mount of a share.
        NoLocks,
        /// Others take leases behind its first look.
        TakenBehind,
    }

    struct AlteredFolder(Altered, HostFolder);

    impl AlteredFolder {
        fn open(altered: Altered, path: &std::path::Path) -> Self {
            Self(altered, HostFolder::open(path).unwrap())
        }
    }

    impl Folder for AlteredFolder {
        fn names(&self) -> io::Result<Vec<String>> {
            let names = self.1.names()?;
            if self.0 == Altered::TakenBehind && names.is_empty() {
                write(&self.1.create(&name(3))?, &holder("other", 3))?;
            }
            Ok(names)
        }

        fn create(&self, name: &str) -> io::Result<Open> {
            self.1.create(name)
        }

        fn open(&self, name: &str, writable: bool) -> io::Result<Open> {
            self.1.open(name, writable)
        }

        fn rename(&self, from: &str, to: &str) -> io::Result<()> {
            self.1.rename(from, to)
        }

        fn remove(&self, name: &str) -> io::Result<()> {
            self.1.remove(name)
        }

        fn sync(&self) -> io::Result<()> {
            self.1.sync()
        }

        fn set_read_only(&self, name: &str, read_only: bool) -> io::Result<()> {
            self.1.set_read_only(name, read_only)
        }

        fn lock(&self, name: &str) -> io::Result<Option<Lock>> {
            match self.0 {
                Altered::NoLocks => Ok(Some(Box::new(()))),
                Altered::TakenBehind => self.1.lock(name),
            }
        }

        fn mount_of_locks(&self) -> Option<u64> {
            (self.0 == Altered::NoLocks).then_some(7)
        }
    }

    #[test]
    fn a_holder_whose_lock_is_not_seen_is_alive_as_long_as_it_beats() {
        let place = tempfile::tempdir().unwrap();
        let folder = HostFolder::open(place.path()).unwrap();
        let other = AlteredFolder::open(Altered::NoLocks, place.path());
        let first = Lease::take(&folder, holder("a", 1), &|| false).unwrap();
        let second = Lease::take(&other, holder("a", 2), &|| false);
        assert!(matches!(second, Err(BackupError::InUse { .. })));
        first.check().unwrap();
    }

    #[test]
    fn a_holder_whose_lock_is_not_seen_is_taken_over_at_once_when_its_process_is_gone() {
        let place = tempfile::tempdir().unwrap();
        let folder = AlteredFolder::open(Altered::NoLocks, place.path());
        let us = Holder::this_process(0xa11e_0011);
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let ours = |nonce| Holder { mount: Some(7), ..Holder::this_process(nonce) };
        let killed = Holder { process: child.id(), ..ours(0xa11e_0012) };
        child.wait().unwrap();
        let journal =
            crate::point_files::journal_name(&crate::point_id::stem(1, crate::point_id::PointId(7)));
        // No other test's nonces. A process that is gone, and a run of this one that could not remove its lease.
        for ended in [killed.clone(), ours(0xa11e_0013)] {
            write(&folder.create(&name(1)).unwrap(), &ended).unwrap();
            folder.create(&journal).unwrap();
            let next = Lease::take(&folder, us.clone(), &|| panic!("it waits")).unwrap();
            assert!(
                folder.names().unwrap().contains(&journal),
                "its holder writes no more: it is gone on with"
            );
            drop(next);
            folder.remove(&journal).unwrap();
        }
        // One that wrote through another mount, whose last writes may come behind ours.
        write(&folder.create(&name(1)).unwrap(), &Holder { mount: Some(8), ..killed }).unwrap();
        let next = Lease::take(&folder, us.clone(), &|| true);
        assert!(matches!(next, Err(BackupError::Cancelled)), "it waits");
        folder.remove(&name(1)).unwrap();
        // A run of this process that has it.
        let first = Lease::take(&folder, Holder::this_process(0xa11e_0014), &|| false).unwrap();
        let second = Lease::take(&folder, us, &|| false);
        assert!(matches!(second, Err(BackupError::InUse { .. })));
        first.check().unwrap();
    }

    #[test]
    fn who_was_suspended_before_it_made_its_lease_sees_that_others_took_several() {
        let place = tempfile::tempdir().unwrap();
        let folder = AlteredFolder::open(Altered::TakenBehind, place.path());
        // It makes lease 1 while another writer has lease 3, and there is no lease 2.
        let taken = Lease::take(&folder, holder("a", 1), &|| false);
        assert!(matches!(taken, Err(BackupError::LeaseLost)));
        assert!(folder.names().unwrap().contains(&name(3)));
    }

    #[test]
    fn of_a_draft_that_is_taken_over_nothing_is_left_that_no_run_knows() {
        let place = tempfile::tempdir().unwrap();
        let folder = HostFolder::open(place.path()).unwrap();
        let stem = crate::point_id::stem(2, crate::point_id::PointId(7));
        let [copy, first] = manifest_names(&stem);
        let journal = crate::point_files::journal_name(&stem);
        let files = [disk_name(&stem), leaves_name(&stem)];
        let make = |more: &[String]| {
            files.iter().chain(more).chain([&journal]).for_each(|name| drop(folder.create(name).unwrap()));
        };
        let manifests = [format!("{copy}{INCOMPLETE}"), format!("{first}{INCOMPLETE}")];
        make(&manifests);
        disown(&folder).unwrap();
        assert_eq!(folder.names().unwrap(), [""; 0]);
        // From the first manifest on it is a point.
        make(&[copy.clone(), manifests[1].clone()]);
        disown(&folder).unwrap();
        let mut left = folder.names().unwrap();
        left.sort();
        let mut point = [&files[..], &[copy]].concat();
        point.sort();
        assert_eq!(left, point);
    }

    #[test]
    fn damage_that_another_writer_has_made_is_told_as_the_loss_of_the_lease() {
        let place = tempfile::tempdir().unwrap();
        let folder = HostFolder::open(place.path()).unwrap();
        let mut first = Lease::take(&folder, holder("a", 1), &|| false).unwrap();
        let damage =
            || BackupError::Damaged { point: crate::point_id::PointId(7), what: "a file is missing".into() };
        assert!(matches!(first.explain(damage()), BackupError::Damaged { .. }));
        first._lock = None;
        let _second = Lease::take(&folder, holder("a", 2), &|| false).unwrap();
        assert!(matches!(first.explain(damage()), BackupError::LeaseLost));
        let ended = BackupError::PruneEnded { points: Vec::new(), packs: 3, error: Box::new(damage()) };
        let BackupError::PruneEnded { packs: 3, error, .. } = first.explain(ended) else {
            panic!("another error")
        };
        assert!(matches!(*error, BackupError::LeaseLost));
        assert!(matches!(first.explain(BackupError::Cancelled), BackupError::Cancelled));
    }

    #[test]
    fn a_holder_that_was_suspended_through_several_takings_notices_itself() {
        let place = tempfile::tempdir().unwrap();
        let folder = HostFolder::open(place.path()).unwrap();
        let mut first = Lease::take(&folder, holder("a", 1), &|| false).unwrap();
        first._lock = None;
        let mut second = Lease::take(&folder, holder("a", 2), &|| false).unwrap();
        second._lock = None;
        let third = Lease::take(&folder, holder("a", 3), &|| false).unwrap();
        assert_eq!(folder.names().unwrap(), [name(3)]);
        for lost in [&first, &second] {
            assert!(matches!(lost.check(), Err(BackupError::LeaseLost)));
        }
        third.check().unwrap();
        // A taker that was killed before it removed the lease that it took over.
        folder.create(&name(4)).unwrap();
        assert!(matches!(third.check(), Err(BackupError::LeaseLost)));
    }

    #[test]
    fn a_killed_holder_of_this_machine_is_noticed_at_once_and_a_suspended_one_notices_itself() {
        let place = tempfile::tempdir().unwrap();
        let folder = HostFolder::open(place.path()).unwrap();
        let mut first = Lease::take(&folder, holder("a", 1), &|| false).unwrap();
        // What a kill leaves: the file, and no lock on it.
        first._lock = None;
        let second = Lease::take(&folder, holder("a", 2), &|| false).unwrap();
        assert!(matches!(first.check(), Err(BackupError::LeaseLost)));
        drop(first);
        second.check().unwrap();
        // What an unmounted share shows: a folder without it.
        folder.remove(&name(second.number)).unwrap();
        assert!(matches!(second.check(), Err(BackupError::LeaseGone)));
    }

    #[test]
    fn who_takes_over_from_a_silent_machine_goes_on_with_none_of_its_files() {
        let place = tempfile::tempdir().unwrap();
        let folder = HostFolder::open(place.path()).unwrap();
        let journal =
            crate::point_files::journal_name(&crate::point_id::stem(1, crate::point_id::PointId(7)));
        let mut suspended = Lease::take(&folder, holder("a", 1), &|| false).unwrap();
        folder.create(&journal).unwrap();
        drop(suspended.end.take());
        drop(suspended.beats.take().map(JoinHandle::join));
        // A restart of the same machine's holder goes on with them.
        suspended._lock = None;
        drop(Lease::take(&folder, holder("a", 2), &|| false).unwrap());
        assert_eq!(folder.names().unwrap(), std::slice::from_ref(&journal));

        let mut suspended = Lease::take(&folder, holder("a", 3), &|| false).unwrap();
        drop(suspended.end.take());
        drop(suspended.beats.take().map(JoinHandle::join));
        let next = Lease::take(&folder, holder("b", 4), &|| false).unwrap();
        assert!(matches!(suspended.check(), Err(BackupError::LeaseLost)));
        assert!(!folder.names().unwrap().contains(&journal), "a draft that may still be written to");
        next.check().unwrap();
    }

    #[test]
    fn a_beating_holder_of_another_machine_is_respected() {
        let place = tempfile::tempdir().unwrap();
        let folder = HostFolder::open(place.path()).unwrap();
        let _first = Lease::take(&folder, holder("a", 1), &|| false).unwrap();
        let second = Lease::take(&folder, holder("b", 2), &|| false);
        assert!(matches!(second, Err(BackupError::InUse { .. })));
    }
}
