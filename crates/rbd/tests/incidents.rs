//! What happens to a cluster, and to a client of it, while it is written to: nothing that was acknowledged is lost,
//! nothing lands late, every operation ends, and each error says what it is.
//!
//! Each kind once; `CEPH_INCIDENTS=100` makes more, chosen by `CEPH_INCIDENTS_SEED`. The whole test runs in a network
//! namespace of its own, whose one link is the network that is cut.

#![expect(clippy::unwrap_used, reason = "a failed test shall say where")]

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use lunway_block::spec::{DeviceSpec, RbdName};
use lunway_block::{BlockDevice, BlockError, Buf, Durability, Fate, Io};
use lunway_foreign::ceph::{Ceph, Store};
use lunway_rbd::{RbdDevice, RbdOptions};

/// More than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(240);
/// The device's limit for an operation.
const LIMIT: Duration = Duration::from_secs(8);
/// What an operation may take beyond three times that, after which it is given up: the machine may be busy.
const SLACK: Duration = Duration::from_secs(60);
const WRITERS: usize = 8;
/// Blocks of each writer, 256 KiB apart, so that they lie in all objects.
const BLOCKS: usize = 32;
const BLOCK: usize = 4096;
const STRIDE: u64 = 256 << 10;
const MIB: u64 = 1 << 20;
/// The variable by which the test knows that it is in its namespace.
const INSIDE: &str = "LUNWAY_INCIDENTS_INSIDE";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Incident {
    OsdKilled,
    MonitorKilled,
    NetworkCut,
    Full,
    Removed,
    Resized,
    LockBroken,
    Blocklisted,
}

const KINDS: [Incident; 8] = [
    Incident::OsdKilled,
    Incident::MonitorKilled,
    Incident::NetworkCut,
    Incident::Full,
    Incident::Removed,
    Incident::Resized,
    Incident::LockBroken,
    Incident::Blocklisted,
];

/// Seeded choices.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

fn name(text: &str) -> RbdName {
    match DeviceSpec::parse(text).unwrap() {
        DeviceSpec::Rbd { name } => name,
        other => panic!("{other}"),
    }
}

/// `share`: with one client for all images that are opened so.
async fn open(ceph: &Ceph, image: &str, options: RbdOptions, share: bool) -> RbdDevice {
    let share = if share { "&share=incidents" } else { "" };
    let at = name(&format!("{}&timeout={}s{share}", ceph.device(image), LIMIT.as_secs()));
    RbdDevice::open(&at, &options).await.unwrap_or_else(|error| panic!("{error}"))
}

/// A block with its place and a stamp all over it.
fn stamped(place: u64, stamp: u64) -> Buf {
    let bytes: Vec<u8> = (0..BLOCK / 8).flat_map(|_| (place << 40 | stamp).to_le_bytes()).collect();
    Buf::copy_of(&bytes)
}

/// The operation must have an answer.
async fn in_time<T: Send + Unpin + 'static>(io: Io<T>) -> T {
    tokio::time::timeout(PATIENCE, io).await.expect("an operation hangs")
}

/// What a block may hold: the last write that was acknowledged, and those that came after it, of which nothing is
/// known.
#[derive(Clone, Default)]
struct Held {
    acknowledged: u64,
    maybe: BTreeSet<u64>,
}

/// What one writer has of the image.
struct Part {
    writer: u64,
    blocks: Vec<Held>,
    stamp: u64,
    dice: Dice,
}

impl Part {
    fn place(&self, block: usize) -> u64 {
        block as u64 * WRITERS as u64 + self.writer
    }

    /// Reads a block, and judges what is there.
    async fn check(&mut self, device: &RbdDevice, block: usize) -> Result<(), BlockError> {
        let place = self.place(block);
        let bytes = in_time(device.read(place * STRIDE, Buf::zeroed(BLOCK))).await?;
        let found = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        let stamp = if found == 0 { 0 } else { found & ((1 << 40) - 1) };
        let expected = if stamp == 0 { Buf::zeroed(BLOCK) } else { stamped(place, stamp) };
        assert!(bytes[..] == expected[..], "block {place} is torn, or of another place: {found:x}");
        let held = &self.blocks[block];
        let may = stamp == held.acknowledged || held.maybe.contains(&stamp);
        assert!(
            may,
            "block {place} holds write {stamp}; {} was acknowledged, {:?} may have been carried out",
            held.acknowledged, held.maybe
        );
        Ok(())
    }

    async fn write(&mut self, device: &RbdDevice, told: &Told) -> bool {
        let block = self.dice.below(BLOCKS as u64) as usize;
        self.stamp += 1;
        let (place, stamp) = (self.place(block), self.stamp);
        let begun = Instant::now();
        let written = device.write(place * STRIDE, stamped(place, stamp).freeze(), Durability::Stable);
        let written = in_time(written).await;
        told.took(begun.elapsed());
        let held = &mut self.blocks[block];
        match written {
            Ok(()) => *held = Held { acknowledged: stamp, maybe: BTreeSet::new() },
            Err(error) => {
                // One that the cluster refused has not happened; one of which less is known may have.
                if !matches!(error.fate(), Fate::NotDone) {
                    held.maybe.insert(stamp);
                }
                told.error(&error);
                return false;
            }
        }
        true
    }
}

/// What the writers were told.
#[derive(Default)]
struct Told {
    errors: Mutex<BTreeMap<String, usize>>,
    longest: Mutex<Duration>,
}

impl Told {
    fn took(&self, time: Duration) {
        assert!(time < 3 * LIMIT + SLACK, "an operation took {time:?}");
        let mut longest = self.longest.lock().unwrap();
        *longest = longest.max(time);
    }

    fn error(&self, error: &BlockError) {
        let text = error.to_string();
        let says = [
            "lost the lock",
            "fenced",
            "no answer within",
            "busy",
            "no space",
            "lock was lost",
            "not there",
            "leave the device",
        ];
        assert!(says.iter().any(|part| text.contains(part)), "what does this say? {text}");
        *self.errors.lock().unwrap().entry(text).or_default() += 1;
    }
}

/// Eight writers, beside which something happens.
struct Writers {
    tasks: Vec<tokio::task::JoinHandle<Part>>,
    mended: Arc<AtomicBool>,
    begun: Arc<AtomicUsize>,
}

impl Writers {
    fn start(device: &Arc<RbdDevice>, parts: Vec<Part>, told: &Arc<Told>) -> Self {
        let (mended, begun) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let task = |mut part: Part| {
            let (device, told) = (Arc::clone(device), Arc::clone(told));
            let (mended, begun) = (Arc::clone(&mended), Arc::clone(&begun));
            tokio::spawn(async move {
                let (mut after, mut since) = (0, Instant::now());
                // Until some writes after the incident were acknowledged.
                while after < 3 {
                    let is_mended = mended.load(Ordering::Acquire);
                    if !is_mended {
                        since = Instant::now();
                    }
                    match part.write(&device, &told).await {
                        true if is_mended => after += 1,
                        true => {}
                        false => tokio::time::sleep(Duration::from_millis(20)).await,
                    }
                    begun.fetch_add(1, Ordering::AcqRel);
                    let block = part.dice.below(BLOCKS as u64) as usize;
                    if let Err(error) = part.check(&device, block).await {
                        told.error(&error);
                    }
                    let device = device.backing();
                    assert!(since.elapsed() < PATIENCE, "it does not come back: {device:?}");
                }
                part
            })
        };
        let tasks = parts.into_iter().map(task).collect();
        Self { tasks, mended, begun }
    }

    /// Waits until all of them write.
    async fn under_way(&self) {
        let (begun, from) = (Instant::now(), self.begun.load(Ordering::Acquire));
        while self.begun.load(Ordering::Acquire) < from + 4 * WRITERS {
            assert!(begun.elapsed() < PATIENCE, "nobody writes");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn end(self) -> Vec<Part> {
        self.mended.store(true, Ordering::Release);
        let mut parts = Vec::new();
        for task in self.tasks {
            parts.push(task.await.unwrap());
        }
        parts
    }
}

/// The test again, in a network namespace; `None`: there is none to be had.
fn inside() -> Option<bool> {
    let mut command = Command::new(lunway_foreign::program("unshare")?);
    let again = env::current_exe().unwrap();
    command.args(["--net", "--map-root-user", "--"]).arg(again).args([
        "nothing_is_lost_and_nothing_lands_late",
        "--exact",
        "--nocapture",
    ]);
    let can =
        Command::new("unshare").args(["--net", "--map-root-user", "ip", "link", "set", "lo", "up"]).status();
    if !can.is_ok_and(|can| can.success()) {
        lunway_foreign::machine_lacks("network namespaces");
        return None;
    }
    Some(command.env(INSIDE, "1").status().unwrap().success())
}

fn link(state: &str) {
    let status = Command::new("ip").args(["link", "set", "lo", state]).status().unwrap();
    assert!(status.success(), "the link is not {state}");
}

/// The holder of an image's lock, as Ceph's own command names it.
fn holder(ceph: &Ceph, image: &str) -> Option<(String, String, String)> {
    let locks = ceph.run("rbd", &["lock", "ls", image]);
    let words: Vec<&str> = locks.lines().last()?.split_whitespace().collect();
    let [client, id @ .., address] = &words[..] else { return None };
    Some(((*client).to_owned(), id.join(" "), (*address).to_owned()))
}

fn pause(dice: &mut Dice, from_ms: u64, to_ms: u64) {
    thread::sleep(Duration::from_millis(from_ms + dice.below(to_ms - from_ms)));
}

/// Has something happen, and puts right what can be. Blocks.
fn happen(ceph: &Ceph, incident: Incident, dice: &mut Dice) {
    match incident {
        Incident::OsdKilled => {
            ceph.kill("osd");
            pause(dice, 0, 3000);
            ceph.revive("osd");
        }
        Incident::MonitorKilled => {
            ceph.kill("mon");
            pause(dice, 0, 3000);
            ceph.revive("mon");
        }
        Incident::NetworkCut => {
            link("down");
            // Shorter than the limit of an operation, and longer.
            pause(dice, 500, 2 * LIMIT.as_millis() as u64);
            link("up");
        }
        Incident::Full => {
            // The OSD is full when a hundred-thousandth is used, and says so a moment later.
            for (ratio, value) in [("nearfull", "0.00001"), ("backfillfull", "0.00002"), ("full", "0.00003")]
            {
                ceph.run("ceph", &["osd", &format!("set-{ratio}-ratio"), value]);
            }
            pause(dice, 3000, 2 * LIMIT.as_millis() as u64);
            for (ratio, value) in [("full", "0.95"), ("backfillfull", "0.90"), ("nearfull", "0.85")] {
                ceph.run("ceph", &["osd", &format!("set-{ratio}-ratio"), value]);
            }
            // An OSD that is killed before the monitor has heard of it cannot boot: each waits for the other (Ceph 16).
            // On its way back it is OSD_FULL, OSD_BACKFILLFULL and OSD_NEARFULL, and so are the pools.
            let begun = Instant::now();
            while ceph.run("ceph", &["health", "detail"]).contains("FULL") {
                assert!(begun.elapsed() < PATIENCE, "the cluster stays full");
                thread::sleep(Duration::from_millis(200));
            }
        }
        Incident::Resized => {
            let size = format!("{}M", 64 + dice.below(64));
            ceph.run("rbd", &["resize", "--allow-shrink", "--size", &size, "disk"]);
        }
        Incident::LockBroken => {
            if let Some((client, id, _)) = holder(ceph, "disk") {
                ceph.run("rbd", &["lock", "rm", "disk", &id, &client]);
            }
        }
        Incident::Blocklisted => {
            if let Some((_, _, address)) = holder(ceph, "disk") {
                ceph.run("ceph", &["osd", "blocklist", "add", &address]);
            }
        }
        Incident::Removed => unreachable!("of an image of its own"),
    }
}

/// An image that is removed under its user, by force: each operation ends, and there is no such image. With `share` the
/// disk has the same client, which is fenced here.
async fn removed(ceph: &Ceph, number: usize, share: bool) {
    let image = format!("victim{number}");
    ceph.run("rbd", &["create", "--size", "16M", &image]);
    let device = open(ceph, &image, RbdOptions { renew: true, ..RbdOptions::default() }, share).await;
    device.write(0, stamped(0, 1).freeze(), Durability::Stable).await.unwrap();
    let refused = ceph.output("rbd", &["rm", "--no-progress", &image]);
    assert!(!refused.status.success(), "an image in use was removed");
    let info = ceph.run("rbd", &["info", &image, "--format", "json"]);
    let id = info.split("\"id\":\"").nth(1).unwrap().split('"').next().unwrap();
    let (_, _, address) = holder(ceph, &image).unwrap();
    for object in [format!("rbd_id.{image}"), format!("rbd_header.{id}")] {
        let mut command = Command::new("rados");
        command.arg("--conf").arg(ceph.conf()).args(["-p", "rbd", "rm", &object]);
        assert!(command.status().unwrap().success(), "{object}");
    }
    ceph.run("ceph", &["osd", "blocklist", "add", &address]);
    let (told, begun) = (Told::default(), Instant::now());
    // Fenced, it looks for its image and finds none; or librbd has found out before that it is gone.
    let mut is_gone = false;
    while !is_gone && !device.backing().is_some_and(|why| why.contains("no such image")) {
        let at = Instant::now();
        if let Err(error) = in_time(device.write(0, stamped(0, 2).freeze(), Durability::Stable)).await {
            is_gone = error.to_string().contains("not there any more");
            told.error(&error);
        }
        told.took(at.elapsed());
        assert!(begun.elapsed() < PATIENCE, "{:?}", device.backing());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // Its end may wait for what librbd has lost.
    drop(device);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_and_nothing_lands_late() {
    let is_cut_off = env::var_os(INSIDE).is_some();
    if !is_cut_off {
        if ["ceph-mon", "ceph-osd", "rbd"].iter().any(|program| lunway_foreign::program(program).is_none()) {
            return;
        }
        if let Some(passed) = tokio::task::spawn_blocking(inside).await.unwrap() {
            return assert!(passed, "see above");
        }
    } else {
        link("up");
    }
    let number = |variable: &str| env::var(variable).ok().and_then(|text| text.parse::<u64>().ok());
    let count = number("CEPH_INCIDENTS").unwrap_or(KINDS.len() as u64) as usize;
    let seed = number("CEPH_INCIDENTS_SEED").unwrap_or(19);
    let Some(ceph) = Ceph::start(Store::BlueStore) else { return };
    let ceph = Arc::new(ceph);
    ceph.run("rbd", &["create", "--size", "64M", "disk"]);
    let device =
        Arc::new(open(&ceph, "disk", RbdOptions { renew: true, ..RbdOptions::default() }, true).await);
    let mut dice = Dice(seed);
    let part =
        |writer| Part { writer, blocks: vec![Held::default(); BLOCKS], stamp: 0, dice: Dice(seed ^ writer) };
    let mut parts: Vec<Part> = (0..WRITERS as u64).map(part).collect();
    let told = Arc::new(Told::default());
    let mut happened = BTreeMap::<Incident, usize>::new();
    let begun = Instant::now();
    let mut order = KINDS.to_vec();
    for round in 0..count {
        if round % KINDS.len() == 0 {
            // Each kind once in each eight, in another order.
            for at in (1..order.len()).rev() {
                order.swap(at, dice.below(at as u64 + 1) as usize);
            }
        }
        let incident = order[round % KINDS.len()];
        if incident == Incident::NetworkCut && !is_cut_off {
            continue;
        }
        let at = Instant::now();
        let writers = Writers::start(&device, parts, &told);
        writers.under_way().await;
        match incident {
            Incident::Removed => removed(&ceph, round, (round / KINDS.len()).is_multiple_of(2)).await,
            _ => {
                let (ceph, fate) = (Arc::clone(&ceph), dice.below(u64::MAX >> 1));
                let happening = move || happen(&ceph, incident, &mut Dice(fate));
                tokio::task::spawn_blocking(happening).await.unwrap();
            }
        }
        parts = writers.end().await;
        for part in &mut parts {
            for block in 0..BLOCKS {
                let begun = Instant::now();
                while let Err(error) = part.check(&device, block).await {
                    told.error(&error);
                    assert!(begun.elapsed() < PATIENCE, "{error}");
                }
            }
        }
        *happened.entry(incident).or_default() += 1;
        println!("{:>4} {incident:?}: {:.1} s", round + 1, at.elapsed().as_secs_f64());
    }
    let size = device.geometry().size;
    assert!(size >= 64 * MIB, "{size}");
    device.close().await.unwrap();
    // What another client sees.
    let other = open(&ceph, "disk", RbdOptions { read_only: true, ..RbdOptions::default() }, false).await;
    for part in &mut parts {
        for block in 0..BLOCKS {
            part.check(&other, block).await.unwrap();
        }
    }
    other.close().await.unwrap();
    let writes: u64 = parts.iter().map(|part| part.stamp).sum();
    println!("{happened:?}\n{writes} writes in {:.0} s, seed {seed}", begun.elapsed().as_secs_f64());
    println!("the longest operation took {:.1} s", told.longest.lock().unwrap().as_secs_f64());
    for (text, count) in &*told.errors.lock().unwrap() {
        println!("{count:>6} × {text}");
    }
}
