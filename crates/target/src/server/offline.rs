//! Logical units whose device could not be opened when the server started: the others are served, and each of these is
//! as soon as its device can be opened. Initiators see no unit there meanwhile, or one that is becoming ready where it
//! is expected soon, and are told when there is one.
//!
//! ```text
//!   start ── make ──┬── opened in time ──▶ served
//!                   └── failed, or late ─▶ offline ── again and again ──▶ served
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use lunway_block::Permit;
use tokio::task::{AbortHandle, JoinError, JoinHandle};
use tokio::time::Instant;

use super::change::Transaction;
use super::error::StartError;
use super::lun::{self, Lun, Maker, Serials};
use super::opening::PassingError;
use super::tracking::Fallback;
use super::turn::{Turn, Turns};
use super::{Current, Luns};
use crate::config::{Config, LunConfig, TargetConfig};
use crate::shared::{Shared, Target};
use crate::summary::LunSummary;
use crate::warning::Warning;

/// Maximum time that the start waits for one device before it goes on with the next: 100 that hang take no longer than
/// one.
const STEP_TIME: Duration = Duration::from_millis(100);
/// Disks of memory that are opened at the same time: they wait for nothing but each other's threads, which takes longer
/// than all else of a start with thousands of them. Others are opened one after the other, so that of two with the same
/// file the first one has it.
const AT_ONCE: usize = 16;
/// Minimum time that it waits for those that came last.
const LAST_TIME: Duration = Duration::from_millis(500);
/// Maximum time that it waits for all of them, before it serves those that are open: a disk that answers is open in
/// milliseconds, on a busy machine in some hundred of them. Initiators that know one of the others from before repeat
/// their commands until it is open.
const START_TIME: Duration = Duration::from_secs(2);
/// Delay before a device is opened again after the first failure: a lock of a process that is ending has gone by then.
/// Each further delay is twice as long, up to [`RETRY_TIME_MAX`].
const RETRY_TIME: Duration = Duration::from_secs(1);
/// Maximum delay before a device is opened again after a failure: a mount that comes late is soon served.
const RETRY_TIME_MAX: Duration = Duration::from_secs(10);
/// Time after the start for which a device is expected soon although it could not be opened, for a reason that may
/// pass: Ceph misses a client that has died, and gives its lock away, 30 s after it has heard of it last
/// (`osd_client_watch_timeout`); opening takes some seconds more.
const PASSING_TIME: Duration = Duration::from_secs(45);
/// The sector of a disk that does not tell, bytes.
const SECTOR: u32 = 512;

/// A device being opened, with a logical unit in front of it.
type Opening = JoinHandle<Result<Lun, StartError>>;

/// The logical units that are configured and not served, with the reason.
#[derive(Default)]
pub(super) struct Offline {
    luns: Mutex<BTreeMap<(String, u16), OfflineLun>>,
    tasks: Mutex<Vec<AbortHandle>>,
    keep: Mutex<Option<KeepFormats>>,
}

/// Keeps the formats in a configuration for good. Blocks.
pub type KeepFormats = Arc<dyn Fn(&Config) + Send + Sync>;

struct OfflineLun {
    config: LunConfig,
    why: String,
}

/// Logical unit to be opened later.
pub(super) struct Left {
    target: Arc<TargetConfig>,
    config: LunConfig,
    /// Has not answered yet.
    opening: Option<Opening>,
    /// The reason why it is not open may pass by itself.
    may_pass: bool,
}

impl Left {
    /// The name of the target and the number of a unit whose device may yet answer, or be there soon.
    pub(super) fn expected(&self) -> Option<(&str, u16)> {
        (self.opening.is_some() || self.may_pass).then(|| (self.target.name.as_str(), self.config.id))
    }
}

impl Offline {
    fn luns(&self) -> MutexGuard<'_, BTreeMap<(String, u16), OfflineLun>> {
        self.luns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns `true` if a logical unit is configured like this, and offline.
    pub(super) fn has(&self, target: &str, config: &LunConfig) -> bool {
        self.luns().get(&(target.to_owned(), config.id)).is_some_and(|lun| lun.config == *config)
    }

    /// A configuration with the formats of what has been opened. What has not been opened may be anything yet.
    pub(super) fn with_formats(&self, config: &Config) -> Config {
        let targets = config.targets.iter().map(|target| self.target_with_formats(target)).collect();
        Config { targets, ..config.clone() }
    }

    /// The same, where one more has been opened.
    fn with_formats_and(&self, config: &Config, opened: &(String, u16)) -> Config {
        let mut config = self.with_formats(config);
        let mut targets = config.targets.iter_mut();
        let target = targets.find(|target| target.name.as_str() == opened.0);
        let lun = target.and_then(|target| target.luns.iter_mut().find(|lun| lun.id == opened.1));
        lun.into_iter().for_each(|lun| *lun = lun.with_format());
        config
    }

    /// The same of one target.
    pub(super) fn target_with_formats(&self, target: &TargetConfig) -> TargetConfig {
        let known = |lun: &LunConfig| match self.has(target.name.as_str(), lun) {
            true => lun.clone(),
            false => lun.with_format(),
        };
        TargetConfig { luns: target.luns.iter().map(known).collect(), ..target.clone() }
    }

    /// Forgets those that a change has taken away, or whose device it has opened; those that are configured no longer.
    pub(super) fn retain(&self, config: &Config, served: &Luns) -> Vec<(String, LunConfig)> {
        let mut gone = Vec::new();
        self.luns().retain(|key, lun| {
            let configured = config.target(&key.0).and_then(|target| target.lun(key.1));
            if configured.is_none() {
                gone.push((key.0.clone(), lun.config.clone()));
            }
            configured == Some(&lun.config) && !served.contains_key(key)
        });
        gone
    }

    /// Returns the reason why one is offline.
    pub(super) fn why(&self, target: &str, id: u16) -> Option<String> {
        self.luns().get(&(target.to_owned(), id)).map(|lun| lun.why.clone())
    }

    /// Sets the callback for a device that has been opened late, called before it is served.
    pub(super) fn keep_with(&self, keep: KeepFormats) {
        *self.keep.lock().unwrap_or_else(PoisonError::into_inner) = Some(keep);
    }

    /// Calls it, in a turn, which it gives back; `None`: it has not ended in time, or has panicked, and the LUN is
    /// served all the same.
    async fn keep(&self, turns: &Turns, turn: Turn, config: Arc<Config>) -> Option<Turn> {
        let keep = self.keep.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(keep) = keep else { return Some(turn) };
        let job = move |turn: &Turn| {
            turn.step(format!("saving the configuration file {}", config.origin));
            keep(&config);
        };
        turns.run(turn, &Permit::default(), job, drop).await.ok().map(|((), turn)| turn)
    }

    /// A warning for each.
    pub(super) fn warnings(&self) -> Vec<Warning> {
        let luns = self.luns();
        luns.iter()
            .map(|((target, lun), OfflineLun { why, .. })| Warning::offline_lun(target, *lun, why))
            .collect()
    }

    /// Returns the offline logical units of a target.
    pub(super) fn of(&self, target: &str) -> Vec<LunSummary> {
        let luns = self.luns();
        let of_target = luns.iter().filter(|((of, _), _)| of == target);
        let summary = |((_, id), lun): (&(String, u16), &OfflineLun)| LunSummary {
            id: *id,
            device: lun.config.device.to_string(),
            size: 0,
            sector: lun.config.sector.unwrap_or(SECTOR),
            read_only: lun.config.read_only,
            serial: lun.config.serial.clone().unwrap_or_default(),
            space: None,
            pull: None,
            lost_file: None,
            shrunk_from: None,
            offline: Some(lun.why.clone()),
        };
        of_target.map(summary).collect()
    }

    /// Notes why one is offline, unless a change has taken it away or made another of it. Logs what is new.
    fn note(&self, target: &str, id: u16, why: String) {
        if let Some(lun) = self.luns().get_mut(&(target.to_owned(), id)).filter(|lun| lun.why != why) {
            lun.why = why;
            tracing::warn!("{}", Warning::offline_lun(target, id, &lun.why).text);
        }
    }

    fn remove(&self, key: &(String, u16)) {
        self.luns().remove(key);
    }

    /// The end of the server: nothing is opened any more.
    pub(super) fn end(&self) {
        self.luns().clear();
        *self.keep.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).drain(..).for_each(|task| task.abort());
    }

    /// Opens all devices of a configuration at once, the first ones first: what is served, and what has to be left for
    /// later.
    pub(super) async fn open_all(
        &self,
        config: &Config,
        maker: &Maker,
    ) -> Result<(Vec<Lun>, Vec<Left>), StartError> {
        let (mut openings, mut of_memory) = (Vec::new(), VecDeque::new());
        let by = Instant::now() + START_TIME;
        for target in &config.targets {
            // Shared by the openings: it has the configurations of all its logical units.
            let target = Arc::new(target.clone());
            for lun in &target.luns {
                openings.push((Arc::clone(&target), lun.clone(), begin(maker, &target, lun), None));
                let last = openings.len() - 1;
                let next = match lun.device.spec().is_memory() {
                    true => {
                        of_memory.push_back(last);
                        if of_memory.len() > AT_ONCE { of_memory.pop_front() } else { None }
                    }
                    false => Some(last),
                };
                if let Some((.., opening, opened)) = next.map(|next| &mut openings[next]) {
                    *opened = tokio::time::timeout_at(by.min(Instant::now() + STEP_TIME), opening).await.ok();
                }
            }
        }
        let by = by.max(Instant::now() + LAST_TIME);
        let (mut served, mut left, mut serials) = (Vec::new(), Vec::new(), Serials::default());
        for (target, lun, mut opening, opened) in openings {
            let opened = match opened {
                None => tokio::time::timeout_at(by, &mut opening).await.ok(),
                opened => opened,
            };
            let (unopened, opening) = match opened.map(outcome).transpose()? {
                Some(Ok(opened)) => match serials.add(&opened.target, lun.id, &opened.unit) {
                    Ok(()) => {
                        served.push(opened);
                        continue;
                    }
                    Err(error) => {
                        opened.close().await;
                        (Unopened::because(error), None)
                    }
                },
                Some(Err(unopened)) => (unopened, None),
                None => {
                    let why = format!("{} has not been opened within {} s", lun.device, START_TIME.as_secs());
                    (Unopened::because(why), Some(opening))
                }
            };
            let (key, Unopened { why, may_pass }) = ((target.name.to_string(), lun.id), unopened);
            self.luns().insert(key, OfflineLun { config: lun.clone(), why });
            left.push(Left { target, config: lun, opening, may_pass });
        }
        Ok((served, left))
    }
}

fn begin(maker: &Maker, target: &Arc<TargetConfig>, lun: &LunConfig) -> Opening {
    let (of, target, lun) = (maker.clone(), Arc::clone(target), lun.clone());
    maker.runtime.spawn(async move { of.make(&target, &lun, Fallback::Saved).await })
}

/// Reason why a logical unit is not served.
struct Unopened {
    why: String,
    /// That may pass by itself.
    may_pass: bool,
}

impl Unopened {
    /// For a reason that stays.
    fn because(why: impl ToString) -> Self {
        Self { why: why.to_string(), may_pass: false }
    }
}

/// A logical unit, or why its device cannot be opened now; what is wrong with more than that is an error.
fn outcome(opened: Result<Result<Lun, StartError>, JoinError>) -> Result<Result<Lun, Unopened>, StartError> {
    match opened {
        Ok(Ok(lun)) => Ok(Ok(lun)),
        Ok(Err(StartError::Open { device, why, .. })) => {
            Ok(Err(Unopened { may_pass: why.is::<PassingError>(), why: named(&device, &why.to_string()) }))
        }
        Ok(Err(error)) => Err(error),
        Err(error) => Ok(Err(Unopened::because(error))),
    }
}

/// A sentence about a device, with its name.
fn named(device: &str, why: &str) -> String {
    let name = device.rsplit_once(':').map_or(device, |(_, name)| name);
    if why.contains(name) { why.to_owned() } else { format!("{device}: {why}") }
}

/// Context needed to serve logical units later. Keeps no server alive.
#[derive(Clone)]
pub(super) struct Later {
    pub(super) maker: Maker,
    pub(super) offline: Weak<Offline>,
    pub(super) turns: Turns,
    pub(super) transaction: Weak<Mutex<Transaction>>,
    pub(super) current: Weak<Mutex<Current>>,
    pub(super) shared: Weak<Shared>,
}

impl Later {
    /// Goes on with what was left, beside everything else.
    pub(super) fn attend(&self, left: Vec<Left>) {
        let Some(offline) = self.offline.upgrade() else { return };
        let mut tasks = offline.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        for left in left {
            tasks.push(self.maker.runtime.spawn(self.clone().open(left)).abort_handle());
        }
    }

    /// A target, if it is served.
    fn target(&self, name: &str) -> Option<Arc<Target>> {
        self.shared.upgrade()?.serving().targets.get(name).map(Arc::clone)
    }

    /// Opens a device again and again, until it is served or a change has taken its logical unit away.
    async fn open(self, left: Left) {
        let Left { target, config, mut opening, mut may_pass } = left;
        let (name, mut pause) = (target.name.as_str(), RETRY_TIME);
        let expected_until = Instant::now() + PASSING_TIME;
        loop {
            let opened = match opening.take() {
                Some(opening) => opening,
                None => {
                    tokio::time::sleep(pause).await;
                    if !may_pass {
                        pause = (pause * 2).min(RETRY_TIME_MAX);
                    }
                    if !self.offline.upgrade().is_some_and(|offline| offline.has(name, &config)) {
                        return;
                    }
                    begin(&self.maker, &target, &config)
                }
            };
            let unopened = match outcome(opened.await) {
                Ok(Ok(lun)) => match self.serve(&config, lun).await {
                    Ok(()) => return,
                    Err(error) => Unopened::because(error),
                },
                Ok(Err(unopened)) => unopened,
                Err(error) => Unopened::because(error),
            };
            may_pass = unopened.may_pass && Instant::now() < expected_until;
            if !may_pass {
                self.target(name).iter().for_each(|target| target.scsi.expect_no_more(config.id));
            }
            let Some(offline) = self.offline.upgrade() else { return };
            offline.note(name, config.id, unopened.why);
        }
    }

    /// Serves a logical unit whose device is open now, unless it is not wanted any more.
    async fn serve(&self, config: &LunConfig, lun: Lun) -> Result<(), StartError> {
        let parts = (
            self.offline.upgrade(),
            self.transaction.upgrade(),
            self.current.upgrade(),
            self.shared.upgrade(),
        );
        let (Some(offline), Some(transaction), Some(current), Some(shared)) = parts else {
            lun.close().await;
            return Ok(());
        };
        let turn = self.turns.wait().await;
        let lock = || transaction.lock().unwrap_or_else(PoisonError::into_inner);
        let place = |transaction: &Transaction| {
            let target = shared.serving().targets.get(&lun.target).map(Arc::clone);
            let wanted = !transaction.is_closed() && offline.has(&lun.target, config);
            let Some(target) = target.filter(|_| wanted) else { return Ok(None) };
            let mut serials = Serials::default();
            let mut all = transaction.luns().chain([&lun]);
            all.try_for_each(|lun| serials.add(&lun.target, lun.config.id, &lun.unit)).map(|()| Some(target))
        };
        let key = lun.key();
        let present = || current.lock().unwrap_or_else(PoisonError::into_inner);
        // Before anybody can write what looks like another format. Without an answer the turn stays there.
        let has_place = matches!(place(&lock()), Ok(Some(_)));
        let _turn = match has_place {
            true => {
                let config = offline.with_formats_and(&present().config, &key);
                offline.keep(&self.turns, turn, Arc::new(config)).await
            }
            false => Some(turn),
        };
        let refused = {
            let mut transaction = lock();
            match place(&transaction).and_then(|target| {
                target.map(|target| lun::attach(&target.scsi, &lun).map(|()| target)).transpose()
            }) {
                Ok(Some(_)) => {
                    lun.begin(&self.maker.runtime);
                    lun.warnings().iter().for_each(|warning| tracing::warn!("{}", warning.text));
                    offline.remove(&key);
                    let mut present = present();
                    present.config = Arc::new(offline.with_formats(&present.config));
                    tracing::warn!("lun {} of target {} is served now: its device is open", key.1, key.0);
                    transaction.add(lun);
                    return Ok(());
                }
                Ok(None) => Ok(()),
                Err(error) => Err(error),
            }
        };
        lun.close().await;
        refused
    }
}
