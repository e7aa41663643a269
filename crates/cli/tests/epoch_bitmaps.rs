//! Change tracking shown to others: epochs of a LUN as dirty bitmaps of its snapshot's export, read by `nbdinfo`, by
//! QEMU and by our own backup.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "support/daemon.rs"]
mod daemon;
#[path = "support/initiator.rs"]
mod initiator;
mod support;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use daemon::{Daemon, command, lun};
use initiator::Initiator;
use serde_json::Value;
use support::{IQN, PATIENCE, assert_same_bytes, finish, succeed};

const SIZE: u64 = 64 << 20;

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::File::create(folder.path().join("disk.img")).unwrap().set_len(SIZE).unwrap();
    fs::create_dir(folder.path().join("points")).unwrap();
    let text = format!(
        "listen = [\"127.0.0.1:0\"]\nstate_dir = \"state\"\ncores = 1\n[[target]]\nname = \"{IQN}\"\nopen = true\n\
         [[target.lun]]\nid = 0\ndevice = \"raw:disk.img\"\ntrack = true\n"
    );
    fs::write(folder.path().join("lunway.toml"), text).unwrap();
    folder
}

/// WRITE (10) of 4 KiB.
fn write(initiator: &mut Initiator, offset: u64, byte: u8) {
    let mut cdb = [0x2a, 0, 0, 0, 0, 0, 0, 0, 8, 0];
    cdb[2..6].copy_from_slice(&((offset / 512) as u32).to_be_bytes());
    let done = initiator.execute(0, &cdb, &[byte; 4096], 0).unwrap();
    assert_eq!(done.status, 0, "{done:?}");
}

fn close_epoch(folder: &Path) -> String {
    let closed = succeed(lun(folder, "epoch", &["close", IQN, "0"]));
    closed.trim().to_owned()
}

/// Name and URI of a new snapshot.
fn snapshot(folder: &Path) -> (String, String) {
    let made = succeed(command(folder, &["snapshot", "create", &format!("{IQN}/0"), "--json"]));
    let made: Value = serde_json::from_str(&made).unwrap();
    let made = &made["snapshots"][0];
    let socket = made["socket"].as_str().unwrap();
    (made["snapshot"]["name"].as_str().unwrap().to_owned(), format!("nbd+unix:///?socket={socket}"))
}

fn run(program: &Path, words: &[&str]) -> String {
    let output = Command::new(program).args(words).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{words:?}: {said}{}", String::from_utf8_lossy(&output.stderr));
    said
}

/// Offsets and lengths that a map of `nbdinfo` says to be dirty.
fn dirty(map: &str) -> Vec<(u64, u64)> {
    let map: Vec<Value> = serde_json::from_str(map).unwrap();
    let ranges = map.iter().filter(|range| range["type"] == 1);
    ranges.map(|range| (range["offset"].as_u64().unwrap(), range["length"].as_u64().unwrap())).collect()
}

fn backup(folder: &Path, uri: &str, more: &[&str]) -> Value {
    let words = [&["backup", "run", uri, "points", "--sample", "0", "--json"], more].concat();
    serde_json::from_str(&succeed(command(folder, &words))).unwrap()
}

#[test]
fn others_read_what_changed_since_an_epoch_and_nothing_that_came_after_the_snapshot() {
    let folder = folder();
    let folder = folder.path();
    let daemon = Daemon::start(folder);
    let mut initiator = Initiator::ready(&daemon.address, IQN);
    write(&mut initiator, 0, 1);
    write(&mut initiator, 9 << 20, 1);
    let first = close_epoch(folder);
    let (name, uri) = snapshot(folder);
    let full = backup(folder, &uri, &[]);
    succeed(command(folder, &["snapshot", "delete", &name]));

    write(&mut initiator, 3 << 20, 2);
    write(&mut initiator, (3 << 20) + 65_536, 2);
    let second = close_epoch(folder);
    write(&mut initiator, 40 << 20, 3);
    let (name, uri) = snapshot(folder);
    // What is written later belongs to no epoch that it shows, and is not in it.
    write(&mut initiator, 3 << 20, 4);
    let third = close_epoch(folder);
    fs::copy(folder.join("disk.img"), folder.join("later.img")).unwrap();

    if let Some(nbdinfo) = lunway_foreign::program("nbdinfo") {
        let info = run(&nbdinfo, &["--list", &uri]);
        for epoch in [&first, &second] {
            assert!(info.contains(&format!("qemu:dirty-bitmap:{epoch}")), "{info}");
        }
        assert!(info.contains("base:allocation") && !info.contains(&third), "{info}");
        let map = |epoch: &str| {
            let context = format!("--map=qemu:dirty-bitmap:{epoch}");
            dirty(&run(&nbdinfo, &["--json", &context, &uri]))
        };
        assert_eq!(map(&first), [(3 << 20, 131_072), (40 << 20, 65_536)]);
        assert_eq!(map(&second), [(3 << 20, 65_536), (40 << 20, 65_536)]);
    }
    if let Some(qemu_img) = lunway_foreign::program("qemu-img") {
        let socket = uri.split_once("socket=").unwrap().1;
        let image = format!(
            "driver=nbd,server.type=unix,server.path={socket},x-dirty-bitmap=qemu:dirty-bitmap:{first}"
        );
        let map = run(&qemu_img, &["map", "--output=json", "--image-opts", &image]);
        let map: Vec<Value> = serde_json::from_str(&map).unwrap();
        // As libvirt's tools read it: dirty is what is not data.
        let ranges = map.iter().filter(|range| range["data"] == false);
        let ranges: Vec<_> = ranges
            .map(|range| (range["start"].as_u64().unwrap(), range["length"].as_u64().unwrap()))
            .collect();
        assert_eq!(ranges, [(3 << 20, 131_072), (40 << 20, 65_536)], "{map:?}");
    }
    // Our own backup, as one of a foreign server: it reads what changed, and has what the snapshot shows.
    let since = full["point"].as_str().unwrap();
    let more = ["--bitmap", &first, "--since", since, "--rename-source"];
    let increment = backup(folder, &uri, &more);
    let read = increment["read_bytes"].as_u64().unwrap();
    assert!((196_608..=3 << 20).contains(&read), "{increment}");
    let point = increment["point"].as_str().unwrap();
    succeed(command(folder, &["backup", "restore", "points", "restored.img", "--point", point]));
    succeed(command(folder, &["copy", &uri, "snapshot.img"]));
    assert_same_bytes(&folder.join("restored.img"), &folder.join("snapshot.img"));
    let differs =
        fs::read(folder.join("later.img")).unwrap() != fs::read(folder.join("snapshot.img")).unwrap();
    assert!(differs, "the write after the snapshot is not in it");

    // An epoch that is not kept any more is an error of that question alone.
    succeed(lun(folder, "epoch", &["release", IQN, "0", &first]));
    if let Some(nbdinfo) = lunway_foreign::program("nbdinfo") {
        let context = format!("--map=qemu:dirty-bitmap:{first}");
        let mut command = Command::new(&nbdinfo);
        command.args([&context, &uri]);
        assert!(!finish(command, PATIENCE).status.success());
        let context = format!("--map=qemu:dirty-bitmap:{second}");
        run(&nbdinfo, &[&context, &uri]);
    }
    succeed(command(folder, &["snapshot", "delete", &name]));
}
