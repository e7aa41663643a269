//! `lunway backup mount --files`: file systems that other tools have made, mounted by the kernel and by programs.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use lunway_foreign::{machine_lacks, program};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::run;
use super::support::{PATIENCE, finish, lunway, succeed, until, wait};

const MIB: u64 = 1 << 20;

/// Users without a name have numbers like this one, which nothing belongs to.
const STRANGER: u32 = 65_534;

/// `lunway backup mount --files`; killed when dropped, and what is mounted is taken off.
struct Files {
    child: Child,
    folder: PathBuf,
    announced: Value,
}

impl Files {
    /// `None` where FUSE cannot be had.
    fn start(fixture: &Fixture) -> Option<Self> {
        let words = ["backup", "mount", &fixture.path("dest"), "--files", &fixture.path("then"), "--json"];
        Self::start_as(fixture, lunway(&words))
    }

    fn start_as(fixture: &Fixture, mut command: Command) -> Option<Self> {
        if !Path::new("/dev/fuse").exists() {
            machine_lacks("/dev/fuse");
            return None;
        }
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let announced = serde_json::from_str(&line).unwrap_or_else(|_| panic!("no mount: {line}"));
        Some(Self { child, folder: fixture.path("then").into(), announced })
    }

    fn volume(&self, name: &str) -> &Value {
        let volumes = self.announced["volumes"].as_array().unwrap();
        volumes.iter().find(|volume| volume["name"] == name).unwrap_or_else(|| panic!("{name}: {volumes:?}"))
    }

    /// By what a volume is mounted, or `None` with what was said.
    fn by(&self, name: &str) -> (Option<&str>, String) {
        let volume = self.volume(name);
        (volume["by"].as_str(), volume["reason"].as_str().unwrap_or_default().to_owned())
    }

    fn end(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        let status = wait(&mut self.child, PATIENCE).expect("it ends in time");
        assert!(status.success(), "{status}");
        assert!(fs::read_dir(&self.folder).unwrap().next().is_none(), "the folder is free again");
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = rustix::mount::unmount(&self.folder, rustix::mount::UnmountFlags::DETACH);
    }
}

/// A folder with a destination, a mount point, and the image of a disk.
struct Fixture(tempfile::TempDir);

impl Fixture {
    fn new(size: u64) -> Self {
        let fixture = Self(tempfile::tempdir().unwrap());
        for folder in ["dest", "then", "in"] {
            fs::create_dir(fixture.path(folder)).unwrap();
        }
        fixture.sparse("disk", size);
        fs::write(fixture.path("in/fstab"), content()).unwrap();
        fixture
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    fn sparse(&self, name: &str, size: u64) -> String {
        fs::File::create(self.path(name)).unwrap().set_len(size).unwrap();
        self.path(name)
    }

    /// Puts a volume where its partition begins.
    fn put(&self, volume: &str, at: u64) {
        let disk = fs::File::options().write(true).open(self.path("disk")).unwrap();
        disk.write_all_at(&fs::read(volume).unwrap(), at).unwrap();
    }

    fn back_up(&self) {
        succeed(lunway(&["backup", "run", &self.path("disk"), &self.path("dest"), "--json"]));
    }

    /// A volume of ext4 with the file in `in`.
    fn ext4(&self, size: u64) -> Option<String> {
        let volume = self.sparse("ext4", size);
        run(&program("mkfs.ext4")?, &["-q", "-d", &self.path("in"), &volume]);
        Some(volume)
    }

    /// What is in the destination beside points.
    fn left(&self) -> Vec<String> {
        let names = fs::read_dir(self.path("dest")).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with("mount-")).collect()
    }
}

/// The content of the file that is looked for: of no whole block.
fn content() -> Vec<u8> {
    (0..300_001_u32).flat_map(|number| number.wrapping_mul(0x9E37_79B9).to_le_bytes()).take(300_001).collect()
}

#[test]
fn each_file_system_of_a_disk_is_mounted_read_only_and_what_is_not_one_is_said() {
    let fixture = Fixture::new(200 * MIB);
    let tools = ["sfdisk", "mkfs.fat", "mcopy", "mkntfs", "ntfscp", "mkswap"].map(program);
    let [Some(sfdisk), Some(mkfat), Some(mcopy), Some(mkntfs), Some(ntfscp), Some(mkswap)] = tools else {
        return;
    };
    // Entries 1 and 14, as on the disks of clouds: the number is that of the entry, not of the place.
    let table = "label: gpt\n14 : start=1MiB, size=40MiB\n1 : start=41MiB, size=60MiB\n2 : start=101MiB, size=40MiB\n\
                 3 : start=141MiB, size=8MiB\n4 : start=149MiB, size=8MiB\n5 : start=157MiB, size=8MiB\n";
    fs::write(fixture.path("table"), table).unwrap();
    let script = format!("{} -q {} < {}", sfdisk.display(), fixture.path("disk"), fixture.path("table"));
    run(Path::new("sh"), &["-c", &script]);
    let [fat, ntfs, swap] = ["fat", "ntfs", "swap"].map(|name| fixture.sparse(name, 40 * MIB));
    let file = fixture.path("in/fstab");
    run(&mkfat, &["-F", "16", "-n", "EFI", &fat]);
    run(&mcopy, &["-i", &fat, &file, "::A long name.conf"]);
    fixture.put(&fat, MIB);
    let Some(ext4) = fixture.ext4(60 * MIB) else { return };
    fixture.put(&ext4, 41 * MIB);
    run(&mkntfs, &["-q", "-F", &ntfs]);
    run(&ntfscp, &["-f", &ntfs, &file, "fstab"]);
    fixture.put(&ntfs, 101 * MIB);
    fs::File::options().write(true).open(&swap).unwrap().set_len(8 * MIB).unwrap();
    run(&mkswap, &["-q", &swap]);
    fixture.put(&swap, 141 * MIB);
    fs::write(fixture.path("luks"), b"LUKS\xba\xbe\0\x02").unwrap();
    fixture.put(&fixture.path("luks"), 149 * MIB);
    fixture.back_up();
    // The disk is another one by now.
    fs::remove_file(fixture.path("disk")).unwrap();
    let Some(files) = Files::start(&fixture) else { return };
    let mut found = Vec::new();
    for (name, file, missing) in
        [("p1", "fstab", "fuse2fs"), ("p14", "A long name.conf", "fusefat"), ("p2", "fstab", "ntfs-3g")]
    {
        let (by, said) = files.by(name);
        if by.is_none() {
            assert!(said.contains(missing), "{name}: {said}");
            machine_lacks(&format!("a driver for {name} of a disk: {said}"));
            continue;
        }
        found.push(by.unwrap().to_owned());
        let path = files.folder.join(name).join(file);
        assert!(fs::read(&path).unwrap() == content(), "{name}");
        let refused = fs::write(files.folder.join(name).join("new"), "x").unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem, "{name}: {refused}");
    }
    println!("mounted by {found:?}");
    assert_eq!(files.by("p3"), (None, String::new()));
    let (by, said) = files.by("p4");
    assert!(by.is_none() && said.contains("cryptsetup open --readonly"), "{said}");
    assert_eq!(files.by("p5"), (None, String::new()));
    // Each volume is a file as well.
    let luks = fs::read(files.volume("p4")["file"].as_str().unwrap()).unwrap();
    assert!(luks.len() as u64 == 8 * MIB && luks.starts_with(b"LUKS"));
    let prune = ["backup", "prune", &fixture.path("dest"), "--keep-last", "1"];
    let refused = finish(lunway(&prune), PATIENCE);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("reads a point of it"), "{refused:?}");
    files.end();
    assert_eq!(fixture.left(), Vec::<String>::new());
    succeed(lunway(&["backup", "verify", &fixture.path("dest")]));
}

/// A file whose inode is in the journal alone.
#[test]
fn a_journal_is_replayed_and_the_point_stays_as_it_was() {
    if !rustix::process::geteuid().is_root() {
        return machine_lacks("root, to mount");
    }
    let fixture = Fixture::new(64 * MIB);
    let Some(mkfs) = program("mkfs.ext4") else { return };
    run(&mkfs, &["-q", &fixture.path("disk")]);
    let there =
        Command::new("mount").args(["-o", "loop", &fixture.path("disk"), &fixture.path("in")]).output();
    let there = there.unwrap();
    if !there.status.success() {
        return machine_lacks(&format!("a mount of ext4: {}", String::from_utf8_lossy(&there.stderr)));
    }
    fs::create_dir(fixture.path("in/etc")).unwrap();
    fs::write(fixture.path("in/etc/fstab"), content()).unwrap();
    fs::File::open(fixture.path("in/etc/fstab")).unwrap().sync_all().unwrap();
    fixture.back_up();
    // The same in a repository that only the owner of a key reads, beside which nothing may lie in the clear.
    let [key, repository, series] = ["key", "repo", "repo/disk"].map(|name| fixture.path(name));
    let recipient = succeed(lunway(&["backup", "key", "new", &key]));
    fs::create_dir(&repository).unwrap();
    succeed(lunway(&["backup", "init", &repository, "--for", recipient.trim()]));
    succeed(lunway(&["backup", "run", &fixture.path("disk"), &series, "--key-file", &key]));
    run(Path::new("umount"), &[&fixture.path("in")]);
    let then = fixture.path("then");
    let encrypted = ["backup", "mount", &series, "--files", &then, "--json", "--key-file", &key];
    let in_folder = ["backup", "mount", &fixture.path("dest"), "--files", &then, "--json"];
    for words in [&in_folder[..], &encrypted] {
        let Some(files) = Files::start_as(&fixture, lunway(words)) else { return };
        assert_eq!(files.by("disk").0, Some("the kernel"));
        assert!(fs::read(files.folder.join("disk/etc/fstab")).unwrap() == content(), "{words:?}");
        let beside = fs::read_dir(&series).unwrap().map(|entry| entry.unwrap().file_name());
        let mut beside = beside.filter_map(|name| name.into_string().ok());
        assert!(!beside.any(|name| name.contains("throwaway")), "{words:?}");
        files.end();
    }
    // On the point itself it still has to be replayed.
    succeed(lunway(&["backup", "restore", &fixture.path("dest"), &fixture.path("out")]));
    let debugfs = run(Path::new("debugfs"), &["-R", "stats", &fixture.path("out")]);
    assert!(debugfs.contains("needs_recovery"), "{debugfs}");
}

#[test]
fn a_user_gets_volumes_as_files_which_a_program_mounts() {
    if !rustix::process::geteuid().is_root() {
        return machine_lacks("root, to be another user");
    }
    let (Some(setpriv), Some(_), Some(_)) = (program("setpriv"), program("fuse2fs"), program("fusermount3"))
    else {
        return;
    };
    let fixture = Fixture::new(32 * MIB);
    // A file that only root may read there.
    fs::set_permissions(fixture.path("in/fstab"), fs::Permissions::from_mode(0o600)).unwrap();
    let Some(ext4) = fixture.ext4(32 * MIB) else { return };
    fs::rename(ext4, fixture.path("disk")).unwrap();
    fixture.back_up();
    fs::set_permissions(fixture.0.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let in_dest = fs::read_dir(fixture.path("dest")).unwrap().map(|entry| entry.unwrap().path());
    for path in in_dest.chain(["dest", "then"].map(|name| fixture.path(name).into())) {
        chown(path, Some(STRANGER), Some(STRANGER)).unwrap();
    }
    // The program may lie where a stranger cannot go.
    let own = fixture.path("lunway");
    fs::copy(env!("CARGO_BIN_EXE_lunway"), &own).unwrap();
    let mut command = Command::new(setpriv);
    command.args([&format!("--reuid={STRANGER}"), &format!("--regid={STRANGER}"), "--clear-groups", &own]);
    command.args(["backup", "mount", &fixture.path("dest"), "--files", &fixture.path("then"), "--json"]);
    let Some(files) = Files::start_as(&fixture, command) else { return };
    let (by, said) = files.by("disk");
    let shown = format!("fuse2fs -o ro,fakeroot {}/.volumes/disk FOLDER", files.folder.display());
    assert!(by.is_none() && said.contains(&shown), "{said}");
    // What is said works.
    let elsewhere = fixture.path("in");
    chown(&elsewhere, Some(STRANGER), Some(STRANGER)).unwrap();
    fs::remove_file(fixture.path("in/fstab")).unwrap();
    let as_stranger = |words: &str| {
        let mut command = Command::new(program("setpriv").unwrap());
        command.args([&format!("--reuid={STRANGER}"), &format!("--regid={STRANGER}"), "--clear-groups"]);
        command.args(words.split(' ')).stderr(Stdio::null()).output().unwrap().stdout
    };
    as_stranger(&shown.replace("FOLDER", &elsewhere));
    let found = as_stranger(&format!("cat {elsewhere}/fstab"));
    as_stranger(&format!("fusermount3 -u {elsewhere}"));
    assert!(found == content(), "{} bytes", found.len());
    files.end();
    assert_eq!(fixture.left(), Vec::<String>::new());
}

#[test]
fn what_a_kill_leaves_is_cleared_by_the_next_one() {
    let fixture = Fixture::new(32 * MIB);
    let Some(ext4) = fixture.ext4(32 * MIB) else { return };
    fs::rename(ext4, fixture.path("disk")).unwrap();
    fixture.back_up();
    let Some(mut killed) = Files::start(&fixture) else { return };
    assert!(fs::read(killed.folder.join("disk/fstab")).unwrap() == content());
    killed.child.kill().unwrap();
    killed.child.wait().unwrap();
    assert!(fs::read_dir(&killed.folder).is_err(), "the mount is dead");
    let Some(again) = Files::start(&fixture) else { return };
    assert!(fs::read(again.folder.join("disk/fstab")).unwrap() == content());
    std::mem::forget(killed);
    again.end();
    // A kill left its throw-away file as well, which the next prune removes.
    succeed(lunway(&["backup", "prune", &fixture.path("dest"), "--keep-last", "1"]));
    until(|| fixture.left().is_empty());
}

/// A volume group's volume in two pieces, as LVM2's own tools lay it out.
#[test]
fn a_logical_volume_in_pieces_is_mounted_by_its_name() {
    if ["pvcreate", "lvcreate"].iter().any(|name| program(name).is_none()) {
        return;
    }
    let fixture = Fixture::new(160 * MIB);
    let made = Command::new("losetup").args(["--find", "--show", &fixture.path("disk")]).output().unwrap();
    if !made.status.success() {
        return machine_lacks(&format!("loop devices: {}", String::from_utf8_lossy(&made.stderr)));
    }
    let device = String::from_utf8(made.stdout).unwrap().trim().to_owned();
    let config = format!(
        "devices{{filter=[\"a|^{device}$|\",\"r|.*|\"] use_devicesfile=0}} backup{{backup=0 archive=0}} \
         activation{{udev_sync=0 udev_rules=0}}"
    );
    for command in [
        format!("pvcreate -q {device}"),
        format!("vgcreate -q vg {device}"),
        "lvcreate -q -an -Zn -Wn -n root -l 8 vg".to_owned(),
        "lvcreate -q -an -Zn -Wn -n other -l 4 vg".to_owned(),
        "lvextend -q -l +8 vg/root".to_owned(),
    ] {
        let words: Vec<&str> = command.split(' ').collect();
        let more = ["--driverloaded", "n", "--config", &config];
        run(Path::new(words[0]), &[&more, &words[1..]].concat());
    }
    run(Path::new("losetup"), &["--detach", &device]);
    // Extents of 4 MiB behind the first MiB: eight of them, four of `other`, eight more.
    let Some(ext4) = fixture.ext4(64 * MIB) else { return };
    let bytes = fs::read(ext4).unwrap();
    let disk = fs::File::options().write(true).open(fixture.path("disk")).unwrap();
    let (first, second) = bytes.split_at(32 << 20);
    disk.write_all_at(first, MIB).unwrap();
    disk.write_all_at(second, 49 * MIB).unwrap();
    fixture.back_up();
    let Some(files) = Files::start(&fixture) else { return };
    assert!(fs::read(files.volume("vg-root")["file"].as_str().unwrap()).unwrap() == bytes);
    assert!(fs::read(files.folder.join("vg-root/fstab")).unwrap() == content());
    assert_eq!(files.volume("vg-other")["size"], 16 * MIB);
    files.end();
}
