//! Kills and power cuts at every step of a run and of a prune: every point that was there stays what it was, and the
//! next run makes a right one.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod kit;

use std::sync::Arc;

use kit::support::cuts::{crashed, cuts};
use kit::support::holder;
use kit::{
    CrashingPlaces, MIB, Model, Random, Source, amount, check, compare, crashing, identity, make,
    new_directory, pruned, sound, verified,
};
use lunway_backup::{Lease, PointId, Retention};
use lunway_crash::Directory;
use lunway_repository::{Identity, Kept, Pins, Pruned, Repository, Series, Unwanted, prune, remove_points};

const SIZE: u64 = 3 * MIB + 512;

fn each_cut_of_a_run(base: &Directory, model: &Model, source: &mut Source) {
    let seed = amount("LUNWAY_BACKUP_SEED", 1);
    let mut random = Random::new(seed);
    let recorded = base.at_rest();
    let outcome = compare(&crashing(&recorded), "one", source, 100);
    let mut sealed = model.clone();
    sealed.insert(outcome.point.point, source.model.clone());
    let whole = outcome.point.stored_bytes;
    sound(&crashing(&recorded.at_rest()), "the run itself");
    for steps in cuts(&recorded, seed) {
        for kind in 0..2 {
            let context =
                format!("seed {seed}, cut behind step {steps} ({}), kind {kind}", recorded.describe(steps));
            let directory = crashed(&recorded, steps, kind, &mut random);
            let points = check(&crashing(&directory), &sealed, &context);
            assert!(model.keys().all(|point| points.contains(point)), "{context}: a point is gone");
            let packs = directory
                .names()
                .iter()
                .filter(|name| name.starts_with("pack-") && !name.contains('.'))
                .count();
            let outcome = compare(&crashing(&directory), "one", source, 300);
            let mut model = sealed.clone();
            model.insert(outcome.point.point, source.model.clone());
            check(&crashing(&directory), &model, &format!("{context}, next run"));
            // A pack that has its name is not sent again. There are two: leaves and tree.
            if packs == sealed_packs(base) + 2 {
                assert_eq!(outcome.point.stored_bytes, 0, "{context}");
            }
            assert!(outcome.point.stored_bytes <= whole, "{context}");
            sound(&crashing(&directory), &format!("{context}, next run"));
        }
    }
}

fn sealed_packs(directory: &Directory) -> usize {
    directory.names().iter().filter(|name| name.starts_with("pack-")).count()
}

#[test]
fn the_first_run_survives_a_cut_at_every_step() {
    for is_encrypted in [false, true] {
        let mut source = Source::new(SIZE);
        source.change(&mut Random::new(1), 12);
        each_cut_of_a_run(&new_directory(is_encrypted), &Model::new(), &mut source);
    }
}

#[test]
fn a_later_run_survives_a_cut_at_every_step() {
    let mut source = Source::new(SIZE);
    let mut random = Random::new(3);
    let base = new_directory(false);
    let mut model = Model::new();
    for seed in 1..4 {
        source.change(&mut random, 8);
        let outcome = compare(&crashing(&base), "one", &mut source, seed);
        model.insert(outcome.point.point, source.model.clone());
    }
    // The fourth makes four segments of the index one.
    let indexes = |directory: &Directory| {
        directory.names().iter().filter(|name| name.starts_with("index-") && !name.contains('.')).count()
    };
    assert_eq!(indexes(&base), 3);
    source.change(&mut random, 5);
    let whole = base.at_rest();
    compare(&crashing(&whole), "one", &mut source, 100);
    assert_eq!(indexes(&whole), 1);
    each_cut_of_a_run(&base.at_rest(), &model, &mut source);
}

#[test]
fn a_prune_survives_a_cut_at_every_step() {
    let seed = amount("LUNWAY_BACKUP_SEED", 1);
    let mut random = Random::new(seed);
    let mut source = Source::new(SIZE);
    let base = new_directory(false);
    let mut model = Model::new();
    for number in 1..6 {
        source.change(&mut random, 5);
        let outcome = compare(&crashing(&base), "one", &mut source, number);
        model.insert(outcome.point.point, source.model.clone());
    }
    let recorded = base.at_rest();
    let done = pruned(&crashing(&recorded), "one", 2, 9).unwrap();
    assert!(done.packs > 0 && done.rewritten_bytes > 0, "{done:?}");
    let kept = check(&crashing(&recorded), &model, "the prune itself");
    assert_eq!(kept.len(), 2);
    sound(&crashing(&recorded.at_rest()), "the prune itself");
    for steps in cuts(&recorded, seed) {
        for kind in 0..2 {
            let context =
                format!("seed {seed}, cut behind step {steps} ({}), kind {kind}", recorded.describe(steps));
            let directory = crashed(&recorded, steps, kind, &mut random);
            let points = check(&crashing(&directory), &model, &context);
            assert!(
                kept.iter().all(|point| points.contains(point)),
                "{context}: a point that is kept is gone"
            );
            // What is dying is not referred to by a run between.
            let between = directory.at_rest();
            let outcome = compare(&crashing(&between), "one", &mut source, 50);
            let mut after = model.clone();
            after.insert(outcome.point.point, source.model.clone());
            pruned(&crashing(&between), "one", 3, 51).unwrap();
            let found = check(&crashing(&between), &after, &format!("{context}, run and prune"));
            assert!(found.contains(&outcome.point.point), "{context}");
            sound(&crashing(&between), &format!("{context}, run and prune"));
            pruned(&crashing(&directory), "one", 2, 52).unwrap();
            assert_eq!(check(&crashing(&directory), &model, &format!("{context}, pruned again")), kept);
            sound(&crashing(&directory), &format!("{context}, pruned again"));
        }
    }
}

/// Bytes that all files take.
fn used(directory: &Directory) -> u64 {
    directory.names().iter().map(|name| directory.open(name).unwrap().now().allocated()).sum()
}

/// Of three points the first one's data is dead without it, and most of the second one's.
fn nearly_dead() -> (Directory, Model) {
    let (mut source, mut random) = (Source::new(SIZE), Random::new(7));
    let base = new_directory(false);
    let mut model = Model::new();
    for (number, len) in [(1, MIB), (2, MIB), (3, MIB - 65_536)] {
        let bytes: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
        source.write(0, &bytes);
        let outcome = compare(&crashing(&base), "one", &mut source, number);
        model.insert(outcome.point.point, source.model.clone());
    }
    (base.at_rest(), model)
}

#[test]
fn a_folder_without_any_room_is_pruned_and_a_cut_at_any_step_loses_nothing() {
    let seed = amount("LUNWAY_BACKUP_SEED", 1);
    let mut random = Random::new(seed);
    let (recorded, model) = nearly_dead();
    recorded.create("pack-00000000000000ee.incomplete").unwrap().write(0, &[7; 5000]).unwrap();
    let recorded = recorded.at_rest();
    recorded.set_space(Some(used(&recorded)));
    let done = pruned(&crashing(&recorded), "one", 1, 9).unwrap();
    assert!(done.packs >= 3 && done.freed_bytes > MIB && done.rewritten_bytes > 0, "{done:?}");
    let kept = check(&crashing(&recorded), &model, "the prune itself");
    assert_eq!(kept.len(), 1);
    sound(&crashing(&recorded.at_rest()), "the prune itself");
    for steps in cuts(&recorded, seed) {
        for kind in 0..2 {
            let context =
                format!("seed {seed}, cut behind step {steps} ({}), kind {kind}", recorded.describe(steps));
            let directory = crashed(&recorded, steps, kind, &mut random);
            let points = check(&crashing(&directory), &model, &context);
            assert!(kept.is_subset(&points), "{context}: a point that is kept is gone");
            // What the prune has removed is not missed by a run.
            let between = directory.at_rest();
            let mut other = Source::new(SIZE);
            other.write(4096, &[77; 4096]);
            let outcome = compare(&crashing(&between), "two", &mut other, 50);
            assert!(
                !outcome.notes.iter().any(|note| note.contains("missing")),
                "{context}: {:?}",
                outcome.notes
            );
            let mut after = model.clone();
            after.insert(outcome.point.point, other.model.clone());
            pruned(&crashing(&between), "one", 1, 51).unwrap();
            check(&crashing(&between), &after, &format!("{context}, run and prune"));
            sound(&crashing(&between), &format!("{context}, run and prune"));
            pruned(&crashing(&directory), "one", 1, 52).unwrap();
            assert_eq!(check(&crashing(&directory), &model, &format!("{context}, pruned again")), kept);
            sound(&crashing(&directory), &format!("{context}, pruned again"));
        }
    }
}

#[test]
fn where_what_is_removed_makes_no_room_for_a_list_a_part_of_the_index_does() {
    let (directory, model) = nearly_dead();
    let before = used(&directory);
    // What the manifests free that are removed, four pages, is taken already.
    directory.create("of-others").unwrap().write(0, &[1; 4096]).unwrap();
    let repository = crashing(&directory);
    directory.set_space(Some(before - 3 * 4096));
    let done = pruned(&repository, "one", 1, 9).unwrap();
    assert!(done.packs >= 3, "{done:?}");
    directory.set_space(None);
    directory.remove("of-others");
    assert_eq!(check(&crashing(&directory), &model, "afterwards").len(), 1);
    sound(&crashing(&directory), "afterwards");
}

#[test]
fn a_prune_that_fails_says_what_it_has_removed() {
    let (directory, model) = nearly_dead();
    // Not even what is removed makes room.
    directory.set_space(Some(0));
    let said = pruned(&crashing(&directory), "one", 1, 9).unwrap_err().to_string();
    assert!(said.contains("points removed before: 2") && said.contains("prune has to write"), "{said}");
    directory.set_space(None);
    // It could not even note that.
    let refused = pruned(&crashing(&directory), "one", 1, 10).unwrap_err().to_string();
    assert!(refused.contains("no prune has noted") && refused.contains("--despite-damage"), "{refused}");
    let series = Series::of(crashing(&directory), "one", false).unwrap();
    let lease = Lease::take(&*series.folder, holder(11), &|| false).unwrap();
    let retention = Retention { last: 1, despite_damage: true, ..Retention::default() };
    let done = prune(&series, &lease, &retention, &mut |_, _| true).unwrap();
    drop(lease);
    assert!(done.removed.is_empty() && done.packs >= 3, "{done:?}");
    assert_eq!(check(&crashing(&directory), &model, "later").len(), 1);
    sound(&crashing(&directory), "later");
}

#[test]
fn recipients_change_through_a_cut_at_every_step_and_those_who_stay_read_everything() {
    let seed = amount("LUNWAY_BACKUP_SEED", 1);
    let mut random = Random::new(seed);
    let (base, mut source) = (new_directory(true), Source::new(SIZE));
    source.change(&mut random, 5);
    let point = compare(&crashing(&base), "one", &mut source, 1).point.point;
    let model = Model::from([(point, source.model.clone())]);
    let recorded = base.at_rest();
    let other = Identity::generate().unwrap().recipient();
    crashing(&recorded).add_recipient(&other, &holder(5)).unwrap();
    crashing(&recorded).remove_recipient(&other, &holder(6)).unwrap();
    for steps in cuts(&recorded, seed) {
        for kind in 0..2 {
            let context = format!("seed {seed}, cut behind step {steps} ({})", recorded.describe(steps));
            let directory = crashed(&recorded, steps, kind, &mut random);
            assert_eq!(check(&crashing(&directory), &model, &context).len(), 1);
            compare(&crashing(&directory), "one", &mut source, 20);
            // It takes over the lease that a cut leaves.
            pruned(&crashing(&directory), "one", 9, 21).unwrap();
            sound(&crashing(&directory), &context);
        }
    }
}

#[test]
fn the_newest_points_are_removed_on_purpose_through_a_cut_at_every_step_and_are_not_missed() {
    let seed = amount("LUNWAY_BACKUP_SEED", 1);
    let mut random = Random::new(seed);
    let (recorded, model) = nearly_dead();
    let series = Series::of(crashing(&recorded), "one", false).unwrap();
    let ids: Vec<_> = series.points().unwrap().points().iter().map(|point| point.point).collect();
    let lease = Lease::take(&*series.folder, holder(9), &|| false).unwrap();
    let points = ids[1..].to_vec();
    let words = points.iter().map(ToString::to_string).collect();
    let unwanted = Unwanted { series: &series, lease: &lease, points, is_whole: false, words };
    remove_points(&series.repository, &[unwanted], false, &mut |_, _| true).unwrap().end().unwrap();
    drop(lease);
    for steps in cuts(&recorded, seed) {
        for kind in 0..2 {
            let context = format!("seed {seed}, cut behind step {steps} ({})", recorded.describe(steps));
            let directory = crashed(&recorded, steps, kind, &mut random);
            let left = check(&crashing(&directory), &model, &context);
            assert!(left.contains(&ids[0]), "{context}");
            let report = verified(&crashing(&directory));
            assert!(report.findings.is_empty(), "{context}: {report:?}");
            // It writes the copy of a manifest again that was removed before it.
            compare(&crashing(&directory), "one", &mut Source::new(SIZE), 30);
            pruned(&crashing(&directory), "one", 1, 31).unwrap();
            sound(&crashing(&directory), &context);
        }
    }
}

/// Removes the points that a text means, as the command does: what it found; `is_told`: its user hears of it.
fn remove_named(
    directory: &Directory,
    text: &str,
    seed: u64,
    is_told: bool,
) -> (Option<PointId>, lunway_backup::Result<Pruned>) {
    let series = Series::of(crashing(directory), "one", false).unwrap();
    let lease = Lease::take_without_room(&*series.folder, holder(seed), &|| false).unwrap();
    let found = series.points().unwrap().find_unwanted(text).unwrap();
    let points = found.into_iter().collect();
    let words = vec![text.to_owned()];
    let unwanted = Unwanted { series: &series, lease: &lease, points, is_whole: false, words };
    let done = remove_points(&series.repository, &[unwanted], false, &mut |_, _| true);
    (found, done.and_then(|removal| if is_told { removal.end() } else { Ok(removal.pruned) }))
}

/// Both manifests of the point of that number, emptied.
fn spoil(directory: &Directory, number: usize) {
    let begin = format!("one~{number:06}-");
    for name in directory.names() {
        if name.starts_with(&begin) && name.ends_with(".json") {
            directory.remove(&name);
            directory.create(&name).unwrap();
        }
    }
}

#[test]
fn a_point_that_cannot_be_read_is_removed_by_its_id_through_a_cut_at_every_step_and_is_not_missed() {
    let seed = amount("LUNWAY_BACKUP_SEED", 1);
    let mut random = Random::new(seed);
    let (base, model) = nearly_dead();
    let ids: Vec<_> = crashing(&base).all_points().unwrap()[0].1.points().iter().map(|of| of.point).collect();
    for number in [2, ids.len()] {
        let recorded = base.at_rest();
        spoil(&recorded, number);
        let lost = ids[number - 1];
        let recorded = recorded.at_rest();
        let refused = pruned(&crashing(&recorded), "one", 9, 30).unwrap_err().to_string();
        let way = format!("--remove {lost}");
        assert!(refused.contains("cannot be read") && refused.contains(&way), "{refused}");
        let recorded = recorded.at_rest();
        let (found, removed) = remove_named(&recorded, &lost.to_string(), 31, true);
        assert_eq!((found, removed.unwrap().removed), (Some(lost), vec![lost]));
        // The head names the newest one.
        let is_newest = number == ids.len();
        for (at, steps) in cuts(&recorded, seed).enumerate().filter(|_| is_newest) {
            let context = format!("seed {seed}, cut behind step {steps} ({})", recorded.describe(steps));
            let directory = crashed(&recorded, steps, at as u64, &mut random);
            remove_named(&directory, &lost.to_string(), 32, true).1.unwrap();
            assert_eq!(check(&crashing(&directory), &model, &context).len(), ids.len() - 1, "{context}");
            let there = crashing(&directory).all_points().unwrap().remove(0).1;
            assert_eq!(there.warnings(), Vec::<String>::new(), "{context}");
            let newest = ids.iter().rev().find(|point| **point != lost);
            assert_eq!(Some(&there.find("latest").unwrap().point), newest, "{context}");
            sound(&crashing(&directory), &context);
        }
        let next = compare(&crashing(&recorded), "one", &mut Source::new(SIZE), 33).point;
        assert_eq!(next.generation, ids.len() as u64 + 1, "no number is used twice");
        pruned(&crashing(&recorded), "one", 1, 34).unwrap();
        sound(&crashing(&recorded), "the next run");
    }
}

#[test]
fn despite_damage_what_cannot_be_read_goes_and_what_is_kept_stays() {
    let (directory, _) = nearly_dead();
    let repository = crashing(&directory);
    let ids: Vec<_> = repository.all_points().unwrap()[0].1.points().iter().map(|of| of.point).collect();
    spoil(&directory, 2);
    // What a verification has noted of it goes with it.
    assert_eq!(verified(&repository).findings.len(), 1);
    let series = Series::of(repository.clone(), "one", false).unwrap();
    let lease = Lease::take(&*series.folder, holder(11), &|| false).unwrap();
    let retention = Retention { last: 9, despite_damage: true, ..Retention::default() };
    assert_eq!(prune(&series, &lease, &retention, &mut |_, _| true).unwrap().removed, [ids[1]]);
    drop(lease);
    let left: Vec<_> = repository.all_points().unwrap()[0].1.points().iter().map(|of| of.point).collect();
    assert_eq!(left, [&ids[..1], &ids[2..]].concat());
    pruned(&repository, "one", 9, 12).unwrap();
    sound(&repository, "given up");
}

fn packs(directory: &Directory) -> Vec<String> {
    directory.names().into_iter().filter(|name| name.starts_with("pack-")).collect()
}

#[test]
fn the_latest_point_is_removed_once_also_if_a_cut_prune_is_given_again() {
    let seed = amount("LUNWAY_BACKUP_SEED", 1);
    let mut random = Random::new(seed);
    let (recorded, model) = nearly_dead();
    let repository = crashing(&recorded);
    let ids: Vec<_> =
        repository.all_points().unwrap()[0].1.points().iter().map(|point| point.point).collect();
    let before = packs(&recorded);
    let (found, done) = remove_named(&recorded, "latest", 9, false);
    assert!(found == Some(ids[2]) && done.unwrap().packs > 0);
    assert_ne!(packs(&recorded), before);
    for steps in cuts(&recorded, seed) {
        for kind in 0..2 {
            let context = format!("seed {seed}, cut behind step {steps} ({})", recorded.describe(steps));
            let directory = crashed(&recorded, steps, kind, &mut random);
            let (_, again) = remove_named(&directory, "latest", 30, true);
            again.unwrap();
            let left = check(&crashing(&directory), &model, &context);
            assert_eq!(left, ids[..2].iter().copied().collect(), "{context}");
            sound(&crashing(&directory), &context);
            // Its command may have been killed when it had ended and was not heard: no other point goes until one is
            // named by its id, or a run has made one.
            let (found, again) = remove_named(&directory, "latest", 31, true);
            assert!(again.unwrap().removed.is_empty() && found.is_none(), "{context}");
            pruned(&crashing(&directory), "one", 2, 32).unwrap();
            let (found, again) = remove_named(&directory, "latest", 33, true);
            assert!(again.unwrap().removed.is_empty() && found.is_none(), "{context}");
            let (found, again) = remove_named(&directory, &ids[1].to_string(), 34, true);
            again.unwrap();
            assert_eq!(found, Some(ids[1]), "{context}");
            sound(&crashing(&directory), &context);
            let made = compare(&crashing(&directory), "one", &mut Source::new(SIZE), 35).point.point;
            let (found, again) = remove_named(&directory, "latest", 36, true);
            again.unwrap();
            assert_eq!(found, Some(made), "{context}");
            sound(&crashing(&directory), &context);
        }
    }
}

#[test]
fn the_latest_point_is_removed_once_from_a_folder_without_room_however_often_that_is_said() {
    let (full, model) = nearly_dead();
    let ids: Vec<_> =
        crashing(&full).all_points().unwrap()[0].1.points().iter().map(|point| point.point).collect();
    let room = used(&full);
    // From none at all, which not even what is removed changes, to enough.
    for space in (0..8).map(|pages| room + pages * 4096).chain([0]) {
        let directory = full.at_rest();
        directory.set_space(Some(space));
        let mut is_ended = false;
        for seed in 40..43 {
            let (found, done) = remove_named(&directory, "latest", seed, true);
            let left = crashing(&directory).all_points().unwrap()[0].1.points().len();
            is_ended = done.is_ok();
            let Err(error) = done else {
                assert_eq!(left, 2, "room for {space}: {found:?}");
                break;
            };
            let said = error.to_string();
            assert!(left >= 2, "{said}");
            assert_eq!(said.contains(&ids[2].to_string()), left == 2 && found.is_some(), "{said}");
        }
        directory.set_space(None);
        if !is_ended {
            remove_named(&directory, "latest", 50, true).1.unwrap();
        }
        assert_eq!(check(&crashing(&directory), &model, "with room"), ids[..2].iter().copied().collect());
        sound(&crashing(&directory), &format!("room for {space}"));
    }
}

#[test]
fn a_repository_whose_making_was_cut_at_any_step_is_made_by_the_same_words_or_is_there() {
    let seed = amount("LUNWAY_BACKUP_SEED", 1);
    let mut random = Random::new(seed);
    for is_encrypted in [false, true] {
        let recorded = Directory::default();
        make(&CrashingPlaces(recorded.clone()), is_encrypted);
        assert_eq!(recorded.names(), ["repository.copy.json", "repository.json"]);
        let recipients: Vec<_> = identity(is_encrypted).iter().map(Identity::recipient).collect();
        for steps in cuts(&recorded, seed) {
            for kind in 0..2 {
                let context = format!("seed {seed}, cut behind step {steps} ({})", recorded.describe(steps));
                let directory = crashed(&recorded, steps, kind, &mut random);
                let was_made = directory.names().iter().any(|name| name == "repository.json");
                let places = CrashingPlaces(directory.clone());
                let again = Repository::create(&places, None, &recipients, &holder(7));
                assert_eq!(again.is_err(), was_made, "{context}: {again:?}");
                if let Err(error) = again {
                    assert!(error.to_string().contains("is a repository already"), "{context}: {error}");
                }
                let mut source = Source::new(SIZE);
                source.write(4096, &[1; 4096]);
                let outcome = compare(&crashing(&directory), "one", &mut source, 20);
                let model = Model::from([(outcome.point.point, source.model)]);
                // It takes over the lease that a cut leaves.
                pruned(&crashing(&directory), "one", 9, 21).unwrap();
                assert_eq!(check(&crashing(&directory), &model, &context).len(), 1);
                sound(&crashing(&directory), &context);
            }
        }
    }
}

#[test]
fn a_series_is_removed_through_a_cut_at_every_step_and_is_missed_by_no_user() {
    let seed = amount("LUNWAY_BACKUP_SEED", 1);
    let mut random = Random::new(seed);
    let state = tempfile::tempdir().unwrap();
    let user = |directory: &Directory| {
        let kept = Kept { cache: None, pins: Some(Pins::within(state.path(), "the share")) };
        Repository::open(Arc::new(CrashingPlaces(directory.clone())), kept, &identity(true)).unwrap()
    };
    let base = new_directory(true);
    let mut source = Source::new(SIZE);
    let mut model = Model::new();
    for (series, number) in [("one", 1), ("two", 2), ("two", 3)] {
        source.change(&mut random, 5);
        let outcome = compare(&user(&base), series, &mut source, number);
        model.insert(outcome.point.point, source.model.clone());
    }
    let recorded = base.at_rest();
    let remove = |directory: &Directory, seed: u64| {
        let series = Series::of(crashing(directory), "two", false).unwrap();
        {
            let lease = Lease::take(&*series.folder, holder(seed), &|| false).unwrap();
            let points = series.points().unwrap().all().map(|point| point.point).collect();
            let unwanted =
                Unwanted { series: &series, lease: &lease, points, is_whole: true, words: Vec::new() };
            remove_points(&series.repository, &[unwanted], false, &mut |_, _| true).unwrap().end().unwrap();
        }
        series.end(&holder(seed + 1)).unwrap();
    };
    remove(&recorded, 9);
    for steps in cuts(&recorded, seed) {
        for kind in 0..2 {
            let context = format!("seed {seed}, cut behind step {steps} ({})", recorded.describe(steps));
            let directory = crashed(&recorded, steps, kind, &mut random);
            let repository = user(&directory);
            let all = repository.all_points().unwrap();
            let missing = repository.missing_series(&all).unwrap();
            assert!(missing.is_empty(), "{context}: {missing:?}");
            check(&repository, &model, &context);
            if all.iter().any(|(name, _)| name == "two") {
                remove(&directory, 20);
            }
            pruned(&user(&directory), "one", 1, 30).unwrap();
            assert_eq!(check(&user(&directory), &model, &context).len(), 1);
            sound(&user(&directory), &context);
        }
    }
}
