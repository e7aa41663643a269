//! Disks that another program has open: guests, loop devices, copies that are running.

use std::cell::RefCell;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use rustix::process::Signal;

use super::data;
use super::support::{IQN, PATIENCE, Running, Served, finish, image, interrupted, lunway, succeed, until};

/// Command of a [`Guest`] that changes nothing.
const LENGTH: &str = "length";

/// An image that qemu-io has open.
struct Guest {
    program: Child,
    /// Open as long as the program writes to it.
    _said: BufReader<ChildStdout>,
}

impl Guest {
    /// Opens an image, and carries out a command: it answers when the image is open, and does not flush.
    fn open(qemu: &Path, format: &str, options: &[&str], disk: &str, first: &str) -> Self {
        let mut guest = Command::new(qemu);
        guest.args(["-f", format]).args(options).arg(disk).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut program = guest.spawn().unwrap();
        let mut said = BufReader::new(program.stdout.take().unwrap());
        program.stdin.as_mut().unwrap().write_all(format!("{first}\n").as_bytes()).unwrap();
        said.read_line(&mut String::new()).unwrap();
        Self { program, _said: said }
    }

    /// Closes the image.
    fn close(mut self) {
        drop(self.program.stdin.take());
        assert!(self.program.wait().unwrap().success());
    }
}

#[test]
fn a_copy_that_is_running_keeps_its_partial_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (source, copied, partial) = (path("source"), path("copied"), path("copied.partial"));
    image(Path::new(&source), 64 << 20, 32 << 20);
    let slow = format!("rate:8M:{source}");
    let refused = RefCell::new(None);
    let begun = || {
        let has_begun = fs::metadata(&partial).is_ok_and(|file| file.blocks() > 0);
        if has_begun && refused.borrow().is_none() {
            *refused.borrow_mut() =
                Some(finish(lunway(&["copy", &source, &copied, "--overwrite"]), PATIENCE));
        }
        has_begun
    };
    interrupted(lunway(&["copy", &slow, &copied]), begun);
    let refused = refused.into_inner().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("cannot replace") && said.contains("in use by "), "{said}");
    assert!(Path::new(&partial).exists() && !Path::new(&copied).exists());
}

/// Every command that would write to a disk, with the words that allow it to destroy.
fn writing(disk: &str) -> Vec<Vec<&str>> {
    vec![
        vec!["copy", "ram:1M", disk, "--overwrite"],
        vec!["disk", "convert", "ram:1M", disk, "--overwrite"],
        vec!["disk", "trim", disk, "--discard"],
        vec!["disk", "compact", disk],
        vec!["bench", disk, "--rw", "write", "--size", "64K", "--destroy"],
        vec!["serve", "--listen", "127.0.0.1:0", "--no-api", "--open", "--lun", "0=DISK"],
    ]
}

/// Runs commands that must be refused because `disk` is in use, with `sentence`, and leave it as it is.
fn refused_in_use(disk: &str, commands: Vec<Vec<&str>>, sentence: &str) {
    let before = fs::read(disk).unwrap();
    let lun = format!("0={disk}");
    for words in commands {
        let words: Vec<&str> = words.iter().map(|&word| if word == "0=DISK" { &lun } else { word }).collect();
        let output = finish(lunway(&words), PATIENCE);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{words:?}: {said}");
        assert!(said.contains(sentence), "{words:?}: {said}");
        assert!(fs::read(disk).unwrap() == before, "{words:?}");
    }
}

#[test]
fn a_disk_that_qemu_has_open_is_written_by_no_command() {
    let Some(qemu) = lunway_foreign::program("qemu-io") else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (raw, vhdx) = (path("disk.img"), path("disk.vhdx"));
    data(Path::new(&raw));
    succeed(lunway(&["disk", "create", &vhdx, "--from", &raw]));
    for (disk, format) in [(&raw, "raw"), (&vhdx, "vhdx")] {
        let guest = Guest::open(&qemu, format, &[], disk, LENGTH);
        let mut commands = writing(disk);
        if format == "vhdx" {
            commands.push(vec!["disk", "resize", disk, "4M"]);
            commands.push(vec!["disk", "repair", disk]);
        }
        refused_in_use(disk, commands, "in use by a program that has locked a part of it");
        guest.close();
        succeed(lunway(&["copy", "ram:1M", disk, "--overwrite"]));
    }
}

/// Its tables lay in QEMU's memory: a copy lacked data that had been written long before it began, without a word.
#[test]
fn a_qcow2_file_that_qemu_writes_is_read_by_no_command() {
    let (Some(qemu), Some(img)) = (lunway_foreign::program("qemu-io"), lunway_foreign::program("qemu-img"))
    else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (disk, child, copy, points) =
        (path("disk.qcow2"), path("child.qcow2"), path("copy.img"), path("points"));
    fs::create_dir(&points).unwrap();
    for words in [
        vec!["create", "-q", "-f", "qcow2", &disk, "64M"],
        vec!["create", "-q", "-f", "qcow2", "-b", &disk, "-F", "qcow2", &child],
    ] {
        assert!(Command::new(&img).args(words).output().unwrap().status.success());
    }
    let guest = Guest::open(&qemu, "qcow2", &[], &disk, "write -P 7 4M 1M");
    for words in [
        vec!["copy", &disk, &copy],
        vec!["copy", &child, &copy],
        vec!["disk", "convert", &disk, &copy],
        vec!["disk", "info", &disk],
        vec!["disk", "map", &disk],
        vec!["backup", "run", &disk, &points],
        vec!["bench", &disk, "--rw", "read", "--size", "64K"],
    ] {
        let output = finish(lunway(&words), PATIENCE);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{words:?}: {said}");
        assert!(said.contains("in that program's memory"), "{words:?}: {said}");
        assert!(!Path::new(&copy).exists(), "{words:?}");
    }
    guest.close();
    succeed(lunway(&["copy", &child, &copy]));
    assert_eq!(&fs::read(&copy).unwrap()[4 << 20..5 << 20], &[7; 1 << 20]);
}

/// It was served read-only, and its LUN went on showing what it held before QEMU added blocks.
#[test]
fn a_vhd_file_that_qemu_writes_is_read_by_no_command() {
    let (Some(qemu), Some(img)) = (lunway_foreign::program("qemu-io"), lunway_foreign::program("qemu-img"))
    else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (disk, copy, points) = (path("disk.vhd"), path("copy.img"), path("points"));
    fs::create_dir(&points).unwrap();
    let words = ["create", "-q", "-f", "vpc", "-o", "force_size=on", &disk, "64M"];
    assert!(Command::new(&img).args(words).output().unwrap().status.success());
    let lun = format!("0={disk}");
    for (options, refused) in [(&[][..], true), (&["-r"], false)] {
        let guest = Guest::open(&qemu, "vpc", options, &disk, LENGTH);
        for words in [
            vec!["copy", &disk, &copy],
            vec!["disk", "info", &disk],
            vec!["backup", "run", &disk, &points],
            vec!["serve", "--open", "--listen", "127.0.0.1:0", "--iqn", IQN, "--no-api", "--lun", &lun],
        ] {
            if !refused && words[0] == "serve" {
                drop(Served::start(&["--lun", &lun, "--no-api"]));
                continue;
            }
            let output = finish(lunway(&words), PATIENCE);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(i32::from(refused)), "{words:?}: {said}");
            assert_eq!(said.contains("in that program's memory"), refused, "{words:?}: {said}");
        }
        guest.close();
    }
}

#[test]
fn a_disk_that_qemu_writes_becomes_nobodys_parent() {
    let Some(qemu) = lunway_foreign::program("qemu-io") else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (raw, parent, child, new) =
        (path("disk.img"), path("disk.vhdx"), path("child.avhdx"), path("new.avhdx"));
    data(Path::new(&raw));
    succeed(lunway(&["disk", "create", &parent, "--from", &raw]));
    succeed(lunway(&["disk", "snapshot", &parent, &child]));
    let parents = || {
        [
            vec!["disk", "snapshot", &parent, &new],
            vec!["disk", "create", &new, "--parent", &parent],
            vec!["disk", "convert", &raw, &new, "--parent", &parent],
            vec!["disk", "rebase", &child, "--parent", &parent],
            // What it would show next is not what it showed.
            vec!["copy", &child, "null:1M"],
        ]
    };
    let opened = |options: &[&str], commands: Vec<Vec<&str>>, refused: bool| {
        let guest = Guest::open(&qemu, "vhdx", options, &parent, LENGTH);
        for words in commands {
            let output = finish(lunway(&words), PATIENCE);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(i32::from(refused)), "{words:?}: {said}");
            assert_eq!(
                said.contains("in use by a program that has locked a part of it"),
                refused,
                "{words:?}: {said}"
            );
            let made = Path::new(&new).exists();
            assert_eq!(made, !refused && words.contains(&new.as_str()), "{words:?}");
            if made {
                fs::remove_file(&new).unwrap();
            }
        }
        guest.close();
    };
    opened(&[], parents().to_vec(), true);
    opened(&["-r"], parents().to_vec(), false);
}

#[test]
fn a_copy_of_a_disk_that_qemu_writes_says_so() {
    let Some(qemu) = lunway_foreign::program("qemu-io") else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (disk, copied, new) = (path("disk.img"), path("copied.img"), path("new.vhdx"));
    data(Path::new(&disk));
    for (options, writes) in [(&[][..], true), (&["-r"], false)] {
        let guest = Guest::open(&qemu, "raw", options, &disk, LENGTH);
        for words in [
            &["copy", &disk, &copied][..],
            &["disk", "convert", &disk, &new],
            &["disk", "create", &new, "--from", &disk],
        ] {
            let output = finish(lunway(words), PATIENCE);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(0), "{words:?}: {said}");
            let warning = "or another lunway: data written during the copy may be in it only in part";
            assert_eq!(said.contains(warning), writes, "{words:?}: {said}");
            let _ = (fs::remove_file(&copied), fs::remove_file(&new));
        }
        guest.close();
    }
}

#[test]
fn a_disk_that_qemu_writes_is_served_for_reading_with_a_warning() {
    let Some(qemu) = lunway_foreign::program("qemu-io") else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (raw, vhdx) = (path("disk.img"), path("disk.vhdx"));
    data(Path::new(&raw));
    succeed(lunway(&["disk", "create", &vhdx, "--from", &raw]));
    let (socket, nbd) = (path("api.sock"), path("nbd.sock"));
    let at = format!("unix:{nbd}");
    for (disk, format, options, writes) in [
        (&raw, "raw", &[][..], true),
        (&vhdx, "vhdx", &[], true),
        (&raw, "raw", &["-r"], false),
        (&vhdx, "vhdx", &["-r"], false),
    ] {
        let guest = Guest::open(&qemu, format, options, disk, LENGTH);
        let lun = format!("0=readonly:{disk}");
        let told = |running: Running| {
            running.signal(Signal::TERM);
            let output = running.end(PATIENCE);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            let warning = format!("{disk} is in use by a program that has locked a part of it");
            assert_eq!(said.contains(&warning), writes, "{lun}: {said}");
        };
        let attached = Running::start(lunway(&["attach", disk, "--read-only", "--nbd", &at]));
        until(|| Path::new(&nbd).exists());
        told(attached);
        let mut serve = lunway(&["serve", "--listen", "127.0.0.1:0", "--iqn", IQN, "--open"]);
        serve.args(["--lun", &lun, "--socket", &socket]);
        let served = Running::start(serve);
        until(|| finish(lunway(&["lun", "list", "--socket", &socket]), PATIENCE).status.success());
        told(served);
        guest.close();
    }
}

/// Before, `disk info` said that nobody used it, and `disk resize` that it was in use.
#[test]
fn a_disk_that_qemu_has_open_is_shown_as_in_use() {
    let Some(qemu) = lunway_foreign::program("qemu-io") else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (raw, vhdx, vhd) = (path("disk.img"), path("disk.vhdx"), path("disk.vhd"));
    data(Path::new(&raw));
    for disk in [&vhdx, &vhd] {
        succeed(lunway(&["disk", "create", disk, "--from", &raw]));
    }
    let info = |disk: &str, more: &[&str]| {
        let mut command = lunway(&["disk", "info", disk]);
        command.args(more);
        succeed(command)
    };
    for (disk, format) in [(&vhdx, "vhdx"), (&vhd, "vpc")] {
        let is_used = |used: bool| {
            let value: serde_json::Value = serde_json::from_str(&info(disk, &["--json"])).unwrap();
            assert_eq!(value["in_use"], used, "{disk}: {value}");
            let text = info(disk, &[]);
            assert_eq!(text.contains("in use"), used, "{text}");
            assert!(text.contains("512 logical") && text.contains("minimum size"), "{text}");
        };
        is_used(false);
        for options in [&[][..], &["-r"]] {
            let guest = Guest::open(&qemu, format, options, disk, LENGTH);
            match (format, options) {
                // What QEMU writes to an image may be in its memory alone: nothing is read from it.
                ("vpc", []) => {
                    let refused = finish(lunway(&["disk", "info", disk]), PATIENCE);
                    assert!(String::from_utf8_lossy(&refused.stderr).contains("is in use"), "{refused:?}");
                }
                _ => is_used(true),
            }
            guest.close();
        }
        is_used(false);
    }
}

#[test]
fn a_disk_that_our_own_daemon_serves_is_named_as_its_logical_unit() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (raw, vhdx, socket, points) = (path("disk.img"), path("disk.vhdx"), path("api.sock"), path("points"));
    data(Path::new(&raw));
    succeed(lunway(&["disk", "create", &vhdx, "--from", &raw]));
    fs::create_dir(&points).unwrap();
    let luns = [format!("0={raw}"), format!("5={vhdx}")];
    let _served = Served::start(&["--lun", &luns[0], "--lun", &luns[1], "--socket", &socket]);
    until(|| Path::new(&socket).exists());
    for (disk, lun) in [(&raw, 0), (&vhdx, 5)] {
        let unit = format!("{disk} is LUN {lun} of target {IQN}, which the daemon on {socket} serves");
        refused_in_use(disk, writing(disk), &unit);
        let output = finish(lunway(&["backup", "run", disk, &points]), PATIENCE);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(&format!("name lun:{IQN}/{lun} as the source instead")), "{said}");
        assert!(!said.contains("only in part"), "a warning of a point that is not made: {said}");
        assert!(!said.contains("such as QEMU") || said.contains("another lunway"), "{said}");
    }
}

#[test]
fn a_loop_device_that_takes_no_writes_is_not_opened_for_writing_and_is_one_disk_with_its_file() {
    let Some(losetup) = lunway_foreign::program("losetup") else { return };
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk.img").to_str().unwrap().to_owned();
    data(Path::new(&disk));
    let attached = Command::new(&losetup).args(["--find", "--show", "--read-only", &disk]).output().unwrap();
    if !attached.status.success() {
        return lunway_foreign::not_run("loop devices (root, on a machine that has some)");
    }
    let device = String::from_utf8(attached.stdout).unwrap().trim().to_owned();
    let tried = std::panic::catch_unwind(|| {
        // Block devices are not compacted, whatever they are.
        let commands = writing(&device).into_iter().filter(|words| words[1] != "compact").collect();
        refused_in_use(&device, commands, "the device is read-only");
        let lun = format!("0=readonly:{device}");
        drop(Served::start(&["--lun", &lun, "--no-api"]));
        succeed(lunway(&["copy", &device, &folder.path().join("copy.img").display().to_string()]));
        for [from, to] in [[&disk, &device], [&device, &disk]] {
            let output = finish(lunway(&["copy", from, to, "--overwrite"]), PATIENCE);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(2), "{said}");
            assert!(said.contains("lie on the same bytes"), "{said}");
        }
    });
    Command::new(&losetup).args(["--detach", &device]).status().unwrap();
    tried.unwrap();
}

#[test]
fn a_disk_that_a_loop_device_has_is_written_by_no_command() {
    let Some(losetup) = lunway_foreign::program("losetup") else { return };
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk.img").to_str().unwrap().to_owned();
    data(Path::new(&disk));
    let attached = Command::new(&losetup).args(["--find", "--show", &disk]).output().unwrap();
    if !attached.status.success() {
        return lunway_foreign::not_run("loop devices (root, on a machine that has some)");
    }
    let device = String::from_utf8(attached.stdout).unwrap().trim().to_owned();
    let refused =
        std::panic::catch_unwind(|| refused_in_use(&disk, writing(&disk), &format!("in use as {device}")));
    Command::new(&losetup).args(["--detach", &device]).status().unwrap();
    refused.unwrap();
}

#[test]
fn a_loop_device_on_a_file_that_our_own_daemon_serves_is_opened_by_no_command() {
    let Some(losetup) = lunway_foreign::program("losetup") else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (disk, socket) = (path("disk.img"), path("api.sock"));
    data(Path::new(&disk));
    let _served = Served::start(&["--lun", &format!("0={disk}"), "--socket", &socket]);
    until(|| Path::new(&socket).exists());
    let attached = Command::new(&losetup).args(["--find", "--show", &disk]).output().unwrap();
    if !attached.status.success() {
        return lunway_foreign::not_run("loop devices (root, on a machine that has some)");
    }
    let device = String::from_utf8(attached.stdout).unwrap().trim().to_owned();
    let refused = std::panic::catch_unwind(|| {
        let lies = format!("{device} is in use below: it lies on {disk}, which is in use by ");
        let unit = format!("{disk} is LUN 0 of target {IQN}, which the daemon on {socket} serves");
        // Block devices are not compacted, whatever they are.
        let mut commands: Vec<_> =
            writing(&device).into_iter().filter(|words| words[1] != "compact").collect();
        // It would read a disk that another changes.
        commands.push(vec!["copy", &device, "null:1M"]);
        for sentence in [lies, unit] {
            refused_in_use(&device, commands.clone(), &sentence);
        }
        let add = ["lun", "add", "--socket", &socket, IQN, "1", &device];
        for more in [&[][..], &["--read-only"]] {
            let output = finish(lunway(&[&add[..], more].concat()), PATIENCE);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(1), "{said}");
            assert!(said.contains(&device) && said.contains(&disk) && said.contains("LUN 0"), "{said}");
        }
    });
    Command::new(&losetup).args(["--detach", &device]).status().unwrap();
    refused.unwrap();
}
