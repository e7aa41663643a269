//! Commit of a change, which cannot fail, and what disks and initiators have to do with it afterwards.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use lunway_scsi::ScsiTarget;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::change::{Changer, Leave, Transaction};
use super::claim::{Claim, Claimed};
use super::lun::{Lun, Resize, attach, log_refused, withdraw};
use super::prepared::{Openings, Prepared};
use super::{all_ended, settings};
use crate::config::Config;
use crate::portal::Portals;
use crate::registry::{Handle, Order};
use crate::shared::{Serving, Target};

/// Time to log out for the initiators of a target that goes.
const DRAIN_TIME: Duration = Duration::from_secs(5);
/// Maximum time that a change waits for the devices of removed logical units: longer than a flush of what the page
/// cache may hold takes as a rule. People wait for the answer, and other changes of the same logical units for this
/// one.
const RETIRE_TIME: Duration = Duration::from_secs(10);
/// Additional time for the connections that did not log out.
const DRAIN_SLACK: Duration = Duration::from_secs(1);

/// Remaining work of a change that is made: work of disks, for which other changes need not wait.
pub(super) struct Aftermath {
    resizes: Vec<Resize>,
    left: Vec<(String, u16, oneshot::Receiver<()>)>,
    /// Sessions with targets that are gone.
    leaving: Vec<Arc<Handle>>,
    /// Logical units that were never served, and of which nothing is to stay.
    forgotten: Vec<JoinHandle<()>>,
    _claims: Claimed,
}

impl Changer {
    /// Makes the change. Nothing here can fail, and nothing waits.
    pub(super) fn commit(
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
            target.scsi.set_port_groups(settings::port_groups(new, &target.config));
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
                lun.begin(&self.maker.runtime);
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
    pub(super) async fn follow_up(&self, aftermath: Aftermath) {
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
