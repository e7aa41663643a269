//! Another configuration while the server runs: whole, or not at all.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use lunway_iscsi::login::ChapAuth;
use lunway_scsi::{AccessState as ScsiAccessState, PortGroup, ScsiTarget};
use serde::Serialize;

use super::error::{ChangeError, StartError};
use super::lun::{Lun, Succession};
use super::warnings::Warning;
use super::{Luns, Server, all_ended, effects, settings};
use crate::config::{AccessState, Change, ChangeKind, Config, ConfigError, TargetConfig};
use crate::portal::{Portals, PreparedListeners};
use crate::registry::{Handle, Order};
use crate::shared::{Serving, Target};

/// How long the initiators of a target that goes have to log out.
const DRAIN_TIME: Duration = Duration::from_secs(5);
/// How long a change waits for the devices of removed logical units: longer than a flush of what the page cache may hold takes as a
/// rule. People wait for the answer, and other changes for this one.
const RETIRE_TIME: Duration = Duration::from_secs(10);
/// How much longer the connections may take that did not.
const DRAIN_SLACK: Duration = Duration::from_secs(1);
/// Keys of the daemon as a whole that hold for as long as the process runs: threads are pinned, stores and sockets open.
const FIXED: [&str; 5] = ["cores", "state_dir", "machine_id", "isns", "api"];

/// Keeps a configuration for good: once it returns, the file is whole and on stable storage.
pub type Persist<'a> = &'a (dyn Fn(&Config) -> io::Result<()> + Send + Sync);

/// How to make a change.
#[derive(Clone, Copy, Default)]
pub struct ChangeOptions<'a> {
    /// Find out what would change and whether it could, and change nothing.
    pub dry_run: bool,
    /// Change only this generation.
    pub generation: Option<u64>,
    /// Keeps the new configuration for good, when everything is ready and before anything has changed.
    pub persist: Option<Persist<'a>>,
}

/// What a change came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Changed {
    /// The generation that is served now.
    pub generation: u64,
    /// What is different; empty: nothing, and then the generation is the same as before.
    pub changes: Vec<Change>,
    /// What it means for initiators, and what of it may not be meant, a sentence each: sessions that have to go, targets that nobody
    /// or everybody may log in to now, new [`Warning`]s.
    pub effects: Vec<String>,
}

/// What only changes touch.
pub(super) struct Transaction {
    luns: Luns,
    closed: bool,
}

/// All that a new configuration needs, had before anything is changed.
struct Prepared {
    targets: BTreeMap<String, Arc<Target>>,
    /// Logical units that are new or take another's place.
    new: Vec<Lun>,
    /// Logical units whose device stays, with what is in front of it then.
    renewed: Vec<((String, u16), Arc<lunway_scsi::LogicalUnit>)>,
    /// Logical units that stay, with a new size.
    resized: Vec<((String, u16), u64)>,
    /// What discovery sessions must prove.
    discovery: Option<ChapAuth>,
    /// Secrets that were read anew and are others.
    secrets: Vec<Change>,
    /// Bound.
    sockets: PreparedListeners,
}

impl Transaction {
    pub(super) fn new(luns: Luns) -> Self {
        Self { luns, closed: false }
    }

    pub(super) fn lun(&self, target: &str, lun: u16) -> Option<&Lun> {
        self.luns.get(&(target.to_owned(), lun))
    }

    /// The end: no change is made any longer.
    pub(super) fn take_luns(&mut self) -> Luns {
        self.closed = true;
        std::mem::take(&mut self.luns)
    }
}

impl Server {
    /// What would be different with `new`.
    pub fn plan(&self, new: &Config) -> Result<Vec<Change>, ConfigError> {
        new.check()?;
        self.config().changes(&new.with_formats())
    }

    /// Serves what `edit` makes of the present configuration.
    ///
    /// In this order: `edit`; checks; everything that can fail (devices opened, secrets read); `persist`; then the change
    /// itself, which cannot fail. An error before that leaves everything as it was. Changes are made one at a time; a
    /// configuration that differs in nothing is no change. Sessions with what does not change notice nothing.
    ///
    /// Files with secrets are read again, so that one that was replaced counts from the next login on.
    pub async fn change(
        &self,
        edit: impl FnOnce(&mut Config) -> Result<(), ChangeError>,
        options: ChangeOptions<'_>,
    ) -> Result<Changed, ChangeError> {
        let mut transaction = self.transaction.lock().await;
        if transaction.closed {
            return Err(ChangeError::ShuttingDown);
        }
        let (generation, old) = self.configuration();
        if let Some(expected) = options.generation.filter(|expected| *expected != generation) {
            return Err(ChangeError::Generation { expected, is: generation });
        }
        let mut new = Config::clone(&old);
        edit(&mut new)?;
        new.check()?;
        new.keep_formats(&old);
        // What is served once all devices are open.
        let served = new.with_formats();
        let mut changes = old.changes(&served)?;
        if let Some(key) = FIXED.iter().find(|key| changes.iter().any(|change| change.is_of_daemon(key))) {
            return Err(ChangeError::NeedsRestart((*key).to_owned()));
        }
        let prepared = self.prepare(&transaction.luns, &new).await?;
        changes.extend(prepared.secrets.iter().cloned());
        let made = !options.dry_run;
        let (before, sessions) = (self.shared.serving(), self.shared.registry.summaries());
        let mut effects = effects::effects(&before.targets, &prepared.targets, &sessions, made);
        let (warnings, known) = (Warning::of(&served), self.warnings());
        let now = warnings.iter().cloned().chain(self.idle_portals(&served));
        let new = now.filter(|warning| !known.contains(warning) && !warning.is_told_by_effects());
        effects.extend(new.map(|warning| warning.text));
        if changes.is_empty() || options.dry_run {
            if made {
                // The files with secrets may have other permissions than before.
                self.current().warnings = warnings;
            }
            discard(prepared).await;
            return Ok(Changed { generation, changes, effects });
        }
        if let Some(persist) = options.persist
            && let Err(error) = persist(&served)
        {
            discard(prepared).await;
            return Err(ChangeError::Persist(error));
        }
        let generation = generation + 1;
        {
            let mut current = self.current();
            current.config = Arc::new(served.clone());
            current.generation = generation;
            current.warnings = warnings;
        }
        for change in &changes {
            tracing::info!(generation, "{change}");
        }
        for effect in &effects {
            tracing::warn!(generation, "{effect}");
        }
        self.commit(&mut transaction.luns, prepared, &served).await;
        Ok(Changed { generation, changes, effects })
    }

    /// Gets everything that `new` needs. Of what is served nothing changes.
    async fn prepare(&self, luns: &Luns, new: &Config) -> Result<Prepared, ChangeError> {
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
        let old = self.config();
        if old.discovery == new.discovery
            && prepared.discovery.is_some()
            && prepared.discovery != serving.discovery
        {
            prepared.secrets.push(changed_secret("discovery".to_owned()));
        }
        for config in &new.targets {
            let result = self.prepare_target(&serving, luns, new, config, &mut prepared).await;
            if let Err(error) = result {
                discard(prepared).await;
                return Err(error.into());
            }
        }
        Ok(prepared)
    }

    async fn prepare_target(
        &self,
        serving: &Serving,
        luns: &Luns,
        new: &Config,
        config: &TargetConfig,
        prepared: &mut Prepared,
    ) -> Result<(), StartError> {
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
            match luns.get(&key).map(|old| (old, old.succession(lun))) {
                Some((_, Succession::Kept { resize })) => {
                    prepared.resized.extend(resize.map(|size| (key, size)));
                }
                Some((old, Succession::NewUnit)) => {
                    let unit = self.maker.unit(config, lun, &old.device)?;
                    prepared.renewed.push((key, unit));
                }
                None | Some((_, Succession::NewDevice)) => {
                    prepared.new.push(self.maker.make(config, lun).await?);
                }
            }
        }
        let scsi = match old {
            Some(old) => Arc::clone(&old.scsi),
            None => self.maker.target(name).map_err(StartError::State)?,
        };
        let config = config.with_formats();
        prepared.targets.insert(name.to_owned(), Arc::new(Target { config, auth, scsi }));
        Ok(())
    }

    /// Makes the change. What can still go wrong here are devices that do not do as they are told, which is logged.
    async fn commit(&self, luns: &mut Luns, prepared: Prepared, new: &Config) {
        let old = self.shared.serving();
        let limits = settings::fit_descriptors(new.limits);
        self.shared.registry.set_limits(&limits);
        // From here on logins meet the new configuration.
        self.shared.serve(settings::serving(new, limits, prepared.targets.clone(), prepared.discovery));
        let portals = self.shared.portals.now();
        self.listeners.commit(prepared.sockets);
        self.drain_portals(&old, &portals);
        let leaving = self.reconsider_sessions(&old, &prepared.targets);
        for target in prepared.targets.values() {
            target.scsi.set_port_groups(port_groups(new, &target.config));
        }
        all_ended(&leaving, DRAIN_TIME + DRAIN_SLACK).await;

        for (key, size) in prepared.resized {
            if let Some(lun) = luns.get(&key)
                && let Err(error) = lun.resize(size).await
            {
                tracing::error!("{error}");
            }
        }
        let mut retired = Vec::new();
        for (key, unit) in prepared.renewed {
            if let (Some(lun), Some(target)) = (luns.get_mut(&key), prepared.targets.get(&key.0)) {
                withdraw(&target.scsi, key.1);
                lun.unit = unit;
                log_refused(attach(&target.scsi, lun));
            }
        }
        let gone = |key: &(String, u16)| new.target(&key.0).and_then(|target| target.lun(key.1)).is_none();
        let replaced = |key: &(String, u16)| prepared.new.iter().any(|lun| lun.key() == *key);
        let keys: Vec<_> = luns.keys().filter(|key| gone(key) || replaced(key)).cloned().collect();
        for key in keys {
            let scsi = prepared.targets.get(&key.0).or_else(|| old.targets.get(&key.0));
            if let (Some(target), Some(lun)) = (scsi, luns.remove(&key)) {
                withdraw(&target.scsi, key.1);
                retired.push(lun);
            }
        }
        for lun in prepared.new {
            if let Some(target) = prepared.targets.get(&lun.target) {
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
        self.shared.metrics.forget(|target, lun| !luns.contains_key(&(target.to_owned(), lun)));
        self.retire(retired, luns).await;
    }

    /// Takes leave of logical units that have been withdrawn, of all at once, and waits for it [`RETIRE_TIME`]. One whose device
    /// does not answer holds up no other, and not the changes after this one: its leave is taken when its device answers.
    async fn retire(&self, retired: Vec<Lun>, luns: &Luns) {
        let by = tokio::time::Instant::now() + RETIRE_TIME;
        let mut leaves = Vec::new();
        for lun in retired {
            let (key, for_good) = (lun.key(), !luns.contains_key(&lun.key()));
            let leave = async move {
                if let Err(error) = lun.retire(for_good).await {
                    tracing::error!("{error}");
                }
            };
            leaves.push((key, tokio::spawn(leave)));
        }
        for ((target, lun), leave) in leaves {
            if tokio::time::timeout_at(by, leave).await.is_err() {
                tracing::error!(%target, lun, "the device of a removed LUN does not answer: it is closed when it does");
            }
        }
    }

    /// Asks the initiators that came by portals which this change has taken away to log out. They find the others by
    /// SendTargets. (An address that the machine loses for a while is another matter: its sessions may go on when it is back.)
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

    /// Tells the sessions of targets that are different now to look at what they may still do. Returns those that have
    /// to go because their target does.
    fn reconsider_sessions(&self, old: &Serving, new: &BTreeMap<String, Arc<Target>>) -> Vec<Arc<Handle>> {
        let mut leaving = Vec::new();
        for (name, target) in &old.targets {
            let sessions = || self.shared.registry.connections_with(name);
            match new.get(name) {
                Some(new) if new.config == target.config => {}
                Some(new) if new.config.enabled => sessions().iter().for_each(|s| s.send(Order::Reconsider)),
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

fn changed_secret(place: String) -> Change {
    let (kind, key) = (ChangeKind::Changed, Some("a secret".to_owned()));
    Change { kind, place, key, from: None, to: None }
}

/// Gives back what a change that is not made has taken.
async fn discard(prepared: Prepared) {
    for lun in prepared.new {
        lun.close().await;
    }
}

/// Offers a logical unit.
pub(super) fn attach(scsi: &ScsiTarget, lun: &Lun) -> Result<(), StartError> {
    scsi.attach(lun.config.id, Arc::clone(&lun.unit)).map_err(|error| StartError::Open {
        target: lun.target.clone(),
        lun: lun.config.id,
        device: lun.config.device.to_string(),
        why: error.to_string(),
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

/// The portal groups of a target as target port groups: one port each, of the same number (SPC-4 5.15.2.1).
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
