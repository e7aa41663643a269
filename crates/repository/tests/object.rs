//! A repository in an object store: kills at every step, several writers at once, damage, what a reader asks for.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod kit;
#[path = "../../object/tests/support/server.rs"]
mod server;

use std::sync::Arc;
use std::time::Duration;

use kit::support::{How, holder};
use kit::{
    MIB, Model, Random, Source, back_up, check, compare, make, open, pruned, restored, sound, verified,
};
use lunway_backup::{BackupError, Folder, PointMount};
use lunway_object::{Address, Credentials, Settings, Timing};
use lunway_repository::{ObjectPlaces, Places, Repository};
use server::{Answer, Server};

const SIZE: u64 = 3 * MIB + 512;

fn places(server: &Server) -> Arc<dyn Places> {
    let address = format!("s3://bucket/all/repo?endpoint=http://{}", server.address());
    let timing = Timing {
        connect: Duration::from_secs(5),
        stall: Duration::from_secs(10),
        patience: Duration::from_millis(5),
        slowest: 64 << 10,
        pause: Duration::from_millis(1),
    };
    let credentials = Credentials::new("key", "secret", None);
    let settings = Settings { credentials, endpoint: None, region: None, ca_file: None, timing };
    Arc::new(ObjectPlaces::open(&Address::parse(&address).unwrap(), &settings).unwrap())
}

fn repository(server: &Server) -> Repository {
    open(places(server))
}

fn with_repository(is_encrypted: bool) -> Server {
    let server = Server::start();
    make(&*places(&server), is_encrypted);
    server
}

/// The store after a process was killed: what it was is known to have ended by others who have waited for its beats.
fn after_kill(server: &Server) {
    server.serve();
    for key in server.keys() {
        let name = key.rsplit('/').next().unwrap();
        if ["lease-", "writer-", "sweeper-", "mount-"].iter().any(|prefix| name.starts_with(prefix)) {
            server.remove(&key);
        }
    }
}

fn trials(server: &Server) -> usize {
    server.keys().iter().filter(|key| key.contains("trial-")).count()
}

#[test]
fn a_run_survives_a_kill_at_every_step() {
    for is_encrypted in [false, true] {
        let base = with_repository(is_encrypted);
        let mut source = Source::new(SIZE);
        let mut random = Random::new(1);
        let mut model = Model::new();
        for seed in 1..4 {
            source.change(&mut random, 8);
            let outcome = compare(&repository(&base), "one", &mut source, seed);
            model.insert(outcome.point.point, source.model.clone());
        }
        source.change(&mut random, 5);
        // The fourth makes four segments of the index one.
        let whole = base.copy();
        let outcome = compare(&repository(&whole), "one", &mut source, 100);
        let mut sealed = model.clone();
        sealed.insert(outcome.point.point, source.model.clone());
        sound(&repository(&whole), "the run itself");
        let steps = whole.changes();
        assert!(steps > 15, "{steps}");
        for steps in 0..steps {
            let context = format!("a kill behind change {steps}");
            let server = base.copy();
            let process = repository(&server);
            server.cut_after(steps);
            let changed = source.unknown();
            let killed = back_up(&process, "one", &source, How::new(changed, 100));
            assert!(killed.is_err() || steps > 10, "{context}");
            after_kill(&server);
            let points = check(&repository(&server), &sealed, &context);
            assert!(model.keys().all(|point| points.contains(point)), "{context}: a point is gone");
            let next = compare(&repository(&server), "one", &mut source, 300);
            assert!(next.point.stored_bytes <= outcome.point.stored_bytes, "{context}");
            let mut after = sealed.clone();
            after.insert(next.point.point, source.model.clone());
            check(&repository(&server), &after, &format!("{context}, next run"));
            sound(&repository(&server), &format!("{context}, next run"));
            assert!(trials(&server) <= 1, "{context}");
        }
    }
}

#[test]
fn a_prune_survives_a_kill_at_every_step() {
    let base = with_repository(false);
    let mut source = Source::new(SIZE);
    let mut random = Random::new(1);
    let mut model = Model::new();
    for number in 1..6 {
        source.change(&mut random, 5);
        let outcome = compare(&repository(&base), "one", &mut source, number);
        model.insert(outcome.point.point, source.model.clone());
    }
    let whole = base.copy();
    let done = pruned(&repository(&whole), "one", 2, 9).unwrap();
    assert!(done.packs > 0 && done.rewritten_bytes > 0, "{done:?}");
    let kept = check(&repository(&whole), &model, "the prune itself");
    assert_eq!(kept.len(), 2);
    sound(&repository(&whole), "the prune itself");
    let steps = whole.changes();
    assert!(steps > 20, "{steps}");
    for steps in 1..steps {
        let context = format!("a kill behind change {steps}");
        let server = base.copy();
        let process = repository(&server);
        server.cut_after(steps);
        let _ = pruned(&process, "one", 2, 9);
        after_kill(&server);
        let points = check(&repository(&server), &model, &context);
        assert!(kept.iter().all(|point| points.contains(point)), "{context}: a point that is kept is gone");
        // What is dying is not referred to by a run between.
        let between = server.copy();
        let outcome = compare(&repository(&between), "one", &mut source, 50);
        let mut after = model.clone();
        after.insert(outcome.point.point, source.model.clone());
        pruned(&repository(&between), "one", 3, 51).unwrap();
        let found = check(&repository(&between), &after, &format!("{context}, run and prune"));
        assert!(found.contains(&outcome.point.point), "{context}");
        sound(&repository(&between), &format!("{context}, run and prune"));
        pruned(&repository(&server), "one", 2, 52).unwrap();
        assert_eq!(check(&repository(&server), &model, &format!("{context}, pruned again")), kept);
        sound(&repository(&server), &format!("{context}, pruned again"));
    }
}

#[test]
fn runs_are_made_side_by_side_and_a_prune_waits_for_its_turn() {
    let server = with_repository(false);
    let mut model = Model::new();
    for round in 0..3 {
        let points = std::thread::scope(|scope| {
            let runs: Vec<_> = (0..3u64)
                .map(|disk| {
                    let repository = repository(&server);
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
        check(&repository(&server), &model, &format!("round {round}"));
    }
    assert_eq!(repository(&server).places().series().unwrap(), ["disk0", "disk1", "disk2"]);
    let done = pruned(&repository(&server), "disk0", 1, 901).unwrap();
    assert_eq!((done.removed.len(), done.deferred, done.packs > 0), (2, None, true));
    check(&repository(&server), &model, "after the prune");
    sound(&repository(&server), "the end");
    // A run of the same series is refused while one is under way: the other's lease beats.
    let folder = repository(&server).places().of_series("disk0").unwrap();
    let lease = lunway_backup::Lease::take(&*folder, holder(5), &|| false).unwrap();
    let mut source = Source::new(4 * MIB);
    source.change(&mut Random::new(3), 5);
    let changed = source.unknown();
    let refused = back_up(&repository(&server), "disk0", &source, How::new(changed, 6));
    assert!(matches!(refused, Err(BackupError::InUse { .. })), "{refused:?}");
    lease.check().unwrap();
}

#[test]
fn what_another_process_has_removed_does_not_come_back_with_a_beat() {
    let server = with_repository(false);
    let (ours, theirs) = (places(&server).packs(), places(&server).packs());
    let lease = ours.create("lease-000001").unwrap();
    lease.write_at(0, b"12345678{}").unwrap();
    assert!(ours.create("lease-000001").is_err());
    assert_eq!(theirs.names_with("lease-").unwrap(), ["lease-000001"]);
    theirs.remove("lease-000001").unwrap();
    assert!(lease.write_at(0, b"2").is_err());
    theirs.create("lease-000001").unwrap();
    assert!(lease.write_at(0, b"3").is_err());
    assert_eq!(theirs.open("lease-000001", false).unwrap().len().unwrap(), 0);
    // One that got its whole name goes on under it.
    let presence = ours.create("writer-0000000000000001.incomplete").unwrap();
    presence.write_at(0, b"12345678{}").unwrap();
    assert_eq!(theirs.names_with("writer-").unwrap(), Vec::<String>::new());
    ours.rename("writer-0000000000000001.incomplete", "writer-0000000000000001").unwrap();
    presence.write_at(0, b"2").unwrap();
    assert_eq!(server.bytes("all/repo/writer-0000000000000001").unwrap(), b"22345678{}");
    theirs.remove("writer-0000000000000001").unwrap();
    assert!(presence.write_at(0, b"3").is_err());
    assert_eq!(theirs.names_with("writer-").unwrap(), Vec::<String>::new());
}

#[test]
fn damage_is_found_and_a_run_mends_it() {
    let server = with_repository(true);
    let mut source = Source::new(SIZE);
    source.change(&mut Random::new(4), 20);
    let point = compare(&repository(&server), "one", &mut source, 1).point;
    let packs = server.keys().into_iter().filter(|key| key.contains("/pack-"));
    let largest = packs.max_by_key(|key| server.bytes(key).unwrap().len()).unwrap();
    let mut bytes = server.bytes(&largest).unwrap();
    bytes[1000] ^= 4;
    server.set(&largest, &bytes);
    let report = verified(&repository(&server));
    assert_eq!(report.findings.len(), 1);
    assert!(matches!(restored(&repository(&server), &point), Err(BackupError::Damaged { .. })));
    compare(&repository(&server), "one", &mut source, 2);
    assert_eq!(restored(&repository(&server), &point).unwrap(), source.model);
    // An object that is gone.
    server.remove(&largest);
    assert!(!verified(&repository(&server)).findings.is_empty());
}

#[test]
fn a_newest_point_whose_manifests_cannot_be_read_is_never_passed_over_without_a_word() {
    let server = with_repository(true);
    let mut source = Source::new(SIZE);
    let ids: Vec<_> =
        (1..3).map(|seed| compare(&repository(&server), "one", &mut source, seed).point.point).collect();
    for key in server.keys().iter().filter(|key| key.contains("/000002-") && key.ends_with(".json")) {
        let cut = server.bytes(key).unwrap()[..200].to_vec();
        server.set(key, &cut);
    }
    let all = repository(&server).all_points().unwrap();
    let said = all[0].1.find("latest").map(drop).unwrap_err().to_string();
    assert!(said.contains(&format!("point {} cannot be read", ids[1])), "{said}");
    assert_eq!(all[0].1.find(&ids[0].to_string()).unwrap().point, ids[0]);
}

#[test]
fn a_store_that_fails_in_the_middle_is_no_damage() {
    let server = with_repository(false);
    let mut source = Source::new(SIZE);
    source.change(&mut Random::new(4), 20);
    let point = compare(&repository(&server), "one", &mut source, 1).point;
    let repository = repository(&server);
    for code in ["", "NoSuchBucket"] {
        server.rule(move |asked| match asked.key.contains("/pack-") {
            true => Answer::Refused(404, code, ""),
            false => Answer::Served,
        });
        let failed = restored(&repository, &point).unwrap_err();
        assert!(matches!(failed, BackupError::Folder { .. }), "{failed}");
    }
    server.serve();
    assert_eq!(restored(&repository, &point).unwrap(), source.model);
    assert!(verified(&repository).findings.is_empty());
    // A user who may only read restores all the same; a prune is not told.
    server.rule(
        |asked| if asked.is_change() { Answer::Refused(403, "AccessDenied", "") } else { Answer::Served },
    );
    let folder: Arc<dyn Folder> = repository.places().of_series("one").unwrap();
    assert!(PointMount::begin_if_possible(folder, &holder(3)).unwrap().is_none());
    assert_eq!(restored(&repository, &point).unwrap(), source.model);
}

#[test]
fn what_lies_together_is_read_with_few_requests() {
    let server = with_repository(false);
    let mut source = Source::new(48 * MIB);
    let mut random = Random::new(9);
    let bytes: Vec<u8> = (0..6 * MIB).flat_map(|_| random.next().to_le_bytes()).collect();
    source.write(0, &bytes);
    let point = compare(&repository(&server), "one", &mut source, 1).point;
    let repository = repository(&server);
    server.serve();
    assert_eq!(restored(&repository, &point).unwrap(), source.model);
    println!("{} requests for a restore of 48 MiB", server.requests());
    assert!(server.requests() < 32, "{}", server.requests());
    server.serve();
    assert!(verified(&repository).findings.is_empty());
    println!("{} requests for a verification", server.requests());
    assert!(server.requests() < 40, "{}", server.requests());
}

#[test]
fn a_store_without_conditions_is_refused_before_anything_is_written() {
    let server = Server::start();
    server.ignore_conditions(true, true);
    let refused = Repository::create(&*places(&server), None, &[], &holder(1)).unwrap_err().to_string();
    assert!(refused.contains("If-None-Match") && refused.contains("conditional writes"), "{refused}");
    assert_eq!(server.keys(), Vec::<String>::new());
    server.ignore_conditions(false, false);
    Repository::create(&*places(&server), None, &[], &holder(1)).unwrap();
    let again = Repository::create(&*places(&server), None, &[], &holder(1)).unwrap_err().to_string();
    assert!(again.contains("is a repository already"), "{again}");
}
