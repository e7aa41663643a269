//! Rot: a flipped byte of any file is found, the points concerned are named, and the next run heals what the source
//! has.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::sync::Arc;

use lunway_backup::{
    BackupError, Catalogue, Damage, Folder, Lease, Notes, PointId, PointKind, Report, Retention, Step,
    Verification, prune, remove_unreadable, verify,
};
use lunway_crash::Directory;
use support::crashing::Crashing;
use support::cuts::{crashed, cuts};
use support::{How, MIB, Random, Source, amount, assert_same, back_up, contents, guids, holder, restored};

fn folder(directory: &Directory) -> Arc<dyn Folder> {
    Arc::new(Crashing(directory.clone()))
}

fn verified(directory: &Directory) -> Report {
    let folder = folder(directory);
    let catalogue = Catalogue::load(&*folder).unwrap();
    let report = verify(&*folder, &catalogue, Verification::default(), &|| false, &mut |_, _| ()).unwrap();
    let lease = Lease::take(&*folder, holder(1), &|| false).unwrap();
    report.note(&*folder, &Verification::default()).unwrap();
    drop(lease);
    report
}

/// The VHDX of the point of that generation.
fn file_of(directory: &Directory, generation: &str) -> String {
    let is_it = |name: &String| name.starts_with(generation) && name.ends_with(".vhdx");
    directory.names().into_iter().find(is_it).unwrap()
}

/// Three points; the second and the third hold a leaf of their own each.
fn chain(source: &mut Source) -> (Directory, Vec<PointId>) {
    let directory = Directory::default();
    let mut points = Vec::new();
    for seed in 1..4u8 {
        source.write(u64::from(seed) * 128 * 512, &[seed; 1024]);
        let changed = source.unknown();
        let how = How::new(changed, seed.into());
        points.push(back_up(&folder(&directory), &source.disk, source.epoch, how).unwrap().manifest.point);
    }
    (directory, points)
}

#[test]
fn a_chain_that_lacks_a_file_is_neither_gone_on_with_nor_pruned() {
    let mut source = Source::new(MIB);
    let (sound, points) = chain(&mut source);
    let lower = file_of(&sound, "000001");
    for cut in [false, true] {
        let directory = sound.at_rest();
        let there = folder(&directory);
        if cut {
            let file = there.open(&lower, true).unwrap();
            file.set_len(file.len().unwrap() - 512).unwrap();
        } else {
            there.remove(&lower).unwrap();
        }
        let lease = Lease::take(&*there, holder(9), &|| false).unwrap();
        let retention = Retention { last: 1, ..Retention::default() };
        let pruned = prune(&*there, &lease, &guids(9), &retention, &mut |_, _, _| true);
        assert!(matches!(pruned, Err(BackupError::Refused(_))), "{pruned:?}");
        drop(lease);
        assert_eq!(Catalogue::load(&*there).unwrap().points().len(), points.len());
        let how = How::new(source.unknown(), 9);
        let next = back_up(&there, &source.disk, source.epoch, how).unwrap().manifest;
        assert_eq!(next.kind, PointKind::Full, "{}", next.why);
        assert_same(&restored(&there, next.point).unwrap(), &contents(&source.disk), "the new full");
    }
}

/// Both copies of the manifest of the point of that generation, changed.
fn spoil(directory: &Directory, generation: &str, change: impl Fn(&mut Vec<u8>)) {
    for name in directory.names() {
        if name.starts_with(generation) && name.ends_with(".json") {
            let mut bytes = directory.bytes(&name).unwrap();
            change(&mut bytes);
            directory.remove(&name);
            directory.create(&name).unwrap().write(0, &bytes).unwrap();
        }
    }
}

/// The copy of the second point's manifest.
fn second_manifest(directory: &Directory) -> Vec<u8> {
    let is_second = |name: &String| name.starts_with("000002") && name.ends_with(".copy.json");
    let name = directory.names().into_iter().find(is_second);
    name.and_then(|name| directory.bytes(&name)).unwrap()
}

/// A change of a manifest that makes it none.
type Way<'a> = &'a dyn Fn(&mut Vec<u8>);

#[test]
fn a_newest_point_whose_manifests_cannot_be_read_is_never_passed_over_without_a_word() {
    let mut source = Source::new(MIB);
    let (sound, points) = chain(&mut source);
    // The manifests of another point are no manifests of this one.
    let other = second_manifest(&sound);
    let exchanged: Way<'_> = &|bytes| bytes.clone_from(&other);
    let ways: [Way<'_>; 4] =
        [&|bytes| bytes.truncate(200), &|bytes| bytes.clear(), &|bytes| bytes[150] ^= 1, exchanged];
    for way in ways {
        let directory = sound.at_rest();
        spoil(&directory, "000003", way);
        let catalogue = Catalogue::load(&*folder(&directory)).unwrap();
        let about = format!("point {} cannot be read", points[2]);
        // Runs were made at hours behind this time.
        for text in ["latest", "2033-01-01", "2023-11-15T01:30"] {
            let said = catalogue.find(text).map(drop).unwrap_err().to_string();
            let named = said.contains(&about) && said.contains("000003-") && said.contains("give the id");
            assert!(named, "{text}: {said}");
        }
        assert!(catalogue.find(&points[2].to_string()).unwrap_err().to_string().contains(&about));
        assert_eq!(catalogue.find(&points[1].to_string()).unwrap().point, points[1]);
        let outcome = source.back_up(&folder(&directory), true, 9).unwrap();
        assert!(outcome.notes.iter().any(|note| note.contains(&about)), "{:?}", outcome.notes);
        assert_eq!(outcome.manifest.generation, 4, "no number is used twice");
        let catalogue = Catalogue::load(&*folder(&directory)).unwrap();
        assert_eq!(catalogue.find("latest").unwrap().point, outcome.manifest.point);
        assert_same(
            &restored(&folder(&directory), outcome.manifest.point).unwrap(),
            &source.model,
            "the next",
        );
    }
}

/// A prune that keeps so many points.
fn pruned(directory: &Directory, last: usize, despite_damage: bool) -> Result<Vec<Step>, BackupError> {
    let there = folder(directory);
    let lease = Lease::take(&*there, holder(9), &|| false).unwrap();
    let retention = Retention { last, despite_damage, ..Retention::default() };
    prune(&*there, &lease, &guids(9), &retention, &mut |_, _, _| true)
}

fn given_up(directory: &Directory, point: PointId) -> Result<Vec<Step>, BackupError> {
    let there = folder(directory);
    let lease = Lease::take(&*there, holder(9), &|| false).unwrap();
    remove_unreadable(&*there, &lease, &[point])
}

fn listed(directory: &Directory) -> Vec<PointId> {
    let catalogue = Catalogue::load(&*folder(directory)).unwrap();
    catalogue.points().iter().map(|point| point.manifest.point).collect()
}

#[test]
fn a_point_that_cannot_be_read_is_given_up_through_a_cut_at_every_step() {
    let seed = amount("LUNWAY_BACKUP_SEED", 1);
    let mut random = Random::new(seed);
    let mut source = Source::new(MIB);
    let (sound, points) = chain(&mut source);
    spoil(&sound, "000003", Vec::clear);
    assert_eq!(verified(&sound).findings.len(), 1);
    let refused = pruned(&sound, 3, false).unwrap_err().to_string();
    let way = format!("--remove {}", points[2]);
    assert!(
        refused.contains("cannot be read") && refused.contains("000003-") && refused.contains(&way),
        "{refused}"
    );
    assert!(given_up(&sound, points[1]).is_err(), "that one can be read");
    for by_name in [true, false] {
        let give_up = |directory: &Directory| match by_name {
            true => given_up(directory, points[2]),
            false => pruned(directory, 3, true),
        };
        let recorded = sound.at_rest();
        assert_eq!(give_up(&recorded).unwrap(), [Step::Remove(points[2])]);
        for steps in cuts(&recorded, seed) {
            let context =
                format!("seed {seed}, {by_name}, cut behind step {steps} ({})", recorded.describe(steps));
            let directory = crashed(&recorded, steps, 1, &mut random);
            if !Catalogue::load(&*folder(&directory)).unwrap().unreadable().is_empty() {
                give_up(&directory).unwrap();
            }
            assert_eq!(listed(&directory), points[..2], "{context}");
            pruned(&directory, 2, false).unwrap();
            let report = verified(&directory);
            assert!(report.findings.is_empty(), "{context}: {report:?}");
        }
        let next = source.back_up(&folder(&recorded), true, 20).unwrap().manifest;
        assert_same(&restored(&folder(&recorded), next.point).unwrap(), &source.model, "the next run");
    }
}

#[test]
fn a_file_that_a_kept_point_may_lie_on_stays_however_little_is_known_of_it() {
    let mut source = Source::new(MIB);
    let (sound, points) = chain(&mut source);
    spoil(&sound, "000002", |bytes| bytes.truncate(9));
    let files = |directory: &Directory| {
        let names = directory.names();
        names.into_iter().filter(|name| name.ends_with(".vhdx")).collect::<Vec<_>>()
    };
    let all = files(&sound);
    // The third one lies on it, and it on the first one.
    let refused = given_up(&sound, points[1]).unwrap_err().to_string();
    assert!(refused.contains(&format!("point {} is there", points[2])), "{refused}");
    assert_eq!(pruned(&sound, 1, true).unwrap(), []);
    assert_eq!(files(&sound), all);
    let catalogue = Catalogue::load(&*folder(&sound)).unwrap();
    let retention = Retention { last: 1, ..Retention::default() };
    assert_eq!(retention.needed_unreadable(&catalogue, &Notes::default()), [(points[1], points[2])]);
    // It is not kept any more: all three go.
    let full = source.back_up(&folder(&sound), true, 20).unwrap().manifest;
    assert_eq!(full.kind, PointKind::Full, "{}", full.why);
    let gone: Vec<_> = [2, 1, 0].map(|at| Step::Remove(points[at])).into();
    assert_eq!(pruned(&sound, 1, true).unwrap(), gone);
    assert_eq!((listed(&sound), files(&sound).len()), (vec![full.point], 1));
    assert!(verified(&sound).findings.is_empty());
}

#[test]
fn a_manifest_under_another_number_blocks_nothing() {
    let mut source = Source::new(MIB);
    let (sound, points) = chain(&mut source);
    let bytes = second_manifest(&sound);
    sound.create(&format!("000009-{}.json", points[1])).unwrap().write(0, &bytes).unwrap();
    let report = verified(&sound);
    assert!(report.findings.is_empty() && report.remarks[0].contains("blocks nothing"), "{report:?}");
    assert_eq!(Catalogue::load(&*folder(&sound)).unwrap().find("latest").unwrap().point, points[2]);
    assert_eq!(pruned(&sound, 2, false).unwrap().len(), 1);
}

#[test]
fn a_sample_of_few_leaves_is_not_empty() {
    let mut source = Source::new(MIB);
    let (sound, _) = chain(&mut source);
    let folder = folder(&sound);
    let catalogue = Catalogue::load(&*folder).unwrap();
    let sample = Verification { sample_permille: Some(1), ..Verification::default() };
    let report = verify(&*folder, &catalogue, sample, &|| false, &mut |_, _| ()).unwrap();
    assert!(report.bytes >= 3 * 1024, "{} bytes of three points", report.bytes);
}

#[test]
fn a_flipped_byte_of_any_file_is_found_and_the_next_run_makes_a_right_point() {
    let seed = amount("LUNWAY_BACKUP_SEED", 1);
    println!("LUNWAY_BACKUP_SEED={seed}");
    let mut random = Random::new(seed);
    let mut source = Source::new(MIB + 512);
    source.change(&mut random, 6);
    let (sound, points) = chain(&mut source);
    assert_eq!(verified(&sound).whole.len(), 3);
    let names: Vec<String> = sound.names().into_iter().filter(|name| name != "checks.json").collect();
    assert_eq!(names.len(), 12, "{names:?}");
    for number in 0..amount("LUNWAY_BACKUP_FLIPS", 150) {
        let name = &names[(number % 12) as usize];
        let bytes = sound.bytes(name).unwrap();
        let mut at = random.next() % bytes.len() as u64;
        // Half of them where something is.
        while number % 24 < 12 && bytes[at as usize] == 0 {
            at = random.next() % bytes.len() as u64;
        }
        let directory = sound.at_rest();
        directory.flip(name, at, 1 << (random.next() % 8));
        let context = format!("seed {seed}: byte {at} of {name}");
        let report = verified(&directory);
        let damaged = points.iter().position(|point| name.contains(&point.to_string())).unwrap();
        if name.ends_with(".json") {
            assert!(
                report.remarks.iter().any(|remark| remark.contains(&points[damaged].to_string())),
                "{context}"
            );
        } else {
            let found = report.findings.iter().find(|found| found.damage.point() == points[damaged]);
            let found = found.unwrap_or_else(|| panic!("{context}: not found, {report:?}"));
            assert!(found.concerned.contains(&points[damaged]), "{context}: {found:?}");
            if let Damage::Point { .. } = found.damage {
                assert_eq!(found.concerned, points[damaged..], "{context}");
            }
        }
        // What is read is right, or is refused.
        let folder = folder(&directory);
        for point in &points {
            if let Ok(found) = restored(&folder, *point) {
                assert_same(&found, &restored(&self::folder(&sound), *point).unwrap(), &context);
            }
        }
        let changed = source.unknown();
        let next = back_up(&folder, &source.disk, source.epoch, How::new(changed, 9)).unwrap().manifest;
        assert_same(&restored(&folder, next.point).unwrap(), &source.model, &context);
        let after = verified(&directory);
        // What the source does not have any more stays damaged, and harms no later point.
        let harmless = after.findings.iter().all(|found| !found.concerned.contains(&next.point));
        assert!(harmless && after.remarks.is_empty() || next.kind == PointKind::Full, "{context}: {after:?}");
    }
}

#[test]
fn a_damaged_leaf_names_the_points_that_show_it_and_is_healed_from_the_source() {
    let mut source = Source::new(MIB);
    let (directory, points) = chain(&mut source);
    // The second point's leaf holds its number.
    let name = file_of(&directory, "000002");
    let bytes = directory.bytes(&name).unwrap();
    let at = bytes.windows(1024).position(|window| window == [2; 1024]).unwrap() as u64;
    directory.flip(&name, at, 1);
    let report = verified(&directory);
    assert_eq!(report.findings.len(), 1, "{report:?}");
    assert_eq!(report.findings[0].concerned, points[1..], "the first point does not show it");
    assert_eq!(report.whole, points[..1]);
    let refused = restored(&folder(&directory), points[2]).unwrap_err().to_string();
    assert!(refused.contains(&points[1].to_string()), "{refused}");
    let changed = source.known();
    let outcome = back_up(&folder(&directory), &source.disk, source.epoch, How::new(changed, 8)).unwrap();
    assert!(outcome.notes.iter().any(|note| note.contains("was repaired")), "{:?}", outcome.notes);
    assert!(verified(&directory).findings.is_empty());
    assert_same(&restored(&folder(&directory), points[2]).unwrap(), &source.model, "healed");

    // What the source has no more stays damaged where it was, and the next point does not need it.
    directory.flip(&name, at, 1);
    verified(&directory);
    source.write(2 * 128 * 512, &[77; 1024]);
    let changed = source.unknown();
    let outcome = back_up(&folder(&directory), &source.disk, source.epoch, How::new(changed, 10)).unwrap();
    assert!(outcome.notes.iter().any(|note| note.contains("stays damaged")), "{:?}", outcome.notes);
    assert_same(
        &restored(&folder(&directory), outcome.manifest.point).unwrap(),
        &source.model,
        "the next point",
    );
    let report = verified(&directory);
    assert_eq!(report.findings.len(), 1);
    assert!(!report.findings[0].concerned.contains(&outcome.manifest.point), "{report:?}");
}

#[test]
fn a_leaf_that_its_file_does_not_show_any_more_is_held_by_the_next_point_and_by_no_later_one() {
    let mut source = Source::new(MIB);
    let (directory, points) = chain(&mut source);
    let folder = folder(&directory);
    // The third point's block in its table: what was partially present is the parent's again.
    let name = file_of(&directory, "000003");
    let bytes = directory.bytes(&name).unwrap();
    // The first entry of the block table (MS-VHDX 2.5): state 7, partially present.
    let entry = |at: &usize| bytes[*at] == 7 && bytes[at + 1..at + 8].iter().any(|byte| *byte != 0);
    let table = (1 << 20..bytes.len()).step_by(1 << 20).find(entry).expect("a block table");
    directory.flip(&name, table as u64, 7);
    let sample = Verification { sample_permille: Some(1000), ..Verification::default() };
    let look = || {
        let catalogue = Catalogue::load(&*folder).unwrap();
        let report = verify(&*folder, &catalogue, sample, &|| false, &mut |_, _| ()).unwrap();
        report.note(&*folder, &sample).unwrap();
        report
    };
    let report = look();
    let is_the_leaf = |found: &lunway_backup::FoundDamage| matches!(found.damage, Damage::Leaf { point, .. } if point == points[2]);
    assert!(report.findings.len() == 1 && is_the_leaf(&report.findings[0]), "{report:?}");
    let outcome = source.back_up(&folder, true, 8).unwrap();
    let note = outcome.notes.iter().find(|note| note.contains("stays damaged")).expect("a note");
    assert!(note.contains("no place") && !note.contains("source does not have"), "{note}");
    assert_eq!(outcome.manifest.kind, PointKind::Increment, "{}", outcome.manifest.why);
    assert_same(&restored(&folder, outcome.manifest.point).unwrap(), &source.model, "the next point");
    let report = look();
    assert!(!report.findings[0].concerned.contains(&outcome.manifest.point), "{report:?}");
    let later = source.back_up(&folder, true, 9).unwrap().manifest;
    assert_eq!(later.sent_bytes, 0, "{later:?}");
    assert_same(&restored(&folder, later.point).unwrap(), &source.model, "a later point");
}

#[test]
fn a_damaged_leaf_of_a_point_whose_file_is_gone_does_not_stop_the_next_run() {
    let mut source = Source::new(MIB);
    let (directory, points) = chain(&mut source);
    let there = folder(&directory);
    let name = file_of(&directory, "000002");
    let bytes = directory.bytes(&name).unwrap();
    let at = bytes.windows(1024).position(|window| window == [2; 1024]).unwrap() as u64;
    directory.flip(&name, at, 1);
    verified(&directory);
    there.remove(&name).unwrap();
    let next = source.back_up(&there, false, 8).unwrap().manifest;
    assert_eq!(next.kind, PointKind::Full, "{} {points:?}", next.why);
}
