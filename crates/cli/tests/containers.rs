//! Files whose bytes are not those of a disk: refused where they are named without a format, by every command that
//! opens a device.
//!
//! The commands are read from the command line's own help, so that a new one must be given its row in [`opening`].

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use support::places::{commands, help, places};
use support::{IQN, PATIENCE, finish, lunway, succeed};

/// Formats that qemu-img makes: its name, options, and what we call it.
const IMAGES: [(&str, &str, &str); 9] = [
    ("qcow2", "", "a qcow2 image"),
    ("qcow", "", "a qcow2 image"),
    ("qed", "", "a QED image"),
    ("vmdk", "", "a VMDK image"),
    ("vmdk", "subformat=monolithicFlat", "a VMDK image"),
    ("vpc", "subformat=dynamic", "a VHD image"),
    // It has a footer alone.
    ("vpc", "subformat=fixed,force_size=on", "a VHD image"),
    ("vhdx", "", "a VHDX image"),
    ("vdi", "", "a VDI image"),
];

/// Programs that compress standard input, and what we call what they make.
const STREAMS: [(&str, &str); 6] = [
    ("gzip", "a gzip stream"),
    ("xz", "an xz stream"),
    ("zstd", "a zstd stream"),
    ("bzip2", "a bzip2 stream"),
    ("lz4", "an LZ4 stream"),
    ("lz4 -l", "an LZ4 stream"),
];

/// Containers as the programs make them that others use; with each what it is. What cannot be made here is said.
fn containers(folder: &Path) -> Vec<(PathBuf, &'static str)> {
    let mut made = Vec::new();
    if let Some(qemu_img) = lunway_foreign::program("qemu-img") {
        for (number, (format, options, name)) in IMAGES.into_iter().enumerate() {
            let path = folder.join(format!("image{number}"));
            let mut command = Command::new(&qemu_img);
            command.args(["create", "-q", "-f", format]).arg(&path).arg("4M").stdout(Stdio::null());
            if !options.is_empty() {
                command.args(["-o", options]);
            }
            assert!(command.status().unwrap().success(), "qemu-img create -f {format} -o {options}");
            made.push((path, name));
        }
    }
    let plain = folder.join("plain");
    support::image(&plain, 4 << 20, 1 << 20);
    for (number, (program, name)) in STREAMS.into_iter().enumerate() {
        let mut words = program.split(' ');
        let Some(path_of) = words.next().and_then(lunway_foreign::program) else { continue };
        let path = folder.join(format!("stream{number}"));
        let (input, output) = (fs::File::open(&plain).unwrap(), fs::File::create(&path).unwrap());
        let status = Command::new(path_of).args(words).arg("-c").stdin(input).stdout(output).status();
        assert!(status.unwrap().success(), "{program}");
        made.push((path, name));
    }
    made
}

/// What raw disks begin with that are no containers.
fn raw_disks(folder: &Path) -> Vec<PathBuf> {
    let written = |name: &str, at: u64, bytes: &[u8]| {
        let path = folder.join(name);
        let file = fs::File::create(&path).unwrap();
        file.set_len(4 << 20).unwrap();
        file.write_all_at(bytes, at).unwrap();
        path
    };
    let mut made = vec![
        written("empty", 0, &[0]),
        written("mbr", 0, b"\xeb\x63\x90\x10\x8e\xd0"),
        written("gpt", 512, b"EFI PART"),
        written("luks", 0, b"LUKS\xba\xbe\0\x02"),
        written("lvm", 512, b"LABELONE"),
        written("iso", 32769, b"CD001"),
        written("inside", 1 << 20, b"QFI\xfb\0\0\0\x03"),
    ];
    fs::OpenOptions::new().write(true).open(&made[1]).unwrap().write_all_at(&[0x55, 0xaa], 510).unwrap();
    if let Some(mkfs) = lunway_foreign::program("mkfs.ext4") {
        let path = written("ext4", 0, &[0]);
        assert!(Command::new(mkfs).arg("-q").arg(&path).status().unwrap().success());
        made.push(path);
    }
    made
}

/// The commands that open `device` where `place` of `command` names it. None: it opens no file.
fn opening(command: &str, place: &str, device: &str, folder: &Path) -> Vec<Vec<String>> {
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let nbd = format!("unix:{}", path("nbd"));
    let (lun, made) = (format!("0={device},read-only"), path("made.vhdx"));
    let destination = folder.join("backups");
    if !destination.exists() {
        fs::create_dir(&destination).unwrap();
        succeed(lunway(&["backup", "run", "ram:64K", destination.to_str().unwrap(), "--json"]));
    }
    let short = ["--rw", "read", "--pairs", "6", "--rounds", "1", "--time", "10ms", "--ramp", "0ms"];
    let rows: Vec<Vec<&str>> = match (command, place) {
        ("bench", "DEVICE") => vec![vec!["bench", device, "--rw", "read", "--size", "4K"]],
        ("compare", _) => vec![
            [&["compare", device, "ram:1M", "--size", "4K"], &short[..]].concat(),
            [&["compare", "ram:1M", device, "--size", "4K"], &short[..]].concat(),
        ],
        ("copy", "SRC") => vec![vec!["copy", device, "null:1G"]],
        ("copy", "DST") => {
            vec![vec!["copy", "ram:64K", device], vec!["copy", "ram:64K", device, "--overwrite"]]
        }
        ("backup run", "SRC") => vec![vec!["backup", "run", device, destination.to_str().unwrap()]],
        ("backup restore", "OUT") => {
            let restore = vec!["backup", "restore", destination.to_str().unwrap(), device];
            vec![restore.clone(), [&restore[..], &["--overwrite"]].concat()]
        }
        ("disk convert", "SRC") => vec![vec!["disk", "convert", device, "null:1G"]],
        ("disk convert", "DST") => {
            vec![
                vec!["disk", "convert", "ram:64K", device],
                vec!["disk", "convert", "ram:64K", device, "--overwrite"],
            ]
        }
        ("disk create", "--from") => {
            vec![vec!["disk", "create", &made, "--from", device]]
        }
        ("disk inside", "DEVICE") => vec![vec!["disk", "inside", device]],
        ("disk trim", "DEVICE") => {
            vec![vec!["disk", "trim", device, "--estimate"], vec!["disk", "trim", device, "--discard"]]
        }
        ("inspect", "DEVICE") => vec![vec!["inspect", device]],
        ("attach", "DEVICE") => vec![vec!["attach", device, "--nbd", &nbd]],
        ("serve", "--lun") => vec![vec!["serve", "--listen", "127.0.0.1:0", "--no-api", "--lun", &lun]],
        ("lun add", "DEVICE") => vec![vec!["lun", "add", IQN, "7", device]],
        ("lun set", "--device") => vec![vec!["lun", "set", IQN, "0", "--device", device]],
        // Only what is reached over a network has paths.
        ("paths" | "top" | "doctor", "DEVICE") => vec![],
        _ => panic!("`{command}` opens {place}: give it a row"),
    };
    rows.iter().map(|row| row.iter().map(|word| (*word).to_owned()).collect()).collect()
}

/// The commands on a virtual disk that take `file` where `place` of `command` names it. `good` is a VHDX file, `made` a
/// name that is free.
fn taking(command: &str, place: &str, file: &str, folder: &Path) -> Vec<Vec<String>> {
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let (good, made, nbd) = (path("good.vhdx"), path("made.avhdx"), format!("unix:{}", path("nbd")));
    if !Path::new(&good).exists() {
        succeed(lunway(&["disk", "create", &good, "--size", "1M"]));
    }
    let rows: Vec<Vec<&str>> = match (command, place) {
        // What is made there takes no place of another file: the destruction tests.
        ("disk create", "FILE") | ("disk snapshot", "CHILD") | (_, "--fuse" | "--files" | "--nbd") => vec![],
        // Results.
        (_, "--json-file" | "--html-file") => vec![],
        ("disk create", "--parent") => vec![vec!["disk", "create", &made, "--parent", file]],
        ("disk convert", "--parent") => vec![vec!["disk", "convert", "ram:1M", &made, "--parent", file]],
        ("disk rebase", "--parent") => vec![vec!["disk", "rebase", &good, "--parent", file]],
        ("disk merge", "--into") => vec![vec!["disk", "merge", &good, "--into", file]],
        ("disk info" | "disk map" | "disk check" | "disk repair" | "disk merge", "FILE") => {
            vec![command.split(' ').chain([file]).collect()]
        }
        ("disk compact", "FILE") => {
            vec![vec!["disk", "compact", file], vec!["disk", "compact", file, "--estimate"]]
        }
        ("disk resize", "FILE") => vec![vec!["disk", "resize", file, "8M", "--force"]],
        ("disk snapshot", "FILE") => vec![vec!["disk", "snapshot", file, &made]],
        ("disk rebase", "FILE") => vec![vec!["disk", "rebase", file, "--parent", &good]],
        ("disk set", "FILE") => vec![vec!["disk", "set", file, "--new-id", "--force"]],
        ("disk mount", "FILE") => vec![vec!["disk", "mount", file, "--nbd", &nbd]],
        _ => panic!("`{command}` takes a file as {place}: give it a row"),
    };
    rows.iter().map(|row| row.iter().map(|word| (*word).to_owned()).collect()).collect()
}

/// Every place of the command line that names a device, and with `disk` those that name a file.
fn places_of(is_device: bool) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for command in commands() {
        let name = command.join(" ");
        if !is_device && !name.starts_with("disk ") {
            continue;
        }
        let wanted = places(&help(&command)).into_iter().filter(|(_, device)| *device == is_device);
        found.extend(wanted.map(|(place, _)| (name.clone(), place)));
    }
    assert!(found.len() >= 9, "{found:?}");
    found
}

/// Runs a command on a container that is named without its format, which must refuse it with the words that settle it.
fn refused(command: Command, words: &[String], container: &str, name: &str) {
    let output = finish(command, PATIENCE);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{words:?}: {said}");
    let sentence = format!("{container} is {name}, not raw data");
    assert!(said.contains(&sentence) && said.contains(&format!("raw:{container}")), "{words:?}: {said}");
}

/// `lunway serve -c FILE`, killed when dropped.
struct Daemon {
    child: Child,
    folder: PathBuf,
    address: String,
}

impl Daemon {
    fn start(folder: &Path) -> Self {
        let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
        let mut command =
            lunway(&["serve", "-c", &path("lunway.toml"), "--socket", &path("api.sock"), "--json"]);
        command.env("LUNWAY_RUNTIME_DIR", path("run"));
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready: serde_json::Value = serde_json::from_str(&line).expect("the daemon is ready");
        let address = ready["listening"][0].as_str().unwrap().to_owned();
        Self { child, folder: folder.to_owned(), address }
    }

    fn command(&self, words: &[impl AsRef<str>]) -> Command {
        let mut command = lunway(words);
        command.env("LUNWAY_SOCKET", self.folder.join("api.sock"));
        command.env("LUNWAY_RUNTIME_DIR", self.folder.join("run"));
        command
    }

    fn file(&self) -> String {
        fs::read_to_string(self.folder.join("lunway.toml")).unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn configuration(luns: &[PathBuf]) -> String {
    let mut text =
        format!("listen = [\"127.0.0.1:0\"]\ncores = 1\n[[target]]\nname = \"{IQN}\"\nopen = true\n");
    for (id, path) in luns.iter().enumerate() {
        text += &format!("[[target.lun]]\nid = {id}\ndevice = \"{}\"   # ours\n", path.display());
    }
    text
}

#[test]
fn a_container_that_is_named_without_its_format_is_refused_by_every_command_that_opens_a_device() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("first.img"), vec![0; 1 << 20]).unwrap();
    fs::write(path("lunway.toml"), configuration(&[path("first.img")])).unwrap();
    let daemon = Daemon::start(folder.path());
    let (places, files) = (places_of(true), places_of(false));
    for (container, name) in containers(folder.path()) {
        let before = fs::read(&container).unwrap();
        let device = container.to_str().unwrap();
        for (command, place) in &places {
            for words in opening(command, place, device, folder.path()) {
                // What names its own socket must not meet that daemon.
                let running = if command == "serve" { lunway(&words) } else { daemon.command(&words) };
                refused(running, &words, device, name);
            }
        }
        for (command, place) in &files {
            for words in taking(command, place, device, folder.path()) {
                refused(lunway(&words), &words, device, name);
                assert!(!path("made.avhdx").exists(), "{words:?}");
            }
        }
        assert!(fs::read(&container).unwrap() == before, "{name} was changed");
        let around = format!("stats:{device}?cache=writeback");
        assert_eq!(finish(lunway(&["inspect", &around]), PATIENCE).status.code(), Some(1));
        let said = finish(lunway(&["inspect", &format!("raw:{device}")]), PATIENCE);
        let said = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(
            said.is_empty() || said.contains("not one sector") || said.contains("and is left out"),
            "{name}: {said}"
        );
    }
    // A file of the configuration is opened for the first time as well.
    let container = path("stream0");
    if container.exists() {
        fs::write(path("lunway.toml"), configuration(&[path("first.img"), container])).unwrap();
        let output = finish(daemon.command(&["reload"]), PATIENCE);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && said.contains("is a gzip stream, not raw data"), "{said}");
    }
}

/// Runs a command to its end; one that serves until a signal is ended as soon as it serves.
fn ended(mut command: Command, words: &[String]) -> (Option<i32>, String) {
    if !["serve", "attach"].contains(&words[0].as_str()) {
        let output = finish(command, PATIENCE);
        return (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned());
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut first = String::new();
    // Kept, so that it never finds nobody at the other end.
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut first).unwrap();
    if !first.is_empty() {
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    }
    let status = support::wait(&mut child, PATIENCE);
    let _ = child.kill();
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    (status.and_then(|status| status.code()), said)
}

/// Whether the disk is only read there, so that what is on it is no reason to refuse.
fn reads(command: &str, place: &str) -> bool {
    let reading = ["bench", "inspect", "attach", "serve", "lun add", "lun set", "disk inside", "compare"];
    reading.contains(&command)
        || [("copy", "SRC"), ("disk convert", "SRC"), ("disk create", "--from")].contains(&(command, place))
}

#[test]
fn raw_disks_are_raw_for_every_command_that_opens_a_device() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("first.img"), vec![0; 1 << 20]).unwrap();
    fs::write(path("lunway.toml"), configuration(&[path("first.img")])).unwrap();
    let daemon = Daemon::start(folder.path());
    fs::create_dir(path("disks")).unwrap();
    let places = places_of(true);
    for disk in raw_disks(&path("disks")) {
        let (device, before) = (disk.to_str().unwrap(), fs::read(&disk).unwrap());
        for (command, place) in &places {
            for words in opening(command, place, device, folder.path()) {
                let running = if command == "serve" { lunway(&words) } else { daemon.command(&words) };
                let (code, said) = ended(running, &words);
                assert!(!said.contains("not raw data"), "{words:?}: {said}");
                match reads(command, place) {
                    true => assert_eq!(code, Some(0), "{words:?}: {said}"),
                    false => assert!(matches!(code, Some(0 | 1)), "{words:?}: {said}"),
                }
                // As it was, for the next one.
                match command.as_str() {
                    "lun add" => _ = succeed(daemon.command(&["lun", "remove", IQN, "7"])),
                    "lun set" => {
                        let first = path("first.img");
                        let back = ["lun", "set", IQN, "0", "--device", first.to_str().unwrap(), "--shrink"];
                        succeed(daemon.command(&back));
                    }
                    _ => fs::write(&disk, &before).unwrap(),
                }
                let _ = fs::remove_file(path("made.vhdx"));
            }
        }
    }
}

#[test]
fn a_device_that_is_not_there_is_exit_code_1_and_named_by_every_command_that_opens_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("first.img"), vec![0; 1 << 20]).unwrap();
    fs::write(path("lunway.toml"), configuration(&[path("first.img")])).unwrap();
    let daemon = Daemon::start(folder.path());
    for missing in ["missing/disk.img", "missing/disk.vhdx", "missing/disk.qcow2"] {
        let device = path(missing);
        for (command, place) in &places_of(true) {
            for words in opening(command, place, device.to_str().unwrap(), folder.path()) {
                let running = if command == "serve" { lunway(&words) } else { daemon.command(&words) };
                let (code, said) = ended(running, &words);
                assert_eq!(code, Some(1), "{words:?}: {said}");
                assert!(said.contains(missing), "{words:?}: {said}");
                assert!(!path("missing").exists() && !path("made.vhdx").exists(), "{words:?}");
            }
        }
    }
}

#[test]
fn raw_disks_are_raw_whatever_they_are_formatted_with() {
    let folder = tempfile::tempdir().unwrap();
    let disks = raw_disks(folder.path());
    for disk in &disks {
        let device = disk.to_str().unwrap();
        succeed(lunway(&["inspect", device]));
        succeed(lunway(&["inspect", &format!("raw:{device}?cache=none")]));
        succeed(lunway(&["bench", device, "--rw", "read", "--size", "4K"]));
        succeed(lunway(&["copy", device, "null:1G"]));
    }
    fs::write(folder.path().join("lunway.toml"), configuration(&disks)).unwrap();
    let daemon = Daemon::start(folder.path());
    for (id, disk) in disks.iter().enumerate() {
        succeed(lunway(&["inspect", &format!("iscsi://{}/{IQN}/{id}", daemon.address)]));
        let kept = format!("device = \"raw:{}\"   # ours", disk.display());
        assert!(daemon.file().contains(&kept), "{}", daemon.file());
    }
}

/// A raw disk whose guest wrote a VHDX image into it: `child`, whose parent would be a file of the host. What a guest
/// writes must not make the host take its disk for a VHDX file.
#[test]
fn a_raw_disk_into_which_a_guest_wrote_a_vhdx_is_no_vhdx_for_any_command() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (parent, child) = (path("host.vhdx"), path("child.avhdx"));
    succeed(lunway(&["disk", "create", &parent, "--size", "4M"]));
    succeed(lunway(&["disk", "snapshot", &parent, &child]));
    let mut image = fs::read(&child).unwrap();
    image.resize(16 << 20, 0);
    let disk = path("disk.img");
    fs::write(&disk, &image).unwrap();
    for (command, place) in &places_of(false) {
        for words in taking(command, place, &disk, folder.path()) {
            refused(lunway(&words), &words, &disk, "a VHDX image");
            assert!(!Path::new(&path("made.avhdx")).exists(), "{words:?}");
            // The word for it: the bytes of a raw disk, of which no format is known.
            let raw = format!("raw:{disk}");
            for words in taking(command, place, &raw, folder.path()) {
                let output = finish(lunway(&words), PATIENCE);
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                let estimate = words.contains(&"--estimate".to_owned());
                assert_eq!(output.status.code(), Some(i32::from(!estimate)), "{words:?}: {said}");
                let expected = said.contains("is not a VHDX file by its name") || said.contains("nothing on");
                assert!(estimate || expected, "{words:?}: {said}");
            }
            assert!(fs::read(&disk).unwrap() == image, "{words:?} changed the guest's disk");
        }
    }
    // Its zeroes become holes, as those of any raw disk; the bytes stay.
    succeed(lunway(&["disk", "compact", &format!("raw:{disk}"), "--mode", "prezeroed"]));
    assert!(fs::read(&disk).unwrap() == image);
    // The same bytes are a VHDX file under the name of one.
    let named = format!("vhdx:{disk}");
    assert!(succeed(lunway(&["disk", "info", &named])).contains("differencing"));
    succeed(lunway(&["disk", "check", &named]));
    succeed(lunway(&["disk", "compact", &named, "--estimate"]));
}

#[test]
fn a_lun_stays_raw_whatever_its_initiator_writes_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::create_dir(path("made")).unwrap();
    let containers = containers(&path("made"));
    let luns: Vec<_> = (0..containers.len()).map(|id| path(&format!("lun{id}.img"))).collect();
    for lun in &luns {
        fs::write(lun, vec![0; 1 << 20]).unwrap();
    }
    // The last is added while the daemon runs.
    let (last, first) = luns.split_last().unwrap();
    fs::write(path("lunway.toml"), configuration(first)).unwrap();
    let daemon = Daemon::start(folder.path());
    let number = first.len().to_string();
    let add = ["lun", "add", IQN, &number, last.to_str().unwrap()];
    succeed(daemon.command(&add));
    for (id, (container, name)) in containers.iter().enumerate() {
        let bytes = fs::read(container).unwrap();
        let mut disk = vec![0; 1 << 20];
        let head = bytes.len().min(64 << 10);
        disk[..head].copy_from_slice(&bytes[..head]);
        let tail = bytes.len().min(512);
        let end = disk.len();
        disk[end - tail..].copy_from_slice(&bytes[bytes.len() - tail..]);
        fs::write(path("content"), &disk).unwrap();
        let url = format!("iscsi://{}/{IQN}/{id}", daemon.address);
        succeed(lunway(&["copy", &format!("raw:{}", path("content").display()), &url, "--overwrite"]));
        // It is one now, for those who see it for the first time.
        let output = finish(lunway(&["copy", luns[id].to_str().unwrap(), "null:1G"]), PATIENCE);
        assert_eq!(output.status.code(), Some(1), "{name}");
    }
    assert_eq!(succeed(daemon.command(&add)).trim(), "nothing to change");
    // Neither a comment nor the names as they were makes it another device.
    fs::write(path("lunway.toml"), format!("# mine\n{}", configuration(&luns))).unwrap();
    assert_eq!(succeed(daemon.command(&["reload"])).trim(), "nothing to change");
    assert!(daemon.file().contains("# mine") && !daemon.file().contains("device = \"/"), "{}", daemon.file());
    drop(daemon);
    let daemon = Daemon::start(folder.path());
    for (id, (_, name)) in containers.iter().enumerate() {
        let shown = succeed(lunway(&["inspect", &format!("iscsi://{}/{IQN}/{id}", daemon.address)]));
        assert!(shown.contains("1 MiB"), "{name}: {shown}");
    }
}
