//! A disk image that is written over in place: killed at any moment, its name is that of a whole disk or of none.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use rustix::process::Signal;

use super::support::{PATIENCE, Running, finish, interrupted, lunway, succeed, until};

/// Length of the new disk, bytes: twice what a copy has under way at a time (8 pieces of 1 MiB).
const NEW: usize = 16 << 20;
/// Length of the file that is written over: its end stays.
const OLD: usize = NEW + (1 << 20);
/// A source that leaves half a second to be killed.
const SLOW: &str = "rate:32M:";
/// One that leaves a second to be interrupted before the last piece begins.
const SLOWER: &str = "rate:8M:";

/// A disk, the file that it replaces, and a backup of it.
struct Fixture {
    folder: tempfile::TempDir,
    new: Vec<u8>,
    old: Vec<u8>,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (new, old) = (vec![0xa5; NEW], vec![0x3c; OLD]);
        fs::write(folder.path().join("new.img"), &new).unwrap();
        let fixture = Self { folder, new, old };
        fixture.make_old();
        fixture
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    fn make_old(&self) {
        fs::write(self.path("old.img"), &self.old).unwrap();
        fs::set_permissions(self.path("old.img"), Permissions::from_mode(0o640)).unwrap();
    }

    /// The new disk, and behind its end what was there before.
    fn whole(&self) -> Vec<u8> {
        [&self.new[..], &self.old[NEW..]].concat()
    }

    fn aside(&self) -> String {
        self.path("old.img.overwritten.partial")
    }

    /// The file has its name, the new disk and its old permissions.
    fn assert_whole(&self, told: &str) {
        assert!(fs::read(self.path("old.img")).unwrap() == self.whole(), "{told}");
        assert_eq!(fs::metadata(self.path("old.img")).unwrap().mode() & 0o777, 0o640, "{told}");
        assert!(!Path::new(&self.aside()).exists(), "{told}");
    }

    /// Kills the command some time after it took the file's name, again and again; `again` completes what is left.
    fn kill(&self, command: &[&str], again: &[&[&str]]) {
        let mut torn = 0;
        for (moment, delay_ms) in [0, 20, 60, 120, 200, 300, 420].into_iter().enumerate() {
            self.make_old();
            let running = Running::start(lunway(command));
            until(|| {
                Path::new(&self.aside()).exists()
                    || fs::read(self.path("old.img")).is_ok_and(|now| now != self.old)
            });
            sleep(Duration::from_millis(delay_ms));
            running.signal(Signal::KILL);
            running.end(PATIENCE);
            let told = format!("{command:?} killed after {delay_ms} ms");
            if let Ok(found) = fs::read(self.path("old.img")) {
                assert!(found == self.whole() || found == self.old, "{told}: torn under its name");
                continue;
            }
            torn += 1;
            // Without a word nothing happens to it, under neither name.
            let before = fs::read(self.aside()).unwrap();
            let refused = finish(lunway(&["copy", &self.path("new.img"), &self.path("old.img")]), PATIENCE);
            let said = String::from_utf8_lossy(&refused.stderr).into_owned();
            assert_eq!(refused.status.code(), Some(1), "{told}: {said}");
            assert!(
                said.contains("old.img.overwritten.partial since a copy to it was interrupted"),
                "{said}"
            );
            assert!(fs::read(self.aside()).unwrap() == before && !Path::new(&self.path("old.img")).exists());
            succeed(lunway(again[moment % again.len()]));
            self.assert_whole(&told);
        }
        assert!(torn > 2, "killed too late: {torn}");
    }
}

#[test]
fn a_copy_that_is_killed_leaves_a_whole_disk_or_none_under_the_name() {
    let fixture = Fixture::new();
    let (new, old) = (fixture.path("new.img"), fixture.path("old.img"));
    let slow = format!("{SLOW}{new}");
    fixture.kill(
        &["copy", &slow, &old, "--overwrite"],
        &[&["copy", &new, &old, "--resume", "--overwrite"], &["copy", &new, &old, "--overwrite", "--verify"]],
    );
}

#[test]
fn a_restore_that_is_killed_leaves_a_whole_disk_or_none_under_the_name() {
    let fixture = Fixture::new();
    let (new, old, points) = (fixture.path("new.img"), fixture.path("old.img"), fixture.path("points"));
    fs::create_dir(&points).unwrap();
    succeed(lunway(&["backup", "run", &new, &points]));
    let slow = format!("{SLOW}{old}");
    fixture.kill(
        &["backup", "restore", &points, &slow, "--overwrite"],
        &[
            &["backup", "restore", &points, &old, "--delta", "--overwrite"],
            &["backup", "restore", &points, &old, "--overwrite"],
        ],
    );
}

#[test]
fn an_interrupt_says_what_the_file_is_called_and_what_completes_it() {
    let fixture = Fixture::new();
    let (new, old) = (fixture.path("new.img"), fixture.path("old.img"));
    let begun = || fs::read(fixture.aside()).is_ok_and(|now| now != fixture.old);
    let output = interrupted(lunway(&["copy", &format!("{SLOWER}{new}"), &old, "--overwrite"]), begun);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("old.img.overwritten.partial is incomplete; --resume --overwrite completes it"),
        "{said}"
    );
    assert!(!Path::new(&old).exists());
    // A device around the file is not looked for behind the other name.
    let around = finish(lunway(&["copy", &new, &format!("rate:1G:{old}"), "--overwrite"]), PATIENCE);
    assert!(String::from_utf8_lossy(&around.stderr).contains("without what is around it"), "{around:?}");
    succeed(lunway(&["copy", &new, &old, "--resume", "--overwrite"]));
    fixture.assert_whole("resumed");
}

/// The name is given back where nothing was written, and not to a file that an earlier command left torn.
#[test]
fn a_copy_that_writes_nothing_leaves_the_name() {
    let fixture = Fixture::new();
    let (new, old) = (fixture.path("new.img"), fixture.path("old.img"));
    let unreadable = format!("fault:read@0-16M:{new}");
    let output = finish(lunway(&["copy", &unreadable, &old, "--overwrite"]), PATIENCE);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("nothing was written to the destination"), "{said}");
    assert!(fs::read(&old).unwrap() == fixture.old && !Path::new(&fixture.aside()).exists(), "{said}");
    fs::rename(&old, fixture.aside()).unwrap();
    let output = finish(lunway(&["copy", &unreadable, &old, "--overwrite"]), PATIENCE);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("old.img.overwritten.partial is incomplete"), "{said}");
    assert!(!Path::new(&old).exists() && Path::new(&fixture.aside()).exists(), "{said}");
}

/// Links stay what they are: the file behind a symbolic one gives up its name, and a second name is that of the file.
#[test]
fn a_file_behind_links_is_written_over_and_the_links_stay() {
    let fixture = Fixture::new();
    let (new, old, link) = (fixture.path("new.img"), fixture.path("old.img"), fixture.path("link"));
    fs::hard_link(&old, fixture.path("second")).unwrap();
    symlink("old.img", &link).unwrap();
    let slow = format!("{SLOW}{new}");
    let running = Running::start(lunway(&["copy", &slow, &link, "--overwrite"]));
    until(|| Path::new(&fixture.aside()).exists());
    assert!(!Path::new(&old).exists() && Path::new(&link).is_symlink());
    assert!(running.end(PATIENCE).status.success());
    fixture.assert_whole("behind a link");
    assert!(Path::new(&link).is_symlink());
    assert!(fs::read(fixture.path("second")).unwrap() == fixture.whole());
    // A killed one is found by the link's name as well.
    fs::remove_file(fixture.path("second")).unwrap();
    fs::rename(&old, fixture.aside()).unwrap();
    succeed(lunway(&["copy", &new, &link, "--resume", "--overwrite"]));
    fixture.assert_whole("by the link");
}

/// Somebody else who may write to the folder could have another file of the user written to.
#[test]
fn a_planted_file_of_that_name_is_not_written() {
    let fixture = Fixture::new();
    let (new, old, precious) = (fixture.path("new.img"), fixture.path("old.img"), fixture.path("precious"));
    fs::rename(&old, &precious).unwrap();
    for kind in ["is a symbolic link", "has 2 names"] {
        match kind {
            "has 2 names" => fs::hard_link(&precious, fixture.aside()).unwrap(),
            _ => symlink(&precious, fixture.aside()).unwrap(),
        }
        for more in ["--overwrite", "--resume"] {
            let output = finish(lunway(&["copy", &new, &old, more]), PATIENCE);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(1), "{said}");
            assert!(said.contains(kind) && said.contains("if it is yours"), "{said}");
            assert!(fs::read(&precious).unwrap() == fixture.old && !Path::new(&old).exists());
        }
        fs::remove_file(fixture.aside()).unwrap();
    }
    // Beside the file itself it is in the way.
    fs::write(&old, &fixture.old).unwrap();
    fs::write(fixture.aside(), "somebody's").unwrap();
    let output = finish(lunway(&["copy", &new, &old, "--overwrite"]), PATIENCE);
    assert!(String::from_utf8_lossy(&output.stderr).contains("remove or rename one of them"), "{output:?}");
    assert!(fs::read(&old).unwrap() == fixture.old);
}

#[test]
fn where_the_folder_does_not_allow_it_the_file_keeps_its_name_and_that_is_said() {
    let fixture = Fixture::new();
    if !rustix::process::geteuid().is_root() {
        return lunway_foreign::not_run("root, to mount");
    }
    // A file that something is mounted on cannot be renamed.
    let script = r#"mount --bind "$2" "$2" && exec "$0" copy "$1" "$2" --overwrite"#;
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script, env!("CARGO_BIN_EXE_lunway")]);
    command.args([fixture.path("new.img"), fixture.path("old.img")]);
    let output = finish(command, PATIENCE);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    assert!(said.contains("is written under its own name, as it cannot be renamed meanwhile"), "{said}");
    fixture.assert_whole("mounted");
}
