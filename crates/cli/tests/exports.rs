//! NBD exports of QEMU as devices, and as sources of backups that read only what a bitmap says was written.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::cell::RefCell;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use support::{assert_same_bytes, finish, free_port, image, lunway, succeed};

const SIZE: u64 = 256 << 20;

/// A program of QEMU's that serves, until this is dropped.
struct Serving(Child);

impl Serving {
    /// Waits for its socket.
    fn start(mut command: Command, socket: &Path) -> Self {
        let serving = Self(command.stdin(Stdio::null()).spawn().unwrap());
        support::until(|| socket.exists());
        serving
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn run(program: &Path, words: &[&str]) -> String {
    let mut command = Command::new(program);
    command.args(words);
    succeed(command)
}

/// QEMU's monitor.
struct Monitor(BufReader<UnixStream>);

impl Monitor {
    fn open(socket: &Path) -> Self {
        let mut monitor = Self(BufReader::new(UnixStream::connect(socket).unwrap()));
        monitor.ask("qmp_capabilities", json!({})).unwrap();
        monitor
    }

    fn ask(&mut self, command: &str, arguments: Value) -> Result<Value, Value> {
        let order = json!({ "execute": command, "arguments": arguments });
        writeln!(self.0.get_mut(), "{order}").unwrap();
        loop {
            let mut line = String::new();
            assert_ne!(self.0.read_line(&mut line).unwrap(), 0, "the monitor has ended");
            let mut said: Value = serde_json::from_str(&line).unwrap();
            match (said.get("return").is_some(), said.get("error").is_some()) {
                (true, _) => return Ok(said["return"].take()),
                (_, true) => return Err(said["error"].take()),
                // Its greeting, and events.
                _ => {}
            }
        }
    }
}

/// A disk in use by QEMU: an export that a guest writes to, and states of it that are frozen for backups.
struct Guest {
    _serving: Serving,
    monitor: RefCell<Monitor>,
    folder: tempfile::TempDir,
    qemu_io: PathBuf,
    qemu_img: PathBuf,
}

impl Guest {
    fn start() -> Option<Self> {
        let [daemon, qemu_io, qemu_img] =
            ["qemu-storage-daemon", "qemu-io", "qemu-img"].map(lunway_foreign::program);
        let (daemon, qemu_io, qemu_img) = (daemon?, qemu_io?, qemu_img?);
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        image(&folder.path().join("disk.img"), SIZE, 64 << 20);
        fs::create_dir(folder.path().join("points")).unwrap();
        let mut command = Command::new(daemon);
        command.args([
            "--blockdev",
            &format!("driver=file,node-name=disk,filename={}", at("disk.img")),
            "--nbd-server",
            &format!("addr.type=unix,addr.path={}", at("nbd.sock")),
            "--export",
            "type=nbd,id=guest,node-name=disk,name=guest,writable=on",
            "--chardev",
            &format!("socket,path={},server=on,wait=off,id=qmp", at("qmp.sock")),
            "--monitor",
            "chardev=qmp",
        ]);
        let serving = Serving::start(command, &folder.path().join("qmp.sock"));
        support::until(|| UnixStream::connect(folder.path().join("qmp.sock")).is_ok());
        let monitor = RefCell::new(Monitor::open(&folder.path().join("qmp.sock")));
        Some(Self { _serving: serving, monitor, folder, qemu_io, qemu_img })
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.path("nbd.sock"))
    }

    /// The guest writes: `write -P 7 0 64k`.
    fn writes(&self, commands: &[&str]) {
        let uri = self.uri("guest");
        let commands = commands.iter().flat_map(|command| ["-c", command]);
        let words: Vec<&str> =
            ["-f", "raw", "-t", "writeback"].into_iter().chain(commands).chain([&*uri]).collect();
        run(&self.qemu_io, &words);
    }

    /// Freezes the disk as the manual says, and begins the bitmap `next` at the same instant. What `bitmap` holds is
    /// shown with the frozen state. Returns a copy of the disk.
    fn freeze(&self, bitmap: Option<&str>, next: &str) -> PathBuf {
        let fleece = self.path("fleece.qcow2");
        run(&self.qemu_img, &["create", "-q", "-f", "qcow2", &fleece, &SIZE.to_string()]);
        let node = json!({ "driver": "qcow2", "node-name": "frozen", "backing": "disk",
            "file": { "driver": "file", "filename": fleece } });
        self.run("blockdev-add", node);
        let mut actions = vec![
            json!({ "type": "block-dirty-bitmap-add", "data": { "node": "disk", "name": next } }),
            json!({ "type": "blockdev-backup",
                "data": { "job-id": "fleece", "device": "disk", "target": "frozen", "sync": "none" } }),
        ];
        if let Some(bitmap) = bitmap {
            actions.push(json!({ "type": "block-dirty-bitmap-add",
                "data": { "node": "frozen", "name": bitmap, "disabled": true } }));
            let merged = [json!({ "node": "disk", "name": bitmap })];
            actions.push(json!({ "type": "block-dirty-bitmap-merge",
                "data": { "node": "frozen", "target": bitmap, "bitmaps": merged } }));
        }
        self.run("transaction", json!({ "actions": actions }));
        let bitmaps: Vec<&str> = bitmap.into_iter().collect();
        let export = json!({ "type": "nbd", "id": "frozen", "node-name": "frozen", "name": "vm",
            "bitmaps": bitmaps });
        self.run("block-export-add", export);
        let copy = self.folder.path().join("frozen.img");
        fs::copy(self.path("disk.img"), &copy).unwrap();
        copy
    }

    fn thaw(&self) {
        self.run("block-export-del", json!({ "id": "frozen", "mode": "hard" }));
        self.run("block-job-cancel", json!({ "device": "fleece" }));
        let delete = || self.monitor.borrow_mut().ask("blockdev-del", json!({ "node-name": "frozen" }));
        support::until(|| delete().is_ok());
        assert!(delete().is_err(), "it is gone");
    }

    fn run(&self, command: &str, arguments: Value) -> Value {
        let answer = self.monitor.borrow_mut().ask(command, arguments);
        answer.unwrap_or_else(|error| panic!("{command}: {error}"))
    }

    fn remove(&self, bitmap: &str) {
        self.run("block-dirty-bitmap-remove", json!({ "node": "disk", "name": bitmap }));
    }

    fn backup(&self, export: &str, more: &[&str]) -> Command {
        let words =
            [&["backup", "run", &self.uri(export), &self.path("points"), "--sample", "0", "--json"], more];
        lunway(&words.concat())
    }

    /// Backs the frozen state up, compares the point with it, and says what came of it.
    fn backs_up(&self, more: &[&str], state: &Path) -> Value {
        let done: Value = serde_json::from_str(&succeed(self.backup("vm", more))).unwrap();
        let out = self.folder.path().join("restored.img");
        let _ = fs::remove_file(&out);
        let point = done["point"].as_str().unwrap();
        let words = ["backup", "restore", &self.path("points"), out.to_str().unwrap(), "--point", point];
        succeed(lunway(&words));
        assert_same_bytes(state, &out);
        done
    }
}

/// How a run says why, and how much it read.
fn told(done: &Value) -> (&str, u64) {
    (done["why"].as_str().unwrap(), done["read_bytes"].as_u64().unwrap())
}

#[test]
fn of_a_disk_in_use_by_qemu_only_what_its_bitmap_says_is_read() {
    let Some(guest) = Guest::start() else { return };
    // First, all of it; the guest goes on writing while the frozen state is read.
    let state = guest.freeze(None, "b1");
    guest.writes(&["write -P 1 1M 64k", "write -P 2 100M 4k"]);
    let first = guest.backs_up(&["--next-bitmap", "b1"], &state);
    assert_eq!(first["kind"], "full", "{first}");
    assert_eq!(first["epoch"], "qemu:dirty-bitmap:b1");
    guest.thaw();

    // What was written before this instant and after the one before.
    guest.writes(&["write -P 3 200M 128k", "write -z 2M 64k", "discard 4M 1M"]);
    let state = guest.freeze(Some("b1"), "b2");
    guest.writes(&["write -P 4 150M 64k"]);
    let second = guest.backs_up(&["--next-bitmap", "b2"], &state);
    let (why, read) = told(&second);
    assert_eq!(why, "changes since epoch qemu:dirty-bitmap:b1 are known");
    assert!((64 << 10..=4 << 20).contains(&read), "{second}");
    assert_eq!(second["kind"], "increment");
    guest.thaw();
    guest.remove("b1");

    // A backup that fails after its state was frozen: the bitmap of before goes on, and the new one is given up.
    guest.freeze(Some("b2"), "b3");
    guest.writes(&["write -P 5 10M 64k"]);
    let failed = lunway(&["backup", "run", &guest.uri("vm"), &guest.path("nowhere")]);
    assert!(!finish(failed, support::PATIENCE).status.success());
    guest.thaw();
    guest.remove("b3");
    guest.writes(&["write -P 6 20M 64k"]);
    let state = guest.freeze(Some("b2"), "b4");
    let third = guest.backs_up(&["--bitmap", "b2", "--next-bitmap", "b4"], &state);
    assert_eq!(told(&third).0, "changes since epoch qemu:dirty-bitmap:b2 are known");
    assert!(told(&third).1 <= 4 << 20, "{third}");
    guest.thaw();
    guest.remove("b2");

    // By the word of the user, and of the newest point alone.
    guest.writes(&["write -P 7 30M 64k"]);
    let state = guest.freeze(Some("b4"), "b5");
    let newest = json_of(lunway(&["backup", "status", &guest.path("points"), "--json"]));
    assert_eq!(newest["newest"]["epoch"], "qemu:dirty-bitmap:b4");
    let newest = newest["newest"]["point"].as_str().unwrap().to_owned();
    let done = guest.backs_up(&["--bitmap", "b4", "--since", &newest], &state);
    let (why, read) = told(&done);
    assert!(why == format!("changes since point {newest} are known") && read <= 4 << 20, "{done}");
    guest.thaw();
    let state = guest.freeze(Some("b4"), "b6");
    let done = guest.backs_up(&["--bitmap", "b4", "--since", &newest], &state);
    let (why, read) = told(&done);
    assert!(why.contains(&format!("since point {newest}, which is not point")), "{done}");
    assert!(read > 32 << 20, "{done}");
    guest.thaw();
}

fn json_of(command: Command) -> Value {
    serde_json::from_str(&succeed(command)).unwrap()
}

#[test]
fn a_bitmap_that_may_not_count_from_the_newest_point_is_not_believed() {
    let Some(guest) = Guest::start() else { return };
    let state = guest.freeze(None, "b1");
    guest.backs_up(&["--next-bitmap", "b1"], &state);
    guest.thaw();
    // Its changes are in a bitmap that is lost, and are found all the same.
    let unbelieved = |bitmap: Option<&str>, more: &[&str], reason: &str| {
        guest.writes(&["write -P 9 50M 64k"]);
        let state = guest.freeze(bitmap, "x");
        let done = guest.backs_up(more, &state);
        let (why, read) = told(&done);
        assert!(why.starts_with("compared by hash: ") && why.contains(reason) && read > 32 << 20, "{done}");
        guest.thaw();
        guest.remove("x");
    };
    unbelieved(None, &["--next-bitmap", "b2"], "the export has no bitmap b1");
    // The newest point names b2, which is not there; another bitmap is no substitute.
    unbelieved(Some("b1"), &["--bitmap", "b1"], "does not say that the bitmap b1 began with it");
    unbelieved(Some("b1"), &[], "nothing keeps track of changes of this source");
    // Names that were used.
    for more in [["--next-bitmap", "b1"].as_slice(), &["--bitmap", "b7", "--next-bitmap", "b7"]] {
        let state = guest.freeze(None, "x");
        let refused = finish(guest.backup("vm", more), support::PATIENCE);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(2) && said.contains("the name was used before"), "{said}");
        drop(state);
        guest.thaw();
        guest.remove("x");
    }
    // An export that takes writes: what is read is not what the bitmap counts to.
    let state = guest.freeze(None, "b8");
    let newest = guest.backs_up(&["--next-bitmap", "b8"], &state)["point"].as_str().unwrap().to_owned();
    guest.thaw();
    let export = json!({ "type": "nbd", "id": "open", "node-name": "disk", "name": "open", "writable": true,
        "bitmaps": ["b8"] });
    guest.run("block-export-add", export);
    let more = ["--rename-source", "--bitmap", "b8", "--since", &newest];
    let done = json_of(guest.backup("open", &more));
    assert!(told(&done).0.contains("the export can be written to"), "{done}");
    // Of a disk that is not an export there are none.
    let disk = guest.path("disk.img");
    let words = ["backup", "run", &disk, &guest.path("points"), "--bitmap", "b8"];
    let refused = finish(lunway(&words), support::PATIENCE);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--bitmap is for an NBD export"));
}

/// Runs a command on a machine of another id; `None`: this one cannot be made to look like another.
fn on_another_machine(folder: &Path, command: &Command) -> Option<Command> {
    if !rustix::process::geteuid().is_root() || !Path::new("/etc/machine-id").exists() {
        lunway_foreign::machine_lacks("root and /etc/machine-id, to look like another machine");
        return None;
    }
    let id = folder.join("machine-id");
    fs::write(&id, "0123456789abcdef0123456789abcdef\n").unwrap();
    let mut there = Command::new(lunway_foreign::program("unshare")?);
    let script = format!("mount --bind {} /etc/machine-id && exec \"$0\" \"$@\"", id.display());
    there.args(["--mount", "sh", "-c", &script]).arg(command.get_program()).args(command.get_args());
    there.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    Some(there)
}

/// Two machines have a disk each under one name, with a bitmap of one name, and one destination.
#[test]
fn a_bitmap_of_another_machines_disk_is_not_believed() {
    let Some(guest) = Guest::start() else { return };
    let state = guest.freeze(None, "b1");
    guest.backs_up(&["--next-bitmap", "b1"], &state);
    guest.thaw();
    // The other machine's disk differs in more than its bitmap says.
    let disk = fs::File::options().write(true).open(guest.path("disk.img")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&disk, &[9; 1 << 16], 120 << 20).unwrap();
    let state = guest.freeze(Some("b1"), "b2");
    let command = guest.backup("vm", &["--next-bitmap", "b2"]);
    let Some(command) = on_another_machine(guest.folder.path(), &command) else { return };
    let done = json_of(command);
    let why = done["why"].as_str().unwrap();
    assert!(
        why.contains("this source is not the one that point") && why.contains("another machine"),
        "{done}"
    );
    let out = guest.folder.path().join("restored.img");
    fs::remove_file(&out).unwrap();
    succeed(lunway(&["backup", "restore", &guest.path("points"), out.to_str().unwrap()]));
    assert_same_bytes(&state, &out);
}

#[test]
fn a_bitmap_in_an_image_that_no_machine_uses_says_what_was_written() {
    let programs = ["qemu-nbd", "qemu-img", "qemu-io"].map(lunway_foreign::program);
    let [Some(qemu_nbd), Some(qemu_img), Some(qemu_io)] = programs else { return };
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let (disk, socket) = (at("disk.qcow2"), folder.path().join("nbd.sock"));
    run(&qemu_img, &["create", "-q", "-f", "qcow2", &disk, &SIZE.to_string()]);
    fs::create_dir(at("points")).unwrap();
    let writes = |command: &str| run(&qemu_io, &["-f", "qcow2", "-c", command, &disk]);
    let backup = |bitmap: Option<&str>, next: &str| {
        run(&qemu_img, &["bitmap", "--add", "-g", "4096", &disk, next]);
        let mut command = Command::new(&qemu_nbd);
        // One client, which has one connection.
        command.args(["--read-only", "--format", "qcow2", "--socket", socket.to_str().unwrap()]);
        if let Some(bitmap) = bitmap {
            command.args(["--bitmap", bitmap]);
        }
        command.arg(&disk);
        let _serving = Serving::start(command, &socket);
        let uri = format!("nbd+unix:///?socket={}", socket.display());
        let words = ["backup", "run", &uri, &at("points"), "--sample", "0", "--json", "--next-bitmap", next];
        let done = json_of(lunway(&words));
        // It ends with its client, and takes its socket along.
        support::until(|| !socket.exists());
        done
    };
    writes("write -P 1 0 32M");
    let first = backup(None, "b1");
    assert_eq!((&first["kind"], told(&first).1), (&json!("full"), 32 << 20), "{first}");
    writes("write -P 2 100M 4k");
    writes("write -P 3 200M 1M");
    let second = backup(Some("b1"), "b2");
    assert_eq!(told(&second).0, "changes since epoch qemu:dirty-bitmap:b1 are known");
    assert_eq!(told(&second).1, (1 << 20) + (64 << 10), "{second}");
    succeed(lunway(&["backup", "restore", &at("points"), &at("restored.img")]));
    run(&qemu_img, &["convert", "-O", "raw", &disk, &at("disk.img")]);
    assert_same_bytes(Path::new(&at("disk.img")), Path::new(&at("restored.img")));
}

#[test]
fn exports_of_qemu_are_devices_that_are_read_and_written() {
    let programs = ["qemu-nbd", "qemu-img"].map(lunway_foreign::program);
    let [Some(qemu_nbd), Some(qemu_img)] = programs else { return };
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    image(Path::new(&at("source.img")), SIZE, 64 << 20);
    let (disk, pid) = (at("disk.qcow2"), folder.path().join("pid"));
    run(&qemu_img, &["create", "-q", "-f", "qcow2", &disk, &SIZE.to_string()]);
    let port = free_port().to_string();
    let mut command = Command::new(&qemu_nbd);
    command.args(["--persistent", "--shared", "8", "--format", "qcow2", "--export-name", "vm disk"]);
    command.args(["--bind", "127.0.0.1", "--port", &port, "--pid-file", pid.to_str().unwrap(), &disk]);
    let serving = Serving::start(command, &pid);
    let uri = format!("nbd://127.0.0.1:{port}/vm%20disk");
    succeed(lunway(&["copy", &at("source.img"), &uri, "--overwrite", "--verify"]));
    succeed(lunway(&["copy", &uri, &at("back.img")]));
    assert_same_bytes(Path::new(&at("source.img")), Path::new(&at("back.img")));
    let shown = succeed(lunway(&["inspect", &uri]));
    assert!(shown.contains("256 MiB"), "{shown}");
    // Read by a thread that no runtime has.
    let inside = json_of(lunway(&["disk", "inside", &uri, "--json"]));
    assert_eq!(inside["bytes"], SIZE, "{inside}");
    let other = finish(lunway(&["inspect", &format!("nbd://127.0.0.1:{port}/other")]), support::PATIENCE);
    let said = String::from_utf8_lossy(&other.stderr).into_owned();
    assert!(said.contains("it has no export of this name"), "{said}");
    drop(serving);
    let gone = finish(lunway(&["inspect", &uri]), support::PATIENCE);
    assert!(String::from_utf8_lossy(&gone.stderr).contains("no NBD connection to nbd://127.0.0.1"));
}

#[test]
fn a_vhdx_file_lies_on_an_export() {
    let Some(qemu_nbd) = lunway_foreign::program("qemu-nbd") else { return };
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    image(Path::new(&at("source.img")), SIZE, 64 << 20);
    succeed(lunway(&["copy", &at("source.img"), &at("disk.vhdx")]));
    let socket = folder.path().join("nbd.sock");
    let mut command = Command::new(&qemu_nbd);
    command.args(["--persistent", "--shared", "8", "--format", "raw", "--socket", socket.to_str().unwrap()]);
    command.arg(at("disk.vhdx"));
    let _serving = Serving::start(command, &socket);
    let device = format!("vhdx:nbd+unix:///?socket={}", socket.display());
    succeed(lunway(&["copy", &device, &at("back.img")]));
    assert_same_bytes(Path::new(&at("source.img")), Path::new(&at("back.img")));
}
