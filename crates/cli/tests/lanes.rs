//! What `attach` gives to other programs, over several lanes, while cables are pulled.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "support/attached.rs"]
mod attached;
mod support;

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use attached::{Attached, Ext4, Loop, content, run};
use support::{IQN, PATIENCE, assert_same_bytes, lunway};

const LANES: usize = 4;
const SIZE: u64 = 256 << 20;
const FILE: usize = 1 << 20;

/// Two hosts in namespaces of their own and four cables between them: 10.99.LANE.1 is the storage's end, .2 the other.
struct Network {
    /// Their names begin with it.
    tag: String,
}

impl Network {
    /// `None` where namespaces cannot be made.
    fn new() -> Option<Self> {
        lunway_foreign::program("ip")?;
        if !rustix::process::geteuid().is_root() {
            lunway_foreign::machine_lacks("root, for network namespaces and loop devices");
            return None;
        }
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let turn = COUNT.fetch_add(1, Ordering::Relaxed);
        let network = Self { tag: format!("lanes{}-{turn}-", std::process::id()) };
        let (host, storage) = (network.host(), network.storage());
        for name in [&host, &storage] {
            run("ip", ["netns", "add", name]);
            run("ip", ["-n", name, "link", "set", "lo", "up"]);
        }
        for lane in 0..LANES {
            let card = format!("lane{lane}");
            let pair =
                ["-n", &host, "link", "add", &card, "type", "veth", "peer", "name", &card, "netns", &storage];
            run("ip", pair);
            for (name, end) in [(&storage, 1), (&host, 2)] {
                run("ip", ["-n", name, "address", "add", &format!("10.99.{lane}.{end}/24"), "dev", &card]);
                run("ip", ["-n", name, "link", "set", &card, "up"]);
            }
        }
        Some(network)
    }

    fn host(&self) -> String {
        format!("{}host", self.tag)
    }

    fn storage(&self) -> String {
        format!("{}storage", self.tag)
    }

    /// What `command` is, in a namespace of the network, and nowhere else: `ip netns exec` would keep its mounts to
    /// itself.
    fn inside(name: &str, command: &Command) -> Command {
        let mut inside = Command::new("nsenter");
        inside.arg(format!("--net=/run/netns/{name}")).arg("--").arg(command.get_program());
        inside.args(command.get_args());
        inside
    }

    fn cable(&self, lane: usize, state: &str) {
        run("ip", ["-n", &self.storage(), "link", "set", &format!("lane{lane}"), state]);
    }

    /// What the storage has received over a cable, bytes.
    fn carried(&self, lane: usize) -> u64 {
        let card = format!("lane{lane}");
        let shown = run("ip", ["-n", &self.storage(), "-json", "-statistics", "link", "show", "dev", &card]);
        let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
        shown[0]["stats64"]["rx"]["bytes"].as_u64().unwrap()
    }

    /// Waits until the storage has received as much more over a cable.
    fn carries(&self, lane: usize, bytes: u64) {
        let (start, before) = (Instant::now(), self.carried(lane));
        while self.carried(lane) < before + bytes {
            assert!(start.elapsed() < PATIENCE, "lane {lane} carries something");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// The lane that carries most at the moment.
    fn busiest(&self) -> usize {
        let before: Vec<_> = (0..LANES).map(|lane| self.carried(lane)).collect();
        thread::sleep(Duration::from_millis(300));
        (0..LANES).max_by_key(|&lane| self.carried(lane) - before[lane]).unwrap()
    }

    /// `lunway attach` of the disk over so many lanes, on the host.
    fn attach(&self, lanes: usize, policy: &str) -> Command {
        let lanes: Vec<_> =
            (0..lanes).map(|lane| format!("lane=10.99.{lane}.2>10.99.{lane}.1:3260")).collect();
        let device = format!("iscsi://10.99.0.1:3260/{IQN}/0?policy={policy}&{}", lanes.join("&"));
        Self::inside(&self.host(), &lunway(&["attach", &device]))
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in [self.host(), self.storage()] {
            let _ = Command::new("ip").args(["netns", "delete", &name]).status();
        }
    }
}

/// A program that is killed when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `lunway serve` on the storage's end of all cables.
struct Storage(#[expect(dead_code, reason = "it is there to be dropped")] Running);

impl Storage {
    fn serve(network: &Network, device: &str) -> Self {
        let mut command = lunway(&["serve", "--iqn", IQN, "--open", "--lun", &format!("0={device}")]);
        for lane in 0..LANES {
            command.args(["--listen", &format!("10.99.{lane}.1:3260")]);
        }
        let mut command = Network::inside(&network.storage(), &command);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = lines.next().unwrap().unwrap();
        assert!(ready.starts_with("listening on "), "{ready}");
        thread::spawn(move || lines.for_each(drop));
        Self(Running(child))
    }
}

#[test]
fn ext4_on_a_loop_device_on_four_lanes_survives_a_pulled_cable() {
    let Some(mkfs) = lunway_foreign::program("mkfs.ext4") else { return };
    let Some(network) = Network::new() else { return };
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk.img");
    File::create(&disk).unwrap().set_len(SIZE).unwrap();
    let storage = Storage::serve(&network, disk.to_str().unwrap());
    let Some(attached) = Attached::start_as(network.attach(LANES, "adaptive"), folder.path(), &[]) else {
        return;
    };
    let Some(block) = Loop::on(&attached.file()) else { return };
    run(&mkfs, ["-q", &block.0]);
    let ext4 = Ext4::mount(&block, folder.path());

    // Writers replace files and sync them, and read them back past the cache, until they are told to stop.
    let (stop, turns) = (AtomicBool::new(false), AtomicU64::new(0));
    let write = |writer: u64| {
        let mut longest = Duration::ZERO;
        for turn in 0u64.. {
            let path = ext4.0.join(format!("{writer}-{}", turn % 8));
            let start = Instant::now();
            let file = File::create(&path).unwrap();
            file.write_all_at(&content(writer * 1000 + turn, FILE), 0).unwrap();
            file.sync_all().unwrap();
            longest = longest.max(start.elapsed());
            turns.fetch_add(1, Ordering::Relaxed);
            if stop.load(Ordering::Relaxed) {
                return (turn, longest);
            }
        }
        unreachable!("it was told to stop")
    };
    let more = |count: u64| {
        let (start, before) = (Instant::now(), turns.load(Ordering::Relaxed));
        while turns.load(Ordering::Relaxed) < before + count {
            assert!(start.elapsed() < PATIENCE, "writing goes on");
            thread::sleep(Duration::from_millis(20));
        }
    };
    let written = thread::scope(|scope| {
        let writers = [1, 2, 3].map(|writer| scope.spawn(move || write(writer)));
        for _ in 0..3 {
            more(10);
            // The adaptive policy may leave lanes idle that it does not need: those may be pulled at any time.
            let lane = network.busiest();
            network.cable(lane, "down");
            more(20);
            network.cable(lane, "up");
            // Until it has been found again, and has held for a second, it carries nothing.
            thread::sleep(Duration::from_secs(2));
        }
        stop.store(true, Ordering::Relaxed);
        writers.map(|writer| writer.join().unwrap())
    });
    println!("last turns and longest file: {written:?}");
    ext4.unmount();
    block.check();
    let ext4 = Ext4::mount(&block, folder.path());
    for (writer, (last, _)) in (1u64..).zip(&written) {
        for turn in last.saturating_sub(7)..=*last {
            let found = fs::read(ext4.0.join(format!("{writer}-{}", turn % 8))).unwrap();
            assert!(found == content(writer * 1000 + turn, FILE), "file {turn} of writer {writer}");
        }
    }
    ext4.unmount();
    block.detach();
    attached.detach();
    drop(storage);
    run("e2fsck", ["-f", "-n", disk.to_str().unwrap()]);
}

#[test]
fn nbdcopy_over_two_lanes_does_not_notice_that_one_is_cut() {
    let (Some(nbdcopy), Some(network)) = (lunway_foreign::program("nbdcopy"), Network::new()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let (source, disk) = (folder.path().join("source"), folder.path().join("disk.img"));
    fs::write(&source, content(1, 96 << 20)).unwrap();
    File::create(&disk).unwrap().set_len(96 << 20).unwrap();
    // Slow enough that there is a middle to cut in.
    let _storage = Storage::serve(&network, &format!("rate:16M:{}", disk.display()));
    let socket = folder.path().join("nbd");
    let mut attach = network.attach(2, "round-robin");
    attach.args(["--nbd", &format!("unix:{}", socket.display())]);
    let mut attached = Running(attach.stdout(Stdio::piped()).spawn().unwrap());
    let mut uri = String::new();
    BufReader::new(attached.0.stdout.take().unwrap()).read_line(&mut uri).unwrap();

    let uri = uri.trim().to_owned();
    let arguments = ["--flush", "--connections=4", source.to_str().unwrap(), &uri];
    thread::scope(|scope| {
        let copying = scope.spawn(|| run(&nbdcopy, arguments));
        (0..2).for_each(|lane| network.carries(lane, 4 << 20));
        network.cable(0, "down");
        network.carries(1, 4 << 20);
        network.cable(0, "up");
        network.carries(0, 1 << 20);
        network.cable(1, "down");
        network.carries(0, 1 << 20);
        assert!(!copying.is_finished(), "all of that was in the middle of it");
        copying.join().unwrap();
    });
    assert_same_bytes(&source, &disk);
}
