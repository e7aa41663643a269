//! Another configuration while the server runs: whole, or not at all.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use lunway_block::Permit;
use lunway_iscsi::login::ChapAuth;
use lunway_scsi::{AccessState as ScsiAccessState, PortGroup, ScsiTarget};
use serde::Serialize;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::claim::{Claim, Claimed, Claims};
use super::error::{ChangeError, StartError, UnansweredDevice};
use super::lun::{Lun, Maker, Resize, Serials, Succession};
use super::offline::Offline;
use super::own::none_is_own;
use super::tracking::Fallback;
use super::turn::{FileDiffers, Turn, Turns};
use super::{Current, Luns, Server, all_ended, effects, settings};
use crate::config::{AccessState, Change, ChangeKind, Config, ConfigError, LunConfig, TargetConfig};
use crate::portal::{Listeners, Portals, PreparedListeners};
use crate::registry::{Handle, Order};
use crate::shared::{Serving, Shared, Target};
use crate::state::FileStore;
use crate::summary::SessionSummary;
use crate::warning::Warning;

/// Time to log out for the initiators of a target that goes.
const DRAIN_TIME: Duration = Duration::from_secs(5);
/// Maximum time that a change waits for the devices of removed logical units: longer than a flush of what the page
/// cache may hold takes as a rule. People wait for the answer, and other changes of the same logical units for this
/// one.
const RETIRE_TIME: Duration = Duration::from_secs(10);
/// Additional time for the connections that did not log out.
const DRAIN_SLACK: Duration = Duration::from_secs(1);
/// How long a removal waits for sessions that are just ending: a host has logged out before the daemon has ended its
/// connection.
const ENDING_TIME: Duration = Duration::from_millis(500);
/// Interval at which it looks.
const ENDING_POLL: Duration = Duration::from_millis(20);
/// Looks at a configuration that is served, while no other change can be made. Blocks, where it is said that it may.
pub type Served = Arc<dyn Fn(&Config) + Send + Sync>;
/// Keeps a configuration for good: once it returns, the file is whole and on stable storage, and the permit
/// [has begun](Permit::begin). An error has left the file as it was, or is [`FileDiffers`]: so is that of a permit that
/// was withdrawn, also if that was noticed only after the file had been replaced. Blocks.
pub type Persist = Arc<dyn Fn(&Config, &Permit) -> io::Result<()> + Send + Sync>;
/// Reads the configuration that is to be served. Blocks.
pub type Load = Arc<dyn Fn() -> Result<Config, ChangeError> + Send + Sync>;

/// Options of a change.
#[derive(Clone, Default)]
pub struct ChangeOptions<'a> {
    /// Find out what would change and whether it could, and change nothing.
    pub dry_run: bool,
    /// Change only this generation.
    pub generation: Option<u64>,
    /// Leave to make the change, which its caller withdraws when it goes away: [`ChangeError::GivenUp`].
    pub permit: Permit,
    /// The new configuration is what this reads, and not what the caller makes of the present one.
    pub load: Option<Load>,
    /// Keeps the new configuration for good, when everything is ready and before anything has changed.
    pub persist: Option<Persist>,
    /// The new configuration is that of a file for the next start as well: keys that are read only at the start
    /// ([`Config::FIXED`]) keep the values of this start, and [`Changed::effects`] says so. Otherwise another value of
    /// them is [`ChangeError::NeedsRestart`].
    pub fixed_later: bool,
    /// Called when the configuration is served, also if it was served already; not for a trial. Does not block.
    pub served: Option<Served>,
    /// The same, after that; it may block. Where it takes long the change is answered before it has ended.
    pub after: Option<Served>,
    /// Logical units may get fewer bytes than they have, and lose what is behind the new end. Otherwise that is
    /// [`ChangeError::Smaller`].
    pub shrink: bool,
    /// Snapshots may end with the logical unit, or the part of it, that is taken away. Otherwise that is
    /// [`ChangeError::HasSnapshots`].
    pub end_snapshots: bool,
    /// A logical unit is removed only if no initiator that sees it is logged in and it is not memory that holds data:
    /// else [`ChangeError::InUse`] and [`ChangeError::HoldsData`].
    pub only_unused: bool,
    /// The device of this logical unit has become the one that the new configuration names already
    /// ([`Server::snapshot_lun`]).
    pub switched: Option<(&'a str, u16)>,
}

/// Result of a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Changed {
    /// The generation that is served now.
    pub generation: u64,
    /// Differences; empty: there are none, and the generation is the same as before.
    pub changes: Vec<Change>,
    /// Effects on initiators, and points that may be unintended, a sentence each: sessions that have to go, targets
    /// that nobody or everybody may log in to now, new [`Warning`]s.
    pub effects: Vec<String>,
}

/// All that a change needs and touches, on whatever thread it is made; clones are the same.
#[derive(Clone)]
pub(super) struct Changer {
    pub(super) shared: Arc<Shared>,
    pub(super) maker: Maker,
    /// One change at a time.
    pub(super) turns: Turns,
    /// Locked for an instant: never while a disk or a file is waited for.
    pub(super) transaction: Arc<Mutex<Transaction>>,
    pub(super) claims: Claims,
    /// Configuration served now, for readers.
    pub(super) current: Arc<Mutex<Current>>,
    pub(super) offline: Arc<Offline>,
    pub(super) listeners: Arc<Listeners>,
    /// The state directory.
    pub(super) store: Option<Arc<FileStore>>,
}

/// A change as its thread gets it.
struct Draft {
    generation: u64,
    old: Arc<Config>,
    /// What the caller made of it.
    new: Config,
    dry_run: bool,
    permit: Permit,
    load: Option<Load>,
    persist: Option<Persist>,
    fixed_later: bool,
    served: Option<Served>,
    shrink: bool,
    end_snapshots: bool,
    only_unused: bool,
    switched: Option<(String, u16)>,
}

/// The logical units that are served, and those that take their leave. Only who has the turn changes them, and whoever
/// wants looks at them.
pub(super) struct Transaction {
    luns: Luns,
    leaves: Vec<Leave>,
    closed: bool,
}

/// The leave of a logical unit that a change has taken away, under way by itself.
pub(super) struct Leave {
    pub(super) name: UnansweredDevice,
    pub(super) task: JoinHandle<()>,
}

/// A logical unit that a change under way has opened and that is not served yet.
struct Opened {
    /// As it was asked for.
    config: LunConfig,
    lun: Lun,
}

/// Logical units that a change under way has opened, with its claims on them.
#[derive(Default)]
struct Openings {
    luns: Vec<Opened>,
    claims: Vec<Claimed>,
}

/// Outcome of an attempt at a change, made while no other could be made.
enum Attempt {
    /// Devices must be opened, which may take long: then again from the beginning.
    Needs(Vec<(TargetConfig, LunConfig)>),
    /// Nothing is to be done, or only a trial was asked for.
    Unchanged(Changed),
    /// Made. What disks have to do with it goes on.
    Made(Changed, Aftermath),
}

/// Remaining work of a change that is made: work of disks, for which other changes need not wait.
struct Aftermath {
    resizes: Vec<Resize>,
    left: Vec<(String, u16, oneshot::Receiver<()>)>,
    /// Sessions with targets that are gone.
    leaving: Vec<Arc<Handle>>,
    /// Logical units that were never served, and of which nothing is to stay.
    forgotten: Vec<JoinHandle<()>>,
    _claims: Claimed,
}

/// All that a new configuration needs besides devices, had before anything is changed.
struct Prepared {
    targets: BTreeMap<String, Arc<Target>>,
    /// Logical units that are new or take another's place.
    new: Vec<(TargetConfig, LunConfig)>,
    /// Logical units whose device stays, with what is in front of it then.
    renewed: Vec<((String, u16), Arc<lunway_scsi::LogicalUnit>)>,
    /// Logical units that stay, with a new size.
    resized: Vec<((String, u16), u64)>,
    /// CHAP proof required of discovery sessions.
    discovery: Option<ChapAuth>,
    /// Secrets that were read anew and are others.
    secrets: Vec<Change>,
    /// Bound.
    sockets: PreparedListeners,
}

impl Openings {
    fn find(&self, target: &str, config: &LunConfig) -> Option<usize> {
        self.luns.iter().position(|opened| opened.lun.target == target && opened.config == *config)
    }

    fn take(&mut self, target: &str, config: &LunConfig) -> Option<Lun> {
        self.find(target, config).map(|at| self.luns.swap_remove(at).lun)
    }

    /// Gives back what was not used.
    async fn close(&mut self) {
        for opened in self.luns.drain(..) {
            opened.lun.close().await;
        }
        self.claims.clear();
    }
}

impl Transaction {
    pub(super) fn new(luns: Luns) -> Self {
        Self { luns, leaves: Vec::new(), closed: false }
    }

    pub(super) fn lun(&self, target: &str, lun: u16) -> Option<&Lun> {
        self.luns.get(&(target.to_owned(), lun))
    }

    /// No change is made any longer.
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// All logical units.
    pub(super) fn luns(&self) -> impl Iterator<Item = &Lun> {
        self.luns.values()
    }

    /// Warnings about what is served, as far as it is known without asking a file system.
    pub(super) fn warnings(&self) -> Vec<Warning> {
        self.luns.values().flat_map(Lun::warnings).collect()
    }

    /// Adds one that is offered already.
    pub(super) fn add(&mut self, lun: Lun) {
        self.luns.insert(lun.key(), lun);
    }

    /// The end: no change is made any longer. Beside what is served what is taking its leave.
    pub(super) fn end(&mut self) -> (Luns, Vec<Leave>) {
        self.closed = true;
        (std::mem::take(&mut self.luns), std::mem::take(&mut self.leaves))
    }
}

impl Server {
    /// Returns the differences that `new` would make.
    pub fn plan(&self, new: &Config) -> Result<Vec<Change>, ConfigError> {
        new.check()?;
        self.config().changes(&self.changer.offline.with_formats(new))
    }

    /// Serves what `edit` makes of the present configuration.
    ///
    /// In this order: `edit`; checks; everything that can fail (devices opened, secrets read); `persist`; then the
    /// change itself, which cannot fail. An error before that leaves everything as it was. A configuration that differs
    /// in nothing is no change.
    ///
    /// Changes are made one at a time, but none waits for the disks of another: devices are opened, resized and closed
    /// beside them, and only changes of the same logical units or devices wait for that. `edit` is called again on what
    /// is served after devices were opened for it. Nor does one wait long for files: one that has not begun some
    /// seconds after its turn, or after it began to wait for that, is [`ChangeError::Late`] and never made.
    ///
    /// A future that is dropped has made the change whole, or not at all.
    ///
    /// Files with secrets are read again, so that one that was replaced counts from the next login on.
    pub async fn change(
        &self,
        edit: impl FnMut(&mut Config) -> Result<(), ChangeError>,
        options: ChangeOptions<'_>,
    ) -> Result<Changed, ChangeError> {
        self.changer.change(edit, options).await
    }
}

impl Changer {
    /// The logical units.
    pub(super) fn transaction(&self) -> MutexGuard<'_, Transaction> {
        // Every change of it is complete before anything can panic.
        self.transaction.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        // Both fields are stored together, and nothing can panic between.
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`Server::configuration`].
    pub(super) fn configuration(&self) -> (u64, Arc<Config>) {
        let current = self.current();
        (current.generation, Arc::clone(&current.config))
    }

    /// As [`Server::warnings`].
    pub(super) fn warnings(&self) -> Vec<Warning> {
        let (config, mut warnings) = {
            let current = self.current();
            (Arc::clone(&current.config), current.warnings.clone())
        };
        warnings.extend(self.idle_portals(&config));
        warnings.extend(self.offline.warnings());
        warnings.extend(self.transaction().warnings());
        warnings.extend(self.maker.unsettled.warnings());
        warnings.extend(self.turns.warnings());
        let lost = self.store.as_ref().and_then(|store| store.lost());
        warnings.extend(lost.map(Warning::lost_state_dir));
        warnings
    }

    /// Entries of `listen` of a configuration that are not listened on now.
    fn idle_portals(&self, config: &Config) -> Vec<Warning> {
        let idle = self.listeners.idle(&settings::portal_groups(config));
        idle.iter().map(|(group, listen, why)| Warning::idle_portal(*group, listen, why)).collect()
    }

    /// As [`Server::change`].
    async fn change(
        &self,
        mut edit: impl FnMut(&mut Config) -> Result<(), ChangeError>,
        options: ChangeOptions<'_>,
    ) -> Result<Changed, ChangeError> {
        let mut openings = Openings::default();
        let result = loop {
            match self.attempt(&mut edit, &options, &mut openings).await {
                Ok(Attempt::Needs(luns)) => {
                    if let Err(error) = self.open(luns, &mut openings).await {
                        break Err(error.into());
                    }
                }
                Ok(Attempt::Unchanged(changed)) => break Ok(changed),
                Ok(Attempt::Made(changed, aftermath)) => {
                    self.follow_up(aftermath).await;
                    break Ok(changed);
                }
                Err(error) => break Err(error),
            }
        };
        if let Err(ChangeError::GivenUp) = &result {
            tracing::info!("a change was given up by whoever asked for it, and was not made");
        }
        openings.close().await;
        result
    }

    /// Makes a change, if all devices are open that it needs. Waits for its turn and for its files, and for nothing
    /// else.
    async fn attempt(
        &self,
        edit: &mut impl FnMut(&mut Config) -> Result<(), ChangeError>,
        options: &ChangeOptions<'_>,
        openings: &mut Openings,
    ) -> Result<Attempt, ChangeError> {
        let turn = self.turns.take().await?;
        if options.permit.is_withdrawn() {
            return Err(ChangeError::GivenUp);
        }
        if self.transaction().closed {
            return Err(ChangeError::ShuttingDown);
        }
        let (generation, old) = self.configuration();
        if let Some(expected) = options.generation.filter(|expected| *expected != generation) {
            return Err(ChangeError::Generation { expected, is: generation });
        }
        let mut new = Config::clone(&old);
        edit(&mut new)?;
        let ChangeOptions { dry_run, fixed_later, shrink, end_snapshots, only_unused, .. } = *options;
        let draft = Draft {
            generation,
            old,
            new,
            dry_run,
            permit: options.permit.clone(),
            load: options.load.clone(),
            persist: options.persist.clone(),
            fixed_later,
            served: options.served.clone(),
            shrink,
            end_snapshots,
            only_unused,
            switched: options.switched.map(|(target, lun)| (target.to_owned(), lun)),
        };
        let (changer, mut opened) = (self.clone(), std::mem::take(openings));
        let job = move |turn: &Turn| {
            // What is begun here belongs to the runtime that carries the devices.
            let runtime = changer.maker.runtime.clone();
            let _context = runtime.enter();
            let made = changer.make(turn, draft, &mut opened);
            (made, opened)
        };
        let unclaimed = self.clone();
        let unclaimed = move |(made, mut opened): (Result<Attempt, ChangeError>, Openings)| {
            let runtime = unclaimed.maker.runtime.clone();
            runtime.spawn(async move {
                if let Ok(Attempt::Made(_, aftermath)) = made {
                    unclaimed.follow_up(aftermath).await;
                }
                opened.close().await;
            });
        };
        let ((made, opened), turn) = self.turns.run(turn, &options.permit, job, unclaimed).await?;
        *openings = opened;
        let served = match &made {
            Ok(Attempt::Unchanged(_) | Attempt::Made(..)) if !options.dry_run => self.configuration().1,
            _ => return made,
        };
        if let Some(after) = options.after.clone() {
            let origin = served.origin.clone();
            let job = move |turn: &Turn| {
                turn.step(format!("saving the configuration file {origin}"));
                after(&served);
            };
            // It is late at most, which is logged.
            let _ = self.turns.run(turn, &Permit::default(), job, drop).await;
        }
        made
    }

    /// Opens devices, with no other change waiting. If others are busy with them, that is waited for, and nothing is
    /// opened.
    async fn open(
        &self,
        luns: Vec<(TargetConfig, LunConfig)>,
        openings: &mut Openings,
    ) -> Result<(), StartError> {
        let claims: Vec<_> = luns.iter().map(|(target, lun)| Claim::of(target.name.as_str(), lun)).collect();
        let Some(claimed) = self.claims.claim(claims.clone()) else {
            // With nothing in hand, so that two changes never wait for each other.
            openings.close().await;
            self.claims.released(&claims).await;
            return Ok(());
        };
        openings.claims.push(claimed);
        for (target, config) in luns {
            let lun = self.maker.make(&target, &config, Fallback::Refuse).await?;
            openings.luns.push(Opened { config, lun });
        }
        Ok(())
    }

    /// Makes a change, if all devices are open that it needs. On a thread that may wait for files, in its turn.
    fn make(&self, turn: &Turn, draft: Draft, openings: &mut Openings) -> Result<Attempt, ChangeError> {
        let Draft { generation, old, mut new, .. } = draft;
        let file = old.origin.clone();
        if let Some(load) = &draft.load {
            turn.step(format!("reading the configuration file {file}"));
            new = load()?;
        }
        new.check()?;
        self.maker.own_files.know(&new);
        new.keep_formats(&old);
        let waiting = match draft.fixed_later {
            true => at_next_start(&old, &mut new)?,
            false => Vec::new(),
        };
        // What is served once all devices are open.
        let served = self.offline.with_formats(&new);
        let mut changes = old.changes(&served)?;
        if let Some(key) =
            Config::FIXED.iter().find(|key| changes.iter().any(|change| change.is_of_daemon(key)))
        {
            return Err(ChangeError::NeedsRestart((*key).to_owned()));
        }
        turn.step("reading the files with secrets and the saved state of targets".to_owned());
        let switched = draft.switched.as_ref().map(|(target, lun)| (target.as_str(), *lun));
        let prepared = self.prepare(&new, switched)?;
        none_is_own(&new, prepared.sockets.portals())?;
        let to_open =
            |(target, lun): &&(TargetConfig, LunConfig)| openings.find(target.name.as_str(), lun).is_none();
        let needs: Vec<_> = prepared.new.iter().filter(to_open).cloned().collect();
        if !needs.is_empty() {
            return Ok(Attempt::Needs(needs));
        }
        let sessions = self.shared.registry.summaries();
        {
            let transaction = self.transaction();
            let luns = &transaction.luns;
            if let Some(smaller) = smaller(luns, &prepared, openings).filter(|_| !draft.shrink) {
                return Err(smaller);
            }
            if let Some(refused) = end_of_snapshots(luns, &prepared, &new).filter(|_| !draft.end_snapshots) {
                return Err(refused);
            }
            one_serial_each(luns, &prepared, openings, &new)?;
        }
        if draft.only_unused {
            self.none_is_used(&old, &new)?;
        }
        changes.extend(prepared.secrets.iter().cloned());
        let made = !draft.dry_run;
        let before = self.shared.serving();
        let mut effects = effects::effects(&before.targets, &prepared.targets, &sessions, made);
        effects.extend(effects::lost_luns(&old, &served, &sessions, made));
        effects.extend(effects::lost_memory(&old, &served, made));
        effects.extend(effects::served_again(&old, &served));
        let (portals, later) = (self.shared.portals.now(), prepared.sockets.portals());
        effects.extend(effects::lost_portals(&portals, later, &prepared.targets, &sessions, made));
        effects.extend(effects::unreachable(&portals, later, &prepared.targets, made));
        let (warnings, known) = (Warning::of(&served), self.warnings());
        let now = warnings.iter().cloned().chain(self.idle_portals(&served));
        let new = now.filter(|warning| !known.contains(warning) && !warning.is_told_by_effects());
        effects.extend(new.map(|warning| warning.text));
        if draft.fixed_later && made {
            self.tell_later(&waiting);
        }
        let is_served = || {
            if draft.load.is_some() {
                // The file is what is served.
                self.turns.set_differs(None);
            }
            if let Some(look) = draft.served.as_ref().filter(|_| made) {
                look(&served);
            }
        };
        if changes.is_empty() || draft.dry_run {
            if made {
                // The files with secrets may have other permissions than before.
                self.current().warnings = warnings;
                is_served();
            }
            effects.extend(waiting);
            return Ok(Attempt::Unchanged(Changed { generation, changes, effects }));
        }
        if let Some(persist) = &draft.persist {
            turn.step(format!("saving the configuration file {file}"));
            self.keep(persist, &served, &draft.permit)?;
        }
        draft.permit.begin().map_err(|_| ChangeError::GivenUp)?;
        let mut transaction = self.transaction();
        if transaction.closed {
            return Err(ChangeError::ShuttingDown);
        }
        let generation = generation + 1;
        {
            let mut current = self.current();
            current.config = Arc::new(served.clone());
            current.generation = generation;
            current.warnings = warnings;
        }
        for change in &changes {
            tracing::info!("configuration {generation}: {change}");
        }
        for effect in &effects {
            tracing::warn!("configuration {generation}: {effect}");
        }
        let aftermath = self.commit(&mut transaction, prepared, openings, (&served, draft.end_snapshots));
        drop(transaction);
        is_served();
        effects.extend(waiting);
        Ok(Attempt::Made(Changed { generation, changes, effects }, aftermath))
    }

    /// Keeps a configuration for good before it is served, unless its caller has given up.
    fn keep(&self, persist: &Persist, config: &Config, permit: &Permit) -> Result<(), ChangeError> {
        let kept = persist(config, permit);
        let differs = |error: &io::Error| {
            error.get_ref().and_then(|inner| inner.downcast_ref::<FileDiffers>()).is_some()
        };
        match &kept {
            Ok(()) => self.turns.set_differs(None),
            Err(error) if differs(error) => self.turns.set_differs(Some(error.to_string())),
            Err(_) => {}
        }
        kept.map_err(|error| match permit.is_withdrawn() {
            true => ChangeError::GivenUp,
            false => ChangeError::Persist(error),
        })
    }

    /// Refuses to remove what initiators use, and memory that holds data. Waits for sessions that are just ending.
    fn none_is_used(&self, old: &Config, new: &Config) -> Result<(), ChangeError> {
        let by = Instant::now() + ENDING_TIME;
        loop {
            match self.none_is_used_now(old, new) {
                Err(ChangeError::InUse { .. }) if Instant::now() < by => thread::sleep(ENDING_POLL),
                used => return used,
            }
        }
    }

    fn none_is_used_now(&self, old: &Config, new: &Config) -> Result<(), ChangeError> {
        let (serving, sessions) = (self.shared.serving(), self.shared.registry.users());
        let transaction = self.transaction();
        let luns = &transaction.luns;
        for target in &old.targets {
            let name = target.name.as_str();
            let of_target = || sessions.iter().filter(|session| session.target.eq_ignore_ascii_case(name));
            let Some(stays) = new.target(name) else {
                if let Some(initiators) = effects::listed_each(of_target()) {
                    return Err(ChangeError::InUse { place: format!("target {name}"), initiators });
                }
                target.luns.iter().try_for_each(|lun| holds_no_data(luns, name, lun))?;
                continue;
            };
            for lun in target.luns.iter().filter(|lun| stays.lun(lun.id).is_none()) {
                let sees = |session: &&SessionSummary| {
                    let view = serving.targets.get(name).map(|target| {
                        target.view_of(&session.initiator, session.peer.ip(), session.user.as_deref())
                    });
                    view.is_none_or(|view| view.luns.is_none_or(|luns| luns.contains(&lun.id)))
                };
                let is_served = luns.contains_key(&(name.to_owned(), lun.id));
                let users = of_target().filter(|_| is_served).filter(sees);
                if let Some(initiators) = effects::listed_each(users) {
                    let place = format!("lun {} of target {name}", lun.id);
                    return Err(ChangeError::InUse { place, initiators });
                }
                holds_no_data(luns, name, lun)?;
            }
        }
        Ok(())
    }

    /// Logs what waits for the next start, once: a reload of the same file says nothing new.
    fn tell_later(&self, later: &[String]) {
        let mut current = self.current();
        if current.later != later {
            later.iter().for_each(|sentence| tracing::warn!("{sentence}"));
            current.later = later.to_vec();
        }
    }

    /// Gets everything that `new` needs besides devices. Of what is served nothing changes.
    fn prepare(&self, new: &Config, switched: Option<(&str, u16)>) -> Result<Prepared, ChangeError> {
        let serving = self.shared.serving();
        let mut prepared = Prepared {
            targets: BTreeMap::new(),
            new: Vec::new(),
            renewed: Vec::new(),
            resized: Vec::new(),
            discovery: settings::discovery_auth(new).map_err(StartError::from)?,
            secrets: Vec::new(),
            sockets: self.listeners.prepare(settings::portal_groups(new)).map_err(StartError::from)?,
        };
        let old = self.configuration().1;
        if old.discovery == new.discovery
            && prepared.discovery.is_some()
            && prepared.discovery != serving.discovery
        {
            prepared.secrets.push(changed_secret("discovery".to_owned()));
        }
        for config in &new.targets {
            self.prepare_target(&serving, new, (config, switched), &mut prepared)?;
        }
        Ok(prepared)
    }

    fn prepare_target(
        &self,
        serving: &Serving,
        new: &Config,
        (config, switched): (&TargetConfig, Option<(&str, u16)>),
        prepared: &mut Prepared,
    ) -> Result<(), ChangeError> {
        let name = config.name.as_str();
        let old = serving.targets.get(name);
        let auth = settings::auth(new, config)?;
        if let Some(old) = old
            && old.config.chap == config.chap
            && old.config.mutual_chap == config.mutual_chap
            && old.auth != auth
        {
            prepared.secrets.push(changed_secret(format!("target {name}")));
        }
        for lun in &config.luns {
            let key = (name.to_owned(), lun.id);
            let switched = switched == Some((name, lun.id));
            let succession = {
                let transaction = self.transaction();
                let old = transaction.luns.get(&key);
                old.map(|old| (Arc::clone(&old.device), old.succession(lun, switched)))
            };
            match succession {
                Some((_, Succession::Kept { resize })) => {
                    prepared.resized.extend(resize.map(|size| (key, size)));
                }
                Some((device, Succession::NewUnit)) => {
                    let unit = self.maker.unit(config, lun, &device)?;
                    prepared.renewed.push((key, unit));
                }
                Some((_, Succession::Reopened { memory })) => {
                    let (target, lun, device) = (name.to_owned(), lun.id, lun.device.to_string());
                    return Err(ChangeError::Reopened { target, lun, device, memory });
                }
                // It is opened beside changes.
                None if self.offline.has(name, lun) => {}
                None | Some((_, Succession::NewDevice)) => prepared.new.push((config.clone(), lun.clone())),
            }
        }
        let scsi = match old {
            Some(old) => Arc::clone(&old.scsi),
            None => self.maker.target(name).map_err(StartError::State)?,
        };
        let config = self.offline.target_with_formats(config);
        prepared.targets.insert(name.to_owned(), Arc::new(Target { config, auth, scsi }));
        Ok(())
    }

    /// Makes the change. Nothing here can fail, and nothing waits.
    fn commit(
        &self,
        transaction: &mut Transaction,
        prepared: Prepared,
        openings: &mut Openings,
        (new, end_snapshots): (&Config, bool),
    ) -> Aftermath {
        let luns = &mut transaction.luns;
        let old = self.shared.serving();
        let limits = settings::fit_descriptors(new.limits);
        if limits != old.limits {
            settings::warn_of_memory(&limits);
        }
        self.shared.registry.set_limits(&limits);
        self.shared.memory.set_limits(settings::memory_limits(&limits));
        // From here on logins meet the new configuration.
        self.shared.serve(settings::serving(new, limits, prepared.targets.clone(), prepared.discovery));
        let portals = self.shared.portals.now();
        self.listeners.commit(prepared.sockets);
        self.drain_portals(&old, &portals);
        let leaving = self.reconsider_sessions(&old, &prepared.targets);
        for target in prepared.targets.values() {
            target.scsi.set_port_groups(port_groups(new, &target.config));
        }
        let resized = |(key, size)| luns.get(&key).map(|lun: &Lun| lun.resize(size, end_snapshots));
        let resizes = prepared.resized.into_iter().filter_map(resized).collect();
        for (key, unit) in prepared.renewed {
            if let (Some(lun), Some(target)) = (luns.get_mut(&key), prepared.targets.get(&key.0)) {
                withdraw(&target.scsi, key.1);
                lun.unit = unit;
                log_refused(attach(&target.scsi, lun));
            }
        }
        let gone = |key: &(String, u16)| new.target(&key.0).and_then(|target| target.lun(key.1)).is_none();
        let replaced = |key: &(String, u16)| {
            prepared.new.iter().any(|(target, lun)| target.name.as_str() == key.0 && lun.id == key.1)
        };
        let keys: Vec<_> = luns.keys().filter(|key| gone(key) || replaced(key)).cloned().collect();
        let mut retired = Vec::new();
        for key in keys {
            let Some(lun) = luns.remove(&key) else { continue };
            // Initiators of a target that goes use it until they have logged out.
            let last = match (prepared.targets.get(&key.0), old.targets.get(&key.0)) {
                (Some(target), _) => {
                    withdraw(&target.scsi, key.1);
                    None
                }
                (None, target) => target.map(|target| Arc::clone(&target.scsi)),
            };
            retired.push((lun, gone(&key), last));
        }
        for (target, config) in &prepared.new {
            let lun = openings.take(target.name.as_str(), config);
            if let (Some(lun), Some(target)) = (lun, prepared.targets.get(target.name.as_str())) {
                log_refused(attach(&target.scsi, &lun));
                lun.log();
                luns.insert(lun.key(), lun);
            }
        }
        for target in &new.targets {
            for config in &target.luns {
                if let Some(lun) = luns.get_mut(&(target.name.to_string(), config.id)) {
                    lun.reconfigure(config);
                }
            }
        }
        let gone_offline = self.offline.retain(new, luns);
        for (target, config) in &gone_offline {
            let target = prepared.targets.get(target);
            target.into_iter().for_each(|target| target.scsi.expect_no_more(config.id));
        }
        self.shared.metrics.forget(|target, lun| !luns.contains_key(&(target.to_owned(), lun)));
        let retired_claims = retired.iter().map(|(lun, ..)| Claim::of(&lun.target, &lun.config));
        let offline_claims = gone_offline.iter().map(|(target, config)| Claim::of(target, config));
        let claims = retired_claims.chain(offline_claims).collect();
        let claims = self.claims.claim_beside(claims);
        transaction.leaves.retain(|leave| !leave.task.is_finished());
        let mut left = Vec::new();
        for (lun, for_good, last) in retired {
            let (target, id) = lun.key();
            let (leave, ended) = self.retire(lun, for_good, last, &leaving);
            transaction.leaves.push(leave);
            left.push((target, id, ended));
        }
        let forgotten =
            gone_offline.iter().map(|(target, config)| self.maker.forget(target, config.id)).collect();
        Aftermath { resizes, left, leaving, forgotten, _claims: claims }
    }

    /// Takes leave of a logical unit, on the server's own runtime: whatever becomes of the change, its data is flushed.
    /// One that initiators still use, of a target that is gone, is withdrawn when they have logged out.
    fn retire(
        &self,
        lun: Lun,
        for_good: bool,
        last: Option<Arc<ScsiTarget>>,
        leaving: &[Arc<Handle>],
    ) -> (Leave, oneshot::Receiver<()>) {
        let (name, id, leaving) = (lun.unanswered(), lun.config.id, leaving.to_vec());
        let (end, ended) = oneshot::channel();
        let task = self.maker.runtime.spawn(async move {
            if let Some(target) = last {
                all_ended(&leaving, DRAIN_TIME + DRAIN_SLACK).await;
                withdraw(&target, id);
            }
            if let Err(error) = lun.retire(for_good).await {
                tracing::error!("{error}");
            }
            // The change may no longer wait for it.
            let _ = end.send(());
        });
        (Leave { name, task }, ended)
    }

    /// Waits for what the disks have to do with a change that is made: for [`RETIRE_TIME`] for those that are removed.
    /// What can still go wrong here are devices that do not do as they are told, which is logged.
    async fn follow_up(&self, aftermath: Aftermath) {
        let Aftermath { resizes, left, leaving, forgotten, _claims } = aftermath;
        join_all(forgotten).await;
        let resizes = join_all(resizes.into_iter().map(|resize| resize.carry_out(&self.maker.runtime)));
        let leaves = async {
            all_ended(&leaving, DRAIN_TIME + DRAIN_SLACK).await;
            let by = tokio::time::Instant::now() + RETIRE_TIME;
            for (target, lun, ended) in left {
                if tokio::time::timeout_at(by, ended).await.is_err() {
                    tracing::error!(%target, lun, "the device of a removed LUN does not answer: it is closed when it does");
                }
            }
        };
        let (resized, ()) = tokio::join!(resizes, leaves);
        for error in resized.into_iter().filter_map(Result::err) {
            tracing::error!("{error}");
        }
    }

    /// Asks the initiators that came by portals which this change has taken away to log out. They find the others by
    /// SendTargets. (An address that the machine loses for a while is another matter: its sessions may go on when it is
    /// back.)
    fn drain_portals(&self, serving: &Serving, before: &Portals) {
        let now = self.shared.portals.now();
        for target in serving.targets.keys() {
            for connection in self.shared.registry.connections_with(target) {
                let tags = connection.portal().map(|portal| (before.tag_of(portal), now.tag_of(portal)));
                if matches!(tags, Some((Some(old), new)) if new != Some(old)) {
                    connection.send(Order::RequestLogout(DRAIN_TIME));
                }
            }
        }
    }

    /// Changes what the sessions of targets that are different now may see and do, at once: when the change is
    /// answered, nothing begins that it forbids. Then tells them to look themselves whether they may stay. Returns
    /// those that have to go because their target does.
    fn reconsider_sessions(&self, old: &Serving, new: &BTreeMap<String, Arc<Target>>) -> Vec<Arc<Handle>> {
        let mut leaving = Vec::new();
        for (name, target) in &old.targets {
            let sessions = || self.shared.registry.connections_with(name);
            if new.get(name).is_some_and(|new| new.config != target.config) {
                self.shared.review(|| self.shared.registry.standings_with(name));
            }
            match new.get(name) {
                Some(new) if new.config == target.config => {}
                Some(new) if new.config.enabled => {
                    sessions().iter().for_each(|session| session.send(Order::Reconsider));
                }
                _ => {
                    let sessions = sessions();
                    sessions.iter().for_each(|session| session.send(Order::RequestLogout(DRAIN_TIME)));
                    leaving.extend(sessions);
                }
            }
        }
        leaving
    }
}

/// Gives `new` the values of [`Config::FIXED`] that `old` has, and says of each that is another one when it counts.
fn at_next_start(old: &Config, new: &mut Config) -> Result<Vec<String>, ConfigError> {
    let is_fixed = |change: &Change| Config::FIXED.iter().any(|key| change.is_of_daemon(key));
    let changes = old.changes(new)?.into_iter().filter(is_fixed);
    let sentence =
        |change: Change| format!("{}: takes effect at the next start of the daemon", change.difference());
    let later = changes.map(sentence).collect();
    new.take_fixed(old);
    Ok(later)
}

/// A logical unit that would have fewer bytes than now, with its own device or with another.
fn smaller(luns: &Luns, prepared: &Prepared, openings: &Openings) -> Option<ChangeError> {
    let resized = prepared.resized.iter().map(|((target, lun), size)| (target.as_str(), *lun, *size));
    let replaced = prepared.new.iter().filter_map(|(target, config)| {
        let opened = openings.find(target.name.as_str(), config)?;
        Some((target.name.as_str(), config.id, openings.luns[opened].lun.device.geometry().size))
    });
    resized.chain(replaced).find_map(|(target, lun, size)| {
        let present = luns.get(&(target.to_owned(), lun))?.device.geometry().size;
        let smaller = || ChangeError::Smaller { target: target.to_owned(), lun, present, size };
        (size < present).then(smaller)
    })
}

/// Refuses to remove memory that holds data.
fn holds_no_data(luns: &Luns, target: &str, lun: &LunConfig) -> Result<(), ChangeError> {
    let served = luns.get(&(target.to_owned(), lun.id)).filter(|lun| lun.config.device.spec().is_memory());
    let bytes = served.and_then(|lun| lun.device.space()).map_or(0, |space| space.allocated);
    match bytes {
        0 => Ok(()),
        bytes => Err(ChangeError::HoldsData { target: target.to_owned(), lun: lun.id, bytes }),
    }
}

/// A logical unit that has snapshots, which would end: it goes, gets another device, or a smaller size.
fn end_of_snapshots(luns: &Luns, prepared: &Prepared, new: &Config) -> Option<ChangeError> {
    luns.iter().find_map(|(key, lun)| {
        let size = prepared.resized.iter().find(|(of, _)| of == key).map(|(_, size)| *size);
        let is_new = |(target, config): &(TargetConfig, LunConfig)| {
            target.name.as_str() == key.0 && config.id == key.1
        };
        match () {
            () if new.target(&key.0).and_then(|target| target.lun(key.1)).is_none() => {
                lun.in_the_way_of("were removed")
            }
            () if prepared.new.iter().any(is_new) => lun.in_the_way_of("got another device"),
            () if size.is_some_and(|size| size < lun.device.geometry().size) => {
                lun.in_the_way_of("were made smaller")
            }
            () => None,
        }
    })
}

/// Refuses two logical units with one serial number, also where one of them is derived.
fn one_serial_each(
    luns: &Luns,
    prepared: &Prepared,
    openings: &Openings,
    new: &Config,
) -> Result<(), StartError> {
    let mut serials = Serials::default();
    for target in &new.targets {
        for config in &target.luns {
            let key = (target.name.to_string(), config.id);
            let opened = || openings.find(&key.0, config).map(|at| &openings.luns[at].lun.unit);
            let renewed = prepared.renewed.iter().find(|(of, _)| *of == key).map(|(_, unit)| unit);
            if let Some(unit) = opened().or(renewed).or_else(|| luns.get(&key).map(|lun| &lun.unit)) {
                serials.add(&key.0, key.1, unit)?;
            }
        }
    }
    Ok(())
}

fn changed_secret(place: String) -> Change {
    let (kind, key) = (ChangeKind::Changed, Some("a secret".to_owned()));
    Change { kind, place, key, from: None, to: None }
}

/// Offers a logical unit.
pub(super) fn attach(scsi: &ScsiTarget, lun: &Lun) -> Result<(), StartError> {
    scsi.attach(lun.config.id, Arc::clone(&lun.unit)).map_err(|error| StartError::Open {
        target: lun.target.clone(),
        lun: lun.config.id,
        device: lun.config.device.to_string(),
        why: error.into(),
    })
}

/// Numbers were checked, and the place is free: this is to be seen if it is not so.
fn log_refused(attached: Result<(), StartError>) {
    if let Err(error) = attached {
        tracing::error!("{error}");
    }
}

fn withdraw(scsi: &ScsiTarget, lun: u16) {
    drop(scsi.detach(lun));
}

/// The portal groups of a target as target port groups: one port each, of the same number (SPC-4 §5.15.2.1).
pub(super) fn port_groups(config: &Config, target: &TargetConfig) -> Vec<PortGroup> {
    let group = |tag: u16, state: AccessState, preferred: bool| PortGroup {
        tag,
        state: match state {
            AccessState::ActiveOptimized => ScsiAccessState::ActiveOptimized,
            AccessState::ActiveNonOptimized => ScsiAccessState::ActiveNonOptimized,
            AccessState::Standby => ScsiAccessState::Standby,
            AccessState::Unavailable => ScsiAccessState::Unavailable,
        },
        preferred,
        ports: vec![tag],
    };
    if target.portal_groups.is_empty() {
        let all = config.portal_group_tags().into_iter();
        return all.map(|tag| group(tag, AccessState::ActiveOptimized, false)).collect();
    }
    target.portal_groups.iter().map(|of| group(of.tag, of.state, of.preferred)).collect()
}
