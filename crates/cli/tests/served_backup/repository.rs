//! A repository as the destination: the same verbs, beside a daemon; several disks in one; several people; kills.

use std::fs;
use std::mem::MaybeUninit;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use rustix::fs::inotify;
use serde_json::Value;

use super::daemon::{Daemon, command, refused};
use super::initiator::Initiator;
use super::support::{PATIENCE, assert_same_bytes, finish, image, succeed, wait};
use super::{IQN, epochs, folder, restored, run, wait_until_no_snapshot, write};

fn json(folder: &Path, words: &[&str]) -> Value {
    serde_json::from_str(&succeed(command(folder, &[words, &["--json"]].concat()))).unwrap()
}

/// A folder with a daemon's configuration and a repository, `repo`.
fn with_repository() -> tempfile::TempDir {
    let folder = folder();
    fs::create_dir(folder.path().join("repo")).unwrap();
    succeed(command(folder.path(), &["backup", "init", "repo"]));
    folder
}

fn packs(folder: &Path) -> usize {
    let names = fs::read_dir(folder.join("repo")).unwrap();
    names.filter(|entry| entry.as_ref().unwrap().file_name().to_str().unwrap().starts_with("pack-")).count()
}

#[test]
fn a_lun_is_backed_up_into_a_series_and_restored_and_what_series_have_in_common_is_sent_once() {
    let folder = with_repository();
    let folder = folder.path();
    let daemon = Daemon::start(folder);
    let mut initiator = Initiator::ready(&daemon.address, IQN);
    for number in 0..40 {
        write(&mut initiator, 0, number << 20, number + 1).unwrap();
    }
    let first = run(folder, "repo/one");
    assert_eq!((&first["kind"], &first["why"]), (&"full".into(), &"it is the first".into()));
    let old = fs::read(folder.join("disk.img")).unwrap();
    write(&mut initiator, 0, 5 << 20, 100).unwrap();
    let second = run(folder, "repo/one");
    let why = second["why"].as_str().unwrap();
    assert!(why.starts_with("changes since epoch") && why.ends_with("are known"), "{second}");
    assert!(second["read_bytes"].as_u64().unwrap() <= 128 << 10, "{second}");
    assert_eq!((&second["kind"], &second["sent_bytes"]), (&"increment".into(), &(64 << 10).into()));
    assert_eq!(epochs(folder), [second["epoch"].as_str().unwrap()], "the older one was released");
    let new = fs::read(folder.join("disk.img")).unwrap();
    assert!(restored(folder, "repo/one", "latest") == new);
    assert!(restored(folder, "repo/one", first["point"].as_str().unwrap()) == old);

    // A damaged disk: what differs is written, and nothing else.
    fs::copy(folder.join("disk.img"), folder.join("damaged")).unwrap();
    let damaged = fs::File::options().write(true).open(folder.join("damaged")).unwrap();
    damaged.write_all_at(&[9; 4096], 7 << 20).unwrap();
    let delta = ["backup", "restore", "repo/one", "damaged", "--delta", "--overwrite"];
    assert_eq!(json(folder, &delta)["written"], 64 << 10);
    assert_same_bytes(&folder.join("damaged"), &folder.join("disk.img"));

    // Another disk that holds the same.
    let other = json(folder, &["backup", "run", "damaged", "repo/two"]);
    assert_eq!((&other["sent_bytes"], other["changed_bytes"].as_u64() > Some(1 << 20)), (&0.into(), true));
    let series = json(folder, &["backup", "list", "repo"]);
    let named = |at: usize| (series[at]["series"].as_str().unwrap(), series[at]["points"].as_u64().unwrap());
    assert_eq!((named(0), named(1)), (("one", 2), ("two", 1)));
    assert_eq!(json(folder, &["backup", "list", "repo/one"])[1]["parent"], first["point"]);
    let verified = json(folder, &["backup", "verify", "repo"]);
    assert_eq!((verified["points"].as_u64(), verified["findings"].as_array().unwrap().len()), (Some(3), 0));
    let status = json(folder, &["backup", "status", "repo/one"]);
    assert_eq!((&status["newest_verified"], &status["points"]), (&second["point"], &2.into()));
    let page = succeed(command(folder, &["backup", "report", "repo/one"]));
    assert!(page.contains(second["point"].as_str().unwrap()), "{page}");

    // What only the older point needs is no more, and everything else is as before.
    let pruned = json(folder, &["backup", "prune", "repo/one", "--keep-last", "1"]);
    assert_eq!((&pruned["kept"], &pruned["steps"][0]["removed"][0]), (&1.into(), &first["point"]));
    assert!(restored(folder, "repo/one", "latest") == new && restored(folder, "repo/two", "latest") == new);
    wait_until_no_snapshot(folder);
}

#[test]
fn what_cannot_be_meant_is_refused_in_one_sentence() {
    let folder = with_repository();
    let folder = folder.path();
    image(&folder.join("disk"), 1 << 20, 1 << 20);
    let said = |words: &[&str]| {
        let output = finish(command(folder, &[&["backup"], words].concat()), PATIENCE);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.trim_end().lines().count() == 1, "{words:?}: {said}");
        said
    };
    for (words, expected) in [
        (&["init", "repo"][..], "is a repository already"),
        (&["init", "."], "is there: a repository is made in an empty folder"),
        (&["run", "disk", "repo"], "is a repository: name one of its series, repo/NAME"),
        (&["restore", "repo/none", "out"], "has no series none, none yet"),
        (&["restore", "out", "repo"], "the disk: `lunway backup restore repo out`; see"),
        (&["restore", "disk", "repo"], "the disk: `lunway backup restore repo disk`; see"),
        (&["run", "repo", "disk"], "its points: `lunway backup run disk repo`; see"),
        (&["run", "repo", "lun:iqn.2026-11.com.example:a/0"], "run lun:iqn.2026-11.com.example:a/0 repo`"),
        (&["run", "disk", "repo/pack-1"], "cannot be the name of a series"),
        (&["run", "disk", "one", "--key-file", "k"], "--key-file is for an encrypted repository"),
        (&["verify", "repo"], "holds no points"),
        (&["key", "list", "one"], "one is not a repository"),
        (&["key", "add", "repo", &format!("lunway-recipient-{}", "ab".repeat(32))], "is not encrypted"),
    ] {
        let said = said(words);
        assert!(said.contains(expected), "{words:?}: {said}");
    }
    assert!(!folder.join("repo/none").exists());
    succeed(command(folder, &["backup", "run", "disk", "repo/one"]));
    let merged = said(&["prune", "repo/one", "--keep-last", "1", "--merge-after", "3"]);
    assert!(merged.contains("no point is merged"), "{merged}");
}

#[test]
fn an_encrypted_repository_is_read_by_its_people_until_they_are_removed() {
    let folder = folder();
    let folder = folder.path();
    fs::create_dir(folder.join("repo")).unwrap();
    image(&folder.join("disk"), 8 << 20, 6 << 20);
    let new = |file: &str| succeed(command(folder, &["backup", "key", "new", file])).trim().to_owned();
    let (ann, ben) = (new("ann"), new("ben"));
    new("stranger");
    succeed(command(folder, &["backup", "init", "repo", "--for", &ann, "--for", &ben]));
    let with = |key: &str, words: &[&str]| command(folder, &[words, &["--key-file", key]].concat());
    succeed(with("ann", &["backup", "run", "disk", "repo/one"]));
    let disk = fs::read(folder.join("disk")).unwrap();
    for entry in fs::read_dir(folder.join("repo")).unwrap().map(Result::unwrap) {
        let bytes = if entry.path().is_file() { fs::read(entry.path()).unwrap() } else { Vec::new() };
        // Sixteen bytes that are no zeroes stand for the disk's data.
        let data = disk.chunks(16).find(|bytes| !bytes.contains(&0)).unwrap();
        assert!(!bytes.windows(16).any(|window| window == data), "{:?}", entry.path());
    }
    let restore = |key: &str| {
        let _ = fs::remove_file(folder.join("out"));
        succeed(with(key, &["backup", "restore", "repo/one", "out"]));
        assert_same_bytes(&folder.join("out"), &folder.join("disk"));
    };
    restore("ann");
    restore("ben");
    let said = refused(with("stranger", &["backup", "list", "repo/one"]));
    assert!(said.contains("encrypted for 2 recipients, and the key given is none of theirs"), "{said}");
    let said = refused(command(folder, &["backup", "list", "repo/one"]));
    assert!(said.contains("name the file with the secret key of one"), "{said}");
    let packs_before = packs(folder);
    succeed(with("ann", &["backup", "key", "remove", "repo", &ben]));
    let said = refused(with("ben", &["backup", "list", "repo/one"]));
    assert!(said.contains("encrypted for 1 recipient, and"), "{said}");
    assert_eq!(succeed(with("ann", &["backup", "key", "list", "repo"])).trim(), ann);
    assert_eq!(packs(folder), packs_before, "nothing is encrypted again");
    // The environment names the key as well, for those that are begun by others.
    let mut by_environment = command(folder, &["backup", "verify", "repo/one"]);
    by_environment.env("LUNWAY_KEY_FILE", folder.join("ann"));
    succeed(by_environment);
    // Of devices, too, and of a daemon's.
    let copy = ["copy", "point:repo/one", "copied"];
    let said = refused(command(folder, &copy));
    assert!(said.contains("as key-file=FILE or in the variable LUNWAY_KEY_FILE"), "{said}");
    let by_environment = |key: &str| {
        let mut by_environment = command(folder, &copy);
        by_environment.env("LUNWAY_KEY_FILE", folder.join(key));
        by_environment
    };
    let said = refused(by_environment("ben"));
    assert!(said.contains("encrypted for 1 recipient, and"), "{said}");
    succeed(by_environment("ann"));
    assert_same_bytes(&folder.join("copied"), &folder.join("disk"));
    configure(folder, &format!("point:{}", folder.join("repo/one").display()));
    let key = folder.join("ann").to_str().unwrap().to_owned();
    let daemon = Daemon::start_with(folder, &[("LUNWAY_KEY_FILE", &key)]);
    let mut initiator = Initiator::ready(&daemon.address, IQN);
    assert!(read(&mut initiator, 0) == disk[..4096]);
}

/// The state of a repository was put together of two readings of each point.
#[test]
fn the_state_of_a_repository_takes_one_look_at_each_point() {
    let folder = with_repository();
    let folder = folder.path();
    image(&folder.join("disk"), 1 << 20, 1 << 20);
    for _ in 0..2 {
        succeed(command(folder, &["backup", "run", "disk", "repo/one"]));
    }
    for verb in ["list", "status", "report"] {
        let opened = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC).unwrap();
        inotify::add_watch(&opened, folder.join("repo/one"), inotify::WatchFlags::OPEN).unwrap();
        succeed(command(folder, &["backup", verb, "repo"]));
        let (mut buffer, mut manifests) = ([MaybeUninit::uninit(); 4096], Vec::new());
        let mut events = inotify::Reader::new(&opened, &mut buffer);
        while let Ok(event) = events.next() {
            let name = event.file_name().map(|name| name.to_string_lossy().into_owned());
            manifests.extend(name.filter(|name| name.starts_with("00000") && name.ends_with(".json")));
        }
        manifests.sort();
        let looks = manifests.len();
        manifests.dedup();
        assert_eq!((looks, manifests.len()), (4, 4), "{verb}: two points, each with two copies");
    }
}

#[test]
fn damage_is_named_and_the_next_run_heals_what_the_source_has() {
    let folder = with_repository();
    let folder = folder.path();
    image(&folder.join("disk"), 8 << 20, 6 << 20);
    let point = json(folder, &["backup", "run", "disk", "repo/one"])["point"].as_str().unwrap().to_owned();
    let largest = fs::read_dir(folder.join("repo")).unwrap().map(|entry| entry.unwrap().path());
    let pack =
        largest.filter(|path| path.is_file()).max_by_key(|path| path.metadata().unwrap().len()).unwrap();
    let file = fs::File::options().write(true).open(&pack).unwrap();
    file.write_all_at(&[0x55; 512], pack.metadata().unwrap().len() / 2).unwrap();
    let output = finish(command(folder, &["backup", "verify", "repo/one"]), PATIENCE);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(pack.file_name().unwrap().to_str().unwrap()) && said.contains(&point), "{said}");
    assert_eq!(json(folder, &["backup", "list", "repo/one"])[0]["state"], "damaged");
    let said = refused(command(folder, &["backup", "restore", "repo/one", "out"]));
    assert!(said.contains("is damaged"), "{said}");
    let said = refused(command(folder, &["backup", "prune", "repo/one", "--keep-last", "1"]));
    assert!(said.contains("damage is known"), "{said}");
    let healed = json(folder, &["backup", "run", "disk", "repo/one"]);
    assert!(healed["sent_bytes"].as_u64().unwrap() >= 64 << 10, "{healed}");
    let verified = json(folder, &["backup", "verify", "repo/one"]);
    assert_eq!(verified["findings"].as_array().unwrap().len(), 0, "{verified}");
    let _ = fs::remove_file(folder.join("out.partial"));
    for at in [&point, "latest"] {
        assert!(restored(folder, "repo/one", at) == fs::read(folder.join("disk")).unwrap());
    }
}

/// A configuration that serves this device as LUN 0.
fn configure(folder: &Path, device: &str) {
    let text = format!(
        "listen = [\"127.0.0.1:0\"]\nstate_dir = \"state\"\ncores = 1\n[[target]]\nname = \"{IQN}\"\nopen = true\n\
         [[target.lun]]\nid = 0\ndevice = \"{device}\"\n"
    );
    fs::write(folder.join("lunway.toml"), text).unwrap();
}

/// A daemon that serves this device as LUN 0.
fn serve(folder: &Path, device: &str) -> Daemon {
    configure(folder, device);
    Daemon::start(folder)
}

/// READ (10) of 4 KiB.
fn read(initiator: &mut Initiator, offset: u64) -> Vec<u8> {
    let mut cdb = [0x28, 0, 0, 0, 0, 0, 0, 0, 8, 0];
    cdb[2..6].copy_from_slice(&((offset / 512) as u32).to_be_bytes());
    let done = initiator.execute(0, &cdb, &[], 4096).unwrap();
    assert_eq!(done.status, 0, "{done:?}");
    done.data_in[..].to_vec()
}

fn there(folder: &Path, part: &str) -> bool {
    let names = fs::read_dir(folder.join("repo/one")).unwrap();
    names.map(|entry| entry.unwrap().file_name()).any(|name| name.to_str().unwrap().contains(part))
}

#[test]
fn a_point_is_a_device_and_a_lun_that_forgets_writes_and_a_prune_waits_for_it() {
    let folder = with_repository();
    let folder = folder.path();
    image(&folder.join("disk"), 16 << 20, 8 << 20);
    let first = json(folder, &["backup", "run", "disk", "repo/one"])["point"].as_str().unwrap().to_owned();
    let old = fs::read(folder.join("disk")).unwrap();
    let disk = fs::File::options().write(true).open(folder.join("disk")).unwrap();
    disk.write_all_at(&[9; 70_000], 3 << 20).unwrap();
    json(folder, &["backup", "run", "disk", "repo/one"]);
    let new = fs::read(folder.join("disk")).unwrap();
    // As a device of another command.
    for (point, expected) in [(format!("@{}", &first[..9]), &old), (String::new(), &new)] {
        let _ = fs::remove_file(folder.join("out.img"));
        succeed(command(folder, &["copy", &format!("point:repo/one{point}"), "out.img"]));
        assert!(fs::read(folder.join("out.img")).unwrap() == *expected, "{point}");
    }
    let daemon = serve(folder, "point:repo/one?writes=discard");
    let mut initiator = Initiator::ready(&daemon.address, IQN);
    // Every piece, whatever leaf it lies in, and across two of them.
    for at in (0..new.len() as u64 - 4096).step_by(61_440) {
        assert!(read(&mut initiator, at) == new[at as usize..][..4096], "at {at}");
    }
    write(&mut initiator, 0, 5 << 20, 77).unwrap();
    assert!(read(&mut initiator, 5 << 20) == super::piece(77));
    assert!(read(&mut initiator, (5 << 20) + 4096) == new[(5 << 20) + 4096..][..4096]);
    let said = refused(command(folder, &["backup", "prune", "repo/one", "--keep-last", "1"]));
    assert!(said.contains("reads a point of it"), "{said}");
    drop(initiator);
    daemon.kill();
    assert!(there(folder, "throwaway"), "what a kill leaves");
    succeed(command(folder, &["backup", "prune", "repo/one", "--keep-last", "1"]));
    assert!(!there(folder, "throwaway") && !there(folder, "mount-"));
    assert!(restored(folder, "repo/one", "latest") == new);
    // Read-only, without a name of a point.
    let daemon = serve(folder, "point:repo/one");
    let mut initiator = Initiator::ready(&daemon.address, IQN);
    assert!(read(&mut initiator, 3 << 20) == [9; 4096]);
    let refused_write = initiator.execute(0, &[0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[1; 512], 0).unwrap();
    assert_eq!(refused_write.status, 2, "a check condition");
}

#[test]
fn a_point_of_an_encrypted_repository_becomes_a_disk_of_its_own() {
    let folder = folder();
    let folder = folder.path();
    fs::create_dir(folder.join("repo")).unwrap();
    let ann = succeed(command(folder, &["backup", "key", "new", "ann"])).trim().to_owned();
    succeed(command(folder, &["backup", "init", "repo", "--for", &ann]));
    image(&folder.join("disk"), 64 << 20, 40 << 20);
    let with = |words: &[&str]| command(folder, &[words, &["--key-file", "ann"]].concat());
    succeed(with(&["backup", "run", "disk", "repo/one"]));
    let mut model = fs::read(folder.join("disk")).unwrap();
    // What is read must not lie in the clear beside it.
    let said = refused(command(folder, &["copy", "ram:64M", "point:repo/one?key-file=ann&writes=discard"]));
    assert!(said.contains("into=FILE.vhdx"), "{said}");
    let said = refused(command(folder, &["copy", "point:repo/one", "out.img"]));
    assert!(said.contains("name the file with the secret key"), "{said}");
    let device = "point:repo/one?key-file=ann&into=vm.vhdx";
    for number in 0..3 {
        let daemon = serve(folder, device);
        let mut initiator = Initiator::ready(&daemon.address, IQN);
        let at = (number + 1) * 7_000_000 / 4096 * 4096;
        assert!(read(&mut initiator, at) == model[at as usize..][..4096], "{number}");
        write(&mut initiator, 0, at, number + 5).unwrap();
        initiator.flush().unwrap();
        model[at as usize..][..4096].copy_from_slice(&super::piece(number + 5));
        daemon.kill();
    }
    let daemon = serve(folder, device);
    let pulled = || json(folder, &["lun", "list", IQN])["luns"][0]["status"]["pull"].is_null();
    super::support::until(pulled);
    super::support::until(|| !there(folder, "hold-"));
    daemon.kill();
    // The repository is gone, and the line of the configuration goes on.
    fs::rename(folder.join("repo"), folder.join("gone")).unwrap();
    let daemon = serve(folder, device);
    let mut initiator = Initiator::ready(&daemon.address, IQN);
    assert!(read(&mut initiator, 0) == model[..4096]);
    drop(initiator);
    daemon.kill();
    succeed(command(folder, &["copy", "vm.vhdx", "out.img"]));
    assert!(fs::read(folder.join("out.img")).unwrap() == model);
}

/// 20 MB at 2.5 MB/s: a pack holds what is sent in some seconds, so that a kill costs no more than the last one.
#[test]
fn what_a_killed_run_has_sent_is_not_sent_again() {
    let folder = with_repository();
    let folder = folder.path();
    image(&folder.join("disk"), 32 << 20, 20 << 20);
    let words = ["backup", "run", "disk", "repo/one", "--limit", "2500000B/s"];
    let mut running = command(folder, &words).spawn().unwrap();
    super::support::until(|| packs(folder) > 0 && names_pack(folder));
    running.kill().unwrap();
    wait(&mut running, PATIENCE).unwrap();
    let sealed: u64 = sizes_of_packs(folder);
    assert!(sealed > 0);
    let next = json(folder, &["backup", "run", "disk", "repo/one"]);
    let sent = next["sent_bytes"].as_u64().unwrap();
    let disk = fs::read(folder.join("disk")).unwrap();
    let unique =
        disk.chunks(64 << 10).filter(|leaf| leaf.iter().any(|byte| *byte != 0)).count() as u64 * (64 << 10);
    assert!(sent + sealed <= unique + (1 << 20), "{sent} sent after {sealed} of {unique}");
    assert!(restored(folder, "repo/one", "latest") == disk);
}

fn names_pack(folder: &Path) -> bool {
    sizes_of_packs(folder) > 0
}

/// Bytes of packs that have their names.
fn sizes_of_packs(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder.join("repo")).unwrap().map(Result::unwrap);
    let is_pack = |name: &str| name.starts_with("pack-") && !name.contains('.');
    let packs = entries.filter(|entry| is_pack(entry.file_name().to_str().unwrap()));
    packs.filter_map(|entry| entry.metadata().ok()).map(|file| file.len()).sum()
}

#[test]
fn a_link_in_the_place_of_a_repository_leads_to_what_was_seen_through_it_alone() {
    let folder = folder();
    let folder = folder.path();
    let (repo, state) = (folder.join("repo"), folder.join("state"));
    let below = folder.join("below");
    image(&folder.join("disk"), 1 << 20, 1 << 20);
    for made in [&repo, &folder.join("other"), &below] {
        fs::create_dir(made).unwrap();
    }
    let own = |words: &[&str]| {
        let mut command = command(folder, words);
        command.env("XDG_STATE_HOME", &state).env("LUNWAY_KEY_FILE", folder.join("ann"));
        command
    };
    let ann = succeed(command(folder, &["backup", "key", "new", "ann"])).trim().to_owned();
    succeed(own(&["backup", "init", "repo", "--for", &ann]));
    let run = ["backup", "run", "disk", "repo/one"];
    succeed(own(&run));
    // Somebody else's, for the same public key.
    succeed(command(folder, &["backup", "init", "other", "--for", &ann]));
    let whole = folder.join("whole");
    fs::rename(&repo, &whole).unwrap();
    symlink("other", &repo).unwrap();
    for path in ["repo/one", "./repo/one", "below/../repo/one"] {
        let said = refused(own(&["backup", "run", "disk", path]));
        assert!(said.contains("is another repository") && said.contains("remove /"), "{path}: {said}");
    }
    let mut from_below = own(&["backup", "run", "../disk", "../repo/one"]);
    from_below.current_dir(&below);
    let said = refused(from_below);
    assert!(said.contains("is another repository"), "{said}");
    assert!(!folder.join("other/one").exists(), "nothing was written there");
    // The repository itself elsewhere.
    fs::remove_file(&repo).unwrap();
    symlink("whole", &repo).unwrap();
    succeed(own(&run));
    succeed(own(&["backup", "list", "whole/one"]));
    fs::remove_file(&repo).unwrap();
    fs::rename(&whole, &repo).unwrap();
    succeed(own(&run));
}

#[test]
fn a_series_whose_folder_is_gone_is_named_and_nothing_is_removed_until_it_is_back_or_given_up() {
    let folder = with_repository();
    let folder = folder.path();
    image(&folder.join("disk"), 1 << 20, 1 << 20);
    for series in ["repo/one", "repo/one", "repo/two"] {
        succeed(command(folder, &["backup", "run", "disk", series]));
    }
    let (there, away) = (folder.join("repo/two"), folder.join("away"));
    fs::rename(&there, &away).unwrap();
    let listed = json(folder, &["backup", "list", "repo"]);
    let status = json(folder, &["backup", "status", "repo"]);
    for series in [&listed[1], &status["series"][1]] {
        assert_eq!((&series["series"], &series["points"]), (&"two".into(), &0.into()), "{listed} {status}");
        assert!(series["warnings"][0].as_str().unwrap().contains("is gone"), "{series}");
    }
    let verified = command(folder, &["backup", "verify", "repo", "--json"]).output().unwrap();
    assert_eq!(verified.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&verified.stdout).unwrap();
    assert!(report["findings"][0]["what"].as_str().unwrap().contains("two is gone"), "{report}");
    let prune = ["backup", "prune", "repo/one", "--keep-last", "1"];
    let dry = json(folder, &[&prune[..], &["--dry-run"]].concat());
    assert!(dry["refused"].as_str().unwrap().contains("two is gone") && dry["kept"] == 1, "{dry}");
    let report = succeed(command(folder, &["backup", "report", "repo"]));
    assert!(report.contains("two is gone") && report.contains("2 series, 2 points"), "{report}");
    // A user who has listed it, and one who has not.
    let of = |state: &str, words: &[&str]| {
        let mut command = command(folder, words);
        command.env("XDG_STATE_HOME", folder.join(state));
        finish(command, PATIENCE)
    };
    fs::rename(&away, &there).unwrap();
    assert!(of("lister", &["backup", "list", "repo"]).status.success());
    fs::rename(&there, &away).unwrap();
    let said = of("lister", &["backup", "status", "repo"]);
    assert!(String::from_utf8_lossy(&said.stderr).contains("two is gone"), "{said:?}");
    let said = of("stranger", &["backup", "status", "repo"]);
    assert!(!String::from_utf8_lossy(&said.stderr).contains("two"), "{said:?}");
    for words in [&prune[..], &["backup", "list", "repo/two"], &["backup", "verify", "repo/two"]] {
        let said = refused(command(folder, words));
        assert!(said.contains("two is gone") && said.contains("--remove-series"), "{said}");
    }
    assert_eq!(json(folder, &["backup", "list", "repo/one"]).as_array().unwrap().len(), 2);
    fs::rename(&away, &there).unwrap();
    succeed(command(folder, &prune));
    fs::rename(&there, &away).unwrap();
    refused(command(folder, &prune));
    succeed(command(folder, &["backup", "prune", "repo/two", "--remove-series"]));
    succeed(command(folder, &prune));
    assert_eq!(json(folder, &["backup", "list", "repo"]).as_array().unwrap().len(), 1);
    let said = refused(command(folder, &["backup", "prune", "repo/two", "--remove-series"]));
    assert!(said.contains("has no series two"), "{said}");
}

#[test]
fn what_is_put_in_the_place_of_a_repository_is_refused_and_the_file_that_remembers_is_named() {
    let folder = folder();
    let folder = folder.path();
    let (repo, state) = (folder.join("repo"), folder.join("state"));
    fs::create_dir(&repo).unwrap();
    image(&folder.join("disk"), 1 << 20, 1 << 20);
    let own = |words: &[&str]| {
        let mut command = command(folder, words);
        command.env("XDG_STATE_HOME", &state).env("LUNWAY_KEY_FILE", folder.join("ann"));
        command
    };
    let ann = succeed(command(folder, &["backup", "key", "new", "ann"])).trim().to_owned();
    let made = own(&["backup", "init", "repo", "--for", &ann, "--json"]);
    let made: Value = serde_json::from_str(&succeed(made)).unwrap();
    assert_eq!((&made["encrypted"], &made["recipients"][0]), (&true.into(), &ann.as_str().into()));
    let run = ["backup", "run", "disk", "repo/one"];
    succeed(own(&run));
    let markers = ["repository.json", "repository.copy.json"].map(|name| repo.join(name));
    // Removed: a folder that is there already would take the points in the clear.
    let kept = markers.each_ref().map(|marker| fs::read(marker).unwrap());
    markers.iter().for_each(|marker| fs::remove_file(marker).unwrap());
    for words in [&run[..], &["backup", "list", "repo/one"], &["backup", "run", "disk", "repo"]] {
        let said = refused(own(words));
        assert!(said.contains("has no repository.json now") && said.contains("remove /"), "{said}");
    }
    // Another one, for the same public key.
    let other = folder.join("other");
    fs::create_dir(&other).unwrap();
    succeed(own(&["backup", "init", "other", "--for", &ann]));
    for marker in &markers {
        fs::copy(other.join(marker.file_name().unwrap()), marker).unwrap();
    }
    let said = refused(own(&run));
    assert!(said.contains("is another repository"), "{said}");
    // In the clear.
    let open = folder.join("open");
    fs::create_dir(&open).unwrap();
    succeed(command(folder, &["backup", "init", "open"]));
    for marker in &markers {
        fs::copy(open.join(marker.file_name().unwrap()), marker).unwrap();
    }
    let mut without_key = own(&run);
    without_key.env_remove("LUNWAY_KEY_FILE");
    let said = refused(without_key);
    assert!(said.contains("is not encrypted, and was"), "{said}");
    let said = refused(own(&run));
    assert!(said.contains("is not encrypted"), "{said}");
    // The way out that is named.
    for (marker, bytes) in markers.iter().zip(&kept) {
        fs::write(marker, bytes).unwrap();
    }
    succeed(own(&run));
    markers.iter().for_each(|marker| fs::remove_file(marker).unwrap());
    let said = refused(own(&["backup", "list", "repo"]));
    let pin = said.rsplit_once("remove ").unwrap().1.trim();
    fs::remove_file(pin).unwrap();
    let said = refused(own(&["backup", "list", "repo"]));
    assert!(!said.contains("repository.json"), "{said}");
    // A user who has never seen it, and has a key: nothing is written in the clear.
    for destination in ["repo", "repo/one"] {
        let said = refused(own(&["backup", "run", "disk", destination]));
        assert!(said.contains("LUNWAY_KEY_FILE names a key, and"), "{said}");
    }
}

#[test]
fn one_point_or_a_whole_series_is_removed_when_its_word_is_given_and_a_prune_takes_all_series() {
    let folder = with_repository();
    let folder = folder.path();
    image(&folder.join("disk"), 4 << 20, 1 << 20);
    let disk = fs::File::options().write(true).open(folder.join("disk")).unwrap();
    let mut points = Vec::new();
    for number in 0..4u8 {
        disk.write_all_at(&[number + 1; 70_000], 2 << 20).unwrap();
        let made = json(folder, &["backup", "run", "disk", "repo/one"]);
        points.push(made["point"].as_str().unwrap().to_owned());
        json(folder, &["backup", "run", "disk", "repo/two"]);
    }
    let there = |series: &str| json(folder, &["backup", "list", series]).as_array().unwrap().len();
    let said =
        succeed(command(folder, &["backup", "prune", "repo/one", "--remove", &points[1], "--dry-run"]));
    assert!(said.contains("1 point would be removed, 3 kept"), "{said}");
    assert_eq!(there("repo/one"), 4);
    // Also the newest one, which no retention removes; nothing is missed afterwards.
    let words = ["backup", "prune", "repo/one", "--remove", &points[1], "--remove", "latest"];
    assert_eq!(json(folder, &words)["kept"], 2);
    // Given again, the same words remove no other point until a run has made one.
    for words in [&words[..], &["backup", "prune", "repo/one", "--remove", "latest"]] {
        let output = finish(command(folder, words), PATIENCE);
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success() && said.contains("0 points removed, 2 kept"), "{said}");
        assert!(said.contains("latest: a prune has removed it since the last run"), "{said}");
    }
    let left = json(folder, &["backup", "list", "repo/one"]);
    assert_eq!(
        (&left[0]["point"], &left[1]["point"]),
        (&points[0].as_str().into(), &points[2].as_str().into())
    );
    let status = json(folder, &["backup", "status", "repo"]);
    assert_eq!((&status["points"], &status["damage"]), (&6.into(), &0.into()));
    let all = json(folder, &["backup", "prune", "repo", "--keep-last", "1"]);
    assert_eq!(
        (&all["series"][0]["kept"], all["series"][1]["steps"].as_array().unwrap().len()),
        (&1.into(), 3)
    );
    assert_eq!((there("repo/one"), there("repo/two")), (1, 1));
    let verified = json(folder, &["backup", "verify", "repo"]);
    assert_eq!(verified["findings"].as_array().unwrap().len(), 0, "{verified}");
    succeed(command(folder, &["backup", "prune", "repo/one", "--remove-series"]));
    assert!(!folder.join("repo/one").exists());
    assert!(restored(folder, "repo/two", "latest") == fs::read(folder.join("disk")).unwrap());
    let again = json(folder, &["backup", "run", "disk", "repo/one"]);
    assert_eq!((&again["sent_bytes"], again["notes"].as_array().unwrap().len()), (&0.into(), 0), "{again}");
    for words in [&["--remove", "latest", "--keep-last", "1"][..], &[]] {
        let output = finish(command(folder, &[&["backup", "prune", "repo/one"], words].concat()), PATIENCE);
        assert_eq!(output.status.code(), Some(2), "{words:?}");
    }
}

/// The same with this umask.
fn with_umask(umask: &str, command: &Command) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("umask {umask} && exec \"$0\" \"$@\"")]);
    shell.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        shell.current_dir(folder);
    }
    shell
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn in_a_folder_that_a_group_shares_all_files_are_the_groups_whatever_the_umask_and_state_is_the_users_alone()
{
    let folder = folder();
    let folder = folder.path();
    image(&folder.join("disk"), 1 << 20, 1 << 20);
    let state = folder.join("own");
    let own = |umask: &str, words: &[&str]| {
        let mut command = command(folder, words);
        command.env("XDG_STATE_HOME", &state).env("XDG_CACHE_HOME", folder.join("cache"));
        succeed(with_umask(umask, &command));
    };
    for (name, is_shared) in [("repo", true), ("private", false), ("chain", true)] {
        fs::create_dir(folder.join(name)).unwrap();
        let permissions = fs::Permissions::from_mode(if is_shared { 0o2770 } else { 0o2755 });
        fs::set_permissions(folder.join(name), permissions).unwrap();
    }
    for (repository, is_shared) in [("repo", true), ("private", false)] {
        own("077", &["backup", "init", repository]);
        own("077", &["backup", "run", "disk", &format!("{repository}/one")]);
        own("027", &["backup", "run", "disk", &format!("{repository}/two")]);
        let mut seen = 0;
        for place in [
            folder.join(repository),
            folder.join(repository).join("one"),
            folder.join(repository).join("two"),
        ] {
            for entry in fs::read_dir(&place).unwrap().map(|entry| entry.unwrap().path()) {
                let expected = match (entry.is_dir(), is_shared) {
                    (true, true) => 0o2070,
                    (false, true) => 0o060,
                    _ => 0,
                };
                let found = mode(&entry) & 0o2077;
                let is_right = if is_shared { found == expected } else { found & 0o027 == 0 };
                assert!(is_right, "{} {found:o}", entry.display());
                seen += 1;
            }
        }
        assert!(seen > 10, "{seen}");
    }
    own("077", &["backup", "run", "disk", "chain"]);
    for entry in fs::read_dir(folder.join("chain")).unwrap().map(|entry| entry.unwrap().path()) {
        // A point is read-only.
        assert_eq!(mode(&entry) & 0o040, 0o040, "{}", entry.display());
        assert_eq!(mode(&entry) & 0o007, 0, "{}", entry.display());
    }
    let mut kept = vec![state.join("lunway"), folder.join("cache/lunway")];
    while let Some(path) = kept.pop() {
        assert_eq!(mode(&path) & 0o077, 0, "{}", path.display());
        if path.is_dir() {
            kept.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
}

#[test]
fn a_manifest_that_was_put_there_is_told_by_every_command_and_given_out_by_its_id_alone() {
    let folder = with_repository();
    let folder = folder.path();
    for (disk, series) in [("disk", "repo/one"), ("other", "repo/two"), ("other", "repo/two")] {
        image(&folder.join(disk), 1 << 20, if disk == "disk" { 1 << 20 } else { 512 << 10 });
        succeed(command(folder, &["backup", "run", disk, series]));
    }
    let stray = json(folder, &["backup", "list", "repo/two"])[1]["point"].as_str().unwrap().to_owned();
    for entry in fs::read_dir(folder.join("repo/two")).unwrap().map(|entry| entry.unwrap()) {
        let name = entry.file_name().into_string().unwrap();
        if name.contains(&stray) {
            fs::copy(entry.path(), folder.join("repo/one").join(name)).unwrap();
        }
    }
    let restore = ["backup", "restore", "repo/one", "out", "--overwrite"];
    for words in [
        &["backup", "list", "repo"][..],
        &["backup", "list", "repo/one"],
        &["backup", "status", "repo"],
        &["backup", "run", "disk", "repo/one"],
        &restore,
        &["backup", "verify", "repo/one"],
    ] {
        let output = finish(command(folder, words), PATIENCE);
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(said.contains(&stray) && said.contains("never the latest"), "{words:?}: {said}");
        assert_eq!(output.status.code(), Some(i32::from(words[1] == "verify")), "{words:?}: {said}");
    }
    assert_same_bytes(&folder.join("out"), &folder.join("disk"));
    let output = finish(command(folder, &[&restore[..], &["--point", &stray]].concat()), PATIENCE);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("made for the series two"), "{said}");
    assert_same_bytes(&folder.join("out"), &folder.join("other"));
    succeed(command(folder, &["backup", "prune", "repo/one", "--keep-last", "1"]));
    succeed(command(folder, &["backup", "prune", "repo/one", "--remove", &stray]));
    assert_eq!(json(folder, &["backup", "verify", "repo"])["findings"].as_array().unwrap().len(), 0);
    assert!(restored(folder, "repo/two", &stray) == fs::read(folder.join("other")).unwrap());
}

#[test]
fn an_old_copy_of_a_series_that_was_renamed_is_told_by_every_command_and_given_out_by_its_ids_alone() {
    let folder = with_repository();
    let folder = folder.path();
    image(&folder.join("disk"), 1 << 20, 1 << 20);
    for _ in 0..2 {
        succeed(command(folder, &["backup", "run", "disk", "repo/one"]));
    }
    let copy = folder.join("copy");
    fs::create_dir(&copy).unwrap();
    for entry in fs::read_dir(folder.join("repo/one")).unwrap().map(|entry| entry.unwrap()) {
        fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
    }
    fs::rename(folder.join("repo/one"), folder.join("repo/new")).unwrap();
    succeed(command(folder, &["backup", "run", "disk", "repo/new", "--rename-source"]));
    fs::rename(&copy, folder.join("repo/one")).unwrap();
    for (words, code) in [
        (&["backup", "list", "repo"][..], 0),
        (&["backup", "list", "repo/one"], 0),
        (&["backup", "status", "repo"], 0),
        (&["backup", "report", "repo"], 0),
        (&["backup", "verify", "repo"], 1),
        (&["backup", "run", "disk", "repo/one"], 1),
        (&["backup", "restore", "repo/one", "out"], 1),
    ] {
        let output = finish(command(folder, words), PATIENCE);
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(said.contains("one is an older copy of the series new"), "{words:?}: {said}");
        assert_eq!(output.status.code(), Some(code), "{words:?}: {said}");
    }
    assert_eq!(json(folder, &["backup", "list", "repo"])[1]["points"], 0);
    let listed = json(folder, &["backup", "list", "repo/one"]);
    assert!(
        restored(folder, "repo/one", listed[1]["point"].as_str().unwrap())
            == fs::read(folder.join("disk")).unwrap()
    );
    succeed(command(folder, &["backup", "prune", "repo", "--keep-last", "1"]));
    assert_eq!(json(folder, &["backup", "list", "repo/one"]).as_array().unwrap().len(), 2);
    succeed(command(folder, &["backup", "prune", "repo/one", "--remove-series"]));
    assert!(!folder.join("repo/one").exists());
    assert_eq!(json(folder, &["backup", "verify", "repo"])["findings"].as_array().unwrap().len(), 0);
}

#[test]
fn what_lies_in_the_place_of_a_list_is_told_and_blocks_neither_a_restore_nor_a_run() {
    let folder = with_repository();
    let folder = folder.path();
    image(&folder.join("disk"), 1 << 20, 1 << 20);
    succeed(command(folder, &["backup", "run", "disk", "repo/one"]));
    for name in ["damage.json", "dying.json"] {
        let list = folder.join("repo").join(name);
        for kind in ["large", "folder", "link", "pipe"] {
            match kind {
                "large" => fs::File::create(&list).unwrap().set_len(20 << 30).unwrap(),
                "folder" => fs::create_dir(&list).unwrap(),
                "link" => std::os::unix::fs::symlink("/dev/zero", &list).unwrap(),
                _ => succeed_plain(Command::new("mkfifo").arg(&list)),
            }
            assert!(restored(folder, "repo/one", "latest") == fs::read(folder.join("disk")).unwrap());
            let made = json(folder, &["backup", "run", "disk", "repo/one"]);
            let notes = made["notes"].to_string();
            assert!(notes.contains(name) && notes.contains("remove it"), "{kind}: {made}");
            let verified = json(folder, &["backup", "verify", "repo/one"]);
            assert_eq!(verified["findings"].as_array().unwrap().len(), 0, "{kind}: {verified}");
            match fs::symlink_metadata(&list) {
                Ok(found) if found.is_dir() => fs::remove_dir(&list).unwrap(),
                Ok(_) => fs::remove_file(&list).unwrap(),
                // A verification has made it again.
                Err(_) => {}
            }
        }
    }
}

fn succeed_plain(command: &mut Command) {
    assert!(command.status().unwrap().success(), "{command:?}");
}
