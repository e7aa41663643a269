//! A block device with data on it, against each option and argument that names a place to write.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::support::{PATIENCE, finish, lunway, succeed};
use super::{Beside, Role, data, places_of, reports, working};

/// A loop device; detached when dropped.
struct LoopDevice {
    losetup: PathBuf,
    device: String,
}

impl LoopDevice {
    /// `None`: this machine cannot, which is said.
    fn attach(disk: &Path) -> Option<Self> {
        let losetup = lunway_foreign::program("losetup")?;
        if !rustix::process::geteuid().is_root() {
            lunway_foreign::not_run("losetup: root");
            return None;
        }
        let attached = Command::new(&losetup).args(["--find", "--show"]).arg(disk).output().unwrap();
        if !attached.status.success() {
            lunway_foreign::not_run("loop devices (this machine has none)");
            return None;
        }
        Some(Self { losetup, device: String::from_utf8(attached.stdout).unwrap().trim().to_owned() })
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new(&self.losetup).args(["--detach", &self.device]).status();
    }
}

#[test]
fn a_block_device_with_data_is_written_by_no_command_without_the_word_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let disk = folder.path().join("disk.img");
    data(&disk);
    let Some(attached) = LoopDevice::attach(&disk) else { return };
    let device = attached.device.as_str();
    let beside = Beside::new(folder.path());
    // Other data than those of the device, but the same size.
    let source = path("source");
    fs::write(&source, vec![0x5a; 1 << 20]).unwrap();
    let backups = path("backups-of-source");
    fs::create_dir(&backups).unwrap();
    succeed(lunway(&["backup", "run", &source, &backups]));
    let short = ["bench", "ram:1M", "--rw", "read", "--size", "64K"];
    succeed(lunway(&[&short[..], &["--html-file", &path("saved.html")]].concat()));
    let before = fs::read(device).unwrap();
    let words = |words: &str| words.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let mut commands: Vec<Vec<String>> = Vec::new();
    for (command, option) in reports() {
        let results = working(&command, folder.path()).unwrap();
        commands.push([results, vec![option, device.to_owned()]].concat());
    }
    for role in [Role::NewFile, Role::Socket, Role::Folder, Role::NewDisk, Role::Vhdx] {
        for (command, option) in places_of(role) {
            commands.push(beside.command(&command, &option, device));
        }
    }
    for (command, _) in places_of(Role::Copy) {
        commands.push([words(&command), vec![source.clone(), device.to_owned()]].concat());
    }
    for (command, _) in places_of(Role::Restore) {
        commands.push([words(&command), vec![backups.clone(), device.to_owned()]].concat());
    }
    commands.push(words(&format!("backup run ram:1M {device}")));
    commands.push(words(&format!("bench {device} --rw write --size 64K")));
    for words in commands {
        let output = finish(lunway(&words), PATIENCE);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(matches!(output.status.code(), Some(1 | 2)), "{words:?}: {said}");
        // `bench` has one device, and says "the device".
        let named = said.contains(device) || said.contains("the device holds data");
        assert!(named, "{words:?} does not say where: {said}");
        assert!(fs::read(device).unwrap() == before, "{words:?} wrote to the device");
    }
    assert!(fs::metadata(device).is_ok_and(|node| !node.is_file()), "the node is no longer that of a device");
}
