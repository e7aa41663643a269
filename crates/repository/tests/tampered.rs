//! What somebody without the key puts in the place of a marker, of a series or of its newest points is noticed.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod kit;

use kit::support::{How, holder};
use kit::{
    CrashingPlaces, MIB, Model, Source, back_up, back_up_as, check, compare, crashing, identity,
    new_directory, pruned, sound, verified,
};
use lunway_backup::{BackupError, seal, unseal};
use lunway_crash::Directory;
use lunway_repository::{Identity, Kept, Pins, Repository, RepositoryPoint};
use serde_json::Value;

const MARKERS: [&str; 2] = ["repository.json", "repository.copy.json"];

fn replace(directory: &Directory, name: &str, bytes: &[u8]) {
    directory.remove(name);
    directory.create(name).unwrap().write(0, bytes).unwrap();
}

/// Changes a sealed document, as somebody without the key can.
fn edit(directory: &Directory, name: &str, change: impl FnOnce(&mut Value)) {
    let mut document: Value = unseal(&directory.bytes(name).unwrap()).unwrap();
    change(&mut document);
    replace(directory, name, &seal(&document));
}

fn opened(directory: &Directory, kept: Kept, identities: &[Identity]) -> Result<Repository, BackupError> {
    Repository::open(std::sync::Arc::new(CrashingPlaces(directory.clone())), kept, identities)
}

fn source(number: u8) -> Source {
    let mut source = Source::new(2 * MIB + 512);
    source.write(u64::from(number) * 65536, &[number; 5120]);
    source
}

#[test]
fn a_marker_that_was_changed_without_the_key_is_not_used_and_its_copy_is() {
    let made = new_directory(true);
    type Change = fn(&mut Value);
    let changes: [(&str, Change); 3] = [
        ("a recipient", |marker| marker["keys"].as_array_mut().unwrap().push(marker_key())),
        ("another id", |marker| marker["repository"] = "00000000000000aa".into()),
        ("another tag", |marker| marker["authenticated"] = "0".repeat(64).into()),
    ];
    for (what, change) in changes {
        let directory = made.at_rest();
        edit(&directory, MARKERS[0], change);
        let repository = opened(&directory, Kept::default(), &identity(true)).unwrap();
        assert_eq!(repository.marker().keys.len(), 1, "{what}");
        let outcome = compare(&repository, "one", &mut source(1), 1);
        assert!(outcome.notes.iter().any(|note| note.contains("was written again")), "{what}: {outcome:?}");
        assert_eq!(directory.bytes(MARKERS[0]), directory.bytes(MARKERS[1]), "{what}");
        edit(&directory, MARKERS[0], change);
        edit(&directory, MARKERS[1], change);
        let said = opened(&directory, Kept::default(), &identity(true)).map(drop).unwrap_err().to_string();
        assert!(said.contains("does not have the repository's key"), "{what}: {said}");
    }
}

fn marker_key() -> Value {
    serde_json::json!({
        "recipient": Identity::generate().unwrap().recipient().to_string(),
        "ephemeral": "11".repeat(32),
        "wrapped": "22".repeat(48),
    })
}

#[test]
fn a_marker_of_before_there_were_tags_is_read_and_gets_one_with_the_next_change() {
    let directory = new_directory(true);
    for name in MARKERS {
        edit(&directory, name, |marker| drop(marker.as_object_mut().unwrap().remove("authenticated")));
    }
    let mut repository = opened(&directory, Kept::default(), &identity(true)).unwrap();
    compare(&repository, "one", &mut source(1), 1);
    repository.add_recipient(&Identity::generate().unwrap().recipient(), &holder(2)).unwrap();
    let marker: Value = unseal(&directory.bytes(MARKERS[0]).unwrap()).unwrap();
    assert_eq!(marker["authenticated"].as_str().unwrap().len(), 64);
    sound(&crashing(&directory), "afterwards");
}

#[test]
fn another_repository_in_the_place_of_one_that_was_seen_is_refused() {
    let state = tempfile::tempdir().unwrap();
    let kept = || Kept { cache: None, pins: Some(Pins::within(state.path(), "the share")) };
    let directory = new_directory(true);
    opened(&directory, kept(), &identity(true)).unwrap();
    // Made for the same public key, which the marker names, by somebody else; and one in the clear.
    for (other, expected) in
        [(new_directory(true), "is another repository"), (new_directory(false), "is not encrypted")]
    {
        let planted = directory.at_rest();
        for name in MARKERS {
            replace(&planted, name, &other.bytes(name).unwrap());
        }
        let said = opened(&planted, kept(), &identity(true)).map(drop).unwrap_err().to_string();
        assert!(said.contains(expected) && said.contains(state.path().to_str().unwrap()), "{said}");
        // Where one of the two is left, that one counts.
        replace(&planted, MARKERS[1], &directory.bytes(MARKERS[1]).unwrap());
        let repository = opened(&planted, kept(), &identity(true)).unwrap();
        compare(&repository, "one", &mut source(1), 1);
        assert_eq!(planted.bytes(MARKERS[0]), directory.bytes(MARKERS[0]));
    }
}

fn renamed(directory: &Directory, from: &str, to: &str) {
    for name in directory.names() {
        if let Some(rest) = name.strip_prefix(&format!("{from}~")) {
            directory.rename(&name, &format!("{to}~{rest}")).unwrap();
        }
    }
}

/// Three points of one series and two of another.
fn made(is_encrypted: bool) -> (Directory, Model) {
    let directory = new_directory(is_encrypted);
    let mut model = Model::new();
    for number in 1..6u8 {
        let series = if number < 4 { "one" } else { "two" };
        let mut source = source(number);
        let point = compare(&crashing(&directory), series, &mut source, number.into()).point.point;
        model.insert(point, source.model);
    }
    (directory.at_rest(), model)
}

#[test]
fn folders_of_series_that_were_exchanged_are_refused_until_they_are_back_and_nothing_is_removed() {
    for is_encrypted in [false, true] {
        let (directory, model) = made(is_encrypted);
        renamed(&directory, "one", "three");
        renamed(&directory, "two", "one");
        renamed(&directory, "three", "two");
        let repository = crashing(&directory);
        for (name, points) in repository.all_points().unwrap() {
            let said = points.find("latest").map(drop).unwrap_err().to_string();
            assert!(said.contains(&format!("of the series {name} holds")), "{said}");
            assert_eq!(points.warnings().len(), 1, "{name}");
        }
        let report = verified(&repository);
        assert_eq!(report.findings.len(), 2, "{report:?}");
        let refused = |result: Result<(), BackupError>| {
            let said = result.unwrap_err().to_string();
            assert!(said.contains("holds points of the series two"), "{said}");
        };
        let changed = source(7).unknown();
        refused(back_up(&repository, "one", &source(7), How::new(changed, 7)).map(drop));
        refused(pruned(&repository, "one", 1, 8).map(drop));
        renamed(&directory, "one", "three");
        renamed(&directory, "two", "one");
        renamed(&directory, "three", "two");
        assert_eq!(check(&crashing(&directory), &model, "back").len(), model.len());
        sound(&crashing(&directory), "back");
    }
}

#[test]
fn a_series_that_was_renamed_on_purpose_goes_on_when_its_run_says_so() {
    let (directory, mut model) = made(true);
    renamed(&directory, "one", "new");
    let mut source = source(9);
    let changed = source.unknown();
    let outcome = back_up_as(&crashing(&directory), "new", &source, How::new(changed, 9), true).unwrap();
    model.insert(outcome.point.point, source.model.clone());
    assert_eq!(check(&crashing(&directory), &model, "renamed").len(), model.len());
    let repository = crashing(&directory);
    let all = repository.all_points().unwrap();
    assert!(all.iter().all(|(_, points)| points.warnings().is_empty() && points.find("latest").is_ok()));
    sound(&repository, "renamed");
    pruned(&repository, "new", 1, 10).unwrap();
    // And not back.
    renamed(&directory, "new", "one");
    assert!(crashing(&directory).all_points().unwrap()[0].1.find("latest").is_err());
}

#[test]
fn newest_points_that_are_gone_without_a_prune_are_told_once() {
    for is_encrypted in [false, true] {
        let (made, _) = made(is_encrypted);
        let points = crashing(&made).all_points().unwrap();
        let stems: Vec<String> = points[0].1.points().iter().map(RepositoryPoint::stem).collect();
        for gone in [1, 2] {
            let directory = made.at_rest();
            for stem in &stems[3 - gone..] {
                directory.remove(&format!("one~{stem}.json"));
                directory.remove(&format!("one~{stem}.copy.json"));
            }
            let report = verified(&crashing(&directory));
            let found: Vec<_> =
                report.findings.iter().filter(|found| found.what.contains("is gone")).collect();
            assert!(
                found.len() == gone && found.iter().all(|found| found.what.contains("no prune")),
                "{report:?}"
            );
            let outcome = compare(&crashing(&directory), "one", &mut source(7), 60);
            assert!(outcome.notes.iter().any(|note| note.contains("is gone")), "{:?}", outcome.notes);
            assert_eq!(outcome.point.generation, 4, "no number is used twice");
            // A run says it once, a verification until it is given up or back.
            let findings = verified(&crashing(&directory)).findings;
            assert!(
                findings.len() == gone
                    && findings.iter().all(|found| found.what.contains("a run went on without it")),
                "{findings:?}"
            );
            let outcome = compare(&crashing(&directory), "one", &mut source(8), 61);
            assert!(outcome.notes.is_empty(), "{:?}", outcome.notes);
        }
        // With its head as well, or with one that was made without the key.
        let directory = made.at_rest();
        directory.remove("one~head.json");
        assert!(verified(&crashing(&directory)).remarks[0].contains("head.json"));
        let outcome = compare(&crashing(&directory), "one", &mut source(7), 60);
        assert!(outcome.notes.iter().any(|note| note.contains("head.json")), "{:?}", outcome.notes);
        sound(&crashing(&directory), "told");
        if is_encrypted {
            edit(&directory, "one~head.json", |head| head["generation"] = 1.into());
            assert!(verified(&crashing(&directory)).remarks[0].contains("not written with the key"));
        }
    }
}

#[test]
fn a_prune_removes_points_and_nothing_is_missed_also_where_a_run_was_cut_off_from_its_head() {
    let (directory, _) = made(false);
    let old_head = directory.bytes("one~head.json").unwrap();
    for number in 10..12 {
        compare(&crashing(&directory), "one", &mut source(number), number.into());
    }
    replace(&directory, "one~head.json", &old_head);
    sound(&crashing(&directory), "behind");
    pruned(&crashing(&directory), "one", 1, 70).unwrap();
    sound(&crashing(&directory), "pruned");
}

#[test]
fn an_older_state_of_a_series_is_told_to_who_has_seen_a_newer_one() {
    let state = tempfile::tempdir().unwrap();
    let kept = || Kept { cache: None, pins: Some(Pins::within(state.path(), "the share")) };
    let directory = new_directory(true);
    let repository = |directory: &Directory| opened(directory, kept(), &identity(true)).unwrap();
    compare(&repository(&directory), "one", &mut source(1), 1);
    let older = directory.at_rest();
    compare(&repository(&directory), "one", &mut source(2), 2);
    let report = verified(&repository(&older));
    assert!(report.findings[0].what.contains("older state"), "{report:?}");
    let outcome = compare(&repository(&older), "one", &mut source(3), 3);
    assert!(outcome.notes.iter().any(|note| note.contains("older state")), "{:?}", outcome.notes);
    assert!(compare(&repository(&older), "one", &mut source(4), 4).notes.is_empty());
}

#[test]
fn a_series_whose_manifests_do_not_name_it_yet_goes_on_without_a_word() {
    let (directory, mut model) = made(false);
    for name in directory.names().iter().filter(|name| name.starts_with("one~00")) {
        edit(&directory, name, |manifest| {
            let fields = manifest.as_object_mut().unwrap();
            assert!(fields.remove("series").is_some());
            fields.remove("before");
        });
    }
    directory.remove("one~head.json");
    assert_eq!(check(&crashing(&directory), &model, "older").len(), model.len());
    sound(&crashing(&directory), "older");
    let mut source = source(9);
    let outcome = compare(&crashing(&directory), "one", &mut source, 9);
    assert!(outcome.notes.is_empty() && outcome.point.base.is_some(), "{outcome:?}");
    model.insert(outcome.point.point, source.model.clone());
    assert_eq!(check(&crashing(&directory), &model, "gone on").len(), model.len());
    pruned(&crashing(&directory), "one", 2, 10).unwrap();
    sound(&crashing(&directory), "pruned");
}

/// What a user keeps of a repository.
fn keeping(state: &tempfile::TempDir) -> Kept {
    Kept { cache: None, pins: Some(Pins::within(state.path(), "the share")) }
}

#[test]
fn a_marker_that_was_changed_with_its_copy_is_used_as_it_was_kept_and_the_next_command_mends_it() {
    type Change = fn(&mut Value);
    let changes: [(&str, Change); 3] = [
        ("another order", |marker| marker["keys"].as_array_mut().unwrap().push(marker_key())),
        ("nobody's", |marker| marker["keys"] = serde_json::json!([marker_key()])),
        ("without its tag", |marker| drop(marker.as_object_mut().unwrap().remove("authenticated"))),
    ];
    for (what, change) in changes {
        for mender in ["run", "prune", "key"] {
            let state = tempfile::tempdir().unwrap();
            let directory = new_directory(true);
            compare(&opened(&directory, keeping(&state), &identity(true)).unwrap(), "one", &mut source(1), 1);
            let right = directory.bytes(MARKERS[0]).unwrap();
            for name in MARKERS {
                edit(&directory, name, change);
            }
            let mut repository = opened(&directory, keeping(&state), &identity(true)).unwrap();
            let said = repository.warnings().join("\n");
            assert!(
                said.contains("this user has kept") && said.contains(state.path().to_str().unwrap()),
                "{said}"
            );
            assert!(repository.all_points().unwrap()[0].1.find("latest").is_ok(), "{what}");
            match mender {
                "run" => drop(compare(&repository, "one", &mut source(2), 2)),
                "prune" => drop(pruned(&repository, "one", 1, 3).unwrap()),
                _ => {
                    let other = Identity::generate().unwrap().recipient();
                    repository.add_recipient(&other, &holder(4)).unwrap();
                    assert_eq!(repository.marker().keys.len(), 2);
                }
            }
            if mender != "key" {
                assert_eq!(directory.bytes(MARKERS[0]), Some(right), "{what}, {mender}");
            }
            assert_eq!(directory.bytes(MARKERS[0]), directory.bytes(MARKERS[1]), "{what}, {mender}");
            let repository = opened(&directory, Kept::default(), &identity(true)).unwrap();
            sound(&repository, what);
        }
    }
}

#[test]
fn a_marker_of_another_repository_is_never_written_over_and_the_way_back_is_named() {
    let state = tempfile::tempdir().unwrap();
    let directory = new_directory(true);
    opened(&directory, keeping(&state), &identity(true)).unwrap();
    let right = directory.bytes(MARKERS[0]).unwrap();
    for name in MARKERS {
        edit(&directory, name, |marker| marker["repository"] = "00000000000000aa".into());
    }
    let said = opened(&directory, keeping(&state), &identity(true)).map(drop).unwrap_err().to_string();
    let kept = said.split_once("it is in ").unwrap().1.trim_end_matches(')');
    assert_eq!(std::fs::read(kept).unwrap(), right, "{said}");
    for name in MARKERS {
        replace(&directory, name, &std::fs::read(kept).unwrap());
    }
    opened(&directory, keeping(&state), &identity(true)).unwrap();
}

#[test]
fn a_person_whose_key_was_removed_does_not_bring_it_back_and_an_older_marker_is_not_used() {
    let directory = new_directory(true);
    let (state, other_state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let other = Identity::generate().unwrap();
    let mut repository = opened(&directory, keeping(&state), &identity(true)).unwrap();
    repository.add_recipient(&other.recipient(), &holder(1)).unwrap();
    let before = MARKERS.map(|name| directory.bytes(name).unwrap());
    let others = [Identity::parse(&other.to_text()).unwrap()];
    opened(&directory, keeping(&other_state), &others).unwrap();
    repository.remove_recipient(&other.recipient(), &holder(2)).unwrap();
    let said = opened(&directory, keeping(&other_state), &others).map(drop).unwrap_err().to_string();
    assert!(said.contains("none of theirs"), "{said}");
    // Put back, it is told to who has seen the newer one, who writes that again.
    for (name, bytes) in MARKERS.iter().zip(&before) {
        replace(&directory, name, bytes);
    }
    let repository = opened(&directory, keeping(&state), &identity(true)).unwrap();
    assert!(repository.warnings().join("\n").contains("is older than"), "{:?}", repository.warnings());
    assert_eq!(repository.marker().keys.len(), 1);
    compare(&repository, "one", &mut source(1), 5);
    assert!(opened(&directory, Kept::default(), &others).is_err());
}

#[test]
fn a_change_of_keys_that_was_cut_off_between_its_files_is_not_undone_by_the_next_run() {
    let directory = new_directory(true);
    let old = directory.bytes(MARKERS[0]).unwrap();
    let other = Identity::generate().unwrap();
    crashing(&directory).add_recipient(&other.recipient(), &holder(1)).unwrap();
    // The copy is written first.
    replace(&directory, MARKERS[0], &old);
    let others = [Identity::parse(&other.to_text()).unwrap()];
    let report = verified(&crashing(&directory));
    assert!(report.remarks[0].contains("is of another state"), "{report:?}");
    compare(&crashing(&directory), "one", &mut source(1), 2);
    assert_eq!(directory.bytes(MARKERS[0]), directory.bytes(MARKERS[1]));
    let repository = opened(&directory, Kept::default(), &others).unwrap();
    assert_eq!(repository.marker().keys.len(), 2);
}

#[test]
fn a_change_of_keys_to_a_marker_that_was_put_back_is_told_with_the_keys_and_nothing_is_written_until_that_is_settled()
 {
    let [carl, dora, eve] = [0; 3].map(|_| Identity::generate().unwrap().recipient());
    // Changes of the colleague: to the same revision as this user knows, and to a higher one.
    for changes in [&[&dora][..], &[&dora, &eve]] {
        let [ann, ben] = [0; 2].map(|_| tempfile::tempdir().unwrap());
        let directory = new_directory(true);
        let user = |state: &tempfile::TempDir, directory: &Directory| {
            opened(directory, keeping(state), &identity(true)).unwrap()
        };
        user(&ann, &directory).add_recipient(&carl, &holder(1)).unwrap();
        compare(&user(&ann, &directory), "one", &mut source(1), 2);
        assert!(user(&ben, &directory).warnings().is_empty());
        let before = MARKERS.map(|name| directory.bytes(name).unwrap());
        user(&ann, &directory).remove_recipient(&carl, &holder(3)).unwrap();
        let right = directory.bytes(MARKERS[0]).unwrap();
        for (name, bytes) in MARKERS.iter().zip(&before) {
            replace(&directory, name, bytes);
        }
        for (number, recipient) in (4..).zip(changes) {
            user(&ben, &directory).add_recipient(recipient, &holder(number)).unwrap();
        }
        let changed = directory.bytes(MARKERS[0]).unwrap();
        for _ in 0..2 {
            let mut repository = user(&ann, &directory);
            let said = repository.warnings().join("\n");
            for named in changes.iter().copied().chain([&carl]) {
                assert!(said.contains(&named.to_string()), "{said}");
            }
            assert!(said.contains("for whom the kept one is not") && said.contains("remove /"), "{said}");
            // It is read as before.
            let point = repository.all_points().unwrap()[0].1.find("latest").unwrap().clone();
            assert_eq!(kit::restored(&repository, &point).unwrap(), source(1).model);
            let refused = [
                repository.add_recipient(&eve, &holder(7)).map(drop),
                repository.remove_recipient(&carl, &holder(8)).map(drop),
                pruned(&repository, "one", 1, 9).map(drop),
                lunway_repository::Series::of(repository.clone(), "new", true).map(drop),
            ];
            for refused in refused {
                assert!(refused.unwrap_err().to_string().contains("nothing is written until"));
            }
            let mut disk = source(2);
            let how = How::new(disk.unknown(), 10);
            let series = lunway_repository::Series::of(repository.clone(), "one", false).unwrap();
            let lease = lunway_backup::Lease::take(&*series.folder, holder(10), &|| false).unwrap();
            let (guids, mut told) = (kit::support::guids(10), |_| ());
            let run = lunway_repository::run(
                &series,
                &lease,
                &guids,
                how.request(&disk.disk, disk.epoch),
                &mut told,
            );
            assert!(kit::support::block_on(run).is_err());
            drop(lease);
            assert_eq!(directory.bytes(MARKERS[0]), Some(changed.clone()));
        }
        let kept =
            user(&ann, &directory).warnings()[0].split_once("this user has kept, ").unwrap().1.to_owned();
        let kept = kept.split_once(": an older").unwrap().0.to_owned();
        assert_eq!(std::fs::read(&kept).unwrap(), right);
        // It is put back: the colleague is told in turn.
        let back = directory.at_rest();
        MARKERS.iter().for_each(|name| replace(&back, name, &right));
        compare(&user(&ann, &back), "one", &mut source(3), 11);
        assert!(user(&ben, &back).warnings()[0].contains(&dora.to_string()));
        // Or it is taken for right.
        std::fs::remove_file(&kept).unwrap();
        assert!(user(&ann, &directory).warnings().is_empty());
        user(&ann, &directory).remove_recipient(&carl, &holder(12)).unwrap();
        compare(&user(&ben, &directory), "one", &mut source(4), 13);
        for state in [&ann, &ben] {
            let repository = user(state, &directory);
            assert!(repository.warnings().is_empty() && repository.marker().keys.len() == 1 + changes.len());
        }
        sound(&crashing(&directory), "settled");
    }
}

#[test]
fn a_person_for_whom_an_older_marker_that_was_put_back_is_not_goes_on_with_what_was_kept() {
    let (ann, ben) = (identity(true), [Identity::generate().unwrap()]);
    let other = Identity::generate().unwrap().recipient();
    for is_changed in [false, true] {
        let [of_ann, of_ben] = [0; 2].map(|_| tempfile::tempdir().unwrap());
        let directory = new_directory(true);
        let before = directory.bytes(MARKERS[0]).unwrap();
        let mut repository = opened(&directory, keeping(&of_ann), &ann).unwrap();
        repository.add_recipient(&ben[0].recipient(), &holder(1)).unwrap();
        compare(&opened(&directory, keeping(&of_ben), &ben).unwrap(), "one", &mut source(1), 2);
        MARKERS.iter().for_each(|name| replace(&directory, name, &before));
        if is_changed {
            let mut colleague = opened(&directory, Kept::default(), &ann).unwrap();
            colleague.add_recipient(&other, &holder(3)).unwrap();
        }
        let repository = opened(&directory, keeping(&of_ben), &ben).unwrap();
        let said = repository.warnings().join("\n");
        let expected = if is_changed { "an older one was put back" } else { "is older than" };
        assert!(said.contains(expected), "{said}");
        let point = repository.all_points().unwrap()[0].1.find("latest").unwrap().clone();
        assert_eq!(kit::restored(&repository, &point).unwrap(), source(1).model);
        if is_changed {
            assert!(pruned(&repository, "one", 1, 4).is_err());
            continue;
        }
        compare(&repository, "one", &mut source(2), 5);
        // Who was removed is not let in by what was kept.
        let mut repository = opened(&directory, keeping(&of_ann), &ann).unwrap();
        assert_eq!(repository.marker().keys.len(), 2);
        repository.remove_recipient(&ben[0].recipient(), &holder(6)).unwrap();
        let said = opened(&directory, keeping(&of_ben), &ben).map(drop).unwrap_err().to_string();
        assert!(said.contains("none of theirs"), "{said}");
    }
}
