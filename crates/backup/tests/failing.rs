//! Reads that fail, as those of a share that was cut: what was under way stops and says so, nothing is taken for
//! damaged, and the next run goes on as if nothing had been.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;

use lunway_backup::{
    BackupError, Catalogue, Folder, Lease, Notes, Outcome, PointId, PointKind, Retention, Verification,
    prune, verify,
};
use lunway_crash::Directory;
use support::crashing::Crashing;
use support::failing::{Failing, Failures};
use support::{How, MIB, Random, Source, amount, assert_same, back_up, guids, holder, restored};

type Model = BTreeMap<PointId, Vec<u8>>;

const SIZE: u64 = 2 * MIB + 512;

fn folder(directory: &Directory) -> Arc<dyn Folder> {
    Arc::new(Crashing(directory.clone()))
}

fn failing(directory: &Directory, failures: &Arc<Failures>) -> Arc<dyn Folder> {
    Arc::new(Failing { inner: folder(directory), failures: Arc::clone(failures) })
}

/// Five points, all of them verified.
fn chain(source: &mut Source) -> (Directory, Model) {
    let (directory, mut model) = (Directory::default(), Model::new());
    let mut random = Random::new(amount("LUNWAY_BACKUP_SEED", 1));
    for seed in 1..6 {
        source.change(&mut random, 4);
        let how = How::new(source.unknown(), seed);
        let point = back_up(&folder(&directory), &source.disk, source.epoch, how).unwrap().manifest.point;
        model.insert(point, source.model.clone());
    }
    let there = folder(&directory);
    let catalogue = Catalogue::load(&*there).unwrap();
    let report = verify(&*there, &catalogue, Verification::default(), &|| false, &mut |_, _| ()).unwrap();
    report.note(&*there, &Verification::default()).unwrap();
    assert_eq!(report.whole.len(), 5);
    (directory.at_rest(), model)
}

/// A run of the source as it is.
fn run(
    folder: &Arc<dyn Folder>,
    source: &mut Source,
    state: Option<&str>,
    seed: u64,
) -> Result<Outcome, BackupError> {
    let how = How { state: state.map(str::to_owned), ..How::new(source.unknown(), seed) };
    back_up(folder, &source.disk, source.epoch, how)
}

/// An error of the folder, not of a point.
fn assert_cut(error: &BackupError, context: &str) {
    assert!(error.to_string().contains("the share was cut"), "{context}: {error}");
    assert!(!matches!(error, BackupError::Damaged { .. }), "{context}: {error}");
}

fn assert_sound(directory: &Directory, model: &Model, context: &str) {
    let there = folder(directory);
    assert!(Notes::load(&*there).unwrap().damage.is_empty(), "{context}");
    let catalogue = Catalogue::load(&*there).unwrap();
    assert!(catalogue.unreadable().is_empty(), "{context}");
    for point in catalogue.points() {
        let id = point.manifest.point;
        let expected = model.get(&id).unwrap_or_else(|| panic!("{context}: {id} came from nowhere"));
        assert_same(&restored(&there, id).unwrap(), expected, context);
    }
}

/// Numbers of the reads that fail one after the other: all of them, or where there are many a part.
fn each(reads: u64) -> impl Iterator<Item = u64> {
    let stride = (reads / amount("LUNWAY_BACKUP_CUTS", 20)).max(1);
    println!("{reads} reads, each {stride}th fails");
    (amount("LUNWAY_BACKUP_SEED", 1) % stride..reads).step_by(stride as usize)
}

#[test]
fn a_run_of_which_any_read_fails_stops_and_the_next_one_is_an_increment() {
    let mut source = Source::new(SIZE);
    let (sound, model) = chain(&mut source);
    source.change(&mut Random::new(9), 3);
    let failures = Failures::none();
    let counted = sound.at_rest();
    run(&failing(&counted, &failures), &mut source, None, 9).unwrap();
    for number in each(failures.count()) {
        for (last, what) in [(number, "one"), (u64::MAX, "all from here")] {
            let context = format!("read {number} fails, {what}");
            let directory = sound.at_rest();
            failures.set(number, last);
            let cut = failing(&directory, &failures);
            let mut model = model.clone();
            match run(&cut, &mut source, None, 9) {
                Err(error) => assert_cut(&error, &context),
                // A lease that could not be looked at when it ended, and the like.
                Ok(outcome) => {
                    assert_eq!(
                        outcome.manifest.kind,
                        PointKind::Increment,
                        "{context}: {}",
                        outcome.manifest.why
                    );
                    model.insert(outcome.manifest.point, source.model.clone());
                }
            }
            let verified = Notes::load(&*folder(&directory)).unwrap().verified;
            assert_eq!(verified.len(), 5, "{context}: marks are kept");
            let next = run(&folder(&directory), &mut source, None, 10).unwrap().manifest;
            assert_eq!(next.kind, PointKind::Increment, "{context}: {}", next.why);
            // The first one was sealed where only what follows that failed.
            let catalogue = Catalogue::load(&*folder(&directory)).unwrap();
            for point in catalogue.points().iter().rev().take(2) {
                model.entry(point.manifest.point).or_insert_with(|| source.model.clone());
            }
            assert_sound(&directory, &model, &context);
        }
    }
}

#[test]
fn an_incomplete_point_that_cannot_be_read_now_is_not_removed() {
    let mut source = Source::new(SIZE);
    let (directory, _) = chain(&mut source);
    source.change(&mut Random::new(9), 12);
    let asked = std::sync::atomic::AtomicU64::new(0);
    let second = || asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) >= 1;
    let state = Some("a snapshot");
    let cancelled =
        How { is_cancelled: &second, state: state.map(str::to_owned), ..How::new(source.unknown(), 9) };
    let cancelled = back_up(&folder(&directory), &source.disk, 1, cancelled);
    assert!(matches!(cancelled, Err(BackupError::Cancelled)), "{cancelled:?}");
    let sound = directory.at_rest();
    let failures = Failures::none();
    run(&failing(&sound.at_rest(), &failures), &mut source, state, 10).unwrap();
    for number in each(failures.count()) {
        let context = format!("read {number} fails");
        let directory = sound.at_rest();
        failures.set(number, u64::MAX);
        if let Err(error) = run(&failing(&directory, &failures), &mut source, state, 10) {
            assert_cut(&error, &context);
            let was_sealed = Catalogue::load(&*folder(&directory)).unwrap().points().len() > 5;
            let next = run(&folder(&directory), &mut source, state, 11).unwrap();
            let went_on = next.notes.iter().any(|note| note.contains("was continued"));
            assert!(went_on || was_sealed, "{context}: {error}: {:?}", next.notes);
        }
    }
}

#[test]
fn files_that_the_server_holds_for_a_client_that_is_gone_stop_no_run_and_go_with_a_later_one() {
    let incomplete = |directory: &Directory| -> Vec<String> {
        let names = folder(directory).names().unwrap().into_iter();
        names.filter(|name| name.ends_with(".incomplete")).collect()
    };
    for changes in ["nothing", "the disk's size"] {
        let mut source = Source::new(SIZE);
        let (directory, mut model) = chain(&mut source);
        source.change(&mut Random::new(9), 12);
        let asked = std::sync::atomic::AtomicU64::new(0);
        let second = || asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) >= 1;
        let cancelled = How { is_cancelled: &second, ..How::new(source.unknown(), 9) };
        back_up(&folder(&directory), &source.disk, 1, cancelled).unwrap_err();
        let left = incomplete(&directory);
        assert!(left.len() >= 3, "{left:?}");
        let failures = Failures::none();
        failures.set_busy(left.clone());
        if changes == "the disk's size" {
            source.resize(SIZE + MIB);
        }
        let made = run(&failing(&directory, &failures), &mut source, None, 10).unwrap();
        model.insert(made.manifest.point, source.model.clone());
        assert_sound(&directory, &model, changes);
        failures.set_busy(Vec::new());
        source.change(&mut Random::new(10), 2);
        let next = run(&failing(&directory, &failures), &mut source, None, 11).unwrap();
        model.insert(next.manifest.point, source.model.clone());
        assert_sound(&directory, &model, changes);
        assert_eq!(incomplete(&directory), Vec::<String>::new(), "{changes}");
    }
}

#[test]
fn a_verification_reads_again_and_ends_where_that_fails_too() {
    let mut source = Source::new(SIZE);
    let (directory, _) = chain(&mut source);
    let failures = Failures::none();
    let there = failing(&directory, &failures);
    let catalogue = Catalogue::load(&*there).unwrap();
    let verified = || verify(&*there, &catalogue, Verification::default(), &|| false, &mut |_, _| ());
    failures.set(u64::MAX, 0);
    verified().unwrap();
    for number in each(failures.count()) {
        failures.set(number, number);
        let report = verified().unwrap_or_else(|error| panic!("read {number}: {error}"));
        assert_eq!((report.findings.len(), report.whole.len()), (0, 5), "read {number}");
        failures.set(number, u64::MAX);
        match verified() {
            Err(error) => assert_cut(&error, &format!("all from read {number}")),
            Ok(report) => panic!("all from read {number}: {report:?}"),
        }
    }
}

#[test]
fn a_prune_of_which_any_read_fails_stops_and_removes_nothing_that_is_needed() {
    let mut source = Source::new(SIZE);
    let (sound, model) = chain(&mut source);
    let retention = Retention { last: 2, ..Retention::default() };
    let prune = |folder: &dyn Folder| {
        let lease = Lease::take(folder, holder(9), &|| false)?;
        prune(folder, &lease, &guids(9), &retention, &mut |_, _, _| true)
    };
    let failures = Failures::none();
    let pruned = sound.at_rest();
    let steps = prune(&*failing(&pruned, &failures)).unwrap();
    assert_eq!(Catalogue::load(&*folder(&pruned)).unwrap().points().len(), 2);
    for number in each(failures.count()) {
        let context = format!("all from read {number} fail");
        let directory = sound.at_rest();
        failures.set(number, u64::MAX);
        if let Err(error) = prune(&*failing(&directory, &failures)) {
            assert_cut(&error, &context);
            assert_sound(&directory, &model, &context);
        }
        let again = prune(&*folder(&directory)).unwrap_or_else(|error| panic!("{context}: {error}"));
        assert!(again.is_empty() || again == steps, "{context}: {again:?}");
        assert_eq!(Catalogue::load(&*folder(&directory)).unwrap().points().len(), 2, "{context}");
        assert_sound(&directory, &model, &context);
    }
}
