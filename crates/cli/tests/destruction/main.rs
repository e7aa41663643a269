//! What a slip of the hand must not destroy: each option that names a place to write, against each thing that may stand
//! there.
//!
//! The options are read from the command line's own help, so that a new one must be given its row in [`ROLES`].

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../support/mod.rs"]
mod support;

mod block_device;
mod file_systems;
mod full;
mod in_use;
mod measuring;
mod overwriting;
mod planted;
mod raw_disks;
mod reports;
mod silent;
mod tails;
mod vanishing;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use support::places::{commands, help, places};
use support::{PATIENCE, finish, image, lunway, succeed};

/// What an option's or argument's place is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Read, or opened as a device, whose own rules protect it.
    Reads,
    /// Results go there.
    Report,
    /// A copy's destination.
    Copy,
    /// A virtual disk that is made there.
    NewDisk,
    /// A VHDX file that is read or changed.
    Vhdx,
    /// A configuration that is made there.
    NewFile,
    /// A socket that is made there.
    Socket,
    /// A folder on which something is mounted.
    Folder,
    /// A folder to which backups are added.
    Backups,
    /// What a point is restored to.
    Restore,
    /// The socket of a daemon that is asked.
    Asks,
}

/// Every option and argument whose value is a place. `*` stands for every command; the first that fits counts.
const ROLES: &[(&str, &str, Role)] = &[
    ("*", "--json-file", Role::Report),
    ("*", "--html-file", Role::Report),
    ("bench", "--json-plus-file", Role::Report),
    ("bench", "--stream", Role::Report),
    ("*", "SRC", Role::Reads),
    ("*", "DST", Role::Copy),
    ("*", "DEST", Role::Backups),
    // Made in an empty folder alone, and changed by its own users: `served_backup/repository.rs`.
    ("*", "REPO", Role::Reads),
    ("*", "--key-file", Role::Reads),
    // Never over something that is there.
    ("backup key new", "FILE", Role::Reads),
    ("backup key show", "FILE", Role::Reads),
    ("backup restore", "OUT", Role::Restore),
    ("backup mount", "--nbd", Role::Socket),
    ("backup mount", "--fuse", Role::Folder),
    ("backup mount", "--files", Role::Folder),
    // Made, or opened as the device that it became: `pulled.rs`.
    ("backup mount", "--into", Role::Reads),
    ("disk create", "--from", Role::Reads),
    ("doctor", "--from", Role::Reads),
    ("doctor", "--root", Role::Reads),
    ("disk create", "--parent", Role::Vhdx),
    ("disk create", "FILE", Role::NewDisk),
    ("disk snapshot", "CHILD", Role::NewDisk),
    ("disk convert", "--parent", Role::Vhdx),
    ("disk rebase", "--parent", Role::Vhdx),
    ("disk merge", "--into", Role::Vhdx),
    ("disk info", "FILE", Role::Vhdx),
    ("disk map", "FILE", Role::Vhdx),
    ("disk check", "FILE", Role::Vhdx),
    ("disk repair", "FILE", Role::Vhdx),
    ("disk resize", "FILE", Role::Vhdx),
    ("disk snapshot", "FILE", Role::Vhdx),
    ("disk merge", "FILE", Role::Vhdx),
    ("disk rebase", "FILE", Role::Vhdx),
    ("disk compact", "FILE", Role::Vhdx),
    ("disk set", "FILE", Role::Vhdx),
    ("disk mount", "FILE", Role::Vhdx),
    ("*", "DEVICE", Role::Reads),
    ("*", "--job", Role::Reads),
    ("report show", "FILE", Role::Reads),
    ("config apply", "FILE", Role::Reads),
    ("report diff", "OLD", Role::Reads),
    ("report diff", "NEW", Role::Reads),
    ("report diff", "--old", Role::Reads),
    ("report diff", "--new", Role::Reads),
    ("*", "NAME|FILE.toml", Role::Reads),
    ("*", "--chap", Role::Reads),
    ("*", "--mutual-chap", Role::Reads),
    ("*", "--token-file", Role::Reads),
    ("*", "--device", Role::Reads),
    ("*", "--lun", Role::Reads),
    ("serve", "--config", Role::Reads),
    ("serve", "--save", Role::NewFile),
    ("serve", "--socket", Role::Socket),
    ("attach", "--nbd", Role::Socket),
    ("attach", "--fuse", Role::Folder),
    ("disk mount", "--nbd", Role::Socket),
    ("disk mount", "--fuse", Role::Folder),
    ("*", "--socket", Role::Asks),
    // Made by the daemon, which refuses what exists: `snapshot.rs`.
    ("lun snapshot", "CHILD", Role::Asks),
];

/// The number of the row in [`ROLES`].
fn row(command: &str, place: &str) -> Option<usize> {
    let fits = |(of, name, _): &(&str, &str, Role)| {
        (*of == "*" || *of == command) && (*name == place || place.starts_with(&format!("{name}[")))
    };
    ROLES.iter().position(fits)
}

/// The command with what it must have beside the option, so that it would write results within a moment.
fn working(command: &str, folder: &Path) -> Option<Vec<String>> {
    let [saved, other, points] =
        ["saved.html", "other.html", "points"].map(|name| folder.join(name).to_str().unwrap().to_owned());
    let words: Vec<&str> = match command {
        "backup report" => {
            if fs::create_dir(&points).is_ok() {
                succeed(lunway(&["backup", "run", "ram:1M", &points]));
            }
            vec!["backup", "report", &points]
        }
        "bench" => vec!["bench", "ram:1M", "--rw", "read", "--size", "64K"],
        "compare" => vec![
            "compare", "ram:1M", "ram:1M", "--rw", "randread", "--size", "1M", "--pairs", "6", "--rounds",
            "1", "--time", "20ms", "--ramp", "0ms",
        ],
        "net" => vec!["net", "--time", "10ms"],
        "lab run" => vec!["lab", "run", "two-lanes"],
        "demo" => vec!["demo"],
        "disk inside" => vec!["disk", "inside", "ram:1M"],
        "doctor" => vec!["doctor", "--list"],
        "report show" => vec!["report", "show", &saved],
        "report diff" => {
            // A run is not compared with itself.
            succeed(lunway(&["bench", "ram:1M", "--rw", "read", "--size", "64K", "--html-file", &other]));
            vec!["report", "diff", &saved, &other]
        }
        _ => return None,
    };
    Some(words.into_iter().map(str::to_owned).collect())
}

/// What the commands that make or change one thing need beside its place.
struct Beside {
    /// A VHDX file without a fault.
    good: String,
    /// The name of a file that is not there.
    child: String,
    /// The same of a socket.
    socket: String,
    /// A folder with a backup.
    backups: String,
}

impl Beside {
    fn new(folder: &Path) -> Self {
        let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
        let (good, child) = (path("good.vhdx"), path("new.avhdx"));
        succeed(lunway(&["disk", "create", &good, "--size", "4M"]));
        let backups = path("backups");
        fs::create_dir(&backups).unwrap();
        succeed(lunway(&["backup", "run", "ram:1M", &backups]));
        Self { good, child, socket: format!("unix:{}", path("socket")), backups }
    }

    /// The command with `place` as the value of its option or argument, sound in all else.
    fn command(&self, command: &str, option: &str, place: &str) -> Vec<String> {
        let Self { good, child, socket, backups } = self;
        let unix = format!("unix:{place}");
        let serve = ["serve", "--listen", "127.0.0.1:0", "--open", "--lun", "0=ram:1M"];
        let words: Vec<&str> = match (command, option) {
            ("serve", "--save") => [&serve[..], &["--no-api", "--save", place]].concat(),
            ("serve", "--socket") => [&serve[..], &["--socket", place]].concat(),
            ("backup mount", "--nbd") => vec!["backup", "mount", backups, "--nbd", &unix],
            ("backup mount", "--fuse" | "--files") => vec!["backup", "mount", backups, option, place],
            ("attach", "--nbd") => vec!["attach", "ram:1M", "--nbd", &unix],
            ("attach", "--fuse") => vec!["attach", "ram:1M", "--fuse", place],
            ("disk create", "FILE") => vec!["disk", "create", place, "--size", "1M"],
            ("disk create", "--parent") => vec!["disk", "create", child, "--parent", place],
            ("disk convert", "--parent") => vec!["disk", "convert", "ram:1M", child, "--parent", place],
            ("disk rebase", "--parent") => vec!["disk", "rebase", good, "--parent", place],
            ("disk merge", "--into") => vec!["disk", "merge", good, "--into", place],
            ("disk mount", "--nbd") => vec!["disk", "mount", good, "--nbd", &unix],
            ("disk mount", "--fuse") => vec!["disk", "mount", good, "--fuse", place],
            ("disk mount", "FILE") => vec!["disk", "mount", place, "--nbd", socket],
            ("disk set", "FILE") => vec!["disk", "set", place, "--new-id"],
            ("disk rebase", "FILE") => vec!["disk", "rebase", place, "--parent", good],
            ("disk snapshot", "FILE") => vec!["disk", "snapshot", place, child],
            ("disk snapshot", "CHILD") => vec!["disk", "snapshot", good, place],
            ("disk resize", "FILE") => vec!["disk", "resize", place, "512K", "--shrink", "--force"],
            (command, "FILE") => command.split(' ').chain([place]).collect(),
            other => panic!("{other:?} has no row here"),
        };
        words.into_iter().map(str::to_owned).collect()
    }
}

fn reports() -> Vec<(String, String)> {
    places_of(Role::Report)
}

/// Commands and their places of a role.
fn places_of(wanted: Role) -> Vec<(String, String)> {
    let (mut found, mut unknown, mut rows) = (Vec::new(), Vec::new(), vec![false; ROLES.len()]);
    for command in commands() {
        let name = command.join(" ");
        for (place, _) in places(&help(&command)) {
            let Some(row) = row(&name, &place) else {
                unknown.push((name.clone(), place));
                continue;
            };
            rows[row] = true;
            if ROLES[row].2 == wanted {
                found.push((name.clone(), place));
            }
        }
    }
    assert!(unknown.is_empty(), "give these a role: {unknown:#?}");
    let unused: Vec<_> = ROLES.iter().zip(rows).filter(|(_, used)| !used).map(|(row, _)| row).collect();
    assert!(unused.is_empty(), "no command has these: {unused:#?}");
    assert!(!found.is_empty(), "nothing is {wanted:?}");
    found
}

/// Makes a disk image of 1 MiB without a zero in it.
fn data(path: &Path) {
    fs::write(path, vec![0xa5; 1 << 20]).unwrap();
}

/// What may stand where something is to be written, all with data in it.
struct Taken {
    folder: tempfile::TempDir,
    files: Vec<(String, Vec<u8>)>,
    link: String,
}

impl Taken {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let [disk, report, vhdx, inside, link] =
            ["disk.img", "report.json", "base.vhdx", "full/inside", "link"].map(path);
        data(Path::new(&disk));
        succeed(lunway(&["bench", "ram:1M", "--rw", "read", "--size", "64K", "--json-file", &report]));
        succeed(lunway(&["disk", "create", &vhdx, "--from", &disk]));
        fs::create_dir(path("full")).unwrap();
        fs::write(&inside, "inside").unwrap();
        symlink(&disk, &link).unwrap();
        let files = [disk, report, vhdx, inside].map(|file| (file.clone(), fs::read(&file).unwrap()));
        Self { files: files.into(), link, folder }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    /// The places, one by one.
    fn places(&self) -> Vec<String> {
        let files = self.files[..3].iter().map(|(file, _)| file.clone());
        files.chain([self.link.clone(), self.path("full")]).collect()
    }

    /// Runs each command, which must fail, say something of the place, and leave everything as it was.
    fn survives(&self, place: &str, commands: Vec<Vec<&str>>) {
        for words in commands {
            let output = finish(lunway(&words), PATIENCE);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(matches!(output.status.code(), Some(1 | 2)), "{words:?}: {said}");
            // Of a link some say where it leads.
            let names =
                [place, "disk.img"].map(|name| Path::new(name).file_name().unwrap().to_str().unwrap());
            let told = format!("{said}{}", String::from_utf8_lossy(&output.stdout));
            assert!(names.iter().any(|name| told.contains(name)), "{words:?}: {told}");
            for (file, before) in &self.files {
                assert!(fs::read(file).is_ok_and(|now| now == *before), "{words:?} changed {file}");
            }
            assert!(Path::new(&self.link).is_symlink(), "{words:?}");
        }
    }
}

#[test]
fn no_option_that_names_a_place_for_results_destroys_what_stands_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    succeed(lunway(&[
        "bench",
        "ram:1M",
        "--rw",
        "read",
        "--size",
        "64K",
        "--html-file",
        path("saved.html").to_str().unwrap(),
    ]));
    let (disk, link) = (path("disk.img"), path("link"));
    data(&disk);
    symlink(&disk, &link).unwrap();
    let before = fs::read(&disk).unwrap();
    let rows = reports();
    assert!(rows.len() >= 14, "{rows:?}");
    for (command, option) in &rows {
        let words =
            working(command, folder.path()).unwrap_or_else(|| panic!("`{command}` has no row in working()"));
        for (place, sentence) in [
            (disk.to_str().unwrap(), "is not a lunway report"),
            (link.to_str().unwrap(), "is not a lunway report"),
            (folder.path().to_str().unwrap(), "it is a directory"),
            ("/proc/result", "cannot write /proc/result"),
        ] {
            let output =
                finish(lunway(&[&words[..], &[option.clone(), place.to_owned()]].concat()), PATIENCE);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(1), "{command} {option} {place}: {said}");
            assert!(said.contains(sentence), "{command} {option} {place}: {said}");
        }
        assert!(fs::read(&disk).unwrap() == before, "{command} {option} changed the disk image");
        assert!(link.is_symlink(), "{command} {option}");
    }
}

#[test]
fn a_new_disk_takes_no_place_that_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (disk, link, base) = (path("disk.img"), path("link"), path("base.vhdx"));
    data(Path::new(&disk));
    symlink(&disk, &link).unwrap();
    succeed(lunway(&["disk", "create", &base, "--size", "4M"]));
    let before = [&disk, &base].map(|file| fs::read(file).unwrap());
    let nothing = path("nothing");
    symlink(path("nowhere"), &nothing).unwrap();
    for (command, place) in places_of(Role::NewDisk) {
        for taken in [&disk, &link, &base, &nothing, &folder.path().to_str().unwrap().to_owned()] {
            let made: Vec<Vec<&str>> = match command.as_str() {
                "disk create" => vec![
                    vec!["disk", "create", taken, "--size", "1M"],
                    vec!["disk", "create", taken, "--size", "1M", "--fixed"],
                    vec!["disk", "create", taken, "--from", "ram:1M"],
                    vec!["disk", "create", taken, "--parent", &base],
                ],
                "disk snapshot" => vec![vec!["disk", "snapshot", &base, taken]],
                other => panic!("`{other}` {place} has no row here"),
            };
            for words in made {
                let output = finish(lunway(&words), PATIENCE);
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                assert_eq!(output.status.code(), Some(1), "{words:?}: {said}");
                let refused =
                    said.contains("already exists") || said.contains("is not the name of a VHDX file");
                assert!(refused, "{words:?}: {said}");
            }
        }
    }
    assert!([&disk, &base].map(|file| fs::read(file).unwrap()) == before);
    assert!(Path::new(&link).is_symlink() && Path::new(&nothing).is_symlink());
}

#[test]
fn an_older_report_is_replaced_and_a_device_that_is_measured_is_not_even_by_force() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (disk, report) = (path("disk.img"), path("a.json"));
    data(Path::new(&disk));
    let before = fs::read(&disk).unwrap();
    for _ in 0..2 {
        succeed(lunway(&["bench", &disk, "--rw", "read", "--size", "64K", "--json-file", &report]));
    }
    let over = ["bench", &disk, "--rw", "read", "--size", "64K", "--json-file", &disk, "--force"];
    let output = finish(lunway(&over), PATIENCE);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("it is the device"));
    let (b, c) = (path("b.img"), path("c.img"));
    fs::copy(&disk, &b).unwrap();
    fs::copy(&disk, &c).unwrap();
    // `--json` takes no file: what follows it is one more device.
    let slip =
        ["compare", "--json", &b, &c, "--rw", "read", "--pairs", "2", "--rounds", "1", "--time", "10ms"];
    let _ = finish(lunway(&slip), PATIENCE);
    assert!(fs::read(&b).unwrap() == before && fs::read(&c).unwrap() == before);
    assert!(fs::read(&disk).unwrap() == before);
}

#[test]
fn no_copy_destroys_what_stands_at_its_destination() {
    let taken = Taken::new();
    let source = taken.path("source");
    // Other data than those of the disk image, but the same size.
    fs::write(&source, vec![0x5a; 1 << 20]).unwrap();
    for (command, _) in places_of(Role::Copy) {
        for place in taken.places() {
            let words: Vec<&str> = command.split(' ').chain([source.as_str(), &place]).collect();
            taken.survives(&place, vec![words.clone(), [&words[..], &["--resume"]].concat()]);
        }
    }
}

#[test]
fn no_restore_destroys_what_stands_where_it_goes() {
    let taken = Taken::new();
    let (source, backups) = (taken.path("source"), taken.path("backups"));
    fs::write(&source, vec![0x5a; 1 << 20]).unwrap();
    fs::create_dir(&backups).unwrap();
    succeed(lunway(&["backup", "run", &source, &backups]));
    for (command, _) in places_of(Role::Restore) {
        for place in taken.places() {
            taken.survives(&place, vec![command.split(' ').chain([backups.as_str(), &place]).collect()]);
        }
    }
    // Not even with the word for it: a point's own file.
    let inside = fs::read_dir(&backups).unwrap().map(|entry| entry.unwrap().path());
    let inside = inside.into_iter().find(|path| path.extension().is_some_and(|end| end == "vhdx")).unwrap();
    let before = fs::read(&inside).unwrap();
    let over = ["backup", "restore", &backups, inside.to_str().unwrap(), "--overwrite"];
    let output = finish(lunway(&over), PATIENCE);
    assert!(String::from_utf8_lossy(&output.stderr).contains("lies in the destination"));
    assert!(fs::read(&inside).unwrap() == before);
}

#[test]
fn a_backup_adds_to_a_folder_and_touches_nothing_else_in_it() {
    let taken = Taken::new();
    let commands: Vec<String> = places_of(Role::Backups).into_iter().map(|(command, _)| command).collect();
    assert!(commands.len() >= 7, "{commands:?}");
    for place in taken.places().iter().filter(|place| !place.ends_with("full")) {
        taken.survives(place, vec![vec!["backup", "run", "ram:1M", place], vec!["backup", "list", place]]);
    }
    let folder = taken.path("full");
    for name in ["other.incomplete", "000001.journal.incomplete", "lease", "a.json"] {
        fs::write(Path::new(&folder).join(name), "of somebody else").unwrap();
    }
    for _ in 0..2 {
        succeed(lunway(&["backup", "run", "ram:1M", &folder]));
    }
    succeed(lunway(&["backup", "verify", &folder]));
    succeed(lunway(&["backup", "prune", &folder, "--keep-last", "1"]));
    for name in ["other.incomplete", "000001.journal.incomplete", "lease", "a.json"] {
        assert_eq!(fs::read_to_string(Path::new(&folder).join(name)).unwrap(), "of somebody else");
    }
    assert_eq!(fs::read_to_string(Path::new(&folder).join("inside")).unwrap(), "inside");
}

#[test]
fn no_other_command_destroys_what_stands_where_it_makes_or_changes_something() {
    let taken = Taken::new();
    let beside = Beside::new(taken.folder.path());
    let places: Vec<String> = taken.places();
    for (role, without) in
        [(Role::NewFile, ""), (Role::Socket, ""), (Role::Folder, ""), (Role::Vhdx, "base.vhdx")]
    {
        for (command, option) in places_of(role) {
            for place in places.iter().filter(|place| without.is_empty() || !place.ends_with(without)) {
                let words = beside.command(&command, &option, place);
                taken.survives(place, vec![words.iter().map(String::as_str).collect()]);
                assert!(!Path::new(&beside.child).exists(), "{command} {option} {place}");
            }
        }
    }
}

#[test]
fn a_copy_onto_itself_or_through_a_link_to_nothing_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (disk, link, second, nothing) = (path("disk.img"), path("link"), path("second"), path("nothing"));
    data(Path::new(&disk));
    symlink(&disk, &link).unwrap();
    fs::hard_link(&disk, &second).unwrap();
    symlink(path("nowhere"), &nothing).unwrap();
    let before = fs::read(&disk).unwrap();
    for (source, place, code, sentence) in [
        (&disk, &disk, 2, "are the same file"),
        (&disk, &link, 2, "are the same file"),
        (&second, &disk, 2, "are the same file"),
        (&disk, &format!("raw:{second}"), 2, "are the same file"),
        (&disk, &nothing, 1, "is a symbolic link to a file that does not exist"),
    ] {
        let output = finish(lunway(&["copy", source, place, "--overwrite"]), PATIENCE);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{source} {place}: {said}");
        assert!(said.contains(sentence), "{source} {place}: {said}");
    }
    assert!(fs::read(&disk).unwrap() == before);
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 4, "{left:?}");
}

#[test]
fn a_copy_asks_before_it_overwrites_data() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (source, full, empty) = (path("source"), path("full"), path("empty"));
    image(Path::new(&source), 8 << 20, 1 << 20);
    fs::write(&full, vec![7; 8 << 20]).unwrap();
    fs::write(&empty, vec![0; 8 << 20]).unwrap();
    succeed(lunway(&["copy", &source, &empty, "--verify"]));
    let output = finish(lunway(&["copy", &source, &full]), PATIENCE);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("holds data, first seen at offset 0: --overwrite"), "{said}");
    assert!(fs::read(&full).unwrap().iter().all(|&byte| byte == 7));
    succeed(lunway(&["copy", &source, &full, "--verify", "--overwrite"]));
    support::assert_same_bytes(Path::new(&source), Path::new(&full));
}

#[test]
fn an_interrupted_copy_leaves_a_partial_file_that_a_later_one_completes() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (source, copied, partial) = (path("source"), path("copied"), path("copied.partial"));
    image(Path::new(&source), 64 << 20, 32 << 20);
    let slow = format!("rate:8M:{source}");
    let begun = || fs::metadata(&partial).is_ok_and(|file| std::os::unix::fs::MetadataExt::blocks(&file) > 0);
    let output = support::interrupted(lunway(&["copy", &slow, &copied]), begun);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("copied.partial is incomplete; --resume continues it"), "{said}");
    assert!(!Path::new(&copied).exists(), "what is not complete has not its name");
    let output = finish(lunway(&["copy", &source, &copied]), PATIENCE);
    assert!(String::from_utf8_lossy(&output.stderr).contains("is left from an interrupted copy"));
    succeed(lunway(&["copy", &source, &copied, "--resume", "--verify"]));
    support::assert_same_bytes(Path::new(&source), Path::new(&copied));
    assert!(!Path::new(&partial).exists());
}

/// A file that was made for a copy stayed where the copy was refused after that, and no message named it.
#[test]
fn a_copy_that_is_refused_once_its_file_is_made_leaves_none() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let source = path("source");
    image(Path::new(&source), 8 << 20, 1 << 20);
    let too_long = format!("null:{}", 1u64 << 62);
    for words in [
        // A virtual disk is not opened past the page cache.
        &["copy", &source, &path("new.vhdx"), "--direct"][..],
        // No file system has room for the name of its end.
        &["copy", &too_long, &path("new.img")],
    ] {
        let output = finish(lunway(words), PATIENCE);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{words:?}: {said}");
        let left: Vec<_> =
            fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["source"], "{words:?}: {said}");
    }
}

#[test]
fn what_is_left_of_another_copy_is_not_continued() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (source, copied, partial) = (path("source"), path("copied"), path("copied.partial"));
    image(Path::new(&source), 8 << 20, 1 << 20);
    fs::write(&partial, vec![7; 4 << 20]).unwrap();
    let output = finish(lunway(&["copy", &source, &copied, "--resume"]), PATIENCE);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("belongs to another copy; --overwrite starts again"), "{said}");
    assert!(fs::read(&partial).unwrap() == vec![7; 4 << 20] && !Path::new(&copied).exists());
    succeed(lunway(&["copy", &source, &copied, "--overwrite", "--verify"]));
    support::assert_same_bytes(Path::new(&source), Path::new(&copied));
    assert!(!Path::new(&partial).exists());
}

#[test]
fn a_file_that_came_while_a_copy_ran_is_kept_and_so_is_the_copy() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (source, copied, partial) = (path("source"), path("copied"), path("copied.partial"));
    image(Path::new(&source), 8 << 20, 8 << 20);
    let copy = support::Running::start(lunway(&["copy", &format!("rate:8M:{source}"), &copied]));
    support::until(|| Path::new(&partial).exists());
    fs::write(&copied, "somebody's").unwrap();
    let output = copy.end(PATIENCE);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("the copy is complete as ") && said.contains("copied.partial"), "{said}");
    assert_eq!(fs::read_to_string(&copied).unwrap(), "somebody's");
    support::assert_same_bytes(Path::new(&source), Path::new(&partial));
}
