//! `point:FOLDER?into=FILE`: a disk is back at once and stands alone later, while initiators write and the daemon is
//! killed; what it holds then is judged by `qemu-img` and libvhdi.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "support/daemon.rs"]
mod daemon;
#[path = "support/initiator.rs"]
mod initiator;
mod support;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use daemon::{Daemon, lun};
use initiator::Initiator;
use serde_json::Value;
use support::{IQN, assert_same_bytes, image, lunway, succeed, until};

const SIZE: u64 = 192 << 20;
const PIECE: u64 = 4096;
/// Kills of the daemon while the disk is not complete.
const KILLS: usize = 5;

/// A folder with a disk, its points in `points`, and a daemon's configuration that recovers it into `vm.vhdx`.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    image(Path::new(&path("disk")), SIZE, 128 << 20);
    fs::create_dir(path("points")).unwrap();
    run(folder.path());
    let disk = fs::File::options().write(true).open(path("disk")).unwrap();
    disk.write_all_at(&[9; 100_000], 5 << 20).unwrap();
    run(folder.path());
    let text = format!(
        "listen = [\"127.0.0.1:0\"]\ncores = 1\n[[target]]\nname = \"{IQN}\"\nopen = true\n\
         [[target.lun]]\nid = 0\ndevice = \"point:points?into=vm.vhdx\"\n"
    );
    fs::write(path("lunway.toml"), text).unwrap();
    folder
}

fn run(folder: &Path) -> Value {
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let run = succeed(lunway(&["backup", "run", &path("disk"), &path("points"), "--sample", "0", "--json"]));
    serde_json::from_str(&run).unwrap()
}

/// The LUN as the daemon shows it.
fn status(folder: &Path) -> Value {
    let list = succeed(lun(folder, "list", &[IQN, "--json"]));
    let list: Value = serde_json::from_str(&list).unwrap();
    let found = list["luns"].as_array().and_then(|luns| luns.first().cloned());
    found.unwrap_or_else(|| panic!("{list}"))
}

fn pull(folder: &Path) -> Value {
    let status = status(folder);
    status["status"]["pull"].clone()
}

fn held(folder: &Path) -> bool {
    let names = fs::read_dir(folder.join("points")).unwrap();
    names.map(|entry| entry.unwrap().file_name()).any(|name| name.to_str().unwrap().starts_with("hold-"))
}

/// WRITE (10) of one piece, forced to the medium or not.
fn write(initiator: &mut Initiator, piece: u64, byte: u8, forced: bool) -> std::io::Result<()> {
    let block = (piece * PIECE / 512) as u32;
    let mut cdb = [0x2a, if forced { 8 } else { 0 }, 0, 0, 0, 0, 0, 0, (PIECE / 512) as u8, 0];
    cdb[2..6].copy_from_slice(&block.to_be_bytes());
    let done = initiator.execute(0, &cdb, &[byte; PIECE as usize], 0)?;
    assert_eq!(done.status, 0, "{done:?}");
    Ok(())
}

fn read(initiator: &mut Initiator, piece: u64) -> Vec<u8> {
    let block = (piece * PIECE / 512) as u32;
    let mut cdb = [0x28, 0, 0, 0, 0, 0, 0, 0, (PIECE / 512) as u8, 0];
    cdb[2..6].copy_from_slice(&block.to_be_bytes());
    let done = initiator.execute(0, &cdb, &[], PIECE as usize).unwrap();
    assert_eq!(done.status, 0, "{done:?}");
    done.data_in[..].to_vec()
}

#[test]
fn a_recovered_disk_is_served_at_once_survives_kills_and_comes_to_stand_alone() {
    let folder = folder();
    let folder = folder.path();
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let mut model = fs::read(path("disk")).unwrap();
    let mut random = 88_172_645_463_325_252_u64;
    let mut kills = 0;
    let mut first = true;
    loop {
        let begun = Instant::now();
        let daemon = Daemon::start(folder);
        let mut initiator = Initiator::ready(&daemon.address, IQN);
        if std::mem::take(&mut first) {
            assert!(read(&mut initiator, 1300) == model[1300 << 12..1301 << 12]);
            println!("read after {:?}", begun.elapsed());
        }
        // Every acknowledged write is there, and everything else as in the point.
        for _ in 0..40 {
            random = step(random);
            let piece = random % (SIZE / PIECE);
            let expected = &model[(piece * PIECE) as usize..][..PIECE as usize];
            assert!(read(&mut initiator, piece) == expected, "piece {piece} after {kills} kills");
        }
        let mut flushed = BTreeMap::new();
        let until = Instant::now() + Duration::from_millis(120);
        while Instant::now() < until {
            random = step(random);
            let (piece, byte) = (random % (SIZE / PIECE), (random >> 40) as u8);
            write(&mut initiator, piece, byte, true).unwrap();
            flushed.insert(piece, byte);
        }
        for (piece, byte) in flushed {
            model[(piece * PIECE) as usize..][..PIECE as usize].fill(byte);
        }
        let pull = pull(folder);
        if pull.is_null() || kills == KILLS {
            println!("{kills} kills before it stood alone: {pull}");
            break daemon.kill();
        }
        assert!(held(folder), "a point that is needed is held");
        let mut prune = lunway(&["backup", "prune", &path("points"), "--keep-last", "1"]);
        let pruned = prune.output().unwrap();
        if pruned.status.success() {
            assert!(!held(folder), "it has come to stand alone meanwhile");
            break daemon.kill();
        }
        let said = String::from_utf8_lossy(&pruned.stderr);
        assert!(said.contains("vm.vhdx") && said.contains("stands alone"), "{said}");
        daemon.kill();
        kills += 1;
        assert!(held(folder), "also while no daemon serves it");
    }
    assert!(kills > 0, "it stood alone before the first kill");
    let daemon = Daemon::start(folder);
    until(|| pull(folder).is_null());
    until(|| !held(folder));
    // The share is gone, and the line of the configuration goes on.
    fs::rename(path("points"), path("gone")).unwrap();
    let mut initiator = Initiator::ready(&daemon.address, IQN);
    write(&mut initiator, 7, 77, false).unwrap();
    model[7 << 12..8 << 12].fill(77);
    initiator.flush().unwrap();
    drop(initiator);
    daemon.kill();
    let daemon = Daemon::start(folder);
    let mut initiator = Initiator::ready(&daemon.address, IQN);
    assert!(read(&mut initiator, 7) == [77; PIECE as usize]);
    daemon.kill();
    fs::rename(path("gone"), path("points")).unwrap();

    fs::write(path("model"), &model).unwrap();
    let info: Value =
        serde_json::from_str(&succeed(lunway(&["disk", "info", &path("vm.vhdx"), "--json"]))).unwrap();
    println!("{info}");
    let mode = fs::metadata(path("vm.vhdx")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "the disk may have been one that others may not read");
    succeed(lunway(&["disk", "check", &path("vm.vhdx")]));
    succeed(lunway(&["copy", &path("vm.vhdx"), &path("raw")]));
    assert_same_bytes(Path::new(&path("raw")), Path::new(&path("model")));
    if let Some(qemu_img) = lunway_foreign::program("qemu-img") {
        let compare = [&path("vm.vhdx"), &path("model")];
        let output = Command::new(&qemu_img)
            .args(["compare", "-f", "vhdx", "-F", "raw"])
            .args(compare)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    // Debian's modules are for Debian's Python.
    let python = Path::new("/usr/bin/python3");
    let import = Command::new(python).args(["-c", "import pyvhdi"]).stderr(Stdio::null()).status();
    match import.is_ok_and(|import| import.success()) {
        true => {
            let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../vhdx/tests/readers/read.py");
            let words = ["libvhdi", &path("read"), &path("vm.vhdx")];
            let read = Command::new(python).arg(script).args(words).output().unwrap();
            assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
            assert_same_bytes(Path::new(&path("read")), Path::new(&path("model")));
        }
        false => lunway_foreign::not_run("pyvhdi"),
    }
    // The points are as they were, and are pruned again.
    succeed(lunway(&["backup", "verify", &path("points")]));
    succeed(lunway(&["backup", "prune", &path("points"), "--keep-last", "1"]));
}

fn step(mut random: u64) -> u64 {
    // xorshift64, of which any sequence will do.
    random ^= random << 13;
    random ^= random >> 7;
    random ^ random << 17
}
