//! `lunway backup`: the command, other programs on its files, kills at any moment, folders that are full or read-only.
//!
//! 12 kills; `LUNWAY_BACKUP_KILLS=200` makes more.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::env;
use std::fs;
use std::fs::Permissions;
use std::os::unix::fs::FileExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use support::{PATIENCE, assert_same_bytes, finish, image, lunway, succeed};

/// A folder for backups, and a disk of 24 MiB.
struct BackupFixture {
    folder: tempfile::TempDir,
}

impl BackupFixture {
    fn new() -> Self {
        let fixture = Self { folder: tempfile::tempdir().unwrap() };
        fs::create_dir(fixture.path("dest")).unwrap();
        image(Path::new(&fixture.path("disk")), 24 << 20, 6 << 20);
        fixture
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    /// Writes something at an offset of the disk.
    fn change(&self, offset: u64, byte: u8) {
        let disk = fs::File::options().write(true).open(self.path("disk")).unwrap();
        disk.write_all_at(&[byte; 5000], offset).unwrap();
    }

    fn json(&self, words: &[&str]) -> Value {
        serde_json::from_str(&succeed(lunway(&[words, &["--json"]].concat()))).unwrap()
    }

    fn run(&self) -> Value {
        self.json(&["backup", "run", &self.path("disk"), &self.path("dest")])
    }

    /// Restores a point, and compares it with a file.
    fn check(&self, point: &str, expected: &str) {
        let out = self.path("out");
        let _ = fs::remove_file(&out);
        succeed(lunway(&["backup", "restore", &self.path("dest"), &out, "--point", point]));
        assert_same_bytes(Path::new(&out), Path::new(expected));
    }

    /// Compares what libvhdi reads in a chain, the newest file first, with the disk. Returns `false` if it is missing.
    fn check_by_libvhdi(&self, chain: &[PathBuf]) -> bool {
        // Debian's modules are for Debian's Python.
        let python = Path::new("/usr/bin/python3");
        let import = Command::new(python).args(["-c", "import pyvhdi"]).stderr(Stdio::null()).status();
        if !import.is_ok_and(|import| import.success()) {
            lunway_foreign::not_run("pyvhdi");
            return false;
        }
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../vhdx/tests/readers/read.py");
        let mut read = Command::new(python);
        read.arg(script).args(["libvhdi", &self.path("read")]).args(chain);
        succeed(read);
        assert_same_bytes(Path::new(&self.path("read")), Path::new(&self.path("disk")));
        true
    }

    /// A run has sent something, and has not ended.
    fn has_begun(&self) -> bool {
        let files = fs::read_dir(self.path("dest")).unwrap().flatten();
        let mut disks = files.filter(|file| file.file_name().to_str().unwrap().ends_with(".vhdx.incomplete"));
        disks.any(|file| file.metadata().is_ok_and(|file| file.len() > 6 << 20))
    }

    /// A run has recorded something, and has not ended.
    fn has_recorded(&self) -> bool {
        let mut files = fs::read_dir(self.path("dest")).unwrap().flatten();
        files.any(|file| file.file_name().to_str().unwrap().ends_with(".journal.incomplete"))
    }

    /// The VHDX file of a generation.
    fn file(&self, generation: u32) -> PathBuf {
        let begins = format!("{generation:06}-");
        let names = fs::read_dir(self.path("dest")).unwrap().map(|entry| entry.unwrap().path());
        let is_it = |path: &PathBuf| {
            let name = path.file_name().unwrap().to_str().unwrap();
            name.starts_with(&begins) && name.ends_with(".vhdx")
        };
        names.into_iter().find(is_it).unwrap()
    }
}

/// The mount point of a share that is not mounted was called undamaged.
#[test]
fn a_folder_without_points_is_an_error_to_those_who_ask_for_its_points() {
    let empty = tempfile::tempdir().unwrap();
    let fixture = empty.path().to_str().unwrap();
    for words in [&["verify"][..], &["status"], &["list"], &["prune", "--keep-last", "1"]] {
        let output = finish(lunway(&[&["backup", words[0], fixture], &words[1..]].concat()), PATIENCE);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("holds no points: is its share mounted?"), "{words:?}: {said}");
    }
    assert_eq!(std::fs::read_dir(fixture).unwrap().count(), 0);
}

#[test]
fn arguments_the_other_way_round_are_told_with_the_right_command() {
    let fixture = BackupFixture::new();
    let [disk, dest] = ["disk", "dest"].map(|name| fixture.path(name));
    let said = |words: &[&str]| {
        let output = finish(lunway(words), PATIENCE);
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let right =
        format!("the source comes first, then the folder of its points: `lunway backup run {disk} {dest}`");
    let run = said(&["backup", "run", &dest, &disk]);
    assert!(run.contains(&right), "{run}");
    fixture.run();
    let new = fixture.path("new.vhdx");
    let run = said(&["backup", "run", &dest, &new]);
    assert!(run.contains(&format!("`lunway backup run {new} {dest}`")), "{run}");
    for disk in [&disk, &new] {
        let restore = said(&["backup", "restore", disk, &dest]);
        let right = format!(
            "the folder of the points comes first, then the disk: `lunway backup restore {dest} {disk}`"
        );
        assert!(restore.contains(&right), "{restore}");
    }
    assert!(!fs::exists(&new).unwrap());
    let copy = said(&["copy", &disk, &format!("point:{dest}")]);
    assert!(copy.contains("is never written: the source comes first"), "{copy}");
}

#[test]
fn points_are_made_listed_verified_restored_and_pruned() {
    let fixture = BackupFixture::new();
    let first = fixture.run();
    assert_eq!((&first["kind"], &first["why"]), (&"full".into(), &"it is the first".into()));
    fs::copy(fixture.path("disk"), fixture.path("one")).unwrap();
    fixture.change(3 << 20, 1);
    let second = fixture.run();
    assert_eq!(second["kind"], "increment");
    assert_eq!(second["sent_bytes"], 64 << 10, "{second}");
    fixture.change(9 << 20, 2);
    let third = fixture.run();
    let list = fixture.json(&["backup", "list", &fixture.path("dest")]);
    assert_eq!(list.as_array().unwrap().len(), 3);
    assert_eq!(list[1]["parent"], first["point"]);
    fixture.check("latest", &fixture.path("disk"));
    fixture.check(&first["point"].as_str().unwrap()[..9], &fixture.path("one"));
    let verified = fixture.json(&["backup", "verify", &fixture.path("dest")]);
    assert_eq!(verified["whole"].as_array().unwrap().len(), 3, "{verified}");
    let status = fixture.json(&["backup", "status", &fixture.path("dest")]);
    assert_eq!((&status["newest_verified"], &status["chain_files"]), (&third["point"], &3.into()));

    // A point that lacks a file is not listed as sound.
    let leaves = fixture.file(2).with_extension("leaves");
    fs::rename(&leaves, fixture.path("aside")).unwrap();
    assert_eq!(fixture.json(&["backup", "list", &fixture.path("dest")])[1]["state"], "damaged");
    let states = || {
        let list = fixture.json(&["backup", "list", &fixture.path("dest")]);
        list.as_array().unwrap().iter().map(|point| point["state"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(states(), ["verified", "damaged", "damaged"], "nor is what lies on it");
    let status = fixture.json(&["backup", "status", &fixture.path("dest")]);
    assert_eq!(status["newest_verified"], first["point"]);
    fs::rename(fixture.path("aside"), &leaves).unwrap();
    assert_eq!(states(), ["verified"; 3]);

    // The same where no copy of its manifest can be read.
    let copies = ["json", "copy.json"].map(|end| fixture.file(1).with_extension(end));
    let manifests = copies.each_ref().map(|copy| fs::read(copy).unwrap());
    copies.iter().for_each(|copy| fs::write(copy, "nothing").unwrap());
    assert_eq!(states(), ["damaged"; 2]);
    let listed = finish(lunway(&["backup", "list", &fixture.path("dest")]), PATIENCE);
    let told = String::from_utf8_lossy(&listed.stderr).into_owned();
    assert!(told.contains(&format!("point {} cannot be read", first["point"].as_str().unwrap())), "{told}");
    copies.iter().zip(manifests).for_each(|(copy, bytes)| fs::write(copy, bytes).unwrap());

    // The newest one is not passed over.
    let copies = ["json", "copy.json"].map(|end| fixture.file(3).with_extension(end));
    let manifests = copies.each_ref().map(|copy| fs::read(copy).unwrap());
    copies.iter().for_each(|copy| fs::write(copy, "nothing").unwrap());
    let (dest, new) = (fixture.path("dest"), fixture.path("new"));
    let about = format!("point {} cannot be read", third["point"].as_str().unwrap());
    let point = format!("point:{dest}");
    let by_time = ["backup", "restore", &dest, &new, "--point", "2099-01-01"];
    for words in
        [&by_time[..4], &by_time, &["copy", &point, &new], &["backup", "mount", &dest, "--nbd", "unix:n"]]
    {
        let refused = finish(lunway(words), PATIENCE);
        let told = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(1) && told.contains(&about), "{words:?}: {told}");
    }
    assert!(!fs::exists(&new).unwrap());
    copies.iter().zip(manifests).for_each(|(copy, bytes)| fs::write(copy, bytes).unwrap());

    // The damaged disk gets back what differs.
    fixture.change(12 << 20, 3);
    let disk = fixture.path("disk");
    let delta = ["backup", "restore", &fixture.path("dest"), &disk, "--delta", "--overwrite"];
    let delta = fixture.json(&delta);
    assert_eq!(delta["written"].as_u64().unwrap() + delta["zeroed"].as_u64().unwrap(), 64 << 10, "{delta}");
    fixture.check("latest", &disk);

    let prune = ["backup", "prune", &fixture.path("dest"), "--keep-last", "1"];
    let dry = fixture.json(&[&prune[..], &["--dry-run"]].concat());
    assert_eq!(fixture.json(&["backup", "list", &fixture.path("dest")]).as_array().unwrap().len(), 3);
    let pruned = fixture.json(&prune);
    assert_eq!(dry["steps"], pruned["steps"]);
    let list = fixture.json(&["backup", "list", &fixture.path("dest")]);
    assert_eq!((list.as_array().unwrap().len(), &list[0]["kind"]), (1, &"full".into()));
    fixture.check("latest", &disk);
    succeed(lunway(&["backup", "verify", &fixture.path("dest")]));

    for (words, sentence) in [
        (vec!["backup", "restore", &fixture.path("dest"), "ram:1M", "--point", "zz"], "there is no point"),
        (vec!["backup", "restore", &fixture.path("dest"), "ram:1M"], "name a larger device"),
        (vec!["backup", "run", &disk, &fixture.path("nowhere")], "make the folder first"),
        (vec!["backup", "run", "ram:1M", &fixture.path("dest")], "--rename-source"),
    ] {
        let output = finish(lunway(&words), PATIENCE);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{words:?}: {said}");
        assert!(said.contains(sentence) && said.lines().count() == 1, "{words:?}: {said}");
    }
}

/// Points stayed beyond what was to be kept, and nothing said why.
#[test]
fn a_prune_says_which_points_only_a_change_of_the_disks_size_keeps() {
    let fixture = BackupFixture::new();
    let first = fixture.run();
    fixture.change(3 << 20, 1);
    let second = fixture.run();
    let disk = fs::File::options().write(true).open(fixture.path("disk")).unwrap();
    disk.set_len(disk.metadata().unwrap().len() + (4 << 20)).unwrap();
    let third = fixture.run();
    fixture.change(5 << 20, 2);
    fixture.run();
    let prune = ["backup", "prune", &fixture.path("dest"), "--keep-last", "1"];
    let dry = fixture.json(&[&prune[..], &["--dry-run"]].concat());
    let pruned = fixture.json(&prune);
    assert_eq!(pruned["steps"][0]["removed"], serde_json::json!([third["point"]]), "{pruned}");
    let not_merged = serde_json::json!([first["point"], second["point"]]);
    assert_eq!((&dry["not_merged"], &pruned["not_merged"]), (&not_merged, &not_merged));
    assert_eq!(pruned["kept"], 3);
    let said = String::from_utf8(finish(lunway(&prune), PATIENCE).stdout).unwrap();
    let why = format!(
        "0 points removed, 3 kept\nnot merged, because points of another size of the disk lie on them: {}, {}; ",
        first["point"].as_str().unwrap(),
        second["point"].as_str().unwrap()
    );
    assert!(said.starts_with(&why) && said.contains("`lunway backup run` with --full"), "{said}");
    // The way that it names.
    succeed(lunway(&["backup", "run", &fixture.path("disk"), &fixture.path("dest"), "--full"]));
    let pruned = fixture.json(&prune);
    assert_eq!((&pruned["kept"], &pruned["not_merged"]), (&1.into(), &serde_json::json!([])));
    fixture.check("latest", &fixture.path("disk"));
}

#[test]
fn qemu_reads_a_full_and_libvhdi_reads_a_chain() {
    let fixture = BackupFixture::new();
    fixture.run();
    let first = fixture.file(1);
    if let Some(qemu_img) = lunway_foreign::program("qemu-img") {
        let compared = Command::new(&qemu_img)
            .args(["compare", "-f", "vhdx", "-F", "raw"])
            .args([&first, Path::new(&fixture.path("disk"))])
            .output()
            .unwrap();
        assert!(compared.status.success(), "{}", String::from_utf8_lossy(&compared.stdout));
    }
    let mut chain = vec![first];
    for generation in 2..5 {
        fixture.change(u64::from(generation) << 20, generation as u8);
        fixture.run();
        chain.insert(0, fixture.file(generation));
    }
    fixture.check_by_libvhdi(&chain);
}

/// libvhdi 20210425 looks into the sector bitmap of every block that is not fully present. In a file that has none it
/// took the beginning of the file for it.
#[test]
fn libvhdi_reads_increments_of_whole_blocks_and_chunks_of_which_nothing_has_changed() {
    let fixture = BackupFixture::new();
    // Two chunks of 4 GiB, of which the second has 8 MiB.
    let disk = fs::File::options().write(true).open(fixture.path("disk")).unwrap();
    disk.set_len((4 << 30) + (8 << 20)).unwrap();
    disk.write_all_at(&[9; 3 << 20], 4 << 30).unwrap();
    fixture.run();
    let mut chain = vec![fixture.file(1)];
    for (generation, offset) in [(2, 2 << 20), (3, (4 << 30) + (5 << 20)), (4, 1 << 30)] {
        disk.write_all_at(&[generation as u8; 1 << 20], offset).unwrap();
        let made = fixture.run();
        assert_eq!((&made["kind"], &made["sent_bytes"]), (&"increment".into(), &(1 << 20).into()));
        chain.insert(0, fixture.file(generation));
    }
    if !fixture.check_by_libvhdi(&chain) {
        return;
    }
    // What a merge writes is read alike.
    succeed(lunway(&["backup", "prune", &fixture.path("dest"), "--keep-last", "2"]));
    let list = fixture.json(&["backup", "list", &fixture.path("dest")]);
    let files = list.as_array().unwrap().iter().rev().map(|point| point["file"].as_str().unwrap());
    let chain: Vec<PathBuf> = files.map(|file| Path::new(&fixture.path("dest")).join(file)).collect();
    assert_eq!(chain.len(), 2);
    fixture.check_by_libvhdi(&chain);
}

#[test]
fn a_run_that_is_killed_at_any_moment_is_gone_on_with() {
    let fixture = BackupFixture::new();
    let kills: u64 = env::var("LUNWAY_BACKUP_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(12);
    let mut left_incomplete = 0;
    for number in 0..kills {
        fixture.change(number * 7919 * 512 % (20 << 20), number as u8 + 1);
        // Slow enough that the kill comes in between as often as not: the first checkpoint is due after a second.
        let words = ["backup", "run", &fixture.path("disk"), &fixture.path("dest"), "--limit", "2M/s"];
        let words: Vec<&str> =
            if number % 3 == 0 { [&words[..], &["--full"]].concat() } else { words.to_vec() };
        let mut child = lunway(&words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        thread::sleep(Duration::from_millis(20 + number * 311 % 3000));
        let _ = child.kill();
        child.wait().unwrap();
        let status = finish(lunway(&["backup", "status", &fixture.path("dest"), "--json"]), PATIENCE);
        // A kill before anything was durable has left no points, which is an error.
        if status.status.success() {
            let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
            left_incomplete += status["incomplete"].as_u64().unwrap();
        }
        if number % 4 == 3 {
            fixture.run();
            fixture.check("latest", &fixture.path("disk"));
        }
    }
    fixture.run();
    fixture.check("latest", &fixture.path("disk"));
    succeed(lunway(&["backup", "verify", &fixture.path("dest")]));
    println!("{left_incomplete} of {kills} kills left an incomplete point");
    assert!(left_incomplete > 0, "no kill came in the middle");
}

/// 32 units under way took more than a minute to be sent at this rate, and the command did not end before.
#[test]
fn a_run_with_a_limit_ends_when_it_is_asked_and_sends_nothing_twice() {
    let fixture = BackupFixture::new();
    let (disk, dest) = (fixture.path("disk"), fixture.path("dest"));
    let child = support::Running::start(lunway(&["backup", "run", &disk, &dest, "--limit", "100kB/s"]));
    support::until(|| fixture.has_begun());
    child.signal(Signal::TERM);
    let asked = Instant::now();
    let output = child.end(PATIENCE);
    // 2 s on a quiet machine.
    assert!(asked.elapsed() < Duration::from_secs(20), "{:?}", asked.elapsed());
    assert!(!output.status.success());
    let made = fixture.run();
    let [changed, sent] = ["changed_bytes", "sent_bytes"].map(|key| made[key].as_u64().unwrap());
    assert!(changed > 6 << 20 && sent <= changed + (1 << 20), "{made}");
    fixture.check("latest", &disk);
}

/// Kills the first backup of a place once it has recorded something.
fn killed_first_run(fixture: &BackupFixture) {
    let source = format!("rate:2M:{}", fixture.path("disk"));
    let mut command = lunway(&["backup", "run", &source, &fixture.path("dest"), "--rename-source"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    support::until(|| fixture.has_recorded());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(fixture.has_recorded());
}

#[test]
fn the_run_after_an_interrupted_first_one_says_whether_it_went_on() {
    let journal = |fixture: &BackupFixture| {
        let files = fs::read_dir(fixture.path("dest")).unwrap().flatten().map(|file| file.path());
        files.into_iter().find(|path| path.to_str().unwrap().ends_with(".journal.incomplete")).unwrap()
    };
    let nothing = |_: &BackupFixture| {};
    let no_journal = |fixture: &BackupFixture| fs::remove_file(journal(fixture)).unwrap();
    let larger = |fixture: &BackupFixture| {
        let disk = fs::File::options().write(true).open(fixture.path("disk")).unwrap();
        disk.set_len(32 << 20).unwrap();
    };
    type Case<'a> = (&'a dyn Fn(&BackupFixture), &'a str);
    let cases: [Case; 3] = [
        (&nothing, "an incomplete point was continued"),
        (&no_journal, "had not recorded anything were removed: this run began anew"),
        (&larger, "of another kind, parent, size or source was removed: this run began anew"),
    ];
    for (meanwhile, note) in cases {
        let fixture = BackupFixture::new();
        killed_first_run(&fixture);
        meanwhile(&fixture);
        let source = format!("rate:1G:{}", fixture.path("disk"));
        let words = ["backup", "run", &source, &fixture.path("dest"), "--rename-source"];
        let output = finish(lunway(&words), PATIENCE);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && said.contains(note), "{said}");
        fixture.check("latest", &fixture.path("disk"));
    }
}

/// Runs a script of the shell that must succeed, with mounts of its own; gives what it wrote to its two outputs.
/// `None`: this machine allows no mounts, which is noted. The script ends with 77 where it may not mount.
fn in_own_mounts(script: &str) -> Option<(String, String)> {
    if !rustix::process::geteuid().is_root() {
        lunway_foreign::not_run("mounts: root");
        return None;
    }
    let mut command = Command::new(lunway_foreign::program("unshare")?);
    command.args(["--mount", "sh", "-c", script]);
    let output = finish(command, PATIENCE);
    if output.status.code() == Some(77) {
        lunway_foreign::not_run("mounts in a namespace of its own");
        return None;
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (printed, said) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{:?}\n{printed}\n{said}", output.status.code());
    Some((printed, said))
}

#[test]
fn a_full_share_says_so_and_a_read_only_one_is_listed_verified_and_restored() {
    let fixture = BackupFixture::new();
    let binary = env!("CARGO_BIN_EXE_lunway");
    let [disk, dest, out] = ["disk", "dest", "out"].map(|name| fixture.path(name));
    // A share with room for a third of the data, then for all, then one that cannot be written.
    let script = format!(
        "set -x
        mount -t tmpfs -o size=8m none {dest} || exit 77
        {binary} backup run {disk} {dest} && exit 1
        {binary} backup list {dest} --json
        mount -o remount,size=64m {dest}
        {binary} backup run {disk} {dest} --json || exit 2
        mount -o remount,ro {dest}
        {binary} backup run {disk} {dest} && exit 3
        {binary} backup verify {dest} || exit 4
        {binary} backup restore {dest} {out} || exit 5"
    );
    let Some((printed, said)) = in_own_mounts(&script) else { return };
    let said = printed + &said;
    assert!(said.contains("the destination is full: free space there"), "{said}");
    assert!(said.contains("Read-only file system"), "{said}");
    assert_same_bytes(Path::new(&out), Path::new(&disk));
}

/// The incomplete point of a disk that held more takes the room that it needs now.
#[test]
fn what_a_stopped_run_has_left_on_a_full_share_does_not_keep_a_smaller_one_from_succeeding() {
    let fixture = BackupFixture::new();
    let binary = env!("CARGO_BIN_EXE_lunway");
    let [disk, dest, out] = ["disk", "dest", "out"].map(|name| fixture.path(name));
    let script = format!(
        "set -x
        mount -t tmpfs -o size=60m none {dest} || exit 77
        dd if=/dev/urandom of={disk} bs=1M count=64 conv=notrunc
        {binary} backup run {disk} {dest} && exit 1
        cat /dev/zero > {dest}/fill
        {binary} backup run {disk} {dest} && exit 2
        rm {disk}; truncate -s 64M {disk}; dd if=/dev/urandom of={disk} bs=1M count=4 conv=notrunc
        {binary} backup run {disk} {dest} --json || exit 3
        {binary} backup restore {dest} {out} || exit 4
        {binary} backup verify {dest} || exit 5"
    );
    let Some((printed, said)) = in_own_mounts(&script) else { return };
    assert!(said.contains(&format!("`lunway backup prune {dest}/ --remove-incomplete`")), "{said}");
    assert!(printed.contains("the incomplete point of an earlier run was removed: it took "), "{printed}");
    assert_same_bytes(Path::new(&out), Path::new(&disk));
}

#[test]
fn what_a_stopped_run_has_left_is_removed_when_its_word_is_given_and_for_a_merge_without_room() {
    let fixture = BackupFixture::new();
    let binary = env!("CARGO_BIN_EXE_lunway");
    let [disk, dest] = ["disk", "dest"].map(|name| fixture.path(name));
    let script = format!(
        "set -x
        mount -t tmpfs -o size=80m none {dest} || exit 77
        change() {{ dd if=/dev/urandom of={disk} bs=1M count=$2 seek=$1 conv=notrunc; }}
        {binary} backup run {disk} {dest} || exit 1
        change 2 1; {binary} backup run {disk} {dest} || exit 2
        truncate -s 128M {disk}; change 20 100; {binary} backup run {disk} {dest} && exit 3
        cat /dev/zero > {dest}/fill
        {binary} backup prune {dest} --remove-incomplete --dry-run --json || exit 4
        ls {dest}/*.journal.incomplete || exit 5
        echo merged
        {binary} backup prune {dest} --keep-last 1 || exit 6
        ls {dest}/*.incomplete && exit 7
        rm {dest}/fill
        {binary} backup run {disk} {dest} && exit 8
        echo removed
        {binary} backup prune {dest} --remove-incomplete || exit 9
        ls {dest}/*.incomplete && exit 10
        {binary} backup prune {dest} --remove-incomplete --json || exit 11
        {binary} backup verify {dest} || exit 12"
    );
    let Some((printed, _)) = in_own_mounts(&script) else { return };
    let (dry, rest) = printed.split_once("merged\n").unwrap();
    let (merged, removed) = rest.split_once("removed\n").unwrap();
    assert!(dry.contains("\"incomplete\":\"") && dry.contains("\"bytes\":"), "{dry}");
    assert!(merged.contains("which is incomplete, removed: "), "{merged}");
    assert!(merged.contains("1 point removed, 1 kept"), "{merged}");
    assert!(
        removed.contains("which is incomplete, removed: ") && removed.contains("0 points removed, 1 kept"),
        "{removed}"
    );
}

/// A prune that needs room on a share without any cannot make some.
#[test]
fn a_share_without_any_room_is_pruned_and_verified() {
    let fixture = BackupFixture::new();
    let binary = env!("CARGO_BIN_EXE_lunway");
    let [disk, dest, out] = ["disk", "dest", "out"].map(|name| fixture.path(name));
    // Two chains. The older one goes, which needs no room; of the newer one two points would have to be merged.
    let script = format!(
        "set -x
        mount -t tmpfs -o size=96m none {dest} || exit 77
        change() {{ dd if=/dev/urandom of={disk} bs=64k count=4 seek=$1 conv=notrunc; }}
        {binary} backup run {disk} {dest} || exit 1
        change 20; {binary} backup run {disk} {dest} || exit 2
        change 40; {binary} backup run {disk} {dest} --full || exit 3
        change 60; {binary} backup run {disk} {dest} || exit 4
        cat /dev/zero > {dest}/fill
        {binary} backup verify {dest} || exit 5
        {binary} backup prune {dest} --keep-last 2 || exit 6
        cat /dev/zero >> {dest}/fill
        echo refused
        {binary} backup prune {dest} --keep-last 1 && exit 7
        ls -A {dest}
        {binary} backup verify {dest} || exit 8
        rm {dest}/fill
        {binary} backup prune {dest} --keep-last 1 || exit 9
        {binary} backup verify {dest} || exit 10
        {binary} backup restore {dest} {out} || exit 11"
    );
    let Some((printed, said)) = in_own_mounts(&script) else { return };
    let (removed, refused) = printed.split_once("refused\n").unwrap();
    assert!(removed.contains("2 points removed, 2 kept"), "{removed}");
    assert!(!refused.contains(".incomplete"), "what was begun takes no room: {refused}");
    let sentence = format!("which {dest}/ does not have; free as much there, or keep fewer points");
    assert!(said.contains("the destination is full: merging ") && said.contains(&sentence), "{said}");
    assert!(said.contains("was not noted at the destination: there is no room left for "), "{said}");
    assert!(refused.contains("1 point removed, 1 kept"), "{refused}");
    assert_same_bytes(Path::new(&out), Path::new(&disk));
}

/// The kernel lets root write to a file that nobody may write to.
#[test]
fn a_sealed_point_is_changed_by_no_command() {
    let fixture = BackupFixture::new();
    fixture.run();
    fixture.change(3 << 20, 1);
    fixture.run();
    let (first, second) = (fixture.file(1), fixture.file(2));
    let [base, point] = [&first, &second].map(|path| path.to_str().unwrap());
    let [raw, new] = [fixture.path("point.img"), fixture.path("new.avhdx")];
    fs::write(&raw, vec![1; 1 << 20]).unwrap();
    fs::set_permissions(&raw, Permissions::from_mode(0o444)).unwrap();
    let [lun, raw_lun] = [format!("0={point}"), format!("0={raw}")];
    let before = [&first, &second].map(|path| fs::read(path).unwrap());
    let serve = ["serve", "--listen", "127.0.0.1:0", "--no-api", "--open", "--lun"];
    for (words, offers) in [
        (&["disk", "compact", point][..], false),
        (&["disk", "set", point, "--new-id"], false),
        (&["disk", "resize", point, "100M"], false),
        (&["disk", "repair", point], false),
        (&["disk", "merge", point], false),
        (&["disk", "rebase", point, "--parent", base], false),
        (&["disk", "trim", point, "--discard"], false),
        (&["disk", "convert", &raw, point, "--overwrite"], false),
        (&["disk", "mount", point, "--nbd", "tcp:127.0.0.1:0"], true),
        (&["copy", "ram:1M", point, "--overwrite"], true),
        (&["copy", "ram:1M", &raw, "--overwrite"], true),
        (&[&serve[..], &[&lun]].concat(), true),
        (&[&serve[..], &[&raw_lun]].concat(), true),
    ] {
        let output = finish(lunway(words), PATIENCE);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{words:?}: {said}");
        let sentence = "write-protected (mode 0444): `chmod u+w` it first, if it may be changed";
        assert!(said.contains(sentence), "{words:?}: {said}");
        assert!(!offers || said.contains("`readonly:` before its name"), "{words:?}: {said}");
    }
    assert!([&first, &second].map(|path| fs::read(path).unwrap()) == before);
    // What only reads goes on, and a point may be a parent.
    succeed(lunway(&["copy", point, "null:1G"]));
    succeed(lunway(&["disk", "check", point]));
    succeed(lunway(&["disk", "create", &new, "--parent", point]));
    fs::remove_file(&new).unwrap();
    fixture.check("latest", &fixture.path("disk"));
    // Who means it says so.
    fs::set_permissions(&second, Permissions::from_mode(0o644)).unwrap();
    succeed(lunway(&["disk", "resize", point, "100M"]));
}

/// The place was that of the first unit that was asked for.
#[test]
fn a_backup_of_a_served_disk_that_was_cut_names_the_place() {
    let fixture = BackupFixture::new();
    let served = support::Served::start(&["--lun", &format!("0={}", fixture.path("disk"))]);
    // In the sixth unit, behind data.
    let cut = (5 << 20) + (3 << 16);
    fs::File::options().write(true).open(fixture.path("disk")).unwrap().set_len(cut).unwrap();
    for words in [
        ["backup", "run", &served.url(0), &fixture.path("dest")],
        ["copy", &served.url(0), &fixture.path("copied"), "--verify"],
    ] {
        let output = finish(lunway(&words), PATIENCE);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(&format!("at offset {cut}: the medium failed at offset {cut}")), "{said}");
    }
}
