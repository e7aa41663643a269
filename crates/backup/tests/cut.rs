//! Kills and power cuts at every step of a run and of a prune: every point that was there stays what it was, and the
//! next run makes a right one.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;

use lunway_backup::{
    Catalogue, Folder, Lease, Outcome, PointId, Retention, Verification, leftovers, prune, remove_leftovers,
    verify,
};
use lunway_crash::Directory;
use support::crashing::Crashing;
use support::cuts::{crashed, cuts};
use support::{How, MIB, Random, Source, amount, assert_same, back_up, guids, holder, restored};

type Model = BTreeMap<PointId, Vec<u8>>;

const SIZE: u64 = 3 * MIB + 512;

fn folder(directory: &Directory) -> Arc<dyn Folder> {
    Arc::new(Crashing(directory.clone()))
}

/// Points of a folder, each compared with the model.
fn check(directory: &Directory, model: &Model, context: &str) -> Vec<PointId> {
    let folder = folder(directory);
    let catalogue = Catalogue::load(&*folder).unwrap_or_else(|error| panic!("{context}: {error}"));
    assert!(catalogue.unreadable().is_empty(), "{context}: {:?}", catalogue.unreadable());
    let points: Vec<PointId> = catalogue.points().iter().map(|point| point.manifest.point).collect();
    for point in &points {
        let found = restored(&folder, *point).unwrap_or_else(|error| panic!("{context}: {error}"));
        let expected =
            model.get(point).unwrap_or_else(|| panic!("{context}: point {point} came from nowhere"));
        assert_same(&found, expected, &format!("{context}, point {point}"));
    }
    points
}

fn sound(directory: &Directory, context: &str) {
    let folder = folder(directory);
    let catalogue = Catalogue::load(&*folder).unwrap();
    let report = verify(&*folder, &catalogue, Verification::default(), &|| false, &mut |_, _| ()).unwrap();
    assert!(report.findings.is_empty() && report.remarks.is_empty(), "{context}: {report:?}");
    let left =
        directory.names().into_iter().find(|name| name.contains("incomplete") || name.starts_with("lease"));
    assert_eq!(left, None, "{context}");
}

/// A run of the source as it is.
fn run(directory: &Directory, source: &mut Source, state: Option<&str>, seed: u64) -> Outcome {
    let changed = source.unknown();
    let how = How { state: state.map(str::to_owned), ..How::new(changed, seed) };
    back_up(&folder(directory), &source.disk, source.epoch, how).unwrap_or_else(|error| panic!("{error}"))
}

fn each_cut_of_a_run(base: &Directory, model: &Model, source: &mut Source, state: Option<&str>) {
    let seed = amount("LUNWAY_BACKUP_SEED", 1);
    let mut random = Random::new(seed);
    let recorded = base.at_rest();
    let outcome = run(&recorded, source, state, 100);
    let mut sealed = model.clone();
    sealed.insert(outcome.manifest.point, source.model.clone());
    check(&recorded, &sealed, "the run itself");
    sound(&recorded, "the run itself");
    let before = source.model.clone();
    for (number, steps) in cuts(&recorded, seed).enumerate() {
        for kind in 0..2 {
            let context =
                format!("seed {seed}, cut behind step {steps} ({}), kind {kind}", recorded.describe(steps));
            let mut directory = crashed(&recorded, steps, kind, &mut random);
            let points = check(&directory, &sealed, &context);
            assert!(model.keys().all(|point| points.contains(point)), "{context}: a point is gone");
            let mut model: Model = sealed.clone();
            model.retain(|point, _| points.contains(point));
            if state.is_none() {
                // The disk was used since.
                source.change(&mut random, 2);
            }
            // Every few cuts the next run is cut too, and the one after it goes on.
            if number % 5 == 0 {
                let again = directory.at_rest();
                let outcome = run(&again, source, state, 200);
                let mut twice = model.clone();
                twice.insert(outcome.manifest.point, source.model.clone());
                let steps = (random.next() % (again.steps() as u64 + 1)) as usize;
                let twice_cut = crashed(&again, steps, random.next(), &mut random);
                let context = format!("{context}, cut again behind step {steps} ({})", again.describe(steps));
                let points = check(&twice_cut, &twice, &context);
                model = twice;
                model.retain(|point, _| points.contains(point));
                directory = twice_cut;
                if state.is_none() {
                    source.change(&mut random, 2);
                }
            }
            let outcome = run(&directory, source, state, 300);
            model.insert(outcome.manifest.point, source.model.clone());
            check(&directory, &model, &format!("{context}, next run"));
            sound(&directory, &format!("{context}, next run"));
        }
    }
    // What later tests go on with.
    let _ = before;
}

#[test]
fn a_full_survives_a_cut_at_every_step_and_the_next_run_reads_all_again() {
    let mut source = Source::new(SIZE);
    source.change(&mut Random::new(1), 12);
    each_cut_of_a_run(&Directory::default(), &Model::new(), &mut source, None);
}

#[test]
fn a_full_of_a_frozen_state_goes_on_where_it_was_cut() {
    let mut source = Source::new(SIZE);
    source.change(&mut Random::new(2), 12);
    each_cut_of_a_run(&Directory::default(), &Model::new(), &mut source, Some("snapshot 1"));
}

#[test]
fn an_increment_survives_a_cut_at_every_step() {
    let mut source = Source::new(SIZE);
    let mut random = Random::new(3);
    source.change(&mut random, 12);
    let base = Directory::default();
    let mut model = Model::new();
    for seed in 1..3 {
        let outcome = run(&base, &mut source, None, seed);
        model.insert(outcome.manifest.point, source.model.clone());
        source.change(&mut random, 5);
    }
    each_cut_of_a_run(&base, &model, &mut source, None);
}

#[test]
fn a_prune_survives_a_cut_at_every_step() {
    let seed = amount("LUNWAY_BACKUP_SEED", 1);
    let mut random = Random::new(seed);
    let mut source = Source::new(SIZE);
    let base = Directory::default();
    let mut model = Model::new();
    for number in 1..6 {
        source.change(&mut random, 5);
        let outcome = run(&base, &mut source, None, number);
        model.insert(outcome.manifest.point, source.model.clone());
    }
    let retention = Retention { last: 2, ..Retention::default() };
    let prune = |directory: &Directory| {
        let folder = folder(directory);
        let lease = Lease::take(&*folder, holder(9), &|| false).unwrap();
        prune(&*folder, &lease, &guids(9), &retention, &mut |_, _, _| true).unwrap();
    };
    let recorded = base.at_rest();
    prune(&recorded);
    let kept = check(&recorded, &model, "the prune itself");
    assert_eq!(kept.len(), 2);
    sound(&recorded, "the prune itself");
    for steps in cuts(&recorded, seed) {
        for kind in 0..2 {
            let context =
                format!("seed {seed}, cut behind step {steps} ({}), kind {kind}", recorded.describe(steps));
            let directory = crashed(&recorded, steps, kind, &mut random);
            let points = check(&directory, &model, &context);
            assert!(
                kept.iter().all(|point| points.contains(point)),
                "{context}: a point that is kept is gone"
            );
            prune(&directory);
            assert_eq!(check(&directory, &model, &format!("{context}, pruned again")), kept);
            let outcome = run(&directory, &mut source, None, 50);
            let mut model = model.clone();
            model.insert(outcome.manifest.point, source.model.clone());
            check(&directory, &model, &format!("{context}, next run"));
            sound(&directory, &format!("{context}, next run"));
        }
    }
}

/// What a run that was stopped has left is removed, and the removal is cut: the next run goes on with all of it, or
/// with none.
#[test]
fn a_removal_of_what_a_run_has_left_survives_a_cut_at_every_step() {
    let seed = amount("LUNWAY_BACKUP_SEED", 1);
    let mut random = Random::new(seed);
    let mut source = Source::new(SIZE);
    let base = Directory::default();
    let mut model = Model::new();
    source.change(&mut random, 12);
    let outcome = run(&base, &mut source, None, 1);
    model.insert(outcome.manifest.point, source.model.clone());
    source.change(&mut random, 12);
    let asked = std::sync::atomic::AtomicU64::new(0);
    let second = || asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) >= 1;
    let cancelled = How { is_cancelled: &second, ..How::new(source.unknown(), 2) };
    back_up(&folder(&base), &source.disk, 1, cancelled).unwrap_err();
    let remove = |directory: &Directory| {
        let folder = folder(directory);
        let lease = Lease::take(&*folder, holder(9), &|| false).unwrap();
        remove_leftovers(&*folder, &lease).unwrap()
    };
    let recorded = base.at_rest();
    let left = leftovers(&*folder(&recorded), &Catalogue::load(&*folder(&recorded)).unwrap()).unwrap();
    assert!(left.len() == 1 && left[0].bytes > 0, "{left:?}");
    assert_eq!(remove(&recorded), left);
    sound(&recorded, "the removal itself");
    for steps in cuts(&recorded, seed) {
        for kind in 0..2 {
            let context =
                format!("seed {seed}, cut behind step {steps} ({}), kind {kind}", recorded.describe(steps));
            let directory = crashed(&recorded, steps, kind, &mut random);
            check(&directory, &model, &context);
            let again = directory.at_rest();
            remove(&again);
            sound(&again, &format!("{context}, removed again"));
            let outcome = run(&directory, &mut source, None, 50);
            let mut model = model.clone();
            model.insert(outcome.manifest.point, source.model.clone());
            check(&directory, &model, &format!("{context}, next run"));
            sound(&directory, &format!("{context}, next run"));
        }
    }
}
