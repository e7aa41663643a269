//! Raw disks with data at their beginning, in their middle or at their end, against each command that opens a device to
//! write.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::support::places::{commands, help, places};
use super::support::{PATIENCE, Running, finish, lunway, succeed, until};
use super::{Role, places_of};

/// Bytes of a disk: what a look for data reads whole.
const SIZE: u64 = 8 << 20;
/// Bytes of data on it.
const LEN: u64 = 4096;

/// What a command must do without the word that allows it to destroy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Must {
    /// Nothing: exit code 1, and a sentence that says that there is data, or that the file exists.
    Refuse,
    /// Whatever does not touch the data: it measures reads, or finds nothing that is free.
    Keep,
    /// Open the disk to write, and end by a signal.
    Serve,
}

/// The commands that open `disk` where `place` of `command` names it, and may write to it; none: it is only read.
fn writing(command: &str, place: &str, disk: &str, folder: &Path) -> Vec<(Must, Vec<String>)> {
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let (source, points, nbd) = (path("source"), path("points"), format!("unix:{}", path("nbd")));
    let lun = format!("0={disk}");
    let serve = ["serve", "--listen", "127.0.0.1:0", "--no-api", "--open", "--lun"];
    let compare = ["--pairs", "6", "--rounds", "1", "--time", "10ms", "--ramp", "0ms"];
    let rows: Vec<(Must, Vec<&str>)> = match (command, place) {
        ("copy" | "disk convert", "DST") => {
            vec![(Must::Refuse, command.split(' ').chain([source.as_str(), disk]).collect())]
        }
        ("backup restore", "OUT") => vec![(Must::Refuse, vec!["backup", "restore", &points, disk])],
        ("bench", "DEVICE") => {
            let writes = ["write", "randwrite", "rw", "randrw"];
            let row = |rw| (Must::Refuse, vec!["bench", disk, "--rw", rw, "--time", "10ms"]);
            writes.into_iter().map(row).collect()
        }
        ("compare", "DEVICE" | "DEVICE[,sector=4096]") => vec![
            (Must::Keep, [&["compare", "ram:8M", disk, "--rw", "randwrite"], &compare[..]].concat()),
            (Must::Keep, [&["compare", disk, "ram:8M", "--rw", "randwrite"], &compare[..]].concat()),
        ],
        ("disk trim", "DEVICE") => vec![(Must::Keep, vec!["disk", "trim", disk, "--discard"])],
        ("disk compact", "FILE") => vec![
            (Must::Keep, vec!["disk", "compact", disk]),
            (Must::Keep, vec!["disk", "compact", disk, "--mode", "prezeroed"]),
        ],
        ("attach", "DEVICE") => vec![(Must::Serve, vec!["attach", disk, "--nbd", &nbd])],
        ("serve", "--lun") => vec![(Must::Serve, [&serve[..], &[&lun]].concat())],
        // A daemon opens it: as `serve` does.
        ("lun add" | "lun set", _) => vec![],
        // Opened for reading alone, or not at all.
        ("inspect" | "paths" | "top" | "doctor" | "disk inside", _) => vec![],
        ("copy" | "disk convert" | "backup run", "SRC") | ("disk create", "--from") => vec![],
        _ => panic!("`{command}` opens {place}: give it a row"),
    };
    let owned = |words: Vec<&str>| words.into_iter().map(str::to_owned).collect();
    rows.into_iter().map(|(must, words)| (must, owned(words))).collect()
}

/// Places that name a device.
fn devices() -> Vec<(String, String)> {
    let mut found = [places_of(Role::Copy), places_of(Role::Restore)].concat();
    for command in commands() {
        let all = places(&help(&command)).into_iter().map(|(place, _)| place);
        let is_device = |place: &String| {
            let name = place.split('[').next().unwrap_or_default();
            ["SRC", "DEVICE", "--device", "--lun", "--from"].contains(&name)
        };
        found.extend(all.filter(is_device).map(|place| (command.join(" "), place)));
    }
    found.push(("disk compact".to_owned(), "FILE".to_owned()));
    // Those of `doctor` are facts.
    found.retain(|(command, place)| (command.as_str(), place.as_str()) != ("doctor", "--from"));
    found
}

#[test]
fn data_anywhere_on_a_raw_disk_is_seen_by_each_command_that_would_write_to_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("source"), vec![0x5a; SIZE as usize]).unwrap();
    fs::create_dir(path("points")).unwrap();
    succeed(lunway(&["backup", "run", &path("source"), &path("points")]));
    let disk = path("disk.img");
    let devices = devices();
    assert!(devices.len() >= 15, "{devices:?}");
    for at in [0, SIZE / 2, SIZE - LEN] {
        for is_sparse in [true, false] {
            let _ = fs::remove_file(&disk);
            if is_sparse {
                fs::File::create(&disk).unwrap().set_len(SIZE).unwrap();
            } else {
                fs::write(&disk, vec![0; SIZE as usize]).unwrap();
            }
            fs::File::options()
                .write(true)
                .open(&disk)
                .unwrap()
                .write_all_at(&[0xa5; LEN as usize], at)
                .unwrap();
            let before = fs::read(&disk).unwrap();
            for (must, words) in
                devices.iter().flat_map(|(command, place)| writing(command, place, &disk, folder.path()))
            {
                let context = format!("{words:?}, data at {at}, sparse: {is_sparse}");
                let output = match must {
                    Must::Serve => served(&words, &disk),
                    Must::Refuse | Must::Keep => finish(lunway(&words), PATIENCE),
                };
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                assert!(fs::read(&disk).unwrap() == before, "{context} destroyed it: {said}");
                match must {
                    Must::Refuse => {
                        let seen = ["holds data", "already exists"].iter().any(|words| said.contains(words));
                        assert!(output.status.code() == Some(1) && seen, "{context}: {said}");
                    }
                    Must::Keep => assert!(matches!(output.status.code(), Some(0 | 1)), "{context}: {said}"),
                    Must::Serve => assert!(output.status.success(), "{context}: {said}"),
                }
            }
        }
    }
}

/// Runs what serves until a signal, and signals it once it has the disk open for writing.
fn served(words: &[String], disk: &str) -> std::process::Output {
    let running = Running::start(lunway(words));
    // Its lock keeps ours out. It tries more than once, so that ours of a moment does no harm.
    until(|| fs::File::open(disk).unwrap().try_lock().is_err());
    // `attach` has opened the disk when its socket is there; a signal before that ends it with an error.
    let socket = words.iter().find_map(|word| word.strip_prefix("unix:"));
    until(|| socket.is_none_or(|socket| Path::new(socket).exists()));
    running.signal(rustix::process::Signal::INT);
    running.end(PATIENCE)
}
