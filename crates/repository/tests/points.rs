//! Series of many runs against a model of every point: random changes, known or not, resizes, prunes; two disks share
//! what is alike.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod kit;

use std::sync::Arc;

use kit::support::How;
use kit::{
    MIB, Model, Random, Source, amount, back_up, check, compare, follow, make, open, pruned, restored, sound,
};
use lunway_repository::{HostPlaces, Places, Repository};

/// Two units and a half, and a sector: the last leaf is short.
const SIZE: u64 = 2 * MIB + (MIB >> 1) + 512;

fn on_host(is_encrypted: bool) -> (tempfile::TempDir, Repository) {
    let place = tempfile::tempdir().unwrap();
    let places: Arc<dyn Places> = Arc::new(HostPlaces::open(place.path(), 0o600).unwrap());
    make(&*places, is_encrypted);
    let repository = open(places);
    (place, repository)
}

fn files(repository: &Repository, prefix: &str) -> usize {
    let names = repository.places().packs().names().unwrap();
    names.iter().filter(|name| name.starts_with(prefix)).count()
}

fn every_point_is_what_the_source_was(is_encrypted: bool) {
    let (_place, repository) = on_host(is_encrypted);
    let seed = amount("LUNWAY_BACKUP_SEED", 1);
    println!("LUNWAY_BACKUP_SEED={seed}");
    let mut random = Random::new(seed);
    let mut sources = [("one", Source::new(SIZE)), ("other", Source::new(SIZE))];
    let mut model = Model::new();
    for number in 0..amount("LUNWAY_BACKUP_RUNS", 40) {
        let (series, source) = &mut sources[(random.next() % 2) as usize];
        let changes = random.next() % 6;
        source.change(&mut random, changes);
        if random.next().is_multiple_of(5) {
            source.resize((SIZE / 2 + random.next() % SIZE) / 512 * 512);
        }
        let changed = if random.next().is_multiple_of(3) { source.unknown() } else { source.known() };
        let mut how = How::new(changed, number + 1);
        how.full = random.next().is_multiple_of(23);
        let outcome = back_up(&repository, series, source, how).unwrap();
        assert!(!outcome.point.why.contains("sample"), "{:?}", outcome.notes);
        model.insert(outcome.point.point, source.model.clone());
        if random.next().is_multiple_of(8) {
            let done = pruned(&repository, series, 1 + (random.next() % 6) as usize, number).unwrap();
            assert_eq!(done.deferred, None);
            model.retain(|point, _| !done.removed.contains(point));
        }
        if number % 10 == 9 {
            let found = check(&repository, &model, &format!("seed {seed}, run {number}"));
            assert_eq!(found.len(), model.len());
        }
    }
    assert_eq!(check(&repository, &model, &format!("seed {seed}, end")).len(), model.len());
    sound(&repository, "the end");
}

#[test]
fn every_point_of_long_series_is_what_the_source_was() {
    every_point_is_what_the_source_was(false);
}

#[test]
fn every_point_of_an_encrypted_repository_is_what_the_source_was() {
    every_point_is_what_the_source_was(true);
}

#[test]
fn a_run_reads_what_changed_and_sends_what_no_series_has() {
    let (_place, repository) = on_host(false);
    let mut random = Random::new(3);
    let mut source = Source::new(300 * MIB);
    source.change(&mut random, 200);
    let first = follow(&repository, "one", &mut source, 1).point;
    assert_eq!((first.why.as_str(), first.base), ("it is the first", None));
    let unique =
        source.model.chunks(65536).filter(|leaf| leaf.iter().any(|byte| *byte != 0)).count() as u64 * 65536;
    assert!(first.stored_bytes <= unique / 100 * 105, "{} of {unique}", first.stored_bytes);
    // Another disk that holds the same, elsewhere: only its tree is new.
    let mut moved = Source::new(300 * MIB);
    let alike = source.model[..100 << 20].to_vec();
    moved.write(128 * MIB, &alike);
    let other = compare(&repository, "other", &mut moved, 2).point;
    assert_eq!((other.sent_bytes, other.changed_bytes > MIB), (0, true), "{other:?}");
    // One leaf, and something that is the same as before.
    source.write(10 * MIB, &[1; 4096]);
    let same = source.model[(30 * MIB) as usize..(31 * MIB) as usize].to_vec();
    source.write(30 * MIB, &same);
    let second = follow(&repository, "one", &mut source, 3).point;
    assert_eq!((second.sent_bytes, second.changed_bytes), (65536, 65536), "{second:?}");
    assert!(second.read_bytes <= 10 * MIB && second.stored_bytes <= 65536 + 16384, "{second:?}");
    let third = compare(&repository, "one", &mut source, 4).point;
    assert_eq!((third.sent_bytes, third.stored_bytes), (0, 0), "nothing changed: {third:?}");
    assert!(third.why.contains("compared by hash"), "{}", third.why);
    for (point, expected) in [(&second, &source.model), (&other, &moved.model)] {
        kit::assert_same(&restored(&repository, point).unwrap(), expected, "a point");
    }
}

#[test]
fn a_tracker_that_forgets_a_change_is_caught_by_the_sample() {
    let (_place, repository) = on_host(false);
    let mut source = Source::new(4 * MIB);
    source.change(&mut Random::new(5), 30);
    compare(&repository, "one", &mut source, 1);
    for unit in 0..4 {
        source.write(unit * MIB, &[7; 512]);
    }
    source.changed.clear();
    source.epoch = 1;
    let outcome = follow(&repository, "one", &mut source, 2);
    assert!(outcome.point.why.contains("not believed"), "{}", outcome.point.why);
    kit::assert_same(&restored(&repository, &outcome.point).unwrap(), &source.model, "the point");
}

#[test]
fn room_is_freed_when_no_point_needs_it_and_packs_that_are_mostly_dead_are_written_again() {
    let (_place, repository) = on_host(false);
    let mut source = Source::new(8 * MIB);
    let mut random = Random::new(9);
    for unit in 0..8 {
        let mut bytes = vec![0; MIB as usize];
        bytes.chunks_mut(8).for_each(|piece| piece.copy_from_slice(&random.next().to_le_bytes()));
        source.write(unit * MIB, &bytes);
    }
    compare(&repository, "one", &mut source, 1);
    // All but one mebibyte becomes something else.
    source.zero(MIB, 7 * MIB);
    let kept = compare(&repository, "one", &mut source, 2).point;
    let done = pruned(&repository, "one", 1, 3).unwrap();
    assert_eq!(done.removed.len(), 1);
    assert!(done.freed_bytes > 7 * MIB && done.rewritten_bytes > MIB, "{done:?}");
    assert!(done.rewritten_bytes < 2 * MIB, "{done:?}");
    let model = Model::from([(kept.point, source.model.clone())]);
    assert_eq!(check(&repository, &model, "afterwards").len(), 1);
    assert_eq!(files(&repository, "index-"), 1);
    sound(&repository, "afterwards");
    let again = pruned(&repository, "one", 1, 4).unwrap();
    assert_eq!((again.packs, again.removed.len()), (0, 0), "{again:?}");
}
