//! Any byte of any file flipped: verification finds it and names the points concerned, nothing wrong is restored, and
//! the next run heals what the source still has.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod kit;

use std::collections::BTreeSet;

use kit::{
    MIB, Model, Random, Source, amount, assert_same, check, compare, crashing, new_directory, restored,
    verified,
};
use lunway_backup::PointId;
use lunway_crash::Directory;

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
        lost.extend(points.unreadable.iter().map(|(point, _)| *point));
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
