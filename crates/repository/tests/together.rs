//! Several writers at once, and a prune beside them.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod kit;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};

use kit::support::{How, holder};
use kit::{MIB, Model, Random, Source, back_up, check, make, open, pruned, sound};
use lunway_backup::{BackupError, Verification};
use lunway_repository::{HostPlaces, Identity, Kept, Places, Repository, verify};

#[test]
fn two_disks_are_backed_up_at_once_while_a_prune_waits_for_its_turn() {
    let place = tempfile::tempdir().unwrap();
    let places = || Arc::new(HostPlaces::open(place.path(), 0o600).unwrap()) as Arc<dyn Places>;
    make(&*places(), false);
    let mut model = Model::new();
    for round in 0..3 {
        let points = std::thread::scope(|scope| {
            let runs: Vec<_> = (0..3u64)
                .map(|disk| {
                    let repository = open(places());
                    scope.spawn(move || {
                        let mut source = Source::new(4 * MIB);
                        // The first two hold the same.
                        source.change(&mut Random::new(disk.max(1) + round * 10), 20);
                        let how = How::new(source.unknown(), 1 + disk + round * 100);
                        let outcome = back_up(&repository, &format!("disk{disk}"), &source, how).unwrap();
                        (outcome.point.point, source.model)
                    })
                })
                .collect();
            runs.into_iter().map(|run| run.join().unwrap()).collect::<Vec<_>>()
        });
        model.extend(points);
        check(&open(places()), &model, &format!("round {round}"));
    }
    let repository = open(places());
    // A run that is stopped in its middle: the prune removes points, and frees no room.
    let mut source = Source::new(4 * MIB);
    source.change(&mut Random::new(77), 20);
    let asked = AtomicU64::new(0);
    let beside = open(places());
    let (model, other) = (&mut model, &repository);
    let is_cancelled = || {
        if asked.fetch_add(1, Ordering::Relaxed) == 2 {
            let done = pruned(&beside, "disk0", 1, 900).unwrap();
            assert_eq!(done.removed.len(), 2);
            assert!(done.deferred.unwrap().contains("which writes to it"));
        }
        false
    };
    let how = How { is_cancelled: &is_cancelled, ..How::new(source.unknown(), 800) };
    let outcome = back_up(other, "disk9", &source, how).unwrap();
    assert!(asked.into_inner() > 2);
    model.insert(outcome.point.point, source.model.clone());
    check(&repository, model, "beside a prune");
    let done = pruned(&repository, "disk0", 1, 901).unwrap();
    assert_eq!((done.deferred, done.packs > 0), (None, true));
    check(&repository, model, "after the next prune");
    sound(&repository, "the end");
}

#[test]
fn a_verification_of_one_disk_beside_runs_of_another_notes_no_damage() {
    let place = tempfile::tempdir().unwrap();
    let places = || Arc::new(HostPlaces::open(place.path(), 0o600).unwrap()) as Arc<dyn Places>;
    make(&*places(), false);
    let mut source = Source::new(2 * MIB);
    source.change(&mut Random::new(1), 20);
    let how = How::new(source.unknown(), 1);
    back_up(&open(places()), "one", &source, how).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Each makes an index of its own, and small ones are made one from time to time.
            for round in 0..60 {
                source.change(&mut Random::new(10 + round), 3);
                let how = How::new(source.unknown(), 10 + round);
                back_up(&open(places()), "other", &source, how).unwrap();
            }
            is_over.store(true, Ordering::Relaxed);
        });
        while !is_over.load(Ordering::Relaxed) {
            let repository = open(places());
            let one: Vec<_> = repository.all_points().unwrap();
            let one: Vec<_> = one.into_iter().filter(|(name, _)| name == "one").collect();
            let all = Verification::default();
            let report = verify(&repository, &one, all, &|| false, &mut |_, _| ()).unwrap();
            report.note_packs(&repository).unwrap();
            let report = report.report;
            assert!(report.findings.is_empty() && report.remarks.is_empty(), "{report:?}");
        }
    });
    pruned(&open(places()), "other", 1, 900).unwrap();
    sound(&open(places()), "after all");
}

#[test]
fn a_damaged_index_that_is_gone_stops_no_prune() {
    let place = tempfile::tempdir().unwrap();
    let places = || Arc::new(HostPlaces::open(place.path(), 0o600).unwrap()) as Arc<dyn Places>;
    make(&*places(), false);
    let mut source = Source::new(2 * MIB);
    for round in 0..3 {
        source.change(&mut Random::new(round), 20);
        let how = How::new(source.unknown(), round);
        back_up(&open(places()), "one", &source, how).unwrap();
    }
    let files = std::fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().path());
    let index = files.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("index-"));
    let index = index.last().unwrap();
    let mut bytes = std::fs::read(&index).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::remove_file(&index).unwrap();
    std::fs::write(&index, bytes).unwrap();
    assert!(!kit::verified(&open(places())).remarks.is_empty());
    assert!(pruned(&open(places()), "one", 1, 900).is_err(), "damage is known");
    std::fs::remove_file(&index).unwrap();
    pruned(&open(places()), "one", 1, 901).unwrap();
}

#[test]
fn a_repository_is_read_by_its_recipients_alone_and_another_one_costs_a_small_file() {
    let place = tempfile::tempdir().unwrap();
    let places = || Arc::new(HostPlaces::open(place.path(), 0o600).unwrap()) as Arc<dyn Places>;
    make(&*places(), true);
    let mut source = Source::new(2 * MIB);
    source.write(0, &b"a secret of the disk".repeat(1000)[..512 * 39]);
    let point = kit::compare(&open(places()), "one", &mut source, 1).point;
    for entry in
        std::fs::read_dir(place.path()).unwrap().map(Result::unwrap).filter(|entry| entry.path().is_file())
    {
        let bytes = std::fs::read(entry.path()).unwrap();
        assert!(!bytes.windows(8).any(|window| window == b"a secret"), "{:?}", entry.path());
    }
    let stranger = || vec![Identity::generate().unwrap()];
    let refused = Repository::open(places(), Kept::default(), &stranger()).map(drop);
    assert!(matches!(refused, Err(BackupError::Locked(what)) if what.contains("1 recipient, and the key")));
    let another = Identity::generate().unwrap();
    let before = kit::restored(&open(places()), &point).unwrap();
    open(places()).add_recipient(&another.recipient(), &holder(5)).unwrap();
    let mut theirs = Repository::open(places(), Kept::default(), &[another]).unwrap();
    assert_eq!(kit::restored(&theirs, &point).unwrap(), before);
    let first = kit::identity(true)[0].recipient();
    theirs.remove_recipient(&first, &holder(6)).unwrap();
    assert!(Repository::open(places(), Kept::default(), &kit::identity(true)).is_err());
    let last: Vec<_> = theirs.marker().keys.iter().map(|key| key.recipient.parse().unwrap()).collect();
    assert_eq!(last.len(), 1);
    assert!(theirs.remove_recipient(&last[0], &holder(7)).is_err(), "the last one");
    assert_eq!(kit::restored(&theirs, &point).unwrap(), before);
}

#[test]
fn recipients_who_are_added_at_once_are_all_added_or_told_to_come_again() {
    let place = tempfile::tempdir().unwrap();
    let places = || Arc::new(HostPlaces::open(place.path(), 0o600).unwrap()) as Arc<dyn Places>;
    make(&*places(), true);
    // Opened before any of the others has changed the marker.
    let opened: Vec<_> = (0..8u64).map(|number| (number, open(places()))).collect();
    let added = std::thread::scope(|scope| {
        let adders = opened.into_iter().map(|(number, mut repository)| {
            scope.spawn(move || {
                let recipient = Identity::generate().unwrap().recipient();
                loop {
                    match repository.add_recipient(&recipient, &holder(100 + number)) {
                        Ok(()) => return recipient.to_string(),
                        Err(BackupError::InUse { .. } | BackupError::LeaseLost) => std::thread::yield_now(),
                        Err(error) => panic!("{error}"),
                    }
                }
            })
        });
        let adders: Vec<_> = adders.collect();
        adders.into_iter().map(|adder| adder.join().unwrap()).collect::<Vec<_>>()
    });
    let there: Vec<_> = open(places()).marker().keys.iter().map(|key| key.recipient.clone()).collect();
    assert_eq!(there.len(), 9);
    assert!(added.iter().all(|recipient| there.contains(recipient)));
    sound(&open(places()), "afterwards");
}

#[test]
fn of_processes_that_make_a_repository_in_one_folder_at_once_exactly_one_says_that_it_has() {
    const RACERS: u64 = 6;
    for round in 0..5 {
        let place = tempfile::tempdir().unwrap();
        let begin = Barrier::new(RACERS as usize);
        let made: Vec<_> = std::thread::scope(|scope| {
            let racers: Vec<_> = (0..RACERS)
                .map(|number| {
                    let (begin, path) = (&begin, place.path());
                    scope.spawn(move || {
                        let places = HostPlaces::open(path, 0o600).unwrap();
                        begin.wait();
                        Repository::create(&places, None, &[], &holder(round * 100 + number))
                    })
                })
                .collect();
            racers.into_iter().map(|racer| racer.join().unwrap()).collect()
        });
        let (made, refused): (Vec<_>, Vec<_>) = made.into_iter().partition(Result::is_ok);
        let made: Vec<_> = made.into_iter().flatten().collect();
        let there = open(Arc::new(HostPlaces::open(place.path(), 0o600).unwrap()));
        assert!(matches!(&made[..], [only] if only == there.marker()), "{made:?}");
        for error in refused.into_iter().filter_map(Result::err) {
            let said = error.to_string();
            assert!(said.contains("in use by") || said.contains("is a repository already"), "{said}");
        }
    }
}
