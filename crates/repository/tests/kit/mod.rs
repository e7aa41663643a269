//! What the tests share: repositories on the crash kit and on the host, runs into them, points against a model.

#![allow(dead_code, reason = "each test takes a part of it")]

#[path = "../../../backup/tests/support/mod.rs"]
pub(crate) mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use lunway_backup::{
    BackupError, Content, Folder, Lease, Lock, Open, PointId, Report, Retention, Target, Verification,
    restore_content,
};
use lunway_crash::Directory;
use lunway_memory::RamDisk;
use lunway_repository::{
    Identity, Kept, Places, Pruned, Repository, RepositoryPoint, RunOutcome, Series, prune, run, verify,
};
use support::crashing::Crashing;
use support::{How, block_on, contents, guids, holder};

#[allow(unused_imports, reason = "each test takes a part of it")]
pub(crate) use support::{MIB, Random, Source, amount, assert_same};

pub(crate) type Model = BTreeMap<PointId, Vec<u8>>;

/// A folder in a folder: its names have a prefix there.
struct Prefixed {
    inner: Arc<dyn Folder>,
    prefix: String,
}

impl Prefixed {
    fn at(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }
}

impl Folder for Prefixed {
    fn names(&self) -> io::Result<Vec<String>> {
        let names = self.inner.names()?;
        Ok(match self.prefix.is_empty() {
            true => names.into_iter().filter(|name| !name.contains('~')).collect(),
            false => {
                names.iter().filter_map(|name| name.strip_prefix(&self.prefix)).map(str::to_owned).collect()
            }
        })
    }

    fn create(&self, name: &str) -> io::Result<Open> {
        self.inner.create(&self.at(name))
    }

    fn open(&self, name: &str, writable: bool) -> io::Result<Open> {
        self.inner.open(&self.at(name), writable)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.inner.rename(&self.at(from), &self.at(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.inner.remove(&self.at(name))
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.sync()
    }

    fn set_read_only(&self, name: &str, read_only: bool) -> io::Result<()> {
        self.inner.set_read_only(&self.at(name), read_only)
    }

    fn lock(&self, name: &str) -> io::Result<Option<Lock>> {
        self.inner.lock(&self.at(name))
    }
}

/// A repository in a directory of the crash kit.
pub(crate) struct CrashingPlaces(pub(crate) Directory);

impl CrashingPlaces {
    fn folder(&self, prefix: &str) -> Arc<dyn Folder> {
        let inner = Arc::new(Crashing(self.0.clone()));
        Arc::new(Prefixed { inner, prefix: prefix.to_owned() })
    }
}

impl Places for CrashingPlaces {
    fn packs(&self) -> Arc<dyn Folder> {
        self.folder("")
    }

    fn series(&self) -> io::Result<Vec<String>> {
        let names = self.0.names();
        let series = names.iter().filter_map(|name| Some(name.split_once('~')?.0.to_owned()));
        Ok(series.collect::<BTreeSet<_>>().into_iter().collect())
    }

    fn strangers(&self) -> io::Result<Vec<String>> {
        Ok(Vec::new())
    }

    fn of_series(&self, name: &str) -> io::Result<Arc<dyn Folder>> {
        Ok(self.folder(&format!("{name}~")))
    }

    fn begin_series(&self, name: &str) -> io::Result<Arc<dyn Folder>> {
        self.of_series(name)
    }
}

/// The key of a test's repository, if it is encrypted.
pub(crate) fn identity(is_encrypted: bool) -> Vec<Identity> {
    let text = format!("LUNWAY-SECRET-KEY-{}", "5a".repeat(32));
    if is_encrypted { vec![Identity::parse(&text).unwrap()] } else { Vec::new() }
}

pub(crate) fn make(places: &dyn Places, is_encrypted: bool) {
    let recipients: Vec<_> = identity(is_encrypted).iter().map(Identity::recipient).collect();
    Repository::create(places, None, &recipients, &holder(0x1417)).unwrap();
}

pub(crate) fn open(places: Arc<dyn Places>) -> Repository {
    Repository::open(places, Kept::default(), &identity(true)).unwrap_or_else(|error| panic!("{error}"))
}

pub(crate) fn crashing(directory: &Directory) -> Repository {
    open(Arc::new(CrashingPlaces(directory.clone())))
}

/// A new repository in a directory of the crash kit.
pub(crate) fn new_directory(is_encrypted: bool) -> Directory {
    let directory = Directory::default();
    make(&CrashingPlaces(directory.clone()), is_encrypted);
    directory.at_rest()
}

pub(crate) fn back_up(
    repository: &Repository,
    series: &str,
    source: &Source,
    how: How<'_>,
) -> Result<RunOutcome, BackupError> {
    back_up_as(repository, series, source, how, false)
}

/// The same; `is_renamed`: the disk is the one of the series, whatever that was called.
pub(crate) fn back_up_as(
    repository: &Repository,
    series: &str,
    source: &Source,
    how: How<'_>,
    is_renamed: bool,
) -> Result<RunOutcome, BackupError> {
    let series = Series::of(repository.clone(), series, true).unwrap();
    let lease = Lease::take(&*series.folder, holder(how.seed), &|| false)?;
    let guids = guids(how.seed ^ 0x5eed);
    let mut request = how.request(&source.disk, source.epoch);
    request.rename_source = is_renamed;
    block_on(run(&series, &lease, &guids, request, &mut |_| ()))
}

/// A run that compares everything.
pub(crate) fn compare(repository: &Repository, series: &str, source: &mut Source, seed: u64) -> RunOutcome {
    let changed = source.unknown();
    back_up(repository, series, source, How::new(changed, seed)).unwrap_or_else(|error| panic!("{error}"))
}

/// A run that knows what changed.
pub(crate) fn follow(repository: &Repository, series: &str, source: &mut Source, seed: u64) -> RunOutcome {
    let changed = source.known();
    back_up(repository, series, source, How::new(changed, seed)).unwrap_or_else(|error| panic!("{error}"))
}

/// All bytes of a point, as a restore gives them.
pub(crate) fn restored(repository: &Repository, point: &RepositoryPoint) -> Result<Vec<u8>, BackupError> {
    let content: Arc<dyn Content> = Arc::new(repository.content(point)?);
    let disk = RamDisk::new(content.size(), 512).unwrap();
    block_on(restore_content(&content, None, Target::Blank, &disk, &|| false, &mut |_| ()))?;
    Ok(contents(&disk))
}

/// Points of all series, each compared with the model.
pub(crate) fn check(repository: &Repository, model: &Model, context: &str) -> BTreeSet<PointId> {
    let mut found = BTreeSet::new();
    for (name, points) in repository.all_points().unwrap_or_else(|error| panic!("{context}: {error}")) {
        assert!(points.unreadable.is_empty(), "{context}: {name}: {:?}", points.unreadable);
        for point in points.points() {
            let id = point.point;
            let bytes =
                restored(repository, point).unwrap_or_else(|error| panic!("{context}: {id}: {error}"));
            let expected =
                model.get(&id).unwrap_or_else(|| panic!("{context}: point {id} came from nowhere"));
            assert_same(&bytes, expected, &format!("{context}, point {id}"));
            found.insert(id);
        }
    }
    found
}

/// A verification of everything, noted.
pub(crate) fn verified(repository: &Repository) -> Report {
    let all = repository.all_points().unwrap();
    let report = verify(repository, &all, Verification::default(), &|| false, &mut |_, _| ()).unwrap();
    for (name, points) in &all {
        report.note_series(repository, name, points).unwrap();
    }
    report.note_packs(repository).unwrap();
    report.report
}

pub(crate) fn sound(repository: &Repository, context: &str) {
    let report = verified(repository);
    assert!(report.findings.is_empty() && report.remarks.is_empty(), "{context}: {report:?}");
    let left = repository.places().packs().names().unwrap().into_iter().find(|name| {
        ["incomplete", "lease-", "writer-", "sweeper-", "dying"].iter().any(|part| name.contains(part))
    });
    assert_eq!(left, None, "{context}");
}

pub(crate) fn pruned(
    repository: &Repository,
    series: &str,
    last: usize,
    seed: u64,
) -> Result<Pruned, BackupError> {
    let series = Series::of(repository.clone(), series, false).unwrap();
    let lease = Lease::take_without_room(&*series.folder, holder(seed), &|| false)?;
    let retention = Retention { last, ..Retention::default() };
    prune(&series, &lease, &retention, &mut |_, _| true)
}
