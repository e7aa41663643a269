//! `lunway backup run lun:TARGET/LUN`: initiators write while a LUN of a running daemon is backed up, and every point
//! is what the disk was at one instant; kills of the daemon and of the command; areas that are full; destinations that
//! stall.
//!
//! 20 kills, and a stall of 6 s; `LUNWAY_BACKUP_KILLS=200` makes more, `LUNWAY_STALL_SECONDS=30` a longer one.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "support/daemon.rs"]
mod daemon;
#[path = "support/initiator.rs"]
mod initiator;
#[path = "served_backup/repository.rs"]
mod repository;
mod support;

use std::fs;
use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use daemon::{Daemon, command, lun, refused};
use initiator::Initiator;
use lunway_backup::{Epochs, HostFolder};
use lunway_block::spec::NbdUri;
use lunway_console::{Client, Endpoint, Method};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use support::{IQN, PATIENCE, Running, assert_same_bytes, finish, succeed};

const SIZE: u64 = 256 << 20;
/// What a write has.
const PIECE: u64 = 4096;
/// What one writer has of the disk.
const REGION: u64 = 16 << 20;

/// A folder with two disks, the first one tracked, and destinations.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["disk.img", "other.img"] {
        fs::File::create(folder.path().join(name)).unwrap().set_len(SIZE).unwrap();
    }
    for name in ["one", "two"] {
        fs::create_dir(folder.path().join(name)).unwrap();
    }
    let text = format!(
        "listen = [\"127.0.0.1:0\"]\nstate_dir = \"state\"\ncores = 1\n[[target]]\nname = \"{IQN}\"\nopen = true\n\
         [[target.lun]]\nid = 0\ndevice = \"raw:disk.img\"\ntrack = true\n\
         [[target.lun]]\nid = 1\ndevice = \"raw:other.img\"\n"
    );
    fs::write(folder.path().join("lunway.toml"), text).unwrap();
    folder
}

/// The command with SIGQUIT as a terminal's programs have it: the tests may be a background job, which ignores it.
fn heeds_quit(command: &Command) -> Command {
    let mut through = Command::new("env");
    through.arg("--default-signal=QUIT").arg(command.get_program()).args(command.get_args());
    through.envs(command.get_envs().filter_map(|(key, value)| Some((key, value?))));
    if let Some(folder) = command.get_current_dir() {
        through.current_dir(folder);
    }
    through
}

fn backup(folder: &Path, lun: u16, more: &[&str]) -> Command {
    let source = format!("lun:{IQN}/{lun}");
    command(folder, &[&["backup", "run", &source], more].concat())
}

/// Backs LUN 0 up, and says what came of it.
fn run(folder: &Path, destination: &str) -> Value {
    let done = succeed(backup(folder, 0, &[destination, "--sample", "0", "--json"]));
    serde_json::from_str(&done).unwrap()
}

fn restored(folder: &Path, destination: &str, point: &str) -> Vec<u8> {
    let out = folder.join("out");
    let _ = fs::remove_file(&out);
    let words = ["backup", "restore", destination, out.to_str().unwrap(), "--point", point];
    succeed(command(folder, &words));
    fs::read(out).unwrap()
}

fn epochs(folder: &Path) -> Vec<String> {
    let list: Value =
        serde_json::from_str(&succeed(lun(folder, "epoch", &["list", IQN, "0", "--json"]))).unwrap();
    let name = |epoch: &Value| epoch["epoch"].as_str().unwrap().to_owned();
    list["epochs"].as_array().unwrap().iter().map(name).collect()
}

fn snapshots(folder: &Path) -> Vec<Value> {
    let list: Value =
        serde_json::from_str(&succeed(command(folder, &["snapshot", "list", "--json"]))).unwrap();
    list["snapshots"].as_array().unwrap().clone()
}

fn wait_until_no_snapshot(folder: &Path) {
    support::until(|| snapshots(folder).is_empty());
}

/// The content of a piece: the number of the write.
fn piece(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(PIECE as usize / 8)
}

/// WRITE (10) of one piece.
fn write(initiator: &mut Initiator, lun: u8, offset: u64, number: u64) -> io::Result<()> {
    let block = (offset / 512) as u32;
    let mut cdb = [0x2a, 0, 0, 0, 0, 0, 0, 0, (PIECE / 512) as u8, 0];
    cdb[2..6].copy_from_slice(&block.to_be_bytes());
    let done = initiator.execute(lun, &cdb, &piece(number), 0)?;
    assert_eq!(done.status, 0, "{done:?}");
    Ok(())
}

/// An initiator that writes one piece after the other, each with its number, at random places of its own region.
struct Writer {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<History>,
}

/// What a writer has written, in order.
struct History {
    region: u64,
    /// Where write number 1, 2 … went.
    places: Vec<u64>,
    /// How long each took.
    times: Vec<(Instant, Duration)>,
}

impl Writer {
    /// `pause` after each write, so that several fit on a machine.
    fn start(address: &str, number: u8, lun: u8, pause: Duration) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let (until, address) = (Arc::clone(&stop), address.to_owned());
        let thread = thread::spawn(move || {
            let mut initiator = Initiator::log_in_as(&address, IQN, number).unwrap();
            while initiator.execute(lun, &[0; 6], &[], 0).unwrap().status != 0 {}
            let region = u64::from(number) * REGION;
            let mut history = History { region, places: Vec::new(), times: Vec::new() };
            let mut random = u64::from(number) << 32 | 12345;
            while !until.load(SeqCst) {
                // xorshift64, of which any sequence will do.
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let place = region + random % (REGION / PIECE) * PIECE;
                history.places.push(place);
                let began = Instant::now();
                write(&mut initiator, lun, place, history.places.len() as u64).unwrap();
                history.times.push((began, began.elapsed()));
                thread::sleep(pause);
            }
            history
        });
        Self { stop, thread }
    }

    fn end(self) -> History {
        self.stop.store(true, SeqCst);
        self.thread.join().unwrap()
    }
}

impl History {
    /// How many writes the content of a disk has; it must be the first so many, and nothing else.
    fn check(&self, content: &[u8], what: &str) -> usize {
        let region = &content[self.region as usize..][..REGION as usize];
        let newest = region.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).max().unwrap();
        let mut expected = vec![0; REGION as usize];
        for (index, place) in self.places.iter().take(newest as usize).enumerate() {
            expected[(place - self.region) as usize..][..PIECE as usize]
                .copy_from_slice(&piece(index as u64 + 1));
        }
        assert!(region == expected, "{what}: not the state after {newest} writes");
        newest as usize
    }

    /// The 99th percentile of writes that began in a span of time.
    fn p99(&self, from: Instant, to: Instant) -> Duration {
        let of_span = self.times.iter().filter(|(began, _)| *began >= from && *began < to);
        let mut times: Vec<_> = of_span.map(|(_, time)| *time).collect();
        times.sort_unstable();
        assert!(times.len() > 100, "{} writes", times.len());
        times[times.len() * 99 / 100]
    }
}

#[test]
fn a_run_reads_what_changed_since_the_point_of_its_own_destination() {
    let folder = folder();
    let folder = folder.path();
    let daemon = Daemon::start(folder);
    let mut initiator = Initiator::ready(&daemon.address, IQN);
    for number in 0..64 {
        write(&mut initiator, 0, number << 20, number + 1).unwrap();
    }
    let first = run(folder, "one");
    assert_eq!((&first["kind"], &first["level"]), (&"full".into(), &"crash".into()));
    assert_eq!(epochs(folder), [first["epoch"].as_str().unwrap()]);
    wait_until_no_snapshot(folder);

    write(&mut initiator, 0, 5 << 20, 100).unwrap();
    let second = run(folder, "one");
    let why = second["why"].as_str().unwrap();
    assert!(why.starts_with("changes since epoch") && why.ends_with("are known"), "{second}");
    assert_eq!(second["kind"], "increment");
    assert!(second["read_bytes"].as_u64().unwrap() <= 128 << 10, "{second}");
    assert_eq!(epochs(folder), [second["epoch"].as_str().unwrap()], "the older one was released");

    // A second destination has a full of its own, and increments after it; the first one needs no full again.
    write(&mut initiator, 0, 6 << 20, 101).unwrap();
    assert_eq!(run(folder, "two")["kind"], "full");
    write(&mut initiator, 0, 7 << 20, 102).unwrap();
    for destination in ["one", "two"] {
        let done = run(folder, destination);
        assert!(done["why"].as_str().unwrap().contains("are known"), "{done}");
        assert!(done["read_bytes"].as_u64().unwrap() <= 256 << 10, "{done}");
        assert!(restored(folder, destination, "latest") == fs::read(folder.join("disk.img")).unwrap());
    }
    assert_eq!(epochs(folder).len(), 2);
    let status: Value =
        serde_json::from_str(&succeed(command(folder, &["backup", "status", "one", "--json"]))).unwrap();
    assert_eq!((&status["points"], &status["damage"]), (&3.into(), &0.into()));

    // Where it is not known what changed, everything is compared, and it is said why.
    for epoch in epochs(folder) {
        succeed(lun(folder, "epoch", &["release", IQN, "0", &epoch]));
    }
    let done = run(folder, "one");
    let why = done["why"].as_str().unwrap();
    assert!(why.starts_with("compared by hash: no epoch") && done["kind"] == "increment", "{done}");
    assert_eq!(done["sent_bytes"], 0, "{done}");
    assert!(run(folder, "one")["why"].as_str().unwrap().contains("are known"));
    let untracked = succeed(backup(folder, 1, &["two", "--rename-source", "--json"]));
    assert!(untracked.contains("it is another file"), "{untracked}");
    wait_until_no_snapshot(folder);
}

/// Two daemons have a LUN each of one name, and one destination.
#[test]
fn two_disks_of_one_name_each_get_points_of_their_own_from_one_destination() {
    let folders = [folder(), folder()];
    let shared = tempfile::tempdir().unwrap();
    fs::create_dir(shared.path().join("repo")).unwrap();
    succeed(command(shared.path(), &["backup", "init", "repo"]));
    fs::create_dir(shared.path().join("chain")).unwrap();
    let mut sides = folders.iter().zip(1_u64..).map(|(folder, number)| {
        let folder = folder.path();
        // Only a whole path tells which file a daemon has.
        let text = fs::read_to_string(folder.join("lunway.toml")).unwrap();
        let whole = format!("raw:{}", folder.join("disk.img").display());
        fs::write(folder.join("lunway.toml"), text.replace("raw:disk.img", &whole)).unwrap();
        let daemon = Daemon::start(folder);
        let initiator = Initiator::ready(&daemon.address, IQN);
        (folder, daemon, initiator, number)
    });
    let mut sides = [sides.next().unwrap(), sides.next().unwrap()];
    for destination in ["chain", "repo/both"] {
        let destination = shared.path().join(destination);
        let destination = destination.to_str().unwrap();
        let mut newest = None;
        for (turn, at) in [0, 0, 1, 0, 1, 1].into_iter().enumerate() {
            let (folder, _, initiator, number) = &mut sides[at];
            let place = (*number * 20 + turn as u64) << 20;
            write(initiator, 0, place, *number * 100 + turn as u64).unwrap();
            let done = run(folder, destination);
            let why = done["why"].as_str().unwrap();
            match newest.replace(at) {
                None => assert_eq!(why, "it is the first"),
                Some(before) if before == at => assert!(why.ends_with("are known"), "{turn}: {done}"),
                Some(_) => {
                    let said = "this source is not the one that point";
                    assert!(why.contains(said) && why.ends_with("it is another file"), "{turn}: {done}");
                }
            }
            let disk = fs::read(folder.join("disk.img")).unwrap();
            assert!(restored(folder, destination, "latest") == disk, "{destination}, {turn}");
        }
        // No daemon keeps more than what its own newest point needs, but for the one that was not asked last.
        let kept: Vec<usize> = sides.iter().map(|(folder, ..)| epochs(folder).len()).collect();
        assert!(kept.iter().sum::<usize>() <= 4, "{destination}: {kept:?}");
    }
}

#[test]
fn what_the_file_system_of_a_lun_proves_to_be_free_is_left_out() {
    let Some(mke2fs) = lunway_foreign::program("mke2fs") else { return };
    let folder = folder();
    let folder = folder.path();
    fs::write(folder.join("disk.img"), vec![7; SIZE as usize]).unwrap();
    let mut make = Command::new(mke2fs);
    make.args(["-q", "-F", "-t", "ext4", "-E", "nodiscard"]).arg(folder.join("disk.img"));
    succeed(make);
    let _daemon = Daemon::start(folder);
    let done = succeed(backup(folder, 0, &["one", "--skip-free", "--json"]));
    let done: Value = serde_json::from_str(&done).unwrap();
    assert!(done["skipped_bytes"].as_u64().unwrap() > SIZE / 2, "{done}");
    assert!(done["read_bytes"].as_u64().unwrap() < SIZE / 2, "{done}");
    wait_until_no_snapshot(folder);
}

#[test]
fn a_frozen_guest_is_thawed_whatever_comes_and_the_point_says_so() {
    let folder = folder();
    let folder = folder.path();
    let _daemon = Daemon::start(folder);
    let hooks = ["--freeze", "echo f >> said", "--thaw", "echo t >> said"];
    let done = succeed(backup(folder, 0, &[&["one", "--json"], &hooks[..]].concat()));
    let done: Value = serde_json::from_str(&done).unwrap();
    assert_eq!(done["level"], "fs");
    let applications = [&["one", "--json", "--application"], &hooks[..]].concat();
    let done: Value = serde_json::from_str(&succeed(backup(folder, 0, &applications))).unwrap();
    assert_eq!(done["level"], "application");
    let list = succeed(command(folder, &["backup", "list", "one", "--json"]));
    assert!(list.contains("\"level\": \"fs\"") || list.contains("\"level\":\"fs\""), "{list}");
    assert_eq!(fs::read_to_string(folder.join("said")).unwrap(), "f\nt\nf\nt\n");
    // The snapshot cannot be made: it is thawed all the same.
    let said = refused(backup(folder, 0, &[&["one", "--area", "1"], &hooks[..]].concat()));
    assert!(said.contains("area"), "{said}");
    assert_eq!(fs::read_to_string(folder.join("said")).unwrap(), "f\nt\nf\nt\nf\nt\n");
    // A freeze that hangs: nothing is made.
    let hangs = ["one", "--freeze", "sleep 3", "--thaw", "echo t >> said", "--deadline", "1s"];
    let said = refused(backup(folder, 0, &hangs));
    assert!(said.contains("did not end within 1 s"), "{said}");
    assert!(fs::read_to_string(folder.join("said")).unwrap().ends_with("t\nt\n"));
    // Nor does it freeze the guest after it was thawed.
    let hangs = [
        "one",
        "--freeze",
        "(sleep 2; echo f >> said) && true",
        "--thaw",
        "echo t >> said",
        "--deadline",
        "1s",
    ];
    refused(backup(folder, 0, &hangs));
    thread::sleep(Duration::from_secs(3));
    assert!(fs::read_to_string(folder.join("said")).unwrap().ends_with("t\nt\nt\n"));
    // A thaw has its own time.
    let slow = ["one", "--freeze", "echo f >> said", "--thaw", "sleep 2; echo t >> said", "--deadline", "1s"];
    let _ = finish(backup(folder, 0, &slow), PATIENCE);
    assert!(fs::read_to_string(folder.join("said")).unwrap().ends_with("f\nt\n"));
    let hasty = ["one", "--freeze", "true", "--thaw", "true", "--deadline", "20ms"];
    assert_eq!(finish(backup(folder, 0, &hasty), PATIENCE).status.code(), Some(2));
}

fn hooks(folder: &Path) -> String {
    fs::read_to_string(folder.join("said")).unwrap_or_default()
}

/// A guest was left frozen by a Ctrl-C between freeze and thaw.
#[test]
fn a_signal_while_the_guest_is_frozen_does_not_leave_it_frozen() {
    let folder = folder();
    let folder = folder.path();
    let daemon = Daemon::start(folder);
    let one = format!("{IQN}/0");
    let freeze = ["--freeze", "echo f >> said; sleep 4", "--thaw", "sleep 0.2; echo t >> said"];
    let create = [&["snapshot", "create", &one], &freeze[..]].concat();
    let compact = [&["lun", "compact", IQN, "0"], &freeze[..]].concat();
    let source = format!("lun:{IQN}/0");
    let run = [&["backup", "run", &source, "one"], &freeze[..]].concat();
    // SIGHUP is a lost SSH session, SIGQUIT is Ctrl-\.
    let signals = [Signal::TERM, Signal::HUP, Signal::QUIT];
    let all = [create, compact, run.clone()]
        .into_iter()
        .flat_map(|words| signals.map(|signal| (words.clone(), signal)));
    for (words, signal) in all {
        let _ = fs::remove_file(folder.join("said"));
        let running = Running::start(heeds_quit(&command(folder, &words)));
        support::until(|| hooks(folder) == "f\n");
        running.signal(signal);
        let output = running.end(PATIENCE);
        assert_eq!(hooks(folder), "f\nt\n", "{words:?}: {output:?}");
        assert!(!output.status.success(), "{words:?}: {output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("it was thawed"), "{words:?}: {said}");
    }
    // The daemon hangs, and the second request ends the command at once: not before the thaw.
    let _ = fs::remove_file(folder.join("said"));
    let running = Running::start(command(folder, &run));
    support::until(|| hooks(folder) == "f\n");
    kill_process(Pid::from_child(&daemon.child), Signal::STOP).unwrap();
    thread::sleep(Duration::from_millis(4500));
    running.signal(Signal::TERM);
    thread::sleep(Duration::from_millis(700));
    running.signal(Signal::TERM);
    let output = running.end(PATIENCE);
    kill_process(Pid::from_child(&daemon.child), Signal::CONT).unwrap();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert_eq!(hooks(folder), "f\nt\n");
}

/// The thaw ran, and then what froze went on and froze the guest.
#[test]
fn a_command_that_freezes_is_ended_before_a_second_signal_has_the_guest_thawed() {
    let folder = folder();
    let folder = folder.path();
    let _daemon = Daemon::start(folder);
    let source = format!("lun:{IQN}/0");
    let freeze = ["--freeze", "echo b >> said; sleep 3; echo f >> said", "--thaw", "echo t >> said"];
    let running =
        Running::start(command(folder, &[&["backup", "run", &source, "one"], &freeze[..]].concat()));
    support::until(|| hooks(folder) == "b\n");
    running.signal(Signal::TERM);
    thread::sleep(Duration::from_millis(700));
    running.signal(Signal::TERM);
    assert_eq!(running.end(PATIENCE).status.code(), Some(130));
    thread::sleep(Duration::from_secs(3));
    assert_eq!(hooks(folder), "b\nt\n");
}

/// The time that was left was not passed on, and a daemon that hung kept the guest frozen for two minutes.
#[test]
fn the_guest_is_thawed_at_the_deadline_while_the_daemon_hangs_and_no_snapshot_is_left() {
    let folder = folder();
    let folder = folder.path();
    let daemon = Daemon::start(folder);
    let one = format!("{IQN}/0");
    let freeze = ["--freeze", "echo f >> said", "--thaw", "echo t >> said", "--deadline", "2s"];
    kill_process(Pid::from_child(&daemon.child), Signal::STOP).unwrap();
    let words = [&["snapshot", "create", &one], &freeze[..]].concat();
    let running = Running::start(command(folder, &words));
    let begun = Instant::now();
    support::until(|| hooks(folder) == "f\nt\n");
    let thawed = begun.elapsed();
    assert!(thawed < Duration::from_secs(20), "{thawed:?}");
    kill_process(Pid::from_child(&daemon.child), Signal::CONT).unwrap();
    let output = running.end(PATIENCE);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("2 s"), "{said}");
    assert_eq!(hooks(folder), "f\nt\n", "thawed once");
    wait_until_no_snapshot(folder);
}

/// The process stayed for two minutes, although the guest was thawed and what it waited for was of no use any more.
#[test]
fn a_command_that_freezes_ends_soon_after_the_deadline_while_the_daemon_hangs() {
    let folder = folder();
    let folder = folder.path();
    let daemon = Daemon::start(folder);
    // The daemon stops during the freeze, which comes after what is asked before it.
    let freeze = ["--freeze", "echo f >> said; sleep 1", "--thaw", "echo t >> said", "--deadline", "3s"];
    let source = format!("lun:{IQN}/0");
    for words in [&["backup", "run", &source, "one"][..], &["lun", "compact", IQN, "0"]] {
        let _ = fs::remove_file(folder.join("said"));
        let words = [words, &freeze[..]].concat();
        let running = Running::start(command(folder, &words));
        support::until(|| hooks(folder) == "f\n");
        kill_process(Pid::from_child(&daemon.child), Signal::STOP).unwrap();
        let begun = Instant::now();
        let output = running.end(Duration::from_secs(60));
        kill_process(Pid::from_child(&daemon.child), Signal::CONT).unwrap();
        assert!(begun.elapsed() < Duration::from_secs(30), "{words:?}: {:?}", begun.elapsed());
        assert_eq!(hooks(folder), "f\nt\n", "{words:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("has not answered before the guest was thawed"), "{words:?}: {said}");
        wait_until_no_snapshot(folder);
    }
}

#[test]
fn every_point_is_the_disk_of_one_instant_while_initiators_write() {
    let folder = folder();
    let folder = folder.path();
    let daemon = Daemon::start(folder);
    let writers: Vec<_> =
        (1..=4).map(|number| Writer::start(&daemon.address, number, 0, Duration::from_micros(300))).collect();
    let (mut points, mut held) = (Vec::new(), Vec::new());
    for number in 0..10 {
        let destination = if number % 3 == 2 { "two" } else { "one" };
        let done = run(folder, destination);
        if number >= 3 {
            assert!(done["why"].as_str().unwrap().contains("are known"), "{done}");
        }
        points.push((destination, done["point"].as_str().unwrap().to_owned()));
        held.push(done["held_ms"].as_u64().unwrap());
    }
    println!("writes were held for {held:?} ms");
    let histories: Vec<_> = writers.into_iter().map(Writer::end).collect();
    let mut before = vec![0; histories.len()];
    for (destination, point) in points {
        let content = restored(folder, destination, &point);
        for (history, before) in histories.iter().zip(&mut before) {
            let writes = history.check(&content, &point);
            assert!(writes > *before, "{point}: {writes} writes, {before} in the point before");
            *before = writes;
        }
    }
    for history in histories {
        assert!(history.places.len() > *before.iter().min().unwrap());
    }
}

#[test]
fn two_luns_have_one_instant_and_a_snapshot_is_read_by_others() {
    let folder = folder();
    let folder = folder.path();
    let daemon = Daemon::start(folder);
    let (stop, address) = (Arc::<AtomicBool>::default(), daemon.address.clone());
    let until = Arc::clone(&stop);
    // The same number to LUN 0, then to LUN 1: at any instant they differ by one at most.
    let writer = thread::spawn(move || {
        let mut initiator = Initiator::ready(&address, IQN);
        while initiator.execute(1, &[0; 6], &[], 0).unwrap().status != 0 {}
        let mut number = 0;
        while !until.load(SeqCst) {
            number += 1;
            for lun in [0, 1] {
                write(&mut initiator, lun, 0, number).unwrap();
            }
        }
    });
    let name = |lun: u16| format!("{IQN}/{lun}");
    for _ in 0..5 {
        let made = succeed(command(folder, &["snapshot", "create", &name(0), &name(1), "--json"]));
        let made: Value = serde_json::from_str(&made).unwrap();
        let numbers: Vec<_> = made["snapshots"].as_array().unwrap().iter().map(first_number).collect();
        assert_eq!(numbers.len(), 2);
        assert!(numbers[0] == numbers[1] || numbers[0] == numbers[1] + 1, "{numbers:?}");
        for made in made["snapshots"].as_array().unwrap() {
            succeed(command(folder, &["snapshot", "delete", made["snapshot"]["name"].as_str().unwrap()]));
        }
    }
    stop.store(true, SeqCst);
    writer.join().unwrap();
    assert!(snapshots(folder).is_empty());
    for (words, why) in [
        (&["snapshot", "create", "iqn.2026-11.com.example:none/0"][..], "there is no target"),
        (&["snapshot", "create", &name(9)], "there is no target"),
        (&["snapshot", "delete", "0f0f"], "there is no snapshot"),
    ] {
        let said = refused(command(folder, words));
        assert!(said.contains(why), "{said}");
    }
}

/// The number in the first piece of a snapshot, read over NBD.
fn first_number(made: &Value) -> u64 {
    use lunway_block::{BlockDevice, Buf};
    let socket = made["socket"].as_str().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = lunway_nbd::NbdClient::connect(&NbdUri::on_socket(socket), None).await.unwrap();
        let read = client.read(0, Buf::for_overwrite(PIECE as usize)).await.unwrap();
        let number = u64::from_le_bytes(read[..8].try_into().unwrap());
        assert!(read[..] == piece(number));
        number
    })
}

#[test]
fn kills_of_the_command_and_of_the_daemon_leave_no_bad_point_and_nothing_behind() {
    let kills = std::env::var("LUNWAY_BACKUP_KILLS").map_or(20, |count| count.parse().unwrap());
    let folder = folder();
    let folder = folder.path();
    let mut random = 88_172_645_463_325_252_u64;
    let mut daemon = Daemon::start(folder);
    let mut number = 0;
    let mut sealed = 0;
    for kill in 0..kills {
        let mut initiator = Initiator::ready(&daemon.address, IQN);
        for _ in 0..40 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            number += 1;
            write(&mut initiator, 0, random % (SIZE / PIECE) * PIECE, number).unwrap();
        }
        let mut command = backup(folder, 0, &["one", "--limit", "4M"]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        thread::sleep(Duration::from_millis(random % 400));
        // It may have ended by itself.
        if kill % 2 == 0 {
            child.kill().unwrap();
            sealed += usize::from(child.wait().unwrap().success());
        } else {
            daemon.kill();
            sealed += usize::from(child.wait().unwrap().success());
            daemon = Daemon::start(folder);
        }
        if kill % 5 == 4 {
            run(folder, "one");
            let content = restored(folder, "one", "latest");
            assert!(content == fs::read(folder.join("disk.img")).unwrap(), "after kill {kill}");
            assert_eq!(epochs(folder).len(), 1, "only the newest point's");
            wait_until_no_snapshot(folder);
        }
    }
    let done = run(folder, "one");
    assert!(done["why"].as_str().unwrap().contains("are known"), "{done}");
    succeed(command(folder, &["backup", "verify", "one"]));
    println!("{kills} kills, {sealed} of the runs had been sealed before");
    let left: Vec<_> =
        fs::read_dir(folder.join("state")).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert!(!left.iter().any(|name| name.to_str().unwrap().starts_with("snapshot-")), "{left:?}");
}

#[test]
fn an_epoch_that_is_closed_for_a_killed_run_when_the_next_one_has_begun_is_released() {
    let folder = folder();
    let folder = folder.path();
    let daemon = Daemon::start(folder);
    fill(&daemon, 2);
    // The killed run had noted it, and asked for it: the daemon does not have it yet.
    let late = "1".repeat(32);
    let destination = HostFolder::open(&folder.join("one")).unwrap();
    Epochs { closed: vec![late.clone()] }.store(&destination).unwrap();
    let mut next = backup(folder, 0, &["one", "--limit", "4M"]).spawn().unwrap();
    support::until(|| epochs(folder).len() == 1);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = Client::new(Endpoint::Unix(folder.join("api.sock")));
    let orders = json!({ "luns": [{ "target": IQN, "lun": 0, "epoch": late }] });
    runtime.block_on(client.call(Method::POST, "/v1/snapshots", Some(&orders))).unwrap();
    assert!(next.try_wait().unwrap().is_none(), "the run is under way");
    assert!(next.wait().unwrap().success());
    assert_eq!(epochs(folder).len(), 1, "only the newest point's");
}

#[test]
fn a_full_area_breaks_the_run_and_no_write() {
    let folder = folder();
    let folder = folder.path();
    let daemon = Daemon::start(folder);
    fill(&daemon, 2);
    let writer = Writer::start(&daemon.address, 1, 0, Duration::from_micros(200));
    let began = Instant::now();
    thread::sleep(Duration::from_secs(3));
    let from = Instant::now();
    let said = refused(backup(folder, 0, &["one", "--area", "1M", "--limit", "1M"]));
    assert!(said.contains("is full") && said.contains("--area"), "{said}");
    while from.elapsed() < Duration::from_secs(3) {
        thread::sleep(Duration::from_millis(50));
    }
    let to = Instant::now();
    let history = writer.end();
    compare("area full", history.p99(began, from), history.p99(from, to));
    wait_until_no_snapshot(folder);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = Client::new(Endpoint::Unix(folder.join("api.sock")));
    let metrics: Value = runtime.block_on(client.get("/v1/metrics")).unwrap();
    assert_eq!(metrics["snapshots_broken"], 1, "deleted ones are not counted");
    // The next one goes on.
    run(folder, "one");
    assert!(restored(folder, "one", "latest") == fs::read(folder.join("disk.img")).unwrap());
    assert_eq!(epochs(folder).len(), 1);
}

#[test]
fn a_destination_that_stalls_is_no_business_of_the_guest() {
    let seconds = std::env::var("LUNWAY_STALL_SECONDS").map_or(6, |seconds| seconds.parse().unwrap());
    let folder = folder();
    let folder = folder.path();
    let daemon = Daemon::start(folder);
    fill(&daemon, 4);
    let writer = Writer::start(&daemon.address, 1, 0, Duration::from_micros(200));
    let began = Instant::now();
    thread::sleep(Duration::from_secs(seconds));
    let from = Instant::now();
    let mut child = stalled(folder);
    thread::sleep(Duration::from_secs(seconds));
    let to = Instant::now();
    assert_eq!(snapshots(folder).len(), 1, "it lasts as long as its reader");
    signal(&child, Signal::CONT);
    assert!(support::wait(&mut child, PATIENCE).unwrap().success());
    let ended = Instant::now();
    thread::sleep(Duration::from_secs(seconds));
    let writes = writer.end();
    let (before, after) = (writes.p99(began, from), writes.p99(ended, Instant::now()));
    compare("destination stalled", before.max(after), writes.p99(from, to));
    writes.check(&restored(folder, "one", "latest"), "the point of the stalled run");
    wait_until_no_snapshot(folder);
}

/// A run that stands still in its middle, as one whose share does not answer.
fn stalled(folder: &Path) -> Child {
    let mut command = backup(folder, 0, &["one", "--limit", "16M"]);
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    support::until(|| !snapshots(folder).is_empty());
    thread::sleep(Duration::from_millis(300));
    signal(&child, Signal::STOP);
    child
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// Writes something everywhere in the regions of so many writers beyond the first.
fn fill(daemon: &Daemon, regions: u64) {
    let mut initiator = Initiator::ready(&daemon.address, IQN);
    for number in 2 * REGION / PIECE..(2 + regions) * REGION / PIECE {
        write(&mut initiator, 0, number * PIECE, number).unwrap();
    }
}

/// Prints both. The goal is 1.5 times; refused is what is not the noise of a busy machine any more, whose time slices
/// alone are 10 ms.
fn compare(what: &str, without: Duration, during: Duration) {
    let ratio = during.as_secs_f64() / without.as_secs_f64();
    println!("{what}: p99 of 4 KiB writes {without:?} without, {during:?} during: {ratio:.2} times");
    let limit = (without * 3).max(Duration::from_millis(40));
    assert!(during < limit, "{what}: {without:?} without, {during:?} during");
}

#[test]
fn snapshots_that_are_asked_for_together_wait_for_each_other() {
    let folder = folder();
    let folder = folder.path();
    let _daemon = Daemon::start(folder);
    // In both orders: none waits for one that waits for it.
    let (both, turned) = ([format!("{IQN}/0"), format!("{IQN}/1")], [format!("{IQN}/1"), format!("{IQN}/0")]);
    for _ in 0..3 {
        let asked = [&both, &turned, &both].map(|[one, other]| {
            let words = ["snapshot", "create", one, other];
            Running::start(command(folder, &words))
        });
        for asked in asked {
            let output = asked.end(PATIENCE);
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        assert_eq!(snapshots(folder).len(), 6);
        for made in snapshots(folder) {
            succeed(command(folder, &["snapshot", "delete", made["snapshot"]["name"].as_str().unwrap()]));
        }
    }
    let twice = finish(command(folder, &["snapshot", "create", &both[0], &both[0]]), PATIENCE);
    let said = String::from_utf8_lossy(&twice.stderr);
    assert!(
        twice.status.code() == Some(2) && said.contains(&format!("{} is named twice", both[0])),
        "{said}"
    );
    assert!(snapshots(folder).is_empty());
}

#[test]
fn a_snapshot_ends_with_its_lun_and_only_where_that_is_said() {
    let folder = folder();
    let folder = folder.path();
    let _daemon = Daemon::start(folder);
    let create = || {
        succeed(command(folder, &["snapshot", "create", &format!("{IQN}/1")]));
        let made = snapshots(folder).pop().unwrap();
        made["snapshot"]["name"].as_str().unwrap().to_owned()
    };
    let name = create();
    fs::File::create(folder.join("third.img")).unwrap().set_len(SIZE).unwrap();
    for (verb, more) in [
        ("resize", &["128M", "--shrink"][..]),
        ("resize", &["128M", "--shrink", "--dry-run"]),
        ("remove", &[]),
        ("remove", &["--dry-run"]),
        ("add", &["third.img", "--replace"]),
        ("set", &["--device", "third.img"]),
    ] {
        let said = refused(lun(folder, verb, &[&[IQN, "1"], more].concat()));
        assert!(said.contains(&name) && said.contains("--end-snapshots"), "{verb}: {said}");
    }
    // The last target cannot be removed at all.
    succeed(command(folder, &["target", "add", "iqn.2026-11.test:other", "--open"]));
    let said = refused(command(folder, &["target", "remove", IQN]));
    assert!(said.contains(&name) && said.contains("--end-snapshots"), "{said}");
    assert!(snapshots(folder)[0]["snapshot"]["broken"].is_null());
    succeed(lun(folder, "resize", &[IQN, "1", "512M"]));
    succeed(lun(folder, "resize", &[IQN, "1", "128M", "--shrink", "--end-snapshots"]));
    let broken = snapshots(folder)[0]["snapshot"]["broken"].clone();
    assert!(broken.as_str().unwrap().contains("made smaller"), "{broken}");
    // What cannot be read any more is in nobody's way.
    succeed(lun(folder, "resize", &[IQN, "1", "64M", "--shrink"]));
    succeed(lun(folder, "resize", &[IQN, "1", "256M"]));
    create();
    refused(lun(folder, "remove", &[IQN, "1"]));
    succeed(lun(folder, "remove", &[IQN, "1", "--end-snapshots"]));
    assert!(snapshots(folder).is_empty());
    // Its device is closed: it can be opened again.
    succeed(lun(folder, "add", &[IQN, "1", "other.img"]));
    assert_same_bytes(&folder.join("disk.img"), &folder.join("other.img"));
    assert!(finish(command(folder, &["snapshot", "list"]), PATIENCE).status.success());
}
