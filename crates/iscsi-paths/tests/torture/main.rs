//! Torture: verified random I/O over four lanes while cables are cut, become black holes, flap and stutter, the target
//! is killed, stands still or serves another disk, and the initiator is killed, or loses its key to another node.
//!
//! The initiator is a process of its own ([`client`]), as the target is ([`target`]). The expected content of the disk
//! is known here ([`region`]):
//!
//! - an acknowledged write that was not overwritten since is there;
//! - a write that was under way when its client died has left the old or the new data, whichever is seen first, and
//!   that from then on;
//! - flushed data is there, whatever dies. Acknowledged data that was not flushed may be lost where *both* ends died,
//!   and only there.
//!
//! As a test it is short. `script/soak torture` runs it as long as is asked for:
//!
//! - `LUNWAY_INCIDENTS`: how many incidents for each kind of target. If not said, [`SHORT`] of a fixed seed and as many
//!   of another one.
//! - `LUNWAY_SEED`: which ones; printed in any case.
//! - `LUNWAY_ONLY`: names of kinds of incidents, with commas between; the others are left out.

#![expect(clippy::unwrap_used, reason = "a test ends where something it needs is missing")]

mod client;
mod connection;
mod incident;
#[path = "../../../initiator/tests/support/line.rs"]
mod line;
mod lio;
mod node;
mod random;
mod region;
mod target;
mod volatile;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lunway_foreign::namespace;
use lunway_initiator::{IscsiDevice, IscsiUrl, SessionOptions};
use tokio::sync::{Mutex, watch};

use client::Client;
use connection::Connection;
use incident::{Cables, Incident};
use line::Line;
use node::DiskAddress;
use random::Random;
use region::{Region, Tally};
use target::Target;

/// Workers, each with a part of the disk of its own.
const THREADS: u64 = 8;

/// Lanes, each over a cable of its own.
const LANES: usize = 4;

/// More than any operation takes: the longest trouble lasts three seconds, and an operation may meet several.
const OPERATION_MAX: Duration = Duration::from_secs(40);

/// The same with a target that hangs now and then until somebody switches it off and on: the client waits for it.
const OPERATION_MAX_HUNG: Duration = Duration::from_secs(150);

/// More than a part of the test takes that waits for the client or the target: opening the disk has a minute, and
/// another one where the target hung.
const STEP_MAX: Duration = Duration::from_secs(200);

const SIZE: u64 = region::UNUSED + THREADS * region::BYTES;

/// The key that another node takes away.
const KEY: u64 = 0xC11E;

/// Incidents of the test with either seed: ten seconds each on a quiet machine.
const SHORT: u64 = 15;
/// The seed of the first of them, chosen for 14 kinds of incidents, which together take little time.
const SEED: u64 = 170_745;

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")))
}

/// Numbers of incidents and seeds.
fn rounds() -> Vec<(u64, u64)> {
    let other = u64::from(std::process::id());
    match (setting("LUNWAY_INCIDENTS"), setting("LUNWAY_SEED")) {
        (None, None) => vec![(SHORT, SEED), (SHORT, other)],
        (incidents, seed) => vec![(incidents.unwrap_or(SHORT), seed.unwrap_or(other))],
    }
}

#[tokio::test]
async fn nothing_is_lost_torn_stale_or_reordered_whatever_happens_to_cables_target_and_initiator() {
    for (incidents, seed) in rounds() {
        Box::pin(torture(Target::ours(SIZE).await, incidents, seed)).await;
    }
}

#[tokio::test]
async fn nothing_is_lost_torn_stale_or_reordered_on_tgt_either() {
    for (incidents, seed) in rounds() {
        let Some(target) = Target::tgt(SIZE).await else { return };
        Box::pin(torture(target, incidents, seed)).await;
    }
}

#[tokio::test]
#[ignore = "run by script/soak: LIO itself hangs now and then"]
async fn nothing_is_lost_torn_stale_or_reordered_on_lio_either() {
    let test = "nothing_is_lost_torn_stale_or_reordered_on_lio_either";
    if !lio::is_there() || !namespace::inside(test) {
        return;
    }
    lio::make_network();
    for (incidents, seed) in rounds() {
        Box::pin(torture(Target::lio(SIZE).await, incidents, seed)).await;
    }
}

/// A target, the cables that lead to it, and the client that uses it.
struct Torture {
    target: Arc<Mutex<Target>>,
    cables: Cables,
    random: Random,
    tally: Arc<Tally>,
    /// `None` while one is being started.
    client: Option<Client>,
    clients: watch::Sender<Option<Arc<Connection>>>,
    sockets: PathBuf,
    /// The address of the disk over all cables.
    address: String,
}

async fn torture(target: Target, incidents: u64, seed: u64) {
    println!("{incidents} incidents on {target}, LUNWAY_SEED={seed}");
    let mut random = Random(seed);
    let mut lines = Vec::new();
    for n in 0..LANES {
        let line = Line::start_at([127, 0, 0, 41 + n as u8], target.portal(n)).await;
        if !target.forgets_half_open_logins() {
            line.probe();
        }
        lines.push(line);
    }
    let lane = |(n, line): (usize, &Line)| format!("lane=127.0.0.{}>{}", 31 + n, line.address);
    let lanes: Vec<_> = lines.iter().enumerate().map(lane).collect();
    let address = format!(
        "iscsi://{}/{}/{}?{}&failback=immediate&queue={}s",
        lines[0].address,
        target.name,
        target.lun,
        lanes.join("&"),
        target.queue_time().as_secs()
    );
    let operation_max = target.operation_max();
    let tally = Arc::new(Tally::default());
    let stop = Arc::new(AtomicBool::new(false));
    let (clients, connected) = watch::channel(None);
    let workers: Vec<_> = (0..THREADS)
        .map(|number| {
            let region = Region::new(number, random.next(), tally.clone(), operation_max);
            work(region, connected.clone(), stop.clone())
        })
        .collect();
    let sockets = target.folder().to_owned();
    let target = Arc::new(Mutex::new(target));
    let torture = Torture {
        target: target.clone(),
        cables: Cables::new(lines),
        random,
        tally: tally.clone(),
        client: None,
        clients,
        sockets,
        address,
    };
    let start = Instant::now();
    let (mut regions, told) = tokio::select! {
        never = Target::keep_up(&target, &tally) => match never {},
        ended = torture.run(incidents, &stop, workers) => ended,
    };

    // What a stranger finds after one more kill: what is on the medium is all that is left.
    let mut target = target.lock().await;
    target.kill().await;
    target.start_again().await;
    let url = IscsiUrl::parse(&format!("iscsi://{}/{}/{}", target.address, target.name, target.lun)).unwrap();
    let plain = IscsiDevice::open(url, SessionOptions::default()).await.unwrap();
    for region in &mut regions {
        region.check_all(&plain).await;
    }
    plain.close().await;
    println!("{tally}; {told}; {:.1} s", start.elapsed().as_secs_f64());
    assert!(tally.failures() == 0, "{tally}; LUNWAY_SEED={seed}");
    assert!(tally.operations.load(Ordering::Relaxed) > 10 * incidents, "hardly anything was done");
}

/// A worker on a thread of its own.
fn work(mut region: Region, connected: region::Connected, stop: Arc<AtomicBool>) -> JoinHandle<Region> {
    let run = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(region.live(connected, &stop));
        region
    };
    std::thread::spawn(run)
}

/// Waits for a part of the test; one that takes too long is a failure with a name, not a test without an end.
async fn in_time<T>(step: &str, tally: &Tally, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(STEP_MAX, future).await {
        Ok(done) => done,
        Err(_) => panic!("{step} has taken {STEP_MAX:?}: {tally}{}", tally.events()),
    }
}

impl Torture {
    /// Lets incidents happen, and then everything get well; returns what workers know of their regions, and a sentence
    /// about the incidents.
    async fn run(
        mut self,
        incidents: u64,
        stop: &AtomicBool,
        workers: Vec<JoinHandle<Region>>,
    ) -> (Vec<Region>, String) {
        let tally = self.tally.clone();
        let only = std::env::var("LUNWAY_ONLY").ok();
        in_time("the first start of the client", &tally, self.start_client(None)).await;
        let start = Instant::now();
        let mut kinds = BTreeMap::<&str, u64>::new();
        let kinds_of_incidents = self.target.lock().await.incidents();
        for number in 1..=incidents {
            let pause = Duration::from_millis(20 + self.random.below(350));
            tokio::time::sleep(pause).await;
            let incident = Incident::random(&mut self.random, kinds_of_incidents);
            if only.as_ref().is_some_and(|only| !only.split(',').any(|name| name == incident.name())) {
                continue;
            }
            *kinds.entry(incident.name()).or_default() += 1;
            let before = tally.failures();
            tally.note(format!("{number}: {incident:?}"));
            in_time(&format!("incident {number}, {incident:?},"), &tally, self.meet(incident)).await;
            tally.note(format!("{number}: {} has happened", incident.name()));
            if tally.failures() > before {
                println!("after {number} incidents, in {incident:?}: {tally}");
            }
            if number % 50 == 0 {
                println!("{number} incidents, {:.0} s: {tally}", start.elapsed().as_secs_f64());
            }
        }
        in_time("the end of incidents of cables", &tally, self.cables.heal()).await;
        // With everything well again, all lanes come back.
        let client = self.client.take().unwrap();
        let all_lanes = async {
            while client.lanes().await.0 > 0 {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        in_time("the return of all lanes", &tally, all_lanes).await;
        stop.store(true, Ordering::Relaxed);
        let ended = async {
            while !workers.iter().all(JoinHandle::is_finished) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        in_time("the end of the workers", &tally, ended).await;
        let regions = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
        let (_, sessions) = client.lanes().await;
        // Its end flushes.
        in_time("the end of the client", &tally, client.close()).await;
        (regions, format!("{sessions} sessions of the last client; {kinds:?}"))
    }

    /// Starts a client, which registers `key`.
    async fn start_client(&mut self, key: Option<u64>) {
        let key = key.map(|key| format!("&key={key:#x}")).unwrap_or_default();
        let address = format!("{}{key}", self.address);
        let client = loop {
            if let Some(client) = Client::start(&self.sockets, &address).await {
                break client;
            }
            let hung = self.target.lock().await.hung(&self.tally).await;
            assert!(hung, "the client ended instead of opening the disk");
        };
        self.clients.send_replace(Some(client.connection.clone()));
        self.client = Some(client);
    }

    async fn kill_client(&mut self) {
        self.clients.send_replace(None);
        self.client.take().unwrap().kill().await;
    }

    fn connection(&self) -> &Connection {
        &self.client.as_ref().unwrap().connection
    }

    async fn meet(&mut self, incident: Incident) {
        let sleep = tokio::time::sleep;
        match incident {
            Incident::Restart { pause } => {
                let mut target = self.target.lock().await;
                if target.loses_power() {
                    self.tally.power_cuts.fetch_add(1, Ordering::SeqCst);
                }
                target.kill().await;
                sleep(pause).await;
                target.start_again().await;
                self.cables.redirect(&target);
            }
            Incident::Policy(index) => self.client.as_ref().unwrap().set_policy(index).await,
            Incident::Stop(time) => {
                let target = self.target.lock().await;
                target.freeze(true);
                sleep(time).await;
                target.freeze(false);
            }
            Incident::OutOfService(time) => {
                let mut target = self.target.lock().await;
                target.in_service(false, &self.tally).await;
                sleep(time).await;
                target.in_service(true, &self.tally).await;
            }
            Incident::Kill { pause } => {
                self.kill_client().await;
                sleep(pause).await;
                self.start_client(None).await;
            }
            Incident::KillInBlackHole { stuck, pause, work } => {
                let Some((line, _busy)) = self.cables.take(&mut self.random) else { return };
                line.swallow(true);
                sleep(stuck).await;
                self.kill_client().await;
                sleep(pause).await;
                self.start_client(None).await;
                sleep(work).await;
                line.swallow(false);
            }
            Incident::KillLate { hold, late } => {
                let Some((line, busy)) = self.cables.take(&mut self.random) else { return };
                line.refuse(true);
                line.cut_and_deliver_late(hold, late).await;
                self.kill_client().await;
                self.start_client(None).await;
                sleep(late).await;
                line.refuse(false);
                drop(busy);
            }
            Incident::Exchange(time) => self.exchange(time).await,
            Incident::Preempt { work, watch } => self.preempt(work, watch).await,
            cable => self.cables.meet(cable, &mut self.random),
        }
    }

    /// The client finds another disk under its number, closes for good, and has written nothing on it.
    async fn exchange(&mut self, time: Duration) {
        self.connection().excuse();
        self.target.lock().await.exchange(&self.tally).await;
        tokio::time::sleep(time).await;
        self.kill_client().await;
        let mut target = self.target.lock().await;
        target.exchange(&self.tally).await;
        if !target.other_is_untouched() {
            self.tally.complain(&self.tally.wrong, || "another disk was written".to_owned());
        }
        drop(target);
        self.start_client(None).await;
    }

    async fn preempt(&mut self, work: Duration, watch: Duration) {
        self.kill_client().await;
        self.start_client(Some(KEY)).await;
        tokio::time::sleep(work).await;
        self.connection().excuse();
        let crashes = self.tally.crashes.load(Ordering::SeqCst);
        match self.take_key_away(watch).await {
            Ok(0) => {}
            // A target that has crashed knows no keys, so that they protect nothing.
            _ if self.tally.crashes.load(Ordering::SeqCst) > crashes => {
                self.tally.note("the target has forgotten the keys".to_owned());
            }
            Ok(differing) => self.tally.complain(&self.tally.wrong, || {
                format!("{differing} blocks were written by a node whose key had been taken away")
            }),
            Err(error) => panic!("a node that takes a key away: {error}"),
        }
        self.kill_client().await;
        self.start_client(None).await;
    }

    /// Returns how many blocks differ after the key has been taken away.
    async fn take_key_away(&mut self, watch: Duration) -> Result<usize, String> {
        let place = {
            let target = self.target.lock().await;
            DiskAddress::new(target.address, &target.name, target.lun)
        };
        let node = place.join().await?;
        node.preempt(KEY).await?;
        let _ = self.connection().fenced.set(Instant::now());
        let then = node.read_all(SIZE).await?;
        // Lanes that come back find no key, and may not make themselves one.
        self.cables.meet(Incident::CutAll, &mut self.random);
        tokio::time::sleep(watch).await;
        let now = node.read_all(SIZE).await?;
        node.leave().await?;
        Ok(then.chunks(region::BLOCK).zip(now.chunks(region::BLOCK)).filter(|(a, b)| a != b).count())
    }
}
