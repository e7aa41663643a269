//! `lunway lun snapshot`: a served VHDX goes on in a new file. Its initiators notice nothing, and a kill at any moment
//! leaves the configuration and the files in step.
//!
//! 10 kills; `LUNWAY_SNAPSHOT_KILLS=100` makes more.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "support/daemon.rs"]
mod daemon;
#[path = "support/initiator.rs"]
mod initiator;
mod support;

use std::env;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use daemon::{Daemon, folder_of_vhdx, lun, refused};
use initiator::Initiator;
use lunway_target::Config;
use serde_json::Value;
use support::{IQN, PATIENCE, finish, lunway, succeed};

/// Bytes of a block of the disk.
const BLOCK: usize = 512;

/// The device of LUN 0 in the file, and its serial number.
fn configured(folder: &Path) -> (String, Option<String>) {
    let config = Config::from_file(&folder.join("lunway.toml")).unwrap();
    let lun = config.targets[0].lun(0).unwrap();
    (lun.device.to_string(), lun.serial.clone())
}

fn served_serial(folder: &Path) -> String {
    let list: Value = serde_json::from_str(&succeed(lun(folder, "list", &[IQN, "--json"]))).unwrap();
    list["luns"][0]["status"]["serial"].as_str().unwrap().to_owned()
}

/// WRITE (10) of a block that is full of a number; an error where the daemon is gone.
fn write(initiator: &mut Initiator, block: u32, number: u32) -> std::io::Result<()> {
    let data = number.to_be_bytes().repeat(BLOCK / 4);
    let at = block.to_be_bytes();
    let written = initiator.execute(0, &[0x2A, 0, at[0], at[1], at[2], at[3], 0, 0, 1, 0], &data, 0)?;
    assert_eq!(written.status, 0, "{:?}", written.sense);
    Ok(())
}

/// The number in a block, by READ (10).
fn read(initiator: &mut Initiator, block: u32) -> u32 {
    let at = block.to_be_bytes();
    let read = initiator.execute(0, &[0x28, 0, at[0], at[1], at[2], at[3], 0, 0, 1, 0], &[], BLOCK).unwrap();
    assert_eq!(read.status, 0, "{:?}", read.sense);
    let number = u32::from_be_bytes(read.data_in[..4].try_into().unwrap());
    assert!(read.data_in.chunks(4).all(|found| found == number.to_be_bytes()), "block {block}");
    number
}

#[test]
fn a_served_disk_goes_on_in_a_new_file_and_its_initiators_notice_nothing() {
    let folder = folder_of_vhdx("");
    let path = |name: &str| folder.path().join(name);
    let daemon = Daemon::start(folder.path());
    let serial = served_serial(folder.path());
    let mut initiator = Initiator::ready(&daemon.address, IQN);
    write(&mut initiator, 7, 1).unwrap();
    let before = fs::read_to_string(path("lunway.toml")).unwrap();

    let plan = succeed(lun(folder.path(), "snapshot", &[IQN, "0", "disk-1.avhdx", "--dry-run"]));
    assert!(plan.contains("disk-1.avhdx") && plan.contains("dry run"), "{plan}");
    for (arguments, why) in [
        (&[IQN, "0", "disk.vhdx"][..], "already exists"),
        (&[IQN, "0", "/disk-1.avhdx", "--generation", "99"], "generation"),
        (&[IQN, "1", "disk-1.avhdx"], "only a disk in a VHDX file"),
        (&[IQN, "9", "disk-1.avhdx"], "there is no lun 9"),
    ] {
        let said = refused(lun(folder.path(), "snapshot", arguments));
        assert!(said.contains(why), "{said}");
    }
    assert_eq!(fs::read_to_string(path("lunway.toml")).unwrap(), before);
    assert!(!path("disk-1.avhdx").exists());

    let said = succeed(lun(folder.path(), "snapshot", &[IQN, "0", "disk-1.avhdx"]));
    assert!(said.contains("disk-1.avhdx"), "{said}");
    // The session goes on, without a unit attention.
    assert_eq!(read(&mut initiator, 7), 1);
    write(&mut initiator, 7, 2).unwrap();
    initiator.flush().unwrap();
    let text = fs::read_to_string(path("lunway.toml")).unwrap();
    assert!(text.starts_with("# here\n") && text.contains("disk-1.avhdx"), "{text}");
    assert!(succeed(lun(folder.path(), "list", &[IQN])).contains("disk-1.avhdx"));
    assert_eq!(served_serial(folder.path()), serial);
    // The old file can be read beside it, and holds what was.
    let back = path("back.img");
    let frozen = format!("readonly:{}", path("disk.vhdx").display());
    succeed(lunway(&["copy", &frozen, back.to_str().unwrap()]));
    assert_eq!(fs::read(&back).unwrap()[7 * BLOCK..][..4], 1u32.to_be_bytes());

    daemon.kill();
    let daemon = Daemon::start(folder.path());
    assert_eq!(served_serial(folder.path()), serial, "the same disk after a restart");
    let mut initiator = Initiator::ready(&daemon.address, IQN);
    assert_eq!(read(&mut initiator, 7), 2);
    drop(initiator);
    daemon.kill();
    if let Some(qemu) = lunway_foreign::program("qemu-img") {
        for (name, number) in [("disk.vhdx", 1u32), ("disk-1.avhdx", 2)] {
            let merged = name == "disk-1.avhdx";
            if merged {
                succeed(lunway(&["disk", "merge", path(name).to_str().unwrap()]));
            }
            let (disk, raw) = (path("disk.vhdx"), path("qemu.img"));
            let _ = fs::remove_file(&raw);
            let converted =
                Command::new(&qemu).args(["convert", "-f", "vhdx", "-O", "raw"]).args([&disk, &raw]).status();
            assert!(converted.unwrap().success());
            assert_eq!(fs::read(&raw).unwrap()[7 * BLOCK..][..4], number.to_be_bytes(), "{name}");
        }
    }
}

#[test]
fn a_daemon_that_cannot_keep_its_configuration_makes_no_snapshot() {
    let folder = folder_of_vhdx("");
    let socket = folder.path().join("api.sock");
    let mut command = lunway(&["serve", "--listen", "127.0.0.1:0", "--iqn", IQN, "--open", "--socket"]);
    command.arg(&socket).args(["--lun", "0=disk.vhdx"]).current_dir(folder.path());
    command.env("LUNWAY_RUNTIME_DIR", folder.path().join("run"));
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    support::until(|| socket.exists());
    let said = refused(lun(folder.path(), "snapshot", &[IQN, "0", "disk-1.avhdx"]));
    assert!(said.contains("start the daemon with one"), "{said}");
    child.kill().unwrap();
    child.wait().unwrap();
    let mut names: Vec<_> =
        fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.retain(|name| name.to_string_lossy().contains("vhdx"));
    assert_eq!(names, ["disk.vhdx"]);
}

#[test]
fn after_a_kill_in_a_snapshot_the_disk_is_whole_in_the_file_that_the_configuration_names() {
    let kills: u32 = env::var("LUNWAY_SNAPSHOT_KILLS").map_or(10, |count| count.parse().unwrap());
    let folder = folder_of_vhdx("");
    let (mut switched, mut serial, mut random) = (0, None, 0x9E37_79B9_7F4A_7C15u64);
    // What each block must at least hold: numbers only grow.
    let mut flushed = [0; 8];
    for round in 0..=kills {
        let daemon = Daemon::start(folder.path());
        let served = Some(served_serial(folder.path()));
        assert_eq!(*serial.get_or_insert(served.clone()), served, "round {round}: another disk");
        let mut initiator = Initiator::ready(&daemon.address, IQN);
        for (block, least) in flushed.iter_mut().enumerate() {
            let found = read(&mut initiator, block as u32);
            assert!(found >= *least, "round {round}, block {block}: {found} after a flush of {least}");
            *least = found;
        }
        if round == kills {
            break;
        }
        let writing = thread::spawn(move || {
            for number in 1.. {
                for block in 0..flushed.len() {
                    if write(&mut initiator, block as u32, (round << 16) + number).is_err() {
                        return flushed;
                    }
                }
                if initiator.flush().is_err() {
                    return flushed;
                }
                flushed.fill((round << 16) + number);
            }
            flushed
        });
        let before = configured(folder.path()).0;
        let leaf = format!("disk-{round}.avhdx");
        let command = lun(folder.path(), "snapshot", &[IQN, "0", &leaf]);
        let asking = thread::spawn(move || finish(command, PATIENCE));
        // From before the command has started to behind its end.
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        thread::sleep(Duration::from_micros(random % 25_000));
        daemon.kill();
        flushed = writing.join().unwrap();
        let answered = asking.join().unwrap().status.success();
        let after = configured(folder.path()).0;
        assert!(after == before || after.ends_with(&leaf), "{after}");
        assert!(!answered || after != before, "round {round}: it was answered, and is not kept");
        switched += u32::from(after != before);
    }
    println!("{kills} kills; {switched} times the snapshot had been made");
    let (device, _) = configured(folder.path());
    let device = folder.path().join(Path::new(device.trim_start_matches("vhdx:")));
    assert!(succeed(lunway(&["disk", "check", device.to_str().unwrap()])).contains("no errors"));
}
