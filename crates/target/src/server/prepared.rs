//! Resources of a new configuration, acquired before anything is changed: secrets, sockets, and devices that are opened
//! beside other changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use lunway_iscsi::login::ChapAuth;
use lunway_scsi::LogicalUnit;

use super::change::Changer;
use super::claim::{Claim, Claimed};
use super::error::{ChangeError, StartError};
use super::lun::{Lun, Succession};
use super::settings;
use super::tracking::Fallback;
use crate::config::{Change, ChangeKind, Config, LunConfig, TargetConfig};
use crate::portal::PreparedListeners;
use crate::shared::{Serving, Target};

/// A logical unit that a change under way has opened and that is not served yet.
pub(super) struct Opened {
    /// As it was asked for.
    pub(super) config: LunConfig,
    pub(super) lun: Lun,
}

/// Logical units that a change under way has opened, with its claims on them.
#[derive(Default)]
pub(super) struct Openings {
    pub(super) luns: Vec<Opened>,
    claims: Vec<Claimed>,
}

/// All that a new configuration needs besides devices, had before anything is changed.
pub(super) struct Prepared {
    pub(super) targets: BTreeMap<String, Arc<Target>>,
    /// Logical units that are new or take another's place.
    pub(super) new: Vec<(TargetConfig, LunConfig)>,
    /// Logical units whose device stays, with what is in front of it then.
    pub(super) renewed: Vec<((String, u16), Arc<LogicalUnit>)>,
    /// Logical units that stay, with a new size.
    pub(super) resized: Vec<((String, u16), u64)>,
    /// CHAP proof required of discovery sessions.
    pub(super) discovery: Option<ChapAuth>,
    /// Secrets that were read anew and are others.
    pub(super) secrets: Vec<Change>,
    /// Bound.
    pub(super) sockets: PreparedListeners,
}

impl Openings {
    pub(super) fn find(&self, target: &str, config: &LunConfig) -> Option<usize> {
        self.luns.iter().position(|opened| opened.lun.target == target && opened.config == *config)
    }

    pub(super) fn take(&mut self, target: &str, config: &LunConfig) -> Option<Lun> {
        self.find(target, config).map(|at| self.luns.swap_remove(at).lun)
    }

    /// Gives disks that are to be served their track files, before anybody can write them. Blocks.
    pub(super) fn settle_track_files(&self, wanted: &[(TargetConfig, LunConfig)]) {
        let opened = wanted.iter().filter_map(|(target, config)| self.find(target.name.as_str(), config));
        opened.for_each(|at| self.luns[at].lun.settle_track_file());
    }

    /// Gives back what was not used.
    pub(super) async fn close(&mut self) {
        for opened in self.luns.drain(..) {
            opened.lun.close().await;
        }
        self.claims.clear();
    }
}

impl Changer {
    /// Opens devices, with no other change waiting. If others are busy with them, that is waited for, and nothing is
    /// opened.
    pub(super) async fn open(
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

    /// Gets everything that `new` needs besides devices. Of what is served nothing changes.
    pub(super) fn prepare(
        &self,
        new: &Config,
        switched: Option<(&str, u16)>,
    ) -> Result<Prepared, ChangeError> {
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
}

fn changed_secret(place: String) -> Change {
    let (kind, key) = (ChangeKind::Changed, Some("a secret".to_owned()));
    Change { kind, place, key, from: None, to: None }
}
