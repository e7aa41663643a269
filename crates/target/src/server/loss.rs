//! Rules of loss: what a change would destroy, for which somebody has to say that it may.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::change::Changer;
use super::error::{ChangeError, StartError};
use super::lun::Serials;
use super::prepared::{Openings, Prepared};
use super::{Luns, effects};
use crate::config::{Config, LunConfig, TargetConfig};
use crate::summary::SessionSummary;

/// Time for which a removal waits for sessions that are just ending: a host has logged out before the daemon has ended
/// its connection.
const ENDING_TIME: Duration = Duration::from_millis(500);
/// Interval at which it looks.
const ENDING_POLL: Duration = Duration::from_millis(20);

/// What is done with what goes, for a refusal.
const REMOVED: &str = "is removed";

/// What a change takes away, as a part of the configuration that was served.
#[derive(Clone, Copy)]
enum Loss<'c> {
    /// A target, named before its logical units.
    Target(&'c str),
    /// The device of a logical unit.
    Device { target: &'c str, lun: u16, cause: Cause },
}

/// Reason why the device of a logical unit is given up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// Its target is removed.
    WithTarget,
    /// It is removed, and its target stays.
    Removed,
    /// It gets another device.
    Replaced,
}

impl Cause {
    /// What is done with the logical unit, for a refusal.
    fn words(self) -> &'static str {
        match self {
            Self::WithTarget | Self::Removed => REMOVED,
            Self::Replaced => "gets another device",
        }
    }
}

/// All that a change takes away, in the order in which it is looked at: what is removed, then what is replaced.
fn losses<'c>(old: &'c Config, new: &Config, prepared: &'c Prepared) -> Vec<Loss<'c>> {
    let mut losses = Vec::new();
    for config in &old.targets {
        let target = config.name.as_str();
        let stays = new.target(target);
        let cause = if stays.is_some() { Cause::Removed } else { Cause::WithTarget };
        if stays.is_none() {
            losses.push(Loss::Target(target));
        }
        let goes = |lun: &&LunConfig| stays.is_none_or(|stays| stays.lun(lun.id).is_none());
        let devices = config.luns.iter().filter(goes);
        losses.extend(devices.map(|lun| Loss::Device { target, lun: lun.id, cause }));
    }
    let replaced = prepared.new.iter();
    losses.extend(replaced.map(|(target, lun)| Loss::Device {
        target: target.name.as_str(),
        lun: lun.id,
        cause: Cause::Replaced,
    }));
    losses
}

impl Changer {
    /// Refuses to remove or replace what initiators use, and memory that holds data. Waits for sessions that are just
    /// ending.
    pub(super) fn none_is_used(
        &self,
        old: &Config,
        new: &Config,
        prepared: &Prepared,
    ) -> Result<(), ChangeError> {
        let by = Instant::now() + ENDING_TIME;
        loop {
            match self.none_is_used_now(old, new, prepared) {
                Err(ChangeError::InUse { .. }) if Instant::now() < by => thread::sleep(ENDING_POLL),
                used => return used,
            }
        }
    }

    /// Refuses to give up a device whose file has lost its name: a deleted file ends with it. Waits for file systems.
    pub(super) fn none_is_nameless(
        &self,
        old: &Config,
        new: &Config,
        prepared: &Prepared,
    ) -> Result<(), ChangeError> {
        losses(old, new, prepared).into_iter().try_for_each(|loss| {
            let Loss::Device { target, lun, cause } = loss else { return Ok(()) };
            // Outside of the lock, as a file system may not answer.
            let device = self.transaction().lun(target, lun).map(|served| Arc::clone(&served.device));
            match device.and_then(|device| device.lost_name()) {
                None => Ok(()),
                Some(why) => {
                    Err(ChangeError::Nameless { target: target.to_owned(), lun, why, change: cause.words() })
                }
            }
        })
    }

    fn none_is_used_now(&self, old: &Config, new: &Config, prepared: &Prepared) -> Result<(), ChangeError> {
        let (serving, sessions) = (self.shared.serving(), self.shared.registry.users());
        let transaction = self.transaction();
        let luns = &transaction.luns;
        losses(old, new, prepared).into_iter().try_for_each(|loss| {
            let (place, change, users) = match loss {
                Loss::Target(target) => {
                    (format!("target {target}"), REMOVED, effects::listed_each(with(&sessions, target)))
                }
                Loss::Device { target, lun, cause: cause @ (Cause::Removed | Cause::Replaced) } => {
                    let is_served = luns.contains_key(&(target.to_owned(), lun));
                    let sees = |session: &&SessionSummary| effects::sees(&serving.targets, session, lun);
                    let users = with(&sessions, target).filter(|_| is_served).filter(sees);
                    (format!("lun {lun} of target {target}"), cause.words(), effects::listed_each(users))
                }
                // Its target is asked for.
                Loss::Device { cause: cause @ Cause::WithTarget, .. } => (String::new(), cause.words(), None),
            };
            match (users, loss) {
                (Some(initiators), _) => Err(ChangeError::InUse { place, change, initiators }),
                (None, Loss::Target(_)) => Ok(()),
                (None, Loss::Device { target, lun, cause }) => {
                    holds_no_data(luns, (target, lun), cause.words())
                }
            }
        })
    }
}

/// The sessions with a target.
fn with<'a>(sessions: &'a [SessionSummary], target: &'a str) -> impl Iterator<Item = &'a SessionSummary> {
    sessions.iter().filter(move |session| session.target.eq_ignore_ascii_case(target))
}

/// A logical unit that would have fewer bytes than now, with its own device or with another.
pub(super) fn smaller(luns: &Luns, prepared: &Prepared, openings: &Openings) -> Option<ChangeError> {
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

/// Refuses to give up memory that holds data; `change`: what would be done with its logical unit.
fn holds_no_data(luns: &Luns, (target, id): (&str, u16), change: &'static str) -> Result<(), ChangeError> {
    let served = luns.get(&(target.to_owned(), id)).filter(|lun| lun.config.device.spec().is_memory());
    let bytes = served.and_then(|lun| lun.device.space()).map_or(0, |space| space.allocated);
    match bytes {
        0 => Ok(()),
        bytes => Err(ChangeError::HoldsData { target: target.to_owned(), lun: id, bytes, change }),
    }
}

/// A logical unit that has snapshots, which would end: it goes, gets another device, or a smaller size.
pub(super) fn end_of_snapshots(luns: &Luns, prepared: &Prepared, new: &Config) -> Option<ChangeError> {
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
pub(super) fn one_serial_each(
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
