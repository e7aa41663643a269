//! Files of results on what is in use, sealed or a part of the measured disk: `--force` does not destroy it.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::data;
use super::support::{PATIENCE, Served, finish, lunway, succeed};

/// Measures `device`, with each kind of results at `place`, which must refuse with `sentence` and leave it as it is.
fn refused(device: &str, place: &str, code: i32, sentence: &str) {
    let before = fs::read(place).unwrap();
    for option in ["--json-file", "--html-file", "--json-plus-file", "--stream"] {
        let words =
            ["bench", device, "--rw", "read", "--size", "64K", "--time", "10ms", option, place, "--force"];
        let output = finish(lunway(&words), PATIENCE);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(fs::read(place).unwrap() == before, "{words:?} wrote: {said}");
        assert_eq!(output.status.code(), Some(code), "{words:?}: {said}");
        assert!(said.contains(sentence), "{words:?}: {said}");
    }
}

fn path(folder: &tempfile::TempDir, name: &str) -> String {
    folder.path().join(name).to_str().unwrap().to_owned()
}

/// A point of a backup has this mode.
#[test]
fn a_file_that_nobody_may_write_is_not_replaced_by_a_report() {
    let folder = tempfile::tempdir().unwrap();
    let sealed = path(&folder, "point.vhdx");
    data(Path::new(&sealed));
    fs::set_permissions(&sealed, fs::Permissions::from_mode(0o444)).unwrap();
    refused("ram:1M", &sealed, 1, "write-protected (mode 0444)");
}

#[test]
fn the_file_of_a_served_lun_is_not_replaced_by_a_report_on_it() {
    let folder = tempfile::tempdir().unwrap();
    let disk = path(&folder, "disk.img");
    data(Path::new(&disk));
    let served = Served::start(&["--lun", &format!("0={disk}")]);
    refused(&served.url(0), &disk, 1, "in use by lunway");
    drop(served);
    succeed(lunway(&["bench", "ram:1M", "--rw", "read", "--size", "64K", "--json-file", &disk, "--force"]));
}

#[test]
fn a_parent_of_the_measured_disk_is_not_replaced_by_a_report() {
    let folder = tempfile::tempdir().unwrap();
    let [raw, base, middle, child] =
        ["raw", "base.vhdx", "middle.avhdx", "child.avhdx"].map(|name| path(&folder, name));
    data(Path::new(&raw));
    succeed(lunway(&["disk", "create", &base, "--from", &raw]));
    succeed(lunway(&["disk", "snapshot", &base, &middle]));
    succeed(lunway(&["disk", "snapshot", &middle, &child]));
    for parent in [&base, &middle] {
        refused(&child, parent, 2, "child.avhdx lies on");
        refused("ram:1M", parent, 1, "is the parent of");
    }
}

#[test]
fn a_backing_file_of_the_measured_disk_is_not_replaced_by_a_report() {
    let Some(qemu) = lunway_foreign::program("qemu-img") else { return };
    let folder = tempfile::tempdir().unwrap();
    let [raw, child] = ["raw.img", "child.qcow2"].map(|name| path(&folder, name));
    data(Path::new(&raw));
    let made =
        Command::new(qemu).args(["create", "-q", "-f", "qcow2", "-b", &raw, "-F", "raw", &child]).output();
    assert!(made.unwrap().status.success());
    refused(&child, &raw, 2, "child.qcow2 lies on");
}

#[test]
fn an_image_that_qemu_has_open_is_not_replaced_by_a_report() {
    let Some(qemu) = lunway_foreign::program("qemu-io") else { return };
    let folder = tempfile::tempdir().unwrap();
    let disk = path(&folder, "disk.img");
    data(Path::new(&disk));
    let mut guest = Command::new(qemu);
    guest.args(["-f", "raw", &disk]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut guest = guest.spawn().unwrap();
    // It answers when the image is open.
    let mut said = BufReader::new(guest.stdout.take().unwrap());
    guest.stdin.as_mut().unwrap().write_all(b"length\n").unwrap();
    said.read_line(&mut String::new()).unwrap();
    refused("ram:1M", &disk, 1, "in use by a program that has locked a part of it");
    drop(guest.stdin.take());
    assert!(guest.wait().unwrap().success());
}

/// A loop device, detached when dropped.
struct Loop(PathBuf);

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

#[test]
fn the_file_of_a_loop_device_is_not_replaced_by_a_report_on_it_or_on_another() {
    let Some(losetup) = lunway_foreign::program("losetup") else { return };
    let folder = tempfile::tempdir().unwrap();
    let disk = path(&folder, "disk.img");
    data(Path::new(&disk));
    let attached = Command::new(losetup).args(["--find", "--show", &disk]).output().unwrap();
    if !attached.status.success() {
        lunway_foreign::not_run("loop devices (root, on a machine that has some)");
        return;
    }
    let device = Loop(String::from_utf8(attached.stdout).unwrap().trim().into());
    let node = device.0.to_str().unwrap();
    refused(node, &disk, 2, "it is the device /dev/loop");
    refused(&disk, node, 2, "it is the device");
    refused("ram:1M", &disk, 1, "in use as /dev/loop");
}

#[test]
fn the_name_of_a_device_is_no_file_for_results() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["raw:x", "vhdx:x", "ram:64M", "iscsi://192.0.2.1/iqn.2026-11.com.example:disks/0"] {
        let words = ["bench", "ram:1M", "--rw", "read", "--size", "64K", "--json-file", name, "--force"];
        let mut command = lunway(&words);
        command.current_dir(folder.path());
        let output = finish(command, PATIENCE);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{name}: {said}");
        assert!(said.contains("it names a device"), "{name}: {said}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    let words = ["bench", "ram:1M", "--rw", "read", "--size", "64K", "--json-file", "./raw:x"];
    let mut command = lunway(&words);
    command.current_dir(folder.path());
    succeed(command);
}

#[test]
fn two_results_do_not_go_to_one_file_by_two_names() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = lunway(&["bench", "ram:1M", "--rw", "read", "--size", "64K", "--html-file", "a.html"]);
    command.args(["--json-plus", "./a.html"]).current_dir(folder.path());
    let output = finish(command, PATIENCE);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("two results cannot go to one file"), "{said}");
}
