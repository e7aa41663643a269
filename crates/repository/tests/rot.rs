//! Any byte of any file flipped: verification finds it and names the points concerned, nothing wrong is restored, and
//! the next run heals what the source still has.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod kit;

use std::collections::BTreeSet;
use std::sync::Arc;

use kit::{
    CrashingPlaces, MIB, Model, Random, Source, amount, assert_same, check, compare, crashing, follow,
    new_directory, pruned, restored, sound, verified,
};
use lunway_backup::{HostFolder, PointId};
use lunway_crash::Directory;
use lunway_repository::{Kept, Repository};

/// Three points, of which the last is what the source holds.
fn made(is_encrypted: bool) -> (Directory, Model, Source) {
    let mut source = Source::new(2 * MIB + 512);
    let directory = new_directory(is_encrypted);
    let mut model = Model::new();
    for number in 1..4u8 {
        source.write(u64::from(number) * 65536, &[number; 5120]);
        source.write(MIB + u64::from(number) * 512, &[number + 100; 512]);
        let outcome = compare(&crashing(&directory), "one", &mut source, number.into());
        model.insert(outcome.point.point, source.model.clone());
    }
    (directory.at_rest(), model, source)
}

/// Points that are not given as they were, by a restore that says so.
fn lost(directory: &Directory, model: &Model, context: &str) -> BTreeSet<PointId> {
    let repository = crashing(directory);
    let mut lost = BTreeSet::new();
    for (_, points) in repository.all_points().unwrap() {
        lost.extend(points.unreadable.iter().map(|unreadable| unreadable.point));
        for point in points.points() {
            match restored(&repository, point) {
                Ok(bytes) => assert_same(&bytes, &model[&point.point], context),
                Err(_) => drop(lost.insert(point.point)),
            }
        }
    }
    lost
}

#[test]
fn any_flipped_byte_is_found_and_named_and_healed() {
    let seed = amount("LUNWAY_BACKUP_SEED", 1);
    for is_encrypted in [false, true] {
        let (made, model, mut source) = made(is_encrypted);
        let mut random = Random::new(seed);
        let mut found_any = 0;
        for name in made.names() {
            let len = made.bytes(&name).unwrap().len() as u64;
            for _ in 0..amount("LUNWAY_BACKUP_FLIPS", 4) {
                let at = random.next() % len;
                let directory = made.at_rest();
                directory.flip(&name, at, 1 << (random.next() % 8));
                let context = format!("seed {seed}, {name}, byte {at} of {len}");
                let lost = lost(&directory, &model, &context);
                let report = verified(&crashing(&directory));
                assert!(!report.findings.is_empty() || !report.remarks.is_empty(), "{context}: not found");
                let concerned: BTreeSet<PointId> =
                    report.findings.iter().flat_map(|found| found.concerned.iter().copied()).collect();
                assert!(lost.is_subset(&concerned), "{context}: {lost:?} of {report:?}");
                let whole: BTreeSet<PointId> = report.whole.iter().copied().collect();
                assert!(whole.is_disjoint(&concerned), "{context}");
                if name.starts_with("pack-") {
                    assert!(!report.findings.is_empty(), "{context}: {report:?}");
                    found_any += 1;
                }
                // The source has what the newest point holds.
                let outcome = compare(&crashing(&directory), "one", &mut source, 50);
                let repository = crashing(&directory);
                let newest = restored(&repository, &outcome.point);
                assert_same(
                    &newest.unwrap_or_else(|error| panic!("{context}: {error}")),
                    &source.model,
                    &context,
                );
                let again = verified(&repository);
                let concerned: BTreeSet<PointId> =
                    again.findings.iter().flat_map(|found| found.concerned.iter().copied()).collect();
                let newest_before =
                    *model.keys().max_by_key(|point| generation(&repository, **point)).unwrap();
                assert!(!concerned.contains(&outcome.point.point), "{context}: {again:?}");
                assert!(
                    !concerned.contains(&newest_before)
                        || lost.contains(&newest_before) && name.contains('~'),
                    "{context}: {again:?}"
                );
            }
        }
        assert!(found_any > 0);
    }
}

fn generation(repository: &lunway_repository::Repository, point: PointId) -> u64 {
    let all = repository.all_points().unwrap();
    all.iter().find_map(|(_, points)| points.get(point)).map_or(0, |point| point.generation)
}

#[test]
fn of_a_pack_that_has_another_length_nothing_is_lost_that_is_whole_in_it() {
    for cut in [None, Some(1), Some(200), Some(100_000)] {
        let context = format!("{cut:?}");
        let mut source = Source::new(2 * MIB + 512);
        let mut random = Random::new(7);
        for leaf in 0..20 {
            let bytes: Vec<u8> = (0..65_536).map(|_| random.next() as u8).collect();
            source.write(leaf * 65_536, &bytes);
        }
        let directory = new_directory(false);
        let first = compare(&crashing(&directory), "one", &mut source, 1).point;
        let mut model = Model::from([(first.point, source.model.clone())]);
        let directory = directory.at_rest();
        let packs = directory.names().into_iter().filter(|name| name.starts_with("pack-"));
        let name = packs.max_by_key(|name| directory.bytes(name).unwrap().len()).unwrap();
        let (file, len) = (directory.open(&name).unwrap(), directory.bytes(&name).unwrap().len() as u64);
        match cut {
            None => file.write(len, b"x").unwrap(),
            Some(bytes) => file.resize(len - bytes),
        }
        // Entries are cut off.
        let is_lost = cut == Some(100_000);
        assert!(!verified(&crashing(&directory)).findings.is_empty(), "{context}");
        // A run of another disk, which does not have them.
        let mut other = Source::new(MIB);
        other.write(4096, &[77; 4096]);
        let outcome = compare(&crashing(&directory), "two", &mut other, 70);
        model.insert(outcome.point.point, other.model.clone());
        if is_lost {
            assert!(pruned(&crashing(&directory), "two", 1, 71).is_err(), "{context}");
            let again = compare(&crashing(&directory), "one", &mut source, 72);
            assert!(again.point.sent_bytes < 4 << 16, "{context}: {} bytes", again.point.sent_bytes);
            model.insert(again.point.point, source.model.clone());
        }
        for round in 0..2 {
            assert_eq!(check(&crashing(&directory), &model, &context).len(), model.len(), "{context}");
            let report = verified(&crashing(&directory));
            assert!(report.findings.is_empty(), "{context}: {report:?}");
            pruned(&crashing(&directory), "two", 1, 80 + round).unwrap();
        }
        assert!(!directory.names().contains(&name), "{context}: it is still there");
    }
}

#[test]
fn a_point_whose_manifest_is_lost_keeps_what_it_needs_until_its_series_goes_on() {
    let (made, mut model, _) = made(false);
    let newest = crashing(&made).all_points().unwrap()[0].1.newest().unwrap().clone();
    let first = format!("one~{}.json", newest.stem());
    let bytes = made.bytes(&first).unwrap();
    made.remove(&first);
    let remarks = verified(&crashing(&made)).remarks;
    assert!(remarks.iter().any(|remark| remark.contains(".json is gone")), "{remarks:?}");
    let mut other = Source::new(MIB);
    other.write(4096, &[77; 4096]);
    let outcome = compare(&crashing(&made), "two", &mut other, 70);
    model.insert(outcome.point.point, other.model.clone());
    pruned(&crashing(&made), "two", 1, 71).unwrap();
    made.create(&first).unwrap().write(0, &bytes).unwrap();
    assert_eq!(check(&crashing(&made), &model, "back").len(), model.len());
}

#[test]
fn a_pack_or_an_index_that_is_gone_is_noticed_and_made_again() {
    let (made, model, mut source) = made(false);
    for name in made.names().iter().filter(|name| name.starts_with("pack-") || name.starts_with("index-")) {
        let directory = made.at_rest();
        directory.remove(name);
        let report = verified(&crashing(&directory));
        match name.starts_with("pack-") {
            true => assert!(!report.findings.is_empty(), "{name}: {report:?}"),
            // Packs say the same.
            false => assert_eq!(check(&crashing(&directory), &model, name).len(), model.len()),
        }
        let outcome = compare(&crashing(&directory), "one", &mut source, 60);
        let bytes = restored(&crashing(&directory), &outcome.point).unwrap();
        assert_same(&bytes, &source.model, name);
        let again = verified(&crashing(&directory));
        assert!(
            again.findings.iter().all(|found| !found.concerned.contains(&outcome.point.point)),
            "{again:?}"
        );
    }
}

#[test]
fn a_pack_that_is_gone_is_noticed_by_a_run_that_reads_changes_alone_and_what_it_held_is_sent_again() {
    let (made, mut model, mut source) = made(false);
    let epoch = source.epoch;
    let mut noticed = 0;
    for name in made.names().iter().filter(|name| name.starts_with("pack-")) {
        let directory = made.at_rest();
        directory.remove(name);
        source.epoch = epoch;
        let outcome = follow(&crashing(&directory), "one", &mut source, 60);
        assert!(outcome.notes.iter().any(|note| note.contains("is missing")), "{name}: {:?}", outcome.notes);
        let bytes = restored(&crashing(&directory), &outcome.point).unwrap();
        assert_same(&bytes, &source.model, name);
        noticed += u32::from(outcome.point.why.contains("damaged"));
        // It is told once, and read once.
        let next = follow(&crashing(&directory), "one", &mut source, 61);
        assert!(next.notes.is_empty() && next.point.why.ends_with("are known"), "{name}: {next:?}");
        model.insert(outcome.point.point, source.model.clone());
        model.insert(next.point.point, source.model.clone());
        let report = verified(&crashing(&directory));
        let is_it = |what: &str| what.contains(name.as_str()) || what.contains("in no pack");
        let shown = report.findings.iter().all(|found| is_it(&found.what));
        assert!(shown && report.whole.contains(&next.point.point), "{name}: {report:?}");
        // Without the points that need it, it is forgotten.
        let series = lunway_repository::Series::of(crashing(&directory), "one", false).unwrap();
        let damaged = lunway_backup::Retention { last: 1, despite_damage: true, ..Default::default() };
        let lease = lunway_backup::Lease::take(&*series.folder, kit::support::holder(62), &|| false).unwrap();
        lunway_repository::prune(&series, &lease, &damaged, &mut |_, _| true).unwrap();
        drop(lease);
        sound(&crashing(&directory), name);
    }
    assert!(noticed > 0);
}

#[test]
fn a_point_whose_manifest_is_lost_is_one_again_after_the_next_run_if_its_tree_is_whole() {
    for is_whole in [true, false] {
        let (directory, mut model, mut source) = made(false);
        let newest = crashing(&directory).all_points().unwrap()[0].1.newest().unwrap().clone();
        directory.remove(&format!("one~{}.json", newest.stem()));
        // Nothing says whether its run came to its end.
        directory.remove("one~head.json");
        if !is_whole {
            let index = directory.names().into_iter().filter(|name| name.starts_with("pack-"));
            index.for_each(|name| directory.remove(&name));
        }
        let outcome = compare(&crashing(&directory), "one", &mut source, 70);
        let copy = format!("{}.copy.json", newest.stem());
        let note = outcome.notes.iter().find(|note| note.contains(&copy)).unwrap();
        assert_eq!(
            (note.contains("written again"), note.contains("was removed")),
            (is_whole, !is_whole),
            "{note}"
        );
        model.insert(outcome.point.point, source.model.clone());
        let points = crashing(&directory).all_points().unwrap().remove(0).1;
        assert_eq!(points.get(newest.point).is_some(), is_whole);
        if is_whole {
            assert_eq!(check(&crashing(&directory), &model, "back").len(), model.len());
            assert_eq!(outcome.point.base, Some(newest.point));
            sound(&crashing(&directory), "back");
        }
    }
}

#[test]
fn a_damaged_copy_of_the_index_in_the_cache_is_read_again_from_the_repository() {
    let (directory, model, _) = made(false);
    let place = tempfile::tempdir().unwrap();
    let open = || {
        let cache = Arc::new(HostFolder::open(place.path()).unwrap());
        let kept = Kept { cache: Some(cache), pins: None };
        Repository::open(Arc::new(CrashingPlaces(directory.clone())), kept, &[]).unwrap()
    };
    check(&open(), &model, "the first time");
    let mut random = Random::new(5);
    for entry in std::fs::read_dir(place.path()).unwrap().map(Result::unwrap) {
        let whole = std::fs::read(entry.path()).unwrap();
        for _ in 0..20 {
            let mut flipped = whole.clone();
            let at = random.next() as usize % whole.len();
            flipped[at] ^= 1 << (random.next() % 8);
            std::fs::write(entry.path(), flipped).unwrap();
            check(&open(), &model, &format!("byte {at}"));
            assert!(std::fs::read(entry.path()).unwrap() == whole, "byte {at}");
        }
    }
}

#[test]
fn an_index_with_an_entry_that_no_run_has_written_is_named_and_the_next_run_makes_it_again() {
    type Spoil = fn(&mut [u8]);
    // Number of the pack in the table, stored bytes, and the order of the entries.
    let spoils: [(&str, Spoil); 3] = [
        ("does not have", |entries| entries[32..36].fill(0xee)),
        ("not possible", |entries| entries[40..44].fill(0xff)),
        ("not in order", |entries| entries[..32].fill(0xff)),
    ];
    for (expected, spoil) in spoils {
        let (directory, mut model, mut source) = made(true);
        let name = directory.names().into_iter().find(|name| name.starts_with("index-")).unwrap();
        let mut bytes = directory.bytes(&name).unwrap();
        spoil(&mut bytes[32..]);
        let hashed = bytes.len() - 32;
        let hash = blake3::hash(&bytes[..hashed]);
        bytes[hashed..].copy_from_slice(hash.as_bytes());
        directory.remove(&name);
        directory.create(&name).unwrap().write(0, &bytes).unwrap();
        let said = pruned(&crashing(&directory), "one", 3, 60).unwrap_err().to_string();
        assert!(said.contains("backup verify"), "{said}");
        let report = verified(&crashing(&directory));
        let is_named = |remark: &String| {
            remark.contains(&name) && remark.contains(expected) && remark.contains("next run makes it again")
        };
        assert!(report.findings.is_empty() && report.remarks.iter().any(is_named), "{report:?}");
        assert_eq!(check(&crashing(&directory), &model, expected).len(), model.len());
        let outcome = compare(&crashing(&directory), "one", &mut source, 61);
        assert!(outcome.notes.iter().any(|note| note.contains(&name)), "{:?}", outcome.notes);
        model.insert(outcome.point.point, source.model.clone());
        sound(&crashing(&directory), expected);
        pruned(&crashing(&directory), "one", 3, 62).unwrap();
        assert_eq!(check(&crashing(&directory), &model, expected).len(), 3);
    }
}
