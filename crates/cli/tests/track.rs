//! `lun epoch` and `lun changes`: what initiators write is listed, after kill -9 of the daemon too, and a disk that was
//! changed meanwhile is said to be unknown.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "support/daemon.rs"]
mod daemon;
#[path = "support/initiator.rs"]
mod initiator;
mod support;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use daemon::{Daemon, lun};
use initiator::Initiator;
use serde_json::{Value, json};
use support::{IQN, PATIENCE, finish, lunway, succeed};

const GRAIN: u64 = 64 << 10;
/// Of a disk of up to 1 TiB.
const REGION: u64 = 4 << 20;
const SIZE: u64 = 256 << 20;

/// A folder with a disk, and a configuration that serves it with and without tracking.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["disk.img", "other.img"] {
        fs::File::create(folder.path().join(name)).unwrap().set_len(SIZE).unwrap();
    }
    let text = format!(
        "listen = [\"127.0.0.1:0\"]\nstate_dir = \"state\"\ncores = 1\n[[target]]\nname = \"{IQN}\"\nopen = true\n\
         [[target.lun]]\nid = 0\ndevice = \"raw:disk.img\"\ntrack = true\n\
         [[target.lun]]\nid = 1\ndevice = \"raw:other.img\"\n"
    );
    fs::write(folder.path().join("lunway.toml"), text).unwrap();
    folder
}

fn close(folder: &Path) -> String {
    let closed = succeed(lun(folder, "epoch", &["close", IQN, "0"]));
    assert_eq!(closed.trim_end().len(), 32, "{closed}");
    closed.trim_end().to_owned()
}

fn changes(folder: &Path, since: &str) -> Value {
    serde_json::from_str(&succeed(lun(folder, "changes", &[IQN, "0", "--since", since, "--json"]))).unwrap()
}

fn range(offset: u64, length: u64, state: &str) -> Value {
    json!({ "offset": offset, "length": length, "state": state })
}

/// WRITE (10) of one block.
fn write(initiator: &mut Initiator, offset: u64) {
    let block = (offset / 512) as u32;
    let mut cdb = [0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0];
    cdb[2..6].copy_from_slice(&block.to_be_bytes());
    let done = initiator.execute(0, &cdb, &[7; 512], 0).unwrap();
    assert_eq!(done.status, 0, "{done:?}");
}

/// WRITE SAME (16) of zeroes, with UNMAP.
fn discard(initiator: &mut Initiator, offset: u64, length: u64) {
    let mut cdb = [0x93, 0x08, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    cdb[2..10].copy_from_slice(&(offset / 512).to_be_bytes());
    cdb[10..14].copy_from_slice(&((length / 512) as u32).to_be_bytes());
    let done = initiator.execute(0, &cdb, &[0; 512], 0).unwrap();
    assert_eq!(done.status, 0, "{done:?}");
}

#[test]
fn what_is_written_is_listed_and_a_killed_daemon_forgets_nothing() {
    let folder = folder();
    let folder = folder.path();
    let daemon = Daemon::start(folder);
    let before = succeed(lun(folder, "changes", &[IQN, "0"]));
    assert!(before.starts_with("unknown, compare everything: no epoch"), "{before}");

    let first = close(folder);
    let mut initiator = Initiator::ready(&daemon.address, IQN);
    write(&mut initiator, 0);
    write(&mut initiator, 5 * REGION);
    discard(&mut initiator, 9 * REGION, 2 * GRAIN);
    let known = changes(folder, &first);
    assert_eq!((&known["known"], &known["epoch"]), (&json!(true), &json!(first)));
    let all = [
        range(0, GRAIN, "written"),
        range(5 * REGION, GRAIN, "written"),
        range(9 * REGION, 2 * GRAIN, "unmapped"),
    ];
    assert_eq!(known["ranges"], json!(all));

    // A second destination closes an epoch of its own.
    let second = close(folder);
    write(&mut initiator, 7 * REGION + GRAIN);
    daemon.kill();

    let daemon = Daemon::start(folder);
    let hot = range(7 * REGION, REGION, "written");
    assert_eq!(changes(folder, &second)["ranges"], json!([hot]));
    let since_first = changes(folder, &first)["ranges"].clone();
    assert_eq!(since_first, json!([all[0], all[1], hot, all[2]]));
    let table = succeed(lun(folder, "changes", &[IQN, "0", "--since", &second]));
    assert!(table.contains("4 MiB written") || table.contains("4MiB written"), "{table}");

    let list: Value =
        serde_json::from_str(&succeed(lun(folder, "epoch", &["list", IQN, "0", "--json"]))).unwrap();
    let names: Vec<_> = list["epochs"].as_array().unwrap().iter().map(|epoch| &epoch["epoch"]).collect();
    assert_eq!(names, [&json!(first), &json!(second)]);
    succeed(lun(folder, "epoch", &["release", IQN, "0", &second]));
    assert_eq!(changes(folder, &first)["ranges"], since_first);
    assert_eq!(changes(folder, &second)["known"], json!(false));
    drop(daemon);
}

/// The epoch was closed into a file that no start would find.
#[test]
fn no_epoch_is_closed_where_the_track_file_is_gone() {
    let folder = folder();
    let daemon = Daemon::start(folder.path());
    let kept = close(folder.path());
    let state = folder.path().join("state");
    let files = fs::read_dir(&state).unwrap().map(|entry| entry.unwrap().path());
    let track = files.into_iter().find(|path| path.extension().is_some_and(|end| end == "track")).unwrap();
    let saved = folder.path().join("saved");
    fs::rename(&track, &saved).unwrap();
    // It is told before a backup finds out.
    let start = Instant::now();
    while !health(folder.path()).contains("untracked_lun") {
        assert!(start.elapsed() < PATIENCE, "no warning");
        std::thread::sleep(Duration::from_millis(100));
    }
    let said = daemon::refused(lun(folder.path(), "epoch", &["close", IQN, "0"]));
    assert!(said.contains(track.to_str().unwrap()) && said.contains("is gone"), "{said}");
    fs::write(&track, "another").unwrap();
    let said = daemon::refused(lun(folder.path(), "epoch", &["close", IQN, "0"]));
    assert!(said.contains("was replaced"), "{said}");
    let known: Value =
        serde_json::from_str(&succeed(lun(folder.path(), "epoch", &["list", IQN, "0", "--json"]))).unwrap();
    assert_eq!(known["epochs"].as_array().unwrap().len(), 1, "{known}");
    // What was there before goes on.
    fs::rename(&saved, &track).unwrap();
    close(folder.path());
    assert_eq!(changes(folder.path(), &kept)["known"], true);
    drop(daemon);
}

#[test]
fn a_disk_that_changes_while_no_daemon_serves_it_is_unknown() {
    let folder = folder();
    let folder = folder.path();
    let start = || {
        let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
        let mut command = lunway(&["serve", "-c", &path("lunway.toml"), "--socket", &path("api.sock")]);
        command.env("LUNWAY_RUNTIME_DIR", path("run"));
        let running = support::Running::start(command);
        support::until(|| finish(lun(folder, "epoch", &["list", IQN, "0"]), PATIENCE).status.success());
        running
    };
    let end = |running: support::Running| {
        running.signal(rustix::process::Signal::TERM);
        assert!(running.end(PATIENCE).status.success());
    };
    let running = start();
    let epoch = close(folder);
    end(running);
    // Nothing happened: nothing changed.
    let running = start();
    assert_eq!(changes(folder, &epoch)["ranges"], json!([]));
    end(running);
    fs::write(folder.join("copy"), "x").unwrap();
    let disk = fs::File::options().write(true).open(folder.join("disk.img")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&disk, b"behind its back", 0).unwrap();
    let running = start();
    let unknown = changes(folder, &epoch);
    assert_eq!(unknown["known"], json!(false));
    assert!(unknown["why"].as_str().unwrap().contains("was changed while it was not served"), "{unknown}");
    end(running);
}

#[test]
fn what_is_not_tracked_is_refused_in_a_sentence() {
    let folder = folder();
    let folder = folder.path();
    let _daemon = Daemon::start(folder);
    for (arguments, word) in [
        (&["epoch", "close", IQN, "1"][..], "its changes are not tracked"),
        (&["changes", IQN, "9"], "lun 9"),
        (&["epoch", "release", IQN, "0", "00000000000000000000000000000001"], "no epoch"),
        (&["set", IQN, "1", "--track"], "cannot be reopened while it is served"),
    ] {
        let output = finish(lun(folder, arguments[0], &arguments[1..]), PATIENCE);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(word), "{arguments:?}: {said}");
    }
    // Added again, it is tracked.
    succeed(lun(folder, "remove", &[IQN, "1"]));
    succeed(lun(folder, "add", &[IQN, "1", "other.img", "--track"]));
    succeed(lun(folder, "epoch", &["close", IQN, "1"]));
}

/// Lost was: what changed on a disk, as a trial, or a change that was refused, had removed its track file, or begun it
/// anew for another disk.
#[test]
fn what_is_only_tried_or_refused_leaves_every_track_file_as_it_was() {
    let folder = folder();
    let folder = folder.path();
    for (name, size) in [("same.img", SIZE), ("small.img", SIZE / 2)] {
        fs::File::create(folder.join(name)).unwrap().set_len(size).unwrap();
    }
    let daemon = Daemon::start(folder);
    let epoch = close(folder);
    write(&mut Initiator::ready(&daemon.address, IQN), 0);
    let names = || {
        let files = fs::read_dir(folder.join("state")).unwrap();
        let mut names: Vec<_> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    let before = names();
    assert!(before.iter().any(|name| name.ends_with("0.track")), "{before:?}");
    let add = |arguments: &[&str]| lun(folder, "add", &[&[IQN], arguments].concat());
    let tried = succeed(add(&["0", "same.img", "--replace", "--dry-run"]));
    assert!(tried.contains("track: true -> false") && tried.contains("dry run"), "{tried}");
    for device in ["none.img", "other.img", "small.img"] {
        daemon::refused(add(&["0", device, "--replace"]));
    }
    let file = fs::read_to_string(folder.join("lunway.toml")).unwrap();
    let other = file.replace("disk.img", "same.img").replace("track = true\n", "");
    fs::write(folder.join("other.toml"), other).unwrap();
    let mut apply = lunway(&["config", "apply", "other.toml", "--dry-run"]);
    apply.env("LUNWAY_SOCKET", folder.join("api.sock")).current_dir(folder);
    apply.env("LUNWAY_RUNTIME_DIR", folder.join("run"));
    let tried = succeed(apply);
    assert!(tried.contains("dry run"), "{tried}");
    // None is made for what is only tried.
    succeed(add(&["5", "same.img", "--track", "--dry-run"]));
    assert_eq!(names(), before);
    let known = changes(folder, &epoch);
    assert_eq!(known["ranges"], json!([range(0, GRAIN, "written")]), "{known}");

    // Nor is one begun anew that waits for its disk.
    succeed(lun(folder, "remove", &[IQN, "0", "--force"]));
    succeed(add(&["0", "same.img", "--track", "--dry-run"]));
    succeed(add(&["0", "disk.img", "--track"]));
    assert_eq!(changes(folder, &epoch)["ranges"], json!([range(0, GRAIN, "written")]));
    assert_eq!(names(), before);
    // With a change that is made it goes.
    succeed(add(&["0", "same.img", "--replace"]));
    assert!(!names().iter().any(|name| name.contains("0.track")), "{:?}", names());
}

/// A LUN was offline after a start because the file system of its track file was full.
#[test]
fn a_state_directory_that_is_full_costs_tracking_and_not_the_disk() {
    if !rustix::process::geteuid().is_root() {
        return lunway_foreign::machine_lacks("root, to mount a small file system");
    }
    let folder = folder();
    let folder = folder.path();
    let state = folder.join("state");
    fs::create_dir(&state).unwrap();
    let mut mount = std::process::Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", "size=8M", "none"]).arg(&state);
    succeed(mount);
    let _unmounted = Unmounted(&state);
    let daemon = Daemon::start(folder);
    let first = close(folder);
    write(&mut Initiator::ready(&daemon.address, IQN), 0);
    daemon.kill();
    let fill = || {
        let mut file = fs::File::create(state.join("filler")).unwrap();
        while std::io::Write::write(&mut file, &[1; 4096]).is_ok_and(|written| written > 0) {}
    };
    fill();

    let daemon = Daemon::start(folder);
    let mut initiator = Initiator::ready(&daemon.address, IQN);
    write(&mut initiator, REGION);
    let health = health(folder);
    assert!(health.contains("untracked_lun") && health.contains("everything counts as changed"), "{health}");
    assert_eq!(changes(folder, &first)["known"], json!(false));
    fs::remove_file(state.join("filler")).unwrap();
    let second = close(folder);
    write(&mut initiator, 3 * REGION);
    assert_eq!(changes(folder, &second)["ranges"], json!([range(3 * REGION, GRAIN, "written")]));
    assert_eq!(changes(folder, &first)["known"], json!(false));
    daemon.kill();
    // And it is kept.
    let _daemon = Daemon::start(folder);
    assert_eq!(changes(folder, &second)["ranges"], json!([range(3 * REGION, REGION, "written")]));
}

/// A mount that goes when this is dropped.
struct Unmounted<'a>(&'a Path);

impl Drop for Unmounted<'_> {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

/// What the daemon says of itself.
fn health(folder: &Path) -> String {
    let client = lunway_console::Client::new(lunway_console::Endpoint::Unix(folder.join("api.sock")));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(client.get("/v1/health")).unwrap().to_string()
}
