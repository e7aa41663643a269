//! What does not answer or is gone, and must cost nobody else: LUNs whose device cannot be opened at the start, a
//! folder of the configuration that hangs, files that were moved or cut while they are served.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "support/attached.rs"]
mod attached;
#[path = "support/daemon.rs"]
mod daemon;
#[path = "support/initiator.rs"]
mod initiator;
mod support;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use attached::{Attached, Ext4, Loop, run};
use daemon::{Daemon, lun, refused};
use initiator::Initiator;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use support::{IQN, PATIENCE, finish, image, lunway, succeed, until, wait};

/// A folder whose configuration serves these devices as LUN 0, 1 …
fn folder(devices: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut text = format!("listen = [\"127.0.0.1:0\"]\n[[target]]\nname = \"{IQN}\"\nopen = true\n");
    for (id, device) in devices.iter().enumerate() {
        text += &format!("[[target.lun]]\nid = {id}\ndevice = \"{device}\"\n");
    }
    fs::write(folder.path().join("lunway.toml"), text).unwrap();
    folder
}

fn command(folder: &Path, words: &[&str]) -> Command {
    let mut command = lunway(words);
    command.env("LUNWAY_SOCKET", folder.join("api.sock")).env("LUNWAY_RUNTIME_DIR", folder.join("run"));
    command
}

/// Why a LUN is offline; `None`: it is served.
fn offline(folder: &Path, id: usize) -> Option<String> {
    let list: Value =
        serde_json::from_str(&succeed(command(folder, &["lun", "list", IQN, "--json"]))).unwrap();
    list["luns"][id]["status"]["offline"].as_str().map(str::to_owned)
}

#[test]
fn a_device_that_is_missing_costs_its_own_lun_alone_until_it_is_there() {
    let folder = folder(&["here.img", "late.img", "container.img"]);
    let folder = folder.path();
    image(&folder.join("here.img"), 1 << 20, 1 << 20);
    let configuration = || fs::read_to_string(folder.join("lunway.toml")).unwrap();
    let daemon = Daemon::start(folder);
    let mut session = Initiator::ready(&daemon.address, IQN);
    session.flush().unwrap();
    assert_eq!(offline(folder, 0), None);
    for id in [1, 2] {
        let why = offline(folder, id).unwrap();
        assert!(why.contains(".img") && why.contains("No such file"), "{why}");
    }
    let list = succeed(lun(folder, "list", &[IQN]));
    let line = list.lines().find(|line| line.contains("late.img")).unwrap();
    assert!(line.ends_with("offline"), "{list}");
    let capacity = |session: &mut Initiator, id| {
        session.execute(id, &[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[], 8).unwrap()
    };
    assert_eq!(capacity(&mut session, 1).status, 2, "CHECK CONDITION: there is no unit");

    // Nor is it another one that is added again.
    assert!(succeed(lun(folder, "add", &[IQN, "1", "late.img"])).contains("nothing to change"));
    let missing = refused(lun(folder, "compact", &[IQN, "1"]));
    assert!(missing.contains("is offline"), "{missing}");

    // Changes of others go on, and what was never opened has no format yet.
    succeed(lun(folder, "add", &[IQN, "3", "ram:1M"]));
    let configured = |format: &str, name: &str| {
        configuration()
            .lines()
            .any(|line| line.contains(name) && line.starts_with(&format!("device = \"{format}")))
    };
    assert!(configured("raw:", "here.img") && configured("late.img", ""), "{}", configuration());
    let missing = refused(lun(folder, "resize", &[IQN, "1", "2M"]));
    assert!(missing.contains("lun 1"), "{missing}");

    // A qcow2 header where no format is said: it is refused as at any first time.
    fs::write(folder.join("container.img"), [&b"QFI\xfb\0\0\0\x03"[..], &[0; (1 << 20) - 8]].concat())
        .unwrap();
    image(&folder.join("late.img"), 2 << 20, 2 << 20);
    until(|| offline(folder, 1).is_none());
    // Before an initiator can write what looks like another format.
    assert!(configured("raw:", "late.img"), "{}", configuration());
    until(|| offline(folder, 2).is_some_and(|why| why.contains("qcow2")));
    while capacity(&mut session, 1).status != 0 {}
    assert!(succeed(lunway(&["inspect", &format!("iscsi://{}/{IQN}/1", daemon.address)])).contains("2 MiB"));

    // Another device for it is opened with the change, and one that is removed is forgotten.
    succeed(lun(folder, "set", &[IQN, "2", "--device", "raw:container.img"]));
    assert_eq!(offline(folder, 2), None);
    assert!(configured("raw:", "container.img"), "{}", configuration());
    daemon.kill();
    fs::remove_file(folder.join("late.img")).unwrap();
    let _daemon = Daemon::start(folder);
    assert!(offline(folder, 1).is_some());
    succeed(lun(folder, "remove", &[IQN, "1"]));
    assert!(!configuration().contains("late.img"));
}

#[test]
fn what_initiators_reserved_returns_with_the_disk_and_goes_with_its_lun() {
    let folder = folder(&["ram:1M", "disk.img"]);
    let folder = folder.path();
    let file = folder.join("lunway.toml");
    fs::write(&file, format!("state_dir = \"state\"\n{}", fs::read_to_string(&file).unwrap())).unwrap();
    let (disk, away) = (folder.join("disk.img"), folder.join("away.img"));
    image(&disk, 1 << 20, 1 << 20);
    let daemon = Daemon::start(folder);
    let mut session = Initiator::ready(&daemon.address, IQN);
    while session.execute(1, &[0; 6], &[], 0).unwrap().status != 0 {}
    // PERSISTENT RESERVE OUT, REGISTER with APTPL (SPC-4 6.16).
    let mut parameters = [0; 24];
    (parameters[15], parameters[20]) = (7, 1);
    let register = [0x5F, 0, 0, 0, 0, 0, 0, 0, 24, 0];
    assert_eq!(session.execute(1, &register, &parameters, 0).unwrap().status, 0);
    let reserved = || succeed(command(folder, &["reservation", "list"]));
    assert!(reserved().contains("0x0000000000000007"), "{}", reserved());
    daemon.kill();

    fs::rename(&disk, &away).unwrap();
    let daemon = Daemon::start(folder);
    assert!(offline(folder, 1).is_some());
    let clear = refused(command(folder, &["reservation", "clear", IQN, "1", "--force"]));
    assert!(clear.contains("is offline"), "{clear}");
    fs::rename(&away, &disk).unwrap();
    until(|| offline(folder, 1).is_none());
    assert!(reserved().contains("0x0000000000000007"), "{}", reserved());
    daemon.kill();

    fs::rename(&disk, &away).unwrap();
    let _daemon = Daemon::start(folder);
    succeed(lun(folder, "remove", &[IQN, "1"]));
    succeed(lun(folder, "add", &[IQN, "1", "away.img"]));
    assert!(!reserved().contains("0x0000000000000007"), "{}", reserved());
}

#[test]
fn a_serial_number_that_another_lun_has_meanwhile_costs_the_second_alone() {
    let folder = folder(&["ram:1M", "disk.img"]);
    let folder = folder.path();
    let (disk, away) = (folder.join("disk.img"), folder.join("away.img"));
    image(&disk, 1 << 20, 1 << 20);
    let daemon = Daemon::start(folder);
    let list: Value =
        serde_json::from_str(&succeed(command(folder, &["lun", "list", IQN, "--json"]))).unwrap();
    let serial = list["luns"][1]["status"]["serial"].as_str().unwrap().to_owned();
    daemon.kill();
    fs::rename(&disk, &away).unwrap();
    let daemon = Daemon::start(folder);
    succeed(lun(folder, "add", &[IQN, "2", "away.img", "--serial", &serial]));
    daemon.kill();
    fs::copy(&away, &disk).unwrap();
    let _daemon = Daemon::start(folder);
    assert_eq!((offline(folder, 0), offline(folder, 1)), (None, None));
    let why = offline(folder, 2).unwrap();
    assert!(why.contains(&serial) && why.contains("give it another serial"), "{why}");
}

#[test]
fn what_is_typed_is_an_error_at_once() {
    let folder = folder(&["ram:1M"]);
    let file = folder.path().join("lunway.toml");
    let words = ["serve", "-c", file.to_str().unwrap(), "--no-api", "--lun", "7=missing.img"];
    let output = finish(lunway(&words), PATIENCE);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && said.contains("missing.img"), "{said}");
}

#[test]
fn a_device_that_hangs_when_it_is_opened_stops_neither_the_start_nor_the_end() {
    let outer = tempfile::tempdir().unwrap();
    let Some(attached) = Attached::start("ram:64M", outer.path(), &[]) else { return };
    let hung = attached.file();
    let folder = folder(&[hung.to_str().unwrap(), "ram:1M"]);
    let folder = folder.path();
    attached.signal(Signal::STOP);
    let start = Instant::now();
    let mut daemon = Daemon::start(folder);
    let mut session = Initiator::log_in(&daemon.address, IQN).unwrap();
    while session.execute(1, &[0; 6], &[], 0).unwrap().status != 0 {}
    // It was 10 s.
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
    let why = offline(folder, 0).unwrap();
    assert!(why.contains("has not been opened within 2 s"), "{why}");
    // A host that knows it from before waits for it, and is not told that it is gone.
    let asked = session.execute(0, &[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[], 8).unwrap();
    assert_eq!((asked.status, asked.sense[2] & 0xf, asked.sense[12], asked.sense[13]), (2, 2, 4, 1));
    kill_process(Pid::from_child(&daemon.child), Signal::TERM).unwrap();
    assert!(wait(&mut daemon.child, Duration::from_secs(60)).is_some(), "it ends");
    attached.signal(Signal::CONT);
    // And once more, with a device that goes on.
    attached.signal(Signal::STOP);
    let daemon = Daemon::start(folder);
    attached.signal(Signal::CONT);
    until(|| offline(folder, 0).is_none());
    assert!(succeed(lunway(&["inspect", &format!("iscsi://{}/{IQN}/0", daemon.address)])).contains("64 MiB"));
    drop(daemon);
    attached.detach();
}

/// Waits until it is so, and fails if it never is.
fn comes(it_is_so: impl Fn() -> bool) {
    until(&it_is_so);
    assert!(it_is_so(), "it never comes");
}

/// A folder on ext4 that lies on a loop device.
struct Freezable {
    mounted: Ext4,
    _device: Loop,
    _image: tempfile::TempDir,
}

/// From here on nothing can be written there, until this is dropped.
struct Frozen<'a>(&'a Path);

impl Freezable {
    fn new() -> Option<Self> {
        let image = tempfile::tempdir().unwrap();
        let file = image.path().join("ext4.img");
        fs::File::create(&file).unwrap().set_len(64 << 20).unwrap();
        lunway_foreign::program("fsfreeze")?;
        run(lunway_foreign::program("mkfs.ext4")?, ["-q", "-F", file.to_str().unwrap()]);
        let device = Loop::on(&file)?;
        let mounted = Ext4::mount(&device, image.path());
        Some(Self { mounted, _device: device, _image: image })
    }

    fn freeze(&self) -> Frozen<'_> {
        run("fsfreeze", ["--freeze".as_ref(), self.mounted.0.as_os_str()]);
        Frozen(&self.mounted.0)
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        let _ = Command::new("fsfreeze").arg("--unfreeze").arg(self.0).status();
    }
}

/// The kinds of the daemon's warnings.
fn warnings(folder: &Path) -> Vec<String> {
    let answer = curl(folder, "/v1/health");
    let warnings = answer["warnings"].as_array().unwrap();
    warnings.iter().map(|warning| warning["kind"].as_str().unwrap().to_owned()).collect()
}

fn curl(folder: &Path, path: &str) -> Value {
    let client = lunway_console::Client::new(lunway_console::Endpoint::Unix(folder.join("api.sock")));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(client.get(path)).unwrap()
}

/// Lost was: the data of a `ram:` LUN. Its removal, given up by Ctrl-C while the folder of the configuration hung, was
/// made 40 s later, when the folder answered; and `lunway lun list` hung as well.
#[test]
fn a_change_that_is_given_up_while_the_folder_of_the_configuration_hangs_is_never_made() {
    let Some(freezable) = Freezable::new() else { return };
    let folder = folder(&["ram:1M", "ram:1M"]);
    let folder = folder.path();
    let file = freezable.mounted.0.join("lunway.toml");
    fs::copy(folder.join("lunway.toml"), &file).unwrap();
    fs::remove_file(folder.join("lunway.toml")).unwrap();
    std::os::unix::fs::symlink(&file, folder.join("lunway.toml")).unwrap();
    let daemon = Daemon::start(folder);
    let mut write = [0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0];
    let data = |session: &mut Initiator, cdb: &[u8; 10]| {
        let read = if cdb[0] == 0x28 { 512 } else { 0 };
        let out = if read == 0 { vec![7; 512] } else { Vec::new() };
        while session.execute(0, &[0; 6], &[], 0).unwrap().status != 0 {}
        session.execute(0, cdb, &out, read).unwrap()
    };
    let mut session = Initiator::ready(&daemon.address, IQN);
    assert_eq!(data(&mut session, &write).status, 0);
    drop(session);
    let is_kept = || fs::read_to_string(&file).unwrap().contains("id = 0");
    let settled = || comes(|| !warnings(folder).contains(&"unsettled_config".to_owned()));

    // Given up at once.
    let frozen = freezable.freeze();
    let mut remove = lun(folder, "remove", &[IQN, "0", "--force"]);
    let mut remove = remove.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    thread::sleep(Duration::from_secs(1));
    kill_process(Pid::from_child(&remove), Signal::INT).unwrap();
    remove.wait().unwrap();
    let asked = Instant::now();
    assert_eq!(offline(folder, 0), None);
    succeed(command(folder, &["snapshot", "list"]));
    assert!(asked.elapsed() < Duration::from_secs(4), "{:?}", asked.elapsed());
    drop(frozen);
    settled();
    thread::sleep(Duration::from_secs(1));
    assert!(is_kept() && offline(folder, 0).is_none());

    // Waited for.
    let frozen = freezable.freeze();
    let asked = Instant::now();
    let late = refused(lun(folder, "remove", &[IQN, "0", "--force"]));
    assert!(late.contains("will not be: saving the configuration file"), "{late}");
    assert!(asked.elapsed() < Duration::from_secs(12), "{:?}", asked.elapsed());
    assert!(warnings(folder).contains(&"unsettled_config".to_owned()));
    let behind = refused(lun(folder, "add", &[IQN, "5", "ram:1M"]));
    assert!(behind.contains("an earlier one has not ended"), "{behind}");
    drop(frozen);
    settled();
    thread::sleep(Duration::from_secs(1));
    assert!(is_kept() && offline(folder, 0).is_none());
    let mut session = Initiator::ready(&daemon.address, IQN);
    write[0] = 0x28;
    assert_eq!(data(&mut session, &write).data_in[..], [7; 512]);
    drop(session);
    succeed(lun(folder, "remove", &[IQN, "0", "--force"]));
    assert!(!is_kept());
}

/// The daemon went on with a file that had no name any more, and `lun resize` of one that was cut said "nothing to
/// change".
#[test]
fn a_served_file_that_is_moved_or_cut_is_told() {
    let folder = folder(&["disk.img"]);
    let folder = folder.path();
    let (disk, moved) = (folder.join("disk.img"), folder.join("moved.img"));
    image(&disk, 1 << 20, 1 << 20);
    let _daemon = Daemon::start(folder);
    let lost = || {
        curl(folder, &format!("/v1/targets/{IQN}/luns/0"))["status"]["lost_file"].as_str().map(str::to_owned)
    };
    assert_eq!(lost(), None);
    assert!(succeed(lun(folder, "resize", &[IQN, "0", "1M"])).contains("nothing to change"));
    fs::rename(&disk, &moved).unwrap();
    comes(|| lost().is_some_and(|why| why.contains("disk.img is gone") && why.contains("rename")));
    assert!(warnings(folder).contains(&"lost_file".to_owned()));
    assert!(succeed(lun(folder, "list", &[IQN])).contains("lost-file"));
    let metrics = curl(folder, "/v1/metrics");
    let counts = metrics["warnings"].as_array().unwrap();
    assert!(counts.iter().any(|count| count["kind"] == "lost_file" && count["count"] == 1), "{counts:?}");
    fs::copy(&moved, &disk).unwrap();
    comes(|| lost().is_some_and(|why| why.contains("leads to another file")));
    // The file that is served may have no other name: a copy under its name is another one.
    let other = folder.join("other.img");
    image(&other, 1 << 20, 1 << 20);
    let replace = [IQN, "0", other.to_str().unwrap(), "--replace"];
    for is_copied in [true, false] {
        if !is_copied {
            fs::remove_file(&disk).unwrap();
        }
        for (verb, arguments) in
            [("remove", &[IQN, "0"][..]), ("remove", &[IQN, "0", "--dry-run"]), ("add", &replace)]
        {
            let said = refused(lun(folder, verb, arguments));
            assert!(
                said.contains("disk.img") && said.contains("deleted") && said.contains("--force"),
                "{said}"
            );
        }
    }
    succeed(lun(folder, "remove", &[IQN, "0", "--force", "--dry-run"]));
    fs::rename(&moved, &disk).unwrap();
    comes(|| lost().is_none());

    fs::OpenOptions::new().write(true).open(&disk).unwrap().set_len(512 << 10).unwrap();
    let said = refused(lun(folder, "resize", &[IQN, "0", "1M"]));
    assert!(said.contains("524288 bytes of its data are lost") && said.contains("shrinking"), "{said}");
    comes(|| lost().is_some_and(|why| why.contains("truncated")));
    succeed(lun(folder, "resize", &[IQN, "0", "512K", "--shrink", "--force"]));
    comes(|| lost().is_none());
}
