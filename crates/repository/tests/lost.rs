//! Manifests that are lost one by one: a point that has one copy left is a point, one that has none is missed, and what
//! a run has not committed is neither.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod kit;

use kit::support::holder;
use kit::{MIB, Model, Source, check, compare, crashing, new_directory, pruned, restored, sound, verified};
use lunway_backup::{Lease, PointId, Retention};
use lunway_crash::Directory;
use lunway_repository::{Points, Series, Unwanted, prune, remove_points};

fn source(number: u8) -> Source {
    let mut source = Source::new(2 * MIB + 512);
    source.write(u64::from(number) * 65536, &[number; 5120]);
    source
}

/// A series of so many points.
fn series_of(count: u8, is_encrypted: bool) -> (Directory, Model, Vec<PointId>) {
    let (directory, mut model, mut ids) = (new_directory(is_encrypted), Model::new(), Vec::new());
    for number in 1..=count {
        let point = compare(&crashing(&directory), "one", &mut source(number), number.into()).point.point;
        model.insert(point, source(number).model);
        ids.push(point);
    }
    (directory, model, ids)
}

fn points(directory: &Directory) -> Points {
    crashing(directory).all_points().unwrap().into_iter().find(|(name, _)| name == "one").unwrap().1
}

fn manifests(directory: &Directory, number: u64) -> [String; 2] {
    let prefix = format!("one~{number:06}-");
    let names = directory.names();
    let (copies, firsts): (Vec<_>, Vec<_>) = names
        .into_iter()
        .filter(|name| name.starts_with(&prefix) && name.ends_with(".json"))
        .partition(|name| name.ends_with(".copy.json"));
    [copies.into_iter().next().unwrap(), firsts.into_iter().next().unwrap()]
}

fn remove(directory: &Directory, point: PointId, seed: u64) -> Vec<PointId> {
    let repository = crashing(directory);
    let series = Series::of(repository.clone(), "one", false).unwrap();
    let lease = Lease::take(&*series.folder, holder(seed), &|| false).unwrap();
    let points = vec![point];
    let unwanted = Unwanted {
        series: &series,
        lease: &lease,
        points,
        is_whole: false,
        words: vec!["latest".to_owned()],
    };
    let removal = remove_points(&repository, &[unwanted], false, &mut |_, _| true).unwrap();
    removal.end().unwrap().removed
}

#[test]
fn a_point_of_which_only_the_copy_of_the_manifest_is_left_is_the_latest_still() {
    for is_encrypted in [false, true] {
        let (directory, mut model, ids) = series_of(3, is_encrypted);
        for number in [2, 3] {
            directory.remove(&manifests(&directory, number)[1]);
        }
        let there = points(&directory);
        let latest = there.find("latest").unwrap();
        assert_eq!((latest.point, there.points().len()), (ids[2], 3));
        assert_eq!(restored(&crashing(&directory), latest).unwrap(), model[&ids[2]]);
        let report = verified(&crashing(&directory));
        let text = format!("{report:?}");
        assert_eq!(text.matches(".json is gone").count(), 2, "{text}");
        // A prune keeps it, and takes it where it is meant.
        let kept = directory.at_rest();
        pruned(&crashing(&kept), "one", 1, 60).unwrap();
        assert_eq!(points(&kept).find("latest").unwrap().point, ids[2]);
        let taken = directory.at_rest();
        assert_eq!(remove(&taken, ids[2], 61), [ids[2]]);
        assert_eq!(points(&taken).find("latest").unwrap().point, ids[1]);
        // The next run writes them again.
        let next = compare(&crashing(&directory), "one", &mut source(4), 4).point.point;
        model.insert(next, source(4).model);
        sound(&crashing(&directory), "mended");
        assert_eq!(check(&crashing(&directory), &model, "mended").len(), 4);
    }
}

#[test]
fn a_point_in_the_middle_that_is_gone_is_told_and_nothing_is_freed_until_it_is_back_or_given_up() {
    let (whole, mut model, ids) = series_of(3, true);
    let directory = whole.at_rest();
    manifests(&directory, 2).iter().for_each(|name| directory.remove(name));
    let told = |directory: &Directory| {
        let warnings = points(directory).warnings();
        let about = warnings.iter().filter(|what| what.contains(&ids[1].to_string())).count();
        assert_eq!(about, warnings.len(), "{warnings:?}");
        about
    };
    assert_eq!(told(&directory), 1);
    assert!(!verified(&crashing(&directory)).findings.is_empty());
    let refused = pruned(&crashing(&directory), "one", 5, 60).unwrap_err().to_string();
    assert!(refused.contains("is gone"), "{refused}");
    // A run goes on, and it stays known.
    let next = compare(&crashing(&directory), "one", &mut source(4), 4).point.point;
    model.insert(next, source(4).model);
    assert_eq!(told(&directory), 1);
    assert!(pruned(&crashing(&directory), "one", 5, 61).is_err());
    // It is back, with all that it needs.
    let back = directory.at_rest();
    for name in manifests(&whole, 2) {
        back.create(&name).unwrap().write(0, &whole.bytes(&name).unwrap()).unwrap();
    }
    pruned(&crashing(&back), "one", 5, 62).unwrap();
    sound(&crashing(&back), "back");
    assert_eq!(check(&crashing(&back), &model, "back").len(), 4);
    // It is given up.
    let repository = crashing(&directory);
    let series = Series::of(repository, "one", false).unwrap();
    let lease = Lease::take(&*series.folder, holder(63), &|| false).unwrap();
    let retention = Retention { last: 5, despite_damage: true, ..Retention::default() };
    prune(&series, &lease, &retention, &mut |_, _| true).unwrap();
    drop(lease);
    assert_eq!(told(&directory), 0);
    sound(&crashing(&directory), "given up");
}

/// A change of a manifest that makes it none.
type Way<'a> = &'a dyn Fn(&mut Vec<u8>);

/// Both manifests of the newest point, cut, emptied, changed, exchanged with those of another point or series: no other
/// point is given out in its place.
#[test]
fn a_newest_point_whose_manifests_cannot_be_read_is_never_passed_over_without_a_word() {
    for is_encrypted in [false, true] {
        let (sound, _, ids) = series_of(3, is_encrypted);
        compare(&crashing(&sound), "two", &mut source(9), 9);
        let bytes = |begin: &str| {
            let is_it = |name: &String| name.starts_with(begin) && name.ends_with(".copy.json");
            sound.names().into_iter().find(is_it).and_then(|name| sound.bytes(&name)).unwrap()
        };
        let (other_point, other_series) = (bytes("one~000002"), bytes("two~000001"));
        let ways: [Way<'_>; 5] = [
            &|bytes| bytes.truncate(200),
            &|bytes| bytes.clear(),
            &|bytes| bytes[150] ^= 1,
            &|bytes| bytes.clone_from(&other_point),
            &|bytes| bytes.clone_from(&other_series),
        ];
        for way in ways {
            let directory = sound.at_rest();
            for name in manifests(&directory, 3) {
                let mut bytes = directory.bytes(&name).unwrap();
                way(&mut bytes);
                directory.remove(&name);
                directory.create(&name).unwrap().write(0, &bytes).unwrap();
            }
            let there = points(&directory);
            let about = format!("point {} cannot be read", ids[2]);
            for text in ["latest", "2099-01-01"] {
                let said = there.find(text).map(drop).unwrap_err().to_string();
                let is_named =
                    said.contains(&about) && said.contains("000003-") && said.contains("give the id");
                assert!(is_named, "{text}: {said}");
            }
            assert!(there.find_unwanted("latest").is_err());
            assert!(there.find(&ids[2].to_string()).unwrap_err().to_string().contains(&about));
            assert_eq!(there.find(&ids[1].to_string()).unwrap().point, ids[1]);
            let next = compare(&crashing(&directory), "one", &mut source(4), 4);
            assert!(next.notes.iter().any(|note| note.contains(&about)), "{:?}", next.notes);
            assert_eq!(next.point.generation, 4, "no number is used twice");
            let there = points(&directory);
            assert_eq!(there.find("latest").unwrap().point, next.point.point);
            assert_eq!(restored(&crashing(&directory), &next.point).unwrap(), source(4).model);
        }
    }
}

#[test]
fn where_no_manifest_is_left_the_point_that_is_missed_is_named() {
    for is_removed in [true, false] {
        let (directory, _, ids) = series_of(1, true);
        for name in manifests(&directory, 1) {
            directory.remove(&name);
            if !is_removed {
                directory.create(&name).unwrap().write(0, b"garbage").unwrap();
            }
        }
        let said = points(&directory).find("latest").map(drop).unwrap_err().to_string();
        let what = if is_removed { "is gone" } else { "cannot be read" };
        assert!(said.contains("holds no point that can be read") && said.contains(what), "{said}");
        assert!(said.contains(&ids[0].to_string()), "{said}");
    }
}

#[test]
fn a_copy_of_a_manifest_under_another_number_blocks_nothing() {
    let (directory, _, ids) = series_of(2, true);
    let bytes = directory.bytes(&manifests(&directory, 2)[1]).unwrap();
    directory.create(&format!("one~000003-{}.json", ids[1])).unwrap().write(0, &bytes).unwrap();
    let there = points(&directory);
    let told = there.warnings();
    assert!(told.len() == 1 && told[0].contains("blocks nothing: remove it"), "{told:?}");
    assert_eq!(there.find("latest").unwrap().point, ids[1]);
    pruned(&crashing(&directory), "one", 1, 60).unwrap();
    assert_eq!(points(&directory).points().len(), 1);
}

#[test]
fn what_prunes_have_removed_is_not_missed() {
    let (directory, _, ids) = series_of(5, true);
    assert_eq!(remove(&directory, ids[2], 60), [ids[2]]);
    assert_eq!(points(&directory).warnings(), Vec::<String>::new());
    pruned(&crashing(&directory), "one", 2, 61).unwrap();
    assert_eq!(points(&directory).warnings(), Vec::<String>::new());
    compare(&crashing(&directory), "one", &mut source(6), 6);
    pruned(&crashing(&directory), "one", 1, 62).unwrap();
    sound(&crashing(&directory), "pruned");
}

/// A run that was killed between the two copies of its manifest, and prunes before the next run.
#[test]
fn a_point_that_was_not_committed_is_made_one_by_the_next_run_whatever_was_pruned_before() {
    for takes_latest in [false, true] {
        let (directory, _, ids) = series_of(2, true);
        let third = directory.at_rest();
        let point = compare(&crashing(&third), "one", &mut source(3), 3).point.point;
        let [copy, first] = manifests(&third, 3);
        // As at the moment of the kill: its data and its copy, and the head from before.
        let head = directory.bytes("one~head.json").unwrap();
        third.remove(&first);
        third.remove("one~head.json");
        third.create("one~head.json").unwrap().write(0, &head).unwrap();
        assert_eq!(points(&third).find("latest").unwrap().point, ids[1]);
        match takes_latest {
            true => assert_eq!(remove(&third, ids[1], 60), [ids[1]]),
            false => drop(pruned(&crashing(&third), "one", 1, 60).unwrap()),
        }
        let there = points(&third);
        assert_eq!(there.warnings(), Vec::<String>::new(), "{takes_latest}");
        let report = verified(&crashing(&third));
        assert!(report.findings.is_empty(), "{report:?}");
        assert!(third.names().contains(&copy));
        let next = compare(&crashing(&third), "one", &mut source(4), 4);
        assert!(next.notes.iter().any(|note| note.contains("written again")), "{:?}", next.notes);
        let there = points(&third);
        let last: Vec<_> = there.points().iter().rev().take(2).map(|point| point.point).collect();
        assert_eq!(last, [next.point.point, point]);
        assert_eq!(
            restored(&crashing(&third), &there.points()[there.points().len() - 2]).unwrap(),
            source(3).model
        );
        sound(&crashing(&third), "promoted");
    }
}

#[test]
fn a_file_with_a_number_that_no_series_comes_to_blocks_nothing() {
    for number in [1 << 62, u64::MAX] {
        let (directory, _, ids) = series_of(2, true);
        let name = format!("one~{number}-00000000000000ac.json");
        directory.create(&name).unwrap().write(0, b"{}").unwrap();
        let told = points(&directory).warnings();
        assert!(told.len() == 1 && told[0].contains("blocks nothing: remove it"), "{told:?}");
        let next = compare(&crashing(&directory), "one", &mut source(3), 3);
        assert_eq!(next.point.generation, 3);
        pruned(&crashing(&directory), "one", 2, 60).unwrap();
        let there = points(&directory);
        let left: Vec<_> = there.points().iter().map(|point| point.point).collect();
        assert_eq!(left, [ids[1], next.point.point]);
    }
}
