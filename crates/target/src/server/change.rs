//! Another configuration while the server runs: whole, or not at all.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::BoxFuture;
use lunway_block::Permit;
use serde::Serialize;
use tokio::task::JoinHandle;

use super::claim::Claims;
use super::commit::Aftermath;
use super::error::{ChangeError, UnansweredDevice};
use super::loss::{end_of_snapshots, one_serial_each, smaller};
use super::lun::{Lun, Maker};
use super::offline::Offline;
use super::own::none_is_own;
use super::prepared::Openings;
use super::turn::{FileDiffers, Turn, Turns};
use super::{Current, Luns, Server, effects, settings};
use crate::config::{Change, Config, ConfigError, LunConfig, TargetConfig};
use crate::portal::Listeners;
use crate::shared::Shared;
use crate::state::FileStore;
use crate::warning::Warning;

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
    /// Logical units that initiators use, memory that holds data, or a file without a name, may be removed or replaced.
    /// Otherwise that is [`ChangeError::InUse`], [`ChangeError::HoldsData`] and
    /// [`ChangeError::Nameless`].
    pub force: bool,
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
    /// that no initiator or every one may log in to now, new [`Warning`]s.
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
    /// Configuration that the caller made of it.
    new: Config,
    dry_run: bool,
    permit: Permit,
    load: Option<Load>,
    persist: Option<Persist>,
    fixed_later: bool,
    served: Option<Served>,
    shrink: bool,
    end_snapshots: bool,
    force: bool,
    switched: Option<(String, u16)>,
}

/// The logical units that are served, and those that take their leave. Only the holder of the turn changes them; every
/// task may look at them.
pub(super) struct Transaction {
    pub(super) luns: Luns,
    pub(super) leaves: Vec<Leave>,
    closed: bool,
}

/// The leave of a logical unit that a change has taken away, under way by itself.
pub(super) struct Leave {
    pub(super) name: UnansweredDevice,
    pub(super) task: JoinHandle<()>,
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
        mut edit: impl FnMut(&mut Config) -> Result<(), ChangeError> + Send,
        options: ChangeOptions<'_>,
    ) -> Result<Changed, ChangeError> {
        self.changer.change(&mut edit, options).await
    }
}

/// What edits a configuration.
type Edit<'a> = dyn FnMut(&mut Config) -> Result<(), ChangeError> + Send + 'a;

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

    /// As [`Server::change`], compiled once for all that edit.
    fn change<'a>(
        &'a self,
        edit: &'a mut Edit<'a>,
        options: ChangeOptions<'a>,
    ) -> BoxFuture<'a, Result<Changed, ChangeError>> {
        Box::pin(self.change_now(edit, options))
    }

    async fn change_now(
        &self,
        edit: &mut Edit<'_>,
        options: ChangeOptions<'_>,
    ) -> Result<Changed, ChangeError> {
        let mut openings = Openings::default();
        let result = loop {
            match self.attempt(edit, &options, &mut openings).await {
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
            tracing::info!("a change was given up by its caller, and was not made");
        }
        openings.close().await;
        result
    }

    /// Makes a change, if all devices are open that it needs. Waits for its turn and for its files, and for nothing
    /// else.
    async fn attempt(
        &self,
        edit: &mut Edit<'_>,
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
        let ChangeOptions { dry_run, fixed_later, shrink, end_snapshots, force, .. } = *options;
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
            force,
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

    /// Makes a change, if all devices are open that it needs. On a thread that may wait for files, in its turn.
    fn make(&self, turn: &Turn, draft: Draft, openings: &mut Openings) -> Result<Attempt, ChangeError> {
        let Draft { generation, old, mut new, .. } = draft;
        let file = old.origin.clone();
        if let Some(load) = &draft.load {
            turn.step(format!("reading the configuration file {file}"));
            new = load()?;
        }
        new.check()?;
        // Also those of what is served: this may be refused.
        self.maker.own_files.know([&*old, &new]);
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
        if !draft.force {
            // Before devices are opened for what is refused.
            self.none_is_used(&old, &new, &prepared)?;
            turn.step("looking for the files of what goes".to_owned());
            self.none_is_nameless(&old, &new, &prepared)?;
        }
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
        changes.extend(prepared.secrets.iter().cloned());
        let made = !draft.dry_run;
        let before = self.shared.serving();
        let mut effects = effects::effects(&before.targets, &prepared.targets, &sessions, made);
        effects.extend(effects::lost_luns(&old, &served, &before.targets, &sessions, made));
        effects.extend(effects::lost_memory(&old, &served, made));
        effects.extend(effects::lost_sources(&old, &served));
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
        turn.step("putting track files in their places".to_owned());
        openings.settle_track_files(&prepared.new);
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
        self.maker.own_files.know([&served]);
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

    /// Logs what waits for the next start, once: a reload of the same file says nothing new.
    fn tell_later(&self, later: &[String]) {
        let mut current = self.current();
        if current.later != later {
            later.iter().for_each(|sentence| tracing::warn!("{sentence}"));
            current.later = later.to_vec();
        }
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
