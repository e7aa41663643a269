//! Manifests that were written with the key and lie where no run has put them: of an older state, of another series, of
//! an earlier series of the name. They are told, block nothing, and are never given out unasked.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod kit;

use kit::support::{How, holder};
use kit::{
    CrashingPlaces, MIB, Model, Source, back_up, back_up_as, check, compare, crashing, identity,
    new_directory, pruned, restored, sound, verified,
};
use lunway_backup::{BackupError, Lease, PointId, Retention, parse_stem, seal, unseal};
use lunway_crash::Directory;
use lunway_repository::{Kept, Pins, Points, Repository, Series, Unwanted, prune, remove_points};

fn source(number: u8) -> Source {
    let mut source = Source::new(2 * MIB + 512);
    source.write(u64::from(number) * 65536, &[number; 5120]);
    source
}

fn run(repository: &Repository, series: &str, number: u8) -> PointId {
    compare(repository, series, &mut source(number), number.into()).point.point
}

/// Copies files of a series' folder into that of another one, or another state of it.
fn put(from: &Directory, series: &str, into: &Directory, as_series: &str, is_chosen: impl Fn(&str) -> bool) {
    for name in from.names() {
        if let Some(rest) = name.strip_prefix(&format!("{series}~")).filter(|rest| is_chosen(rest)) {
            let copy = format!("{as_series}~{rest}");
            into.remove(&copy);
            into.create(&copy).unwrap().write(0, &from.bytes(&name).unwrap()).unwrap();
        }
    }
}

fn take_away(directory: &Directory, series: &str) {
    for name in directory.names().iter().filter(|name| name.starts_with(&format!("{series}~"))) {
        directory.remove(name);
    }
}

fn rename(directory: &Directory, from: &str, to: &str) {
    put(&directory.at_rest(), from, directory, to, |_| true);
    take_away(directory, from);
}

/// Manifests of points that have at least this number.
fn from_number(least: u64) -> impl Fn(&str) -> bool {
    move |name| {
        let stem = name.split('.').next().and_then(parse_stem);
        stem.is_some_and(|(generation, _)| generation >= least)
    }
}

fn points(repository: &Repository, series: &str) -> Points {
    repository.all_points().unwrap().into_iter().find(|(name, _)| name == series).unwrap().1
}

fn latest(repository: &Repository, series: &str) -> Result<PointId, String> {
    points(repository, series).find("latest").map(|point| point.point).map_err(|error| error.to_string())
}

fn remove(repository: &Repository, series: &str, unwanted: &[PointId], seed: u64) -> Result<(), BackupError> {
    let series = Series::of(repository.clone(), series, false).unwrap();
    let lease = Lease::take(&*series.folder, holder(seed), &|| false).unwrap();
    let words = unwanted.iter().map(ToString::to_string).collect();
    let points = unwanted.to_vec();
    let unwanted = Unwanted { series: &series, lease: &lease, points, is_whole: false, words };
    remove_points(repository, &[unwanted], false, &mut |_, _| true)?.end().map(drop)
}

/// One user, who has a folder for state.
struct User(tempfile::TempDir);

impl User {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn open(&self, directory: &Directory) -> Repository {
        let kept = Kept { cache: None, pins: Some(Pins::within(self.0.path(), "the share")) };
        let places = std::sync::Arc::new(CrashingPlaces(directory.clone()));
        Repository::open(places, kept, &identity(true)).unwrap_or_else(|error| panic!("{error}"))
    }
}

#[test]
fn points_of_a_state_that_was_given_up_are_told_and_never_the_latest_and_go_by_their_ids() {
    for is_encrypted in [false, true] {
        let (directory, mut model) = (new_directory(is_encrypted), Model::new());
        let mut add = |directory: &Directory, number: u8| {
            let point = run(&crashing(directory), "one", number);
            model.insert(point, source(number).model);
            point
        };
        add(&directory, 1);
        let (fork, directory) = (directory.at_rest(), directory.at_rest());
        let [old, older] = [3, 2].map(|number| add(&fork, number));
        let current = add(&directory, 4);
        put(&fork, "one", &directory, "one", from_number(2));
        // Packs are whole: what is to be noticed is that the points are none of these.
        for name in fork.names().iter().filter(|name| name.starts_with("pack-")) {
            put_file(&fork, &directory, name);
        }
        let there = points(&crashing(&directory), "one");
        assert_eq!(there.find("latest").unwrap().point, current);
        assert_eq!(there.newest().unwrap().point, current);
        let told = there.warnings();
        assert!(told.len() == 2 && told.iter().all(|what| what.contains("never the latest")), "{told:?}");
        assert_eq!(verified(&crashing(&directory)).findings.len(), 2);
        // Who names one gets it.
        for (point, number) in [(old, 3), (older, 2)] {
            let named = there.find(&point.to_string()).unwrap();
            assert_eq!(restored(&crashing(&directory), named).unwrap(), source(number).model);
        }
        let next = compare(&crashing(&directory), "one", &mut source(5), 5);
        assert_eq!(next.notes.len(), 2, "{:?}", next.notes);
        let next = next.point.point;
        model.insert(next, source(5).model);
        let removed = pruned(&crashing(&directory), "one", 1, 60).unwrap().removed;
        assert!(![old, older].iter().any(|point| removed.contains(point)), "{removed:?}");
        assert_eq!(latest(&crashing(&directory), "one"), Ok(next));
        let there = points(&crashing(&directory), "one");
        assert_eq!(
            restored(&crashing(&directory), there.find(&old.to_string()).unwrap()).unwrap(),
            source(3).model
        );
        remove(&crashing(&directory), "one", &[old, older], 61).unwrap();
        sound(&crashing(&directory), "removed");
        check(&crashing(&directory), &model, "removed");
    }
}

fn put_file(from: &Directory, into: &Directory, name: &str) {
    if into.bytes(name).is_none() {
        into.create(name).unwrap().write(0, &from.bytes(name).unwrap()).unwrap();
    }
}

#[test]
fn an_earlier_series_of_the_name_is_noticed_by_the_user_who_has_begun_the_later_one() {
    for count in [3u8, 1] {
        let (user, other, directory) = (User::new(), User::new(), new_directory(true));
        for number in 1..4 {
            run(&user.open(&directory), "one", number);
        }
        let old = directory.at_rest();
        take_away(&directory, "one");
        Series::of(user.open(&directory), "one", true).unwrap().end(&holder(90)).unwrap();
        let mut fresh = PointId(0);
        for number in 0..count {
            let outcome =
                compare(&user.open(&directory), "one", &mut source(9 + number), 9 + u64::from(number));
            assert!(outcome.notes.is_empty(), "{:?}", outcome.notes);
            fresh = outcome.point.point;
        }
        assert_eq!(latest(&user.open(&directory), "one"), Ok(fresh));
        // Beside the new ones.
        let beside = directory.at_rest();
        put(&old, "one", &beside, "one", from_number(2));
        for user in [&user, &other] {
            assert_eq!(latest(&user.open(&beside), "one"), Ok(fresh));
            assert_eq!(points(&user.open(&beside), "one").warnings().len(), 2);
        }
        // Without the head nothing is given out unasked, and the next run goes on with the right one.
        beside.remove("one~head.json");
        let said = latest(&user.open(&beside), "one").unwrap_err();
        assert!(said.contains("head.json") && said.contains("give the id"), "{said}");
        let outcome = compare(&user.open(&beside), "one", &mut source(20), 20);
        assert_eq!(outcome.point.base, Some(fresh));
        assert_eq!(latest(&other.open(&beside), "one"), Ok(outcome.point.point));
        // In the place of them.
        let instead = directory.at_rest();
        take_away(&instead, "one");
        put(&old, "one", &instead, "one", |_| true);
        let there = points(&user.open(&instead), "one");
        // The run in `beside` was the user's last one.
        let said = there.find("latest").map(drop).unwrap_err().to_string();
        assert!(
            said.contains("when this user last used it") || said.contains("not what this user"),
            "{said}"
        );
        let newest = there.newest().unwrap().point;
        assert_eq!(there.find(&newest.to_string()).unwrap().point, newest, "who names it gets it");
        assert_eq!(verified(&user.open(&instead)).findings.len(), 1);
    }
}

#[test]
fn a_long_series_does_not_pass_for_a_later_one_of_its_name() {
    let (user, directory) = (User::new(), new_directory(false));
    for number in 1..4 {
        run(&user.open(&directory), "one", number);
    }
    let old = directory.at_rest();
    // As if it had had more points than a head has.
    edit_head(&old, |head| {
        head["since"] = 3.into();
        head["trail"].as_array_mut().unwrap().drain(..2);
    });
    take_away(&directory, "one");
    Series::of(user.open(&directory), "one", true).unwrap().end(&holder(90)).unwrap();
    run(&user.open(&directory), "one", 7);
    take_away(&directory, "one");
    put(&old, "one", &directory, "one", |name| !from_number(1)(name) || from_number(3)(name));
    let said = latest(&user.open(&directory), "one").unwrap_err();
    assert!(said.contains("not what this user has seen"), "{said}");
}

fn edit_head(directory: &Directory, change: impl FnOnce(&mut serde_json::Value)) {
    let mut head = unseal(&directory.bytes("one~head.json").unwrap()).unwrap();
    change(&mut head);
    directory.remove("one~head.json");
    directory.create("one~head.json").unwrap().write(0, &seal(&head)).unwrap();
}

#[test]
fn an_older_state_is_never_given_out_unasked_to_the_user_who_has_made_newer_points() {
    let (user, directory) = (User::new(), new_directory(true));
    run(&user.open(&directory), "one", 1);
    let older = directory.at_rest();
    let current = run(&user.open(&directory), "one", 2);
    let said = latest(&user.open(&older), "one").unwrap_err();
    assert!(said.contains("was at its point number 2") && said.contains("give the id"), "{said}");
    let there = points(&user.open(&older), "one");
    let only = there.newest().unwrap().point;
    assert_eq!(there.find(&only.to_string()).unwrap().point, only);
    // It goes on, and numbers of the other state are not used again.
    let outcome = compare(&user.open(&older), "one", &mut source(3), 3);
    assert_eq!(outcome.point.generation, 3);
    assert_eq!(latest(&user.open(&older), "one"), Ok(outcome.point.point));
    let said = latest(&user.open(&directory), "one").unwrap_err();
    assert!(said.contains("was at its point number 3"), "{said}");
    assert_eq!(
        latest(&User::new().open(&directory), "one"),
        Ok(current),
        "a first use believes what it finds"
    );
}

#[test]
fn manifests_of_another_series_do_not_block_a_series_and_do_not_become_its_own() {
    let (directory, mut model) = (new_directory(true), Model::new());
    for (number, series) in [(1, "one"), (2, "two"), (3, "two")] {
        model.insert(run(&crashing(&directory), series, number), source(number).model);
    }
    put(&directory.at_rest(), "two", &directory, "one", from_number(2));
    let foreign = points(&crashing(&directory), "two").newest().unwrap().point;
    let there = points(&crashing(&directory), "one");
    let told = there.warnings();
    assert!(told.len() == 1 && told[0].contains("000002-") && told[0].contains("the series two"), "{told:?}");
    assert!(there.find("latest").unwrap().point != foreign);
    assert_eq!(there.find(&foreign.to_string()).unwrap().point, foreign);
    for (number, is_renamed) in [(4, false), (5, true)] {
        let mut source = source(number);
        let how = How::new(source.unknown(), number.into());
        let outcome = back_up_as(&crashing(&directory), "one", &source, how, is_renamed).unwrap();
        assert!(
            outcome.notes.len() == 1 && outcome.notes[0].contains("the series two"),
            "{:?}",
            outcome.notes
        );
        let there = points(&crashing(&directory), "one");
        assert_eq!(there.newest().unwrap().point, outcome.point.point);
        assert_eq!(there.warnings().len(), 1);
    }
    pruned(&crashing(&directory), "one", 1, 60).unwrap();
    assert_eq!(points(&crashing(&directory), "one").points().len(), 1);
    remove(&crashing(&directory), "one", &[foreign], 61).unwrap();
    sound(&crashing(&directory), "removed");
    assert_eq!(latest(&crashing(&directory), "two"), Ok(foreign));
}

#[test]
fn a_series_that_is_there_as_well_is_not_taken_over_and_one_that_was_renamed_is() {
    let (user, other, directory) = (User::new(), User::new(), new_directory(true));
    for (user, number) in [(&other, 1), (&other, 2), (&user, 3), (&user, 4)] {
        run(&user.open(&directory), "one", number);
    }
    // A copy.
    let copy = directory.at_rest();
    put(&directory, "one", &copy, "new", |_| true);
    let mut disk = source(7);
    let mut take_over = |directory: &Directory, seed: u64| {
        let changed = disk.unknown();
        back_up_as(&user.open(directory), "new", &disk, How::new(changed, seed), true)
    };
    let said = take_over(&copy, 10).map(drop).unwrap_err().to_string();
    assert!(said.contains("which is there as well"), "{said}");
    let there = points(&user.open(&copy), "new");
    let newest = there.newest().unwrap().point;
    assert_eq!(there.find(&newest.to_string()).unwrap().point, newest, "its points are not locked up");
    // Renamed, and the name is used again: by this user without a word, to the other one as something new.
    rename(&directory, "one", "new");
    let outcome = take_over(&directory, 11).unwrap();
    assert!(outcome.notes.is_empty(), "{:?}", outcome.notes);
    let outcome = compare(&user.open(&directory), "one", &mut source(8), 12);
    assert!(outcome.notes.is_empty(), "{:?}", outcome.notes);
    assert_eq!(latest(&user.open(&directory), "one"), Ok(outcome.point.point));
    let said = latest(&other.open(&directory), "one").unwrap_err();
    assert!(said.contains("give the id"), "{said}");
    let outcome = compare(&other.open(&directory), "one", &mut source(9), 13);
    assert_eq!(outcome.notes.len(), 1, "{:?}", outcome.notes);
    for user in [&user, &other] {
        assert_eq!(latest(&user.open(&directory), "one"), Ok(outcome.point.point));
        assert!(latest(&user.open(&directory), "new").is_ok());
    }
}

#[test]
fn a_point_that_was_removed_on_purpose_and_is_put_back_is_not_the_latest() {
    let (user, directory) = (User::new(), new_directory(true));
    let [first, second] = [1, 2].map(|number| run(&user.open(&directory), "one", number));
    let before = directory.at_rest();
    remove(&user.open(&directory), "one", &[second], 20).unwrap();
    assert_eq!(latest(&user.open(&directory), "one"), Ok(first));
    sound(&user.open(&directory), "removed");
    put(&before, "one", &directory, "one", from_number(2));
    assert_eq!(latest(&user.open(&directory), "one"), Ok(first));
    let told = points(&user.open(&directory), "one").warnings();
    assert!(told.len() == 1 && told[0].contains(&second.to_string()), "{told:?}");
    pruned(&user.open(&directory), "one", 1, 21).unwrap();
    remove(&user.open(&directory), "one", &[second], 22).unwrap();
    sound(&user.open(&directory), "removed again");
}

#[test]
fn points_that_a_rule_has_removed_are_none_of_the_series_when_they_are_put_back_and_block_nothing() {
    let (user, other, directory) = (User::new(), User::new(), new_directory(true));
    let all: Vec<PointId> = (1..5).map(|number| run(&user.open(&directory), "one", number)).collect();
    points(&other.open(&directory), "one");
    let before = directory.at_rest();
    // The data of the second one goes as well.
    pruned(&user.open(&directory), "one", 1, 20).unwrap();
    sound(&user.open(&directory), "pruned");
    put(&before, "one", &directory, "one", |name| name.starts_with("00000"));
    let first = directory.names().into_iter().find(|name| name.starts_with("one~000001-")).unwrap();
    let garbage = ["json", "copy.json"].map(|kind| format!("{}.{kind}", first.split('.').next().unwrap()));
    for name in &garbage {
        directory.remove(name);
        directory.create(name).unwrap().write(0, b"garbage").unwrap();
    }
    for number in 0..2 {
        let there = points(&user.open(&directory), "one");
        assert!(there.points().iter().all(|point| !all[..3].contains(&point.point)), "{number}");
        assert_eq!(there.warnings().len(), 3, "{:?}", there.warnings());
        let removed = pruned(&user.open(&directory), "one", 1, 21 + number).unwrap().removed;
        assert!(!all[..3].iter().any(|point| removed.contains(point)), "{removed:?}");
        // A run keeps that in mind.
        run(&user.open(&directory), "one", 7 + number as u8);
    }
    let report = verified(&user.open(&directory));
    assert!(report.findings.iter().all(|found| found.concerned.is_empty()), "{report:?}");
    remove(&user.open(&directory), "one", &all[..3], 30).unwrap();
    garbage.iter().for_each(|name| directory.remove(name));
    sound(&user.open(&directory), "removed");
    assert!(latest(&other.open(&directory), "one").is_ok());
}

#[test]
fn a_head_of_a_version_that_knew_no_trail_is_gone_on_with() {
    let directory = new_directory(false);
    let all: Vec<PointId> = (1..4).map(|number| run(&crashing(&directory), "one", number)).collect();
    edit_head(&directory, |head| {
        for field in ["trail", "since", "begun"] {
            assert!(head.as_object_mut().unwrap().remove(field).is_some(), "{field}");
        }
    });
    sound(&crashing(&directory), "older");
    assert_eq!(latest(&crashing(&directory), "one"), Ok(all[2]));
    let outcome = compare(&crashing(&directory), "one", &mut source(4), 4);
    assert!(outcome.notes.is_empty(), "{:?}", outcome.notes);
    assert_eq!(points(&crashing(&directory), "one").points().len(), 4);
    pruned(&crashing(&directory), "one", 2, 60).unwrap();
    sound(&crashing(&directory), "pruned");
}

#[test]
fn lists_that_are_no_lists_block_nothing_and_are_told() {
    let directory = new_directory(false);
    let first = run(&crashing(&directory), "one", 1);
    for (number, name) in [(2u8, "damage.json"), (3, "dying.json")] {
        directory.create(name).unwrap().write(0, &vec![b'x'; 33 << 20]).unwrap();
        let there = points(&crashing(&directory), "one");
        let point = there.get(first).unwrap();
        assert_eq!(restored(&crashing(&directory), point).unwrap(), source(1).model, "{name}");
        let outcome = compare(&crashing(&directory), "one", &mut source(number), number.into());
        assert!(outcome.notes.iter().any(|note| note.contains(name) && note.contains("remove it")), "{name}");
        let repository = crashing(&directory);
        let all = repository.all_points().unwrap();
        let report = lunway_repository::verify(
            &repository,
            &all,
            lunway_backup::Verification::default(),
            &|| false,
            &mut |_, _| (),
        );
        let remarks = report.unwrap().report.remarks;
        assert!(
            remarks.iter().any(|remark| remark.contains(name) && remark.contains("remove it")),
            "{remarks:?}"
        );
        // As the sentence says.
        directory.remove(name);
    }
    pruned(&crashing(&directory), "one", 1, 60).unwrap();
    sound(&crashing(&directory), "afterwards");
}

#[test]
fn files_that_are_no_manifests_block_neither_a_run_nor_a_prune_where_the_head_knows_that_they_are_none() {
    let directory = new_directory(true);
    for number in 1..4 {
        run(&crashing(&directory), "one", number);
    }
    let garbage = ["000002-00000000000000aa.json", "000003-00000000000000ab.copy.json"];
    for name in garbage {
        directory.create(&format!("one~{name}")).unwrap().write(0, b"garbage").unwrap();
    }
    let told = points(&crashing(&directory), "one").warnings();
    assert!(told.len() == 1 && told[0].contains(garbage[0]) && told[0].contains("remove it"), "{told:?}");
    pruned(&crashing(&directory), "one", 1, 60).unwrap();
    // A number that no series comes to.
    let name = format!("one~{}-00000000000000ac.json", u64::MAX);
    directory.create(&name).unwrap().write(0, b"garbage").unwrap();
    let outcome = compare(&crashing(&directory), "one", &mut source(4), 4);
    assert_eq!(outcome.point.generation, 4);
    assert_eq!(latest(&crashing(&directory), "one"), Ok(outcome.point.point));
}

/// A prune that keeps all points there are, and gives up what is gone.
fn give_up(repository: &Repository, series: &str, seed: u64) {
    let series = Series::of(repository.clone(), series, false).unwrap();
    let lease = Lease::take(&*series.folder, holder(seed), &|| false).unwrap();
    let retention = Retention { last: 100, despite_damage: true, ..Retention::default() };
    let removed = prune(&series, &lease, &retention, &mut |_, _| true).unwrap().removed;
    assert!(removed.is_empty(), "{removed:?}");
}

#[test]
fn points_that_were_gone_when_a_run_went_on_and_are_back_are_missed_no_more_and_lose_nothing() {
    let (user, made, mut model) = (User::new(), new_directory(true), Model::new());
    for number in 1..4 {
        model.insert(run(&user.open(&made), "one", number), source(number).model);
    }
    let directory = made.at_rest();
    for name in directory.names() {
        if name.strip_prefix("one~").is_some_and(from_number(3)) {
            directory.remove(&name);
        }
    }
    for number in 4..6 {
        model.insert(run(&user.open(&directory), "one", number), source(number).model);
    }
    let mut disk = source(6);
    let changed = disk.unknown();
    let outcome = back_up(&user.open(&directory), "two", &disk, How::new(changed, 6)).unwrap();
    model.insert(outcome.point.point, disk.model.clone());
    assert!(pruned(&user.open(&directory), "two", 1, 60).is_err());
    put(&made, "one", &directory, "one", from_number(3));
    pruned(&user.open(&directory), "two", 1, 61).unwrap();
    sound(&user.open(&directory), "back");
    assert_eq!(check(&user.open(&directory), &model, "back").len(), model.len());
    run(&user.open(&directory), "one", 7);
    sound(&user.open(&directory), "gone on");
    let other = User::new();
    // Given up, and put back all the same: it is none of the series' points, and blocks nothing.
    let directory = made.at_rest();
    for name in directory.names() {
        if name.strip_prefix("one~").is_some_and(from_number(3)) {
            directory.remove(&name);
        }
    }
    give_up(&other.open(&directory), "one", 62);
    sound(&other.open(&directory), "given up");
    put(&made, "one", &directory, "one", from_number(3));
    run(&other.open(&directory), "one", 8);
    let there = points(&other.open(&directory), "one");
    assert!(there.points().len() == 3 && there.warnings().len() == 1, "{:?}", there.warnings());
    pruned(&other.open(&directory), "one", 1, 63).unwrap();
}

#[test]
fn an_old_copy_of_a_series_that_was_renamed_is_named_and_no_series_of_its_own() {
    let (user, other, directory) = (User::new(), User::new(), new_directory(true));
    let old: Vec<PointId> = (1..4).map(|number| run(&user.open(&directory), "one", number)).collect();
    let copy = directory.at_rest();
    rename(&directory, "one", "new");
    let mut disk = source(4);
    let how = How::new(disk.unknown(), 4);
    let newest = back_up_as(&user.open(&directory), "new", &disk, how, true).unwrap().point.point;
    // What it needed is gone.
    pruned(&user.open(&directory), "new", 1, 60).unwrap();
    put(&copy, "one", &directory, "one", |_| true);
    for user in [&user, &other] {
        let there = points(&user.open(&directory), "one");
        let told = there.warnings();
        assert!(told.len() == 1 && told[0].contains("older copy of the series new"), "{told:?}");
        assert!(there.is_copy() && there.points().is_empty() && there.listed().len() == 3);
        for text in ["latest", "2023-11-14", &old[2].to_string()[..8]] {
            assert!(there.find(text).unwrap_err().to_string().contains("older copy"), "{text}");
        }
        assert_eq!(there.find(&old[2].to_string()).unwrap().point, old[2]);
        let alone = Series::of(user.open(&directory), "one", false).unwrap().points().unwrap();
        assert!(alone.is_copy() && alone.warnings() == told);
        let findings = verified(&user.open(&directory)).findings;
        assert!(findings.len() == 1 && findings[0].what == told[0], "{findings:?}");
        assert_eq!(latest(&user.open(&directory), "new"), Ok(newest));
    }
    for is_renamed in [false, true] {
        let mut disk = source(5);
        let how = How::new(disk.unknown(), 5);
        let said = back_up_as(&user.open(&directory), "one", &disk, how, is_renamed).map(drop).unwrap_err();
        assert!(said.to_string().contains("older copy"), "{said}");
    }
    // Rules neither remove what is there nor are they kept from anything.
    for series in ["one", "new"] {
        assert!(pruned(&user.open(&directory), series, 1, 61).unwrap().removed.is_empty(), "{series}");
    }
    assert_eq!(points(&user.open(&directory), "one").listed().len(), 3);
    remove(&user.open(&directory), "one", &old[..1], 62).unwrap();
    remove(&user.open(&directory), "one", &old[1..], 63).unwrap();
    Series::of(user.open(&directory), "one", false).unwrap().end(&holder(90)).unwrap();
    sound(&user.open(&directory), "removed");
    // Its name is free for another disk, also while the old one is known by it.
    let fresh = run(&other.open(&directory), "one", 9);
    for user in [&user, &other] {
        assert!(points(&user.open(&directory), "one").warnings().is_empty());
        assert_eq!(latest(&user.open(&directory), "one"), Ok(fresh));
    }
}

#[test]
fn nothing_is_removed_while_points_of_any_series_are_known_to_be_gone() {
    type Goes = fn(&str) -> bool;
    let losses: [(&str, Goes); 5] = [
        ("moved away", |_| true),
        ("emptied", |_| true),
        ("emptied but for its head", |name| name.starts_with("00")),
        ("without its newest point", |name| from_number(3)(name)),
        ("without its newest point and its head", |name| name == "head.json" || from_number(3)(name)),
    ];
    for (what, goes) in losses {
        let user = User::new();
        let made = new_directory(true);
        let mut model = Model::new();
        for (number, series) in [(1, "one"), (2, "one"), (3, "two"), (4, "two"), (5, "two")] {
            model.insert(run(&user.open(&made), series, number), source(number).model);
        }
        let made = made.at_rest();
        let directory = made.at_rest();
        for name in directory.names() {
            if name.strip_prefix("two~").is_some_and(goes) {
                directory.remove(&name);
            }
        }
        if what == "emptied" {
            directory.create("two~epochs.json").unwrap();
        }
        let packs = |directory: &Directory| {
            let mut names = directory.names();
            names.retain(|name| name.starts_with("pack-"));
            names
        };
        let before = packs(&directory);
        let (first, second) = {
            let there = points(&user.open(&directory), "one");
            (there.points()[0].point, there.points()[1].point)
        };
        let said = pruned(&user.open(&directory), "one", 1, 60).unwrap_err().to_string();
        assert!(said.contains("two") && said.contains("back"), "{what}: {said}");
        assert!(remove(&user.open(&directory), "one", &[second], 61).is_err(), "{what}");
        assert_eq!(packs(&directory), before, "{what}");
        assert!(points(&user.open(&directory), "one").get(first).is_some(), "{what}");
        assert!(!verified(&user.open(&directory)).findings.is_empty(), "{what}");
        // Put back, all is there.
        let back = directory.at_rest();
        take_away(&back, "two");
        put(&made, "two", &back, "two", |_| true);
        pruned(&user.open(&back), "one", 1, 62).unwrap();
        sound(&user.open(&back), what);
        assert_eq!(check(&user.open(&back), &model, what).len(), 4, "{what}");
        // A run goes on without it, and what is gone stays known.
        if what == "moved away" {
            let repository = user.open(&directory);
            let missing = repository.missing_series(&repository.all_points().unwrap()).unwrap();
            assert!(missing.len() == 1 && missing[0].0 == "two", "{missing:?}");
            assert!(!repository.forget_missing("one").unwrap(), "it is there");
            assert!(repository.forget_missing("two").unwrap() && !repository.forget_missing("two").unwrap());
        } else {
            let outcome = compare(&user.open(&directory), "two", &mut source(9), 63);
            assert!(!outcome.notes.is_empty(), "{what}");
            let outcome = compare(&user.open(&directory), "two", &mut source(10), 64);
            assert!(outcome.notes.is_empty(), "{what}: {:?}", outcome.notes);
            assert_eq!(latest(&user.open(&directory), "two"), Ok(outcome.point.point), "{what}");
            for user in [&user, &User::new()] {
                let said = pruned(&user.open(&directory), "one", 1, 65).unwrap_err().to_string();
                assert!(said.contains("a run went on without it") && said.contains("prune of two"), "{said}");
                let findings = verified(&user.open(&directory)).findings;
                let found: Vec<_> = findings.into_iter().map(|found| found.what).collect();
                assert_eq!(found, points(&user.open(&directory), "two").warnings(), "{what}");
            }
            assert_eq!(packs(&directory).iter().filter(|pack| before.contains(pack)).count(), before.len());
            give_up(&user.open(&directory), "two", 66);
            give_up(&user.open(&directory), "two", 67);
        }
        pruned(&user.open(&directory), "one", 1, 68).unwrap();
        sound(&user.open(&directory), what);
    }
}

#[test]
fn a_series_that_ends_is_missed_by_its_user_no_more_and_one_that_another_user_has_renamed_is_not_gone() {
    let (user, other, directory) = (User::new(), User::new(), new_directory(true));
    for (number, series) in [(1, "one"), (2, "one"), (3, "two"), (4, "two")] {
        run(&user.open(&directory), series, number);
    }
    rename(&directory, "two", "new");
    let mut renamed = source(5);
    let changed = renamed.unknown();
    back_up_as(&other.open(&directory), "new", &renamed, How::new(changed, 5), true).unwrap();
    let repository = user.open(&directory);
    assert!(repository.missing_series(&repository.all_points().unwrap()).unwrap().is_empty());
    pruned(&user.open(&directory), "one", 1, 60).unwrap();
    // What is missing of the series that ends keeps it from nothing.
    let newest = points(&user.open(&directory), "one").newest().unwrap().stem();
    for name in ["json", "copy.json"] {
        directory.remove(&format!("one~{newest}.{name}"));
    }
    let series = Series::of(user.open(&directory), "one", false).unwrap();
    assert!(pruned(&user.open(&directory), "new", 1, 61).is_err());
    {
        let lease = Lease::take(&*series.folder, holder(62), &|| false).unwrap();
        let unwanted = Unwanted {
            series: &series,
            lease: &lease,
            points: Vec::new(),
            is_whole: true,
            words: Vec::new(),
        };
        remove_points(&series.repository, &[unwanted], false, &mut |_, _| true).unwrap().end().unwrap();
    }
    series.end(&holder(91)).unwrap();
    pruned(&user.open(&directory), "new", 1, 63).unwrap();
    sound(&user.open(&directory), "afterwards");
}

/// Removes a series with all of its points, as the command does.
fn remove_series(repository: &Repository, name: &str, seed: u64) {
    let series = Series::of(repository.clone(), name, false).unwrap();
    {
        let lease = Lease::take(&*series.folder, holder(seed), &|| false).unwrap();
        let points = series.points().unwrap().all().map(|point| point.point).collect();
        let unwanted = Unwanted { series: &series, lease: &lease, points, is_whole: true, words: Vec::new() };
        remove_points(repository, &[unwanted], false, &mut |_, _| true).unwrap().end().unwrap();
    }
    series.end(&holder(seed + 1)).unwrap();
}

#[test]
fn a_series_that_a_user_has_listed_is_missed_when_its_folder_is_gone_until_it_is_back_or_forgotten() {
    let (user, lister, directory) = (User::new(), User::new(), new_directory(true));
    for (number, series) in [(1, "one"), (2, "one"), (3, "two"), (4, "two")] {
        run(&user.open(&directory), series, number);
    }
    let missing = |directory: &Directory| {
        let repository = lister.open(directory);
        let all = repository.all_points().unwrap();
        let missing = repository.missing_series(&all).unwrap();
        missing.into_iter().map(|(name, points)| (name, points.warnings())).collect::<Vec<_>>()
    };
    let away = directory.at_rest();
    take_away(&away, "two");
    assert!(missing(&away).is_empty(), "it knows nothing of it");
    let repository = lister.open(&directory);
    repository.remember_listed(&repository.all_points().unwrap()).unwrap();
    let found = missing(&away);
    assert!(found.len() == 1 && found[0].0 == "two" && found[0].1[0].contains("is gone"), "{found:?}");
    assert!(pruned(&lister.open(&away), "one", 1, 60).unwrap_err().to_string().contains("two is gone"));
    // That it was listed does not make its later points ones that are missed, nor a renamed folder one that is gone.
    run(&user.open(&directory), "two", 5);
    assert!(missing(&directory).is_empty());
    assert!(points(&lister.open(&directory), "two").warnings().is_empty());
    let renamed = directory.at_rest();
    rename(&renamed, "two", "new");
    assert!(missing(&renamed).is_empty());
    assert!(lister.open(&away).forget_missing("two").unwrap());
    assert!(missing(&away).is_empty());
}

#[test]
fn a_series_that_a_colleague_has_removed_is_not_missed_and_one_that_is_begun_anew_is_believed() {
    let (user, colleague, directory) = (User::new(), User::new(), new_directory(true));
    for (number, series) in [(1, "one"), (2, "one"), (3, "two"), (4, "two")] {
        run(&user.open(&directory), series, number);
    }
    let made = directory.at_rest();
    remove_series(&colleague.open(&directory), "two", 60);
    let repository = user.open(&directory);
    assert!(repository.missing_series(&repository.all_points().unwrap()).unwrap().is_empty());
    pruned(&user.open(&directory), "one", 1, 64).unwrap();
    sound(&user.open(&directory), "removed");
    let fresh = run(&colleague.open(&directory), "two", 5);
    assert_eq!(latest(&user.open(&directory), "two"), Ok(fresh));
    assert!(points(&user.open(&directory), "two").warnings().is_empty());
    // A note of one series says nothing of a later one of its name, nor does one that was written without the key.
    run(&user.open(&directory), "two", 6);
    take_away(&directory, "two");
    let repository = user.open(&directory);
    assert_eq!(repository.missing_series(&repository.all_points().unwrap()).unwrap().len(), 1);
    let forged = made.at_rest();
    take_away(&forged, "two");
    let mut note: serde_json::Value = unseal(&directory.bytes("repository.ended.json").unwrap()).unwrap();
    note["authenticated"] = "0".repeat(64).into();
    forged.create("repository.ended.json").unwrap().write(0, &seal(&note)).unwrap();
    let other = User::new();
    let repository = other.open(&made);
    repository.remember_listed(&repository.all_points().unwrap()).unwrap();
    let repository = other.open(&forged);
    assert_eq!(repository.missing_series(&repository.all_points().unwrap()).unwrap().len(), 1);
    let remarks = verified(&repository).remarks;
    assert!(remarks.len() == 1 && remarks[0].contains("repository.ended.json"), "{remarks:?}");
}
