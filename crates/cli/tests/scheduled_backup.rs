//! `[[backup]]`: a daemon that backs its LUNs up by the clock, through kills, orderly ends, reloads and destinations
//! that are not there.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "support/daemon.rs"]
mod daemon;
#[path = "support/hung_share.rs"]
mod hung_share;
#[path = "support/initiator.rs"]
mod initiator;
mod support;

use std::collections::HashSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Output, Stdio};

use daemon::{Daemon, command, refused};
use hung_share::HungShare;
use initiator::Initiator;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use support::{IQN, PATIENCE, finish, lunway, succeed};

const SIZE: u64 = 32 << 20;

/// A folder with a disk of random bytes, destinations, and a configuration with these backups.
fn folder(backups: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    // A sequence that does not compress, and of which no block is zeroes.
    let mut word = 0x9e37_79b9_7f4a_7c15_u64;
    let content: Vec<u8> = (0..SIZE / 8)
        .flat_map(|_| {
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            word.to_le_bytes()
        })
        .collect();
    fs::write(folder.path().join("disk.img"), content).unwrap();
    for name in ["one", "two"] {
        fs::create_dir(folder.path().join(name)).unwrap();
    }
    configure(folder.path(), backups);
    folder
}

fn configure(folder: &Path, backups: &str) {
    let text = format!(
        "listen = [\"127.0.0.1:0\"]\nstate_dir = \"state\"\ncores = 1\n[[target]]\nname = \"{IQN}\"\nopen = true\n\
         [[target.lun]]\nid = 0\ndevice = \"raw:disk.img\"\ntrack = true\n{backups}"
    );
    fs::write(folder.join("lunway.toml"), text).unwrap();
}

fn backup(name: &str, destination: &str, keys: &str) -> String {
    format!("[[backup]]\nname = \"{name}\"\nsource = \"{IQN}/0\"\ndestination = \"{destination}\"\n{keys}\n")
}

fn schedule(folder: &Path, name: &str) -> Value {
    let list = succeed(command(folder, &["backup", "schedule", "list", "--json"]));
    let list: Value = serde_json::from_str(&list).unwrap();
    list["schedules"].as_array().unwrap().iter().find(|of| of["name"] == name).cloned().unwrap_or_default()
}

/// Waits until something is so, and fails if it does not become so.
fn until(it_is_so: impl Fn() -> bool) {
    support::until(&it_is_so);
    assert!(it_is_so());
}

/// Restores the newest point of a destination.
fn restored(folder: &Path, destination: &str) -> Vec<u8> {
    let out = folder.join("out");
    let _ = fs::remove_file(&out);
    succeed(command(folder, &["backup", "restore", destination, out.to_str().unwrap()]));
    fs::read(out).unwrap()
}

fn points(folder: &Path, destination: &str) -> usize {
    let list = succeed(command(folder, &["backup", "list", destination, "--json"]));
    serde_json::from_str::<Value>(&list).unwrap().as_array().unwrap().len()
}

/// Processes of `lunway backup run` that this daemon has begun.
fn runs_of(daemon: u32) -> Vec<Pid> {
    let is_run = |pid: &i32| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words = String::from_utf8_lossy(&words).replace('\0', " ");
        words.contains(&format!("backup run --json --begun-by {daemon} "))
    };
    let names = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.file_name());
    let pids = names.filter_map(|name| name.to_str()?.parse().ok());
    pids.filter(is_run).filter_map(Pid::from_raw).collect()
}

#[test]
fn a_lun_is_backed_up_by_the_clock_and_each_point_is_what_it_was() {
    let hook = "every = \"2s\"\nkeep_last = 2\non_success = \"echo $LUNWAY_BACKUP_KIND $LUNWAY_BACKUP_POINT >> said\"";
    // The command has the daemon's working folder, which is the tests'.
    let at = |folder: &Path| hook.replace(">> said", &format!(">> {}/said", folder.display()));
    let folder = folder("");
    let folder = folder.path();
    configure(folder, &backup("db", "one", &at(folder)));
    let daemon = Daemon::start(folder);
    let said = || fs::read_to_string(folder.join("said")).unwrap_or_default();
    until(|| !said().is_empty());
    assert!(said().starts_with("full "), "{}", said());
    let mut initiator = Initiator::ready(&daemon.address, IQN);
    // WRITE (10) of 8 blocks at block 64.
    let cdb = [0x2a, 0, 0, 0, 0, 64, 0, 0, 8, 0];
    assert_eq!(initiator.execute(0, &cdb, &[7; 4096], 0).unwrap().status, 0);
    let before = said().lines().count();
    // One may have begun before the write.
    until(|| said().lines().count() >= before + 3);
    configure(folder, &backup("db", "two", "every = \"1000h\""));
    succeed(command(folder, &["reload"]));
    until(|| schedule(folder, "db")["running_since"].is_null());
    assert!(said().lines().skip(1).all(|line| line.starts_with("increment ")), "{}", said());
    assert!(points(folder, "one") <= 3, "others were removed");
    let disk = fs::read(folder.join("disk.img")).unwrap();
    assert!(disk[64 * 512..][..4096] == [7; 4096]);
    assert!(restored(folder, "one") == disk);
    // Another destination, when it is asked for.
    let told = succeed(command(folder, &["backup", "schedule", "run", "db"]));
    assert!(told.contains("has begun"), "{told}");
    until(|| schedule(folder, "db")["last"]["cause"] == "asked");
    assert!(restored(folder, "two") == disk);
    let shown = succeed(command(folder, &["backup", "schedule", "list"]));
    assert!(shown.contains("every 1000h") && shown.contains("full, 32 MiB sent"), "{shown}");
}

#[test]
fn a_destination_that_is_read_puts_the_prune_off_and_one_due_time_has_one_point() {
    let folder = folder("");
    let folder = folder.path();
    let facts = "$LUNWAY_BACKUP_RESULT $LUNWAY_BACKUP_ATTEMPT $LUNWAY_BACKUP_POINT $LUNWAY_BACKUP_NOTES";
    let hooks = ["on_success", "on_failure"]
        .map(|hook| format!("{hook} = 'echo {facts} >> {}/said'\n", folder.display()));
    let keys = "every = \"2s\"\nretries = 3\nretry_after = \"1s\"\nkeep_last = 2\n";
    configure(folder, &backup("db", "one", &format!("{keys}{}", hooks.concat())));
    let _daemon = Daemon::start(folder);
    let said = || fs::read_to_string(folder.join("said")).unwrap_or_default();
    until(|| !said().is_empty());
    let mut mount = command(folder, &["backup", "mount", "one", "--nbd", "unix:p.sock", "--json"]);
    let mut mount = mount.stdout(Stdio::piped()).spawn().unwrap();
    BufReader::new(mount.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
    let put_off = |text: &str| text.lines().filter(|line| line.contains("the prune was put off")).count();
    until(|| put_off(&said()) >= 4);
    let last = schedule(folder, "db")["last"].clone();
    assert!(last["error"].is_null() && last["notes"].to_string().contains("reads a point of it"), "{last}");
    mount.kill().unwrap();
    mount.wait().unwrap();
    let before = said().lines().count();
    // One may have begun before the end of the mount.
    until(|| said().lines().count() >= before + 3);
    configure(folder, &backup("db", "one", "every = \"1000h\""));
    succeed(command(folder, &["reload"]));
    until(|| schedule(folder, "db")["running_since"].is_null());
    let said = said();
    let points_made: HashSet<_> = said.lines().filter_map(|line| line.split(' ').nth(2)).collect();
    assert_eq!(points_made.len(), said.lines().count(), "{said}");
    assert!(said.lines().all(|line| line.starts_with("succeeded 1 ")), "{said}");
    assert_eq!(put_off(said.lines().last().unwrap()), 0, "{said}");
    assert!(points(folder, "one") <= 3, "others were removed");
    assert!(restored(folder, "one") == fs::read(folder.join("disk.img")).unwrap());
}

#[test]
fn a_folder_that_had_points_and_has_none_gets_none_until_one_is_made_by_hand() {
    let folder = folder("");
    let folder = folder.path();
    configure(folder, &backup("db", "one", "every = \"1000h\""));
    let _daemon = Daemon::start(folder);
    until(|| !schedule(folder, "db")["last_success"].is_null());
    // As the mount point of a share that is not mounted.
    fs::rename(folder.join("one"), folder.join("share")).unwrap();
    fs::create_dir(folder.join("one")).unwrap();
    let run = |is_so: &dyn Fn(&Value) -> bool| {
        until(|| schedule(folder, "db")["running_since"].is_null());
        succeed(command(folder, &["backup", "schedule", "run", "db"]));
        until(|| is_so(&schedule(folder, "db")["last"]));
    };
    run(&|last| last["error"].is_string());
    let last = schedule(folder, "db")["last"].clone();
    let error = last["error"].as_str().unwrap();
    assert!(error.contains("holds no points: is its share mounted?"), "{error}");
    let by_hand = format!("`lunway backup run lun:{IQN}/0 {}/`", folder.join("one").display());
    assert!(error.contains(&by_hand), "{error}");
    assert_eq!(fs::read_dir(folder.join("one")).unwrap().count(), 0, "a refused run makes nothing");
    succeed(command(folder, &["backup", "run", &format!("lun:{IQN}/0"), "one"]));
    run(&|last| last["point"]["kind"] == "increment");
    assert_eq!(points(folder, "one"), 2);
    // Another destination has had none.
    configure(folder, &backup("db", "two", "every = \"1000h\""));
    succeed(command(folder, &["reload"]));
    run(&|last| last["point"]["kind"] == "full");
    assert_eq!(points(folder, "two"), 1);
}

#[test]
fn a_run_that_ends_with_the_daemon_is_made_after_its_start() {
    // 32 MiB take half a minute.
    let folder = folder("");
    let folder = folder.path();
    for (is_killed, destination) in [(true, "one"), (false, "two")] {
        configure(folder, &backup("db", destination, "every = \"1000h\"\nlimit = \"1MB/s\""));
        let mut daemon = Daemon::start(folder);
        let before = schedule(folder, "db")["last"]["begun"].as_i64();
        let pid = daemon.child.id();
        if !is_killed {
            succeed(command(folder, &["backup", "schedule", "run", "db"]));
        }
        until(|| !runs_of(pid).is_empty() && folder.join(destination).join("lease-000001").exists());
        if is_killed {
            daemon.kill();
        } else {
            kill_process(Pid::from_child(&daemon.child), Signal::TERM).unwrap();
            assert!(daemon.child.wait().unwrap().success());
        }
        until(|| runs_of(pid).is_empty());
        configure(folder, &backup("db", destination, "every = \"1000h\""));
        let daemon = Daemon::start(folder);
        let made = |of: &Value| of["cause"] == "interrupted" && of["begun"].as_i64() > before;
        until(|| made(&schedule(folder, "db")["last"]));
        assert!(restored(folder, destination) == fs::read(folder.join("disk.img")).unwrap());
        // Once: the next one is due in weeks.
        let of = schedule(folder, "db");
        assert!(of["next"].as_i64() > of["last"]["begun"].as_i64().map(|begun| begun + 999 * 3600), "{of}");
        daemon.kill();
    }
}

/// A daemon that was killed when a point was there, and before it had kept that, made a second one.
#[test]
fn one_due_time_has_one_point_where_the_daemon_is_killed_before_it_has_kept_that() {
    let folder = folder("");
    let folder = folder.path();
    fs::create_dir(folder.join("repo")).unwrap();
    succeed(command(folder, &["backup", "init", "repo"]));
    let go = folder.join("go");
    let freeze = format!("until test -e {}; do sleep 0.05; done", go.display());
    let keys = format!("every = \"1000h\"\nfreeze = \"{freeze}\"\nthaw = \"true\"\ndeadline = \"5m\"");
    for destination in ["one", "repo/db"] {
        configure(folder, &backup(&destination.replace('/', "-"), destination, &keys));
        let name = destination.replace('/', "-");
        let daemon = Daemon::start(folder);
        until(|| !schedule(folder, &name)["running_since"].is_null());
        // What it keeps of the end of the run does not get into its file, as if it were killed before.
        let (kept, begun) = (folder.join("state/backups.json"), folder.join("begun"));
        fs::rename(&kept, &begun).unwrap();
        fs::create_dir(&kept).unwrap();
        fs::write(&go, "").unwrap();
        until(|| !schedule(folder, &name)["last_success"].is_null());
        let made = schedule(folder, &name)["last"]["point"].clone();
        daemon.kill();
        fs::remove_dir(&kept).unwrap();
        fs::rename(&begun, &kept).unwrap();
        let daemon = Daemon::start(folder);
        until(|| schedule(folder, &name)["last"]["cause"] == "interrupted");
        let last = schedule(folder, &name)["last"].clone();
        assert_eq!((&last["error"], &last["point"]), (&Value::Null, &made), "{last}");
        assert!(last["notes"][0].as_str().unwrap().contains("before its daemon had heard"), "{last}");
        assert_eq!(points(folder, destination), 1);
        // Another due time has a point of its own.
        succeed(command(folder, &["backup", "schedule", "run", &name]));
        until(|| schedule(folder, &name)["last"]["cause"] == "asked");
        assert_eq!(points(folder, destination), 2);
        daemon.kill();
        fs::remove_file(&go).unwrap();
    }
}

#[test]
fn a_run_that_ended_with_its_daemon_is_shown_until_it_is_begun_again() {
    let folder = folder("");
    let folder = folder.path();
    let hook = format!("on_success = 'echo $LUNWAY_BACKUP_CAUSE >> {}/said'", folder.display());
    let keys = format!("every = \"1000h\"\ncatch_up = false\n{hook}");
    // 32 MiB take half a minute.
    configure(folder, &backup("db", "one", &format!("{keys}\nlimit = \"1MB/s\"")));
    let daemon = Daemon::start(folder);
    let pid = daemon.child.id();
    until(|| !schedule(folder, "db")["running_since"].is_null() && !runs_of(pid).is_empty());
    let of = schedule(folder, "db");
    assert_eq!(of["interrupted"], Value::Null, "{of}");
    daemon.kill();
    until(|| runs_of(pid).is_empty());

    configure(folder, &backup("db", "one", &keys));
    let _daemon = Daemon::start(folder);
    until(|| !schedule(folder, "db")["interrupted"].is_null());
    let shown = schedule(folder, "db");
    let seconds = |of: &Value| of.as_i64().unwrap();
    let apart = seconds(&shown["interrupted"]["begun"]) - seconds(&of["running_since"]);
    assert!(apart.abs() <= 1 && shown["interrupted"]["times"] == 1, "{shown}");
    assert_eq!((&shown["last"], &shown["running_since"]), (&Value::Null, &Value::Null), "{shown}");
    let list = succeed(command(folder, &["backup", "schedule", "list"]));
    assert!(list.contains(": ended with its daemon"), "{list}");
    succeed(command(folder, &["backup", "schedule", "run", "db"]));
    until(|| schedule(folder, "db")["last"]["cause"] == "asked");
    assert_eq!(schedule(folder, "db")["interrupted"], Value::Null);
    until(|| fs::read_to_string(folder.join("said")).is_ok_and(|said| said == "asked\n"));
}

#[test]
fn a_destination_that_is_not_there_is_said_and_is_used_when_it_is() {
    let folder = folder("");
    let folder = folder.path();
    let hook = format!("on_failure = 'echo \"$LUNWAY_BACKUP_ERROR\" >> {}/said'", folder.display());
    configure(folder, &backup("db", "gone", &format!("every = \"1000h\"\nretry_after = \"2s\"\n{hook}")));
    let _daemon = Daemon::start(folder);
    until(|| !schedule(folder, "db")["last"].is_null());
    let of = schedule(folder, "db");
    let error = of["last"]["error"].as_str().unwrap();
    assert!(error.contains("gone") && error.contains("make the folder first"), "{error}");
    until(|| folder.join("said").exists());
    assert_eq!(fs::read_to_string(folder.join("said")).unwrap().lines().next().unwrap(), error);
    let shown = succeed(command(folder, &["backup", "schedule", "list"]));
    assert!(shown.contains(": failed\n") && shown.trim_end().ends_with(error), "{shown}");
    // By itself: the next one is due in weeks.
    fs::create_dir(folder.join("gone")).unwrap();
    until(|| !schedule(folder, "db")["last_success"].is_null());
    assert_eq!(schedule(folder, "db")["last"]["cause"], "failed");
    assert!(restored(folder, "gone") == fs::read(folder.join("disk.img")).unwrap());
    let unknown = refused(command(folder, &["backup", "schedule", "run", "dc"]));
    assert!(unknown.contains("no [[backup]] of the name dc"), "{unknown}");
}

/// What `serve --check` says of a configuration.
fn checked(folder: &Path) -> Output {
    let file = folder.join("lunway.toml");
    finish(lunway(&["serve", "-c", file.to_str().unwrap(), "--check"]), PATIENCE)
}

#[test]
fn serve_check_names_what_a_backup_lacks() {
    let folder = folder("");
    let folder = folder.path();
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    succeed(lunway(&["backup", "key", "new", &path("key")]));
    let recipient = succeed(lunway(&["backup", "key", "show", &path("key")]));
    fs::create_dir(path("repo")).unwrap();
    succeed(lunway(&["backup", "init", &path("repo"), "--for", recipient.trim()]));
    fs::write(path("no-key"), "nothing").unwrap();
    let at = "at = [\"02:00\"]";
    for (source, destination, keys, sentence) in [
        (
            "iqn.2026-11.com.example:other/0",
            "one",
            "",
            "source: there is no target iqn.2026-11.com.example:other",
        ),
        (&format!("{IQN}/7"), "one", "", "has no lun 7"),
        (&format!("{IQN}/0"), "gone", "", "make the folder first"),
        (&format!("{IQN}/0"), "disk.img", "", "destination: "),
        (&format!("{IQN}/0"), "one", "key_file = \"key\"", "key_file: it is for an encrypted repository"),
        (&format!("{IQN}/0"), "repo", "", "name one of its series"),
        (&format!("{IQN}/0"), "repo/db", "", "destination: "),
        (&format!("{IQN}/0"), "repo/db", "key_file = \"no-key\"", "key_file: "),
        (&format!("{IQN}/0"), "repo/db", "key_file = \"gone\"", "key_file: "),
    ] {
        let backup = format!(
            "[[backup]]\nname = \"db\"\nsource = \"{source}\"\ndestination = \"{destination}\"\n{at}\n{keys}\n"
        );
        configure(folder, &backup);
        let output = checked(folder);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), said.trim_end().lines().count()), (Some(1), 1), "{backup}: {said}");
        assert!(said.contains("backup db: ") && said.contains(sentence), "{backup}: {said}");
    }
    for (destination, keys) in [("one", ""), ("repo/db", "key_file = \"key\"")] {
        configure(folder, &backup("db", destination, &format!("{at}\n{keys}")));
        let output = checked(folder);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(said.contains("1 target, 1 LUN, 1 backup"), "{said}");
    }
    // The runs have the daemon's environment.
    configure(folder, &backup("db", "repo/db", at));
    let mut check = command(folder, &["serve", "-c", "lunway.toml", "--check"]);
    check.env("LUNWAY_KEY_FILE", "key");
    succeed(check);
    assert!(!folder.join("repo/db").exists(), "a check makes nothing");
}

/// They told their result, and did not end: a thread of theirs waited in the kernel.
#[test]
fn what_looks_at_a_destination_on_a_share_that_hangs_ends() {
    let folder = folder("");
    let folder = folder.path();
    configure(folder, &backup("db", "share/db", "at = [\"02:00\"]\ncatch_up = false"));
    let _daemon = Daemon::start(folder);
    let Some(_share) = HungShare::mount(&folder.join("share")) else { return };
    let lun = "[[target.lun]]\nid = 1\ndevice = \"raw:share/lun.img\"\n";
    configure(folder, &format!("{lun}{}", backup("db", "share/db", "at = [\"02:00\"]")));
    let output = checked(folder);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for late in ["share/db", "share/lun.img"] {
        assert!(said.contains(&format!("{late} did not answer within 4 s")), "{said}");
    }
    let output = finish(command(folder, &["doctor", "--socket", "api.sock", "--json"]), PATIENCE);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("share/db did not answer within"), "{said}");
}

#[test]
fn a_failed_run_tells_which_attempt_it_was_and_when_the_next_is_also_after_a_restart() {
    let folder = folder("");
    let folder = folder.path();
    let facts = "$LUNWAY_BACKUP_ATTEMPT $LUNWAY_BACKUP_RETRIES_LEFT";
    let hook = format!("on_failure = 'echo \"{facts}\" >> {}/said'", folder.display());
    let keys = format!("every = \"1000h\"\nretries = 2\ncatch_up = false\n{hook}\n");
    let said = || fs::read_to_string(folder.join("said")).unwrap_or_default();
    configure(folder, &backup("db", "gone", &format!("{keys}retry_after = \"1s\"")));
    let daemon = Daemon::start(folder);
    until(|| said().lines().count() == 3);
    assert_eq!(said(), "1 2\n2 1\n3 0\n", "one after each attempt, and the last one is known");
    until(|| schedule(folder, "db")["running_since"].is_null());
    let of = schedule(folder, "db");
    assert_eq!((&of["retries_left"], &of["next_attempt"]), (&0.into(), &Value::Null), "{of}");
    daemon.kill();

    // One whose next attempt is in ten minutes.
    fs::remove_file(folder.join("state/backups.json")).unwrap();
    configure(folder, &backup("db", "gone", &keys));
    let daemon = Daemon::start(folder);
    let waits = |of: &Value| of["retries_left"] == 2 && of["next_attempt"].is_i64();
    until(|| waits(&schedule(folder, "db")));
    let before = schedule(folder, "db");
    assert_eq!(before["next"], before["next_attempt"], "{before}");
    assert_eq!(before["last"]["attempt"], 1, "{before}");
    let shown = succeed(command(folder, &["backup", "schedule", "list"]));
    assert!(shown.contains("(again, 2 left)"), "{shown}");
    daemon.kill();
    let _daemon = Daemon::start(folder);
    until(|| waits(&schedule(folder, "db")));
    let after = schedule(folder, "db");
    assert!(after["next_attempt"].as_i64() >= before["next_attempt"].as_i64(), "{before} {after}");
}

#[test]
fn a_run_that_is_left_by_a_killed_daemon_does_not_keep_the_next_one_out() {
    let folder = folder("");
    let folder = folder.path();
    // 32 MiB take more than a minute.
    configure(folder, &backup("db", "one", "every = \"1000h\"\nlimit = \"400kB/s\""));
    let daemon = Daemon::start(folder);
    let pid = daemon.child.id();
    until(|| !runs_of(pid).is_empty() && folder.join("one/lease-000001").exists());
    // It does not see that its daemon is killed: as one whose share hangs.
    let orphans = runs_of(pid);
    for orphan in &orphans {
        kill_process(*orphan, Signal::STOP).unwrap();
    }
    daemon.kill();
    configure(folder, &backup("db", "one", "every = \"1000h\""));
    let daemon = Daemon::start(folder);
    until(|| !runs_of(daemon.child.id()).is_empty());
    assert!(schedule(folder, "db")["last"].is_null(), "it waits");
    for orphan in &orphans {
        kill_process(*orphan, Signal::CONT).unwrap();
    }
    until(|| !schedule(folder, "db")["last"].is_null());
    let last = &schedule(folder, "db")["last"];
    assert_eq!((&last["cause"], &last["error"]), (&"interrupted".into(), &Value::Null), "{last}");
    assert!(runs_of(pid).is_empty());
    assert!(restored(folder, "one") == fs::read(folder.join("disk.img")).unwrap());
}

#[test]
fn doctor_tells_of_backups_that_fail_are_overdue_or_have_no_folder_and_of_none_that_are_sound() {
    let folder = folder("");
    let folder = folder.path();
    let found = || {
        let output =
            finish(command(folder, &["doctor", "--socket", "api.sock", "--json", "--all"]), PATIENCE);
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        let findings = document["findings"].as_array().unwrap().iter();
        let of = |id: &str| {
            let verdict = |of: &&Value| of["id"] == id && of["where"] == "backup db";
            findings.clone().find(verdict).unwrap_or_else(|| panic!("{id}: {document}"))["verdict"].clone()
        };
        ["backup-overdue", "backup-failing", "backup-destination"].map(of)
    };
    configure(folder, &backup("db", "gone", "every = \"3s\"\nretries = 0"));
    let _daemon = Daemon::start(folder);
    until(|| !schedule(folder, "db")["last"].is_null());
    until(|| found() == ["bad", "warn", "bad"]);
    let shown = succeed(command(folder, &["backup", "schedule", "list"]));
    assert!(shown.contains("db: overdue: it has made no point since "), "{shown}");
    fs::create_dir(folder.join("gone")).unwrap();
    until(|| found() == ["ok", "ok", "ok"]);
    assert_eq!(schedule(folder, "db")["overdue"], false);
}
